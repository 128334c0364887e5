"""A question said again with its answer in it: "There are 4 cars on the left", "Weather: Clear".

Beside the answer only words of the question may stand, in its order, so that whatever denies,
hedges, reports or speaks of something else is no such sentence: what is passed over is a list of
words here, what undoes is not.
"""

from __future__ import annotations

import re
from functools import lru_cache

from cosmos_reason.answers.choices import Options, Truths, Vocabulary
from cosmos_reason.answers.response import sentences
from cosmos_reason.answers.words import stem

LONGEST = 300  # characters of a sentence, or of a question
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SUBJECTS = ("it", "he", "she", "they", "this")
# These add nothing to a question or an answer, wherever they stand.
_FREE_WORDS = """
    a an the is are was were be been being am do does did has have had will there i we
    it he she they this that these those located"""
_FREE = frozenset(_FREE_WORDS.split())
# Words of a question that name nothing which its answer would have to speak of.
_ASKING_WORDS = """
    what which who whom whose when where how many much why way following option options answer
    best describes describe most next likely correct name find give tell inspect identify state
    classify determine choose select locate time question
    video clip scene image picture frame frames footage"""
_ASKING = _FREE | frozenset(_ASKING_WORDS.split())
_MODALS = ("should", "must", "would", "can")
_PREPOSITIONS = ("of", "in", "on", "at", "to", "from", "for", "with", "by", "and", "or")
FIRST = 3  # words of a question, of which its answer has to say one
_IN_PICTURE = (
    r"\b(?:in|from|based on|according to) (?:the|this) (?:video|clip|images?|frames?|footage|scene"
    r"|picture),?|^(?:so|therefore|thus|hence|overall|finally),? "
)
_SEEN = re.compile(
    rf"{_IN_PICTURE}|\b(?:i|we) (?:can )?(?:see|count|counted|observe)\b|\bin (?:total|all)\b"
    r"|\b(?:a|the) total of\b|\b(?:visible|present|shown|seen)$|\bexactly\b|\bfor(?= \d)",
    re.I,
)
# Before a number that ends its sentence: "there are 4", "cars: 4", but not "car 2".
_COUNTS = re.compile(r"(?:\A|\b(?:is|are|was|were)|[:=])\s*\Z")
# A letter of an option: the answer is read by it, or not at all.
_LETTERED = re.compile(r"(?<![\w'’])[A-Z][).:](?=\s|\Z)|(?<![\w'’])[B-HJ-Z](?![\w'’])")
_IS_QUESTION = re.compile(
    r"(?:what|which|who|whom|whose|when|where|how|why|is|are|was|were|do|does|did|has|have|will|can)\b",
    re.I,
)
# A question with one of these is not answered by its own words.
_TURNED = re.compile(
    r"\b(?:not|no|never|without|except|false|incorrect|wrong|least|other than|un\w+ly)\b|n['’]t\b",
    re.I,
)
# The verb that begins a yes/no question, with those that say as much in another tense or number.
_VERBS = ("is are was were", "do does did", "has have had", "can", "will")
_FAMILY = {verb: family.split() for family in _VERBS for verb in family.split()}
_BEING = _VERBS[0].split()
_ARTICLES = ("a", "an", "the", "any")
# A fact of two things, or of one that may be, is no yes; of so many, "not" denies more than asked.
_LEFT_OPEN = re.compile(r"\b(?:or|if|whether|may|might|could)\b", re.I)
_MANY = "all every each both only more most many few at always ever everyone everything"
_QUANTITIES = frozenset(_MANY.split())


def restated(
    text: str, question: str, vocabulary: Vocabulary
) -> tuple[str, tuple[int, int]] | None:
    """Return the answer of a plain text whose first or last sentence says the question again, and
    where that sentence is; None where there is none, or another answer stands anywhere."""
    if not text.isascii():
        return None
    if isinstance(vocabulary, Options) and _LETTERED.search(text):
        return None
    asked = _asked(question)
    if not asked:
        return None
    spans = list(sentences(text))
    if isinstance(vocabulary, Truths):
        asked = _words(_asked_sentence(question))
        if not asked or asked[0] not in _FAMILY:
            return None
        facts = [(_truth(text[slice(*span)], asked), span) for span in spans]
        told = [fact for fact in (facts[0], facts[-1]) if fact[0]]
        if any(_says_else(text[slice(*span)], asked) for truth, span in facts if not truth):
            return None
        return told[0] if told and len({truth for truth, _ in facts if truth}) == 1 else None
    named = [word for word in asked if word not in _ASKING]
    for number in dict.fromkeys((0, len(spans) - 1)):
        first, last = spans[number]
        sentence = text[first:last].strip(" .!-*•")
        if len(sentence) > LONGEST or sentence.endswith("?") or _IS_QUESTION.match(sentence):
            continue
        found = vocabulary.within(_SEEN.sub("", sentence).strip(" ,"))
        if found is None:
            continue
        answer, before, after = found
        if answer.isdigit() and sentence.endswith(answer) and not _COUNTS.search(before):
            continue  # "car 2"
        is_long = len(sentence.split()) - len(f"{before} {after}".split()) > 2
        may_refer = number == 0 and before.split(" ")[0].lower() in _SUBJECTS
        words = _said_again(before, after, asked)
        if words is None:
            continue
        # It speaks of what is asked about when it names one of its first words, or half of all.
        is_half = 2 * len(words.intersection(named)) >= len(set(named)) > 0
        if not (is_long or may_refer or words.intersection(named[:FIRST]) or is_half):
            continue
        rest = [text[start:end] for at, (start, end) in enumerate(spans) if at != number]
        if any(vocabulary.names_another(one, answer) for one in rest):
            return None
        return answer, (first, last)
    return None


