"""What a model answers: several questions at a time, with a cache of what was read."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice

import torch
from transformers import LogitsProcessor

from cosmos_reason.base import progress
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
from cosmos_reason.evaluation.questions import GENERATE, LIKELIHOOD, Answer, conversation
from cosmos_reason.media.sampling import VisionOptions

CACHE_BYTES = 256 << 20  # frames of clips with several questions
# Batches that are sorted by length together: few at first, when the model waits for them.
FIRST_BATCHES, MOST_BATCHES = 1, 4
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


class FiniteLogits(LogitsProcessor):
    """Lets logits pass unchanged. Raises Failure for those of which no token can be chosen: NaN
    makes each token the first one of the vocabulary ("!!!!"). `made` is called for each token."""

    def __init__(self, made: Callable[[], object] = lambda: None):
        self.made = made

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.made()
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
    batch = _batch(tokenizer.pad_token_id, hardware, encoded, "left")
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
    count = f"{len(encoded)} answer{'s' if len(encoded) > 1 else ''}"
    most = generation["max_tokens"]
    look = {"unit": "token", "is_quick": True, "leave": False}
    with reading, hardware.autocast_for(network), progress.bar(most, count, **look) as shown:
        tokens = network.generate(
            **batch,
            **sampling,
            logits_processor=[FiniteLogits(shown.update)],
            max_new_tokens=most,
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


def next_token_probabilities(
    network, hardware: Hardware, trees: Sequence[weighing.Tree], pad_id: int
) -> list[list[dict[weighing.Tokens, torch.Tensor]]]:
    """Return how likely each token of the vocabulary comes next, by one forward pass: for each of
    the trees, of each question, float32[vocabulary] on the CPU behind each beginning of its
    answers."""
    longest = max(len(tree.attended) for tree in trees)
    batch = _batch(pad_id, hardware, [tree.inputs for tree in trees], "right")
    # Padding attends to itself: no row of a softmax may be empty.
    attended = torch.eye(longest, dtype=torch.bool).repeat(len(trees), 1, 1, 1)
    for row, tree in enumerate(trees):
        attended[row, 0, : len(tree.attended), : len(tree.attended)] = tree.attended
    batch["attention_mask"] = attended.to(hardware.device)
    places = [
        (row, question, tokens, place)
        for row, tree in enumerate(trees)
        for question, found in enumerate(tree.places)
        for tokens, place in found.items()
    ]
    reading = torch.no_grad() if shards.are_in(network) else torch.inference_mode()
    with reading, hardware.autocast_for(network):
        hidden = network.model(**batch, use_cache=False).last_hidden_state
        rows = torch.tensor([one[0] for one in places], device=hidden.device)
        columns = torch.tensor([one[3] for one in places], device=hidden.device)
        logits = network.lm_head(hidden[rows, columns]).float()
    likely = FiniteLogits()(rows, logits).softmax(dim=-1).cpu()
    answers: list[list[dict]] = [[{} for _ in tree.places] for tree in trees]
    for (row, question, tokens, _), weight in zip(places, likely, strict=True):
        answers[row][question][tokens] = weight
    return answers


def _batch(
    pad_id: int, hardware: Hardware, encoded: Sequence[dict[str, torch.Tensor]], side: str
) -> dict:
    # One by one: joining clips is quicker where the model is.
    there = [
        {key: part.to(hardware.device, non_blocking=True) for key, part in one.items()}
        for one in encoded
    ]
    return collate(there, pad_id, side)


class Responder:
    """Answers batches of questions greedily or by sampling, as `generation` says. Loads the model
    at the first one."""

    ignores = frozenset({"presence_penalty", "frequency_penalty"})

    def __init__(self, spec: dict):
        self.spec = spec
        self.generation = spec["generation"]
        self.shown_as: dict[str, str] = {}
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
        """Return what changes with the weights that answer."""
        return models.stamps(*models.folders(self.spec["model"]["model_name"], self.spec["model"]))

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
        self.folder, self.base = models.folders(table["model_name"], table)
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
                # Questions about a clip stay together: likelihood reads it once for all of them.
                ready.sort(key=lambda one: -len(one[1]["input_ids"]))
                by_clip = defaultdict(list)
                for question, inputs in ready:
                    by_clip[question.sample.media].append((question, inputs))
                ready = list(chain(*by_clip.values()))
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
        choices = [{}] * len(ready)
        if ask != GENERATE:
            choices = self.fitting(self.weigh, ready)
        responses = choices
        if ask != LIKELIHOOD:
            responses = self.fitting(self.generate, encoded)
        now = time.monotonic()
        seconds = round((now - self.since) / len(ready), 3)
        self.since = now
        answers = []
        for (question, inputs), answered, choice in zip(ready, responses, choices, strict=True):
            if answered is None:
                length = len(inputs["input_ids"])
                problem = f"memory does not hold a question of {length:,} tokens with its answer"
                answers.append(Answer(question, None, problem))
                continue
            vision_tokens = int((inputs["mm_token_type_ids"] > 0).sum())
            if ask != LIKELIHOOD:
                response, is_cut, tokens = answered
                response = self.encoder.opening(conversation(question, self.spec)) + response
                answer = Answer(question, response, None, vision_tokens, is_cut, tokens, seconds)
            elif not choice:
                answer = Answer(question, None, likelihood.NOTHING_TO_WEIGH, vision_tokens)
            else:
                best = likelihood.likeliest(choice)
                answer = Answer(question, best, None, vision_tokens, False, 1, seconds)
            answers.append(answer._replace(choice=choice or None))
        return answers

    def weigh(self, ready: list[tuple[Question, dict[str, torch.Tensor]]]) -> list[dict]:
        """Return the probability of each answer that is weighed, of each question; {} where it has
        none, and where none of them has any."""
        found: list[dict[str, float]] = [{} for _ in ready]
        by_clip = defaultdict(list)
        for number, (question, _) in enumerate(ready):
            if question.id in self.choices:
                by_clip[question.sample.media].append(number)
        groups = []
        for numbers in by_clip.values():
            shared = weighing.shared_tokens([ready[number][1] for number in numbers])
            groups += [(numbers, shared)] if shared else [([number], 1) for number in numbers]
        if not groups:
            return found
        end = self.tokenizer.eos_token_id
        trees = []
        for numbers, shared in groups:
            members = []
            for number in numbers:
                question, inputs = ready[number]
                members.append((inputs, weighing.beginnings(self.spelled(question), end)))
            trees.append(weighing.tree_of(members, shared))
        pad_id = self.tokenizer.pad_token_id
        likely = next_token_probabilities(self.network, self.hardware, trees, pad_id)
        for (numbers, _), of_questions in zip(groups, likely, strict=True):
            for number, behind in zip(numbers, of_questions, strict=True):
                spelled = self.spelled(ready[number][0])
                weighed = weighing.probabilities(spelled, behind, end)
                found[number] = weighed if any(weighed.values()) else {}
        return found

    def spelled(self, question: Question) -> list[tuple[str, weighing.Tokens]]:
        return self.spellings(self.choices[question.id])

    @functools.cached_property
    def spellings(self) -> Callable[[tuple[str, ...]], list[tuple[str, weighing.Tokens]]]:
        return functools.cache(functools.partial(weighing.spellings, self.tokenizer))

    @functools.cached_property
    def choices(self) -> dict[str, tuple[str, ...]]:
        return likelihood.choices(self.spec)

    def encode(self, question: Question) -> dict[str, torch.Tensor]:
        """Return the inputs, with pixels in the precision that the model computes in: half as much
        to hand over."""
        turns = conversation(question, self.spec)
        inputs = self.encoder.encode_prompt(turns, question.sample.media)
        for key in PIXELS_KEY.values():
            if key in inputs:
                inputs[key] = inputs[key].to(self.hardware.compute)
        return inputs

    def fitting(self, act: Callable[[list], list], encoded: list) -> list:
        """Return what `act` (`generate` or `weigh`) returns, in halves where memory does not
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
