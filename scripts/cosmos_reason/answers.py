"""What a model answered: the kind of question a ground truth implies, and the answer a response contains.

Reading is strict on purpose. A response that commits to nothing, or to two things at once, has no answer (None) and is
counted as unparseable; nothing is guessed from the first letter of a sentence.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

TYPES = ("mcq", "yes_no", "direction", "label", "number", "text")
CLOSED_TYPES = ("mcq", "yes_no", "direction", "label")

_remembered = lru_cache(maxsize=8192)  # questions and answers of an evaluation repeat
_NUMBER_WORDS = {
    "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
    "eight": "8", "nine": "9", "ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14",
    "fifteen": "15", "sixteen": "16", "seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20",
}  # fmt: skip
_YES, _NO = ("yes", "true", "y", "t"), ("no", "false", "n", "f")
_DIRECTIONS = {
    "left": "left", "leftward": "left", "leftwards": "left",
    "right": "right", "rightward": "right", "rightwards": "right",
    "straight": "straight", "forward": "straight", "forwards": "straight", "ahead": "straight",
    "up": "up", "upward": "up", "upwards": "up",
    "down": "down", "downward": "down", "downwards": "down",
}  # fmt: skip


def _one_of(words) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_EDGES = " \t\r\n.,;:!?()[]'\"“”‘’«»*_`。，；：！？（）「」、"
_MARKUP = re.compile(r"\\(?:boxed|text|mathrm|textbf)\b|[*_`#${}\"“”‘’«»<>]|(?<!\w)'|'(?!\w)")

_THOUGHT = re.compile(r"</?think>", re.I)
_THOUGHT_START, _THOUGHT_END = re.compile(r"<think>", re.I), re.compile(r"</think>", re.I)
_ANSWER_START, _ANSWER_END = re.compile(r"<answer>", re.I), re.compile(r"</answer>", re.I)

# Options in a question
_MARKER = re.compile(r"(?<![A-Za-z0-9])\(?([A-Za-z])[.):]\s*(?=\S)")
_FIRST_MARKER = re.compile(r"[Aa][.):]")
_AFTER_OPTIONS = re.compile(
    r"\s+(?:Please (?:answer|choose|select|respond)|(?:Answer|Respond|Reply) (?:with|by|in|using))\b"
)

# "the answer is", "I choose": what follows was meant as the answer
_VERB = r"(?:is|was|must\s+be|should\s+be|would\s+be|will\s+be|has\s+to\s+be)"
_STATED = (
    rf"(?:\b(?:answer|choice)\b(?:\s+to\s+(?:the|this)\s+question)?(?:\s+{_VERB}\b)?"
    r"|\bI\s+(?:choose|pick|select|say)\b)"
    r"\s*[:=：]?\s*(?:therefore|clearly|thus|probably|definitely)?\s*(?:the\s+)?(?:option|choice|letter)?\s*"
)
_STATED_ANYTHING = re.compile(_STATED, re.I)

# Letters. "A" and "I" are words too: they count as a letter only where the sentence does not go on as one.
_LETTER = r"[(\[]?([B-HJ-Z]\b|[AI](?=$|[^\w\s]|\s+(?:because|since|as|for|which|is|was)\b|\s*\n))"
_OR_LETTER = r"[)\]]?(?:\s*(?:or|and|/|&)\s*|,\s*)(?:option\s+)?[(\[]?[A-Z](?![\w'’])"
_STATED_LETTER = re.compile(rf"(?i:{_STATED}){_LETTER}(?!{_OR_LETTER})")
_OPTION_LETTER = re.compile(
    rf"(?<![Nn]ot )(?i:\b(?:option|choice|letter))\s+{_LETTER}(?!{_OR_LETTER})"
    r"(?!\W*(?:is|are|was)\s+(?:not|wrong|incorrect)\b)"
)
_BARE_LETTER = re.compile(r"\W*(?:(?:option|choice|answer)\W+)?([A-Za-z])\W*", re.I)
_SEVERAL_LETTERS = re.compile(rf"(?<![\w'’])[A-Z]{_OR_LETTER}")
_LEADING_LETTER = re.compile(
    r"\W*(?:([A-Za-z])\)|([A-Za-z])[.:](?=\s)|([A-Z])(?=,\s|\s+[-–—]\s|\s*\n))\s*(?!(?:or|and)\b)"
)
_ENCLOSED_LETTER = re.compile(r"[(\[]([A-Z])[)\]]")
_LONE_LETTER = re.compile(r"(?<![A-Za-z0-9'’.-])(?:([B-HJ-Z])|([AI])(?!\s+[a-z]))(?![A-Za-z0-9'’-])(?!\.[A-Za-z])")

# Yes and no. "No. 5" is a number, "no-entry" a sign.
_TRUTH = r"(yes|no|true|false)"
_STATED_TRUTH = re.compile(rf"{_STATED}{_TRUTH}\b(?!\W*(?:or|and)\b)", re.I)
_CLAUSE_TRUTH = re.compile(
    rf"(?:^|[.!?;:,\n—–])\W{{0,8}}{_TRUTH}(?=\W{{0,8}}$|\s*[.,!?;:\n—–]|\s+-\s)(?!\.\s*\d)", re.I
)
_LEADING_TRUTH = re.compile(rf"\W*{_TRUTH}\b(?!-)(?!\.\s*\d)(?!\W*(?:or|and)\s)", re.I)
# "no" before a word is a determiner ("there is no doubt that ..."), which answers nothing
_ANY_TRUTH = re.compile(r"(?<![\w-])(yes|true|false|no(?!\s+[a-z]))(?![\w-])(?!\.\s*\d)", re.I)

# Directions. "up" and "down" are often part of a verb ("slows down"), so they count only where a direction is due.
_TOWARDS = _one_of(_DIRECTIONS)
_MOVEMENT = (
    r"(?:(?:turn|go|goe|mov|move|head|drive|driv|veer|steer|travel|proceed|continu|continue|keep|swerv|swerve|merg|merge"
    r"|bear)(?:s|ed|ing)?|went|drove|gone)"
)
_THEN_TOWARDS = rf"\W+(?:(?:and|or|then|{_MOVEMENT})\W+)+(?:to\s+)?(?:the\s+)?(?:{_TOWARDS})\b"
_SEVERAL_DIRECTIONS = re.compile(rf"\b(?:{_TOWARDS}){_THEN_TOWARDS}", re.I)
_ONLY_DIRECTION = re.compile(
    rf"(?:(?:the|it|car|vehicle|truck|bus|object|shape|is|was|to|a|making|makes|{_MOVEMENT})\s+)*({_TOWARDS})"
    r"(?:\s+(?:turn|ahead|on))?",
    re.I,
)
_STATED_DIRECTION = re.compile(
    rf"{_STATED}(?:(?:to|{_MOVEMENT})\s+)*(?:the\s+)?({_TOWARDS})\b(?!{_THEN_TOWARDS})", re.I
)
_MOVING_DIRECTION = re.compile(
    rf"\b{_MOVEMENT}\s+(?:to\s+)?(?:the\s+)?({_TOWARDS})\b(?!\s+(?:lane|side)\b)"
    r"|\b(left|right)[\s-]+(?:hand\s+)?turn\b",
    re.I,
)
_ANY_DIRECTION = re.compile(
    r"(?<![\w-])(?<!all )(left|right|straight|(?:left|right|for)wards?)(?![\w-])"
    r"(?!\s+(?:away|now|after|before|behind|in\s+front)\b)",
    re.I,
)

# Numbers: "1,000.5" is one, "2:30" and "1.2.3" are none
_DIGITS = r"[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_NUMBER = re.compile(rf"(?<![\w.,:]){_DIGITS}(?![\d:]|[,.]\d)")
_NUMBER_WORD = re.compile(rf"(?<![\w-])({_one_of(_NUMBER_WORDS)})(?![\w-])", re.I)
_ONLY_NUMBER = re.compile(rf"{_DIGITS}\s*(?:%|°|[A-Za-zµ°²³/]{{1,12}})?")
_STATED_NUMBER = re.compile(
    rf"(?:{_STATED}|=\s*|\btotal(?:\s+(?:of|is))?:?\s*)(?:about|around|approximately|~)?\s*({_DIGITS})(?![\d:]|[,.]\d)",
    re.I,
)
_RANGE = re.compile(r"\s*(?:or|to|-|–)\s*\d")


def final_answer(response: str) -> str | None:
    """The part of a response that answers: what follows the last `</think>`, in it the last `<answer>` element if any.

    None when nothing is left, as when the tokens ran out while thinking."""
    if "<" not in response:
        return response.strip() or None
    said = _THOUGHT_END.split(response)[-1]
    if not said.strip() or _THOUGHT_START.search(said):
        said = response  # an answer element may stand inside the thinking, closed or not
    elements = _ANSWER_START.split(said)
    if len(elements) > 1:
        return _ANSWER_END.split(elements[-1])[0].strip() or None
    if said is response and _THOUGHT.search(said):
        return None
    return said.strip() or None


@_remembered
def options(question: str) -> dict[str, str]:
    """Letter -> text of the options `A. x`, `A) x`, `(A) x` or `A: x` in a question; {} when fewer than two."""
    found = []
    first = _FIRST_MARKER.search(question)
    for match in _MARKER.finditer(question, max(0, first.start() - 1)) if first else ():
        if match[1].upper() == chr(ord("A") + len(found)):
            found.append(match)
    if len(found) < 2:
        return {}
    ends = [match.start() for match in found[1:]] + [len(question)]
    texts = [question[match.end() : end].split("\n")[0] for match, end in zip(found, ends, strict=True)]
    texts[-1] = _AFTER_OPTIONS.split(texts[-1])[0]
    return {match[1].upper(): text.strip() for match, text in zip(found, texts, strict=True)}


@_remembered
def question_type(question: str, gt: str) -> str:
    """One of TYPES, from the ground truth and the options asked for; never `label`, which only a whole set can show."""
    gt = final_answer(gt) or ""
    plain = gt.strip(_EDGES)
    if options(question) and normalise(gt, "mcq", question) is not None:
        return "mcq"
    if plain.lower() in ("yes", "no", "true", "false", "y", "n") or _CLAUSE_TRUTH.match(gt):
        return "yes_no"
    if re.fullmatch(r"[A-Z]", plain) or re.match(r"\(?[A-H][.)]\s+\S|\([A-H]\)", gt):
        return "mcq"
    if len(plain.split()) <= 3 and _ONLY_DIRECTION.fullmatch(plain):
        return "direction"
    if _ONLY_NUMBER.fullmatch(plain) or plain.lower() in _NUMBER_WORDS:
        return "number"
    return "text"


def normalise(gt: str, type: str, question: str = "") -> str | None:
    """The ground truth in the form `parse_answer` gives answers of this type; None when it is no such answer."""
    if type in ("text", "label"):
        return fold(final_answer(gt) or "") or None
    return parse_answer(gt, type, question)


def parse_answer(response: str | None, type: str, question: str = "", labels: tuple[str, ...] = ()) -> str | None:
    """The answer in a response, or None when it holds none.

    mcq: a capital letter · yes_no: "yes" or "no" · direction: left, right, straight, up, down · number: a decimal
    without trailing zeros · label: one of `labels`, folded · text: the response without its thinking.
    """
    if not response or type == "text":
        return final_answer(response or "")
    text = _plain(response)
    if text is None:
        return None
    if type == "mcq":
        return _mcq(text, question)
    return _label(text, labels) if type == "label" else _READERS[type](text)


@_remembered
def _plain(response: str) -> str | None:
    """The answering part without markup."""
    final = final_answer(response)
    return None if final is None else _MARKUP.sub("", final).strip()


def matches(answer: str | None, gt: str, type: str, question: str = "") -> bool:
    """Whether what `parse_answer` returned is what the ground truth says."""
    return equal(answer, normalise(gt, type, question), type)


def equal(answer: str | None, expected: str | None, type: str, tolerance: float = 0.0) -> bool:
    """Whether what `parse_answer` returned is what `normalise` did; a number may differ by `tolerance`, relatively."""
    if answer is None or expected is None:
        return False
    if type == "number" and tolerance:
        return abs(Decimal(answer) - Decimal(expected)) <= abs(Decimal(expected)) * Decimal(repr(tolerance))
    return (fold(answer) if type == "text" else answer) == expected


def fold(text: str) -> str:
    """Case, runs of white space and punctuation at the ends removed; other languages keep every letter."""
    return " ".join(text.casefold().split()).strip(_EDGES)


def _mcq(text: str, question: str) -> str | None:
    letter = _letter(text)
    choices = options(question)
    if letter and (not choices or letter in choices):
        return letter
    folded = fold(text)
    texts = {fold(choice): letter for letter, choice in choices.items() if fold(choice)}
    if folded in texts:
        return texts[folded]
    return None if letter else texts.get(_only_mention(folded, tuple(texts)))


@_remembered
def _letter(text: str) -> str | None:
    if bare := _BARE_LETTER.fullmatch(text):
        return bare[1].upper()
    for pattern in (_STATED_LETTER, _OPTION_LETTER):
        if stated := pattern.findall(text):
            return stated[-1]
    if _SEVERAL_LETTERS.search(text):
        return None
    if leading := _LEADING_LETTER.match(text):
        return leading[leading.lastindex].upper()
    for pattern in (_ENCLOSED_LETTER, _LONE_LETTER):
        if len(letters := {match[match.lastindex] for match in pattern.finditer(text)}) == 1:
            return letters.pop()
    return None


@_remembered
def _yes_no(text: str) -> str | None:
    word = text.strip(_EDGES).lower()
    if word not in (*_YES, *_NO):
        word = _yes_no_word(text)
    return None if word is None else "yes" if word in _YES else "no"


def _yes_no_word(text: str) -> str | None:
    for pattern in (_STATED_TRUTH, _CLAUSE_TRUTH):
        if stated := pattern.findall(text):
            return stated[-1].lower()
    if leading := _LEADING_TRUTH.match(text):
        return leading[1].lower()
    words = {word.lower() for word in _ANY_TRUTH.findall(text)}
    return words.pop() if len({word in _YES for word in words}) == 1 else None


@_remembered
def _direction(text: str) -> str | None:
    if whole := _ONLY_DIRECTION.fullmatch(text.strip(_EDGES)):
        return _DIRECTIONS[whole[1].lower()]
    if stated := _STATED_DIRECTION.findall(text):
        return _DIRECTIONS[stated[-1].lower()]
    if _SEVERAL_DIRECTIONS.search(text):
        return None
    for pattern in (_MOVING_DIRECTION, _ANY_DIRECTION):
        words = {match[match.lastindex].lower() for match in pattern.finditer(text)}
        if len(readings := {_DIRECTIONS[word] for word in words}) == 1:
            return readings.pop()
        if readings:
            return None
    return None


@_remembered
def _number(text: str) -> str | None:
    if stated := _STATED_NUMBER.findall(text):
        return _canonical(stated[-1])
    if (leading := _NUMBER.match(text)) and not _RANGE.match(text, leading.end()):
        return _canonical(leading[0])
    values = {_canonical(match[0]) for match in _NUMBER.finditer(text)}
    if not values:
        values = {_NUMBER_WORDS[word.lower()] for word in _NUMBER_WORD.findall(text)}
    return values.pop() if len(values) == 1 else None


def _canonical(number: str) -> str:
    value = Decimal(number.replace(",", "").replace("−", "-"))
    return format(value.normalize() + 0, "f")


def _label(text: str, labels: tuple[str, ...]) -> str | None:
    known, folded = _folded(labels), fold(text)
    if folded in known:
        return folded
    stated = fold(_STATED_ANYTHING.split(folded)[-1])
    return stated if stated in known else _only_mention(folded, known)


@_remembered
def _folded(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fold(label) for label in labels))


def _only_mention(folded: str, phrases: tuple[str, ...]) -> str | None:
    """The one phrase that occurs in the text as whole words and is not denied; None for none or several."""
    pattern = _any_phrase(phrases)
    found = {match[0] for match in pattern.finditer(folded)} if pattern else set()
    return found.pop() if len(found) == 1 else None


@_remembered
def _any_phrase(phrases: tuple[str, ...]) -> re.Pattern | None:
    longest_first = sorted((re.escape(phrase) for phrase in phrases), key=len, reverse=True)
    return re.compile(rf"(?<!\bnot )(?<!\bno )(?<!\w)(?:{'|'.join(longest_first)})(?!\w)") if phrases else None


_READERS = {"yes_no": _yes_no, "direction": _direction, "number": _number}
