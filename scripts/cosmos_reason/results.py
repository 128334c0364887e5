"""Evaluation results as rows: reading every form they come in, and judging each row against its ground truth.

Nothing is left out: a row that cannot be scored stays, counts as wrong, and is named in a finding.
"""

from __future__ import annotations

import json
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


@dataclass(slots=True)
class Row:
    """One question and what became of it. `error` says why a row failed; `expected` and `answer` are normalised."""

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
    if not path.is_dir():
        return [path]
    own = sorted(file for name in ("results.json", "results.jsonl") for file in path.rglob(name))
    if own or any(path.rglob("*.json")):
        return own or [path]
    raise f.bad_input("EVAL-NO-RESULTS", path, "got a folder without results, expected a results.json in it")


def read(path: Path) -> tuple[list[Row], list[f.Finding]]:
    """The rows of a results.json (ours or TAO's), a JSONL file or a Reason1 folder, and what is wrong with them.

    Raises Failure when there is nothing to read or a file is cut off."""
    table = _Table(path)
    if path.is_dir():
        for item in reason1_items(path):
            table.add(item)
    else:
        records = JsonRecords(path)
        for record in records:
            table.add(record)
            table.note_oddities(records)
    if not table.rows:
        raise f.bad_input("EVAL-NO-ROWS", path, "got no rows, expected one per question")
    return table.rows, table.findings()


def evaluation(path: Path) -> dict:
    """The evaluation.json beside these results; {} when there is none."""
    record = (path if path.is_dir() else path.parent) / "evaluation.json"
    return storage.read_json(record) if record.is_file() else {}


def judge(rows: list[Row], kind: str = "auto", tolerance: float = 0.0) -> list[f.Finding]:
    """Give each row its type (`kind`, or what the data show), the answer in its response, and whether that is right.

    Returns a finding about ground truths that cannot be read as the type asked for."""
    for row in rows:
        row.type = answers.question_type(row.question, row.gt) if kind == "auto" else kind
    labels = _mark_closed_sets(rows, kind)
    for row in rows:
        expected = answers.normalise(row.gt, row.type, row.question)
        row.expected = expected and intern(expected)
        known = labels.get(row.question, labels.get("", ())) if row.type == "label" else ()
        answer = answers.parse_answer(row.response, row.type, row.question, known)
        row.answer = intern(answer) if answer and row.type in answers.CLOSED_TYPES else answer
        row.correct = row.error is None and answers.matches(row.answer, row.expected, row.type, tolerance)
    unread = [row.id for row in rows if row.gt and row.expected is None]
    if not unread:
        return []
    message = f"got {len(unread)} row(s) whose ground truth is no answer of their type; they count as wrong"
    data = {"record_ids": unread[: f.MAX_RECORD_IDS], "count": len(unread)}
    return [f.error("EVAL-GT-TYPE", unread[0], message, "--type auto", **data)]


def _mark_closed_sets(rows: list[Row], kind: str) -> dict[str, tuple[str, ...]]:
    """Turn rows whose ground truths are few and short into type `label`; returns the labels by question, the ones of
    all rarely asked questions together under ""."""
    asked = Counter(row.question for row in rows)
    groups = defaultdict(list)
    for row in rows:
        groups[row.question if asked[row.question] >= MIN_ROWS_PER_QUESTION else ""].append(row)
    labels = {}
    for question, group in groups.items():
        if not any(row.type in ("text", "label") for row in group):
            continue
        members = group if question else [row for row in group if row.type in ("text", "label")]
        known = Counter(answers.normalise(row.gt, "label") for row in members)
        if kind == "label" or (kind == "auto" and _is_closed(known, len(members))):
            labels[question] = tuple(sorted(label for label in known if label))
            for row in members:
                row.type = "label"
    return labels


