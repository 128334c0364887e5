"""Paths in a spec that nothing can open, and dataset roots with a share."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document
from cosmos_reason.spec import values as spec_values

WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
URIS = {"input": ("s3://",), "output": (), "model": (model_names.HUB,)}  # by a key's x-path

TRAIN_ROOT = "--train-root"
# What follows the last colon of a root that is no folder here; an address has only a number there.
SHARE = re.compile(r"(.+):([^:/\\]*)")
SHARE_OF_ADDRESS = re.compile(r"(.+://.+):([\d.]+)")


def unknown_uris(case: Case) -> list[f.Finding]:
    """Return the paths that nothing here can open: inputs may be on S3, outputs are folders, none
    has a drive letter."""
    found = []
    for key, schema in document.keys(case.action).items():
        value = case(key)
        kind = schema.get("x-path")
        if not kind or not isinstance(value, str):
            continue
        got = f"got {spec_values.shown(value)}, expected a path"
        if WINDOWS_PATH.match(value):
            message = f"{got} of the machine that runs the job, such as /mnt/c/... under WSL"
            found.append(f.error("SPEC-PATH-WINDOWS", key, message))
        elif "://" in value and not value.startswith(URIS[kind]):
            found.append(
                f.error("SPEC-URI", key, got + "".join(f" or {uri}..." for uri in URIS[kind]))
            )
    return found


class Part(NamedTuple):
    """A dataset root as it was written, and the share of its records to take."""

    root: str
    share: float


def part(written: str) -> Part:
    """Read `ROOT` or `ROOT:SHARE`. Raises Failure for a share that is none."""
    match = (SHARE_OF_ADDRESS if "://" in written else SHARE).fullmatch(written)
    if not match or os.path.isdir(written):
        return Part(written, 1.0)
    try:
        share = float(match[2])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # of nan too
        message = f"got the share {match[2]!r} of {match[1]}, expected one above 0 and at most 1"
        raise f.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
    return Part(match[1], share)
