"""A plan as a folder to carry to the place that runs it: spec.toml as the trainer reads it, what
starts it there (run.sh, job.sbatch, manifests/), and the programs of this skill that it needs.
Enter at `write`.

On docker each run has a folder of its own below ./jobs there; elsewhere the folder that is written
is the job's, at the path that it will have there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from textwrap import indent

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.base.site import Site
from cosmos_reason.checkpoints.conversion import PROVENANCE
from cosmos_reason.jobs import containers, engines, record, reward_files, run_size
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.platforms import kubernetes, slurm
from cosmos_reason.jobs.platforms.slurm import script
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import model_names
from cosmos_reason.spec import actions, document

JOB = Path("/job")  # where the container has the job's folder, whatever its name is outside
SKILL = "skill"  # the folder with the programs
RUNS = "runs"  # ids of the runs that Docker's run.sh has begun, a line each
# What starts a launch, unless --name calls it otherwise, and what else lies or comes beside it.
START = {"local": "run.sh", "docker": "run.sh", "slurm": "job.sbatch", "kubernetes": "job.yaml"}
PLACE = ("context", "namespace")  # of a cluster, as flags of kubectl
BESIDE = ("README.md", "launch.json", record.SPEC, record.CONTAINER_SPEC, "submit.sh", SKILL, RUNS,
          "home", "results", "jobs", "manifests",
          record.LOG, record.METRICS)  # fmt: skip
KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")  # of a Job, less a pod's number
# What is the same for every launch stands in docker_run.sh, local_run.sh and slurm_job.sh of the
# skill; what starts one says only what is its own.
RUN = """#!/usr/bin/env bash
# {title}, with spec.toml beside this file
action={action}
reads=({reads})
{settings}
. {programs}/scripts/in_container/{platform}_run.sh
"""
DOCKER = """new=({new}) outputs=({outputs})
image={image} offline={offline} user={user} skill={skill} names=({names})
flags=(
  {flags}
)
program=({program})"""
LOCAL = """job={folder}
{path}new=({new}) outputs=({outputs})
exports=({exports})
program=({program})"""
SUBMIT = """#!/bin/sh
# Hands the job to SLURM; prints its number.
cd "$(dirname "$0")" && exec sbatch --parsable {start}
"""
README = """# {title}

Rendered by launch_job.py plan, and not run there yet. Copy it and its inputs (never in it){host}:

{copied}

