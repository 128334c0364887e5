"""The commands a perfect agent would run satisfy each case's own grader,
and what they print stays small."""

import csv
import importlib.util
import os
import re
import shlex
from subprocess import CompletedProcess

import av
import pytest
from support import ROOT, run_script, tokens

# What an agent may receive for one of these tasks, and in how many commands (SKILL.md is one).
MOST_CHARACTERS, MOST_COMMANDS = 18000, 6
BUDGETED = (
    "automl-plan-docker",
    "check-data",
    "check-frames",
    "csv-missing-clip",
    "died-with-spec",
    "evaluate-local",
    "full-eight-gpus",
    "lora-docker-global-batch",
    "quantize-docker",
)
SPEC = importlib.util.spec_from_file_location("evals_run", ROOT / "evals" / "run.py")
run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run)
CASES = run.cases()
# An agent that is not sure reads the launch page too.
READ_FIRST = sum(
    len((ROOT / page).read_text(encoding="utf-8"))
    for page in ("SKILL.md", "references/cosmos-reason-launch.md")
)
MARKS = {"engine": pytest.mark.integration}
# One of our scripts, where its output goes, and whether findings are expected.
PLAIN = re.compile(r"(\w+\.py) ([^<>|&;$`*]*?)(?: > (\S+))?(?: (\|\| test \$\? -eq 1))?")
REAL_SHELL = run.shell


def shell(line, workspace):
    """As `run.shell`, without a new process for a line that a shell has little to do with."""
    plain = PLAIN.fullmatch(line)
    if not plain:
        return REAL_SHELL(line, workspace)
    name, words, target, may_find = plain.groups()
    path = os.pathsep.join([str(ROOT / "scripts"), os.environ["PATH"]])
    done = run_script(name, *shlex.split(words), cwd=workspace, env={"PATH": path})
    said, code = done.stdout, done.returncode
    if target:
        (workspace / target).write_text(said)
        said = ""
    if may_find and code == 1:
        code = 0
    return CompletedProcess(line, code, said, done.stderr)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[MARKS[need] for need in case["needs"]])
        for name, case in CASES.items()
        # Those of the second half are solved by tests/test_benchmark.py.
        if case.get("task") != "second"
    ],
)
def test_reference_solution(case, tmp_path, monkeypatch):
    if not case["needs"]:
        monkeypatch.setattr(run, "shell", shell)
    run.prepare(case, tmp_path / "work")
    before = run.grade(case, tmp_path / "work")
    received = 0
    for line in case["reference"]:
        done = run.shell(line, tmp_path / "work")
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        # What is saved too is printed in full: it spares reading the file.
        most = 750 if " --save " in line else 600
        # How long the paths of this test and clone are says nothing of what people read.
        said = (done.stdout + done.stderr).replace(f"{tmp_path}/", "")
        said = said.replace(str(ROOT), f".agents/skills/{run.SKILL}")
        assert tokens(said) < most, f"{line} prints too much to read"
        received += len(said)
    if case["id"] in BUDGETED:
        assert len(case["reference"]) < MOST_COMMANDS
        assert received + READ_FIRST < MOST_CHARACTERS
    found = run.grade(case, tmp_path / "work")
    assert all(row["passed"] for row in found), found
    if case["reference"]:
        assert not all(row["passed"] for row in before), "an empty answer must not pass"


@pytest.mark.parametrize(
    ("assertion", "expected"),
    [
        ('a.json: rows[].id has "b"', True),
        ('a.json: rows[].id lacks "b"', False),
        ("a.json: rows.# == 2", True),
        ("a.json: rows.# >= 3", False),
        ('nested.json: [].turns[].says has "b"', True),
        ('nested.json: [].turns[].says has "c"', False),
        ("a.json: gone absent", True),
        ("a.json: gone == 1", False),
        ("a.json: gone exists", False),
        ("*.toml: train.epoch == 3", True),
        ("*.toml: train.epoch >= 4", False),
        ('text.txt: has "step_2"', True),
        ("none.json: absent", True),
        ("none.json: ok == true", False),
        ("broken.json: ok absent", False),
        ("folder/: exists", True),
        ("text.txt/: exists", False),
    ],
)
def test_assertions(tmp_path, assertion, expected):
    (tmp_path / "a.json").write_text('{"rows": [{"id": "a"}, {"id": "b"}]}')
    (tmp_path / "nested.json").write_text(
        '[{"turns": [{"says": "a"}]}, {"turns": [{"says": "b"}]}]'
    )
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "one.toml").write_text("[train]\nepoch = 1\n")
    (tmp_path / "two.toml").write_text("[train]\nepoch = 3\n")
    (tmp_path / "text.txt").write_text("results/step_2\n")
    (tmp_path / "folder").mkdir()
    assert run.holds(assertion, tmp_path) is expected


def test_an_assertion_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected FILES"):
        run.holds("spec.toml is right", tmp_path)


def test_a_light_of_the_event_table_is_on_when_the_table_says_so_and_never_else(tmp_path):
    """Agents that looked at the frames called its labels wrong, rightly."""
    run.prepare(CASES["task-events"], tmp_path)
    with open(tmp_path / "tours" / "events.csv", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    for row in rows:
        with av.open(str(tmp_path / "tours" / row["clip"])) as clip:
            frames = [frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)]
        is_lit = [bool(frame[:8, :8].mean() > 200) for frame in frames]
        start, end = float(row["start"]), float(row["end"])
        assert is_lit == [start <= number / 8 < end for number in range(16)]
    assert len(rows) == 6
