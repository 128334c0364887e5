"""Which checkpoint of a train job is meant: by a metric, the validation loss, the best link or a
name. Enter at `select`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files, findings, job_folder, metrics_log
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import best_link, checkpoint_metrics, run_outputs, trainer_log
from cosmos_reason.checkpoints.best_link import VAL_LOSS
from cosmos_reason.checkpoints.run_outputs import RESUME, Checkpoint
from cosmos_reason.checkpoints.trainer_log import SavedLoss
from cosmos_reason.data import annotations
from cosmos_reason.spec import document

METRICS_LOG, TRAINER_LOG = "metrics.jsonl", "log.txt"
TRAINER_LOGS = (TRAINER_LOG, "*policy_*.log", "logs_*/policy_*.log")  # a job's, and cosmos-rl's
ENABLED = "train.ckpt.enable_checkpoint"
COUNTS = {"rows", "failed", "unparseable"}  # they stand among the metrics and tell no quality


@dataclass(frozen=True)
class MeasuredLoss:
    """A validation loss: of which step of which run, and the file that tells it. `saved_as`: the
    folder of the checkpoint, where the file names it. `left_out`: records that it is without."""

    loss: float
    run: Path
    step: int
    file: Path
    saved_as: str = ""
    left_out: int = 0


class Beside(NamedTuple):
    """What tells validation losses besides the output folder: the folder of its train job, and a
    trainer's log that is known to be of this training."""

    job: Path | None = None
    log: Path | None = None


NOTHING_BESIDE = Beside()


def select(
    output_dir: Path, by: str, beside: Beside = NOTHING_BESIDE
) -> tuple[Checkpoint, list[Finding]]:
    """The model or adapter that `by` means: a metric of checkpoint_metrics.json, "val_loss",
    "best", or a name. Each of its numbers is read.

    Never something else instead: raises Failure with a finding that lists what exists.
    """
    chosen, notes = _meant(output_dir, by, beside)
    found = run_outputs.verify(chosen.path, whole=True)
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_CHECKS_FAILED)
    return chosen, notes


def _meant(output_dir: Path, by: str, beside: Beside) -> tuple[Checkpoint, list[Finding]]:
    everything = run_outputs.models(output_dir)
    if not everything:
        raise Failure(nothing_found(output_dir), findings.EXIT_CHECKS_FAILED)
    models = _standing(everything, by)
    if by == VAL_LOSS:
        return _lowest_loss(output_dir, models, beside)
    if by == "best":
        best = _best(output_dir, everything, beside)
        saved = _of_saved(_known_losses(output_dir, beside), models)
        return best, unequal_validations(output_dir, best, saved)
    metrics = {metric for checkpoint in models for metric in checkpoint.metrics} - COUNTS
    if by in metrics:
        return _by_metric(output_dir, models, by)
    if not metrics and by in checkpoint_metrics.TASK_METRICS:
        message = (
            f"got no scores, expected {by} in {checkpoint_metrics.FILE}: evaluate each "
            "checkpoint, then score its results with scripts/score_predictions.py"
        )
        finding = findings.error("CKPT-NOT-SCORED", output_dir, message)
        raise Failure(finding, findings.EXIT_CHECKS_FAILED)
    if not any(by in (checkpoint.name, checkpoint.step) for checkpoint in models):
        words = [*metrics, VAL_LOSS, "best", *(checkpoint.step for checkpoint in models)]
        problem = (
            f"got {by!r}, expected a metric, {VAL_LOSS}, best or a checkpoint's name."
            f"{findings.did_you_mean(by, words)}"
        )
        raise _not_found(output_dir, models, problem, beside)
    return _named(output_dir, models, by), []


