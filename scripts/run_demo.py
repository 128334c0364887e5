#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2",
#   "numpy==2.4.6", "av==18.1.0", "pillow==13.0.0", "pyarrow==26.0.1", "jinja2==3.1.6",
#   "sacrebleu==2.6.0", "rouge-score==0.1.2", "torch==2.13.0", "transformers==5.17.0",
#   "tokenizers==0.23.3", "safetensors==0.8.0", "peft==0.21.2", "accelerate==1.15.0",
# ]
# ///
"""The whole loop on a laptop: make clips and a tiny Cosmos3 (or Cosmos-Reason1, Cosmos3-Edge)
checkpoint, then convert it, check, train, evaluate, report.

examples:
  scripts/run_demo.py
  scripts/run_demo.py --model reason1
  scripts/run_demo.py --model edge
  scripts/run_demo.py --seed 3 --output /tmp/demo

Each command is printed before it runs, so the output reads as a tutorial. No GPU and no download is
needed; it takes a few minutes on two cores. It ends with DIR/summary.json and DIR/report.html.
"""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure, bad_input, outside, say

SUMMARY = "summary.json"
MARK = ".cosmos-reason-demo"  # a folder that carries it may be made anew
CLIPS = {"train": 400, "validation": 40, "eval": 100}
# What each model is shown of a clip: frames of four tokens. Of frames further apart Qwen2.5-VL
# learned the direction sooner: with eight it was at chance after 800 steps.
VISION = {
    "cosmos3": ["nframes=8", "resized_height=64", "resized_width=64"],
    "reason1": ["nframes=4", "resized_height=56", "resized_width=56"],
    "edge": ["nframes=4", "resized_height=64", "resized_width=64"],
}
CHECKPOINTS = {
    "cosmos3": "a tiny Cosmos3 Omni checkpoint",
    "reason1": "a tiny Cosmos-Reason1 (Qwen2.5-VL) checkpoint",
    "edge": "a tiny Cosmos3-Edge checkpoint",
}
# A model this small starts from random weights: a high learning rate, full fine-tuning, several
# epochs of small batches. At 7e-4 two seeds of five had not learned the direction of motion, at
# 1e-3 the default one had not (benchmarks/RESULTS.md).
TRAINING = [
    "num_epochs=6",
    "learning_rate=5e-4",
    "train.optm_betas=[0.9,0.95]",
    "batch_size=12",
    "train.train_policy.dataloader_num_workers=0",
    "train.optm_warmup_steps=50",
    "train.ckpt.save_freq_in_epoch=2",
    "validation.enable=true",
    "validation.freq_in_epoch=2",
    "policy.model_gradient_checkpointing=false",
]


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument(
        "--seed", type=int, default=0, help="of clips, initial weights and batch order (default: 0)"
    )
    parser.add_argument(
        "--model",
        choices=list(VISION),
        default="cosmos3",
        help="the architecture that is made tiny and trained (default: cosmos3)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="default: ./demo, made anew",
    )
    return parser


class Shell:
    """Runs the bundle's own commands as a person would type them. `vision` is what the model is
    shown."""

    def __init__(self, vision: list[str]):
        self.vision = vision

    def say(self, text: str) -> None:
        print(f"\n# {text}", flush=True)

    def run(self, script: str, *args: object) -> str:
        """Show and run one script; returns its stdout. Raises Failure (exit 3) when it fails."""
        words = [str(arg) for arg in args]
        print(f"$ {wrapped([f'scripts/{script}', *words])}", flush=True)
        path = bundle.ROOT / "scripts" / script
        done = subprocess.run(
            [sys.executable, path, *words], stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout, end="", flush=True)
        if done.returncode:
            raise outside(
                "DEMO-STEP-FAILED", script, f"got exit code {done.returncode}, expected 0"
            )
        return done.stdout.strip()

    def job(self, action: str, spec: Path, jobs: Path) -> dict:
        """Submit a job, follow it to its end, and return its record."""
        job_id = self.run(
            "launch_job.py",
            "submit",
            action,
            "--spec",
            spec,
            "--platform",
            "local",
            "--jobs-dir",
            jobs,
        )
        self.run("launch_job.py", "watch", job_id, "--jobs-dir", jobs, "--every", 15)
        return files.read_json(jobs / job_id / "job.json")


