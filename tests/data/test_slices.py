"""Parts of a split, as the datasets library writes and counts them."""

import pytest

from cosmos_reason.base import findings as f
from cosmos_reason.data.hub_files import wanted_part


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("train[:3]", [0, 1, 2]),
        ("train[7:]", [7, 8, 9]),
        ("train[2:4]", [2, 3]),
        ("train[-2:]", [8, 9]),
        ("train[:-8]", [0, 1]),
        ("train[:20%]", [0, 1]),
        ("train[80%:]", [8, 9]),
        ("train[-10%:]", [9]),
        ("train[5:3]", []),
        ("train[:100]", list(range(10))),
        ("train[:]", list(range(10))),
        ("[4:5]", [4]),
    ],
)
def test_the_rows_of_a_slice(written, rows):
    part = wanted_part(written)
    assert part.split == written.partition("[")[0]
    assert list(part.bounds(10)) == rows


def test_a_split_alone_is_all_of_it():
    assert wanted_part("reasoning") == ("reasoning", None, None)
    assert wanted_part("") == ("", None, None)


@pytest.mark.parametrize("written", ["train[3]", "train[:100", "train[a:b]", "train[:1]x", "]"])
def test_brackets_that_are_no_slice_are_refused(written):
    with pytest.raises(f.Failure, match=r"train\[:100\]"):
        wanted_part(written)
