#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "tqdm==4.70.1", "numpy==2.4.6", "huggingface_hub==1.33.0", "boto3==1.44.5",
# ]
# ///
"""Turn a Cosmos3 Omni checkpoint into a Qwen3-VL folder that trainers and transformers load,
by copying bytes.

examples:
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path Cosmos3-Nano \\
      --output-path models/cosmos3-nano
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path s3://bucket/exports/one \\
      --donor models/nano --check-only

A valid output is reused. Without --json the result is two lines on stdout:
  converted_checkpoint=PATH
  status=converted|skipped_existing|checked
"""

import os
import sys
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import families, files, findings, progress
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import conversion, omni, safetensors_files, tensor_numbers
from cosmos_reason.remote import hub, model_names, s3


def parser() -> cli.Parser:
    parser = cli.Parser(
        __doc__, "--checkpoint-path --output-path --vlm-model-name --force --check-only --validate"
    )
    source = parser.add_argument_group("source")
    source.add_argument(
        "--checkpoint-path",
        required=True,
        help="Omni checkpoint: folder, hf_model://... or s3://...",
    )
    donor = (
        "Qwen3-VL model (named alike) that supplies what is missing: config, vision tower, "
        "tokenizer"
    )
    source.add_argument("--vlm-model-name", "--donor", dest="donor", help=donor)
    source.add_argument(
        "--cache-dir", type=cli.local, help="where to keep Hub files (default: HF_HOME's cache)"
    )
    source.add_argument(
        "--secrets-env", type=cli.local, help="KEY=VALUE file with HF_TOKEN (default: environment)"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output-path", type=cli.local, help="folder to write (not needed for --check-only)"
    )
    output.add_argument(
        "--force", action="store_true", help="replace the model folder that stands at --output-path"
    )
    largest = "largest file to write; an output that is reused keeps its own (default: 5GB)"
    output.add_argument("--max-shard-size", type=cli.size, default="5GB", help=largest)
    output.add_argument(
        "--jobs", type=cli.positive, default=2, help="output files copied at a time (default: 2)"
    )
    checks = parser.add_argument_group("checks")
    checks.add_argument(
        "--check-only", action="store_true", help="only check the source (which is fetched for it)"
    )
    hashed = "note each shard's SHA-256; on reuse compare every byte and look at every number"
    checks.add_argument("--hash", action="store_true", help=hashed)
    by = checks.add_mutually_exclusive_group()
    loaded = "let this environment's transformers read the output"
    by.add_argument("--validate", action="store_true", help=loaded)
    by.add_argument(
        "--validate-with-image",
        metavar="IMAGE",
        help="let the transformers of a docker image read it",
    )
    cli.add_output_flags(parser)
    return parser


def fetch(args) -> tuple[Path, Path | None]:
    """Return the local folders of source and donor.

    Of a donor elsewhere only the small files are fetched, and its vision tower's shards when the
    source has none.
    """

    def get(written: str, patterns: list[str], flag: str) -> Path:
        return hub.fetch_model(written, patterns, flag, args.secrets_env, args.cache_dir)

    source = get(args.checkpoint_path, omni.HUB_FILES, "--checkpoint-path")
    donor = get(args.donor, omni.SMALL_FILES, "--donor") if args.donor else None
    if donor and source.is_dir() and donor.is_dir() and not omni.vision_shards(source):
        donor = get(args.donor, omni.SMALL_FILES + omni.vision_shards(donor), "--donor")
    return source, donor


