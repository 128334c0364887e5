"""Whatever stands in an annotation file or a clip ends as findings: never a traceback, never a
hang."""

import json
import os
import random
import shlex
import time
from functools import partial

import jsonschema
import pytest
from clip_files import check, record, write_clip, write_dataset, write_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import run_script

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.data import checks as dataset_checks
from cosmos_reason.data import clip_files, overlap, whole_survey
from cosmos_reason.data import facts as dataset_facts
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.sampling import VisionOptions

EIGHT = VisionOptions(nframes=8)


def examined(dataset, decode="none"):
    for number, path in clip_files.files(dataset).items():
        yield number, clip_checks.examine(path, decode, EIGHT)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


ODD_TEXT = st.sampled_from(
    ["", "r1", "\ud800", "\0", "a" * 300, "/etc/passwd", "..", "https://x/y.mp4", "é", "<video>"]
)
ODD = st.none() | st.booleans() | st.floats() | st.integers() | ODD_TEXT
ODD |= st.lists(ODD_TEXT, max_size=3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["id", "video", "image", "video_fps", "value"]), ODD), max_size=5
    )
)
def test_odd_values_end_as_findings_and_facts(tmp_path, changes):
    records = [record(number) for number in range(5)]
    for changed, (field, value) in zip(records, changes, strict=False):
        (changed["conversations"][1] if field == "value" else changed)[field] = value
    (tmp_path / "a.json").write_text(json.dumps(records))
    found = whole_survey.take(
        tmp_path / "a.json", str(tmp_path), "", partial(examined, decode="sampled")
    )
    overlap.check(found, found)
    facts = dataset_facts.write_facts(found, tmp_path / "facts" / "facts.json")
    jsonschema.validate(facts, bundle.schema("dataset_facts"))
    assert dataset_checks.findings(found, evaluation=True)


def original_files():
    """A small annotation file of every format, as bytes."""
    turns = record(0)["conversations"]
    parts = [
        {"type": "video_url", "video_url": {"url": "clips/0.mp4"}},
        {"type": "text", "text": "Bright?"},
    ]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Yes"}]
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    daft = {"id": 7, "video_id": "clips/0.mp4", "question": "Bright?", "answer": "No"}
    daft["reasoning"] = "It is grey."
    files = [
        [record(0), record(1, video_fps=8.0, videos=["clips/1.mp4"], tags=["night"])],
        {"annotations": [record(2)], "info": {"n": 1}},
        [{"id": "j", "video": "clips/0.mp4", "conversations": json.dumps(turns)}],
        [{"id": "o", "messages": messages}],
        [{"video": "clips/0.mp4", "qa_pairs": [pair, pair]}],
        {"format": "tao-vl-reason-v1.0", "metadata": {}, "media_root": ".", "items": [daft]},
        {"version": "1", "samples": [{"id": "c", "conversation": "c.json", "media": "0.mp4"}]},
    ]
    return [
        *(json.dumps(file, indent=1).encode() for file in files),
        b"\n".join(json.dumps(r).encode() for r in files[0]),
    ]


NOISE = [b"", b"{", b'"', b"]", b"\\", b"\xff", b"0", b",null", b"\\ud800", b"NaN", b"\xef\xbb\xbf"]
NOISE += [b"\0", b"e9", b'":', b"-"]


def test_mutated_files_of_every_format_end_as_findings_and_facts(tmp_path):
    dice, end = random.Random(5), time.monotonic() + 3
    originals, read = original_files(), 0
    schema = jsonschema.Draft202012Validator(bundle.schema("dataset_facts"))
    for turn in range(4000):
        content = bytearray(originals[turn % len(originals)])
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(len(content))
            content[place : place + dice.randint(0, 4)] = dice.choice(
                [*NOISE, bytes([dice.randrange(256)])]
            )
        (tmp_path / "a.json").write_bytes(content)
        try:
            found = whole_survey.take(tmp_path / "a.json", None, "", examined)
        except Failure as failure:
            assert failure.exit_code == 2, content
            continue
        schema.validate(dataset_facts.facts(found))
        read += 1
        if time.monotonic() > end:
            break
    assert read > 5


def test_mutated_clips_are_reports(tmp_path):
    dice = random.Random(6)
    content = write_clip(tmp_path / "whole.mp4", frames=12).read_bytes()
    paths = []
    for number in range(60):
        changed = bytearray(content)
        for _ in range(dice.choice([1, 20, 300])):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(changed[: dice.choice([len(changed), dice.randrange(len(changed))])])
    for _, report in clip_checks.examine_all(
        dict(enumerate(paths)), "sampled", EIGHT, 5.0, clip_checks.Cache()
    ):
        assert report.facts or report.check.startswith("DATA-MEDIA-")


def test_special_files_as_annotations(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("fifo.json", "none.json"):
        assert "FILE-MISSING" in check(tmp_path / name, expect=2)[1]
    assert "DATA-NOT-BUILT" in check(tmp_path / "folder.json", expect=2)[1]


def test_a_table_is_told_how_to_become_a_dataset(tmp_path):
    for number in range(2):
        write_clip(tmp_path / "my clips" / f"{number}.mp4", frames=8)
    (tmp_path / "my clips" / "labels.csv").write_text("video,label\n0.mp4,Yes\n1.mp4,No\n")
    for source in (tmp_path / "my clips", tmp_path / "my clips" / "labels.csv"):
        _, findings = check(source, expect=2)
        assert "the question is a proposal" in findings["DATA-NOT-BUILT"]["message"]
        script, *args = shlex.split(findings["DATA-NOT-BUILT"]["fix"])
        assert args[-2] == "--question"  # which a bare label does not tell
        done = run_script(script, *args, "--force", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not check(tmp_path / "data" / "train")[1]


def test_a_model_with_a_broken_tokenizer_is_named(tmp_path):
    write_dataset(tmp_path / "d", [record(0)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text('{"model": ')
    path = write_spec(tmp_path / "spec.toml", policy__model_name_or_path=str(tmp_path / "model"))
    assert "CKPT-TOKENIZER" in check(tmp_path / "d", "--spec", path, expect=2)[1]
