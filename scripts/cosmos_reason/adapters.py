"""LoRA adapters: read and checked, merged into their base model as one stream, or rewritten so that PEFT loads them."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cosmos_reason import safetensors_files, storage
from cosmos_reason.findings import EXIT_CHECKS_FAILED, Failure, Finding, error, outside
from cosmos_reason.safetensors_files import FLOATS, Copied, Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Written by cosmos-rl into adapter_config.json; PEFT does not know them (its word for r_pattern is rank_pattern).
NOT_PEFT = ("lora_names", "lora_path", "primary_adapter", "r_pattern")
_PREFIX = "base_model.model."
_SMALL = {".json", ".jinja", ".txt"}
_NOT_OF_THE_RESULT = {safetensors_files.INDEX_NAME, "provenance.json", CONFIG, "quantization_config.json"}
_ELEMENTS = 1 << 16  # of one step of the merge, so that it stays in the cache of a core: measured, 3 ns an element


@dataclass(frozen=True)
class Adapter:
    """`pairs`: module name -> its lora_A [r, in] and lora_B [out, r]; `whole`: tensors that replace the base's."""

    folder: Path
    config: dict
    pairs: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]

    def scale(self, module: str) -> float:
        """alpha / r, or alpha / sqrt(r) with use_rslora; alpha_pattern keys are matched as PEFT and cosmos-rl do."""
        rank = self.pairs[module][0].shape[0]
        divisor = math.sqrt(rank) if self.config.get("use_rslora") else rank
        try:
            patterns = self.config.get("alpha_pattern") or {}
            alphas = (alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
            if math.isfinite(scale := next(alphas, self.config["lora_alpha"]) / divisor):
                return scale
            raise ArithmeticError(scale)
        except (KeyError, TypeError, AttributeError, ArithmeticError, re.error) as problem:
            finding = _unsupported(self.folder, f"{problem!r} for the alpha of {module}")
            raise Failure(finding, EXIT_CHECKS_FAILED) from None


def read(folder: Path) -> Adapter:
    """Raises Failure with all that is wrong: a part missing, ranks that differ, kinds of adapter that are not LoRA."""
    config = safetensors_files.read_object(folder / CONFIG)
    halves: dict[str, dict[str, Tensor]] = {}
    whole, findings = {}, [_unsupported(folder, key) for key in ("use_dora", "fan_in_fan_out") if config.get(key)]
    for name, tensor in safetensors_files.read_header(folder / WEIGHTS).items():
        module, _, part = name.removeprefix(_PREFIX).partition(".lora_")
        if part in ("A.weight", "B.weight", "A.default.weight", "B.default.weight"):
            halves.setdefault(module, {})[part[0]] = tensor
        elif part or "lora_" in name:
            findings.append(_unsupported(folder, f"the tensor {name}"))
        else:
            whole[module] = tensor
        if tensor.dtype not in FLOATS:
            findings.append(_unsupported(folder, f"{name} in {tensor.dtype}"))
    for module, parts in halves.items():
        shapes = {part: tensor.shape for part, tensor in parts.items()}
        if set(parts) != {"A", "B"} or len(shapes["A"]) != 2 or shapes["A"][:1] != shapes["B"][1:]:
            message = f"got {shapes} for {module}, expected A [r, in] and B [out, r]"
            findings.append(error("CKPT-ADAPTER-PAIR", folder / WEIGHTS, message))
    if not halves:
        findings.append(error("CKPT-ADAPTER-EMPTY", folder, "got no lora_A or lora_B tensors, expected some"))
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    return Adapter(folder, config, {module: (parts["A"], parts["B"]) for module, parts in halves.items()}, whole)


def not_finite(adapter: Adapter) -> list[Finding]:
    """Read every number of it: CKPT-NOT-FINITE for an adapter of a training that diverged."""
    try:
        for tensor in (*adapter.whole.values(), *(half for pair in adapter.pairs.values() for half in pair)):
            for _ in safetensors_files.finite_chunks(tensor, tensor.dtype):
                pass
    except Failure as failure:
        return failure.findings
    return []


def _unsupported(folder: Path, what: str) -> Finding:
    return error("CKPT-ADAPTER-UNSUPPORTED", folder, f"got {what}, expected plain LoRA on linear layers")


def fix(adapter: Adapter, output: Path) -> None:
    """Write a copy that PEFT loads: only fields it knows, and the modules by their names instead of parts of them."""
    config = {key: value for key, value in adapter.config.items() if key not in NOT_PEFT and value is not None}
    ranks = {module: pair[0].shape[0] for module, pair in adapter.pairs.items()}
    config["rank_pattern"] = {re.escape(m): rank for m, rank in ranks.items() if rank != config.get("r")}
    config["target_modules"] = sorted(adapter.pairs)
    config["modules_to_save"] = sorted({name.rpartition(".")[0] for name in adapter.whole}) or None
    config["peft_type"] = "LORA"
    config["init_lora_weights"] = True  # pissa and olora would change the base again when it is loaded
    with storage.only_run(output), storage.whole_folder(output) as work:
        _copy_small(adapter.folder, work, leave={CONFIG})
        shutil.copyfile(adapter.folder / WEIGHTS, work / WEIGHTS)
        storage.write_json(work / CONFIG, config)


def merge(adapter: Adapter, base: Path, output: Path, jobs: int, copied: Copied = lambda count: None) -> None:
    """Write the base with the adapter added as one model folder; memory stays small whatever the model's size.

    W + scale * B @ A is computed in float32 and rounded once to the base's dtype; other tensors are copied as bytes.
    Raises Failure: the base is damaged or another model, or the disk is too small.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # `jobs` threads work already, each on its own file
    tensors, findings = safetensors_files.read_folder(base)
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    changed = _changed(adapter, base, tensors)
    needed = sum(tensor.nbytes for tensor in tensors.values())
    with storage.only_run(output), storage.whole_folder(output) as work:
        if needed > (free := shutil.disk_usage(work).free):
            raise outside("CKPT-DISK-FULL", output.parent, f"got {free:,} bytes free, expected {needed:,}")
        shards: dict[str, dict[str, Tensor]] = {}
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            shards.setdefault(tensor.file.name, {})[name] = changed.get(name, tensor)
        safetensors_files.copy_shards(work, shards, jobs, copied)
        weight_map = {name: file for file, names in shards.items() for name in names}
        safetensors_files.write_index(work, weight_map, needed)
        _copy_small(base, work, leave=_NOT_OF_THE_RESULT)
        if findings := safetensors_files.read_folder(work)[1]:
            raise Failure(findings, EXIT_CHECKS_FAILED)


def _copy_small(source: Path, target: Path, leave: set[str]) -> None:
    for path in source.iterdir():
        if path.suffix in _SMALL and path.name not in leave:
            shutil.copyfile(path, target / path.name)


def _changed(adapter: Adapter, base: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What takes the place of the base's tensors. Raises Failure where the adapter does not fit them."""
    wanted = {name: tensor.shape for name, tensor in adapter.whole.items()}
    wanted |= {f"{module}.weight": (b.shape[0], a.shape[1]) for module, (a, b) in adapter.pairs.items()}
    stored = {name: tensors[where] for name in wanted if (where := _stored_name(name, tensors)) in tensors}
    wrong = [name for name, shape in wanted.items() if name not in stored or stored[name].shape != shape]
    findings = []
    if wrong:
        message = f"got no weight of the right shape for {len(wrong)} of {len(wanted)}: {', '.join(wrong[:3])}"
        findings.append(error("CKPT-ADAPTER-OTHER-BASE", base, message, "--base-model DIR"))
    if coarse := {tensor.dtype for tensor in stored.values()} - FLOATS:
        message = f"got weights in {', '.join(sorted(coarse))}, expected one of {', '.join(sorted(FLOATS))}"
        findings.append(error("CKPT-QUANTIZED", base, message, "merge into the unquantized base, then quantize"))
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    made = {}
    for name, tensor in stored.items():
        if name in adapter.whole:
            chunks = partial(safetensors_files.finite_chunks, adapter.whole[name], tensor.dtype)
        else:
            module = name.removesuffix(".weight")
            chunks = partial(_rows, *adapter.pairs[module], adapter.scale(module), tensor)
        made[_stored_name(name, tensors)] = replace(tensor, made=chunks)
    return made


def _stored_name(name: str, tensors: dict[str, Tensor]) -> str:
    """Of a model's tensor, or the one that Qwen2.5-VL is still stored under (it is what transformers < 4.52 used)."""
    former = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
    return name if name in tensors else former


def _rows(half_a: Tensor, half_b: Tensor, scale: float, base: Tensor) -> Iterator[bytes]:
    """The merged weight, some rows at a time."""
    a, b = safetensors_files.read_float32(half_a), safetensors_files.read_float32(half_b)
    b *= scale
    rows, columns = base.shape
    step = max(1, _ELEMENTS // columns)
    for number, stored in enumerate(safetensors_files.read_chunks(base, step * base.nbytes // rows)):
        weight = safetensors_files.to_float32(stored, base.dtype).reshape(-1, columns)
        weight += b[number * step : (number + 1) * step] @ a
        yield safetensors_files.from_float32(safetensors_files.finite(weight, base.file), base.dtype)
