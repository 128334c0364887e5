"""Shared by the tests of rules."""

import pytest
import support_specs

from cosmos_reason.base import files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with annotations in data/, data/train/ and data/held_out/."""
    monkeypatch.chdir(tmp_path)
    for name in ("data", "data/train", "data/held_out"):
        files.write_text(tmp_path / name / "annotations.json", support_specs.RECORDS)
    return tmp_path
