"""Omni checkpoints as folders that loaders read, by renaming tensors and copying
their bytes.

An Omni checkpoint holds two towers that share their layers (a reasoner and a generator), a vision
tower, and the input and output layers of images, sound and actions. The reasoner and the vision
tower together are a Qwen3-VL model. Enter at `open_source`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cosmos_reason.base import families
from cosmos_reason.base.families import Layout
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import (
    architectures,
    beside_weights,
    dcp,
    safetensors_files,
    tensor_numbers,
)
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.remote import model_names, s3

_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_QUANTIZED_TYPES = ("F8", "F6", "F4", "U8", "I8")
_QUANTIZED = re.compile(r"_scale(_\w+|\.\w+)?$")

_REQUIRED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_OPTIONAL = (
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
)
COPIED = (*_REQUIRED, *_OPTIONAL)
# What a conversion needs of a published repository, of a donor, and of its vision tower.
SMALL_FILES = ["*.json", "*.jinja", "merges.txt", "text_tokenizer/*"]
HUB_FILES = [*SMALL_FILES, "transformer/*", "vision_encoder/*", "model*.safetensors"]


@dataclass(frozen=True)
class Source:
    """An Omni checkpoint seen as a Qwen3-VL model: `tensors` under their new names, `texts` the
    small files to write.

    `supplied` names what the donor gave because the checkpoint lacks it. `fingerprint` is a SHA-256
    over small files, names, shapes, and of each shard its size and time of change, or its name in a
    cache that names files by content.
    """

    folder: Path
    donor: Path | None
    layout: Layout
    supplied: tuple[str, ...]
    tensors: dict[str, Tensor]
    dropped: int
    texts: dict[str, bytes]
    fingerprint: str
    warnings: tuple[Finding, ...]

    @property
    def total_size(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_source(folder: Path, donor: Path | None = None) -> Source:
    """Read and check a whole Omni checkpoint: headers only, no tensor data. Raises Failure with all
    that is wrong.

    `donor`, a Qwen3-VL or Omni folder, supplies what the checkpoint lacks: exports of fine-tunes
    have no text and vision config, and may have no vision tower, tokenizer or processors.
    """
    if not folder.is_dir():
        message = f"there is no such folder; name a {families.OMNI.title} checkpoint"
        raise bad_input("CKPT-SOURCE-MISSING", folder, message)
    if donor and not donor.is_dir():
        message = f"there is no such folder; name a {families.OMNI.family.title} model"
        raise bad_input("CKPT-DONOR-MISSING", donor, message)
    dcp.refuse(folder, "--checkpoint-path")
    snapshots = sorted(folder.glob("snapshots/*/config.json"))
    if snapshots:
        message = "it is the whole Hub cache of a model; name one snapshot of it"
        fix = Fix(flags={"--checkpoint-path": snapshots[-1].parent})
        raise bad_input("CKPT-HUB-CACHE", folder, message, fix)
    omni_config = safetensors_files.read_object(folder / "config.json")
    layout = _layout(folder, omni_config)
    stored, findings = safetensors_files.read_folder(folder, partial(_is_dropped, layout))
    tensors, dropped, mapping_findings = _map(folder, layout, stored)
    findings += mapping_findings
    supplied = []
    if donor and not any(name.startswith(layout.vision) for name in tensors):
        for file in _vision_shards(donor, layout):
            for name, tensor in safetensors_files.read_header(donor / file).items():
                if target := _vision_name(name, layout):
                    tensors[target] = tensor
        supplied.append("vision tower")
    full_config = omni_config
    if donor and not {"text_config", "vision_config"} <= omni_config.keys():
        full_config = safetensors_files.read_object(donor / "config.json")
        supplied.append("config")
    tensors, dtype, dtype_findings = _single_dtype(folder, tensors)
    findings += dtype_findings
    config = _config(folder, layout, full_config, dtype)
    texts, texts_supplied, text_findings = _small_files(folder, donor, layout, config)
    supplied += texts_supplied
    findings += text_findings
    if stored and not mapping_findings:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        findings += architectures.compare(str(folder), config, shapes)
    if has_errors(findings):
        raise Failure(findings, EXIT_CHECKS_FAILED)
    return Source(
        folder,
        donor,
        layout,
        tuple(supplied),
        tensors,
        dropped,
        texts,
        fingerprint=_fingerprint(layout, tensors, texts),
        warnings=tuple(findings),
    )


def _layout(folder: Path, config: dict) -> Layout:
    """Return the layout of the checkpoint. Raises Failure for anything else than a whole one."""
    config_file = folder / "config.json"
    model_type = config.get("model_type")
    layout = families.layout_of(config)
    if layout is None and model_type in families.FAMILIES:
        message = (
            f"model_type {model_type!r} needs no conversion: "
            "scripts/build_spec.py takes the folder as --model"
        )
        raise bad_input("CKPT-NOT-OMNI", config_file, message)
    if layout is None:
        known = ", ".join(map(repr, families.PUBLISHED))
        message = f"got model_type {model_type!r}, expected {known}"
        raise bad_input("CKPT-NOT-OMNI", config_file, message)
    component = model_names.read_table(folder / "transformer" / "config.json")
    for table in (config, component):
        if table.get("quantization_config") is not None:
            raise _quantized(config_file, "it has a quantization_config")
    return layout


def _quantized(where: Path, got: str) -> Failure:
    message = f"{got}, and only unquantized weights convert, for bytes are copied as they are; "
    message += "convert the bfloat16 checkpoint, then quantize the result"
    return bad_input("CKPT-QUANTIZED", where, message)


def _is_dropped(layout: Layout, name: str) -> bool:
    try:
        return layout.target_name(name) is None
    except KeyError:
        return False


def _map(
    folder: Path, layout: Layout, stored: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], int, list[Finding]]:
    """Return (tensors under their new names, how many are dropped, what cannot be mapped)."""
    tensors: dict[str, Tensor] = {}
    dropped = 0
    unknown, twice = [], []
    for name, tensor in stored.items():
        if _is_dropped(layout, name):
            dropped += 1
            continue
        if tensor.dtype.startswith(_QUANTIZED_TYPES) or _QUANTIZED.search(name):
            raise _quantized(tensor.file, f"{name} is {tensor.dtype}")
        try:
            target = layout.target_name(name)
        except KeyError:
            unknown.append(name)
            continue
        if target in tensors:
            twice.append(target)
        else:
            tensors[target] = tensor
    findings = []
    if unknown:
        findings.append(_unmapped(folder, unknown, "no mapping rule knows"))
    if twice:
        findings.append(_unmapped(folder, twice, "more than one stored tensor would become"))
    return tensors, dropped, findings


def _unmapped(folder: Path, names: list[str], problem: str) -> Finding:
    names = sorted(names)
    message = f"{len(names)} tensors cannot be mapped: {problem} {', '.join(names[:3])}"
    return error("CKPT-TENSOR-UNMAPPED", folder, message, names=names[:1000])


def vision_shards(folder: Path) -> list[str]:
    """Return the files of an Omni model or a donor that hold its vision tower, told from its
    index: the others need no download. Without an index it is the one file, unless that is here and
    holds none."""
    config = model_names.read_table(folder / "config.json")
    return _vision_shards(folder, families.layout_of(config) or families.OMNI)


def _vision_shards(folder: Path, layout: Layout) -> list[str]:
    index = folder / safetensors_files.INDEX_NAME
    if index.exists():
        weight_map = safetensors_files.read_index(index)
        return sorted({file for name, file in weight_map.items() if _vision_name(name, layout)})
    single = folder / safetensors_files.SINGLE
    if single.exists():
        names = safetensors_files.read_header(single)
        if not any(_vision_name(name, layout) for name in names):
            return []
    return [single.name]


def _vision_name(name: str, layout: Layout) -> str | None:
    """Return the name in the result of a stored tensor of the vision tower, an Omni model's or a
    donor's; None for any other."""
    try:
        target = layout.target_name(name)
    except KeyError:
        return None
    if target and target.startswith(layout.vision):
        return target
    return None


