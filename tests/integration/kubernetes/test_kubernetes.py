"""Jobs through the real kubectl, against a server on the loopback address that keeps objects and
runs pods as processes of this machine."""

import json
import os
import shutil
import subprocess
import sys
import time

import kubernetes_api
import old_kubectl
import oracles
import pytest
import yaml
from launch_site import Site, change, ended, marked, running
from support import called, run_here

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import launch, platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import kubernetes
from cosmos_reason.jobs.platforms.kubernetes import manifests
from cosmos_reason.jobs.platforms.kubernetes import needs as kubernetes_needs
from cosmos_reason.spec import document

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl"),
]
CANARY = "canary-$(HOME)-secret"


class Cluster(Site):
    def __init__(self, root, monkeypatch):
        super().__init__(root, monkeypatch)
        (root / "api").mkdir()
        self.api = kubernetes_api.Api(root / "api")
        # kubectl keeps a cache in the home folder: each test has one of its own.
        for name, value in (("KUBECONFIG", self.api.config()), ("HOME", root / "home")):
            monkeypatch.setenv(name, str(value))
        for name in ("K8S_NAMESPACE", *filter(engines_secret, os.environ)):
            monkeypatch.delenv(name, raising=False)
        # A pod has no variable of ours but the folder that it works in.
        program = root / "program.py"
        text = program.read_text().replace('os.environ["COSMOS_REASON_JOB_ID"]', "JOB")
        named = "import os\nJOB = os.path.basename(os.getcwd())\nimport json,"
        program.write_text(text.replace("import json,", named, 1))

    def does(self, **what):
        program = str(self.root / "program.py")
        self.runs(["python3", program, str(self.jobs), json.dumps(what)])

    def request(self, action="train", **fields):
        asked = {"volume": [f"claim:{self.root}"]} | fields.pop("kubernetes", {})
        usual = {"platform": "kubernetes", "image": "image:1", "kubernetes": asked}
        return super().request(action, **usual | fields)

    def refused(self, **fields):
        """The findings of a submission that records nothing."""
        job, found = launch.submit(self.request(**fields))
        assert job is None and not jobs.folders(self.jobs) and not self.api.objects
        return {finding.id: finding for finding in found if finding.severity == "error"}


