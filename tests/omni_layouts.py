"""Omni layouts for tests and benchmarks: full-size ones with holes instead of weights, and exports of fine-tunes."""

import json
import math
import os
import shutil
from pathlib import Path

from support import run_script

from cosmos_reason import omni, safetensors_files
from cosmos_reason.demo import tiny_omni

_TEXT = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "model_type": "qwen3_vl_text",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    "rope_theta": 5000000,
    "vocab_size": 151936,
}
_VISION = {
    "deepstack_visual_indexes": [8, 16, 24],
    "depth": 27,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "in_channels": 3,
    "intermediate_size": 4304,
    "model_type": "qwen3_vl",
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 4096,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
NANO = {
    "image_token_id": 151655,
    "model_type": "cosmos3_omni",
    "text_config": _TEXT,
    "tie_word_embeddings": False,
    "video_token_id": 151656,
    "vision_config": _VISION,
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}
_LARGER = {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_hidden_layers": 64}
SUPER = NANO | {"text_config": _TEXT | _LARGER, "vision_config": _VISION | {"out_hidden_size": 5120}}
GENERATOR = {"latent": 192, "time": 256, "domains": 32, "action": 64, "sound": 64}
SHARD_BYTES = 5_000_000_000


def write_layout(folder: Path, config: dict, random_bytes: bool = False) -> None:
    """Write a published layout. Dropped tensors are holes; kept ones too unless `random_bytes`."""
    folder.mkdir(parents=True)
    weight_map = {}
    parts = {"transformer/diffusion_pytorch_model": tiny_omni.transformer_tensors(config["text_config"], GENERATOR)}
    parts["vision_encoder/model"] = tiny_omni.vision_tensors(config)
    total = 0
    for stem, shapes in parts.items():
        entries = [(name, "BF16", shape, 2 * math.prod(shape)) for name, shape in shapes.items()]
        total += sum(entry[3] for entry in entries)
        shards = _split(entries)
        for number, shard in enumerate(shards, 1):
            file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else f"{stem}.safetensors"
            _write_shard(folder / file, shard, random_bytes)
            weight_map |= {name: file for name, *_ in shard}
    safetensors_files.write_index(folder, weight_map, total)
    small = {"config.json": config, "tokenizer.json": {"model": {"type": "BPE"}}}
    small |= {"tokenizer_config.json": {"chat_template": "{{ messages }}"}}
    small |= {"preprocessor_config.json": {}, "video_preprocessor_config.json": {}}
    for name, value in small.items():
        (folder / name).write_text(json.dumps(value))


def _split(entries: list) -> list[list]:
    shards, room = [], 0
    for entry in entries:
        if not shards or entry[3] > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(entry)
        room -= entry[3]
    return shards


def _write_shard(path: Path, entries: list, random_bytes: bool) -> None:
    path.parent.mkdir(exist_ok=True)
    block = os.urandom(1 << 24)
    with open(path, "wb") as handle:
        handle.write(safetensors_files.header_bytes(entries))
        for name, _, _, size in entries:
            kept = not any(word in name for word in ("_moe_gen", ".add_", "_add_", "norm_added"))
            for done in range(0, size if random_bytes and kept else 0, len(block)):
                handle.write(block[: size - done])
            if not (random_bytes and kept):
                handle.seek(size, os.SEEK_CUR)
        handle.truncate(handle.tell())


def write_tensors(path, tensors):
    """Write {name: (dtype, shape, bytes)} from memory."""
    entries = ((name, dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items())
    path.write_bytes(safetensors_files.header_bytes(entries) + b"".join(data for *_, data in tensors.values()))


def contents(folder):
    """Every tensor's bytes, read without our reader."""
    from safetensors import deserialize

    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= {name: (e["dtype"], e["shape"], bytes(e["data"])) for name, e in deserialize(path.read_bytes())}
    return found


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def as_export(published, export, bare=False):
    """A fine-tune's export: keys `model.net.language_model.*` in one file, a config in the words of transformers 5.

    A `bare` one is what the export script really leaves without its optional parts: no text and vision config, no
    tokenizer, no processors, no vision tower.
    """
    weights = ("*.safetensors*", "transformer", "vision_encoder")
    shutil.copytree(published, export, ignore=shutil.ignore_patterns(*weights))
    tensors = {}
    for name, (dtype, shape, data) in contents(published).items():
        target = omni.target_name(name) if not name.endswith("model.safetensors") else None
        if target is None:
            new = f"model.net.language_model.model.{name}" if "_moe_gen" in name else f"model.net.vae2llm.{name}"
        else:
            new = target.replace("model.language_model.", "model.net.language_model.model.")
            new = new.replace("model.visual.", "model.net.language_model.visual.")
            new = new.replace("lm_head", "model.net.language_model.lm_head")
        if not (bare and ".visual." in new):
            tensors[new] = (dtype, tuple(shape), data)
    write_tensors(export / "model.safetensors", tensors)

    def as_transformers_5(config):
        text = config["text_config"]
        text["rope_parameters"] = text.pop("rope_scaling") | {"rope_theta": text.pop("rope_theta")}

    edit_json(export / "config.json", as_transformers_5)
    if bare:
        shutil.rmtree(export / "text_tokenizer")
        for path in export.glob("*.*"):
            if path.suffix != ".safetensors":
                path.unlink()
        (export / "config.json").write_text(json.dumps({"model_type": "cosmos3_omni", "model": {}}))
    return export


def convert(source, output, flags=()):
    command = ("prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", source, "--output-path", output)
    return run_script(*command, *flags)


def finding_ids(done):
    return [finding["id"] for finding in json.loads(done.stdout)["findings"]]
