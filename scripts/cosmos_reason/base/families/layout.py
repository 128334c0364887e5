"""What a module of a published layout says: `Layout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cosmos_reason.base.families.family import Family


@dataclass(frozen=True)
class Layout:
    """A published layout that becomes a model of `family` by renaming and leaving out tensors.

    `target_name` gives the name under which the family stores a tensor, None for one that is left
    out; it raises KeyError for a name that it does not know. `config` makes the family's config of
    the published one and of the dtype of the weights; it raises KeyError for one that lacks a key.
    `vision` begins the names of the vision tower in the family. `donors` names, by the width of the
    language model, what can supply what an export lacks, the smallest first; `suffix` is what a
    folder of the result is called by. A change of the rules has a new `version`.
    """

    model_type: str
    title: str
    family: Family
    version: int
    vision: str
    donors: Mapping[int, str]
    suffix: str
    target_name: Callable[[str], str | None]
    config: Callable[[Mapping, str], dict]
