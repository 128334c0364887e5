"""Publishing one checkpoint to the Hub or S3: which of its files may leave the machine, its model
card, the sending. Enter at `collect`, then `look`, `objections`, `write` and `send`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason.base import families, files, findings, progress, secrets
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.checkpoints import (
    adapters,
    checkpoint_metrics,
    made_of,
    omni,
    run_outputs,
    safetensors_files,
    training_settings,
)
from cosmos_reason.remote import hub, model_names, s3
from cosmos_reason.spec import document

CARD = "README.md"
# Nothing else is ever sent: no pickles, no optimizer, no logs, no files whose names start with a
# dot.
SMALL_FILES = {
    "config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    adapters.CONFIG,
    safetensors_files.INDEX_NAME,
    training_settings.FILE,
    made_of.FILE,
    *omni.COPIED,
}
# What loaders take where a file that is sent says the same in another place, or apply beside it;
# chat_template.json only where no chat_template.jinja is sent. What else may stay is read by
# nobody, or the sent files say it as well.
_TAKEN_FIRST = {
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    adapters.CONFIG,
}
# Keys in which trainers keep the place that a model came from, where that is a path.
_LOADED_FROM = re.compile(r'"(_?name_or_path)"\s*:\s*"([/~.][^"]*)"')
# What the card tells of the training data.
FACTS = ("format", "records", "clips", "question_types", "majority_accuracy", "fingerprint")


@dataclass(frozen=True)
class Target:
    """Where files go: `uri` is s3://... or hf_model://ORG/NAME. The rest tells what stands there
    already."""

    uri: str
    exists: bool = False
    private: bool = True
    files: frozenset[str] = field(default_factory=frozenset)


# -- what is sent ------------------------------------------------------------------------------


def collect(folder: Path) -> tuple[dict[str, Path], list[str], list[Finding]]:
    """Return ({name: file} to send, in the order of sending, names left behind, warnings) of a
    verified model or adapter. Raises Failure with all that is wrong with it: what is published can
    be loaded."""
    found = _verified(folder)
    if run_outputs.kind(folder) == run_outputs.ADAPTER:
        weights = {adapters.WEIGHTS}
    else:
        tensors, _ = safetensors_files.read_folder(folder)
        weights = {tensor.file.relative_to(folder).as_posix() for tensor in tensors.values()}
    names = sorted(path.name for path in folder.iterdir())
    if not weights <= set(names):
        message = "its weights lie in folders below it, as in an Omni checkpoint; convert it first"
        prepare = ["scripts/prepare_cosmos3_vlm_checkpoint.py", "--checkpoint-path", str(folder)]
        fix = shlex.join([*prepare, "--output-path", f"{folder}-{families.OMNI.suffix}"])
        raise findings.bad_input("CKPT-NOT-MODEL", folder, message, fix)
    # Weights first: what makes a model load comes last, so that an interrupted publication does not
    # look complete.
    sent = sorted(weights) + [name for name in names if name in SMALL_FILES]
    # Links may lead into their own folder, or into the blobs of the Hub cache that it is in.
    blobs = folder.parents[1] / "blobs" if hub.repo_of(folder) else folder
    foreign = []
    for name in sent:
        real = Path(os.path.realpath(folder / name))
        if not real.is_file() or (folder not in real.parents and real.parent != blobs):
            foreign.append(name)
    if foreign:
        message = (
            f"{', '.join(foreign)} is a folder or a link that leads out, and only files are sent"
        )
        raise findings.bad_input("PUBLISH-LINK", folder, message)
    left = [name for name in names if name not in sent]
    return {name: folder / name for name in sent}, left, found


def _verified(folder: Path) -> list[Finding]:
    """Return warnings about a model or adapter folder. Raises Failure for a damaged one, and for
    what is none."""
    if not folder.is_dir():
        message = "there is no such folder; name a model or adapter folder"
        raise findings.bad_input("CKPT-NOT-FOLDER", folder, message)
    kind = run_outputs.kind(folder)
    if kind == run_outputs.RESUME:
        model = folder.parents[2] / "safetensors" / folder.parent.name
        message = "it is a resume folder (optimizer, pickles), not a model"
        message += f"; name {model}" if model.is_dir() else ""
        raise findings.bad_input("CKPT-NOT-MODEL", folder, message)
    # Every number is read: what is published is not seen again before others load it.
    found = run_outputs.verify(folder, whole=True)
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_CHECKS_FAILED)
    if kind == run_outputs.ADAPTER:
        base = _base(folder, {})
        if not _is_on_hub(base):
            message = f"its base {base} is a path of this machine: nobody else can load the adapter"
            fix = shlex.join(["scripts/select_checkpoint.py", str(folder), "--merge", "DIR"])
            found.append(findings.warning("PUBLISH-LOCAL-BASE", folder, message, fix))
    return found


def _base(folder: Path, beside: Mapping[str, Path]) -> str:
    """Return the model that was fine-tuned, by its name on the Hub also where it is a folder of the
    Hub's cache: of an adapter what it says, of a model what its spec says, else ''."""
    base = ""
    if run_outputs.kind(folder) == run_outputs.ADAPTER:
        config = safetensors_files.read_object(folder / adapters.CONFIG)
        base = config["base_model_name_or_path"]
    elif "spec.toml" in beside:
        spec = document.load(beside["spec.toml"])
        base = str(document.get(spec, "policy.model_name_or_path", ""))
    return hub.repo_of(base) or base.removeprefix(model_names.HUB)


