"""How a job ended. An exit code proves nothing (a parent can return 0 after its worker died):
COMPLETE needs what the action was started for, whole and made by this job.

The supervisor of a job starts with it and asks this at the end: what only some endings need is
imported there.
"""

from __future__ import annotations

import math
import os
import re
import signal
import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path

from cosmos_reason.base import files, secrets
from cosmos_reason.base.findings import ERROR, Failure, Finding, error, has_errors, outside, warning
from cosmos_reason.checkpoints import best_link, left_out, run_outputs
from cosmos_reason.jobs import claims, progress, record
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import document

STOPPED = "ENGINE-STOPPED"  # what the embedded engine says when a signal ended it
# The lines of torchrun and srun about the end of ranks, tracebacks of torchrun among them.
ABOUT_RANKS = re.compile(
    r"\s|[IWE]\d{4} .*torch/distributed/|Traceback |During handling |Call stack:|--- Logging|=====|"
    r"-----|Failures:|Root Cause |\[\d+\]:|\S+ FAILED$|torch\.distributed\.|srun: |slurmstepd"
)
# What srun and slurmstepd say of a step that ends; of other things they tell the cause.
ABOUT_STEPS = re.compile(
    r"srun: (launch/slurm: |Job step aborted|Terminating |Complete |forcing job termination|"
    r"got SIGCONT|"
    r"error: \S+: tasks? )|slurmstepd\S*: error: \*\*\* "
)
# Notes of SLURM about jobs that may succeed when they are tried again.
TAKEN = re.compile(r"SLURM: (BOOT_FAIL|DEADLINE|NODE_FAIL|PREEMPTED|REVOKED|TIMEOUT)")
SIGNALS = 64  # the highest number of one; 255 is what srun or ssh say of their own failures
LEFT_OUT = {left_out.TRAINING: "records", left_out.VALIDATION: "validation_records"}
# What engine/conversations.py says.
SKIPPED = re.compile(
    r"skipped record (.+) of (train_dataset|val_dataset) \(\d+ of at most \d+, of (\d+) in all\): "
)
SKIPPED_OF = {
    "train_dataset": LEFT_OUT[left_out.TRAINING],
    "val_dataset": LEFT_OUT[left_out.VALIDATION],
}
SAVES = "train.ckpt.enable_checkpoint"
FEWEST_LOSSES = 20  # to call their rise one
HIGH_LOSS = 2.0  # a first batch of less may be luck
LOG_LINES = 2_000_000  # of the log's beginning that are searched for known errors


def ended(job: Job, exit_code: int | None, problem: str = "", note: str = "") -> Job:
    """Return the record with the ending that the job's files prove. `exit_code` is None when nobody
    saw one; `problem` says why the work was never started, `note` what else the platform saw."""
    exit_text = "no exit code is known"
    if exit_code is not None:
        exit_text = describe_exit(exit_code)
    elif job.platform != "slurm":  # where nothing of ours waits for a job
        exit_text += ", because what waited for it was killed"
        if job.place and job.place.is_moved:
            exit_text += ", or its folder was moved as it ran"
    if problem or not job.started_at:
        found = {}
        missing = problem or "the launch was interrupted before the work was started"
        exit_text = ""
    else:
        found, missing = gather(job)
    diagnosed: list[dict] = []
    # An exit code of 0 is not enough, and none at all is no failure: whoever waited for it may have
    # been killed while the work came to its end. The evidence decides.
    if exit_code in (0, None) and not missing:
        state = record.COMPLETE
        reasons = [exit_text if exit_code is None else "", *_remarks(found)]
    elif record.cancel_requested(job.folder):
        state = record.CANCELED
        reasons = ["canceled", missing or exit_text, _goes_on(job)]
    else:
        state = record.ERROR
        reasons = [missing, exit_text, note, _last_line(job)]
        log = job.folder / record.LOG
        if job.started_at and log.is_file():
            from cosmos_reason.jobs import diagnosis

            with open(log, encoding="utf-8", errors="replace") as printed:
                lines = islice(diagnosis.read_lines(printed), LOG_LINES)
                causes = diagnosis.diagnose(lines, record.LOG, job.action)
            errors = [finding for finding in causes if finding.severity == ERROR]
            diagnosed = [diagnosis.for_job(finding, job).to_json() for finding in errors]
        # What was ended from outside may succeed when it is tried again.
        was_stopped = any(finding["id"] == STOPPED for finding in diagnosed)
        if job.started_at and (TAKEN.match(note) or was_stopped):
            reasons.append(_goes_on(job))
    ended_at = record.now()
    if exit_code is None:  # nobody saw the end: when the job last wrote something
        times = [record.seconds(job.started_at or job.created_at)]
        for path in (job.folder / record.LOG, job.folder / record.METRICS):
            if path.is_file():
                times.append(path.stat().st_mtime)
        ended_at = record.time_text(max(times))
    return replace(
        job,
        state=state,
        reason=secrets.hidden("; ".join(filter(None, reasons))),
        exit_code=exit_code,
        ended_at=ended_at,
        evidence=job.evidence | found,
        diagnosis=diagnosed,
    )


