"""Rules about the model that is trained, asked or quantized, and what the Hub tells of one whose
name tells no architecture."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason.base import bundle, families
from cosmos_reason.base.findings import ERROR, WARNING, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import ANY, ASKED, JUDGED, LATER, TRAINING, Case, Rule
from cosmos_reason.rules.data import NAME_OF_GUIDES
from cosmos_reason.spec import actions, document
from cosmos_reason.spec.keys import OF_GUIDES, TRAIN_ANNOTATIONS

if TYPE_CHECKING:
    from cosmos_reason.remote import hub
    from cosmos_reason.rules.draft import Draft

MINIATURE = 100e6  # bytes
# What is said of the spec's model where another one answers: a server's, or checkpoints.
OF_LOADED_MODEL = frozenset({"SPEC-MODEL-FAMILY-ASKED", "SPEC-MODEL-ASSUMED"})


def convert(case: Case) -> Fix:
    return Fix(
        command="scripts/prepare_cosmos3_vlm_checkpoint.py",
        flags={"--checkpoint-path": case.model, "--output-path": "DIR"},
    )


def unloadable(case: Case) -> str:
    """Return the architecture of the model, or of the base of an adapter, that the engine does not
    load. A dataset script of somebody's own may hand cosmos-rl the media of any."""
    if case.has_own_data or has_script_of_guides(case.action, case.engine, case):
        return ""
    for name in ("model", "base"):
        key = case.params.get(name)
        model = case(key) if key else None
        family = model_names.family(model)[0] if model else None
        if family and family not in bundle.architectures(case.engine, case.action):
            return family
    return ""


def told_unloadable(case: Case) -> str:
    """Return `unloadable`, with NVIDIA's engine for it where there is one that we do not drive."""
    found = unloadable(case)
    elsewhere = families.FAMILIES[found].elsewhere if found in families.FAMILIES else ""
    return f"{found}, which NVIDIA trains with {elsewhere}" if elsewhere else found


def has_script_of_guides(action: str, engine: str, value: Callable[[str], object]) -> bool:
    """Return whether a training reads its data by the keys of a guide's dataset script, not by
    ours; `value` gives those of its keys."""
    if not bundle.is_cosmos_rl(engine) or action not in actions.TRAINING:
        return False
    ours, theirs, name = value(TRAIN_ANNOTATIONS), value(OF_GUIDES), value(NAME_OF_GUIDES)
    return bool(theirs or name) and not ours


def engine_for(action: str, architecture: object) -> Fix:
    """Return an engine that has the action and loads the architecture, if there is one."""
    for engine, facts in bundle.skill_info()["engines"].items():
        runs = facts.get("runs", facts["actions"])
        if action in runs and architecture in bundle.architectures(engine, action):
            return Fix(flags={"--engine": engine})
    return Fix()


def miniature(case: Case):
    base = case.params.get("base")
    whole = (case(base) if base else "") or case.model
    if not whole.startswith("/"):
        return None
    size = sum(path.stat().st_size for path in Path(whole).glob("*.safetensors"))
    return f"{size / 1e6:.1f} MB of weights" if 0 < size < MINIATURE else None


def assumed(case: Case) -> bool | str:
    """Return whether tokens and memory are counted for an architecture that nothing tells; words
    where a config.json tells one that is not known here."""
    base = case.params.get("base")
    whole = (case(base) if base else "") or case.adapter_base or case.model
    architecture, _ = model_names.family(whole)
    if architecture:
        is_refused = architecture not in bundle.architectures(case.engine, case.action)
        if architecture in families.FAMILIES or is_refused:
            return False
        return f"of the architecture {architecture}"
    is_looked_at = whole == "MODEL" or os.path.isdir(whole)  # by those who open models
    return not (families.names_default(whole) or is_looked_at)


# ---- what the Hub tells, before anything is downloaded -------------------------------------------


