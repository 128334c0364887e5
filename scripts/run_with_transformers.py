#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "torch==2.13.0", "transformers==5.17.0", "peft==0.21.2",
#   "accelerate==1.15.0", "av==18.1.0", "pillow==13.0.0", "numpy==2.4.6", "tqdm==4.70.1",
# ]
# ///
"""Run one action of a spec with the embedded engine (transformers + PEFT): what launch_job starts for it.

examples:
  scripts/run_with_transformers.py train --config spec.toml
  scripts/run_with_transformers.py evaluate --config evaluate.toml --json    (the spec must name results_dir)
"""

import sys
from pathlib import Path

from cosmos_reason import command, findings, spec

ENGINE = "transformers"


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("action", choices=("train", "evaluate"), help="what to do")
    parser.add_argument("--config", type=Path, required=True, help="the spec to run (build_spec.py makes it)")
    parser.add_argument("--job-dir", type=Path, help="where metrics.jsonl goes (default: the run's output folder)")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    written = spec.load(args.config)
    found = spec.validate(args.action, written)
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_BAD_INPUT)
    if ignored := spec.unapplied(args.action, ENGINE, written):
        found.append(findings.warning("SPEC-NOT-APPLIED", args.config, f"this engine ignores {', '.join(ignored)}"))
    complete = spec.with_defaults(args.action, written)
    if args.action == "train":
        from cosmos_reason.transformers_engine import train as action
    else:
        from cosmos_reason.transformers_engine import evaluate as action
    result = action.run(complete, args.job_dir)
    return command.Outcome(result, found, "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
