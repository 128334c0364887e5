"""The families of models, a module each: the only place that knows what differs between them.

`FAMILIES` maps the `model_type` of a config.json to a `Family`, `PUBLISHED` that of a published
layout which no loader of ours reads to a `Layout`, which says what it becomes by conversion.
`remote.model_names.known_family` finds the family of a model. Code asks a family for a fact and
never compares names (tests/base/test_families.py looks for them). Which models are published of
which family, and which engine and image takes it, are facts of a release: skill_info.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.base.families import cosmos3_edge, cosmos3_omni, qwen2_5_vl, qwen3_vl
from cosmos_reason.base.families.family import Family, Geometry, Layout

__all__ = ["DEFAULT", "FAMILIES", "PUBLISHED", "Family", "Geometry", "Layout"]

# The parts of a model, in every family.
PARTS = (TEXT, TOWER, MERGER, ADAPTERS) = ("text", "tower", "merger", "adapters")

# What a model is taken for whose name and folder tell nothing.
DEFAULT = qwen3_vl.FAMILY
FAMILIES = {one.model_type: one for one in (DEFAULT, qwen2_5_vl.FAMILY, cosmos3_edge.FAMILY)}
PUBLISHED = {one.model_type: one for one in (cosmos3_omni.LAYOUT, cosmos3_edge.LAYOUT)}
OMNI = cosmos3_omni.LAYOUT  # what a checkpoint that is not here yet is taken for
# Words in the name of a model that is not of the default family, and its model_type; the first that
# fits counts.
OTHER_WORDS = {
    word: family.model_type
    for family in FAMILIES.values()
    if family is not DEFAULT
    for word in family.words
}
OTHER_WORDS |= {"qwen2-vl": "qwen2_vl"}  # which has no module here


def layout_of(config: Mapping) -> Layout | None:
    """Return the published layout of a model with that config.json, None for one that loaders read.
    Where a layout goes by the name of its family, only what is published lets weights lie in
    folders."""
    model_type = config.get("model_type")
    layout = PUBLISHED.get(model_type) if isinstance(model_type, str) else None
    if layout and model_type in FAMILIES and "allow_patterns_overrides" not in config:
        return None
    return layout


def names_default(name: str) -> bool:
    """Return whether the name of a model says that it is of the default family."""
    return any(word in name.lower() for word in DEFAULT.words)


def by_name(name: str) -> str | None:
    """Return the model_type that the name of a model tells, None when it tells none, or the
    default's, which is only assumed of a name."""
    for word, model_type in OTHER_WORDS.items():
        if word in name.lower():
            return model_type
    return None


def part_of(name: str) -> str:
    """Return the part of a model that a parameter is of, by its name in the class."""
    if "lora_" in name:
        return ADAPTERS
    if "merger" in name or "projector" in name:
        return MERGER
    return TOWER if "visual." in name else TEXT
