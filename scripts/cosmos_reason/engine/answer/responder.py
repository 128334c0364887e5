"""What a model answers: several questions at a time, with a cache of what was read."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice

import torch
from transformers import LogitsProcessor

from cosmos_reason.base.findings import outside, say
from cosmos_reason.data.frames import FrameCache
from cosmos_reason.data.samples import Question
from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer import read_ahead, weighing
from cosmos_reason.engine.answer.quicker import quicken
from cosmos_reason.engine.encode import PIXELS_KEY, Encoder, collate
from cosmos_reason.engine.model import Hardware
from cosmos_reason.engine.train import shards
from cosmos_reason.evaluation import likelihood, run
from cosmos_reason.evaluation.questions import (
    GENERATE,
    LIKELIHOOD,
    Answer,
    conversation,
)
from cosmos_reason.media.sampling import VisionOptions

CACHE_BYTES = 256 << 20  # frames of clips with several questions
# Batches that are sorted by length together: few at first, when the model waits for them.
FIRST_BATCHES, MOST_BATCHES = 1, 4
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


class FiniteLogits(LogitsProcessor):
    """Lets logits pass unchanged. Raises Failure for those of which no token can be chosen: NaN
    makes each token the first one of the vocabulary ("!!!!")."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if scores.isnan().any() or scores.isposinf().any():
            message = "got logits that are not finite: the model, or its arithmetic, is broken"
            raise outside(run.NOT_FINITE, "model", message)
        return scores


