"""Whether the chosen GPUs are what the launch needs: number, memory, architecture, driver. No GPU
is asked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import nodes
from cosmos_reason.jobs.platforms.gpus import Driver, Gpu, older
from cosmos_reason.jobs.platforms.preflight import SCHEDULED, Preflight, PreflightOptions
from cosmos_reason.spec import actions
from cosmos_reason.spec.keys import BASE_PRECISION

GB_PER_GIB = 1.073741824
FP8_FROM = 89  # sm_NN of the first GPUs that multiply in 8-bit floating point
IMAGE = "the image"  # the label of the architectures that it is built for


def chosen(driver: Driver, options: PreflightOptions) -> tuple[list[Gpu], list[Finding]]:
    """Return (the GPUs that every gate looks at, what is wrong with the choice): those of
    --target-gpu-index, as the --target flags describe them where nvidia-smi does not tell."""
    gpus = list(driver.gpus)
    if not gpus and options.describes_gpus:
        indices = options.target_gpu_index or range(options.target_gpu_count)
        gpus = [Gpu(index, "as described", None) for index in indices]
    problems = []
    wanted = options.target_gpu_index
    if wanted is None:
        gpus = gpus[: options.target_gpu_count]
    else:
        there = [gpu.index for gpu in gpus]
        absent = [index for index in wanted if index not in there]
        if there and absent:
            message = f"got no GPU {absent} on this host, expected some of {there}"
            problems.append(findings.error("PRE-GPU-INDEX", "--target-gpu-index", message))
        gpus = [gpu for gpu in gpus if gpu.index in wanted]
    sized = [gpu if gpu.gib else replace(gpu, gib=options.target_gpu_memory_gb) for gpu in gpus]
    return sized, problems


def target_flag(indices: list[int]) -> Fix:
    return Fix(flags={"--target-gpu-index": ",".join(map(str, indices))})


def missing_description(options: PreflightOptions) -> Fix:
    """Return the flags, not given yet, that say what nvidia-smi cannot."""
    flags = {}
    if not options.target_gpu_count and not options.target_gpu_index:
        flags["--target-gpu-count"] = "N"
    if not options.target_gpu_memory_gb:
        flags["--target-gpu-memory-gb"] = "GIB"
    return Fix(flags=flags)


def fewer_gpus(preflight: Preflight, there: int) -> Fix:
    """Return what to write for a launch on nodes of `there` GPUs."""
    flag = "--gpus-per-node" if preflight.case else "--gpu-min-count"
    counts = bundle.skill_info()["gpu_counts_per_node"]
    fitting = [count for count in counts if count <= max(1, there)]
    return Fix(flags={flag: max(fitting)})


def other_nodes(preflight: Preflight, there: list[int]) -> Fix:
    """Return what to write where nodes have so many GPUs each, which is not what the launch
    needs."""
    if preflight.case is None or preflight.options.gpu_min_count == preflight.gpus_per_node:
        return fewer_gpus(preflight, max(there, default=0))
    way = (preflight.case.action, preflight.engine, preflight.platform)
    return nodes.others(way, preflight.case.needed_gpus, there)


def check(gpus: list[Gpu], preflight: Preflight) -> Iterator[Finding]:
    """Compare number, memory and architecture with what options and spec ask of one node."""
    options, needed = preflight.options, preflight.gpus_per_node
    if gpus:
        known = [gpu for gpu in gpus if gpu.gib is not None]
        unknown = [gpu for gpu in gpus if gpu.gib is None]
        if unknown:
            limited = options.gpu_min_memory_gb or options.gpu_min_total_memory_gb
            report = findings.error if limited else findings.warning
            message = f"got no memory size of {unknown[0].name} (it may share the machine's), "
            fix = Fix(flags={"--target-gpu-memory-gb": "GIB"})
            yield report("PRE-GPU-MEMORY-UNKNOWN", "GPUs", f"{message}expected one", fix)
        for limit, severity, flag in (
            (options.gpu_min_memory_gb, findings.ERROR, "--gpu-min-memory-gb"),
            (options.low_vram_threshold_gb, findings.WARNING, "--low-vram-threshold-gb"),
        ):
            if limit:
                yield from _smaller(known, needed, limit, severity, flag)
        if len(gpus) < needed:
            asked = options.gpu_min_count == needed
            reason = "--gpu-min-count" if asked else "the spec's layout"
            message = f"got {len(gpus)} GPUs, expected {needed} ({reason})"
            # What --gpu-min-count demands no other layout of the spec gives.
            fix = Fix() if asked else fewer_gpus(preflight, len(gpus))
            yield findings.error("PRE-GPU-COUNT", "GPUs", message, fix)
        trains = preflight.case is not None and preflight.case.action in actions.TRAINING
        if len(gpus) > needed and trains and options.target_gpu_index:
            # More GPUs were named than the training uses.
            fix = target_flag([gpu.index for gpu in gpus[:needed]])
            message = f"got {len(gpus)} GPUs to use, the spec uses {needed}"
            if len(gpus) in bundle.skill_info()["gpu_counts_per_node"]:
                message += f", or {fix}"
                fix = Fix(flags={"--gpus-per-node": len(gpus)})
            yield findings.warning("PRE-GPU-IDLE", "--target-gpu-index", message, fix)
        least = options.gpu_min_total_memory_gb
        if least:
            yield from check_total(gpus, preflight.nodes, least, "--gpu-min-total-memory-gb")
    else:  # nothing is known of them
        limits = {
            "--gpu-min-memory-gb": options.gpu_min_memory_gb,
            "--gpu-min-total-memory-gb": options.gpu_min_total_memory_gb,
            "--low-vram-threshold-gb": options.low_vram_threshold_gb,
        }
        # A scheduler is asked how many GPUs its nodes have.
        if preflight.platform not in SCHEDULED or options.skip_platform_access:
            limits["--gpu-min-count"] = options.gpu_min_count
        asked = [flag for flag, limit in limits.items() if limit]
        only_a_warning = asked == ["--low-vram-threshold-gb"]
        report = findings.warning if only_a_warning else findings.error
        message = f"the GPUs are not known, so {', '.join(asked)} could not be compared"
        if asked:
            yield report("PRE-GPU-UNKNOWN", "GPUs", message, missing_description(options))
    yield from _architectures(gpus, options, preflight.image)
    if preflight.case is None or preflight.case(BASE_PRECISION) != "fp8":
        return
    for architecture in options.gpu_arch or sorted({gpu.arch for gpu in gpus}):
        if architecture and _number(architecture) < FP8_FROM:
            message = f"got {architecture}, expected sm_{FP8_FROM} or later for a base in fp8"
            fix = Fix(changes={BASE_PRECISION: None})
            yield findings.error("PRE-GPU-FP8", "GPUs", message, fix)


def _smaller(
    gpus: list[Gpu], needed: int, limit: float, severity: str, flag: str
) -> Iterator[Finding]:
    """Yield a finding about the GPUs of less than `limit` GiB; its fix chooses the others, where
    they are as many as the launch needs."""
    small = [gpu for gpu in gpus if gpu.gib < limit]
    if not small:
        return
    first = small[0]
    message = f"got {first.gib:.1f} GiB on GPU {first.index} ({first.name}), expected {limit:g}"
    large = [gpu.index for gpu in gpus if gpu.gib >= limit]
    fix = target_flag(large) if large and len(large) >= needed else Fix()
    data = {"gpus": [gpu.index for gpu in small]}
    yield Finding("PRE-GPU-MEMORY", severity, flag, message, fix, data)


def check_total(
    gpus: list[Gpu], nodes: int, least: float, where: str, set_aside: str = ""
) -> Iterator[Finding]:
    """Compare the memory of all GPUs of all nodes together with `least`, in decimal GB; say nothing
    where it is unknown. `set_aside` is the reason why being below `least` does not matter."""
    if not gpus or any(gpu.gib is None for gpu in gpus):
        return
    total = sum(gpu.gib for gpu in gpus) * nodes * GB_PER_GIB
    if total >= least:
        return
    message = f"got {total:.0f} GB on {len(gpus) * nodes} GPUs together, expected {least:g} GB"
    if set_aside:
        yield findings.info("PRE-GPU-TOTAL", where, f"{message}, set aside because {set_aside}")
    else:
        message += "; adapters (--tuning lora) need a part of it"
        yield findings.error("PRE-GPU-TOTAL", where, message)


def _architectures(gpus: list[Gpu], options: PreflightOptions, image: str) -> Iterator[Finding]:
    """Compare architectures with the image's list and every --gpu-arch-allowlist."""
    known = bundle.skill_info()["gpu_architectures"]
    allowlists = list(options.gpu_arch_allowlist)  # (label, architectures that it allows)
    if options.image_supported_sm:
        allowlists.append((IMAGE, options.image_supported_sm))
    elif image:
        allowlists.append((IMAGE, known["supported"]))
    found = {gpu.arch for gpu in gpus if gpu.arch}
    architectures = options.gpu_arch or sorted(found)
    if allowlists and not architectures:
        is_asked = options.gpu_arch_allowlist or options.image_supported_sm
        report = findings.error if is_asked else findings.warning
        named = bundle.skill_info()["gpu_chips"].items()
        message = "got no compute capability, expected one to compare with the image's "
        message += f"({', '.join(f'{name}: {arch}' for name, arch in named)})"
        fix = Fix(flags={"--gpu-arch": "SM"})
        yield report("PRE-GPU-ARCH-UNKNOWN", "GPUs", message, fix)
    # Only --image-supported-sm says that an architecture which is blocked has been proven to work.
    proven = options.image_supported_sm or []
    blocked = known["blocked"] if image else {}
    for architecture in architectures:
        if architecture in blocked and architecture not in proven:
            message = f"got {architecture}: {blocked[architecture]}; expected one of "
            message += ", ".join(known["supported"])
            message += ", or --image-supported-sm once the image was seen to work there"
            yield findings.error("PRE-GPU-ARCH-BLOCKED", "GPUs", message)
            continue
        for label, allowed in allowlists:
            if architecture in allowed:
                continue
            listed = ", ".join(allowed)
            # CUDA runs code for the same major version and no newer minor one (CUDA programming
            # guide, binary compatibility).
            number, built_for = _number(architecture), allowed if label == IMAGE else []
            alike = [name for name in built_for if _number(name) // 10 == number // 10]
            lower = [name for name in alike if _number(name) < number]
            if lower:
                message = (
                    f"got {architecture}, which {label}'s list ({listed}) does not name; it runs "
                    f"what is built for {max(lower, key=_number)}, of its major version: not tried "
                    "with these images, so look at the first steps"
                )
                yield findings.warning("PRE-GPU-ARCH-UNLISTED", "GPUs", message)
                continue
            message = f"got {architecture}, expected one of {listed} ({label})"
            if label == IMAGE:
                message += "; take an image that is built for it"
            yield findings.error("PRE-GPU-ARCH", "GPUs", message)
            break  # the first list that it is not in tells enough


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def check_driver(driver: Driver, toolkit: str) -> Iterator[Finding]:
    """Compare NVIDIA's software on a host with what TAO's images need. `toolkit` is the version of
    the NVIDIA container toolkit; '' is unknown."""
    least = bundle.skill_info()["host_minimums"]
    yield from check_version("driver", driver.version, least["driver"], "nvidia-smi")
    yield from check_version("CUDA", driver.cuda, least["cuda"], "nvidia-smi")
    toolkit_least = least["container_toolkit"]
    yield from check_version("container toolkit", toolkit, toolkit_least, "nvidia-ctk --version")


def check_version(name: str, version: str, least: str | int, command: str) -> Iterator[Finding]:
    """Compare a version of NVIDIA's software on a host with the least one; '' is unknown."""
    where = f"NVIDIA {name}"
    if not version:
        message = f"got no version, expected {least} or newer"
        yield findings.warning("PRE-HOST-VERSION-UNKNOWN", where, message, command)
    elif older(version, least):
        message = f"got {version}, expected {least} or newer to be installed"
        yield findings.error("PRE-HOST-VERSION", where, message)
