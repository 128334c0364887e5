"""What stands against a launch. Enter at `run`, with what
`platforms.preflight.of_options` makes.

A check is a generator of findings that takes a `Preflight` and leaves there what others need. Its
docstring is what --list-checks prints. Checks run side by side in threads, within one time limit;
one that could not be run is itself a finding, never a pass. The plan is one of them: what is wrong
with a launch in itself is said there alone, what its machine tells by the others.

Here stands what every launch is asked: paths and accounts (`access`), data (`data`) and memory
(`memory`). What a platform is asked stands in its folder, `jobs/platforms/<platform>/preflight.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from cosmos_reason.base import bundle, files, findings, secrets
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import launch as jobs_launch
from cosmos_reason.jobs import nodes
from cosmos_reason.jobs.platforms import gates, machines
from cosmos_reason.jobs.platforms.docker import preflight as docker
from cosmos_reason.jobs.platforms.kubernetes import preflight as kubernetes
from cosmos_reason.jobs.platforms.local import preflight as local
from cosmos_reason.jobs.platforms.preflight import Preflight, PreflightOptions
from cosmos_reason.jobs.platforms.slurm import preflight as slurm
from cosmos_reason.preflight import access, data, memory
from cosmos_reason.remote import machine
from cosmos_reason.rules import launchable
from cosmos_reason.spec import images


def plan(preflight: Preflight) -> Iterator[Finding]:
    """what launch_job.py plan refuses of flags, image, inputs, outputs, GPUs and nodes"""
    launch = preflight.launch
    if launch:
        yield from (one for one in jobs_launch.in_itself(launch) if one.severity == findings.ERROR)
        yield from nodes.remarks(launch)
    elif (preflight.engine, preflight.platform) not in launchable.ways():
        able = " or ".join(" on ".join(way) for way in launchable.ways())
        message = f"this version launches nothing with {preflight.engine} there: only the platform "
        message += f"itself is checked; it launches {able}"
        yield findings.warning("PRE-NOT-LAUNCHED", f"--platform {preflight.platform}", message)


def gpus_and_memory(preflight: Preflight) -> Iterator[Finding]:
    """number, memory, architecture of the chosen GPUs; predicted GPU and host memory, steps,
    hours"""
    gpus, problems = gates.chosen(preflight.driver, preflight.options)
    yield from problems
    preflight.result["gpus"] = [asdict(gpu) for gpu in gpus]
    yield from gates.check(gpus, preflight)
    if preflight.case:
        yield from memory.check(preflight, gpus)


def driver_of_site(preflight: Preflight) -> Iterator[Finding]:
    """with --site: the driver that the file says, where NVIDIA's image needs one"""
    site = preflight.site
    told, least = site.get("driver"), bundle.skill_info()["host_minimums"]["driver"]
    if told is None:
        yield from site.unknown(["driver: VERSION"])
    else:
        yield from gates.check_version("driver", told, least, "nvidia-smi")


Check = Callable[[Preflight], Iterator[Finding]]
BEFORE: dict[str, Check] = {"machine": machines.locate}
CHECKS: dict[str, Check] = {
    "plan": plan,
    "paths": access.paths,
    "records": access.records,
    "uploads": access.uploads,
    "model": access.model,
    "data and spec": data.data_and_spec,
}
PLATFORMS: dict[str, Check] = {
    "local": local.check,
    "docker": docker.check,
    "slurm": slurm.check,
    "kubernetes": kubernetes.check,
}
AFTER: dict[str, Check] = {
    "disk": access.disks,
    "GPUs and memory": gpus_and_memory,
    "driver of a site": driver_of_site,
}
NEED_A_SPEC = ("uploads", "model", "data and spec")

# Findings about facts of the GPUs that are not known.
UNKNOWN_GPUS = ("PRE-GPU-NONE", "PRE-GPU-UNKNOWN", "PRE-GPU-MEMORY-UNKNOWN",
                "PRE-MEMORY-UNSEEN", "PRE-GPU-ARCH-UNKNOWN")  # fmt: skip
# Warnings that something is not known -> the line of a site.yaml that says it. Paths that are not
# here are told by the plan.
OF_SITE = dict.fromkeys(
    ("PRE-GPU-NONE", "PRE-GPU-UNKNOWN", "PRE-GPU-MEMORY-UNKNOWN", "PRE-MEMORY-UNSEEN"),
    "gpus: {type: TYPE, count: N, memory_gib: GIB}",
) | {
    "PRE-GPU-ARCH-UNKNOWN": "gpus: {arch: sm_NN}",
    "PRE-MEMORY-UNKNOWN": "models: {PATH: ORG/NAME}",
    "PRE-PATH-UNSEEN": "",
}
# Flags that stand alone in a fix: build_spec takes them, but for `--image` and `--image-version`,
# which this command and launch_job take.
BARE_FLAGS = {"--tuning", "--model", "--gpus-per-node", "--engine", "--image", "--image-version"}
OWN_SCRIPT = "scripts/check_tao_launch_preflight.py"
# By the first word of a finding's id, the script that takes the other flags.
SCRIPTS = {
    "PRE": OWN_SCRIPT,
    "JOB": OWN_SCRIPT,
    "DATA": "scripts/check_dataset.py",
}


def descriptions() -> dict[str, str]:
    """Return what each check looks at."""
    every = {**BEFORE, **CHECKS, **PLATFORMS, **AFTER}
    return {name: " ".join(check.__doc__.split()) for name, check in every.items()}


