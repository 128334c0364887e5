"""Answers: a labelled set of realistic responses, and what holds for any text."""

import json
import time
from decimal import Decimal

import answer_set
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason import answers

TURN = (
    "What does the vehicle do?\n(A) turn left\n(B) turn right\n(C) go straight\n(D) stop\n"
    "Answer with the option's letter from the given choices directly."
)
QUESTIONS = {
    "turn": TURN,
    "longest": "What happens?\nA. The light turns on\nB. The light turns on then off",
    "bool": "Does the car stop? A. Yes B. No Please answer with the letter.",
    "none": "Which of the regions marked A to H holds the defect?",
    "ask": "Is there a collision? Answer yes or no.",
    "way": "Which way does the vehicle go?",
    "many": "How many cars are there?",
    "inspect": "Is the part good?",
    "tell": "Describe the video.",
    "when": "When does the door open?",
    "where": "Give the box of the forklift.",
}
ROWS = answer_set.read()


def read(question: str, gt: str, response: str, **more) -> answers.Verdict:
    return answers.verdict(QUESTIONS.get(question, question), gt, response, **more)


# -- the labelled set --


def test_the_set_is_long_enough_to_mean_something():
    assert sum(row.half == "dev" for row in ROWS) >= 2_500
    assert sum(row.half == "heldout" for row in ROWS) >= 1_000
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("half", answer_set.HALVES)
def test_no_more_is_misjudged_or_unread_than_before(half):
    found = answer_set.tally([row for row in ROWS if row.half == half], answer_set.ours)
    assert found.accepted_wrong <= 0.001 and found.misread <= 0.001, found.differing
    assert found.unread <= 0.45


@pytest.mark.parametrize(
    ("name", "agreement"), [("a", 0.95), ("b", 0.97), ("c", 0.89), ("d", 0.93), ("e", 0.82)]
)
def test_answers_written_from_the_page_are_read_as_it_says(name, agreement):
    found = answer_set.tally_blind(answer_set.blind(name))
    assert found.accepted_wrong <= 0.005 and found.misread <= 0.003, found.differing
    assert found.committed >= 0.99 and found.agreement >= agreement, found.differing


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Yes, I can help with that! Please upload the video.", None),
        ("Yes. I'll help you with this.", None),
        ("Yes, please provide the video.", None),
        ("Yes. Let me know if you need more.", "yes"),
        ("Yes, the man can help with that box.", "yes"),
    ],
)
def test_an_offer_instead_of_an_answer_takes_it_back(response, answer):
    assert read("ask", "yes", response).answer == answer


HELMETS = "How many people wear helmets?"
CHOICE = "Which tool?\n(A) hammer\n(B) saw\n(C) drill"


@pytest.mark.parametrize(
    ("question", "gt", "response", "answer"),
    [
        (CHOICE, "A", "✅ **Answer: A**", "A"),
        (CHOICE, "A", "✓ A", "A"),
        (CHOICE, "A", "✗ A", None),
        (CHOICE, "A", "<answer>{A}</answer>", "A"),
        (CHOICE, "B", "The only right option is B.", "B"),
        (CHOICE, "B", "B.\nNo other tool is shown.", "B"),
        (CHOICE, "B", "B.\nNo, C.", None),
        ("Does it stop?", "no", "No. It slowed but never stopped.", "no"),
        ("Does it stop?", "no", "No, but it slowed.", None),
        ("Does it stop?", "no", "The wheels turn all the time. So, no.", "no"),
        ("Does it stop?", "no", "The wheels turn. So no car stops.", None),
        ("How many cars are there?", "2", "The answer is 2: one red, one blue.", "2"),
        (HELMETS, "3", "The answer is 3 people, two men and a woman.", "3"),
        (HELMETS, "3", "The answer is 3 people, 4 people.", None),
        (HELMETS, "3", "The answer is 3, 4 would be too many.", None),
        (HELMETS, "3", "The time is 3.", None),
        ("How long does it take?", "5 s", "The time is 5 seconds, 6 seconds.", None),
        ("Which way does it go?", "right", "Right! Let me analyze the clip.", None),
        ("Which way does it go?", "right", "Right! I'll review the frames.", None),
    ],
)
def test_what_stands_beside_an_answer_may_undo_it(question, gt, response, answer):
    assert read(question, gt, response).answer == answer


WRONG_WAY = "Is wrong-way driving visible?"
EVENT = "What happens?\nA. Theft\nB. Fight\nC. Fire"
PEOPLE = "How many people are there?"


