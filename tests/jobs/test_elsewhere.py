"""A launch for a place that is described by a site.yaml: planned here, started there."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import yaml
from launch_site import Site, change
from support import ROOT, called, run_script
from support_specs import write_facts

from cosmos_reason.base import findings as f
from cosmos_reason.base import site as sites
from cosmos_reason.jobs import carried
from cosmos_reason.spec import document, origins

THERE = "/lustre/me"
MORE = {
    "local": {"environment": f"{THERE}/venv"},
    "slurm": {"environment": f"{THERE}/venv", "slurm": {"partition": "h100", "time": "8:00:00"}},
    "docker": {"image": "example.com/own:1"},
    "kubernetes": {
        "image": "example.com/own:1",
        "kubernetes": {"namespace": "n", "volumes": [f"claim:{THERE}"]},
    },
}
START = {"local": "run.sh", "docker": "run.sh", "slurm": "job.sbatch",
         "kubernetes": "manifests/job.yaml"}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def describe(place, platform, **more):
    facts = {
        "schema_version": 1,
        "name": "there",
        "platform": platform,
        "gpus": {"type": "H100 80GB", "count": 8},
        "paths": {THERE: str(place.root)},
        "network": {"hub": False},
    }
    path = place.root / f"{platform}.yaml"
    path.write_text(yaml.safe_dump(facts | MORE[platform] | more))
    return path


def here(script, place, *words):
    env = {"PATH": "/nowhere", "HOME": str(place.root), "SECRET_TOKEN": "x"}
    return run_script(script, *words, cwd=place.root, env=env)


def command(script, place, *words):
    """(exit code, the document that --json prints) on a PATH without docker, sbatch and kubectl."""
    done = here(script, place, *words, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def render(place, platform, output, *words, engine="transformers", **more):
    site = describe(place, platform, **more)
    launch = ["--spec", "train.toml", "--engine", engine, "--site", site]
    return command("launch_job.py", place, "plan", "train", *launch, "--output", output, *words)


def started_with(place, docker, code=0):
    """Run run.sh with a program in place of docker, and return what that noted of its words."""
    (place.root / "bin").mkdir(exist_ok=True)
    program = place.root / "bin" / "docker"
    program.write_text(f"#!/bin/sh\n{{ {docker}; }} >>docker.notes\n")
    program.chmod(0o755)
    environment = {"PATH": f"{place.root}/bin:{os.environ['PATH']}"}
    words = ["bash", "out/run.sh"]
    done = subprocess.run(
        words, cwd=place.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return [*(place.root / "docker.notes").read_text().splitlines(), done.stderr]


def text_of(folder):
    """Every file that is rendered, without the copy of the skill."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "skill" not in path.relative_to(folder).parts:
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def test_docker_mounts_the_skill_where_the_site_has_it(place):
    """And its run.sh reads the shell's part there, too."""
    render(place, "docker", "out", skill_dir=str(ROOT), paths={str(place.root): str(place.root)})
    words = started_with(place, 'printf "%s\\n" "$@"')
    assert f"type=bind,src={ROOT},target=/skill,readonly" in words
    assert not any(word.startswith(f"type=bind,source={place.root}/out/") for word in words)
    held = {path.name for path in (place.root / "out" / "skill").iterdir()}
    assert held == {"environment", "spec.schema.json"}


@pytest.mark.parametrize("platform", MORE)
def test_a_launch_is_rendered_for_every_platform_without_its_programs(place, platform):
    code, printed = render(place, platform, "out")
    assert code == 0, printed["findings"]
    files = text_of(place.root / "out")
    assert START[platform] in files and "README.md" in files and "launch.json" in files
    for name, text in files.items():
        assert str(place.root) not in text, f"{name} names a path of the machine that rendered it"
        assert str(ROOT) not in text, f"{name} names the skill of the machine that rendered it"
        assert "SECRET_TOKEN" not in text
    assert "HF_HUB_OFFLINE=1" in files["README.md"]
    copying = f"rsync -aLR --mkpath --no-implied-dirs a.json media model HOST:{THERE}/   # "
    assert copying in files["README.md"]
    environment = place.root / "out/skill/environment"
    beside = environment.read_text() if environment.exists() else ""
    assert "HF_HUB_OFFLINE" in files[START[platform]] + beside and str(place.root) not in beside
    size = sum(path.stat().st_size for path in (place.root / "out/skill").rglob("*"))
    assert size < 3 << 20
    # Of what pip would read there nothing is missing.
    for packages in (place.root / "out/skill").glob("requirements*.txt"):
        for name in re.findall(r"^-r (\S+)", packages.read_text(), re.M):
            assert packages.with_name(name).is_file()
    for name in re.findall(r"-r out/(\S+?)[ `]", files["README.md"]):
        assert (place.root / "out" / name).is_file()
    assert ("pip install" in files["README.md"]) == (platform in ("local", "slurm"))
    assert ("`docker pull example.com/own:1" in files["README.md"]) == (platform == "docker")


def test_what_is_as_it_was_rendered_may_be_rendered_anew_and_nothing_else(place):
    assert render(place, "docker", "out")[0] == 0
    code, printed = render(place, "docker", "out", driver="595.45")
    assert code == 0, printed["findings"]
    (place.root / "out" / "note").write_text("mine")
    code, printed = render(place, "docker", "out")
    assert code == 2 and printed["findings"][0]["id"] == "JOB-OUTPUT-EXISTS"
    assert (place.root / "out" / "note").read_text() == "mine"
    (place.root / "out" / "note").unlink()
    readme = place.root / "out" / "README.md"
    readme.write_text(readme.read_text() + "mine")
    assert render(place, "docker", "out")[0] == 2 and readme.read_text().endswith("mine")


