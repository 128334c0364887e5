"""The public guides as their readers walk them: their data made small, their config, their commands
in our form, their result. What this machine lacks is stood in for, and each test says by what."""

import json
import os
import shlex
import sys
import tarfile
from pathlib import Path

import oracles
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import yaml
from clip_files import write_clip
from servers import hub
from support import called, run_script
from walks import SMALL_CLIPS, SMALL_RUN, ran, sets, succeed, write_small_spec

from cosmos_reason.base import files
from cosmos_reason.data import raw_clips
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

KEY = "canary-0123456789abcdef0123456789abcdef"
SHARDS = Path(__file__).parents[2] / "fixtures" / "bridge_dataset.tar.gz"
SFT = "nvidia/Cosmos-Reason1-SFT-Dataset"
# The fixes of SPEC-STEPS-ZERO and SPEC-WARMUP-ALL: the guides' 32 records on each of four GPUs are
# more than there are here.
FEW_RECORDS = ["--set", "train.train_policy.dataloader_drop_last=false", "--set", "warmup=0.03"]

REASON1_SFT = """
redis = "12800"
[train]
resume = false
epoch = 1
output_dir = "./outputs/sft"
compile = false
train_batch_per_replica = 32
optm_lr = 2e-6
optm_warmup_steps = 20
enable_validation = true
validation_step = 30
validation_batch_per_replica = 2
[policy]
model_name_or_path = "nvidia/Cosmos-Reason1-7B"
model_max_length = 4096
[logging]
logger = ["console"]
[train.train_policy]
type = "sft"
mini_batch = 4
dataset.name = "nvidia/Cosmos-Reason1-SFT-Dataset"
dataset.subset = "robovqa"
dataset.split = "understanding"
dataset.test_size = 100
conversation_column_name = "conversations"
[train.ckpt]
enable_checkpoint = true
save_freq = 100
max_keep = 2
save_mode = "async"
[policy.parallelism]
tp_size = 1
dp_shard_size = 4
cp_rotate_method = "allgather"
"""

REASON1_RL = """
redis = "12800"
[train]
resume = false
epoch = 80
output_dir = "./outputs/rl"
compile = false
master_dtype = "float32"
train_batch_per_replica = 128
optm_lr = 2e-6
optm_warmup_steps = 20
enable_validation = false
[rollout]
gpu_memory_utilization = 0.7
max_response_length = 6144
n_generation = 8
batch_size = 4
[rollout.sampling_config]
temperature = 0.9
[rollout.parallelism]
n_init_replicas = 1
tp_size = 2
[policy]
model_name_or_path = "nvidia/Cosmos-Reason1-7B"
model_max_length = 10240
[logging]
logger = ["console"]
[train.train_policy]
type = "grpo"
mini_batch = 2
dataset.name = "nvidia/Cosmos-Reason1-RL-Dataset"
dataset.subset = "robovqa"
dataset.split = "rl"
prompt_column_name = "qa_pairs"
reward_function = ["single_choice", "format"]
kl_beta = 0.0
[train.ckpt]
enable_checkpoint = true
save_freq = 100
max_keep = 2
save_mode = "async"
[policy.parallelism]
tp_size = 1
dp_shard_size = 2
"""

# Of llava_sft.py: the dataset below `custom`.
REASON2_SFT = """
[custom.dataset]
annotation_path = "llava.json"
media_path = "videos"
system_prompt = "You are a helpful assistant."
[custom.vision]
fps = 1
max_pixels = 81920
[train]
output_dir = "outputs"
compile = false
train_batch_per_replica = 32
[train.train_policy]
type = "sft"
mini_batch = 4
[train.ckpt]
enable_checkpoint = true
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = 4096
[policy.parallelism]
tp_size = 1
dp_shard_size = 4
"""

# The base configuration, with the folder and frames of hf_sft.py.
REASON2_SAVED = """
[custom.dataset]
path = "data/hf_sft"
[custom.vision]
fps = 1
[train]
output_dir = "outputs"
compile = false
train_batch_per_replica = 32
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = 4096
[logging]
logger = ["console", "wandb"]
project_name = "cosmos-reason2"
[train.train_policy]
type = "sft"
mini_batch = 4
conversation_column_name = "conversations"
[train.ckpt]
enable_checkpoint = true
[policy.parallelism]
tp_size = 1
cp_size = 1
dp_shard_size = 4
pp_size = 1
"""
SYSTEM = "You are a helpful assistant."