def _is_on_hub(base: str) -> bool:
    if base.split("/")[0] in model_names.FOLDERS:  # a relative path, wherever it led
        return False
    return bool(model_names.HUB_NAME.fullmatch(base)) and not Path(base).is_dir()


# -- the model card ----------------------------------------------------------------------------


def beside(folder: Path, given: Path | None) -> dict[str, Path]:
    """Return the files that tell of a checkpoint's training: in it, in `given`, or else in the
    folders of its train job. Raises Failure (exit 2) when `given` is no folder."""
    if given and not given.is_dir():
        message = "there is no such folder; name that of a train job"
        raise findings.bad_input("PUBLISH-NO-JOB", f"--job-dir {given}", message)
    named = [folder] if given is None else [folder, given]
    above = []
    if run_outputs.is_in_run(folder):
        above = list(folder.absolute().parents[1:4])
    homes_of = {
        "spec.toml": [*named, *above],
        "dataset_facts.json": [*named, *above],
        "metrics.json": named,
        checkpoint_metrics.FILE: above,
    }
    found = {}
    for name, homes in homes_of.items():
        for home in homes:
            if (home / name).is_file():
                found[name] = home / name
                break
    return found


def leave_other_metrics(folder: Path, beside: dict[str, Path]) -> list[Finding]:
    """Take metrics.json out of the files beside a checkpoint where it was measured on other
    weights, and say so: the card would tell its numbers as this one's. A copy has the same, and a
    merged model answers as the adapter and the base that it was made of. Where nothing proves
    whose the numbers are they stay, and it is said: the name of a model is what a server was told
    to call it."""
    path = beside.get("metrics.json")
    metrics = safetensors_files.read_object(path) if path else {}
    named = metrics.get("checkpoint") or metrics.get("model")
    if not isinstance(named, str):
        return []  # who gave it says that it is of this model
    is_here = Path(named).is_dir()
    told = metrics.get("weights")
    if not isinstance(told, dict):
        told = {"model": made_of.digest(Path(named)) if is_here else None}
    own, merged = made_of.digest(folder), made_of.merged_from(folder)
    is_own = told.get("model") in (own, (merged or {}).get("adapter"))
    if told.get("model") and is_own:
        base = told.get("base")
        if not merged or told["model"] == own or base in (None, merged["base"]):
            return []
    on_hub = named.removeprefix(model_names.HUB)
    if not is_here and hub.repo_of(folder) == on_hub:
        return []
    # Weights that differ may still answer alike, one an adapter and the other merged of it.
    if is_here:
        was_adapter = run_outputs.kind(Path(named)) == run_outputs.ADAPTER
    else:
        was_adapter = True if told.get("base") else None
    is_alike = was_adapter is (run_outputs.kind(folder) == run_outputs.ADAPTER)
    is_other = bool(told.get("model") and own and (merged or is_alike))
    is_untouched = not is_here and on_hub in model_names.published()
    if not (is_other or is_untouched):
        message = (
            f"it was measured on {named}, which nothing proves to be {folder} or what it was made "
            "of: the model card tells its numbers, which are true only if it is"
        )
        return [findings.warning("PUBLISH-OTHER-METRICS", path, message)]
    del beside["metrics.json"]
    message = f"it was measured on {named}, not on {folder}: the model card leaves it out"
    return [findings.warning("PUBLISH-OTHER-METRICS", path, message)]


