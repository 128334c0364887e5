"""What each column is: declared by flags, by a saved mapping or by a published set, or known by its
name; shown before anything is written, and saved beside every build."""

import json
import re
import tarfile

import jsonschema
import pytest
import yaml
from clip_files import write_clip
from support import run_script
from table_build import build, ids

from cosmos_reason.base import bundle
from cosmos_reason.data import annotations, roles
from cosmos_reason.media.files import probe

ASKED = ("--question", "Is it open?")


@pytest.fixture
def source(tmp_path):
    for number in range(6):
        write_clip(tmp_path / "src" / f"{number}.mp4", frames=8, tint=number)
    return tmp_path / "src"


def test_a_dry_run_shows_mapping_records_and_counts_and_writes_nothing(source):
    lines = ["video,what,note", *(f"{n}.mp4,{'yes' if n % 2 else 'no'},x" for n in range(4))]
    flags = ("--column", "answer=what", *ASKED, "--eval-fraction", "0.5", "--dry-run")
    document, _ = build(source, lines, *flags)
    result = document["result"]
    assert result["mapping"]["columns"] == {"what": {"role": "answer"}, "video": {"role": "video"}}
    assert result["mapping"]["unused"] == ["note"] and result["planned"] == {"train": 2, "eval": 2}
    turns = [sample["turns"] for sample in result["samples"]]
    assert len(turns) == 3 and turns[0][0] == ["user", "Is it open?\nAnswer yes or no."]
    assert not (source.parent / "out").exists()
    words = (source / "labels.csv", "-o", source.parent / "out", *flags)
    shown = run_script("build_dataset.py", *words).stderr
    assert "answer = what (--column)" in shown and "unused: note" in shown
    assert "assistant: yes" in shown and "2 for train/" in shown
    assert "answers: no (2), yes (2)" in shown
    turns = [{"from": who, "value": text} for who, text in (("human", "Is it?"), ("gpt", "yes"))]
    records = [{"id": "0", "video": "0.mp4", "conversations": [*turns, *turns]}]
    (source / "talk.json").write_text(json.dumps(records))
    words = (source / "talk.json", "-o", source.parent / "out", "--dry-run")
    shown = run_script("build_dataset.py", *words).stderr
    assert "assistant: yes" in shown and "answers:" not in shown, "the last of several turns"


def test_the_saved_mapping_builds_the_same_set(source):
    lines = ["clip,at,till,what,cam", "0.mp4,0,400,yes,a", "1.mp4,0,400,no,b", "2.mp4,0,400,no,c"]
    flags = ["video=clip", "start_ms=at", "end_ms=till", "answer=what", "group=cam"]
    flags = [word for role in flags for word in ("--column", role)]
    flags += [*ASKED, "--eval-fraction", "0.34", "--seed", "3"]
    _, first = build(source, lines, *flags)
    saved = source.parent / "out" / "mapping.yaml"
    document = yaml.safe_load(saved.read_text())
    assert document["columns"]["at"] == {"role": "start", "unit": "ms"}
    assert document["split"] == {"by": "group", "fraction": 0.34, "seed": 3}
    jsonschema.validate(document, bundle.schema("mapping"))
    _, again = build(source, lines, "--mapping", saved, out="again")
    assert again == first
    assert (source.parent / "again" / "mapping.yaml").read_text() == saved.read_text()
    _, other = build(source, lines, "--mapping", saved, "--question", "Shut?", out="other")
    assert other["train"][0].turns[0].text.startswith("Shut?")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"colums": {}}, "colums"),
        ({"schema_version": 2}, "schema_version"),
        ({"columns": {"what": {"role": "anwser"}}}, "'anwser'"),
        ({"columns": {"what": {"role": "answer", "unit": "ms"}}}, "start"),
        ({"values": {"what": {True: "yes"}}}, "values.what"),
        ({"columns": ["what"]}, "columns"),
        ({"split": {"fraction": "half"}}, "'half'"),
        ({"questions": ["Is it?"]}, "questions"),
        ({"flags": {"license": "x"}}, "license"),
    ],
)
def test_a_mapping_that_is_wrong_is_refused_by_name(source, changes, told):
    document = {"schema_version": 1, "columns": {"what": {"role": "answer"}}} | changes
    path = source / "mapping.yaml"
    path.write_text(yaml.safe_dump(document))
    lines = ["video,what", "0.mp4,yes"]
    report, _ = build(source, lines, "--mapping", path, *ASKED, expect=2)
    assert ids(report) == ["BUILD-MAPPING"] and told in report["findings"][0]["message"]


