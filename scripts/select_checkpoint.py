#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "tqdm==4.70.1", "numpy==2.4.6", "huggingface_hub==1.33.0", "boto3==1.44.5",
#   "jinja2==3.1.6",
# ]
# ///
"""List and verify what a train job left, and choose one checkpoint of it by task metric,
validation loss or name.

examples:
  scripts/select_checkpoint.py results/train
  scripts/select_checkpoint.py results/train --by accuracy --json
  scripts/select_checkpoint.py results/train --by step_120 --merge models/merged
  scripts/select_checkpoint.py results/grpo --html grpo.html

Without --by it only lists. What --by names is chosen or the command fails:
it never takes the latest instead.
"""

import contextlib
import shlex
import sys
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import bundle, files, job_folder, progress
from cosmos_reason.base import findings as f
from cosmos_reason.checkpoints import (
    adapters,
    beside_weights,
    checkpoint_metrics,
    made_of,
    run_outputs,
    safetensors_files,
    selection,
)
from cosmos_reason.evaluation import as_trained, guard, serving
from cosmos_reason.remote import hub, model_names, s3
from cosmos_reason.spec import document

MOST_LISTED = 40  # checkpoints that the text lists


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, "--by --merge --html --base-model")
    parser.add_argument(
        "output_dir",
        type=cli.local,
        help="folder of a train job, its output folder, or one run; of --merge also an adapter",
    )
    chosen = (
        "a metric of checkpoint_metrics.json (one of your own with :min or :max), the validation "
    )
    chosen += "loss, the best link, or a name such as step_120 (default: choose nothing)"
    parser.add_argument("--by", metavar="METRIC|val_loss|best|NAME", help=chosen)
    parser.add_argument(
        "--log",
        type=cli.local,
        metavar="FILE",
        help="log of this training that tells validation losses (default: what lies there)",
    )
    made = parser.add_mutually_exclusive_group()
    made.add_argument(
        "--merge", type=cli.local, metavar="DIR", help="write adapter and base as one model folder"
    )
    made.add_argument(
        "--fix-adapter", type=cli.local, metavar="DIR", help="write a copy that PEFT loads"
    )
    parser.add_argument(
        "--html",
        type=cli.local,
        metavar="FILE",
        help="of reinforcement learning: page of its curves and of completions at each checkpoint",
    )
    parser.add_argument(
        "--base-model", help="with --merge: the base, when it is not where the adapter says it was"
    )
    cli.add_output_flags(parser)
    return parser


def make(chosen: run_outputs.Checkpoint, args) -> tuple[Path, list[f.Finding]]:
    """Merge or fix the chosen adapter; return the folder written, and what is doubtful about it."""
    output = args.merge or args.fix_adapter
    if chosen.kind != run_outputs.ADAPTER:
        flag = "--merge" if args.merge else "--fix-adapter"
        message = f"{flag} takes a LoRA adapter; this {chosen.kind} can be used as it is"
        # A model that is named by its folder alone leaves nothing else to do here.
        fix = f"drop {flag} {shlex.quote(str(output))}" if args.by else ""
        raise f.bad_input("CKPT-NOT-ADAPTER", chosen.path, message, fix)
    if output.exists():
        raise f.bad_input("CKPT-OUTPUT-EXISTS", output, "something is there already")
    adapter = adapters.read(chosen.path)
    notes = []
    if args.fix_adapter:
        adapters.fix(adapter, output)
    else:
        trained_on = adapter.config["base_model_name_or_path"]
        written = args.base_model or trained_on
        is_named = _is_same_model(written, trained_on)
        # `main` may have moved since the adapter was trained.
        revision = adapter.config.get("revision") if is_named else None
        files_of = ["*.json", "*.jinja", "*.txt", "*.safetensors"]
        base = hub.fetch_model(written, files_of, "--base-model", revision=revision)
        found = run_outputs.verify(base, whole=True)
        if f.has_errors(found):
            raise f.Failure(found, f.EXIT_CHECKS_FAILED)
        notes += found
        own = beside_weights.chat_template([chosen.path])
        if own is not None and own != beside_weights.chat_template([base]):
            message = (
                "the chat template beside the adapter is another than that of the base, which the "
                "merged model takes: compare the two, and copy that of the training"
            )
            notes.append(f.warning("CKPT-TEMPLATE-OTHER", chosen.path, message))
        if not is_named and not made_of.trained_on(chosen.path):
            message = (
                f"nothing proves that these are the weights of {trained_on}, which the adapter "
                "names: their shapes fit, as those of all models of this size do"
            )
            notes.append(f.warning("CKPT-BASE-UNPROVEN", args.base_model, message))
        total = sum(tensor.nbytes for tensor in safetensors_files.read_folder(base)[0].values())
        adapters.merge(adapter, base, output, jobs=2, copied=progress.of_bytes(total, "merge"))
    as_trained.carry(chosen.path, output)
    return output, notes


