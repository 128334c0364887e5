"""What the words of the command line of build_spec do to a draft: profile, tuning, GPUs, model,
data, settings."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import shlex
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.remote import model_names
from cosmos_reason.rules import completion, placeholders
from cosmos_reason.rules.draft import (
    LORA,
    PROFILE,
    TEMPLATE,
    TRAIN_ROOT,
    TUNING,
    Draft,
    absolute,
    brief,
    located,
    part,
)
from cosmos_reason.rules.keys import (
    GRID,
    MINI_BATCH,
    SAVE,
    SAVE_EPOCHS,
    SHARD,
    VALIDATE,
    VALIDATE_EPOCHS,
    exclusive,
)
from cosmos_reason.rules.layout import SHARED_MEMORY, needs_all_gpus, standard_layout
from cosmos_reason.spec import actions, document, legal, names, own_paths, values
from cosmos_reason.spec.keys import BATCH, RATE, SHARED

# ---- recipes, tuning, GPUs -----------------------------------------------------------------------


def take_profile(draft: Draft, name: str) -> None:
    """Take what a published recipe sets; its source becomes part of each origin."""
    profiles = bundle.skill_info()["profiles"]
    fitting = [known for known, profile in profiles.items() if profile["action"] == draft.action]
    if name not in fitting:
        wanted = f"none: no {draft.action} has any"
        if fitting:
            wanted = f"one of {', '.join(fitting)} (--explain profiles)"
        message = f"got {values.shown(name)}, expected {wanted}.{f.did_you_mean(name, fitting)}"
        draft.refuse("SPEC-PROFILE", "--profile", message)
        return
    for key, value in profiles[name]["set"].items():
        if key == draft.params["model"]:
            value = model_names.canonical(value)
        # The source goes with each value: whoever reads the origins can look it up.
        draft.put(key, value, f"profile {name} ({profiles[name]['source']})")
        _give_way(draft, key)


def take_tuning(draft: Draft, tuning: str, rate_given: bool) -> None:
    """Add what is missing of the adapter table (`lora`), or remove it (`full`). Adapters want a
    higher learning rate than all weights do: it moves along, unless the user set it."""
    if draft.action not in actions.TRAINING:
        draft.not_for("--tuning", "it is for train and grpo specs")
        return
    was = "full" if document.get(draft.spec, LORA) is None else "lora"
    if tuning == "full":
        draft.name(LORA, "--tuning full")
        document.delete(draft.spec, LORA)
    else:
        for key, value in bundle.skill_info()["tuning"]["lora"][draft.action].items():
            if key.startswith(LORA) and document.get(draft.spec, key) is None:
                draft.put(key, value, "--tuning lora")
    if was == tuning or rate_given:
        return
    # A rate of all weights under adapters learns next to nothing, the other way round it diverges:
    # the one that suits the tuning is taken, unless an earlier spec's `--set` chose another.
    before = document.get(draft.spec, RATE)
    rates = {
        "full": document.get(document.template(draft.action), RATE),
        "lora": bundle.skill_info()["tuning"]["lora"][draft.action][RATE],
    }
    is_ours = draft.is_from(RATE, TEMPLATE, PROFILE, TUNING) or before in rates.values()
    if draft.is_from(RATE, "--set") or not is_ours:
        return
    draft.put(RATE, rates[tuning], f"--tuning {tuning}")
    suited = "adapters" if tuning == "lora" else "all weights"
    message = f"{value_text(before)} became {rates[tuning]}, which suits {suited}"
    draft.findings.append(f.info("SPEC-TUNING-RATE", RATE, message))


def take_gpus(draft: Draft, per_node: int | None, nodes: int | None) -> None:
    """Lay the run out over the GPUs, but for sizes that the command line sets."""
    is_asking = draft.action in ("evaluate", "inference") and (nodes is None or nodes <= 1)
    if draft.action not in actions.TRAINING and not is_asking:
        flag = "--gpus-per-node" if nodes is None else "--nodes"
        draft.not_for(flag, "it is for trainings and, on one node, for questions")
        return
    # One count is refused when the other cannot be taken for granted; the fix has that of the spec.
    before = _whole_number(draft.base, SHARD if draft.action in actions.TRAINING else "num_gpus")
    # The nodes of the standard layout that has as many replicas as the earlier spec.
    nodes_before = _whole_number(draft.base, GRID + "dp_replicate_size")
    if draft.action == "grpo" and document.get(draft.base, "mode") != SHARED:
        nodes_before *= _whole_number(draft.base, GRID + "n_init_replicas")
    counts = bundle.skill_info()["gpu_counts_per_node"]
    if per_node is None or (nodes is None and nodes_before != 1):
        message = "--gpus-per-node and --nodes go together: the layout depends on their product"
        per_node = per_node or (before if before in counts else 1)
        fix = Fix(flags={"--gpus-per-node": per_node, "--nodes": max(nodes or nodes_before, 1)})
        draft.refuse("SPEC-GPUS-PER-NODE", "--gpus-per-node", message, fix)
        return
    origin = " ".join(
        draft.flags[flag] for flag in ("--gpus-per-node", "--nodes") if flag in draft.flags
    )
    if nodes is None:
        nodes = 1
    # GRPO needs a second GPU for its rollouts, unless these share the policy's.
    is_shared = document.get(draft.spec, "mode") == SHARED  # by a profile or an earlier spec
    one_gpu = draft.action == "grpo" and per_node * nodes == 1
    if one_gpu and not is_shared and "mode" not in draft.named:
        draft.put("mode", SHARED, origin)
        memory = "rollout.gpu_memory_utilization"
        if memory not in draft.named:
            draft.put(memory, SHARED_MEMORY, origin)
        message = (
            "one GPU: policy and rollouts share it (rollout.gpu_memory_utilization is for vllm)"
        )
        draft.findings.append(f.info("SPEC-GPU-SHARED", "mode", message))
    model, lora = (document.get(draft.spec, key) for key in (draft.params["model"], LORA))
    replicates = not bundle.is_cosmos_rl(draft.engine) or not needs_all_gpus(model, lora)
    mode = str(document.get(draft.spec, "mode"))
    sizes = standard_layout(draft.action, per_node, nodes, mode, replicates)
    if per_node not in counts or nodes < 1:  # the launcher takes no others
        wanted = ", ".join(map(str, counts))
        message = f"got {nodes} nodes of {per_node} GPUs, expected nodes of {wanted}"
        largest = max([count for count in counts if count <= per_node], default=1)
        fix = Fix(flags={"--gpus-per-node": largest, "--nodes": max(nodes, 1)})
        draft.refuse("SPEC-GPUS-PER-NODE", "--gpus-per-node", message, fix)
        return
    for key, value in sizes.items():
        if not any(document.overlap(key, named) for named in draft.named):
            draft.put(key, value, origin)


def _whole_number(table: dict, key: str) -> int:
    value = document.get(table, key)
    return value if type(value) is int else 1


# ---- the batch of all GPUs ---------------------------------------------------------------------


def take_global_batch(draft: Draft, records: int, ranks: int) -> None:
    """Deal the records of an optimizer step to the data-parallel ranks. A forward pass that nobody
    chose takes so many of a rank's records that they can be taken in equal parts."""
    flag = draft.flags["--global-batch"]
    if draft.action != "train":
        draft.not_for("--global-batch", "it is for train specs")
        return
    if records < 1 or records % ranks:
        message = (
            f"got {records}, expected a multiple of the {ranks} data-parallel ranks, each of which "
            "takes as many records"
        )
        # A rank takes whole forward passes of the size that was chosen.
        step = ranks
        if MINI_BATCH in draft.named:
            step *= max(1, _whole_number(draft.spec, MINI_BATCH))
        fix = Fix(flags={"--global-batch": max(1, records // step) * step})
        draft.refuse("SPEC-GLOBAL-BATCH", "--global-batch", message, fix)
        return
    if not draft.name(BATCH, flag):
        return
    # The trainers count the records of one rank; a batch is a property of all of them together.
    each = records // ranks
    draft.put(BATCH, each, f"{flag} over {ranks} ranks")
    in_one_pass = _whole_number(draft.spec, MINI_BATCH)
    if MINI_BATCH not in draft.named and in_one_pass > 0 and each % in_one_pass:
        draft.put(MINI_BATCH, math.gcd(each, in_one_pass), flag)


# ---- model and data ------------------------------------------------------------------------------


def take_model(draft: Draft, written: str) -> None:
    model = model_names.canonical(written)
    key = draft.params["model"]
    if not draft.name(key, draft.flags["--model"]):
        return
    draft.put(key, model, "--model")
    # The family's own frames, pixels, length and layers with adapters, where nobody chose any.
    family = model_names.known_family(model)
    if family.defaults is None or "vision" not in draft.params:
        return
    vision = draft.params["vision"]
    chosen = {f"{vision}.nframes": family.defaults["nframes"]}
    chosen[f"{vision}.total_pixels"] = family.defaults["total_pixels"]
    limit, _ = actions.LENGTHS.get(draft.action, ("", ""))
    if limit and draft.action in actions.TRAINING:
        chosen[limit] = family.defaults["max_length"]
    if document.get(draft.spec, LORA):
        chosen[f"{LORA}.target_modules"] = [
            name.rpartition(".")[2] for name in family.decoder_layers
        ]
    for key, value in chosen.items():
        origin = draft.origins.get(key, TEMPLATE)
        if origin.startswith((TEMPLATE, TUNING)) and key in document.keys(draft.action):
            draft.put(key, value, origin)  # nobody chose it: a training's own values go before


def take_root(draft: Draft, flag: str, root: str) -> None:
    """Take a dataset root for its annotation file, `<root>/annotations.json` unless only another
    usual one is there, and for the place of the media: `<root>`, or the archive in it that holds
    them."""
    keys = draft.params.get(flag.removeprefix("--").replace("-", "_"))
    if not keys:
        roots = [name for name in ("train_root", "eval_root", "guard_root") if name in draft.params]
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in roots)
        draft.not_for(flag, f"its data are named with {flags}" if flags else "it has no dataset")
        return
    if not root.strip():
        message = "got an empty name, expected a folder or an s3:// prefix"
        draft.refuse("SPEC-ROOT", flag, message, f"drop {draft.flags[flag]}")
        return
    whole = absolute(root)
    annotation_path = f"{whole.rstrip('/')}/annotations.json"
    if os.path.isdir(whole):
        from cosmos_reason.data import annotations  # imports every reader of datasets

        annotation_path = str(annotations.locate(whole))
    media = _media_of_root(whole, annotation_path)
    for key, value in zip(keys, (annotation_path, media), strict=True):
        if draft.name(key, draft.flags[flag]):
            draft.put(key, value, flag)
    if flag == "--eval-root" and draft.action in actions.TRAINING:
        draft.put("validation.enable", True, flag)


def take_train_roots(draft: Draft, roots: list[str], output: str) -> None:
    """Take one root as it is; several, or a share of one, as one annotation file beside the spec,
    which is written with it. Raises Failure."""
    flag = TRAIN_ROOT
    parts = [part(root) for root in roots]
    keys = draft.params.get("train_root")
    if not keys or (len(parts) == 1 and parts[0].share == 1):
        take_root(draft, flag, roots[0])
        return
    from cosmos_reason.rules import mixture  # imports every reader of datasets

    # The trainers read one annotation file: several roots become one beside the spec.
    mixed = mixture.mix(parts)
    path = os.path.splitext(absolute(output))[0] + ".train_annotations.json"
    draft.files[path] = mixed.records
    for key, value in zip(keys, (path, mixed.media_path), strict=True):
        if draft.name(key, draft.flags[flag]):
            draft.put(key, value, f"{flag} {mixed.in_words}")


def _media_of_root(root: str, annotation_path: str) -> str:
    """Return the archive of a local root when its first medium is not in the root itself, or the
    media root that its annotations state, else the root. What is in S3 is looked at when it is
    fetched, and annotations that cannot be read are for check_dataset to report."""
    if not os.path.isfile(annotation_path):
        return root
    from cosmos_reason.data import annotations
    from cosmos_reason.data.json_stream import JsonRecords
    from cosmos_reason.data.record_checks import Tally
    from cosmos_reason.media import archives
    from cosmos_reason.media.files import resolve

    with contextlib.suppress(f.Failure):
        records = JsonRecords(annotation_path)
        with_media = (one for one in annotations.stream(records, Tally()) if one.media)
        sample = next(with_media, None)
        if records.header:  # what stands around the records may stand behind them
            deque(with_media, maxlen=0)
        stated = records.header.get("media_root")
        if isinstance(stated, str):
            return os.path.normpath(resolve(root, stated))
        if sample:
            first = sample.media[0]
            return archives.in_root(root, first.kind, first.path) or root
    return root


def look_for_paths(draft: Draft) -> None:
    """Warn of each input that this machine does not see: it may be there where the job runs."""
    missing = []
    for key, schema in document.keys(draft.action).items():
        path = document.get(draft.spec, key)
        is_input = schema.get("x-path") in ("input", "model")
        if not is_input or not isinstance(path, str) or not path.startswith("/"):
            continue
        is_told = any(found.startswith(path) for found in missing) or path in draft.files
        if not is_told and _warn_of_absence(draft, path):
            missing.append(path)


def _warn_of_absence(draft: Draft, path: str) -> bool:
    """Warn of a path that is not here, and return whether that was said."""
    if os.path.exists(path) or placeholders.is_placeholder(path, is_path=True):
        return False
    message = "not visible from this machine; fine if it is from where the job runs"
    draft.findings.append(f.warning("SPEC-PATH-NOT-HERE", path, message))
    return True


def locate_own_paths(draft: Draft) -> None:
    """Locate what a spec from elsewhere names below `custom` for a dataset script of its own, as
    every platform reads it; a warning for each that is not here."""
    if document.get(draft.spec, "custom.train_dataset"):
        return  # which our script reads, and nothing else below `custom`
    here, missing = own_paths.relative(draft.action, draft.spec, Path.cwd())
    for key, path in here.items():
        draft.put(key, path, draft.origins.get(key, "--spec"))
    for key in missing:
        message = "got a relative path with nothing there; a job works in a folder of its own"
        draft.findings.append(f.warning("SPEC-PATH-NOT-HERE", key, message))
    for path in own_paths.absolute(draft.action, draft.spec).values():
        _warn_of_absence(draft, path)


def complete(draft: Draft) -> None:
    """Write what a spec from elsewhere leaves out, but for what the command line says."""
    whole, found = completion.completed(draft.action, draft.spec, draft.named)
    for key, value in document.items(draft.action, whole):
        if document.get(draft.spec, key, document.MISSING) != value:
            draft.put(key, value, "not in the spec")
    for key, value in list(document.items(draft.action, draft.spec)):
        if value == "" and document.get(whole, key, document.MISSING) is document.MISSING:
            document.delete(draft.spec, key)
    draft.findings += found


# ---- settings ------------------------------------------------------------------------------------


def take_settings(draft: Draft, settings: list[str], unset: list[str], extra: list[str]) -> None:
    """Apply `--unset key` for a key or a table, then `--set key=value` with short names and TOML
    values. Keys in `extra` may be unknown: they are listed in the spec itself, so that later checks
    let them pass too."""
    # Fixes have to know what the flags replaced: `drop --set ...` gives that back.
    draft.base = copy.deepcopy(draft.spec)
    if extra:
        allowed = list(dict.fromkeys([*document.extra_keys(draft.spec), *extra]))
        draft.put("custom.extra_keys", allowed, "--allow-extra-key")
    for name in unset:
        key = names.full_name(draft.action, name)
        flag = f"--unset {shlex.quote(name)}"
        if key == LORA and draft.flags.get("--tuning") == "--tuning lora":
            draft.named[LORA] = "--tuning lora"  # which else lets its keys be set
        if draft.name(key, flag) and not document.delete(draft.spec, key):
            there = [known for known, _ in document.items(draft.action, draft.spec)]
            message = f"the spec has no such key.{f.did_you_mean(key, there)}"
            draft.refuse("SPEC-UNSET", key, message, f"drop {brief(flag)}")
    for setting in settings:
        name, equals, written = setting.partition("=")
        flag = f"--set {shlex.quote(setting)}"
        if not equals or not all(part.strip() for part in name.split(".")):
            message = "--set takes KEY=VALUE"
            draft.refuse("SPEC-SET", brief(setting), message, f"drop {brief(flag)}")
            continue
        name = name.strip()
        key = names.full_name(draft.action, name)
        schema = document.keys(draft.action).get(key, {})
        value = values.parse(schema, written)
        if not draft.name(key, flag):
            continue
        is_allowed = "." in key and key in extra
        is_theirs = legal.is_trainers_own(draft.action, key, value)
        if schema or is_allowed or is_theirs or names.is_free(draft.action, key):
            draft.put(key, located(draft, key, value), f"--set {name}")
            _give_way(draft, key)
        else:
            draft.findings += names.unknown_keys(draft.action, key, value)
    for key in extra:
        if "." not in key or document.get(draft.spec, key) is None:
            message = "--allow-extra-key takes a key in a table that --set or the spec sets"
            flag = f"--allow-extra-key {shlex.quote(key)}"
            draft.refuse("SPEC-FLAG", key, message, f"drop {brief(flag)}")


def take_changes(draft: Draft, changes: Mapping[str, object]) -> None:
    """Take the changes of a fix, as if `--unset` and `--set` had said them."""
    for key, value in changes.items():
        if value is None:
            draft.named[key] = f"--unset {key}"
            document.delete(draft.spec, key)
    for key, value in changes.items():
        if value is not None:
            draft.named[key] = f"--set {key}"
            draft.put(key, located(draft, key, value), f"--set {key}")
            _give_way(draft, key)


def _give_way(draft: Draft, key: str) -> None:
    """Take away the key that a new one excludes, unless it was asked for too."""
    other = exclusive(draft.action).get(key)
    if other and other not in draft.named:
        document.delete(draft.spec, other)
    for steps, epochs in ((SAVE, SAVE_EPOCHS), (VALIDATE, VALIDATE_EPOCHS)):  # which would win
        if key == steps and epochs not in draft.named:
            document.delete(draft.spec, epochs)
