"""One update of a policy by cosmos-rl 0.4.7's own trainer, on a CPU and with stored completions:
its weights are those of a plain computation."""

import json
import re

import cosmos_rl_packages
import pytest
from support import called, run_script

from cosmos_reason.checkpoints import trainer_log

pytestmark = pytest.mark.integration

# Of a GPU the package's trainers want a clock; FSDP around the model is left out. `prepared` gives
# one what it makes for itself where it has processes, a mesh and checkpoints.
PRELUDE = """
import copy, json, os
from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches
cosmos_rl_patches.apply(lambda text: None)
assert cosmos_rl_patches.judge_first_update() and cosmos_rl_patches.weigh_tokens()
assert cosmos_rl_patches.carry_settings()
import toml
import torch.nn.functional as F
from contextlib import nullcontext
from functools import partial
from transformers import AutoConfig, AutoModelForImageTextToText
from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker
from cosmos_rl.policy.config import Config
from cosmos_rl.policy.model.hf_models import HFModel
from cosmos_rl.utils.parallelism import ParallelDims


class Clock:
    def __init__(self, **_): ...
    def record(self): ...
    def query(self): return True
    def elapsed_time(self, other): return 1000.0


torch.cuda.Event = Clock
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
torch.set_default_dtype(torch.float32)
config = Config.from_dict(toml.load(sys.argv[1]))
packer = HFVLMDataPacker()
packer.setup(config)
path = config.policy.model_name_or_path
GIVEN = ("input_ids", "pixel_values_videos", "video_grid_thw", "mm_token_type_ids")


def plain_model():
    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)


def prepared(kind, model):
    trainer = kind.__new__(kind)
    trainer.config, trainer.device = config, torch.device("cpu")
    trainer.parallel_dims = ParallelDims(1, 1, 1, 1, 1, 1)
    trainer.parallel_dims.build_mesh("cpu")
    trainer.train_stream, trainer.data_packer = None, packer
    trainer.tokenizer, trainer.global_rank, trainer.seq_len_multiple = packer.tokenizer, 0, 1
    trainer.model = HFModel(AutoConfig.from_pretrained(path), model, None, is_vlm=True)
    trainer.model.hf_config._attn_implementation = "sdpa"
    trainer.model_parts, trainer.model_module_path = trainer.model.separate_model_parts(), [None]
    trainer.act_offloading_ctx_manager = nullcontext()
    return trainer
"""

