#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "PyYAML==6.0.3", "tqdm==4.70.1", "jsonschema==4.26.0", "tomli-w==1.2.0", "av==18.1.0",
#     "numpy==2.4.6", "pillow==13.0.0", "pyarrow==26.0.1", "tokenizers==0.23.3", "boto3==1.44.5",
#     "huggingface_hub==1.33.0",
# ]
# ///
"""Say what a launch will meet. Launches nothing.

examples:
  scripts/check_tao_launch_preflight.py --platform docker --spec spec.toml
  scripts/check_tao_launch_preflight.py --platform slurm
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason import cli
from cosmos_reason.base import bundle, findings, secrets
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import options as launch_options

if TYPE_CHECKING:  # --help needs none of what the checks need
    from cosmos_reason.jobs.platforms.preflight import Preflight, PreflightOptions

PLATFORMS = {
    "local": "local",
    "docker": "docker",
    "slurm": "slurm",
    "kubernetes": "kubernetes",
    "local-docker": "docker",
}
# Errors of this machine, its network or account: the spec can be launched where they are mended.
OF_THE_MACHINE = {
    "PRE-GPU-NONE",
    "PRE-GPU-COUNT",
    "PRE-GPU-INDEX",
    "PRE-DISK",
    "PRE-HOST-MEMORY",
    "PRE-HOST-VERSION",
    "PRE-TOOL-MISSING",
    "PRE-DOCKER-UNREACHABLE",
    "PRE-DOCKER-RUNTIME",
    "PRE-SMOKE",
    "PRE-IMAGE-UNREACHABLE",
    "PRE-IMAGE-DENIED",
    "PRE-TORCH",
    "PRE-TORCH-CUDA",
    "PRE-WANDB-PACKAGE",
    "JOB-DOCKER-UNREACHABLE",
    "JOB-DOCKER-FAILED",
    "HUB-UNREACHABLE",
    "HUB-NO-TOKEN",
    "HUB-GATED",
}
IN_TEXT = ("PRE-MEMORY", "PRE-GPU-TOTAL")  # where they are infos
# Checks that are none where the site does not say what they compare: the key of its file.
BY_SITE = {"disk": "disk", "driver of a site": "driver"}
COMMON = "--platform --spec --dataset-facts --target-gpu-index --target-gpu-count --image"
LABELLED = ("json_required_field", "effective_batch_limit", "min_free_disk_gb")


# ---- the command line --------------------------------------------------------------------------


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, COMMON, usage="%(prog)s --platform NAME [flags]")
    add = parser.add_argument
    add("--platform", metavar="NAME", help="local, docker, slurm, kubernetes")
    add("--site", metavar="FILE", help="site.yaml of the place")
    add("--spec", metavar="FILE", help="to be launched")
    add("--engine", choices=bundle.ENGINES, metavar="NAME", help="default: the spec's")
    add("--dataset-facts", metavar="FILE", help="of check_dataset.py --facts")
    a_day = partial(cli.above_0, most=86400)
    add("--timeout", type=a_day, default=120.0, metavar="S", help="seconds in all (default: 120)")
    add("--seconds-per-step", type=cli.above_0, metavar="S", help="gives a prediction of hours")
    add("--list-checks", action="store_true", help="print what is checked, and end")
    add("--skip-platform-access", action="store_true", help="leave the platform alone")
    cli.add_output_flags(parser)
    add_platform_flags(parser.add_argument_group("platform").add_argument)
    add_gpu_flags(parser.add_argument_group("GPUs").add_argument)
    add_limits(parser.add_argument_group("limits (those with a LABEL: repeatable)").add_argument)
    return parser


def add_platform_flags(add: Callable) -> None:
    """Add the flags of a launch, as launch_job.py takes it, and those of a platform's gates."""
    for name, said in launch_options.FLAGGED.items():
        if name != "gpu_ids" and said["group"] != launch_options.ASKING:
            more_names = ["--container-image"] if name == "image" else []
            launch_options.add_flag(add, name, *more_names)
    add("--gpu-smoke-image", metavar="IMAGE", help="an image with nvidia-smi to try the GPUs with")
    add("--pull-smoke-image", action="store_true", help="pull that image when it is not here")
    add("--jobs-dir", metavar="DIR", help="folder of all jobs, as launch_job.py takes it")
    add("--storage-class", metavar="NAME", help="Kubernetes storage class of the job's volumes")
    add("--install-missing-tools", action="store_true", help=argparse.SUPPRESS)
    add("--skill-bank", metavar="DIR", help=argparse.SUPPRESS)


