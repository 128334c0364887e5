"""Shared by the tests of launching: a folder to submit from, and a small program in place of the engine's
(engines.words is the seam)."""

import json
import struct
import sys
import time

import psutil
from jsonschema import Draft202012Validator

from cosmos_reason import bundle, jobs, platforms, spec
from cosmos_reason.platforms import engines, launch

PROGRAM = r"""
import json, os, pathlib, signal, struct, subprocess, sys, time
job = pathlib.Path(sys.argv[1]) / os.environ["COSMOS_REASON_JOB_ID"]
do = json.loads(sys.argv[2])
if do.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if do.get("child"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    (job / "child").write_text(str(child.pid))
with open(job / "metrics.jsonl", "a") as metrics:
    for step in range(1, do.get("steps", 3) + 1):
        time.sleep(do.get("pause", 0))
        line = {"time": time.time(), "step": step, "total_steps": do.get("total", 3), "train/loss": 1 / step}
        metrics.write(json.dumps(line) + "\n")
        metrics.flush()
        print("step", step, flush=True)
if model := do.get("model", "whole"):
    folder = job / "results" / "20260101000000" / "safetensors" / f"step_{do.get('total', 3)}"
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(8)
    (folder / "model.safetensors").write_bytes(data[:-4] if model == "cut" else data)
    for name in ("config", "tokenizer", "tokenizer_config", "preprocessor_config", "chat_template"):
        (folder / f"{name}.json").write_text('{"model_type": "other"}')
if "rows" in do:
    folder, bad = job / "results", do.get("bad", [])
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps([{"id": r, "error": r if r in bad else None} for r in do["rows"]]))
    (folder / "evaluation.json").write_text(json.dumps({"questions": do["questions"]}))
if do.get("signal"):
    os.kill(os.getpid(), do["signal"])
sys.exit(do.get("exit", 0))
"""


def write_model(folder):
    """The smallest folder that passes for a model."""
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    for name in ("config", "tokenizer", "tokenizer_config", "preprocessor_config", "chat_template"):
        (folder / f"{name}.json").write_text('{"model_type": "other"}')


def write_annotations(path, count=8):
    turns = [{"from": "human", "value": "<video>\nWhich?"}, {"from": "gpt", "value": "left"}]
    path.write_text(json.dumps([{"id": f"r{n}", "video": f"{n}.mp4", "conversations": turns} for n in range(count)]))


class Site:
    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch, self.jobs = root, monkeypatch, root / "jobs"
        write_model(root / "model")
        (root / "media").mkdir()
        write_annotations(root / "a.json")
        (root / "program.py").write_text(PROGRAM)
        train = spec.template("train")
        for name in ("train_dataset", "val_dataset"):
            train["custom"][name] = {"annotation_path": "a.json", "media_path": "media"}
        train["policy"]["model_name_or_path"] = "model"
        train["train"] |= {"output_dir": "", "train_batch_per_replica": 4}
        train["train"]["train_policy"]["mini_batch"] = 4
        spec.dump(train, root / "train.toml")
        evaluate = spec.template("evaluate")
        evaluate["dataset"] |= {"annotation_path": "a.json", "media_dir": "media"}
        evaluate["model"]["model_name"] = "model"
        evaluate["results_dir"] = ""
        spec.dump(evaluate, root / "evaluate.toml")

    def does(self, **what):
        program = [sys.executable, str(self.root / "program.py"), str(self.jobs), json.dumps(what)]
        self.runs(program)

    def runs(self, words):
        self.monkeypatch.setattr(engines, "words", lambda *_, **__: words)

    def request(self, action="train", **fields):
        usual = {"platform": "local", "engine": "transformers", "jobs_dir": self.jobs, "working_dir": self.root}
        return launch.Request(action, self.root / f"{action}.toml", **usual | fields)

    def submit(self, action="train", **what):
        self.does(**what)
        record, found = launch.submit(self.request(action))
        assert not [finding for finding in found if finding.severity == "error"], found
        return self.jobs / record["job_id"]


def change(site, action, **values):
    """Set keys of the site's spec of an action; `a__b` is the key a.b."""
    written = spec.load(site.root / f"{action}.toml")
    for key, value in values.items():
        spec.set_value(written, key.replace("__", "."), value)
    spec.dump(written, site.root / f"{action}.toml")


def ended(folder, patience=20):
    """The record once the job has ended."""
    deadline = time.monotonic() + patience
    while (record := platforms.refresh(folder))["state"] not in jobs.ENDED:
        assert time.monotonic() < deadline, (record, jobs.log_tail(folder, 20))
        time.sleep(0.05)
    Draft202012Validator(bundle.schema("job")).validate(record)
    assert json.loads((folder / "job.json").read_text()) == record
    return record


def running(folder):
    """The record once the work has begun."""
    deadline = time.monotonic() + 20
    while not (folder / jobs.METRICS).is_file() or not jobs.progress(folder):
        assert time.monotonic() < deadline, jobs.log_tail(folder, 20)
        time.sleep(0.02)
    return platforms.refresh(folder)


def marked(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(platforms.MARK) == folder.name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
