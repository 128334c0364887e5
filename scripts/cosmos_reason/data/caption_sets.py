"""Caption files as published sets have them, as rows of a video and what is said of it."""

from __future__ import annotations

WHOLE = "-1"  # the caption of ShareGPT4Video that is about the whole clip
TIMED = "Describe each event in the video, with its start and end in seconds."


def rows(records: list) -> list:
    """The records of MSR-VTT, ActivityNet Captions and ShareGPT4Video as rows; others as they
    are."""
    single = records[0] if len(records) == 1 else None
    if has_sentences(single):
        return [
            {"video": one["video_id"], "caption": one["caption"]} for one in single["sentences"]
        ]
    if is_timed(single):
        return [
            {"video": name, "question": TIMED, "answer": _events(said)}
            for name, said in single.items()
        ]
    return [_of_whole_clip(record) if _has_parts(record) else record for record in records]


def has_sentences(record: object) -> bool:
    """Whether it is MSR-VTT's one object: videos, and sentences about them."""
    if not isinstance(record, dict) or not isinstance(record.get("videos"), list):
        return False
    said = record.get("sentences")
    wanted = {"video_id", "caption"}
    is_listed = isinstance(said, list) and bool(said)
    return is_listed and all(isinstance(one, dict) and wanted <= one.keys() for one in said)


def is_timed(record: object) -> bool:
    """Whether it is ActivityNet's object: for each clip its sentences and their times."""
    return isinstance(record, dict) and bool(record) and all(map(_has_times, record.values()))


def _has_times(said: object) -> bool:
    if not isinstance(said, dict):
        return False
    times, sentences = said.get("timestamps"), said.get("sentences")
    if not isinstance(times, list) or not isinstance(sentences, list):
        return False
    is_whole = len(times) == len(sentences) and all(isinstance(one, str) for one in sentences)
    return is_whole and all(isinstance(span, list) and len(span) == 2 for span in times)


def _events(said: dict) -> str:
    lines = []
    for (start, end), sentence in zip(said["timestamps"], said["sentences"], strict=True):
        lines.append(f"{start}s - {end}s: {sentence.strip()}")
    return "\n".join(lines)


def _has_parts(record: object) -> bool:
    """Whether its captions are ShareGPT4Video's: numbered, each with a text."""
    captions = record.get("captions") if isinstance(record, dict) else None
    if not isinstance(captions, list) or not captions or "video_path" not in record:
        return False
    return all(isinstance(one, dict) and {"idx", "content"} <= one.keys() for one in captions)


def _of_whole_clip(record: dict) -> dict:
    """The row of a clip: the caption of the whole, or its parts one after another."""
    captions = record["captions"]
    whole = [one["content"] for one in captions if str(one["idx"]) == WHOLE]
    texts = whole or [one["content"] for one in captions]
    return {"video": record["video_path"], "caption": " ".join(map(str, texts))}
