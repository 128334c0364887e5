"""Base model names: what people call them, what is written in a spec, and which architecture the trainer will see."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cosmos_reason import bundle
from cosmos_reason import findings as f

HUB = "hf_model://"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def canonical(written: str) -> str:
    """`hf_model://ORG/NAME` for a Hub model or one of its spoken names, an absolute path for a local folder.

    Raises Failure (exit 2) for a name that is neither.
    """
    name = written.strip().removeprefix(HUB)
    local = Path(name).expanduser()
    if name and not written.startswith(HUB) and (local.is_dir() or name.startswith(("/", "./", "../", "~"))):
        return str(local.absolute())
    aliases = {
        _plain(alias): model
        for model, facts in bundle.skill_info()["models"].items()
        for alias in (model, *facts["aliases"])
    }
    if _plain(name) in aliases:
        return HUB + aliases[_plain(name)]
    if HUB_NAME.fullmatch(name):
        return HUB + name
    close = f.did_you_mean(name, bundle.skill_info()["models"]) or f.did_you_mean(_plain(name), aliases)
    message = f"got {written!r}, expected hf_model://ORG/NAME, ORG/NAME, an existing folder or a known name.{close}"
    raise f.bad_input("SPEC-MODEL-NAME", "--model", message, f"--model {bundle.skill_info()['default_model']}")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


def family(name: str) -> tuple[str | None, bool]:
    """(architecture, whether it is an unconverted Omni checkpoint) of a canonical name; (None, False) when unknown.

    For a local folder both come from its config.json.
    """
    known = bundle.skill_info()["models"].get(name.removeprefix(HUB))
    if known:
        return known["family"], known["omni"]
    try:
        model_type = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, False
    return ("qwen3_vl", True) if model_type == "cosmos3_omni" else (model_type, False)
