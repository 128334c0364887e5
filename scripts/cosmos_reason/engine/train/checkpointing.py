"""What a training writes and reads back: exported models, and the state that a run resumes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.files import NO_ROOM, read_json, whole_folder, write_json
from cosmos_reason.base.findings import bad_input, outside, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import (
    adapters,
    made_of,
    run_outputs,
    safetensors_files,
    training_settings,
)
from cosmos_reason.engine.samples import Samples
from cosmos_reason.engine.train import shards
from cosmos_reason.engine.train.ranks import ALONE, Ranks

RANK_MARKER = ".rank_0_complete"
MODEL_STATE = "model.safetensors"
OPTIMIZER_STATE = "optimizer.safetensors"
SPEC = "cosmos_config"
CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """Yield a `whole_folder`; a write that fails (a full disk) is a Failure with exit code 3."""
    try:
        with whole_folder(folder) as unfinished:
            yield unfinished
    except (OSError, SafetensorError) as problem:
        # safetensors says the number in words.
        numbers = [f"(os error {number})" for number in NO_ROOM]
        is_full = getattr(problem, "errno", None) in NO_ROOM
        is_full |= any(number in str(problem) for number in numbers)
        fix = Fix(changes={"train.ckpt.max_keep": 1}) if is_full else Fix()
        raise outside("ENGINE-SAVE-FAILED", folder, f"got {problem}", fix) from None


def export(
    network, base_folder: Path, folder: Path, dtype: torch.dtype, spec: dict, ranks: Ranks = ALONE
) -> None:
    """Write a folder that loads by itself (full model) or on its base (LoRA), and that says how it
    was trained wherever it is copied to."""
    weights = None
    if not hasattr(network, "peft_config"):
        weights = {}  # whole, on the host of rank 0, which writes them; on the others none
        for name, tensor in network.state_dict().items():
            whole = shards.whole(tensor.detach())
            if ranks.is_first:
                weights[name] = whole.to("cpu", dtype)
    ranks.by_first(_write_model, network, weights, base_folder, folder, spec)


def _write_model(
    network, weights: dict | None, base_folder: Path, folder: Path, spec: dict
) -> None:
    """Write the weights, and copy everything else from the base."""
    with _writing(folder) as unfinished:
        if weights is None:
            network.save_pretrained(unfinished)
            made_of.note_base(unfinished, base_folder)
        else:
            family = FAMILIES[network.config.model_type]
            if not family.saved_by_class:
                weights = {family.stored_name(name): weights[name] for name in weights}
            network.save_pretrained(
                unfinished,
                state_dict=weights,
                max_shard_size="5GB",
                save_original_format=family.saved_by_class,
            )
            # Readers of cosmos-rl exports expect an index; transformers writes none for a
            # single file.
            single = unfinished / safetensors_files.SINGLE
            if single.is_file():
                tensors = safetensors_files.read_header(single)
                weight_map = dict.fromkeys(tensors, single.name)
                safetensors_files.write_index(unfinished, weight_map, single.stat().st_size)
        adapters.copy_beside(base_folder, unfinished)
        training_settings.write(unfinished, spec)


def save_state(
    folder: Path, network, optimizer, spec: dict, state: dict, ranks: Ranks = ALONE
) -> None:
    """Write everything `load_state` needs to continue as if nothing had happened, with as many
    processes or with others. No pickle. Of sharded tensors the host has one at a time."""
    moments = {}
    for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
        for key, value in optimizer.state[parameter].items():
            moments[f"{index}.{key}"] = value
    written = {MODEL_STATE: _in_order(_trainable(network)), OPTIMIZER_STATE: _in_order(moments)}
    tensors = [tensor for table in written.values() for tensor in table.values()]
    gathered = (shards.whole(tensor.detach()) for tensor in tensors)

    def write() -> None:
        try:
            _write_state(folder, written, gathered, spec, state)
        finally:
            _finish(gathered)

    if not ranks.is_first:
        _finish(gathered)
    ranks.by_first(write)


def _in_order(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors in the order of the file: readers want each to begin at a multiple of its
    numbers' size."""
    return dict(sorted(tensors.items(), key=lambda entry: -entry[1].element_size()))


