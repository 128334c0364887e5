"""LoRA adapters: read and checked, merged into their base model as one stream, or rewritten so that
PEFT loads them. Enter at `read`, then `merge` or `fix`."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, Finding, error, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import (
    made_of,
    safetensors_files,
    tensor_numbers,
    training_settings,
)
from cosmos_reason.checkpoints.safetensors_files import Copied, Tensor
from cosmos_reason.checkpoints.tensor_numbers import FLOATS

CONFIG, WEIGHTS = "adapter_config.json", made_of.ADAPTER_WEIGHTS
# Written by cosmos-rl into adapter_config.json; PEFT does not know them (its word for r_pattern is
# rank_pattern).
NOT_PEFT = ("lora_names", "lora_path", "primary_adapter", "r_pattern")
# How PEFT begins an adapter by taking a part out of the base: what it learns belongs to what is
# left of that, and added to the base itself the part counts twice. cosmos-rl knows the words and
# begins from zero whatever they say.
_TAKEN_FROM_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
# Of these PEFT takes the same part out again as it loads them (measured: logits differ by 5e-6);
# pissa_niter_N draws its part by chance.
_TAKEN_AGAIN = ("pissa", "olora")
# What says which base is meant: of a command, and of a spec.
BASE_FLAG = Fix(flags={"--base-model": "DIR"})
BASE_KEY = Fix(changes={"model.base_model_path": "DIR"})
_NOT_PLAIN = ("use_dora", "fan_in_fan_out", "alora_invocation_tokens")
_TIED = ("embed_tokens", "lm_head")
_PREFIX = "base_model.model."
_HALVES = ("A.weight", "B.weight", "A.default.weight", "B.default.weight")
_SMALL = {".json", ".jinja", ".txt", ".model"}
# What a model says of its own weights, and not of what was made of it.
OF_ITS_WEIGHTS = {
    safetensors_files.INDEX_NAME,
    "provenance.json",
    CONFIG,
    "quantization_config.json",
    training_settings.FILE,
    made_of.FILE,
}
# Of one step of the merge, so that it stays in the cache of a core: measured, 3 ns an element.
_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Adapter:
    """`pairs`: module name -> its lora_A [r, in] and lora_B [out, r]; `whole`: tensors that replace
    the base's."""

    folder: Path
    config: dict
    pairs: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return (out, in) of each adapted weight, by its name."""
        return {
            f"{module}.weight": (half_b.shape[0], half_a.shape[1])
            for module, (half_a, half_b) in self.pairs.items()
        }

    def scale(self, module: str) -> float:
        """Return alpha / r, or alpha / sqrt(r) with use_rslora. Raises Failure for an alpha that
        gives no number."""
        rank = self.pairs[module][0].shape[0]
        divisor = math.sqrt(rank) if self.config.get("use_rslora") else rank
        try:
            # Keys of alpha_pattern match as in PEFT and cosmos-rl.
            for key, stated in (self.config.get("alpha_pattern") or {}).items():
                if re.match(rf"(.*\.)?({key})$", module):
                    alpha = stated
                    break
            else:
                alpha = self.config["lora_alpha"]
            scale = alpha / divisor
            if not math.isfinite(scale):
                raise ArithmeticError(scale)
        except (KeyError, TypeError, AttributeError, ArithmeticError, re.error) as problem:
            finding = _unsupported(self.folder, f"the alpha of {module} ({problem!r})")
            raise Failure(finding, EXIT_CHECKS_FAILED) from None
        return scale


# -- reading and checking ----------------------------------------------------------------------


def read(folder: Path, for_peft: bool = False) -> Adapter:
    """Read an adapter, `for_peft` one that PEFT itself will load and add. Raises Failure with all
    that is wrong: a part missing, ranks that differ, kinds of adapter that are not LoRA."""
    config = safetensors_files.read_object(folder / CONFIG)
    findings = [_unsupported(folder, key) for key in _NOT_PLAIN if config.get(key)]
    begun = _taken_from_base(config)
    if begun and not (for_peft and begun in _TAKEN_AGAIN):
        message = (
            f"init_lora_weights {begun!r} took a part out of the base, which the adapter does "
            "not tell; save it with PEFT's path_initial_model_for_weight_conversion"
        )
        findings.append(error("CKPT-ADAPTER-UNSUPPORTED", folder / CONFIG, message))
    halves: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in safetensors_files.read_header(folder / WEIGHTS).items():
        module, _, part = name.removeprefix(_PREFIX).partition(".lora_")
        if part in _HALVES:
            halves.setdefault(module, {})[part[0]] = tensor
        elif part or "lora_" in name:
            findings.append(_unsupported(folder, f"the tensor {name}"))
        else:
            whole[module] = tensor
        if tensor.dtype not in FLOATS:
            findings.append(_unsupported(folder, f"{name} in {tensor.dtype}"))
    findings += _unpaired(folder, halves)
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    pairs = {module: (parts["A"], parts["B"]) for module, parts in halves.items()}
    return Adapter(folder, config, pairs, whole)


def _taken_from_base(config: Mapping) -> str:
    """Return the name of the way in which PEFT began an adapter with a part of its base; else
    ''."""
    begun = str(config.get("init_lora_weights")).lower()
    is_taken = begun.startswith(_TAKEN_FROM_BASE) and config.keys().isdisjoint(NOT_PEFT)
    return begun if is_taken else ""


def _unpaired(folder: Path, halves: Mapping[str, Mapping[str, Tensor]]) -> list[Finding]:
    """Return modules whose halves do not fit each other, or that there are none."""
    if not halves:
        message = "it holds no lora_A or lora_B tensors"
        return [error("CKPT-ADAPTER-EMPTY", folder, message)]
    findings = []
    for module, parts in halves.items():
        shapes = {part: tensor.shape for part, tensor in parts.items()}
        is_pair = shapes.keys() == {"A", "B"} and len(shapes["A"]) == 2
        if not is_pair or shapes["A"][:1] != shapes["B"][1:]:
            message = f"got {shapes} for {module}, expected A [r, in] and B [out, r]"
            findings.append(error("CKPT-ADAPTER-PAIR", folder / WEIGHTS, message))
    return findings


def not_finite(adapter: Adapter) -> list[Finding]:
    """Return CKPT-NOT-FINITE for an adapter of a training that diverged; reads each number. A half
    that is zero is what LoRA starts from."""
    tensors = dict(adapter.whole)
    for module, (half_a, half_b) in adapter.pairs.items():
        tensors[f"{module}.lora_A"] = half_a
        tensors[f"{module}.lora_B"] = half_b
    found = tensor_numbers.check_numbers(tensors, whole=True)
    return [finding for finding in found if finding.id == "CKPT-NOT-FINITE"]


def _unsupported(folder: Path, what: str) -> Finding:
    message = f"{what} is not plain LoRA on linear layers"
    return error("CKPT-ADAPTER-UNSUPPORTED", folder, message)


# -- a copy that PEFT loads --------------------------------------------------------------------


def peft_config(adapter: Adapter) -> dict:
    """Return its config as PEFT reads it: only fields that it knows, and none that are null, as
    cosmos-rl's alpha_pattern is. What decides which tensors find a place is as the tensors
    themselves tell: PEFT passes over those of a module that no target names in full."""
    ranks = {}
    for module, (half_a, _) in adapter.pairs.items():
        if half_a.shape[0] != adapter.config.get("r"):
            ranks[re.escape(module)] = half_a.shape[0]
    config = {}
    for key, value in adapter.config.items():
        if key not in NOT_PEFT and value is not None:
            config[key] = value
    return config | {
        "peft_type": "LORA",
        "rank_pattern": ranks,
        "target_modules": sorted(adapter.pairs),
        "target_parameters": None,  # whose tensors are as those of modules
        # A bias alone comes of `bias`, and of no module that was saved.
        "modules_to_save": sorted(
            {name.removesuffix(".weight") for name in adapter.whole if name.endswith(".weight")}
        )
        or None,
        # cosmos-rl only notes pissa and olora: PEFT would take them out of the base.
        "init_lora_weights": _taken_from_base(adapter.config) or True,
    }


def fix(adapter: Adapter, output: Path) -> None:
    """Write a copy that PEFT loads."""
    with files.only_run(output), files.whole_folder(output) as work:
        copy_beside(adapter.folder, work, leave={CONFIG})
        shutil.copyfile(adapter.folder / WEIGHTS, work / WEIGHTS)
        files.write_json(work / CONFIG, peft_config(adapter))


def copy_beside(source: Path, target: Path, leave: set[str] = OF_ITS_WEIGHTS) -> None:
    """Copy what stands beside the weights of a model, byte for byte: a config that transformers 5
    writes cannot be read by 4.57."""
    for path in source.iterdir():
        if path.suffix in _SMALL and path.name not in leave:
            shutil.copyfile(path, target / path.name)


# -- merging -----------------------------------------------------------------------------------


def merge(
    adapter: Adapter,
    base: Path,
    output: Path,
    jobs: int,
    copied: Copied = lambda count: None,
    other_base: Fix = BASE_FLAG,
) -> None:
    """Write the base with the adapter added as one model folder; memory stays small whatever the
    model's size.

    W + scale * B @ A is computed in float32 and rounded once to the base's dtype; other tensors are
    copied as bytes. Raises Failure: the base is damaged or another model (`other_base` says how to
    name the right one), or the disk is too small.
    """
    # `jobs` threads work already, each on its own file.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    tensors, findings = safetensors_files.read_folder(base)
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    refuse_other_base(adapter, base, tensors, other_base)
    changed = _changed(adapter, base, tensors)
    needed = sum(tensor.nbytes for tensor in tensors.values())
    with files.only_run(output), files.whole_folder(output) as work:
        free = shutil.disk_usage(work).free
        if needed > free:
            message = f"{free:,} bytes are free, {needed:,} are needed"
            raise outside("CKPT-DISK-FULL", output.parent, message)
        shards: dict[str, dict[str, Tensor]] = {}
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            shards.setdefault(tensor.file.name, {})[name] = changed.get(name, tensor)
        safetensors_files.copy_shards(work, shards, jobs, copied)
        weight_map = {name: file for file, names in shards.items() for name in names}
        safetensors_files.write_index(work, weight_map, needed)
        copy_beside(base, work)
        made_of.note_merge(work, adapter.folder, base)
        _, findings = safetensors_files.read_folder(work)
        if findings:
            raise Failure(findings, EXIT_CHECKS_FAILED)


def _changed(adapter: Adapter, base: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what takes the place of the base's tensors, by their names there. Raises Failure where
    one weight of them stands for two."""
    _refuse_tied(adapter, base)
    changed = {}
    for module, (half_a, half_b) in adapter.pairs.items():
        stored_name = _stored_name(f"{module}.weight", tensors)
        stored = tensors[stored_name]
        chunks = partial(_merged_chunks, half_a, half_b, adapter.scale(module), stored)
        changed[stored_name] = replace(stored, made=chunks)
    for name, tensor in adapter.whole.items():
        stored_name = _stored_name(name, tensors)
        stored = tensors[stored_name]
        chunks = partial(tensor_numbers.finite_chunks, tensor, stored.dtype)
        changed[stored_name] = replace(stored, made=chunks)
    return changed


