#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2", "optuna==5.0.0",
#   "jinja2==3.1.6", "pyarrow==26.0.1", "sacrebleu==2.6.0", "rouge-score==0.1.2",
# ]
# ///
"""Find better hyperparameters: train and evaluate trials as jobs, and show which won and why.

examples:
  scripts/tune_hyperparameters.py plan --study studies/a --spec spec.toml --words "learning rate, batch size"
  scripts/tune_hyperparameters.py run --study studies/a --spec spec.toml --range lr=1e-6..1e-4:log --trials 12
  scripts/tune_hyperparameters.py report --study studies/a

Trial 0 is the untouched base model, trial 1 the spec as it is. `run` on a study that exists continues it, also when it
was killed, and repeats evaluations that failed; several `run` at a time work on it together. What follows a lone --
goes to launch_job.py submit.
"""

import argparse
import contextlib
import math
import shlex
import sys
from pathlib import Path

from cosmos_reason import bundle, command, findings, platforms, spec, storage
from cosmos_reason.search import page, prepare, runner, study, summary

SEARCH_FLAGS = (
    "words", "range", "objective", "sampler", "seed", "pruner", "eval_spec", "dataset_facts", "metric_file", "engine",
)  # fmt: skip


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, purpose in (
        (plan, "what run would do: trials, ranges, first suggestion, time; touches nothing"),
        (run, "begin or continue the study"),
        (status, "how far it is"),
        (report, "write STUDY/report.html"),
        (best, "write STUDY/best.toml, the winner's spec, and name its checkpoint"),
    ):
        added = verbs.add_parser(verb.__name__, help=purpose, description=purpose)
        added.set_defaults(main=verb)
        added.add_argument("--study", required=True, type=absolute, metavar="DIR", help="the study's folder")
        command.add_json_flag(added)
        if verb in (plan, run):
            add_search_flags(added)
            add_run_flags(added)
    return parser


def absolute(written: str) -> Path:
    return Path(written).absolute()


