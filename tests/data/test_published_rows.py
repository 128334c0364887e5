"""Rows of published sets, retyped small in their own shape: built as they are, or refused with the
question that only their author can answer."""

import json

import pytest
from clip_files import check, write_clip
from support import run_script

from cosmos_reason.data import annotations
from cosmos_reason.media.files import probe

COLOURS = ["red", "blue", "green"]


def written(source, content, name="rows.json"):
    text = content if isinstance(content, str) else json.dumps(content)
    (source / name).write_text(text)
    return source / name


def build(path, *flags):
    """(what build_dataset.py reports of a file, [(question, answer)] of its records)."""
    out = path.parent.parent / "out"
    done = run_script("build_dataset.py", path, "-o", out, "--force", *flags, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads(done.stdout)
    if done.returncode:
        return report, []
    samples, _ = annotations.read(out / "train" / "annotations.json")
    return report, [tuple(turn.text for turn in sample.turns[-2:]) for sample in samples]


def found(report, id):
    return [finding for finding in report["findings"] if finding["id"] == id]


# -- reasoning ---------------------------------------------------------------------------------

VIDEO_R1 = {
    "problem_id": 2, "problem": "What is seen?", "data_type": "video",
    "problem_type": "multiple choice", "options": ["A. A prompt", "B. A bird"],
    "process": "<think>\nIt has wings.\n</think>", "solution": "<answer>B</answer>",
    "path": "./0.mp4", "data_source": "LLaVA-Video-178K",
}  # fmt: skip
OPEN = {"problem_type": "free-form", "options": [], "path": "./1.mp4"}


def test_the_process_of_video_r1_is_trained_before_the_answer(source):
    rows = [VIDEO_R1, VIDEO_R1 | OPEN | {"solution": "<answer>2</answer>"}]
    _, talks = build(written(source, rows))
    assert [answer for _, answer in talks] == [
        "<think>\nIt has wings.\n</think>\n\nB",
        "<think>\nIt has wings.\n</think>\n\n2",
    ]


def test_rows_without_a_process_answer_at_once(source):
    _, talks = build(written(source, [VIDEO_R1, VIDEO_R1 | {"process": "", "path": "1.mp4"}]))
    assert [answer.startswith("<think>") for _, answer in talks] == [True, False]


def test_a_process_that_is_a_label_is_no_reasoning(source):
    rows = [{"video": f"{n}.mp4", "process": "weld", "label": "ok"} for n in range(3)]
    report, talks = build(written(source, rows), "--question", "Good?")
    assert [answer for _, answer in talks] == ["ok"] * 3
    assert found(report, "BUILD-COLUMN-UNUSED")[0]["data"]["columns"] == ["process"]


def test_tags_stay_where_the_question_asks_for_them(source):
    asked = "What is seen? Answer in <answer> </answer>."
    row = VIDEO_R1 | OPEN | {"problem": asked, "solution": "<answer>a bird</answer>"}
    _, ((_, answer),) = build(written(source, [row]))
    assert answer.endswith("<answer>a bird</answer>")


def test_reasoning_and_letter_in_one_answer(source):
    row = {"video": "0.mp4", "question": "What?", "options": COLOURS}
    row["response"] = "<think>It is the sky.</think>\n<answer>B</answer>"
    _, ((question, answer),) = build(written(source, [row]))
    assert "(B) blue" in question and answer == "<think>It is the sky.</think>\nB"


@pytest.mark.parametrize("written_as", ["<think>\nIt is wet.\n</think>", "It is wet."])
def test_reasoning_beside_an_answer_gets_its_tags_once(source, written_as):
    row = {"video": "0.mp4", "question": "Rain?", "answer": "Yes", "reasoning": written_as}
    _, ((_, answer),) = build(written(source, [row]))
    assert answer == "<think>\nIt is wet.\n</think>\n\nYes"
    row["video_id"] = row.pop("video")
    samples, _ = annotations.read(written(source, [row]))
    assert samples[0].reasoning == "It is wet."


def test_a_kind_of_reasoning_is_none(source):
    """As Perception Test has them; in another table a column is ignored where that is declared."""
    rows = [
        {"video": f"{n}.mp4", "question": "Held?", "options": COLOURS, "reasoning": "Descriptive"}
        for n in range(2)
    ]
    _, talks = build(written(source, [row | {"answer_id": 1} for row in rows]))
    assert [answer for _, answer in talks] == ["B", "B"]
    flags = ("--column", "ignore=reasoning")
    _, talks = build(written(source, [row | {"answer": "red"} for row in rows]), *flags)
    assert [answer for _, answer in talks] == ["A", "A"]


# -- numbers of options ------------------------------------------------------------------------


def numbered(column, answers, options=COLOURS):
    return [
        {"video": f"{n}.mp4", "question": "Colour?", "candidates": options, column: answer}
        for n, answer in enumerate(answers)
    ]


def test_the_choice_of_longvideobench_counts_from_0(source):
    rows = [
        {"video_id": f"{n}", "video_path": f"{n}.mp4", "question": "Colour?", "id": f"{n}_0",
         "candidates": COLOURS, "correct_choice": choice, "position": [12, 24],
         "topic_category": "NP-News", "duration_group": 15, "view_count": 332}
        for n, choice in enumerate([2, 1])
    ]  # fmt: skip
    _, talks = build(written(source, rows))
    assert [answer for _, answer in talks] == ["C", "B"]
    assert "(A) red\n(B) blue\n(C) green" in talks[0][0]


@pytest.mark.parametrize(
    ("answers", "letters"),
    [([0, 2, 1], "ACB"), ([1, 3, 2], "ACB"), (["0", "2", "1"], "ACB"), ([2, 0, 2], "CAC")],
)
def test_all_rows_tell_what_their_numbers_count_from(source, answers, letters):
    _, talks = build(written(source, numbered("answer", answers)))
    assert "".join(answer for _, answer in talks) == letters


@pytest.mark.parametrize("answers", [[1, 2], [0, 3], [1, 4], [0, -1]])
def test_numbers_that_may_be_two_options_or_none_are_refused(source, answers):
    report, talks = build(written(source, numbered("answer", answers)))
    assert not talks and {finding["severity"] for finding in found(report, "BUILD-OPTIONS")} == {
        "error"
    }


@pytest.mark.parametrize(("role", "letters"), [("answer_from_0", "BC"), ("answer_from_1", "AB")])
def test_their_author_says_what_numbers_count_from(source, role, letters):
    path = written(source, numbered("right", [1, 2]))
    report, _ = build(path, "--column", "answer=right")
    (finding,) = found(report, "BUILD-OPTIONS")
    assert f"--column {role}=right" in finding["message"]
    _, talks = build(path, "--column", f"{role}=right")
    assert "".join(answer for _, answer in talks) == letters


def test_a_name_that_counts_from_0_does_not_outweigh_the_last_number(source):
    report, talks = build(written(source, numbered("correct_choice", [1, 3])))
    assert not talks and found(report, "BUILD-OPTIONS")


def test_numbers_that_are_texts_of_options_stay_texts(source):
    path = written(source, numbered("answer", [2, 4], ["2", "3", "4"]))
    _, talks = build(path)
    assert [answer for _, answer in talks] == ["A", "C"]
    mixed = [*numbered("answer", [2], ["2", "3", "4"]), *numbered("answer", [0])]
    report, talks = build(written(source, mixed))
    assert not talks and "answer_from_0" in found(report, "BUILD-OPTIONS")[0]["message"]


# -- which column names the clip ---------------------------------------------------------------

VSI_BENCH = [
    {"id": n + 900, "dataset": "arkitscenes", "scene_name": str(n), "question_type": kind,
     "question": asked, "ground_truth": truth, "options": options}
    for n, (kind, asked, truth, options) in enumerate([
        ("object_counting", "How many chair(s) are there?", "4", None),
        ("object_rel_direction_easy", "Where is the sofa?", "B", ["A. left", "B. right"]),
    ])
]  # fmt: skip
EGO_SCHEMA = [
    {"question_idx": str(n + 7), "question": "What was the goal of C?", "video_idx": str(n),
     "option": ["A. C washed dishes.", "B. C slept."], "answer": str(n)}
    for n in range(2)
]  # fmt: skip
VIDEO_MME = [
    {"video_id": f"00{n + 1}", "duration": "short", "domain": "Knowledge", "videoID": str(n),
     "url": "https://www.youtube.com/watch?v=x", "question_id": f"00{n + 1}-1",
     "question": "When?", "options": ["A. One.", "B. Two."], "answer": "AB"[n]}
    for n in range(2)
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "answers"),
    [(VSI_BENCH, ["4", "B"]), (EGO_SCHEMA, ["A", "B"]), (VIDEO_MME, ["A", "B"])],
    ids=["VSI-Bench", "EgoSchema", "Video-MME"],
)
def test_the_column_that_names_the_clips_is_found_by_the_files(source, rows, answers):
    path = written(source, rows)
    report, talks = build(path)
    assert [answer for _, answer in talks] == answers, report
    _, problems = check(path, expect=1)
    assert "DATA-NOT-BUILT" in problems and "DATA-TURNS-MISSING" not in problems