@pytest.mark.parametrize(
    ("question", "answer", "response"),
    [
        (WRONG_WAY, "no", "No. No wrong behaviour is visible."),
        (WRONG_WAY, "no", "**No.** No wrong-way driving is visible."),
        (
            WRONG_WAY,
            "no",
            "No. The worker follows the rules. No incorrect lifting technique is shown.",
        ),
        (WRONG_WAY, "yes", "Yes. Yes, wrong-way driving is visible."),
        (WRONG_WAY, "yes", "Yes. Wrong-way driving is visible."),
        (EVENT, "A", "A. Theft\nA false alarm is heard."),
        (EVENT, "A", "The answer is A. A false fire alarm distracts the guard."),
        (EVENT, "A", "(A) A wrong-way driver enters the road. A wrong turn comes later."),
        (EVENT, "A", "<answer>A</answer>\nA wrong-way driver enters the road."),
        (WRONG_WAY, "yes", "<answer>yes</answer>\nIncorrect lifting is shown."),
        (WRONG_WAY, "no", "I do not see a forklift <answer>no</answer>"),
        (WRONG_WAY, "no", "I do not see a forklift \\boxed{no}"),
        (WRONG_WAY, "no", 'The worker is not wearing a helmet {"answer": "no"}'),
        (WRONG_WAY, "no", "It does not: <answer>no</answer>"),
        (WRONG_WAY, "no", "False. <answer>no</answer>"),
        (WRONG_WAY, "no", "False: <answer>no</answer>"),
        (WRONG_WAY, "no", "The technique is not correct <answer>no</answer>"),
        (WRONG_WAY, "no", "The car does not stop so the answer is <answer>no</answer>"),
        (WRONG_WAY, "no", "The worker might fall, so the answer is <answer>no</answer>"),
        (EVENT, "A", "The car does not stop at the line <answer>A</answer>"),
        (EVENT, "A", "It is not B, it is <answer>A</answer>"),
        (EVENT, "A", "A worker asks for help <answer>A</answer>"),
        (EVENT, "A", "<answer>A</answer> A worker asks for help."),
        (PEOPLE, "3", "There could be 3 people: <answer>3</answer>"),
        (PEOPLE, "2", "<answer>2</answer> A false alarm rings."),
    ],
)
def test_what_is_said_of_something_else_takes_no_answer_back(question, answer, response):
    assert read(question, answer, response).answer == answer


@pytest.mark.parametrize(
    "response",
    [
        "The answer is B. The answer is not B.",
        "B. B is wrong.",
        "B. B wrong.",
        "B.\nWrong answer.",
        "It is not <answer>B</answer>",
        "It is not `<answer>B</answer>`",
        "I do not think that it is <answer>B</answer>",
        "It is not true that the answer is <answer>B</answer>",
        "It cannot be <answer>B</answer>",
        "The answer is not: <answer>B</answer>",
        "The answer is not \\boxed{B}",
        'It is not {"answer": "B"}',
        "Wrong: <answer>B</answer>",
        "Maybe: <answer>B</answer>",
        "It might be <answer>B</answer>",
        "It could well be <answer>B</answer>",
        "I'm not sure but <answer>B</answer>",
        "I'm not sure, so the answer is <answer>B</answer>",
        "It is not correct to answer <answer>B</answer>",
        "Not necessarily <answer>B</answer>",
        "The answer could be <answer>B</answer>",
        "He says it is <answer>B</answer>",
        "According to him, it is <answer>B</answer>",
        "If it burns, it is <answer>B</answer>",
        "It is <answer>B</answer> that I exclude",
        "<answer>B</answer> is wrong.",
        "<answer>B</answer> (incorrect)",
        "<answer>B</answer> not the answer.",
        "<answer>B</answer>, he says.",
        "<answer>B</answer>?",
        "<answer>B</answer> Wait, it's C.",
        '{"answer": "B"} Wrong.',
        "They told me it is <answer>B</answer>",
        "According to the sign it is <answer>B</answer>",
        "It is unlikely to be <answer>B</answer>",
        "Anything but <answer>B</answer>",
        "Instead of \\boxed{B}",
        "An incorrect answer would be <answer>B</answer>",
        "<answer>B</answer>, they claim",
        "<answer>B</answer>, perhaps",
        "<answer>B</answer> maybe",
        "<answer>B</answer> quite possibly",
        "<answer>B</answer>, my best guess",
        "\\boxed{B} (I guess)",
        "<answer>B</answer> it may be",
        "<answer>B</answer> might be right.",
        "<answer>B</answer> cannot be right.",
        "<answer>B</answer> can be excluded",
        "<answer>B</answer> It is C.",
    ],
)
def test_what_is_said_of_the_answer_takes_it_back(response):
    assert read(EVENT, "B", response).answer is None


@pytest.mark.parametrize("name", ["hostile", "hostile_2", "hostile_3"])
def test_no_hostile_answer_is_right(name):
    assert answer_set.tally_blind(answer_set.hostile(name)).accepted_wrong == 0


@pytest.mark.parametrize(
    ("question", "response", "is_right"),
    [
        ("How fast is the car, in kilometers per hour?", "72 km/h", True),
        ("How fast is the car, in kilometers per hour?", "72 mph", False),
        ("What is the speed (miles per hour)?", "72 mph", True),
        ("What heart rate is shown, in beats per minute?", "72 bpm", True),
        ("What heart rate is shown?", "72 bpm", True),
        ("Please rate the match from 1 to 100.", "72 bpm", False),
    ],
)
def test_a_unit_that_the_question_asks_for_is_the_one_meant(question, response, is_right):
    assert answers.verdict(question, "72", response, "number").correct is is_right


def test_thinking_before_a_response_changes_nothing():
    before = "<think>It might be B, or no, or right, or 7, or snow. The answer is A.</think>\n\n"
    changed = []
    for row in ROWS:
        if not row.response.strip() or any(
            sign in row.response for sign in ("think", "thought", "THINK", "[")
        ):
            continue
        plain, thought = (
            answer_set.verdict(row._replace(response=said))
            for said in (row.response, before + row.response)
        )
        if (plain.answer, plain.correct) != (thought.answer, thought.correct):
            changed.append((row.id, plain.answer, thought.answer))
    assert not changed


