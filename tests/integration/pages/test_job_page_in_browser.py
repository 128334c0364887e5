"""The page of a running job in a real headless Chromium, and its event file as TensorBoard reads
it."""

import dataclasses
import json
import subprocess
import sys

import oracles
import pytest

from cosmos_reason.jobs import page, tensorboard
from cosmos_reason.jobs.record import Job

pytestmark = pytest.mark.integration

TOLD = {"total_steps": 60, "train/tokens_per_second": 900.0, "gpu/memory_gib": 61.5}
LINES = [TOLD | {"time": 1000.0 + n, "step": n, "train/loss": 3 / n} for n in range(1, 31)]
READ = """import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
rows = [[one.step, one.wall_time, one.value] for one in found.Scalars("train/loss")]
print(json.dumps({"tags": found.Tags()["scalars"], "rows": rows}))
"""


def job(folder, lines, state="RUNNING"):
    """A record of a training, with what it has told so far."""
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text("train: 50% 30/60\n<b>bold</b>\n")
    return Job(
        folder=folder, job_id=folder.name, action="train", engine="transformers",
        platform="local", state=state, created_at="2026-01-01T00:00:00Z",
        spec={"path": str(folder / "spec.toml"), "sha256": None, "source": None,
              "source_sha256": None},
        working_dir=str(folder), image=None, options={},
        resources={"nodes": 1, "gpus_per_node": 1, "gpu_ids": ["0"]}, inputs=[],
        outputs={"output_dir": "/results"}, platform_ref={},
    )  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_shows_the_newest_state_without_being_asked(browser, tmp_path, width, scheme):
    folder, path = tmp_path / "train-1", tmp_path / "page.html"
    page.write(job(folder, LINES[:10]), path, every=1)
    browser.opens_offline(path, width, scheme)
    assert "10/60" in browser.ask("document.querySelector('h1').textContent")
    assert browser.ask("document.querySelectorAll('polyline').length") == 3
    assert "<b>bold</b>" in browser.ask("document.querySelector('pre').textContent")
    page.write(job(folder, LINES), path, every=1)
    while browser.receive().get("method") != "Page.loadEventFired":
        pass  # the page reads itself again
    assert "30/60" in browser.ask("document.querySelector('h1').textContent")
    browser.screenshot(tmp_path / "page.png")
    assert not browser.problems, browser.problems


def test_a_reason_without_a_space_keeps_to_the_width(browser, tmp_path):
    ended = dataclasses.replace(job(tmp_path / "train-1", LINES, "ERROR"), reason="/deep" * 300)
    page.write(ended, tmp_path / "page.html")
    browser.opens_offline(tmp_path / "page.html", 390)


def test_tensorboard_itself_reads_the_event_file(tmp_path):
    events = tensorboard.Events(tmp_path / "events" / "events.out.tfevents.1.train-1", 999.0)
    for line in LINES:
        events.add(line)
    events.close()
    package = oracles.installed("tensorboard-2.21.0", ["tensorboard==2.21.0", "setuptools==80.9.0"])
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "events"], capture_output=True, text=True,
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert set(found["tags"]) == {"train/loss", "train/tokens_per_second", "gpu/memory_gib"}
    expected = [[one["step"], one["time"], pytest.approx(one["train/loss"])] for one in LINES]
    assert found["rows"] == expected
