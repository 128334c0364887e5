"""What a person can say of a launch, and the launch that is made of it.

Each option is one field of `Options`. Its metadata make the flag of launch_job.py and of the
preflight, the help, the platforms that take it, the variables that stand for it, its place in the
record, and the lists of flags in references/: nothing else repeats them.
"""

# ruff: noqa: RUF009 - option() returns a dataclass field

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosmos_reason.base.findings import Finding, bad_input
from cosmos_reason.spec import images

if TYPE_CHECKING:  # supervisors of jobs, which import this too, look at no spec and no site
    from cosmos_reason.base.site import Site
    from cosmos_reason.rules.case import Case

IMAGES_SCRIPT = "image"  # stands for the dataset script of NVIDIA's image
ANYWHERE = ("local", "docker", "slurm", "kubernetes")
CONTAINERS = ("docker", "slurm", "kubernetes")
CLUSTERS = ("slurm", "kubernetes")
# Groups of flags. Who asks a server, or repeats an evaluation, has nothing to check beforehand:
# the preflight takes no flag of ASKING.
ASKING = "asking"
SPEED = "--seconds-per-step"  # what a prediction of the time is told, though no launch needs it
PLACING = "placing"
GPU_ID = re.compile(r"\d+|(GPU|MIG)-[0-9a-fA-F-]+")


# -- how the values of flags are read ----------------------------------------------------------


def wrong(written: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"got {written!r}, expected {expected}")