# -- what the reader promises --


SEEN = "What is seen?\n(A) car\n(B) pedestrian\n(C) lifting a box\n(D) bottle"
CUP = "What is held?\nA. blue plate\nB. red cup"
COMMITTED = [
    ("turn", "B", "b"),
    ("turn", "B", "(B) turn right"),
    ("turn", "B", "**B. turn right**\n\nExplanation: option A is wrong, the blinker is on."),
    ("turn", "B", "The blinker is on the right.\n\nTherefore, the correct answer is: **(B)**."),
    ("turn", "B", "<think>Perhaps A.</think>\n\n<answer>B. turn right</answer>"),
    ("turn", "B", "<think>Perhaps A.</think><answer>B"),
    ("turn", "B", "So the answer is $\\boxed{\\text{B}}$."),
    ("turn", "B", '```json\n{"reason": "A is far", "answer": "B"}\n```'),
    ("turn", "B", "I'd go with option B because A is far."),
    ("turn", "B", "turn right (B)"),
    ("turn", "B", "I first thought <answer>B</answer>, but looked again. <answer>B</answer>"),
    ("turn", "B", '{"reason": "A is not right, maybe C", "answer": "B"}'),
    ("turn", "B", "It may turn left, but the blinker is right.\n<answer>B</answer>"),
    ("turn", "B", "B is the best option."),
    ("turn", "B", "The answer is B. Turn right. The blinker is on."),
    ("turn", "B", "根据视频，答案是B。"),
    ("turn", "B", "La respuesta correcta es la B."),
    ("longest", "B", "The light turns on then off."),
    ("ask", "yes", "Based on the video, yes, it hits the van."),
    ("ask", "no", "No, there is no collision. Nothing is damaged."),
    ("ask", "no", "The final answer is no."),
    ("ask", "yes", "是的，两车相撞。"),
    ("many", "150", "One hundred and fifty cars."),
    ("many", "3", "Total number of cars: 3"),
    ("many", "3", "\\boxed{3 \\text{ cars}}"),
    ("How far is it?", "12 m", "The distance is 1,200 cm."),
    ("way", "left", "Turning left."),
    ("when", "3s - 7.5s", "The given query happens in 3.0 - 7.5 seconds."),
    ("when", "3s - 7.5s", '{"start": "00:03", "end": "00:07.5"}'),
    (
        "where",
        "[1, 2, 30, 40]",
        'Here:\n```json\n[{"bbox_2d": [1, 2, 30, 40], "label": "car"}]\n```',
    ),
    ("What does it carry?", "a red box", "The answer is red box."),
    (CUP, "A", "a (blue plate)"),
    (CUP, "A", "a (because it is blue)"),
    # Behind a letter an option's word in another ending explains.
    (SEEN, "B", "B. Pedestrians are crossing the road."),
    (SEEN, "B", "<answer>B. Pedestrians cross.</answer>"),
    (SEEN, "B", "The answer is B. Cars are waiting."),
    (SEEN, "B", "B) Bottles fall from the shelf"),
    (SEEN, "B", "B. Lifts a box from the floor."),
    (SEEN, "C", "C. Lifts a box."),
    # What stands beside an enclosure and may be is something else.
    ("turn", "B", "<answer>B</answer><reason>The car may stop</reason>"),
    ("turn", "B", "<answer>B</answer> - the car might be slow"),
    ("turn", "B", "\\boxed{B} (the car may also slow down)"),
    ("turn", "B", "\\boxed{B}: the car could not go elsewhere"),
    ("turn", "B", '{"result": {"answer": "B"}, "note": "perhaps"}'),
    ("How long does it last?", "2.5 seconds", "two and a half seconds"),
    ("How long does it last?", "2.5 seconds", "It lasts two and a half seconds."),
    ("How long does it last?", "2.5 seconds", "<answer>2 and a half</answer>"),
]


@pytest.mark.parametrize(("question", "gt", "response"), COMMITTED)
def test_what_commits_is_read(question, gt, response):
    assert read(question, gt, response).correct


UNREAD = [
    ("turn", "A", "A. turn left: no\nB. turn right: no\nC. go straight: yes\nD. stop: no"),
    ("turn", "A", "A. Turn left is not possible here. The vehicle turns right."),
    ("turn", "A", "The answer is A. Turn left is not possible here."),
    ("turn", "A", "So A. Turn right is closed."),
    (SEEN, "B", "B. Cars."),
    (CUP, "A", "a (red) cup"),
    (CUP, "A", "The answer is a (red) cup"),
    (SEEN, "B", "B. Lifting a box is not seen."),
    ("turn", "A", "(A) turn left\n(B) turn right\n(C) go straight\n(D) stop"),
    ("turn", "A", "The truck turns left."),
    ("turn", "A", "A is less likely than C."),
    ("turn", "A", "不是A"),
    ("turn", "A", "<thinking>The answer is A"),
    ("turn", "A", "A car turns."),
    ("ask", "no", "No idea"),
    ("ask", "no", "No collision is visible."),
    ("ask", "yes", "The answer is: no collision"),
    ("Is it safe to proceed?", "no", "It is unsafe to proceed."),
    ("many", "12", "12 to 15"),
    ("many", "12", "at least 12"),
    ("many", "12", "12th"),
    ("many", "3", "Drei"),
    ("many", "2", "2 cars were stolen."),
    ("when", "3s - 7.5s", "The event never happens between 3 and 7.5 seconds."),
]