def wrapped(words: list[str], width: int = 100) -> str:
    """Return a command as people paste it: broken before flags where a line would get too long."""
    lines = [""]
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        quoted = shlex.quote(word)
        value = ""
        if word.startswith("-") and not after.startswith("-"):
            value = f" {shlex.quote(after)}"
        if word.startswith("-") and len(lines[-1]) + len(quoted) + len(value) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {quoted}" if lines[-1] else quoted
    return " \\\n".join(lines)


def set_flags(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def stop_jobs(root: Path) -> None:
    """Cancel what still runs of an interrupted demo: a job goes on without being watched, and would
    write into the folder of the next demo. A record that cannot be read is told and passed over."""
    from cosmos_reason.jobs import platforms

    for record in root.glob("jobs/*/job.json"):
        try:
            has_ended = platforms.settled(record.parent).has_ended
        except Failure as failure:
            say(f"{record}: {failure.findings[0].message}; if a job of it still runs, it goes on")
            continue
        if not has_ended:
            platforms.stop(record.parent, grace=10)


def make_world(root: Path, model: str, seed: int) -> None:
    """Write clips with questions, and a checkpoint with random weights whose tokenizer knows their
    words: of Cosmos3 as it is published, of Reason1 as it is trained."""
    from cosmos_reason.demo import clips, tiny_edge, tiny_omni, tiny_qwen2_5_vl

    for split, count in CLIPS.items():
        clips.write_split(root / "data", split, count, seed)
    records = files.read_json(root / "data" / "train" / "annotations.json")
    words = [turn["value"] for record in records for turn in record["conversations"]]
    if model == "reason1":
        tiny_qwen2_5_vl.build(root / "model", seed, words)
    elif model == "edge":
        tiny_edge.build(root / "omni", seed, words)
    else:
        tiny_omni.build(root / "omni", seed, words)


def evaluate(shell: Shell, root: Path, model: object, name: str) -> Path:
    """Answer every held-out question with `model`; returns the folder of the results."""
    spec = root / f"{name}.toml"
    settings = [f"vision.{option}" for option in shell.vision] + [
        "generation.max_tokens=8",
        "evaluation.batch_size=60",
    ]
    shell.run("build_spec.py", "evaluate", "--engine", "transformers", "--model", model,
              "--eval-root", root / "data" / "eval", *set_flags(settings), "-o", spec)  # fmt: skip
    results = Path(shell.job("evaluate", spec, root / "jobs")["outputs"]["results_dir"])
    shell.run("score_predictions.py", results)
    return results


def train(shell: Shell, root: Path, model: Path, seed: int) -> dict:
    spec, data = root / "train.toml", root / "data"
    settings = [f"custom.vision.{option}" for option in shell.vision] + TRAINING
    settings += [f"train.seed={seed}", f"train.train_policy.dataloader_seed={seed}"]
    shell.run("build_spec.py", "train", "--engine", "transformers", "--model", model, "--tuning",
              "full", "--unset", "train.train_policy.dataloader_prefetch_factor",
              "--train-root", data / "train", "--eval-root", data / "validation",
              "--gpus-per-node", 1, *set_flags(settings), "-o", spec)  # fmt: skip
    return shell.job("train", spec, root / "jobs")


def loop(shell: Shell, root: Path, seed: int) -> tuple[dict, dict, float, str]:
    """Return every step of a fine-tuning, in order. Returns the metrics before and after, the
    seconds of training, and the checkpoint."""
    data, model = root / "data", root / "model"
    if not model.exists():
        shell.say("Convert the published checkpoint to the form that trainers load")
        convert = ["--checkpoint-path", root / "omni", "--output-path", model]
        shell.run("prepare_cosmos3_vlm_checkpoint.py", *convert)
    shell.say("Check the data before anything is trained on it")
    shell.run(
        "check_dataset.py",
        data / "train",
        "--eval",
        data / "eval",
        "--facts",
        root / "dataset_facts.json",
    )
    shell.say("Before: what does the untouched model answer?")
    before = evaluate(shell, root, model, "before")
    shell.say("Fine-tune")
    job = train(shell, root, model, seed)
    shell.say("Choose the checkpoint by validation loss, and verify it")
    checkpoint = shell.run("select_checkpoint.py", job["outputs"]["output_dir"], "--by", "val_loss")
    shell.say("After: the same questions about clips it has never seen")
    after = evaluate(shell, root, checkpoint, "after")
    shell.run("score_predictions.py", after, "--compare", before)
    shell.say("Which questions fail, and a report to look at")
    shell.run("analyze_gaps.py", "--results-dir", after, "--baseline", before,
              "--kpi-ann-path", data / "eval" / "annotations.json",
              "--kpi-media-path", data / "eval",
              "--training-metrics", root / "jobs" / job["job_id"] / "metrics.jsonl",
              "--gaps-parquet", root / "gaps.parquet", "--html", root / "report.html")  # fmt: skip
    lines = (
        (root / "jobs" / job["job_id"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    )
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    seconds = last["time"] - first["time"] + first["train/step_seconds"]
    return (
        files.read_json(before / "metrics.json"),
        files.read_json(after / "metrics.json"),
        round(seconds, 1),
        checkpoint,
    )


def table(before: dict, after: dict) -> str:
    lines = [f"{'held-out accuracy':<20}{'before':>8}{'after':>8}"]
    for kind, found in after["per_type"].items():
        lines.append(
            f"{kind:<20}{before['per_type'][kind]['accuracy']:>8.2f}{found['accuracy']:>8.2f}"
        )
    return "\n".join([*lines, f"{'all':<20}{before['accuracy']:>8.2f}{after['accuracy']:>8.2f}"])


def main(args) -> cli.Outcome:
    started = time.monotonic()
    root = args.output
    if root.exists() and any(root.iterdir()) and not (root / MARK).exists():
        fix = f"scripts/run_demo.py --output {shlex.quote(f'{root}-new')}"
        raise bad_input(
            "DEMO-OUTPUT", root, "got a folder that no demo made, expected none or an old demo", fix
        )
    stop_jobs(root)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / MARK).touch()
    shell = Shell(VISION[args.model])
    made = CHECKPOINTS[args.model]
    shell.say(f"Make {sum(CLIPS.values())} clips with questions and {made} in {root}")
    make_world(root, args.model, args.seed)
    try:
        before, after, train_seconds, checkpoint = loop(shell, root, args.seed)
    except KeyboardInterrupt:
        stop_jobs(root)
        raise
    summary = {
        "model": args.model,
        "seed": args.seed,
        "baseline_accuracy": before["accuracy"],
        "accuracy": after["accuracy"],
        "by_type": {kind: found["accuracy"] for kind, found in after["per_type"].items()},
        "train_seconds": train_seconds,
        "seconds": round(time.monotonic() - started, 1),
        "report": str(root / "report.html"),
    }
    files.write_json(root / SUMMARY, summary)
    took = f"{train_seconds:.0f} s of training, {summary['seconds']:.0f} s in all"
    text = f"\n{table(before, after)}\n\n{took}\nopen {summary['report']}"
    return cli.Outcome(summary, text=text, next=a_question(root, checkpoint))


def a_question(root: Path, checkpoint: str) -> tuple[str, ...]:
    """Return how to ask the trained model a question of one line about a clip that it has not
    seen."""
    record = files.read_json(root / "data" / "eval" / "annotations.json")[1]
    clip = root / "data" / "eval" / record["video"]
    text = record["conversations"][0]["value"].removeprefix("<video>\n")
    return ("ask_model.py", checkpoint, str(clip), text, "--set", "max_tokens=8")


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
