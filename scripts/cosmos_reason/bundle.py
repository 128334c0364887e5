"""The bundle this library was installed with: its folder, skill_info.yaml, schemas and templates."""

from __future__ import annotations

import functools
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "schemas"
ACTIONS = ("train", "grpo", "evaluate", "inference", "quantize")
ENGINES = ("tao", "cosmos-rl", "transformers")


@functools.cache
def skill_info() -> dict:
    import yaml

    return yaml.load((ROOT / "skill_info.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@functools.cache
def schema(name: str) -> dict:
    """`name` is an action or one of our own outputs ("finding", "job", "results", ...)."""
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def template_path(action: str) -> Path:
    return ROOT / "references" / f"spec_template_{action}.yaml"
