"""One evaluation per checkpoint: what the folders given to --checkpoint stand for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.checkpoints import run_outputs


def specs(spec: dict, folders: Sequence[Path]) -> tuple[list[dict], list[Finding]]:
    """Return the spec once per model, each with a results folder of its own below `results_dir`; a
    training output stands for all its models. Damaged ones are named in a warning. Raises Failure
    when nothing is left, or when two models would share a folder."""
    models, found = [], []
    for folder in folders:
        whole, damaged = run_outputs.models_meant(folder)
        if not whole:
            message = "it holds no undamaged model"
            raise findings.bad_input("EVAL-NO-CHECKPOINT", folder, message)
        models += whole
        for path in damaged:
            message = "the checkpoint is damaged and left out"
            fix = f"scripts/select_checkpoint.py {folder}"
            found.append(findings.warning("EVAL-CHECKPOINT-SKIPPED", path, message, fix))
    by_name = {run_name(model): _with_model(spec, model) for model in models}
    if len(by_name) < len(models):
        message = "two checkpoints have one name, and would share a results folder"
        raise findings.bad_input("EVAL-CHECKPOINT-TWICE", "--checkpoint", message)
    return list(by_name.values()), found


def run_name(checkpoint: Path) -> str:
    """Return 20260101120000-step_10 for step_10 of that run; any other folder has its own
    name."""
    checkpoint = checkpoint.resolve()  # best/ is a link
    if run_outputs.is_in_run(checkpoint):
        return f"{checkpoint.parents[1].name}-{checkpoint.name}"
    return checkpoint.name


def _with_model(spec: dict, folder: Path) -> dict:
    """Return a copy of the spec that evaluates this model; an adapter keeps the spec's base
    model."""
    spec = copy.deepcopy(spec)
    model = spec["model"]
    model["model_name"] = str(folder)
    model["enable_lora"] = run_outputs.kind(folder) == run_outputs.ADAPTER
    if not model["enable_lora"]:
        model["base_model_path"] = ""
    if spec["results_dir"]:
        spec["results_dir"] = str(Path(spec["results_dir"], run_name(folder)))
    return spec
