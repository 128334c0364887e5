"""A Qwen2.5-VL checkpoint of a million parameters in the layout of nvidia/Cosmos-Reason1-7B: names
of tensors, a config with the text's keys at its top, dtype. Enter at `build`."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base.families import qwen2_5_vl
from cosmos_reason.base.files import read_json, whole_folder, write_json
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

FAMILY = qwen2_5_vl.FAMILY
TEXT = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": STD,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "max_window_layers": 3,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "mrope", "mrope_section": [6, 5, 5]},
    # Published: 1,000,000; a tiny model learns the order of frames later with it.
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "use_cache": True,
    "use_sliding_window": False,
}
VISION = {
    "depth": 2,
    "fullatt_block_indexes": [1],
    "hidden_act": "silu",
    "hidden_size": 128,
    "in_chans": 3,
    "initializer_range": STD,
    "intermediate_size": 256,
    "num_heads": 4,
    "out_hidden_size": TEXT["hidden_size"],
    "patch_size": FAMILY.patch,
    "spatial_merge_size": 2,
    "spatial_patch_size": FAMILY.patch,
    "temporal_patch_size": 2,
    "tokens_per_second": 2,
    "window_size": 4 * FAMILY.patch,  # published: 8 patches
}
CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- if loop.first and message.role != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '\\n' -}}
  {%- if message.content is string -%}{{- message.content -}}
  {%- else -%}
    {%- for part in message.content -%}
      {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
      {%- elif part.type == 'text' -%}{{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def build(folder: Path, seed: int, text: str, vocabulary: int = VOCABULARY) -> None:
    """Write the checkpoint; `text` trains the tokenizer. The same seed and text give the same
    bytes."""
    with whole_folder(folder) as work:
        ids = write_tokenizer(work, text, vocabulary)
        config = _config(ids)
        _write_small_files(work, ids, config)
        shards = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
        tensors = qwen2_5_vl.expected_tensors(config)
        weight_map = write_shards(work, shards, tensors, seed)
        safetensors_files.write_index(work, weight_map, total_size(tensors))


def _config(ids: dict[str, int]) -> dict:
    return {
        "architectures": [FAMILY.model_class],
        "model_type": FAMILY.model_type,
        **TEXT,
        "vocab_size": vocab_size(ids),
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        **media_tokens(ids),
        "vision_token_id": ids["<|vision_pad|>"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": VISION,
    }


def _write_small_files(work: Path, ids: dict[str, int], config: dict) -> None:
    processor = {
        "image_mean": list(FAMILY.mean),
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": list(FAMILY.std),
        "max_pixels": 12845056,
        "merge_size": VISION["spatial_merge_size"],
        "min_pixels": 3136,
        "patch_size": VISION["patch_size"],
        "processor_class": FAMILY.processor_class,
        "temporal_patch_size": VISION["temporal_patch_size"],
    }
    tokenizer_config = read_json(work / "tokenizer_config.json")
    for name, value in {
        "config.json": config,
        "preprocessor_config.json": processor,
        "generation_config.json": generation_config(ids),
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        "tokenizer_config.json": tokenizer_config | {"chat_template": CHAT_TEMPLATE},
    }.items():
        write_json(work / name, value)
