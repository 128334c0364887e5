"""From the words of the command line to study.json: the spec as it will run, what is varied, how a trial is judged."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from cosmos_reason import annotations, bundle, findings, jobs, rules, spec, spec_sources, storage
from cosmos_reason.checkpoints import TASK_METRICS
from cosmos_reason.search import space, study

SHARES = TASK_METRICS  # from 0 to 1
OBJECTIVES = (*SHARES, "text.bleu", "text.rouge_l", study.VAL_LOSS)
OF_TYPE = re.compile(r"per_type\.[^.]+\.(accuracy|balanced_accuracy|precision|recall|f1)")


def prepare(
    spec_file: Path,
    evaluate_file: Path | None,
    words: str,
    ranges: list[str],
    objective: str,
    engine: str,
    facts: Path | None,
    metric_file: Path | None,
    **settings,
) -> tuple[dict, list[findings.Finding]]:
    """(study.json, findings); `settings` (sampler, pruner, seed) go into it as they are. Nothing is written."""
    for path in (bundle.SCHEMAS / "train.schema.json", bundle.template_path("train")):
        if not path.is_file():
            message = "AutoML is enabled but cannot run: got no such file"
            fix = f"scripts/launch_job.py submit train --spec {shlex.quote(str(spec_file))} --platform local"
            raise findings.bad_input("TUNE-NOT-RUNNABLE", path, message, fix)
    table = located("train", engine, spec_file)
    found = rules.check("train", engine, table, facts, launch=True)
    if findings.has_errors(found):
        raise findings.Failure(rebuilt(found, "train", spec_file, engine), findings.EXIT_CHECKS_FAILED)
    if metric_file:
        storage.read_text(metric_file)
    given = {key for key, origin in spec_sources.earlier_origins(spec_file).items() if origin.startswith("--set ")}
    dimensions, problems = space.build(table, words, ranges, samples_per_rank(table, engine, facts), given)
    found = problems + rebuilt(objective_findings(table, objective, metric_file), "train", spec_file, engine)
    evaluate = None
    if objective != study.VAL_LOSS:
        evaluate, problems = evaluation(table, evaluate_file, engine)
        found += rebuilt(problems, *(("evaluate", evaluate_file) if evaluate_file else ("train", spec_file)), engine)
    plan = settings | {
        "schema_version": study.VERSION,
        "created_at": jobs.now(),
        "spec": table,
        "evaluate": evaluate,
        "dimensions": [asdict(dimension) for dimension in dimensions],
        "objective": objective,
        "engine": engine,
        "facts": str(facts.absolute()) if facts else None,
        "metric_file": str(metric_file.absolute()) if metric_file else None,
        "platform": "local",
        "launch": [],
        "keep": 1,
    }
    return json.loads(json.dumps(plan | {"fingerprints": fingerprints(plan)})), found


def located(action: str, engine: str, file: Path) -> dict:
    """The spec with local paths made absolute, since trials run elsewhere. Raises Failure for a model that is none."""
    draft = spec_sources.Draft(action, engine)
    draft.overlay(spec.load(file), str(file))
    if draft.findings:
        raise findings.Failure(draft.findings, findings.EXIT_BAD_INPUT)
    return draft.spec


def rebuilt(found: list[findings.Finding], action: str, file: Path, engine: str) -> list[findings.Finding]:
    """The findings; errors that flags of build_spec mend in `file` get the one command that mends them all."""
    wrong = [row for row in found if row.severity == findings.ERROR and row.fix.startswith("--")]
    name, force = shlex.quote(str(file)), "" if spec_sources.earlier_origins(file) else " --force"
    changes = " ".join(dict.fromkeys(row.fix for row in wrong))
    command = f"scripts/build_spec.py {action} --spec {name} --engine {engine} {changes} -o {name}{force}"
    return [replace(row, fix=command) if row in wrong else row for row in found]


def fingerprints(plan: dict) -> dict[str, str | int]:
    """Path -> what tells whether a file that decides what a trial reaches is still the same: annotations, facts,
    metric file and configuration by content, the model's weights by size."""
    table, asked = plan["spec"], plan["evaluate"] or {}
    named = [spec.get(table, f"custom.{name}_dataset.annotation_path") for name in ("train", "val")]
    named += [spec.get(asked, "dataset.annotation_path"), plan["facts"], plan["metric_file"]]
    model = Path(spec.get(table, "policy.model_name_or_path"))
    whole = {path for path in (*(Path(name) for name in named if name), model / "config.json") if path.is_file()}
    return {str(path): path.stat().st_size for path in sorted(model.glob("*.safetensors"))} | {
        str(path): storage.sha256(path) for path in sorted(whole)
    }


