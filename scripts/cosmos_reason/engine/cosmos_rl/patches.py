"""What is changed in cosmos-rl 0.4.7 and its neighbours while it runs, and why.
No file of theirs is edited.

Each function changes one thing and returns the sentence that says so; "" when nothing needed it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmos_reason.engine.cosmos_rl.watching import Rollouts
    from cosmos_reason.engine.first_update import FirstUpdate

from cosmos_reason.base.families import DEFAULT
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, say
from cosmos_reason.checkpoints import training_settings

ONE_NODE = "COSMOS_REASON_ONE_NODE"  # set to 1 by launch_job: all processes run on this machine
# Bytes that vllm takes beside what torch gives it, at the most: CUDA's, NCCL's and attention's. A
# rollout of an 8B took 1.6 GiB for them and for its largest batch.
BESIDE_TORCH = 1 << 30
# After the package's own lines, of which redis takes the last:
# its port would be open to the network.
REDIS = """
bind 127.0.0.1
dir {folder}
"""
# Ends redis when its input ends, which another process holds: with that one, whatever ended it.
# It leaves its parent, all of whose children the launcher may kill. What answers at the port may be
# somebody else's, where two took it at once.
STOP_REDIS = """
import os, socket, sys
if os.fork():
    os._exit(0)
sys.stdin.read()
port, config = sys.argv[1:]
with socket.create_connection(("127.0.0.1", int(port)), 5) as redis:
    redis.sendall(b"INFO server\\r\\n")
    if f"config_file:{config}" in redis.recv(1 << 16).decode():
        redis.sendall(b"SHUTDOWN NOSAVE\\r\\n")
        redis.recv(1)
"""


def apply(say: Callable[[str], None]) -> None:
    """Apply all patches, before anybody imports the package, and print each."""
    for patch in (
        take_frames_as_sampled,
        choose_attention,
        name_parts,
        mark_clips_once,
        process_prompts_once,
        ask_without_pictures,
        report_offline,
        keep_redis_here,
    ):
        done = patch()
        if done:
            say(f"patch: {done}")


def take_frames_as_sampled() -> str:
    """Take lists of frames as they are: qwen-vl-utils resizes a list of frames to multiples of 64
    pixels before it resizes it again, and counts their times from a rate."""
    import numpy as np
    import qwen_vl_utils
    import torch
    from qwen_vl_utils import vision_process

    official = vision_process.fetch_video

    def fetch_video(
        ele, image_patch_size=14, return_video_sample_fps=False, return_video_metadata=False
    ):
        if "seconds" not in ele:
            return official(ele, image_patch_size, return_video_sample_fps, return_video_metadata)
        pictures = np.stack([np.asarray(picture) for picture in ele["video"]])
        video = torch.from_numpy(pictures).permute(0, 3, 1, 2).float()
        if return_video_metadata:
            times = {"fps": 1.0, "frames_indices": list(ele["seconds"])}
            video = (video, times | {"total_num_frames": len(pictures)})
        return (video, ele["sample_fps"]) if return_video_sample_fps else video

    vision_process.fetch_video = fetch_video
    qwen_vl_utils.fetch_video = fetch_video
    return (
        "frames reach the model as they were sampled here, with their times "
        "(qwen-vl-utils resizes them twice)"
    )


def choose_attention() -> str:
    """Choose an attention that is there: cosmos-rl asks for flash attention whether it is installed
    or not."""
    if importlib.util.find_spec("flash_attn"):
        return ""
    from cosmos_rl.policy.model import hf_models

    official = hf_models.pre_hf_models_patch

    def pre_hf_models_patch(hf_config):
        official(hf_config)
        parts = (
            hf_config,
            *(getattr(hf_config, name, None) for name in ("text_config", "vision_config")),
        )
        for part in parts:
            if part is not None:
                part._attn_implementation = "sdpa"

    hf_models.pre_hf_models_patch = pre_hf_models_patch
    return "attention is torch's own (sdpa): flash-attn is not installed"


def name_parts() -> str:
    """Name the parts of a model where cosmos-rl looks for them: it looks for the layers that LoRA
    wraps below `model.language_model`."""
    import transformers

    Model = getattr(transformers, DEFAULT.model_class)
    if hasattr(Model, "language_model"):
        return ""
    Model.language_model = property(lambda self: self.model.language_model)
    Model.visual = property(lambda self: self.model.visual)
    moved = f"{_transformers()} has moved them"
    return f"{DEFAULT.title}'s parts have the names that LoRA looks for ({moved})"


def mark_clips_once() -> str:
    """Put the marks of a clip once: transformers 4.57, vLLM and the embedded engine put the marks
    of a clip around each pair of frames; 5.x leaves the template's own around them besides."""
    if int(metadata.version("transformers").partition(".")[0]) < 5:
        return ""
    import transformers

    processor = getattr(transformers, DEFAULT.processor_class)
    official = processor.__call__

    def call(self, images=None, text=None, videos=None, **options):
        marked = self.vision_start_token + self.video_token + self.vision_end_token
        texts = [text] if isinstance(text, str) else list(text)
        texts = [one.replace(marked, self.video_token) for one in texts]
        return official(self, images=images, text=texts, videos=videos, **options)

    processor.__call__ = call
    return (
        "a clip's marks stand around its frames only, as the model was trained "
        f"({_transformers()} doubles them)"
    )