def generate(
    network,
    tokenizer,
    hardware: Hardware,
    encoded: Sequence[dict[str, torch.Tensor]],
    generation: dict,
) -> list[tuple[str, bool, int]]:
    """Return each answer as the table `generation` of an evaluate spec asks for it, whether it was
    cut (`max_tokens` came before the model ended it), and its tokens, the one that ends it
    included."""
    batch = _batch(tokenizer, hardware, encoded)
    sampling = dict(GREEDY)
    if generation["temperature"] > 0:
        sampling = {
            "do_sample": True,
            "temperature": generation["temperature"],
            "top_p": generation["top_p"],
            "top_k": max(generation["top_k"], 0),  # transformers writes "all" as 0
        }
    # Weights that are gathered here are trained again: they may be no tensors of inference.
    reading = torch.no_grad() if shards.are_in(network) else torch.inference_mode()
    with reading, hardware.autocast_for(network):
        tokens = network.generate(
            **batch,
            **sampling,
            logits_processor=[FiniteLogits()],
            max_new_tokens=generation["max_tokens"],
            repetition_penalty=generation["repetition_penalty"],
            synced_gpus=shards.are_in(network),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    answers = tokens[:, batch["input_ids"].shape[1] :]
    # Generation stops early only where every answer of the batch has ended.
    goes_on = answers != tokenizer.eos_token_id
    is_cut = goes_on.all(dim=1)
    tokens = goes_on.cumprod(dim=1).sum(dim=1) + ~is_cut
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return list(zip(texts, is_cut.tolist(), tokens.tolist(), strict=True))


def first_token_probabilities(
    network, tokenizer, hardware: Hardware, encoded: Sequence[dict[str, torch.Tensor]]
) -> list[torch.Tensor]:
    """Return how likely each token of the vocabulary is the first one of each answer, by one
    forward pass: float32[vocabulary] on the CPU for each of `encoded`."""
    batch = _batch(tokenizer, hardware, encoded)
    reading = torch.no_grad() if shards.are_in(network) else torch.inference_mode()
    with reading, hardware.autocast_for(network):
        done = network.generate(
            **batch,
            **GREEDY,
            max_new_tokens=1,
            output_logits=True,
            return_dict_in_generate=True,
            synced_gpus=shards.are_in(network),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    logits = FiniteLogits()(batch["input_ids"], done.logits[0].float())
    return list(logits.softmax(dim=-1).cpu())


def _batch(tokenizer, hardware: Hardware, encoded: Sequence[dict[str, torch.Tensor]]) -> dict:
    # One by one: joining clips is quicker where the model is.
    there = [
        {key: part.to(hardware.device, non_blocking=True) for key, part in one.items()}
        for one in encoded
    ]
    return collate(there, tokenizer.pad_token_id, "left")


class Responder:
    """Answers batches of questions greedily or by sampling, as `generation` says. Loads the model
    at the first one."""

    ignores = frozenset({"presence_penalty", "frequency_penalty"})

    def __init__(self, spec: dict):
        self.spec = spec
        self.generation = spec["generation"]
        self.network = self.encoder = None
        device = spec["custom"]["transformers_engine"]["device"]
        if device == "auto" and spec["num_gpus"] > 1:
            device = "cuda"  # one process per GPU: none of them may end up on the CPU in silence
        self.hardware = models.choose_hardware(device, spec["model"]["dtype"])
        self.where = self.hardware.reason
        self.batch_size = spec["evaluation"]["batch_size"]
        self.workers: int | None = None  # that decode clips ahead; None: as suits the machine
        torch.manual_seed(spec["evaluation"]["seed"])

    def identity(self) -> list:
        """Changes with the weights that answer."""
        folder = models.model_folder(self.spec["model"]["model_name"])
        stamps = []
        for path in sorted(folder.glob("*.safetensors")):
            facts = path.stat()
            stamps.append((path.name, facts.st_size, facts.st_mtime_ns))
        return stamps

    def load(self) -> None:
        """Load the network, where it is not, and what `prepare` loads."""
        if self.network is not None:
            return
        self.prepare()
        compute, device = self.hardware.compute, self.hardware.device
        self.network = models.load_for_evaluation(self.folder, self.base, compute, device)
        if device.type == "cuda":
            quicken(self.network)

    def prepare(self) -> None:
        """Load the tokenizer and the encoder of inputs, where they are not."""
        if self.encoder is not None:
            return
        table = self.spec["model"]
        self.folder, self.base = models.evaluation_folders(table)
        models.check_architecture(self.base or self.folder)
        self.tokenizer = models.load_tokenizer(self.base or self.folder)
        self.encoder = Encoder(
            self.tokenizer,
            self.base or self.folder,
            self.spec["dataset"]["media_dir"],
            VisionOptions.from_spec(self.spec),
            table["max_length"],
            FrameCache(CACHE_BYTES),
        )

    def answers(self, questions: list[Question]) -> Iterator[list[Answer]]:
        """Yield `evaluation.batch_size` answers at a time, of questions of like length. What cannot
        be read gets an error; it shifts nothing."""
        if not questions:
            return
        self.prepare()
        # Clips are decoded while the model is loaded.
        with closing(self.encoded(questions)) as arriving:
            self.load()
            self.since = time.monotonic()
            batches = FIRST_BATCHES
            while window := list(islice(arriving, batches * self.batch_size)):
                batches = min(2 * batches, MOST_BATCHES)
                ready, failed = [], []
                for question, inputs in window:
                    if isinstance(inputs, Exception):
                        failed.append(Answer(question, None, str(inputs)))
                    else:
                        ready.append((question, inputs))
                if failed:
                    yield failed
                # Of like length, so that little is padded; the longest first, which needs the most.
                ready.sort(key=lambda one: -len(one[1]["input_ids"]))
                while ready:
                    size = self.batch_size
                    yield self.answer(ready[:size])
                    ready = ready[size:]

    def encoded(self, questions: list[Question]) -> read_ahead.Arriving:
        """Return the questions with their inputs; on a GPU those to come are prepared meanwhile."""
        groups = read_ahead.groups_of(questions)
        workers = self.workers
        on_gpu = self.hardware.device.type == "cuda"
        if workers is None:
            workers = 0
            if on_gpu:
                workers, why = read_ahead.workers_for(len(groups), self.spec["num_gpus"])
                say(f"clips are decoded by {workers or 'no'} other processes ({why})")
        ahead = MOST_BATCHES * self.batch_size
        return read_ahead.encoded(groups, self.encode, workers, ahead, pins=on_gpu)

    def answer(self, ready: list[tuple[Question, dict[str, torch.Tensor]]]) -> list[Answer]:
        """Return one answer per question. Their time counts from the batch before: waiting for
        clips is part of it."""
        encoded = [inputs for _, inputs in ready]
        ask = self.spec["evaluation"]["ask"]
        weights = [None] * len(ready)
        if ask != GENERATE:
            weights = self.fitting(self.first_tokens, encoded)
        responses = weights
        if ask != LIKELIHOOD:
            responses = self.fitting(self.generate, encoded)
        now = time.monotonic()
        seconds = round((now - self.since) / len(ready), 3)
        self.since = now
        answers = []
        for (question, inputs), answered, weight in zip(ready, responses, weights, strict=True):
            if answered is None:
                length = len(inputs["input_ids"])
                problem = f"memory does not hold a question of {length:,} tokens with its answer"
                answers.append(Answer(question, None, problem))
                continue
            vision_tokens = int((inputs["mm_token_type_ids"] > 0).sum())
            choice = None if weight is None else self.choice(question, inputs, weight)
            if ask != LIKELIHOOD:
                response, is_cut, tokens = answered
                response = self.encoder.opening(conversation(question, self.spec)) + response
                answer = Answer(question, response, None, vision_tokens, is_cut, tokens, seconds)
            elif not choice:
                answer = Answer(question, None, likelihood.NOTHING_TO_WEIGH, vision_tokens)
            else:
                best = likelihood.likeliest(choice)
                answer = Answer(question, best, None, vision_tokens, False, 1, seconds)
            answers.append(answer._replace(choice=choice))
        return answers

    def choice(self, question: Question, inputs: dict, first: torch.Tensor) -> dict | None:
        """Return the probability of each answer that is weighed; None where the question has none,
        and where none of them has any."""
        if question.id not in self.choices:
            return None
        found = weighing.probabilities(
            weighing.spellings(self.tokenizer, self.choices[question.id]),
            first,
            lambda tokens: self.first_tokens([weighing.continued(inputs, tokens)])[0],
            self.tokenizer.eos_token_id,
        )
        return found if any(found.values()) else None

    @functools.cached_property
    def choices(self) -> dict[str, tuple[str, ...]]:
        return likelihood.choices(self.spec)

    def encode(self, question: Question) -> dict[str, torch.Tensor]:
        """Pixels in the precision that the model computes in: half as much to hand over."""
        turns = conversation(question, self.spec)
        inputs = self.encoder.encode_prompt(turns, question.sample.media)
        for key in PIXELS_KEY.values():
            if key in inputs:
                inputs[key] = inputs[key].to(self.hardware.compute)
        return inputs

    def first_tokens(self, encoded: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        return first_token_probabilities(self.network, self.tokenizer, self.hardware, encoded)

    def fitting(self, act: Callable[[list[dict]], list], encoded: list[dict]) -> list:
        """Return what `act` (`generate` or `first_tokens`) returns, in halves where memory does not
        hold all, and from then on; None for a question that it does not hold alone."""
        try:
            return act(encoded)
        except torch.OutOfMemoryError as problem:
            reason = str(problem).partition("\n")[0]
        # What the attempt held is free only out here.
        torch.cuda.empty_cache()
        if len(encoded) == 1:
            say(f"warning: memory does not hold one of the questions: {reason}")
            return [None]
        self.batch_size = len(encoded) // 2
        say(f"memory does not hold {len(encoded)} questions: {self.batch_size} at a time from here")
        first = self.fitting(act, encoded[: self.batch_size])
        return first + self.fitting(act, encoded[len(first) :])

    def generate(self, encoded: list[dict[str, torch.Tensor]]) -> list[tuple[str, bool, int]]:
        return generate(self.network, self.tokenizer, self.hardware, encoded, self.generation)
