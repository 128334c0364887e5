"""Which column of a table has which role: given, known by its name, or by what stands in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import thoughts
from cosmos_reason.data.label_questions import LABELS, SENTENCES
from cosmos_reason.data.option_columns import NUMBERED
from cosmos_reason.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

MEDIA_SUFFIXES = VIDEO_SUFFIXES + IMAGE_SUFFIXES
# Columns that count options from 0 in every set that is known to have them: LongVideoBench,
# Perception Test, TVQA, CinePile.
COUNTED_FROM_0 = ("correct_choice", "answer_idx", "answer_id", "answer_key_position")
# role -> column names it is known by, best first
COLUMNS = {
    "video": (
        "video",
        "video_path",
        "video_name",
        "video_file",
        "clip",
        "clip_path",
        "clip_name",
        "clip_file",
        "file_name",
        "filename",
        "file",
        "path",
        "media",
        "video_id",
        "videoid",
        "clip_id",
        "vid",
    ),
    "image": ("image", "image_path", "image_id"),
    "question": ("question", "prompt", "query", "problem"),
    "answer": (
        *(*LABELS, *SENTENCES, "solution"),
        *("correct_answer", "correct_choice", "correct", "answer_key"),
        *("ground_truth", "gt", "correct_answer_label"),
        *COUNTED_FROM_0,
    ),
    "reasoning": (
        *("reasoning", "explanation", "rationale", "thinking"),
        *("chain_of_thought", "cot", "thought", "thoughts", "reasoning_content"),
    ),
    "options": ("options", "choices", "index2ans", "candidates", "option"),
    "id": ("id", "uid", "video_id", "image_id"),
}
# Roles of the column of the answer, where it has numbers of options; what those count from.
NUMBERED_ROLES = {"answer_from_0": 0, "answer_from_1": 1}
# Roles of the columns with the first and the last second of the part that a row is about.
PART_ROLES = ("start", "end")
ROLES = (*COLUMNS, *NUMBERED_ROLES, *PART_ROLES)
OF_ROWS = re.compile(r"(?:^|[_ ])(?:id|ids|uid|uuid|qid|idx|index|url|token)$|^q_?uid$", re.I)
LONG_TEXT = 8  # words on average, of a column that is worth a remark

# Columns that name a clip, whatever its name looks like.
OF_CLIPS = {
    name for name in COLUMNS["video"] if name.startswith(("video_", "videoi", "clip", "vid"))
}

# Columns of questions and answers.
OF_TEXTS = {*COLUMNS["question"], *COLUMNS["answer"]}

# column -> what stands in it, row by row; None where a row does not have it
Cells = dict[str, list]


def of_roles(cells: Cells, given: dict[str, str], problems: list[f.Finding]) -> dict[str, str]:
    """{role: column}: the columns that are given, the others by the names they are known by, the
    medium's and the reasoning's also by what stands in it. A given column that there is not joins
    the `problems`."""
    lowered = {name.lower(): name for name in cells}
    columns = {}
    for role, known in COLUMNS.items():
        present = [lowered[name] for name in known if name in lowered]
        if present:
            columns[role] = present[0]
    for role, name in given.items():
        columns[role] = _given(role, name, cells, problems)
    if "question" not in columns:
        _find_question(cells, columns)
    if "reasoning" not in given:
        _find_reasoning(cells, columns)
    if "video" not in columns and "image" not in columns:
        _find_media(cells, columns)
    return columns


def _find_media(cells: Cells, columns: dict[str, str]) -> None:
    """Take the column of names of clips and pictures."""
    of_media = [name for name in _free(cells, columns) if _name_media(cells[name])]
    if of_media:
        columns["video"] = of_media[0]


def _find_question(cells: Cells, columns: dict[str, str]) -> None:
    """Take the one column of texts that all end with a question mark."""
    asking = [name for name in _free(cells, columns) if _are_questions(cells[name])]
    if len(asking) == 1:
        columns["question"] = asking[0]


def _are_questions(values: list) -> bool:
    texts = [value for value in values if value is not None]
    if not texts or not all(isinstance(text, str) for text in texts):
        return False
    return all(text.rstrip().endswith(("?", "？")) for text in texts)


def _find_reasoning(cells: Cells, columns: dict[str, str]) -> None:
    """Take the column of texts in <think> as reasoning (`process` of Video-R1), and none that only
    says which kind of reasoning a question needs."""
    named = columns.get("reasoning")
    if named and thoughts.are_kinds(cells[named]):
        del columns["reasoning"]
    if "reasoning" in columns:
        return
    tagged = [name for name in _free(cells, columns) if thoughts.are_tagged(cells[name])]
    if tagged:
        columns["reasoning"] = tagged[0]


def unused_texts(cells: Cells, columns: dict[str, str]) -> list[str]:
    """The columns without a role that hold sentences, or are called like reasoning."""
    found = []
    for name in _free(cells, columns):
        texts = [value for value in cells[name] if isinstance(value, str) and value]
        words = sum(len(text.split()) for text in texts)
        is_named = name.lower() in COLUMNS["reasoning"]
        if texts and (is_named or words >= LONG_TEXT * len(texts)):
            found.append(name)
    return found


def _given(role: str, name: str, cells: Cells, problems: list[f.Finding]) -> str:
    """The column that is given for a role, or the one that was likely meant."""
    if name in cells:
        return name
    message = f"got no such column in {', '.join(cells)}.{f.did_you_mean(name, cells)}"
    near = f.misspelt(name, cells)
    fix = ""
    if len(near) == 1:
        written = shlex.join(["--column", f"{role}={name}"])
        fix = f"replace {written} with {shlex.join(['--column', f'{role}={near[0]}'])}"
    problems.append(f.error("BUILD-COLUMN", name, message, fix))
    return (near or list(cells))[0]


def add_likely(cells: Cells, columns: dict[str, str], problems: list[f.Finding]) -> None:
    """Report the roles that have no column, each with the likeliest. That of the answer is taken
    to go on with."""
    if "answer" not in columns:
        likely = _of_fewest_classes(cells, _free(cells, columns))
        problems.append(_without_column("answer", likely, cells))
        columns["answer"] = likely
    if "video" not in columns and "image" not in columns:
        texts = [name for name in _free(cells, columns) if _holds_text(cells[name])]
        problems.append(_without_column("video", next(iter(texts), ""), cells))


def _without_column(role: str, likely: str, cells: Cells) -> f.Finding:
    message = f"got columns {', '.join(cells)}, expected one for the {role}"
    fix = Fix(flags={"--column": f"{role}={likely}"}) if likely else Fix()
    return f.error("BUILD-COLUMN", role, message, fix)


def _free(cells: Cells, columns: dict[str, str]) -> list[str]:
    return [name for name in cells if name not in columns.values()]


def _of_fewest_classes(cells: Cells, names: Iterable[str]) -> str:
    """The column with the fewest different values, at least two: labels repeat. A number or an id
    of rows is no label, nor is an option."""
    names = [name for name in names if not (OF_ROWS.search(name) or NUMBERED.fullmatch(name))]
    filled = {name: [value for value in cells[name] if value not in (None, "")] for name in names}
    classes = {name: len(set(map(str, values))) for name, values in filled.items()}
    several = {name: count for name, count in classes.items() if count > 1}
    return min(several or classes, key=classes.get, default="")


def _holds_text(values: list) -> bool:
    return any(isinstance(value, str) and value for value in values)


def _name_media(values: list) -> bool:
    """Whether a column holds names of clips and pictures, and nothing else."""
    filled = [value for value in values if value]
    return bool(filled) and all(isinstance(value, str) and names_medium(value) for value in filled)


def names_medium(name: str) -> bool:
    return name.lower().endswith(MEDIA_SUFFIXES)
