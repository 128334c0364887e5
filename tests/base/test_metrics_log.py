"""Reading metrics.jsonl, also while it is being written and after a kill."""

import math

from cosmos_reason.base import metrics_log


def test_reads_whole_lines_and_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics_log.read_on(path, 0) == ([], 0)
    path.write_text('{"step": 1, "train/loss": 0.5}\n{"step": 2, "train')
    rows, end = metrics_log.read_on(path, 0)
    assert rows == [{"step": 1, "train/loss": 0.5}] and end == 31
    path.write_text('{"step": 1, "train/loss": 0.5}\n{"step": 2}\n')
    assert metrics_log.read_on(path, end) == ([{"step": 2}], 43)


def test_the_last_line_of_an_ended_run_counts_when_it_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    assert metrics_log.read(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"step":')
    assert metrics_log.read(path) == [{"step": 1}]


def test_only_numbers_count(tmp_path):
    found = metrics_log.numbers(
        '{"step": 2.5, "time": NaN, "train/loss": NaN, "epoch": 1, "a": "b"}'
    )
    assert found.pop("epoch") == 1 and math.isnan(found.pop("train/loss")) and not found
    for line in ("", "[1]", "half a li", "[" * 100_000, '{"step": ' + "9" * 30 + "}"):
        assert metrics_log.numbers(line) == {}


def test_a_log_in_another_form_is_read_by_its_own_parser(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("step 1\nother\nstep 2\n")

    def parse(line):
        return {"step": int(line.split()[1])} if line.startswith("step") else None

    assert metrics_log.read(path, parse) == [{"step": 1}, {"step": 2}]
    assert metrics_log.read_on(path, 7, parse) == ([{"step": 2}], 20)
