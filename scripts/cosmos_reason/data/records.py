"""One LLaVA record as a Sample, and what is wrong with it."""

from __future__ import annotations

import functools
import re

from cosmos_reason.base import findings as f
from cosmos_reason.data.column_words import TIME, meaning, time_roles
from cosmos_reason.data.formats import are_pictures, rates, unread_media
from cosmos_reason.data.record_checks import Tally, damaged
from cosmos_reason.data.samples import Media, Sample
from cosmos_reason.data.turns import TAG, Turn, bare_thought
from cosmos_reason.spec.values import shown

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
READ_ONCE = 1 << 14  # texts and names of files that are kept as they were read
LOCAL = "file://"
FIRST_TAGS = ("<video>\n", "<image>\n")
URLS = ("http://", "https://", "data:")
TAG_KIND = re.compile(r"<(image|video)>")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Where other projects' loaders put the features of a region that stands beside the text.
REGION_MARK = re.compile(r"<(?:mask|region)[ _]?\d*>")
# Those of the Qwen tokenizers, but for the marks of boxes and objects, which grounding answers are
# written with; and those of other models, whose prompts some files hold.
CONTROL_TOKEN = re.compile(
    r"<\|(?:im_start|im_end|endoftext|vision_(?:start|end|pad)|(?:video|image)_pad"
    r"|fim_\w+|repo_name|file_sep|video|image)\|>"
)


def parse(index: int, record: dict, tally: Tally) -> Sample | None:
    """Return one LLaVA record as a Sample; None when it has no usable turns."""
    found: list[tuple[str, str]] = []
    name = _id(record, found) or f"record-{index}"
    turns, marks = _turns(record, found)
    media = _media(record, found)
    if turns:
        _check_order(turns, found)
        _check_tags(marks, media, found)
    reasoning = record.get("reasoning")
    if isinstance(reasoning, str):
        if harmed := damaged(reasoning):
            found.append(harmed)
        reasoning = bare_thought(LONE_SURROGATE.sub("�", reasoning))
        _check_control(reasoning, found)
    else:
        reasoning = ""
    times = [key for key in times_among(tuple(record)) if record[key] is not None]
    if times and media and time_roles({key: [record[key]] for key in times}, times):
        message = f"got {' and '.join(times)} of a clip, all of which is shown to a model"
        found.append(("DATA-TIMES-UNUSED", message))
    fps = next((medium.fps for medium in media if medium.fps), None)
    if fps is None and record.get("video_fps") is not None:
        fps = _frames_a_second("video_fps", record["video_fps"], found)
    sample = Sample(
        index, name, turns, media, fps, _texts(record, "tags"), reasoning, _texts(record, "groups")
    )
    for check, message in found:
        tally.add(check, index, name, message)
    return sample if turns else None


def _texts(record: dict, key: str) -> tuple[str, ...]:
    """Return the texts of a list."""
    stated = record.get(key)
    return tuple(one for one in stated if isinstance(one, str)) if isinstance(stated, list) else ()


@functools.lru_cache(maxsize=1024)
def times_among(keys: tuple[str, ...]) -> list[str]:
    """Return the keys that are called like times. Kept, as records of one file have the same."""
    return [key for key in keys if meaning(key) == TIME]


def id_and_media(index: int, record: dict, _: Tally) -> tuple[str, tuple[Media, ...]]:
    """Return only the id and the media of one LLaVA record, which takes a fifth of the time."""
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
    """Return the turns without tags, and the kinds of the tags in the user's texts."""
    conversation = record.get("conversations", record.get("messages"))
    if not isinstance(conversation, list) or not conversation:
        message = f'got {shown(conversation, 60)} as "conversations", expected a list of turns'
        found.append(("DATA-TURNS-MISSING", message))
        return (), []
    turns, tags = [], []
    for turn in conversation:
        speaker = text = None
        if isinstance(turn, dict) and "from" in turn:
            speaker, text = turn["from"], turn.get("value")
        elif isinstance(turn, dict):
            speaker, text = turn.get("role"), turn.get("content")
        if not isinstance(speaker, str) or not isinstance(text, str):
            message = f"got {shown(turn, 60)}, expected an object with a role and a text"
            found.append(("DATA-TURN-TYPE", message))
            return (), []
        role = ROLES.get(speaker)
        if role is None:
            message = f"got role {speaker!r}.{f.did_you_mean(speaker, ROLES)}"
            found.append(("DATA-TURN-ROLE", message))
            return (), []
        plain, kinds, problems = _read_text(role, text)
        turns.append(Turn(role, plain))
        tags += kinds
        found += problems
    return tuple(turns), tags


