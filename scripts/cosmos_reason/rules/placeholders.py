"""Values that nothing can open: those that stand for others (`<PATH_TO_DATASET>`, `/path/to/model`,
`YOUR_BUCKET`, `???`), which nobody replaces before the trainer looks for a file of that name, and
paths of other systems."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from cosmos_reason.base import findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.spec import document, own_paths
from cosmos_reason.spec.keys import OF_GUIDES, TRAIN_ANNOTATIONS
from cosmos_reason.spec.values import shown

if TYPE_CHECKING:
    from cosmos_reason.rules.case import Case

# A whole value. Tokens of a model (`<image>`, `</answer>`, `<|im_end|>`) are none.
STANDS_FOR_ANOTHER = re.compile(
    r"\?{3}|\.{3}|(?i:todo|tbd|fixme|(change|replace|fill)[ _-]?(me|it|this|in)|insert[ _-]?here)"
    r"|<[^<>|/]*([A-Z]{2}|\byour\b|\bpath\b| )[^<>|]*>|__[A-Z][A-Z0-9_]*__"
)
# A part of a path, an address or a model's name.
STANDS_IN_A_PATH = re.compile(
    r"<[^<>]+>|\$\{[^}]*\}|\{\{.*\}\}|\?{3}|(^|/)\$\w+"
    r"|(?i:(^|[/_-])path[/_-]to([/_-]|$))|YOUR[_-]|(?i:(^|/)your[_-])"
    r"|^(PATH|DIR|FILE|MODEL)(/|$)|(^|/)__[A-Z][A-Z0-9_]*__(/|$)"
)
# What a fix writes where a value is wanted, by the kind of path a key is.
WORDS = {"input": "PATH", "output": "PATH", "model": "MODEL"}
OTHER_WORDS = ("VALUE", "NAME", "TEXT")  # for other keys, here and in the rules
NAMED = 4  # values that a message shows
WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
URIS = {"input": ("s3://",), "output": (), "model": (model_names.HUB,)}  # by a key's x-path


def is_placeholder(value: object, is_path: bool) -> bool:
    """Return whether a value stands for another; of a path that is here it is the name."""
    if isinstance(value, list):
        return any(is_placeholder(part, is_path) for part in value)
    if not isinstance(value, str):
        return False
    if STANDS_FOR_ANOTHER.fullmatch(value.strip()):
        return True
    return is_path and bool(STANDS_IN_A_PATH.search(value)) and not os.path.lexists(value)


def keys(action: str, spec: dict, engine: str | None = None) -> list[str]:
    """Return the keys whose values stand for others, but for those that the engine ignores."""
    known = document.keys(action)
    has_our_data = bool(document.get(spec, TRAIN_ANNOTATIONS))
    found = []
    for key, value in document.items(action, spec):
        schema = known.get(key, {})
        is_read = engine is None or engine in schema.get("x-engines", [engine])
        is_path = bool(
            schema.get("x-path") or own_paths.NAMES_A_PATH.search(key.rpartition(".")[2])
        )
        stands_for_another = is_placeholder(value, is_path)
        if value in OTHER_WORDS:  # as a fix writes them; the column of a dataset may be called so
            stands_for_another = not key.endswith("column_name")
        if not is_read or not stands_for_another:
            continue
        # What another dataset script would read does no harm beside data for ours.
        if not has_our_data or not document.overlap(key, OF_GUIDES):
            found.append(key)
    return found


def check(action: str, spec: dict, found: list[str]) -> findings.Finding:
    """Return the one error about all of them."""
    known = document.keys(action)
    changes = {key: WORDS.get(known.get(key, {}).get("x-path"), "VALUE") for key in found}
    values = [f"{key} = {shown(document.get(spec, key), 60)}" for key in found[:NAMED]]
    if found[NAMED:]:
        values.append(f"{len(found) - NAMED} more")
    message = f"got words that stand for values to be filled in: {', '.join(values)}"
    fix = Fix(changes=changes, sure=False)
    return findings.error("SPEC-PLACEHOLDER", ", ".join(found), message, fix)


def unknown_uris(case: Case) -> list[findings.Finding]:
    """Return the paths that nothing here can open: inputs may be on S3, outputs are folders, none
    has a drive letter."""
    found = []
    for key, schema in document.keys(case.action).items():
        value = case(key)
        kind = schema.get("x-path")
        if not kind or not isinstance(value, str):
            continue
        got = f"got {shown(value)}, expected a path"
        if WINDOWS_PATH.match(value):
            message = f"{got} of the machine that runs the job, such as /mnt/c/... under WSL"
            found.append(findings.error("SPEC-PATH-WINDOWS", key, message))
        elif "://" in value and not value.startswith(URIS[kind]):
            found.append(
                findings.error(
                    "SPEC-URI", key, got + "".join(f" or {uri}..." for uri in URIS[kind])
                )
            )
    return found
