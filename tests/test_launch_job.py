"""Launching and the ending of jobs, with a small program in place of the engine's (local.command is the seam)."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from jsonschema import Draft202012Validator
from support import ROOT, run_script

from cosmos_reason import bundle, jobs, platforms, spec
from cosmos_reason.findings import Failure
from cosmos_reason.platforms import launch, local

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
    age = do.get("model_age", 0)
    os.utime(folder, (time.time() - age,) * 2)
if "rows" in do:
    folder = job / "results"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps([{"id": name} for name in do["rows"]]))
    (folder / "evaluation.json").write_text(json.dumps({"questions": do["questions"]}))
if do.get("signal"):
    os.kill(os.getpid(), do["signal"])
sys.exit(do.get("exit", 0))
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder to submit from: specs, their inputs, and an engine that does as `site.does(...)` says."""
    return Site(tmp_path, monkeypatch)


class Site:
    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch, self.jobs = root, monkeypatch, root / "jobs"
        (root / "model").mkdir()
        (root / "media").mkdir()
        (root / "a.json").write_text("[]")
        (root / "program.py").write_text(PROGRAM)
        train = spec.template("train")
        for name in ("train_dataset", "val_dataset"):
            train["custom"][name] = {"annotation_path": "a.json", "media_path": "media"}
        train["policy"]["model_name_or_path"] = "model"
        train["train"]["output_dir"] = ""
        spec.dump(train, root / "train.toml")
        evaluate = spec.template("evaluate")
        evaluate["dataset"] |= {"annotation_path": "a.json", "media_dir": "media"}
        evaluate["model"]["model_name"] = "model"
        evaluate["results_dir"] = ""
        spec.dump(evaluate, root / "evaluate.toml")

    def does(self, **what):
        program = [sys.executable, str(self.root / "program.py"), str(self.jobs), json.dumps(what)]
        self.monkeypatch.setattr(local, "command", lambda *_: program)

    def request(self, action="train", **fields):
        usual = {"platform": "local", "engine": "transformers", "jobs_dir": self.jobs, "working_dir": self.root}
        return launch.Request(action, self.root / f"{action}.toml", **usual | fields)

    def submit(self, action="train", **what):
        self.does(**what)
        record, found = launch.submit(self.request(action))
        assert not [finding for finding in found if finding.severity == "error"], found
        return self.jobs / record["job_id"]


def ended(folder, patience=20):
    """The record once the job has ended."""
    deadline = time.monotonic() + patience
    while (record := platforms.refresh(folder)[0])["state"] not in jobs.ENDED:
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
    return platforms.refresh(folder)[0]


def marked(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(local.MARK) == folder.name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


# -- how it ended ------------------------------------------------------------------------------------------------------


def test_a_whole_training_is_complete(site):
    folder = site.submit()
    record = ended(folder)
    assert (record["state"], record["exit_code"], record["reason"]) == ("COMPLETE", 0, "")
    assert record["evidence"]["last_step"] == record["evidence"]["total_steps"] == 3
    assert Path(record["evidence"]["checkpoint"]).name == "step_3"
    for line in jobs.read_metrics(folder)[0]:
        Draft202012Validator(bundle.schema("metrics_line")).validate(line)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"steps": 2}, "stopped at step 2 of 3"),
        ({"steps": 0, "model": False}, "no step was recorded"),
        ({"model": False}, "results"),
        ({"model": "cut"}, "the last model is damaged"),
        ({"model_age": 3600}, "no model of the last step"),
        ({"exit": 3}, "exit code 3; log ends: step 3"),
        ({"signal": 9}, "SIGKILL (often: out of memory)"),
        ({"signal": 11}, "SIGSEGV"),
    ],
)
def test_a_training_without_evidence_is_an_error_whatever_its_exit_code(site, what, reason):
    record = ended(site.submit(**what))
    assert record["state"] == "ERROR" and reason in record["reason"]
    assert record["exit_code"] == what.get("exit", 128 + what["signal"] if "signal" in what else 0)


@pytest.mark.parametrize(
    ("rows", "questions", "state", "reason"),
    [
        (["a", "b"], 2, "COMPLETE", ""),
        (["a"], 2, "ERROR", "1 rows for 2 questions"),
        (["a", "a"], 2, "ERROR", "two rows with the same id"),
    ],
)
def test_an_evaluation_is_complete_when_every_question_has_its_row(site, rows, questions, state, reason):
    record = ended(site.submit("evaluate", steps=0, model=False, rows=rows, questions=questions))
    assert record["state"] == state and reason in record["reason"]


