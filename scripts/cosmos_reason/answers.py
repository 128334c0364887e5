"""What a model answered: the kind of question a ground truth implies, and the answer a response contains.

Reading is strict on purpose. A response that commits to nothing, or to two things at once, has no answer (None) and is
counted as unparseable; nothing is guessed from the first letter of a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache
from string import ascii_uppercase

TYPES = ("mcq", "yes_no", "direction", "label", "number", "text")
CLOSED_TYPES = ("mcq", "yes_no", "direction", "label")

_remembered = lru_cache(maxsize=8192)  # questions and answers of an evaluation repeat
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_UNITS += [f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")]
_TENS = {
    f"{stem}ty": 10 * n for n, stem in enumerate(("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine"), 2)
}
_NUMBER_WORDS = {word: n for n, word in enumerate(_UNITS)} | _TENS | {"hundred": 100}
_NUMBER_WORDS |= {f"{ten}-{_UNITS[n]}": _TENS[ten] + n for ten in _TENS for n in range(1, 10)}
_MEASURES = {
    "mm": ("m", "0.001"), "cm": ("m", "0.01"), "m": ("m", "1"), "km": ("m", "1000"),
    "ms": ("s", "0.001"), "s": ("s", "1"), "min": ("s", "60"), "h": ("s", "3600"),
    "g": ("kg", "0.001"), "kg": ("kg", "1"),
    "m/s": ("km/h", "3.6"), "km/h": ("km/h", "1"), "mph": ("km/h", "1.609344")
}  # fmt: skip
_YES, _NO = ("yes", "true", "y", "t", "yeah", "yep"), ("no", "false", "n", "f", "nope", "nah", "not true")
_DIRECTIONS = {
    word: way
    for way, words in {
        "left": "left leftward leftwards",
        "right": "right rightward rightwards",
        "straight": "straight forward forwards ahead",
        "up": "up upward upwards",
        "down": "down downward downwards",
    }.items()
    for word in words.split()
}


def _one_of(words) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_EDGES = " \t\r\n.,;:!?()[]'\"“”‘’«»*_`。，；：！？（）「」、"
_MARKUP = re.compile(
    r"</?(?:b|i|u|em|strong|p|br|span) ?/?>|\\(?:boxed|text|mathrm|textbf)\b"
    r"|[*_`#${}\"“”‘«»<>\u200b\ufeff]|(?<!\w)['’]|['’](?!\w)"
)
_BLANKS, _LINES = re.compile(r"[^\S\n]+"), re.compile(r"\s*\n\s*")

_THOUGHT = re.compile(r"</?think>", re.I)
_THOUGHT_START, _THOUGHT_END = re.compile(r"<think>", re.I), re.compile(r"</think>", re.I)
_ANSWER_START, _ANSWER_END = re.compile(r"<answer>", re.I), re.compile(r"</answer>", re.I)

# Options in a question
_AFTER_MARK = r"[.):\]、]"
_MARKER = re.compile(rf"(?<![A-Za-z0-9])[(\[]?([A-Za-z])(?:{_AFTER_MARK}\s*|(?<=\n[A-Z])\s[-–]\s)(?=\S)")
_FIRST_MARKER = re.compile(rf"[Aa](?:{_AFTER_MARK}|\s[-–]\s)")
_AFTER_OPTIONS = re.compile(
    r"\s+(?:Please (?:answer|choose|select|respond)|(?:Answer|Respond|Reply) (?:with|by|in|using))\b"
)
_ASKS_TRUTH = re.compile(
    r"\btrue\b|\bT ?(?:/|or) ?F\b|^\W*(?:is|are|was|were|do|does|did|can|could|has|have|will)\b", re.I
)

# "the answer is", "I choose", "wait,": what follows was meant as the answer. White space is single by now.
_VERB = r"(?:is|was|(?:must|should|would|will|has to) be)"
_STATED = re.compile(
    rf"\b(?:answer|choice|option|letter)\b(?: to (?:the|this) question)?(?: {_VERB}\b)?"
    r"|\bI (?:choose|pick|select|say)\b|\b(?:wait|actually|correction)\b(?=[,:])"
    r"|\b(?:so|therefore|thus|hence)\b,?(?=\W{0,3}(?:[A-Z0-9]\b|\d|yes\b))"
    r"|答案是?|=|\btotal(?: of| is)?(?=:? \d)",
    re.I,
)
_LEAD = r"\W*(?:(?:therefore|clearly|thus|probably|definitely|about|around|approximately|the|option|choice|letter)\W+)*"
_NEGATION = (
    r"(?:\b(?:not|never|neither|nor|cannot|without|unlike|exclud\w+|eliminat\w+|rul\w+ out|rather than|instead of)"
    r"|\b(?:is|are|was|were|do|does|did|ca|could|would|should|has|have|wo)n['’]?t)"
).replace(r"\w+ out", r"(?:e|es|ed|ing) out")
_BETWEEN = r"(?: (?!(?:but|so|because|since|as|that)\b)[\w'’-]+){0,3} ?\W?\Z"
_DENIED = re.compile(_NEGATION + _BETWEEN, re.I)
_ABSENT = re.compile(rf"\bno(?: [\w-]+)? \Z|{_NEGATION}{_BETWEEN}", re.I)
_WRONG = re.compile(
    r"[)\]]?(?: turn)? (?:(?:is|are|was|would be|must be|seems|looks) (?:clearly |definitely )?"
    r"(?:not|wrong|incorrect|false|out|the wrong|an incorrect)\b"
    r"|(?:is|are|was|does|do|can)n['’]?t\b|cannot\b|d(?:o|oes|id) not\b"
    r"|(?:can|could|may|must|should) be (?:excluded|eliminated|ruled out|discarded|rejected)\b)",
    re.I,
)
_LISTED = re.compile(r"[)\]]?(?: ?,| ?/|(?: or| nor| and)\b)+ ?[(\[]?")

# Letters. "A" and "I" are words too: they count as a letter only where the sentence does not go on as one.
_GOES_ON = r"(?=$|[^\w\s]|\s+(?:because|since|as|for|which|is|was|would|or|and)\b|\s*\n)"
_LETTER = rf"([B-HJ-Z]\b(?!['’])|[AI]{_GOES_ON})"
_OR_LETTER = r"[)\]]?(?:\s*(?:or|and|/|&)\s*|,\s*)(?:option\s+)?[(\[]?[A-Z](?![\w'’])"
_STATED_LETTER = re.compile(
    rf"(?i:{_LEAD})[(\[]?"
    rf"(?:{_LETTER}|(?i:(?<=option )|(?<=choice )|(?<=letter ))(A)\b|([a-z])(?=$|[.,;:)\]\n]))(?!{_OR_LETTER})"
)
_BARE_LETTER = re.compile(r"\W*(?:(?:option|choice|answer)\W+)?([A-Za-z])\W*", re.I)
_LEADING_LETTER = re.compile(
    rf"\W*(?:([A-Za-z])\)|([A-Za-z])[.:](?=\s)|([A-Z])(?=,\s|\s+[-–—]\s|\s*\n))(?!{_OR_LETTER})\s*(?!(?:or|and)\b)"
)
_ENCLOSED_LETTER = re.compile(r"[(\[]([A-Z])[)\]]")
_LONE_LETTER = re.compile(
    r"(?:\A|\n|[^\w\s'’-]\s|[^\w\s.'’-]|[^\x00-\x7f]|t's\s"
    r"|\b(?i:is|was|be|est|ist|so|then|thus|hence|or|and|nor|not|but|to|for|out|both|either|neither|between|with|pick"
    r"|say|think|guess|thought|answer|option|choice|choose|select)\s)"
    rf"{_LETTER}(?!-)(?!\.[A-Za-z])"
)

# Yes and no. "No. 5" is a number, "no-entry" a sign; "no" before a word is a determiner ("there is no doubt that ...").
_TRUTH = r"(yes|no|true|false|yeah|yep|nope|not true(?! that))"
_CLAUSE_TRUTH = re.compile(
    rf"(?:^|[.!?;:,\n—–])\W{{0,8}}{_TRUTH}(?=\W{{0,8}}$|\s*[.,!?;:\n—–]|\s+-\s)(?!\.\s*\d)", re.I
)
_LEADING_TRUTH = re.compile(rf"\W*{_TRUTH}\b(?!-)(?!\.\s*\d)(?!\W*(?:or|and)\s)", re.I)
_ANY_TRUTH = re.compile(rf"(?<![\w-])(?!no\s+[a-z]){_TRUTH}(?![\w-])(?!\.\s*\d)", re.I)

# Directions. "up" and "down" are often part of a verb ("slows down"), so they count only where a direction is due.
_TOWARDS = _one_of(_DIRECTIONS)
_MOVEMENT = (
    r"(?:(?:turn|go|goe|mov|move|head|drive|driv|veer|steer|travel|proceed|continu|continue|keep|swerv|swerve|merg|merge"
    r"|bear)(?:s|ed|ing)?|went|drove|gone)"
)
_THEN_TOWARDS = rf"\W+(?:(?:and|or|then|{_MOVEMENT})\W+)+(?:to\s+)?(?:the\s+)?(?:{_TOWARDS})\b"
_SEVERAL_DIRECTIONS = re.compile(rf"(?<!\b[oi]n the )(?<!\bfrom the )\b(?:{_TOWARDS}){_THEN_TOWARDS}", re.I)
_ONLY_DIRECTION = re.compile(
    rf"(?:(?:the|it|car|vehicle|truck|bus|object|shape|is|was|to|a|making|makes|{_MOVEMENT})[\s-]+)*({_TOWARDS})"
    r"(?:\s+(?:turn|ahead|on))?",
    re.I,
)
_STATED_DIRECTION = re.compile(rf"{_LEAD}(?:(?:to|the|{_MOVEMENT}) )*({_TOWARDS})\b", re.I)
_MOVING_DIRECTION = re.compile(
    rf"\b{_MOVEMENT}[\s-]+(?:to\s+)?(?:the\s+)?({_TOWARDS})\b(?!\s+(?:lane|side)\b)"
    r"|\b(left|right)[\s-]+(?:hand\s+)?turn\b",
    re.I,
)
_ANY_DIRECTION = re.compile(
    r"(?<![\w-])(?<!all )(left|right|straight|(?:left|right|for)wards?)(?![\w-])"
    r"(?!\s+(?:away|now|after|before|behind|in\s+front|lane|side)\b)",
    re.I,
)

# Numbers: "1,000.5", "1 000", "1e3" and "1/2" are one, "2:30", "1.2.3" and "3,5" are none
_DIGITS = r"[-+−]?(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d{1,2}(?!\w)|[/⁄]\d+)?|\.\d+)"
_WORDS = rf"(?<![\w-])(?:{_one_of(_NUMBER_WORDS)})(?![\w-])(?! (?:is|was|of|that|which|has|after|by)\b)"
_NUMBER = re.compile(rf"((?<![\w.,:/]){_DIGITS}(?![\d:]|[,./]\d)|{_WORDS})(?: ?({_one_of(_MEASURES)})(?![\w/]))?", re.I)
_SCORE = re.compile(r"\b(?:score|rating|rated?|grade)\b[^\d.]*\Z", re.I)  # "4/5" is then 4 of 5, not 0.8
_BESIDES = re.compile(r"\b(?:within|in|of|after|at|for|during|over|per|every|last|first)(?: the| about)? \Z", re.I)
_RANGE = re.compile(r"\s*(?:or|to|and|-|–)\s*\d|\W+(?:or|to|and)\W+\w+\s", re.I)
_ONLY_NUMBER = re.compile(rf"{_DIGITS}\s*(?:%|°|[A-Za-zµ°²³/]{{1,12}})?", re.I)


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


@lru_cache(maxsize=1 << 18)  # a million rows ask some of their questions again and again
def options(question: str) -> dict[str, str]:
    """Letter -> text of the options in a question; {} when fewer than two. Written `A. x`, `A) x`, `(A) x`, `[A] x`,
    `A: x`, `A、x`, or on a line each `A - x`."""
    question = _composed(question).replace("**", "")
    first, found = _FIRST_MARKER.search(question), []
    for match in _MARKER.finditer(question, max(0, first.start() - 1)) if first else ():
        if match[1].upper() == chr(ord("A") + len(found)):
            found.append(match)
    if len(found) < 2:
        return {}
    ends = [match.start() for match in found[1:]] + [len(question)]
    texts = [question[match.end() : end].split("\n")[0] for match, end in zip(found, ends, strict=True)]
    texts[-1] = _AFTER_OPTIONS.split(texts[-1])[0]
    return {match[1].upper(): text.strip() for match, text in zip(found, texts, strict=True)}


def question_type(question: str, gt: str) -> str:
    """One of TYPES, from the ground truth and the options asked for; never `label`, which only a whole set can show."""
    kind = _type(gt, tuple(options(question).values()))
    return kind or ("yes_no" if _ASKS_TRUTH.search(question) else "mcq")


@_remembered
def _type(gt: str, choices: tuple[str, ...]) -> str:
    """Empty for "F", which may be an option or the opposite of "T"."""
    if choices and _mcq(gt, choices) is not None:
        return "mcq"
    gt = final_answer(gt) or ""
    plain = gt.strip(_EDGES)
    if plain.lower() in ("yes", "no", "true", "false", "y", "n") or plain == "T" or _CLAUSE_TRUTH.match(gt):
        return "yes_no"
    if plain == "F":
        return ""
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
    without trailing zeros and, of _MEASURES, its unit · label: one of `labels`, folded · text: the response without
    its thinking.
    """
    if not response or type == "text":
        return final_answer(response or "")
    if type == "label":
        return _label(response, labels)
    return _mcq(response, tuple(options(question).values())) if type == "mcq" else _read(response, type)


