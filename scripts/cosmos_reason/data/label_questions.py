"""The question of labels that come without one: the user's, in the words of the labels; for
captions one of ours."""

from __future__ import annotations

import json
import re

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix

FEW_CLASSES, SHORT_CLASS = (
    12,
    40,
)  # so many answers, each of so few characters, are classes and named in the question
YES_NO = {"yes", "no"}
TRUTH = YES_NO | {"y", "n", "true", "false", "0", "1"}
LABELS = ("answer", "label", "class", "target", "category", "response")
NAMELESS = (*LABELS, "folder")  # names that say nothing
SENTENCES = ("caption", "sentence", "text")
CAPTIONS = (*SENTENCES, "description")


def ask(
    given: str, names: list[str], answers: list[str], medium: str, options: bool = False
) -> str:
    """Return the question that records of a `medium` (video or image) have in common; `names` are
    of the columns or fields that are the answer, `options` whether records have a choice.

    Raises Failure when none is given, unless the answers are captions: only their author knows what
    labels answer."""
    if given:
        return given
    if not options and _are_captions(names, answers):
        return f"Describe this {medium}."
    labels = ", ".join(names)
    if len(names) == 1:
        labels = f"{', '.join(sorted(set(answers))[:3])} of {names[0]}"
    message = (
        f"got no question for the labels {labels}, expected one. "
        "The fix is a proposal made from their name: say what you mean "
        "(a table may have it in a column: --column question=NAME)"
    )
    fix = Fix(flags={"--question": _proposal(names, answers, medium, options)})
    raise f.bad_input("BUILD-QUESTION", "--question", message, fix)


def worded(question: str, names: list[str], answers: list[str]) -> str:
    """Return the question with the form of its answers, unless it tells that itself or they are
    captions."""
    if _says_form(question, answers) or _are_captions(names, answers) or not form(answers):
        return question
    return f"{question}\n{form(answers)}"


def _says_form(question: str, answers: list[str]) -> bool:
    """Return whether a question names all its answers behind a word such as "answer"."""
    instruction = re.search(r"\b(?:answer|reply|respond)\b(.*)", question.lower(), re.S)
    if not instruction:
        return False
    classes = {answer.lower() for answer in answers}
    if classes <= YES_NO:
        classes = YES_NO
    return all(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", instruction[1]) for one in classes)


def form(answers: list[str]) -> str:
    """Return what to add to a question, so that answers come in the words of the labels; "" for all
    but a few classes."""
    classes = sorted(set(answers))
    if {answer.lower() for answer in classes} <= YES_NO:
        return "Answer yes or no."
    few = (
        len(classes) <= FEW_CLASSES
        and len(answers) > len(classes)
        and max(map(len, classes)) <= SHORT_CLASS
    )
    # With a comma in one of them nobody sees where it ends.
    between = "; " if any("," in one for one in classes) else ", "
    return f"Answer with one of: {between.join(classes)}." if few else ""


def _are_captions(names: list[str], answers: list[str]) -> bool:
    """Return whether their one name says so: captions may be short, be repeated, and have no spaces
    between words."""
    named = len(names) == 1 and names[0].lower() in CAPTIONS
    return named and not _are_json(answers) and not {answer.lower() for answer in answers} <= TRUTH


def _are_json(answers: list[str]) -> bool:
    return 2 * sum(answer.startswith(("{", "[")) for answer in answers) > len(answers)


def _proposal(names: list[str], answers: list[str], medium: str, options: bool) -> str:
    if len(names) > 1 or (_are_json(answers) and f"{json.dumps(names[0])}:" in answers[0]):
        fields = "fields" if len(names) > 1 else "field"
        return f"Describe this {medium} as JSON with the {fields} {', '.join(names)}."
    name = " ".join(re.findall(r"[^\W_]+", names[0]))
    if options:
        return f"Which option is right for this {medium}?"
    if name.lower() in CAPTIONS:
        return f"Describe this {medium}."
    if not name or name.lower() in NAMELESS:
        return f"What is the label of this {medium}?"
    is_truth = {answer.lower() for answer in answers} <= TRUTH
    if is_truth:
        return f"Is it true of this {medium}: {name}?"
    return f"What is the {name} in this {medium}?"