REASON1_BENCHMARK = {
    "datasets": ["robovqa", "av"],
    "model": {"model_name": "nvidia/Cosmos-Reason1-7B", "dtype": "bfloat16", "tp_size": 1},
    "evaluation": {"answer_type": "letter", "num_processes": 80, "skip_saved": False, "fps": 4},
    "generation": {"max_retries": 10, "max_tokens": 1024, "temperature": 0.6},
}


def write_published_set(root, split):
    """As NVIDIA publishes it: a table of talks, and the clips in an archive beside it."""
    (root / "robovqa").mkdir(parents=True)
    config = {"config_name": "robovqa"}
    config["data_files"] = [{"split": "understanding", "path": "robovqa/understanding-*.parquet"}]
    (root / "README.md").write_text(f"---\nconfigs: {json.dumps([config])}\n---\n# Data\n")
    names, talks = [], []
    for record in files.read_json(split / "annotations.json"):
        names.append(f"clips/{Path(record['video']).name}")
        question, answer = (turn["value"] for turn in record["conversations"])
        question = question.removeprefix("<video>\n")
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        talks.append(talk)
    table = arrow.table({"video": names, "conversations": talks})
    parquet.write_table(table, root / "robovqa" / "understanding-00000-of-00001.parquet")
    with tarfile.open(root / "robovqa" / "clips.tar.gz", "w:gz") as tar:
        for clip in sorted((split / "videos").iterdir()):
            tar.add(clip, f"clips/{clip.name}")


def write_saved_set(folder, split):
    """As download_nexar_collision_prediction.py leaves it: talks as texts, with absolute paths."""
    rows = []
    for record in files.read_json(split / "annotations.json"):
        question, answer = (turn["value"] for turn in record["conversations"])
        clip = {"type": "video", "video": str(split / record["video"])}
        text = {"type": "text", "text": question.removeprefix("<video>\n")}
        talk = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": [clip, text]},
            {"role": "assistant", "content": answer},
        ]
        rows.append({"conversations": json.dumps(talk)})
    save = "import datasets, json, sys\n"
    save += "datasets.Dataset.from_list(json.load(sys.stdin)).save_to_disk(sys.argv[1])"
    called(
        [sys.executable, "-c", save, folder],
        input=json.dumps(rows),
        env={**os.environ, "PYTHONPATH": str(oracles.datasets())},
        check=True,
    )


def write_benchmark(root, split):
    """As `hf download` leaves it: two sets of two clips with a question each."""
    pair = {"question": "Which way?", "index2ans": {"A": "left", "B": "right"}, "answer": "A"}
    videos = sorted((split / "videos").iterdir())
    for name, shown in (("robovqa", videos[:2]), ("av", videos[2:4])):
        folder = root / "benchmark" / name
        (folder / "clips").mkdir(parents=True)
        rows = []
        for clip in shown:
            (folder / "clips" / clip.name).write_bytes(clip.read_bytes())
            rows.append({"video": f"clips/{clip.name}", "qa_pairs": pair})
        files.write_json(folder / f"{name}_benchmark_qa_pairs.json", rows)


