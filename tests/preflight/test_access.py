"""What the Hub answers about a repository and a token, told apart."""

import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from preflight_command import preflight_json

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.preflight import access
from cosmos_reason.remote import hub as hub_client

pytest_plugins = ("preflight_site",)


@pytest.fixture
def ask(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)

    def ask(call, token):
        monkeypatch.setenv("HF_TOKEN", token)
        hub_client.architecture.cache_clear()
        try:
            return [(x.id, x.severity, x.message) for x in call() or ()]
        except Failure as failure:
            return [(x.id, x.severity, x.message) for x in failure.findings]

    return ask


@pytest.mark.parametrize(
    ("repo", "token", "id", "said"),
    [
        ("nvidia/open", "", None, ""),
        ("nvidia/open", "reader", None, ""),
        ("nvidia/open", "stale", "HUB-ACCESS", "does not know"),
        ("nvidia/gated", "", "HUB-GATED", "no token"),
        ("nvidia/gated", "stranger", "HUB-GATED", "account that did not"),
        ("nvidia/gated", "reader", None, ""),
        ("nvidia/gated", "stale", "HUB-ACCESS", "does not know"),
        ("nvidia/none", "", "HUB-NOT-FOUND", ""),
        ("nvidia/none", "reader", "HUB-NOT-FOUND", ""),
        ("nvidia/busy", "reader", "HUB-UNREACHABLE", "429"),
    ],
)
def test_hub_answers_are_told_apart(ask, repo, token, id, said):
    found = ask(lambda: access.hub_access(repo), token)
    assert [x[0] for x in found] == ([id] if id else []) and (not id or said in found[0][2])


@pytest.mark.parametrize(
    ("engine", "has_own_data", "ids"),
    [
        ("transformers", False, ["PRE-MODEL-FAMILY"]),
        ("tao", False, ["PRE-MODEL-FAMILY"]),
        ("cosmos-rl", False, ["PRE-MODEL-FAMILY"]),
        ("cosmos-rl", True, []),
    ],
)
def test_an_architecture_that_the_engine_does_not_load_is_told_by_the_hub(
    ask, engine, has_own_data, ids
):
    case = SimpleNamespace(action="train")
    options = SimpleNamespace(image_version=None)
    facts = {"image": "", "engine": engine, "case": case, "options": options}
    facts["has_own_data"] = has_own_data
    found = []

    def look(name):
        launch = SimpleNamespace(models=[f"hf_model://{name}"], **facts)
        found.extend(access.model(launch))

    ask(lambda: look("lab/other"), "reader")
    assert [one.id for one in found] == ids
    for one in found:
        assert "llava" in one.message and not one.fix  # another model is the user's to choose


@pytest.mark.parametrize(
    ("token", "id"),
    [
        ("writer", None),
        ("fine-writer", None),
        ("fine", "HUB-READ-TOKEN"),
        ("reader", "HUB-READ-TOKEN"),
        ("stale", "HUB-ACCESS"),
        ("", "HUB-NO-TOKEN"),
    ],
)
def test_the_right_to_write(ask, token, id):
    found = ask(lambda: hub_client.writable("a-name", token or None), token)
    assert [x[0] for x in found] == ([id] if id else [])


def test_a_repository_to_upload_to_is_changed_in_the_spec(ask):
    class Case:
        action = "train"

        def __call__(self, key):
            return {"train.ckpt.upload_hf": True, "train.ckpt.hf_repo_name": "stranger/x"}.get(
                key, ""
            )

    found = []
    ask(lambda: found.extend(access.uploads(SimpleNamespace(case=Case()))), "writer")
    assert [(x.id, str(x.fix)) for x in found] == [
        ("HUB-ACCESS", "--set train.ckpt.hf_repo_name=bob/x")
    ]


