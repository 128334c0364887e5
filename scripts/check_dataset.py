#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
#     "pyarrow==26.0.1", "tokenizers==0.23.3", "tqdm==4.70.1", "jinja2==3.1.6",
# ]
# ///
"""Check a dataset before anything is trained on it: records, media, leakage, and with --spec what training will meet.

examples:
  scripts/check_dataset.py data/train
  scripts/check_dataset.py data/train --eval data/eval --spec spec.toml --facts facts/dataset_facts.json --json
"""

import sys
from pathlib import Path

from cosmos_reason import clip_checks, command, dataset_checks, dataset_page, survey
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason.annotations import locate
from cosmos_reason.vision_tokens import VisionOptions

DEFAULT = "default: the annotation file's folder, or videos.tar.gz / images.tar.gz in it"


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("annotations", nargs="?", help="annotation file, or a dataset folder with annotations.json")
    parser.add_argument("--media-path", metavar="DIR", help=f"folder or archive that holds the media; {DEFAULT}")
    parser.add_argument("--eval", metavar="ANNOTATIONS", help="held-out data, checked too and compared for leakage")
    parser.add_argument("--eval-media-path", metavar="DIR", help="as --media-path, for --eval")
    parser.add_argument("--spec", metavar="FILE", help="training or evaluation spec: predicts tokens, frames and steps")
    parser.add_argument(
        "--decode",
        choices=clip_checks.DECODE_MODES,
        default="sampled",
        help="frames to decode of every clip: those the sampler takes (default), all, or none (headers only)",
    )
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds a file may take to decode; default 30")
    parser.add_argument("--facts", metavar="FILE", help="write dataset_facts.json (of --eval: in eval/ beside it)")
    parser.add_argument("--html", metavar="FILE", help="write a page with findings, histograms and sample clips")
    parser.add_argument("--list-checks", action="store_true", help="print the id and meaning of every check, and stop")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.list_checks:
        return listing()
    if not args.annotations:
        raise f.bad_input("USAGE", "ANNOTATIONS", "got nothing, expected an annotation file or a dataset folder")
    action, spec = read_spec(args.spec)
    parts = {"train": examine(args.annotations, args.media_path, spec, args)}
    if args.eval:
        parts["eval"] = examine(args.eval, args.eval_media_path, spec, args)
        dataset_checks.check_leakage(parts["train"], parts["eval"])
    result, found = {}, []
    for name, part in parts.items():
        folder = facts_folder(args.facts, name)
        result[name] = conclude(
            part, action if name == "train" else "", spec, folder and folder / Path(args.facts).name
        )
        found += dataset_checks.findings(part, name == "eval" or action == "evaluate", folder)
    if args.html:
        dataset_page.write(Path(args.html), parts, result, found)
        result["html"] = args.html
    return command.Outcome(result, found, "\n".join(as_text(name, result[name]) for name in parts))


def facts_folder(facts: str | None, name: str) -> Path | None:
    """Where facts go: those of the evaluation data into eval/ beside those of the training data."""
    return facts and (Path(facts).parent / "eval" if name == "eval" else Path(facts).parent)


def read_spec(path: str | None) -> tuple[str, dict]:
    """(action, spec with its defaults); ("", {}) without a spec."""
    if not path:
        return "", {}
    table = specs.load(Path(path))
    action = "train" if "policy" in table or "train" in table else "evaluate"
    return action, specs.with_defaults(action, table)


def examine(annotations: str, media_path: str | None, spec: dict, args) -> survey.Survey:
    from tqdm import tqdm

    path = locate(annotations)
    model = specs.get(spec, "policy.model_name_or_path") or specs.get(spec, "model.model_name", "")
    found = survey.take(path, Path(media_path or ""), model)
    if media_path is None:
        found.media_path = dataset_checks.usual_media_path(found)
    options = VisionOptions.from_spec(spec or {"vision": {"nframes": 8}})
    cache = clip_checks.Cache()
    if cache.problem:
        found.tally.add("DATA-CACHE", 0, "-", cache.problem)
    files = dataset_checks.files(found)
    numbers, how = list(files), (args.decode, options, args.timeout, cache)
    if found.media_path.is_file():
        names = [medium.path for medium, number in found.clips.items() if number in files]
        reports = clip_checks.examine_archive(found.media_path, names, *how)
    else:
        reports = clip_checks.examine_all(list(files.values()), *how)
    for position, report in tqdm(reports, total=len(numbers), desc=path.name, unit="clip", disable=None):
        found.reports[numbers[position]] = report
    dataset_checks.check_clips(found)
    return found


def conclude(found: survey.Survey, action: str, spec: dict, facts_path: Path | None) -> dict:
    facts = dataset_checks.write_facts(found, facts_path) if facts_path else dataset_checks.facts(found)
    return {**facts, **({"prediction": dataset_checks.predict(found, action, spec)} if action else {})}


def listing() -> command.Outcome:
    checks = {
        name: {"severity": row[0], "checks": row[1], "fix": row[2]} for name, row in dataset_checks.CHECKS.items()
    }
    text = "\n".join(f"{name:24} {row['severity']:8} {row['checks']}" for name, row in checks.items())
    return command.Outcome({"checks": checks}, text=text)


def as_text(name: str, facts: dict) -> str:
    types = ", ".join(f"{count} {kind}" for kind, count in facts["question_types"].items())
    size, text = facts["media"], facts["text_tokens"]
    lines = [
        f"{name}: {facts['records']} records, {facts['questions']} questions ({types}), {facts['clips']} clips",
        f"  media: {shown(size['width'])} x {shown(size['height'])} px, {shown(size['frames'])} frames, "
        f"{shown(size['seconds'])} s, {facts['clips_with_problems']} with problems",
        f"  text: up to {text['max']} tokens ({text['method']}), majority answer right {facts['majority_accuracy']}",
    ]
    lines += [f"  {kind}: {top(balance)}" for kind, balance in facts["answers"].items()]
    if prediction := facts.get("prediction"):
        tokens = prediction["tokens"]
        lines.append(
            f"  spec: {tokens['p50']} tokens per sample, at most {tokens['max']} of {prediction['limit']}, "
            f"{shown(prediction['frames'])} frames"
        )
        steps = ", ".join(f"{count} on {gpus} GPU" for gpus, count in prediction.get("steps_per_epoch", {}).items())
        lines += [f"  steps per epoch: {steps}"] if steps else []
    return "\n".join(lines)


def shown(spread: dict) -> str:
    low, high = spread["min"], spread["max"]
    return "-" if low is None else f"{low:g}" if low == high else f"{low:g}..{high:g}"


def top(balance: dict[str, int]) -> str:
    parts = [f"{answer} {count}" for answer, count in list(balance.items())[:8]]
    return ", ".join(parts) + (", ..." if len(balance) > 8 else "")


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