def test_two_columns_that_name_different_clips_are_a_question(source):
    rows = [{"left": "0", "right": "1", "question": "Same?", "answer": "no"}] * 2
    report, talks = build(written(source, rows))
    assert not talks and "video" in {finding["where"] for finding in found(report, "BUILD-COLUMN")}


def test_ids_and_options_are_not_proposed_as_answers(source):
    row = {"video": "0.mp4", "q_uid": "a", "question_id": 3, "question": "?"}
    rows = [row | {"option 0": "red", "option 1": "blue", "weather": sky} for sky in ("sun", "fog")]
    report, _ = build(written(source, rows))
    (finding,) = found(report, "BUILD-COLUMN")
    assert finding["fix"] == "--column answer=weather"


def test_the_number_of_a_clip_is_its_name(source):
    """As MSRVTT-QA has them, whose clips are called video7010.mp4; 0 is no missing number."""
    for n in range(2):
        (source / f"{n}.mp4").rename(source / f"video{n}.mp4")
    rows = [
        {"answer": "couch", "category_id": 14, "id": 158581 + n, "question": "What falls?",
         "video_id": n}
        for n in range(2)
    ]  # fmt: skip
    path = written(source, rows)
    _, problems = check(path, expect=1)
    assert "DATA-MEDIA-MISSING" in problems and "DATA-MEDIA-NONE" not in problems
    assert len(build(path)[1]) == 2


