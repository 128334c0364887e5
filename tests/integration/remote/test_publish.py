"""Publishing to a Hub that keeps what it is sent, and to S3:
what goes, what stays, refusals, kills, reruns."""

import base64
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from omni_layouts import write_tensors
from support import ROOT, run_script
from training import short_training

from cosmos_reason.base import files as storage
from cosmos_reason.checkpoints import (
    checkpoint_metrics,
    conversion,
    omni,
    safetensors_files,
    uploads,
)
from cosmos_reason.engine.train import run as training
from cosmos_reason.remote import s3
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

SCRIPT = "publish_checkpoint.py"
REPO = "lab/left-right"
TOKENS = {"hf_write": "write", "hf_read": "read", "hf_stranger": "write"}


class Hub(BaseHTTPRequestHandler):
    """The routes that huggingface_hub uses to make a repository and commit to it. `server.repos`:
    name -> {"private", "files": {path: bytes}}; `server.blobs`: what LFS holds; `server.calls`:
    every request that would change something.
    """

    def log_message(self, *args):
        pass

    def handle_any(self):
        path = self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path.startswith("/lfs/"):
            return self.store(path.rpartition("/")[2], body)
        if token not in TOKENS:
            return self.answer(401, {"error": "Invalid credentials"})
        if path == "/api/whoami-v2":
            name = "stranger" if token == "hf_stranger" else "lab"
            access = {"accessToken": {"role": TOKENS[token]}}
            return self.answer(200, {"name": name, "orgs": [], "auth": access})
        return self.of_repository(path, body, token)

    def of_repository(self, path, body, token):
        server = self.server
        if self.command != "GET" and path != "/api/validate-yaml":
            server.calls.append(path)
        repo = server.repos.get(REPO)
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            made = {"private": json.loads(body).get("visibility") == "private", "files": {}}
            server.repos.setdefault(REPO, made)
            return self.answer(409 if repo else 200, {"url": f"https://huggingface.co/{REPO}"})
        if repo is None:
            return self.answer(404, {}, {"X-Error-Code": "RepoNotFound"})
        if path.endswith("/auth-check/write"):
            return self.answer(403 if token == "hf_stranger" else 200, {})
        if self.command == "GET":
            told = {"id": REPO, "sha": "a" * 40, "private": repo["private"]}
            told["siblings"] = [{"rfilename": name} for name in repo["files"]]
            return self.answer(200, told)
        return self.answer(200, self.change(path, repo, body))

    do_GET = do_POST = do_PUT = handle_any

    def store(self, oid, body):
        self.server.calls.append(self.path)
        if self.server.blobs and self.server.stall:
            self.server.stalled.set()
            return time.sleep(60)
        if hashlib.sha256(body).hexdigest() != oid:
            return self.answer(400, {})
        self.server.blobs[oid] = body
        return self.answer(200, {})

    def change(self, path, repo, body):
        if "/preupload/" in path:
            asked = json.loads(body)["files"]
            for file in asked:
                is_large = file["path"].endswith("tensors")
                file |= {"uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
            return {"files": asked}
        if path.endswith("/objects/batch"):
            address = f"http://127.0.0.1:{self.server.server_port}/lfs/"
            objects = json.loads(body)["objects"]
            for entry in objects:
                if entry["oid"] not in self.server.blobs:
                    entry["actions"] = {"upload": {"href": address + entry["oid"]}}
            return {"transfer": "basic", "objects": objects}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repo["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo["files"][value["path"]] = self.server.blobs[value["oid"]]
        commit = "b" * 40
        address = f"https://huggingface.co/{REPO}/commit/{commit}"
        return {"commitUrl": address, "commitOid": commit}

    def answer(self, status, value, headers=None):
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    httpd.repos, httpd.blobs, httpd.calls = {}, {}, []
    httpd.stall, httpd.stalled = False, threading.Event()
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{httpd.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    # What this process has read already.
    monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield httpd
    httpd.shutdown()


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A model of several shards."""
    folder = tmp_path_factory.mktemp("shards") / "model"
    source = omni.open_source(tiny_model.with_name("omni"))
    conversion.convert(source, folder, 500_000, force=False, jobs=1)
    return folder


@pytest.fixture
def folder(model, tmp_path):
    """A model as a train job leaves it, with what must stay at home beside it."""
    job = tmp_path / "jobs" / "train-1"
    folder = shutil.copytree(model, job / "results" / "20260101120000" / "safetensors" / "step_9")
    at_home = ".env optimizer.pt pytorch_model.bin training_args.bin x.pth stray.safetensors a.log"
    for name in at_home.split():
        (folder / name).write_bytes(b"SECRET-CANARY")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "config.json").write_text("SECRET-CANARY")
    facts = {"records": 321, "clips": 300, "fingerprint": "f00d", "majority_accuracy": 0.25}
    (job / "dataset_facts.json").write_text(json.dumps(facts))
    (job / "spec.toml").write_text(
        """
wandb_api_key = "CANARY"
redis = "https://user:CANARY@host/CANARY"
[policy]
model_name_or_path = "hf_model://nvidia/Cosmos-Reason2-2B"
[policy.lora]
r = 8
target_modules = ["CANARY"]
[train]
optm_lr = 2e-5
optm_name = "AdamW"
output_dir = "gs://CANARY/out"
secret = 123454321
[custom]
hf_token = "hf_CANARY"
[custom.train_dataset]
annotation_path = "/home/CANARY/annotations.json"
"""
    )
    table = {
        "20260101120000/safetensors/step_9": {"accuracy": 0.875},
        "20260101120000/safetensors/step_8": {"f1": 0.1},
    }
    (job / "results" / checkpoint_metrics.FILE).write_text(json.dumps(table))
    return folder


def publish(folder, *flags, env=None):
    done = run_script(SCRIPT, folder, "--json", *flags, env=env)
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


def ids(said):
    return [finding["id"] for finding in said["findings"]]


def check_sent(files, folder):
    """What was sent is the whole model and a card, and nothing of the rest."""
    needed = {"config.json", "tokenizer.json", "chat_template.jinja", safetensors_files.INDEX_NAME}
    assert needed < set(files) and "README.md" in files
    for name, content in files.items():
        assert name == "README.md" or (folder / name).read_bytes() == content, name
        assert b"SECRET-CANARY" not in content


def stored(prefix):
    """What lies there in S3: name -> bytes."""
    return {found.name: s3.fetch(found).read_bytes() for found in s3.objects(prefix)}


def test_without_yes_it_lists_and_acts_on_nothing(hub, folder):
    done, said = publish(folder, "--hub", REPO)
    assert done.returncode == 0 and hub.calls == [] and hub.repos == {}
    assert not said["result"]["sent"]
    names = [row["name"] for row in said["result"]["files"]]
    assert names[-1] == "README.md" and "config.json" in names and "stray.safetensors" not in names
    left = set(".env optimizer.pt pytorch_model.bin x.pth checkpoints".split())
    assert left <= set(said["result"]["left_out"])
    listed = run_script(SCRIPT, folder, "--hub", REPO)
    text, suggested = listed.stdout, listed.stderr.splitlines()[-1]
    assert "(private, new)" in text and "nothing was sent: add --yes" in text
    assert "stay here: .env" in text
    assert hub.calls == []
    script, *args = shlex.split(suggested.removeprefix("next: "))
    assert run_script(Path(script).name, *args).returncode == 0
    assert "config.json" in hub.repos[REPO]["files"]


@pytest.mark.promise
def test_the_card_can_be_read_before_it_is_sent(hub, folder, tmp_path):
    card = tmp_path / "card.md"
    done, said = publish(folder, "--hub", REPO, "--card", card)
    assert done.returncode == 0 and not said["result"]["sent"]
    assert card.read_text() == said["result"]["card"] and "base_model" in card.read_text()


def test_a_new_repository_is_private_and_holds_what_was_listed(hub, folder):
    done, said = publish(folder, "--hub", REPO, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    serve = shlex.split(said["result"]["serve"])
    assert serve[:5] == ["vllm", "serve", REPO, "--served-model-name", REPO.partition("/")[2]]
    repo = hub.repos[REPO]
    assert repo["private"]
    assert said["result"]["address"].startswith(f"https://huggingface.co/{REPO}/commit/")
    assert set(repo["files"]) == {row["name"] for row in said["result"]["files"]}
    check_sent(repo["files"], folder)
    card = repo["files"]["README.md"].decode()
    assert "base_model: nvidia/Cosmos-Reason2-2B" in card and "| accuracy | 0.875 |" in card
    assert "f1" not in card
    assert "| records | 321 |" in card and "| train.optm_lr | 2e-05 |" in card
    assert "| policy.lora.r | 8 |" in card
    assert "| train.optm_name | AdamW |" in card and "CANARY" not in card
    assert "123454321" not in card
    assert str(folder.parents[3]) not in card and "hf_write" not in done.stdout + done.stderr


def test_the_card_of_a_merged_model_is_told_where_its_job_is(hub, folder, model, tmp_path):
    merged, job = shutil.copytree(model, tmp_path / "merged"), folder.parents[3]
    assert "##" not in publish(merged, "--hub", REPO)[1]["result"]["card"]
    metrics = {"schema_version": 1, "accuracy": 0.75, "per_type": {"x": 1}}
    (job / "metrics.json").write_text(json.dumps(metrics))
    card = publish(merged, "--hub", REPO, "--job-dir", job)[1]["result"]["card"]
    assert "| accuracy | 0.75 |" in card and "| records | 321 |" in card
    assert "schema_version" not in card
    card = publish(folder, "--hub", REPO, "--job-dir", job)[1]["result"]["card"]
    # Its own row counts more than what an evaluation left in the job.
    assert "| accuracy | 0.875 |" in card


def test_the_metrics_of_another_model_are_none_of_this_one(hub, folder, model, tmp_path):
    """A card with the numbers of the untouched model, or of another step, is false."""
    merged, job = shutil.copytree(model, tmp_path / "merged"), folder.parents[3]
    with open(next(merged.glob("*.safetensors")), "r+b") as handle:
        handle.seek(-2, os.SEEK_END)
        handle.write(b"\x01\x3c")  # a small bfloat16
    (job / "metrics.json").write_text(json.dumps({"accuracy": 0.75, "checkpoint": str(folder)}))
    said = publish(merged, "--hub", REPO, "--job-dir", job)[1]
    assert "PUBLISH-OTHER-METRICS" in ids(said) and "0.75" not in said["result"]["card"]
    copied = shutil.copytree(merged, tmp_path / "copied")
    (job / "metrics.json").write_text(json.dumps({"accuracy": 0.75, "checkpoint": str(merged)}))
    for same in (merged, copied):
        said = publish(same, "--hub", REPO, "--job-dir", job)[1]
        assert ids(said) == [] and "| accuracy | 0.75 |" in said["result"]["card"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (job / "metrics.json").write_text(json.dumps({"accuracy": 0.75, "checkpoint": str(adapter)}))
    said = publish(merged, "--hub", REPO, "--job-dir", job)[1]
    assert (
        ids(said) == ["PUBLISH-OTHER-METRICS"] and "| accuracy | 0.75 |" in said["result"]["card"]
    )


def test_a_path_of_this_machine_in_a_config_is_said(hub, model, tmp_path):
    named = shutil.copytree(model, tmp_path / "named")
    for name, key in (("config.json", "_name_or_path"), ("tokenizer_config.json", "name_or_path")):
        table = json.loads((named / name).read_text())
        (named / name).write_text(json.dumps(table | {key: "/home/alice/customer/model"}))
    _, said = publish(named, "--hub", REPO)
    found = [(one["id"], one["where"], one["severity"]) for one in said["findings"]]
    assert found == [
        ("PUBLISH-LOCAL-PATH", "config.json", "warning"),
        ("PUBLISH-LOCAL-PATH", "tokenizer_config.json", "warning"),
    ]
    (named / "config.json").write_text(
        (named / "config.json").read_text().replace("/home/alice/customer", "nvidia")
    )
    assert len(publish(named, "--hub", REPO)[1]["findings"]) == 1


def test_public_is_said_not_fallen_into(hub, folder):
    hub.repos[REPO] = {"private": False, "files": {}}
    done, said = publish(folder, "--hub", REPO, "--yes")
    assert done.returncode == 1 and ids(said) == ["PUBLISH-PUBLIC"] and hub.calls == []
    assert not said["findings"][0]["fix"]  # nobody falls into it by pasting
    done, said = publish(folder, "--hub", REPO, "--yes", "--public")
    assert done.returncode == 0 and "config.json" in hub.repos[REPO]["files"]


@pytest.mark.parametrize(
    ("env", "finding"),
    [
        ({"HF_TOKEN": "hf_read"}, "HUB-READ-TOKEN"),
        ({"HF_TOKEN": "hf_stranger"}, "HUB-ACCESS"),
        ({"HF_TOKEN": "hf_wrong"}, "HUB-ACCESS"),
        ({"HF_TOKEN": ""}, "HUB-NO-TOKEN"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "HUB-UNREACHABLE"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_the_token_is_judged_before_anything_is_sent(hub, folder, env, finding, exists):
    if exists:
        hub.repos[REPO] = {"private": True, "files": {"config.json": b"old"}}
    done, said = publish(folder, "--hub", REPO, "--yes", env=env)
    assert done.returncode == 3 and ids(said) == [finding] and hub.calls == []
    done, said = publish(folder, "--hub", REPO, env=env)
    assert done.returncode == 0 and ids(said) == [finding] and said["result"]["files"]
    assert not [token for token in TOKENS if token in done.stdout + done.stderr]


def test_a_killed_publication_goes_on_and_nothing_is_sent_twice(hub, folder):
    hub.stall = True
    command = [sys.executable, ROOT / "scripts" / SCRIPT, folder, "--hub", REPO, "--yes"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert hub.stalled.wait(300)
    process.kill()
    process.wait()
    assert hub.repos[REPO]["files"] == {}, "a half-sent model looks like none"
    hub.stall, first = False, set(hub.blobs)
    hub.calls.clear()
    assert publish(folder, "--hub", REPO, "--yes")[0].returncode == 0 and first
    check_sent(hub.repos[REPO]["files"], folder)
    assert not first & {path.rpartition("/")[2] for path in hub.calls}


def test_weights_that_would_stay_beside_are_refused(hub, folder):
    hub.repos[REPO] = {"private": True, "files": {"model.safetensors": b"old", "notes.md": b"mine"}}
    done, said = publish(folder, "--hub", REPO, "--yes")
    assert done.returncode == 1 and ids(said) == ["PUBLISH-OTHER-WEIGHTS"] and hub.calls == []
    assert said["findings"][0]["fix"] == "", "nobody pastes the deletion of a published model"
    assert said["findings"][0]["data"]["names"] == ["model.safetensors"]


def test_what_must_not_be_published(hub, folder, tiny_model, tmp_path):
    policy = tmp_path / "out" / "20260101120000" / "checkpoints" / "step_9" / "policy"
    policy.mkdir(parents=True)
    shutil.copytree(folder, policy.parents[2] / "safetensors" / "step_9")
    done, said = publish(policy, "--hub", REPO, "--yes")
    assert done.returncode == 2 and ids(said) == ["CKPT-NOT-MODEL"]
    fixed = said["findings"][0]["message"].partition("; name ")[2]
    assert publish(fixed, "--hub", REPO)[0].returncode == 0
    done, said = publish(tiny_model.with_name("omni"), "--hub", REPO, "--yes")
    assert done.returncode == 2 and ids(said) == ["CKPT-NOT-MODEL"]
    assert "prepare_" in said["findings"][0]["fix"]
    os.truncate(next(folder.glob("model-*.safetensors")), 1000)
    done, said = publish(folder, "--hub", REPO, "--yes")
    assert done.returncode == 1 and "CKPT-SHARD-DAMAGED" in ids(said)
    for flags, finding in (
        (("--hub", "no-name"), "HUB-NAME"),
        (("--s3", "http://x"), "S3-NAME"),
        (("--s3", "s3://x/y", "--public"), "USAGE"),
    ):
        done, said = publish(folder, *flags, "--yes")
        assert (done.returncode, ids(said)) == (2, [finding])
    done, said = publish(tmp_path / "nowhere", "--hub", REPO)
    assert (done.returncode, ids(said)) == (2, ["CKPT-NOT-FOLDER"]) and hub.calls == []


def test_an_adapter(hub, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    name = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_{}.weight"
    halves = {name.format(part): ("F32", (2, 2), b"\0" * 16) for part in "AB"}
    write_tensors(folder / "adapter_model.safetensors", halves)
    snapshot = tmp_path / "hub" / "models--nvidia--Cosmos-Reason2-2B" / "snapshots" / ("c0" * 20)
    snapshot.mkdir(parents=True)
    name = "nvidia/Cosmos-Reason2-2B"
    known = ((name, []), (str(snapshot), []), (str(tmp_path), ["PUBLISH-LOCAL-BASE"]))
    for base, found in known:
        config = {"base_model_name_or_path": base, "r": 8}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        done, said = publish(folder, "--hub", REPO)
        assert done.returncode == 0 and ids(said) == found
        assert (f"base_model: {name}" in said["result"]["card"]) == (not found)
        assert "library_name: peft" in said["result"]["card"]
        assert publish(folder, "--hub", REPO, "--yes")[0].returncode == 0
        sent = json.loads(hub.repos[REPO]["files"]["adapter_config.json"])
        changed = {"base_model_name_or_path": name}
        if base == str(snapshot):
            changed["revision"] = snapshot.name
        assert sent == config | ({} if found else changed)
    diverged = dict.fromkeys(halves, ("F32", (2, 2), b"\xff" * 16))
    write_tensors(folder / "adapter_model.safetensors", diverged)
    done, said = publish(folder, "--hub", REPO, "--yes")
    assert done.returncode == 1 and ids(said) == ["CKPT-NOT-FINITE"]


def test_links_that_lead_out_are_not_followed(hub, folder, model, tmp_path):
    (tmp_path / "id_rsa").write_text("SECRET-CANARY")
    for make in (
        lambda path: path.symlink_to(tmp_path / "id_rsa"),
        lambda path: path.symlink_to(path),
        Path.mkdir,
    ):
        path = folder / "merges.txt"
        path.unlink(missing_ok=True)
        make(path)
        done, said = publish(folder, "--hub", REPO, "--yes")
        assert done.returncode == 2 and ids(said) == ["PUBLISH-LINK"], done.stderr
        assert hub.calls == []
    cache = tmp_path / "models--lab--x"
    snapshot = cache / "snapshots" / ("c0" * 20)
    shutil.copytree(model, cache / "blobs")
    snapshot.mkdir(parents=True)
    for path in (cache / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert publish(snapshot, "--hub", REPO)[0].returncode == 0


@pytest.mark.promise
def test_s3_sends_each_content_once(bucket, folder):
    target = s3.join(bucket, "models/one")
    done, said = publish(folder, "--s3", target)
    assert done.returncode == 0 and list(s3.objects(bucket)) == []
    first = said["result"]["files"][0]["name"]
    s3.send(folder / first, s3.join(target, first))  # as a run that was killed leaves it
    done, said = publish(folder, "--s3", target, "--yes")
    assert done.returncode == 0 and said["result"]["unchanged"] == [first], done.stdout
    check_sent(stored(target), folder)
    done, said = publish(folder, "--s3", target + "/", "--yes")
    assert len(said["result"]["unchanged"]) == len(said["result"]["files"])
    index = json.loads((folder / safetensors_files.INDEX_NAME).read_text())
    # The same size by chance or not, other bytes.
    (folder / safetensors_files.INDEX_NAME).write_text(json.dumps(index))
    done, said = publish(folder, "--s3", target, "--yes")
    assert safetensors_files.INDEX_NAME not in said["result"]["unchanged"]
    s3.send(folder / "config.json", s3.join(target, "model.safetensors"))
    done, said = publish(folder, "--s3", target, "--yes")
    assert done.returncode == 1 and ids(said) == ["PUBLISH-OTHER-WEIGHTS"]


def test_s3_that_cannot_be_reached(bucket, folder):
    done, said = publish(folder, "--s3", "s3://no-such-bucket/x", "--yes")
    assert done.returncode == 3 and ids(said) == ["S3-NOT-FOUND"]
    done, said = publish(folder, "--s3", "s3://no-such-bucket/x")
    assert done.returncode == 0 and ids(said) == ["S3-NOT-FOUND"] and said["result"]["files"]
    assert "canary-secret-key" not in done.stdout + done.stderr


def train(tiny_model, dataset, output, **ckpt):
    """Two steps with two checkpoints; `ckpt` says what is sent."""
    table = short_training(tiny_model, dataset, output)
    vision = {"nframes": 2, "resized_height": 32, "resized_width": 32}
    changes = {"timestamp": "right", "max_num_steps": 2, "ckpt.save_freq": 1}
    changes |= {f"ckpt.{key}": value for key, value in ckpt.items()}
    changes = {f"train.{key}": value for key, value in changes.items()}
    document.set_values(table, changes | {"custom.vision": vision, "validation.enable": False})
    training.run(document.with_defaults("train", table), None)
    return output / "right" / "safetensors"


@pytest.mark.parametrize(("which", "steps"), [("final", ["step_2"]), ("all", ["step_1", "step_2"])])
def test_a_training_sends_what_its_spec_says(
    hub, bucket, tiny_model, dataset, tmp_path, which, steps
):
    s3_keys = {"upload_s3": which, "s3_bucket": bucket.removeprefix("s3://"), "s3_prefix": "a/b/"}
    hub_keys = {"upload_hf": True, "hf_repo_name": "left"}  # of the token's account: lab/left-right
    models = train(tiny_model, dataset, tmp_path / "out", **s3_keys, **hub_keys)
    repo = hub.repos[REPO]
    assert repo["private"]
    check_sent(repo["files"], models / "step_2")
    there = {found.name for found in s3.objects(s3.join(bucket, "a/b"))}
    assert {name.split("/")[2] for name in there} == set(steps)
    for step in steps:
        folder = s3.join(bucket, f"a/b/right/safetensors/{step}")
        check_sent(stored(folder), models / step)
    assert uploads.failed(models.parent) == []


def test_an_upload_that_failed_is_made_up_by_the_resume(bucket, tiny_model, dataset, tmp_path):
    keys = {"upload_s3": "final", "s3_bucket": "bucket-made-later"}
    models = train(tiny_model, dataset, tmp_path / "out", **keys)
    assert len(uploads.failed(models.parent)) == 1
    connection = s3.client()
    connection.create_bucket(Bucket="bucket-made-later")
    spec = storage.read_json(models.parent / "checkpoints/step_2/policy/cosmos_config")
    spec["train"]["resume"] = True
    training.run(spec, None)
    assert uploads.failed(models.parent) == []
    check_sent(stored("s3://bucket-made-later/outputs/right/safetensors/step_2"), models / "step_2")
