"""What a spec names before a launch: models that are none, batches that never fill, archives, links
and mounts."""

import io
import os
import shlex
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from launch_site import Site, change, ended, write_annotations
from support import run_script

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import launch, mounts
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import docker
from cosmos_reason.media import archives
from cosmos_reason.spec import document


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    return Site(tmp_path, monkeypatch)


def refused(site, action="train"):
    _, found = launch.submit(site.request(action))
    assert not site.jobs.exists()
    return {finding.id: finding for finding in found if finding.severity == "error"}


def write_adapter(folder):
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')


# -- checks ------------------------------------------------------------------------------------


def test_an_empty_or_damaged_model_folder_is_refused(site):
    (site.root / "empty").mkdir()
    change(site, "train", policy__model_name_or_path="empty")
    assert "JOB-MODEL-EMPTY" in refused(site)
    (site.root / "model" / "tokenizer.json").unlink()
    change(site, "train", policy__model_name_or_path="model")
    assert "CKPT-FILE-MISSING" in refused(site)


def test_an_adapter_is_refused_where_the_spec_says_full_model(site):
    write_adapter(site.root / "adapter")
    change(site, "train", policy__model_name_or_path="adapter")
    assert "select_checkpoint.py" in refused(site)["SPEC-MODEL-ADAPTER"].message
    change(site, "evaluate", model__model_name="adapter")
    assert "--set model.enable_lora=true" in str(
        refused(site, "evaluate")["SPEC-ADAPTER-FOLDER"].fix
    )
    change(site, "evaluate", model__enable_lora=True, model__base_model_path="adapter")
    assert "JOB-MODEL-ADAPTER" in refused(site, "evaluate")
    change(
        site,
        "evaluate",
        model__model_name="model",
        model__enable_lora=True,
        model__base_model_path="model",
    )
    assert str(refused(site, "evaluate")["JOB-ADAPTER-FLAG"].fix) == "--set model.enable_lora=false"


def test_an_omni_checkpoint_is_refused_with_the_conversion(site):
    (site.root / "model" / "config.json").write_text('{"model_type": "cosmos3_omni"}')
    for platform, options in (("local", {}), ("docker", {"image": "x"})):
        _, found = launch.plan(site.request(platform=platform, **options))
        (finding,) = [one for one in found if one.severity == "error"]
        assert str(finding.fix).startswith(
            "scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path /"
        )


def test_a_batch_that_mini_batches_do_not_divide(site):
    change(site, "train", train__train_batch_per_replica=6)
    assert "SPEC-BATCH-MULTIPLE" in refused(site)


def test_rules_of_the_spec_hold_for_the_engine_run_by_hand_too(site):
    change(site, "train", train__train_batch_per_replica=6)
    done = run_script("run_with_transformers.py", "train", "--config", "train.toml", cwd=site.root)
    assert done.returncode == 2 and "SPEC-BATCH-MULTIPLE" in done.stderr


# -- archives ----------------------------------------------------------------------------------


def write_archive(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))


def member(name):
    made = tarfile.TarInfo(name)
    made.size = 1
    return made


def test_an_archive_is_unpacked_once_and_its_folder_takes_its_place(site):
    write_archive(site.root / "videos.tar.gz", member("0.mp4"), member("deep/1.mp4"))
    change(site, "train", custom__train_dataset__media_path="videos.tar.gz")
    site.does()
    first, second = (launch.submit(site.request())[0] for _ in range(2))
    folder = Path(document.load(Path(first.spec["path"]))["custom"]["train_dataset"]["media_path"])
    assert sorted(path.name for path in folder.rglob("*.mp4")) == ["0.mp4", "1.mp4"]
    (entry,) = [
        entry for entry in first.inputs if entry["role"] == "custom.train_dataset.media_path"
    ]
    assert entry["source"] == str(site.root / "videos.tar.gz") and entry["path"] == str(folder)
    assert [e["path"] for e in second.inputs] == [e["path"] for e in first.inputs]
    for record in (first, second):
        ended(site.jobs / record.job_id)