def test_pictures_beside_a_question_are_built(source):
    from PIL import Image

    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 64)).save(source / name)
    row = {"segment_id": "s", "images": ["a.png", "b.png"], "question": "A light?", "answer": "No"}
    build(written(source, [row]))
    samples, _ = annotations.read(source.parent / "out" / "train" / "annotations.json")
    assert len(samples[0].media) == 2


# -- parts of clips ----------------------------------------------------------------------------


@pytest.fixture
def long_clip(source):
    """A clip of three seconds, beside the others."""
    write_clip(source / "P01_01.mp4", frames=30, rate=10)
    return source / "P01_01.mp4"


EPIC_KITCHENS = (
    "narration_id,participant_id,video_id,start_timestamp,stop_timestamp,narration,verb\n"
    "P01_01_0,P01,P01_01,00:00:00.00,00:00:01.00,wash cup,wash\n"
    "P01_01_1,P01,P01_01,00:00:01.00,00:00:03.00,open door,open\n"
)
NARRATED = ("--column", "answer=narration", "--question", "What is done?")
TIMES = ("--column", "start=start_timestamp", "--column", "end=stop_timestamp")


def test_parts_of_one_clip_with_other_answers_are_refused_whole_and_cut(source, long_clip):
    path = written(source, EPIC_KITCHENS, "EPIC_100_train.csv")
    report, _ = build(path, *NARRATED)
    (finding,) = found(report, "BUILD-SPAN")
    assert (finding["severity"], finding["fix"]) == ("error", " ".join(TIMES))
    report, talks = build(path, *NARRATED, *TIMES)
    assert [answer for _, answer in talks] == ["wash cup", "open door"]
    out = source.parent / "out" / "train"
    samples, _ = annotations.read(out / "annotations.json")
    lengths = [probe(out / sample.media[0].path).frames for sample in samples]
    assert lengths == [10, 20] and not found(report, "BUILD-SPAN")


