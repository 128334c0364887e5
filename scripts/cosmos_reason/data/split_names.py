"""What sources call their splits: in names of folders and tables."""

from __future__ import annotations

import functools
import posixpath
import re

# What comparing the sides of a split needs of building them, which either would read all of else.
CUTS = "cuts.json"  # beside annotations that build_dataset wrote: which part of what a clip is
NEAR = 10.0  # seconds; parts of a recording that lie closer mostly show the same scene
TRAIN, EVAL, TEST = "train", "eval", "test"
# what a split is called -> the folder that it becomes
NAMES = dict.fromkeys(("train", "training"), TRAIN)
NAMES |= dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), EVAL)
NAMES["validate"] = EVAL  # Kinetics
NAMES |= dict.fromkeys(("test", "testing", "holdout"), TEST)
HELD_OUT = {name for name, folder in NAMES.items() if folder != TRAIN}  # not to be trained on
BESIDE_TRAIN = "valid"  # may be a label as well, where nothing is called train
# Words beside the one of a split in the name of a folder: train_clips, Test Set, val2017.
BESIDE = {"clip", "clips", "video", "videos", "image", "images", "frame", "frames", "media", "file"}
BESIDE |= {"tar", "gz", "tgz", "zip"}  # an archive is a folder
BESIDE |= {"files", "data", "dataset", "set", "split"}
BESIDE |= {"annotation", "annotations", "label", "labels"}
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def _words(name: str) -> list[str]:
    """Return the words of a name; trainset is train, and held_out is holdout."""
    name = re.sub(r"h[eo]ld[-_ ]?out", "holdout", name, flags=re.IGNORECASE)
    words = [word.lower() for word in WORDS.findall(name)]
    return [whole if (whole := word.removesuffix("set")) in NAMES else word for word in words]


def word(name: str) -> str:
    """Return the one of NAMES that is a word of a name (test_sft, val-00000-of-00001); "" for none,
    or where two words contradict each other."""
    found = [part for part in _words(name) if part in NAMES]
    return found[0] if len({NAMES[part] for part in found}) == 1 else ""


@functools.cache
def exact(name: str) -> str:
    """Return the one of NAMES that a name says and nothing else (Test Set, train_clips); "" for a
    name that says more, as train_station does."""
    said = {part for part in _words(name) if part not in BESIDE}
    return said.pop() if len(said) == 1 and said <= NAMES.keys() else ""


def of_folders(path: str) -> str:
    """Return what the first folder of a path that is called like a split is called; "" without
    one."""
    return next(filter(None, map(exact, posixpath.dirname(path).split("/"))), "")


def of_table(path: str) -> str:
    """Return what the name of a table, or else its folders, call its split."""
    return word(posixpath.splitext(posixpath.basename(path))[0]) or of_folders(path)
