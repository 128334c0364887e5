#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0", "numpy==2.4.6",
#     "pillow==13.0.0", "pyarrow==26.0.1", "tokenizers==0.23.3", "tqdm==4.70.1",
#     "jinja2==3.1.6", "boto3==1.44.5",
# ]
# ///
"""Check a dataset before anything is trained on it:
records, media, leakage, and with --spec what training will meet.

examples:
  scripts/check_dataset.py data/train --fps 4 --max-length 4096 --model cosmos3-nano
  scripts/check_dataset.py data/train --eval data/eval --spec spec.toml \\
      --facts facts/dataset_facts.json --json
  scripts/check_dataset.py s3://bucket/train --decode none
"""

import copy
import itertools
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import bundle, site
from cosmos_reason.base import findings as f
from cosmos_reason.base.files import from_here
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.data import (
    arrival,
    clip_files,
    held_out,
    overlap,
    shortcuts,
    survey,
    whole_survey,
)
from cosmos_reason.data import checks as dataset_checks
from cosmos_reason.data import facts as dataset_facts
from cosmos_reason.data import sources as dataset_sources
from cosmos_reason.data.annotations import fetch, locate
from cosmos_reason.data.prediction import predict
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.sampling import ImpossibleOptions, VisionOptions
from cosmos_reason.pages import dataset as dataset_page
from cosmos_reason.remote import model_names, s3
from cosmos_reason.spec import actions, document, images, names, origins, validation

HELD_OUT = ("eval", "evaluation", "val", "validation", "test", "held_out")
TABLES = (".csv", ".tsv", ".xlsx", ".parquet", ".arrow")
# Of the values that are given without a spec, by the last part of their key.
FLAGS = {
    "nframes": "--nframes",
    "fps": "--fps",
    "model_max_length": "--max-length",
    "max_length": "--max-length",
}
DEFAULT = "default: the annotation file's folder, or videos.tar.gz / images.tar.gz in it"


