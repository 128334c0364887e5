"""Jobs whose inputs are elsewhere: on S3 (moto) and on a Hub on the loopback address."""

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
import servers
from docker_engine import IMAGE
from launch_site import Site, change, ended, write_annotations, write_model, write_state
from support import ROOT, called, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import engines, launch, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.remote import s3
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def run(site, **request):
    site.does()
    record, found = launch.submit(site.request(**request))
    assert record.job_id, found
    folder = site.jobs / record.job_id
    assert ended(folder).state == "COMPLETE"
    return record, document.load(folder / "spec.toml")


@pytest.fixture
def clips(site, bucket):
    """Ten clips on S3 of which the annotations name eight;
    the spec names both by their addresses."""
    write_annotations(site.root / "remote.json")
    s3.send(site.root / "remote.json", f"{bucket}/data/annotations.json")
    for number in range(10):
        (site.root / "clip").write_text(f"clip {number}")
        s3.send(site.root / "clip", f"{bucket}/data/media/{number}.mp4")
    for table in ("train_dataset", "val_dataset"):
        places = {
            f"custom__{table}__annotation_path": f"{bucket}/data/annotations.json",
            f"custom__{table}__media_path": f"{bucket}/data/media",
        }
        change(site, "train", **places)
    return bucket


def downloads(monkeypatch):
    """The names of objects that are downloaded from now on."""
    seen, client = [], s3.client

    def watched():
        made = client()
        download = made.download_fileobj
        made.download_fileobj = lambda bucket, key, *rest, **more: (
            seen.append(key),
            download(bucket, key, *rest, **more),
        )
        return made

    monkeypatch.setattr(s3, "client", watched)
    return seen


@pytest.mark.promise
def test_only_the_named_media_are_fetched_and_only_once(site, clips, monkeypatch):
    seen = downloads(monkeypatch)
    record, written = run(site)
    assert sorted(seen) == ["data/annotations.json", *(f"data/media/{n}.mp4" for n in range(8))]
    media = Path(written["custom"]["train_dataset"]["media_path"])
    assert {path.name: path.read_text() for path in media.iterdir()} == {
        f"{n}.mp4": f"clip {n}" for n in range(8)
    }
    sources = {entry["role"]: entry.get("source") for entry in record.inputs}
    assert sources["custom.train_dataset.media_path"] == f"{clips}/data/media"
    _, again = run(site)
    assert len(seen) == 9 and again["custom"] == written["custom"], "a second job fetches nothing"
    (site.root / "clip").write_text("another")
    s3.send(site.root / "clip", f"{clips}/data/media/3.mp4")
    _, changed = run(site)
    assert len(seen) == 10
    assert Path(changed["custom"]["train_dataset"]["media_path"], "3.mp4").read_text() == "another"
    assert (media / "3.mp4").read_text() == "clip 3", "the folder of the earlier jobs is as it was"


def test_missing_media_are_named_and_nothing_is_recorded(site, clips):
    s3.client().delete_object(Bucket=s3.split(clips)[0], Key="data/media/5.mp4")
    with pytest.raises(Failure, match=r"1 of 8 names \(5.mp4\)") as caught:
        run(site)
    assert caught.value.exit_code == 3 and not site.jobs.exists()


def test_a_plan_fetches_nothing(site, clips, monkeypatch):
    seen = downloads(monkeypatch)
    record, found = launch.plan(site.request())
    assert record.command and not seen and "JOB-FETCHED" in {finding.id for finding in found}


def test_an_archive_on_s3(site, clips):
    with tarfile.open(site.root / "videos.tar.gz", "w:gz") as tar:
        tar.add(site.root / "clip", "7.mp4")
    s3.send(site.root / "videos.tar.gz", f"{clips}/data/videos.tar.gz")
    change(site, "train", custom__train_dataset__media_path=f"{clips}/data/videos.tar.gz")
    _, written = run(site)
    assert Path(written["custom"]["train_dataset"]["media_path"], "7.mp4").read_text() == "clip 9"