def test_parts_of_one_clip_stay_on_one_side_of_a_split(source, long_clip):
    rows = [
        {"video": video, "start": start, "end": start + 1, "question": "Done?", "answer": "yes"}
        for video, start in [("P01_01.mp4", 0), ("P01_01.mp4", 1)]
    ]
    rows.append({"video": "0.mp4", "question": "Done?", "answer": "yes"})
    flags = ("--column", "start=start", "--column", "end=end", "--eval-fraction", "0.6")
    build(written(source, rows), *flags)
    sides = []
    for side in ("train", "eval"):
        samples, _ = annotations.read(source.parent / "out" / side / "annotations.json")
        sides.append(len(samples))
    assert sorted(sides) == [1, 2]


def test_times_that_are_not_cut_are_told(source):
    """As in MVBench's tables, whose rows may have no times."""
    rows = [
        {"video": f"{n}.mp4", "start": 4.0 + n if n else None, "end": 9.5 if n else None,
         "question": "What happened?", "answer": "Ate it.",
         "candidates": "['Ate it.', \"Can't say.\"]"}
        for n in range(3)
    ]  # fmt: skip
    report, talks = build(written(source, rows))
    (finding,) = found(report, "BUILD-COLUMN-UNUSED")
    assert finding["severity"] == "warning"
    assert "--column start=start --column end=end" in finding["message"]
    assert [answer for _, answer in talks] == ["A"] * 3 and "(B) Can't say." in talks[0][0]


def test_records_with_times_are_told_too(source):
    """STAR's, which would be read as DAFT's."""
    choices = [{"choice_id": n, "choice": text} for n, text in enumerate(["The door.", "The box."])]
    row = {"question_id": "I_1", "question": "What was closed?", "video_id": "0", "start": 0.1}
    row |= {"end": 0.3, "answer": "The door.", "choices": choices}
    report, ((_, answer),) = build(written(source, [row]))
    assert answer == "A" and "start=start" in found(report, "BUILD-COLUMN-UNUSED")[0]["message"]


@pytest.mark.parametrize(
    ("start", "end"),
    [(2, 1), (1, 1), (-1, 1), ("soon", 1), (0, None), ([0], [1]), (0, "1/0"), (0, "1e999999999")],
)
def test_times_that_are_none_are_refused(source, long_clip, start, end):
    rows = [
        {"video": "P01_01.mp4", "from": start, "to": end, "question": "?", "answer": "yes"},
        {"video": "P01_01.mp4", "from": 0, "to": 1, "question": "?", "answer": "yes"},
    ]
    report, _ = build(written(source, rows), "--column", "start=from", "--column", "end=to")
    assert found(report, "BUILD-SPAN")[0]["severity"] == "error"


def test_one_column_of_times_is_no_part(source):
    rows = [{"video": "0.mp4", "from": 0, "question": "?", "answer": "yes"}]
    report, _ = build(written(source, rows), "--column", "start=from")
    assert found(report, "USAGE")


# -- questions below their clip ----------------------------------------------------------------