def parser() -> cli.Parser:
    parser = cli.Parser(
        __doc__, "--eval --fps --nframes --max-length --model --spec --facts --media-path"
    )
    parser.add_argument(
        "annotations", nargs="?", help="annotation file or dataset folder, also in s3://"
    )
    parser.add_argument(
        "--media-path",
        metavar="DIR",
        help=f"folder, archive or s3:// prefix of the media; {DEFAULT}",
    )
    parser.add_argument(
        "--eval", metavar="ANNOTATIONS", help="held-out data, checked too and compared for leakage"
    )
    parser.add_argument("--eval-media-path", metavar="DIR", help="as --media-path, for --eval")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--spec",
        metavar="FILE",
        help="training or evaluation spec: predicts tokens, frames and steps",
    )
    named = "recipe that will train on it (build_spec.py --explain profiles): predicts as --spec"
    asked.add_argument("--profile", metavar="NAME", help=named)
    parser.add_argument(
        "--engine", choices=bundle.ENGINES, help="who will train on it (default: of --spec)"
    )
    parser.add_argument(
        "--decode",
        choices=clip_checks.DECODE_MODES,
        default="sampled",
        help="frames to decode of every clip: the sampled ones (default), all, "
        "or none (headers; of s3:// only sizes)",
    )
    sampling = parser.add_mutually_exclusive_group()
    rate = partial(cli.above_0, most=60)
    sampling.add_argument("--fps", type=rate, help="frames a second to sample, in place of a spec")
    frames = partial(cli.positive, most=768)
    sampling.add_argument("--nframes", type=frames, metavar="N", help="frames of a clip to sample")
    parser.add_argument(
        "--max-length", type=cli.positive, metavar="TOKENS", help="longest record in tokens"
    )
    parser.add_argument("--model", help="model whose tokens count: a folder or ORG/NAME")
    day = partial(cli.above_0, most=86400)
    parser.add_argument(
        "--timeout", type=day, default=30.0, help="seconds a file may take to decode; default 30"
    )
    parser.add_argument(
        "--facts", metavar="FILE", help="write dataset_facts.json (of --eval: in eval/ beside it)"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with findings, histograms and sample clips"
    )
    strips = "records with their pictures on the page; default 12, 0 all (about 15 KB each)"
    parser.add_argument("--html-records", type=int, default=12, metavar="N", help=strips)
    parser.add_argument(
        "--site", metavar="FILE", help="site.yaml: paths are those of that place, looked at here"
    )
    parser.add_argument(
        "--quick",
        metavar="FACTS",
        help="only compare annotations and sizes of media with this dataset_facts.json: "
        "did all of them arrive?",
    )
    parser.add_argument(
        "--list-checks",
        action="store_true",
        help="print the id and meaning of every check, and stop",
    )
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    if args.list_checks:
        return listing()
    if not args.annotations:
        message = "got nothing, expected an annotation file or a dataset folder"
        raise f.bad_input("USAGE", "ANNOTATIONS", message)
    take_site(args)
    if args.quick:
        return arrived(args)
    action, spec, meant = read_request(args)
    datasets = {"train": survey_dataset(args.annotations, args.media_path, spec, args)}
    if args.eval:
        datasets["eval"] = survey_dataset(args.eval, args.eval_media_path, spec, args)
        overlap.check(datasets["train"], datasets["eval"])
        held_out.check(datasets["train"], datasets["eval"])
    result = {}
    found: list[f.Finding] = []
    for name, dataset in datasets.items():
        # All that looks at a dataset notes what is wrong in its tally: findings are made last.
        is_held_out = name == "eval"
        prediction = None
        # With a model alone it is not known how many frames are sampled.
        if args.spec or args.profile or args.fps or args.nframes:
            engine = args.engine or ""
            if args.spec and not engine:
                engine = origins.engine_of(args.spec, action=action)
            is_trained = bool(args.spec) and not is_held_out
            prediction = attempt(found, predict, dataset, action, spec, engine, is_trained)
        is_asked = is_held_out or action == "evaluate"
        if not is_asked:
            dataset_checks.check_size(dataset)
        folder = None  # of the facts; those of the held-out data lie in eval/ below it
        if args.facts:
            path = Path(args.facts)
            folder = path.parent / "eval" if is_held_out else path.parent
            facts = dataset_facts.write_facts(dataset, folder / path.name)
        else:
            facts = dataset_facts.facts(dataset)
        result[name] = facts | ({"prediction": prediction} if prediction else {})
        findings = dataset_checks.findings(dataset, is_asked, folder)
        found += [finding for finding in findings if finding not in found]
    found = [replace(one, fix=pasteable(one.fix, meant)) for one in found]
    if args.html:
        if args.html_records < 0:
            message = f"got {args.html_records}, expected 0 or more"
            raise f.bad_input("USAGE", "--html-records", message)
        dataset_page.write(Path(args.html), datasets, result, found, args.html_records)
        result["html"] = args.html
    text = "\n".join(
        as_text(name if args.eval else args.annotations, result[name]) for name in datasets
    )
    # The name of an only folder may say that it is not to be trained on.
    folder = Path(clip_files.whole_name(datasets["train"].source)).parent.name.lower()
    is_trained_on = args.eval or folder not in HELD_OUT
    command = ()
    if is_trained_on and not args.spec:
        command = spec_command(datasets, meant, args)
    return cli.Outcome(result, found, text, command)


def take_site(args) -> None:
    """Read the site, and name what its paths mean where they lie here. Raises Failure (exit 2) for
    those that do not: nobody can look at them from here."""
    if not args.site:
        return
    described = site.read(Path(args.site))
    absent = []
    for name in ("annotations", "media_path", "eval", "eval_media_path"):
        written = getattr(args, name)
        if not written or s3.is_uri(written):
            continue
        setattr(args, name, described.here(written))
        if not Path(getattr(args, name)).exists():
            absent.append(written)
    if absent:
        message = f"got {', '.join(absent)}, which {args.site} places nowhere here"
        message += "; or run this command there"
        lines = [f"paths: {{{path}: HERE}}" for path in absent]
        fix = Fix(command=f"add to {args.site}: {'; '.join(lines)}")
        raise f.bad_input("DATA-ELSEWHERE", absent[0], message, fix, lines=lines)
    if args.model:
        args.model = described.here(args.model)


