"""Annotations as other projects write them: read as they are, or answered with one command that
builds a dataset of them."""

import json
import shlex
import shutil

import pytest
from clip_files import check
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.data import annotations
from cosmos_reason.spec import document

ANSWERS = ("Yes", "No")
WEATHER = ("rain", "sun")


def written(source, content, name="annotations.json"):
    (source / name).write_text(json.dumps(content))
    return source / name


def each(make):
    return [make(f"{number}.mp4", number % 2) for number in range(4)]


MESSAGES = [{"role": "user", "content": "<video>Bright?"}, {"role": "assistant", "content": "Yes"}]
READ = {
    "LLaMA-Factory and ms-swift": lambda clip, _: {"messages": MESSAGES, "videos": [clip]},
    "ms-swift, query": lambda clip, _: {
        "query": "<video>Bright?", "response": "Yes", "videos": [clip],
    },
    "alpaca": lambda clip, _: {
        "instruction": "<video>Bright?", "input": "", "output": "Yes", "videos": [clip],
    },
    "Qwen's demo": lambda clip, _: {
        "video": clip,
        "conversations": [
            {"from": "human", "value": "<video>\nBright?"}, {"from": "gpt", "value": "Yes"},
        ],
    },
    "LLaVA-Video": lambda clip, _: {
        "video": clip,
        "conversations": [
            {"from": "human", "value": "<image>\nBright?"}, {"from": "gpt", "value": "Yes"},
        ],
    },
    "pairs": lambda clip, _: {"video": clip, "QA": [{"i": "", "q": "Bright?", "a": "Yes"}]},
    "captions as pairs": lambda clip, _: {"video": clip, "captions": [["Bright?", "Yes"]]},
    "flat": lambda clip, _: {"video": clip, "question": "Bright?", "answer": "Yes"},
    "flat, short": lambda clip, _: {"video": clip, "q": "Bright?", "a": "Yes"},
    "DAFT": lambda clip, _: {"video_id": clip, "question": "Bright?", "answer": "Yes"},
}  # fmt: skip


def test_records_that_qwens_tools_packed_are_taken_out(source):
    records = each(READ["Qwen's demo"])
    result, _ = check(written(source, [records[:3], records[3:]]))
    assert (result["train"]["records"], result["train"]["clips"]) == (4, 4)


def test_mixed_records_of_one_file(source):
    records = [make(f"{number % 4}.mp4", 0) for number, make in enumerate(READ.values())]
    result, found = check(written(source, records), expect=1)
    assert result["train"]["records"] == len(READ) and result["train"]["clips"] == 4
    errors = {name for name, finding in found.items() if finding["severity"] == "error"}
    assert errors == {"DATA-ANSWER-ONE"}  # all of them say yes
    samples, _ = annotations.read(source / "annotations.json")
    for form, sample in zip(READ, samples, strict=True):
        assert [turn.text for turn in sample.turns] == ["Bright?", "Yes"], form


def test_earlier_turns_and_a_system_prompt_are_kept(tmp_path):
    record = {
        "id": "a", "system": "Be short.", "history": [["Hi", "Hello"]],
        "instruction": "<image>Count", "input": "the cars.", "output": "3", "images": ["a.png"],
    }  # fmt: skip
    ((sample,), _) = annotations.read(written(tmp_path, [record]))
    assert [turn.text for turn in sample.turns] == [
        "Be short.", "Hi", "Hello", "Count\nthe cars.", "3",
    ]  # fmt: skip


