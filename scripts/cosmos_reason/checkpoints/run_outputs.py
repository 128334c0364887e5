"""What a train job leaves in its output folder: model folders, adapters and resume folders, each
verified. Enter at `find`.

Layout (cosmos-rl's, which the embedded engine writes too):
  <output_dir>/<timestamp>/safetensors/{step_N|epoch_N|final}/       a model folder or an adapter
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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmos_reason.base import files, findings, job_folder
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import (
    adapters,
    architectures,
    beside_weights,
    checkpoint_metrics,
    dcp,
    safetensors_files,
    tensor_numbers,
)
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.remote import model_names

MODEL, ADAPTER, RESUME = "model", "adapter", "resume"
USES = {MODEL: ["evaluate"], ADAPTER: ["evaluate", "merge"], RESUME: ["resume"]}
MODEL_PARTS = ("safetensors", "merged")
PARTS = (*MODEL_PARTS, "checkpoints")
RUN_MARK = ".job_id"  # in a run folder of the embedded engine: the job that writes it
CLAIM = ".cosmos_reason_job"  # in an output folder: the job that writes there
TRAINER_STATE = "trainer_state.json"
# What each rank of cosmos-rl saves.
_SAVED_PER_RANK = ("model", "optimizer", "scheduler", "extra_info")
_STEP = re.compile(r"(step|epoch)_(\d+)")
# Files of a model folder beside its weights, each under one of its names.
_BESIDE_WEIGHTS = (
    ("tokenizer.json",),
    ("tokenizer_config.json",),
    ("preprocessor_config.json", "processor_config.json"),
    ("chat_template.jinja", "chat_template.json"),
)


@dataclass(frozen=True)
class Checkpoint:
    """One folder of the output: `name` is its path below what was listed, `step` its last part
    (step_30, final), `evaluation` what the metrics were measured on, `guard` how it answered
    general questions. `superseded_by`: the later run of the same training that came to this step
    again."""

    path: Path
    name: str
    step: str
    kind: str
    findings: list[Finding]
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: dict | None = None
    guard: dict | None = None
    superseded_by: str = ""

    @property
    def complete(self) -> bool:
        return not findings.has_errors(self.findings)

    def uses(self) -> list[str]:
        """Return what can be done with it: PEFT evaluates some adapters that never merge."""
        if not self.complete:
            return []
        if self.kind == ADAPTER:
            try:
                adapters.read(self.path)
            except Failure:
                return [use for use in USES[ADAPTER] if use != "merge"]
        return USES[self.kind]

    def to_json(self) -> dict:
        return {
            "path": str(self.path),
            "name": self.name,
            "kind": self.kind,
            "complete": self.complete,
            "can": self.uses(),
            "metrics": self.metrics,
            "guard": self.guard,
            "superseded_by": self.superseded_by,
            "problems": [finding.id for finding in self.findings],
        }


# -- listing -----------------------------------------------------------------------------------


def output_of(folder: Path) -> Path:
    """Return the output folder that is meant: the folder of a train job stands for what its record
    names, where that is now. Raises Failure."""
    if not (folder / job_folder.RECORD).is_file():
        return folder
    outputs = job_folder.read(folder).get("outputs")
    output_dir = outputs.get("output_dir") if isinstance(outputs, dict) else None
    if not isinstance(output_dir, str):
        message = "the job has no output_dir; name a train job"
        fix = "scripts/launch_job.py list"
        raise findings.bad_input("CKPT-NOT-TRAINED", folder, message, fix)
    return Path(output_dir)


def find(output_dir: Path) -> list[Checkpoint]:
    """Return every model, adapter and resume folder, oldest run first, each verified but for the
    numbers of models (see `verify`). `output_dir` may also be one run."""
    if not output_dir.is_dir():
        message = "there is no such folder; name the output folder of a train job"
        raise findings.bad_input("CKPT-OUTPUT-MISSING", output_dir, message)
    # Another trainer's shards lie in folders of much the same names.
    dcp.refuse(output_dir, "--checkpoint-path of prepare_cosmos3_vlm_checkpoint.py")
    home = home_of(output_dir)
    table = checkpoint_metrics.read(home)
    found = []
    for run in runs(output_dir):
        paths = [*_subfolders(run / "safetensors"), *_subfolders(run / "merged")]
        paths += [step / "policy" for step in _subfolders(run / "checkpoints")]
        for path in paths:
            row = table.get(path.absolute().relative_to(home).as_posix(), {})
            checkpoint = Checkpoint(
                path,
                name=path.relative_to(output_dir).as_posix(),
                step=path.parent.name if path.name == "policy" else path.name,
                kind=kind(path),
                findings=verify(path),
                metrics=checkpoint_metrics.numbers(row),
                evaluation=checkpoint_metrics.evaluation(row),
                guard=checkpoint_metrics.guard(row),
            )
            found.append(checkpoint)
    return _with_superseded(output_dir, found)


def _with_superseded(output_dir: Path, found: list[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints with what a later run of the same training came to again: a retry that
    goes on from step 20 leaves the first run's steps up to 20 as its history."""
    attempts = training_of(output_dir)
    later: list[tuple[Path, Checkpoint, int | None]] = []
    told = []
    for checkpoint in reversed(found):  # the newest run first
        is_resume = checkpoint.kind == RESUME
        run = checkpoint.path.parents[2 if is_resume else 1]
        if not is_of_training(run, attempts):
            told.append(checkpoint)
            continue
        number = step_number(checkpoint.path.parent if is_resume else checkpoint.path)
        by = ""
        for other_run, other, other_number in later:
            has_numbers = number is not None and other_number is not None
            comes_again = other.step == checkpoint.step or (has_numbers and other_number <= number)
            if other_run != run and comes_again:
                by = by or other_run.name
        later.append((run, checkpoint, number))
        told.append(replace(checkpoint, superseded_by=by))
    return told[::-1]


