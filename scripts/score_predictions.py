#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "sacrebleu==2.6.0", "rouge-score==0.1.2", "httpx==0.28.1", "numpy==2.4.6", "pyarrow==26.0.1",
# ]
# ///
"""Score the answers of evaluations: accuracy with interval and baseline, per type and class; or
compare two runs.

examples:
  scripts/score_predictions.py jobs/evaluate-20260101-120000-abc123/results
  scripts/score_predictions.py tuned/results.json --compare base/results.json --json
  scripts/score_predictions.py tuned/results.json \\
      --judge http://localhost:8000/v1 --judge-model Qwen3-VL-8B
  scripts/score_predictions.py tuned/results.json --explain clip-7
  scripts/score_predictions.py tuned/results.json --export vlmevalkit=for_vlmevalkit
  scripts/score_predictions.py reason1_results --compat reason1

Reads results.json (ours or TAO's), JSONL, outputs of `vllm run-batch` (with --annotations) and
Reason1 result folders; several give a table by step.
Writes metrics.json beside results of this skill (beside others with --write), and
checkpoint_metrics.json into the training output the evaluated checkpoint came from, where a score
never takes the place of one of more answered rows. Of results that were moved or copied it is
written into the training beside them, or nowhere.
"""

import argparse
import functools
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import cli
from cosmos_reason.base import files, findings, job_folder, secrets
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import by_number
from cosmos_reason.checkpoints import checkpoint_metrics
from cosmos_reason.data import annotations
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import (
    comparison,
    evaluation_record,
    exchange,
    grading,
    guard,
    in_words,
    likelihood,
    metrics,
    questions,
    reason1,
    rows,
    scores,
)
from cosmos_reason.remote import s3

IDS_COMPARED = 100_000  # to propose one for --explain
MOST_LOOKED_AT = 8 * 1024**2  # bytes of all annotations that may be those that were asked
EXPLAINED = (
    "id", "type", "question", "gt", "expected", "response", "error", "answer", "rule", "read",
)  # fmt: skip
LARGE_TABLES = ("per_class", "per_question", "per_tag", "per_group", "confusion_matrix")
CHANGED_IDS = ("fixed_ids", "broken_ids")


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, "--compare --explain --judge --judge-model --save")
    parser.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="a results file, or a folder that holds one or several",
    )
    cli.add_reading_flags(parser)
    parser.add_argument(
        "--annotations",
        metavar="PATH",
        default="",
        help="annotations that were asked, with the questions and ground truths of results that "
        "have none, such as a batch's output; paired by id",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        help="results of an earlier run, paired with RESULTS by id; in JSON "
        "result.runs[0].comparison",
    )
    parser.add_argument(
        "--threshold",
        metavar="P",
        type=threshold,
        help="answer yes-or-no questions that were asked by likelihood with yes where its share is "
        "P or more; auto: the P of the highest balanced accuracy on --threshold-set",
    )
    parser.add_argument(
        "--threshold-set",
        type=Path,
        metavar="RESULTS",
        help="results over other clips, which choose --threshold auto",
    )
    parser.add_argument(
        "--metric-file",
        type=Path,
        help="Python file whose metric(rows) returns {name: number}, kept under `custom`",
    )
    parser.add_argument(
        "--bertscore",
        nargs="?",
        const=metrics.BERTSCORE_MODEL,
        metavar="MODEL",
        help="BERTScore of free text; needs bert-score and its model "
        f"(default: {metrics.BERTSCORE_MODEL})",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="note the score for its checkpoint also when one of more answered rows is there",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write metrics.json also beside results that no evaluation of this skill left",
    )
    parser.add_argument(
        "--export",
        metavar="TOOL=DIR",
        type=export,
        help="write questions and responses for another evaluator, a file for each type: "
        + ", ".join(f"{tool}=DIR" for tool in exchange.TOOLS),
    )
    parser.add_argument(
        "--force", action="store_true", help="replace files that --export wrote before"
    )
    parser.add_argument(
        "--explain",
        metavar="ID",
        help="show what was read in the response of one row; writes nothing",
    )
    parser.add_argument(
        "--compat",
        choices=("reason1",),
        help="count Reason1 folders as its calculate_accuracy does (`is_correct` as stored); "
        "writes nothing",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", default="", help="with --compat: count this dataset alone"
    )
    judge = parser.add_argument_group(
        "judge", "who reads the rows that the rules cannot: unparseable and free text ones"
    )
    judge.add_argument(
        "--judge",
        metavar="URL",
        help="OpenAI-compatible server, up to /v1; "
        "questions, ground truths and responses are sent to it",
    )
    judge.add_argument("--judge-model", metavar="NAME", help="the model as that server names it")
    judge.add_argument(
        "--judge-key-variable",
        metavar="VAR",
        default=secrets.CHAT_KEY,
        help=f"environment variable with the server's key (default: {secrets.CHAT_KEY})",
    )
    cli.add_output_flags(parser)
    return parser


