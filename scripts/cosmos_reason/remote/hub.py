"""The Hugging Face Hub: the few files of a model that are needed, publishing, and the token."""

from __future__ import annotations

import enum
import errno
import functools
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure, bad_input, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names, s3

TOKEN_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
TOKENS_PAGE = "https://huggingface.co/settings/tokens"
ARCHITECTURE_SECONDS = 3  # to be waited for, where the user's HF_HUB_ETAG_TIMEOUT says nothing


def token(secrets_env: Path | None = None) -> str | None:
    """Return the Hub token from a KEY=VALUE file, else from the environment. The value is never
    printed or written."""
    in_file = {}
    for line in files.read_text(secrets_env).splitlines() if secrets_env else ():
        stripped = line.strip()
        if not stripped.startswith("#"):  # KEY=VALUE or export KEY="VALUE"
            name, _, value = stripped.removeprefix("export ").partition("=")
            in_file[name.strip()] = value.strip().strip("'\"")
    for name in TOKEN_NAMES:
        value = in_file.get(name) or os.environ.get(name)
        if value:
            return value
    return None


def fetch_model(
    written: str,
    patterns: list[str],
    flag: str,
    secrets_env=None,
    cache_dir: Path | None = None,
    revision: str | None = None,
) -> Path:
    """Return the local folder of a model by any of its names. Of a Hub model (at `revision`, else
    where `main` is now) and of s3:// only the files that match `patterns` are fetched, once. Raises
    Failure (exit 2 or 3)."""
    if s3.is_uri(written):
        return s3.snapshot(written, patterns)
    local = Path(written).expanduser()
    if local.is_file():
        message = "got a file, expected the folder that holds it"
        holds_model = (local.parent / "config.json").is_file()
        fix = Fix(flags={flag: local.parent}) if holds_model else Fix()
        raise bad_input("CKPT-NOT-FOLDER", f"{flag} {written}", message, fix)
    name = model_names.canonical(written, flag)
    if not name.startswith(model_names.HUB):
        return Path(name)
    repo = name.removeprefix(model_names.HUB)
    secret = token(secrets_env)
    return snapshot(repo, revision or commit(repo, secret), patterns, cache_dir, secret)


def repo_of(folder: str | Path) -> str | None:
    """Return ORG/NAME of the Hub model whose snapshot in a cache a folder is, None for any other
    folder. A snapshot lies in models--ORG--NAME/snapshots/COMMIT."""
    snapshots = Path(folder).parent
    cached = snapshots.parent.name
    if snapshots.name != "snapshots" or not cached.startswith("models--"):
        return None
    return cached.removeprefix("models--").replace("--", "/", 1)


def commit_of(folder: Path) -> str | None:
    """Return the commit that a snapshot in a cache is of, None for any other folder."""
    return folder.name if repo_of(folder) else None


def commit(repo: str, secret: str | None) -> str:
    """Return the immutable commit that `main` of a model repository is at. Raises Failure (exit
    3)."""
    with _api(repo, secret) as api:
        return api.model_info(repo, timeout=30).sha


class NotTold(enum.Enum):
    """Why the Hub tells no architecture of a model."""

    ABSENT = "it has no config.json that tells a model_type"
    UNKNOWN = "the Hub did not answer in time, or not to this token"


@functools.cache
def architecture(repo: str, secret: str | None) -> str | NotTold:
    """Return the model_type in the config.json of a model, of which nothing else is fetched. It is
    asked for once, and waited for a few seconds in all."""
    # What a busy machine needs to import them is no part of the Hub's time.
    import httpx  # noqa: F401
    from huggingface_hub import constants, utils  # noqa: F401

    if constants.is_offline_mode():
        return NotTold.UNKNOWN
    given = os.environ.get("HF_HUB_ETAG_TIMEOUT", "")
    seconds = int(given) if given.isdecimal() else ARCHITECTURE_SECONDS
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(_config(repo, secret, seconds)), daemon=True
    )
    asking.start()
    asking.join(seconds)
    if not answers or answers[0] is NotTold.UNKNOWN:
        return NotTold.UNKNOWN
    told = answers[0].get("model_type") if isinstance(answers[0], dict) else None
    return told if isinstance(told, str) else NotTold.ABSENT


