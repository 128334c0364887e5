"""Rules about the parameters that are trained: frozen ones, and LoRA adapters."""

from __future__ import annotations

import re
from pathlib import Path

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import ERROR, INFO, WARNING, Failure
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import TRAINING, Case, Rule
from cosmos_reason.rules.keys import GRID
from cosmos_reason.rules.layout import moved_to_shards
from cosmos_reason.spec.keys import BASE_PRECISION
from cosmos_reason.spec.values import shown

FEATURES = "custom.transformers_engine.feature_cache_gib"
FREEZE, TRAIN = "policy.freeze_pattern", "policy.trainable_pattern"
# Where an adapter can be, in a model of any family.
LAYERS = " ".join(name for family in FAMILIES.values() for name in family.linear_layers)
# The number of a layer stands between dots, first, or last after the list's name. Others are parts
# of names: linear_fc1, merger.mlp.2.
LAYER_NUMBER = re.compile(
    r"(?<![^.])\d+(?=\.)|(?<=layers\.)\d+$|(?<=blocks\.)\d+$|(?<=_list\.)\d+$"
)

PEFT_NAME = re.compile(r"lora|base_|modules_to_save|default")  # parts of what PEFT calls its own


def bad_patterns(patterns: list[str] | None) -> str:
    """Return the patterns that Python's re refuses, as the trainer would."""
    wrong = []
    for pattern in patterns or []:
        try:
            re.compile(pattern)
        except re.error:
            wrong.append(shown(pattern))
    return ", ".join(wrong)


def idle_patterns(case: Case, key: str) -> str:
    """Return the patterns that are in no parameter's name, of a model whose names are known here:
    they have no effect, and more or less is trained than was meant. What adapters are called is
    known when they are made."""
    patterns = [] if bad_patterns(case(key)) else case(key) or []
    family = FAMILIES.get(model_names.family(case.model)[0])
    if not patterns or case.omni or family is None or not Path(case.model).is_dir():
        return ""
    from cosmos_reason.checkpoints import safetensors_files  # few specs have patterns

    try:
        stored, _ = safetensors_files.read_folder(Path(case.model))
    except Failure:  # of a model that is no whole one
        return ""
    names = {family.class_name(one) for one in stored}
    if case.is_wrapped:  # the class is then an attribute `model` of cosmos-rl's own
        names |= {f"model.{name}" for name in names}
    if case("policy.lora"):
        patterns = [one for one in patterns if not PEFT_NAME.search(one)]
    idle = [shown(one) for one in patterns if not family.meant(one, names)]
    parts = sorted({".".join(name.split(".")[:2]) for name in family.linear_layers})
    return f"{', '.join(idle)}; names begin with {', '.join(parts)}" if idle else ""


def all_adapters_are_frozen(case: Case) -> bool:
    """Return whether patterns freeze the adapters of every layer that the spec names. Says no where
    something else is trained, or the family is not known."""
    patterns = [] if bad_patterns(case(FREEZE)) else case(FREEZE) or []
    family = FAMILIES.get(model_names.family(case.model)[0])
    entries = targets(case)
    if not patterns or not entries or family is None or case("policy.lora.modules_to_save"):
        return False
    if isinstance(entries, str):  # all-linear
        layers = [name for name in family.linear_layers if name != "lm_head"]
    else:
        entries = [LAYER_NUMBER.sub("0", entry) for entry in entries]
        layers = [
            name for name in family.linear_layers
            if any(family.has_target(entry, name) for entry in entries)
        ]  # fmt: skip
    # More layers than a model has: what is said of all of them is true of those that are there.
    adapters = {
        f"{LAYER_NUMBER.sub(str(number), layer)}.lora_A.default.weight"
        for layer in layers
        for number in range(100)
    }
    frozen = set().union(*(family.meant(one, adapters) for one in patterns))
    return bool(adapters) and adapters == frozen


def targets(case: Case) -> list[str] | str:
    """Return the layers that get adapters: entries of a list, or one word for a group of layers."""
    return (case("policy.lora") and case("policy.lora.target_modules")) or []


def is_part_of_a_layer(case: Case, entry: str) -> bool:
    """Return whether an entry is part of the name of a layer of the model, or of any family where
    that is not known."""
    family = FAMILIES.get(model_names.family(case.model)[0])
    layers = " ".join(family.linear_layers) if family else LAYERS
    return " " not in entry and LAYER_NUMBER.sub("0", entry) in layers


