"""launch_job.py as people and agents use it."""

import functools
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from launch_site import Site, change, ended, running
from support import ROOT, run_script, tokens

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure, outside
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.jobs import engines, launch, platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import local as platform_local
from cosmos_reason.remote import hub
from cosmos_reason.rules import launchable
from cosmos_reason.spec import document


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def printed(*words, cwd=None):
    """The document that launch_job.py prints, and its exit code."""
    done = run_script("launch_job.py", *words, "--json", cwd=cwd)
    return json.loads(done.stdout), done.returncode


def test_plan_touches_nothing_and_is_the_same_twice(site):
    flags = "plan train --spec train.toml --platform local --gpu-ids none".split()
    before = sorted(site.root.rglob("*"))
    first, code = printed(*flags, cwd=site.root)
    assert sorted(site.root.rglob("*")) == before
    result = first["result"]
    assert code == 0 and all(isinstance(word, str) for word in result["command"])
    assert result["resources"]["gpu_ids"] == []
    assert result["outputs"]["output_dir"].startswith(str(site.root / "jobs"))
    again = printed(*flags, cwd=site.root)[0]["result"]
    assert again | {"created_at": ""} == result | {"created_at": ""}


PLAN_AND_TELL = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import launch_job
from cosmos_reason import cli
cli.run(launch_job.parser(), launch_job.main, sys.argv[1:])
print(sorted({{name.split(".")[1] for name in sys.modules if name.startswith("cosmos_reason.")}}))
"""


def test_a_plan_imports_no_reader_of_what_is_not_here(site):
    """Data and model of a cluster are often not here: half of such a plan was imports."""
    absent = {"annotation_path": "none.json", "media_path": "none"}
    change(site, "train", custom__train_dataset=absent, custom__val_dataset=absent)
    change(site, "train", validation__enable=True, policy__model_name_or_path="ORG/NAME")
    words = "plan train --spec train.toml --platform slurm".split()
    command = [sys.executable, "-c", PLAN_AND_TELL, *words]
    done = subprocess.run(command, cwd=site.root, capture_output=True, text=True, check=True)
    assert "SPEC-DATA-SHARED" in done.stderr, "both are one file, by name"
    packages = done.stdout.splitlines()[-1]
    assert "rules" in packages
    assert not [name for name in ("answers", "checkpoints", "data") if f"'{name}'" in packages]


def follow(done, *flags, cwd):
    """What the printed next command does, and what it is."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("next: ")]
    program, *words = shlex.split(line.removeprefix("next: "))
    assert Path(program).is_file()
    return run_script(Path(program).name, *words, *flags, cwd=cwd), words


def test_each_success_names_the_command_that_follows_and_it_runs(site, server):
    server.plan = lambda body, number: (401, b"no", 0)
    where = ["evaluate", "--spec", "evaluate.toml", "--platform", "local", "--gpu-ids", "none"]
    where += ["--endpoint", server.url, "--jobs-dir", "other jobs"]
    submitted, words = follow(
        run_script("launch_job.py", "plan", *where, cwd=site.root), cwd=site.root
    )
    assert submitted.returncode == 0 and words == ["submit", *where]
    watched, words = follow(submitted, cwd="/")
    assert words[0] == "watch" and watched.returncode == 3 and "next:" not in watched.stderr, (
        "the server refuses"
    )
    done = run_script("launch_job.py", "status", words[1], *words[2:])
    assert done.returncode == 0 and "next:" not in done.stderr and "cause:" in done.stdout
    whole = site.submit(pause=0.3)
    done = run_script("launch_job.py", "status", whole.name, "--jobs-dir", site.jobs)
    watched, words = follow(done, cwd="/")
    assert words[0] == "watch" and watched.returncode == 0
    chosen, words = follow(watched, "--by", "step_3", cwd="/")
    assert words == [str(whole)] and chosen.returncode == 0
    judged = site.submit("evaluate", steps=0, model=False, rows=["a"], questions=1)
    ended(judged)
    told, _ = printed("status", judged.name, "--jobs-dir", site.jobs)
    program, *words = shlex.split(told["next"])
    assert Path(program).name == "score_predictions.py" and words == [f"{judged}/results"]


