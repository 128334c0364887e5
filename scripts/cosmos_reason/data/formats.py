"""Records of other formats as LLaVA records: the one shape the rest of the library reads.

llava               {"video": ..., "conversations": [{"from", "value"}]}, also "videos" lists and
                    JSON text
openai              {"messages": [{"role", "content": [{"type": "text" | "video" | ...}]}]}
tao-vl-reason-v1.0  {"video_id" | "image_id": ..., "question", "answer", "reasoning"}
cosmos-reason-v1.0  {"id", "conversation": "text/x.json", "media": "media/x.mp4"}
reason1-qa          {"video": ..., "qa_pairs": [{"question", "index2ans": {"A": ...}, "answer"}]},
                    also "captions" or "QA": pairs, as objects or lists of two
alpaca, swift       {"instruction" | "query", "output" | "response", "videos", ...}

In any of them a video may be a list of pictures, or a folder of them, with their rate (RATES) in
the record, in its "metadata" or in the part of a message that shows the video.
"""

from __future__ import annotations

import json
from pathlib import Path

from cosmos_reason.base.files import check_regular, read_json
from cosmos_reason.base.findings import Failure
from cosmos_reason.data import nested_rows, options
from cosmos_reason.data.nested_rows import are_pairs
from cosmos_reason.data.roles import OF_CLIPS, OF_TEXTS
from cosmos_reason.media.files import IMAGE_SUFFIXES, names_medium, resolve
from cosmos_reason.spec.values import shown

TALKS = {"conversations", "messages"}
DAFT, COSMOS_REASON = "tao-vl-reason-v1.0", "cosmos-reason-v1.0"
PAIRS = ("captions", "qa", "QA", "qas")
PROMPTS = (("query", "response"), ("instruction", "output"))
MEDIA = {"video", "videos", "image", "images", "video_id", "image_id"}
# Keys of pictures a second, the surest first: of qwen-vl-utils, of cosmos-rl, and what else is met.
# `raw_fps` beside `sample_fps` is the rate of the clip that the pictures were taken from.
RATES = ("sample_fps", "extracted_fps", "raw_fps", "fps", "video_fps")
# What a record may hold beside its answers.
BESIDE = {"id", "video", "videos", "image", "images", "tags", "groups", "metadata", *RATES}


def form(record: dict) -> str:
    """Return the format a record looks like, as far as the names of its fields tell; "" for a row
    of some table."""
    if TALKS & record.keys() or _prompt(record):
        return "llava"
    if "qa_pairs" in record or any(are_pairs(record.get(key)) for key in PAIRS):
        return "reason1-qa"
    if "question" in record and isinstance(record.get("index2ans"), dict):
        return "reason1-qa"
    if {"conversation", "media"} <= record.keys():
        return COSMOS_REASON
    is_pair = {"question", "answer"} <= record.keys() or {"q", "a"} <= record.keys()
    return DAFT if is_pair else ""


def _prompt(record: dict) -> tuple[str, str] | None:
    """Return the keys of a record's one question and its answer, where trainers of texts named
    them."""
    return next((pair for pair in PROMPTS if record.keys() >= set(pair)), None)


