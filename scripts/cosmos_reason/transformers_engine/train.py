"""Training: data, model and optimizer from a spec; steps, validation and checkpoints in cosmos-rl's layout; resume."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

from cosmos_reason import annotations, checkpoints, schedule
from cosmos_reason.annotations import Sample
from cosmos_reason.findings import EXIT_BAD_INPUT, Failure, bad_input, has_errors, outside
from cosmos_reason.storage import read_json, whole_folder, write_json
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.inputs import IGNORED, Encoder, collate
from cosmos_reason.transformers_engine.model import DTYPES, Hardware
from cosmos_reason.transformers_engine.progress import MetricsLog
from cosmos_reason.vision_tokens import VisionOptions

GIB = 1024**3
INDEX = "model.safetensors.index.json"
NOT_OF_THE_RESULT = {INDEX, "provenance.json"}  # what the base says of its own weights
RANK_MARKER = ".rank_0_complete"


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
        if not math.isfinite(total + norm):
            fix = f"--set train.optm_lr={train['optm_lr'] / 10:g}"
            message = f"got loss {total}, gradient norm {norm}"
            raise outside("ENGINE-LOSS-NOT-FINITE", f"step {self.step + 1}", message, fix)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"train/loss": total, "train/learning_rate": rate, "train/grad_norm": norm}

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
        ahead = policy["dataloader_prefetch_factor"] if workers else None
        options = {"collate_fn": list, "num_workers": workers, "prefetch_factor": ahead}
        return iter(DataLoader(self.training, batch_sampler=plan[self.step : self.total_steps], **options))

    def run(self) -> None:
        validation, ckpt = self.spec["validation"], self.spec["train"]["ckpt"]
        seed = self.spec["train"]["seed"] or 0
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
            on_gpu = self.hardware.device.type == "cuda"
            memory = {"gpu/memory_gib": torch.cuda.max_memory_allocated() / GIB} if on_gpu else {}
            self.metrics.write(head | line | speed | memory)
            saves = ckpt["enable_checkpoint"] and self._due(ckpt["save_freq_in_epoch"], ckpt["save_freq"])
            validates = saves or self._due(validation["freq_in_epoch"], validation["freq"])
            try:
                score = self.validate() if validation["enable"] and validates else None
            except Failure:  # a validation clip that cannot be read must not cost the trained weights
                if saves:
                    self.save(None)
                raise
            if saves:
                self.save(score)

    def _due(self, in_epochs: int, in_steps: int) -> bool:
        every = in_epochs * self.steps_per_epoch if in_epochs else in_steps
        return self.step == self.total_steps or self.step % every == 0

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
        save_resume(resume, self.network, self.optimizer, self.spec, state)
        if ckpt["export_safetensors"] or self.step == self.total_steps:
            dtype = DTYPES[self.spec["train"]["param_dtype"]]
            export(self.network, self.base_folder, self.run_dir / "safetensors" / name, dtype)
        if val_loss is not None and val_loss < self.best_score:
            self.best_score, self.best_step = val_loss, name
            checkpoints.write_best(self.run_dir, name, val_loss)
        checkpoints.prune(self.run_dir, ckpt["max_keep"], keep=[self.best_step])


def read_samples(table: dict, where: str) -> list[Sample]:
    if not table["annotation_path"]:
        raise bad_input("ENGINE-NO-DATA", f"{where}.annotation_path", "got nothing, expected an annotation file")
    samples, found = annotations.read(Path(table["annotation_path"]))
    if has_errors(found):
        raise Failure(found, EXIT_BAD_INPUT)
    return samples


def newest_resume(output_dir: Path) -> Path | None:
    """The complete resume folder of the highest step under any run of `output_dir`."""
    folders = [p for p in output_dir.glob("*/checkpoints/*/policy") if checkpoints.is_complete_resume(p)]
    steps = {p: json.loads((p / "trainer_state.json").read_text())["step"] for p in folders}
    return max(folders, key=steps.get, default=None)


def build_network(spec: dict, folder: Path, hardware: Hardware):
    """The trainable model: master weights in `master_dtype` (LoRA: frozen base in `param_dtype`, adapters float32)."""
    train, policy = spec["train"], spec["policy"]
    lora = policy["lora"]
    low = torch.float32 if hardware.device.type == "cpu" else DTYPES[train["param_dtype"]]
    network = models.load_model(folder, low if lora else DTYPES[train["master_dtype"]], hardware.device)
    if policy["model_gradient_checkpointing"]:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        return models.add_lora(network, lora, policy["model_name_or_path"])
    models.choose_trainable(network, policy)
    return network


def build_optimizer(network, train: dict):
    kind = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}[train["optm_name"]]
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    options = {"betas": tuple(train["optm_betas"]), "eps": train["epsilon"], "weight_decay": train["optm_weight_decay"]}
    return kind(trainable, lr=train["optm_lr"], fused=True, **options)


def datasets(spec: dict, folder: Path, tokenizer) -> tuple[Samples, Samples | None]:
    """Training samples and, when the spec validates, validation samples."""
    options = VisionOptions.from_table(spec["custom"]["vision"])
    cache = int(spec["custom"]["transformers_engine"]["frame_cache_gib"] * GIB)

    def samples(name: str) -> Samples:
        table = spec["custom"][name]
        length = spec["policy"]["model_max_length"]
        encoder = Encoder(tokenizer, folder, table["media_path"], options, length, cache)
        return Samples(read_samples(table, f"custom.{name}"), encoder, spec["train"]["train_policy"]["system_prompt"])

    return samples("train_dataset"), samples("val_dataset") if spec["validation"]["enable"] else None


def plan_steps(records: int, train: dict) -> tuple[int, int]:
    """(steps per epoch, steps in all). Raises Failure when not one step would run."""
    batch = train["train_batch_per_replica"]
    per_epoch = schedule.steps_per_epoch(records, batch, drop_last=train["train_policy"]["dataloader_drop_last"])
    if not per_epoch:
        message = f"got {batch} for {records} records, expected at most that many (no step would run)"
        fix = f"--set train.train_batch_per_replica={records}"
        raise bad_input("ENGINE-NO-STEPS", "train.train_batch_per_replica", message, fix)
    return per_epoch, schedule.total_steps(records, train)


def run(spec: dict, job_dir: Path | None) -> dict:
    """Train as the complete spec says. Returns {run_dir, steps, seconds}; raises Failure before the first step for
    data, model or steps that cannot work."""
    started = time.monotonic()
    train, policy = spec["train"], spec["policy"]
    if not train["output_dir"]:
        raise bad_input("ENGINE-NO-OUTPUT", "train.output_dir", "got nothing", "--set train.output_dir=outputs")
    hardware = models.choose_hardware(spec["custom"]["transformers_engine"]["device"], train["param_dtype"])
    print(hardware.reason, file=sys.stderr)
    torch.manual_seed(train["seed"] or 0)
    torch.use_deterministic_algorithms(train["deterministic"])
    folder = models.model_folder(policy["model_name_or_path"], policy["model_revision"])
    models.check_architecture(folder)
    tokenizer = models.load_tokenizer(folder)
    training, validation = datasets(spec, folder, tokenizer)
    per_epoch, total = plan_steps(len(training), train)
    network = build_network(spec, folder, hardware)
    optimizer = build_optimizer(network, train)
    output_dir = Path(train["output_dir"])
    step, best = resume(train["resume"], output_dir, network, optimizer, total, len(training))
    run_dir = output_dir / (train["timestamp"] or datetime.now().strftime("%Y%m%d%H%M%S"))  # as cosmos-rl names it
    metrics = MetricsLog((job_dir or run_dir) / "metrics.jsonl", "train", total, step)
    parts = {"network": network, "base_folder": folder, "hardware": hardware, "optimizer": optimizer}
    parts |= {"training": training, "validation": validation, "pad_id": tokenizer.pad_token_id}
    steps = {"total_steps": total, "steps_per_epoch": per_epoch, "step": step, "best_score": best}
    trainer = Trainer(spec=spec, run_dir=run_dir, metrics=metrics, **parts, **steps)
    trainer.run()
    metrics.close()
    return {"run_dir": str(run_dir), "steps": total, "seconds": round(time.monotonic() - started, 1)}


@contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """whole_folder; what the safetensors library could not write (a full disk) is a Failure with exit code 3."""
    try:
        with whole_folder(folder) as partial:
            yield partial
    except SafetensorError as problem:
        fix = "free space there, or --set train.ckpt.max_keep=1"
        raise outside("ENGINE-SAVE-FAILED", folder, f"got {problem}", fix) from None


def export(network, base_folder: Path, folder: Path, dtype: torch.dtype) -> None:
    """A folder that loads by itself (full model) or on its base (LoRA). Everything but the weights is copied from
    the base, byte for byte: a config that transformers 5 writes cannot be read by 4.57."""
    with _written(folder) as partial:
        if hasattr(network, "peft_config"):
            network.save_pretrained(partial)
        else:
            weights = {name: tensor.detach().to("cpu", dtype) for name, tensor in network.state_dict().items()}
            network.save_pretrained(partial, state_dict=weights, max_shard_size="5GB")
            _ensure_index(partial)
        for path in base_folder.iterdir():
            if path.suffix in {".json", ".jinja", ".txt"} and path.name not in NOT_OF_THE_RESULT and path.is_file():
                shutil.copyfile(path, partial / path.name)


def _ensure_index(folder: Path) -> None:
    """transformers writes no index for a single file; readers of cosmos-rl exports expect one."""
    single = folder / "model.safetensors"
    if single.is_file():
        with safe_open(single, framework="pt") as weights:
            names = list(weights.keys())
        size = single.stat().st_size
        write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names, single.name)})


def save_resume(folder: Path, network, optimizer, spec: dict, state: dict) -> None:
    """Everything `load_resume` needs to continue as if nothing had happened. No pickle."""
    moments = {
        f"{index}.{key}": value.detach().cpu().contiguous()
        for index, parameter in enumerate(optimizer.param_groups[0]["params"])
        for key, value in optimizer.state[parameter].items()
    }
    with _written(folder) as partial:
        save_file(_trainable(network), partial / "model.safetensors")
        save_file(moments, partial / "optimizer.safetensors")
        write_json(partial / "trainer_state.json", state)
        write_json(partial / "cosmos_config", spec)
        (partial / RANK_MARKER).touch()


def load_resume(folder: Path, network, optimizer) -> dict:
    """Put weights and optimizer back and return the trainer state (`step`, `total_steps`, `records`)."""
    if not checkpoints.is_complete_resume(folder):
        raise bad_input("ENGINE-RESUME-INCOMPLETE", folder, "got no complete resume folder (checkpoints/*/policy)")
    weights = load_file(folder / "model.safetensors")
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if weights.keys() != parameters.keys():
        raise bad_input("ENGINE-RESUME-OTHER-MODEL", folder, "got a checkpoint of another model or tuning method")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, _, name = key.partition(".")
        parameter = optimizer.param_groups[0]["params"][int(index)]
        optimizer.state[parameter][name] = value.to(parameter.device)
    return read_json(folder / "trainer_state.json")


def _trainable(network) -> dict[str, torch.Tensor]:
    return {name: p.detach().cpu().contiguous() for name, p in network.named_parameters() if p.requires_grad}


def resume(wanted: bool | str, output_dir: Path, network, optimizer, total: int, records: int) -> tuple[int, float]:
    """(optimizer steps already done, best validation loss so far) after restoring the checkpoint that `train.resume`
    means: a folder, or true for the newest complete one. Raises Failure for a checkpoint of another run."""
    if not wanted:
        return 0, math.inf
    folder = Path(wanted) if isinstance(wanted, str) else newest_resume(output_dir)
    if folder is None:
        print(f"resume: no complete checkpoint under {output_dir}, starting at step 0", file=sys.stderr)
        return 0, math.inf
    state = load_resume(folder, network, optimizer)
    then, now = (state["total_steps"], state["records"]), (total, records)
    if then != now:
        message = "got a checkpoint of {} steps over {} records, expected {} steps over {} records"
        raise bad_input("ENGINE-RESUME-OTHER-RUN", folder, message.format(*then, *now))
    print(f"resume: step {state['step']} of {total} from {folder}", file=sys.stderr)
    score = output_dir / "best" / "best_score.json"
    return state["step"], read_json(score)["best_score"] if score.is_file() else math.inf
