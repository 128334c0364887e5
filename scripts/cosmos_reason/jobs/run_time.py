"""How long a launch will take. A training: the tokens that are predicted for it, at a speed that
was given, that an earlier job had, or that was measured elsewhere. An evaluation by the embedded
engine on GPUs: a range from what was measured elsewhere; nobody knows how long answers get."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

from cosmos_reason.base.findings import Failure
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.estimate import speed as speeds
from cosmos_reason.jobs import record
from cosmos_reason.jobs.options import SPEED, Launch
from cosmos_reason.jobs.platforms import local
from cosmos_reason.jobs.record import Job
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import MINI_BATCH
from cosmos_reason.spec import actions, document, origins
from cosmos_reason.spec.keys import BATCH, TOKENS_PER_PASS

LATEST = 20  # jobs that are looked at for a speed
FIRST_STEPS = 2  # of a run, which are slower
GIVEN, MEASURED = "given", "measured"
NO_SPEED = f"{SPEED} S of the first steps tells it"


@dataclass(frozen=True)
class Cost:
    """Of the steps of a training alone. `speed` is "given" or "measured", None where nobody knows;
    `source` says it in words, or what is missing. Where several speeds were measured, the others
    are of the slowest of them, and `least_seconds` is of the fastest."""

    source: str
    speed: str | None = None
    steps: int | None = None  # of one training
    tokens: int | None = None
    tokens_per_second: float | None = None  # of one GPU
    seconds: float | None = None
    gpu_hours: float | None = None  # None on a CPU
    least_seconds: float | None = None

    def times(self, rounds: int, runs: int) -> Cost:
        """Return the cost of `runs` such trainings, so many rounds of which follow each other."""
        if self.seconds is None:
            return self
        hours = None if self.gpu_hours is None else self.gpu_hours * runs
        known = asdict(self) | {"seconds": self.seconds * rounds, "gpu_hours": hours}
        if self.least_seconds is not None:
            known["least_seconds"] = self.least_seconds * rounds
        return Cost(**known)

    def to_json(self) -> dict:
        found = asdict(self)
        digits_of = {"tokens_per_second": 1, "seconds": 1, "gpu_hours": 3, "least_seconds": 1}
        for name, digits in digits_of.items():
            if found[name] is not None:
                found[name] = round(found[name], digits)
        return found

    def text(self) -> str:
        """Return the cost in words, for people."""
        steps = f"{self.steps} steps, " if self.steps else ""
        if self.seconds is None:
            return f"{steps}time: not known ({self.source})"
        times = between(self.least_seconds or self.seconds, self.seconds)
        hours = "" if self.gpu_hours is None else f", {self.gpu_hours:.3g} GPU-hours"
        if hours and self.least_seconds is not None:
            least = self.gpu_hours * self.least_seconds / self.seconds
            hours = f", {least:.3g} to {self.gpu_hours:.3g} GPU-hours"
        return f"{steps}time: about {times}{hours} ({self.source})"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def between(least: float, most: float) -> str:
    """Return a range of durations, with their unit once where it is the same."""
    first, last = duration(least), duration(most)
    number, _, unit = first.partition(" ")
    if first == last:
        return last
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def of_launch(launch: Launch, seconds_per_step: float | None) -> Cost | None:
    """Return what a launch costs; None where nothing is foretold of it: of actions besides training
    and evaluation, of an evaluation by others, and of several checkpoints. Its GPUs are asked for
    their names where that is this machine."""
    if launch.action not in ("train", "evaluate"):
        return None
    is_here = launch.platform == "local"
    case = launch.case
    if launch.action == "train":
        names = local.gpu_names(launch.gpu_ids) if is_here else []
        return predict(case, launch.gpu_ids, launch.jobs_dir, seconds_per_step, names)
    if launch.engine != "transformers" or launch.endpoint or len(launch.checkpoints or ()) > 1:
        return None
    names = local.gpu_names(launch.gpu_ids) if is_here else []
    if launch.gpu_ids == [] or (is_here and not names):
        return None
    return predict_evaluation(case, case.needed_gpus, names)


def with_facts(launch: Launch) -> Launch:
    """Return the launch with the facts of the data that its spec was built with, which the rules
    did without: with the lengths of its records, its time and size can be told."""
    if origins.facts_of(launch.spec_path) is None:
        return launch
    case = case_of(launch.engine, launch.spec, launch.spec_path, launch.action)
    return replace(launch, case=case)


def case_of(engine: str, spec: dict, spec_path: Path, action: str = "train") -> Case:
    """Return an action's case with the facts of the data that its spec was built with; without them
    when they cannot be read, or when it has other data by now."""
    facts, keys = origins.facts_of(spec_path), actions.data_keys(action)
    if facts and keys:
        case = Case(action, engine, spec, facts)
        try:
            if case.facts.get("annotations") == os.path.abspath(case(keys.annotations)):
                return case
        except Failure:
            pass
    return Case(action, engine, spec)


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one GPU, the least and the most. `kind`: given or measured. `before`:
    the least and the most seconds of a run that come besides."""

    kind: str
    least: float
    most: float
    words: str
    before: tuple[float, float] = (0, 0)