@_remembered
def _plain(response: str) -> str:
    """The answering part without markup, white space single."""
    text = _MARKUP.sub("", _composed(final_answer(response) or ""))
    return _LINES.sub("\n", _BLANKS.sub(" ", text)).strip()


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def equal(answer: str | None, expected: str | None, type: str, tolerance: float = 0.0) -> bool:
    """Whether what `parse_answer` returned is what `normalise` did; a number may differ by `tolerance`, relatively, and
    lack its unit."""
    if answer is None or expected is None:
        return False
    if type == "number" and (tolerance or " " in answer + expected):
        (said, unit), (meant, other) = _measure(answer), _measure(expected)
        if not (unit and other):
            said, meant = Decimal(answer.split()[0]), Decimal(expected.split()[0])
        alike = unit == other or not (unit and other)
        return alike and abs(said - meant) <= abs(meant) * Decimal(repr(tolerance))
    return (fold(answer) if type == "text" else answer) == expected


def _measure(number: str) -> tuple[Decimal, str]:
    value, _, unit = number.partition(" ")
    base, factor = _MEASURES.get(unit, ("", "1"))
    return Decimal(value) * Decimal(factor), base


@_remembered
def fold(text: str) -> str:
    """Case, width, runs of white space and punctuation at the ends removed; other languages keep every letter."""
    return " ".join(_composed(text).casefold().split()).strip(_EDGES)


