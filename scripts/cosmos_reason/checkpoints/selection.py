"""Which checkpoint of a training is meant: by a metric, the validation loss, the best link or a
name. Enter at `Training`, which lists, proposes and selects."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cosmos_reason.base import files, findings, job_folder, metrics_log
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import (
    best_link,
    checkpoint_metrics,
    run_outputs,
    trainer_log,
    unchanged,
)
from cosmos_reason.checkpoints.best_link import VAL_LOSS
from cosmos_reason.checkpoints.run_outputs import RESUME, Checkpoint
from cosmos_reason.checkpoints.trainer_log import SavedLoss
from cosmos_reason.data import annotations
from cosmos_reason.spec import document

METRICS_LOG, TRAINER_LOG = "metrics.jsonl", "log.txt"
TRAINER_LOGS = (TRAINER_LOG, "*policy_*.log", "logs_*/policy_*.log")  # a job's, and cosmos-rl's
ENABLED = "train.ckpt.enable_checkpoint"
COUNTS = {"rows", "failed", "unparseable"}  # counts, not quality metrics
DIRECTIONS = {"min": "lowest", "max": "highest"}  # --by METRIC:min
MOST_SHOWN = 10  # numbers of checkpoints, the best first


@dataclass(frozen=True)
class MeasuredLoss:
    """A validation loss: of which step of which run, and the file that tells it. `saved_as`: the
    folder of the checkpoint, where the file names it. `left_out`: records that it is without.
    `other_run`: what the file calls the run, where that is not the name of its folder here."""

    loss: float
    run: Path
    step: int
    file: Path
    saved_as: str = ""
    left_out: int = 0
    other_run: str = ""


class Training:
    """The output folder of a training, read once: its checkpoints and their validation losses.

    `job` is the folder of its train job, `log` a trainer's log that is known to be of this
    training: both may tell losses besides the output folder itself.
    """

    def __init__(self, output_dir: Path, job: Path | None = None, log: Path | None = None):
        self.output_dir = output_dir
        self.job = job
        self.log = log

    @cached_property
    def found(self) -> list[Checkpoint]:
        return run_outputs.find(self.output_dir)

    @cached_property
    def models(self) -> list[Checkpoint]:
        """Return all models and adapters."""
        return [one for one in self.found if one.kind != RESUME]

    @cached_property
    def standing(self) -> list[Checkpoint]:
        """Return the models that count: of a step that a retry came to again the retry's."""
        return [one for one in self.models if not one.superseded_by]

    @cached_property
    def losses(self) -> list[MeasuredLoss]:
        """Return the losses that a choice may follow, the lowest first: those of metrics.jsonl,
        else those that a trainer's log ties to checkpoints of these runs. A log that ties none may
        be of any training."""
        found = [] if self.log else self._losses_in(METRICS_LOG)
        if not found:
            found = self._logged_losses()
        return found

    @cached_property
    def saved(self) -> list[tuple[Checkpoint, MeasuredLoss]]:
        """Return the losses whose step was saved, each with its checkpoint, the lowest first."""
        return _of_saved(self.losses, self.standing)

    @cached_property
    def val_losses(self) -> dict[str, float]:
        """Return the validation loss of each checkpoint that has one, the lowest first."""
        return {checkpoint.name: measured.loss for checkpoint, measured in self.saved}

    @cached_property
    def best(self) -> best_link.Best:
        return best_link.read(self.output_dir)

    @cached_property
    def unchanged(self) -> list[Finding]:
        """Return a warning for each run whose training changed no weight."""
        return unchanged.found(self.standing, self._attempts, self.val_losses)

    # -- choosing ------------------------------------------------------------------------------

    def select(self, by: str) -> tuple[Checkpoint, list[Finding]]:
        """Return the model or adapter that `by` means: a metric of checkpoint_metrics.json,
        "val_loss", "best", or a name. Each of its numbers is read.

        Never something else instead: raises Failure with a finding that lists what exists.
        """
        if not self.models:
            raise Failure(nothing_found(self.output_dir), findings.EXIT_CHECKS_FAILED)
        # These two words mean the same everywhere; a metric or checkpoint of such a name does not.
        if by == VAL_LOSS:
            chosen, notes = self._lowest_loss()
        elif by == "best":
            chosen = self._best(self.models)
            reason = replace(self._best_reason(chosen), id="CKPT-SCORES")
            notes = [reason, *self._unequal_validations(chosen)]
        elif by in self._metrics() or by.rpartition(":")[0] in self._metrics():
            chosen, notes = self._by_metric(by)
        else:
            chosen, notes = self._named(by), []
        if by != "best":
            notes += self._dead_best()
        notes += [one for one in self.unchanged if chosen.name in one.data["checkpoints"]]
        # The list looked at samples; what is handed on is read to its last number.
        found = run_outputs.verify(chosen.path, whole=True)
        if findings.has_errors(found):
            raise Failure(found, findings.EXIT_CHECKS_FAILED)
        return chosen, notes + [one for one in found if one not in chosen.findings]

    def proposal(self, among: Sequence[Checkpoint] | None = None) -> str:
        """Return what `--by` may be on evidence: a task metric, the validation loss, the best link,
        the only model there is, the whole one of the lowest loss; else '', for no name is better
        than another."""
        models = self.standing if among is None else [one for one in self.standing if one in among]
        whole = [checkpoint for checkpoint in models if checkpoint.complete]
        scored = set().union(*(checkpoint.metrics for checkpoint in whole))
        for metric in checkpoint_metrics.TASK_METRICS:
            if metric in scored:
                return metric
        by_loss = [checkpoint for checkpoint, _ in self.saved if checkpoint in models]
        if by_loss and by_loss[0].complete:
            return VAL_LOSS
        if self.best.among(whole):
            return "best"
        if len(whole) == 1:
            return whole[0].name
        # The lowest loss is of a damaged one: val_loss would refuse it, the next has a name.
        return next((checkpoint.name for checkpoint in by_loss if checkpoint.complete), "")

    def not_chosen(self, among: Sequence[Checkpoint], what: str) -> Failure:
        """Return the refusal to make something of a checkpoint that was not named; `what` it is."""
        if not self.found:
            return Failure(nothing_found(self.output_dir), findings.EXIT_CHECKS_FAILED)
        # Named are only those that could be taken.
        whole = [one.name for one in among if one.complete and not one.superseded_by]
        message = f"--by is required to say which {what} is meant; "
        message += f"there are: {', '.join(whole)}" if whole else "none is whole"
        fix = flags(self.proposal(among))
        return findings.bad_input("CKPT-NOT-CHOSEN", "--by", message, fix)

    def best_note(self) -> list[Finding]:
        """Return what the `best` link points at, or that it is broken, and whether it was chosen
        among equals; nothing where there is none."""
        if not self.best.folder.is_dir():
            return []
        try:
            chosen = self._best(self.models)
        except Failure as failure:
            broken = failure.findings[0]
            fix = flags(self.proposal())
            id = BEST_REFUSED[broken.id]
            return [findings.warning(id, self.best.folder, broken.message, fix)]
        means = replace(self._best_reason(chosen), fix=flags("best"))
        return [means, *self._unequal_validations(chosen)]

    def _best_reason(self, chosen: Checkpoint) -> Finding:
        """Return which model `best` means, by which score, and the validation losses beside it."""
        message = f"it means {chosen.name}"
        if self.best.score is not None:
            message += f", by {self.best.metric} {self.best.score:.6g}"
        if self.val_losses:
            message += f"; validation losses: {_in_order(self.val_losses)}"
        return findings.info("CKPT-BEST", self.best.folder, message, losses=self.val_losses)

    def _dead_best(self) -> list[Finding]:
        """Return a warning that `best` leads to none of these models, where something else was
        chosen by."""
        if not self.best.folder.is_dir() or self.best.among(self.models):
            return []
        message = f"it names {self.best.named}, not one model of this folder; it was not followed"
        return [findings.warning("CKPT-BEST-BROKEN", self.best.folder, message)]

    def _metrics(self) -> set[str]:
        names = set()
        for checkpoint in self.standing:
            names.update(checkpoint.metrics)
        return names - COUNTS

    def _named(self, name: str) -> Checkpoint:
        """Return the one checkpoint of a name. A superseded one is meant by its full name alone."""
        named = [one for one in self.standing if name in (one.name, one.step)]
        named += [one for one in self.models if one.superseded_by and one.name == name]
        if len(named) == 1:
            if not named[0].complete:
                raise Failure(named[0].findings, findings.EXIT_CHECKS_FAILED)
            return named[0]
        if named:
            raise self._not_found(f"got {len(named)} checkpoints named {name!r}, expected one.")
        metrics = self._metrics()
        if not metrics and name in checkpoint_metrics.TASK_METRICS:
            message = (
                f"no checkpoint is scored: evaluate each one, then let "
                f"scripts/score_predictions.py write {name} to {checkpoint_metrics.FILE}"
            )
            finding = findings.error("CKPT-NOT-SCORED", self.output_dir, message)
            raise Failure(finding, findings.EXIT_CHECKS_FAILED)
        words = [*metrics, VAL_LOSS, "best", *(checkpoint.step for checkpoint in self.standing)]
        raise self._not_found(
            f"got {name!r}, expected a metric, {VAL_LOSS}, best or a checkpoint's name."
            f"{findings.did_you_mean(name, words)}"
        )

    def _not_found(self, problem: str) -> Failure:
        """Return a Failure that lists the checkpoints there are, with the validation losses that
        metrics or the trainer's log give."""
        # A log that ties its losses to no checkpoint chooses nothing, but may be shown.
        saved = self.saved if self.losses else _of_saved(self._losses_in(TRAINER_LOG), self.models)
        losses = {checkpoint.name: measured.loss for checkpoint, measured in saved}
        listed = []
        for checkpoint in self.standing:
            text = checkpoint.name
            if checkpoint.name in losses:
                text += f" (validation loss {losses[checkpoint.name]:g})"
            if not checkpoint.complete:
                text += " (damaged)"
            listed.append(text)
        finding = findings.error(
            "CKPT-NOT-FOUND",
            self.output_dir,
            f"{problem} It holds: {', '.join(listed[:20]) or 'no model at all'}",
            flags(self.proposal()),
            checkpoints=[checkpoint.name for checkpoint in self.standing],
            losses=losses,
        )
        return Failure(finding, findings.EXIT_CHECKS_FAILED)

    def _by_metric(self, by: str) -> tuple[Checkpoint, list[Finding]]:
        """Return the checkpoint that is best by METRIC, or by METRIC:min or METRIC:max: which end
        of a metric of somebody's own is the good one, nobody else knows."""
        metric, end = by, ""
        if by not in self._metrics():
            metric, _, end = by.rpartition(":")
        direction = end or checkpoint_metrics.best_end(metric)
        if direction not in DIRECTIONS:
            message = f"expected {metric}:min or {metric}:max"
            if not end:
                message = f"which end of {metric} is the better one is not known; {message}"
            raise findings.bad_input("CKPT-METRIC-END", f"--by {by}", message)
        scored, others = [], []
        for checkpoint in self.standing:
            is_scored = checkpoint.complete and metric in checkpoint.metrics
            (scored if is_scored else others).append(checkpoint)
        if not scored:
            raise self._not_found(f"no undamaged checkpoint is scored by {metric}.")
        choose = min if direction == "min" else max
        best = choose(scored, key=lambda one: one.metrics[metric])  # of equals, the first
        ranked = sorted(scored, key=lambda one: one.metrics[metric], reverse=choose is max)
        scores = {checkpoint.name: checkpoint.metrics[metric] for checkpoint in ranked}
        message = f"{metric}, the {DIRECTIONS[direction]} is best: "
        message += _in_order(scores)
        notes = [findings.info("CKPT-SCORES", self.output_dir, message, scores=scores)]
        if others:
            names = [checkpoint.name for checkpoint in others]
            message = f"{len(names)} of {len(names) + len(scored)} are damaged or not scored by "
            message += f"{metric}, and were not compared: {', '.join(names[:3])}"
            notes.append(
                findings.warning("CKPT-NOT-SCORED", self.output_dir, message, checkpoints=names)
            )
        return best, notes + unequal_scores(self.output_dir, best, scored)

    # -- by validation loss ----------------------------------------------------------------------

    def _lowest_loss(self) -> tuple[Checkpoint, list[Finding]]:
        """Return the checkpoint with the lowest validation loss in metrics.jsonl, else in the
        trainer's log, else that of best_score.json; and what there is to say of that choice."""
        if not self.saved and self.log:  # it was to decide: no link stands in for it
            named = {saved.run for saved in trainer_log.saved_losses(_lines(self.log))}
            here = [run.absolute().name for run in run_outputs.runs(self.output_dir)]
            problem = f"{self.log} tells no validation loss of a step that was saved here."
            if named and named.isdisjoint(here):
                problem = (
                    f"{self.log} tells losses of {', '.join(sorted(named))}, and this folder holds "
                    f"{', '.join(here)}: more than one of them may be meant; name one run's "
                    "folder, or a checkpoint."
                )
            raise self._not_found(problem)
        if not self.saved:
            if self.best.metric != VAL_LOSS:
                problem = f"no validation loss is known, and best was chosen by {self.best.metric}."
                raise self._not_found(problem)
            chosen = self._best(self.standing)
            basis = (
                "no metrics.jsonl or trainer's log has a validation loss of a saved step, "
                "the best link and best_score.json name this one"
            )
            return chosen, [self._proxy_note(basis)]
        chosen, lowest = self.saved[0]
        if not chosen.complete:
            message = f"the lowest val_loss, {lowest.loss:g}, is of a damaged checkpoint; "
            # What is whole is proposed, not taken: another model than was asked for.
            whole = [(one, measured.loss) for one, measured in self.saved if one.complete]
            if whole:
                message += f"of the whole ones {whole[0][0].name} has the lowest, {whole[0][1]:g}"
            else:
                message += "no whole one has a known loss"
            fix = flags(whole[0][0].name if whole else "")
            finding = findings.error("CKPT-LOWEST-DAMAGED", chosen.name, message, fix)
            raise Failure([finding, *chosen.findings], findings.EXIT_CHECKS_FAILED)
        basis = f"validation losses: {_in_order(self.val_losses)} (from {self._source(lowest)})"
        # The choice stands; what is doubtful about it is said beside it.
        notes = [self._proxy_note(basis), *self._unequal_validations(chosen)]
        known = [checkpoint for checkpoint, _ in self.saved]
        unknown = [one.name for one in self.standing if one not in known]
        if unknown:
            message = (
                f"{len(unknown)} of {len(self.standing)} have no validation loss that is a "
                f"number, and were not compared: {', '.join(unknown[:3])}"
            )
            notes.append(
                findings.warning("CKPT-NOT-SCORED", self.output_dir, message, checkpoints=unknown)
            )
        if lowest.loss > self.losses[0].loss:
            message = (
                f"the lowest validation loss, {self.losses[0].loss:g}, is that of step "
                f"{self.losses[0].step}: it was not saved or is gone"
            )
            notes.append(
                findings.warning(
                    "CKPT-LOWEST-NOT-SAVED", self.output_dir, message, checkpoints=[chosen.name]
                )
            )
        # A merged model and the adapter it was made of are of one step.
        same = [checkpoint.name for checkpoint, other in self.saved[1:] if other == lowest]
        if same:
            message = f"of step {lowest.step} there is also {', '.join(same)}; --by takes its name"
            notes.append(findings.info("CKPT-SAME-STEP", chosen.name, message))
        return chosen, notes

    def _proxy_note(self, basis: str) -> Finding:
        message = f"{basis}; it is a proxy: "
        # Only the embedded engine marks its runs; it takes the mean over all tokens.
        if not any(map(run_outputs.run_marked_by, run_outputs.runs(self.output_dir))):
            message += "cosmos-rl leaves the last partial batch out of it, and "
        message += "the lowest is often not the best accuracy"
        if "accuracy" in self._metrics():
            message += "; --by accuracy goes by the answers that were scored"
        losses = self.val_losses
        return findings.info("CKPT-VAL-LOSS-PROXY", self.output_dir, message, losses=losses)

    def _unequal_validations(self, chosen: Checkpoint) -> list[Finding]:
        """Return a warning where other checkpoints were validated on more records than the chosen
        one, or on fewer: a clip that is lost in the middle of a training is left out from there
        on."""
        left_out = {checkpoint.name: measured.left_out for checkpoint, measured in self.saved}
        own = left_out.get(chosen.name)
        others = {}
        for name, count in left_out.items():
            if own is not None and count != own:
                others[name] = f"{name} without {count:,}"
        if not others:
            return []
        message = (
            f"validations do not compare with that of {chosen.name}, which is without {own:,} "
            f"records that could not be read: {', '.join(list(others.values())[:3])}"
        )
        return [_unequal(self.output_dir, message, list(others))]

    # -- where losses are told -------------------------------------------------------------------

    @cached_property
    def _attempts(self) -> list[Path]:
        """Return the jobs of the training: those of `job`, where that is one, else of who wrote the
        output."""
        if self.job and job_of(self.job):
            return job_folder.attempts(self.job)
        return run_outputs.training_of(self.output_dir)

    def _source(self, measured: MeasuredLoss) -> str:
        """Return in words which file tells a loss, and what ties it to the checkpoint where that is
        not the place or the name that the training gave it."""
        folder = measured.file.absolute().parent
        own = {measured.run.absolute(), self.output_dir.absolute(), *self._attempts}
        words = [str(measured.file)]
        if not own.intersection((folder, *folder.parents)):
            words.append("which is not in a folder of this training")
        if measured.other_run:
            steps: dict[str, list[int]] = {}
            for _, one in self.saved:
                if one.other_run:
                    steps.setdefault(one.other_run, []).append(one.step)
            said = [f"{run} (step {', '.join(map(str, sorted(of)))})" for run, of in steps.items()]
            if len(said) == 1:
                words.append(f"whose run {said[0]} is taken for {measured.run.name}")
            else:
                runs = " and ".join(sorted(said))
                words.append(f"whose runs {runs} are taken for {measured.run.name}: none saved a ")
                words[-1] += "step of another"
        if not measured.saved_as and (len(words) > 1 or measured.file.name != METRICS_LOG):
            words.append("whose steps are matched by number, for it names no checkpoint")
        return ", ".join(words)

    def _losses_in(self, name: str) -> list[MeasuredLoss]:
        """Return what the files of this name tell, the lowest first: in each run, else in the
        folders of the training's jobs, one after another, or of a single run beside its output."""
        runs = run_outputs.runs(self.output_dir)
        found = []
        for run in runs:
            # The nearest place that tells a loss counts: a file further out may be of another run.
            places = [[run]]
            if len(runs) == 1 or run_outputs.is_of_training(run, self._attempts):
                places.append(self._attempts)
            if len(runs) == 1:
                places += [[self.output_dir], [self.output_dir.parent]]
            for folders in places:
                measured = _measured([folder / name for folder in folders], run)
                if measured:
                    found += measured
                    break
        return sorted(found, key=lambda measured: measured.loss)

    def _logged_losses(self) -> list[MeasuredLoss]:
        """Return the losses that trainers' logs tie to checkpoints of these runs, the lowest
        first."""
        runs = {run.absolute().name: run for run in run_outputs.runs(self.output_dir)}
        if self.log:
            found = _of_named_log(self.log, runs)
            return sorted(found, key=lambda measured: measured.loss)
        output = self.output_dir.absolute()
        logs: dict[Path, Path] = {}  # by what they are, for one may lie in two of these folders
        # Of equal copies the job's own is named: an adopted training has one where it came from.
        for folder in (*self._attempts, *runs.values(), output, output.parent):
            for pattern in TRAINER_LOGS:
                for path in sorted(folder.glob(pattern)):
                    logs[path.resolve()] = path
        found = []
        for path in logs.values():
            if path.is_file():
                found += _tied(path, trainer_log.saved_losses(_lines(path)), runs)
        return sorted(found, key=lambda measured: measured.loss)

    # -- the best link ---------------------------------------------------------------------------

    def _best(self, models: Sequence[Checkpoint]) -> Checkpoint:
        """Return the model that `best` means. Raises Failure for a broken link and for a damaged
        model."""
        best = self.best.among(models)
        if not best:
            problem = f"best names {self.best.named}, not one model of this folder."
            raise self._not_found(problem)
        if best.complete:
            return best
        message = f"it points to the damaged {best.name}"
        fix = flags(self.proposal())
        finding = findings.error("CKPT-BEST-DAMAGED", self.best.folder, message, fix)
        raise Failure([finding, *best.findings], findings.EXIT_CHECKS_FAILED)


