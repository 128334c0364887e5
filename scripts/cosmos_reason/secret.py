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
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "ACCESS_KEY", "SECRET_KEY", "OPENAI_API_KEY", "NGC_CLI_API_KEY", "NVIDIA_API_KEY",
    "GITHUB_TOKEN", "GH_TOKEN",
)  # fmt: skip
NAMED = r"(?:token|secret|passw(?:or)?d|api_?key|(?:secret|private|(?:secret_)?access)_key(?:_id)?)"
# userinfo of an address, a header, a parameter of a signed address, NAME=VALUE, keys as their makers shape them
SHAPES = re.compile(
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=bearer )[\w.~+/=-]{8,}"
    r"|(?<=x-amz-signature=)[^&\s\"']+|(?<=x-amz-credential=)[^&\s\"']+|(?<=x-amz-security-token=)[^&\s\"']+"
    r"|\b(?:hf_|nvapi-|sk-|ghp_|AKIA|ASIA)[a-z0-9_-]{12,}",
    re.IGNORECASE,
)
ASSIGNED = re.compile(rf"(\b(?:\w*_)?{NAMED}[\"']?\s*[=:]\s*[\"']?)(?![\d.]+\b|<)[^\s\"',;&\[]{{8,}}", re.IGNORECASE)
HIDDEN = "[hidden]"
# Variables of the caller's that sound like credentials: the key of an endpoint has any name.
OTHERS = tuple(name for name in os.environ if re.search(r"(TOKEN|SECRET|PASSW(OR)?D|_KEY)$", name, re.IGNORECASE))


def hidden(text: str) -> str:
    """`text` with the values of the credentials that this bundle reads, and what looks like one, replaced."""
    for name in (*SECRETS, *OTHERS):
        if len(value := os.environ.get(name, "")) >= (4 if name in SECRETS else 8):
            text = text.replace(value, HIDDEN)
    return ASSIGNED.sub(rf"\1{HIDDEN}", SHAPES.sub(HIDDEN, text))


def is_set(name: str) -> bool:
    return bool(os.environ.get(name))


def adopt_former_s3_names() -> list[str]:
    """Give the standard S3 variables that are not set the values of the old ones; the old names that were used."""
    used = [old for old, new in FORMER_S3.items() if os.environ.get(old) and not os.environ.get(new)]
    os.environ.update({FORMER_S3[old]: os.environ[old] for old in used})
    return used
