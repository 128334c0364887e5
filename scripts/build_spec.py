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
from pathlib import Path

from cosmos_reason import bundle, command, explain, rules, spec, spec_rules, spec_sources, storage
from cosmos_reason import findings as f


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("action", nargs="?", choices=bundle.ACTIONS, metavar="ACTION", help=" | ".join(bundle.ACTIONS))
    parser.add_argument("-o", "--output", metavar="FILE", help="spec.toml to write; spec.origins.json goes beside it")
    parser.add_argument("--engine", choices=bundle.ENGINES, default="tao", help="who reads the spec (default: tao)")
    source = parser.add_argument_group("where values come from, weakest first")
    source.add_argument("--spec", metavar="FILE", help="start from this .toml or .yaml spec instead of the template")
    source.add_argument(
        "--parent-job", metavar="DIR", help="use the model (train: resume the run) of a finished train job"
    )
    source.add_argument(
        "--profile", metavar="NAME", help="values of a published recipe (--explain profiles lists them)"
    )
    source.add_argument("--tuning", choices=("full", "lora"), help="all weights, or low-rank adapters")
    source.add_argument("--gpus-per-node", type=int, metavar="N", help="1, 2, 4 or 8; decides the parallelism")
    source.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 1)")
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
        "--allow-extra-key", action="append", default=[], metavar="KEY", help="let --set write a key unknown here"
    )
    checks.add_argument("--explain", metavar="WORD", help="what a key, a prefix, a profile or a word means, and stop")
    checks.add_argument("--list-rules", action="store_true", help="print id and reason of every rule, and stop")
    command.add_json_flag(parser)
    return parser


def build(args) -> spec_sources.Draft:
    """Take every source in order; contradictions are collected in the draft."""
    draft = spec_sources.start(args.action, args.engine, args.spec)
    if args.parent_job:
        spec_sources.take_parent(draft, Path(args.parent_job))
    if args.profile:
        spec_sources.take_profile(draft, args.profile)
    if args.tuning:
        spec_sources.take_tuning(draft, args.tuning)
    if args.gpus_per_node is not None or args.nodes is not None:
        spec_sources.take_gpus(draft, *gpus(args))
    if args.model is not None:
        spec_sources.take_model(draft, args.model)
    for flag, root in (("--train-root", args.train_root), ("--eval-root", args.eval_root)):
        if root is not None:
            spec_sources.take_root(draft, flag, root)
    spec_sources.take_settings(draft, args.set, args.unset, args.allow_extra_key)
    return draft


def gpus(args) -> tuple[int, int]:
    return (1 if args.gpus_per_node is None else args.gpus_per_node), (1 if args.nodes is None else args.nodes)


def check(args, draft: spec_sources.Draft) -> list[f.Finding]:
    """Fit the draft to its engine, then everything that stands against it."""
    facts = Path(args.dataset_facts) if args.dataset_facts else None
    spec_sources.fit_engine(draft, rules.steps_per_epoch(args.action, args.engine, draft.spec, facts))
    spec_sources.compare_with_training(draft)
    asked = args.gpus_per_node is not None or args.nodes is not None
    per_node, nodes = gpus(args) if asked else (None, 1)
    return draft.findings + rules.check(args.action, args.engine, draft.spec, facts, per_node, nodes)


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
    if f.has_errors(found):
        return command.Outcome({"spec": None}, found, "nothing written")
    output = Path(args.output)
    beside = output.with_suffix(".origins.json")
    origins = {"schema_version": 1, "action": args.action, "engine": args.engine, "origins": draft.origin_table()}
    spec.dump(draft.spec, output)
    storage.write_json(beside, origins)
    then = ""
    if args.engine == "transformers":  # the one engine that this version launches
        words = ["scripts/launch_job.py", "plan", args.action, "--spec", str(output), "--platform", "local"]
        then = f"\nnext: {shlex.join(words)}"
    return command.Outcome({"spec": str(output), "origins": str(beside)}, found, f"wrote {output}{then}")


def listing() -> command.Outcome:
    table = [{"id": r.id, "severity": r.severity, "actions": r.actions, "reason": r.reason} for r in spec_rules.RULES]
    elsewhere = [{"trap": trap, "checked_by": where} for trap, where in spec_rules.ELSEWHERE]
    lines = [f"{row['id']:24} {row['severity']:8} {row['reason']}" for row in table]
    lines += ["", "not decidable from a spec:", *(f"  {trap}: {where}" for trap, where in spec_rules.ELSEWHERE)]
    return command.Outcome({"rules": table, "elsewhere": elsewhere}, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
