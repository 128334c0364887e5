"""All rules that cross keys, dataset and hardware: what no schema can say and trainers find out
hours later.

They stand in modules by subject, in the order in which they are listed and checked. What is checked
elsewhere, and what cannot be decided from a spec, is in spec_checks.yaml.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.rules import (
    adapters,
    checkpoints,
    data,
    evaluation,
    layout,
    lengths,
    models,
    reinforcement,
    steps,
    vision,
)
from cosmos_reason.rules.case import LATER

__all__ = ["LATER", "RULES", "other_checks"]

RULES = (
    *models.RULES,
    *layout.RULES,
    *steps.RULES,
    *checkpoints.RULES,
    *data.RULES,
    *adapters.RULES,
    *vision.RULES,
    *lengths.RULES,
    *reinforcement.RULES,
    *evaluation.RULES,
)


def other_checks() -> dict[str, dict[str, str]]:
    """Return `checks`: id -> reason of what is checked besides the rules; `merged`: former id ->
    its successor; `elsewhere`: what no spec tells -> who looks."""
    import yaml

    return yaml.safe_load(Path(__file__).with_name("spec_checks.yaml").read_text(encoding="utf-8"))