{first}- start there: {start}
- watch: `{watch}`
- at its end: `rsync -a --mkpath --exclude skill/ --exclude home/ {ran}/ {back}`{results}{brought}
- go on here: `scripts/launch_job.py adopt {back}{site}`
{expected}
"""
NEXT = "copy and start it by these lines; no file has to be opened"
KNOWN = "\nKnown when it was rendered:\n"
OFFLINE = "without the Hub"
LAUNCH = "launch.json"
ENVIRONMENT = f"{SKILL}/environment"  # NAME=VALUE, a line each: for --env-file, and keep_log.py


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
    launch: Launch,
    output: Path,
    host_user: str | None,
    name: str | None,
    found: list[Finding],
) -> None:
    """Fill the folder `output`, which is new or empty. `job` and `spec` have the paths of the
    place, `launch` those of this machine; `host_user` is UID:GID, else that of whoever starts it;
    `name` is that of the file which starts it; `found` is what speaks against it."""
    site = launch.site
    with files.only_run(output), files.whole_folder(output) as work:
        title = f"{job.action} with {job.engine} on {job.platform}"
        start = name or START[job.platform]
        (work / SKILL).mkdir()
        if not (site and site.get("skill_dir")):
            containers.copy_programs(work / SKILL, containers.needs_library(job))
        # The spec as the trainer reads it, which in an image of NVIDIA's has keys of its own.
        schema, as_read = f"{SKILL}/spec.schema.json", spec
        if job.image is None:
            files.write_json(work / schema, files.read_json(bundle.schema_path(job.action)))
            document.dump(spec, work / record.SPEC, job.action, schema, job.engine)
        else:
            as_read = containers.spec_inside(job, spec)
            containers.write_spec(work / record.SPEC, job, as_read, schema)
        if job.platform == "docker":
            job = _docker(work / start, job, spec, title, host_user, site)
        elif job.platform == "local":
            _local(work / start, job, spec, title, site)
        elif job.platform == "slurm":
            job = _slurm(work / start, job, spec)
        else:
            (work / "manifests").mkdir()
            files.write_text(work / "manifests" / start, kubernetes.manifest(job, spec))
            variables = containers.written_down(job, spec).items()
            _write_environment(work, [f"{key}={value}" for key, value in variables])
        page = _readme(work, job, launch, output, title, start)
        warned = [one for one in found if one.severity == findings.WARNING]
        if warned:
            page += KNOWN + "".join(f"- {one.where}: {one.message}\n" for one in warned)
        files.write_text(work / "README.md", findings.printable(page))
        # What `adoption` reads when the results are back, on one line: it is for programs.
        launch = job.to_json() | {"site": site.name if site else None}
        if as_read != spec:  # with the paths of the place, before an image's own form of it
            launch["table"] = spec
        launch["spec"]["read_sha256"] = read_sha256(work)
        launch["rendered_sha256"] = _rendered_sha256(work)
        files.write_text(work / LAUNCH, json.dumps(launch, ensure_ascii=False) + "\n")


def is_untouched(folder: Path) -> bool:
    """Return whether nothing was changed, added or run in a rendered folder: the same request, or a
    better one, makes it anew and nothing is lost."""
    told = model_names.read_table(folder / LAUNCH).get("rendered_sha256")
    return told is not None and told == _rendered_sha256(folder)


def holds_evaluation(folder: Path) -> bool:
    """Return whether an evaluation was rendered into a folder below this one."""
    launches = (model_names.read_table(path) for path in folder.glob(f"*/{LAUNCH}"))
    return any(launch.get("action") == "evaluate" for launch in launches)


def words_of_untouched(asked: Launch) -> list[str]:
    """Return the words for build_spec that ask the model which a training begins with as the
    training asks it; none where the engine asks nothing, where no site says how to launch it, and
    where its validation data are no folder of annotations.json and media."""
    written = asked.written
    questions = document.get(written, "custom.val_dataset.annotation_path")
    media = document.get(written, "custom.val_dataset.media_path")
    model = document.get(written, "policy.model_name_or_path")
    able = bundle.skill_info()["engines"][asked.engine]["actions"]
    is_root = questions and Path(questions) == Path(media or "") / "annotations.json"
    if not (asked.site and model and is_root and "evaluate" in able):
        return []
    words = [] if asked.engine == "tao" else ["--engine", asked.engine]
    words += ["--model", files.from_here(model)]
    words += ["--eval-root", files.from_here(Path(questions).parent)]
    usual = document.template("evaluate")
    for key, value in actions.trained_view(written, "evaluate").items():
        if value not in ("", document.get(usual, key)):
            words += ["--set", f"{key}={value_text(value)}"]
    return [*words, "--site", files.from_here(asked.site.path)]


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


def copied(inputs: list[dict], site: Site | None) -> dict[str, str]:
    """Return path there -> the same here, for each input of this machine that the site calls
    otherwise. `inputs` are a launch's, with their paths here."""
    found = {}
    named = dict.fromkeys(entry["path"] for entry in inputs)
    for here in named if site else ():
        there, path = site.there(here), Path(here)
        comes_with_its_folder = any(str(folder) in named for folder in path.parents)
        if there != here and not comes_with_its_folder and path.exists():
            found[there] = files.from_here(path)
    return found


def _copying(paths: dict[str, str]) -> list[str]:
    """Return the lines that copy what `copied` tells, with sizes: one for all that is called the
    same below one folder there, whose own folders keep their rights and owners."""
    lines, together = [], {}
    for there, here in paths.items():
        top = there.removesuffix(f"/{here}")
        if top != there:
            together.setdefault(f"HOST:{top}/", []).append(here)
            continue
        slash = "/" if os.path.isdir(here) else ""
        words = ["rsync", "-aL", "--mkpath", f"{here}{slash}", f"HOST:{there}{slash}"]
        lines.append(f"{shlex.join(words)}   # {_size(_bytes(Path(here)))}")
    for top, names in together.items():
        words = ["rsync", "-aLR", "--mkpath", "--no-implied-dirs", *names, top]
        told = ", ".join(_size(_bytes(Path(name))) for name in names)
        lines.append(f"{shlex.join(words)}   # {told}")
    return lines


