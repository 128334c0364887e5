"""The rows of tables as items: which column is what, which medium a row names, what it is asked."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.data import (
    clip_columns,
    label_questions,
    option_columns,
    option_numbers,
    parts,
    source_files,
    thoughts,
)
from cosmos_reason.data import columns as column_roles
from cosmos_reason.data.formats import (
    are_pairs,
    are_pictures,
    rates,
    with_options,
    written_options,
)
from cosmos_reason.data.formats import options as options_in
from cosmos_reason.data.items import (
    UNNAMED,
    Item,
    Reading,
    cell_text,
    exchange,
    name_of,
    one_per_id,
    refuse_unused,
)
from cosmos_reason.data.records import TAG
from cosmos_reason.data.samples import Media, Turn
from cosmos_reason.data.source_files import Folder, Held, Medium
from cosmos_reason.media.files import IMAGE_SUFFIXES

TEXTS_NAMED = 5
TEXT_COLUMNS = ("id", "question", "answer", "reasoning", "options")


def by_clip(rows: list) -> list:
    """{"a.mp4": "rain", ...} as rows, or as records with their questions; other rows as they
    are."""
    if (
        len(rows) != 1
        or not isinstance(rows[0], dict)
        or not all(map(column_roles.names_medium, rows[0]))
    ):
        return rows
    return [
        {"video": name, "qa_pairs" if are_pairs(value) else "answer": value}
        for name, value in rows[0].items()
    ]


def each_caption(rows: list) -> Iterator:
    """A row for each text of those that have several captions; other rows as they are."""
    for row in rows:
        captions = row.get("captions") if isinstance(row, dict) else None
        if isinstance(captions, list) and all(isinstance(text, str) for text in captions):
            others = {name: value for name, value in row.items() if name != "captions"}
            yield from ({**others, "caption": text} for text in captions)
        else:
            yield row


def labelled_by_folder(files: Folder, split: str) -> list[tuple[dict, str]]:
    """One row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not column_roles.names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        rows.append(({"video": name, "answer": label}, ""))
    labels = {row["answer"] for row, _ in rows}
    if len(labels) < 2 or "" in labels:
        message = f"got {len(rows)} media files in {len(labels)} folders and no labels"
        fix = (
            "write a table labels.csv beside them (video,label), "
            "or put them into one folder per label"
        )
        raise f.bad_input("BUILD-NO-LABELS", files.root, message, fix)
    return rows


def items(
    rows: list[tuple[dict, str]], files: Folder, reading: Reading, problems: list[f.Finding]
) -> Iterator[Item]:
    """One item per row: its columns are guessed from their names, its question is made from the
    labels when the row has none.

    What is wrong joins the `problems`, and reading goes on with the likeliest column, so that one
    run says all.
    """
    given, begin = _without_numbered(reading.columns)
    cells, columns = _table(rows, given, files, problems)
    problems += _unused(cells, columns, files)
    written = {role: cells.get(columns.get(role), [None] * len(rows)) for role in TEXT_COLUMNS}
    texts = {role: list(map(cell_text, written[role])) for role in TEXT_COLUMNS}
    answers = texts["answer"]
    f.attempt(problems, _refuse_empty, answers, columns["answer"], files)
    media = _media(rows, columns, files, problems)
    media = f.attempt(problems, parts.of_rows, media, cells, columns, problems) or media
    refused: list[f.Finding] = []
    stated = written["options"] if "options" in columns else None
    reading_options = (rows, answers, stated, columns["answer"], begin, files, refused)
    options, answers = _options_and_answers(*reading_options)
    asking = (texts["question"], answers, options, media, columns["answer"], reading)
    questions = f.attempt(problems, _questions, *asking) or texts["question"]
    for number, (kind, medium) in enumerate(media):
        turns = f.attempt(
            refused, _asked, questions[number], options[number], answers[number], files, number
        )
        if turns and medium:
            unnamed = f"row-{number}"
            name = texts["id"][number] or name_of(medium, files, unnamed) or unnamed
            reasoning = thoughts.bare(texts["reasoning"][number])
            yield Item(name, ((kind, medium),), turns, reasoning, tags=_tags(rows[number][0]))
    problems += one_per_id(refused)


