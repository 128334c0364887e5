#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "tqdm==4.70.1", "pyarrow==26.0.1", "huggingface_hub==1.33.0", "av==18.1.0",
#     "numpy==2.4.6", "pillow==13.0.0", "google-crc32c==1.9.0", "jsonschema==4.26.0",
#     "openpyxl==3.1.5",
# ]
# ///
"""Turn clips and labels, in the forms people have them, into a dataset to train and evaluate on.

examples:
  scripts/build_dataset.py clips/labels.csv -o data --column answer=light_on \\
      --question "Is a light on?"
  scripts/build_dataset.py nvidia/Cosmos-Reason1-SFT-Dataset -o data \\
      --hf-subset robovqa --hf-split reasoning
"""

import gc
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import shortened, some
from cosmos_reason.data import (
    annotators,
    converted,
    held_out,
    roles,
    source_files,
)
from cosmos_reason.data import sources as dataset_sources
from cosmos_reason.data import splits as dataset_splits
from cosmos_reason.data import writer as dataset_writer
from cosmos_reason.data.items import Item, Reading, Records

MOST_FOLDS = 100
MOST_ABSENT = 100  # moments without an event for each with it
MOST_RECORDINGS = 5  # that are held out and named in a line
MOST_ANSWERS = 8  # different ones, that are counted in a line
SAMPLES, LONGEST = 3, 240  # shown records, characters of each text
COMMON = "-o --eval-fraction --column --mapping --dry-run --question"
COMMON += " --adjudicate --subset --skip-missing"


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, COMMON, usage="%(prog)s SOURCE -o DIR [flags]")
    sources = "folder, table, annotations, or ORG/NAME[@COMMIT] of the Hub"
    parser.add_argument("source", metavar="SOURCE", help=sources)
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="folder to write: train/ and eval/"
    )
    parser.add_argument(
        "--kind",
        choices=("auto", *dataset_sources.KINDS),
        default="auto",
        help="what the source is",
    )
    declared = "what a column is (answer=what); roles: references/cosmos-reason-data.md"
    parser.add_argument("--column", action="append", default=[], metavar="ROLE=NAME", help=declared)
    saved = f"the {roles.FILE} of a build; flags go before it"
    parser.add_argument("--mapping", default="", metavar="FILE", help=saved)
    shown = "show mapping, records and counts, write nothing"
    parser.add_argument("--dry-run", action="store_true", help=shown)
    asked = "question (or @FILE) of rows without one (captions: 'Describe this video.')"
    parser.add_argument("--question", default="", help=asked)
    questions = (
        "several questions of a row, each with the column of its answer; {column} as in --question"
    )
    parser.add_argument(
        "--ask", action="append", default=[], metavar="'COLUMN: TEMPLATE'", help=questions
    )
    absent = (
        "ask about moments without the event of each row too, N for each with it (answers yes, no)"
    )
    parser.add_argument("--also-ask-absent", type=float, default=0.0, metavar="N", help=absent)
    long = "seconds of every part, around the middle of what its row names; default as long as that"
    parser.add_argument("--window", type=seconds, default=0.0, metavar="SECONDS", help=long)
    counted = "frames a second of Label Studio's timeline: frameRate of the Video tag, else 24"
    parser.add_argument("--label-fps", type=cli.above_0, default=0.0, metavar="FPS", help=counted)
    meant = "what the values of a column mean: 'what: forklift crosses=yes, empty=no'"
    parser.add_argument(
        "--values", action="append", default=[], metavar="'COLUMN: OLD=NEW, ...'", help=meant
    )
    counts = "where annotators disagree: the answer of most counts, or the rows are left out"
    parser.add_argument("--adjudicate", choices=annotators.WAYS, default="", help=counts)
    made = "Python file with convert(row) -> a row, a list of rows or None, run on every row"
    parser.add_argument("--convert", default="", metavar="FILE.py", help=made)
    anew = (
        "folder for clips that not all trainers read alike (HEVC, 10 bits, WMV, GIF, turned, a "
        "damaged end), written anew as H.264 and used in their place; a next run goes on there"
    )
    parser.add_argument("--transcode", default="", metavar="DIR", help=anew)
    parser.add_argument("--system", default="", help="system prompt (or @FILE)")
    parser.add_argument(
        "--fields", default="", metavar="A,B", help="label fields that make the answer; default all"
    )
    parser.add_argument(
        "--hf-subset",
        default="",
        metavar="NAME",
        help="subset of a Hub dataset; default its only one",
    )
    parser.add_argument(
        "--hf-split",
        default="",
        metavar="NAME",
        help="split of a Hub dataset, or a part of it: 'train[:100]'; default train, and what is "
        "held out",
    )
    raw = (
        f"raw data of {source_files.RAW_SETS}, to cut clips from that Cosmos-Reason1's sets "
        "name and do not hold"
    )
    parser.add_argument("--raw", default="", metavar="DIR", help=raw)
    share = "share of clips held out, default: 0"
    parser.add_argument("--eval-fraction", type=float, default=0.0, metavar="F", help=share)
    by = (
        "what is held out: clips, whole groups (a column of role group), the last time of each "
        "recording, or what a column or the source itself calls test; default clip, group where "
        "such a column is"
    )
    parser.add_argument("--split-by", choices=dataset_splits.SPLITS_BY, default="clip", help=by)
    apart = "seconds before the held-out time that are left out by --split-by time; default 10"
    parser.add_argument(
        "--margin", type=seconds, default=dataset_splits.NEAR, metavar="SECONDS", help=apart
    )
    folded = (
        "cross-validation: fold-1/{train,eval}, ..., each record held out once; default 0, none"
    )
    parser.add_argument("--folds", type=int, default=0, metavar="N", help=folded)
    parser.add_argument(
        "--subset", type=int, default=0, metavar="N", help="keep N records; default 0, all"
    )
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave out those without a sound clip",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split and the subset")
    parser.add_argument(
        "--media",
        choices=dataset_writer.MEDIA_MODES,
        default="link",
        help="hard link, copy, or name",
    )
    parser.add_argument(
        "--format",
        choices=dataset_writer.FORMATS,
        default="llava",
        help="of the annotations written",
    )
    parser.add_argument(
        "--license",
        default="unknown",
        help="license of the data, which DAFT annotations must state",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output folder")
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    output = Path(args.output)
    whole = os.path.abspath(args.output)
    facts = files.from_here(f"{whole}-facts/dataset_facts.json")
    gc.disable()  # rows have no cycles: to look for some takes a fifth of a large build
    source, (items, columns, unused, found) = read_source(args)
    gc.enable()  # clips that are opened have
    gc.collect()
    gc.freeze()
    refuse_media_below(output, items)
    plan = of_flags(dataset_splits.Plan, args, split_by=split_by(args, columns, items))
    document = {"convert": converted.described(args.convert)} if args.convert else {}
    document |= roles.document(args.source, columns, unused, args, plan.split_by)
    splits, between = dataset_splits.planned(items, plan)
    found = [*found, *between]
    counts = {name: len(kept) for name, kept in splits.items()}
    result = {"kind": source.kind, "read": len(items), "tables": list(source.split_of_table)}
    result["mapping"] = document
    result["columns"] = {one.role: one.name for one in reversed(columns) if one.name}
    result["planned"] = counts
    result["samples"] = [sample(item) for item in samples(items)]
    counted = ", ".join(f"{count} for {name}/" for name, count in counts.items())
    if not args.json and (args.dry_run or not args.quiet):
        for line in preview(columns, unused, items):
            f.say(line)
        f.say(f"{len(items)} records read: {counted}")
    if args.dry_run:
        said = f"{called(source.kind)}: {counted}; nothing is written (--dry-run)"
        return cli.Outcome(result, [*found, *about_share(items, splits, plan, args)], said)
    import yaml

    if not args.force:  # the folder is there when a fix is pasted
        found = [
            replace(one, fix=replace(one.fix, flags={**one.fix.flags, "--force": True}))
            if one.fix.flags
            else one
            for one in found
        ]
    agreement = [one for told in found for one in told.data.get("agreement", ())]
    saved = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    written, left_out = dataset_writer.write(splits, output, plan, saved, agreement)
    found = [*found, *left_out]
    if source.files.past:
        from cosmos_reason.data import parts

        found += parts.cut_at_the_end(source.files)
    found = [*found, *about_share(items, splits, plan, args)]
    summary = ", ".join(f"{count} records in {output / name}" for name, count in written.items())
    trained = sum(count for name, count in written.items() if name.endswith("train"))
    share = round(1 - trained / (sum(written.values()) or 1), 4)
    if args.folds:
        summary += f"; {args.folds} folds, each record is held out once"
    else:
        summary += f"; held out {share:.1%} of the records (asked: {args.eval_fraction:.1%})"
        filmed = recorded_in(splits.get("eval", {}).values())
        result["held_out_recordings"] = filmed[: f.MAX_RECORD_IDS]
        if 0 < len(filmed) <= MOST_RECORDINGS:
            summary += f": {', '.join(filmed)}"
    result |= {"written": written, "output": str(output)}
    result["held_out"] = share
    unsound = ("BUILD-MEDIA-SKIPPED", "BUILD-SPAN-OUTSIDE")  # for want of a sound clip
    result["skipped"] = sum(one.data["count"] for one in found if one.id in unsound)
    if result["skipped"]:
        summary += f", {result['skipped']} left out"
    if len(source.split_of_table) > 1:
        summary += f" from {some(list(source.split_of_table), 5)}"
    if source.files.repo:
        result |= {"repository": source.files.repo, "commit": source.files.commit}
        summary += f" from {source.files.repo}@{source.files.commit}"
    first, *others = (str(output / name) for name in written)
    checked_too = ("--eval", others[0]) if others else ()
    checked = ("check_dataset.py", first, *checked_too, "--facts", facts)
    return cli.Outcome(result, found, f"{called(source.kind)}: {summary}", checked)


def called(kind: str) -> str:
    return "table" if kind == "csv" else kind  # which JSON, parquet and workbooks are read as, too


def preview(columns: list[roles.Column], unused: list[str], items: list[Item]) -> list[str]:
    """Return the lines to show before anything is written: the mapping, records as a model sees
    them, and how often each answer is given where these are few."""
    lines = []
    # What is asked by itself at events is shown as what it was declared to be.
    there = [one for one in columns if one.name and one.source != roles.ABSENT]
    for kind in dict.fromkeys(one.family for one in there):
        alike = [one for one in there if one.family == kind]
        named = some([f"{one.name} ({one.source})" for one in alike], 3)
        lines.append(f"{alike[0].written} = {named}")
    if unused:
        lines.append(f"unused: {some(unused, 20)}")
    for item in samples(items):
        lines.append(f"record {item.name}: {_media(item)}")
        lines += [f"  {turn.role}: {_short(turn.text)}" for turn in item.turns]
        if item.reasoning:
            lines.append(f"  reasoning: {_short(item.reasoning)}")
    said = [[turn.text for turn in item.turns if turn.role == "assistant"] for item in items]
    given = Counter(text for texts in said for text in texts)
    # Labels are counted; texts, and the answers of conversations, are not.
    if all(len(texts) == 1 for texts in said) and len(given) <= MOST_ANSWERS:
        counted = [f"{_short(text)} ({count})" for text, count in given.most_common()]
        lines.append(f"answers: {', '.join(counted)}")
    return lines


def samples(items: list[Item]) -> list[Item]:
    """Return the first record, and the first of each other answer; else the next ones."""
    found: list[Item] = items[:1]
    answers = {item.turns[-1].text for item in found}
    for item in items:
        if len(found) < SAMPLES and item.turns[-1].text not in answers:
            found.append(item)
            answers.add(item.turns[-1].text)
    for item in items:
        if len(found) < SAMPLES and not any(item is other for other in found):
            found.append(item)
    return found


def _media(item: Item) -> str:
    """Return the media of an item by their names, with the times of those that are cut."""
    names = []
    for kind, medium in item.media:
        span = getattr(medium, "span", None)
        times = f" from {span[0]:g} to {span[1]:g} s" if span else ""
        name = medium.stem if span is None else getattr(medium.whole, "stem", medium.stem)
        names.append(f"<{kind}> {name}{times}")
    return ", ".join(names) or "no media"


def recorded_in(items: Iterable[Item]) -> list[str]:
    """Return what items are of: their groups, else the names of their clips."""
    found: dict[str, None] = {}
    for item in items:
        whole = [getattr(medium, "whole", None) or medium for _, medium in item.media]
        found |= dict.fromkeys(item.groups or [one.stem for one in whole])
    return sorted(found)


def _short(text: str) -> str:
    return shortened(text.replace("\n", " | "), LONGEST)


def sample(item: Item) -> dict:
    """Return a record as a model will see it."""
    media = [[kind, medium.stem] for kind, medium in item.media]
    turns = [[turn.role, turn.text] for turn in item.turns]
    return {"id": item.name, "media": media, "turns": turns, "reasoning": item.reasoning}


def about_share(
    items: list[Item], splits: dict[str, dict[str, Item]], plan: dataset_splits.Plan, args
) -> list[f.Finding]:
    """Return what is to be said of the share that is held out, with the one that would do: none, or
    too little. Of a source that names its splits BUILD-SPLIT-NAMED says more."""
    if args.folds or any(item.split for item in items):
        return []
    force = "" if args.force else " --force"
    if "eval_fraction" not in args.given:
        kept = splits["train"]
        share = dataset_splits.fitting(kept, plan, dataset_splits.filmed_from(kept))
        fix = f"--eval-fraction {share:g}{force}" if share else ""  # one clip cannot be shared
        message = "got none, so no clips are held out to evaluate on"
        return [f.info("BUILD-NO-EVAL", "--eval-fraction", message, fix)]
    short, enough = dataset_splits.eval_shortage(items, plan) if args.eval_fraction else ("", 0)
    if not short:
        return []
    message = f"got {short}, {held_out.EXPECTED}"
    fix = ""
    if not enough:
        message += f"; {held_out.ADD_CLIPS}"
    else:
        given = f"--eval-fraction {args.eval_fraction:g}"
        fix = f"replace {given} with --eval-fraction {enough:g}{force}"
    return [f.warning("BUILD-EVAL-SMALL", "--eval-fraction", message, fix)]


def split_by(args, columns: list[roles.Column], items: list[Item]) -> str:
    """Return what the splits are made by. Raises Failure where the source has nothing to do so."""
    declared = {one.role for one in columns}
    is_named = any(item.split for item in items)
    wrong = ""
    if args.split_by == "group" and "group" not in declared:
        wrong = "rows without a group, expected --column group=NAME"
    elif args.split_by == "time" and "group" in declared:
        wrong = (
            "a column of groups, which stay on one side, expected one of the two: recordings are "
            "split in themselves by time (--column ignore=NAME)"
        )
    elif args.split_by == "column" and not (is_named and "split" in declared):
        wrong = "rows that hold nothing out, expected --column split=NAME that names a test split"
    elif args.split_by == "source" and not is_named:
        wrong = "a source that names no held-out split, expected --eval-fraction, or one that does"
    if wrong:
        raise f.bad_input("BUILD-SPLIT", "--split-by", f"got {wrong}")
    if is_named:
        return "column" if "split" in declared else "source"
    return "group" if "group" in declared else args.split_by


def read_source(args) -> tuple[dataset_sources.Source, Records]:
    """Return the source and what it became.

    Raises Failure with all that is wrong, in the command and in the source.
    """
    wrong: list[f.Finding] = []
    if not args.dry_run:
        f.attempt(wrong, refuse_output, Path(args.source), Path(args.output), args.force)
    flags = args.column, args.ask, args.values
    declared, args.ask, args.values = roles.of_flags(*flags, wrong)
    args.question = f.attempt(wrong, text, args.question) or ""
    args.system = f.attempt(wrong, text, args.system) or ""
    saved = f.attempt(wrong, take_mapping, args) if args.mapping else None
    if args.mapping and saved is None:  # without it, columns would be looked for by their names
        raise f.Failure(wrong, f.EXIT_BAD_INPUT)
    f.attempt(wrong, refuse_numbers, args)
    if not 0 <= args.also_ask_absent <= MOST_ABSENT:
        message = f"got {args.also_ask_absent:g}, expected 0 to {MOST_ABSENT}"
        wrong.append(f.error("USAGE", "--also-ask-absent", message))
    if args.ask and args.also_ask_absent:
        message = "got both, expected one: an event is asked about by --question"
        wrong.append(f.error("USAGE", "--ask", message, "drop --ask"))
    templates = [template for _, template in args.ask]
    twice = [name for name, template in args.ask if templates.count(template) > 1]
    if twice:
        message = (
            f"got one question for the columns {', '.join(twice)}, expected a question of each; "
            "answers of several annotators stand in rows of their own, which --convert makes and "
            "--column annotator=NAME compares"
        )
        wrong.append(f.error("USAGE", "--ask", message))
    if args.ask and args.question:
        message = "got both, expected one: --ask says what every row is asked"
        wrong.append(f.error("USAGE", "--question", message, "drop --question"))
    reading = of_flags(
        Reading,
        args,
        column=tuple(declared),
        saved=saved,
        ask=tuple(args.ask),
        fields=tuple(filter(None, args.fields.split(","))),
        transcode="" if args.dry_run else args.transcode,
    )
    source = f.attempt(wrong, dataset_sources.open_source, args.source, args.kind, reading)
    read = f.attempt(wrong, dataset_sources.read, source, reading) if source else None
    if wrong or not read:
        raise f.Failure(wrong, f.EXIT_BAD_INPUT)
    found = list(read.findings)
    if not read.items:
        found.append(f.error("BUILD-EMPTY", args.source, "got no records"))
    held_out_by_source = sum(item.split in ("eval", "test") for item in read.items)
    if (args.eval_fraction or args.folds) and held_out_by_source:
        flag, value = "--eval-fraction", args.eval_fraction
        if args.folds:
            flag, value = "--folds", args.folds
        message = (
            f"got {value:g} for a source that holds out {held_out_by_source} records "
            "itself: leave it out, or build of the training split alone"
        )
        found.append(f.error("BUILD-SPLIT", flag, message))
    if f.has_errors(found):
        raise f.Failure(found, f.EXIT_CHECKS_FAILED)
    return source, read


def refuse_numbers(args) -> None:
    """Raise Failure for a share or a number of records that there is not, and for splits that
    exclude each other."""
    wrong = []
    if args.folds and not 2 <= args.folds <= MOST_FOLDS:
        message = f"got {args.folds}, expected 2 to {MOST_FOLDS}"
        wrong.append(f.error("USAGE", "--folds", message))
    if args.folds and args.eval_fraction:
        message = "got both, expected one: each fold holds out its share"
        wrong.append(f.error("USAGE", "--eval-fraction", message, "drop --eval-fraction"))
    if args.folds and args.split_by not in ("clip", "group"):
        message = f"got {args.split_by} for folds, which are made of whole clips or groups"
        wrong.append(f.error("USAGE", "--split-by", message, "drop --split-by"))
    if args.split_by == "time" and not args.eval_fraction:
        message = "got time, expected the share of each recording that is held out, too"
        wrong.append(f.error("USAGE", "--eval-fraction", message))
    if "margin" in args.given and args.split_by != "time":
        message = "got it for a split that is not made by time, expected --split-by time"
        wrong.append(f.error("USAGE", "--margin", message, "drop --margin"))
    if not 0 <= args.eval_fraction < 1:
        message = f"got {args.eval_fraction:g}, expected 0 or more and below 1"
        wrong.append(f.error("USAGE", "--eval-fraction", message))
    if args.subset < 0:
        wrong.append(f.error("USAGE", "--subset", f"got {args.subset}, expected 0 or more"))
    if wrong:
        raise f.Failure(wrong, f.EXIT_BAD_INPUT)


def refuse_output(source: Path, output: Path, force: bool) -> None:
    """Raise Failure unless `output` is new,
    or with `force` holds nothing but an earlier dataset."""
    if output.resolve() == source.resolve() or output.resolve() in source.resolve().parents:
        message = f"got a folder that holds the source {source}, expected a new one"
        raise f.bad_input("BUILD-OUTPUT-OVERLAPS", output, message, other_output(output))
    if not output.exists():
        return
    if not dataset_writer.is_as_written(output):
        message = (
            "got something else than an earlier dataset, or files added to one, "
            "expected a new folder"
        )
        raise f.bad_input("BUILD-OUTPUT-FOREIGN", output, message, other_output(output))
    if not force:
        raise f.bad_input(
            "BUILD-OUTPUT", output, "got an existing dataset, expected a new folder", "--force"
        )


def other_output(output: Path) -> str:
    """Return the flag that names a folder beside `output`."""
    has_name = output.name not in ("", "..")
    return f"-o {shlex.quote(f'{output if has_name else output.resolve()}-new')}"


def refuse_media_below(output: Path, items: list[Item]) -> None:
    """Raise Failure when a clip to be read lies in the folder to be replaced."""
    root = output.resolve()
    for file in dict.fromkeys(file for item in items for file in item.files):
        if isinstance(file, Path) and root in file.resolve().parents:
            message = f"got a folder that holds the clip {file}, expected a new one"
            raise f.bad_input("BUILD-OUTPUT-OVERLAPS", output, message, other_output(output))


def take_mapping(args) -> tuple[roles.Column, ...]:
    """Return the columns of a saved mapping. What else it says stands in for flags that are not
    given."""
    columns, saved = roles.load(Path(args.mapping))
    made_by = saved.get("convert")
    if made_by:
        is_named = args.convert and Path(args.convert).is_file()
        if not is_named or converted.described(args.convert)["sha256"] != made_by["sha256"]:
            message = (
                f"got a mapping of rows that {made_by['file']} made, expected --convert with "
                f"that file (sha256 {made_by['sha256']}): a mapping starts no program"
            )
            raise f.bad_input("BUILD-MAPPING", args.mapping, message)
    split = saved.get("split", {})
    stated = {"eval_fraction": split.get("fraction"), "seed": split.get("seed")}
    for name, key in (("split_by", "by"), ("margin", "margin_s"), ("folds", "folds")):
        stated[name] = split.get(key)
    if "folds" in args.given:  # one way to split stands for the others
        stated |= {"eval_fraction": None, "split_by": None, "margin": None}
    elif "eval_fraction" in args.given:
        stated["folds"] = None
    if "split_by" in args.given:
        stated["margin"] = None
    questions = saved.get("questions", ())
    asks = [(one["answer"], one["template"]) for one in questions if "answer" in one]
    question = next((one["template"] for one in questions if "answer" not in one), "")
    stated |= {"question": question, "ask": asks, "values": saved.get("values", {})}
    if {"question", "ask"} & args.given or args.ask:  # one way to ask stands for the other
        stated |= {"question": None, "ask": None}
    if args.values:
        stated["values"] = None
    stated |= saved.get("flags", {})
    for name, value in stated.items():
        if value is not None and name not in args.given:
            setattr(args, name, value)
            args.given.add(name)
    return columns


def of_flags(kind: type, args, **others):
    """Return a dataclass whose fields are called as flags, filled with these and with `others`."""
    given = {one.name: getattr(args, one.name) for one in fields(kind) if one.name not in others}
    return kind(**given, **others)


def seconds(written: str) -> float:
    """Return the seconds of "10" or "10s", as an argparse type."""
    number = written.removesuffix("s").strip()
    return 0.0 if number == "0" else cli.above_0(number)


def text(value: str) -> str:
    return files.read_text(Path(value[1:])).strip() if value.startswith("@") else value


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
