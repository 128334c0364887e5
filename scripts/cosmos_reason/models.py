"""Base model names: what people call them, what is written in a spec, and which architecture the trainer will see."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from cosmos_reason import bundle
from cosmos_reason import findings as f
from cosmos_reason.spec_values import shown

HUB = "hf_model://"
FOLDERS = {"models", "checkpoints", "data", "jobs", "results", "outputs"}  # of people, not organizations on the Hub
FAMILY_WORDS = {"qwen2.5": "qwen2_5_vl", "qwen2_5": "qwen2_5_vl", "reason1": "qwen2_5_vl"}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_PAGE = re.compile(r"^https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/tree/main)?/?$")


def canonical(written: str, flag: str = "--model") -> str:
    """`hf_model://ORG/NAME` for a Hub model, its web page or a spoken name; an absolute path for a local folder.

    Raises Failure (exit 2), naming the `flag` or spec key it was given with, for a name that is neither.
    """
    name = HUB_PAGE.sub(r"\1", written.strip()).removeprefix(HUB)
    local = Path(name).expanduser()
    if name and not written.startswith(HUB) and (os.path.isdir(local) or name.startswith(("/", "./", "../", "~"))):
        return str(local.absolute())
    aliases = {
        _plain(alias): model
        for model, facts in bundle.skill_info()["models"].items()
        for alias in (model, *facts["aliases"])
    }
    if _plain(name) in aliases:
        return HUB + aliases[_plain(name)]
    first, *rest = name.split("/")
    on_hub = written.startswith(HUB) or HUB_PAGE.match(written.strip())
    is_address = ":" in first or "." in first
    if not on_hub and not is_address and rest and (len(rest) > 1 or first in FOLDERS or os.path.isdir(first)):
        is_organization = HUB_NAME.fullmatch(name) and first not in FOLDERS  # with a folder of its name here
        meant = HUB + name if is_organization else str(local.absolute())
        message = f"got {shown(written)}, no folder here; expected one, or its absolute path where the job will run"
        also = f"; a Hub model is {HUB}{name}" if len(rest) == 1 else ""
        raise f.bad_input("SPEC-MODEL-NAME", flag, message + also, _flag(flag, meant))
    if HUB_NAME.fullmatch(name):
        return HUB + name
    close = [aliases[alias] for alias in f.nearest(_plain(name), aliases)] or [bundle.skill_info()["default_model"]]
    message = f"got {shown(written)}, expected hf_model://ORG/NAME, ORG/NAME, an existing folder or a known name."
    hint = f" Did you mean {', '.join(dict.fromkeys(close))}?"
    raise f.bad_input("SPEC-MODEL-NAME", flag, message + hint, _flag(flag, close[0]))


def _flag(flag: str, value: str) -> str:
    return shlex.join([flag, value] if flag.startswith("--") else ["--set", f"{flag}={value}"])


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


def meant_of_nvidia(name: str) -> list[str]:
    """The known models that a canonical name of NVIDIA's, which is none of them, may have meant; else empty."""
    known, repository = bundle.skill_info()["models"], name.removeprefix(HUB)
    ours = repository.startswith("nvidia/") and repository not in known
    return (f.nearest(repository, known) or [bundle.skill_info()["default_model"]]) if ours else []


def family(name: str) -> tuple[str | None, bool]:
    """(architecture, whether it is an unconverted Omni checkpoint) of a canonical name; (None, False) when unknown.

    For a local folder both come from its config.json; what is not here may tell its family by its name.
    """
    known = bundle.skill_info()["models"].get(name.removeprefix(HUB))
    if known:
        return known["family"], known["omni"]
    model_type = read_table(Path(name) / "config.json").get("model_type")
    if model_type is None and (told := next((word for word in FAMILY_WORDS if word in name.lower()), None)):
        model_type = FAMILY_WORDS[told]
    return ("qwen3_vl", True) if model_type == "cosmos3_omni" else (model_type, False)


def adapter_base(name: str) -> str:
    """The base model under the LoRA adapter in a local folder, "MODEL" when it is not told; empty without adapter."""
    config = Path(name) / "adapter_config.json"
    return read_table(config).get("base_model_name_or_path") or "MODEL" if os.path.isfile(config) else ""


def read_table(path: Path) -> dict:
    """Empty when it is not there or something else."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
