"""Records of other formats as LLaVA records: the one shape the rest of the library reads.

llava               {"video": ..., "conversations": [{"from", "value"}]}, also "videos" lists and JSON text
openai              {"messages": [{"role", "content": [{"type": "text" | "video" | "image_url" ...}]}]}
tao-vl-reason-v1.0  {"video_id" | "image_id": ..., "question", "answer", "reasoning"}
cosmos-reason-v1.0  {"id", "conversation": "text/x.json", "media": "media/x.mp4"}
reason1-qa          {"video": ..., "qa_pairs": [{"question", "index2ans": {"A": ...}, "answer": "A"}]}
"""

from __future__ import annotations

import json
from pathlib import Path

from cosmos_reason.findings import Failure
from cosmos_reason.json_stream import check_regular
from cosmos_reason.media import resolve
from cosmos_reason.storage import read_json

TALKS = {"conversations", "messages"}
THINK = "\n\nThink first, between <think> and </think>. Put the final answer right after </think>."
CHOOSE = "Answer with the option's letter from the given choices directly."


def form(record: dict) -> str:
    """The format a record looks like, as far as the names of its fields tell; "" for a row of some table."""
    if TALKS & record.keys():
        return "llava"
    if "qa_pairs" in record or ("question" in record and isinstance(record.get("index2ans"), dict)):
        return "reason1-qa"
    if {"conversation", "media"} <= record.keys():
        return "cosmos-reason-v1.0"
    return "tao-vl-reason-v1.0" if {"question", "answer"} <= record.keys() else ""


def as_llava(record: dict, folder: Path) -> tuple[str, list[dict]]:
    """(format, LLaVA records) of one record; `folder` holds the annotation file, for formats of several files.

    Whatever is not recognised is returned as it is, for the reader of LLaVA records to complain about.
    Raises ValueError when a part of the record cannot be read.
    """
    turns = record.get("conversations")
    if type(turns) is list and turns and type(turns[0]) is dict and "from" in turns[0]:
        return "llava", [record]
    match form(record):
        case "reason1-qa" as name:
            return name, _qa_records(record)
        case "cosmos-reason-v1.0" as name if isinstance(record["conversation"], str):
            return name, [_conversation_record(record, folder)]
        case "tao-vl-reason-v1.0" as name:
            return name, [_daft_record(record)]
    key = "conversations" if "conversations" in record else "messages"
    turns = record.get(key)
    if isinstance(turns, str):
        turns = json.loads(turns)
        record = {**record, key: turns}
    if isinstance(turns, list) and any(isinstance(turn, dict) and type(turn.get("content")) is list for turn in turns):
        return "openai", [_parts_record(record, turns)]
    return "llava", [record]


def _qa_records(record: dict) -> list[dict]:
    pairs = record.get("qa_pairs", record)  # the record may be the one pair itself
    pairs = json.loads(pairs) if isinstance(pairs, str) else pairs
    name = record.get("video") or record.get("image")
    stem = record.get("id") or (Path(name).stem if isinstance(name, str) else None)
    made = []
    for number, pair in enumerate(pairs if isinstance(pairs, list) else [pairs], 1):
        if not isinstance(pair, dict) or not isinstance(pair.get("question"), str):
            raise ValueError('got a pair without a question, expected {"question", "index2ans", "answer"}')
        choices = pair.get("index2ans") or {}
        if not isinstance(choices, dict):
            raise ValueError('got no table in "index2ans", expected {"A": "..."}')
        options = {letter: text for letter, text in choices.items() if text is not None}  # None: of a table
        asked, answer = with_options(pair["question"], options, pair.get("correct_answer") or pair.get("answer"))
        identity = {"id": stem if number == 1 else f"{stem}-{number}"} if stem else {}
        media = {key: record[key] for key in ("video", "image") if key in record}
        made.append({**identity, **media, "conversations": _two_turns(asked, answer)})
    return made


def with_options(question: str, options: dict, answer: object) -> tuple[str, object]:
    """(the question with its options, the letter of the answer, which may be given as the text of an option).

    Raises ValueError for an answer that is neither; a number may count from 0 or from 1, and is no letter."""
    if not options:
        return question, answer
    bare = str(answer).strip("(). \n")
    letters = [letter for letter, text in options.items() if bare in (letter, str(text).strip("(). \n"))]
    if len(letters) != 1 and bare not in options:
        raise ValueError(f"got the answer {answer!r}, expected one of {', '.join(options)} or the text of one option")
    lines = (f"({letter}) {text}" for letter, text in options.items())
    return "\n".join([question, *lines, CHOOSE]), bare if bare in options else letters[0]


def _daft_record(record: dict) -> dict:
    media = {kind: record[f"{kind}_id"] for kind in ("video", "image") if record.get(f"{kind}_id")}
    kept = {key: record[key] for key in ("id", "video_fps", "video", "image", "reasoning") if key in record}
    identity = {} if record.get("item_index") is None else {"id": record["item_index"]}
    return {**identity, **kept, **media, "conversations": _two_turns(record["question"], record["answer"])}


def _conversation_record(record: dict, folder: Path) -> dict:
    if record["conversation"].startswith("/"):
        raise ValueError(f"got the absolute name {record['conversation']}, expected one below the annotations")
    path = resolve(folder, record["conversation"])
    try:
        check_regular(path)
        document = read_json(path)
    except Failure as failure:
        raise ValueError(failure.findings[0].message + f" in {record['conversation']}") from None
    turns = document.get("conversations") if isinstance(document, dict) else None
    if not isinstance(turns, list):
        raise ValueError(f"got no conversations in {record['conversation']}, expected a list of turns")
    thought = turns[-1].get("reasoning_content") if turns and isinstance(turns[-1], dict) else None
    reasoning = "".join(_part_text(part, {}) for part in thought) if isinstance(thought, list) else thought
    made = _parts_record({"id": record.get("id"), "reasoning": reasoning}, turns)
    for kind in ("videos", "images"):  # the text names placeholders such as video_0; the file stands in `media`
        if made.pop(kind):
            made[kind] = [record["media"]]
    return made


def _parts_record(record: dict, turns: list) -> dict:
    """Content parts as text with tags, and their media as lists."""
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
        if kind in (name, f"{name}_url"):
            source = part.get(kind, part.get("url", part.get("path")))
            source = source.get("url") if isinstance(source, dict) else source
            media[name].append(source.removeprefix("file://") if isinstance(source, str) else source)
            return f"<{name}>\n"
    raise ValueError(f"got a content part of type {kind!r}, expected text, video, image, video_url or image_url")


def _two_turns(question: object, answer: object) -> list[dict]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