def _tags(row: dict) -> tuple[str, ...]:
    given = row.get("tags")
    return tuple(map(str, given)) if isinstance(given, list) else ()


def _without_numbered(given: dict[str, str]) -> tuple[dict[str, str], int | None]:
    """The columns that are given, the answer's under its plain role; and what its numbers count
    options from, where that is said."""
    columns = dict(given)
    begin = None
    for role, counted_from in column_roles.NUMBERED_ROLES.items():
        if role in columns:
            begin = counted_from
            columns["answer"] = columns.pop(role)
    return columns, begin


def _unused(cells: column_roles.Cells, columns: dict[str, str], files: Folder) -> list[f.Finding]:
    """What is left out although it may be the reasoning behind the answers."""
    names = column_roles.unused_texts(cells, columns)
    if not names:
        return []
    message = (
        f"left out the texts of {', '.join(names[:TEXTS_NAMED])}; "
        "one that says why the answers are right is trained by --column reasoning=NAME"
    )
    return [f.info("BUILD-COLUMN-UNUSED", files.root, message, columns=names)]


def _table(
    rows: list[tuple[dict, str]],
    given: dict[str, str],
    files: Folder,
    problems: list[f.Finding],
) -> tuple[column_roles.Cells, dict[str, str]]:
    """What stands in the columns of all rows, and {role: column}."""
    names = dict.fromkeys(name for row, _ in rows for name in row)
    cells = {name: [row.get(name) for row, _ in rows] for name in names}
    columns = column_roles.of_roles(cells, given, problems)
    folders = {folder for _, folder in rows}
    if "answer" not in columns and len(folders) > 1:  # tables in folders named by the label
        columns["answer"] = "folder"
        cells["folder"] = [posixpath.basename(folder) for _, folder in rows]
    if not {"video", "image"} & given.keys():
        of_clips = clip_columns.find(cells, columns, files)
        if of_clips:
            columns.pop("image", None)
            columns["video"] = of_clips
    column_roles.add_likely(cells, columns, problems)
    return cells, columns


def _refuse_empty(answers: list[str], column: str, files: Folder) -> None:
    """Raises Failure when a row has nothing in the column of the answer."""
    if not column:
        return
    empty = [number for number, answer in enumerate(answers) if not answer]
    if empty:
        message = (
            f"got no {column} in {len(empty)} rows (the first is row {empty[0]}), "
            "expected an answer"
        )
        fix = "remove them, or name another column: --column"
        raise f.bad_input("BUILD-ANSWER-EMPTY", files.root, message, fix)


def _media(
    rows: list[tuple[dict, str]],
    columns: dict[str, str],
    files: Folder,
    problems: list[f.Finding],
) -> list[tuple[str, Medium | None]]:
    """(kind, medium) of every row: UNNAMED in an empty cell, none where what stands there is
    refused or no column is known."""
    refused: list[f.Finding] = []
    media = []
    is_known = bool({"video", "image"} & columns.keys())
    for row, folder in rows:
        named = _named_medium(row, columns)
        medium = UNNAMED if is_known else None
        if named:
            medium = f.attempt(refused, source_files.find_video, files, named, folder)
        is_image = isinstance(medium, Path | Held) and medium.suffix.lower() in IMAGE_SUFFIXES
        kind = named.kind if named else "video"
        media.append(("image" if is_image else kind, medium))
    problems += one_per_id(refused)
    return media


def _named_medium(row: dict, columns: dict[str, str]) -> Media | None:
    """What a row names: a file, a list of pictures, or a folder of them; None in an empty cell."""
    for kind in ("video", "image"):
        value = row.get(columns.get(kind, ""))
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, list) and len(value) == 1 and not are_pictures(value):
            value = value[0]
        if isinstance(value, str) and value:
            return Media(kind, value, fps=_rate(row))
        if kind == "video" and are_pictures(value):
            return Media(kind, value[0], tuple(value), _rate(row))
    return None


