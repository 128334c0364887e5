"""What is told of files that cannot be written."""

import errno

import pytest
from support import files_up_to

from cosmos_reason.base import files


@pytest.fixture
def full(tmp_path):
    with files_up_to(100):
        yield tmp_path


def test_a_file_without_room_is_named(full):
    with pytest.raises(OSError, match="too large") as raised:
        files.write_text(full / "a.json", "x" * 1000)
    assert raised.value.filename == str(full / "a.json")
    assert f"du -xhd 3 {full} | sort -h" in files.way_out(raised.value)
    assert list(full.iterdir()) == []


def test_a_file_in_an_unfinished_folder_has_the_name_it_was_to_have(full):
    with (
        pytest.raises(OSError, match="too large") as raised,
        files.whole_folder(full / "b") as part,
    ):
        files.write_text(part / "c.json", "x" * 1000)
    assert raised.value.filename == str(full / "b" / "c.json")
    assert list(full.iterdir()) == []


def test_a_copy_without_room_names_where_it_was_to_be(tmp_path):
    """The kernel names both; what is full is not where the original lies."""
    source = tmp_path / "from" / "below"
    source.mkdir(parents=True)
    (source / "a").write_bytes(bytes(1000))
    (source / "left").touch()
    full = tmp_path / "full"
    with (
        files_up_to(100),
        pytest.raises(OSError, match="too large") as raised,
        files.whole_folder(full) as part,
    ):
        files.copy_tree(source.parent, part / "copy", lambda folder, names: ["left"])
    assert files.place(raised.value) == str(full / "copy/below/a")
    assert files.way_out(raised.value).startswith(f"du -xhd 3 {tmp_path} |")
    files.copy_tree(source.parent, full, lambda folder, names: ["left"])
    assert [path.name for path in full.rglob("*")] == ["below", "a"]


def test_a_copy_has_what_a_link_to_a_folder_leads_to(tmp_path):
    for name in ("from", "aside"):
        (tmp_path / name).mkdir()
    (tmp_path / "aside" / "a").touch()
    (tmp_path / "from" / "link").symlink_to(tmp_path / "aside")
    files.copy_tree(tmp_path / "from", tmp_path / "to", lambda folder, names: [])
    assert (tmp_path / "to" / "link" / "a").is_file()
    assert not (tmp_path / "to" / "link").is_symlink()


def test_another_error_keeps_the_name_it_has(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, files.whole_file(tmp_path / "a"):
        (tmp_path / "source").read_text()
    assert raised.value.filename == str(tmp_path / "source")
    assert files.way_out(raised.value) == ""


def test_a_name_that_is_no_file_keeps_its_error(tmp_path):
    with pytest.raises(ConnectionError) as raised, files.whole_file(tmp_path / "a"):
        raise ConnectionError("reset")
    assert raised.value.filename is None


def test_a_file_that_may_not_be_read_is_shown_with_its_folder(tmp_path):
    problem = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "gone" / "a b"))
    shown = f"ls -ld '{tmp_path}/gone/a b' {tmp_path}, which"
    assert files.way_out(problem).startswith(shown)
    for name in (None, 3):
        told = files.way_out(OSError(errno.ENOSPC, "No space left on device", name))
        assert told.startswith("du -xhd 3 /")