def _single_dtype(
    folder: Path, tensors: dict[str, Tensor]
) -> tuple[dict[str, Tensor], str, list[Finding]]:
    """Return the tensors in one dtype, and its name: their own, or bfloat16, to which others are
    rounded while they are written."""
    dtypes = {tensor.dtype for tensor in tensors.values()}
    wrong = dtypes - _FLOATS.keys()
    if wrong:
        names = sorted(name for name, tensor in tensors.items() if tensor.dtype in wrong)
        message = (
            f"got {', '.join(sorted(wrong))} ({', '.join(names[:3])}), "
            f"expected one of {', '.join(_FLOATS)}"
        )
        message += "; export it in bfloat16"
        finding = error("CKPT-DTYPE", folder, message, names=names[:1000])
        return tensors, "bfloat16", [finding]
    if len(dtypes) == 1:
        return tensors, _FLOATS[dtypes.pop()], []
    rounded = {}
    for name, tensor in tensors.items():
        if tensor.dtype != "BF16":
            chunks = partial(tensor_numbers.finite_chunks, tensor, "BF16")
            tensor = replace(tensor, dtype="BF16", made=chunks)
        rounded[name] = tensor
    return rounded, "bfloat16", []


def _config(folder: Path, layout: Layout, published: Mapping, dtype: str) -> dict:
    """Return the config of the result."""
    for part in ("text_config", "vision_config"):
        if not isinstance(published.get(part), dict):
            message = "it lacks text_config or vision_config, and no --vlm-model-name supplies them"
            fix = _donor(layout, published)
            raise bad_input("CKPT-CONFIG-PARTIAL", folder / "config.json", message, fix)
    try:
        return layout.config(published, dtype)
    except KeyError as problem:
        message = f"neither rope_scaling nor rope_parameters has an {problem.args[0]}"
        raise bad_input("CKPT-CONFIG-PARTIAL", folder / "config.json", message) from None


