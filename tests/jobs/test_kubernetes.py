"""What is written for Kubernetes, and what its answers mean, without a cluster."""

import dataclasses
import json

import pytest
import yaml
from huggingface_hub import constants
from launch_site import Site, change

from cosmos_reason.base import bundle
from cosmos_reason.jobs import containers, launch, mounts
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import kubernetes
from cosmos_reason.jobs.platforms.kubernetes import kubectl, manifests, needs, options, pods
from cosmos_reason.spec import document


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))  # no kubectl
    return Site(tmp_path, monkeypatch)


def work(**fields):
    usual = {
        "name": "train-20260101-000000-0a1b2c", "image": "image:1", "words": ["program", "$(HOME)"],
        "environment": {"A": "$B"}, "secret_variables": ["HF_TOKEN"], "working_dir": "/data/jobs/j",
        "volumes": [("data", "/data"), ("results", "/results"), ("data", "/more")],
        "writable": ["/data"], "looked_for": [("-e", "/data/$x")], "user": (1000, 1000, [7]),
    }  # fmt: skip
    return manifests.Work(**usual | fields)


def test_a_job_is_tried_once_by_who_launched_it_and_sees_its_volumes_only():
    spec = manifests.job(work(gpus=8))["spec"]
    assert spec["backoffLimit"] == 0 and "completionMode" not in spec
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsUser"] == 1000 and "fsGroup" not in pod["securityContext"]
    container = pod["containers"][0]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/results"]["readOnly"] and "readOnly" not in mounts["/data"]
    assert mounts["/data"]["name"] == mounts["/more"]["name"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["command"] == ["program", "$$(HOME)"]
    assert container["env"][0] == {"name": "A", "value": "$B"}
    assert pod["initContainers"][0]["command"][-2:] == ["-e", "/data/$x"]


def test_what_the_flags_say_stands_in_the_manifest(site):
    asked = {"volume": [f"claim:{site.root}"], "node_selector": ["pool=gpu"]}
    asked |= {"toleration": ["gpu=yes:NoSchedule"], "pull_secret": "ngc"}
    fields = {"platform": "kubernetes", "image": "image:1", "memory": "64G", "cpus": 7}
    job, found = launch.plan(site.request(**fields, kubernetes=asked))
    assert job, found
    (made,) = yaml.safe_load_all(kubernetes.manifest(job, document.load(site.root / "train.toml")))
    assert made["spec"]["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert pod["imagePullSecrets"] == [{"name": "ngc"}] and pod["nodeSelector"] == {"pool": "gpu"}
    toleration = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    assert pod["tolerations"] == [toleration]
    limits = {"cpu": "7", "memory": "64Gi", "nvidia.com/gpu": 1}
    assert container["resources"] == {"limits": limits, "requests": limits}


def test_labels_and_other_names_of_gpus():
    mig = "nvidia.com/mig-1g.10gb"
    asked = work(gpus=1, nodes=2, gpu_resource=mig, labels={manifests.QUEUE: "team"})
    for made in (manifests.job(asked), manifests.look(asked, [])):
        template = made["spec"]["template"]
        for labels in (made["metadata"]["labels"], template["metadata"]["labels"]):
            assert labels == {manifests.QUEUE: "team", manifests.LABEL: asked.name}
    limits = manifests.job(asked)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert limits["limits"] == limits["requests"] == {mig: 1}
    assert manifests.service(asked)["spec"]["selector"] == {manifests.LABEL: asked.name}
    tolerated = manifests.look(asked, [])["spec"]["template"]["spec"]["tolerations"]
    assert [one["key"] for one in tolerated] == [mig]


def test_what_is_shown_reads_back_and_has_no_secret():
    shown = manifests.shown(work(nodes=2))
    job, service = yaml.safe_load_all(shown)
    assert job == manifests.job(work(nodes=2)) and service == manifests.service(work(nodes=2))
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert "&id" not in shown and "HF_TOKEN" in shown.splitlines()[0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_only_looks_is_a_pod_of_the_jobs_without_its_gpus(nodes):
    asked = work(gpus=8, nodes=nodes, memory="500G", node_selector={"pool": "gpu"})
    look = manifests.look(asked, ["a", "b"])["spec"]
    pod, whole = look["template"]["spec"], manifests.job(asked)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == whole["initContainers"][0]["command"]
    assert container["volumeMounts"] == whole["initContainers"][0]["volumeMounts"]
    assert container["resources"]["requests"] == manifests.A_MOMENT
    assert pod["nodeSelector"] == {"pool": "gpu"} and "completions" not in look
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
    assert look["activeDeadlineSeconds"] and look["ttlSecondsAfterFinished"]
    assert [volume["name"] for volume in pod["volumes"]] == ["volume-0", "volume-1"]
    assert "affinity" not in manifests.look(asked, [])["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("modes", "phase", "is_written", "nodes", "words"),
    [
        (["ReadWriteMany"], "Bound", True, 4, ""),
        (["ReadWriteOnce", "ReadWriteMany"], "Bound", True, 2, ""),
        (["ReadWriteOnce"], "Pending", True, 1, ""),
        (["ReadOnlyMany"], "Bound", False, 4, ""),
        (["ReadOnlyMany"], "Bound", True, 1, "the job writes there"),
        (["ReadWriteOncePod"], "Bound", True, 2, "pods of 2 nodes"),
        (["ReadWriteMany"], "Lost", True, 1, "its volume is gone"),
    ],
)
def test_which_claims_will_do(modes, phase, is_written, nodes, words):
    claim = {"spec": {"accessModes": modes}, "status": {"phase": phase}}
    found = needs.unfit("claim", claim, is_written, nodes)
    assert [one.id for one in found] == ["JOB-K8S-CLAIM"] * bool(words)
    assert all(words in one.message for one in found)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("volume", "claim"), ("volume", "claim:relative"), ("volume", "Claim:/data"),
        ("volume", "claim:/"), ("volume", "claim:/a:b"), ("volume", "-x:/data"),
        ("node_selector", "pool"), ("node_selector", "a b=c"), ("toleration", "key:Sometimes"),
        ("toleration", "--all"), ("namespace", "Team"), ("pull_secret", "a\nb"),
        ("memory", "200"), ("memory", "0"), ("memory", "1.5G"), ("memory", "200Gi"),
    ],
)  # fmt: skip
def test_words_that_are_none_are_refused(flag, text):
    written = text if flag in ("namespace", "pull_secret", "memory") else [text]
    (found,) = options.findings({flag: written})
    assert found.id == "JOB-K8S-FLAG" and repr(text) in found.message


def test_two_claims_for_one_folder_are_refused():
    (found,) = options.findings({"volume": ["one:/data", "two:/data"]})
    assert found.where == "--volume" and "one claim" in found.message


def test_every_path_is_in_a_volume(site):
    usual = {"platform": "kubernetes", "image": "image:1"}
    found = {one.id for one in launch.objections(site.request(**usual))}
    assert "JOB-K8S-VOLUME" in found
    only_jobs = {"volume": [f"claim:{site.jobs}"]}
    _, found = launch.plan(site.request(**usual, kubernetes=only_jobs))
    named = {one.where for one in found if one.id == "JOB-K8S-VOLUME"}
    assert {str(site.root / "model"), str(site.root / "media")} <= named
    assert "JOB-K8S-UNCONFIGURED" not in {one.id for one in found}, "no cluster was asked"
    everything = {"volume": [f"claim:{site.root}"]}
    job, found = launch.plan(site.request(**usual, kubernetes=everything))
    assert job and "JOB-K8S-UNCONFIGURED" in {one.id for one in found}


def test_gpu_ids_and_flags_of_other_platforms_are_refused(site):
    asked = site.request(platform="kubernetes", image="i", gpu_ids=["0"], network="host")
    flags = {one.where for one in launch.objections(asked) if one.id == "JOB-FLAG"}
    assert flags == {"--gpu-ids", "--network"}
    asked = site.request(kubernetes={"volume": ["c:/d"], "pull_secret": "x"})
    flags = {one.where for one in launch.objections(asked) if one.id == "JOB-FLAG"}
    assert flags == {"--volume", "--pull-secret"}


def test_two_nodes_are_planned(site):
    parallelism = "policy__parallelism__"
    change(
        site, "train", **{f"{parallelism}dp_shard_size": 8, f"{parallelism}dp_replicate_size": 2}
    )
    everything = {"volume": [f"claim:{site.root}"]}
    fields = {"platform": "kubernetes", "engine": "cosmos-rl", "image": "i"}
    job, _ = launch.plan(site.request(**fields, kubernetes=everything))
    assert job.resources == {"nodes": 2, "gpus_per_node": 8, "gpu_ids": None}
    assert job.command[1].endswith("/skill/scripts/in_container/keep_log.py")
    assert job.command[2:4] == [str(job.folder), "python3"]
    assert job.command[4].endswith("/skill/scripts/in_container/start_node.py")
    assert job.command[5:8] == ["JOB_ID", "2", "cosmos-rl"]


def test_the_cache_of_the_hub_is_that_of_a_volume(site, monkeypatch):
    fields = {"platform": "kubernetes", "engine": "transformers", "image": "i"}
    everything = {"volume": [f"claim:{site.root}"]}
    job, _ = launch.plan(site.request(**fields, kubernetes=everything))
    for cache, is_seen in ((site.root / "hub", True), (site.root.parent / "hub", False)):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        assert (containers.values(job).get("HF_HUB_CACHE") == str(cache)) == is_seen
        spec = document.load(site.root / "train.toml")
        assert ((cache, True) in mounts.places(job, spec)) == is_seen


def test_a_dataset_script_beside_the_programs_stays_where_it_is(site):
    beside = f"{bundle.ROOT}/scripts-of-mine/mine.py"
    everything = {"volume": [f"claim:{site.root}", f"more:{bundle.ROOT}"]}
    asked = {"platform": "kubernetes", "engine": "cosmos-rl", "image": "i"}
    job, found = launch.plan(site.request(**asked, kubernetes=everything, entry_script=beside))
    assert job is None and "JOB-INPUT-MISSING" in {one.id for one in found}
    job, found = launch.plan(site.request(**asked, kubernetes=everything))
    moved = kubernetes.prepare(
        dataclasses.replace(job, options=job.options | {"entry_script": beside}), {}, None
    )
    assert moved.command[-1] == beside
    assert job.command[-1].startswith(f"{job.folder}/skill/scripts/")


# -- what the cluster says ---------------------------------------------------------------------


def pod(index=0, **status):
    annotations = {pods.INDEX: str(index)}
    return {"metadata": {"name": f"p{index}", "annotations": annotations}, "status": status}


def ended(code, **more):
    state = {"terminated": {"exitCode": code, "startedAt": "2026-01-01T00:00:00Z"} | more}
    return [{"name": "work", "state": state}]


EVICTIONS = {
    "The node was low on resource: ephemeral-storage. Container work was using 1Gi": "DISK",
    "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.": "DISK",
    "The node was low on resource: nodefs.": "DISK",
    "The node was low on resource: memory. Container work was using 1Gi": "EVICTED",
}


@pytest.mark.parametrize("text", EVICTIONS)
def test_an_eviction_for_disk_is_no_failed_node(text):
    gone = pod(containerStatuses=ended(137))
    gone["status"] |= {"phase": "Failed", "reason": "Evicted", "message": text}
    (cause,) = pods.read(FAILED, [gone]).causes
    assert cause.id == f"JOB-K8S-{EVICTIONS[text]}" and text in cause.message


FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "R"}]}}