def test_a_name_that_the_server_does_not_serve_starts_no_job(site, server):
    server.models = ["theirs"]
    where = ["evaluate", "--spec", "evaluate.toml", "--platform", "local", "--gpu-ids", "none"]
    words = ["submit", *where, "--endpoint", server.url, "--served-model", "ours"]
    told, code = printed(*words, cwd=site.root)
    (wrong,) = [finding for finding in told["findings"] if finding["severity"] == "error"]
    assert wrong["id"] == "EVAL-ENDPOINT-MODEL"
    assert wrong["data"]["served"] == ["theirs"] and code != 0
    assert not list((site.root / "jobs").glob("evaluate-*"))


def test_the_engine_is_asked_of_the_context_and_never_with_a_password(site):
    docker = site.root / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        '#!/bin/sh\necho "$@" "$DOCKER_HOST" >> "$OUT"\n'
        'case "$1" in context) echo "$CONTEXT";; *) echo "{}";; esac\n'
    )
    docker.chmod(0o755)
    where = "plan train --spec train.toml --platform docker --image x --json".split()
    env = {
        "PATH": f"{docker.parent}:/usr/bin:/bin",
        "OUT": str(site.root / "out"),
        "DOCKER_HOST": "",
    }
    done = run_script("launch_job.py", *where, cwd=site.root, env=env | {"CONTEXT": "ssh://me@far"})
    assert json.loads(done.stdout)["result"]["options"] == {"docker_host": "ssh://me@far"}
    assert "info --format {{json .}} ssh://me@far" in (site.root / "out").read_text()
    for where_from in ({"CONTEXT": "ssh://me:canary@far"}, {"DOCKER_HOST": "ssh://me:canary@far"}):
        done = run_script("launch_job.py", *where, cwd=site.root, env=env | where_from)
        assert done.returncode == 2 and "JOB-DOCKER-HOST" in done.stdout
        assert "canary" not in done.stdout + done.stderr
    assert "canary" not in (site.root / "out").read_text()


@pytest.mark.parametrize(
    ("flags", "finding"),
    [
        (["--gpu-ids", "0,0"], "JOB-GPU-IDS"),
        (["--gpu-ids", "0;rm"], "JOB-GPU-IDS"),
        (["--engine", "tao"], "JOB-ENGINE"),
        (["--image", "x"], "JOB-FLAG"),
        (["--gpu-ids", "97"], "JOB-GPU-IDS"),
        (["--gpu-idz", "0"], "Did you mean --gpu-ids?"),
        (["--spce", "x"], "Did you mean --spec"),
        (["--num-nodes", "2"], "Did you mean --nodes?"),  # as other trainers call it
    ],
)
def test_wrong_flags_are_refused(site, flags, finding):
    done = run_script(
        "launch_job.py",
        *"submit train --spec train.toml --platform local".split(),
        *flags,
        cwd=site.root,
    )
    assert done.returncode in (1, 2) and finding in done.stderr and not site.jobs.exists()


def test_the_gpus_that_are_there_are_offered_for_those_that_are_not(site):
    tool = site.root / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-a)'\n"
        "echo 'GPU 1: NVIDIA H200 (UUID: GPU-b)'\n"
    )
    tool.chmod(0o755)
    command = ["plan", "train", "--spec", "train.toml", "--platform", "local", "--gpu-ids"]
    path = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    for given, absent, fix in (
        ("3", "3", "  fix: --gpu-ids 0\n"),
        ("0,1,2,3", "2,3", f"; {WAYS_OUT}\n"),  # the spec needs four
    ):
        count = len(given.split(","))
        change(site, "train", policy__parallelism__dp_shard_size=count)
        done = run_script("launch_job.py", *command, given, cwd=site.root, env=path)
        assert f"got {absent}, this machine has 2 GPUs{fix}" in done.stderr
        assert "--gpu-ids none" not in done.stderr


# -- a plan for the TAO container, on a machine without an engine ------------------------------

TAO = "train --spec train.toml --platform docker --docker-host unix:///none --engine tao".split()


