"""Jobs in real containers: their endings, their paths, their owners,
and what survives which kill."""

import dataclasses
import getpass
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from container_site import FLAGS, OPTIONS, Containers
from huggingface_hub import constants
from launch_site import ended, running
from support import ROOT, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine import neighbours
from cosmos_reason.jobs import engines, launch, platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import docker
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration


@pytest.fixture
def site(tmp_path, monkeypatch, dockerd):
    return Containers(tmp_path, monkeypatch, dockerd)


# -- endings ---------------------------------------------------------------------------------------


def test_a_whole_training_is_complete_and_its_container_is_kept(site):
    folder = site.submit()
    record = ended(folder)
    assert (record.state, record.exit_code, record.reason) == ("COMPLETE", 0, "")
    assert progress.log_tail(folder, 9) == ["step 1", "step 2", "step 3"]
    found = site.engine.inspect(folder.name)
    assert found["Id"] == record.platform_ref["container_id"]
    assert found["Config"]["Labels"] == {"tao-job": folder.name}
    assert found["HostConfig"]["IpcMode"] == "host" and found["HostConfig"]["Init"]
    writable = {mount["Source"] for mount in found["Mounts"] if mount["RW"]}
    assert writable == {str(folder), os.path.abspath(constants.HF_HUB_CACHE)}


def test_jobs_share_the_users_cache_of_the_hub(site, tmp_path):
    """What one downloaded the next one has; the user's tokens, beside it, are not seen."""
    site.monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("canary")
    look = (
        "import os, pathlib; cache = pathlib.Path(os.environ['HF_HUB_CACHE']); "
        "print([path.name for path in cache.iterdir()], (cache.parent / 'token').exists()); "
        "(cache / 'models--lab--one').mkdir(exist_ok=True)"
    )
    site.runs(["python3", "-c", look])
    said = []
    for _ in range(2):
        record, _ = launch.submit(site.request())
        ended(site.jobs / record.job_id)
        said += progress.log_tail(site.jobs / record.job_id, 1)
    assert said == ["[] False", "['models--lab--one'] False"]


@pytest.mark.parametrize(
    ("what", "reason"), [({"exit": 3}, "exit code 3; log ends: step 3"), ({"signal": 9}, "SIGKILL")]
)
def test_a_training_without_evidence_is_an_error(site, what, reason):
    record = ended(site.submit(**what))
    assert record.state == "ERROR" and reason in record.reason


def test_out_of_memory_is_noticed_though_the_parent_lives_and_returns_0(site):
    wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)"
    eat = f"{wait}\nx = bytearray(400_000_000)"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    site.runs(["python3", "-c", parent, eat])
    record, _ = launch.submit(site.request())
    site.engine.docker("update", "--memory=96m", "--memory-swap=96m", record.job_id)
    (site.jobs / record.job_id / "go").touch()
    record = ended(site.jobs / record.job_id)
    assert (record.state, record.exit_code) == ("ERROR", 0)
    assert "no step was recorded" in record.reason and "out of memory" in record.reason
    (told,) = record.diagnosis
    assert told["id"] == "LOG-HOST-MEMORY" and "dataloader_num_workers" in told["fix"]


def test_a_full_disk_is_an_error_and_says_so(site):
    small = site.root / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        train = document.load(site.root / "train.toml")
        train["train"]["output_dir"] = "small"
        document.dump(train, site.root / "train.toml")
        fill = f"open({str(small / 'model')!r}, 'wb').write(bytes(4_000_000))"
        site.runs(["python3", "-c", fill])
        record, _ = launch.submit(site.request())
        record = ended(site.jobs / record.job_id)
        assert record.state == "ERROR" and "No space left on device" in record.reason
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_image_without_the_program_is_an_error_that_names_it(site):
    site.runs(["no-such-program"])
    record, _ = launch.submit(site.request())
    record = ended(site.jobs / record.job_id)
    assert record.exit_code == 127 and "exec no-such-program failed: No such file" in record.reason


