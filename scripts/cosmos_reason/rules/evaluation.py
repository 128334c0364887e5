"""Rules about evaluate, inference and quantize: adapters, answers, media and calibration data."""

from __future__ import annotations

import os

from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import LATER, MODELS, Case, Rule
from cosmos_reason.spec import quantizing

# NVIDIA's quantize.py of Cosmos-Reason2 takes 512.
DEFAULT_SAMPLES, FEW_SAMPLES = 512, 64


def shown_kind(case: Case) -> str:
    """Return the kind of medium that a file's name shows, else the one asked for."""
    from cosmos_reason.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

    name = (case("media") or "").lower()
    if name.endswith(IMAGE_SUFFIXES):
        return "image"
    if name.endswith(VIDEO_SUFFIXES):
        return "video"
    return case("type")


def base_of_adapter_alone(case: Case) -> bool | Fix | None:
    """Return true for an adapter, without the base for a whole model; None where nobody here can
    tell which of them it is: an adapter's flag on a whole model ends the job."""
    if case.adapter_base:
        return True
    is_whole = os.path.isfile(os.path.join(case.model, "config.json"))
    if is_whole or case.model.removeprefix(model_names.HUB) in model_names.published():
        return Fix(changes={case.params["base"]: None})
    return None


def is_calibrated(case: Case) -> bool:
    is_static = case(quantizing.CACHE) == "fp8"
    return is_static or case(quantizing.SCHEME) != quantizing.DATA_FREE


def reads_records(case: Case) -> bool:
    """Return whether the quantization looks at data: the container's always does."""
    return case.engine == "tao" or is_calibrated(case)


def few_samples(case: Case) -> str | bool:
    """Return whether few records calibrate; words where the data has fewer than were asked for."""
    wanted = case(quantizing.SAMPLES)
    used = min(wanted, case.records or wanted)
    if not reads_records(case) or used >= FEW_SAMPLES:
        return False
    return f"the data has {used} records, all are taken" if used < wanted else True


RULES = (
    Rule(
        "SPEC-SKIP-SAVED", WARNING, "evaluate", "evaluation.skip_saved",
        "each job has a new results folder where results_dir is empty: there is nothing to keep",
        lambda case: case("evaluation.skip_saved") and not case("results_dir"),
        fix=Fix(changes={"results_dir": "answers"}),
    ),
    # Without the flag its folder is opened as a model, which has no config.json.
    Rule(
        "SPEC-ADAPTER-FOLDER", ERROR, MODELS, "{adapter}", "the model folder is a LoRA adapter",
        lambda case: bool(case.adapter_base) and not case(case.params["adapter"]),
        fix=lambda case: Fix(changes={
            case.params["adapter"]: True,
            case.params["base"]: case(case.params["base"]) or case.adapter_base,
        }),
    ),
    Rule(
        "SPEC-ADAPTER-BASE", ERROR, MODELS, "{base}", "enable_lora needs the base model",
        lambda case: case(case.params["adapter"]) and not case(case.params["base"]),
        fix="MODEL",
    ),
    Rule(
        "SPEC-ADAPTER-OFF", WARNING, MODELS, "{adapter}",
        "base_model_path is given and not read: an adapter needs true, a whole model has no base",
        lambda case: case(case.params["base"]) and not case(case.params["adapter"]),
        fix=base_of_adapter_alone,
    ),
    # An answer is read behind </think>: one that is cut before it is no answer at all.
    Rule(
        "SPEC-ANSWER-ROOM", WARNING, "evaluate", "generation.max_tokens",
        "reasoning answers come last and would be cut",
        lambda case: case("evaluation.answer_type") == "reasoning"
        and case("generation.max_tokens") < 512,
        fix=1024,
    ),
    # vLLM counts prompt and answer against one length, and no prompt is empty.
    Rule(
        "SPEC-ANSWER-LENGTH", ERROR, "evaluate", "generation.max_tokens",
        "must be below model.max_length",
        lambda case: case.engine == "tao"
        and case("generation.max_tokens") >= case("model.max_length"),
        fix=lambda case: case("model.max_length") // 2,
    ),
    Rule(
        "SPEC-EVAL-GPUS", ERROR, "evaluate", "num_gpus", "model.tp_size asks for more",
        lambda case: case("model.tp_size") > case("num_gpus")
        and f"tp_size is {case('model.tp_size')}",
        fix=lambda case: case("model.tp_size"),
    ),
    Rule(
        "SPEC-EVAL-FRAMES", WARNING, "evaluate", "vision.nframes",
        "the container's evaluator documents at most 8",
        lambda case: case.engine == "tao" and (case("vision.nframes") or 0) > 8, fix=8,
    ),
    Rule(
        "SPEC-DATA-EVAL", LATER, "evaluate", "dataset.annotation_path",
        "must be known before a launch",
        lambda case: not case("dataset.annotation_path"), fix=Fix(flags={"--eval-root": "DIR"}),
    ),
    Rule(
        "SPEC-MEDIA", LATER, "inference", "media", "must be known before a launch",
        lambda case: not case("media"), fix="PATH",
    ),
    # A clip that is opened as an image, or the other way round, ends the job at its first question.
    Rule(
        "SPEC-MEDIA-TYPE", ERROR, "inference", "type", "the name of the media shows another kind",
        lambda case: shown_kind(case) != case("type") and f"media is {case('media')}",
        fix=shown_kind,
    ),
    Rule(
        "SPEC-PROMPT", LATER, "inference", "prompt", "must be known before a launch",
        lambda case: not case("prompt").strip() and not case("questions_file"),
        fix="TEXT",
    ),
    # The scales of all other schemes are measured while records pass through the model.
    Rule(
        "SPEC-CALIBRATION", ERROR, "quantize", "dataset.annotation_path",
        "only FP8_DYNAMIC with a bf16 cache needs no calibration data",
        lambda case: is_calibrated(case) and not case("dataset.annotation_path")
        and not case("dataset.dataset_id"),
        fix=Fix(flags={"--train-root": "DIR"}),
    ),
    Rule(
        "SPEC-CALIBRATION-FEW", WARNING, "quantize", quantizing.SAMPLES,
        "enough to try it out only",
        few_samples, fix=lambda case: most
        if (most := min(DEFAULT_SAMPLES, case.records or DEFAULT_SAMPLES)) >= FEW_SAMPLES
        else None,
    ),
    Rule(
        "SPEC-CALIBRATION-MANY", WARNING, "quantize", quantizing.SAMPLES,
        "each record is taken once",
        lambda case: (wanted := case(quantizing.SAMPLES)) and is_calibrated(case)
        and wanted > (case.records or 0) >= FEW_SAMPLES
        and f"the data has {case.records} records, so {case.records} are used",
        fix=lambda case: case.records,
    ),
)  # fmt: skip