@functools.lru_cache(maxsize=READ_ONCE)
def _read_text(role: str, text: str) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Return (the text of a turn without tags, if it is the user's, the kinds of these, what is
    wrong with it). Kept, as a dataset says the same again and again."""
    kinds: list[str] = []
    found: list[tuple[str, str]] = []
    if not text.isascii() and LONE_SURROGATE.search(text):
        message = "got half of a surrogate pair in a text, expected whole characters"
        found.append(("DATA-TEXT-SURROGATE", message))
        text = LONE_SURROGATE.sub("�", text)
    elif harmed := damaged(text):
        found.append(harmed)
    if "<" not in text:
        return text, kinds, found
    if role == "user" and text.startswith(FIRST_TAGS) and text.count("<") == 1:
        return text[len(FIRST_TAGS[0]) :], [text[1:6]], found  # as most files are written
    _check_control(text, found)
    kinds = TAG_KIND.findall(text)
    if role != "user":
        if kinds:
            message = f"got <{kinds[0]}> in a text of the {role}, expected words"
            found.append(("DATA-TAG-ANSWER", message))
        return text, [], found
    if mark := REGION_MARK.search(text):
        message = f"got {mark.group()}, which stands for a region that the model is not shown"
        found.append(("DATA-REGION-MARK", message))
    return TAG.sub("", text), kinds, found


def _check_control(text: str, found: list) -> None:
    control = CONTROL_TOKEN.search(text) if "<|" in text else None
    if control:
        message = f"got {control.group()} in a text, expected plain words"
        found.append(("DATA-SPECIAL-TOKEN", message))


def _check_order(turns: tuple[Turn, ...], found: list) -> None:
    spoken = turns[1:] if turns[0].role == "system" else turns
    roles = [turn.role for turn in spoken]
    for role, text in spoken:
        if not text or text.isspace():
            check = "DATA-ANSWER-EMPTY" if role == "assistant" else "DATA-QUESTION-EMPTY"
            found.append((check, f"got an empty {role} turn, expected text"))
    if roles == ["user", "assistant"]:
        return
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
    """Return what stands for a medium: its path or, for a video, a list of pictures, or an object
    that names one of them with their rate. None for anything else."""
    if kind == "video" and isinstance(written, dict):
        record = written
        written = record.get("video")
    if isinstance(written, str):
        medium, may_be_folder = medium_of_file(kind, written)
        return medium._replace(fps=_rate(record, found)) if may_be_folder else medium
    if kind == "video" and are_pictures(written) and all(map(_is_path, written)):
        names = tuple(name.removeprefix(LOCAL) for name in written)
        return Media(kind, names[0], names, _rate(record, found))
    return None


@functools.lru_cache(maxsize=READ_ONCE)
def medium_of_file(kind: str, written: str) -> tuple[Media | None, bool]:
    """Return (the medium of a name, None where it cannot be one; whether it may be a folder). Kept,
    as records share clips."""
    medium = Media(kind, written.removeprefix(LOCAL)) if _is_path(written) else None
    return medium, medium is not None and medium.may_be_folder


def _rate(record: dict, found: list) -> float | None:
    """Return how many pictures a second a record says; none is worth a warning where there are
    some."""
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


def _frames_a_second(key: str, fps: object, found: list) -> float | None:
    if isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps < MOST_FPS:
        return float(fps)
    found.append(("DATA-VIDEO-FPS", f"got {key} {shown(fps, 60)}, expected a number above 0"))
    return None
