"""Gap analysis: which rows are gaps and why, the table for a collection round, and the page made from them."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from support import run_script

from cosmos_reason import gaps, report, results
from cosmos_reason.findings import Failure

ROWS = [
    # id, question, ground truth, response
    ("hit-yes", "Is there a collision?", "no", "Yes"),
    ("hit-no", "Is there a collision?", "yes", "no"),
    ("hit-right", "Is there a collision?", "yes", "Yes."),
    ("hit-vague", "Is there a collision?", "yes", "maybe"),
    ("turn", "Which way?\n(A) left\n(B) right", "A", "B"),
    ("way", "Which way does it go?", "left", "right"),
    ("told", "Describe the video.", "A red car turns left at the crossing.", "A dog."),
    ("counted", "How many cars?", "3", "4"),
    ("broken", "Is there a collision?", "no", None),
]
KINDS = {
    "hit-yes": "false_positive",
    "hit-no": "false_negative",
    "hit-vague": "unparseable",
    "turn": "wrong_class",
    "way": "wrong_class",
    "told": "wrong_answer",
    "counted": "wrong_answer",
    "broken": "failed",
}


def clip(path: Path, size=(96, 64), frames: int = 12) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            picture = np.full((size[1], size[0], 3), 20 * number % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture
def evaluation(tmp_path) -> Path:
    """A results folder, annotations and two clips; `data/broken.mp4` is no video."""
    clip(tmp_path / "data/a.mp4")
    clip(tmp_path / "data/b.mp4", size=(64, 96))
    (tmp_path / "data/broken.mp4").write_bytes(b"no video at all")
    media = {"turn": "b.mp4", "broken": "broken.mp4"}
    records = [
        {"id": name, "video": media.get(name, "a.mp4"),
         "conversations": [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": gt}]}
        for name, question, gt, _ in ROWS
    ]  # fmt: skip
    rows = [{"video_id": name, "question": question, "gt": gt, "response": said} for name, question, gt, said in ROWS]
    rows[-1]["error"] = "the clip does not decode"
    (tmp_path / "results").mkdir()
    (tmp_path / "annotations.json").write_text(json.dumps(records), encoding="utf-8")
    (tmp_path / "results/results.json").write_text(json.dumps(rows), encoding="utf-8")
    return tmp_path


def analyze(folder: Path, *more):
    """Run the script on the evaluation in `folder`; `more` are flags with values that add to or replace the usual."""
    usual = {
        "--results-dir": folder / "results",
        "--gaps-parquet": folder / "gaps.parquet",
        "--kpi-ann-path": folder / "annotations.json",
        "--kpi-media-path": folder / "data",
    }
    flags = usual | dict(zip(more[::2], more[1::2], strict=True))
    done = run_script("analyze_gaps.py", *(word for pair in flags.items() for word in pair), "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_scoring_suggests_this_analysis_with_paths_that_work(evaluation):
    record = {"annotations": str(evaluation / "annotations.json"), "media_dir": str(evaluation / "data")}
    (evaluation / "results/evaluation.json").write_text(json.dumps(record), encoding="utf-8")
    scored = run_script("score_predictions.py", evaluation / "results", "--tolerance", "0.5", cwd=evaluation)
    (command,) = (line for line in scored.stderr.splitlines() if line.startswith("next: "))
    words = [sys.executable, *shlex.split(command.removeprefix("next: "))]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert (evaluation / "results/report.html").is_file()
    found = parquet.read_table(evaluation / "results/gaps.parquet")["annotation_id"].to_pylist()
    assert set(found) == KINDS.keys() - {"counted"}  # 4 of 3 is within the tolerance, which the command carries on
    (evaluation / "annotations.json").unlink()
    assert "next:" not in run_script("score_predictions.py", evaluation / "results").stderr


def test_every_wrong_row_is_a_gap_of_the_right_kind(evaluation):
    code, document = analyze(evaluation)
    assert code == 0
    table = parquet.read_table(evaluation / "gaps.parquet")
    assert table.column_names[:3] == ["video_id", "question", "ground_truth"]
    lines = table.to_pylist()
    assert {line["annotation_id"]: line["error_type"] for line in lines} == KINDS
    assert lines[0]["video_id"] == str(evaluation / "data/a.mp4")
    assert next(line for line in lines if line["id"] == "turn")["confusion"] == "A -> B"
    assert {(line["clip_gaps"], line["clip_rows"]) for line in lines if line["video_id"].endswith("a.mp4")} == {(6, 7)}
    result = document["result"]
    assert (result["rows"], result["gaps"]) == (9, 8)
    assert sum(result["error_types"].values()) == 8
    assert {"type": "direction", "class": "left", "rows": 1, "gaps": 1, "collect": 10} in result["next_data"]


def test_no_gaps_is_an_empty_table_and_a_page(evaluation):
    rows = [{"video_id": name, "question": q, "gt": gt, "response": gt} for name, q, gt, _ in ROWS]
    (evaluation / "results/results.json").write_text(json.dumps(rows), encoding="utf-8")
    code, document = analyze(evaluation, "--html", evaluation / "report.html")
    assert (code, document["result"]["gaps"]) == (0, 0)
    table = parquet.read_table(evaluation / "gaps.parquet")
    assert table.num_rows == 0
    assert str(table.schema.field("video_id").type) == "string"
    assert "100.0%" in (evaluation / "report.html").read_text(encoding="utf-8")


def test_ids_the_annotations_do_not_know_are_named_and_kept(evaluation):
    rows = [{"video_id": "stranger", "question": "Is it?", "gt": "yes", "response": "no"}]
    (evaluation / "results/results.json").write_text(json.dumps(rows), encoding="utf-8")
    code, document = analyze(evaluation)
    assert code == 1
    assert [f["id"] for f in document["findings"]] == ["EVAL-VIDEO-UNKNOWN"]
    assert document["findings"][0]["data"]["record_ids"] == ["stranger"]
    assert parquet.read_table(evaluation / "gaps.parquet").column("video_id").to_pylist() == ["stranger"]


def test_a_media_path_that_is_none_is_an_error_and_media_that_are_not_there_are_named(evaluation):
    code, document = analyze(evaluation, "--kpi-media-path", evaluation / "nope")
    assert (code, document["findings"][0]["id"]) == (2, "EVAL-MEDIA-PATH")
    assert not (evaluation / "gaps.parquet").exists()
    code, document = analyze(evaluation, "--kpi-media-path", evaluation)
    assert (code, [finding["id"] for finding in document["findings"]]) == (0, ["EVAL-ROW-FAILED", "EVAL-MEDIA-MISSING"])
    assert document["findings"][1]["data"]["count"] == len(ROWS)
    assert parquet.read_table(evaluation / "gaps.parquet").num_rows == len(KINDS)


def test_when_the_page_cannot_be_written_there_is_no_table_either(evaluation):
    assert analyze(evaluation, "--html", "/dev/null/report.html")[0] == 3
    assert not (evaluation / "gaps.parquet").exists()
    page = evaluation / "report.html"
    assert analyze(evaluation, "--html", page, "--gaps-parquet", "/dev/null/g.parquet")[0] == 3
    assert not (evaluation / "report.html").exists()


def test_what_is_wrong_with_the_baseline_is_told_and_a_page_is_a_local_file(evaluation):
    assert analyze(evaluation, "--html", "s3://bkt/x.html")[0] == 2
    rows = json.loads((evaluation / "results/results.json").read_text(encoding="utf-8"))
    base = [row | {"id": row["video_id"]} for row in rows]
    base[1]["question"], base[2]["id"] = "Another?", base[0]["id"]
    (evaluation / "base").mkdir()
    (evaluation / "base/results.json").write_text(json.dumps(base), encoding="utf-8")
    code, document = analyze(evaluation, "--baseline", evaluation / "base")
    found = {finding["id"] for finding in document["findings"]}
    assert code == 1 and {"EVAL-ID-DUPLICATE", "EVAL-COMPARE-OTHER", "EVAL-COMPARE-PARTIAL"} <= found


def test_a_tolerance_counts_in_the_gaps_too(evaluation):
    gaps_of = [analyze(evaluation, *flags)[1]["result"]["gaps"] for flags in ((), ("--tolerance", "0.5"))]
    assert gaps_of == [8, 7]


def test_several_results_below_the_folder_must_be_told_apart(evaluation):
    shutil.copytree(evaluation / "results", evaluation / "results/epoch_2")
    code, document = analyze(evaluation)
    assert (code, document["findings"][0]["id"]) == (2, "EVAL-RESULTS-SEVERAL")
    assert not (evaluation / "gaps.parquet").exists()


@pytest.mark.parametrize("missing", ["--kpi-ann-path", "--baseline", "--training-metrics"])
def test_a_missing_file_is_one_finding_and_writes_nothing(evaluation, missing):
    code, document = analyze(evaluation, missing, evaluation / "nowhere", "--html", evaluation / "report.html")
    assert code == 2
    assert len(document["findings"]) == 1
    assert not (evaluation / "report.html").exists()
    assert not (evaluation / "gaps.parquet").exists()


@given(st.integers(0, 9), st.sampled_from(["red", "BLUE", "green"]))
def test_questions_that_differ_in_numbers_case_and_options_are_one_cluster(number, word):
    asked = f"What happens at second {number}{number}?\n(A) {word}\n(B) nothing"
    assert gaps.cluster(asked) == "what happens at second #?"
    assert gaps.cluster(f"what happens at second {number}? A. {word} B. x") == "what happens at second #?"


# -- the page ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_the_page_holds_everything_it_shows(evaluation):
    metrics = evaluation / "metrics.jsonl"
    lines = [{"step": n, "train/loss": 3 / n} for n in range(1, 500)] + [{"step": 499, "val/avg_loss": 0.5}]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 500, "tra', encoding="utf-8")
    baseline = evaluation / "results"
    code, document = analyze(
        evaluation, "--html", evaluation / "report.html", "--training-metrics", metrics, "--baseline", baseline
    )
    assert document["result"]["html_examples"] == 8
    text = (evaluation / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert code == 0
    assert all(image["src"].startswith("data:image/jpeg;base64,") and image["alt"] for image in page.all("img"))
    assert len(page.all("img")) == 7  # every gap but the one whose clip does not decode
    assert "No picture: got" in text
    assert not page.all("link") and not page.all("iframe")
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert len(page.all("polyline")) == 2
    assert len([attrs for attrs in page.all("li") if attrs.get("class") == "card"]) == 8


def test_markup_in_data_stays_text(evaluation):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover='alert(3)'"
    rows = [{"video_id": "way", "question": evil, "gt": evil, "response": evil + "?"}]
    (evaluation / "results/results.json").write_text(json.dumps(rows), encoding="utf-8")
    (evaluation / "results/evaluation.json").write_text(json.dumps({"model": evil, "prompt": {"system": evil}}))
    analyze(evaluation, "--html", evaluation / "report.html")
    page = Page((evaluation / "report.html").read_text(encoding="utf-8"))
    assert len(page.all("script")) == 1
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert all(image["src"].startswith("data:") for image in page.all("img"))


def test_the_page_stays_below_five_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for n in range(report.CARDS):
        path = tmp_path / f"{n}.png"

        Image.fromarray(rng.integers(0, 255, (400, 1600, 3), np.uint8)).save(path)  # noise: JPEG cannot compress it
        paths.append(str(path))
    long = "<&\"'>" * 2000
    rows = [
        results.Row(f"r{n}", f"v{n}", paths[n % len(paths)], long + str(n), f"{long}{n}", long, None)
        for n in range(2000)
    ]
    results.judge(rows)
    wrong = gaps.find(rows, {})
    record = {"model": long, "prompt": {"system": long}}
    text, shown = report.page(rows, wrong, gaps.summary(rows, wrong), record, rows)
    assert shown == report.CARDS
    assert len(text.encode()) < 5_000_000


def test_the_sample_shows_every_kind_of_error(evaluation):
    rows, _ = results.read(evaluation / "results/results.json")
    many = [results.Row(f"m{n}", "v", None, "Is there a collision?", "no", "Yes", None) for n in range(500)]
    rows += many
    results.judge(rows)
    shown = report.sample(gaps.find(rows, {}))
    assert len(shown) == report.CARDS
    assert {gap.error_type for gap in shown} == set(KINDS.values())


@given(st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(highest):
    marks = report.ticks(highest)
    assert marks[0] == 0
    assert 3 <= len(marks) <= 6
    assert marks[-1] <= highest * (1 + 1e-6)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), min_size=1, max_size=2000))
def test_thinned_curves_keep_the_mean(points):
    thin = report.thinned(points)
    assert len(thin) <= report.CURVE_POINTS
    assert min(loss for _, loss in points) - 1e-6 <= min(loss for _, loss in thin)
    assert max(loss for _, loss in thin) <= max(loss for _, loss in points) + 1e-6


def test_a_curve_with_a_broken_line_inside_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 2}\nnonsense\n{"step": 2, "train/loss": 1}\n', encoding="utf-8")
    with pytest.raises(Failure, match="EVAL-CURVE-LINE"):
        report.read_curve(path)
    path.write_text('{"step": 1, "train/loss": NaN}\n{"step": 2, "train/loss": 1}\n[1]\n', encoding="utf-8")
    assert report.read_curve(path)["train/loss"] == [(2.0, 1.0)]