def process_prompts_once() -> str:
    """Keep what the processor made of the newest prompt: a policy runs the whole clip through it
    again for each of the prompt's completions (65 ms each of 128 completions of clips of 8 frames
    of 64 x 64, where the update itself took 1.5 s)."""
    from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker

    official = HFVLMDataPacker._process_single_sample
    newest = (None, None)

    def process(self, conversation, add_generation_prompt):
        nonlocal newest
        if not add_generation_prompt:  # SFT shows every record once
            return official(self, conversation, add_generation_prompt)
        # Messages are copied on their way here, pictures are not: comparing them costs nothing.
        # Read and replaced whole: the package may prepare a batch in another thread.
        kept = newest
        if conversation != kept[0]:
            kept = (conversation, official(self, conversation, add_generation_prompt))
            newest = kept
        return kept[1]

    HFVLMDataPacker._process_single_sample = process
    return "a prompt is processed once for all of its completions"


def ask_without_pictures() -> str:
    """Let a prompt of reinforcement learning hold text alone: the package asks how many clips there
    are, of which qwen-vl-utils then returns None."""
    from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker

    official = HFVLMDataPacker.get_rollout_input

    def get_rollout_input(self, sample):
        # Rollouts have the package's own objects, our tests and tools the plain turns.
        turns = [turn if isinstance(turn, dict) else turn.model_dump() for turn in sample]
        contents = [turn["content"] for turn in turns if isinstance(turn["content"], list)]
        if any(part["type"] != "text" for parts in contents for part in parts):
            return official(self, sample)
        template = self.hf_processor.apply_chat_template
        return {"prompt": template(turns, tokenize=False, add_generation_prompt=True)}

    HFVLMDataPacker.get_rollout_input = get_rollout_input
    return "a prompt may hold text alone"


def report_offline() -> str:
    """Let W&B have its offline runs: without a key the package takes it for missing, and writes
    nothing."""
    if os.environ.get("WANDB_MODE") != "offline" or not importlib.util.find_spec("wandb"):
        return ""
    from cosmos_rl.utils.report import wandb_logger

    wandb_logger.is_wandb_available = lambda: True
    return "an offline run of W&B is written without a key (cosmos-rl asks for one)"


def tell_groups(rollouts: Rollouts) -> str:
    """Let what notes of rollouts see each generation, each transfer of weights, and each prompt
    once its completions are paid."""
    from cosmos_rl.reward.dispatcher import RewardDispatcher
    from cosmos_rl.rollout.worker.rollout_control import DisaggregatedRolloutControlWorker as Worker

    generate, scored = Worker._call_rollout_generation, RewardDispatcher.dequeue_rewards_cal
    # The handler of the command calls it by name; the handler itself is registered already.
    receive = Worker._execute_p2r_recv

    def timed(self, *given):
        began = time.monotonic()
        receive(self, *given)
        rollouts.transferred(time.monotonic() - began)

    def call(self, **given):
        began = time.monotonic()
        found = generate(self, **given)
        if not given.get("is_validation"):
            prompts = [payload.prompt_idx for payload in given["payloads"]]
            seconds = time.monotonic() - began
            rollouts.generated(prompts, self.config.rollout.n_generation, seconds)
        return found

    def dequeue(self):
        payloads, is_validation, step, is_done = scored(self)
        for payload in () if is_validation else payloads or ():
            rollouts.scored(payload)
        return payloads, is_validation, step, is_done

    Worker._execute_p2r_recv = timed
    Worker._call_rollout_generation = call
    RewardDispatcher.dequeue_rewards_cal = dequeue
    return "each completion is reported with its group, its repetitions and its times"


