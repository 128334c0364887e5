"""What keeps the log of a pod in its job's folder: exit code and signals stay the program's."""

import os
import runpy
import signal
import subprocess
import sys

import pytest

from cosmos_reason.base import bundle, job_folder

KEEP_LOG = bundle.ROOT / "scripts/in_container/keep_log.py"


def words(folder, *program):
    return [sys.executable, str(KEEP_LOG), str(folder), *program]


def kept(folder, *program, **variables):
    asked = words(folder, *program)
    environment = os.environ | variables
    return subprocess.run(asked, capture_output=True, timeout=300, check=False, env=environment)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -11 $$", 139)],
)
def test_the_exit_code_is_the_programs(tmp_path, script, code):
    assert kept(tmp_path, "sh", "-c", script).returncode == code


def test_both_places_have_all_that_is_printed(tmp_path):
    (tmp_path / "log.txt").write_text("before\n")
    script = "printf 'a\\r\\377'; echo b >&2; head -c 300000 /dev/zero"
    done = kept(tmp_path, "sh", "-c", script)
    assert done.stdout == b"a\r\xffb\n" + bytes(300_000)
    assert (tmp_path / "log.txt").read_bytes() == b"before\n" + done.stdout


def test_further_pods_have_logs_of_their_own(tmp_path):
    kept(tmp_path, "echo", "two", JOB_COMPLETION_INDEX="2")
    kept(tmp_path, "echo", "zero", JOB_COMPLETION_INDEX="0")
    logs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert logs == {"node-2.log": "two\n", "log.txt": "zero\n"}


def test_a_program_that_is_asked_to_end_may_save(tmp_path):
    script = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    asked = words(tmp_path, "sh", "-c", script)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)  # to this process alone, as a cluster does
        assert process.stdout.read() == b"saved\n" and process.wait(300) == 5
    assert (tmp_path / "log.txt").read_text() == "ready\nsaved\n"


def test_a_storage_that_is_full_does_not_end_the_program(tmp_path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    done = kept(tmp_path, "sh", "-c", "echo one; sleep 0.3; echo two; exit 4")
    assert (done.returncode, done.stdout) == (4, b"one\ntwo\n")
    assert done.stderr.count(b"kept by the cluster alone: [Errno 28]") == 1


def test_a_program_that_is_not_there_is_named(tmp_path):
    done = kept(tmp_path, "no-such-program")
    said = "error: JOB-K8S-CONTAINER no-such-program: could not be started: No such file"
    assert done.returncode == 127 and (tmp_path / "log.txt").read_text().startswith(said)


def test_a_child_that_goes_on_printing_is_not_waited_for(tmp_path):
    module = runpy.run_path(str(KEEP_LOG))
    before = {number: signal.getsignal(number) for number in module["PASSED_ON"]}
    module["run"].__globals__["PATIENCE"] = 0.2
    try:
        log = module["Log"](tmp_path / "log.txt")
        assert module["run"](["sh", "-c", "sleep 3 & exit 6"], log) == 6
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_run_that_nobody_follows_notes_its_id_start_and_end(tmp_path):
    """Its variables are in its folder."""
    home = tmp_path / "home" / "cache"
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "environment").write_text(f"HOME={home}\nPAIR=a=b\n")
    script = 'echo "$COSMOS_REASON_JOB_ID $PAIR"; exit 4'
    asked = ["--begins", "train", "sh", "-c", script]
    done = kept(tmp_path, *asked, PAIR="before")
    job_id = (tmp_path / "run.id").read_text().strip()
    assert done.returncode == 4 and done.stdout.decode() == f"{job_id} a=b\n"
    assert job_folder.ID.fullmatch(job_id) and home.is_dir()
    assert (tmp_path / "run.started").read_text().strip().isdecimal()
    assert (tmp_path / "run.exit").read_text().split()[0] == "4"
    again = kept(tmp_path, *asked)
    assert again.returncode == 1 and b"already" in again.stderr
    assert kept(tmp_path, *asked, JOB_COMPLETION_INDEX="1").returncode == 4, "another pod"
    assert (tmp_path / "node-1.exit").read_text().split()[0] == "4"
    assert (tmp_path / "run.id").read_text().strip() == job_id
