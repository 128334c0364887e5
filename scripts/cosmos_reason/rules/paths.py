"""Paths in a spec that nothing can open."""

from __future__ import annotations

import re

from cosmos_reason.base import findings as f
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document
from cosmos_reason.spec import values as spec_values

WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
URIS = {"input": ("s3://",), "output": (), "model": (model_names.HUB,)}  # by a key's x-path


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
