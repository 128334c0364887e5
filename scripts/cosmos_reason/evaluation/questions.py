"""What is asked: the questions of an annotation file, how a model is given one, who answers it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from cosmos_reason import answers
from cosmos_reason.base import findings
from cosmos_reason.base.families import DEFAULT, Family
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import annotations
from cosmos_reason.data.frames import with_system
from cosmos_reason.data.samples import Question, Turn
from cosmos_reason.data.survey import short_answer
from cosmos_reason.evaluation import inference
from cosmos_reason.remote import model_names
from cosmos_reason.spec.prompts import ADDED, THINK_IN_TAGS, THINK_OF_LETTER

GENERATE, LIKELIHOOD = "generate", "likelihood"  # evaluation.ask; the third is "both"
LETTER_ASKED = r"\b(?:answer|respond|reply|choose|select|give)\b[^.\n]*\bletter\b"  # no case


class Answer(NamedTuple):
    """What became of a question: exactly one of `response` and `error` is None. `vision_tokens`
    and `tokens` (of the response) when they are known; `is_cut` when the tokens ran out before the
    answer ended; `seconds` it took, of a batch each answer's share; `attempts` until it came;
    `choice` is the probability of each answer that was weighed; the rest goes to other words."""

    question: Question
    response: str | None
    error: str | None = None
    vision_tokens: int | None = None
    is_cut: bool = False
    tokens: int | None = None
    seconds: float | None = None
    attempts: int = 1
    choice: dict[str, float] | None = None


class Responder(Protocol):
    """Who answers questions: a model on this machine (engine/answer/responder.py), or a
    server (endpoint.py)."""

    where: str  # in words, for people
    ignores: frozenset[str]  # keys of the table `generation` that do not count
    shown_as: dict[str, str]  # how clips are shown, beyond the table `vision`: other answers come
    generation: dict  # how the next answers are generated, as the table of that name says

    def identity(self) -> list:
        """Return what changes with whatever could change an answer; can be written as JSON."""

    def answers(self, questions: list[Question]) -> Iterator[list[Answer]]:
        """Yield lists of answers as they come, in any order. Raises Failure when no question can be
        answered."""


def is_inference(spec: dict) -> bool:
    """Return whether a spec asks about media without answers to compare with (`inference`)."""
    return "media" in spec["dataset"]


def action(spec: dict) -> str:
    """Return the action whose keys people set for such a spec."""
    return "inference" if is_inference(spec) else "evaluate"


def read(dataset: dict, limit: int) -> list[Question]:
    """Return every question of the annotation file in file order, the first `limit` of them when
    that is positive; those of an inference. Raises Failure when there is none, or when two have one
    id."""
    if "media" in dataset:
        return inference.questions(dataset)
    path = dataset["annotation_path"]
    samples, found = annotations.read(Path(path))
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_BAD_INPUT)
    questions = [question for sample in samples for question in sample.questions()]
    if not questions:
        raise findings.bad_input("EVAL-NO-QUESTIONS", path, "it holds no question with an answer")
    counts = Counter(question.id for question in questions)
    repeated = [question_id for question_id, count in counts.items() if count > 1]
    if repeated:
        message = f"{len(repeated)} ids occur more than once ({', '.join(repeated[:3])}); "
        message += "rows need unique ids"
        record_ids = repeated[: findings.MAX_RECORD_IDS]
        raise findings.bad_input("EVAL-ID-DUPLICATE", path, message, record_ids=record_ids)
    return questions[:limit] if limit > 0 else questions


def spread(asked: Sequence[Question], count: int) -> list[Question]:
    """Return `count` of the questions, or all when there are fewer, in their order: the same ones
    every time, as many of each kind and answer as there are, rare ones first to be whole."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for number, question in enumerate(asked):
        kind = answers.question_type(question.text, question.gt)
        groups[kind, short_answer(kind, question.text, question.gt)].append(number)
    for numbers in groups.values():
        # By a digest, not by place: files often have one camera or day after the other.
        numbers.sort(key=lambda number: _digest(asked[number]))
    chosen: list[int] = []
    rare_first = sorted(groups.values(), key=lambda all: (len(all), _digest(asked[all[0]])))
    for done, numbers in enumerate(rare_first):
        share = (count - len(chosen)) // (len(groups) - done)
        chosen += numbers[:share]
    return [asked[number] for number in sorted(chosen)]


def _digest(question: Question) -> str:
    return hashlib.sha256(f"{question.id}\n{question.text}".encode()).hexdigest()


def conversation(question: Question, spec: dict) -> list[Turn]:
    """Return the turns a model is given: system prompt, earlier turns, the question and what the
    answer type adds to it."""
    *earlier, asked = question.context
    model = spec["model"]["base_model_path"] or spec["model"]["model_name"]
    family = model_names.known_family(model)
    system = spec["dataset"]["system_prompt"]
    instruction = added(asked.text, spec["evaluation"]["answer_type"], family, system)
    asked = asked._replace(text=asked.text + instruction)
    return with_system([*earlier, asked], system)


def added(question: str, answer_type: str, family: Family = DEFAULT, system: str = "") -> str:
    """Return what the answer type adds to a question, as the family was asked in its training. A
    letter is asked for where there are options; nothing is asked twice, in the question or by the
    system prompt."""
    if answer_type == "letter":
        return _letter(question)
    if answer_type != "reasoning":
        return ADDED[answer_type]
    if "<think>" in question + system:
        return ""
    if not family.tags_answers:
        return ADDED[answer_type]
    if not answers.options(question):
        return THINK_IN_TAGS
    return _letter(question) + THINK_OF_LETTER


def _letter(question: str) -> str:
    is_asked = re.search(LETTER_ASKED, question, re.IGNORECASE)
    if is_asked or not answers.options(question):
        return ""
    return ADDED["letter"]


def without_options(spec: dict) -> list[Finding]:
    """Return a warning about questions that cannot be answered by a letter though the spec asks for
    letters. Raises Failure when that is every question: the answers would be free ones."""
    if spec["evaluation"]["answer_type"] != "letter":
        return []
    questions = read(spec["dataset"], spec["evaluation"]["limit"])
    without = [question.id for question in questions if not answers.options(question.text)]
    if not without:
        return []
    key = "evaluation.answer_type"
    message = (
        f"a letter is asked for, and {len(without)} of {len(questions)} questions "
        "offer no options such as (A) and (B)"
    )
    if len(without) == len(questions):
        message += "; freeform takes answers in words"
        fix = Fix(changes={key: "freeform"})
        raise findings.bad_input("EVAL-LETTER-OPTIONS", key, message, fix)
    message += "; these are asked as they are written"
    record_ids = without[: findings.MAX_RECORD_IDS]
    return [findings.warning("EVAL-LETTER-OPTIONS", key, message, record_ids=record_ids)]
