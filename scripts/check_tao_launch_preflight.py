#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
#     "pyarrow==26.0.1", "tokenizers==0.23.3", "boto3==1.44.5", "huggingface_hub==1.33.0",
# ]
# ///
"""Say what a launch will meet. Launches nothing.

examples:
  scripts/check_tao_launch_preflight.py --platform docker --spec spec.toml
  scripts/check_tao_launch_preflight.py --platform slurm --path train=/data
"""

import argparse
import sys
import time
from functools import partial

from cosmos_reason import bundle, command, secret, spec
from cosmos_reason import findings as f

PLATFORMS = {name: name for name in ("local", "docker", "slurm", "kubernetes")} | {"local-docker": "docker"}
LAUNCHED = ("local", "docker")  # by launch_job
# Errors of this machine, its network or account: the spec can be launched where they are mended.
OF_THE_MACHINE = {
    "PRE-GPU-NONE", "PRE-GPU-COUNT", "PRE-GPU-INDEX", "PRE-DISK", "PRE-HOST-MEMORY", "PRE-HOST-VERSION",
    "PRE-TOOL-MISSING", "PRE-DOCKER-UNREACHABLE", "PRE-DOCKER-RUNTIME", "PRE-SMOKE", "PRE-IMAGE-UNREACHABLE",
    "PRE-IMAGE-DENIED", "PRE-TORCH", "PRE-TORCH-CUDA", "JOB-DOCKER-UNREACHABLE", "JOB-DOCKER-FAILED",
    "HUB-UNREACHABLE", "HUB-NO-TOKEN", "HUB-GATED",
}  # fmt: skip


def parser() -> command.Parser:
    parser = command.Parser(__doc__, usage="%(prog)s --platform NAME [flags]")
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=46, width=120)
    add = parser.add_argument
    add("--platform", metavar="NAME", help="local, docker, slurm, kubernetes")
    add("--spec", metavar="FILE", help="to launch")
    add("--engine", choices=bundle.ENGINES, metavar="NAME", help="default: the spec's")
    add("--dataset-facts", metavar="FILE", help="of check_dataset")
    a_day = partial(command.above_0, most=86400)
    add("--timeout", type=a_day, default=120.0, metavar="S", help="seconds (default: 120)")
    add("--seconds-per-step", type=command.above_0, metavar="S", help="to predict hours")
    add("--list-checks", action="store_true", help="print them")
    add("--skip-platform-access", action="store_true", help="do not contact it")
    command.add_json_flag(parser)
    add_platform_flags(parser.add_argument_group("platform").add_argument)
    add_gpu_flags(parser.add_argument_group("GPUs").add_argument)
    add_limits(parser.add_argument_group("limits (LABEL: repeatable)").add_argument)
    return parser


def add_platform_flags(add) -> None:
    add("--image", "--container-image", metavar="IMAGE", help="default: the engine's")
    add("--docker-host", metavar="URL", help="default: $DOCKER_HOST")
    add("--gpu-smoke-image", metavar="IMAGE", help="with nvidia-smi")
    add("--pull-smoke-image", action="store_true", help="if absent")
    many = partial(command.positive, most=100_000)
    add("--nodes", type=many, metavar="N", help="default: the spec's")
    add("--partition", metavar="P", help="default: $SLURM_PARTITION")
    add("--time-limit", metavar="TIME", help="[D-]H:M:S")
    add("--namespace", metavar="N", help="default: $K8S_NAMESPACE")
    add("--pull-secret", metavar="NAME", help="of Kubernetes")
    add("--storage-class", metavar="NAME", help="of Kubernetes")
    add("--install-missing-tools", action="store_true", help=argparse.SUPPRESS)
    add("--skill-bank", metavar="DIR", help=argparse.SUPPRESS)


def add_gpu_flags(add) -> None:
    add("--target-gpu-index", type=indices, metavar="N,..", help="default: all")
    few = partial(command.positive, most=1024)
    add("--target-gpu-count", type=few, metavar="N", help="without nvidia-smi")
    add("--target-gpu-memory-gb", type=command.above_0, metavar="GIB", help="of each")
    add("--gpu-arch", type=arches, default=[], metavar="SM", help="sm_90 or 9.0")
    add("--image-supported-sm", type=arches, metavar="SM,..", help="default: TAO's")


