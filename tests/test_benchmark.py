"""BENCHMARK.md: recomputed from the runs that are kept; the tasks can be solved, and are graded by
what lies there afterwards."""

import json
import runpy
import subprocess
import sys

import pytest
from support import ROOT

RUN = runpy.run_path(str(ROOT / "evals/run.py"))
FIRST, SECOND = (
    [case for case in RUN["cases"]().values() if case.get("task") == half]
    for half in (True, "second")
)


def test_the_page_is_what_the_kept_runs_give():
    assert (ROOT / "BENCHMARK.md").read_text(encoding="utf-8") == RUN["table"]()
    assert len(FIRST) == len(SECOND) == 11


def test_no_case_of_the_second_half_changed_after_the_freeze():
    assert RUN["digest"]() in (ROOT / "BENCHMARK.md").read_text(encoding="utf-8")
    kinds = [[case["id"].partition("-")[2] for case in half] for half in (FIRST, SECOND)]
    assert kinds[0] == kinds[1]


def test_runs_are_counted_by_their_medians_and_what_was_not_run_is_said(tmp_path):
    name, second = FIRST[0]["id"], SECOND[1]["id"]
    counts = {"characters": 0, "commands": 4, "dead_ends": 0, "seconds": 80}
    for run, characters, right in ((1, 9000, True), (2, 30000, False), (3, 11000, True)):
        kept = {"task": name, "model": "m", "skill": True, "run": run, "right": right}
        kept |= counts | {"characters": characters}
        (tmp_path / f"{run}.json").write_text(json.dumps(kept))
    (tmp_path / "second.json").write_text(json.dumps(kept | {"task": second, "run": 1}))
    rows = RUN["table"](tmp_path).splitlines()
    assert "| docker-elsewhere | yes | m | 3 of 3 | 2 of 3 | 11,000 | 4 | 0 | 80 |" in rows
    assert "| dead-runs | yes | m | 1 of 1 | 1 of 1 | 11,000 | 4 | 0 | 80 |" in rows
    assert sum("not run" in row for row in rows if row.startswith("| ")) == 21 + 10


def test_a_kept_run_holds_the_verdict_of_its_artefacts(tmp_path):
    """Solved, then damaged: the same folder is right, then wrong, and its hashes differ."""
    place = tmp_path / "case"
    (case,) = [case for case in FIRST if case["id"] == "task-dead-runs"]
    solve = [sys.executable, str(ROOT / "evals/run.py"), "solve", case["id"], str(place)]
    done = subprocess.run(solve, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(row["passed"] for row in RUN["grade"](case, place))
    before = RUN["artefacts"](case, place)
    assert len(before) == 3
    (place / "runs" / "no-steps.json").write_text('{"findings": []}')
    assert [row["passed"] for row in RUN["grade"](case, place)] == [True, False, True]
    assert len(RUN["artefacts"](case, place).items() - before.items()) == 1


@pytest.mark.integration
@pytest.mark.parametrize("case", [case["id"] for case in FIRST + SECOND])
def test_every_task_is_solved_by_its_reference(case, tmp_path):
    solve = [sys.executable, str(ROOT / "evals/run.py"), "solve", case, str(tmp_path / "case")]
    done = subprocess.run(solve, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
