"""The Qwen3-VL architecture as names and shapes: what a complete checkpoint holds, derived from its config alone."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.findings import Finding, error

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(config: Mapping) -> Shapes:
    """Name -> shape of every tensor that Qwen3VLForConditionalGeneration loads. Raises KeyError on a partial config,
    ValueError on one without sense.

    Source: the parameter list of the transformers class on the meta device (750 tensors for the 8B config). With tied
    word embeddings `lm_head.weight` need not be stored and is not listed.
    """
    return _language_tensors(config) | _vision_tensors(config["vision_config"])


def _sizes(table: Mapping, *keys: str) -> list[int]:
    for key in keys:
        most = 1000 if key in ("depth", "num_hidden_layers") else 1 << 20
        if type(table[key]) is not int or not 0 < table[key] <= most:
            raise ValueError(f"{key} = {str(table[key])[:50]!r}, expected a whole number from 1 to {most:,}")
    return [table[key] for key in keys]


def _language_tensors(config: Mapping) -> Shapes:
    text = {"head_dim": 128} | config["text_config"]  # what the class assumes
    width, inner, layers = _sizes(text, "hidden_size", "intermediate_size", "num_hidden_layers")
    head, queries, keys, words = _sizes(text, "head_dim", "num_attention_heads", "num_key_value_heads", "vocab_size")
    queries, keys = queries * head, keys * head
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
    prefix = "model.language_model."
    tensors = {f"{prefix}embed_tokens.weight": (words, width), f"{prefix}norm.weight": (width,)}
    for number in range(layers):
        tensors |= {f"{prefix}layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (words, width)
    return tensors


def _vision_tensors(vision: Mapping) -> Shapes:
    width, inner, out, depth = _sizes(vision, "hidden_size", "intermediate_size", "out_hidden_size", "depth")
    channels, frames, patch = _sizes(vision, "in_channels", "temporal_patch_size", "patch_size")
    merge, positions = _sizes(vision, "spatial_merge_size", "num_position_embeddings")
    merged = width * merge**2
    linears, norms = {"patch_embed.proj": (width, channels, frames, patch, patch)}, {}
    for number in range(depth):
        block = f"blocks.{number}."
        norms |= {block + "norm1": width, block + "norm2": width}
        linears |= {block + "attn.qkv": (3 * width, width), block + "attn.proj": (width, width)}
        linears |= {block + "mlp.linear_fc1": (inner, width), block + "mlp.linear_fc2": (width, inner)}
    if not isinstance(indexes := vision["deepstack_visual_indexes"], list):
        raise ValueError(f"deepstack_visual_indexes = {str(indexes)[:50]}, expected a list")
    mergers = {f"deepstack_merger_list.{n}.": merged for n in range(len(indexes))}
    for merger, norm_width in ({"merger.": width} | mergers).items():
        norms[merger + "norm"] = norm_width
        linears |= {merger + "linear_fc1": (merged, merged), merger + "linear_fc2": (out, merged)}
    tensors = {"pos_embed.weight": (positions, width)}
    for name, shape in (linears | {name: (size,) for name, size in norms.items()}).items():
        tensors |= {f"{name}.weight": shape, f"{name}.bias": (shape[0],)}
    return {f"model.visual.{name}": shape for name, shape in tensors.items()}


def compare(where: str, config: Mapping, shapes: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """What differs between stored `shapes` and the architecture of `config`: missing, extra, wrong shapes.

    A loader fills a missing tensor with random numbers and says nothing, so this is checked here.
    """
    try:
        expected = expected_tensors(config)
    except KeyError as problem:
        return [error("CKPT-CONFIG-PARTIAL", where, f"got no {problem} in the config, expected all of Qwen3-VL")]
    except (TypeError, ValueError) as problem:
        return [error("CKPT-CONFIG-BAD", where, f"got a config with {problem}")]
    findings = []
    optional = {"lm_head.weight"} if config.get("tie_word_embeddings", False) else set()
    for id, names, text in (
        ("CKPT-TENSOR-MISSING", expected.keys() - shapes.keys(), "are missing"),
        ("CKPT-TENSOR-EXTRA", shapes.keys() - expected.keys() - optional, "do not belong to the architecture"),
    ):
        if names:
            message = f"got {len(shapes)} tensors, expected {len(expected)}: {len(names)} {text}"
            findings.append(error(id, where, f"{message} ({', '.join(sorted(names)[:3])})", names=sorted(names)[:1000]))
    wrong = [name for name in sorted(expected.keys() & shapes.keys()) if tuple(shapes[name]) != expected[name]]
    if wrong:
        some = "; ".join(f"{name} {list(shapes[name])}, expected {list(expected[name])}" for name in wrong[:3])
        findings.append(error("CKPT-TENSOR-SHAPE", where, f"got {len(wrong)} wrong shapes: {some}", names=wrong[:1000]))
    return findings
