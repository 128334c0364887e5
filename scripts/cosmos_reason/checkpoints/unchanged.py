"""Whether a training changed its weights at all: checkpoints against one another and their base.

A learning rate of 0 or a model that is frozen whole ends as COMPLETE, with checkpoints that verify
and losses that compare: only the weights tell. Compared are names, dtypes and shapes, then samples
of each tensor up to the first that differs, so that checkpoints of a sound training cost little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cosmos_reason.base import files, findings, job_folder
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.checkpoints import adapters, run_outputs, safetensors_files, tensor_numbers
from cosmos_reason.checkpoints.run_outputs import ADAPTER, Checkpoint
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.spec import document

MODEL_KEY = "policy.model_name_or_path"
HOW = "compared: the names and shapes of {count} tensors, and 4 kB at 5 places of each"
MOST_READ = 2**30  # bytes of weights that are compared whole
SAME_LOSS = 1e-3  # relative: equal weights that were validated twice differ by less
CAUSES = "a learning rate of 0, everything frozen, steps too small for the dtype, or a wrong copy"


def found(
    models: Sequence[Checkpoint], attempts: Sequence[Path], losses: Mapping[str, float]
) -> list[Finding]:
    """Return a warning for each run whose whole checkpoints have the same weights, or whose last
    one has those of its base. `attempts` are the jobs of the training, whose specs name the base
    where no checkpoint does; `losses` are the validation losses of checkpoints by their names."""
    by_run: dict[tuple[Path, str], list[Checkpoint]] = {}
    for model in models:
        if model.complete:
            by_run.setdefault((model.path.parent, model.kind), []).append(model)
    warnings = []
    for group in by_run.values():
        last = group[-1]
        tensors = _tensors(last)
        is_one = all(_are_in(_tensors(other), tensors) for other in group[:-1])
        base = _unchanged_base(last, tensors, attempts)
        how = HOW.format(count=f"{len(tensors):,}")
        size = sum(file.stat().st_size for file in last.path.glob("*.safetensors"))
        if is_one and group[1:] and size <= MOST_READ:
            pairs = ((last.path, other.path) for other in group[:-1])
            if all(safetensors_files.have_equal_files(*pair) for pair in pairs):
                how = "the files are equal, byte for byte"
        told = [losses[one.name] for one in group if one.name in losses]
        meant = last.name if len(group) == 1 else f"the {len(group)} checkpoints up to {last.name}"
        if base and is_one:
            message = f"{meant}: {base} ({CAUSES}; {how})"
        elif base:
            message = f"{last.name}: {base} ({how})"
        elif is_one and told and max(told) - min(told) > SAME_LOSS * abs(min(told)):
            message = (
                f"{meant} have the same weights ({CAUSES}; {how}), but validation losses that "
                "differ: where a copy or an export went wrong, one of them at most is what was "
                "validated; copy them again from where they were trained"
            )
        elif is_one and len(group) > 1:
            message = (
                f"{meant} have the same weights, so that no choice among them matters: nothing was "
                f"learned after the first ({CAUSES}; {how})"
            )
            if group[0].kind != ADAPTER and _base(last, attempts) is None:
                message += "; whether their base has the same, too, is not known: nothing names it"
        else:
            continue
        names = [model.name for model in (group if is_one else [last])]
        where = last.path.parent
        warnings.append(findings.warning("CKPT-UNCHANGED", where, message, checkpoints=names))
    return warnings


def _tensors(model: Checkpoint) -> dict[str, Tensor]:
    if model.kind == ADAPTER:
        return safetensors_files.read_header(model.path / adapters.WEIGHTS)
    return safetensors_files.read_folder(model.path)[0]


def _are_in(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Return whether every tensor is among the others, with the same samples. These may have more:
    a base with the tied head that its training did not save."""
    if not ones or not ones.keys() <= others.keys():
        return False
    pairs = [(tensor, others[name]) for name, tensor in ones.items()]
    if any((one.dtype, one.shape) != (other.dtype, other.shape) for one, other in pairs):
        return False
    return all(tensor_numbers.same_samples(one, other) for one, other in pairs)


def _unchanged_base(
    model: Checkpoint, tensors: Mapping[str, Tensor], attempts: Sequence[Path]
) -> str:
    """Return in words that a checkpoint answers as its base does; '' where it does not, or the base
    is not here."""
    if model.kind == ADAPTER:
        halves = [tensor for name, tensor in tensors.items() if ".lora_B" in name]
        has_others = any(".lora_" not in name for name in tensors)
        if has_others or not all(tensor_numbers.is_zero(tensor) for tensor in halves):
            return ""
        return "lora_B is zero everywhere, which adds nothing to the base"
    base = _base(model, attempts)
    if base is None or not _are_in(tensors, safetensors_files.read_folder(base)[0]):
        return ""
    return f"the weights are those of its base {base}"


def _base(model: Checkpoint, attempts: Sequence[Path]) -> Path | None:
    """Return the folder that a full training started from, where it is here: as the state beside
    the checkpoint names it, else the spec of its job."""
    run = model.path.parents[1]
    state = run / "checkpoints" / model.step / "policy" / "cosmos_config"
    specs = []
    with suppress(Failure):
        specs.append(files.read_json(state))
    for job in attempts:
        with suppress(Failure):
            specs.append(job_folder.here(job, document.load(job / "spec.toml")))
    for spec in specs:
        named = document.get(spec, MODEL_KEY)
        if isinstance(named, str) and run_outputs.is_model(Path(named)):
            return Path(named)
    return None