def _donor(layout: Layout, published: Mapping) -> Fix:
    """Name the donor of that width; none for a config that tells no width, or another."""
    text = published.get("text_config")
    donor = layout.donors.get(text.get("hidden_size")) if isinstance(text, dict) else None
    return Fix(flags={"--vlm-model-name": donor} if donor else {})


def _small_files(
    folder: Path, donor: Path | None, layout: Layout, config: dict
) -> tuple[dict[str, bytes], list[str], list[Finding]]:
    """Return name -> content of config, tokenizer, processors and chat template; and which of them
    the donor gave."""
    own_homes = [folder, folder / "text_tokenizer"]
    homes = own_homes + ([donor, donor / "text_tokenizer"] if donor else [])
    found: dict[str, Path] = {}  # each from the first folder that has it
    for home in reversed(homes):
        for name in COPIED:
            if (home / name).is_file():
                found[name] = home / name
    supplied = [name for name, path in found.items() if path.parent not in own_homes]

    template = beside_weights.chat_template(homes)
    missing = [name for name in _REQUIRED if name not in found]
    if not template:
        missing.append("chat_template.jinja")
    if missing:
        message = "the file is missing, and no --vlm-model-name supplies it"
        fix = _donor(layout, config)
        findings = [error("CKPT-FILE-MISSING", folder / n, message, fix) for n in missing]
        return {}, supplied, findings

    tables = {}
    findings = []
    for name, path in found.items():
        if path.suffix == ".json":
            try:
                tables[name] = safetensors_files.read_object(path)
            except Failure as failure:
                findings += failure.findings
    if "tokenizer.json" in tables and not tables["tokenizer.json"].get("model"):
        message = "the tokenizer lacks its model"
        findings.append(error("CKPT-FILE-BAD", found["tokenizer.json"], message))
    if not findings:
        read = {found[name]: table for name, table in tables.items()}
        findings += beside_weights.check(folder, config, read, template)
    if has_errors(findings):
        return {}, supplied, findings
    generation = {key: config["text_config"].get(key) for key in ("bos_token_id", "eos_token_id")}
    texts = {"generation_config.json": _json_bytes(generation)}
    for name, path in found.items():
        texts[name] = path.read_bytes()
    # Loaders of different ages look for the template in different files.
    texts["chat_template.jinja"] = template.encode()
    texts["chat_template.json"] = _json_bytes({"chat_template": template})
    tokenizer_config = tables["tokenizer_config.json"] | {"chat_template": template}
    texts["tokenizer_config.json"] = _json_bytes(tokenizer_config)
    texts["config.json"] = _json_bytes(config)
    return texts, supplied, findings


def _json_bytes(value) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _fingerprint(layout: Layout, tensors: Mapping[str, Tensor], texts: Mapping[str, bytes]) -> str:
    stamps = {}
    for file in {tensor.file for tensor in tensors.values()}:
        real = Path(os.path.realpath(file))
        status = real.stat()
        stamps[file] = f"{status.st_size} {status.st_mtime_ns}"
        # In the caches of the Hub and of S3 a name tells a file apart, whenever it was copied.
        if real.parent.name == "blobs" or s3.cache() in real.parents:
            stamps[file] = f"{real.parent.name}/{real.name}"
    facts: list[tuple] = []
    for name, tensor in tensors.items():
        facts.append((name, tensor.dtype, tensor.shape, stamps[tensor.file], tensor.begin))
    for name, text in texts.items():
        facts.append((name, hashlib.sha256(text).hexdigest()))
    return hashlib.sha256(repr((layout.version, sorted(facts))).encode()).hexdigest()
