"""From the words of the command line to study.json: the spec as it will run, what is varied, how a
trial is judged."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints.checkpoint_metrics import TASK_METRICS
from cosmos_reason.data import annotations
from cosmos_reason.evaluation import guard
from cosmos_reason.jobs import record
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import command_line, launchable, shared_data
from cosmos_reason.rules.case import Case, read_facts
from cosmos_reason.rules.draft import Draft
from cosmos_reason.spec import actions, document, images, origins
from cosmos_reason.spec.keys import TRAIN_ANNOTATIONS
from cosmos_reason.tuning import space
from cosmos_reason.tuning.study import MODEL, VAL_LOSS, VERSION

SHARES = TASK_METRICS  # from 0 to 1
OBJECTIVES = (*SHARES, "text.bleu", "text.rouge_l", VAL_LOSS)
OF_TYPE = re.compile(r"per_type\.[^.]+\.(accuracy|balanced_accuracy|precision|recall|f1)")
PROXY = (
    "validation loss is a proxy: the lowest is often not the best accuracy; "
    "the base model is not compared. Without --objective val_loss accuracy is searched"
)


@dataclass(frozen=True)
class Request:
    """A study as the flags of the command line describe it, by their names.

    `eval_spec` judges trials, the validation data when it is None; `guard_root` holds general
    questions to ask besides.
    """

    spec: Path
    engine: str
    objective: str
    words: str = ""
    range: Sequence[str] = ()
    eval_spec: Path | None = None
    guard_root: str | None = None
    dataset_facts: Path | None = None
    metric_file: Path | None = None
    sampler: str = "tpe"
    pruner: str = "halving"
    seed: int = 0


def prepare(request: Request) -> tuple[dict, list[Finding]]:
    """Return (study.json, findings); write nothing."""
    engine = request.engine
    # Without the template a plain training still runs, and is the fix; without the schema nothing
    # does.
    message = "AutoML is enabled but cannot run: this file of the bundle is missing"
    schema, template = bundle.SCHEMAS / "train.schema.json", bundle.template_path("train")
    if not schema.is_file():
        raise findings.bad_input("TUNE-NOT-RUNNABLE", schema, message, bundle.restoring(schema))
    if not template.is_file():
        plain = ["scripts/launch_job.py", "submit", "train", "--spec", str(request.spec)]
        plain += ["--engine", engine]
        platforms = [platform for name, platform in launchable.ways("train") if name == engine]
        plain += ["--platform", platforms[0]] if platforms else []
        raise findings.bad_input("TUNE-NOT-RUNNABLE", template, message, shlex.join(plain))
    table = located("train", engine, request.spec)
    found = rules.check("train", engine, table, request.dataset_facts, launch=True)
    if findings.has_errors(found):
        found = with_one_fix(found, "train", request.spec, engine)
        raise Failure(found, findings.EXIT_CHECKS_FAILED)
    if request.metric_file:
        files.read_text(request.metric_file)
    # The training records of each data-parallel rank; None where nobody here can count them.
    cap = records = None
    annotated = Path(document.get(table, TRAIN_ANNOTATIONS, ""))
    if request.dataset_facts:
        records = read_facts(request.dataset_facts)["records"]
    elif annotated.is_file():
        samples, *_ = annotations.read(annotated)
        records = len(samples)
    if records is not None:
        cap = max(1, records // Case("train", engine, table).ranks)
    # What build_spec was told to set is the user's choice: it is searched only when it is named.
    set_by_user, given = set(), set()
    for key, origin in origins.of_values(request.spec).items():
        if origin.startswith("--set "):
            set_by_user.add(key)
        if origin.startswith("--"):
            given.add(key)
    dimensions, found = space.build(table, request.words, request.range, cap, set_by_user)
    problems = objective_findings(table, request.objective, request.metric_file, request.guard_root)
    found += with_one_fix(problems, "train", request.spec, engine)
    evaluate = None
    if request.objective != VAL_LOSS:
        evaluate, problems = evaluation(table, request.eval_spec, engine, request.guard_root)
        if request.eval_spec:
            found += with_one_fix(problems, "evaluate", request.eval_spec, engine)
        else:
            found += with_one_fix(problems, "train", request.spec, engine)
    plan = {
        "schema_version": VERSION,
        "created_at": record.now(),
        "spec": table,
        "evaluate": evaluate,
        "dimensions": [asdict(dimension) for dimension in dimensions],
        "objective": request.objective,
        "engine": engine,
        "facts": str(request.dataset_facts.absolute()) if request.dataset_facts else None,
        "metric_file": str(request.metric_file.absolute()) if request.metric_file else None,
        "sampler": request.sampler,
        "pruner": request.pruner,
        "seed": request.seed,
        "platform": "local",
        "launch": [],
        "nodes": origins.nodes_of(request.spec, Case("train", engine, table).needed_gpus),
        "keep": 1,
    }
    searched = {dimension.key for dimension in dimensions}
    plan["given"] = sorted(given - searched)  # no repair of a suggestion changes these
    plan["alpha_per_rank"] = space.alpha_per_rank(
        table, searched, origins.of_values(request.spec).get(space.ALPHA, "")
    )
    plan["fingerprints"] = fingerprints(plan)
    return json.loads(json.dumps(plan)), found


def located(action: str, engine: str, file: Path) -> dict:
    """Return the spec with local paths made absolute, since trials run elsewhere.

    Raises Failure for a model that is none.
    """
    draft = Draft(action, engine)
    table, _ = images.translated(action, document.load(file))
    draft.overlay(table, str(file))
    if draft.findings:
        raise Failure(draft.findings, findings.EXIT_BAD_INPUT)
    return draft.spec


def with_one_fix(found: list[Finding], action: str, file: Path, engine: str) -> list[Finding]:
    """Return the findings; errors that flags of build_spec mend in `file` get the one command that
    mends them all: in place where build_spec wrote it, else in a new file beside it."""
    mendable = []
    together = Fix()
    for finding in found:
        if finding.severity == findings.ERROR and finding.fix and not finding.fix.command:
            mendable.append(finding)
            together |= finding.fix
    name = shlex.quote(str(file))
    is_ours = bool(origins.of_values(file))
    flags = {**together.flags, "-o": file if is_ours else f"{file.with_suffix('')}-mended.toml"}
    command = f"scripts/build_spec.py {action} --spec {name} --engine {engine}"
    fix = Fix(changes=together.changes, flags=flags, command=command)
    return [replace(finding, fix=fix) if finding in mendable else finding for finding in found]


# -- the files that decide what a trial reaches --------------------------------------------------


def fingerprints(plan: dict) -> dict[str, str | int]:
    """Return path -> what tells whether a file is still the same: annotations, facts, metric file
    and configuration by content, the model's weights by size."""
    table = plan["spec"]
    model = Path(document.get(table, MODEL))
    read_whole = [
        document.get(table, TRAIN_ANNOTATIONS),
        document.get(table, "custom.val_dataset.annotation_path"),
        document.get(plan["evaluate"] or {}, "dataset.annotation_path"),
        guard.annotations(plan["evaluate"] or {}),
        plan["facts"],
        plan["metric_file"],
        model / "config.json",
    ]
    marks: dict[str, str | int] = {}
    for path in sorted(model.glob("*.safetensors")):
        marks[str(path)] = path.stat().st_size
    for name in read_whole:
        if name and Path(name).is_file():
            marks[str(Path(name))] = files.sha256(Path(name))
    return marks


