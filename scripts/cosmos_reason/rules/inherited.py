"""What a draft takes over from what there was before it: an earlier spec, a job, or the output
folder of a training that no job here recorded."""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import bundle, findings, job_folder
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.checkpoints import adapters, run_outputs
from cosmos_reason.evaluation import as_trained
from cosmos_reason.remote import model_names
from cosmos_reason.rules.draft import LORA, TEMPLATE, Draft, brief
from cosmos_reason.rules.keys import GRID
from cosmos_reason.rules.resuming import differences
from cosmos_reason.spec import actions, cosmos_framework, document, flat_configs, images, origins
from cosmos_reason.spec.values import shown

STEP = re.compile(r"(?:step|epoch)_\d+")
ENDED = ("COMPLETE", "ERROR", "CANCELED")
LIST_JOBS = "scripts/launch_job.py list"


# ---- an earlier spec -----------------------------------------------------------------------------


def take_file(draft: Draft, file: str, asked: set[str], table: dict | None) -> None:
    """Start from an earlier spec; where its values came from is read from the origins beside it.

    `asked`: keys that the command line sets. `table`: what the file holds; None where it could not
    be read, which is told here.
    """
    table = document.load(Path(file)) if table is None else table
    if draft.action in actions.TRAINING and flat_configs.is_flat_config(table):
        said = dict.fromkeys(asked, "") | draft.flags
        options = {"given": draft.spec_given, "said": said, "action": draft.action}
        draft.findings.append(flat_configs.refusal(file, table, **options))
        return
    if draft.action == "train" and actions.is_of_framework(table):
        said = {*asked, *draft.flags}
        tuning = draft.flags.get("--tuning", "").removeprefix("--tuning ")
        values, found = cosmos_framework.converted(table, file, said, tuning)
        draft.findings += found
        if values:
            base, written = document.template(draft.action), {}
            document.delete(base, draft.params["vision"])  # frames are the experiment's
            draft.overlay(base, TEMPLATE)
            document.set_values(written, values)
            draft.overlay(written, file)
        return
    if draft.action == "evaluate" and "datasets" in table:
        from cosmos_reason.rules import benchmark  # imports every reader of datasets

        if benchmark.is_config(table):
            draft.benchmarks = benchmark.datasets_of(table)
            table, found = benchmark.converted(table, draft.engine)
            draft.findings += found
    other = actions.other_than(draft.action, table)
    if other is None:
        table, found = images.translated(draft.action, table)
        draft.findings += found
        draft.overlay(table, file, origins.of_values(file))
        return
    message = f"got {actions.a_spec(other)}, expected {actions.a_spec(draft.action)}"
    given = draft.spec_given
    fix = Fix(command=f"drop {given}")
    # What a training spec says of frames, pixels and system message that the template and the
    # command line do not. An empty system message is none: it need not be said again.
    kept = {}
    if draft.action not in actions.TRAINING:
        sampling = {f"{draft.params['vision']}.{name}" for name in ("nframes", "fps")}
        decided = asked | sampling if asked & sampling else asked
        template = document.template(draft.action)
        for key, value in actions.trained_view(table, draft.action).items():
            if key not in decided and document.get(template, key) != value and value != "":
                kept[key] = value
    if kept:
        fix = Fix(command=f"replace {given} with", changes=kept)
    draft.refuse("SPEC-ACTION", file, message, fix)


# ---- a job ---------------------------------------------------------------------------------------


def take_parent(draft: Draft, folder: Path, model_given: bool, newest_resume: Callable) -> None:
    """Take what an earlier train job left: its last model, unless one is given; for train, its spec
    and where to resume. An output folder without a record, and one model in it, tell as much as
    they can. `newest_resume(folder, record)` finds the last state that an unfinished job saved."""
    if not os.path.isdir(folder):
        message = "got no such folder, expected that of a train job or of its output"
        raise findings.bad_input("SPEC-PARENT", folder, message, Fix(command=LIST_JOBS))
    if not os.path.isfile(folder / "job.json"):
        _take_output(draft, folder, model_given)
        return
    record = job_folder.read(folder)
    origin = f"parent job {folder.name}"
    if draft.action == "train":
        _resume(draft, folder, record, newest_resume, origin)
        return
    # What a job made whose model the action can begin with.
    able, wanted = actions.TRAINING, "train job"
    if draft.action in ("evaluate", "inference"):
        able, wanted = (*able, "quantize"), "train or quantize job"
    checkpoint = document.get(record, "evidence.checkpoint")
    is_complete = isinstance(checkpoint, str) and record.get("state") == "COMPLETE"
    if not is_complete or document.get(record, "action") not in able:
        message = f"got a job without a verified model, expected a COMPLETE {wanted}"
        raise findings.bad_input("SPEC-PARENT", folder, message, _ask_for_status(folder))
    if record["action"] == "quantize":
        # Asked as its parent job was trained; what is not known of that, take_training says.
        draft.follows = Path(checkpoint)
        if not model_given:
            draft.put(draft.params["model"], checkpoint, origin)
        trained = as_trained.quantized_training(folder, record)
        if trained:
            _take_view(draft, trained, origin)
        return
    parent = job_folder.here(folder, document.load(folder / "spec.toml"))
    if not model_given:
        is_adapter = document.get(parent, LORA) is not None
        _take_last_model(draft, checkpoint, is_adapter, origin)
        if is_adapter and draft.action != "grpo":
            base = document.get(parent, "policy.model_name_or_path", "")
            draft.put(draft.params["adapter"], True, origin)
            draft.put(draft.params["base"], model_names.canonical(base), origin)
    if draft.action != "grpo":
        _take_view(draft, parent, origin)