def add_gpu_flags(add: Callable) -> None:
    add(
        "--target-gpu-index",
        "--gpu-ids",
        action=GpuIndices,
        type=indices,
        metavar="N",
        help="0,1; none: CPU; else all",
    )
    add(
        "--target-gpu-count",
        type=partial(cli.positive, most=1024),
        metavar="N",
        help="if nobody tells",
    )
    add("--target-gpu-memory-gb", type=cli.above_0, metavar="GIB", help="memory of each")
    add(
        "--gpu-arch",
        action="extend",
        type=architectures,
        default=[],
        metavar="SM",
        help="sm_90 or 9.0; repeatable",
    )
    add(
        "--image-supported-sm",
        type=architectures,
        metavar="SM,..",
        help="architectures of the image; default: those of TAO's",
    )


def add_limits(add: Callable) -> None:
    def with_label(flag: str, form: str, read: Callable, text: str) -> None:
        add(flag, action="append", default=[], type=labelled(form, read), metavar=form, help=text)

    with_label("--path", "LABEL=PATH", str, "a path that must be there: local, s3:// or hf://")
    with_label(
        "--json-required-field", "LABEL=FIELD,..", words, "fields that its records must have"
    )
    add(
        "--json-sample-limit",
        type=cli.positive,
        default=20,
        metavar="N",
        help="records looked at for fields (default: 20)",
    )
    with_label(
        "--effective-batch-limit", "LABEL=BATCH,SHARDS", pair, "BATCH is at most records / SHARDS"
    )
    with_label("--min-free-disk-gb", "LABEL=GIB", cli.above_0, "space free at LABEL's path")
    with_label(
        "--gpu-arch-allowlist", "LABEL=SM,..", architectures, "GPU architectures allowed for LABEL"
    )
    add("--gpu-min-count", type=cli.positive, metavar="N", help="GPUs of a node at least")
    add("--gpu-min-memory-gb", type=cli.above_0, metavar="GIB", help="memory of each at least")
    add("--min-gpu-memory-gb", type=cli.above_0, dest="gpu_min_memory_gb", help=argparse.SUPPRESS)
    add(
        "--gpu-min-total-memory-gb",
        type=cli.above_0,
        metavar="GB",
        help="memory of all together at least",
    )
    add("--low-vram-threshold-gb", type=cli.above_0, metavar="GIB", help="warn below this memory")


class GpuIndices(argparse.Action):
    """Add up the GPUs of a flag that may be repeated, as NVIDIA documents it."""

    def __call__(self, parser, namespace, values, option_string=None):
        before = getattr(namespace, self.dest)
        named = [*(before or []), *values]
        if len(set(named)) < len(named):
            raise argparse.ArgumentError(self, f"got {named}, expected each GPU once")
        if before is not None and not (before and values):
            raise argparse.ArgumentError(self, "got none and other GPUs, expected one of the two")
        setattr(namespace, self.dest, named)


def words(written: str) -> list[str]:
    found = [word for word in written.split(",") if word]
    if not found:
        raise cli.wrong(written, "names with commas between them")
    return found


def pair(written: str) -> tuple[int, int]:
    batch, _, shards = written.partition(",")
    return cli.positive(batch), cli.positive(shards)


def indices(written: str) -> list[int]:
    """Return the indices of the GPUs, [] for the CPU."""
    if written == "none":
        return []
    if not all(word.isdecimal() and len(word) < 5 for word in written.split(",")):
        raise cli.wrong(written, "numbers as nvidia-smi counts, such as 0,1, or none")
    return [int(word) for word in written.split(",")]


def architectures(written: str) -> list[str]:
    from cosmos_reason.jobs.platforms.gpus import architecture

    found = [architecture(word) for word in written.split(",")]
    if None in found:
        raise cli.wrong(written, "architectures like sm_90, 9.0 or compute_90")
    return found


def labelled(form: str, read: Callable) -> Callable:
    def parse(written: str) -> tuple:
        label, equals, value = written.partition("=")
        if not (label and equals):
            raise cli.wrong(secrets.hidden(written), form)
        return label, read(value)

    return parse


# ---- the command -------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason import preflight as checks
    from cosmos_reason.jobs.platforms.preflight import of_options

    if args.list_checks:
        described = checks.descriptions()
        lines = [f"{name:20} {looks_at}" for name, looks_at in described.items()]
        return cli.Outcome({"checks": described}, text="\n".join(lines))
    if args.site:
        from cosmos_reason.base import site

        args.platform = args.platform or site.read(Path(args.site)).platform
    options = options_of(args)
    refuse_unknown(args, options)
    preflight = of_options(options, PLATFORMS[args.platform], args.engine)
    found = [*checks.run(preflight), *without_effect(args)]
    found += not_for_the_platform(options, preflight.platform)
    errors = {finding.id for finding in found if finding.severity == findings.ERROR}
    if preflight.launch and errors and errors <= OF_THE_MACHINE:
        best = submit(preflight, better_image(preflight, found))
        preflight.result["launch"] = cli.suggested(best)
    following = submit(preflight, options.image) if preflight.launch else ()
    # A check that was abandoned goes on in its thread and may add to the result while this prints.
    read = Path(args.spec) if args.spec else None
    result, told = dict(preflight.result), text(preflight, read, found)
    return cli.Outcome(result, found, told, following, spec=read, plain=IN_TEXT)


