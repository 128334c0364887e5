"""A Cosmos3-Nano Omni checkpoint of a million kept parameters, in the published layout: folders,
names, dtypes. Enter at `build`.

Layout as published for nvidia/Cosmos3-Nano: a root config and index, `transformer/` (reasoner,
generator, action, sound and diffusion tensors in several shards), `vision_encoder/` with bare
names, `text_tokenizer/`, `scheduler/`.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.base.files import whole_folder, write_json, write_text
from cosmos_reason.demo.tiny_parts import (
    CONTENT_TEXT,
    STD,
    VOCABULARY,
    generation_config,
    generator_ends,
    media_tokens,
    processor_config,
    vocab_size,
    write_published_tokenizer,
    write_published_weights,
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
CHAT_TEMPLATE = (
    CONTENT_TEXT
    + """\
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + content_text(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
)


def build(folder: Path, seed: int, text: str, vocabulary: int = VOCABULARY) -> None:
    """Write the checkpoint; `text` trains the tokenizer. The same seed and text give the same
    bytes."""
    with whole_folder(folder) as work:
        ids = write_published_tokenizer(work, text, vocabulary)
        config = _config(ids)
        _write_small_files(work, ids, config)
        transformer = transformer_tensors(config["text_config"])
        write_published_weights(work, transformer, transformer, vision_tensors(config), seed)


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
    processor = processor_config(qwen3_vl.FAMILY, VISION["spatial_merge_size"])
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
        "preprocessor_config.json": processor | image,
        "video_preprocessor_config.json": processor | video,
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
        **generator_ends(text["hidden_size"], **generator),
    }


def vision_tensors(config: dict) -> dict[str, tuple[int, ...]]:
    """Return the vision tower as published: the names of Qwen3-VL without their prefix."""
    tensors = {}
    for name, shape in qwen3_vl.expected_tensors(config).items():
        if name.startswith(qwen3_vl.VISION):
            tensors[name.removeprefix(qwen3_vl.VISION)] = shape
    return tensors
