#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["sacrebleu==2.6.0", "rouge-score==0.1.2"]
# ///
"""Score the answers of an evaluation: accuracy with interval and baseline, per type and class; or compare two runs.

examples:
  scripts/score_predictions.py jobs/evaluate-20260101-120000-abc123/results
  scripts/score_predictions.py tuned/results.json --compare base/results.json --json

Reads results.json (ours or TAO's), JSONL and Reason1 result folders. Writes metrics.json beside what it scored, and
checkpoint_metrics.json into the training output the evaluated checkpoint came from.
"""

import sys
from pathlib import Path

from cosmos_reason import answers, command, findings, metrics, results, storage


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="a results file, or a folder that holds one or several")
    read_as = "how ground truths and answers are read (default: auto, per question from the data)"
    parser.add_argument("--type", choices=("auto", *answers.TYPES), default="auto", help=read_as)
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative error a number may have (default: 0)")
    parser.add_argument("--compare", type=Path, help="results of an earlier run, paired with RESULTS by id")
    own = "Python file whose metric(rows) returns {name: number}, kept under `custom`"
    parser.add_argument("--metric-file", type=Path, help=own)
    stored = "count Reason1 folders as its calculate_accuracy does (`is_correct` as stored); writes nothing"
    parser.add_argument("--compat", choices=("reason1",), help=stored)
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.compat:
        return as_reason1(args.results)
    before = judged(args.compare, args)[0] if args.compare else None
    runs, found, lines = [], [], []
    for path in [path for given in args.results for path in results.find(given)]:
        rows, problems = judged(path, args)
        scored = metrics.score(rows) | named(path)
        if args.metric_file:
            scored["custom"] = metrics.from_file(args.metric_file, rows)
        if before:
            scored["comparison"] = metrics.compare(before, rows) | {"before": str(args.compare)}
        storage.write_json((path if path.is_dir() else path.parent) / "metrics.json", scored)
        metrics.record_for_checkpoint(scored["checkpoint"], scored)
        runs.append(scored)
        found += problems
        lines += as_text(scored)
    return command.Outcome({"runs": [brief(run) for run in runs]}, found, "\n".join(lines))


def judged(path: Path, args) -> tuple[list[results.Row], list[findings.Finding]]:
    rows, found = results.read(path)
    return rows, found + results.judge(rows, args.type, args.tolerance)


def named(path: Path) -> dict:
    record = results.evaluation(path)
    return {"model": record.get("model"), "checkpoint": record.get("checkpoint"), "results": str(path)}


def brief(scored: dict) -> dict:
    """Without the tables that grow with the number of classes and tags; metrics.json has them."""
    return {key: value for key, value in scored.items() if key not in ("per_class", "per_tag", "confusion_matrix")}


def as_text(scored: dict) -> list[str]:
    lines = [f"{scored['results']}: {len(scored['per_type'])} question type(s)", HEADER]
    lines += [table_line(name, table) for name, table in [*scored["per_type"].items(), ("all", scored)]]
    lines += [f"{name}: {value:g}" for name, value in scored.get("custom", {}).items()]
    if scored["text"]:
        overlap = (
            f"{scored['soft_accuracy']:.1%} of all rows right when texts that overlap by {metrics.SOFT_F1:.0%} count"
        )
        text = scored["text"]
        lines.append(f"free text: BLEU {text['bleu']:.1f}, ROUGE-L {text['rouge_l']:.3f}; {overlap}")
    if pair := scored.get("comparison"):
        same = f"{pair['unchanged_right']} right and {pair['unchanged_wrong']} wrong in both"
        changed = f"{pair['fixed']} fixed, {pair['broken']} broken"
        lines.append(f"against {pair['before']}: {changed}, {same}, McNemar p = {pair['p_value']:.3g}")
    return lines


COLUMNS = "{:<10} {:>8} {:>9} {:>15} {:>10} {:>12} {:>7}"
HEADER = COLUMNS.format("type", "rows", "accuracy", "95 % interval", "commonest", "unparseable", "failed")


def table_line(name: str, table: dict) -> str:
    interval = "{:.1%} - {:.1%}".format(*table["accuracy_interval"])
    shares = f"{table['accuracy']:.1%}", interval, f"{table['majority_accuracy']:.1%}"
    return COLUMNS.format(name, table["rows"], *shares, table["unparseable"], table["failed"])


def as_reason1(folders: list[Path]) -> command.Outcome:
    counted = [results.reason1_accuracy(folder) for folder in folders]
    samples, correct = (sum(column) for column in zip(*counted, strict=True))
    mean = correct / samples if samples else 0.0
    text = (
        f"Total samples processed across all files: {samples}\nTotal samples counted as correct: {correct}\n"
        f"Mean accuracy: {mean:.4f} ({mean:.2%})"
    )
    return command.Outcome({"samples": samples, "correct": correct, "accuracy": mean}, [], text)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