# A refusal of `best` -> the warning about it in a list.
BEST_REFUSED = {"CKPT-NOT-FOUND": "CKPT-BEST-BROKEN", "CKPT-BEST-DAMAGED": "CKPT-BEST-DAMAGED"}


def flags(by: str) -> Fix:
    """Return the fix that chooses what was proposed; none for no proposal."""
    return Fix(flags={"--by": by} if by else {})


def is_training(folder: Path) -> bool:
    """Return whether it is a train job, its output or a run of it, and no model or adapter
    itself."""
    if not folder.is_dir() or run_outputs.is_model(folder):
        return False
    return job_of(folder) is not None or bool(run_outputs.runs(folder))


def job_of(folder: Path) -> Path | None:
    """Return a folder itself where it is that of a job."""
    return folder if (folder / job_folder.RECORD).is_file() else None


def nothing_found(folder: Path) -> Finding:
    """Return what to say of a folder without any checkpoint: the folder that was probably meant, or
    why none was saved."""
    # It may be a part of a run, or lie one or two levels above the output.
    meant = None
    for home in (folder.absolute(), folder.absolute().parent):
        if home.name in run_outputs.PARTS:
            meant = meant or home.parent
    if meant is None:
        below = []
        for part in run_outputs.PARTS:
            below += [path.parents[1] for path in folder.glob(f"*/*/{part}")]
            below += [path.parents[1] for path in folder.glob(f"*/*/*/{part}")]
        meant = min(below, default=None)
    if meant:
        message = "it is not the output folder of a train job"
        fix = shlex.join(["scripts/select_checkpoint.py", str(meant)])
        return findings.error("CKPT-NONE", folder, message, fix)
    home = job_folder.home_of(folder)
    if home:
        message = "no TIMESTAMP/safetensors/step_N is there: none was saved (yet)"
        fix = shlex.join(["scripts/launch_job.py", "status", str(home)])
        return findings.error("CKPT-NONE", folder, message, fix)
    message = "it holds no checkpoint; name the output folder of a training"
    for name in annotations.ROOT_FILES:
        if (folder / name).is_file():
            message = f"it is a dataset ({name}); name the output folder of a training"
    # Where the spec of the training lies there and has checkpoints off, that is why.
    fix = Fix()
    for path in (*folder.glob("*.toml"), *folder.glob("*/config.toml")):
        with suppress(Failure):
            if document.get(files.read_toml(path), ENABLED) is False:
                fix = Fix(changes={ENABLED: True})
    return findings.error("CKPT-NONE", folder, message, fix)