def threshold(text: str) -> float | str:
    return text if text == likelihood.AUTO else cli.share(text)


def export(text: str) -> tuple[str, Path]:
    tool, _, folder = text.partition("=")
    if tool not in exchange.TOOLS or not folder:
        tools = " or ".join(f"{tool}=DIR" for tool in exchange.TOOLS)
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {tools}")
    return tool, Path(folder)


class Scored(NamedTuple):
    """Results that were scored: metrics.json (`run`), the evaluation.json beside them (`record`),
    what they were measured on, and, of several, what they got right."""

    path: Path
    run: dict
    record: dict
    measured: dict
    answers: comparison.Answers | None = None


def main(args) -> cli.Outcome:
    if args.compat:
        return count_as_reason1(args)
    if args.dataset:
        message = "--dataset has no effect without --compat reason1"
        raise findings.bad_input("USAGE", "--dataset", message)
    for flag, given in (("--explain", args.explain), ("--export", args.export)):
        if given and len(args.results) > 1:
            message = f"it takes one results file or folder, not {len(args.results)}"
            raise findings.bad_input("USAGE", flag, message)
    options = grading.Options(
        args.type, args.tolerance, args.boxes, args.annotations, names_clips=bool(args.compare)
    )
    if args.explain:
        return explain(args, options)
    if args.force and not args.export:
        raise findings.bad_input("USAGE", "--force", "--force has no effect without --export")
    judge = judge_of(args)
    if args.export:  # the rows of one results file for another evaluator, and nothing else
        tool, folder = args.export
        _, graded, found = grading.read_one(args.results[0], options)
        written = exchange.write(graded, tool, folder, args.force)
        return cli.Outcome({"exported": written, "rows": len(graded)}, found, "\n".join(written))
    chooses, found = choose_threshold(args, options)
    before, problems = read_earlier(args, options, judge)
    found += problems
    scored, problems = score_all(args, options, judge, before, chooses)
    found += problems
    # Written when all of them could be scored.
    written, problems = written_of(scored, args)
    found += problems
    runs = [one.run for one in scored]
    # A file that --save names holds all ids; what is printed stays small.
    dropped = () if args.save and not args.json else CHANGED_IDS
    result = {"runs": [brief(run, dropped) for run in runs], "written": written}
    lines = in_words.one_run(runs[0]) if len(runs) == 1 else in_words.several_runs(runs)
    best = best_of(scored)
    if best:
        result["best"] = best
        lines += comparison.best_in_words(best)
        if best["model"]:
            lines.append(f"model: {best['model']}")
    if len(written) < len(runs):
        lines.append("metrics.json is not written beside results of others (--write)")
    following = next_analysis(scored[0], args) if len(runs) == 1 else ()
    return cli.Outcome(result, found, "\n".join(lines), following)


def score_all(
    args,
    options: grading.Options,
    judge,
    before: list[rows.Row] | None,
    chooses: list[rows.Row] | None,
) -> tuple[list[Scored], list[findings.Finding]]:
    """Score each of the results, but for those without an answer."""
    paths = [path for given in args.results for path in rows.find(given)]
    if len(paths) > 1:  # of which the best is told by clips
        options = replace(options, names_clips=True)
    nearby = functools.cache(questions_nearby)  # read once for all runs, when one needs them
    scored, found = [], []
    for path in sorted(paths, key=lambda path: by_number(str(path))):
        graded, problems = grading.read(path, options)
        found += problems
        if rows.has_answers(graded):
            if chooses:
                likelihood.refuse_same(graded, chooses, "--threshold-set")
            one, problems = score(path, graded, before, judge, args, nearby)
            if len(paths) > 1:
                one = one._replace(answers=comparison.Answers.of(str(path), graded))
            scored.append(one)
            found += problems
        elif args.write or is_ours(path):
            # What is there was measured on results that are no longer there.
            metrics_file(path).unlink(missing_ok=True)
    return scored, found