@_remembered
def _read(response: str, type: str) -> str | None:
    text = _plain(response)
    return _last_stated(text, _READERS[type]) if text else None


def _last_stated(text: str, reader) -> str | None:
    """What `reader(text, start, end, stated)` finds after the last statement, or else before it, if it is one thing."""
    end = len(text)
    for statement in reversed(list(_STATED.finditer(text))):
        if found := reader(text, statement.end(), end, True):
            return found.pop() if len(found) == 1 else None
        end = statement.start()
    found = reader(text, 0, end, False)
    return found.pop() if len(found) == 1 else None


def _affirmed(pattern: re.Pattern, text: str, start: int, end: int, denied: re.Pattern = _DENIED) -> list[re.Match]:
    """The matches that the words around them do not deny; what denies one of a list denies the list."""
    kept, before = [], None
    for match in pattern.finditer(text, start, end):
        first, last = match.span(match.lastindex or 0)
        listed = before is not None and _LISTED.fullmatch(text, before, first)
        if listed or denied.search(text[max(0, first - 40) : first]):
            before = last
        elif not _WRONG.match(text, last):
            kept.append(match)
        else:
            while kept and _LISTED.fullmatch(text, kept[-1].end(kept[-1].lastindex or 0), first):
                first = kept.pop().start()
    return kept