def refuse_other_base(
    adapter: Adapter, base: Path, tensors: Mapping[str, Tensor], fix: Fix
) -> None:
    """Raise Failure unless the base has a weight of the right shape and kind for all of the
    adapter; `fix` names another base."""
    wanted = {name: tensor.shape for name, tensor in adapter.whole.items()} | adapter.shapes
    wrong = []
    dtypes = set()
    for name, shape in wanted.items():
        stored = tensors.get(_stored_name(name, tensors))
        if stored is None or stored.shape != shape:
            wrong.append(name)
        if stored is not None:
            dtypes.add(stored.dtype)
    findings = []
    if wrong:
        message = (
            f"{len(wrong)} of {len(wanted)} tensors of the adapter fit no weight of this base: "
            f"{', '.join(wrong[:3])}"
        )
        findings.append(error("CKPT-ADAPTER-OTHER-BASE", base, message, fix))
    trained_on = made_of.trained_on(adapter.folder)
    if not wrong and trained_on not in (None, made_of.digest_of(tensors)):
        message = (
            "its weights are not those that the adapter was trained on, though of the same shapes: "
            f"it is another model, or was changed since {adapter.folder / made_of.FILE} was "
            "written; without that file nothing tells"
        )
        findings.append(error("CKPT-ADAPTER-OTHER-BASE", base, message, fix))
    coarse = dtypes - FLOATS
    if coarse:
        message = (
            f"its weights are {', '.join(sorted(coarse))}, not one of {', '.join(sorted(FLOATS))}; "
            "merge into the unquantized base, then quantize"
        )
        findings.append(error("CKPT-QUANTIZED", base, message))
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)


