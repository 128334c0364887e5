"""Cosmos3-Edge: a dense Nemotron language model of 2 billion parameters with a SigLIP2 tower.

It is published in a layout of its own, with the generator's tensors in the same files. The language
model is stored under the names of that layout (`layers.0.self_attn.to_q`), the tower under those of
its class. transformers 5.17 to 5.23 save the tower under the language model's names as well, which
no other loader knows; `stored_name` takes these back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cosmos_reason.base.families.family import Family, Geometry, Layout, Shapes, sizes, text_sizes

_TEXT, _VISION = "model.language_model.", "model.visual."
# The layer of the class -> the name that it is stored under.
_STORED = {
    "self_attn.q_proj": "self_attn.to_q",
    "self_attn.k_proj": "self_attn.to_k",
    "self_attn.v_proj": "self_attn.to_v",
    "self_attn.o_proj": "self_attn.to_out",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
}
_CLASS = {stored: name for name, stored in _STORED.items()}
_LAYER = re.compile(r"(?<=\.)(?:self_attn|mlp)\.\w+(?=\.(?:weight|bias)$)")
# What only the generator needs.
_DROPPED = re.compile(
    r"_moe_gen|\.(add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\."
    r"|^(proj_in|proj_out|time_embedder|action_proj_(in|out))\.|^action_modality_embed$"
)
_KEPT = re.compile(r"(layers|embed_tokens|norm|lm_head|model\.(visual|projector))\.")


def stored_name(name: str) -> str:
    """Return the name in a checkpoint, of a tensor that is called by it or as transformers calls or
    saves it."""
    if name.startswith(_VISION):
        return _LAYER.sub(lambda match: _CLASS.get(match[0], match[0]), name)
    if name.startswith(_TEXT):
        name = name.removeprefix(_TEXT)
        return _LAYER.sub(lambda match: _STORED.get(match[0], match[0]), name)
    return name


def class_name(stored: str) -> str:
    """Return the name in the class, of a tensor that is stored under a name."""
    if stored.startswith(("model.", "lm_head.")):
        return stored
    return _TEXT + _LAYER.sub(lambda match: _CLASS.get(match[0], match[0]), stored)


def expected_tensors(config: Mapping) -> Shapes:
    """Return name -> shape of every tensor that Cosmos3EdgeForConditionalGeneration loads. Raises
    KeyError on a partial config, ValueError on one without sense.

    Source: the parameter list of the transformers class on the meta device, under the names that
    the published index has (670 tensors).
    """
    return _language_tensors(config) | _vision_tensors(config)


def geometry(config: Mapping) -> Geometry:
    """Return the widths of a model. Raises KeyError or ValueError for a config without them."""
    text, vision = config["text_config"], config["vision_config"]
    return Geometry(
        FAMILY,
        **text_sizes(config, text),
        vision_depth=vision["num_hidden_layers"],
        vision_hidden=vision["hidden_size"],
        vision_inner=vision["intermediate_size"],
        mergers=1,
        merger_inner=config["projector_hidden_size"],
    )


def _language_tensors(config: Mapping) -> Shapes:
    text = {"head_dim": 128} | config["text_config"]  # what the class assumes
    if text.get("attention_bias") or text.get("mlp_bias"):
        raise ValueError("attention_bias or mlp_bias, which no published model has")
    width, inner, layers = sizes(text, "hidden_size", "intermediate_size", "num_hidden_layers")
    head, query_heads, key_heads = sizes(
        text, "head_dim", "num_attention_heads", "num_key_value_heads"
    )
    (words,) = sizes(text, "vocab_size")
    layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.to_q": (query_heads * head, width),
        "self_attn.to_k": (key_heads * head, width),
        "self_attn.to_v": (key_heads * head, width),
        "self_attn.to_out": (width, query_heads * head),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    tensors = {"embed_tokens.weight": (words, width), "norm.weight": (width,)}
    for number in range(layers):
        for name, shape in layer.items():
            tensors[f"layers.{number}.{name}.weight"] = shape
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (words, width)
    return tensors


def _vision_tensors(config: Mapping) -> Shapes:
    vision = {"num_channels": 3, "num_patches": 256} | config["vision_config"]
    width, inner, depth = sizes(vision, "hidden_size", "intermediate_size", "num_hidden_layers")
    channels, patch, merge, positions = sizes(
        vision, "num_channels", "patch_size", "spatial_merge_size", "num_patches"
    )
    (out,) = sizes(config["text_config"], "hidden_size")
    (between,) = sizes(config, "projector_hidden_size")
    merged = width * merge**2
    # Name -> shape of the weight; each layer has a bias of the first size too.
    layers: Shapes = {
        f"{_VISION}embeddings.patch_embedding": (width, channels * patch**2),
        f"{_VISION}post_layernorm": (width,),
        "model.projector.norm": (width,),
        "model.projector.linear_fc1": (between, merged),
        "model.projector.linear_fc2": (out, between),
    }
    for number in range(depth):
        block = f"{_VISION}encoder.layers.{number}."
        layers[block + "layer_norm1"] = (width,)
        layers[block + "layer_norm2"] = (width,)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            layers[f"{block}self_attn.{name}"] = (width, width)
        layers[block + "mlp.fc1"] = (inner, width)
        layers[block + "mlp.fc2"] = (width, inner)
    tensors = {f"{_VISION}embeddings.position_embedding.weight": (positions, width)}
    for name, shape in layers.items():
        tensors[f"{name}.weight"] = shape
        tensors[f"{name}.bias"] = shape[:1]
    return tensors


def target_name(name: str) -> str | None:
    """Return the name that a tensor of the published layout, or of the class, is stored under; None
    for one that is dropped. Raises KeyError for an unknown one."""
    name = stored_name(re.sub(r"^(transformer|vision_encoder)\.", "", name))
    if _DROPPED.search(name):
        return None
    if _KEPT.match(name):
        return name
    raise KeyError(name)


def plain_config(published: Mapping, dtype: str) -> dict:
    """Return the config of transformers' own class. Early exports describe the 28 decoder layers as
    56 blocks of attention and MLP by turns. Raises KeyError for rotary positions without sections.
    """
    config = dict(published)
    config.pop("allow_patterns_overrides", None)
    projector = config.pop("projector_config", None)
    if isinstance(projector, dict) and "projector_hidden_size" not in config:
        config["projector_hidden_size"] = projector["merger_intermediate_size"]
    text = dict(published["text_config"], dtype=dtype)
    blocks = text.pop("layers_block_type", None)
    if isinstance(blocks, list):
        text["num_hidden_layers"] = sum(block != "mlp" for block in blocks)
    if not (text.get("rope_parameters") or {}).get("mrope_section"):
        raise KeyError("mrope_section")
    return config | {
        "architectures": [FAMILY.model_class],
        "projector_hidden_size": config.get("projector_hidden_size", 11520),  # the class assumes it
        "text_config": text,
    }


FAMILY = Family(
    model_type="cosmos3_edge",
    title="Cosmos3-Edge",
    model_class="Cosmos3EdgeForConditionalGeneration",
    processor_class="Cosmos3EdgeProcessor",
    decoder_layer="Cosmos3EdgeTextDecoderLayer",
    words=("cosmos3-edge", "cosmos3_edge"),
    own_in_cosmos_rl=False,
    elsewhere="cosmos-framework",
    patch=16,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    channels_last=True,
    frames_per_token=1,
    clip_pixels=(64 * 64, 24 * 1024 * 1024),
    image_pixels=(256 * 256, 4096 * 4096),
    writes_times=True,
    opens_thought=True,
    names_repeat=True,
    saved_by_class=False,
    features="last_hidden_state",
    # TAO's own for this model.
    defaults={"nframes": 6, "total_pixels": 5_529_600, "max_length": 16_000},
    text_linears={
        "language_model.layers.0.self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "language_model.layers.0.mlp": ("fc1", "fc2"),
    },
    vision_linears={
        "visual.encoder.layers.0.self_attn": ("k_proj", "v_proj", "q_proj", "out_proj"),
        "visual.encoder.layers.0.mlp": ("fc1", "fc2"),
        "visual.embeddings": ("patch_embedding",),
        "projector": ("linear_fc1", "linear_fc2"),
    },
    vision_block="visual.encoder.layers.0.",
    expected_tensors=expected_tensors,
    stored_name=stored_name,
    class_name=class_name,
    geometry=geometry,
)

LAYOUT = Layout(
    model_type="cosmos3_edge",
    title="published Cosmos3-Edge",
    family=FAMILY,
    version=1,
    vision=_VISION,
    donors={2048: "nvidia/Cosmos3-Edge"},
    suffix="plain",
    target_name=target_name,
    config=plain_config,
)
