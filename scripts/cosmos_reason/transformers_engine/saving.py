"""What a training run leaves on disk: safetensors exports and resume folders, in cosmos-rl's layout."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cosmos_reason import checkpoints
from cosmos_reason.findings import bad_input, outside
from cosmos_reason.storage import read_json, whole_folder, write_json

INDEX = "model.safetensors.index.json"
NOT_OF_THE_RESULT = {INDEX, "provenance.json"}  # what the base says of its own weights
RANK_MARKER = ".rank_0_complete"


@contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """whole_folder; what the safetensors library could not write (a full disk) is a Failure with exit code 3."""
    try:
        with whole_folder(folder) as partial:
            yield partial
    except SafetensorError as problem:
        fix = "free space there, or --set train.ckpt.max_keep=1"
        raise outside("ENGINE-SAVE-FAILED", folder, f"got {problem}", fix) from None


def export(network, base_folder: Path, folder: Path, dtype: torch.dtype) -> None:
    """A folder that loads by itself (full model) or on its base (LoRA). Everything but the weights is copied from
    the base, byte for byte: a config that transformers 5 writes cannot be read by 4.57."""
    with _written(folder) as partial:
        if hasattr(network, "peft_config"):
            network.save_pretrained(partial)
        else:
            weights = {name: tensor.detach().to("cpu", dtype) for name, tensor in network.state_dict().items()}
            network.save_pretrained(partial, state_dict=weights, max_shard_size="5GB")
            _ensure_index(partial)
        for path in base_folder.iterdir():
            if path.suffix in {".json", ".jinja", ".txt"} and path.name not in NOT_OF_THE_RESULT and path.is_file():
                shutil.copyfile(path, partial / path.name)


def _ensure_index(folder: Path) -> None:
    """transformers writes no index for a single file; readers of cosmos-rl exports expect one."""
    single = folder / "model.safetensors"
    if single.is_file():
        from safetensors import safe_open

        with safe_open(single, framework="pt") as weights:
            names = list(weights.keys())
        size = single.stat().st_size
        write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names, single.name)})


def save_resume(folder: Path, network, optimizer, spec: dict, state: dict) -> None:
    """Everything `load_resume` needs to continue as if nothing had happened. No pickle."""
    moments = {
        f"{index}.{key}": value.detach().cpu().contiguous()
        for index, parameter in enumerate(optimizer.param_groups[0]["params"])
        for key, value in optimizer.state[parameter].items()
    }
    with _written(folder) as partial:
        save_file(_trainable(network), partial / "model.safetensors")
        save_file(moments, partial / "optimizer.safetensors")
        write_json(partial / "trainer_state.json", state)
        write_json(partial / "cosmos_config", spec)
        (partial / RANK_MARKER).touch()


def load_resume(folder: Path, network, optimizer) -> dict:
    """Put weights and optimizer back and return the trainer state (`step`, `total_steps`, `records`)."""
    if not checkpoints.is_complete_resume(folder):
        raise bad_input("ENGINE-RESUME-INCOMPLETE", folder, "got no complete resume folder (checkpoints/*/policy)")
    weights = load_file(folder / "model.safetensors")
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if weights.keys() != parameters.keys():
        raise bad_input("ENGINE-RESUME-OTHER-MODEL", folder, "got a checkpoint of another model or tuning method")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, _, name = key.partition(".")
        parameter = optimizer.param_groups[0]["params"][int(index)]
        optimizer.state[parameter][name] = value.to(parameter.device)
    return read_json(folder / "trainer_state.json")


def _trainable(network) -> dict[str, torch.Tensor]:
    return {name: p.detach().cpu().contiguous() for name, p in network.named_parameters() if p.requires_grad}