@pytest.mark.parametrize("options", [["red", "green"], {"A": "red", "B": "green"}])
@pytest.mark.parametrize("key", ["options", "choices"])
def test_options_beside_a_question_are_asked(tmp_path, key, options):
    record = {"video_id": "0.mp4", "question": "Which?", "answer": "green", key: options}
    ((sample,), _) = annotations.read(written(tmp_path, [record]))
    question, answer = (turn.text for turn in sample.turns)
    assert "(A) red\n(B) green" in question and answer == "B"
    near = record | {"question": "Is it red or green?"}
    ((sample,), _) = annotations.read(written(tmp_path, [near]))
    assert "(A) red" in sample.turns[0].text
    told = record | {"question": "Which?\nA. red\nB. green", "answer": "B"}
    ((sample,), _) = annotations.read(written(tmp_path, [told]))
    assert [turn.text for turn in sample.turns] == [told["question"], "B"]


def test_a_clip_under_a_name_that_nobody_reads_is_an_error(tmp_path):
    record = READ["Qwen's demo"]("0.mp4", 0)
    record["video_path"] = record.pop("video")
    record["conversations"][0]["value"] = "Bright?"
    _, found = annotations.read(written(tmp_path, [record]))
    assert "'video_path'" in {one.id: one.message for one in found}["DATA-MEDIA-TYPE"]


BUILT = {
    "a caption": each(lambda clip, n: {"video": clip, "caption": f"It is {ANSWERS[n]}."}),
    "several captions": each(lambda clip, n: {"video": clip, "captions": ["It is.", f"{n}."]}),
    "a clip by another name": each(
        lambda clip, n: {"video_path": clip, "question": "Bright?", "answer": ANSWERS[n]}
    ),
    "a clip by its id": each(lambda clip, n: {"video_id": clip, "caption": f"It is {n}."}),
    "a caption of a name": each(lambda clip, n: {"video_id": clip[:-4], "caption": f"It is {n}."}),
    "labels": each(lambda clip, n: {"video": clip, "weather": WEATHER[n], "road": "wet"}),
    "labels by clip": dict(each(lambda clip, n: (clip, WEATHER[n]))),
    "objects by clip": dict(
        each(lambda clip, n: (clip, {"question": "Bright?", "answer": ANSWERS[n], "id": f"a{n}"}))
    ),
    "questions by clip": dict(
        each(lambda clip, n: (clip, [{"question": "Bright?", "answer": ANSWERS[n]}]))
    ),
}


