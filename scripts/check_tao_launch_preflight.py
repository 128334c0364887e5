#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0", "numpy==2.4.6", "pillow==13.0.0",
#     "pyarrow==26.0.1", "tokenizers==0.23.3", "boto3==1.44.5", "huggingface_hub==1.33.0",
# ]
# ///
"""Say before anything is downloaded or launched what will fail, why, and what to paste against it. Launches nothing.

examples:
  scripts/check_tao_launch_preflight.py --platform docker --spec spec.toml --json
  scripts/check_tao_launch_preflight.py --platform local --spec spec.toml --target-gpu-index 0,1
  scripts/check_tao_launch_preflight.py --platform slurm --path train=/lustre/data --gpu-min-count 8 --partition gpu
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from cosmos_reason import bundle, command, secret, storage
from cosmos_reason import findings as f

PLATFORMS = {name: name for name in ("local", "docker", "slurm", "kubernetes")} | {"local-docker": "docker"}
LAUNCHED = ("local", "docker")  # by launch_job


def parser() -> command.Parser:
    parser = command.Parser(__doc__, usage="%(prog)s --platform NAME [--spec FILE] [what it does not say]")
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=46, width=120)
    add = parser.add_argument
    add("--platform", metavar="NAME", help="local, docker (or local-docker), slurm, kubernetes")
    add("--spec", metavar="FILE", help="the spec to launch: all that it names is checked")
    add(
        "--engine",
        choices=bundle.ENGINES,
        metavar="NAME",
        help="default: the spec's; none: transformers locally, else tao",
    )
    add("--dataset-facts", metavar="FILE", help="of check_dataset (default: look at the data)")
    a_day = partial(command.above_0, most=86400)
    add("--timeout", type=a_day, default=120.0, metavar="S", help="seconds for everything, pulls too (default: 120)")
    add("--seconds-per-step", type=command.above_0, metavar="S", help="measured speed, to predict hours")
    add("--list-checks", action="store_true", help="print what is checked, and stop")
    add("--skip-platform-access", action="store_true", help="do not contact the platform; say so, check the rest")
    add_platform_flags(parser.add_argument_group("platform").add_argument)
    add_data_flags(parser.add_argument_group("paths and data").add_argument)
    add_gpu_flags(parser.add_argument_group("GPUs").add_argument)
    command.add_json_flag(parser)
    return parser


def add_platform_flags(add) -> None:
    add("--docker-host", metavar="URL", help="unix://, ssh:// or tcp:// (default: $DOCKER_HOST)")
    add("--container-image", metavar="IMAGE", help="image to run (default: the engine's)")
    add("--gpu-smoke-image", metavar="IMAGE", help="small image with nvidia-smi to try the GPUs in")
    add("--pull-smoke-image", action="store_true", help="pull that image when it is not there")
    many = partial(command.positive, most=100_000)
    add("--nodes", type=many, metavar="N", help="nodes (default: by the spec's layout)")
    add("--partition", metavar="P", help="of SLURM (default: $SLURM_PARTITION)")
    add("--time-limit", metavar="TIME", help="SLURM time as sbatch takes it: minutes, H:M:S, D-H:M:S")
    add("--namespace", metavar="N", help="of Kubernetes (default: $K8S_NAMESPACE)")
    add("--pull-secret", metavar="NAME", help="Kubernetes secret for pulling images")
    add("--storage-class", metavar="NAME", help="Kubernetes storage class for volumes")
    add("--install-missing-tools", action="store_true", help=argparse.SUPPRESS)
    add("--skill-bank", metavar="DIR", help=argparse.SUPPRESS)


def add_data_flags(add) -> None:
    def many(flag: str, form: str, read, text: str) -> None:
        add(flag, action="append", default=[], type=labelled(form, read), metavar=form, help=f"{text}; repeatable")

    many("--path", "LABEL=PATH", str, "local, s3:// or hf://, what the job needs")
    many("--json-required-field", "LABEL=FIELD,..", words, "fields its records must have")
    add("--json-sample-limit", type=command.positive, default=20, metavar="N", help="records to look at (default: 20)")
    many("--effective-batch-limit", "LABEL=BATCH,SHARDS", pair, "BATCH must be at most records / SHARDS")
    many("--min-free-disk-gb", "LABEL=GIB", command.above_0, "free space where that path lies")


def add_gpu_flags(add) -> None:
    add("--gpu-min-count", type=command.positive, metavar="N", help="GPUs of a node")
    add("--gpu-min-memory-gb", "--min-gpu-memory-gb", type=command.above_0, metavar="GIB", help="GiB of each GPU")
    add("--gpu-min-total-memory-gb", type=command.above_0, metavar="GB", help="decimal GB of all chosen GPUs together")
    add("--low-vram-threshold-gb", type=command.above_0, metavar="GIB", help="warn below this")
    add("--gpu-arch", type=arches, default=[], metavar="SM", help="the target's: sm_90, 9.0, compute_90 (default: ask)")
    allowed = labelled("LABEL=SM,..", arches)
    some = "architectures that some part supports; repeatable"
    add("--gpu-arch-allowlist", action="append", default=[], type=allowed, metavar="LABEL=SM,..", help=some)
    add("--image-supported-sm", type=arches, metavar="SM,..", help="architectures the image supports (default: TAO's)")
    add("--target-gpu-index", type=indices, metavar="N,..", help="the GPUs every gate looks at (default: all)")
    few = partial(command.positive, most=1024)
    add("--target-gpu-count", type=few, metavar="N", help="GPUs of the target, where nvidia-smi cannot be asked")
    add("--target-gpu-memory-gb", type=command.above_0, metavar="GIB", help="their memory")


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
    return command.Outcome(launch.result, found, text(launch.result), submit(launch))


def read(args):
    """The launch that the arguments and the spec describe. Raises Failure (exit 2) with all that is wrong with them."""
    from cosmos_reason import preflight

    refuse_unknown(args)
    platform = PLATFORMS[args.platform]
    launch = preflight.Launch(platform, args, time.monotonic() + args.timeout, paths=dict(args.path))
    usual = "transformers" if platform == "local" else "tao"
    launch.engine = args.engine or (engine_of(Path(args.spec)) if args.spec else None) or usual
    if args.spec:
        preflight.prediction.take_spec(launch, *preflight.prediction.read_spec(args.spec))
    launch.image = args.container_image or bundle.skill_info()["engines"][launch.engine].get("default_image", "")
    args.nodes = args.nodes or 1
    launch.gpus_per_node = max(launch.gpus_per_node, args.gpu_min_count or 1)
    return launch


def engine_of(spec: Path) -> str | None:
    """The engine that build_spec made the spec for, as it noted beside it."""
    beside = spec.with_suffix(".origins.json")
    record = storage.read_json(beside) if beside.is_file() else None
    engine = record.get("engine") if isinstance(record, dict) else None
    return engine if engine in bundle.ENGINES else None


def refuse_unknown(args) -> None:
    """Platforms and labels that are none, and what would be left out of account."""
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
        raise f.Failure(found, f.EXIT_BAD_INPUT)


def submit(launch) -> tuple[str, ...]:
    """The launch that was checked, as launch_job takes it; nothing for what it does not start."""
    if not launch.case or launch.platform not in LAUNCHED:
        return ()
    args, gpus = launch.args, [str(gpu["index"]) for gpu in launch.result.get("gpus", ())]
    words = ["launch_job.py", "submit", launch.case.action, "--spec", args.spec, "--platform", launch.platform]
    words += ["--engine", launch.engine]
    words += ["--gpu-ids", ",".join(gpus[: launch.gpus_per_node])] if gpus else []
    words += ["--image", args.container_image] if args.container_image and launch.platform == "docker" else []
    words += ["--docker-host", args.docker_host] if args.docker_host and launch.platform == "docker" else []
    return tuple(words)


def text(result: dict) -> str:
    lines = [f"checked: {', '.join(result['checks'])}"]
    if prediction := result.get("prediction"):
        source = "the longest sample" if prediction["measured"] else "assumed: the data were not read"
        lines.append(f"one GPU needs {prediction['gib']} GiB at {prediction['tokens']} tokens ({source}):")
        lines += [f"  {size:7.2f}  {name}" for name, size in prediction["terms"].items()]
        lines += [f"  {verdict:13} {name}" for name, verdict in prediction["gpu_types"].items()]
        hours = f", {prediction['hours']} hours" if prediction["hours"] else ""
        lines += [f"{prediction['steps']} steps{hours}"] if prediction["steps"] else []
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
