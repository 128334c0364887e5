"""A plan as a folder to carry to the place that runs it: spec.toml as the trainer reads it, what
starts it there (run.sh, job.sbatch, manifests/), and the programs of this skill that it needs.
Enter at `write`.

On docker each run has a folder of its own below ./jobs there; elsewhere the folder that is written
is the job's, at the path that it will have there."""

from __future__ import annotations

import csv
import hashlib
import re
import shlex
from pathlib import Path
from textwrap import indent

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.base.site import Site
from cosmos_reason.checkpoints.conversion import PROVENANCE
from cosmos_reason.jobs import containers, engines, record, reward_files
from cosmos_reason.jobs.platforms import docker, kubernetes, slurm
from cosmos_reason.jobs.platforms.slurm import script
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import model_names
from cosmos_reason.spec import document

JOB = Path("/job")  # where the container has the job's folder, whatever its name is outside
SKILL = "skill"  # the folder with the programs
RUNS = "runs"  # ids of the runs that Docker's run.sh has begun, a line each
# What starts a launch, unless --name calls it otherwise, and what else lies or comes beside it.
START = {"local": "run.sh", "docker": "run.sh", "slurm": "job.sbatch", "kubernetes": "job.yaml"}
PLACE = ("context", "namespace")  # of a cluster, as flags of kubectl
BESIDE = ("README.md", "launch.json", record.SPEC, record.CONTAINER_SPEC, "container.schema.json",
          "spec.schema.json",
          "submit.sh", "environment", SKILL, RUNS, "home", "results", "jobs", "manifests",
          record.LOG, record.METRICS)  # fmt: skip
KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")  # of a Job, less a pod's number
RUN = """#!/usr/bin/env bash
# {title}: starts the job in a container, with spec.toml beside this file.
# Each run has an id and a folder of its own below ./jobs (or ${jobs_variable}).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
id={new_id}
user={user}

for path in {inputs}; do
  [ -e "$path" ] || {{ echo "got no $path on this machine, expected it there" >&2; exit 2; }}
done
docker image inspect {image} >/dev/null 2>&1 || {fetch}
{empty}jobs=${{{jobs_variable}:-jobs}}
mkdir -p "$jobs"
job=$(cd "$jobs" && pwd -P)/$id
mkdir -p {folders}
grep -v '^#:schema ' "$here/{spec}" >"$job/{container_spec}"
cp "$here/launch.json" "$job/"
echo "$id" >"$job/run.id"
# The container has this folder mounted: a plan must not write it anew meanwhile.
{{ echo "$id" >>"$here/{runs}"; }} 2>/dev/null || true

{command}
date +%s >"$job/run.started"
nohup setsid sh -c 'docker logs -f "$1" >"$2/log.txt" 2>&1
code=$(docker wait "$1") && echo "$code $(date +%s)" >"$2/run.exit"' sh "$id" "$job" \\
  </dev/null >/dev/null 2>&1 &
echo "job $id is in $job; follow it with: tail -f $job/log.txt"
"""
LOCAL = """#!/usr/bin/env bash
# {title}: runs the job in this folder, in the background.
set -euo pipefail
cd "$(dirname "$0")"
if [ "$(pwd -P)" != "$(realpath -m {folder})" ]; then
  echo "expected this folder at "{folder} >&2; exit 2
fi
[ ! -e run.id ] || {{ echo "it ran here already: see log.txt" >&2; exit 2; }}
for path in {inputs}; do
  [ -e "$path" ] || {{ echo "got no $path on this machine, expected it there" >&2; exit 2; }}
done
{empty}mkdir -p {outputs}
{exports}export {mark}={new_id}
echo "${mark}" >run.id
date +%s >run.started
nohup setsid sh -c '"$@" >>log.txt 2>&1; echo "$? $(date +%s)" >run.exit' sh \\
  {command} </dev/null >/dev/null 2>&1 &
echo "started; follow it with: tail -f {folder}/log.txt"
"""
SBATCH = """#!/bin/bash
{directives}
# {title}. `sbatch {start}` in this folder starts it; secrets are those of the submitting shell.
if [ -z "$SLURM_RESTART_COUNT" ]; then  # else SLURM begins it anew, which --requeue allows
  [ ! -e {folder}/run.id ] || {{ echo "it ran here already: see log.txt" >&2; exit 2; }}
  {empty}mkdir -p {folders}
  echo {new_id} >{folder}/run.id
fi
set -- {program}
"""
SUBMIT = """#!/bin/sh
# Hands the job to SLURM; prints its number.
cd "$(dirname "$0")" && exec sbatch --parsable {start}
"""
# Of an image that no registry gives where the network is offline.
LOAD = """{{
  echo "got no image "{image}" here, expected it: docker save, then docker load" >&2; exit 2
}}"""
README = """# {title}

Rendered by launch_job.py plan, and not run there yet. Copy, from the folder where it was rendered:

{copied}

- start there: `{start}`
- watch: `{watch}`
- when it has ended: `rsync -a --mkpath --exclude skill/ --exclude home/ {ran}/ {back}`
- go on here (score, select, retry): `scripts/launch_job.py adopt {back}`
{expected}
"""
KNOWN = "\nKnown when it was rendered:\n"
LAUNCH = "launch.json"
# A run notes its id, start and end in run.id, run.started and run.exit (slurm.* on SLURM), which
# `adoption` reads.
NEW_ID = "{action}-$(date -u +%Y%m%d-%H%M%S)-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \\n')"
# Results of another run in an output folder would be taken for those of this one.
EMPTY = """for path in {outside}; do
  [ -z "$(ls -A "$path" 2>/dev/null)" ] || {{
    echo "got files in $path, expected a new output folder" >&2; exit 2
  }}
done
"""