def add_search_flags(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("the study (fixed when it begins; later `run` needs none of these)")
    group.add_argument("--spec", type=Path, metavar="FILE", help="the train spec to tune (build_spec.py makes one)")
    group.add_argument("--words", metavar="TEXT", help='what to vary, as people say it: "learning rate, batch size"')
    group.add_argument(
        "--range", action="append", metavar="K=R", help="K=LO..HI[:log|:linear] or K=[A,B,C]; repeatable"
    )
    group.add_argument("--objective", metavar="METRIC", help="of score_predictions.py (default: accuracy), or val_loss")
    group.add_argument(
        "--eval-spec", type=Path, metavar="FILE", help="how trials are judged (default: validation data)"
    )
    group.add_argument("--metric-file", type=Path, metavar="FILE", help="as in score_predictions.py, for custom.NAME")
    group.add_argument("--sampler", choices=("tpe", "random"), help="default: tpe")
    group.add_argument("--pruner", choices=("halving", "none"), help="end hopeless trials by validation loss (halving)")
    group.add_argument("--seed", type=int, help="of the suggestions (default: 0)")
    group.add_argument("--dataset-facts", type=Path, metavar="FILE", help="dataset_facts.json, for rules about lengths")
    group.add_argument("--engine", choices=bundle.ENGINES, help="default: transformers")


def add_run_flags(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("the budget of this run")
    group.add_argument(
        "--trials", type=command.positive, default=12, metavar="N", help="trainings in all (default: 12)"
    )
    group.add_argument("--hours", type=above_zero, metavar="H", help="begin no trial after H hours of this run")
    group.add_argument("--target", metavar="METRIC=V", help="begin no trial once the best reaches V")
    group.add_argument("--every", type=above_zero, default=10, metavar="S", help="seconds between looks (default: 10)")
    group = verb.add_argument_group("where trials run (kept for later runs, but for the GPUs)")
    group.add_argument(
        "--gpu-ids",
        action="append",
        metavar="IDS",
        help="of a trial: 0,1; none: the CPU; any (default): what there is; repeated: so many trials at a time",
    )
    group.add_argument("--keep", type=command.positive, metavar="K", help="checkpoints of the K best stay (default: 1)")
    group.add_argument("--platform", choices=platforms.PLATFORMS, help="default: local")
    group.add_argument("launch", nargs="*", metavar="-- WORDS", help="more flags for launch_job.py submit")


def above_zero(text: str) -> float:
    """An argparse type."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")


def described(args) -> tuple[dict | None, list[findings.Finding]]:
    """The study.json that the flags describe, None when they name no spec. Raises Failure for errors in them."""
    if args.launch and sys.argv[-len(args.launch) - 1 :] != ["--", *args.launch]:
        message = f"got {shlex.join(args.launch)}, expected flags for launch_job.py only after --"
        raise findings.bad_input("USAGE", args.launch[0], message, f"-- {shlex.join(args.launch)}")
    given = [name for name in SEARCH_FLAGS if getattr(args, name) is not None]
    if args.spec is None:
        if given:
            message = f"got --{given[0].replace('_', '-')} without --spec, expected both, or neither to continue"
            raise findings.bad_input("USAGE", "--spec", message, "--spec spec.toml")
        return None, []
    if args.metric_file:
        storage.read_text(args.metric_file)
    made, found = prepare.prepare(
        args.spec,
        args.eval_spec,
        args.words or "",
        args.range or [],
        args.objective or (args.target or "accuracy").partition("=")[0],
        args.engine or "transformers",
        args.dataset_facts,
        metric_file=str(args.metric_file.absolute()) if args.metric_file else None,
        sampler=args.sampler or "tpe",
        pruner=args.pruner or "halving",
        seed=args.seed or 0,
        platform="local",
        launch=[],
        keep=1,
    )
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_BAD_INPUT)
    return made, found


def opened(args, made: dict | None) -> study.Study:
    """The study as this command line wants it to go on; writes nothing."""
    there = study.open_or_begin(args.study, made)
    if args.platform:
        there.plan |= {"platform": args.platform, "launch": []}
    there.plan |= {"launch": args.launch} if args.launch else {}
    there.plan |= {"keep": args.keep} if args.keep else {}
    return there


def ready(args, made: dict | None) -> tuple[study.Study, list, float | None]:
    """(study, GPUs of each trial that runs at a time, target) once nothing stands against its jobs; writes nothing."""
    there = opened(args, made)
    groups, target = groups_of(args, there.plan["platform"]), target_of(args, there.plan["objective"])
    prepare.refuse_changed_data(there)
    runner.rehearse(there, groups)
    return there, groups, target


def target_of(args, objective: str) -> float | None:
    if args.target is None:
        return None
    name, _, value = args.target.partition("=")
    most = 1 if objective.rpartition(".")[2] in prepare.SHARES and not objective.startswith("custom.") else math.inf
    with contextlib.suppress(ValueError):
        if name == objective and math.isfinite(float(value)) and float(value) <= most:
            return float(value)
    message = f"got {args.target!r}, expected {objective}=V" + (" with V up to 1" if most == 1 else "")
    raise findings.bad_input("TUNE-TARGET", "--target", message, f"--target {objective}=0.9")


def groups_of(args, platform: str) -> list[list[str] | None]:
    """The GPUs of each trial that runs at a time."""
    words = {"any": None, "none": []}
    groups = [words[ids] if ids in words else ids.split(",") for ids in args.gpu_ids or ["any"]]
    ids = [one for group in groups for one in group or ()]
    if len(set(ids)) < len(ids) or (platform == "local" and None in groups and len(groups) > 1):
        message = f"got {', '.join(args.gpu_ids)}, expected other GPUs for each trial that runs at a time"
        raise findings.bad_input("TUNE-GPUS", "--gpu-ids", message, "--gpu-ids none")
    return groups


def plan(args) -> command.Outcome:
    made, found = described(args)
    there, groups, target = ready(args, made)
    records = there.trials()
    most = min(args.trials, there.points())
    left = max(0, most - sum(trial["kind"] != study.BASE for trial in records))
    left = 0 if there.reached(records, target) else left
    first, known = {"values": {}, "repairs": []}, records[:]
    searches = left > (not any(trial["kind"] == study.DEFAULT for trial in records))
    while searches and first.get("kind") != study.SEARCH:
        first, table = study.propose(there, known)
        known.append(first)
        if table is None:
            found, left = [*found, study.used_up(records, first)], 0
    rows = [
        {"key": d.key, "range": d.words(), "default": spec.get(there.plan["spec"], d.key),
         "next": first["values"].get(d.key)} for d in there.dimensions
    ]  # fmt: skip
    result = {
        "trials": args.trials,
        "left": left,
        "parallel": len(groups),
        "objective": there.plan["objective"],
        "target": target,
        "space": rows,
        "repairs": first["repairs"],
        "estimate": summary.estimate(there, records, left, groups),
        "command": shlex.join(["scripts/tune_hyperparameters.py", "run", *(w for w in sys.argv[2:] if w != "--json")]),
    }
    return command.Outcome(result, found, summary.plan_text(result))


def run(args) -> command.Outcome:
    made, found = described(args)
    _, groups, target = ready(args, made)
    with study.locked(args.study):
        there = opened(args, made)
        there.save()
    found += runner.Runner(there, groups, args.trials, args.hours, target, args.every).run()
    result = summary.summary(there)
    text = [summary.text(there, result)]
    if result["best"]:
        result["best"] |= write_best(there)
        text.append(f"next: scripts/tune_hyperparameters.py report --study {shlex.quote(str(there.folder))}")
    return command.Outcome(result, found + summary.base_wins(there, result), "\n".join(text))


def write_best(there: study.Study) -> dict:
    """STUDY/best.toml, and the command that makes a checked spec of it."""
    path = there.folder / "best.toml"
    spec.dump(study.winning_spec(there, there.ranked(there.trials())[0]), path)
    return {"spec": str(path), "command": summary.build_words(there)}


def status(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    result = summary.summary(there)
    return command.Outcome(result, text=summary.text(there, result))


def report(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    path = page.write(there)
    return command.Outcome({"report": str(path)}, text=str(path))


def best(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    result = summary.summary(there)
    if not result["best"]:
        fix = f"scripts/tune_hyperparameters.py status --study {shlex.quote(str(args.study))}"
        raise findings.bad_input("TUNE-NO-BEST", args.study, "got no trial that ended well, expected one", fix)
    made = result["best"] | write_best(there)
    text = f"{made['spec']}\ncheckpoint: {made['checkpoint'] or 'removed'}\nnext: {made['command']}"
    return command.Outcome(made, summary.base_wins(there, result), text)


if __name__ == "__main__":
    sys.exit(command.run(parser(), lambda args: args.main(args)))