@pytest.mark.parametrize(("question", "gt", "response"), UNREAD)
def test_what_does_not_commit_is_unread(question, gt, response):
    found = read(question, gt, response)
    assert (found.answer, found.correct) == (None, False)


WEATHER, COLOUR = "What is the weather?", "What color is the light behind the white truck?"
SNOW = "What weather is there?"
LABELS = {
    WEATHER: ("rain", "snow"),
    SNOW: ("clear", "snow"),
    COLOUR: ("red", "green"),
    "Which object is left of the cup?": ("plate", "fork"),
    "Who pushes the man?": ("woman", "child"),
    "Which car does not stop?": ("red", "green"),
}


@pytest.mark.parametrize(
    ("question", "gt", "response"),
    [
        ("turn", "A", "The vehicle turns left."),
        ("turn", "C", "It goes straight."),
        ("longest", "B", "The light turns on then off."),
        (WEATHER, "rain", "The weather is rain."),
        (WEATHER, "rain", "Weather: rain"),
        (WEATHER, "rain", "In the video, the weather is rain. The road is wet."),
        (WEATHER, "rain", "<answer>The weather is rain.</answer>"),
        (COLOUR, "red", "The light is red."),
        (SNOW, "clear", "The weather is clear. There are snowy mountains."),
        ("Who pushes the man?", "woman", "The woman pushes the man."),
        (HELMETS, "4", "There are 4 people."),
        (HELMETS, "4", "Four people wear helmets."),
        (HELMETS, "4", "I can see 4 people wearing helmets in the clip."),
        ("many", "2", "2 cars are visible."),
        ("way", "left", "The vehicle goes left."),
        ("when", "3s - 7.5s", "The door opens from 3 s to 7.5 s."),
    ],
)
def test_a_question_said_again_commits(question, gt, response):
    labels = LABELS.get(question, ())
    found = read(question, gt, response, type="label" if labels else "auto", labels=labels)
    assert found.correct, found


@pytest.mark.parametrize(
    ("question", "gt", "response"),
    [
        ("turn", "A", "The vehicle does not turn left."),
        ("turn", "A", "The vehicle almost turns left."),
        ("turn", "A", "Does the vehicle turn left?"),
        ("turn", "A", "What does the vehicle do: turn left"),
        ("turn", "A", "The vehicle turns left or right."),
        ("turn", "A", "The vehicle could turn left."),
        ("turn", "A", "The vehicle turns left. Then it will turn right."),
        ("turn", "A", "The driver says the vehicle turns left."),
        ("turn", "B", "A: turn right"),
        ("Which object is left of the cup?", "plate", "The cup is left of the plate."),
        ("Who pushes the man?", "woman", "The man pushes the woman."),
        ("Which car does not stop?", "red", "The red car does stop."),
        (COLOUR, "red", "The truck is red."),
        (COLOUR, "red", "The light is never red."),
        (COLOUR, "red", "The light is red, not green."),
        (HELMETS, "4", "There are 4 people. 2 of them wear helmets."),
        (HELMETS, "4", "There are 4 people, but only two wear helmets."),
        (HELMETS, "4", "There are at least 4 people."),
        (HELMETS, "4", "There are 4 people without helmets."),
        (HELMETS, "4", "There are 4 to 6 people."),
        (HELMETS, "4", "Helmet 4"),
        ("way", "left", "The vehicle in the left lane goes."),
        ("way", "left", "It goes right. The vehicle goes left."),
        ("way", "left", "The vehicle goes left. That is wrong."),
        ("way", "left", "The vehicle goes left. I am not sure."),
        ("way", "left", "The vehicle goes left. However, this may be a mirror."),
    ],
)
def test_a_sentence_of_other_words_or_in_another_order_says_no_question_again(
    question, gt, response
):
    labels = LABELS.get(question, ())
    found = read(question, gt, response, type="label" if labels else "auto", labels=labels)
    assert not found.correct, found


CLOSED, HARD_HAT = "Is the door closed?", "Is the worker wearing a hard hat?"
LIGHT, LEFT, VESTS = "Is the light on?", "Does the car turn left?", "Are all workers in vests?"