def for_two_gpus(site):
    adapters = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
    steps = {"train__max_num_steps": 2, "train__ckpt__save_freq": 1}  # so few are wanted
    steps["train__optm_lr"] = 1e-4  # as adapters want it
    change(site, "train", policy__parallelism__dp_shard_size=2, policy__lora=adapters, **steps)


@pytest.mark.parametrize("given", ["0", "0,1,2", "3", "GPU-ab", "none"])
def test_the_gpus_chosen_are_as_many_as_the_spec_needs(site, given):
    for_two_gpus(site)
    for verb in ("plan", "submit"):
        told, code = printed(verb, *TAO, "--gpu-ids", given, cwd=site.root)
        (wrong,) = [one for one in told["findings"] if one["severity"] == "error"]
        assert code == 1 and wrong["id"] == "JOB-GPU-COUNT" and not site.jobs.exists()
        assert not told["result"].get("command")
    fixed, code = printed("plan", *TAO, *wrong["fix"].split(), cwd=site.root)
    command = fixed["result"]["command"]
    assert code == 0 and command[command.index("--gpus") + 1].count(",") == 1


def test_processes_of_an_evaluation_have_a_gpu_each(site):
    change(site, "evaluate", num_gpus=2)
    where = {"platform": "docker", "image": "x", "docker_host": "unix:///none"}
    for ids, right in (
        ([], False),
        (["0"], False),
        (["0", "1"], True),
        (["0", "1", "2"], True),
        (None, True),
    ):
        assert bool(launch.plan(site.request("evaluate", gpu_ids=ids, **where))[0]) == right
    assert launch.plan(
        site.request("evaluate", gpu_ids=[], endpoint="http://localhost/v1", **where)
    )[0]


def test_a_plan_says_when_it_has_no_gpus_and_only_then(site):
    for_two_gpus(site)
    done = run_script("launch_job.py", "plan", *TAO, cwd=site.root)
    assert "no --gpus  fix: --gpu-ids 0,1\n" in done.stdout and "GPUs not chosen" in done.stdout
    done = run_script("launch_job.py", "plan", *TAO, "--gpu-ids", "0,1", cwd=site.root)
    assert "JOB-DOCKER-GPUS" not in done.stdout and "without GPUs" not in done.stdout
    assert "on docker, GPUs 0,1\n" in done.stdout


def test_a_plan_tells_the_time(site):
    for_two_gpus(site)
    words = ["plan", *TAO, "--gpu-ids", "0,1", "--seconds-per-step", "9"]
    done = run_script("launch_job.py", *words, cwd=site.root)
    given = "2 steps, time: about 18 seconds, 0.01 GPU-hours (given by --seconds-per-step 9)\n"
    assert done.stdout.startswith(given)
    told, _ = printed(*words, cwd=site.root)
    assert told["result"]["time"]["gpu_hours"] == 2 * 2 * 9 / 3600
    done = run_script("launch_job.py", *words[:-2], cwd=site.root)
    unknown = "2 steps, time: not known (--seconds-per-step S of the first steps tells it)"
    assert done.stdout.startswith(unknown)


def test_a_plan_without_gpus_counts_none(site):
    for_two_gpus(site)
    words = ["plan", "train", "--spec", "train.toml", "--platform", "local"]
    words += ["--engine", "transformers"]
    for chosen, told in ((["--gpu-ids", "none"], []), ([], ["2"])):
        done = run_script("launch_job.py", *words, *chosen, cwd=site.root)
        assert re.findall(r"^  GPUs +(\d+)$", done.stdout, re.M) == told


def to_read(site, text):
    """Tokens of a text where the bundle and the user's folder have short names."""
    return tokens(text.replace(str(site.root), "/work").replace(str(ROOT), "/skill"))


