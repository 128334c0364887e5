"""Rows written for VLMEvalKit and lmms-eval, which read back as what they were."""

import csv
import json

import pytest
from scoring import row, run_of, score, write

CHOICE = "Which colour?\n(A) red\n(B) green\n(C) blue\nAnswer with the option's letter."
ROWS = [
    row("a", "B", "The answer is\tB.", question=CHOICE),
    row("b", "A", "(C) blue", question=CHOICE),
    row("c", "C", 'I "cannot"\ntell.', question=CHOICE),
    row("d", "yes", "Yes, it does.", question="Does it stop?"),
    row("e", "no", "Yes.", question="Does it stop?"),
    row("f", "3", "3 cars", question="How many cars are there?"),
    row("g", "A", None, question=CHOICE, error="the clip does not decode"),
    row("h", "A red car turns.", "A dog.", question="Describe it."),
]


def figures(path) -> dict:
    run = run_of(path)
    return {name: run[name] for name in ("rows", "correct", "unparseable", "failed")}


@pytest.mark.parametrize("tool", ["vlmevalkit", "lmms-eval"])
def test_what_is_exported_reads_back_as_it_was(tmp_path, tool):
    file = write(tmp_path / "results.json", ROWS)
    code, document = score(file, "--export", f"{tool}={tmp_path / 'out'}")
    assert code == 0 and document["result"]["rows"] == len(ROWS)
    whole = {row["id"]: row for row in ROWS}
    found = {}
    for name in document["result"]["exported"]:
        for id in json.loads(json.dumps([one["id"] for one in ROWS])):
            code, told = score(name, "--explain", id)
            if code == 0:
                found[id] = told["result"]["row"]
    assert found.keys() == whole.keys()
    for id, one in found.items():
        _, told = score(file, "--explain", id)
        before = told["result"]["row"]
        assert (one["type"], one["expected"], one["answer"], one["outcome"]) == (
            before["type"], before["expected"], before["answer"], before["outcome"]
        ), id  # fmt: skip
    total = {}
    for name in document["result"]["exported"]:
        for key, count in figures(name).items():
            total[key] = total.get(key, 0) + count
    assert total == figures(file)


def test_the_files_are_those_of_the_tools(tmp_path):
    file = write(tmp_path / "results.json", ROWS)
    for tool in ("vlmevalkit", "lmms-eval"):
        assert score(file, "--export", f"{tool}={tmp_path / tool}")[0] == 0
    with open(tmp_path / "vlmevalkit/mcq.tsv", newline="") as handle:
        lines = list(csv.DictReader(handle, delimiter="\t"))
    assert lines[0] == {
        "index": "a", "video": "v.mp4", "question": CHOICE, "A": "red", "B": "green", "C": "blue",
        "answer": "B", "prediction": "The answer is\tB.", "error": "",
    }  # fmt: skip
    text = (tmp_path / "lmms-eval/mcq_samples.jsonl").read_text(encoding="utf-8")
    first = json.loads(text.splitlines()[0])
    assert first["doc"]["index2ans"] == {"A": "red", "B": "green", "C": "blue"}
    assert (first["doc_id"], first["target"]) == (0, "B")
    assert (
        first["resps"] == [["The answer is\tB."]] and first["filtered_resps"] == first["resps"][0]
    )


@pytest.mark.parametrize("tool", ["vlmevalkit", "lmms-eval"])
def test_files_that_are_there_are_replaced_only_when_asked(tmp_path, tool):
    file = write(tmp_path / "results.json", ROWS)
    name = "yes_no.tsv" if tool == "vlmevalkit" else "yes_no_samples.jsonl"
    there = tmp_path / "out" / name
    there.parent.mkdir()
    there.write_text("mine")
    words = ("--export", f"{tool}={there.parent}")
    code, document = score(file, *words)
    (finding,) = document["findings"]
    assert (code, finding["id"]) == (2, "EVAL-EXPORT-EXISTS") and name in finding["message"]
    assert [path.name for path in there.parent.iterdir()] == [name], "nothing else is written"
    assert there.read_text() == "mine"
    assert score(file, *words, "--force")[0] == 0
    assert there.read_text() != "mine"
    assert score(file, "--force")[0] == 2, "without --export it has no effect"


@pytest.mark.parametrize("given", ["vlmevalkit", "other=out", "vlmevalkit="])
def test_a_tool_or_folder_that_is_none_is_wrong_usage(tmp_path, given):
    file = write(tmp_path / "results.json", ROWS)
    assert score(file, "--export", given)[0] == 2
    assert not (tmp_path / "out").exists()
