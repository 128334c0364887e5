#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
#     "pyarrow==26.0.1", "tokenizers==0.23.3", "tqdm==4.70.1", "jinja2==3.1.6", "boto3==1.44.5",
# ]
# ///
"""Check a dataset before anything is trained on it: records, media, leakage, and with --spec what training will meet.

examples:
  scripts/check_dataset.py data/train
  scripts/check_dataset.py data/train --eval data/eval --spec spec.toml --facts facts/dataset_facts.json --json
  scripts/check_dataset.py s3://bucket/train --decode none
"""

import os
import shlex
import sys
from functools import partial
from pathlib import Path

from cosmos_reason import clip_checks, command, dataset_checks, dataset_page, s3, survey
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason.annotations import fetch, locate
from cosmos_reason.vision_tokens import VisionOptions

TABLES = (".csv", ".parquet", ".arrow")
DEFAULT = "default: the annotation file's folder, or videos.tar.gz / images.tar.gz in it"


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("annotations", nargs="?", help="annotation file or dataset folder, also in s3://")
    parser.add_argument("--media-path", metavar="DIR", help=f"folder, archive or s3:// prefix of the media; {DEFAULT}")
    parser.add_argument("--eval", metavar="ANNOTATIONS", help="held-out data, checked too and compared for leakage")
    parser.add_argument("--eval-media-path", metavar="DIR", help="as --media-path, for --eval")
    parser.add_argument("--spec", metavar="FILE", help="training or evaluation spec: predicts tokens, frames and steps")
    parser.add_argument(
        "--decode",
        choices=clip_checks.DECODE_MODES,
        default="sampled",
        help="frames to decode of every clip: the sampled ones (default), all, or none (headers; of s3:// only sizes)",
    )
    day = partial(command.above_0, most=86400)
    parser.add_argument("--timeout", type=day, default=30.0, help="seconds a file may take to decode; default 30")
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
        result[name] = dataset_checks.write_facts(part, folder / Path(args.facts).name) if folder else None
        result[name] = result[name] or dataset_checks.facts(part)
        if action:
            asked = (dataset_checks.predict, part, action, spec, name == "eval")
            if prediction := attempt(found, *asked):
                result[name] |= {"prediction": prediction}
        found += dataset_checks.findings(part, name == "eval" or action == "evaluate", folder)
    if args.html:
        dataset_page.write(Path(args.html), parts, result, found)
        result["html"] = args.html
    text = "\n".join(as_text(name, result[name]) for name in parts)
    return command.Outcome(result, found, text, () if action else spec_command(parts, args.facts))


def facts_folder(facts: str | None, name: str) -> Path | None:
    """Where facts go: those of the evaluation data into eval/ beside those of the training data."""
    return facts and (Path(facts).parent / "eval" if name == "eval" else Path(facts).parent)


def spec_command(parts: dict[str, survey.Survey], facts: str | None) -> tuple[str, ...]:
    """What makes a training spec of these data."""
    words = []
    for name, table in (("train", "custom.train_dataset"), ("eval", "custom.val_dataset")):
        if part := parts.get(name):
            root, _, last = dataset_checks.whole_name(part.source).rpartition("/")
            media_path = dataset_checks.whole_name(part.media_path)
            if last == "annotations.json" and media_path == root:
                words += [f"--{name}-root", root]
            else:
                words += [
                    "--set",
                    f"{table}.annotation_path={root}/{last}",
                    "--set",
                    f"{table}.media_path={media_path}",
                ]
                words += ["--set", "validation.enable=true"] if name == "eval" else []
    return ("build_spec.py", "train", *words, *(("--dataset-facts", facts) if facts else ()), "-o", "spec.toml")


def read_spec(path: str | None) -> tuple[str, dict]:
    """(action, spec with its defaults); ("", {}) without a spec. Raises Failure for a spec that uses no such data, and
    with all that is invalid in it; keys that are missing have defaults."""
    if not path:
        return "", {}
    table = specs.load(Path(path))
    action = specs.of_other_action("train", table) or "train"
    if action not in ("train", "grpo", "evaluate"):
        raise f.bad_input("SPEC-ACTION", path, f"got {specs.a_spec(action)}, expected one for training or evaluation")
    invalid = [one for one in specs.validate(action, table) if (one.severity, one.id) != (f.ERROR, "SPEC-KEY-MISSING")]
    if not f.has_errors(invalid):
        attempt(invalid, VisionOptions.from_spec, table)
    if f.has_errors(invalid):
        raise f.Failure(invalid, f.EXIT_CHECKS_FAILED)
    return action, specs.with_defaults(action, table)


def attempt(found: list[f.Finding], call, *args):
    """What `call` returns, or None where the spec asks for a sampling that there is not, which is then `found`."""
    try:
        return call(*args)
    except f.Failure as failure:
        if not failure.findings[0].id.startswith("SPEC-"):
            raise
        found += [one for one in failure.findings if one not in found]