def _remarks(found: dict) -> list[str]:
    """Return what a complete job did not do for a part of its work."""
    remarks = []
    if found.get("failed"):
        failed = f"{found['failed']} of {found['rows']} rows are errors"
        remarks.append(f"{failed}: launch_job.py retry asks these again")
    if found.get("flat_steps"):
        steps = f"{found['flat_steps']} of {found['total_steps']} steps"
        remarks.append(f"{steps} taught nothing: all their rewards were equal")
    if found.get("loss_rose"):
        began, ended_at = found["loss_rose"]
        remarks.append(
            f"the loss rose from {began:.4g} to {ended_at:.4g}: the training diverged, "
            "take a lower train.optm_lr"
        )
    for key, (count, told) in found.get("not_finite", {}).items():
        remarks.append(f"{count} of {told} values of {key} are no numbers")
    for key in LEFT_OUT.values():
        if found.get(f"skipped_{key}"):
            left = f"{found[f'skipped_{key}']:,}"
            if key in found:
                left += f" of {found[key]:,}"
            left += f" {key.replace('_', ' ')}"
            remarks.append(
                f"{left} were left out: their media could not be read "
                f"({found['left_out']} names them)"
            )
    return remarks


def _goes_on(job: Job) -> str:
    """Return how a training that was ended is taken up again, '' where it saved nothing."""
    state = job.newest_resume()
    if not state:
        return ""
    step = run_outputs.step_number(Path(state).parent)
    return f"{record.command('retry', job.folder)} goes on from step {step}"


def _last_line(job: Job) -> str:
    """Return how the log ends, '' for an empty one. A fix is no ending, nor is what a launcher says
    of its ranks: the error stands before it."""
    lines = progress.log_tail(job.folder, 300)
    if "torch.distributed.run" in job.command:
        lines = [line for line in lines if not ABOUT_RANKS.match(line)]
    if job.platform == "slurm":
        lines = [line for line in lines if not ABOUT_STEPS.match(line)]
    said = [line for line in lines if line.strip() and not line.lstrip().startswith("fix:")]
    return f"log ends: {said[-1][:300]}" if said else ""


def describe_exit(exit_code: int) -> str:
    if exit_code <= 128 or exit_code > 128 + SIGNALS:
        return f"exit code {exit_code}"
    number = exit_code - 128
    if number == signal.SIGKILL:
        return "ended by SIGKILL (often: out of memory)"
    try:
        return f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"


