"""Cosmos3-Nano at full size, with holes for weights: 31.5 GB as the file system sees it, 17.5 GB of
them converted. Its names and shapes are asserted by test_omni.py and the oracle beside it."""

import json
import shutil
import subprocess
import sys

import pytest
from omni_layouts import NANO, write_layout
from support import ROOT, called

from cosmos_reason.checkpoints import conversion, safetensors_files

pytestmark = pytest.mark.release

TOTAL_SIZE = 17_534_247_392  # what the index of the Hub's own 8B model states
SCRIPT = ROOT / "scripts" / "prepare_cosmos3_vlm_checkpoint.py"
# A process begins with the peak of the one that forks it, and that of pytest may be large.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_a_conversion_at_full_size_takes_little_memory_and_is_reused_without_reading_it(tmp_path):
    if (free := shutil.disk_usage(tmp_path).free) < 1.1 * TOTAL_SIZE:
        pytest.skip(f"{free / 1e9:.0f} GB free, the conversion writes {TOTAL_SIZE / 1e9:.1f}")
    output = tmp_path / "out"
    words = [sys.executable, SCRIPT, "--checkpoint-path", tmp_path / "omni"]
    words += ["--output-path", output]
    try:
        write_layout(tmp_path / "omni", NANO)
        done = called([sys.executable, "-c", PEAK, *words], check=True)
        assert int(done.stdout.splitlines()[-1]) * 1024 < 100e6
        index = json.loads((output / safetensors_files.INDEX_NAME).read_text())
        assert index["metadata"]["total_size"] == TOTAL_SIZE and len(index["weight_map"]) == 750
        assert conversion.check_output(output) == []
        before = {path: path.stat().st_mtime_ns for path in output.iterdir()}
        assert called(words, check=True).stdout.endswith("status=skipped_existing\n")
        assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == before
    finally:
        for folder in (tmp_path / "omni", output):
            shutil.rmtree(folder, ignore_errors=True)


def test_a_quarter_size_race_with_cp():
    """Random bytes instead of holes. The ratio of wall times is printed, not judged: other work
    shares the disk."""
    words = [sys.executable, ROOT / "benchmarks/bench_conversion.py", "--layers", 9, "--rounds", 1]
    done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    print(result)
    assert result["peak_memory_mb"] < 100 and result["kept_gb"] > 4
