"""The files and folders that a spec names below `custom` for somebody's own dataset script: in keys
that no schema here has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.spec import document

NAMES_A_PATH = re.compile(r"(^|_)(path|root|dir|directory|folder|file)s?$")


def absolute(action: str, spec: dict) -> dict[str, str]:
    """Return key -> path of those that are the same in every folder."""
    return {key: value for key, value in _texts(action, spec) if Path(value).is_absolute()}


def relative(action: str, spec: dict, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return (key -> absolute path of what lies in `folder`, the keys of what is not there). A text
    is taken for a path when its key calls it one, or when it has a slash and something lies there;
    one that lies in a folder that another key names is a name in there, and is left alone."""
    found = {}
    missing = []
    texts = dict(_texts(action, spec))
    for key, value in texts.items():
        if Path(value).is_absolute() or "://" in value:
            continue
        others = [folder / Path(other).expanduser() for other in texts.values() if other != value]
        if any(os.path.exists(other / value) for other in others):
            continue
        path = os.path.normpath(folder / Path(value).expanduser())
        is_called_path = bool(NAMES_A_PATH.search(document.last_part(key)))
        if os.path.exists(path) and (is_called_path or "/" in value):
            found[key] = path
        elif is_called_path:
            missing.append(key)
    return found, missing


def _texts(action: str, spec: dict) -> Iterator[tuple[str, str]]:
    custom = document.get(spec, "custom")
    if not isinstance(custom, dict):
        return
    for key, value in document.items(action, {"custom": custom}):
        if key not in document.keys(action) and isinstance(value, str) and value:
            yield key, value
