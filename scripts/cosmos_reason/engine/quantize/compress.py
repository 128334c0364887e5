"""llmcompressor at work on a loaded model: the recipe of a scheme, what it did to each layer, and
the folder of the result."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cosmos_reason.base import files, progress
from cosmos_reason.base.families import FAMILIES, Family
from cosmos_reason.checkpoints import adapters, quantized, safetensors_files
from cosmos_reason.checkpoints.quantized import Scheme
from cosmos_reason.engine.quantize.calibration import Records

SHARD_SIZE = "4GB"
KV_FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def compress(model, tokenizer, table: dict, model_type: str, calibration: Records | None) -> None:
    """Quantize the model in memory as the `quantize` table of a spec says."""
    from llmcompressor import oneshot

    name = table["quantization_scheme"]
    family = FAMILIES[model_type]
    options = {"model": model, "processor": tokenizer, "recipe": recipe(name, table, family)}
    if calibration is not None:
        options |= {
            "dataset": calibration.loader(),
            "num_calibration_samples": len(calibration),
            "max_seq_length": table["max_sequence_length"],
            "pipeline": "sequential",
            "sequential_targets": [family.decoder_layer],
        }
    oneshot(**options)


def recipe(name: str, table: dict, family: Family) -> list:
    """Return the library's modifiers for a scheme."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    scheme = quantized.SCHEMES[name]
    kind = GPTQModifier if scheme.refined else QuantizationModifier
    options = {"targets": "Linear", "scheme": name, "ignore": quantized.left_alone(family)}
    if table["kv_precision"] == "fp8":
        options["kv_cache_scheme"] = KV_FP8
    modifiers = [kind(**options)]
    strength = table["smoothing_strength"]
    if scheme.smoothed and strength > 0:
        mappings = quantized.smoothed_into(family)
        modifiers.insert(0, SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
    return modifiers


def weight_errors(model, source: Path, scheme: Scheme) -> dict[str, float]:
    """Return ||W - quantized W|| / ||W|| of every compressed layer. W is the source's, or where
    outliers were moved into the weights what that made of it."""
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    family = FAMILIES[model.config.model_type]
    tensors, _ = safetensors_files.read_folder(source)
    stored_names = {tensor: name for name, tensor in tensors.items()}
    stored = quantized.linear_layers(tensors)
    compressed = []
    for module_name, module in model.named_modules():
        layer = quantized.short_name(module_name, family)
        if layer is not None and hasattr(module, "quantization_scheme"):
            compressed.append((layer, module))
    errors = {}
    shown = progress.bar(len(compressed), "comparing layers", unit="layer")
    for layer, module in compressed:
        weight = module.weight.detach()
        rounded = fake_quantize(
            weight,
            module.weight_scale,
            getattr(module, "weight_zero_point", None),
            module.quantization_scheme.weights,
            global_scale=getattr(module, "weight_global_scale", None),
        )
        reference = weight
        if not scheme.smoothed:
            tensor = stored[layer]
            with safe_open(tensor.file, "pt", device=str(weight.device)) as file:
                reference = file.get_tensor(stored_names[tensor])
        reference = reference.float()
        distance = torch.linalg.norm(reference - rounded.float()) / torch.linalg.norm(reference)
        errors[layer] = round(float(distance), 6)
        shown.update()
    shown.close()
    return errors


def save(model, source: Path, work: Path) -> None:
    """Write the model into the folder `work`: weights in shards, the source's config with what the
    library says of the quantization, and all else of the source byte by byte."""
    model.save_pretrained(work, save_compressed=True, max_shard_size=SHARD_SIZE)
    written = files.read_json(work / "config.json")
    config = files.read_json(source / "config.json")
    # The library lists modules by name; those of some families are stored under others than
    # they load under.
    family = FAMILIES[config["model_type"]]
    ignored = {"ignore": quantized.left_alone(family)}
    config["quantization_config"] = written["quantization_config"] | ignored
    files.write_json(work / "config.json", config)
    adapters.copy_beside(source, work, adapters.OF_ITS_WEIGHTS | {"config.json", quantized.RECORD})
    if not family.saved_by_class:
        _rename(work, family)
    for path in work.glob("*.safetensors"):
        path.chmod(0o644)  # the writer leaves them to their owner: a server may be another user


def _rename(work: Path, family: Family) -> None:
    """Give tensors the names that the family stores them under, shard by shard."""
    index = work / safetensors_files.INDEX_NAME
    for path in work.glob("*.safetensors"):
        tensors = {family.stored_name(name): one for name, one in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    if index.is_file():
        table = files.read_json(index)
        names = table["weight_map"].items()
        table["weight_map"] = {family.stored_name(name): file for name, file in names}
        files.write_json(index, table)
