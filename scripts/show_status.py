#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli_w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2",
# ]
# ///
"""Show what this folder holds - data, models, specs, studies, jobs - and what comes next.

examples:
  scripts/show_status.py
  scripts/show_status.py ~/clips --json
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.jobs import listing, record
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import actions, document, origins

DEEP = 3  # folders below that are looked into
MOST = 2000  # folders that are looked into at all
SHOWN = 8  # of each kind
LABELS = (".csv", ".tsv", ".xlsx", ".parquet")


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("folder", nargs="?", type=cli.local, default=Path(), help="default: here")
    parser.add_argument(
        "--jobs-dir", help=f"folder of all jobs (default: ${record.JOBS_DIR_VARIABLE} or ./jobs)"
    )
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    if not args.folder.is_dir():
        raise f.bad_input("FILE-MISSING", args.folder, "there is no such folder")
    os.chdir(args.folder)  # what follows is pasted there
    found = look()
    jobs_dir = record.path_of_root(args.jobs_dir)
    listed, problems = listing.current(jobs_dir) if jobs_dir.is_dir() else ([], [])
    rows = [{"job_id": one.job_id, "state": one.state, "reason": one.reason} for one in listed]
    result = found | {"jobs": rows}
    lines = []
    for kind, entries in found.items():
        if entries:
            more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
            lines.append(f"{kind + ':':9} {'; '.join(entries[:SHOWN])}{more}")
    for one in listed[:SHOWN]:
        lines.append(f"{'job:':9} {one.job_id} {one.state} {one.reason[:100]}".rstrip())
    if len(listed) > SHOWN:
        lines.append(f"{'':9} and {len(listed) - SHOWN} older (launch_job.py list)")
    text = "\n".join(lines) or "nothing of a fine-tuning is here: no data, spec or job"
    return cli.Outcome(result, problems, text, following(found, listed))


def look() -> dict[str, list[str]]:
    """Return what lies here by kind, each as a path with a word about it."""
    found = {"labels": [], "data": [], "models": [], "specs": [], "studies": []}
    for folder, names in folders():
        shown = files.from_here(folder.absolute())
        if "annotations.json" in names:
            found["data"].append(shown)
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            found["models"].append(shown)
        if "study.json" in names:
            found["studies"].append(shown)
        for name in names:
            path = os.path.normpath(folder / name)
            if name.endswith(LABELS) and "dataset_facts.json" not in names:
                found["labels"].append(path)
            elif name.endswith(".toml"):
                action = action_of(folder / name)
                if action:
                    engine = origins.engine_of(folder / name, action=action)
                    found["specs"].append(f"{path} ({action} with {engine})")
    return found


def folders() -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders here with the names of their files, but for hidden ones, jobs, and what
    lies in datasets, models and studies."""
    waiting = [(Path(), 0)]
    looked_at = 0
    while waiting and looked_at < MOST:
        folder, depth = waiting.pop(0)
        looked_at += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        names = [entry.name for entry in entries if entry.is_file()]
        if record.RECORD in names:
            continue
        yield folder, names
        if depth == DEEP or {"annotations.json", "config.json", "study.json"} & set(names):
            continue
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                waiting.append((folder / entry.name, depth + 1))


def action_of(path: Path) -> str:
    """Return the action of a spec, "" for any other file."""
    try:
        table = document.load(path)
    except (f.Failure, OSError):
        return ""
    is_spec = origins.path_beside(path).is_file() or actions.TRAINING_TABLES & table.keys()
    return actions.of_spec(table) if is_spec else ""


def following(found: dict[str, list[str]], listed: list[Job]) -> tuple[str, ...]:
    """Return the next step of whoever has this: of the newest job, else of the newest thing that
    is there without what would follow it."""
    if listed:
        newest = listed[0]
        if not newest.has_ended:
            return record.words("watch", newest.folder)
        if newest.state != record.COMPLETE:
            return ("diagnose_log.py", newest.job_id)
        if newest.action == "train":
            return ("select_checkpoint.py", files.from_here(newest.folder))
        if newest.action == "evaluate":
            return ("score_predictions.py", newest.outputs.get("results_dir"))
        return ()
    if found["studies"]:
        return ("tune_hyperparameters.py", "status", "--study", found["studies"][0])
    if found["specs"]:
        path, _, about = found["specs"][0].rpartition(" (")
        platform = "local" if about.endswith("transformers)") else "docker"
        return ("check_tao_launch_preflight.py", "--platform", platform, "--spec", path)
    if found["data"]:
        train = next((one for one in found["data"] if "train" in one), found["data"][0])
        held_out = [one for one in found["data"] if Path(one).name in ("eval", "val", "test")]
        words = ["check_dataset.py", train]
        words += ["--eval", held_out[0]] if held_out and held_out[0] != train else []
        return (*words, "--facts", "data-facts/dataset_facts.json")
    if found["labels"]:
        return ("build_dataset.py", found["labels"][0], "-o", "data", "--dry-run")
    return ()


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
