"""Annotation files: every record becomes one Sample, whatever was wrong with it becomes a
Problem."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import answers
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.columns import names_medium
from cosmos_reason.data.formats import are_pictures, as_llava, rates, row_of_table, unread_media
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.remote import s3
from cosmos_reason.spec.prompts import THOUGHT
from cosmos_reason.spec.values import shown


class Turn(NamedTuple):
    role: str  # system | user | assistant
    text: str  # without <video> / <image> tags


class Media(NamedTuple):
    """A file, or a video as `pictures` in order, of which `path` is the first. `fps` is the rate of
    the pictures in a list or a folder, None where the record does not say it."""

    kind: str  # video | image
    path: str  # as written in the record
    pictures: tuple[str, ...] = ()
    fps: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All files that the record names."""
        return self.pictures or (self.path,)

    @property
    def may_be_folder(self) -> bool:
        """Whether the name could be that of a folder of pictures: no file of a clip has it."""
        return self.kind == "video" and not names_medium(self.path)


class Sample(NamedTuple):
    """One record. `id` is the annotation's, or `record-<index>`; media stand before the first user
    turn's text; `tags` are groups that metrics are reported for; `reasoning` is what a format keeps
    beside its last answer."""

    index: int
    id: str
    turns: tuple[Turn, ...]
    media: tuple[Media, ...]
    video_fps: float | None
    tags: tuple[str, ...] = ()
    reasoning: str = ""


class Question(NamedTuple):
    """One assistant turn to predict: `context` ends with the user turn whose text is `text`; `gt`
    is the answer."""

    id: str
    sample: Sample
    context: tuple[Turn, ...]
    text: str
    gt: str


