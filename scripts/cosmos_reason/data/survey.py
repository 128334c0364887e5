"""A dataset in columns, from one pass over its records."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.data.annotations import stream
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.options import unoffered
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.records import parse
from cosmos_reason.data.samples import Media, Sample
from cosmos_reason.data.turns import PAIRS, alike, spelling
from cosmos_reason.estimate import text_tokens
from cosmos_reason.media.files import ClipReport

SAFE_ID = re.compile(r"[\w][\w.+=@ -]{0,199}")
CLOSED = ("yes_no", "mcq", "number", "ordinal", "direction")  # types of answers that exclude others
LONGEST_CLASS = 60  # characters; longer answers are texts, not classes worth counting
READ_ONCE = 1 << 14  # questions with an answer that are kept as they were read

Integers = partial(array, "i")


@dataclass
class Survey:
    """The columns. `clips` numbers the media in order of appearance, `reports` says what is known
    of their files. `source` is the annotation file as people know it, perhaps in S3; `annotations`
    is the file that was read."""

    annotations: Path
    media_path: Path | str
    source: str = ""
    text_method: str = ""
    header: dict = field(default_factory=dict)  # what stands around the records
    read: int = 0  # records of the file, the unusable ones too
    formats: Counter = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    clips: dict[Media, int] = field(default_factory=dict)
    reports: dict[int, ClipReport] = field(default_factory=dict)
    # one row per record
    ids: list[str] = field(default_factory=list)
    # position in the file, counting unusable records too
    indices: array = field(default_factory=Integers)
    clip_counts: array = field(default_factory=Integers)
    # those of all records, one after the other
    clip_numbers: array = field(default_factory=Integers)
    asked: array = field(default_factory=Integers)  # questions
    kinds: list[str] = field(default_factory=list)  # type of the first question
    answers: list[str | None] = field(default_factory=list)  # its answer, when that is one of a few
    text_tokens: array = field(default_factory=Integers)
    answer_tokens: array = field(default_factory=Integers)  # of the last turn's text and end
    # whether it brings its own system prompt
    has_system: array = field(default_factory=partial(array, "b"))
    # of reasoning that stands beside the answer
    reasoning_tokens: array = field(default_factory=Integers)
    video_fps: array = field(default_factory=partial(array, "d"))  # 0: not given
    # one row per question
    # hash of a question's text and of those before it
    text_keys: array = field(default_factory=partial(array, "q"))
    answer_keys: array = field(default_factory=partial(array, "q"))
    is_closed: array = field(
        default_factory=partial(array, "b")
    )  # two answers cannot both be right
    forms: dict[str, tuple[str, int]] = field(default_factory=dict)  # of an answer: first form, row
    # (row, earlier row) of records that answer one question about one clip otherwise
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    shortcuts: list[dict] = field(default_factory=list)  # rules that give answers away
    # counts
    types: Counter = field(default_factory=Counter)
    balance: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    reasoned: int = 0

    def used(self) -> Iterator[tuple[int, ...]]:
        """Yield the clip numbers of every record."""
        start = 0
        for count in self.clip_counts:
            yield tuple(self.clip_numbers[start : start + count])
            start += count

    def add_names(self, sample: Sample) -> None:
        """Add what a record is called, shows and asks, which is all that a comparison of datasets
        needs."""
        self.ids.append(sample.id)
        self.indices.append(sample.index)
        self.clip_counts.append(len(sample.media))
        for medium in sample.media:
            self.clip_numbers.append(self.clips.setdefault(medium, len(self.clips)))
        key = None
        before = len(self.text_keys)
        for (_, text), (role, _) in pairwise(sample.turns):
            if role == "assistant":
                key = hash((key, text))  # a question is one with all that was said before it
                self.text_keys.append(key)
        self.asked.append(len(self.text_keys) - before)

    def add(self, sample: Sample, counts) -> None:
        self.add_names(sample)
        answer = sample.turns[-1].text
        self.text_tokens.append(counts.conversation(sample.turns, bool(sample.media)))
        self.answer_tokens.append(counts.answer(answer))
        self.has_system.append(sample.turns[0].role == "system")
        self.reasoning_tokens.append(
            counts.reasoning(sample.reasoning, answer) if sample.reasoning else 0
        )
        self.video_fps.append(sample.video_fps or 0)
        self._add_questions(sample)

    def _add_questions(self, sample: Sample) -> None:
        """Count what Sample.questions gives, without making its objects."""
        first = None
        for (_, text), (role, gt) in pairwise(sample.turns):
            if role != "assistant":
                continue
            kind, answer, problem, plain, meant = _read(text, gt)
            self.types[kind] += 1
            if answer:
                self.balance[kind][answer] += 1
            if problem:
                check, message = problem
                self.tally.add(check, sample.index, sample.id, message)
            if sample.reasoning or "<think>" in gt:
                self.reasoned += 1
            self.is_closed.append(meant is not None)
            self.answer_keys.append(hash(plain if meant is None else meant))
            if answer is not None and len(gt) <= LONGEST_CLASS:
                form, row = self.forms.setdefault(plain, (gt.strip(), len(self.ids) - 1))
                if form != gt.strip():
                    message = f"got {gt.strip()!r}, which {self.ids[row][:60]!r} writes {form!r}"
                    self.tally.add("DATA-ANSWER-FORM", sample.index, sample.id, message)
            first = first or (kind, answer)
        kind, answer = first or ("", None)
        self.kinds.append(kind)
        self.answers.append(answer)


@lru_cache(maxsize=READ_ONCE)
def _read(text: str, gt: str) -> tuple:
    """Return (type, `short_answer`, what `unoffered` says, `alike`, the one answer that is meant
    where the type has such) of a question and its answer.

    Kept, as this takes most of a survey's time and datasets ask the same again and again."""
    kind = answers.question_type(text, gt)
    meant = answers.normalise(gt, kind, text) if kind in CLOSED else None
    return kind, short_answer(kind, text, gt), unoffered(text, gt), alike(gt), meant


