"""A training at work. `Trainer.train` is its loop: read, accumulate, step, log, stop, validate,
save.

What few runs have stands behind one call each: passes that other ranks need (`passes.split`,
`shards`), kept features of a frozen vision tower (`features`), held-out questions (`held_out`),
records that are left out (`skipping`). What is saved, `saving` knows."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import best_link, left_out
from cosmos_reason.checkpoints.best_link import Scores
from cosmos_reason.engine import model as models
from cosmos_reason.engine import neighbours, packing
from cosmos_reason.engine.encode import IGNORED
from cosmos_reason.engine.first_update import FirstUpdate
from cosmos_reason.engine.model import Hardware
from cosmos_reason.engine.samples import MEDIA_KEYS, Inputs, Samples, have_media, loss_tokens
from cosmos_reason.engine.train import full_gpu, setup, shards, wandb_run
from cosmos_reason.engine.train.features import Features
from cosmos_reason.engine.train.held_out import HeldOut
from cosmos_reason.engine.train.passes import GIB, Passes
from cosmos_reason.engine.train.ranks import ALONE, SEEDS_APART, Ranks
from cosmos_reason.engine.train.reading import Reader, Unread
from cosmos_reason.engine.train.saving import Saver
from cosmos_reason.engine.train.schedule import Schedule
from cosmos_reason.engine.train.skipping import Skipped, TooMany
from cosmos_reason.engine.train.stopping import Stop, Stopped
from cosmos_reason.estimate import steps

TIMED = 2  # steps of a run after which a step's time is known


@dataclass
class Trainer:
    """One run: everything that lives from the first step to the last."""

    spec: dict
    network: torch.nn.Module
    hardware: Hardware
    optimizer: torch.optim.Optimizer
    training: Samples
    validation: Samples | None
    run_dir: Path
    metrics: MetricsLog | wandb_run.Reported | setup.Unwritten
    passes: Passes
    schedule: Schedule
    skipped: dict[str, Skipped]  # records that are left out, of each set of data
    stop: Stop
    saver: Saver
    step: int = 0
    ranks: Ranks = ALONE
    features: Features | None = None  # of a frozen vision tower, where they are kept
    held_out: HeldOut | None = None  # questions that are answered at every validation
    first: int = 0  # the step that this process goes on from
    learned: tuple[float, int] = (0.0, 0)  # loss of all steps, summed, and tokens that carried it

    def run(self) -> None:
        """Train from the present step to the last. Raises Failure where it has to end before: asked
        by a signal or with too many records lost (what is done is saved), or with a full GPU."""
        self.first = self.step
        self.note_left_out()
        # A rank that waits inside a kernel of NCCL hears no signal: the watch ends it with the
        # others.
        watch = neighbours.Watch(self.ranks.neighbours)
        with self.stop, closing(self.new_reader()) as self.reader, watch:
            try:
                self.train()
            except Stopped:
                why = f"got {self.stop.asked_by} and"
                raise self.ranks.for_rank0(self.ended_early("ENGINE-STOPPED", why)) from None
            except (TooMany, Unread) as problem:
                failure = problem
                if self.step > self.first and not self.schedule.saves(self.step):
                    # Steps were taken that no checkpoint holds.
                    why = "records could not be read, the training"
                    ended = self.ended_early("ENGINE-MEDIA-LOST", why)
                    failure = Failure([*problem.findings, *ended.findings], ended.exit_code)
                raise self.ranks.for_rank0(failure) from None
            except torch.OutOfMemoryError as problem:
                # Of several processes one may be full alone: it speaks, and the others end with it.
                where = self.ranks.place(self.step + 1)
                raise full_gpu.failure(self.passes, problem, where) from None

    def new_reader(self) -> Reader:
        held_out = self.held_out or []
        return Reader(
            self.schedule,
            self.ranks,
            self.first,
            training=self.training,
            validation=self.validation or [],
            questions=held_out,
            asked=held_out.own if held_out else [],
            pins=self.hardware.device.type == "cuda",
        )

    def take_over(self, resumed: Path, saved: dict) -> None:
        """Finish what the run that is resumed did not come to."""
        if self.saver.take_over(resumed, saved, self.state()):
            line = {"step": self.step, "total_steps": self.total_steps, "epoch": self.epoch}
            lost = len(self.skipped[left_out.TRAINING])
            self.metrics.write(line | {"train/skipped_records": lost})

    @property
    def total_steps(self) -> int:
        return self.schedule.total_steps

    @property
    def epoch(self) -> int:
        return self.schedule.epoch(self.step)

    def train(self) -> None:
        """Take every step: read, accumulate, update, log; then stop, validate and save where that
        is due."""
        train = self.spec["train"]
        parameters = self.optimizer.param_groups[0]
        skipped = self.skipped[left_out.TRAINING]
        first_update = FirstUpdate(self.network)
        self.network.train()
        # The untouched model, to which later losses are compared.
        if self.step == 0 and self.schedule.validates(0):
            self.validate()
        while self.step < self.total_steps:
            # Read this rank's share of the step. Records that cannot be read are left out; all
            # ranks wait here until each has what it can read.
            since = time.perf_counter()
            samples = self.ranks.agreed(lambda: list(skipped.readable(self.reader.batch())))
            if skipped.settle(self.step + 1):
                self.note_left_out()
            started = time.perf_counter()
            waited = started - since

            # Seeded per step: dropout then does not depend on where a run was resumed.
            seed = (train["seed"] or 0) + self.step
            torch.manual_seed(seed + self.ranks.rank * SEEDS_APART)
            measured = {}
            # The loss is a mean over the tokens of all ranks: each has to know how many there are.
            answered = self.ranks.sum(loss_tokens(samples))
            if answered:  # else all records of the batch are left out
                loss = self.accumulate(samples, answered)
                if not first_update.is_done:
                    problems = first_update.judge(have_media(samples), self.step + 1)
                    if problems:
                        raise self.ranks.for_rank0(Failure(problems, EXIT_CHECKS_FAILED))
                largest = train["optm_grad_norm_clip"] or math.inf
                norm = torch.nn.utils.clip_grad_norm_(parameters["params"], largest)
                norm = shards.whole(norm).item()
                rate = train["optm_lr"]
                rate *= steps.learning_rate_factor(self.step, self.total_steps, train)
                parameters["lr"] = rate
                # Before the weights change: they stay those of the last good step.
                if not math.isfinite(loss + norm):
                    message = f"got loss {loss}, gradient norm {norm}"
                    raise self.saver.not_finite(message, self.step + 1)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                total, count = self.learned
                self.learned = total + loss * answered, count + answered
                measured = {
                    "train/loss": loss,
                    "train/mean_loss": self.learned[0] / self.learned[1],
                    "train/learning_rate": rate,
                    "train/grad_norm": norm,
                }
            self.step += 1

            seconds = time.perf_counter() - started
            tokens = self.ranks.sum(sum(len(sample["input_ids"]) for sample in samples))
            line = {
                "step": self.step,
                "total_steps": self.total_steps,
                "epoch": self.epoch,
                **measured,
                "train/skipped_records": len(skipped),
                "train/step_seconds": waited + seconds,
                "train/waiting_seconds": waited,
                "train/tokens_per_second": tokens / (waited + seconds),
            }
            if self.hardware.device.type == "cuda":
                line["gpu/memory_gib"] = self.ranks.largest(torch.cuda.max_memory_allocated() / GIB)
            self.metrics.write(line)
            if self.step == self.first + TIMED:  # by now a step's time tells whether compiling pays
                seconds_left = self.ranks.largest(seconds) * (self.total_steps - self.step)
                self.passes.compile_where_it_pays(seconds_left, partial(self.try_pass, samples))

            # A signal ends the run between two steps; after the last there is nothing to end.
            if self.step < self.total_steps:
                self.stop.check()
            saves = self.schedule.saves(self.step)
            scores: Scores = {}
            if self.schedule.validates(self.step):
                try:
                    scores = self.validate()
                except Failure:
                    # Validation clips that cannot be read must not cost the trained weights.
                    if saves:
                        self.saver.save(self.state(), {})
                    raise
            if saves:
                self.saver.save(self.state(), scores)
        for one in self.skipped.values():
            one.sum_up(self.run_dir)

    def accumulate(self, samples: list[Inputs], tokens: int) -> float:
        """Leave the gradient of the whole batch in the parameters, and return its loss: the mean
        over the `tokens` of all ranks that carry loss, so that it depends neither on the passes nor
        on the ranks."""
        passes = self.passes.split(samples)
        losses = []
        for together in passes:
            self.passes.prepare(together, is_alone=len(passes) == 1)
            loss = self.loss_sum(together) / tokens
            loss.backward()
            losses.append(loss.detach())
        total = self.ranks.sum(torch.stack(losses).sum().item() if losses else 0.0)
        trained = self.optimizer.param_groups[0]["params"]
        shards.add_up_gradients(self.network, trained, self.ranks, have_media(samples))
        return total

    def note_left_out(self) -> None:
        """Write down which records are left out."""
        table = {
            name: {"records": len(skipped.samples), "left_out": skipped.entries()}
            for name, skipped in self.skipped.items()
        }
        self.ranks.by_first(left_out.write, self.run_dir, table)

    def stand_in(self) -> list[Inputs]:
        """Return records for a pass that only other ranks need."""
        if self.passes.at_work:
            return self.passes.at_work
        for number in range(len(self.training)):
            record = self.training[number]
            if not isinstance(record, Failure):
                return [record]
        raise record

    def try_pass(self, samples: list[Inputs]) -> None:
        """Run one pass that changes nothing."""
        try:
            for together in self.passes.split(samples)[:1]:
                self.loss_sum(together).backward()
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def loss_sum(self, samples: list[Inputs]) -> torch.Tensor:
        """Return the summed cross entropy over the positions that carry loss, in one pass. Without
        samples the pass counts for nothing: other ranks, with which weights are gathered, have
        some."""
        if not samples:
            return self.loss_sum(self.stand_in()) * 0
        device = self.hardware.device
        there = []
        for sample in samples:
            # Pixels are joined on the GPU: on the host that would keep it waiting.
            keys = MEDIA_KEYS & sample.keys()
            there.append(sample | {key: sample[key].to(device, non_blocking=True) for key in keys})
        batch = packing.pack(there)
        del there
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                batch[key] = value.to(device, non_blocking=True)
        if self.features:
            self.features.expect(batch)
        labels = batch.pop("labels")[:, 1:]
        network = models.unwrapped(self.network)
        # Only these logits are computed: at a vocabulary of 151,936 the full ones cost more memory
        # than the model's activations.
        with self.hardware.autocast():
            logits = network.answer_logits(batch, labels != IGNORED)
        return F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")

    @torch.no_grad()
    def validate(self) -> Scores:
        """Return and log the mean cross entropy per loss-carrying token over the whole validation
        set, and the share of the held-out questions that are answered right."""
        skipped = self.skipped[left_out.VALIDATION]
        self.network.train(False)
        loss, tokens = 0.0, 0
        records = skipped.readable(self.reader.validation())
        for samples in self.ranks.rounds(self.passes.stream(records)):
            self.stop.check()
            if samples or self.passes.are_sharded:
                loss += self.loss_sum(samples or []).item()
                tokens += loss_tokens(samples or [])
        has_lost = skipped.settle(self.step)
        loss, tokens = self.ranks.sum(loss), self.ranks.sum(tokens)
        self.network.train()
        line = {"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens}
        scores = {best_link.VAL_LOSS: loss / tokens}
        if self.held_out:
            accuracy, answers = self.held_out.accuracy(
                self.network, self.reader.questions(), skipped, self.stop.check
            )
            has_lost |= skipped.settle(self.step)
            if answers:
                line |= {"val/accuracy": accuracy, "val/answers": answers}
                scores[best_link.VAL_ACCURACY] = accuracy
        shards.release(self.network)
        if has_lost:
            self.note_left_out()
        self.metrics.write(line | {"val/skipped_records": len(skipped)})
        return scores

    def state(self) -> dict:
        """Return what a checkpoint tells beside weights and moments, and a resumed run goes on
        from."""
        return {
            "step": self.step,
            "total_steps": self.total_steps,
            "records": len(self.training),
            "data": self.training.digest,
            "learned": self.learned,
            "left_out": {name: skipped.entries() for name, skipped in self.skipped.items()},
            **self.metrics.kept,
        }

    def ended_early(self, id: str, why: str) -> Failure:
        """Save the state under the number of the step wherever in an epoch it is. Returns what
        there is to say."""
        message = f"{why} ended after step {self.step} of {self.total_steps}"
        fix = Fix(changes={"train.resume": True})
        if self.step == self.first:
            return outside(id, self.run_dir, f"{message}, before the first", fix)
        if not self.spec["train"]["ckpt"]["enable_checkpoint"]:
            message += "; nothing was saved: train.ckpt.enable_checkpoint is false"
            return outside(id, self.run_dir, message)
        folder = self.saver.save_stopped(self.state())
        return outside(id, folder, f"{message}; its state is saved", fix)