class Tally:
    """Problems of any number of records, per check: the first one in words, the others by record
    id. `fixes` holds what mends a check's problems in this very data, when that is known, and
    `errors` checks that are errors here."""

    def __init__(self):
        self.first: dict[str, tuple[int, str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.fixes: dict[str, Fix | str] = {}
        self.errors: set[str] = set()

    def add(self, check: str, index: int, record: str, message: str) -> None:
        self.first.setdefault(check, (index, message))
        self.ids.setdefault(check, []).append(record)

    def take(self, records: JsonRecords) -> None:
        """What the decoder of the records would have passed over in silence."""
        for check, message in records.oddities:
            self.add(check, records.index, f"record-{records.index}", message)
        records.oddities.clear()

    def findings(
        self, checks: dict[str, tuple[str, str, Fix | str]], path: str | Path, records: int = 0
    ) -> list[f.Finding]:
        """One finding per check with its record ids (the first MAX_RECORD_IDS), and how many
        `records` it is about, when their number is known; `checks` is shaped as CHECKS."""
        found = []
        for check, (index, message) in self.first.items():
            severity, _, fix = checks[check]
            severity = f.ERROR if check in self.errors else severity
            ids = list(dict.fromkeys(self.ids[check]))
            more = f" ({len(ids)} of {max(records, len(ids))} records)" if len(ids) > 1 else ""
            data = {"record_ids": ids[: f.MAX_RECORD_IDS], "count": len(ids)}
            fix = self.fixes.get(check, fix)
            found.append(f.Finding(check, severity, f"{path}#{index}", message + more, fix, data))
        return found


ONE_EACH = "write one record per question, or keep our dataset script, which trains all turns"
# id -> (severity, what is checked, how to mend it)
CHECKS = {
    "DATA-JSON-KEY-TWICE": (
        f.ERROR,
        "an object has each key once (readers keep the last)",
        "remove one of the two",
    ),
    "DATA-JSON-CONSTANT": (
        f.WARNING,
        "numbers are numbers, not NaN or Infinity",
        "write a number or null",
    ),
    "DATA-RECORD-TYPE": (f.ERROR, "a record is a JSON object", "write each record as an object"),
    "DATA-NOT-BUILT": (
        f.ERROR,
        "a record is a conversation, not a row of labels or captions",
        "scripts/build_dataset.py SOURCE -o DIR",
    ),
    "DATA-RECORD-FORMAT": (
        f.ERROR,
        "a record follows the format it looks like",
        "correct the record",
    ),
    "DATA-MEDIA-ESCAPE": (
        f.ERROR,
        "files are named below the dataset",
        "write names below the media path",
    ),
    "DATA-ID-TYPE": (f.ERROR, "an id is text or an integer", 'write "id" as text'),
    "DATA-ID-MISSING": (
        f.INFO,
        "a record has an id (evaluation needs it)",
        'give each record a unique "id"',
    ),
    "DATA-TURNS-MISSING": (
        f.ERROR,
        "a record has conversation turns",
        'add "conversations": a human and a gpt turn',
    ),
    "DATA-TURN-TYPE": (
        f.ERROR,
        "a turn has a role and text",
        'write turns as {"from": "human", "value": "..."}',
    ),
    "DATA-TURN-ROLE": (f.ERROR, "roles are known", 'use "human", "gpt" or "system" as "from"'),
    "DATA-TURN-ORDER": (
        f.ERROR,
        "turns alternate, starting with the user",
        "start with human, then gpt, ...",
    ),
    "DATA-ANSWER-MISSING": (
        f.ERROR,
        "the last turn is the assistant's",
        "end the record with a gpt turn",
    ),
    "DATA-ANSWER-EMPTY": (f.ERROR, "answers have text", "write the answer or remove the record"),
    "DATA-QUESTION-EMPTY": (f.WARNING, "questions have text", "write what the model is asked"),
    "DATA-TURNS-MANY": (
        f.INFO,
        "one question per record (NVIDIA's own dataset script keeps two turns)",
        ONE_EACH,
    ),
    "DATA-TEXT-SURROGATE": (
        f.ERROR,
        "texts are whole characters",
        "write the text again, as UTF-8",
    ),
    "DATA-SPECIAL-TOKEN": (
        f.ERROR,
        "texts contain no vision or chat control tokens",
        "remove the <|...|> tokens",
    ),
    "DATA-TAG-ANSWER": (
        f.WARNING,
        "no <video>/<image> in answers (they are trained as words)",
        "remove the tags",
    ),
    "DATA-TAG-COUNT": (
        f.ERROR,
        "<video>/<image> tags agree with the media",
        "write one tag per medium, or none",
    ),
    "DATA-MEDIA-TYPE": (
        f.ERROR,
        "media are named by text",
        'write "video" or "image" as a path or a list of paths',
    ),
    "DATA-MEDIA-NONE": (f.INFO, "a record names a medium", 'add "video" or "image"'),
    "DATA-VIDEO-FPS": (
        f.ERROR,
        "video_fps and the rate of pictures are positive numbers",
        "write it as a number above 0",
    ),
}

# What is no fault of a record's form: a dataset is checked for it, an evaluation counts such
# answers as wrong.
ANSWER_CHECKS = {
    "DATA-ANSWER-OPTION": (
        f.ERROR,
        "letters that answer are letters of an option",
        "correct the answer or the options",
    ),
    "DATA-ANSWER-UNLISTED": (
        f.WARNING,
        "short answers are one of the options",
        "write the letter of the option",
    ),
}

ROOT_FILES = ("annotations.json", "annotations.jsonl", "meta.json")
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
MEDIA_KEYS = (("video", "video"), ("videos", "video"), ("image", "image"), ("images", "image"))
KINDS = ("video", "image")
MOST_FPS = 1e6
LONGEST_PATH = 4096
LOCAL = "file://"
URLS = ("http://", "https://", "data:")
USUAL_TAGS = ("<video>\n", "<image>\n")
TAG_KIND = re.compile(r"<(image|video)>")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
TAG = re.compile(r"\n?</?(image|video)>\n?")
# Those of the Qwen tokenizers, but for the marks of boxes and objects, which grounding answers are
# written with.
CONTROL_TOKEN = re.compile(
    r"<\|(?:im_start|im_end|endoftext|vision_(?:start|end|pad)|(?:video|image)_pad|fim_\w+|repo_name|file_sep)\|>"
)
LETTER_ANSWER = re.compile(r"\W*([A-Za-z])(?:\W*|[).:]\s.*)", re.S)
SEVERAL_LETTERS = re.compile(r"(?:[A-Z]\b|[A-Z]{2,}|\W|and\b)+")
SHORT_ANSWER = 60  # characters


def locate(path: str | Path) -> Path:
    """The annotation file of a dataset folder; any other path as it is."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    names = [folder / name for name in ROOT_FILES]
    names += sorted(folder.glob("*_qa_pairs.json"))
    return next((name for name in names if name.is_file()), names[0])


def fetch(uri: str) -> tuple[str, Path]:
    """(s3:// name, local copy) of an annotation file, or of the one in a dataset root; Failure when
    there is none."""
    if not uri.endswith((".json", ".jsonl")):
        connection = s3.client()
        names = [name for name in ROOT_FILES if s3.head(s3.join(uri, name), connection)]
        if not names:
            message = (
                f"got no {', '.join(ROOT_FILES)} below it, "
                "expected a dataset root or an annotation file"
            )
            raise f.bad_input("FILE-MISSING", uri, message)
        uri = s3.join(uri, names[0])
    folder, _, name = uri.rpartition("/")
    if name == "meta.json":  # its conversations are files of their own
        return uri, s3.snapshot(folder, [name, "text/*.json"]) / name
    return uri, s3.local(uri)


def read(path: str | Path) -> tuple[list[Sample], list[f.Finding]]:
    """All samples of an annotation file and what is wrong with its records. Raises Failure when it
    cannot be read."""
    tally = Tally()
    return list(stream(JsonRecords(path), tally)), tally.findings(CHECKS, path)


def stream(
    records: JsonRecords, tally: Tally, formats: Counter | None = None, make=None
) -> Iterator[Sample]:
    """The samples of an annotation file one at a time, or what `make` (as `parse`) makes of its
    records. Problems go to `tally`, the formats met to `formats`."""
    if formats is None:
        formats = Counter()
    make = make or parse
    folder = records.path.parent
    for record in _unpacked(_unbroken(records, tally)):
        index = records.index
        if records.oddities:
            tally.take(records)
        if not isinstance(record, dict):
            message = f"got {shown(record, 60)}, expected an object"
            tally.add("DATA-RECORD-TYPE", index, f"record-{index}", message)
            continue
        row = "" if make is id_and_media else row_of_table(record)
        if row:
            message = f"got {row}, expected a conversation: questions and answers are built of it"
            tally.add("DATA-NOT-BUILT", index, f"record-{index}", message)
            command = shlex.join(["scripts/build_dataset.py", str(records.path), "-o", "data"])
            tally.fixes["DATA-NOT-BUILT"] = Fix(command=command)
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
        for llava_record in plain:
            sample = make(index, llava_record, tally)
            if sample:
                yield sample
    tally.take(records)


def _unpacked(records: Iterator[object]) -> Iterator[object]:
    """The records, also those of lists, into which Qwen's tools pack several."""
    for record in records:
        is_list = isinstance(record, list) and len(record) > 0
        is_pack = is_list and all(isinstance(one, dict) for one in record)
        yield from record if is_pack else [record]


def _unbroken(records: JsonRecords, tally: Tally) -> Iterator[object]:
    """The records; when the file breaks off, the Failure tells what was found before, too."""
    try:
        yield from records
    except f.Failure as failure:
        failure.findings = [*failure.findings, *tally.findings(CHECKS, records.path)]
        raise


def questions(sample: Sample) -> list[Question]:
    """One question per assistant turn; its id is the sample's, `<id>#2` for the second and so
    on."""
    found = []
    for position, turn in enumerate(sample.turns):
        if turn.role != "assistant" or position == 0:
            continue
        name = sample.id
        if found:
            name = f"{sample.id}#{len(found) + 1}"
        context = sample.turns[:position]
        found.append(Question(name, sample, context, context[-1].text, turn.text))
    return found


def responses(samples: list[Sample], mode: str) -> list[Sample]:
    """The samples with the texts to train on. A `response_mode` says what becomes of reasoning
    beside the answers: "answer" leaves it out, "think" writes it before them, "hybrid" gives both
    forms of all samples, first without."""
    if mode == "answer" or not any(sample.reasoning for sample in samples):
        return samples
    thinking = [_thinking(sample) if sample.reasoning else sample for sample in samples]
    if mode == "hybrid":
        return [*samples, *thinking]
    return thinking


def trained_records(records: int, reasoned: int, mode: str) -> int:
    """How many samples `responses` makes of so many records, `reasoned` of them with reasoning
    beside the answer."""
    return 2 * records if mode == "hybrid" and reasoned else records


def _thinking(sample: Sample) -> Sample:
    *others, answer = sample.turns
    answer = answer._replace(text=THOUGHT.format(sample.reasoning, answer.text))
    return sample._replace(turns=(*others, answer))


def parse(index: int, record: dict, tally: Tally) -> Sample | None:
    """One LLaVA record as a Sample; None when it has no usable turns."""
    found: list[tuple[str, str]] = []
    name = _id(record, found) or f"record-{index}"
    turns, tags = _turns(record, found)
    media = _media(record, found)
    if turns:
        _check_order(turns, found)
        _check_tags(tags, media, found)
    stated = record.get("tags")
    groups = ()
    if isinstance(stated, list):
        groups = tuple(tag for tag in stated if isinstance(tag, str))
    reasoning = record.get("reasoning")
    if isinstance(reasoning, str):
        reasoning = LONE_SURROGATE.sub("�", reasoning)
        _check_control(reasoning, found)
    else:
        reasoning = ""
    fps = next((medium.fps for medium in media if medium.fps), None) or _video_fps(record, found)
    sample = Sample(index, name, turns, media, fps, groups, reasoning)
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
    if name in (None, ""):
        message = "got no id, expected one (evaluation uses it as a file name)"
        found.append(("DATA-ID-MISSING", message))
    else:
        found.append(("DATA-ID-TYPE", f"got id {shown(name, 60)}, expected text"))
    return None


def _turns(record: dict, found: list) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns without tags, and the kinds of the tags in the user's texts."""
    conversation = record.get("conversations", record.get("messages"))
    if not isinstance(conversation, list) or not conversation:
        found.append(
            (
                "DATA-TURNS-MISSING",
                f'got {shown(conversation, 60)} as "conversations", expected a list of turns',
            )
        )
        return (), []
    turns, tags = [], []
    for turn in conversation:
        role, text = _role_and_text(turn, found)
        if role is None:
            return (), []
        if "<" in text:
            text = _plain(role, text, tags, found)
        turns.append(Turn(role, text))
    return tuple(turns), tags


def _plain(role: str, text: str, tags: list[str], found: list) -> str:
    """A text that has a "<": the user's without its tags, whose kinds join `tags`; any other as it
    is."""
    if role == "user" and text.startswith(USUAL_TAGS) and text.count("<") == 1:
        tags.append(text[1:6])
        return text[len(USUAL_TAGS[0]) :]
    _check_control(text, found)
    kinds = TAG_KIND.findall(text)
    if role != "user":
        if kinds:
            found.append(
                ("DATA-TAG-ANSWER", f"got <{kinds[0]}> in a text of the {role}, expected words")
            )
        return text
    tags += kinds
    return TAG.sub("", text)


def _check_control(text: str, found: list) -> None:
    if "<|" not in text:
        return
    control = CONTROL_TOKEN.search(text)
    if control:
        message = f"got {control.group()} in a text, expected plain words"
        found.append(("DATA-SPECIAL-TOKEN", message))


def unoffered(question: str, answer: str) -> tuple[str, str] | None:
    """(id, message) of the finding about an answer that is none of the options its question
    offers."""
    if len(answer) > SHORT_ANSWER and "<think>" not in answer:
        return None
    if len(answer) == 1 and any(answer + mark in question for mark in ".):"):
        return None
    options = answers.options(question)
    if not options:
        return None
    final = answers.final_answer(answer)
    if not final or len(final) > SHORT_ANSWER or answers.normalise(answer, "mcq", question):
        return None
    message = f"got the answer {final!r}, which is none of the options {', '.join(options)}"
    if LETTER_ANSWER.fullmatch(final):
        return "DATA-ANSWER-OPTION", message
    if _is_open_answer(question, answer, final):
        return None
    return "DATA-ANSWER-UNLISTED", message


def _is_open_answer(question: str, answer: str, final: str) -> bool:
    """Whether an answer need not be one of the options: several letters, a number, yes or no."""
    if SEVERAL_LETTERS.fullmatch(final):
        return True
    return answers.question_type(question, answer) != "text"


def _role_and_text(turn: object, found: list) -> tuple[str | None, str]:
    speaker = None
    text = None
    if isinstance(turn, dict) and "from" in turn:
        speaker = turn["from"]
        text = turn.get("value")
    elif isinstance(turn, dict):
        speaker = turn.get("role")
        text = turn.get("content")
    if not isinstance(speaker, str) or not isinstance(text, str):
        message = f"got {shown(turn, 60)}, expected an object with a role and a text"
        found.append(("DATA-TURN-TYPE", message))
        return None, ""
    role = ROLES.get(speaker)
    if role is None:
        found.append(("DATA-TURN-ROLE", f"got role {speaker!r}.{f.did_you_mean(speaker, ROLES)}"))
    if not text.isascii() and LONE_SURROGATE.search(text):
        message = "got half of a surrogate pair in a text, expected whole characters"
        found.append(("DATA-TEXT-SURROGATE", message))
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
        listed = ", ".join(roles) or "none"
        found.append(("DATA-TURN-ORDER", f"got turns {listed}, expected user, assistant, ..."))
    elif roles[-1] != "assistant":
        found.append(("DATA-ANSWER-MISSING", "got a user turn at the end, expected an answer"))
    if len(roles) > 2:
        kept = "all are trained; with --entry-script image only the first 2"
        found.append(("DATA-TURNS-MANY", f"got {len(roles)} turns ({kept})"))


def _media(record: dict, found: list) -> tuple[Media, ...]:
    media = []
    for key, kind in MEDIA_KEYS:
        written = record.get(key)
        if written is None:
            continue
        is_one = not isinstance(written, list) or (kind == "video" and are_pictures(written))
        for one in [written] if is_one else written:
            medium = _medium(kind, one, record, found)
            if medium:
                media.append(medium)
            else:
                message = f'got {shown(one, 60)} in "{key}", expected the path of a file'
                found.append(("DATA-MEDIA-TYPE", message))
    if not media and unread_media(record):
        message = f'got {unread_media(record)!r}, expected "video" or "image"'
        found.append(("DATA-MEDIA-TYPE", message))
    return tuple(media)


def _medium(kind: str, written: object, record: dict, found: list) -> Media | None:
    """What stands for a medium: its path or, for a video, a list of pictures, or an object that
    names one of them with their rate. None for anything else."""
    if kind == "video" and isinstance(written, dict):
        record = written
        written = record.get("video")
    if _is_path(written):
        medium = Media(kind, written.removeprefix(LOCAL))
        return medium._replace(fps=_rate(record, found)) if medium.may_be_folder else medium
    if kind == "video" and are_pictures(written) and all(map(_is_path, written)):
        names = tuple(name.removeprefix(LOCAL) for name in written)
        return Media(kind, names[0], names, _rate(record, found))
    return None


def _rate(record: dict, found: list) -> float | None:
    """How many pictures a second a record says; none is worth a warning where there are some."""
    for key, value in rates(record).items():
        if value is not None:
            return _frames_a_second(key, value, found)
    return None


def _is_path(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) < LONGEST_PATH or name.startswith(URLS):
        return False
    return name.isascii() or not LONE_SURROGATE.search(name)


def _check_tags(tags: list[str], media: tuple[Media, ...], found: list) -> None:
    kinds = [medium.kind for medium in media]
    if not kinds:
        found.append(
            ("DATA-MEDIA-NONE", "got a record without media, expected a video or an image")
        )
    if set(kinds) == {"video"} and tags == ["image"] * len(kinds):  # so LLaVA-Video marks its clips
        return
    if tags and tags != kinds and sorted(tags) != sorted(kinds):
        kind = next(kind for kind in KINDS if tags.count(kind) != kinds.count(kind))
        counts = f"{tags.count(kind)} <{kind}> tags and {kinds.count(kind)} {kind} files"
        found.append(("DATA-TAG-COUNT", f"got {counts}, expected as many"))


def _video_fps(record: dict, found: list) -> float | None:
    fps = record.get("video_fps")
    return None if fps is None else _frames_a_second("video_fps", fps, found)


def _frames_a_second(key: str, fps: object, found: list) -> float | None:
    if isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps < MOST_FPS:
        return float(fps)
    found.append(("DATA-VIDEO-FPS", f"got {key} {shown(fps, 60)}, expected a number above 0"))
    return None