def proposal(output_dir: Path, found: Iterable[Checkpoint], beside: Beside = NOTHING_BESIDE) -> str:
    """What `--by` may be on evidence: a task metric, the validation loss, the best link, the only
    model there is, the whole one of the lowest loss; else empty, for no name is better than
    another."""
    models = [one for one in _standing(found) if one.kind != RESUME]
    whole = [checkpoint for checkpoint in models if checkpoint.complete]
    scored = set().union(*(checkpoint.metrics for checkpoint in whole))
    for metric in checkpoint_metrics.TASK_METRICS:
        if metric in scored:
            return metric
    measured = _of_saved(_known_losses(output_dir, beside), models)
    if measured:
        lowest, _ = measured[0]
        if lowest.complete:
            return VAL_LOSS
    if best_link.name_of(output_dir, whole):
        return "best"
    return whole[0].name if len(whole) == 1 else _whole_of_lowest_loss(measured)


def _standing(found: Iterable[Checkpoint], named: str = "") -> list[Checkpoint]:
    """The checkpoints that count: of a step that a retry came to again the retry's. The earlier one
    is meant by its full name alone."""
    return [one for one in found if not one.superseded_by or one.name == named]


def _whole_of_lowest_loss(measured: Sequence[tuple[Checkpoint, MeasuredLoss]]) -> str:
    return next((checkpoint.name for checkpoint, _ in measured if checkpoint.complete), "")


def flags(by: str) -> Fix:
    """The fix that chooses what was proposed; none for no proposal."""
    return Fix(flags={"--by": by} if by else {})


def is_training(folder: Path) -> bool:
    """Whether it is a train job, its output or a run of it, and no model or adapter itself."""
    if not folder.is_dir() or run_outputs.is_model(folder):
        return False
    return job_of(folder) is not None or bool(run_outputs.find(folder))


def job_of(folder: Path) -> Path | None:
    """A folder itself where it is that of a job."""
    return folder if (folder / job_folder.RECORD).is_file() else None


def not_chosen(output_dir: Path, found: Iterable[Checkpoint], beside: Beside, what: str) -> Failure:
    """The refusal to make something of a checkpoint that was not named; `what` it is."""
    whole = [one for one in _standing(found) if one.complete]
    message = f"got none, expected it to say which {what} is meant of: "
    message += ", ".join(one.name for one in whole) or "none"
    by = proposal(output_dir, whole, beside)
    return findings.bad_input("CKPT-NOT-CHOSEN", "--by", message, flags(by))


def nothing_found(folder: Path) -> Finding:
    """What to say of a folder without any checkpoint: the folder that was probably meant, or why
    none was saved."""
    meant = _output_nearby(folder)
    if meant:
        message = "got no output folder of a train job, expected one"
        fix = shlex.join(["scripts/select_checkpoint.py", str(meant)])
        return findings.error("CKPT-NONE", folder, message, fix)
    home = job_folder.home_of(folder)
    if home:
        message = "got no checkpoint, expected TIMESTAMP/safetensors/step_N: none was saved (yet)"
        fix = shlex.join(["scripts/launch_job.py", "status", str(home)])
        return findings.error("CKPT-NONE", folder, message, fix)
    message = "got no checkpoint, expected the output folder of a training"
    for name in annotations.ROOT_FILES:
        if (folder / name).is_file():
            message = f"got a dataset ({name}), expected the output folder of a training"
    return findings.error("CKPT-NONE", folder, message, _checkpoints_were_off(folder))


def _checkpoints_were_off(folder: Path) -> Fix:
    """The change that lets a training save checkpoints, where its spec lies there and has them
    off."""
    for path in (*folder.glob("*.toml"), *folder.glob("*/config.toml")):
        with suppress(Failure):
            if document.get(files.read_toml(path), ENABLED) is False:
                return Fix(changes={ENABLED: True})
    return Fix()


def _output_nearby(folder: Path) -> Path | None:
    """A run that the folder is a part of, else an output folder one or two levels below it."""
    for home in (folder.absolute(), folder.absolute().parent):
        if home.name in run_outputs.PARTS:
            return home.parent
    below = []
    for part in run_outputs.PARTS:
        below += [path.parents[1] for path in folder.glob(f"*/*/{part}")]
        below += [path.parents[1] for path in folder.glob(f"*/*/*/{part}")]
    return min(below, default=None)


