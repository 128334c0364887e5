"""`diagnose_log.py LOG --spec SPEC`: fixes that fit the spec of the failed run, and work."""

import json
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise

import pytest
from support import ROOT, run_script

NO_STEPS = "AttributeError: 'NoneType' object has no attribute 'state_dict'"
CUT = "ValueError: Video features and video tokens do not match: tokens: 1035, features 1152"
# What people write: none of the keys that their trainer has a default for.
SPEC = """
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = {length}
[policy.parallelism]
dp_shard_size = 8
[train]
train_batch_per_replica = 32
epoch = 3
[train.train_policy]
type = "sft"
mini_batch = 2
dataloader_drop_last = true
[custom.train_dataset]
annotation_path = "{root}/annotations.json"
media_path = "{root}"
[custom.vision]
{frames}
"""


VALIDATED = """
[validation]
enable = true
freq = 50
[custom.val_dataset]
annotation_path = "{root}/held.json"
media_path = "{root}"
"""


@pytest.fixture
def here(tmp_path):
    write_records(tmp_path, 120)
    return tmp_path


def write_records(folder, count, name="annotations.json", clip="a.mp4"):
    turns = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "This."}]
    records = [{"id": f"{clip}{n}", "video": clip, "conversations": turns} for n in range(count)]
    (folder / name).write_text(json.dumps(records))


def diagnosed(here, line, frames="nframes = 8", length=40960, spec="run.toml", flags=()):
    """The one error of a log, with a spec of its name beside it unless another is named."""
    (here / spec).write_text(SPEC.format(length=length, root=here, frames=frames))
    (here / "run.log").write_text(line + "\n")
    done = run_script("diagnose_log.py", "run.log", "--json", *flags, cwd=here)
    assert done.returncode == 1, done.stderr
    finding, *about_spec = json.loads(done.stdout)["findings"]
    assert [one["id"] for one in about_spec] == ([] if flags else ["LOG-SPEC"])
    return finding


def mended(here, fix) -> dict:
    """The spec that a fix makes, when it works."""
    script, *words = shlex.split(fix)
    done = run_script(script.rpartition("/")[2], *words, cwd=here)
    assert done.returncode == 0, done.stderr
    return tomllib.loads((here / words[words.index("-o") + 1]).read_text())


def test_a_run_without_steps_is_told_the_sum_and_gets_a_batch_that_fits(here):
    finding = diagnosed(here, NO_STEPS)
    assert finding["id"] == "LOG-NO-STEPS"
    assert "120 records / 8 ranks = 15 < 32 (train_batch_per_replica)" in finding["message"]
    assert "dataloader_drop_last = true" in finding["message"]
    train = mended(here, finding["fix"])["train"]
    assert train["train_batch_per_replica"] == 15
    assert train["train_policy"]["mini_batch"] == 1 and train["epoch"] == 3
    assert train["ckpt"]["save_freq"] == 1, "the three steps save"


def test_the_mended_run_validates_and_a_mini_batch_that_fits_stays(here):
    write_records(here, 9, "held.json", "b.mp4")
    finding = diagnosed(here, NO_STEPS, "nframes = 8" + VALIDATED.format(root=here))
    assert mended(here, finding["fix"])["validation"]["freq"] == 1
    spec = (here / "run.toml").read_text().replace("mini_batch = 2", "mini_batch = 1")
    (here / "one.toml").write_text(spec)
    done = run_script("diagnose_log.py", "run.log", "--spec", "one.toml", "--json", cwd=here)
    assert "mini_batch" not in json.loads(done.stdout)["findings"][0]["fix"]


def test_without_its_records_the_usual_batch_is_proposed(here):
    (here / "annotations.json").unlink()
    finding = diagnosed(here, NO_STEPS)
    assert "ranks" not in finding["message"].partition("The log says")[2]
    assert "train_batch_per_replica=1 " in finding["fix"]


@pytest.mark.parametrize(
    ("frames", "length", "changes", "kept"),
    [
        ("nframes = 16", 40960, {"nframes": 8}, 40960),
        ("nframes = 8", 40960, {"nframes": 4}, 40960),
        ("nframes = 8", 128000, {"nframes": 4}, 128000),
        ("fps = 2", 40960, {"fps": 2, "max_frames": 8}, 40960),
        ("fps = 2\nmax_frames = 24", 40960, {"fps": 2, "max_frames": 8}, 40960),
        ("fps = 2\nmax_frames = 8", 40960, {"fps": 2, "max_frames": 4}, 40960),
        ("nframes = 8", 4096, {"nframes": 8}, 40960),
    ],
)
def test_a_cut_sample_gets_a_longer_length_or_else_fewer_frames(
    here, frames, length, changes, kept
):
    write_records(here, 6000)  # steps enough for its spec
    finding = diagnosed(here, CUT, frames, length)
    assert finding["id"] == "LOG-VISION-TOKENS-CUT"
    spec = mended(here, finding["fix"])
    assert spec["custom"]["vision"] == changes
    assert spec["policy"]["model_max_length"] == kept


