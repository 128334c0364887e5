"""A Cosmos3-Nano Omni checkpoint of a million kept parameters, in the published layout: folders, names, dtypes.

Layout as published for nvidia/Cosmos3-Nano: a root config and index, `transformer/` (reasoner, generator, action, sound
and diffusion tensors in several shards), `vision_encoder/` with bare names, `text_tokenizer/`, `scheduler/`.
"""

from __future__ import annotations

import math
import shutil
import zlib
from pathlib import Path

from cosmos_reason import qwen3_vl, safetensors_files
from cosmos_reason.storage import whole_folder, write_json, write_text

VOCABULARY = 512  # the tokens of the byte-level BPE; the special tokens come on top
STD = 0.08  # measured: 0.08 learns, the usual 0.02 stays at chance for a model of this size
SPECIAL_TOKENS = tuple(
    f"<|{name}|>"
    for name in (
        *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end"),
        *("quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"),
    )
)
TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": STD,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "model_type": "qwen3_vl_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
    "rope_theta": 10000,  # published: 5,000,000; a tiny model learns the order of frames later with it
    "use_cache": True,
}
VISION = {
    "deepstack_visual_indexes": [0, 1],
    "depth": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 64,
    "in_channels": 3,
    "initializer_range": STD,
    "intermediate_size": 128,
    "model_type": "qwen3_vl",
    "num_heads": 4,
    "num_position_embeddings": 64,
    "out_hidden_size": TEXT["hidden_size"],
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
# What the generator works on: Nano has 192, 256, 32, 64, 64.
GENERATOR = {"latent": 12, "time": 32, "domains": 4, "action": 8, "sound": 8}
CHAT_TEMPLATE = """\
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
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + content_text(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
# How the Qwen tokenizers cut text before merging bytes.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PROCESSOR = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "merge_size": VISION["spatial_merge_size"],
    "patch_size": VISION["patch_size"],
    "processor_class": "Qwen3VLProcessor",
    "temporal_patch_size": VISION["temporal_patch_size"],
}


def build(folder: Path, seed: int, text: str, vocabulary: int = VOCABULARY) -> None:
    """Write the checkpoint; `text` trains the tokenizer. The same seed and text give the same bytes."""
    with whole_folder(folder) as work:
        ids = _write_tokenizer(work, text, vocabulary)
        config = _config(ids)
        _write_small_files(work, ids, config)
        stem = "diffusion_pytorch_model"
        transformer = transformer_tensors(config["text_config"])
        shards = [f"transformer/{stem}-{number:05}-of-00002.safetensors" for number in (1, 2)]
        weight_map = _write_shards(work, shards, transformer, seed)
        own_map = {name: file.removeprefix("transformer/") for name, file in weight_map.items()}
        index = {"metadata": {"total_size": _total_size(transformer)}, "weight_map": own_map}
        write_json(work / "transformer" / f"{stem}.safetensors.index.json", index)
        vision = vision_tensors(config)
        weight_map |= _write_shards(work, ["vision_encoder/model.safetensors"], vision, seed)
        safetensors_files.write_index(work, weight_map, _total_size(transformer | vision))


def _write_tokenizer(work: Path, text: str, vocabulary: int) -> dict[str, int]:
    """Train and write the tokenizer to text_tokenizer/ and the root; returns the ids of the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    # A short text may give fewer merges than asked for: the special tokens follow whatever there is.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    target = work / "text_tokenizer"
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))
    tokenizer.model.save(str(target))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "added_tokens_decoder": {str(ids[token]): {"content": token, **flags} for token in SPECIAL_TOKENS},
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    write_json(target / "tokenizer_config.json", config)
    for path in target.iterdir():
        shutil.copy(path, work / path.name)
    return ids


def _config(ids: dict[str, int]) -> dict:
    own = {"vocab_size": max(ids.values()) + 1, "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    return {
        "allow_patterns_overrides": ["*/*.safetensors"],
        "architectures": ["Cosmos3ForConditionalGeneration"],
        "image_token_id": ids["<|image_pad|>"],
        "model": {"_target": "omni_mot_model", "config": {"vlm_config": {"tie_word_embeddings": False}}},
        "model_type": "cosmos3_omni",
        "text_config": TEXT | own,
        "tie_word_embeddings": False,
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": VISION,
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }


