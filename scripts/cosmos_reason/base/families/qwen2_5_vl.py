"""Qwen2.5-VL, which Cosmos-Reason1 is. Its checkpoints are stored under the names of transformers
before 4.52, and a published config has the text's keys at its top."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cosmos_reason.base.families.family import Family, Geometry, Shapes, sizes, text_sizes

# What the class of the vision tower assumes.
VISION_DEFAULTS = {
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def stored_name(name: str) -> str:
    """Return the name in a checkpoint, of a tensor that is called by it or as transformers calls it
    since 4.52."""
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def class_name(stored: str) -> str:
    """Return the name in the class, of a tensor that is stored under a name."""
    if stored.startswith("visual."):
        return f"model.{stored}"
    return re.sub(r"^model\.(?!language_model\.|visual\.)", "model.language_model.", stored)


def expected_tensors(config: Mapping) -> Shapes:
    """Return name -> shape of every tensor that Qwen2_5_VLForConditionalGeneration loads. Raises
    KeyError on a partial config, ValueError on one without sense.

    Source: the parameter list of the transformers class on the meta device, under the names that
    it saves (729 tensors for the 7B config).
    """
    text = config.get("text_config", config)
    return _language_tensors(config, text) | _vision_tensors(config["vision_config"])


def geometry(config: Mapping) -> Geometry:
    """Return the widths of a model. Raises KeyError or ValueError for a config without them."""
    text, vision = config.get("text_config", config), config["vision_config"]
    return Geometry(
        FAMILY,
        **text_sizes(config, text),
        vision_depth=vision["depth"],
        vision_hidden=vision["hidden_size"],
        vision_inner=vision["intermediate_size"],
        mergers=1,
    )


def _language_tensors(config: Mapping, text: Mapping) -> Shapes:
    width, inner, layers = sizes(text, "hidden_size", "intermediate_size", "num_hidden_layers")
    heads, key_heads, words = sizes(
        text, "num_attention_heads", "num_key_value_heads", "vocab_size"
    )
    keys = width // heads * key_heads
    layer = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.q_proj.bias": (width,),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (width, width),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    tensors = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    for number in range(layers):
        for name, shape in layer.items():
            tensors[f"model.layers.{number}.{name}"] = shape
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (words, width)
    return tensors


def _vision_tensors(table: Mapping) -> Shapes:
    vision = VISION_DEFAULTS | dict(table)
    width, inner, out, depth = sizes(
        vision, "hidden_size", "intermediate_size", "out_hidden_size", "depth"
    )
    channels, patch, merge, frames = sizes(vision, *VISION_DEFAULTS)
    merged = width * merge**2
    layers: Shapes = {"merger.mlp.0": (merged, merged), "merger.mlp.2": (out, merged)}
    tensors = {
        "visual.patch_embed.proj.weight": (width, channels, frames, patch, patch),
        "visual.merger.ln_q.weight": (width,),
    }
    for number in range(depth):
        block = f"blocks.{number}."
        tensors[f"visual.{block}norm1.weight"] = (width,)
        tensors[f"visual.{block}norm2.weight"] = (width,)
        layers[block + "attn.qkv"] = (3 * width, width)
        layers[block + "attn.proj"] = (width, width)
        layers[block + "mlp.gate_proj"] = (inner, width)
        layers[block + "mlp.up_proj"] = (inner, width)
        layers[block + "mlp.down_proj"] = (width, inner)
    for name, shape in layers.items():
        tensors[f"visual.{name}.weight"] = shape
        tensors[f"visual.{name}.bias"] = shape[:1]
    return tensors


FAMILY = Family(
    model_type="qwen2_5_vl",
    title="Qwen2.5-VL",
    model_class="Qwen2_5_VLForConditionalGeneration",
    processor_class="Qwen2_5_VLProcessor",
    decoder_layer="Qwen2_5_VLDecoderLayer",
    words=("qwen2.5", "qwen2_5", "reason1"),
    own_in_cosmos_rl=True,
    patch=14,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    writes_times=False,
    positions_per_second=4,
    default_system=11,  # "You are a helpful assistant."
    tags_answers=True,
    guide_pixels=81920,
    text_linears={
        "language_model.layers.0.self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "language_model.layers.0.mlp": ("gate_proj", "up_proj", "down_proj"),
    },
    vision_linears={
        "visual.blocks.0.attn": ("qkv", "proj"),
        "visual.blocks.0.mlp": ("gate_proj", "up_proj", "down_proj"),
        "visual.merger": ("mlp.0", "mlp.2"),
    },
    vision_block="visual.blocks.0.",
    expected_tensors=expected_tensors,
    stored_name=stored_name,
    class_name=class_name,
    geometry=geometry,
)