def arrived(args) -> cli.Outcome:
    """Return whether a copy of a dataset is whole, by the facts that were written of it
    elsewhere."""
    result, found = arrival.check(*annotation_file(args.annotations), args.media_path, args.quick)
    text = f"{result['clips']} clips and {result['records']} records as in {args.quick}"
    return cli.Outcome(result, found, "" if f.has_errors(found) else text)


def read_request(args) -> tuple[str, dict, dict[str, object]]:
    """Return (action, spec with its defaults, values that are given as flags); "" and {} without
    any."""
    if args.max_length and not (args.spec or args.profile or args.fps or args.nframes):
        message = "--max-length needs --fps or --nframes: frames make most of a record's length"
        raise f.bad_input("USAGE", "--max-length", message)
    action, spec = read_spec(args.spec)
    meant = meant_values(args, action or "train")
    if not action and (meant or args.profile):
        action = "train"
        spec = document.with_defaults("train", document.template("train"))  # as build_spec begins
        spec = with_values(spec, profile_values(args.profile) if args.profile else {})
    return action, with_values(spec, meant), meant


def profile_values(name: str) -> dict[str, object]:
    """Return what a published recipe of training sets, by key; of nframes and fps the one that it
    does not sample by is None. Raises Failure for a name that no recipe has."""
    recipes = bundle.skill_info()["profiles"]
    known = [one for one, recipe in recipes.items() if recipe["action"] == "train"]
    if name not in known:
        message = f"got {name!r}, expected one of {', '.join(known)}.{f.did_you_mean(name, known)}"
        raise f.bad_input("SPEC-PROFILE", "--profile", message)
    values = recipes[name]["set"]
    sampled = {"custom.vision.nframes": "custom.vision.fps"}
    sampled |= {other: key for key, other in sampled.items()}
    return {other: None for key, other in sampled.items() if key in values} | values


def meant_values(args, action: str) -> dict[str, object]:
    """Return the values of a spec that are given as flags, by key; None for one that goes."""
    keys = actions.places(action)
    table = "vision" if action == "evaluate" else "custom.vision"
    values = {}
    if args.model:
        values[keys["model"]] = model_names.canonical(args.model)
    if args.max_length:
        values[actions.LENGTHS[action][0]] = args.max_length
    if args.fps:
        values |= {f"{table}.nframes": None, f"{table}.fps": args.fps}
    if args.nframes:
        values |= {f"{table}.fps": None, f"{table}.nframes": args.nframes}
    return values


def pasteable(fix: Fix, meant: dict[str, object]) -> Fix:
    """Return a fix as a change to the command line that was given, where a flag gave the value."""
    changes = dict(fix.changes)
    words = []
    for key, value in fix.changes.items():
        flag = FLAGS.get(document.last_part(key))
        given = meant.get(key)
        if flag and given is not None and value is not None:
            words.append(f"replace {flag} {given} with {flag} {value}")
            del changes[key]
    if not words:
        return fix
    return replace(fix, command="; ".join(words), changes=changes)


def with_values(spec: dict, values: dict[str, object]) -> dict:
    """Return a copy of the spec with these values."""
    changed = copy.deepcopy(spec)
    for key, value in values.items():
        if value is None:
            document.delete(changed, key)
        else:
            document.set_value(changed, key, value)
    return changed


