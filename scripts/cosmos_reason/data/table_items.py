"""The rows of tables as items: which column is what, which medium a row names, what it is asked."""

from __future__ import annotations

import contextlib
import datetime
import json
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import options as choices
from cosmos_reason.data import (
    roles,
    source_files,
    split_names,
)
from cosmos_reason.data.formats import RATES, are_pictures, rates
from cosmos_reason.data.items import (
    TRUTH,
    UNNAMED,
    Item,
    Reading,
    Records,
    Row,
    ask,
    by_row,
    joined_turns,
    name_of,
    one_per_id,
    refuse_unused,
    worded,
)
from cosmos_reason.data.record_checks import CHECKS, damaged
from cosmos_reason.data.records import TAG
from cosmos_reason.data.roles import Column, cell_text
from cosmos_reason.data.samples import (
    DateCell,
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


def labelled_by_folder(files: Folder, split: str) -> list[Row]:
    """Return one row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        rows.append(Row({"video": name, "answer": label}, "", name, len(rows)))
    labels = {row.values["answer"] for row in rows}
    are_splits = all(map(split_names.exact, labels))
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
) -> Records:
    """Return an item for each question of each row: what its columns are is declared or known by
    their names (`roles`), the question is the row's own, or made of templates or of the labels, and
    `splits` say what a row's split is called.

    What is wrong joins the `problems`, and reading goes on, so that one run says all.
    """
    for column, meanings in reading.values.items():
        rows = _with_values(rows, column, meanings, problems)
    if reading.absent:
        _, chosen = _table(rows, reading, [])  # what is wrong is told below
        named = _media(rows, chosen, files, [])[0]
        from cosmos_reason.data import absent_events

        asking = (rows, splits, named, chosen, reading, problems)
        rows, splits, reading = absent_events.asked(*asking)
        made, columns, unused, _ = _items_of(rows, files, reading, problems, splits)
        events = [one for one in chosen if one.role == "answer"]
        return Records(
            made, [*events, *(one for one in columns if one.role != "answer")], unused, []
        )
    if not reading.asks:
        return _items_of(rows, files, reading, problems, splits)
    made = []
    columns: dict[Column, None] = {}
    unused: dict[str, int] = {}  # column -> questions that have no use for it
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
        made += [one._replace(name=f"{one.name}-{answered}") for one in asked.items]
        # Every question meets the same clips: what is wrong with them is told once.
        problems += [
            one for one in found if one not in problems and one.id != "BUILD-COLUMN-UNUSED"
        ]
        columns |= dict.fromkeys(asked.columns)
        for name in asked.unused:
            unused[name] = unused.get(name, 0) + 1
    left = [name for name, questions in unused.items() if questions == len(reading.asks)]
    problems += _unused(rows, {name: [] for name in left}, left)
    return Records(made, list(columns), left, [])


def _unused(
    rows: list[Row],
    cells: roles.Cells,
    names: list[str],
    times: Sequence[str] = (),
    offered: Sequence[str] = (),
) -> list[f.Finding]:
    """Report the columns without a role by their names: a warning where one may mean more than it
    says, as `times` do, whatever they are called. `offered` may be the options that the answers are
    letters or numbers of."""
    names = [name for name in names if name not in RATES]  # which are read beside pictures
    if not names:
        return []
    message = f"left out the columns {', '.join(names[:COLUMNS_NAMED])}"
    if names[COLUMNS_NAMED:]:
        message += f" and {len(names) - COLUMNS_NAMED} more"
    meanings = {name: meant for name in names if (meant := roles.meaning(name))}
    meanings |= dict.fromkeys((name for name in times if name in names), roles.TIME)
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
        elif meant in roles.DECLARED_BY:
            role = roles.DECLARED_BY[meant]
            message += f": --column {shlex.quote(f'{role}={alike[0]}')} declares it"
    if offered:
        words = " ".join(f"--column {shlex.quote(f'options={name}')}" for name in offered)
        message += f"; {', '.join(offered)} may be the options that the answers choose from, which "
        message += f"are asked without them: {words} declares it"
        meanings |= dict.fromkeys(offered, "an option")
    severity = f.WARNING if meanings else f.INFO
    data = {"columns": names, "meanings": meanings}
    return [f.Finding("BUILD-COLUMN-UNUSED", severity, rows[0].where, message, Fix(), data)]


def _unnamed_split(cells: roles.Cells, unused: list[str]) -> list[f.Finding]:
    """Return the first column without a role whose cells name splits, one that is held out among
    them, or that tells by its name and two truths what is held out (is_test): whether to keep to it
    is for the user to say."""
    for name in unused:
        texts = [cell_text(value) for value in cells[name]]
        counts = Counter(split_names.exact(text) for text in texts if text)
        is_split = split_names.HELD_OUT & counts.keys() and "" not in counts
        if "" in texts:  # among empty cells a word alone may be a remark
            is_split = is_split and any(split_names.NAMES[one] == "train" for one in counts)
        if is_split and set(counts) != {split_names.BESIDE_TRAIN}:
            said = ", ".join(f"{word} ({count})" for word, count in counts.items())
            message = (
                f"got {said} in a column without a role, and all of it would be trained on: "
                f"--column split={name} keeps to it, --column ignore={name} does not"
            )
            fix = Fix(flags={"--column": f"split={name}"})
            return [f.error("BUILD-SPLIT-NAME", name, message, fix)]
        said = roles.words_of(name) - split_names.BESIDE - {"is", "in"}
        are_truths = len(set(texts)) == 2 and set(map(alike, texts)) <= TRUTH
        if are_truths and len(said) == 1 and said <= split_names.NAMES.keys():
            word = said.pop()
            meant = f"{name}: YES={word}, NO={'train' if word in split_names.HELD_OUT else 'test'}"
            message = (
                f"got {' and '.join(sorted(set(texts)))} in a column without a role, and all of it "
                f"would be trained on: --column split={name} --values {shlex.quote(meant)} keeps "
                f"to it (YES, NO as in the cells), --column ignore={name} does not"
            )
            return [f.error("BUILD-SPLIT-NAME", name, message)]
    return []


def _table(
    rows: list[Row], reading: Reading, problems: list[f.Finding]
) -> tuple[roles.Cells, list[Column]]:
    """Return what stands in the columns of all rows, and the columns that have a role."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    cells = {name: [row.values.get(name) for row in rows] for name in names}
    has_folders = FOLDER not in cells and len({row.folder for row in rows}) > 1
    folders = [posixpath.basename(row.folder) for row in rows]
    if has_folders and FOLDER in {one.name for one in reading.saved or ()}:
        cells[FOLDER] = folders
    chosen = roles.resolve(cells, reading.columns, reading.saved, problems)
    if has_folders and all(one.role != "answer" for one in chosen):
        cells[FOLDER] = folders
        chosen.append(Column(FOLDER, "answer", source="folders named by the label"))
    roles.require(cells, chosen, problems)
    return cells, chosen


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
    splits: list[str],
    is_asked: bool = False,
) -> Records:
    """Return one item per row. `is_asked`: by a question of its own, whatever questions the rows
    hold."""
    cells, chosen = _table(rows, reading, problems)
    if is_asked:
        chosen = [one for one in chosen if one.role != "question"]
    if not any(splits):  # told as a column that is not used
        chosen = [one for one in chosen if one.role != "split"]
    columns = {one.role: one for one in reversed(chosen)}  # the first of each role
    used = {one.name for one in chosen} | set(PLACE.findall(reading.question))
    unused = [name for name in cells if name not in used and any(map(cell_text, cells[name]))]
    if unused and not any(splits) and reading.saved is None:
        problems += _unnamed_split(cells, unused)
    texts = {role: [""] * len(rows) for role in TEXT_ROLES}
    for role in TEXT_ROLES:
        if role in columns and columns[role].name in cells:
            texts[role] = [cell_text(value) for value in cells[columns[role].name]]
    refused: list[f.Finding] = []
    options: list[dict] = [{}] * len(rows)
    answers = list(texts["answer"])
    if "options" in columns:
        options, answers = _chosen_options(rows, answers, chosen, refused)
    problems += _damage(rows, chosen, columns, texts, options)
    # Answers that choose an option stay as they are; others are trained in one form each.
    free = [place for place, offered in enumerate(options) if not offered]
    formed = in_one_form([answers[place] for place in free])
    told = []
    for place, form in zip(free, formed, strict=True):
        if form != answers[place]:
            told.append((rows[place], f"{answers[place]!r} is trained as {form!r}"))
            answers[place] = form
    if told:
        problems.append(by_row("BUILD-ANSWER-FORM", f.INFO, told))
    shown = _media(rows, chosen, files, problems)
    are_timed = any(one.role in ("start", "end") and one.name for one in chosen)
    for number, media in enumerate(shown if are_timed else ()):
        from cosmos_reason.data import parts

        parted = (rows, media, cells, chosen, files, reading.skip_missing, problems)
        shown[number] = f.attempt(problems, parts.of_rows, *parted) or media
    media = list(zip(*shown, strict=True))
    asking = (rows, texts["question"], answers, options, shown[0], reading, cells, chosen)
    asked = f.attempt(problems, _questions, *asking) or texts["question"]
    times = [name for name in unused if roles.meaning(name) == roles.TIME]
    if unused and "start" not in columns:
        from cosmos_reason.data import parts

        times = times or parts.unnamed_times(shown[0], asked, unused, cells)
        if times and columns["answer"].name:
            of_times = (shown[0], texts["answer"], asked, times, cells)
            problems += parts.contradictions(*of_times)
    offered = roles.offered(cells, unused, answers) if unused and not any(options) else []
    stays = [True] * len(rows)
    if "annotator" in columns:
        from cosmos_reason.data import annotators

        for number, one in enumerate(options):  # "B" and the text of B are one answer
            meant = choices.meant(one, answers[number]) if one else ()
            if len(meant) == 1:
                answers[number] = meant[0]
        units = [
            (clip, question, tuple(one.items()))
            for clip, question, one in zip(media, asked, options, strict=True)
        ]
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
    of_tags = [one.name for one in chosen if one.role == "tag"]
    groups: list[tuple[str, ...]] = [()] * len(rows)
    of_groups = [one.name for one in chosen if one.role == "group" and one.name]
    for name in of_groups:  # cells that differ in case or blanks are one group
        for place, text in enumerate(in_one_form([cell_text(value) for value in cells[name]])):
            groups[place] += (f"{name}={text}",) if text else ()
    without = [row for row, of_row in zip(rows, groups, strict=True) if not of_row]
    if of_groups and without:
        message = f"got no {' or '.join(of_groups)}, so its clip is a group of its own"
        problems.append(by_row("BUILD-GROUP-EMPTY", f.WARNING, [(row, message) for row in without]))
    made: list[tuple[Item, Row]] = []
    for number, row in enumerate(rows):
        if not stays[number]:
            continue
        question, answer = asked[number], answers[number]
        if "<" in question:
            question = TAG.sub("", question)  # the record's own tags are written before it
        if "<answer>" in answer and "<answer>" not in question:
            answer = untagged(answer)
        if options[number]:
            try:
                question, answer = choices.written_into(question, options[number], answer)
                right = options[number].get(answer)
                same = [letter for letter, text in options[number].items() if text == right]
                if same[1:]:
                    message = f"got the right option {right!r} as {' and '.join(same)}"
                    raise ValueError(f"{message}, expected one right letter")
            except ValueError as problem:
                refused.append(f.error("BUILD-OPTIONS", row.where, str(problem)))
                continue
        named = media[number]
        if named[1:]:  # an empty cell beside a clip names none
            named = tuple(one for one in named if one[1] != UNNAMED) or named[:1]
        if not named or not all(medium for _, medium in media[number]):
            continue
        unnamed = f"row-{row.number}"
        reasoning = texts["reasoning"][number]
        if reasoning and "</think>" in bare_thought(reasoning):
            message = f"got an answer behind the reasoning in {columns['reasoning'].name}: "
            message += "write them into columns of their own (--convert)"
            refused.append(f.error("BUILD-REASONING", row.where, message))
            continue
        tags: list[str] = []
        for name in of_tags:
            value = row.values.get(name)
            tags += map(str, value) if isinstance(value, list) else filter(None, [cell_text(value)])
        item = Item(
            texts["id"][number] or name_of(named[0][1], files, unnamed) or unnamed,
            named,
            (Turn("user", question), Turn("assistant", answer)),
            bare_thought(reasoning) if reasoning else "",
            tags=tuple(tags),
            split=splits[number],
            groups=groups[number],
        )
        made.append((item, row))
    whole = [item for item, _ in made]
    if turn:
        whole = joined_turns(made, turn.name, problems)
    problems += one_per_id(refused)
    if unused:
        problems += _unused(rows, cells, unused, times, offered)
    return Records(whole, chosen, unused, [])