def test_a_spec_elsewhere_is_named(here):
    other = here / "specs"
    other.mkdir()
    finding = diagnosed(here, NO_STEPS, spec="specs/a.toml", flags=["--spec", "specs/a.toml"])
    assert "--spec specs/a.toml" in finding["fix"] and "= 15 < 32" in finding["message"]


def told(here, *words):
    """Id -> finding, and the exit code."""
    done = run_script("diagnose_log.py", *words, "--json", cwd=here)
    assert "Traceback" not in done.stderr
    return {one["id"]: one for one in json.loads(done.stdout)["findings"]}, done.returncode


def spec_named(here, name, length=40960):
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SPEC.format(length=length, root=here, frames="nframes = 8"))
    return path


def test_a_spec_that_only_lies_beside_the_log_is_not_that_of_the_run(here):
    spec_named(here, "run_a.toml")
    (here / "run_b.log").write_text(NO_STEPS)
    found, code = told(here, "run_b.log")
    assert code == 1 and "run_a.toml" in found["LOG-SPEC-UNKNOWN"]["message"]
    assert (
        "run_a" not in found["LOG-NO-STEPS"]["fix"] and "SPEC.toml" in found["LOG-NO-STEPS"]["fix"]
    )
    assert "ranks" not in found["LOG-NO-STEPS"]["message"].partition("The log says")[2]
    spec_named(here, "spec.toml")
    assert "LOG-SPEC-UNKNOWN" in told(here, "run_b.log")[0]


@pytest.mark.parametrize(
    ("says", "names", "taken"),
    [
        ("", ["run.toml", "other.toml"], "run.toml"),
        ("", ["run.yaml"], "run.yaml"),
        ("", ["run.toml", "run.yaml"], None),
        ("+ cosmos-rl --config {here}/there/b.toml x.py\n", ["run.toml", "there/b.toml"], "b.toml"),
        ("$ cosmos-rl --config /results/b.toml x.py\n", ["run.toml", "b.toml"], "b.toml"),
        ("train -e=b.toml\n + train --config a.toml\n", ["a.toml", "b.toml", "run.toml"], None),
        ("+ cosmos-rl --config gone.toml\n", ["a.toml"], None),
    ],
)
def test_the_spec_is_the_one_that_the_log_names_or_that_has_its_name(here, says, names, taken):
    write_records(here, 6000)
    for name in names:
        path = spec_named(here, name)
        if path.suffix == ".yaml":
            path.write_text("policy:\n  model_max_length: 4096\ntrain:\n  epoch: 1\n")
    (here / "run.log").write_text(says.format(here=here) + MEMORY)
    found, code = told(here, "run.log")
    assert code == 1 and ("LOG-SPEC" in found) == bool(taken)
    if taken:
        assert found["LOG-SPEC"]["data"]["spec"].endswith(taken)
        assert taken in found["LOG-GPU-MEMORY"]["fix"]
    else:
        assert "SPEC.toml" in found["LOG-GPU-MEMORY"]["fix"]
        assert all(name in found["LOG-SPEC-UNKNOWN"]["message"] for name in names[:1])


def test_standard_input_names_no_spec(here):
    spec_named(here, "spec.toml")
    command = [sys.executable, ROOT / "scripts/diagnose_log.py", "-", "--json"]
    done = subprocess.run(command, cwd=here, input=MEMORY, capture_output=True, text=True)
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1 and found["LOG-SPEC-UNKNOWN"]["where"] == "stdin"
    assert "SPEC.toml" in found["LOG-GPU-MEMORY"]["fix"]


def test_the_log_in_the_folder_of_a_job_has_that_job_s_spec(here):
    folder = here / "jobs" / "train-20260101-120000-0a1b2c"
    spec_named(here, "jobs/train-20260101-120000-0a1b2c/spec.toml")
    (folder / "job.json").write_text("{}")
    (folder / "results" / "logs").mkdir(parents=True)
    (folder / "results" / "logs" / "policy_0.log").write_text(NO_STEPS)
    found, _ = told(here, str(folder / "results" / "logs" / "policy_0.log"))
    assert found["LOG-SPEC"]["data"]["spec"] == str(folder / "spec.toml")
    assert "= 15 < 32" in found["LOG-NO-STEPS"]["message"]


MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB."
EVALUATION = """
results_dir = ""
[dataset]
annotation_path = "a.json"
media_dir = "."
system_prompt = ""
[model]
model_name = "nvidia/Cosmos-Reason2-2B"
max_length = 16384
[evaluation]
batch_size = 8
[vision]
nframes = 8
"""
GRPO = """
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
[train]
train_batch_per_replica = 32
[train.train_policy]
type = "grpo"
"""


def changed(fix):
    words = shlex.split(fix)
    pairs = pairwise(words)
    return {
        word.partition("=")[0]: word.partition("=")[2] for flag, word in pairs if flag == "--set"
    }


@pytest.mark.parametrize(
    ("text", "action", "id"),
    [
        (SPEC, "train", "LOG-GPU-MEMORY"),
        (GRPO, "grpo", "LOG-GPU-MEMORY"),
        (EVALUATION, "evaluate", "LOG-GPU-MEMORY-EVALUATE"),
        ("[policy]\nmodel_max_length = 4096\n[train]\nepoch = 2\n", "train", "LOG-GPU-MEMORY"),
    ],
)
def test_flags_fit_the_action_of_the_spec_and_none_is_empty(here, text, action, id):
    write_records(here, 6000)
    filled = text.replace("{length}", "4096").replace("{frames}", "").replace("{root}", str(here))
    (here / "run.toml").write_text(filled)
    (here / "run.log").write_text(MEMORY)
    found, _ = told(here, "run.log", "--spec", "run.toml")
    script, *words = shlex.split(found[id]["fix"])
    assert words[0] == action and all(changed(found[id]["fix"]).values())
    done = run_script(script.rpartition("/")[2], *words, cwd=here)
    assert done.returncode == 0, done.stderr


def test_a_fix_that_would_not_pass_is_advice(here):
    (here / "run.toml").write_text(EVALUATION.replace('annotation_path = "a.json"', ""))
    (here / "run.log").write_text(MEMORY)
    found, _ = told(here, "run.log", "--spec", "run.toml")
    told_of = found["LOG-GPU-MEMORY-EVALUATE"]
    assert not told_of["fix"] and "evaluation.batch_size=1" in told_of["message"]
    assert "dataset.annotation_path" in told_of["message"]


def test_what_is_quoted_of_a_record_too_long_has_its_length(here):
    """As cosmos-rl 0.4.7 logged it on an H100."""
    (here / "run.log").write_text(
        "[rank0]:[cosmos] 2026-11-28 10:28:27,734 - cosmos - WARNING - sft_process_sample failed "
        "(attempt 1/50): [mixed(text+video)] Sample exceeds model_max_length after tokenization "
        "(7319 > 4096) and truncation would break vision token alignment, skipping.\n"
    )
    found, _ = told(here, "run.log")
    assert "after tokenization (7319 > 4096)" in found["LOG-SAMPLE-TOO-LONG"]["message"]


TOO_LONG = (
    "ValueError: The decoder prompt (length {}) is longer than the maximum model length of {}."
)
DIMS = (
    "AssertionError: Invalid parallel dims: dp_replicate({}) * dp_shard({}) * cp(1) * tp({}) * "
    "pp(1) != WORLD_SIZE({})"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (TOO_LONG.format(16476, 16384), {"model.max_length": "40960"}),
        (TOO_LONG.format(50000, 40960), {"model.max_length": "51200"}),
        ("Sample exceeds model_max_length after tokenization (5120 > 4096) and truncation",
         {"policy.model_max_length": "40960"}),
        ("Sample exceeds model_max_length after tokenization (44100 > 40960) and truncation",
         {"policy.model_max_length": "46080"}),
        ("ValueError: nframes should in interval [2, 31], but got 32.",
         {"custom.vision.nframes": "30"}),
        ("ValueError: nframes should in interval [2, 3], but got 4.",
         {"custom.vision.nframes": "2"}),
        ("ValueError: nframes should in interval [2, 1], but got 4.", {}),
        ("ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model.", {}),
        ("ValueError: Target modules {'q_prj'} not found in the base model.",
         {"policy.lora.target_modules": '["q_proj", "v_proj"]'}),
        ("NotImplementedError: Optimizer AdamW not added.", {"train.optm_impl": "fused"}),
        (DIMS.format(1, 1, 2, 1), {"policy.parallelism.tp_size": "1"}),
        (DIMS.format(1, 8, 1, 4), {"policy.parallelism.dp_shard_size": "4"}),
        (DIMS.format(3, 8, 1, 4), {}),
    ],
)  # fmt: skip
def test_no_fix_repeats_what_the_error_shows_to_be_wrong(here, line, expected):
    (here / "run.log").write_text(line)
    found, code = told(here, "run.log")
    (error,) = [one for one in found.values() if one["severity"] == "error"]
    assert code == 1 and changed(error["fix"]) == expected
    assert bool(error["fix"]) == bool(expected)


