"""Qwen3-VL, and what is published in its layout or becomes it by conversion: Cosmos-Reason2, and
the reasoners of Cosmos3-Nano and Cosmos3-Super."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.base.families.family import Family, Geometry, Shapes, sizes, text_sizes

TEXT, VISION = "model.language_model.", "model.visual."


def expected_tensors(config: Mapping) -> Shapes:
    """Return name -> shape of every tensor that Qwen3VLForConditionalGeneration loads. Raises
    KeyError on a partial config, ValueError on one without sense.

    Source: the parameter list of the transformers class on the meta device (750 tensors for the 8B
    config). With tied word embeddings `lm_head.weight` need not be stored and is not listed.
    """
    return _language_tensors(config) | _vision_tensors(config["vision_config"])


def stored_name(name: str) -> str:
    """Return the name itself: Qwen3-VL is stored under the names of its class."""
    return name


def geometry(config: Mapping) -> Geometry:
    """Return the widths of a model. Raises KeyError or ValueError for a config without them."""
    text, vision = config["text_config"], config["vision_config"]
    return Geometry(
        FAMILY,
        **text_sizes(config, text),
        vision_depth=vision["depth"],
        vision_hidden=vision["hidden_size"],
        vision_inner=vision["intermediate_size"],
        mergers=1 + len(vision.get("deepstack_visual_indexes", ())),
    )


def _language_tensors(config: Mapping) -> Shapes:
    text = {"head_dim": 128} | config["text_config"]  # what the class assumes
    width, inner, layers = sizes(text, "hidden_size", "intermediate_size", "num_hidden_layers")
    head, query_heads, key_heads = sizes(
        text, "head_dim", "num_attention_heads", "num_key_value_heads"
    )
    (words,) = sizes(text, "vocab_size")
    queries = query_heads * head
    keys = key_heads * head
    layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    tensors = {f"{TEXT}embed_tokens.weight": (words, width), f"{TEXT}norm.weight": (width,)}
    for number in range(layers):
        for name, shape in layer.items():
            tensors[f"{TEXT}layers.{number}.{name}.weight"] = shape
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (words, width)
    return tensors


def _vision_tensors(vision: Mapping) -> Shapes:
    width, inner, out, depth = sizes(
        vision, "hidden_size", "intermediate_size", "out_hidden_size", "depth"
    )
    channels, frames, patch = sizes(vision, "in_channels", "temporal_patch_size", "patch_size")
    merge, positions = sizes(vision, "spatial_merge_size", "num_position_embeddings")
    indexes = vision["deepstack_visual_indexes"]
    if not isinstance(indexes, list):
        raise ValueError(f"deepstack_visual_indexes = {str(indexes)[:50]}, expected a list")
    merged = width * merge**2
    # Name -> shape of the weight; each layer has a bias of the first size too.
    layers: Shapes = {"patch_embed.proj": (width, channels, frames, patch, patch)}
    for number in range(depth):
        block = f"blocks.{number}."
        layers[block + "norm1"] = (width,)
        layers[block + "norm2"] = (width,)
        layers[block + "attn.qkv"] = (3 * width, width)
        layers[block + "attn.proj"] = (width, width)
        layers[block + "mlp.linear_fc1"] = (inner, width)
        layers[block + "mlp.linear_fc2"] = (width, inner)
    norm_widths = {"merger.": width}
    for number in range(len(indexes)):
        norm_widths[f"deepstack_merger_list.{number}."] = merged
    for merger, norm_width in norm_widths.items():
        layers[merger + "norm"] = (norm_width,)
        layers[merger + "linear_fc1"] = (merged, merged)
        layers[merger + "linear_fc2"] = (out, merged)
    tensors = {f"{VISION}pos_embed.weight": (positions, width)}
    for name, shape in layers.items():
        tensors[f"{VISION}{name}.weight"] = shape
        tensors[f"{VISION}{name}.bias"] = shape[:1]
    return tensors


FAMILY = Family(
    model_type="qwen3_vl",
    title="Qwen3-VL",
    model_class="Qwen3VLForConditionalGeneration",
    processor_class="Qwen3VLProcessor",
    decoder_layer="Qwen3VLTextDecoderLayer",
    words=("qwen3-vl", "qwen3_vl", "qwen3vl", "reason2", "cosmos3-nano", "cosmos3_nano"),
    own_in_cosmos_rl=False,
    patch=16,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    writes_times=True,
    text_linears={
        "language_model.layers.0.self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "language_model.layers.0.mlp": ("gate_proj", "up_proj", "down_proj"),
    },
    vision_linears={
        "visual.blocks.0.attn": ("qkv", "proj"),
        "visual.blocks.0.mlp": ("linear_fc1", "linear_fc2"),
        "visual.merger": ("linear_fc1", "linear_fc2"),
        "visual.deepstack_merger_list.0": ("linear_fc1", "linear_fc2"),
    },
    vision_block="visual.blocks.0.",
    expected_tensors=expected_tensors,
    stored_name=stored_name,
    class_name=stored_name,
    geometry=geometry,
)
