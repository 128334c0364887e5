"""The Hugging Face Hub: a model's current commit, the few files of it that are needed, and the token by its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason import storage
from cosmos_reason.findings import outside

TOKEN_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def token(secrets_env: Path | None = None) -> str | None:
    """The Hub token from a KEY=VALUE file, else from the environment. The value is never printed or written."""
    lines = storage.read_text(secrets_env).splitlines() if secrets_env else []
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if not line.startswith("#"))
    found = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    return next((value for name in TOKEN_NAMES if (value := found.get(name) or os.environ.get(name))), None)


def commit(repo: str, secret: str | None) -> str:
    """The immutable commit that `main` of a model repository is at. Raises Failure (exit 3)."""
    with _failures(repo):
        import huggingface_hub

        return huggingface_hub.HfApi(token=secret).model_info(repo, timeout=30).sha


def snapshot(repo: str, revision: str, patterns: list[str], cache_dir: Path | None, secret: str | None) -> Path:
    """A local snapshot of the files that match `patterns`, in a folder named by the commit. Raises Failure (exit 3)."""
    with _failures(repo):
        import huggingface_hub

        options = {"revision": revision, "allow_patterns": patterns, "cache_dir": cache_dir, "token": secret}
        return Path(huggingface_hub.snapshot_download(repo, **options))


@contextmanager
def _failures(repo: str) -> Iterator[None]:
    import httpx
    from huggingface_hub import errors

    where = f"hf_model://{repo}"
    page = f"https://huggingface.co/{repo}"
    try:
        yield
    except errors.GatedRepoError:
        message = "got no access, expected a token of an account that accepted the model's agreement"
        raise outside("HUB-GATED", where, message, f"accept it at {page}, then set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        message = "got no such folder here, and no such model there that this token may see"
        raise outside("HUB-NOT-FOUND", where, message, f"look at {page}; set HF_TOKEN if it is private") from None
    except (OSError, httpx.HTTPError, errors.OfflineModeIsEnabled) as problem:
        message = f"got {type(problem).__name__}: {str(problem).splitlines()[0][:200] if str(problem) else 'no answer'}"
        raise outside("HUB-UNREACHABLE", where, message, "give a local folder, or try again with a network") from None