def spec_command(
    datasets: dict[str, survey.Survey], meant: dict[str, object], args
) -> tuple[str, ...]:
    """Return what makes a training spec of these data, with the values that were meant, for the
    site, the engine and the profile that were named; without one, that of small data."""
    tables = {"train": "custom.train_dataset", "eval": "custom.val_dataset"}
    words = ["build_spec.py", "train"]
    words += ["--site", args.site] if args.site else []
    words += ["--engine", args.engine] if args.engine else []
    profile = args.profile
    if not profile and sum(datasets["train"].asked) < min(dataset_checks.SIZES):
        profile = dataset_checks.SMALL
    words += ["--profile", profile] if profile else []
    for name, dataset in datasets.items():
        root, _, last = clip_files.whole_name(dataset.source).rpartition("/")
        media_path = clip_files.whole_name(dataset.media_path)
        if last == "annotations.json" and media_path == root:
            words += [f"--{name}-root", from_here(root)]
            continue
        words += ["--set", f"{tables[name]}.annotation_path={root}/{last}"]
        words += ["--set", f"{tables[name]}.media_path={media_path}"]
        if name == "eval":
            words += ["--set", "validation.enable=true"]
    model = actions.places("train")["model"]
    for key, value in meant.items():
        if key == model:
            words += ["--model", from_here(value)]
        elif value is not None:  # of nframes and fps build_spec removes the other one, too
            words += ["--set", f"{short_name(key)}={value_text(value)}"]
    if args.facts:
        words += ["--dataset-facts", args.facts]
    return (*words, "-o", "spec.toml")


def short_name(key: str) -> str:
    """Return the last part of a key where build_spec knows by it which key is meant."""
    last = document.last_part(key)
    return last if names.full_name("train", last) == key else key


def read_spec(path: str | None) -> tuple[str, dict]:
    """Return (action, spec with its defaults); ("", {}) without a spec.

    Raises Failure for a spec that uses no such data, and with all that is invalid in it; keys
    that are missing have defaults.
    """
    if not path:
        return "", {}
    table = document.load(Path(path))
    action = actions.of_spec(table)
    if action not in (*actions.TRAINING, "evaluate"):
        raise f.bad_input(
            "SPEC-ACTION",
            path,
            f"got {actions.a_spec(action)}, expected one for training or evaluation",
        )
    table, _ = images.translated(action, table)
    missing = (f.ERROR, "SPEC-KEY-MISSING")
    found = validation.validate(action, table)
    invalid = [finding for finding in found if (finding.severity, finding.id) != missing]
    if not f.has_errors(invalid):
        attempt(invalid, VisionOptions.from_spec, table)
    if f.has_errors(invalid):
        raise f.Failure(invalid, f.EXIT_CHECKS_FAILED)
    return action, document.with_defaults(action, table)


def attempt(found: list[f.Finding], call, *args):
    """Return what `call` returns; None where the spec asks for a sampling that there is not, which
    is then `found`."""
    try:
        return call(*args)
    except ImpossibleOptions as failure:
        found += [finding for finding in failure.findings if finding not in found]
        return None


def survey_dataset(annotations: str, media_path: str | None, spec: dict, args) -> survey.Survey:
    source, path = annotation_file(annotations)
    model = document.get(spec, "policy.model_name_or_path") or document.get(
        spec, "model.model_name", ""
    )
    cache = clip_checks.Cache()
    look = partial(examine_clips, spec=spec, args=args, cache=cache)
    dataset = whole_survey.take(path, media_path, model, look, source)
    shortcuts.check(dataset)
    if "DATA-NOT-BUILT" in dataset.tally.first:
        index, message = dataset.tally.first["DATA-NOT-BUILT"]
        fix, remark = dataset_sources.command(str(path))
        dataset.tally.fixes["DATA-NOT-BUILT"] = fix
        dataset.tally.first["DATA-NOT-BUILT"] = (index, message + remark)
    if cache.problem:
        dataset.tally.add("DATA-CACHE", 0, "-", cache.problem)
    dataset.tally.fixes["DATA-MEDIA-TIMEOUT"] = Fix(
        flags={"--timeout": f"{min(4 * args.timeout, 86000):g}"}
    )
    return dataset


def examine_clips(
    dataset: survey.Survey, spec: dict, args, cache: clip_checks.Cache
) -> clip_checks.Reports:
    """Yield (clip number, report) of every clip, wherever it is, with a bar of those that are
    known."""
    from tqdm import tqdm

    options = VisionOptions.from_spec(spec or {"vision": {"nframes": 8}})
    files = clip_files.files(dataset)
    packed = clip_files.members(dataset)
    alone = {number: files[number] for number in files.keys() - packed.keys()}
    reports = clip_checks.examine_all(alone, args.decode, options, args.timeout, cache)
    if packed:
        archive = Path(dataset.media_path)
        of_members = clip_checks.examine_archive(
            archive, packed, args.decode, options, args.timeout, cache
        )
        reports = itertools.chain(reports, of_members)
    name = f.printable(dataset.annotations.name)
    yield from tqdm(reports, total=len(files), desc=name, unit="clip", disable=None)


