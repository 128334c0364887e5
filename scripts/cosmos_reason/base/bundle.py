"""The bundle this library was installed with: its folder, skill_info.yaml, schemas and
templates."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path

from cosmos_reason.base.findings import outside

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "schemas"
ACTIONS = ("train", "grpo", "evaluate", "inference", "quantize")
WANDB = "wandb==0.31.0"  # what the embedded engine reports to Weights & Biases with
ENGINES = ("tao", "cosmos-rl", "transformers")
ENGINE_PACKAGES = "requirements-engine.txt"
# A module that the lean environment lacks -> what `make` sets up to have it.
TARGETS = {
    "boto3": "setup-s3",
    "botocore": "setup-s3",
    "optuna": "setup-search",
    "sacrebleu": "setup-text",
    "rouge_score": "setup-text",
    "llmcompressor": "setup-quantize",
}


@functools.cache
def skill_info() -> dict:
    import yaml

    return yaml.load(
        (ROOT / "skill_info.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
    )


def is_cosmos_rl(engine: str) -> bool:
    """Return whether an engine trains with cosmos-rl, in NVIDIA's image or beside it."""
    return skill_info()["engines"].get(engine, {}).get("trains_with") == "cosmos-rl"


def architectures(engine: str, action: str) -> list[str]:
    """Return the model_type of each model that an engine loads for an action."""
    facts = skill_info()["engines"][engine]
    return facts["actions"].get(action, {}).get("architectures", facts["architectures"])


def project() -> Path:
    """Return the folder that the skill was installed into (as DIR/.claude/skills/NAME), unless it
    is the user's home; else the skill's own."""
    for parent in ROOT.parents:
        if parent.name.startswith("."):
            return ROOT if parent.parent == Path.home().resolve() else parent.parent
    return ROOT


def schema_path(name: str) -> Path:
    return SCHEMAS / f"{name}.schema.json"


@functools.cache
def schema(name: str) -> dict:
    """Return a schema: `name` is an action or one of our own outputs ("finding", "job", "results",
    ...). Raises Failure (exit 3) for a file that the installation lacks."""
    path = schema_path(name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = "got no such file, expected all of the skill"
        raise outside("BUNDLE-INCOMPLETE", path, message, restoring(path)) from None


def restoring(path: Path) -> str:
    """Return how to get a file of this bundle back."""
    if (ROOT / ".git").exists():
        return shlex.join(["git", "-C", str(ROOT), "checkout", "--", str(path.relative_to(ROOT))])
    return "install the skill again"


def target_of(module: str) -> str:
    """Return the target of `make` that installs a module."""
    engine = (ROOT / ENGINE_PACKAGES).read_text(encoding="utf-8")
    return TARGETS.get(module) or ("setup" if f"\n{module}==" in engine else "tools")


def template_path(action: str) -> Path:
    return ROOT / "references" / f"spec_template_{action}.yaml"
