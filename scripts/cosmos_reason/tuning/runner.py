"""Runs a study: trials as jobs of launch_job.py, several at a time, by the one process that owns
the study.

A trial is trained, evaluated and scored. What has been submitted is found in the trial's own
`jobs/`, so a run that continues a killed one repeats nothing. A trial that fails for what its
values did not decide (a full disk, a server that is away, a killed process) is repeated.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import value_text
from cosmos_reason.jobs import diagnosis, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document
from cosmos_reason.tuning import commands, suggest
from cosmos_reason.tuning.prepare import changed_files, evaluate_spec, fingerprints
from cosmos_reason.tuning.study import (
    BASE,
    COMPLETE,
    FAILED,
    GUARD_ACCURACY,
    PRUNED,
    RUNNING,
    SEARCH,
    Study,
)

HOPELESS = 3  # failures in a row, and attempts of one run at a trial
# What the embedded engine says of values; error_catalog.yaml has the signs in other logs.
BY_VALUES = {
    "ENGINE-GPU-MEMORY",
    "ENGINE-KEY",
    "ENGINE-LORA-TARGET",
    "ENGINE-LOSS-NOT-FINITE",
    "ENGINE-NO-STEPS",
    "ENGINE-NOTHING-TRAINABLE",
    "ENGINE-SAMPLE-TOO-LONG",
}
MEND = "mend the cause and run again"


@dataclass
class Runner:
    """The process that works on a study, within the budget that the study has."""

    study: Study
    every: float = 10.0  # seconds between looks
    lock: int | None = None  # the descriptor that the commands inherit
    driven: list[int] = field(default_factory=list)  # numbers of the trials that it moves on
    used_up: Finding | None = None  # why nothing is left to try
    since: str = field(default_factory=jobs.now)
    looked_at: float = field(default_factory=time.monotonic)

    @property
    def groups(self) -> list[list[str] | None]:
        """The GPUs of each trial that runs at a time; None: the platform chooses, []: the CPU."""
        return self.study.plan["groups"]

    def run(self) -> list[Finding]:
        """Until the budget is spent and nothing runs. Raises Failure (exit 3) when the outside
        world fails, or trial after trial; jobs then go on, and another run continues."""
        self.begin_again()
        self.fill()
        while self.driven:
            before = list(self.driven)
            for number in before:
                self.advance(self.study.trial(number))
            self.note_time()
            if len(self.driven) == len(before):  # otherwise there is a free place to fill at once
                time.sleep(self.every)
            self.fill()
        records = self.study.trials()
        self.tidy(records)
        to_repeat = self.to_repeat(records)
        self.note_ending(records, to_repeat)
        folder = self.study.folder
        reason = self.hopeless(records)
        if reason:
            raise findings.outside("TUNE-ALL-FAILED", folder, f"got {reason}", MEND)
        if to_repeat:
            message = f"got {failures(to_repeat)}, by no fault of the values"
            raise findings.outside("TUNE-OUTSIDE", folder, message, MEND)
        return [self.used_up] if self.used_up else []

    # -- which trials run ------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Give failed trials another chance where that needs no other suggestion: what failed by no
        fault of its values, the untouched model, the spec as it was given, and what was trained but
        not judged. With a mended metric file all are scored again."""
        plan = self.study.plan
        records = self.study.trials()
        if plan["metric_file"] in changed_files(plan):
            plan["fingerprints"] = fingerprints(plan)
            self.study.save()
            if not self.study.minimizes:
                for trial in records:
                    if trial["state"] == COMPLETE:
                        self.reopen(trial)
        for trial in self.to_repeat(records):
            self.reopen(trial)
        for trial in self.study.trials():
            is_new_suggestion = trial["kind"] == SEARCH and not trial["checkpoint"]
            if trial["state"] == FAILED and not is_new_suggestion:
                self.reopen(trial)

    def to_repeat(self, records: list[dict]) -> list[dict]:
        """Trials that failed by no fault of their values, while there is time for them."""
        if self.late() or self.study.reached(records):
            return []
        failed = [trial for trial in records if trial["state"] == FAILED]
        return [trial for trial in failed if trial["outside"]]

    def reopen(self, trial: dict) -> None:
        """Let a trial that ended go on from what it has: jobs that failed are set aside."""
        states = self.job_states(trial)
        set_aside = [name for name, state in states.items() if state != jobs.COMPLETE]
        anew = {
            "state": RUNNING,
            "set_aside": set_aside,
            "objective": None,
            "ended_at": None,
            "reason": "",
            "diagnosis": [],
            "outside": False,
        }
        self.study.write(trial | anew)

    def fill(self) -> None:
        """Drive as many trials as there are GPUs for."""
        while len(self.driven) < len(self.groups):
            records = self.study.trials()
            trial = self.left_over(records) or self.new_trial(records)
            if trial is None:
                return
            self.driven.append(trial["number"])

    def left_over(self, records: list[dict]) -> dict | None:
        """A trial to go on with: first one whose job runs, on the GPUs that it has."""
        begun = [trial for trial in records if trial["state"] == RUNNING]
        waiting = [trial for trial in begun if trial["number"] not in self.driven]
        for trial in waiting:
            if self.has_running_job(trial):
                return trial
        free = self.free(records)
        if not waiting or not free or self.hopeless(records):
            return None
        trial = waiting[0] | {"gpu_ids": free[0]}
        self.study.write(trial)
        return trial

    def new_trial(self, records: list[dict]) -> dict | None:
        """A trial that was begun now, if there is to be one."""
        free = self.free(records)
        if not free or self.used_up or self.is_spent(records) or self.hopeless(records):
            return None
        trial, table = suggest.propose(self.study, records)
        if table is None:
            self.used_up = suggest.used_up(records, trial)
            return None
        trial["gpu_ids"] = free[0]
        self.study.add(trial, table)
        return trial

    def free(self, records: list[dict]) -> list[list[str] | None]:
        """The groups of GPUs that no driven trial has."""
        taken = set()
        for trial in records:
            if trial["number"] in self.driven:
                taken.update(trial["gpu_ids"] or ())
        return [group for group in self.groups if not taken.intersection(group or ())]

    def is_spent(self, records: list[dict]) -> bool:
        """Whether the budget allows no further trial."""
        if self.late() or self.study.reached(records):
            return True
        return self.study.trained() >= self.study.plan["trials"]

    def late(self) -> bool:
        hours = self.study.plan["hours"]
        return hours is not None and self.study.plan["worked_seconds"] >= 3600 * hours

    def note_time(self) -> None:
        """Add the time since the last look to what the study has used."""
        now = time.monotonic()
        self.study.plan["worked_seconds"] += now - self.looked_at
        self.looked_at = now
        self.study.save()

    def hopeless(self, records: list[dict]) -> str:
        """Why more trials would tell nothing: in this run the base model could not be judged, or
        the last ones all failed. Empty when there is hope."""
        ended = [trial for trial in records if (trial["ended_at"] or "") >= self.since]
        ended.sort(key=lambda trial: trial["ended_at"])
        for trial in ended:
            if trial["kind"] == BASE and trial["state"] == FAILED:
                return failures([trial])
        last = ended[-HOPELESS:]
        if len(last) == HOPELESS and all(trial["state"] == FAILED for trial in last):
            return failures(last)
        return ""

    def note_ending(self, records: list[dict], to_repeat: list[dict]) -> None:
        """Write in study.json why no more trials begin; nothing while some are to be repeated."""
        plan = self.study.plan
        trained = self.study.trained()
        reasons = [f"{trained} of {plan['trials']} trainings"]
        if self.hopeless(records):
            reasons.append("failure after failure")
        if self.used_up:
            reasons.append("nothing is left to try")
        if self.late() and trained < plan["trials"]:
            reasons.append(f"{plan['hours']:g} hours used")
        if plan["target"] is not None:
            reasons.append(self.target_text(records))
        plan["ended"] = "" if to_repeat else "; ".join(reasons)
        self.study.save()

    def target_text(self, records: list[dict]) -> str:
        reached = "reached" if self.study.reached(records) else "not reached"
        text = f"target {self.study.plan['target']:g} {reached}"
        ranked = self.study.ranked(records)
        if ranked:
            text += f" (best {ranked[0]['objective']:.4g})"
        return text

    def tidy(self, records: list[dict]) -> None:
        """Remove the checkpoints of judged trials beyond the best `keep`. Their metrics and answers
        are on disk."""
        best = self.study.ranked(records)[: self.study.plan["keep"]]
        kept = [trial["number"] for trial in best]
        for trial in records:
            if trial["state"] in (COMPLETE, PRUNED) and trial["number"] not in kept:
                for results in self.study.jobs_dir(trial).glob("train-*/results"):
                    shutil.rmtree(results, ignore_errors=True)

    # -- one trial -------------------------------------------------------------------------------

    def advance(self, trial: dict) -> None:
        """Do what is due now; when the trial has ended, record that and let go of it."""
        try:
            ending = self.stage(trial)
        except Failure as failure:
            if failure.exit_code == findings.EXIT_OUTSIDE:
                raise
            found = [finding.to_json() for finding in failure.findings]
            ending = failed(str(failure), found, outside=True)
        if ending is None:
            return
        trial |= ending | {"ended_at": jobs.now()}
        self.study.write(trial)
        self.driven.remove(trial["number"])
        records = self.study.trials()
        self.tidy(records)
        findings.say(line(self.study, trial, records))
        if trial["state"] != FAILED:  # whatever was away is back
            for other in self.to_repeat(records):
                if len(other["set_aside"]) < HOPELESS - 1:
                    self.reopen(other)

    def stage(self, trial: dict) -> dict | None:
        """How the trial ended, or None while it goes on."""
        if trial["kind"] != BASE:
            train = self.job(trial, "train")
            if train is None or train["state"] not in jobs.ENDED:
                self.watch(trial, train)
                return None
            if train["state"] != jobs.COMPLETE:
                return self.not_trained(trial, train)
            self.note_training(trial, train)
            if self.study.minimizes:
                return measured(last_validation(trial), {})
        evaluate = self.job(trial, "evaluate")
        if evaluate is None or evaluate["state"] not in jobs.ENDED:
            return None
        if evaluate["state"] != jobs.COMPLETE:
            return failed(evaluate["reason"], evaluate["diagnosis"], is_outside(evaluate))
        return self.score(self.study.jobs_of(trial, "evaluate")[0] / "results")

    def not_trained(self, trial: dict, train: dict) -> dict:
        if train["state"] == jobs.CANCELED and trial["pruned_at"]:
            reason = f"among the worse half at {trial['pruned_at']} % of the run"
            return {"state": PRUNED, "reason": reason}
        return failed(train["reason"], train["diagnosis"], is_outside(train))

    def note_training(self, trial: dict, train: dict) -> None:
        """Note what a complete training took and left; the study's folder can be moved with it."""
        self.note_validations(trial)
        started, ended = jobs.seconds(train["started_at"]), jobs.seconds(train["ended_at"])
        trial["train_seconds"] = ended - started
        checkpoint = Path(train["evidence"]["checkpoint"])
        if checkpoint.is_relative_to(self.study.folder):
            checkpoint = checkpoint.relative_to(self.study.folder)
        trial["checkpoint"] = str(checkpoint)

    def score(self, results: Path) -> dict:
        words = [str(results), "--json"]
        metric_file = self.study.plan["metric_file"]
        if metric_file:
            words += ["--metric-file", metric_file]
        # Exit code 1 tells of rows that failed; the score counts them.
        failing = findings.EXIT_BAD_INPUT
        commands.run(["score_predictions.py", *words], self.study.folder, failing=failing)
        metrics = files.read_json(results / "metrics.json")
        return measured(document.get(metrics, self.study.plan["objective"]), metrics)

    def watch(self, trial: dict, train: dict | None) -> None:
        """End a trial that successive halving gives up."""
        if not train or train["state"] != jobs.RUNNING or trial["kind"] != SEARCH:
            return
        before = len(trial["intermediate"])
        self.note_validations(trial)
        is_validated = len(trial["intermediate"]) > before
        if is_validated and self.study.plan["pruner"] == "halving":
            self.halve(trial, train["job_id"])

    def halve(self, trial: dict, job_id: str) -> None:
        """The first suggestions, which the sampler learns from, and trials at their end are
        spared."""
        percent = max(int(at) for at in trial["intermediate"])
        is_worse = suggest.prunes(self.study, self.study.trials(), trial)
        is_spared = trial["number"] < suggest.STARTUP + 2 or percent >= 100
        trial["pruned_at"] = None
        if is_worse and not is_spared:
            trial["pruned_at"] = percent
        self.study.write(trial)
        if trial["pruned_at"]:
            # One that has ended meanwhile counts as it ended.
            with contextlib.suppress(Failure):
                self.launch(trial, "cancel", job_id)

    def note_validations(self, trial: dict) -> None:
        """What the validations gave so far, by percent of the run: losses (negative where the
        objective is maximized), or of answers how many were right where that is told and not the
        loss is searched."""
        lines, _ = progress.read_metrics(self.study.jobs_of(trial, "train")[0])
        totals = [row["total_steps"] for row in lines if row.get("total_steps")]
        if not totals:
            return
        sign = 1 if self.study.minimizes else -1
        for row in lines:
            if "val/avg_loss" not in row:
                continue
            percent = 100 * row["step"] // totals[0]
            value = sign * row["val/avg_loss"]
            if not self.study.minimizes:
                value = row.get("val/accuracy", value)
            trial["intermediate"][str(percent)] = value

    # -- its jobs --------------------------------------------------------------------------------

    def job_states(self, trial: dict) -> dict[str, str | None]:
        """The recorded state of each of the trial's jobs by its name, None where the record is
        broken."""
        states = {}
        for path in jobs.folders(self.study.jobs_dir(trial)):
            try:
                states[path.name] = jobs.Job.load(path).state
            except Failure:
                states[path.name] = None
        return states

    def has_running_job(self, trial: dict) -> bool:
        for name, state in self.job_states(trial).items():
            if name not in trial["set_aside"] and state in (jobs.PENDING, jobs.RUNNING):
                return True
        return False

    def job(self, trial: dict, action: str) -> dict | None:
        """The record of the trial's job as it is true now; None when it was only submitted now."""
        submitted = self.study.jobs_of(trial, action)
        if not submitted:
            self.submit(trial, action)
            return None
        record = self.launch(trial, "status", submitted[0].name)
        # The machine may have gone down between the record and the start.
        did_not_start = record["state"] == jobs.ERROR and not record["started_at"]
        if did_not_start and len(submitted) < HOPELESS:
            self.submit(trial, action)
            return None
        return record

    def submit(self, trial: dict, action: str) -> None:
        folder = self.study.trial_folder(trial["number"])
        plan = self.study.plan
        path = folder / f"{action}.toml"
        if action == "evaluate":
            checkpoint = None
            if trial["checkpoint"]:
                checkpoint = str(self.study.folder / trial["checkpoint"])
            trained = document.load(folder / "train.toml")
            document.dump(evaluate_spec(plan["evaluate"], trained, checkpoint), path, action)
        words = commands.launch_words(plan, action, path, trial["gpu_ids"])
        self.launch(trial, "submit", *words)

    def launch(self, trial: dict, verb: str, *words: str) -> dict:
        """The result of `launch_job.py verb words`. Raises Failure with its findings and exit
        code."""
        command = [
            "launch_job.py",
            verb,
            *words,
            "--jobs-dir",
            str(self.study.jobs_dir(trial)),
            "--json",
        ]
        variables = {}
        if self.groups[0] == []:
            # Threads of several jobs on the same CPU starve each other.
            share = (os.cpu_count() or 1) // len(self.groups)
            variables["OMP_NUM_THREADS"] = str(max(1, share))
        inherited = () if self.lock is None else (self.lock,)
        return commands.run(command, self.study.folder, variables, inherited)