@pytest.mark.parametrize("platform", MORE)
def test_the_same_request_renders_the_same_bytes(place, platform):
    render(place, platform, "out")
    first = text_of(place.root / "out")
    subprocess.run(["rm", "-r", str(place.root / "out")], check=True)
    (place.root / "out").mkdir()  # an empty folder is as good as none
    assert render(place, platform, "out")[0] == 0
    assert text_of(place.root / "out") == first


@pytest.mark.parametrize("platform", MORE)
def test_what_is_rendered_is_well_formed(place, platform):
    render(place, platform, "out")
    out = place.root / "out"
    if platform == "kubernetes":
        (job,) = yaml.safe_load_all((out / START[platform]).read_text())
        (work,) = job["spec"]["template"]["spec"]["containers"]
        assert work["resources"]["limits"] == {"nvidia.com/gpu": 1}
        assert f"{THERE}/out/spec.toml" in work["command"]
    else:
        assert subprocess.run(["bash", "-n", str(out / START[platform])]).returncode == 0
    spec = document.load(out / "spec.toml")
    assert spec["policy"]["model_name_or_path"] == f"{THERE}/model"


def test_sbatch_takes_the_file_alone(place):
    render(place, "slurm", "out")
    text = (place.root / "out/job.sbatch").read_text()
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert "#SBATCH --partition=h100" in directives and "#SBATCH --gres=gpu:1" in directives
    assert text.splitlines()[1].startswith("#SBATCH"), "sbatch reads none behind a command"
    assert f"set -- {THERE}/venv/bin/python3 {THERE}/out/skill/scripts/run_with" in text
    assert "HF_TOKEN" in next(line for line in directives if "--export=" in line)


@pytest.mark.parametrize("image", [None, "example.com/own:1"])
def test_the_batch_script_is_the_one_that_submit_writes(place, image):
    """But for flags and program, which submit hands over, the file of the environment, with secrets
    that submit removes, and the id that a rendered run gets when it starts."""
    from cosmos_reason.jobs import launch
    from cosmos_reason.jobs.platforms import slurm
    from cosmos_reason.jobs.platforms.slurm import script

    more = {"paths": {str(place.root): str(place.root)}} | ({"image": image} if image else {})
    code, printed = render(place, "slurm", "out", **more)
    assert code == 0, printed["findings"]
    out = place.root / "out"
    asked = place.request("train", platform="slurm", site=sites.read(place.root / "slurm.yaml"))
    job, found = launch.plan(asked)
    assert job, found
    folder = place.root / "submitted"
    folder.mkdir()
    slurm.write(folder, job, asked.spec)
    told = (folder / script.BATCH).read_text().replace(str(job.folder), str(out))
    told = told.replace(str(ROOT), f"{out}/skill")
    own = ("#SBATCH ", "# ", "environment=", "action=", "new=", "set -- ")

    def body(text):
        """Its words by line, the mounts in any order. Without a container the work begins in the
        folder that submit was called in."""
        text = text.replace("$job", str(out)).replace(f"{place.root} ", f"{out} ")
        lines = [line for line in text.splitlines() if not line.startswith(own)]
        return [sorted(re.split("[ ,=()]", line)) for line in lines]

    assert body((out / "job.sbatch").read_text()) == body(told) and len(body(told)) > 5


def test_a_local_rendering_runs_and_notes_its_end(place):
    """Its paths there are those here; the program is a stand-in."""
    venv = place.root / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python3").write_text('#!/bin/sh\necho "$HF_HUB_OFFLINE $@"\nexit 3\n')
    (venv / "python3").chmod(0o755)
    same = {str(place.root): str(place.root)}
    code, printed = render(place, "local", "out", paths=same, environment=str(place.root / "venv"))
    assert code == 0, printed["findings"]
    out = place.root / "out"
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", str(out / "run.sh")], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while not ((out / "run.exit").exists() and (out / "run.exit").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (out / "run.exit").read_text().split()[0] == "3"
    assert (out / "log.txt").read_text().startswith(f"1 {out}/skill/scripts/run_with_transformers")
    again = subprocess.run(["bash", str(out / "run.sh")], env=environment, capture_output=True)
    assert again.returncode == 2, "a folder is one run"


@pytest.mark.parametrize("platform", ["local", "slurm"])
def test_cosmos_rl_starts_its_processes_in_the_environment_of_the_site(place, platform):
    """As `python`, and a redis-server, whatever whoever starts the folder has on PATH."""
    change(place, "train", train__compile=False)
    venv = place.root / "a venv" / "bin"
    venv.mkdir(parents=True)
    for name, does in (("cosmos-rl", "command -v python"), ("python", "")):
        (venv / name).write_text(f"#!/bin/sh\n{does}\n")
        (venv / name).chmod(0o755)
    where = {"paths": {str(place.root): str(place.root)}, "environment": str(venv.parent)}
    code, printed = render(place, platform, "out", engine="cosmos-rl", **where)
    assert code == 0, printed["findings"]
    out = place.root / "out"
    read = "bash out/run.sh; until [ -s out/run.exit ]; do sleep 0.05; done; cat out/log.txt"
    if platform == "slurm":
        read = f". {out}/skill/environment; command -v python"
    bare = {"PATH": "/usr/bin:/bin"}
    done = called(["bash", "-c", read], cwd=place.root, env=bare, timeout=300)
    assert done.stdout.splitlines()[-1] == str(venv / "python"), done
    assert "setup-cosmos-rl`" in (out / "README.md").read_text()