@pytest.mark.parametrize(
    ("question", "response", "answer"),
    [
        (LIGHT, "The light is on.", "yes"),
        (LIGHT, "The light is not on.", "no"),
        (LIGHT, "The light isn't on.", "no"),
        (LIGHT, "In the video, the light is on. It blinks.", "yes"),
        (LIGHT, "<answer>The light is on.</answer>", "yes"),
        (LIGHT, "The light is off.", None),
        (LIGHT, "The light is red.", None),
        (LIGHT, "The light is.", None),
        ("Is the man in the car?", "The man in the car is", None),
        ("Could it be on?", "It could be on.", None),
        ("A?", "The light is on.", None),
        (LIGHT, "The light is not only on.", None),
        (LIGHT, "The light is on. It is not.", None),
        (LIGHT, "The light is on. The light is not on.", None),
        (LIGHT, "The light is on. He says so.", None),
        (LIGHT, "The light is on. The light is red.", None),
        (LIGHT, "The light is on. Later it is off.", None),
        (HARD_HAT, "The worker is wearing a hard hat. It is yellow.", "yes"),
        (HARD_HAT, "The worker is wearing a hard hat. The worker was bareheaded.", None),
        ("Is there a car?", "There is a car. It is red.", "yes"),
        (CLOSED, "The door is closed.", "yes"),
        (CLOSED, "The door is closing.", None),
        (CLOSED, "The door is closed. Later the door is open.", None),
        ("Is the truck loading?", "The truck is loaded.", None),
        ("Is the car stopping?", "The car is stopping.", "yes"),
        ("Are there buildings?", "There is a building.", "yes"),
        (LIGHT, "Is that so? The light is on.", None),
        (LIGHT, "It is not true: <answer>The light is on.</answer>", None),
        (LEFT, "The car turns left.", "yes"),
        (LEFT, "The car does turn left.", "yes"),
        (LEFT, "The car doesn't turn left.", "no"),
        (LEFT, "Left turns the car.", None),
        ("Can it stop?", "It cannot stop.", "no"),
        ("Can it stop or turn?", "It can stop or turn.", None),
        ("Is there a car?", "There is no car.", "no"),
        ("Is there any car in the video?", "There is a car.", "yes"),
        (VESTS, "All workers are in vests.", "yes"),
        (VESTS, "Workers are in vests.", None),
        (VESTS, "All workers are not in vests.", None),
        ("Is the car not moving?", "The car is not moving.", None),
    ],
)
def test_a_yes_no_question_said_again_whole_is_yes_and_denied_no(question, response, answer):
    assert answers.verdict(question, "yes", response, "yes_no").answer == answer


@pytest.mark.parametrize(
    ("labels", "response", "answer"),
    [
        (("Rain", "Snow"), "Rainy", "rain"),
        (("Rain", "Snow"), "It is snowing.", "snow"),
        (("Foggy", "Sunny"), "Fog", "foggy"),
        (("Foggy", "Sunny"), "sun", "sunny"),
        (("turn left", "stop"), "Turning left", "turn left"),
        (("turn left", "stop"), "The car stopped.", "stop"),
        (("open", "opening"), "opens", None),
        (("open", "opening"), "opening", "opening"),
        (("closing", "still"), "Closed.", None),
        (("closed", "open"), "It is closing.", None),
        (("bus", "car"), "Busy.", None),
        (("busy", "idle"), "Buses", None),
        (("none", "one"), "Non.", None),
        (("sit", "stand"), "site", None),
        (("sit", "stand"), "sitting", "sit"),
        (("feed", "stop"), "feeding", "feed"),
        (("Rain", "Snow"), "Rainfall", None),
        (("Rain", "Snow"), "Snowman", None),
        (("Rain", "Snow"), "Rain. It is snowing.", None),
        (("clear", "snow"), "Clear: snowy hills are visible", "clear"),
        (("clear", "snow"), "Clear: it is snowing", None),
        (("turn left", "stop"), "turn left (after stopping)", "turn left"),
        (("turn left", "stop"), "turn left (then it stops)", None),
        (("Rain", "Snow"), "Rain, I think.", "rain"),
        (("Rain", "Snow"), "Rain, I think, or snow.", None),
        (("Rain", "Snow"), "Rain, I think not.", None),
        (("Rain", "Snow"), "The lens is wet. It is rain.", "rain"),
        (("Rain", "Snow"), "I would classify this clip as rain.", "rain"),
        (("Rain", "Snow"), "I would not classify this clip as rain.", None),
    ],
)
def test_a_label_may_end_in_another_way(labels, response, answer):
    found = answers.verdict("What does the car do?", labels[0], response, "label", labels)
    assert found.answer == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("It is.", "yes"),
        ("Indeed it does.", "yes"),
        ("Absolutely!", "yes"),
        ("It isn't.", "no"),
        ("They do not.", "no"),
        ("Definitely not.", "no"),
        ("Not at all.", "no"),
        ("It is off.", None),
        ("The light is off. It is.", None),
        ("Definitely, no.", "no"),
        ("It should.", None),
    ],
)
def test_whole_responses_that_say_yes_or_no_without_the_word(response, answer):
    assert read("Is the light on?", "yes", response).answer == answer


