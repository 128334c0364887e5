"""The report of an evaluation: it holds everything it shows, escapes what it shows, stays small."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from gap_site import KINDS, analyze, write_evaluation
from PIL import Image

from cosmos_reason.evaluation import comparison, gaps, grading
from cosmos_reason.evaluation.rows import Row, read
from cosmos_reason.pages import report, training_remarks


@pytest.fixture
def evaluation(tmp_path):
    return write_evaluation(tmp_path)


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
    lines = [json.dumps({"step": n, "train/loss": 3 / n}) for n in range(1, 500)]
    lines += [json.dumps({"step": 499, "val/avg_loss": 0.5}), '{"step": 500, "tra']
    metrics.write_text("\n".join(lines), encoding="utf-8")
    flags = ("--html", evaluation / "report.html", "--training-metrics", metrics)
    code, document = analyze(evaluation, *flags, "--baseline", evaluation / "results")
    assert document["result"]["html_examples"] == 8
    text = (evaluation / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert code == 0
    images = page.all("img")
    assert all(one["src"].startswith("data:image/jpeg;base64,") and one["alt"] for one in images)
    assert len(images) == 7  # every gap but the one whose clip does not decode
    assert "No picture: got" in text
    assert not page.all("link") and not page.all("iframe")
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert len(page.all("polyline")) == 2
    assert len([attrs for attrs in page.all("li") if attrs.get("class") == "card"]) == 8


def compared(before: list[Row], after: list[Row]) -> str:
    """Return the page of graded rows beside those of an earlier run."""
    for rows in (before, after):
        grading.grade(rows)
    pair, _ = comparison.compare(before, after)
    before = [old for old, _ in comparison.paired(before, after)[0]]
    wrong = gaps.find(after, {}, before)
    return report.page(after, wrong, gaps.summary(after, wrong), {}, before, pair)[0]


def asked(number: int, response: str | None, error: str | None = None) -> Row:
    clip = f"clip-{number // 10}.mp4"
    return Row(f"q{number}", f"v{number}", clip, "Is it on? Yes or no.", "yes", response, error)


def test_the_page_says_what_a_comparison_shows_and_over_what():
    """McNemar's p alone would call twenty questions about two clips a proof."""
    before = [asked(number, "no") for number in range(20)]
    after = [asked(number, "yes") for number in range(30)]
    text = " ".join(compared(before, after).split())
    assert "The earlier run reached 0.0% on the 20 of them that it was asked." in text
    told = "fixes 20 and breaks 0: not shown to be better: p &lt; 0.001, but p = 0.5 over clips"
    assert told in text
    assert "on the same questions." in " ".join(compared(before, after[:20]).split())


def test_a_question_that_failed_is_neither_newly_broken_nor_wrong_in_both():
    before = [asked(0, "yes"), asked(1, "yes"), asked(2, None, "boom"), asked(3, "no")]
    after = [asked(0, "no"), asked(1, None, "boom"), asked(2, "no"), asked(3, "no")]
    cards = [one for one in Page(compared(before, after)).all("li") if "data-status" in one]
    assert [one["data-status"] for one in cards] == ["broken", "", "", "still"]


def test_the_page_tells_of_losses_that_its_chart_leaves_out(evaluation):
    metrics = evaluation / "metrics.jsonl"
    metrics.write_text('{"step": 1, "train/loss": 2.0}\n{"step": 2, "train/loss": NaN}\n')
    analyze(evaluation, "--html", evaluation / "report.html", "--training-metrics", metrics)
    assert "NaN or infinite in 1 of 2 values" in (evaluation / "report.html").read_text()


def test_the_page_tells_what_a_training_left_out(evaluation):
    """As the record of its job says, or without a job what its run says."""
    metrics = evaluation / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "train/loss": 1.0}))
    lost = {"records": 36, "left_out": [{"record": 1}]}
    (evaluation / "left_out.json").write_text(json.dumps({"validation": lost, "training": lost}))
    told = training_remarks.beside(metrics)
    for name in ("training", "validation"):
        assert [one for one in told if f"1 of 36 {name} records were left out" in one]
    record = evaluation / "job.json"
    for broken in ("[]", json.dumps({"diagnosis": 3})):
        record.write_text(broken)
        assert training_remarks.beside(metrics) == []
    job = {"job_id": "train-1", "state": "ERROR", "reason": "no <b>last</b> step"}
    job["diagnosis"] = [{"id": "LOG-OOM", "message": "the GPU was full"}, "nothing of the kind"]
    record.write_text(json.dumps(job))
    analyze(evaluation, "--html", evaluation / "report.html", "--training-metrics", metrics)
    text = (evaluation / "report.html").read_text(encoding="utf-8")
    assert "train-1 ERROR: no &lt;b&gt;last&lt;/b&gt; step" in text
    assert "LOG-OOM: the GPU was full" in text and "of 36" not in text


def test_markup_in_data_stays_text(evaluation):
    evil = "<script>first()</script><img src=x onerror=second()>\" onmouseover='third()'"
    rows = [{"video_id": "way", "question": evil, "gt": evil, "response": evil + "?"}]
    (evaluation / "results/results.json").write_text(json.dumps(rows), encoding="utf-8")
    record = json.dumps({"model": evil, "prompt": {"system": evil}})
    (evaluation / "results/evaluation.json").write_text(record)
    analyze(evaluation, "--html", evaluation / "report.html")
    page = Page((evaluation / "report.html").read_text(encoding="utf-8"))
    assert len(page.all("script")) == 1
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert all(image["src"].startswith("data:") for image in page.all("img"))


def test_the_page_stays_below_five_megabytes(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (400, 1600, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "0.png", compress_level=0)  # JPEG cannot compress it
    paths = [tmp_path / f"{n}.png" for n in range(report.CARDS)]
    for path in paths[1:]:
        path.hardlink_to(paths[0])
    said = ("Say what.", "this", "that", None)
    rows = [Row(f"r{n}", f"v{n}", str(paths[n % len(paths)]), *said) for n in range(600)]
    grading.grade(rows)
    long = "<&\"'>" * 2000
    for n, row in enumerate(rows):
        row.question, row.gt, row.response = long + str(n), f"{long}{n}", long
    wrong = gaps.find(rows, {})
    assert len(wrong) == 600
    record = {"model": long, "prompt": {"system": long}}
    text, shown = report.page(rows, wrong, gaps.summary(rows, wrong), record, rows)
    assert shown == report.CARDS
    assert len(text.encode()) < 5_000_000


def test_the_sample_shows_every_kind_of_error(evaluation):
    rows, _ = read(evaluation / "results/results.json")
    many = [Row(f"m{n}", "v", None, "Is there a collision?", "no", "Yes", None) for n in range(500)]
    rows += many
    grading.grade(rows)
    shown = report.sample(gaps.find(rows, {}))
    assert len(shown) == report.CARDS
    assert {gap.error_type for gap in shown} == set(KINDS.values())
