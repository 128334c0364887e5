"""How long an evaluation by the embedded engine will take on GPUs, from what was measured
elsewhere: nobody knows how long answers get, so it is a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from cosmos_reason.base.findings import Failure
from cosmos_reason.estimate import gpu_memory, speed
from cosmos_reason.jobs import run_time
from cosmos_reason.jobs.platforms import local
from cosmos_reason.jobs.record import Job
from cosmos_reason.jobs.run_time import MEASURED, Cost
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document


def of_plan(job: Job, spec: Path) -> Cost | None:
    """That of a planned job, whose GPUs are asked for their names where that is this machine; None
    where it is none of the embedded engine on GPUs, or of several checkpoints."""
    several = len(job.options.get("checkpoints") or ()) > 1
    if job.engine != "transformers" or "endpoint" in job.options or several:
        return None
    gpu_ids = job.resources["gpu_ids"]
    is_here = job.platform == "local"
    names = local.gpu_names(gpu_ids) if is_here else []
    if gpu_ids == [] or (is_here and not names):
        return None
    case = run_time.case_of(job.engine, document.load(spec), spec, job.action)
    return predict(case, case.needed_gpus, names)


def predict(case: Case, gpus: int, gpu_names: Sequence[str] = ()) -> Cost | None:
    """What an evaluation costs on so many GPUs; None where nothing is known of its questions, or of
    the speed. `gpu_names` as nvidia-smi writes them, where it was asked."""
    questions = _questions(case)
    if not gpus or not questions or not _is_measured(case):
        return None
    asked = math.ceil(questions / gpus)
    mean = fmean(record.total for record in case.tokens)
    table = speed.measured()["evaluation"]
    longest = case("generation.max_tokens")
    shortest = min(table["answer_tokens"], longest)
    least_load, most_load = table["load_seconds"]
    seconds = most_load + _answering(case, asked, mean, longest)
    return Cost(
        source=_source(questions, mean, (shortest, longest), gpus, gpu_names),
        speed=MEASURED,
        seconds=seconds,
        gpu_hours=seconds * gpus / 3600,
        least_seconds=least_load + _answering(case, asked, mean, shortest),
    )


def _questions(case: Case) -> int:
    """How many are asked, 0 where nobody knows; a guard's are not among them."""
    try:
        if not case.facts or not case.tokens:
            return 0
    except Failure:
        return 0
    there = case.facts.get("questions") or case.facts["records"]
    limit = case("evaluation.limit")
    return min(there, limit) if limit > 0 else there


def _is_measured(case: Case) -> bool:
    plan = gpu_memory.of_spec(case, 1, 1, 1)
    if plan is None or case.cosmos or case("model.dtype") == "float32":
        return False
    return speed.is_of_measured_size(plan.geometry.parameters / 1e9)


def _answering(case: Case, questions: int, tokens: float, answer_tokens: int) -> float:
    together = min(questions, case("evaluation.batch_size"))
    return math.ceil(questions / together) * speed.of_answers(together, tokens, answer_tokens)


def _source(
    questions: int,
    mean: float,
    answer_tokens: tuple[int, int],
    gpus: int,
    gpu_names: Sequence[str],
) -> str:
    shortest, longest = answer_tokens
    where = f"an 8B model on one {speed.measured()['gpu']}"
    told = f"{questions:,} questions of {mean:,.0f} tokens, answers of {shortest} to {longest:,}; "
    told += f"measured with {where}, answers of {speed.measured()['evaluation']['answer_tokens']}"
    if gpus > 1:
        told += ", several GPUs were not"
    return told + speed.other_gpus(gpu_names)