def _ask_for_status(folder: Path) -> Fix:
    return Fix(command=shlex.join(["scripts/launch_job.py", "status", os.path.abspath(folder)]))


def _resume(draft: Draft, folder: Path, record: dict, newest_resume: Callable, origin: str) -> None:
    """Continue a job that failed or was canceled. One that is COMPLETE has no step left, which is
    said unless the command line tells something else to resume."""
    state = document.get(record, "state")
    if document.get(record, "action") != "train" or state not in ENDED:
        message = "got no train job that has ended, expected one"
        raise findings.bad_input("SPEC-PARENT", folder, message, _ask_for_status(folder))
    if state == "COMPLETE":
        model = str(document.get(record, "evidence.checkpoint"))
        draft.finished = model
        folder_of_model = Path(model)
        policy = None  # what cosmos-rl saved together with .../safetensors/step_N
        if folder_of_model.parent.name == "safetensors" and STEP.fullmatch(folder_of_model.name):
            states = folder_of_model.parents[1] / "checkpoints"
            policy = str(states / folder_of_model.name / "policy")
        message = f"got a job whose model is {shown(model)}, expected .../safetensors/step_N"
    else:
        policy = newest_resume(folder, record)
        message = (
            f"got a job that ended as {state} and left no complete checkpoint here, "
            "expected one to go on from"
        )
    if policy is None:
        fix = Fix(
            command=f"replace {draft.flags['--parent-job']} with",
            flags={"--spec": folder / "spec.toml"},
            changes={"train.resume": True},
        )
        raise findings.bad_input("SPEC-PARENT", folder, message, fix)
    engine = record.get("engine", draft.engine)
    if engine != draft.engine:
        message = f"got {draft.engine}, but the run to resume is of {engine}"
        draft.refuse("SPEC-RESUME-OTHER", "--engine", message, Fix(flags={"--engine": engine}))
    draft.overlay(job_folder.here(folder, document.load(folder / "spec.toml")), origin)
    draft.put("train.resume", policy, origin)
    # What the command line changes after this is compared with it (compare_with_resumed).
    draft.resumed = copy.deepcopy(draft.spec)


def _take_last_model(draft: Draft, checkpoint: str, is_adapter: bool, origin: str) -> None:
    key = draft.params["model"]
    choose = f"select_checkpoint.py {shlex.quote(str(Path(checkpoint).parents[2]))}"
    draft.put(key, checkpoint, origin)
    if is_adapter and draft.action == "grpo":
        message = "got a LoRA adapter, expected a merged model to start reinforcement learning "
        message += f"from; {choose} --merge DIR makes one, for --model"
        draft.refuse("SPEC-PARENT-ADAPTER", key, message)
        return
    message = f"this is the model of the last step; {choose} --by METRIC names a better one, if "
    message += "there is one"
    draft.findings.append(findings.info("SPEC-PARENT-LAST", key, message))


def _take_view(draft: Draft, parent: dict, origin: str) -> None:
    """Ask the model as it was trained: same frames, same pixels, same system message."""
    before = {}  # how a Reason1 config wants the model asked; a training's own view replaces others
    if draft.benchmarks:
        table, prompt = draft.params["vision"], draft.params["system_prompt"]
        before[prompt] = document.get(draft.spec, prompt, "")
        for name, value in document.get(draft.spec, table, {}).items():
            before[f"{table}.{name}"] = value
    # The whole table goes: a key that training did not have would change what is seen.
    document.delete(draft.spec, draft.params["vision"])
    draft.trained = actions.trained_view(parent, draft.action)
    gave_way = []
    for key, value in before.items():
        if draft.trained.get(key) != value and key not in draft.named:
            gave_way.append(f"{key} = {value_text(value) or repr(value)}")
    if gave_way:
        message = (
            f"{', '.join(gave_way)} of the config gave way to what the model was trained with; "
            "--set keeps one"
        )
        draft.findings.append(findings.info("SPEC-PARENT-VIEW", draft.params["vision"], message))
    for key, value in draft.trained.items():
        draft.put(key, value, origin)


