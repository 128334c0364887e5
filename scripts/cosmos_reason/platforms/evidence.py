"""How a job ended. An exit code proves nothing (a parent can return 0 after its worker died): COMPLETE needs what the
action was started for, whole and made by this job."""

from __future__ import annotations

import signal
from pathlib import Path

from cosmos_reason import checkpoints, jobs, storage
from cosmos_reason.findings import Failure, has_errors


def ended(folder: Path, record: dict, exit_code: int | None, problem: str = "") -> dict:
    """The record with the ending that the job's files prove. `exit_code` is None when nobody saw one; `problem` says
    why the work was never started."""
    how = describe_exit(exit_code)
    if problem or not record["started_at"]:
        found, missing, how = {}, problem or "the launch was interrupted before the work was started", ""
    else:
        found, missing = gather(folder, record)
    state, reason = _verdict(folder, exit_code, how, missing)
    ended_at = jobs.now() if exit_code is not None else jobs.time_text(_last_sign_of_life(folder, record))
    ending = {"state": state, "reason": reason, "ended_at": ended_at, "exit_code": exit_code}
    return record | ending | {"evidence": record["evidence"] | found}


def _verdict(folder: Path, exit_code: int | None, how: str, missing: str) -> tuple[str, str]:
    if exit_code in (0, None) and not missing:
        return jobs.COMPLETE, "" if exit_code == 0 else how
    if jobs.cancel_requested(folder):
        return jobs.CANCELED, f"canceled; {missing or how}"
    last_words = "".join(jobs.log_tail(folder, 1))[:300]
    return jobs.ERROR, "; ".join(part for part in (missing, how, last_words and f"log ends: {last_words}") if part)


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "no exit code is known, because what waited for it was killed"
    if exit_code <= 128:
        return f"exit code {exit_code}"
    known = {int(number): number.name for number in signal.Signals}
    name = known.get(exit_code - 128, f"signal {exit_code - 128}")
    return f"ended by {name}{' (often: out of memory)' if name == 'SIGKILL' else ''}"


def _last_sign_of_life(folder: Path, record: dict) -> float:
    """For a job whose end nobody saw: when it last wrote something, in seconds since the epoch."""
    written = [path.stat().st_mtime for name in (jobs.LOG, jobs.METRICS) if (path := folder / name).is_file()]
    return max([jobs.seconds(record["started_at"] or record["created_at"]), *written])


def gather(folder: Path, record: dict) -> tuple[dict, str]:
    """(evidence fields, what is missing for COMPLETE or '')."""
    look = {"train": _of_training, "evaluate": _of_evaluation}[record["action"]]
    try:
        return look(folder, record)
    except (Failure, OSError) as problem:
        return {}, str(problem)


def _of_training(folder: Path, record: dict) -> tuple[dict, str]:
    last = jobs.progress(folder)
    found = {"last_step": last.get("step"), "total_steps": last.get("total_steps")}
    if found["last_step"] is None:
        return found, "no step was recorded"
    if found["last_step"] != found["total_steps"]:
        return found, f"stopped at step {found['last_step']} of {found['total_steps']}"
    output_dir = Path(record["outputs"]["output_dir"])
    models = [c for c in checkpoints.find(output_dir) if c.kind != checkpoints.RESUME]
    final = [c for c in models if c.step == "final" or checkpoints.step_number(c.path) == last["step"]]
    made = [c for c in final if jobs.made_since_start(record, c.path)]
    if not made:
        return found, f"{output_dir} has no model of the last step"
    broken = [finding for finding in made[-1].findings if has_errors([finding])]
    if broken:
        return found, f"the last model is damaged: {broken[0].id} {broken[0].where}: {broken[0].message}"
    return found | {"checkpoint": str(made[-1].path)}, ""


def _of_evaluation(folder: Path, record: dict) -> tuple[dict, str]:
    results = Path(record["outputs"]["results_dir"]) / "results.json"
    evaluation = results.with_name("evaluation.json")
    for path in (results, evaluation):
        if not path.is_file() or not jobs.made_since_start(record, path):
            return {}, f"{path} was not written"
    rows, questions = storage.read_json(results), storage.read_json(evaluation)["questions"]
    found = {"rows": len(rows), "questions": questions}
    if len(rows) != questions:
        return found, f"{results} has {len(rows)} rows for {questions} questions"
    if len({row["id"] for row in rows}) != len(rows):
        return found, f"{results} has two rows with the same id"
    return found, ""
