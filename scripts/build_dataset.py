#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow==26.0.1"]
# ///
"""Turn clips and labels, in the forms people have them, into a dataset to train and evaluate on.

examples:
  scripts/build_dataset.py clips/labels.csv -o data --eval-fraction 0.1 --question "Does the car brake?"
  scripts/build_dataset.py robovqa_benchmark_qa_pairs.json -o data --media reference --subset 100
"""

import sys
from pathlib import Path

from cosmos_reason import command, dataset_sources, dataset_writer, storage
from cosmos_reason import findings as f

ROLES = ", ".join(dataset_sources.COLUMNS)


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("source", help="folder of clips, table (.csv .json .jsonl .parquet .arrow) or annotation file")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to write: train/ and eval/")
    parser.add_argument("--kind", choices=("auto", *dataset_sources.KINDS), default="auto", help="what the source is")
    parser.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME", help=f"column of {', '.join(ROLES)}"
    )
    parser.add_argument("--question", default="", help="question when the source has none; @FILE reads it from a file")
    parser.add_argument("--system", default="", help="system prompt; @FILE reads it from a file")
    parser.add_argument("--fields", default="", metavar="A,B", help="label fields that make the answer; default all")
    parser.add_argument("--eval-fraction", type=float, default=0.0, metavar="F", help="share of clips held out, 0 to 1")
    parser.add_argument("--subset", type=int, default=0, metavar="N", help="keep N records; default 0, all")
    parser.add_argument("--seed", type=int, default=0, help="of the split and the subset")
    parser.add_argument("--media", choices=dataset_writer.MEDIA_MODES, default="link", help="hard link, copy, or name")
    parser.add_argument("--format", choices=dataset_writer.FORMATS, default="llava", help="of the annotations written")
    parser.add_argument("--license", default="unknown", help="license of the data, which DAFT annotations must state")
    parser.add_argument("--force", action="store_true", help="replace an existing output folder")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    source, output = Path(args.source), Path(args.output)
    if output.exists() and not args.force:
        raise f.bad_input("BUILD-OUTPUT", output, "got an existing folder, expected a new one", "--force")
    if not 0 <= args.eval_fraction < 1:
        raise f.bad_input("USAGE", "--eval-fraction", f"got {args.eval_fraction:g}, expected 0 or more and below 1")
    kind = dataset_sources.kind_of(source) if args.kind == "auto" else args.kind
    reading = dataset_sources.Reading(
        columns(args.column), text(args.question), text(args.system), tuple(filter(None, args.fields.split(",")))
    )
    items, found = dataset_sources.read(source, kind, reading)
    if f.has_errors(found) or not items:
        raise f.Failure(found or f.error("BUILD-EMPTY", source, "got no records, expected some"), f.EXIT_CHECKS_FAILED)
    plan = dataset_writer.Plan(args.eval_fraction, args.subset, args.seed, args.media, args.format, args.license)
    written = dataset_writer.write(items, output, plan)
    told = ", ".join(f"{count} records in {output / name}" for name, count in written.items())
    result = {"kind": kind, "read": len(items), "written": written, "output": str(output)}
    return command.Outcome(result, found, f"{kind}: {told}\nnext: scripts/check_dataset.py {output / 'train'}")


def columns(given: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in given]
    for role, _, name in pairs:
        if not name:
            raise f.bad_input("USAGE", "--column", f"got {role!r}, expected ROLE=NAME")
    return {role: name for role, _, name in pairs}


def text(value: str) -> str:
    return storage.read_text(Path(value[1:])).strip() if value.startswith("@") else value


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
