"""The processes that read records: that they end, and that nobody waits for one that has."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loading import Records, for_ever, large, reading, unheard_of
from support import ROOT

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine import loader as module
from cosmos_reason.engine import neighbours
from cosmos_reason.engine.answer import read_ahead
from cosmos_reason.engine.loader import Dead, Stuck
from cosmos_reason.engine.train.ranks import Ranks
from cosmos_reason.engine.train.reading import Reader, Unread
from cosmos_reason.engine.train.schedule import Schedule

SECONDS = 300  # in which all has to be over that would otherwise last for ever


class TooLong(BaseException):
    """What no handler of exceptions takes for another problem."""


@contextmanager
def ends_in_time():
    """A test that would wait for ever fails."""

    def fail(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wait_until(is_so):
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def sleeps(process):
    """Whether all threads of a process wait for something, as one that fills a pipe does."""
    states = []
    for task in os.listdir(f"/proc/{process}/task"):
        facts = Path("/proc", str(process), "task", task, "stat").read_text()
        states.append(facts.rpartition(")")[2].split()[0])
    return set(states) == {"S"}


# -- one that ends -------------------------------------------------------------------------------


def test_a_reader_that_dies_in_the_middle_of_a_message_is_not_waited_for():
    with ends_in_time(), reading(large) as loader:
        (process,) = loader.processes
        wait_until(lambda: sleeps(process.pid))  # it has filled the pipe
        os.kill(process.pid, signal.SIGSTOP)
        later = threading.Timer(1, process.kill)
        later.start()  # when this process waits for the rest
        with pytest.raises(Dead, match=f"process {process.pid}, exit code -9"):
            next(loader)
        later.join()


def test_a_reader_that_dies_is_told_where_records_are_waited_for_and_nowhere_else():
    with ends_in_time(), reading(large, workers=2) as loader:
        assert len(next(loader)[0]) == len(large(0))
        loader.processes[1].kill()
        loader.processes[1].join(SECONDS)
        with pytest.raises(Dead):
            next(loader)
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def test_what_a_reader_raises_is_raised_and_the_others_end(monkeypatch):
    monkeypatch.setattr(module, "DYING", 0)
    with ends_in_time(), reading(unheard_of, workers=2) as loader:
        with pytest.raises(KeyError, match="a decoder of its own mind"):
            next(loader)
        processes = loader.processes
    assert not any(process.is_alive() for process in processes)


@pytest.fixture
def impatient(monkeypatch):
    for name, seconds in {"PATIENCE": 0.5, "GRACE": 0.2, "DYING": 0}.items():
        monkeypatch.setattr(module, name, seconds)


# -- one that hangs ------------------------------------------------------------------------------


def test_readers_that_hang_are_killed_at_the_end(monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.2)
    begun, begin = os.pipe()

    def hanging(number):
        os.write(begin, b".")
        for_ever(number)

    with ends_in_time(), reading(hanging, workers=2) as loader:
        processes = loader.processes
        assert os.read(begun, 1) + os.read(begun, 1) == b".."
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode == -signal.SIGKILL


def test_readers_that_hang_are_not_waited_for_for_ever(impatient):
    with ends_in_time(), reading(for_ever) as loader, pytest.raises(Stuck):
        next(loader)


def policy(workers):
    return {
        "dataloader_num_workers": workers,
        "dataloader_prefetch_factor": 1,
        "dataloader_shuffle": False,
    }


def test_the_records_that_do_not_come_are_named(impatient):
    train = {"train_batch_per_replica": 4, "train_policy": policy(1)}
    spec = {"train": train, "validation": {"enable": False}}

    class Hanging(Records):
        def __len__(self):
            return 8

    reader = Reader(Schedule(spec, 1, 1), Ranks(1, 2), 0, Hanging(for_ever), [], [], [])
    with ends_in_time(), closing(reader), pytest.raises(Unread) as caught:
        reader.batch()
    (finding,) = caught.value.findings
    assert (finding.id, finding.where) == ("ENGINE-LOADER-STUCK", "reading for rank 1")
    assert "waited for training record 1, training record 3, training record 5 ..." in str(finding)
    assert isinstance(caught.value, Failure) and caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("last", "patience", "expected"), [("dies", 30, "DIED"), ("hangs", 0.5, "STUCK.* question")]
)
def test_a_reader_of_questions_that_dies_or_hangs_is_a_finding(
    impatient, monkeypatch, last, patience, expected
):
    monkeypatch.setattr(module, "PATIENCE", patience)

    def encode(question):
        if question.id == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if question.id == "hangs":
            for_ever(2)
        return {"input_ids": torch.tensor([1])}

    groups = [[SimpleNamespace(id=name)] for name in ("first", last)]
    arriving = read_ahead.encoded(groups, encode, 1, 1)
    with ends_in_time(), closing(arriving), pytest.raises(Failure, match=f"LOADER-{expected}"):
        list(arriving)


def test_only_pixels_come_with_a_handle():
    """One for each tensor of 32 records would let a GPU wait for 0.1 s."""
    question = SimpleNamespace(id="q")
    inputs = {"input_ids": torch.arange(3), "pixel_values": torch.ones(2)}
    arriving = read_ahead.encoded([[question]] * 2, lambda _: inputs, 1, 1)
    with closing(arriving):
        ((sent,),) = [next(arriving.loader)]
        assert [type(part) for part in sent.values()] == [np.ndarray, torch.Tensor]
        _, got = next(arriving)
    assert all(got[name].equal(part) for name, part in inputs.items())


def test_questions_that_are_all_read_end_without_a_finding():
    with ends_in_time(), reading(large, workers=2) as loader:
        assert len(list(loader)) == 4
        with pytest.raises(StopIteration):
            next(loader)


# -- the process that they read for --------------------------------------------------------------

PROGRAM = """
import multiprocessing, os, sys, time
sys.path[:0] = {paths!r}
import loading
from cosmos_reason.engine.answer import read_ahead

