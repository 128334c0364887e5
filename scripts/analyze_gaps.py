#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "Jinja2==3.1.6", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0", "pyarrow==26.0.1",
# ]
# ///
"""List what an evaluated model gets wrong, and why: a table for the next data collection and a page to look at.

examples:
  scripts/analyze_gaps.py --results-dir results --gaps-parquet gaps.parquet \\
      --kpi-ann-path data/eval/annotations.json --kpi-media-path data/eval
  scripts/analyze_gaps.py --results-dir tuned --baseline base --training-metrics jobs/train-1/metrics.jsonl \\
      --gaps-parquet gaps.parquet --kpi-ann-path eval.json --kpi-media-path clips --html report.html

The table starts with video_id (full media path), question and ground_truth. No gaps is a valid result.
"""

import argparse
import sys
from pathlib import Path

from cosmos_reason import answers, command, findings, gaps, report, results


def local(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"got {text}, expected a local path: copy it first (aws s3 cp --recursive)")
    return Path(text)


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument(
        "--results-dir", type=local, required=True, help="folder with the results.json of an evaluation"
    )
    parser.add_argument("--gaps-parquet", type=local, required=True, help="table to write, one line per wrong answer")
    parser.add_argument("--kpi-ann-path", type=local, required=True, help="annotations that map video_id to a medium")
    parser.add_argument(
        "--kpi-media-path", default="", help="folder or s3:// prefix of the media (default: as written)"
    )
    parser.add_argument("--html", type=local, help="page to write: one file that opens offline")
    parser.add_argument("--baseline", type=local, help="results of an earlier run, shown as before")
    curves = "metrics.jsonl of training runs, for the loss curve"
    parser.add_argument("--training-metrics", type=local, nargs="+", default=[], metavar="FILE", help=curves)
    read_as = "how ground truths and answers are read (default: auto, per question from the data)"
    parser.add_argument("--type", choices=("auto", *answers.TYPES), default="auto", help=read_as)
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    file, rows, found = judged(args.results_dir, args.type)
    before = judged(args.baseline, args.type)[1] if args.baseline else None
    curves = [report.read_curve(path) for path in args.training_metrics]
    wanted = {row.video_id for row in rows}
    paths, unmapped = gaps.media_paths(args.kpi_ann_path, args.kpi_media_path, wanted)
    wrong = gaps.find(rows, paths)
    summary = gaps.summary(rows, wrong)
    gaps.write_parquet(args.gaps_parquet, wrong)
    if args.html:
        record = results.evaluation(file)
        report.write(args.html, rows, wrong, summary, record, before, curves)
    written = {"gaps_parquet": str(args.gaps_parquet), "html": str(args.html) if args.html else None}
    return command.Outcome(summary | written, found + unmapped, as_text(summary, written))


def judged(folder: Path, kind: str) -> tuple[Path, list[results.Row], list[findings.Finding]]:
    """The one results file of a folder and its judged rows."""
    files = results.find(folder)
    if len(files) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in files[:5])
        raise findings.bad_input("EVAL-RESULTS-SEVERAL", folder, f"got {len(files)} results ({names}), expected one")
    rows, found = results.read(files[0])
    return files[0], rows, found + results.judge(rows, kind)


def as_text(summary: dict, written: dict) -> str:
    lines = [f"{summary['gaps']} of {summary['rows']} questions are wrong: {written['gaps_parquet']}"]
    lines += [f"  {count:>7} {kind.replace('_', ' ')}" for kind, count in summary["error_types"].items()]
    for line in summary["next_data"][:5]:
        lines.append(f"  collect {line['collect']} more with answer {line['class']!r} ({line['type']})")
    if written["html"]:
        lines.append(f"report: {written['html']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
