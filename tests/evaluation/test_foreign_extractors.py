"""The reader beside the rule-based extractors of lmms-eval and VLMEvalKit, on the labelled set."""

import csv
import json
import random
import subprocess
import sys
from string import ascii_uppercase

import answer_set
import foreign_extractors
import oracles
import pytest
from scoring import row, run_of, score, write
from support import ROOT

from cosmos_reason import answers

pytestmark = pytest.mark.release
PACKAGES = ("lmms-eval==0.7.3", "ms-vlmeval==0.0.20")


@pytest.fixture(scope="module")
def installed():
    return oracles.installed("extractors", ["--no-deps", *PACKAGES])


def choices(row: answer_set.Labelled) -> dict[str, str]:
    return dict(zip(ascii_uppercase, row.options, strict=False)) or answers.options(row.question)


def said_by_others(rows: list[answer_set.Labelled], installed: object) -> dict[str, dict]:
    """What each of the other tools reads from each reply, by the row's id."""
    asked = [{"type": row.type, "choices": choices(row), "response": row.response} for row in rows]
    command = [sys.executable, str(ROOT / "tests/fixtures/foreign_extractors.py"), str(installed)]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return {row.id: found for row, found in zip(rows, json.loads(done.stdout), strict=True)}


def is_closed(row: answer_set.Labelled) -> bool:
    return row.type == "yes_no" or (row.type == "mcq" and bool(choices(row)))


def test_fewer_answers_are_misjudged_than_by_others(installed):
    rows = [row for row in answer_set.read() if is_closed(row)]
    said = said_by_others(rows, installed)

    def reader_of(tool):
        def read(row):
            expected = answers.normalise(row.gt, row.type, row.question, row.options)
            answer = said[row.id][tool]
            return answer, answer is not None and answer == expected

        return read

    print("\n| half | reader | answers | agreement | unread | wrong accepted | right misread |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for half in ("dev", "heldout"):
        part = [row for row in rows if row.half == half]
        others = {
            tool: answer_set.tally(part, reader_of(tool)) for tool in ("lmms-eval", "VLMEvalKit")
        }
        ours = answer_set.tally(part, answer_set.ours)
        for name, tally in {**others, "this one": ours}.items():
            print(
                f"| {half} | {name} | {tally.rows} | {tally.agreement:.1%} "
                f"| {tally.unread:.1%} "
                f"| {tally.accepted_wrong:.1%} | {tally.misread:.1%} |"
            )
        for other in others.values():
            assert ours.accepted_wrong < other.accepted_wrong
            assert ours.misread <= other.misread


def test_exported_choices_score_as_here_by_their_own_rules(installed, tmp_path):
    """Answers that all of them read: VLMEvalKit reads none in <answer> tags."""
    rng = random.Random(0)
    question = "Which way?\n(A) turn left\n(B) turn right\n(C) go straight\n(D) stop"
    forms = ("{}", "{}.", "({})", "The answer is {}.")
    rows = []
    for number in range(200):
        gt = rng.choice("ABCD")
        said = rng.choice(forms).format(gt if rng.random() < 0.7 else rng.choice("ABCD"))
        rows.append(row(f"r{number}", gt, said, question=question))
    file = write(tmp_path / "results.json", rows)
    for tool in ("vlmevalkit", "lmms-eval"):
        assert score(file, "--export", f"{tool}={tmp_path / tool}")[0] == 0
    run = run_of(file)
    theirs = foreign_extractors.functions(installed)
    with open(tmp_path / "vlmevalkit/mcq.tsv", newline="", encoding="utf-8") as handle:
        table = list(csv.DictReader(handle, delimiter="\t"))
    of_vlmevalkit = [
        theirs["can_infer"](line["prediction"], {letter: line[letter] for letter in "ABCD"})
        == line["answer"]
        for line in table
    ]
    text = (tmp_path / "lmms-eval/mcq_samples.jsonl").read_text(encoding="utf-8")
    of_lmms_eval = [
        theirs["parse_multi_choice_response"](sample["filtered_resps"][0]) == sample["target"]
        for sample in map(json.loads, text.splitlines())
    ]
    assert sum(of_vlmevalkit) == sum(of_lmms_eval) == run["correct"]