def annotation_file(written: str) -> tuple[str, Path]:
    """Return (its name when it is in S3, the local file). Raises Failure, with the way on, for what
    is no annotation file."""
    if s3.is_uri(written):
        return fetch(written)
    path = locate(written)
    if not Path(written).exists() and model_names.may_be_dataset(written):
        words = ["scripts/build_dataset.py", model_names.dataset(written), "-o", "data"]
        message = (
            "got no such file, expected an annotation file; a dataset of the Hub is built first"
        )
        raise f.bad_input("FILE-MISSING", written, message, Fix(command=shlex.join(words)))
    is_folder_without = Path(written).is_dir() and not path.is_file()
    if path.suffix not in TABLES and not is_folder_without:
        return "", path
    train = Path(written, "train")
    evaluation = Path(written, "eval")
    remark = ""
    if locate(train).is_file():
        words = ["scripts/check_dataset.py", str(train)]
        if evaluation.is_dir():
            words += ["--eval", str(evaluation)]
        fix = Fix(command=shlex.join(words))
    else:
        fix, remark = dataset_sources.command(written)
    message = "got a folder or table without annotations, expected an annotation file"
    raise f.bad_input("DATA-NOT-BUILT", written, message + remark, fix)


def listing() -> cli.Outcome:
    checks = {
        name: {"severity": severity, "checks": checks, "fix": str(fix)}
        for name, (severity, checks, fix) in dataset_checks.CHECKS.items()
    }
    text = "\n".join(
        f"{name:24} {row['severity']:8} {row['checks']}" for name, row in checks.items()
    )
    return cli.Outcome({"checks": checks}, text=text)


def as_text(name: str, facts: dict) -> str:
    size = facts["media"]
    text = facts["text_tokens"]
    prediction = facts.get("prediction", {})
    size = {key: shown(spread) for key, spread in size.items()}
    types = []
    for kind, count in facts["question_types"].items():
        listed = [f"{answer} {number}" for answer, number in facts["answers"].get(kind, {}).items()]
        listed[8:] = ["..."] if listed[8:] else []
        types.append(f"{count} {kind}" + (f" ({', '.join(listed)})" if listed else ""))
    share = facts["majority_accuracy"]
    reasoned = ""
    if facts["reasoning_share"]:
        reasoned = f"{facts['reasoning_share']:.0%} with reasoning, "
    lines = [
        f"{name}: {facts['records']} records ({shown(facts['records_per_clip'])} a clip), "
        f"{facts['questions']} questions: {', '.join(types)}",
        f"  {facts['clips']} clips of {size['width']} x {size['height']} px, {size['frames']} "
        f"frames, {size['fps']} fps, {size['seconds']} s; {facts['clips_with_problems']} with "
        "problems",
        f"  text up to {text['max'] or '-'} tokens ({text['method'].partition(':')[0]}); "
        f"{reasoned}majority answer right {'-' if share is None else f'{share:.1%}'}",
    ]
    if prediction:
        tokens = prediction["tokens"]
        frames = shown(prediction["frames"])
        most = f"at most {tokens['max']} of {prediction['limit']}"
        lines.append(f"  spec: {tokens['p50']} tokens per sample, {most}, {frames} frames")
    if "steps_per_epoch" in prediction:
        steps = ", ".join(
            f"{count} on {gpus} GPU" for gpus, count in prediction["steps_per_epoch"].items()
        )
        memory = f"{prediction['prefetch_bytes_per_rank'] / 2**30:.1f} GiB of host memory per rank"
        lines.append(f"  steps per epoch: {steps}; loading ahead takes up to {memory}")
    return "\n".join(lines)


def shown(spread: dict) -> str:
    low, high = spread["min"], spread["max"]
    if low is None:
        return "-"
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
