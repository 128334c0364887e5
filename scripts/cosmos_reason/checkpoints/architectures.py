"""Whether the stored tensors are those of an architecture: their names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure, Finding, error
from cosmos_reason.checkpoints import safetensors_files

# What stands in a prompt for media, by whose number the model knows it.
TOKEN_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def read_config(folder: Path) -> dict:
    """Return the config.json of a model. Raises Failure (exit 2) for one that names no
    architecture, and for one of ours that lacks what describes it."""
    path = folder / "config.json"
    config = safetensors_files.read_object(path)
    found = check_config(str(path), config)
    without = [key for key in TOKEN_IDS if type(config.get(key)) is not int]
    if without and not found and config["model_type"] in FAMILIES:
        message = f"the config has no whole number as {', '.join(without)}"
        found = [error("CKPT-CONFIG-PARTIAL", path, message)]
    if found:
        raise Failure(found, EXIT_BAD_INPUT)
    return config


def check_config(where: str, config: Mapping) -> list[Finding]:
    """Return what a config lacks, or has without sense."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        message = f"got the model_type {model_type!r} in the config, expected a non-empty string"
        return [error("CKPT-CONFIG-BAD", where, message)]
    if other := _other_class(config):
        message = (
            f"the config is of {model_type}, and names the class {other}: one of them is wrong"
        )
        return [error("CKPT-CONFIG-BAD", where, message)]
    if model_type not in FAMILIES:
        return []
    try:
        FAMILIES[model_type].expected_tensors(config)
    except KeyError as problem:
        message = f"the config of {model_type} lacks {problem}"
        return [error("CKPT-CONFIG-PARTIAL", where, message)]
    except (TypeError, ValueError, AttributeError) as problem:
        return [error("CKPT-CONFIG-BAD", where, f"the config has {problem}")]
    return []


def _other_class(config: Mapping) -> str:
    """Return the class that a config names where it is not that of its model_type; '' where it
    fits, where none is named, and where neither is known here."""
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        return ""
    model_type = config["model_type"]
    classes = {family.model_class: one for one, family in FAMILIES.items()}
    if model_type in FAMILIES:
        fits = FAMILIES[model_type].model_class in named
    else:
        fits = not any(isinstance(one, str) and one in classes for one in named)
    return "" if fits else str(named[0])[:80]


def compare(where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """Return what differs between stored `shapes` and the architecture of `config`: missing, extra,
    wrong shapes. Of an architecture that is not known here only what no config may lack: a vision
    part for a vision tower, and the sizes of the embedding.

    A loader fills a missing tensor with random numbers and says nothing, so this is checked here.
    """
    findings = check_config(where, config)
    if findings:
        return findings
    if config["model_type"] not in FAMILIES:
        return _compare_unknown(where, config, shapes)
    family = FAMILIES[config["model_type"]]
    shapes = {family.stored_name(name): shape for name, shape in shapes.items()}
    expected = family.expected_tensors(config)
    counts = f"got {len(shapes)} tensors, expected {len(expected)}"
    missing = sorted(expected.keys() - shapes.keys())
    if missing:
        message = f"{counts}: {len(missing)} are missing ({', '.join(missing[:3])})"
        findings.append(error("CKPT-TENSOR-MISSING", where, message, names=missing[:1000]))
    optional = {"lm_head.weight"} if config.get("tie_word_embeddings", False) else set()
    extra = sorted(shapes.keys() - expected.keys() - optional)
    if extra:
        message = (
            f"{counts}: {len(extra)} do not belong to the architecture ({', '.join(extra[:3])})"
        )
        findings.append(error("CKPT-TENSOR-EXTRA", where, message, names=extra[:1000]))
    known = sorted(expected.keys() & shapes.keys())
    wrong = [name for name in known if tuple(shapes[name]) != expected[name]]
    if wrong:
        some = "; ".join(
            f"{name} {list(shapes[name])}, expected {list(expected[name])}" for name in wrong[:3]
        )
        message = f"{len(wrong)} shapes are wrong: {some}"
        findings.append(error("CKPT-TENSOR-SHAPE", where, message, names=wrong[:1000]))
    return findings


def _compare_unknown(
    where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]
) -> list[Finding]:
    model_type = config["model_type"]
    tower = next((name for name in sorted(shapes) if "visual." in name), "")
    if tower and not isinstance(config.get("vision_config"), dict):
        message = f"the config of {model_type} describes no vision tower, and {tower} is of one"
        return [error("CKPT-CONFIG-BAD", where, message)]
    text = config.get("text_config", config)
    expected = tuple(text.get(key) for key in ("vocab_size", "hidden_size"))
    for name, shape in shapes.items():
        is_known = all(type(size) is int for size in expected) and len(shape) == 2
        if name.endswith("embed_tokens.weight") and is_known and shape != expected:
            message = f"the config of {model_type} says {list(expected)} for {name} {list(shape)}"
            return [error("CKPT-CONFIG-BAD", where, message)]
    return []


def compare_adapter(
    where: str, config: Mapping, shapes: Mapping[str, tuple[int, int]]
) -> list[Finding]:
    """Return what is wrong with a config of the model that an adapter is for: `shapes` has (out,
    in) of each adapted layer, by the name of its weight. One that describes only a part contradicts
    nothing: an adapter is loaded with the config of its base."""
    findings = check_config(where, config)
    if findings or config["model_type"] not in FAMILIES:
        return [one for one in findings if one.id != "CKPT-CONFIG-PARTIAL"]
    family = FAMILIES[config["model_type"]]
    expected = family.expected_tensors(config)
    wrong = []
    for name, shape in shapes.items():
        there = expected.get(family.stored_name(name))
        if there is None or (len(there) == 2 and there != shape):
            wrong.append(f"{name} {list(shape)}")
    if wrong:
        message = (
            f"{len(wrong)} of {len(shapes)} adapted layers are none of the {family.title} that the "
            f"config describes: {', '.join(wrong[:3])}"
        )
        findings.append(error("CKPT-ADAPTER-OTHER-BASE", where, message))
    return findings