@pytest.mark.parametrize("content", ["a: [", "- 1", "\x00", "a: &a [*a]", "[" * 9999])
def test_a_mapping_that_is_no_mapping_is_no_traceback(source, content):
    (source / "mapping.yaml").write_text(content)
    words = ("--mapping", source / "mapping.yaml", *ASKED)
    report, _ = build(source, ["video,what", "0.mp4,yes"], *words, expect=2)
    assert ids(report)[0] == "BUILD-MAPPING"


def test_the_schema_of_mappings_has_the_roles_that_there_are():
    assert set(bundle.schema("mapping")["$defs"]["role"]["enum"]) == set(roles.PLAIN)


def test_a_mapping_is_whole_and_names_columns_that_are_gone(source):
    document = {
        "schema_version": 1,
        "columns": {"what": {"role": "answer"}, "clip": {"role": "video"}},
    }
    (source / "mapping.yaml").write_text(yaml.safe_dump(document))
    lines = ["clip,what,reasoning", "0.mp4,yes,It is dark."]
    flags = ("--mapping", source / "mapping.yaml", *ASKED)
    report, splits = build(source, lines, *flags)
    assert splits["train"][0].turns[-1].text == "yes"
    assert report["result"]["mapping"]["unused"] == ["reasoning"]
    report, _ = build(source, ["film,what", "0.mp4,yes"], *flags, expect=2, out="b")
    assert "BUILD-COLUMN" in ids(report)


def test_several_columns_of_media_are_one_record(source):
    lines = ["front,rear,what", "0.mp4,1.mp4,yes", "2.mp4,,no"]
    flags = ("--column", "media=front", "--column", "media=rear", "--column", "answer=what")
    _, splits = build(source, lines, *flags, *ASKED)
    assert [len(sample.media) for sample in splits["train"]] == [2, 1]
    lines = ["front,rear,a,b,what", "0.mp4,1.mp4,0.2,0.6,yes"]
    flags += ("--column", "start=a", "--column", "end=b", "--force")
    _, splits = build(source, lines, *flags, *ASKED)
    folder = source.parent / "out" / "train"
    lengths = {probe(folder / one.path).frames for one in splits["train"][0].media}
    assert len(splits["train"][0].media) == 2 and max(lengths) < 8


@pytest.mark.parametrize(
    ("role", "cell"), [("options", "sun|rain"), ("options_semicolon", "sun; rain")]
)
def test_the_separator_of_options_is_declared(source, role, cell):
    lines = ["video,question,answer,o", f"0.mp4,Sky?,rain,{cell}"]
    _, splits = build(source, lines, "--column", f"{role}=o")
    question, answer = splits["train"][0].turns
    assert "(A) sun\n(B) rain" in question.text and answer.text == "B"


def test_options_on_lines_and_in_columns_that_are_declared(source):
    lines = ["video,question,answer,o", '0.mp4,Sky?,rain,"sun', 'rain"']
    _, splits = build(source, lines, "--column", "options_lines=o")
    assert splits["train"][0].turns[1].text == "B"
    lines = ["video,question,answer,good,bad", "0.mp4,Sky?,rain,sun,rain"]
    flags = ("--column", "options=bad", "--column", "options=good", "--force")
    _, splits = build(source, lines, *flags)
    assert "(A) rain\n(B) sun" in splits["train"][0].turns[0].text


