"""The column that names the clips of a table, told by the files that there are: `scene_name` of
VSI-Bench, `video_idx` of EgoSchema, `videoID` beside the numbers in `video_id` of Video-MME."""

from __future__ import annotations

import posixpath

from cosmos_reason.data.columns import COLUMNS, Cells
from cosmos_reason.data.source_files import Folder

OF_MEDIA = {*COLUMNS["video"], *COLUMNS["image"]}
TEXT_ROLES = ("question", "answer", "options", "reasoning")


def find(cells: Cells, columns: dict[str, str], files: Folder) -> str:
    """The column whose every value is the name of a clip here, where no column is known by its
    name; where one is and none of its clips is here, another one of such a name. "" without one,
    and where two columns name different clips."""
    known = columns.get("video") or columns.get("image")
    if known and (files.archives or _any_there(cells[known], files)):
        return ""
    names = _names(cells, columns, is_known=bool(known))
    naming = [name for name in names if _all_there(cells[name], files)]
    different = {tuple(map(_stem, cells[name])) for name in naming}
    return naming[0] if len(different) == 1 else ""


def _names(cells: Cells, columns: dict[str, str], is_known: bool) -> list[str]:
    """The columns that may name clips; where one is known to, only those of such names: the number
    of a row may be that of any clip."""
    texts = {columns.get(role) for role in TEXT_ROLES}
    names = [name for name in cells if name not in texts]
    if is_known:
        return [name for name in names if name.lower() in OF_MEDIA]
    return names


def _any_there(values: list, files: Folder) -> bool:
    return any(_is_there(value, files) for value in values)


def _all_there(values: list, files: Folder) -> bool:
    return bool(values) and all(_is_there(value, files) for value in values)


def _is_there(value: object, files: Folder) -> bool:
    """Whether a value names something that a source has: a file, with or without its suffix, a
    folder, or what stands in a table."""
    if isinstance(value, list):
        return bool(value) and _is_there(value[0], files)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return False
    name = str(value)
    if name in files.held or posixpath.isabs(name):
        return True
    last = posixpath.basename(name)
    return last in files.by_stem or last in files.by_last_part or files.has(name)


def _stem(value: object) -> str:
    return posixpath.splitext(posixpath.basename(str(value)))[0]