def _bytes(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_size for one in inside if one.is_file())


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def content(output: Path, start: str) -> str:
    """Return the names in a rendered folder, those that a person reviews first."""
    holder = "manifests/" if (output / "manifests").is_dir() else ""
    shown = [f"{holder}{start}", record.SPEC, "README.md"]
    first = {path.partition("/")[0] for path in shown}
    rest = sorted(path.name for path in output.iterdir() if path.name not in {*first, SKILL})
    return ", ".join([*shown, *rest, f"{SKILL}/ (its programs)"])


def said_of(output: Path, inputs: list[dict], site: Site | None) -> str:
    """Return what the page of a rendered folder says of it beyond `in_words.of_rendered`, with the
    lines that copy inputs outside the working directory, and those that have the same path there:
    the page leaves them out, which is the same wherever it is rendered."""
    page = files.read_text(output / "README.md")
    steps = page.partition("not run there yet. ")[2].partition(KNOWN)[0]
    steps = re.sub(rf"\n- (image [^,\n]|{OFFLINE}).*", "", steps)
    more = {there: here for there, here in copied(inputs, site).items() if os.path.isabs(here)}
    expected = re.findall("^- expected there: (.*)$", steps, re.M)
    same = [path for path in expected if path not in more and os.path.exists(path)]
    for path in (*more, *same):
        steps = steps.replace(f"\n- expected there: {path}\n", "\n", 1)
    lines = _copying(more)
    tops = [Path(path) for path in same if not {*map(str, Path(path).parents)} & {*same}]
    if tops:
        told = shlex.join(["rsync", "-aLR", *map(str, tops), "HOST:/"])
        lines.append(f"{told}   # {_size(sum(map(_bytes, tops)))}, where it lacks them")
    for line in lines:
        steps = steps.replace("\n    ", f"\n    {line}\n    ", 1)
    return "c" + steps.replace("\n\n", "\n").strip().removeprefix("C")


def read_sha256(folder: Path) -> str:
    """Return the hash of the spec that the program reads in a rendered folder, or in one that it
    ran in, without the line that names a schema: run.sh takes that away."""
    lines = read_spec(folder).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b"#:schema ")]
    return hashlib.sha256(b"".join(kept)).hexdigest()


def read_spec(folder: Path) -> Path:
    """Return the spec that the program reads: run.sh writes its own form of it for Docker."""
    named = [folder / name for name in (record.CONTAINER_SPEC, record.SPEC)]
    return next(path for path in named if path.is_file())


def _inputs(job: Job, spec: dict) -> list[str]:
    named = list(dict.fromkeys(entry["path"] for entry in job.inputs))
    script = job.options.get("entry_script", "")
    if Path(script).is_absolute():
        named.append(script)
    return named + [str(path) for path in reward_files.files(spec)]


