"""What the Hub tells of a model whose name tells no architecture, before anything is downloaded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cosmos_reason.base import bundle, families
from cosmos_reason.base.findings import ERROR, WARNING, Finding
from cosmos_reason.remote import model_names
from cosmos_reason.rules.draft import Draft
from cosmos_reason.rules.models import engine_for, has_script_of_guides
from cosmos_reason.spec import actions, document

if TYPE_CHECKING:
    from cosmos_reason.remote import hub

ASKED = ("evaluate", "inference")  # which a server may do with a model that the engine lacks


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
        if is_refused(architecture, draft.action, known):
            draft.findings.append(_unloadable(draft, key, architecture, known))


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


def _unloadable(
    draft: Draft, key: str, architecture: str | hub.NotTold, known: list[str]
) -> Finding:
    message = f"{in_words(architecture)}, expected what {draft.engine} loads: {', '.join(known)}"
    fix = engine_for(draft.action, architecture)
    if draft.action in ASKED:
        return Finding("SPEC-MODEL-FAMILY-ASKED", WARNING, key, message, fix)
    return Finding("SPEC-MODEL-FAMILY", ERROR, key, message, fix)
