#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "numpy==2.4.6", "huggingface_hub==1.33.0", "boto3==1.44.5"]
# ///
"""List and verify what a train job left, and choose one checkpoint of it by task metric, validation loss or name.

examples:
  scripts/select_checkpoint.py results/train
  scripts/select_checkpoint.py results/train --by accuracy --json
  scripts/select_checkpoint.py results/train --by step_120 --merge models/merged

Without --by it only lists. What --by names is chosen or the command fails: it never takes the latest instead.
"""

import sys
from pathlib import Path

from cosmos_reason import adapters, bundle, checkpoints, command, hub, models, s3, safetensors_files, spec, storage
from cosmos_reason import findings as f


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("output_dir", type=command.local, help="folder of a train job, its output folder, or one run")
    chosen = "a metric of checkpoint_metrics.json (the highest; of a loss the lowest), the validation loss, the best"
    chosen += " link, or a name such as step_120 (default: choose nothing)"
    parser.add_argument("--by", metavar="METRIC|val_loss|best|NAME", help=chosen)
    made = parser.add_mutually_exclusive_group()
    made.add_argument("--merge", type=command.local, metavar="DIR", help="write adapter and base as one model folder")
    made.add_argument("--fix-adapter", type=command.local, metavar="DIR", help="write a copy that PEFT loads")
    parser.add_argument("--base-model", help="with --merge: the base, when it is not where the adapter says it was")
    command.add_json_flag(parser)
    return parser


def make(chosen: checkpoints.Checkpoint, args) -> Path:
    """Merge or fix the chosen adapter; returns the folder written."""
    output = args.merge or args.fix_adapter
    if chosen.kind != checkpoints.ADAPTER:
        message = f"got a {chosen.kind} folder, expected a LoRA adapter: it can be used as it is"
        raise f.bad_input("CKPT-NOT-ADAPTER", chosen.path, message)
    if output.exists():
        raise f.bad_input("CKPT-OUTPUT-EXISTS", output, "got something there, expected nothing yet")
    adapter = adapters.read(chosen.path)
    if args.fix_adapter:
        adapters.fix(adapter, output)
    else:
        written = args.base_model or adapter.config["base_model_name_or_path"]
        base = hub.fetch_model(written, ["*.json", "*.jinja", "*.txt", "*.safetensors"], "--base-model")
        if f.has_errors(found := checkpoints.verify(base)):
            raise f.Failure(found, f.EXIT_CHECKS_FAILED)
        total = sum(tensor.nbytes for tensor in safetensors_files.read_folder(base)[0].values())
        adapters.merge(adapter, base, output, jobs=2, copied=storage.Progress(total))
    return output


def main(args) -> command.Outcome:
    output_dir = checkpoints.output_of(args.output_dir)
    if not args.by:
        if args.merge or args.fix_adapter or args.base_model:
            names = [c.name for c in checkpoints.find(output_dir) if c.kind == checkpoints.ADAPTER and c.complete]
            message = f"got none, expected it to say which adapter is meant of: {', '.join(names) or 'none'}"
            raise f.bad_input("CKPT-NOT-CHOSEN", "--by", message, f"--by {names[-1]}" if names else "")
        return listing(output_dir)
    if args.base_model and not args.merge:
        raise f.bad_input("CKPT-NO-EFFECT", "--base-model", "got it without --merge, which alone reads a base")
    chosen, notes = checkpoints.select(output_dir, args.by)
    result, path = {"selected": chosen.to_json()}, chosen.path
    if args.merge or args.fix_adapter:
        path = make(chosen, args)
        result["written"] = str(path)
    if not args.merge:
        notes += chosen.findings
    unseen = any(found.id == "CKPT-ADAPTER-BASE" for found in notes)  # what follows would need the base
    return command.Outcome(result, notes, str(path), () if unseen else evaluation(path, args.output_dir, chosen))


def evaluation(path: Path, given: Path, chosen: checkpoints.Checkpoint) -> tuple[str, ...]:
    """The command that makes the spec to evaluate a model or adapter as it was trained, on the validation data of its
    train job; nothing when job or data are not told or not here."""
    places = (given, *chosen.path.absolute().parents)
    job = next((one for one in places if all((one / name).is_file() for name in ("job.json", "spec.toml"))), None)
    if job is None:
        return ()
    record, data = models.read_table(job / "job.json"), spec.get(spec.load(job / "spec.toml"), "custom.val_dataset")
    asked, media = (
        (str(data.get(key) or "") for key in ("annotation_path", "media_path")) if isinstance(data, dict) else ("", "")
    )
    if record.get("engine") not in bundle.ENGINES or not (s3.is_uri(asked) or Path(asked).is_file()):
        return ()
    words = ("build_spec.py", "evaluate", "--engine", record["engine"], "--model", str(path))
    if record.get("state") == "COMPLETE":
        words += ("--parent-job", str(job))  # its frames, pixels and system prompt
    if media and asked == f"{media.rstrip('/')}/annotations.json":
        words += ("--eval-root", media)
    else:
        words += ("--set", f"dataset.annotation_path={asked}", "--set", f"dataset.media_dir={media}")
    if base := models.adapter_base(str(path)):
        words += ("--set", "model.enable_lora=true", "--set", f"model.base_model_path={base}")
    return (*words, "-o", "evaluate.toml")


def listing(output_dir: Path) -> command.Outcome:
    found = checkpoints.find(output_dir, numbers=True)
    if not found:
        raise f.Failure(checkpoints.nothing_found(output_dir), f.EXIT_CHECKS_FAILED)
    rows = [checkpoint.to_json() for checkpoint in found]
    lines = []
    for row in rows:
        uses = f"can: {', '.join(row['can'])}" if row["complete"] else "damaged"
        lines.append(f"{row['kind']:8} {row['name']}  {uses}  {row['metrics'] or ''}".rstrip())
    notes = [finding for checkpoint in found for finding in checkpoint.findings]
    notes += checkpoints.best_note(output_dir, found)
    usable = [checkpoint for checkpoint in found if "evaluate" in checkpoint.to_json()["can"]]
    scores = [metric for metric in checkpoints.TASK_METRICS if any(metric in c.metrics for c in usable)]
    chosen = [("select_checkpoint.py", str(output_dir), "--by", by) for by in (scores or [c.name for c in usable[-1:]])]
    result = {"selected": None, "checkpoints": rows}
    return command.Outcome(result, notes, "\n".join(lines), chosen[0] if chosen else ())


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