def _in_order(numbers: dict[str, float]) -> str:
    """Return the numbers of checkpoints as they are ranked, without the folders that all share."""
    names = [name.split("/") for name in numbers]
    shared = 0
    while len(names) > 1 and len({tuple(parts[: shared + 1]) for parts in names}) == 1:
        shared += 1
    shown = []
    for parts, value in zip(names, numbers.values(), strict=True):
        name = "/".join(parts[shared:]) if len(names) > 1 else parts[-1]
        shown.append(f"{name} {value:.6g}")
    if len(shown) > MOST_SHOWN:
        shown[MOST_SHOWN:] = [f"... and {len(shown) - MOST_SHOWN} more (--json)"]
    return ", ".join(shown)


# -- scores that do not compare ----------------------------------------------------------------


def unequal_scores(
    output_dir: Path, best: Checkpoint, scored: Sequence[Checkpoint]
) -> list[Finding]:
    """Return a warning where other scores were measured otherwise than that of the chosen
    checkpoint, as far as this was recorded."""
    differences = {}
    for other in scored:
        ways = [] if other is best else _differences(other, best)
        if ways:
            differences[other.name] = ", ".join(ways[:4])
    if not differences:
        return []
    shown = "; ".join(f"{name} had {ways}" for name, ways in list(differences.items())[:3])
    message = f"scores do not compare with that of {best.name}: {shown}"
    return [_unequal(output_dir, message, list(differences))]