def predict(
    case: Case,
    gpu_ids: list[str] | None,
    jobs_dir: Path,
    seconds_per_step: float | None,
    gpu_names: Sequence[str] = (),
) -> Cost:
    """Return what a training costs; `gpu_ids` as a launch has them, `gpu_names` as nvidia-smi
    writes them, where it was asked."""
    gpus = _gpus(case, gpu_ids)
    try:
        tokens_per_step = _tokens_per_step(case)
    except Failure:
        tokens_per_step = None
    if not case.steps:
        return Cost("spec built without --dataset-facts")
    if not tokens_per_step and seconds_per_step:
        seconds = case.steps * seconds_per_step
        gpu_hours = seconds * gpus / 3600 if gpus else None
        source = f"given by {SPEED} {seconds_per_step:g}"
        return Cost(source, GIVEN, case.steps, seconds=seconds, gpu_hours=gpu_hours)
    if not tokens_per_step:
        is_measured = gpus and _is_of_measured_size(case)
        lacks = "spec built without --dataset-facts; " if is_measured else ""
        return Cost(f"{lacks}{NO_SPEED}", steps=case.steps)
    # The last step of an epoch may have fewer records than others.
    records = case.steps * case.global_batch
    if case.steps_per_epoch:
        spread = math.ceil(case.trained_records / case.ranks) * case.ranks
        of_epoch = min(spread, case.steps_per_epoch * case.global_batch)
        epochs, rest = divmod(case.steps, case.steps_per_epoch)
        records = epochs * of_epoch + min(rest * case.global_batch, of_epoch)
    tokens = round(tokens_per_step / case.global_batch * records)
    amount = f"{tokens:,}" if tokens < 1e6 else f"{tokens / 1e6:,.1f} million"
    amount += " tokens predicted"
    # The speed that was given, else that of an earlier job, else what was measured elsewhere.
    found = None
    if seconds_per_step:
        given = tokens / case.steps / seconds_per_step / max(1, gpus)
        found = Speed(GIVEN, given, given, f"given by {SPEED} {seconds_per_step:g}")
    for folder in () if found else record.folders(jobs_dir)[:LATEST]:
        speed = _speed_of_job(folder, case, gpus)
        if speed:
            found = Speed(MEASURED, speed, speed, f"measured by {folder.name}")
            break
    if found is None and gpus:
        found = _speed_elsewhere(case, gpus, tokens, gpu_names)
    if found is None:
        return Cost(NO_SPEED, steps=case.steps, tokens=tokens)
    speed = f"{found.least:,.0f} tokens/s"
    if found.most != found.least:
        speed = f"{found.least:,.0f} to {found.most:,.0f} tokens/s"
    seconds = tokens / found.least / max(1, gpus) + found.before[1]
    least_seconds = tokens / found.most / max(1, gpus) + found.before[0]
    return Cost(
        source=f"{amount} at {speed}{' a GPU' if gpus else ''}, {found.words}",
        speed=found.kind,
        steps=case.steps,
        tokens=tokens,
        tokens_per_second=found.least,
        seconds=seconds,
        gpu_hours=seconds * gpus / 3600 if gpus else None,
        least_seconds=least_seconds if least_seconds < seconds else None,
    )


def _tokens_per_step(case: Case) -> float | None:
    """Return the tokens of a step with a whole batch; None without facts."""
    if not case.tokens:
        return None
    return fmean(one.total for one in case.tokens) * case.global_batch


def _gpus(case: Case, gpu_ids: list[str] | None) -> int:
    return case.needed_gpus if gpu_ids is None else len(gpu_ids)


def _speed_of_job(folder: Path, case: Case, gpus: int) -> float | None:
    """Return tokens a second of each GPU of an earlier training of the same model in the same
    way."""
    try:
        job = Job.load(folder)
        if (job.action, job.engine) != (case.action, case.engine):
            return None
        # The speed is that of its tokens, so that lengths, frames and batches may differ.
        earlier = case_of(job.engine, document.load(job.spec_path), job.spec_path)
        gpus_then = _gpus(earlier, job.resources["gpu_ids"])
        if _way(earlier, gpus_then) != _way(case, gpus):
            return None
        tokens = _tokens_per_step(earlier)
    except (Failure, OSError):
        return None  # it says nothing about this one
    from cosmos_reason.jobs import progress

    lines, _ = progress.read_metrics(folder)
    took = [line["train/step_seconds"] for line in lines if "train/step_seconds" in line]
    took = took[FIRST_STEPS:] or took
    if not took or not tokens or not median(took):
        return None
    found = tokens / median(took) / max(1, gpus_then)
    if case.cosmos:
        return found
    return found * speeds.of_each(gpus) / speeds.of_each(gpus_then)