def test_results_of_an_earlier_run_prove_nothing(site):
    site.does(steps=0, model=False)
    old = site.root / "old"
    old.mkdir()
    for name, text in (("results.json", "[]"), ("evaluation.json", '{"questions": 0}')):
        (old / name).write_text(text)
        os.utime(old / name, (1, 1))
    evaluate = spec.load(site.root / "evaluate.toml")
    spec.dump(evaluate | {"results_dir": "old"}, site.root / "evaluate.toml")
    record, _ = launch.submit(site.request("evaluate"))
    assert "was not written" in ended(site.jobs / record["job_id"])["reason"]


def test_a_program_that_is_not_there_is_an_error(site):
    site.monkeypatch.setattr(local, "command", lambda *_: ["/no/such/program"])
    record, _ = launch.submit(site.request())
    record = ended(site.jobs / record["job_id"])
    assert "could not be started: /no/such/program: No such file" in record["reason"] and record["exit_code"] is None


def test_a_spec_edited_before_the_start_is_not_run(site):
    start = local.start

    def edited(folder, lock):
        (folder / "spec.toml").write_text("")
        start(folder, lock)

    site.monkeypatch.setattr(local, "start", edited)
    folder = site.submit()
    record = ended(folder)
    assert record["state"] == "ERROR" and "edited between" in record["reason"] and not jobs.progress(folder)


def test_a_closed_terminal_does_not_reach_the_job(site):
    folder = site.submit(pause=0.2)
    pid = running(folder)["platform_ref"]["pid"]
    assert {os.getsid(process.pid) for process in marked(folder)} == {pid} != {os.getsid(0)}
    assert ended(folder)["state"] == "COMPLETE"


