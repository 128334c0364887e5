#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "numpy==2.4.6", "huggingface_hub==1.33.0", "boto3==1.44.5"]
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

from cosmos_reason import command, conversion, findings, hub, models, omni, s3, storage


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
    largest = "largest file to write; an output that is reused keeps its own (default: 5GB)"
    output.add_argument("--max-shard-size", type=command.size, default="5GB", help=largest)
    output.add_argument("--jobs", type=command.positive, default=2, help="output files copied at a time (default: 2)")
    checks = parser.add_argument_group("checks")
    checks.add_argument("--check-only", action="store_true", help="only check the source (which is fetched for it)")
    checks.add_argument("--hash", action="store_true", help="note each shard's SHA-256; on reuse compare every byte")
    by = checks.add_mutually_exclusive_group()
    by.add_argument("--validate", action="store_true", help="let this environment's transformers read the output")
    by.add_argument("--validate-with-image", metavar="IMAGE", help="let the transformers of a docker image read it")
    command.add_json_flag(parser)
    return parser


def fetch(args) -> tuple[Path, Path | None]:
    """The local folders of source and donor. Of a donor elsewhere only the small files are fetched, and its vision
    tower's shards when the source has none."""

    def get(written: str, patterns: list[str], flag: str) -> Path:
        return hub.fetch_model(written, patterns, flag, args.secrets_env, args.cache_dir)

    source = get(args.checkpoint_path, omni.HUB_FILES, "--checkpoint-path")
    donor = get(args.donor, omni.SMALL_FILES, "--donor") if args.donor else None
    if donor and source.is_dir() and donor.is_dir() and not omni.vision_shards(source):
        donor = get(args.donor, omni.SMALL_FILES + omni.vision_shards(donor), "--donor")
    return source, donor


def reusable(args) -> list[findings.Finding] | None:
    """What to say when the output was made from the Hub model's present commit: it is reused though the 30 GB that it
    was made from have left the Hub cache. None when it was not."""
    written = args.checkpoint_path
    if args.force or args.donor or args.hash or s3.is_uri(written) or Path(written).expanduser().exists():
        return None
    name = models.canonical(written, "--checkpoint-path")
    repo = name.removeprefix(models.HUB)
    if conversion.check_output(args.output_path):
        return None
    source = storage.read_json(args.output_path / conversion.PROVENANCE)["source"]
    if not source["commit"] or hub.repo_of(str(source["path"])) != repo:
        return None
    try:
        return [] if hub.commit(repo, hub.token(args.secrets_env)) == source["commit"] else None
    except findings.Failure:
        message = f"reused the conversion of commit {source['commit'][:12]} without asking the Hub for a newer one"
        return [findings.warning("CKPT-COMMIT-UNCHECKED", name, message)]


def convert(args) -> tuple[str, list[findings.Finding]]:
    folder, donor = fetch(args)
    source = omni.open_source(folder, donor)
    notes = []
    if source.supplied:
        notes.append(findings.info("CKPT-DONOR-USED", source.donor, f"supplied {', '.join(source.supplied)}"))
    elif donor:
        notes.append(findings.info("CKPT-DONOR-UNUSED", donor, "the source lacks nothing"))
    if rounded := sum(tensor.made is not None for tensor in source.tensors.values()):
        notes.append(findings.info("CKPT-ROUNDED", folder, f"{rounded} tensors of other dtypes become bfloat16"))
    if args.check_only:
        message = f"{len(source.tensors)} tensors to keep, {source.dropped} to drop, all as expected"
        return "checked", [*notes, findings.info("CKPT-CONVERTIBLE", folder, message)]
    options = {"jobs": args.jobs, "copied": storage.Progress(source.total_size), "hashed": args.hash}
    return conversion.convert(source, args.output_path, args.max_shard_size, args.force, **options), notes


def main(args) -> command.Outcome:
    if args.check_only:
        status, notes = convert(args)
        unused = ("output_path", "force", "hash", "validate", "validate_with_image")
        if flags := [f"--{name.replace('_', '-')}" for name in unused if vars(args)[name]]:
            message = f"got {', '.join(flags)}, which have no effect with --check-only"
            notes.append(findings.warning("CKPT-NO-EFFECT", "--check-only", message))
        return command.Outcome({"status": status}, notes, f"status={status}")
    if not args.output_path:
        raise findings.bad_input("CKPT-NO-OUTPUT", "--output-path", "got none, expected the folder to write")
    notes = reusable(args)
    status, notes = (conversion.SKIPPED, notes) if notes is not None else convert(args)
    output = os.path.abspath(args.output_path)
    provenance = storage.read_json(args.output_path / conversion.PROVENANCE)
    result = {"converted_checkpoint": output, "status": status}
    result |= {key: provenance[key] for key in conversion.TOLD}
    following = ("build_spec.py", "train", "--model", output, "-o", "spec.toml")
    made = command.Outcome(result, notes, f"converted_checkpoint={output}\nstatus={status}", following)
    if args.validate or args.validate_with_image:
        try:
            notes.append(conversion.validate(args.output_path, args.validate_with_image))
        except findings.Failure as failure:  # the conversion is done, and stays told
            notes += failure.findings
            made.exit_code = failure.exit_code
    return made


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