def test_reason1_from_its_published_sets_to_its_accuracy(tmp_path, dataset, tiny_reason1):
    """A Hub of this machine stands in for the real one, a tiny Qwen2.5-VL for Cosmos-Reason1-7B,
    the embedded engine on the CPU for cosmos-rl on four GPUs."""
    write_published_set(tmp_path / "hub", dataset / "train")
    write_benchmark(tmp_path / "bench", dataset / "eval")
    # download_hf_data.py --task sft
    with hub(datasets={SFT: tmp_path / "hub"}) as server:
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "COSMOS_CACHE": str(tmp_path / "cache"),
        }
        words = [SFT, "-o", "data", "--hf-subset", "robovqa", "--hf-split", "understanding[:24]"]
        succeed(tmp_path, "build_dataset.py", *words, "--eval-fraction", 0.25, env=env)
    succeed(tmp_path, "check_dataset.py", "data/train", "--eval", "data/eval")
    # cosmos-rl --config sft.toml cosmos_sft.py
    (tmp_path / "sft.toml").write_text(REASON1_SFT)
    words = ["--spec", "sft.toml", "--fix", "--train-root", "data/train", "-o", "four.toml"]
    words += FEW_RECORDS
    succeed(tmp_path, "build_spec.py", "train", *words)
    assert document.load(tmp_path / "four.toml")["policy"]["parallelism"]["dp_shard_size"] == 4
    here = ["--model", tiny_reason1, *sets(SMALL_CLIPS, "custom.vision.")]
    here += ["--unset", "train.train_policy.dataset"]
    write_small_spec(tmp_path, *here)
    spec = document.load(tmp_path / "spec.toml")
    assert spec["train"]["optm_lr"] == 2e-6 and spec["policy"]["model_max_length"] == 4096
    trained = ran(tmp_path, "train", "spec.toml")
    listed = succeed(tmp_path, "select_checkpoint.py", trained.folder, "--by", "step_2")
    # evaluate.py --config evaluate.yaml --data_dir bench
    (tmp_path / "evaluate.yaml").write_text(yaml.safe_dump(REASON1_BENCHMARK))
    words = ["--engine", "transformers", "--spec", "evaluate.yaml", "--eval-root", "bench"]
    words += ["--model", listed, "--set", "results.layout=reason1", "-o", "eval.toml"]
    succeed(tmp_path, "build_spec.py", "evaluate", *words)
    evaluated = ran(tmp_path, "evaluate", "eval.toml")
    assert evaluated.evidence["questions"] == evaluated.evidence["rows"] == 4
    # calculate_accuracy.py --result_dir R
    results = Path(evaluated.outputs["results_dir"])
    rows = files.read_json(results / "results.json")
    words = [results / "reason1_layout", "--compat", "reason1"]
    printed = succeed(tmp_path, "score_predictions.py", *words)
    right = sum(row["correct"] for row in rows)
    assert f"Mean accuracy: {right / 4:.4f}" in printed
    assert "processed across all files: 4" in printed
    printed = succeed(tmp_path, "score_predictions.py", *words, "--dataset", "av")
    assert "processed across all files: 2" in printed


def write_raw_benchmarks(folder):
    """The three sets whose clips are not published with their questions, and raw data to make them
    of: eight frames and three seconds of one grey each, and shards of TensorFlow Datasets (see
    tests/data/test_raw_clips.py)."""
    kitchen = "numpy_256-bridge_data_v2-datacol1_toykitchen1-many_skills-00-val"
    pair = {"question": "Which way?", "index2ans": {"A": "left", "B": "right"}, "answer": "A"}
    for name, clip in {
        "agibot": "327-1-head_color-1-5.mp4",
        "bridgev2": f"{kitchen}.12.clip0.frame004.mp4",
        "holoassist": "R007-7July-DSLR_coarse_3_fine_5_clip.mp4",
    }.items():
        table = folder / "benchmark" / name / f"{name}_benchmark_qa_pairs.json"
        files.write_json(table, [{"video": f"clips/{clip}", "qa_pairs": pair}])
    raw = folder / "raw"
    write_clip(raw / "agibot/observations/327/1/videos/head_color.mp4", frames=8, rate=30)
    write_clip(raw / "holoassist/videos/R007-7July-DSLR/Export_py/pitch.mp4", frames=30, rate=30)
    event = {"id": 5, "label": "Fine grained action", "start": 0.1, "end": 0.9}
    listed = [{"video_name": "R007-7July-DSLR", "events": [event]}]
    files.write_json(raw / "holoassist" / raw_clips.EVENTS, listed)
    with tarfile.open(SHARDS) as tar:
        tar.extractall(raw / "bridgev2", filter="data")