def _is_same_model(written: str, other: str) -> bool:
    """Return whether two names are of one model, or one path."""
    with contextlib.suppress(f.Failure):
        return model_names.canonical(written) == model_names.canonical(other)
    return written == other


def main(args) -> cli.Outcome:
    job = args.output_dir
    if args.log is not None:
        refuse_log_without_losses(args.log)
    training = selection.Training(run_outputs.output_of(job), job, args.log)
    if args.html:
        return pictured(training, args.html)
    if args.by:
        if args.base_model and not args.merge:
            message = "it has no effect without --merge, which alone reads a base"
            fix = f"drop --base-model {shlex.quote(args.base_model)}"
            raise f.bad_input("CKPT-NO-EFFECT", "--base-model", message, fix)
        return told(args, *training.select(args.by))
    if not (args.merge or args.fix_adapter or args.base_model):
        return listing(training)
    if run_outputs.is_model(job) and (args.merge or args.fix_adapter):
        # An adapter that is named by its folder, wherever it lies.
        kind, problems = run_outputs.kind(job), run_outputs.verify(job)
        chosen = run_outputs.Checkpoint(job, job.name, job.name, kind, problems)
        if not chosen.complete:
            raise f.Failure(chosen.findings, f.EXIT_CHECKS_FAILED)
        return told(args, chosen, [])
    adapters_here = [one for one in training.found if one.kind == run_outputs.ADAPTER]
    raise training.not_chosen(adapters_here, "adapter")


def told(args, chosen: run_outputs.Checkpoint, notes: list[f.Finding]) -> cli.Outcome:
    """Make what was asked for of the chosen one, and say what can be done with it."""
    job = args.output_dir
    result = {"selected": chosen.to_json()}
    if chosen.guard:
        notes.append(guard.verdict(chosen.guard, chosen.name))
    path = chosen.path
    if args.merge or args.fix_adapter:
        path, doubts = make(chosen, args)
        notes += doubts
        result["written"] = str(path)
    if not args.merge:
        # What PEFT does not know is not in the copy that --fix-adapter writes.
        mended = {"CKPT-ADAPTER-FIELDS"} if args.fix_adapter else set()
        notes += [finding for finding in chosen.findings if finding.id not in mended]
    if any(finding.id == "CKPT-ADAPTER-BASE" for finding in notes):
        return cli.Outcome(result, notes, str(path))  # what follows would need the base
    following = evaluation(path, job, chosen)
    if not args.merge and chosen.kind == run_outputs.ADAPTER:
        return cli.Outcome(result, notes, str(path), following)
    result["serve"] = serving.command(str(path), path.name, chosen.path)
    return cli.Outcome(result, notes, str(path), following, serve=result["serve"])


def pictured(training: selection.Training, path: Path) -> cli.Outcome:
    """Write the page of the newest run."""
    from cosmos_reason.pages import reinforcement

    runs = run_outputs.runs(training.output_dir)
    if not runs:
        raise f.Failure(selection.nothing_found(training.output_dir), f.EXIT_CHECKS_FAILED)
    files.write_text(path, reinforcement.page(runs[-1]))
    return cli.Outcome({"html": str(path), "run": str(runs[-1])}, [], str(path))


