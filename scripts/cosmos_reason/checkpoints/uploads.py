"""What a training sends to the Hub and S3 while it runs, as `train.ckpt` says: models, and with
upload_s3 = "all" the states to resume from, as cosmos-rl. What is sent stands on the disk before,
so a failure ends no training: it is said and kept in uploads.json, the job is not COMPLETE, and
`launch_job.py upload JOB_ID` sends it again. Enter at `send`, `send_state` and `send_again`."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.files import read_json, write_json
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import publishing, run_outputs
from cosmos_reason.remote import hub, model_names, s3

FILE = "uploads.json"  # in the folder of a run: {address of the target: "" or why it failed}


def send(ckpt: dict, folder: Path, is_last: bool) -> None:
    """Send the model `OUTPUT/RUN/safetensors/STEP` where the spec wants it: to
    hf_model://ORG/NAME-RUN and to S3. Each run has a place of its own there, so that the weights of
    two never mix. What is there already is not sent again."""
    folder = folder.absolute()
    run = folder.parents[1]
    if ckpt["upload_hf"] and is_last:
        _try(folder, f"{model_names.HUB}{ckpt['hf_repo_name']}-{run.name}", run)
    if ckpt["upload_s3"] == "all" or (ckpt["upload_s3"] == "final" and is_last):
        _try(folder, _in_bucket(ckpt, folder, run), run)


def send_state(ckpt: dict, policy: Path) -> None:
    """Send a state to resume from, `OUTPUT/RUN/checkpoints/STEP/policy`, to S3 where the spec wants
    all checkpoints."""
    policy = policy.absolute()
    if ckpt["upload_s3"] == "all" and policy.is_dir():
        run = policy.parents[2]
        _try(policy, _in_bucket(ckpt, policy, run), run)


def _in_bucket(ckpt: dict, folder: Path, run: Path) -> str:
    """Return the address of a folder of a run: its place in the output, below s3://BUCKET/PREFIX."""
    below = folder.relative_to(run.parent).parts
    parts = [ckpt["s3_bucket"], ckpt["s3_prefix"].strip("/"), *below]
    return s3.SCHEME + "/".join(part for part in parts if part)


def send_again(run_dir: Path) -> list[str]:
    """Send what a run could not send; returns what it still cannot, or no longer has."""
    run = run_dir.absolute()
    for uri in failed(run_dir):
        if s3.is_uri(uri):
            folder = run / uri.rpartition(f"/{run.name}/")[2]  # its place in the run
        else:
            models = [one.path for one in run_outputs.models(run) if one.complete]
            folder = models[-1] if models else None  # the Hub gets the last model
        if folder and folder.is_dir():
            _try(folder, uri, run)
    return failed(run_dir)


def _try(folder: Path, uri: str, run_dir: Path) -> None:
    """Send a folder, and note in the run whether it arrived."""
    try:
        sent = _send_state if folder.name == "policy" else _publish
        said = f"uploaded {folder.relative_to(run_dir)}: {sent(folder, uri)}"
        problem = ""
    except Exception as fault:  # whatever a client raises must not cost the training
        problem = str(fault) or type(fault).__name__
        where = ["--s3", uri]
        if not s3.is_uri(uri):
            name = uri.removeprefix(model_names.HUB)
            where = ["--hub", name if "/" in name else f"ORG/{name}"]
        command = ["scripts/publish_checkpoint.py", str(folder.absolute()), *where, "--yes"]
        if folder.name == "policy":
            command = ["aws", "s3", "sync", str(folder.absolute()), uri]
        message = f"not uploaded, the training goes on: {problem}"
        warning = findings.warning("ENGINE-UPLOAD", uri, message, shlex.join(command))
        said = findings.as_text([warning])
    findings.say(said)
    with suppress(OSError):
        path = run_dir / FILE
        noted = read_json(path) if path.is_file() else {}
        write_json(path, noted | {uri: problem})


def _send_state(policy: Path, uri: str) -> str:
    """Return the address of the state. Raises Failure. The markers that make it complete go
    last."""
    if not run_outputs.is_complete_resume(policy):
        message = "the state is incomplete"
        raise findings.outside("CKPT-RESUME-INCOMPLETE", policy, message)
    names = sorted((path.name for path in policy.iterdir()), key=lambda name: name.startswith("."))
    sent = {name: policy / name for name in names}
    address, _ = publishing.send(publishing.look(uri, None), sent, False, None)
    return address


def _publish(folder: Path, uri: str) -> str:
    """Return the address of the model, which is private on the Hub. Raises Failure."""
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


def failed(run_dir: Path) -> list[str]:
    """Return the targets that a run did not reach."""
    path = run_dir / FILE
    noted = read_json(path) if path.is_file() else {}
    return [uri for uri, problem in noted.items() if problem]