def share_gpu() -> str:
    """Let vllm, beside a policy on the same GPU, count its own memory alone: what the policy takes
    while vllm tries out its model counts as vllm's and leaves nothing to its cache (the policy of
    an 8B grew by 7.8 GiB in that time, and by 14 GiB in the next run, which ended)."""
    from vllm.v1.worker import gpu_worker

    official = gpu_worker.memory_profiling

    @contextmanager
    def profiled(baseline, *args, **options):
        with official(baseline, *args, **options) as found:
            yield found
        found.non_torch_increase = min(found.non_torch_increase, BESIDE_TORCH)
        # vllm refuses to go on where more is free than before.
        found.after_profile.free_memory = min(found.after_profile.free_memory, baseline.free_memory)

    gpu_worker.memory_profiling = profiled
    return "vllm counts its own memory on the GPU that it shares, not the policy's"


def judge_first_update() -> str:
    """Let each policy look at its gradients before its first optimizer steps, and end the job where
    a part that is trained has none, or a frozen one has some."""
    from cosmos_rl.policy.trainer.llm_trainer.grpo_trainer import GRPOTrainer
    from cosmos_rl.policy.trainer.llm_trainer.sft_trainer import SFTTrainer

    from cosmos_reason.engine.first_update import FirstUpdate

    def judged(train: Callable, may_be_flat: bool) -> Callable:
        @functools.wraps(train)
        def step_training(self, *given, **options):
            if not hasattr(self, "first_update"):
                # The whole model: of its parts the names lack their places.
                self.first_update = FirstUpdate(self.model, may_be_flat)
                judge_before_steps(self.optimizers, self.model, self.first_update)
            return train(self, *given, **options)

        return step_training

    SFTTrainer.step_training = judged(SFTTrainer.step_training, may_be_flat=False)
    GRPOTrainer.step_training = judged(GRPOTrainer.step_training, may_be_flat=True)
    return "gradients of each part are looked at before the first optimizer step"


def judge_before_steps(optimizers, model, first: FirstUpdate) -> None:
    """Let `optimizers.step` raise Failure before the weights of a wrong training change. Records
    have media when they reach the vision tower; a validation shows it some, too, but without
    gradients."""
    import torch

    reached = False

    def note(*_) -> None:
        nonlocal reached
        reached = reached or torch.is_grad_enabled()

    hooks = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "visual":
            hooks.append(module.register_forward_pre_hook(note))
    official = optimizers.step
    steps = itertools.count(1)

    def step(*given, **options):
        nonlocal reached
        if not first.is_done:
            problems = first.judge(reached, next(steps))
            reached = False
            if problems:
                raise Failure(problems, EXIT_CHECKS_FAILED)
            if first.is_done:
                for hook in hooks:
                    hook.remove()
        return official(*given, **options)

    optimizers.step = step


def weigh_tokens() -> str:
    """Let SFT tell the loss of the run so far, in which each token counts the same, under the name
    that it has in the embedded engine: the package's loss of a step is a mean of the means of its
    passes, however many tokens carry loss in each."""
    import torch
    from cosmos_rl.policy.trainer.llm_trainer.sft_trainer import SFTTrainer

    train, save, load = SFTTrainer.step_training, SFTTrainer.checkpointing, SFTTrainer.load_model
    takes = inspect.signature(save).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in takes):
        return ""  # before 0.4.7: a checkpoint has no room for the sums

    def step_training(self, *given, **options):
        here = torch.zeros(2, dtype=torch.float64, device=self.device)  # summed loss, tokens

        def note(_module, inputs, named, losses) -> None:
            tokens = (inputs[1] != named["ignore_index"]).sum()
            # Of a pass without tokens the mean is no number.
            total = (
                losses.detach().sum() if losses.dim() else (losses.detach() * tokens).nan_to_num()
            )
            here.add_(torch.stack([total.double(), tokens.double()]))

        hook = self.loss_fn.keywords["ce_impl"].register_forward_hook(note, with_kwargs=True)
        try:
            report = train(self, *given, **options)
        finally:
            hook.remove()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(here)
        before = getattr(self, "learned", (0.0, 0.0))
        loss, tokens = (one + more for one, more in zip(before, here.tolist(), strict=True))
        self.learned = (loss, tokens)
        if tokens and "train/loss_avg" in report:  # of the rank that reports
            report["train/mean_loss"] = loss / tokens
            asked = inspect.signature(train).bind(self, *given, **options).arguments
            step, total_steps = asked["train_step"] + 1, asked["total_steps"]
            say(f"Step: {step}/{total_steps}, Mean loss: {loss / tokens:.5f}")
        return report

    def checkpointing(self, *given, **options):
        return save(self, *given, learned=getattr(self, "learned", (0.0, 0.0)), **options)

    def load_model(self):
        found = load(self)
        *_, kept = found
        self.learned = kept.get("learned", (0.0, 0.0))
        return found

    SFTTrainer.step_training = step_training
    SFTTrainer.checkpointing = checkpointing
    SFTTrainer.load_model = load_model
    return "the loss of the run so far, in which each token counts the same, is told (Mean loss)"


