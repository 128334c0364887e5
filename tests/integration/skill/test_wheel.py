"""The wheel that `uvx` and `uv tool install` make of a clone: the whole skill, in an environment of
its own, from a folder far from the clone."""

import site
import subprocess
import sys

import oracles
import pytest
from support import ROOT

from cosmos_reason.demo import clips

pytestmark = pytest.mark.integration


def succeed(*command, **options) -> str:
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """`cosmos-reason` of an environment with the wheel; its requirements are those of the tests."""
    root = tmp_path_factory.mktemp("wheel")
    uv = oracles.installed("uv-0.13.8", ["uv==0.13.8"]) / "bin" / "uv"
    succeed(uv, "build", "--wheel", "--out-dir", root / "dist", ROOT)
    (wheel,) = (root / "dist").glob("*.whl")
    succeed(sys.executable, "-m", "venv", "--without-pip", root / "env")
    succeed(uv, "pip", "install", "--python", root / "env", "--no-deps", wheel)
    (packages,) = (root / "env").glob("lib/python3*/site-packages")
    (packages / "requirements.pth").write_text("\n".join(site.getsitepackages()))
    assert not [path for path in packages.rglob("*") if path.name in ("tests", "evals", "tools")]
    return root / "env" / "bin" / "cosmos-reason"


def test_an_installed_command_needs_no_clone(program, tmp_path):
    clips.write_split(tmp_path / "data", "train", 6, 3)
    place = {
        "cwd": tmp_path,
        "env": {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": "/nowhere"},
    }
    said = succeed(program, "check-dataset", "data/train", "--facts", "facts.json", **place)
    (line,) = [line for line in said.splitlines() if line.startswith("next: ")]
    said = succeed("sh", "-c", line.removeprefix("next: "), **place)  # schemas and templates
    assert "wrote spec.toml" in said and str(ROOT) not in said
    assert (tmp_path / "spec.toml").is_file()
    assert "learning rate" in succeed(program, "build-spec", "--explain", "learning rate", **place)
    said = succeed(program, "status", **place)
    assert "spec.toml (train with tao)" in said
    log = tmp_path / "log.txt"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB.\n")
    done = subprocess.run([program, "diagnose-log", log], capture_output=True, text=True, **place)
    assert done.returncode == 1 and "LOG-GPU-MEMORY" in done.stderr
