"""How a job ended. An exit code proves nothing (a parent can return 0 after its worker died): COMPLETE needs what the
action was started for, whole and made by this job."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

from cosmos_reason import annotations, checkpoints, diagnosis, jobs, secret, spec, storage
from cosmos_reason.findings import ERROR, Failure, Finding, has_errors, outside

LOG_LINES = 2_000_000  # of the log's beginning that are searched for known errors


def ended(folder: Path, record: dict, exit_code: int | None, problem: str = "", note: str = "") -> dict:
    """The record with the ending that the job's files prove. `exit_code` is None when nobody saw one; `problem` says
    why the work was never started, `note` what else the platform saw."""
    how = describe_exit(exit_code)
    if problem or not record["started_at"]:
        found, missing, how = {}, problem or "the launch was interrupted before the work was started", ""
    else:
        found, missing = gather(folder, record)
    ending, said = {"diagnosis": []}, jobs.log_tail(folder, 20)
    if exit_code in (0, None) and not missing:
        failed = f"{found['failed']} of {found['rows']} rows are errors" if found.get("failed") else ""
        state, reason = jobs.COMPLETE, [how if exit_code is None else "", failed]
    elif jobs.cancel_requested(folder):
        state, reason = jobs.CANCELED, ["canceled", missing or how]
    else:
        last = [line for line in said if line.strip() and not line.lstrip().startswith("fix:")][-1:]
        state, reason = jobs.ERROR, [missing, how, note, *(f"log ends: {line[:300]}" for line in last)]
        ending["diagnosis"] = _diagnosed(folder, record) if record["started_at"] else []
    ending |= {"state": state, "reason": secret.hidden("; ".join(filter(None, reason))), "exit_code": exit_code}
    seen = jobs.now() if exit_code is not None else jobs.time_text(_last_sign_of_life(folder, record))
    return record | ending | {"ended_at": seen, "evidence": record["evidence"] | found}


def _diagnosed(folder: Path, record: dict) -> list[dict]:
    """What the log says went wrong, as findings."""
    with suppress(FileNotFoundError), open(folder / jobs.LOG, encoding="utf-8", errors="replace") as log:
        found = diagnosis.diagnose(islice(diagnosis.read_lines(log), LOG_LINES), jobs.LOG, record["action"])
        return [diagnosis.for_job(finding, record).to_json() for finding in found if finding.severity == ERROR]
    return []


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "no exit code is known, because what waited for it was killed"
    if exit_code <= 128:
        return f"exit code {exit_code}"
    name = {int(one): one.name for one in signal.Signals}.get(exit_code - 128, f"signal {exit_code - 128}")
    return f"ended by {name}{' (often: out of memory)' if name == 'SIGKILL' else ''}"


def _last_sign_of_life(folder: Path, record: dict) -> float:
    """For a job whose end nobody saw: when it last wrote something, in seconds since the epoch."""
    written = [path.stat().st_mtime for name in (jobs.LOG, jobs.METRICS) if (path := folder / name).is_file()]
    return max([jobs.seconds(record["started_at"] or record["created_at"]), *written])


def gather(folder: Path, record: dict) -> tuple[dict, str]:
    """(evidence fields, what is missing for COMPLETE or '')."""
    look = {"train": _of_training, "evaluate": _of_rows, "inference": _of_rows, "quantize": _of_quantization}
    try:
        return look[record["action"]](folder, record)
    except (Failure, OSError) as problem:
        return {}, str(problem)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:  # the program may have written anything
        return {}, f"its results have another form than expected: {type(problem).__name__}: {problem}"


def _of_training(folder: Path, record: dict) -> tuple[dict, str]:
    last = jobs.progress(folder, whole=True)
    found = {"last_step": last.get("step"), "total_steps": last.get("total_steps")}
    if found["last_step"] is None:
        return found, "no step was recorded"
    if found["last_step"] != found["total_steps"]:
        return found, f"stopped at step {found['last_step']} of {found['total_steps']}"
    output_dir = Path(record["outputs"]["output_dir"])
    models = [c for c in checkpoints.find(output_dir) if c.kind != checkpoints.RESUME]
    final = [c for c in models if c.step == "final" or checkpoints.step_number(c.path) == last["step"]]
    new = jobs.made_by(folder, (c.path for c in final))
    made = [c for c in final if c.path in new]
    if not made:
        return found, f"{output_dir} has no model of the last step"
    return found | {"checkpoint": str(made[-1].path)}, _damage(made[-1].findings)


def _damage(findings: list[Finding]) -> str:
    broken = [finding for finding in findings if has_errors([finding])]
    return f"the last model is damaged: {broken[0].id} {broken[0].where}: {broken[0].message}" if broken else ""


def _of_rows(folder: Path, record: dict) -> tuple[dict, str]:
    """TAO writes into a folder of its own, without ids and without a count of questions."""
    evaluates, expected = record["action"] == "evaluate", _expected(record)
    name = "results.json" if evaluates or record["engine"] == "tao" else "predictions.json"
    results_dir = Path(record["outputs"]["results_dir"])
    made = sorted(jobs.made_by(folder, results_dir.rglob(name)), key=lambda path: (len(path.parts), path))
    if len(made) < max(1, expected):
        wanted = f", expected {expected}" if expected > 1 else ""
        return {}, f"{len(made) or 'no'} {name} was written in {results_dir}{wanted}"
    found, errors = {"rows": 0, "failed": 0} | ({"questions": 0} if evaluates else {}), []
    for path in made[:expected]:
        rows = storage.read_json(path)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            return found, f"{path} is no list of rows"
        found["rows"] += len(rows)
        errors += [str(row["error"]) for row in rows if row.get("error")]
        if evaluates:
            questions = _questions(folder, record, path)
            found["questions"] += questions
            ids = [row["id"] for row in rows if "id" in row]
            if len(rows) != questions:
                return found, f"{path} has {len(rows)} rows for {questions} questions"
            if len(set(ids)) != len(ids):
                return found, f"{path} has two rows with the same id"
    found["failed"] = len(errors)
    commonest = Counter(errors).most_common(1)[0][0][:200] if errors else ""
    return found, f"every row is an error, most often: {commonest}" if len(errors) == found["rows"] else ""


def _expected(record: dict) -> int:
    """How many results files: one per checkpoint, or where TAO is asked medium by medium one for each."""
    if record["action"] == "inference" and record["engine"] == "tao":
        media = Path(spec.load(Path(record["spec"]["path"]))["media"])
        if media.is_dir():
            return sum(path.is_file() and not path.name.startswith(".") for path in media.iterdir())
    return len(record.get("options", {}).get("checkpoints", ())) or 1


def _questions(folder: Path, record: dict, results: Path) -> int:
    evaluation = results.with_name("evaluation.json")
    if evaluation.is_file() and jobs.made_by(folder, [evaluation]):
        return int(storage.read_json(evaluation)["questions"])
    if record["engine"] == "transformers":
        raise outside("JOB-EVIDENCE", evaluation, "was not written")
    written = spec.with_defaults("evaluate", spec.load(Path(record["spec"]["path"])))
    samples, _ = annotations.read(written["dataset"]["annotation_path"])
    limit = written["evaluation"]["limit"]
    return min(limit, len(samples)) if limit > 0 else len(samples)


def _of_quantization(folder: Path, record: dict) -> tuple[dict, str]:
    results_dir = Path(record["outputs"]["results_dir"])
    made = [path.parent for path in jobs.made_by(folder, sorted(results_dir.rglob("config.json")))]
    models = [model for model in made if "quantization_config" in storage.read_json(model / "config.json")]
    if not models:
        return {}, f"no quantized model was written in {results_dir}"
    return {"checkpoint": str(models[0])}, _damage(checkpoints.verify(models[0]))
