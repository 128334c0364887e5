"""Archives of clips, tar and zip: whose clip a name means, what is unpacked, and that everything
that reads media opens them."""

import io
import json
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import support_specs
from clip_files import check, record, write_clip

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.data import sources as dataset_sources
from cosmos_reason.data import whole_survey
from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.items import Reading
from cosmos_reason.data.samples import Media
from cosmos_reason.evaluation import gaps
from cosmos_reason.media import archives
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.preflight.data import look_at_first_clips, supposed_clips
from cosmos_reason.remote import s3


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def member(name, content=b"x", **facts):
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in facts.items():
        setattr(made, key, value)
    return made, content


def write_archive(path, *members):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for made, content in members:
                packed.writestr(made.name, content)
        return path
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        for made, content in members:
            tar.addfile(made, io.BytesIO(content))
    return path


def items(source, *lines):
    """What a table of `lines` (video,answer) beside archives gives: (answer, content of its clip)
    of every row."""
    (source / "labels.csv").write_text("\n".join(("video,answer", *lines)) + "\n")
    reading = Reading(question="Which colour?")
    found, *_ = dataset_sources.read(
        dataset_sources.open_source(str(source / "labels.csv"), "auto", reading), reading
    )
    return [(item.turns[-1].text, item.media[0][1].load()) for item in found]


def refused(source, *lines):
    with pytest.raises(Failure) as caught:
        items(source, *lines)
    return caught.value.findings[0]


# -- whose clip a name means -----------------------------------------------------------------------

COLOURS = (member("./a/001.mp4", b"red"), member("./b/001.mp4", b"blue"))


@pytest.mark.parametrize("name", ["videos.tar.gz", "videos.tar", "videos.zip"])
@pytest.mark.parametrize("folder", ["", "clips/"])
def test_a_label_goes_to_the_clip_of_its_whole_path(tmp_path, name, folder):
    made = [member(one.name.replace("./", f"./{folder}"), content) for one, content in COLOURS]
    write_archive(tmp_path / name, *made)
    assert items(tmp_path, "a/001.mp4,red", "b/001.mp4,blue") == [
        ("red", b"red"),
        ("blue", b"blue"),
    ]


def test_a_name_that_several_members_have_is_refused(tmp_path):
    write_archive(tmp_path / "videos.tar.gz", *COLOURS)
    found = refused(tmp_path, "001.mp4,red")
    assert found.id == "BUILD-MEDIA-AMBIGUOUS" and "a/001.mp4, b/001.mp4" in found.message
    write_archive(tmp_path / "videos.tar.gz", COLOURS[0], COLOURS[0])
    assert refused(tmp_path, "a/001.mp4,red").id == "BUILD-MEDIA-AMBIGUOUS", "appended again"


def test_a_clip_in_two_archives_is_refused_and_one_in_a_later_archive_is_found(tmp_path):
    write_archive(tmp_path / "1.tar", COLOURS[0])
    write_archive(tmp_path / "2.tar", COLOURS[1])
    assert items(tmp_path, "b/001.mp4,blue", "a/001.mp4,red") == [
        ("blue", b"blue"),
        ("red", b"red"),
    ]
    assert refused(tmp_path, "001.mp4,red").id == "BUILD-MEDIA-AMBIGUOUS"


@pytest.mark.parametrize("packed", [True, False])
def test_a_clip_that_is_missing_is_not_replaced_by_that_of_another_row(tmp_path, packed):
    if packed:
        write_archive(tmp_path / "videos.tar.gz", COLOURS[1])
    else:
        write_clip(tmp_path / "b" / "001.mp4", frames=2)
    found = refused(tmp_path, "a/001.mp4,red", "b/001.mp4,blue")
    assert found.id == "BUILD-MEDIA-AMBIGUOUS" and "a/001.mp4" in found.message + found.where
    assert "b/001.mp4" in found.message


def test_files_of_the_same_last_part_do_not_hide_those_of_an_archive(tmp_path):
    write_archive(tmp_path / "videos.tar.gz", COLOURS[0])
    write_clip(tmp_path / "c" / "001.mp4", frames=2)
    assert items(tmp_path, "a/001.mp4,red") == [("red", b"red")]


def test_a_damaged_archive_is_bad_input(tmp_path):
    archive = write_archive(
        tmp_path / "videos.tar.gz", *(member(f"{n}.mp4", os.urandom(2000)) for n in range(50))
    )
    archive.write_bytes(archive.read_bytes()[:-5000])
    assert refused(tmp_path, "0.mp4,red").id == "DATA-ARCHIVE"