def _unequal(output_dir: Path, message: str, names: list[str]) -> Finding:
    message += ". Evaluate them with one spec, then score each with scripts/score_predictions.py"
    return findings.warning("CKPT-UNEQUAL-SCORES", output_dir, message, checkpoints=names)


def _differences(other: Checkpoint, best: Checkpoint) -> list[str]:
    """Return in words how the evaluation of `other` was not that of `best`."""
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


# -- reading losses ----------------------------------------------------------------------------


def _of_named_log(log: Path, runs: dict[str, Path]) -> list[MeasuredLoss]:
    """Return the losses of a log that is known to be of this training. The only run here is the
    only run in it, whatever its folder is called, or several that saved no step twice. Where the
    log names no checkpoint, steps are matched by number."""
    saved_losses = trainer_log.saved_losses(_lines(log))
    if len(runs) != 1:
        return _tied(log, saved_losses, runs)
    (run,) = runs.values()
    if not saved_losses:
        return _measured([log], run)
    names = {saved.run for saved in saved_losses}
    checkpoints = {saved.checkpoint for saved in saved_losses}
    # A step that only one of its runs saved is that step here, wherever the run has been moved.
    if run.absolute().name not in names and len(checkpoints) == len(saved_losses):
        runs = dict.fromkeys(names, run)
    return _tied(log, saved_losses, runs)