def large(number):
    os.write(1, b"read\\n")
    return loading.large(number)

_, records, action = sys.argv
if action == "evaluation":
    encode = lambda question: {{"input_ids": loading.torch.from_numpy(large(question))}}
    arriving = read_ahead.encoded([[None]] * 8, encode, 2, 8)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    time.sleep(1000)
of = {{"large": large, "unheard_of": loading.unheard_of}}[records]
with loading.reading(of, workers=2) as loader:
    print(*(process.pid for process in loader.processes), flush=True)
    if records == "unheard_of":
        next(loader)
    time.sleep(1000)
"""


def started(*words):
    paths = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]
    program = PROGRAM.format(paths=paths)
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.integration
@pytest.mark.parametrize("what", ["training", "evaluation"])
def test_readers_end_with_a_process_that_is_killed_while_they_fill_its_pipe(what):
    process = started("large", what)
    # How many records are read before the numbers are printed is the readers' affair.
    pids = next((line for line in process.stdout if line != "read\n"), None)
    assert pids, process.stderr.read()
    readers = [int(word) for word in pids.split()]
    assert len(readers) == 2
    wait_until(lambda: all(map(sleeps, readers)))
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not any(map(neighbours.is_alive, readers)))
    finally:
        for reader in filter(neighbours.is_alive, readers):
            os.kill(reader, signal.SIGKILL)
    process.communicate()


@pytest.mark.integration
def test_a_process_ends_whatever_a_reader_raised():
    """The traceback holds the frames of the iterator, so that nobody asks the readers to end before
    the interpreter waits for them."""
    process = started("unheard_of", "training")
    readers = [int(word) for word in process.stdout.readline().split()]
    try:
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1 and "a decoder of its own mind" in said
    assert not any(map(neighbours.is_alive, readers))