def _refuse_tied(adapter: Adapter, base: Path) -> None:
    """Raise Failure where the adapter changes the embedding or the output head of a base that has
    one weight for both: PEFT trained one of them alone, and a merged model would change both."""
    if not safetensors_files.read_object(base / "config.json").get("tie_word_embeddings"):
        return
    modules = [*adapter.pairs, *(name.removesuffix(".weight") for name in adapter.whole)]
    one_of_both = [name for name in modules if name.rpartition(".")[2] in _TIED]
    if one_of_both:
        message = (
            f"the base has one weight for {' and '.join(_TIED)}, and the adapter changes "
            f"{', '.join(one_of_both)} alone, so that no merged model is the trained one; evaluate "
            "the adapter as it is, or train without it"
        )
        raise Failure(error("CKPT-ADAPTER-UNSUPPORTED", base, message), EXIT_CHECKS_FAILED)


def _stored_name(name: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the name under which a model stores a tensor: its own, or what a family stores it
    under."""
    if name in tensors:
        return name
    stored = [family.stored_name(name) for family in FAMILIES.values()]
    return next((one for one in stored if one in tensors), name)


def _merged_chunks(half_a: Tensor, half_b: Tensor, scale: float, base: Tensor) -> Iterator[bytes]:
    """Yield the merged weight, some rows at a time."""
    a = tensor_numbers.read_float32(half_a)
    b = tensor_numbers.read_float32(half_b)
    b *= scale
    rows, columns = base.shape
    step = max(1, _ELEMENTS // columns)
    first = 0
    for stored in safetensors_files.read_chunks(base, step * base.nbytes // rows):
        weight = tensor_numbers.to_float32(stored, base.dtype).reshape(-1, columns)
        weight += b[first : first + step] @ a
        first += step
        tensor_numbers.refuse_not_finite(weight, base.file)
        yield tensor_numbers.from_float32(weight, base.dtype)
