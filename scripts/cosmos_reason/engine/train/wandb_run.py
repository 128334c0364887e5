"""The numbers of a training in Weights & Biases, where `logging.logger` names wandb. wandb itself
reads the key, from WANDB_API_KEY or its own login; with WANDB_MODE=offline nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import bad_input, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog

NAME = "wandb"
RUN_ID = "wandb_run_id"  # in the state that a training resumes from


class Reported:
    """metrics.jsonl, and the same numbers in a run of W&B. `kept` is what the state of a training
    says of that run."""

    def __init__(self, log: MetricsLog, run):
        self.log = log
        self.run = run
        self.kept = {RUN_ID: run.id}

    def write(self, line: dict) -> None:
        self.log.write(line)
        self.run.log(line, step=line["step"])


@contextmanager
def reported(
    log: MetricsLog, spec: dict, folder: Path, state: dict
) -> Iterator[MetricsLog | Reported]:
    """Yield the log that a training writes to, in the run of W&B that the resumed state names.
    Raises Failure when a run of W&B cannot be begun."""
    logging = spec["logging"]
    if NAME not in logging["logger"]:
        yield log
        return
    run = _begun(logging, spec, folder, state.get(RUN_ID))
    is_done = False
    try:
        yield Reported(log, run)
        is_done = True
    finally:
        run.finish(exit_code=0 if is_done else 1)


def check(logging: dict) -> None:
    """Raise Failure unless the package is there that the spec's loggers need."""
    if NAME in logging["logger"]:
        _package()


def _package():
    try:
        import wandb
    except ImportError as problem:
        message = f"got {problem}, expected the optional package wandb"
        fix = f"pip install {bundle.WANDB}"
        raise bad_input("ENGINE-WANDB-MISSING", "logging.logger", message, fix) from None
    return wandb


def _begun(logging: dict, spec: dict, folder: Path, resumed: str | None):
    wandb = _package()
    folder.mkdir(parents=True, exist_ok=True)
    run_id = logging["wandb_run_id"]
    if not run_id and logging["wandb_resume"] != "never":
        run_id = resumed
    try:
        return wandb.init(
            project=logging["project_name"],
            group=logging["group_name"],
            name=logging["wandb_run_name"] or logging["experiment_name"],
            id=run_id,
            resume=logging["wandb_resume"] if run_id else None,
            dir=str(folder),
            config=spec,
            settings=wandb.Settings(console="off", save_code=False, disable_git=True),
        )
    except wandb.Error as problem:
        others = [logger for logger in logging["logger"] if logger != NAME]
        fix = Fix(changes={"logging.logger": others})
        raise outside("ENGINE-WANDB", "logging.logger", str(problem), fix) from None