# The trainer's step: packer, log-probabilities, reference pass, loss, clipping and AdamW are the
# package's.
UPDATE = """
from cosmos_rl.dispatcher.data.data_fetcher import ControllerDataFetcher, WorkerDataFetcher
from cosmos_rl.dispatcher.data.schema import Rollout
from cosmos_rl.policy.trainer.llm_trainer.grpo_trainer import GRPOTrainer
from cosmos_rl.reward.local_calculator import LocalRewardCalculator


class Alone:
    'What policies of several replicas reduce with; there is one.'
    def wait_comm_ready(self): ...
    def world_size(self): return 1
    def allreduce(self, given, reduced, *_, **__): reduced.copy_(given)


torch.Tensor.cuda = lambda tensor, *_, **__: tensor
policy = config.train.train_policy
datasets = {"dataset": cosmos_rl_entry.training, "val_dataset": cosmos_rl_entry.validation}
os.environ["COSMOS_ROLE"] = "Controller"
controller = ControllerDataFetcher(config=config, is_rl=True, **datasets)
payloads = controller.get_batched_prompt(2)[0]
os.environ["COSMOS_ROLE"] = "Rollout"
worker = WorkerDataFetcher(config, packer, packer, **datasets)
calculator = LocalRewardCalculator()
paid = cosmos_rl_entry.Paid()
pays = {"reward_fns": [paid.reward], "filter_reward_fns": [paid.spread]}
calculator.setup(config, data_packer=packer, val_data_packer=packer, **pays)
for payload in payloads:
    payload.prompt = worker.get_payload_by_index(payload.prompt_idx)
    payload.reference_answer = worker.query_reference_answer(payload.prompt_idx)
    question, gt = json.loads(payload.reference_answer)
    payload.completions = [gt, "I cannot tell.", f"The answer is {gt}.", "up or down, or neither"]
    payload.weight_version = 0
scored, _, _ = calculator.compute_rewards(payloads, False, 0)
rollouts = [
    Rollout(prompt=one.prompt, prompt_idx=one.prompt_idx, completion=text, reward=reward,
            advantage=advantage, n_ignore_prefix_tokens=ignored)
    for one in scored
    for text, reward, advantage, ignored in zip(
        one.completions, one.rewards, one.advantages, one.n_ignore_prefix_tokens
    )
]

plain = plain_model()
reference = copy.deepcopy(plain)
torch.manual_seed(5)
with torch.no_grad():  # as if some steps had been made: the divergence is not 0
    for weight in reference.parameters():
        weight.add_(0.01 * weight.abs().mean() * torch.randn_like(weight))
trainer = prepared(GRPOTrainer, copy.deepcopy(plain))
trainer.grpo_config = policy
trainer.reference_state_dict = {
    f"model.{name}": value for name, value in reference.state_dict().items()
}
trainer.mini_step, trainer.mini_batch = 0, policy.mini_batch
trainer.batch_size_per_optimize = policy.batch_size_per_optimize
trainer.mu_iterations, trainer.max_length = policy.mu_iterations, config.policy.model_max_length
trainer.clear_teacher_result_cache = lambda: None
trainer.build_optimizers()
trainer.optimizers.zero_grad()
trainer.lr_schedulers = trainer.build_lr_schedulers(10)
rate = trainer.lr_schedulers.get_last_lr()[0]
report = trainer.step_training(rollouts, 1, 10, 100, Alone(), True)

# The same, plainly: every completion alone.
def log_probabilities(model, row):
    batch = packer.policy_collate_fn([row], len(row["input_ids"]))
    logits = model(**{name: batch[name] for name in GIVEN if name in batch}).logits[0]
    logits = logits.float() / policy.temperature
    chosen = torch.tensor(row["logprob_masks"], dtype=torch.bool)
    following = torch.tensor([*row["input_ids"][1:], 0])
    return torch.log_softmax(logits, -1).gather(1, following[:, None])[:, 0][chosen]


rows = [
    packer.get_policy_input(one.prompt, one.completion, one.n_ignore_prefix_tokens)
    for one in rollouts
]
advantages = []
for one in scored:
    rewards = torch.tensor(one.rewards)
    spread = rewards.std(correction=0) + 1e-6
    advantages += ((rewards - rewards.mean()) / spread).tolist()
plain.train()
optimizer = torch.optim.AdamW(
    plain.parameters(), lr=rate, betas=config.train.optm_betas, eps=config.train.epsilon,
    weight_decay=config.train.optm_weight_decay,
)
with torch.no_grad():
    referred = [log_probabilities(reference, row) for row in rows]
    before = [log_probabilities(plain, row) for row in rows]
divergences = []
for _ in range(policy.mu_iterations):
    optimizer.zero_grad()
    for start in range(0, len(rows), policy.mini_batch):
        part = range(start, start + policy.mini_batch)
        losses, divergence = [], []
        for number in part:
            now = log_probabilities(plain, rows[number])
            ratio = (now - before[number]).exp()
            clipped = ratio.clamp(1 - policy.epsilon_low, 1 + policy.epsilon_high)
            advantage = advantages[number]
            loss = -torch.min(ratio * advantage, clipped * advantage)
            if advantage < 0:
                loss = torch.min(loss, torch.full_like(loss, -policy.lower_bound_ratio * advantage))
            apart = referred[number] - now
            losses.append(loss)
            divergence.append((apart.exp() - apart - 1).clamp(max=10))
        losses, divergence = torch.cat(losses), torch.cat(divergence)
        divergences.append(divergence.mean().item())
        mean = losses.mean() + policy.kl_beta * divergence.mean()
        (mean * policy.mini_batch / len(rows)).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), config.train.optm_grad_norm_clip)
    optimizer.step()

start = plain_model().state_dict()
theirs = trainer.model.model.state_dict()
moved = max((theirs[name] - value).abs().max().item() for name, value in start.items())
apart = max(
    (theirs[name] - value).abs().max().item() for name, value in plain.state_dict().items()
)
trainer.ckpt_manager, trainer.upload_thread, trainer.hf_config = None, None, trainer.model.hf_config
trainer.export_safetensors(config.train.output_dir, "safetensors/step_2", dtype=torch.float32)
trainer.upload_thread.join()
print(json.dumps({
    "advantages": [[one.advantage for one in rollouts], advantages],
    "rewards": [one.reward for one in rollouts],
    "kl": [report["train/kl_loss_avg"], sum(divergences) / len(divergences)],
    "moved": moved, "apart": apart, "tensors": len(start), "loss": report["train/loss_avg"],
    "entropy": report["train/effective_entropy"],
    "judged": trainer.first_update.is_done,
}))
"""


