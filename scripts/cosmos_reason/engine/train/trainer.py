"""A training at work: steps, validations and checkpoints in the layout of cosmos-rl.

`Trainer.train` is the loop. What few runs have stands behind one call each: sharded weights, kept
features of a frozen vision tower, held-out questions, records that are left out."""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, has_errors, outside, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import best_link, left_out, run_outputs, uploads
from cosmos_reason.checkpoints.best_link import Scores
from cosmos_reason.engine import neighbours, packing
from cosmos_reason.engine.encode import IGNORED
from cosmos_reason.engine.first_update import FirstUpdate
from cosmos_reason.engine.model import DTYPES, Hardware
from cosmos_reason.engine.samples import MEDIA_KEYS, Inputs, Samples, have_media, loss_tokens
from cosmos_reason.engine.train import checkpointing, full_gpu, setup, shards, stopping, wandb_run
from cosmos_reason.engine.train.features import Features
from cosmos_reason.engine.train.held_out import HeldOut
from cosmos_reason.engine.train.passes import GIB, Passes
from cosmos_reason.engine.train.ranks import ALONE, SEEDS_APART, Ranks
from cosmos_reason.engine.train.reading import Reader, Unread
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
    base_folder: Path
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
    step: int = 0
    ranks: Ranks = ALONE
    features: Features | None = None  # of a frozen vision tower, where they are kept
    held_out: HeldOut | None = None  # questions that are answered at every validation
    first: int = 0  # the step that this process goes on from
    leftover: Path | None = None  # the state of a stop that it went on from
    best_by: str = best_link.VAL_LOSS
    best_score: float = math.inf
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
            features=self.features,
            pins=self.hardware.device.type == "cuda",
        )

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
                    raise self.not_finite(message, self.step + 1)
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
                        self.save({})
                    raise
            if saves:
                self.save(scores)
        for one in self.skipped.values():
            one.sum_up(self.run_dir)

    def accumulate(self, samples: list[Inputs], tokens: int) -> float:
        """Leave the gradient of the whole batch in the parameters, and return its loss: the mean
        over the `tokens` of all ranks that carry loss, so that it depends neither on the passes nor
        on the ranks."""
        passes = self.passes.split(samples)
        if self.is_sharded:
            # Each pass gathers weights from all ranks, so all have as many: some without records.
            passes += [[]] * (self.ranks.largest(len(passes)) - len(passes))
        self.passes.begin(len(passes))
        losses = []
        for together in passes:
            if together:
                self.passes.prepare(together)
                loss = self.loss_sum(together) / tokens
            else:
                loss = self.loss_sum(self.stand_in()) * 0
            loss.backward()
            losses.append(loss.detach())
        total = self.ranks.sum(torch.stack(losses).sum().item() if losses else 0.0)
        if not self.is_sharded:  # shards have the gradient of the whole batch already
            self.ranks.sum_gradients(self.optimizer.param_groups[0]["params"])
        elif not self.ranks.largest(int(have_media(samples))):
            # Shards of a vision tower that no record needed have gradients of zero, with which Adam
            # would still move them: in one process they have none.
            for part in shards.tower_parameters(self.network):
                part.grad = None
        return total

    def note_left_out(self) -> None:
        """Write down which records are left out."""
        table = {
            name: {"records": len(skipped.samples), "left_out": skipped.entries()}
            for name, skipped in self.skipped.items()
        }
        self.ranks.by_first(partial(left_out.write, self.run_dir, table))

    @property
    def is_sharded(self) -> bool:
        return shards.are_in(self.network)

    def stand_in(self) -> list[Inputs]:
        """Return records for a pass that counts for nothing: the other ranks need this one for
        theirs."""
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
        """Return the summed cross entropy over the positions that carry loss, in one pass."""
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
        network = self.network
        if hasattr(network, "peft_config"):
            network = network.get_base_model()
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
            if samples:
                loss += self.loss_sum(samples).item()
                tokens += loss_tokens(samples)
            elif self.is_sharded:
                self.loss_sum(self.stand_in())
        has_lost = skipped.settle(self.step)
        loss, tokens = self.ranks.sum(loss), self.ranks.sum(tokens)
        self.network.train()
        line = {"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens}
        scores = {best_link.VAL_LOSS: loss / tokens}
        if self.held_out:
            questions = self.reader.questions()
            if self.is_sharded:  # all ranks answer the same, together
                questions = skipped.read_alike(questions)
            accuracy, answers = self.held_out.accuracy(
                self.network, questions, skipped, self.stop.check
            )
            has_lost |= skipped.settle(self.step)
            if answers:
                line |= {"val/accuracy": accuracy, "val/answers": answers}
                scores[best_link.VAL_ACCURACY] = accuracy
        if self.is_sharded:
            self.network.reshard()  # what is gathered outlives a pass without a backward pass
        if has_lost:
            self.note_left_out()
        self.metrics.write(line | {"val/skipped_records": len(skipped)})
        return scores

    def save(self, scores: Scores) -> None:
        """Save the state to resume from, then the model. The state tells what the validation gave,
        so that a run killed between the two can be finished by the next (`make_up`)."""
        self.refuse_not_finite_weights()
        in_epochs = self.spec["train"]["ckpt"]["save_freq_in_epoch"]
        name = f"epoch_{self.epoch}" if in_epochs else f"step_{self.step}"
        try:
            self.save_state(name, scores)
        except (Failure, OSError):  # a disk too full for the state may still take the model
            with suppress(OSError):
                (self.run_dir / "checkpoints" / name).rmdir()
            self.save_model(self.run_dir, name, scores)
            raise
        if self.leftover:
            self.ranks.by_first(partial(run_outputs.remove, self.leftover))
            self.leftover = None
        self.save_model(self.run_dir, name, scores)

    def save_state(self, name: str, told: dict) -> Path:
        """Write the state to resume from, with what there is to tell beside it."""
        state = {
            "step": self.step,
            "total_steps": self.total_steps,
            "records": len(self.training),
            "learned": self.learned,
            "left_out": {name: skipped.entries() for name, skipped in self.skipped.items()},
            **self.metrics.kept,
            **told,
        }
        folder = self.run_dir / "checkpoints" / name / "policy"
        checkpointing.save_state(folder, self.network, self.optimizer, self.spec, state, self.ranks)
        return folder

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
        self.refuse_not_finite_weights()
        folder = self.save_state(f"step_{self.step}", {"is_stop": True})
        return outside(id, folder, f"{message}; its state is saved", fix)

    def refuse_not_finite_weights(self) -> None:
        """Raise Failure before weights are saved that no training could go on from."""
        trained = self.optimizer.param_groups[0]["params"]
        here = [shards.local(part.detach()) for part in trained]
        are_finite = torch.stack([part.isfinite().all() for part in here]).all()
        if not self.ranks.smallest(int(are_finite)):
            raise self.not_finite("got weights that are no numbers", self.step)

    def not_finite(self, message: str, step: int) -> Failure:
        rate = self.spec["train"]["optm_lr"]
        failure = stopping.not_finite(message, step, rate, self.run_dir.parent)
        return self.ranks.for_rank0(failure)

    def save_model(self, run_dir: Path, name: str, scores: Scores) -> None:
        """Export the model of the present step, where the spec wants one, rank it and send it
        where the spec says so."""
        if self.exports():
            checkpointing.export(
                self.network,
                self.base_folder,
                run_dir / "safetensors" / name,
                DTYPES[self.spec["train"]["param_dtype"]],
                self.spec,
                self.ranks,
            )

        def rank_and_send() -> None:
            self.rank(run_dir, name, scores)
            best = best_link.step_of(run_dir)
            run_outputs.prune(run_dir, self.spec["train"]["ckpt"]["max_keep"], keep=[best])
            self.upload(run_dir, name)

        self.ranks.by_first(rank_and_send)

    def upload(self, run_dir: Path, name: str) -> None:
        """Send what was saved of a step where the spec says so. Raises nothing: it is on the
        disk."""
        ckpt = self.spec["train"]["ckpt"]
        if self.exports():
            uploads.send(ckpt, run_dir / "safetensors" / name, self.step == self.total_steps)
        uploads.send_state(ckpt, run_dir / "checkpoints" / name / "policy")

    def exports(self) -> bool:
        """Return whether the spec wants the model of the present step."""
        return self.spec["train"]["ckpt"]["export_safetensors"] or self.step == self.total_steps

    def rank(self, run_dir: Path, name: str, scores: Scores) -> None:
        """Let `best` mean this step when it is better than all so far: of equal ones it means the
        first."""
        score = scores.get(self.best_by)
        if score is not None and best_link.is_better(self.best_by, score, self.best_score):
            self.best_score = score
            best_link.write(run_dir, name, score, self.best_by)

    def take_over(self, resumed: Path, state: dict) -> None:
        """Finish what the run that is resumed did not come to. A state that a signal let save goes
        with the next save: no spec asked for a checkpoint there, and of names such as epoch_3 and
        step_120 none tells the newer one."""
        if state.get("is_stop") and not self.schedule.saves(self.step):
            step_folder = resumed.absolute().parent
            if step_folder.parents[2].resolve() == self.run_dir.parent.resolve():
                self.leftover = step_folder
        elif self.spec["train"]["ckpt"]["enable_checkpoint"]:
            self.make_up(resumed, best_link.scores_in(state))

    def make_up(self, resumed: Path, scores: Scores) -> None:
        """Do what the run that is resumed did not come to after it had saved the state `resumed`
        (it was killed, or the disk was full): the model of that step, and its place among the
        best."""
        step_folder = resumed.absolute().parent
        run_dir, name = step_folder.parent.parent, step_folder.name
        is_own = run_dir.parent.resolve() == self.run_dir.parent.resolve()
        if not is_own and self.step < self.total_steps:
            return  # nothing is written into the folder of another training
        model = run_dir / "safetensors" / name
        # Rank 0 looks, so that all ranks go the same way from here.
        is_whole = self.ranks.by_first(
            lambda: model.is_dir() and not has_errors(run_outputs.verify(model))
        )
        if is_whole or not self.exports():
            if is_own and self.ranks.is_first:
                self.rank(run_dir, name, scores)
                self.upload(run_dir, name)
            return
        if is_own:
            self.save_model(run_dir, name, scores)
        else:
            self.save(scores)
        say(f"resume: wrote the model of step {self.step}, which was missing")
        line = {"step": self.step, "total_steps": self.total_steps, "epoch": self.epoch}
        lost = len(self.skipped[left_out.TRAINING])
        self.metrics.write(line | {"train/skipped_records": lost})
