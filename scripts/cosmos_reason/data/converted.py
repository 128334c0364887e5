"""Rows that a function of the user makes of a source's: `--convert FILE.py`. It runs with all the
user's rights, so only a flag names it; a saved mapping holds its digest and never starts it."""

from __future__ import annotations

import contextlib
import inspect
import runpy
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import sha256
from cosmos_reason.data.items import Row
from cosmos_reason.data.roles import Column, column

NAME = "convert"
TIMES = ("start", "end", "start_ms", "end_ms", "start_frame", "end_frame")


def function(path: str) -> Callable[..., object]:
    """Return the function `convert` of a file. Raises Failure where it has none."""
    if not Path(path).is_file():
        raise f.bad_input("BUILD-CONVERT", path, "got no such file, expected Python")
    try:
        names = runpy.run_path(path)
    except Exception as problem:  # whatever a program of the user does
        raise _broken(path, path, problem) from None
    if not callable(names.get(NAME)):
        message = f"got no function {NAME}, expected {NAME}(row) -> a row, a list of rows, or None"
        raise f.bad_input("BUILD-CONVERT", path, message)
    return names[NAME]


def described(path: str) -> dict:
    """Return what mapping.yaml says of the file."""
    return {"file": path, "sha256": sha256(Path(path))}


def rows(made_by: Callable[..., object], path: str, source: list[Row], around: dict) -> list[Row]:
    """Return the rows that the function makes of each row: of None none. They are found where that
    row is. A function that needs two gets what stands `around` the records of a JSON document, too.
    Raises Failure for the first row that it cannot make."""
    made = []
    beside = (around,) if _needs_two(made_by) else ()
    for row in source:
        try:
            result = made_by(row.values, *beside)
        except Exception as problem:
            raise _broken(path, row.where, problem) from None
        listed = result if isinstance(result, list) else [result]
        for values in listed:
            if values is None:
                continue
            if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
                message = f"got {values!r:.80} of {NAME}, expected a row, a list of rows, or None"
                raise f.bad_input("BUILD-CONVERT", row.where, message)
            made.append(row._replace(values=values))
    return made


def _needs_two(made_by: Callable[..., object]) -> bool:
    """Return whether a function has two parameters without a default: another one is its own."""
    with contextlib.suppress(ValueError):  # of some functions written in C nobody knows
        parameters = inspect.signature(made_by).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [one for one in parameters if one.kind in positional and one.default is one.empty]
        return len(needed) > 1
    return False


def stated(made: list[Row], source: list[Row], declared: Sequence[Column]) -> list[Column]:
    """Return the columns of times that the function made and named as flags write their roles:
    `start`, `end_ms`. A column that the source has itself is declared as ever: nobody has said what
    its numbers count."""
    names = set().union(*(row.values for row in made))
    names -= set().union(*(row.values for row in source))
    names -= {one.name for one in declared}
    columns = [column(role, role, f"--{NAME}") for role in TIMES if role in names]
    is_declared = any(one.role in ("start", "end") for one in declared)
    is_one_of_each = sorted(one.role for one in columns) == ["end", "start"]
    return columns if is_one_of_each and not is_declared else []


def _broken(path: str, where: str, problem: Exception) -> f.Failure:
    """Return what the function raised, and in which line of its file."""
    frames = [one for one in traceback.extract_tb(problem.__traceback__) if one.filename == path]
    line = getattr(problem, "lineno", None) or (frames[-1].lineno if frames else None)
    at = f" in line {line} of {path}" if line else ""
    message = f"got {type(problem).__name__}: {problem}{at}"
    return f.bad_input("BUILD-CONVERT", where, message)