def test_the_first_failure_is_the_jobs():
    seen = pods.read(FAILED, [pod(1, containerStatuses=ended(7)), pod(containerStatuses=ended(0))])
    assert (seen.ended, seen.exit_code, seen.logs) == (True, 7, {0: "p0", 1: "p1"})


def test_a_job_that_ended_without_pods_says_so_itself():
    (cause,) = pods.read(FAILED, []).causes
    assert cause.id == "JOB-K8S-FAILED" and "got R" in cause.message


def test_a_pod_that_was_preempted():
    removed = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    seen = pods.read(FAILED, [pod(conditions=[removed], containerStatuses=ended(137))])
    assert [cause.id for cause in seen.causes] == ["JOB-K8S-EVICTED"]


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [("ErrImagePull", False), ("ImagePullBackOff", True), ("ContainerCreating", False)],
)
def test_what_may_pass_is_waited_for(reason, stuck):
    waiting = [{"name": "work", "state": {"waiting": {"reason": reason}}}]
    seen = pods.read({}, [pod(containerStatuses=waiting)])
    assert seen.stuck == stuck and not seen.ended and not seen.started_at
    assert (seen.waits == "") == (reason == "ContainerCreating")


@pytest.mark.parametrize(
    ("reason", "message", "id"),
    [
        ("Forbidden", 'pods "x" is forbidden: exceeded quota: q', "JOB-K8S-QUOTA"),
        ("Forbidden", 'jobs.batch is forbidden: User "u" cannot', "JOB-K8S-FORBIDDEN"),
        ("NotFound", 'namespaces "x" not found', "JOB-K8S-MISSING"),
        ("InternalError", "etcd", "JOB-K8S-UNREACHABLE"),
        ("Invalid", "spec.template", "JOB-K8S-REFUSED"),
    ],
)
def test_a_refusal_is_one_finding(reason, message, id):
    assert kubectl.refusal(reason, message).id == id


