"""Publishing one checkpoint to the Hub or S3: which of its files may leave the machine, its model card, the sending."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason import adapters, checkpoints, hub, models, omni, s3, safetensors_files, spec, storage
from cosmos_reason import findings as f

CARD = "README.md"
# Nothing else is ever sent: no pickles, no optimizer, no logs, no files whose names start with a dot.
SMALL_FILES = {
    *("config.json", adapters.CONFIG, safetensors_files.INDEX_NAME, *omni.COPIED),
    *("processor_config.json", "chat_template.jinja", "chat_template.json"),
}


@dataclass(frozen=True)
class Target:
    """Where files go: `uri` is s3://... or hf_model://ORG/NAME. The rest tells what stands there already."""

    uri: str
    exists: bool = False
    private: bool = True
    files: frozenset[str] = field(default_factory=frozenset)


def collect(folder: Path) -> tuple[dict[str, Path], list[str], list[f.Finding]]:
    """({name: file} to send, in the order of sending, names left behind, warnings) of a verified model or adapter.

    Raises Failure with all that is wrong with it: what is published can be loaded.
    """
    if not folder.is_dir():
        raise f.bad_input("CKPT-NOT-FOLDER", folder, "got no such folder, expected a model or adapter folder")
    kind = checkpoints.kind(folder)
    if kind == checkpoints.RESUME:
        model = folder.parents[2] / "safetensors" / folder.parent.name
        fix = shlex.join(["scripts/publish_checkpoint.py", str(model)])
        raise f.bad_input("CKPT-NOT-MODEL", folder, "got a resume folder (optimizer, pickles), expected a model", fix)
    found = checkpoints.verify(folder, numbers=True)
    if f.has_errors(found):
        raise f.Failure(found, f.EXIT_CHECKS_FAILED)
    if kind == checkpoints.ADAPTER:
        weights = {adapters.WEIGHTS}
        if not _is_on_hub(base := _base(folder, {})):
            message = f"got the base {base}, a path of this machine: nobody else can load the adapter"
            fix = "scripts/select_checkpoint.py OUTPUT --by NAME --merge DIR"
            found.append(f.warning("PUBLISH-LOCAL-BASE", folder, message, fix))
    else:
        stored = safetensors_files.read_folder(folder)[0].values()
        weights = {tensor.file.relative_to(folder).as_posix() for tensor in stored}
    names = sorted(path.name for path in folder.iterdir())
    if not weights <= set(names):
        message = "got weights in folders below it, as in an Omni checkpoint, expected a converted model"
        prepare = ["scripts/prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", str(folder)]
        fix = shlex.join([*prepare, "--output-path", f"{folder}-qwen3-vl"])
        raise f.bad_input("CKPT-NOT-MODEL", folder, message, fix)
    # Weights first: what loads is there last, so that an interrupted publication does not look complete.
    sent = [name for name in names if name in weights] + [name for name in names if name in SMALL_FILES]
    if foreign := [name for name in sent if not _is_own_file(folder / name)]:
        message = f"got {', '.join(foreign)}: a folder or a link that leads out, expected files"
        raise f.bad_input("PUBLISH-LINK", folder, message)
    return {name: folder / name for name in sent}, [name for name in names if name not in sent], found


def _is_own_file(path: Path) -> bool:
    """Whether it is a file, and if it is a link, one into its folder or into the blobs of the Hub cache it is in."""
    real = Path(os.path.realpath(path))
    blobs = path.parents[2] / "blobs" if hub.repo_of(path.parent) else path.parent
    return real.is_file() and (path.parent in real.parents or real.parent == blobs)


def _base(folder: Path, told: Mapping[str, Path]) -> str:
    """The model that was fine-tuned: of an adapter what it says, of a model what its spec says, else ''."""
    base = ""
    if checkpoints.kind(folder) == checkpoints.ADAPTER:
        base = safetensors_files.read_object(folder / adapters.CONFIG)["base_model_name_or_path"]
    elif "spec.toml" in told:
        base = str(spec.get(spec.load(told["spec.toml"]), "policy.model_name_or_path", ""))
    return hub.repo_of(base) or base.removeprefix(models.HUB)


def _is_on_hub(base: str) -> bool:
    return bool(models.HUB_NAME.fullmatch(base)) and not Path(base).is_dir()


def beside(folder: Path, given: Path | None) -> dict[str, Path]:
    """The files that tell of a checkpoint's training: in it, in `given`, or else in the folders of its train job.
    Raises Failure (exit 2) when `given` is no folder."""
    if given and not given.is_dir():
        raise f.bad_input("PUBLISH-NO-JOB", f"--job-dir {given}", "got no such folder, expected that of a train job")
    in_run = folder.parent.name in ("safetensors", "merged")
    named = [folder, *([given] if given else [])]
    above = list(folder.absolute().parents[1:4]) if in_run else []
    places = {"spec.toml": named + above, "dataset_facts.json": named + above, "metrics.json": named}
    places[checkpoints.METRICS_FILE] = above
    return {name: home / name for name, homes in places.items() for home in homes[::-1] if (home / name).is_file()}


