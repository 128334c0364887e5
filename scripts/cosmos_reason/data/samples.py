"""What an annotation file holds in any format: samples, the questions that they ask, and the texts
that they train."""

from __future__ import annotations

from typing import NamedTuple

from cosmos_reason.data.turns import Turn
from cosmos_reason.media.files import names_medium
from cosmos_reason.spec.prompts import THOUGHT


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
