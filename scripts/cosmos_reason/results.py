"""Evaluation results as rows: reading every form they come in, and judging each row against its ground truth.

Nothing is left out: a row that cannot be scored stays, counts as wrong, and is named in a finding.
"""

from __future__ import annotations

import gc
import json
from argparse import ArgumentTypeError
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import intern

from cosmos_reason import answers, storage
from cosmos_reason import findings as f
from cosmos_reason.annotations import TAG
from cosmos_reason.json_stream import JsonRecords

OWN_FILES = ("metrics.json", "evaluation.json", "checkpoint_metrics.json")
MAX_LABELS, MAX_LABEL_WORDS, MIN_ROWS_PER_LABEL = 20, 4, 2
MIN_ROWS_PER_QUESTION = 10
TASK_TYPES = {"": "auto", "its_directionality": "direction"}  # task.type of an evaluate spec -> how rows are read


@dataclass(slots=True)
class Row:
    """One question and what became of it. `error` says why a row failed; `expected` and `answer` are normalised;
    `is_cut`: max_tokens ended the response."""

    id: str
    video_id: str
    media: str | None
    question: str
    gt: str
    response: str | None
    error: str | None
    tags: tuple[str, ...] = ()
    type: str = "text"
    expected: str | None = None
    answer: str | None = None
    correct: bool = False
    is_cut: bool = False

    @property
    def outcome(self) -> str:
        """right | wrong | unparseable | failed"""
        if self.error is not None:
            return "failed"
        if self.answer is None:
            return "unparseable"
        return "right" if self.correct else "wrong"


