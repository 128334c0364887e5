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
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import value_text
from cosmos_reason.jobs import diagnosis, progress, record
from cosmos_reason.spec import document
from cosmos_reason.tuning import commands, page, suggest
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

TOLD_EVERY = 60  # seconds between lines about how far the trials are
LEAST_RENEWED = 5  # seconds after which a browser reads the page again
HOPELESS = 3  # failures in a row, and attempts of one run at a trial
# Errors of the embedded engine that the values decide; error_catalog.yaml has those of other logs.
BY_VALUES = {"ENGINE-GPU-MEMORY", "ENGINE-KEY", "ENGINE-LORA-TARGET", "ENGINE-LOSS-NOT-FINITE",
             "ENGINE-NO-STEPS", "ENGINE-NOTHING-TRAINABLE", "ENGINE-SAMPLE-TOO-LONG"}  # fmt: skip


class Runner:
    """The process that works on a study, within the budget that the study has.

    `every`: seconds between looks; `lock`: the descriptor that its commands inherit.
    """

    def __init__(self, study: Study, every: float = 10.0, lock: int | None = None):
        self.study = study
        self.every = every
        self.lock = lock
        # Read once: whoever holds the study's lock is the only one that writes them.
        self.trials = study.trials()
        self.driven: list[dict] = []  # the trials among them that this run moves on
        self.used_up: Finding | None = None  # why nothing is left to try
        self.since = record.now()
        self.looked_at = self.told_at = time.monotonic()

    def run(self) -> list[Finding]:
        """Work until the budget is spent and nothing runs. Raises Failure (exit 3) when the outside
        world fails, or trial after trial; jobs then go on, and another run continues."""
        # What an earlier run left goes first: those trials have cost their time already.
        self.begin_again()
        self.fill()
        self.tell()
        while self.driven:
            before = list(self.driven)
            for trial in before:
                self.advance(trial)
            self.note_time()
            if len(self.driven) == len(before):  # otherwise there is a free place to fill at once
                time.sleep(self.every)
            self.fill()
            if time.monotonic() - self.told_at >= TOLD_EVERY:
                self.tell()
        self.tidy()
        lost = self.to_repeat()
        # study.json says why no more trials begin; nothing while some are to be repeated.
        plan, trained = self.study.plan, self.study.trained()
        reasons = [f"{trained} of {plan['trials']} trainings"]
        reasons += ["failure after failure"] if self.hopeless() else []
        reasons += ["nothing is left to try"] if self.used_up else []
        if self.is_late() and trained < plan["trials"]:
            reasons.append(f"{plan['hours']:g} hours used")
        if plan["target"] is not None:
            ranked = self.study.ranked(self.trials)
            reached = "reached" if self.study.reached(self.trials) else "not reached"
            best = f" (best {ranked[0]['objective']:.4g})" if ranked else ""
            reasons.append(f"target {plan['target']:g} {reached}{best}")
        plan["ended"] = "" if lost else "; ".join(reasons)
        self.study.save()
        page.write(self.study, self.trials)
        folder = self.study.folder
        if self.hopeless():
            message = f"{self.hopeless()}; mend the cause and run again"
            raise findings.outside("TUNE-ALL-FAILED", folder, message)
        if lost:
            message = f"{failures(lost)}. The values are not the cause: mend it and run again"
            raise findings.outside("TUNE-OUTSIDE", folder, message)
        return [self.used_up] if self.used_up else []

    def tell(self) -> None:
        """Say which of how many trials run and how far each is, and renew the study's page."""
        self.told_at = time.monotonic()
        for trial in self.driven:
            words = [f"trial {trial['number']} of {self.study.plan['trials']}"]
            for action in ("evaluate", "train"):
                folders = self.study.jobs_of(trial, action)
                latest = progress.newest(folders[-1]) if folders else {}
                if "total_steps" in latest:
                    words.append(f"{action} {progress.position(folders[-1], latest)}")
                    break
            findings.say(": ".join(words))
        page.write(self.study, self.trials, max(self.every, LEAST_RENEWED))

    # -- which trials run ------------------------------------------------------------------------

    @property
    def groups(self) -> list[list[str] | None]:
        """Return the GPUs of each trial that runs at a time; None: the platform chooses, []: the
        CPU."""
        return self.study.plan["groups"]

    def begin_again(self) -> None:
        """Reopen ended trials where going on needs no other suggestion: what failed by no fault of
        its values, the untouched model, the spec as it was given, and what was trained but not
        judged. With a mended metric file all are scored again."""
        plan = self.study.plan
        lost = self.to_repeat()
        is_mended = plan["metric_file"] in changed_files(plan)
        if is_mended:
            plan["fingerprints"] = fingerprints(plan)
            self.study.save()
        for trial in self.trials:
            if trial["state"] == COMPLETE:
                is_due = is_mended and not self.study.minimizes
            else:
                # A suggestion that failed by its values is a result: the sampler avoids them.
                is_new_suggestion = trial["kind"] == SEARCH and not trial["checkpoint"]
                is_due = trial["state"] == FAILED and (trial in lost or not is_new_suggestion)
            if is_due:
                self.reopen(trial)

    def to_repeat(self) -> list[dict]:
        """Return the trials that failed by no fault of their values, while there is time for
        them."""
        if self.is_late() or self.study.reached(self.trials):
            return []
        return [trial for trial in self.trials if trial["state"] == FAILED and trial["outside"]]

    def reopen(self, trial: dict) -> None:
        """Let a trial that ended go on from what it has: jobs that failed are set aside."""
        states = self.job_states(trial)
        trial |= {
            "state": RUNNING,
            "set_aside": [name for name, state in states.items() if state != record.COMPLETE],
            "objective": None,
            "ended_at": None,
            "reason": "",
            "diagnosis": [],
            "outside": False,
        }
        self.study.write(trial)

    def fill(self) -> None:
        """Drive as many trials as there are GPUs for."""
        while len(self.driven) < len(self.groups):
            trial = self.next_trial()
            if trial is None:
                return
            self.driven.append(trial)

    def next_trial(self) -> dict | None:
        """Return a trial to drive: one that a killed run left, else a new one; None when the budget
        allows none."""
        driven = {trial["number"] for trial in self.driven}
        left = []
        for trial in self.trials:
            if trial["state"] == RUNNING and trial["number"] not in driven:
                left.append(trial)
        for trial in left:
            for name, state in self.job_states(trial).items():
                is_at_work = state in (record.PENDING, record.RUNNING)
                if is_at_work and name not in trial["set_aside"]:
                    return trial  # on the GPUs that its job has
        # A trial that waits holds its GPUs too, or two of them would be started on the same.
        taken = set()
        for trial in self.driven:
            taken.update(trial["gpu_ids"] or ())
        free = [group for group in self.groups if not taken.intersection(group or ())]
        if not free or self.hopeless():
            return None
        if left:
            trial = left[0]
            trial["gpu_ids"] = free[0]
            self.study.write(trial)
            return trial
        is_spent = self.study.trained() >= self.study.plan["trials"]
        if is_spent or self.used_up or self.is_late() or self.study.reached(self.trials):
            return None
        trial, table = suggest.propose(self.study, self.trials)
        if table is None:
            self.used_up = suggest.used_up(self.trials, trial)
            return None
        trial["gpu_ids"] = free[0]
        self.study.add(trial, table)
        self.trials.append(trial)
        # A folder that was moved away may leave a number in the middle.
        self.trials.sort(key=lambda each: each["number"])
        return trial

    def is_late(self) -> bool:
        """Return whether the hours of the study are used."""
        hours = self.study.plan["hours"]
        return hours is not None and self.study.plan["worked_seconds"] >= 3600 * hours

    def note_time(self) -> None:
        """Add the time since the last look to what the study has used."""
        # Only time in which a process worked on it counts: a study may lie for days in between.
        now = time.monotonic()
        self.study.plan["worked_seconds"] += now - self.looked_at
        self.looked_at = now
        self.study.save()

    def hopeless(self) -> str:
        """Return why more trials would tell nothing: in this run the base model could not be
        judged, or the last ones all failed. Empty when there is hope."""
        ended = [trial for trial in self.trials if (trial["ended_at"] or "") >= self.since]
        ended.sort(key=lambda trial: trial["ended_at"])
        for trial in ended:
            if trial["kind"] == BASE and trial["state"] == FAILED:
                return failures([trial])
        last = ended[-HOPELESS:]
        if len(last) == HOPELESS and all(trial["state"] == FAILED for trial in last):
            return failures(last)
        return ""

    def tidy(self) -> None:
        """Remove the checkpoints of judged trials beyond the best `keep`. Their metrics and answers
        are on disk; what failed keeps its own, for it may be judged yet."""
        best = self.study.ranked(self.trials)[: self.study.plan["keep"]]
        kept = [trial["number"] for trial in best]
        for trial in self.trials:
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
        trial |= ending | {"ended_at": record.now()}
        self.study.write(trial)
        self.driven.remove(trial)
        self.tidy()
        findings.say(self.line(trial))
        page.write(self.study, self.trials, max(self.every, LEAST_RENEWED))
        if trial["state"] != FAILED:  # whatever was away is back
            for other in self.to_repeat():
                if len(other["set_aside"]) < HOPELESS - 1:
                    self.reopen(other)

    def stage(self, trial: dict) -> dict | None:
        """Return how the trial ended, or None while it goes on."""
        if trial["kind"] != BASE:
            train = self.job(trial, "train")
            if train is None or train["state"] not in record.ENDED:
                self.prune(trial, train)
                return None
            # What a person canceled is a failure, no trial that was given up for its score.
            if train["state"] == record.CANCELED and trial["pruned_at"]:
                reason = f"among the worse half at {trial['pruned_at']} % of the run"
                return {"state": PRUNED, "reason": reason}
            if train["state"] != record.COMPLETE:
                return failed(train["reason"], train["diagnosis"], is_outside(train))
            self.note_validations(trial)
            trial["train_seconds"] = record.seconds(train["ended_at"])
            trial["train_seconds"] -= record.seconds(train["started_at"])
            checkpoint = Path(train["evidence"]["checkpoint"])
            if checkpoint.is_relative_to(self.study.folder):
                # The study's folder can be moved with its checkpoints.
                checkpoint = checkpoint.relative_to(self.study.folder)
            trial["checkpoint"] = str(checkpoint)
            if self.study.minimizes:
                last = max(trial["intermediate"], key=int, default=None)
                return measured(trial["intermediate"].get(last), {})
        evaluate = self.job(trial, "evaluate")
        if evaluate is None or evaluate["state"] not in record.ENDED:
            return None
        if evaluate["state"] != record.COMPLETE:
            return failed(evaluate["reason"], evaluate["diagnosis"], is_outside(evaluate))
        results = self.study.jobs_of(trial, "evaluate")[0] / "results"
        words = [str(results), "--json"]
        if self.study.plan["metric_file"]:
            words += ["--metric-file", self.study.plan["metric_file"]]
        # Scored by the same command that people use, so that a trial's number is the one they see.
        # Exit code 1 tells of rows that failed; the score counts them.
        failing = findings.EXIT_BAD_INPUT
        commands.run(["score_predictions.py", *words], self.study.folder, failing=failing)
        metrics = files.read_json(results / "metrics.json")
        return measured(document.get(metrics, self.study.plan["objective"]), metrics)

    def prune(self, trial: dict, train: dict | None) -> None:
        """End a training that successive halving gives up. The first suggestions, which the sampler
        learns from, and trials at their end are spared."""
        if not train or train["state"] != record.RUNNING or trial["kind"] != SEARCH:
            return
        before = len(trial["intermediate"])
        self.note_validations(trial)
        if len(trial["intermediate"]) == before or self.study.plan["pruner"] != "halving":
            return
        percent = max(int(at) for at in trial["intermediate"])
        is_worse = suggest.prunes(self.study, self.trials, trial)
        is_spared = trial["number"] < suggest.STARTUP + 2 or percent >= 100
        trial["pruned_at"] = percent if is_worse and not is_spared else None
        self.study.write(trial)
        if trial["pruned_at"]:
            # One that has ended meanwhile counts as it ended.
            with contextlib.suppress(Failure):
                self.launch(trial, "cancel", train["job_id"])

    def note_validations(self, trial: dict) -> None:
        """Note what the validations gave so far, by percent of the run: losses (negative where the
        objective is maximized), or the share of right answers where that is told and the loss is
        not searched."""
        lines, _ = progress.read_metrics(self.study.jobs_of(trial, "train")[0])
        totals = [row["total_steps"] for row in lines if row.get("total_steps")]
        if not totals:
            return
        for row in lines:
            if "val/avg_loss" not in row:
                continue
            value = row["val/avg_loss"]
            if not self.study.minimizes:
                value = row.get("val/accuracy", -value)
            # Trials have different numbers of steps: only shares of the run can be compared. JSON
            # has texts for keys.
            trial["intermediate"][str(100 * row["step"] // totals[0])] = value

    def line(self, trial: dict) -> str:
        """Return one line about a trial that has ended."""
        tried = []
        for key, value in trial["values"].items():
            tried.append(f"{key.rpartition('.')[2]} {value_text(value)}")
        text = f"trial {trial['number']} ({', '.join(tried) or trial['kind']}): "
        if trial["objective"] is None:
            text += f"{trial['state']}: {trial['reason']}"
        else:
            text += f"{self.study.plan['objective']} {trial['objective']:.4g}"
        if GUARD_ACCURACY in trial["metrics"]:
            text += f", guard {trial['metrics'][GUARD_ACCURACY]:.4g}"
        ranked = self.study.ranked(self.trials)
        if ranked:
            text += f"; best {ranked[0]['objective']:.4g} (trial {ranked[0]['number']})"
        return text

    # -- its jobs --------------------------------------------------------------------------------

    def job_states(self, trial: dict) -> dict[str, str | None]:
        """Return the recorded state of each of the trial's jobs by its name, None where the record
        is broken."""
        states = {}
        for path in record.folders(self.study.jobs_dir(trial)):
            try:
                states[path.name] = record.Job.load(path).state
            except Failure:
                states[path.name] = None
        return states

    def job(self, trial: dict, action: str) -> dict | None:
        """Return the current record of the trial's job; None when it was only submitted now."""
        submitted = self.study.jobs_of(trial, action)
        if submitted:
            job = self.launch(trial, "status", submitted[0].name)
            # The machine may have gone down between the record and the start.
            did_not_start = job["state"] == record.ERROR and not job["started_at"]
            if not did_not_start or len(submitted) >= HOPELESS:
                return job
        plan = self.study.plan
        folder = self.study.trial_folder(trial["number"])
        path = folder / f"{action}.toml"
        if action == "evaluate":
            checkpoint = None
            if trial["checkpoint"]:
                checkpoint = str(self.study.folder / trial["checkpoint"])
            trained = document.load(folder / "train.toml")
            document.dump(evaluate_spec(plan["evaluate"], trained, checkpoint), path, action)
        commands.write_site(plan, folder)
        self.launch(trial, "submit", *commands.launch_words(plan, action, path, trial["gpu_ids"]))
        return None

    def launch(self, trial: dict, verb: str, *words: str) -> dict:
        """Return the result of `launch_job.py verb words`. Raises Failure with its findings and
        exit code."""
        jobs_dir = str(self.study.jobs_dir(trial))
        command = ["launch_job.py", verb, *words, "--jobs-dir", jobs_dir, "--json"]
        variables = {}
        if self.groups[0] == []:
            # Threads of several jobs on the same CPU starve each other.
            share = (os.cpu_count() or 1) // len(self.groups)
            variables["OMP_NUM_THREADS"] = str(max(1, share))
        inherited = () if self.lock is None else (self.lock,)
        return commands.run(command, self.study.folder, variables, inherited)


# -- how a trial ended ---------------------------------------------------------------------------


def measured(objective, metrics: dict) -> dict:
    """Return the ending of a trial that reached `objective`: a failure when that is no number."""
    # A NaN would be neither above nor below any other trial, and so might be called the best.
    if type(objective) not in (int, float) or not math.isfinite(objective):
        reason = f"the evaluation has no such number: {objective!r}"
        return failed(reason, [], outside=False) | {"metrics": metrics}
    kept = {name: value for name, value in metrics.items() if type(value) in (int, float)}
    kept["interval"] = metrics.get("accuracy_interval")
    if "guard" in metrics:
        kept[GUARD_ACCURACY] = metrics["guard"]["accuracy"]
    return {"state": COMPLETE, "objective": objective, "metrics": kept}


def failed(reason: str, diagnosis: list[dict], outside: bool) -> dict:
    return {"state": FAILED, "reason": reason, "diagnosis": diagnosis, "outside": outside}


def is_outside(job: dict) -> bool:
    """Return whether a failed job says nothing about the values it was given: its log shows no
    error that values decide. One that somebody canceled was given up."""
    by_values = BY_VALUES | {entry.id for entry in diagnosis.catalog() if entry.by_values}
    shown = {finding["id"] for finding in job["diagnosis"]}
    return job["state"] != record.CANCELED and not shown & by_values


def failures(trials: list[dict]) -> str:
    """Return which trials failed, and why the last of them did."""
    numbers = ", ".join(str(trial["number"]) for trial in trials)
    return f"trial {numbers} failed: {trials[-1]['reason'][:300]}"