@pytest.mark.parametrize(
    ("question", "gt", "response", "answer"),
    [
        (WEATHER, "rain", "Rain - the road is wet.", "rain"),
        (WEATHER, "rain", "Rain (drops on the lens)", "rain"),
        (WEATHER, "rain", "Rain: no. Snow: yes.", None),
        (WEATHER, "rain", "Rain: 10%, snow: 90%", None),
        (WEATHER, "rain", "Rain - definitely not.", None),
        (WEATHER, "rain", "Rain (0 % sure)", None),
        ("turn", "A", "The blinker is on, so it's A.", "A"),
        ("turn", "A", "The blinker is on, so not A.", None),
        ("turn", "A", "He says the blinker is on, so it's A.", None),
        ("turn", "A", "A fits best.", "A"),
        ("turn", "A", "Option A seems the most plausible.", "A"),
        ("turn", "A", "A seems likely to be wrong.", None),
        ("turn", "A", "It slows down, which corresponds to option A.", "A"),
        ("turn", "A", "Nothing matches option A.", None),
        ("turn", "A", "The video matches option A only in part.", None),
        ("turn", "A", "Here is my answer: A", "A"),
        ("turn", "A", "After careful consideration, the verdict is A.", "A"),
        ("turn", "A", "Правильный ответ: A", "A"),
        ("turn", "A", "Đáp án là A.", "A"),
        ("The score, 1 to 5?", "4", "I would rate it 4.", "4"),
        ("How long does it take?", "5 s", "The time is 5 s.", "5 s"),
        ("True or false: it stops.", "false", "The statement is false.", "no"),
    ],
)
def test_phrases_that_choose_an_answer(question, gt, response, answer):
    labels = LABELS.get(question, ())
    found = read(question, gt, response, type="label" if labels else "auto", labels=labels)
    assert found.answer == answer, found


def test_words_of_a_label_may_be_joined():
    for said in ("lane-change", "lane_change", "Lane change"):
        labels = ("lane_change", "overtaking")
        assert read("What is it?", "lane_change", said, type="label", labels=labels).correct


@pytest.mark.parametrize(
    ("question", "gt", "response"),
    [
        ("longest", "A", "The light turns on then off"),
        ("many", "2", "2 trucks"),
        ("How long does it take?", "3 s", "3 minutes"),
        ("How far is it?", "30 m", "30 feet"),
        ("What temperature is it?", "20 C", "20 F"),
        ("What does it cost?", "5 USD", "5 EUR"),
        ("What time is it?", "5 pm", "5 am"),
        ("Who pushes?", "The man pushes the woman", "The woman pushes the man"),
    ],
)
def test_another_value_is_read_and_wrong(question, gt, response):
    found = read(question, gt, response)
    assert found.answer and not found.correct


# What a policy could learn to write when words other than commitments paid. {x} is the right
# answer, {y} another one.
HOSTILE = """
The answer is not {x}.
I don't think the answer is {x}.
{x} is wrong.
{x}? No.
Is it {x}?
The answer is {x}?
Not {x}
Everyone says the answer is {x}.
The driver claims that the answer is {x}.
According to my friend, the answer is {x}.
"The answer is {x}", the passenger said.
You asked whether the answer is {x}.
If I had to guess, the answer is {x}.
The answer is {x} if it rains.
Suppose the answer is {x}.
Maybe {x}
It could be {x}.
The answer might be {x}.
The answer is {x}, or possibly {y}.
The answer is {x} or {y}.
The answer is either {x} or {y}.
The answer is neither {x} nor {y}.
{x} or {y}
{x}, {y}
{x} / {y}
{x} and {y}
{x}|{y}
{x}; {y}
{x}. Or {y}.
Some may say {x}, others {y}.
Answer: {x} ({y} is possible too)
Answer: {x} Answer: {y}
Final answer: {x} -- Final answer: {y}
<answer>{x}</answer><answer>{y}</answer>
<answer>{x} or {y}</answer>
<answer></answer> The answer is {x}.
<answer>unknown</answer> The answer is {x}.
The answer is {x}. <answer>{y}</answer>
\\boxed{{{x}}} \\boxed{{{y}}}
{{"answer": "{x}", "final_answer": "{y}"}}
The answer is {x}. Wait, the answer is {y}.
The answer is {x}. Actually, it is {y}.
The answer is {x}. On second thought, {y}.
The answer is {x}. Sorry, I meant {y}.
The answer is {x}. No, {y}.
The answer is {x}, but I am not sure.
The answer is {x}. However, it could also be {y}.
The answer is {x} though {y} fits better.
The answer is {x}. That is wrong.
The answer is {x}. Incorrect.
The answer is {x}. The answer is not {x}.
The answer is {x}. It isn't {x}.
The answer is {x}. Not {x}.
The answer is {x}. {x} is wrong.
The answer is {x}. The answer above is wrong.
{x}. {x} is not correct.
It is false that the answer is {x}.
Nobody would say that the answer is {x}.
The wrong answer is {x}.
The answer is anything except {x}.
I would never pick {x}.
{x} is the answer that people wrongly give.
It is not <answer>{x}</answer>
I don't think it is <answer>{x}</answer>.
<answer>{x}</answer> The answer is not {x}.
<answer>{x}</answer> That is wrong.
<answer>{x}</answer> Wait, it is {y}.
<answer>{x}</answer> or {y}
\\boxed{{{x}}}. That is wrong.
{{"answer": "{x}"}} Wrong.
It could be {{"reason": "seen", "answer": "{x}"}}
<think>The answer is {x}
<think>{x}</think>
<think>{x}</think><answer></answer>
{x} or maybe {y}
Either {x} or {y}.
Not {y}, so {x} or something else.
One of {x} and {y} is right.
{x} {y}
{x} {y} {x} {y} {x} {y}
{x}? {y}?
Perhaps {x}?
I cannot tell, maybe {x}.
I am not sure whether it is {x}.
It is not {x}.
<answer>{y}</answer><answer>{x}</answer>
{q}
You ask: {q}
{q} {q}
"""
OF_TYPES = {
    "mcq": (TURN, "A", "A", "B"),
    "option": (TURN, "A", "turn left", "turn right"),
    "yes": ("Is there a collision?", "yes", "yes", "no"),
    "no": ("Is there a collision?", "no", "no", "yes"),
    "number": ("How many cars are there?", "3", "3", "4"),
    "unit": ("How far is it?", "12 m", "12 m", "15 m"),
    "direction": ("Which way does it go?", "left", "left", "right"),
}


