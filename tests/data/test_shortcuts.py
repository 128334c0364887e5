"""Answers that something else than the scene gives away are told before anything is trained."""

import json

import pytest
from clip_files import check, record, write_clip, write_dataset


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


def dataset(folder, rows, frames=lambda number: 4):
    """A dataset of rows (answer, question, name of the clip)."""
    records = []
    for number, (answer, question, name) in enumerate(rows):
        turns = [
            {"from": "human", "value": f"<video>\n{question}"},
            {"from": "gpt", "value": answer},
        ]
        records.append(record(number, conversations=turns, video=f"clips/{name}.mp4"))
        write_clip(folder / "clips" / f"{name}.mp4", frames(number), tint=number)
    write_dataset(folder, [])
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


ANSWERS = ["yes", "no"]
MIXED = [ANSWERS[int(bit)] for bit in "0110100110010110" * 3]  # of no period


def test_the_length_of_clips_that_gives_the_answer_away(tmp_path):
    rows = [(answer, "Is it bright?", f"c{number}") for number, answer in enumerate(MIXED)]
    lengths = [4 if answer == "yes" else 9 for answer in MIXED]
    _, findings = check(dataset(tmp_path, rows, lengths.__getitem__))
    found = findings["DATA-SHORTCUT"]
    assert found["severity"] == "warning" and found["data"]["count"] == len(MIXED)
    assert "the length of the clip" in found["message"] and "100%" in found["message"]
    assert "DATA-SHORTCUT-NAME" not in findings


def test_lengths_that_say_nothing_are_no_shortcut(tmp_path):
    rows = [(answer, "Is it bright?", f"c{number}") for number, answer in enumerate(MIXED)]
    _, findings = check(dataset(tmp_path, rows, lambda number: 4 + number % 3))
    assert not findings


def test_a_question_that_always_has_one_answer(tmp_path):
    rows = [
        (one, f"Is it {'bright' if one == 'yes' else 'dark'}?", f"c{n}")
        for n, one in enumerate(MIXED)
    ]
    _, findings = check(dataset(tmp_path, rows))
    assert "the question alone" in findings["DATA-SHORTCUT"]["message"]


def test_names_that_give_the_answer_away(tmp_path):
    rows = [
        (one, "Is it bright?", f"{'day' if one == 'yes' else 'night'}_{n}")
        for n, one in enumerate(MIXED)
    ]
    _, findings = check(dataset(tmp_path, rows))
    assert set(findings) == {"DATA-SHORTCUT-NAME"}
    assert findings["DATA-SHORTCUT-NAME"]["severity"] == "info"


def test_a_dataset_of_one_answer_is_an_error(tmp_path):
    rows = [("yes", "Is it bright?", f"c{number}") for number in range(12)]
    _, findings = check(dataset(tmp_path, rows), expect=1)
    assert findings["DATA-ANSWER-ONE"]["severity"] == "error"
    assert "all 12 questions" in findings["DATA-ANSWER-ONE"]["message"]
