"""Training: data, model and optimizer from a spec; steps, validation and checkpoints in the layout
of cosmos-rl. Enter at `run`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from cosmos_reason.base.findings import Failure, bad_input, has_errors, outside, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import best_link, run_outputs
from cosmos_reason.data.conversations import training_samples
from cosmos_reason.engine import checkpointing, packing, wandb_run
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import IGNORED, Encoder
from cosmos_reason.engine.model import DTYPES, Hardware
from cosmos_reason.engine.passes import GIB, Passes
from cosmos_reason.engine.samples import Inputs, Samples, loss_tokens, raise_failures
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
    best_score: float = math.inf

    def run(self) -> None:
        """Train from the present step to the last; validate and save where the spec says so."""
        validation, ckpt = self.spec["validation"], self.spec["train"]["ckpt"]
        self.network.train()
        first = self.step
        if validation["enable"] and validation["val_before_train"] and self.step == 0:
            self.validate()
        for samples in self.batches():
            raise_failures(samples)
            self.train_on(samples, is_timed=self.step == first + TIMED - 1)
            saves = ckpt["enable_checkpoint"] and self.is_due(
                ckpt["save_freq_in_epoch"], ckpt["save_freq"]
            )
            validates = validation["enable"] and (
                saves or self.is_due(validation["freq_in_epoch"], validation["freq"])
            )
            score = None
            if validates:
                try:
                    score = self.validate()
                except Failure:
                    # A validation clip that cannot be read must not cost the trained weights.
                    if saves:
                        self.save(None)
                    raise
            if saves:
                self.save(score)

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
            fix = Fix(changes={"train.optm_lr": float(f"{train['optm_lr'] / 10:g}")})
            message = f"got loss {total}, gradient norm {norm}"
            raise outside("ENGINE-LOSS-NOT-FINITE", f"step {self.step + 1}", message, fix)
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
        labels = batch.pop("labels")[:, 1:]
        network = self.network
        if hasattr(network, "peft_config"):
            network = network.get_base_model()
        with self.hardware.autocast():
            hidden = network.model(**batch, use_cache=False).last_hidden_state[:, :-1]
            logits = network.lm_head(hidden[labels != IGNORED])
        return F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")

    @torch.no_grad()
    def validate(self) -> float:
        """Mean cross entropy per loss-carrying token over the whole validation set."""
        self.network.train(False)
        loss, tokens = 0.0, 0
        for samples in self.passes.stream(self.validation):
            loss += self.loss_sum(samples).item()
            tokens += loss_tokens(samples)
        self.network.train()
        self.metrics.write({"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens})
        return loss / tokens

    def save(self, val_loss: float | None) -> None:
        """Save the state to resume from, then the model. The state tells the validation loss, so
        that a run killed between the two can be finished by the next (`make_up`)."""
        in_epochs = self.spec["train"]["ckpt"]["save_freq_in_epoch"]
        name = f"epoch_{self.epoch}" if in_epochs else f"step_{self.step}"
        state = {
            "step": self.step,
            "total_steps": self.total_steps,
            "records": len(self.training),
            "val_loss": val_loss,
        }
        folder = self.run_dir / "checkpoints" / name / "policy"
        try:
            checkpointing.save_state(folder, self.network, self.optimizer, self.spec, state)
        except (Failure, OSError):  # a disk too full for the state may still take the model
            with suppress(OSError):
                folder.parent.rmdir()
            self.save_model(self.run_dir, name, val_loss)
            raise
        self.save_model(self.run_dir, name, val_loss)

    def save_model(self, run_dir: Path, name: str, val_loss: float | None) -> None:
        """Export the model of the present step, where the spec wants one, and rank it."""
        train = self.spec["train"]
        if self.exports():
            folder = run_dir / "safetensors" / name
            checkpointing.export(
                self.network, self.base_folder, folder, DTYPES[train["param_dtype"]]
            )
        self.rank(run_dir, name, val_loss)
        best = best_link.step_of(run_dir)
        run_outputs.prune(run_dir, train["ckpt"]["max_keep"], keep=[best])

    def exports(self) -> bool:
        """Whether the spec wants the model of the present step."""
        return self.spec["train"]["ckpt"]["export_safetensors"] or self.step == self.total_steps

    def rank(self, run_dir: Path, name: str, val_loss: float | None) -> None:
        """Let `best` mean this step when its validation loss is the lowest so far."""
        if val_loss is not None and val_loss < self.best_score:
            self.best_score = val_loss
            best_link.write(run_dir, name, val_loss)

    def make_up(self, resumed: Path, val_loss: float | None) -> None:
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
                self.rank(run_dir, name, val_loss)
            return
        if is_own:
            self.save_model(run_dir, name, val_loss)
        else:
            self.save(val_loss)
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
    device = spec["custom"]["transformers_engine"]["device"]
    hardware = models.choose_hardware(device, train["param_dtype"])
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
            passes=Passes(network, spec, folder, hardware),
            total_steps=total,
            steps_per_epoch=per_epoch,
            step=state["step"],
            best_score=best_link.lowest_loss(output_dir) if resumed else math.inf,
        )
        if resumed and train["ckpt"]["enable_checkpoint"]:
            trainer.make_up(resumed, state.get("val_loss"))
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
    table = custom[name]
    encoder = Encoder(
        tokenizer,
        folder,
        table["media_path"],
        VisionOptions.from_table(custom["vision"]),
        spec["policy"]["model_max_length"],
        cache_bytes=int(custom["transformers_engine"]["frame_cache_gib"] * GIB),
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
