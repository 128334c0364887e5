"""The Qwen2.5-VL architecture as names and shapes, derived from its config alone; the names are
those that its checkpoints are stored under (of transformers before 4.52)."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.checkpoints.qwen3_vl import Shapes, sizes

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


def expected_tensors(config: Mapping) -> Shapes:
    """Return name -> shape of every tensor that Qwen2_5_VLForConditionalGeneration loads. Raises
    KeyError on a partial config, ValueError on one without sense.

    Source: the parameter list of the transformers class on the meta device, under the names that
    it saves (729 tensors for the 7B config). A published config has the text's keys at its top.
    """
    text = config.get("text_config", config)
    return _language_tensors(config, text) | _vision_tensors(config["vision_config"])


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
