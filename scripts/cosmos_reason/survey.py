"""A dataset in columns: one pass over its records, in as many processes as there are cores when the file is large."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosmos_reason import answers, json_stream
from cosmos_reason.annotations import Media, Sample, Tally, questions, stream
from cosmos_reason.media import ClipReport
from cosmos_reason.vision_tokens import text_counter

TURN_OVERHEAD = 5  # <|im_start|> role \n ... <|im_end|> \n
SAFE_ID = re.compile(r"[\w][\w.+=@ -]{0,199}")
LONGEST_CLASS = 60  # characters; longer answers are texts, not classes worth counting


Integers = partial(array, "i")


@dataclass
class Survey:
    """The columns. `clips` numbers the media in order of appearance, `reports` says what is known of their files."""

    annotations: Path
    media_path: Path
    text_method: str = ""
    header: dict = field(default_factory=dict)  # what stands around the records
    formats: Counter = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    clips: dict[Media, int] = field(default_factory=dict)
    reports: dict[int, ClipReport] = field(default_factory=dict)
    # one row per record
    ids: list[str] = field(default_factory=list)
    indices: array = field(default_factory=Integers)  # position in the file, counting unusable records too
    clip_counts: array = field(default_factory=Integers)
    clip_numbers: array = field(default_factory=Integers)  # those of all records, one after the other
    asked: array = field(default_factory=Integers)  # questions
    kinds: list[str] = field(default_factory=list)  # type of the first question
    answers: list[str | None] = field(default_factory=list)  # its answer, when that is one of a few
    text_tokens: array = field(default_factory=Integers)
    video_fps: array = field(default_factory=partial(array, "d"))  # 0: not given
    # one row per question
    text_keys: array = field(default_factory=partial(array, "Q"))  # hash of a question's text and of those before it
    answer_keys: array = field(default_factory=partial(array, "I"))
    # counts
    types: Counter = field(default_factory=Counter)
    balance: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    reasoned: int = 0

    def used(self) -> Iterator[tuple[int, ...]]:
        """The clip numbers of every record."""
        start = 0
        for count in self.clip_counts:
            yield tuple(self.clip_numbers[start : start + count])
            start += count

    def add(self, sample: Sample, count_text) -> None:
        if not SAFE_ID.fullmatch(sample.id):
            message = f"got id {sample.id[:60]!r}, expected a file name"
            self.tally.add("DATA-ID-UNSAFE", sample.index, sample.id, message)
        self.ids.append(sample.id)
        self.indices.append(sample.index)
        self.clip_counts.append(len(sample.media))
        for medium in sample.media:
            self.clip_numbers.append(self.clips.setdefault(medium, len(self.clips)))
        tokens = 0
        for _, text in sample.turns:
            tokens += count_text(text) + TURN_OVERHEAD
        self.text_tokens.append(tokens)
        self.video_fps.append(sample.video_fps or 0)
        self._add_questions(sample)

    def _add_questions(self, sample: Sample) -> None:
        asked = questions(sample)
        hasher = hashlib.blake2b(digest_size=8)
        for number, (_, _, _, text, gt) in enumerate(asked):
            # Without options in the question its type depends on the answer alone, and short answers are remembered.
            kind = answers.question_type(text if _may_have_options(text) else "", gt)
            answer = short_answer(kind, text, gt)
            self.types[kind] += 1
            if answer:
                self.balance[kind][answer] += 1
            if "<think>" in gt:
                self.reasoned += 1
            hasher.update(text.encode())
            self.text_keys.append(int.from_bytes(hasher.digest()))
            self.answer_keys.append(zlib.crc32(gt.encode()))
            if not number:
                self.kinds.append(kind)
                self.answers.append(answer)
        self.asked.append(len(asked))
        if not asked:
            self.kinds.append("")
            self.answers.append(None)

    def extend(self, piece: Survey) -> None:
        """Append the records of the next piece of the same file."""
        numbers = [self.clips.setdefault(medium, len(self.clips)) for medium in piece.clips]
        self.clip_numbers.extend(map(numbers.__getitem__, piece.clip_numbers))
        for name in ("ids", "indices", "clip_counts", "asked", "kinds", "answers", "text_tokens", "video_fps"):
            getattr(self, name).extend(getattr(piece, name))
        self.text_keys.extend(piece.text_keys)
        self.answer_keys.extend(piece.answer_keys)
        self.tally.extend(piece.tally)
        self.formats += piece.formats
        self.types += piece.types
        for kind, counts in piece.balance.items():
            self.balance[kind] += counts
        self.reasoned += piece.reasoned


def take(annotations: Path, media_path: Path, model: str) -> Survey:
    """Survey a dataset, its texts counted with the tokenizer of `model` when that is a folder that has one.

    Raises Failure when the annotation file cannot be read.
    """
    found = Survey(annotations, media_path, text_counter(model)[1])
    if not _read_pieces(found, model):
        _read(found, json_stream.JsonRecords(annotations), model)
    if not found.ids and not found.tally.first:
        found.tally.add("DATA-EMPTY", 0, "-", "got no records, expected at least one")
    _check_duplicate_ids(found)
    _check_duplicate_questions(found)
    return found


def _read(found: Survey, records, model: str) -> None:
    count_text, _ = text_counter(model)
    found.header = records.header
    for sample in stream(records, found.tally, found.formats):
        found.add(sample, count_text)


def _read_pieces(found: Survey, model: str) -> bool:
    """Read a large array of records in several processes. False, with nothing read, when it has to be read in order."""
    workers = os.cpu_count() or 1
    whole = Survey(found.annotations, found.media_path, found.text_method)
    waiting: deque = deque()
    with ProcessPoolExecutor(workers) as pool:
        try:
            for piece in json_stream.pieces(found.annotations):
                waiting.append(pool.submit(_survey_piece, found.annotations, *piece, model))
                if len(waiting) > workers and not _add(whole, waiting.popleft()):
                    return False
            if not waiting or not all(_add(whole, future) for future in waiting):
                return False
        except (UnicodeDecodeError, BrokenProcessPool):
            return False
    vars(found).update(vars(whole))
    return True


def _add(whole: Survey, future) -> bool:
    piece = future.result()
    if piece is not None:
        whole.extend(piece)
    return piece is not None


def _survey_piece(path: Path, text: str, index: int, count: int, model: str) -> Survey | None:
    """The survey of one of `json_stream.pieces`; None when it has to be read with the rest of the file."""
    try:
        records = json_stream.PieceRecords(path, text, index, count)
    except (ValueError, RecursionError):
        return None
    piece = Survey(path, Path())
    _read(piece, records, model)
    return piece


def _may_have_options(text: str) -> bool:
    return "B." in text or "B)" in text or "B:" in text or "b." in text or "b)" in text or "b:" in text


def short_answer(kind: str, question: str, gt: str) -> str | None:
    """The answer as a class worth counting: normalised where it can be, None when it is long."""
    if kind in ("text", "number"):
        return gt.strip() if len(gt) <= LONGEST_CLASS else None
    if kind == "mcq" and len(gt) == 1:
        return gt.upper()
    return answers.normalise(gt, kind, question)


def _check_duplicate_ids(found: Survey) -> None:
    if len(set(found.ids)) == len(found.ids):
        return
    seen: set[str] = set()
    for index, name in zip(found.indices, found.ids, strict=True):
        if name in seen:
            found.tally.add("DATA-ID-DUPLICATE", index, name, f"got id {name[:60]!r} again, expected unique ids")
        seen.add(name)


def _check_duplicate_questions(found: Survey) -> None:
    """The same text asked about the same media, whatever the records are called."""
    import numpy as np

    rows = np.repeat(np.arange(len(found.ids)), found.asked)
    media = np.zeros(len(found.ids), np.uint64)  # one number per set of media
    mixed = (np.array(found.clip_numbers, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    np.add.at(media, np.repeat(np.arange(len(found.ids)), found.clip_counts), mixed ^ (mixed >> np.uint64(29)))
    keys = np.array(found.text_keys, np.uint64) ^ media[rows]
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    for question, before in sorted(zip(order[again].tolist(), order[again - 1].tolist(), strict=True)):
        row, other = rows[question], found.ids[rows[before]]
        same = found.answer_keys[question] == found.answer_keys[before]
        check = "DATA-QUESTION-DUPLICATE" if same else "DATA-ANSWER-CONFLICT"
        message = f"got the question of {other[:60]!r} again" + ("" if same else ", with another answer")
        found.tally.add(check, found.indices[row], found.ids[row], message)
