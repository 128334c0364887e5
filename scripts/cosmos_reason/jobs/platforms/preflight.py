"""What is asked of a preflight (`PreflightOptions`), and what its checks look at (`Preflight`)."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmos_reason.base import site
from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure
from cosmos_reason.jobs import launch as jobs_launch
from cosmos_reason.jobs import nodes, record, reward_files
from cosmos_reason.jobs.options import Launch, Options, taken, unflagged
from cosmos_reason.jobs.platforms.gpus import Driver
from cosmos_reason.remote import model_names
from cosmos_reason.remote.machine import Host
from cosmos_reason.rules import placeholders
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document, images, origins

SCHEDULED = ("slurm", "kubernetes")  # platforms whose scheduler knows the nodes and their GPUs


@dataclass(frozen=True, kw_only=True)
class PreflightOptions(Options):
    """What is said of the launch, and each flag of check_tao_launch_preflight.py besides, as the
    field of the same name; None where it was not given.

    Memory is in GiB, but for `gpu_min_total_memory_gb`, which is in decimal GB. Flags that are
    about a labelled path, or about one label, are pairs of the label and its value.
    """

    spec: str | None = None
    dataset_facts: str | None = None
    seconds_per_step: float | None = None
    timeout: float = 120.0
    skip_platform_access: bool = False
    gpu_smoke_image: str | None = None
    pull_smoke_image: bool = False
    jobs_dir: str | None = None
    site: str | None = None
    storage_class: str | None = None
    # The GPUs to run on, where nvidia-smi cannot tell.
    target_gpu_index: list[int] | None = None
    target_gpu_count: int | None = None
    target_gpu_memory_gb: float | None = None
    gpu_arch: list[str] = field(default_factory=list)
    image_supported_sm: list[str] | None = None
    # Limits.
    path: list[tuple[str, str]] = field(default_factory=list)
    json_required_field: list[tuple[str, list[str]]] = field(default_factory=list)
    json_sample_limit: int = 20
    effective_batch_limit: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    min_free_disk_gb: list[tuple[str, float]] = field(default_factory=list)
    gpu_arch_allowlist: list[tuple[str, list[str]]] = field(default_factory=list)
    gpu_min_count: int | None = None
    gpu_min_memory_gb: float | None = None
    gpu_min_total_memory_gb: float | None = None
    low_vram_threshold_gb: float | None = None

    @property
    def describes_gpus(self) -> bool:
        """Return whether the GPUs are described well enough to do without nvidia-smi. An index
        alone says which GPUs are meant, not that they are there."""
        if self.target_gpu_count:
            return True
        return bool(self.target_gpu_index and self.target_gpu_memory_gb)


@dataclass
class Preflight:
    """What is to be looked at: the launch of a spec, or the platform alone. From `machine` on it is
    what checks found out. The GPUs are no part of the launch before the machine has told which it
    has."""

    platform: str
    options: PreflightOptions
    deadline: float  # on the clock of time.monotonic
    engine: str = ""
    image: str = ""
    case: Case | None = None  # the launch's
    launch: Launch | None = None
    site: site.Site | None = None
    paths: dict[str, str] = field(default_factory=dict)  # by label, or by the key of the spec
    models: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: int = 1
    gpus_per_node: int = 1
    machine: Host | None = None  # where paths without a scheme lie; None when it cannot be asked
    docker: dict[str, str] | None = None  # variables that name the engine to the docker command
    driver: Driver = field(default_factory=Driver)
    # What --json shows. A value is replaced, never changed: it may be printed meanwhile.
    result: dict = field(default_factory=dict)

    @property
    def has_own_data(self) -> bool:
        """Return whether a dataset script of somebody's own reads the data."""
        return self.options.own_script is not None

    @property
    def on_cpu(self) -> bool:
        """Return whether no GPU is to be used, as the command line says."""
        return self.options.target_gpu_index == []

    @property
    def wants_gpus(self) -> bool:
        """Return whether the job wants GPUs: the embedded engine also runs on the CPU, unless
        limits are given."""
        if self.engine != "transformers":
            return True
        options = self.options
        limits = (
            options.gpu_min_count,
            options.gpu_min_memory_gb,
            options.gpu_min_total_memory_gb,
        )
        return any(limits)

    def seconds_left(self) -> float:
        """Return seconds until the run has to end."""
        return self.deadline - time.monotonic()

    def plain_paths(self) -> dict[str, str]:
        """Return the paths that are files or folders of a machine, by label."""
        named = {label: path for label, path in self.paths.items() if path}
        return {label: path for label, path in named.items() if "://" not in path}

    def gpu_ids(self) -> list[str] | None:
        """Return the GPUs that the launch should name: as many as the spec needs of those that were
        found, else of those that were named, else the first ones; none where the embedded engine
        finds none, and None where nobody was asked or somebody else chooses."""
        if self.on_cpu:
            return []
        if self.nodes > 1 or self.platform not in ("local", "docker"):
            return None
        found = [gpu["index"] for gpu in self.result.get("gpus", ())]
        if not found and not self.wants_gpus:
            asked = self.machine is not None and not self.options.skip_platform_access
            return [] if asked else None
        chosen = self.options.target_gpu_index or list(range(self.gpus_per_node))
        if len(found) >= self.gpus_per_node:
            chosen = found
        return [str(index) for index in chosen[: self.gpus_per_node]]