def engines_secret(name):
    return name.startswith(("HF_", "AWS_", "WANDB_", "NGC_"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    found = Cluster(tmp_path, monkeypatch)
    yield found
    found.api.stop()


@pytest.fixture(params=["the one on PATH", "1.20"])
def client(request, monkeypatch):
    if request.param == "1.20":
        monkeypatch.setenv("PATH", f"{old_kubectl.folder()}:{os.environ['PATH']}")


def seen_running(folder):
    """Waits until the record says so: the pod's work may be seen before its state."""
    deadline = time.monotonic() + 300
    while running(folder).state != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- endings -----------------------------------------------------------------------------------


@pytest.mark.promise
def test_a_whole_training_is_complete_and_a_second_one_that_is_watched(site):
    for is_watched in (False, True):
        folder = site.submit(held=is_watched)
        if is_watched:
            script = str(bundle.ROOT / "scripts/launch_job.py")
            words = [sys.executable, script, "watch", folder.name, "--every", "0", "--json"]
            with subprocess.Popen(words, cwd=site.root, stdout=subprocess.PIPE) as watching:
                lines = [watching.stdout.readline()]
                (folder / "go").touch()
                lines += watching.stdout.read().splitlines()
            states = [json.loads(line).get("state") for line in lines[:-1]]
            assert watching.returncode == 0 and states[0] != "COMPLETE" and "COMPLETE" in states
        record = ended(folder)
        assert (record.state, record.exit_code, record.reason) == ("COMPLETE", 0, "")
        assert progress.log_tail(folder, 9) == ["step 1", "step 2", "step 3"]
        made = site.api.objects["jobs", folder.name]
        assert made["metadata"]["uid"] == record.platform_ref["k8s_job"]
        assert made["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize(
    ("fate", "cause", "words"),
    [
        ("oom", "JOB-K8S-OOM", "OOMKilled"),
        ("evicted", "JOB-K8S-EVICTED", "low on resource: memory"),
        ("image", "JOB-K8S-IMAGE", "ImagePullBackOff"),
        ("config", "JOB-K8S-CONTAINER", "no such key"),
        ("deaf_volumes", "JOB-K8S-PATHS", "/no/such/claim"),
    ],
)
def test_what_the_cluster_says_of_an_end_is_one_finding(site, fate, cause, words):
    site.api.fate = fate
    record = ended(site.submit())
    assert record.state == "ERROR" and words in record.reason
    expected = [cause]
    if fate == "oom" or (fate == "evicted" and "was using" not in record.reason):
        expected.append("LOG-HOST-MEMORY")  # how much it needs is not known
    assert [finding["id"] for finding in record.diagnosis] == expected


def test_a_program_that_the_image_lacks_is_named(site):
    site.runs(["no-such-program"])
    record, _ = launch.submit(site.request())
    record = ended(record.folder)
    assert record.diagnosis[0]["id"] == "JOB-K8S-CONTAINER" and record.exit_code == 127
    assert "no-such-program: could not be started" in record.reason


@pytest.mark.parametrize(
    ("fate", "words"), [("unschedulable", "Insufficient nvidia.com/gpu"), ("refused", "team-quota")]
)
def test_why_a_job_waits_is_told_and_it_can_be_canceled(site, fate, words):
    site.api.fate = fate
    folder = site.submit()
    assert waiting(folder, words).state == "PENDING"
    assert platforms.stop(folder, grace=1).state == "CANCELED"
    assert ("jobs", folder.name) not in site.api.objects


# -- one pod that has to wait, queues, and Jobs that are gone ----------------------------------

MEET = "import os, sys, time\nif os.environ['JOB_COMPLETION_INDEX'] == '0': time.sleep(600)\n"


@pytest.mark.parametrize(
    ("fate", "words"), [("unschedulable", "Insufficient nvidia.com/gpu"), ("refused", "team-quota")]
)
def test_a_job_of_which_one_pod_waits_is_pending_and_says_so(site, monkeypatch, fate, words):
    site.api.fates = {1: fate}
    folder = as_two_nodes(site, monkeypatch, MEET)
    record = waiting(folder, words)
    assert record.state == "PENDING" and record.started_at is None
    assert "1 of 2 pods have begun, and hold their GPUs" in record.reason
    assert platforms.stop(folder, grace=1).state == "CANCELED"
    assert not site.api.of_kind("pods")


def test_a_meeting_that_never_happens_names_what_the_other_pod_waited_for(site, monkeypatch):
    site.api.fates = {1: "unschedulable"}
    folder = as_two_nodes(site, monkeypatch, f"{MEET}sys.exit(1)")
    waiting(folder, "Insufficient")
    (pod,) = site.api.processes
    site.api.end_pod(pod, 0)
    record = ended(folder)
    assert record.state == "ERROR" and record.started_at
    assert "1 of 2 pods have begun" in record.reason and "Insufficient" in record.reason


def waiting(folder, words):
    """The record once it says what it waits for."""
    deadline = time.monotonic() + 300
    while words not in (record := platforms.refresh(folder)).reason:
        assert time.monotonic() < deadline and not record.has_ended, record
        time.sleep(0.1)
    return record


@pytest.mark.parametrize("has_secret", [False, True])
def test_a_job_that_a_queue_suspends_waits_until_it_is_admitted(site, monkeypatch, has_secret):
    if has_secret:
        monkeypatch.setenv("WANDB_API_KEY", CANARY)
    site.api.has_queue = True
    folder = site.submit()
    told = "suspended: waits for admission by its queue"
    assert waiting(folder, told).state == "PENDING"
    site.api.admit(folder.name)
    assert ended(folder).state == "COMPLETE"


def test_a_job_with_the_label_of_a_queue_is_begun_by_the_queue_alone(site, monkeypatch):
    """Kueue would end the pods of one that is begun by somebody else."""
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    site.api.has_queue = True
    site.does()
    asked = {"label": ["kueue.x-k8s.io/queue-name=team-queue", "cost=a1"]}
    job, found = launch.submit(site.request(kubernetes=asked))
    assert job, found
    told = waiting(job.folder, "waits for admission by its queue team-queue")
    assert told.state == "PENDING" and told.started_at is None
    assert not [path for method, path, _ in site.api.requests if method == "PUT"]
    made = site.api.objects["jobs", job.job_id]["metadata"]["labels"]
    assert made == {"kueue.x-k8s.io/queue-name": "team-queue", "cost": "a1", "tao-job": job.job_id}
    done = run_here("launch_job.py", "status", job.job_id, cwd=site.root)
    assert done.returncode == 0 and "PENDING" in done.stdout
    site.api.admit(job.job_id)
    assert ended(job.folder).state == "COMPLETE"


def test_parts_of_gpus_are_counted_and_asked_for_by_their_own_name(site):
    mig = "nvidia.com/mig-1g.10gb"
    asked = {"gpu_resource": mig, "volume": [f"claim:{site.root}"]}
    site.api.nodes = [kubernetes_api.node(8)]
    message = site.refused(kubernetes=asked)["JOB-K8S-GPUS"].message
    assert f"got 0 ready nodes with 1 allocatable {mig}" in message
    assert "the nodes also offer nvidia.com/gpu" in message
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}  # which the cluster does not tolerate
    site.api.nodes = [kubernetes_api.node(7, resource=mig, taints=[taint])]
    assert "nvidia.com/gpu=" in site.refused(kubernetes=asked)["JOB-K8S-GPUS"].message
    asked["toleration"] = ["nvidia.com/gpu"]
    assert preflight(site, "--gpu-resource", mig, "--toleration", "nvidia.com/gpu") == {}
    site.does()
    job, found = launch.submit(site.request(kubernetes=asked))
    assert job, found
    (container,) = site.api.objects["jobs", job.job_id]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {mig: 1}
    assert ended(job.folder).state == "COMPLETE"


def test_a_running_job_that_a_queue_suspends_has_ended(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    seen_running(folder)
    site.api.suspend(folder.name)
    record = ended(folder)
    assert record.state == "ERROR" and "suspended the Job" in record.reason
    assert [finding["id"] for finding in record.diagnosis] == ["JOB-K8S-EVICTED"]
    assert ("jobs", folder.name) not in site.api.objects


def unseen(site, **what):
    """The folder of a job that has ended while nobody looked."""
    with site.monkeypatch.context() as patch:
        patch.setattr(platforms, "spawn", lambda *_: None)
        folder = site.submit(**what)
    deadline = time.monotonic() + 300
    while not site.api.objects["jobs", folder.name]["status"].get("conditions"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return folder


def test_a_job_that_was_removed_unseen_is_judged_by_what_it_left(site):
    def removed(**what):
        folder = unseen(site, **what)
        site.api.remove(folder.name)
        return ended(folder)

    record = removed()
    assert record.state == "COMPLETE" and record.evidence["last_step"] == 3
    record = removed(steps=2)
    assert record.state == "ERROR" and "stopped at step 2 of 3" in record.reason
    assert "its Job is gone from the cluster" in record.reason
    assert "log ends: step 2" in record.reason  # the pod kept its log in the job's folder
    record = removed(steps=0, model="", exit=1)
    assert record.state == "ERROR" and record.started_at is None
    assert "its Job is gone from the cluster, and was not seen to start" in record.reason


def test_a_complete_job_whose_pods_were_removed_is_complete(site):
    folder = unseen(site)
    for pod in site.api.of_kind("pods"):
        del site.api.objects["pods", pod["metadata"]["name"]]
    assert ended(folder).state == "COMPLETE"


# -- what is asked beforehand ------------------------------------------------------------------


def test_rights_that_are_missing_are_told_in_the_cluster_s_words(site):
    site.api.denied = {"create jobs"}
    assert "cannot create resource" in site.refused()["JOB-K8S-FORBIDDEN"].message
    site.api.denied = {"get jobs"}
    with pytest.raises(Failure, match="JOB-K8S-FORBIDDEN"):
        launch.submit(site.request())
    assert not jobs.folders(site.jobs)


def test_a_quota_that_is_used_up_is_told_before_submission(site):
    site.api.quota = "exceeded quota: team-quota, requested: requests.nvidia.com/gpu=1"
    assert "team-quota" in site.refused()["JOB-K8S-QUOTA"].message


@pytest.mark.parametrize(
    ("hard", "used", "words"),
    [
        ({"requests.nvidia.com/gpu": "20"}, {"requests.nvidia.com/gpu": "6"}, "room for 14"),
        ({"pods": "3"}, {"pods": "2"}, "room for 1 of pods (2 of 3 are used), expected 2"),
        ({"pods": "4", "cpu": "9"}, {"pods": "2"}, ""),
    ],
)
def test_a_quota_with_room_for_one_of_two_pods(site, hard, used, words):
    quota = {"metadata": {"name": "q", "namespace": "team", "labels": {}}, "spec": {"hard": hard}}
    site.api.objects["resourcequotas", "q"] = quota | {"status": {"hard": hard, "used": used}}
    several(site)
    _, found = launch.plan(site.request(engine="cosmos-rl"))
    told = [one.message for one in found if one.id == "JOB-K8S-QUOTA"]
    assert len(told) == bool(words) and all(words in message for message in told)


def test_who_may_make_jobs_but_no_pods_is_told_that_quotas_were_not_seen(site):
    site.api.denied = {"create pods"}
    _, found = launch.plan(site.request())
    assert [finding.id for finding in found if "UNTRIED" in finding.id]
    site.submit()


def test_gpus_that_no_node_has(site):
    site.api.nodes = [kubernetes_api.node(0), kubernetes_api.node(8, ready="False")]
    assert "0 ready nodes with 1" in site.refused()["JOB-K8S-GPUS"].message
    assert not site.refused(kubernetes={"volume": []}).keys() - {"JOB-K8S-VOLUME"}
    job, found = launch.plan(site.request(gpu_ids=[]))
    assert job.resources["gpus_per_node"] == 0 and "JOB-K8S-GPUS" not in {one.id for one in found}


def test_nodes_smaller_than_the_layout_take_several(site):
    change(site, "train", policy__parallelism__dp_replicate_size=4)
    site.api.nodes = [kubernetes_api.node(2), kubernetes_api.node(2)]
    assert site.refused()["JOB-K8S-GPUS"].fix.flags == {"--nodes": 2}
    job, found = launch.plan(site.request(nodes=2))
    assert job.resources == {"nodes": 2, "gpus_per_node": 2, "gpu_ids": None}, found
    site.api.nodes = [kubernetes_api.node(2)]
    assert str(site.refused()["JOB-K8S-GPUS"].fix) == "--gpus-per-node 2 --nodes 1"


def test_a_namespace_that_is_not_there(site):
    found = site.refused(kubernetes={"namespace": "nowhere"})
    assert "nowhere" in found["JOB-K8S-MISSING"].message


@pytest.mark.parametrize(
    ("node", "asked", "words"),
    [
        ({"labels": {"pool": "cpu"}}, {"node_selector": ["pool=gpu"]}, "--node-selector pool=gpu"),
        ({"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}, {}, "team=a"),
        ({"resource": "amd.com/gpu"}, {}, "the nodes also offer amd.com/gpu"),
        ({"resource": "nvidia.com/mig-1g.10gb"}, {}, "offer nvidia.com/mig-1g.10gb"),
    ],
)
def test_nodes_that_would_never_take_the_job(client, site, node, asked, words):
    site.api.nodes = [kubernetes_api.node(8, **node)]
    found = site.refused(kubernetes=asked)
    assert set(found) == {"JOB-K8S-GPUS"} and words in found["JOB-K8S-GPUS"].message


def test_taints_that_do_not_matter(site):
    site.api.nodes = [
        kubernetes_api.node(8, taints=[
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            {"key": "team", "value": "a", "effect": "NoExecute"},
            {"key": "busy", "effect": "PreferNoSchedule"},
        ])
    ]  # fmt: skip
    assert "JOB-K8S-GPUS" in site.refused(kubernetes={"toleration": ["team=b"]})
    assert "JOB-K8S-GPUS" in site.refused(kubernetes={"toleration": ["team:NoSchedule"]})
    for toleration in ("team", "team=a", "team=a:NoExecute"):
        asked = {"toleration": [toleration], "volume": [f"claim:{site.root}"]}
        assert launch.plan(site.request(kubernetes=asked))[0]


def test_a_claim_that_may_not_be_looked_at_is_left_to_the_cluster(site):
    site.api.denied = {"get persistentvolumeclaims"}
    _, found = launch.plan(site.request())
    assert [(one.severity, one.where) for one in found if one.id == "JOB-K8S-UNTRIED"] == [
        ("warning", "--volume")
    ]


# -- a pod that looks before the job is recorded -----------------------------------------------


@pytest.mark.parametrize(
    ("fate", "id", "words"),
    [
        ("deaf_volumes", "JOB-K8S-PATHS", "/no/such/claim"),
        ("image", "JOB-K8S-IMAGE", "ImagePullBackOff"),
        ("config", "JOB-K8S-CONTAINER", "no such key"),
        ("unschedulable", "JOB-K8S-UNPLACED", "didn't match"),
    ],
)
def test_what_a_pod_finds_is_told_and_nothing_is_recorded(
    client, site, fate, id, words, monkeypatch
):
    monkeypatch.setattr(kubernetes_needs, "PLACE_SECONDS", 0)
    site.api.fate_of_looks = fate
    site.api.unplaced = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity."
    found = site.refused(gpu_ids=[])
    assert set(found) == {id} and words in found[id].message
    assert not list(site.root.rglob(".tao-look-*"))


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("pulling", "may still be pulled"),
        ("refused", "exceeded quota: team-quota"),
        ("queued", "a queue of the cluster"),
        ("unschedulable", "Insufficient"),
    ],
)
def test_where_no_pod_could_look_that_is_said_and_the_job_goes_on(site, fate, words, monkeypatch):
    for name in ("PATIENCE", "PLACE_SECONDS"):
        monkeypatch.setattr(kubernetes_needs, name, 0)
    site.api.fate_of_looks = fate
    site.does()
    record, found = launch.submit(site.request())
    (untried,) = [one for one in found if one.id == "JOB-K8S-UNTRIED"]
    assert untried.severity == "warning" and words in untried.message
    assert ended(record.folder).state == "COMPLETE"


def test_the_pod_that_looks_is_for_a_node_that_could_get_the_job_and_is_removed(site):
    site.api.nodes = [kubernetes_api.node(0, name="cpu"), kubernetes_api.node(8, name="gpu")]
    folder = site.submit()
    (sent,) = [body for _, _, body in site.api.requests if '"name": "tao-look-' in body]
    look = json.loads(sent)["spec"]["template"]["spec"]
    assert json.dumps(look["affinity"]).count('"values": ["gpu"]') == 1
    assert str(site.root / "model") in look["containers"][0]["command"]
    assert not [one for one in site.api.of_kind("pods") if "look" in one["metadata"]["name"]]
    assert ended(folder)


def test_a_volume_that_cannot_be_mounted_is_told_while_the_job_waits(site):
    site.api.fate, site.api.events = "pulling", ["Multi-Attach error for volume pvc-1"]
    folder = site.submit()
    deadline = time.monotonic() + 300
    while "Multi-Attach" not in (record := platforms.refresh(folder)).reason:
        assert time.monotonic() < deadline, record
        time.sleep(0.1)
    assert platforms.stop(folder, grace=1).state == "CANCELED"


@pytest.mark.parametrize("how", ["locked", "gone", "unconfigured"])
def test_a_cluster_that_does_not_answer_is_an_outside_failure(site, how, monkeypatch):
    site.api.is_locked = how == "locked"
    if how == "gone":
        site.api.stop()
    if how == "unconfigured":
        monkeypatch.setenv("KUBECONFIG", str(site.root / "none"))
    expected = {"locked": "FORBIDDEN", "gone": "UNREACHABLE", "unconfigured": "UNCONFIGURED"}[how]
    with pytest.raises(Failure, match=f"JOB-K8S-{expected}") as caught:
        launch.submit(site.request())
    assert caught.value.exit_code == 3 and not jobs.folders(site.jobs)
    job, found = launch.plan(site.request())
    assert job and [one.severity for one in found if expected in one.id] == ["warning"]


def preflight(site, *more):
    """What a preflight says of the cluster: severity and message by id."""
    words = ["--platform", "kubernetes", "--spec", "train.toml", "--engine", "transformers"]
    words += ["--image", "image:1", "--volume", f"claim:{site.root}", *more, "--json"]
    done = run_here("check_tao_launch_preflight.py", *words, cwd=site.root)
    told = [one for one in json.loads(done.stdout)["findings"] if "-K8S-" in one["id"]]
    return {one["id"]: (one["severity"], one["message"]) for one in told}


def test_a_preflight_says_what_the_cluster_has_against_a_launch(site):
    given = ("--pull-secret", "registry", "--storage-class", "fast", "--namespace", "team")
    assert preflight(site, *given) == {}
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    site.api.nodes = [kubernetes_api.node(8, labels={"pool": "x"}, taints=[taint])]
    found = preflight(site, "--node-selector", "pool=x")
    assert found.keys() == {"PRE-K8S-GPUS"} and "team=a" in found["PRE-K8S-GPUS"][1]
    assert preflight(site, "--node-selector", "pool=x", "--toleration", "team") == {}
    found = preflight(site, "--node-selector", "pool=y", "--toleration", "team")
    assert "--node-selector pool=y" in found["PRE-K8S-GPUS"][1]


def test_a_preflight_without_rights(site):
    site.api.denied = {"create jobs", "list nodes", "get persistentvolumeclaims"}
    found = preflight(site)
    assert found["PRE-K8S-RIGHTS"][0] == "error"
    assert found["PRE-K8S-NODES-UNKNOWN"][0] == found["JOB-K8S-UNTRIED"][0] == "warning"


# -- kills, losses and further runs ------------------------------------------------------------


def test_cancel_asks_then_insists_and_retry_goes_on(site):
    folder = site.submit(pause=0.1, steps=500, total=500, deaf=True)
    seen_running(folder)
    record = platforms.stop(folder, grace=1)
    assert record.state == "CANCELED" and "of 500" in record.reason
    assert ("jobs", folder.name) not in site.api.objects and not site.api.of_kind("pods")
    site.does(output=record.outputs["output_dir"])
    again, found = launch.submit(launch.next_attempt(folder, site.jobs))
    assert again.retry_of == folder.name and not [one for one in found if one.severity == "error"]
    assert again.options == record.options
    assert ended(again.folder).state == "COMPLETE"


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_lost_answer_starts_nothing_twice(site, method, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    site.api.lost = {method}
    site.does()
    with pytest.raises(Failure, match="JOB-K8S-UNREACHABLE"):
        launch.submit(site.request())
    (folder,) = jobs.folders(site.jobs)
    record = ended(folder)
    if method == "PUT":
        assert record.state == "COMPLETE"
    else:
        assert record.state == "ERROR" and "interrupted before" in record.reason


def test_a_supervisor_that_was_killed_is_replaced(site):
    folder = site.submit(pause=0.2, steps=20, total=20)
    running(folder)
    # The pod's program is no child of the supervisor and has no mark of the job.
    (supervisor,) = marked(folder)[:1]
    supervisor.kill()
    assert ended(folder).state == "COMPLETE"


def test_a_cluster_that_is_out_of_reach_leaves_the_job_unknown(site):
    site.api.fate = "unschedulable"
    folder = site.submit()
    site.api.stop()
    deadline = time.monotonic() + 300
    while not jobs.is_idle(folder):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(Failure, match="JOB-OUT-OF-REACH"):
        platforms.refresh(folder)


# -- secrets, words, nodes ---------------------------------------------------------------------


def written_in(folder, words):
    """The files below the folder that hold the words."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in written if words.encode() in path.read_bytes()]


def test_a_secret_reaches_the_pod_and_nothing_else(site, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    told = site.root / "told"
    code = f"import os; open({str(told)!r}, 'w').write(os.environ['WANDB_API_KEY'])"
    site.runs(["python3", "-c", code])
    job, _ = launch.submit(site.request())
    ended(job.folder)
    assert told.read_text() == CANARY
    made = site.api.objects["secrets", job.job_id]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert not written_in(job.folder, CANARY)
    assert "WANDB_API_KEY" in (job.folder / "launch.yaml").read_text()
    others = [path for _, path, body in site.api.requests if CANARY in body + path]
    assert not others  # encoded in the Secret, whose words go through standard input


HOSTILE = ["$(HOME)", "$$", "a b", "'\"`;|&", "new\nline", "-dash", "ünï", "{{x}}", "x" * 4000]


def test_words_reach_the_program_as_data(site):
    told = site.root / "told"
    code = f"import json, sys; json.dump(sys.argv[1:], open({str(told)!r}, 'w'))"
    site.runs(["python3", "-c", code, *HOSTILE])
    job, _ = launch.submit(site.request())
    ended(job.folder)
    assert json.loads(told.read_text()) == HOSTILE
    documents = list(yaml.safe_load_all((job.folder / "launch.yaml").read_text()))
    assert documents[0]["metadata"]["name"] == job.job_id


def several(site, nodes=2):
    key = "policy__parallelism__dp_{}_size"
    sizes = {key.format("shard"): 8 if nodes > 1 else 1, key.format("replicate"): nodes}
    change(site, "train", **sizes)


def with_names(site):
    """Gives pods the cluster's DNS: addresses by the number in a pod's name. Returns a folder on
    their PATH."""
    tools = site.root / "tools"
    tools.mkdir()
    (tools / "sitecustomize.py").write_text(
        "import socket\nsocket.gethostbyname = "
        "lambda name: '10.0.0.%d' % (1 + int(name.split('.')[0][-1]))\n"
    )
    site.api.variables = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(tools)}
    return tools


def as_two_nodes(site, monkeypatch, program):
    """The folder of a job of two nodes, with a program in cosmos-rl's place."""
    several(site)
    tools = with_names(site)
    stand_in = tools / "cosmos-rl"
    stand_in.write_text(f"#!/usr/bin/env python3\n{program}")
    stand_in.chmod(0o755)
    job, found = launch.submit(site.request(engine="cosmos-rl"))
    assert job, found
    return job.folder


def test_two_nodes_start_one_launcher_each(site, monkeypatch):
    folder = as_two_nodes(
        site,
        monkeypatch,
        "import json, os, sys\nname = 'told-' + os.environ['JOB_COMPLETION_INDEX']\n"
        "json.dump([sys.argv[1:], dict(os.environ)], open(name, 'w'))\nprint('node', name)\n",
    )
    record = ended(folder)
    assert record.resources == {"nodes": 2, "gpus_per_node": 8, "gpu_ids": None}
    assert "no step was recorded" in record.reason  # by the program in cosmos-rl's place
    common = ["--num-workers", "2", "--worker-idx"]
    nodes = ["--node-ip-list", "10.0.0.1;10.0.0.2"]
    for index, place in ((0, ["--port", "8000"]), (1, ["--url", "10.0.0.1:8000"])):
        words, variables = json.loads((folder / f"told-{index}").read_text())
        config = ["--config", str(folder / "container.toml")]
        script = str(folder / "skill/scripts/train_with_cosmos_rl.py")
        assert words == [*common, str(index), *nodes, *place, *config, script]
        assert os.path.exists(script) and "COSMOS_REASON_ONE_NODE" not in variables
        assert variables["COSMOS_REDIS_NO_TLS"] == "1"
    assert "node told-1" in (folder / "node-1.log").read_text()
    service = site.api.objects["services", folder.name]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["ownerReferences"][0]["name"] == folder.name


def test_a_node_that_fails_ends_all(site, monkeypatch):
    program = (
        "import os, sys, time\nprint('begun', flush=True)\n"
        "if os.environ['JOB_COMPLETION_INDEX'] == '1': sys.exit(7)\ntime.sleep(600)"
    )
    record = ended(as_two_nodes(site, monkeypatch, program))
    assert record.state == "ERROR" and record.exit_code in (7, 128 + 15)
    assert "begun" in (record.folder / "node-1.log").read_text()


# -- the command line --------------------------------------------------------------------------


def launched(site, *words):
    """What launch_job.py prints; it must end in order."""
    done = run_here("launch_job.py", *words, cwd=site.root)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


OF_NODE_0 = """#!/usr/bin/env python3
import os, sys
if os.environ["JOB_COMPLETION_INDEX"] != "0":
    sys.exit(print("another node"))
os.execvp("python3", ["python3", *sys.argv[sys.argv.index("--") + 1 :]])
"""


def said_by_others(folder):
    """The last lines of the logs of all nodes but the first."""
    return [path.read_text().splitlines()[-1] for path in sorted(folder.glob("node-*.log"))]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_life_of_a_job_by_commands(client, site, nodes):
    """Submit, watch, logs; then cancel, logs and retry of one that would run on."""
    several(site, nodes)
    program = with_names(site) / "program-of-node-0"
    program.write_text(OF_NODE_0)
    program.chmod(0o755)
    words = ["train", "--spec", "train.toml", "--platform", "kubernetes", "--image", "image:1"]
    words += ["--engine", "transformers", "--volume", f"claim:{site.root}", "--nodes", str(nodes)]

    def does(**what):
        words = ["--", str(site.root / "program.py"), str(site.jobs), json.dumps(what)]
        site.runs([program.name, *words])

    does(total=3)
    first = launched(site, "submit", *words).split()[0]
    told = [json.loads(line) for line in launched(site, "watch", first, "--json").splitlines()]
    assert told[-2]["state"] == "COMPLETE" and told[-1]["result"]["job_id"] == first
    steps = ["step 1", "step 2", "step 3"]
    assert launched(site, "logs", first).splitlines()[-3:] == steps
    assert said_by_others(site.jobs / first) == ["another node"] * (nodes - 1)
    does(pause=0.1, steps=500, total=500)
    second = launched(site, "submit", *words).split()[0]
    running(site.jobs / second)
    deadline = time.monotonic() + 300  # the supervisor comes to it when it sees the pod run
    while "step 1" not in launched(site, "logs", second, "--lines", "0").splitlines():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "CANCELED" in launched(site, "cancel", second, "--grace", "1")
    assert "step 1" in launched(site, "logs", second, "--lines", "0").splitlines()
    assert said_by_others(site.jobs / second) == ["another node"] * (nodes - 1)
    assert second not in {one["metadata"]["name"] for one in site.api.of_kind("jobs")}
    does(total=3, output=str(site.jobs / second / "results"))
    third = launched(site, "retry", second).split()[0]
    assert "COMPLETE" in launched(site, "watch", third)


# -- what is sent ------------------------------------------------------------------------------

SHAPES = [
    ("train", "transformers", {}),
    ("train", "transformers", {"nodes": 2, "gpu_ids": []}),
    ("train", "cosmos-rl", {}),
    ("grpo", "cosmos-rl", {}),
    ("evaluate", "transformers", {"gpu_ids": []}),
    ("inference", "tao", {"image": None}),
    ("inference", "transformers", {"endpoint": "http://server:8000/v1", "served_model": "m"}),
    ("train", "tao", {"image": None}),
    ("train", "cosmos-rl", {"nodes": 2}),
    ("train", "transformers", {"nodes": 2}),
    ("train", "transformers", {"gpu_ids": []}),
    ("evaluate", "transformers", {}),
    ("evaluate", "tao", {"image": None}),
    ("evaluate", "transformers", {"endpoint": "http://server:8000/v1", "served_model": "m"}),
    ("inference", "transformers", {}),
    ("quantize", "transformers", {}),
    ("quantize", "tao", {"image": None}),
    ("grpo", "cosmos-rl", {"nodes": 2}),
]
ALL_FLAGS = {
    "pull_secret": "registry",
    "node_selector": ["nvidia.com/gpu.product=H100", "zone="],
    "toleration": ["nvidia.com/gpu", "dedicated=team:NoSchedule"],
}
OF_A_POD = {"cpus": 7, "memory": "64G"}
VALIDATE = """
import json, sys, kubernetes_validate
documents = json.load(sys.stdin)
versions = kubernetes_validate.utils.all_versions()
for version in versions:
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
print(len(documents), len(versions))
"""


def write_specs(site):
    """Of the actions that the site has none of."""
    (site.root / "media" / "0.mp4").write_bytes(b"x")
    inference = document.template("inference")
    inference |= {"model_path": "model", "media": "media", "prompt": "Which?", "results_dir": ""}
    document.dump(inference, site.root / "inference.toml")
    quantize = document.template("quantize")
    quantize["model"]["model_path"] = "model"
    quantize["dataset"] |= {"annotation_path": "a.json", "media_dir": "media"}
    quantize["results_dir"] = ""
    document.dump(quantize, site.root / "quantize.toml")
    grpo = document.template("grpo")
    grpo["custom"]["train_dataset"] = {"annotation_path": "a.json", "media_path": "media"}
    grpo["policy"]["model_name_or_path"] = "model"
    grpo["train"]["output_dir"] = ""
    document.dump(grpo, site.root / "grpo.toml")


def test_every_manifest_is_what_the_published_schemas_want(site, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    write_specs(site)
    labels = {"nvidia.com/gpu.product": "H100", "zone": ""}
    site.api.nodes = [kubernetes_api.node(8, name=name, labels=labels) for name in ("a", "b")]
    sent = []
    for action, engine, fields in SHAPES:
        several(site, fields.get("nodes", 1))
        asked = site.request(action, engine=engine, kubernetes=ALL_FLAGS, **OF_A_POD, **fields)
        folder = site.jobs / f"{action}-20260101-000000-0a1b2c"
        job, spec, found = launch._prepare(launch._in_folder(asked, folder), acting=False)
        assert job, (action, engine, found)
        work = kubernetes._work(job, spec)
        shown = list(yaml.safe_load_all(manifests.shown(work)))
        assert len(shown) == job.resources["nodes"]
        sent += [*shown, manifests.look(work, ["a", "b"]), manifests.look(work, [])]
    submitted, _ = launch.submit(asked)
    assert submitted
    made = [(path, body) for method, path, body in site.api.requests if method in ("POST", "PUT")]
    sent += [json.loads(body) for path, body in made if "namespaces" in path]
    folder = oracles.kubernetes_validate()
    done = called(
        [sys.executable, "-c", VALIDATE],
        input=json.dumps(sent),
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    documents, versions = map(int, done.stdout.split())
    assert documents > 3 * len(SHAPES) and versions > 10
