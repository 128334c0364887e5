"""What a process of cosmos-rl does when it fails, in place of whose package stands nothing."""

import pytest

from cosmos_reason.base.findings import bad_input, outside
from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry


@pytest.mark.parametrize("role", ["Policy", "Rollout"])
@pytest.mark.parametrize(
    "problem, told",
    [
        (bad_input("REWARD-FILE-RAISES", "own.py", "got 1"), "error: REWARD-FILE-RAISES own.py"),
        (RuntimeError("no GPUs found"), "RuntimeError: no GPUs found"),
    ],
)
def test_a_replica_that_fails_ends_the_job(role, problem, told, monkeypatch, capsys):
    monkeypatch.setenv("COSMOS_ROLE", role)
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise problem
    assert ended.value.code == cosmos_rl_entry.ENDS_ALL
    seen = capsys.readouterr().err
    assert told in seen and ("Traceback" in seen) == isinstance(problem, RuntimeError)


def test_a_controller_that_fails_ends_with_its_own_code(monkeypatch):
    monkeypatch.setenv("COSMOS_ROLE", "Controller")
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise outside("DATA-MEDIA-BREAKING", "a.mp4", "got 2")
    assert ended.value.code == 3
    with pytest.raises(RuntimeError), cosmos_rl_entry.ending_all():
        raise RuntimeError


def test_a_process_that_does_not_fail_ends_as_it_likes(monkeypatch):
    monkeypatch.setenv("COSMOS_ROLE", "Policy")
    with cosmos_rl_entry.ending_all():
        pass
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise SystemExit(0)
    assert ended.value.code == 0