def in_full(word, values):
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def test_a_plan_is_short_to_read_and_says_what_is_known_against_the_image(site):
    for_two_gpus(site)
    older = [*TAO, "--image", "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-cosmos-rl"]
    done = run_script("launch_job.py", "plan", *older, "--gpu-ids", "0,1", cwd=site.root)
    assert done.returncode == 0 and to_read(site, done.stdout + done.stderr) < 600
    lines = done.stdout.splitlines()
    first = 1 + next(number for number, line in enumerate(lines) if line.startswith("runs, with"))
    program, seen = lines[first : first + 2]
    told, _ = printed("plan", *older, "--gpu-ids", "0,1", cwd=site.root)
    whole = told["result"]["command"]
    ((job, skill),) = re.findall("JOB=(.*) SKILL=(.*):", done.stdout)
    values = {"$JOB": job, "$SKILL": skill, "$PWD": str(site.root)}
    shown = [in_full(word, values) for word in shlex.split(program)]
    assert shown == whole[-len(shown) :] and whole[-len(shown) - 1] == older[-1]
    mounted = [word.split(",") for word in whole if word.startswith("type=bind,")]
    read, written = in_full(seen, values).split(" and writes ")
    for _, source, _, *readonly in mounted:
        assert source.removeprefix("source=") in (read if readonly else written)
    assert " $PWD/media" in seen and "\nresults in $JOB/results\n" in done.stdout
    assert "global batch" in done.stdout and "frames a clip" in done.stdout
    (fix,) = [
        line.split("fix: ")[1] for line in lines if "fix: --image " in line
    ]  # what speaks against a plan is part of it
    other = run_script(
        "launch_job.py", "plan", *TAO, "--gpu-ids", "0,1", *fix.split(), cwd=site.root
    )
    assert other.returncode == 0 and "JOB-IMAGE-ISSUE" not in other.stdout
    assert fix.split()[1] in other.stdout


def test_a_spec_with_errors_starts_nothing(site):
    change(site, "train", train__epoch=-1, policy__model_name_or_path="./not here")
    words = "submit train --spec train.toml --platform local".split()
    done = run_script("launch_job.py", *words, cwd=site.root)
    assert (
        done.returncode == 1 and "train.epoch" in done.stderr and "JOB-INPUT-MISSING" in done.stderr
    )
    assert not site.jobs.exists()


def test_status_list_logs_and_watch_tell_the_same_story(site):
    whole, failed = site.submit(), site.submit(steps=2)
    ended(whole), ended(failed)
    where = ["--jobs-dir", site.jobs]
    status = printed("status", whole.name, *where)[0]["result"]
    assert status["state"] == "COMPLETE" and status["progress"]["step"] == 3
    listed = printed("list", *where)[0]["result"]
    assert listed["states"] == {"COMPLETE": 1, "ERROR": 1} and listed["total"] == 2
    assert printed("status", *where)[0]["result"] == listed, "without an id all jobs are meant"
    log = run_script("launch_job.py", "logs", whole.name, "--lines", 1, *where).stdout
    assert log == "step 3\n"
    watched = run_script("launch_job.py", "watch", whole.name, *where)
    assert watched.returncode == 0 and (watched.stdout + watched.stderr).count("COMPLETE") == 1
    assert run_script("launch_job.py", "watch", failed.name, *where).returncode == 3


def test_what_watch_says_of_a_canceled_job_is_how_it_goes_on(site):
    folder = site.submit(pause=5)
    where = ["--jobs-dir", site.jobs]
    assert run_script("launch_job.py", "cancel", folder.name, *where).returncode == 0
    watched = run_script("launch_job.py", "watch", folder.name, *where)
    assert watched.returncode == 3 and "launch_job.py retry" in watched.stderr


def test_watch_gives_json_lines_of_which_the_last_is_the_document(site):
    folder = site.submit(pause=0.8)
    done = run_script(
        "launch_job.py", "watch", folder.name, "--every", 0, "--json", "--jobs-dir", site.jobs
    )
    *events, document = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [event["step"] for event in events if event["event"] == "progress"]
    assert events[-1]["state"] == "COMPLETE", "no progress is told after the end"
    assert steps == sorted(steps) and steps[-1] == 3
    assert steps[0] == 1, "none is lost between the first lines of the log and the first metrics"
    assert document["ok"] and document["result"]["state"] == "COMPLETE"


def test_an_interrupted_watch_leaves_the_job_alone(site):
    folder = site.submit(held=True)
    running(folder)
    words = [
        sys.executable,
        str(ROOT / "scripts/launch_job.py"),
        "watch",
        folder.name,
        "--jobs-dir",
        str(site.jobs),
    ]
    heeds_interrupts = functools.partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # a background shell ignores them
    watching = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts
    )
    assert "RUNNING" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert "goes on" in watching.communicate(timeout=300)[1] and watching.returncode == 130
    (folder / "go").touch()
    assert ended(folder).state == "COMPLETE"


