"""A launch that is rendered for another machine, started there by another user, and adopted."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from elsewhere_world import World, awaited

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.getuid() != 0, reason="not root, who may become another user"),
]
SYSTEM = f"/usr/bin/python3.{sys.version_info[1]}"
OTHER = 4321
# Its Python: the packages are this environment's, whose interpreter others may not be able to see.
PYTHON = f"""#!/bin/sh
exec env PYTHONPATH={sysconfig.get_paths()["purelib"]} {SYSTEM} "$@"
"""


@pytest.fixture
def world():
    if not (shutil.which("setpriv") and os.path.exists(SYSTEM)):
        pytest.skip(f"no setpriv, or no {SYSTEM}")
    root = Path(tempfile.mkdtemp(prefix="elsewhere-", dir="/tmp"))  # pytest's is closed to others
    root.chmod(0o755)
    try:
        yield World(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def started(world, *words, **more):
    environment = world.there / "venv"
    world.render("local", *words, environment=str(environment), **more)
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python3").write_text(PYTHON)
    (environment / "bin" / "python3").chmod(0o755)
    for path in (world.there, *world.there.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    world.here.chmod(0o700)  # what that user may not see
    user = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    variables = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={world.there}", "OMP_NUM_THREADS=1"]
    world.start(*user, *variables, "bash", str(world.out / "run.sh"))
    code, _ = awaited(world.out / "run.exit")
    return int(code)


@pytest.mark.promise
def test_another_user_trains_and_it_goes_on_here(world):
    assert started(world) == 0, (world.out / "log.txt").read_text()
    assert (world.out / "metrics.jsonl").stat().st_uid == OTHER
    record = world.adopted()
    assert (record["state"], record["reason"]) == ("COMPLETE", ""), record
    world.goes_on(record)


def test_an_evaluation_of_another_user_is_scored_here(world):
    assert started(world, action="evaluate", spec="eval.toml") == 0
    record = world.adopted()
    assert record["evidence"] == {"rows": 9, "questions": 9, "failed": 0}
    scored = world.run(record["outputs"]["results_dir"], script="score_predictions.py")
    assert scored["result"]
