"""What a job has told of itself so far: metrics.jsonl and the end of log.txt."""

import json

from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.jobs import progress
from cosmos_reason.jobs import record as jobs

LINES = st.lists(
    st.dictionaries(st.sampled_from(["step", "train/loss"]), st.integers(0, 9), min_size=1),
    max_size=8,
)


@given(lines=LINES, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_metrics_read_in_pieces_equal_metrics_read_at_once(tmp_path_factory, lines, cuts):
    folder = tmp_path_factory.mktemp("job")
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    seen, offset = [], ("", 0)
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        (folder / jobs.METRICS).write_bytes(data[:cut])
        new, offset = progress.read_metrics(folder, offset)
        seen += new
    assert seen == lines


def test_progress_is_the_newest_of_each_and_survives_a_cut_line(tmp_path):
    folder = tmp_path
    assert progress.newest(folder) == {}
    lines = [{"step": n, "total_steps": 5000, "train/loss": 1 / (n + 1)} for n in range(5000)]
    lines.insert(4990, {"step": 4989, "val/avg_loss": 0.5})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / jobs.METRICS).write_text(text + '{"step": 5000, "total_st')
    assert progress.newest(folder) == {
        "step": 4999,
        "total_steps": 5000,
        "train/loss": 1 / 5000,
        "val/avg_loss": 0.5,
    }


def test_a_reused_job_folder_holds_the_metrics_of_one_run_and_a_resumed_run_goes_on(tmp_path):
    from cosmos_reason.base.metrics_log import MetricsLog

    for done, steps in ((0, [1, 2]), (0, [1]), (1, [2])):
        log = MetricsLog(tmp_path / jobs.METRICS, "train", 2, done)
        for step in steps:
            log.write(
                {"step": step, "total_steps": 2, "train/loss": 1.0, "train/tokens_per_second": 1.0}
            )
        log.close()
        if done == 0 and steps == [1]:
            assert [line["step"] for line in progress.read_metrics(tmp_path)[0]] == [1]
    assert [line["step"] for line in progress.read_metrics(tmp_path)[0]] == [1, 2]


def test_log_tail_shows_what_a_terminal_would(tmp_path):
    folder = tmp_path
    assert progress.log_tail(folder, 3) == []
    (folder / jobs.LOG).write_bytes(b"first\n10%\r50%\r100%\n\xff\nlast\n")
    assert progress.log_tail(folder, 3) == ["100%", "\ufffd", "last"]


def test_an_evaluation_counts_questions(tmp_path):
    metrics = {"step": 12, "total_steps": 40}
    trained, asked = tmp_path / "train-1", tmp_path / "evaluate-1"
    asked.mkdir()
    assert progress.position(trained, metrics) == "step 12/40"
    assert progress.position(tmp_path / "quantize-1", metrics) == "step 12/40"
    assert progress.position(tmp_path / "inference-1", metrics) == "12/40 questions"
    assert progress.position(asked, metrics) == "12/40 questions"
    for number in (2, 3):
        (asked / f"metrics-{number}-3.jsonl").touch()
    assert progress.position(asked, metrics) == "12/40 questions of the first of 3 processes"
    assert (progress.unit(trained), progress.unit(asked)) == ("step", "question")
