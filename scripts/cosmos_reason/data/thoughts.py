"""The reasoning before an answer, as people write it: in <think>, before <answer>, or beside it."""

from __future__ import annotations

import re

# What a model thought before its answer, and the answer: "<think>...</think> B".
THOUGHTFUL = re.compile(r"\s*<think>\s*(.*?)\s*</think>\s*(\S.*)", re.S)
THOUGHT_ALONE = re.compile(r"\s*<think>\s*(.*?)\s*(?:</think>\s*)?", re.S)
ANSWER_TAGS = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.S)


def apart(answer: str) -> tuple[str, str]:
    """(reasoning, answer) of an answer that may begin with its reasoning; "" without one."""
    thought = THOUGHTFUL.fullmatch(answer)
    return (thought[1], thought[2]) if thought else ("", answer)


def bare(text: str) -> str:
    """Reasoning without its tags."""
    tagged = THOUGHT_ALONE.fullmatch(text)
    return tagged[1] if tagged else text


def untagged(answer: str) -> str:
    """What stands in <answer>; any other answer as it is."""
    tagged = ANSWER_TAGS.fullmatch(answer)
    return tagged[1].strip() if tagged else answer