@pytest.mark.parametrize("kind", OF_TYPES)
def test_hedges_denials_reports_and_repeated_answers_earn_nothing(kind):
    question, gt, right, other = OF_TYPES[kind]
    frames = HOSTILE.strip().splitlines()
    completions = [line.format(x=right, y=other, q=question) for line in frames]
    completions += ["\n".join((right, other)), "word " * 2000, f"{right} {other} " * 500, ""]
    assert len(completions) >= 50
    paid = [said for said in completions if answers.reward(question, gt, said)]
    assert not paid
    long = (f"Well, the scene is {right}. " * 200).strip()
    assert answers.reward(question, gt, long) == 0


def test_every_reading_names_its_rule_and_its_words():
    found = read("turn", "B", "The blinker is on the right.\n\nThe answer is B. It does not stop.")
    assert (found.type, found.answer, found.rule, found.correct) == ("mcq", "B", "phrase", True)
    assert "B" in found.words
    assert read("turn", "B", "I cannot see the video.").rule == "refusal"
    assert read("turn", "B", "A, B").rule == "taken back"
    assert read("turn", "B", "A\nB").rule == "several answers"
    assert read("turn", "B", None).rule == "no response"


def test_spans_and_boxes_are_right_from_half_an_overlap():
    spans = [
        read("when", "10s-20s", said).overlap
        for said in ("00:10 to 00:20", "15s to 25s", "30 - 40 s", "soon")
    ]
    assert spans == pytest.approx([1, 1 / 3, 0, 0])
    box = read("where", "[0, 0, 10, 10]", '{"bbox_2d": [0, 0, 10, 5]}')
    assert (box.type, box.answer, box.overlap, box.correct) == ("box", "[0, 0, 10, 5]", 0.5, True)


def test_rewards_are_what_the_score_counts():
    assert answers.reward(TURN, "B", "It is B.") == 1.0
    assert answers.reward(TURN, "B", "It is A.") == 0.0
    assert answers.reward(TURN, "B", None) == 0.0
    assert answers.reward(QUESTIONS["when"], "10s-20s", "15s to 25s") == pytest.approx(1 / 3)


def test_what_is_remembered_of_one_question_is_not_taken_for_another():
    """Equal responses and ground truths, read by what each question counts, offers or may be."""
    counted = [read(f"How many {noun} are there?", "2", "2 cars") for noun in ("cars", "trucks")]
    assert [found.correct for found in counted] == [True, False]
    again = [
        read(f"How many {one} are there?", "2", "There are 2 cars.") for one in ("vans", "cars")
    ]
    assert [found.answer for found in again] == [None, "2"]
    offered = [
        read(f"What does it do?\nA. {first}\nB. {second}", "A", "turn left")
        for first, second in (("turn left", "stop"), ("stop", "turn left"))
    ]
    assert [found.answer for found in offered] == ["A", "B"]
    labelled = [
        read("What is it?", "red", "red", type="label", labels=labels)
        for labels in (("red", "green"), ("blue", "green"))
    ]
    assert [found.answer for found in labelled] == ["red", None]
    near = [read("How far is it?", "100", "101", tolerance=share) for share in (0.0, 0.1)]
    assert [found.correct for found in near] == [False, True]


# -- types and options --


@pytest.mark.parametrize(
    ("question", "gt", "expected"),
    [
        ("turn", "B", "mcq"),
        ("turn", "(C)", "mcq"),
        ("turn", "D. stop", "mcq"),
        ("turn", "turn left", "mcq"),
        ("bool", "Yes", "mcq"),
        ("none", "F", "mcq"),
        ("none", "B. the left lane", "mcq"),
        ("ask", "Yes", "yes_no"),
        ("ask", "No.", "yes_no"),
        ("ask", "true", "yes_no"),
        ("ask", "T", "yes_no"),
        ("ask", "F", "yes_no"),
        ("ask", "Yes, the car hits the van.", "yes_no"),
        ("ask", "<think>x</think><answer>Yes</answer>", "yes_no"),
        ("ask", "No car is visible in the scene.", "text"),
        ("way", "left", "direction"),
        ("way", "Straight", "direction"),
        ("way", "turning right", "direction"),
        ("way", "going straight", "direction"),
        ("way", "The left lane is closed.", "text"),
        ("many", "3", "number"),
        ("many", "-2.5", "number"),
        ("many", "12 m", "number"),
        ("many", "four", "number"),
        ("many", "three cars", "number"),
        ("many", "3 cars and 2 vans", "text"),
        ("many", "2:30", "text"),
        ("tell", "A car turns left.", "text"),
        ("tell", "From 2 to 5 seconds a red car turns left at the crossing and stops.", "text"),
        ("inspect", "NG", "text"),
        ("tell", "", "text"),
        ("when", "12.5s-15s", "temporal"),
        ("when", "00:12 to 00:15", "temporal"),
        ("when", '{"start": 12.5, "end": 15.0}', "temporal"),
        ("where", "[1, 2, 30, 40]", "box"),
        ("where", '[{"bbox_2d": [1, 2, 30, 40], "label": "forklift"}]', "box"),
    ],
)
def test_the_ground_truth_shows_the_type(question, gt, expected):
    assert answers.question_type(QUESTIONS[question], gt) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Pick.\nA. one\nB. two", {"A": "one", "B": "two"}),
        ("Pick. (A) one (B) two (C) three", {"A": "one", "B": "two", "C": "three"}),
        ("Pick. A) one\nB) two\nAnswer with a letter.", {"A": "one", "B": "two"}),
        ("Pick. A: one B: two Please answer with the letter.", {"A": "one", "B": "two"}),
        ("(a) one\n(b) two", {"A": "one", "B": "two"}),
        ("What do the U.S. roads show?", {}),
        ("A. only one", {}),
        ("Plan B. Then C. what?", {}),
        ("Pick.\n[A] one\n[B] two", {"A": "one", "B": "two"}),
        ("Pick.\nA - one\nB - two", {"A": "one", "B": "two"}),
        ("Pick. A、one B、two", {"A": "one", "B": "two"}),
        ("Pick. A．one B．two", {"A": "one", "B": "two"}),
        ("Pick. **A.** one **B.** two", {"A": "one", "B": "two"}),
        ("", {}),
    ],
)
def test_options_in_a_question(question, expected):
    assert answers.options(question) == expected


