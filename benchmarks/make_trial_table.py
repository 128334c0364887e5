"""Makes tests/fixtures/trials.json: 60 real short trainings of the demo task on a grid,
each one evaluated.

    python benchmarks/make_trial_table.py OUTPUT.json [--processes N] [--seconds S] [--epochs N]

One thread per process; about two minutes per trial. Trials that OUTPUT.json already holds are not
run again, and after S seconds no new one is begun, so that the table can be made in several calls.
Needs what the embedded engine needs.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

SEED, VISION = 0, {"nframes": 8, "resized_height": 64, "resized_width": 64}
CLIPS = {"train": 400, "validation": 40, "eval": 100}
GRID = {
    "train.optm_lr": [1e-4, 2e-4, 4e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2],
    "train.train_batch_per_replica": [8, 16, 32],
    "train.optm_warmup_steps": [0.05, 0.3],
}
FIXED = {
    "train.optm_betas": [0.9, 0.95],
    "train.optm_decay_type": "cosine",
    "train.train_policy.mini_batch": 8,
    "train.train_policy.dataloader_num_workers": 0,
    "train.seed": SEED,
    "train.train_policy.dataloader_seed": SEED,
    "train.ckpt.save_freq_in_epoch": 1000,
    "validation.enable": True,
    "validation.freq_in_epoch": 1,
    "validation.batch_size": 60,
    "policy.model_gradient_checkpointing": False,
}


def make_world(root: Path) -> None:
    """The demo's clips and its tiny model, converted."""
    from cosmos_reason.base import files
    from cosmos_reason.checkpoints import conversion, omni
    from cosmos_reason.demo import clips, tiny_omni

    for split, count in CLIPS.items():
        clips.write_split(root / "data", split, count, SEED)
    records = files.read_json(root / "data/train/annotations.json")
    tiny_omni.build(
        root / "omni",
        SEED,
        [turn["value"] for record in records for turn in record["conversations"]],
    )
    conversion.convert(omni.open_source(root / "omni"), root / "model", 10**9, force=False, jobs=1)


def trial(job: tuple[Path, int, dict, int]) -> dict:
    """Train and evaluate one point of the grid.
    {values, accuracy, by_type, validation [[step, loss]], ...}."""
    import torch

    torch.set_num_threads(1)
    from cosmos_reason.engine.answer.responder import Responder
    from cosmos_reason.engine.train import run as train
    from cosmos_reason.evaluation import run as evaluation
    from cosmos_reason.spec import document

    root, number, values, epochs = job
    output, started = root / f"trial-{number}", time.monotonic()
    table = document.with_defaults("train", document.template("train"))
    paths = {
        f"custom.{name}_dataset.annotation_path": str(root / "data" / split / "annotations.json")
        for name, split in (("train", "train"), ("val", "validation"))
    }
    paths |= {
        key.replace("annotation_path", "media_path"): str(Path(value).parent)
        for key, value in paths.items()
    }
    paths |= {"policy.model_name_or_path": str(root / "model"), "train.output_dir": str(output)}
    vision = {f"custom.vision.{name}": value for name, value in VISION.items()}
    for key, value in (
        FIXED | values | paths | vision | {"train.timestamp": "run", "train.epoch": epochs}
    ).items():
        document.set_value(table, key, value)
    row = {"values": values}
    try:
        done = train.run(table, output)
    except Exception as problem:  # a diverged trial is a row of the table too
        return row | {
            "accuracy": None,
            "problem": str(problem)[:200],
            "seconds": round(time.monotonic() - started, 1),
        }
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = [
        [line["step"], round(line["val/avg_loss"], 4)] for line in lines if "val/avg_loss" in line
    ]
    trained = time.monotonic()
    asked = document.with_defaults("evaluate", document.template("evaluate"))
    asked["dataset"] |= {
        "annotation_path": str(root / "data/eval/annotations.json"),
        "media_dir": str(root / "data/eval"),
    }
    asked["model"]["model_name"] = str(output / "run" / "safetensors" / f"epoch_{epochs}")
    asked["vision"] = document.with_defaults("evaluate", {"vision": VISION})["vision"]
    asked["generation"]["max_tokens"] = 8
    asked["evaluation"]["batch_size"] = 60
    asked["results_dir"] = str(output / "results")
    evaluation.run(asked, output, Responder(asked))
    rows, kinds = json.loads((output / "results" / "results.json").read_text()), {}
    for each in rows:
        kinds.setdefault(each["type"], []).append(each["correct"] is True)
    row |= {"accuracy": round(sum(each["correct"] is True for each in rows) / len(rows), 4)}
    row |= {
        "by_type": {
            kind: round(sum(right) / len(right), 3) for kind, right in sorted(kinds.items())
        }
    }
    row |= {"validation": losses, "steps": done["steps"]}
    return row | {"seconds": [round(trained - started, 1), round(time.monotonic() - trained, 1)]}


def write(path: Path, epochs: int, trials: list[dict]) -> None:
    """Whole or not at all, with one line per trial."""
    head = {
        "task": f"demo, seed {SEED}: {CLIPS}",
        "epochs": epochs,
        "grid": GRID,
        "fixed": FIXED | VISION,
    }
    order = [list(values) for values in itertools.product(*GRID.values())]
    trials = sorted(trials, key=lambda row: order.index(list(row["values"].values())))
    lines = ",\n  ".join(json.dumps(row) for row in trials)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(head)[:-1] + f', "trials": [\n  {lines}\n]}}\n')
    os.replace(temporary, path)


def left_to_run(rows: list[dict]) -> list[dict]:
    """Points of the grid without a row. Those with more steps take longer and come first."""
    grid = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    have = [row["values"] for row in rows]
    left = [values for values in grid if values not in have]
    return sorted(left, key=lambda values: values["train.train_batch_per_replica"])


def run_trials(pool, jobs: list[tuple], processes: int, until: float):
    """The rows of the jobs as they come; none is begun after `until` (monotonic seconds)."""
    waiting = iter(jobs)
    running = [pool.apply_async(trial, (job,)) for job in itertools.islice(waiting, processes)]
    while running:
        time.sleep(0.5)
        for one in [one for one in running if one.ready()]:
            running.remove(one)
            yield one.get()
            if time.monotonic() < until:
                running += [pool.apply_async(trial, (job,)) for job in itertools.islice(waiting, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no trial after this many"
    )
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    started, rows = time.monotonic(), []
    if args.output.is_file():
        rows = json.loads(args.output.read_text())["trials"]
    left = left_to_run(rows)
    total = math.prod(len(values) for values in GRID.values())
    with tempfile.TemporaryDirectory() as folder:
        make_world(Path(folder))
        print(
            f"world made in {time.monotonic() - started:.0f} s, {len(left)} trials to run",
            flush=True,
        )
        jobs = [(Path(folder), number, values, args.epochs) for number, values in enumerate(left)]
        with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=1) as pool:
            for row in run_trials(pool, jobs, args.processes, started + args.seconds):
                rows.append(row)
                write(args.output, args.epochs, rows)
                seconds = time.monotonic() - started
                print(f"{seconds:.0f} s: {len(rows)} of {total}: {row}", flush=True)


if __name__ == "__main__":
    main()