def test_the_site_alone_says_what_gpus_there_are(place):
    code, printed = render(place, "local", "out", gpus={"count": 0})
    assert code == 1
    assert "JOB-GPU-COUNT" in {one["id"] for one in printed["findings"]}
    code, printed = render(place, "docker", "out", "--gpu-ids", "9")
    assert code == 1 and "JOB-GPU-IDS" in {one["id"] for one in printed["findings"]}
    assert not (place.root / "out").exists()


def test_what_a_site_does_not_say_is_one_warning_with_the_lines_to_add(place):
    code, printed = render(place, "local", "out", gpus={}, paths={})
    told = [one for one in printed["findings"] if one["id"] == "JOB-SITE-UNKNOWN"]
    assert code == 0 and len(told) == 1
    assert "gpus: {type: TYPE, count: N}" in told[0]["data"]["lines"]
    assert any(str(place.root / "a.json") in line for line in told[0]["data"]["lines"])


@pytest.mark.parametrize(
    "fault", [{"platfrom": "slurm"}, {"gpus": {"number": 8}}, {"paths": {"a": "b"}}, {"nodes": 0}]
)
def test_a_broken_site_is_told_with_all_that_is_wrong(place, fault):
    code, printed = render(place, "local", "out", **fault)
    assert code == 2 and {one["id"] for one in printed["findings"]} == {"JOB-SITE"}


def test_the_template_is_a_site(monkeypatch):
    monkeypatch.setattr(sites, "MODELS", {})
    monkeypatch.setattr(sites, "PATHS", {})
    read = sites.read(ROOT / "references" / "site_template.yaml")
    assert read.gpu_gib() == 79.6 and read.gpu_architecture() == "sm_90"
    assert read.is_offline and read.options()["partition"] == "h100"
    assert len((ROOT / "references" / "site_template.yaml").read_text().splitlines()) <= 10
    (folder,) = read.models
    from cosmos_reason.estimate import gpu_memory

    assert gpu_memory.geometry(folder) == gpu_memory.geometry("nvidia/Cosmos3-Nano")


