"""Makes a spec from elsewhere one of ours: in our words, and with nothing that hurts left to the
trainer's defaults."""

from __future__ import annotations

import copy
from collections.abc import Collection

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.families import DEFAULT
from cosmos_reason.base.fix import value_text
from cosmos_reason.media import sampling
from cosmos_reason.remote import model_names
from cosmos_reason.rules.data import SPLIT, VALIDATION_DATA
from cosmos_reason.spec import actions, document, images, validation
from cosmos_reason.spec.keys import OF_GUIDES, TRAIN_ANNOTATIONS

POLICY_TYPE = "train.train_policy.type"
# Where the trainer's own default hurts: it is not written, and this is why.
HURTING = {
    "policy.parallelism.tp_size": "the trainer would share every layer between 2 GPUs",
    "train.compile": "the trainer would compile the model, which ends a run of a "
    f"{DEFAULT.title} model",
    "train.ckpt.enable_checkpoint": "the trainer would save nothing",
    "policy.model_name_or_path": "the trainer would take Qwen/Qwen2.5-VL-7B-Instruct",
    POLICY_TYPE: "without train.train_policy the trainer would take grpo",
}
TENTH = 0.1
SPLIT_OFF = "validation has no data, and the trainer splits off a tenth of the training data"
NO_SPLIT = "validation has no data, and our dataset script splits none off; --eval-root names some"
FRAMES = "no frames are given, and the processor would take 2 for each second of a clip"
# What the dataset scripts of the guides take where a spec says nothing.
GUIDES = "none is given, and the guides' own dataset scripts take that"
GUIDES_FPS = 1
SIZES = {"min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width"}
ONE_GPU = "the launcher counts -1 as one GPU"
COUNTED = ("policy.parallelism.dp_shard_size", "rollout.parallelism.dp_shard_size")


def completed(
    action: str, spec: dict, kept: Collection[str] = ()
) -> tuple[dict, list[findings.Finding]]:
    """Return a copy of `spec` in our words, in which nothing that must be written is left to the
    trainer, and what was written: an info about an image's keys and about the trainer's own
    defaults, a warning about each other value.

    Besides training only the results are completed: an evaluator's own folder is the job's here.
    Nothing is written over a key of `kept`, or beside a table that lacks its `type`, which the
    trainer refuses.
    """
    if actions.other_than(action, spec):
        return copy.deepcopy(spec), []
    whole, translations = images.translated(action, spec)
    # An empty text says nothing where a key that may be absent wants more than that.
    for key, schema in document.keys(action).items():
        is_needless = "default" not in schema and schema.get("minLength")
        if is_needless and document.get(whole, key) == "":
            document.delete(whole, key)
    if action not in actions.TRAINING:
        if not ("results_dir" in kept or "results_dir" in whole):
            whole["results_dir"] = ""
            message = "got no value, wrote an empty one: results go into the folder of the job"
            translations.append(findings.info("SPEC-COMPLETED", "results_dir", message))
        return whole, translations
    spec = copy.deepcopy(whole)
    kept = set(kept)
    if any(key not in document.keys(action) for key, _ in document.items(action, spec)):
        # A key that is only written wrong is told with its fix: nothing takes its place before.
        kept |= validation.brought_by_renamings(validation.validate(action, spec))
    template = document.template(action)
    found = []
    defaults = []
    for key, schema in _left_out(action, spec):
        if _is_kept(key, kept):
            continue
        value = document.get(template, key)
        if key in HURTING and not (key == POLICY_TYPE and action == "grpo"):
            found.append(_written(key, value, HURTING[key]))
        else:
            value = value if key == "train.output_dir" else schema.get("default", value)
            defaults.append(f"{key} = {value_text(value) or repr(value)}")
        document.set_value(whole, key, value)
    if defaults:
        message = f"got no value, wrote the trainer's own: {', '.join(defaults)}"
        found.insert(0, findings.info("SPEC-COMPLETED", "spec", message))
    found += _validation(action, whole, kept)
    found += _frames(action, whole, kept)
    for key in COUNTED:
        if document.get(whole, key) == -1:
            document.set_value(whole, key, 1)
            found.append(_written(key, 1, ONE_GPU, got="-1"))
    return whole, translations + found + _floor_of_pixels(action, whole, kept)


def _left_out(action: str, spec: dict) -> list[tuple[str, dict]]:
    """Return the keys without a value that the schema requires or whose default hurts, each with
    its schema, where a value can stand there and is no guess at what was meant."""
    written = document.by_key(spec)
    found = []
    for key, schema in document.keys(action).items():
        if key in written:
            continue
        if key != "train.ckpt.enable_checkpoint" and not _is_required(action, spec, key):
            continue
        is_sure = schema.get("default") is not None
        if key == POLICY_TYPE:
            is_sure = written.get(key.rpartition(".")[0]) is None
        if is_sure and _has_place(spec, key):
            found.append((key, schema))
    return found