# ---- an output folder that no job here recorded --------------------------------------------------


def _take_output(draft: Draft, folder: Path, model_given: bool) -> None:
    """Take the last model of an output, or the one that the folder itself is. How it was trained is
    read from the files around it (`model_folder.take_training`)."""
    if draft.action == "train":
        message = "got no job of this skill, expected one: another run continues with its own spec"
        resume = run_outputs.newest_resume(folder)
        fix = Fix()
        if resume:
            fix = Fix(
                command=f"replace {draft.flags['--parent-job']} with",
                flags={"--spec": "FILE"},
                changes={"train.resume": str(resume.absolute())},
            )
        raise findings.bad_input("SPEC-PARENT", folder, message, fix)
    model, is_chosen = _model_meant(folder.resolve())
    # No job says how it was trained: the files around the model may.
    draft.follows = model
    origin = f"train output {folder}"
    if model_given:
        return
    if is_chosen and draft.action != "grpo":
        draft.put(draft.params["model"], str(model), origin)
        return
    is_adapter = run_outputs.kind(model) == run_outputs.ADAPTER
    _take_last_model(draft, str(model), is_adapter, origin)


def _model_meant(folder: Path) -> tuple[Path, bool]:
    """Return the model that a folder is or that a run there saved last, and whether it is the
    folder itself. Raises Failure."""
    if any((folder / name).is_file() for name in ("config.json", adapters.CONFIG)):
        return folder, True
    output = folder.parent if folder.name in run_outputs.PARTS else folder
    found = run_outputs.models(output)
    trained = [checkpoint for checkpoint in found if checkpoint.path.parent.name == "safetensors"]
    if not trained:
        message = "got no job.json and no model, expected a job or TIMESTAMP/safetensors/step_N"
        raise findings.bad_input("SPEC-PARENT", folder, message)
    last = trained[-1]
    if not last.complete:
        message = f"got a damaged last model, {last.name}, expected a whole one"
        fix = Fix(command=f"scripts/select_checkpoint.py {shlex.quote(str(output))}")
        raise findings.bad_input("SPEC-PARENT", folder, message, fix)
    return last.path, False


# ---- whether the draft still goes with them ------------------------------------------------------


def compare_with_resumed(draft: Draft) -> None:
    """Report what makes the checkpoint of the parent job unfit: another model, other adapters,
    another layout."""
    if not draft.resumed:
        return
    if document.get(draft.spec, "train.resume") != draft.resumed["train"]["resume"]:
        return
    if draft.finished:
        message = (
            f"got a finished run, of which no step is left; take its model, {draft.finished}, "
            "or train on in a new run that starts from it (--model)"
        )
        model = Path(draft.finished)
        if model.is_dir() and run_outputs.kind(model) == run_outputs.ADAPTER:
            merge = f"select_checkpoint.py {shlex.quote(str(model))} --merge DIR"
            message += f"; {merge} merges the adapter with its base first"
        draft.refuse("SPEC-RESUME-DONE", "train.resume", message)
    key = draft.params["model"]
    before, value = document.get(draft.resumed, key), document.get(draft.spec, key)
    if before != value:
        message = f"got {shown(value)}, but the run to resume has {shown(before)}"
        draft.refuse("SPEC-RESUME-OTHER", key, message, Fix(changes={key: before}))
    is_cosmos = bundle.is_cosmos_rl(draft.engine)
    given = [draft.flags[flag] for flag in ("--gpus-per-node", "--nodes") if flag in draft.flags]
    for finding in differences(draft.spec, draft.resumed, is_cosmos):
        if finding.where == key:
            continue  # another model is an error already
        if given and finding.where.startswith(GRID):
            flags = " ".join(given)
            message = f"{finding.message}, which {flags} would change"
            finding = replace(finding, message=message, fix=Fix(command=f"drop {flags}"))
        draft.findings.append(finding)


def compare_with_training(draft: Draft) -> None:
    """Warn of each sampling key and system message that no longer is the parent job's."""
    for key, trained in draft.trained.items():
        now = document.get(draft.spec, key)
        if now == trained or not (now or trained):  # no message is an empty one
            continue
        got = "no value" if now is None else shown(now)
        message = f"got {got}, but training used {shown(trained)}"
        fix = Fix(changes={key: trained})
        if not trained and key in draft.named:
            fix = Fix(command=f"drop {brief(draft.named[key])}")
        draft.findings.append(findings.warning("SPEC-TRAINED-OTHERWISE", key, message, fix))
