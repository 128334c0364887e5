"""Cosmos3 Omni checkpoints (`cosmos3_omni`) as Qwen3-VL folders, by renaming tensors and copying
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

from cosmos_reason.base import files
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, Finding, bad_input, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import architectures, safetensors_files, tensor_numbers
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.remote import model_names, s3

MAPPING_VERSION = 2

# Applied in this order; a tensor that no rule renames is an error. The names are those of the
# published layout (diffusers) and of the exports of fine-tunes (`model.net.`).
_PREFIX = re.compile(r"^(transformer\.|vision_encoder\.|model\.net\.)")
_DROPPED = re.compile(
    r"_moe_gen|\.(add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\."
    r"|^(proj_in|proj_out|time_embedder|(audio|action)_proj_(in|out))\."
    r"|^(llm2(vae|sound|action)|(vae|sound|action)2llm)\.|^(audio|sound|action)_modality_embed$"
)
_TEXT, VISION = "model.language_model.", "model.visual."
_RENAMED = (
    (re.compile(r"^language_model\.(model\.)?(?=layers\.|embed_tokens\.|norm\.)"), _TEXT),
    (re.compile(r"^(language_model|model)\.visual\."), VISION),
    (re.compile(r"^(language_model\.)?lm_head\.(?=weight$)"), "lm_head."),
    (re.compile(r"^(?=(layers|embed_tokens|norm)\.)"), _TEXT),
    (re.compile(r"^(?=(blocks|merger|patch_embed|pos_embed|deepstack_merger_list)\.)"), VISION),
)
_ATTENTION = {
    "to_q": "q_proj",
    "to_k": "k_proj",
    "to_v": "v_proj",
    "to_out": "o_proj",
    "norm_q": "q_norm",
    "norm_k": "k_norm",
}
_ATTENTION_NAME = re.compile(rf"(?<=\.self_attn\.)({'|'.join(_ATTENTION)})(?=\.)")
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_QUANTIZED_TYPES = ("F8", "F6", "F4", "U8", "I8")
_QUANTIZED = re.compile(r"_scale(_\w+|\.\w+)?$")
_ROPE_THETA = 5_000_000  # what the class of Qwen3-VL assumes

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
DONOR_FIX = Fix(flags={"--vlm-model-name": "Qwen/Qwen3-VL-8B-Instruct"})
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
    supplied: tuple[str, ...]
    tensors: dict[str, Tensor]
    dropped: int
    texts: dict[str, bytes]
    fingerprint: str

    @property
    def total_size(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def target_name(name: str) -> str | None:
    """Return the Qwen3-VL name of a stored tensor, None for one that is dropped. Raises KeyError
    for an unknown one."""
    name = _PREFIX.sub("", name)
    if _DROPPED.search(name):
        return None
    for pattern, replacement in _RENAMED:
        renamed, count = pattern.subn(replacement, name, count=1)
        if count:
            return _ATTENTION_NAME.sub(lambda match: _ATTENTION[match[1]], renamed)
    raise KeyError(name)


def open_source(folder: Path, donor: Path | None = None) -> Source:
    """Read and check a whole Omni checkpoint: headers only, no tensor data. Raises Failure with all
    that is wrong.

    `donor`, a Qwen3-VL or Omni folder, supplies what the checkpoint lacks: exports of fine-tunes
    have no text and vision config, and may have no vision tower, tokenizer or processors.
    """
    _refuse_folders(folder, donor)
    omni_config = safetensors_files.read_object(folder / "config.json")
    _refuse_other_models(folder, omni_config)
    stored, findings = safetensors_files.read_folder(folder)
    tensors, dropped, mapping_findings = _map(folder, stored)
    findings += mapping_findings
    supplied = []
    if donor and not any(name.startswith(VISION) for name in tensors):
        tensors |= _vision_tower(donor)
        supplied.append("vision tower")
    full_config = omni_config
    if donor and not {"text_config", "vision_config"} <= omni_config.keys():
        full_config = safetensors_files.read_object(donor / "config.json")
        supplied.append("config")
    tensors, dtype, dtype_findings = _single_dtype(folder, tensors)
    findings += dtype_findings
    config = _qwen3_vl_config(folder, full_config, dtype)
    texts, texts_supplied, text_findings = _small_files(folder, donor, config)
    supplied += texts_supplied
    findings += text_findings
    if stored and not mapping_findings:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        findings += architectures.compare(str(folder), config, shapes)
    if findings:
        raise Failure(findings, EXIT_CHECKS_FAILED)
    fingerprint = _fingerprint(tensors, texts)
    return Source(folder, donor, tuple(supplied), tensors, dropped, texts, fingerprint)


def _refuse_folders(folder: Path, donor: Path | None) -> None:
    if not folder.is_dir():
        message = "there is no such folder; name a Cosmos3 Omni checkpoint"
        raise bad_input("CKPT-SOURCE-MISSING", folder, message)
    if donor and not donor.is_dir():
        message = "there is no such folder; name a Qwen3-VL model"
        raise bad_input("CKPT-DONOR-MISSING", donor, message, DONOR_FIX)
    snapshots = sorted(folder.glob("snapshots/*/config.json"))
    if snapshots:
        message = "it is the whole Hub cache of a model; name one snapshot of it"
        fix = Fix(flags={"--checkpoint-path": snapshots[-1].parent})
        raise bad_input("CKPT-HUB-CACHE", folder, message, fix)


def _refuse_other_models(folder: Path, config: dict) -> None:
    config_file = folder / "config.json"
    model_type = config.get("model_type")
    if model_type in ("qwen3_vl", "qwen2_5_vl"):
        message = (
            f"model_type {model_type!r} needs no conversion: "
            "scripts/build_spec.py takes the folder as --model"
        )
        raise bad_input("CKPT-NOT-OMNI", config_file, message)
    if model_type == "cosmos3_edge":
        message = "Cosmos3 Edge (Nemotron with a SigLIP tower) has no Qwen3-VL form; "
        message += "convert a cosmos3_omni"
        fix = Fix(flags={"--checkpoint-path": "nvidia/Cosmos3-Nano"})
        raise bad_input("CKPT-EDGE", config_file, message, fix)
    if model_type != "cosmos3_omni":
        message = f"got model_type {model_type!r}, expected 'cosmos3_omni'"
        raise bad_input("CKPT-NOT-OMNI", config_file, message)
    component = model_names.read_table(folder / "transformer" / "config.json")
    for table in (config, component):
        if table.get("quantization_config") is not None:
            raise _quantized(config_file, "it has a quantization_config")


def _quantized(where: Path, got: str) -> Failure:
    message = f"{got}, and only unquantized weights convert, for bytes are copied as they are; "
    message += "convert the bfloat16 checkpoint, then quantize the result"
    return bad_input("CKPT-QUANTIZED", where, message)


def _map(
    folder: Path, stored: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], int, list[Finding]]:
    """Return (tensors under their new names, how many are dropped, what cannot be mapped)."""
    tensors: dict[str, Tensor] = {}
    dropped = 0
    unknown, twice = [], []
    for name, tensor in stored.items():
        is_known = True
        target = None
        try:
            target = target_name(name)
        except KeyError:
            is_known = False
        if is_known and target is None:
            dropped += 1
        elif tensor.dtype.startswith(_QUANTIZED_TYPES) or _QUANTIZED.search(name):
            raise _quantized(tensor.file, f"{name} is {tensor.dtype}")
        elif not is_known:
            unknown.append(name)
        elif target in tensors:
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
    """Return the files of an Omni or Qwen3-VL model that hold its vision tower, told from its
    index: the others need no download. Without an index it is the one file, unless that is here and
    holds none."""
    index = folder / safetensors_files.INDEX_NAME
    if index.exists():
        weight_map = safetensors_files.read_index(index)
        return sorted({file for name, file in weight_map.items() if _vision_name(name)})
    single = folder / safetensors_files.SINGLE
    if single.exists() and not any(map(_vision_name, safetensors_files.read_header(single))):
        return []
    return [single.name]


def _vision_tower(donor: Path) -> dict[str, Tensor]:
    tower = {}
    for file in vision_shards(donor):
        for name, tensor in safetensors_files.read_header(donor / file).items():
            target = _vision_name(name)
            if target:
                tower[target] = tensor
    return tower


def _vision_name(name: str) -> str | None:
    """Return the Qwen3-VL name of a stored tensor of the vision tower, Omni's or Qwen3-VL's; None
    for any other."""
    try:
        target = target_name(name)
    except KeyError:
        return None
    if target and target.startswith(VISION):
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


def _qwen3_vl_config(folder: Path, omni: Mapping, dtype: str) -> dict:
    """Return the config in the words of transformers 4.57, which 5.x reads too (the reverse is not
    true)."""
    for part in ("text_config", "vision_config"):
        if not isinstance(omni.get(part), dict):
            message = "it lacks text_config or vision_config, and no donor supplies them"
            raise bad_input("CKPT-CONFIG-PARTIAL", folder / "config.json", message, DONOR_FIX)
    text = dict(omni["text_config"], model_type="qwen3_vl_text", dtype=dtype)
    rope = {}
    for table in (text.pop("rope_parameters", None), text.get("rope_scaling")):
        if isinstance(table, dict):
            rope |= table
    if not rope.get("mrope_section"):
        message = "neither rope_scaling nor rope_parameters has an mrope_section"
        raise bad_input("CKPT-CONFIG-PARTIAL", folder / "config.json", message)
    text["rope_theta"] = rope.pop("rope_theta", None) or text.get("rope_theta") or _ROPE_THETA
    text["rope_scaling"] = rope
    token_ids = (
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    )
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        **{key: omni[key] for key in token_ids if key in omni},
        "tie_word_embeddings": omni.get("tie_word_embeddings", False),
        "text_config": text,
        "vision_config": dict(omni["vision_config"], model_type="qwen3_vl"),
        "transformers_version": "4.57.1",
    }


def _small_files(
    folder: Path, donor: Path | None, config: dict
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

    # The template of the first folder that has one, in any of the three places where it may stand.
    template = None
    for home in homes:
        if template is None and (home / "chat_template.jinja").is_file():
            template = files.read_text(home / "chat_template.jinja")
        for name in ("chat_template.json", "tokenizer_config.json"):
            written = model_names.read_table(home / name).get("chat_template")
            if template is None and isinstance(written, str):
                template = written
    missing = [name for name in _REQUIRED if name not in found]
    if not template:
        missing.append("chat_template.jinja")
    if missing:
        message = "the file is missing, and no donor supplies it"
        findings = [error("CKPT-FILE-MISSING", folder / n, message, DONOR_FIX) for n in missing]
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
    if findings:
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
    return texts, supplied, []


def _json_bytes(value) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _fingerprint(tensors: Mapping[str, Tensor], texts: Mapping[str, bytes]) -> str:
    stamps = {file: _stamp(file) for file in {tensor.file for tensor in tensors.values()}}
    facts: list[tuple] = []
    for name, tensor in tensors.items():
        facts.append((name, tensor.dtype, tensor.shape, stamps[tensor.file], tensor.begin))
    for name, text in texts.items():
        facts.append((name, hashlib.sha256(text).hexdigest()))
    return hashlib.sha256(repr((MAPPING_VERSION, sorted(facts))).encode()).hexdigest()


def _stamp(file: Path) -> str:
    real = Path(os.path.realpath(file))
    if real.parent.name == "blobs" or s3.cache() in real.parents:
        return f"{real.parent.name}/{real.name}"
    facts = real.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}"
