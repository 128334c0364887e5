"""What sources call their splits: in names of folders and tables."""

from __future__ import annotations

import posixpath
import re

TRAIN, EVAL, TEST = "train", "eval", "test"
# what a split is called -> the folder that it becomes
NAMES = dict.fromkeys(("train", "training"), TRAIN)
NAMES |= dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), EVAL)
NAMES |= dict.fromkeys(("test", "testing"), TEST)
HELD_OUT = {name for name, folder in NAMES.items() if folder != TRAIN}  # not to be trained on
BESIDE_TRAIN = "valid"  # may be a label as well, where nothing is called train
WORDS = re.compile(r"[^a-z]+")


def word(name: str) -> str:
    """Return the one of NAMES that is a word of a name (test_sft, val-00000-of-00001); "" for none,
    or where two words contradict each other."""
    found = [part for part in WORDS.split(name.lower()) if part in NAMES]
    return found[0] if len({NAMES[part] for part in found}) == 1 else ""


def of_folders(path: str) -> str:
    """Return the first folder of a path that has one of NAMES; "" without one."""
    folders = posixpath.dirname(path).lower().split("/")
    return next((folder for folder in folders if folder in NAMES), "")


def of_table(path: str) -> str:
    """Return what the name of a table, or else its folders, call its split."""
    return word(posixpath.splitext(posixpath.basename(path))[0]) or of_folders(path)
