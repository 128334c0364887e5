"""Numbers with the unit or the noun they count.

Units are a table of our own: `pint` takes 0.3 s and 19 MB to import, reads "20 F" as farad, and
knows neither currencies nor nouns.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from cosmos_reason.answers.claims import Mention
from cosmos_reason.answers.commitment import Reading, Vocabulary, read
from cosmos_reason.answers.words import NUMBER_WORDS, either, stem, stems

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
# Who counts cars when asked for vehicles has counted what was asked.
_KINDS = {
    "vehicle": "car truck bus van suv motorcycle motorbike sedan taxi pickup lorry scooter",
    "person": "pedestrian man woman worker child individual human adult player cyclist boy girl",
    "object": "item thing piece element",
}
_KIND_OF = {
    noun: stem(kind) for kind, nouns in _KINDS.items() for noun in {stem(kind), *stems(nouns)}
}
_ANYTHING = stems("object item thing time number total unit occurrence score") | {"one"}

_WORDS = NUMBER_WORDS | {"single": 1, "dozen": 12, "couple": 2, "pair": 2, "half a dozen": 6}
_WORDS |= {"none": 0, "once": 1, "twice": 2, "thrice": 3}
# ten is the same word in some of these languages as in others; so are one and two
_FOREIGN = """
null ein zwei drei vier fünf sechs sieben acht neun zehn
zéro un deux trois quatre cinq six sept huit neuf dix
cero un dos tres cuatro cinco seis siete ocho nueve diez
zero un due tre quattro cinque sei sette otto nove dieci
zero um dois três quatro cinco seis sete oito nove dez
"""
for _line in _FOREIGN.strip().splitlines():
    _WORDS |= {word: number for number, word in enumerate(_line.split())}
_WORDS |= dict.fromkeys(("eine", "einen", "eins", "une", "una", "uno", "uma"), 1) | {"duas": 2}
_SPELLED = "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True))
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
_NUMBER = re.compile(
    r"(?:(?P<prefix>US\$|[$€£¥]) ?)?"
    rf"(?:(?<![A-Za-zÀ-ÿ0-9_.,:/\\])(?P<digits>{_DIGITS})(?![\d:]|[,./]\d)"
    rf"|(?<![\w-])(?P<minus>(?:minus|negative) )?(?P<spelled>{_SPELLED})(?![\w-])"
    r"(?! (?:is|was|of (?:the|them|wh\w+)|that|which|has|after|by|can)\b)"
    rf"|(?P<chinese>[零一二两三四五六七八九十])(?={_MEASURE_WORD}))"
    rf"(?P<half> and a half)?{_MEASURE_WORD}? ?-?(?P<unit>{_UNIT})?"
    r"(?=(?P<tail>(?:of |more )?[ -]?[^\W\d_][\w'’]*(?:-[^\W\d_][\w'’]*)?"
    r"(?: [^\W\d_][\w'’-]*){0,3})?)",
    re.I,
)
_BESIDES = re.compile(
    r"\b(?:within|in|of|after|at|for|during|over|per|every|last|first|frames?|figure|step"
    r"|until|lane|number|no\.)(?: the| about)? \Z",
    re.I,
)
_BOUND = re.compile(
    r"\b(?:at (?:least|most)|(?:more|less|fewer) than|over|under|up to|minimum of|maximum of)\W*\Z",
    re.I,
)
_OR_MORE = re.compile(r"\+| more\b|(?: [a-z]+)? or (?:more|fewer|less)\b", re.I)
_ENDS = re.compile(r" ?[.(;:]|$")
_NONE_OF = re.compile(r"\b(?:no|zero|not any) ((?:[\w-]+ ){0,2}?[\w-]+)", re.I)
_STOP = re.compile(
    either(
        """is are was were in on at of that which who can visible seen present and or for to with
        from by per crossing moving standing total there here the an? this has have it because but
        so sind ist im y dans sur est hay en no na são é ci sono nel di de near i do does did
        they"""
    ),
    re.I,
)
_ASKED = re.compile(
    r"\b(?:how many|wie viele?|combien d[e'’]|cu[áa]nt[ao]s|quant[aeio]s?|(?:total )?number of"
    r"|count (?:of )?(?:all )?(?:the )?)(?: of (?:the|these|those))?\s+((?:[\w'-]+ ?){1,5})",
    re.I,
)
_RATED = re.compile(r"\b(?:scores?|rat(?:e|ing)|scale)\b", re.I)  # then "4/5" is 4 of 5, not 0.8
_ASKED_UNIT = re.compile(
    r"\b(?:in|unit:?|as) (?:the )?([a-z/%°]{1,12})\b|\(([a-z/%°]{1,10})\)", re.I
)


def _table() -> dict[str, tuple[str, Decimal]]:
    """Name -> (the first unit of its kind, how many of that one is)."""
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


@lru_cache(maxsize=1 << 12)
def asked_for(question: str) -> str:
    """The unit or the noun that a question asks a number of, else empty."""
    asked = _ASKED.search(question)
    if asked:
        said = _before_stop(asked[1].split())
        noun = next((word for word in said if _is_plural(word)), said[-1] if said else "")
        if noun:
            return _unit(noun) or stem(noun)
    for match in _ASKED_UNIT.finditer(question):
        unit = _unit(match[1] or match[2])
        if unit:
            return unit
    return "score" if _RATED.search(question) else ""


def _before_stop(said: list[str]) -> list[str]:
    """The words of a noun phrase, up to the one that ends it."""
    stops = (number for number, word in enumerate(said) if _STOP.fullmatch(word))
    return said[: next(stops, len(said))]


def _is_plural(word: str) -> bool:
    irregular = word in ("people", "men", "women", "children")
    return irregular or (word.endswith("s") and not word.endswith("ss"))


def _unit(word: str) -> str:
    """The name by which a unit is compared; empty for what is none."""
    word = word.strip(" .").lower()
    degrees = _DEGREES.fullmatch(word)
    if degrees:
        if degrees[1]:
            return "°c"
        return "°f" if degrees[2] else "°k"
    return word if word in _UNITS else ""


def _same_kind(noun: str, asked: str) -> bool:
    return noun == asked or _KIND_OF.get(noun) == asked or _KIND_OF.get(asked) == noun


class Numbers(Vocabulary):
    """Numbers with what they count, as "3 m", "2 car" or "3"; those of what was asked before
    others."""

    def __init__(self, asked: str):
        self.asked = asked

    def whole(self, text: str) -> str | None:
        text = text.strip(" .!~≈:")
        match = _NUMBER.match(text)
        if not match or text[_end(match) :].strip(" .!"):
            return None
        return self._written(match)

    def is_all_of(self, text: str) -> bool:
        """Whether a text is a number and, at most, its unit or noun: "5 pm" says more."""
        text = text.strip(" .!~≈:")
        match = _NUMBER.match(text)
        if not self.whole(text):
            return False
        return not (match["tail"] or "").strip(" -") or bool(self._counted(match))

    def leading(self, text: str) -> str | None:
        match = _NUMBER.match(text)
        if match and _ENDS.match(text, _end(match)):
            return self._written(match)
        return None

    def mentions(self, clause: str) -> list[Mention]:
        found = self._none_of(clause)
        beside = []
        for match in _NUMBER.finditer(clause):
            before = clause[max(0, match.start() - 24) : match.start()]
            if _BOUND.search(before) or _OR_MORE.match(clause, match.end()):
                continue
            value = self._written(match)
            is_asked = not self.asked or self._is_asked(match, value)
            mention = Mention(value, *match.span(), is_asked)
            (beside if _BESIDES.search(before) else found).append(mention)
        return sorted(found or beside, key=lambda mention: mention.start)

    def _none_of(self, clause: str) -> list[Mention]:
        """ "No cars" where cars are counted."""
        if not self.asked:
            return []
        found = []
        for match in _NONE_OF.finditer(clause):
            if any(_same_kind(stem(word), self.asked) for word in match[1].split()):
                found.append(Mention(f"0 {self.asked}", *match.span()))
        return found

    def _is_asked(self, match: re.Match, value: str) -> bool:
        """A single thing of another name ("1 door") is not what was asked, though its name is not
        known."""
        if value.partition(" ")[2] != self.asked:
            return False
        tail = _before_stop((match["tail"] or "").replace("-", " ").split())
        if not value.startswith("1 ") or not tail or self.asked in _ANYTHING:
            return True
        return any(_same_kind(stem(word), self.asked) for word in tail)

    def _written(self, match: re.Match) -> str:
        number = _value(match, self.asked == "score") + (Decimal("0.5") if match["half"] else 0)
        return f"{number.normalize() + 0:f} {self._counted(match) or self.asked}".rstrip()

    def _counted(self, match: re.Match) -> str:
        """The unit, or the noun, that stands beside the number; empty for an adjective alone ("6
        red")."""
        named = match["unit"] or match["prefix"]
        if named:
            return _unit(named) or named.lower()
        said = _before_stop((match["tail"] or "").strip(" -").split())
        if not said:
            return ""
        unit = _unit(" ".join(said[:2])) or _unit(said[0])
        if unit:
            return unit
        nouns = [stem(word) for word in said]
        if self.asked in _ANYTHING or any(_same_kind(noun, self.asked) for noun in nouns):
            return self.asked
        return _known_noun(said, nouns)


def _known_noun(said: list[str], nouns: list[str]) -> str:
    """The first word that is surely a noun: a plural, or the name of a kind of thing."""
    for word, noun in zip(said, nouns, strict=True):
        is_noun = _is_plural(word.lower()) or noun in _KIND_OF
        if is_noun and noun not in _ANYTHING:
            return noun
    return ""


numbers_vocabulary = lru_cache(maxsize=4096)(Numbers)


def _end(match: re.Match) -> int:
    """Where the number ends with the words that belong to it."""
    return match.end("tail") if match["tail"] else match.end()


def _value(match: re.Match, is_rated: bool) -> Decimal:
    if match["spelled"]:
        value = Decimal(_WORDS[match["spelled"].lower()])
        return -value if match["minus"] else value
    if match["chinese"]:
        return Decimal(_CHINESE[match["chinese"]])
    written = re.sub(r",(?=\d{1,2}$)", ".", match["digits"])  # a decimal comma
    written = re.sub("(?i)(?:minus|negative) |−", "-", written)
    over, _, under = re.sub("[, ]", "", written).replace("⁄", "/").partition("/")
    if is_rated or not under.strip("0"):
        return Decimal(over)
    return Decimal(over) / Decimal(under)


def read_number(response: str, question: str) -> Reading:
    return read(response, numbers_vocabulary(asked_for(question)))


def same_number(answer: str, expected: str, tolerance: float) -> bool:
    """Equal in any unit of a kind, within a relative tolerance; a unit that is not said is the one
    meant."""
    (said, unit), (meant, other) = (_measure(text) for text in (answer, expected))
    if not unit or not other:
        said = Decimal(answer.split()[0])
        meant = Decimal(expected.split()[0])
        other = unit
    return unit == other and abs(said - meant) <= abs(meant) * Decimal(repr(tolerance))


def _measure(number: str) -> tuple[Decimal, str]:
    """A number in the first unit of its kind."""
    value, _, unit = number.partition(" ")
    if unit == "°f":
        return round((Decimal(value) - 32) * 5 / 9, 6), "°c"
    if unit == "°k":
        return Decimal(value) - Decimal("273.15"), "°c"
    base, factor = _UNITS.get(unit, (unit, Decimal(1)))
    return Decimal(value) * factor, base
