"""A Cosmos3-Nano Omni checkpoint of a million kept parameters, in the published layout: folders,
names, dtypes. Enter at `build`.

Layout as published for nvidia/Cosmos3-Nano: a root config and index, `transformer/` (reasoner,
generator, action, sound and diffusion tensors in several shards), `vision_encoder/` with bare
names, `text_tokenizer/`, `scheduler/`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.base.files import whole_folder, write_json, write_text
from cosmos_reason.checkpoints import safetensors_files
from cosmos_reason.demo.tiny_parts import (
    STD,
    VOCABULARY,
    generation_config,
    media_tokens,
    total_size,
    vocab_size,
    write_shards,
    write_tokenizer,
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
    # Published: 5,000,000; a tiny model learns the order of frames later with it.
    "rope_theta": 10000,
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
# Sizes of what the generator works on: Nano has 192, 256, 32, 64, 64.
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
_PROCESSOR = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "merge_size": VISION["spatial_merge_size"],
    "patch_size": VISION["patch_size"],
    "processor_class": "Qwen3VLProcessor",
    "temporal_patch_size": VISION["temporal_patch_size"],
}


def build(folder: Path, seed: int, text: str, vocabulary: int = VOCABULARY) -> None:
    """Write the checkpoint; `text` trains the tokenizer. The same seed and text give the same
    bytes."""
    with whole_folder(folder) as work:
        tokenizer = work / "text_tokenizer"  # which also lies at the root
        tokenizer.mkdir()
        ids = write_tokenizer(tokenizer, text, vocabulary)
        for path in tokenizer.iterdir():
            shutil.copy(path, work / path.name)
        config = _config(ids)
        _write_small_files(work, ids, config)
        stem = "diffusion_pytorch_model"
        transformer = transformer_tensors(config["text_config"])
        shards = [f"transformer/{stem}-{number:05}-of-00002.safetensors" for number in (1, 2)]
        weight_map = write_shards(work, shards, transformer, seed)
        own_map = {name: file.removeprefix("transformer/") for name, file in weight_map.items()}
        index = {"metadata": {"total_size": total_size(transformer)}, "weight_map": own_map}
        write_json(work / "transformer" / f"{stem}.safetensors.index.json", index)
        vision = vision_tensors(config)
        weight_map |= write_shards(work, ["vision_encoder/model.safetensors"], vision, seed)
        safetensors_files.write_index(work, weight_map, total_size(transformer | vision))


def _config(ids: dict[str, int]) -> dict:
    own = {
        "vocab_size": vocab_size(ids),
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    return {
        "allow_patterns_overrides": ["*/*.safetensors"],
        "architectures": ["Cosmos3ForConditionalGeneration"],
        **media_tokens(ids),
        "model": {
            "_target": "omni_mot_model",
            "config": {"vlm_config": {"tie_word_embeddings": False}},
        },
        "model_type": "cosmos3_omni",
        "text_config": TEXT | own,
        "tie_word_embeddings": False,
        "vision_config": VISION,
    }


def _write_small_files(work: Path, ids: dict[str, int], config: dict) -> None:
    pipeline = {
        "_class_name": "Cosmos3OmniPipeline",
        "transformer": ["diffusers", "Cosmos3OmniTransformer"],
    }
    image = {
        "size": {"longest_edge": 2**24, "shortest_edge": 2**10},
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    video = {
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
    for name, value in {
        "config.json": config,
        "model_index.json": pipeline,
        "checkpoint.json": {"experiment": "demo"},
        "preprocessor_config.json": _PROCESSOR | image,
        "video_preprocessor_config.json": _PROCESSOR | video,
        "generation_config.json": generation_config(ids),
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        "scheduler/scheduler_config.json": {"_class_name": "UniPCMultistepScheduler"},
        "transformer/config.json": {
            "_class_name": "Cosmos3OmniTransformer",
            "num_layers": TEXT["num_hidden_layers"],
        },
        "vision_encoder/config.json": VISION,
    }.items():
        write_json(work / name, value)
    write_text(work / "chat_template.jinja", CHAT_TEMPLATE)


_REASONER_ATTENTION = {
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "o": "to_out",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_GENERATOR_ATTENTION = {
    "q": "add_q_proj",
    "k": "add_k_proj",
    "v": "add_v_proj",
    "o": "to_add_out",
    "q_norm": "norm_added_q",
    "k_norm": "norm_added_k",
}


def _tower(text: dict, projections: dict[str, str], suffix: str) -> dict[str, tuple[int, ...]]:
    """Return the layers of one tower; `projections` names its attention tensors, `suffix` marks its
    layer norms and MLP."""
    width, inner, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    queries = text["num_attention_heads"] * head
    keys = text["num_key_value_heads"] * head
    shapes = {
        "q": (queries, width),
        "k": (keys, width),
        "v": (keys, width),
        "o": (width, queries),
        "q_norm": (head,),
        "k_norm": (head,),
    }
    tensors = {f"norm{suffix}.weight": (width,)}
    for number in range(text["num_hidden_layers"]):
        layer = f"layers.{number}."
        for part, name in projections.items():
            tensors[f"{layer}self_attn.{name}.weight"] = shapes[part]
        tensors[f"{layer}mlp{suffix}.gate_proj.weight"] = (inner, width)
        tensors[f"{layer}mlp{suffix}.up_proj.weight"] = (inner, width)
        tensors[f"{layer}mlp{suffix}.down_proj.weight"] = (width, inner)
        tensors[f"{layer}input_layernorm{suffix}.weight"] = (width,)
        tensors[f"{layer}post_attention_layernorm{suffix}.weight"] = (width,)
    return tensors


def transformer_tensors(
    text: dict, generator: dict[str, int] = GENERATOR
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of everything in transformer/: the reasoner, and what the conversion drops."""
    embedding = (text["vocab_size"], text["hidden_size"])
    return {
        **_tower(text, _REASONER_ATTENTION, ""),
        "embed_tokens.weight": embedding,
        "lm_head.weight": embedding,
        **_tower(text, _GENERATOR_ATTENTION, "_moe_gen"),
        **_inputs_and_outputs(text["hidden_size"], **generator),
    }


def _inputs_and_outputs(
    width: int, latent: int, time: int, domains: int, action: int, sound: int
) -> dict:
    """Return the layers that bring images, actions and sound into the generator and out of it."""
    linears = {
        "proj_in": (width, latent),
        "proj_out": (latent, width),
        "time_embedder.linear_1": (width, time),
        "time_embedder.linear_2": (width, width),
        "audio_proj_in": (width, sound),
        "audio_proj_out": (sound, width),
    }
    tensors = {
        "action_proj_in.fc.weight": (domains, width * action),
        "action_proj_in.bias.weight": (domains, width),
        "action_proj_out.fc.weight": (domains, width * action),
        "action_proj_out.bias.weight": (domains, action),
        "action_modality_embed": (width,),
        "audio_modality_embed": (width,),
    }
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = shape
        tensors[f"{name}.bias"] = shape[:1]
    return tensors


def vision_tensors(config: dict) -> dict[str, tuple[int, ...]]:
    """Return the vision tower as published: the names of Qwen3-VL without their prefix."""
    tensors = {}
    for name, shape in qwen3_vl.expected_tensors(config).items():
        if name.startswith(qwen3_vl.VISION):
            tensors[name.removeprefix(qwen3_vl.VISION)] = shape
    return tensors