def test_a_damaged_zip_is_bad_input_when_it_is_opened_and_when_a_file_is_read(tmp_path):
    archive = write_archive(tmp_path / "videos.zip", member("0.mp4", b"red" * 99))
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-30])
    found = refused(tmp_path, "0.mp4,red")
    assert found.id == "DATA-ARCHIVE" and str(found.fix).startswith("unzip -t")
    archive.write_bytes(whole[:40] + b"xxxx" + whole[44:])
    with pytest.raises(Failure, match="DATA-ARCHIVE"):
        items(tmp_path, "0.mp4,red")
    with pytest.raises(Failure, match="DATA-ARCHIVE"):
        archives.unpacked(archive)


# -- unpacking -------------------------------------------------------------------------------------


def test_an_archive_is_unpacked_once_per_content(tmp_path, cache):
    first = write_archive(tmp_path / "videos.tar", *COLOURS)
    folder = archives.unpacked(first)
    assert (folder / "a" / "001.mp4").read_bytes() == b"red" and folder.is_relative_to(cache)
    moved = tmp_path / "elsewhere.tar"
    moved.write_bytes(first.read_bytes())
    assert archives.unpacked(moved) == folder
    before = first.stat()
    write_archive(first, COLOURS[0], member("./b/001.mp4", b"gray"))
    os.utime(first, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first.stat().st_size == before.st_size
    assert (archives.unpacked(first) / "b" / "001.mp4").read_bytes() == b"gray"


@pytest.mark.parametrize(
    "members",
    [
        [member("a.mp4"), member("b.mp4", b"", type=tarfile.SYMTYPE, linkname="a.mp4")],
        [member("a.mp4"), member("b.mp4", b"", type=tarfile.LNKTYPE, linkname="a.mp4")],
        [member("a.mp4"), member("./a.mp4", b"y")],
        [member("a"), member("a/b.mp4")],
        [member("a/b.mp4"), member("a")],
        [member("/etc/a.mp4")],
        [member("a/../../a.mp4")],
    ],
)
def test_what_would_not_be_the_file_of_its_name_is_refused(tmp_path, cache, members):
    archive = write_archive(tmp_path / "bad.tar.gz", *members)
    with pytest.raises(Failure, match="DATA-ARCHIVE") as caught:
        archives.unpacked(archive)
    assert caught.value.exit_code == 2 and "tar " in str(caught.value.findings[0].fix)
    assert_nothing_is_left(cache)


def assert_nothing_is_left(cache):
    assert not [
        path for path in cache.rglob("*") if path.suffix != ".lock" and path.name != "archives"
    ]


def zipped(name, mode=0, flags=0):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    made.flag_bits = flags
    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (zipped("b.mp4", stat.S_IFLNK | 0o777), "a link"),
        (zipped("./a.mp4"), "a second file"),
        (zipped("a.mp4/b.mp4"), "a second file"),
        (zipped("/etc/a.mp4"), "leads out"),
        (zipped("a/../../a.mp4"), "leads out"),
    ],
)
def test_what_would_not_be_the_file_of_its_name_is_refused_in_a_zip(tmp_path, cache, made, told):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a.mp4", b"x")
        packed.writestr(made, b"a.mp4")
    with pytest.raises(Failure, match=told) as caught:
        archives.unpacked(archive)
    assert caught.value.exit_code == 2 and "zip " in str(caught.value.findings[0].fix)
    assert_nothing_is_left(cache)


def test_an_encrypted_zip_is_told(tmp_path):
    archive = write_archive(tmp_path / "videos.zip", member("a.mp4"))
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= archives.ENCRYPTED
    archive.write_bytes(content)
    with pytest.raises(Failure, match="an encrypted file"):
        archives.unpacked(archive)


def test_what_a_killed_run_left_is_cleared_away(tmp_path, cache):
    archive = write_archive(tmp_path / "videos.tar", *COLOURS)
    folder = archives.unpacked(archive)
    left = folder.rename(files.temporary_name(folder))
    assert archives.unpacked(archive) == folder and not left.exists()


# -- the cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"COSMOS_CACHE": "~/x"}, "{home}/x"),
        ({"COSMOS_CACHE": "x"}, "{here}/x"),
        ({"COSMOS_CACHE": "", "XDG_CACHE_HOME": "~/y"}, "{home}/y/cosmos-reason"),
        ({"COSMOS_CACHE": "", "XDG_CACHE_HOME": ""}, "{home}/.cache/cosmos-reason"),
    ],
)
def test_one_folder_is_the_cache_of_everything(tmp_path, monkeypatch, variables, folder):
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir(), home.mkdir()
    monkeypatch.chdir(here)
    for name, value in (variables | {"HOME": str(home)}).items():
        monkeypatch.setenv(name, value)
    expected = Path(folder.format(home=home, here=here))
    assert files.cache_folder() == expected
    assert not clip_checks.Cache().problem and (expected / "clips.sqlite").is_file()
    assert s3.cache() == expected / "s3"
    archive = write_archive(tmp_path / "videos.tar", *COLOURS)
    assert archives.unpacked(archive).parent == expected / "archives"
    assert not list(tmp_path.rglob("~"))


