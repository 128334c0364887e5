"""How fast trainings and evaluations go on GPUs, from what was measured of a model of one size on
GPUs of one type (skill_info.yaml, measured_speed)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cosmos_reason.base import bundle

COMPILING_PAYS = 300  # seconds of training to come from which on compiling (80 s) pays
COSMOS_RL, EMBEDDED, COMPILED = "cosmos-rl", "embedded engine", "embedded engine, compiled"
ALIKE = 0.2  # by which the parameters of two models of one size differ
LONGER = 1.25  # times the longest records that were measured, beyond which the speed is another


def measured() -> dict:
    return bundle.skill_info()["measured_speed"]


def is_of_measured_size(billion: float) -> bool:
    """Return whether a model of so many billion parameters is as large as the one that was
    measured."""
    return abs(billion / measured()["parameters_billion"] - 1) <= ALIKE


def is_measured_gpu(name: str) -> bool:
    """Return whether what nvidia-smi calls a GPU is of the type that was measured."""
    return set(measured()["gpu"].split()) <= set(name.split())


def other_gpus(names: Iterable[str]) -> str:
    """Return what there is to say of GPUs that are not of the type that was measured."""
    others = sorted({name for name in names if not is_measured_gpu(name)})
    return f"; here it is {', '.join(others)}, which takes another time" if others else ""


def of_training(way: str, record_tokens: float, pass_tokens: float) -> tuple[float, float]:
    """Return (least, most) tokens a second of one GPU, by the mean tokens of a record and of a
    pass, drawn straight between the records that were measured."""
    table = measured()["training"][way]
    points = sorted(table["tokens_per_second"].items())
    least = _between(points, record_tokens, 0)
    most = _between(points, record_tokens, 1)
    fastest = pass_tokens / table["pass_seconds"]
    return min(least, fastest), min(most, fastest)


def of_answers(together: int, question_tokens: float, answer_tokens: float) -> float:
    """Return seconds of one GPU for so many questions asked together: all are read in one pass, and
    each token of the longest answer takes another."""
    table = measured()["evaluation"]
    reading = together * question_tokens / table["tokens_per_second"]
    answering = answer_tokens * table["answer_token_seconds"]
    return max(reading, table["pass_seconds"]) + answering


def of_each(gpus: int) -> float:
    """Return the part of its speed that each of several GPUs keeps; more than two were not
    measured."""
    return measured()["two_gpus"] / 2 if gpus > 1 else 1.0


def is_beyond_measured(way: str, record_tokens: float) -> bool:
    """Return whether records are longer than any that were measured, which makes each token
    slower."""
    return record_tokens > LONGER * max(measured()["training"][way]["tokens_per_second"])


def _between(points: list[tuple[int, list[float]]], tokens: float, which: int) -> float:
    if tokens <= points[0][0]:
        return points[0][1][which]
    for (left, before), (right, after) in itertools.pairwise(points):
        if tokens <= right:
            part = (tokens - left) / (right - left)
            return before[which] + (after[which] - before[which]) * part
    return points[-1][1][which]