def _chosen_options(
    rows: list[Row], answers: list[str], chosen: list[Column], refused: list[f.Finding]
) -> tuple[list[dict], list[str]]:
    """Return the options of each row, in one column or in columns of their own, and its answer, by
    its letter where it is the number of an option or the name of its column."""
    columns = [one for one in chosen if one.role == "options" and one.name]
    options: list[dict] = [{}] * len(rows)
    lettered = list(answers)
    names = [one.name for one in columns]
    for place, row in enumerate(rows):
        try:
            if names[1:]:
                found = choices.of_columns(row.values, names, answers[place])
                options[place], lettered[place] = found
            else:
                value = row.values.get(names[0])
                if isinstance(value, str):
                    value = choices.of_text(value.strip(), columns[0].separator)
                options[place] = choices.of_value(value)
        except ValueError as problem:
            refused += f.bad_input("BUILD-OPTIONS", row.where, str(problem)).findings
    answered = next(one for one in chosen if one.role == "answer")
    where = [row.where for row in rows]
    numbered = (options, lettered, answered.name, answered.numbered_from, where)
    return options, f.attempt(refused, choices.letters, *numbered) or lettered


def _damage(
    rows: list[Row],
    chosen: list[Column],
    columns: dict[str, Column],
    texts: dict[str, list[str]],
    options: list[dict],
) -> list[f.Finding]:
    """Return what programs did to the texts on their way into the table, and what is missing."""
    found = []
    # Sets call the kind of reasoning that a question takes by the name of the reasoning itself.
    thought = columns.get("reasoning")
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
    answered = columns["answer"].name
    empty = [row for row, answer in zip(rows, texts["answer"], strict=True) if not answer]
    if answered and empty:
        message = f"got no {answered}, expected an answer: write it, or remove the row"
        told = [(row, message if row is empty[0] else "none") for row in empty]
        found.append(by_row("BUILD-ANSWER-EMPTY", f.ERROR, told))
    for role in ("answer", "question", "reasoning"):
        void = [
            (row, text)
            for row, text, offered in zip(rows, texts[role], options, strict=True)
            if text and is_void(text) and text not in offered.values()
        ]
        if void:
            (first, text), *others = void
            message = (
                f"got {text} in {columns[role].name}, which programs write for no value, "
                f"expected the {role}: write it (in other letters, where it is meant), or remove "
                "the row"
            )
            found.append(by_row("BUILD-TEXT-VOID", f.ERROR, [(first, message), *others]))
    harmed: dict[str, list[tuple[Row, str]]] = defaultdict(list)
    known: dict[str, tuple[str, str] | None] = {}  # texts repeat
    for place, row in enumerate(rows):
        here = [texts[role][place] for role in ("question", "answer", "reasoning")]
        for text in [*here, *map(str, options[place].values())]:
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
    for one in chosen:
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