ASKED = {"area": "Physics", "reasoning": "Descriptive", "tag": ["motion"]}
PERCEPTION_TEST = {
    str(n): {
        "metadata": {"split": "valid", "video_id": str(n), "num_frames": 200},
        "mc_question": [
            {"id": 34, "question": "Is the camera moving?", "answer_id": 2,
             "options": ["I don't know", "moving", "static"], **ASKED},
            {"id": 35, "question": "How many cups?", "answer_id": 0, "options": ["1", "2", "3"],
             **ASKED},
        ],
    }
    for n in range(2)
}  # fmt: skip
TEMPCOMPASS = {
    str(n): {
        "action": [{"question": "What is done?\nA. swimming\nB. riding", "answer": "B. riding"}],
        "speed": [{"question": "How fast?\nA. slow\nB. fast", "answer": "A. slow"}],
    }
    for n in range(2)
}
HOURVIDEO = {
    str(n): {
        "video_metadata": {"video_uid": str(n), "duration_in_seconds": 1200},
        "benchmark_dataset": [
            {"qid": f"{n}_1", "task": "summarization", "question": "What happened?",
             "answer_1": "a walk", "answer_2": "a run", "answer_3": "a nap",
             "correct_answer_label": "B"},
        ],
    }
    for n in range(2)
}  # fmt: skip
CLEVRER = [
    {"scene_index": n, "video_filename": f"{n}.mp4", "questions": [
        {"question_id": 0, "question": "How many move?", "question_type": "descriptive",
         "program": ["events"], "answer": "1"},
        {"question_id": 1, "question": "Is it red?", "question_type": "descriptive",
         "program": ["events"], "answer": "no"},
    ]}
    for n in range(2)
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "answers"),
    [
        (PERCEPTION_TEST, ["C", "A", "C", "A"]),
        (TEMPCOMPASS, ["B. riding", "A. slow", "B. riding", "A. slow"]),
        (HOURVIDEO, ["B", "B"]),
        (CLEVRER, ["1", "no", "1", "no"]),
    ],
    ids=["Perception Test", "TempCompass", "HourVideo", "CLEVRER"],
)
def test_questions_below_their_clip_are_rows(source, rows, answers):
    path = written(source, rows)
    _, talks = build(path)
    assert [answer for _, answer in talks] == answers
    samples, _ = annotations.read(source.parent / "out" / "train" / "annotations.json")
    assert len({sample.media[0].path for sample in samples}) == 2
    if rows is PERCEPTION_TEST:
        assert [sample.id for sample in samples] == ["0-34", "0-35", "1-34", "1-35"]
    _, problems = check(path, expect=1)
    assert "in lists" in problems["DATA-NOT-BUILT"]["message"]


def test_answers_of_several_people_are_no_options(source):
    row = {"video": "0.mp4", "question": "What is held?", "answer": "cup"}
    row |= {"answer_1": "cup", "answer_2": "mug"}
    assert build(written(source, [row]))[1] == [("What is held?", "cup")]


ACTIVITY_NET = {
    "version": "VERSION 1.3",
    "database": {
        "P01_01": {"duration": 3.0, "subset": "training", "annotations": [
            {"segment": [0, 1.0], "label": "Longboarding"},
            {"segment": [1.0, 3.0], "label": "Falling"},
        ]},
        "0": {"duration": 1.0, "subset": "validation", "annotations": []},
    },
}  # fmt: skip


def test_the_events_of_activitynets_files_are_rows(source, long_clip):
    """Its clips are called v_NAME.mp4. Whole, one clip would have two answers."""
    long_clip.rename(source / "v_P01_01.mp4")
    path = written(source, ACTIVITY_NET)
    flags = ("--question", "What is done?")
    report, _ = build(path, *flags)
    (finding,) = found(report, "BUILD-SPAN")
    assert finding["severity"] == "error"
    _, talks = build(path, *flags, *finding["fix"].split())
    assert [answer for _, answer in talks] == ["Longboarding", "Falling"]
    _, problems = check(path, expect=1)
    assert "events in lists" in problems["DATA-NOT-BUILT"]["message"]


def test_one_number_is_no_part(source, long_clip):
    rows = [{"video": "P01_01.mp4", "timestamp": 1, "question": "?", "answer": "yes"}]
    flags = ("--column", "start=timestamp", "--column", "end=timestamp")
    assert found(build(written(source, rows), *flags)[0], "BUILD-SPAN")


# -- what was lost or written into texts -------------------------------------------------------


def test_reasoning_beside_one_pair_is_kept_and_beside_several_it_is_of_none(tmp_path):
    pair = {"question": "What happens?", "answer": "It falls."}
    one = {"id": "a", "video": "0.mp4", "qa_pairs": [pair], "reasoning": "An arm."}
    samples, _ = annotations.read(written(tmp_path, [one, one | {"qa_pairs": [pair, pair]}]))
    assert [sample.reasoning for sample in samples] == ["An arm.", "", ""]


