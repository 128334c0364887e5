"""Whether held-out data show what training shows: the same file, a copy of it, or parts of one
recording that overlap or lie near each other."""

from __future__ import annotations

import filecmp
import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.data import clip_files, survey
from cosmos_reason.data.located import place
from cosmos_reason.data.samples import Media
from cosmos_reason.data.split_names import CUTS, NEAR
from cosmos_reason.data.survey import Survey
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import s3

WHOLE = (0.0, math.inf)  # seconds of a clip that nobody cut
NO_MEDIA = -1  # stands for the clip of a record that shows none
QUESTION, CLIP, NEARBY = "DATA-LEAK-QUESTION", "DATA-LEAK-CLIP", "DATA-LEAK-NEAR"
ALIKE = "DATA-LEAK-ALIKE"
MESSAGES = {
    QUESTION: "{here} asks the question of training record {there}: {how}, expected unseen clips",
    CLIP: "{here} shows what training record {there} shows: {how}, expected unseen clips",
    NEARBY: f"{{here}} is less than {NEAR:g} s from training record {{there}} in one recording",
}

_real = lru_cache(maxsize=4096)(os.path.realpath)

Span = tuple[float, float]
Shown = list[tuple[object, Span]]  # what tells a recording from others, and the times of it
Place = tuple[int, int]  # (row of a record, number of the clip that it shows)


def check(train: Survey, held_out: Survey) -> None:
    """Report the held-out records that training shows, as problems of theirs."""
    from cosmos_reason.data import looks  # clips are looked at here, not where names are compared

    sides = _Clips(train), _Clips(held_out)
    for name, leaks in compare(*sides).items():
        message = _told(name, next(iter(leaks.items())), *sides) if leaks else ""
        for row, _ in leaks:  # the tally keeps the words of the first
            held_out.tally.add(name, held_out.indices[row], held_out.ids[row], message)
    told = set(held_out.tally.ids.get(QUESTION, ())) | set(held_out.tally.ids.get(CLIP, ()))
    copies = looks.alike(train.reports, held_out.reports)
    names, held_out_names = (
        {number: medium.path for medium, number in side.clips.items()} for side in (train, held_out)
    )
    for row, used in enumerate(held_out.used()):
        copied = [number for number in used if number in copies]
        if copied and held_out.ids[row] not in told:
            here, there = held_out_names[copied[0]], names[copies[copied[0]]]
            message = (
                f"{held_out.ids[row]!r} ({here}) looks like {there} of the training data, and "
                "differs from it in its bytes"
            )
            held_out.tally.add(ALIKE, held_out.indices[row], held_out.ids[row], message)


def _told(check: str, leak: tuple[Place, Place], train: _Clips, held_out: _Clips) -> str:
    """Return what is said of a held-out record and the training record that shows the same."""
    words = {}
    for side, word, (row, number) in zip((held_out, train), ("here", "there"), leak, strict=True):
        path = next((one.path for one, at in side.dataset.clips.items() if at == number), "no clip")
        words[word] = f"{side.dataset.ids[row]!r} ({path})"
    (_, here), (_, there) = leak
    files, others = held_out.files.get(here, ()), train.files.get(there, ())
    pairs = list(zip(files, others, strict=True)) if len(files) == len(others) else []
    how = "both are one name in an archive or in S3"
    if here == NO_MEDIA:
        how = "neither shows a clip"
    elif pairs and all(os.path.samefile(*pair) for pair in pairs):
        how = "both are one file"
    elif pairs and all(filecmp.cmp(*pair, shallow=False) for pair in pairs):
        how = "the clips are byte-identical"
    elif here in held_out.cut or there in train.cut:
        how = "the clips differ in their bytes and show overlapping times of one recording"
    elif pairs:
        how = "the clips have one size and are equal at their beginning, middle and end"
    return MESSAGES[check].format(**words, how=how)


