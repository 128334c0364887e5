"""Validation, evaluation and guard data that show what training shows."""

from __future__ import annotations

import os
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.evaluation import is_calibrated
from cosmos_reason.spec import actions, document

SEEN = "expected clips, and times of clips, that training does not show"
BESIDE = (
    "lie less than {:g} s from trained parts of the same recording: they mostly show the same scene"
)


def of_spec(case: Case) -> list[f.Finding]:
    """Return the findings of a spec that trains, or that evaluates a checkpoint with its training
    spec beside it. To evaluate on training data may be meant: that is a warning."""
    if case.action in actions.TRAINING:
        if not case("validation.enable"):
            return []  # SPEC-VALIDATION-OFF says that the data are not used
        keys = actions.validation_keys(case.action)
        return of_training(case.full, keys, case.full, case.action, case.drafted)
    if case.action == "quantize":
        return _calibrated_on(case)
    if case.action != "evaluate":
        return []
    folder = Path(case.model)
    if not folder.is_dir():
        return []
    from cosmos_reason.evaluation import as_trained  # imports what reads datasets

    # A model that nothing here trained has no training data to compare with.
    if not as_trained.is_of_training(folder.resolve()):
        return []
    try:
        trained = as_trained.training_spec(folder.resolve()) or {}
    except f.Failure:  # EVAL-TRAINING-UNKNOWN says so
        return []
    asked, guard = actions.data_keys("evaluate"), actions.guard_keys("evaluate")
    found = [
        f.warning("SPEC-EVAL-TRAINED", one.where, one.message, **one.data)
        for one in of_training(trained, asked, case.full)
        if one.severity == f.ERROR
    ]
    return found + of_training(trained, guard, case.full)


def _calibrated_on(case: Case) -> list[f.Finding]:
    """Return a warning for clips that calibration sees and the accuracy lost is measured on."""
    keys = actions.validation_keys("quantize")
    if not is_calibrated(case) or not case(keys.annotations):
        return []
    message = "got {count} records whose clips calibrate, too: of others more accuracy may be lost"
    shared = of_training(case.full, keys, case.full, "quantize", case.drafted)
    return [
        f.warning(
            "SPEC-CALIBRATION-SHARED",
            keys.annotations,
            message.format(count=one.data.get("count", "all")),
            **one.data,
        )
        for one in shared
        if one.severity == f.ERROR
    ]


def of_training(
    trained: dict, keys: actions.DataKeys, spec: dict, action: str = "train", drafted=None
) -> list[f.Finding]:
    """Return what the data that `keys` of a spec name share with those that a spec trained on: an
    error for clips that are shown in both, a warning for parts that lie near each other. Data that
    are not here are compared by name alone."""
    drafted = drafted or {}
    train, held_out = _root(trained, actions.data_keys(action)), _root(spec, keys)
    compared = None
    if all(path in drafted or os.path.isfile(path) for path, _ in (train, held_out)):
        from cosmos_reason.data import overlap  # imports what reads datasets and media

        compared = overlap.of_files(train, held_out, drafted)
    if compared is None:
        if not train[0] or train != held_out:
            return []
        message = f"got the training data {train[0]}, {SEEN}"
        return [f.error("SPEC-DATA-SHARED", keys.annotations, message)]
    found = []
    shared = [*compared.ids[overlap.QUESTION], *compared.ids[overlap.CLIP]]
    rows = (
        ("SPEC-DATA-SHARED", f.ERROR, shared, f"that training shows too, {SEEN}"),
        (
            "SPEC-DATA-NEAR",
            f.WARNING,
            compared.ids[overlap.NEARBY],
            f"of parts that {BESIDE.format(overlap.NEAR)}",
        ),
    )
    for name, severity, ids, what in rows:
        if ids:
            message = f"got {len(ids)} of {compared.records} records {what}"
            found.append(f.Finding(name, severity, keys.annotations, message, "", f.counted(ids)))
    if compared.unread and not shared:
        message = (
            f"got clips in {compared.unread}, which are compared with those of training by their "
            "names alone; check_dataset.py TRAIN --eval EVAL compares what they show"
        )
        found.append(f.info("SPEC-DATA-UNREAD", keys.annotations, message))
    return found


def _root(spec: dict, keys: actions.DataKeys) -> tuple[str, str]:
    annotations, media = (document.get(spec, key, "") for key in keys)
    return str(annotations or ""), str(media or "")
