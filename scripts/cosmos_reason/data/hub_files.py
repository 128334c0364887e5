"""A dataset of the Hub at one commit, and which of its tables, or of those of a local copy, are
read: as its card declares them, else by folders and file names."""

from __future__ import annotations

import functools
import posixpath
import re
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.data import split_names
from cosmos_reason.data.source_files import Folder, Held, json_tables, of_one_kind
from cosmos_reason.media import files as media

TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\n---", re.S)
# A split and the part of it that is wanted, as the datasets library writes them.
WRITTEN = re.compile(r"(?P<split>[^\[\]]*)\[(?P<first>(-?\d+%?)?):(?P<last>(-?\d+%?)?)\]")
SHARD = re.compile(r"-\d{5}-of-\d{5}.*")


class Repository(Folder):
    """A dataset repository. Its files are downloaded one by one, when they are asked for."""

    def __init__(self, name: str):
        from cosmos_reason.remote import hub

        repo, _, revision = name.partition("@")
        super().__init__(Path(), repo=repo)
        self.secret = hub.token()
        self.commit, self.names = hub.dataset(repo, revision or None, self.secret)

    def path(self, name: str) -> Path:
        from cosmos_reason.remote import hub

        return hub.dataset_file(self.repo, self.commit, name, self.secret)

    def medium(self, name: str) -> Path | Held | None:
        if name in self.folders:
            return Path(name)
        if name not in self.by_last_part.get(posixpath.basename(name), ()):
            return None
        load = functools.partial(self.path, name)
        return Held(f"{self.repo}/{name}", posixpath.splitext(name)[1], load)

    def pictures(self, folder: Path) -> tuple[Path | Held, ...]:
        pictures = media.pictures_of(self.folders.get(folder.as_posix(), ()), 1)
        return tuple(self.medium(str(name)) for name in pictures.files)

    @functools.cached_property
    def folders(self) -> dict[str, list[str]]:
        """Return the pictures of every folder that has some, by the folder's name."""
        found = defaultdict(list)
        for name in self.names:
            if name.lower().endswith(media.IMAGE_SUFFIXES):
                found[posixpath.dirname(name)].append(name)
        return dict(found)


def wanted_tables(files: Folder, subset: str, written: str) -> tuple[dict[str, str], list[str]]:
    """Return `tables` of a split as a flag writes it; a slice without a name is one of the training
    data."""
    part = wanted_part(written)
    of_tables, left_out = tables(files, subset, part.split)
    if part.is_slice and not part.split:
        left_out += [name for name, split in of_tables.items() if split in split_names.HELD_OUT]
    return {name: split for name, split in of_tables.items() if name not in left_out}, left_out


def tables(files: Folder, subset: str, split: str) -> tuple[dict[str, str], list[str]]:
    """Return ({table: what its split is called} of a subset and split, tables that are left out),
    as the dataset card declares them, else by folders and file names.

    Without `split` these are train, where there is one, and what is held out. Raises Failure when
    what is asked for is not there, or not clear.
    """
    found = _saved(files, [name for name in files.names if name.endswith(TABLES)])
    if not found:
        found = json_tables(files)
    declared = _declared(files)
    if declared:  # what the author declares goes before what files are called
        splits = declared[_chosen("subset", subset, declared, "default")]
        chosen = _chosen("split", split, splits, "train")
        kept, left_out = {}, []
        for name, patterns in splits.items():
            called = split_names.word(name)
            if name == chosen or (not split and called in split_names.HELD_OUT):
                at_any_depth = [pattern.replace("**/", "") for pattern in patterns]
                wanted = [*patterns, *at_any_depth]
                matching = [table for table in found if any(fnmatch(table, one) for one in wanted)]
                kept |= dict.fromkeys(matching, called)
            elif not split:
                left_out.append(name)
        of_one_kind(files, list(kept))
        return kept, left_out
    if subset:
        found = _with_part("subset", subset, found)
    if split:
        kept = _with_part("split", split, found)
    else:  # train, where there is one, with what is held out
        kept = found
        if any("train" in _parts(name) for name in found):
            kept = _with_part("split", "train", found)
        kept += [one for one in found if split_names.of_table(one) in split_names.HELD_OUT]
        kept = [name for name in found if name in kept]
    left_out = [] if split else [name for name in found if name not in kept]
    return {name: split_names.of_table(name) for name in of_one_kind(files, kept)}, left_out