def _tied(
    file: Path, saved_losses: Iterable[SavedLoss], runs: dict[str, Path]
) -> list[MeasuredLoss]:
    """Return the losses of checkpoints in these runs, which have the names that the log gives
    them."""
    found = []
    for saved in saved_losses:
        if saved.run in runs and _is_loss(saved.loss):
            run = runs[saved.run]
            other = saved.run if saved.run != run.absolute().name else ""
            measured = MeasuredLoss(
                saved.loss, run, saved.step, file, saved_as=saved.checkpoint, other_run=other
            )
            found.append(measured)
    return found


def _lines(file: Path) -> Iterator[str]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        yield from lines


def has_losses(log: Path) -> bool:
    """Return whether a trainer's log tells any validation loss."""
    return bool(_measured([log], log.parent))


def _measured(logs: Sequence[Path], run: Path) -> list[MeasuredLoss]:
    """Return the validation losses that metrics.jsonl or a trainer's log tells, or those of the
    attempts of one training, the last of each step. Which run saved a step, its checkpoints
    tell."""
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
    """Return whether a value is a finite loss. cosmos-rl reports 0.0 when its validation set is
    smaller than one batch."""
    return bool(value) and checkpoint_metrics.is_finite(value)


def _of_saved(
    measured: Iterable[MeasuredLoss], models: Sequence[Checkpoint]
) -> list[tuple[Checkpoint, MeasuredLoss]]:
    """Return the losses whose step was saved, each with its checkpoint."""
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
