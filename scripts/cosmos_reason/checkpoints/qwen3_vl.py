"""The Qwen3-VL architecture as names and shapes: what a complete checkpoint holds, derived from its
config alone."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
TEXT, VISION = "model.language_model.", "model.visual."
MOST_LAYERS = 1000
LARGEST_SIZE = 1 << 20


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


def sizes(table: Mapping, *keys: str) -> list[int]:
    """Return numbers of a config. Raises KeyError, or ValueError for one without sense."""
    for key in keys:
        most = MOST_LAYERS if key in ("depth", "num_hidden_layers") else LARGEST_SIZE
        if type(table[key]) is not int or not 0 < table[key] <= most:
            written = str(table[key])[:50]
            raise ValueError(f"{key} = {written!r}, expected a whole number from 1 to {most:,}")
    return [table[key] for key in keys]


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
