"""Credentials by the names of their environment variables, and texts without their values."""

from __future__ import annotations

import os
import re

# The old S3 names of earlier guides, and the standard ones they mean.
FORMER_S3 = {
    "ACCESS_KEY": "AWS_ACCESS_KEY_ID",
    "SECRET_KEY": "AWS_SECRET_ACCESS_KEY",
    "S3_ENDPOINT_URL": "AWS_ENDPOINT_URL",
    "CLOUD_REGION": "AWS_DEFAULT_REGION",
}
SECRETS = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "ACCESS_KEY", "SECRET_KEY", "OPENAI_API_KEY",
    "NGC_CLI_API_KEY", "NVIDIA_API_KEY", "GITHUB_TOKEN", "GH_TOKEN",
)  # fmt: skip
NAMED = r"(?:token|secret|passw(?:or)?d|api_?key|(?:secret|private|(?:secret_)?access)_key(?:_id)?)"
# userinfo of an address (also as a path, which has one slash), a header, parameters of a signed
# address
SHAPES = re.compile(
    r"(?:(?<=://)|(?<=\w:/))[^/\s:@]*:[^/\s]+(?=@)|(?<=bearer )[\w.~+/=-]{8,}"
    r"|(?<=x-amz-signature=)[^&\s\"']+|(?<=x-amz-credential=)[^&\s\"']+"
    r"|(?<=x-amz-security-token=)[^&\s\"']+",
    re.IGNORECASE,
)
# Keys as their makers shape them; of `sk-learn-experiments`, `asia-southeast1-docker` nothing is
# hidden.
KEYS = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\b(?:nvapi|sk)-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,}"
)
# NAME=VALUE. After a colon there may be prose: "the token: rejected".
ASSIGNED = re.compile(
    rf"(\b(?:\w*_)?{NAMED}[\"']?(?:\s*=\s*|\s*:\s*(?=\S*\d|[\"']|\S{{20}}))[\"']?)"
    r"(?![\d.]+\b|<)[^\s\"',;&\[]{8,}",
    re.IGNORECASE,
)
HIDDEN = "[hidden]"
CHAT_KEY = "OPENAI_API_KEY"  # the variable with the key of a chat server, where none is named
KNOWN_LENGTH = 8  # shorter values are words: what a test exports as HF_TOKEN=none
# Variables of the caller's that sound like credentials: the key of an endpoint has any name. Their
# values are hidden when they look like one: SOME_KEY=training does not.
SOUNDS_LIKE_A_KEY = re.compile(r"(TOKEN|SECRET|PASSW(OR)?D|_KEY)$", re.IGNORECASE)
LIKE_A_KEY = re.compile(r"(?![A-Za-z]+$|[\d.]+$)[\w.~+=-]{16,}|(?=.*\d)(?=.*[A-Z])[\w.~+/=-]{20,}")


# Of Weights & Biases, 40 digits like many a hash: known by the name before it.
_OF_WANDB = re.compile(r"wandb\w*[\"']?\s*[:=]\s*[\"']?[0-9a-f]{40}\b", re.IGNORECASE)


def token_in(text: str) -> list[re.Match]:
    """Return where a text holds what its maker shapes as a token, or assigns one."""
    found = [*KEYS.finditer(text), *SHAPES.finditer(text), *_OF_WANDB.finditer(text)]
    return sorted(found, key=lambda match: match.start())[:1]


def hidden(text: str) -> str:
    """Return `text` with the values of the credentials that this bundle reads, and what looks like
    one, replaced."""
    for name in SECRETS:
        value = os.environ.get(name, "").strip()
        if len(value) >= KNOWN_LENGTH:
            text = text.replace(value, HIDDEN)
    for name in filter(SOUNDS_LIKE_A_KEY.search, os.environ):
        value = os.environ.get(name, "").strip()
        if LIKE_A_KEY.fullmatch(value):
            text = text.replace(value, HIDDEN)
    for shape in (SHAPES, KEYS):
        text = shape.sub(HIDDEN, text)
    return ASSIGNED.sub(rf"\1{HIDDEN}", text)


def is_set(name: str) -> bool:
    return bool(os.environ.get(name))


def adopt_former_s3_names() -> list[str]:
    """Give the standard S3 variables that are not set the values of the old ones; the old names
    that were used."""
    used = []
    for old, new in FORMER_S3.items():
        if os.environ.get(old) and not os.environ.get(new):
            used.append(old)
    os.environ.update({FORMER_S3[old]: os.environ[old] for old in used})
    return used
