"""Annotation files: every record becomes one Sample, whatever was wrong with it becomes a Problem."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import findings as f
from cosmos_reason import s3
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.record_formats import as_llava


class Turn(NamedTuple):
    role: str  # system | user | assistant
    text: str  # without <video> / <image> tags


class Media(NamedTuple):
    kind: str  # video | image
    path: str  # as written in the record


class Sample(NamedTuple):
    """One record. `id` is the annotation's, or `record-<index>`; media stand before the first user turn's text; `tags`
    are groups that metrics are reported for; `reasoning` is what a format keeps beside its last answer."""

    index: int
    id: str
    turns: tuple[Turn, ...]
    media: tuple[Media, ...]
    video_fps: float | None
    tags: tuple[str, ...] = ()
    reasoning: str = ""


class Question(NamedTuple):
    """One assistant turn to predict: `context` ends with the user turn whose text is `text`; `gt` is the answer."""

    id: str
    sample: Sample
    context: tuple[Turn, ...]
    text: str
    gt: str


class Tally:
    """Problems of any number of records, per check: the first one in words, the others by record id. `fixes` holds
    what mends a check's problems in this very data, when that is known."""

    def __init__(self):
        self.first: dict[str, tuple[int, str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.fixes: dict[str, str] = {}

    def add(self, check: str, index: int, record: str, message: str) -> None:
        self.first.setdefault(check, (index, message))
        self.ids.setdefault(check, []).append(record)

    def take(self, records: JsonRecords) -> None:
        """What the decoder of the records would have passed over in silence."""
        for check, message in records.oddities:
            self.add(check, records.index, f"record-{records.index}", message)
        records.oddities.clear()

    def findings(self, checks: dict[str, tuple[str, str, str]], path: str | Path) -> list[f.Finding]:
        """One finding per check with its record ids (the first MAX_RECORD_IDS); `checks` is shaped as CHECKS."""
        found = []
        for check, (index, message) in self.first.items():
            severity, _, fix = checks[check]
            ids = list(dict.fromkeys(self.ids[check]))
            more = f" (and {len(ids) - 1} more records)" if len(ids) > 1 else ""
            data = {"record_ids": ids[: f.MAX_RECORD_IDS], "count": len(ids)}
            fix = self.fixes.get(check, fix)
            found.append(f.Finding(check, severity, f"{path}#{index}", message + more, fix, data))
        return found


ONE_EACH = "write one record per question, or train with --engine transformers, which keeps all turns"
# id -> (severity, what is checked, how to mend it)
CHECKS = {
    "DATA-JSON-KEY-TWICE": (f.ERROR, "an object has each key once (readers keep the last)", "remove one of the two"),
    "DATA-JSON-CONSTANT": (f.WARNING, "numbers are numbers, not NaN or Infinity", "write a number or null"),
    "DATA-RECORD-TYPE": (f.ERROR, "a record is a JSON object", "write each record as an object"),
    "DATA-RECORD-FORMAT": (f.ERROR, "a record follows the format it looks like", "correct the record"),
    "DATA-MEDIA-ESCAPE": (f.ERROR, "files are named below the dataset", "write names below the media path"),
    "DATA-ID-TYPE": (f.ERROR, "an id is text or an integer", 'write "id" as text'),
    "DATA-ID-MISSING": (f.INFO, "a record has an id (evaluation needs it)", 'give each record a unique "id"'),
    "DATA-TURNS-MISSING": (f.ERROR, "a record has conversation turns", 'add "conversations": a human and a gpt turn'),
    "DATA-TURN-TYPE": (f.ERROR, "a turn has a role and text", 'write turns as {"from": "human", "value": "..."}'),
    "DATA-TURN-ROLE": (f.ERROR, "roles are known", 'use "human", "gpt" or "system" as "from"'),
    "DATA-TURN-ORDER": (f.ERROR, "turns alternate, starting with the user", "start with human, then gpt, ..."),
    "DATA-ANSWER-MISSING": (f.ERROR, "the last turn is the assistant's", "end the record with a gpt turn"),
    "DATA-ANSWER-EMPTY": (f.ERROR, "answers have text", "write the answer or remove the record"),
    "DATA-QUESTION-EMPTY": (f.WARNING, "questions have text", "write what the model is asked"),
    "DATA-TURNS-MANY": (f.WARNING, "one question per record (tao and cosmos-rl keep two turns)", ONE_EACH),
    "DATA-TEXT-SURROGATE": (f.ERROR, "texts are whole characters", "write the text again, as UTF-8"),
    "DATA-SPECIAL-TOKEN": (f.ERROR, "texts contain no vision or chat control tokens", "remove the <|...|> tokens"),
    "DATA-TAG-COUNT": (f.ERROR, "<video>/<image> tags agree with the media", "write one tag per medium, or none"),
    "DATA-MEDIA-TYPE": (f.ERROR, "media are named by text", 'write "video" or "image" as a path or a list of paths'),
    "DATA-MEDIA-NONE": (f.INFO, "a record names a medium", 'add "video" or "image"'),
    "DATA-VIDEO-FPS": (f.ERROR, "video_fps is a positive number", 'write "video_fps" as a number above 0'),
}

ROOT_FILES = ("annotations.json", "annotations.jsonl", "meta.json")
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
MEDIA_KEYS = (("video", "video"), ("videos", "video"), ("image", "image"), ("images", "image"))
KINDS = ("video", "image")
MOST_FPS = 1e6
LONGEST_PATH = 4096
URLS = ("http://", "https://", "data:")
USUAL_TAGS = ("<video>\n", "<image>\n")
TAG_KIND = re.compile(r"<(image|video)>")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
TAG = re.compile(r"\n?</?(image|video)>\n?")
CONTROL_TOKEN = re.compile(r"<\|(?:im_start|im_end|endoftext|vision_start|vision_end|video_pad|image_pad)\|>")


def locate(path: str | Path) -> Path:
    """The annotation file of a dataset folder; any other path as it is."""
    folder = Path(path)
    names = [*(folder / name for name in ROOT_FILES), *sorted(folder.glob("*_qa_pairs.json"))]
    found = next((name for name in names if name.is_file()), names[0])
    return found if folder.is_dir() else folder


def fetch(uri: str) -> tuple[str, Path]:
    """(s3:// name, local copy) of an annotation file, or of the one in a dataset root; Failure when there is none."""
    if not uri.endswith((".json", ".jsonl")):
        connection = s3.client()
        names = [name for name in ROOT_FILES if s3.head(s3.join(uri, name), connection)]
        if not names:
            message = f"got no {', '.join(ROOT_FILES)} below it, expected a dataset root or an annotation file"
            raise f.bad_input("FILE-MISSING", uri, message)
        uri = s3.join(uri, names[0])
    folder, _, name = uri.rpartition("/")
    if name == "meta.json":  # its conversations are files of their own
        return uri, s3.snapshot(folder, [name, "text/*.json"]) / name
    return uri, s3.local(uri)


def read(path: str | Path) -> tuple[list[Sample], list[f.Finding]]:
    """All samples of an annotation file and what is wrong with its records. Raises Failure when it cannot be read."""
    tally = Tally()
    return list(stream(JsonRecords(path), tally)), tally.findings(CHECKS, path)


def stream(records: JsonRecords, tally: Tally, formats: Counter | None = None, make=None) -> Iterator[Sample]:
    """The samples of an annotation file one at a time, or what `make` (as `parse`) makes of its records. Problems go to
    `tally`, the formats met to `formats`."""
    formats = Counter() if formats is None else formats
    folder = records.path.parent
    for record in _unbroken(records, tally):
        index = records.index
        if records.oddities:
            tally.take(records)
        if not isinstance(record, dict):
            tally.add("DATA-RECORD-TYPE", index, f"record-{index}", f"got {_shown(record)}, expected an object")
            continue
        try:
            name, plain = as_llava(record, folder)
        except f.Failure as failure:
            (problem,) = failure.findings
            tally.add(problem.id, index, f"record-{index}", problem.message)
            continue
        except (ValueError, RecursionError) as problem:
            tally.add("DATA-RECORD-FORMAT", index, f"record-{index}", str(problem))
            continue
        formats[name] += 1
        for one in plain:
            if sample := (make or parse)(index, one, tally):
                yield sample
    tally.take(records)


def _unbroken(records: JsonRecords, tally: Tally) -> Iterator[object]:
    """The records; when the file breaks off, the Failure tells what was found before, too."""
    try:
        yield from records
    except f.Failure as failure:
        failure.findings = [*failure.findings, *tally.findings(CHECKS, records.path)]
        raise


def questions(sample: Sample) -> list[Question]:
    """One question per assistant turn; its id is the sample's, `<id>#2` for the second and so on."""
    asked = []
    for position, turn in enumerate(sample.turns):
        if turn.role == "assistant" and position:
            name = f"{sample.id}#{len(asked) + 1}" if asked else sample.id
            asked.append(Question(name, sample, sample.turns[:position], sample.turns[position - 1].text, turn.text))
    return asked


def parse(index: int, record: dict, tally: Tally) -> Sample | None:
    """One LLaVA record as a Sample; None when it has no usable turns."""
    found: list[tuple[str, str]] = []
    name = _id(record, found) or f"record-{index}"
    turns, tags = _turns(record, found)
    media = _media(record, found)
    if turns:
        _check_order(turns, found)
        _check_tags(tags, media, found)
    groups = record.get("tags")
    groups = tuple(tag for tag in groups if isinstance(tag, str)) if isinstance(groups, list) else ()
    reasoning = record.get("reasoning")
    reasoning = LONE_SURROGATE.sub("�", reasoning) if isinstance(reasoning, str) else ""
    sample = Sample(index, name, turns, media, _video_fps(record, found), groups, reasoning)
    for check, message in found:
        tally.add(check, index, name, message)
    return sample if turns else None


def id_and_media(index: int, record: dict, _: Tally) -> tuple[str, tuple[Media, ...]]:
    """Only these two of one LLaVA record, which takes a fifth of the time."""
    return _id(record, []) or f"record-{index}", _media(record, [])


def _id(record: dict, found: list) -> str | None:
    name = record.get("id")
    if isinstance(name, str) and name and (name.isascii() or not LONE_SURROGATE.search(name)):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    missing = "DATA-ID-MISSING", "got no id, expected one (evaluation uses it as a file name)"
    found.append(missing if name in (None, "") else ("DATA-ID-TYPE", f"got id {_shown(name)}, expected text"))
    return None


def _turns(record: dict, found: list) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns without tags, and the kinds of the tags in the user's texts."""
    conversation = record.get("conversations", record.get("messages"))
    if not isinstance(conversation, list) or not conversation:
        found.append(("DATA-TURNS-MISSING", f'got {_shown(conversation)} as "conversations", expected a list of turns'))
        return (), []
    turns, tags = [], []
    for turn in conversation:
        role, text = _role_and_text(turn, found)
        if role is None:
            return (), []
        if "<" in text:
            text, kinds = _without_tags(text, found)
            if role == "user":
                tags += kinds
        turns.append(Turn(role, text))
    return tuple(turns), tags


def _without_tags(text: str, found: list) -> tuple[str, list[str]]:
    if text.startswith(USUAL_TAGS) and text.count("<") == 1:
        return text[len(USUAL_TAGS[0]) :], [text[1:6]]
    if control := CONTROL_TOKEN.search(text):
        found.append(("DATA-SPECIAL-TOKEN", f"got {control.group()} in a text, expected plain words"))
    return TAG.sub("", text), TAG_KIND.findall(text)


def _role_and_text(turn: object, found: list) -> tuple[str | None, str]:
    speaker = text = None
    if isinstance(turn, dict):
        speaker, text = (turn["from"], turn.get("value")) if "from" in turn else (turn.get("role"), turn.get("content"))
    if not isinstance(speaker, str) or not isinstance(text, str):
        found.append(("DATA-TURN-TYPE", f"got {_shown(turn)}, expected an object with a role and a text"))
        return None, ""
    role = ROLES.get(speaker)
    if role is None:
        found.append(("DATA-TURN-ROLE", f"got role {speaker!r}.{f.did_you_mean(speaker, ROLES)}"))
    if not text.isascii() and LONE_SURROGATE.search(text):
        found.append(("DATA-TEXT-SURROGATE", "got half of a surrogate pair in a text, expected whole characters"))
        text = LONE_SURROGATE.sub("�", text)
    return role, text


def _check_order(turns: tuple[Turn, ...], found: list) -> None:
    spoken = turns[1:] if turns[0].role == "system" else turns
    roles = [turn.role for turn in spoken]
    if roles != ["user", "assistant"]:
        _check_roles(roles, found)
    for role, text in spoken:
        if not text or text.isspace():
            check = "DATA-ANSWER-EMPTY" if role == "assistant" else "DATA-QUESTION-EMPTY"
            found.append((check, f"got an empty {role} turn, expected text"))


def _check_roles(roles: list[str], found: list) -> None:
    expected = ["user", "assistant"] * (len(roles) // 2 + 1)
    if roles != expected[: len(roles)] or not roles:
        found.append(("DATA-TURN-ORDER", f"got turns {', '.join(roles) or 'none'}, expected user, assistant, ..."))
    elif roles[-1] != "assistant":
        found.append(("DATA-ANSWER-MISSING", "got a user turn at the end, expected an answer"))
    if len(roles) > 2:
        kept = "tao and cosmos-rl train on the first 2, transformers on all"
        found.append(("DATA-TURNS-MANY", f"got {len(roles)} turns, expected 2 ({kept})"))


def _media(record: dict, found: list) -> tuple[Media, ...]:
    media = []
    for key, kind in MEDIA_KEYS:
        if (names := record.get(key)) is None:
            continue
        for name in names if isinstance(names, list) else [names]:
            is_path = isinstance(name, str) and 0 < len(name) < LONGEST_PATH and not name.startswith(URLS)
            if is_path and (name.isascii() or not LONE_SURROGATE.search(name)):
                media.append(Media(kind, name))
            else:
                found.append(("DATA-MEDIA-TYPE", f'got {_shown(name)} in "{key}", expected the path of a file'))
    return tuple(media)


def _check_tags(tags: list[str], media: tuple[Media, ...], found: list) -> None:
    kinds = [kind for kind, _ in media]
    if not kinds:
        found.append(("DATA-MEDIA-NONE", "got a record without media, expected a video or an image"))
    if tags and tags != kinds and sorted(tags) != sorted(kinds):
        kind = next(kind for kind in KINDS if tags.count(kind) != kinds.count(kind))
        counts = f"{tags.count(kind)} <{kind}> tags and {kinds.count(kind)} {kind} files"
        found.append(("DATA-TAG-COUNT", f"got {counts}, expected as many"))


def _video_fps(record: dict, found: list) -> float | None:
    fps = record.get("video_fps")
    if fps is None:
        return None
    if isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps < MOST_FPS:
        return float(fps)
    found.append(("DATA-VIDEO-FPS", f"got video_fps {_shown(fps)}, expected a number above 0"))
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
