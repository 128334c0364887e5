#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "torch==2.13.0", "transformers==5.17.0", "peft==0.21.2",
#   "accelerate==1.15.0", "av==18.1.0", "pillow==13.0.0", "numpy==2.4.6", "tqdm==4.70.1", "boto3==1.44.5",
#   "huggingface_hub==1.33.0",
# ]
# ///
"""Run one action of a spec with the embedded engine (transformers + PEFT): what launch_job starts for it.

examples:
  scripts/run_with_transformers.py train --config spec.toml
  scripts/run_with_transformers.py evaluate --config evaluate.toml --checkpoint outputs
  scripts/run_with_transformers.py evaluate --config evaluate.toml --endpoint http://localhost:8000/v1 --json

The spec must name its output folder (results_dir, train.output_dir). A killed evaluation continues where it stopped.
"""

import argparse
import sys
from pathlib import Path

from cosmos_reason import command, findings, rules, spec, storage

ENGINE = "transformers"


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("action", choices=("train", "evaluate"), help="what to do")
    parser.add_argument("--config", type=Path, required=True, help="the spec to run (build_spec.py makes it)")
    parser.add_argument("--job-dir", type=Path, help="where metrics.jsonl goes (default: the run's output folder)")
    only = parser.add_argument_group("evaluate")
    who = only.add_mutually_exclusive_group()
    server = "OpenAI-compatible server that answers, up to /v1 (default: model.model_name answers here)"
    who.add_argument("--endpoint", metavar="URL", help=server)
    many = "model folders, or train outputs for all their models: a results folder each (default: model.model_name)"
    who.add_argument("--checkpoint", type=Path, nargs="+", default=[], metavar="DIR", help=many)
    part = "answer part I of N of the questions; whoever answers the last one writes results.json (default: all)"
    only.add_argument("--shard", type=shard, metavar="I/N", help=part)
    command.add_json_flag(parser)
    return parser


def shard(written: str) -> tuple[int, int]:
    number, _, count = written.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"got {written!r}, expected a part such as 1/4 (from 1/4 to 4/4)")
    return int(number) - 1, int(count)


def main(args) -> command.Outcome:
    written = spec.load(args.config)
    found = rules.check(args.action, ENGINE, written, launch=True)
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_BAD_INPUT)
    complete = spec.with_defaults(args.action, written)
    if args.action == "evaluate":
        return evaluate(args, complete, found)
    if args.endpoint or args.checkpoint or args.shard:
        raise findings.bad_input("USAGE", args.action, "got --endpoint, --checkpoint or --shard, which are evaluate's")
    from cosmos_reason.transformers_engine import train

    result = train.run(complete, args.job_dir)
    return command.Outcome(result, found, "\n".join(f"{name}: {value}" for name, value in result.items()))


def evaluate(args, complete: dict, found: list[findings.Finding]) -> command.Outcome:
    from cosmos_reason.transformers_engine import evaluate

    specs = [complete]
    if args.checkpoint:
        specs, skipped = evaluate.of_checkpoints(complete, args.checkpoint)
        found += skipped
    for finding in (finding for one in specs for finding in evaluate.mismatches(one)):
        found += [] if finding in found else [finding]
    if args.endpoint and complete["custom"]["endpoint"]["frames"] == "images":
        message = "clips go as still images, about twice the vision tokens of a video: compare only with runs like this"
        fix = "--set custom.endpoint.frames=video"
        found.append(findings.info("EVAL-ENDPOINT-IMAGES", args.endpoint, message, fix))
    print(findings.as_text(found), end="\n" if found else "", file=sys.stderr)  # now, not after hours
    if complete["num_gpus"] > 1 and not (args.shard or args.endpoint):
        folders = [one["results_dir"] for one in specs]
        results = evaluate.on_every_gpu([sys.executable, *sys.argv], complete["num_gpus"], folders)
    else:
        part = evaluate.Shard(*args.shard) if args.shard else evaluate.ALL
        digest = storage.sha256(args.config)
        results = [evaluate.run(one, args.job_dir, server(args, one), part, digest) for one in specs]
    lost = [result["results"] for result in results if result["failed"] == result["rows"] and not args.shard]
    failed = [findings.error("EVAL-ALL-FAILED", path, "got no answer to any question: see `error`") for path in lost]
    lines = ["\n".join(f"{name}: {value}" for name, value in result.items()) for result in results]
    result = {"evaluations": results} if args.checkpoint else results[0]
    return command.Outcome(result, (found if args.json else []) + failed, "\n".join(lines))


def server(args, complete: dict):
    if not args.endpoint:
        return None
    from cosmos_reason.transformers_engine.endpoint import Endpoint

    return Endpoint(complete, args.endpoint)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
