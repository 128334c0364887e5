"""What a job in a container gets, whatever platform starts it: its image, its spec with the
container's paths, its command there, its environment. What it sees of the machine: `mounts`."""

from __future__ import annotations

import copy
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Finding, error, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import engines, mounts, options, record
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import document, images

# Variables of this machine that a container gets, if they are set; others only when they are asked
# for by name.
PASSED_VARIABLES = re.compile(
    r"HF_TOKEN|HUGGING_FACE_HUB_TOKEN|WANDB_API_KEY|NGC_API_KEY|HF_ENDPOINT|AWS_\w+", re.ASCII
)
CREDENTIALS = ("HF_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "AWS_ACCESS_KEY_ID",
               "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")  # fmt: skip
# What needs a place to write for a user that the image does not know, in the job's folder.
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "COSMOS_CACHE", "TORCH_HOME",
          "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")  # fmt: skip
HOME_VARIABLES = {"HOME": "home"} | {name: f"home/.cache/{name.lower()}" for name in CACHES}
# Of this bundle, what a job starts, and the packages that it never imports.
STARTED_THERE = ("run_with_transformers.py", "train_with_cosmos_rl.py")
NOT_THERE = ["pages", "jobs", "preflight", "tuning", "demo"]  # packages
IMAGE_NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)  # in a registry


def check_image(
    launch: Launch, paths: re.Pattern | None = None, example: str = ""
) -> list[Finding]:
    """Return whether there is an image to run: its name in a registry, or a path such as `example`
    where the platform runs `paths` too."""
    image = launch.image
    if not image:
        message = f"got none, and engine {launch.engine} has no image of its own; "
        facts = bundle.skill_info()["engines"]
        message += f"expected the name of one, {facts[launch.engine]['image_needs']}"
        if launch.action in facts[images.ENGINE]["actions"]:
            message += f"; or a spec made with --engine {images.ENGINE}, which has one"
        return [error("JOB-IMAGE", "--image", message, Fix(flags={"--image": "NAME"}))]
    if not IMAGE_NAME.fullmatch(image) and not (paths and paths.fullmatch(image)):
        forms = f"REGISTRY/NAME:TAG or {example}" if paths else "REGISTRY/NAME:TAG"
        return [error("JOB-IMAGE", "--image", f"got {image!r}, expected a name such as {forms}")]
    issue = images.issue(image, launch.engine, launch.image_version)
    if issue:
        what, better_image = issue
        return [warning("JOB-IMAGE-ISSUE", image, what, Fix(flags={"--image": better_image}))]
    return []


def spec_inside(job: Job, spec: dict) -> dict:
    """Return the spec with the container's paths, as its image reads it."""
    mapped = copy.deepcopy(spec)
    for entry in job.inputs:
        document.set_value(mapped, entry["role"], mounts.inside(entry["path"]))
    for key, schema in document.keys(job.action).items():
        value = document.get(mapped, key)
        if schema.get("x-path") == "output" and isinstance(value, str) and value:
            document.set_value(mapped, key, mounts.inside(value))
    if job.engine != images.ENGINE:
        return mapped
    return images.rendered(job.action, mapped, _image_facts(job), mounts.inside(job.folder))


def write_spec(path: Path, job: Job, inside: dict, beside: str) -> None:
    """Write what `spec_inside` gave; the schema that its first line names is written to `beside`,
    below its folder: an image of NVIDIA's has keys of its own, and the folder may be carried
    elsewhere."""
    schema = files.read_json(bundle.schema_path(job.action))
    if job.engine == images.ENGINE:
        schema = images.schema(job.action, _image_facts(job))
    files.write_json(path.parent / beside, schema)
    document.dump(inside, path, job.action, beside)


def spec_name(job: Job) -> str:
    """Return the file in the job's folder that its program reads: of a folder that is carried
    elsewhere spec.toml, which Docker's run.sh copies."""
    is_as_written = job.is_carried and job.platform != "docker"
    return record.SPEC if is_as_written else record.CONTAINER_SPEC


def command(job: Job, spec: dict) -> list[str]:
    """Return the program of a job and its arguments, as the container runs them."""
    image_facts = _image_facts(job)
    script = engines.dataset_script(job)
    of_image = script == options.IMAGES_SCRIPT
    return engines.words(
        job,
        spec_inside(job, spec),
        inside=mounts.inside,
        python=image_facts.get("python", "python3"),
        entry_script=image_facts.get("entry_script") if of_image else mounts.inside(script),
        program=engines.own_program(job.engine),
        config=mounts.inside(job.folder / spec_name(job)),
        job=mounts.inside(job.folder),
        scripts=mounts.inside(engines.programs(job) / "scripts"),
    )


