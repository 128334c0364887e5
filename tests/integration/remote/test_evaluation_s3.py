"""Evaluation and gap analysis with everything in a bucket: only what is named is fetched."""

import json

import pytest
from clip_files import write_clip
from gap_site import KINDS, ROWS
from pyarrow import parquet
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.samples import Media
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.remote import s3

pytestmark = pytest.mark.integration


@pytest.fixture
def evaluation(bucket, tmp_path):
    """Results, annotations and clips below the bucket; nothing of it is left here."""
    records, rows = [], []
    for name, question, gt, said in ROWS:
        turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": gt}]
        records.append({"id": name, "video": f"{name}.mp4", "conversations": turns})
        rows.append({"video_id": name, "question": question, "gt": gt, "response": said})
        if name != "told":
            s3.send(write_clip(tmp_path / "clip.mp4"), f"{bucket}/clips/{name}.mp4")
    rows[-1]["error"] = "the clip does not decode"
    files = {
        "run/results.json": rows,
        "run/evaluation.json": {"model": "the-model"},
        "annotations.json": records,
    }
    for name, content in files.items():
        (tmp_path / "file").write_text(json.dumps(content), encoding="utf-8")
        s3.send(tmp_path / "file", f"{bucket}/{name}")
    return bucket


def analyze(bucket, tmp_path, *more):
    flags = {
        "--results-dir": f"{bucket}/run",
        "--gaps-parquet": f"{bucket}/out/gaps.parquet",
        "--kpi-ann-path": f"{bucket}/annotations.json",
        "--kpi-media-path": f"{bucket}/clips",
        "--html": tmp_path / "report.html",
    } | dict(zip(more[::2], more[1::2], strict=True))
    done = run_script(
        "analyze_gaps.py", *(word for pair in flags.items() for word in pair), "--json"
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.promise
def test_everything_in_a_bucket(evaluation, tmp_path):
    code, document = analyze(evaluation, tmp_path)
    assert (code, [finding["id"] for finding in document["findings"]]) == (0, ["EVAL-ROW-FAILED"])
    lines = parquet.read_table(s3.local(f"{evaluation}/out/gaps.parquet")).to_pylist()
    assert {line["annotation_id"]: line["error_type"] for line in lines} == KINDS
    assert lines[0]["video_id"] == f"{evaluation}/clips/{ROWS[0][0]}.mp4"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        page.count("data:image/jpeg;base64,") == len(KINDS) - 1
    )  # one clip is not there, and the page says so
    assert "got no such object" in page and "the-model" in page


@pytest.mark.parametrize(
    ("flag", "name", "code", "finding"),
    [
        ("--results-dir", "nowhere", 3, "S3-NOT-FOUND"),
        ("--kpi-ann-path", "nowhere.json", 2, "FILE-MISSING"),
        ("--kpi-media-path", "nowhere", 2, "EVAL-MEDIA-PATH"),
    ],
)
def test_a_name_without_an_object_is_one_finding_and_writes_nothing(
    evaluation, tmp_path, flag, name, code, finding
):
    ended, document = analyze(evaluation, tmp_path, flag, f"{evaluation}/{name}")
    assert (ended, document["findings"][-1]["id"]) == (code, finding)
    assert s3.head(f"{evaluation}/out/gaps.parquet") is None
    assert not (tmp_path / "report.html").exists()


def test_a_table_that_cannot_be_sent_leaves_no_page(evaluation, tmp_path):
    code, document = analyze(
        evaluation, tmp_path, "--gaps-parquet", "s3://no-such-bucket-here/gaps.parquet"
    )
    assert (code, document["findings"][0]["id"][:3]) == (3, "S3-")
    assert not (tmp_path / "report.html").exists()


def test_an_evaluation_fetches_only_the_clips_it_asks_about(evaluation, tmp_path):
    sampler = Sampler(f"{evaluation}/clips", VisionOptions(nframes=4), patch_size=16)
    assert len(sampler.load(Media("video", "turn.mp4")).frames) == 4
    assert [path.name for path in s3.cache().rglob("*.mp4")] == ["turn.mp4"]
    with pytest.raises(Failure, match="FILE-MISSING") as failure:
        sampler.load(Media("video", "told.mp4"))
    assert failure.value.exit_code == 2  # a row with an error, not the end of the evaluation
    with pytest.raises(Failure, match="DATA-MEDIA-ESCAPE"):
        sampler.load(Media("video", "../other.mp4"))
