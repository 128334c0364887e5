"""Objects in S3: listed, fetched once per content into the cache, and sent with their checksums verified.

Credentials, region and endpoint are what boto3 reads: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL (and AWS_ENDPOINT_URL_S3). Their values are never printed or written.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cosmos_reason import storage
from cosmos_reason.findings import MAX_RECORD_IDS, bad_input, outside

SCHEME = "s3://"
AT_ONCE = 8  # objects
PART_BYTES = 1 << 24  # of a multipart upload: the checksum of a large object depends on it


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
    if not is_uri(uri) or not bucket or "//" in f"/{key}" or ".." in key.split("/"):
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
    facts = _facts(uri, connection)
    return facts and Object(uri, uri.rpartition("/")[2], facts["ContentLength"], facts["ETag"].strip('"'))


def _facts(uri: str, connection=None) -> dict | None:
    from botocore.exceptions import ClientError

    bucket, key = split(uri)
    with failures(uri):
        try:
            return (connection or client()).head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except ClientError as problem:
            if problem.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
                return None
            raise


def _cached(found: Object) -> Path:
    digest = hashlib.sha256(f"{found.uri}\n{found.etag}\n{found.size}".encode()).hexdigest()
    return cache() / digest[:2] / digest[2:] / found.name.rpartition("/")[2]


def fetch(found: Object, connection=None, progress: Callable[[int], None] | None = None) -> Path:
    """A local copy of the object, downloaded only when its content is not in the cache yet. `progress` gets counts of
    bytes. Raises Failure (exit 3)."""
    path = _cached(found)
    if path.is_file() and path.stat().st_size == found.size:
        return path
    bucket, key = split(found.uri)
    with failures(found.uri), storage.whole_file(path, "wb") as handle:
        (connection or client()).download_fileobj(bucket, key, handle, Callback=progress)
    return path


def local(uri: str, connection=None) -> Path:
    """A local copy of one object. Raises Failure: exit 2 when there is none of that name, else exit 3."""
    connection = connection or client()
    if found := head(uri, connection):
        return fetch(found, connection)
    raise bad_input("FILE-MISSING", uri, "got no such object, expected a readable one")


def snapshot(uri: str, patterns: list[str], names: set[str] | None = None) -> Path:
    """A folder of links to the cached copies of the objects below `uri` whose names match, or with `names` of exactly
    those; the same folder for the same content. Raises Failure (exit 3), also when the disk is too small."""
    connection = client()
    wanted = [o for o in objects(uri, connection) if names is None or o.name in names]
    wanted = [o for o in wanted if any(fnmatch.fnmatch(o.name, pattern) for pattern in patterns)]
    if unsafe := [o.uri for o in wanted if o.name.startswith("/") or ".." in PurePosixPath(o.name).parts]:
        raise bad_input("S3-NAME", unsafe[0], f"got a name that leads out of {uri}, expected names below it")
    if missing := sorted((names or set()) - {found.name for found in wanted}):
        message = f"got no object for {len(missing)} of {len(names)} names ({', '.join(missing[:3])})"
        raise outside("S3-NOT-FOUND", uri, message, missing=missing[:MAX_RECORD_IDS])
    if not wanted:
        raise outside("S3-NOT-FOUND", uri, f"got no object below it named like {', '.join(patterns)}")
    cache().mkdir(parents=True, exist_ok=True)
    to_come = sum(found.size for found in wanted if not _cached(found).is_file())
    if to_come > (free := shutil.disk_usage(cache()).free):
        fix = "export COSMOS_CACHE=DIR, on a larger disk"
        raise outside("S3-DISK-FULL", cache(), f"got {free:,} bytes free, expected {to_come:,}", fix)
    progress = storage.Progress(to_come)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        copies = list(pool.map(lambda found: fetch(found, connection, progress), wanted))
    content = "\n".join(f"{found.name} {found.etag} {found.size}" for found in wanted)
    folder = cache() / "folders" / Path(*split(uri)) / hashlib.sha256(content.encode()).hexdigest()[:16]
    for found, copy in zip(wanted, copies, strict=True):
        (folder / found.name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # from an earlier call, or another at the same time
            (folder / found.name).symlink_to(copy)
    return folder


def send(path: Path, uri: str, connection=None, progress: Callable[[int], None] | None = None) -> None:
    """Upload one file (multipart when large); S3 verifies the SHA-256 of every part, and what it then says it holds is
    compared with the file. `progress` gets counts of bytes. Raises Failure (exit 3)."""
    from boto3.s3.transfer import TransferConfig

    connection = connection or client()
    bucket, key = split(uri)
    with failures(uri):
        connection.upload_file(
            str(path),
            bucket,
            key,
            ExtraArgs={"ChecksumAlgorithm": "SHA256"},
            Callback=progress,
            Config=TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES),
        )
    if not is_same(path, uri, connection):
        raise outside("S3-CHECKSUM", uri, f"got another checksum than that of {path}", "run it again")


def is_same(path: Path, uri: str, connection=None) -> bool:
    """Whether the object holds the file's bytes, by the SHA-256 that S3 states, or where it states none by its ETag.

    Of an object that was sent in parts both are a hash of the parts' hashes, so one that another tool sent in parts of
    another size is not recognised. Raises Failure (exit 3).
    """
    facts = _facts(uri, connection)
    if not facts or facts["ContentLength"] != path.stat().st_size:
        return False
    if stated := facts.get("ChecksumSHA256"):
        return stated.partition("-")[0] == base64.b64encode(_hash(path, "sha256")).decode()
    return facts["ETag"].strip('"').partition("-")[0] == _hash(path, "md5").hex()


def _hash(path: Path, algorithm: str) -> bytes:
    """Of a file that is sent at once its hash, of a larger one the hash of its parts' hashes."""
    with open(path, "rb") as handle:
        parts = [hashlib.new(algorithm, part).digest() for part in iter(lambda: handle.read(PART_BYTES), b"")]
    if path.stat().st_size < PART_BYTES:
        return parts[0] if parts else hashlib.new(algorithm).digest()
    return hashlib.new(algorithm, b"".join(parts)).digest()


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