def _config(repo: str, secret: str | None, seconds: float) -> object:
    """Return what is in the config.json of a model; None where there is none, or one that is no
    JSON."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    address = f"{constants.ENDPOINT}/{repo}/resolve/main/config.json"
    headers = build_hf_headers(token=secret)
    try:
        answer = get_session().get(address, headers=headers, follow_redirects=True, timeout=seconds)
        if answer.headers.get("X-Error-Code") == "EntryNotFound":
            return None
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return NotTold.UNKNOWN
    try:
        return answer.json()
    except ValueError:
        return None


def cache() -> Path:
    """Return the folder of all snapshots."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def snapshot(
    repo: str, revision: str, patterns: list[str], cache_dir: Path | None, secret: str | None
) -> Path:
    """Return a local snapshot of the files that match `patterns`, in a folder named by the commit.
    Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        folder = api.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, cache_dir=cache_dir
        )
        return Path(folder)


def dataset(repo: str, revision: str | None, secret: str | None) -> tuple[str, list[str]]:
    """Return (commit, names of its files) of a dataset repository, at `revision` or `main`. Raises
    Failure (exit 3)."""
    with _api(repo, secret, "dataset") as api:
        found = api.dataset_info(repo, revision=revision, timeout=30)
        return found.sha, sorted(entry.rfilename for entry in found.siblings or [])


def dataset_file(repo: str, commit: str, name: str, secret: str | None) -> Path:
    """Return a local copy of one file of a dataset repository, downloaded once. Raises Failure
    (exit 3)."""
    with _api(repo, secret, "dataset") as api:
        return Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit))


def readable(repo: str, kind: str, secret: str | None) -> None:
    """Ask for one file's facts, as a download would. Raises Failure (exit 3), which tells why this
    token may not."""
    with _api(repo, secret, kind) as api:
        from huggingface_hub import errors

        model_file = f"{repo}/resolve/main/config.json"
        other_file = f"{kind}s/{repo}/resolve/main/README.md"
        path = model_file if kind == "model" else other_file
        with suppress(errors.EntryNotFoundError):
            api.get_hf_file_metadata(url=f"{api.endpoint}/{path}", timeout=10)


def with_owner(repo: str, secret: str | None) -> str:
    """Return OWNER/NAME: a name without an owner is the token's own. Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        return _owned(repo, api.whoami())


def _owned(repo: str, me: dict) -> str:
    return repo if "/" in repo else f"{me['name']}/{repo}"


def writable(repo: str, secret: str | None) -> dict | None:
    """Return what stands at `repo`: {"private": bool, "files": [names]}, or None when nothing does.
    Raises Failure (exit 3) unless the token may write there, as far as the Hub says before a first
    write. A name without an owner is the token's own."""
    with _api(repo, secret) as api:
        from huggingface_hub import errors

        me = api.whoami()
        repo = _owned(repo, me)
        owner, _, name = repo.rpartition("/")
        where = model_names.HUB + repo
        if not _may_write(me.get("auth", {}).get("accessToken", {}), repo):
            message = (
                f"got a token of {me['name']} without the right to write, expected one that may"
            )
            raise outside("HUB-READ-TOKEN", where, message, "export HF_TOKEN=...")
        try:
            found = api.model_info(repo, timeout=30)
        except errors.RepositoryNotFoundError:
            spaces = [space["name"].lower() for space in (me, *me.get("orgs", []))]
            if owner.lower() not in spaces:
                message = (
                    f"got a token of {me['name']}, expected one of {owner} to make a repository "
                    "there"
                )
                fix = Fix(flags={"--hub": f"{me['name']}/{name}"})
                raise outside("HUB-ACCESS", where, message, fix) from None
            return None
        api.auth_check(repo, write=True)
        names = [entry.rfilename for entry in found.siblings or []]
        return {"private": bool(found.private), "files": names}


