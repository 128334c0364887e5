"""A dataset in columns, from one pass over its records."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import re
import signal
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, filterfalse, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cosmos_reason.data.annotations import stream
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.record_tables import RecordTable
from cosmos_reason.data.record_tables import read as read_table
from cosmos_reason.data.records import parse
from cosmos_reason.data.samples import Media, Sample
from cosmos_reason.data.turns import PAIRS, alike, spelling
from cosmos_reason.media.files import ClipReport

# What answers mean and how many tokens texts have is imported where it is asked: a comparison of
# datasets by their names (`listed`), which every spec with validation data makes, asks neither.
if TYPE_CHECKING:
    import numpy as np

    from cosmos_reason.estimate import text_tokens

SAFE_ID = re.compile(r"[\w][\w.+=@ -]{0,199}")
EXCLUSIVE = ("yes_no", "mcq", "number", "ordinal", "direction")  # one answer denies the others
LONGEST_CLASS = 60  # characters; longer answers are texts, not classes worth counting
READ_ONCE = 1 << 14  # questions with an answer that are kept as they were read

PART = 1 << 23  # bytes of a file that a process surveys at once
LARGE = 1 << 26  # bytes from which on other processes have started before this one is through
# Each takes some 200 MB, and a login node may have a hundred cores: four of sixteen brought most of
# what all did (benchmarks/RESULTS.md).
MOST_PROCESSES = 4

Integers = partial(array, "i")


@dataclass
class Survey:
    """The columns. `clips` numbers the media in order of appearance, `reports` says what is known
    of their files. `source` is the annotation file as people know it, perhaps in S3; `annotations`
    is the file that was read."""

    annotations: Path
    media_path: Path | str  # which media names are relative to; first the file's own folder
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
    form_numbers: array = field(default_factory=Integers)  # of short answers; -1: a long one
    forms: dict[tuple[str, str], int] = field(default_factory=dict)  # (`alike`, as written): number
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

    def add_names(self, sample: Sample, keys: list[int]) -> None:
        """Add what a record is called, shows and asks (`keys` of its questions), which is all that
        a comparison of datasets needs."""
        self.ids.append(sample.id)
        self.indices.append(sample.index)
        self.clip_counts.append(len(sample.media))
        for medium in sample.media:
            self.clip_numbers.append(self.clips.setdefault(medium, len(self.clips)))
        self.asked.append(len(keys))
        self.text_keys.extend(keys)

    def add(self, sample: Sample, talk: Talk) -> None:
        self.add_names(sample, talk.text_keys)
        self.video_fps.append(sample.video_fps or 0)
        self.kinds.append(talk.kind)
        self.answers.append(talk.answer)
        self.text_tokens.append(talk.text_tokens)
        self.answer_tokens.append(talk.answer_tokens)
        self.reasoning_tokens.append(talk.reasoning_tokens)
        self.has_system.append(talk.has_system)
        self.answer_keys.extend(talk.answer_keys)
        self.is_closed.extend(talk.is_closed)
        self.form_numbers.extend(self._forms_of(talk))
        self._count(talk, 1)
        for check, message in talk.problems.items():
            self.tally.add(check, sample.index, sample.id, message)

    def add_table(self, table: RecordTable, talks: list[Talk]) -> None:
        """Add many records, each of whose `talks` is noted for all that have it."""
        import numpy as np

        numbers = table.talk_numbers
        of_talks = Talk(*zip(*talks, strict=True))  # columns, each with one element per talk
        indices = np.arange(table.index, table.index + len(table))
        for row in np.flatnonzero(np.array(list(map(bool, of_talks.problems)))[numbers]):
            for check, message in of_talks.problems[numbers[row]].items():
                self.tally.add(check, int(indices[row]), table.ids[row], message)
        clips = [self.clips.setdefault(medium, len(self.clips)) for medium in table.media]
        self.ids += table.ids
        _extend(self.indices, indices)
        _extend(self.clip_counts, np.ones(len(table)))
        _extend(self.clip_numbers, np.array(clips)[table.medium_numbers])
        _extend(self.video_fps, table.video_fps)
        chosen = numbers.tolist()
        self.kinds += map(of_talks.kind.__getitem__, chosen)
        self.answers += map(of_talks.answer.__getitem__, chosen)
        for name in ("text_tokens", "answer_tokens", "reasoning_tokens", "has_system"):
            _extend(getattr(self, name), np.array(getattr(of_talks, name))[numbers])
        for talk, times in zip(talks, np.bincount(numbers).tolist(), strict=True):
            self._count(talk, times)
        # Of the questions of all talks, one after the other, those of each record's talk.
        counts = np.array(list(map(len, of_talks.text_keys)))
        asked = counts[numbers]
        _extend(self.asked, asked)
        first_of_talk, first_of_row = np.cumsum(counts) - counts, np.cumsum(asked) - asked
        questions = np.repeat(first_of_talk[numbers] - first_of_row, asked) + np.arange(asked.sum())
        for name in ("text_keys", "answer_keys", "is_closed"):
            values = list(chain.from_iterable(getattr(of_talks, name)))
            _extend(getattr(self, name), np.array(values)[questions])
        forms = list(chain.from_iterable(map(self._forms_of, talks)))
        _extend(self.form_numbers, np.array(forms)[questions])

    def _forms_of(self, talk: Talk) -> list[int]:
        return [
            -1 if form is None else self.forms.setdefault(form, len(self.forms))
            for form in talk.forms
        ]

    def _count(self, talk: Talk, times: int) -> None:
        for kind, answer in zip(talk.types, talk.balance, strict=True):
            self.types[kind] += times
            if answer:
                self.balance[kind][answer] += times
        self.reasoned += times * talk.reasoned


def _extend(column: array, values: np.ndarray) -> None:
    column.frombytes(values.astype(column.typecode).tobytes())


class Talk(NamedTuple):
    """What is noted of one conversation, whatever record has it. The lists have one element per
    question; `kind` and `answer` are the first one's, `forms` what DATA-ANSWER-FORM compares,
    `problems` are check -> message."""

    kind: str
    answer: str | None
    text_tokens: int
    answer_tokens: int
    reasoning_tokens: int
    has_system: bool
    reasoned: int
    text_keys: list[int]
    answer_keys: list[int]
    is_closed: list[bool]
    types: list[str]
    balance: list[str | None]
    forms: list[tuple[str, str] | None]
    problems: dict[str, str]


def talk_of(
    sample: Sample,
    counts: text_tokens.Estimate | text_tokens.Tokenizer,
    found: dict[str, str] | None = None,
) -> Talk:
    """Return what is noted of a record's conversation, as Sample.questions has its questions;
    `found`: what its reader found wrong with it, and nobody has noted yet."""
    last = sample.turns[-1].text
    reasoning = counts.reasoning(sample.reasoning, last) if sample.reasoning else 0
    answer_keys, is_closed, types, balance, forms = [], [], [], [], []
    problems = dict(found or {})
    reasoned = 0
    for (_, text), (role, gt) in pairwise(sample.turns):
        if role != "assistant":
            continue
        kind, answer, problem, plain, meant = _read(text, gt)
        if problem:
            problems.setdefault(*problem)
        types.append(kind)
        balance.append(answer)
        answer_keys.append(_key(plain if meant is None else meant))
        is_closed.append(meant is not None)
        is_class = answer is not None and len(gt) <= LONGEST_CLASS
        forms.append((plain, gt.strip()) if is_class else None)
        reasoned += bool(sample.reasoning or "<think>" in gt)
    return Talk(
        types[0] if types else "",
        balance[0] if balance else None,
        counts.conversation(sample.turns, bool(sample.media)),
        counts.answer(last),
        reasoning,
        sample.turns[0].role == "system",
        reasoned,
        _text_keys(sample),
        answer_keys,
        is_closed,
        types,
        balance,
        forms,
        problems,
    )


def _text_keys(sample: Sample) -> list[int]:
    keys: list[int] = []
    for (_, text), (role, _) in pairwise(sample.turns):
        if role == "assistant":
            # A question is one with all that was said before it.
            keys.append(_key(f"{keys[-1]} {text}" if keys else text))
    return keys


def _key(text: str) -> int:
    """Return 64 bits of a hash, which is the same in all processes."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@lru_cache(maxsize=READ_ONCE)