def _leading(pattern: re.Pattern, text: str, start: int, end: int) -> set[str]:
    """What the text starts with, unless it is denied."""
    match = pattern.match(text, start, end)
    if not match:
        return set()
    first, last = match.span(match.lastindex)
    denied = _DENIED.search(text[max(0, first - 40) : first]) or _WRONG.match(text, last)
    return set() if denied else {match[match.lastindex]}


@_remembered
def _mcq(response: str, choices: tuple[str, ...]) -> str | None:
    text, letters = _plain(response), ascii_uppercase[: len(choices) or None]
    if bare := _BARE_LETTER.fullmatch(text):
        return bare[1].upper() if bare[1].upper() in letters else None
    texts = {fold(choice): letter for choice, letter in zip(choices, letters, strict=False) if fold(choice)}
    if fold(text) in texts:
        return texts[fold(text)]

    def reader(text: str, start: int, end: int, stated: bool) -> set[str]:
        found = _letters(text, start, end, stated)
        return found or {texts[phrase] for phrase in _phrases(fold(text[start:end]), tuple(texts))}

    letter = _last_stated(text, reader)
    return letter if letter and letter in letters else None


def _letters(text: str, start: int, end: int, stated: bool) -> set[str]:
    found = (stated and _leading(_STATED_LETTER, text, start, end)) or _leading(_LEADING_LETTER, text, start, end)
    start = max(0, text.rfind(" ", 0, start))  # what a lone letter follows
    for pattern in () if found else (_ENCLOSED_LETTER, _LONE_LETTER):
        found = found or {match[1] for match in _affirmed(pattern, text, start, end)}
    return {letter.upper() for letter in found}


