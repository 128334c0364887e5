"""Runs a study: trials as jobs of launch_job.py, several at a time, by any number of processes on one folder.

Whoever holds a trial's lock moves it on: train, evaluate, score. What has been submitted is found in the trial's own
`jobs/`, so a process that takes over from a killed one repeats nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason import bundle, findings, jobs, spec, spec_values, storage
from cosmos_reason.search import study as studies
from cosmos_reason.search.prepare import changed_files, evaluate_spec, fingerprints
from cosmos_reason.search.study import BASE, COMPLETE, FAILED, PRUNED, RUNNING, SEARCH, Study

HOPELESS = 3  # failures in a row


@dataclass
class Runner:
    """One process that works on a study. `groups`: the GPUs of each trial that runs at a time (None: the platform
    chooses, []: the CPU). `trials`, `hours` and `target` are the budget."""

    study: Study
    groups: list[list[str] | None]
    trials: int
    hours: float | None = None
    target: float | None = None
    every: float = 10.0
    held: dict[int, int] = field(default_factory=dict)  # trial -> descriptor of its lock
    elsewhere: set[int] = field(default_factory=set)  # trials whose host must be asked
    used_up: findings.Finding | None = None  # nothing is left to try
    since: str = field(default_factory=jobs.now)

    def run(self) -> list[findings.Finding]:
        """Until the budget is spent and nothing runs: what another run drives is waited for, and taken over when that
        one is killed. Raises Failure (exit 3) when the outside world fails, or trial after trial; jobs then go on, and
        another run continues."""
        self.reopen()
        while True:
            self.adopt()
            while len(self.held) < len(self.groups) and self.begin():
                pass
            if not self.held and not any(self.goes_on(trial) for trial in self.study.trials()):
                break
            for number in (driven := list(self.held)):
                self.advance(self.study.trial(number))
            time.sleep(0 if len(self.held) < len(driven) else self.every)
        records = self.study.trials()
        self.tidy(records)
        self.note_ending(records)
        if why := self.hopeless(records):
            raise findings.outside("TUNE-ALL-FAILED", self.study.folder, f"got {why}", "mend the cause and run again")
        return [self.used_up] if self.used_up else []

    def reopen(self) -> None:
        """Give failed trials another chance where that needs no other suggestion: the untouched model, the spec as it
        was given, and what was trained but not judged. With a mended metric file all are scored again."""
        with studies.locked(self.study.folder):
            again = {FAILED}
            if self.study.plan["metric_file"] in changed_files(self.study.plan):
                self.study.plan["fingerprints"] = fingerprints(self.study.plan)
                self.study.save()
                again |= {COMPLETE} if self.study.sign < 0 else set()
            for trial in self.study.trials():
                if trial["state"] in again and (trial["kind"] != SEARCH or trial["checkpoint"]):
                    ran = [(path.name, jobs.read(path)["state"]) for path in jobs.folders(self.jobs_dir(trial))]
                    trial["set_aside"] = [name for name, state in ran if state in jobs.ENDED - {jobs.COMPLETE}]
                    trial |= {"objective": None, "ended_at": None, "reason": "", "diagnosis": []}
                    self.study.write(trial | {"state": RUNNING, "host": None, "gpu_ids": None})

    def goes_on(self, trial: dict) -> bool:
        """Whether it may still become ours."""
        return trial["state"] == RUNNING and trial["number"] not in self.held.keys() | self.elsewhere

    def adopt(self) -> None:
        """Take over running trials that nobody drives, as many as there is room for."""
        for trial in filter(self.goes_on, self.study.trials()):
            if len(self.held) == len(self.groups):
                return
            if (lock := studies.drive(self.study.trial_folder(trial["number"]))) is not None:
                self.held[trial["number"]] = lock
                if not self.settle(trial["number"]):
                    self.let_go(trial)

    def settle(self, number: int) -> bool:
        """Whether a trial whose lock we have still runs, and has its GPUs: those of a reopened one are dealt anew."""
        with studies.locked(self.study.folder):
            trial = self.study.trial(number)  # it may have ended meanwhile
            if trial["state"] == RUNNING and trial["host"] is None and (where := self.free(self.study.trials())):
                trial |= where
                self.study.write(trial)
            return trial["state"] == RUNNING and trial["host"] is not None

    def begin(self) -> bool:
        """Begin a new trial, if there is to be one."""
        trial, lock = (None, None) if self.used_up else studies.add(self.study, self.place)
        if lock is not None:
            self.held[trial["number"]] = lock
        elif trial:
            self.used_up = studies.used_up(self.study.trials(), trial)
        return lock is not None

    def place(self, records: list[dict]) -> dict | None:
        """Where a new trial may run: {host, gpu_ids}; None when the budget is spent or no GPUs are free."""
        trained = [trial for trial in records if trial["kind"] != BASE]
        spent = self.late() or len(trained) >= self.trials or self.study.reached(records, self.target)
        return None if spent or self.hopeless(records) else self.free(records)

    def late(self) -> bool:
        return self.hours is not None and time.time() - jobs.seconds(self.since) >= 3600 * self.hours

    def free(self, records: list[dict]) -> dict | None:
        host, running = socket.gethostname(), [trial for trial in records if trial["state"] == RUNNING]
        here = [trial for trial in running if trial["host"] == host and trial["number"] not in self.elsewhere]
        taken = {gpu for trial in here for gpu in trial["gpu_ids"] or ()}
        return next(({"host": host, "gpu_ids": group} for group in self.groups if not taken & set(group or ())), None)

    def hopeless(self, records: list[dict]) -> str:
        """Why more trials would tell nothing: in this run the base model could not be judged, or the last ones all
        failed. Empty when there is hope."""
        ended = sorted((t for t in records if (t["ended_at"] or "") >= self.since), key=lambda t: t["ended_at"])
        base = [trial for trial in ended if trial["kind"] == BASE and trial["state"] == FAILED]
        last = base or ended[-HOPELESS:]
        if not base and (len(last) < HOPELESS or {trial["state"] for trial in last} != {FAILED}):
            return ""
        return f"trial {', '.join(str(trial['number']) for trial in last)} failed: {last[-1]['reason'][:300]}"

    def note_ending(self, records: list[dict]) -> None:
        """Write in study.json why no more trials begin."""
        trained, best = sum(trial["kind"] != BASE for trial in records), self.study.ranked(records)[:1]
        why = [f"{trained} of {self.trials} trainings"]
        why += ["failure after failure"] if self.hopeless(records) else []
        why += ["nothing is left to try"] if self.used_up else []
        why += [f"{self.hours:g} hours used"] if self.late() and trained < self.trials else []
        if self.target is not None:
            got = "reached" if self.study.reached(records, self.target) else "not reached"
            why += [f"target {self.target:g} {got}" + (f" (best {best[0]['objective']:.4g})" if best else "")]
        with studies.locked(self.study.folder):
            now = studies.open_or_begin(self.study.folder)  # another run may have changed it meanwhile
            now.plan["ended"] = "; ".join(why)
            now.save()

    # -- one trial -----------------------------------------------------------------------------------------------------

    def advance(self, trial: dict) -> None:
        """Do what is due now; when the trial has ended, record that and let go of it."""
        try:
            ending = self.stage(trial)
        except findings.Failure as failure:
            if failure.exit_code == findings.EXIT_OUTSIDE:
                raise
            ending = failed(str(failure), [finding.to_json() for finding in failure.findings])
        if ending is None:
            return
        trial |= ending | {"ended_at": jobs.now()}
        self.study.write(trial)
        self.let_go(trial)
        records = self.study.trials()
        self.tidy(records)
        print(line(self.study, trial, records), file=sys.stderr, flush=True)

    def let_go(self, trial: dict) -> None:
        os.close(self.held.pop(trial["number"]))

    def stage(self, trial: dict) -> dict | None:
        """How the trial ended, or None while it goes on."""
        if trial["kind"] != BASE:
            train = self.job(trial, "train")
            if train is None or train["state"] not in jobs.ENDED:
                return self.watch(trial, train)
            if train["state"] == jobs.CANCELED and trial["pruned_at"]:
                return {"state": PRUNED, "reason": f"among the worse half at {trial['pruned_at']} % of the run"}
            if train["state"] != jobs.COMPLETE:
                return failed(train["reason"], train["diagnosis"])
            self.note_validations(trial)
            trial["train_seconds"] = jobs.seconds(train["ended_at"]) - jobs.seconds(train["started_at"])
            made, home = Path(train["evidence"]["checkpoint"]), self.study.folder
            trial["checkpoint"] = str(made.relative_to(home) if made.is_relative_to(home) else made)  # it can be moved
            if self.study.sign > 0:
                return measured(trial["intermediate"].get(max(trial["intermediate"], key=int, default="")), {})
        evaluate = self.job(trial, "evaluate")
        if evaluate is None or evaluate["state"] not in jobs.ENDED:
            return self.watch(trial, None)
        if evaluate["state"] != jobs.COMPLETE:
            return failed(evaluate["reason"], evaluate["diagnosis"])
        results, more = self.jobs_of(trial, "evaluate")[0] / "results", self.study.plan["metric_file"]
        words = [str(results), "--json", *(["--metric-file", more] if more else [])]
        script(["score_predictions.py", *words], self.study.folder, failing=2)
        metrics = storage.read_json(results / "metrics.json")
        return measured(spec.get(metrics, self.study.plan["objective"]), metrics)

    def job(self, trial: dict, action: str) -> dict | None:
        """The record of the trial's job as it is true now; None when it was only submitted now, or is out of reach."""
        made = self.jobs_of(trial, action)
        if not made:
            self.submit(trial, action)
            return None
        try:
            record = self.launch(trial, "status", made[0].name)
        except findings.Failure as failure:
            if failure.findings[0].id != "JOB-OUT-OF-REACH":
                raise
            print(f"trial {trial['number']} is left to others: {failure.findings[0].message}", file=sys.stderr)
            self.elsewhere.add(trial["number"])
            return None
        never = record["state"] == jobs.ERROR and not record["started_at"]
        if never and len(made) < HOPELESS:  # the machine went down between the record and the start
            self.submit(trial, action)
            return None
        return record

    def jobs_of(self, trial: dict, action: str) -> list[Path]:
        """Folders of the trial's jobs of one action that were not set aside, newest first."""
        made = [path for path in jobs.folders(self.jobs_dir(trial)) if path.name.startswith(f"{action}-")]
        return [path for path in made if path.name not in trial["set_aside"]]

    def jobs_dir(self, trial: dict) -> Path:
        return self.study.trial_folder(trial["number"]) / "jobs"

    def submit(self, trial: dict, action: str) -> None:
        folder, plan = self.study.trial_folder(trial["number"]), self.study.plan
        if action == "evaluate":
            model = str(self.study.folder / trial["checkpoint"]) if trial["checkpoint"] else None
            asked = evaluate_spec(plan["evaluate"], spec.load(folder / "train.toml"), model)
            spec.dump(asked, folder / "evaluate.toml")
        self.launch(trial, "submit", *launch_words(plan, action, folder / f"{action}.toml", trial["gpu_ids"]))

    def watch(self, trial: dict, train: dict | None) -> None:
        """Let go of a trial whose job only another host can ask about; end one that successive halving gives up."""
        if trial["number"] in self.elsewhere:
            self.let_go(trial)
        elif train and train["state"] == jobs.RUNNING and trial["kind"] == SEARCH:
            before = len(trial["intermediate"])
            self.note_validations(trial)
            if len(trial["intermediate"]) > before and self.study.plan["pruner"] == "halving":
                self.halve(trial, train["job_id"])

    def halve(self, trial: dict, job_id: str) -> None:
        """The first suggestions, which the sampler learns from, and trials at their end are spared."""
        at = max(map(int, trial["intermediate"]))
        spared = trial["number"] < studies.STARTUP + 2 or at >= 100
        trial["pruned_at"] = at if studies.prunes(self.study, self.study.trials(), trial) and not spared else None
        self.study.write(trial)
        if trial["pruned_at"]:
            with contextlib.suppress(findings.Failure):  # it ended meanwhile; then it counts as it ended
                self.launch(trial, "cancel", job_id)

    def note_validations(self, trial: dict) -> None:
        """Validation losses so far by percent of the run (negative where the objective is maximized)."""
        lines, _ = jobs.read_metrics(self.jobs_of(trial, "train")[0])
        total = next((row["total_steps"] for row in lines if "total_steps" in row), None)
        for row in lines:
            if total and "val/avg_loss" in row:
                trial["intermediate"][str(100 * row["step"] // total)] = self.study.sign * row["val/avg_loss"]

    # -- other commands ------------------------------------------------------------------------------------------------

    def launch(self, trial: dict, verb: str, *words: str) -> dict:
        """The result of `launch_job.py verb words`. Raises Failure with its findings and exit code."""
        command = ["launch_job.py", verb, *words, "--jobs-dir", str(self.jobs_dir(trial)), "--json"]
        share = max(1, (os.cpu_count() or 1) // len(self.groups))  # waiting threads of many jobs starve each other
        threads = {"OMP_NUM_THREADS": str(share)} if self.groups[0] == [] else {}
        return script(command, self.study.folder, threads, [self.held[trial["number"]]])

    def tidy(self, records: list[dict]) -> None:
        """Remove the checkpoints of judged trials beyond the best `keep`. Their metrics and answers are on disk."""
        best = [trial["number"] for trial in self.study.ranked(records)[: self.study.plan["keep"]]]
        for trial in records:
            if trial["state"] in (COMPLETE, PRUNED) and trial["number"] not in best:
                for results in self.jobs_dir(trial).glob("train-*/results"):
                    shutil.rmtree(results, ignore_errors=True)  # another process may be at it too


def launch_words(plan: dict, action: str, path: Path, gpu_ids: list[str] | None) -> list[str]:
    """What follows `launch_job.py VERB`."""
    words = [action, "--spec", str(path), "--platform", plan["platform"], "--engine", plan["engine"]]
    words += ["--gpu-ids", ",".join(gpu_ids) or "none"] if gpu_ids is not None else []
    return [*words, *plan["launch"]]


def rehearse(study: Study, groups: list[list[str] | None]) -> None:
    """Ask launch_job what it has against such jobs. Raises Failure with its findings and exit code."""
    plan, specs = study.plan, {"train": studies.trial_spec(study.plan["spec"])}
    if study.sign < 0:
        specs["evaluate"] = evaluate_spec(plan["evaluate"], plan["spec"], None)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        paths = {action: Path(folder) / f"{action}.toml" for action in specs}
        for action, path in paths.items():
            spec.dump(specs[action], path)
        asked = {tuple(launch_words(plan, *pair, gpu_ids)) for pair in paths.items() for gpu_ids in groups}
        commands = [["launch_job.py", "plan", *words, "--jobs-dir", folder, "--json"] for words in asked]
        list(pool.map(script, commands, [Path(folder)] * len(commands)))


def script(command: list[str], folder: Path, env=None, inherited=(), failing: int = 1) -> dict:
    """The result of one of our own commands, run in `folder`. Raises Failure with its findings and exit code when that
    is `failing` or more. It inherits the lock of its trial: as long as it runs, nobody takes the trial over."""
    path, *words = command
    line = [sys.executable, str(bundle.ROOT / "scripts" / path), *words]
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
    environment = {**(env or {}), **os.environ}
    done = subprocess.run(line, cwd=folder, env=environment, pass_fds=inherited, **streams)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        message = f"got {done.stderr.strip()[-500:] or 'nothing'}, expected a JSON document"
        raise findings.outside("TUNE-COMMAND", path, message) from None
    if done.returncode >= failing:
        found = [findings.Finding(**row) for row in document["findings"]]
        errors = [finding for finding in found if finding.severity == findings.ERROR]
        raise findings.Failure(errors or found, done.returncode)
    return document["result"]


def measured(objective, metrics: dict) -> dict:
    if type(objective) not in (int, float) or not math.isfinite(objective):
        return failed(f"the evaluation has no such number: {objective!r}", []) | {"metrics": metrics}
    kept = {name: value for name, value in metrics.items() if type(value) in (int, float)}
    return {"state": COMPLETE, "objective": objective, "metrics": kept | {"interval": metrics.get("accuracy_interval")}}


def failed(reason: str, diagnosis: list[dict]) -> dict:
    return {"state": FAILED, "reason": reason, "diagnosis": diagnosis}


def line(study: Study, trial: dict, records: list[dict]) -> str:
    """One line about a trial that has ended."""
    name, best, reached = study.plan["objective"], study.ranked(records)[:1], trial["objective"]
    what = f"{trial['state']}: {trial['reason']}" if reached is None else f"{name} {reached:.4g}"
    values = ", ".join(f"{key.rpartition('.')[2]} {spec_values.text(value)}" for key, value in trial["values"].items())
    lead = f"; best {best[0]['objective']:.4g} (trial {best[0]['number']})" if best else ""
    return f"trial {trial['number']} ({values or trial['kind']}): {what}{lead}"