def _not_found(
    output_dir: Path, models: Sequence[Checkpoint], problem: str, beside: Beside = NOTHING_BESIDE
) -> Failure:
    """A Failure that lists the checkpoints there are, with the validation losses that metrics or
    the trainer's log give."""
    measured = _known_losses(output_dir, beside)
    if not measured:
        measured = _losses(output_dir, TRAINER_LOG, beside.job)
    losses = {
        checkpoint.name: measured_loss.loss
        for checkpoint, measured_loss in _of_saved(measured, models)
    }
    listed = []
    for checkpoint in models:
        text = checkpoint.name
        if checkpoint.name in losses:
            text += f" (validation loss {losses[checkpoint.name]:g})"
        if not checkpoint.complete:
            text += " (damaged)"
        listed.append(text)
    message = f"{problem} It holds: {', '.join(listed[:20]) or 'no model at all'}"
    finding = findings.error(
        "CKPT-NOT-FOUND",
        output_dir,
        message,
        flags(proposal(output_dir, models, beside)),
        checkpoints=[checkpoint.name for checkpoint in models],
        losses=losses,
    )
    return Failure(finding, findings.EXIT_CHECKS_FAILED)


# -- by name and by metric ---------------------------------------------------------------------


def _named(output_dir: Path, models: Sequence[Checkpoint], name: str) -> Checkpoint:
    named = _of_name(models, name)
    if len(named) != 1:
        problem = f"got {len(named)} checkpoints named {name!r}, expected one."
        raise _not_found(output_dir, models, problem)
    if not named[0].complete:
        raise Failure(named[0].findings, findings.EXIT_CHECKS_FAILED)
    return named[0]


def _of_name(models: Sequence[Checkpoint], name: str) -> list[Checkpoint]:
    return [checkpoint for checkpoint in models if name in (checkpoint.name, checkpoint.step)]


def _by_metric(
    output_dir: Path, models: Sequence[Checkpoint], metric: str
) -> tuple[Checkpoint, list[Finding]]:
    scored, others = [], []
    for checkpoint in models:
        is_scored = checkpoint.complete and metric in checkpoint.metrics
        (scored if is_scored else others).append(checkpoint)
    if not scored:
        problem = f"got no undamaged checkpoint that was scored by {metric}."
        raise _not_found(output_dir, models, problem)
    choose = min if metric.endswith("loss") else max
    best = choose(scored, key=lambda checkpoint: checkpoint.metrics[metric])  # of equals, the first
    notes = []
    if others:
        names = [checkpoint.name for checkpoint in others]
        message = (
            f"chosen among {len(scored)}; damaged or not scored by {metric}: {', '.join(names[:3])}"
        )
        notes.append(findings.warning("CKPT-NOT-SCORED", output_dir, message, checkpoints=names))
    return best, notes + unequal_scores(output_dir, best, scored)


def unequal_scores(
    output_dir: Path, best: Checkpoint, scored: Sequence[Checkpoint]
) -> list[Finding]:
    """A warning where other scores were measured otherwise than that of the chosen checkpoint, as
    far as this was recorded."""
    differences = {}
    for other in scored:
        ways = [] if other is best else _differences(other, best)
        if ways:
            differences[other.name] = ", ".join(ways[:4])
    if not differences:
        return []
    shown = "; ".join(f"{name} had {ways}" for name, ways in list(differences.items())[:3])
    message = (
        f"scores do not compare with that of {best.name}: {shown}; "
        "expected the same questions and settings"
    )
    return [_unequal(output_dir, message, list(differences))]


def _unequal(output_dir: Path, message: str, names: list[str]) -> Finding:
    fix = "evaluate them with one spec, then scripts/score_predictions.py RESULTS"
    return findings.warning("CKPT-UNEQUAL-SCORES", output_dir, message, fix, checkpoints=names)


