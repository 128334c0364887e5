"""Setting up a training run from a spec: data, model, optimizer, resume."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import datetime
from pathlib import Path

import torch

from cosmos_reason import annotations, checkpoints, schedule
from cosmos_reason.annotations import Sample
from cosmos_reason.findings import Failure, bad_input, has_errors
from cosmos_reason.storage import read_json
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine import saving
from cosmos_reason.transformers_engine.inputs import Encoder
from cosmos_reason.transformers_engine.progress import MetricsLog
from cosmos_reason.transformers_engine.trainer import GIB, Samples, Trainer
from cosmos_reason.vision_tokens import VisionOptions


def read_samples(table: dict, where: str) -> list[Sample]:
    if not table["annotation_path"]:
        raise bad_input("ENGINE-NO-DATA", f"{where}.annotation_path", "got nothing, expected an annotation file")
    samples, found = annotations.read(Path(table["annotation_path"]))
    if has_errors(found):
        raise Failure(found, 2)
    return samples


def run_folder(output_dir: Path, timestamp: str) -> Path:
    """`output_dir/<YYYYmmddHHMMSS>`; an explicit `train.timestamp` names an own folder, as in cosmos-rl."""
    return output_dir / (timestamp or datetime.now().strftime("%Y%m%d%H%M%S"))


def newest_resume(output_dir: Path) -> Path | None:
    """The complete resume folder of the highest step under any run of `output_dir`."""
    folders = [p for p in output_dir.glob("*/checkpoints/*/policy") if checkpoints.is_complete_resume(p)]
    steps = {p: json.loads((p / "trainer_state.json").read_text())["step"] for p in folders}
    return max(folders, key=steps.get, default=None)


def build_network(spec: dict, folder: Path, hardware: models.Hardware):
    """The trainable model: master weights in `master_dtype` (LoRA: frozen base in `param_dtype`, adapters float32)."""
    train, policy = spec["train"], spec["policy"]
    lora = policy["lora"]
    low = torch.float32 if hardware.device.type == "cpu" else models.DTYPES[train["param_dtype"]]
    network = models.load_model(folder, low if lora else models.DTYPES[train["master_dtype"]], hardware.device)
    if policy["model_gradient_checkpointing"]:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        return models.add_lora(network, lora, policy["model_name_or_path"])
    models.choose_trainable(network, policy)
    return network


def build_optimizer(network, train: dict):
    cls = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}[train["optm_name"]]
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return cls(
        trainable,
        lr=train["optm_lr"],
        betas=tuple(train["optm_betas"]),
        eps=train["epsilon"],
        weight_decay=train["optm_weight_decay"],
        fused=True,
    )


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
        raise bad_input(
            "ENGINE-NO-STEPS",
            "train.train_batch_per_replica",
            f"got {batch} for {records} records, expected at most that many (no step would run)",
            f"--set train.train_batch_per_replica={records}",
        )
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
    run_dir = run_folder(output_dir, train["timestamp"])
    metrics = MetricsLog((job_dir or run_dir) / "metrics.jsonl", "train", total, step)
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
        pad_id=tokenizer.pad_token_id,
        total_steps=total,
        steps_per_epoch=per_epoch,
        step=step,
        best_score=best,
    )
    trainer.run()
    metrics.close()
    return {"run_dir": str(run_dir), "steps": total, "seconds": round(time.monotonic() - started, 1)}


def resume(wanted: bool | str, output_dir: Path, network, optimizer, total: int, records: int) -> tuple[int, float]:
    """(optimizer steps already done, best validation loss so far) after restoring the checkpoint that `train.resume`
    means: a folder, or true for the newest complete one. Raises Failure for a checkpoint of another run."""
    if not wanted:
        return 0, math.inf
    folder = Path(wanted) if isinstance(wanted, str) else newest_resume(output_dir)
    if folder is None:
        print(f"resume: no complete checkpoint under {output_dir}, starting at step 0", file=sys.stderr)
        return 0, math.inf
    state = saving.load_resume(folder, network, optimizer)
    if (state["total_steps"], state["records"]) != (total, records):
        raise bad_input(
            "ENGINE-RESUME-OTHER-RUN",
            folder,
            f"got a checkpoint of {state['total_steps']} steps over {state['records']} records, "
            f"expected {total} steps over {records} records",
        )
    print(f"resume: step {state['step']} of {total} from {folder}", file=sys.stderr)
    score = output_dir / "best" / "best_score.json"
    return state["step"], read_json(score)["best_score"] if score.is_file() else math.inf