def of_options(options: PreflightOptions, platform: str, engine: str | None = None) -> Preflight:
    """Return the preflight that was asked for, its launch read and nothing looked at. Raises
    Failure for a spec that cannot be launched by anybody, as `launch.read` does."""
    engine = engine or origins.engine_of(options.spec, platform)
    place = site.read(Path(options.site)) if options.site else None
    said = unflagged(platform, place, carried=place is not None)
    said = {name: value for name, value in said.items() if getattr(options, name) is None}
    if place:
        # What it says where no flag does; nobody is asked.
        arch = place.gpu_architecture()
        said |= {
            "target_gpu_count": options.target_gpu_count or place.get("gpus.count"),
            "target_gpu_memory_gb": options.target_gpu_memory_gb or place.gpu_gib(),
            "gpu_arch": options.gpu_arch or ([arch] if arch else []),
            "skip_platform_access": True,
        }
    options = replace(options, **said)
    preflight = Preflight(
        platform=platform,
        options=options,
        deadline=time.monotonic() + options.timeout,
        engine=engine,
        image=options.image or images.default(engine) or "",
        paths=dict(options.path),
        nodes=options.nodes or 1,
        site=place,
    )
    if preflight.has_own_data:
        preflight.paths["--entry-script"] = options.entry_script
    if options.spec:
        _take_launch(preflight)
    preflight.gpus_per_node = max(preflight.gpus_per_node, options.gpu_min_count or 1)
    return preflight


def _take_launch(preflight: Preflight) -> None:
    """Read the launch, and note what its spec says of paths, outputs, models and nodes."""
    options = preflight.options
    said = taken(options.given(), preflight.platform)
    said["gpu_ids"] = [] if preflight.on_cpu else None
    try:
        launch = jobs_launch.read(
            Path(options.spec).absolute(),
            preflight.platform,
            record.root(options.jobs_dir),
            Path.cwd(),
            engine=preflight.engine,
            facts=Path(options.dataset_facts) if options.dataset_facts else None,
            site=preflight.site,
            carried=preflight.site is not None,
            **said,
        )
    except Failure as failure:
        if failure.exit_code != EXIT_BAD_INPUT:
            raise
        how = "; scripts/build_spec.py writes specs"
        found = [replace(finding, message=finding.message + how) for finding in failure.findings]
        raise Failure(found, EXIT_BAD_INPUT) from None
    preflight.case = case = launch.case
    for key, schema in document.keys(launch.action).items():
        path = case(key)
        if not isinstance(path, str):
            continue
        kind = schema.get("x-path")
        if kind == "input" and path:
            preflight.paths.setdefault(key, path)
        elif kind == "output":
            preflight.outputs.append(path or str(record.path_of_root(options.jobs_dir)))
    if launch.own_script:
        for entry in launch.inputs:
            if "://" not in entry["path"]:
                preflight.paths.setdefault(entry["role"], entry["path"])
    for path in reward_files.files(launch.spec):
        preflight.paths[f"{reward_files.KEY}:{path.name}"] = str(path)
    unfilled = placeholders.keys(launch.action, launch.spec, launch.engine)
    for key in (case.params["model"], case.params.get("base")):
        written = case(key) if key else ""
        if not written or key in unfilled:
            continue
        name = written if "://" in written else model_names.canonical(written, key)
        preflight.models.append(name)
        if name.startswith("/"):
            preflight.paths.setdefault(key, name)
    preflight.nodes = nodes.count(launch.nodes, launch.needed_gpus)
    preflight.gpus_per_node = math.ceil(launch.needed_gpus / preflight.nodes)
    # A plan is carried to a machine that nothing here asks, and that has what is not here: the one
    # of a site, or of Docker where only its paths could be meant. One over ssh submit asks.
    is_carried = preflight.site is not None
    if preflight.platform == "docker" and options.skip_platform_access:
        address = options.docker_host or os.environ.get("DOCKER_HOST", "")
        paths = preflight.plain_paths().values()
        are_here = all(os.path.exists(os.path.expanduser(path)) for path in paths)
        is_carried |= not address.startswith("ssh://") and not are_here
    preflight.launch = replace(launch, carried=is_carried)
