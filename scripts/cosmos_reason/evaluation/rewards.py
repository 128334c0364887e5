"""Rewards of reinforcement learning: what each name in train.train_policy.reward_function pays.

A reward is a pure function of a question, its ground truth and a response. "correct" is what the
scorer calls correct: the same reading of the same response, in training and in evaluation.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
import runpy
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.base.findings import Failure, bad_input, did_you_mean

Reward = Callable[[str, str, str], float]

OWN_FUNCTION = "reward"  # what a file of one's own defines
SHOWN = 80  # characters of a response
CALLED_WITH = ("question", "gt", "response")
# What rewards of TRL, cosmos-rl and verl are called with.
OF_OTHERS = {
    *("completions", "completion", "prompts", "to_be_evaluated", "data_source", "solution_str")
}
THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>(?P<rest>.*)", re.S)
ANSWER = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.S)
MARK = re.compile(r"</?(?:think|answer)>")


def correct(question: str, gt: str, response: str) -> float:
    """Return 1 for a right answer of any type, the overlap for a span or a box, else 0."""
    return answers.reward(question, gt, response)


def form(question: str, gt: str, response: str) -> float:
    """Return 1 for thinking between its marks and an answer after it, plain or between marks of its
    own."""
    found = THOUGHT.fullmatch(response.strip())
    if found is None:
        return 0.0
    parts = [found["thought"].strip(), found["rest"].strip()]
    marked = ANSWER.fullmatch(parts[1])
    if marked:
        parts[1] = marked["answer"].strip()
    return float(all(part and not MARK.search(part) for part in parts))


def length(tokens: int, most: int, buffer: int, penalty: float) -> float:
    """Return 0 until `buffer` tokens before the longest response, then down to -penalty at its
    end."""
    over = tokens - (most - buffer)
    return min(-over / buffer * penalty, 0.0)


REWARDS: dict[str, Reward] = {"correct": correct, "single_choice": correct, "format": form}
LENGTH = "overlong"  # needs the tokenizer: see Payer


def is_file(name: str) -> bool:
    """Return whether the name of a reward is that of a Python file."""
    return name.endswith(".py")


def check(name: str) -> None:
    """Raise Failure for a name that pays nothing, and for a file that is not there, is no Python
    or does not define its function. The file is not run: it may need what only a training has."""
    if name in REWARDS or name == LENGTH:
        return
    if not is_file(name):
        known = [*REWARDS, LENGTH]
        message = f"got {name!r}, expected {', '.join(known)} or a file that ends in .py."
        key = "train.train_policy.reward_function"
        raise bad_input("REWARD-NAME", key, message + did_you_mean(name, known))
    if not Path(name).is_file():
        raise bad_input("REWARD-FILE", name, "there is no such file")
    try:
        parsed = ast.parse(Path(name).read_bytes(), name)
    except (SyntaxError, ValueError) as problem:
        raise bad_input("REWARD-FILE", name, f"it is no Python: {problem}") from problem
    found = defaultdict(list)
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef):
            found[node.name].append(node)
        elif isinstance(node, ast.alias):
            found[node.asname or node.name].append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id].append(node)
    if OWN_FUNCTION not in found:
        raise _without_function(name)
    for number, unknown in _undefined(parsed, found.keys()):
        raise bad_input("REWARD-FILE", name, f"line {number}: {unknown} is defined nowhere")
    only = found[OWN_FUNCTION][0]
    is_plain = len(found[OWN_FUNCTION]) == 1 and isinstance(only, ast.FunctionDef)
    if is_plain and not only.decorator_list:
        _check_called(name, only)


def _check_called(name: str, function: ast.FunctionDef) -> None:
    """Raise Failure for a function that does not take three texts, or takes what another
    trainer's rewards do."""
    written = ast.unparse(function.args)
    taken = function.args
    places = [*taken.posonlyargs, *taken.args]
    needed = len(places) - len(taken.defaults)
    needed_by_name = [default for default in taken.kw_defaults if default is None]
    takes_three = needed <= len(CALLED_WITH) and (
        taken.vararg is not None or len(places) >= len(CALLED_WITH)
    )
    foreign = OF_OTHERS & {one.arg for one in places}
    if takes_three and not needed_by_name and not foreign:
        return
    message = f"got {OWN_FUNCTION}({written}), expected {OWN_FUNCTION}({', '.join(CALLED_WITH)})"
    if foreign:
        message += f"; {', '.join(sorted(foreign))} is what another trainer calls it with"
    raise bad_input("REWARD-FILE", name, message)


