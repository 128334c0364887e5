#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "Jinja2==3.1.6", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0", "pyarrow==26.0.1", "boto3==1.44.5",
# ]
# ///
"""List what an evaluated model gets wrong, and why: a table for the next data collection and a page to look at.

examples:
  scripts/analyze_gaps.py --results-dir results --gaps-parquet gaps.parquet \\
      --kpi-ann-path data/eval/annotations.json --kpi-media-path data/eval
  scripts/analyze_gaps.py --results-dir tuned --baseline base --training-metrics jobs/train-1/metrics.jsonl \\
      --gaps-parquet gaps.parquet --kpi-ann-path eval.json --kpi-media-path clips --html report.html

The table starts with video_id (full media path), question and ground_truth. No gaps is a valid result. Results,
annotations, media and the table may be s3:// names (credentials and endpoint as boto3 reads them).
"""

import contextlib
import sys
import tempfile
from pathlib import Path

from cosmos_reason import command, findings, gaps, metrics, report, results, s3, storage


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("--results-dir", required=True, help="folder or s3:// prefix with the results.json")
    parser.add_argument("--gaps-parquet", required=True, help="table to write, one line per wrong answer")
    parser.add_argument("--kpi-ann-path", required=True, help="annotations that map video_id to a medium")
    parser.add_argument("--kpi-media-path", default="", help="folder or s3:// prefix of the media (default: none)")
    parser.add_argument("--html", help="page to write: one file that opens offline")
    parser.add_argument("--baseline", help="results of an earlier run, shown as before")
    curves = "metrics.jsonl of training runs, for the loss curve"
    parser.add_argument("--training-metrics", type=Path, nargs="+", default=[], metavar="FILE", help=curves)
    results.add_reading_flags(parser)
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.html and s3.is_uri(args.html):
        raise findings.bad_input("USAGE", "--html", f"got {args.html}, expected a local file: it is for a browser")
    file, rows, found = results.one(here(args.results_dir), args)
    before = pair = None
    if args.baseline:
        _, before, problems = results.one(here(args.baseline), args)
        pair, unpaired = metrics.compare(before, rows, "--baseline")
        found += problems + unpaired
    curves = [report.read_curve(path) for path in args.training_metrics]
    annotations = s3.local(args.kpi_ann_path) if s3.is_uri(args.kpi_ann_path) else Path(args.kpi_ann_path)
    paths, problems = gaps.media_paths(annotations, args.kpi_media_path, {row.video_id for row in rows})
    wrong = gaps.find(rows, paths)
    result = gaps.summary(rows, wrong) | {"gaps_parquet": args.gaps_parquet, "html": args.html}
    page = None
    if args.html:
        page, shown = report.page(rows, wrong, result, results.evaluation(file), before, pair, curves)
        result["html_examples"] = shown
    write(args.gaps_parquet, wrong, args.html, page)
    return command.Outcome(result, found + problems, as_text(result))


def here(given: str) -> Path:
    """The results' folder, fetched when it is a prefix."""
    return s3.snapshot(given, ["*.json", "*.jsonl"]) if s3.is_uri(given) else Path(given)


def write(parquet: str, wrong: list[gaps.Gap], html: str | None, page: str | None) -> None:
    """Table and page, or neither."""
    with contextlib.ExitStack() as files:
        target = Path(parquet)
        if s3.is_uri(parquet):
            target = Path(files.enter_context(tempfile.TemporaryDirectory()), "gaps.parquet")
        if html:
            handle = files.enter_context(storage.whole_file(Path(html)))
            handle.write(page)
            handle.flush()  # a full disk shows before the table appears
        with storage.whole_file(target, "wb") as table:
            gaps.write_parquet(table, wrong)
        if s3.is_uri(parquet):
            s3.send(target, parquet)


def as_text(result: dict) -> str:
    lines = [f"{result['gaps']} of {result['rows']} questions are wrong: {result['gaps_parquet']}"]
    lines += [f"  {count:>7} {kind.replace('_', ' ')}" for kind, count in result["error_types"].items()]
    for line in result["next_data"][:5]:
        lines.append(f"  collect {line['collect']} more with answer {line['class']!r} ({line['type']})")
    if result["html"]:
        lines.append(f"report: {result['html']} ({result['html_examples']} of {result['gaps']} wrong answers as clips)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
