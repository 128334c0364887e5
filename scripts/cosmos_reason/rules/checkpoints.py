"""Rules about what a run saves and what it continues from."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules.case import TRAINING, Case, Rule

# Where states lie below a step, its run, and the output of runs.
BELOW = ("policy", "*/policy", "checkpoints/*/policy", "*/checkpoints/*/policy")


def wrong_resume_folder(case: Case) -> bool:
    folder = case("train.resume")
    return case.cosmos and isinstance(folder, str) and not folder.rstrip("/").endswith("/policy")


def policy_of_resumed(case: Case) -> str | None:
    """Return the newest complete state in a folder that is here; of one that lies elsewhere, what a
    step's folder is sure to hold."""
    from cosmos_reason.checkpoints import run_outputs  # few runs are continued

    folder = Path(case("train.resume"))
    if not folder.is_dir():
        is_step = folder.parent.name == "checkpoints"
        return str(folder / "policy") if is_step else None
    found = [path for below in BELOW for path in folder.glob(below)]
    if folder.parent.name == "safetensors":  # a model, whose state was saved beside it
        found.append(folder.parents[1] / "checkpoints" / folder.name / "policy")
    whole = [path for path in found if run_outputs.is_complete_resume(path)]
    newest = max(whole, key=lambda path: run_outputs.step_number(path.parent) or 0, default=None)
    return str(newest) if newest else None


def output_is_elsewhere(case: Case) -> bool:
    output = case("train.output_dir")
    return bool(output) and not os.path.isdir(output)


RULES = (
    # Off is the trainer's own default.
    Rule(
        "SPEC-SAVE-OFF", WARNING, TRAINING, "train.ckpt.enable_checkpoint",
        "the run would leave no model",
        lambda case: not case("train.ckpt.enable_checkpoint"), fix=True,
    ),
    # The trainer's config class refuses it too, once the job has its GPUs.
    Rule(
        "SPEC-S3-BUCKET", ERROR, TRAINING, "train.ckpt.s3_bucket", "upload_s3 needs a bucket",
        lambda case: case("train.ckpt.upload_s3") and not case("train.ckpt.s3_bucket"),
        fix="NAME",
    ),
    # The trainer's default is the misspelt Comos-Reason1: everybody's runs would share that name.
    Rule(
        "SPEC-HUB-NAME", ERROR, TRAINING, "train.ckpt.hf_repo_name",
        "upload_hf needs a name of your own",
        lambda case: case("train.ckpt.upload_hf") and not case.has("train.ckpt.hf_repo_name"),
        fix="NAME",
    ),
    Rule(
        "SPEC-RESUME-FOLDER", ERROR, TRAINING, "train.resume",
        "expected a folder .../checkpoints/step_N/policy",
        wrong_resume_folder, fix=policy_of_resumed,
    ),
    Rule(
        "SPEC-RESUME-NOTHING", WARNING, TRAINING, "train.resume",
        "no complete checkpoint in output_dir: a fresh start",
        lambda case: case("train.resume") is True and not case.resumed and (
            not output_is_elsewhere(case)
            or f"{case('train.output_dir')} is no folder here; on the machine of the run it may be"
        ),
        fix=lambda case: None if output_is_elsewhere(case) else False,
    ),
    Rule(
        "SPEC-RESUME-INCOMPLETE", ERROR, TRAINING, "train.resume",
        "this folder is no complete checkpoint",
        lambda case: isinstance(case("train.resume"), str) and os.path.isdir(case("train.resume"))
        and not wrong_resume_folder(case) and case.resumed is None,
        fix=True,
    ),
    Rule(
        "SPEC-RESUME-DONE", ERROR, TRAINING, "train.resume",
        "this run is finished, no step is left; take its model, "
        "or train on in a new run that starts from it (--model)",
        lambda case: case.finished and f"the model is {case.finished}",
        fix=lambda case: Fix(command=shlex.join(
            ["scripts/select_checkpoint.py", str(case.finished.parents[2])]
        )),
    ),
    # cosmos-rl keeps the number of steps it saved (ckpt_total_steps), so that a longer schedule
    # is not taken up.
    Rule(
        "SPEC-RESUME-STEPS", INFO, TRAINING, "train.resume",
        "total steps come from the checkpoint, not from epoch",
        lambda case: case.cosmos and bool(case("train.resume")),
    ),
    Rule(
        "SPEC-RUN-FOLDER", WARNING, TRAINING, "train.timestamp",
        "every start writes into the same folder",
        lambda case: case("train.timestamp") and not case("train.resume"),
        fix=Fix(changes={"train.timestamp": None}),
    ),
)  # fmt: skip