def _is_closed(known: Counter, rows: int) -> bool:
    short = all(label and len(label.split()) <= MAX_LABEL_WORDS and len(label) <= 40 for label in known)
    return short and 2 <= len(known) <= min(MAX_LABELS, rows // MIN_ROWS_PER_LABEL)


class _Table:
    """Rows being read, with what was wrong with them by finding id."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[Row] = []
        self.seen: Counter[str] = Counter()
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.shared: dict[str, str] = {}

    def add(self, raw: object) -> None:
        raw, problem = (raw, None) if isinstance(raw, dict) else ({}, f"got {type(raw).__name__}, expected an object")
        texts, wrong = {}, [problem] if problem else []
        for key, aliases in FIELDS.items():
            value = raw.get(key)
            for alias in aliases if value is None else ():
                value = raw.get(alias) if value is None else value
            texts[key] = None if value is None else self._text(value)
            if value is not None and texts[key] is None:
                wrong.append(f"got {type(value).__name__} as {key}, expected text")
        error = texts["error"] or "; ".join(wrong) or None
        row_id = self._id(texts["id"], texts["video_id"] or texts["media"])
        if not texts["gt"]:
            self.problems["EVAL-GT-MISSING"].append(row_id)
            error = error or "no ground truth"
        elif error is None and texts["response"] is None:
            error = "no response"
        if wrong:
            self.problems["EVAL-ROW-TYPE"].append(row_id)
        elif texts["error"]:
            self.problems["EVAL-ROW-FAILED"].append(row_id)
        question = texts["question"] or ""
        question = self._text(TAG.sub("", question)) if "<" in question else question
        tags = raw.get("tags") if isinstance(raw.get("tags"), list) else ()
        tags = tuple(intern(tag) for tag in tags if isinstance(tag, str))
        names = row_id, texts["video_id"] or row_id, texts["media"]
        self.rows.append(Row(*names, question, texts["gt"] or "", texts["response"], error, tags))

    def note_oddities(self, records: JsonRecords) -> None:
        for _ in records.oddities:
            self.problems["EVAL-ROW-ODD"].append(self.rows[-1].id)
        records.oddities.clear()

    def _text(self, value: object) -> str | None:
        """Text that can be written as UTF-8, equal ones stored once; None for what is no text and no number."""
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            value = str(value)
        if not value.isascii():
            value = value.encode("utf-8", "replace").decode("utf-8")
        return self.shared.setdefault(value, value)

    def _id(self, given: str | None, video_id: str | None) -> str:
        """The row's id; TAO rows have only the annotation's, so that later questions of a record become `<id>#2`..."""
        if given is None and video_id is None:
            self.problems["EVAL-ID-MISSING"].append(f"row-{len(self.rows)}")
            return f"row-{len(self.rows)}"
        name = given or video_id
        self.seen[name] += 1
        if self.seen[name] == 1:
            return name
        if given is not None:
            self.problems["EVAL-ID-DUPLICATE"].append(name)
        return f"{name}#{self.seen[name]}"

    def findings(self) -> list[f.Finding]:
        found = []
        for id, rows in self.problems.items():
            severity, message, fix = PROBLEMS[id]
            data = {"record_ids": rows[: f.MAX_RECORD_IDS], "count": len(rows)}
            where = f"{self.path}#{rows[0]}"
            found.append(f.Finding(id, severity, where, f"got {len(rows)} row(s) {message}", fix, data))
        return found


# our name -> other tools' names
FIELDS = {
    "id": (),
    "video_id": (),
    "media": (),
    "question": (),
    "gt": ("ground_truth", "correct_answer"),
    "response": ("full_response",),
    "error": (),
}
PROBLEMS = {
    "EVAL-GT-MISSING": (f.ERROR, "without ground truth; they count as wrong", "evaluate on annotations with answers"),
    "EVAL-ROW-TYPE": (f.ERROR, "that are no object of texts; they count as wrong", "write the fields as text"),
    "EVAL-ROW-ODD": (f.WARNING, "with a repeated key or a number that is not JSON", "write each key once, no NaN"),
    "EVAL-ROW-FAILED": (f.WARNING, "that failed in the evaluation; they count as wrong", "see `error` in each row"),
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
        except (OSError, ValueError):
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