def changed_files(plan: dict) -> list[str]:
    """Return the files that are no longer as they were when the study began."""
    now = fingerprints(plan)
    then = plan["fingerprints"]
    return sorted(path for path in now.keys() | then.keys() if now.get(path) != then.get(path))


# -- how a trial is judged -----------------------------------------------------------------------


def objective_findings(
    table: dict, objective: str, metric_file: Path | None, general: str | None = None
) -> list[Finding]:
    """Return what is wrong with the objective: a metric that score_predictions does not have, and
    what follows from validation loss."""
    is_custom = objective.startswith("custom.") and metric_file is not None
    if not is_custom and objective not in OBJECTIVES and not OF_TYPE.fullmatch(objective):
        hint = findings.did_you_mean(objective, OBJECTIVES)
        message = f"--objective is {objective!r}; it must be one of {', '.join(OBJECTIVES)}, "
        message += f"per_type.TYPE.accuracy, or custom.NAME with --metric-file.{hint}"
        return [findings.error("TUNE-OBJECTIVE", "--objective", message)]
    if objective != VAL_LOSS:
        return []
    if general is not None:
        message = f"the objective {VAL_LOSS} asks no questions, so --guard-root has no effect; "
        message += "drop one of them"
        fix = f"drop --guard-root {shlex.quote(general)}"
        return [findings.error("TUNE-GUARD", "--guard-root", message, fix)]
    if not document.get(table, "validation.enable", False):
        message = f"the objective {VAL_LOSS} needs a spec that validates"
        fix = Fix(flags={"--eval-root": "DIR"})
        return [findings.error("TUNE-OBJECTIVE", "validation.enable", message, fix)]
    return [findings.warning("TUNE-PROXY", "--objective", PROXY)]


