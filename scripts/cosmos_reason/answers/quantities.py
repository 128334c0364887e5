"""Numbers with their unit or with the noun they count.

Units are a table of our own: `pint` takes 0.3 s and 19 MB to import, reads "20 F" as farad, and
knows neither currencies nor nouns.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from cosmos_reason.answers.choices import BOUNDARY, Vocabulary
from cosmos_reason.answers.words import singular

# kinds of units, of each its names: how many of the first one it is
_TABLE = """
m metre meter 米: 1; mm millimetre millimeter 毫米: 0.001; cm centimetre centimeter 厘米: 0.01;
km kilometre kilometer 公里 千米: 1000; in inch inches: 0.0254; ft foot feet 英尺: 0.3048;
yd yard: 0.9144; mi mile 英里: 1609.344
| s sec second 秒 秒钟: 1; ms millisecond msec 毫秒: 0.001; min minute 分钟 分: 60;
h hr hour 小时: 3600; day 天: 86400; week: 604800; month: 2629746; year 年: 31556952
| kg kilogram kilo 公斤 千克: 1; g gram 克: 0.001; mg milligram: 0.000001; t ton tonne 吨: 1000;
lb pound: 0.45359237; oz ounce: 0.028349523125
| km/h kph kmh kmph 公里每小时 kilometers_per_hour kilometres_per_hour: 1; mph mi/h
miles_per_hour: 1.609344; m/s mps meters_per_second metres_per_second 米每秒: 3.6;
ft/s fps feet_per_second: 1.09728; knot kn: 1.852
| l liter litre 升: 1; ml milliliter millilitre 毫升: 0.001; gallon gal: 3.785411784
| w watt: 1; kw kilowatt: 1000 | v volt: 1; mv millivolt: 0.001
| hz hertz: 1; khz kilohertz: 1000; mhz megahertz: 1000000
| ° degree deg: 1; rad radian: 57.29577951308232 | % percent pct percentage: 1 | px pixel: 1
| usd $ dollar us$: 1; cent: 0.01 | eur € euro: 1 | gbp £: 1 | jpy yen: 1 | cny rmb yuan ¥ 元: 1
| bpm beats_per_minute: 1 | rpm revolutions_per_minute: 1 | m/s^2 m/s2 m/s²: 1 | frame: 1
"""
_DEGREES = re.compile(
    r"(?:°|degrees? |deg\.? )?(?:(c|celsius|centigrade)|(f|fahrenheit)|(k|kelvin))", re.I
)

_ONES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_CARDINAL = {word: number for number, word in enumerate(_ONES.split())}
_CARDINAL |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_CARDINAL |= {"hundred": 100, "thousand": 1000}
_LONE = {"none": 0, "once": 1, "twice": 2}
_ENGLISH = "|".join(sorted(_CARDINAL, key=len, reverse=True))
_ALONE = "|".join(sorted(map(re.escape, _LONE), key=len, reverse=True))
# -1,234.5, 1e3, 3/4, .5, and 2,5 with a decimal comma
_DIGITS = (
    r"(?:[-+−]|(?:minus|negative) )?(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+"
    r"|,\d{1,2}(?![\d,]))?(?:e[-+]?\d{1,2}(?!\w)|[/⁄]\d+)?|\.\d+)"
)
_CHINESE = dict(zip("零一二三四五六七八九十两", [*range(11), 2], strict=True))
_MEASURE_WORD = "[个個名辆位次只条台架张件人]"
_UNIT = (
    r"(?:m/s(?:\^?2|²)|[kK]?m/[hs]|mi/h|ft/s|(?:kilo)?met(?:er|re)s per (?:hour|second)"
    r"|(?:beats|revolutions) per minute|miles per hour|feet per second"
    r"|(?:degrees? |deg\.? )(?:celsius|fahrenheit|kelvin|c\b|f\b)|° ?[CF]?|[%$€£¥]|US\$)"
)
# A currency, the number in digits or words, its unit, and up to six words behind it.
_NUMBER = re.compile(
    r"(?:(?P<prefix>US\$|[$€£¥]) ?)?"
    rf"(?:(?P<digits>{_DIGITS})(?!\d|[:,./]\d)(?: out of (?P<most>\d+))?"
    rf"|(?P<minus>(?:minus|negative) )?(?:a (?=hundred|thousand))?"
    rf"(?P<spelled>(?:{_ENGLISH})(?:(?:[- ]| and )(?:{_ENGLISH}))*)(?![\w])"
    rf"|(?P<alone>{_ALONE})(?![\w-])"
    rf"|(?P<chinese>[零一二两三四五六七八九十])(?={_MEASURE_WORD}))"
    rf"(?P<half> and a half)?{_MEASURE_WORD}*(?: ?(?P<unit>{_UNIT}))?"
    r"(?P<tail>(?: |-)?(?:[ap]\.m\.(?!\w)|[^\W\d_][\w'’/²^°]*(?:-[\w'’]+)*)"
    r"(?: [^\W\d_][\w'’/-]*){0,5})?",
    re.I,
)
# Behind a number: it is the begin of a range or the first of two.
_RANGE = re.compile(r"\s*(?:-|–|—|~|to|or|/|,|and|bis|à|至|到|x|×|\+|±)\s*(?:\d|[-+]\d)", re.I)
# "How many red cars are there?", "the total number of cars", or in other languages
_ASKED = re.compile(
    r"\b(?:how many|wie viele?|combien d[e'’]|cu[áa]nt[ao]s|quant[aeio]s?|(?:total )?number of"
    r"|count (?:of )?(?:all )?(?:the )?)(?: of (?:the|these|those))?\s+((?:[\w'-]+ ?){1,5})",
    re.I,
)
_HOW = re.compile(r"\bhow (tall|high|long|wide|deep|old|far|fast|heavy|large|big)\b", re.I)
# Then "4/5" is 4 of 5, not 0.8. A heart rate is no rating: to rate is what the question asks for.
_RATED = re.compile(
    r"\b(?:scores?|rating|scale)\b|(?:^|[.,;:!?\n]|\b(?:please|to|and))\s*rate\b", re.I
)
# "in kilometers per hour", "(km/h)"
_ASKED_UNIT = re.compile(
    r"\b(?:in|unit:?|as) (?:the )?([a-z/%°]{1,12}(?: per [a-z]{1,10})?)\b"
    r"|\(([a-z/%°]{1,12}(?: per [a-z]{1,10})?)\)",
    re.I,
)
# The words at which a noun phrase of a question ends.
_STOP_WORDS = """
    is are was were do does did can have has had will would could should in on at of that
    which who the there from by with for to during per visible seen present appear appears
    you sind ist im y dans sur est hay en no na são é ci sono nel di de"""
_STOP = frozenset(_STOP_WORDS.split())
_BESIDE_COUNTS = {"altogether", "of", "them", "times", "time", "all", "one"}
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.I)
_BEHIND = re.compile(r"[ -]?((?:[^\W\d_]|[/²^°])+)")
_IN_TOTAL = re.compile(r" in (?:total|all)\Z", re.I)
# With these the number is part of a statement, of a larger number, or not exact.
_NO_VALUE_WORDS = """
    is are was were be been has have had can could will would do does did that which who or
    and to plus more less fewer dozen million so but in on at from by with the an this these"""
_NO_VALUE = frozenset(_NO_VALUE_WORDS.split())


def _table() -> dict[str, tuple[str, Decimal]]:
    """Return name -> (the first unit of its kind, how many of that one it is)."""
    known = {}
    for kind in _TABLE.split("|"):
        base = kind.split()[0]
        for entry in kind.split(";"):
            names, _, factor = entry.partition(":")
            for name in names.split():
                unit = (base, Decimal(factor.strip()))
                known[name.replace("_", " ")] = unit
                if len(name) > 2 and name.isalpha() and name.isascii():
                    known[f"{name}s"] = unit
    return known


_UNITS = _table()


def asked_for(question: str) -> str:
    """Return the unit or the noun that a question asks a number of, else an empty string."""
    asked = _ASKED.search(question)
    if asked:
        said = asked[1].split()
        stops = [number for number, word in enumerate(said) if word.lower() in _STOP]
        said = said[: min(stops, default=len(said))]
        plurals = [word for word in said if singular(word) != word.lower()]
        noun = (plurals or said[-1:] or [""])[0]
        if noun:
            return _unit(noun) or singular(noun)
    for match in _ASKED_UNIT.finditer(question):
        unit = _unit(match[1] or match[2])
        if unit:
            return unit
    return "score" if _RATED.search(question) else ""


def _unit(word: str) -> str:
    """Return the name by which a unit is compared; empty for what is none."""
    word = word.strip(" .-").lower()
    degrees = _DEGREES.fullmatch(word)
    if degrees:
        if degrees[1]:
            return "°c"
        return "°f" if degrees[2] else "°k"
    return word if word in _UNITS else ""


class Numbers(Vocabulary):
    """Numbers as "3 m", "2 car" or "3". Words that the question has itself add nothing to the
    number; every other word makes it another value."""

    def __init__(self, question: str):
        self.asked = asked_for(question)
        self.counts_things = bool(self.asked) and not _unit(self.asked)
        self.is_ascii = question.isascii()
        counted = _ASKED.search(question)
        self.known = set(_BESIDE_COUNTS)
        for word in re.findall(r"[^\W\d_]+", counted[1].lower()) if counted else ():
            if word in _STOP:
                break
            self.known.add(singular(word))
        if self.asked == "time":  # "How often does it blink?": 3 blinks
            self.known |= {singular(word) for word in re.findall(r"[^\W\d_]+", question.lower())}
        measured = _HOW.search(question)
        if measured:
            self.known.add(measured[1].lower())

    def one_of(self, answers: list[str]) -> str | None:
        """Return the one answer that all are, or None: a number with its unit and without are one,
        the one with it."""
        longest = max(answers, key=len)
        same = all(
            answer == longest or same_number(answer, longest, 0) or same_number(longest, answer, 0)
            for answer in answers
        )
        return longest if same else None

    def begin(self, text: str) -> tuple[str, int] | None:
        match = _NUMBER.match(text)
        if match is None:
            return None
        value = self._value(match)
        end, noun = self._counted(match, text)
        if value is None or noun is None:
            return None
        if not BOUNDARY.match(text, end) or _RANGE.match(text, end):
            return None
        return f"{value.normalize() + 0:f} {noun}".rstrip(), end

    def inside(self, text: str, at: int) -> tuple[str, int] | None:
        """A number with its unit; what it counts stands behind it as a word of the question."""
        match = _NUMBER.match(text, at)
        value = self._value(match) if match else None
        if value is None:
            return None
        end = match.end("unit") if match["unit"] else match.start("tail")
        if match["tail"] is None:
            end = match.end()
        named = match["unit"] or match["prefix"] or ""
        following = _BEHIND.match(text, end)
        if following and not named and _unit(following[1]):
            named, end = following[1], following.end()
        elif following and following[1].lower() in ("am", "pm", "times"):
            named = "" if following[1] == "times" else following[1]
            end = following.end()
        elif text[end : end + 1].isalnum():  # "12th"
            return f"{value} {text[end:]}", end
        return f"{value.normalize() + 0:f} {_unit(named) or named.lower()}".rstrip(), end

    def counts_another(self, text: str) -> bool:
        """Return whether a text begins with a number of something that the question does not
        count."""
        match = _NUMBER.match(text)
        noun = _BEHIND.match(text, match.start("tail")) if match and match["tail"] else None
        return (
            noun is not None
            and not _unit(noun[1])
            and noun[1].lower() not in _NO_VALUE
            and singular(noun[1]) not in self.known
        )

    def _value(self, match: re.Match) -> Decimal | None:
        if match["spelled"]:
            value = _spelled(match["spelled"])
            value = -value if value is not None and match["minus"] else value
        elif match["alone"]:
            value = Decimal(_LONE[match["alone"].lower()])
        elif match["chinese"]:
            value = Decimal(_CHINESE[match["chinese"]])
        else:
            written = re.sub(r",(?=\d{1,2}$)", ".", match["digits"])  # a decimal comma
            written = re.sub("(?i)(?:minus|negative) |−", "-", written)
            over, _, under = re.sub("[, ]", "", written).replace("⁄", "/").partition("/")
            value = Decimal(over)
            if under.strip("0") and self.asked != "score":
                value /= Decimal(under)
            elif match["most"] and self.asked != "score":
                return None
        if value is not None and match["half"]:
            value += Decimal("0.5")
        return value

    def _counted(self, match: re.Match, text: str) -> tuple[int, str | None]:
        """Return where the number ends with the words that belong to it, and its unit or noun:
        empty when the question has all of them, None when they are no name."""
        named = match["unit"] or match["prefix"]
        start = match.end("unit") if match["unit"] else match.start("tail")
        if match["tail"] is None:
            return match.end(), (_unit(named) or named.lower()) if named else ""
        reason = re.search(r"\s(?:because|since|as)\b", match["tail"])
        end = match.start("tail") + reason.start() if reason else match.end("tail")
        said = _IN_TOTAL.sub("", text[start:end]).strip(" -").replace(".", "").split()
        if _ORDINAL.match(text, start) or _NO_VALUE.intersection(word.lower() for word in said):
            return end, None
        for count in (3, 2, 1):
            unit = _unit(" ".join(said[:count])) if len(said) >= count and not named else ""
            if unit:
                named = unit
                said = said[count:]
                break
        if self.is_ascii and re.search(r"[\u2e80-\uffff]", " ".join(said)):
            return end, None  # what it counts cannot be compared with the question
        others = [singular(word) for word in said if singular(word) not in self.known]
        if named and not others:
            return end, _unit(named) or named.lower()
        return end, " ".join([*([named] if named else []), *others])


numbers_vocabulary = lru_cache(maxsize=4096)(Numbers)


def _spelled(words: str) -> Decimal | None:
    """Return the number that words spell; None for a row of numbers such as "one two"."""
    total = group = 0
    last = 1_000_000
    for word in re.split(r"[- ]+", words.lower()):
        if word == "and":
            continue
        value = _CARDINAL[word]
        if value == 1000:
            total += (group or 1) * value
            group = 0
        elif value == 100:
            if group > 9:
                return None
            group = (group or 1) * value
        elif value >= last or (last < 100 and (last < 20 or value > 9)):
            return None
        else:
            group += value
        last = value
    return Decimal(total + group)


def is_number(text: str) -> bool:
    """Return whether a text is a number and, at most, its unit or a plural noun: "5 pm" says
    more."""
    text = text.strip(" .!~≈:")
    match = _NUMBER.match(text)
    if match is None or text[match.end() :].strip(" .!"):
        return False
    said = (match["tail"] or "").strip(" -")
    is_plural = singular(said) != said.lower() and said.isalpha()
    is_counted = not said or _unit(said) or match["unit"] or is_plural
    return bool(is_counted) and numbers_vocabulary("").whole(text) is not None


def same_number(answer: str, expected: str, tolerance: float) -> bool:
    """Return whether numbers are equal in any unit of a kind, within a relative tolerance; a unit
    or noun that is not said is the one meant."""
    (said, unit), (meant, other) = (_measure(text) for text in (answer, expected))
    if unit and not other and unit not in _BASES:
        return False  # a noun that nothing asks for: 2 trucks are not 2
    if not unit or not other:
        said = Decimal(answer.split()[0])
        meant = Decimal(expected.split()[0])
        other = unit
    return unit == other and abs(said - meant) <= abs(meant) * Decimal(repr(tolerance))


def _measure(number: str) -> tuple[Decimal, str]:
    """Return a number in the first unit of its kind."""
    value, _, unit = number.partition(" ")
    if unit == "°f":
        return round((Decimal(value) - 32) * 5 / 9, 6), "°c"
    if unit == "°k":
        return Decimal(value) - Decimal("273.15"), "°c"
    base, factor = _UNITS.get(unit, (unit, Decimal(1)))
    return Decimal(value) * factor, base


_BASES = {base for base, _ in _UNITS.values()} | {"°c"}
