"""What build_dataset writes as DAFT, judged by NVIDIA's own validator."""

import json
import os
import sys

import oracles
import pytest
from clip_files import write_clip
from support import called, run_script

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def validate():
    """A function from (format, folder) to the validator's output."""
    packages = oracles.installed("nvidia-tao-daft-7.0.0", ["nvidia-tao-daft==7.0.0"])

    def run(form, folder):
        program = [sys.executable, str(packages / "bin" / "tao-daft")]
        command = [*program, "validate", form, "--path", str(folder), "--strict"]
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        return called(command, env=environment).stdout

    return run


@pytest.mark.parametrize("form", ["tao-vl-reason-v1.0", "cosmos-reason-v1.0"])
def test_the_validator_accepts_what_is_written(validate, tmp_path, form):
    rows = []
    for number in range(4):
        write_clip(tmp_path / "source" / f"{number}.mp4", frames=8, tint=number)
        row = {"video": f"{number}.mp4", "question": "Bright?", "label": "Yes"}
        rows.append(row | {"reasoning": "It is light."})
    (tmp_path / "source" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = ["--format", form, "--eval-fraction", "0.25", "--license", "CC-BY-4.0"]
    done = run_script("build_dataset.py", tmp_path / "source", "-o", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    for split in ("train", "eval"):
        assert "VALIDATION PASSED" in (told := validate(form, tmp_path / "out" / split)), told
        assert run_script("check_dataset.py", tmp_path / "out" / split).returncode == 0
    broken = next((tmp_path / "out" / "train").rglob("*.json"))
    broken.write_text(broken.read_text().replace(form, "other"))
    assert "VALIDATION PASSED" not in validate(form, tmp_path / "out" / "train")