# Two steps of supervised training in passes of one record, whose answers have unlike lengths; then
# what a checkpoint keeps, and what a trainer that goes on from it says.
SUPERVISED = """
from cosmos_rl.policy.kernel.loss import CrossEntropyLoss
from cosmos_rl.policy.trainer.llm_trainer.sft_trainer import SFTTrainer, async_safe_ce


class Saved:
    def save_checkpoint(self, **given): self.given = given
    def save_check(self, **_): ...


records = cosmos_rl_entry.training(config)
items = [packer.sft_process_sample(records[number]) for number in range(8)]


def new_trainer():
    trainer = prepared(SFTTrainer, plain_model())
    trainer.loss_fn = partial(
        async_safe_ce, ce_impl=CrossEntropyLoss(config), dp_group=None, cp_group=None
    )
    trainer.enable_dp_load_balancing, trainer.lr_schedulers = False, None
    trainer.ckpt_manager = Saved()
    trainer.build_optimizers()
    return trainer


# Loss and tokens of each record with the weights that the trainer has now.
@torch.no_grad()
def plainly(trainer, chosen):
    sums = []
    for item in chosen:
        batch = packer.sft_collate_fn([item], len(item["input_ids"]), ignore_label_id=-100)
        labels = batch.pop("label_ids")[0, 1:]
        given = {name: batch[name] for name in GIVEN if name in batch}
        logits = trainer.model.model(**given).logits
        loss = F.cross_entropy(logits[0, :-1].float(), labels, ignore_index=-100, reduction="sum")
        sums.append((loss.item(), int((labels != -100).sum())))
    return sums


def step(trainer, number):
    chosen = items[4 * number : 4 * number + 4]
    sums = plainly(trainer, chosen)
    report = trainer.step_training(
        global_batch=chosen, total_steps=2, train_step=number, save_freq=1,
        data_arrival_event=Clock(),
    )
    return sums, float(report["train/loss_avg"]), report["train/mean_loss"]


trainer = new_trainer()
seen = [step(trainer, 0)]
config.train.ckpt.enable_checkpoint = True
config.train.ckpt.export_safetensors = False
trainer.checkpointing(total_steps=2, train_step=1, save_freq=1)
again = new_trainer()
again.model.load_state_dict(trainer.model.state_dict())
kept = {"step": 1, "total_steps": 2} | {"learned": trainer.ckpt_manager.given["learned"]}
config.train.resume = True
again.set_model_train = lambda: again.model.train()
again.model_resume_from_checkpoint = lambda: kept
again.load_model()
again.lr_schedulers = trainer.lr_schedulers
seen.append(step(trainer, 1))
resumed = step(again, 1)
print(json.dumps({"seen": seen, "resumed": resumed}))
"""


