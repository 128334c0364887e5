"""The files of a source: a local folder, or a dataset repository of the Hub at one commit; its tables and its media."""

from __future__ import annotations

import functools
import gzip
import os
import posixpath
import re
import shlex
import shutil
import tarfile
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from cosmos_reason import findings as f
from cosmos_reason import hub, media, storage
from cosmos_reason.clip_checks import ARCHIVES

TABLES = (".parquet", ".arrow", ".csv", ".jsonl")
MARKER = "build_dataset.json"  # stands in what build_dataset wrote, beside train/ and eval/
NO_TABLES = (MARKER, "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\n---", re.S)
SHARD = re.compile(r"-\d{5}-of-\d{5}.*")


@dataclass(frozen=True)
class Held:
    """A medium that is no file here yet. `key` is equal for equal clips; `load` gives a file or the bytes of one."""

    key: str
    suffix: str
    load: Callable[[], Path | bytes]

    @property
    def stem(self) -> str:
        return posixpath.basename(self.key).removesuffix(self.suffix)


class Folder:
    """A local folder, but for the datasets that were built into it. Names of files are relative to it, with /."""

    def __init__(self, root: Path):
        self.root = root
        self.held: dict[str, Held] = {}  # media that stand in tables, by the name that stands for them in a row

    @functools.cached_property
    def names(self) -> list[str]:
        paths = sorted(self.root.rglob("*"))
        built = {path.parent for path in paths if path.name == MARKER}
        files = (path for path in paths if path.is_file() and built.isdisjoint(path.parents))
        found = (path.relative_to(self.root) for path in files)
        return [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]

    def path(self, name: str) -> Path:
        return self.root / name

    def medium(self, name: str) -> Path | Held:
        return self.root / name

    @functools.cached_property
    def by_last_part(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name in self.names:
            found[posixpath.basename(name)].append(name)
        return found


class Repository(Folder):
    """A dataset repository. Its files are downloaded one by one, when they are asked for."""

    def __init__(self, name: str):
        repo, _, revision = name.partition("@")
        super().__init__(Path())
        self.repo, self.secret = repo, hub.token()
        self.commit, self.names = hub.dataset(repo, revision or None, self.secret)

    def path(self, name: str) -> Path:
        return hub.dataset_file(self.repo, self.commit, name, self.secret)

    def medium(self, name: str) -> Path | Held:
        return Held(f"{self.repo}/{name}", posixpath.splitext(name)[1], functools.partial(self.path, name))


def find(files: Folder, name: str, folder: str) -> Path | Held:
    """The medium that a row of a table in `folder` calls `name`: relative to that folder or to the root, else the one
    file, or member of an archive near the table, of that last part. A path that is not there when there is none.

    Raises Failure for a name that leaves the root (of a local one an absolute name may), or that several files have.
    """
    if name in files.held:
        return files.held[name]
    whole = posixpath.join(folder, name)
    if posixpath.isabs(whole):
        if isinstance(files, Repository):
            raise f.bad_input("DATA-MEDIA-ESCAPE", name, "got an absolute name, expected one below the repository")
        return Path(whole)
    media.resolve("", whole)
    places = [path for path in map(posixpath.normpath, (whole, name)) if not path.startswith("../")]
    if not isinstance(files, Repository) and (found := [p for p in places if os.path.isfile(files.path(p))]):
        return files.medium(found[0])
    alike = files.by_last_part.get(posixpath.basename(name), [])
    near = [place for place in places if place in alike][:1] or _beside(folder, alike)
    if len(near) > 1:
        message = f"got {len(near)} files of that name ({near[0]}, {near[1]}, ...), expected one"
        raise f.bad_input("BUILD-MEDIA-AMBIGUOUS", name, message, "write the path of the file in the table")
    if near:
        return files.medium(near[0])
    for archive in _beside(folder, [file for file in files.names if file.endswith(ARCHIVES)]):
        if member := _members(files.path(archive)).get(posixpath.basename(name)):
            return member
    return files.path(places[0]) if not isinstance(files, Repository) else Path(places[0])


def _beside(folder: str, names: list[str]) -> list[str]:
    """The files of the subset that a table's folder stands for: another subset may have clips of the same names."""
    subset = folder.split("/")[0]
    return [name for name in names if subset in ("", "data") or name.split("/")[0] in (subset, name)]


@functools.lru_cache(maxsize=8)
def _members(archive: Path) -> dict[str, Held]:
    """The files of a tar archive by the last part of their names; links and devices are passed over."""
    try:
        plain = tempfile.TemporaryFile()  # noqa: SIM115 - once unpacked as a whole it can be read in any order
        with (gzip.open if archive.name.endswith("gz") else open)(archive, "rb") as packed:
            shutil.copyfileobj(packed, plain, 1 << 20)
        plain.seek(0)
        tar = tarfile.open(fileobj=plain)  # noqa: SIM115 - the members are read later
        found = {posixpath.basename(member.name): member for member in tar if member.isfile()}
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise f.bad_input("BUILD-ARCHIVE", archive, f"got {problem}, expected a whole tar archive") from None

    def held(name: str) -> Held:
        return Held(f"{archive}/{name}", posixpath.splitext(name)[1], lambda: tar.extractfile(found[name]).read())

    return {name: held(name) for name in found}


def tables(files: Folder, subset: str, split: str) -> list[str]:
    """Names of the tables of a subset and split: as the dataset card declares them, else by folders and file names.

    Without `split` it is train where there is one. Raises Failure when what is asked for is not there, or not clear.
    """
    found = _saved(files, [name for name in files.names if name.endswith(TABLES)])
    found = found or _json_tables(files)
    if declared := _declared(files):
        splits = declared[_chosen("subset", subset, declared, "default")]
        patterns = splits[_chosen("split", split, splits, "train")]
        return _of_one_kind(files, [name for name in found if any(_matches(name, pattern) for pattern in patterns)])
    for role, wanted in (("subset", subset), ("split", split)):
        parts = {part: None for name in found for part in _parts(name)}
        if wanted or (role == "split" and "train" in parts):
            wanted = _chosen(role, wanted, parts, "train")
            found = [name for name in found if wanted in _parts(name)]
    return _of_one_kind(files, found)


def plain_tables(files: Folder) -> list[str]:
    """The tables of a folder that is no dataset of the Hub: all of a kind, or Failure."""
    found = [name for name in files.names if name.endswith((".csv", ".jsonl"))]
    return _of_one_kind(files, found or [name for name in _json_tables(files) if "/" not in name])


def _json_tables(files: Folder) -> list[str]:
    return [name for name in files.names if name.endswith(".json") and posixpath.basename(name) not in NO_TABLES]


def _of_one_kind(files: Folder, names: list[str]) -> list[str]:
    """Tables of two kinds hold the same rows more often than not."""
    kinds = {posixpath.splitext(name)[1]: name for name in reversed(names)}
    if len(kinds) > 1:
        message = f"got {' and '.join(kinds.values())}, expected tables of one kind"
        fix = f"scripts/build_dataset.py {shlex.quote(str(files.root / names[0]))} -o data"
        raise f.bad_input("BUILD-TABLES-MIXED", files.root, message, fix)
    return names


def _saved(files: Folder, names: list[str]) -> list[str]:
    """Without the files that `save_to_disk` did not write, such as caches of the datasets library."""
    for state in (name for name in files.names if posixpath.basename(name) == "state.json"):
        folder = posixpath.dirname(state)
        try:
            listed = storage.read_json(files.path(state))["_data_files"]
            kept = {posixpath.join(folder, entry["filename"]) for entry in listed}
        except (KeyError, TypeError) as problem:
            message = f"got no {problem}, expected what save_to_disk writes"
            raise f.bad_input("BUILD-TABLE", files.root / state, message) from None
        names = [name for name in names if posixpath.dirname(name) != folder or name in kept]
    return names


def _declared(files: Folder) -> dict[str, dict[str, list[str]]]:
    """{subset: {split: patterns of files}} from the front matter of README.md; {} when it declares none."""
    import yaml

    matter = FRONT_MATTER.match(storage.read_text(files.path("README.md"))) if "README.md" in files.names else None
    try:
        configs = (yaml.safe_load(matter[1]) or {}).get("configs") or [] if matter else []
        return {str(config["config_name"]): _splits(config) for config in configs}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as problem:
        raise f.bad_input("BUILD-CARD", "README.md", f"got {problem}, expected a dataset card") from None


def _splits(config: dict) -> dict[str, list[str]]:
    stated = config.get("data_files") or f"{config['data_dir'].strip('/')}/**"
    by_split = isinstance(stated, list) and isinstance(stated[0], dict)
    entries = stated if by_split else [{"split": "train", "path": stated}]
    paths = {str(entry["split"]): entry["path"] for entry in entries}
    return {split: [path] if isinstance(path, str) else path for split, path in paths.items()}


def _chosen(role: str, given: str, names, usual: str) -> str:
    flag = f"--hf-{role}"
    if not given and (usual in names or len(names) == 1):
        return usual if usual in names else next(iter(names))
    if given in names:
        return given
    listed = ", ".join(list(names)[:20])
    message = f"got {given!r}, expected one of {listed}" if given else f"got several: {listed}"
    fix = f"{flag} {(f.nearest(given, names) or list(names))[0]}"
    raise f.bad_input(f"BUILD-HF-{role.upper()}", flag, message, fix)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(name, pattern.replace("**/", ""))


def _parts(name: str) -> list[str]:
    """The folders of a table and its name without shard number and suffix."""
    *folders, last = name.split("/")
    return [*folders, SHARD.sub("", posixpath.splitext(last)[0])]
