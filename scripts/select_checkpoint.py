#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "numpy==2.4.6", "huggingface_hub==1.33.0"]
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

from cosmos_reason import adapters, checkpoints, command, conversion, findings, hub, models, safetensors_files


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("output_dir", type=Path, help="output folder of the train job, or one run (timestamp) of it")
    parser.add_argument(
        "--by",
        metavar="METRIC|val_loss|best|NAME",
        help="a metric of checkpoint_metrics.json (the highest; of a loss the lowest), the validation loss, "
        "the best link, or a name such as step_120 (default: choose nothing)",
    )
    made = parser.add_mutually_exclusive_group()
    made.add_argument(
        "--merge", type=Path, metavar="DIR", help="write the chosen adapter and its base as one model folder"
    )
    made.add_argument(
        "--fix-adapter", type=Path, metavar="DIR", help="write a copy of the chosen adapter that PEFT loads"
    )
    parser.add_argument("--base-model", help="with --merge: the base, when it is not where the adapter says it was")
    command.add_json_flag(parser)
    return parser


def base_folder(adapter: adapters.Adapter, written: str | None) -> Path:
    """The local folder of the adapter's base model; of a Hub model its snapshot."""
    name = models.canonical(written or adapter.config["base_model_name_or_path"])
    if not name.startswith(models.HUB):
        return Path(name)
    repo, secret = name.removeprefix(models.HUB), hub.token()
    patterns = ["*.json", "*.jinja", "*.txt", "*.safetensors"]
    return hub.snapshot(repo, hub.commit(repo, secret), patterns, None, secret)


def make(chosen: checkpoints.Checkpoint, args) -> Path:
    """Merge or fix the chosen adapter; returns the folder written."""
    output = (args.merge or args.fix_adapter).expanduser()
    if chosen.kind != checkpoints.ADAPTER:
        message = f"got a {chosen.kind} folder, expected a LoRA adapter: it can be used as it is"
        raise findings.bad_input("CKPT-NOT-ADAPTER", chosen.path, message)
    if output.exists():
        raise findings.bad_input("CKPT-OUTPUT-EXISTS", output, "got something there, expected nothing yet")
    adapter = adapters.read(chosen.path)
    if args.fix_adapter:
        adapters.fix(adapter, output)
    else:
        base = base_folder(adapter, args.base_model)
        total = sum(tensor.nbytes for tensor in safetensors_files.read_folder(base)[0].values())
        adapters.merge(adapter, base, output, jobs=2, copied=conversion.Progress(total))
    return output


def main(args) -> command.Outcome:
    output_dir = args.output_dir.expanduser()
    if not args.by:
        if args.merge or args.fix_adapter or args.base_model:
            raise findings.bad_input("CKPT-NOT-CHOSEN", "--by", "got none, expected it to say which adapter is meant")
        return listing(checkpoints.find(output_dir))
    chosen, notes = checkpoints.select(output_dir, args.by)
    result, path = {"selected": chosen.to_json()}, chosen.path
    if args.merge or args.fix_adapter:
        path = make(chosen, args)
        result["written"] = str(path)
    return command.Outcome(result=result, findings=notes, text=str(path))


def listing(found: list[checkpoints.Checkpoint]) -> command.Outcome:
    lines = [f"{'ok ' if c.complete else 'BAD'} {c.kind:8} {c.name}  {c.metrics or ''}".rstrip() for c in found]
    problems = [finding for checkpoint in found for finding in checkpoint.findings]
    rows = [checkpoint.to_json() for checkpoint in found]
    return command.Outcome(result={"selected": None, "checkpoints": rows}, findings=problems, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