def _with_part(role: str, wanted: str, names: list[str]) -> list[str]:
    """Return the tables whose folders or names have the part that stands for a subset or split."""
    parts = dict.fromkeys(part for name in names for part in _parts(name))
    chosen = _chosen(role, wanted, parts, "train")
    return [name for name in names if chosen in _parts(name)]


def _saved(files: Folder, names: list[str]) -> list[str]:
    """Return the names without files that `save_to_disk` did not write, such as caches of the
    datasets library."""
    for state in (name for name in files.names if posixpath.basename(name) == "state.json"):
        folder = posixpath.dirname(state)
        try:
            listed = storage.read_json(files.path(state))["_data_files"]
            kept = {posixpath.join(folder, entry["filename"]) for entry in listed}
        except (KeyError, TypeError) as problem:
            message = f"got no {problem}, expected what save_to_disk writes"
            raise f.bad_input("BUILD-TABLE", files.root / state, message) from None
        left_out = {name for name in names if posixpath.dirname(name) == folder} - kept
        names = [name for name in names if name not in left_out]
    return names


def _declared(files: Folder) -> dict[str, dict[str, list[str]]]:
    """Return {subset: {split: patterns of files}} from the front matter of README.md; {} when it
    declares none."""
    import yaml

    if "README.md" not in files.names:
        return {}
    matter = FRONT_MATTER.match(storage.read_text(files.path("README.md")))
    if not matter:
        return {}
    try:
        configs = (yaml.safe_load(matter[1]) or {}).get("configs") or []
        subsets = {}
        for config in configs:
            name = str(config["config_name"])
            stated = config.get("data_files") or f"{config['data_dir'].strip('/')}/**"
            by_split = isinstance(stated, list) and isinstance(stated[0], dict)
            entries = stated if by_split else [{"split": "train", "path": stated}]
            paths = {str(entry["split"]): entry["path"] for entry in entries}
            subsets[name] = {
                split: [path] if isinstance(path, str) else path for split, path in paths.items()
            }
        return subsets
    except (yaml.YAMLError, RecursionError, AttributeError, KeyError, TypeError) as problem:
        message = f"got {problem}, expected a dataset card"
        raise f.bad_input("BUILD-CARD", "README.md", message) from None


def _chosen(role: str, given: str, names, default: str) -> str:
    flag = f"--hf-{role}"
    if not given and (default in names or len(names) == 1):
        return default if default in names else next(iter(names))
    if given in names:
        return given
    listed = ", ".join(list(names)[:20])
    message = f"got {given!r}, expected one of {listed}" if given else f"got several: {listed}"
    message += "." + f.did_you_mean(given, names) if given else ""
    raise f.bad_input(f"BUILD-HF-{role.upper()}", flag, message)


def _parts(name: str) -> list[str]:
    """Return the folders of a table and its name without shard number and suffix."""
    *folders, last = name.split("/")
    return [*folders, SHARD.sub("", posixpath.splitext(last)[0])]


class Part(NamedTuple):
    """A split's name and the rows of it that are wanted, from the first to before the last: numbers
    or percents, negative ones from the end, "" an end; None without a slice."""

    split: str
    first: str | None = None
    last: str | None = None

    @property
    def is_slice(self) -> bool:
        return self.first is not None

    def bounds(self, rows: int) -> range:
        edges = []
        for written in (self.first, self.last):
            place = int(written.rstrip("%")) if written else None
            edges.append(round(place * rows / 100) if written and written[-1] == "%" else place)
        return range(rows)[slice(*edges)]


def wanted_part(written: str) -> Part:
    """Raises Failure for brackets that are no slice."""
    if "[" not in written and "]" not in written:
        return Part(written)
    match = WRITTEN.fullmatch(written)
    if match is None:
        message = f"got {written!r}, expected a split such as train, train[:100] or train[10%:20%]"
        raise f.bad_input("USAGE", "--hf-split", message)
    return Part(match["split"], match["first"], match["last"])
