"""Held-out data that say little are told, with what would do."""

import json

import pytest
from clip_files import check, record, write_clip, write_dataset
from support import run_script


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


def found_small(source, out, *flags):
    """The finding about too little held-out data, None without one."""
    done = run_script("build_dataset.py", source, "-o", out, *flags, "--json")
    assert done.returncode == 0, done.stdout
    found = [row for row in json.loads(done.stdout)["findings"] if row["id"] == "BUILD-EVAL-SMALL"]
    return found[0] if found else None


def test_too_few_held_out_questions_get_the_share_that_would_do(tmp_path):
    content = write_clip(tmp_path / "src" / "0.mp4", frames=4).read_bytes()
    rows = []
    for number in range(100):
        padding = b"\0\0\0\x09free" + bytes([number])  # no clip is a copy of another
        (tmp_path / "src" / f"{number}.mp4").write_bytes(content + padding)
        rows.append(f"{number}.mp4,{'no' if number % 10 else 'yes'},On?")
    (tmp_path / "src" / "t.csv").write_text("\n".join(["clip,label,question", *rows]))
    found = found_small(tmp_path / "src", tmp_path / "out", "--eval-fraction", 0.1)
    assert found["severity"] == "warning"
    assert "10 held-out questions, 1 of 'yes'" in found["message"]
    # 30 questions at 0.3, but 5 of the 10 yes only at 0.5
    assert found["fix"] == "replace --eval-fraction 0.1 with --eval-fraction 0.5 --force"
    flags = ("--eval-fraction", 0.5, "--force")
    assert found_small(tmp_path / "src", tmp_path / "out", *flags) is None
    few = found_small(tmp_path / "src", tmp_path / "few", "--eval-fraction", 0.2, "--subset", 40)
    assert few["fix"] == "" and "add clips" in few["message"]


def recorded(folder, count, question="Is it bright?"):
    """A dataset of one question and answer."""
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": "Yes"}]
    records = [record(n, id=f"{folder.name}{n}", conversations=turns) for n in range(count)]
    return write_dataset(folder, records, tint=100 if folder.name == "eval" else 0)


def test_a_check_tells_small_and_other_worded_data(tmp_path):
    train = recorded(tmp_path / "train", 6)
    held_out = recorded(tmp_path / "eval", 2, question="Bright?")
    _, findings = check(train, "--eval", held_out)
    assert set(findings) == {"DATA-EVAL-SMALL", "DATA-EVAL-WORDING"}
    small = findings.pop("DATA-EVAL-SMALL")
    assert small["severity"] == "warning" and small["fix"] == ""
    assert "add clips" in small["message"]
    assert {finding["severity"] for finding in findings.values()} == {"info"}
    assert "2 held-out questions" in small["message"]
    assert findings["DATA-EVAL-WORDING"]["data"]["record_ids"] == ["eval0", "eval1"]


def test_building_and_checking_count_alike(tmp_path):
    """Captions are no classes; of answers in other letters there is one class; half of the clips
    would do."""
    clip = write_clip(tmp_path / "src" / "0.mp4", frames=4)
    rows = []
    for number in range(64):
        (tmp_path / "src" / f"{number}.mp4").write_bytes(clip.read_bytes() + b"\0" * number)
        rows.append(f"{number}.mp4,{('Yes', 'yes', 'No')[number % 3]},On?")
    (tmp_path / "src" / "t.csv").write_text("\n".join(["clip,label,question", *rows]))
    found = found_small(tmp_path / "src", tmp_path / "out", "--eval-fraction", 0.25)
    assert "'Yes'" not in found["message"] and "16 held-out" in found["message"]
    assert "--eval-fraction 0.5" in found["fix"]
    small = check(tmp_path / "out" / "train", "--eval", tmp_path / "out" / "eval")[1]
    assert small["DATA-EVAL-SMALL"]["severity"] == found["severity"]
    assert small["DATA-EVAL-SMALL"]["fix"] == ""
    assert "hold out more" in small["DATA-EVAL-SMALL"]["message"]
    assert small["DATA-EVAL-SMALL"]["message"].startswith(found["message"])


@pytest.mark.parametrize(("questions", "is_small"), [(3, True), (1000, False), (10_000, False)])
def test_training_data_are_told_how_many_questions_are_wanted(tmp_path, questions, is_small):
    talk = record(0)["conversations"] * questions
    data = write_dataset(tmp_path, [record(0, conversations=talk)])
    for flags in ((), ("--eval", data)):
        done = json.loads(run_script("check_dataset.py", data, *flags, "--json").stdout)
        (size,) = [one for one in done["findings"] if one["id"] == "DATA-SIZE"]
        assert size["severity"] == "info" and size["message"].endswith("; label more")
        assert f"got {questions:,} questions: 1,000 are the least" in size["message"]
        meant = "(--profile small-dataset: 10 epochs, a save each)"  # what next: proposes
        assert (meant in size["message"]) == is_small
        if "next" in done:  # what follows suits the size
            assert ("--profile small-dataset" in done["next"]) == is_small
