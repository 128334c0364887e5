"""spec.origins.json, beside a spec that build_spec wrote: its action, its engine, the nodes that it
was laid out for, the origin of each value, and what build_spec said of it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import ERROR, Failure, Finding
from cosmos_reason.spec import actions, document

NOTED_WITHIN = 3  # lines


def path_beside(spec: str | Path) -> Path:
    return Path(spec).with_suffix(".origins.json")


def write(
    spec: Path,
    action: str,
    engine: str,
    origins: dict[str, str],
    facts: Path | None = None,
    nodes: dict[str, int] | None = None,
    said: Iterable[Finding] = (),
) -> Path:
    """Write them beside a spec that is already there; `facts` are those of its data that it was
    checked with, `nodes` what `of_nodes` makes, `said` the findings that were printed."""
    beside = path_beside(spec)
    record = {"schema_version": 1, "action": action, "engine": engine}
    if facts:
        record["dataset_facts"] = os.path.abspath(facts)
    record |= nodes or {}
    record["said"] = [[one.id, one.where, one.message] for one in said if one.severity != ERROR]
    files.write_json(beside, record | {"spec_sha256": files.sha256(spec), "origins": origins})
    return beside


def of_values(spec: str | Path) -> dict[str, str]:
    """Return key -> origin. Empty when there are none, or when the spec was deleted or edited since
    they were written."""
    record = _read(spec)
    origins = record.get("origins")
    if not isinstance(origins, dict) or not os.path.isfile(spec):
        return {}
    return origins if record.get("spec_sha256") == files.sha256(spec) else {}


def said_of(spec: str | Path) -> set[tuple[str, str, str]]:
    """Return (id, where, message) of what build_spec said of a spec; empty when it was edited since
    or has no note."""
    record = _read(spec)
    if not os.path.isfile(spec) or record.get("spec_sha256") != files.sha256(spec):
        return set()
    return {tuple(one) for one in record.get("said", ())}


def of_nodes(count: int, gpus: int) -> dict[str, int]:
    """Return what is noted of a layout over the `gpus` of `count` nodes."""
    return {"nodes": count, "gpus": gpus}


def note_nodes(spec: str | Path, count: int, gpus: int) -> None:
    """Note beside a spec the nodes that it was launched on, which may be other ones."""
    files.write_json(path_beside(spec), _read(spec) | of_nodes(count, gpus))


def nodes_of(spec: str | Path, gpus: int) -> int | None:
    """Return the nodes that a spec was laid out for; None without a note, and for a spec that was
    edited to need another number of `gpus` since."""
    record = _read(spec)
    count = record.get("nodes")
    if type(count) is not int or count < 1 or record.get("gpus") != gpus:
        return None
    return count if gpus % count == 0 else None


def engine_of(
    spec: str | Path | None,
    platform: str = "docker",
    action: str | None = None,
    table: dict | None = None,
) -> str:
    """Return the engine that a spec is for, as `engine_and_key`."""
    return engine_and_key(spec, platform, action, table)[0]


def engine_and_key(
    spec: str | Path | None,
    platform: str = "docker",
    action: str | None = None,
    table: dict | None = None,
) -> tuple[str, str]:
    """Return the engine that build_spec made a spec for (one of `action`, when given), as it noted
    beside it: a spec that was edited since is still meant for it, and so is a copy, which says it
    itself. Without a note, the engine that its keys tell, with the key, else the usual one of the
    platform. `table` is what the file holds, where somebody has read it."""
    record = {}
    if spec and os.path.isfile(spec):
        record = _read(spec)
        in_words = "" if record else _engine_in_words(spec)
        if in_words:
            return in_words, ""
    if record.get("engine") in bundle.ENGINES and action in (None, record.get("action")):
        return record["engine"], ""
    by_keys = None
    if not record and (table is not None or (spec and os.path.isfile(spec))):
        with contextlib.suppress(Failure):  # of what is no spec, which others say
            read = document.load(Path(spec)) if table is None else table
            by_keys = actions.engine_by_keys(read)
    return by_keys or ("transformers" if platform == "local" else "tao", "")


def facts_of(spec: str | Path) -> Path | None:
    """Return the dataset_facts.json that build_spec checked a spec with, when it is still there."""
    noted = _read(spec).get("dataset_facts")
    if isinstance(noted, str) and os.path.isfile(noted):
        return Path(noted)
    return None


def _engine_in_words(spec: str | Path) -> str:
    """Return the engine that one of the first lines of a spec names; empty where none does."""
    with open(spec, encoding="utf-8", errors="replace") as lines:
        first = [line.strip() for line in itertools.islice(lines, NOTED_WITHIN)]
    named = [line.removeprefix(document.ENGINE_NOTE) for line in first]
    return next((name for name in named if name in bundle.ENGINES), "")


def _read(spec: str | Path) -> dict:
    beside = path_beside(spec)
    record = files.read_json(beside) if os.path.isfile(beside) else {}
    return record if isinstance(record, dict) else {}
