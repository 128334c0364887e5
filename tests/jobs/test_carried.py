"""A plan for a machine that is not here: written on one, started on the other by run.sh."""

import json
import os
import subprocess

import jsonschema
import pytest
from launch_site import Site, change

from cosmos_reason.base import findings as f
from cosmos_reason.jobs import carried, launch
from cosmos_reason.spec import document

# A docker that notes its words, one per line, and says that it has no image.
DOCKER = """#!/bin/sh
[ "$1" = image ] && exit 1
for word in "$@"; do printf '%s\\n' "$word"; done >> "$NOTES"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def carry(site, action="train", host_user=None, **fields):
    usual = {"platform": "docker", "engine": "tao", "gpu_ids": ["0"], "carried": True}
    asked = site.request(action, **usual | fields)
    job, found = launch.carry(asked, site.root / "plan", host_user)
    return job, {one.id: one for one in found}


def run(site, **variables):
    """Start run.sh with a docker that notes what it is told: (exit code, what was said, words)."""
    fake = site.root / "bin" / "docker"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(DOCKER)
    fake.chmod(0o755)
    there = site.root / "there"
    there.mkdir(exist_ok=True)
    notes = there / "notes"
    environment = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "NOTES": str(notes), **variables}
    command = ["bash", str(site.root / "plan" / "run.sh")]
    done = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True)
    words = notes.read_text().splitlines() if notes.exists() else []
    return done.returncode, done.stdout + done.stderr, words


def test_a_carried_plan_starts_elsewhere_as_it_was_planned(site):
    job, found = carry(site)
    assert job and not [one for one in found.values() if one.severity == f.ERROR], found
    plan = site.root / "plan"
    assert subprocess.run(["bash", "-n", str(plan / "run.sh")]).returncode == 0
    assert "run.sh" in (plan / "README.md").read_text()
    code, said, words = run(site)
    assert code == 0, said
    (folder,) = (site.root / "there" / "jobs").iterdir()
    assert words[:2] == ["pull", job.image]
    assert words[words.index("--name") + 1] == folder.name and folder.name.startswith("train-")
    assert words[words.index("--gpus") + 1] == '"device=0"'
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    program = words[words.index(job.image, 2) + 1 :]
    assert program[1:3] == ["/skill/scripts/in_container/tao_train.py", "/job/container.toml"]


def test_the_container_sees_what_the_plan_says(site):
    carry(site)
    plan = site.root / "plan"
    words = run(site)[2]
    (folder,) = (site.root / "there" / "jobs").iterdir()
    assert f"type=bind,src={folder},target=/job" in words
    assert f"type=bind,src={plan}/skill,target=/skill,readonly" in words
    assert f"type=bind,source={site.root}/model,target={site.root}/model,readonly" in words
    assert (plan / "skill" / "scripts" / "in_container" / "tao_train.py").is_file()
    read = document.load(folder / "container.toml")
    assert read == document.load(plan / "spec.toml")
    assert read["train"]["output_dir"] == "/job/results"
    assert (folder / "home" / ".cache").is_dir()
    assert "$" not in json.dumps(read)
    assert {f"{name}={folder.name}" for name in ("TAO_API_JOB_ID", "COSMOS_REASON_JOB_ID")} <= {
        *words
    }
    assert "JOB_ID" not in (plan / "skill" / "environment").read_text(), "which is of every run"


def test_the_spec_names_the_schema_that_is_carried_with_it(site):
    carry(site)
    run(site)
    plan = site.root / "plan"
    (folder,) = (site.root / "there" / "jobs").iterdir()
    schema = (plan / "spec.toml").read_text().splitlines()[0]
    assert schema == "#:schema skill/spec.schema.json", "which moves with the plan"
    validator = jsonschema.Draft202012Validator(json.loads((plan / schema.split()[1]).read_text()))
    written = document.load(plan / "spec.toml")
    assert "qwen3_vl_patch_embed" in written["policy"], "a key of the image's own"
    assert not list(validator.iter_errors(written))
    written["policy"]["model_name"] = "other"
    assert [list(one.path) for one in validator.iter_errors(written)] == [["policy"]]
    assert "#:schema" not in (folder / "container.toml").read_text(), "from where it is not found"


def test_each_run_has_an_id_of_its_own_and_the_user_that_was_named(site):
    carry(site, host_user="1234:99")
    _, _, words = run(site)
    assert words[words.index("--user") + 1] == "1234:99"
    run(site)
    assert len(list((site.root / "there" / "jobs").iterdir())) == 2


def test_what_is_not_here_is_a_warning_and_run_sh_looks_for_it(site):
    change(site, "train", policy__model_name_or_path="/models of others/cosmos3")
    job, found = carry(site)
    elsewhere = found["JOB-INPUT-ELSEWHERE"]
    assert (job is not None, elsewhere.severity) == (True, f.WARNING)
    code, said, words = run(site)
    assert (code, words) == (2, []) and "/models of others/cosmos3" in said
    assert not (site.root / "there" / "jobs").exists()
    usual = {"platform": "docker", "engine": "tao", "gpu_ids": ["0"], "docker_host": "unix:///x"}
    _, refused = launch.plan(site.request("train", **usual))
    assert "JOB-INPUT-MISSING" in {one.id for one in refused}, "here it is an error"


def test_the_embedded_engine_is_carried_whole(site):
    job, _ = carry(site, "evaluate", engine="transformers", image="mine:1")
    assert job
    skill = site.root / "plan" / "skill"
    assert (skill / "scripts" / "cosmos_reason" / "cli.py").is_file()
    assert (skill / "skill_info.yaml").is_file() and (skill / "schemas").is_dir()
    words = run(site)[2]
    program = words[words.index("mine:1", 2) + 1 :]
    assert program[1] == "/skill/scripts/run_with_transformers.py"


def test_no_secret_and_nothing_of_the_planner_is_carried(site, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    monkeypatch.setenv("USER", "planner")
    carry(site)
    plan, words = site.root / "plan", run(site)[2]
    environment = words[words.index("--env-file") + 1]
    assert environment == str(plan / "skill" / "environment")
    written = (plan / "run.sh").read_text() + (plan / "skill" / "environment").read_text()
    assert "hf_canary" not in written and "planner" not in written
    assert "\nHF_TOKEN\n" in written and str(carried.bundle.ROOT) not in written


def test_a_zip_archive_is_carried_to_our_own_scripts_only(site):
    """Submit unpacks it; a machine that is not here has it as it is."""
    (site.root / "clips.zip").write_bytes(b"")
    change(site, "evaluate", dataset__media_dir="clips.zip")
    job, found = carry(site, "evaluate")
    refused = found["JOB-NOT-CARRIED"]
    assert (job, refused.severity) == (None, f.ERROR)
    assert refused.fix.changes == {"dataset.media_dir": str(site.root / "clips")}
    change(site, "train", custom__train_dataset__media_path="clips.zip")
    assert "JOB-NOT-CARRIED" not in carry(site)[1]
    assert "JOB-NOT-CARRIED" in carry(site, entry_script="image")[1]


def test_what_cannot_be_carried_is_refused(site):
    change(site, "train", policy__model_name_or_path="hf_model://nvidia/Cosmos-Reason2-2B")
    job, found = carry(site)
    assert (job, found["JOB-NOT-CARRIED"].severity) == (None, f.ERROR)
    assert "hf download nvidia/Cosmos-Reason2-2B " in found["JOB-NOT-CARRIED"].message
    assert not (site.root / "plan").exists()


@pytest.mark.parametrize("beside", ["-data/mine.py", "/examples/mine.py"])
def test_a_dataset_script_beside_or_in_the_bundle_stays_where_it_is(site, beside):
    script = f"{carried.bundle.ROOT}{beside}"
    job, found = carry(site, engine="cosmos-rl", image="x", entry_script=script)
    assert job and found["JOB-INPUT-ELSEWHERE"].where == script
    written = (site.root / "plan" / "run.sh").read_text()
    assert written.count(script) == 2, "is looked for, and run"
    assert f"/{carried.SKILL}-data" not in written and f"/{carried.SKILL}/examples" not in written


def test_data_of_a_dataset_script_are_looked_for_there(site):
    change(site, "train", custom__dataset__path="/data/clips")
    script = str(site.root / "mine.py")
    job, found = carry(site, engine="cosmos-rl", image="x", entry_script=script)
    assert job, found
    written = (site.root / "plan" / "run.sh").read_text()
    (looked_for,) = [line for line in written.splitlines() if line.startswith("reads=(")]
    assert "/data/clips" in looked_for[len("reads=(") : -1].split()
    assert "source=/data/clips,target=/data/clips,readonly" in written