def _yes_no(text: str, start: int, end: int, stated: bool) -> set[str]:
    word = text[start:end].strip(_EDGES)
    if word.lower() in (*_YES, *_NO) and not _DENIED.search(text[:start][-40:] + " "):
        words = {word}
    else:
        clauses = [match[1] for match in _affirmed(_CLAUSE_TRUTH, text, start, end)][-1:]
        leading = _leading(_LEADING_TRUTH, text, start, end)
        words = (stated and leading) or clauses or leading
        words = words or {match[1] for match in _affirmed(_ANY_TRUTH, text, start, end)}
    return {"yes" if word.lower() in _YES else "no" for word in words}


def _direction(text: str, start: int, end: int, stated: bool) -> set[str]:
    if whole := _ONLY_DIRECTION.fullmatch(text[start:end].strip(_EDGES)):
        return set() if _DENIED.search(text[:start][-40:] + " ") else {_DIRECTIONS[whole[1].lower()]}
    if _SEVERAL_DIRECTIONS.search(text, start, end):
        return {"left", "right"}
    found = _leading(_STATED_DIRECTION, text, start, end) if stated else set()
    for pattern in (_MOVING_DIRECTION, _ANY_DIRECTION):
        found = found or {match[match.lastindex] for match in _affirmed(pattern, text, start, end, _ABSENT)}
    return {_DIRECTIONS[word.lower()] for word in found}


def _number(text: str, start: int, end: int, stated: bool) -> set[str]:
    matches = _affirmed(_NUMBER, text, start, end)
    if stated and matches and not text[start : matches[0].start()].strip(" :$~("):
        matches = matches[: 2 if _RANGE.match(text, matches[0].end()) else 1]
    counts = [match for match in matches if not _BESIDES.search(text[max(0, match.start() - 20) : match.start()])]
    return {_canonical(match) for match in counts or matches}


def _canonical(match: re.Match) -> str:
    written, unit = match[1].lower(), (match[2] or "").lower()
    if written in _NUMBER_WORDS:
        value = Decimal(_NUMBER_WORDS[written])
    else:
        over, _, under = re.sub("[, ]", "", written).replace("−", "-").replace("⁄", "/").partition("/")
        whole = not under.strip("0") or _SCORE.search(match.string[max(0, match.start() - 20) : match.start()])
        value = Decimal(over) if whole else Decimal(over) / Decimal(under)
    return f"{value.normalize() + 0:f} {unit}".rstrip()


@_remembered
def _label(response: str, labels: tuple[str, ...]) -> str | None:
    known, text = _folded(labels), fold(_plain(response))
    if text in known:
        return text
    return _last_stated(text, lambda text, start, end, _: _phrases(text, known, start, end))


@_remembered
def _folded(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fold(label) for label in labels))


def _phrases(folded: str, phrases: tuple[str, ...], start: int = 0, end: int | None = None) -> set[str]:
    """The phrases that occur in the text as whole words and are not denied."""
    pattern = _any_phrase(phrases)
    end = len(folded) if end is None else end
    return {match[1] for match in _affirmed(pattern, folded, start, end, _ABSENT)} if pattern else set()


@_remembered
def _any_phrase(phrases: tuple[str, ...]) -> re.Pattern | None:
    """Words end where letters do, or where the script changes to one that puts nothing between words."""
    phrases = tuple(phrase for phrase in phrases if phrase)
    return re.compile(rf"(?<![^\W\u2e80-\uffff])({_one_of(phrases)})(?![^\W\u2e80-\uffff])") if phrases else None


_READERS = {"yes_no": _yes_no, "direction": _direction, "number": _number}