def examine(annotations: str, media_path: str | None, spec: dict, args) -> survey.Survey:
    from tqdm import tqdm

    source, path = annotation_file(annotations)
    model = specs.get(spec, "policy.model_name_or_path") or specs.get(spec, "model.model_name", "")
    found = survey.take(path, "", model, source)
    found.media_path = dataset_checks.media_path(found, media_path)
    cache = clip_checks.Cache()
    if cache.problem:
        found.tally.add("DATA-CACHE", 0, "-", cache.problem)
    files = dataset_checks.files(found)
    options = VisionOptions.from_spec(spec or {"vision": {"nframes": 8}})
    reports = examine_files(found, files, (args.decode, options, args.timeout, cache))
    found.reports |= tqdm(reports, total=len(files), desc=path.name, unit="clip", disable=None)
    dataset_checks.check_clips(found)
    found.tally.fixes["DATA-MEDIA-TIMEOUT"] = f"--timeout {min(4 * args.timeout, 86000):g}"
    return found


def annotation_file(written: str) -> tuple[str, Path]:
    """(its name when it is in S3, the local file); raises Failure, with the way on, for what is no annotation file."""
    if s3.is_uri(written):
        return fetch(written)
    path, train, held_out = locate(written), Path(written, "train"), Path(written, "eval")
    if path.suffix in TABLES or (Path(written).is_dir() and not path.is_file()):
        message = "got a folder or table without annotations, expected an annotation file"
        words = ["build_dataset.py", written, "-o", "data"]
        if locate(train).is_file():
            words = ["check_dataset.py", str(train), *(("--eval", str(held_out)) if held_out.is_dir() else ())]
        raise f.bad_input("DATA-NOT-BUILT", written, message, f"scripts/{shlex.join(words)}")
    return "", path


def examine_files(found: survey.Survey, files: dict, how: tuple) -> clip_checks.Reports:
    """(clip number, report) of every file, wherever it is."""
    packed = {}
    if not s3.is_uri(found.media_path) and Path(found.media_path).is_file():
        names = {number: medium.path for medium, number in found.clips.items() if not os.path.isabs(medium.path)}
        packed = {number: names[number] for number in files.keys() & names.keys() if not s3.is_uri(names[number])}
    yield from clip_checks.examine_all({number: files[number] for number in files.keys() - packed.keys()}, *how)
    if packed:
        yield from clip_checks.examine_archive(found.media_path, packed, *how)


def listing() -> command.Outcome:
    names = ("severity", "checks", "fix")
    checks = {name: dict(zip(names, row, strict=True)) for name, row in dataset_checks.CHECKS.items()}
    text = "\n".join(f"{name:24} {row['severity']:8} {row['checks']}" for name, row in checks.items())
    return command.Outcome({"checks": checks}, text=text)


def as_text(name: str, facts: dict) -> str:
    size, text, prediction = facts["media"], facts["text_tokens"], facts.get("prediction", {})
    size = {key: shown(spread) for key, spread in size.items()}
    types = ", ".join(f"{count} {kind}" for kind, count in facts["question_types"].items())
    share = facts["majority_accuracy"]
    lines = [
        f"{name}: {facts['records']} records, {facts['questions']} questions ({types}), {facts['clips']} clips "
        f"({shown(facts['records_per_clip'])} records per clip)",
        f"  media: {size['width']} x {size['height']} px, {size['frames']} frames, {size['fps']} fps, "
        f"{size['seconds']} s, {facts['clips_with_problems']} with problems",
        f"  text: up to {text['max']} tokens ({text['method']}), {facts['reasoning_share']:.0%} with reasoning, "
        f"majority answer right {'-' if share is None else f'{share:.1%}'}",
    ]
    for kind, balance in facts["answers"].items():
        listed = [f"{answer} {count}" for answer, count in balance.items()]
        lines.append(f"  {kind}: {', '.join([*listed[:8], *(['...'] if listed[8:] else [])])}")
    if prediction:
        tokens, frames = prediction["tokens"], shown(prediction["frames"])
        most = f"at most {tokens['max']} of {prediction['limit']}"
        lines.append(f"  spec: {tokens['p50']} tokens per sample, {most}, {frames} frames")
    if "steps_per_epoch" in prediction:
        steps = ", ".join(f"{count} on {gpus} GPU" for gpus, count in prediction["steps_per_epoch"].items())
        memory = f"{prediction['prefetch_bytes_per_rank'] / 2**30:.1f} GiB of host memory per rank"
        lines.append(f"  steps per epoch: {steps}; loading ahead takes up to {memory}")
    return "\n".join(lines)


def shown(spread: dict) -> str:
    low, high = spread["min"], spread["max"]
    return "-" if low is None else f"{low:g}" if low == high else f"{low:g}..{high:g}"


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
