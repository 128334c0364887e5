"""Quantized model folders: the schemes, which layers they compress and what those must measure, and
what proves that one is whole. Enter at `check_source` before the work, `verify` after it."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.families import Family
from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs, safetensors_files
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.checkpoints.tensor_numbers import FLOATS

RECORD = "quantization.json"
MAX_NAMES = 1000


@dataclass(frozen=True)
class Scheme:
    """A number format as compressed-tensors names it. The inputs of a layer must be a multiple of
    `multiple`: the weights that share a scale, or what the kernels of FP8 and INT8 ask for. `bits`
    are those of a weight. A `smoothed` scheme rounds activations with what calibration has seen of
    them, a `refined` one corrects the weights by it (GPTQ). The GPUs that compute in the format
    begin at `capability`; all compute in those without one."""

    bits: int
    multiple: int
    smoothed: bool = False
    refined: bool = False
    capability: tuple[int, int] | None = None

    @property
    def needs_data(self) -> bool:
        return self.smoothed or self.refined


SCHEMES = {
    "FP8_DYNAMIC": Scheme(bits=8, multiple=16, capability=(8, 9)),
    "FP8": Scheme(bits=8, multiple=16, smoothed=True, capability=(8, 9)),
    "NVFP4": Scheme(bits=4, multiple=16, smoothed=True, capability=(10, 0)),
    "W8A8": Scheme(bits=8, multiple=16, smoothed=True),
    "W8A16": Scheme(bits=8, multiple=128, refined=True),
    "W4A16": Scheme(bits=4, multiple=128, refined=True),
}


# A weight of a decoder layer, as one of the families stores it.
_LINEAR = re.compile(
    r"(?:model\.(?:language_model\.)?)?(layers\.\d+\.(?:self_attn|mlp)\.(?:\w+_proj|to_\w+))\.weight"
)


def left_alone(family: Family) -> list[str]:
    """Return patterns of what is not compressed: the output head, and the vision tower with its
    merger."""
    parts = dict.fromkeys(path.partition(".")[0] for path in family.vision_linears)
    return ["re:.*lm_head", *(f"re:.*{part}.*" for part in parts)]


def smoothed_into(family: Family) -> list[list]:
    """Return groups of layers, each with the norm before it that takes the other half of the
    smoothing."""
    part = "re:.*language_model.*"
    (*inputs, _), (*widening, _) = family.text_linears.values()
    return [
        [[part + name for name in inputs], f"{part}input_layernorm"],
        [[part + name for name in widening], f"{part}post_attention_layernorm"],
    ]


def linear_layers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that are compressed, by the name of their layer: layers.0.mlp.up_proj."""
    found = {}
    for name, tensor in tensors.items():
        match = _LINEAR.fullmatch(name)
        if match and len(tensor.shape) == 2:
            found[match[1]] = tensor
    return found


def short_name(module: str, family: Family) -> str | None:
    """Return the name of a layer in `linear_layers`, from that of its module in the loaded
    model."""
    match = _LINEAR.fullmatch(family.stored_name(f"{module}.weight"))
    return match[1] if match else None


# -- before the work -----------------------------------------------------------------------------


def check_source(folder: Path, scheme_name: str) -> list[Finding]:
    """Return what keeps a model folder from being quantized with a scheme; headers are read
    only."""
    config = safetensors_files.read_object(folder / "config.json")
    if config.get("quantization_config") is not None:
        return [_already(folder, "a quantization_config")]
    tensors, found = safetensors_files.read_folder(folder)
    if found:
        return found
    layers = linear_layers(tensors)
    if not layers:
        message = "it holds no linear layers of a language model of a known family"
        return [error("QUANT-NO-LAYERS", folder, message)]
    coarse = {tensor.dtype for tensor in layers.values()} - FLOATS
    if coarse:
        return [_already(folder, f"weights in {', '.join(sorted(coarse))}")]
    return _indivisible_inputs(folder, layers, scheme_name)


def _already(folder: Path, what: str) -> Finding:
    message = f"it is quantized already ({what}); quantize the model that it was made from"
    return error("QUANT-ALREADY", folder, message)


def _indivisible_inputs(
    folder: Path, layers: Mapping[str, Tensor], scheme_name: str
) -> list[Finding]:
    """Return a finding per layer whose inputs the scheme cannot divide; it names the schemes that
    can, of which only the user can choose."""
    multiple = SCHEMES[scheme_name].multiple
    widths = {name: tensor.shape[1] for name, tensor in layers.items()}
    fitting = [
        name
        for name, scheme in SCHEMES.items()
        if all(width % scheme.multiple == 0 for width in widths.values())
    ]
    others = f"; {', '.join(fitting)} divide every layer" if fitting else ""
    found = []
    for name, width in widths.items():
        if width % multiple:
            message = f"it has {width} inputs, and {scheme_name} needs a multiple of {multiple}"
            found.append(error("QUANT-WIDTH", name, message + others, folder=str(folder)))
    return found[:MAX_NAMES]


def stored_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def bytes_after(tensors: Mapping[str, Tensor], scheme: Scheme) -> int:
    """Return about how large the result will be: scales are counted as one number of 2 bytes per
    `multiple` of weights, of channels there are fewer."""
    layers = linear_layers(tensors)
    weights = sum(math.prod(tensor.shape) for tensor in layers.values())
    left_alone = stored_bytes(tensors) - stored_bytes(layers)
    return left_alone + weights * scheme.bits // 8 + 2 * weights // scheme.multiple


def check_disk(output: Path, needed: int) -> list[Finding]:
    place = next(path for path in (output, *output.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if needed <= free:
        return []
    message = f"{free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed"
    return [error("QUANT-DISK", output, message, Fix(changes={"results_dir": "DIR"}))]


def check_output(output: Path) -> list[Finding]:
    """Return an error for a folder with something in it, but for the launcher's claim: it would be
    replaced."""
    if not output.exists():
        return []
    if output.is_dir() and all(path.name == run_outputs.CLAIM for path in output.iterdir()):
        return []
    message = "it holds other files; name a new folder"
    if (output / RECORD).is_file():
        message = "it holds a model of other inputs; name a new folder"
    return [error("QUANT-OUTPUT", output, message, Fix(changes={"results_dir": "DIR"}))]


def keep_claim(output: Path, work: Path) -> None:
    """Give the folder `work`, which takes the place of `output`, to the same job."""
    claim = output / run_outputs.CLAIM
    if claim.is_file():
        shutil.copyfile(claim, work / run_outputs.CLAIM)


# -- after it ------------------------------------------------------------------------------------


def verify(folder: Path) -> list[Finding]:
    """Return what is wrong with a quantized model folder: its files and every number as of any
    model, and something compressed at all."""
    config = safetensors_files.read_object(folder / "config.json")
    if not isinstance(config.get("quantization_config"), dict):
        message = "it has no quantization_config, so nothing was quantized"
        return [error("QUANT-NOTHING-DONE", folder / "config.json", message)]
    found = run_outputs.verify_model(folder, whole=True)
    if findings.has_errors(found):
        return found
    tensors, _ = safetensors_files.read_folder(folder)
    if not any(name.endswith("_scale") for name in tensors):
        message = "it holds no scales, so no layer was compressed"
        return [error("QUANT-NOTHING-DONE", folder, message)]
    return found


def read_record(folder: Path) -> dict | None:
    """Return quantization.json of a finished quantization, None without one. Raises Failure for one
    that is no object."""
    if not (folder / RECORD).is_file():
        return None
    return safetensors_files.read_object(folder / RECORD)


def write_record(folder: Path, record: dict) -> None:
    files.write_json(folder / RECORD, record)
