"""What a training is made of before its first step: data, network, optimizer, steps, folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import MethodType
from typing import ClassVar

import torch

from cosmos_reason.base.files import read_json
from cosmos_reason.base.findings import bad_input
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.data.frames import FrameCache
from cosmos_reason.engine import model as models
from cosmos_reason.engine.conversations import training_samples
from cosmos_reason.engine.encode import Encoder
from cosmos_reason.engine.model import DTYPES, Hardware
from cosmos_reason.engine.samples import Samples
from cosmos_reason.engine.train import fp8, reading, shards, wandb_run
from cosmos_reason.engine.train.features import Features
from cosmos_reason.engine.train.passes import Passes
from cosmos_reason.estimate import steps
from cosmos_reason.estimate.gpu_memory import GIB
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.remote import hub
from cosmos_reason.spec.keys import BATCH


def datasets(
    spec: dict, folder: Path, tokenizer, on_node: int = 1
) -> tuple[Samples, Samples | None]:
    """Return training samples and, when the spec validates, validation samples. All processes of a
    machine that read them share the memory for decoded frames."""
    processes = on_node * max(1, reading.workers(spec["train"]["train_policy"], on_node))
    limit = spec["custom"]["transformers_engine"]["frame_cache_gib"] * GIB / processes
    cache = FrameCache(int(limit))
    training = _samples(spec, "train_dataset", folder, tokenizer, cache)
    if not spec["validation"]["enable"]:
        return training, None
    return training, _samples(spec, "val_dataset", folder, tokenizer, cache)


def _samples(spec: dict, name: str, folder: Path, tokenizer, cache: FrameCache) -> Samples:
    custom = spec["custom"]
    table, options = custom[name], custom["transformers_engine"]
    encoder = Encoder(
        tokenizer,
        folder,
        table["media_path"],
        VisionOptions.from_table(custom["vision"]),
        spec["policy"]["model_max_length"],
        cache,
        tells_content=options["feature_cache_gib"] > 0,
    )
    system_prompt = spec["train"]["train_policy"]["system_prompt"]
    return Samples(training_samples(table, f"custom.{name}"), encoder, system_prompt)


def plan_steps(records: int, train: dict, world: int = 1) -> tuple[int, int]:
    """Return (steps per epoch, steps in all) where each of the processes takes a batch. Raises
    Failure when not one step would run."""
    batch = train["train_batch_per_replica"]
    drop_last = train["train_policy"]["dataloader_drop_last"]
    per_epoch = steps.steps_per_epoch(records, batch, world, drop_last)
    if not per_epoch:
        each = f" over {world} processes" if world > 1 else ""
        message = (
            f"got {batch} for {records} records{each}, expected at most that many "
            "(no step would run)"
        )
        fix = Fix(changes={BATCH: -(-records // world)})
        raise bad_input("ENGINE-NO-STEPS", BATCH, message, fix)
    return per_epoch, steps.total_steps(records, train, world)


def build_network(spec: dict, folder: Path, hardware: Hardware):
    """Return the trainable model: master weights in `master_dtype` (LoRA: frozen base in
    `param_dtype`, adapters float32), still on the host, and as they are stored, where they are to
    be sharded."""
    train, policy = spec["train"], spec["policy"]
    lora = policy["lora"]
    dtype = DTYPES[train["master_dtype"]]
    if lora:
        dtype = torch.float32 if hardware.device.type == "cpu" else DTYPES[train["param_dtype"]]
    is_sharded = shards.count(spec) > 1
    device = hardware.device
    if is_sharded:
        device = torch.device("cpu")
        dtype = models.precision_to_read(folder, dtype)
    in_fp8 = spec["custom"]["transformers_engine"]["base_precision"] == "fp8"
    if in_fp8:
        fp8.check(read_json(folder / "config.json"), bool(lora), device)
        device = torch.device("cpu")  # from where it goes on layer by layer
    network = models.load_model(folder, dtype, device)
    network.answer_logits = MethodType(models.answer_logits, network)
    if policy["model_gradient_checkpointing"]:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        # Inputs with gradients, which older recomputation wanted, would train nothing and cost the
        # backward pass of the vision tower; peft asks for them again.
        network.disable_input_require_grads()
        wrapped = models.add_lora(
            network, lora, policy["model_name_or_path"], hub.commit_of(folder)
        )
        network.disable_input_require_grads()
        if in_fp8:
            fp8.freeze(models.decoder_layers(network, folder), hardware.device)
            wrapped.to(hardware.device)
        network = wrapped
    models.choose_trainable(network, policy)
    return network


def shard(network, spec: dict, folder: Path, hardware: Hardware) -> None:
    """Spread the weights over the ranks, where the spec wants it; all ranks have to."""
    parts = shards.count(spec)
    if parts == 1:
        return
    replicas = spec["policy"]["parallelism"]["dp_replicate_size"]
    decoder = models.decoder_layers(network, folder)
    mesh = shards.mesh(hardware.device, parts, replicas)
    master = DTYPES[spec["train"]["master_dtype"]]
    shards.spread(network, decoder, mesh, master, hardware.compute)
    if master == torch.float32:
        network.to(hardware.device, master)
    else:  # also of buffers that are float32
        network.to(hardware.device)


def build_optimizer(network, train: dict):
    """Return the optimizer over the trainable parameters, in one group."""
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
    """Return what keeps features of vision, where the spec gives it room."""
    if not gib:
        return None
    passes.layers = passes.decoder  # compiling does not pay for what runs once a clip
    return Features(models.unwrapped(network), gib)


def new_run_folder(output_dir: Path) -> Path:
    """Return a folder named after the second, as cosmos-rl names it, that no other run has."""
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


class Unwritten:
    """The log of a process that writes none."""

    kept: ClassVar[dict] = {}

    def write(self, line: dict) -> None:
        pass


@contextmanager
def metrics_log(
    spec: dict, path: Path, run_dir: Path, total: int, state: dict, is_first: bool
) -> Iterator[MetricsLog | wandb_run.Reported | Unwritten]:
    """Yield the log of a training that begins or goes on from a state: of several processes the
    first writes them."""
    if not is_first:
        yield Unwritten()
        return
    with (
        closing(MetricsLog(path, "train", total, state["step"])) as log,
        wandb_run.reported(log, spec, run_dir, state) as metrics,
    ):
        yield metrics
