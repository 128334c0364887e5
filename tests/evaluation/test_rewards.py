from concurrent.futures import ProcessPoolExecutor

import pytest

from cosmos_reason import answers
from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import rewards
from cosmos_reason.spec import document

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
        ("def reward(*_):\n    return float('nan')\n", "REWARD-FILE-RAISES"),
        ("def reward(*_):\n    return float('-inf')\n", "REWARD-FILE-RAISES"),
        ("def reward(*_):\n    return 10**400\n", "REWARD-FILE-RAISES"),
        ("def reward(*_):\n    return 10**5000\n", "REWARD-FILE-RAISES"),  # which has no repr
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


MOVES = "Which way does the red circle move?\nA. left\nB. right\nC. up\nD. down"


def test_a_form_is_paid_where_it_is_asked_for_and_the_template_does_not_ask():
    wrong_in_form = "<think>Seen.</think><answer>A</answer>"
    for named, paid in ((["correct"], 0.0), (["correct", "format"], 1.0)):
        payer = rewards.Payer({"reward_function": named}, 100, len)
        assert payer.total(payer.parts(MOVES, "B", wrong_in_form)) == paid
    policy = document.template("grpo")["train"]["train_policy"]
    assert policy["reward_function"] == ["single_choice"]


def broken_file(tmp_path, body):
    path = tmp_path / "own.py"
    path.write_text(f"def reward(question, gt, response):\n{body}")
    return str(path)


def pays_nothing(path):
    rewards.Payer({"reward_function": [path]}, 100, len).parts(MOVES, "B", "")


def test_a_file_that_fails_while_it_pays_names_its_line_in_whatever_process(tmp_path):
    """cosmos-rl pays in processes of its own, whose exceptions travel."""
    path = broken_file(tmp_path, "    found = response.split()\n    return 1 / len(found)\n")
    with ProcessPoolExecutor(1) as pool:
        future = pool.submit(pays_nothing, path)
        with pytest.raises(Failure, match=r"line 3 \(return 1 / len\(found\)\) raised ZeroDiv"):
            future.result()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return 1.0 if gt in respons else 0.0\n", "line 2: respons is defined nowhere"),
        ("    return (1.0\n", "(own.py, line 2)"),
        ("    import re\n    return re.match(gt, response) and len(question) * 1.0\n", ""),
        ("    match response:\n        case [*rest]:\n            return len(rest)\n", ""),
    ],
)
def test_an_error_that_shows_in_the_text_of_a_file_names_its_line_before_a_launch(
    tmp_path, monkeypatch, body, said
):
    broken_file(tmp_path, body)
    monkeypatch.chdir(tmp_path)
    if not said:
        rewards.check("own.py")
        return
    with pytest.raises(Failure) as failed:
        rewards.check("own.py")
    assert said in failed.value.findings[0].message
