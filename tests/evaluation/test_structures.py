"""Sets of places in JSON: what a response commits to, and how a set is measured."""

import json
import math
import random
from itertools import permutations

import pytest
from PIL import Image
from scoring import ids, metrics_of, row, run_of, score, write

from cosmos_reason import answers
from cosmos_reason.answers import matching
from cosmos_reason.evaluation import rewards

EVENTS = [
    {"start": 0.1, "end": 2.7, "caption": "A robot reaches for a cup."},
    {"start": "00:02.70", "end": "00:04.20", "caption": "It lifts the cup."},
]
BOXES = [
    {"bbox_2d": [10, 10, 100, 100], "label": "car"},
    {"bbox_2d": [200, 10, 300, 100], "label": "dog"},
]
PATH = [{"point_2d": [x, 500], "label": "gripper trajectory"} for x in (100, 400, 900)]
SPACE = {"annotations": [{"bbox_3d": [1, 2, 10, 2, 2, 4, 0, 0, 0.1], "label": "car_1"}]}


def judged(gt, response, type="auto", question="List them as json."):
    if not isinstance(response, str):
        response = json.dumps(response)
    return answers.verdict(question, json.dumps(gt), response, type)


@pytest.mark.parametrize(
    ("gt", "question", "kind"),
    [
        (EVENTS, "", "events"),
        ([{"start": 1, "end": 2}, {"start": 3, "end": 4}], "", "spans"),
        (
            {"events": [{"time": [1, 2], "event": "cut"}, {"time": "3-4", "event": "cut"}]},
            "",
            "events",
        ),
        (BOXES, "", "boxes"),
        ([{"point_2d": [5, 6], "label": "cup"}], "", "points"),
        (PATH, "", "trajectories"),
        ([{"point_2d": [5, 6]}, {"point_2d": [7, 6]}], "Give the 2D trajectory.", "trajectories"),
        (SPACE, "", "box3d"),
        ({"start": 1, "end": 2}, "When?", "temporal"),
        ({"bbox_2d": [1, 2, 3, 4], "label": "car"}, "", "box"),
        ([[1, 2], [3, 4]], "", "text"),
        ([{"subject_id": "2", "category": "ski", "caption": "white"}], "", "text"),
        ([{"start": 3, "end": 1, "caption": "backwards"}], "", "text"),
        ([{"bbox_2d": [1, 2, 3, 4], "start": 3}], "", "text"),
        ([one | {"class": "red"} for one in BOXES], "", "text"),
        ({"count": 2, "boxes": BOXES}, "", "text"),
        ({"id": 7, "boxes": BOXES}, "", "boxes"),
    ],
)
def test_the_keys_of_a_ground_truth_say_what_it_is(gt, question, kind):
    assert answers.question_type(question, json.dumps(gt)) == kind


@pytest.mark.parametrize(
    ("question", "gt", "kind"),
    [
        ("Rate its physical plausibility on a scale from 1 to 5.", "4", "ordinal"),
        ("Give a score (1-5) for how well it follows physics.", "4", "ordinal"),
        ("Answer by this template:\n[Score between 1 and 5.]\nDoes it look real?", "4", "ordinal"),
        ("How many cars are there?", "4", "number"),
        ("The score lies between 2 and the board's 5: how many cars?", "4", "number"),
        ("What is the score on the board?", "4", "number"),
    ],
)
def test_a_question_that_names_its_scale_asks_for_a_grade(question, gt, kind):
    assert answers.question_type(question, gt) == kind


TEXT = json.dumps(EVENTS)
LINES = "\n".join(map(json.dumps, EVENTS))


