"""Our own commands, run for a study: launch_job.py and score_predictions.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.spec import actions, document
from cosmos_reason.tuning.prepare import evaluate_spec
from cosmos_reason.tuning.study import Study, trial_spec

SITE = "site.yaml"  # beside the specs of a study that has one; JSON is YAML


def run(
    command: list[str],
    folder: Path,
    variables: dict[str, str] | None = None,
    inherited: tuple[int, ...] = (),
    failing: int = findings.EXIT_CHECKS_FAILED,
) -> dict:
    """Return the result of a script in scripts/, run in `folder` with --json.

    `variables` are set where the environment lacks them; `inherited` are descriptors that it keeps.
    Raises Failure with its findings and exit code when that is `failing` or more.
    """
    script, *words = command
    path = str(bundle.ROOT / "scripts" / script)
    done = subprocess.run(
        [sys.executable, path, *words],
        cwd=folder,
        env={**(variables or {}), **os.environ},
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        message = f"it printed no JSON document: {done.stderr.strip()[-500:] or 'nothing'}"
        raise findings.outside("TUNE-COMMAND", script, message) from None
    if done.returncode >= failing:
        found = [Finding(**row) for row in printed["findings"]]
        errors = [finding for finding in found if finding.severity == findings.ERROR]
        raise Failure(errors or found, done.returncode)
    return printed["result"]


def launch_words(plan: dict, action: str, path: Path, gpu_ids: list[str] | None) -> list[str]:
    """Return what follows `launch_job.py VERB`. No ids at all: the CPU; None: the platform chooses.
    Only trainings have several nodes: those that are asked for, else those of their spec."""
    where = ["--platform", plan["platform"]]
    if plan.get("site"):
        where = ["--site", str(Path(path).with_name(SITE))]
    words = [action, "--spec", str(path), *where, "--engine", plan["engine"]]
    if gpu_ids is not None:
        words += ["--gpu-ids", ",".join(gpu_ids) or "none"]
    more = plan["launch"]
    if action not in actions.TRAINING:
        return words + _without_nodes(more)
    several = (plan["nodes"] or 1) > 1
    if several and more == _without_nodes(more):
        words += ["--nodes", str(plan["nodes"])]
    return words + more


def write_site(plan: dict, folder: Path) -> None:
    """Write the site of a study, where it has one, beside the specs that are launched there."""
    if plan.get("site"):
        files.write_json(folder / SITE, plan["site"])


def _without_nodes(words: list[str]) -> list[str]:
    """Return the words without --nodes N and --nodes=N."""
    kept = []
    is_value = False
    for word in words:
        if not is_value and word != "--nodes" and not word.startswith("--nodes="):
            kept.append(word)
        is_value = word == "--nodes"
    return kept


def rehearse(study: Study) -> None:
    """Ask launch_job what stands against such jobs, all of them at once. Raises Failure with its
    findings and exit code."""
    plan = study.plan
    specs = {"train": trial_spec(plan["spec"])}
    if not study.minimizes:
        specs["evaluate"] = evaluate_spec(plan["evaluate"], plan["spec"], None)
    jobs_dir = str(study.folder.absolute() / "trials")  # nothing is written, but it must be seen
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        commands = []
        for action, table in specs.items():
            path = Path(folder) / f"{action}.toml"
            document.dump(table, path, action)
            write_site(plan, Path(folder))
            for gpu_ids in plan["groups"]:
                words = launch_words(plan, action, path, gpu_ids)
                command = ["launch_job.py", "plan", *words, "--jobs-dir", jobs_dir, "--json"]
                if command not in commands:
                    commands.append(command)
        answers = [pool.submit(run, command, Path(folder)) for command in commands]
        for answer in answers:
            answer.result()
