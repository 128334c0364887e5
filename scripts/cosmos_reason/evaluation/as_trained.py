"""Whether an evaluation asks a checkpoint as it was trained: with its prompt, frames and pixels."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs, training_settings
from cosmos_reason.evaluation import questions
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.remote import model_names
from cosmos_reason.spec import actions


def check(spec: dict) -> list[Finding]:
    """Return warnings about a complete evaluate spec, or what `inference.as_evaluation` makes of
    one of inference, whose model is a checkpoint with its training spec beside it."""
    folder = Path(spec["model"]["model_name"]).resolve()  # best/ is a link
    if not is_of_training(folder):
        return []
    try:
        trained = training_spec(folder)
        if trained:
            return [*_check_prompt(trained, spec), *_check_vision(trained, spec)]
        reason = "no training spec lies beside the checkpoint"
    except Failure as failure:
        reason = failure.findings[0].message
    message = f"{reason}; prompt, frames and pixels were not compared with those of training"
    return [findings.info("EVAL-TRAINING-UNKNOWN", folder, message)]


def is_of_training(folder: Path) -> bool:
    """Return whether a model tells how it was trained, lies where a training leaves its own, or was
    quantized by a job."""
    if (folder / training_settings.FILE).is_file():
        return True
    return run_outputs.is_in_run(folder) or _quantize_record(folder) is not None


def _quantize_record(folder: Path) -> dict | None:
    """Return the record of the job in whose results a model lies, if that job quantizes."""
    record = model_names.read_table(folder.parent / "job.json")
    return record if record.get("action") == "quantize" else None


def training_spec(folder: Path) -> dict | None:
    """Return what the checkpoint `<output_dir>/<run>/safetensors/<step>` was trained with: its
    resume folder's cosmos_config, else what the file beside the weights tells, else config.toml of
    the run or the output, else spec.toml of the job whose results it lies in. Of a quantized model:
    spec.toml of the job that trained it."""
    run = folder.parent.parent
    saved = run / "checkpoints" / folder.name / "policy" / "cosmos_config"
    if saved.is_file():  # surer than a file that the trainer may have copied from its base
        return files.read_json(saved)
    told = training_settings.read(folder)
    if told is not None:
        return told
    record = _quantize_record(folder)
    if record:
        return quantized_training(folder.parent, record)
    output_dir = run.parent
    written = (
        run / "config.toml",
        output_dir / "config.toml",
        output_dir / "spec.toml",
        output_dir.parent / "spec.toml",
    )
    for path in written:
        if path.is_file():
            return files.read_toml(path)
    return None


def carry(source: Path, made: Path) -> None:
    """Write beside the weights of a model how the one that it was made from was trained, as far as
    that is known. Raises Failure."""
    source = source.resolve()
    trained = training_spec(source) if is_of_training(source) else None
    if trained:
        training_settings.write(made, trained)


def quantized_training(job: Path, record: dict) -> dict | None:
    """Return the spec of the job whose model the job in this folder quantized, where it lies
    beside."""
    parent = record.get("parent_job")
    if not parent:
        return None
    path = job.parent / str(parent) / "spec.toml"
    return files.read_toml(path) if path.is_file() else None


def _check_prompt(trained: dict, spec: dict) -> list[Finding]:
    action = questions.action(spec)
    key = actions.places(action)["system_prompt"]
    training = actions.trained_view(trained, action)[key]
    evaluation = spec["dataset"]["system_prompt"]
    if training == evaluation:
        return []
    message = f"got {evaluation[:80]!r}, expected the system prompt of training: {training[:80]!r}"
    fix = Fix(changes={key: training})
    data = {"training": training, "evaluation": evaluation}
    return [findings.warning("EVAL-MISMATCH-PROMPT", key, message, fix, **data)]


def _check_vision(trained: dict, spec: dict) -> list[Finding]:
    training = VisionOptions.from_spec(trained)
    evaluation = replace(VisionOptions.from_table(spec["vision"]), family=training.family)
    if training == evaluation:
        return []
    trained_with, asked_with = _written(training), _written(evaluation)
    message = f"got {_in_words(asked_with)}, expected what training had: {_in_words(trained_with)}"
    changes = {f"vision.{name}": None for name in sorted(asked_with) if name not in trained_with}
    for name, value in trained_with.items():
        if asked_with.get(name) != value:
            changes[f"vision.{name}"] = value
    fix = Fix(changes=changes)
    data = {"training": trained_with, "evaluation": asked_with}
    return [findings.warning("EVAL-MISMATCH-VISION", "vision", message, fix, **data)]


def _written(options: VisionOptions) -> dict:
    values = {one.name: getattr(options, one.name) for one in fields(options)}
    del values["family"]
    return {name: value for name, value in values.items() if value is not None}


def _in_words(options: dict) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "no vision options"
