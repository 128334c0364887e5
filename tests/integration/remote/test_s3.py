"""S3 against a real HTTP endpoint."""

import json
import os
import shutil

import pytest
from omni_layouts import as_export
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.demo import tiny_omni
from cosmos_reason.remote import s3

pytestmark = pytest.mark.integration


def test_what_is_sent_comes_back_whole(bucket, tmp_path):
    sent = tmp_path / "20 MB"
    sent.write_bytes(os.urandom(20 << 20))  # above the size from which parts are sent apart
    progress = []
    s3.send(sent, s3.join(bucket, "a/b c/20 MB"), copied=progress.append)
    (found,) = s3.objects(s3.join(bucket, "a"))
    assert (found.name, found.size) == ("b c/20 MB", 20 << 20) and sum(progress) == 20 << 20
    assert s3.fetch(found).read_bytes() == sent.read_bytes()
    assert s3.head(found.uri).etag == found.etag and s3.head(bucket + "/a/none") is None
    assert s3.is_same(sent, found.uri) and not s3.is_same(sent, bucket + "/a/none")
    with open(sent, "r+b") as changed:
        changed.write(b"other")
    assert not s3.is_same(sent, found.uri)


def test_an_object_of_another_tool_is_known_by_its_etag(bucket, tmp_path):
    content = os.urandom(1000)
    (tmp_path / "x").write_bytes(content)
    name, key = s3.split(s3.join(bucket, "x"))
    s3.client().put_object(Bucket=name, Key=key, Body=content, ChecksumAlgorithm="CRC32")
    assert s3.is_same(tmp_path / "x", s3.join(bucket, "x"))
    s3.client().put_object(Bucket=name, Key=key, Body=content[::-1], ChecksumAlgorithm="CRC32")
    assert not s3.is_same(tmp_path / "x", s3.join(bucket, "x"))


@pytest.fixture
def omni_in_s3(bucket, tmp_path):
    """An Omni checkpoint with parts that no conversion needs, and its s3:// name."""
    tiny_omni.build(tmp_path / "omni", seed=1, text="left right yes no")
    (tmp_path / "omni" / "vae").mkdir()
    (tmp_path / "omni" / "vae" / "weights.safetensors").write_bytes(b"large and not needed")
    for path in (tmp_path / "omni").rglob("*"):
        if path.is_file():
            s3.send(path, s3.join(bucket, f"models/nano/{path.relative_to(tmp_path / 'omni')}"))
    return s3.join(bucket, "models/nano")


def convert(source, output, *flags):
    done = run_script("prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", source,
                      "--output-path", output, "--json", *flags)  # fmt: skip
    return done, json.loads(done.stdout)


def test_a_conversion_takes_what_it_needs_and_once(omni_in_s3, tmp_path):
    done, said = convert(omni_in_s3, tmp_path / "out")
    assert done.returncode == 0 and said["result"]["status"] == "converted", done.stdout
    assert omni_in_s3.removeprefix("s3://") in said["result"]["source"]["path"]
    fetched = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()
    }
    assert fetched and not [path for path in fetched if "weights.safetensors" in path.name]
    assert convert(omni_in_s3 + "/", tmp_path / "out")[1]["result"]["status"] == "skipped_existing"
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in fetched.items())


def test_a_donor_in_s3_gives_only_what_is_missing(omni_in_s3, bucket, tmp_path):
    shutil.rmtree(tmp_path / "omni" / "vae")
    export = as_export(tmp_path / "omni", tmp_path / "export", bare=True)
    for path in export.glob("*.*"):
        s3.send(path, s3.join(bucket, f"models/export/{path.name}"))
    done, said = convert(s3.join(bucket, "models/export"), tmp_path / "out", "--donor", omni_in_s3)
    assert done.returncode == 0 and "vision tower" in said["result"]["donor"]["supplied"], (
        done.stdout
    )
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert not [
        name for name in fetched if name.startswith("diffusion") and name.endswith(".safetensors")
    ]


def test_sources_in_s3_that_cannot_be_used(omni_in_s3, bucket, tmp_path, monkeypatch):
    for source, code, finding in (
        (s3.join(bucket, "models/nan"), 3, "S3-NOT-FOUND"),
        (s3.join(bucket, "models/nano/vae"), 3, "S3-NOT-FOUND"),
        ("s3://", 2, "S3-NAME"),
        (f"{bucket}/../x", 2, "S3-NAME"),
    ):
        done, said = convert(source, tmp_path / "out")
        assert (done.returncode, said["findings"][0]["id"]) == (code, finding)
    name, key = s3.split(s3.join(bucket, "evil"))
    for outside in (f"{tmp_path}/PWNED/x.json", "../../../../PWNED/x.json"):
        s3.client().put_object(Bucket=name, Key=f"{key}/{outside}", Body=b"{}")
        done, said = convert(s3.join(bucket, "evil"), tmp_path / "out")
        assert (done.returncode, said["findings"][0]["id"]) == (2, "S3-NAME")
        assert not list(tmp_path.rglob("PWNED"))
        s3.client().delete_object(Bucket=name, Key=f"{key}/{outside}")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(Failure, match="S3-DISK-FULL"):
        s3.snapshot(omni_in_s3, ["*"])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


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
