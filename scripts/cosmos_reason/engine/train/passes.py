"""How forward passes are computed: how many tokens one takes, which layers recompute their
activations in the backward pass, and whether layers are compiled. Each is chosen, and said."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from cosmos_reason.base.findings import say
from cosmos_reason.engine import model as models
from cosmos_reason.engine import packing
from cosmos_reason.engine.model import Hardware
from cosmos_reason.engine.samples import Inputs, loss_tokens
from cosmos_reason.engine.train import shards
from cosmos_reason.engine.train.ranks import ALONE, Ranks
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.estimate.speed import COMPILING_PAYS
from cosmos_reason.spec import document

GIB = gpu_memory.GIB
FEW, FEWEST = 4096, 1024  # tokens for which recomputing layers is worth it, and the least
ANSWERS = 8  # of so many tokens, one carries loss at most (an assumption; each pass is counted)
VARIANTS = 64  # graphs of one layer: with and without gradients, of one length and of several


class Passes:
    """The passes of one network. `tokens`: the most that records share a pass for."""

    def __init__(self, network, spec: dict, folder: Path, hardware: Hardware, ranks: Ranks = ALONE):
        options = spec["custom"]["transformers_engine"]
        base = models.unwrapped(network)
        packing.attend_within_records(base)
        packing.embed_by_product(base)
        self.layers = [
            part for part in base.modules() if isinstance(part, GradientCheckpointingLayer)
        ]
        self.decoder = models.decoder_layers(base, folder)
        self.ranks = ranks
        self.are_sharded = shards.are_in(network)
        self.recomputes = spec["policy"]["model_gradient_checkpointing"]
        self.recomputed = options["recompute_layers"]
        self.compiles = options["compile"]
        self.plan = None
        self.at_work: Sequence[Inputs] = ()  # the records of the last pass
        self.kept = 0  # decoder layers that do not recompute in it
        # Attention by single calls, as float32 takes it, would be compiled anew for each pass.
        self.is_half = hardware.compute != torch.float32
        if hardware.device.type == "cuda":
            self.plan = plan_of(spec, folder)
            free, _ = torch.cuda.mem_get_info()
            ours = free + torch.cuda.memory_reserved() + gpu_memory.CONTEXT_GIB * GIB
            self.limit = ranks.smallest(gpu_memory.TIGHT_ABOVE * ours / GIB)
        self.tokens, why = self._choose_tokens(options["tokens_per_pass"])
        say(f"passes: records packed up to {self.tokens:,} tokens ({why})")

    def _choose_tokens(self, asked: int | None) -> tuple[int, str]:
        if asked:
            return asked, "asked for by the spec"
        if not self.plan:
            return gpu_memory.ENOUGH_TOKENS, "the default"
        room = f"{self.limit:.0f} GiB of GPU memory"
        # First the longest pass that recomputes nothing: only for passes shorter than FEW is
        # recomputing worth its time.
        kept = len(self.decoder)
        if self.recomputes and self.recomputed is not None:
            kept = 0
        lowest = FEW if self.recomputes else FEWEST
        for tokens in range(gpu_memory.ENOUGH_TOKENS, lowest - 1, -1024):
            if self._fits(tokens, tokens, tokens // ANSWERS, kept):
                return tokens, f"fits {room}, {'as asked' if kept == 0 else 'nothing recomputed'}"
        for tokens in range(FEW, FEWEST, -1024):
            if self._fits(tokens, tokens, tokens // ANSWERS, 0):
                return tokens, f"fits {room}, layers recomputed"
        return FEWEST, f"the least; {room}"

    def _fits(self, tokens: int, vision_tokens: int, loss_tokens: int, kept: int) -> bool:
        plan = dataclasses.replace(
            self.plan,
            tokens=tokens,
            vision_tokens=vision_tokens,
            loss_tokens=loss_tokens,
            kept_layers=kept,
        )
        return gpu_memory.total(plan) <= self.limit

    def split(self, samples: Sequence[Inputs]) -> list[list[Inputs]]:
        """Return the samples of each pass of a step. Where passes gather sharded weights from all
        ranks, all of them have as many: some without samples."""
        lengths = [len(sample["input_ids"]) for sample in samples]
        passes = [[samples[i] for i in chosen] for chosen in packing.plan(lengths, self.tokens)]
        if self.are_sharded:
            passes += [[]] * (self.ranks.largest(len(passes)) - len(passes))
        return passes

    def stream(self, samples: Iterable[Inputs]) -> Iterator[list[Inputs]]:
        """Yield the samples in their order, those of each pass."""
        # Packed as they come: to choose which go together, all of a validation would have to be
        # held.
        waiting: list[Inputs] = []
        tokens = 0
        for sample in samples:
            if waiting and tokens + len(sample["input_ids"]) > self.tokens:
                yield waiting
                waiting = []
                tokens = 0
            waiting.append(sample)
            tokens += len(sample["input_ids"])
        if waiting:
            yield waiting

    def prepare(self, samples: Sequence[Inputs], is_alone: bool) -> None:
        """Let as many decoder layers of the next pass recompute as its memory needs: the first,
        whose activations would be held the longest. In a pass that `is_alone` in its step gradients
        come as activations go."""
        if self.plan:
            self.plan = dataclasses.replace(self.plan, accumulates=not is_alone)
        if not samples:
            return
        self.at_work = samples
        if not self.recomputes:
            return
        count = self._layers_to_recompute(samples)
        self.kept = len(self.decoder) - count
        for number, layer in enumerate(self.decoder):
            layer.gradient_checkpointing = number < count

    def plan_at_work(self) -> gpu_memory.Plan | None:
        """Return what the GPU holds in the last pass; None for a model of unknown size."""
        if not self.plan or not self.at_work:
            return self.plan
        return dataclasses.replace(
            self.plan,
            tokens=sum(len(sample["input_ids"]) for sample in self.at_work),
            vision_tokens=_vision_tokens(self.at_work),
            loss_tokens=loss_tokens(self.at_work),
            kept_layers=self.kept,
        )

    @property
    def longest_at_work(self) -> int:
        """Return tokens of the longest record of the last pass."""
        return max((len(sample["input_ids"]) for sample in self.at_work), default=0)

    def _layers_to_recompute(self, samples: Sequence[Inputs]) -> int:
        layers = len(self.decoder)
        if self.recomputed is not None:
            return min(self.recomputed, layers)
        if not self.plan:
            return layers
        tokens = sum(len(sample["input_ids"]) for sample in samples)
        vision_tokens = _vision_tokens(samples)
        for count in range(layers):
            if self._fits(tokens, vision_tokens, loss_tokens(samples), layers - count):
                return count
        return layers

    def compile_where_it_pays(self, seconds_left: float, trial: Callable[[], None]) -> None:
        """Compile decoder layers and vision blocks when `seconds_left` of training are worth it, or
        the spec asks for it. `trial` is one pass, forward and backward: a failure shows there."""
        wanted = self.compiles
        if self.are_sharded:
            say("layers: not compiled (their weights are sharded)")
            wanted = False
        elif wanted is None:
            wanted = self.plan is not None and self.is_half and seconds_left > COMPILING_PAYS
            said = f"about {seconds_left:.0f} s of training to come"
            say(f"layers: {'compiled' if wanted else 'not compiled'} ({said})")
        self.compiles = False  # decided
        if not wanted:
            return
        torch._dynamo.config.recompile_limit = VARIANTS
        for layer in self.layers:
            layer.compile(dynamic=True)
        try:
            trial()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            for layer in self.layers:
                layer._compiled_call_impl = None
            first_line = str(problem).strip().partition("\n")[0]
            say(f"warning: layers run as they are, they could not be compiled: {first_line}")
            return
        # Of another length or kind a layer is compiled anew: where that fails, torch warns and runs
        # the layer as it is.
        torch._dynamo.config.suppress_errors = True


def _vision_tokens(samples: Sequence[Inputs]) -> int:
    return sum(int((sample["mm_token_type_ids"] > 0).sum()) for sample in samples)


def plan_of(spec: dict, folder: Path) -> gpu_memory.Plan | None:
    """Return what one GPU holds, as it was foreseen of the spec, but for the lengths of a pass;
    None for a model of unknown size."""
    value = functools.partial(document.get, spec)
    plan = gpu_memory.of_training(value, str(folder), False, 0, 0, 0)
    return plan and dataclasses.replace(plan, batch=1)
