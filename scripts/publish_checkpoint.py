#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "tqdm==4.70.1", "numpy==2.4.6", "boto3==1.44.5", "huggingface_hub==1.33.0",
# ]
# ///
"""Publish a verified model or LoRA adapter to the Hugging Face Hub or S3:
weights, config, tokenizer, model card.

examples:
  scripts/publish_checkpoint.py results/train/20260101120000/safetensors/step_120 \\
      --hub my-org/my-model
  scripts/publish_checkpoint.py models/merged --s3 s3://my-bucket/models/one \\
      --job-dir jobs/train-... --yes

Without --yes it lists what would go where and sends nothing.
An interrupted run goes on when it is run again.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import files as storage
from cosmos_reason.base import findings
from cosmos_reason.checkpoints import publishing, run_outputs, selection
from cosmos_reason.evaluation import serving
from cosmos_reason.remote import hub, model_names, s3


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__, "--hub --s3 --public --by --card --yes")
    parser.add_argument(
        "folder", type=cli.local, help="model or adapter folder, or with --by a train job or output"
    )
    parser.add_argument(
        "--by",
        metavar="METRIC|val_loss|best|NAME",
        help="of a train job or output: which checkpoint, as select_checkpoint.py takes it",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--hub", metavar="ORG/NAME", help="Hub model repository; made when there is none"
    )
    where.add_argument(
        "--s3",
        metavar="s3://BUCKET/PREFIX",
        help="where to put the files (AWS_ENDPOINT_URL works; let a lifecycle rule of the bucket "
        "abort unfinished uploads)",
    )
    parser.add_argument(
        "--public", action="store_true", help="with --hub: everybody may see it (default: private)"
    )
    parser.add_argument(
        "--job-dir", type=cli.local, help="spec, metrics, facts for the card (default: job above)"
    )
    parser.add_argument(
        "--secrets-env", type=cli.local, help="KEY=VALUE file with HF_TOKEN (default: environment)"
    )
    parser.add_argument(
        "--card",
        type=cli.local,
        metavar="FILE",
        help="write the model card there, to be read first",
    )
    parser.add_argument("--yes", action="store_true", help="send it (default: only list)")
    cli.add_output_flags(parser)
    return parser


def target_uri(args) -> str:
    if args.s3 is not None:
        s3.split(args.s3)
        if args.public:
            raise findings.bad_input(
                "USAGE", "--public", "it has no effect with --s3: the bucket decides"
            )
        return args.s3.rstrip("/")
    repo = args.hub.removeprefix(model_names.HUB)
    if not model_names.HUB_NAME.fullmatch(repo):
        raise findings.bad_input("HUB-NAME", "--hub", f"got {args.hub!r}, expected ORG/NAME")
    return model_names.HUB + repo


def look(uri: str, args, secret: str | None) -> tuple[publishing.Target, list[findings.Finding]]:
    """Return the target; where nothing is to be sent, one that cannot be reached is a warning
    beside the list."""
    try:
        return publishing.look(uri, secret), []
    except findings.Failure as failure:
        if args.yes:
            raise
        return publishing.Target(uri), [
            dataclasses.replace(found, severity="warning") for found in failure.findings
        ]


def meant(folder: Path, by: str | None) -> tuple[Path, list[findings.Finding]]:
    """Return the model or adapter that is given, or chosen of a training, and what there is to say
    of the choice. Raises Failure where it has to be chosen."""
    if not selection.is_training(folder):
        if by:
            message = "it has no effect: what is named is no train job or output"
            raise findings.bad_input("CKPT-NO-EFFECT", "--by", message)
        return folder.resolve(), []
    training = selection.Training(run_outputs.output_of(folder), folder)
    if not by:
        raise training.not_chosen(training.models, "checkpoint")
    chosen, notes = training.select(by)
    return chosen.path.resolve(), notes


def main(args) -> cli.Outcome:
    uri = target_uri(args)
    folder, chosen = meant(args.folder, args.by)
    files, left, notes = publishing.collect(folder)
    notes += chosen
    beside = publishing.beside(folder, args.job_dir or selection.job_of(args.folder))
    notes += publishing.leave_other_metrics(folder, beside)
    secret = hub.token(args.secrets_env) if args.hub else None
    target, unseen = look(uri, args, secret)
    notes += unseen + publishing.objections(target, files, args.public)
    with tempfile.TemporaryDirectory() as scratch:
        files |= publishing.write(Path(scratch), uri.rpartition("/")[2], folder, beside)
        notes += publishing.secrets_in(files) + publishing.paths_in(files)
        sizes = {name: path.stat().st_size for name, path in files.items()}
        rows = [
            {"name": name, "bytes": size, "replaces": name in target.files}
            for name, size in sizes.items()
        ]
        result = {"target": target.uri, "public": args.public, "files": rows, "sent": False}
        result["left_out"] = [name for name in left if name != publishing.CARD]
        result["card"] = storage.read_text(files[publishing.CARD])
        if args.card:
            storage.write_text(args.card, result["card"])
        if not args.yes or findings.has_errors(notes):
            following = () if unseen else (Path(__file__).name, *sys.argv[1:], "--yes")
            return cli.Outcome(result, notes, listing(target, args.public, result), following)
        address, there = publishing.send(target, files, args.public, secret)
    result |= {"sent": True, "address": address, "unchanged": there}
    if run_outputs.kind(folder) == run_outputs.MODEL:
        model = str(folder) if args.s3 else uri.removeprefix(model_names.HUB)
        name = uri.rpartition("/")[2]
        result["serve"] = serving.command(model, name, folder, beside.get("spec.toml"))
    return cli.Outcome(result, notes, f"published={address}", serve=result.get("serve", ""))


def listing(target: publishing.Target, public: bool, result: dict) -> str:
    address = target.uri
    if not s3.is_uri(target.uri):
        who_may_read = "public" if public else "private"
        address += f" ({who_may_read})" if target.exists else f" ({who_may_read}, new)"
    lines = [address]
    for row in result["files"]:
        replaces = "  (replaces the one there)" if row["replaces"] else ""
        lines.append(f"  {row['bytes']:>14,}  {row['name']}{replaces}")
    total = sum(row["bytes"] for row in result["files"])
    lines.append(f"  {total:>14,}  bytes in {len(result['files'])} files")
    if result["left_out"]:
        some = ", ".join(result["left_out"][:10])
        lines.append(f"stay here: {some}{' ...' if len(result['left_out']) > 10 else ''}")
    lines.append("the model card is not shown here: --card FILE writes it, --json holds it")
    return "\n".join([*lines, "nothing was sent: add --yes"])


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
