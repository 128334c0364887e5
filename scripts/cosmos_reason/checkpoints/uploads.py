"""What a training sends to the Hub and S3 while it runs, as `train.ckpt` says, through the
publisher. The weights stand on the disk before anything is sent, so a failure costs the upload
only: it is said, kept in uploads.json and ends nothing. Enter at `send`."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.files import read_json, write_json
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.checkpoints import publishing
from cosmos_reason.remote import hub, model_names, s3

FILE = "uploads.json"  # in the folder of a run: {address of the target: "" or why it failed}


def targets(ckpt: dict, folder: Path, is_last: bool) -> list[str]:
    """Where the model `OUTPUT/RUN/safetensors/STEP` is to go: hf_model://ORG/NAME-RUN, and
    s3://BUCKET/PREFIX/RUN/safetensors/STEP. Each run has a place of its own there, so that the
    weights of two never mix."""
    run = folder.absolute().parents[1].name
    found = []
    if ckpt["upload_hf"] and is_last:
        found.append(f"{model_names.HUB}{ckpt['hf_repo_name']}-{run}")
    if ckpt["upload_s3"] == "all" or (ckpt["upload_s3"] == "final" and is_last):
        parts = [ckpt["s3_bucket"], ckpt["s3_prefix"].strip("/"), run, "safetensors", folder.name]
        found.append(s3.SCHEME + "/".join(part for part in parts if part))
    return found


def send(ckpt: dict, folder: Path, is_last: bool) -> None:
    """Send one exported model where the spec wants it. What is there already is not sent again."""
    for uri in targets(ckpt, folder, is_last):
        try:
            said = f"uploaded {folder.name}: {_publish(folder, uri)}"
            problem = ""
        except Exception as fault:  # whatever a client raises must not cost the training
            said = findings.as_text([_failed(folder, uri, fault)])
            problem = str(fault) or type(fault).__name__
        findings.say(said)
        with suppress(OSError):
            _note(folder.absolute().parents[1] / FILE, uri, problem)


def _publish(folder: Path, uri: str) -> str:
    """The address of the model, which is private on the Hub. Raises Failure."""
    sent, _, _ = publishing.collect(folder)
    secret = None
    if not s3.is_uri(uri):
        secret = hub.token()
        uri = model_names.HUB + hub.with_owner(uri.removeprefix(model_names.HUB), secret)
    target = publishing.look(uri, secret)
    objections = publishing.objections(target, sent, public=False)
    if findings.has_errors(objections):
        raise Failure(objections, findings.EXIT_CHECKS_FAILED)
    with tempfile.TemporaryDirectory() as scratch:
        beside = publishing.beside(folder, None)
        sent |= publishing.write(Path(scratch), uri.rpartition("/")[2], folder, beside)
        address, _ = publishing.send(target, sent, public=False, secret=secret)
    return address


def _failed(folder: Path, uri: str, fault: Exception) -> Finding:
    where = ["--s3", uri]
    if not s3.is_uri(uri):
        name = uri.removeprefix(model_names.HUB)
        where = ["--hub", name if "/" in name else f"ORG/{name}"]
    fix = shlex.join(["scripts/publish_checkpoint.py", str(folder.absolute()), *where, "--yes"])
    message = f"not uploaded, the training goes on: got {fault or type(fault).__name__}"
    return findings.warning("ENGINE-UPLOAD", uri, message, fix)


def _note(path: Path, uri: str, problem: str) -> None:
    noted = read_json(path) if path.is_file() else {}
    write_json(path, noted | {uri: problem})


def failed(run_dir: Path) -> list[str]:
    """The targets that a run did not reach."""
    path = run_dir / FILE
    noted = read_json(path) if path.is_file() else {}
    return [uri for uri, problem in noted.items() if problem]