def options_of(args: argparse.Namespace) -> PreflightOptions:
    from cosmos_reason.jobs.platforms.preflight import PreflightOptions

    names = [field.name for field in dataclasses.fields(PreflightOptions)]
    return PreflightOptions(**{name: getattr(args, name) for name in names if name in args})


def refuse_unknown(args: argparse.Namespace, options: PreflightOptions) -> None:
    """Raise Failure (exit 2) about platforms and labels that are none, and what would be left out
    of account."""
    from cosmos_reason import preflight

    found = []
    if args.platform not in PLATFORMS:
        found.append(unknown_platform(args.platform or ""))
    if options.dataset_facts and not options.spec:
        message = "--dataset-facts needs the --spec that the facts are compared with"
        found.append(findings.error("PRE-FACTS", "--dataset-facts", message))
    found += wrong_labels(options)
    if found:
        shown = [preflight.shown(finding, options) for finding in found]
        raise Failure(shown, findings.EXIT_BAD_INPUT)


def unknown_platform(name: str) -> Finding:
    message = f"got {name or 'none'}, expected one of {', '.join(PLATFORMS)}."
    message += findings.did_you_mean(name, PLATFORMS)
    return findings.error("PRE-PLATFORM", "--platform", message)


def wrong_labels(options: PreflightOptions) -> list[Finding]:
    """Return an error for each label that two paths have, or that no path has."""
    found = []
    labels = [label for label, _ in options.path]
    for label in sorted(set(labels)):
        if labels.count(label) > 1:
            message = f"got label {label!r} twice, expected a path each for labels of their own"
            second = [path for name, path in options.path if name == label][1]
            written = shlex.quote(f"{label}={second}")
            fix = f"replace --path {written} with --path {shlex.quote(f'{label}2={second}')}"
            found.append(findings.error("PRE-LABEL", "--path", message, fix))
    for name in LABELLED:
        flag = f"--{name.replace('_', '-')}"
        for label, _ in getattr(options, name):
            if label not in labels:
                known = ", ".join(labels) or "those of --path"
                message = f"got label {label!r}, expected one of {known}."
                message += findings.did_you_mean(label, labels)
                fix = Fix(flags={"--path": f"{label}=PATH"})
                found.append(findings.error("PRE-LABEL", flag, message, fix))
    return found


def without_effect(args: argparse.Namespace) -> list[Finding]:
    """Return what is said of flags of NVIDIA's preflight that have nothing to do here."""
    found = []
    if args.install_missing_tools:
        message = "nothing to install: S3 is reached with boto3"
        found.append(findings.info("PRE-TOOLS", "--install-missing-tools", message))
    if args.skill_bank:
        message = (
            "it is not read: images, schemas and limits are those of this bundle (skill_info.yaml)"
        )
        fix = f"drop --skill-bank {shlex.quote(args.skill_bank)}"
        found.append(findings.warning("PRE-SKILL-BANK", "--skill-bank", message, fix))
    return found


def not_for_the_platform(options: PreflightOptions, platform: str) -> list[Finding]:
    """Return a warning for each flag of a launch that this platform has no use for, which
    launch_job.py refuses there."""
    message = f"{platform} has no use for it: it is left out"
    found = []
    for flag in options.useless(platform):
        found.append(findings.warning("PRE-FLAG-USELESS", flag, message, f"drop {flag}"))
    return found


# ---- the launch that was checked ---------------------------------------------------------------


def better_image(preflight: Preflight, found: list[Finding]) -> str | None:
    """Return the image that was asked for, or one without the fault that is known of the image that
    was checked."""
    options = preflight.options
    if any(finding.id == "PRE-IMAGE-ISSUE" for finding in found):
        from cosmos_reason.spec import images

        _, sound_image = images.issue(preflight.image, preflight.engine, options.image_version)
        return sound_image
    return options.image


