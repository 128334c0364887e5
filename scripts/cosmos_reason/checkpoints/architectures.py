"""Whether the stored tensors are those of an architecture: their names and shapes."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.base.findings import Finding, error
from cosmos_reason.checkpoints import qwen2_5_vl, qwen3_vl

# What lists the tensors of a model_type: the `expected_tensors` of a config, by the `stored_name`
# of each.
ARCHITECTURES = {"qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl}


def compare(where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """What differs between stored `shapes` and the architecture of `config`: missing, extra, wrong
    shapes. Nothing for an architecture that is not known here.

    A loader fills a missing tensor with random numbers and says nothing, so this is checked here.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str | None):
        message = f"got the model_type {model_type!r} in the config, expected a text"
        return [error("CKPT-CONFIG-BAD", where, message)]
    if model_type not in ARCHITECTURES:
        return []
    return _differences(where, config, shapes)


def _differences(
    where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]
) -> list[Finding]:
    """`compare`, for an architecture that is known."""
    architecture = ARCHITECTURES[config["model_type"]]
    shapes = {architecture.stored_name(name): shape for name, shape in shapes.items()}
    try:
        expected = architecture.expected_tensors(config)
    except KeyError as problem:
        message = f"got no {problem} in the config, expected all of {config['model_type']}"
        return [error("CKPT-CONFIG-PARTIAL", where, message)]
    except (TypeError, ValueError) as problem:
        return [error("CKPT-CONFIG-BAD", where, f"got a config with {problem}")]
    findings = []
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
        message = f"got {len(wrong)} wrong shapes: {some}"
        findings.append(error("CKPT-TENSOR-SHAPE", where, message, names=wrong[:1000]))
    return findings