def test_an_image_that_is_not_there_is_an_outside_failure(site):
    with pytest.raises(Failure, match="JOB-IMAGE-MISSING") as caught:
        site.does()
        launch.submit(site.request(image="localhost:1/none"))
    assert caught.value.exit_code == 3


# -- kills -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deaf", "exit_code"), [(False, 128 + signal.SIGTERM), (True, 128 + signal.SIGKILL)]
)
def test_cancel_asks_then_insists(site, deaf, exit_code):
    folder = site.submit(pause=0.1, steps=500, total=500, deaf=deaf)
    running(folder)
    platforms.stop(folder, grace=1)
    record = ended(folder)
    assert (record.state, record.exit_code) == ("CANCELED", exit_code) and "of 500" in record.reason


def test_cancel_while_the_image_is_pulled_starts_nothing(site):
    pull = docker._pull

    def canceled(record):
        jobs.request_cancel(site.jobs / record.job_id)
        pull(record)

    site.monkeypatch.setattr(docker, "_pull", canceled)
    record = ended(site.submit())
    assert record.state == "CANCELED" and record.started_at is None
    assert not site.engine.docker(
        "ps", "--all", "--quiet", "--filter", f"name={record.job_id}"
    ).stdout


def supervisor_of(folder):
    words = ["pgrep", "--full", "--newest", f"platforms {folder}"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_the_container_outlives_its_supervisor_which_is_replaced(site):
    folder = site.submit(held=True)
    running(folder)
    first = supervisor_of(folder)
    os.kill(first, signal.SIGKILL)
    while neighbours.is_alive(first):
        time.sleep(0.01)
    assert platforms.refresh(folder).state == "RUNNING"
    assert supervisor_of(folder) != first
    (folder / "go").touch()
    record = ended(folder)
    assert (record.state, record.exit_code) == ("COMPLETE", 0)
    assert progress.log_tail(folder, 9)[:2] == ["step 1", "step 2"]


LAUNCHER = """
import os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from cosmos_reason.jobs import engines, launch
from cosmos_reason.jobs.platforms import docker
root = Path({root!r})
engines.words = lambda *_, **__: {words!r}
{extra}
asked = (root / "train.toml", "docker", root / "jobs", root, "train", "transformers")
launch.submit(launch.read(*asked, **{options!r}))
"""


@pytest.mark.parametrize(
    ("extra", "state", "reason"),
    [
        (
            "docker._pull = lambda *_: os.kill(os.getpid(), 9)",
            "ERROR",
            "interrupted before the work was started",
        ),
        ("launch.platforms.spawn = lambda *_: os.kill(os.getpid(), 9)", "COMPLETE", ""),
    ],
)
def test_a_launcher_killed_before_and_after_the_container_started(site, extra, state, reason):
    site.does()
    words = engines.words()
    text = LAUNCHER.format(
        scripts=str(ROOT / "scripts"),
        root=str(site.root),
        words=words,
        extra=extra,
        options=OPTIONS,
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.DEVNULL)
    assert process.wait(30) == -signal.SIGKILL
    (folder,) = jobs.folders(site.jobs)
    if state == "ERROR":  # a container that was quick may have ended before its launcher was killed
        assert jobs.Job.load(folder).state not in jobs.ENDED
    record = ended(folder)
    assert record.state == state and reason in record.reason


def test_a_container_that_was_removed_is_no_mystery(site):
    folder = site.submit(pause=0.2, steps=50, total=50)
    running(folder)
    os.kill(supervisor_of(folder), signal.SIGKILL)
    site.engine.docker("rm", "--force", folder.name)
    record = ended(folder)
    assert record.state == "ERROR" and "its container is gone" in record.reason


def test_a_failed_job_is_retried_with_the_same_engine_and_image(site):
    folder = site.submit(steps=2)
    first = ended(folder)
    again, _ = launch.submit(launch.next_attempt(folder, site.jobs))
    assert again.retry_of == folder.name and again.job_id != folder.name
    assert (again.image, again.options) == (first.image, first.options)
    assert ended(site.jobs / again.job_id).outputs == first.outputs


def test_an_engine_out_of_reach_is_exit_3_with_what_to_do_and_no_record(site):
    away = ["--docker-host", f"unix://{site.root}/none.sock"]
    done = run_script("launch_job.py submit train --spec train.toml", *FLAGS, *away, cwd=site.root)
    assert done.returncode == 3 and "JOB-DOCKER-UNREACHABLE" in done.stderr
    assert "fix: docker --host" in done.stderr
    assert not site.jobs.exists()
    done = run_script("launch_job.py plan train --spec train.toml", *FLAGS, *away, cwd=site.root)
    assert done.returncode == 0 and "the plan assumes" in done.stdout


def test_a_running_job_whose_engine_went_away_is_unknown_until_it_is_back(site):
    folder = site.submit(pause=0.2, steps=10, total=10)
    record = running(folder)
    os.kill(supervisor_of(folder), signal.SIGKILL)
    away = record.options | {"docker_host": f"unix://{site.root}/none.sock"}
    dataclasses.replace(record, options=away).write()
    done = run_script("launch_job.py", "status", folder.name, "--json", "--jobs-dir", site.jobs)
    said = json.loads(done.stdout)["findings"][0]
    assert done.returncode == 3 and said["id"] == "JOB-OUT-OF-REACH"
    assert said["data"]["job"]["state"] == "UNKNOWN"
    assert jobs.Job.load(folder).state == "RUNNING"
    record.write()
    assert ended(folder).state == "COMPLETE"


def test_an_engine_that_hangs_is_told_and_holds_nothing_up(site):
    folders = [site.submit(pause=0.3, steps=100, total=100) for _ in range(2)]
    for folder in folders:
        running(folder)
        os.kill(supervisor_of(folder), signal.SIGKILL)
    site.engine.process.send_signal(signal.SIGSTOP)
    try:
        for words in (["list"], ["status", folders[0].name]):
            done = run_script("launch_job.py", *words, "--jobs-dir", site.jobs)
            assert "got no answer within 5 s" in done.stderr
            assert done.returncode == (3 if words[0] == "status" else 0)
            assert done.stdout.count("UNKNOWN") in (2, 0)
    finally:
        site.engine.process.send_signal(signal.SIGCONT)
    for folder in folders:
        platforms.stop(folder, grace=0)
        assert ended(folder).state == "CANCELED"


# -- what the work sees ----------------------------------------------------------------------------

SHOW = """
import json, os, pathlib, pwd, sys
folder = pathlib.Path.cwd()
(folder / "results" / "made.txt").write_text("x")
names = sorted(os.listdir(sys.argv[3]))
try:
    open(os.path.join(sys.argv[3], "new"), "w")
    wrote = True
except OSError:
    wrote = False
facts = {"argv": sys.argv[1:], "names": names, "wrote": wrote}
facts |= {"uid": os.getuid(), "env": dict(os.environ)}
(folder / "facts.json").write_text(json.dumps(facts))
"""


def show(site, **fields):
    """What a program in the container learns: its arguments, its environment, its user."""
    (site.root / "model" / "show.py").write_text(SHOW)
    usual = engines.words

    def shown(record, mapped, **places):
        media = mapped["custom"]["train_dataset"]["media_path"]
        _, _, *words = usual(record, mapped, **places)
        return [
            "python3",
            f"{mapped['policy']['model_name_or_path']}/show.py",
            *words[:1],
            words[2],
            media,
        ]

    site.monkeypatch.setattr(engines, "words", shown)
    record, _ = launch.submit(site.request(**fields))
    folder = site.jobs / record.job_id
    ended(folder)
    return folder, json.loads((folder / "facts.json").read_text())


def test_odd_paths_reach_the_program_as_data(tmp_path, monkeypatch, dockerd):
    root = tmp_path / "a b'c\"d,e\n$(touch pwned);é `x` {y}"
    root.mkdir()
    site = Containers(root, monkeypatch, dockerd)
    (root / "media" / "$(touch pwned); 'x\".mp4").touch()
    folder, facts = show(site)
    assert facts["argv"] == ["train", str(folder / "container.toml"), str(root / "media")]
    assert facts["names"] == ["$(touch pwned); 'x\".mp4"] and not facts["wrote"], (
        "inputs are read-only"
    )
    assert (folder / "results" / "made.txt").stat().st_uid == os.getuid() == facts["uid"]
    assert not list(tmp_path.rglob("pwned"))


def test_a_path_of_the_image_is_mounted_elsewhere_and_the_spec_says_so(site):
    root = site.root / "elsewhere"
    root.mkdir()
    subprocess.run(["mkdir", "-p", "/opt/cosmos-reason-test/media"], check=True)
    try:
        train = document.load(site.root / "train.toml")
        train["custom"]["train_dataset"]["media_path"] = "/opt/cosmos-reason-test/media"
        document.dump(train, site.root / "train.toml")
        folder, facts = show(site)
        assert facts["argv"][2] == "/host/opt/cosmos-reason-test/media"
        mapped, own = (
            document.load(folder / name)["custom"] for name in ("container.toml", "spec.toml")
        )
        assert mapped["train_dataset"]["media_path"] == "/host/opt/cosmos-reason-test/media"
        assert own["train_dataset"]["media_path"] == "/opt/cosmos-reason-test/media"
    finally:
        subprocess.run(["rm", "-r", "/opt/cosmos-reason-test"], check=True)


@pytest.mark.promise
def test_secrets_reach_the_container_by_name_only(site):
    secrets = {
        name: f"canary-{len(name)}"
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY")
    }
    for name, value in secrets.items():
        site.monkeypatch.setenv(name, value)
    folder, facts = show(site)
    assert {name: facts["env"][name] for name in secrets} == secrets
    (folder / "facts.json").unlink()
    verbs = [
        run_script("launch_job.py", verb, folder.name, "--jobs-dir", site.jobs)
        for verb in ("status", "logs")
    ]
    verbs.append(
        run_script("launch_job.py", "plan", "train", "--spec", "train.toml", *FLAGS, cwd=site.root)
    )
    assert all("canary" not in done.stdout + done.stderr for done in verbs)
    assert all(b"canary" not in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_an_ordinary_user_owns_the_results_and_has_a_home(site, tmp_path):
    """As a user id that the image does not know: torch looks its user up when it is imported."""
    check = (
        "import getpass, os, torch, pathlib; "
        "print(os.getuid(), getpass.getuser(), os.path.expanduser('~'));"
        "pathlib.Path(os.environ['HF_HOME'], 'x').touch(); pathlib.Path('results', 'y').touch()"
    )
    site.runs(["python3", "-c", check])
    site.monkeypatch.setattr(docker.os, "getuid", lambda: 4321)
    site.monkeypatch.setattr(docker.os, "getgid", lambda: 4321)
    site.monkeypatch.setattr(docker.os, "getgroups", lambda: [4321, 100])
    site.monkeypatch.setenv("USER", "alice")
    write = docker.write

    def owned(folder, record, mapped):
        written = write(folder, record, mapped)
        (folder / "results").mkdir()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 4321, 4321)
        return written

    site.monkeypatch.setattr(docker, "write", owned)
    record, _ = launch.submit(site.request())
    folder = site.jobs / record.job_id
    ended(folder)
    assert progress.log_tail(folder, 1) == [f"4321 alice {folder / 'home'}"]
    assert (folder / "results" / "y").stat().st_uid == 4321
    assert getpass.getuser()


def test_root_is_warned(site):
    site.does()
    _, found = launch.plan(site.request())
    assert "JOB-DOCKER-ROOT" in {finding.id for finding in found}