def submit(preflight: Preflight, image: str | None) -> tuple[str, ...]:
    """Return the launch that was checked, as launch_job takes it, or its plan to carry. Whether it
    can be launched at all is a check of its own."""
    from cosmos_reason.spec import origins

    options, launch = preflight.options, preflight.launch
    said = launch_options.taken(options.given(), launch.platform)
    if preflight.nodes > 1:
        said["nodes"] = preflight.nodes
    chosen = preflight.gpu_ids()
    if chosen is not None:
        said["gpu_ids"] = chosen
    if image != options.image:
        said.pop("image_version", None)
    if image and launch.platform != "local":
        said["image"] = image
    verb, where = "submit", []
    if launch.carried:
        verb, where = "plan", ["--output", "carry"]
        said.pop("docker_host", None)
    elif options.jobs_dir:
        where = ["--jobs-dir", options.jobs_dir]
    # What the site's file, this shell's variables or the note beside the spec say by themselves.
    by_itself = launch_options.unflagged(launch.platform, launch.site, launch.carried)
    by_itself["nodes"] = origins.nodes_of(options.spec, launch.needed_gpus)
    said = {name: value for name, value in said.items() if value != by_itself.get(name)}
    command = ["launch_job.py", verb, launch.action, "--spec", options.spec]
    command += ["--site", options.site] if options.site else ["--platform", launch.platform]
    if launch.engine != origins.engine_of(options.spec, launch.platform, launch.action):
        command += ["--engine", launch.engine]
    return (*command, *launch_options.words(said), *where)


# ---- text for people ---------------------------------------------------------------------------


def text(preflight: Preflight, spec: Path | None, found: list[Finding]) -> str:
    from cosmos_reason.base import site
    from cosmos_reason.rules import in_words
    from cosmos_reason.spec import origins

    result = preflight.result
    unknown = [line for one in found if one.id == site.UNKNOWN for line in one.data["lines"]]
    lacking = {line.partition(":")[0] for line in unknown}
    made = [name for name in result["checks"] if BY_SITE.get(name) not in lacking]
    lines = [f"checked: {', '.join(made)}"]
    predicted = result.get("prediction", {})
    if preflight.case:
        hours = predicted.get("hours")
        words = [f"{hours} hours"] if hours else []
        if not origins.of_values(spec):  # else build_spec said what it is
            steps = predicted.get("steps")
            words[:0] = [f"{steps} steps"] if steps else []
            words.append(in_words.with_batch(preflight.case, not preflight.on_cpu))
        lines += [f"{preflight.case.action}: {', '.join(words)}"] if words else []
    if predicted:
        sizes = [gpu["gib"] for gpu in result["gpus"] if gpu["gib"]]
        lines += prediction_lines(predicted, preflight.on_cpu, sizes)
    if "launch" in result:
        lines.append(f"the launch, where these are mended: {result['launch']}")
    return "\n".join(lines)


def prediction_lines(prediction: dict, on_cpu: bool, sizes: list[float]) -> list[str]:
    """Return what a run needs of a GPU, unless it runs on the CPU, and of its machine. `sizes`: GiB
    of the GPUs, where they are known."""
    from cosmos_reason.estimate import gpu_memory

    source = "assumed: the data were not read"
    if prediction["measured"]:
        source = "the longest sample"
    at = f"at {prediction['tokens']} tokens ({source})"
    faster = ""
    if prediction["most_share"]:
        faster = f"to go faster the training takes up to {prediction['most_share']:.0%}"
    if on_cpu:
        lines = ["it runs on the CPU: no GPU is used"]
    elif prediction.get("verdict") == gpu_memory.FITS:
        told = f"one GPU needs {prediction['gib']} of its {min(sizes):g} GiB {at}"
        lines = [f"{told}; {faster}" if faster else told]
    else:  # what could be saved, and where it would fit
        terms = ", ".join(f"{name} {size:.2f}" for name, size in prediction["terms"].items())
        lines = [f"one GPU needs {prediction['gib']} GiB {at}: {terms}"]
        lines.append(f"  {on_types(prediction['gpu_types'])}")
        lines += [f"  that is the least: {faster} of a GPU"] if faster else []
    if prediction["host_terms"]:
        lines.append(f"each node needs {prediction['host_gib']} GiB of host memory")
    return lines


def on_types(verdicts: dict[str, str]) -> str:
    """Return one line for all GPU types: what fits on one fits on every larger one."""
    sizes = bundle.skill_info()["gpu_types"]
    named = {"fits": [], "tight": [], "does not fit": []}
    for name in sorted(verdicts, key=sizes.get):
        named[verdicts[name]].append(f"{name} ({sizes[name]:g} GiB)")
    parts = ["fits no listed GPU"]
    if named["fits"]:
        parts = [f"fits every listed GPU from {named['fits'][0]} up"]
    if named["tight"]:
        parts.append(f"tight on {', '.join(named['tight'])}")
    if named["does not fit"]:
        parts.append(f"does not fit {', '.join(named['does not fit'])}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