def _differences(other: Checkpoint, best: Checkpoint) -> list[str]:
    """In words, how the evaluation of `other` was not that of `best`."""
    ways = []
    if other.evaluation and best.evaluation:
        ways = checkpoint_metrics.differences(other.evaluation, best.evaluation)
    rows = other.metrics.get("rows")
    best_rows = best.metrics.get("rows")
    if rows is None or best_rows is None or rows == best_rows:
        return ways
    if ways[:1] == [checkpoint_metrics.OTHER_QUESTIONS]:
        ways = ways[1:]  # which the numbers of questions say better
    return [f"{rows:g} questions (not {best_rows:g})", *ways]


# -- by validation loss ------------------------------------------------------------------------


def _lowest_loss(
    output_dir: Path, models: Sequence[Checkpoint], beside: Beside
) -> tuple[Checkpoint, list[Finding]]:
    """The checkpoint with the lowest validation loss in metrics.jsonl, else in the trainer's log,
    else that of best_score.json; and what there is to say of that choice."""
    measured = _known_losses(output_dir, beside)
    saved = _of_saved(measured, models)
    if not saved:
        metric = best_link.metric_of(output_dir)
        if metric != VAL_LOSS:
            problem = (
                f"got no validation loss, and a best checkpoint by {metric!r}, "
                f"expected one by {VAL_LOSS}."
            )
            raise _not_found(output_dir, models, problem, beside)
        chosen = _best(output_dir, models, beside)
        basis = (
            "no metrics.jsonl or trainer's log has a validation loss of a saved step, "
            "the best link and best_score.json name this one"
        )
        return chosen, [_proxy_note(output_dir, basis)]
    chosen, lowest = saved[0]
    if not chosen.complete:
        raise _lowest_damaged(saved)
    basis = f"{lowest.file} says {lowest.loss:g} of step {lowest.step}"
    notes = [_proxy_note(output_dir, basis), *unequal_validations(output_dir, chosen, saved)]
    if lowest.loss > measured[0].loss:
        message = (
            f"the lowest validation loss, {measured[0].loss:g}, is that of step "
            f"{measured[0].step}: it was not saved or is gone"
        )
        names = [chosen.name]
        notes.append(
            findings.warning("CKPT-LOWEST-NOT-SAVED", output_dir, message, checkpoints=names)
        )
    same_step = [checkpoint.name for checkpoint, other in saved[1:] if other == lowest]
    if same_step:
        message = f"of step {lowest.step} there is also {', '.join(same_step)}"
        notes.append(findings.info("CKPT-SAME-STEP", chosen.name, message, flags(same_step[0])))
    return chosen, notes


def unequal_validations(
    output_dir: Path, chosen: Checkpoint, saved: Sequence[tuple[Checkpoint, MeasuredLoss]]
) -> list[Finding]:
    """A warning where other checkpoints were validated on more records than the chosen one, or on
    fewer: a clip that is lost in the middle of a training is left out from there on."""
    left_out = {checkpoint.name: measured.left_out for checkpoint, measured in saved}
    own = left_out.get(chosen.name)
    others = {}
    for name, count in left_out.items():
        if own is not None and count != own:
            others[name] = f"{name} without {count:,}"
    if not others:
        return []
    message = (
        f"validations do not compare with that of {chosen.name}, which is without {own:,} records "
        f"that could not be read: {', '.join(list(others.values())[:3])}; expected the same records"
    )
    return [_unequal(output_dir, message, list(others))]


def _lowest_damaged(saved: Sequence[tuple[Checkpoint, MeasuredLoss]]) -> Failure:
    """The refusal of a damaged checkpoint: with what is wrong with it, and with the next one by
    loss that is whole."""
    lowest, measured = saved[0]
    message = f"got the lowest validation loss, {measured.loss:g}, of a damaged checkpoint"
    fix = flags("")
    for checkpoint, loss in saved:
        if checkpoint.complete:
            message += f"; of the whole ones {checkpoint.name} has the lowest, {loss.loss:g}"
            fix = flags(checkpoint.name)
            break
    else:
        message += ", and no whole one whose loss is known"
    finding = findings.error("CKPT-LOWEST-DAMAGED", lowest.name, message, fix)
    return Failure([finding, *lowest.findings], findings.EXIT_CHECKS_FAILED)