@pytest.mark.parametrize("form", BUILT)
def test_one_command_builds_a_dataset_of_the_others(source, tmp_path, form):
    path = written(source, BUILT[form])
    _, found = check(path, expect=1)
    errors = [finding for finding in found.values() if finding["severity"] == "error"]
    assert [finding["id"] for finding in errors] == ["DATA-NOT-BUILT"]
    script, *words = shlex.split(errors[0]["fix"])
    done = run_script(script.rpartition("/")[2], *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result, _ = check(tmp_path / "data" / "train")
    assert result["train"]["clips"] == 4
    assert result["train"]["records"] == (8 if form == "several captions" else 4)


def test_clips_called_without_their_suffix_are_found_by_a_build(source, tmp_path):
    path = written(source, each(lambda clip, n: {"video_id": clip[:-4], "q": "?", "a": ANSWERS[n]}))
    fix = shlex.split(check(path, expect=1)[1]["DATA-MEDIA-MISSING"]["fix"])
    assert run_script("build_dataset.py", *fix[1:], cwd=tmp_path).returncode == 0
    assert check(tmp_path / "data" / "train")[0]["train"]["clips"] == 4


OBJECTS = {
    "labels as an object": each(lambda clip, n: {"video": clip, "label": {"sky": WEATHER[n]}}),
    "by clip": dict(each(lambda clip, n: (clip, {"sky": WEATHER[n], "road": "wet"}))),
}


@pytest.mark.parametrize("rows", OBJECTS.values(), ids=OBJECTS)
def test_labels_as_objects_are_asked_of_their_author(source, tmp_path, rows):
    """No question is proposed that would train their JSON; fields are named, or a question is."""
    path = written(source, rows)
    assert not check(path, expect=1)[1]["DATA-NOT-BUILT"].get("fix")
    refused = run_script("build_dataset.py", path, "-o", tmp_path / "data", "--json")
    findings = {one["id"]: one for one in json.loads(refused.stdout)["findings"]}
    assert refused.returncode == 2 and not findings["BUILD-QUESTION"].get("fix")
    words = ("build_dataset.py", path, "-o", tmp_path / "data", "--question", "Weather as JSON?")
    assert run_script(*words).returncode == 0
    record = files.read_json(tmp_path / "data" / "train" / "annotations.json")[0]
    assert json.loads(record["conversations"][1]["value"])["sky"] == "rain"


@pytest.fixture
def daft(source):
    """A DAFT annotation file's header, and its items of clips in the folder clips/."""
    folder = source / "clips"
    folder.mkdir()
    for clip in source.glob("*.mp4"):
        clip.rename(folder / clip.name)
    header = {"format": "tao-vl-reason-v1.0", "metadata": {"type": "annotation", "license": "x"}}
    items = each(READ["DAFT"])
    return header, [item | {"item_index": number} for number, item in enumerate(items)]


@pytest.mark.parametrize("is_before", [True, False])
def test_the_media_root_of_a_daft_file_is_where_training_looks(source, daft, tmp_path, is_before):
    header, items = daft
    parts = [("media_root", "clips"), ("items", items)]
    written(source, header | dict(parts if is_before else parts[::-1]))
    result, found = check(source)
    assert not found and result["train"]["clips"] == 4
    words = ("train", "--train-root", source, "--model", "nvidia/Cosmos-Reason2-2B")
    done = run_script("build_spec.py", *words, "-o", tmp_path / "spec.toml")
    table = document.load(tmp_path / "spec.toml")["custom"]["train_dataset"]
    assert table["media_path"] == str(source / "clips"), done.stderr


def test_daft_files_of_several_tasks_are_built_together(source, daft, tmp_path):
    header, items = daft
    for task in ("bcq", "mcq"):
        asked = [item | {"question": f"{task}: bright?"} for item in items]
        written(source, header | {"media_root": "clips", "items": asked}, f"{task}.json")
    done = run_script("check_dataset.py", source, "--json")
    ((finding),) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["id"]) == (2, "DATA-NOT-BUILT")
    script, *words = shlex.split(finding["fix"])
    built = run_script(script.rpartition("/")[2], *words, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert check(tmp_path / "data" / "train")[0]["train"]["records"] == 8


def test_scenes_of_metropolis_are_for_dafts_own_tool(source):
    for name in ("raw", "task", "contextual"):
        (source / name).mkdir()
    done = run_script("check_dataset.py", source, "--json")
    ((finding),) = json.loads(done.stdout)["findings"]
    assert finding["id"] == "DATA-NOT-BUILT" and "tao-daft convert" in finding["fix"]


# -- forms of other people's projects and benchmarks -------------------------------------------


def built(source, tmp_path, content, name="train.json", *flags):
    """The turns of each record that build_dataset.py makes of a file."""
    path = written(source, content, name)
    done = run_script("build_dataset.py", path, "-o", tmp_path / "out", *flags, "--json")
    assert done.returncode == 0, done.stdout
    samples, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    return [[turn.text for turn in sample.turns] for sample in samples]


CHOICES = ["stops", "goes", "turns"]
LISTED = "What happens?\n(A) stops\n(B) goes\n(C) turns\n"


def test_problems_with_lettered_options_and_tagged_solutions(source, tmp_path):
    def row(clip, right):
        options = [f"{letter}. {text}" for letter, text in zip("ABC", CHOICES, strict=True)]
        return {"problem": "What happens?", "options": options, "path": f"./{clip}",
                "solution": f"<answer>{'ABC'[right]}</answer>", "data_type": "video"}  # fmt: skip

    talks = built(source, tmp_path, each(row))
    assert [answer for _, answer in talks] == ["A", "B", "A", "B"]
    assert all(question.startswith(LISTED) for question, _ in talks)


def test_rows_below_a_key_beside_other_facts(source, tmp_path):
    rows = each(lambda clip, rain: {"id": f"c{clip[0]}", "video": clip, "weather": WEATHER[rain]})
    content = {"clip_fps": 4, "label_source": "map", "clips": rows}
    flags = ["--column", "answer=weather", "--question", "Weather?"]
    talks = built(source, tmp_path, content, "rows.json", *flags)
    assert [answer for _, answer in talks] == ["rain", "sun", "rain", "sun"]
    _, found = check(source / "rows.json", expect=1)
    assert "DATA-NOT-BUILT" in found and "DATA-TURNS-MISSING" not in found


def test_a_record_with_a_list_of_clips_is_no_envelope(source):
    talk = [{"from": "human", "value": "Bright?"}, {"from": "gpt", "value": "Yes"}]
    record = {"clips": ["0.mp4"], "video": "0.mp4", "id": "a", "conversations": talk}
    (sample,), _ = annotations.read(written(source, record))
    assert [turn.text for turn in sample.turns] == ["Bright?", "Yes"]


def test_a_clip_by_its_number_alone_is_not_trained_as_text(source, tmp_path):
    rows = each(lambda clip, dark: {"videoid": clip[0], "question": "Held?", "answer": "cup"})
    _, found = check(written(source, rows, "train.json"), expect=1)
    assert "'videoid'" in found["DATA-NOT-BUILT"]["message"]
    assert len(built(source, tmp_path, rows)) == 4


def test_prompts_of_other_models_are_no_questions(source):
    prompt = "USER: Does it stop?\n<|video|>\nASSISTANT:"
    rows = each(lambda clip, _: {"id": clip, "video": clip, "question": prompt, "answer": "Yes"})
    _, found = check(written(source, rows), expect=1)
    assert found["DATA-SPECIAL-TOKEN"]["data"]["count"] == 4


@pytest.mark.parametrize(
    ("columns", "answer", "letter"),
    [
        ({"option 0": "sits", "option 1": "gives"}, "option 1", "B"),
        ({"A": "sits", "B": "gives"}, "b", "B"),
        ({"A": "sits", "B": "gives"}, "gives", "B"),
        ({"choices": [{"id": 0, "choice": "sits"}, {"id": 1, "choice": "gives"}]}, "gives", "B"),
    ],
)
def test_options_of_a_record_in_other_places(source, columns, answer, letter):
    asked = {"question": "What?", "answer": answer, **columns}
    rows = each(lambda clip, _: {"id": clip, "video": clip, **asked})
    samples, _ = annotations.read(written(source, rows))
    assert len(samples) == 4 and samples[0].turns[1].text == letter
    assert "\n(A) sits\n(B) gives\n" in samples[0].turns[0].text


@pytest.mark.parametrize(
    ("columns", "check_id"),
    [
        ({"a0": "sits", "a1": "gives"}, "DATA-NOT-BUILT"),
        ({"option_1": "sits", "option_2": "gives"}, "DATA-NOT-BUILT"),
        ({"candidates": ["sits", "gives"]}, "DATA-NOT-BUILT"),  # a number of no known beginning
    ],
)
def test_a_number_that_may_be_two_options_is_refused(source, columns, check_id):
    asked = {"question": "What?", "answer": 1, **columns}
    rows = each(lambda clip, _: {"id": clip, "video": clip, **asked})
    _, found = check(written(source, rows), expect=1)
    assert found[check_id]["data"]["count"] == 4


def test_rows_that_lie_below_others_are_for_convert_to_make(source, tmp_path):
    """The export of a fleet: trips, with the clips of each and their labels."""
    trips = [{"id": n, "clips": [{"file": f"{n}.mp4", "near_miss": n > 1}]} for n in range(4)]
    export = written(source, trips, "fleet.json")
    refused = run_script("build_dataset.py", export, "-o", tmp_path / "out", "--json")
    found = [one for one in json.loads(refused.stdout)["findings"] if one["id"] == "BUILD-COLUMN"]
    assert refused.returncode == 2 and {one["where"] for one in found} == {"answer", "video"}
    assert "clips holds objects, of which --convert FILE.py makes rows" in found[0]["message"]


def test_labels_that_lie_elsewhere_than_all_their_clips(source, tmp_path):
    (tmp_path / "labels").mkdir()
    rows = each(lambda clip, number: {"file": clip, "answer": ANSWERS[number]})
    table = written(tmp_path / "labels", rows, "labels.json")
    flags = ["-o", tmp_path / "out", "--question", "Bright?", "--json"]
    refused = run_script("build_dataset.py", table, *flags)
    found = json.loads(refused.stdout)["findings"]
    (missing,) = [one for one in found if one["severity"] == "error"]
    assert not missing["fix"] and "holds no media" in missing["message"]
    shutil.copy(table, source / "labels.json")
    assert run_script("build_dataset.py", source / "labels.json", *flags).returncode == 0


def built_rows(source, rows, tmp_path, *flags, name="rows.json"):
    """(question, answer) of the records that are built of some rows."""
    table = written(source, rows, name)
    done = run_script("build_dataset.py", table, "-o", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "out" / "train" / "annotations.json").read_text())
    return [tuple(turn["value"] for turn in one["conversations"]) for one in records]