def test_a_home_that_is_not_there_is_bad_input(monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", "~nobody-of-this-name/x")
    with pytest.raises(Failure, match="CACHE-FOLDER"):
        files.cache_folder()


# -- a dataset root with an archive ----------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    """annotations.json of three clips that are in videos.tar.gz, after one that no record names."""
    folder = tmp_path / "root"
    clips = [write_clip(tmp_path / "clips" / f"{n}.mp4", tint=n) for n in range(3)]
    made = [member(f"./clips/{clip.name}", clip.read_bytes()) for clip in clips]
    write_archive(
        folder / "videos.tar.gz", member("./clips/other.mp4", clips[0].read_bytes()), *made
    )
    (folder / "annotations.json").write_text(json.dumps([record(n) for n in range(3)]))
    return folder


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("train --train-root root", "custom.train_dataset.media_path"),
        ("train --eval-root root", "custom.val_dataset.media_path"),
        ("evaluate --eval-root root --model reason2-2b", "dataset.media_dir"),
    ],
)
def test_the_spec_names_the_archive_of_a_root(root, monkeypatch, line, key):
    monkeypatch.chdir(root.parent)
    _, _, written = support_specs.run(f"{line} --engine transformers", "spec.toml")
    table, _, last = key.rpartition(".")
    for name in table.split("."):
        written = written[name]
    assert written[last] == str(root / "videos.tar.gz")


def test_a_root_with_clips_and_an_archive_stays_a_folder(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    write_clip(root / "clips" / "0.mp4")
    _, _, written = support_specs.run("train --train-root root --engine transformers", "spec.toml")
    assert written["custom"]["train_dataset"]["media_path"] == str(root)
    assert archives.in_root(root, "video", "clips/0.mp4") is None


def test_a_zip_or_the_only_archive_of_another_name_holds_the_media(root):
    (root / "videos.tar.gz").rename(root / "clips-of-june.tar.gz")
    only = str(root / "clips-of-june.tar.gz")
    assert archives.in_root(root, "video", "clips/0.mp4") == only
    write_archive(root / "labels.zip", member("a.txt"))
    assert archives.in_root(root, "video", "clips/0.mp4") is None
    write_archive(root / "videos.zip", member("clips/0.mp4"))
    assert archives.in_root(root, "video", "clips/0.mp4") == str(root / "videos.zip")


def test_images_are_looked_for_in_their_own_archive(root):
    write_archive(root / "images.tar.gz", member("0.png"))
    assert archives.in_root(root, "image", "0.png") == str(root / "images.tar.gz")
    assert archives.in_root(root, "video", "0.mp4") == str(root / "videos.tar.gz")


def test_the_embedded_engine_and_the_gap_table_open_it(root):
    packed, first = str(root / "videos.tar.gz"), Media("video", "clips/1.mp4")
    vision = Sampler(packed, VisionOptions(nframes=4), 16).load(first)
    assert np.array_equal(
        vision.frames, Sampler(str(root.parent), VisionOptions(nframes=4), 16).load(first).frames
    )
    paths, found = gaps.media_paths(root / "annotations.json", packed, {"r1"})
    assert not found
    assert Path(paths["r1"]).read_bytes() == (root.parent / "clips" / "1.mp4").read_bytes()


def test_check_and_preflight_read_its_headers(root, monkeypatch):
    """Preflight looks at what comes first in the archive, and takes the rest to be alike."""
    result, findings = check(root)
    assert result["train"]["media_path"] == str(root / "videos.tar.gz") and not findings
    monkeypatch.setattr(archives, "BATCH", 2)
    archive = str(root / "videos.tar.gz")
    found = whole_survey.take(root / "annotations.json", archive, "", look_at_first_clips)
    (note,) = supposed_clips(found)
    assert note.id == "PRE-DATA-SAMPLED" and "looked at 2 of 3" in note.message
    assert [report.facts.frames for report in found.reports.values()] == [16, 16, 16]


def test_preflight_says_when_the_archive_holds_none_of_the_clips(root):
    write_archive(root / "videos.tar.gz", member("other/0.mp4"))
    archive = str(root / "videos.tar.gz")
    found = whole_survey.take(root / "annotations.json", archive, "", look_at_first_clips)
    assert not supposed_clips(found)
    assert {report.check for report in found.reports.values()} == {"DATA-MEDIA-MISSING"}
