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
was killed, and repeats evaluations that failed; several `run` at a time share it, and each ends when the study has.
What follows a lone -- goes to launch_job.py submit.
"""

import argparse
import contextlib
import math
import shlex
import sys
from pathlib import Path

from cosmos_reason import bundle, command, findings, platforms, spec
from cosmos_reason.search import prepare, runner, study, summary

NAME = "tune_hyperparameters.py"
SEARCH_FLAGS = {
    "words", "range", "objective", "sampler", "seed", "pruner", "eval_spec", "dataset_facts", "metric_file", "engine",
}  # fmt: skip


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
        added.add_argument("--study", required=True, type=command.local, metavar="DIR", help="the study's folder")
        command.add_json_flag(added)
        if verb in (plan, run):
            add_search_flags(added)
            add_run_flags(added)
    return parser


def add_search_flags(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument_group("the study (fixed when it begins; later `run` needs none of these)").add_argument
    add("--spec", type=Path, metavar="FILE", help="the train spec to tune")
    add("--words", default="", metavar="TEXT", help='what to vary: "learning rate, batch size"')
    add("--range", action="append", default=[], metavar="K=R", help="K=LO..HI[:log|:linear] or K=[A,B,C]; repeatable")
    add("--objective", metavar="METRIC", help="of score_predictions.py (default: accuracy), or val_loss")
    add("--eval-spec", type=Path, metavar="FILE", help="how trials are judged (default: validation data)")
    add("--metric-file", type=Path, metavar="FILE", help="as in score_predictions.py, for custom.NAME")
    add("--sampler", choices=("tpe", "random"), default="tpe", help="default: tpe")
    add("--pruner", choices=("halving", "none"), default="halving", help="end hopeless trials by validation loss")
    add("--seed", type=int, default=0, metavar="N", help="of the suggestions (default: 0)")
    add("--dataset-facts", type=Path, metavar="FILE", help="dataset_facts.json, for rules about lengths")
    add("--engine", choices=bundle.ENGINES, help="default: what the spec was built for")


def add_run_flags(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument_group("the budget of this run").add_argument
    add("--trials", type=command.positive, default=12, metavar="N", help="trainings in all (default: 12)")
    add("--hours", type=command.above_0, metavar="H", help="begin no trial after H hours of this run")
    add("--target", metavar="V", help="begin no trial once the best reaches V, as 0.9")
    add("--every", type=command.above_0, default=10, metavar="S", help="seconds between looks (default: 10)")
    add = verb.add_argument_group("where trials run (kept for later runs, but for the GPUs)").add_argument
    some = "of a trial: 0,1; none: the CPU; any (default): what there is; repeated: so many trials at a time"
    add("--gpu-ids", action="append", type=gpus, metavar="IDS", help=some)
    add("--keep", type=command.positive, metavar="K", help="checkpoints of the K best stay (default: 1)")
    add("--platform", choices=platforms.PLATFORMS, help="default: local")
    add("launch", nargs="*", metavar="-- WORDS", help="more flags for launch_job.py submit")


def gpus(text: str) -> list[str] | None:
    """An argparse type."""
    if text in ("any", "none"):
        return None if text == "any" else []
    if not all(text.split(",")):
        raise command.wrong(text, "ids such as 0,1, none or any")
    return text.split(",")


def described(args) -> tuple[dict | None, list[findings.Finding]]:
    """The study.json that the flags describe, None when they name no spec. Raises Failure for errors in them."""
    if args.launch and sys.argv[-len(args.launch) - 1 :] != ["--", *args.launch]:
        message = f"got {shlex.join(args.launch)}, expected flags for launch_job.py only after --"
        raise findings.bad_input("USAGE", args.launch[0], message, f"-- {shlex.join(args.launch)}")
    if args.spec is None:
        if given := sorted(SEARCH_FLAGS & (args.given | ({"range"} if args.range else set()))):
            message = f"got --{given[0].replace('_', '-')} without --spec, expected both, or neither to continue"
            raise findings.bad_input("USAGE", "--spec", message, "--spec spec.toml")
        return None, []
    same = {name: getattr(args, name) for name in ("words", "metric_file", "sampler", "pruner", "seed")}
    same["engine"] = args.engine or spec.engine_of(args.spec, args.platform or "local", "train")
    same |= {"ranges": args.range, "objective": args.objective or "accuracy", "facts": args.dataset_facts}
    made, found = prepare.prepare(args.spec, args.eval_spec, **same)
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_BAD_INPUT)
    return made, found


def ready(args) -> tuple[study.Study, list, float | None, list[findings.Finding]]:
    """(study as this command line wants it to go on, GPUs of each trial that runs at a time, target, findings) once
    nothing stands against its jobs; writes nothing."""
    made, found = described(args)
    there, groups = study.open_or_begin(args.study, made), args.gpu_ids or [None]
    there.plan |= {"platform": args.platform, "launch": []} if args.platform else {}
    there.plan |= {name: value for name in ("launch", "keep") if (value := getattr(args, name))}
    ids = [one for group in groups for one in group or ()]
    if len(set(ids)) < len(ids) or (there.plan["platform"] == "local" and None in groups and len(groups) > 1):
        message = "got the same GPUs for several trials, expected other ones for each that runs at a time"
        raise findings.bad_input("TUNE-GPUS", "--gpu-ids", message, "--gpu-ids none")
    target = target_of(args, there.plan["objective"])
    # Trials that saw other data are not compared; a metric file may be mended.
    if changed := [path for path in prepare.changed_files(there.plan) if path != there.plan["metric_file"]]:
        message = f"got other files than the study began with: {', '.join(changed[:5])}"
        raise findings.bad_input("TUNE-DATA-CHANGED", there.folder, message, "a new --study folder")
    runner.rehearse(there, groups)
    return there, groups, target, found


def target_of(args, objective: str) -> float | None:
    if args.target is None:
        return None
    name, _, value = args.target.rpartition("=")
    most = 1 if objective.rpartition(".")[2] in prepare.SHARES and not objective.startswith("custom.") else math.inf
    with contextlib.suppress(ValueError):
        if name in ("", objective) and math.isfinite(float(value)) and float(value) <= most:
            return float(value)
    message = f"got {args.target!r}, expected V or {objective}=V" + (" with V up to 1" if most == 1 else "")
    fix = f"replace --target {shlex.quote(args.target)} with --target {objective}=0.9"
    raise findings.bad_input("TUNE-TARGET", "--target", message, fix)


def plan(args) -> command.Outcome:
    there, groups, target, found = ready(args)
    left, first, told = study.outlook(there, args.trials, target)
    result = {
        "trials": args.trials,
        "left": left,
        "parallel": len(groups),
        "objective": there.plan["objective"],
        "target": target,
        "space": [
            {"key": d.key, "range": d.words(), "default": spec.get(there.plan["spec"], d.key),
             "next": first and first["values"].get(d.key)} for d in there.dimensions
        ],
        "repairs": first["repairs"] if first else [],
        "estimate": summary.estimate(there, left, groups),
    }  # fmt: skip
    same = [word for word in sys.argv[2:] if word != "--json"]
    start = (NAME, "run", *same) if left else ()
    return command.Outcome(result, found + told, summary.plan_text(result), start)


def run(args) -> command.Outcome:
    there, groups, target, found = ready(args)
    if findings.has_errors(told := study.outlook(there, args.trials, target)[-1]):
        return command.Outcome({}, found + told)
    with study.locked(there.folder):
        now = study.open_or_begin(there.folder, there.plan)  # another run may have begun or changed it meanwhile
        there.plan = now.plan | {name: there.plan[name] for name in ("platform", "launch", "keep")} | {"ended": ""}
        there.save()
    found += runner.Runner(there, groups, args.trials, args.hours, target, args.every).run()
    outcome = status(args)
    return command.Outcome(outcome.result, found + outcome.findings, outcome.text, outcome.next)


def status(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    result = summary.summary(there)
    told, text = summary.verdict(there, result), summary.text(there, result)
    return command.Outcome(result, told, text, following(args, result, (NAME, "report", "--study", args.study)))


def following(args, result: dict, then: tuple) -> tuple:
    """What to run next: the status while trials run, `run` when that was killed, and `then` once the study has ended
    with a winner."""
    if result["ended"]:
        return then if result["best"] else ()
    watched = study.RUNNING in result["states"] and not result["left_behind"]
    return (NAME, "status" if watched else "run", "--study", args.study)


def report(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    path, result = summary.write_page(there), summary.summary(there)
    then = following(args, result, (NAME, "best", "--study", args.study))
    return command.Outcome({"report": str(path)}, text=str(path), next=then)


def best(args) -> command.Outcome:
    there = study.open_or_begin(args.study)
    result = summary.summary(there)
    if not result["best"]:
        fix = f"scripts/{NAME} status --study {shlex.quote(str(args.study))}"
        raise findings.bad_input("TUNE-NO-BEST", args.study, "got no trial that ended well, expected one", fix)
    winner, path = there.ranked(there.trials())[0], there.folder / "best.toml"
    spec.dump(study.winning_spec(there, winner), path)
    made = result["best"] | {"spec": str(path), "ended": result["ended"]}
    text = f"{path}\ncheckpoint: {made['checkpoint'] or 'removed'}\n{summary.standing(there, result)}"
    launch = ("launch_job.py", "plan", *runner.launch_words(there.plan, "train", path, winner["gpu_ids"]))
    return command.Outcome(made, summary.verdict(there, result), text, following(args, result, launch))


if __name__ == "__main__":
    sys.exit(command.run(parser(), lambda args: args.main(args)))