def _undefined(parsed: ast.Module, defined: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of the names that a file uses and mentions nowhere else; none where it
    imports whatever a module has."""
    nodes = [*ast.walk(parsed)]
    known = {*defined, *dir(builtins), "__file__", "__name__", "__doc__"}
    for node in nodes:
        if isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ClassDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            known.add(node.name)
        elif isinstance(node, ast.Import):
            known |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            known.add(node.rest if isinstance(node, ast.MatchMapping) else node.name)
    if "*" in known:
        return
    used = [node for node in nodes if isinstance(node, ast.Name)]
    for node in sorted(used, key=lambda node: node.lineno):
        if node.id not in known:
            yield node.lineno, node.id


def load(name: str) -> Reward:
    """Return the reward of a name, or of a Python file that defines `reward(question, gt,
    response)`. Raises Failure."""
    check(name)
    if name in REWARDS:
        return REWARDS[name]
    try:
        found = runpy.run_path(name).get(OWN_FUNCTION)
    except Exception as problem:
        raise _broken(name, problem) from problem
    if not callable(found):
        raise _without_function(name)
    return found


class Payer:
    """Sums the rewards of a spec's train_policy, each times its weight.

    `count` gives the tokens of a text; it is only asked when the length is paid for.
    """

    def __init__(self, policy: dict, most: int, count: Callable[[str], int]):
        self.policy, self.most, self.count = policy, most, count
        self.weights = weights(policy["reward_function"])
        self.rewards = {name: load(name) for name in self.weights if name != LENGTH}

    def parts(self, question: str, gt: str, response: str) -> dict[str, float]:
        """Return what each name pays, before its weight. Raises Failure when a file of one's own
        fails."""
        paid = {}
        for name in self.weights:
            if name == LENGTH:
                table = self.policy["overlong_reward"]
                limits = table["buffer_length"], table["penalty_factor"]
                paid[name] = length(self.count(response), self.most, *limits)
                continue
            try:
                value = self.rewards[name](question, gt, response)
            except Exception as problem:
                raise _broken(name, problem) from problem
            try:
                paid[name] = float(value)
            except (TypeError, ValueError):
                paid[name] = math.nan
            except OverflowError:  # an integer, whose digits Python may refuse to write as well
                value = paid[name] = math.inf
            # One NaN makes the advantages of its group NaN, then all weights.
            if not math.isfinite(paid[name]):
                shown = f"it returned {value!r} for the response {response[:SHOWN]!r}"
                message = f"{shown}, expected a finite number for every response"
                raise bad_input("REWARD-FILE-RAISES", name, message)
        return paid

    def total(self, parts: dict[str, float]) -> float:
        return sum(self.weights[name] * value for name, value in parts.items())


def weights(written: str | list[str] | dict[str, float]) -> dict[str, float]:
    """Return the names of a spec's reward_function and their weights."""
    if isinstance(written, dict):
        return dict(written)
    names = [written] if isinstance(written, str) else written
    return dict.fromkeys(names, 1.0)


def reference(question: str, gt: str) -> str:
    """Return what travels with a prompt; `question_and_truth` reads it."""
    return json.dumps([question, gt], ensure_ascii=False)


def question_and_truth(written: str) -> tuple[str, str]:
    question, gt = json.loads(written)
    return question, gt


def _without_function(name: str) -> Failure:
    message = f"it has no function {OWN_FUNCTION}({', '.join(CALLED_WITH)})"
    return bad_input("REWARD-FILE", name, message)


def _broken(name: str, problem: Exception) -> Failure:
    stack = traceback.extract_tb(problem.__traceback__)
    lines = [frame for frame in stack if frame.filename == name]
    where = f"line {lines[-1].lineno} ({lines[-1].line}) " if lines else ""
    message = f"{where or 'it '}raised {type(problem).__name__}: {problem}"
    return bad_input("REWARD-FILE-RAISES", name, message, f"python {name}")