def test_an_edited_spec_is_noticed(site):
    folder = site.submit()
    ended(folder)
    for path in (site.root / "train.toml", folder / "spec.toml"):
        with open(path, "a") as handle:
            handle.write("# edited\n")
    done = run_script("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs)
    assert "JOB-SPEC-EDITED" in done.stderr and "JOB-SOURCE-EDITED" in done.stderr
    assert done.returncode == 0


def test_hundreds_of_jobs_are_listed_by_their_newest(site):
    record = jobs.Job.load(site.submit())
    for number in range(200):
        name = f"train-20250101-{number:06d}-abcdef"
        folder = site.jobs / name
        folder.mkdir()
        (folder / jobs.LOCK).touch()
        jobs.files.write_json(
            folder / "job.json",
            record.to_json() | {"job_id": name, "state": "COMPLETE", "reason": ""},
        )
    done = run_script("launch_job.py", "list", "--jobs-dir", site.jobs)
    assert "and 181 older" in done.stdout


def test_secrets_reach_the_work_and_nothing_else(site):
    secrets = {
        name: f"canary-{len(name)}"
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY")
    }
    for name, value in secrets.items():
        site.monkeypatch.setenv(name, value)
    check = "import os, sys; sys.exit(any(len(os.environ[name]) < 8 for name in sys.argv[1:]))"
    site.runs([sys.executable, "-c", check, *secrets])
    record, _ = launch.submit(site.request())
    folder = site.jobs / record.job_id
    assert ended(folder).exit_code == 0
    said = [
        run_script("launch_job.py", verb, folder.name, "--jobs-dir", site.jobs)
        for verb in ("status", "logs", "watch")
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
    usual = engines.words

    def shown(*given, **places):
        python, _, *words = usual(*given, **places)
        return [python, str(root / "show.py"), *words]

    monkeypatch.setattr(engines, "words", shown)
    record, _ = launch.submit(site.request(gpu_ids=[]))
    folder = site.jobs / record.job_id
    ended(folder)
    words = json.loads("\n".join(progress.log_tail(folder, 9)))
    assert words == ["train", "--config", str(folder / "spec.toml"), "--job-dir", str(folder)]
    by_hand = subprocess.run(
        ["sh", folder / "launch.sh"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(by_hand.stdout) == words
    assert not list(tmp_path.rglob("pwned"))
    assert document.load(folder / "spec.toml")["policy"]["model_name_or_path"] == str(
        root / "model"
    )
    first = (folder / "spec.toml").read_text().splitlines()[0]
    assert first == f"#:schema {bundle.schema_path('train').as_uri()}"


def test_gpu_choice_reaches_the_work(site):
    show = (
        "import os; "
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], sep='|')"
    )
    site.runs([sys.executable, "-c", show])
    (site.root / "nvidia-smi").write_text(
        '#!/bin/sh\nfor i in 0 1; do echo "GPU $i: H (UUID: GPU-$i)"; done\n'
    )
    (site.root / "nvidia-smi").chmod(0o755)
    site.monkeypatch.setenv("PATH", str(site.root), prepend=":")
    change(site, "train", policy__parallelism__dp_shard_size=2)
    for gpu_ids, seen in ((["1", "0"], "1,0|PCI_BUS_ID"), ([], "|PCI_BUS_ID")):
        record, _ = launch.submit(site.request(gpu_ids=gpu_ids))
        ended(site.jobs / record.job_id)
        assert progress.log_tail(site.jobs / record.job_id, 1) == [seen]


# -- which engine, and what else a launch is told ----------------------------------------------


def write_origins(site, engine, sha256=None):
    path = site.root / "train.toml"
    facts = {"action": "train", "engine": engine, "spec_sha256": sha256 or files.sha256(path)}
    files.write_json(path.with_suffix(".origins.json"), facts)


def test_the_engine_is_the_one_that_the_spec_was_built_for(site):
    def planned(*flags):
        where = "--spec train.toml --platform docker --docker-host unix:///none --image x".split()
        return printed("plan", "train", *where, *flags, cwd=site.root)[0]

    assert planned()["result"]["engine"] == "tao"  # usual on docker
    write_origins(site, "transformers")
    assert planned()["result"]["engine"] == "transformers"
    assert planned("--engine", "tao")["result"]["engine"] == "tao"
    write_origins(site, "transformers", "0" * 64)
    assert planned()["result"]["engine"] == "transformers"  # an edited spec is still meant for it
    write_origins(site, "tao")
    done = run_script(
        "launch_job.py",
        *"plan train --spec train.toml --platform local".split(),
        cwd=site.root,
    )
    assert done.returncode == 1 and "fix: --platform docker" in done.stderr
    assert "JOB-IMAGE" not in done.stderr


@pytest.mark.parametrize(
    ("action", "engine", "platform", "fix"),
    [
        ("train", "tao", "local", "--platform docker"),
        ("quantize", "tao", "local", "--platform docker"),
        ("grpo", "tao", "docker", "--engine cosmos-rl"),
        ("grpo", "tao", "local", "--engine cosmos-rl"),
    ],
)
def test_the_way_out_leads_to_what_is_launched(action, engine, platform, fix):
    (finding,) = launchable.check(platform, engine, action)
    assert str(finding.fix) == fix
    assert (engine != "cosmos-rl" and fix) or "cosmos-rl --config" in finding.message
    if fix:
        flags = dict(zip(fix.split()[::2], fix.split()[1::2], strict=True))
        assert (
            launchable.check(
                flags.get("--platform", platform), flags.get("--engine", engine), action
            )
            == []
        )


def test_what_is_launched_has_a_platform_and_a_command_and_nothing_else_has():
    assert {platform for _, platform in launchable.ways()} == set(platforms.PLATFORMS)
    for engine, facts in bundle.skill_info()["engines"].items():
        launched = {action for actions in facts["launched"].values() for action in actions}
        assert launched == {
            action for action, entry in facts["actions"].items() if "command" in entry
        }, engine
        assert {said for actions in facts["launched"].values() for said in actions.values()} <= {
            "executed",
            "bare",
            "rendered",
        }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["cancel", "x", "--grace=-1"], "expected a number"),
        (["cancel", "x", "--grace", "nan"], "expected a number"),
        (["watch", "x", "--every", "inf"], "expected a number"),
        (["logs", "x", "--lines", "-1"], "--lines"),
        (["upload", "train-20250101-000000-abcdef", "file:///x"], "S3-NAME file:///x:"),
        (["plan", "train", "--platform", "local", "--spec", "."], "SPEC-FILE"),
    ],
)
def test_wrong_numbers_and_addresses_are_usage_errors(flags, said):
    done = run_script("launch_job.py", *flags)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("action", "flags", "finding"),
    [
        ("train", ["--docker-host", "ssh://u:canary@h"], "JOB-DOCKER-HOST"),
        ("train", ["--image=--privileged"], "JOB-IMAGE"),
        ("train", ["--endpoint", "http://localhost:1/v1"], "JOB-FLAG"),
        ("evaluate", ["--served-model", "tiny"], "--endpoint http://HOST:8000/v1"),
        ("evaluate", ["--endpoint", "http://u:canary@localhost/v1"], "--endpoint"),
        ("evaluate", ["--endpoint", "http://localhost/v1?api_key=canary"], "--endpoint"),
        ("evaluate", ["--checkpoint", ""], "--checkpoint"),
        ("train", ["--docker-host", "tcp://canary@h:1"], "JOB-DOCKER-HOST"),
        ("train", ["--docker-host", "canary"], "JOB-DOCKER-HOST"),
        (
            "evaluate",
            ["--endpoint", "http://localhost/v1", "--checkpoint", "model"],
            "not allowed with",
        ),
    ],
)
def test_what_a_plan_refuses_and_never_repeats(site, action, flags, finding):
    where = ["--spec", f"{action}.toml", "--platform", "docker"]
    where += [] if "--docker-host" in flags else ["--docker-host", "unix:///none"]
    done = run_script("launch_job.py", "plan", action, *where, *flags, "--json", cwd=site.root)
    assert done.returncode in (1, 2) and finding in done.stdout
    assert "canary" not in done.stdout + done.stderr


