"""A place where jobs run that is not this machine, as its site.yaml describes it
(schemas/site.schema.json, references/site_template.yaml).

With a site a launch is judged by the file alone: nothing is asked of this machine that the job
will not use. What the file does not say is unknown, never guessed, and is told once with the line
that declares it (`unknown`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Failure, Finding

# A folder of the site -> the published model in it. `read` fills it for the one site of a command:
# whoever asks for a model's family or widths by its path finds them here.
MODELS: dict[str, str] = {}
# The same of its `paths`, for what is read long after the command line: absolute names of media in
# records.
PATHS: dict[str, str] = {}
# The ways out for what is not on this machine, at the end of a message.
WAYS_OUT = (
    "for another machine: --site FILE (references/site_template.yaml) and launch_job.py "
    "plan --output DIR; or run this there"
)
UNKNOWN = "JOB-SITE-UNKNOWN"
# Options of a launch, by where the file has them.
OPTIONS = {
    "image": "image",
    "slurm.partition": "partition",
    "slurm.account": "account",
    "slurm.qos": "qos",
    "slurm.time": "time_limit",
    "slurm.login": "slurm_host",
    "kubernetes.context": "context",
    "kubernetes.namespace": "namespace",
    "kubernetes.volumes": "volume",
}


@dataclass(frozen=True)
class Site:
    """What a site.yaml says. `paths`: folder there -> the same folder here, the longest first."""

    path: Path
    facts: dict[str, Any]
    paths: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def platform(self) -> str:
        return self.facts["platform"]

    def get(self, dotted: str) -> Any:
        """Return a fact by its dotted key, None where the file does not say it."""
        value: Any = self.facts
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def options(self) -> dict[str, Any]:
        """Return the options of a launch that the file stands for."""
        said = {name: self.get(key) for key, name in OPTIONS.items()}
        return {name: value for name, value in said.items() if value}

    def here(self, path: str) -> str:
        """Return where a path of the site lies on this machine; as it is where nobody said, or
        where this machine does not have it."""
        return here(path, self.paths)

    def place_here(self, path: str) -> str:
        """Return where a path of the site lies on this machine once it is copied; as it is where
        nobody said."""
        moved = (_moved(path, there, folder) for there, folder in self.paths.items())
        return next((found for found in moved if found is not None), path)

    def there(self, path: str) -> str:
        """Return what the site calls a path of this machine; as it is where nobody said."""
        for there, here in sorted(self.paths.items(), key=lambda pair: -len(pair[1])):
            found = _moved(path, here, there)
            if found is not None:
                return found
        return path

    def is_placed(self, path: str) -> bool:
        """Return whether the file says what a path is there: below `paths`, or a model of
        `models`."""
        is_below = any(_moved(path, there, there) for there in [*self.paths, *self.models])
        return is_below or any(_moved(path, here, here) for here in self.paths.values())

    @property
    def models(self) -> dict[str, str]:
        """Return folder there -> the published model in it."""
        said = self.facts.get("models", {})
        return {path: name.partition("@")[0] for path, name in said.items()}

    def commit_of(self, folder: str) -> str:
        """Return the commit of the model in a folder there, '' where the file does not say it."""
        return self.facts.get("models", {}).get(folder, "").partition("@")[2]

    def folder_of(self, model: str) -> str:
        """Return the folder that holds a published model there, '' where nobody said."""
        named = [path for path, name in self.models.items() if name == model]
        return named[0] if named else ""

    @property
    def is_offline(self) -> bool:
        return self.get("network.hub") is False

    def gpu_gib(self) -> float | None:
        """Return the memory of a GPU: as the file says, or of its type where one is known so."""
        told = self.get("gpus.memory_gib")
        kind = self.get("gpus.type")
        if told or not kind:
            return told
        sizes = bundle.skill_info()["gpu_types"]
        named = {gib for name, gib in sizes.items() if f"{name} ".startswith(f"{kind.upper()} ")}
        return named.pop() if len(named) == 1 else None

    def gpu_architecture(self) -> str:
        told = self.get("gpus.arch")
        kind = f" {(self.get('gpus.type') or '').upper()} "
        known = bundle.skill_info()["gpu_chips"]
        return told or next((arch for name, arch in known.items() if f" {name} " in kind), "")

    def disk(self, path: str) -> tuple[str, float] | None:
        """Return (folder, free GiB) of the innermost folder of `disk` that a path there lies in,
        None where the file names none."""
        said = self.facts.get("disk", {})
        holding = [one for one in said if _moved(path, one.rstrip("/"), "") is not None]
        folder = max(holding, key=len, default=None)
        return None if folder is None else (folder, said[folder])

    def unknown(self, lines: Iterable[str]) -> list[Finding]:
        """Return one warning for all that the file does not say and somebody needed; `lines` are
        those that would say it."""
        wanted = list(dict.fromkeys(lines))
        if not wanted:
            return []
        message = f"not checked: what these lines would say of {self.name}: {'; '.join(wanted)}"
        return [findings.warning(UNKNOWN, self.path, message, lines=wanted)]


def here(path: str, paths: dict[str, str] | None = None) -> str:
    """Return where a path of a site lies on this machine, by its `paths` or by those of the site
    that this command was given; as it is where nobody said, or where this machine does not have
    it."""
    for there, folder in (PATHS if paths is None else paths).items():
        found = _moved(path, there, folder)
        if found is not None and os.path.exists(found.partition(":")[0]):
            return found
    return path


def _moved(path: str, old: str, new: str) -> str | None:
    """Return the path with another beginning, None where it does not begin so."""
    if path == old or path.startswith(f"{old}/"):
        return new + path[len(old) :]
    return None


def read(path: Path) -> Site:
    """Read a site.yaml. Relative paths in it are of the working directory, as in a spec. Raises
    Failure (exit 2) with every fault of the file."""
    return parsed(files.read_text(path), path)


def parsed(text: str, path: Path) -> Site:
    """Return the site that the text of a file describes, as `read` does."""
    import jsonschema
    import yaml

    try:
        facts = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as problem:
        message = f"not YAML: {' '.join(str(problem).split())[:200]}"
        raise findings.bad_input("JOB-SITE", path, message) from None
    schema = bundle.schema("site")
    if isinstance(facts, dict):
        _take_texts(facts, yaml.load(text, Loader=yaml.BaseLoader), schema)
    found = []
    for fault in jsonschema.Draft202012Validator(schema).iter_errors(facts):
        place = ".".join(map(str, fault.absolute_path)) or "the file"
        hint = ""
        if fault.validator == "additionalProperties":
            known = fault.schema["properties"]
            hint = "".join(findings.did_you_mean(str(key), known) for key in fault.instance)
        message = f"{place}: {fault.message[:200]}.{hint}"
        found.append(findings.error("JOB-SITE", path, message))
    if found:
        raise Failure(found, findings.EXIT_BAD_INPUT)
    paths = {}
    for there in sorted(facts.get("paths", {}), key=len, reverse=True):
        paths[there.rstrip("/")] = os.path.abspath(os.path.expanduser(facts["paths"][there]))
    site = Site(path, facts, paths)
    MODELS.update(site.models)
    PATHS.update(paths)
    return site


def _take_texts(facts: dict, written: dict, schema: dict) -> None:
    """Put what stands in the file in place of what YAML makes of a text without quotes: of the
    time 4:00:00 it makes 14400, of the account 0123 it makes 83, of a day a date."""
    for name, rule in schema.get("properties", {}).items():
        value, text = facts.get(name), written.get(name)
        if isinstance(value, dict) and isinstance(text, dict):
            _take_texts(value, text, rule)
        elif value is not None and isinstance(text, str) and rule.get("type") == "string":
            facts[name] = text