def _read(text: str, gt: str) -> tuple:
    """Return (type, `short_answer`, what `unoffered` says, `alike`, the one answer that is meant
    where the type has such) of a question and its answer.

    Kept, as this takes most of a survey's time and datasets ask the same again and again."""
    from cosmos_reason import answers
    from cosmos_reason.data.options import unoffered

    kind = answers.question_type(text, gt)
    answer = short_answer(kind, text, gt)
    meant = answer if kind in EXCLUSIVE else None
    if kind == "number":  # counted as it is written, and compared by what it says
        meant = answers.normalise(gt, kind, text)
    return kind, answer, unoffered(text, gt), alike(gt), meant


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
        dataset.add_names(sample, _text_keys(sample))
    return dataset


def of_records(annotations: Path, model: str, source: str = "") -> Survey:
    """Return a survey of the records of an annotation file, which knows no reports of clips. Texts
    are counted with the tokenizer of `model` when that is a folder that has one.

    Raises Failure when the annotation file cannot be read.
    """
    gc.disable()  # records have no cycles: to look for some takes a tenth of a large check
    try:
        dataset = by_processes(annotations, model) or by_one(annotations, model)
    finally:
        gc.enable()  # clips that are opened have
    dataset.source = source or str(annotations)
    if not dataset.ids and not dataset.tally.first:
        dataset.tally.add("DATA-EMPTY", 0, "-", "got no records, expected at least one")
    _check_answer_forms(dataset)
    _check_ids(dataset)
    _check_duplicate_questions(dataset)
    return dataset


