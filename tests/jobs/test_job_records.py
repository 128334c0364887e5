"""job.json edited by hand: what every reader of it says, and that none breaks."""

import json
import runpy

import pytest
from launch_site import Site, ended
from support import ROOT

from cosmos_reason import cli
from cosmos_reason.base import bundle
from cosmos_reason.jobs import record as jobs

VERBS = {
    "launch_job.py": ["status", "logs", "watch", "cancel", "retry", "upload"],
    "diagnose_log.py": [""],
    "select_checkpoint.py": [""],
    "build_spec.py": ["train", "evaluate"],
}
REQUIRED = bundle.schema("job")["required"]
NESTED = [
    "spec.path",
    "spec.sha256",
    "spec.source",
    "resources.gpu_ids",
    "platform_ref.host",
    "outputs.output_dir",
]
RUNNING = {"state": "RUNNING", "ended_at": None, "exit_code": None}


@pytest.fixture(scope="module")
def scripts():
    return {name: runpy.run_path(str(ROOT / "scripts" / name)) for name in VERBS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training that has ended well."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Site(tmp_path_factory.mktemp("site"), monkeypatch).submit()
        ended(made)
    with open(made / jobs.LOG, "a") as log:  # for the diagnosis, which reads on
        log.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    return made


def lines(folder):
    """Every command that reads the record of a job."""
    for name, verbs in VERBS.items():
        for verb in verbs:
            if name == "launch_job.py":
                where = ["s3://bucket/x"] if verb == "upload" else []
                yield name, [verb, folder.name, *where, "--jobs-dir", str(folder.parent), "--json"]
            elif name == "diagnose_log.py":
                yield name, [folder.name, "--jobs-dir", str(folder.parent), "--json"]
            elif name == "select_checkpoint.py":
                yield name, [str(folder), "--by", "step_3", "--json"]
            else:
                out = str(folder.parent / "made.toml")
                yield (
                    name,
                    [
                        verb,
                        "--engine",
                        "transformers",
                        "--parent-job",
                        str(folder),
                        "-o",
                        out,
                        "--json",
                    ],
                )
    yield "launch_job.py", ["list", "--jobs-dir", str(folder.parent), "--json"]


def edited(record, key, value):
    changed = json.loads(json.dumps(record))
    *tables, last = key.split(".")
    table = changed
    for name in tables:
        table = table[name]
    if value is ...:
        del table[last]
    else:
        table[last] = value
    return changed


KINDS = [(None, {}), ("x", {}), (None, RUNNING), (..., RUNNING)]


@pytest.mark.parametrize(
    ("value", "state"), KINDS, ids=["null", "text", "null while running", "missing while running"]
)
def test_no_reader_of_an_edited_record_breaks(scripts, folder, monkeypatch, value, state):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("sys.argv", ["launch_job.py", "--json"])
    file = folder / "job.json"
    whole = file.read_text()
    # Each command reads a third of the edits of a kind, another third of the next kind.
    kind = KINDS.index((value, state))
    try:
        for number, key in enumerate([*REQUIRED, *NESTED]):
            file.write_text(json.dumps(edited(json.loads(whole) | state, key, value)))
            for name, words in list(lines(folder))[(number + kind) % 3 :: 3]:
                if state and words[0] == "retry":
                    # A sound record of a job that turns out to have failed would be started again.
                    continue
                script = scripts[name]
                main = script["main"] if "main" in script else lambda args: args.main(args)
                assert cli.run(script["parser"](), main, words) in (0, 1, 2, 3), (key, words)
    finally:
        file.write_text(whole)
    assert jobs.Job.load(folder).state == "COMPLETE"


def test_what_is_wrong_with_a_record_is_said(folder):
    record = json.loads((folder / "job.json").read_text())
    told = {
        "spec.path": (None, "null as spec.path"),
        "reason": (..., "no reason"),
        "resources.gpu_ids": (3, "3 as resources.gpu_ids"),
        "outputs": ({}, "no output_dir in outputs"),
        "platform": ("docker", "no docker_host in options"),
    }
    for key, (value, said) in told.items():
        assert list(jobs._faults(edited(record | {"options": {}}, key, value))) == [said]
    assert not list(jobs._faults(record | {"note": "of a colleague"}))
