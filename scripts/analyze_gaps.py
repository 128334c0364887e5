#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "Jinja2==3.1.6", "tqdm==4.70.1", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
#   "pyarrow==26.0.1", "boto3==1.44.5",
# ]
# ///
"""List what an evaluated model gets wrong, and why: a table for the next data collection and a page
to look at.

examples:
  scripts/analyze_gaps.py --results-dir results --gaps-parquet gaps.parquet \\
      --kpi-ann-path data/eval/annotations.json --kpi-media-path data/eval
  scripts/analyze_gaps.py --results-dir tuned --baseline base \\
      --training-metrics jobs/train-1/metrics.jsonl --gaps-parquet gaps.parquet \\
      --kpi-ann-path eval.json --kpi-media-path clips --html report.html

The table starts with video_id (full media path), question and ground_truth. No gaps is a valid
result. Results, annotations, media and the table may be s3:// names (credentials and endpoint as
boto3 reads them).
"""

import contextlib
import gc
import sys
import tempfile
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.answers import PLACE_TYPES, SET_TYPES, final_answer
from cosmos_reason.base import files, findings
from cosmos_reason.data import label_tools
from cosmos_reason.evaluation import comparison, evaluation_record, gaps, grading, guard
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.media.files import IMAGE_SUFFIXES
from cosmos_reason.pages import loss_chart, report, training_remarks
from cosmos_reason.remote import s3

CLASSES_SHOWN = 5
QUESTION_SHOWN = 60  # characters


def parser() -> cli.Parser:
    parser = cli.Parser(
        __doc__, "--results-dir --gaps-parquet --kpi-ann-path --kpi-media-path --html --baseline"
    )
    parser.add_argument(
        "--results-dir", required=True, help="folder or s3:// prefix with the results.json"
    )
    parser.add_argument(
        "--gaps-parquet", required=True, help="table to write, one line per wrong answer"
    )
    parser.add_argument(
        "--kpi-ann-path", required=True, help="annotations that map video_id to a medium"
    )
    parser.add_argument(
        "--kpi-media-path", default="", help="folder or s3:// prefix of the media (default: none)"
    )
    parser.add_argument("--html", help="page to write: one file that opens offline")
    parser.add_argument("--baseline", help="results of an earlier run, shown as before")
    again = (
        "tasks to import into Label Studio, to label gaps again with the model's answers as "
        "predictions; the labelling interface is written beside it as .xml"
    )
    parser.add_argument("--label-studio", metavar="FILE.json", help=again)
    parser.add_argument(
        "--training-metrics",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="metrics.jsonl of training runs, for the loss curve",
    )
    cli.add_reading_flags(parser)
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    if args.html and s3.is_uri(args.html):
        message = f"{args.html} is no local file, which a browser needs"
        raise findings.bad_input("USAGE", "--html", message)
    options = grading.Options(args.type, args.tolerance, args.boxes, args.kpi_ann_path)
    file, rows, found = grading.read_one(local_results(args.results_dir), options)
    before_file = before = pair = None
    if args.baseline:
        before_file, before, problems = grading.read_one(local_results(args.baseline), options)
        found += problems
        pair, problems = comparison.compare(before, rows, "--baseline")
        before = [old for old, _ in comparison.paired(before, rows)[0]]
        found += problems
    general, problems = guard.read(file, before_file, "--baseline")
    found += problems
    curves = [loss_chart.read_curve(path) for path in args.training_metrics]
    remarks = [one for path in args.training_metrics for one in training_remarks.beside(path)]
    annotations = args.kpi_ann_path
    annotations = s3.local(annotations) if s3.is_uri(annotations) else Path(annotations)
    video_ids = (row.video_id for row in rows)
    paths, problems = gaps.media_paths(annotations, args.kpi_media_path, video_ids)
    found += problems

    wrong = gaps.find(rows, paths, before)
    result = gaps.summary(rows, wrong)
    page = None
    if args.html:
        record = evaluation_record.read(file)
        page, shown = report.page(
            rows, wrong, result, record, before, pair, curves, general, remarks
        )
    write(args.gaps_parquet, wrong, args.html, page)
    result["gaps_parquet"] = args.gaps_parquet
    if args.label_studio:
        result["label_studio"] = write_tasks(Path(args.label_studio), wrong, file)
    if general:
        result["guard"] = general.to_json()
        found.append(guard.verdict(result["guard"], file))
    result["html"] = args.html
    if args.html:
        result["html_examples"] = shown
    return cli.Outcome(result, found, as_text(result))


def local_results(given: str) -> Path:
    """Return the results' folder, fetched when it is a prefix."""
    return s3.snapshot(given, ["*.json", "*.jsonl"]) if s3.is_uri(given) else Path(given)


def write(parquet: str, wrong: list[gaps.Gap], html: str | None, page: str | None) -> None:
    """Write table and page, or neither."""
    with contextlib.ExitStack() as stack:
        target = Path(parquet)
        if s3.is_uri(parquet):
            target = Path(stack.enter_context(tempfile.TemporaryDirectory()), "gaps.parquet")
        if html:
            handle = stack.enter_context(files.whole_file(Path(html)))
            handle.write(page)
            handle.flush()  # a full disk shows before the table appears
        with files.whole_file(target, "wb") as table:
            gaps.write_parquet(table, wrong)
        if s3.is_uri(parquet):
            s3.send(target, parquet)


def write_tasks(target: Path, wrong: list[gaps.Gap], results: Path) -> dict:
    """Write the tasks of Label Studio and their interface; what must be said of them."""
    again = [
        {
            "path": gap.path,
            "kind": "image" if gap.path.lower().endswith(IMAGE_SUFFIXES) else "video",
            "question": gap.row.question,
            "answer": _as_labelled(gap.row),
            "gt": gap.row.gt,
            "id": gap.row.id,
        }
        for gap in wrong
    ]
    tasks, interface, root = label_tools.tasks(again, str(results))
    files.write_text(target.with_suffix(".xml"), interface)
    files.write_json(target, tasks)
    return {
        "tasks": str(target),
        "interface": str(target.with_suffix(".xml")),
        "local_files_root": root,
    }


def _as_labelled(row: Row) -> str | None:
    """Return the model's answer as a label is written: places and events in the model's own text,
    since what was read of them has a form of its own."""
    if row.type in (*PLACE_TYPES, *SET_TYPES) and row.response:
        return final_answer(row.response) or row.response
    return row.answer or row.response


def as_text(result: dict) -> str:
    lines = [f"{result['gaps']} of {result['rows']} questions are wrong: {result['gaps_parquet']}"]
    for kind, count in result["error_types"].items():
        lines.append(f"  {count:>7} {kind.replace('_', ' ')}")
    for line in result["next_data"][:CLASSES_SHOWN]:
        lines.append(
            f"  collect {line['collect']} more with answer {line['class']!r} to "
            f"{line['question'][:QUESTION_SHOWN]!r} ({line['gaps']} of {line['rows']} wrong; "
            f"{line['expected_gain']:+.1%} of all if right as often as its other answers)"
        )
    if "label_studio" in result:
        written = result["label_studio"]
        lines.append(
            f"Label Studio: {written['tasks']}, interface {written['interface']}; serve clips with "
            "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={written['local_files_root']}"
        )
    if result["html"]:
        shown = f"{result['html_examples']} of {result['gaps']} wrong answers as clips"
        lines.append(f"report: {result['html']} ({shown})")
    return "\n".join(lines)


if __name__ == "__main__":
    gc.disable()  # rows have no cycles: to look for some among a million takes a tenth of the time
    sys.exit(cli.run(parser(), main))
