"""What is asked of a preflight (`PreflightOptions`), and the launch that its checks look at
(`Launch`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import engines
from cosmos_reason.preflight.gpus import Driver
from cosmos_reason.remote.machine import Host
from cosmos_reason.rules.case import Case

# Of Kubernetes, as launch_job.py takes them.
KUBERNETES = (
    "volume",
    "namespace",
    "pull_secret",
    "node_selector",
    "toleration",
    "label",
    "gpu_resource",
)
SCHEDULED = ("slurm", "kubernetes")  # platforms whose scheduler knows the nodes and their GPUs


@dataclass(frozen=True)
class PreflightOptions:
    """Each field is the flag of check_tao_launch_preflight.py of the same name; None where it was
    not given.

    Memory is in GiB, but for `gpu_min_total_memory_gb`, which is in decimal GB. Flags that are
    about a labelled path, or about one label, are pairs of the label and its value.
    """

    spec: str | None = None
    dataset_facts: str | None = None
    seconds_per_step: float | None = None
    timeout: float = 120.0
    skip_platform_access: bool = False
    entry_script: str | None = None
    # The platform.
    image: str | None = None
    image_version: str | None = None
    docker_host: str | None = None
    gpu_smoke_image: str | None = None
    pull_smoke_image: bool = False
    nodes: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = None
    gres: str | None = None
    exclusive: bool = False
    requeue: bool = False
    cpus: int | None = None
    memory: str | None = None
    module: list[str] | None = None
    env: list[str] | None = None
    network: str | None = None
    jobs_dir: str | None = None
    namespace: str | None = None
    pull_secret: str | None = None
    storage_class: str | None = None
    volume: list[str] | None = None
    node_selector: list[str] | None = None
    toleration: list[str] | None = None
    label: list[str] | None = None
    gpu_resource: str | None = None
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
    def kubernetes(self) -> dict:
        """What is said of a cluster and its pods, as launch_job.py takes it."""
        said = {name: getattr(self, name) for name in KUBERNETES}
        return {name: value for name, value in said.items() if value}

    @property
    def describes_gpus(self) -> bool:
        """Whether the GPUs are described well enough to do without nvidia-smi. An index alone says
        which GPUs are meant, not that they are there."""
        if self.target_gpu_count:
            return True
        return bool(self.target_gpu_index and self.target_gpu_memory_gb)


@dataclass
class Launch:
    """What is about to be launched and, from `machine` on, what checks found out about it."""

    platform: str
    options: PreflightOptions
    deadline: float  # on the clock of time.monotonic
    engine: str = ""
    image: str = ""
    case: Case | None = None  # the spec, its invalid values replaced by the template's
    written: dict = field(default_factory=dict)  # the spec as it stands, completed
    completed: list[Finding] = field(default_factory=list)  # what was written for that
    paths: dict[str, str] = field(default_factory=dict)  # by label, or by the key of the spec
    models: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: int = 1
    gpus_per_node: int = 1
    machine: Host | None = None  # where paths without a scheme lie; None when it cannot be asked
    docker: dict[str, str] | None = None  # variables that name the engine to the docker command
    driver: Driver = field(default_factory=Driver)
    result: dict = field(default_factory=dict)

    @property
    def has_own_data(self) -> bool:
        """Whether a dataset script of somebody's own reads the data."""
        return self.options.entry_script not in (None, engines.IMAGES_SCRIPT)

    @property
    def on_cpu(self) -> bool:
        """Whether no GPU is to be used, as the command line says."""
        return self.options.target_gpu_index == []

    @property
    def wants_gpus(self) -> bool:
        """The embedded engine also runs on the CPU, unless limits are given."""
        if self.engine != "transformers":
            return True
        options = self.options
        limits = (
            options.gpu_min_count,
            options.gpu_min_memory_gb,
            options.gpu_min_total_memory_gb,
        )
        return any(limits)

    @property
    def counted_by_scheduler(self) -> bool:
        """Whether the scheduler is asked how many GPUs its nodes have."""
        return self.platform in SCHEDULED and not self.options.skip_platform_access

    def seconds_left(self) -> float:
        """Seconds until the run has to end."""
        return self.deadline - time.monotonic()
