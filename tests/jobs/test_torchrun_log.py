"""The last line of a log that torchrun ends: what a rank said, not what torchrun says about it."""

from dataclasses import replace

import pytest
from launch_site import Site

from cosmos_reason.jobs import evidence
from cosmos_reason.jobs import record as jobs

CAUSE = "error: ENGINE-RESUME-OTHER-RUN step_4: got a checkpoint of 4 steps"
LINE = "E1123 03:29:04.077000 7291 {}torch/distributed/elastic/multiprocessing/api.py:1002] failed"
FAILED = f"""\
{LINE}
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
run_with_transformers.py FAILED
------------------------------------------------------------
  exitcode  : 3 (pid: 7319)
============================================================
"""
ENDED = """\
W1123 03:29:12.471000 7341 torch/distributed/elastic/agent/server/api.py:753] Received 15
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 7341 got signal: 15
"""


@pytest.mark.parametrize(
    "text",
    [
        f"step 1\n{CAUSE}\n  fix: x\n" + FAILED.format(""),
        f"step 1\n{CAUSE}\n" + FAILED.format("/venv/") * 2,
        f"{ENDED}{CAUSE}\n",
        f"{CAUSE}\n{ENDED}{FAILED.format('')}",
        f"{CAUSE}\n{ENDED}\nDuring handling of the above exception, another exception occurred:\n"
        f"\n{ENDED}Call stack:\n  File 'x'\nsrun: error: n1: task 0: Exited with exit code 1\n",
        f"Traceback (most recent call last):\n  File 'x'\n{CAUSE}\n",
    ],
)
def test_what_a_rank_said_last(tmp_path, monkeypatch, text):
    site = Site(tmp_path, monkeypatch)
    folder = site.submit(exit=3, model="")
    (folder / jobs.LOG).write_text(text)
    job = replace(jobs.Job.load(folder), command=["python", "-m", "torch.distributed.run"])
    assert evidence._last_line(job) == f"log ends: {CAUSE}"
