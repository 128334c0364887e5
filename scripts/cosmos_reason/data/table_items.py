"""The rows of tables as items: which column is what, which medium a row names, what it is asked."""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import (
    absent_events,
    annotators,
    label_questions,
    parts,
    roles,
    source_files,
    split_names,
)
from cosmos_reason.data import options as choices
from cosmos_reason.data.formats import RATES, are_pictures, rates
from cosmos_reason.data.items import (
    UNNAMED,
    Item,
    Reading,
    Row,
    by_row,
    exchange,
    joined_turns,
    name_of,
    one_per_id,
    refuse_unused,
)
from cosmos_reason.data.records import TAG
from cosmos_reason.data.roles import Column, cell_text
from cosmos_reason.data.samples import (
    Media,
    Turn,
    alike,
    bare_thought,
    in_one_form,
    is_void,
    names_medium,
    untagged,
)
from cosmos_reason.data.source_files import Folder, Held, Medium
from cosmos_reason.media.files import IMAGE_SUFFIXES

COLUMNS_NAMED = 40
TEXT_ROLES = ("id", "question", "answer", "reasoning", "annotator")
PLACE = re.compile(r"\{([^{}\"':,\n]+)\}")  # {column} of a template; JSON is none
LONGEST_KIND = 40  # characters of one word
FOLDER = "folder"  # stands for a column: the names of the folders of tables


