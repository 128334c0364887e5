import pytest

from cosmos_reason import answers
from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import rewards

CHOICE = "Which way does it move?\nA. left\nB. right"
POLICY = {
    "reward_function": {"correct": 1.0, "format": 0.5},
    "overlong_reward": {"buffer_length": 10, "penalty_factor": 2.0},
}


@pytest.mark.parametrize(
    "question, gt, response, paid",
    [
        (CHOICE, "A", "<think>It goes left.</think>\n\n<answer>A</answer>", 1),
        (CHOICE, "A", "<think>Perhaps B.</think>\n\n(A) left", 1),
        (CHOICE, "A", "A or B", 0),
        ("Is it red?", "Yes", "<think>Red.</think>\n\nYes, it is.", 1),
        ("Is it red?", "Yes", "No", 0),
        ("What colour is it?", "red", "<answer>Red.</answer>", 1),
        ("When does it turn?", "[2, 4]", "[3, 5]", 1 / 3),
    ],
)
def test_correct_is_what_the_scorer_says(question, gt, response, paid):
    assert rewards.correct(question, gt, response) == pytest.approx(paid)
    verdict = answers.verdict(question, gt, response)
    if verdict.overlap is None:
        assert verdict.correct == bool(paid)


@pytest.mark.parametrize(
    "response, paid",
    [
        ("<think>\nSeen.\n</think>\n\n<answer>A</answer>", 1),
        ("<think>Seen.</think>\nA", 1),
        ("A", 0),
        ("<answer>A</answer>", 0),
        ("<think></think>A", 0),
        ("<think>Seen.</think>", 0),
        ("<think>Seen.</think><answer></answer>", 0),
        ("<think>Seen.<think>Again.</think>A", 0),
        ("First <think>Seen.</think>A", 0),
        ("<think>Seen.</think><answer>A</answer> and more", 0),
    ],
)
def test_form_wants_thinking_and_then_an_answer(response, paid):
    assert rewards.form(CHOICE, "A", response) == paid


def test_length_costs_nothing_until_the_buffer():
    assert rewards.length(90, 100, 10, 2.0) == 0
    assert rewards.length(95, 100, 10, 2.0) == -1.0
    assert rewards.length(100, 100, 10, 2.0) == -2.0


def test_rewards_are_summed_with_their_weights():
    payer = rewards.Payer(POLICY, 100, len)
    parts = payer.parts(CHOICE, "A", "<think>Left.</think>A")
    assert parts == {"correct": 1.0, "format": 1.0}
    assert payer.total(parts) == 1.5
    long = rewards.Payer(POLICY | {"reward_function": ["correct", "overlong"]}, 100, lambda _: 95)
    assert long.total(long.parts(CHOICE, "A", "A")) == 0.0


def test_a_file_of_ones_own_pays(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def reward(question, gt, response):\n    return len(response) / 10\n")
    payer = rewards.Payer(POLICY | {"reward_function": {str(own): 2.0}}, 100, len)
    assert payer.total(payer.parts("", "", "12345")) == 1.0


@pytest.mark.parametrize(
    "text, check",
    [
        (None, "REWARD-FILE"),
        ("x = 1\n", "REWARD-FILE"),
        ("1 / 0\nreward = max\n", "REWARD-FILE-RAISES"),
        ("def reward(question, gt, response):\n    return gt['a']\n", "REWARD-FILE-RAISES"),
        ("def reward(question, gt, response):\n    return None\n", "REWARD-FILE-RAISES"),
    ],
)
def test_a_file_that_cannot_pay_is_one_finding(tmp_path, text, check):
    own = tmp_path / "own.py"
    if text:
        own.write_text(text)
    with pytest.raises(Failure) as raised:
        rewards.Payer(POLICY | {"reward_function": str(own)}, 100, len).parts("q", "A", "A")
    assert [finding.id for finding in raised.value.findings] == [check]
    assert raised.value.findings[0].where == str(own)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(Failure, match=r"got 'formt'.*overlong.*Did you mean format"):
        rewards.load("formt")


def test_a_question_travels_with_its_truth():
    assert rewards.question_and_truth(rewards.reference('a "b"\n视', "C")) == ('a "b"\n视', "C")