def refuse_unloadable(draft: Draft) -> None:
    """Refuse each model that the engine does not load, by its config.json there. A Hub that does
    not answer leaves it to the rules, which say what they assume."""
    value = functools.partial(document.get, draft.spec)
    if has_script_of_guides(draft.action, draft.engine, value):
        return
    known = bundle.architectures(draft.engine, draft.action)
    for key in filter(None, (draft.params["model"], draft.params.get("base"))):
        model = document.get(draft.spec, key)
        is_on_hub = isinstance(model, str) and model.startswith(model_names.HUB)
        if not is_on_hub or model_names.family(model)[0] or families.names_default(model):
            continue
        from cosmos_reason.remote import hub  # few models have to be asked about

        architecture = hub.architecture(model.removeprefix(model_names.HUB), hub.token())
        if not is_refused(architecture, draft.action, known):
            continue
        name, severity = "SPEC-MODEL-FAMILY", ERROR
        if draft.action in JUDGED:
            name, severity = "SPEC-MODEL-FAMILY-ASKED", WARNING
        message = in_words(architecture)
        message += f", expected what {draft.engine} loads: {', '.join(known)}"
        fix = engine_for(draft.action, architecture)
        draft.findings.append(Finding(name, severity, key, message, fix))


def is_refused(architecture: str | hub.NotTold, action: str, known: list[str]) -> bool:
    """Return whether an engine that loads the `known` architectures cannot do an action with a
    model of which the Hub told this. What is trained is a whole model; all else may be done with an
    adapter, which needs no config.json."""
    from cosmos_reason.remote import hub

    if architecture is hub.NotTold.UNKNOWN:
        return False
    if architecture is hub.NotTold.ABSENT:
        return action in actions.TRAINING
    return architecture not in known


def in_words(architecture: str | hub.NotTold) -> str:
    from cosmos_reason.remote import hub

    if isinstance(architecture, hub.NotTold):
        return architecture.value
    return f"its config.json tells {architecture}"


RULES = (
    # A name may still be converted before the launch, which takes the folder in its place; a folder
    # that is here is what would be loaded.
    Rule(
        "SPEC-MODEL-OMNI", LATER, ANY, "{model}",
        "an Omni checkpoint; launch with its converted folder as --model",
        lambda case: case.omni and not case.model.startswith("/"), fix=convert,
    ),
    Rule(
        "SPEC-MODEL-OMNI-LOCAL", ERROR, ANY, "{model}",
        "an Omni checkpoint, which no engine here loads; convert it first",
        lambda case: case.omni and case.model.startswith("/"), fix=convert,
    ),
    Rule(
        "SPEC-MODEL-FAMILY", ERROR, "train grpo quantize", "{model}",
        "an architecture that this engine does not load",
        told_unloadable,
        fix=lambda case: engine_for(case.action, unloadable(case)),
    ),
    # A server loads its model by itself, whatever engine asks it.
    Rule(
        "SPEC-MODEL-FAMILY-ASKED", LATER, "evaluate inference", "{model}",
        "an architecture that this engine does not load; "
        "a server may (launch_job.py --endpoint URL)",
        told_unloadable,
        fix=lambda case: engine_for(case.action, unloadable(case)),
    ),
    Rule(
        "SPEC-MODEL-MINIATURE", ASKED, ANY, "--model",
        "a miniature, as the demo trains: its answers, memory and time say nothing about a real "
        "model",
        miniature,
    ),
    Rule(
        "SPEC-MODEL-ASSUMED", WARNING, ANY, "{model}",
        f"taken for {families.DEFAULT.title}, whose tokens are counted; a name with one of "
        f"{', '.join(families.OTHER_WORDS)} in it, or the model's config.json in that folder here, "
        "says otherwise",
        assumed,
    ),
    Rule(
        "SPEC-MODEL-UNKNOWN", WARNING, ANY, "{model}", "a name that this version does not know",
        lambda case: model_names.is_unknown_of_nvidia(case.model),
    ),
    Rule(
        "SPEC-MODEL-UNPROVEN", WARNING, ANY, "{model}", "it has never run here",
        lambda case: ("base" in case.params
        and model_names.unproven(case(case.params["base"]) or ""))
        or model_names.unproven(case.model),
    ),
    # A trainer would look for the weights of a whole model in its folder.
    Rule(
        "SPEC-MODEL-ADAPTER", ERROR, TRAINING, "{model}",
        "a LoRA adapter; training starts from a whole model",
        lambda case: bool(case.adapter_base)
        and f"select_checkpoint.py {shlex.quote(case.model)} --merge DIR makes it",
    ),
)  # fmt: skip