def test_the_page_shows_a_site(monkeypatch):
    monkeypatch.setattr(sites, "MODELS", {})
    monkeypatch.setattr(sites, "PATHS", {})
    page = (ROOT / "references" / "cosmos-reason-elsewhere.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert sites.parsed(textwrap.dedent(shown), ROOT / "site.yaml").platform == "slurm"


def test_a_preflight_for_a_site_asks_nobody(place):
    site = describe(place, "slurm")
    words = ["--site", site, "--spec", "train.toml", "--engine", "transformers"]
    _, printed = command("check_tao_launch_preflight.py", place, *words)
    found = {one["id"]: one for one in printed["findings"]}
    assert not {"PRE-TOOL-MISSING", "PRE-PLATFORM-SKIPPED", "PRE-PATH-UNSEEN"} & found.keys()
    errors = {one["id"] for one in printed["findings"] if one["severity"] == f.ERROR}
    assert errors <= {"CKPT-TOKENIZER"}, "the model of the fixture has no tokenizer"
    assert printed["result"]["gpus"][0]["gib"] == 79.6
    assert "driver of a site" not in printed["result"]["checks"], "only NVIDIA's image needs one"
    _, printed = command("check_tao_launch_preflight.py", place, *words[:-1], "tao")
    assert "driver of a site" in printed["result"]["checks"]


def test_a_spec_is_built_for_paths_of_the_site(place):
    site = describe(place, "slurm", models={"/models/c3": "nvidia/Cosmos3-Nano"})
    data = ["--set", f"train_annotations={THERE}/a.json", "--set", f"train_media={THERE}/media"]
    words = ["train", "--engine", "transformers", "--model", "/models/c3", *data, "--site", site]
    code, printed = command("build_spec.py", place, *words, "-o", "new.toml")
    ids = {one["id"] for one in printed["findings"]}
    assert code == 0 and "SPEC-PATH-NOT-HERE" not in ids, printed["findings"]
    assert "SPEC-DATA-MISSING" not in ids and "SPEC-MODEL-OMNI" not in ids


def test_the_name_of_a_folder_has_to_name_a_job_of_kubernetes(place):
    code, printed = render(place, "kubernetes", "My_Run")
    (refused,) = [one for one in printed["findings"] if one["id"] == "JOB-K8S-NAME"]
    assert code == 1 and refused["fix"].endswith("my-run")
    assert render(place, "kubernetes", "my-run")[0] == 0
    assert render(place, "slurm", "My_Run")[0] == 0, "others have no such names"


def test_kubectl_is_told_the_namespace_and_gets_secrets_from_the_shell(place):
    render(place, "kubernetes", "out")
    page = text_of(place.root / "out")["README.md"]
    assert "`kubectl --namespace n apply -f out/manifests/`" in page
    (line,) = [line for line in page.splitlines() if line.startswith("- secrets, if any: ")]
    (place.root / "bin").mkdir()
    (place.root / "bin" / "kubectl").write_text('#!/bin/sh\necho "$@"; cat "${7#*=}"\n')
    (place.root / "bin" / "kubectl").chmod(0o755)
    environment = {"PATH": f"{place.root}/bin:{os.environ['PATH']}", "HF_TOKEN": "hf_canary"}
    command = line.removeprefix("- secrets, if any: ").strip("`")
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("--namespace n create secret generic out --from-env-file=")
    assert done.stdout.splitlines()[1:] == ["HF_TOKEN=hf_canary"], done.stderr


def test_pods_run_the_skill_where_the_site_has_it(place):
    code, printed = render(place, "kubernetes", "out", skill_dir=f"{THERE}/skill")
    assert code == 0, printed["findings"]
    text = (place.root / "out" / START["kubernetes"]).read_text()
    assert f"{THERE}/skill/scripts/in_container/keep_log.py" in text
    assert f"{THERE}/skill/scripts/run_with_transformers.py" in text
    assert f"{THERE}/out/skill" not in text
    assert "skill/environment" not in text
    # An installed copy may be older than what reads the folder's variables.
    (work,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    assert {"HF_HOME", "HOME"} <= {one["name"] for one in work["env"]}
    held = [path.name for path in (place.root / "out" / "skill").iterdir()]
    assert set(held) == {"environment", "spec.schema.json"}


def test_a_batch_script_runs_once_unless_slurm_begins_it_anew(place):
    """With a program in place of srun, which notes what a node would."""
    same = {str(place.root): str(place.root)}
    render(place, "slurm", "out", "--requeue", paths=same, image="example.com/own:1")
    out = place.root / "out"
    assert "#SBATCH --requeue" in (out / "job.sbatch").read_text()
    (place.root / "bin").mkdir()
    (place.root / "bin" / "srun").write_text(f"#!/bin/sh\nls {out}; env >{out}/seen\n")
    (place.root / "bin" / "srun").chmod(0o755)

    def begun(**variables):
        environment = {"PATH": f"{place.root}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "3"}
        words, environment = ["bash", str(out / "job.sbatch")], environment | variables
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        return done.returncode, (out / "run.id").read_text(), done.stdout.split()

    code, job_id, _ = begun()
    assert code == 0 and job_id.startswith("train-") and (out / "home/.cache/hf_home").is_dir()
    assert f"COSMOS_REASON_JOB_ID={job_id}" in (out / "seen").read_text()
    assert begun()[0] == 2
    (out / "node.0.exit").write_text("n0 1\n")
    code, same_id, seen = begun(SLURM_RESTART_COUNT="1")
    assert (code, same_id) == (0, job_id)
    assert not {"slurm.ended", "node.0.exit"} & {*seen}, "of the start before"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"memory_gib": 1}, {"PRE-HOST-MEMORY": "got 1 GiB"}),
        ({"disk": {THERE: 0}}, {"PRE-DISK": "got 0.0 GiB free"}),
        ({"disk": {THERE: 9000}, "memory_gib": 9000}, {}),
    ],
)
def test_a_preflight_compares_what_the_site_says(place, facts, expected):
    """In memory and on a disk that are not this machine's."""
    site = describe(place, "slurm", models={f"{THERE}/c3": "nvidia/Cosmos3-Nano"}, **facts)
    (place.root / "c3").mkdir()
    change(place, "train", policy__model_name_or_path=f"{THERE}/c3")
    change(place, "train", train__output_dir=f"{THERE}/results")
    (place.root / "c3").rmdir()  # the model lies there alone
    words = ["--site", site, "--spec", "train.toml", "--engine", "transformers"]
    _, printed = command("check_tao_launch_preflight.py", place, *words)
    found = {one["id"]: one for one in printed["findings"]}
    for name in ("PRE-HOST-MEMORY", "PRE-DISK"):
        assert (name in found) == (name in expected), found.get(name)
        assert name not in found or expected[name] in found[name]["message"]
    unknown = found["JOB-SITE-UNKNOWN"]["data"]["lines"] if "JOB-SITE-UNKNOWN" in found else []
    assert ("memory_gib: GIB" in unknown) == ("memory_gib" not in facts)
    assert any(line.startswith("disk: {") for line in unknown) == ("disk" not in facts)


def test_a_driver_is_compared_where_the_image_needs_one(place):
    for driver, expected in (("470.1", True), ("580.82", False)):
        site = describe(
            place, "docker", driver=driver, image="nvcr.io/nvidia/tao/tao-toolkit:7.2.0-cosmos-rl"
        )
        words = ["--site", site, "--spec", "train.toml", "--engine", "tao"]
        _, printed = command("check_tao_launch_preflight.py", place, *words)
        old = [one for one in printed["findings"] if one["id"] == "PRE-HOST-VERSION"]
        assert bool(old) == expected and all(driver in one["message"] for one in old)
    _, printed = command(
        "check_tao_launch_preflight.py", place, "--site", describe(place, "docker"), *words[2:]
    )
    (unknown,) = [one for one in printed["findings"] if one["id"] == "JOB-SITE-UNKNOWN"]
    assert "driver: VERSION" in unknown["data"]["lines"]


TAO = "nvcr.io/nvidia/tao/tao-toolkit:7.2.0-cosmos-rl"
# What a launch for GPUs in NVIDIA's image has that its CPU stand-in has not, or has otherwise: the
# title, image, GPUs, program and its variables, what Pyxis mounts and what nodes look for instead.
OF_THE_PLACE = {
    "docker": r"# train with |image=|program=|  --gpus ",
    "slurm": r"# train with |#SBATCH --(gres|signal)=|needed=|srun=|set -- ",
}


