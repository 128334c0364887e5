"""Checkpoints of cosmos-framework are named for what they are, wherever somebody gives one."""

import shlex

import pytest
from support import run_script

from cosmos_reason.checkpoints import dcp


@pytest.fixture
def run(tmp_path):
    """What a training of cosmos-framework leaves, without numbers."""
    root = tmp_path / "videophy2"
    for step in ("iter_000000500", "iter_000001000"):
        for part in ("model", "optim", "scheduler", "trainer"):
            folder = root / "checkpoints" / step / part
            folder.mkdir(parents=True)
            (folder / "__0_0.distcp").write_bytes(b"x")
            (folder / ".metadata").write_bytes(b"x")
    (root / "checkpoints" / "latest_checkpoint.txt").write_text("iter_000000500\n")
    (root / "config.yaml").write_text("job: {}\n")
    return root


@pytest.mark.parametrize(
    "part", ["", "checkpoints", "checkpoints/iter_000000500", "checkpoints/iter_000000500/model"]
)
def test_it_is_found_from_any_of_its_folders(run, part):
    assert dcp.find(run / part) == run / "checkpoints" / "iter_000000500"


def test_the_last_is_meant_where_no_file_names_the_newest(run, tmp_path):
    (run / "checkpoints" / "latest_checkpoint.txt").unlink()
    assert dcp.find(run).name == "iter_000001000"
    assert dcp.find(tmp_path) is None and dcp.find(tmp_path / "nowhere") is None


def test_each_script_says_so_with_the_command_that_exports_it(run, tmp_path):
    step = run / "checkpoints" / "iter_000000500"
    words = ["--checkpoint-path", str(step), "--config-file", str(run / "config.yaml")]
    command = f"{dcp.EXPORT} {shlex.join(words)} -o {step}-safetensors"
    spec = str(tmp_path / "spec.toml")
    for script, *flags in (
        ("prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", step, "--output-path", "out"),
        ("build_spec.py", "train", "--engine", "transformers", "--model", step, "-o", spec),
        ("select_checkpoint.py", run),
    ):
        done = run_script(script, *map(str, flags), "--json")
        assert done.returncode in (1, 2) and '"CKPT-DCP"' in done.stdout, done.stdout
        assert command in done.stdout
