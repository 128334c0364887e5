"""What columns without a role may be. None of it is taken: it is told with the line that declares
it, and is an error where a dataset would be wrong without it."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence

from cosmos_reason import answers
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import shortened, some
from cosmos_reason.data import annotators, options, parts, published_sets, split_names
from cosmos_reason.data import column_words as words
from cosmos_reason.data.formats import RATES
from cosmos_reason.data.items import ONE_OF, TRUTH, Table
from cosmos_reason.data.roles import Cells, Column, cell_text, column
from cosmos_reason.data.turns import alike
from cosmos_reason.media.files import names_medium

COLUMNS_NAMED = 40
COLUMNS_SHOWN, VALUES_SHOWN, LONGEST = 16, 3, 20  # of a table whose columns are not declared
ROWS_SHOWN = 1000  # whose values are looked at for that
HASH = re.compile("[0-9a-f]{64}")  # of a clip that stands in the table itself
PROPOSED = "a proposal"  # who gave a column its role, where only going on needs one


def require(cells: Cells, chosen: list[Column], problems: list[f.Finding]) -> None:
    """Report a missing column of media or of answers, with the line that declares the one that it
    can be; it joins the `chosen`, to go on and find what else is wrong."""
    families = {one.family for one in chosen}
    free = [name for name in cells if name not in {one.name for one in chosen}]
    there = []  # with what stands in them, so that nobody has to open the table to declare them
    for name in cells:
        texts = dict.fromkeys(map(cell_text, cells[name][:ROWS_SHOWN]))
        texts = [" ".join(text.split()) for text in texts if text and not HASH.search(text)]
        texts = [f"{text[:LONGEST]}{'...' * (len(text) > LONGEST)}" for text in texts]
        values = f" ({some(texts, VALUES_SHOWN)})"
        there.append(f"{name}{values if texts and len(there) < COLUMNS_SHOWN else ''}")
    nested = [name for name in cells if _holds_objects(cells[name])]
    for role in ("answer", "video"):
        if role in families or (role == "video" and "media" in families):
            continue
        found = []
        for name in free:
            filled = [value for value in cells[name] if value not in (None, "")]
            if role == "video":
                may_be = all(isinstance(value, str) and names_medium(value) for value in filled)
            else:  # labels: several values, some of which repeat; no name that means other things
                values = len(set(map(cell_text, filled)))
                means = words.OF_ROWS.search(name) or words.meaning(name)
                means = means or options.NUMBERED.fullmatch(name)
                may_be = 1 < values <= max(len(filled) - 1, 2) and not means
            found += [name] if filled and may_be else []
        likely = found[0] if len(found) == 1 else ""
        message = f"got columns {', '.join(there)}, expected --column {role}=NAME with one of them"
        there = list(cells)  # which are shown once
        if nested:
            message += f"; {', '.join(nested)} holds objects, of which --convert FILE.py makes rows"
        nested = []
        fix = Fix(flags={"--column": f"{role}={likely}"}) if likely else Fix()
        problems.append(f.error("BUILD-COLUMN", role, message, fix))
        if role == "answer" or likely:
            chosen.append(column(role, likely, PROPOSED))


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict)


def _holds_objects(cells: list) -> bool:
    return any(isinstance(value, dict) or _is_list_of_objects(value) for value in cells)


def asking(cells: Cells, chosen: Sequence[Column]) -> str:
    """Return the one column without a role whose texts all end with a question mark, to be
    proposed."""
    used = {one.name for one in chosen}
    found = []
    for name in cells:
        texts = [] if name in used else [value for value in cells[name] if value is not None]
        if not texts or not all(isinstance(text, str) for text in texts):
            continue
        if all(text.rstrip().endswith(("?", "？")) for text in texts):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def unused(table: Table, names: list[str], is_mapped: bool = False) -> list[f.Finding]:
    """Report the columns without a role by their names: a warning where one may mean more, by the
    words of its name or since it tells rows of one clip and question apart; an error where these
    have several answers, and where one names splits, unless a whole mapping leaves it out
    (`is_mapped`)."""
    found = []
    times = [name for name in names if words.meaning(name) == words.TIME]
    if "start" in table.first:
        times = []
    if table.media:  # of several questions each has looked itself
        if not is_mapped and not any(row.split for row in table.rows):
            found += unnamed_split(table.cells, names)
        if "start" not in table.first:
            times = times or unnamed_times(table, names)
            if times and table.first["answer"].name:
                found += contradictions(table, times, [] if is_mapped else names)
        if not is_mapped and table.first["answer"].name:
            found += unnamed_annotator(table, names)
    # An error without a fix leaves it to the warning to say how they are declared.
    told = {name for one in found if one.fix for name in one.data["columns"]}
    # Rates are read beside pictures.
    names = [name for name in names if name not in RATES and name not in told]
    if not names:
        return found
    message = f"left out the columns {', '.join(names[:COLUMNS_NAMED])}"
    if names[COLUMNS_NAMED:]:
        message += f" and {len(names) - COLUMNS_NAMED} more"
    offered = [] if any(table.options) else offered_options(table.cells, names, table.answers)
    meanings = {name: words.meaning(name) for name in names}
    meanings = {
        name: meant
        for name, meant in meanings.items()
        if meant in words.MEANINGS and not _holds_objects(table.cells.get(name, []))
        if meant != words.TIME or "start" not in table.first
    }
    meanings |= dict.fromkeys((name for name in times if name in names), words.TIME)
    for meant in words.MEANINGS:
        alike = [name for name, meaning in meanings.items() if meaning == meant]
        if not alike:
            continue
        message += f"; {' and '.join(alike)} may be {meant}, and nothing is done with it"
        if meant == words.TIME:
            declared = [f"--column {shlex.quote(role)}" for role in _time_roles(table, alike)]
            if declared:
                message += f": {' '.join(declared)} cuts the parts out (start is seconds, others "
                message += "are start_ms and start_frame)"
        elif meant in words.DECLARED_BY:
            role = words.DECLARED_BY[meant]
            message += f": --column {shlex.quote(f'{role}={alike[0]}')} declares it"
            if role == "group":  # which decides what can be held out; a tag does not
                message += " and keeps each on one side; as a tag scores are counted by it"
    if offered:
        declared = " ".join(f"--column {shlex.quote(f'options={name}')}" for name in offered)
        message += f"; {', '.join(offered)} may be the options that the answers choose from, which "
        message += f"are asked without them: {declared} declares it"
        meanings |= dict.fromkeys(offered, "an option")
    severity = f.WARNING if meanings else f.INFO
    data = {"columns": names, "meanings": meanings}
    where = table.rows[0].where
    return [*found, f.Finding("BUILD-COLUMN-UNUSED", severity, where, message, Fix(), data)]


def offered_options(cells: Cells, names: Sequence[str], answers: Sequence[str]) -> list[str]:
    """Return those of the unused columns `names` that may hold the options of answers that are all
    one letter or a small number: as many texts in each row as the answers count, or more."""
    texts = [
        name
        for name in names
        if isinstance(name, str)  # no place in an export
        and not (words.meaning(name) or words.OF_ROWS.search(name))
        and all(map(cell_text, cells[name]))
    ]
    known = {answer.strip(" ().").upper() for answer in answers}
    letters = {chr(ord("A") + place) for place in range(len(texts))}
    numbers = {str(number) for number in range(len(texts) + 1)}
    may_be = len(texts) > 1 and len(known) > 1 and (known <= letters or known <= numbers)
    return texts if may_be else []


def _told_apart(table: Table, names: Sequence[str]) -> list[str]:
    """Return the columns in which rows of one clip and question differ."""
    asked: dict[tuple, list[int]] = defaultdict(list)
    media = table.media[0] if table.media else []
    for number, ((_, medium), question) in enumerate(zip(media, table.questions, strict=True)):
        if medium:  # it is not known yet of which clip the others are
            asked[medium, question].append(number)
    several = [numbers for numbers in asked.values() if len(numbers) > 1]
    return [
        name
        for name in names
        if any(len({str(table.cells[name][one]) for one in numbers}) > 1 for numbers in several)
    ]


def _time_roles(table: Table, times: Sequence[str]) -> list[str]:
    """Return what declares `times`, rather those that tell rows of one clip apart: others may be
    the times of the clip itself."""
    told_apart = _told_apart(table, times)
    return words.time_roles(table.cells, told_apart) or words.time_roles(table.cells, times)


def unnamed_times(table: Table, names: Sequence[str]) -> list[str]:
    """Return the two columns without a role that may be times whatever their names are: rows of one
    clip and question differ in them, and in every row the one is a time before the other."""
    cells = table.cells
    told_apart = _told_apart(table, names)
    for start, end in itertools.pairwise(told_apart):
        try:
            for begin, stop in zip(cells[start], cells[end], strict=True):
                parts.read_span(begin, stop, "")
        except ValueError:
            continue
        return [start, end]
    return []


def contradictions(table: Table, times: list[str], others: list[str]) -> list[f.Finding]:
    """Return an error where one clip has several answers to one question, and columns without a
    role (`times`) are called as the times of each would be. Equal answers at several times are one
    where these are a begin and an end, or one of `others` says which of both a row is; `others` are
    all columns without a role, none where a mapping leaves them out."""
    declared = _time_roles(table, times)
    several = "answers to" if _two_answers(table) else "rows of"
    if several == "rows of":
        said = [set(map(str.lower, map(cell_text, table.cells[name]))) for name in others]
        are_edges = declared or any(words.BEGINS & cells and words.ENDS & cells for cells in said)
        if not (others and are_edges and _told_apart(table, times)):
            return []
    listed = " and ".join(times)
    message = (
        f"got one clip with several {several} one question, and {listed}, which no role uses: cut "
        "the parts out (--column start=NAME --column end=NAME in seconds, start_ms and end_ms, "
        f"start_frame and end_frame), or declare --column ignore=NAME of {listed}"
    )
    fix = Fix()
    if declared:  # a name may say the unit; else the lengths of the clips prove it, or nobody knows
        columns = [column(*word.split("=", 1), "--column") for word in declared]
        unit = columns[0].unit
        if not unit and times[0] not in published_sets.IN_SECONDS:
            unit = parts.proved_unit(
                table.media[0], *parts.times_of(table.cells, *(one.name for one in columns))
            )
        if unit is not None:
            declared_as = [f"{one._replace(unit=unit).written}={one.name}" for one in columns]
            fix = Fix(flags={"--column": declared_as})
    return [f.error("BUILD-SPAN", times[0], message, fix, columns=times)]


def _two_answers(table: Table) -> tuple[int, ...]:
    """Return the places of two rows with different answers to one question about one clip; () for
    none."""
    given: dict[tuple, int] = {}
    answers = [alike(answer) for answer in table.texts["answer"]]
    for place, ((_, medium), question) in enumerate(
        zip(table.media[0], table.questions, strict=True)
    ):
        if medium:  # it is not known yet of which clip the others are
            first = given.setdefault((medium, question), place)
            if answers[first] != answers[place]:
                return first, place
    return ()


def unnamed_annotator(table: Table, names: list[str]) -> list[f.Finding]:
    """Return an error where one clip has several answers to one question, and a column without a
    role is called as what says whose they are: all of them would be trained on."""
    who = next((name for name in names if words.meaning(name) == "an annotator"), None)
    two = who and _two_answers(table)
    if not two:
        return []
    answers, people = table.texts["answer"], table.cells[who]
    said = " and ".join(
        f"{answers[place]!r} by {cell_text(people[place]) or 'nobody named'}" for place in two
    )
    message = (
        f"got {said} of one clip and question, and {who} without a role: declare it, with "
        "--adjudicate majority (a tie is left out) or drop for what they disagree on, or "
        f"--column ignore={who} to train on all of them"
    )
    fix = Fix(flags={"--column": f"annotator={who}", "--adjudicate": annotators.DROP})
    return [f.error("BUILD-ANNOTATOR", table.rows[two[0]].where, message, fix, columns=[who])]


def several_answers(table: Table) -> list[f.Finding]:
    """Return a warning where one clip has several answers to a question that wants one word, as
    classes of a table without times: all of them would be trained on."""
    two = () if any(table.options) or "turn" in table.first else _two_answers(table)
    if not two:
        return []
    first, other = (table.answers[place] for place in two)
    question = table.questions[two[0]]
    wants_one = ONE_OF in question or answers.question_type(question, first) != "text"
    if not wants_one:  # of captions all may be right
        return []
    message = (
        f"got {first!r} and, in row {table.rows[two[1]].number}, {other!r} for one clip and "
        f"question, which asks for one answer ({shortened(question.splitlines()[-1], 80)}): "
        "all are trained on, and none can be learned; ask about each label (yes or no), or make "
        "one row of a clip's labels (--convert FILE.py)"
    )
    return [f.warning("DATA-ANSWER-SEVERAL", table.rows[two[0]].where, message)]


def unnamed_split(cells: Cells, unused: list[str]) -> list[f.Finding]:
    """Return the first column without a role whose cells name splits, one that is held out among
    them, or that tells by its name and two truths what is held out (is_test): whether to keep to it
    is for the user to say."""
    for name in unused:
        texts = [cell_text(value) for value in cells[name]]
        if words.meaning(name) == "a split" and _holds_objects(cells[name]):
            inside = re.findall('"([^"]+)"', " ".join(texts))
            said = next(filter(split_names.exact, inside), "")
            if said:
                message = (
                    f"got {said!r} inside of objects, which may name splits, expected texts: "
                    "--convert FILE.py makes some of them, --column "
                    f"{shlex.quote(f'ignore={name}')} trains on all"
                )
                return [f.error("BUILD-SPLIT-NAME", name, message, columns=[name])]
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
            return [f.error("BUILD-SPLIT-NAME", name, message, fix, columns=[name])]
        said = words.words_of(name) - split_names.BESIDE - {"is", "in"}
        are_truths = len(set(texts)) == 2 and set(map(alike, texts)) <= TRUTH
        if are_truths and len(said) == 1 and said <= split_names.NAMES.keys():
            word = said.pop()
            meant = f"{name}: YES={word}, NO={'train' if word in split_names.HELD_OUT else 'test'}"
            message = (
                f"got {' and '.join(sorted(set(texts)))} in a column without a role, and all of it "
                f"would be trained on: --column split={name} --values {shlex.quote(meant)} keeps "
                f"to it (YES, NO as in the cells), --column ignore={name} does not"
            )
            return [f.error("BUILD-SPLIT-NAME", name, message, columns=[name])]
    return []
