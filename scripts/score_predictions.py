#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["sacrebleu==2.6.0", "rouge-score==0.1.2"]
# ///
"""Score the answers of evaluations: accuracy with interval and baseline, per type and class; or compare two runs.

examples:
  scripts/score_predictions.py jobs/evaluate-20260101-120000-abc123/results
  scripts/score_predictions.py tuned/results.json --compare base/results.json --json
  scripts/score_predictions.py reason1_results --compat reason1

Reads results.json (ours or TAO's), JSONL and Reason1 result folders; several give a table by step. Writes metrics.json
beside what it scored, and checkpoint_metrics.json into the training output the evaluated checkpoint came from, where a
score never takes the place of one of more answered rows.
"""

import re
import sys
from pathlib import Path

from cosmos_reason import command, findings, metrics, results, s3, scores, storage

TAGS_SHOWN = 20


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="a results file, or a folder that holds one or several")
    results.add_reading_flags(parser)
    parser.add_argument("--compare", type=Path, help="results of an earlier run, paired with RESULTS by id")
    own = "Python file whose metric(rows) returns {name: number}, kept under `custom`"
    parser.add_argument("--metric-file", type=Path, help=own)
    semantic = f"BERTScore of free text; needs bert-score and its model (default: {metrics.BERTSCORE_MODEL})"
    parser.add_argument("--bertscore", nargs="?", const=metrics.BERTSCORE_MODEL, metavar="MODEL", help=semantic)
    anyway = "note the score for its checkpoint also when one of more answered rows is there"
    parser.add_argument("--record", action="store_true", help=anyway)
    stored = "count Reason1 folders as its calculate_accuracy does (`is_correct` as stored); writes nothing"
    parser.add_argument("--compat", choices=("reason1",), help=stored)
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.compat:
        return as_reason1(args)
    _, before, found = results.one(args.compare, args) if args.compare else (None, None, [])
    scored = []
    for path in sorted((path for given in args.results for path in results.find(given)), key=by_step):
        *run, problems = score(path, before, args)
        scored.append(run)
        found += problems
    for run, measured in scored:
        storage.write_json(folder_of(run) / "metrics.json", run)
        run["recorded"], problems = scores.record(run, measured, args.record)
        found += problems
    scored = [run for run, _ in scored]
    lines = by_run(scored) if len(scored) > 1 else as_text(scored[0])
    following = analysis(scored[0], args) if len(scored) == 1 else ()
    return command.Outcome({"runs": [brief(run) for run in scored]}, found, "\n".join(lines), following)


def folder_of(run: dict) -> Path:
    path = Path(run["results"])
    return path if path.is_dir() else path.parent


def analysis(run: dict, args) -> tuple[str, ...]:
    """The command that lists what went wrong, when annotations and media are still where the evaluation found them."""
    record, folder = results.evaluation(Path(run["results"])), folder_of(run)
    asked, media = record.get("annotations") or "", record.get("media_dir") or ""
    if not all(s3.is_uri(name) or Path(name).exists() for name in (asked or "-", media)):
        return ()
    words = ["analyze_gaps.py", "--results-dir", run["results"], "--kpi-ann-path", asked]
    words += ["--gaps-parquet", str(folder / "gaps.parquet"), "--html", str(folder / "report.html")]
    given = {"kpi-media-path": media, "type": args.type != "auto" and args.type, "tolerance": args.tolerance}
    for flag, value in (given | {"baseline": args.compare}).items():
        words += [f"--{flag}", str(value)] if value else []
    return tuple(words)


def score(path: Path, before: list[results.Row] | None, args) -> tuple[dict, dict, list[findings.Finding]]:
    """metrics.json, what it was measured on, and what there is to say."""
    rows, found = results.judged(path, args.type, args.tolerance)
    record = results.evaluation(path)
    names = {"model": record.get("model"), "checkpoint": record.get("checkpoint"), "results": str(path)}
    scored = metrics.score(rows) | names
    if args.bertscore and scored["text"]:
        scored["text"]["bertscore_f1"] = metrics.bertscore([row for row in rows if row.type == "text"], args.bertscore)
    if args.metric_file:
        scored["custom"] = metrics.from_file(args.metric_file, rows)
    reading = {"type": args.type, "tolerance": args.tolerance}
    measured = scores.evaluation_of(rows, record, path, **reading) if names["checkpoint"] or before else {}
    if before:
        pair, problems = metrics.compare(before, rows)
        scored["comparison"] = pair | {"before": str(args.compare)}
        asked = results.evaluation(args.compare)
        then = scores.evaluation_of(before, asked, args.compare, **reading)
        other = scores.other_settings(measured, then) if record and asked else []
        if other:
            message = f"the runs do not compare: this one had {', '.join(other[:4])}; evaluate both alike"
            problems.append(findings.warning("EVAL-COMPARE-SETTINGS", path, message))
        found += problems
    return scored, measured, found


