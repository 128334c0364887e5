"""Base model names: what people call them, what is written in a spec, and which architecture the
trainer will see."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from cosmos_reason.base import bundle, families, findings, site
from cosmos_reason.base.families import DEFAULT, FAMILIES, Family
from cosmos_reason.base.findings import Failure
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec.actions import HUB_NAME
from cosmos_reason.spec.values import shown

HUB = "hf_model://"
# First parts of relative paths that people write; none is an organization on the Hub.
FOLDERS = {"models", "checkpoints", "data", "jobs", "results", "outputs"}
HUB_PAGE = re.compile(
    r"^https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:/tree/main)?/?$"
)
DATASET_PAGE = re.compile(
    r"^(?:hf:/+|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)datasets/"
    r"([^/?#]+/[^/?#]+)(?:/tree/main)?/?$"
)


def dataset(written: str) -> str:
    """Return ORG/NAME[@COMMIT] of a dataset's address on the Hub; other names as they are."""
    return DATASET_PAGE.sub(r"\1", written)


def may_be_dataset(written: str) -> bool:
    """Return whether what is no file here reads like a dataset of the Hub rather than a path."""
    name = dataset(written).partition("@")[0]
    if not HUB_NAME.fullmatch(name) or os.path.splitext(name)[1]:
        return False
    return not _looks_like_a_missing_folder(name)


def canonical(written: str, flag: str = "--model") -> str:
    """Return `hf_model://ORG/NAME` for a Hub model, its web page or a spoken name; an absolute path
    for a local folder. Raises Failure (exit 2), naming the `flag` or spec key it was given with,
    for a name that is neither."""
    name = HUB_PAGE.sub(r"\1", written.strip()).removeprefix(HUB)
    local = Path(name).expanduser()
    is_path = os.path.isdir(local) or name.startswith(("/", "./", "../", "~"))
    if name and is_path and not written.startswith(HUB):
        return str(local.absolute())
    aliases = {}  # plain names and aliases -> the known model
    for model, facts in published().items():
        aliases |= {_plain(alias): model for alias in (model, *facts["aliases"])}
    if _plain(name) in aliases:
        return HUB + aliases[_plain(name)]
    says_hub = written.startswith(HUB) or HUB_PAGE.match(written.strip())
    if not says_hub and os.path.isfile(local):
        message = f"got {shown(written)}, which is a file; expected the folder of a model"
        around = local.absolute().parent
        meant = str(around) if (around / "config.json").is_file() else "DIR"
        raise findings.bad_input("SPEC-MODEL-NAME", flag, message, _given_as(flag, meant))
    if not says_hub and _looks_like_a_missing_folder(name):
        message = f"got {shown(written)}, no folder here; expected one, or its absolute path "
        message += "where the job will run"
        if name.count("/") == 1:
            message += f"; a Hub model is {HUB}{name}"
        # An organization may have a folder of its name here.
        is_organization = HUB_NAME.fullmatch(name) and name.split("/")[0] not in FOLDERS
        meant = HUB + name if is_organization else str(local.absolute())
        raise findings.bad_input("SPEC-MODEL-NAME", flag, message, _given_as(flag, meant))
    if HUB_NAME.fullmatch(name):
        return HUB + name
    raise _unknown_name(written, name, aliases, flag)


def published() -> dict[str, dict]:
    """Return the facts of each model that NVIDIA is known to publish."""
    return bundle.skill_info()["models"]


def _looks_like_a_missing_folder(name: str) -> bool:
    """Return whether a name reads like a relative path rather than ORG/NAME or an address: it has
    more than one slash, or begins with a folder of this place or a name that people give to
    folders."""
    first, *rest = name.split("/")
    is_address = ":" in first or "." in first
    if is_address or not rest:
        return False
    return len(rest) > 1 or first in FOLDERS or os.path.isdir(first)


def _unknown_name(written: str, name: str, aliases: dict[str, str], flag: str) -> Failure:
    close = {aliases[alias] for alias in findings.misspelt(_plain(name), aliases)}
    message = (
        f"got {shown(written)}, expected hf_model://ORG/NAME, ORG/NAME, an existing folder or a "
        "known name"
    )
    if len(close) != 1:
        return findings.bad_input("SPEC-MODEL-NAME", flag, message)
    (meant,) = close
    message += f". Did you mean {meant}?"
    # One of its sizes is the alias of a family: which was meant, only who wrote the name knows.
    names_size = all(digits in written for digits in re.findall(r"\d+", meant))
    fix = _given_as(flag, meant) if names_size else ""
    return findings.bad_input("SPEC-MODEL-NAME", flag, message, fix)


def _given_as(flag: str, value: str) -> Fix:
    """Return the fix that gives another value with the flag or spec key."""
    if flag.startswith("--"):
        return Fix(flags={flag: value})
    return Fix(changes={flag: value})


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


def is_unknown_of_nvidia(name: str) -> bool:
    """Return whether a canonical name is of NVIDIA's and of no model that is known here."""
    repository = name.removeprefix(HUB)
    return repository.startswith("nvidia/") and repository not in published()


def unproven(name: str) -> str:
    """Return what nobody here has seen of a known model; "" where it was run."""
    named = site.MODELS.get(name, name.removeprefix(HUB))
    facts = bundle.skill_info()["models"].get(named, {})
    return " ".join(facts.get("unproven", "").split())


def family(name: str) -> tuple[str | None, bool]:
    """Return (architecture, whether it is an unconverted Omni checkpoint) of a canonical name;
    (None, False) when unknown.

    For a local folder both come from its config.json; what is not here may tell its family by its
    name.
    """
    known = published().get(name.removeprefix(HUB))
    if known:
        return known["family"], known["omni"]
    declared = published().get(site.MODELS.get(name, ""))
    if declared:  # as the engine is to load it: converted where it is published as Omni
        return declared["family"], False
    config = read_table(Path(name) / "config.json")
    layout = families.layout_of(config)
    if layout:
        return layout.family.model_type, True
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        model_type = families.by_name(name)
    return model_type, False


def positions(name: str) -> int | None:
    """Return the longest sequence that a known model, or one in a local folder, has positions
    for."""
    known = bundle.skill_info()["models"].get(site.MODELS.get(name, name.removeprefix(HUB)))
    if known:
        return known.get("positions")
    config = read_table(Path(name) / "config.json")
    text = config.get("text_config")
    told = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return told if type(told) is int else None


def known_family(name: str) -> Family:
    """Return the family of a model; the default one, which most are of, for a model that is not
    known."""
    return FAMILIES.get(family(name)[0], DEFAULT)


def adapter_base(name: str) -> str:
    """Return the base model under the LoRA adapter in a local folder, "MODEL" when it is not told;
    empty without adapter."""
    config = Path(name) / "adapter_config.json"
    if not os.path.isfile(config):
        return ""
    return read_table(config).get("base_model_name_or_path") or "MODEL"


def read_table(path: Path) -> dict:
    """Return a JSON object; empty when the file is not there or holds something else."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