def check_name(name: str, platform: str) -> list[Finding]:
    """Return an error for a name that the file which starts a launch cannot have."""
    taken = name.startswith(("run.", "node", "slurm.")) and name != START[platform]
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,99}", name, re.ASCII):
        message = f"got {name!r}; expected the name of a file, of letters, digits, -, _ and ."
    elif taken or name in BESIDE:
        message = f"got {name}, which another file of the folder is called; use another name"
    elif platform == "kubernetes" and not name.endswith((".yaml", ".yml")):
        message = f"got {name}; kubectl apply reads files that end in .yaml or .yml"
    else:
        return []
    fix = Fix(flags={"--name": START[platform]})
    return [findings.error("JOB-NAME", "--name", message, fix)]


def write(
    job: Job,
    spec: dict,
    site: Site | None,
    output: Path,
    host_user: str | None,
    name: str | None,
    found: list[Finding],
    here: list[dict],
) -> None:
    """Fill the folder `output`, which is new or empty. `spec` has the paths of the place, `here`
    the inputs with their paths on this machine;
    `host_user` is UID:GID, else that of whoever starts it; `name` is that of the file which starts
    it; `found` is what speaks against it."""
    with files.only_run(output), files.whole_folder(output) as work:
        title = f"{job.action} with {job.engine} on {job.platform}"
        skill_dir = site.get("skill_dir") if site else None
        start = name or START[job.platform]
        if not skill_dir:
            containers.copy_programs(work / SKILL)
        if job.platform == "docker":
            _docker(work / start, job, spec, title, host_user, site)
        elif job.platform == "local":
            _local(work / start, job, spec, title)
        elif job.platform == "slurm":
            _slurm(work / start, job, spec, title)
        else:
            containers.write(work, job, spec)
            (work / "manifests").mkdir()
            files.write_text(work / "manifests" / start, kubernetes.manifest(job, spec))
        page = _readme(work, job, site, output, title, start, copies(here, site))
        warned = [one for one in found if one.severity == findings.WARNING]
        if warned:
            page += KNOWN + "".join(f"- {one.where}: {one.message}\n" for one in warned)
        files.write_text(work / "README.md", findings.printable(page))
        # What `adoption` reads when the results are back.
        # `table` is the spec with the paths of the place, before an image's own form of it.
        launch = job.to_json() | {"site": site.name if site else None, "table": spec}
        launch["spec"]["read_sha256"] = read_sha256(work)
        launch["rendered_sha256"] = _rendered_sha256(work)
        files.write_json(work / LAUNCH, launch)


def is_untouched(folder: Path) -> bool:
    """Return whether nothing was changed, added or run in a rendered folder: the same request, or a
    better one, makes it anew and nothing is lost."""
    told = model_names.read_table(folder / LAUNCH).get("rendered_sha256")
    return told is not None and told == _rendered_sha256(folder)


def _rendered_sha256(folder: Path) -> str:
    """Return the hash of all files in a folder and of their names, but for launch.json, which holds
    it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name != LAUNCH:
            whole = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            digest.update(f"{name} {whole}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def copies(inputs: list[dict], site: Site | None) -> dict[str, str]:
    """Return path there -> the line that copies it, with its size, for each input of this machine
    that the site calls otherwise. `inputs` are a launch's, with their paths here."""
    lines = {}
    named = dict.fromkeys(entry["path"] for entry in inputs)
    for here in named if site else ():
        there, path = site.there(here), Path(here)
        comes_with_its_folder = any(str(folder) in named for folder in path.parents)
        if there == here or comes_with_its_folder or not path.exists():
            continue
        inside = path.rglob("*") if path.is_dir() else [path]
        mib = sum(one.stat().st_size for one in inside if one.is_file()) / 2**20
        slash = "/" if path.is_dir() else ""
        words = ["rsync", "-aL", "--mkpath", f"{files.from_here(path)}{slash}"]
        lines[there] = f"{shlex.join([*words, f'HOST:{there}{slash}'])}   # {mib:.1f} MiB"
    return lines