def by_step(path: Path) -> list:
    """Sorts step_9 before step_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def brief(scored: dict) -> dict:
    """Without the tables that grow with the number of classes and tags; metrics.json has them."""
    return {key: value for key, value in scored.items() if key not in ("per_class", "per_tag", "confusion_matrix")}


def by_run(scored: list[dict]) -> list[str]:
    """A line per run, named by the folder or file of its results."""
    paths = [Path(run["results"]) for run in scored]
    names = [path.parent.name if path.name.startswith("results.json") else path.name for path in paths]
    named = list(zip(names if len(set(names)) == len(names) else map(str, paths), scored, strict=True))
    return table(named) + [f"{name} {compared(run)}" for name, run in named if "comparison" in run]


def compared(scored: dict) -> str:
    pair = scored["comparison"]
    same = f"{pair['unchanged_right']} right and {pair['unchanged_wrong']} wrong in both"
    changed = f"{pair['fixed']} fixed, {pair['broken']} broken"
    return f"against {pair['before']}: {changed}, {same}, McNemar p = {pair['p_value']:.3g}"


def as_text(scored: dict) -> list[str]:
    tables = [*scored["per_type"].items(), ("all", scored)]
    tables += [(f"tag {name}", tag) for name, tag in list(scored["per_tag"].items())[:TAGS_SHOWN]]
    lines = [f"{scored['results']}: {len(scored['per_type'])} question type(s)", *table(tables)]
    if (more := len(scored["per_tag"]) - TAGS_SHOWN) > 0:
        lines.append(f"... and {more} more tags in metrics.json")
    lines += [f"{name}: {value:g}" for name, value in scored.get("custom", {}).items()]
    if text := scored["text"]:
        soft = f"{scored['soft_accuracy']:.1%} of all rows right when texts that overlap by {metrics.SOFT_F1:.0%} count"
        meaning = f", BERTScore {text['bertscore_f1']:.3f}" if "bertscore_f1" in text else ""
        lines.append(f"free text: BLEU {text['bleu']:.1f}, ROUGE-L {text['rouge_l']:.3f}{meaning}; {soft}")
    return lines + ([compared(scored)] if "comparison" in scored else [])


def table(named: list[tuple[str, dict]]) -> list[str]:
    width = max(10, *(len(name) for name, _ in named))
    columns = f"{{:<{width}}} {{:>8}} {{:>9}} {{:>15}} {{:>10}} {{:>8}} {{:>15}} {{:>7}}"
    lines = [columns.format("", "rows", "accuracy", "95 % interval", "commonest", "balanced", "unparseable", "failed")]
    for name, run in named:
        balanced = run.get("balanced_accuracy")
        shares = f"{run['accuracy']:.1%}", "{:.1%} - {:.1%}".format(*run["accuracy_interval"])
        shares += f"{run['majority_accuracy']:.1%}", "-" if balanced is None else f"{balanced:.1%}"
        unread = f"{run['unparseable']} ({run['unparseable_rate']:.1%})"
        lines.append(columns.format(name, run["rows"], *shares, unread, run["failed"]))
    return lines


def as_reason1(args) -> command.Outcome:
    if others := [flag for flag in ("compare", "metric_file", "bertscore", "record") if getattr(args, flag)]:
        message = f"got --{others[0].replace('_', '-')} too, expected nothing else: it counts what is stored"
        raise findings.bad_input("USAGE", "--compat", message)
    counted = [results.reason1_accuracy(folder) for folder in args.results]
    found = [
        findings.error("EVAL-COMPAT-NOTHING", folder, "got no item with is_correct, expected Reason1 results",
                       f"scripts/score_predictions.py {folder}")
        for folder, (samples, _) in zip(args.results, counted, strict=True) if not samples
    ]  # fmt: skip
    samples, correct = (sum(column) for column in zip(*counted, strict=True))
    mean = correct / samples if samples else 0.0
    text = f"Total samples processed across all files: {samples}\nTotal samples counted as correct: {correct}\n"
    text += f"Mean accuracy: {mean:.4f} ({mean:.2%})"
    return command.Outcome({"samples": samples, "correct": correct, "accuracy": mean}, found, text)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