def labelled_by_folder(files: Folder, split: str) -> list[Row]:
    """One row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        rows.append(Row({"video": name, "answer": label}, "", name, len(rows)))
    labels = {row.values["answer"] for row in rows}
    are_splits = {label.lower() for label in labels} <= split_names.NAMES.keys()
    if len(labels) < 2 or "" in labels or are_splits:
        message = f"got {len(rows)} media files in {len(labels)} folders and no labels; "
        message += "write a table labels.csv beside them (video,label), or put them into one "
        message += "folder per label"
        raise f.bad_input("BUILD-NO-LABELS", files.root, message)
    return rows


def items(
    rows: list[Row],
    files: Folder,
    reading: Reading,
    problems: list[f.Finding],
    splits: list[str],
) -> Iterator[Item]:
    """An item for each question of each row: what its columns are is declared or known by their
    names (`roles`), the question is the row's own, or made of templates or of the labels, and
    `splits` say what a row's split is called.

    What is wrong joins the `problems`, and reading goes on, so that one run says all.
    """
    rows = _with_values(rows, reading.values, problems)
    if reading.absent:
        _, chosen = _table(rows, files, reading, [])  # what is wrong is told below
        named = _media(rows, chosen, files, [])[0]
        asking = (rows, splits, named, chosen, reading, problems)
        rows, splits, reading = absent_events.asked(*asking)
        yield from _items_of(rows, files, reading, problems, splits)
        events = [one for one in chosen if one.role == "answer"]
        files.columns = [*events, *(one for one in files.columns if one.role != "answer")]
        return
    if not reading.asks:
        yield from _items_of(rows, files, reading, problems, splits)
        return
    columns: dict[Column, None] = {}
    unused: list[set[str]] = []
    for answered, template in reading.asks:
        there = [place for place, row in enumerate(rows) if cell_text(row.values.get(answered))]
        if len(there) < len(rows) and there:
            message = f"got nothing in {answered} of {len(rows) - len(there)} rows: not asked there"
            told = f.info("BUILD-ASK-EMPTY", answered, message, count=len(rows) - len(there))
            problems.append(told)
        there = there or list(range(len(rows)))  # told as a column that there is not, or empty
        others = [one for one in reading.columns if one.role not in ("question", "answer")]
        saved = reading.saved
        if saved is not None:
            saved = tuple(one for one in saved if one.role not in ("question", "answer"))
        others += [Column(answered, "answer", source="--ask")]
        alone = replace(reading, columns=tuple(others), saved=saved, question=template, asks=())
        found: list[f.Finding] = []
        here = [rows[place] for place in there]
        asked = _items_of(here, files, alone, found, [splits[place] for place in there], True)
        yield from (one._replace(name=f"{one.name}-{answered}") for one in asked)
        # Every question meets the same clips: what is wrong with them is told once.
        problems += [one for one in found if one not in problems and not _is_unused(one)]
        columns |= dict.fromkeys(files.columns)
        unused.append(set(files.unused))
    files.columns = list(columns)
    left = set.intersection(*unused)
    files.unused = [name for name in files.unused if name in left]
    problems += _unused(rows, {name: [] for name in left}, files.unused)


def _is_unused(finding: f.Finding) -> bool:
    return finding.id == "BUILD-COLUMN-UNUSED"


def _with_values(
    rows: list[Row], values: dict[str, dict[str, str]], problems: list[f.Finding]
) -> list[Row]:
    """The rows with what declared values mean in the place of them. A value without a meaning, and
    a column that there is not, join the `problems`."""
    for name, meanings in values.items():
        means = {alike(old): new for old, new in meanings.items()}
        unknown: list[tuple[Row, str]] = []
        changed = []
        for row in rows:
            text = cell_text(row.values.get(name))
            new = means.get(alike(text))
            if new is None and text:
                message = f"got {text!r} in {name}, which no value of --values stands for"
                unknown.append((row, message if not unknown else repr(text)))
            there = row.values if new is None else {**row.values, name: new}
            changed.append(row._replace(values=there))
        if not any(name in row.values for row in rows):
            names = dict.fromkeys(other for row in rows for other in row.values)
            message = f"got no such column, expected one of {', '.join(names)}"
            problems.append(f.error("BUILD-COLUMN", name, message))
        if unknown:
            problems.append(by_row("BUILD-VALUE", f.ERROR, unknown))
        rows = changed
    return rows


def _items_of(
    rows: list[Row],
    files: Folder,
    reading: Reading,
    problems: list[f.Finding],
    splits: list[str],
    is_asked: bool = False,
) -> Iterator[Item]:
    """One item per row. `is_asked`: by a question of its own, whatever questions the rows hold."""
    cells, chosen = _table(rows, files, reading, problems)
    if is_asked:
        chosen = [one for one in chosen if one.role != "question"]
    if not any(splits):  # told as a column that is not used
        chosen = [one for one in chosen if one.role != "split"]
    files.columns = chosen
    in_question = set(PLACE.findall(reading.question))
    files.unused = [name for name in roles.unused(cells, chosen) if name not in in_question]
    columns = {one.role: one for one in reversed(chosen)}  # the first of each role
    texts = {role: _texts(rows, cells, columns.get(role)) for role in TEXT_ROLES}
    answered = columns["answer"].name
    refused: list[f.Finding] = []
    problems += _kinds_of_reasoning(rows, columns.get("reasoning"), texts["reasoning"])
    options, answers = _options_and_answers(rows, texts["answer"], chosen, refused)
    problems += _without_values(rows, columns, texts, options)
    answers, told = _in_one_form(rows, answers, options)
    problems += told
    shown = _media(rows, chosen, files, problems)
    for number, media in enumerate(shown):
        parted = (rows, media, cells, chosen, files, reading.skip_missing, problems)
        shown[number] = f.attempt(problems, parts.of_rows, *parted) or media
    media = [tuple(dict.fromkeys(named)) for named in zip(*shown, strict=True)]
    questions = texts["question"]
    asking = (rows, questions, answers, options, shown[0], answered, reading, cells, chosen)
    asked = f.attempt(problems, _questions, *asking) or questions
    times = [name for name in files.unused if roles.meaning(name) == roles.TIME]
    if answered and not any(one.role == "start" for one in chosen):
        problems += parts.contradictions(shown[0], texts["answer"], questions, times, cells)
    stays = [True] * len(rows)
    if "annotator" in columns:
        offered = [tuple(one.items()) for one in options]
        units = list(zip(media, asked, offered, strict=True))
        by = (asked, texts["annotator"], answers, reading.adjudicate, problems)
        stays, answers = annotators.settled(rows, units, *by)
    elif reading.adjudicate:
        message = "got it without a column of annotators, expected --column annotator=NAME"
        problems.append(f.error("USAGE", "--adjudicate", message, "drop --adjudicate"))
    turn = columns.get("turn")
    if turn and ("id" not in columns or "annotator" in columns):
        message = (
            "got a column of turns, expected the column of what they are turns of, too (--column "
            "id=NAME), and none of annotators"
        )
        problems.append(f.error("BUILD-COLUMN", turn.name, message))
        turn = None
    made: list[tuple[Item, Row]] = []
    has_tags = any(one.role == "tag" for one in chosen)
    has_groups = any(one.role == "group" for one in chosen)
    for number, row in enumerate(rows):
        if not stays[number]:
            continue
        try:
            turns = _asked(asked[number], options[number], answers[number])
        except ValueError as problem:
            refused.append(f.error("BUILD-OPTIONS", row.where, str(problem)))
            continue
        named = tuple((kind, medium) for kind, medium in media[number] if medium)
        if named[1:]:  # an empty cell beside a clip names none
            named = tuple(one for one in named if one[1] != UNNAMED)
        is_whole = all(medium for _, medium in media[number])
        if named and is_whole:
            unnamed = f"row-{row.number}"
            name = texts["id"][number] or name_of(named[0][1], files, unnamed) or unnamed
            reasoning = texts["reasoning"][number]
            reasoning = bare_thought(reasoning) if reasoning else ""
            tags = _tags(row.values, chosen) if has_tags else ()
            groups = _groups(row.values, chosen) if has_groups else ()
            item = Item(
                name, named, turns, reasoning, tags=tags, split=splits[number], groups=groups
            )
            if turn:
                made.append((item, row))
            else:
                yield item
    if turn:
        yield from joined_turns(made, turn.name, problems)
    problems += [*one_per_id(refused), *_unused(rows, cells, files.unused)]


def _texts(rows: list[Row], cells: roles.Cells, column: Column | None) -> list[str]:
    """What stands in a column, as text; "" in every row without a column."""
    if column is None or column.name not in cells:
        return [""] * len(rows)
    return list(map(cell_text, cells[column.name]))


def _kinds_of_reasoning(
    rows: list[Row], column: Column | None, texts: list[str]
) -> list[f.Finding]:
    """An error for a column that nobody declared and that holds single words: sets call the kind
    of reasoning that a question takes by the name of the reasoning itself."""
    words = [text for text in texts if text]
    if column is None or column.source != roles.BY_NAME or not words:
        return []
    if not all(len(text) <= LONGEST_KIND and len(text.split()) == 1 for text in words):
        return []
    name = column.name
    message = (
        f"got single words in {name} ({', '.join(map(repr, list(dict.fromkeys(words))[:3]))}), "
        f"expected one of --column {shlex.quote(f'reasoning={name}')} (they are trained as "
        f"reasoning), --column {shlex.quote(f'tag={name}')} (scores are counted by them), "
        f"--column {shlex.quote(f'ignore={name}')}"
    )
    return [f.error("BUILD-REASONING", rows[0].where, message)]


def _tags(row: dict, chosen: list[Column]) -> tuple[str, ...]:
    """The tags of a row: the texts of a list, or one text."""
    tags: list[str] = []
    for one in chosen:
        value = row.get(one.name) if one.role == "tag" else None
        tags += map(str, value) if isinstance(value, list) else filter(None, [cell_text(value)])
    return tuple(tags)


def _groups(row: dict, chosen: list[Column]) -> tuple[str, ...]:
    named = [one.name for one in chosen if one.role == "group" and cell_text(row.get(one.name))]
    return tuple(f"{name}={cell_text(row[name])}" for name in named)


def _unused(rows: list[Row], cells: roles.Cells, names: list[str]) -> list[f.Finding]:
    """The columns without a role by their names: a warning where one may mean more than it says."""
    names = [name for name in names if name not in RATES]  # which are read beside pictures
    if not names:
        return []
    message = f"left out the columns {', '.join(names[:COLUMNS_NAMED])}"
    if names[COLUMNS_NAMED:]:
        message += f" and {len(names) - COLUMNS_NAMED} more"
    meanings = {name: meant for name in names if (meant := roles.meaning(name))}
    for meant in roles.MEANINGS:
        alike = [name for name, meaning in meanings.items() if meaning == meant]
        if not alike:
            continue
        message += f"; {' and '.join(alike)} may be {meant}, which changes nothing here"
        if meant == roles.TIME:
            words = [f"--column {shlex.quote(role)}" for role in roles.time_roles(cells, alike)]
            if words:
                message += f": {' '.join(words)} cuts the parts out (start is seconds, others are "
                message += "start_ms and start_frame)"
        else:
            role = roles.DECLARED_BY[meant]
            message += f": --column {shlex.quote(f'{role}={alike[0]}')} declares it"
    severity = f.WARNING if meanings else f.INFO
    data = {"columns": names, "meanings": meanings}
    return [f.Finding("BUILD-COLUMN-UNUSED", severity, rows[0].where, message, Fix(), data)]


def _table(
    rows: list[Row], files: Folder, reading: Reading, problems: list[f.Finding]
) -> tuple[roles.Cells, list[Column]]:
    """What stands in the columns of all rows, and the columns that have a role."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    cells = {name: [row.values.get(name) for row in rows] for name in names}
    folders = {row.folder for row in rows}
    has_folders = FOLDER not in cells and len(folders) > 1
    if has_folders and FOLDER in {one.name for one in reading.saved or ()}:
        cells[FOLDER] = [posixpath.basename(row.folder) for row in rows]
    chosen = roles.resolve(cells, reading.columns, reading.saved, problems)
    if has_folders and all(one.role != "answer" for one in chosen):
        cells[FOLDER] = [posixpath.basename(row.folder) for row in rows]
        chosen.append(Column(FOLDER, "answer", source="folders named by the label"))
    return cells, roles.require(cells, chosen, problems)