def gather(job: Job) -> tuple[dict, str]:
    """Return (evidence fields, what is missing for COMPLETE or '')."""
    for path in job.outputs.values():
        # What lies there now may be the later job's.
        owner = claims.owner(path)
        if owner not in (None, job.folder.name):
            return {}, f"its output folder now belongs to {owner}"
    look = {
        "train": _of_training,
        "grpo": _of_reinforcement,
        "evaluate": _of_rows,
        "inference": _of_rows,
        "quantize": _of_quantization,
    }[job.action]
    try:
        return look(job)
    except (Failure, OSError) as problem:
        return {}, str(problem)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        # The program may have written anything.
        kind = type(problem).__name__
        return {}, f"its results have another form than expected: {kind}: {problem}"


# -- training ----------------------------------------------------------------------------------


def _of_training(job: Job) -> tuple[dict, str]:
    last = progress.newest(job.folder, whole=True)
    last_step, total_steps = last.get("step"), last.get("total_steps")
    found = {"last_step": last_step, "total_steps": total_steps}
    if last_step is None:
        return found, "no step was recorded"
    if last_step != total_steps:
        return found, f"stopped at step {last_step} of {total_steps}"
    output_dir = Path(job.outputs["output_dir"])
    final = []
    for model in run_outputs.models(output_dir) if output_dir.is_dir() else ():
        if model.step == "final" or run_outputs.step_number(model.path) == last_step:
            final.append(model)
    written = job.wrote(model.path for model in final)  # what was there before proves nothing
    models = [model for model in final if model.path in written]
    if not models:
        missing = f"{output_dir} has no model of the last step"
        spec = job.folder / record.SPEC
        if spec.is_file() and document.get(document.load(spec), SAVES) is False:
            missing += f": {SAVES} is false"
        return found, missing
    if job.engine == "transformers":  # other engines do not say whose run it is
        models = [
            model
            for model in models
            if run_outputs.run_marked_by(model.path.parents[1]) == job.folder.name
        ]
        if not models:
            return found, f"{output_dir} has a model of the last step, but none that this job wrote"
        from cosmos_reason.checkpoints import uploads

        # What its run did not do; of uploads also the run that it went on from.
        not_uploaded = [uri for one in runs_of(job) for uri in uploads.failed(one)]
        if not_uploaded:
            found["not_uploaded"] = not_uploaded
        run = models[-1].path.parents[1]
        for name, (skipped, records) in left_out.counts(run).items():
            if skipped:
                key = LEFT_OUT[name]
                found |= {f"skipped_{key}": skipped, key: records}
                found["left_out"] = str(run / left_out.FILE)
    else:
        found |= _skipped_in_log(job)
    lines, _ = progress.read_metrics(job.folder)
    # cosmos-rl goes on with numbers that are none.
    for key in ("train/loss", "val/avg_loss"):
        told = [line[key] for line in lines if key in line]
        if count := sum(not math.isfinite(loss) for loss in told):
            found.setdefault("not_finite", {})[key] = [count, len(told)]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    losses = [loss for loss in losses if math.isfinite(loss)]
    if job.action == "train" and len(losses) >= FEWEST_LOSSES:
        # One batch says little: medians are compared, of the first steps, which a warm-up leaves
        # near the loss of the untouched model, and of the last tenth.
        began = statistics.median(losses[: max(1, len(losses) // 50)])
        came_to = statistics.median(losses[-(len(losses) // 10) :])
        if came_to > max(HIGH_LOSS, 2 * began):
            found["loss_rose"] = [began, came_to]
    found["checkpoint"] = str(models[-1].path)
    run = models[-1].path.parents[1]
    best = best_link.step_of(run)
    if best:
        found["best"] = str(run / "safetensors" / best)
    missing = found.get("not_uploaded")
    damage = _damage(models[-1].findings)
    if damage or not missing:
        return found, damage
    # The job was started for its uploads, too.
    shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
    return found, (
        f"trained to step {last_step}, the model is whole, but {len(missing)} of its "
        f"uploads failed: {shown}; {record.command('upload', job.folder)} sends them again"
    )


def runs_of(job: Job) -> list[Path]:
    """Return the runs of a training of the embedded engine: its own, and the one that it went on
    from."""
    runs = run_outputs.runs(Path(job.outputs["output_dir"]))
    return [run for run in runs if run_outputs.run_marked_by(run) == job.folder.name]


def _skipped_in_log(job: Job) -> dict:
    """Return the records that cosmos-rl's dataset script left out, as its log names them: one that
    several processes came upon counts once."""
    path = job.folder / record.LOG
    if not path.is_file():
        return {}
    records = defaultdict(set)
    totals = {}
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in islice(log, LOG_LINES):
            skipped = SKIPPED.search(line)
            if skipped:
                name, table, total = skipped.groups()
                key = SKIPPED_OF[table]
                records[key].add(name)
                totals[key] = int(total)
    found: dict = {}
    for key, lost in records.items():
        found |= {f"skipped_{key}": len(lost), key: totals[key], "left_out": str(path)}
    return found


def _of_reinforcement(job: Job) -> tuple[dict, str]:
    """Return the evidence of a training, and that the rewards of some step differed: an advantage
    is a difference."""
    found, missing = _of_training(job)
    lines, _ = progress.read_metrics(job.folder)
    spreads = [line["train/reward_std"] for line in lines if "train/reward_std" in line]
    found["flat_steps"] = spreads.count(0)
    if not missing and spreads and not any(spreads):
        missing = "nothing was learned: in every step all completions earned the same reward"
    return found, missing


def _damage(findings: list[Finding]) -> str:
    for finding in findings:
        if has_errors([finding]):
            return f"the last model is damaged: {finding.id} {finding.where}: {finding.message}"
    return ""


def damage_in_list(job: Job) -> Finding | None:
    """Return what `damaged_since` finds, and look only where something of the model was written,
    added or taken away since the job ended: a list is to be quick."""
    path = Path(str(job.evidence.get("checkpoint") or ""))
    if job.state != record.COMPLETE or not path.name or not job.ended_at:
        return None
    ended = record.seconds(job.ended_at)
    try:
        newest = max(one.stat().st_mtime for one in [path, *path.iterdir()])
    except OSError:  # gone, or not to be looked into
        return damaged_since(job)
    return damaged_since(job) if newest > ended + 1 else None  # records hold whole seconds


def damaged_since(job: Job) -> Finding | None:
    """Return an error for a job that left a whole model which is damaged by now: sizes, headers and
    a sample of each tensor are read, where the folder is here. A warning where it is gone."""
    path = Path(str(job.evidence.get("checkpoint") or ""))
    if job.state != record.COMPLETE or not path.name:
        return None
    if not path.is_dir():
        output = next(iter(job.outputs.values()), "")
        if not os.path.isdir(output):  # all of it is on another machine, or was put away
            return None
        message = "the job was complete, and since then its last model was deleted or moved"
        return warning("JOB-CHECKPOINT-GONE", path, message)
    damage = _damage(run_outputs.verify(path))
    if not damage:
        return None
    message = f"the job was complete, and since then {damage}"
    return error("JOB-CHECKPOINT-DAMAGED", path, message)


# -- rows of answers ---------------------------------------------------------------------------


def _of_rows(job: Job) -> tuple[dict, str]:
    """Return the evidence of an evaluation or an inference: a row for every question. TAO writes
    into a folder of its own, without ids; its inference does not say how many questions it had."""
    from cosmos_reason.data import annotations
    from cosmos_reason.evaluation import guard
    from cosmos_reason.evaluation.saved_answers import EVALUATION, INFERENCE

    is_ours, evaluates = job.engine == "transformers", job.action == "evaluate"
    names = EVALUATION if evaluates or not is_ours else INFERENCE
    results_dir = Path(job.outputs["results_dir"])
    # One file per checkpoint, two where a guard's general questions are asked too, or where TAO is
    # asked medium by medium one for each.
    expected = len(job.options.get("checkpoints", ())) or 1
    if evaluates and is_ours and guard.annotations(document.load(job.spec_path)):
        expected *= 2
    if not evaluates and job.engine == "tao":
        media = Path(document.load(job.spec_path)["media"])
        if media.is_dir():
            shown = [path for path in media.iterdir() if not path.name.startswith(".")]
            expected = sum(path.is_file() for path in shown)
    written = job.wrote(results_dir.rglob(names.rows))
    written.sort(key=lambda path: (len(path.parts), path))
    if len(written) < max(1, expected):
        suffix = f", expected {expected}" if expected > 1 else ""
        return {}, f"{len(written) or 'no'} {names.rows} was written in {results_dir}{suffix}"
    found = {"rows": 0, "failed": 0}
    if evaluates or is_ours:
        found["questions"] = 0
    errors: Counter[str] = Counter()
    for path in written[:expected]:
        rows = files.read_json(path)
        is_list = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        if not is_list or not rows:
            return found, f"{path} is no list of rows"
        found["rows"] += len(rows)
        errors.update(str(row["error"]) for row in rows if row.get("error"))
        if "questions" not in found:
            continue
        # How many questions the run had that wrote the rows: its own note, else the data of TAO.
        note = path.with_name(names.record)
        if note.is_file() and job.wrote([note]):
            noted = files.read_json(note)
            author = noted.get("job_id")
            if is_ours and author != job.folder.name:
                raise outside("JOB-EVIDENCE", note, f"was written by {author or 'no job'}")
            questions = int(noted["questions"])
        elif is_ours:
            raise outside("JOB-EVIDENCE", note, "was not written")
        else:
            spec = document.with_defaults("evaluate", document.load(job.spec_path))
            samples, _ = annotations.read(spec["dataset"]["annotation_path"])
            limit = spec["evaluation"]["limit"]
            questions = min(limit, len(samples)) if limit > 0 else len(samples)
        found["questions"] += questions
        if len(rows) != questions:
            return found, f"{path} has {len(rows)} rows for {questions} questions"
        ids = [row["id"] for row in rows if "id" in row]
        if len(set(ids)) != len(ids):
            return found, f"{path} has two rows with the same id"
    found["failed"] = errors.total()
    if found["failed"] < found["rows"]:
        return found, ""
    commonest = "".join(text for text, _ in errors.most_common(1))
    return found, f"every row is an error, most often: {commonest[:200]}"


# -- quantization ------------------------------------------------------------------------------


def _of_quantization(job: Job) -> tuple[dict, str]:
    results_dir = Path(job.outputs["results_dir"])
    if job.engine == "transformers":
        from cosmos_reason.checkpoints import quantized

        # The record names this job, the model is whole, it has answered, and so has the original
        # where that was asked for.
        made = quantized.read_record(results_dir)
        if not made or not job.wrote([results_dir / quantized.RECORD]):
            return {}, f"no quantized model was written in {results_dir}"
        if made["job_id"] != job.folder.name:
            return {}, f"{results_dir} was written by {made['job_id'] or 'no job'}"
        found = {"checkpoint": str(results_dir), "verdict": made["verdict"]}
        spec = document.with_defaults("quantize", document.load(job.spec_path))
        if not made["trial"] and not spec["quantize"]["skip_test_generation"]:
            return found, "the quantized model has answered nothing"
        if not made["accuracy"] and spec["evaluation"]["annotation_path"]:
            return found, "original and quantized model were not compared"
        return found, _damage(quantized.verify(results_dir))
    for config in job.wrote(sorted(results_dir.rglob("config.json"))):
        if "quantization_config" in files.read_json(config):
            model = config.parent
            return {"checkpoint": str(model)}, _damage(run_outputs.verify(model))
    return {}, f"no quantized model was written in {results_dir}"
