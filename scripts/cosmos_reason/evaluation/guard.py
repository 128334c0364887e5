"""The guard: general questions that an evaluation asks besides its own, so that what a training
forgot is seen. Their answers lie in `guard/` beside the results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints.checkpoint_metrics import PAIRED
from cosmos_reason.evaluation import comparison, grading, metrics, rows
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.spec import actions, document

NUMBERS = ("rows", "correct", "accuracy", "accuracy_interval")
GENERAL_DATA = Fix(flags={"--train-root": "GENERAL:0.2"})


class Guard(NamedTuple):
    """The graded `rows` of a guard and, where an earlier run had one too, `pair`
    (comparison.compare) with that of the results at `before`."""

    results: Path
    rows: list[Row]
    pair: dict | None = None
    before: Path | None = None

    def to_json(self) -> dict:
        """Return the table `guard` of metrics.json and of checkpoint_metrics.json."""
        summary = metrics.summary(self.rows)
        table = {name: summary[name] for name in NUMBERS}
        table["results"] = str(self.results)
        if self.pair:
            table["comparison"] = {name: self.pair[name] for name in sorted(PAIRED)}
            table["comparison"]["before"] = str(self.before)
        return table


# -- asking --------------------------------------------------------------------------------------


def with_guards(specs: Sequence[dict]) -> list[dict]:
    """Return the evaluate specs; each that names a guard is followed by one that asks its questions
    of the same model, in the same way."""
    asked = []
    for spec in specs:
        asked.append(spec)
        if annotations(spec):
            asked.append(_spec_of(spec))
    return asked


def annotations(spec: dict) -> str:
    """Return the annotation file of the general questions of an evaluate spec; "" without one."""
    return document.get(spec, actions.guard_keys("evaluate").annotations, "")


def _spec_of(spec: dict) -> dict:
    keys = actions.guard_keys("evaluate")
    spec = copy.deepcopy(spec)
    changes = {
        "dataset.annotation_path": document.get(spec, keys.annotations),
        "dataset.media_dir": document.get(spec, keys.media, ""),
        keys.annotations: "",
        keys.media: "",
        "task.type": "",
        "results.layout": "plain",
    }
    if spec["results_dir"]:
        changes["results_dir"] = str(Path(spec["results_dir"], rows.GUARD))
    for key, value in changes.items():
        document.set_value(spec, key, value)
    return spec


# -- reading -------------------------------------------------------------------------------------


def read(
    results: Path, before: Path | None = None, flag: str = "--compare"
) -> tuple[Guard | None, list[Finding]]:
    """Return the guard beside `results`, paired with that beside `before`, and what is wrong with
    its rows; None without answers. Raises Failure when the two asked nothing in common."""
    file, graded, found = _graded(results)
    if not graded:
        return None, found
    guard = Guard(file, graded)
    if before:
        earlier_file, earlier, problems = _graded(before)
        found += problems
        if earlier:
            pair, problems = comparison.compare(earlier, graded, flag)
            found += problems
            guard = guard._replace(pair=pair, before=earlier_file)
    return guard, found


def _graded(results: Path) -> tuple[Path | None, list[Row], list[Finding]]:
    file = rows.guard_of(results)
    if file is None:
        return None, [], []
    graded, found = grading.read(file, grading.Options())
    return file, graded if rows.has_answers(graded) else [], found


# -- what it says --------------------------------------------------------------------------------


def in_words(table: dict) -> str:
    """Return what the table of a guard says, in a line."""
    return f"guard: {figures(table)}"


def figures(table: dict) -> str:
    """Return the accuracy, before and after where both are known."""
    if "comparison" in table:
        return comparison.in_words(table["comparison"])
    return f"{table['accuracy']:.1%} of {table['rows']} questions"


def verdict(table: dict, where: object) -> Finding:
    """Return what became of the general questions: a warning when more were broken than fixed, and
    chance does not explain it."""
    pair = table.get("comparison")
    text = in_words(table)
    if pair is None:
        message = f"{text}; the untouched model's are not known here"
        fix = "scripts/score_predictions.py RESULTS --compare RESULTS_OF_THE_UNTOUCHED_MODEL"
        return findings.info("EVAL-GUARD", where, message, fix)
    if not is_forgotten(pair):
        return findings.info("EVAL-GUARD", where, text)
    message = f"{text}: got worse at general questions; fewer epochs, a lower learning rate, LoRA "
    message += "or general records among the training data keep more"
    return findings.warning("EVAL-FORGOT", where, message, GENERAL_DATA)


def is_forgotten(pair: dict) -> bool:
    return pair["broken"] > pair["fixed"] and pair["p_value"] < comparison.CHANCE
