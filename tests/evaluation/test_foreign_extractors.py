"""The reader beside the rule-based extractors of lmms-eval and VLMEvalKit, on the labelled set."""

import json
import subprocess
import sys
from string import ascii_uppercase

import answer_set
import oracles
import pytest
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