def _may_write(access: dict, repo: str) -> bool:
    """Return what whoami says of a token: its role, and of a fine-grained one the rights to its
    account, its organisations and single repositories."""
    if access.get("role") != "fineGrained":
        return access.get("role") != "read"
    names = (repo.split("/")[0].lower(), repo.lower())
    for scope in access.get("fineGrained", {}).get("scoped", []):
        is_about_repo = scope.get("entity", {}).get("name", "").lower() in names
        if is_about_repo and "repo.write" in scope.get("permissions", ()):
            return True
    return False


def publish(repo: str, contents: Mapping[str, Path], private: bool, secret: str | None) -> str:
    """Put {name: file} into a model repository as one commit; returns its address. What the Hub has
    is not sent again, so an interrupted run can be repeated. Raises Failure (exit 3)."""
    with _api(repo, secret) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(repo, private=private, exist_ok=True)
        changes = [CommitOperationAdd(name, path) for name, path in contents.items()]
        return api.create_commit(repo, changes, commit_message="Publish a checkpoint").commit_url


@contextmanager
def _api(repo: str, secret: str | None, kind: str = "model") -> Iterator:
    """Yield the Hub's own client; what it raises about `repo` becomes findings of exit 3."""
    import httpx
    from huggingface_hub import HfApi, errors

    where = f"hf_{kind}://{repo}"
    try:
        yield HfApi(token=secret)
    except errors.GatedRepoError as problem:
        # Its agreement was not accepted; without a token the Hub says 401.
        has_token = problem.response.status_code != 401
        actual = "an account that did not" if has_token else "no token"
        advice = f"accept it at {_page(repo, kind)} "
        advice += "with the account of your HF_TOKEN" if has_token else "and set HF_TOKEN"
        message = f"got {actual}, expected a token of an account that accepted the {kind}'s "
        raise outside("HUB-GATED", where, f"{message}agreement; {advice}") from None
    except errors.RepositoryNotFoundError:
        message = f"got no such folder here, and no such {kind} there that this token may see; "
        message += f"{_page(repo, kind)} shows it; HF_TOKEN is wanted where it is private"
        raise outside("HUB-NOT-FOUND", where, message) from None
    except errors.LocalTokenNotFoundError:
        message = f"got no token, expected one of {TOKENS_PAGE}"
        raise outside("HUB-NO-TOKEN", where, message, "export HF_TOKEN=...") from None
    except errors.HfHubHTTPError as problem:
        if problem.response.status_code in (401, 403):
            is_unknown = problem.response.status_code == 401
            actual = "a token that the Hub does not know" if is_unknown else 403
            message = f"got {actual}, expected a token that may do this, of {TOKENS_PAGE}"
            raise outside("HUB-ACCESS", where, message, "export HF_TOKEN=...") from None
        raise _unreachable(where, problem) from None
    except (OSError, httpx.HTTPError, RuntimeError, ValueError) as problem:
        if getattr(problem, "errno", None) == errno.ENOSPC:
            message = "got a full disk while it was fetched, expected DIR on a larger one"
            raise outside("HUB-DISK-FULL", where, message, "export HF_HOME=DIR") from None
        raise _unreachable(where, problem) from None


def _page(repo: str, kind: str) -> str:
    folder = "datasets/" if kind == "dataset" else ""
    return f"https://huggingface.co/{folder}{repo}"


def _unreachable(where: str, problem: Exception) -> Failure:
    first_line = (str(problem) or "no answer").splitlines()[0][:200]
    message = f"got {type(problem).__name__}: {first_line}; a local folder needs no network"
    return outside("HUB-UNREACHABLE", where, message)
