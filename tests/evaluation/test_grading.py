"""How rows are graded: types and labels that a whole set shows, tasks, tolerances, boxes."""

import pytest
from scoring import ids, metrics_of, row, run_of, score, write

from cosmos_reason import answers
from cosmos_reason.evaluation import grading
from cosmos_reason.evaluation.rows import Row


def judged(pairs, question="What is the weather?"):
    rows = [Row(f"r{n}", "v", None, question, gt, said, None) for n, (gt, said) in enumerate(pairs)]
    grading.grade(rows)
    return rows


def test_few_short_ground_truths_are_a_closed_set():
    rows = judged(
        [("Rain", "It is rain."), ("Snow", "rain or snow"), ("Clear sky", "Clear sky!")] * 4
    )
    assert {r.type for r in rows} == {"label"}
    assert [r.outcome for r in rows[:3]] == ["right", "unparseable", "right"]


def test_captions_are_no_closed_set():
    rows = judged(
        [
            (f"A red car number {n} turns left at the crossing.", "A red car turns left.")
            for n in range(12)
        ]
    )
    assert {r.type for r in rows} == {"text"}


def test_each_often_asked_question_has_its_own_labels():
    weather = judged([("rain", "rain"), ("sun", "rain")] * 8)
    road = judged([("wet", "The road is wet."), ("dry", "rain")] * 8, "What is the road like?")
    rows = weather + road
    grading.grade(rows)
    assert {r.type for r in rows} == {"label"}
    assert rows[-1].outcome == "unparseable"  # "rain" is no label of that question
    assert rows[1].outcome == "wrong"


def test_rows_of_no_known_question_share_labels_only_among_their_texts():
    """Reason1's files may lack the prompt: letters among their ground truths stay letters."""
    rows = judged([("A", "A"), ("rain", "rain"), ("B", "A"), ("sun", "rain")] * 8, question="")
    assert [row.type for row in rows[:4]] == ["mcq", "label", "mcq", "label"]
    assert {label for row in rows for label in row.labels} == {"rain", "sun"}


def test_ok_and_ng_are_two_labels():
    rows = judged(
        [("OK", "ok"), ("NG", "The label is NG."), ("NG", "OK"), ("OK", "?")], "Is the part good?"
    )
    assert [r.outcome for r in rows] == ["right", "right", "wrong", "unparseable"]


def test_a_type_the_ground_truths_do_not_have_is_an_error(tmp_path):
    path = write(tmp_path / "results.json", [row("a"), row("b", gt="the red one, clearly")])
    code, document = score(path, "--type", "yes_no")
    assert code == 1
    assert ids(document) == {"EVAL-GT-TYPE"}
    assert document["result"]["runs"][0]["rows"] == 2


def test_every_type_can_be_asked_for(tmp_path):
    path = write(tmp_path / "results.json", [row("a", gt="5", response="5")])
    for kind in answers.TYPES:
        (graded,), _ = grading.read(path, grading.Options(kind))
        assert graded.type == kind


def test_the_directionality_task_is_read_from_the_evaluation_or_asked_for(tmp_path):
    rows = [
        row("a", gt="left", question="Where?", response="It goes straight."),
        row("b", gt="B", question="?"),
    ]
    write(tmp_path / "results.json", rows)
    code, document = score(tmp_path, "--type", "its_directionality")
    assert (code, set(document["result"]["runs"][0]["per_type"])) == (1, {"direction"})
    write(tmp_path / "evaluation.json", {"task": "its_directionality"})
    assert set(run_of(tmp_path)["per_type"]) == {"direction"}


@pytest.mark.parametrize("tolerance", ["nan", "-1", "2", "x"])
def test_a_tolerance_is_a_share(tmp_path, tolerance):
    path = write(tmp_path / "results.json", [row("a", gt="5", response="5")])
    assert score(path, "--tolerance", tolerance)[0] == 2


def test_spans_and_boxes_are_scored_by_their_overlap(tmp_path):
    span, box = (
        {"question": "When?", "gt": "10s-20s"},
        {"question": "Give its box.", "gt": "[0, 0, 10, 10]"},
    )
    rows = [
        row(id, response=said, **span)
        for id, said in (("a", "10s-20s"), ("b", "15s to 25s"), ("c", "?"))
    ]
    rows.append(row("d", response="[0, 0, 10, 6]", **box))
    path = write(tmp_path / "results.json", rows)
    scored = run_of(path, "--write")
    metrics_of(tmp_path)
    assert scored["overlap"]["temporal"] == {
        "rows": 3,
        "mean_iou": pytest.approx(4 / 9, abs=1e-6),
        "share_above": {
            "0.3": pytest.approx(2 / 3, abs=1e-6),
            "0.5": pytest.approx(1 / 3, abs=1e-6),
            "0.7": pytest.approx(1 / 3, abs=1e-6),
        },
    }
    assert scored["overlap"]["box"]["mean_iou"] == 0.6
    assert scored["correct"] == 2


def test_boxes_are_converted_when_asked_for(tmp_path):
    from PIL import Image

    Image.new("RGB", (200, 100)).save(tmp_path / "shown.png")
    gt, said = "[20, 10, 120, 60]", "[100, 100, 600, 600]"
    rows = [row("a", gt=gt, response=said, question="Give its box.", media="shown.png")]
    path = write(tmp_path / "results.json", rows)
    write(tmp_path / "evaluation.json", {"media_dir": str(tmp_path)})
    assert run_of(path)["correct"] == 0
    assert run_of(path, "--boxes", "1000")["overlap"]["box"]["mean_iou"] == 1.0
    swapped = write(tmp_path / "results.json", [rows[0] | {"gt": said, "response": gt}])
    assert run_of(swapped, "--boxes", "pixels")["overlap"]["box"]["mean_iou"] == 1.0
    write(tmp_path / "results.json", [rows[0] | {"media": "gone.png"}])
    code, document = score(path, "--boxes", "1000")
    assert (code, ids(document)) == (1, {"EVAL-BOX-SIZE"})
    assert document["result"]["runs"][0]["unparseable"] == 1


def test_unread_responses_are_told_by_the_form_asked_for(tmp_path):
    ask = "Which way?\nA. left\nB. right"
    rows = [
        row("a", gt="A", response="A", question=f"{ask}\nAnswer with the option's letter."),
        row("b", gt="A", response="It goes left.", question=f"{ask}\nAnswer with the letter."),
        row("c", gt="A", response="<answer>A</answer>", question=f"{ask}\nUse <answer> tags."),
        row("d", gt="yes", response="The door stands open.", question="Is the door open?"),
        row("e", gt="yes", response="No.", question="Is the door open? Answer yes or no."),
    ]
    path = write(tmp_path / "results.json", rows)
    run = run_of(path)
    told = {form: (part["unread"], part["rows"]) for form, part in run["per_form"].items()}
    assert told == {"letter": (1, 2), "tags": (0, 1), "any": (1, 1), "yes or no": (0, 1)}
    assert (run["unread_rate"], run["per_type"]["mcq"]["unread_rate"]) == (0.4, 0.333333)
    write(tmp_path / "evaluation.json", {"prompt": {"answer_type": "letter"}})
    write(path, [row("a", gt="A", response="left", question=ask)])
    assert list(run_of(path)["per_form"]) == ["letter"]
    assert score(path, "--explain", "a")[1]["result"]["row"]["read"] == "committed"