@pytest.mark.parametrize(
    "response",
    [
        TEXT,
        f"```json\n{json.dumps(EVENTS, indent=2)}\n```",
        f"Here are the events:\n```\n{TEXT}\n```",
        f"<think>Maybe [1, 2].</think>\n\n{TEXT}",
        f"<think>so</think><answer>{TEXT}</answer>",
        json.dumps({"events": EVENTS}),
        LINES,
        f"```json\n{LINES}\n```",
        f"{TEXT}\n{TEXT}",
        TEXT.replace("}, {", "}, // the second\n {").replace("}]", "},\n/* end */]"),
        TEXT.replace("0.1", '"0.1s"'),
        TEXT.replace('"caption": "A', '"label": "[a], {b}", "caption": "A'),
    ],
)
def test_a_response_commits_to_its_only_document(response):
    read = judged(EVENTS, response)
    assert (read.type, read.rule, read.correct, read.overlap) == ("events", "JSON", True, 1.0)


@pytest.mark.parametrize(
    ("response", "rule"),
    [
        (TEXT[:-1], "cut off"),
        (TEXT[:-30], "cut off"),
        (f"```json\n{TEXT}", "cut off"),
        (f"```json\n{TEXT[:-9]}", "cut off"),
        (f"<think>{TEXT}", "no response"),
        (TEXT.replace("0.1", "t1"), "unparsable"),
        (TEXT.replace("}, {", "} {"), "unparsable"),
        (TEXT.replace("}, {", "}, ... , {"), "unparsable"),
        (TEXT.replace("0.1", "NaN"), "malformed"),
        (TEXT.replace("0.1", "true"), "malformed"),
        (TEXT.replace("0.1", '"soon"'), "malformed"),
        (TEXT.replace("0.1", "9.9"), "malformed"),
        (TEXT.replace('"start": 0.1, ', ""), "malformed"),
        (f"{TEXT}\n\nor\n\n{TEXT.replace('0.1', '0.2')}", "several answers"),
        (f"I am not sure: {TEXT}", "taken back"),
        (f"These are not the events: {TEXT}", "taken back"),
        (f"{TEXT} Wait, that is wrong.", "taken back"),
        (f"Is it {TEXT}?", "taken back"),
        (f"If it rains, {TEXT}", "taken back"),
        ("A robot reaches from 0.1 to 2.7 and lifts from 2.7 to 4.2.", "unread"),
        ("I cannot see the video.", "unread"),
        ("", "no response"),
        ("[" * 100_000, "unparsable"),
    ],
)
def test_everything_else_is_unread_and_never_right(response, rule):
    read = judged(EVENTS, response)
    assert (read.answer, read.rule, read.correct, read.overlap) == (None, rule, False, 0.0)


def test_events_are_matched_by_time_and_labels_are_theirs():
    labelled = [{"start": 0, "end": 4, "event": "cut"}, {"start": 6, "end": 9, "event": "turn"}]
    swapped = [labelled[0] | {"event": "turn"}, labelled[1] | {"event": "cut"}]
    assert judged(labelled, labelled).correct
    read = judged(labelled, swapped)
    assert not read.correct and read.overlap == 0 and read.parts["mean_iou"] == 0
    # A caption is told apart from the times, and weighs the match.
    read = judged(EVENTS, [one | {"caption": "A cup."} for one in EVENTS])
    assert read.parts["f1@0.5"] == 1 and not read.correct
    assert read.overlap == pytest.approx(read.parts["caption_f1"], abs=1e-6)
    assert 0 < read.overlap < 1
    late = [{"start": 2, "end": 4, "event": "cut"}, labelled[1]]
    read = judged(labelled, late)
    assert read.parts == {"f1@0.3": 1, "f1@0.5": 1, "f1@0.7": 0.5, "mean_iou": 0.75, "order": 1}
    backwards = [labelled[0] | {"start": 10, "end": 12}, labelled[1]]
    assert judged(labelled, backwards).overlap == 0.5
    more = [*labelled, {"start": 20, "end": 21, "event": "cut"}]
    assert judged(labelled, more).parts["mean_iou"] == pytest.approx(2 / 3, abs=1e-6)
    assert not judged(labelled, more).correct and not judged(labelled, []).correct
    assert judged([], [], "events").correct


