"""What an annotation file holds in any format: samples, the questions that they ask, and the texts
that they train; how people and programs write answers, and the reasoning before them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from cosmos_reason.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from cosmos_reason.spec.prompts import THOUGHT

MEDIA_SUFFIXES = VIDEO_SUFFIXES + IMAGE_SUFFIXES
# What a model thought before its answer, and the answer: "<think>...</think> B".
THOUGHTFUL = re.compile(r"\s*<think>\s*(.*?)\s*</think>\s*(\S.*)", re.S)
THOUGHT_ALONE = re.compile(r"\s*<think>\s*(.*?)\s*(?:</think>\s*)?", re.S)
ANSWER_TAGS = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.S)
# What programs write for no value, and a spreadsheet for a formula that failed. "none" is a word.
VOID = {"NaN", "nan", "NAN", "None", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT", "NA"}
# Excel's and LibreOffice's errors, a cell too narrow to show its value, a formula that was never
# computed, and marks alone.
FAILED_FORMULA = re.compile(
    r"#[¡¿]?(?:[^\W\d_]+(?:/0)?[!?]|N/A|NV)|Err:\d{3}|#{2,}|=[A-Z$]+[\d$(].*|[-–—.\s]+"
)
PAIRS = (("yes", "no"), ("true", "false"))  # words that are written alike
CASES = ("lower", "capitalize", "upper")
WHOLE = re.compile(r"([-+]?\d+)\.0+")  # how a spreadsheet of numbers writes 1


class DateCell(str):
    """The text of a workbook's cell that holds a date, whatever was typed into it."""


class Turn(NamedTuple):
    role: str  # system | user | assistant
    text: str  # without <video> / <image> tags


class Media(NamedTuple):
    """A file, or a video as `pictures` in order, of which `path` is the first. `fps` is the rate of
    the pictures in a list or a folder, None where the record does not say it."""

    kind: str  # video | image
    path: str  # as written in the record
    pictures: tuple[str, ...] = ()
    fps: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return all files that the record names."""
        return self.pictures or (self.path,)

    @property
    def may_be_folder(self) -> bool:
        """Return whether the name could be that of a folder of pictures: no file of a clip has
        it."""
        return self.kind == "video" and not names_medium(self.path)


class Sample(NamedTuple):
    """One record. `id` is the annotation's, or `record-<index>`; media stand before the first user
    turn's text; metrics are reported for `tags` and for `groups` (camera=3), which a build keeps on
    one side of a split; `reasoning` is what a format keeps beside its last answer."""

    index: int
    id: str
    turns: tuple[Turn, ...]
    media: tuple[Media, ...]
    video_fps: float | None
    tags: tuple[str, ...] = ()
    reasoning: str = ""
    groups: tuple[str, ...] = ()

    def questions(self) -> list[Question]:
        """Return one question per assistant turn; its id is the sample's, `<id>#2` for the second
        and so on."""
        found = []
        for position, turn in enumerate(self.turns):
            if turn.role != "assistant" or position == 0:
                continue
            name = self.id
            if found:
                name = f"{self.id}#{len(found) + 1}"
            context = self.turns[:position]
            found.append(Question(name, self, context, context[-1].text, turn.text))
        return found


class Question(NamedTuple):
    """One assistant turn to predict: `context` ends with the user turn whose text is `text`; `gt`
    is the answer."""

    id: str
    sample: Sample
    context: tuple[Turn, ...]
    text: str
    gt: str


def responses(samples: list[Sample], mode: str) -> list[Sample]:
    """Return the samples with the texts to train on. A `response_mode` says what becomes of
    reasoning beside the answers: "answer" leaves it out, "think" writes it before them, "hybrid"
    gives both forms of all samples, first without."""
    if mode == "answer" or not any(sample.reasoning for sample in samples):
        return samples
    thinking = []
    for sample in samples:
        if sample.reasoning:
            *others, answer = sample.turns
            answer = answer._replace(text=THOUGHT.format(sample.reasoning, answer.text))
            sample = sample._replace(turns=(*others, answer))
        thinking.append(sample)
    if mode == "hybrid":
        return [*samples, *thinking]
    return thinking


def thought_apart(answer: str) -> tuple[str, str]:
    """Return (reasoning, answer) of an answer that may begin with its reasoning; "" without one."""
    thought = THOUGHTFUL.fullmatch(answer)
    return (thought[1], thought[2]) if thought else ("", answer)


def bare_thought(text: str) -> str:
    """Return reasoning without its tags."""
    tagged = THOUGHT_ALONE.fullmatch(text)
    return tagged[1] if tagged else text


def untagged(answer: str) -> str:
    """Return what stands in <answer>; any other answer as it is."""
    tagged = ANSWER_TAGS.fullmatch(answer)
    return tagged[1].strip() if tagged else answer


def is_void(text: str) -> bool:
    return text in VOID or FAILED_FORMULA.fullmatch(text) is not None


def alike(text: str) -> str:
    """Return the same for answers that differ in case, blanks, a full stop or the zeros of 1.0
    only."""
    return WHOLE.sub(r"\1", " ".join(text.casefold().split()).removesuffix("."))


def in_one_form(answers: Sequence[str]) -> list[str]:
    """Return the answers, each in the form that most of those alike have, else the first of them;
    yes and no, and true and false, as most of both are written."""
    forms: dict[str, Counter] = defaultdict(Counter)
    alike_to = {}
    for answer, count in Counter(answers).items():
        alike_to[answer] = alike(answer)
        forms[alike_to[answer]][answer] += count
    chosen = {key: counted.most_common(1)[0][0] for key, counted in forms.items()}
    for pair in PAIRS:
        if all(word in forms for word in pair):
            spellings: Counter = Counter()
            for word in pair:
                for form, count in forms[word].items():
                    spellings[spelling(form)] += count
            case, has_stop = spellings.most_common(1)[0][0]
            for word in pair:
                chosen[word] = getattr(word, case)() + "." * has_stop
    return [chosen[alike_to[answer]] for answer in answers]


def spelling(word: str) -> tuple[str, bool]:
    """Return (its case: lower, capitalize or upper, whether it ends with a full stop)."""
    bare = word.strip().removesuffix(".")
    case = next((one for one in CASES if getattr(bare, one)() == bare), CASES[0])
    return case, word.strip().endswith(".")


def names_medium(name: str) -> bool:
    return name.lower().endswith(MEDIA_SUFFIXES)
