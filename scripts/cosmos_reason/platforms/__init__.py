"""Where jobs run: one module per platform, each with the same parts.

ENGINES                                           what it starts
check(request, acting) -> findings                what stands against a request before its inputs are fetched; when the
                                                  platform is out of reach: Failure (exit 3) to act, a warning to plan
prepare(record, spec)                             fill in the record's command, image and options
launch_text(record) -> text                       the same, for people to read
write(folder, record, spec)                       the files of the job folder that the work needs
start(folder, lock)                               begin; the record is PENDING and stays so until work begins
supervise(folder, lock)                           see the job to its end (where a supervisor does that, supervisor.py)
refresh(folder) -> record                         as it is true now; Failure (exit 3) when nobody can say
stop(folder, grace)                               cancel
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

PLATFORMS = ("local", "docker")
SHOWN = ("platform", "created_at", "started_at", "ended_at", "reason", "spec", "outputs", "evidence", "diagnosis")


def module(platform: str) -> ModuleType:
    return importlib.import_module(f"cosmos_reason.platforms.{platform}")


def refresh(folder: Path) -> dict:
    """The record of a job on whatever platform as it is true now. Raises Failure: exit 2 for a file that is no record,
    exit 3 when nobody can say now."""
    from cosmos_reason import bundle, jobs
    from cosmos_reason.findings import bad_input

    record = jobs.read(folder)
    needed = SHOWN if record["state"] in jobs.ENDED else bundle.schema("job")["required"]
    lacking = [key for key in needed if key not in record]
    if lacking or record["platform"] not in PLATFORMS:
        message = f"got a record without {', '.join(lacking) or 'a known platform'}, expected what submit writes"
        raise bad_input("JOB-RECORD-BROKEN", folder / "job.json", message)
    return record if record["state"] in jobs.ENDED else module(record["platform"]).refresh(folder)
