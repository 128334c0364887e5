"""Whether the chosen GPUs are what the launch needs: number, memory, architecture, driver. Pure: no GPU is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cosmos_reason import bundle
from cosmos_reason import findings as f
from cosmos_reason.preflight.host import Driver, Gpu, older


def chosen(found: Driver, args) -> tuple[list[Gpu], list[f.Finding]]:
    """The GPUs that every gate looks at: those of --target-gpu-index, as the --target flags describe them where
    nvidia-smi does not tell. An index alone says which GPUs are meant, not that they are there."""
    gpus, problems, wanted, count = list(found.gpus), [], args.target_gpu_index, args.target_gpu_count
    if not gpus and described(args):
        gpus = [Gpu(n, "as described", None) for n in wanted or range(count)]
    there = [gpu.index for gpu in gpus]
    if gpus and (lost := [index for index in wanted or () if index not in there]):
        message = f"got no GPU {lost} on this host, expected some of {there}"
        problems.append(f.error("PRE-GPU-INDEX", "--target-gpu-index", message, _indices(there)))
    gpus = [gpu for gpu in gpus if gpu.index in wanted] if wanted else gpus[:count]
    return [gpu if gpu.gib else replace(gpu, gib=args.target_gpu_memory_gb) for gpu in gpus], problems


def described(args) -> bool:
    return bool(args.target_gpu_count or (args.target_gpu_index and args.target_gpu_memory_gb))


def _indices(numbers: list[int]) -> str:
    return f"--target-gpu-index {','.join(map(str, numbers))}"


def describe(args) -> str:
    """Flags that say what nvidia-smi cannot, without those that were given."""
    given = {"--target-gpu-count N": args.target_gpu_count or args.target_gpu_index}
    given["--target-gpu-memory-gb GIB"] = args.target_gpu_memory_gb
    return " ".join(flag for flag, value in given.items() if not value)


def fewer_gpus(launch, there: int) -> str:
    """What to write for a launch on nodes of `there` GPUs."""
    flag = "--gpus-per-node" if launch.case else "--gpu-min-count"
    return f"{flag} {max(count for count in (1, 2, 4, 8) if count <= max(1, there))}"


def check(gpus: list[Gpu], launch) -> Iterator[f.Finding]:
    """Number, memory and architecture against what the arguments and the spec ask of one node."""
    args, counted = launch.args, launch.platform in ("slurm", "kubernetes") and not launch.args.skip_platform_access
    limits = ["gpu_min_memory_gb", "gpu_min_total_memory_gb", "low_vram_threshold_gb"]
    limits += [] if counted else ["gpu_min_count"]  # else the scheduler counts
    if gpus:
        yield from _memory(gpus, args)
        needed = launch.gpus_per_node if launch.wants_gpus else 0
        if len(gpus) < needed:
            reason = "--gpu-min-count" if args.gpu_min_count == needed else "the spec's layout"
            message = f"got {len(gpus)} GPUs, expected {needed} ({reason})"
            yield f.error("PRE-GPU-COUNT", "GPUs", message, fewer_gpus(launch, len(gpus)))
        if args.gpu_min_total_memory_gb:
            yield from check_total(gpus, args.nodes, args.gpu_min_total_memory_gb, "--gpu-min-total-memory-gb")
    elif asked := [f"--{name.replace('_', '-')}" for name in limits if getattr(args, name)]:
        kind = f.warning if asked == ["--low-vram-threshold-gb"] else f.error
        message = f"the GPUs are not known, so {', '.join(asked)} could not be compared"
        yield kind("PRE-GPU-UNKNOWN", "GPUs", message, describe(args))
    yield from _architectures(gpus, args, launch.image)


def _memory(gpus: list[Gpu], args) -> Iterator[f.Finding]:
    known = [gpu for gpu in gpus if gpu.gib is not None]
    if len(known) < len(gpus):
        name = next(gpu.name for gpu in gpus if gpu.gib is None)
        kind = f.error if args.gpu_min_memory_gb or args.gpu_min_total_memory_gb else f.warning
        message = f"got no memory size of {name} (it may share the machine's), expected one"
        yield kind("PRE-GPU-MEMORY-UNKNOWN", "GPUs", message, "--target-gpu-memory-gb GIB")
    for limit, severity, where in (
        (args.gpu_min_memory_gb, f.ERROR, "--gpu-min-memory-gb"),
        (args.low_vram_threshold_gb, f.WARNING, "--low-vram-threshold-gb"),
    ):
        small = [gpu for gpu in known if limit and gpu.gib < limit]
        if small:
            message = f"got {small[0].gib:.1f} GiB on GPU {small[0].index} ({small[0].name}), expected {limit:g}"
            better = _indices([gpu.index for gpu in known if gpu.gib >= limit]) if len(small) < len(known) else ""
            yield f.Finding("PRE-GPU-MEMORY", severity, where, message, better, {"gpus": [gpu.index for gpu in small]})


def check_total(gpus: list[Gpu], nodes: int, least: float, where: str, aside: str = "") -> Iterator[f.Finding]:
    """Memory of all GPUs of all nodes together, in decimal GB; nothing when it is unknown. `aside` is the reason why
    being below `least` does not matter."""
    total = sum(gpu.gib or 0 for gpu in gpus) * nodes * 1.073741824
    if not gpus or total >= least or any(gpu.gib is None for gpu in gpus):
        return
    message = f"got {total:.0f} GB on {len(gpus) * nodes} GPUs together, expected {least:g} GB"
    if aside:
        yield f.info("PRE-GPU-TOTAL", where, f"{message}, set aside because {aside}")
    else:
        yield f.error("PRE-GPU-TOTAL", where, message, "--tuning lora")


def _architectures(gpus: list[Gpu], args, image: str) -> Iterator[f.Finding]:
    """The image's list and every --gpu-arch-allowlist; only --image-supported-sm says that a blocked one is proven."""
    info = bundle.skill_info()["gpu_architectures"]
    mine = args.gpu_arch or sorted({gpu.arch for gpu in gpus if gpu.arch})
    lists = list(args.gpu_arch_allowlist)
    if image or args.image_supported_sm:
        lists.append(("the image", args.image_supported_sm or info["supported"]))
    for arch in mine:
        if image and arch in info["blocked"] and arch not in (args.image_supported_sm or ()):
            message = f"got {arch}: {info['blocked'][arch]}; expected one of {', '.join(info['supported'])}"
            yield f.error("PRE-GPU-ARCH-BLOCKED", "GPUs", message, f"--image-supported-sm {arch}")
        elif wrong := [(label, allowed) for label, allowed in lists if arch not in allowed]:
            message = f"got {arch}, expected one of {', '.join(wrong[0][1])} ({wrong[0][0]})"
            yield f.error("PRE-GPU-ARCH", "GPUs", message, "--image IMAGE")
    if lists and not mine:
        kind = f.error if args.gpu_arch_allowlist or args.image_supported_sm else f.warning
        message = "got no compute capability, expected one to compare with the image's"
        yield kind("PRE-GPU-ARCH-UNKNOWN", "GPUs", message, "--gpu-arch sm_90")


def check_driver(found: Driver, toolkit: str) -> Iterator[f.Finding]:
    """The host minimums of TAO's images; `toolkit`: version of the NVIDIA container toolkit; '' is unknown."""
    least = bundle.skill_info()["host_minimums"]
    for name, got, expected, ask in (
        ("driver", found.version, least["driver"], "nvidia-smi"),
        ("CUDA", found.cuda, least["cuda"], "nvidia-smi"),
        ("container toolkit", toolkit, least["container_toolkit"], "nvidia-ctk --version"),
    ):
        where = f"NVIDIA {name}"
        if not got:
            message = f"got no version, expected {expected} or newer"
            yield f.warning("PRE-HOST-VERSION-UNKNOWN", where, message, ask)
        elif older(got, expected):
            message = f"got {got}, expected {expected} or newer"
            yield f.error("PRE-HOST-VERSION", where, message, f"install NVIDIA {name} {expected}")