def test_an_evaluation_by_a_server_needs_no_model_here_and_its_key_goes_by_name(site):
    key = {"custom__endpoint__api_key_variable": "SERVER_KEY"}
    change(site, "evaluate", model__model_name="lab/served", **key)
    site.monkeypatch.setenv("SERVER_KEY", "canary")
    url = "http://localhost:8000/v1"
    local, found = launch.plan(site.request("evaluate", endpoint=url))
    assert local.command[-1] == f"--endpoint={url}", found
    named, found = launch.plan(site.request("evaluate", endpoint=url, served_model="tiny model"))
    assert named.command[-1] == "--served-model=tiny model", found
    jsonschema.validate(named.options, bundle.schema("job")["properties"]["options"])
    assert "model.model_name" not in {entry["role"] for entry in local.inputs}
    request = site.request(
        "evaluate", platform="docker", endpoint=url, image="x", docker_host="unix:///none"
    )
    command = launch.plan(request)[0].command
    assert (
        command[-1] == f"--endpoint={url}" and command[command.index("SERVER_KEY") - 1] == "--env"
    )
    assert not any("canary" in word for word in command)


def passed_on(command):
    """Names and name=value pairs that a docker command passes to its container."""
    return [word for flag, word in itertools.pairwise(command) if flag == "--env"]


