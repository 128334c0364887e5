#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "pyarrow==26.0.1", "httpx==0.28.1",
# ]
# ///
"""Build a checked spec.toml for an action.

examples:
  scripts/build_spec.py train --tuning lora --train-root data --gpus-per-node 8 \\
      --global-batch 16 -o spec.toml
  scripts/build_spec.py evaluate --parent-job jobs/TRAIN_ID --eval-root data/eval -o eval.toml
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

# What reads jobs, datasets or checkpoints is imported where it is used: most specs begin with the
# template, and a start takes as long as its imports.
from cosmos_reason import cli
from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.families import DEFAULT
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import (
    command_line,
    fitting,
    in_words,
    launchable,
    mending,
    models,
    spec_rules,
)
from cosmos_reason.rules.case import Case, of_sound_values, read_facts
from cosmos_reason.rules.draft import TEMPLATE, Draft, for_this_line
from cosmos_reason.spec import actions, cosmos_framework, document, names, origins
from cosmos_reason.spec.keys import RATE

if TYPE_CHECKING:
    from cosmos_reason.base import site

# Of values that the table shows.
IN_TABLE = (
    "SPEC-TUNING-RATE", "SPEC-CADENCE", "SPEC-INTERVAL", "SPEC-LENGTH-FITTED", "SPEC-STEPS"
)  # fmt: skip
COMMON = (
    "--engine --tuning --model --train-root --eval-root --gpus-per-node --dataset-facts "
    "--global-batch --spec --set --explain"
)


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, COMMON, usage="%(prog)s ACTION -o FILE [flags]")
    parser.add_argument(
        "action",
        nargs="?",
        choices=bundle.ACTIONS,
        metavar="ACTION",
        help=" | ".join(bundle.ACTIONS) + " (default: of --spec)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="spec.toml to write; spec.origins.json goes beside it (--export: a folder)",
    )
    parser.add_argument(
        "--export",
        choices=(cosmos_framework.NAME,),
        help="train: write a folder that NVIDIA's other trainer reads instead (never run here)",
    )
    parser.add_argument(
        "--engine", choices=bundle.ENGINES, help="who reads it (default: of --spec, or tao)"
    )
    add = parser.add_argument_group("where values come from, weakest first").add_argument
    add("--spec", metavar="FILE", help="start from this .toml or .yaml")
    add("--fix", action="store_true", help="apply each fix of --spec that leaves no choice")
    add(
        "--parent-job",
        metavar="DIR",
        help="model of a finished train job or output (train: resume a job that ended early)",
    )
    add("--profile", metavar="NAME", help="values of a published recipe (--explain profiles)")
    add("--tuning", choices=("full", "lora"), help="all weights, or low-rank adapters")
    add("--gpus-per-node", type=int, metavar="N", help="1, 2, 4 or 8: the parallelism")
    add("--global-batch", type=int, metavar="N", help="train: records per step, all GPUs")
    add("--nodes", type=int, metavar="N", help="number of nodes; goes with --gpus-per-node")
    add("--model", metavar="NAME", help="ORG/NAME, a spoken name or a folder")
    add(
        "--train-root",
        action="append",
        metavar="DIR",
        help="annotations.json and its media; repeatable, DIR:0.5",
    )
    add(
        "--eval-root", metavar="DIR", help="the same for validation (train) or questions (evaluate)"
    )
    add(
        "--guard-root",
        metavar="DIR",
        help="evaluate: the same for general questions, to see what training forgot",
    )
    many = {"action": "append", "default": []}
    add(
        "--set",
        **many,
        metavar="K=V",
        help="a.b.c=value, or its short name or last part; repeatable",
    )
    add("--unset", **many, metavar="KEY", help="remove a key or table; repeatable")
    add = parser.add_argument_group("checks and help").add_argument
    add(
        "--dataset-facts",
        metavar="FILE",
        help="dataset_facts.json of check_dataset: lengths and steps",
    )
    add("--allow-extra-key", **many, metavar="KEY", help="a key that cosmos-rl 0.4.7 lacks")
    add("--site", metavar="FILE", help="site.yaml: the place that runs it, not this machine")
    add("--force", action="store_true", help="replace a file that build_spec did not write")
    add("--explain", metavar="WORD", help="what a key, word or rule id means")
    add("--list-rules", action="store_true", help="id and reason of every rule")
    cli.add_output_flags(parser)
    return parser


def build(args) -> Draft:
    """Take every source in order; contradictions, and files that cannot be read,
    are collected in the draft."""
    flags = {}  # each as it was given: fixes are told as changes to this very command line
    for name in getattr(args, "given", ()):
        flag = f"--{name}".replace("_", "-")
        flags[flag] = f"{flag} {shlex.quote(str(getattr(args, name)))}"
    if args.train_root:
        roots = [f"--train-root {shlex.quote(root)}" for root in args.train_root]
        flags["--train-root"] = " ".join(roots)
    if args.fix:
        flags["--fix"] = "--fix"
    draft = Draft(args.action, args.engine, flags=flags)
    asked = {
        names.full_name(args.action, setting.partition("=")[0].strip()) for setting in args.set
    }
    take_base(draft, args, asked | ({draft.params["model"]} if args.model is not None else set()))
    if args.tuning:
        command_line.take_tuning(draft, args.tuning, rate_given=RATE in asked)
    if args.model is not None:
        draft.attempt(command_line.take_model, draft, args.model)
    if args.train_root:
        draft.attempt(command_line.take_train_roots, draft, args.train_root, args.output)
    if draft.benchmarks:
        from cosmos_reason.rules import benchmark

        draft.attempt(benchmark.take_datasets, draft, draft.benchmarks, args.eval_root, args.output)
    elif args.eval_root is not None:
        command_line.take_root(draft, "--eval-root", args.eval_root)
    command_line.take_settings(draft, args.set, args.unset, args.allow_extra_key)
    if draft.benchmarks:
        benchmark.take_sampling(draft)
        benchmark.take_environment(draft)
    if args.guard_root is not None:  # what it sets was not in the spec before
        command_line.take_root(draft, "--guard-root", args.guard_root)
    if args.gpus_per_node is not None or args.nodes is not None:
        command_line.take_gpus(draft, args.gpus_per_node, args.nodes)
    if args.spec:
        if args.fix:
            mending.mend(draft, lambda: rules.check(draft.action, draft.engine, draft.spec))
        command_line.complete(draft)
    if args.global_batch is not None:
        ranks = 1
        if draft.action == "train":
            ranks = of_sound_values(draft.action, draft.engine, draft.spec).ranks
        command_line.take_global_batch(draft, args.global_batch, ranks)
    # What the folder of the model, or the Hub, tells of it.
    model = document.get(draft.spec, draft.params["model"])
    is_folder = (isinstance(model, str) and model.startswith("/")) or draft.follows
    if is_folder:
        from cosmos_reason.rules import model_folder

        model_folder.refuse_no_model(draft)
    models.refuse_unloadable(draft)
    if is_folder:
        model_folder.take_adapter(draft)
        model_folder.take_training(draft)
    command_line.look_for_paths(draft)
    if args.spec:
        command_line.locate_own_paths(draft)
    return draft


def take_base(draft: Draft, args, asked: set[str]) -> None:
    """Take the template, or what stands for it, then a parent job and a profile. `asked`: keys the
    command line sets."""
    resumes = args.parent_job and args.action == "train"
    if args.spec and resumes:
        message = "--spec and --parent-job are each a whole train spec; keep one"
        draft.refuse("SPEC-SOURCES", "--spec", message, f"drop {draft.spec_given}")
    elif args.spec:
        from cosmos_reason.rules import inherited

        draft.attempt(inherited.take_file, draft, args.spec, asked, args.table)
    if not draft.spec and not resumes:
        draft.overlay(document.template(args.action), TEMPLATE)
    if args.parent_job:
        from cosmos_reason.rules import inherited

        parent = parent_folder(args.parent_job)
        model_given = draft.params["model"] in asked
        draft.attempt(inherited.take_parent, draft, parent, model_given, newest_resume)
    if not draft.spec:  # it could not be read: what else is wrong is looked for all the same
        draft.overlay(document.template(args.action), TEMPLATE)
    if args.profile is not None:
        command_line.take_profile(draft, args.profile)


def parent_folder(given: str) -> Path:
    """Return the folder that is given, or that of the job whose id is."""
    from cosmos_reason.jobs import record as jobs

    of_id = jobs.path_of_root(None) / given
    if os.path.isdir(of_id) and not os.path.isdir(given):
        return of_id
    return Path(given)


def newest_resume(folder: Path, record: dict) -> str | None:
    """Return the last state that an unfinished job saved; `record` is what its job.json holds."""
    from cosmos_reason.jobs import record as jobs

    return jobs.Job.from_json(folder, record).newest_resume()


def check(args, draft: Draft) -> tuple[Case | None, list[f.Finding]]:
    """Fit the draft to its engine; return its case and everything that stands against it, with
    fixes for this command line."""
    facts = Path(args.dataset_facts) if args.dataset_facts else None
    if facts and draft.attempt(read_facts, facts) is None:
        facts = None
    case = None
    if draft.action == "train":
        is_new = not args.spec and not args.parent_job
        case = draft.attempt(fitting.take_recipe, draft, facts, is_new)
    if draft.resumed:
        from cosmos_reason.rules import inherited

        inherited.compare_with_resumed(draft)
    if draft.action == "train" and not case:  # lengths cannot be read; steps need none
        case = of_sound_values(draft.action, draft.engine, draft.spec, facts, draft.files)
    steps = (case.steps_per_epoch, case.steps) if case else (None, None)
    fitting.fit_to_engine(draft, *steps)
    if draft.trained:
        from cosmos_reason.rules import inherited

        inherited.compare_with_training(draft)
    gpus, nodes = args.gpus_per_node, 1 if args.nodes is None else args.nodes
    if any(finding.id == "SPEC-GPUS-PER-NODE" for finding in draft.findings):
        gpus, nodes = None, 1  # what is wrong with them is said only once
    words = (args.action, args.engine, draft.spec)
    known = {"gpus_per_node": gpus, "nodes": nodes, "drafted": draft.files}
    examined = draft.attempt(rules.examined, *words, facts, **known)
    if examined is None:  # the tables beside the facts cannot be read
        examined = rules.examined(*words, **known)
    case, found = examined
    found = without_consequences(draft, found, bool(args.parent_job))
    unique: dict[tuple[str, str], f.Finding] = {}
    for one in [*found, *draft.findings]:
        before = unique.get((one.id, one.where))
        if before is None or one.severity == f.ERROR or before.severity != f.ERROR:
            unique[one.id, one.where] = one  # the last, but for what hides an error
    return case, [for_this_line(draft, one) for one in unique.values()]


def without_consequences(draft: Draft, found: list[f.Finding], has_parent: bool) -> list[f.Finding]:
    """Leave out what only follows from findings of the draft: what stands in for a refused value,
    or is missing because a root, a model or a config was refused."""
    refused = {one.id for one in draft.findings if one.severity == f.ERROR}
    if refused & {"SPEC-ACTION", "SPEC-FILE", cosmos_framework.ID}:
        return []
    model = draft.params["model"]
    lacks_parent = has_parent and draft.origins.get(model) == TEMPLATE
    if lacks_parent and draft.action == "train":  # which would have told the whole spec
        found = [
            one
            for one in found
            if one.where.startswith("--")
            or any(document.overlap(one.where, key) for key in draft.named)
        ]
    elif lacks_parent or "SPEC-MODEL-NAME" in refused:  # nobody asked for the template's model
        found = [one for one in found if one.where != model]
    if draft.benchmarks and refused:  # the questions are those of the config's datasets
        found = [one for one in found if one.where not in draft.params["eval_root"]]
    if {one.id for one in draft.findings} & {"SPEC-MODEL-FAMILY", "SPEC-MODEL-FAMILY-ASKED"}:
        found = [one for one in found if one.id != "SPEC-MODEL-ASSUMED"]
    roots = set()
    for flag in {"--train-root", "--eval-root", "--guard-root"} & draft.flags.keys():
        keys = draft.params.get(flag.removeprefix("--").replace("-", "_"), ())
        if not draft.named.keys() & set(keys):
            roots.add(flag)
    return [one for one in found if not roots & one.fix.flags.keys()]


def main(args) -> cli.Outcome:
    if args.explain is not None:
        from cosmos_reason.rules import explain

        text = explain.explain(args.explain, args.action)
        return cli.Outcome({"text": text}, text=text)
    if args.list_rules:
        return listing()
    place = take_site(args)
    recognised = recognise(args)
    draft = build(args)
    case, found = check(args, draft)
    found += recognised
    found += [for_this_line(draft, one) for one in too_many_nodes(args, place)]
    if place:
        found = by_site(place, found)
    found = [told(one) for one in found]
    if args.export:
        return exported(args, draft, case, found)
    if not args.force:
        found += occupied(args.output, draft.files)
    if f.has_errors(found) and draft.exit_code == f.EXIT_BAD_INPUT:
        raise f.Failure(found, f.EXIT_BAD_INPUT)
    if f.has_errors(found):
        return cli.Outcome({"spec": None}, found, "nothing written", plain=IN_TABLE)
    return written(args, draft, case, found, place)


def told(finding: f.Finding) -> f.Finding:
    """Say of a key that no spec has, and that is not one of ours otherwise spelt, what people mean
    by the word."""
    if finding.id != "SPEC-KEY-UNKNOWN" or finding.fix:
        return finding
    from cosmos_reason.rules import explain

    said = explain.said_of(finding.where)
    return dataclasses.replace(finding, message=f"{finding.message} {said}") if said else finding


def take_site(args) -> site.Site | None:
    """Read the site, and name what its paths mean where that lies here."""
    if not args.site:
        return None
    from cosmos_reason.base import site  # most specs are for this machine

    place = site.read(Path(args.site))
    args.train_root = [place.here(root) for root in args.train_root or ()] or None
    for name in ("eval_root", "guard_root", "model"):
        if getattr(args, name):
            setattr(args, name, place.here(getattr(args, name)))
    settings = []
    for setting in args.set:
        key, equals, value = setting.partition("=")
        settings.append(f"{key}{equals}{place.here(value)}")
    args.set = settings
    return place


def too_many_nodes(args, place: site.Site | None) -> list[f.Finding]:
    """Say of several nodes that no launch of the engine takes them: an error where the site is
    named that will not, else a warning, since the spec may be for another launcher."""
    if (args.nodes or 1) == 1 or args.action not in actions.TRAINING:
        return []
    able = launchable.platforms_of_several(args.action, args.engine)
    if able and (not place or place.platform in able):
        return []
    where = f" on {place.platform}" if place else ""
    message = f"got {args.nodes} nodes, and {args.action} with {args.engine}{where} takes one"
    ways = {name: launchable.platforms_of_several(args.action, name) for name in bundle.ENGINES}
    ways = {name: able for name, able in ways.items() if able}
    told = [f"{engine} on {' or '.join(able)}" for engine, able in ways.items()]
    message += f"; several: {', '.join(told)}"
    fitting = [name for name, able in ways.items() if not place or place.platform in able]
    fix = Fix(flags={"--engine": fitting[0]}) if fitting else f"drop --nodes {args.nodes}"
    if not place:
        return [f.warning("JOB-NODES", "--nodes", f"{message} when launched from here", fix)]
    return [f.error("JOB-NODES", "--nodes", message, fix)]


def by_site(place: site.Site, found: list[f.Finding]) -> list[f.Finding]:
    """Say of paths that are not here what the site does not: all in one warning."""
    absent = [one.where for one in found if one.id == "SPEC-PATH-NOT-HERE"]
    lines = [f"paths: {{{path}: HERE}}" for path in absent if not place.is_placed(path)]
    return [one for one in found if one.id != "SPEC-PATH-NOT-HERE"] + place.unknown(lines)


def recognise(args) -> list[f.Finding]:
    """Set the action and the engine that were not named, by the spec to start from."""
    args.table = None  # what --spec holds
    if args.spec and not args.action:
        args.table = document.load(Path(args.spec))
        is_read = actions.is_of_framework(
            args.table
        )  # as a train spec, which is not one of its own
        args.action = "train" if is_read else actions.of_table(args.table, Path(args.spec))
    elif args.spec:
        with contextlib.suppress(f.Failure):  # which is told with all else that is wrong
            args.table = document.load(Path(args.spec))
    refuse_usage(args)
    if args.engine:
        return []
    if args.parent_job and args.action == "train":  # which goes on with it, as it was trained
        record = parent_folder(args.parent_job) / "job.json"
        args.engine = model_names.read_table(record).get("engine")
        if args.engine in bundle.ENGINES:
            return []
    args.engine, key = origins.engine_and_key(args.spec, table=args.table)
    if not key:
        return []
    message = f"read as a spec for {args.engine}, because of its {key}"
    return [f.info("SPEC-ENGINE-TOLD", "--engine", message)]


def refuse_usage(args) -> None:
    """Raise Failure unless action and output are there, the output is a TOML file, and there is a
    file to fix."""
    if not args.action or not args.output:
        missing = "-o FILE" if args.action else "ACTION"
        example = "scripts/build_spec.py train -o spec.toml"
        raise f.bad_input("USAGE", "build_spec.py", f"{missing} is required", example)
    if args.export and args.action != "train":
        message = f"--export has no effect on {actions.a_spec(args.action)}; it is for train specs"
        raise f.bad_input("USAGE", "--export", message, "drop --export")
    if not args.export and not args.output.endswith(".toml"):
        message = f"got {args.output!r}, expected a file name that ends in .toml"
        raise f.bad_input("USAGE", "--output", message, f"-o {shlex.quote(args.output + '.toml')}")
    if args.fix and not args.spec:
        raise f.bad_input("USAGE", "--fix", "--fix needs a spec to fix", "--spec FILE")


def occupied(output: str, others: Iterable[str]) -> list[f.Finding]:
    """Return an error for each file that would be lost: it is there, and this command did not write
    it."""
    if origins.of_values(output):
        return []
    message = "got a file that build_spec did not write, or that was edited since; "
    message += "expected a new name (--force replaces it)"
    there = [path for path in (output, *others) if Path(path).is_file()]
    return [f.error("SPEC-OUTPUT", path, message) for path in there]


def written(
    args, draft: Draft, case: Case, found: list[f.Finding], place: site.Site | None
) -> cli.Outcome:
    output = Path(args.output)
    for path, records in draft.files.items():
        files.write_json(Path(path), records)
    document.dump(draft.spec, output, args.action, engine=args.engine)
    facts = Path(args.dataset_facts) if args.dataset_facts else None
    count = laid_out_for(args, case)
    size = origins.of_nodes(count, case.needed_gpus) if count else {}
    # Of every value that is still there, where it came from.
    table = {key: draft.origins[key] for key, _ in document.items(draft.action, draft.spec)}
    beside = origins.write(output, args.action, args.engine, table, facts, size, found)
    result = {"spec": str(output), "origins": str(beside)}
    text = f"wrote {output}"
    if args.action == "train":
        result |= {"global_batch": case.global_batch, "ranks": case.ranks, "steps": case.steps}
        text += f": {in_words.size_of_training(case)}"
    each, nodes = (place.get("gpus.count"), place.get("nodes") or 1) if place else (None, 1)
    held = ""
    if each is not None and nodes * each > case.needed_gpus:
        held = f" of {nodes} x {each} at {place.name}"
        held += f" (--nodes {nodes} takes all)" if count and count < nodes else ""
    text += f"\n{in_words.table(case, held=held)}"
    return cli.Outcome(result, found, text, following(args, case, found, count), plain=IN_TABLE)


def exported(args, draft: Draft, case: Case | None, found: list[f.Finding]) -> cli.Outcome:
    """Write the folder that cosmos-framework trains from."""
    from cosmos_reason.spec import cosmos_framework_export as export

    output = Path(args.output)
    written = {export.SPEC, export.TOML, export.MODULE, "README.md"}
    is_folder = output.is_dir()
    if output.exists() and (not is_folder or {one.name for one in output.iterdir()} - written):
        # Also with --force: the folder is replaced as a whole, and what others put there with it.
        message = "got a file, or a folder with more than build_spec writes; expected a new name"
        found.append(f.error("SPEC-OUTPUT", str(output), message))
    if not f.has_errors(found):
        model = document.get(draft.spec, draft.params["model"])
        family = model_names.known_family(model)
        is_theirs = family.elsewhere == cosmos_framework.NAME
        is_known = family.title in model and (is_theirs or family is DEFAULT)
        found += export.check(draft.spec, case.steps, case.save_interval, is_known)
    if f.has_errors(found):
        return cli.Outcome({"spec": None}, found, "nothing written")
    tables = export.toml(draft.spec, case.steps, case.save_interval, is_theirs)
    here = str(output.resolve())
    with files.whole_folder(output) as folder:
        for path, records in draft.files.items():
            files.write_json(Path(path), records)
        document.dump(draft.spec, folder / export.SPEC, "train", engine=args.engine)
        document.dump(tables, folder / export.TOML)
        module = Path(__file__).parent / "in_container" / export.MODULE
        shutil.copyfile(module, folder / export.MODULE)
        text = export.readme(here, str(Path(__file__).resolve().parent), case.ranks)
        (folder / "README.md").write_text(text, encoding="utf-8")
    text = f"wrote {output} for {cosmos_framework.NAME} (rendered, never run): README.md says how"
    return cli.Outcome({"export": str(output), "steps": case.steps}, found, text)


def laid_out_for(args, case: Case) -> int | None:
    """Return the nodes that the command line says, else those of the spec or the job that it goes
    on from; None where nobody said."""
    if args.action not in actions.TRAINING:
        return None
    if args.gpus_per_node is not None:
        return args.nodes or 1
    if args.spec:
        return origins.nodes_of(args.spec, case.needed_gpus)
    if args.parent_job and args.action == "train":
        from cosmos_reason.jobs import nodes

        return nodes.of_job(parent_folder(args.parent_job), case.needed_gpus)
    return None


def following(args, case: Case, found: list[f.Finding], laid_out: int | None) -> tuple[str, ...]:
    """Return the preflight on the platform that launches this spec here, when nothing it would
    refuse is left open. `laid_out`: for so many nodes."""
    left_open = {"SPEC-PATH-NOT-HERE"}
    left_open |= {rule.id for rule in spec_rules.RULES if rule.severity == spec_rules.LATER}
    if any(finding.id in left_open for finding in found):
        return ()
    count = launchable.nodes(laid_out, case.needed_gpus)
    if count > 1:
        platforms = launchable.platforms_of_several(args.action, args.engine)
    else:
        platforms = [name for engine, name in launchable.ways(args.action) if engine == args.engine]
    if not platforms:
        return ()
    words = ["check_tao_launch_preflight.py", "--platform", platforms[0], "--spec", args.output]
    if count != launchable.nodes(None, case.needed_gpus):
        words += ["--nodes", str(count)]
    if args.site:
        words[1:3] = ["--site", args.site]
    if args.dataset_facts:
        words += ["--dataset-facts", args.dataset_facts]
    return tuple(words)


def listing() -> cli.Outcome:
    rows = {}
    for rule in spec_rules.RULES:
        known = {"severity": rule.severity, "actions": rule.actions, "reason": rule.reason}
        rows[rule.id] = {"id": rule.id} | known
    table = list(rows.values())
    other = spec_rules.other_checks()
    del other["merged"]  # nothing is checked under these ids
    lines = [f"{row['id']:24} {row['severity']:8} {row['reason']}" for row in table]
    lines += ["", "checked besides:"]
    lines += [f"{id:24} {reason}" for id, reason in other["checks"].items()]
    lines += ["", "not decidable from a spec:"]
    lines += [f"  {trap}: {where}" for trap, where in other["elsewhere"].items()]
    return cli.Outcome({"rules": table, **other}, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