def are_pictures(value: object) -> bool:
    """Return whether it is a list of names of pictures."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(name, str) and name.lower().endswith(IMAGE_SUFFIXES) for name in value)


def rates(record: dict) -> dict[str, object]:
    """Return what a record says of the rate of its pictures, the surest first."""
    beside = record.get("metadata")
    stated = {**beside, **record} if isinstance(beside, dict) else record
    return {key: stated[key] for key in RATES if key in stated}


def row_of_table(record: dict) -> str:
    """Return what tells that a record is a row of labels and no conversation: its fields, or the
    clips it names; empty for any other."""
    name = form(record)
    if name not in ("", DAFT):
        return ""
    if answers_by_number(record):
        return "a row whose answer is the number of an option"
    several = nested_rows.told(record)
    if several:
        return f"{several} ({shown(next(iter(record)), 60)}, ...)"
    unread = second_name(record) or unread_media(record)
    if unread:
        return f"a row that names its clip by {unread!r}"
    # A list of objects may be turns under another name, of which no build makes anything.
    are_objects = {
        key
        for key, value in record.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    unlabelled = BESIDE | are_objects
    fields = [key for key in record if key not in unlabelled and record[key] is not None]
    is_asked = not are_objects and any(key.lower() in OF_TEXTS for key in record)
    if name or not fields or not (MEDIA & record.keys() or is_asked):
        return ""
    return f"a row with {', '.join(fields[:4])}"


def second_name(record: dict) -> str:
    """Return another key of a clip's name beside `video_id`, which may be a number of the set's own
    (Video-MME); "" without one."""
    named = record.get("video_id")
    if named is None or names_medium(str(named)):
        return ""
    others = (key for key in record if key != "video_id" and key.lower() in OF_CLIPS)
    return next(others, "")


def answers_by_number(record: dict) -> bool:
    """Return whether its answer is a number beside options in a list or in columns: all rows
    together tell which option it is the number of."""
    answer = record.get("answer")
    if isinstance(answer, bool) or not options.NUMBER.fullmatch(str(answer)):
        return False
    listed = next((record[key] for key in options.OPTIONS if isinstance(record.get(key), list)), [])
    try:
        texts = options.of_value(listed) or options.in_columns(record, "")[0]
    except ValueError:  # told where the record is read
        return False
    return bool(texts) and not options.meant(texts, answer)


def unread_media(record: dict) -> str:
    """Return the key by which a record names a clip or a picture that nobody reads; "" where it has
    media, or none at all."""
    if MEDIA & record.keys() or "media" in record:
        return ""
    for key, value in record.items():
        if isinstance(value, str) and (names_medium(value) or key.lower() in OF_CLIPS):
            return key
    return ""


def as_llava(record: dict, folder: Path) -> tuple[str, list[dict]]:
    """Return (format, LLaVA records) of one record; `folder` holds the annotation file, for formats
    of several files.

    Whatever is not recognised is returned as it is, for the reader of LLaVA records to complain
    about. Raises ValueError when a part of the record cannot be read.
    """
    turns = record.get("conversations")
    if type(turns) is list and turns and type(turns[0]) is dict and "from" in turns[0]:
        return "llava", [record]
    name = form(record)
    if name == "reason1-qa":
        return name, _qa_records(record)
    if name == COSMOS_REASON and isinstance(record["conversation"], str):
        return name, [_conversation_record(record, folder)]
    if name == DAFT:
        return name, [_daft_record(record)]
    if not TALKS & record.keys() and _prompt(record):
        return "llava", [_prompt_record(record)]
    # Turns may stand in a record as JSON text, and have their content in parts.
    key = "conversations" if "conversations" in record else "messages"
    turns = record.get(key)
    if isinstance(turns, str):
        turns = json.loads(turns)
        record = {**record, key: turns}
    if isinstance(turns, list):
        for turn in turns:
            if isinstance(turn, dict) and type(turn.get("content")) is list:
                return "openai", [_parts_record(record, turns)]
    return "llava", [record]


def _prompt_record(record: dict) -> dict:
    """Return a record of a question and its answer, with what was said before them."""
    asked, answered = _prompt(record)
    question = record[asked]
    if isinstance(record.get("input"), str) and record["input"]:
        question = f"{question}\n{record['input']}"
    earlier = record.get("history") or []
    if not are_pairs(earlier) and earlier:
        raise ValueError(f"got the history {shown(earlier, 60)}, expected pairs of texts")
    turns = [turn for pair in earlier for turn in _qa_turns(pair)]
    if record.get("system"):
        turns.insert(0, {"from": "system", "value": record["system"]})
    return record | {"conversations": [*turns, *_two_turns(question, record[answered])]}


def _qa_records(record: dict) -> list[dict]:
    listed = (record[key] for key in PAIRS if are_pairs(record.get(key)))
    alone = next(listed, record)  # the record may be the one pair itself
    pairs = record.get("qa_pairs", alone)
    if isinstance(pairs, str):
        pairs = json.loads(pairs)
    if not isinstance(pairs, list):
        pairs = [pairs]
    stem = record.get("id")
    clip = record.get("video") or record.get("image")
    if not stem and isinstance(clip, str):
        stem = Path(clip).stem
    kept = ("video", "videos", "image", "images", "tags", "groups")
    media = rates(record) | {key: record[key] for key in kept if key in record}
    records = []
    for number, pair in enumerate(pairs, 1):
        of_pair = {}
        if stem:
            of_pair["id"] = stem if number == 1 else f"{stem}-{number}"
        # The reasoning stands in the pair, or in the record of the one pair.
        for holder in (record, pair) if len(pairs) == 1 else (pair,):
            if isinstance(holder, dict) and isinstance(holder.get("reasoning"), str):
                of_pair["reasoning"] = holder["reasoning"]
        records.append({**of_pair, **media, "conversations": _qa_turns(pair)})
    return records


def _qa_turns(pair: object) -> list[dict]:
    """Return the question of a pair with its options, and its answer. Raises ValueError."""
    if isinstance(pair, list) and len(pair) == 2:
        return _two_turns(*pair)
    question = pair.get("question", pair.get("q")) if isinstance(pair, dict) else None
    if not isinstance(question, str):
        expected = '{"question", "index2ans", "answer"}'
        raise ValueError(f"got a pair without a question, expected {expected}")
    if isinstance(pair.get("i"), str) and pair["i"]:  # an instruction before the question
        question = f"{pair['i']}\n{question}"
    answer = pair.get("correct_answer") or pair.get("answer", pair.get("a"))
    offered = options.of_record(pair)
    if not offered:
        offered, answer = options.in_columns(pair, str(answer).strip())
    return _two_turns(*options.written_into(question, offered, answer))


def _daft_record(record: dict) -> dict:
    media = {}
    for kind in ("video", "image"):
        named = record.get(f"{kind}_id")
        is_number = isinstance(named, int) and not isinstance(named, bool)
        if named or is_number:
            media[kind] = str(named) if is_number else named
    names = ("id", "video", "videos", "image", "images", "reasoning", "tags", "groups")
    kept = {key: record[key] for key in names if key in record}
    identity = {} if record.get("item_index") is None else {"id": record["item_index"]}
    return {
        **identity,
        **rates(record),
        **kept,
        **media,
        "conversations": _qa_turns(record),
    }


def _conversation_record(record: dict, folder: Path) -> dict:
    if record["conversation"].startswith("/"):
        raise ValueError(
            f"got the absolute name {record['conversation']}, expected one below the annotations"
        )
    path = resolve(folder, record["conversation"])
    try:
        check_regular(path)
        document = read_json(path)
    except Failure as failure:
        raise ValueError(failure.findings[0].message + f" in {record['conversation']}") from None
    turns = document.get("conversations") if isinstance(document, dict) else None
    if not isinstance(turns, list):
        raise ValueError(
            f"got no conversations in {record['conversation']}, expected a list of turns"
        )
    reasoning = None
    if turns and isinstance(turns[-1], dict):
        reasoning = turns[-1].get("reasoning_content")
    if isinstance(reasoning, list):
        reasoning = "".join(_part_text(part, {}) for part in reasoning)
    beside = {"id": record.get("id"), "reasoning": reasoning, **rates(record)}
    made = _parts_record(beside, turns)
    # The text names placeholders such as video_0; the file stands in `media`.
    for kind in ("videos", "images"):
        if made.pop(kind):
            made[kind] = [record["media"]]
    return made


def _parts_record(record: dict, turns: list) -> dict:
    """Return content parts as text with tags, and their media as lists."""
    media: dict[str, list] = {"video": [], "image": []}
    flat = []
    for turn in turns:
        content = turn.get("content") if isinstance(turn, dict) else None
        if isinstance(content, list):
            turn = {**turn, "content": "".join(_part_text(part, media) for part in content)}
        flat.append(turn)
    kept = {key: value for key, value in record.items() if key not in ("conversations", "messages")}
    return {**kept, "videos": media["video"], "images": media["image"], "conversations": flat}


def _part_text(part: object, media: dict[str, list]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    for name in media:
        if kind in (name, f"{name}_url", f"{name}_frames"):
            media[name].append(_medium_of_part(part, kind))
            return f"<{name}>\n"
    raise ValueError(
        f"got a content part of type {kind!r}, expected text, video, image, video_url or image_url"
    )


def _medium_of_part(part: dict, kind: str) -> object:
    """Return what a part of a message shows: a name, or an object with what names it and the rate
    of its pictures."""
    keys = (kind, "url", "path", "video", "frame_dir")
    source = next((part[key] for key in keys if key in part), None)
    source = source.get("url") if isinstance(source, dict) else source
    is_file = not isinstance(source, list) and names_medium(str(source))
    if is_file or "video" not in kind:
        return source
    return {"video": source, **rates(part)}


def _two_turns(question: object, answer: object) -> list[dict]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
