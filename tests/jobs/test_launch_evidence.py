"""What proves a job's ending, and what does not: odd result files, shared folders, long logs,
secrets."""

import json
import math
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_site import LOG_PREFIX, MODEL_CONFIG, Site, change, ended, running, write_model
from support import run_script

from cosmos_reason.base import files as storage
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import claims, evidence, launch, platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document

WRITE = """
import json, os, pathlib, sys
for name, text in json.loads(sys.argv[2]).items():
    path = pathlib.Path(sys.argv[1], os.environ["COSMOS_REASON_JOB_ID"], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("JOB_ID", os.environ["COSMOS_REASON_JOB_ID"]))
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def submit_writer(site, action, files):
    site.runs([sys.executable, "-c", WRITE, str(site.jobs), json.dumps(files)])
    record, found = launch.submit(site.request(action))
    assert record.job_id, found
    return site.jobs / record.job_id


def in_folder(site, action, folder):
    change(site, action, **{"train__output_dir" if action == "train" else "results_dir": folder})


@pytest.mark.parametrize(
    ("losses", "rose"),
    [
        ([6.2, 25.0, 160.0, *[80.0] * 10, *[14.5] * 17], [6.2, 14.5]),  # measured, at a rate of 1
        ([6.2, 4.0, *[1.0] * 27, 30.0], None),  # one odd batch at the end
        ([0.1, *[0.9] * 29], None),  # a first batch by luck
        ([1.5, *[3.0] * 29], None),  # twice as high is not yet a rise
        ([1.5, *[3.1] * 29], [1.5, 3.1]),
        ([1.5, *[3.1] * 19], [1.5, 3.1]),  # the fewest losses that tell
        ([1.5, *[3.1] * 18], None),
        ([float("nan"), *[3.0] * 29], None),
        ([1.0, *[40.0] * 4], None),  # too few to tell
        ([1.0] * 20 + [float("nan")] * 10, None),
    ],
)
def test_a_training_that_diverged_is_complete_and_says_so(site, losses, rose):
    steps = len(losses)
    job = ended(site.submit(losses=losses, steps=steps, total=steps))
    assert job.state == "COMPLETE" and job.evidence.get("loss_rose") == rose
    assert ("the training diverged" in job.reason) == bool(rose)
    count = sum(math.isnan(loss) for loss in losses)
    said = f"{count} of {steps} values of train/loss are no numbers"
    assert (said in job.reason) == (count > 0)


@pytest.mark.parametrize(
    "rows", ['{"a": 1}', "[1]", "123", "[]", '[{"id": []}, {"id": []}]', "{", "null"]
)
@pytest.mark.parametrize("evaluation", ['{"questions": 2}', "[]", '{"questions": "x"}'])
def test_results_of_any_form_end_the_job(site, rows, evaluation):
    results = site.root / "jobs" / "job" / "results"
    results.mkdir(parents=True)
    (results / "results.json").write_text(rows)
    (results / "evaluation.json").write_text(evaluation)
    record = {"action": "evaluate", "engine": "transformers"}
    record["outputs"] = {"results_dir": str(results)}
    _, missing = evidence.gather(jobs.Job.from_json(results.parent, record))
    assert missing


def test_a_badly_formed_result_is_an_error_and_the_list_goes_on(site):
    files = {
        "results/results.json": '{"a": 1}',
        "results/evaluation.json": '{"questions": 1, "job_id": "JOB_ID"}',
    }
    folder = submit_writer(site, "evaluate", files)
    record = ended(folder)
    assert record.state == "ERROR" and "no list of rows" in record.reason
    torn = site.jobs / "train-20250101-000000-abcdef"
    torn.mkdir()
    storage.write_json(torn / "job.json", {"job_id": torn.name, "state": "RUNNING"})
    done = run_script("launch_job.py", "list", "--jobs-dir", site.jobs)
    assert (
        done.returncode == 1 and "JOB-RECORD-BROKEN" in done.stderr and folder.name in done.stdout
    )


def answered(rows, questions=1, author="JOB_ID"):
    """The files of an inference by the embedded engine."""
    noted = json.dumps({"questions": questions, "job_id": author})
    return {"predictions.json": rows, "inference.json": noted}


ONE, TWO = '[{"error": null}]', '[{"error": null}, {"error": null}]'
OURS, TAO = "transformers", "tao"


@pytest.mark.parametrize(
    ("engine", "files", "missing"),
    [
        (OURS, answered(ONE) | {"astatus.json": '{"a": 1}\n{"b": 2}'}, ""),
        (OURS, answered('[{"error": "x"}, {"error": "x"}]', 2), "every row is an error"),
        (OURS, {"predictions.json": ONE}, "JOB-EVIDENCE"),
        (OURS, answered(ONE, author="another"), "JOB-EVIDENCE"),
        (OURS, answered(ONE, 2), "PATH has 1 rows for 2 questions"),
        (OURS, answered(TWO, 1), "PATH has 2 rows for 1 questions"),
        (OURS, answered('[{"id": "a"}, {"id": "a"}]', 2), "PATH has two rows with the same id"),
        (TAO, {"status.json": '{"status": "STARTED"}'}, "no results.json"),
        (TAO, {"a.mp4/results.json": ONE}, "1 results.json was written"),
        (TAO, {"a.mp4/results.json": ONE, "b.mp4/results.json": ONE}, ""),
    ],
)
def test_an_inference_is_complete_with_answers_in_its_own_file(tmp_path, engine, files, missing):
    for name, text in files.items():
        (tmp_path / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "results" / name).write_text(text.replace("JOB_ID", tmp_path.name))
    (tmp_path / "media").mkdir()
    for name in ("a.mp4", "b.mp4", ".hidden"):
        (tmp_path / "media" / name).touch()
    document.dump(
        document.template("inference") | {"media": str(tmp_path / "media")}, tmp_path / "spec.toml"
    )
    record = {"action": "inference", "engine": engine}
    record["outputs"] = {"results_dir": str(tmp_path / "results")}
    record["spec"] = {"path": str(tmp_path / "spec.toml")}
    found, said = evidence.gather(jobs.Job.from_json(tmp_path, record))
    path = str(tmp_path / "results" / "predictions.json")
    assert missing in said.replace(path, "PATH") and bool(said) == bool(missing)
    assert missing or found["rows"] == (1 if engine == "transformers" else len(files))


HEADER = '{"w_scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
MEDIA = ("<|image_pad|>", "<|video_pad|>")
ADDED = [{"id": number, "content": word} for number, word in enumerate(MEDIA, 1)]
QUANTIZED = {  # a whole result, its scale 2.0
    "results/model.safetensors": f"{chr(len(HEADER))}{chr(0) * 7}{HEADER}{chr(0) * 3}@",
    "results/config.json": MODEL_CONFIG,
    "results/tokenizer.json": json.dumps({"added_tokens": ADDED, "model": {}}),
    "results/tokenizer_config.json": "{}",
    "results/preprocessor_config.json": "{}",
    "results/chat_template.json": json.dumps({"chat_template": "".join(MEDIA)}),
}
RECORD = {"job_id": "JOB_ID", "verdict": "4 % lost", "trial": {}, "accuracy": None}
TRIED = RECORD | {"trial": {"question": "?", "answer": "left"}}


@pytest.mark.parametrize(
    ("record", "asked", "without", "reason"),
    [
        (TRIED, "", "", ""),
        (TRIED | {"accuracy": {"paired": 4}}, "a.json", "", ""),
        (None, "", "", "no quantized model was written"),
        (TRIED | {"job_id": "quantize-1"}, "", "", "was written by quantize-1"),
        (RECORD, "", "", "answered nothing"),
        (TRIED, "a.json", "", "were not compared"),
        (TRIED, "", "results/tokenizer.json", "tokenizer.json"),
        (TRIED, "", "results/model.safetensors", "CKPT-INDEX-MISSING"),
    ],
)
def test_a_quantization_is_complete_with_a_whole_model_that_answered(
    site, record, asked, without, reason
):
    spec = document.template("quantize")
    spec["model"]["model_path"] = "model"
    spec["evaluation"]["annotation_path"] = asked
    document.dump(spec, site.root / "quantize.toml")
    files = {name: text for name, text in QUANTIZED.items() if name != without}
    if record:
        files["results/quantization.json"] = json.dumps(record)
    job = ended(submit_writer(site, "quantize", files))
    assert job.state == ("ERROR" if reason else "COMPLETE")
    assert reason in job.reason
    if not reason:
        assert job.evidence["verdict"] == "4 % lost"


def test_a_folder_has_one_job_at_a_time_and_what_stood_there_proves_nothing(site):
    in_folder(site, "evaluate", "shared")
    rows = {
        "../shared/results.json": '[{"id": "a"}]',
        "../shared/evaluation.json": '{"questions": 1, "job_id": "JOB_ID"}',
    }
    first = submit_writer(site, "evaluate", {f"../{name}": text for name, text in rows.items()})
    assert ended(first).state == "COMPLETE"
    second = submit_writer(site, "evaluate", {"x": ""})  # within the same second
    assert "no results.json was written" in ended(second).reason
    site.does(pause=0.5, steps=50, total=50)
    third = site.jobs / launch.submit(site.request("evaluate"))[0].job_id
    running(third)
    in_folder(site, "evaluate", "shared/below")
    (busy,) = errors(launch.submit(site.request("evaluate"))[1])
    assert busy.id == "JOB-OUTPUT-BUSY" and third.name in str(busy.fix)
    assert len(jobs.folders(site.jobs)) == 3
    platforms.stop(third, grace=0)
    site.does(steps=0, model=False)
    record, found = launch.submit(site.request("evaluate"))
    assert not errors(found), found
    ended(site.jobs / record.job_id)


def errors(found):
    return [one for one in found if one.severity == "error"]


def elsewhere(site, **fields):
    """A request as another terminal makes it, in another folder: with other jobs."""
    return site.request(jobs_dir=site.root / "other jobs", **fields)


@pytest.mark.parametrize("written", ["link", "out/../out/.", "out/below", "link/below"])
def test_an_output_folder_is_one_jobs_by_whatever_name_and_jobs_dir(site, written):
    (site.root / "out").mkdir()
    (site.root / "link").symlink_to(site.root / "out")
    in_folder(site, "train", "out")
    first = site.submit(pause=0.3, steps=50, total=50)
    running(first)
    in_folder(site, "train", written)
    for request in (site.request(), elsewhere(site)):
        (busy,) = errors(launch.submit(request)[1])
        assert busy.id == "JOB-OUTPUT-BUSY" and str(busy.fix) == jobs.command("watch", first)
    assert not (site.root / "other jobs").exists() and not (site.root / "out" / "below").exists()
    platforms.stop(first, grace=0)
    assert launch.submit(elsewhere(site))[0].job_id


def test_the_results_of_a_job_at_work_are_nobody_elses_and_of_two_submits_one_wins(site):
    first = site.submit(pause=0.3, steps=50, total=50)
    running(first)
    in_folder(site, "train", str(first / "results" / "mine"))
    assert [one.id for one in errors(launch.submit(elsewhere(site))[1])] == ["JOB-OUTPUT-BUSY"]
    platforms.stop(first, grace=0)
    in_folder(site, "train", "fresh")
    found = []
    requests = [site.request(), elsewhere(site), site.request(jobs_dir=site.root / "third")]
    threads = [
        threading.Thread(target=lambda request=one: found.append(launch.submit(request)))
        for one in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (record,) = [record for record, problems in found if not errors(problems)]
    platforms.stop(Path(record.spec["path"]).parent, grace=0)


def test_a_claim_of_another_machine_is_believed_until_it_is_taken_away(site):
    site.does()
    claim = site.root / "out" / claims.CLAIM
    claim.parent.mkdir()
    in_folder(site, "train", "out")
    for text, refused in (
        ('{"job": "/far/train-20250101-000000-abcdef", "host": "far"}', True),
        ("{", False),
    ):
        claim.write_text(text)
        found = errors(launch.submit(site.request())[1])
        assert [one.id for one in found] == ["JOB-OUTPUT-BUSY"] * refused
        assert not refused or (str(claim) in found[0].message and not found[0].fix)


@pytest.mark.parametrize("marked", ["train-20250101-000000-abcdef", ""])
def test_a_checkpoint_of_another_run_is_no_evidence(site, marked):
    """As the engine leaves one that is started by hand in the folder of a job at work."""
    record = ended(site.submit(marked=marked))
    assert record.state == "ERROR" and "none that this job wrote" in record.reason


def left(records, *lost):
    return {"records": records, "left_out": [{"record": number, "id": "r"} for number in lost]}


def test_records_that_a_training_left_out_stand_in_the_reason_of_its_end(site):
    lost = {"training": left(1200, 3, 5, 8), "validation": left(40)}
    record = ended(site.submit(left_out=lost))
    path = Path(record.evidence["checkpoint"]).parents[1] / "left_out.json"
    told = f"their media could not be read ({path} names them)"
    assert (record.state, record.reason) == (
        "COMPLETE",
        f"3 of 1,200 records were left out: {told}",
    )
    evidence_of_it = {"records": 1200, "skipped_records": 3, "left_out": str(path)}
    assert record.evidence.items() >= evidence_of_it.items()
    assert "validation_records" not in record.evidence
    lost["validation"] = left(40, 2)
    record = ended(site.submit(left_out=lost))
    assert "1 of 40 validation records were left out" in record.reason
    assert record.evidence["skipped_validation_records"] == 1


def test_a_list_of_left_out_records_in_another_form_is_no_traceback(site):
    record = ended(site.submit(left_out={"training": [3]}))
    assert record.state == "ERROR" and "another form than expected" in record.reason


def test_rows_of_another_run_are_no_evidence(site):
    files = {
        "results/results.json": '[{"id": "a"}]',
        "results/evaluation.json": '{"questions": 1, "job_id": null}',
    }
    record = ended(submit_writer(site, "evaluate", files))
    assert record.state == "ERROR" and "written by no job" in record.reason


@pytest.mark.parametrize(("limit", "questions"), [(0, 4), (1, 1), (3, 3), (9, 4)])
def test_an_evaluation_of_tao_is_counted_against_its_annotations(tmp_path, limit, questions):
    """It leaves no count of its own; a limit of 0 is none."""
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a"}]
    records = [{"id": str(n), "video": "a.mp4", "conversations": turns} for n in range(4)]
    storage.write_json(tmp_path / "a.json", records)
    spec = {"dataset": {"annotation_path": str(tmp_path / "a.json")}}
    document.dump(spec | {"evaluation": {"limit": limit}}, tmp_path / "spec.toml", "evaluate")
    results = tmp_path / "results.json"
    job = SimpleNamespace(
        action="evaluate",
        engine="tao",
        outputs={"results_dir": str(tmp_path)},
        options={},
        spec_path=tmp_path / "spec.toml",
        wrote=list,
    )
    for count in {questions - 1, questions, questions + 1} - {0}:
        storage.write_json(results, [{"response": "a"}] * count)
        found, fault = evidence._of_rows(job)
        assert (found["rows"], found["questions"]) == (count, questions)
        assert (fault == "") == (count == questions)


def test_a_job_whose_output_another_one_claimed_has_no_evidence(site):
    """Its record was deleted, or a file system without locks let both in."""
    in_folder(site, "train", "out")
    folder = site.submit(pause=0.2, output=str(site.root / "out"))
    (site.root / "out" / claims.CLAIM).write_text(
        '{"job": "/x/train-20250101-000000-abcdef", "host": "here"}'
    )
    assert "now belongs to train-20250101-000000-abcdef" in ended(folder).reason


@pytest.mark.parametrize("folder", ["/", "/tmp", "media", ".", "jobs", "../"])
def test_an_output_that_holds_more_than_the_jobs_own_is_refused(site, folder):
    in_folder(site, "train", folder)
    _, found = launch.submit(site.request())
    (finding,) = [one for one in found if one.severity == "error"]
    assert finding.id == "JOB-OUTPUT-SHARED" and str(finding.fix) == "--set train.output_dir=DIR"
    assert not site.jobs.exists()


def test_the_last_step_counts_however_long_the_log_goes_on(tmp_path):
    steps = "".join(
        f"{LOG_PREFIX}Step: {n}/3, Loss: 0.5, Iteration time: 1.00s\n" for n in (1, 2, 3)
    )
    (tmp_path / jobs.LOG).write_text(
        steps + "a line of what the trainer says at the end of its work\n" * 7000
    )
    (tmp_path / "out").mkdir()
    record = {"action": "train", "outputs": {"output_dir": str(tmp_path / "out")}}
    found, missing = evidence.gather(jobs.Job.from_json(tmp_path, record))
    assert found["last_step"] == 3 and missing.endswith("no model of the last step")
    # Who turned saving off is told so; cosmos-rl then makes no folder at all.
    (tmp_path / "out").rmdir()
    (tmp_path / jobs.SPEC).write_text("[train.ckpt]\nenable_checkpoint = false\n")
    found, missing = evidence.gather(jobs.Job.from_json(tmp_path, record))
    assert found["last_step"] == 3
    assert missing.endswith("no model of the last step: train.ckpt.enable_checkpoint is false")


def test_a_secret_that_the_work_prints_is_hidden_in_all_that_is_said_of_the_job(site):
    site.monkeypatch.setenv("HF_TOKEN", "canary-token")
    site.monkeypatch.setenv("SERVER_KEY", "canary-of-an-endpoint")
    fail = (
        "import os, sys; print('failed with', os.environ['HF_TOKEN'], os.environ['SERVER_KEY']); "
        "sys.exit(1)"
    )
    site.runs([sys.executable, "-c", fail])
    record, _ = launch.submit(site.request())
    folder = site.jobs / record.job_id
    assert "failed with [hidden]" in ended(folder).reason
    for verb in (["status"], ["logs"], ["watch"], ["watch", "--json"]):
        done = run_script("launch_job.py", verb[0], folder.name, *verb[1:], "--jobs-dir", site.jobs)
        assert "canary" not in done.stdout + done.stderr and "hidden" in done.stdout + done.stderr
    assert "canary" not in (folder / "job.json").read_text()


def test_numbers_that_json_does_not_have_and_values_that_are_no_numbers(site):
    folder = site.submit()
    ended(folder)
    with open(folder / jobs.METRICS, "a") as handle:
        handle.write(
            '{"step": 3, "total_steps": 3, "time": NaN, "train/loss": NaN, '
            '"gpu/memory_gib": "much"}\n[]\n'
        )
        handle.write('{"step": "last", "train/grad_norm": Infinity}\n')
    for verb in ("status", "watch"):
        done = run_script("launch_job.py", verb, folder.name, "--json", "--jobs-dir", site.jobs)
        assert done.returncode == 0 and "NaN" not in done.stdout and "Infinity" not in done.stdout
        assert (
            run_script("launch_job.py", verb, folder.name, "--jobs-dir", site.jobs).returncode == 0
        )
    assert progress.newest(folder)["step"] == 3 and "gpu/memory_gib" not in progress.newest(folder)


def test_a_log_without_steps_is_read_once(tmp_path):
    (tmp_path / jobs.LOG).write_text("loading\n" * 1000)
    _, position = progress.read_metrics(tmp_path)
    assert position == (jobs.LOG, 8000)
    with open(tmp_path / jobs.LOG, "a") as handle:
        handle.write("Step: 1/2, Loss: 0.5\n")
    lines, _ = progress.read_metrics(tmp_path, position)
    assert [line["step"] for line in lines] == [1]


def test_a_broken_record_among_many_holds_no_folder(site):
    in_folder(site, "train", "out")
    (site.jobs / "train-20250101-000000-abcdef").mkdir(parents=True)
    (site.jobs / "train-20250101-000000-abcdef" / "job.json").write_text("{")
    site.does()
    record, _ = launch.submit(site.request())
    assert record.outputs["output_dir"] == str(site.root / "out")
    ended(site.jobs / record.job_id)


def test_an_evaluation_of_checkpoints_needs_whole_results_for_each(site):
    checkpoints = [str(site.root / "model"), str(site.root / "none")]
    with pytest.raises(Failure, match="CKPT-OUTPUT-MISSING"):
        launch.submit(site.request("evaluate", checkpoints=checkpoints))
    # A train output, which then stands for its model.
    write_model(site.root / "none" / "20260101000000" / "safetensors" / "step_9")
    files = {"results/a/results.json": "[{}]"}
    site.runs([sys.executable, "-c", WRITE, str(site.jobs), json.dumps(files)])
    record, _ = launch.submit(site.request("evaluate", checkpoints=checkpoints))
    assert "1 results.json" in ended(site.jobs / record.job_id).reason
    for name in "ab":
        files[f"results/{name}/results.json"] = '[{"id": "a"}]'
        files[f"results/{name}/evaluation.json"] = '{"questions": 1, "job_id": "JOB_ID"}'
    site.runs([sys.executable, "-c", WRITE, str(site.jobs), json.dumps(files)])
    record, _ = launch.submit(site.request("evaluate", checkpoints=checkpoints))
    record = ended(site.jobs / record.job_id)
    assert (
        record.state == "COMPLETE" and record.evidence["rows"] == record.evidence["questions"] == 2
    )
    with pytest.raises(Failure, match="JOB-NOT-FAILED"):
        launch.submit(launch.next_attempt(site.jobs / record.job_id, site.jobs))


def test_an_evaluation_with_a_guard_needs_both_results_whole(site):
    (site.root / "general.json").write_text("[]")
    change(site, "evaluate", guard__annotation_path="general.json")
    own = {
        "results/results.json": '[{"id": "a"}]',
        "results/evaluation.json": '{"questions": 1, "job_id": "JOB_ID"}',
    }
    record = ended(submit_writer(site, "evaluate", own))
    assert record.state == "ERROR" and "1 results.json" in record.reason
    assert str(site.root / "general.json") in [entry["path"] for entry in record.inputs]
    general = {name.replace("/", "/guard/"): text for name, text in own.items()}
    short = own | {"results/guard/results.json": general["results/guard/results.json"]}
    short["results/guard/evaluation.json"] = '{"questions": 2, "job_id": "JOB_ID"}'
    record = ended(submit_writer(site, "evaluate", short))
    assert record.state == "ERROR" and "1 rows for 2 questions" in record.reason
    record = ended(submit_writer(site, "evaluate", own | general))
    assert record.state == "COMPLETE" and record.evidence["rows"] == 2


def test_a_checkpoint_that_was_cut_afterwards_is_no_complete_job(site):
    folder = site.submit()
    assert ended(folder).state == "COMPLETE"
    words = ("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs, "--json")
    assert run_script(*words).returncode == 0
    (weights,) = folder.glob("results/*/safetensors/*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4])
    done = run_script(*words)
    document = json.loads(done.stdout)
    errors = [one["id"] for one in document["findings"] if one["severity"] == "error"]
    assert (done.returncode, errors) == (1, ["JOB-CHECKPOINT-DAMAGED"])
    assert document["result"]["state"] == "ERROR"
    later = time.time() + 5  # a list looks into models that were changed after the end
    os.utime(weights, (later, later))
    listed = json.loads(run_script("launch_job.py", "list", *words[3:]).stdout)["result"]
    assert listed["states"] == {"ERROR": 1} and "damaged" in listed["jobs"][0]["reason"]


@pytest.mark.parametrize(("do", "verb"), [({"signal": 9}, "retry"), ({"exit": 3}, "logs")])
def test_a_killed_job_is_to_be_tried_again_and_a_failed_one_to_be_read(site, do, verb):
    folder = site.submit(model="", **do)
    assert ended(folder).state == "ERROR"
    found = json.loads(run_script("diagnose_log.py", folder, "--json").stdout)["findings"]
    (told,) = [one for one in found if one["id"] == "LOG-UNKNOWN"]
    assert f"launch_job.py {verb} {folder.name}" in told["fix"]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.json", "config.json"])
def test_no_file_beside_the_weights_may_be_cut_afterwards(site, name, cut):
    folder = site.submit()
    assert ended(folder).state == "COMPLETE"
    (weights,) = folder.glob("results/*/safetensors/*/model.safetensors")
    path = weights.with_name(name)
    path.write_text(path.read_text()[:cut])
    done = run_script("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs, "--json")
    assert done.returncode == 1 and "JOB-CHECKPOINT-DAMAGED" in done.stdout
    done = run_script("publish_checkpoint.py", weights.parent, "--s3", "s3://bucket/m", "--json")
    assert done.returncode == 1, done.stdout


def test_a_model_that_was_deleted_is_told(site):
    folder = site.submit()
    assert ended(folder).state == "COMPLETE"
    (weights,) = folder.glob("results/*/safetensors/*/model.safetensors")
    shutil.rmtree(weights.parent)
    done = run_script("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs, "--json")
    (told,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, told["id"]) == (0, "JOB-CHECKPOINT-GONE")