def _without_values(
    rows: list[Row], columns: dict[str, Column], texts: dict[str, list[str]], options: list[dict]
) -> list[f.Finding]:
    """Rows that have nothing in the column of the answer, or what programs write for nothing there,
    in a question or in a reasoning; unless it is the text of an option."""
    found = []
    answered = columns["answer"].name
    if answered:
        empty = [row for row, answer in zip(rows, texts["answer"], strict=True) if not answer]
        message = f"got no {answered}, expected an answer: write it, or remove the row"
        if empty:
            told = [(row, message if row is empty[0] else "none") for row in empty]
            found.append(by_row("BUILD-ANSWER-EMPTY", f.ERROR, told))
    for role in ("answer", "question", "reasoning"):
        void = [
            (row, text)
            for row, text, offered in zip(rows, texts[role], options, strict=True)
            if is_void(text) and text not in offered.values()
        ]
        if void:
            (first, text), *others = void
            message = (
                f"got {text} in {columns[role].name}, which programs write for no value, "
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
    formed = in_one_form([answers[place] for place in free])
    written = list(answers)
    told = []
    for place, form in zip(free, formed, strict=True):
        if form != answers[place]:
            written[place] = form
            told.append((rows[place], f"{answers[place]!r} is trained as {form!r}"))
    return written, [by_row("BUILD-ANSWER-FORM", f.INFO, told)] if told else []


def _media(
    rows: list[Row], chosen: list[Column], files: Folder, problems: list[f.Finding]
) -> list[list[tuple[str, Medium | None]]]:
    """(kind, medium) of every row, for each column of media: UNNAMED in an empty cell, None where
    what stands there is refused or no column is known."""
    refused: list[f.Finding] = []
    columns = [one for one in chosen if one.role in roles.MEDIA]
    shown = []
    # (name, pictures, rate, folder) -> medium: rows often share a clip
    known: dict[tuple, Medium | None] = {}
    for one in columns:
        media = []
        for row in rows:
            named = _named_medium(row.values, one)
            medium = UNNAMED if one.name else None
            if named:
                meant = (named.path, named.pictures, named.fps, row.folder)
                if known.get(meant) is None:  # each row that is refused is counted
                    find = (source_files.find_video, files, named, row.folder)
                    known[meant] = f.attempt(refused, *find)
                medium = known[meant]
            is_image = isinstance(medium, Path | Held) and medium.suffix.lower() in IMAGE_SUFFIXES
            kind = named.kind if named else "video"
            media.append(("image" if is_image else kind, medium))
        shown.append(media)
    problems += one_per_id(refused)
    return shown or [[("video", None)] * len(rows)]


def _named_medium(row: dict, column: Column) -> Media | None:
    """What a cell names: a file, a list of pictures, or a folder of them; None in an empty one."""
    kind = "image" if column.role == "image" else "video"
    value = row.get(column.name)
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
    rows: list[Row],
    stated: list[str],
    answers: list[str],
    options: list[dict],
    media: list[tuple[str, Medium | None]],
    label: str,
    reading: Reading,
    cells: roles.Cells,
    chosen: list[Column],
) -> list[str]:
    """The question of every row: its own, or one for all labels without; rows that bring options
    are asked it without the labels in words."""
    unasked = [number for number, question in enumerate(stated) if not question]
    if not unasked:
        refuse_unused(reading, ("question",), "rows that hold their questions")
        return stated
    if not label:  # told already
        return stated
    likely = roles.asking(cells, chosen)
    if likely and not reading.question and len(unasked) == len(stated):
        message = f"got no question, and {likely}, whose texts all ask something"
        fix = Fix(flags={"--column": f"question={likely}"})
        raise f.bad_input("BUILD-QUESTION", "--question", message, fix)
    labels = [answers[number] for number in unasked]
    kind, _ = media[unasked[0]]
    is_choice = any(options[number] for number in unasked)
    names = _label_fields(label, labels)
    if not reading.question and not reading.fields:
        _refuse_objects(label, labels, names)
    plain = label_questions.ask(reading.question, names, labels, kind, is_choice)
    worded = plain if len(names) > 1 else label_questions.worded(plain, names, labels)
    form = worded[len(plain) :]
    named = _places(plain, cells)
    questions = list(stated)
    empty: list[tuple[Row, str]] = []
    for number in unasked:
        filled = plain
        for name in named:
            text = cell_text(cells[name][number])
            filled = filled.replace(f"{{{name}}}", text)
            if not text:
                empty.append((rows[number], f"got nothing in {name}, which the question names"))
        questions[number] = filled if options[number] else filled + form
    if empty:
        raise f.Failure(by_row("BUILD-QUESTION", f.ERROR, empty), f.EXIT_BAD_INPUT)
    return questions


