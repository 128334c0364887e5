"""What is looked at before a launch: every check at once in threads, within one time limit, then the GPU gates.

A check is a generator of findings that takes a Launch; what it learns for others it leaves there. A check that could
not be run is itself a finding, never a pass.
"""

from __future__ import annotations

import re
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

from cosmos_reason import findings as f
from cosmos_reason import secret
from cosmos_reason.preflight import access, gates, host, platforms, prediction
from cosmos_reason.rules import Case


@dataclass
class Launch:
    """What is about to be launched, and what checks found out about it: from `machine` on."""

    platform: str
    args: Namespace
    deadline: float
    engine: str = ""
    image: str = ""
    case: Case | None = None
    written: dict = field(default_factory=dict)  # the spec as it stands; `case` has what is invalid replaced
    paths: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    gpus_per_node: int = 1
    machine: host.Host | None = None  # where paths without a scheme lie; None when it cannot or may not be asked
    docker: dict[str, str] | None = None  # variables that name the engine to docker; None without an engine
    driver: host.Driver = field(default_factory=host.Driver)
    result: dict = field(default_factory=dict)

    @property
    def wants_gpus(self) -> bool:
        """The embedded engine also runs on the CPU, unless limits are given."""
        args = self.args
        limits = args.gpu_min_count or args.gpu_min_memory_gb or args.gpu_min_total_memory_gb
        return bool(self.engine != "transformers" or limits)

    def left(self) -> float:
        """Seconds until the run has to end."""
        return self.deadline - time.monotonic()


def gpus_and_memory(launch: Launch) -> Iterator[f.Finding]:
    """number, memory, architecture of the chosen GPUs; predicted GPU and host memory, steps, hours"""
    gpus, problems = gates.chosen(launch.driver, launch.args)
    yield from problems
    launch.result["gpus"] = [asdict(gpu) for gpu in gpus]
    yield from gates.check(gpus, launch)
    if launch.case:
        yield from prediction.memory(launch, gpus)


CHECKS = {"paths": access.paths, "records": access.records, "uploads": access.uploads, "model": access.model,
          "data and spec": prediction.data_and_spec}  # fmt: skip
PLATFORMS = {name: getattr(platforms, name) for name in ("local", "docker", "slurm", "kubernetes")}
BEFORE = {"machine": platforms.locate}
AFTER = {"disk": access.disks, "GPUs and memory": gpus_and_memory}
OF_A_SPEC = ("uploads", "model", "data and spec")
# A bare flag in a fix is build_spec's (`--image`: this command's and launch_job's); any other names its script.
BARE = ("--set", "--unset", "--tuning", "--model", "--gpus-per-node", "--engine", "--image")
NOT_KNOWN = ("PRE-GPU-NONE", "PRE-GPU-UNKNOWN", "PRE-GPU-MEMORY-UNKNOWN", "PRE-MEMORY-UNSEEN", "PRE-GPU-ARCH-UNKNOWN")
SCRIPTS = {"PRE": "check_tao_launch_preflight.py", "DATA": "check_dataset.py", "CKPT": "select_checkpoint.py"}


def descriptions() -> dict[str, str]:
    """What each check looks at."""
    every = {**BEFORE, **CHECKS, **PLATFORMS, **AFTER}
    return {name: " ".join(check.__doc__.split()) for name, check in every.items()}


def run(launch: Launch) -> list[f.Finding]:
    """All findings, in the order of the checks; `launch.result` tells how each check ended and after how long."""
    used, found = secret.adopt_former_s3_names(), []
    if used:
        found.append(f.info("PRE-S3-NAMES", "environment", f"{', '.join(used)} taken for the standard AWS_* names"))
    checks = {name: check for name, check in CHECKS.items() if launch.case or name not in OF_A_SPEC}
    skip = launch.args.skip_platform_access
    if skip:
        message = f"platform {launch.platform} was not contacted, as --skip-platform-access says"
        found.append(f.warning("PRE-PLATFORM-SKIPPED", "--platform", message))
    else:
        checks[launch.platform] = PLATFORMS[launch.platform]
    for stage in ({} if skip and launch.platform != "local" else BEFORE, checks, AFTER):
        found += gather(stage, launch)
    found = described_at_once(found)
    keys = [(one.id, one.where) if one.id.startswith("SPEC-") else one for one in found]
    return [shown(one, launch.args) for number, one in enumerate(found) if keys[number] not in keys[:number]]


def described_at_once(found: list[f.Finding]) -> list[f.Finding]:
    """All that is not known of the GPUs is said in one command: the first of the worst findings about it gets the flags
    of all of them."""
    about = [one for one in found if one.id in NOT_KNOWN and one.fix]
    pairs = (pair for one in about for pair in re.findall(r"--\S+ \S+", one.fix))
    fix = " ".join(dict.fromkeys(pairs))
    told = next((one for one in about if one.severity == f.ERROR), about[0] if about else None)
    return [replace(one, fix=fix if one is told else "") if one in about else one for one in found]


def gather(checks: dict[str, Callable], launch: Launch) -> list[f.Finding]:
    """Run checks side by side. What is not done in time is left behind, its commands killed, and reported."""
    ended: dict[str, list[f.Finding]] = {}
    times = launch.result.setdefault("checks", {})

    def work(name: str, check: Callable) -> None:
        started, mine = time.monotonic(), []
        try:
            mine.extend(check(launch))
        except f.Failure as failure:
            mine += failure.findings
        except Exception as problem:  # a check that breaks is reported, whatever broke it
            message = f"this check could not be finished: {type(problem).__name__}: {str(problem)[:200]}"
            mine.append(f.error("PRE-CHECK-BROKEN", name, message))
        ended[name] = mine
        times[name] = round(time.monotonic() - started, 2)

    threads = {name: threading.Thread(target=work, args=(name, check), daemon=True) for name, check in checks.items()}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(launch.left(), 0.01))
    late = [name for name in checks if name not in ended]
    found = [finding for name in checks if name not in late for finding in ended[name]]
    if late:
        host.stop()
    for name in late:
        message = f"got no answer within --timeout {launch.args.timeout:g} s, so this is not checked"
        found.append(f.error("PRE-TIMEOUT", name, message, f"--timeout {launch.args.timeout * 3:g}"))
    return found


def shown(finding: f.Finding, args: Namespace) -> f.Finding:
    """The finding with the script that takes its fix, and without values of credentials, whatever tool printed them."""
    flag, script = finding.fix.partition(" ")[0], SCRIPTS.get(finding.id.partition("-")[0])
    bare = flag in BARE and (args.spec or flag != "--engine")
    ours = bool(script) and flag.startswith("--") and not bare
    texts = {"where": finding.where, "message": finding.message, "fix": f"{script} " * ours + finding.fix}
    return replace(finding, **{name: secret.hidden(text) for name, text in texts.items()})