def test_what_the_work_leaves_running_is_ended(site):
    folder = site.submit(child=True)
    assert ended(folder)["state"] == "COMPLETE"
    child = int((folder / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


# -- kills -------------------------------------------------------------------------------------------------------------


def test_the_work_outlives_its_supervisor_and_can_still_complete(site):
    folder = site.submit(pause=0.3)
    record = running(folder)
    os.kill(record["platform_ref"]["pid"], signal.SIGKILL)
    time.sleep(0.2)
    assert platforms.refresh(folder)[0]["state"] == "RUNNING"
    record = ended(folder)
    assert record["state"] == "COMPLETE" and record["exit_code"] is None and "exit code" in record["reason"]


def test_supervisor_and_work_killed(site):
    folder = site.submit(pause=0.3, steps=50, total=50)
    running(folder)
    for process in marked(folder):
        process.kill()
    record = ended(folder)
    assert record["state"] == "ERROR" and "of 50" in record["reason"] and record["exit_code"] is None


def test_kills_at_random_moments_leave_a_truthful_record(site):
    chance = random.Random(5)
    for _ in range(8):
        folder = site.submit(pause=0.05)
        time.sleep(chance.uniform(0, 0.6))
        victims = marked(folder)
        for process in chance.sample(victims, chance.randint(0, len(victims))):
            process.kill()
        record = ended(folder)
        whole = (folder / "results" / "20260101000000" / "safetensors" / "step_3" / "chat_template.json").exists()
        assert record["state"] == ("COMPLETE" if whole and record["exit_code"] in (0, None) else "ERROR"), record


LAUNCHER = """
import sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from cosmos_reason.platforms import launch, local
root = Path({root!r})
local.command = lambda *_: [sys.executable, str(root / "program.py"), str(root / "jobs"), "{{}}"]
{extra}
launch.submit(launch.Request("train", root / "train.toml", "local", "transformers", root / "jobs", root))
"""


def launcher(site, extra=""):
    text = LAUNCHER.format(scripts=str(ROOT / "scripts"), root=str(site.root), extra=extra)
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.DEVNULL)


def test_a_launcher_killed_between_record_and_start(site):
    process = launcher(site, "import os; local.start = lambda *_: os.kill(os.getpid(), 9)")
    assert process.wait(20) == -signal.SIGKILL
    (folder,) = jobs.folders(site.jobs)
    assert jobs.read(folder)["state"] == "PENDING"
    record = ended(folder)
    assert record["state"] == "ERROR" and "interrupted before" in record["reason"] and not record["started_at"]


def test_a_launcher_killed_at_random_moments(site):
    chance = random.Random(7)
    for _ in range(8):
        process = launcher(site)
        time.sleep(chance.uniform(0.1, 0.45))
        process.kill()
        process.wait()
    for folder in jobs.folders(site.jobs):
        record = ended(folder)
        assert record["state"] == ("COMPLETE" if record["started_at"] else "ERROR"), record


def test_two_launches_at_once_are_two_jobs(site):
    site.does()
    found = []
    threads = [threading.Thread(target=lambda: found.append(launch.submit(site.request())[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({record["job_id"] for record in found}) == 4
    assert {ended(site.jobs / record["job_id"])["state"] for record in found} == {"COMPLETE"}


def test_a_full_disk_cannot_make_the_answer_untrue(site, monkeypatch):
    folder = site.submit(pause=0.3, steps=50, total=50)
    running(folder)
    for process in marked(folder):
        process.kill()
    time.sleep(0.3)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs, "write", refuse)
    record, found = platforms.refresh(folder)
    assert record["state"] == "ERROR" and [finding.id for finding in found] == ["JOB-RECORD-UNSAVED"]
    assert jobs.read(folder)["state"] == "RUNNING"


def test_another_machine_cannot_tell(site):
    folder = site.submit(pause=0.3, steps=50, total=50)
    running(folder)
    for process in marked(folder):
        process.kill()
    time.sleep(0.3)
    record = jobs.read(folder)
    record["platform_ref"]["host"] = "elsewhere"
    jobs.write(folder, record)
    assert platforms.refresh(folder)[0]["state"] == "UNKNOWN"
    assert jobs.read(folder)["state"] == "RUNNING"
    (folder / jobs.LOCK).unlink()
    assert platforms.refresh(folder)[0]["state"] == "UNKNOWN"


# -- cancel and retry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deaf", "exit_code"), [(False, 128 + signal.SIGTERM), (True, 128 + signal.SIGKILL)])
def test_cancel_asks_then_insists(site, deaf, exit_code):
    folder = site.submit(pause=0.1, steps=500, total=500, deaf=deaf, child=True)
    running(folder)
    local.stop(folder, grace=1)
    record = ended(folder)
    assert (record["state"], record["exit_code"]) == ("CANCELED", exit_code) and "of 500" in record["reason"]
    assert not marked(folder)


def test_cancel_without_a_supervisor(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    os.kill(running(folder)["platform_ref"]["pid"], signal.SIGKILL)
    local.stop(folder, grace=5)
    assert ended(folder)["state"] == "CANCELED" and not marked(folder)


def test_cancel_at_random_moments(site):
    chance = random.Random(3)
    for _ in range(5):
        folder = site.submit(pause=0.05, steps=500, total=500)
        time.sleep(chance.uniform(0, 0.5))
        started = time.monotonic()
        local.stop(folder, grace=10)
        assert ended(folder)["state"] == "CANCELED" and not marked(folder)
        assert time.monotonic() - started < 5


def test_a_signal_to_the_supervisor_reaches_the_work(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    os.kill(running(folder)["platform_ref"]["pid"], signal.SIGTERM)
    record = ended(folder)
    assert record["state"] == "ERROR" and "SIGTERM" in record["reason"]


def test_retry_is_a_new_job_that_resumes_from_the_newest_complete_checkpoint(site):
    folder = site.submit(steps=2)
    first = ended(folder)
    for step, files in ((1, ("trainer_state.json",)), (2, ("trainer_state.json",)), (3, ())):
        policy = folder / "results" / "20260101000000" / "checkpoints" / f"step_{step}" / "policy"
        policy.mkdir(parents=True)
        for name in ("cosmos_config", ".rank_0_complete", "model.safetensors", "optimizer.safetensors", *files):
            (policy / name).write_text("{}")
        os.utime(policy, (time.time() + step,) * 2)
    (policy / "model.safetensors").unlink()  # step 3 is not whole
    again, _ = launch.retry(folder, site.jobs)
    assert again["retry_of"] == again["parent_job"] == first["job_id"] != again["job_id"]
    written = spec.load(Path(again["spec"]["path"]))
    assert written["train"]["resume"] == str(policy.parents[1] / "step_2" / "policy")
    assert again["outputs"] == first["outputs"]
    ended(site.jobs / again["job_id"])


def test_retry_refuses_what_is_not_a_failed_job_of_the_submitted_spec(site):
    whole, failed = site.submit(), site.submit(steps=1)
    ended(whole), ended(failed)
    with pytest.raises(Failure, match="JOB-NOT-FAILED"):
        launch.retry(whole, site.jobs)
    with open(failed / "spec.toml", "a") as handle:
        handle.write("# edited\n")
    with pytest.raises(Failure, match="JOB-SPEC-EDITED"):
        launch.retry(failed, site.jobs)


# -- the command line --------------------------------------------------------------------------------------------------


def test_plan_touches_nothing_and_is_the_same_twice(site):
    flags = ["plan", "train", "--spec", "train.toml", "--platform", "local", "--gpu-ids", "0,1", "--json"]
    before = sorted(site.root.rglob("*"))
    started = time.monotonic()
    first = run_script("launch_job.py", *flags, cwd=site.root)
    assert time.monotonic() - started < 2
    assert sorted(site.root.rglob("*")) == before
    result = json.loads(first.stdout)["result"]
    assert first.returncode == 0 and all(isinstance(word, str) for word in result["command"])
    assert result["resources"]["gpu_ids"] == ["0", "1"]
    assert result["outputs"]["output_dir"].startswith(str(site.root / "jobs"))
    again = json.loads(run_script("launch_job.py", *flags, cwd=site.root).stdout)["result"]
    assert again | {"created_at": ""} == result | {"created_at": ""}


@pytest.mark.parametrize(
    ("flags", "finding"),
    [
        (["--gpu-ids", "0,0"], "JOB-GPU-IDS"),
        (["--gpu-ids", "0;rm"], "JOB-GPU-IDS"),
        (["--engine", "tao"], "JOB-ENGINE"),
        (["--engine", "cosmos-rl"], "JOB-ENGINE"),
    ],
)
def test_wrong_flags_are_refused(site, flags, finding):
    done = run_script(
        "launch_job.py", "submit", "train", "--spec", "train.toml", "--platform", "local", *flags, cwd=site.root
    )
    assert done.returncode == 2 and finding in done.stderr and not site.jobs.exists()


def test_a_spec_with_errors_starts_nothing(site):
    broken = spec.load(site.root / "train.toml")
    broken["train"]["epoch"] = -1
    broken["policy"]["model_name_or_path"] = "./not here"
    spec.dump(broken, site.root / "train.toml")
    done = run_script("launch_job.py", "submit", "train", "--spec", "train.toml", "--platform", "local", cwd=site.root)
    assert done.returncode == 1 and "train.epoch" in done.stderr and "JOB-INPUT-MISSING" in done.stderr
    assert not site.jobs.exists()


def test_status_list_logs_and_watch_tell_the_same_story(site):
    whole, failed = site.submit(), site.submit(steps=2)
    ended(whole), ended(failed)
    where = ["--jobs-dir", site.jobs]
    status = json.loads(run_script("launch_job.py", "status", whole.name, "--json", *where).stdout)
    assert status["result"]["state"] == "COMPLETE" and status["result"]["progress"]["step"] == 3
    listed = json.loads(run_script("launch_job.py", "list", "--json", *where).stdout)["result"]
    assert listed["states"] == {"COMPLETE": 1, "ERROR": 1} and listed["total"] == 2
    assert run_script("launch_job.py", "logs", whole.name, "--lines", 1, *where).stdout == "step 3\n"
    assert run_script("launch_job.py", "watch", whole.name, *where).returncode == 0
    assert run_script("launch_job.py", "watch", failed.name, *where).returncode == 3


def test_watch_gives_a_json_line_per_event_and_then_the_document(site):
    folder = site.submit(pause=0.3)
    done = run_script("launch_job.py", "watch", folder.name, "--every", 0, "--json", "--jobs-dir", site.jobs)
    events, _, rest = done.stdout.partition("\n{\n")
    events = [json.loads(line) for line in events.splitlines()]
    states = [event["state"] for event in events if event["event"] == "state"]
    steps = [event["step"] for event in events if event["event"] == "progress"]
    assert states[-1] == "COMPLETE" and steps == sorted(steps) and steps[-1] == 3
    assert json.loads("{" + rest)["result"]["state"] == "COMPLETE"


def test_an_interrupted_watch_leaves_the_job_alone(site):
    folder = site.submit(pause=0.3, steps=6, total=6)
    running(folder)
    words = [sys.executable, str(ROOT / "scripts/launch_job.py"), "watch", folder.name, "--jobs-dir", str(site.jobs)]
    heeds_interrupts = functools.partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # a background shell ignores them
    watching = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts)
    assert "RUNNING" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert "goes on" in watching.communicate(timeout=10)[1] and watching.returncode == 130
    assert ended(folder)["state"] == "COMPLETE"


def test_an_edited_spec_is_noticed(site):
    folder = site.submit()
    ended(folder)
    for path in (site.root / "train.toml", folder / "spec.toml"):
        with open(path, "a") as handle:
            handle.write("# edited\n")
    done = run_script("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs)
    assert "JOB-SPEC-EDITED" in done.stderr and "JOB-SOURCE-EDITED" in done.stderr and done.returncode == 0


def test_a_thousand_jobs_are_listed_by_their_newest(site):
    record = jobs.read(site.submit())
    for number in range(1000):
        name = f"train-20250101-{number:06d}-abcdef"
        folder = site.jobs / name
        folder.mkdir()
        (folder / jobs.LOCK).touch()
        jobs.storage.write_json(folder / "job.json", record | {"job_id": name, "state": "COMPLETE", "reason": ""})
    done = run_script("launch_job.py", "list", "--jobs-dir", site.jobs)
    assert "and 981 older" in done.stdout


def test_secrets_reach_the_work_and_nothing_else(site):
    secrets = {name: f"canary-{len(name)}" for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY")}
    for name, value in secrets.items():
        site.monkeypatch.setenv(name, value)
    check = "import os, sys; sys.exit(any(len(os.environ[name]) < 8 for name in sys.argv[1:]))"
    site.monkeypatch.setattr(local, "command", lambda *_: [sys.executable, "-c", check, *secrets])
    record, _ = launch.submit(site.request())
    folder = site.jobs / record["job_id"]
    assert ended(folder)["exit_code"] == 0
    said = [
        run_script("launch_job.py", verb, folder.name, "--jobs-dir", site.jobs) for verb in ("status", "logs", "watch")
    ]
    plan = ["plan", "train", "--spec", "train.toml", "--platform", "local", "--json"]
    said.append(run_script("launch_job.py", *plan, cwd=site.root))
    assert all("canary" not in done.stdout + done.stderr for done in said)
    assert all(b"canary" not in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_odd_paths_reach_the_program_as_data(tmp_path, monkeypatch):
    root = tmp_path / "a b'c\"d\n$(touch pwned);é `x` {y}"
    root.mkdir()
    site = Site(root, monkeypatch)
    (root / "show.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    usual = local.command

    def shown(*given):
        python, _, *words = usual(*given)
        return [python, str(root / "show.py"), *words]

    monkeypatch.setattr(local, "command", shown)
    record, _ = launch.submit(site.request(gpu_ids=[]))
    folder = site.jobs / record["job_id"]
    ended(folder)
    words = json.loads("\n".join(jobs.log_tail(folder, 9)))
    assert words == ["train", "--config", str(folder / "spec.toml"), "--job-dir", str(folder)]
    by_hand = subprocess.run(["sh", folder / "launch.sh"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(by_hand.stdout) == words
    assert not list(tmp_path.rglob("pwned"))
    assert spec.load(folder / "spec.toml")["policy"]["model_name_or_path"] == str(root / "model")


def test_gpu_choice_reaches_the_work(site):
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], sep='|')"
    site.monkeypatch.setattr(local, "command", lambda *_: [sys.executable, "-c", show])
    for gpu_ids, seen in ((["1", "0"], "1,0|PCI_BUS_ID"), ([], "|PCI_BUS_ID")):
        record, _ = launch.submit(site.request(gpu_ids=gpu_ids))
        ended(site.jobs / record["job_id"])
        assert jobs.log_tail(site.jobs / record["job_id"], 1) == [seen]


def test_an_action_the_engine_does_not_run_is_refused(site):
    with pytest.raises(Failure, match="JOB-ACTION"):
        local.command("transformers", "quantize", site.root)