# -- what holds for any text --


@given(st.text(max_size=60), st.text(max_size=200), st.sampled_from(answers.TYPES))
def test_any_text_has_an_answer_of_its_type_or_none(question, response, kind):
    found = answers.reading_of(
        response, kind, question, ("ok", "ng") if kind == "label" else ()
    ).answer
    valid = {
        "mcq": lambda: len(found) == 1 and "A" <= found <= "Z",
        "yes_no": lambda: found in ("yes", "no"),
        "direction": lambda: found in ("left", "right", "straight", "up", "down"),
        "number": lambda: Decimal(found.split()[0]).is_finite(),
        "ordinal": lambda: Decimal(found).is_finite(),
        "temporal": lambda: found.count(",") == 1,
        "box": lambda: found.count(",") == 3,
        "label": lambda: found in ("ok", "ng"),
        "text": lambda: found and found in response,
    }
    valid |= dict.fromkeys(answers.SET_TYPES, lambda: isinstance(json.loads(found), list))
    assert found is None or valid[kind]()
    assert answers.question_type(question, response) in answers.TYPES


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9
    )
)
def test_a_number_is_read_back_whatever_way_it_is_written(value):
    for written in (f"{value}", f"{value:,}", f"The answer is {value}."):
        assert Decimal(answers.reading_of(written, "number").answer) == value


@given(st.sampled_from(answers.TYPES), st.text(max_size=80))
def test_an_answer_normalises_to_itself(kind, text):
    expected = answers.normalise(text, kind)
    if expected is not None and kind != "label":
        assert answers.equal(answers.reading_of(text, kind).answer, expected, kind)


def test_numbers_match_within_a_relative_tolerance():
    assert not answers.equal("101", "100", "number")
    assert answers.equal("101", "100", "number", 0.01)
    assert not answers.equal("101.1", "100", "number", 0.01)
    assert answers.equal("-99", "-100", "number", 0.01)
    assert not answers.equal("1", "0", "number", 0.5)


def test_numbers_match_in_any_unit_of_a_kind_and_without_one():
    assert answers.equal("3", "3 m", "number") and answers.equal("3 km", "3", "number")
    assert answers.equal("300 cm", "3 m", "number") and answers.equal("120 s", "2 min", "number")
    assert not answers.equal("3 km", "3 m", "number")
    assert not answers.equal("3 s", "3 m", "number", 0.5)


def test_a_ground_truth_may_be_the_text_of_an_option():
    assert answers.normalise("turn right", "mcq", TURN) == "B"
    assert answers.equal("A red CAR.", answers.normalise("a red car", "text"), "text")
    assert not answers.equal(None, "yes", "yes_no")


PIECES = [
    "A? ", "$1", "if, ", "scale from 1 (", ".", "A, ", "1 111 ", "n't ", "so ", " ", "\n",
    "</think>", "<think>", "\\boxed{", "[1, ", "0:01 to ", "A: no\n", "answer: A or ", "。", "one ",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_hostile_response_is_read_in_linear_time(piece):
    """100,000 characters each take a fraction of a second; what backtracks quadratically takes
    minutes."""
    response = "The answer is" + piece * (100_000 // len(piece)) + "hmm"
    for kind in answers.TYPES:
        began = time.process_time()
        answers.reading_of(response, kind, TURN, ("ok", "ng") if kind == "label" else ())
        assert time.process_time() - began < 5, kind
    began = time.process_time()
    assert answers.question_type(response, response) in answers.TYPES
    assert time.process_time() - began < 5


def test_an_option_without_a_word_is_read_by_its_letter_alone():
    """Before, it ended the scoring in a traceback."""
    question = "Which mark?\n(A) .\n(B) Two."
    said = {"A": "A", "(A)": "A", "Two.": "B", "B": "B"}
    for response, letter in said.items():
        assert answers.verdict(question, "A", response, "mcq").answer == letter