def listed(annotations: Path, records: Iterable[dict] | None = None) -> Survey:
    """Return a survey with no more than `Survey.add_names` adds, of an annotation file or of the
    `records` that it will hold. Raises Failure when the file cannot be read."""
    dataset = Survey(annotations, annotations.parent, str(annotations))
    if records is None:
        source = JsonRecords(annotations)
        samples = stream(source, dataset.tally)
        dataset.header = source.header  # fills while the records are read
    else:
        parsed = (parse(index, record, dataset.tally) for index, record in enumerate(records))
        samples = filter(None, parsed)
    for sample in samples:
        dataset.add_names(sample)
    return dataset


def take(annotations: Path, media_path: Path | str, model: str, source: str = "") -> Survey:
    """Survey a dataset, its texts counted with the tokenizer of `model` when that is a folder that
    has one.

    Raises Failure when the annotation file cannot be read.
    """
    counts = text_tokens.of_model(model)
    records = JsonRecords(annotations)
    dataset = Survey(annotations, media_path, source or str(annotations), counts.method)
    for sample in stream(records, dataset.tally, dataset.formats):
        dataset.add(sample, counts)
    dataset.header = records.header
    dataset.read = records.index + 1
    if not dataset.ids and not dataset.tally.first:
        dataset.tally.add("DATA-EMPTY", 0, "-", "got no records, expected at least one")
    for pair in PAIRS:
        if all(word in dataset.forms for word in pair):
            (form, _), (other, row) = (dataset.forms[word] for word in pair)
            if spelling(form) != spelling(other):
                message = f"got {other!r} beside {form!r}, expected one spelling"
                dataset.tally.add(
                    "DATA-ANSWER-FORM", dataset.indices[row], dataset.ids[row], message
                )
    _check_ids(dataset)
    _check_duplicate_questions(dataset)
    return dataset


def short_answer(kind: str, question: str, gt: str) -> str | None:
    """Return the answer as a class worth counting: normalised where it can be, None when it is
    long."""
    if kind in answers.SET_TYPES:
        return None
    if kind in ("text", "number"):
        return gt.strip() if len(gt) <= LONGEST_CLASS else None
    if kind == "mcq" and len(gt) == 1:
        return gt.upper()
    return answers.normalise(gt, kind, question)


def _check_ids(dataset: Survey) -> None:
    seen: set[str] = set()
    for index, name in zip(dataset.indices, dataset.ids, strict=True):
        if not SAFE_ID.fullmatch(name):
            dataset.tally.add(
                "DATA-ID-UNSAFE", index, name, f"got id {name[:60]!r}, expected a file name"
            )
        if name in seen:
            dataset.tally.add(
                "DATA-ID-DUPLICATE", index, name, f"got id {name[:60]!r} again, expected unique ids"
            )
        seen.add(name)


def _check_duplicate_questions(dataset: Survey) -> None:
    """Note questions that are asked twice about the same media, whatever their records are
    called."""
    import numpy as np

    rows = np.repeat(np.arange(len(dataset.ids)), dataset.asked)
    # One number per set of media, whatever their order: the products of the clips' numbers with a
    # large odd one are spread over all bits, and added up.
    media = np.zeros(len(dataset.ids), np.uint64)
    mixed = (np.array(dataset.clip_numbers, np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    np.add.at(
        media,
        np.repeat(np.arange(len(dataset.ids)), dataset.clip_counts),
        mixed ^ (mixed >> np.uint64(29)),
    )
    keys = np.array(dataset.text_keys, np.int64).view(np.uint64) ^ media[rows]
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    for question, before in sorted(
        zip(order[again].tolist(), order[again - 1].tolist(), strict=True)
    ):
        row = rows[question]
        other = dataset.ids[rows[before]]
        check = "DATA-QUESTION-DUPLICATE"
        message = f"got the question of {other[:60]!r} again"
        if dataset.answer_keys[question] != dataset.answer_keys[before]:
            are_closed = dataset.is_closed[question] and dataset.is_closed[before]
            check = "DATA-ANSWER-CONFLICT" if are_closed else "DATA-ANSWER-SEVERAL"
            message += ", with another answer"
            dataset.conflicts.append((int(row), int(rows[before])))
        dataset.tally.add(check, dataset.indices[row], dataset.ids[row], message)
