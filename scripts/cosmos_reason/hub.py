"""The Hugging Face Hub: the few files of a model that are needed, publishing, and the token by its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cosmos_reason import models, s3, storage
from cosmos_reason.findings import bad_input, outside

TOKEN_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def token(secrets_env: Path | None = None) -> str | None:
    """The Hub token from a KEY=VALUE file, else from the environment. The value is never printed or written."""
    lines = storage.read_text(secrets_env).splitlines() if secrets_env else []
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if not line.startswith("#"))
    found = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    return next((value for name in TOKEN_NAMES if (value := found.get(name) or os.environ.get(name))), None)


def fetch_model(written: str, patterns: list[str], flag: str, secrets_env=None, cache_dir: Path | None = None) -> Path:
    """The local folder of a model by any of its names. Of a Hub model and of s3:// only the files that match `patterns`
    are fetched, once. Raises Failure (exit 2 or 3)."""
    if s3.is_uri(written):
        return s3.snapshot(written, patterns)
    local = Path(written).expanduser()
    if local.is_file():
        message = "got a file, expected the folder that holds it"
        raise bad_input("CKPT-NOT-FOLDER", f"{flag} {written}", message, f"{flag} {local.parent}")
    name = models.canonical(written, flag)
    if not name.startswith(models.HUB):
        return Path(name)
    repo, secret = name.removeprefix(models.HUB), token(secrets_env)
    return snapshot(repo, commit(repo, secret), patterns, cache_dir, secret)


def repo_of(folder: str | Path) -> str | None:
    """ORG/NAME of the Hub model whose snapshot in a cache a folder is, None for any other folder."""
    *_, cached, part, _ = ("", "", "", *Path(folder).parts)
    found = cached.removeprefix("models--").replace("--", "/", 1)
    return found if part == "snapshots" and cached.startswith("models--") else None


def commit(repo: str, secret: str | None) -> str:
    """The immutable commit that `main` of a model repository is at. Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        return api.model_info(repo, timeout=30).sha


def snapshot(repo: str, revision: str, patterns: list[str], cache_dir: Path | None, secret: str | None) -> Path:
    """A local snapshot of the files that match `patterns`, in a folder named by the commit. Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        return Path(api.snapshot_download(repo, revision=revision, allow_patterns=patterns, cache_dir=cache_dir))


def dataset(repo: str, revision: str | None, secret: str | None) -> tuple[str, list[str]]:
    """(commit, names of its files) of a dataset repository, at `revision` or `main`. Raises Failure (exit 3)."""
    with _api(repo, secret, "dataset") as api:
        found = api.dataset_info(repo, revision=revision, timeout=30)
        return found.sha, sorted(entry.rfilename for entry in found.siblings or [])


def dataset_file(repo: str, commit: str, name: str, secret: str | None) -> Path:
    """A local copy of one file of a dataset repository, downloaded once. Raises Failure (exit 3)."""
    with _api(repo, secret, "dataset") as api:
        return Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit))


def readable(repo: str, kind: str, secret: str | None) -> None:
    """Ask for one file's facts, as a download would. Raises Failure (exit 3), which tells why this token may not."""
    with _api(repo, secret, kind) as api:
        from huggingface_hub import errors

        place, name = (repo, "config.json") if kind == "model" else (f"{kind}s/{repo}", "README.md")
        with suppress(errors.EntryNotFoundError):
            api.get_hf_file_metadata(url=f"{api.endpoint}/{place}/resolve/main/{name}", timeout=10)


