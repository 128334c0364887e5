"""Objects in S3: listed, fetched once per content into the cache, and sent with their checksums verified.

Credentials, region and endpoint are what boto3 reads: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL (and AWS_ENDPOINT_URL_S3). Their values are never printed or written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import storage
from cosmos_reason.findings import bad_input, outside

SCHEME = "s3://"


@dataclass(frozen=True)
class Object:
    """One object: its `uri`, its name below the listed prefix, its size in bytes, and the tag of its content."""

    uri: str
    name: str
    size: int
    etag: str


def is_uri(text) -> bool:
    return str(text).startswith(SCHEME)


def split(uri: str) -> tuple[str, str]:
    """('bucket', 'key/of/it') of an s3:// name; the key may be empty. Raises Failure (exit 2)."""
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not is_uri(uri) or not bucket or "//" in f"/{key}":
        raise bad_input("S3-NAME", uri, "got no such form, expected s3://BUCKET/PREFIX")
    return bucket, key


def join(uri: str, name: str) -> str:
    """The object `name` below the prefix `uri`."""
    return f"{uri.rstrip('/')}/{name}"


def cache() -> Path:
    """Where fetched objects are kept: $COSMOS_CACHE/s3, else below $XDG_CACHE_HOME or ~/.cache."""
    if home := os.environ.get("COSMOS_CACHE"):
        return Path(home).expanduser() / "s3"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosmos-reason" / "s3"


def client():
    """A boto3 client with short time limits; give it to several calls to share its connections."""
    import boto3
    from botocore.config import Config

    retries = {"max_attempts": 4, "mode": "standard"}
    return boto3.client(
        "s3", config=Config(connect_timeout=10, read_timeout=60, retries=retries, max_pool_connections=32)
    )


def objects(uri: str, connection=None) -> Iterator[Object]:
    """Every object below a prefix, in order of name. Raises Failure (exit 3)."""
    bucket, key = split(uri)
    prefix = f"{key.rstrip('/')}/" if key else ""
    with failures(uri):
        pages = (connection or client()).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            for entry in page.get("Contents", []):
                if not entry["Key"].endswith("/"):
                    name = entry["Key"][len(prefix) :]
                    yield Object(f"{SCHEME}{bucket}/{entry['Key']}", name, entry["Size"], entry["ETag"].strip('"'))


def head(uri: str, connection=None) -> Object | None:
    """One object, or None when there is none of that name. Raises Failure (exit 3)."""
    from botocore.exceptions import ClientError

    bucket, key = split(uri)
    with failures(uri):
        try:
            found = (connection or client()).head_object(Bucket=bucket, Key=key)
        except ClientError as problem:
            if problem.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
                return None
            raise
        return Object(uri, key.rpartition("/")[2], found["ContentLength"], found["ETag"].strip('"'))


def fetch(found: Object, connection=None) -> Path:
    """A local copy of the object, downloaded only when its content is not in the cache yet. Raises Failure (exit 3)."""
    digest = hashlib.sha256(f"{found.uri}\n{found.etag}\n{found.size}".encode()).hexdigest()
    path = cache() / digest[:2] / digest[2:] / found.name.rpartition("/")[2]
    if path.is_file() and path.stat().st_size == found.size:
        return path
    bucket, key = split(found.uri)
    with failures(found.uri), storage.whole_file(path, "wb") as handle:
        (connection or client()).download_fileobj(bucket, key, handle)
    return path


def send(path: Path, uri: str, connection=None, progress=None) -> None:
    """Upload one file (multipart when large); S3 verifies the SHA-256 of every part. `progress` gets counts of bytes.
    Raises Failure (exit 3)."""
    bucket, key = split(uri)
    with failures(uri):
        extra = {"ChecksumAlgorithm": "SHA256"}
        (connection or client()).upload_file(str(path), bucket, key, ExtraArgs=extra, Callback=progress)


@contextmanager
def failures(uri: str) -> Iterator[None]:
    """Turns what boto3 raises into findings of exit 3."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError:
        message = "got no credentials, expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise outside("S3-CREDENTIALS", uri, message, "export AWS_PROFILE=NAME") from None
    except ClientError as problem:
        code = problem.response.get("Error", {}).get("Code", "?")
        if code in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"):
            raise outside("S3-ACCESS", uri, f"got {code}, expected credentials that may use it") from None
        if code in ("404", "NoSuchBucket", "NoSuchKey"):
            raise outside("S3-NOT-FOUND", uri, f"got {code}, expected an object or bucket that exists") from None
        raise outside("S3-FAILED", uri, f"got {code}, expected an answer") from None
    except (BotoCoreError, Boto3Error, ValueError) as problem:
        text = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
        fix = "check AWS_ENDPOINT_URL and AWS_REGION, or the network"
        raise outside("S3-UNREACHABLE", uri, f"got {text}", fix) from None
