"""Which column of a table has which role: given, known by its name, or by what stands in it."""

from __future__ import annotations

import json
import re
import shlex

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
    "split": ("split",),
}
# Roles of the column of the answer, where it has numbers of options; what those count from.
NUMBERED_ROLES = {"answer_from_0": 0, "answer_from_1": 1}
# Roles of the columns with the begin and the end of the part that a row is about, by their unit:
# seconds (or H:M:S), milliseconds, frames.
PART_ROLES = ("start", "end", "start_ms", "end_ms", "start_frame", "end_frame")
ROLES = (*COLUMNS, *NUMBERED_ROLES, *PART_ROLES)
OF_ROWS = re.compile(r"(?:^|[_ ])(?:id|ids|uid|uuid|qid|idx|index|url|token)$|^q_?uid$", re.I)
LONG_TEXT = 8  # words on average, of a column that is worth a remark
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
CLOCK = re.compile(r"\d{1,3}(?::[0-5]?\d){1,2}(?:[.,]\d+)?")
BEGINS = {"start", "starts", "begin", "begins", "from", "onset"}
ENDS = {"end", "ends", "stop", "stops", "to", "until", "till", "offset"}
TIMES = {"time", "times", "timestamp", "timestamps", "timecode", "sec", "secs", "second", "seconds"}
TIMES |= {"ms", "msec", "millisecond", "milliseconds", "frame", "segment", "span", "interval"}
MILLISECONDS = {"ms", "msec", "millisecond", "milliseconds"}
FRAMES = {"frame", "frames"}
# What an unused column may mean, by the words of its name.
TIME, SPLIT = "a time", "a split"
MEANINGS = {
    TIME: BEGINS | ENDS | TIMES,
    SPLIT: {"split", "splits", "subset", "fold", "folds", "partition"},
    "a group": {"group", "camera", "cam", "site", "session", "recording", "scene", "subject"}
    | {"participant", "patient", "location", "shift", "person", "driver", "vehicle"},
    "a weight": {"weight", "weights", "importance"},
}
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}

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


def unused(cells: Cells, columns: dict[str, str]) -> list[str]:
    """The columns without a role that hold something."""
    return [name for name in _free(cells, columns) if any(map(cell_text, cells[name]))]


def meaning(name: str, values: list) -> str:
    """What a column may mean by the words of its name, or by values that only times and splits
    have; "" for nothing of MEANINGS."""
    words = {word.lower() for word in WORDS.findall(name)}
    for meant, known in MEANINGS.items():
        if words & known:
            return meant
    texts = {cell_text(value) for value in values} - {""}
    if texts and all(map(CLOCK.fullmatch, texts)):
        return TIME
    return SPLIT if len(texts) > 1 and {text.lower() for text in texts} <= SPLITS else ""


def are_sentences(values: list) -> bool:
    """Whether a column holds texts of many words."""
    texts = [value for value in values if isinstance(value, str) and value]
    return bool(texts) and sum(len(text.split()) for text in texts) >= LONG_TEXT * len(texts)


def time_roles(names: list[str]) -> list[str]:
    """ROLE=COLUMN for the one column of begins and the one of ends among `names`, with the unit
    that these say; [] where they are not one of each."""
    roles = []
    for edge, known in (("start", BEGINS), ("end", ENDS)):
        words = {name: {word.lower() for word in WORDS.findall(name)} for name in names}
        named = [name for name in names if words[name] & known]
        if len(named) != 1:
            return []
        unit = "_ms" if words[named[0]] & MILLISECONDS else ""
        unit = "_frame" if words[named[0]] & FRAMES else unit
        roles.append(f"{edge}{unit}={named[0]}")
    return roles


def _given(role: str, name: str, cells: Cells, problems: list[f.Finding]) -> str:
    """The column that is given for a role; "" where there is none of that name."""
    if name in cells:
        return name
    alike = [other for other in cells if other.strip().lower() == name.strip().lower()]
    alike = alike or f.misspelt(name, cells)
    fix = ""
    if len(alike) == 1:
        written = shlex.join(["--column", f"{role}={name}"])
        fix = f"replace {written} with {shlex.join(['--column', f'{role}={alike[0]}'])}"
    message = f"got no such column, expected one of {', '.join(cells)}"
    problems.append(f.error("BUILD-COLUMN", name, message, fix))
    return alike[0] if len(alike) == 1 else ""


def add_likely(cells: Cells, columns: dict[str, str], problems: list[f.Finding]) -> None:
    """Report the roles that have no column, each with the one that it can be. That of the answer is
    taken to go on with."""
    if "answer" not in columns:
        likely = _only_label(cells, columns)
        problems.append(_without_column("answer", likely, cells))
        columns["answer"] = likely
    if "video" not in columns and "image" not in columns:
        problems.append(_without_column("video", "", cells))


def _without_column(role: str, likely: str, cells: Cells) -> f.Finding:
    message = f"got columns {', '.join(cells)}, expected --column {role}=NAME with one of them"
    fix = Fix(flags={"--column": f"{role}={likely}"}) if likely else Fix()
    return f.error("BUILD-COLUMN", role, message, fix)


def _free(cells: Cells, columns: dict[str, str]) -> list[str]:
    return [name for name in cells if name not in columns.values()]


def _only_label(cells: Cells, columns: dict[str, str]) -> str:
    """The one column that can be labels: of several values of which some repeat, and neither an id
    of rows, an option, nor of a MEANING. "" where that is none or several."""
    found = []
    for name in _free(cells, columns):
        filled = [cell_text(value) for value in cells[name] if value not in (None, "")]
        is_other = OF_ROWS.search(name) or NUMBERED.fullmatch(name) or meaning(name, cells[name])
        if not is_other and 1 < len(set(filled)) <= max(len(filled) - 1, 2):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def _name_media(values: list) -> bool:
    """Whether a column holds names of clips and pictures, and nothing else."""
    filled = [value for value in values if value]
    return bool(filled) and all(isinstance(value, str) and names_medium(value) for value in filled)


def names_medium(name: str) -> bool:
    return name.lower().endswith(MEDIA_SUFFIXES)


def cell_text(value: object) -> str:
    """What stands in a cell, as text: "" for nothing, JSON for lists and objects."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:  # NaN is how tables say that there is none
        return ""
    return re.sub(r"\.0$", "", str(value))