def _is_required(action: str, spec: dict, key: str) -> bool:
    """Return whether the schema wants the key written, in a table that is there or is wanted
    too."""
    node = bundle.schema(action)
    table = spec
    for part in key.split("."):
        is_there = isinstance(table, dict) and part in table
        if part not in node.get("required", ()) and not is_there:
            return False
        node = node["properties"][part]
        table = table.get(part, {}) if isinstance(table, dict) else {}
    return True


def _validation(action: str, whole: dict, kept: Collection[str]) -> list[findings.Finding]:
    """Give validation that is on without data the trainer's own share of the training data; turn it
    off where our dataset script reads these, which splits nothing."""
    is_asked_for = _is_kept("validation", kept)
    is_on = document.get(whole, "validation.enable") is True
    has_data = any(document.get(whole, key) for key in VALIDATION_DATA)
    if not is_on or is_asked_for or has_data or _had_own_data(whole, kept):
        return []
    if document.get(whole, TRAIN_ANNOTATIONS):
        document.set_value(whole, "validation.enable", False)
        return [_written("validation.enable", False, NO_SPLIT, got="true")]
    is_split = document.get(whole, SPLIT) is not None
    is_split = is_split or _is_kept(SPLIT, kept)
    if action != "train" or is_split or not _has_place(whole, SPLIT):
        return []
    document.set_value(whole, SPLIT, TENTH)
    return [_written(SPLIT, TENTH, SPLIT_OFF)]


def _is_kept(key: str, kept: Collection[str]) -> bool:
    return any(document.overlap(key, name) for name in kept)


def _has_place(spec: dict, key: str) -> bool:
    """Return whether what stands around a key are tables."""
    parts = key.split(".")
    around = [".".join(parts[: count + 1]) for count in range(len(parts) - 1)]
    return all(isinstance(document.get(spec, name, {}), dict) for name in around)


def _frames(action: str, whole: dict, kept: Collection[str]) -> list[findings.Finding]:
    table = actions.places(action)["vision"]
    custom, vision = document.get(whole, "custom", {}), document.get(whole, table, {})
    if not isinstance(custom, dict) or not isinstance(vision, dict):
        return []
    if vision.keys() & {"nframes", "fps"} or any(document.overlap(table, key) for key in kept):
        return []
    # A spec for a dataset script of Cosmos-Reason's guides counts frames as that script does.
    name = document.get(whole, "train.train_policy.dataset.name")
    is_named = isinstance(name, str) and name.startswith("nvidia/Cosmos-Reason1-")
    if not is_named and not isinstance(document.get(whole, OF_GUIDES), dict):
        key = f"{table}.nframes"
        value = document.get(document.template(action), key)
        document.set_value(whole, key, value)
        return [_written(key, value, FRAMES)]
    values = {"fps": GUIDES_FPS}
    model = actions.model_of(whole)
    pixels = model_names.known_family(model).guide_pixels if isinstance(model, str) else 0
    if pixels and not vision.keys() & SIZES:
        values |= {"min_pixels": pixels, "max_pixels": pixels}
    found = []
    for name, value in values.items():
        document.set_value(whole, f"{table}.{name}", value)
        found.append(_written(f"{table}.{name}", value, GUIDES))
    return found


def _floor_of_pixels(action: str, whole: dict, kept: Collection[str]) -> list[findings.Finding]:
    """Return `min_pixels`, when it is left out and its default is above `max_pixels`: what another
    dataset script bears, and the processor of ours does not. In a spec that had data of ours it is
    an error, and where the command line names `max_pixels`."""
    if _had_own_data(whole, kept):
        return []
    table = actions.places(action)["vision"]
    vision = document.get(whole, table, {})
    key = f"{table}.min_pixels"
    is_sized = isinstance(vision, dict) and "resized_height" in vision
    largest = document.get(whole, f"{table}.max_pixels")
    is_named = key in kept or f"{table}.max_pixels" in kept
    if type(largest) is not int or is_sized or is_named or "min_pixels" in vision:
        return []
    model = actions.model_of(whole)
    named = model if isinstance(model, str) else ""
    patch = sampling.patch_size(named)
    family = model_names.known_family(named)
    options = sampling.VisionOptions(max_pixels=largest, family=family)
    conflict = sampling.pixel_conflict(options, patch, 2, "video")
    if not conflict or "min_pixels" not in conflict[1]:
        return []
    floor, least = conflict[0], conflict[1]["min_pixels"]
    document.set_value(whole, key, least)
    return [_written(key, least, f"its default, {floor}, is above max_pixels, {largest}")]


def _had_own_data(whole: dict, kept: Collection[str]) -> bool:
    """Return whether the spec names data of ours that the command line does not."""
    data = "custom.train_dataset"
    return document.get(whole, data) is not None and not _is_kept(data, kept)


def _written(key: str, value, reason: str, got: str = "no value") -> findings.Finding:
    message = f"got {got}, wrote {value_text(value)}: {reason}"
    return findings.warning("SPEC-COMPLETED-OTHERWISE", key, message)
