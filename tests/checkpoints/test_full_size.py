"""Cosmos3-Nano at full size, with holes for weights: 31.5 GB as the file system sees it, 17.5 GB of
them converted."""

import json
import shutil
import subprocess
import sys

import pytest
from omni_layouts import NANO, write_layout
from support import ROOT

from cosmos_reason.checkpoints import conversion, safetensors_files

pytestmark = pytest.mark.release

TOTAL_SIZE = 17_534_247_392  # what the index of the Hub's own 8B model states
META = """
import json, sys
import torch, transformers
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    state = transformers.Qwen3VLForConditionalGeneration(config).state_dict()
print(json.dumps({name: list(tensor.shape) for name, tensor in state.items()}))
"""
# A process begins with the peak of the one that forks it, and that of pytest may be large.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """(source, output, peak resident memory in MB) of one conversion; the files go away with the
    test."""
    base = tmp_path_factory.mktemp("nano")
    if (free := shutil.disk_usage(base).free) < 1.1 * TOTAL_SIZE:
        pytest.skip(f"{free / 1e9:.0f} GB free, the conversion writes {TOTAL_SIZE / 1e9:.1f}")
    try:
        write_layout(base / "omni", NANO)
        script = ROOT / "scripts" / "prepare_cosmos3_vlm_checkpoint.py"
        command = [
            sys.executable,
            script,
            "--checkpoint-path",
            base / "omni",
            "--output-path",
            base / "out",
        ]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *command], stdout=subprocess.PIPE, text=True, check=True
        )
        yield base / "omni", base / "out", int(done.stdout.splitlines()[-1]) * 1024 / 1e6
    finally:
        shutil.rmtree(base)


def test_names_shapes_and_size_are_those_of_the_8b_model(nano):
    """Judged by transformers' own class, and read by the safetensors library."""
    import safetensors

    _, output, _ = nano
    index = json.loads((output / safetensors_files.INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == TOTAL_SIZE and len(index["weight_map"]) == 750
    done = subprocess.run(
        [sys.executable, "-c", META, output], capture_output=True, text=True, check=True
    )
    shapes = {}
    for shard in set(index["weight_map"].values()):
        with safetensors.safe_open(output / shard, framework="pt") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    assert shapes == json.loads(done.stdout.splitlines()[-1])


def test_memory_stays_small(nano):
    assert nano[2] < 100


def test_a_rerun_finds_the_output_without_reading_it(nano):
    source, output, _ = nano
    assert conversion.check_output(output) == []
    script = ROOT / "scripts" / "prepare_cosmos3_vlm_checkpoint.py"
    command = [sys.executable, script, "--checkpoint-path", source, "--output-path", output]
    before = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("status=skipped_existing\n")
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == before


def test_a_quarter_size_race_with_cp():
    """Random bytes instead of holes. The ratio of wall times is printed, not judged: other work
    shares the disk."""
    command = [
        sys.executable,
        ROOT / "benchmarks/bench_conversion.py",
        "--layers",
        "9",
        "--rounds",
        "1",
    ]
    result = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    )
    print(result)
    assert result["peak_memory_mb"] < 100 and result["kept_gb"] > 4