def _image_facts(job: Job) -> dict:
    """Return what is known of NVIDIA's image that runs the job; nothing of an image of one's
    own."""
    if job.engine != images.ENGINE:
        return {}
    return images.facts(job.image, job.options.get("image_version"))


def values(job: Job) -> dict[str, str]:
    """Return the variables of a container that are no secrets."""
    user = os.environ.get("USER") or f"uid{os.getuid()}"
    if job.is_carried:
        user = "user"  # nothing of this machine goes elsewhere
    found = {"USER": user, "LOGNAME": user, "PYTHONUNBUFFERED": "1"}
    found |= engines.environment(job)
    for name, value in _image_facts(job).get("environment", {}).items():
        found[name] = value.format(job_id=job.job_id, job=mounts.inside(job.folder))
    for name, below in HOME_VARIABLES.items():
        found[name] = mounts.inside(job.folder / below)
    cache = mounts.hub_cache(job)
    if cache:
        found["HF_HUB_CACHE"] = mounts.inside(cache)
    return found


def written_down(job: Job, spec: dict) -> dict[str, str]:
    """Return the variables whose values may stand in a command or a file: all but those that are
    passed by name."""
    names = passed(job, spec)
    return {name: value for name, value in values(job).items() if name not in names}


def passed(job: Job, spec: dict) -> list[str]:
    """Return names of the variables with a value here that the container gets. The image is
    somebody else's program: it gets what it may need and what was asked for by name."""
    if job.is_carried:  # what the submitting shell there has is not known here
        return list(dict.fromkeys([*CREDENTIALS, *job.options.get("env", [])]))
    names = sorted(name for name in os.environ if PASSED_VARIABLES.fullmatch(name))
    names += job.options.get("env", [])
    if job.options.get("endpoint"):
        names.append(document.get(spec, "custom.endpoint.api_key_variable") or "")
    return [name for name in dict.fromkeys(names) if os.environ.get(name)]


def write(folder: Path, job: Job, spec: dict) -> Job:
    """Write the container's spec and the folders of its home; returns the record with the hash of
    that spec."""
    path = folder / record.CONTAINER_SPEC
    write_spec(path, job, spec_inside(job, spec), path.with_suffix(".schema.json").name)
    # A user that the image does not know has no home there, and programs write into theirs.
    for below in HOME_VARIABLES.values():
        (folder / below).mkdir(parents=True, exist_ok=True)
    cache = mounts.hub_cache(job)
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
    digest = files.sha256(folder / record.CONTAINER_SPEC)
    return replace(job, spec=job.spec | {"container_sha256": digest})


def needs_library(job: Job) -> bool:
    """Return whether the job runs more of this bundle than the programs of in_container/, which
    need nothing beside them: a dataset script of somebody's own may import it."""
    brings_its_own = "entry_script" in job.options
    return brings_its_own or any(word.endswith(STARTED_THERE) for word in job.command)


def copy_programs(skill: Path, with_library: bool = True) -> None:
    """Copy what a job's container runs of this bundle, with what that reads: neither the commands
    of people nor the packages that stand behind the engine's."""
    alone = Path("scripts", "in_container")
    if not with_library:
        files.copy_tree(bundle.ROOT / alone, skill / alone, shutil.ignore_patterns("__*"))
        return

    def left_out(folder: str, names: list[str]) -> list[str]:
        found = [name for name in names if name == "__pycache__"]
        if Path(folder) == bundle.ROOT / "scripts":
            found += [name for name in names if name.endswith(".py") and name not in STARTED_THERE]
        if Path(folder) == bundle.ROOT / "scripts" / "cosmos_reason":
            found += NOT_THERE
        return found

    for part in ("scripts", "schemas"):
        files.copy_tree(bundle.ROOT / part, skill / part, left_out)
    # For who has to make an environment there; the engine's names others.
    named = sorted(bundle.ROOT.glob("requirements-*.txt"))
    needed = (bundle.ROOT / bundle.ENGINE_PACKAGES).read_text(encoding="utf-8")
    packages = [path.name for path in named if f"-r {path.name}\n" in needed]
    for name in ("skill_info.yaml", "requirements.txt", bundle.ENGINE_PACKAGES, *packages):
        shutil.copyfile(bundle.ROOT / name, skill / name)
