#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "torch==2.13.0",
#   "transformers==5.17.0", "peft==0.21.2", "accelerate==1.15.0", "av==18.1.0", "pillow==13.0.0",
#   "numpy==2.4.6", "tqdm==4.70.1", "boto3==1.44.5", "huggingface_hub==1.33.0", "httpx==0.28.1",
#   "psutil==7.2.2", "pyarrow==26.0.1",
# ]
# ///
"""Run one action of a spec with the embedded engine (transformers + PEFT): what launch_job starts
for it.

examples:
  scripts/run_with_transformers.py train --config spec.toml
  scripts/run_with_transformers.py evaluate --config evaluate.toml --checkpoint outputs
  scripts/run_with_transformers.py evaluate --config evaluate.toml \\
      --endpoint http://localhost:8000/v1 --json
  scripts/run_with_transformers.py quantize --config quantize.toml

The spec must name its output folder (results_dir, train.output_dir). A killed evaluation or
inference continues where it stopped.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import files, findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import models
from cosmos_reason.spec import document

ENGINE = "transformers"
LAST_WORDS = 10  # seconds


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, "--config --endpoint --checkpoint")
    actions = ("train", "evaluate", "inference", "quantize")
    parser.add_argument("action", choices=actions, help="what to do")
    parser.add_argument(
        "--config", type=Path, required=True, help="the spec to run (build_spec.py makes it)"
    )
    parser.add_argument(
        "--job-dir", type=Path, help="where metrics.jsonl goes (default: the run's output folder)"
    )
    evaluation = parser.add_argument_group("evaluate, inference")
    who = evaluation.add_mutually_exclusive_group()
    who.add_argument(
        "--endpoint",
        metavar="URL",
        help="OpenAI-compatible server that answers, up to /v1 "
        "(default: the spec's model answers here)",
    )
    evaluation.add_argument(
        "--served-model",
        type=cli.some_text,
        metavar="NAME",
        help="with --endpoint: what the server calls the model (default: the spec's model)",
    )
    who.add_argument(
        "--checkpoint",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="model folders, or train outputs for all their models: a results folder each "
        "(default: the spec's model)",
    )
    evaluation.add_argument(
        "--shard",
        type=shard,
        metavar="I/N",
        help="answer part I of N of the questions; "
        "whoever answers the last one writes the results (default: all)",
    )
    cli.add_output_flags(parser)
    return parser


def shard(written: str) -> tuple[int, int]:
    number, _, count = written.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(
            f"got {written!r}, expected a part such as 1/4 (from 1/4 to 4/4)"
        )
    return int(number) - 1, int(count)


def refuse_usage(args) -> None:
    """Raise Failure for flags that have no effect here."""
    if args.action == "train" and (args.endpoint or args.checkpoint or args.shard):
        message = "got --endpoint, --checkpoint or --shard, which are evaluate's and inference's"
        raise findings.bad_input("USAGE", args.action, message)
    if args.served_model and not args.endpoint:
        fix = Fix(flags={"--endpoint": "http://HOST:8000/v1"})
        raise findings.bad_input("USAGE", "--served-model", "got it without --endpoint", fix)


def read(args) -> tuple[dict, list[findings.Finding]]:
    """Return the complete spec, and findings that are no errors. Raises Failure."""
    try:
        refuse_usage(args)
        written = document.load(args.config)
        found = rules.check(args.action, ENGINE, written, launch=True)
        if args.endpoint or args.checkpoint:  # the model that is named is not loaded here
            found = [finding for finding in found if finding.id not in models.OF_LOADED_MODEL]
        if findings.has_errors(found):
            raise findings.Failure(found, findings.EXIT_BAD_INPUT)
    except findings.Failure as failure:
        if speaks(args):
            raise
        raise findings.Failure([], failure.exit_code) from None
    return document.with_defaults(args.action, written), found


def main(args) -> cli.Outcome:
    try:
        return act(args)
    except findings.Failure as failure:
        if not failure.findings:
            # torchrun ends all ranks when one has ended: rank 0 is to come to its last words.
            time.sleep(LAST_WORDS)
        raise


def act(args) -> cli.Outcome:
    complete, found = read(args)
    if args.action == "evaluate":
        return ask(args, complete, found)
    if args.action == "inference":
        from cosmos_reason.evaluation import inference

        return ask(args, inference.as_evaluation(complete), found)
    if args.action == "quantize":
        return quantize(args, complete, found)
    return train(args, complete, found)


def speaks(args) -> bool:
    """Return whether this process says what there is to say: of those that torchrun starts, the
    first."""
    return args.action != "train" or os.environ.get("RANK", "0") == "0"


def train(args, complete: dict, found: list[findings.Finding]) -> cli.Outcome:
    from cosmos_reason.engine.train import run as engine

    result = engine.run(complete, args.job_dir)
    if not speaks(args):
        return cli.Outcome(result)
    text = "\n".join(f"{name}: {value}" for name, value in result.items())
    return cli.Outcome(result, found, text)


def quantize(args, complete: dict, found: list[findings.Finding]) -> cli.Outcome:
    from cosmos_reason.engine.quantize import run as engine

    record, problems = engine.run(complete, args.job_dir)
    size = record["bytes"]["after"] / 1e9
    text = f"model: {complete['results_dir']} ({record['scheme']}, {size:.3g} GB)"
    return cli.Outcome(record, found + problems, f"{text}\n{record['verdict']}")


def ask(args, complete: dict, found: list[findings.Finding]) -> cli.Outcome:
    """Evaluate, or infer, as a complete evaluate spec says."""
    from cosmos_reason.evaluation import (
        as_trained,
        guard,
        likelihood,
        per_checkpoint,
        questions,
    )

    specs = [complete]
    if args.checkpoint:
        specs, skipped = per_checkpoint.specs(complete, args.checkpoint)
        found += skipped
    # Whether the models are asked as they were trained, and so that they can answer.
    for spec in specs:
        found += [finding for finding in as_trained.check(spec) if finding not in found]
    found += questions.without_options(complete) + likelihood.without_choices(complete)
    specs = guard.with_guards(specs)
    servers = []
    if args.endpoint:
        from cosmos_reason.evaluation.endpoint import Endpoint

        for spec in specs:  # the server as each spec asks it, ready for its questions
            server = Endpoint(spec, args.endpoint, args.served_model)
            found += [finding for finding in server.settle() if finding not in found]
            servers.append(server)
    if found:
        findings.say(findings.as_text(found))  # now, not after hours
    results = answer(args, specs, servers)
    failed = []
    for result in results:
        if result["failed"] == result["rows"] and not args.shard:
            message = "got no answer to any question: see `error`"
            failed.append(findings.error("EVAL-ALL-FAILED", result["results"], message))
    lines = [f"{name}: {value}" for result in results for name, value in result.items()]
    is_one = len(results) == 1 and not args.checkpoint
    document = results[0] if is_one else {"evaluations": results}
    # Without --json the other findings stand on stderr already.
    remaining = found + failed if args.json else failed
    return cli.Outcome(document, remaining, "\n".join(lines))


def answer(args, specs: list[dict], servers: list) -> list[dict]:
    """Return the result of each spec: by its server, by a process per GPU, or by this one."""
    from cosmos_reason.evaluation import per_gpu, run

    gpus = specs[0]["num_gpus"]
    if gpus > 1 and not args.shard and not servers:
        paths = [Path(spec["results_dir"], run.names_of(spec).rows) for spec in specs]
        return per_gpu.run([sys.executable, *sys.argv], gpus, paths)
    shard = run.Shard(*args.shard) if args.shard else run.ALL
    digest = files.sha256(args.config)
    others = run.others(specs, shard)
    results = []
    for number, spec in enumerate(specs):
        if servers:
            who = servers[number]
        else:
            from cosmos_reason.engine.answer.responder import Responder

            who = Responder(spec)
        results.append(run.run(spec, args.job_dir, who, shard, digest, others[number]))
    return results


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