def by_one(annotations: Path, model: str) -> Survey:
    """Return the columns of any annotation file. Raises Failure when it cannot be read."""
    from cosmos_reason.estimate import text_tokens

    counts = text_tokens.of_model(model)
    dataset = Survey(annotations, annotations.parent, text_method=counts.method)
    records = JsonRecords(annotations, read_table)
    for found in stream(records, dataset.tally, dataset.formats):
        if isinstance(found, RecordTable):
            dataset.add_table(found, [talk_of(one, counts, wrong) for one, wrong in found.talks])
        else:
            dataset.add(found, talk_of(found, counts))
    dataset.header = records.header
    dataset.read = records.read
    return dataset


def by_processes(annotations: Path, model: str) -> Survey | None:
    """Return the columns of a large file of one record a line, read by some processes; None for any
    other, where a line is for the reader of single records, and where a process was killed."""
    count = min(os.cpu_count() or 1, MOST_PROCESSES)
    size = annotations.stat().st_size if annotations.is_file() else 0
    if count == 1 or size < LARGE:
        return None
    with annotations.open("rb") as handle:
        head = handle.readline(PART)
        comma = "," if head.strip() == b"[" else ""
        begins = [len(head) if comma else 0]
        while begins[-1] + 2 * PART < size:
            handle.seek(begins[-1] + PART)
            handle.readline(PART)
            begins.append(handle.tell())
    ranges = list(pairwise([*begins, size]))
    dataset = Survey(annotations, annotations.parent)
    # Spawned processes hold no copies of the locks that threads of this one hold.
    context = multiprocessing.get_context("spawn")
    # ctrl-C reaches them, too: this process ends them.
    ignoring = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with ProcessPoolExecutor(min(count, len(ranges)), context, **ignoring) as pool:
        try:
            for part in pool.map(partial(_part, annotations, model, comma), ranges):
                if part is None:
                    return None
                table, talks, dataset.text_method = part
                dataset.add_table(replace(table, index=dataset.read), talks)
                dataset.formats["llava"] += len(table)
                dataset.read += len(table)
        except BrokenProcessPool:  # by who gives memory: one process needs less
            return None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return dataset


