"""The page of a job and its event file: what they show while it runs and after its end."""

import json
import re
import struct

import pytest
from launch_site import Site, ended
from support import run_script

from cosmos_reason.jobs import in_words, page, tensorboard, watch
from cosmos_reason.jobs.record import Job
from cosmos_reason.media import tfrecords

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    folder = site.submit()
    ended(folder)
    told = {"train/tokens_per_second": 900.0, "gpu/memory_gib": 61.5, "total_steps": 40}
    lines = [told | {"time": 1000.0 + n, "step": n, "train/loss": 3 / n} for n in range(1, 11)]
    lines.append({"time": 1010.5, "step": 10, "val/avg_loss": 0.75})
    lines.append({"time": 1011.0, "step": 11, "train/loss": float("nan")})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text(f"step 10 {EVIL} HF_TOKEN=hf_{'a' * 30}\n")
    return folder


def record(folder, **changes):
    table = json.loads((folder / "job.json").read_text()) | changes
    return Job.from_json(folder, table)


def test_a_running_job_renews_its_page_and_an_ended_one_stands_still(folder, tmp_path):
    running = record(folder, state="RUNNING", ended_at=None)
    page.write(running, tmp_path / "page.html", every=5)
    text = (tmp_path / "page.html").read_text()
    assert '<meta http-equiv="refresh" content="5">' in text and "step 11/40" in text
    for shown in ("0.7500", "900", "61.5", "0:00:29", "Loss", "GPU memory in GiB"):
        assert shown in text, shown
    assert EVIL not in text and "&lt;script&gt;" in text and "hf_aaaa" not in text
    assert not re.search(r"https?://|src=|<script", text), "one file, which asks nobody"
    page.write(record(folder), tmp_path / "page.html", every=5)
    text = (tmp_path / "page.html").read_text()
    assert "refresh" not in text and "renews itself" not in text


def test_report_and_watch_write_what_they_were_asked_for(folder, tmp_path):
    done = run_script("launch_job.py", "report", folder)
    assert done.returncode == 0 and done.stdout == f"{folder}/report.html\n", done.stderr
    assert (folder / "report.html").is_file()
    flags = ["--html", tmp_path / "watch.html", "--tensorboard", tmp_path / "events"]
    assert run_script("launch_job.py", "watch", folder, *flags).returncode in (0, 3)
    assert "step 11/40" in (tmp_path / "watch.html").read_text()
    (events,) = (tmp_path / "events").iterdir()
    with tfrecords.opened(events) as data:
        records = list(tfrecords.records(events, data))
        for one in records:
            tfrecords.check(one, data)
    assert len(records) == 12, "the version and eleven lines; nan alone is no event"


def test_a_number_is_written_as_tensorboard_reads_it(tmp_path):
    events = tensorboard.Events(tmp_path / "events", began=5.0)
    events.add({"time": 6.5, "step": 300, "train/loss": 0.5, "total_steps": 9})
    events.close()
    with tfrecords.opened(tmp_path / "events") as data:
        first, second = tfrecords.records(tmp_path / "events", data)
        assert b"brain.Event:2" in data[first.begin : first.end]
        written = data[second.begin : second.end]
    assert written.startswith(b"\x09" + struct.pack("<d", 6.5) + b"\x10\xac\x02")
    assert written.endswith(b"\x0a\x0atrain/loss\x15" + struct.pack("<f", 0.5))


def test_a_reinforcement_learning_is_drawn_by_its_rewards(folder, tmp_path):
    told = {"total_steps": 40, "train/loss": 0.01, "train/completion_length": 31.0}
    lines = [
        told | {"step": n, "train/reward_mean": n / 20, "train/kl": n / 100} for n in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page.write(record(folder, action="grpo"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    titles = re.findall("<h3>(.*?)</h3>", text)
    assert titles == [
        "Loss",
        "Mean reward",
        "Divergence from the start (KL), in nats a token",
        "Tokens of a completion",
    ]
    assert "0.500" in text and "0.100" in text


@pytest.mark.parametrize(
    "bar",
    ["(2/4): Calibrating:  33%|███▎      | 20/60 [00:01<00:02, 33.1it/s]",
     "comparing layers:   8% 3/36 [00:05<00:58,  1.70layer/s]"],
)  # fmt: skip
def test_a_job_without_metrics_tells_the_newest_bar_of_its_log(folder, tmp_path, bar, capsys):
    (folder / "metrics.jsonl").unlink()
    (folder / "log.txt").write_text(f"a: 10% 1/10 [00:01<\nloading\r{bar}\nWARNING: 3/4 of it\n")
    running = record(folder, state="RUNNING", ended_at=None)
    name, count = bar.split(":  ")[0], re.search(r"\d+/\d+ \[", bar)[0][:-2]
    assert f"RUNNING {name} {count}\n" in in_words.of_job(running)
    page.write(running, tmp_path / "page.html", every=5)
    assert f"{name} {count}" in (tmp_path / "page.html").read_text()
    moments = iter([(running, []), (running, []), (record(folder), [])])
    watch.show(moments, folder, as_json=False, every=0)
    assert capsys.readouterr().err.count(f"{name} {count}\n") == 1