def test_reason1s_benchmark_of_all_five_sets_from_raw_data_to_its_accuracy(
    tmp_path, dataset, tiny_reason1, monkeypatch
):
    """Small raw data stand in for AgiBot World, BridgeData V2 and HoloAssist, a tiny Qwen2.5-VL for
    Cosmos-Reason1-7B."""
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    write_benchmark(tmp_path / "data", dataset / "eval")
    write_raw_benchmarks(tmp_path / "data")
    from_raw = ["agibot", "bridgev2", "holoassist"]
    config = REASON1_BENCHMARK | {"datasets": ["robovqa", "av", *from_raw]}
    config["generation"] = config["generation"] | {"max_tokens": 4}
    (tmp_path / "evaluate.yaml").write_text(yaml.safe_dump(config))
    words = ["evaluate", "--engine", "transformers", "--spec", "evaluate.yaml"]
    words += ["--eval-root", "data", "--model", tiny_reason1, "--set", "fps=8"]
    words += ["--set", "results.layout=reason1", "--force", "-o", "eval.toml", "--json"]
    said = json.loads(succeed(tmp_path, "build_spec.py", *words))
    lost = [one for one in said["findings"] if one["id"] == "SPEC-BENCHMARK-CLIPS"]
    assert [one["where"] for one in lost] == [f"datasets.{name}" for name in from_raw]
    # process_raw_data.py --task benchmark
    for one in lost:
        script, *rest = shlex.split(one["fix"])
        succeed(tmp_path, Path(script).name, *rest)
    said = json.loads(succeed(tmp_path, "build_spec.py", *words))
    assert "SPEC-BENCHMARK-CLIPS" not in {one["id"] for one in said["findings"]}
    # evaluate.py --config evaluate.yaml --data_dir data
    evaluated = ran(tmp_path, "evaluate", "eval.toml")
    results = Path(evaluated.outputs["results_dir"])
    rows = files.read_json(results / "results.json")
    assert [row["error"] for row in rows] == [None] * 7
    assert all(row["question"].startswith("Which way?") for row in rows)
    # calculate_accuracy.py --result_dir R
    words = [results / "reason1_layout", "--compat", "reason1"]
    for name, count in (("robovqa", 2), ("av", 2), *((name, 1) for name in from_raw)):
        printed = succeed(tmp_path, "score_predictions.py", *words, "--dataset", name)
        assert f"processed across all files: {count}" in printed
    scored = json.loads(succeed(tmp_path, "score_predictions.py", results, "--json"))
    assert scored["result"]["runs"][0]["rows"] == 7


def test_reason1s_reinforcement_as_far_as_a_machine_without_gpus_goes(
    tmp_path, dataset, tiny_reason1
):
    """Rollouts need GPUs: the spec is built and its launch planned to be carried to them. The
    rewards and prompts go through cosmos-rl's own classes in test_cosmos_rl_run.py."""
    # cosmos-rl --config rl.toml cosmos_grpo.py
    (tmp_path / "rl.toml").write_text(REASON1_RL)
    words = ["--spec", "rl.toml", "--fix", "--train-root", dataset / "train", "-o", "grpo.toml"]
    # The stand-in has 4,096 positions; Cosmos-Reason1-7B has those of the guide's spec.
    words += ["--model", tiny_reason1, "--set", "policy.model_max_length=4096"]
    words += ["--set", "rollout.max_response_length=2048"]
    succeed(tmp_path, "build_spec.py", "grpo", *words)
    spec = document.load(tmp_path / "grpo.toml")
    assert spec["rollout"]["n_generation"] == 8 and spec["train"]["train_policy"]["kl_beta"] == 0
    where = ["--engine", "cosmos-rl", "--platform", "docker", "--output", "carried"]
    where += ["--gpu-ids", "0,1,2,3", "--image", "lab/cosmos-rl:0.4.7"]
    succeed(tmp_path, "launch_job.py", "plan", "grpo", "--spec", "grpo.toml", *where)
    carried = (tmp_path / "carried" / "run.sh").read_text()
    assert "cosmos-rl" in carried and "train_with_cosmos_rl.py" in carried


