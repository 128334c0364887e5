"""Objects in S3: listed, fetched once per content into the cache, and sent with verified checksums.

Credentials, region and endpoint are what boto3 reads: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL (and AWS_ENDPOINT_URL_S3). Their values
are never printed or written.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cosmos_reason.base import files, progress
from cosmos_reason.base.findings import MAX_RECORD_IDS, bad_input, outside

SCHEME = "s3://"
AT_ONCE = 8  # objects
PART_BYTES = 1 << 24  # of a multipart upload: the checksum of a large object depends on it
MD5 = re.compile(r"[0-9a-f]{32}")
REFUSED = ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")


@dataclass(frozen=True)
class Object:
    """One object: its `uri`, its name below the listed prefix, its size in bytes, and the tag of
    its content."""

    uri: str
    name: str
    size: int
    etag: str


def is_uri(text) -> bool:
    return str(text).startswith(SCHEME)


def split(uri: str) -> tuple[str, str]:
    """Return ('bucket', 'key/of/it') of an s3:// name; the key may be empty. Raises Failure (exit
    2)."""
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not is_uri(uri) or not bucket or "//" in f"/{key}" or ".." in key.split("/"):
        raise bad_input("S3-NAME", uri, "got no such form, expected s3://BUCKET/PREFIX")
    return bucket, key


def join(uri: str, name: str) -> str:
    """Return the object `name` below the prefix `uri`."""
    return f"{uri.rstrip('/')}/{name}"


def cache() -> Path:
    """Return where fetched objects are kept."""
    return files.cache_folder() / "s3"


def client():
    """Return a boto3 client with short time limits; give it to several calls to share its
    connections.

    A request is tried AWS_MAX_ATTEMPTS times, or five.
    """
    import boto3
    from botocore.config import Config

    retries: dict[str, object] = {"mode": "standard"}
    if "AWS_MAX_ATTEMPTS" not in os.environ:  # which an argument here would overrule
        retries["total_max_attempts"] = 5
    config = Config(connect_timeout=10, read_timeout=60, retries=retries, max_pool_connections=32)
    return boto3.client("s3", config=config)


def objects(uri: str, connection=None) -> Iterator[Object]:
    """Yield every object below a prefix, in order of name. Raises Failure (exit 3)."""
    bucket, key = split(uri)
    prefix = f"{key.rstrip('/')}/" if key else ""
    with failures(uri):
        paginator = (connection or client()).get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                key = entry["Key"]
                if not key.endswith("/"):
                    yield Object(
                        uri=f"{SCHEME}{bucket}/{key}",
                        name=key.removeprefix(prefix),
                        size=entry["Size"],
                        etag=entry["ETag"].strip('"'),
                    )


def head(uri: str, connection=None) -> Object | None:
    """Return one object, or None when there is none of that name. Raises Failure (exit 3)."""
    facts = _facts(uri, connection)
    if facts is None:
        return None
    name = uri.rpartition("/")[2]
    return Object(uri, name, facts["ContentLength"], facts["ETag"].strip('"'))


def _facts(uri: str, connection=None) -> dict | None:
    """Return what S3 says of one object, with its checksums; None when there is none of that
    name."""
    from botocore.exceptions import ClientError

    bucket, key = split(uri)
    with failures(uri):
        try:
            connection = connection or client()
            return connection.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except ClientError as problem:
            if problem.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
                return None
            raise


def _cached(found: Object) -> Path:
    """Return where the copy of an object is kept: by its content, so that copies of one clip below
    several prefixes are one here, where its tag is a hash of that (of an object sent in one part),
    else by its address too."""
    content = f"{found.etag}\n{found.size}"
    if not MD5.fullmatch(found.etag):
        content = f"{found.uri}\n{content}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return cache() / digest[:2] / digest[2:] / found.name.rpartition("/")[2]


def fetch(found: Object, connection=None, copied: Callable[[int], None] | None = None) -> Path:
    """Return a local copy of the object, downloaded only when its content is not in the cache yet.
    `copied` gets counts of bytes. Raises Failure (exit 3)."""
    path = _cached(found)
    if path.is_file() and path.stat().st_size == found.size:
        return path
    bucket, key = split(found.uri)
    with failures(found.uri), files.whole_file(path, "wb") as handle:
        (connection or client()).download_fileobj(bucket, key, handle, Callback=copied)
    return path


def local(uri: str, connection=None) -> Path:
    """Return a local copy of one object. Raises Failure: exit 2 when there is none of that name,
    else exit 3."""
    connection = connection or client()
    found = head(uri, connection)
    if found is None:
        raise bad_input("FILE-MISSING", uri, "got no such object, expected a readable one")
    return fetch(found, connection)


def snapshot(uri: str, patterns: list[str], names: set[str] | None = None) -> Path:
    """Return a folder of links to the cached copies of the objects below `uri` whose names match,
    or with `names` of exactly those, and of what lies in those; the same folder for the same
    content. Raises Failure (exit 3), also when the disk is too small."""
    connection = client()
    wanted = []
    for found in objects(uri, connection):
        is_named = names is None or not names.isdisjoint(_called(found))
        if is_named and any(fnmatch.fnmatch(found.name, pattern) for pattern in patterns):
            wanted.append(found)
    for found in wanted:  # whose link would lie outside the snapshot
        if found.name.startswith("/") or ".." in PurePosixPath(found.name).parts:
            message = f"got a name that leads out of {uri}, expected names below it"
            raise bad_input("S3-NAME", found.uri, message)
    missing = sorted((names or set()).difference(*map(_called, wanted)))
    if missing:
        first = ", ".join(missing[:3])
        message = f"got no object for {len(missing)} of {len(names)} names ({first})"
        raise outside("S3-NOT-FOUND", uri, message, missing=missing[:MAX_RECORD_IDS])
    if not wanted:
        message = f"got no object below it named like {', '.join(patterns)}"
        raise outside("S3-NOT-FOUND", uri, message)
    cache().mkdir(parents=True, exist_ok=True)
    to_come = sum(found.size for found in wanted if not _cached(found).is_file())
    free = shutil.disk_usage(cache()).free
    if to_come > free:  # before anything is fetched, which may take hours
        message = f"got {free:,} bytes free, expected {to_come:,}: DIR on a larger disk"
        raise outside("S3-DISK-FULL", cache(), message, "export COSMOS_CACHE=DIR")
    copied = progress.of_bytes(to_come, "download")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        copies = list(pool.map(lambda found: fetch(found, connection, copied), wanted))
    content = "\n".join(f"{found.name} {found.etag} {found.size}" for found in wanted)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    bucket, key = split(uri)
    folder = cache() / "folders" / bucket / key / digest
    for found, copy in zip(wanted, copies, strict=True):
        link = folder / found.name
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # from an earlier call, or another at the same time
            link.symlink_to(copy)
    return folder


def _called(found: Object) -> tuple[str, str]:
    """Return by what an object can be asked for: its name, or that of its folder."""
    return found.name, posixpath.dirname(found.name)


def send(
    path: Path, uri: str, connection=None, copied: Callable[[int], None] | None = None
) -> None:
    """Upload one file (multipart when large); S3 verifies the SHA-256 of every part, and what it
    then says it holds is compared with the file. `copied` gets counts of bytes. Raises Failure
    (exit 3)."""
    from boto3.s3.transfer import TransferConfig

    connection = connection or client()
    bucket, key = split(uri)
    with failures(uri):
        connection.upload_file(
            str(path),
            bucket,
            key,
            ExtraArgs={"ChecksumAlgorithm": "SHA256"},
            Callback=copied,
            Config=TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES),
        )
    if not is_same(path, uri, connection):
        message = f"got another checksum than that of {path}; another run sends it again"
        raise outside("S3-CHECKSUM", uri, message)


def is_same(path: Path, uri: str, connection=None) -> bool:
    """Return whether the object holds the file's bytes, by the SHA-256 that S3 states, or where it
    states none by its ETag.

    Of an object that was sent in parts both are a hash of the parts' hashes, so one that another
    tool sent in parts of another size is not recognised. Raises Failure (exit 3).
    """
    facts = _facts(uri, connection)
    if not facts or facts["ContentLength"] != path.stat().st_size:
        return False
    stated = facts.get("ChecksumSHA256")
    if stated:
        return stated.partition("-")[0] == base64.b64encode(_hash(path, "sha256")).decode()
    return facts["ETag"].strip('"').partition("-")[0] == _hash(path, "md5").hex()


def _hash(path: Path, algorithm: str) -> bytes:
    """Return the hash of a file that is sent at once; of a larger file, the hash of its parts'
    hashes."""
    with open(path, "rb") as handle:
        if path.stat().st_size < PART_BYTES:
            return hashlib.new(algorithm, handle.read()).digest()
        of_parts = hashlib.new(algorithm)
        while part := handle.read(PART_BYTES):
            of_parts.update(hashlib.new(algorithm, part).digest())
    return of_parts.digest()


@contextmanager
def failures(uri: str) -> Iterator[None]:
    """Turn what boto3 raises into findings of exit 3."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError:
        message = (
            "got no credentials, expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or AWS_PROFILE"
        )
        raise outside("S3-CREDENTIALS", uri, message, "export AWS_PROFILE=NAME") from None
    except ClientError as problem:
        code = problem.response.get("Error", {}).get("Code", "?")
        if code in REFUSED:
            message = f"got {code}, expected credentials that may use it"
            raise outside("S3-ACCESS", uri, message) from None
        if code in ("404", "NoSuchBucket", "NoSuchKey"):
            message = f"got {code}, expected an object or bucket that exists"
            raise outside("S3-NOT-FOUND", uri, message) from None
        raise outside("S3-FAILED", uri, f"got {code}, expected an answer") from None
    except (BotoCoreError, Boto3Error, ValueError) as problem:
        text = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
        message = (
            f"got {text}; is the network there, and are AWS_ENDPOINT_URL and AWS_REGION right?"
        )
        raise outside("S3-UNREACHABLE", uri, message) from None
