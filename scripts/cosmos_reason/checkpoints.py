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
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason import adapters, qwen3_vl, safetensors_files, scores, storage
from cosmos_reason import findings as f

MODEL, ADAPTER, RESUME = "model", "adapter", "resume"
USES = {MODEL: ["evaluate"], ADAPTER: ["evaluate", "merge"], RESUME: ["resume"]}
METRICS_FILE = scores.FILE
TASK_METRICS = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "soft_accuracy")
VAL_LOSS = "val_loss"
COUNTS = {"rows", "failed", "unparseable"}  # they stand among the metrics and tell no quality
_PARTS = ("safetensors", "merged", "checkpoints")
_STEP = re.compile(r"(step|epoch)_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """One folder of the output: `name` is its path below what was listed, `step` its last part (step_30, final)."""

    path: Path
    name: str
    step: str
    kind: str
    findings: list[f.Finding]
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: dict | None = None  # what the metrics were measured on, as scores.evaluation_of tells it

    @property
    def complete(self) -> bool:
        return not f.has_errors(self.findings)

    def to_json(self) -> dict:
        row = {"path": str(self.path), "name": self.name, "kind": self.kind, "complete": self.complete}
        row |= {"can": USES[self.kind] if self.complete else [], "metrics": self.metrics}
        return row | {"problems": [finding.id for finding in self.findings]}


def output_of(folder: Path) -> Path:
    """The output folder that is meant: the folder of a train job stands for what its record names. Raises Failure."""
    if not (folder / "job.json").is_file():
        return folder
    outputs = safetensors_files.read_object(folder / "job.json").get("outputs")
    if not isinstance(outputs, dict) or not isinstance(outputs.get("output_dir"), str):
        message = "got a job without an output_dir, expected a train job"
        raise f.bad_input("CKPT-NOT-TRAINED", folder, message, "scripts/launch_job.py list")
    return Path(outputs["output_dir"])


def find(output_dir: Path, numbers: bool = False) -> list[Checkpoint]:
    """Every model, adapter and resume folder, oldest run first, each verified (`numbers` as in `verify`). `output_dir`
    may also be one run."""
    if not output_dir.is_dir():
        message = "got no such folder, expected the output folder of a train job"
        raise f.bad_input("CKPT-OUTPUT-MISSING", output_dir, message)
    home = _home(output_dir)
    table = scores.read(home)
    found = []
    for run in _runs(output_dir):
        models = [path for part in ("safetensors", "merged") for path in _subfolders(run / part)]
        for path in [*models, *(path / "policy" for path in _subfolders(run / "checkpoints"))]:
            step = path.parent.name if path.name == "policy" else path.name
            row = table.get(path.absolute().relative_to(home).as_posix(), {})
            name, told = path.relative_to(output_dir).as_posix(), (scores.numbers(row), scores.evaluation(row))
            found.append(Checkpoint(path, name, step, kind(path), verify(path, numbers), *told))
    return found


def nothing_found(folder: Path) -> f.Finding:
    """What to say of a folder without any checkpoint: the folder that was probably meant, or why none was saved."""
    homes = [folder.absolute(), *folder.absolute().parents]
    meant = [home.parent for home in homes[:2] if home.name in _PARTS]
    meant += sorted(p.parents[1] for depth in ("*/*", "*/*/*") for n in _PARTS for p in folder.glob(f"{depth}/{n}"))
    if meant:
        fix = shlex.join(["scripts/select_checkpoint.py", str(meant[0])])
        return f.error("CKPT-NONE", folder, "got no output folder of a train job, expected one", fix)
    job = next((home.name for home in homes if (home / "job.json").is_file()), "")
    fix = f"scripts/launch_job.py status {job}" if job else "--set train.ckpt.enable_checkpoint=true"
    message = "got no checkpoint, expected TIMESTAMP/safetensors/step_N: none was saved (yet)"
    return f.error("CKPT-NONE", folder, message, fix)


def _runs(output_dir: Path) -> list[Path]:
    """The run folders of an output folder, or the folder itself when it is one."""
    folders = [output_dir, *sorted(path for path in output_dir.iterdir() if path.is_dir() and path.name != "best")]
    return [run for run in folders if any((run / part).is_dir() for part in _PARTS)]


def _home(folder: Path) -> Path:
    """Where `best` and the metrics are: an output folder itself, of one of its runs the folder above."""
    folder = folder.absolute()
    return folder.parent if any((folder / part).is_dir() for part in _PARTS) else folder


def _subfolders(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*") if path.is_dir() and not path.is_symlink()), key=_order)


def _order(path: Path) -> tuple:
    """step_9 before step_10; names without a number (final) last."""
    match = _STEP.match(path.name)
    return (0, int(match[2]), path.name) if match else (1, 0, path.name)


def kind(folder: Path) -> str:
    if folder.name == "policy":
        return RESUME
    return ADAPTER if (folder / adapters.CONFIG).exists() else MODEL


def verify(folder: Path, numbers: bool = False) -> list[f.Finding]:
    """What is wrong with one model, adapter or resume folder; warnings do not keep it from being used. Of weights the
    headers are read, with `numbers` of an adapter each number too: a training that diverged leaves NaN."""
    if storage.INCOMPLETE in str(Path(folder.parent.name, folder.name)):
        return [f.error("CKPT-INCOMPLETE", folder, "got an export that was interrupted, expected a finished one")]
    if kind(folder) == RESUME:
        message = "got a resume folder without all files and rank markers, expected a complete one"
        return [] if is_complete_resume(folder) else [f.error("CKPT-RESUME-INCOMPLETE", folder, message)]
    return _verify_adapter(folder, numbers) if kind(folder) == ADAPTER else verify_model(folder)


def verify_model(folder: Path) -> list[f.Finding]:
    """What is wrong with a model folder, whatever its name is."""
    try:
        config = safetensors_files.read_object(folder / "config.json")
    except f.Failure as failure:
        return failure.findings
    tensors, findings = safetensors_files.read_folder(folder)
    if not findings and config.get("model_type") == "qwen3_vl" and config.get("quantization_config") is None:
        findings += qwen3_vl.compare(str(folder), config, {name: tensor.shape for name, tensor in tensors.items()})
    for names in (
        ("tokenizer.json",),
        ("tokenizer_config.json",),
        ("preprocessor_config.json", "processor_config.json"),
        ("chat_template.jinja", "chat_template.json"),
    ):
        if not any((folder / name).is_file() for name in names):
            fix = f"copy {names[0]} from the base model"
            findings.append(f.error("CKPT-FILE-MISSING", folder / names[0], "got no such file, expected it there", fix))
    return findings


def _verify_adapter(folder: Path, numbers: bool) -> list[f.Finding]:
    try:
        adapter = adapters.read(folder)
    except f.Failure as failure:
        return failure.findings
    config, findings = adapter.config, adapters.not_finite(adapter) if numbers else []
    if any((folder / name).exists() for name in (safetensors_files.INDEX_NAME, safetensors_files.SINGLE)):
        message = "got an adapter and the weights of a whole model, expected one of them: loaders would add the two"
        findings.append(f.error("CKPT-WEIGHTS-TWICE", folder, message))
    base = config.get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        message = "got no base_model_name_or_path, expected the model that was trained"
        findings.append(f.error("CKPT-ADAPTER-BASE", folder, message))
    elif base.startswith((".", "/", "~")) and not Path(base).expanduser().is_dir():
        message = f"got the base {base}, which is not visible here (it may be where the job ran)"
        findings.append(f.warning("CKPT-ADAPTER-BASE", folder, message, "--base-model DIR"))
    if foreign := [key for key in adapters.NOT_PEFT if key in config]:
        message = f"got {', '.join(foreign)}, which PEFT does not know"
        findings.append(f.warning("CKPT-ADAPTER-FIELDS", folder, message, "--fix-adapter DIR"))
    return findings


def is_complete_resume(folder: Path) -> bool:
    """True when a policy folder holds cosmos_config, every rank's marker, and the files those ranks saved.

    The embedded engine saves one rank in safetensors, whose headers are read. cosmos-rl saves `model_rank_R.pth` per
    rank, which are looked at by name only and never opened.
    """
    if not (folder / "cosmos_config").is_file():
        return False
    if (folder / "trainer_state.json").is_file():
        ranks, names = {"0"}, set()
        try:
            for name in ("model.safetensors", "optimizer.safetensors"):
                safetensors_files.read_header(folder / name)
        except f.Failure:
            return False
    else:
        ranks = {path.stem.removeprefix("model_rank_") for path in folder.glob("model_rank_*.pth")}
        ranks |= set(map(str, range(_ranks_saved(folder / "cosmos_config"))))
        names = {f"{p}_rank_{rank}.pth" for rank in ranks for p in ("model", "optimizer", "scheduler", "extra_info")}
    return all((folder / name).is_file() for name in names | {f".rank_{rank}_complete" for rank in ranks})


def _ranks_saved(cosmos_config: Path) -> int:
    """How many ranks save: all but the replicas. 1 when a size is left to cosmos-rl (-1) or unknown."""
    try:
        sizes = json.loads(cosmos_config.read_text(encoding="utf-8"))["policy"]["parallelism"]
        counts = [sizes.get(f"{part}_size", 1) for part in ("tp", "cp", "pp", "dp_shard")]
        return math.prod(counts) if all(type(count) is int and count > 0 for count in counts) else 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 1


def select(output_dir: Path, by: str) -> tuple[Checkpoint, list[f.Finding]]:
    """The model or adapter that `by` means: a metric of checkpoint_metrics.json, "val_loss", "best", or a name.

    Never something else instead: raises Failure with a finding that lists what exists.
    """
    usable = [checkpoint for checkpoint in find(output_dir, numbers=True) if checkpoint.kind != RESUME]
    if not usable:
        raise f.Failure(nothing_found(output_dir), f.EXIT_CHECKS_FAILED)
    metrics = {metric for checkpoint in usable for metric in checkpoint.metrics} - COUNTS
    if by in metrics and by not in (VAL_LOSS, "best"):
        return _by_metric(output_dir, usable, by)
    name, notes = by, []
    if by == VAL_LOSS:
        name, notes = _best_by_loss(output_dir, usable)
    elif by == "best":
        name = _best_link(output_dir, usable)
    elif not metrics and by in TASK_METRICS:
        message = f"got no scores, expected {by} in {METRICS_FILE}: evaluate each checkpoint, then score its results"
        fix = "scripts/score_predictions.py RESULTS"
        raise f.Failure(f.error("CKPT-NOT-SCORED", output_dir, message, fix), f.EXIT_CHECKS_FAILED)
    elif not any(by in (checkpoint.name, checkpoint.step) for checkpoint in usable):
        words = [*metrics, VAL_LOSS, "best", *(checkpoint.step for checkpoint in usable)]
        problem = f"got {by!r}, expected a metric, {VAL_LOSS}, best or a checkpoint's name.{f.did_you_mean(by, words)}"
        raise _not_found(output_dir, usable, problem)
    return _by_name(output_dir, usable, name), notes


def _not_found(output_dir: Path, usable: Iterable[Checkpoint], problem: str) -> f.Failure:
    names = [checkpoint.name + ("" if checkpoint.complete else " (damaged)") for checkpoint in usable]
    message = f"{problem} It holds: {', '.join(names[:20]) or 'no model at all'}"
    fix = next((f"--by {checkpoint.name}" for checkpoint in usable if checkpoint.complete), "")
    return f.Failure(f.error("CKPT-NOT-FOUND", output_dir, message, fix, checkpoints=names), f.EXIT_CHECKS_FAILED)


def _by_name(output_dir: Path, usable: list[Checkpoint], name: str) -> Checkpoint:
    named = [checkpoint for checkpoint in usable if name in (checkpoint.name, checkpoint.step)]
    if len(named) != 1:
        raise _not_found(output_dir, usable, f"got {len(named)} checkpoints named {name!r}, expected one.")
    if not named[0].complete:
        raise f.Failure(named[0].findings, f.EXIT_CHECKS_FAILED)
    return named[0]


def _by_metric(output_dir: Path, usable: list[Checkpoint], metric: str) -> tuple[Checkpoint, list[f.Finding]]:
    scored = [checkpoint for checkpoint in usable if checkpoint.complete and metric in checkpoint.metrics]
    if not scored:
        raise _not_found(output_dir, usable, f"got no undamaged checkpoint that was scored by {metric}.")
    sign = -1 if metric.endswith("loss") else 1
    best = max(scored, key=lambda checkpoint: sign * checkpoint.metrics[metric])  # of equals, the earliest
    notes = []
    if unscored := [checkpoint.name for checkpoint in usable if checkpoint not in scored]:
        message = f"chosen among {len(scored)}; damaged or not scored by {metric}: {', '.join(unscored[:3])}"
        notes.append(f.warning("CKPT-NOT-SCORED", output_dir, message, checkpoints=unscored))
    return best, notes + _unequal(output_dir, best, [checkpoint for checkpoint in scored if checkpoint is not best])


def _unequal(output_dir: Path, best: Checkpoint, others: list[Checkpoint]) -> list[f.Finding]:
    """That the scores of others were measured otherwise than that of the chosen one, as far as this was recorded."""
    told = {}
    for other in others:
        rows = [one.metrics["rows"] for one in (other, best) if "rows" in one.metrics]
        ways = [f"{rows[0]:g} questions (not {rows[1]:g})"] if len(set(rows)) > 1 else []
        if other.evaluation and best.evaluation:
            found = scores.differences(other.evaluation, best.evaluation)
            ways += found[1:] if ways and found[:1] == [scores.OTHER_QUESTIONS] else found
        if ways:
            told[other.name] = ", ".join(ways[:4])
    if not told:
        return []
    shown = "; ".join(f"{name} had {ways}" for name, ways in list(told.items())[:3])
    message = f"scores do not compare with that of {best.name}: {shown}; expected the same questions and settings"
    fix = "evaluate them with one spec, then scripts/score_predictions.py RESULTS"
    return [f.warning("CKPT-UNEQUAL-SCORES", output_dir, message, fix, checkpoints=list(told))]


def _best_by_loss(output_dir: Path, usable: list[Checkpoint]) -> tuple[str, list[f.Finding]]:
    """Name of the checkpoint with the lowest validation loss in metrics.jsonl, else that of best_score.json; and what
    there is to say of that choice."""
    runs = _runs(output_dir)
    shared = [output_dir, output_dir.parent] if len(runs) == 1 else []  # a job writes into its own folder above
    rows = []  # (loss, run, step, file)
    for run in runs:
        paths = (folder / "metrics.jsonl" for folder in (run, *shared))
        path, losses = next(((path, losses) for path in paths if (losses := _val_losses(path))), (run, {}))
        rows += [(loss, run, step, path) for step, loss in losses.items()]
    rows.sort(key=lambda row: row[0])
    saved = [(c, row) for row in rows for c in usable if row[1] in c.path.parents and step_number(c.path) == row[2]]
    notes = []
    if saved:
        name, (loss, _, step, path) = saved[0][0].name, saved[0][1]
        told = f"{path} says {loss:g} of step {step}"
        if loss > rows[0][0]:
            message = f"the lowest validation loss, {rows[0][0]:g}, is that of step {rows[0][2]}: it was not saved"
            notes.append(f.warning("CKPT-LOWEST-NOT-SAVED", output_dir, message, checkpoints=[name]))
        if others := [c.name for c, row in saved[1:] if row == saved[0][1]]:
            message = f"of step {step} there is also {', '.join(others)}"
            notes.append(f.info("CKPT-SAME-STEP", name, message, f"--by {others[0]}"))
    else:
        score = _home(output_dir) / "best" / "best_score.json"
        metric = safetensors_files.read_object(score).get("metric", VAL_LOSS) if score.is_file() else VAL_LOSS
        if metric != VAL_LOSS:
            problem = f"got no validation loss, and a best checkpoint by {metric!r}, expected one by {VAL_LOSS}."
            raise _not_found(output_dir, usable, problem)
        name = _best_link(output_dir, usable)
        told = "no metrics.jsonl has a validation loss of a saved step, the best link and best_score.json name this one"
    tail = "cosmos-rl leaves the last partial batch out of it"
    told += f"; it is a proxy: {tail}, and the lowest is often not the best accuracy"
    return name, [f.info("CKPT-VAL-LOSS-PROXY", output_dir, told, "--by accuracy"), *notes]


def _val_losses(path: Path) -> dict[int, float]:
    if not path.is_file():
        return {}
    losses = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # a killed run leaves half a line
            continue
        loss = row.get("val/avg_loss") if isinstance(row, dict) else None
        # cosmos-rl reports 0.0 when its validation set is smaller than one batch
        if type(loss) in (int, float) and loss and abs(loss) < 1e300 and type(row.get("step")) is int:
            losses[row["step"]] = loss
    return losses


def step_number(folder: Path) -> int | None:
    """The optimizer step of a checkpoint: from its name, or for epoch_N from the trainer state saved beside it."""
    match = _STEP.fullmatch(folder.name)
    if match and match[1] == "step":
        return int(match[2])
    state = folder.parents[1] / "checkpoints" / folder.name / "policy" / "trainer_state.json"
    step = safetensors_files.read_object(state).get("step") if state.is_file() else None
    return step if type(step) is int else None


def best_note(output_dir: Path, found: Iterable[Checkpoint]) -> list[f.Finding]:
    """What the `best` link of an output folder points at, or that it is broken; nothing where there is none."""
    best = _home(output_dir) / "best"
    if not best.is_dir():
        return []
    models = [checkpoint for checkpoint in found if checkpoint.kind != RESUME]
    usable = [checkpoint for checkpoint in models if checkpoint.complete]
    choice = next((m for m in TASK_METRICS if any(m in one.metrics for one in usable)), usable and usable[-1].name)
    fix = f"--by {choice}" if choice else ""
    try:
        name = _best_link(output_dir, models)
    except f.Failure as failure:
        return [f.warning("CKPT-BEST-BROKEN", best, failure.findings[0].message, fix)]
    if not any(checkpoint.name == name for checkpoint in usable):
        return [f.warning("CKPT-BEST-DAMAGED", best, f"it points to the damaged {name}", fix)]
    return [f.info("CKPT-BEST", best, f"it means {name}", "--by best")]


def _best_link(output_dir: Path, usable: list[Checkpoint]) -> str:
    """Name of the model that `best` means: its link and best_score.json name one run and step. cosmos-rl writes
    absolute links, so they break when a container's output is read from outside."""
    link, score = (_home(output_dir) / "best" / name for name in ("safetensors", "best_score.json"))
    targets = [Path(os.readlink(link))] if link.is_symlink() else []
    if score.is_file() and (told := safetensors_files.read_object(score).get("best_ckpt_abs_dir")):
        targets.append(Path(str(told)))
    meant = {(target.parent.parent.name, target.name) for target in targets}
    for checkpoint in usable:
        if meant == {(checkpoint.path.parents[1].resolve().name, checkpoint.step)}:
            return checkpoint.name
    named = " and ".join(map(str, targets)) or "nothing"
    raise _not_found(output_dir, usable, f"got a best link to {named}, expected one model of this folder.")


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


def metrics_table(output_dir: Path) -> dict[str, dict[str, float]]:
    """Checkpoint's name -> its finite numbers in checkpoint_metrics.json. Raises Failure (exit 2)."""
    return {name: scores.numbers(row) for name, row in scores.read(output_dir).items()}