def test_reason2_from_a_llava_file_to_an_answer(tmp_path, dataset, tiny_model):
    """A tiny Qwen3-VL stands in for Cosmos-Reason2-2B, the embedded engine on the CPU for cosmos-rl
    on four GPUs, and for `vllm serve` its printed command."""
    (tmp_path / "videos").symlink_to(dataset / "train" / "videos")
    records = files.read_json(dataset / "train" / "annotations.json")
    for record in records:
        record["video"] = Path(record["video"]).name
    files.write_json(tmp_path / "llava.json", records)
    # cosmos-rl --config config.toml llava_sft.py
    (tmp_path / "config.toml").write_text(REASON2_SFT)
    words = ["--spec", "config.toml", "--fix", "-o", "four.toml", *FEW_RECORDS]
    words += ["--set", "train_annotations=llava.json", "--set", "train_media=videos"]
    succeed(tmp_path, "build_spec.py", "train", *words)
    here = ["--model", tiny_model, *sets(SMALL_CLIPS[1:], "custom.vision.")]
    write_small_spec(tmp_path, *here)
    vision = document.load(tmp_path / "spec.toml")["custom"]["vision"]
    assert vision["fps"] == 1 and vision["resized_height"] == 56
    trained = ran(tmp_path, "train", "spec.toml")
    # cosmos-reason2-inference offline
    clip = next(iter((dataset / "eval" / "videos").iterdir()))
    question = [clip, "What happens?", "--set", "fps=4", "--set", "max_tokens=4", "--json"]
    said = json.loads(succeed(tmp_path, "ask_model.py", trained.folder, *question))
    (row,) = said["result"]["answers"]
    assert row["error"] is None and row["media"] == str(clip)
    # vllm serve MODEL
    chosen = run_script(
        "select_checkpoint.py", trained.folder, "--by", "step_2", "--json", cwd=tmp_path
    )
    assert json.loads(chosen.stdout)["result"]["serve"].startswith("vllm serve ")


def read_wandb(folder):
    """{"id", "project", "name", "exit_code", "history": its lines} of an offline run, which the
    package keeps as messages of its own in a log of LevelDB's form."""
    (written,) = folder.glob("*.wandb")
    done = called(
        [sys.executable, str(Path(__file__).with_name("wandb_oracle.py")), written],
        env={**os.environ, "PYTHONPATH": str(oracles.wandb())},
        check=True,
    )
    return json.loads(done.stdout)


def assert_in_wandb(trained):
    """Every loss of the job's metrics.jsonl stands in its run, which has ended well."""
    run_dir = Path(trained.evidence["checkpoint"]).parents[1]
    (kept,) = run_dir.glob("wandb/offline-run-*")
    run = read_wandb(kept)
    assert (run["project"], run["name"], run["exit_code"]) == ("cosmos-reason2", "first", 0)
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").open()]
    for name in ("train/loss", "val/avg_loss"):
        told = [line[name] for line in lines if name in line]
        assert len(told) == 2 and [line[name] for line in run["history"] if name in line] == told


def test_reason2_from_a_saved_hub_folder_to_its_run_in_wandb(tmp_path, dataset, tiny_model):
    """The datasets library saves other clips than Nexar's, wandb itself keeps its run here instead
    of sending it, and a tiny Qwen3-VL trained by the embedded engine on the CPU stands in for
    Cosmos-Reason2-2B on four GPUs."""
    env = {"PYTHONPATH": str(oracles.wandb()), "WANDB_MODE": "offline", "WANDB_API_KEY": KEY}
    # download_nexar_collision_prediction.py data/hf_sft --split "train[:100]"
    write_saved_set(tmp_path / "data" / "hf_sft", dataset / "train")
    # cosmos-rl --config config.toml hf_sft.py
    (tmp_path / "config.toml").write_text(REASON2_SAVED)
    words = ["train", "--spec", "config.toml", "--fix", "-o", "four.toml"]
    said = json.loads(succeed(tmp_path, "build_spec.py", *words, "--json"))
    (lost,) = [one for one in said["findings"] if one["id"] == "SPEC-DATA-TRAIN"]
    named = (
        f"build_dataset.py {tmp_path / 'data' / 'hf_sft'} -o hf_sft-data makes hf_sft-data/train"
    )
    assert named in lost["message"] and "--train-root" in lost["message"]
    built = ["data/hf_sft", "-o", "hf_sft-data", "--eval-fraction", 0.25]
    succeed(tmp_path, "build_dataset.py", *built)
    succeed(tmp_path, "check_dataset.py", "hf_sft-data/train", "--eval", "hf_sft-data/eval")
    words += ["--train-root", "hf_sft-data/train", "--eval-root", "hf_sft-data/eval", *FEW_RECORDS]
    succeed(tmp_path, "build_spec.py", *words, "--set", "validation.freq=1")
    here = ["--model", tiny_model, *sets(SMALL_CLIPS[1:], "custom.vision.")]
    write_small_spec(tmp_path, *here, "--set", "logging.experiment_name=first")
    first = files.read_json(tmp_path / "hf_sft-data" / "train" / "annotations.json")[0]
    assert first["conversations"][0] == {"from": "system", "value": SYSTEM}
    trained = ran(tmp_path, "train", "spec.toml", env=env)
    # wandb login, and the run that the guide's console names
    assert_in_wandb(trained)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in written)
    # inference_sample.py
    listed = succeed(tmp_path, "select_checkpoint.py", trained.folder, "--by", "best")
    clip = next(iter((dataset / "eval" / "videos").iterdir()))
    question = [listed, clip, "What happens?", "--set", "max_tokens=4", "--json"]
    (row,) = json.loads(succeed(tmp_path, "ask_model.py", *question))["result"]["answers"]
    assert row["error"] is None


