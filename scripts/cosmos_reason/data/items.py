"""One future record of a dataset, and how a source of records is to be read."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.roles import LABELS, SENTENCES, Cells, Column, cell_text
from cosmos_reason.data.source_files import Folder, Frames, Held, Medium
from cosmos_reason.data.turns import Turn

ONE_OF = "Answer with one of: "  # before the classes of labels
SHOWN_ROWS = 5  # of a finding about many, besides the first
UNNAMED = Path()  # the medium of a row that names none
# So many answers, each of so few characters, are classes and named in the question.
FEW_CLASSES, SHORT_CLASS = 12, 40
YES_NO = {"yes", "no"}
TRUTH = YES_NO | {"y", "n", "true", "false", "0", "1"}
NAMELESS = (*LABELS, "folder")  # names that say nothing
CAPTIONS = (*SENTENCES, "description")


class Item(NamedTuple):
    """One future record. Media are files, or files to be had when the record is kept; `split` is
    what its source calls the split that it is in; items that share one of `groups` (a camera, a
    recording) stay on one side of a split."""

    name: str
    media: tuple[tuple[str, Medium], ...]
    turns: tuple[Turn, ...]
    reasoning: str = ""
    video_fps: float | None = None
    tags: tuple[str, ...] = ()
    split: str = ""
    groups: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path | Held]:
        """Return the files of its media, the pictures of a video each."""
        found: list[Path | Held] = []
        for _, medium in self.media:
            found += medium.files if isinstance(medium, Frames) else (medium,)
        return found


class Records(NamedTuple):
    """What a source became: its items, the columns of its tables that have a role and the names of
    those that have none, and what is to be said of them."""

    items: list[Item]
    columns: list[Column]
    unused: list[str]
    findings: list[f.Finding]


class Row(NamedTuple):
    """A row of a table in `folder`, and where people find it: its number as a spreadsheet shows it,
    of JSON and parquet counted from 0. `split` is what its source calls the split that it is in."""

    values: dict
    folder: str
    where: str
    number: int
    split: str = ""


# (kind, medium) of a row: UNNAMED where its cell is empty, None where what stands there is refused
Named = tuple[str, Medium | None]


@dataclass
class Table:
    """The rows of a source by the roles of their columns. `first` is the first column of each role,
    `texts` what each row has in it, `options` what each row offers to choose from, `media` what
    stands in each column of clips or pictures; `questions` and `answers` are what is trained."""

    rows: list[Row]
    cells: Cells
    columns: list[Column] = field(default_factory=list)
    first: dict[str, Column] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    options: list[dict] = field(default_factory=list)
    media: list[list[Named]] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reading:
    """How to read a source, by the names of the flags: declared columns and those of a saved
    mapping, the question when there is none (a template: {column} is the text of a row's cell),
    label fields, a system prompt where the source has none, subset and split (or a slice of it) of
    a dataset of the Hub, whether records whose medium is missing are left out, where raw clips lie
    to cut from."""

    column: tuple[Column, ...] = ()
    saved: tuple[Column, ...] | None = None
    question: str = ""
    # (column of the answer, template of the question) of each question that is asked of a row
    ask: tuple[tuple[str, str], ...] = ()
    # moments without an event, for each moment with it (absent_events); the seed to choose them
    also_ask_absent: float = 0.0
    label_fps: float = 0.0  # frames that a second of a label tool's timeline has
    window: float = 0.0  # seconds of every part, around its middle; 0: as long as its row says
    seed: int = 0
    adjudicate: str = ""  # which answer counts where annotators disagree (annotators.WAYS)
    # {column: {what stands in it: what it means}}
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    hf_subset: str = ""
    hf_split: str = ""
    system: str = ""
    skip_missing: bool = False
    raw: str = ""
    transcode: str = ""  # the folder for clips that trainers do not read alike, written anew
    convert: str = ""  # a Python file whose function makes rows of the source's (converted)


def refuse_unused(reading: Reading, names: Iterable[str], what: str) -> None:
    """Refuse what would be ignored in silence."""
    for name in names:
        if getattr(reading, name):
            flag = f"--{name.replace('_', '-')}"
            raise f.bad_input(
                "USAGE", flag, f"got it for {what}, which have no use for it", f"drop {flag}"
            )


def one_per_id(refused: list[f.Finding]) -> list[f.Finding]:
    """Return one finding per id: the first, with the number of the others."""
    counts = Counter(finding.id for finding in refused)
    first: dict[str, f.Finding] = {}
    for finding in refused:
        first.setdefault(finding.id, finding)
    for id, finding in first.items():
        more = counts[id] - 1
        if more:
            message = f"{finding.message} (and {more} more rows)"
            first[id] = replace(finding, message=message)
    return list(first.values())


def by_row(
    id: str, severity: str, told: list[tuple[Row, str]], fix: Fix | str = "", **data
) -> f.Finding:
    """Return one finding about rows, with what is said of the first of them and the numbers of
    all."""
    (first, message), *others = told
    shown: dict[str, list[str]] = defaultdict(list)
    for row, text in others[:SHOWN_ROWS]:
        shown[text].append(str(row.number))
    if shown:
        more = ", ..." if others[SHOWN_ROWS:] else ""
        listed = "; ".join(f"{', '.join(rows)}: {text}" for text, rows in shown.items())
        message += f" ({len(told)} rows; {listed}{more})"
    data |= f.counted([row.number for row, _ in told], "rows")
    return f.Finding(id, severity, first.where, message, fix, data)


def name_of(medium: Medium, files: Folder, otherwise: str) -> str:
    """Return the name of a file without its suffix; what stands in a table has none."""
    if isinstance(medium, Held) and medium.key in files.held:
        return otherwise
    return medium.stem


def joined_turns(
    made: list[tuple[Item, Row]], column: str, problems: list[f.Finding]
) -> list[Item]:
    """Return one item of each id (the role `id`), whose turns follow the numbers in `column`; what
    cannot be joined is an error among the `problems`. Media are shown once, in order."""
    of_id: dict[str, list[tuple[float, Item, Row]]] = defaultdict(list)
    wrong: list[tuple[Row, str]] = []
    for item, row in made:
        try:
            number = float(cell_text(row.values.get(column)))
        except ValueError:
            number = float("nan")
        if number != number:
            told = f"got {cell_text(row.values.get(column))!r} in {column}, expected a number"
            wrong.append((row, told))
            continue
        of_id[item.name].append((number, item, row))
    whole = []
    for rows in of_id.values():
        rows.sort(key=lambda one: one[0])
        _, first, _ = rows[0]
        _, last, _ = rows[-1]
        for (before, *_), (number, item, row) in pairwise(rows):
            if number == before:
                wrong.append((row, f"got turn {number:g} of {item.name} again, expected it once"))
            if item.split != first.split:
                told = f"got the split {item.split!r} for a turn of one in {first.split!r}"
                wrong.append((row, told))
        for _, item, row in rows[:-1]:
            if item.reasoning:
                told = "got reasoning of an earlier turn, expected it beside the last answer only"
                wrong.append((row, told))
        media = dict.fromkeys(medium for _, item, _ in rows for medium in item.media)
        groups = dict.fromkeys(group for _, item, _ in rows for group in item.groups)
        turns = [turn for _, item, _ in rows for turn in item.turns]
        joined_item = first._replace(media=tuple(media), turns=tuple(turns), groups=tuple(groups))
        whole.append(joined_item._replace(reasoning=last.reasoning))
    if wrong:
        problems.append(by_row("BUILD-TURN", f.ERROR, wrong))
    return whole


# -- the question of labels that come without one: the user's, in the words of the labels ----------


def ask(
    given: str, names: list[str], answers: list[str], medium: str, options: bool = False
) -> tuple[str, str]:
    """Return the question that records of a `medium` (video or image) have in common, and the line
    below it that tells the form of its answers, so that they come in the words of the labels: ""
    for captions, for all but a few classes, and where the question tells it itself. `names` are of
    the columns or fields that are the answer, `options` whether records have a choice.

    Raises Failure when none is given, unless the answers are captions: only their author knows what
    labels answer."""
    folded = {answer.lower() for answer in answers}
    are_json = 2 * sum(answer.startswith(("{", "[")) for answer in answers) > len(answers)
    # Captions may be short, be repeated, and have no spaces between words: their name tells them.
    are_captions = len(names) == 1 and names[0].lower() in CAPTIONS
    are_captions = are_captions and not are_json and not folded <= TRUTH
    question = given
    if are_captions and not options:
        question = given or f"Describe this {medium}."
    if not question:
        labels = ", ".join(names)
        if len(names) == 1:
            labels = f"{', '.join(sorted(set(answers))[:3])} of {names[0]}"
        message = (
            f"got no question for the labels {labels}, expected one. "
            "The fix is a proposal made from their name: say what you mean "
            "(a table may have it in a column: --column question=NAME)"
        )
        proposal = _proposal(names, answers, medium, options, are_json)
        fix = Fix(flags={"--question": proposal})
        raise f.bad_input("BUILD-QUESTION", "--question", message, fix)
    if are_captions:
        return question, ""
    classes = sorted(set(answers))
    form = ""
    if folded <= YES_NO:
        form = "Answer yes or no."
    elif (
        len(classes) <= FEW_CLASSES
        and len(answers) > len(classes)
        and max(map(len, classes)) <= SHORT_CLASS
    ):
        # With a comma in one of them nobody sees where it ends.
        between = "; " if any("," in one for one in classes) else ", "
        form = f"{ONE_OF}{between.join(classes)}."
    # A question that names all its answers behind a word such as "answer" tells their form itself.
    instruction = re.search(r"\b(?:answer|reply|respond)\b(.*)", question.lower(), re.S)
    wanted = YES_NO if folded <= YES_NO else folded
    says_it = instruction and all(
        re.search(rf"(?<!\w){re.escape(one)}(?!\w)", instruction[1]) for one in wanted
    )
    return question, f"\n{form}" if form and not says_it else ""


def form_added(form: str) -> list[f.Finding]:
    """Return that the line `form` was added to a question, which nobody wrote, if so."""
    if not form:
        return []
    message = (
        f"added to the question: {form.strip()!r}; a question that tells it itself stays as it is"
    )
    return [f.info("BUILD-FORM-ADDED", "--question", message)]


def _proposal(
    names: list[str], answers: list[str], medium: str, options: bool, are_json: bool
) -> str:
    if len(names) > 1 or (are_json and f"{json.dumps(names[0])}:" in answers[0]):
        fields = "fields" if len(names) > 1 else "field"
        return f"Describe this {medium} as JSON with the {fields} {', '.join(names)}."
    name = " ".join(re.findall(r"[^\W_]+", names[0]))
    if options:
        return f"Which option is right for this {medium}?"
    if name.lower() in CAPTIONS:
        return f"Describe this {medium}."
    if not name or name.lower() in NAMELESS:
        return f"What is the label of this {medium}?"
    if {answer.lower() for answer in answers} <= TRUTH:
        return f"Is it true of this {medium}: {name}?"
    return f"What is the {name} in this {medium}?"
