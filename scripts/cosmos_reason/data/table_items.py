"""The rows of tables as items: which column is what, which medium a row names, what it is asked."""

from __future__ import annotations

import contextlib
import json
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import (
    answer_forms,
    clip_columns,
    label_questions,
    option_columns,
    option_numbers,
    parts,
    source_files,
    split_names,
    thoughts,
)
from cosmos_reason.data import columns as column_roles
from cosmos_reason.data.columns import cell_text
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
    Row,
    by_row,
    exchange,
    name_of,
    one_per_id,
    refuse_unused,
)
from cosmos_reason.data.records import TAG
from cosmos_reason.data.samples import Media, Turn
from cosmos_reason.data.source_files import Folder, Held, Medium
from cosmos_reason.media.files import IMAGE_SUFFIXES

COLUMNS_NAMED = 40
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
    return [_of_clip(name, value) for name, value in rows[0].items()]


def _of_clip(name: str, value: object) -> dict:
    if are_pairs(value):
        return {"video": name, "qa_pairs": value}
    if isinstance(value, dict) and {"q", "a"} <= value.keys():
        return {"video": name, "qa_pairs": [value]}
    if isinstance(value, dict) and column_roles.OF_TEXTS & value.keys():
        return {"video": name, **value}
    return {"video": name, "answer": value}


def each_caption(rows: list) -> Iterator:
    """A row for each text of those that have several captions; other rows as they are."""
    for row in rows:
        captions = row.get("captions") if isinstance(row, dict) else None
        if isinstance(captions, list) and all(isinstance(text, str) for text in captions):
            others = {name: value for name, value in row.items() if name != "captions"}
            yield from ({**others, "caption": text} for text in captions)
        else:
            yield row


