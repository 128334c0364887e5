#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""List and verify what a train job left, and choose one checkpoint of it by task metric, validation loss or name.

examples:
  scripts/select_checkpoint.py results/train
  scripts/select_checkpoint.py results/train --by accuracy --json
  scripts/select_checkpoint.py results/train --by step_120

Without --by it only lists. What --by names is chosen or the command fails: it never takes the latest instead.
"""

import sys
from pathlib import Path

from cosmos_reason import checkpoints, command


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("output_dir", type=Path, help="output folder of the train job, or one run (timestamp) of it")
    parser.add_argument(
        "--by",
        metavar="METRIC|val_loss|best|NAME",
        help="a metric of checkpoint_metrics.json (the highest; of a loss the lowest), the validation loss, "
        "the best link, or a name such as step_120 (default: choose nothing)",
    )
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    output_dir = args.output_dir.expanduser()
    if args.by:
        chosen, findings = checkpoints.select(output_dir, args.by)
        return command.Outcome(result={"selected": chosen.to_json()}, findings=findings, text=str(chosen.path))
    found = checkpoints.find(output_dir)
    lines = [f"{'ok ' if c.complete else 'BAD'} {c.kind:8} {c.name}  {c.metrics or ''}".rstrip() for c in found]
    findings = [finding for checkpoint in found for finding in checkpoint.findings]
    rows = [checkpoint.to_json() for checkpoint in found]
    return command.Outcome(result={"selected": None, "checkpoints": rows}, findings=findings, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