def test_the_archive_of_a_root_on_s3(site, clips):
    """The spec names the root, since build_spec asks nobody; who fetches it sees the archive."""
    with tarfile.open(site.root / "videos.tar.gz", "w:gz") as tar:
        tar.add(site.root / "clip", "0.mp4")
    s3.send(site.root / "videos.tar.gz", f"{clips}/data/videos.tar.gz")
    change(site, "train", custom__train_dataset__media_path=f"{clips}/data")
    _, written = run(site)
    assert Path(written["custom"]["train_dataset"]["media_path"], "0.mp4").read_text() == "clip 9"


def test_links_to_the_cache_are_readable_in_a_container(site, clips, dockerd):
    site.root.joinpath("model/read.py").write_text(
        "import sys; print(*(open(f'{sys.argv[1]}/{n}.mp4').read() for n in range(8)), sep='|')"
    )
    media = "custom.train_dataset.media_path"

    def words(record, mapped, **_):
        return ["python3", str(site.root / "model" / "read.py"), document.get(mapped, media)]

    site.monkeypatch.setattr(engines, "words", words)
    options = {"image": IMAGE, "network": "host"}
    record, _ = launch.submit(site.request(platform="docker", **options))
    ended(site.jobs / record.job_id)
    assert progress.log_tail(site.jobs / record.job_id, 1) == [
        "|".join(f"clip {n}" for n in range(8))
    ]


@pytest.mark.promise
def test_results_are_uploaded_on_request(site, bucket):
    record, _ = run(site)
    with open(site.jobs / record.job_id / jobs.LOG, "a") as log:
        log.write(f"what the work printed: {os.environ['AWS_SECRET_ACCESS_KEY']}\n")
    where = ["--jobs-dir", site.jobs, "--json"]
    done = run_script("launch_job.py", "upload", record.job_id, f"{bucket}/results", *where)
    result = json.loads(done.stdout)["result"]
    names = {found.name for found in s3.objects(f"{bucket}/results/{record.job_id}")}
    assert done.returncode == 0 and result["files"] == len(names)
    assert {"job.json", "log.txt"} < names
    assert "output_dir/20260101000000/safetensors/step_3/model.safetensors" in names
    assert "canary" not in done.stdout + done.stderr
    assert "printed: [hidden]" in s3.local(f"{bucket}/results/{record.job_id}/log.txt").read_text()


