#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2",
#   "optuna==5.0.0", "jinja2==3.1.6", "pyarrow==26.0.1", "sacrebleu==2.6.0", "rouge-score==0.1.2",
# ]
# ///
"""Find better hyperparameters: train and evaluate trials as jobs, and show which won and why.

examples:
  scripts/tune_hyperparameters.py plan --study studies/a --spec spec.toml --words "learning rate"
  scripts/tune_hyperparameters.py run --study studies/a --spec spec.toml --range lr=1e-6..1e-4:log
  scripts/tune_hyperparameters.py report --study studies/a

Trial 0 is the untouched base model, trial 1 the spec as it is. `run` on a study that exists
continues it, also when it was killed, within the budget it has, and repeats what failed by no fault
of its values; one `run` at a time owns it. What follows a lone -- goes to launch_job.py submit.
"""

import argparse
import dataclasses
import math
import shlex
import sys
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import bundle, findings, job_folder, site
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.evaluation import questions
from cosmos_reason.jobs import options, platforms, record, run_time
from cosmos_reason.jobs.platforms import local
from cosmos_reason.rules import in_words
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document, origins
from cosmos_reason.tuning import commands, page, prepare, runner, study, suggest, summary

NAME = "tune_hyperparameters.py"
# Flags that say what a study is; they need --spec.
SEARCH_FLAGS = {field.name for field in dataclasses.fields(prepare.Request)} - {"spec"}

COMMON = "--study --spec --words --range --trials --hours --gpu-ids --platform --objective"


# ---- the command line --------------------------------------------------------------------------


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, purpose in (
        (plan, "what run would do: trials, ranges, first suggestion, time; touches nothing"),
        (run, "begin or continue the study"),
        (status, "how far it is"),
        (report, "write STUDY/report.html"),
        (best, "write STUDY/best.toml, the winner's spec, and name its checkpoint"),
    ):
        common = COMMON if verb in (plan, run) else ""
        added = verbs.add_parser(verb.__name__, common=common, help=purpose, description=purpose)
        added.set_defaults(main=verb)
        added.add_argument(
            "--study", required=True, type=cli.local, metavar="DIR", help="the study's folder"
        )
        cli.add_output_flags(added)
        if verb in (plan, run):
            add_search_flags(added)
            add_run_flags(added)
        if verb is plan:
            words = "a speed of the spec to predict the time with (default: that of earlier jobs)"
            added.add_argument(options.SPEED, type=cli.above_0, metavar="S", help=words)
    return parser


