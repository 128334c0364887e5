"""Where a response commits itself, as references/cosmos-reason-answers.md says: that page is the
specification of this module, and the sets that test it are judged from the page alone.

A response commits in few forms: what it encloses, an answer phrase, the answer alone, a leading
yes or no. No statement is interpreted, since words hold meaning in more ways than rules can list
("It is unsafe to proceed") and a policy that is paid by this reader would learn to write such
words. What an answer looks like (a letter, a label, a number) is the business of a `Vocabulary`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from cosmos_reason.answers.choices import (
    LETTER,
    Directions,
    Labels,
    Options,
    Truths,
    Vocabulary,
)
from cosmos_reason.answers.quantities import Numbers
from cosmos_reason.answers.response import (
    Enclosed,
    enclosures,
    outside_thinking,
    plain,
    sentences,
    shortened,
)
from cosmos_reason.answers.restated import restated

LONGEST_LEAD = 160  # characters
_BOX = "□"  # stands in its sentence for a boxed answer
UNREAD = "unread"
AMID = "amid"  # a phrase within a clause: it commits to nothing, but may contradict


class Reading(NamedTuple):
    """What a response commits to (None: to nothing), which form says so or what undid it, and the
    words it was read from."""

    answer: str | None
    rule: str
    words: str


class Commitment(NamedTuple):
    """One answer in a sentence, of which `last` is the end. `is_void` says that the sentence asks,
    supposes, reports or denies it, so that it never was one, `is_open` that the sentence leaves it
    open or turns from it."""

    value: str
    form: str
    last: int
    is_void: bool
    is_open: bool


def _any(phrases: str) -> str:
    """Return a pattern of any of the phrases listed; an underscore stands for a space, and words
    end where they end. Chinese phrases, which have no such ends, are listed apart."""
    by_letter = defaultdict(list)  # re tries one alternative after the other
    for phrase in phrases.split():
        by_letter[phrase[0]].append(phrase[1:].replace("_", " ").replace("'", "['’]"))
    listed = "|".join(f"{letter}(?:{'|'.join(ends)})" for letter, ends in by_letter.items())
    return rf"\b(?:{listed})(?![a-z'’])"


# -- the forms, in the order of the page (what is enclosed: response.py) --

# An answer phrase: "the correct answer is", "total:", "I choose", in nine languages.
_KINDS = (
    r"(?:(?:the|my|our|your|this|only|final|correct|right|best|most|likely|appropriate|suitable|short"
    r"|selected|chosen|corrected|revised|updated|new|actual|overall) )*"
)
_NOUN = (
    r"(?:answer|option|choice|letter|label|class|category|verdict|result|conclusion|prediction"
    r"|selection|pick|response|output|ans|statement|classification|decision|diagnosis"
    r"|bounding box|time (?:range|span|interval))"
    r"(?: (?:to|for) (?:the|this|your) question)?"
)
_IS = r"(?:is|are|was|(?:would|should|must|will|has to|seems to|appears to) be)"
_MEASURE = (
    r"(?:final(?: answer)?"
    r"|(?:score|rating|count|direction|distance|(?P<time>time)|(?:total )?number)"
    r"(?: (?:of|between|from|to) [\w ]{1,60}?)?|(?:in )?total)"
)
_PHRASE = re.compile(
    rf"(?:\b{_KINDS}{_NOUN} ?(?:{_IS}\b ?:?|[:=→⇒]|[-=]>| [-–] )"
    rf"|\b{_KINDS}{_MEASURE} ?(?:is\b|[:=])"
    r"|\bI(?:['’]d| would| will|['’]ll)? (?:choose|chose|pick|picked|select|selected|say|go with"
    r"|went with|answer|rate (?:it|this)(?: as| at)?|give (?:it|this)(?: an?)?"
    r"|classify (?:it|this)(?: video| clip| scene)? as)"
    r"(?: that)?(?! that)\b ?:?"
    r"|\b(?:this|that|which|it|the (?:video|clip|scene|footage|description)) (?:best |clearly )?"
    r"(?:corresponds to|matches|points to|fits)(?= (?:option|choice|answer|statement)\b)"
    r"|\b(?:happens|occurs|takes place)(?= (?:in|at|from|between|during)\b)"
    r"|(?:最终|正确)*(?:答案|选项)(?:应?该?(?:是|为|选)|:|】):?|我?应?该?选择?:?(?!项)"
    r"|正解(?:は|:)|答えは|정?답(?:은|:)|\b(?:правильный |верный )?ответ ?[:—-]|\bantwort:"
    r"|\bđáp án(?: đúng)?(?: là\b| ?:)|\bjawaban(?:nya)?(?: yang (?:benar|tepat))?(?: adalah\b| ?:)"
    r"|\b(?:poprawna |prawidłowa )?odpowiedź(?: to\b| ?:)"
    r"|\b(?:die )?(?:richtige |korrekte )?antwort (?:ist|lautet)\b"
    r"|\b(?:réponse(?: finale)?|respuesta|risposta|resposta) ?:"
    r"|\bla (?:bonne )?réponse (?:correcte )?est\b"
    r"|\bla (?:respuesta|opción) (?:correcta )?es\b(?: la\b)?"
    r"|\bla risposta (?:corretta )?è\b(?: la\b)?|\ba resposta (?:correta )?é\b(?: a\b)?)[ :]*",
    re.I,
)
# Every phrase has one of these in it. Without one the many ways to begin a phrase need not be tried
# at each letter; where small letters are looked for, the search jumps to their first ones.
_IN_PHRASES = re.compile(
    "ans|opti|choi|choos|chos|letter|label|class|catego|verdict|result|conclus|predict|select|pick"
    "|respon|output|statement|decision|diagnosis|corresponds to|matches|points to|fits"
    "|rate |give |jawaban"
    "|bounding|time |final|score|rating|count|direction|distance|number|total|say"
    "|go with|went with|happens|occurs|takes place|antwort|risposta|resposta|respuesta"
)
# "B is the answer", "C fits best"; looked for where a verb and a word of praise are.
_IS_THE_ANSWER = re.compile(
    r"[)\].]? (?:is|was|would be|must be|should be) (?:the )?(?:(?:most )?(?:correct|right|best"
    r"|appropriate|suitable|likely|accurate|final) )*(?:answer|option|choice|statement|one)\b"
    r"(?! (?:that|which|who|to avoid)\b)"
    r"|[)\].]? (?:(?:is|must be) (?:correct|right)|(?:is|seems|appears|looks)(?: to be)? (?:the )?"
    r"(?:most (?:likely|plausible|accurate|appropriate|suitable)|correct|right|best)"
    r"(?: (?:answer|option|choice|statement|one))?|(?:fits|matches)(?: best"
    r"| the (?:video|clip|scene|footage|description)(?: best)?))"
    r"(?=\W*(?:$|[\n.;,]|because|since|as\b))",
    re.I,
)
_MAY_BE_THE_ANSWER = re.compile(" (?:is|be|was|seems|appears|looks|fits|matches) ")
_CALLED_ANSWER = re.compile(
    "answer|option|choice|statement|one|correct|right|best|likely|plausible|accurate|appropriate"
    "|suitable|fits|matches"
)
# Words that may stand before a phrase or a bare answer without being a claim of their own.
_LEADING_WORDS = """
    so but then therefore thus hence and finally overall clearly definitely certainly surely sure
    of_course okay ok well probably likely most_likely obviously unfortunately exactly in_conclusion
    in_summary in_short short_answer final_answer final i_think_that i_think i_believe_that
    i_believe i_conclude_that i_would_say i'd_say we_can_conclude_that i_can_conclude_that
    i_can_confirm_that i_can_say_that i_can_see_that this_means_that this_means which_means_that
    which_means it_is_clear_that it_is it's it_was that_is that's this_is they_are it_must_be
    it_has_to_be it_should_be it_would_be that_would_be here_is here's to_answer_the_question
    to_answer_your_question also donc alors entonces quindi"""
_SEEN_IN = (
    r"\b(?:based on|looking at|according to|from|in) (?:the|this)"
    r" (?:video|clip|images?|frames?|footage|scene|picture)\b"
)
_CONSIDERED = (
    r"\b(?:after|upon|on|given|considering|among|of) (?:[\w'-]+ ){0,4}"
    r"(?:consideration|analysis|inspection|review|reflection|viewing|options|choices|evidence|four"
    r"|video|clip)\b"
)
_LEAD = (
    rf"(?:(?:{_any(_LEADING_WORDS)}|{_SEEN_IN}|{_CONSIDERED}|所以|因此|故|我认为|应该是|따라서|그러므로"
    r"|したがって|よって)[\s,:!.、]*)"
)
_LEADS = re.compile(rf"(?:[-*•>→=✅✔✓☑]+\s+)?{_LEAD}*", re.I)
_CLAUSE_START = re.compile(
    rf"(?:^|[,:;—–，：。)]|\s-)[\s(\[【>*•✅✔✓☑-]*(?:\d+[.)] )?{_LEAD}*\Z", re.I
)
# A bare answer: what "so" begins, in a sentence of its own or in one that gave the reason.
_CONCLUDED = re.compile(r"\s*(?:so|therefore|thus|hence|所以|因此)\b[\s,:]*", re.I)
_CONCLUDED_AMID = re.compile(
    r"[,;—–] ?(?:so|therefore|thus|hence|which means)\b"
    r"(?= (?:it|that|this|the|yes|no|[(\[]?[A-Z]\b))",
    re.I,
)
_BARE_END = re.compile(
    r"[\s)\]]*(?:\Z|[.!;\n。！；]|,? *(?:because|since|as)\b"
    r"|,? *I (?:think|believe)\W*(?:\Z|\n|because))"
)
_IT_IS = re.compile(r" it is(?=\W*\Z)")
_EXPLAINED = re.compile(r" [-–—] | ?[:(—]")
_COPULA = re.compile(r" ?(?:です|でした|である|입니다)(?=\W|\Z)")  # it says no more than "is"
# Items that begin with different letters list the options.
_ITEM = re.compile(
    r"(?:\A|\n|[.;:!?] |, (?=[A-H][:.)])|。)[-*•| ]*[(\[]?(?:option |选项 ?)?([A-H])[.):\]]"
    r"(?=\s|$|(?<=:)[^\x00-\x7f])",
    re.I,
)

_LETTER_LAST = re.compile(r"(?<![\w'’])([A-Za-z])[.)\]:]*\Z")

# -- what undoes a commitment, in the order of the page --

# What stands behind a reason gives the reason, whatever it denies.
_BECAUSE = re.compile(r"\b(?:because|since|as)\b", re.I)
# Question, condition, report; what "I say" is no report.
_QUESTION = re.compile(r"[?？]")
_CONDITION = re.compile(
    _any("if unless whether suppose supposing assume assuming provided_that hypothetically")
    + "|如果",
    re.I,
)
_REPORT = re.compile(
    _any(
        """say says said they_claim claims claimed told tells ask asks asked think thinks thought
        argue argues argued suggest suggests suggested believe believes state states stated
        wrote writes insist insists insisted rumor rumour allegedly supposedly"""
    )
    + r"|\baccording to (?!(?:the|this) (?:video|clip|image|frame|footage|scene|picture))"
    r"(?:\w+ ){0,2}\w+"
    r"|有人(?:说|认为)|他说",
    re.I,
)
_OWN_WORDS = re.compile(
    r"\bI(?:['’]d| would| will|['’]ll| do not| don['’]t)? (?:still )?"
    r"(?:think|thought|believe|say|said)\b",
    re.I,
)
# Openness.
_OPENING = re.compile(
    _any("maybe perhaps possibly might may could either guess guessing uncertain unclear unsure")
    + r"|\bnot (?:\w+ )?sure\b|\bcan(?:not|['’]?t) (?:tell|say|determine|be determined)\b"
    r"|\b(?:is|are|be) (?:also |just as )?(?:possible|plausible)\b|可能|也许|或者",
    re.I,
)
# Denial: before the answer, right behind it, or in a later sentence.
_NOT = re.compile(r"\b(?:not|no|never|wrong|incorrect|false)\b|n['’]t\b", re.I)
_NOT_BEFORE = re.compile(
    r"\b(?:not (?:true|correct|right|the case)|false|wrong|incorrect|untrue|a lie|denies|denied)"
    r"\W*(?:that|to say)?\W*\Z|(?:\b(?:not|never|cannot|doubt|deny)\b|n['’]t)[^,:;]*\Z",
    re.I,
)
# Where "wrong" ends what is said, and is not a word of something else: "wrong-way driving".
_SAID = r"\s*(?:\Z|[^\w\s-]|-\s|(?:because|since|as)\b)"
_ITS_OWN = r"[\s\W]*(?:(?:it|this|that|which) )?"
_DENIED_AFTER = re.compile(
    rf"{_ITS_OWN}(?:(?:is|was|are) )?(?-i:the |a )?(?:wrong|incorrect|false|impossible|unlikely"
    r"|excluded|eliminated|ruled out|not (?:possible|correct|right|true|likely|the answer|the)"
    r"|no(?=\W*(?:$|[,.;\n])))\b(?!-\w)|[\s\W]*[✗✘❌×✖]"
    rf"|{_ITS_OWN}(?:can be (?:excluded|ruled out)|can(?:not|['’]t) be (?:right|correct|true))\b"
    rf"|{_ITS_OWN}(?:is|was|are)?(?:n['’]t| not) (?:the |a )?(?:correct|right|true|possible|answer"
    r"|likely)\b|[\s\W]*(?:不对|不正确|错)",
    re.I,
)
# "B is wrong", "B wrong." speak of B; "A wrong turn" and "No incorrect part" of something else.
_IS_DENIED = re.compile(r"\b(?:(?:is|was|are)(?:n['’]t)?|ruled out|be)\b|[✗✘❌×✖对确错]\Z", re.I)
_ENDS = re.compile(_SAID)
# Before what is enclosed, which may stand beside a statement of anything, such a word reaches it
# only over words like these: "I do not think that it is", "maybe the answer is".
_BETWEEN = (
    r"(?:be|is|was|would|it|it['’]s|that|this|to|the|an|(?-i:a)|think|believe|say|choose|pick|select"
    r"|go with|(?:(?:correct|right|final|best) )?(?:answer|option|choice|letter)"
    r"|(?:true|correct|right|clear|certain|the case)(?= (?:that|to)\b)"
    r"|well|also|just|even|not|but|so|me|us|him|her|them|\w+ly)(?![\w'’])"
)
# A mark ends what "not" denies: "It is not: <answer>no</answer>".
_NOT_ENCLOSED = re.compile(
    r"(?:\b(?:not|never|cannot|doubt|deny|denies|denied|reject|exclude|rule out|hardly|unlikely"
    r"|no longer|(?:any|every)thing (?:but|except)|instead of|rather than|opposite of|far from"
    r"|(?:false|wrong|incorrect|untrue|a lie) (?:that|to say|answer|option|choice))|n['’]t)"
    rf"(?: {_BETWEEN}){{0,9}}[ (\[{{]*\Z"
    r"|\b(?:answer|option|choice) (?:is|was)(?: not|n['’]t)\W*\Z"
    r"|\A\W*(?:(?:(?:it|this|that)(?:['’]s| is) )?(?:wrong|incorrect|not (?:true|correct|right))"
    r"|(?:it|this|that) isn['’]t (?:true|correct|right))\W*\Z",
    re.I,
)
_OPEN_ENCLOSED = re.compile(rf"(?:{_OPENING.pattern})(?:\W+{_BETWEEN}){{0,9}}\W*\Z", re.I)
# Behind it, too: "<answer>B</answer> (the car may stop)" leaves nothing open.
_OPEN_BEHIND = re.compile(
    rf"\W*(?:(?:{_BETWEEN}|I|I['’]m|am|my|best|most|quite|very|only)\W+){{0,9}}"
    rf"(?:{_OPENING.pattern})",
    re.I,
)
_REPORT_ENCLOSED = re.compile(rf"(?:{_REPORT.pattern})(?:\W*{_BETWEEN}){{0,9}}\W*\Z", re.I)
# What stands before it gave the reason, and denies or leaves open something else.
_SO = re.compile(r" (?:so(?= the\b)|therefore|thus|hence)\b", re.I)
_NEXT_SENTENCE = re.compile(r"\s+[A-Z]")  # behind an enclosure, which needs no mark to end one
# "It's yes that I can exclude": what the clause says of it may be anything.
_IT_IS_X = re.compile(r"\b(?:it(?:['’]s| is| was)|this is|that is)\s*\Z", re.I)
_THAT_ONE = re.compile(r"\W*(?:that|which) (?:i|we|you|one|he|she|they)\b", re.I)
_WRONG_LATER = re.compile(
    r"\W*(?:(?:that|this|it|which|(?:the|my|that|this) (?:above )?answer(?: above)?)"
    r"(?:['’]s| is| was)? (?:wrong|incorrect|false|untrue|not (?:true|correct|right))\b(?!-\w)"
    r"|not (?:true|correct|right)\b(?!-\w)|(?:wrong|incorrect|false|untrue)(?:"
    rf"{_SAID}| (?:{_NOUN}|guess|reply|one|again|here|it|I|that|this|to|of|in|for|at|by|\w+ly)\b)"
    r"|(?:that|this|it)(?: is|['’]s)? ?(?:n['’]t|not) (?:the )?(?:true|correct|right|answer))",
    re.I,
)
# A turn behind the answer, or one that opens a later sentence.
_OR = re.compile(r"\W*(?:or|and|/|&|und|oder|ou|et|或|和|not(?=\W*\Z))(?:\W|$)", re.I)
_ASIDE = re.compile(r"\A\W*\bI (?:think|believe)\b", re.I)
_TURNING = "but however although though except yet aber mais pero"
_TURN = re.compile(_any(_TURNING) + "|但|然而|不过", re.I)
_TURN_FIRST = re.compile(r"\W*(?:" + _any(f"{_TURNING} on_the_other_hand or") + "|但|不过)", re.I)
_CORRECTION = re.compile(
    r"(?:^\s*|[.,;:!?…—–\n(-]\s*|\bno,? )(?:oh,? |hm+,? |or |but )?(?:"
    r"wait\b(?=\s*(?:[,.!:…—–-]|no\b|that\b|\Z))"
    r"|(?:actually|correction|sorry|corrected|hold on)\b)|"
    + _any(
        """on_second_thought on_second_thoughts or_rather scratch_that i_take_it_back
        i_take_that_back i_was_wrong my_mistake let_me_reconsider let_me_recheck let_me_re-check
        let_me_rethink let_me_check_again let_me_look_again just_kidding"""
    )
    + "|等等|不对",
    re.I,
)
_NO_FIRST = re.compile(
    r"\W*(?:(?:no|nope)\b(?=\s*(?:[^\w\s]|\Z)|\s+(?:it|that|this|wait)\b)"
    r"|(?:(?:it|that|this) (?:is not|isn['’]t)|not really)\W*\Z)",
    re.I,
)
_YES_OR_NO = re.compile(r"(?:yes|no)\b", re.I)
# Another answer kept open later.
_NAMES_ANSWER = re.compile(r"\b(?:answer|option|choice|yes|no)\b|(?<![\w'’])[B-HJ-Z](?![\w'’])")
# A refusal, or an offer in the place of an answer.
REFUSAL = re.compile(
    r"\bN/A\b|\b(?:can(?:not|['’]?t)|could(?: not|n['’]t)|unable to|impossible to)(?: \w+ly)?"
    r" (?:see|view|watch|access|tell|determine|answer|say|know|decide|identify|read|make out"
    r"|be (?:said|seen|read|determined))\b|\bno (?:idea|clue|comment|answer|video|information)\b"
    r"|\b(?:not |un)(?:sure|clear|readable)\b|\bI (?:do not|don['’]t) (?:have|know)\b"
    r"|\b(?:uncertain|unknown|sorry|je ne sais)\b|\bnone of the (?:above|options)\b"
    r"|\bn[ãa]o (?:consigo|sei)\b|\bno (?:puedo|sé)\b|\bich (?:kann|weiß)(?: \w+){0,4} nicht\b"
    r"|无法|不能确定|不知道|不确定|看不",
    re.I,
)
_OFFER = re.compile(
    r"\bI(?: can|['’]ll| will| would be happy to|['’]d be happy to)(?: certainly)? (?:help|assist)"
    r"(?: you)? with (?:that|this|it)\b|\bplease (?:upload|provide|share|send|attach)\b"
    r"|\b(?:let me|I['’]ll|I will) (?:first |now )?(?:analy[sz]e|examine|review|watch|look at)\b",
    re.I,
)


@lru_cache(maxsize=1 << 14)  # the answers of an evaluation repeat
def read(response: str, vocabulary: Vocabulary, question: str = "") -> Reading:
    """Return the one answer that a response commits to. With its question, one said again with an
    answer in it counts where nothing else does."""
    said = shortened(outside_thinking(response))
    text = _plain(said)
    if not text:
        return Reading(None, "no response", "")
    whole = vocabulary.whole(text) or vocabulary.alone(text)
    if whole:
        return Reading(whole, "bare", text)
    found = enclosures(said)
    if not found:
        reading = _read_plain(text, vocabulary)
        is_open = question and reading.rule == UNREAD
        return _read_restated(text, vocabulary, question) if is_open else reading
    enclosed = [_read_enclosed(one, vocabulary, question) for one in found]
    beside = said
    for one in reversed(found):
        beside = f"{beside[: one.start]}\n{beside[one.end :]}"
    outside = _read_plain(_plain(beside), vocabulary)
    for reading in enclosed:
        if reading.answer is None:
            return reading
    # The same answer enclosed again stands, whatever was said of it before.
    if _is_taken_back(found[-1], said, enclosed[-1].answer, vocabulary):
        return Reading(None, "taken back", text)
    spoken = enclosed if outside.answer is None else [*enclosed, outside]
    one_answer = vocabulary.one_of([one.answer for one in spoken])
    if outside.rule == "several answers" or one_answer is None:
        return Reading(None, "several answers", text)
    return enclosed[-1]._replace(answer=one_answer)


def _read_restated(text: str, vocabulary: Vocabulary, question: str) -> Reading:
    said = restated(text, question, vocabulary)
    if said is None:
        return Reading(None, UNREAD, text)
    answer, (first, last) = said
    # What stands beside a yes or no in other words names neither, so that any doubt is about it.
    beside = f"{text[:first]}\n{text[last:]}" if isinstance(vocabulary, Truths) else ""
    is_doubted = takes_back(beside) or _REPORT.search(beside)
    if is_doubted or _is_undone_later(text[last:], answer, vocabulary):
        return Reading(None, "taken back", text)
    return Reading(answer, "restated", text[first:last])


def _plain(text: str) -> str:
    text = plain(text)
    return text if text.isascii() else _COPULA.sub("", text)


def _is_taken_back(one: Enclosed, said: str, value: str, vocabulary: Vocabulary) -> bool:
    """Return whether the sentence around an enclosed answer denies it or leaves it open, or what
    follows takes it back. Around a field of JSON is what stands around its object."""
    start, end = one.start, one.end
    if "field" in one.mark:
        start, end = max(said.rfind("{", 0, start), 0), said.find("}", end) + 1 or len(said)
    text = plain(f"{said[:start]}{_BOX}{said[end:]}")
    for first, last in sentences(text):
        at = text.find(_BOX, first, last)
        if at >= 0:
            before, after = text[first:at], text[at + len(_BOX) : last]
            later = text[at + len(_BOX) :]
            return _is_governed(before, after) or _is_undone_later(later, value, vocabulary)
    return False


def _is_governed(before: str, after: str) -> bool:
    """Return whether the words of its sentence mean an enclosed answer, and ask, suppose, report,
    deny it or leave it open. "I see no truck <answer>no</answer>" says something else."""
    is_undone = (
        _NOT_ENCLOSED.search(before)
        or _OPEN_ENCLOSED.search(before)
        or _REPORT_ENCLOSED.search(_OWN_WORDS.sub("", before))
    )
    if any(
        not before[_LEADS.match(before, phrase.end()).end() :].strip(" ([{")
        for phrase in _phrases_in(before)
    ):
        # In an answer phrase it is part of the sentence, as an answer that nothing encloses is, but
        # for the reason that it gave: "It does not stop so the answer is".
        said = _SO.split(before)[-1]
        is_undone = is_undone or _is_void(said, len(said), len(said)) or _OPENING.search(said)
    if is_undone or _CONDITION.search(before) or _says_wrong(after, 0):
        return True
    behind = "" if _NEXT_SENTENCE.match(after) else after
    if _IT_IS_X.search(before) and _THAT_ONE.match(behind):
        return True
    if _OPEN_BEHIND.match(behind):
        return True
    return _QUESTION.match(after.rstrip()[-1:]) is not None or _is_void(behind, 0, 0, leads=True)


def phrases(text: str) -> list[str]:
    """Return what the answer phrases of a plain text name, each up to the end of its sentence."""
    found = []
    for first, last in sentences(text):
        sentence = text[first:last]
        for phrase in _phrases_in(sentence):
            named = sentence[phrase.end() :].strip(" .")
            if named and _opens_clause(sentence, phrase.start()):
                found.append(named)
    return found


def _phrases_in(sentence: str) -> list[re.Match]:
    """Return the answer phrases of a sentence, whatever stands before and behind them."""
    # A look for words is quick where small letters are looked for.
    if sentence.isascii() and not _IN_PHRASES.search(sentence.lower()):
        return []
    return list(_PHRASE.finditer(sentence))


def _read_enclosed(one: Enclosed, vocabulary: Vocabulary, question: str) -> Reading:
    """Read what an enclosure holds like a response of its own."""
    if one.content is None or not plain(one.content):
        return Reading(None, "empty enclosure", one.content or "")
    text = one.content
    if one.mark == "\\boxed":
        text = plain(text).replace("^{\\circ}", "°").replace("{", "").replace("}", "")
        text = " ".join(text.replace("\\", " ").split())
    found = read(text, vocabulary, question)
    rule = one.mark if found.rule == "bare" else found.rule
    return Reading(found.answer, rule, one.content)


def _whole_sentence(sentence: str, vocabulary: Vocabulary) -> str | None:
    """Return the answer that a sentence is, behind a lead-in too."""
    rest = sentence[_LEADS.match(sentence).end() :]
    if isinstance(vocabulary, Truths) and not _YES_OR_NO.match(rest):
        rest = ""  # "It is true" may speak of anything
    return vocabulary.whole(sentence) or vocabulary.whole(rest)


@lru_cache(maxsize=1 << 12)  # asked again with its question where it is unread
def _read_plain(text: str, vocabulary: Vocabulary) -> Reading:
    """Read a text without markup and enclosures, sentence by sentence."""
    spans = list(sentences(text))
    last_line = text.rfind("\n") + 1
    items = _ITEM.findall(text.upper()) if isinstance(vocabulary, Options) else ()
    is_review = len(set(items)) > 1
    found: list[tuple[Commitment, int]] = []  # and where its sentence begins
    for number, (first, last) in enumerate(spans):
        sentence = text[first:last]
        # A bare answer, or a leading yes or no, stands first or opens the last line.
        opens = number == 0 or first == last_line
        commitments = _commitments(sentence, vocabulary, opens, is_review)
        if commitments and isinstance(vocabulary, Options) and text.startswith(" ", last):
            # "The answer is A. Turn left is not possible": an option's text goes on
            behind = text[last:].lstrip()
            is_letter = _LETTER_LAST.search(sentence)
            if is_letter and vocabulary.is_continued(is_letter[1].upper(), behind):
                commitments = ()
        found += [(one, first) for one in commitments]
        if number and number == len(spans) - 1 and not (opens or commitments or is_review):
            alone = _whole_sentence(sentence, vocabulary)
            # "The answer is no. Incorrect." and "no? No." deny what stands before.
            before = text[slice(*spans[number - 1])].rstrip("?？ ") if alone else ""
            if alone and not (_WRONG_LATER.match(sentence) or vocabulary.whole(before)):
                found.append(
                    (_committed(alone, "bare", sentence, 0, len(sentence), vocabulary), first)
                )
    if not found:
        return Reading(None, "refusal" if REFUSAL.search(text[:400]) else UNREAD, text)
    meant = [(one, first) for one, first in found if not one.is_void]
    if meant and vocabulary.one_of([one.value for one, _ in meant]) is None:
        return Reading(None, "several answers", text)
    standing = [
        (one, first)
        for one, first in meant
        if not (one.is_open or _is_undone_later(text[first + one.last :], one.value, vocabulary))
    ]
    if not standing:
        return Reading(None, "taken back", text)
    last, first = standing[-1]
    answer = vocabulary.one_of([one.value for one, _ in standing])
    return Reading(answer, last.form, text[first : first + last.last])


@lru_cache(maxsize=1 << 12)  # "The answer is B." ends many responses that begin differently
def _commitments(
    sentence: str, vocabulary: Vocabulary, opens: bool, is_review: bool
) -> tuple[Commitment, ...]:
    """Return the answers of a sentence in every form, whatever is said around them. `opens` says
    that it is the first one or opens the last line, `is_review` that the text lists options."""
    found = []

    def add(value: str, form: str, start: int, end: int, last: int = len(sentence)) -> None:
        found.append(_committed(value, form, sentence[:last], start, end, vocabulary))

    if opens or _CONCLUDED.match(sentence):
        for at in dict.fromkeys((0, _LEADS.match(sentence).end())):
            bare = _bare(sentence, at, vocabulary)
            if bare and not (is_review and _ITEM.match(sentence)):
                # "No." may begin a sentence as an initial does: "No. 5"
                is_cut = isinstance(vocabulary, Truths) and sentence.startswith(". ", bare[3])
                add(*bare, bare[3] + 1 if is_cut else len(sentence))
                break
    amid = _CONCLUDED_AMID.search(sentence)
    if amid:
        value = _whole_sentence(_IT_IS.sub("", sentence[amid.end() + 1 :]), vocabulary)
        if value:
            add(value, "bare", amid.end() + 1, len(sentence))
    for phrase in _phrases_in(sentence):
        if phrase["time"] and isinstance(vocabulary, Numbers) and vocabulary.counts_things:
            continue  # "The time is 3." tells no number of people
        # "The event happens in 3 - 7 s": behind its subject
        is_event = phrase[0].startswith(("happens", "occurs", "takes place"))
        form = "phrase" if is_event or _opens_clause(sentence, phrase.start()) else AMID
        for start in dict.fromkeys((phrase.end(), _LEADS.match(sentence, phrase.end()).end())):
            answer = vocabulary.begin(sentence[start:])
            if answer:
                add(answer[0], form, start, start + answer[1])
                break
    if _MAY_BE_THE_ANSWER.search(sentence) and _CALLED_ANSWER.search(sentence.lower()):
        # "B is the correct answer": the answer opens the sentence or its last clause.
        start = _LEADS.match(sentence).end()
        for verdict in _IS_THE_ANSWER.finditer(sentence):
            head = sentence[start : verdict.start()]
            comma = max(head.rfind(mark) for mark in (", ", ": ", "，"))
            for begun in (start, start + comma + 1):
                value = vocabulary.whole(sentence[begun : verdict.start()])
                if value:
                    add(value, "phrase", begun, verdict.end())
                    break
    return tuple(found)


def _committed(
    value: str, form: str, sentence: str, start: int, end: int, vocabulary: Vocabulary
) -> Commitment:
    """Return the answer at a place of its sentence, with what the sentence makes of it."""
    is_void = _is_void(sentence, start, end, form == "leading verdict")
    before, after = sentence[:start], _ASIDE.sub("", sentence[end:], count=1)
    beside = _BECAUSE.split(after, maxsplit=1)[0]
    is_open = (
        form == AMID
        or any(_OPENING.search(said) for said in (before, beside))
        or any(undoing.search(after) for undoing in (_TURN, _CORRECTION, _OFFER))
        or _OR.match(after) is not None
        or _is_followed_by_another(value, after, vocabulary)
        or _denies(after.lstrip(" .):]"), value, vocabulary)
        or _is_answered_again(after.strip(" .):]"), value, vocabulary)
    )
    return Commitment(value, form, len(sentence), is_void, is_open)


def _opens_clause(sentence: str, at: int) -> bool:
    """Return whether a phrase opens its sentence or a clause of it. Of a long sentence the end is
    looked at: without that a text of one sentence would be read again for each phrase in it."""
    start = max(0, at - LONGEST_LEAD)
    before = f"…{sentence[start:at]}" if start else sentence[:at]
    return _CLAUSE_START.search(before) is not None


def _bare(text: str, at: int, vocabulary: Vocabulary) -> tuple[str, str, int, int] | None:
    """Return the answer at a place with nothing beside it but a reason; more may follow an option's
    letter, yes or no, and behind a dash, a colon or a bracket what denies nothing and names no
    other answer."""
    rest = text[at:]
    if isinstance(vocabulary, Truths):
        leading = vocabulary.leading(rest)
        return (leading[0], "leading verdict", at, at + leading[1]) if leading else None
    answer = vocabulary.begin(rest)
    if answer is None:
        return None
    end = at + answer[1]
    letter = LETTER.match(rest) if isinstance(vocabulary, Options) else None
    if (letter and letter["letter"].upper() == answer[0]) or _BARE_END.match(text, end):
        return answer[0], "bare", at, end
    if isinstance(vocabulary, Labels | Directions) and _EXPLAINED.match(text, end):
        # A colon may begin a list: "Left: clear. Right: blocked."
        is_list = text[end : end + 2].strip().startswith(":")
        behind = text[end:] if is_list else re.split(r"(?<=[.!?]) |\n", text[end:], maxsplit=1)[0]
        denies = _NOT.search(behind) or re.search(r"\b0 ?%", behind)
        if not denies and not vocabulary.names_another(behind, answer[0]):
            return answer[0], "bare", at, end
    return None


def takes_back(beside: str) -> bool:
    """Return whether the words beside an enclosed answer ask, suppose, deny, keep it open or turn
    from it."""
    return bool(beside) and any(
        pattern.search(beside)
        for pattern in (_QUESTION, _CONDITION, _OPENING, _TURN, _CORRECTION, REFUSAL, _NOT)
    )


def _is_void(sentence: str, start: int, end: int, leads: bool = False) -> bool:
    """Return whether a sentence asks, supposes, reports or denies the answer in it. What stands
    behind a yes or no that `leads` denies something else."""
    before, after = sentence[:start], sentence[end:]
    if after.rstrip().endswith(("?", "？")) or after[:2].strip()[:1] == "?":
        return True
    if _CONDITION.search(before) or _CONDITION.search(_BECAUSE.split(after, maxsplit=1)[0]):
        return True
    beside = _BECAUSE.split(_OWN_WORDS.sub("", after), maxsplit=1)[0]
    if _REPORT.search(_OWN_WORDS.sub("", before)) or _REPORT.search(beside[:40]):
        return True
    if _NOT_BEFORE.search(before) or (_IT_IS_X.search(before) and _THAT_ONE.match(after)):
        return True
    return not leads and _DENIED_AFTER.match(after) is not None


def _is_undone_later(later: str, value: str, vocabulary: Vocabulary) -> bool:
    """Return whether what is said after an answer takes it back, or keeps another one open."""
    # Most answers end their response.
    return bool(later) and any(
        _undoes(later[slice(*span)], value, vocabulary) for span in sentences(later)
    )


@lru_cache(maxsize=1 << 12)
def _undoes(sentence: str, value: str, vocabulary: Vocabulary) -> bool:
    """Return whether a later sentence undoes an answer."""
    sentence = sentence.strip()

    def is_another(answer: tuple[str, int] | None) -> bool:
        return answer is not None and vocabulary.one_of([answer[0], value]) is None

    if _OFFER.search(sentence) or _CORRECTION.search(sentence):
        return True
    if _is_answered_again(sentence, value, vocabulary):
        return True
    if _TURN_FIRST.match(sentence) or _WRONG_LATER.match(sentence):
        return True
    if _denies(sentence, value, vocabulary):
        return True
    if isinstance(vocabulary, Truths):
        leading = vocabulary.leading(sentence)
        if is_another(leading):
            return True
        if leading and _is_followed_by_another(value, sentence[leading[1] :], vocabulary):
            return True
    elif _NO_FIRST.match(sentence) or REFUSAL.search(sentence):
        return True
    if not _OPENING.search(sentence):
        return False
    if _NAMES_ANSWER.search(sentence) or REFUSAL.search(sentence):
        return True
    # "It could also be three"
    named = re.finditer(r"\b(?:be|is|maybe|perhaps|possibly)\b ", sentence)
    return any(is_another(vocabulary.begin(sentence[word.end() :])) for word in named)


def _is_answered_again(sentence: str, value: str, vocabulary: Vocabulary) -> bool:
    """Return whether a sentence is another answer and nothing else."""
    if len(sentence) > LONGEST_LEAD:
        return False
    other = _whole_sentence(sentence, vocabulary) or vocabulary.alone(sentence)
    return other is not None and vocabulary.one_of([other, value]) is None


def _denies(sentence: str, value: str, vocabulary: Vocabulary) -> bool:
    """Return whether a sentence says of an answer that it is none: "It is not B", "B is wrong"."""
    for word in _NOT.finditer(sentence):
        denied = vocabulary.begin(sentence[word.end() :].lstrip())
        if denied and denied[0] == value:
            return True
    named = vocabulary.spoken_of(sentence, _LEADS.match(sentence).end())
    return named is not None and named[0] == value and _says_wrong(sentence, named[1])


def _says_wrong(text: str, at: int) -> bool:
    """Return whether words behind a name say that it is no answer, with a verb or alone."""
    found = _DENIED_AFTER.match(text, at)
    return found is not None and bool(_IS_DENIED.search(found[0]) or _ENDS.match(text, found.end()))


def _is_followed_by_another(value: str, after: str, vocabulary: Vocabulary) -> bool:
    """Return whether a second answer stands, as in "A, B", right behind the first."""
    mark = re.match(r"\s*[,/&、](?:\s*(?:and|or|then)\b)?\s*", after)
    if mark is None:
        return False
    rest = after[mark.end() :].strip()
    if isinstance(vocabulary, Numbers) and vocabulary.counts_another(rest):
        return False  # "3 people, two men and a woman"
    for said in (rest, rest.partition(" ")[0]):  # "A, B and C": no mark follows B
        answer = vocabulary.begin(said) if said else None
        if answer:
            return vocabulary.one_of([answer[0], value]) is None
    return False
