"""Training: data, model and optimizer from a spec; steps, validation and checkpoints in the layout
of cosmos-rl. Enter at `run`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from cosmos_reason.base.findings import Failure, bad_input, be_silent, has_errors, outside, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import best_link, run_outputs, uploads
from cosmos_reason.checkpoints.best_link import Scores
from cosmos_reason.engine import (
    checkpointing,
    full_gpu,
    neighbours,
    packing,
    setup,
    shards,
    stopping,
    wandb_run,
)
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import IGNORED
from cosmos_reason.engine.features import Features
from cosmos_reason.engine.held_out import HeldOut, held_out
from cosmos_reason.engine.model import DTYPES, Hardware
from cosmos_reason.engine.passes import GIB, Passes
from cosmos_reason.engine.ranks import ALONE, SEEDS_APART, Ranks
from cosmos_reason.engine.samples import Inputs, Samples, have_media, loss_tokens, raise_failures
from cosmos_reason.engine.skipping import Skipped
from cosmos_reason.engine.stopping import Stop, Stopped
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
    total_steps: int
    steps_per_epoch: int
    stop: Stop
    step: int = 0
    ranks: Ranks = ALONE
    features: Features | None = None  # of a frozen vision tower, where they are kept
    held_out: HeldOut | None = None  # questions that are answered at every validation
    first: int = 0  # the step that this process goes on from
    leftover: Path | None = None  # the state of a stop that it went on from
    best_by: str = best_link.VAL_LOSS
    best_score: float = math.inf

    def run(self) -> None:
        """Train from the present step to the last. Raises Failure where it has to end before: asked
        by a signal (what is done is saved), or with a full GPU."""
        self.first = self.step
        with self.stop, neighbours.Watch(self.ranks.neighbours):
            try:
                self.train()
            except Stopped:
                raise self.ranks.told_once(self.stopped()) from None
            except torch.OutOfMemoryError as problem:
                # Of several processes one may be full alone: it speaks, and the others end with it.
                where = self.ranks.place(self.step + 1)
                raise full_gpu.failure(self.passes, problem, where) from None
            except RuntimeError as problem:
                if not str(problem).startswith("DataLoader worker"):
                    raise
                raise self.without_reader(problem) from None

    def train(self) -> None:
        """The steps; validations and saves where the spec says so."""
        validation = self.spec["validation"]
        self.network.train()
        if validation["enable"] and validation["val_before_train"] and self.step == 0:
            self.validate()
        skipped = Skipped(len(self.training), self.ranks)
        since = time.perf_counter()
        for samples in self.batches():
            waited = time.perf_counter() - since
            samples = skipped.readable(samples, self.step + 1)
            self.train_on(samples, waited, is_timed=self.step == self.first + TIMED - 1)
            if self.step < self.total_steps:
                self.stop.check()
            self.validate_and_save()
            since = time.perf_counter()
        skipped.tell()

    def validate_and_save(self) -> None:
        """What is due at the present step."""
        validation = self.spec["validation"]
        saves = self.spec["train"]["ckpt"]["enable_checkpoint"] and self.saves_here
        scores: Scores = {}
        if validation["enable"] and (
            saves or self.is_due(validation["freq_in_epoch"], validation["freq"])
        ):
            try:
                scores = self.validate()
            except Failure:
                # A validation clip that cannot be read must not cost the trained weights.
                if saves:
                    self.save({})
                raise
        if saves:
            self.save(scores)

    @property
    def saves_here(self) -> bool:
        """Whether the spec wants the present step saved."""
        ckpt = self.spec["train"]["ckpt"]
        return self.is_due(ckpt["save_freq_in_epoch"], ckpt["save_freq"])

    def is_due(self, in_epochs: int, in_steps: int) -> bool:
        """Whether something that happens every so many epochs (else steps) happens now."""
        interval = in_epochs * self.steps_per_epoch if in_epochs else in_steps
        return self.step == self.total_steps or self.step % interval == 0

    def batches(self) -> Iterator[list[Inputs | Failure]]:
        """This rank's share of each batch, from the current step to the last. The order of all
        records depends on `dataloader_seed` and the epoch alone."""
        train, ranks = self.spec["train"], self.ranks
        policy, size = train["train_policy"], train["train_batch_per_replica"] * ranks.world
        plan = []
        for epoch in range(self.total_steps // self.steps_per_epoch + 1):
            order = list(range(len(self.training)))
            if policy["dataloader_shuffle"]:
                generator = torch.Generator().manual_seed(policy["dataloader_seed"] + epoch)
                order = torch.randperm(len(self.training), generator=generator).tolist()
            for first in range(0, self.steps_per_epoch * size, size):
                plan.append(ranks.share(order[first : first + size]))
        # More workers than cores would only share the cores.
        cores = max(1, len(os.sched_getaffinity(0)) // ranks.on_node)
        workers = min(policy["dataloader_num_workers"], cores)
        loader = DataLoader(
            self.training,
            batch_sampler=plan[self.step : self.total_steps],
            collate_fn=list,
            num_workers=workers,
            prefetch_factor=policy["dataloader_prefetch_factor"] if workers else None,
            worker_init_fn=stopping.leave_signals_to_the_trainer,
        )
        return iter(loader)

    def train_on(self, samples: list[Inputs], waited: float, is_timed: bool) -> None:
        """One step, for whose records it was waited so many seconds, and its line in metrics.jsonl;
        whether compiling pays is decided by its time."""
        started = time.perf_counter()
        # Seeded per step: dropout then does not depend on where a run was resumed.
        seed = (self.spec["train"]["seed"] or 0) + self.step
        torch.manual_seed(seed + self.ranks.rank * SEEDS_APART)
        measured = self.optimizer_step(samples)
        self.step += 1
        seconds = time.perf_counter() - started
        tokens = self.ranks.sum(sum(len(sample["input_ids"]) for sample in samples))
        line = {
            "step": self.step,
            "total_steps": self.total_steps,
            "epoch": self.epoch,
            **measured,
            "train/step_seconds": waited + seconds,
            "train/waiting_seconds": waited,
            "train/tokens_per_second": tokens / (waited + seconds),
        }
        if self.hardware.device.type == "cuda":
            line["gpu/memory_gib"] = self.ranks.largest(torch.cuda.max_memory_allocated() / GIB)
        self.metrics.write(line)
        if is_timed:
            seconds_left = self.ranks.largest(seconds) * (self.total_steps - self.step)
            self.passes.compile_where_it_pays(seconds_left, partial(self.try_pass, samples))

    @property
    def epoch(self) -> int:
        """The epoch that the last step belongs to, from 1."""
        return math.ceil(self.step / self.steps_per_epoch)

    def optimizer_step(self, samples: list[Inputs]) -> dict:
        """One update from the samples of all ranks. The loss is the mean over all loss-carrying
        tokens of the whole batch, so that it depends neither on the passes nor on the ranks."""
        train = self.spec["train"]
        tokens = self.ranks.sum(loss_tokens(samples))
        losses = []
        for together in self.padded(self.passes.split(samples)):
            loss = self.loss_to_learn_from(together) / tokens
            loss.backward()
            losses.append(loss.detach())
        total = self.ranks.sum(torch.stack(losses).sum().item() if losses else 0.0)
        parameters = self.optimizer.param_groups[0]
        self.settle_gradients(samples)
        largest = train["optm_grad_norm_clip"] or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters["params"], largest)
        norm = shards.whole(norm).item()
        rate = train["optm_lr"] * steps.learning_rate_factor(self.step, self.total_steps, train)
        parameters["lr"] = rate
        if not math.isfinite(total + norm):
            raise self.not_finite(f"got loss {total}, gradient norm {norm}", self.step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"train/loss": total, "train/learning_rate": rate, "train/grad_norm": norm}

    @property
    def is_sharded(self) -> bool:
        return shards.are_in(self.network)

    def padded(self, passes: list[list[Inputs]]) -> list[list[Inputs]]:
        """The passes of this rank. Where weights are sharded all ranks have the same number of
        them, some without records."""
        if not self.is_sharded:
            return passes
        missing = self.ranks.largest(len(passes)) - len(passes)
        return passes + [[]] * missing

    def loss_to_learn_from(self, samples: list[Inputs]) -> torch.Tensor:
        """The summed loss of a pass; of one without records a zero with a backward pass."""
        if not samples:
            return self.loss_sum(self.stand_in()) * 0
        self.passes.prepare(samples)
        return self.loss_sum(samples)

    def stand_in(self) -> list[Inputs]:
        """Records for a pass that counts for nothing: the other ranks need this one for theirs."""
        if self.passes.at_work:
            return self.passes.at_work
        record = self.training[0]
        raise_failures([record])
        return [record]

    def settle_gradients(self, samples: list[Inputs]) -> None:
        """Let every parameter have the gradient of the whole batch, which shards have already. Of a
        vision tower that no record needed they have zeros: it gets none, as in one process."""
        if not self.is_sharded:
            self.ranks.sum_gradients(self.optimizer.param_groups[0]["params"])
            return
        if not self.ranks.largest(int(have_media(samples))):
            self.network.model.visual.zero_grad(set_to_none=True)

    def try_pass(self, samples: list[Inputs]) -> None:
        """One pass that changes nothing."""
        try:
            for together in self.passes.split(samples)[:1]:
                self.loss_sum(together).backward()
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def loss_sum(self, samples: list[Inputs]) -> torch.Tensor:
        """Summed cross entropy over the positions that carry loss, in one pass. Only their logits
        are computed: at a vocabulary of 151,936 the full ones cost more memory than the model's
        activations."""
        batch = packing.pack(samples)
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                batch[key] = value.to(self.hardware.device, non_blocking=True)
        if self.features:
            self.features.expect(batch)
        labels = batch.pop("labels")[:, 1:]
        network = self.network
        if hasattr(network, "peft_config"):
            network = network.get_base_model()
        with self.hardware.autocast():
            logits = network.answer_logits(batch, labels != IGNORED)
        return F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")

    @torch.no_grad()
    def validate(self) -> Scores:
        """Mean cross entropy per loss-carrying token over the whole validation set, and how many of
        the held-out questions are answered right."""
        self.network.train(False)
        loss, tokens = 0.0, 0
        own = self.ranks.share(range(len(self.validation)))
        for samples in self.ranks.rounds(self.passes.stream(self.validation, own)):
            self.stop.check()
            if samples:
                loss += self.loss_sum(samples).item()
                tokens += loss_tokens(samples)
            elif self.is_sharded:
                self.loss_sum(self.stand_in())
        loss, tokens = self.ranks.sum(loss), self.ranks.sum(tokens)
        self.network.train()
        line = {"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens}
        scores = {best_link.VAL_LOSS: loss / tokens}
        if self.held_out:
            accuracy = self.held_out.accuracy(self.network, self.stop.check)
            line |= {"val/accuracy": accuracy, "val/answers": len(self.held_out.chosen)}
            scores[best_link.VAL_ACCURACY] = accuracy
        if self.is_sharded:
            self.network.reshard()  # what is gathered outlives a pass without a backward pass
        self.metrics.write(line)
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
            **self.metrics.kept,
            **told,
        }
        folder = self.run_dir / "checkpoints" / name / "policy"
        checkpointing.save_state(folder, self.network, self.optimizer, self.spec, state, self.ranks)
        return folder

    def stopped(self) -> Failure:
        """Save the state after a signal. Returns what there is to say of the end."""
        return self.ended_early("ENGINE-STOPPED", f"got {self.stop.asked_by} and")

    def without_reader(self, problem: RuntimeError) -> Failure:
        """The same where a process that read records is gone. Of several ranks this one cannot save
        alone."""
        told = f"a process that reads records is gone, often for want of host memory ({problem});"
        if not self.ranks.are_several:
            return self.ended_early("ENGINE-LOADER-DIED", told)
        fix = Fix(changes={"train.resume": True})
        return outside("ENGINE-LOADER-DIED", self.ranks.place(self.step + 1), told, fix)

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
        return self.ranks.told_once(failure)

    def save_model(self, run_dir: Path, name: str, scores: Scores) -> None:
        """Export the model of the present step, where the spec wants one, rank it and send it
        where the spec says so."""
        if self.exports():
            checkpointing.export(
                self.network,
                self.base_folder,
                run_dir / "safetensors" / name,
                DTYPES[self.spec["train"]["param_dtype"]],
                self.ranks,
            )
        self.ranks.by_first(partial(self.rank_and_send, run_dir, name, scores))

    def rank_and_send(self, run_dir: Path, name: str, scores: Scores) -> None:
        """What is to be done for a model that was saved."""
        self.rank(run_dir, name, scores)
        best = best_link.step_of(run_dir)
        run_outputs.prune(run_dir, self.spec["train"]["ckpt"]["max_keep"], keep=[best])
        if self.exports():
            self.upload(run_dir / "safetensors" / name)

    def upload(self, model: Path) -> None:
        """Send an exported model where the spec says so. Raises nothing: it is on the disk."""
        uploads.send(self.spec["train"]["ckpt"], model, self.step == self.total_steps)

    def exports(self) -> bool:
        """Whether the spec wants the model of the present step."""
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
        if state.get("is_stop") and not self.saves_here:
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
        is_whole = self.ranks.by_first(partial(is_whole_model, model))
        if is_whole or not self.exports():
            if is_own and self.ranks.is_first:
                self.rank(run_dir, name, scores)
                if is_whole:
                    self.upload(model)
            return
        if is_own:
            self.save_model(run_dir, name, scores)
        else:
            self.save(scores)
        say(f"resume: wrote the model of step {self.step}, which was missing")
        self.metrics.write(
            {"step": self.step, "total_steps": self.total_steps, "epoch": self.epoch}
        )


def is_whole_model(folder: Path) -> bool:
    return folder.is_dir() and not has_errors(run_outputs.verify(folder))


def run(spec: dict, job_dir: Path | None) -> dict:
    """Train as the complete spec says. Returns {run_dir, steps, seconds}; raises Failure before
    the first step for data, model or steps that cannot work."""
    ranks = Ranks.from_environment()
    if not ranks.is_first:
        be_silent()
    ranks.check(spec)
    options = spec["custom"]["transformers_engine"]
    hardware = models.choose_hardware(options["device"], spec["train"]["param_dtype"])
    ranks.take_gpu(hardware.device)
    say(f"{hardware.reason}{layout(ranks, spec)}")
    ranks = ranks.joined(hardware.device)
    try:
        result = run_on(ranks, hardware, spec, job_dir)
    except RuntimeError as problem:
        lost = ranks.lost(problem)
        if lost:
            raise lost from None
        raise
    ranks.leave()
    return result


def run_on(ranks: Ranks, hardware: Hardware, spec: dict, job_dir: Path | None) -> dict:
    """That, as one of several processes or alone."""
    started = time.monotonic()
    train, policy = spec["train"], spec["policy"]
    if not train["output_dir"]:
        fix = Fix(changes={"train.output_dir": "outputs"})
        raise ranks.told_once(bad_input("ENGINE-NO-OUTPUT", "train.output_dir", "got nothing", fix))
    ranks.agreed(partial(wandb_run.check, spec["logging"]))
    output_dir = Path(train["output_dir"])
    options = spec["custom"]["transformers_engine"]
    torch.manual_seed(train["seed"] or 0)
    torch.use_deterministic_algorithms(train["deterministic"])

    fetch = partial(models.model_folder, policy["model_name_or_path"], policy["model_revision"])
    folder = ranks.first_of_node_first(fetch)
    training, validation = ranks.agreed(partial(read_data, spec, folder, ranks.on_node))
    per_epoch, total = ranks.agreed(partial(setup.plan_steps, len(training), train, ranks.world))
    try:
        network = ranks.agreed(partial(setup.build_network, spec, folder, hardware))
        setup.shard(network, spec, folder, hardware)
    except torch.OutOfMemoryError as problem:
        raise full_gpu.while_loading(spec, folder, problem, ranks.rank) from None
    optimizer = setup.build_optimizer(network, train)
    if policy["lora"]:  # adapters begin with random numbers
        ranks.same_start(optimizer.param_groups[0]["params"])
    passes = Passes(network, spec, folder, hardware, ranks)
    features = ranks.agreed(
        partial(setup.kept_features, network, options["feature_cache_gib"] / ranks.on_node, passes)
    )

    ranks.by_first(partial(run_outputs.clear_abandoned, output_dir))
    found = ranks.by_first(partial(checkpointing.to_resume, train["resume"], output_dir))
    resumed, state = found, {"step": 0}
    if found:
        state = ranks.agreed(
            partial(checkpointing.resume, found, network, optimizer, total, len(training))
        )
    run_dir = ranks.by_first(partial(setup.run_folder, output_dir, train["timestamp"]))
    if job_dir and ranks.is_first:
        setup.mark_runs(job_dir, run_dir, resumed)
    log = (job_dir or run_dir) / "metrics.jsonl"
    with setup.metrics_log(spec, log, run_dir, total, state, ranks.is_first) as metrics:
        trainer = Trainer(
            spec=spec,
            network=network,
            base_folder=folder,
            hardware=hardware,
            optimizer=optimizer,
            training=training,
            validation=validation,
            run_dir=run_dir,
            metrics=metrics,
            passes=passes,
            total_steps=total,
            steps_per_epoch=per_epoch,
            stop=Stop(ranks),
            step=state["step"],
            ranks=ranks,
            features=features,
            held_out=held_out(
                validation,
                options["validate_answers"],
                hardware,
                passes.tokens,
                # Of sharded weights all ranks answer the same, together.
                ALONE if shards.are_in(network) else ranks,
            ),
            best_by=options["best_by"],
            best_score=best_link.worst(options["best_by"]),
        )
        if resumed:
            trainer.best_score = best_link.score_so_far(output_dir, trainer.best_by)
            trainer.take_over(resumed, state)
        trainer.run()
    seconds = round(time.monotonic() - started, 1)
    return {"run_dir": str(run_dir), "steps": total, "seconds": seconds}


def layout(ranks: Ranks, spec: dict) -> str:
    """How several processes have the weights, to be said."""
    if not ranks.are_several:
        return ""
    parts = shards.count(spec)
    if parts > 1:
        return f"; {ranks.world} processes, weights sharded over {parts}"
    asked = spec["policy"]["parallelism"]["dp_shard_size"]
    why = " (adapters are, whatever dp_shard_size says)" if asked > 1 else ""
    return f"; {ranks.world} processes, weights replicated{why}"


def read_data(spec: dict, folder: Path, on_node: int) -> tuple[Samples, Samples | None]:
    """Training and validation data for the model in the folder."""
    models.check_architecture(folder)
    return setup.datasets(spec, folder, models.load_tokenizer(folder), on_node)