def best_of(scored: list[Scored]) -> dict | None:
    """Return which run is best, where all were asked alike; general questions rank nothing."""
    settings = [one.measured for one in scored if one.measured]
    if any(checkpoint_metrics.other_settings(one, settings[0]) for one in settings[1:]):
        return None
    ranked, models = [], {}
    for name, one in zip(in_words.names_of([one.run for one in scored]), scored, strict=True):
        models[name] = one.run["model"]
        if one.answers and not rows.is_guard(one.path):
            ranked.append(replace(one.answers, name=name))
    best = comparison.best(ranked)
    if best:
        best["model"] = models[best["name"]]
    return best


def written_of(scored: list[Scored], args) -> tuple[list[str], list[findings.Finding]]:
    """Write metrics.json where that is ours to do, and note the scores of checkpoints. Return the
    files written."""
    written, found = [], []
    for path, run, record, measured, _ in scored:
        if args.write or is_ours(path):
            files.write_json(metrics_file(path), run)
            written.append(str(metrics_file(path)))
        if rows.is_guard(path):  # which is no score of the checkpoint
            continue
        is_elsewhere = evaluation_record.is_of_another_place(path, record)
        run["recorded"], problems = scores.record(run, measured, args.record, is_elsewhere)
        found += problems
    return written, found


def read_earlier(
    args, options: grading.Options, judge
) -> tuple[list[rows.Row] | None, list[findings.Finding]]:
    """Return the graded rows of the run that --compare names, unless it has no answers."""
    if not args.compare:
        return None, []
    file, before, found = grading.read_one(args.compare, options)
    scored = [path for given in args.results for path in rows.find(given)]
    if len(scored) == 1 and scored[0].samefile(file):
        message = "got the results that are scored: a run against itself shows no change"
        raise findings.bad_input("USAGE", "--compare", message, "drop --compare")
    if not rows.has_answers(before):
        return None, found
    if judge:
        _, problems = judge.read(before, file)
        found += problems
    if args.threshold is not None and not likelihood.answer_from(before, args.threshold):
        # That run is scored for the comparison alone: the score that was asked for stays sound.
        found.append(nothing_weighed(file, findings.warning))
    return before, found


def choose_threshold(
    args, options: grading.Options
) -> tuple[list[rows.Row] | None, list[findings.Finding]]:
    """Put the threshold that is meant into the place of `auto`. Return the rows that chose it, and
    what there is to say of them."""
    if (args.threshold == likelihood.AUTO) != bool(args.threshold_set):
        message = "--threshold auto and --threshold-set RESULTS go together"
        fix = Fix(flags={"--threshold": likelihood.AUTO, "--threshold-set": "RESULTS"})
        raise findings.bad_input("USAGE", "--threshold", message, fix)
    if not args.threshold_set:
        return None, []
    file, chooses, found = grading.read_one(args.threshold_set, options)
    args.threshold = likelihood.chosen_threshold(chooses, file)
    return chooses, found


def judge_of(args):
    """Return the judge that the flags name; None without one."""
    if not args.judge:
        if args.judge_model or args.judge_key_variable != secrets.CHAT_KEY:
            message = "--judge-model and --judge-key-variable have no effect without --judge"
            fix = Fix(flags={"--judge": "http://HOST:8000/v1"})
            raise findings.bad_input("USAGE", "--judge", message, fix)
        return None
    if not args.judge_model:
        message = "--judge needs --judge-model, the name that its server gives the model"
        fix = Fix(flags={"--judge-model": "NAME"})
        raise findings.bad_input("USAGE", "--judge-model", message, fix)
    from cosmos_reason.evaluation.judge import Judge

    return Judge(args.judge, args.judge_model, args.judge_key_variable)


def metrics_file(path: Path) -> Path:
    return rows.folder_of(path) / "metrics.json"


def is_ours(path: Path) -> bool:
    """Return whether an evaluation of this skill left these results: its record is beside them, or
    they lie in the folder of a job."""
    folder = rows.folder_of(path).absolute()
    if (folder / evaluation_record.FILE).is_file():
        return True
    return job_folder.home_of(folder) is not None