def training_of(output_dir: Path) -> list[Path]:
    """Return the jobs of one training whose output a folder is, the oldest first; none where no job
    here is known to have written there."""
    home = job_folder.home_of(output_dir)
    claimer = None  # the job that claimed the folder last (jobs/claims.py)
    with suppress(OSError, ValueError, TypeError, KeyError):
        claimer = Path(json.loads((output_dir / CLAIM).read_text())["job"])
    named = [home] if home else []
    if home and claimer:
        named.insert(0, home.parent / claimer.name)
    if claimer and not home:
        named.append(claimer)
    for job in named:
        if (job / job_folder.RECORD).is_file():
            return job_folder.attempts(job)
    return []


def is_of_training(run: Path, attempts: Iterable[Path]) -> bool:
    """Return whether the jobs of one training wrote a run: it says so, or lies in the folder of
    one."""
    run = run.absolute()
    mark = run_marked_by(run)
    return any(mark == attempt.name or run.is_relative_to(attempt) for attempt in attempts)


def models(output_dir: Path) -> list[Checkpoint]:
    """Return the models and adapters among what `find` finds."""
    return [one for one in find(output_dir) if one.kind != RESUME]


def is_in_run(model: Path) -> bool:
    """Return whether a model lies where a run keeps its own:
    `<output_dir>/<run>/safetensors/<step>`."""
    return model.parent.name in MODEL_PARTS


def is_model(folder: Path) -> bool:
    """Return whether a folder is a model or adapter itself, in whatever state."""
    return any((folder / name).is_file() for name in ("config.json", adapters.CONFIG))