def test_unrelated_secrets_stay_out_of_a_container(site):
    kept_out = "GITHUB_TOKEN OPENAI_API_KEY SECRET_KEY ACCESS_KEY GH_TOKEN NVIDIA_API_KEY MY_TOKEN"
    kept_out = kept_out.split()
    usual = "HF_TOKEN WANDB_API_KEY NGC_API_KEY AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION"
    usual = usual.split()
    for name in (*kept_out, *usual, "HF_HOME", "COSMOS_CACHE"):
        site.monkeypatch.setenv(name, f"canary-of-{name}")
    # This counts only where a server is asked.
    change(site, "evaluate", custom__endpoint__api_key_variable="GITHUB_TOKEN")
    where = {"platform": "docker", "image": "x", "docker_host": "unix:///none"}
    record, _ = launch.plan(site.request("evaluate", **where))
    passed = passed_on(record.command)
    assert set(usual) <= set(passed) and not any("canary" in word for word in record.command)
    assert not {name for name in kept_out for word in passed if word.partition("=")[0] == name}
    cache = os.path.abspath(hub.cache())  # without the tokens that lie beside it
    assert f"HF_HUB_CACHE={cache}" in passed
    assert f"type=bind,source={cache},target={cache}" in record.command
    far, _ = launch.plan(site.request("evaluate", **where | {"docker_host": "ssh://far"}))
    carried, _ = launch.plan(site.request("evaluate", image="x", platform="docker", carried=True))
    for plan in (far, carried):  # where nobody knows of this machine's cache
        assert not [word for word in plan.command if "HF_HUB_CACHE" in word or cache in word]
    for cache in ("HF_HOME", "COSMOS_CACHE"):  # a folder of this machine is none of the container's
        assert any(word.startswith(f"{cache}={site.jobs}/") for word in passed)
    record, _ = launch.plan(site.request("evaluate", **where, env=["MY_TOKEN", "HF_HOME"]))
    passed = passed_on(record.command)
    assert {"MY_TOKEN", "HF_HOME"} <= set(passed) and not [
        word for word in passed if word.startswith("HF_HOME=")
    ]
    assert record.options["env"] == ["MY_TOKEN", "HF_HOME"]  # a retry asks for them again


def test_a_variable_is_asked_for_by_name_and_has_a_value(site):
    where = "plan train --spec train.toml --image x --docker-host unix:///none --platform".split()
    for flags, code, said in (
        (["docker", "--env", "MY_KEY=canary"], 2, "NAME of a variable"),
        (["docker", "--env", "MY_KEY"], 1, "export MY_KEY=VALUE"),
        (["local", "--env", "PATH"], 1, "JOB-FLAG"),
        (["docker", "--env", "PATH", "--env", "HOME"], 0, ""),
    ):
        done = run_script("launch_job.py", *where, *flags, cwd=site.root)
        assert done.returncode == code and said in done.stderr, flags
        assert "canary" not in done.stdout + done.stderr