def write(scratch: Path, name: str, folder: Path, beside: Mapping[str, Path]) -> dict[str, Path]:
    """Return {name: file} of what is published in another form than it has here: the model card,
    and of an adapter the config with the Hub's name of its base instead of the cache's. The card is
    the last."""
    base = _base(folder, beside)
    files.write_text(scratch / CARD, _card(name, folder, beside, base))
    written = {CARD: scratch / CARD}
    if run_outputs.kind(folder) == run_outputs.ADAPTER and _is_on_hub(base):
        config = safetensors_files.read_object(folder / adapters.CONFIG)
        snapshot = Path(str(config["base_model_name_or_path"]))
        if commit := hub.commit_of(snapshot):
            config["revision"] = commit
        files.write_json(scratch / adapters.CONFIG, config | {"base_model_name_or_path": base})
        written = {adapters.CONFIG: scratch / adapters.CONFIG, **written}
    return written


def _card(name: str, folder: Path, beside: Mapping[str, Path], base: str) -> str:
    """Return the base, the metrics, the facts of the data, and the numbers of the spec."""
    import yaml

    is_adapter = run_outputs.kind(folder) == run_outputs.ADAPTER
    head = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "video-text-to-text",
        "tags": ["cosmos-reason"],
    }
    summary = "A Cosmos Reason checkpoint."
    if _is_on_hub(base):
        head["base_model"] = base
        summary = f"Fine-tuned from {base}, whose licence says what may be done with it."
    quantized = model_names.read_table(folder / "config.json").get("quantization_config")
    if isinstance(quantized, dict):
        how = [quantized[key] for key in ("quant_method", "format") if quantized.get(key)]
        summary += f" Its weights are quantized ({', '.join(map(str, how))})."
    sections = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---", f"# {name}", summary]
    sections += _section("Metrics", _metrics(folder, beside))
    if "dataset_facts.json" in beside:
        facts = safetensors_files.read_object(beside["dataset_facts.json"])
        known = {key: facts[key] for key in FACTS if facts.get(key) is not None}
        sections += _section("Training data", known)
    if "spec.toml" in beside:
        sections += _section("Spec", _publishable(document.load(beside["spec.toml"])))
    return "\n\n".join(sections) + "\n"


def _section(title: str, rows: Mapping[str, object]) -> list[str]:
    """Return a table of the card; none for no rows."""
    if not rows:
        return []
    lines = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows.items()]
    return ["\n".join([f"## {title}\n", "| | |", "| --- | --- |", *lines])]


def _metrics(folder: Path, beside: Mapping[str, Path]) -> dict[str, float]:
    """Return the numbers of this checkpoint: its row in checkpoint_metrics.json, else those of
    metrics.json."""
    if checkpoint_metrics.FILE in beside:
        home = beside[checkpoint_metrics.FILE].parent
        for name, row in checkpoint_metrics.read(home).items():
            if (home / name).resolve() == folder.resolve():
                numbers = checkpoint_metrics.numbers(row)
                if numbers:
                    return numbers
    if "metrics.json" not in beside:
        return {}
    metrics = safetensors_files.read_object(beside["metrics.json"])
    metrics.pop("schema_version", None)
    return {name: value for name, value in metrics.items() if type(value) in (int, float)}


def _publishable(spec: dict) -> dict[str, object]:
    """Return the spec's keys that the schema of training knows, where the value is a number, a
    switch or a word of the schema: any other text may be a path, a secret or the name of a
    person."""
    known = document.keys("train")
    kept = {}
    for key, value in document.items("train", spec):
        words = known.get(key, {}).get("enum", [])
        parts = value if isinstance(value, list) else [value]
        if key in known and all(type(one) in (int, float, bool) or one in words for one in parts):
            kept[key] = value
    return kept