def compare(of_train: _Clips, of_held_out: _Clips) -> dict[str, dict[Place, Place]]:
    """Return {check: {place in `held_out`: the first place in `train` that is the same}}, with a
    record once.

    A file is known by its place on the disk, and by its content where both datasets have files of
    that size: no other file is read. Raises Failure for a CUTS file that cannot be read."""
    train, held_out = of_train.dataset, of_held_out.dataset
    sizes = of_train.sizes & of_held_out.sizes
    trained, asked = of_train.shown(sizes), of_held_out.shown(sizes)
    for side in (trained, asked):
        side[NO_MEDIA] = [("no media", WHOLE)]
    wanted = {key for one in asked.values() for key, _ in one}
    spans: dict[object, dict[Span, Place]] = defaultdict(dict)
    texts: dict[object, dict[int, Place]] = defaultdict(dict)
    for where, key, span, questions in _shown(train, trained):
        if key in wanted:
            spans[key].setdefault(span, where)
            for question in questions:
                texts[key].setdefault(question, where)
    found: dict[str, dict[int, tuple[Place, Place]]] = {QUESTION: {}, CLIP: {}, NEARBY: {}}
    for where, key, span, questions in _shown(held_out, asked):
        if key not in spans:
            continue
        row, number = where
        gap, nearest = min(
            (max(start - span[1], span[0] - end), other)
            for (start, end), other in spans[key].items()
        )
        again = next((texts[key][one] for one in questions if one in texts[key]), None)
        if gap < 0 and again:
            found[QUESTION].setdefault(row, (where, again))
        elif gap < 0 and number != NO_MEDIA:  # texts alone are no clip
            found[CLIP].setdefault(row, (where, nearest))
        elif 0 <= gap < NEAR:
            found[NEARBY].setdefault(row, (where, nearest))
    # A record is told by the worst that is known of its clips.
    worse: set[int] = set()
    for check, leaks in found.items():
        found[check] = {row: pair for row, pair in leaks.items() if row not in worse}
        worse |= leaks.keys()
    return {check: dict(leaks.values()) for check, leaks in found.items()}


class Compared(NamedTuple):
    """How many held-out records there are, the ids of those of each check, an archive whose clips
    were compared by their names alone ("" without one), and the words about the first of each."""

    records: int
    ids: dict[str, list[str]]
    unread: str
    first: dict[str, str]


Root = tuple[str, str]  # an annotation file, and where its media are ("": beside it)


def of_files(train: Root, held_out: Root, drafted: Mapping[str, Sequence[dict]]) -> Compared | None:
    """Return `compare` of annotation files that are here, some of which may only be `drafted` yet;
    None where one cannot be read.

    Raises Failure for a CUTS file that cannot be read."""
    files = [name for name in (train[0], held_out[0]) if name not in drafted]
    if len(files) < 2:
        return _compared(train, held_out, drafted)
    facts = [os.stat(file) for file in files]
    versions = tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in facts)
    return _compared_files(train, held_out, versions)


@lru_cache(maxsize=16)
def _compared_files(train: Root, held_out: Root, _versions: tuple) -> Compared | None:
    """Return what `_compared` does. Kept, as a spec is checked several times while it is mended."""
    return _compared(train, held_out, {})


def _compared(
    train: Root, held_out: Root, drafted: Mapping[str, Sequence[dict]]
) -> Compared | None:
    surveys = []
    for file, media_path in (train, held_out):
        try:
            dataset = survey.listed(Path(file), drafted.get(file))
            given = media_path or None
            if s3.is_uri(media_path):  # which is not fetched to compare names
                dataset.media_path = media_path.rstrip("/")
            else:
                dataset.media_path = clip_files.media_path(dataset, given)
        except f.Failure:  # told by the checks of each dataset
            return None
        surveys.append(dataset)
    ids, first = {}, {}
    sides = tuple(map(_Clips, surveys))
    for check, leaks in compare(*sides).items():
        ids[check] = [surveys[1].ids[row] for row, _ in leaks]
        if leaks:
            first[check] = _told(check, next(iter(leaks.items())), *sides)
    packed = {str(one.media_path) for one in surveys if archives.is_archive(one.media_path)}
    is_one = surveys[0].media_path == surveys[1].media_path
    return Compared(len(surveys[1].ids), ids, "" if is_one else min(packed, default=""), first)


