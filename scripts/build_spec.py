#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "pyarrow==26.0.1"]
# ///
"""Build a checked spec.toml for an action from template and overrides.

examples:
  scripts/build_spec.py train --tuning lora --train-root data/train --gpus-per-node 8 -o spec.toml
  scripts/build_spec.py train --spec spec.toml --set nframes=16 -o spec2.toml
  scripts/build_spec.py evaluate --parent-job jobs/TRAIN_ID --eval-root data/eval -o eval.toml
  scripts/build_spec.py --explain "learning rate"
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from cosmos_reason import bundle, command, explain, rules, spec, spec_engine, spec_rules, spec_sources, storage
from cosmos_reason import findings as f


def parser() -> command.Parser:
    parser = command.Parser(__doc__, usage="%(prog)s ACTION -o FILE [flags]")
    parser.add_argument("action", nargs="?", choices=bundle.ACTIONS, metavar="ACTION", help=" | ".join(bundle.ACTIONS))
    parser.add_argument("-o", "--output", metavar="FILE", help="spec.toml to write; spec.origins.json goes beside it")
    parser.add_argument("--engine", choices=bundle.ENGINES, help="who reads the spec (default: that of --spec, or tao)")
    add = parser.add_argument_group("where values come from, weakest first").add_argument
    add("--spec", metavar="FILE", help="start from this .toml or .yaml, not from the template")
    add("--parent-job", metavar="DIR", help="model of a finished train job (train: resume it)")
    add("--profile", metavar="NAME", help="values of a published recipe (--explain profiles)")
    add("--tuning", choices=("full", "lora"), help="all weights, or low-rank adapters")
    add("--gpus-per-node", type=int, metavar="N", help="1, 2, 4 or 8; decides the parallelism")
    add("--nodes", type=int, metavar="N", help="number of nodes; goes with --gpus-per-node")
    add("--model", metavar="NAME", help="ORG/NAME, a spoken name or a folder")
    add("--train-root", metavar="DIR", help="folder or s3:// prefix with annotations.json and media")
    add("--eval-root", metavar="DIR", help="the same for validation (train) or questions (evaluate)")
    many = {"action": "append", "default": []}
    add("--set", **many, metavar="K=V", help="a.b.c=value, short or last part (c=value); repeatable")
    add("--unset", **many, metavar="KEY", help="remove a key or table; repeatable")
    add = parser.add_argument_group("checks and help").add_argument
    add("--dataset-facts", metavar="FILE", help="dataset_facts.json of check_dataset: lengths and steps")
    add("--allow-extra-key", **many, metavar="KEY", help="another key of cosmos-rl that --set may write")
    add("--force", action="store_true", help="replace a file that build_spec did not write")
    add("--explain", metavar="WORD", help="what a key, prefix, profile or rule id means")
    add("--list-rules", action="store_true", help="id and reason of every rule")
    command.add_json_flag(parser)
    return parser


def build(args) -> spec_sources.Draft:
    """Take every source in order; contradictions, and files that cannot be read, are collected in the draft."""
    given = {f"--{name}".replace("_", "-"): getattr(args, name) for name in getattr(args, "given", ())}
    flags = {flag: f"{flag} {shlex.quote(str(value))}" for flag, value in given.items()}
    draft = spec_sources.Draft(args.action, args.engine, flags=flags)
    asked = {spec.full_name(args.action, setting.partition("=")[0].strip()) for setting in args.set}
    take_base(draft, args, asked | ({draft.params["model"]} if args.model is not None else set()))
    if args.tuning:
        spec_sources.take_tuning(draft, args.tuning, rate_given=spec_sources.RATE in asked)
    if args.model is not None:
        draft.attempt(spec_sources.take_model, draft, args.model)
    for flag, root in (("--train-root", args.train_root), ("--eval-root", args.eval_root)):
        if root is not None:
            spec_sources.take_root(draft, flag, root)
    spec_sources.take_settings(draft, args.set, args.unset, args.allow_extra_key)
    if args.gpus_per_node is not None or args.nodes is not None:
        spec_sources.take_gpus(draft, args.gpus_per_node, args.nodes)
    spec_sources.look_for_paths(draft)
    return draft


def take_base(draft: spec_sources.Draft, args, asked: set[str]) -> None:
    """The template or what stands for it, then a parent job and a profile. `asked`: keys the command line sets."""
    resumes = args.parent_job and args.action == "train"
    if args.spec and resumes:
        message = "got --spec and --parent-job, each of which is a whole train spec; expected one"
        draft.refuse("SPEC-SOURCES", "--spec", message, f"drop {draft.flags['--spec']}")
    elif args.spec:
        draft.attempt(spec_sources.take_file, draft, args.spec, asked)
    if not draft.spec and not resumes:
        draft.overlay(spec.template(args.action), "template")
    if args.parent_job:
        draft.attempt(spec_sources.take_parent, draft, Path(args.parent_job), draft.params["model"] in asked)
    if not draft.spec:  # it could not be read: what else is wrong is looked for all the same
        draft.overlay(spec.template(args.action), "template")
    if args.profile is not None:
        spec_sources.take_profile(draft, args.profile)


def check(args, draft: spec_sources.Draft) -> list[f.Finding]:
    """Fit the draft to its engine, then everything that stands against it, with fixes for this command line."""
    facts = Path(args.dataset_facts) if args.dataset_facts else None
    if facts and draft.attempt(rules.read_facts, facts) is None:
        facts = None
    spec_sources.compare_with_resumed(draft)
    spec_engine.fit(draft, *rules.count_steps(args.action, args.engine, draft.spec, facts))
    spec_sources.compare_with_training(draft)
    counted = not any(one.id.startswith("SPEC-GPUS") for one in draft.findings)
    size = (args.gpus_per_node, 1 if args.nodes is None else args.nodes) if counted else (None, 1)
    found = draft.attempt(rules.check, args.action, args.engine, draft.spec, facts, *size)
    if found is None:  # the tables beside the facts cannot be read
        found = rules.check(args.action, args.engine, draft.spec, None, *size)
    if any(one.id == "SPEC-MODEL-NAME" for one in draft.findings):  # nobody asked for the template's model
        found = [one for one in found if not one.id.startswith("SPEC-MODEL-OMNI")]
    unique = {(one.id, one.where): one for one in found} | {(one.id, one.where): one for one in draft.findings}
    return [replace(one, fix=spec_sources.pasteable(draft, one.fix)) for one in unique.values()]


def main(args) -> command.Outcome:
    if args.explain is not None:
        text = explain.explain(args.explain, args.action)
        return command.Outcome({"text": text}, text=text)
    if args.list_rules:
        return listing()
    if not args.action or not args.output:
        missing = "ACTION" if not args.action else "-o FILE"
        raise f.bad_input("USAGE", "build_spec.py", f"got no {missing}", "scripts/build_spec.py train -o spec.toml")
    if not args.output.endswith(".toml"):
        message = f"got {args.output!r}, expected a file name that ends in .toml"
        raise f.bad_input("USAGE", "--output", message, f"-o {shlex.quote(args.output + '.toml')}")
    args.engine = args.engine or spec.engine_of(args.spec)
    draft = build(args)
    found = check(args, draft)
    if Path(args.output).is_file() and not args.force and not spec_sources.earlier_origins(args.output):
        message = "got a file that build_spec did not write, or that was edited since; expected a new name"
        found.append(f.error("SPEC-OUTPUT", args.output, message, "--force"))
    if f.has_errors(found) and draft.exit_code == f.EXIT_BAD_INPUT:
        raise f.Failure(found, f.EXIT_BAD_INPUT)
    if f.has_errors(found):
        return command.Outcome({"spec": None}, found, "nothing written")
    return written(args, draft, found)


def written(args, draft: spec_sources.Draft, found: list[f.Finding]) -> command.Outcome:
    output = Path(args.output)
    beside = output.with_suffix(".origins.json")
    spec.dump(draft.spec, output)
    origins = {"schema_version": 1, "action": args.action, "engine": args.engine}
    origins |= {"spec_sha256": storage.sha256(output), "origins": draft.origin_table()}
    storage.write_json(beside, origins)
    result = {"spec": str(output), "origins": str(beside)}
    return command.Outcome(result, found, f"wrote {output}", next=following(args, draft, found))


def following(args, draft: spec_sources.Draft, found: list[f.Finding]) -> tuple[str, ...]:
    """The preflight on the platform that launches this spec here, when nothing it would refuse is left open."""
    to_give = {"SPEC-PATH-NOT-HERE", "SPEC-ENGINE-RUNS"} | {
        rule.id for rule in spec_rules.RULES if rule.severity == spec_rules.LATER
    }
    several = spec.get(draft.spec, "policy.parallelism.dp_replicate_size", 1) > 1  # nodes, of which jobs have one
    if several or to_give & {one.id for one in found}:
        return ()
    platform = "local" if args.engine == "transformers" else "docker"
    words = ["check_tao_launch_preflight.py", "--platform", platform, "--spec", args.output]
    words += ["--dataset-facts", args.dataset_facts] if args.dataset_facts else []
    gpus = range(rules.Case(args.action, args.engine, draft.spec).needed_gpus if platform == "docker" else 0)
    return (*words, *(["--target-gpu-index", ",".join(map(str, gpus))] if gpus else []))


def listing() -> command.Outcome:
    table = [{"id": r.id, "severity": r.severity, "actions": r.actions, "reason": r.reason} for r in spec_rules.RULES]
    other = spec_rules.other_checks()
    lines = [f"{row['id']:24} {row['severity']:8} {row['reason']}" for row in table]
    lines += ["", "checked besides:", *(f"{id:24} {reason}" for id, reason in other["checks"].items())]
    lines += ["", "not decidable from a spec:", *(f"  {trap}: {where}" for trap, where in other["elsewhere"].items())]
    return command.Outcome({"rules": table, **other}, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