def _readme(work: Path, job: Job, launch: Launch, output: Path, title: str, start_name: str) -> str:
    """Return the page that tells whoever has the folder to copy, start, watch and bring back."""
    name, site = output.name, launch.site
    size = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    whole = f"rsync -aL {name}/ HOST:{job.folder}/"
    start, watch = f"`bash {name}/{start_name}`", f"tail -f {job.folder}/log.txt"
    ran, back = f"HOST:{job.folder}", f"back/{name}"
    if job.platform == "docker":
        whole, watch = f"rsync -aL {name} HOST:", "tail -f jobs/ID/log.txt"
        start += ", which prints ID and makes ./jobs/ID"
        ran, back = "HOST:jobs/ID", "jobs/ID"
    elif job.platform == "slurm":
        start = f"`bash {name}/submit.sh`, or `sbatch {name}/{start_name}`"
        watch = f"squeue --me; {watch}"
    elif job.platform == "kubernetes":
        asked = job.options.get("kubernetes", {})
        where = [f"--{word} {shlex.quote(asked[word])}" for word in PLACE if asked.get(word)]
        kubectl = " ".join(["kubectl", *where])
        start = f"`{kubectl} apply -f {name}/manifests/`"
        watch = f"{kubectl} logs -f job/{job.job_id}"
    whole += f"   # {_size(size)}"
    below_here = {}
    for there, here in copied(launch.inputs, site).items():
        if not os.path.isabs(here):
            below_here[there] = here
    kept, gib = run_size.kept_checkpoints(launch.case)
    lines = []
    told = [*below_here, *(site.models if site else ())]
    for path in dict.fromkeys(_inputs(job, {})):
        is_told = any(there == path or path.startswith(f"{there}/") for there in told)
        lines += [] if is_told else [f"- expected there: {path}"]
    if job.image:
        lines.append(f"- image {engines.image_there(job)}")
        if site and site.is_offline and job.platform == "docker":
            save = f"docker pull {job.image} && docker save -o image.tar {job.image}"
            lines[-1] = f"- image: `{save}` here, `docker load -i image.tar` there"
        elif job.platform == "docker":
            lines[-1] = f"- image, pulled there at the start: `docker pull {job.image}`"
    lines += _models(job, site) if site else []
    own_outputs = _outputs_elsewhere(job, site)
    if job.options["carried"].get("offline"):
        lines.append(f"- {OFFLINE} (it sets HF_HUB_OFFLINE=1)")
    first = ""
    environment = site.get("environment") if site and not job.image else None
    brings_skill = not (site and site.get("skill_dir"))
    if environment and job.engine == "transformers" and brings_skill:
        named = ["requirements.txt", bundle.ENGINE_PACKAGES]
        words = " ".join(f"-r {name}/{SKILL}/{file}" for file in named)
        first = f"- first, in {environment}: `pip install {words}`\n"
    elif environment and engines.own_program(job.engine):
        made = shlex.join(["make", f"COSMOS={environment}", "setup-cosmos-rl"])
        first = f"- first, where it is not there: `{made}`, in a copy of this whole skill\n"
    if job.platform != "kubernetes":
        # Where the disk's folders go: to what the site calls its own; Docker's may lie anywhere.
        moved = [*below_here, *([] if job.platform == "docker" else [str(job.folder)])]
        own = sorted(site.paths if site else (), key=len)
        tops = []
        for place in moved:
            holding = (one for one in own if place == one or place.startswith(f"{one}/"))
            tops.append(next(holding, place))
        moves = [shlex.join(["cp", "-r", f"M{top}/.", f"{top}/"]) for top in dict.fromkeys(tops)]
        moves += [shlex.join(["cp", "-r", f"M/{name}", "."])] if job.platform == "docker" else []
        there = ran.removeprefix("HOST:")
        lines.append(
            f"- by a disk at M: `M/` for `HOST:`; there `{' && '.join(moves)}`, "
            f"at the end `{shlex.join(['cp', '-r', '--parents', there, *own_outputs, 'M'])}`"
            + (f", to M/{there}" if job.platform == "docker" else "")
        )
    if job.platform == "kubernetes":
        names = "|".join([*containers.CREDENTIALS[:2], *job.options.get("env", [])])
        values = f"<(env | grep -E '^({names})=')"  # by name: nothing of a value stands here
        command = f"{kubectl} create secret generic {job.job_id} --from-env-file={values}"
        lines.append(f"- secrets, if any: `{command}`")
    return README.format(
        title=title,
        host=" to a HOST that has the claim mounted" if job.platform == "kubernetes" else "",
        copied=indent("\n".join([*_copying(below_here), whole]), "    "),
        first=first,
        start=start,
        watch=watch,
        ran=ran,
        back=back,
        results=f"   # up to {kept * gib:.1f} GiB" if kept * gib >= 0.1 else "",
        brought="".join(
            f", and `{shlex.join(['rsync', '-a', '--mkpath', f'HOST:{path}/', f'{here}/'])}`"
            for path, here in own_outputs.items()
        ),
        site=f" --site {shlex.quote(files.from_here(site.path))}" if site else "",
        expected="\n".join(lines),
    )


def _outputs_elsewhere(job: Job, site: Site | None) -> dict[str, str]:
    """Return path there -> where `adopt` looks for it here, for each folder that the job writes to
    outside of its own: what a spec names, and where the attempt before a retry wrote."""
    found = {}
    for there in job.outputs.values():
        if JOB in Path(there).parents or Path(there).is_relative_to(job.folder):
            continue
        here = site.place_here(there) if site else there
        found[there] = files.from_here(here) if here != there else there
    return found


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