def evaluation(
    table: dict, file: Path | None, engine: str, general: str | None = None
) -> tuple[dict, list[Finding]]:
    """Return the evaluate spec of every trial, but for its model: the given one, or one that asks
    the validation data; with the questions of the root `general` besides."""
    found = []
    if file:
        asked = located("evaluate", engine, file)
    else:
        asked = document.template("evaluate")
        data = document.get(table, "custom.val_dataset", {})
        document.set_value(asked, "dataset.annotation_path", data.get("annotation_path", ""))
        document.set_value(asked, "dataset.media_dir", data.get("media_path", ""))
        message = "trials are compared on the validation data; "
        message += "judge the winner on data that the search has not seen"
        found.append(findings.info("TUNE-EVAL-DATA", "--eval-spec", message))
    if general is not None:
        flag = "--guard-root"
        draft = Draft("evaluate", engine, flags={flag: f"{flag} {shlex.quote(general)}"})
        draft.overlay(asked, "--eval-spec")
        command_line.take_root(draft, flag, general)
        if draft.findings:
            raise Failure(draft.findings, findings.EXIT_BAD_INPUT)
        asked = draft.spec
    if not document.get(asked, "dataset.annotation_path"):
        message = (
            "no questions compare the trials; the spec needs validation data, or the study an "
            "--eval-spec"
        )
        fix = Fix(flags={"--eval-root": "DIR"})
        return asked, [findings.error("TUNE-EVAL-DATA", "--eval-spec", message, fix)]
    for keys in (actions.data_keys("evaluate"), actions.guard_keys("evaluate")):
        found += shared_data.of_training(table, keys, asked)
    as_asked = evaluate_spec(asked, table, None)
    replaced = []
    for key in ("vision", "dataset.system_prompt"):
        if document.get(asked, key) != document.get(as_asked, key):
            replaced.append(key)
    if file and replaced:
        message = f"--eval-spec has another {' and '.join(replaced)} than the training; "
        message += "trials are asked as they are trained"
        found.append(findings.warning("TUNE-EVAL-VIEW", "--eval-spec", message))
    for finding in rules.check("evaluate", engine, as_asked, launch=True):
        if finding.severity == findings.ERROR:
            # No flag mends a spec that stands in no file.
            found.append(finding if file else replace(finding, fix=Fix()))
    return asked, found


def evaluate_spec(asked: dict, trained: dict, checkpoint: str | None) -> dict:
    """Return the evaluate spec of one trial: its model (None: the untouched one), seen and asked as
    it was trained."""
    asked = copy.deepcopy(asked)
    keys = document.keys("evaluate")
    asked["vision"] = {}
    for name, value in document.get(trained, "custom.vision", {}).items():
        if f"vision.{name}" in keys:
            asked["vision"][name] = value
    base = document.get(trained, MODEL)
    is_adapter = checkpoint is not None and document.get(trained, "policy.lora") is not None
    document.set_value(asked, "model.model_name", checkpoint or base)
    document.set_value(asked, "model.enable_lora", is_adapter)
    document.set_value(asked, "model.base_model_path", base if is_adapter else "")
    prompt = document.get(trained, "train.train_policy.system_prompt")
    if prompt:
        document.set_value(asked, "dataset.system_prompt", prompt)
    document.set_value(asked, "results_dir", "")
    return asked