def _proxy_note(output_dir: Path, basis: str) -> Finding:
    message = (
        f"{basis}; it is a proxy: cosmos-rl leaves the last partial batch out of it, "
        "and the lowest is often not the best accuracy"
    )
    return findings.info("CKPT-VAL-LOSS-PROXY", output_dir, message, flags("accuracy"))


def _known_losses(output_dir: Path, beside: Beside) -> list[MeasuredLoss]:
    """The losses that a choice may follow, the lowest first: those of metrics.jsonl, else those
    that a trainer's log ties to checkpoints of these runs. A log that ties none may be of any
    training."""
    return _losses(output_dir, METRICS_LOG, beside.job) or _logged_losses(output_dir, beside)


def _logged_losses(output_dir: Path, beside: Beside) -> list[MeasuredLoss]:
    runs = {run.absolute().name: run for run in run_outputs.runs(output_dir)}
    if beside.log:
        found = _of_named_log(beside.log, runs)
    else:
        found = []
        for file in _logs_near(output_dir, _attempts(output_dir, beside.job)):
            found += _tied(file, trainer_log.saved_losses(_lines(file)), runs)
    return sorted(found, key=lambda measured: measured.loss)


def _of_named_log(log: Path, runs: dict[str, Path]) -> list[MeasuredLoss]:
    """The losses of a log that is known to be of this training: the only run in it is the only run
    here, whatever its folder is called; where it names no checkpoint, steps are matched by
    number."""
    saved_losses = trainer_log.saved_losses(_lines(log))
    if len(runs) != 1:
        return _tied(log, saved_losses, runs)
    (run,) = runs.values()
    if not saved_losses:
        return _measured([log], run)
    names = {saved.run for saved in saved_losses}
    if len(names) == 1:
        runs = {names.pop(): run}
    return _tied(log, saved_losses, runs)


def _tied(
    file: Path, saved_losses: Iterable[SavedLoss], runs: dict[str, Path]
) -> list[MeasuredLoss]:
    """The losses of checkpoints in these runs, which have the names that the log gives them."""
    found = []
    for saved in saved_losses:
        if saved.run in runs and _is_loss(saved.loss):
            run = runs[saved.run]
            found.append(MeasuredLoss(saved.loss, run, saved.step, file, saved.checkpoint))
    return found


def _attempts(output_dir: Path, job: Path | None) -> list[Path]:
    """The jobs of the training: those of `job`, where that is one, else of who wrote the output."""
    if job and job_of(job):
        return job_folder.attempts(job)
    return run_outputs.training_of(output_dir)


def _logs_near(output_dir: Path, attempts: Sequence[Path]) -> list[Path]:
    """The logs that lie with the output, in the folder above it or in those of its jobs."""
    output = output_dir.absolute()
    found = []
    for folder in (*run_outputs.runs(output), output, output.parent, *attempts):
        for pattern in TRAINER_LOGS:
            found += sorted(folder.glob(pattern))
    return list({path.resolve(): path for path in found if path.is_file()}.values())


def _lines(file: Path) -> Iterator[str]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        yield from lines


def has_losses(log: Path) -> bool:
    """Whether a trainer's log tells any validation loss."""
    return bool(_measured([log], log.parent))


def _losses(output_dir: Path, name: str, job: Path | None) -> list[MeasuredLoss]:
    """The lowest first, as the files of this name tell: in each run, else in the folders of the
    training's jobs, one after another, or of a single run beside its output."""
    runs = run_outputs.runs(output_dir)
    attempts = _attempts(output_dir, job)
    found = []
    for run in runs:
        places = [[run]]
        if len(runs) == 1 or run_outputs.is_of_training(run, attempts):
            places.append(attempts)
        if len(runs) == 1:
            places += [[output_dir], [output_dir.parent]]
        for folders in places:
            measured = _measured([folder / name for folder in folders], run)
            if measured:
                found += measured
                break
    return sorted(found, key=lambda measured: measured.loss)


