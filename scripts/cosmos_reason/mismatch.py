"""Whether an evaluation shows the model what training showed it: the same prompt, frames and pixels."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path

from cosmos_reason import annotations, media, spec_values, storage, vision_tokens
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.vision_tokens import VisionOptions

CLIPS = 9  # read for what a clip costs
PROMPT = ("train.train_policy.system_prompt", "dataset.system_prompt")


def check(spec: dict) -> list[f.Finding]:
    """Warnings about a complete evaluate spec whose model is a checkpoint with its training spec beside it."""
    folder = Path(spec["model"]["model_name"]).resolve()  # best/ is a link
    if folder.parent.name not in ("safetensors", "merged"):
        return []
    try:
        if trained := training_spec(folder):
            return [*_prompt(trained, spec), *_vision(trained, spec)]
        why = "got no training spec beside the checkpoint"
    except f.Failure as failure:
        why = failure.findings[0].message
    message = f"{why}; prompt, frames and pixels were not compared with those of training"
    return [f.info("EVAL-TRAINING-UNKNOWN", folder, message)]


def training_spec(folder: Path) -> dict | None:
    """What the checkpoint `<output_dir>/<run>/safetensors/<step>` was trained with: its resume folder's cosmos_config,
    else config.toml of the run or the output, else spec.toml of the job whose results it lies in."""
    run = folder.parents[1]
    saved = run / "checkpoints" / folder.name / "policy" / "cosmos_config"
    if saved.is_file():
        return storage.read_json(saved)
    names = [run / "config.toml", run.parent / "config.toml", *(above / "spec.toml" for above in run.parents[1:3])]
    found = next((name for name in names if name.is_file()), None)
    return found and storage.read_toml(found)


def _prompt(trained: dict, spec: dict) -> list[f.Finding]:
    then, now = specs.get(trained, PROMPT[0], ""), specs.get(spec, PROMPT[1], "")
    if then == now:
        return []
    message = f"got {now[:80]!r}, expected the system prompt of training: {then[:80]!r}"
    data = {"training": then, "evaluation": now}
    return [f.warning("EVAL-MISMATCH-PROMPT", PROMPT[1], message, spec_values.set_flag(PROMPT[1], then), **data)]


def _vision(trained: dict, spec: dict) -> list[f.Finding]:
    then, now = VisionOptions.from_spec(trained), VisionOptions.from_table(spec["vision"])
    if then == now:
        return []
    tokens = {"training": None, "evaluation": None}
    if clips := _clips(spec["dataset"]):
        patch = vision_tokens.patch_size(spec["model"]["model_name"])
        tokens = {name: _typical(clips, options, patch) for name, options in zip(tokens, (then, now), strict=True)}
    table = {name: {key: value for key, value in asdict(options).items() if value is not None}
             for name, options in (("training", then), ("evaluation", now))}  # fmt: skip
    message = (
        f"got {_words(table['evaluation'])} ({_tokens(tokens['evaluation'])}), "
        f"expected what training had: {_words(table['training'])} ({_tokens(tokens['training'])})"
    )
    flags = [f"--unset vision.{key}" for key in sorted(table["evaluation"].keys() - table["training"].keys())]
    flags += [spec_values.set_flag(f"vision.{key}", value) for key, value in table["training"].items()
              if table["evaluation"].get(key) != value]  # fmt: skip
    return [f.warning("EVAL-MISMATCH-VISION", "vision", message, " ".join(flags), tokens=tokens, **table)]


def _clips(dataset: dict) -> list[media.MediaFacts]:
    """A few clips of the annotations, as far as they are here and can be read."""
    if "://" in dataset["media_dir"]:
        return []
    found = []
    for sample in annotations.stream(JsonRecords(dataset["annotation_path"]), annotations.Tally()):
        for item in sample.media:
            try:
                found.append(media.probe(media.resolve(dataset["media_dir"], item.path)))
            except f.Failure:  # evaluation makes an error row of it
                continue
        if len(found) >= CLIPS:
            break
    return found


def _typical(clips: list[media.MediaFacts], options: VisionOptions, patch: int) -> int | None:
    """Median of the vision tokens of the clips that can be sampled so."""
    counts = []
    for clip in clips:
        size = clip.height, clip.width
        try:
            if clip.kind == "image":
                counts.append(vision_tokens.image_tokens(*size, options, patch))
            else:
                frames = vision_tokens.frame_count(clip.frames, clip.fps, options)
                counts.append(vision_tokens.video_tokens(*size, frames, options, patch))
        except f.Failure:
            continue
    return int(statistics.median(counts)) if counts else None


def _words(table: dict) -> str:
    return ", ".join(f"{key}={value}" for key, value in table.items()) or "no vision options"


def _tokens(count: int | None) -> str:
    return "vision tokens unknown" if count is None else f"{count} vision tokens for a typical clip"
