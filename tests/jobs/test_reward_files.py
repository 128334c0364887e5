"""Rewards that a spec names: looked at before a launch, and there for the work."""

import pytest
from launch_site import Site, change

from cosmos_reason.jobs import launch, reward_files
from cosmos_reason.jobs.platforms import docker
from cosmos_reason.spec import document

PAYS = "def reward(question, gt, response):\n    return 1.0\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(docker, "engine_facts", lambda host: {"Runtimes": {"nvidia": {}}})
    site = Site(tmp_path, monkeypatch)
    grpo = document.template("grpo")
    data = {"annotation_path": "a.json", "media_path": "media"}
    grpo["custom"] |= {"train_dataset": data, "val_dataset": data}
    grpo["policy"]["model_name_or_path"] = "model"
    grpo["train"]["output_dir"] = ""
    document.dump(grpo, tmp_path / "grpo.toml")
    return site


def plan(site, rewards, **fields):
    """(the planned job, its errors) on docker, with these rewards in the spec."""
    change(site, "grpo", train__train_policy__reward_function=rewards)
    usual = {"platform": "docker", "engine": "cosmos-rl", "image": "mine:1"}
    usual |= {"docker_host": "unix:///x", "gpu_ids": ["0", "1", "2", "3"]}
    job, found = launch.plan(site.request("grpo", **usual | fields))
    return job, [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("rewards", ["correct", ["single_choice", "overlong"], {"format": 0.5}])
def test_known_names_are_taken_as_they_are(site, rewards):
    job, errors = plan(site, rewards)
    assert job and not errors
    spec = document.load(site.root / "grpo.toml")
    reward_files.make_absolute(spec, site.root)
    assert document.get(spec, reward_files.KEY) == rewards


@pytest.mark.parametrize(
    "written, text, id, said",
    [
        ("formt", None, "REWARD-NAME", "Did you mean format"),
        ("gone.py", None, "JOB-INPUT-MISSING", "train.train_policy.reward_function names it"),
        ("own.py", "def pay(a, b, c): ...\n", "REWARD-FILE", "no function reward("),
        ("own.py", "def reward(:\n", "REWARD-FILE", "no Python"),
        ("own.py", "def reward(answer): ...\n", "REWARD-FILE", "expected reward(question, gt"),
        ("own.py", "def reward(a, b, c, d): ...\n", "REWARD-FILE", "got reward(a, b, c, d)"),
        ("own.py", "def reward(a, b, c, *, d): ...\n", "REWARD-FILE", "got reward(a, b, c, *, d)"),
        (
            "own.py",
            "def reward(to_be_evaluated, reference=None, *args): ...\n",
            "REWARD-FILE",
            "another trainer",
        ),
    ],
)
def test_what_cannot_pay_is_one_finding_before_the_launch(site, written, text, id, said):
    if text:
        (site.root / written).write_text(text)
    job, (error,) = plan(site, {"correct": 1.0, written: 1.0})
    assert job is None and error.id == id and said in error.message


@pytest.mark.parametrize(
    "text",
    [
        PAYS,
        "from math import prod as reward\n",
        "reward = max\n",
        "def reward(*texts, most=1): ...\n",
        "def reward(a, b, c, d=0): ...\n",
        "import mine\ndef reward(completions): ...\nreward = mine.adapted(reward)\n",
        "from mine import *\n@adapted\ndef reward(completions): ...\n",
    ],
)
def test_a_file_is_taken_by_what_it_defines_and_not_run(site, text):
    (site.root / "own.py").write_text("1 / 0\n" + text)
    assert plan(site, ["own.py"])[0]


@pytest.mark.parametrize("named", ["own.py", "./own.py", "{root}/own.py"])
def test_the_container_sees_the_file(site, named):
    (site.root / "own.py").write_text(PAYS)
    job, _ = plan(site, {named.format(root=site.root): 2.0, "format": 1.0})
    own = f"{site.root}/own.py"
    assert f"type=bind,source={own},target={own},readonly" in job.command
    spec = document.load(site.root / "grpo.toml")
    reward_files.make_absolute(spec, site.root)
    assert document.get(spec, reward_files.KEY) == {own: 2.0, "format": 1.0}


def test_rewards_of_another_form_are_the_schemas_to_refuse(site):
    (site.root / "own.py").write_text(PAYS)
    assert [one.id for one in plan(site, [1, "own.py"])[1]] == ["SPEC-VALUE"]


def test_a_script_of_ones_own_knows_its_rewards(site):
    (site.root / "mine").mkdir()
    script = site.root / "mine" / "custom.py"
    script.write_text("")
    assert plan(site, ["boxed_math"], entry_script=str(script))[0]