@pytest.mark.parametrize(
    ("minor", "nodes", "refused"), [("23", 2, True), ("24+", 2, False), ("19", 1, False)]
)
def test_indexed_jobs_need_a_newer_server(minor, nodes, refused):
    found = needs.version_findings({"major": "1", "minor": minor}, nodes)
    assert [one.id for one in found] == ["JOB-K8S-VERSION"] * refused


def test_a_secret_holds_values_and_no_text_of_them():
    made = manifests.secret("name", {"A": "välue $(B)"})
    assert "välue" not in json.dumps(made, ensure_ascii=False)
    assert dataclasses.asdict(work())["secret_variables"] == ["HF_TOKEN"]


@pytest.mark.parametrize(
    ("limit", "size"),
    [("200Gi", "400G"), ("60Mi", "120M"), ("1000M", "1908M"), ("134217728", "256M"), ("1500m", "")],
)
def test_a_container_that_was_out_of_memory_is_tried_again_with_twice_as_much(site, limit, size):
    killed = [{"name": "work", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    container = {"name": "work", "resources": {"limits": {"memory": limit}}}
    spec = {"spec": {"containers": [container]}}
    seen = pods.read(FAILED, [pod(containerStatuses=killed) | spec])
    (cause,) = seen.causes
    assert cause.id == "JOB-K8S-OOM" and limit in cause.message
    job, found = launch.plan(site.request())
    assert job, found
    failed = dataclasses.replace(job, state="ERROR")
    told = kubernetes._with_causes(failed, seen.causes).diagnosis
    if size:
        assert [one["fix"] for one in told] == [
            f"{jobs.command('retry', job.folder)} --memory {size}"
        ]
    else:
        assert [one["id"] for one in told] == ["JOB-K8S-OOM", "LOG-HOST-MEMORY"]
        assert "dataloader_num_workers" in told[1]["fix"]


def test_a_pod_that_was_taken_away_is_tried_again(site):
    job, found = launch.plan(site.request())
    assert job, found
    failed = dataclasses.replace(job, state="ERROR")
    (told,) = kubernetes._with_causes(failed, [pods.taken_away()]).diagnosis
    assert told["fix"] == jobs.command("retry", job.folder)


@pytest.mark.parametrize(
    ("used", "fix"), [(" Container work was using 90Gi, request is 0.", "180G"), ("", "")]
)
def test_a_pod_that_lost_its_node_s_memory_asks_for_its_own(site, used, fix):
    job, found = launch.plan(site.request())
    assert job, found
    text = f"The node was low on resource: memory.{used}"
    gone = pod(phase="Failed", reason="Evicted", message=text)
    failed = dataclasses.replace(job, state="ERROR")
    cause, *more = kubernetes._with_causes(failed, pods.read(FAILED, [gone]).causes).diagnosis
    assert cause["id"] == "JOB-K8S-EVICTED" and "--memory" in cause["message"]
    retry = f"{jobs.command('retry', job.folder)} --memory {fix}"
    assert cause["fix"] == (retry if fix else "")
    assert [one["id"] for one in more] == ([] if fix else ["LOG-HOST-MEMORY"])