def models_meant(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return what a folder that is given to `--checkpoint` stands for: (undamaged models, damaged
    ones). A model stands for itself, a train job or its output for all its models. Raises Failure
    with what is wrong with a model, which a cluster would find out once the job has its GPUs."""
    if is_model(folder):
        problems = [one for one in verify(folder) if one.severity == findings.ERROR]
        # Which base an adapter has may be said by the spec.
        problems = [one for one in problems if one.id != "CKPT-ADAPTER-BASE"]
        _, is_omni = model_names.family(str(folder))
        if problems and not is_omni:  # of which the engine says how it is converted
            raise Failure(problems, findings.EXIT_CHECKS_FAILED)
        return [folder], []
    listed = [one for one in models(output_of(folder)) if not one.superseded_by]
    whole = [checkpoint.path for checkpoint in listed if checkpoint.complete]
    damaged = [checkpoint.path for checkpoint in listed if not checkpoint.complete]
    return whole, damaged


def runs(output_dir: Path) -> list[Path]:
    """Return the run folders of an output folder, or the folder itself when it is one."""
    folders = sorted(path for path in output_dir.iterdir() if path.name != "best")
    return [folder for folder in (output_dir, *folders) if _is_run(folder)]


def home_of(folder: Path) -> Path:
    """Return where `best` and the metrics are: an output folder itself, of one of its runs the
    folder above."""
    folder = folder.absolute()
    return folder.parent if _is_run(folder) else folder


def _is_run(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in PARTS)


def _subfolders(folder: Path) -> list[Path]:
    folders = [path for path in folder.glob("*") if path.is_dir()]
    return sorted((path for path in folders if not path.is_symlink()), key=_order)


def _order(path: Path) -> tuple:
    """Sort step_9 before step_10, and names without a number (final) last."""
    match = _STEP.match(path.name)
    return (0, int(match[2]), path.name) if match else (1, 0, path.name)


def step_number(folder: Path) -> int | None:
    """Return the optimizer step of a checkpoint: from its name, or for epoch_N from the trainer
    state saved beside it."""
    match = _STEP.fullmatch(folder.name)
    if match and match[1] == "step":
        return int(match[2])
    state = folder.parents[1] / "checkpoints" / folder.name / "policy" / TRAINER_STATE
    if not state.is_file():
        return None
    step = safetensors_files.read_object(state).get("step")
    return step if type(step) is int else None


# -- verifying ---------------------------------------------------------------------------------


def kind(folder: Path) -> str:
    if folder.name == "policy":
        return RESUME
    return ADAPTER if (folder / adapters.CONFIG).exists() else MODEL


def verify(folder: Path, whole: bool = False) -> list[Finding]:
    """Return what is wrong with one model, adapter or resume folder; warnings do not keep it from
    being used. Of an adapter each number is read; of a model the headers and a sample of each
    tensor, and the `whole` where something is made of it or it is handed on, with its tokenizer. A
    model that the embedded engine loads is looked at as a whole there, in memory."""
    if files.INCOMPLETE in str(Path(folder.parent.name, folder.name)):
        message = "its export was interrupted"
        return [findings.error("CKPT-INCOMPLETE", folder, message)]
    what = kind(folder)
    if what == ADAPTER:
        return _verify_adapter(folder)
    if what == MODEL:
        return verify_model(folder, whole)
    if is_complete_resume(folder):
        return []
    message = "files or rank markers are missing: nothing resumes from it"
    return [findings.error("CKPT-RESUME-INCOMPLETE", folder, message)]


def verify_model(folder: Path, whole: bool = False) -> list[Finding]:
    """Return what is wrong with a model folder, whatever its name is."""
    try:
        config = architectures.read_config(folder)
    except Failure as failure:
        return failure.findings
    tensors, found = safetensors_files.read_folder(folder)
    # Quantized layers have other tensors than the architecture names.
    is_plain = config.get("quantization_config") is None
    if not found and is_plain:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        found += architectures.compare(str(folder), config, shapes)
    found += tensor_numbers.check_numbers(tensors, whole)
    found += _check_tied_head(folder, config, tensors)
    for names in _BESIDE_WEIGHTS:
        there = [folder / name for name in names if (folder / name).is_file()]
        if not there:
            message = "the file is missing; copy it from the base model"
            found.append(findings.error("CKPT-FILE-MISSING", folder / names[0], message))
        for path in there:
            if not _is_whole(path):
                message = "the file is empty or cut off; copy it from the base model"
                found.append(findings.error("CKPT-FILE-DAMAGED", path, message))
    if whole and not found:
        try:
            found += beside_weights.check_folder(folder, config)
        except Failure as failure:
            found += failure.findings
    return found


def _check_tied_head(folder: Path, config: Mapping, tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Return an error where the output head is that of the embedding by the config, and another one
    is stored: transformers 5 answers with the stored one, 4.57 and vLLM with the embedding."""
    head = tensors.get("lm_head.weight")
    embeddings = [one for name, one in tensors.items() if name.endswith(".embed_tokens.weight")]
    if not config.get("tie_word_embeddings") or not head or len(embeddings) != 1:
        return []
    (embedding,) = embeddings
    # In another dtype the same numbers have other bytes: whether they are the same is not known.
    is_unknown = head.dtype != embedding.dtype
    is_embedding = is_unknown or tensor_numbers.same_samples(head, embedding)
    if head.shape == embedding.shape and is_embedding:
        return []
    message = (
        "tie_word_embeddings is true, and the stored lm_head.weight is not the embedding: loaders "
        "differ in which one they take; set it to false where the head was trained, else drop the "
        "head"
    )
    return [findings.error("CKPT-CONFIG-BAD", folder / "config.json", message)]


def _is_whole(path: Path) -> bool:
    """Return whether a text has something in it and JSON begins and ends as an object: a tokenizer
    of many MB is not parsed for each checkpoint."""
    with open(path, "rb") as handle:
        begin = handle.read(64).strip()
        handle.seek(-min(64, handle.seek(0, os.SEEK_END)), os.SEEK_END)
        end = handle.read().strip()
    if path.suffix != ".json":
        return bool(begin.strip(b"\0"))
    return begin.startswith(b"{") and end.endswith(b"}")


def _verify_adapter(folder: Path) -> list[Finding]:
    try:
        adapter = adapters.read(folder, for_peft=True)
    except Failure as failure:
        return failure.findings
    found = adapters.not_finite(adapter)
    # cosmos-rl copies the base's JSON files beside an adapter: an index alone is no weights.
    weights = {path.name for path in folder.glob("*.safetensors")}
    if weights - {adapters.WEIGHTS}:
        message = (
            "an adapter and the weights of a whole model lie there; keep one of them: "
            "loaders would add the two"
        )
        found.append(findings.error("CKPT-WEIGHTS-TWICE", folder, message))
    base = adapter.config.get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        message = "base_model_name_or_path does not name the model that was trained"
        found.append(findings.error("CKPT-ADAPTER-BASE", folder, message))
    elif base.startswith((".", "/", "~")) and not Path(base).expanduser().is_dir():
        message = (
            f"its base {base} is not visible here (it may be where the job ran); "
            "a merge takes its place here as --base-model"
        )
        found.append(findings.warning("CKPT-ADAPTER-BASE", folder, message))
    beside = folder / "config.json"  # of the base: loaders that know no adapters read it
    if beside.is_file():
        try:
            config = safetensors_files.read_object(beside)
        except Failure as failure:
            found += failure.findings
        else:
            found += architectures.compare_adapter(str(beside), config, adapter.shapes)
    foreign = [key for key in adapters.NOT_PEFT if key in adapter.config]
    if foreign:
        message = f"PEFT does not know {', '.join(foreign)}"
        command = shlex.join(["scripts/select_checkpoint.py", str(folder)])
        fix = Fix(command=command, flags={"--fix-adapter": "DIR"})
        found.append(findings.warning("CKPT-ADAPTER-FIELDS", folder, message, fix))
    return found


# -- resuming ----------------------------------------------------------------------------------


def is_complete_resume(folder: Path) -> bool:
    """Return whether a policy folder holds cosmos_config, every rank's marker, and the files
    those ranks saved.

    The embedded engine saves one rank in safetensors, whose headers are read. cosmos-rl saves
    `model_rank_R.pth` per rank, which are looked at by name only and never opened.
    """
    if not (folder / "cosmos_config").is_file():
        return False
    if (folder / TRAINER_STATE).is_file():
        try:
            for name in ("model.safetensors", "optimizer.safetensors"):
                safetensors_files.read_header(folder / name)
        except Failure:
            return False
        return (folder / ".rank_0_complete").is_file()
    ranks = {path.stem.removeprefix("model_rank_") for path in folder.glob("model_rank_*.pth")}
    ranks |= {str(rank) for rank in range(_ranks_saved(folder / "cosmos_config"))}
    for rank in ranks:
        names = [f".rank_{rank}_complete"]
        names += [f"{part}_rank_{rank}.pth" for part in _SAVED_PER_RANK]
        if not all((folder / name).is_file() for name in names):
            return False
    return True


def _ranks_saved(cosmos_config: Path) -> int:
    """Return how many ranks save: all but the replicas. 1 when a size is left to cosmos-rl (-1) or
    unknown."""
    try:
        sizes = json.loads(cosmos_config.read_text(encoding="utf-8"))["policy"]["parallelism"]
        counts = [sizes.get(f"{part}_size", 1) for part in ("tp", "cp", "pp", "dp_shard")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 1
    if any(type(count) is not int or count < 1 for count in counts):
        return 1
    return math.prod(counts)


def resume_folders(output_dir: Path) -> list[Path]:
    """Return the complete resume folders under all runs of an output folder, the newest last: that
    of the highest step."""
    found = [path for path in output_dir.glob("*/checkpoints/*/policy") if is_complete_resume(path)]
    return sorted(found, key=lambda path: (step_number(path.parent) or 0, _order(path.parent)))


def newest_resume(output_dir: Path) -> Path | None:
    """Return the complete resume folder that training goes on from, if there is one."""
    found = resume_folders(output_dir)
    return found[-1] if found else None


def finished(resume: Path, total_steps: int | None = None) -> Path | None:
    """Return the undamaged model beside the last state of a run, or None while a step of it is left
    or its model is missing. The embedded engine's states tell `total_steps` themselves."""
    state = resume / TRAINER_STATE
    if state.is_file():
        total_steps = safetensors_files.read_object(state).get("total_steps")
    done = step_number(resume.parent)
    if done is None or type(total_steps) is not int or done < total_steps:
        return None
    step = resume.absolute().parent
    model = step.parent.parent / "safetensors" / step.name
    if not model.is_dir() or findings.has_errors(verify(model)):
        return None
    return model


# -- for whoever writes into an output folder --------------------------------------------------


def mark_run(run: Path, job: Path) -> None:
    """Say in a run folder that the job in the folder `job` writes it."""
    files.write_text(run / RUN_MARK, f"{job_folder.id_of(job)}\n")


def run_marked_by(run: Path) -> str | None:
    """Return the id of the job that writes a run folder, where one said so."""
    try:
        return (run / RUN_MARK).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def clear_abandoned(output_dir: Path) -> None:
    """Delete what killed trainings left unfinished in the runs of an output folder."""
    for run in output_dir.glob("*"):
        files.clear_abandoned(run / "safetensors")
        files.clear_abandoned(run / "checkpoints")
        for step in (run / "checkpoints").glob("*"):
            if files.clear_abandoned(step) and not any(step.iterdir()):
                step.rmdir()


def prune(run_dir: Path, max_keep: int, keep: Iterable[str] = ()) -> list[str]:
    """Delete the oldest steps of `run_dir` beyond `max_keep` (0 or less keeps all), never the last
    and those in `keep`.

    A protected step counts. Returns the names deleted.
    """
    if max_keep <= 0:
        return []
    folders = [*_subfolders(run_dir / "safetensors"), *_subfolders(run_dir / "checkpoints")]
    steps = []
    for folder in sorted(folders, key=_order):
        if _STEP.fullmatch(folder.name) and folder.name not in steps:
            steps.append(folder.name)
    surplus = max(0, len(steps) - max_keep)
    protected = {*keep, *steps[-1:]}
    # The oldest first; where one of them is protected, the next goes in its place.
    doomed = [step for step in steps if step not in protected][:surplus]
    for folder in folders:
        if folder.name in doomed:
            remove(folder)
    return doomed


def remove(folder: Path) -> None:
    """Delete a folder, which loses its name before its first file goes."""
    hidden = files.temporary_name(folder)
    os.replace(folder, hidden)
    shutil.rmtree(hidden)