def _part(
    annotations: Path, model: str, comma: str, place: tuple[int, int]
) -> tuple[RecordTable, list[Talk], str] | None:
    """Return the lines between two places of a file as a table, what is noted of its conversations,
    and how texts were counted; None where they are no table."""
    from cosmos_reason.estimate import text_tokens

    begin, end = place
    with annotations.open("rb") as handle:
        handle.seek(begin)
        written = handle.read(end - begin)
        is_last = not handle.read(1)
    try:
        lines = written.decode().lstrip(" ")
    except UnicodeDecodeError:
        return None
    if is_last:
        lines = lines.rstrip()
        if comma and not lines.endswith("]"):
            return None
        lines = lines.removesuffix("]" if comma else "").rstrip() + comma + "\n"
    table = read_table(lines, comma, 0)
    if table is None:
        return None
    counts = text_tokens.of_model(model)
    talks = [talk_of(sample, counts, found) for sample, found in table.talks]
    return replace(table, talks=[]), talks, counts.method


def short_answer(kind: str, question: str, gt: str) -> str | None:
    """Return the answer as a class worth counting: normalised where it can be, None when it is
    long."""
    from cosmos_reason import answers

    if kind in answers.SET_TYPES:
        return None
    if kind in ("text", "number"):
        return gt.strip() if len(gt) <= LONGEST_CLASS else None
    if kind == "mcq" and len(gt) == 1:
        return gt.upper()
    return answers.normalise(gt, kind, question)


def _check_answer_forms(dataset: Survey) -> None:
    """Note answers that are written in another form than the first of those alike, or than the
    other word of a pair."""
    import numpy as np

    rows = np.repeat(np.arange(len(dataset.ids)), dataset.asked)
    numbers, firsts = np.unique(np.array(dataset.form_numbers), return_index=True)
    forms = list(dataset.forms)
    first_forms: dict[str, tuple[str, int]] = {}  # `alike` -> as written first, row
    others = []
    for first, number in sorted(zip(firsts.tolist(), numbers.tolist(), strict=True)):
        if number >= 0:
            plain, form = forms[number]
            if first_forms.setdefault(plain, (form, rows[first]))[0] != form:
                others.append(number)
    for question in np.flatnonzero(np.isin(dataset.form_numbers, others)):
        plain, form = forms[dataset.form_numbers[question]]
        first_form, first_row = first_forms[plain]
        message = f"got {form!r}, which {dataset.ids[first_row][:60]!r} writes {first_form!r}"
        row = rows[question]
        dataset.tally.add("DATA-ANSWER-FORM", dataset.indices[row], dataset.ids[row], message)
    for pair in PAIRS:
        if all(word in first_forms for word in pair):
            (form, _), (other, row) = (first_forms[word] for word in pair)
            if spelling(form) != spelling(other):
                message = f"got {other!r} beside {form!r}, expected one spelling"
                dataset.tally.add(
                    "DATA-ANSWER-FORM", dataset.indices[row], dataset.ids[row], message
                )


def _check_ids(dataset: Survey) -> None:
    unsafe = set(filterfalse(SAFE_ID.fullmatch, dataset.ids))
    repeated = len(set(dataset.ids)) < len(dataset.ids)
    seen: set[str] = set()
    for row, name in enumerate(dataset.ids if unsafe or repeated else ()):
        if name in unsafe:
            message = f"got id {name[:60]!r}, expected a file name"
            dataset.tally.add("DATA-ID-UNSAFE", dataset.indices[row], name, message)
        if name in seen:
            message = f"got id {name[:60]!r} again, expected unique ids"
            dataset.tally.add("DATA-ID-DUPLICATE", dataset.indices[row], name, message)
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
