#!/usr/bin/env python3
"""Runs the program of a pod, and keeps what it prints in the job's folder as well as where it was
printed to: keep_log.py FOLDER [--begins ACTION] PROGRAM [ARGUMENT]...

A cluster forgets the log of a pod with the pod, and before that all but its last megabytes. The log
of pod 0 is log.txt, that of pod N is node-N.log. Exit code and signals are the program's. With
--begins, of a launch that nobody follows, the program also gets the variables of
FOLDER/skill/environment, and the folder keeps the id of the run, its start and its end (run.id,
run.started, run.exit; node-N.exit), and runs once. Rendered and mounted by launch_job; never run on
a real cluster.
"""

import binascii
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
NOT_FOUND = 127  # as a shell says it
PATIENCE = 10  # seconds for what the program's own children still print after its end


class Log:
    """A file that may fail, of which the program knows nothing."""

    def __init__(self, path):
        self.descriptor = None
        try:
            self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as problem:
            self.lost(problem)

    def write(self, chunk):
        try:
            while chunk and self.descriptor is not None:
                chunk = chunk[os.write(self.descriptor, chunk) :]
        except OSError as problem:
            self.descriptor = None
            self.lost(problem)

    def lost(self, problem):
        print(f"the log is kept by the cluster alone: {problem}", file=sys.stderr, flush=True)


def copy(source, log):
    while True:
        chunk = os.read(source, 1 << 16)
        if not chunk:
            return
        log.write(chunk)
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def run(words, log):
    """Return the exit code of the program, 128 + N for signal N."""
    try:
        program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as problem:
        text = f"error: JOB-K8S-CONTAINER {words[0]}: could not be started: {problem.strerror}\n"
        log.write(text.encode())
        print(text, end="", flush=True)
        return NOT_FOUND
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: program.send_signal(number))
    copier = threading.Thread(target=copy, args=(program.stdout.fileno(), log), daemon=True)
    copier.start()
    code = program.wait()
    copier.join(PATIENCE)
    return code if code >= 0 else 128 - code


def note(folder, name, text):
    """Write a note of the run, whole or not at all."""
    part = pathlib.Path(folder, f"{name}.part")
    part.write_text(f"{text}\n")
    part.replace(part.with_name(name))


def begin(folder, action, index):
    """Give the run its variables and its id, and make the folders that git does not keep; a second
    run ends here."""
    first = "run.id" if index == "0" else f"node-{index}.exit"
    if os.path.exists(os.path.join(folder, first)):
        sys.exit(f"it ran in {folder} already: see log.txt")
    lines = pathlib.Path(folder, "skill", "environment").read_text().splitlines()
    os.environ.update(line.split("=", 1) for line in lines)
    for value in os.environ.values():
        if value.startswith(os.path.join(folder, "home")):
            os.makedirs(value, exist_ok=True)
    if index == "0":
        when = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        job_id = f"{action}-{when}-{binascii.hexlify(os.urandom(3)).decode()}"
        os.environ["COSMOS_REASON_JOB_ID"] = job_id
        note(folder, "run.id", job_id)
        note(folder, "run.started", str(int(time.time())))


if __name__ == "__main__":
    job, words = sys.argv[1], sys.argv[2:]
    index = os.environ.get("JOB_COMPLETION_INDEX", "0")
    is_noted = words[0] == "--begins"
    if is_noted:
        begin(job, words[1], index)
        words = words[2:]
    code = run(words, Log(os.path.join(job, "log.txt" if index == "0" else f"node-{index}.log")))
    if is_noted:
        note(
            job, "run.exit" if index == "0" else f"node-{index}.exit", f"{code} {int(time.time())}"
        )
    sys.stdout.flush()
    os._exit(code)  # what still prints is not waited for
