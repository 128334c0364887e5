"""The families of models, a module each: the only place that knows what differs between them.

`FAMILIES` maps the `model_type` of a config.json to a `Family`, `PUBLISHED` that of a published
layout which no loader of ours reads to a `Layout`, which says what it becomes by conversion.
`remote.model_names.known_family` finds the family of a model. Code asks a family for a fact and
never compares names (tests/base/test_families.py looks for them). Which models are published of
which family, and which engine and image takes it, are facts of a release: skill_info.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.base.families import cosmos3_omni, qwen2_5_vl, qwen3_vl
from cosmos_reason.base.families.family import Family, Geometry
from cosmos_reason.base.families.layout import Layout

__all__ = ["DEFAULT", "FAMILIES", "PUBLISHED", "Family", "Geometry", "Layout"]

# What a model is taken for whose name and folder tell nothing.
DEFAULT = qwen3_vl.FAMILY
FAMILIES = {one.model_type: one for one in (DEFAULT, qwen2_5_vl.FAMILY)}
PUBLISHED = {cosmos3_omni.LAYOUT.model_type: cosmos3_omni.LAYOUT}
OMNI = cosmos3_omni.LAYOUT  # what a checkpoint that is not here yet is taken for
# Published, and in no layout that is converted here: why.
WITHOUT_LAYOUT = {
    "cosmos3_edge": "Cosmos3 Edge (Nemotron with a SigLIP tower) has no Qwen3-VL form; convert a "
    "cosmos3_omni"
}
# Words in the name of a model that is not of the default family, and its model_type; the first that
# fits counts.
OTHER_WORDS = {
    word: family.model_type
    for family in FAMILIES.values()
    if family is not DEFAULT
    for word in family.words
}
OTHER_WORDS |= {"qwen2-vl": "qwen2_vl", "cosmos3-edge": "cosmos3_edge"}  # which have no module here


def layout_of(config: Mapping) -> Layout | None:
    """The published layout of a model with that config.json, None for one that loaders read."""
    model_type = config.get("model_type")
    return PUBLISHED.get(model_type) if isinstance(model_type, str) else None


def names_default(name: str) -> bool:
    """Whether the name of a model says that it is of the default family."""
    return any(word in name.lower() for word in DEFAULT.words)


def by_name(name: str) -> str | None:
    """The model_type that the name of a model tells, None when it tells none, or the default's,
    which is only assumed of a name."""
    for word, model_type in OTHER_WORDS.items():
        if word in name.lower():
            return model_type
    return None