def changed_files(plan: dict) -> list[str]:
    """The files that are no longer as they were when the study began."""
    now, was = fingerprints(plan), plan["fingerprints"]
    return sorted(path for path in now.keys() | was.keys() if now.get(path) != was.get(path))


def samples_per_rank(table: dict, engine: str, facts: Path | None) -> int | None:
    """Training records of each data-parallel rank; None when the annotations cannot be counted from here."""
    path = Path(spec.get(table, "custom.train_dataset.annotation_path", ""))
    if not facts and not path.is_file():
        return None
    records = rules.read_facts(facts)["records"] if facts else len(annotations.read(path)[0])
    return max(1, records // rules.Case("train", engine, table).ranks)


def objective_findings(table: dict, objective: str, metric_file: Path | None) -> list[findings.Finding]:
    """A metric that score_predictions does not have, and what follows from validation loss."""
    custom = objective.startswith("custom.") and metric_file is not None
    if objective not in OBJECTIVES and not OF_TYPE.fullmatch(objective) and not custom:
        near = findings.nearest(objective, OBJECTIVES) or ["accuracy"]
        known = f"{', '.join(OBJECTIVES)}, per_type.TYPE.accuracy, or custom.NAME with --metric-file"
        message = f"got {objective!r}, expected one of {known}.{findings.did_you_mean(objective, OBJECTIVES)}"
        fix = f"replace --objective {shlex.quote(objective)} with --objective {near[0]}"
        return [findings.error("TUNE-OBJECTIVE", "--objective", message, fix)]
    if objective != study.VAL_LOSS:
        return []
    if not spec.get(table, "validation.enable", False):
        message = "got a spec without validation, expected validation data"
        return [findings.error("TUNE-OBJECTIVE", "validation.enable", message, "--eval-root DIR")]
    message = "validation loss is a proxy: the lowest is often not the best accuracy; the base model is not compared"
    return [findings.warning("TUNE-PROXY", "--objective", message, "drop --objective val_loss")]


def evaluation(table: dict, file: Path | None, engine: str) -> tuple[dict, list[findings.Finding]]:
    """The evaluate spec of every trial, but for its model: the given one, or one that asks the validation data."""
    if file:
        asked, found = located("evaluate", engine, file), []
    else:
        asked, data = spec.template("evaluate"), spec.get(table, "custom.val_dataset", {})
        spec.set_value(asked, "dataset.annotation_path", data.get("annotation_path", ""))
        spec.set_value(asked, "dataset.media_dir", data.get("media_path", ""))
        message = "trials are compared on the validation data; judge the winner on data that the search has not seen"
        found = [findings.info("TUNE-EVAL-DATA", "--eval-spec", message)]
    if not spec.get(asked, "dataset.annotation_path"):
        message = "got no questions to compare trials with, expected validation data in the spec or an evaluate spec"
        return asked, [findings.error("TUNE-EVAL-DATA", "--eval-spec", message, "--eval-root DIR")]
    checked = evaluate_spec(asked, table, None)
    replaced = [key for key in ("vision", "dataset.system_prompt") if spec.get(asked, key) != spec.get(checked, key)]
    if file and replaced:
        message = f"got another {' and '.join(replaced)} than training has; trials are asked as they are trained"
        found.append(findings.warning("TUNE-EVAL-VIEW", "--eval-spec", message))
    problems = [row for row in rules.check("evaluate", engine, checked, launch=True) if row.severity == findings.ERROR]
    return asked, found + (problems if file else [replace(row, fix="") for row in problems])


def evaluate_spec(asked: dict, trained: dict, checkpoint: str | None) -> dict:
    """The evaluate spec of one trial: its model (None: the untouched one), seen and asked as it was trained."""
    asked, base = json.loads(json.dumps(asked)), spec.get(trained, "policy.model_name_or_path")
    view = spec.get(trained, "custom.vision", {})
    adapter = checkpoint is not None and spec.get(trained, "policy.lora") is not None
    asked["vision"] = {name: value for name, value in view.items() if f"vision.{name}" in spec.keys("evaluate")}
    spec.set_value(asked, "model.model_name", checkpoint or base)
    spec.set_value(asked, "model.enable_lora", adapter)
    spec.set_value(asked, "model.base_model_path", base if adapter else "")
    if prompt := spec.get(trained, "train.train_policy.system_prompt"):
        spec.set_value(asked, "dataset.system_prompt", prompt)
    spec.set_value(asked, "results_dir", "")
    return asked
