"""The GPUs that nvidia-smi names on a machine, and how versions and architectures are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cosmos_reason.remote.machine import Host

ARCHITECTURE = re.compile(
    r"(?:sm_?|compute_?)?(?:(?P<major>\d+)\.(?P<minor>\d)|(?P<digits>\d{2,3}))[af]?", re.IGNORECASE
)


@dataclass(frozen=True)
class Gpu:
    """One GPU. `gib` is None for one that shares the machine's memory or does not tell; `arch` as
    in 'sm_90', or ''."""

    index: int
    name: str
    gib: float | None
    arch: str = ""


@dataclass
class Driver:
    """What nvidia-smi says of a host: its GPUs, and the versions as written ('' when not told)."""

    gpus: list[Gpu] = field(default_factory=list)
    version: str = ""
    cuda: str = ""
    problem: str = ""


def architecture(written: str) -> str | None:
    """Return 'sm_103' for sm_103, sm_103a, 103f, 10.3 or compute_103a; None for anything else. The
    letters a and f belong to the same family."""
    found = ARCHITECTURE.fullmatch(written.strip())
    if not found:
        return None
    digits = found["digits"] or found["major"] + found["minor"]
    return f"sm_{digits}"


def driver(host: Host) -> Driver:
    """Ask nvidia-smi on the host."""
    columns = "index,name,memory.total,driver_version"
    form = "--format=csv,noheader,nounits"
    answer = host.call("nvidia-smi", f"--query-gpu={columns},compute_cap", form)
    # An older driver refuses the whole question for the one column that it does not know.
    is_older = answer.code and "compute_cap" in answer.out + answer.err
    if is_older:
        answer = host.call("nvidia-smi", f"--query-gpu={columns}", form)
    if answer.code:
        return Driver(problem=answer.last_words or f"nvidia-smi ended with {answer.code}")
    found = parse_gpus(answer.out)
    if found.gpus:
        banner = host.call("nvidia-smi").out  # no column has the version of CUDA
        cuda = re.search(r"CUDA Version\s*:\s*([\d.]+)", banner)
        if cuda:
            found.cuda = cuda[1]
    return found


def parse_gpus(text: str) -> Driver:
    """Return the CSV of nvidia-smi: index, name, MiB, driver version and, where it is known,
    compute capability."""
    found = Driver()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 4 or not cells[0].isdigit():
            continue
        mib = re.fullmatch(r"(\d+)(?: MiB)?", cells[2])
        gib = int(mib[1]) / 1024 if mib else None
        capability = cells[4] if len(cells) > 4 else ""
        found.gpus.append(Gpu(int(cells[0]), cells[1], gib, architecture(capability) or ""))
        if re.fullmatch(r"[\d.]+", cells[3]):
            found.version = cells[3]
    return found


def older(version: str, least: str | int) -> bool:
    """Return whether a dotted version is below another; an unknown one is not."""
    numbers = version_numbers(version)
    return bool(numbers) and numbers < version_numbers(str(least))


def version_numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
