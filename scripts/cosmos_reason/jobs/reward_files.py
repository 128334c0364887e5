"""The rewards that a spec of reinforcement learning names: known ones, and files of somebody's
own, which the work reads where it runs. Few specs name any: the rewards are imported where one
does."""

from __future__ import annotations

import os
from pathlib import Path

from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.spec import document

KEY = "train.train_policy.reward_function"


def make_absolute(spec: dict, folder: Path) -> None:
    """Look for files that the spec names in `folder`, wherever the work runs."""
    absolute = {path: os.path.normpath(folder / path.expanduser()) for path in files(spec)}
    if not absolute:
        return
    written = document.get(spec, KEY)
    if isinstance(written, dict):
        found = {absolute.get(Path(name), name): weight for name, weight in written.items()}
    elif isinstance(written, list):
        found = []
        for name in written:
            found.append(absolute.get(Path(name), name) if isinstance(name, str) else name)
    else:
        found = absolute[Path(written)]
    document.set_value(spec, KEY, found)


def files(spec: dict) -> list[Path]:
    """Return the files among the rewards of a spec."""
    named = _names(spec)
    if not named:
        return []
    from cosmos_reason.evaluation import rewards

    return [Path(name) for name in named if rewards.is_file(name)]


def check(spec: dict) -> list[Finding]:
    """Return what stands against the rewards before a question is answered. A file that is not here
    is looked for as other inputs are."""
    found = []
    for name in _names(spec):
        from cosmos_reason.evaluation import rewards

        if rewards.is_file(name) and not Path(name).exists():
            continue
        try:
            rewards.check(name)
        except Failure as failure:
            found += failure.findings
    return found


def _names(spec: dict) -> list[str]:
    """Return the rewards that a spec names; none where they are of another form, which the schema
    refuses."""
    written = document.get(spec, KEY)
    if isinstance(written, str):
        return [written]
    if not isinstance(written, list | dict):
        return []
    return [name for name in written if isinstance(name, str)]