def said_of(output: Path, inputs: list[dict], site: Site | None) -> str:
    """Return what the page of a rendered folder says of it, with the lines for inputs outside the
    working directory, which the page leaves out: it is the same wherever it is rendered."""
    page = files.read_text(output / "README.md")
    steps = page.partition("\n\n")[2].partition(KNOWN)[0].partition("Copy, ")[2]
    more = [line for line in copies(inputs, site).values() if line not in page]
    lines = ["copy, " + steps, *(f"- also copy: `{line}`" for line in more)]
    return "\n".join(lines).replace("\n\n", "\n").rstrip()


def read_sha256(folder: Path) -> str:
    """Return the hash of the spec that the program reads in a rendered folder, or in one that it
    ran in, without the line that names a schema: run.sh takes that away."""
    named = [folder / name for name in (record.CONTAINER_SPEC, record.SPEC)]
    lines = next(path for path in named if path.is_file()).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b"#:schema ")]
    return hashlib.sha256(b"".join(kept)).hexdigest()


def _started(job: Job) -> dict[str, str]:
    """Return what the scripts of every platform say of a run: its id, and that its outputs are
    new."""
    outside = [path for path in job.outputs.values() if job.folder not in Path(path).parents]
    empty = EMPTY.format(outside=" ".join(map(shlex.quote, outside))) if outside else ""
    if job.retry_of:  # it goes on where the first attempt wrote
        empty = ""
    return {"new_id": NEW_ID.format(action=job.action), "empty": empty, "mark": MARK}


def _inputs(job: Job, spec: dict) -> list[str]:
    named = list(dict.fromkeys(entry["path"] for entry in job.inputs))
    script = job.options.get("entry_script", "")
    if Path(script).is_absolute():
        named.append(script)
    return named + [str(path) for path in reward_files.files(spec)]


def _readme(
    work: Path, job: Job, site: Site | None, output: Path, title: str, start_name: str,
    copied: dict[str, str],
) -> str:  # fmt: skip
    """Return the page that tells whoever has the folder to copy, start, watch and bring back."""
    name = output.name
    whole = f"rsync -aL {name}/ HOST:{job.folder}/"
    start, watch = f"bash {name}/{start_name}", f"tail -f {job.folder}/log.txt"
    ran, back = f"HOST:{job.folder}", f"back/{name}"
    if job.platform == "docker":
        whole, watch = f"rsync -aL {name} HOST:", "tail -f jobs/ID/log.txt"
        ran, back = "HOST:jobs/ID", "jobs/ID"
    elif job.platform == "slurm":
        start = f"sbatch {start_name}` in {name}/, or `bash {name}/submit.sh"
        watch = f"squeue --me; {watch}"
    elif job.platform == "kubernetes":
        asked = job.options.get("kubernetes", {})
        where = [f"--{word} {shlex.quote(asked[word])}" for word in PLACE if asked.get(word)]
        kubectl = " ".join(["kubectl", *where])
        start = f"{kubectl} apply -f {name}/manifests/"
        watch = f"{kubectl} logs -f job/{job.job_id}"
    below_here = {there: line for there, line in copied.items() if " /" not in line}
    lines = []
    for path in dict.fromkeys(_inputs(job, {})):
        comes = any(there == path or path.startswith(f"{there}/") for there in below_here)
        lines += [] if comes else [f"- expected there: {path}"]
    if job.image:
        lines.append(f"- image {job.image}")
        if site and site.is_offline and job.platform == "docker":
            save = f"i={job.image}; docker pull $i && docker save -o image.tar $i"
            load = "docker load -i image.tar"
            lines[-1] = f"- nothing pulls the image there: `{save}` here, copy it, `{load}` there"
    lines += _models(job, site) if site else []
    if job.options["carried"].get("offline"):
        lines.append("- the Hub is out of reach: jobs run with HF_HUB_OFFLINE=1")
    environment = site.get("environment") if site and not job.image else None
    if environment and job.engine == "transformers" and (work / SKILL).is_dir():
        named = ["requirements.txt", bundle.ENGINE_PACKAGES]
        words = " ".join(f"-r {name}/{SKILL}/{file}" for file in named)
        lines.append(f"- {environment} needs what `pip install {words}` installs")
    if (work / SKILL).is_dir():
        size = sum(path.stat().st_size for path in (work / SKILL).rglob("*") if path.is_file())
        lines.append(f"- skill/ holds the programs that run there, {size / 2**20:.1f} MiB")
    if job.platform != "kubernetes":
        lines.append("- by a disk: its mount M in place of `HOST:`, and there `cp -r M/. /`")
    if job.platform == "docker":
        lines.append(f"- {start_name} prints ID and makes jobs/ID where it is started")
    if job.platform == "kubernetes":
        lines.append("- HOST: what has the claim mounted")
        names = "|".join(containers.CREDENTIALS[:2])
        values = f"<(env | grep -E '^({names})=')"  # by name: nothing of a value stands here
        command = f"{kubectl} create secret generic {job.job_id} --from-env-file={values}"
        lines.append(f"- secrets: `{command}`")
    return README.format(
        title=title,
        copied=indent("\n".join([*below_here.values(), whole]), "    "),
        start=start,
        watch=watch,
        ran=ran,
        back=back,
        expected="\n".join(lines),
    )