def test_boxes_count_with_their_label_only():
    assert judged(BOXES, BOXES[::-1]).correct
    wrong = [BOXES[0], BOXES[1] | {"label": "cat"}]
    assert judged(BOXES, wrong).overlap == 0.5 and not judged(BOXES, wrong).correct
    without = [{"bbox_2d": one["bbox_2d"]} for one in BOXES]
    assert judged(BOXES, without).overlap == 0
    assert judged(without, [one["bbox_2d"] for one in BOXES], "boxes").correct


def test_points_are_near_or_in_a_box():
    cup = [{"point_2d": [700, 600], "label": "cup"}]
    near = judged(cup, [{"point_2d": [730, 640], "label": "cup"}])
    assert near.correct and near.parts["distance"] == pytest.approx(0.05)
    far = judged(cup, [{"point_2d": [730, 641], "label": "cup"}])
    assert not far.correct and far.parts["hit_rate"] == 0
    assert not judged(cup, [{"point_2d": [700, 600], "label": "mug"}]).correct
    inside = [{"bbox_2d": [100, 100, 200, 200]}]
    assert judged(inside, [[150, 200]], "points").correct
    assert not judged(inside, [[150, 201]], "points").correct
    assert not judged(inside, inside, "points").correct  # a box is no point


def test_trajectories_are_compared_along_their_length():
    sparse = [PATH[0], PATH[-1]]
    assert judged(PATH, sparse).parts["frechet"] == pytest.approx(0, abs=1e-6)
    lower = [one | {"point_2d": [one["point_2d"][0], 620]} for one in PATH]
    read = judged(PATH, lower)
    assert not read.correct and read.parts["frechet"] == pytest.approx(0.12)
    backwards = judged(PATH, PATH[::-1])
    assert not backwards.correct and backwards.parts["frechet"] == pytest.approx(0.8)


def test_boxes_in_space_are_measured_by_ap_and_distance():
    moved = json.loads(
        json.dumps(SPACE).replace("[1, 2, 10", "[1.5, 2, 10").replace("car_1", "car_9")
    )
    read = judged(SPACE, moved)
    assert read.parts["mean_iou"] == pytest.approx(0.6) and read.correct
    assert read.parts["ap3d"] == pytest.approx(0.3) and read.parts["ap3d@0.75"] == 0
    assert read.parts["centre_distance"] == 0.5
    other = json.loads(json.dumps(SPACE).replace("car_1", "van_1"))
    assert judged(SPACE, other).overlap == 0


def test_a_grade_is_a_whole_number():
    question = "Rate its plausibility on a scale from 1 to 5."
    for response, answer, off in (
        ("4", "4", 0),
        ("4/5", "4", 0),
        ("**Score: 3**", "3", 1),
        ("The score is 2.", "2", 2),
        ("3.5", None, None),
        ("3 or 4", None, None),
        ("It looks plausible.", None, None),
    ):
        read = answers.verdict(question, "4", response)
        assert (read.type, read.answer, read.correct) == ("ordinal", answer, answer == "4"), (
            response
        )
        assert read.parts == (None if off is None else {"off": off})


def test_rewards_pay_what_is_scored():
    gt = json.dumps(BOXES)
    assert rewards.correct("", gt, json.dumps(BOXES[:1])) == pytest.approx(2 / 3)
    assert rewards.correct("", gt, gt[:-1]) == 0


def brute(weights) -> float:
    rows, columns = len(weights), len(weights[0])
    if rows > columns:
        weights, rows, columns = list(zip(*weights, strict=True)), columns, rows
    return max(
        sum(weights[number][place] for number, place in enumerate(order))
        for order in permutations(range(columns), rows)
    )