def writable(repo: str, secret: str | None) -> dict | None:
    """What stands at `repo`: {"private": bool, "files": [names]}, or None when nothing does. Raises Failure (exit 3)
    unless the token may write there, as far as the Hub says before a first write. A name alone is the token's own."""
    with _api(repo, secret) as api:
        from huggingface_hub import errors

        me = api.whoami()
        owner, _, name = repo.rpartition("/")
        owner = owner or me["name"]
        repo, where = f"{owner}/{name}", f"hf_model://{owner}/{name}"
        if not _may_write(me.get("auth", {}).get("accessToken", {}), repo):
            message = f"got a token of {me['name']} without the right to write, expected one that may write"
            raise outside("HUB-READ-TOKEN", where, message, "export HF_TOKEN=...")
        try:
            found = api.model_info(repo, timeout=30)
        except errors.RepositoryNotFoundError:
            if owner.lower() not in [space["name"].lower() for space in (me, *me.get("orgs", []))]:
                message = f"got a token of {me['name']}, expected one of {owner} to make a repository there"
                raise outside("HUB-ACCESS", where, message, f"--hub {me['name']}/{name}") from None
            return None
        api.auth_check(repo, write=True)
        return {"private": bool(found.private), "files": [entry.rfilename for entry in found.siblings or []]}


def _may_write(access: dict, repo: str) -> bool:
    """What whoami says of a token: its role, and of a fine-grained one the rights to its account, its organisations and
    single repositories."""
    if access.get("role") != "fineGrained":
        return access.get("role") != "read"
    names = (repo.split("/")[0].lower(), repo.lower())
    scopes = access.get("fineGrained", {}).get("scoped", [])
    mine = [scope for scope in scopes if scope.get("entity", {}).get("name", "").lower() in names]
    return any("repo.write" in scope.get("permissions", ()) for scope in mine)


def publish(repo: str, files: Mapping[str, Path], private: bool, secret: str | None) -> str:
    """Put {name: file} into a model repository as one commit; returns its address. What the Hub has it is not sent
    again, so an interrupted run can be repeated. Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(repo, private=private, exist_ok=True)
        changes = [CommitOperationAdd(name, path) for name, path in files.items()]
        return api.create_commit(repo, changes, commit_message="Publish a checkpoint").commit_url


@contextmanager
def _api(repo: str, secret: str | None, kind: str = "model") -> Iterator:
    """The Hub's own client; what it raises about `repo` becomes findings of exit 3."""
    import httpx
    from huggingface_hub import HfApi, errors

    where, tokens = f"hf_{kind}://{repo}", "https://huggingface.co/settings/tokens"
    page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{repo}"
    try:
        yield HfApi(token=secret)
    except errors.GatedRepoError as problem:
        unknown = problem.response.status_code == 401
        got = "no token" if unknown else "an account that did not"
        message = f"got {got}, expected a token of an account that accepted the {kind}'s agreement"
        fix = f"accept it at {page}, " + ("then set HF_TOKEN" if unknown else "with the account of your HF_TOKEN")
        raise outside("HUB-GATED", where, message, fix) from None
    except errors.RepositoryNotFoundError:
        message = f"got no such folder here, and no such {kind} there that this token may see"
        raise outside("HUB-NOT-FOUND", where, message, f"look at {page}; set HF_TOKEN if it is private") from None
    except errors.LocalTokenNotFoundError:
        raise outside("HUB-NO-TOKEN", where, f"got no token, expected one of {tokens}", "export HF_TOKEN=...") from None
    except (OSError, httpx.HTTPError, RuntimeError, ValueError) as problem:
        if getattr(problem, "errno", None) == errno.ENOSPC:
            fix = "export HF_HOME=DIR, on a larger disk"
            raise outside("HUB-DISK-FULL", where, "got a full disk while it was fetched", fix) from None
        status = problem.response.status_code if isinstance(problem, errors.HfHubHTTPError) else None
        if status in (401, 403):
            got = "a token that the Hub does not know" if status == 401 else status
            message = f"got {got}, expected a token that may do this, of {tokens}"
            raise outside("HUB-ACCESS", where, message, "export HF_TOKEN=...") from None
        message = f"got {type(problem).__name__}: {(str(problem) or 'no answer').splitlines()[0][:200]}"
        fix = "check the network and run it again, or use a local folder"
        raise outside("HUB-UNREACHABLE", where, message, fix) from None