def add_limits(add) -> None:
    def many(flag: str, form: str, read, text: str) -> None:
        add(flag, action="append", default=[], type=labelled(form, read), metavar=form, help=text)

    many("--path", "LABEL=PATH", str, "local, s3://, hf://")
    many("--json-required-field", "LABEL=FIELD,..", words, "of its records")
    add("--json-sample-limit", type=command.positive, default=20, metavar="N", help="default: 20")
    many("--effective-batch-limit", "LABEL=BATCH,SHARDS", pair, "at most records / SHARDS")
    many("--min-free-disk-gb", "LABEL=GIB", command.above_0, "free at that path")
    many("--gpu-arch-allowlist", "LABEL=SM,..", arches, "of a part")
    add("--gpu-min-count", type=command.positive, metavar="N", help="per node")
    add("--gpu-min-memory-gb", type=command.above_0, metavar="GIB", help="each")
    add("--min-gpu-memory-gb", type=command.above_0, dest="gpu_min_memory_gb", help=argparse.SUPPRESS)
    add("--gpu-min-total-memory-gb", type=command.above_0, metavar="GB", help="together")
    add("--low-vram-threshold-gb", type=command.above_0, metavar="GIB", help="warn below")


# ---- values of flags -------------------------------------------------------------------------------------------------


def words(written: str) -> list[str]:
    found = [word for word in written.split(",") if word]
    if not found:
        raise command.wrong(written, "names with commas between them")
    return found


def pair(written: str) -> tuple[int, int]:
    batch, _, shards = written.partition(",")
    return command.positive(batch), command.positive(shards)


def indices(written: str) -> list[int]:
    if not all(word.isdecimal() and len(word) < 5 for word in written.split(",")):
        raise command.wrong(written, "numbers as nvidia-smi counts: 0,1")
    return [int(word) for word in written.split(",")]


def arches(written: str) -> list[str]:
    from cosmos_reason.preflight.host import architecture

    found = [architecture(word) for word in written.split(",")]
    if None in found:
        raise command.wrong(written, "architectures like sm_90, 9.0 or compute_90")
    return found


def labelled(form: str, read):
    def parse(written: str):
        label, equals, value = written.partition("=")
        if not (label and equals):
            raise command.wrong(secret.hidden(written), form)
        return label, read(value)

    return parse


# ---- the command -----------------------------------------------------------------------------------------------------


def main(args) -> command.Outcome:
    from cosmos_reason import preflight

    if args.list_checks:
        checks = preflight.descriptions()
        return command.Outcome({"checks": checks}, text="\n".join(f"{name:20} {does}" for name, does in checks.items()))
    launch = read(args)
    found = preflight.run(launch)
    if args.install_missing_tools:
        found.append(f.info("PRE-TOOLS", "--install-missing-tools", "nothing to install: S3 is reached with boto3"))
    errors = {one.id for one in found if one.severity == f.ERROR}
    if errors and errors <= OF_THE_MACHINE and (words := submit(launch, better_image(launch, found))):
        launch.result["launch"] = command.suggested(words)
    return command.Outcome(launch.result, found, text(launch.result), submit(launch))


def better_image(launch, found: list[f.Finding]) -> str:
    """The image without the fault that is known of the one that was checked; '' when there is none."""
    known = any(one.id == "PRE-IMAGE-ISSUE" for one in found)
    return bundle.image_issue(launch.image)[1] if known else ""


def read(args):
    """The launch that the arguments and the spec describe. Raises Failure (exit 2) with all that is wrong with them."""
    from cosmos_reason import preflight

    refuse_unknown(args)
    platform = PLATFORMS[args.platform]
    launch = preflight.Launch(platform, args, time.monotonic() + args.timeout, paths=dict(args.path))
    launch.engine = args.engine or spec.engine_of(args.spec, platform)
    if args.spec:
        preflight.prediction.take_spec(launch, *preflight.prediction.read_spec(args.spec))
    launch.image = args.image or bundle.skill_info()["engines"][launch.engine].get("default_image", "")
    args.nodes = args.nodes or 1
    launch.gpus_per_node = max(launch.gpus_per_node, args.gpu_min_count or 1)
    return launch