def test_the_bank_from_a_spec_to_the_gaps_and_a_search(tmp_path, dataset, tiny_model):
    """NVIDIA's image cannot run here: the plan that would start it is looked at, and the embedded
    engine on the CPU does what the same spec says."""
    roots = ["--train-root", dataset / "train", "--eval-root", dataset / "eval"]
    # the planner, a sealed plan
    words = ["--engine", "tao", "--model", tiny_model, "--gpus-per-node", 1, "-o", "tao.toml"]
    small = [*sets(SMALL_RUN), *sets(SMALL_CLIPS[:1], "custom.vision.")]
    succeed(tmp_path, "build_spec.py", "train", *words, *roots, *small)
    # tao_job_record.py, docker run
    words = ["--spec", "tao.toml", "--platform", "docker", "--gpu-ids", 0, "--output", "carried"]
    succeed(tmp_path, "launch_job.py", "plan", "train", *words)
    carried = (tmp_path / "carried" / "run.sh").read_text()
    assert (
        "docker_run.sh" in carried and "cosmos-rl" in carried and str(dataset / "train") in carried
    )
    words = ["--spec", "tao.toml", "--engine", "transformers", "-o", "spec.toml"]
    words += sets(SMALL_CLIPS[1:], "custom.vision.")
    succeed(tmp_path, "build_spec.py", "train", *words)
    trained = ran(tmp_path, "train", "spec.toml")
    # evaluation_workflow.py
    words = ["--engine", "transformers", "--parent-job", trained.folder, *roots[2:]]
    words += ["--set", "generation.max_tokens=4", "-o", "eval.toml"]
    succeed(tmp_path, "build_spec.py", "evaluate", *words)
    results = ran(tmp_path, "evaluate", "eval.toml").outputs["results_dir"]
    # extract_cosmos_metrics.py
    scored = json.loads(succeed(tmp_path, "score_predictions.py", results, "--json"))
    (metrics,) = scored["result"]["runs"]
    # analyze_gaps.py
    words = ["--results-dir", results, "--gaps-parquet", "gaps.parquet"]
    words += ["--kpi-ann-path", dataset / "eval" / "annotations.json"]
    succeed(tmp_path, "analyze_gaps.py", *words, "--kpi-media-path", dataset / "eval")
    gaps = parquet.read_table(tmp_path / "gaps.parquet")
    assert gaps.column_names[:3] == ["video_id", "question", "ground_truth"]
    assert gaps.num_rows == metrics["rows"] - metrics["correct"]
    # tao_automl.runner
    words = ["--study", "study", "--spec", "spec.toml", "--trials", 2, "--gpu-ids", "none"]
    planned = json.loads(succeed(tmp_path, "tune_hyperparameters.py", "plan", *words, "--json"))
    assert planned["result"]["left"] == 2
    script, verb = shlex.split(planned["next"])[:2]
    assert (Path(script).name, verb) == ("tune_hyperparameters.py", "run")
