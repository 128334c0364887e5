"""How long a training will take: the tokens that are predicted for it, at a speed that was given,
that an earlier job had, or that was measured on a GPU of another kind."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.jobs import progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.record import Job
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import MINI_BATCH
from cosmos_reason.spec import actions, document, origins

ANNOTATIONS = actions.data_keys("train").annotations
LATEST = 20  # jobs that are looked at for a speed
FIRST_STEPS = 2  # of a run, which are slower
ALIKE = 0.2  # by which the parameters of two models of one size differ
FLAG = "--seconds-per-step"
GIVEN, MEASURED = "given", "measured"
NO_SPEED = f"{FLAG} S of the first steps tells it"


@dataclass(frozen=True)
class Cost:
    """Of the steps of a training alone. `speed` is "given" or "measured", None where nobody knows;
    `source` says it in words, or what is missing."""

    source: str
    speed: str | None = None
    steps: int | None = None  # of one training
    tokens: int | None = None
    tokens_per_second: float | None = None  # of one GPU
    seconds: float | None = None
    gpu_hours: float | None = None  # None on a CPU

    def times(self, rounds: int, runs: int) -> Cost:
        """Of `runs` such trainings, so many rounds of which follow each other."""
        if self.seconds is None:
            return self
        hours = None if self.gpu_hours is None else self.gpu_hours * runs
        known = asdict(self) | {"seconds": self.seconds * rounds, "gpu_hours": hours}
        return Cost(**known)

    def to_json(self) -> dict:
        found = asdict(self)
        for name, digits in {"tokens_per_second": 1, "seconds": 1, "gpu_hours": 3}.items():
            if found[name] is not None:
                found[name] = round(found[name], digits)
        return found

    def text(self) -> str:
        """For people."""
        return f"{self.steps} steps, {self._time()}" if self.steps else self._time()

    def _time(self) -> str:
        if self.seconds is None:
            return f"time: not known ({self.source})"
        hours = "" if self.gpu_hours is None else f", {self.gpu_hours:.3g} GPU-hours"
        return f"time: about {duration(self.seconds)}{hours} ({self.source})"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def case_of(engine: str, spec: dict, spec_path: Path) -> Case:
    """A training with the facts of its data that its spec was built with; without them when they
    cannot be read, or when it has other data by now."""
    case = Case("train", engine, spec, origins.facts_of(spec_path))
    try:
        if case.facts and case.facts.get("annotations") == os.path.abspath(case(ANNOTATIONS)):
            return case
    except Failure:
        pass
    return Case("train", engine, spec)


def predict(
    case: Case, gpu_ids: list[str] | None, jobs_dir: Path, seconds_per_step: float | None
) -> Cost:
    """What a training costs; `gpu_ids` as launch.Request has them."""
    gpus = _gpus(case, gpu_ids)
    try:
        tokens_per_step = _tokens_per_step(case)
    except Failure:
        tokens_per_step = None
    if not tokens_per_step or not case.steps:
        return _without_tokens(case, gpus, seconds_per_step)
    tokens = round(tokens_per_step / case.global_batch * _records_of_steps(case))
    speed, tokens_per_second, words = _speed(
        case, gpus, jobs_dir, seconds_per_step, tokens / case.steps
    )
    told = f"{_count(tokens)} tokens predicted"
    if not tokens_per_second:
        return Cost(f"{told}; {NO_SPEED}", steps=case.steps, tokens=tokens)
    seconds = tokens / tokens_per_second / max(1, gpus)
    source = f"{told} at {tokens_per_second:,.0f} tokens/s{' a GPU' if gpus else ''}, {words}"
    gpu_hours = seconds * gpus / 3600 if gpus else None
    return Cost(source, speed, case.steps, tokens, tokens_per_second, seconds, gpu_hours)


def _without_tokens(case: Case, gpus: int, seconds_per_step: float | None) -> Cost:
    """By the steps and the speed that was given, when both are known."""
    steps = case.steps
    if not steps:
        return Cost("spec built without --dataset-facts")
    if not seconds_per_step:
        source = NO_SPEED
        if gpus and _is_of_measured_size(case):
            source = f"spec built without --dataset-facts; {NO_SPEED}"
        return Cost(source, steps=steps)
    seconds = steps * seconds_per_step
    gpu_hours = seconds * gpus / 3600 if gpus else None
    source = f"given by {FLAG} {seconds_per_step:g}"
    return Cost(source, GIVEN, steps, seconds=seconds, gpu_hours=gpu_hours)


def _count(tokens: int) -> str:
    return f"{tokens:,}" if tokens < 1e6 else f"{tokens / 1e6:,.1f} million"


def _records_of_steps(case: Case) -> int:
    """Records of all steps of a training: the last step of an epoch may have fewer than others."""
    if not case.steps_per_epoch:
        return case.steps * case.global_batch
    spread = math.ceil(case.trained_records / case.ranks) * case.ranks
    of_epoch = min(spread, case.steps_per_epoch * case.global_batch)
    epochs, rest = divmod(case.steps, case.steps_per_epoch)
    return epochs * of_epoch + min(rest * case.global_batch, of_epoch)


def _tokens_per_step(case: Case) -> float | None:
    """Of a step with a whole batch. None without facts."""
    if not case.tokens:
        return None
    return fmean(record.total for record in case.tokens) * case.global_batch


def _gpus(case: Case, gpu_ids: list[str] | None) -> int:
    return case.needed_gpus if gpu_ids is None else len(gpu_ids)


def _speed(
    case: Case,
    gpus: int,
    jobs_dir: Path,
    seconds_per_step: float | None,
    tokens_per_step: float,
) -> tuple[str | None, float | None, str]:
    """(given or measured, tokens a second of one GPU, the same in words)."""
    if seconds_per_step:
        speed = tokens_per_step / seconds_per_step / max(1, gpus)
        return GIVEN, speed, f"given by {FLAG} {seconds_per_step:g}"
    for folder in jobs.folders(jobs_dir)[:LATEST]:
        speed = _speed_of_job(folder, case, gpus)
        if speed:
            return MEASURED, speed, f"measured by {folder.name}"
    speed = _speed_elsewhere(case) if gpus else None
    if speed is None:
        return None, None, ""
    where = bundle.skill_info()["measured_speed"]["where"]
    return MEASURED, speed, f"measured with {where}; {FLAG} S for others"


def _speed_of_job(folder: Path, case: Case, gpus: int) -> float | None:
    """Tokens a second of each GPU of an earlier training of the same model in the same way."""
    try:
        job = Job.load(folder)
        if (job.action, job.engine) != (case.action, case.engine):
            return None
        earlier = case_of(job.engine, document.load(job.spec_path), job.spec_path)
        gpus_then = _gpus(earlier, job.resources["gpu_ids"])
        if _way(earlier, gpus_then) != _way(case, gpus):
            return None
        tokens = _tokens_per_step(earlier)
    except (Failure, OSError):
        return None  # it says nothing about this one
    lines, _ = progress.read_metrics(folder)
    took = [line["train/step_seconds"] for line in lines if "train/step_seconds" in line]
    took = took[FIRST_STEPS:] or took
    if not took or not tokens or not median(took):
        return None
    return tokens / median(took) / max(1, gpus_then)


def _way(case: Case, gpus: int) -> tuple[str, bool, bool]:
    """What trainings of one speed have in common: model, LoRA or full, a GPU or none."""
    return case.model, case.has("policy.lora"), gpus > 0


def _is_of_measured_size(case: Case) -> bool:
    """Whether skill_info knows a speed: of a model of that size with an adapter."""
    plan = gpu_memory.of_spec(case, 1, 1, 1)
    if plan is None or not plan.lora_rank:
        return False
    billion = bundle.skill_info()["measured_speed"]["parameters_billion"]
    return abs(plan.geometry.parameters / 1e9 / billion - 1) <= ALIKE


def _speed_elsewhere(case: Case) -> float | None:
    """That of skill_info: it grows with the tokens of one pass, and is drawn straight between those
    that were measured."""
    if not _is_of_measured_size(case):
        return None
    measured = bundle.skill_info()["measured_speed"]
    in_one_pass = fmean(record.total for record in case.tokens) * case(MINI_BATCH)
    points = [(0, 0), *sorted(measured["tokens_per_second"].items())]
    for (left, slow), (right, fast) in itertools.pairwise(points):
        if in_one_pass <= right:
            return slow + (fast - slow) * (in_one_pass - left) / (right - left)
    return points[-1][1]
