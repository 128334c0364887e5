"""The published layout of Cosmos3-Nano and Cosmos3-Super, which holds a Qwen3-VL model.

It has two towers that share their layers (a reasoner and a generator), a vision tower, and the
input and output layers of images, sound and actions. The reasoner and the vision tower together
are a Qwen3-VL model; nothing is split, merged or turned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.base.families.family import Layout

# Applied in this order; a tensor that no rule renames is an error. The names are those of the
# published layout (diffusers), of the exports of fine-tunes (`model.net.`), and of Qwen3-VL itself.
_PREFIX = re.compile(r"^(transformer\.|vision_encoder\.|model\.net\.)")
_DROPPED = re.compile(
    r"_moe_gen|\.(add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\."
    r"|^(proj_in|proj_out|time_embedder|(audio|action)_proj_(in|out))\."
    r"|^(llm2(vae|sound|action)|(vae|sound|action)2llm)\.|^(audio|sound|action)_modality_embed$"
)
_RENAMED = (
    (re.compile(r"^language_model\.(model\.)?(?=layers\.|embed_tokens\.|norm\.)"), qwen3_vl.TEXT),
    (re.compile(r"^(language_model|model)\.visual\."), qwen3_vl.VISION),
    (re.compile(r"^(language_model\.)?lm_head\.(?=weight$)"), "lm_head."),
    (re.compile(r"^(?=(layers|embed_tokens|norm)\.)"), qwen3_vl.TEXT),
    (
        re.compile(r"^(?=(blocks|merger|patch_embed|pos_embed|deepstack_merger_list)\.)"),
        qwen3_vl.VISION,
    ),
)
_ATTENTION = {
    "to_q": "q_proj",
    "to_k": "k_proj",
    "to_v": "v_proj",
    "to_out": "o_proj",
    "norm_q": "q_norm",
    "norm_k": "k_norm",
}
_ATTENTION_NAME = re.compile(rf"(?<=\.self_attn\.)({'|'.join(_ATTENTION)})(?=\.)")
_ROPE_THETA = 5_000_000  # what the class of Qwen3-VL assumes
_TOKEN_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def target_name(name: str) -> str | None:
    """Return the Qwen3-VL name of a stored tensor, None for one that is dropped. Raises KeyError
    for an unknown one."""
    name = _PREFIX.sub("", name)
    if _DROPPED.search(name):
        return None
    for pattern, replacement in _RENAMED:
        renamed, count = pattern.subn(replacement, name, count=1)
        if count:
            return _ATTENTION_NAME.sub(lambda match: _ATTENTION[match[1]], renamed)
    raise KeyError(name)


def config(published: Mapping, dtype: str) -> dict:
    """Return the config in the words of transformers 4.57, which 5.x reads too (the reverse is not
    true). Raises KeyError for rotary positions without sections."""
    text = dict(published["text_config"], model_type="qwen3_vl_text", dtype=dtype)
    rope = {}
    for table in (text.pop("rope_parameters", None), text.get("rope_scaling")):
        if isinstance(table, dict):
            rope |= table
    if not rope.get("mrope_section"):
        raise KeyError("mrope_section")
    text["rope_theta"] = rope.pop("rope_theta", None) or text.get("rope_theta") or _ROPE_THETA
    text["rope_scaling"] = rope
    return {
        "architectures": [qwen3_vl.FAMILY.model_class],
        "model_type": qwen3_vl.FAMILY.model_type,
        **{key: published[key] for key in _TOKEN_IDS if key in published},
        "tie_word_embeddings": published.get("tie_word_embeddings", False),
        "text_config": text,
        "vision_config": dict(published["vision_config"], model_type="qwen3_vl"),
        "transformers_version": "4.57.1",
    }


LAYOUT = Layout(
    model_type="cosmos3_omni",
    title="Cosmos3 Omni",
    family=qwen3_vl.FAMILY,
    version=2,
    vision=qwen3_vl.VISION,
    donors={4096: "Qwen/Qwen3-VL-8B-Instruct", 5120: "Qwen/Qwen3-VL-32B-Instruct"},
    suffix="qwen3-vl",
    target_name=target_name,
    config=config,
)