def _measured(logs: Sequence[Path], run: Path) -> list[MeasuredLoss]:
    """The validation losses that metrics.jsonl or a trainer's log tells, or those of the attempts
    of one training, the last of each step. Which run saved a step, its checkpoints tell."""
    parse = metrics_log.numbers
    if logs and logs[0].name != METRICS_LOG:
        parse = trainer_log.metrics
    losses = {}
    for file, row in metrics_log.course(logs, parse):
        loss = row.get("val/avg_loss")
        if _is_loss(loss):
            left_out = row.get("val/skipped_records", 0)
            losses[row["step"]] = MeasuredLoss(loss, run, row["step"], file, left_out=left_out)
    return list(losses.values())


def _is_loss(value: object) -> bool:
    """cosmos-rl reports 0.0 when its validation set is smaller than one batch."""
    return bool(value) and checkpoint_metrics.is_finite(value)


def _of_saved(
    measured: Iterable[MeasuredLoss], models: Sequence[Checkpoint]
) -> list[tuple[Checkpoint, MeasuredLoss]]:
    """The losses whose step was saved, each with its checkpoint."""
    steps = {checkpoint.name: run_outputs.step_number(checkpoint.path) for checkpoint in models}
    found = []
    for loss in measured:
        for checkpoint in models:
            is_meant = steps[checkpoint.name] == loss.step
            if loss.saved_as:
                is_meant = checkpoint.step == loss.saved_as
            if is_meant and loss.run in checkpoint.path.parents:
                found.append((checkpoint, loss))
    return found


# -- the best link -----------------------------------------------------------------------------


def best_note(
    output_dir: Path, found: Iterable[Checkpoint], beside: Beside = NOTHING_BESIDE
) -> list[Finding]:
    """What the `best` link of an output folder points at, or that it is broken, and whether it was
    chosen among equals; nothing where there is none."""
    best = best_link.folder_of(output_dir)
    if not best.is_dir():
        return []
    models = [checkpoint for checkpoint in found if checkpoint.kind != RESUME]
    name = best_link.name_of(output_dir, models)
    fix = flags(proposal(output_dir, models, beside))
    if not name:
        failure = _not_found(output_dir, models, _broken_link(output_dir), beside)
        message = failure.findings[0].message
        return [findings.warning("CKPT-BEST-BROKEN", best, message, fix)]
    if name not in [checkpoint.name for checkpoint in models if checkpoint.complete]:
        message = f"it points to the damaged {name}"
        return [findings.warning("CKPT-BEST-DAMAGED", best, message, fix)]
    saved = _of_saved(_known_losses(output_dir, beside), models)
    unequal = unequal_validations(output_dir, _of_name(models, name)[0], saved)
    return [findings.info("CKPT-BEST", best, f"it means {name}", flags("best")), *unequal]


def _best(output_dir: Path, models: Sequence[Checkpoint], beside: Beside) -> Checkpoint:
    """The model that `best` means. Raises Failure for a broken link and for a damaged model."""
    name = best_link.name_of(output_dir, models)
    if not name:
        raise _not_found(output_dir, models, _broken_link(output_dir), beside)
    best = _of_name(models, name)[0]
    if best.complete:
        return best
    fix = flags(proposal(output_dir, models, beside))
    message = f"got a best link to the damaged {name}, expected a whole model"
    finding = findings.error("CKPT-BEST-DAMAGED", best_link.folder_of(output_dir), message, fix)
    raise Failure([finding, *best.findings], findings.EXIT_CHECKS_FAILED)


def _broken_link(output_dir: Path) -> str:
    named = " and ".join(str(target) for target in best_link.targets(output_dir)) or "nothing"
    return f"got a best link to {named}, expected one model of this folder."