def test_a_list_of_one_clip_and_the_tag_in_its_question(source):
    """PhysBench's rows."""
    row = {"source": "simulation", "file_name": ["0.mp4"], "idx": 0, "answer": "B"}
    row["question"] = "<video>What falls?\nA. it\nB. all"
    assert build(written(source, [row]))[1] == [("What falls?\nA. it\nB. all", "B")]


def test_records_of_which_none_has_a_medium_are_a_warning(tmp_path):
    """Their clips stand under a key that nobody reads; some without a medium are none."""
    row = {"question": "Where is it?", "answer": "On the desk.", "episode_history": "scene0"}
    path = written(tmp_path, [row])
    _, problems = check(path)
    finding = problems["DATA-MEDIA-NONE"]
    assert finding["severity"] == "warning" and "build_dataset.py" in finding["fix"]


def test_times_that_are_asked_for_are_no_parts(source):
    """Cut out, a part would hold its answer alone."""
    row = {"video": "0.mp4", "question": "When does it fall?", "answer": "0.1s - 0.3s"}
    report, talks = build(written(source, [row | {"start": 0.1, "end": 0.3}]))
    assert len(talks) == 1 and not found(report, "BUILD-SPAN")


def test_items_of_daft_with_times_stay_records(source):
    """Temporal tasks of NVIDIA's traffic set: their reasoning, tags and ids are kept."""
    item = {"video_id": "0.mp4", "question": "What falls?", "answer": "A cup.", "item_index": 7}
    item |= {"start": 0.1, "end": 0.3, "reasoning": "I see it.", "tags": ["night"]}
    report, ((_, answer),) = build(written(source, [item]))
    assert answer.startswith("<think>\nI see it.") and not found(report, "BUILD-SPAN")
    samples, _ = annotations.read(source.parent / "out" / "train" / "annotations.json")
    assert (samples[0].id, samples[0].tags) == ("7", ("night",))


def test_times_and_nothing_else_are_no_traceback(source):
    report, talks = build(written(source, [{"start": 0, "end": 1}, {"start": 1, "end": 2}]))
    assert not talks and found(report, "BUILD-COLUMN")


def test_the_tags_of_rows_are_kept(source):
    row = {"video": "0.mp4", "question": "?", "answer": "a", "tags": ["night", "rain"]}
    build(written(source, [row]))
    samples, _ = annotations.read(source.parent / "out" / "train" / "annotations.json")
    assert samples[0].tags == ("night", "rain")


TRAFFIC_QA = [
    ["record_id", "vid_id", "vid_filename", "perspective", "q_body", "q_type",
     "option0", "option1", "option2", "option3", "answer"],
    [0, 10, "0.mp4", 1, "Which area?", "U", "bridge", "road", "hill", "sea", 1],
    [1, 11, "1.mp4", 0, "Which area?", "U", "bridge", "road", "hill", "", 0],
]  # fmt: skip


def test_arrays_below_the_names_of_their_columns_are_rows(source):
    path = written(source, "\n".join(map(json.dumps, TRAFFIC_QA)), "R2_all.jsonl")
    _, talks = build(path)
    assert [answer for _, answer in talks] == ["B", "A"]
    assert talks[0][0].startswith("Which area?\n(A) bridge\n(B) road")
    assert "sea" not in talks[1][0]


@pytest.mark.parametrize("lines", [[["a", "b"]], [["a", 1], [2, 3]], [["a", "b"], [1]]])
def test_other_arrays_are_refused(source, lines):
    report, talks = build(written(source, "\n".join(map(json.dumps, lines)), "rows.jsonl"))
    assert not talks and report["findings"]


def test_options_that_are_no_texts_are_told_where_they_are_read(source):
    row = {"video": "0.mp4", "question": "?", "options": [{}, {"a": "b", "c": "d"}], "answer": 0}
    path = written(source, [row])
    _, problems = check(path, expect=1)
    assert "expected its text" in problems["DATA-RECORD-FORMAT"]["message"]
    assert found(build(path)[0], "BUILD-OPTIONS")