def test_what_is_declared_to_belong_together_stays_on_one_side(source):
    lines = ["video,what,cam", *(f"{n}.mp4,{'yes' if n % 2 else 'no'},{n // 3}" for n in range(6))]
    flags = ("--column", "answer=what", "--column", "group=cam", *ASKED, "--eval-fraction", "0.5")
    _, splits = build(source, lines, *flags)
    sides = [{int(sample.id) // 3 for sample in samples} for samples in splits.values()]
    assert sorted(map(len, sides)) == [1, 1] and sides[0] != sides[1]
    for samples in splits.values():
        assert {sample.groups for sample in samples} == {(f"cam={int(samples[0].id) // 3}",)}


def test_a_column_of_questions_is_named_and_not_taken(source):
    lines = ["video,q_text,answer", "0.mp4,Is it open?,yes", "1.mp4,Is it shut?,no"]
    report, _ = build(source, lines, expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-QUESTION"]
    assert found["fix"] == "--column question=q_text"
    _, splits = build(source, lines, *found["fix"].split())
    assert splits["train"][1].turns[0].text == "Is it shut?"


# -- values and questions ----------------------------------------------------------------------


def test_values_are_mapped_as_declared_and_one_without_a_meaning_is_refused(source):
    lines = ["video,what", "0.mp4,forklift crosses", "1.mp4,Empty ", "2.mp4,forklift  crosses"]
    flags = ("--column", "answer=what", *ASKED, "--values", "what: forklift crosses=yes, empty=no")
    _, splits = build(source, lines, *flags)
    assert [sample.turns[1].text for sample in splits["train"]] == ["yes", "no", "yes"]
    saved = source.parent / "out" / "mapping.yaml"
    _, again = build(source, lines, "--mapping", saved, out="again")
    assert again == splits
    report, _ = build(source, [*lines, "3.mp4,blocked"], *flags, expect=2, out="b")
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-VALUE"]
    assert "'blocked'" in found["message"] and found["data"]["rows"] == [5]
    report, _ = build(source, lines, *flags, "--values", "waht: a=b", expect=2, out="b")
    assert "waht" in {one["where"] for one in report["findings"]}


def test_a_question_names_columns_of_its_row(source):
    lines = ["video,object,moves", "0.mp4,red car,yes", "1.mp4,bus,no"]
    flags = ("--column", "answer=moves", "--question", "Is the {object} moving?")
    report, splits = build(source, lines, *flags)
    texts = [sample.turns[0].text for sample in splits["train"]]
    assert texts == [f"Is the {name} moving?\nAnswer yes or no." for name in ("red car", "bus")]
    assert "BUILD-COLUMN-UNUSED" not in ids(report)
    report, _ = build(source, [*lines, "2.mp4,,no"], *flags, expect=2, out="b")
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-QUESTION"]
    assert found["data"]["rows"] == [4]
    wrong = ("--column", "answer=moves", "--question", "Is the {objekt} moving?")
    report, _ = build(source, lines, *wrong, expect=2, out="b")
    assert "{objekt}" in report["findings"][0]["message"]
    json_asked = ("--column", "answer=moves", "--question", 'Answer as {"moves": ...}.')
    _, splits = build(source, lines, *json_asked, out="c")
    assert '{"moves": ...}' in splits["train"][0].turns[0].text


def test_several_questions_of_a_row(source):
    lines = ["video,object,moves,colour", "0.mp4,car,yes,red", "1.mp4,bus,no,blue", "2.mp4,man,no,"]
    flags = ("--ask", "moves: Is the {object} moving?", "--ask", "colour: Which colour?")
    report, splits = build(source, lines, *flags)
    said = {sample.id: (sample.turns[0].text, sample.turns[1].text) for sample in splits["train"]}
    assert said["0-moves"] == ("Is the car moving?\nAnswer yes or no.", "yes")
    assert said["1-colour"] == ("Which colour?", "blue") and len(said) == 5
    assert ids(report) == ["BUILD-FORM-ADDED", "BUILD-ASK-EMPTY", "BUILD-NO-EVAL"]
    saved = source.parent / "out" / "mapping.yaml"
    jsonschema.validate(yaml.safe_load(saved.read_text()), bundle.schema("mapping"))
    _, again = build(source, lines, "--mapping", saved, out="again")
    assert again == splits
    report, _ = build(source, lines, "--ask", "wheels: How many?", expect=2, out="b")
    assert ids(report)[0] == "BUILD-COLUMN"
    report, _ = build(source, lines, *flags, *ASKED, expect=2, out="b")
    assert "USAGE" in ids(report)


# -- moments without an event ------------------------------------------------------------------

ABSENT = ("--column", "start=from", "--column", "end=to", "--column", "answer=event")
ABSENT += ("--question", "Does this happen: {event}?", "--also-ask-absent", "1")


@pytest.fixture
def events(source):
    """Two clips of six seconds, with events in their first half."""
    for name in ("a", "b"):
        write_clip(source / f"{name}.mp4", frames=60, rate=10, tint=ord(name))
    return ["video,from,to,event", "a.mp4,0,1,fall", "a.mp4,1,3,run", "b.mp4,0.5,1.5,fall"]


def test_events_become_questions_of_both_answers(source, events):
    report, splits = build(source, events, *ABSENT)
    said = [(sample.turns[0].text, sample.turns[1].text) for sample in splits["train"]]
    for event, count in (("fall", 2), ("run", 1)):
        asked = f"Does this happen: {event}?\nAnswer yes or no."
        assert said.count((asked, "yes")) == said.count((asked, "no")) == count
    labelled = {"fall": {"a": (0, 1), "b": (0.5, 1.5)}, "run": {"a": (1, 3)}}
    for sample in splits["train"][3:]:
        clip, times = sample.id.rsplit("_", 1)
        begin, end = map(float, times.removesuffix(".mp4").split("-"))
        event = "fall" if "fall" in sample.turns[0].text else "run"
        busy_from, busy_to = labelled[event].get(clip, (0, 0))
        assert (end <= busy_from - 0.09 or begin >= busy_to + 0.09) and end <= 6.05
        assert end - begin == pytest.approx(2 if event == "run" else 1, abs=0.01)
    (listed,) = [one for one in report["findings"] if one["id"] == "BUILD-ABSENT"]
    told, _, named = listed["message"].partition(" are asked, too: ")
    assert told.startswith("3 moments") and "begin" not in told
    names = set()
    for sample in splits["train"][3:]:
        event = "fall" if "fall" in sample.turns[0].text else "run"
        names.add(f"{sample.id.replace('_', ' ').removesuffix('.mp4')} ({event})")
    assert {re.sub(r"(\.\d{3})\d+", r"\1", one) for one in named.split(", ")} == names
    saved = source.parent / "out" / "mapping.yaml"
    jsonschema.validate(yaml.safe_load(saved.read_text()), bundle.schema("mapping"))
    _, again = build(source, events, "--mapping", saved, out="again")
    assert again == splits and "BUILD-COLUMN-UNUSED" not in ids(report)


def test_a_question_about_events_is_proposed_with_their_name(source, events):
    flags = [*ABSENT[:6], *ABSENT[-2:]]
    report, _ = build(source, events, *flags, expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert (found["id"], found["fix"]) == (
        "BUILD-QUESTION",
        "--question 'Does this happen: {event}?'",
    )
    one = ["video,from,to,event", "a.mp4,0,1,fall", "b.mp4,0,1,fall"]  # nobody declared them
    report, _ = build(source, one, *ABSENT[:4], *ABSENT[-2:], expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["fix"] == "--column answer=event --question 'Does this happen: {event}?'"
    report, _ = build(source, one, *ABSENT[4:6], *ABSENT[-2:], expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "USAGE"]
    told = "--column start=COLUMN --column end=COLUMN --question 'Does this happen: {event}?'"
    assert told in found["message"], "all that is needed, at once"


def test_each_event_has_its_moments_in_its_own_clip(source, events):
    """Else a clip that is asked about twice and never shows it would tell the answer."""
    for unit in ("", "_ms"):
        edges = (0, 500, 1000) if unit else (0, 0.5, 1)
        lines = ["video,from,to,event"]
        lines += [f"{name}.mp4,{edges[0]},{edges[1]},fall" for name in "ab"]
        flags = ["--column", f"start{unit}=from", "--column", f"end{unit}=to", *ABSENT[4:-1], "3"]
        _, splits = build(source, lines, *flags, out=f"out{unit}")
        said = [(one.id.rsplit("_", 1), one.turns[1].text) for one in splits["train"]]
        assert sorted(name for (name, _), text in said if text == "no") == ["a"] * 3 + ["b"] * 3
        for (_, times), text in said:
            begin, end = map(float, times.removesuffix(".mp4").split("-"))
            assert end - begin == pytest.approx(0.5), "seconds, whatever the unit of the table"
            assert text == "yes" or begin >= 0.6, "a frame apart"


def test_a_moment_without_room_for_a_frame_touches_the_event(source):
    write_clip(source / "short.mp4", frames=16, rate=8)
    lines = ["video,from,to,event", "short.mp4,0.6,1.3,fall"]
    report, splits = build(source, lines, *ABSENT)
    assert len(splits["train"]) == 2 and "BUILD-ABSENT-FEW" not in ids(report)


def test_one_kind_of_event_needs_no_name_in_the_question(source, events):
    lines = ["video,from,to,event", "a.mp4,0,1,fall", "b.mp4,0.5,1.5,Fall "]
    flags = (*ABSENT[:6], "--question", "Does it fall?", *ABSENT[8:])
    report, splits = build(source, lines, *flags)
    said = [(sample.turns[0].text, sample.turns[1].text) for sample in splits["train"]]
    asked = "Does it fall?\nAnswer yes or no."
    assert sorted(said) == [(asked, "no")] * 2 + [(asked, "yes")] * 2
    assert "BUILD-COLUMN-UNUSED" not in ids(report)
    saved = source.parent / "out" / "mapping.yaml"
    assert build(source, lines, "--mapping", saved, out="again")[1] == splits


@pytest.mark.parametrize("kinds", [("fall", "run"), ("a fall", "one runs")])
def test_events_that_nobody_declared_are_not_taken_for_one(source, events, kinds):
    """Of rows that fall and rows that run all would be answered yes to "Does it fall?"."""
    lines = ["video,from,to,what,how", *(f"{n}.mp4,0,1,{kinds[n]},x{n}" for n in (0, 1))]
    flags = (*ABSENT[:4], "--question", "Does it fall?", *ABSENT[8:])
    report, _ = build(source, lines, *flags, expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["id"] == "BUILD-COLUMN" and "what, how" in found["message"] and not found["fix"]
    flags = (*ABSENT[:4], "--question", "Does this happen: {what}?", *ABSENT[8:])
    report, _ = build(source, lines, *flags, expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["fix"] == "--column answer=what"
    _, splits = build(source, lines, *flags, "--column", "answer=what", out="declared")
    asked = {sample.turns[0].text.splitlines()[0] for sample in splits["train"]}
    assert asked == {f"Does this happen: {kind}?" for kind in kinds}
    lines = ["video,from,to,cam", "a.mp4,0,1,x", "b.mp4,0,1,y"]
    flags = (*ABSENT[:4], "--question", "Does it fall?", *ABSENT[8:])
    _, splits = build(source, lines, *flags, out="one")
    assert sorted(sample.turns[1].text for sample in splits["train"]) == ["no"] * 2 + ["yes"] * 2
    words = (source / "labels.csv", "-o", source.parent / "shown", *flags)
    assert "answer =" not in run_script("build_dataset.py", *words).stderr


@pytest.mark.parametrize(
    ("name", "cells", "is_told"),
    [
        ("duration", "12", False),
        ("fps", ("10", "25"), False),
        ("confidence", ("0.5", "1"), False),
        ("person_count", "12", False),
        ("what", "01", True),  # classes by their numbers
        ("what", ("", "slip"), True),
        ("what", ("0.5", "slip"), True),
    ],
)
def test_what_is_measured_tells_no_events_apart(source, events, name, cells, is_told):
    lines = [f"video,from,to,{name}", f"a.mp4,0,1,{cells[0]}", f"b.mp4,0,1,{cells[1]}"]
    flags = (*ABSENT[:4], "--question", "Does it fall?", *ABSENT[8:])
    if is_told:
        report, _ = build(source, lines, *flags, expect=2)
        (found,) = [one for one in report["findings"] if one["severity"] == "error"]
        assert found["id"] == "BUILD-COLUMN" and "answer=NAME" in found["message"]
        assert not found["fix"], "nothing says that the column names the event"
        return
    _, splits = build(source, lines, *flags)
    assert sorted(sample.turns[1].text for sample in splits["train"]) == ["no"] * 2 + ["yes"] * 2


def test_a_mapping_says_of_columns_that_they_name_no_event(source, events):
    """As one does that was saved before columns without a role were refused."""
    lines = ["video,from,to,note", "a.mp4,0,1,x", "b.mp4,0,1,y"]
    flags = (*ABSENT[:4], "--question", "Does it fall?", *ABSENT[8:])
    ignored = ("--column", "ignore=note")
    _, splits = build(source, lines, *flags, *ignored)
    saved = source.parent / "out" / "mapping.yaml"
    mapping = yaml.safe_load(saved.read_text())
    del mapping["columns"]["note"]
    saved.write_text(yaml.safe_dump(mapping))
    assert build(source, lines, "--mapping", saved, out="again")[1] == splits


def test_events_in_frames_of_clips_of_several_rates(source):
    """A moment has the seconds of an event, in whole frames of its own clip."""
    lines = ["video,from,to,event"]
    for number, rate in enumerate((8, 10, 25)):
        write_clip(source / f"f{number}.mp4", frames=12 * rate, rate=rate, tint=number)
        lines += [f"f{number}.mp4,{n * rate},{(n + 1) * rate},{'ab'[n % 2]}" for n in range(4)]
    flags = ("--column", "start_frame=from", "--column", "end_frame=to", *ABSENT[4:])
    build(source, lines, *flags)
    cuts = json.loads((source.parent / "out" / "train" / "cuts.json").read_text())
    records = json.loads((source.parent / "out" / "train" / "annotations.json").read_text())
    assert len(records) == 24
    for one in records:
        (asked, said), cut = (turn["value"] for turn in one["conversations"]), cuts[one["video"]]
        event = "a" if "happen: a" in asked else "b"
        busy = [(n, n + 1) for n in range(4) if "ab"[n % 2] == event]
        assert cut["end"] - cut["start"] == pytest.approx(1, abs=0.07) and cut["end"] <= 12
        is_there = any(cut["start"] < until and begin < cut["end"] for begin, until in busy)
        assert is_there == (said == "yes")


def test_moments_without_an_event_that_are_too_few_are_told(source, events):
    """The fix is so few that every event has all of its own; there is none where one has no
    room at all."""
    lines = ["video,from,to,event", "a.mp4,0,2,fall", "b.mp4,0,5,fall", "a.mp4,0,1,run"]
    report, splits = build(source, lines, *ABSENT)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-ABSENT-FEW"]
    assert found["severity"] == "warning" and len(splits["train"]) == 5
    assert (found["where"], found["data"]["clips"]) == ("fall", ["b.mp4"])
    assert found["fix"] == "--window 1 --force" and "--also-ask-absent 0.5" in found["message"]
    report, splits = build(source, lines, *ABSENT, "--window", "1", out="window")
    assert "BUILD-ABSENT-FEW" not in ids(report) and len(splits["train"]) == 6
    report, splits = build(source, lines, *ABSENT[:-1], "0.5", out="less")
    assert "BUILD-ABSENT-FEW" not in ids(report) and len(splits["train"]) == 4
    lines = ["video,from,to,event", "a.mp4,0,6,fall", "b.mp4,0,5,fall"]
    report, splits = build(source, lines, *ABSENT, out="full")
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-ABSENT-FEW"]
    assert found["fix"] == "" and found["data"]["clips"] == ["a.mp4", "b.mp4"]
    assert len(splits["train"]) == 2


def test_a_window_makes_all_parts_as_long(source, events):
    """Around the middle of what a row names, within its clip; what is shorter is told."""
    lines = ["video,from,to,event", "a.mp4,0,2,fall", "a.mp4,3,4.5,run", "b.mp4,5.5,6,fall"]
    report, splits = build(source, lines, *ABSENT, "--window", "1")
    cuts = json.loads((source.parent / "out" / "train" / "cuts.json").read_text())
    assert {round(one["end"] - one["start"], 2) for one in cuts.values()} == {1.0}
    said = {one.id: one.turns[1].text for one in splits["train"]}
    assert [said[name] for name in ("a_0.5-1.5", "a_3.25-4.25", "b_5-6")] == ["yes"] * 3
    (told,) = [one for one in report["findings"] if one["id"] == "BUILD-SPAN"]
    assert told["severity"] == "warning" and told["data"]["rows"] == [4]
    saved = source.parent / "out" / "mapping.yaml"
    assert build(source, lines, "--mapping", saved, out="again")[1] == splits
    whole = ["video,answer", "a.mp4,yes", "b.mp4,no"]
    report, _ = build(source, whole, "--question", "Is it?", "--window", "1", out="no", expect=2)
    assert "--window" in {one["where"] for one in report["findings"]}
    report, _ = build(source, lines, *ABSENT[:-2], "--window", "7", out="long", expect=2)
    assert {one["id"] for one in report["findings"]} >= {"BUILD-SPAN-OUTSIDE"}


def test_a_window_takes_what_is_around_a_moment(source, events):
    """One column of times; moments without its event need to know how long that is seen."""
    lines = ["video,at,what", "a.mp4,2,run", "a.mp4,6,fall", "b.mp4,0.2,run"]
    flags = ("--column", "start=at", "--column", "end=at", "--column", "answer=what")
    flags += ("--question", "What happens?")
    report, _ = build(source, lines, *flags, expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-SPAN"]
    assert "--window" in found["message"] and found["data"]["rows"] == [2, 3, 4]
    report, splits = build(source, lines, *flags, "--window", "1")
    assert [one.id for one in splits["train"]] == ["a_1.5-2.5", "a_5-6", "b_0-1"]
    assert "BUILD-SPAN" not in ids(report)
    behind = [*lines, "a.mp4,9,run"]
    report, _ = build(source, behind, *flags, "--window", "1", out="behind", expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-SPAN-OUTSIDE"]
    assert found["data"]["rows"] == [5]
    absent = (*flags[:-1], "Does this happen: {what}?", "--also-ask-absent", "1")
    report, _ = build(source, lines, *absent, "--window", "1", out="absent", expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["id"] == "BUILD-SPAN" and "3 rows that begin and end" in found["message"]


def test_clips_in_an_archive_are_not_passed_over(source, events):
    with tarfile.open(source / "videos.tar.gz", "w:gz") as archive:
        for name in ("a.mp4", "b.mp4"):
            archive.add(source / name, name)
            (source / name).unlink()
    report, _ = build(source, events, *ABSENT, expect=2)
    (found,) = [one for one in report["findings"] if one["where"] == "--also-ask-absent"]
    assert found["id"] == "USAGE" and "3 of 3 rows" in found["message"]


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (ABSENT[2:], "--also-ask-absent"),
        ((*ABSENT[:6], "--question", "Does it fall?", *ABSENT[8:]), "--question"),
        ((*ABSENT[:-1], "-1"), "--also-ask-absent"),
        ((*ABSENT[:6], "--ask", "event: What?", *ABSENT[8:]), "--ask"),
        (("--ask", "event: What?", "--ask", "from: What?"), "--ask"),
    ],
)
def test_what_cannot_be_asked_so_is_refused(source, events, flags, where):
    report, _ = build(source, events, *flags, expect=2)
    assert ("USAGE", where) in [(one["id"], one["where"]) for one in report["findings"]]


def test_kinds_of_reasoning_are_not_trained_as_reasoning_unless_declared(source):
    lines = ["video,answer,reasoning", "0.mp4,yes,temporal", "1.mp4,no,causal"]
    report, _ = build(source, lines, *ASKED, expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-REASONING"]
    assert "--column tag=reasoning" in found["message"] and found["severity"] == "error"
    _, splits = build(source, lines, *ASKED, "--column", "tag=reasoning")
    assert [sample.tags for sample in splits["train"]] == [("temporal",), ("causal",)]
    _, splits = build(source, lines, *ASKED, "--column", "reasoning=reasoning", out="declared")
    assert "temporal" in splits["train"][0].turns[-1].text + splits["train"][0].reasoning


# -- splits ------------------------------------------------------------------------------------


@pytest.fixture
def recordings(source):
    """Rows about two recordings of 40 s: a part of 2 s every 4 s."""
    rows = ["video,from,to,answer"]
    for name in ("a", "b"):
        write_clip(source / f"{name}.mp4", frames=80, rate=2, tint=ord(name))
        for number in range(10):
            rows.append(f"{name}.mp4,{4 * number},{4 * number + 2},{'no' if number % 2 else 'yes'}")
    return rows


CUT = ("--column", "start=from", "--column", "end=to", "--question", "Is it open?")


def begins(samples):
    return sorted(float(sample.id.split("_")[1].split("-")[0]) for sample in samples)


def test_a_split_by_time_holds_out_the_last_of_each_recording(source, recordings):
    flags = (*CUT, "--eval-fraction", "0.3", "--split-by", "time", "--margin", "8s")
    report, splits = build(source, recordings, *flags)
    assert begins(splits["eval"]) == sorted([28, 32, 36] * 2)
    # 18 to 20 ends 8 s before 28; 20 to 22 and 24 to 26 lie between
    assert begins(splits["train"]) == sorted([0, 4, 8, 12, 16] * 2)
    (left,) = [one for one in report["findings"] if one["id"] == "BUILD-SPLIT-MARGIN"]
    assert left["data"]["count"] == 4 and report["result"]["held_out"] == 0.375
    saved = source.parent / "out" / "mapping.yaml"
    split = yaml.safe_load(saved.read_text())["split"]
    assert split == {"by": "time", "fraction": 0.3, "seed": 0, "margin_s": 8.0}
    _, again = build(source, recordings, "--mapping", saved, out="again")
    assert again == splits


def test_records_without_times_are_not_split_by_time(source, recordings):
    lines = [*recordings, "0.mp4,,,yes"]
    flags = (*CUT, "--eval-fraction", "0.3", "--split-by", "time")
    report, _ = build(source, lines, *flags, expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-SPLIT"]
    assert found["data"]["count"] == 1


@pytest.mark.parametrize("mode", ["link", "copy", "reference"])
def test_folds_hold_each_record_out_once(source, mode):
    answers = ["yes", "no", "yes", "no", "yes", "no"]
    lines = ["video,answer", *(f"{number}.mp4,{one}" for number, one in enumerate(answers))]
    lines += ["0.mp4,yes"]  # the same clip again
    flags = ("--folds", "3", "--media", mode, *ASKED)
    report, _ = build(source, lines, *flags)
    out = source.parent / "out"
    held_out = []
    for number in (1, 2, 3):
        train, evaluation = (
            annotations.read(out / f"fold-{number}" / name / "annotations.json")[0]
            for name in ("train", "eval")
        )
        assert len(train) + len(evaluation) == 7
        assert not {sample.id[0] for sample in train} & {sample.id[0] for sample in evaluation}
        assert {sample.turns[-1].text for sample in evaluation} == {"yes", "no"}
        held_out += [sample.id for sample in evaluation]
        for sample in (*train, *evaluation):
            assert (out / f"fold-{number}" / "train" / sample.media[0].path).exists() or (
                out / f"fold-{number}" / "eval" / sample.media[0].path
            ).exists()
    assert len(held_out) == len(set(held_out)) == 7
    assert report["result"]["held_out"] == round(1 / 3, 4)
    if mode == "copy":  # brought once, linked by the other folds
        files = {path.stat().st_ino for path in out.rglob("*.mp4")}
        assert len(files) == 6 and not files & {path.stat().st_ino for path in source.glob("*.mp4")}


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (("--folds", "3", "--eval-fraction", "0.2"), "--eval-fraction"),
        (("--folds", "1"), "--folds"),
        (("--folds", "3", "--split-by", "time"), "--split-by"),
        (("--split-by", "time"), "--eval-fraction"),
        (("--split-by", "group", "--eval-fraction", "0.5"), "--split-by"),
        (("--split-by", "column"), "--split-by"),
        (("--split-by", "source"), "--split-by"),
        (("--margin", "5", "--eval-fraction", "0.5"), "--margin"),
        (("--folds", "5"), "--folds"),
    ],
)
def test_splits_that_exclude_each_other_are_refused(source, flags, where):
    lines = ["video,answer", *(f"{n}.mp4,{'no' if n % 2 else 'yes'}" for n in range(4))]
    report, _ = build(source, lines, *flags, *ASKED, expect=2)
    found = [one for one in report["findings"] if one["severity"] == "error"]
    assert where in [one["where"] for one in found]
    if flags == ("--folds", "5"):
        assert found[0]["fix"] == "replace --folds 5 with --folds 4"


def test_moments_beside_their_event_are_counted(source):
    write_clip(source / "tight.mp4", frames=16, rate=8)
    lines = ["video,from,to,event", "tight.mp4,0,1,fall"]
    report, _ = build(source, lines, *ABSENT)
    (listed,) = [one for one in report["findings"] if one["id"] == "BUILD-ABSENT"]
    assert "(1 begin as it ends, or end as it begins): tight 1-2" in listed["message"]
