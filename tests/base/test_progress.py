"""What people see of long work, on a terminal and in a log file."""

import io
import sys
from concurrent.futures import ThreadPoolExecutor

from cosmos_reason.base import progress
from cosmos_reason.base.metrics_log import MetricsLog


class Terminal(io.StringIO):
    def isatty(self):
        return True


def stderr(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_bytes_are_a_bar_on_a_terminal_and_none_is_lost_between_threads(monkeypatch):
    terminal = stderr(monkeypatch, Terminal())
    copied = progress.of_bytes(4_000_000_000, "convert")
    copied(1_000_000_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copied, [1_000_000] * 3000))
    shown = terminal.getvalue()
    assert shown.startswith("\rconvert:   0%|") and "| 0.00/4.00G [" in shown
    assert "convert: 100%|" in shown and "| 4.00G/4.00G [" in shown and shown.endswith("\n")


def test_bytes_of_a_few_seconds_leave_no_line_in_a_log(monkeypatch):
    log_file = stderr(monkeypatch, io.StringIO())
    progress.of_bytes(10, "convert")(10)
    assert log_file.getvalue() == ""


def test_a_bar_that_cannot_be_written_over_is_lines(monkeypatch):
    log_file = stderr(monkeypatch, io.StringIO())
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    bar = progress.bar(3, "train", done=1)
    bar.update(1)
    bar.close()
    lines = log_file.getvalue().splitlines()
    assert [line.split(" [")[0] for line in lines[:2]] == ["train:  33% 1/3", "train:  67% 2/3"]
    assert not any("\r" in line for line in lines)


def test_lines_of_a_training_are_seldom_and_tell_its_end(monkeypatch, tmp_path):
    log_file = stderr(monkeypatch, io.StringIO())
    log = MetricsLog(tmp_path / "metrics.jsonl", "train", 100, 0)
    for step in range(1, 101):
        log.write({"step": step, "train/loss": 0.5, "train/tokens_per_second": 7.0})
    log.write({"step": 100, "val/avg_loss": 0.25})
    log.close()
    lines = log_file.getvalue().splitlines()
    assert len(lines) < 10
    assert lines[0].startswith("train:   0% 0/100")
    assert lines[-1].startswith("train: 100% 100/100") and "loss 0.50000, 7 tokens/s" in lines[-1]
    assert "validation at step 100: loss 0.25000" in lines


def test_a_bar_below_another_leaves_no_cursor_movements_in_a_log(monkeypatch):
    log_file = stderr(monkeypatch, io.StringIO())
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    with progress.bar(2, "evaluate") as whole, progress.bar(2, "batch", position=1) as batch:
        batch.update(1)
        whole.update(1)
    assert "evaluate:  50% 1/2 [" in log_file.getvalue() and "x1b" not in log_file.getvalue()
