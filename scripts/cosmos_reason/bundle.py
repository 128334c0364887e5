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


def image_issue(name: str) -> tuple[str, str] | None:
    """What is known against an image, and an image that nothing is known against."""
    images = skill_info()["images"]
    sound = next((other for other, facts in images.items() if "known_issue" not in facts), name)
    issue = images.get(name, {}).get("known_issue")
    return (issue, sound) if issue else None


@functools.cache
def schema(name: str) -> dict:
    """`name` is an action or one of our own outputs ("finding", "job", "results", ...)."""
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def template_path(action: str) -> Path:
    return ROOT / "references" / f"spec_template_{action}.yaml"
