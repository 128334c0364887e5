"""Sources of small clips, made once for the tests of a file."""

import os

import pytest
from clip_files import write_clip


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    for number in range(4):
        write_clip(folder / f"{number}.mp4", frames=8, tint=number)
    return folder


@pytest.fixture
def source(clips, tmp_path):
    """A folder with four clips, named by number."""
    folder = tmp_path / "source"
    folder.mkdir()
    for clip in clips.iterdir():
        os.link(clip, folder / clip.name)
    return folder