def reusable(args) -> list[findings.Finding] | None:
    """Return what to say when the output was made from the Hub model's present commit; None when it
    was not.

    It is reused though the 30 GB that it was made from have left the Hub cache.
    """
    written = args.checkpoint_path
    if args.force or args.donor or args.hash:
        return None
    if s3.is_uri(written) or Path(written).expanduser().exists():
        return None
    name = model_names.canonical(written, "--checkpoint-path")
    repo = name.removeprefix(model_names.HUB)
    if conversion.check_output(args.output_path):
        return None
    provenance = files.read_json(args.output_path / conversion.PROVENANCE)
    source = provenance["source"]
    family = model_names.known_family(str(args.output_path))
    mappings = [one.version for one in families.PUBLISHED.values() if one.family is family]
    if provenance.get("mapping_version") not in mappings:
        return None  # the rules have changed since
    if not source["commit"] or hub.repo_of(str(source["path"])) != repo:
        return None
    try:
        return [] if hub.commit(repo, hub.token(args.secrets_env)) == source["commit"] else None
    except findings.Failure:
        message = f"reused the conversion of commit {source['commit'][:12]} "
        message += "without asking the Hub for a newer one"
        return [findings.warning("CKPT-COMMIT-UNCHECKED", name, message)]


def convert(args) -> tuple[str, list[findings.Finding]]:
    folder, donor = fetch(args)
    source = omni.open_source(folder, donor)
    # Samples are enough for an output that is reused: a conversion reads every number itself.
    broken = tensor_numbers.check_numbers(source.tensors, whole=args.check_only)
    if broken:
        raise findings.Failure(broken, findings.EXIT_CHECKS_FAILED)
    notes = list(source.warnings)
    if source.supplied:
        message = f"supplied {', '.join(source.supplied)}"
        notes.append(findings.info("CKPT-DONOR-USED", source.donor, message))
    elif donor:
        notes.append(findings.info("CKPT-DONOR-UNUSED", donor, "the source lacks nothing"))
    rounded = sum(tensor.made is not None for tensor in source.tensors.values())
    if rounded:
        message = f"{rounded} tensors of other dtypes become bfloat16"
        notes.append(findings.info("CKPT-ROUNDED", folder, message))
    if args.check_only:
        kept = len(source.tensors)
        message = f"{kept} tensors to keep, {source.dropped} to drop, all as expected"
        return "checked", [*notes, findings.info("CKPT-CONVERTIBLE", folder, message)]
    status = conversion.convert(
        source,
        args.output_path,
        args.max_shard_size,
        args.force,
        jobs=args.jobs,
        copied=progress.of_bytes(source.total_size, "convert"),
        hashed=args.hash,
    )
    return status, notes


def check_only(args) -> cli.Outcome:
    status, notes = convert(args)
    unused = ("output_path", "force", "hash", "validate", "validate_with_image")
    flags = [f"--{name.replace('_', '-')}" for name in unused if vars(args)[name]]
    if flags:
        message = f"{', '.join(flags)} have no effect with --check-only"
        notes.append(findings.warning("CKPT-NO-EFFECT", "--check-only", message))
    return cli.Outcome({"status": status}, notes, f"status={status}")


def main(args) -> cli.Outcome:
    if args.check_only:
        return check_only(args)
    if not args.output_path:
        message = "it is required: the folder to write"
        fix = Fix(flags={"--output-path": "DIR"})
        raise findings.bad_input("CKPT-NO-OUTPUT", "--output-path", message, fix)
    status = conversion.SKIPPED
    notes = reusable(args)
    if notes is None:
        status, notes = convert(args)
    output = os.path.abspath(args.output_path)
    provenance = files.read_json(args.output_path / conversion.PROVENANCE)
    result = {"converted_checkpoint": output, "status": status}
    result |= {key: provenance[key] for key in conversion.REPORTED}
    following = ("build_spec.py", "train", "--model", output, "-o", "spec.toml")
    made = cli.Outcome(result, notes, f"converted_checkpoint={output}\nstatus={status}", following)
    if status == conversion.SKIPPED and (args.hash or args.validate or args.validate_with_image):
        notes += tensor_numbers.check_numbers(
            safetensors_files.read_folder(args.output_path)[0], whole=True
        )
    if args.validate or args.validate_with_image:
        try:
            notes.append(conversion.validate(args.output_path, args.validate_with_image))
        except findings.Failure as failure:  # the conversion is done, and stays told
            notes += failure.findings
            made.exit_code = failure.exit_code
    return made


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
