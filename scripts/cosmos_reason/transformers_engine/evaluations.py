"""One evaluate spec, several evaluations: of many checkpoints, and on many GPUs at a time."""

from __future__ import annotations

import copy
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason import checkpoints, storage
from cosmos_reason.findings import Finding, bad_input, outside, warning


def of_checkpoints(spec: dict, folders: Sequence[Path]) -> tuple[list[dict], list[Finding]]:
    """The spec once per checkpoint, each with a results folder of its own below `results_dir`; a training output stands
    for all its models. Damaged ones are named in a warning. Raises Failure when nothing is left."""
    models, found = [], []
    for folder in folders:
        alone = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
        listed = [] if alone else [c for c in checkpoints.find(folder) if c.kind != checkpoints.RESUME]
        models += [folder] if alone else [c.path for c in listed if c.complete]
        found += [warning("EVAL-CHECKPOINT-SKIPPED", c.path, "got a damaged checkpoint, which is left out",
                          f"scripts/select_checkpoint.py {folder}") for c in listed if not c.complete]  # fmt: skip
        if not alone and not any(c.complete for c in listed):
            raise bad_input("EVAL-NO-CHECKPOINT", folder, "got no undamaged model, expected one or an output folder")
    specs = {name(path): _with_model(spec, path) for path in models}
    if len(specs) < len(models):
        raise bad_input("EVAL-CHECKPOINT-TWICE", "--checkpoint", "got two of one name, expected different names")
    return list(specs.values()), found


def name(checkpoint: Path) -> str:
    """step_10 of run 20260101120000 is 20260101120000-step_10; any other folder has its own name."""
    checkpoint = checkpoint.resolve()  # best/ is a link
    in_run = checkpoint.parent.name in ("safetensors", "merged")
    return f"{checkpoint.parts[-3]}-{checkpoint.name}" if in_run else checkpoint.name


def _with_model(spec: dict, path: Path) -> dict:
    spec = copy.deepcopy(spec)
    adapter = checkpoints.kind(path) == checkpoints.ADAPTER
    base = spec["model"]["base_model_path"] if adapter else ""
    spec["model"] |= {"model_name": str(path), "enable_lora": adapter, "base_model_path": base}
    if spec["results_dir"]:
        spec["results_dir"] = str(Path(spec["results_dir"], name(path)))
    return spec


def on_every_gpu(command: Sequence[str], count: int, results_dirs: Sequence[str]) -> list[dict]:
    """Run `command --shard i/count` once per GPU and wait; the last to finish merges the rows. One result per folder.
    Raises Failure (exit 3) when one fails: the others end, and the next run continues with the answers there are."""
    started = time.monotonic()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [gpu for gpu in visible.split(",") if gpu] if visible is not None else [str(n) for n in range(count)]
    if len(gpus) < count:
        message = f"got {len(gpus)} visible GPUs ({visible}), expected num_gpus={count}"
        raise bad_input("EVAL-GPUS", "num_gpus", message, f"--set num_gpus={max(len(gpus), 1)}")
    running = []
    for number, gpu in enumerate(gpus[:count], 1):
        shard, env = [*command, "--shard", f"{number}/{count}"], os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        running.append(subprocess.Popen(shard, env=env, stdout=subprocess.DEVNULL))
    try:
        while any(child.poll() is None for child in running) and not any(child.returncode for child in running):
            time.sleep(0.2)
    finally:
        for child in running:
            child.terminate()
        codes = [child.wait() for child in running]
    if any(codes):
        raise outside("EVAL-SHARD-FAILED", "num_gpus", f"got exit codes {codes} of the {count} processes, expected 0")
    seconds = round(time.monotonic() - started, 1)
    return [_result(Path(folder) / "results.json") | {"seconds": seconds} for folder in results_dirs]


def _result(path: Path) -> dict:
    rows = storage.read_json(path)
    return {"results": str(path), "rows": len(rows), "failed": sum(row["error"] is not None for row in rows)}