def _way(case: Case, gpus: int) -> tuple[str, bool, bool]:
    """Return what trainings of one speed have in common: model, LoRA or full, a GPU or none."""
    return case.model, case.has("policy.lora"), gpus > 0


def _is_of_measured_size(case: Case) -> bool:
    """Tell whether skill_info knows a speed: of a model of that size with an adapter."""
    plan = gpu_memory.of_spec(case, 1, 1, 1)
    if plan is None or not plan.lora_rank or case("train.param_dtype") == "float32":
        return False
    return speeds.is_of_measured_size(plan.geometry.parameters / 1e9)


def _speed_elsewhere(case: Case, gpus: int, tokens: int, gpu_names: Sequence[str]) -> Speed | None:
    """Return the speed of skill_info, for so many tokens on GPUs."""
    if not _is_of_measured_size(case):
        return None
    mean = fmean(one.total for one in case.tokens)
    before = (0, 0)
    if case.cosmos:
        way = speeds.COSMOS_RL
        least, most = speeds.of_training(way, mean, mean * case(MINI_BATCH))
        # Several GPUs were not measured: each is as fast as one alone, or as slow as ours are.
        least *= speeds.of_each(gpus)
        named = way
    else:
        # A pass of the embedded engine takes as many records of one step as its limit lets in.
        limit = case(TOKENS_PER_PASS) or math.inf
        in_one_pass = max(mean, min(limit, mean * case(BATCH)))
        way = speeds.EMBEDDED
        slow, _ = speeds.of_training(way, mean, in_one_pass)
        asked = case("custom.transformers_engine.compile")
        seconds = tokens / slow / speeds.of_each(gpus) / gpus
        if seconds > speeds.COMPILING_PAYS if asked is None else asked:
            way = speeds.COMPILED
            before = tuple(speeds.measured()["compile_seconds"])
        least, most = speeds.of_training(way, mean, in_one_pass)
        least *= speeds.of_each(gpus)
        most *= speeds.of_each(gpus)
        named = f"the {way}"
    words = f"measured with {named}, LoRA of an 8B model on one {speeds.measured()['gpu']}"
    # What is not as it was when that was measured.
    if gpus > 1 and case.cosmos:
        words += ", several were not"
    elif gpus > 1:
        words += f", two were {speeds.measured()['two_gpus']} times as fast"
    if gpus > 2 and not case.cosmos:
        words += ", more were not measured"
    words += speeds.other_gpus(gpu_names)
    if speeds.is_beyond_measured(way, mean):
        words += "; longer records than those take longer"
    return Speed(MEASURED, least, most, f"{words}; {SPEED} S for others", before)


# -- evaluations -------------------------------------------------------------------------------


def predict_evaluation(case: Case, gpus: int, gpu_names: Sequence[str] = ()) -> Cost | None:
    """Return what an evaluation costs on so many GPUs; None where nothing is known of its
    questions, or of the speed. `gpu_names` as nvidia-smi writes them, where it was asked."""
    questions = 0  # where nobody knows; a guard's are not among them
    try:
        if case.facts and case.tokens:
            questions = case.facts.get("questions") or case.facts["records"]
    except Failure:
        pass
    limit = case("evaluation.limit")
    questions = min(questions, limit) if limit > 0 else questions
    plan = gpu_memory.of_spec(case, 1, 1, 1) if gpus and questions else None
    if plan is None or case.cosmos or case("model.dtype") == "float32":
        return None
    if not speeds.is_of_measured_size(plan.geometry.parameters / 1e9):
        return None
    asked = math.ceil(questions / gpus)
    mean = fmean(one.total for one in case.tokens)
    table = speeds.measured()["evaluation"]
    longest = case("generation.max_tokens")
    shortest = min(table["answer_tokens"], longest)
    least_load, most_load = table["load_seconds"]
    seconds = most_load + _answering(case, asked, mean, longest)
    source = f"{questions:,} questions of {mean:,.0f} tokens, answers of {shortest} to "
    source += f"{longest:,}; measured with an 8B model on one {speeds.measured()['gpu']}, "
    source += f"answers of {table['answer_tokens']}"
    source += ", several GPUs were not" if gpus > 1 else ""
    return Cost(
        source=source + speeds.other_gpus(gpu_names),
        speed=MEASURED,
        seconds=seconds,
        gpu_hours=seconds * gpus / 3600,
        least_seconds=least_load + _answering(case, asked, mean, shortest),
    )


def _answering(case: Case, questions: int, tokens: float, answer_tokens: int) -> float:
    together = min(questions, case("evaluation.batch_size"))
    return math.ceil(questions / together) * speeds.of_answers(together, tokens, answer_tokens)