def _models(job: Job, site: Site) -> list[str]:
    """Return a line for each published model that the job reads: how it comes to a place that does
    not reach the Hub, with its commit and its size where they are known."""
    lines = []
    for path, model in site.models.items():
        if not any(entry["path"] == path for entry in job.inputs):
            continue
        here, size = Path(site.here(path)), ""
        facts = bundle.skill_info()["models"].get(model, {})
        billions = facts.get("parameters_billion", 0)
        if str(here) != path or here.is_dir():
            bytes_here = sum(one.stat().st_size for one in here.rglob("*") if one.is_file())
            size = f", {bytes_here / 2**30:.1f} GiB"
        elif billions:
            size = f", about {2e9 * billions / 2**30:.0f} GiB"
        commit = site.commit_of(path) or _commit(here)
        named = f" --revision {commit}" if commit else ""
        how = f"`hf download {model}{named} --local-dir DIR` where the Hub is in reach, "
        how += "convert it (prepare_cosmos3_vlm_checkpoint.py), " if facts.get("omni") else ""
        lines.append(f"- {path} holds {model}{size}: {how}then rsync it")
    return lines


def _commit(folder: Path) -> str:
    """Return the commit of the published model in a folder here, or of the one that was converted
    into it: by the folder's place in a Hub cache, its provenance, or the notes of `hf download`; ''
    where none of them tells."""
    told = folder.name if folder.parent.name == "snapshots" else ""
    source = model_names.read_table(folder / PROVENANCE).get("source")
    if not told and isinstance(source, dict):
        told = str(source.get("commit"))
    notes = (folder / ".cache" / "huggingface" / "download").glob("*.metadata")
    commits = {note.read_text(errors="replace").partition("\n")[0] for note in notes}
    if not told and len(commits) == 1:
        told = commits.pop()
    return told if re.fullmatch(r"[0-9a-f]{40}", told) else ""


def unknown_commits(job: Job, site: Site) -> list[str]:
    """Return the lines of site.yaml that would name the commits of models which have to be copied
    to a place that does not reach the Hub."""
    if not site.is_offline:
        return []
    found = []
    for path, model in site.models.items():
        is_read = any(entry["path"] == path for entry in job.inputs)
        if is_read and not (site.commit_of(path) or _commit(Path(site.here(path)))):
            found.append(f"models: {{{path}: {model}@COMMIT}}")
    return found


def _write_spec(path: Path, job: Job, spec: dict) -> None:
    """Write the spec with its schema beside it: that of this bundle is not there."""
    beside = path.with_suffix(".schema.json")
    files.write_json(beside, files.read_json(bundle.schema_path(job.action)))
    document.dump(spec, path, job.action, beside.name, job.engine)


def _local(start: Path, job: Job, spec: dict, title: str) -> None:
    _write_spec(start.with_name(record.SPEC), job, spec)
    values = engines.environment_on_host(job, job.command[0])
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(values.items())]
    text = LOCAL.format(
        title=title,
        folder=shlex.quote(str(job.folder)),
        inputs=" ".join(map(shlex.quote, _inputs(job, spec))),
        outputs=" ".join(map(shlex.quote, job.outputs.values())),
        exports="".join(exports),
        command=shlex.join(job.command),
        **_started(job),
    )
    files.write_text(start, text)
    start.chmod(0o755)


