"""The rows of tables as items: which column is what, which medium a row names, what it is asked."""

from __future__ import annotations

import contextlib
import datetime
import json
import posixpath
import re
import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import options as choices
from cosmos_reason.data import roles, source_files
from cosmos_reason.data.formats import are_pictures, rates
from cosmos_reason.data.items import (
    TRUTH,
    UNNAMED,
    Item,
    Named,
    Reading,
    Records,
    Row,
    Table,
    ask,
    by_row,
    form_added,
    joined_turns,
    name_of,
    one_per_id,
    refuse_unused,
)
from cosmos_reason.data.record_checks import CHECKS, damaged
from cosmos_reason.data.roles import Column, cell_text
from cosmos_reason.data.source_files import Folder, Held, Medium
from cosmos_reason.data.turns import (
    TAG,
    DateCell,
    Turn,
    alike,
    bare_thought,
    in_one_form,
    is_void,
    untagged,
    visible,
)
from cosmos_reason.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, names_medium

TEXT_ROLES = ("id", "question", "answer", "reasoning", "annotator")
PLACE = re.compile(r"\{([^{}\"':,\n]+)\}")  # {column} of a template; JSON is none
# What a spreadsheet makes dates of, dates as its CSV has them (2-Jan, 02. Jan, Jan-02, ISO), and
# the days since 1900 of 2000 to 2099.
PAIR = re.compile(r"\d{1,4} ?[-/–] ?\d{1,4}")
MONTH = (
    "(?:jan|ene|gen|feb|f[ée]v|m[aä]r|mrz|a[pbv]r|ma[yij]|jui?n|jui?l|giu|lug|ago?|aug|ao[uû]"
    "|sep|set|o[ck]t|ott|nov|d[eéi][cz])"
)
DATE = re.compile(
    rf"\d{{1,2}}(?:-|\. ?){MONTH}(?:vr?|s|t)?\.?(?:-\d{{2,4}})?|{MONTH}(?:vr?|s|t)?\.?-\d{{2}}"
    r"|\d{4}-\d\d-\d\d(?: 00:00(?::00)?)?",
    re.I,
)
SERIALS = range(36526, 73051)
LONGEST_KIND = 40  # characters of one word
FOLDER = "folder"  # stands for a column: the names of the folders of tables


def items(rows: list[Row], files: Folder, reading: Reading, problems: list[f.Finding]) -> Records:
    """Return an item for each question of each row: what its columns are is declared or known by
    their names (`roles`), the question is the row's own, or made of templates or of the labels.

    What is wrong joins the `problems`, and reading goes on, so that one run says all.
    """
    if reading.fields:  # of an object, which are the answers then
        from cosmos_reason.data import nested_rows

        plain, column = nested_rows.with_fields([row.values for row in rows], reading.fields)
        rows = [row._replace(values=values) for row, values in zip(rows, plain, strict=True)]
        others = tuple(one for one in reading.column if one.role != "answer")
        reading = replace(reading, column=(*others, Column(column, "answer", source="--fields")))
    for column, meanings in reading.values.items():
        rows = _with_values(rows, column, meanings, problems)
    if reading.also_ask_absent:
        from cosmos_reason.data import absent_events

        table = _table(rows, reading, [])  # what is wrong is told below
        table.media = _media(table, files, [])
        rows, reading = absent_events.asked(table, reading, problems)
        made, columns, unused, _ = _items_of(rows, files, reading, problems)
        events = [one for one in table.columns if one.role == "answer"]
        columns = [*events, *(one for one in columns if one.role != "answer")]
        return Records(made, columns, unused, [])
    if not reading.ask:
        return _items_of(rows, files, reading, problems)
    # Whether a picture may be a thumbnail is decided by all rows, whatever each is asked.
    table = _table(rows, replace(reading, ask=()), [], is_asked=True)
    table.media = _media(table, files, [])
    _refuse_thumbnails(table, problems)
    made = []
    columns: dict[Column, None] = {}
    unused: dict[str, int] = {}  # column -> questions that have no use for it
    for answered, template in reading.ask:
        there = [row for row in rows if cell_text(row.values.get(answered))]
        if len(there) < len(rows) and there:
            message = f"got nothing in {answered} of {len(rows) - len(there)} rows: not asked there"
            told = f.info("BUILD-ASK-EMPTY", answered, message, count=len(rows) - len(there))
            problems.append(told)
        others = [one for one in reading.column if one.role not in ("question", "answer")]
        saved = reading.saved
        if saved is not None:
            saved = tuple(one for one in saved if one.role not in ("question", "answer"))
        others += [Column(answered, "answer", source="--ask")]
        alone = replace(reading, column=tuple(others), saved=saved, question=template, ask=())
        found: list[f.Finding] = []
        # Of a column that there is not, or that is empty, all rows are told.
        asked = _items_of(there or rows, files, alone, found, is_asked=True)
        made += [one._replace(name=f"{one.name}-{answered}") for one in asked.items]
        # Every question meets the same clips: what is wrong with them is told once.
        problems += [
            one for one in found if one not in problems and one.id != "BUILD-COLUMN-UNUSED"
        ]
        columns |= dict.fromkeys(asked.columns)
        for name in asked.unused:
            unused[name] = unused.get(name, 0) + 1
    left = [name for name, questions in unused.items() if questions == len(reading.ask)]
    if left:
        from cosmos_reason.data import proposals

        problems += proposals.unused(Table(rows, {name: [] for name in left}), left)
    return Records(made, list(columns), left, [])