def score(
    path: Path,
    graded: list[rows.Row],
    before: list[rows.Row] | None,
    judge,
    args,
    nearby: Callable[[], dict[Path, dict[str, Question]]],
) -> tuple[Scored, list[findings.Finding]]:
    """Score the rows read from `path`."""
    record = evaluation_record.read(path)
    reading = {"type": args.type, "tolerance": args.tolerance, "boxes": args.boxes}
    found = []
    if judge:
        reading |= judge.settings()
        judged, found = judge.read(graded, path)
    weighed = likelihood.measure(graded)  # before a threshold answers otherwise
    prompt = record.get("prompt")
    if weighed and isinstance(prompt, dict) and prompt.get("ask") == questions.LIKELIHOOD:
        weighed["agreement"] = None  # its text is the likeliest answer
    if args.threshold is not None:
        reading |= {"threshold": args.threshold}
        answered = likelihood.answer_from(graded, args.threshold)
        if not answered:
            found.append(nothing_weighed(path, findings.error))
        else:
            chosen_on = str(args.threshold_set) if args.threshold_set else None
            told = {"value": args.threshold, "rows": answered, "chosen_on": chosen_on}
            weighed |= {"threshold": told}
    run = measure(graded, args)
    if weighed:
        run["likelihood"] = weighed
    run["model"] = record.get("model")
    run["checkpoint"] = record.get("checkpoint")
    if record.get("weights"):
        run["weights"] = record["weights"]
    run["results"] = str(path)
    if judge:
        run["judge"] = judged
    template = metrics.template_reasoning(graded)
    if template:
        message = (
            f"{template['rows']} of {template['of']} right answers with a thought have the "
            f"same one, {template['text']!r}: it explains none of them"
        )
        found.append(findings.warning("EVAL-TEMPLATE-REASONING", path, message))
    general, problems = guard.read(path, rows.find(args.compare)[0] if before else None)
    found += problems
    if general:
        run["guard"] = general.to_json()
        found.append(guard.verdict(run["guard"], path))
    measured = {}
    if run["checkpoint"] or before:
        measured = scores.evaluation_of(graded, record, path, **reading)
    if before:
        if not comparison.names_clips(graded):
            found += name_clips(graded, nearby())
        pair, problems = comparison.compare(before, graded)
        run["comparison"] = pair | {"before": str(args.compare)}
        found += problems
        earlier_record = evaluation_record.read(args.compare)
        differences = []
        run["comparison"]["settings_known"] = bool(record and earlier_record)
        if record and earlier_record:
            earlier = scores.evaluation_of(before, earlier_record, args.compare, **reading)
            differences = checkpoint_metrics.other_settings(measured, earlier)
        if differences:
            message = (
                f"the runs do not compare: this one had {', '.join(differences[:4])}; "
                "evaluate both alike"
            )
            found.append(findings.warning("EVAL-COMPARE-SETTINGS", path, message))
    return Scored(path, run, record, measured), found


def questions_nearby() -> dict[Path, dict[str, Question]]:
    """Return the questions, by id, of each annotation file below this folder that can be read; none
    where the files are too large to be read on the chance that they were asked."""
    named = sorted({*Path().glob("*/annotations.json"), *Path().glob("*/*/annotations.json")})
    named = [file for file in named if file.is_file()]
    found = {}
    if sum(file.stat().st_size for file in named) > MOST_LOOKED_AT:
        return found
    for file in named:
        # Nobody named this file: what is wrong with it is nothing to tell of a score.
        try:
            samples, problems = annotations.read(file)
        except (findings.Failure, OSError):
            continue
        if not problems:
            found[file] = {one.id: one for sample in samples for one in sample.questions()}
    return found


def name_clips(
    graded: list[rows.Row], nearby: dict[Path, dict[str, Question]]
) -> list[findings.Finding]:
    """Name the clips of rows that name none by the annotations `nearby`, where one file alone holds
    the question and the ground truth of each; return what to say of that."""
    asked = []
    for file, by_id in nearby.items():
        held = [by_id.get(row.id) for row in graded]
        if all(
            one and one.sample.media and one.gt == row.gt and row.question in ("", one.text)
            for row, one in zip(graded, held, strict=True)
        ):
            asked.append((file, held))
    if len(asked) != 1:
        return []
    [(file, held)] = asked
    for row, question in zip(graded, held, strict=True):
        row.media = question.sample.media[0].path
    message = f"the clips are those of {file}, which alone here holds each question with its answer"
    return [findings.info("EVAL-CLIPS-FOUND", "--compare", message)]


