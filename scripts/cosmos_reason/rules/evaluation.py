"""Rules about evaluate, inference and quantize: adapters, answers, media and calibration data."""

from __future__ import annotations

from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules.rule import LATER, MODELS, rule
from cosmos_reason.spec import quantizing

DEFAULT_SAMPLES, FEW_SAMPLES = 512, 64


def with_adapter(case) -> Fix:
    base = case(case.params["base"]) or case.adapter_base
    return Fix(changes={case.params["adapter"]: True, case.params["base"]: base})


@rule(
    "SPEC-SKIP-SAVED", WARNING, "evaluate", "evaluation.skip_saved",
    "each job has a new results folder where results_dir is empty: there is nothing to keep",
    reads=("results_dir",), fix=Fix(changes={"results_dir": "answers"}),
)  # fmt: skip
def nothing_saved_to_skip(case):
    return case("evaluation.skip_saved") and not case("results_dir")


@rule(
    "SPEC-ADAPTER-FOLDER", ERROR, MODELS, "{adapter}", "the model folder is a LoRA adapter",
    reads=("{model}", "{base}"), fix=with_adapter,
)  # fmt: skip
def adapter_as_model(case):
    return bool(case.adapter_base) and not case(case.params["adapter"])


@rule(
    "SPEC-ADAPTER-BASE", ERROR, MODELS, "{base}", "enable_lora needs the base model",
    reads=("{adapter}",), fix="MODEL",
)  # fmt: skip
def adapter_without_base(case):
    return case(case.params["adapter"]) and not case(case.params["base"])


@rule(
    "SPEC-ADAPTER-OFF", WARNING, MODELS, "{adapter}",
    "base_model_path is given and not read: only an adapter has a base, and needs true",
    reads=("{base}",), fix=True,
)  # fmt: skip
def base_without_adapter(case):
    return case(case.params["base"]) and not case(case.params["adapter"])


@rule(
    "SPEC-ANSWER-ROOM", WARNING, "evaluate", "generation.max_tokens",
    "reasoning answers come last and would be cut",
    reads=("evaluation.answer_type",), fix=1024,
)  # fmt: skip
def cut_reasoning(case):
    return case("evaluation.answer_type") == "reasoning" and case("generation.max_tokens") < 512


@rule(
    "SPEC-ANSWER-LENGTH", ERROR, "evaluate", "generation.max_tokens",
    "must be below model.max_length",
    reads=("model.max_length",), fix=lambda case: case("model.max_length") // 2,
)  # fmt: skip
def answer_fills_sequence(case):
    return case.engine == "tao" and case("generation.max_tokens") >= case("model.max_length")


@rule(
    "SPEC-EVAL-GPUS", ERROR, "evaluate", "num_gpus", "model.tp_size asks for more",
    reads=("model.tp_size",), fix=lambda case: case("model.tp_size"),
)  # fmt: skip
def tensor_parallel_beyond_gpus(case):
    if case("model.tp_size") > case("num_gpus"):
        return f"tp_size is {case('model.tp_size')}"
    return None


@rule(
    "SPEC-EVAL-FRAMES", WARNING, "evaluate", "vision.nframes",
    "the container's evaluator documents at most 8",
    fix=8,
)  # fmt: skip
def more_frames_than_documented(case):
    return case.engine == "tao" and (case("vision.nframes") or 0) > 8


@rule(
    "SPEC-DATA-EVAL", LATER, "evaluate", "dataset.annotation_path", "must be known before a launch",
    fix=Fix(flags={"--eval-root": "DIR"}),
)  # fmt: skip
def no_evaluation_data(case):
    return not case("dataset.annotation_path")


@rule("SPEC-MEDIA", LATER, "inference", "media", "must be known before a launch", fix="PATH")
def no_media(case):
    return not case("media")


def shown_kind(case) -> str:
    """The kind of medium that a file's name shows, else the one asked for."""
    from cosmos_reason.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

    name = (case("media") or "").lower()
    if name.endswith(IMAGE_SUFFIXES):
        return "image"
    if name.endswith(VIDEO_SUFFIXES):
        return "video"
    return case("type")


@rule(
    "SPEC-MEDIA-TYPE", ERROR, "inference", "type", "the name of the media shows another kind",
    reads=("media",), fix=shown_kind,
)  # fmt: skip
def medium_of_another_kind(case):
    if shown_kind(case) != case("type"):
        return f"media is {case('media')}"
    return None


@rule(
    "SPEC-PROMPT", LATER, "inference", "prompt", "must be known before a launch",
    reads=("questions_file",), fix="TEXT",
)  # fmt: skip
def no_prompt(case):
    return not case("prompt").strip() and not case("questions_file")


CALIBRATED_BY = (quantizing.SCHEME, quantizing.CACHE)


def is_calibrated(case) -> bool:
    is_static = case(quantizing.CACHE) == "fp8"
    return is_static or case(quantizing.SCHEME) != quantizing.DATA_FREE


def reads_records(case) -> bool:
    """Whether the quantization looks at data: the container's always does."""
    return case.engine == "tao" or is_calibrated(case)


@rule(
    "SPEC-CALIBRATION", ERROR, "quantize", "dataset.annotation_path",
    "only FP8_DYNAMIC with a bf16 cache needs no calibration data",
    reads=(*CALIBRATED_BY, "dataset.dataset_id"),
    fix=Fix(flags={"--train-root": "DIR"}),
)  # fmt: skip
def no_calibration_data(case):
    if not is_calibrated(case):
        return False
    return not case("dataset.annotation_path") and not case("dataset.dataset_id")


def default_samples(case) -> int | None:
    """The usual number of calibration records, or all there are when that is more than now."""
    most = min(DEFAULT_SAMPLES, case.records or DEFAULT_SAMPLES)
    return most if most > case(quantizing.SAMPLES) else None


@rule(
    "SPEC-CALIBRATION-FEW", WARNING, "quantize", quantizing.SAMPLES, "enough to try it out only",
    reads=(*CALIBRATED_BY, "dataset.annotation_path"), fix=default_samples,
)  # fmt: skip
def few_calibration_samples(case):
    return reads_records(case) and case(quantizing.SAMPLES) < FEW_SAMPLES


@rule(
    "SPEC-CALIBRATION-MANY", WARNING, "quantize", quantizing.SAMPLES, "each record is taken once",
    reads=(*CALIBRATED_BY, "dataset.annotation_path"), fix=lambda case: case.records,
)  # fmt: skip
def more_samples_than_records(case):
    wanted = case(quantizing.SAMPLES)
    if is_calibrated(case) and case.records and wanted > case.records:
        return f"the data has {case.records} records, so {case.records} are used"
    return None


@rule(
    "SPEC-CALIBRATION-LENGTH", ERROR, "quantize", quantizing.LENGTH,
    "a video record that is cut fails",
    reads=CALIBRATED_BY, fix=4096,
)  # fmt: skip
def cut_calibration_samples(case):
    return reads_records(case) and case(quantizing.LENGTH) < 4096