def _media(
    rows: list[Row], chosen: list[Column], files: Folder, problems: list[f.Finding]
) -> list[list[tuple[str, Medium | None]]]:
    """Return (kind, medium) of every row, for each column of media: UNNAMED in an empty cell, None
    where what stands there is refused or no column is known. A cell names a file, a list of
    pictures, or a folder of them, whose rate stands in the row."""
    refused: list[f.Finding] = []
    shown = []
    # (name, pictures, rate, folder) -> medium: rows often share a clip
    known: dict[tuple, Medium | None] = {}
    for one in chosen:
        if one.role not in roles.MEDIA:
            continue
        media: list[tuple[str, Medium | None]] = []
        for row in rows:
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
                    named = Media(kind, value, pictures, fps)
                    known[meant] = None
                    try:
                        known[meant] = source_files.find_video(files, named, row.folder)
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
    return shown or [[("video", None)] * len(rows)]


def _questions(
    rows: list[Row],
    stated: list[str],
    answers: list[str],
    options: list[dict],
    media: list[tuple[str, Medium | None]],
    reading: Reading,
    cells: roles.Cells,
    chosen: list[Column],
) -> list[str]:
    """Return the question of every row: its own, or one for all labels without; rows that bring
    options are asked it without the labels in words."""
    unasked = [number for number, question in enumerate(stated) if not question]
    if not unasked:
        refuse_unused(reading, ("question",), "rows that hold their questions")
        return stated
    label = next(one.name for one in chosen if one.role == "answer")
    if not label:  # told already
        return stated
    if not reading.question and len(unasked) == len(stated):
        likely = roles.asking(cells, chosen)
        if likely:
            message = f"got no question, and {likely}, whose texts all ask something"
            fix = Fix(flags={"--column": f"question={likely}"})
            raise f.bad_input("BUILD-QUESTION", "--question", message, fix)
    labels = [answers[number] for number in unasked]
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
    kind, _ = media[unasked[0]]
    is_choice = any(options[number] for number in unasked)
    plain = ask(reading.question, names, labels, kind, is_choice)
    form = ""
    if len(names) == 1:
        form = worded(plain, names, labels)[len(plain) :]
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
                empty.append((rows[number], f"got nothing in {name}, which the question names"))
        questions[number] = filled if options[number] else filled + form
    if empty:
        raise f.Failure(by_row("BUILD-QUESTION", f.ERROR, empty), f.EXIT_BAD_INPUT)
    return questions