def _places(template: str, cells: roles.Cells) -> list[str]:
    """The columns that a template names. Raises Failure for one that there is not."""
    named = PLACE.findall(template)
    for name in named:
        if name not in cells:
            message = f"got {{{name}}}, which is no column, expected one of {', '.join(cells)}."
            message += f.did_you_mean(name, cells)
            raise f.bad_input("BUILD-QUESTION", "--question", message)
    return named


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


def _asked(question: str, options: dict[str, str], answer: str) -> tuple[Turn, ...]:
    """The turns of a row, with its options in the question. Raises ValueError for an answer that is
    none of them."""
    if "<" in question:
        question = TAG.sub("", question)  # the record's own tags are written before it
    if "<answer>" in answer and "<answer>" not in question:
        answer = untagged(answer)
    if not options:
        return exchange(question, answer)
    return exchange(*choices.written_into(question, options, answer))


def _options_and_answers(
    rows: list[Row], answers: list[str], chosen: list[Column], refused: list[f.Finding]
) -> tuple[list[dict], list[str]]:
    """The options of each row, in one column or in columns of their own, and its answer, by its
    letter where it is the number of an option or the name of its column."""
    columns = [one for one in chosen if one.role == "options" and one.name]
    options: list[dict] = [{}] * len(rows)
    lettered = list(answers)
    if not columns:
        return options, lettered
    names = [one.name for one in columns]
    separator = columns[0].separator
    for place, row in enumerate(rows):
        try:
            if names[1:]:
                options[place], lettered[place] = choices.of_columns(
                    row.values, names, answers[place]
                )
            else:
                value = row.values.get(names[0])
                if isinstance(value, str):
                    value = choices.of_text(value.strip(), separator)
                options[place] = choices.of_value(value)
        except ValueError as problem:
            refused += f.bad_input("BUILD-OPTIONS", row.where, str(problem)).findings
    answered = next(one for one in chosen if one.role == "answer")
    where = [row.where for row in rows]
    numbered = (options, lettered, answered.name, answered.numbered_from, where)
    return options, f.attempt(refused, choices.letters, *numbered) or lettered