def adapters_to_be_merged(case: Case):
    entries = targets(case)
    if isinstance(entries, str):
        entries = [entries]
    unserved = ("visual", "lm_head", "embed", "all-linear", "qkv")
    return "proj" in entries or any(name in entry for entry in entries for name in unserved)


RULES = (
    # The trainer's config class takes one of the two, and ends with both.
    Rule(
        "SPEC-FREEZE", ERROR, TRAINING, TRAIN, "freeze_pattern is written too; keep one",
        lambda case: case(FREEZE) and case(TRAIN), fix=Fix(changes={TRAIN: None}),
    ),
    Rule(
        "SPEC-FEATURES-TRAINED", ERROR, "train", FEATURES,
        "features are kept of a vision tower that is frozen, and all weights are trained",
        lambda case: not case("policy.lora") and not case(FREEZE) and not case(TRAIN)
        and case(FEATURES),
        fix=0,
    ),
    Rule(
        "SPEC-FP8-FULL", ERROR, "train", BASE_PRECISION,
        "a base is frozen under adapters only (--tuning lora), and all weights are trained",
        lambda case: case(BASE_PRECISION) == "fp8" and case.is_read(BASE_PRECISION)
        and not case("policy.lora"),
        fix=Fix(changes={BASE_PRECISION: None}),
    ),
    Rule(
        "SPEC-FP8-BASE", ERROR, "train", BASE_PRECISION, "the model is quantized already",
        lambda case: case(BASE_PRECISION) == "fp8" and bool(
            model_names.read_table(Path(case.model) / "config.json").get("quantization_config")
        ),
        fix=Fix(changes={BASE_PRECISION: None}),
    ),
    *(
        Rule(
            "SPEC-PATTERN", ERROR, TRAINING, key, "no regular expression",
            lambda case, key=key: bad_patterns(case(key)), fix=Fix(changes={key: None}),
        )
        for key in (FREEZE, TRAIN)
    ),
    *(
        Rule(
            "SPEC-PATTERN-NOTHING", WARNING, TRAINING, key,
            "in the name of no parameter",
            lambda case, key=key: idle_patterns(case, key),
        )
        for key in (FREEZE, TRAIN)
    ),
    Rule(
        "SPEC-NOTHING-TRAINABLE", ERROR, "train", FREEZE,
        "it freezes the adapters of every layer that target_modules names; the base below them is "
        "frozen without it",
        lambda case: case.engine == "transformers" and all_adapters_are_frozen(case),
        fix=Fix(changes={FREEZE: None}),
    ),
    # cosmos-rl applies it after the adapters: what matches is trained whole, and adapters that do
    # not match are frozen.
    Rule(
        "SPEC-TRAINABLE-LORA", ERROR, TRAINING, TRAIN,
        "adapters are trained, where target_modules puts them; modules_to_save names what is "
        "trained whole beside them",
        lambda case: case("policy.lora") and case(TRAIN), fix=Fix(changes={TRAIN: None}),
    ),
    # An entry is part of a layer's whole name: q_proj is of the language model alone, whose
    # vision tower says qkv. No match at all ends the run once the model is loaded.
    Rule(
        "SPEC-LORA-LAYERS", ERROR, TRAINING, "policy.lora.target_modules",
        "part of no layer's name",
        lambda case: isinstance(targets(case), list) and ", ".join(
            shown(entry) for entry in targets(case) if not is_part_of_a_layer(case, entry)
        ),
        fix=lambda case: [
            entry for entry in targets(case) if is_part_of_a_layer(case, entry)
        ] or "all-linear",
    ),
    Rule(
        "SPEC-LORA-MERGE", INFO, TRAINING, "policy.lora.target_modules",
        "vLLM loads no adapter on these layers; serve the merged model (select_checkpoint.py "
        "--merge makes it)",
        adapters_to_be_merged,
    ),
    Rule(
        "SPEC-LORA-GRPO-TP", ERROR, "grpo", GRID + "tp_size", "LoRA needs tp_size 1",
        lambda case: case("policy.lora") and case("policy.parallelism.tp_size") > 1,
        fix=moved_to_shards("tp_size"),
    ),
    Rule(
        "SPEC-LORA-GRPO-COMPILE", ERROR, "grpo", "train.compile", "LoRA needs compile false",
        lambda case: case("policy.lora") and case("train.compile"),
        fix=False,
    ),
)  # fmt: skip