SETTINGS = {
    "custom.vision.nframes": 4,
    "custom.vision.resized_height": 64,
    "custom.vision.resized_width": 96,
    "policy.model_max_length": 4096,
    "policy.model_gradient_checkpointing": "false",
    "train.param_dtype": "float32",
    "train.optm_warmup_steps": 0,
    "train.optm_lr": 1e-3,
    "train.optm_impl": "for-loop",
}


def ran(program, folder, action, model, root, gpus, **settings):
    """What a program prints last of a spec, and its stderr."""
    path = folder / "spec.toml"
    changes = SETTINGS | {"train.output_dir": folder / "out"} | settings
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    done = run_script(
        *("build_spec.py", action, "--engine", "cosmos-rl", "--model", model),
        *("--train-root", root, "--gpus-per-node", gpus, *words, "-o", path),
    )
    assert path.is_file(), done.stderr
    command = cosmos_rl_packages.command(PRELUDE + program, path)
    done = called(command, env=cosmos_rl_packages.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def test_the_loss_of_a_supervised_run_weighs_tokens_alike_also_after_a_resume(
    tiny_model, dataset, tmp_path
):
    records = json.loads((dataset / "train" / "annotations.json").read_text())
    for number, record in enumerate(records):
        record["conversations"][1]["value"] = "left right " * (1 + 7 * (number % 3))
        record["video"] = str(dataset / "train" / record["video"])
    train = tmp_path / "train"
    train.mkdir()
    (train / "annotations.json").write_text(json.dumps(records))
    settings = {
        "train.train_batch_per_replica": 4,
        "train.train_policy.mini_batch": 1,
        "train.max_num_steps": 2,
        "validation.enable": "false",
    }
    told, said = ran(SUPERVISED, tmp_path, "train", tiny_model, train, 1, **settings)
    loss = tokens = 0
    for sums, of_step, mean in told["seen"]:
        loss += sum(one for one, _ in sums)
        tokens += sum(count for _, count in sums)
        assert mean == pytest.approx(loss / tokens, rel=1e-4)
        assert of_step == pytest.approx(sum(one / n for one, n in sums) / len(sums), rel=1e-4)
    assert abs(of_step - sum(one for one, _ in sums) / sum(n for _, n in sums)) > 0.01
    assert told["resumed"][2] == pytest.approx(mean, rel=1e-6)
    printed = [trainer_log.metrics(line) for line in said]
    means = [one for one in printed if one and "train/mean_loss" in one]
    assert [(one["step"], one["total_steps"]) for one in means] == [(1, 2), (2, 2), (2, 2)]
    assert means[1]["train/mean_loss"] == pytest.approx(mean, abs=1e-4)


def test_an_update_of_the_policy_is_that_of_a_plain_computation(tiny_model, dataset, tmp_path):
    settings = {
        "rollout.max_response_length": 1024,
        "generations": 4,
        "kl": 0.05,
        "train.train_batch_per_replica": 8,
        "train.train_policy.mini_batch": 2,
        "train.train_policy.mu_iterations": 2,
        "train.epsilon": 1e-4,
    }
    seen, said = ran(UPDATE, tmp_path, "grpo", tiny_model, dataset / "train", 4, **settings)
    assert len(set(seen["rewards"])) > 1
    theirs, ours = seen["advantages"]
    assert theirs == pytest.approx(ours, abs=1e-3)
    assert seen["kl"][0] == pytest.approx(seen["kl"][1], rel=1e-3) and seen["kl"][0] > 0
    # Two steps of AdamW at 1e-3 move a weight by up to 2e-3.
    assert seen["moved"] > 1e-3 > 100 * seen["apart"]
    (told,) = (tmp_path / "out").rglob("safetensors/step_2/cosmos_training.json")
    assert json.loads(told.read_text())["custom"]["vision"]["nframes"] == 4
    assert seen["judged"]
    (told,) = [one for one in said if one.startswith("gradients of step 1: ")]
    parts = re.findall(r"(\w+) [\d,]+ trained, 0 frozen, gradient", told)
    assert parts == ["tower", "merger", "text"]