def labelled_by_folder(files: Folder, split: str) -> list[Row]:
    """One row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not column_roles.names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        rows.append(Row({"video": name, "answer": label}, "", name, len(rows)))
    labels = {row.values["answer"] for row in rows}
    are_splits = {label.lower() for label in labels} <= split_names.NAMES.keys()
    if len(labels) < 2 or "" in labels or are_splits:
        message = f"got {len(rows)} media files in {len(labels)} folders and no labels"
        fix = (
            "write a table labels.csv beside them (video,label), "
            "or put them into one folder per label"
        )
        raise f.bad_input("BUILD-NO-LABELS", files.root, message, fix)
    return rows


def items(
    rows: list[Row],
    files: Folder,
    reading: Reading,
    problems: list[f.Finding],
    splits: list[str],
) -> Iterator[Item]:
    """One item per row: its columns are given or known by their names, its question is made from
    the labels when the row has none, and `splits` say what its split is called.

    What is wrong joins the `problems`, and reading goes on, so that one run says all.
    """
    given, begin = _without_numbered(reading.columns)
    cells, columns = _table(rows, given, files, problems)
    if not any(splits):
        columns.pop("split", None)  # told as a column that is not used
    files.roles = dict(columns)
    written = {role: cells.get(columns.get(role), [None] * len(rows)) for role in TEXT_COLUMNS}
    texts = {role: list(map(cell_text, written[role])) for role in TEXT_COLUMNS}
    refused: list[f.Finding] = []
    stated = written["options"] if "options" in columns else None
    reading_options = (rows, texts["answer"], stated, columns["answer"], begin, refused)
    options, answers = _options_and_answers(*reading_options)
    problems += _without_values(rows, columns, texts, options)
    answers, told = _in_one_form(rows, answers, options)
    problems += told
    media = _media(rows, columns, files, problems)
    parted = (rows, media, cells, columns, files, reading.skip_missing, problems)
    media = f.attempt(problems, parts.of_rows, *parted) or media
    asking = (texts["question"], answers, options, media, columns["answer"], reading)
    questions = f.attempt(problems, _questions, *asking) or texts["question"]
    for number, (kind, medium) in enumerate(media):
        where = rows[number].where
        turns = f.attempt(
            refused, _asked, questions[number], options[number], answers[number], where
        )
        if turns and medium:
            unnamed = f"row-{rows[number].number}"
            name = texts["id"][number] or name_of(medium, files, unnamed) or unnamed
            reasoning = thoughts.bare(texts["reasoning"][number])
            tags = _tags(rows[number].values)
            yield Item(name, ((kind, medium),), turns, reasoning, tags=tags, split=splits[number])
    problems += [*one_per_id(refused), *_unused(rows, cells, columns)]


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


def _unused(rows: list[Row], cells: column_roles.Cells, columns: dict[str, str]) -> list[f.Finding]:
    """The columns without a role by their names: a warning where one may mean more than it says."""
    read = _read_by_name(rows, cells)
    names = [name for name in column_roles.unused(cells, columns) if name not in read]
    if not names:
        return []
    message = f"left out the columns {', '.join(names[:COLUMNS_NAMED])}"
    if names[COLUMNS_NAMED:]:
        message += f" and {len(names) - COLUMNS_NAMED} more"
    meanings = {name: column_roles.meaning(name, cells[name]) for name in names}
    message += _meant(meanings)
    if any(map(column_roles.are_sentences, (cells[name] for name in names))):
        message += "; a text that says why an answer is right is trained by --column reasoning=NAME"
    meanings = {name: meant for name, meant in meanings.items() if meant}
    severity = f.WARNING if meanings else f.INFO
    data = {"columns": names, "meanings": meanings}
    return [f.Finding("BUILD-COLUMN-UNUSED", severity, rows[0].where, message, Fix(), data)]


def _read_by_name(rows: list[Row], cells: column_roles.Cells) -> set[str]:
    """Columns that are read without a role: options in columns of their own, tags, rates."""
    of_rates = (name for row in rows for name in rates(row.values))
    return {"tags", *option_columns.names(cells), *of_rates}


def _meant(meanings: dict[str, str]) -> str:
    """What is said of columns that may mean something, and how times are declared."""
    message = ""
    for meant in column_roles.MEANINGS:
        alike = [name for name, meaning in meanings.items() if meaning == meant]
        if alike:
            message += f"; {' and '.join(alike)} may be {meant}, which changes nothing here"
        roles = column_roles.time_roles(alike) if meant == column_roles.TIME else []
        if roles:
            words = " ".join(f"--column {shlex.quote(role)}" for role in roles)
            message += f": {words} cuts the parts out"
    return message


def _table(
    rows: list[Row], given: dict[str, str], files: Folder, problems: list[f.Finding]
) -> tuple[column_roles.Cells, dict[str, str]]:
    """What stands in the columns of all rows, and {role: column}."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    cells = {name: [row.values.get(name) for row in rows] for name in names}
    columns = column_roles.of_roles(cells, given, problems)
    folders = {row.folder for row in rows}
    if "answer" not in columns and len(folders) > 1:  # tables in folders named by the label
        columns["answer"] = "folder"
        cells["folder"] = [posixpath.basename(row.folder) for row in rows]
    if not {"video", "image"} & given.keys():
        of_clips = clip_columns.find(cells, columns, files)
        if of_clips:
            columns.pop("image", None)
            columns["video"] = of_clips
    column_roles.add_likely(cells, columns, problems)
    return cells, columns


def _without_values(
    rows: list[Row], columns: dict[str, str], texts: dict[str, list[str]], options: list[dict]
) -> list[f.Finding]:
    """Rows that have nothing in the column of the answer, or what programs write for nothing there,
    in a question or in a reasoning; unless it is the text of an option."""
    found = []
    if columns["answer"]:
        empty = [row for row, answer in zip(rows, texts["answer"], strict=True) if not answer]
        message = f"got no {columns['answer']}, expected an answer: write it, or remove the row"
        if empty:
            told = [(row, message if row is empty[0] else "none") for row in empty]
            found.append(by_row("BUILD-ANSWER-EMPTY", f.ERROR, told))
    for role in ("answer", "question", "reasoning"):
        void = [
            (row, text)
            for row, text, offered in zip(rows, texts[role], options, strict=True)
            if answer_forms.is_void(text) and text not in offered.values()
        ]
        if void:
            (first, text), *others = void
            message = (
                f"got {text} in {columns[role]}, which programs write for no value, "
                f"expected the {role}: write it (in other letters, where it is meant), or remove "
                "the row"
            )
            found.append(by_row("BUILD-TEXT-VOID", f.ERROR, [(first, message), *others]))
    return found


