#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "pyarrow==26.0.1", "huggingface_hub==1.33.0", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
# ]
# ///
"""Turn clips and labels, in the forms people have them, into a dataset to train and evaluate on.

examples:
  scripts/build_dataset.py clips/labels.csv -o data --column answer=light_on --question "Does a light come on?"
  scripts/build_dataset.py robovqa_benchmark_qa_pairs.json -o data --media reference --subset 100
  scripts/build_dataset.py nvidia/Cosmos-Reason1-SFT-Dataset -o data --hf-subset robovqa --hf-split reasoning
"""

import os
import shlex
import sys
from pathlib import Path

from cosmos_reason import command, dataset_sources, dataset_writer, source_files, storage
from cosmos_reason import findings as f

ROLES = ", ".join(dataset_sources.COLUMNS)


def parser() -> command.Parser:
    parser = command.Parser(__doc__, usage="%(prog)s SOURCE -o DIR [flags]")
    sources = "folder, table, annotation file, or ORG/NAME[@COMMIT] of a Hub dataset"
    parser.add_argument("source", metavar="SOURCE", help=sources)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to write: train/ and eval/")
    parser.add_argument("--kind", choices=("auto", *dataset_sources.KINDS), default="auto", help="what the source is")
    parser.add_argument("--column", action="append", default=[], metavar="ROLE=NAME", help=f"column of {ROLES}")
    asked = "question (or @FILE) when the source has none: labels need it, captions default to 'Describe this video.'; "
    asked += "the answer form (yes or no, options) is appended"
    parser.add_argument("--question", default="", help=asked)
    parser.add_argument("--system", default="", help="system prompt (or @FILE)")
    parser.add_argument("--fields", default="", metavar="A,B", help="label fields that make the answer; default all")
    parser.add_argument("--hf-subset", default="", metavar="NAME", help="subset of a Hub dataset; default its only one")
    parser.add_argument("--hf-split", default="", metavar="NAME", help="split of a Hub dataset; default train")
    held_out = "share of clips held out for evaluation, default: 0 (none)"
    parser.add_argument("--eval-fraction", type=float, default=0.0, metavar="F", help=held_out)
    parser.add_argument("--subset", type=int, default=0, metavar="N", help="keep N records; default 0, all")
    parser.add_argument("--seed", type=int, default=0, help="of the split and the subset")
    parser.add_argument("--media", choices=dataset_writer.MEDIA_MODES, default="link", help="hard link, copy, or name")
    parser.add_argument("--format", choices=dataset_writer.FORMATS, default="llava", help="of the annotations written")
    parser.add_argument("--license", default="unknown", help="license of the data, which DAFT annotations must state")
    parser.add_argument("--force", action="store_true", help="replace an existing output folder")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    output, facts = Path(args.output), f"{os.path.abspath(args.output)}-facts/dataset_facts.json"
    refuse_output(Path(args.source), output, args.force)
    if not 0 <= args.eval_fraction < 1:
        raise f.bad_input("USAGE", "--eval-fraction", f"got {args.eval_fraction:g}, expected 0 or more and below 1")
    if args.subset < 0:
        raise f.bad_input("USAGE", "--subset", f"got {args.subset}, expected 0 or more")
    fields = tuple(filter(None, args.fields.split(",")))
    asked, system = text(args.question), text(args.system)
    reading = dataset_sources.Reading(columns(args.column), asked, fields, args.hf_subset, args.hf_split, system)
    source = dataset_sources.open_source(args.source, args.kind, reading)
    items, found = dataset_sources.read(source, reading)
    if f.has_errors(found) or not items:
        raise f.Failure(found or f.error("BUILD-EMPTY", args.source, "got no records"), f.EXIT_CHECKS_FAILED)
    refuse_media_below(output, items)
    plan = dataset_writer.Plan(args.eval_fraction, args.subset, args.seed, args.media, args.format, args.license)
    written = dataset_writer.write(items, output, plan)
    if "eval_fraction" not in args.given:
        found = [*found, nothing_held_out(dataset_writer.fraction(items, plan), args.force)]
    told = ", ".join(f"{count} records in {output / name}" for name, count in written.items())
    result = {"kind": source.kind, "read": len(items), "written": written, "output": str(output)}
    result["tables"] = source.tables
    if len(source.tables) > 1:
        told += f" from {', '.join(source.tables[:5])}{', ...' if source.tables[5:] else ''}"
    if isinstance(source.files, source_files.Repository):
        result |= {"repository": source.files.repo, "commit": source.files.commit}
        told += f" from {source.files.repo}@{source.files.commit}"
    held_out = ("--eval", str(output / "eval")) if "eval" in written else ()
    checked = ("check_dataset.py", str(output / "train"), *held_out, "--facts", facts)
    return command.Outcome(result, found, f"{source.kind}: {told}", checked)


def nothing_held_out(share: float, force: bool) -> f.Finding:
    """What to add to the command for a dataset to evaluate on; one clip cannot be shared."""
    fix = f"--eval-fraction {share:g}{'' if force else ' --force'}" if share else ""
    return f.info("BUILD-NO-EVAL", "--eval-fraction", "got none, so no clips are held out to evaluate on", fix)


def refuse_output(source: Path, output: Path, force: bool) -> None:
    """Raise Failure unless `output` is new, or with `force` holds nothing but an earlier dataset."""
    if output.resolve() == source.resolve() or output.resolve() in source.resolve().parents:
        raise f.bad_input("BUILD-OUTPUT-OVERLAPS", output, f"got a folder that holds the source {source}")
    if not output.exists():
        return
    if not dataset_writer.is_as_written(output):
        message = "got something else than an earlier dataset, or files added to one, expected a new folder"
        raise f.bad_input("BUILD-OUTPUT-FOREIGN", output, message, f"-o {shlex.quote(f'{output}-new')}")
    if not force:
        raise f.bad_input("BUILD-OUTPUT", output, "got an existing dataset, expected a new folder", "--force")


def refuse_media_below(output: Path, items: list[dataset_sources.Item]) -> None:
    """Raise Failure when a clip to be read lies in the folder to be replaced."""
    root = output.resolve()
    for item in items:
        for _, medium in item.media:
            if isinstance(medium, Path) and root in medium.resolve().parents:
                raise f.bad_input("BUILD-OUTPUT-OVERLAPS", output, f"got a folder that holds the clip {medium}")


def columns(given: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in given]
    for role, _, name in pairs:
        if not name:
            raise f.bad_input("USAGE", "--column", f"got {role!r}, expected ROLE=NAME")
        if role not in dataset_sources.COLUMNS:
            hint = f.did_you_mean(role, dataset_sources.COLUMNS)
            raise f.bad_input("USAGE", "--column", f"got the role {role!r}, expected one of {ROLES}.{hint}")
    return {role: name for role, _, name in pairs}


def text(value: str) -> str:
    return storage.read_text(Path(value[1:])).strip() if value.startswith("@") else value


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
