"""Training: data, model and optimizer from a spec; steps, validation and checkpoints in the layout
of cosmos-rl. Enter at `run`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from cosmos_reason.base.findings import Failure, bad_input, has_errors, outside, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import best_link, run_outputs, uploads
from cosmos_reason.checkpoints.best_link import Scores
from cosmos_reason.data.conversations import training_samples
from cosmos_reason.engine import checkpointing, full_gpu, packing, stopping, wandb_run
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import IGNORED, Encoder
from cosmos_reason.engine.features import Features
from cosmos_reason.engine.held_out import HeldOut, held_out
from cosmos_reason.engine.model import DTYPES, Hardware
from cosmos_reason.engine.passes import GIB, Passes
from cosmos_reason.engine.samples import Inputs, Samples, loss_tokens, raise_failures
from cosmos_reason.engine.stopping import Stop, Stopped
from cosmos_reason.estimate import steps
from cosmos_reason.media.sampling import VisionOptions

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
    metrics: MetricsLog | wandb_run.Reported
    passes: Passes
    total_steps: int
    steps_per_epoch: int
    step: int = 0
    features: Features | None = None  # of a frozen vision tower, where they are kept
    held_out: HeldOut | None = None  # questions that are answered at every validation
    stop: Stop = field(default_factory=Stop)
    first: int = 0  # the step that this process goes on from
    leftover: Path | None = None  # the state of a stop that it went on from
    best_by: str = best_link.VAL_LOSS
    best_score: float = math.inf

    def run(self) -> None:
        """Train from the present step to the last. Raises Failure where it has to end before: asked
        by a signal (what is done is saved), or with a full GPU."""
        self.first = self.step
        with self.stop:
            try:
                self.train()
            except Stopped:
                raise self.stopped() from None
            except torch.OutOfMemoryError as problem:
                raise full_gpu.failure(self.passes, problem, f"step {self.step + 1}") from None

    def train(self) -> None:
        """The steps; validations and saves where the spec says so."""
        validation = self.spec["validation"]
        self.network.train()
        if validation["enable"] and validation["val_before_train"] and self.step == 0:
            self.validate()
        for samples in self.batches():
            raise_failures(samples)
            self.train_on(samples, is_timed=self.step == self.first + TIMED - 1)
            if self.step < self.total_steps:
                self.stop.check()
            self.validate_and_save()

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
        """Batches from the current step to the last; the order depends on `dataloader_seed` and
        the epoch alone."""
        train = self.spec["train"]
        policy, size = train["train_policy"], train["train_batch_per_replica"]
        plan = []
        for epoch in range(self.total_steps // self.steps_per_epoch + 1):
            order = list(range(len(self.training)))
            if policy["dataloader_shuffle"]:
                generator = torch.Generator().manual_seed(policy["dataloader_seed"] + epoch)
                order = torch.randperm(len(self.training), generator=generator).tolist()
            plan += [order[i * size : (i + 1) * size] for i in range(self.steps_per_epoch)]
        # More workers than cores would only share the cores.
        workers = min(policy["dataloader_num_workers"], len(os.sched_getaffinity(0)))
        loader = DataLoader(
            self.training,
            batch_sampler=plan[self.step : self.total_steps],
            collate_fn=list,
            num_workers=workers,
            prefetch_factor=policy["dataloader_prefetch_factor"] if workers else None,
            worker_init_fn=stopping.leave_signals_to_the_trainer,
        )
        return iter(loader)

    def train_on(self, samples: list[Inputs], is_timed: bool) -> None:
        """One step and its line in metrics.jsonl; whether compiling pays is decided by its time."""
        started = time.perf_counter()
        # Seeded per step: dropout then does not depend on where a run was resumed.
        torch.manual_seed((self.spec["train"]["seed"] or 0) + self.step)
        measured = self.optimizer_step(samples)
        self.step += 1
        seconds = time.perf_counter() - started
        tokens = sum(len(sample["input_ids"]) for sample in samples)
        line = {
            "step": self.step,
            "total_steps": self.total_steps,
            "epoch": self.epoch,
            **measured,
            "train/step_seconds": seconds,
            "train/tokens_per_second": tokens / seconds,
        }
        if self.hardware.device.type == "cuda":
            line["gpu/memory_gib"] = torch.cuda.max_memory_allocated() / GIB
        self.metrics.write(line)
        if is_timed:
            seconds_left = seconds * (self.total_steps - self.step)
            self.passes.compile_where_it_pays(seconds_left, partial(self.try_pass, samples))

    @property
    def epoch(self) -> int:
        """The epoch that the last step belongs to, from 1."""
        return math.ceil(self.step / self.steps_per_epoch)

    def optimizer_step(self, samples: list[Inputs]) -> dict:
        """One update from `train_batch_per_replica` samples. The loss is the mean over all
        loss-carrying tokens of the whole batch, so that it does not depend on the passes."""
        train = self.spec["train"]
        tokens = loss_tokens(samples)
        losses = []
        for together in self.passes.split(samples):
            self.passes.prepare(together)
            loss = self.loss_sum(together) / tokens
            loss.backward()
            losses.append(loss.detach())
        total = torch.stack(losses).sum().item()
        parameters = self.optimizer.param_groups[0]
        largest = train["optm_grad_norm_clip"] or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters["params"], largest).item()
        rate = train["optm_lr"] * steps.learning_rate_factor(self.step, self.total_steps, train)
        parameters["lr"] = rate
        if not math.isfinite(total + norm):
            raise self.not_finite(f"got loss {total}, gradient norm {norm}", self.step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"train/loss": total, "train/learning_rate": rate, "train/grad_norm": norm}

    def try_pass(self, samples: list[Inputs]) -> None:
        """One pass that changes nothing."""
        try:
            self.loss_sum(self.passes.split(samples)[0]).backward()
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
            hidden = network.model(**batch, use_cache=False).last_hidden_state[:, :-1]
            logits = network.lm_head(hidden[labels != IGNORED])
        return F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")

    @torch.no_grad()
    def validate(self) -> Scores:
        """Mean cross entropy per loss-carrying token over the whole validation set, and how many of
        the held-out questions are answered right."""
        self.network.train(False)
        loss, tokens = 0.0, 0
        for samples in self.passes.stream(self.validation):
            self.stop.check()
            loss += self.loss_sum(samples).item()
            tokens += loss_tokens(samples)
        self.network.train()
        line = {"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens}
        scores = {best_link.VAL_LOSS: loss / tokens}
        if self.held_out:
            accuracy = self.held_out.accuracy(self.network, self.stop.check)
            line |= {"val/accuracy": accuracy, "val/answers": len(self.held_out.chosen)}
            scores[best_link.VAL_ACCURACY] = accuracy
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
            run_outputs.remove(self.leftover)
            self.leftover = None
        self.save_model(self.run_dir, name, scores)

    def save_state(self, name: str, told: dict) -> Path:
        """Write the state to resume from, with what there is to tell beside it."""
        state = {
            "step": self.step,
            "total_steps": self.total_steps,
            "records": len(self.training),
            **told,
        }
        folder = self.run_dir / "checkpoints" / name / "policy"
        checkpointing.save_state(folder, self.network, self.optimizer, self.spec, state)
        return folder

    def stopped(self) -> Failure:
        """Save the state after a signal, under the number of the step wherever in an epoch it is.
        Returns what there is to say of the end."""
        message = f"got {self.stop.asked_by} and ended after step {self.step} of {self.total_steps}"
        fix = Fix(changes={"train.resume": True})
        if self.step == self.first:
            return outside("ENGINE-STOPPED", self.run_dir, f"{message}, before the first", fix)
        if not self.spec["train"]["ckpt"]["enable_checkpoint"]:
            message += "; nothing was saved: train.ckpt.enable_checkpoint is false"
            return outside("ENGINE-STOPPED", self.run_dir, message)
        self.refuse_not_finite_weights()
        folder = self.save_state(f"step_{self.step}", {"is_stop": True})
        return outside("ENGINE-STOPPED", folder, f"{message}; its state is saved", fix)

    def refuse_not_finite_weights(self) -> None:
        """Raise Failure before weights are saved that no training could go on from."""
        trained = self.optimizer.param_groups[0]["params"]
        if not torch.stack([part.detach().isfinite().all() for part in trained]).all():
            raise self.not_finite("got weights that are no numbers", self.step)

    def not_finite(self, message: str, step: int) -> Failure:
        rate = self.spec["train"]["optm_lr"]
        return stopping.not_finite(message, step, rate, self.run_dir.parent)

    def save_model(self, run_dir: Path, name: str, scores: Scores) -> None:
        """Export the model of the present step, where the spec wants one, rank it and send it
        where the spec says so."""
        train = self.spec["train"]
        folder = run_dir / "safetensors" / name
        if self.exports():
            checkpointing.export(
                self.network, self.base_folder, folder, DTYPES[train["param_dtype"]]
            )
        self.rank(run_dir, name, scores)
        best = best_link.step_of(run_dir)
        run_outputs.prune(run_dir, train["ckpt"]["max_keep"], keep=[best])
        if self.exports():
            self.upload(folder)

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
        is_whole = model.is_dir() and not has_errors(run_outputs.verify(model))
        if is_whole or not self.exports():
            if is_own:
                self.rank(run_dir, name, scores)
            if is_own and is_whole:
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


def run(spec: dict, job_dir: Path | None) -> dict:
    """Train as the complete spec says. Returns {run_dir, steps, seconds}; raises Failure before
    the first step for data, model or steps that cannot work."""
    started = time.monotonic()
    train, policy = spec["train"], spec["policy"]
    if not train["output_dir"]:
        fix = Fix(changes={"train.output_dir": "outputs"})
        raise bad_input("ENGINE-NO-OUTPUT", "train.output_dir", "got nothing", fix)
    wandb_run.check(spec["logging"])
    output_dir = Path(train["output_dir"])
    options = spec["custom"]["transformers_engine"]
    hardware = models.choose_hardware(options["device"], train["param_dtype"])
    say(hardware.reason)
    torch.manual_seed(train["seed"] or 0)
    torch.use_deterministic_algorithms(train["deterministic"])

    folder = models.model_folder(policy["model_name_or_path"], policy["model_revision"])
    models.check_architecture(folder)
    tokenizer = models.load_tokenizer(folder)
    training, validation = datasets(spec, folder, tokenizer)
    per_epoch, total = plan_steps(len(training), train)
    network = build_network(spec, folder, hardware)
    optimizer = build_optimizer(network, train)
    passes = Passes(network, spec, folder, hardware)
    features = kept_features(network, options["feature_cache_gib"], passes)

    run_outputs.clear_abandoned(output_dir)
    resumed, state = checkpointing.resume(
        train["resume"], output_dir, network, optimizer, total, len(training)
    )
    run_dir = output_dir / train["timestamp"] if train["timestamp"] else new_run_folder(output_dir)
    if job_dir:
        mark_runs(job_dir, run_dir, resumed)
    log = (job_dir or run_dir) / "metrics.jsonl"
    with (
        closing(MetricsLog(log, "train", total, state["step"])) as own_log,
        wandb_run.reported(own_log, spec, run_dir) as metrics,
    ):
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
            step=state["step"],
            features=features,
            held_out=held_out(validation, options["validate_answers"], hardware, passes.tokens),
            best_by=options["best_by"],
            best_score=best_link.worst(options["best_by"]),
        )
        if resumed:
            trainer.best_score = best_link.score_so_far(output_dir, trainer.best_by)
            trainer.take_over(resumed, state)
        trainer.run()
    seconds = round(time.monotonic() - started, 1)
    return {"run_dir": str(run_dir), "steps": total, "seconds": seconds}


def datasets(spec: dict, folder: Path, tokenizer) -> tuple[Samples, Samples | None]:
    """Training samples and, when the spec validates, validation samples."""
    training = _samples(spec, "train_dataset", folder, tokenizer)
    if not spec["validation"]["enable"]:
        return training, None
    return training, _samples(spec, "val_dataset", folder, tokenizer)


def _samples(spec: dict, name: str, folder: Path, tokenizer) -> Samples:
    custom = spec["custom"]
    table, options = custom[name], custom["transformers_engine"]
    encoder = Encoder(
        tokenizer,
        folder,
        table["media_path"],
        VisionOptions.from_table(custom["vision"]),
        spec["policy"]["model_max_length"],
        cache_bytes=int(options["frame_cache_gib"] * GIB),
        tells_content=options["feature_cache_gib"] > 0,
    )
    system_prompt = spec["train"]["train_policy"]["system_prompt"]
    return Samples(training_samples(table, f"custom.{name}"), encoder, system_prompt)


def plan_steps(records: int, train: dict) -> tuple[int, int]:
    """(steps per epoch, steps in all). Raises Failure when not one step would run."""
    batch = train["train_batch_per_replica"]
    drop_last = train["train_policy"]["dataloader_drop_last"]
    per_epoch = steps.steps_per_epoch(records, batch, drop_last=drop_last)
    if not per_epoch:
        message = (
            f"got {batch} for {records} records, expected at most that many (no step would run)"
        )
        fix = Fix(changes={"train.train_batch_per_replica": records})
        raise bad_input("ENGINE-NO-STEPS", "train.train_batch_per_replica", message, fix)
    return per_epoch, steps.total_steps(records, train)


def build_network(spec: dict, folder: Path, hardware: Hardware):
    """The trainable model: master weights in `master_dtype` (LoRA: frozen base in `param_dtype`,
    adapters float32)."""
    train, policy = spec["train"], spec["policy"]
    lora = policy["lora"]
    dtype = DTYPES[train["master_dtype"]]
    if lora:
        dtype = torch.float32 if hardware.device.type == "cpu" else DTYPES[train["param_dtype"]]
    network = models.load_model(folder, dtype, hardware.device)
    if policy["model_gradient_checkpointing"]:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        # Inputs with gradients, which older recomputation wanted, would train nothing and cost the
        # backward pass of the vision tower; peft asks for them again.
        network.disable_input_require_grads()
        wrapped = models.add_lora(network, lora, policy["model_name_or_path"])
        network.disable_input_require_grads()
        return wrapped
    models.choose_trainable(network, policy)
    return network


def build_optimizer(network, train: dict):
    """The optimizer over the trainable parameters, in one group."""
    kind = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}[train["optm_name"]]
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return kind(
        trainable,
        lr=train["optm_lr"],
        betas=tuple(train["optm_betas"]),
        eps=train["epsilon"],
        weight_decay=train["optm_weight_decay"],
        fused=True,
    )


def kept_features(network, gib: float, passes: Passes) -> Features | None:
    """What keeps features of vision, where the spec gives it room."""
    if not gib:
        return None
    base = network.get_base_model() if hasattr(network, "peft_config") else network
    passes.layers = passes.decoder  # compiling does not pay for what runs once a clip
    return Features(base, gib)


def new_run_folder(output_dir: Path) -> Path:
    """A folder named after the second, as cosmos-rl names it, that no other run has."""
    while True:
        run_dir = output_dir / datetime.now().strftime("%Y%m%d%H%M%S")
        try:
            run_dir.mkdir(parents=True)
            return run_dir
        except FileExistsError:
            time.sleep(0.1)  # until the next second


def mark_runs(job_dir: Path, run_dir: Path, resumed: Path | None) -> None:
    """Note which job writes the run, and what is left to write of the run that it resumes, in the
    same output."""
    run_outputs.mark_run(run_dir, job_dir)
    if resumed:
        earlier_run = resumed.absolute().parents[2]  # RUN/checkpoints/STEP/policy
        if earlier_run.parent.resolve() == run_dir.parent.resolve():
            run_outputs.mark_run(earlier_run, job_dir)