@pytest.mark.parametrize("platform", ["docker", "slurm", "kubernetes"])
def test_the_stand_in_without_gpus_differs_in_the_named_lines_alone(place, platform):
    """So that what is started for real on CPUs tells of the original, which never ran here."""
    change(place, "train", policy__parallelism__dp_shard_size=2)
    original = {"image": TAO}
    stand_in = {"environment": f"{THERE}/venv"} if platform == "slurm" else {"image": "cpu:1"}
    more = {}
    if platform == "kubernetes":
        more = {"kubernetes": MORE[platform]["kubernetes"]}
    rest = []
    for facts, words in (
        (original, ["--engine", "tao"] + (["--gpu-ids", "2,3"] if platform == "docker" else [])),
        (stand_in, ["--engine", "transformers", "--gpu-ids", "none"]),
    ):
        site = place.root / "site.yaml"
        base = {"schema_version": 1, "name": "there", "platform": platform, "gpus": {"count": 8}}
        paths = {"paths": {THERE: str(place.root)}}
        site.write_text(yaml.safe_dump(base | paths | facts | more))
        asked = ["plan", "train", "--spec", "train.toml", "--site", site, "--output", "out", *words]
        code, printed = command("launch_job.py", place, *asked)
        assert code == 0, printed["findings"]
        text = (place.root / "out" / START[platform]).read_text()
        subprocess.run(["rm", "-r", str(place.root / "out")], check=True)
        if platform == "kubernetes":
            rest.append(without_its_program(yaml.safe_load(text)))
            continue
        lines = text.splitlines()
        rest.append([line for line in lines if not re.match(OF_THE_PLACE[platform], line)])
    assert rest[0] == rest[1] and len(rest[0]) > 3


def without_its_program(job):
    """The Job of a manifest without image, GPUs and program; its variables are in the folder."""
    pod = job["spec"]["template"]["spec"]
    for container in pod["initContainers"] + pod["containers"]:
        del container["image"]
        container.pop("resources", None)
    (work,) = pod["containers"]
    assert work["command"][:5] == [*work["command"][:3], "--begins", "train"]
    work["command"] = work["command"][:5]
    return job


NAMES = {"local": "go.sh", "docker": "go.sh", "slurm": "go.sbatch", "kubernetes": "go.yaml"}


@pytest.mark.parametrize("platform", MORE)
def test_what_starts_a_launch_is_called_as_asked(place, platform):
    code, printed = render(place, platform, "out", "--name", NAMES[platform])
    assert code == 0, printed["findings"]
    texts = text_of(place.root / "out")
    named = START[platform].replace(START[platform].rpartition("/")[2], NAMES[platform])
    assert named in texts and START[platform] not in texts
    if platform == "slurm":
        assert "sbatch --parsable go.sbatch" in texts["submit.sh"]
    if platform in ("local", "docker"):
        assert "`bash out/go.sh`" in texts["README.md"]
        assert os.access(place.root / "out" / named, os.X_OK)
    assert START[platform].rpartition("/")[2] not in texts["README.md"]


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        ("local", "spec.toml"),
        ("local", "run.id"),
        ("slurm", "submit.sh"),
        ("docker", "a/b.sh"),
        ("docker", "..", ),
        ("kubernetes", "job.json"),
    ],
)  # fmt: skip
def test_a_name_that_the_folder_cannot_have_is_refused_with_one_that_it_can(place, platform, name):
    code, printed = render(place, platform, "out", "--name", name)
    (refused,) = [one for one in printed["findings"] if one["id"] == "JOB-NAME"]
    assert code == 1 and not (place.root / "out").exists()
    assert render(place, platform, "out", *refused["fix"].split())[0] == 0


def test_a_name_needs_a_folder(place):
    site = describe(place, "slurm")
    words = ["plan", "train", "--spec", "train.toml", "--site", site, "--name", "go.sbatch"]
    code, printed = command("launch_job.py", place, *words)
    assert code == 2 and [one["id"] for one in printed["findings"]] == ["USAGE"]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("known", ["site", "snapshot", "provenance", "download", ""])
def test_models_to_copy_are_listed_with_commit_and_size(place, known):
    """Where the Hub is out of reach; a commit that nobody knows is asked for once."""
    here = place.root / "c3"
    if known == "snapshot":
        here = place.root / "models--nvidia--Cosmos3-Nano" / "snapshots" / COMMIT
    here.parent.mkdir(parents=True, exist_ok=True)
    (place.root / "model").rename(here)
    with open(here / "optimizer.bin", "wb") as large:
        large.truncate(3 << 29)
    if known == "provenance":
        (here / "provenance.json").write_text(json.dumps({"source": {"commit": COMMIT}}))
    if known == "download":
        notes = here / ".cache" / "huggingface" / "download"
        notes.mkdir(parents=True)
        (notes / "config.json.metadata").write_text(f"{COMMIT}\netag\n1.0\n")
    there = f"{THERE}/{here.relative_to(place.root)}"
    change(place, "train", policy__model_name_or_path=there)
    name = "nvidia/Cosmos3-Nano" + (f"@{COMMIT}" if known == "site" else "")
    code, printed = render(place, "slurm", "out", models={there: name}, gpus={})
    told = [one for one in printed["findings"] if one["id"] == "JOB-SITE-UNKNOWN"]
    assert len(told) <= 1
    lines = [line for one in told for line in one["data"]["lines"] if line.startswith("models")]
    assert lines == ([] if known else [f"models: {{{there}: nvidia/Cosmos3-Nano@COMMIT}}"])
    assert code == 0, printed["findings"]
    page = text_of(place.root / "out")["README.md"]
    assert f"{there} holds nvidia/Cosmos3-Nano, 1.5 GiB" in page
    assert (f"--revision {COMMIT}" in page) == bool(known)


