#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "huggingface_hub==1.33.0", "boto3==1.44.5"]
# ///
"""Turn a Cosmos3 Omni checkpoint into a Qwen3-VL folder that trainers and transformers load, by copying bytes.

examples:
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path Cosmos3-Nano --output-path models/cosmos3-nano
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path s3://bucket/exports/one --donor models/nano --check-only

A valid output is reused. Without --json the result is two lines on stdout:
  converted_checkpoint=PATH
  status=converted|skipped_existing|checked
"""

import os
import sys
from pathlib import Path

from cosmos_reason import command, conversion, findings, hub, models, omni, s3, safetensors_files, storage


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    source = parser.add_argument_group("source")
    source.add_argument("--checkpoint-path", required=True, help="Omni checkpoint: folder, hf_model://... or s3://...")
    donor = "Qwen3-VL model (named alike) that supplies what is missing: config, vision tower, tokenizer"
    source.add_argument("--vlm-model-name", "--donor", dest="donor", help=donor)
    source.add_argument("--cache-dir", type=command.local, help="where to keep Hub files (default: HF_HOME's cache)")
    source.add_argument("--secrets-env", type=command.local, help="KEY=VALUE file with HF_TOKEN (default: environment)")
    output = parser.add_argument_group("output")
    output.add_argument("--output-path", type=command.local, help="folder to write (not needed for --check-only)")
    output.add_argument("--force", action="store_true", help="replace the model folder that stands at --output-path")
    output.add_argument("--max-shard-size", type=command.size, default="5GB", help="largest output file (default: 5GB)")
    output.add_argument("--jobs", type=command.positive, default=2, help="output files copied at a time (default: 2)")
    checks = parser.add_argument_group("checks")
    checks.add_argument("--check-only", action="store_true", help="only check the source (which is fetched for it)")
    checks.add_argument(
        "--hash", action="store_true", help="note each byte's SHA-256; on reuse compare source and output"
    )
    checks.add_argument("--validate", action="store_true", help="let this environment's transformers read the output")
    checks.add_argument("--validate-with-image", metavar="IMAGE", help="let the transformers of a docker image read it")
    command.add_json_flag(parser)
    return parser


def fetch(args) -> tuple[Path, Path | None]:
    """The local folders of source and donor. Of a donor elsewhere only the small files are fetched, and its vision
    tower's shards when the source has none."""

    def get(written: str, patterns: list[str], flag: str) -> Path:
        return hub.fetch_model(written, patterns, flag, args.secrets_env, args.cache_dir)

    source = get(args.checkpoint_path, omni.HUB_FILES, "--checkpoint-path")
    if not args.donor:
        return source, None
    donor = get(args.donor, omni.SMALL_FILES, "--donor")
    if source.is_dir() and donor.is_dir() and not omni.vision_shards(source):
        donor = get(args.donor, omni.SMALL_FILES + omni.vision_shards(donor), "--donor")
    return source, donor


def reusable(args) -> list[findings.Finding] | None:
    """What to say when the output was made from the Hub model's present commit, which then needs no download."""
    known = not (args.force or args.donor or s3.is_uri(args.checkpoint_path))
    if not known or Path(args.checkpoint_path).expanduser().exists():
        return None
    name = models.canonical(args.checkpoint_path, "--checkpoint-path")
    repo = name.removeprefix(models.HUB)
    made_from = conversion.hub_commit(args.output_path, repo, args.hash)
    if not made_from:
        return None
    try:
        return [] if hub.commit(repo, hub.token(args.secrets_env)) == made_from else None
    except findings.Failure:
        message = f"reused the conversion of commit {made_from[:12]} without asking the Hub for a newer one"
        return [findings.warning("CKPT-COMMIT-UNCHECKED", name, message)]


def convert(args) -> tuple[str, list[findings.Finding]]:
    folder, donor = fetch(args)
    source = omni.open_source(folder, donor)
    notes = []
    if source.supplied:
        notes.append(findings.info("CKPT-DONOR-USED", source.donor, f"supplied {', '.join(source.supplied)}"))
    elif donor:
        notes.append(findings.info("CKPT-DONOR-UNUSED", donor, "the source lacks nothing"))
    if rounded := sum(isinstance(tensor, safetensors_files.Made) for tensor in source.tensors.values()):
        notes.append(findings.info("CKPT-ROUNDED", folder, f"{rounded} tensors of other dtypes become bfloat16"))
    if args.check_only:
        message = f"{len(source.tensors)} tensors to keep, {source.dropped} to drop, all as expected"
        return "checked", [*notes, findings.info("CKPT-CONVERTIBLE", folder, message)]
    options = {"jobs": args.jobs, "copied": storage.Progress(source.total_size), "hashed": args.hash}
    return conversion.convert(source, args.output_path, args.max_shard_size, args.force, **options), notes


def main(args) -> command.Outcome:
    if args.check_only:
        unused = ("output_path", "force", "hash", "validate", "validate_with_image")
        flags = [f"--{name.replace('_', '-')}" for name in unused if vars(args)[name]]
        status, notes = convert(args)
        if flags:
            message = f"got {', '.join(flags)}, which have no effect with --check-only"
            notes.append(findings.warning("CKPT-NO-EFFECT", "--check-only", message))
        return command.Outcome(result={"status": status}, findings=notes, text=f"status={status}")
    if not args.output_path:
        raise findings.bad_input("CKPT-NO-OUTPUT", "--output-path", "got none, expected the folder to write")
    notes = reusable(args)
    status, notes = (conversion.SKIPPED, notes) if notes is not None else convert(args)
    output = os.path.abspath(args.output_path)
    provenance = storage.read_json(args.output_path / conversion.PROVENANCE)
    largest = max(file["bytes"] for file in provenance["files"].values())
    if status == conversion.SKIPPED and largest > 1.01 * args.max_shard_size + 1e6:
        message = f"reused shards of up to {largest:,} bytes, --max-shard-size counts with --force"
        notes.append(findings.warning("CKPT-SHARD-SIZE", output, message))
    result = {"converted_checkpoint": output, "status": status}
    result |= {key: provenance[key] for key in conversion.TOLD}
    made = command.Outcome(result, notes, f"converted_checkpoint={output}\nstatus={status}")
    if args.validate or args.validate_with_image:
        try:
            notes.append(conversion.validate(args.output_path, args.validate_with_image))
        except findings.Failure as failure:  # the conversion is done, and stays told
            notes += failure.findings
            made.exit_code = failure.exit_code
    return made


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