# -- how a trial ended ---------------------------------------------------------------------------


def measured(objective, metrics: dict) -> dict:
    is_number = type(objective) in (int, float)
    if not is_number or not math.isfinite(objective):
        reason = f"the evaluation has no such number: {objective!r}"
        return failed(reason, [], outside=False) | {"metrics": metrics}
    kept = {name: value for name, value in metrics.items() if type(value) in (int, float)}
    kept["interval"] = metrics.get("accuracy_interval")
    if "guard" in metrics:
        kept[GUARD_ACCURACY] = metrics["guard"]["accuracy"]
    return {"state": COMPLETE, "objective": objective, "metrics": kept}


def last_validation(trial: dict) -> float | None:
    if not trial["intermediate"]:
        return None
    return trial["intermediate"][max(trial["intermediate"], key=int)]


def failed(reason: str, diagnosis: list[dict], outside: bool) -> dict:
    return {"state": FAILED, "reason": reason, "diagnosis": diagnosis, "outside": outside}


def is_outside(job: dict) -> bool:
    """Whether a failed job says nothing about the values it was given: its log shows no error that
    values decide. One that somebody canceled was given up."""
    by_values = BY_VALUES | {entry.id for entry in diagnosis.catalog() if entry.by_values}
    shown = {finding["id"] for finding in job["diagnosis"]}
    return job["state"] != jobs.CANCELED and not shown & by_values


def failures(trials: list[dict]) -> str:
    numbers = ", ".join(str(trial["number"]) for trial in trials)
    return f"trial {numbers} failed: {trials[-1]['reason'][:300]}"


def line(study: Study, trial: dict, records: list[dict]) -> str:
    """One line about a trial that has ended."""
    parts = []
    for key, value in trial["values"].items():
        parts.append(f"{key.rpartition('.')[2]} {value_text(value)}")
    tried = ", ".join(parts) or trial["kind"]
    if trial["objective"] is None:
        outcome = f"{trial['state']}: {trial['reason']}"
    else:
        outcome = f"{study.plan['objective']} {trial['objective']:.4g}"
    if GUARD_ACCURACY in trial["metrics"]:
        outcome += f", guard {trial['metrics'][GUARD_ACCURACY]:.4g}"
    text = f"trial {trial['number']} ({tried}): {outcome}"
    ranked = study.ranked(records)
    if ranked:
        text += f"; best {ranked[0]['objective']:.4g} (trial {ranked[0]['number']})"
    return text