def test_a_complete_snapshot_will_do_without_the_hub(ask, tmp_path, monkeypatch, tiny_model):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--nvidia--open"
    snapshot = folder / "snapshots" / "abc"
    shutil.copytree(tiny_model, snapshot)
    files.write_text(folder / "refs" / "main", "abc")

    def severities():
        return [x[:2] for x in ask(lambda: access.hub_access("nvidia/open"), "")]

    assert severities() == [("HUB-UNREACHABLE", "warning")]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert severities() == [("HUB-UNREACHABLE", "info")]
    next(snapshot.glob("*.safetensors")).unlink()
    assert severities() == [("HUB-UNREACHABLE", "error")]


@pytest.mark.parametrize(("model_type", "ids"), [("qwen3_vl", []), ("llava", ["PRE-MODEL-FAMILY"])])
def test_without_the_hub_a_snapshot_tells_the_architecture(
    ask, tmp_path, monkeypatch, tiny_model, model_type, ids
):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--nvidia--open"
    shutil.copytree(tiny_model, folder / "snapshots" / "abc")
    config = folder / "snapshots" / "abc" / "config.json"
    files.write_json(config, files.read_json(config) | {"model_type": model_type})
    files.write_text(folder / "refs" / "main", "abc")
    facts = {"image": "", "engine": "tao", "has_own_data": False}
    facts |= {"case": SimpleNamespace(action="train"), "models": ["hf_model://nvidia/open"]}
    facts["options"] = SimpleNamespace(image_version=None)
    monkeypatch.setattr(access, "hub_access", lambda repo: [])
    said = ask(lambda: access.model(SimpleNamespace(**facts)), "")
    assert [one[0] for one in said] == ids


# ---- paths of machines that are not asked ------------------------------------------------------


def unseen(*args, env):
    """(findings by id, all findings) of a preflight for two paths, of which one is here."""
    both = ("--path", "d=/nowhere/data", "--path", "here=/")
    document, found = preflight_json(*args, *both, env={"DOCKER_HOST": ""} | env)
    about_paths = [one for one in document["findings"] if one["id"].startswith("PRE-PATH")]
    return found, about_paths


def test_paths_of_a_machine_that_does_not_answer_are_one_warning(tools):
    tools("ssh", code=255)
    tools("docker", code=1)
    for args, env in (
        (("--platform", "docker", "--docker-host", "ssh://box"), {}),
        (("--platform", "slurm"), {"SLURM_HOSTNAME": "login"}),
        (("--platform", "docker", "--skip-platform-access"), {}),
        (("--platform", "kubernetes"), {}),
    ):
        found, (only,) = unseen(*args, env=env)
        assert (only["id"], only["severity"]) == ("PRE-PATH-UNSEEN", "warning"), args
        assert "d=/nowhere/data, here=/" in only["message"]
        assert not found.keys() & {"PRE-DISK", "PRE-OUTPUT"}


def test_slurm_that_is_not_here_is_not_this_machine(tmp_path):
    """Neither its paths nor its disks are looked for on a laptop."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    limit = ("--min-free-disk-gb", "d=1000000")
    found, (only,) = unseen("--platform", "slurm", *limit, env={"PATH": str(tmp_path)})
    assert found["PRE-TOOL-MISSING"]["fix"] == "export SLURM_HOSTNAME=LOGIN_NODE"
    assert only["id"] == "PRE-PATH-UNSEEN" and "PRE-DISK" not in found


def test_a_path_that_the_machine_lacks_is_an_error(tools):
    tools("ssh", script='for word; do last=$word; done; case "$last" in *nowhere*) exit 1;; esac')
    tools("docker", code=1)
    _, (only,) = unseen("--platform", "docker", "--docker-host", "ssh://box", env={})
    assert (only["id"], only["severity"]) == ("PRE-PATH-MISSING", "error")
    assert "on box" in only["message"]
    _, (only,) = unseen("--platform", "docker", "--docker-host", "tcp://box:2376", env={})
    assert (only["id"], only["where"]) == ("PRE-PATH-MISSING", "d=/nowhere/data")
