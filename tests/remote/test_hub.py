"""The Hub: whose snapshot a folder is, and where its token comes from."""

import pytest
from huggingface_hub import constants

from cosmos_reason.remote import hub as client

pytest_plugins = ("preflight_site",)


def test_a_hub_snapshot_says_whose_it_is():
    assert client.repo_of("/x/models--a-b--c--d/snapshots/0f1e") == "a-b/c--d"
    assert (
        client.repo_of("/x/models--a--b/blobs/0f1e")
        is client.repo_of("snapshots/0f1e")
        is client.repo_of("x")
        is None
    )


def test_the_token_of_a_file_comes_before_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "of-the-environment")
    secrets = tmp_path / "secrets.env"
    assert client.token() == "of-the-environment"
    secrets.write_text("# HF_TOKEN=old\nOTHER=x\n")
    assert client.token(secrets) == "of-the-environment"
    secrets.write_text("# HF_TOKEN=old\n  export HF_TOKEN='of-the-file'\nOTHER=x\n")
    assert client.token(secrets) == "of-the-file"
    monkeypatch.setenv("HF_TOKEN", "first-name")
    assert client.token() == "first-name"


def fine_grained(*scopes):
    """What whoami says of a fine-grained token, by (account or repository, right)."""
    scoped = [{"entity": {"name": name}, "permissions": [right]} for name, right in scopes]
    return {"role": "fineGrained", "fineGrained": {"scoped": scoped}}


@pytest.mark.parametrize(
    ("access", "may"),
    [
        ({}, True),
        ({"role": "write"}, True),
        ({"role": "read"}, False),
        ({"role": "fineGrained"}, False),
        (fine_grained(("Me", "repo.write")), True),
        (fine_grained(("me/x", "repo.write")), True),
        (fine_grained(("me", "repo.read"), ("you", "repo.write")), False),
    ],
)
def test_a_fine_grained_token_may_write_where_it_says(access, may):
    assert client._may_write(access, "me/x") is may


@pytest.mark.parametrize(
    ("repo", "secret", "told"),
    [
        ("lab/other", None, "llava"),
        ("lab/other", "reader", "llava"),
        ("lab/other", "stale", client.NotTold.UNKNOWN),
        ("lab/adapter", None, client.NotTold.ABSENT),
        ("lab/list", None, client.NotTold.ABSENT),
        ("lab/none", None, client.NotTold.UNKNOWN),
        ("nvidia/gated", "stranger", client.NotTold.UNKNOWN),
        ("nvidia/busy", None, client.NotTold.UNKNOWN),
        ("nvidia/open", None, client.NotTold.UNKNOWN),  # sends elsewhere, where nobody answers
        ("lab/slow", None, client.NotTold.UNKNOWN),  # each byte in time, all of them not
    ],
)
def test_an_architecture_is_asked_for_once(hub, asked, monkeypatch, repo, secret, told):
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(client, "ARCHITECTURE_SECONDS", 0.5 if repo == "lab/slow" else 300)
    client.architecture.cache_clear()
    found = [client.architecture(repo, secret) for _ in range(3)]
    assert found == [told] * 3
    assert asked() == [f"/{repo}"]


def test_without_the_network_the_hub_is_not_asked(hub, asked, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    client.architecture.cache_clear()
    assert client.architecture("lab/other", None) is client.NotTold.UNKNOWN and not asked()