def _write_small_files(work: Path, ids: dict[str, int], config: dict) -> None:
    pipeline = {"_class_name": "Cosmos3OmniPipeline", "transformer": ["diffusers", "Cosmos3OmniTransformer"]}
    image = {
        "size": {"longest_edge": 2**24, "shortest_edge": 2**10},
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    video = {"size": {"longest_edge": 25165824, "shortest_edge": 4096}, "video_processor_type": "Qwen3VLVideoProcessor"}
    generation = {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }
    for name, value in {
        "config.json": config,
        "model_index.json": pipeline,
        "checkpoint.json": {"experiment": "demo"},
        "preprocessor_config.json": _PROCESSOR | image,
        "video_preprocessor_config.json": _PROCESSOR | video,
        "generation_config.json": generation,
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        "scheduler/scheduler_config.json": {"_class_name": "UniPCMultistepScheduler"},
        "transformer/config.json": {"_class_name": "Cosmos3OmniTransformer", "num_layers": TEXT["num_hidden_layers"]},
        "vision_encoder/config.json": VISION,
    }.items():
        write_json(work / name, value)
    write_text(work / "chat_template.jinja", CHAT_TEMPLATE)


def _tower(text: dict, projections: dict[str, str], suffix: str) -> dict[str, tuple[int, ...]]:
    """The layers of one tower; `projections` names its attention tensors, `suffix` marks its layer norms and MLP."""
    width, inner, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    shapes = {"q": (queries, width), "k": (keys, width), "v": (keys, width), "o": (width, queries)}
    shapes |= {"q_norm": (head,), "k_norm": (head,)}
    tensors = {}
    for number in range(text["num_hidden_layers"]):
        layer = f"layers.{number}."
        tensors |= {f"{layer}self_attn.{name}.weight": shapes[part] for part, name in projections.items()}
        tensors |= {f"{layer}mlp{suffix}.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        tensors[f"{layer}mlp{suffix}.down_proj.weight"] = (width, inner)
        tensors |= {f"{layer}{name}_layernorm{suffix}.weight": (width,) for name in ("input", "post_attention")}
    return tensors | {f"norm{suffix}.weight": (width,)}


def transformer_tensors(text: dict, generator: dict[str, int] = GENERATOR) -> dict[str, tuple[int, ...]]:
    """Name -> shape of everything in transformer/: the reasoner, and what the conversion drops."""
    names = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out", "q_norm": "norm_q", "k_norm": "norm_k"}
    embedding = (text["vocab_size"], text["hidden_size"])
    reasoner = _tower(text, names, "") | {"embed_tokens.weight": embedding, "lm_head.weight": embedding}
    names = {part: f"add_{part}_proj" for part in "qkv"}
    names |= {"o": "to_add_out", "q_norm": "norm_added_q", "k_norm": "norm_added_k"}
    return reasoner | _tower(text, names, "_moe_gen") | _inputs_and_outputs(text["hidden_size"], **generator)


def _inputs_and_outputs(width: int, latent: int, time: int, domains: int, action: int, sound: int) -> dict:
    """The layers that bring images, actions and sound into the generator and out of it."""
    linears = {
        "proj_in": (width, latent),
        "proj_out": (latent, width),
        "time_embedder.linear_1": (width, time),
        "time_embedder.linear_2": (width, width),
        "audio_proj_in": (width, sound),
        "audio_proj_out": (sound, width),
    }
    tensors = {}
    for name, shape in linears.items():
        tensors |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors |= {f"action_proj_{way}.fc.weight": (domains, width * action) for way in ("in", "out")}
    tensors |= {"action_proj_in.bias.weight": (domains, width), "action_proj_out.bias.weight": (domains, action)}
    return tensors | {"action_modality_embed": (width,), "audio_modality_embed": (width,)}


def vision_tensors(config: dict) -> dict[str, tuple[int, ...]]:
    """The vision tower as published: the names of Qwen3-VL without their prefix."""
    prefix = "model.visual."
    tensors = qwen3_vl.expected_tensors(config)
    return {name.removeprefix(prefix): shape for name, shape in tensors.items() if name.startswith(prefix)}


def _total_size(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(2 * math.prod(shape) for shape in shapes.values())


def _write_shards(work: Path, shards: list[str], shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, str]:
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
    """Bfloat16 bytes: zeros for biases, ones for norms, normal numbers for everything else."""
    import numpy as np

    if "norm" in name and len(shape) == 1:
        values = np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
    elif name.endswith(".bias"):
        values = np.zeros(shape, np.float32)
    else:
        values = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(0.0, STD, shape).astype(np.float32)
    return safetensors_files.from_float32(values, "BF16")