def _shown(
    dataset: Survey, shown: dict[int, Shown]
) -> Iterator[tuple[Place, object, Span, list[int]]]:
    """Yield (place, what tells a recording from others, the times of it, hashes of the questions)
    of all that the records show."""
    start = 0
    for row, used in enumerate(dataset.used()):
        questions = dataset.text_keys[start : start + dataset.asked[row]].tolist()
        start += dataset.asked[row]
        for number in used or (NO_MEDIA,):
            for key, span in shown[number]:
                yield (row, number), key, span, questions


class _Clips:
    """The media of a dataset by their numbers: where they lie, their sizes, what they were cut
    of."""

    def __init__(self, dataset: Survey):
        self.dataset = dataset
        self.places: dict[int, list[object]] = {}
        self.files: dict[int, tuple[Path, ...]] = {}
        self.size: dict[int, tuple] = {}  # (files, bytes of the first), as copies have it, too
        self.cut: dict[int, dict] = {}
        for medium, number in dataset.clips.items():
            self.places[number] = [self._place(number, medium, name) for name in medium.names]
            files = self.files.get(number)
            if files:
                self.size[number] = (len(files), files[0].stat().st_size)

    def _place(self, number: int, medium: Media, name: str) -> object:
        """Return what is equal for one file, however its name is written; the file joins
        `files`."""
        root = self.dataset.media_path
        if archives.is_archive(root) and not (s3.is_uri(name) or os.path.isabs(name)):
            return _archive(str(root)), os.path.normpath(name)
        try:
            path = place(root, name)
        except f.Failure:  # told as a name that leads out of the media path
            return name
        if s3.is_uri(path):
            return path
        folder, last = os.path.split(path)
        here = self.dataset.annotations.parent
        cut = _cuts(here).get(name) or _cuts(Path(folder).parent).get(f"media/{last}")
        if cut:
            self.cut[number] = cut
        try:
            facts = os.stat(path)
        except OSError:
            return _real(folder), last
        if stat.S_ISREG(facts.st_mode):
            self.files[number] = (*self.files.get(number, ()), Path(path))
        elif stat.S_ISDIR(facts.st_mode):
            listed = [entry.path for entry in os.scandir(path)]
            self.files[number] = tuple(map(Path, media.pictures_of(listed, 1).files))
        return facts.st_dev, facts.st_ino

    @property
    def sizes(self) -> set[tuple]:
        """Return the sizes of the files, and of the recordings that they were cut of."""
        return {*self.size.values(), *((1, cut["bytes"]) for cut in self.cut.values())}

    def shown(self, sizes: set[tuple]) -> dict[int, Shown]:
        """Return what each medium shows; files are read where their size is one of `sizes`."""
        from cosmos_reason.media import checks

        found = {}
        for number, places in self.places.items():
            report = self.dataset.reports.get(number)
            content = report.content if report else ""
            if not content and self.size.get(number) in sizes:
                content = checks.content_of(self.files[number])
            keys = [*places, content] if content else places
            found[number] = [(key, WHOLE) for key in keys]
            if number in self.cut:
                cut = self.cut[number]
                found[number].append((cut["recording"], (cut["start"], cut["end"])))
        return found


@lru_cache
def _archive(root: str) -> str:
    """Return what is equal for copies of an archive."""
    return media.content(Path(root)) if os.path.isfile(root) else root


@lru_cache(maxsize=4096)
def _cuts(folder: Path) -> dict[str, dict]:
    """Return {name of a clip: recording, its bytes, start and end} as build_dataset wrote it beside
    the annotations of a folder. Raises Failure for a file that is none of these."""
    path = folder / CUTS
    if not path.is_file():
        return {}
    cuts = storage.read_json(path)
    try:
        fields = {"recording": str, "bytes": int, "start": float, "end": float}
        return {
            name: {field: make(cut[field]) for field, make in fields.items()}
            for name, cut in cuts.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        message = f"got {problem!r}, expected what build_dataset writes of the clips that it cuts"
        raise f.bad_input("DATA-CUTS", path, message) from None
