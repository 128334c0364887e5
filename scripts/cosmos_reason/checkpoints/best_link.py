"""`best` in an output folder: links to the best model and its state, and best_score.json with the
score that made it the best.

cosmos-rl writes absolute paths, which lead nowhere when a container's output is read from outside.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.checkpoints import checkpoint_metrics, run_outputs, safetensors_files
from cosmos_reason.checkpoints.run_outputs import Checkpoint

FOLDER, SCORE = "best", "best_score.json"
VAL_LOSS, VAL_ACCURACY = "val_loss", "val_accuracy"
LINKS = ("safetensors", "checkpoints")

Scores = dict[str, float]  # of a validation, by what `best` may follow


def write(run_dir: Path, step_name: str, score: float, metric: str = VAL_LOSS) -> None:
    """Point `<output_dir>/best` at one step of `run_dir` (= `<output_dir>/<timestamp>`) with
    relative links. What that step did not save gets no link, and an old link to another step goes
    away."""
    best = run_dir.parent / FOLDER
    best.mkdir(exist_ok=True)
    for part in LINKS:
        link = best / part
        if not (run_dir / part / step_name).is_dir():
            link.unlink(missing_ok=True)
            continue
        # Renamed over the old link: at no time is there none.
        temporary = files.temporary_name(link)
        temporary.symlink_to(Path("..", run_dir.name, part, step_name))
        os.replace(temporary, link)
    folder = (run_dir / "checkpoints" / step_name).resolve()
    # The names and the absolute folder are cosmos-rl's.
    record = {"best_score": score, "best_ckpt_abs_dir": str(folder), "metric": metric}
    files.write_json(best / SCORE, record)


def step_of(run_dir: Path) -> str:
    """Return the name of the step of this run that `best` links to; empty when it is of another
    run, or there is none. An absolute link counts by its end: the run may have been copied here."""
    for part in LINKS:
        link = run_dir.parent / FOLDER / part
        if not link.is_symlink():
            continue
        target = Path(os.readlink(link))
        is_here = (target.parent.parent.name, target.parent.name) == (run_dir.name, part)
        if is_here and (run_dir / part / target.name).is_dir():
            return target.name
    return ""


def scores_in(state: dict) -> Scores:
    """Return what the validation gave when a trainer's state was saved."""
    names = (VAL_LOSS, VAL_ACCURACY)
    return {name: state[name] for name in names if state.get(name) is not None}


def is_better(metric: str, score: float, than: float) -> bool:
    return score > than if metric == VAL_ACCURACY else score < than


def worst(metric: str) -> float:
    """Return the worst score: inf of a loss, -inf of an accuracy."""
    return -math.inf if metric == VAL_ACCURACY else math.inf


def score_so_far(output_dir: Path, metric: str) -> float:
    """Return the best score so far; the worst there is when `best` was chosen by something else, or
    links to nothing."""
    best = output_dir / FOLDER
    record = _record(best)
    score = record.get("best_score")
    # A loss and an accuracy do not compare: what was best by the other is no bar here.
    if record.get("metric") != metric or type(score) not in (int, float):
        return worst(metric)
    is_linked = any((best / part).is_dir() for part in LINKS)
    return score if is_linked else worst(metric)


@dataclass(frozen=True)
class Best:
    """What an output folder calls its best, as the link and best_score.json name it: `targets` may
    lead nowhere, `score` is None where the file has no number, `metric` what decided."""

    folder: Path
    metric: str
    score: float | None
    targets: tuple[Path, ...]

    @property
    def named(self) -> str:
        return " and ".join(map(str, self.targets)) or "nothing"

    def among(self, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
        """Return the model that is meant; None unless link and file name one run and step of
        these."""
        meant = {(target.parent.parent.name, target.name) for target in self.targets}
        for checkpoint in checkpoints:
            run = checkpoint.path.parents[1].resolve()
            if meant == {(run.name, checkpoint.step)}:
                return checkpoint
        return None


def read(output_dir: Path) -> Best:
    folder = run_outputs.home_of(output_dir) / FOLDER
    record = _record(folder)
    score = record.get("best_score")
    link = folder / "safetensors"
    targets = [Path(os.readlink(link))] if link.is_symlink() else []
    if named := record.get("best_ckpt_abs_dir"):
        targets.append(Path(str(named)))
    known = score if checkpoint_metrics.is_finite(score) else None
    return Best(folder, record.get("metric", VAL_LOSS), known, tuple(targets))


def _record(best: Path) -> dict:
    score = best / SCORE
    return safetensors_files.read_object(score) if score.is_file() else {}