def add_search_flags(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument_group(
        "the study (fixed when it begins; later `run` needs none of these)"
    ).add_argument
    add("--spec", type=Path, metavar="FILE", help="the train spec to tune")
    add("--words", default="", metavar="TEXT", help='what to vary: "learning rate, batch size"')
    add(
        "--range",
        action="append",
        default=[],
        metavar="K=R",
        help="K=LO..HI[:log|:linear] or K=[A,B,C]; repeatable",
    )
    add(
        "--objective",
        default="accuracy",
        metavar="METRIC",
        help="of score_predictions.py (default: accuracy), or val_loss",
    )
    add(
        "--eval-spec",
        type=Path,
        metavar="FILE",
        help="how trials are judged (default: on the validation data)",
    )
    add(
        "--guard-root",
        metavar="DIR",
        help="general questions that trials are asked too, to see what they forgot",
    )
    add(
        "--metric-file",
        type=Path,
        metavar="FILE",
        help="as in score_predictions.py, for custom.NAME",
    )
    add("--sampler", choices=("tpe", "random"), default="tpe", help="default: tpe")
    add(
        "--pruner",
        choices=("halving", "none"),
        default="halving",
        help="ends hopeless trials by validation loss (default: halving)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the suggestions (default: 0)")
    add(
        "--dataset-facts",
        type=Path,
        metavar="FILE",
        help="dataset_facts.json, for rules about lengths",
    )
    add("--engine", choices=bundle.ENGINES, help="default: what the spec was built for")


def add_run_flags(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument_group("the budget of the study (kept for later runs)").add_argument
    add("--trials", type=cli.positive, metavar="N", help="trainings in all (default: 12)")
    add(
        "--hours",
        type=cli.above_0,
        metavar="H",
        help="begin no trial after H hours of work, all runs together",
    )
    add("--target", metavar="V", help="begin no trial once the best reaches V, as 0.9")
    add = verb.add_argument_group("where trials run (kept for later runs)").add_argument
    add(
        "--gpu-ids",
        action="append",
        type=gpus,
        metavar="IDS",
        help="GPUs of a trial: 0,1; none: the CPU; any (default): what there is; "
        "repeated: so many trials at a time",
    )
    add(
        "--keep", type=cli.positive, metavar="K", help="checkpoints of the K best stay (default: 1)"
    )
    add("--platform", choices=platforms.PLATFORMS, help="default: local")
    add("--site", type=cli.local, metavar="FILE", help="site.yaml of the place, for --platform")
    verb.add_argument(
        "--every",
        type=cli.above_0,
        default=10,
        metavar="S",
        help="seconds between looks (default: 10)",
    )
    add("launch", nargs="*", metavar="-- WORDS", help="more flags for launch_job.py submit")


def gpus(written: str) -> list[str] | None:
    """Read GPU ids for argparse; [] for the CPU, None to let the platform choose."""
    if written == "any":
        return None
    if written == "none":
        return []
    ids = written.split(",")
    if not all(ids):
        raise cli.wrong(written, "ids such as 0,1, none or any")
    return ids


# ---- the study that a command line means -------------------------------------------------------


def described(args: argparse.Namespace) -> tuple[dict | None, list[Finding]]:
    """Return the study.json that the flags describe, None when they name no spec. Raises Failure
    for errors in them."""
    words = args.launch
    if words and sys.argv[-len(words) - 1 :] != ["--", *words]:
        # argparse takes words before a lone -- for those after it.
        written = shlex.join(words)
        message = f"{written} stands before --; flags for launch_job.py stand after it"
        raise findings.bad_input("USAGE", words[0], message, f"-- {written}")
    if args.spec is None:
        given = SEARCH_FLAGS & args.given
        if args.range:
            given.add("range")
        if given:
            flag = f"--{min(given).replace('_', '-')}"
            message = (
                f"{flag} describes a new study, which needs --spec; a study that exists needs "
            )
            message += "neither"
            raise findings.bad_input("USAGE", "--spec", message, Fix(flags={"--spec": "spec.toml"}))
        return None, []
    said = {name: getattr(args, name) for name in ("spec", *SEARCH_FLAGS)}
    said["engine"] = args.engine or origins.engine_of(args.spec, args.platform or "local", "train")
    described_plan, found = prepare.prepare(prepare.Request(**said))
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_BAD_INPUT)
    return described_plan, found


def ready(args: argparse.Namespace) -> tuple[study.Study, list[Finding]]:
    """Return (study as this command line wants it to go on, findings) once nothing stands against
    its jobs; write nothing."""
    described_plan, found = described(args)
    there = study.open_or_begin(args.study, described_plan)
    there.plan |= changes(args, there.plan["objective"])
    groups = there.plan["groups"]
    ids = [gpu_id for group in groups for gpu_id in group or ()]
    any_of_this_machine = there.plan["platform"] == "local" and None in groups
    if len(set(ids)) < len(ids) or (any_of_this_machine and len(groups) > 1):
        message = "several trials would share GPUs; each that runs at a time needs its own, "
        message += "as in --gpu-ids 0,1 --gpu-ids 2,3"
        raise findings.bad_input("TUNE-GPUS", "--gpu-ids", message)
    # Trials that saw other data are not compared; a metric file may be mended.
    changed = [
        path for path in prepare.changed_files(there.plan) if path != there.plan["metric_file"]
    ]
    if changed:
        message = f"files have changed since the study began: {', '.join(changed[:5])}; "
        message += "name a new --study folder"
        raise findings.bad_input("TUNE-DATA-CHANGED", there.folder, message, files=changed[:1000])
    commands.rehearse(there)
    _, broken = there.read()
    return there, found + broken


def changes(args: argparse.Namespace, objective: str) -> dict:
    """Return what this command line changes in study.json; what it does not name stays."""
    named = {
        "trials": args.trials,
        "hours": args.hours,
        "groups": args.gpu_ids,
        "keep": args.keep,
        "platform": args.platform,
        "launch": args.launch,
    }
    if args.site:
        place = site.read(args.site)
        if args.platform not in (None, place.platform):
            message = f"got --platform {args.platform}, and {args.site} says {place.platform}"
            fix = f"drop --platform {args.platform}"
            raise findings.bad_input("USAGE", "--platform", message, fix)
        named |= {"platform": place.platform}
        named["site"] = place.facts | {"paths": place.paths}  # trials run in folders of their own
    changed = {name: value for name, value in named.items() if value}
    if args.target is not None:
        changed["target"] = target_of(args.target, objective)
    if args.platform and not args.site:
        changed["site"] = None
    if (args.platform or args.site) and not args.launch:
        changed["launch"] = []  # those were another platform's
    return changed


def target_of(written: str, objective: str) -> float:
    """Return the number of V, or of METRIC=V for the objective's own name."""
    name, _, value = written.rpartition("=")
    most = math.inf
    if objective.rpartition(".")[2] in prepare.SHARES and not objective.startswith("custom."):
        most = 1
    try:
        target = float(value)
    except ValueError:
        target = math.nan
    if name in ("", objective) and math.isfinite(target) and target <= most:
        return target
    message = f"got {written!r}, expected V or {objective}=V"
    if most == 1:
        message += " with V up to 1"
    fix = f"replace --target {shlex.quote(written)} with --target {objective}=0.9"
    raise findings.bad_input("TUNE-TARGET", "--target", message, fix)


def paths_otherwise(there: study.Study) -> list[Finding]:
    """Return a warning where the study's site calls its paths otherwise than this machine, which
    hands its own to the trials that it submits."""
    if not there.plan.get("site"):
        return []
    place = site.Site(Path(commands.SITE), there.plan["site"], there.plan["site"]["paths"])
    named = [str(there.folder.absolute())]
    for table in (there.plan["spec"], there.plan["evaluate"] or {}):
        job_folder.walked(table, lambda value: named.append(value) or value)
    moved = [(path, place.there(path)) for path in named if place.there(path) != path]
    if not moved:
        return []
    here, path = moved[-1]
    message = f"{here} is {path} there, and trials that are submitted from here get the paths of "
    message += "this machine: copy data, model and spec to it and run the study there"
    return [findings.warning("JOB-SITE-PATHS", "--site", message)]


# ---- the verbs ---------------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> cli.Outcome:
    there, found = ready(args)
    left, first, problems = suggest.outlook(there)
    space = []
    for dimension in there.dimensions:
        given = document.get(there.plan["spec"], dimension.key)
        row = {
            "key": dimension.key,
            "range": dimension.words(),
            "default": given,
            "default_in_range": dimension.coordinate(given) is not None,
            "next": first["values"].get(dimension.key) if first else None,
        }
        space.append(row)
    cost = cost_of(args, there, left)
    asked = cost_of_evaluations(args, there, left) if cost.steps else None
    evaluations = "in the time" if cost.steps is None else "not known"
    result = {
        "trials": there.plan["trials"],
        "left": left,
        "parallel": len(there.plan["groups"]),
        "objective": there.plan["objective"],
        "questions": questions_of(there),
        "target": there.plan["target"],
        "hours": there.plan["hours"],
        "platform": there.plan["platform"],
        "site": (there.plan.get("site") or {}).get("name"),
        "gpu_ids": there.plan["groups"],
        "space": space,
        "alpha": summary.alpha_words(there),
        "repairs": first["repairs"] if first else [],
        "evaluations": left and evaluations_to_go(there, left),
        "estimate": cost.to_json() | {"evaluations": asked.to_json() if asked else evaluations},
    }
    following, moved = (), paths_otherwise(there)
    if left and not moved:  # else run refuses
        same_flags = cli.without(sys.argv[2:], "--json", options.SPEED)
        following = (NAME, "run", *cli.without(same_flags, "--json", "--save"))
    case = Case("train", there.plan["engine"], there.plan["spec"])
    as_given = in_words.with_batch(case, uses_gpus=there.plan["groups"][0] != [])
    text = f"{summary.plan_text(result, cost, asked)}\nas given: {as_given}"
    found += problems + moved
    return cli.Outcome(result, found, text, following, spec=args.spec, is_document=True)


def questions_of(there: study.Study) -> int | None:
    """Return how many questions judge a trial; None where the validation loss does, or the
    annotations are not here or cannot be read, which the evaluation says itself."""
    asked = there.plan["evaluate"]
    if asked is None or not Path(asked["dataset"]["annotation_path"]).is_file():
        return None
    try:
        return len(questions.read(asked["dataset"], asked["evaluation"]["limit"]))
    except Failure:
        return None


def cost_of(args: argparse.Namespace, there: study.Study, left: int) -> run_time.Cost:
    """Return the time and GPU-hours of what is left, from the study's own trials, else from what
    one training should take."""
    measured = summary.estimate(there, left)
    if measured:
        return measured
    facts = args.dataset_facts or (origins.facts_of(args.spec) if args.spec else None)
    case = Case("train", there.plan["engine"], there.plan["spec"], facts)
    groups = there.plan["groups"]
    is_here = there.plan["platform"] == "local" and not there.plan.get("site")
    names = local.gpu_names(groups[0]) if is_here else []
    one = run_time.predict(case, groups[0], record.path_of_root(None), args.seconds_per_step, names)
    return one.times(summary.rounds(left, groups), left)


def evaluations_to_go(there: study.Study, left: int) -> int:
    """Return how many evaluations the trials to go take: one each, and that of the untouched
    model. The validation loss asks nothing."""
    if there.plan["evaluate"] is None:
        return 0
    is_base_known = any(trial["kind"] == study.BASE for trial in there.trials())
    return left + (not is_base_known)


def cost_of_evaluations(
    args: argparse.Namespace, there: study.Study, left: int
) -> run_time.Cost | None:
    """Return what the evaluations of the trials to go take; None where there are none or nobody
    knows, as of engines that were not measured."""
    count = evaluations_to_go(there, left)
    facts = args.dataset_facts or (origins.facts_of(args.spec) if args.spec else None)
    held_out = facts and facts.parent / "eval" / facts.name  # where check_dataset --facts writes it
    if not count or not held_out or not held_out.is_file():
        return None
    table = prepare.evaluate_spec(there.plan["evaluate"], there.plan["spec"], None)
    case = Case("evaluate", there.plan["engine"], table, held_out)
    groups = there.plan["groups"]
    gpus = case.needed_gpus if groups[0] is None else len(groups[0])
    names = local.gpu_names(groups[0]) if there.plan["platform"] == "local" else []
    one = run_time.predict_evaluation(case, gpus, names)
    return one and one.times(summary.rounds(count, groups), count)


def run(args: argparse.Namespace) -> cli.Outcome:
    there, found = ready(args)
    _, _, problems = suggest.outlook(there)
    problems += [
        dataclasses.replace(one, severity=findings.ERROR) for one in paths_otherwise(there)
    ]
    if findings.has_errors(problems):
        return cli.Outcome({}, found + problems)
    with study.owned(there.folder) as inherited:
        # Another run may have worked on it since it was read.
        there = study.open_or_begin(there.folder, there.plan)
        there.plan |= changes(args, there.plan["objective"]) | {"ended": ""}
        there.save()
        found += runner.Runner(there, args.every, inherited).run()
    outcome = status(args)
    found += [finding for finding in outcome.findings if finding not in found]
    return cli.Outcome(outcome.result, found, outcome.text, outcome.next)


def status(args: argparse.Namespace) -> cli.Outcome:
    there = study.open_or_begin(args.study)
    trials, broken = there.read()
    result = summary.summary(there, trials)
    doubts = summary.verdict(there, result)
    following = next_command(args, result, (NAME, "report", "--study", args.study))
    return cli.Outcome(result, doubts + broken, summary.text(there, result), following)


def next_command(args: argparse.Namespace, result: dict, once_ended: tuple) -> tuple:
    """Return the status while trials run, `run` when that was killed, and `once_ended` once the
    study has ended with a winner."""
    if result["ended"]:
        return once_ended if result["best"] else ()
    is_watched = study.RUNNING in result["states"] and not result["left_behind"]
    return (NAME, "status" if is_watched else "run", "--study", args.study)


def report(args: argparse.Namespace) -> cli.Outcome:
    there = study.open_or_begin(args.study)
    trials, broken = there.read()
    path = page.write(there, trials)
    result = summary.summary(there, trials)
    following = next_command(args, result, (NAME, "best", "--study", args.study))
    return cli.Outcome({"report": str(path)}, broken, str(path), following)


def best(args: argparse.Namespace) -> cli.Outcome:
    there = study.open_or_begin(args.study)
    trials, broken = there.read()
    result = summary.summary(there, trials)
    if not result["best"]:
        fix = f"scripts/{NAME} status --study {shlex.quote(str(args.study))}"
        raise findings.bad_input("TUNE-NO-BEST", args.study, "no trial has ended well", fix)
    winner = there.ranked(trials)[0]
    path = there.folder / "best.toml"
    document.dump(study.winning_spec(there, winner), path, "train")
    winning = result["best"] | {"spec": str(path), "ended": result["ended"]}
    lines = [
        str(path),
        f"checkpoint: {winning['checkpoint'] or 'removed'}",
        summary.standing(there, result),
    ]
    if summary.base_leads(there, result):
        lines.append(summary.KEEP_THE_BASE.format(result["baseline"]))
    commands.write_site(there.plan, there.folder)
    base = next((trial for trial in trials if trial["kind"] == study.BASE), None)
    answered = [summary.results_of(there, trial) for trial in (winner, base)]
    if winning["checkpoint"] is None:  # it was not kept: the spec makes it again
        words = commands.launch_words(there.plan, "train", path, winner["gpu_ids"])
        then = ("launch_job.py", "plan", *words)
    elif all(answered):
        then = ("score_predictions.py", str(answered[0]), "--compare", str(answered[1]))
    else:
        words = ["--engine", there.plan["engine"], "--parent-job", winning["checkpoint"]]
        words += ["--site", str(there.folder / commands.SITE)] if there.plan.get("site") else []
        then = ("build_spec.py", "evaluate", *words, "-o", "eval.toml")
    following = next_command(args, result, then)
    found = summary.verdict(there, result) + broken
    return cli.Outcome(winning, found, "\n".join(lines), following)


if __name__ == "__main__":
    sys.exit(cli.run(parser(), lambda args: args.main(args)))