def _slurm(start: Path, job: Job, spec: dict, title: str) -> None:
    """Write job.sbatch: what submit hands to sbatch as flags and arguments stands in the file."""
    _write_spec(start.with_name(record.SPEC), job, spec)
    job = slurm.write(start.parent, job, spec)
    batch = str(job.folder / script.BATCH)
    flags = job.command[1 : job.command.index(batch)]
    names = containers.passed(job, spec)
    # The folders that a job writes to; empty ones are lost on the way through git.
    homes = [str(job.folder / below) for below in containers.HOME_VARIABLES.values()]
    folders = dict.fromkeys([*job.outputs.values(), *(homes if job.image else ())])
    flags = [flag for flag in flags if not flag.startswith(("--parsable", "--export="))]
    flags.append(f"--export={','.join(['HOME', 'USER', 'PATH', *names])}")
    head = SBATCH.format(
        title=title,
        start=start.name,
        directives="\n".join(f"#SBATCH {shlex.quote(flag)}" for flag in flags),
        folder=shlex.quote(str(job.folder)),
        folders=" ".join(map(shlex.quote, folders)),
        **_started(job),
        program=shlex.join(job.command[job.command.index(batch) + 1 :]),
    )
    written = files.read_text(start.with_name(script.BATCH))
    start.with_name(script.BATCH).unlink()
    files.write_text(start, head + written.partition("\n")[2])
    files.write_text(start.with_name("submit.sh"), SUBMIT.format(start=start.name))
    start.with_name("submit.sh").chmod(0o755)


def _docker(
    start: Path, job: Job, spec: dict, title: str, host_user: str | None, site: Site | None
) -> None:
    spec = containers.spec_inside(job, spec)
    image = shlex.quote(job.image)
    fetch = LOAD.format(image=image) if site and site.is_offline else f"docker pull {image}"
    outside = [path for path in job.outputs.values() if JOB not in Path(path).parents]
    homes = [f'"$job/{below}"' for below in containers.HOME_VARIABLES.values()]
    facts = {
        "title": title,
        "jobs_variable": record.JOBS_DIR_VARIABLE,
        "user": shlex.quote(host_user) if host_user else '"$(id -u):$(id -g)"',
        "inputs": " ".join(map(shlex.quote, _inputs(job, spec))),
        "image": image,
        "fetch": fetch,
        "folders": " ".join([*homes, *map(shlex.quote, outside)]),
        "spec": record.SPEC,
        "container_spec": record.CONTAINER_SPEC,
        "runs": RUNS,
        "command": _command(job, site.get("skill_dir") if site else None),
        **_started(job),
    }
    containers.write_spec(start.with_name(record.SPEC), job, spec)
    files.write_text(start, RUN.format(**facts))
    start.chmod(0o755)


def _command(job: Job, skill_dir: str | None) -> str:
    """Return the `docker run` of the plan, a flag per line, with what differs from run to run as
    variables of the shell. `skill_dir` is where the skill lies there, None where it is copied."""
    words = job.command[job.command.index("run") + 1 :]
    after_image = words.index(job.image)
    lines = ["docker run --detach"]
    flags = iter(words[1:after_image])
    for flag in flags:
        if not flag.startswith("--") or "=" in flag or flag == "--init":
            lines.append(shlex.quote(flag))
            continue
        value = next(flags)
        name, _, told = value.partition("=")
        if flag == "--group-add" or (flag == "--env" and "=" not in value):
            continue  # of the planner's machine
        if flag == "--name":
            value = '"$id"'
        elif flag == "--label":
            value = f'"{docker.LABEL}=$id"'
        elif flag == "--user":
            value = '"$user"'
        elif flag == "--env" and name in ("USER", "LOGNAME"):
            value = f"{name}=user"
        elif flag == "--env" and told == JOB.name:
            value = f'"{name}=$id"'
        elif flag == "--mount" and next(csv.reader([value]))[1] == f"source={JOB}":
            value = f'"type=bind,source=$job,target={JOB}"'
        else:
            value = shlex.quote(value)
        lines.append(f"{flag} {value}")
    programs = f'"type=bind,source=$here/{SKILL},target=/{SKILL},readonly"'
    if skill_dir:
        programs = shlex.quote(f"type=bind,source={skill_dir},target=/{SKILL},readonly")
    lines.append(f"--mount {programs}")
    asked = [*containers.CREDENTIALS, *job.options.get("env", [])]
    lines += [f"--env {name}" for name in dict.fromkeys(asked)]
    lines.append(f'--env "{MARK}=$id"')
    program = words[after_image + 1 :]
    lines.append(f"{shlex.quote(job.image)} {shlex.join(program)}")
    return " \\\n  ".join(lines)
