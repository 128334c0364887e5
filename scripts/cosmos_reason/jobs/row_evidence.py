"""What proves that an evaluation or an inference is complete: a row for every question."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import outside
from cosmos_reason.data import annotations
from cosmos_reason.evaluation import guard
from cosmos_reason.evaluation.saved_answers import EVALUATION, INFERENCE, Names
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import document


def of_rows(job: Job) -> tuple[dict, str]:
    """TAO writes into a folder of its own, without ids and without a count of questions."""
    name = _names(job).rows
    results_dir = Path(job.outputs["results_dir"])
    expected = _expected_files(job)
    written = job.wrote(results_dir.rglob(name))
    written.sort(key=lambda path: (len(path.parts), path))
    if len(written) < max(1, expected):
        suffix = f", expected {expected}" if expected > 1 else ""
        return {}, f"{len(written) or 'no'} {name} was written in {results_dir}{suffix}"
    found = {"rows": 0, "failed": 0}
    if _is_counted(job):
        found["questions"] = 0
    errors: Counter[str] = Counter()
    for path in written[:expected]:
        rows = files.read_json(path)
        is_list = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        if not is_list or not rows:
            return found, f"{path} is no list of rows"
        found["rows"] += len(rows)
        errors.update(str(row["error"]) for row in rows if row.get("error"))
        if not _is_counted(job):
            continue
        questions = _questions(job, path)
        found["questions"] += questions
        if len(rows) != questions:
            return found, f"{path} has {len(rows)} rows for {questions} questions"
        ids = [row["id"] for row in rows if "id" in row]
        if len(set(ids)) != len(ids):
            return found, f"{path} has two rows with the same id"
    found["failed"] = errors.total()
    if found["failed"] < found["rows"]:
        return found, ""
    commonest = "".join(text for text, _ in errors.most_common(1))
    return found, f"every row is an error, most often: {commonest[:200]}"


def _names(job: Job) -> Names:
    return INFERENCE if (job.action, job.engine) == ("inference", "transformers") else EVALUATION


def _is_counted(job: Job) -> bool:
    """Return whether it is known how many questions there were: TAO's inference does not say."""
    return job.action == "evaluate" or job.engine == "transformers"


def _expected_files(job: Job) -> int:
    """Return how many results files: one per checkpoint, two where a guard is asked too, or where
    TAO is asked medium by medium one for each."""
    if job.action == "inference" and job.engine == "tao":
        media = Path(document.load(job.spec_path)["media"])
        if media.is_dir():
            shown = [path for path in media.iterdir() if not path.name.startswith(".")]
            return sum(path.is_file() for path in shown)
    models = len(job.options.get("checkpoints", ())) or 1
    if (job.action, job.engine) != ("evaluate", "transformers"):
        return models
    # General questions are asked besides.
    return 2 * models if guard.annotations(document.load(job.spec_path)) else models


def _questions(job: Job, results: Path) -> int:
    """Return how many questions the run had that wrote `results`."""
    record = results.with_name(_names(job).record)
    if record.is_file() and job.wrote([record]):
        written = files.read_json(record)
        author = written.get("job_id")
        if job.engine == "transformers" and author != job.folder.name:
            raise outside("JOB-EVIDENCE", record, f"was written by {author or 'no job'}")
        return int(written["questions"])
    if job.engine == "transformers":
        raise outside("JOB-EVIDENCE", record, "was not written")
    spec = document.with_defaults("evaluate", document.load(job.spec_path))
    samples, _ = annotations.read(spec["dataset"]["annotation_path"])
    limit = spec["evaluation"]["limit"]
    return min(limit, len(samples)) if limit > 0 else len(samples)