def run(preflight: Preflight) -> list[Finding]:
    """Return all findings, in the order of the checks; `preflight.result` tells after how long each
    check ended."""
    found = []
    adopted = secrets.adopt_former_s3_names()
    if adopted:
        message = f"{', '.join(adopted)} taken for the standard AWS_* names"
        found.append(findings.info("PRE-S3-NAMES", "environment", message))
    before = BEFORE
    checks = {}
    for name, check in CHECKS.items():
        if preflight.case or name not in NEED_A_SPEC:
            checks[name] = check
    if preflight.site:
        before = {}
        for name in ("uploads", "model"):  # what they ask this machine and its tokens says nothing
            checks.pop(name, None)
    elif preflight.options.skip_platform_access:
        message = f"platform {preflight.platform} was not contacted, as --skip-platform-access says"
        found.append(findings.warning("PRE-PLATFORM-SKIPPED", "--platform", message))
        if preflight.platform != "local":
            before = {}
    else:
        checks[preflight.platform] = PLATFORMS[preflight.platform]
    after = dict(AFTER)
    if preflight.site is None or preflight.engine != images.ENGINE or preflight.on_cpu:
        del after["driver of a site"]
    for stage in (before, checks, after):
        found += gather(stage, preflight)
    if preflight.site:
        found = by_site(preflight.site, found)
    found = merge_descriptions(found)
    return [shown(finding, preflight.options) for finding in without_repetitions(found)]


def by_site(site, found: list[Finding]) -> list[Finding]:
    """Return the findings with one warning for all that the site does not say, in place of those
    about this machine and its flags."""
    kept, lines = [], []
    for finding in found:
        line = OF_SITE.get(finding.id)
        if line is None or finding.severity == findings.ERROR:
            if finding.id != "JOB-SITE-UNKNOWN":
                kept.append(finding)
            lines += finding.data.get("lines", [])
        elif line:
            lines.append(line)
    return kept + site.unknown(lines)


def gather(checks: dict[str, Check], preflight: Preflight) -> list[Finding]:
    """Run checks side by side. What is not done in time is abandoned, its commands killed, and
    reported."""
    ended: dict[str, tuple[list[Finding], float]] = {}

    def work(name: str, check: Check) -> None:
        started = time.monotonic()
        found = []
        try:
            found.extend(check(preflight))  # keeps what was found before a failure
        except Failure as failure:
            found += failure.findings
        except Exception as problem:  # a check that breaks is reported, whatever broke it
            reason = f"{type(problem).__name__}: {str(problem)[:200]}"
            message = f"this check could not be finished: {reason}"
            fix = files.way_out(problem) if isinstance(problem, OSError) else ""
            found.append(findings.error("PRE-CHECK-BROKEN", name, message, fix))
        ended[name] = found, round(time.monotonic() - started, 2)

    # Daemons: a check that hangs in a call which nobody can interrupt, as on a dead file system,
    # is not to keep this command from ending.
    threads = []
    for name, check in checks.items():
        thread = threading.Thread(target=work, args=(name, check), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(preflight.seconds_left(), 0.01))
    in_time = dict(ended)
    late = [name for name in checks if name not in in_time]
    if late:
        machine.stop()
    found = []
    for name in in_time:
        found += in_time[name][0]
    times = {name: seconds for name, (_, seconds) in in_time.items()}
    preflight.result = preflight.result | {"checks": preflight.result.get("checks", {}) | times}
    limit = preflight.options.timeout
    for name in late:
        message = f"got no answer within --timeout {limit:g} s, so this is not checked"
        fix = Fix(flags={"--timeout": f"{limit * 3:g}"})
        found.append(findings.error("PRE-TIMEOUT", name, message, fix))
    return found


def merge_descriptions(found: list[Finding]) -> list[Finding]:
    """Merge the fixes for unknown GPU facts into one, that of the first error among them or of the
    first."""
    unknown = [one for one in found if one.id in UNKNOWN_GPUS and one.fix]
    if not unknown:
        return found
    errors = [finding for finding in unknown if finding.severity == findings.ERROR]
    spokesman = (errors or unknown)[0]
    every_fact = Fix(command=spokesman.fix.command)
    for finding in unknown:
        every_fact |= finding.fix
    merged = []
    for finding in found:
        if finding is spokesman:
            finding = replace(finding, fix=every_fact)
        elif finding in unknown:
            finding = replace(finding, fix=Fix())
        merged.append(finding)
    if (spokesman.id, spokesman.severity) != ("PRE-GPU-NONE", findings.ERROR):
        return merged
    # Where no GPU was found, warnings about what is not known of it follow from that.
    repeated = set(UNKNOWN_GPUS) - {one.id for one in merged if one.severity == findings.ERROR}
    return [finding for finding in merged if finding.id not in repeated]


def without_repetitions(found: list[Finding]) -> list[Finding]:
    """Return each finding once: a damaged model is one for the plan and for who looks at models."""
    kept: list[Finding] = []
    for finding in found:
        if finding not in kept:
            kept.append(finding)
    return kept


def shown(finding: Finding, options: PreflightOptions) -> Finding:
    """Return the finding with the script that takes its fix, and without values of credentials,
    whatever tool printed them."""
    fix, script = finding.fix, SCRIPTS.get(finding.id.partition("-")[0])
    flags = fix.flags.keys()
    if flags and not fix.command and script:
        is_bare = flags <= BARE_FLAGS or "--gpus-per-node" in flags
        # Without a spec `--engine` is this command's own.
        if not is_bare or ("--engine" in flags and not options.spec):
            fix = replace(fix, command=script)
    return replace(
        finding,
        where=secrets.hidden(finding.where),
        message=secrets.hidden(finding.message),
        fix=fix,
    )