def refuse_unknown(args) -> None:
    """Platforms and labels that are none, and what would be left out of account."""
    from cosmos_reason import preflight

    found, labels = [], [label for label, _ in args.path]
    if args.platform not in PLATFORMS:
        near = f.nearest(args.platform or "", PLATFORMS) or ["local"]
        message = f"got {args.platform or 'none'}, expected one of {', '.join(PLATFORMS)}."
        message += f.did_you_mean(args.platform or "", PLATFORMS)
        found.append(f.error("PRE-PLATFORM", "--platform", message, f"--platform {near[0]}"))
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        message = f"got label {label!r} twice, expected a path each for labels of their own"
        found.append(f.error("PRE-LABEL", "--path", message, f"--path {label}2=PATH"))
    if args.dataset_facts and not args.spec:
        message = "got dataset facts without a spec, expected the spec that they are compared with"
        found.append(f.error("PRE-FACTS", "--dataset-facts", message, "--spec spec.toml"))
    for flag in ("json-required-field", "effective-batch-limit", "min-free-disk-gb"):
        for label in (label for label, _ in getattr(args, flag.replace("-", "_")) if label not in labels):
            message = f"got label {label!r}, expected one of {', '.join(labels) or 'those of --path'}."
            message += f.did_you_mean(label, labels)
            found.append(f.error("PRE-LABEL", f"--{flag}", message, f"--path {label}=PATH"))
    if found:
        raise f.Failure([preflight.shown(one, args) for one in found], f.EXIT_BAD_INPUT)


def submit(launch, image: str = "") -> tuple[str, ...]:
    """The launch that was checked (on another image, if one is given), as launch_job takes it; nothing for what it does
    not start."""
    if not launch.case or launch.platform not in LAUNCHED:
        return ()
    args, image = launch.args, image or launch.args.image
    words = ["launch_job.py", "submit", launch.case.action, "--spec", args.spec, "--platform", launch.platform]
    words += ["--engine", launch.engine]
    words += gpu_words(launch)
    words += ["--image", image] if image and launch.platform == "docker" else []
    words += ["--docker-host", args.docker_host] if args.docker_host and launch.platform == "docker" else []
    return tuple(words)


def gpu_words(launch) -> list[str]:
    """As many as the spec needs of the GPUs that were found or named, else the first ones; none where the embedded
    engine finds none."""
    args, needed = launch.args, launch.gpus_per_node
    ids = [gpu["index"] for gpu in launch.result.get("gpus", ())]
    if not ids and not launch.wants_gpus:
        asked = launch.machine is not None and not args.skip_platform_access
        return ["--gpu-ids", "none"] if asked else []
    enough = next(some for some in (ids, args.target_gpu_index or [], range(needed)) if len(some) >= needed)
    return ["--gpu-ids", ",".join(map(str, enough[:needed]))]


def text(result: dict) -> str:
    lines = [f"checked: {', '.join(result['checks'])}"]
    if prediction := result.get("prediction"):
        source = "the longest sample" if prediction["measured"] else "assumed: the data were not read"
        lines.append(f"one GPU needs {prediction['gib']} GiB at {prediction['tokens']} tokens ({source}):")
        lines += [f"  {size:7.2f}  {name}" for name, size in prediction["terms"].items()]
        lines.append(f"  {on_types(prediction['gpu_types'])}")
        hours = f", {prediction['hours']} hours" if prediction["hours"] else ""
        lines += [f"{prediction['steps']} steps{hours}"] if prediction["steps"] else []
    if "launch" in result:
        lines.append(f"the launch, where these are mended: {result['launch']}")
    return "\n".join(lines)


def on_types(verdicts: dict[str, str]) -> str:
    """One line for all GPU types: what fits on one fits on every larger one."""
    sizes, named = bundle.skill_info()["gpu_types"], {"fits": [], "tight": [], "does not fit": []}
    for name in sorted(verdicts, key=sizes.get):
        named[verdicts[name]].append(f"{name} ({sizes[name]:g} GiB)")
    fits, tight, small = named.values()
    words = [f"fits every listed GPU from {fits[0]} up" if fits else "fits no listed GPU"]
    words += [f"tight on {', '.join(tight)}"] if tight else []
    words += [f"does not fit {', '.join(small)}"] if small else []
    return "; ".join(words)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