def test_checkpoints_reach_the_engine_and_its_container(site):
    given = [str(site.root / "model")]
    record, _ = launch.plan(site.request("evaluate", checkpoints=given))
    assert record.command[-2:] == ["--checkpoint", *given]
    usual = {"platform": "docker", "image": "x", "docker_host": "unix:///none"}
    command = launch.plan(site.request("evaluate", checkpoints=given, **usual))[0].command
    assert command[-2:] == ["--checkpoint", *given]
    assert f"type=bind,source={given[0]},target={given[0]},readonly" in command


def test_a_way_around_a_folder_of_the_image_is_no_way(site):
    way = os.path.relpath("/workspace/out", site.root)
    for written in (f"{site.root}/{way}", way):
        change(site, "train", train__output_dir=written)
        request = site.request(platform="docker", image="x", docker_host="unix:///none")
        record, found = launch.plan(request)
        assert record.outputs["output_dir"] == "/workspace/out", found
        assert "type=bind,source=/workspace/out,target=/host/workspace/out" in record.command
    assert str(jobs.root("/tmp/../workspace/jobs")) == "/workspace/jobs"


def test_a_job_that_was_recorded_but_not_started_says_so(site):
    def refuse(*_):
        raise outside("JOB-DOCKER-FAILED", "x", "got no")

    site.does()
    site.monkeypatch.setattr(platform_local, "start", refuse)
    with pytest.raises(Failure) as caught:
        launch.submit(site.request())
    last, (folder,) = caught.value.findings[-1], jobs.folders(site.jobs)
    assert last.id == "JOB-NOT-STARTED" and last.where == folder.name
    program, *words = shlex.split(str(last.fix))
    done = run_script(Path(program).name, *words, cwd="/")
    assert done.returncode == 0 and f"{folder.name} ERROR" in done.stdout


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device", "job.json"), None])
def test_of_a_job_whose_answer_was_lost_it_is_said_that_nobody_knows(site, trouble):
    """Its record is still PENDING: it may run. A refusal has ended it."""

    def lost(job, _):
        if trouble:
            raise trouble
        replace(job, state=jobs.ERROR, reason="refused").write()
        raise outside("JOB-SLURM-FAILED", "x", "SLURM refused the job")

    site.does()
    site.monkeypatch.setattr(platform_local, "start", lost)
    with pytest.raises(Failure) as caught:
        launch.submit(site.request())
    last = caught.value.findings[-1]
    assert (last.id, caught.value.exit_code) == ("JOB-NOT-STARTED", 3)
    assert ("is not known" in last.message) == (trouble is not None)


def test_a_plan_is_shown_and_kept_in_one_call(site):
    flags = ["--spec", "train.toml", "--platform", "local", "--gpu-ids", "none"]
    done = run_script("launch_job.py", "plan", "train", *flags, "--save", "p.json", cwd=site.root)
    kept = json.loads((site.root / "p.json").read_text())
    assert done.returncode == 0 and kept["result"]["command"] and "saved as p.json" in done.stdout
    assert "--save" not in done.stderr.partition("next: ")[2]


@pytest.mark.parametrize("words", ["list", "status train-20260101-120000-0a1b2c", "submit"])
def test_a_file_in_the_place_of_the_jobs_folder_is_refused(site, words):
    if words == "submit":
        words = f"submit --spec {site.root / 'train.toml'} --platform local"
    other = site.root / "jobs.txt"
    other.touch()
    done = run_script("launch_job.py", *words.split(), "--jobs-dir", other, cwd=site.root)
    assert done.returncode == 2 and f"JOB-JOBS-DIR {other}" in done.stderr
    assert "fix: --jobs-dir DIR" in done.stderr


def test_a_file_named_jobs_is_in_the_way_of_nothing_else(site):
    (site.root / "jobs").touch()
    where = ["--jobs-dir", site.root / "mine"]
    done = run_script("launch_job.py", "list", *where, cwd=site.root)
    assert done.returncode == 0 and "no jobs in" in done.stderr