def carry_settings() -> str:
    """Write beside each export how its training showed clips. cosmos-rl copies what JSON files the
    base has besides, and such a file of an earlier training with them."""
    from cosmos_rl.policy.trainer.llm_trainer import llm_trainer

    trainer = llm_trainer.LLMTrainer
    export = trainer.export_safetensors
    publish = getattr(llm_trainer, "publish_export_directory", None)
    if publish is None:  # before 0.4.7
        return ""
    trained = {}

    def export_safetensors(self, *given, **options):
        trained.update(self.config.model_dump())
        return export(self, *given, **options)

    def publish_export_directory(staged, destination):
        training_settings.write(Path(staged), trained)
        return publish(staged, destination)

    trainer.export_safetensors = export_safetensors
    llm_trainer.publish_export_directory = publish_export_directory
    return "exports carry the frames, pixels and system prompt of their training"


def count_replicas() -> str:
    """Let a policy with dp_replicate_size above 1 tell the controller of each of its ranks. The
    package names them by their shard alone, so that two of each came and one was waited for:
    "Training boundary rejected" before the first step."""
    if not importlib.util.find_spec("cosmos_rl.dispatcher.step_boundary"):
        return ""  # before 0.4.7: nothing waits for them
    from cosmos_rl.dispatcher.api.client import APIClient

    official = APIClient.register

    @functools.wraps(official)
    def register(self, *given, **named):
        group, ranks = list(named["group_size"]), list(named["ranks"])
        replicas = int(os.environ.get("WORLD_SIZE", 1)) // math.prod(group)
        if replicas > 1:
            # Replicas are the outer dimension: pipeline stages exclude them.
            shard = named["mesh_names"].index("dp_shard")
            ranks[shard] += named["global_rank"] // math.prod(group) * group[shard]
            group[shard] *= replicas
            named |= {"ranks": ranks, "group_size": group}
        return official(self, *given, **named)

    APIClient.register = register
    return "each rank of a policy with replicas (dp_replicate_size) is counted"


def keep_redis_here() -> str:
    """Keep redis on this machine: cosmos-rl binds redis to every address, without a password, and
    leaves it running where there is no redis-cli."""
    if os.environ.get("COSMOS_ROLE") != "Controller" or os.environ.get(ONE_NODE) != "1":
        return ""
    from cosmos_rl.utils import network_util

    official = network_util.write_redis_config
    waiting = []

    def write_redis_config(port, logfile, file_path, custom_config="", **options):
        ours = REDIS.format(folder=tempfile.gettempdir())
        written = official(port, logfile, file_path, custom_config + ours, **options)
        # It is not marked as the job's: a job that is killed leaves its redis behind, whose
        # process shows no environment to know it by.
        words = [sys.executable, "-I", "-c", STOP_REDIS, str(port), str(written)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, env={}, start_new_session=True, **quiet
        )
        process.wait()
        waiting.append(process)
        return written

    network_util.write_redis_config = write_redis_config
    network_util.get_eth_ips = list
    return (
        "redis listens on 127.0.0.1 and ends with the controller "
        "(cosmos-rl opens it to the network)"
    )


def _transformers() -> str:
    return f"transformers {metadata.version('transformers')}"
