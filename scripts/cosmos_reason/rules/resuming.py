"""Whether a training can continue from the checkpoint that it is to continue from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import GRID, POLICY_GPUS, RANKS_OF_REPLICA
from cosmos_reason.spec import document
from cosmos_reason.spec import values as spec_values
from cosmos_reason.spec.keys import BATCH, DROP_LAST

RANK, LAYERS = "policy.lora.r", "policy.lora.target_modules"
MODEL = "policy.model_name_or_path"
# What the update of an adapter is multiplied by: with another the model would jump.
SCALES = ("policy.lora.lora_alpha", "policy.lora.use_rslora")
# What decides which records a step takes, beside how many.
ORDER = ("train.train_policy.dataloader_seed", "train.train_policy.dataloader_shuffle", DROP_LAST)


def resumed_otherwise(case: Case) -> list[f.Finding]:
    """Return errors about a checkpoint of another engine, or of a run laid out otherwise."""
    # The embedded engine alone writes this file into a state.
    by_embedded_engine = (case.resumed / "trainer_state.json").is_file()
    if by_embedded_engine == case.cosmos:
        other = "the embedded engine" if by_embedded_engine else "cosmos-rl"
        message = f"got a folder saved by {other}, expected one that engine {case.engine} saved"
        fix = Fix(changes={"train.resume": False})
        if by_embedded_engine:
            fix = Fix(flags={"--engine": "transformers"})
        return [f.error("SPEC-RESUME-OTHER", "train.resume", message, fix)]
    saved = model_names.read_table(case.resumed / "cosmos_config")
    found = []
    for finding in differences(case.full, saved, case.cosmos):
        if finding.where.startswith(GRID) and case.gpus and not case.launch:
            # Where the command line names other GPUs than the earlier run had, the fix names those.
            changes = finding.fix.changes
            per_node = math.prod(changes.get(key, case(key)) for key in POLICY_GPUS) // case.nodes
            if per_node != case.gpus_per_node:
                fix = replace(finding.fix, flags={"--gpus-per-node": per_node})
                finding = replace(finding, fix=fix)
        found.append(finding)
    return found


def differences(now: dict, saved: dict, cosmos: bool) -> list[f.Finding]:
    """Return an error for adapters, and on cosmos-rl for sizes of the layout, that are not those of
    the run to resume; a warning for what deals other records to the steps that are left, and for
    adapters of another base."""
    found = []
    ours, theirs = _tuning(now), _tuning(saved)
    if ours != theirs:
        message = f"got {ours}, but the run to resume has {theirs}"
        kept = {key: document.get(saved, key) for key in (RANK, LAYERS, *SCALES)}
        changes = {key: value for key, value in kept.items() if value} if theirs == "lora" else {}
        fix = Fix(flags={"--tuning": theirs}, changes=changes)
        found.append(f.error("SPEC-RESUME-OTHER", "policy.lora", message, fix))
    if ours == theirs == "lora":
        layers, before = document.get(now, LAYERS), document.get(saved, LAYERS)
        as_sets = [{one} if isinstance(one, str) else set(one or ()) for one in (layers, before)]
        if before and as_sets[0] != as_sets[1]:  # the state has no adapters for others
            got = f"got {spec_values.shown(layers)}"
            message = f"{got}, but the run to resume has {spec_values.shown(before)}"
            fix = Fix(changes={LAYERS: before})
            found.append(f.error("SPEC-RESUME-OTHER", LAYERS, message, fix))
        found += _other_numbers(now, saved, (RANK,))
        for key in SCALES:
            value, before = _value(now, key), _value(saved, key)
            if before not in (None, value):
                message = f"got {spec_values.shown(value)}, but the adapters to resume were "
                message += f"trained with {spec_values.shown(before)}"
                found.append(f.error("SPEC-RESUME-OTHER", key, message, Fix(changes={key: before})))
        base, before = (_value(table, MODEL) for table in (now, saved))
        # It may lie elsewhere by now.
        if isinstance(before, str) and before and Path(before).name != Path(base).name:
            message = f"got {base}, but the adapters to resume were trained on {before}; they "
            message += "change the answers of no other model as they learned to"
            found.append(f.warning("SPEC-RESUME-OTHER", MODEL, message))
    if cosmos:
        found += _other_numbers(now, saved, POLICY_GPUS)
    return found if f.has_errors(found) else found + _dealt_otherwise(now, saved)


def _value(table: dict, key: str):
    """Return a value of a training, the trainer's default where the table does not have it; None
    where that is a part of what a trainer writes, which does not tell."""
    is_whole = document.get(table, BATCH) is not None
    default = document.keys("train")[key].get("default") if is_whole else None
    return document.get(table, key, default)


def _dealt_otherwise(now: dict, saved: dict) -> list[f.Finding]:
    """Return a warning where the steps that are left of an epoch would take some records once more,
    and others not at all."""
    if _value(saved, BATCH) is None or _value(now, "train.train_policy.type") == "grpo":
        return []
    changed = [key for key in ORDER if _value(now, key) != _value(saved, key)]
    steps = []
    for table in (now, saved):
        sizes = [_value(table, key) for key in (BATCH, *RANKS_OF_REPLICA)]
        is_known = all(type(size) is int and size > 0 for size in sizes)
        steps.append(math.prod(sizes) if is_known else None)
    if None in steps:  # a size of -1 takes the GPUs that are there
        steps = []
    if not changed and len(set(steps)) < 2:
        return []
    ways = []
    for number, table in enumerate((now, saved)):
        words = [f"{steps[number]} records a step"] if steps else []
        for key in changed:
            words.append(f"{key.rpartition('.')[2]} {spec_values.shown(_value(table, key))}")
        ways.append(", ".join(words))
    message = f"got {ways[0]}, but the run to resume has {ways[1]}: an epoch "
    message += "resumed midway would show some records twice and others not at all"
    fix = Fix(changes={key: _value(saved, key) for key in changed})
    if len(set(steps)) == 2:
        fix |= Fix(flags={"--global-batch": steps[1]})
    return [f.warning("SPEC-RESUME-DEALT", changed[0] if changed else BATCH, message, fix)]


def _other_numbers(now: dict, saved: dict, keys: tuple[str, ...]) -> list[f.Finding]:
    """Return one error about the numbers that differ: sizes of a layout fit only together."""
    changes = {}
    for key in keys:
        before = document.get(saved, key)
        if type(before) is int and before > 0 and before != document.get(now, key):
            changes[key] = before
    if not changes:
        return []
    ours = [spec_values.shown(document.get(now, key)) for key in changes]
    theirs = [str(before) for before in changes.values()]
    # A single number needs no name: the finding points at its key.
    if len(changes) > 1:
        names = [key.rpartition(".")[2] for key in changes]
        ours = [f"{name} {value}" for name, value in zip(names, ours, strict=True)]
        theirs = [f"{name} {value}" for name, value in zip(names, theirs, strict=True)]
    message = f"got {', '.join(ours)}, but the run to resume has {', '.join(theirs)}"
    return [f.error("SPEC-RESUME-OTHER", next(iter(changes)), message, Fix(changes=changes))]


def _tuning(table: dict) -> str:
    return "lora" if document.get(table, "policy.lora") else "full"
