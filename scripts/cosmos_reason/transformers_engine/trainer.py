"""The training loop: batches in, optimizer steps, validation and checkpoints on the way."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from cosmos_reason import checkpoints, schedule
from cosmos_reason.annotations import Sample
from cosmos_reason.findings import Failure, outside
from cosmos_reason.transformers_engine import saving
from cosmos_reason.transformers_engine.inputs import IGNORED, Encoder, collate
from cosmos_reason.transformers_engine.model import DTYPES, Hardware
from cosmos_reason.transformers_engine.progress import MetricsLog

GIB = 1024**3


class Samples(torch.utils.data.Dataset):
    """Encoded training samples; decoding happens in whoever asks (the main process or a loader worker)."""

    def __init__(self, samples: list[Sample], encoder: Encoder, system_prompt: str):
        self.samples, self.encoder, self.system_prompt = samples, encoder, system_prompt

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor] | Failure:
        """A Failure is returned, not raised: torch would make a RuntimeError of it on its way out of a worker."""
        try:
            return self.encoder.encode_training(self.samples[index], self.system_prompt)
        except Failure as failure:
            return failure


def readable(samples: list) -> list[dict[str, torch.Tensor]]:
    """`samples` when all of them could be encoded. Raises the first Failure among them."""
    for sample in samples:
        if isinstance(sample, Failure):
            raise sample
    return samples


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
    metrics: MetricsLog
    pad_id: int
    total_steps: int
    steps_per_epoch: int
    step: int = 0
    best_score: float = math.inf
    best_step: str = ""

    # -- one optimizer step --------------------------------------------------------------------------------------

    def loss_sum(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Summed cross entropy over the positions that carry loss. Only their logits are computed: at a vocabulary
        of 151,936 the full ones cost more memory than the model's activations."""
        batch = {key: value.to(self.hardware.device, non_blocking=True) for key, value in batch.items()}
        labels = batch.pop("labels")[:, 1:]
        network = self.network.get_base_model() if hasattr(self.network, "peft_config") else self.network
        with self.hardware.autocast():
            hidden = network.model(**batch, use_cache=False).last_hidden_state[:, :-1]
            logits = network.lm_head(hidden[labels != IGNORED])
        return F.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")

    def optimizer_step(self, samples: list[dict[str, torch.Tensor]]) -> dict:
        """One update from `train_batch_per_replica` samples, `mini_batch` at a time. The loss is the mean over all
        loss-carrying tokens of the whole batch, so that it does not depend on `mini_batch`."""
        train = self.spec["train"]
        size = train["train_policy"]["mini_batch"]
        tokens = sum(int((sample["labels"] != IGNORED).sum()) for sample in samples)
        total = 0.0
        for first in range(0, len(samples), size):
            loss = self.loss_sum(collate(samples[first : first + size], self.pad_id, "right")) / tokens
            loss.backward()
            total += loss.item()
        trainable = self.optimizer.param_groups[0]["params"]
        norm = torch.nn.utils.clip_grad_norm_(trainable, train["optm_grad_norm_clip"] or float("inf")).item()
        rate = train["optm_lr"] * schedule.learning_rate_factor(self.step, self.total_steps, train)
        self.optimizer.param_groups[0]["lr"] = rate
        if not (torch.isfinite(torch.tensor([total, norm])).all()):
            raise outside(
                "ENGINE-LOSS-NOT-FINITE",
                f"step {self.step + 1}",
                f"got loss {total}, gradient norm {norm}",
                f"--set train.optm_lr={train['optm_lr'] / 10:g}",
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"train/loss": total, "train/learning_rate": rate, "train/grad_norm": norm}

    # -- the run -------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[list[dict[str, torch.Tensor]]]:
        """Batches from the current step to the last; the order depends on `dataloader_seed` and the epoch alone."""
        policy, size = self.spec["train"]["train_policy"], self.spec["train"]["train_batch_per_replica"]
        plan = []
        for epoch in range(self.total_steps // self.steps_per_epoch + 1):
            order = range(len(self.training))
            if policy["dataloader_shuffle"]:
                generator = torch.Generator().manual_seed(policy["dataloader_seed"] + epoch)
                order = torch.randperm(len(self.training), generator=generator).tolist()
            plan += [list(order[i * size : (i + 1) * size]) for i in range(self.steps_per_epoch)]
        workers = min(policy["dataloader_num_workers"], len(os.sched_getaffinity(0)))  # more only share the cores
        return iter(
            DataLoader(
                self.training,
                batch_sampler=plan[self.step : self.total_steps],
                collate_fn=list,
                num_workers=workers,
                prefetch_factor=policy["dataloader_prefetch_factor"] if workers else None,
            )
        )

    def run(self) -> None:
        train, validation = self.spec["train"], self.spec["validation"]
        seed = train["seed"] or 0
        self.network.train()
        if validation["enable"] and validation["val_before_train"] and self.step == 0:
            self.validate()
        for samples in map(readable, self.batches()):
            started = time.perf_counter()
            torch.manual_seed(seed + self.step)  # dropout then does not depend on where a run was resumed
            line = self.optimizer_step(samples)
            self.step += 1
            seconds = time.perf_counter() - started
            tokens = sum(len(sample["input_ids"]) for sample in samples)
            epoch = (self.step - 1) // self.steps_per_epoch + 1
            head = {"step": self.step, "total_steps": self.total_steps, "epoch": epoch}
            speed = {"train/step_seconds": seconds, "train/tokens_per_second": tokens / seconds}
            self.metrics.write(head | line | speed | self.gpu_memory())
            saves = self.saves_now()
            try:
                score = self.validate() if validation["enable"] and (saves or self.validates_now()) else None
            except Failure:  # a validation clip that cannot be read must not cost the trained weights
                if saves:
                    self.save(None)
                raise
            if saves:
                self.save(score)

    def gpu_memory(self) -> dict:
        if self.hardware.device.type != "cuda":
            return {}
        return {"gpu/memory_gib": torch.cuda.max_memory_allocated() / GIB}

    def _due(self, in_epochs: int, in_steps: int) -> bool:
        every = in_epochs * self.steps_per_epoch if in_epochs else in_steps
        return self.step == self.total_steps or self.step % every == 0

    def saves_now(self) -> bool:
        ckpt = self.spec["train"]["ckpt"]
        return ckpt["enable_checkpoint"] and self._due(ckpt["save_freq_in_epoch"], ckpt["save_freq"])

    def validates_now(self) -> bool:
        validation = self.spec["validation"]
        return self._due(validation["freq_in_epoch"], validation["freq"])

    @torch.no_grad()
    def validate(self) -> float:
        """Mean cross entropy per loss-carrying token over the whole validation set."""
        self.network.train(False)
        size = self.spec["validation"]["batch_size"] or self.spec["train"]["train_policy"]["mini_batch"]
        loss, tokens = 0.0, 0
        for first in range(0, len(self.validation), size):
            samples = readable([self.validation[i] for i in range(first, min(first + size, len(self.validation)))])
            loss += self.loss_sum(collate(samples, self.pad_id, "right")).item()
            tokens += sum(int((sample["labels"] != IGNORED).sum()) for sample in samples)
        self.network.train()
        self.metrics.write({"step": self.step, "val/avg_loss": loss / tokens, "val/tokens": tokens})
        return loss / tokens

    def save(self, val_loss: float | None) -> None:
        ckpt = self.spec["train"]["ckpt"]
        in_epochs = ckpt["save_freq_in_epoch"]
        name = f"epoch_{-(-self.step // self.steps_per_epoch)}" if in_epochs else f"step_{self.step}"
        state = {"step": self.step, "total_steps": self.total_steps, "records": len(self.training)}
        resume = self.run_dir / "checkpoints" / name / "policy"
        saving.save_resume(resume, self.network, self.optimizer, self.spec, state)
        if ckpt["export_safetensors"] or self.step == self.total_steps:
            dtype = DTYPES[self.spec["train"]["param_dtype"]]
            saving.export(self.network, self.base_folder, self.run_dir / "safetensors" / name, dtype)
        if val_loss is not None and val_loss < self.best_score:
            self.best_score, self.best_step = val_loss, name
            checkpoints.write_best(self.run_dir, name, val_loss)
        checkpoints.prune(self.run_dir, ckpt["max_keep"], keep=[self.best_step])