def _rate(row: dict) -> float | None:
    """The rate of pictures as a number; a table may hold it as text."""
    for value in rates(row).values():
        with contextlib.suppress(TypeError, ValueError):
            return float(value) or None
    return None


def _questions(
    stated: list[str],
    answers: list[str],
    options: list[dict],
    media: list[tuple[str, Medium | None]],
    label: str,
    reading: Reading,
) -> list[str]:
    """The question of every row: its own, or one for all labels without; rows that bring options
    are asked it without the labels in words."""
    unasked = [number for number, question in enumerate(stated) if not question]
    if not unasked:
        refuse_unused(reading, ("question",), "rows that hold their questions")
        return stated
    labels = [answers[number] for number in unasked]
    kind, _ = media[unasked[0]]
    is_choice = any(options[number] for number in unasked)
    names = _label_fields(label, labels)
    plain = label_questions.ask(reading.question, names, labels, kind, is_choice)
    worded = plain if len(names) > 1 else label_questions.worded(plain, names, labels)
    questions = list(stated)
    for number in unasked:
        questions[number] = plain if options[number] else worded
    return questions


def _label_fields(label: str, labels: list[str]) -> list[str]:
    """The fields of labels that are objects, else the one column that they stand in."""
    fields: dict[str, None] = {}
    for text in labels:
        if not text.startswith("{"):
            return [label]
        with contextlib.suppress(ValueError):
            fields |= dict.fromkeys(json.loads(text))
    return list(fields) or [label]


def _asked(
    question: str, options: dict[str, str], answer: str, files: Folder, number: int
) -> tuple[Turn, ...]:
    """The turns of a row, with its options in the question."""
    question = TAG.sub("", question)  # the record's own tags are written before it
    if "<answer>" not in question:
        answer = thoughts.untagged(answer)
    try:
        return exchange(*with_options(question, options, answer))
    except ValueError as problem:
        raise f.bad_input("BUILD-OPTIONS", f"{files.root}#{number}", str(problem)) from None


def _options(value: object, where: str) -> dict[str, str]:
    """{"A": text}: from a table, a list, or text with the options separated by |."""
    try:
        return options_in(written_options(value) if isinstance(value, str) else value)
    except ValueError as problem:
        raise f.bad_input("BUILD-OPTIONS", where, str(problem)) from None


def _options_and_answers(
    rows: list[tuple[dict, str]],
    answers: list[str],
    stated: list | None,
    column: str,
    begin: int | None,
    files: Folder,
    refused: list[f.Finding],
) -> tuple[list[dict], list[str]]:
    """The options of each row, `stated` in one column or in columns of their own, and its answer,
    by its letter where it is the number of an option."""
    if stated is None:
        options, lettered = _options_in_columns(rows, answers, files, refused)
        if begin is None:
            return options, lettered
    else:
        options = []
        for number, value in enumerate(stated):
            where = f"{files.root}#{number}"
            options.append(f.attempt(refused, _options, value, where) or {})
    numbered = (options, answers, column, begin)
    return options, f.attempt(refused, option_numbers.letters, *numbered) or answers


def _options_in_columns(
    rows: list[tuple[dict, str]], answers: list[str], files: Folder, refused: list[f.Finding]
) -> tuple[list[dict], list[str]]:
    """The options of each row that stand in columns of their own, and its answer, by its letter."""
    read = []
    for number, (row, _) in enumerate(rows):
        try:
            read.append(option_columns.with_letter(row, answers[number]))
        except ValueError as problem:
            where = f"{files.root}#{number}"
            refused += f.bad_input("BUILD-OPTIONS", where, str(problem)).findings
            read.append(({}, answers[number]))
    return [options for options, _ in read], [answer for _, answer in read]
