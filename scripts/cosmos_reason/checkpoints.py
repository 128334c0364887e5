"""What a train job leaves in its output folder: model folders, adapters, resume folders, the `best` links.

Layout (cosmos-rl's, which the embedded engine writes too):
  <output_dir>/<timestamp>/safetensors/{step_N|epoch_N|final}/       a model folder or a LoRA adapter
  <output_dir>/<timestamp>/checkpoints/{step_N|epoch_N}/policy/      what training resumes from
  <output_dir>/best/{safetensors,checkpoints}, best_score.json       links to the best of them
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason import qwen3_vl, safetensors_files, storage
from cosmos_reason.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    bad_input,
    did_you_mean,
    error,
    has_errors,
    info,
    warning,
)

MODEL, ADAPTER, RESUME = "model", "adapter", "resume"
METRICS_FILE = "checkpoint_metrics.json"
VAL_LOSS = "val_loss"
_STEP = re.compile(r"(step|epoch)_(\d+)")
# Written by cosmos-rl into adapter_config.json; PEFT does not know them (its word for r_pattern is rank_pattern).
NOT_PEFT = ("lora_names", "lora_path", "primary_adapter", "r_pattern")


@dataclass(frozen=True)
class Checkpoint:
    """One folder of the output: `name` is its path below the output folder, `step` its last part (step_30, final)."""

    path: Path
    name: str
    step: str
    kind: str
    findings: list[Finding]
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not has_errors(self.findings)

    def to_json(self) -> dict:
        problems = [finding.id for finding in self.findings]
        row = {"path": str(self.path), "name": self.name, "kind": self.kind, "complete": self.complete}
        return row | {"problems": problems, "metrics": self.metrics}


def find(output_dir: Path) -> list[Checkpoint]:
    """Every model, adapter and resume folder, oldest run first, each verified. `output_dir` may also be one run."""
    table = _metrics_table(output_dir)
    found = []
    for run in _runs(output_dir):
        models = [path for part in ("safetensors", "merged") for path in _subfolders(run / part)]
        for path in [*models, *(path / "policy" for path in _subfolders(run / "checkpoints"))]:
            name = path.relative_to(output_dir).as_posix()
            step = path.parent.name if path.name == "policy" else path.name
            found.append(Checkpoint(path, name, step, kind(path), verify(path), table.get(name, {})))
    return found


def _runs(output_dir: Path) -> list[Path]:
    """The run folders of an output folder, or the folder itself when it is one."""
    if not output_dir.is_dir():
        message = "got no such folder, expected the output folder of a train job"
        raise bad_input("CKPT-OUTPUT-MISSING", output_dir, message)
    folders = [output_dir, *sorted(path for path in output_dir.iterdir() if path.is_dir() and path.name != "best")]
    return [run for run in folders if any((run / part).is_dir() for part in ("safetensors", "checkpoints"))]


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()), key=_order)


def _order(path: Path) -> tuple:
    """step_9 before step_10; names without a number (final) last."""
    match = _STEP.match(path.name)
    return (0, int(match[2]), path.name) if match else (1, 0, path.name)


def kind(folder: Path) -> str:
    if folder.name == "policy":
        return RESUME
    return ADAPTER if (folder / "adapter_config.json").exists() else MODEL


def verify(folder: Path) -> list[Finding]:
    """What is wrong with one model, adapter or resume folder; warnings do not keep it from being used."""
    if storage.INCOMPLETE in str(Path(folder.parent.name, folder.name)):
        return [error("CKPT-INCOMPLETE", folder, "got an export that was interrupted, expected a finished one")]
    if kind(folder) == RESUME:
        if is_complete_resume(folder):
            return []
        message = "got a resume folder without all files and rank markers, expected a complete one"
        return [error("CKPT-RESUME-INCOMPLETE", folder, message)]
    return _verify_adapter(folder) if kind(folder) == ADAPTER else _verify_model(folder)


def _verify_model(folder: Path) -> list[Finding]:
    try:
        config = safetensors_files.read_object(folder / "config.json")
    except Failure as failure:
        return failure.findings
    tensors, findings = safetensors_files.read_folder(folder)
    if not findings and config.get("model_type") == "qwen3_vl" and "quantization_config" not in config:
        findings += qwen3_vl.compare(str(folder), config, {name: tensor.shape for name, tensor in tensors.items()})
    for names in (
        ("tokenizer.json",),
        ("tokenizer_config.json",),
        ("preprocessor_config.json", "processor_config.json"),
        ("chat_template.jinja", "chat_template.json"),
    ):
        if not any((folder / name).is_file() for name in names):
            fix = f"copy {names[0]} from the base model"
            findings.append(error("CKPT-FILE-MISSING", folder / names[0], "got no such file, expected it there", fix))
    return findings


def _verify_adapter(folder: Path) -> list[Finding]:
    try:
        config = safetensors_files.read_object(folder / "adapter_config.json")
        tensors = safetensors_files.read_header(folder / "adapter_model.safetensors")
    except Failure as failure:
        return failure.findings
    findings = []
    base = config.get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        message = "got no base_model_name_or_path, expected the model that was trained"
        findings.append(error("CKPT-ADAPTER-BASE", folder, message))
    elif base.startswith((".", "/", "~")) and not Path(base).expanduser().is_dir():
        message = f"got the base {base}, which is not visible here (it may be where the job ran)"
        findings.append(warning("CKPT-ADAPTER-BASE", folder, message, "--base-model DIR"))
    if not any(".lora_" in name for name in tensors):
        findings.append(error("CKPT-ADAPTER-EMPTY", folder, "got no lora_A or lora_B tensors, expected some"))
    if foreign := [key for key in NOT_PEFT if key in config]:
        message = f"got {', '.join(foreign)}, which PEFT does not know"
        findings.append(warning("CKPT-ADAPTER-FIELDS", folder, message, "--fix-adapter DIR"))
    return findings


def is_complete_resume(folder: Path) -> bool:
    """True when a policy folder holds cosmos_config, every rank's marker, and the files those ranks saved.

    The embedded engine saves one rank in safetensors; cosmos-rl saves `model_rank_R.pth` per rank, which are looked at
    by name only and never opened.
    """
    if not (folder / "cosmos_config").is_file() or not (folder / ".rank_0_complete").is_file():
        return False
    if (folder / "trainer_state.json").is_file():
        return all((folder / name).is_file() for name in ("model.safetensors", "optimizer.safetensors"))
    saved = {path.stem.removeprefix("model_rank_") for path in folder.glob("model_rank_*.pth")}
    wanted = saved | set(map(str, range(_ranks_saved(folder / "cosmos_config") or 1)))
    parts = ("model", "optimizer", "scheduler", "extra_info")
    return all(
        (folder / f".rank_{rank}_complete").is_file()
        and all((folder / f"{part}_rank_{rank}.pth").is_file() for part in parts)
        for rank in wanted
    )


def _ranks_saved(cosmos_config: Path) -> int | None:
    """How many ranks save: all but the replicas. None when a size is left to cosmos-rl (-1) or unknown."""
    try:
        sizes = json.loads(cosmos_config.read_text(encoding="utf-8"))["policy"]["parallelism"]
        counts = [sizes.get(f"{part}_size", 1) for part in ("tp", "cp", "pp", "dp_shard")]
        return math.prod(counts) if all(type(count) is int and count > 0 for count in counts) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def select(output_dir: Path, by: str) -> tuple[Checkpoint, list[Finding]]:
    """The model or adapter that `by` means: a metric of checkpoint_metrics.json, "val_loss", or a name.

    Never something else instead: raises Failure with a finding that lists what exists.
    """
    usable = [checkpoint for checkpoint in find(output_dir) if checkpoint.kind != RESUME]
    if by == VAL_LOSS:
        return _by_name(output_dir, usable, _best_by_loss(output_dir, usable)), [_loss_note(output_dir)]
    if by == "best":
        return _by_name(output_dir, usable, _best_link(output_dir, usable)), []
    metrics = {metric for checkpoint in usable for metric in checkpoint.metrics}
    if by in metrics:
        return _by_metric(output_dir, usable, by)
    if any(by in (checkpoint.name, checkpoint.step) for checkpoint in usable):
        return _by_name(output_dir, usable, by), []
    words = [*metrics, VAL_LOSS, "best", *(checkpoint.step for checkpoint in usable)]
    problem = f"got {by!r}, expected a metric, {VAL_LOSS}, best or a checkpoint's name.{did_you_mean(by, words)}"
    raise _not_found(output_dir, usable, problem)


def _not_found(output_dir: Path, usable: Iterable[Checkpoint], problem: str) -> Failure:
    names = [checkpoint.name + ("" if checkpoint.complete else " (damaged)") for checkpoint in usable]
    message = f"{problem} It holds: {', '.join(names[:20]) or 'no model at all'}"
    fix = "--by NAME, one of those" if names else ""
    return Failure(error("CKPT-NOT-FOUND", output_dir, message, fix, checkpoints=names), EXIT_CHECKS_FAILED)


def _by_name(output_dir: Path, usable: list[Checkpoint], name: str) -> Checkpoint:
    named = [checkpoint for checkpoint in usable if name in (checkpoint.name, checkpoint.step)]
    if len(named) != 1:
        raise _not_found(output_dir, usable, f"got {len(named)} checkpoints named {name!r}, expected one.")
    if not named[0].complete:
        raise Failure(named[0].findings, EXIT_CHECKS_FAILED)
    return named[0]


def _by_metric(output_dir: Path, usable: list[Checkpoint], metric: str) -> tuple[Checkpoint, list[Finding]]:
    scored = [checkpoint for checkpoint in usable if checkpoint.complete and metric in checkpoint.metrics]
    if not scored:
        raise _not_found(output_dir, usable, f"got no undamaged checkpoint that was scored by {metric}.")
    sign = -1 if metric.endswith("loss") else 1
    best = max(scored, key=lambda checkpoint: sign * checkpoint.metrics[metric])  # of equals, the earliest
    unscored = [checkpoint.name for checkpoint in usable if checkpoint not in scored]
    if not unscored:
        return best, []
    message = f"chosen among {len(scored)}; damaged or not scored by {metric}: {', '.join(unscored[:3])}"
    return best, [warning("CKPT-NOT-SCORED", output_dir, message, checkpoints=unscored)]


def _best_by_loss(output_dir: Path, usable: list[Checkpoint]) -> str:
    """Name of the checkpoint with the lowest validation loss in metrics.jsonl, else that of best_score.json."""
    losses = {}
    runs = _runs(output_dir)
    shared = [output_dir, output_dir.parent] if len(runs) == 1 else []  # a job writes into its own folder above
    for run in runs:
        for path in (folder / "metrics.jsonl" for folder in (run, *shared)):
            rows = _val_losses(path)
            if rows:
                names = {step_number(c.path): c.name for c in usable if run in c.path.parents}
                losses |= {names[step]: loss for step, loss in rows.items() if step in names}
                break
    if losses:
        return min(losses, key=losses.__getitem__)
    return _best_link(output_dir, usable)


def _val_losses(path: Path) -> dict[int, float]:
    if not path.is_file():
        return {}
    losses = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # a killed run leaves half a line
            continue
        loss = row.get("val/avg_loss") if isinstance(row, dict) else None
        if loss and math.isfinite(loss):  # cosmos-rl reports 0.0 when its validation set is smaller than one batch
            losses[row.get("step")] = loss
    return losses


def _loss_note(output_dir: Path) -> Finding:
    message = (
        "validation loss is a proxy: cosmos-rl leaves the last partial batch out of it, "
        "and the lowest loss is often not the best accuracy"
    )
    return info("CKPT-VAL-LOSS-PROXY", output_dir, message, "score the checkpoints and use --by accuracy")


def step_number(folder: Path) -> int | None:
    """The optimizer step of a checkpoint: from its name, or for epoch_N from the trainer state saved beside it."""
    match = _STEP.fullmatch(folder.name)
    if match and match[1] == "step":
        return int(match[2])
    state = folder.parents[1] / "checkpoints" / folder.name / "policy" / "trainer_state.json"
    return safetensors_files.read_object(state).get("step") if state.is_file() else None


def _best_link(output_dir: Path, usable: list[Checkpoint]) -> str:
    """Name of the model that `best` means, by its link or, where that is broken, by run and step in best_score.json.

    cosmos-rl writes absolute links, so they break when a container's output is read from outside.
    """
    link, score = output_dir / "best" / "safetensors", output_dir / "best" / "best_score.json"
    targets = [Path(os.readlink(link))] if link.is_symlink() else []
    if score.is_file():
        targets.append(Path(safetensors_files.read_object(score).get("best_ckpt_abs_dir") or "-"))
    for target in targets:
        for checkpoint in usable:
            run = checkpoint.path.parents[1].resolve().name
            if (target.parent.parent.name, target.name) == (run, checkpoint.step):
                return checkpoint.name
    named = ", ".join(map(str, targets)) or "no best link"
    raise _not_found(output_dir, usable, f"got {named}, expected a model of this folder.")


def write_best(run_dir: Path, step_name: str, score: float, metric: str = VAL_LOSS) -> None:
    """Point `<output_dir>/best` at one step of `run_dir` (= `<output_dir>/<timestamp>`) with relative links.

    What that step did not save gets no link, and an old link to another step goes away.
    """
    best = run_dir.parent / "best"
    best.mkdir(exist_ok=True)
    for part in ("safetensors", "checkpoints"):
        link, target = best / part, run_dir / part / step_name
        if not target.is_dir():
            link.unlink(missing_ok=True)
            continue
        temporary = storage.temporary_name(link)
        temporary.symlink_to(Path("..", run_dir.name, part, step_name))
        os.replace(temporary, link)
    folder = (run_dir / "checkpoints" / step_name).resolve()
    record = {"best_score": score, "best_ckpt_abs_dir": str(folder), "metric": metric}
    storage.write_json(best / "best_score.json", record)


def prune(run_dir: Path, max_keep: int, keep: Iterable[str] = ()) -> list[str]:
    """Delete the oldest steps of `run_dir` beyond `max_keep` (0 or less keeps all), never those in `keep`.

    A protected step counts. Returns the names deleted. A folder loses its name before its first file goes.
    """
    folders = [path for part in ("safetensors", "checkpoints") for path in _subfolders(run_dir / part)]
    steps = [path.name for path in sorted(folders, key=_order) if _STEP.fullmatch(path.name)]
    steps = list(dict.fromkeys(steps))
    surplus = max(0, len(steps) - max_keep) if max_keep > 0 else 0
    doomed = [step for step in steps[:-1] if step not in set(keep)][:surplus]
    for path in folders:
        if path.name in doomed:
            hidden = storage.temporary_name(path)
            os.replace(path, hidden)
            shutil.rmtree(hidden)
    return doomed


def _metrics_table(output_dir: Path) -> dict[str, dict[str, float]]:
    path = output_dir / METRICS_FILE
    table = safetensors_files.read_object(path) if path.is_file() else {}
    if not all(isinstance(metrics, dict) for metrics in table.values()):
        raise bad_input("CKPT-METRICS-BAD", path, "got other values, expected {checkpoint: {metric: number}}")
    numbers = {name: {m: v for m, v in metrics.items() if type(v) in (int, float)} for name, metrics in table.items()}
    return {name: {m: v for m, v in metrics.items() if math.isfinite(v)} for name, metrics in numbers.items()}
