"""Where jobs run: one module per platform, each with the same parts.

command(engine, action, folder) -> argument list       what runs the spec in `folder`
LAUNCH_FILE, launch_text(record) -> text               the same, for people to read
start(folder, lock)                                    begin; the record is PENDING and stays so until work begins
refresh(folder) -> (record, findings)                  the record as it is true now
stop(folder, grace)                                    cancel
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

PLATFORMS = ("local",)


def module(platform: str) -> ModuleType:
    return importlib.import_module(f"cosmos_reason.platforms.{platform}")


def refresh(folder: Path) -> tuple[dict, list]:
    """The record of a job on whatever platform as it is true now, and findings about it."""
    from cosmos_reason import jobs

    return module(jobs.read(folder)["platform"]).refresh(folder)