def test_the_assignment_is_the_best_of_all():
    draw = random.Random(3)
    for _ in range(300):
        rows, columns = draw.randint(1, 6), draw.randint(1, 6)
        weights = [
            [draw.choice([0, draw.random(), 0.5]) for _ in range(columns)] for _ in range(rows)
        ]
        pairs = matching.assigned(weights)
        assert len({one for one, _ in pairs}) == len({two for _, two in pairs}) == len(pairs)
        assert all(weights[one][two] > 0 for one, two in pairs)
        total = sum(weights[one][two] for one, two in pairs)
        assert total == pytest.approx(brute(weights))


def frechet_by_definition(one, other) -> float:
    """Over all walks, by recursion."""
    here = math.dist(one[-1], other[-1])
    if len(one) == len(other) == 1:
        return here
    before = []
    if len(one) > 1:
        before.append(frechet_by_definition(one[:-1], other))
    if len(other) > 1:
        before.append(frechet_by_definition(one, other[:-1]))
    if len(one) > 1 and len(other) > 1:
        before.append(frechet_by_definition(one[:-1], other[:-1]))
    return max(here, min(before))


def test_frechet_is_its_definition():
    draw = random.Random(5)
    for _ in range(60):
        one, other = (
            [(draw.random(), draw.random()) for _ in range(draw.randint(1, 6))] for _ in range(2)
        )
        assert matching.frechet(one, other) == pytest.approx(frechet_by_definition(one, other))


def test_sets_are_rows_like_others_and_measures_are_in_the_metrics(tmp_path):
    grade = "Rate its plausibility on a scale from 1 to 5."
    rows = [
        row("a", TEXT, TEXT, question="List them."),
        row("b", TEXT, TEXT[:-1], question="List them."),
        row("c", "4", "3", question=grade),
        row("d", "2", "2", question=grade),
        row("e", "5", "1", question=grade),
        row("f", "5", "well", question=grade),
    ]
    file = write(tmp_path / "results.json", rows)
    code, document = score(file, "--write")
    run = document["result"]["runs"][0]
    assert code == 0 and run["accuracy"] == pytest.approx(2 / 6, abs=1e-6)
    assert run["per_type"]["events"]["unparseable"] == 1
    assert run["parts"]["events"]["f1@0.5"] == 0.5 and run["parts"]["events"]["order"] == 1
    grades = run["parts"]["ordinal"]
    assert (grades["rows"], grades["measured"], grades["within_one"]) == (4, 3, 0.5)
    assert grades["mae"] == pytest.approx(5 / 3, abs=1e-6)
    metrics_of(tmp_path)
    _, explained = score(file, "--explain", "a")
    assert explained["result"]["row"]["parts"]["f1@0.5"] == 1


@pytest.mark.parametrize(
    ("flag", "said", "meant"),
    [
        ("pixels", (200, 100), (1000, 1000)),
        ("1000", (1000, 1000), (200, 100)),
        ("1", (1, 1), (1000, 1000)),
        ("1:pixels", (1, 1), (200, 100)),
        ("pixels:1", (200, 100), (1, 1)),
        ("1000:1", (1000, 1000), (1, 1)),
    ],
)
def test_another_measure_of_the_picture_is_declared(tmp_path, flag, said, meant):
    Image.new("RGB", (200, 100)).save(tmp_path / "shown.png")

    def boxes(sides):
        at = [share * sides[place % 2] for place, share in enumerate((0.1, 0.2, 0.5, 0.75))]
        return json.dumps([{"bbox_2d": at, "label": name} for name in "ab"])

    rows = [row("a", boxes(meant), boxes(said), question="Boxes?", media="shown.png")]
    file = write(tmp_path / "results.json", rows)
    write(tmp_path / "evaluation.json", {"media_dir": str(tmp_path)})
    _, document = score(file, "--boxes", flag)
    assert document["result"]["runs"][0]["accuracy"] == 1, ids(document)
    assert run_of(file)["accuracy"] == 0
