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


def compare(where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """Return what differs between stored `shapes` and the architecture of `config`: missing, extra,
    wrong shapes. Nothing for an architecture that is not known here.

    A loader fills a missing tensor with random numbers and says nothing, so this is checked here.
    """
    findings = check_config(where, config)
    if findings or config["model_type"] not in FAMILIES:
        return findings
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