def test_uploads_that_failed_are_made_up_for_and_complete_the_job(site, bucket):
    """The model and the state of a step go where the spec said, the marker of the state last."""
    missing = {}
    for below in ("safetensors/step_3", "checkpoints/step_3/policy"):
        missing[f"{bucket}/outputs/20260101000000/{below}"] = "S3-UNREACHABLE"
    folder = site.submit(uploads=missing)
    assert ended(folder).state == "ERROR"
    write_state(folder / "results/20260101000000/checkpoints/step_3/policy", 3, 3)
    done = run_script("launch_job.py", "upload", folder.name, "--jobs-dir", site.jobs, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {found.name for found in s3.objects(f"{bucket}/outputs/20260101000000")}
    assert {"safetensors/step_3/model.safetensors", "safetensors/step_3/config.json"} <= names
    state = "checkpoints/step_3/policy"
    assert {f"{state}/optimizer.safetensors", f"{state}/.rank_0_complete"} <= names
    record = jobs.Job.load(folder)
    assert (record.state, record.reason) == ("COMPLETE", "")
    assert "not_uploaded" not in record.evidence


# -- the Hub ---------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path):
    write_model(tmp_path / "hub" / "good")
    write_model(tmp_path / "hub" / "omni")
    (tmp_path / "hub" / "omni" / "config.json").write_text('{"model_type": "cosmos3_omni"}')
    good, omni = tmp_path / "hub" / "good", tmp_path / "hub" / "omni"
    with servers.hub({"lab/good": good, "lab/omni": omni, "lab/secret": good}) as server:
        yield server


LAUNCHER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cosmos_reason import cli
from cosmos_reason.jobs import engines, launch
request, words = json.loads(sys.argv[3]), json.loads(sys.argv[4])
model = lambda spec: spec["policy"]["model_name_or_path"]
engines.words = lambda _, spec, **places: [word.replace("MODEL", model(spec)) for word in words]
root = Path(sys.argv[2])

def submit(args):
    places = {"spec_path": root / "train.toml", "jobs_dir": root / "jobs", "working_dir": root}
    asked = launch.read(**request, **places, engine="transformers", action="train")
    record, found = launch.submit(asked)
    return cli.Outcome({"job_id": record.job_id if record else None}, found)

sys.exit(cli.run(cli.Parser("x"), submit, []))
"""


def submit_from_hub(site, hub, words, **request):
    """(exit code, what it said, the job's folder or None) of a submit in a
    process that uses the tests' Hub."""
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(site.root / "home")}
    env |= {"HF_TOKEN": "canary-hub-token", "HF_HUB_DISABLE_XET": "1"}
    request = {"platform": "local"} | request
    command = [sys.executable, "-c", LAUNCHER, ROOT / "scripts", site.root]
    command += [json.dumps(request), json.dumps(words)]
    done = called(command, env=os.environ | env)
    assert "canary" not in done.stdout + done.stderr
    folders = jobs.folders(site.jobs)
    return done.returncode, done.stderr, folders[0] if folders else None


@pytest.mark.promise
def test_a_hub_model_is_pinned_to_its_commit_and_recorded(site, hub):
    site.does()
    for name in ("hf_model://lab/good", "lab/good"):
        change(site, "train", policy__model_name_or_path=name)
        code, said, folder = submit_from_hub(site, hub, engines.words())
        assert code == 0, said
        record = ended(folder)
        place = Path(document.load(folder / "spec.toml")["policy"]["model_name_or_path"])
        assert place.name == servers.COMMIT and (place / "model.safetensors").is_file()
        (entry,) = [
            entry for entry in record.inputs if entry["role"] == "policy.model_name_or_path"
        ]
        assert entry["source"] == f"hf_model://lab/good@{servers.COMMIT}"
        assert entry["path"] == str(place)
    assert hub.sent.count("model.safetensors") == 1
    assert all(
        b"canary" not in path.read_bytes() for path in site.jobs.rglob("*") if path.is_file()
    )


def test_a_hub_omni_model_is_refused_before_its_weights_are_fetched(site, hub):
    change(site, "train", policy__model_name_or_path="lab/omni")
    code, said, folder = submit_from_hub(site, hub, [])
    assert code == 1 and "SPEC-MODEL-OMNI" in said
    assert "fix: scripts/prepare_cosmos3_vlm_checkpoint.py" in said
    assert hub.sent == ["config.json"] and folder is None


@pytest.mark.parametrize(
    ("name", "finding"), [("lab/secret", "HUB-GATED"), ("lab/nothing", "HUB-NOT-FOUND")]
)
def test_a_gated_and_an_unknown_model_are_exit_3(site, hub, name, finding):
    change(site, "train", policy__model_name_or_path=name)
    code, said, folder = submit_from_hub(site, hub, [])
    assert code == 3 and finding in said and folder is None


def test_a_model_whose_links_lead_to_the_cache_is_readable_in_a_container(site, hub, dockerd):
    change(site, "train", policy__model_name_or_path="lab/good")
    words = [
        "python3",
        "-c",
        "import os, sys; print(os.path.getsize(sys.argv[1] + '/model.safetensors'))",
        "MODEL",
    ]
    options = {"image": IMAGE, "network": "host"}
    code, said, folder = submit_from_hub(site, hub, words, platform="docker", **options)
    assert code == 0, said
    ended(folder)
    size = (site.root / "model" / "model.safetensors").stat().st_size
    assert progress.log_tail(folder, 1) == [str(size)]
