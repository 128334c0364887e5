"""Several GPUs share the questions of one evaluation."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from evaluating import rows_of, write_spec
from forked import Forked, one_thread
from support import run_here, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import per_gpu


def test_num_gpus_starts_a_process_each_and_refuses_gpus_that_are_not_there(
    evaluate_spec, tmp_path, monkeypatch
):
    def start(words, env, stdout):
        """As subprocess.Popen of our script, in a fork of this process."""
        assert words[0] == sys.executable and stdout == subprocess.DEVNULL
        work = partial(run_here_with, env, *words[1:])
        return Forked(work, tmp_path / f"said-{env['CUDA_VISIBLE_DEVICES']}")

    monkeypatch.setattr(per_gpu.subprocess, "Popen", start)
    config = write_spec(evaluate_spec, tmp_path / "e.toml", num_gpus=2)
    words = ["run_with_transformers.py", "evaluate", "--config", config, "--json"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with one_thread():
        done = run_here(*words, cwd=tmp_path)
    assert done.returncode == 0, (tmp_path / "said-0").read_text()
    assert json.loads(done.stdout)["result"]["rows"] == len(rows_of(tmp_path / "results")) == 12
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    few = run_here(*words, cwd=tmp_path)
    assert (few.returncode, json.loads(few.stdout)["findings"][0]["id"]) == (2, "EVAL-GPUS")


def run_here_with(environment, script, *words):
    """The exit code of a script that runs in this process, with this environment."""
    os.environ.clear()
    os.environ.update(environment)
    done = run_here(script, *words, cwd=os.getcwd())
    print(done.stdout, done.stderr)
    return done.returncode


def test_when_one_process_fails_the_others_are_ended(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fails_as_the_first = "import sys, time; sys.exit(3) if '1/2' in sys.argv else time.sleep(600)"
    with pytest.raises(Failure, match=r"EVAL-SHARD-FAILED.*3, -15") as failure:
        per_gpu.run([sys.executable, "-c", fails_as_the_first], 2, [])
    assert failure.value.exit_code == 3


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/2/3"])
def test_a_shard_is_a_part_of_a_whole(tmp_path, part):
    done = run_script(
        "run_with_transformers.py", "evaluate", "--config", "none.toml", "--shard", part, "--json"
    )
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (2, "USAGE")
