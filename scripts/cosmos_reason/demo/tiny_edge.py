"""A Cosmos3-Edge checkpoint of a million kept parameters, in the published layout. Enter at
`build`.

Layout as NVIDIA's converter writes it: a root index that lists the reasoner alone, `transformer/`
(reasoner and generator in the same shards), `vision_encoder/` with the names of the class, and
`text_tokenizer/`, `scheduler/`.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base.families import cosmos3_edge
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

FAMILY = cosmos3_edge.FAMILY
THINK = ("<think>", "</think>")
TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 32,
    "hidden_act": "relu2",
    "hidden_size": 128,
    "initializer_range": STD,
    "intermediate_size": 384,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "cosmos3_edge_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    # Published: 100,000,000; a tiny model learns the order of frames later with it.
    "rope_parameters": {"mrope_section": [6, 5, 5], "rope_theta": 10000.0, "rope_type": "default"},
    "use_cache": True,
}
VISION = {
    "attention_dropout": 0.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 64,
    "intermediate_size": 128,
    "layer_norm_eps": 1e-6,
    "model_type": "cosmos3_edge_vision",
    "num_attention_heads": 4,
    "num_channels": 3,
    "num_hidden_layers": 2,
    "num_patches": 64,
    "patch_size": FAMILY.patch,
    "spatial_merge_size": 2,
}
PROJECTOR = 192  # published: 11,520
GENERATOR = {"latent": 12, "time": 32, "domains": 4, "action": 8}
CHAT_TEMPLATE = (
    CONTENT_TEXT
    + """\
{{- '\\n' -}}
{%- for message in messages -%}
  {%- set text = content_text(message.content) -%}
  {%- if message.role == 'assistant' and '<think>' not in text -%}
    {%- set text = '<think></think>' + text -%}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}{{- '<think></think>' -}}
  {%- else -%}{{- '<think>\\n' -}}
  {%- endif -%}
{%- endif -%}
"""
)


def build(folder: Path, seed: int, text: str, vocabulary: int = VOCABULARY) -> None:
    """Write the checkpoint; `text` trains the tokenizer. The same seed and text give the same
    bytes."""
    with whole_folder(folder) as work:
        ids = write_published_tokenizer(work, text, vocabulary, THINK, "PreTrainedTokenizerFast")
        config = config_of(ids)
        _write_small_files(work, ids, config)
        reasoner = FAMILY.expected_tensors(config)
        tower = {name: reasoner.pop(name) for name in list(reasoner) if name.startswith("model.")}
        transformer = reasoner | generator_tensors(config["text_config"])
        write_published_weights(work, transformer, reasoner, tower, seed)


def config_of(ids: dict[str, int]) -> dict:
    own = {
        "vocab_size": vocab_size(ids),
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    return {
        "allow_patterns_overrides": ["*/*.safetensors"],
        "architectures": [FAMILY.model_class],
        "dtype": "bfloat16",
        **media_tokens(ids),
        "model_type": FAMILY.model_type,
        "projector_hidden_size": PROJECTOR,
        "text_config": TEXT | own,
        "tie_word_embeddings": False,
        "vision_config": VISION,
    }


def _write_small_files(work: Path, ids: dict[str, int], config: dict) -> None:
    processor = processor_config(FAMILY, VISION["spatial_merge_size"])
    image = {
        "size": dict(zip(("shortest_edge", "longest_edge"), FAMILY.image_pixels, strict=True)),
        "image_processor_type": "Cosmos3EdgeImageProcessor",
    }
    video = {
        "size": dict(zip(("shortest_edge", "longest_edge"), FAMILY.clip_pixels, strict=True)),
        "video_processor_type": "Cosmos3EdgeVideoProcessor",
    }
    for name, value in {
        "config.json": config,
        "model_index.json": {"_class_name": "Cosmos3OmniPipeline"},
        "preprocessor_config.json": processor | image,
        "video_preprocessor_config.json": processor | video,
        "generation_config.json": generation_config(ids, "<|im_end|>"),
        "scheduler/scheduler_config.json": {"_class_name": "UniPCMultistepScheduler"},
        "transformer/config.json": {"num_layers": TEXT["num_hidden_layers"]},
    }.items():
        write_json(work / name, value)
    write_text(work / "chat_template.jinja", CHAT_TEMPLATE)


def generator_tensors(text: dict) -> dict[str, tuple[int, ...]]:
    """Return what the generator has besides, as the published shards hold it."""
    width, inner, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    queries = text["num_attention_heads"] * head
    keys = text["num_key_value_heads"] * head
    tensors = {"norm_moe_gen.weight": (width,), **generator_ends(width, **GENERATOR)}
    for number in range(text["num_hidden_layers"]):
        layer = f"layers.{number}."
        tensors |= {
            f"{layer}input_layernorm_moe_gen.weight": (width,),
            f"{layer}post_attention_layernorm_moe_gen.weight": (width,),
            f"{layer}self_attn.add_q_proj.weight": (queries, width),
            f"{layer}self_attn.add_k_proj.weight": (keys, width),
            f"{layer}self_attn.add_v_proj.weight": (keys, width),
            f"{layer}self_attn.to_add_out.weight": (width, queries),
            f"{layer}self_attn.norm_added_q.weight": (head,),
            f"{layer}self_attn.norm_added_k.weight": (head,),
            f"{layer}self_attn.k_norm_und_for_gen.weight": (head,),
            f"{layer}mlp_moe_gen.up_proj.weight": (inner, width),
            f"{layer}mlp_moe_gen.down_proj.weight": (width, inner),
        }
    return tensors