def _in_one_form(
    rows: list[Row], answers: list[str], options: list[dict]
) -> tuple[list[str], list[f.Finding]]:
    """The answers in one form each, but for those that choose an option, and what is said of it."""
    free = [place for place, offered in enumerate(options) if not offered]
    formed = answer_forms.in_one_form([answers[place] for place in free])
    written = list(answers)
    told = []
    for place, form in zip(free, formed, strict=True):
        if form != answers[place]:
            written[place] = form
            told.append((rows[place], f"{answers[place]!r} is trained as {form!r}"))
    return written, [by_row("BUILD-ANSWER-FORM", f.INFO, told)] if told else []


def _media(
    rows: list[Row], columns: dict[str, str], files: Folder, problems: list[f.Finding]
) -> list[tuple[str, Medium | None]]:
    """(kind, medium) of every row: UNNAMED in an empty cell, none where what stands there is
    refused or no column is known."""
    refused: list[f.Finding] = []
    media = []
    is_known = any(columns.get(kind) for kind in ("video", "image"))
    for row in rows:
        named = _named_medium(row.values, columns)
        medium = UNNAMED if is_known else None
        if named:
            medium = f.attempt(refused, source_files.find_video, files, named, row.folder)
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
    if not label:  # told already
        return stated
    labels = [answers[number] for number in unasked]
    kind, _ = media[unasked[0]]
    is_choice = any(options[number] for number in unasked)
    names = _label_fields(label, labels)
    if not reading.question and not reading.fields:
        _refuse_objects(label, labels, names)
    plain = label_questions.ask(reading.question, names, labels, kind, is_choice)
    worded = plain if len(names) > 1 else label_questions.worded(plain, names, labels)
    questions = list(stated)
    for number in unasked:
        questions[number] = plain if options[number] else worded
    return questions


def _refuse_objects(label: str, labels: list[str], names: list[str]) -> None:
    """Raise Failure where all labels are objects: which of it is the answer, nobody said."""
    if all(text.startswith("{") for text in labels):
        message = (
            f"got objects with {', '.join(names)} in {label}, expected the fields that are the "
            "answer (--fields), and the question that they answer (--question)"
        )
        raise f.bad_input("BUILD-QUESTION", "--question", message)


def _label_fields(label: str, labels: list[str]) -> list[str]:
    """The fields of labels that are objects, else the one column that they stand in."""
    fields: dict[str, None] = {}
    for text in labels:
        if not text.startswith("{"):
            return [label]
        with contextlib.suppress(ValueError):
            fields |= dict.fromkeys(json.loads(text))
    return list(fields) or [label]


def _asked(question: str, options: dict[str, str], answer: str, where: str) -> tuple[Turn, ...]:
    """The turns of a row, with its options in the question."""
    question = TAG.sub("", question)  # the record's own tags are written before it
    if "<answer>" not in question:
        answer = thoughts.untagged(answer)
    try:
        return exchange(*with_options(question, options, answer))
    except ValueError as problem:
        raise f.bad_input("BUILD-OPTIONS", where, str(problem)) from None


def _options_and_answers(
    rows: list[Row],
    answers: list[str],
    stated: list | None,
    column: str,
    begin: int | None,
    refused: list[f.Finding],
) -> tuple[list[dict], list[str]]:
    """The options of each row, `stated` in one column or in columns of their own, and its answer,
    by its letter where it is the number of an option or the name of its column."""
    options, lettered = [], list(answers)
    for place, row in enumerate(rows):
        try:
            if stated is None:
                read, lettered[place] = option_columns.of_row(row.values, answers[place])
            else:
                value = stated[place]
                read = options_in(written_options(value) if isinstance(value, str) else value)
        except ValueError as problem:
            refused += f.bad_input("BUILD-OPTIONS", row.where, str(problem)).findings
            read = {}
        options.append(read)
    where = [row.where for row in rows]
    numbered = (options, lettered, column, begin, where)
    return options, f.attempt(refused, option_numbers.letters, *numbered) or lettered