def find(path: Path) -> list[Path]:
    """The results a path stands for: itself, the results files below it, or itself as a folder of Reason1 results."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise f.bad_input("EVAL-NO-RESULTS", path, "got nothing there, expected a results file or a folder with one")
    own = sorted(file for name in ("results.json", "results.jsonl") for file in path.rglob(name))
    if own or any(path.rglob("*.json")):
        return own or [path]
    raise f.bad_input("EVAL-NO-RESULTS", path, "got a folder without results, expected a results.json in it")


def add_reading_flags(parser) -> None:
    """--type and --tolerance, which `one` reads."""
    read_as = "how ground truths and answers are read (default: auto, per question from the data)"
    parser.add_argument("--type", choices=("auto", "its_directionality", *answers.TYPES), default="auto", help=read_as)
    wrong_by = "relative error a number may have (default: 0); units of length, time, mass and speed are converted"
    parser.add_argument("--tolerance", type=share, default=0.0, help=wrong_by)


def share(written: str) -> float:
    if not 0 <= (value := float(written)) <= 1:
        raise ArgumentTypeError(f"got {written}, expected a number from 0 to 1")
    return value


def one(path: Path, args) -> tuple[Path, list[Row], list[f.Finding]]:
    """The one results file a path stands for, and its rows judged as the flags say."""
    files = find(path)
    if len(files) > 1:
        names = ", ".join(str(file) for file in files[:5])
        raise f.bad_input("EVAL-RESULTS-SEVERAL", path, f"got {len(files)} results ({names}), expected one")
    return files[0], *judged(files[0], args.type, args.tolerance)


def read(path: Path) -> tuple[list[Row], list[f.Finding]]:
    """The rows of a results.json (ours or TAO's), a JSONL file or a Reason1 folder, and what is wrong with them.

    Raises Failure when there is nothing to read, a file is cut off, or what it holds are no results."""
    table = _Table(path)
    if path.is_dir():
        for item in reason1_items(path):
            table.add(item)
    else:
        records = JsonRecords(path)
        for record in records:
            table.add(record)
            if records.oddities:
                table.problems["EVAL-ROW-ODD"].append(table.rows[-1].id)
                records.oddities.clear()
    if not table.rows:
        raise f.bad_input("EVAL-NO-ROWS", path, "got no rows, expected one per question")
    if not any(row.gt and row.response is not None for row in table.rows) and not table.problems["EVAL-ROW-FAILED"]:
        message = f"got {len(table.rows)} record(s), none with ground truth and response as text, expected results; "
        message += f"the first: {table.rows[0].error}, in a record of {table.first}"
        raise f.bad_input("EVAL-NOT-RESULTS", path, message)
    gc.freeze()  # rows stay to the end: the collector need not walk a million of them again and again
    return table.rows, table.findings()


def judged(path: Path, kind: str = "auto", tolerance: float = 0.0) -> tuple[list[Row], list[f.Finding]]:
    """`read` and `judge`; "auto" is what the evaluation's task asks for, else what the data show."""
    rows, found = read(path)
    record = evaluation(path)
    task = record.get("task") or ""
    if task not in TASK_TYPES:
        known = ", ".join(filter(None, TASK_TYPES))
        message = f"got task {task!r}, expected one of {known}; answers are read by the data"
        found.append(f.warning("EVAL-TASK-UNKNOWN", path, message, "--type auto"))
    found += judge(rows, TASK_TYPES.get(task if kind == "auto" else kind, kind), tolerance)
    if told := cut_answers(rows, record):
        larger = max(4 * (max_tokens(record) or 0), 1024)
        found.append(f.warning("EVAL-CUT-SHORT", path, told, f"--set generation.max_tokens={larger}"))
    return rows, found


def max_tokens(record: dict) -> int | None:
    """The longest answer that an evaluation.json allows, when it tells."""
    sampling = record.get("sampling")
    limit = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    return limit if type(limit) is int else None


def cut_answers(rows: list[Row], record: dict) -> str:
    """What there is to say of responses that max_tokens ended; empty when none is known."""
    cut = [row for row in rows if row.is_cut]
    if not cut:
        return ""
    unread, unread_cut = (sum(row.outcome == "unparseable" for row in those) for those in (rows, cut))
    at = f"at max_tokens={limit}" if (limit := max_tokens(record)) else "at max_tokens"
    if unread_cut:
        told = f"{unread} of {len(rows)} answers are unparseable, of which {unread_cut} were cut {at}"
        told += f", as {len(cut) - unread_cut} others were" if len(cut) > unread_cut else ""
    else:
        told = f"{len(cut)} of {len(rows)} answers were cut {at}"
    return f"{told}: raise it"


def evaluation(path: Path) -> dict:
    """The evaluation.json beside these results; {} when there is none."""
    file = (path if path.is_dir() else path.parent) / "evaluation.json"
    record = storage.read_json(file) if file.is_file() else {}
    names = ("model", "checkpoint", "annotations", "media_dir", "task")
    if not isinstance(record, dict) or not all(isinstance(record.get(name), str | None) for name in names):
        raise f.bad_input("EVAL-RECORD", file, f"got other values, expected an object with {', '.join(names)} as texts")
    return record


def judge(rows: list[Row], kind: str = "auto", tolerance: float = 0.0) -> list[f.Finding]:
    """Give each row its type (`kind`, or what the data show), the answer in its response, and whether that is right.

    Returns a finding about ground truths that cannot be read as the type asked for."""
    for row in rows:
        row.type = answers.question_type(row.question, row.gt) if kind == "auto" else kind
        _judge(row, (), tolerance)
    for members, labels in _closed_sets(rows) if kind in ("auto", "label") else ():
        for row in members:
            row.type = "label"
            _judge(row, labels, tolerance)
    unread = [row.id for row in rows if row.gt and row.expected is None]
    message = "row(s) whose ground truth is no answer of their type; they count as wrong"
    return about(unread, "EVAL-GT-TYPE", f.ERROR, "rows", message, "--type auto")


def about(ids: list[str], id: str, severity: str, where: object, message: str, fix: str) -> list[f.Finding]:
    """One finding about records, which `message` describes after their number; none without records."""
    data = {"record_ids": ids[: f.MAX_RECORD_IDS], "count": len(ids)}
    return [f.Finding(id, severity, f"{where}#{ids[0]}", f"got {len(ids)} {message}", fix, data)] if ids else []


def _judge(row: Row, labels: tuple[str, ...], tolerance: float) -> None:
    expected = answers.normalise(row.gt, row.type, row.question)
    answer = answers.parse_answer(row.response, row.type, row.question, labels)
    row.expected = expected and intern(expected)
    row.answer = intern(answer) if answer and row.type in answers.CLOSED_TYPES else answer
    row.correct = row.error is None and answers.equal(row.answer, row.expected, row.type, tolerance)


def _closed_sets(rows: list[Row]) -> Iterator[tuple[list[Row], tuple[str, ...]]]:
    """Rows to be read as type `label`, with the labels: those of a question asked often whose ground truths are few and
    short, and the texts among all rarely asked questions together."""
    open_to = {row.question for row in rows if row.type in ("text", "label")}
    asked = Counter(row.question for row in rows if row.question in open_to)
    groups = defaultdict(list)
    for row in rows if asked else ():
        if row.question in asked:
            groups[row.question if asked[row.question] >= MIN_ROWS_PER_QUESTION else ""].append(row)
    for question, group in groups.items():
        texts = [row for row in group if row.type in ("text", "label")]
        members = group if question and texts else texts
        known = Counter(answers.normalise(row.gt, "label") for row in members)
        if members and (members[0].type == "label" or _is_closed(known, len(members))):
            yield members, tuple(sorted(label for label in known if label))


def _is_closed(known: Counter, rows: int) -> bool:
    short = all(label and len(label.split()) <= MAX_LABEL_WORDS and len(label) <= 40 for label in known)
    return short and 2 <= len(known) <= min(MAX_LABELS, rows // MIN_ROWS_PER_LABEL)


class _Table:
    """Rows being read, with what was wrong with them by finding id."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[Row] = []
        self.ids: set[str] = set()
        self.repeated: Counter[str] = Counter()
        self.first = ""
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.shared: dict[str | None, str | None] = {}

    def add(self, raw: object) -> None:
        wrong = [] if isinstance(raw, dict) else [f"got {type(raw).__name__}, expected an object"]
        self.first = self.first or (type(raw).__name__ if wrong else ", ".join(list(raw)[:10]))
        raw = {} if wrong else raw
        values = list(map(raw.get, FIELDS))
        for place, other in OTHER_NAMES:
            if values[place] is None:
                values[place] = raw.get(other)
        if not _is_plain(values):
            values = [_text(key, value, wrong) for key, value in zip(FIELDS, values, strict=True)]
        given, video_id, media, question, gt, response, error = values
        name = self._id(given, video_id or media)
        is_odd = wrong or error or not gt or response is None
        failed = self._error(name, gt, response, error, wrong) if is_odd else None
        question = TAG.sub("", question) if question and "<" in question else question or ""
        tags = self._tags(name, raw["tags"]) if raw.get("tags") else ()
        texts = video_id or name, media, question, gt or "", response
        texts = map(self.shared.setdefault, texts, texts)
        self.rows.append(Row(name, *texts, failed, tags, is_cut=raw.get("is_cut") is True))

    def _tags(self, name: str, given: object) -> tuple[str, ...]:
        """Each tag once."""
        texts = [tag for tag in given if isinstance(tag, str)] if isinstance(given, list) else []
        if not isinstance(given, list) or len(texts) < len(given):
            self.problems["EVAL-ROW-TAGS"].append(name)
        return tuple(map(intern, dict.fromkeys([given] if isinstance(given, str) else texts)))

    def _error(self, name: str, gt, response, error: str | None, wrong: list[str]) -> str | None:
        """Why the row cannot count as right, noted for the findings."""
        if wrong:
            self.problems["EVAL-ROW-TYPE"].append(name)
        elif error:
            self.problems["EVAL-ROW-FAILED"].append(name)
        if not gt:
            self.problems["EVAL-GT-MISSING"].append(name)
            wrong.append("no ground truth")
        if response is None and not (error or wrong):
            self.problems["EVAL-RESPONSE-MISSING"].append(name)
            wrong.append("no response")
        return error or "; ".join(wrong) or None

    def _id(self, given: str | None, video_id: str | None) -> str:
        """The row's id; TAO rows have only the annotation's, so that later questions of a record become `<id>#2`..."""
        name = given or video_id
        if name is None:
            name = f"row-{len(self.rows)}"
            self.problems["EVAL-ID-MISSING"].append(name)
        elif name in self.ids:
            if given is not None:
                self.problems["EVAL-ID-DUPLICATE"].append(name)
            first = name
            while name in self.ids:
                self.repeated[first] += 1
                name = f"{first}#{self.repeated[first] + 1}"
        self.ids.add(name)
        return name

    def findings(self) -> list[f.Finding]:
        found = []
        for id, ids in self.problems.items():
            severity, message, fix = PROBLEMS[id]
            found += about(ids, id, severity, self.path, f"row(s) {message}", fix)
        return found


def _is_plain(values: list) -> bool:
    try:
        return "".join([value for value in values if value is not None]).isascii()
    except TypeError:
        return False


def _text(key: str, value: object, wrong: list[str]) -> str | None:
    """As text that can be written as UTF-8; None, noted in `wrong`, for what is no text and no number."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value).encode("utf-8", "replace").decode("utf-8")
    wrong += [] if value is None else [f"got {type(value).__name__} as {key}, expected text"]
    return None


FIELDS = ("id", "video_id", "media", "question", "gt", "response", "error")
OTHER_NAMES = ((4, "ground_truth"), (4, "correct_answer"), (5, "full_response"))
PROBLEMS = {
    "EVAL-GT-MISSING": (f.ERROR, "without ground truth; they count as wrong", "evaluate on annotations with answers"),
    "EVAL-ROW-TYPE": (f.ERROR, "that are no object of texts; they count as wrong", "write the fields as text"),
    "EVAL-ROW-ODD": (f.WARNING, "with a repeated key or a number that is not JSON", "write each key once, no NaN"),
    "EVAL-ROW-FAILED": (f.WARNING, "that failed in the evaluation; they count as wrong", "see `error` in each row"),
    "EVAL-RESPONSE-MISSING": (f.WARNING, "without response or error; they count as failed", "evaluate them again"),
    "EVAL-ROW-TAGS": (f.WARNING, "whose tags are no list of texts", 'write "tags": ["night", ...]'),
    "EVAL-ID-MISSING": (f.ERROR, "without id or video_id", "give each row a unique `id`"),
    "EVAL-ID-DUPLICATE": (f.ERROR, "whose id another row has; all of them count", "give each row a unique `id`"),
}


def reason1_items(folder: Path) -> Iterator[dict]:
    """The per-video lists of a Reason1 results folder, one question at a time, with ids of our own."""
    for path in sorted(folder.rglob("*.json")):
        if path.name in OWN_FILES:
            continue
        items = storage.read_json(path)
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            if isinstance(item, dict) and ("full_response" in item or "is_correct" in item):
                name = f"{path.relative_to(folder).with_suffix('')}#{number}"
                yield item | {"id": name, "question": _last_user_text(item.get("prompt"))}
            elif isinstance(items, list):
                yield item


def reason1_accuracy(folder: Path) -> tuple[int, int]:
    """(samples, correct) as Reason1's calculate_accuracy counts them: items of all lists in all JSON files below, any
    true value of the stored `is_correct`, also the text "false"; what it cannot read it leaves out.

    Raises Failure when there is no JSON file."""
    files, verdicts = sorted(folder.rglob("*.json")), []
    if not files:
        raise f.bad_input("EVAL-NO-RESULTS", folder, "got no JSON file, expected a folder of Reason1 results")
    for path in files:
        try:
            items = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict) and "is_correct" in item:
                verdicts.append(bool(item["is_correct"]))
    return len(verdicts), sum(verdicts)


def _last_user_text(prompt: object) -> str:
    """The text of the last user message of a chat."""
    for message in reversed(prompt if isinstance(prompt, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return "\n".join(text for text in texts if isinstance(text, str))
    return ""