def test_a_cut_archive_is_refused(site):
    write_archive(site.root / "a.tar.gz", *(member(f"{n}.mp4") for n in range(100)))
    data = (site.root / "a.tar.gz").read_bytes()
    (site.root / "cut.tar.gz").write_bytes(data[: len(data) // 2])
    (site.root / "bad.tar.gz").write_bytes(data[: len(data) // 2] + b"x" * 99)
    (site.root / "none.tar.gz").write_bytes(b"no archive")
    for name in ("cut", "bad", "none"):
        with pytest.raises(Failure, match="DATA-ARCHIVE"):
            archives.unpacked(site.root / f"{name}.tar.gz")


def test_two_who_unpack_at_once_share_the_folder(site):
    write_archive(site.root / "a.tar.gz", *(member(f"{n}.mp4") for n in range(300)))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(archives.unpacked(site.root / "a.tar.gz")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(list(found[0].iterdir())) == 300


# -- what a container sees ---------------------------------------------------------------------


def test_paths_are_the_same_inside_unless_the_image_has_the_folder():
    assert mounts.inside("/data/x") == "/data/x" and mounts.inside("/home/al/j") == "/home/al/j"
    for path in ("/workspace/data", "/opt/x", "/usr/local/data"):
        assert mounts.inside(path) == f"/host{path}"


def test_links_out_of_a_folder_bring_their_targets(tmp_path):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir(), (folder / "deep").mkdir(parents=True)
    (blobs / "b").touch()
    (folder / "own").touch()
    (folder / "model.safetensors").symlink_to("../blobs/b")
    (folder / "deep" / "again").symlink_to(blobs / "b")
    (folder / "inner").symlink_to("own")
    assert mounts.link_targets(folder) == {blobs}
    for number in range(40):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
        (tmp_path / "many" / str(number) / "x").touch()
        (folder / f"m{number}").symlink_to(tmp_path / "many" / str(number) / "x")
    assert mounts.link_targets(folder) == {tmp_path}


def test_links_are_followed_hop_by_hop_as_a_container_does(tmp_path):
    for name in ("media", "middle", "far", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "far" / "a.mp4").touch()
    (tmp_path / "middle" / "hop").symlink_to(tmp_path / "far" / "a.mp4")
    (tmp_path / "media" / "a.mp4").symlink_to(tmp_path / "middle" / "hop")
    (tmp_path / "media" / "folder").symlink_to(tmp_path / "deep")
    (tmp_path / "deep" / "er" / "b.mp4").symlink_to(tmp_path / "far" / "a.mp4")
    assert mounts.link_targets(tmp_path / "media") == {
        tmp_path / name for name in ("middle", "far", "deep")
    }
    (tmp_path / "media" / "loop").symlink_to("loop")
    (tmp_path / "media" / "nowhere").symlink_to("/opt/none")
    (tmp_path / "deep" / "er" / "up").symlink_to(tmp_path / "media")
    assert mounts.link_targets(tmp_path / "media") == {
        tmp_path / name for name in ("middle", "far", "deep")
    }
    (tmp_path / "media" / "tool").symlink_to("/usr/bin/env")
    with pytest.raises(Failure, match="JOB-MEDIA-HIDDEN /usr/bin"):
        mounts.link_targets(tmp_path / "media")


def test_a_link_that_only_works_by_another_name_is_refused(tmp_path):
    (tmp_path / "real" / "inner" / "media").mkdir(parents=True)
    (tmp_path / "real" / "inner" / "b.mp4").touch()
    (tmp_path / "real" / "inner" / "media" / "a.mp4").symlink_to("../b.mp4")
    (tmp_path / "media").symlink_to(tmp_path / "real" / "inner" / "media")
    with pytest.raises(Failure, match="JOB-MEDIA-HIDDEN") as caught:
        mounts.link_targets(tmp_path / "media")
    words = shlex.split(str(caught.value.findings[0].fix))
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert mounts.link_targets(Path(said.strip())) == {tmp_path / "real" / "inner"}


def test_the_containers_spec_is_watched_too(site, monkeypatch):
    record, spec_path = tao(site, "train", monkeypatch), site.root / "job" / "spec.toml"
    spec_path.parent.mkdir()
    document.dump(document.load(site.root / "train.toml"), spec_path)
    copied = {"path": str(spec_path), "sha256": files.sha256(spec_path)}
    record = replace(record, spec=record.spec | copied)
    record = docker.write(spec_path.parent, record, document.load(spec_path))
    assert record.spec_changes() == []
    written = spec_path.parent / "container.toml"
    assert written.read_text().startswith("#:schema container.schema.json\n")
    assert (spec_path.parent / "container.schema.json").is_file()
    written.write_text("x = 1")
    (finding,) = record.spec_changes()
    assert finding.id == "JOB-SPEC-EDITED" and finding.where.endswith("container.toml")
    assert str(finding.fix).endswith(f"--engine tao --spec {spec_path}")


def test_mounts_are_few_and_outputs_are_the_only_writable_ones(site):
    spec_written = document.load(site.root / "train.toml")
    named = [{"role": "policy.model_name_or_path", "path": str(site.root / "model")}]
    named += [
        {"role": "x", "path": str(site.root / "model" / "inner")},
        {"role": "y", "path": "s3://bucket/x"},
    ]
    folder = site.jobs / "job"
    record = {
        "action": "train",
        "options": {},
        "inputs": named,
        "outputs": {"output_dir": str(folder / "results"), "other": str(site.root / "out")},
    }
    words = [dict(field.partition("=")[::2] for field in word.split(",")) for word in mounts.flags(
        jobs.Job.from_json(folder, record), spec_written)[1::2]]  # fmt: skip
    assert {word["source"] for word in words if "readonly" not in word} == {
        str(folder),
        str(site.root / "out"),
    }
    sources = {word["source"] for word in words}
    assert str(site.root / "model") in sources and str(site.root / "model" / "inner") not in sources


def test_media_with_absolute_names_are_mounted_by_their_folders(site):
    (site.root / "clips").mkdir()
    write_annotations(site.root / "absolute.json", 2)
    text = (
        (site.root / "absolute.json")
        .read_text()
        .replace('"video": "', f'"video": "{site.root}/clips/')
    )
    (site.root / "absolute.json").write_text(text)
    dataset = {"annotation_path": "absolute.json", "media_path": ""}
    change(site, "train", custom__train_dataset=dataset,
           train__train_batch_per_replica=2, train__train_policy__mini_batch=2)  # fmt: skip
    record, _ = launch.plan(site.request(platform="docker", image="x"))
    flags = [word for word in record.command if word.startswith("type=bind")]
    assert f"type=bind,source={site.root}/clips,target={site.root}/clips,readonly" in flags
    (site.root / "absolute.json").write_text(text.replace(f"{site.root}/clips", "/opt/clips"))
    with pytest.raises(Failure, match="JOB-MEDIA-HIDDEN"):
        launch.plan(site.request(platform="docker", image="x"))


def test_what_docker_warns_of_is_not_why_it_failed(tmp_path, monkeypatch):
    said = (
        "echo 'WARNING: IPv4 forwarding is disabled.' >&2; "
        "echo 'docker: no such network.' >&2; exit 125"
    )
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(Failure) as caught:
        docker.docker("unix:///x", "run")
    assert caught.value.findings[0].message == "got docker: no such network."


# -- the TAO container: rendered here, never run -----------------------------------------------


def tao(site, action, monkeypatch, **request):
    facts = {"Runtimes": {"nvidia": {}}, "SecurityOptions": ["name=seccomp"]}
    monkeypatch.setattr(docker, "engine_facts", lambda host: facts)
    usual = {"platform": "docker", "engine": "tao", "docker_host": "unix:///x"}
    record, found = launch.plan(site.request(action, **usual | request))
    assert record, found
    return record


def program(record):
    return record.command[record.command.index(record.image) + 1 :]


def test_tao_train_takes_the_chosen_gpus_and_our_dataset_script(site, monkeypatch):
    change(site, "train", policy__parallelism__dp_shard_size=2)
    record = tao(site, "train", monkeypatch, gpu_ids=["0", "2"])
    command = record.command
    assert command[command.index("--gpus") + 1] == '"device=0,2"'
    python, wrapper, config, entry = program(record)
    assert python == "python" and Path(wrapper).name == "tao_train.py"
    assert config.endswith("/container.toml")
    assert entry == str(Path(wrapper).parents[1] / "train_with_cosmos_rl.py")
    assert not any(word.endswith("target=/workspace") for word in command)


def test_cosmos_rl_runs_in_an_image_of_ones_own(site, monkeypatch):
    change(site, "train", train__compile=False)
    record = tao(site, "train", monkeypatch, engine="cosmos-rl", image="mine:1")
    name, flag, config, script = program(record)
    assert (name, flag, Path(config).name) == ("cosmos-rl", "--config", "container.toml")
    assert Path(script).name == "train_with_cosmos_rl.py"
    assert "COSMOS_REASON_ONE_NODE=1" in record.command
    monkeypatch.setattr(docker, "engine_facts", lambda host: {})
    usual = {"platform": "docker", "engine": "cosmos-rl", "docker_host": "unix:///x"}
    _, found = launch.plan(site.request("train", **usual))
    lacking = next(finding for finding in found if finding.id == "JOB-IMAGE")
    assert "requirements-cosmos-rl.txt" in lacking.message


def test_the_images_own_dataset_script_is_taken_when_it_is_asked_for(site, monkeypatch):
    own = tao(site, "train", monkeypatch, entry_script="image")
    assert program(own)[3] == "/opt/cosmos_rl/tao_sft_example.py"
    assert own.options["entry_script"] == "image"  # so that a retry takes it too
    older = "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-cosmos-rl"
    record = tao(site, "train", monkeypatch, image=older, entry_script="image")
    python, _, _, script = program(record)
    assert python == "/opt/venv/cosmos_rl/bin/python"
    assert script == "cosmos_rl:tools/custom_hooks/tao_sft_example.py"
    _, found = launch.plan(site.request("train", entry_script="image"))
    assert [finding.where for finding in found if finding.id == "JOB-FLAG"] == ["--entry-script"]


def test_a_rootless_engine_needs_no_user_and_gets_no_limits(site, monkeypatch):
    record = tao(site, "train", monkeypatch)
    assert "--user" in record.command and "--ulimit" in record.command
    monkeypatch.setattr(
        docker, "engine_facts", lambda host: {"SecurityOptions": ["name=rootless"], "Runtimes": {}}
    )
    record, found = launch.plan(site.request(platform="docker", image="x", docker_host="unix:///x"))
    assert not {"--user", "--ulimit", "--gpus"} & set(record.command)
    assert "JOB-DOCKER-ROOT" not in {finding.id for finding in found}


def test_tao_inference_and_quantize_get_their_arguments_from_the_spec(site, monkeypatch):
    asked = document.template("inference")
    prompt = "Is it; $(safe)?\n\"Yes\" or 'no'"
    asked |= {"model_path": "model", "media": "media", "prompt": prompt, "results_dir": ""}
    document.dump(asked, site.root / "inference.toml")
    words = program(tao(site, "inference", monkeypatch))
    assert Path(words[1]).name == "tao_inference.py"
    assert f"--prompt={prompt}" in words and "--enable_lora=false" in words
    assert f"--model_path={site.root}/model" in words
    quantize = document.template("quantize")
    quantize["model"]["model_path"] = "model"
    quantize["dataset"] |= {"annotation_path": "a.json", "media_dir": "media"}
    quantize["results_dir"] = ""
    document.dump(quantize, site.root / "quantize.toml")
    words = program(tao(site, "quantize", monkeypatch))
    assert f"--quantization_scheme={quantize['quantize']['quantization_scheme']}" in words


def run_wrapper(tmp_path, wrapper, program, *words):
    """What a wrapper starts, as lists of words: `program` here writes down its arguments in place
    of the image's."""
    (tmp_path / program).write_text('#!/bin/sh\nprintf "%s|" "$@" >> "$OUT"; echo >> "$OUT"\n')
    (tmp_path / program).chmod(0o755)
    path = bundle.ROOT / "scripts" / "in_container" / wrapper
    env = os.environ | {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "OUT": str(tmp_path / "out"),
        "PYTHONPATH": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(path), *words], env=env, capture_output=True, text=True, check=False
    )
    lines = (tmp_path / "out").read_text().splitlines() if (tmp_path / "out").exists() else []
    return [line.split("|")[:-1] for line in lines], done


def test_the_wrapper_of_train_finds_the_entry_script_of_the_package(tmp_path):
    (tmp_path / "cosmos_rl" / "tools").mkdir(parents=True)
    (tmp_path / "cosmos_rl" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "cosmos_rl" / "tools" / "hook.py").touch()
    wrapper = ("tao_train.py", "cosmos-rl", "a b.toml")
    started, done = run_wrapper(tmp_path, *wrapper, "cosmos_rl:tools/hook.py")
    assert done.returncode == 0 and started == [
        ["--config", "a b.toml", f"{tmp_path}/cosmos_rl/tools/hook.py"]
    ]
    for entry in ("cosmos_rl:tools/none.py", "none_rl:tools/hook.py", "/none/hook.py"):
        started, done = run_wrapper(tmp_path, *wrapper, entry)
        assert done.returncode == 1 and "none" in done.stderr and len(started) == 1


def test_the_wrapper_of_inference_asks_a_folder_file_by_file(tmp_path):
    (tmp_path / "media").mkdir()
    for name in ("a 1.mp4", "b;.mp4"):
        (tmp_path / "media" / name).touch()
    words = [f"--media={tmp_path / 'media'}", "--results_dir=R", "--prompt=--help"]
    started, done = run_wrapper(tmp_path, "tao_inference.py", "cosmos-rl-inference", *words)
    assert done.returncode == 0 and started == [
        ["--prompt=--help", f"--media={tmp_path}/media/{name}", f"--results_dir=R/{name}"]
        for name in ("a 1.mp4", "b;.mp4")
    ]


def besides_its_size(found):
    """Ids of what is found, but that the tests' model is a miniature."""
    return sorted(one.id for one in found if one.id != "SPEC-MODEL-MINIATURE")


def test_what_an_inference_is_asked_about_is_looked_at_before_it_is_launched(site):
    asked = document.template("inference")
    asked |= {"model_path": "model", "media": "media", "prompt": " ", "results_dir": ""}
    (site.root / "q.txt").write_text("\n")
    document.dump(asked | {"questions_file": "q.txt"}, site.root / "inference.toml")
    job, found = launch.plan(site.request("inference"))
    assert job is None
    assert besides_its_size(found) == ["EVAL-NO-MEDIA", "EVAL-PROMPT-EMPTY"]
    (site.root / "q.txt").write_text("Which?\n")
    (site.root / "media" / "broken.mp4").write_bytes(b"x")  # which will be a row
    flags = {"endpoint": "http://h:1/v1", "served_model": "n"}
    job, found = launch.plan(site.request("inference", **flags))
    assert not besides_its_size(found) and job.command[-2:] == [
        "--endpoint=http://h:1/v1",
        "--served-model=n",
    ]
    document.dump(asked | {"media": "media/broken.mp4"}, site.root / "inference.toml")
    _, found = launch.plan(site.request("inference"))
    assert besides_its_size(found) == ["DATA-MEDIA-UNDECODABLE", "SPEC-PROMPT"]
