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

from cosmos_reason import adapters, checkpoints, command, hub, safetensors_files, storage
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
        patterns = ["*.json", "*.jinja", "*.txt", "*.safetensors"]
        written = args.base_model or adapter.config["base_model_name_or_path"]
        base = hub.fetch_model(written, patterns, "--base-model")
        if f.has_errors(found := checkpoints.verify(base)):
            raise f.Failure(found, f.EXIT_CHECKS_FAILED)
        total = sum(tensor.nbytes for tensor in safetensors_files.read_folder(base)[0].values())
        adapters.merge(adapter, base, output, jobs=2, copied=storage.Progress(total))
    return output


def main(args) -> command.Outcome:
    output_dir = checkpoints.output_of(args.output_dir)
    if not args.by:
        if args.merge or args.fix_adapter or args.base_model:
            raise f.bad_input("CKPT-NOT-CHOSEN", "--by", "got none, expected it to say which adapter is meant")
        return listing(output_dir)
    chosen, notes = checkpoints.select(output_dir, args.by)
    result, path = {"selected": chosen.to_json()}, chosen.path
    if args.merge or args.fix_adapter:
        path = make(chosen, args)
        result["written"] = str(path)
    else:
        notes += chosen.findings
        if chosen.kind == checkpoints.ADAPTER:
            adapters.check_finite(adapters.read(chosen.path))
    return command.Outcome(result=result, findings=notes, text=str(path))


def listing(output_dir: Path) -> command.Outcome:
    found = checkpoints.find(output_dir)
    if not found:
        raise f.Failure(checkpoints.nothing_found(output_dir), f.EXIT_CHECKS_FAILED)
    rows = [checkpoint.to_json() for checkpoint in found]
    lines = []
    for row in rows:
        uses = f"can: {', '.join(row['can'])}" if row["complete"] else "damaged"
        lines.append(f"{row['kind']:8} {row['name']}  {uses}  {row['metrics'] or ''}".rstrip())
    notes = [finding for checkpoint in found for finding in checkpoint.findings]
    notes += checkpoints.best_note(output_dir, found)
    return command.Outcome(result={"selected": None, "checkpoints": rows}, findings=notes, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