def write(scratch: Path, name: str, folder: Path, told: Mapping[str, Path]) -> dict[str, Path]:
    """{name: file} of what is published in another form than it has here: the model card, and of an adapter the config
    with the Hub's name of its base instead of the cache's."""
    storage.write_text(scratch / CARD, _card(name, folder, told))
    if checkpoints.kind(folder) == checkpoints.ADAPTER and _is_on_hub(base := _base(folder, {})):
        config = safetensors_files.read_object(folder / adapters.CONFIG) | {"base_model_name_or_path": base}
        storage.write_json(scratch / adapters.CONFIG, config)
    return {path.name: path for path in sorted(scratch.iterdir(), reverse=True)}  # the card last


def _card(name: str, folder: Path, told: Mapping[str, Path]) -> str:
    """The base, the metrics, the facts of the data, and the numbers of the spec."""
    import yaml

    is_adapter, base = checkpoints.kind(folder) == checkpoints.ADAPTER, _base(folder, told)
    head = {"library_name": "peft" if is_adapter else "transformers", "pipeline_tag": "video-text-to-text"}
    head |= {"tags": ["cosmos-reason"]} | ({"base_model": base} if _is_on_hub(base) else {})
    told_base = f"Fine-tuned from {base}." if "base_model" in head else "A Cosmos Reason checkpoint."
    sections = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---", f"# {name}", told_base]
    tables = {"Metrics": _metrics(folder, told), "Training data": {}, "Spec": {}}
    if "dataset_facts.json" in told:
        facts = safetensors_files.read_object(told["dataset_facts.json"])
        wanted = ("format", "records", "clips", "question_types", "majority_accuracy", "fingerprint")
        tables["Training data"] = {key: facts[key] for key in wanted if facts.get(key) is not None}
    if "spec.toml" in told:
        tables["Spec"] = _safe(spec.load(told["spec.toml"]))
    for title, rows in tables.items():
        if rows:
            lines = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows.items()]
            sections.append("\n".join([f"## {title}\n", "| | |", "| --- | --- |", *lines]))
    return "\n\n".join(sections) + "\n"


def _metrics(folder: Path, told: Mapping[str, Path]) -> dict[str, float]:
    """The numbers of this checkpoint: its row in checkpoint_metrics.json, else those of metrics.json."""
    if checkpoints.METRICS_FILE in told:
        home = told[checkpoints.METRICS_FILE].parent
        rows = checkpoints.metrics_table(home)
        if row := next((row for name, row in rows.items() if (home / name).resolve() == folder.resolve()), None):
            return row
    found = safetensors_files.read_object(told["metrics.json"]) if "metrics.json" in told else {}
    return {name: value for name, value in found.items() if type(value) in (int, float) and name != "schema_version"}


def _safe(table: dict) -> dict[str, object]:
    """The spec's keys that the schema of training knows, where the value is a number, a switch or a word of the schema:
    any other text may be a path, a secret or the name of a person."""

    def is_safe(value, schema: dict) -> bool:
        values = value if isinstance(value, list) else [value]
        return all(type(one) in (int, float, bool) or one in schema.get("enum", []) for one in values)

    known = spec.keys("train")
    return {key: value for key, value in spec.items("train", table) if key in known and is_safe(value, known[key])}


def look(uri: str, secret: str | None) -> Target:
    """What stands at the target, and whether it may be written as far as can be told. Raises Failure (exit 2 or 3)."""
    if s3.is_uri(uri):
        files = frozenset(found.name for found in s3.objects(uri))
        return Target(uri, exists=bool(files), files=files)
    there = hub.writable(uri.removeprefix(models.HUB), secret)
    return Target(uri, True, there["private"], frozenset(there["files"])) if there else Target(uri)


def objections(target: Target, files: Mapping[str, Path], public: bool) -> list[f.Finding]:
    """Why these files must not go there: other weights would mix with them, or everybody could see them."""
    found = []
    # A loader prefers model.safetensors to an index, and an adapter beside a model is applied to it.
    loaded = {n for n in target.files if "/" not in n and n.endswith((".safetensors", ".safetensors.index.json"))}
    if stale := sorted((loaded | target.files & {adapters.CONFIG}) - files.keys()):
        message = f"got weights there that would stay and mix with these: {', '.join(stale[:3])}"
        if s3.is_uri(target.uri):
            fix = " && ".join(shlex.join(["aws", "s3", "rm", s3.join(target.uri, name)]) for name in stale)
        else:
            fix = shlex.join(["hf", "repos", "delete-files", target.uri.removeprefix(models.HUB), *stale])
        found.append(f.error("PUBLISH-OTHER-WEIGHTS", target.uri, message, fix, names=stale))
    if target.exists and not target.private and not public:
        message = "got a public repository, expected a private one: it would be seen by everybody"
        found.append(f.error("PUBLISH-PUBLIC", target.uri, message, "--public"))
    if target.exists and target.private and public and not s3.is_uri(target.uri):
        found.append(f.info("PUBLISH-STAYS-PRIVATE", target.uri, "the repository is private and stays so"))
    return found


def send(target: Target, files: Mapping[str, Path], public: bool, secret: str | None) -> tuple[str, list[str]]:
    """Send the files; returns the address and the names that were there already. Raises Failure (exit 3)."""
    if not s3.is_uri(target.uri):
        return hub.publish(target.uri.removeprefix(models.HUB), files, not public, secret), []
    connection = s3.client()
    progress = storage.Progress(sum(path.stat().st_size for path in files.values()))
    there = []
    for name, path in files.items():
        uri = s3.join(target.uri, name)
        if name in target.files and s3.is_same(path, uri, connection):
            there.append(name)
            progress(path.stat().st_size)
        else:
            s3.send(path, uri, connection, progress)
    return target.uri, there
