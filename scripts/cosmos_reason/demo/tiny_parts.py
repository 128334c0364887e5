"""What the demo's checkpoints are made of: a tokenizer trained on a text, and random weights in
shards. The same seed and text give the same bytes."""

from __future__ import annotations

import math
import shutil
import zlib
from pathlib import Path

from cosmos_reason.base.families import Family
from cosmos_reason.base.files import write_json
from cosmos_reason.checkpoints import safetensors_files, tensor_numbers

VOCABULARY = 512  # the tokens of the byte-level BPE; the special tokens come on top
STD = 0.08  # measured: it learns, where 0.02 stays at chance for a model of this size
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# How the Qwen tokenizers cut text before merging bytes.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# How the chat templates of Cosmos3 write what a turn holds.
CONTENT_TEXT = """\
{%- macro content_text(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
      {%- elif part.type == 'text' -%}{{ part.text }}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
"""


def write_tokenizer(
    target: Path, text: str, vocabulary: int, more: tuple[str, ...] = (), kind="Qwen2Tokenizer"
) -> dict[str, int]:
    """Train the tokenizer on `text` and write it into a folder; returns the ids of the special
    tokens, `more` among them. `kind` is its class."""
    special = (*SPECIAL_TOKENS, *more)
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    # A short text may give fewer merges than asked for: the special tokens follow what there is.
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    ids = {token: tokenizer.token_to_id(token) for token in special}
    tokenizer.save(str(target / "tokenizer.json"))
    tokenizer.model.save(str(target))
    flags = {
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    config = {
        "added_tokens_decoder": {str(ids[token]): {"content": token, **flags} for token in special},
        "additional_special_tokens": list(special[1:]),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": kind,
        "unk_token": None,
    }
    write_json(target / "tokenizer_config.json", config)
    return ids


def generation_config(ids: dict[str, int], *ends: str) -> dict:
    """Return a generation_config.json that answers without chance and ends with one of `ends`, by
    default the end of a turn or of a text."""
    stops = [ids[token] for token in ends or ("<|im_end|>", "<|endoftext|>")]
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "eos_token_id": stops[0] if len(stops) == 1 else stops,
        "pad_token_id": ids["<|endoftext|>"],
    }


def media_tokens(ids: dict[str, int]) -> dict[str, int]:
    """Return what a config.json says of the tokens that stand for media."""
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }


def processor_config(family: Family, merge_size: int) -> dict:
    """Return what the configs of the image and of the video processor of Cosmos3 share."""
    return {
        "image_mean": list(family.mean),
        "image_std": list(family.std),
        "merge_size": merge_size,
        "patch_size": family.patch,
        "processor_class": family.processor_class,
        "temporal_patch_size": family.frames_per_token,
    }


def vocab_size(ids: dict[str, int]) -> int:
    """Return the rows of the embedding: the tokens, rounded up to a multiple of 64 as published
    models have it. vLLM pads to that, and GRPO then copies the policy's rows into vLLM's."""
    return math.ceil((max(ids.values()) + 1) / 64) * 64


def total_size(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(2 * math.prod(shape) for shape in shapes.values())


def generator_ends(
    width: int, latent: int, time: int, domains: int, action: int, sound: int = 0
) -> dict[str, tuple[int, ...]]:
    """Return the layers that bring images, actions and perhaps sound into the generator of Cosmos3
    and out of it."""
    linears = {
        "proj_in": (width, latent),
        "proj_out": (latent, width),
        "time_embedder.linear_1": (width, time),
        "time_embedder.linear_2": (width, width),
    }
    tensors = {
        "action_proj_in.fc.weight": (domains, width * action),
        "action_proj_in.bias.weight": (domains, width),
        "action_proj_out.fc.weight": (domains, width * action),
        "action_proj_out.bias.weight": (domains, action),
        "action_modality_embed": (width,),
    }
    if sound:
        linears |= {"audio_proj_in": (width, sound), "audio_proj_out": (sound, width)}
        tensors["audio_modality_embed"] = (width,)
    for name, shape in linears.items():
        tensors |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return tensors


def write_published_tokenizer(
    work: Path, text: str, vocabulary: int, more: tuple[str, ...] = (), kind="Qwen2Tokenizer"
) -> dict[str, int]:
    """Write a tokenizer as Cosmos3 is published: in a folder of its own and at the root."""
    target = work / "text_tokenizer"
    target.mkdir()
    ids = write_tokenizer(target, text, vocabulary, more, kind)
    for path in target.iterdir():
        shutil.copy(path, work / path.name)
    return ids


def write_published_weights(
    work: Path,
    transformer: dict[str, tuple[int, ...]],
    listed: dict[str, tuple[int, ...]],
    tower: dict[str, tuple[int, ...]],
    seed: int,
) -> None:
    """Write transformer/ in two shards with an index of its own, vision_encoder/, and the root's
    index: of the transformer it lists what is `listed`."""
    stem = "diffusion_pytorch_model"
    shards = [f"transformer/{stem}-{number:05}-of-00002.safetensors" for number in (1, 2)]
    weight_map = write_shards(work, shards, transformer, seed)
    own_map = {name: file.removeprefix("transformer/") for name, file in weight_map.items()}
    index = {"metadata": {"total_size": total_size(transformer)}, "weight_map": own_map}
    write_json(work / "transformer" / f"{stem}.safetensors.index.json", index)
    root_map = {name: weight_map[name] for name in listed}
    root_map |= write_shards(work, ["vision_encoder/model.safetensors"], tower, seed)
    safetensors_files.write_index(work, root_map, total_size(listed | tower))


def write_shards(
    work: Path, shards: list[str], shapes: dict[str, tuple[int, ...]], seed: int
) -> dict[str, str]:
    """Deal the tensors out to the shards by name; returns {tensor: shard}."""
    names = sorted(shapes)
    weight_map = {name: shards[number % len(shards)] for number, name in enumerate(names)}
    for shard in shards:
        (work / shard).parent.mkdir(exist_ok=True)
        own = [name for name in names if weight_map[name] == shard]
        entries = [(name, "BF16", shapes[name], 2 * math.prod(shapes[name])) for name in own]
        data = (_initial(name, shapes[name], seed) for name in own)
        (work / shard).write_bytes(safetensors_files.header_bytes(entries) + b"".join(data))
    return weight_map


def _initial(name: str, shape: tuple[int, ...], seed: int) -> bytes:
    """Return bfloat16 bytes: zeros for biases, ones for norms, normal numbers for everything
    else."""
    import numpy as np

    if "norm" in name and len(shape) == 1:
        values = np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
    elif name.endswith(".bias"):
        values = np.zeros(shape, np.float32)
    else:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = rng.normal(0.0, STD, shape).astype(np.float32)
    return tensor_numbers.from_float32(values, "BF16")