def _truth(sentence: str, asked: list[str]) -> str | None:
    """Return yes for a sentence of all words of a yes/no question, in its order and with its verb
    behind the subject; no for one that has "not" behind that verb, or a "no", besides."""
    lowered = sentence.lower()
    # What a word is compared by begins it, so that this tells most sentences at once.
    if len(sentence) > LONGEST or any(
        word.removesuffix("ing") not in lowered for word in asked[1:]
    ):
        return None
    if "?" in sentence or _LEFT_OPEN.search(sentence):
        return None
    said, family = _words(sentence), _FAMILY[asked[0]]
    verb = next((at for at, word in enumerate(said) if word in family and at), None)
    if verb is not None:
        is_denied = said[verb + 1 : verb + 2] == ["not"]
        said = said[:verb] + said[verb + 1 + is_denied :]
        # "The man in the car is" may be cut off.
        if verb == len(said):
            return None
    elif "do" in family:  # "The car stops"
        is_denied = False
    else:
        return None
    if not is_denied and "no" in said[:-1]:
        said.remove("no")
        is_denied = True
    if said != asked[1:] or (is_denied and _QUANTITIES.intersection(asked)):
        return None
    return "no" if is_denied else "yes"


def _says_else(sentence: str, asked: list[str]) -> bool:
    """Return whether a sentence says what the subject of a yes/no question is: "The light is green.
    The light is red." tells no "Is the light green?"."""
    if asked[0] not in _BEING or asked[1:2] == ["there"]:
        return False
    said = _words(sentence)
    verb = next((at for at, word in enumerate(said) if word in _BEING and at), 0)
    subject = set(asked[1:-1]).difference(_PREPOSITIONS)
    if len(asked) == 3:  # Of "Is the worker wearing a hat?" it may be the hat.
        subject.update(_SUBJECTS)
    return not subject.isdisjoint(said[:verb])


def _words(text: str) -> list[str]:
    """Return the words of a yes/no question or of a fact, without articles, "doesn't" as two. Words
    in -ing keep it: a door that is closing is not closed."""
    text = re.sub(rf"(?i){_IN_PICTURE}", "", text.strip())
    text = re.sub(r"(?i)\bcan(?:not|['’]t)\b", "can not", text)
    text = re.sub(r"(?i)\bwon['’]t\b", "will not", text)
    words = _stems(re.sub(r"(?i)n['’]t\b", " not", text), keeps_ing=True)
    return [word for word in words if word not in _ARTICLES]


@lru_cache(maxsize=1 << 12)
def _asked(question: str) -> tuple[str, ...]:
    """Return the words of what a question asks; none of one that its own words may answer
    wrongly."""
    return tuple(_stems(_asked_sentence(question)))


def _asked_sentence(question: str) -> str:
    """Return what a question asks, its options and what it says of the form left out; empty for one
    that its own words may answer wrongly."""
    stem = re.split(r"\n\W?[Aa][.):]|\s\(?A[.):]\s", question, maxsplit=1)[0]
    asking = [one for one in re.split(r"(?<=[.!?])\s+|\n", stem) if one.strip()]
    said = next((one for one in reversed(asking) if one.endswith("?")), (asking or [""])[0])
    head, _, tail = said.partition(": ")
    said = head if len(head.split()) > 2 else tail or head
    if len(said) > LONGEST or _TURNED.search(said) or not said.isascii():
        return ""
    return said


def _stems(text: str, keeps_ing: bool = False) -> list[str]:
    """Return the words of a text as they are compared."""
    found = []
    for word in _WORD.findall(text.lower()):
        word = word.removesuffix("'s").removesuffix("’s")
        if word in _ASKING:
            found.append(word)
            continue
        found.append(stem(word) + ("ing" if keeps_ing and word.endswith("ing") else ""))
    return found


def _said_again(before: str, after: str, asked: tuple[str, ...]) -> set[str] | None:
    """Return the words around an answer, where they are those of the question, in its order."""
    around = f"{before} {after}".strip(" .!")
    if re.search(r"[^\w\s'’,:-]", around):
        return None
    words = _stems(before)
    if words and words[-1] in _PREPOSITIONS and words[-1] in asked:
        del words[-1]  # "drives in the left lane"
    words += _stems(after)
    at = 0
    for word in words:
        if word in _FREE or (word in _MODALS and word in asked):
            continue
        if word not in asked[at:]:
            return None
        at = asked.index(word, at) + 1
    return set(words).difference(_PREPOSITIONS, _MODALS)
