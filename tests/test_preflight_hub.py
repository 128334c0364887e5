"""What the Hub answers about a repository and a token, told apart."""

import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from cosmos_reason import hub as hub_client
from cosmos_reason import storage
from cosmos_reason.findings import Failure
from cosmos_reason.preflight import access

pytest_plugins = ("preflight_site",)


@pytest.fixture
def ask(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)

    def ask(call, token):
        monkeypatch.setenv("HF_TOKEN", token)
        try:
            return [(x.id, x.severity, x.message) for x in call() or ()]
        except Failure as failure:
            return [(x.id, x.severity, x.message) for x in failure.findings]

    return ask


@pytest.mark.parametrize(("repo", "token", "id", "said"), [
    ("nvidia/open", "", None, ""), ("nvidia/open", "reader", None, ""),
    ("nvidia/open", "stale", "HUB-ACCESS", "does not know"), ("nvidia/gated", "", "HUB-GATED", "no token"),
    ("nvidia/gated", "stranger", "HUB-GATED", "account that did not"), ("nvidia/gated", "reader", None, ""),
    ("nvidia/gated", "stale", "HUB-ACCESS", "does not know"), ("nvidia/none", "", "HUB-NOT-FOUND", ""),
    ("nvidia/none", "reader", "HUB-NOT-FOUND", ""), ("nvidia/busy", "reader", "HUB-UNREACHABLE", "429"),
])  # fmt: skip
def test_hub_answers_are_told_apart(ask, repo, token, id, said):
    found = ask(lambda: access.hub_access(repo), token)
    assert [x[0] for x in found] == ([id] if id else []) and (not id or said in found[0][2])


@pytest.mark.parametrize(("token", "id"), [
    ("writer", None), ("fine-writer", None), ("fine", "HUB-READ-TOKEN"), ("reader", "HUB-READ-TOKEN"),
    ("stale", "HUB-ACCESS"), ("", "HUB-NO-TOKEN"),
])  # fmt: skip
def test_the_right_to_write(ask, token, id):
    found = ask(lambda: hub_client.writable("a-name", token or None), token)
    assert [x[0] for x in found] == ([id] if id else [])


def test_a_repository_to_upload_to_is_changed_in_the_spec(ask):
    class Case:
        action = "train"

        def __call__(self, key):
            return {"train.ckpt.upload_hf": True, "train.ckpt.hf_repo_name": "stranger/x"}.get(key, "")

    found = []
    ask(lambda: found.extend(access.uploads(SimpleNamespace(case=Case()))), "writer")
    assert [(x.id, x.fix) for x in found] == [("HUB-ACCESS", "--set train.ckpt.hf_repo_name=bob/x")]


def test_a_complete_snapshot_will_do_without_the_hub(ask, tmp_path, monkeypatch, tiny_model):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--nvidia--open"
    snapshot = folder / "snapshots" / "abc"
    shutil.copytree(tiny_model, snapshot)
    storage.write_text(folder / "refs" / "main", "abc")

    def severities():
        return [x[:2] for x in ask(lambda: access.hub_access("nvidia/open"), "")]

    assert severities() == [("HUB-UNREACHABLE", "warning")]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert severities() == [("HUB-UNREACHABLE", "info")]
    next(snapshot.glob("*.safetensors")).unlink()
    assert severities() == [("HUB-UNREACHABLE", "error")]
