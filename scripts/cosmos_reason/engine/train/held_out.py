"""Answers to held-out questions during a training, graded as an evaluation grades them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from cosmos_reason.base.findings import Failure, bad_input, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.frames import with_system
from cosmos_reason.data.samples import Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer.responder import generate
from cosmos_reason.engine.model import Hardware
from cosmos_reason.engine.samples import Inputs, Samples
from cosmos_reason.engine.train.ranks import ALONE, Ranks
from cosmos_reason.engine.train.skipping import Skipped
from cosmos_reason.evaluation import grading, questions
from cosmos_reason.evaluation.rows import Row

KEY = "custom.transformers_engine.validate_answers"
LEAST_ROOM = 128  # tokens that any answer may have
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}


class HeldOut:
    """`count` questions of the validation data, the same at every validation. All of them are
    graded beside the others of the data: which labels there are is seen on the whole. With
    `alike`, as sharded weights need it, all ranks answer the same, together."""

    def __init__(
        self,
        samples: Samples,
        count: int,
        hardware: Hardware,
        tokens_per_batch: int,
        ranks: Ranks,
        alike: bool,
    ):
        self.samples = samples
        self.encoder = samples.encoder
        self.hardware = hardware
        self.alike = alike
        self.ranks = ALONE if alike else ranks
        self.tokens_per_batch = tokens_per_batch
        self.all = [one for sample in samples.samples for one in sample.questions()]
        if not self.all:
            message = "got validation data without a question that has an answer"
            failure = bad_input("ENGINE-NO-QUESTIONS", KEY, message, Fix(changes={KEY: 0}))
            raise ranks.for_rank0(failure)
        self.chosen = questions.spread(self.all, count)
        places = {id(sample): place for place, sample in enumerate(samples.samples)}
        self.records = [places[id(question.sample)] for question in self.chosen]
        tokenizer = self.encoder.tokenizer
        longest = max(len(tokenizer(question.gt)["input_ids"]) for question in self.chosen)
        self.room = max(LEAST_ROOM, 2 * longest)
        say(
            f"validation: {len(self.chosen)} of {len(self.all)} held-out questions answered, "
            f"in up to {self.room} tokens"
        )

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, number: int) -> Inputs | Failure:
        """Return the inputs of a chosen question; a Failure is returned as `Samples` do."""
        media = self.chosen[number].sample.media
        try:
            return self.encoder.encode_prompt(self._turns(number), media)
        except Failure as failure:
            return failure

    def _turns(self, number: int) -> list[Turn]:
        return with_system(self.chosen[number].context, self.samples.system_prompt)

    @property
    def own(self) -> Sequence[int]:
        """Return the numbers of the questions that this rank answers."""
        return self.ranks.share(range(len(self)))

    def accuracy(
        self,
        network,
        prompts: Iterable[tuple[int, Inputs | Failure]],
        skipped: Skipped,
        between: Callable[[], None],
    ) -> tuple[float, int]:
        """Return the share of the chosen questions that the network answers right, and how many it
        answered: all but those of records that are left out. Each rank answers its own `prompts`.
        `between` two batches may end it."""
        responses = {}
        if self.alike:
            prompts = skipped.read_alike(prompts)
        with _as_for_answers(network) as answering:
            for batch in self.ranks.rounds(self._batches(prompts, skipped)):
                between()
                if not batch:
                    continue
                encoded = [inputs for _, inputs in batch]
                asked = GREEDY | {"max_tokens": self.room}
                answers = generate(answering, self.encoder.tokenizer, self.hardware, encoded, asked)
                for (number, _), (response, _, _) in zip(batch, answers, strict=True):
                    responses[number] = self.encoder.opening(self._turns(number)) + response
        return self._graded(self.ranks.merged(responses))

    def _batches(
        self, prompts: Iterable[tuple[int, Inputs | Failure]], skipped: Skipped
    ) -> Iterator[list[tuple[int, Inputs]]]:
        """Yield the prompts: as many together as, padded to the longest and with their answers,
        have no more tokens than a pass."""
        waiting: list[tuple[int, Inputs]] = []
        longest = 0
        for number, inputs in prompts:
            if not skipped.keeps(self.records[number], inputs):
                continue
            length = max(longest, len(inputs["input_ids"]) + self.room)
            if waiting and length * (len(waiting) + 1) > self.tokens_per_batch:
                yield waiting
                waiting = []
                length = len(inputs["input_ids"]) + self.room
            waiting.append((number, inputs))
            longest = length
        if waiting:
            yield waiting

    def _graded(self, responses: dict[int, str]) -> tuple[float, int]:
        if not responses:
            return 0.0, 0
        numbers = {id(question): number for number, question in enumerate(self.chosen)}
        rows = []
        answered = []
        for question in self.all:
            number = numbers.get(id(question))
            row = Row.of(question, responses.get(number))
            rows.append(row)
            if number in responses:
                answered.append(row)
        # With the rows that were not asked: they tell which labels there are.
        grading.grade(rows)
        return sum(row.correct for row in answered) / len(answered), len(answered)


@contextmanager
def _as_for_answers(network) -> Iterator[torch.nn.Module]:
    """Yield the network as it answers: with attention that a cache can serve, and layers as they
    are, for compiled ones would be compiled anew for every length."""
    base = models.unwrapped(network)
    text, vision = base.config.text_config, base.config.vision_config
    trained_with = {
        "text_config": text._attn_implementation,
        "vision_config": vision._attn_implementation,
    }
    is_training = network.training
    network.train(False)
    base.set_attn_implementation("sdpa")
    try:
        with torch.compiler.set_stance("force_eager"):
            yield base
    finally:
        base.set_attn_implementation(trained_with)
        network.train(is_training)