def test_submit_hands_over_no_path_that_the_site_calls_otherwise(place):
    """It would run here, or fail there, with paths of this machine; the fix writes it out."""
    site = describe(place, "local", paths={THERE: str(place.root)})
    launch = ["train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    code, printed = command("launch_job.py", place, "submit", *launch, "--gpu-ids", "none")
    (refused,) = [one for one in printed["findings"] if one["id"] == "JOB-SITE-PATHS"]
    assert code == 1 and not place.jobs.exists()
    words = refused["fix"].split()
    code, printed = command(words[0].rpartition("/")[2], place, *words[1:])
    assert code == 0 and (place.root / "train-there" / "run.sh").is_file(), printed["findings"]


def test_a_job_that_is_submitted_to_slurm_runs_what_its_site_names(place, monkeypatch):
    """Not this Python and this copy of the skill, which the nodes may not have."""
    from cosmos_reason.jobs import launch

    monkeypatch.setenv("PATH", "/nowhere")  # no cluster is asked
    same = {str(place.root): str(place.root)}
    path = describe(place, "slurm", paths=same, skill_dir=f"{THERE}/skill")
    asked = place.request("train", platform="slurm", site=sites.read(path))
    job, found = launch.plan(asked)
    assert job, found
    program = job.command[job.command.index(f"{job.folder}/launch.sbatch") + 1 :]
    assert program[:2] == [
        f"{THERE}/venv/bin/python3",
        f"{THERE}/skill/scripts/run_with_transformers.py",
    ]
    assert "--partition=h100" in job.command and job.site == "there"
    assert job.options["place"]["offline"] is True


def test_a_folder_that_a_container_may_have_mounted_is_not_written_anew(place):
    render(place, "docker", "out", paths={str(place.root): str(place.root)})
    (place.root / "bin").mkdir()
    (place.root / "bin" / "docker").write_text("#!/bin/sh\n")
    (place.root / "bin" / "docker").chmod(0o755)
    environment = {"PATH": f"{place.root}/bin:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["bash", "out/run.sh"], cwd=place.root, env=environment, check=True)
    ids = (place.root / "out" / "runs").read_text().split()
    assert sorted(ids) == sorted(path.name for path in (place.root / "jobs").glob("train-*"))
    code, printed = render(place, "docker", "out")
    assert code == 2 and printed["findings"][0]["id"] == "JOB-OUTPUT-EXISTS"


def test_an_offline_site_pulls_no_image(place):
    """It says how the image comes there instead of waiting for a registry out of reach."""
    same = {str(place.root): str(place.root)}
    for hub, code in ((False, 2), (True, 1)):
        render(place, "docker", "out", paths=same, network={"hub": hub})
        noted = started_with(place, 'echo "$@"; exit 1', code)
        assert noted[0] == "image inspect example.com/own:1"
        assert ("docker save" in noted[-1], "pull example.com/own:1" in noted) == (not hub, hub)
        assert not (place.root / "jobs").exists()
        (place.root / "docker.notes").unlink()


@pytest.mark.parametrize("platform", MORE)
def test_what_is_printed_of_a_folder_is_its_page(place, platform):
    """So that nobody has to open it; the lines of inputs elsewhere on this machine come besides."""
    outside = place.root.parent / f"{place.root.name}-model"
    (place.root / "model").rename(outside)
    change(place, "train", policy__model_name_or_path=str(outside))
    change(place, "train", train__train_policy__mini_batch=1)  # what was built has no such warning
    paths = {THERE: str(place.root), "/models/m": str(outside)}
    volumes = [f"claim:{THERE}", "models:/models"]
    more = {"kubernetes": {"volumes": volumes}} if platform == "kubernetes" else {}
    site = describe(place, platform, paths=paths, **more)
    words = ["plan", "train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    done = here("launch_job.py", place, *words, "--output", "out")
    assert done.returncode == 0, done.stderr
    page = text_of(place.root / "out")["README.md"]
    assert "- expected there: /models/m" in page and str(outside) not in page
    assert f"    rsync -aL --mkpath {outside}/ HOST:/models/m/   # " in done.stdout
    told = page.partition("not run there yet. C")[2].partition("\nKnown when")[0].splitlines()
    assert "- without the Hub (it sets HF_HUB_OFFLINE=1)" in told
    assert "  gets     HF_HUB_OFFLINE=1" in done.stdout
    above = ("- expected there: /models/m", "- without the Hub (it sets HF_HUB_OFFLINE=1)")
    for line in told:
        if line in above:
            assert line not in done.stdout
            continue
        image = line.removeprefix("- image ")
        adopted = line.partition("scripts/launch_job.py")[2]
        assert line in done.stdout or f"image    {image}" in done.stdout or adopted in done.stdout
    asked = {
        "slurm": "--nodes=1 --partition=h100 --time=8:00:00 --gres=gpu:1\n"
        "  a node   unset, so the cluster's default: --cpus",
        "kubernetes": "1 pod of 1 GPUs\n  a node   unset, so the cluster's default: --cpus",
    }
    assert f"  asks for {asked.get(platform, 'all GPUs')}" in done.stdout
    assert done.stdout.count("example.com/own:1") == {"kubernetes": 1, "docker": 2}.get(platform, 0)
    assert str(ROOT / "scripts/launch_job.py") + " adopt" in done.stdout, "called as this was"
    # Counted as where the user's folder has a name of a usual length.
    said = (done.stdout + done.stderr).replace(str(place.root), "/home/me/project")
    assert len(said) < 2000


def test_a_plan_for_a_site_names_the_spec_and_keeps_the_flags_in_its_next(place):
    site = describe(place, "docker")
    words = ["plan", "train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    code, printed = command("launch_job.py", place, *words, "--gpu-ids", "3")
    assert code == 0, printed["findings"]
    following = printed["next"].split()
    assert following[-4:] == ["--gpu-ids", "3", "--output", "train-there"]
    assert command("launch_job.py", place, *following[1:])[0] == 0
    # A process of its own, which has this environment and no more.
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/launch_job.py"), *map(str, words)],
        cwd=place.root,
        env={"PATH": "/nowhere", "HOME": str(place.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "train of $PWD/train.toml with transformers" in done.stdout


def test_the_next_of_a_training_renders_the_untouched_model_as_the_training_asks_it(place):
    data = {"annotation_path": "held/annotations.json", "media_path": "held"}
    (place.root / "held").mkdir()
    (place.root / "a.json").rename(place.root / "held/annotations.json")
    change(place, "train", custom__val_dataset=data, custom__vision={"nframes": 4})
    change(place, "train", custom__train_dataset=data, custom__system_prompt="Look twice.")
    site = describe(place, "docker")
    words = ["plan", "train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    words += ["--gpu-ids", "3", "--seconds-per-step", "2", "--name", "go.sh", "--output", "out"]
    done = here("launch_job.py", place, *words)
    assert done.returncode == 0, done.stderr
    _, line, rest = done.stderr.partition("next: ")[2].split("`", 2)
    script, *more = shlex.split(line)
    assert script == str(ROOT / "scripts/build_spec.py")
    code, printed = command("build_spec.py", place, *more)
    assert code == 0, printed["findings"]
    assert rest.startswith(", then `plan evaluate` of the untouched model, too")
    words_there = ["plan", "evaluate", "--site", site, "--spec", more[-1], "--output", "out-base"]
    code, printed = command("launch_job.py", place, *words_there)
    assert code == 0, printed["findings"]
    asked = (place.root / "out-base/spec.toml").read_text()
    assert "nframes = 4" in asked and '"Look twice."' in asked and f'"{THERE}/model"' in asked
    assert (place.root / "out-base/run.sh").is_file(), "a name of its own"
    assert command("launch_job.py", place, *words)[1]["next"].startswith("copy and start"), "done"
    written = document.load(place.root / "train.toml")
    asked = SimpleNamespace(engine="transformers", site=sites.read(site), written=written)
    assert carried.words_of_untouched(asked)
    asked.engine = "cosmos-rl"
    assert carried.words_of_untouched(asked) == [], "it answers nothing"
    (place.root / "held/annotations.json").rename(place.root / "held/other.json")
    change(place, "train", custom__val_dataset__annotation_path="held/other.json")
    change(place, "train", custom__train_dataset__annotation_path="held/other.json")
    shutil.rmtree(place.root / "out-base")
    shutil.rmtree(place.root / "out")
    said = here("launch_job.py", place, *words).stderr
    assert "next: `plan evaluate` of the untouched model, too" in said


def test_a_spec_for_fewer_gpus_than_the_site_has_says_so(place):
    """A site of two nodes whose spec was laid out for one went unnoticed."""
    site = describe(place, "slurm", nodes=2)
    words = ["build_spec.py", place, "train", "--engine", "transformers", "--site", site]
    words += ["--model", "model", "--spec", "train.toml", "--force", "-o"]
    assert "GPUs     1 of 2 x 8 at there\n" in here(*words, "one.toml").stdout
    one_node = ["--gpus-per-node", "8", "--global-batch", "8"]
    told = "GPUs     8 of 2 x 8 at there (--nodes 2 takes all)\n"
    assert told in here(*words, "node.toml", *one_node).stdout
    whole = ["--nodes", "2", "--gpus-per-node", "8", "--global-batch", "16"]
    assert "GPUs     16\n" in here(*words, "all.toml", *whole).stdout


def test_what_a_folder_was_opened_for_is_printed(place):
    """What is mounted, how nodes meet, whose variables it gets, whether the spec has the paths of
    the place; of what a spec amounts to only what build_spec has not told."""
    more = {"nodes": 2, "image": "example.com/own:1", "disk": {THERE: 500}}
    site = describe(place, "slurm", **more)
    words = ["train", "--engine", "transformers", "--site", site, "--model", "model"]
    words += ["--spec", "train.toml", "--nodes", "2", "--gpus-per-node", "8"]
    done = here("build_spec.py", place, *words, "--global-batch", "16", "-o", "two.toml")
    assert done.returncode == 0, done.stderr
    launch = ["--site", site, "--spec", "two.toml"]
    done = here("launch_job.py", place, "plan", *launch, "--output", "out")
    assert done.returncode == 0, done.stderr
    by_name = dict(re.findall(r"^  (\S+) +(.*)$", done.stdout, re.M))
    assert by_name["mounts"].endswith("inputs and outputs, at their own paths")
    assert by_name["runs"] == (
        "train with transformers by torchrun on each node, which find each other, "
        "as build_spec told of two.toml, with the paths of there"
    )
    assert by_name["gets"].startswith("HF_HUB_OFFLINE=1 by skill/environment; of the shell ")
    assert "HF_HUB_OFFLINE=1" in (place.root / "out/skill/environment").read_text()
    job = (place.root / "out/job.sbatch").read_text()
    assert all(name in job for name in re.findall("[A-Z]+_TOKEN|[A-Z]+_API_KEY", by_name["gets"]))
    assert f":{THERE}/model:ro" in job
    (place.root / "two.toml").write_text((place.root / "two.toml").read_text() + "\n")
    shutil.rmtree(place.root / "out")
    done = here("launch_job.py", place, "plan", *launch, "--output", "out")
    assert ": global batch 16 (1 x 16 data-parallel ranks), " in done.stdout, "edited since"
    for disk, is_checked in (({THERE: 500}, True), ({}, False)):
        site = describe(place, "slurm", **more | {"disk": disk})
        done = here("check_tao_launch_preflight.py", place, "--site", site, *launch[2:])
        (line,) = re.findall("^checked: (.*)$", done.stdout, re.M)
        assert ("disk" in line.split(", ")) == is_checked, "it says what it compares"


@pytest.mark.parametrize(("count", "is_told"), [(1, False), (8, True)])
def test_all_gpus_of_a_site_are_no_warning_where_the_spec_needs_all(place, count, is_told):
    _, printed = render(place, "docker", "out", gpus={"count": count})
    assert ("JOB-DOCKER-GPUS" in {one["id"] for one in printed["findings"]}) == is_told


@pytest.mark.parametrize("platform", ["docker", "slurm"])
def test_a_copy_of_what_has_the_same_path_there_is_offered(place, platform):
    """Whoever starts it knows whether it lies there; the page is the same wherever it is written,
    and asks this machine nothing."""
    site = describe(place, platform, paths={str(place.root): str(place.root)})
    words = ["plan", "train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    done = here("launch_job.py", place, *words, "--output", "out")
    (line,) = [line for line in done.stdout.splitlines() if "rsync -aLR" in line]
    named = [str(place.root / name) for name in ("a.json", "media", "model")]
    assert line.startswith("    rsync -aLR ") and {*named} <= {*line.split()}
    assert re.search(r" HOST:/   # \d KiB, where it lacks them$", line)
    page = text_of(place.root / "out")["README.md"]
    for path in named:
        told = f"- expected there: {path}\n"
        assert told in page and told not in done.stdout
    assert "rsync -aLR" not in page


def test_lengths_that_the_spec_was_built_with_are_not_called_unknown(place):
    site = describe(place, "slurm")
    change(place, "train", policy__model_max_length=30000)
    words = ["train", "--spec", "train.toml", "--engine", "transformers", "--site", site]
    _, printed = command("launch_job.py", place, "plan", *words)
    assert "SPEC-LENGTH-LOW" in {one["id"] for one in printed["findings"]}
    facts, values = write_facts(place.root, 4), {"policy.model_max_length": "--set"}
    origins.write(place.root / "train.toml", "train", "transformers", values, facts)
    _, printed = command("launch_job.py", place, "plan", *words)
    assert "SPEC-LENGTH-LOW" not in {one["id"] for one in printed["findings"]}
    change(place, "train", policy__model_max_length=20000)
    _, printed = command("launch_job.py", place, "plan", *words)
    assert "SPEC-LENGTH-LOW" in {one["id"] for one in printed["findings"]}, "edited since"


def test_the_memory_of_a_node_is_told_where_the_data_were_read(place):
    """As the preflight reckons it, and what the results take on the way back."""
    site = describe(place, "slurm", models={f"{THERE}/c3": "nvidia/Cosmos3-Nano"})
    change(place, "train", policy__model_name_or_path=f"{THERE}/c3")
    words = ["--spec", "train.toml", "--engine", "transformers", "--site", site]
    plan = ["launch_job.py", place, "plan", "train", *words]
    unread = here(*plan, "--output", "out").stdout
    assert (
        "  a node   unset, so the cluster's default: --cpus" in unread
        and "GiB of memory" not in unread
    )
    assert re.search(r"- at its end: `rsync .*`   # up to \d\d+\.\d GiB\n", unread)
    change(place, "train", custom__train_dataset__annotation_path="/data/annotations.json")
    facts = write_facts(place.root, 40)
    origins.write(place.root / "train.toml", "train", "transformers", {}, facts)
    preflight = ["check_tao_launch_preflight.py", place, *words, "--dataset-facts", facts]
    _, printed = command(*preflight)
    gib = printed["result"]["prediction"]["host_gib"]
    needed = math.ceil(gib)
    limit = math.ceil(1.25 * needed)  # it ends the job where it is reached
    assert f", --memory {limit}G\n" in here(*plan, "--output", "out").stdout
    told = here(*plan, "--memory", "200G", "--cpus", "16", "--output", "out").stdout
    assert f"  a node   needs about {needed} GiB of memory\n" in told
