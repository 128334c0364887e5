"""JSON lines that are written as they come, so that a killed run loses none of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path


def append(path: Path, records: Iterable[dict]) -> None:
    """Add a line per record, after ending a line that a kill cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read() != b"\n":
                file.write(b"\n")
        for record in records:
            file.write(json.dumps(record).encode() + b"\n")


def read(path: Path) -> Iterator[dict]:
    """Yield the records of a log. A line that a kill cut short, or that a crash filled with zeros,
    is left out, as is a file that is not there."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            record = json.loads(line.decode())
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