def _table(
    rows: list[Row], reading: Reading, problems: list[f.Finding], is_asked: bool = False
) -> Table:
    """Return the rows with the roles of their columns, and what they say as text. Questions of rows
    that are asked another have no use, nor have splits that hold nothing out."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    cells = {name: [row.values.get(name) for row in rows] for name in names}
    has_folders = FOLDER not in cells and len({row.folder for row in rows}) > 1
    folders = [posixpath.basename(row.folder) for row in rows]
    if has_folders and FOLDER in {one.name for one in reading.saved or ()}:
        cells[FOLDER] = folders
    columns = roles.resolve(cells, reading.column, reading.saved, problems)
    if has_folders and all(one.role != "answer" for one in columns):
        cells[FOLDER] = folders
        columns.append(Column(FOLDER, "answer", source="folders named by the label"))
    if not {"answer", "media"} <= {one.family for one in columns}:
        from cosmos_reason.data import proposals

        proposals.require(cells, columns, problems)
    useless = {"question"} if is_asked else set()
    if not any(row.split for row in rows):
        useless.add("split")
    columns = [one for one in columns if one.role not in useless]
    first = {one.role: one for one in reversed(columns)}
    texts = {role: [""] * len(rows) for role in TEXT_ROLES}
    for role in TEXT_ROLES:
        if role in first and first[role].name:
            texts[role] = [cell_text(value) for value in cells[first[role].name]]
    return Table(rows, cells, columns, first, texts, [{}] * len(rows))


def _with_values(
    rows: list[Row], name: str, meanings: dict[str, str], problems: list[f.Finding]
) -> list[Row]:
    """Return the rows with what the declared values of a column mean in the place of them. A value
    without a meaning, and a column that there is not, join the `problems`."""
    means: dict[str, str] = {}
    for old, new in meanings.items():
        if means.setdefault(alike(old), new) != new:
            message = f"got {old!r} as {new!r} and, in other letters, as {means[alike(old)]!r}"
            problems.append(f.error("BUILD-VALUE", name, message))
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
    return changed


def _items_of(
    rows: list[Row],
    files: Folder,
    reading: Reading,
    problems: list[f.Finding],
    is_asked: bool = False,
) -> Records:
    """Return one item per row. `is_asked`: by a question of its own, whatever questions the rows
    hold."""
    # Which column is what.
    table = _table(rows, reading, problems, is_asked)
    used = {one.name for one in table.columns} | set(PLACE.findall(reading.question))
    free = {name: cells for name, cells in table.cells.items() if name not in used}
    unused = [name for name, cells in free.items() if any(map(cell_text, cells))]

    # Answers, each in one form; those that choose an option stay as they are.
    refused: list[f.Finding] = []  # of single rows, the first of which is told
    table.answers = list(table.texts["answer"])
    if "options" in table.first:
        _take_options(table, refused)
    problems += _damage(table)
    free = [place for place, offered in enumerate(table.options) if not offered]
    formed = in_one_form([table.answers[place] for place in free])
    told = []
    for place, form in zip(free, formed, strict=True):
        if form != table.answers[place]:
            message = f"{table.answers[place]!r} is trained as {form!r}"
            if visible(table.answers[place]) == form:
                message += ", which Unicode writes in other characters"
            told.append((rows[place], message))
            table.answers[place] = form
    if told:
        problems.append(by_row("BUILD-ANSWER-FORM", f.INFO, told))
    # A list of one text stays a list: its column may hold longer ones, in this file or in the one
    # to evaluate on, and both must be asked for in one form.
    alone = []
    for row in rows:
        match row.values.get(table.first["answer"].name):
            case [str(text)]:
                alone.append((row, cell_text([text])))
    if alone:
        row, text = alone[0]
        message = (
            f"got the list {text}, which is trained as it is written: where every answer is one "
            "text, --convert takes it out of its list"
        )
        alone[0] = row, message
        problems.append(by_row("BUILD-ANSWER-FORM", f.WARNING, alone))

    # Clips, and the parts of them that times name.
    table.media = _media(table, files, problems)
    if not is_asked:
        _refuse_thumbnails(table, problems)
    if any(one.role in ("start", "end") and one.name for one in table.columns):
        from cosmos_reason.data import parts

        for number, media in enumerate(table.media):
            cut_out = f.attempt(
                problems,
                parts.of_rows,
                table,
                media,
                files,
                reading.skip_missing,
                reading.window,
                problems,
            )
            table.media[number] = cut_out or media
    elif reading.window:
        message = "got it without columns of times, expected --column start=NAME --column end=NAME"
        problems.append(f.error("USAGE", "--window", message, "drop --window"))
    clips = list(zip(*table.media, strict=True))  # of each row

    # Questions; only with them it is known what the columns without a role may mean.
    table.questions = (
        f.attempt(problems, _questions, table, reading, problems) or table.texts["question"]
    )
    from cosmos_reason.data import proposals

    if unused:
        problems += proposals.unused(table, unused, is_mapped=reading.saved is not None)
    if "annotator" not in table.first and not f.has_errors(problems):
        problems += proposals.several_answers(table)

    # Which of several annotators' answers count, and what stays on one side of a split.
    stays = [True] * len(rows)
    if "annotator" in table.first:
        from cosmos_reason.data import annotators

        stays = annotators.settle(table, clips, reading.adjudicate, problems)
    elif reading.adjudicate:
        message = "got it without a column of annotators, expected --column annotator=NAME"
        problems.append(f.error("USAGE", "--adjudicate", message, "drop --adjudicate"))
    turn = table.first.get("turn")
    if turn and ("id" not in table.first or "annotator" in table.first):
        message = (
            "got a column of turns, expected the column of what they are turns of, too (--column "
            "id=NAME), and none of annotators"
        )
        problems.append(f.error("BUILD-COLUMN", turn.name, message))
        turn = None
    groups = [()] * len(rows)
    if "group" in table.first:
        groups = _groups(table, problems)

    made: list[tuple[Item, Row]] = []
    of_tags = [one.name for one in table.columns if one.role == "tag"]
    for number, row in enumerate(rows):
        if not stays[number]:
            continue
        question, answer = table.questions[number], table.answers[number]
        if "<" in question:
            question = TAG.sub("", question)  # the record's own tags are written before it
        if "<answer>" in answer and "<answer>" not in question:
            answer = untagged(answer)
        if offered := table.options[number]:
            try:
                question, answer = choices.written_into(question, offered, answer)
                same = [one for one, text in offered.items() if text == offered.get(answer)]
                if same[1:]:
                    message = f"got the right option {offered[answer]!r} as {' and '.join(same)}"
                    raise ValueError(f"{message}, expected one right letter")
            except ValueError as problem:
                refused.append(f.error("BUILD-OPTIONS", row.where, str(problem)))
                continue
        named = clips[number]
        if named[1:]:  # an empty cell beside a clip names none
            named = tuple(one for one in named if one[1] != UNNAMED) or named[:1]
        if not named or not all(medium for _, medium in clips[number]):
            continue
        reasoning = table.texts["reasoning"][number]
        reasoning = bare_thought(reasoning) if reasoning else ""
        if "</think>" in reasoning:
            message = f"got an answer behind the reasoning in {table.first['reasoning'].name}: "
            message += "write them into columns of their own (--convert)"
            refused.append(f.error("BUILD-REASONING", row.where, message))
            continue
        tags: list[str] = []
        for name in of_tags:
            value = row.values.get(name)
            tags += map(str, value) if isinstance(value, list) else filter(None, [cell_text(value)])
        unnamed = f"row-{row.number}"
        item = Item(
            table.texts["id"][number] or name_of(named[0][1], files, unnamed) or unnamed,
            named,
            (Turn("user", question), Turn("assistant", answer)),
            reasoning,
            tags=tuple(tags),
            split=row.split,
            groups=groups[number],
        )
        made.append((item, row))
    whole = joined_turns(made, turn.name, problems) if turn else [item for item, _ in made]
    problems += one_per_id(refused)
    return Records(whole, table.columns, unused, [])


def _groups(table: Table, problems: list[f.Finding]) -> list[tuple[str, ...]]:
    """Return the groups of each row (camera=3); cells that differ in case or blanks are one."""
    groups: list[tuple[str, ...]] = [()] * len(table.rows)
    names = [one.name for one in table.columns if one.role == "group" and one.name]
    for name in names:
        for place, text in enumerate(in_one_form([*map(cell_text, table.cells[name])])):
            groups[place] += (f"{name}={text}",) if text else ()
    without = [row for row, of_row in zip(table.rows, groups, strict=True) if not of_row]
    if names and without:
        message = f"got no {' or '.join(names)}, so its clip is a group of its own"
        problems.append(by_row("BUILD-GROUP-EMPTY", f.WARNING, [(row, message) for row in without]))
    return groups


def _take_options(table: Table, refused: list[f.Finding]) -> None:
    """Take the options of each row, in one column or in columns of their own, into the table, and
    its answer by its letter, where it is the number of an option or the name of its column."""
    columns = [one for one in table.columns if one.role == "options" and one.name]
    options, lettered = table.options, table.answers
    names = [one.name for one in columns]
    for place, row in enumerate(table.rows):
        try:
            if names[1:]:
                found = choices.of_columns(row.values, names, lettered[place])
                options[place], lettered[place] = found
            else:
                value = row.values.get(names[0])
                if isinstance(value, str):
                    value = choices.of_text(value.strip(), columns[0].separator)
                options[place] = choices.of_value(value)
        except ValueError as problem:
            refused += f.bad_input("BUILD-OPTIONS", row.where, str(problem)).findings
    name, begin = table.first["answer"].name, table.first["answer"].numbered_from
    where = [row.where for row in table.rows]
    counted = f.attempt(refused, choices.letters, options, lettered, name, begin, where)
    table.answers = counted or lettered


def _damage(table: Table) -> list[f.Finding]:
    """Return what programs did to the texts on their way into the table, and what is missing."""
    found = []
    rows, texts = table.rows, table.texts
    # Sets call the kind of reasoning that a question takes by the name of the reasoning itself.
    thought = table.first.get("reasoning")
    words = list(dict.fromkeys(text for text in texts["reasoning"] if text))
    are_words = all(len(text) <= LONGEST_KIND and len(text.split()) == 1 for text in words)
    if words and are_words and thought.source == roles.BY_NAME:
        name = thought.name
        message = (
            f"got single words in {name} ({', '.join(map(repr, words[:3]))}), "
            f"expected one of --column {shlex.quote(f'reasoning={name}')} (they are trained as "
            f"reasoning), --column {shlex.quote(f'tag={name}')} (scores are counted by them), "
            f"--column {shlex.quote(f'ignore={name}')}"
        )
        found.append(f.error("BUILD-REASONING", rows[0].where, message))
    answered = table.first["answer"].name
    empty = [row for row, answer in zip(rows, texts["answer"], strict=True) if not answer]
    if answered and empty:
        message = f"got no {answered}, expected an answer: write it, or remove the row"
        told = [(row, message if row is empty[0] else "none") for row in empty]
        found.append(by_row("BUILD-ANSWER-EMPTY", f.ERROR, told))
    for role in ("answer", "question", "reasoning"):
        void = [
            (row, text)
            for row, text, offered in zip(rows, texts[role], table.options, strict=True)
            if text and is_void(text) and text not in offered.values()
        ]
        if void:
            (first, text), *others = void
            message = (
                f"got {text} in {table.first[role].name}, which programs write for no value, "
                f"expected the {role}: write it (in other letters, where it is meant), or remove "
                "the row"
            )
            found.append(by_row("BUILD-TEXT-VOID", f.ERROR, [(first, message), *others]))
    harmed: dict[str, list[tuple[Row, str]]] = defaultdict(list)
    known: dict[str, tuple[str, str] | None] = {}  # texts repeat
    for place, row in enumerate(rows):
        here = [texts[role][place] for role in ("question", "answer", "reasoning")]
        for text in [*here, *map(str, table.options[place].values())]:
            if text not in known:
                known[text] = damaged(text)
            if known[text]:
                id, message = known[text]
                harmed[id].append((row, message))
                break
    for id, of_id in harmed.items():
        severity, _, way_out = CHECKS[id]
        of_id[0] = of_id[0][0], f"{of_id[0][1]}: {way_out}"
        found.append(by_row(id, severity, of_id))
    # A spreadsheet makes the second of January of 1-2: an error where a cell is a date, and where
    # the answers beside it are such pairs of numbers; a warning for texts that look like one.
    dates: dict[str, list[tuple[Row, str]]] = defaultdict(list)
    are_pairs = any(map(PAIR.fullmatch, texts["answer"]))
    for one in table.columns:
        if one.role not in ("answer", "options"):
            continue
        for row in rows:
            value = row.values.get(one.name)
            text = cell_text(value)
            is_serial = are_pairs and text.isdecimal() and int(text) in SERIALS
            if isinstance(value, DateCell | datetime.date):
                dates[f.ERROR].append((row, f"got the date {text} in {one.name}"))
            elif is_serial or (one.role == "answer" and DATE.fullmatch(text)):
                severity = f.ERROR if are_pairs else f.WARNING
                told = f"got {text!r} in {one.name}, as spreadsheets write dates"
                dates[severity].append((row, told))
    for severity, of_kind in dates.items():
        (row, message), *others = of_kind
        message += (
            "; spreadsheets make dates of what is typed as 1-2 or 3/4: write it as a text (in a "
            "column of the format Text), or say what it means (--values 'COLUMN: DATE=1-2, ...', "
            "DATE=DATE where a date is meant)"
        )
        found.append(by_row("BUILD-ANSWER-DATE", severity, [(row, message), *others]))
    return found


def _media(table: Table, files: Folder, problems: list[f.Finding]) -> list[list[Named]]:
    """Return (kind, medium) of every row, for each column of media: UNNAMED in an empty cell, None
    where what stands there is refused or no column is known. A cell names a file, a list of
    pictures, or a folder of them, whose rate stands in the row."""
    refused: list[f.Finding] = []
    shown = []
    # (name, pictures, rate, folder) -> medium: rows often share a clip
    known: dict[tuple, Medium | None] = {}
    for one in table.columns:
        if one.role not in roles.MEDIA:
            continue
        media: list[Named] = []
        for row in table.rows:
            kind = "image" if one.role == "image" else "video"
            medium = UNNAMED if one.name else None
            value = row.values.get(one.name)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            pictures = ()
            if isinstance(value, list):
                is_list = are_pictures(value)
                if is_list and kind == "video":
                    value, pictures = value[0], tuple(value)
                elif len(value) == 1 and not is_list:
                    value = value[0]
            if isinstance(value, str) and value:
                fps = None
                of_pictures = kind == "video" and not names_medium(value)
                of_pictures |= bool(pictures)
                for stated in rates(row.values).values() if of_pictures else ():
                    with contextlib.suppress(TypeError, ValueError):  # it may stand there as text
                        fps = float(stated) or None
                        break
                meant = (value, pictures, fps, row.folder)
                if known.get(meant) is None:  # each row that is refused is counted
                    known[meant] = None
                    try:
                        known[meant] = source_files.find_medium(
                            files, kind, value, row.folder, pictures, fps
                        )
                    except f.Failure as failure:
                        refused += failure.findings
                medium = known[meant]
            else:
                kind = "video"
            is_image = isinstance(medium, Path | Held) and medium.suffix.lower() in IMAGE_SUFFIXES
            media.append(("image" if is_image else kind, medium))
        shown.append(media)
    if files.transcode:
        made = source_files.transcoded(files, known.values(), problems)
        shown = [[(kind, made.get(one, one)) for kind, one in media] for media in shown]
    problems += one_per_id(refused)
    return shown or [[("video", None)] * len(table.rows)]


def _refuse_thumbnails(table: Table, problems: list[f.Finding]) -> None:
    """Report names without a suffix that are pictures, in a column of clips that names clips so,
    too: a picture may be meant, or be the thumbnail of a clip that is missing."""
    columns = [one for one in table.columns if one.role in roles.MEDIA]
    for one, media in zip(columns, table.media, strict=False):  # none are of a column that is not
        if one.role != "video":
            continue
        stills, has_clips = [], False
        for row, (kind, medium) in zip(table.rows, media, strict=True):
            value = row.values.get(one.name)
            name = value[0] if isinstance(value, list) and len(value) == 1 else value
            if not names_medium(str(name)):
                has_clips |= getattr(medium, "suffix", "").lower() in VIDEO_SUFFIXES
                if kind == "image":
                    stills.append((row, f"{medium.stem}{medium.suffix}"))
        if has_clips and stills:
            row, picture = stills[0]
            both = shlex.quote(f"media={one.name}")
            message = (
                f"got a name that only the picture {picture} has, in a column that names clips: "
                "write whole names (.jpg where a picture is meant, .mp4 where its clip is missing),"
                f" or declare --column {both} where every such picture is meant"
            )
            stills[0] = row, message
            problems.append(by_row("BUILD-MEDIA-AMBIGUOUS", f.ERROR, stills))


def _questions(table: Table, reading: Reading, problems: list[f.Finding]) -> list[str]:
    """Return the question of every row: its own, or one for all labels without; rows that bring
    options are asked it without the labels in words."""
    stated, cells = table.texts["question"], table.cells
    unasked = [number for number, question in enumerate(stated) if not question]
    if not unasked:
        refuse_unused(reading, ("question",), "rows that hold their questions")
        return stated
    label = table.first["answer"].name
    if not label:  # told already
        return stated
    if not reading.question and len(unasked) == len(stated):
        from cosmos_reason.data import proposals

        likely = proposals.asking(cells, table.columns)
        if likely:  # its texts would be thrown away for one question about the labels
            message = f"got no question, and {likely}, whose texts all ask something"
            fix = Fix(flags={"--column": f"question={likely}"})
            raise f.bad_input("BUILD-QUESTION", "--question", message, fix)
    labels = [table.answers[number] for number in unasked]
    words = {alike(text): text for text in labels}
    if len(words) > 2 and words.keys() <= TRUTH:  # y beside yes, 1 beside TRUE
        message = (
            f"got {', '.join(words.values())} as answers to one question, expected one word for "
            f"each of both: --values {shlex.quote(f'{label}: OLD=NEW, ...')} says what they mean"
        )
        raise f.bad_input("BUILD-VALUE", label, message)
    fields: dict[str, None] = {}  # of labels that are objects, all of them
    for text in labels:
        if not text.startswith("{"):
            fields = {}
            break
        with contextlib.suppress(ValueError):
            fields |= dict.fromkeys(json.loads(text))
    names = list(fields) or [label]
    are_objects = all(text.startswith("{") for text in labels)
    if are_objects and not reading.question and not reading.fields:  # which of it is the answer?
        message = (
            f"got objects with {', '.join(names)} in {label}, expected the fields that are the "
            "answer (--fields), and the question that they answer (--question)"
        )
        raise f.bad_input("BUILD-QUESTION", "--question", message)
    kind, _ = table.media[0][unasked[0]]
    is_choice = any(table.options[number] for number in unasked)
    plain, form = ask(reading.question, names, labels, kind, is_choice)
    if len(names) > 1:
        form = ""
    places = PLACE.findall(plain)
    for name in places:
        if name not in cells:
            message = f"got {{{name}}}, which is no column, expected one of {', '.join(cells)}."
            message += f.did_you_mean(name, cells)
            raise f.bad_input("BUILD-QUESTION", "--question", message)
    questions = list(stated)
    empty: list[tuple[Row, str]] = []
    for number in unasked:
        filled = plain
        for name in places:
            text = cell_text(cells[name][number])
            filled = filled.replace(f"{{{name}}}", text)
            if not text:
                empty.append(
                    (table.rows[number], f"got nothing in {name}, which the question names")
                )
        questions[number] = filled if table.options[number] else filled + form
    if empty:
        raise f.Failure(by_row("BUILD-QUESTION", f.ERROR, empty), f.EXIT_BAD_INPUT)
    if not all(table.options[number] for number in unasked):
        problems += form_added(form)
    return questions
