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
from cosmos_reason.storage import read_json

CHOOSE = "Answer with the option's letter from the given choices directly."


def as_llava(record: dict, folder: Path) -> tuple[str, list[dict]]:
    """(format, LLaVA records) of one record; `folder` holds the annotation file, for formats of several files.

    Whatever is not recognised is returned as it is, for the reader of LLaVA records to complain about.
    Raises ValueError when a part of the record cannot be read.
    """
    turns = record.get("conversations")
    if type(turns) is list and turns and type(turns[0]) is dict and "from" in turns[0]:
        return "llava", [record]
    if "qa_pairs" in record:
        return "reason1-qa", _qa_records(record)
    if isinstance(record.get("conversation"), str) and "media" in record:
        return "cosmos-reason-v1.0", [_conversation_record(record, folder)]
    if "question" in record and "answer" in record:
        return "tao-vl-reason-v1.0", [_daft_record(record)]
    key = "conversations" if "conversations" in record else "messages"
    turns = record.get(key)
    if isinstance(turns, str):
        turns = json.loads(turns)
        record = {**record, key: turns}
    if isinstance(turns, list) and any(isinstance(turn, dict) and type(turn.get("content")) is list for turn in turns):
        return "openai", [_parts_record(record, turns)]
    return "llava", [record]


def _qa_records(record: dict) -> list[dict]:
    pairs = record["qa_pairs"]
    name = record.get("video") or record.get("image")
    stem = record.get("id") or (Path(name).stem if isinstance(name, str) else None)
    made = []
    for number, pair in enumerate(pairs if isinstance(pairs, list) else [pairs], 1):
        if not isinstance(pair, dict) or not isinstance(pair.get("question"), str):
            raise ValueError('got a pair without a question, expected {"question", "index2ans", "answer"}')
        choices = pair.get("index2ans") or {}
        if not isinstance(choices, dict):
            raise ValueError('got no table in "index2ans", expected {"A": "..."}')
        lines = [pair["question"], *(f"({letter}) {text}" for letter, text in choices.items())]
        asked = "\n".join([*lines, CHOOSE] if choices else lines)
        answer = pair.get("correct_answer", pair.get("answer"))
        identity = {"id": stem if number == 1 else f"{stem}-{number}"} if stem else {}
        media = {key: record[key] for key in ("video", "image") if key in record}
        made.append({**identity, **media, "conversations": _two_turns(asked, answer)})
    return made


def _daft_record(record: dict) -> dict:
    media = {kind: record[f"{kind}_id"] for kind in ("video", "image") if record.get(f"{kind}_id")}
    kept = {key: record[key] for key in ("id", "video_fps", "video", "image") if key in record}
    identity = {} if record.get("item_index") is None else {"id": record["item_index"]}
    return {**identity, **kept, **media, "conversations": _two_turns(record["question"], record["answer"])}


def _conversation_record(record: dict, folder: Path) -> dict:
    try:
        document = read_json(folder / record["conversation"])
    except Failure as failure:
        raise ValueError(failure.findings[0].message + f" in {record['conversation']}") from None
    turns = document.get("conversations") if isinstance(document, dict) else None
    if not isinstance(turns, list):
        raise ValueError(f"got no conversations in {record['conversation']}, expected a list of turns")
    made = _parts_record({"id": record.get("id")}, turns)
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