# -- where it goes -----------------------------------------------------------------------------


def look(uri: str, secret: str | None) -> Target:
    """Return what stands at the target, and whether it may be written as far as can be told. Raises
    Failure (exit 2 or 3)."""
    if s3.is_uri(uri):
        names = frozenset(found.name for found in s3.objects(uri))
        return Target(uri, exists=bool(names), files=names)
    repository = hub.writable(uri.removeprefix(model_names.HUB), secret)
    if not repository:
        return Target(uri)
    return Target(uri, True, repository["private"], frozenset(repository["files"]))


def objections(target: Target, sent: Mapping[str, Path], public: bool) -> list[Finding]:
    """Return why these files must not go there: those of another model would mix with them, or
    everybody could see them."""
    found = []
    # Loaders prefer model.safetensors to an index.
    loaded = (".safetensors", ".safetensors.index.json")
    taken_first = _TAKEN_FIRST
    if "chat_template.jinja" in sent:
        taken_first = taken_first - {"chat_template.json"}
    stale = []
    for name in sorted(target.files - sent.keys()):
        if name in taken_first or ("/" not in name and name.endswith(loaded)):
            stale.append(name)
    if stale:
        # No fix: what somebody pastes must not delete what others published.
        message = (
            f"files there would stay and mix with these: {', '.join(stale[:3])}; publish under "
            "another name, or delete them there yourself"
        )
        found.append(findings.error("PUBLISH-OTHER-WEIGHTS", target.uri, message, names=stale))
    if target.exists and not target.private and not public:
        message = "the repository is public: everybody would see the model (--public says so)"
        found.append(findings.error("PUBLISH-PUBLIC", target.uri, message))
    if target.exists and target.private and public and not s3.is_uri(target.uri):
        message = "the repository is private and stays so"
        found.append(findings.info("PUBLISH-STAYS-PRIVATE", target.uri, message))
    return found


def paths_in(sent: Mapping[str, Path]) -> list[Finding]:
    """Return a warning for each file that names the folder of this machine that a model was loaded
    from, as trainers leave it; of an adapter that is its base (PUBLISH-LOCAL-BASE)."""
    found = []
    for name, path in sent.items():
        if path.suffix != ".json" or name == safetensors_files.INDEX_NAME:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for key, value in _LOADED_FROM.findall(text):
            message = (
                f"{key} is {value}, a path of this machine, and whoever reads the model reads it; "
                "take the key out, which no loader needs"
            )
            found.append(findings.warning("PUBLISH-LOCAL-PATH", name, message, key=key))
    return found


def secrets_in(sent: Mapping[str, Path]) -> list[Finding]:
    """Return an error for each text file with what looks like a token, by the key that holds it;
    its value is never shown."""
    found = []
    for name, path in sent.items():
        if path.suffix == ".safetensors":
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            for match in secrets.token_in(line):
                keys = re.findall(r"[\"']?([\w.-]+)[\"']?\s*[:=]", line[: match.start()])
                where = f"{name}:{number}"
                key = keys[-1] if keys else None
                message = (
                    f"what looks like a token stands under {key or 'no key'}; whoever reads the "
                )
                message += "model would read it. Revoke it, take it out"
                found.append(findings.error("PUBLISH-SECRET", where, message, file=name, key=key))
    return found


def send(
    target: Target, sent: Mapping[str, Path], public: bool, secret: str | None
) -> tuple[str, list[str]]:
    """Send the files; returns the address and the names that were there already. Raises Failure
    (exit 3)."""
    if not s3.is_uri(target.uri):
        repo = target.uri.removeprefix(model_names.HUB)
        return hub.publish(repo, sent, not public, secret), []
    connection = s3.client()
    uploaded = progress.of_bytes(sum(path.stat().st_size for path in sent.values()), "upload")
    there = []
    for name, path in sent.items():
        uri = s3.join(target.uri, name)
        if name in target.files and s3.is_same(path, uri, connection):
            there.append(name)
            uploaded(path.stat().st_size)
        else:
            s3.send(path, uri, connection, uploaded)
    return target.uri, there
