"""The Hub: whose snapshot a folder is, and where its token comes from."""

import pytest

from cosmos_reason.remote import hub


def test_a_hub_snapshot_says_whose_it_is():
    assert hub.repo_of("/x/models--a-b--c--d/snapshots/0f1e") == "a-b/c--d"
    assert (
        hub.repo_of("/x/models--a--b/blobs/0f1e")
        is hub.repo_of("snapshots/0f1e")
        is hub.repo_of("x")
        is None
    )


def test_the_token_of_a_file_comes_before_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "of-the-environment")
    secrets = tmp_path / "secrets.env"
    assert hub.token() == "of-the-environment"
    secrets.write_text("# HF_TOKEN=old\nOTHER=x\n")
    assert hub.token(secrets) == "of-the-environment"
    secrets.write_text("# HF_TOKEN=old\n  export HF_TOKEN='of-the-file'\nOTHER=x\n")
    assert hub.token(secrets) == "of-the-file"
    monkeypatch.setenv("HF_TOKEN", "first-name")
    assert hub.token() == "first-name"


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
    assert hub._may_write(access, "me/x") is may