def test_a_list_of_questions_of_a_clip(source, tmp_path):
    rows = each(
        lambda clip, number: {
            "clip": clip,
            "questions": [
                {"q": "Bright?", "a": ANSWERS[number]}, {"q": "Sky?", "a": WEATHER[number]},
            ],
        }
    )  # fmt: skip
    said = [answer for _, answer in built_rows(source, rows, tmp_path)]
    assert said == ["Yes", "rain", "No", "sun", "Yes", "rain", "No", "sun"]


LABELLED = {
    "beside the clip": lambda: each(
        lambda c, n: {"file": c, "labels": {"sky": WEATHER[n], "n": n}}
    ),
    "by clip": lambda: dict(each(lambda c, n: (c, {"sky": WEATHER[n], "n": n}))),
}


@pytest.mark.parametrize("rows", LABELLED.values(), ids=LABELLED)
def test_a_field_of_labels_that_are_objects(source, tmp_path, rows):
    flags = ("--fields", "sky", "--question", "Sky?")
    said = [answer for _, answer in built_rows(source, rows(), tmp_path, *flags)]
    assert said == ["rain", "sun", "rain", "sun"]


@pytest.mark.parametrize(
    ("fields", "finding"), [("sky,wind", "BUILD-FIELD"), ("clip", "BUILD-FIELD")]
)
def test_fields_that_labels_do_not_have(source, tmp_path, fields, finding):
    table = written(source, LABELLED["beside the clip"](), "rows.json")
    words = ["-o", tmp_path / "out", "--fields", fields, "--question", "Sky?", "--json"]
    refused = run_script("build_dataset.py", table, *words)
    [found] = json.loads(refused.stdout)["findings"]
    assert (refused.returncode, found["id"]) == (2, finding)


def test_names_that_were_written_on_windows(source, tmp_path):
    rows = each(lambda clip, n: {"path": f"C:\\dashcam\\{clip}", "label": ANSWERS[n]})
    assert len(built_rows(source, rows, tmp_path, "--question", "Bright?")) == 4
    rows = each(lambda clip, n: {"path": f"..\\{clip}", "label": ANSWERS[n]})
    table = written(source, rows, "rows.json")
    refused = run_script("build_dataset.py", table, "-o", tmp_path / "no", "--question", "Bright?")
    assert "DATA-MEDIA-ESCAPE" in refused.stderr