def _finish(gathered: Iterator[torch.Tensor]) -> None:
    """Put together what is left of it: all ranks have to, also when one could not write."""
    for _ in gathered:
        pass


def _write_state(
    folder: Path,
    written: dict[str, dict[str, torch.Tensor]],
    gathered: Iterator[torch.Tensor],
    spec: dict,
    state: dict,
) -> None:
    """Write the state of a training: `written` by file; `gathered` are their tensors, whole, in
    that order."""

    def made() -> Iterator[memoryview]:  # when the entry whose turn it is gets written
        flat = next(gathered).to("cpu").contiguous().reshape(-1)
        yield memoryview(flat.view(torch.uint8).numpy())

    with _writing(folder) as unfinished:
        for name, tensors in written.items():
            entries = {}
            for key, tensor in tensors.items():
                size, dtype = tensor.numel() * tensor.element_size(), CODES[tensor.dtype]
                entries[key] = safetensors_files.Tensor(
                    unfinished / name, dtype, tuple(tensor.shape), 0, size, made
                )
            safetensors_files.copy_tensors(unfinished / name, entries, lambda _: None)
        write_json(unfinished / run_outputs.TRAINER_STATE, state)
        write_json(unfinished / SPEC, spec)
        (unfinished / RANK_MARKER).touch()


def load_state(folder: Path, network, optimizer) -> dict:
    """Put weights and optimizer back and return the trainer state: `step`, `total_steps`,
    `records`, `val_loss`, `val_accuracy`."""
    if not run_outputs.is_complete_resume(folder):
        message = "got no complete resume folder (checkpoints/*/policy)"
        raise bad_input("ENGINE-RESUME-INCOMPLETE", folder, message)
    weights = load_file(folder / MODEL_STATE)
    parameters = _trainable(network)
    shapes = [{name: part.shape for name, part in one.items()} for one in (weights, parameters)]
    if shapes[0] != shapes[1]:
        message, fix = "got a checkpoint of another model or tuning method", Fix()
        here = {name: part.shape for name, part in network.named_parameters()}
        if shapes[0].items() <= here.items():
            message = "got a checkpoint of a run in which patterns froze other parameters"
            if hasattr(network, "peft_config"):  # earlier versions froze no adapters
                message = "got a checkpoint with adapters that policy.freeze_pattern freezes here"
                fix = Fix(changes={"policy.freeze_pattern": None})
        raise bad_input("ENGINE-RESUME-OTHER-MODEL", folder, message, fix)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shards.like(weights[name], parameter))
    for key, value in load_file(folder / OPTIMIZER_STATE).items():
        index, _, name = key.partition(".")
        parameter = optimizer.param_groups[0]["params"][int(index)]
        optimizer.state[parameter][name] = shards.like(value, parameter)
    return read_json(folder / run_outputs.TRAINER_STATE)


def _trainable(network) -> dict[str, torch.nn.Parameter]:
    return {
        name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad
    }


def to_resume(wanted: bool | str, output_dir: Path) -> Path | None:
    """Return the checkpoint that `train.resume` means: a folder, or true for the newest complete
    one."""
    if not wanted:
        return None
    folder = Path(wanted) if isinstance(wanted, str) else run_outputs.newest_resume(output_dir)
    if folder is None:
        say(f"resume: no complete checkpoint under {output_dir}, starting at step 0")
    return folder


def resume(folder: Path, network, optimizer, total: int, training: Samples) -> dict:
    """Restore a checkpoint. Returns its trainer state; raises Failure for one of another run."""
    state = load_state(folder, network, optimizer)
    records = len(training)
    # Other data or another length would deal other records to the steps that are left.
    if (state["total_steps"], state["records"]) != (total, records):
        message = (
            f"got a checkpoint of {state['total_steps']} steps over {state['records']} records, "
            f"expected {total} steps over {records} records"
        )
        raise bad_input("ENGINE-RESUME-OTHER-RUN", folder, message)
    if state.get("data", training.digest) != training.digest:  # older states do not say
        message = (
            f"got a checkpoint of a run over other records, or over these {records} in another "
            "order; put the annotations of that run back, or begin a new run with its model"
        )
        raise bad_input("ENGINE-RESUME-OTHER-RUN", folder, message)
    say(f"resume: step {state['step']} of {total} from {folder}")
    return state