@pytest.mark.parametrize(
    ("line", "changes", "expected"),
    [
        ("KeyError: 'video_fps'", "fps = 2", ["nframes"]),
        ("AssertionError: Only accept either `fps` or `nframes`", "fps = 2\nnframes = 16", []),
    ],
)
def test_frames_are_given_in_one_way_afterwards(here, line, changes, expected):
    write_records(here, 6000)
    finding = diagnosed(here, line, changes)
    vision = mended(here, finding["fix"])["custom"]["vision"]
    assert "fps" not in vision and vision["nframes"] == (8 if expected else 16)


def test_replicas_become_shards_of_as_many_gpus(here):
    write_records(here, 6000)
    spec_named(here, "run.toml")
    text = (here / "run.toml").read_text()
    more = "dp_shard_size = 2\ndp_replicate_size = 4"
    (here / "run.toml").write_text(text.replace("dp_shard_size = 8", more))
    (here / "run.log").write_text("RuntimeError: DDP has not supported > 1D parallelism")
    found, _ = told(here, "run.log")
    layout = mended(here, found["LOG-REPLICATE-1D"]["fix"])["policy"]["parallelism"]
    assert (layout["dp_shard_size"], layout["dp_replicate_size"]) == (8, 1)


@pytest.mark.parametrize(
    "line",
    [
        "RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: x",
        "403 Forbidden: You don't have the rights to create a model under the namespace",
        "FileNotFoundError: [Errno 2] No such file: '/r/checkpoints/step_40/policy/cosmos_config'",
    ],
)
def test_no_fix_takes_back_what_was_asked_for(here, line):
    """Neither another model, nor no upload, nor a start anew."""
    (here / "run.log").write_text(line)
    found, _ = told(here, "run.log")
    (error,) = [one for one in found.values() if one["severity"] == "error"]
    assert error["id"] != "LOG-UNKNOWN" and not changed(error["fix"])
    assert "--model" not in error["fix"]


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("Step 12 loss nan", "LOG-LOSS-NAN"),
        ("step 12: loss inf, 4 tokens/s", "LOG-LOSS-NAN"),
        ("train:  3%|3  | 4/90 [00:03<00:30, loss nan, 90 tokens/s]", "LOG-LOSS-NAN"),
        ('{"train/loss": NaN, "step": 3}', "LOG-LOSS-NAN"),
        ("{'loss': 'nan', 'grad_norm': 'nan'}", "LOG-LOSS-NAN"),
        ("grad_norm=tensor(nan, device='cuda:0')", "LOG-LOSS-NAN"),
        ("validation at step 20: loss nan", "LOG-VALIDATION-NAN"),
        ("{'eval_loss': nan}", "LOG-VALIDATION-NAN"),
        ("Error: something odd", "LOG-UNKNOWN"),
        ("[rank0]: RuntimeError: odd. Warning: there is more", "LOG-UNKNOWN"),
        ("[rank3]: StopIteration", "LOG-UNKNOWN"),
        ("KeyboardInterrupt", "LOG-UNKNOWN"),
        ("Traceback (most recent call last):\n  File x\nOddity: 3", "LOG-UNKNOWN"),
        ("terminate called after throwing an instance of 'c10::Error'", "LOG-UNKNOWN"),
    ],
)
def test_no_ending_is_no_sign_of_an_error(here, line, id):
    (here / "run.log").write_text(f"step 1 loss 1.2\nall fine\n{line}\n")
    found, code = told(here, "run.log")
    assert code == 1 and found[id]["where"].startswith("run.log:3")
    if id == "LOG-UNKNOWN":
        assert line.splitlines()[-1] in found[id]["message"]


def test_a_spec_that_cannot_be_read_is_wrong_usage(here):
    (here / "run.log").write_text(NO_STEPS)
    done = run_script("diagnose_log.py", "run.log", "--spec", "none.toml", cwd=here)
    assert done.returncode == 2 and "none.toml" in done.stderr and "Traceback" not in done.stderr
