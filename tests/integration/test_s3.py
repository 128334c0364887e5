"""S3 against a real HTTP endpoint."""

import os

import pytest

from cosmos_reason import s3
from cosmos_reason.findings import Failure

pytestmark = pytest.mark.integration


def test_what_is_sent_comes_back_whole(bucket, tmp_path):
    sent = tmp_path / "20 MB"
    sent.write_bytes(os.urandom(20 << 20))  # above the size from which parts are sent apart
    progress = []
    s3.send(sent, s3.join(bucket, "a/b c/20 MB"), progress=progress.append)
    (found,) = s3.objects(s3.join(bucket, "a"))
    assert (found.name, found.size) == ("b c/20 MB", 20 << 20) and sum(progress) == 20 << 20
    assert s3.fetch(found).read_bytes() == sent.read_bytes()
    assert s3.head(found.uri).etag == found.etag and s3.head(bucket + "/a/none") is None


def test_an_object_is_fetched_once_per_content(bucket, tmp_path):
    source = tmp_path / "x.txt"
    source.write_text("one")
    uri = s3.join(bucket, "x.txt")
    s3.send(source, uri)
    first = s3.fetch(s3.head(uri))
    stamp = first.stat().st_mtime_ns
    assert s3.fetch(s3.head(uri)) == first and first.stat().st_mtime_ns == stamp
    source.write_text("two")
    s3.send(source, uri)
    assert s3.fetch(s3.head(uri)).read_text() == "two" and first.read_text() == "one"


def test_a_prefix_is_a_folder_and_not_the_start_of_a_name(bucket, tmp_path):
    source = tmp_path / "x"
    source.write_text("x")
    for name in ("train/a", "train2/b"):
        s3.send(source, s3.join(bucket, name))
    assert [found.name for found in s3.objects(s3.join(bucket, "train"))] == ["a"]


def test_failures_are_findings_without_secrets(bucket, monkeypatch):
    with pytest.raises(Failure, match="S3-NOT-FOUND") as caught:
        list(s3.objects("s3://no-such-bucket/x"))
    assert caught.value.exit_code == 3
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Failure, match="S3-UNREACHABLE") as caught:
        list(s3.objects(bucket))
    assert "canary" not in str(caught.value)
    for name in ("s3:/x", "s3://", "s3:///key", "s3://bucket//key"):
        with pytest.raises(Failure, match="S3-NAME"):
            s3.split(name)
