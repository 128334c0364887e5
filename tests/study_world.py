"""Shared by the tests of studies: studies without jobs, and a real but very small tuning problem, a few seconds per
trial."""

import json
import os

from support import run_script

from cosmos_reason import findings, spec, storage
from cosmos_reason.demo import clips, tiny_omni
from cosmos_reason.search import space, study

BASE = spec.template("train")
BASE["policy"]["model_name_or_path"] = "nvidia/Cosmos-Reason2-2B"

SAMPLING = ["custom.vision.nframes=2", "custom.vision.resized_height=32", "custom.vision.resized_width=32"]
TRAINING = [
    "train.max_num_steps=2",
    "batch_size=4",
    "train.train_policy.mini_batch=2",
    "train.train_policy.dataloader_num_workers=0",
    "learning_rate=1e-4",
    "policy.model_max_length=1024",
    "policy.model_gradient_checkpointing=false",
    "validation.freq=1",
    "validation.batch_size=12",
]


def succeed(name, *args, cwd):
    done = run_script(name, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.strip()


def flags(settings):
    return [word for setting in settings for word in ("--set", setting)]


def make(root):
    """`root` with data, a tiny model, train.toml (two steps) and eval.toml; relative paths in both."""
    for split, count in (("train", 6), ("validation", 2), ("eval", 3)):
        clips.write_split(root / "data", split, count, 0)
    records = storage.read_json(root / "data/train/annotations.json")
    tiny_omni.build(root / "omni", 0, [turn["value"] for record in records for turn in record["conversations"]])
    succeed("prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", "omni", "--output-path", "model", cwd=root)
    common = ["--engine", "transformers", "--model", "model"]
    roots = ["--train-root", "data/train", "--eval-root", "data/validation", "--tuning", "full", "--gpus-per-node", 1]
    roots += ["--unset", "train.train_policy.dataloader_prefetch_factor"]
    succeed("build_spec.py", "train", *common, *roots, *flags(SAMPLING + TRAINING), "-o", "train.toml", cwd=root)
    asked = ["generation.max_tokens=2", "evaluation.batch_size=30"]
    succeed(
        "build_spec.py", "evaluate", *common, "--eval-root", "data/eval", *flags(asked), "-o", "eval.toml", cwd=root
    )
    return root


# -- without jobs ------------------------------------------------------------------------------------------------------


def dimensions(*ranges, words="", base=BASE, cap=None):
    made, found = space.build(base, words, list(ranges), cap)
    assert not findings.has_errors(found), found
    return made


def new_study(folder, *ranges, base=None, **settings):
    base = base or json.loads(json.dumps(BASE))
    base["custom"]["train_dataset"] |= {"annotation_path": str(folder / "a.json"), "media_path": str(folder)}
    plan = {"schema_version": 1, "created_at": "2026-01-01T00:00:00Z", "spec": base, "evaluate": {}, "seed": 0}
    plan |= {"dimensions": [vars(d) for d in dimensions(*ranges, base=base)], "objective": "accuracy", "sampler": "tpe"}
    plan |= {"pruner": "halving", "engine": "transformers", "facts": None, "platform": "local", "launch": []}
    plan |= {"metric_file": None, "keep": 1, "fingerprints": {}}
    made = study.open_or_begin(folder, json.loads(json.dumps(plan | settings)))
    made.save()
    return made


def add(made, objective=None, **more):
    """One more trial; `objective` ends it."""
    trial, lock = study.add(made, lambda trials: {"host": "here", "gpu_ids": None})
    os.close(lock)
    if objective is not None:
        trial |= {"state": study.COMPLETE, "objective": objective, "ended_at": trial["started_at"]}
    made.write(trial | more)
    return trial | more
