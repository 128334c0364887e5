#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "huggingface_hub==1.33.0"]
# ///
"""Turn a Cosmos3 Omni checkpoint into a Qwen3-VL folder that trainers and transformers load, by copying bytes.

examples:
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path Cosmos3-Nano --output-path models/cosmos3-nano
  scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path Cosmos3-Nano --check-only

A valid output is reused. Without --json the result is two lines on stdout:
  converted_checkpoint=PATH
  status=converted|skipped_existing|checked
"""

import argparse
import re
import sys
from pathlib import Path

from cosmos_reason import command, conversion, findings, hub, models, omni, storage

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a size such as 5GB or 500MB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1")
    return int(text)


def local(text: str) -> Path:
    return Path(text).expanduser()


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    source = parser.add_argument_group("source")
    source.add_argument(
        "--checkpoint-path", required=True, help="folder, or hf_model://ORG/NAME, of an Omni checkpoint"
    )
    source.add_argument(
        "--vlm-model-name",
        "--donor",
        dest="donor",
        help="Qwen3-VL folder or Hub model that supplies what the checkpoint lacks: config, vision tower, tokenizer",
    )
    source.add_argument("--cache-dir", type=local, help="where Hub files are kept (default: the cache of HF_HOME)")
    source.add_argument("--secrets-env", type=local, help="KEY=VALUE file to take HF_TOKEN from (default: environment)")
    output = parser.add_argument_group("output")
    output.add_argument("--output-path", type=local, help="folder to write (required, except with --check-only)")
    output.add_argument("--force", action="store_true", help="replace the model folder that stands at --output-path")
    output.add_argument("--max-shard-size", type=size, default="5GB", help="largest output file (default: 5GB)")
    output.add_argument("--jobs", type=positive, default=2, help="output files copied at a time (default: 2)")
    checks = parser.add_argument_group("checks")
    checks.add_argument("--check-only", action="store_true", help="check the source against its config, write nothing")
    checks.add_argument("--validate", action="store_true", help="let this environment's transformers read the output")
    checks.add_argument("--validate-with-image", metavar="IMAGE", help="let the transformers of a docker image read it")
    command.add_json_flag(parser)
    return parser


def fetch(written: str, patterns: list[str], args) -> Path:
    """The local folder of a folder name or a Hub model name."""
    name = models.canonical(written)
    if not name.startswith(models.HUB):
        return Path(name)
    repo, secret = name.removeprefix(models.HUB), hub.token(args.secrets_env)
    return hub.snapshot(repo, hub.commit(repo, secret), patterns, args.cache_dir, secret)


def fetch_donor(args, source: Path) -> Path | None:
    """The donor's folder; of a Hub model only the small files and, when the source has no vision tower, its shards."""
    if not args.donor:
        return None
    donor = fetch(args.donor, omni.SMALL_FILES, args)
    if models.canonical(args.donor).startswith(models.HUB) and not omni.has_vision(source):
        donor = fetch(args.donor, omni.SMALL_FILES + omni.vision_shards(donor), args)
    return donor


def reusable(args) -> list[findings.Finding] | None:
    """What to say when the output was made from the Hub model's present commit, which then needs no download."""
    name = models.canonical(args.checkpoint_path)
    if args.force or not name.startswith(models.HUB):
        return None
    repo = name.removeprefix(models.HUB)
    made_from = conversion.hub_commit(args.output_path, repo)
    if not made_from:
        return None
    try:
        return [] if hub.commit(repo, hub.token(args.secrets_env)) == made_from else None
    except findings.Failure:
        message = f"reused the conversion of commit {made_from[:12]} without asking the Hub for a newer one"
        return [findings.warning("CKPT-COMMIT-UNCHECKED", name, message)]


def convert(args) -> tuple[str, list[findings.Finding]]:
    folder = fetch(args.checkpoint_path, omni.HUB_FILES, args)
    source = omni.open_source(folder, fetch_donor(args, folder))
    notes = []
    if source.supplied:
        notes.append(findings.info("CKPT-DONOR-USED", source.donor, f"supplied {', '.join(source.supplied)}"))
    if args.check_only:
        message = (
            f"{source.layout} layout: {len(source.tensors)} tensors to keep, {source.dropped} to drop, all as expected"
        )
        return "checked", [*notes, findings.info("CKPT-CONVERTIBLE", folder, message)]
    progress = conversion.Progress(source.total_size)
    return conversion.convert(source, args.output_path, args.max_shard_size, args.force, args.jobs, progress), notes


def main(args) -> command.Outcome:
    if args.check_only:
        status, notes = convert(args)
        return command.Outcome(result={"status": status}, findings=notes, text=f"status={status}")
    if not args.output_path:
        raise findings.bad_input("CKPT-NO-OUTPUT", "--output-path", "got none, expected the folder to write")
    notes = reusable(args)
    status, notes = (conversion.SKIPPED, notes) if notes is not None else convert(args)
    if args.validate or args.validate_with_image:
        notes.append(conversion.validate(args.output_path, args.validate_with_image))
    provenance = storage.read_json(args.output_path / conversion.PROVENANCE)
    result = {"converted_checkpoint": str(args.output_path), "status": status}
    result |= {key: provenance[key] for key in ("source", "donor", "tensors", "dropped", "total_size")}
    text = f"converted_checkpoint={args.output_path}\nstatus={status}"
    return command.Outcome(result=result, findings=notes, text=text)


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