def _write_environment(work: Path, lines: list[str]) -> None:
    """Write the variables of a run that are no secrets, where nobody has to read them."""
    files.write_text(work / ENVIRONMENT, "\n".join([*lines, ""]))


def _local(start: Path, job: Job, spec: dict, title: str, site: Site | None) -> None:
    values = engines.environment_on_host(job, job.command[0])
    settings = LOCAL.format(
        folder=shlex.quote(str(job.folder)),
        path=engines.path_there(job),
        new=shlex.join(script.new_outputs(job)),
        outputs=shlex.join(job.outputs.values()),
        exports=shlex.join(f"{name}={value}" for name, value in sorted(values.items())),
        program=shlex.join(job.command),
    )
    _write_run(start, job, spec, title, settings, site)


def _write_run(
    start: Path, job: Job, spec: dict, title: str, settings: str, site: Site | None
) -> None:
    skill_dir = site.get("skill_dir") if site else None
    text = RUN.format(
        title=title,
        action=job.action,
        reads=shlex.join(_inputs(job, spec)),
        settings=settings,
        programs=shlex.quote(skill_dir) if skill_dir else f'"$(dirname "$0")"/{SKILL}',
        platform=job.platform,
    )
    files.write_text(start, text)
    start.chmod(0o755)


def _slurm(start: Path, job: Job, spec: dict) -> Job:
    """Write job.sbatch: what submit hands to sbatch as flags and arguments stands in the file.
    Return the job with that file in its command."""
    batch = str(job.folder / script.BATCH)
    flags = job.command[1 : job.command.index(batch)]
    flags = [flag for flag in flags if not flag.startswith(("--parsable", "--export="))]
    flags.append(f"--export={','.join(['HOME', 'USER', 'PATH', *containers.passed(job, spec)])}")
    slurm.write(start.parent, job, spec, flags)
    start.with_name(script.BATCH).rename(start)
    files.write_text(start.with_name("submit.sh"), SUBMIT.format(start=start.name))
    start.with_name("submit.sh").chmod(0o755)
    named = {batch: str(job.folder / start.name)}
    return replace(job, command=[named.get(word, word) for word in job.command])


def _docker(
    start: Path, job: Job, spec: dict, title: str, host_user: str | None, site: Site | None
) -> Job:
    """Write run.sh: of the `docker run` that submit calls what is this launch's own. What differs
    from run to run docker_run.sh adds, and the variables stand in a file. Return the job with that
    file in its command."""
    words = job.command[job.command.index("run") + 1 :]
    after_image = words.index(job.image)
    flags, variables, names = [], [], [MARK]
    of_docker = iter(words[1:after_image])
    for flag in of_docker:
        if "=" in flag or flag == "--init":
            flags.append([flag])
            continue
        value = next(of_docker)
        name, _, told = value.partition("=")
        if flag == "--env" and told == JOB.name:
            names.append(name)
        elif flag == "--env":  # by its name alone it is that of whoever starts it
            variables.append(value)
        elif flag not in ("--name", "--label", "--user", "--group-add") and not value.startswith(
            f"type=bind,source={JOB},"
        ):
            flags.append([flag, value])
    skill_dir = site.get("skill_dir") if site else None
    settings = DOCKER.format(
        new=shlex.join(script.new_outputs(job)),
        outputs=shlex.join(path for path in job.outputs.values() if JOB not in Path(path).parents),
        image=shlex.quote(job.image),
        offline="yes" if site and site.is_offline else "",
        user=shlex.quote(host_user) if host_user else "",
        names=" ".join(names),
        skill=shlex.quote(skill_dir) if skill_dir else "",
        flags="\n  ".join(map(shlex.join, flags)),
        program=shlex.join(words[after_image + 1 :]),
    )
    _write_environment(start.parent, variables)
    _write_run(start, job, spec, title, settings, site)
    told = [word for flag in flags for word in flag]
    command = ["docker", "run", "--env-file", ENVIRONMENT, *told, *words[after_image:]]
    return replace(job, command=command)