def whole(most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from 1 to `most`."""

    def read(written: str) -> int:
        if not written.isdecimal() or len(written) > 12 or not 1 <= int(written) <= most:
            raise wrong(written, f"a whole number from 1 to {most}")
        return int(written)

    return read


def gpu_ids(written: str) -> list[str]:
    """Return the ids as nvidia-smi counts, [] for the CPU. Raises Failure (exit 2)."""
    if written == "none":
        return []
    ids = written.split(",")
    if len(set(ids)) < len(ids) or not all(GPU_ID.fullmatch(gpu_id) for gpu_id in ids):
        message = f"got {written!r}, expected different ids like 0,1, or none"
        raise bad_input("JOB-GPU-IDS", "--gpu-ids", message)
    return ids


def local_path(written: str) -> str:
    """Return the absolute path of a file or folder of this machine."""
    if not written or "://" in written:
        raise wrong(written, "a local path")
    return os.path.abspath(os.path.expanduser(written))


def entry_script(written: str) -> str:
    """Return the absolute path of a dataset script, or the word for that of NVIDIA's image."""
    return written if written == IMAGES_SCRIPT else local_path(written)


def image_version(written: str) -> str:
    if written not in images.versions():
        raise wrong(written, f"one of {', '.join(images.versions())}")
    return written


def variable(written: str) -> str:
    """Return the name of a variable. What was given is not repeated: it may be a secret."""
    if not re.fullmatch(r"[A-Za-z_]\w*", written, re.ASCII):
        raise argparse.ArgumentTypeError(
            "got another form, expected the NAME of a variable, without its value"
        )
    return written


def text(written: str) -> str:
    if not written.strip() or not written.isprintable():
        raise wrong(written, "a non-empty string")
    return written


def address(written: str) -> str:
    if not re.match(r"https?://[^@?#\s]+$", written):
        raise argparse.ArgumentTypeError(
            "not a server's address: expected http://HOST:PORT/v1 without a password or key"
        )
    return written


# -- the options -------------------------------------------------------------------------------


def option(
    help_text: str,
    platforms: tuple[str, ...] = ANYWHERE,
    *,
    flag: str = "",
    recorded: bool = True,
    group: str = PLACING,
    variables: tuple[str, ...] = (),
    **argument: Any,
) -> Any:
    """Return a field of `Options` that the command line can give.

    `platforms` take the flag, others refuse it; one that takes it may refuse a value in words of
    its own. `flag` where the name of the field does not say it. `recorded`: the job's record keeps
    it among its options (what it does not keep there it has as image or resources). `variables` of
    the environment are used when the flag is absent, as the platform's own command does: a site's
    profile may set them. `argument` is argparse's own.
    """
    metadata = {
        "help": help_text,
        "platforms": platforms,
        "flag": flag,
        "recorded": recorded,
        "group": group,
        "variables": variables,
        "argument": argument,
    }
    is_switch = argument.get("action") == "store_true"
    return field(default=False if is_switch else None, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person says of a launch besides its action, spec, platform and engine. None: not said.

    `gpu_ids`: None for those the environment shows, [] for the CPU. `nodes`: None for those that
    the spec was laid out for, else as few as hold its GPUs. `checkpoints`: folders of models.
    The last four have no flag: `carried` is a plan for a machine that is not asked and whose paths
    are not here; `place` is what a site says of where a job runs that is submitted from here:
    environment, skill, offline; a retry takes these, `slurm_host` and `context` from the record of
    the first attempt.
    """

    nodes: int | None = option(
        "train and grpo, not on tao (default: those that the spec was built for)",
        recorded=False,
        type=whole(100_000),
        metavar="N",
    )
    gpu_ids: list[str] | None = option(
        "as nvidia-smi counts: 0,1; none: the CPU (default: all that are visible)",
        recorded=False,
        type=gpu_ids,
    )
    entry_script: str | None = option(
        "train with cosmos-rl or tao: your dataset script, or the image's (keeps two turns)",
        type=entry_script,
        metavar="FILE|image",
    )
    image: str | None = option(
        "of containers (default: TAO's)",
        CONTAINERS,
        recorded=False,
        type=text,
        metavar="NAME",
    )
    image_version: str | None = option(
        "the version of NVIDIA's that --image is, when its name does not tell",
        type=image_version,
        metavar="X.Y.Z",
    )
    docker_host: str | None = option(
        "docker: unix:// or ssh:// (default: $DOCKER_HOST or docker's context)", ("docker",)
    )
    network: str | None = option(
        "docker: host for servers on this machine (default: the engine's own)", ("docker",)
    )
    env: list[str] | None = option(
        "containers: to pass on besides HF_TOKEN, WANDB_API_KEY, NGC_API_KEY, AWS_*; repeatable",
        CONTAINERS,
        action="append",
        type=variable,
        metavar="NAME",
    )
    endpoint: str | None = option(
        "evaluate, inference: the server that answers, up to /v1",
        group=ASKING,
        type=address,
        metavar="URL",
    )
    served_model: str | None = option(
        "with --endpoint: what the server calls the model (default: model.model_name)",
        group=ASKING,
        type=text,
        metavar="NAME",
    )
    checkpoints: list[str] | None = option(
        "evaluate, inference: these models, or all of these train outputs, a results folder each",
        flag="--checkpoint",
        group=ASKING,
        type=local_path,
        nargs="+",
        metavar="DIR",
    )
    partition: str | None = option(
        "slurm (default: $SLURM_PARTITION or the cluster's)",
        ("slurm",),
        variables=("SBATCH_PARTITION", "SLURM_PARTITION"),
        metavar="P",
    )
    account: str | None = option(
        "slurm: who pays", ("slurm",), variables=("SBATCH_ACCOUNT",), metavar="A"
    )
    qos: str | None = option(
        "slurm: quality of service", ("slurm",), variables=("SBATCH_QOS",), metavar="Q"
    )
    time_limit: str | None = option(
        "slurm: MINUTES, H:M:S or D-H:M:S (default: its own)",
        ("slurm",),
        variables=("SBATCH_TIMELIMIT",),
        metavar="TIME",
    )
    gres: str | None = option(
        "slurm: how GPUs are asked for: gpu, gpu:TYPE, gpus-per-node[:TYPE] or none (default: gpu)",
        ("slurm",),
        metavar="NAME",
    )
    exclusive: bool = option("slurm: whole nodes", ("slurm",), action="store_true")
    requeue: bool = option(
        "slurm: let it begin the job anew when a node fails; a training goes on from its newest "
        "checkpoint",
        ("slurm",),
        action="store_true",
    )
    modules: list[str] | None = option(
        "slurm: what the nodes `module load` before python3 of their PATH runs the job; repeatable "
        "(default: none, and this Python)",
        ("slurm",),
        flag="--module",
        action="append",
        metavar="NAME",
    )
    cpus: int | None = option(
        "slurm, kubernetes: of each node or pod (default: what the cluster gives)",
        CLUSTERS,
        type=whole(4096),
        metavar="N",
    )
    memory: str | None = option(
        "slurm, kubernetes: of each node or pod, such as 200G; 0 on slurm: all of it; of a pod "
        "/dev/shm is a part",
        CLUSTERS,
        metavar="SIZE",
    )
    volume: list[str] | None = option(
        "kubernetes: the claim whose files are below DIR, here as in the pods; repeatable",
        ("kubernetes",),
        action="append",
        metavar="CLAIM:DIR",
    )
    namespace: str | None = option(
        "kubernetes: default $K8S_NAMESPACE, else the context's", ("kubernetes",)
    )
    pull_secret: str | None = option(
        "kubernetes: for the image's registry", ("kubernetes",), metavar="NAME"
    )
    node_selector: list[str] | None = option(
        "kubernetes: a label of the nodes to run on; repeatable",
        ("kubernetes",),
        action="append",
        metavar="KEY=VALUE",
    )
    toleration: list[str] | None = option(
        "kubernetes: a taint that does not matter; repeatable",
        ("kubernetes",),
        action="append",
        metavar="KEY[=VALUE][:EFFECT]",
    )
    label: list[str] | None = option(
        "kubernetes: of the Job and its pods, as kueue.x-k8s.io/queue-name; repeatable",
        ("kubernetes",),
        action="append",
        metavar="NAME=VALUE",
    )
    gpu_resource: str | None = option(
        "kubernetes: how GPUs are asked for, as nvidia.com/mig-1g.10gb (default: nvidia.com/gpu)",
        ("kubernetes",),
        metavar="NAME",
    )
    carried: bool = False
    place: dict[str, Any] | None = None
    slurm_host: str | None = None
    context: str | None = None

    @property
    def own_script(self) -> Path | None:
        """Return somebody's own dataset script, which knows where its data are."""
        is_own = self.entry_script and self.entry_script != IMAGES_SCRIPT
        return Path(self.entry_script) if is_own else None

    @property
    def kubernetes(self) -> dict[str, Any]:
        """Return what is said of a cluster of Kubernetes and its pods, as a record keeps it."""
        said = {name: getattr(self, name) for name in OF_KUBERNETES}
        return {name: value for name, value in said.items() if value}

    def given(self) -> dict[str, Any]:
        """Return the options with a flag that were said, by the name of their field."""
        said = {name: getattr(self, name) for name in FLAGGED}
        # No GPU ids at all is something that was said: the CPU.
        return {name: value for name, value in said.items() if value or value == []}

    def useless(self, platform: str) -> list[str]:
        """Return the flags that were given and that the platform has no use for."""
        return [flag_of(name) for name in self.given() if not is_taken(name, platform)]

    def record(self) -> dict[str, Any]:
        """Return what the record of a job keeps among its options: what was said, by the field's
        name, and what only Kubernetes takes as a table of its own."""
        kept = {name: getattr(self, name) for name in RECORDED}
        kept["kubernetes"] = self.kubernetes
        return {name: value for name, value in kept.items() if value}


def of_record(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a record keeps, to ask for the same again."""
    fields = dict(kept)
    return fields.pop("kubernetes", {}) | fields


FLAGGED = {one.name: one.metadata for one in dataclasses.fields(Options) if one.metadata}
ONLY_KUBERNETES = [name for name, said in FLAGGED.items() if said["platforms"] == ("kubernetes",)]
OF_KUBERNETES = [*ONLY_KUBERNETES, "context"]
# The record keeps what only Kubernetes takes as a table of its own: it is asked for as a whole.
RECORDED = [name for name, said in FLAGGED.items() if said["recorded"]]
RECORDED = [name for name in RECORDED if name not in OF_KUBERNETES]
RECORDED += ["place", "slurm_host"]  # `carried` is there as the place that it is carried to


# What is true of one place only: a retry elsewhere does not take it along.
OF_ONE_PLACE = {"docker_host", "partition", "account", "qos", "gres", "modules", *OF_KUBERNETES}


def flag_of(name: str) -> str:
    return FLAGGED[name]["flag"] or f"--{name.replace('_', '-')}"


def is_taken(name: str, platform: str) -> bool:
    """Tell whether a launch on the platform has a use for an option."""
    return platform in FLAGGED[name]["platforms"]


def taken(said: dict[str, Any], platform: str) -> dict[str, Any]:
    """Return those of some options that a launch on the platform takes."""
    return {name: value for name, value in said.items() if is_taken(name, platform)}


def unflagged(platform: str, site: Site | None, carried: bool) -> dict[str, Any]:
    """Return what options are where no flag says it: as a site has them, else as this shell's
    variables do, which a launch that is `carried` elsewhere does not have there. They become a part
    of the launch, and so of the record: a retry from another shell asks for the same."""
    said: dict[str, Any] = {}
    for name, known in () if carried else FLAGGED.items():
        values = filter(None, map(os.environ.get, known["variables"]))
        if is_taken(name, platform) and (value := next(values, None)):
            said[name] = value
    for name, value in site.options().items() if site else ():
        if name not in FLAGGED or is_taken(name, platform):
            said[name] = value
    return said


def add_flag(add: Callable[..., object], name: str, *more_names: str) -> None:
    """Add the flag of an option to a parser; `more_names` are other spellings of it."""
    said = FLAGGED[name]
    add(flag_of(name), *more_names, dest=name, help=said["help"], **said["argument"])


def words(said: dict[str, Any]) -> list[str]:
    """Return the words of a command line that give these options, in the order of the fields."""
    found = []
    for name in FLAGGED:
        if name not in said:
            continue
        value = said[name]
        # No id at all is the CPU, which the flag calls none; other lists repeat their flag.
        if name == "gpu_ids":
            value = ",".join(value) or "none"
        for one in value if isinstance(value, list) else [value]:
            found += [flag_of(name)] if one is True else [flag_of(name), str(one)]
    return found


# -- the launch --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Launch(Options):
    """One launch: what was said, and what was read for it, once. `launch.read` makes it; who needs
    one of these facts gets the launch and reads nothing again.

    `written` is the spec as its file has it; `spec` is the same completed, with absolute paths, as
    the job will run it: what is fetched for it later is written there. `case` is what the rules
    look at, invalid values replaced by the template's. `inputs` and `outputs` are what the spec
    names. `nodes` are those of the flag, else those that the spec was laid out for, None where
    nobody said. `completed` tells what was written for the trainer, and which image and variables
    are refused; `broken` what the rules have against the spec. `folder` is the job's, whose name is
    its id. `site` describes the place where it is to run, None for what can be asked from here.
    """

    action: str
    engine: str
    platform: str
    spec_path: Path
    jobs_dir: Path
    working_dir: Path
    folder: Path
    retry_of: str | None = None
    site: Site | None = None
    written: dict = field(default_factory=dict)
    spec: dict = field(default_factory=dict)
    case: Case | None = None
    inputs: list[dict] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    completed: list[Finding] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)

    @property
    def needed_gpus(self) -> int:
        """Return the GPUs of all nodes together that the spec is laid out for."""
        return self.case.needed_gpus