def nothing_weighed(path: Path, finding: Callable[..., findings.Finding]) -> findings.Finding:
    message = (
        "no yes-or-no question was asked by likelihood (evaluation.ask), so that --threshold "
        "changes nothing there"
    )
    return finding("EVAL-THRESHOLD-ROWS", path, message)


def measure(graded: list[rows.Row], args) -> dict:
    """Return the metrics of the rows, with those that were asked for besides."""
    run = metrics.score(graded)
    if args.bertscore and run["text"]:
        texts = [row for row in graded if row.type == "text"]
        run["text"]["bertscore_f1"] = metrics.bertscore(texts, args.bertscore)
    if args.metric_file:
        run["custom"] = metrics.from_file(args.metric_file, graded)
    return run


def next_analysis(scored: Scored, args) -> tuple[str, ...]:
    """Return the command that lists what went wrong, when annotations and media are still where the
    evaluation found them."""
    annotations = scored.record.get("annotations")
    media = scored.record.get("media_dir") or ""
    if not annotations or not is_there(annotations) or not is_there(media):
        return ()
    folder = rows.folder_of(scored.path)
    flags = {
        "--results-dir": scored.path,
        "--kpi-ann-path": annotations,
        "--gaps-parquet": folder / "gaps.parquet",
        "--html": folder / "report.html",
        "--kpi-media-path": media,
        "--type": "" if args.type == "auto" else args.type,
        "--tolerance": args.tolerance,
        "--boxes": args.boxes,
        "--baseline": args.compare,
    }
    given = [word for flag, value in flags.items() if value for word in (flag, str(value))]
    return ("analyze_gaps.py", *given)


def is_there(name: str) -> bool:
    return s3.is_uri(name) or Path(name).exists()


def brief(run: dict, dropped: tuple[str, ...]) -> dict:
    """Return the metrics without the tables that grow with the number of classes and tags, and of
    the comparison without what is `dropped`; metrics.json has them."""
    shown = {name: value for name, value in run.items() if name not in LARGE_TABLES}
    if "comparison" in run:
        pair = run["comparison"].items()
        kept = {name: value for name, value in pair if name not in (*LARGE_TABLES, *dropped)}
        shown["comparison"] = kept
    return shown


def explain(args, options: grading.Options) -> cli.Outcome:
    """Tell what one row says, and which rule read what in it."""
    path, graded, _ = grading.read_one(args.results[0], options)
    row = next((row for row in graded if row.id == args.explain), None)
    if row is None:
        message = f"no row has the id {args.explain!r}."
        message += findings.did_you_mean(args.explain, [row.id for row in graded[:IDS_COMPARED]])
        raise findings.bad_input("EVAL-EXPLAIN-ID", path, message)
    explained = {name: getattr(row, name) for name in EXPLAINED}
    explained |= {"words": grading.words_read(row), "outcome": row.outcome}
    for name in ("overlap", "parts"):
        if getattr(row, name) not in (None, {}):
            explained[name] = getattr(row, name)
    lines = []
    for name, value in explained.items():
        lines.append(f"{name + ':':<10} {'-' if value is None else value}")
    return cli.Outcome({"row": explained}, [], "\n".join(lines))


def count_as_reason1(args) -> cli.Outcome:
    """Count as Reason1's calculate_accuracy does, from the verdicts it stored."""
    for name in ("compare", "metric_file", "bertscore", "record", "judge"):
        if getattr(args, name):
            flag = name.replace("_", "-")
            message = f"it counts what is stored, so --{flag} has no effect"
            raise findings.bad_input("USAGE", "--compat", message)
    samples = 0
    correct = 0
    found = []
    for folder in args.results:
        counted, right = reason1.stored_accuracy(folder, args.dataset)
        samples += counted
        correct += right
        if not counted:
            message = "no item has is_correct, which --compat counts; leave it out"
            found.append(findings.error("EVAL-COMPAT-NOTHING", folder, message))
    mean = correct / samples if samples else 0.0
    lines = [
        f"Total samples processed across all files: {samples}",
        f"Total samples counted as correct: {correct}",
        f"Mean accuracy: {mean:.4f} ({mean:.2%})",
    ]
    result = {"samples": samples, "correct": correct, "accuracy": mean}
    return cli.Outcome(result, found, "\n".join(lines))


if __name__ == "__main__":
    gc.disable()  # rows have no cycles: to look for some among a million takes a tenth of the time
    sys.exit(cli.run(parser(), main))