def refuse_log_without_losses(log: Path) -> None:
    if not log.is_file():
        raise f.bad_input("FILE-MISSING", log, "there is no such file; name a trainer's log")
    if not selection.has_losses(log):
        message = (
            "it tells no validation loss; name the log of a training with validation "
            "(policy_0.log of cosmos-rl, log.txt of a job)"
        )
        raise f.bad_input("CKPT-LOG", log, message)


def evaluation(path: Path, given: Path, chosen: run_outputs.Checkpoint) -> tuple[str, ...]:
    """Return the command that makes the spec to evaluate a model or adapter as it was trained.

    The data are those that its train job was validated on; there is no command when the job or
    the data are not named or not here.
    """
    job = train_job(given, chosen.path)
    if job is None:
        return ()
    record = job_folder.read(job)
    if record.get("engine") not in bundle.ENGINES:
        return ()
    data = validation_data(job_folder.here(job, document.load(job / "spec.toml")))
    if data is None:
        return ()
    words = ["build_spec.py", "evaluate", "--engine", record["engine"], "--model", str(path)]
    if record.get("state") == "COMPLETE":
        words += ["--parent-job", str(job)]  # its frames, pixels and system prompt
    words += data
    return (*words, "-o", "evaluate.toml")


def train_job(given: Path, chosen: Path) -> Path | None:
    """Return the job that was given or wrote the chosen model, with its record and spec; of one
    that was retried the last."""
    for home in (job_folder.home_of(given), job_folder.home_of(chosen)):
        for job in reversed(job_folder.attempts(home) if home else ()):
            if (job / "spec.toml").is_file():
                return job
    return None


def validation_data(spec: dict) -> list[str] | None:
    """Return the flags of build_spec for the data that a training was validated on; None when they
    are not here."""
    data = document.get(spec, "custom.val_dataset")
    if not isinstance(data, dict):
        return None
    annotations = str(data.get("annotation_path") or "")
    media = str(data.get("media_path") or "")
    if not s3.is_uri(annotations) and not Path(annotations).is_file():
        return None
    if media and annotations == f"{media.rstrip('/')}/annotations.json":
        return ["--eval-root", media]
    flags = ["--set", f"dataset.annotation_path={annotations}"]
    return [*flags, "--set", f"dataset.media_dir={media}"]


def listing(training: selection.Training) -> cli.Outcome:
    if not training.found:
        raise f.Failure(selection.nothing_found(training.output_dir), f.EXIT_CHECKS_FAILED)
    rows = []
    for checkpoint in training.found:
        loss = training.val_losses.get(checkpoint.name)
        rows.append(checkpoint.to_json() | {"val_loss": loss})
    lines = []
    for row in rows[:MOST_LISTED]:
        words = [f"{row['kind']:8} {row['name']}"]
        if row["val_loss"] is not None:
            words.append(f"val_loss {row['val_loss']:.6g}")
        shown = [name for name in checkpoint_metrics.TASK_METRICS if name in row["metrics"]]
        # What no task metric says, the numbers of a user's own metric may.
        for name in shown[:1] or row["metrics"]:
            words.append(f"{name} {row['metrics'][name]:.6g}")
        words.append(f"can: {', '.join(row['can'])}" if row["complete"] else "damaged")
        if row["superseded_by"]:
            words[-1] += f", superseded by run {row['superseded_by']}"
        lines.append("  ".join(words))
        if row["guard"]:
            lines.append(f"{'':8} {guard.in_words(row['guard'])}")
    if len(rows) > MOST_LISTED:
        lines.append(f"... and {len(rows) - MOST_LISTED} more (--json lists all of them)")
    notes = [finding for checkpoint in training.found for finding in checkpoint.findings]
    notes += [*training.best_note(), *training.unchanged]
    by = training.proposal()
    following = ()
    if by:
        log = ["--log", str(training.log)] if training.log else []
        following = ("select_checkpoint.py", str(training.job), "--by", by, *log)
    result = {"selected": None, "checkpoints": rows}
    return cli.Outcome(result, notes, "\n".join(lines), following)


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
