"""Rules about what a run saves and what it continues from."""

from __future__ import annotations

import os
import shlex

from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules.keys import RESUMED, STEPS
from cosmos_reason.rules.rule import TRAINING, rule


@rule(
    "SPEC-SAVE-OFF", WARNING, TRAINING, "train.ckpt.enable_checkpoint",
    "the run would leave no model",
    fix=True,
)  # fmt: skip
def no_checkpoints(case):
    return not case("train.ckpt.enable_checkpoint")


@rule(
    "SPEC-S3-BUCKET", ERROR, TRAINING, "train.ckpt.s3_bucket", "upload_s3 needs a bucket",
    reads=("train.ckpt.upload_s3",), fix="NAME",
)  # fmt: skip
def upload_without_bucket(case):
    return case("train.ckpt.upload_s3") and not case("train.ckpt.s3_bucket")


@rule(
    "SPEC-HUB-NAME", ERROR, TRAINING, "train.ckpt.hf_repo_name",
    "upload_hf needs a name of your own",
    reads=("train.ckpt.upload_hf",), fix="NAME",
)  # fmt: skip
def upload_without_name(case):
    return case("train.ckpt.upload_hf") and not case.has("train.ckpt.hf_repo_name")


def wrong_resume_folder(case) -> bool:
    folder = case("train.resume")
    return case.cosmos and isinstance(folder, str) and not folder.rstrip("/").endswith("/policy")


@rule(
    "SPEC-RESUME-FOLDER", ERROR, TRAINING, "train.resume",
    "expected a folder .../checkpoints/step_N/policy",
    fix=lambda case: case("train.resume").rstrip("/") + "/policy",
)  # fmt: skip
def resume_beside_policy(case):
    return wrong_resume_folder(case)


def output_is_elsewhere(case) -> bool:
    output = case("train.output_dir")
    return bool(output) and not os.path.isdir(output)


@rule(
    "SPEC-RESUME-NOTHING", WARNING, TRAINING, "train.resume",
    "no complete checkpoint in output_dir: a fresh start",
    reads=RESUMED, fix=lambda case: None if output_is_elsewhere(case) else False,
)  # fmt: skip
def nothing_to_resume(case):
    if case("train.resume") is not True or case.resumed:
        return False
    if output_is_elsewhere(case):
        return f"{case('train.output_dir')} is no folder here; on the machine of the run it may be"
    return True


@rule(
    "SPEC-RESUME-INCOMPLETE", ERROR, TRAINING, "train.resume",
    "this folder is no complete checkpoint",
    reads=RESUMED, fix=True,
)  # fmt: skip
def incomplete_resume(case):
    folder = case("train.resume")
    if not isinstance(folder, str) or not os.path.isdir(folder) or wrong_resume_folder(case):
        return False
    return case.resumed is None


def choose_of_finished_run(case) -> Fix:
    run = shlex.quote(str(case.finished.parents[2]))
    return Fix(command=f"scripts/select_checkpoint.py {run}")


@rule(
    "SPEC-RESUME-DONE", ERROR, TRAINING, "train.resume",
    "this run is finished, no step is left; take its model, "
    "or train on in a new run that starts from it (--model)",
    reads=(*RESUMED, *STEPS),
    fix=choose_of_finished_run,
)  # fmt: skip
def finished_run(case):
    if case.finished:
        return f"the model is {case.finished}"
    return None


@rule(
    "SPEC-RESUME-STEPS", INFO, TRAINING, "train.resume",
    "total steps come from the checkpoint, not from epoch",
)  # fmt: skip
def steps_of_resumed_run(case):
    return case.cosmos and bool(case("train.resume"))


@rule(
    "SPEC-RUN-FOLDER", WARNING, TRAINING, "train.timestamp",
    "every start writes into the same folder",
    reads=("train.resume",), fix=Fix(changes={"train.timestamp": None}),
)  # fmt: skip
def fixed_run_folder(case):
    return case("train.timestamp") and not case("train.resume")
