#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "pyarrow==26.0.1"]
# ///
"""Build a checked spec.toml for an action (train, grpo, evaluate, inference, quantize) from template and overrides.

examples:
  scripts/build_spec.py train --tuning lora --train-root data/train --gpus-per-node 8 -o spec.toml
  scripts/build_spec.py train --spec spec.toml --set learning_rate=2e-5 --set nframes=16 -o spec2.toml
  scripts/build_spec.py evaluate --parent-job jobs/train-20260101-120000-ab12cd --eval-root data/eval -o eval.toml
  scripts/build_spec.py --explain "learning rate"
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from cosmos_reason import bundle, command, explain, rules, spec, spec_engine, spec_rules, spec_sources, storage
from cosmos_reason import findings as f


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("action", nargs="?", choices=bundle.ACTIONS, metavar="ACTION", help=" | ".join(bundle.ACTIONS))
    parser.add_argument("-o", "--output", metavar="FILE", help="spec.toml to write; spec.origins.json goes beside it")
    parser.add_argument("--engine", choices=bundle.ENGINES, default="tao", help="who reads the spec (default: tao)")
    source = parser.add_argument_group("where values come from, weakest first")
    source.add_argument("--spec", metavar="FILE", help="start from this .toml or .yaml, not from the template")
    source.add_argument(
        "--parent-job", metavar="DIR", help="use the model (train: resume the run) of a finished train job"
    )
    source.add_argument("--profile", metavar="NAME", help="values of a published recipe (--explain profiles)")
    source.add_argument("--tuning", choices=("full", "lora"), help="all weights, or low-rank adapters")
    source.add_argument("--gpus-per-node", type=int, metavar="N", help="1, 2, 4 or 8; decides the parallelism")
    source.add_argument("--nodes", type=int, metavar="N", help="number of nodes; goes with --gpus-per-node")
    source.add_argument("--model", metavar="NAME", help="hf_model://ORG/NAME, ORG/NAME, a spoken name or a folder")
    source.add_argument("--train-root", metavar="DIR", help="folder or s3:// prefix with annotations.json and media")
    source.add_argument("--eval-root", metavar="DIR", help="the same for validation (train) or questions (evaluate)")
    source.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="a.b.c=value or a short name; repeatable"
    )
    source.add_argument("--unset", action="append", default=[], metavar="KEY", help="remove a key or table; repeatable")
    checks = parser.add_argument_group("checks and help")
    checks.add_argument(
        "--dataset-facts", metavar="FILE", help="dataset_facts.json of check_dataset: lengths and steps"
    )
    checks.add_argument(
        "--allow-extra-key", action="append", default=[], metavar="KEY", help="let --set write another key of cosmos-rl"
    )
    checks.add_argument("--force", action="store_true", help="replace a file that build_spec did not write")
    checks.add_argument("--explain", metavar="WORD", help="what a key, prefix, profile or rule id means")
    checks.add_argument("--list-rules", action="store_true", help="id and reason of every rule")
    command.add_json_flag(parser)
    return parser


def build(args) -> spec_sources.Draft:
    """Take every source in order; contradictions, and files that cannot be read, are collected in the draft."""
    given = {dest: getattr(args, dest) for dest in getattr(args, "given", ())}
    flags = {f"--{dest}".replace("_", "-"): value for dest, value in given.items()}
    flags = {flag: f"{flag} {shlex.quote(str(value))}" for flag, value in flags.items()}
    draft = spec_sources.Draft(args.action, args.engine, flags=flags)
    take_base(draft, args)
    was_lora, was_rate = (spec.get(draft.spec, key) for key in ("policy.lora", "train.optm_lr"))
    if args.tuning:
        spec_sources.take_tuning(draft, args.tuning)
    if args.model is not None:
        draft.attempt(spec_sources.take_model, draft, args.model)
    for flag, root in (("--train-root", args.train_root), ("--eval-root", args.eval_root)):
        if root is not None:
            spec_sources.take_root(draft, flag, root)
    spec_sources.take_settings(draft, args.set, args.unset, args.allow_extra_key)
    if args.gpus_per_node is not None or args.nodes is not None:
        spec_sources.take_gpus(draft, args.gpus_per_node, args.nodes)
    spec_sources.settle_rate(draft, was_lora is not None, was_rate)
    spec_sources.look_for_paths(draft)
    return draft


def take_base(draft: spec_sources.Draft, args) -> None:
    """The template or what stands for it, then a parent job and a profile."""
    resumes = args.parent_job and args.action == "train"
    if args.spec and resumes:
        message = "got --spec and --parent-job, each of which is a whole train spec; expected one"
        draft.refuse("SPEC-SOURCES", "--spec", message, f"drop {draft.flags['--spec']}")
    elif args.spec:
        draft.attempt(spec_sources.take_file, draft, args.spec)
    elif not resumes:
        spec_sources.take_template(draft)
    if args.parent_job:
        key = draft.params["model"]
        named = {spec_sources.full_name(args.action, setting.partition("=")[0].strip()) for setting in args.set}
        model_given = args.model is not None or key in named
        draft.attempt(spec_sources.take_parent, draft, Path(args.parent_job), model_given)
    if not draft.spec:  # it could not be read: what else is wrong is looked for all the same
        spec_sources.take_template(draft)
    if args.profile:
        spec_sources.take_profile(draft, args.profile)


def check(args, draft: spec_sources.Draft) -> list[f.Finding]:
    """Fit the draft to its engine, then everything that stands against it, with fixes for this command line."""
    facts = Path(args.dataset_facts) if args.dataset_facts else None
    if facts and draft.attempt(rules.read_facts, facts) is None:
        facts = None
    spec_sources.compare_with_resumed(draft)
    spec_engine.fit(draft, rules.steps_per_epoch(args.action, args.engine, draft.spec, facts))
    spec_sources.compare_with_training(draft)
    counted = not any(one.id.startswith("SPEC-GPUS") for one in draft.findings)
    size = (args.gpus_per_node, 1 if args.nodes is None else args.nodes) if counted else (None, 1)
    found = draft.attempt(rules.check, args.action, args.engine, draft.spec, facts, *size)
    if found is None:  # the tables beside the facts cannot be read
        found = rules.check(args.action, args.engine, draft.spec, None, *size)
    return [replace(one, fix=spec_sources.pasteable(draft, one.fix)) for one in draft.findings + found]


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
    then = ""
    if args.engine == "transformers":  # the one engine that this version launches
        words = ["scripts/launch_job.py", "plan", args.action, "--spec", str(output), "--platform", "local"]
        then = f"\nnext: {shlex.join(words)}"
    return command.Outcome({"spec": str(output), "origins": str(beside)}, found, f"wrote {output}{then}")


def listing() -> command.Outcome:
    table = [{"id": r.id, "severity": r.severity, "actions": r.actions, "reason": r.reason} for r in spec_rules.RULES]
    other = spec_rules.other_checks()
    lines = [f"{row['id']:24} {row['severity']:8} {row['reason']}" for row in table]
    lines += ["", "checked besides:", *(f"{id:24} {reason}" for id, reason in other["checks"].items())]
    lines += ["", "not decidable from a spec:", *(f"  {trap}: {where}" for trap, where in other["elsewhere"].items())]
    return command.Outcome({"rules": table, **other}, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
