"""The files of a source: a local folder, or a dataset repository of the Hub at one commit; its
tables and its media."""

from __future__ import annotations

import functools
import os
import posixpath
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.data import split_names
from cosmos_reason.data.samples import Media, names_medium
from cosmos_reason.media import files as media

RAW_SETS = "AgiBot World, BridgeData V2 or HoloAssist"  # whose clips raw_clips cuts
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
MARKER = "build_dataset.json"  # stands in what build_dataset wrote, beside train/ and eval/
NO_TABLES = (
    MARKER,
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "config.json",
)
FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\n---", re.S)
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio writes before the name of an upload
# A split and the part of it that is wanted, as the datasets library writes them.
WRITTEN = re.compile(r"(?P<split>[^\[\]]*)\[(?P<first>(-?\d+%?)?):(?P<last>(-?\d+%?)?)\]")
SHARD = re.compile(r"-\d{5}-of-\d{5}.*")


@dataclass(frozen=True)
class Held:
    """A medium that is no file here yet. `key` is equal for equal clips; `load` gives a file or the
    bytes of one; `whole` is what it is a part of, from and to the seconds of `span`."""

    key: str
    suffix: str = field(compare=False)
    load: Callable[[], Path | bytes] = field(compare=False)
    whole: Path | Held | None = field(default=None, compare=False)
    span: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def stem(self) -> str:
        return posixpath.basename(self.key).removesuffix(self.suffix)


@dataclass(frozen=True)
class Frames:
    """A video given as pictures: a list of them, all of which are shown, or those of a folder."""

    files: tuple[Path | Held, ...]
    fps: float | None
    is_list: bool

    @property
    def suffix(self) -> str:
        return self.files[0].suffix

    @property
    def stem(self) -> str:
        """Return the name of the folder that the first lies in."""
        first = self.files[0]
        return posixpath.basename(posixpath.dirname(getattr(first, "key", str(first))))


Medium = Path | Held | Frames


class Members(NamedTuple):
    """What an archive holds, by the last part of its path: (whole path, file), and (whole path,
    its pictures by their numbers) of the folders that have some."""

    files: dict[str, list[tuple[str, Held]]]
    folders: dict[str, list[tuple[str, tuple[Held, ...]]]]


class Folder:
    """A local folder, but for the datasets that were built into it. Names of files are relative to
    it, with /."""

    def __init__(self, root: Path):
        self.root = root
        # media that stand in tables, by the name that stands for them in a row
        self.held: dict[str, Held] = {}
        # media that rows name, with the name of rows that do not tell the whole path
        self.claims: dict[Path | Held, str] = {}
        # of the archives that were opened, by the archive's name
        self.members: dict[str, Members] = {}
        # (row, what is said of it) where a part was cut at the end of its clip
        self.past: list = []
        # names that rows have for files of another name, or in another folder: the file's
        self.renamed: dict[str, str] = {}
        self.transcode = ""  # the folder of clips that are written anew
        self.raw = None  # where clips that are nowhere are cut from (raw_clips.RawClips)

    @functools.cached_property
    def names(self) -> list[str]:
        paths = sorted(self.root.rglob("*"))
        built = {path.parent for path in paths if path.name == MARKER}
        outside = (path for path in paths if built.isdisjoint(path.parents))
        found = (path.relative_to(self.root) for path in outside if path.is_file())
        return [
            path.as_posix()
            for path in found
            if not any(part.startswith(".") for part in path.parts)
        ]

    def has(self, name: str) -> bool:
        path = self.root / name
        return os.path.isfile(path) or (os.path.isdir(path) and not names_medium(name))

    def path(self, name: str) -> Path:
        return self.root / name

    def medium(self, name: str) -> Path | Held:
        return self.root / name

    def pictures(self, folder: Path) -> tuple[Path | Held, ...]:
        """Return the pictures of a folder that `find` gave, by their numbers; none where it is no
        folder. Raises Failure for a folder without pictures."""
        if not folder.is_dir():
            return ()
        return tuple(map(Path, media.pictures_in(folder, 1).files))

    @functools.cached_property
    def by_last_part(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name in self.names:
            found[posixpath.basename(name)].append(name)
        return found

    @functools.cached_property
    def by_stem(self) -> dict[str, list[str]]:
        """Return the media by their name without its suffix, as many annotations call them."""
        found = defaultdict(list)
        for name in filter(names_medium, self.names):
            found[posixpath.splitext(posixpath.basename(name))[0]].append(name)
        return found

    @functools.cached_property
    def by_folded_name(self) -> dict[str, set[str]]:
        """Return the media by their name, with and without its suffix, as `folded` gives it."""
        found = defaultdict(set)
        for name in filter(names_medium, self.names):
            last = posixpath.basename(name)
            found[folded(last)].add(name)
            found[folded(posixpath.splitext(last)[0])].add(name)
        return found

    @functools.cached_property
    def archives(self) -> list[str]:
        from cosmos_reason.media import archives

        return [name for name in self.names if archives.is_archive(name)]


class Repository(Folder):
    """A dataset repository. Its files are downloaded one by one, when they are asked for."""

    def __init__(self, name: str):
        from cosmos_reason.remote import hub

        repo, _, revision = name.partition("@")
        super().__init__(Path())
        self.repo = repo
        self.secret = hub.token()
        self.commit, self.names = hub.dataset(repo, revision or None, self.secret)

    def has(self, name: str) -> bool:
        return name in self.by_last_part.get(posixpath.basename(name), ()) or name in self.folders

    def path(self, name: str) -> Path:
        from cosmos_reason.remote import hub

        return hub.dataset_file(self.repo, self.commit, name, self.secret)

    def medium(self, name: str) -> Path | Held:
        if name in self.folders:
            return Path(name)
        return Held(
            f"{self.repo}/{name}", posixpath.splitext(name)[1], functools.partial(self.path, name)
        )

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


def find(files: Folder, name: str, folder: str) -> Path | Held:
    """Return the medium that a row of a table in `folder` calls `name`: relative to that folder or
    to the root, else the one file, or member of an archive near the table, whose path ends most
    like the name, else a clip that raw data hold. A path that is not there when there is none.

    Raises Failure for a name that leaves the root (of a local one an absolute name may), that
    several files fit alike, and where two names would be one file.
    """
    if name in files.held:
        return files.held[name]
    if "\\" in name and not files.has(name):  # written on Windows; its drive is not here
        path = PureWindowsPath(name)
        name = path.relative_to(path.anchor).as_posix()
    in_folder = posixpath.join(folder, name)
    if posixpath.isabs(in_folder):
        if isinstance(files, Repository):
            message = "got an absolute name, expected one below the repository"
            raise f.bad_input("DATA-MEDIA-ESCAPE", name, message)
        return Path(in_folder)
    if ".." in in_folder or "\0" in in_folder:
        media.resolve("", in_folder)  # raises Failure for one that leads out
    places = _places(name, folder)
    # Where a name says a place, that place counts; only then is it looked for elsewhere.
    closest = next(((place, files.medium(place)) for place in places if files.has(place)), None)
    closest = closest or _closest(name, places, _near(files, folder, name, places[-1]))
    if closest:
        path, medium = closest
        # What rows that do not tell the whole path of the file call it. Where others took it under
        # another name, one of them means a file that is not there.
        guessed = "" if path in places else places[-1]
        before = files.claims.setdefault(medium, guessed)
        if before != guessed:
            message = (
                f"got one file ({path}) for this name and for {before or path}, "
                "expected a file for each; add the file that is missing, or write the path of the "
                "file in the table"
            )
            raise f.bad_input("BUILD-MEDIA-AMBIGUOUS", guessed or path, message)
        if guessed and "/" in name and not f"/{path}".endswith(f"/{posixpath.normpath(name)}"):
            files.renamed[name] = path
        return medium
    alike = files.by_folded_name.get(folded(posixpath.basename(name)), ())
    if len(alike) == 1:
        (path,) = alike
        files.renamed[name] = path
        return files.medium(path)
    cut = files.raw.clip(name) if files.raw else None
    if cut is not None:
        return cut
    return Path(places[0]) if isinstance(files, Repository) else files.path(places[0])


def folded(name: str) -> str:
    """Return the same text for names that differ in case, in blanks around them, or in how Unicode
    writes their letters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).strip().casefold())


def near_names(files: Folder, path: str) -> list[str]:
    """Return the media whose names differ from the last part of `path` in their folder, or in what
    `folded` and zeros before a number make alike."""

    def plain(name: str) -> str:
        return re.sub(r"0*(\d+)", r"\1", folded(name))

    wanted = plain(posixpath.basename(path))
    suffixed = {wanted, plain(posixpath.splitext(posixpath.basename(path))[0])}
    return [
        name
        for key, names in files.by_folded_name.items()
        if plain(key) in suffixed
        for name in sorted(names)
    ]


def _places(name: str, folder: str) -> list[str]:
    """Return where a name in a table of `folder` may lie: relative to that folder, or to the
    root."""
    places = [posixpath.normpath(posixpath.join(folder, name))]
    if not posixpath.normpath(name).startswith("../"):
        places.append(posixpath.normpath(name))
    return places


def find_video(files: Folder, medium: Media, folder: str) -> Medium:
    """Return the same as `find`, also for a video that is given as pictures."""
    if medium.pictures:
        found = tuple(find(files, name, folder) for name in medium.pictures)
        return Frames(found, medium.fps, is_list=True)
    found = find(files, medium.path, folder)
    pictures = ()
    if isinstance(found, Path) and not found.is_file() and medium.may_be_folder:
        pictures = files.pictures(found) or _packed_pictures(files, medium.path, folder)
    return Frames(pictures, medium.fps, is_list=False) if pictures else found


def transcoded(
    files: Folder, media: Iterable[Medium | None], problems: list[f.Finding]
) -> dict[Medium, Medium]:
    """Return {file: the clip that was written into `files.transcode` for it}, of those that not all
    trainers read alike."""
    from cosmos_reason.media import convert

    here = [one for one in media if isinstance(one, Path) and one.is_file()]
    made = convert.transcode_all(here, Path(files.transcode))
    if made:
        some = ", ".join(f"{path.name} ({why})" for path, (_, why) in [*made.items()][:5])
        message = f"wrote {len(made)} clips anew into {files.transcode}: {some}"
        message += ", ..." if made.keys() - set([*made][:5]) else ""
        problems.append(f.info("BUILD-TRANSCODED", files.root, message, count=len(made)))
    return {path: target for path, (target, _) in made.items()}


def _near(files: Folder, folder: str, name: str, place: str) -> list[tuple[str, Path | Held]]:
    """Return (path, medium) of the files near a table that have the last part of `name`, and of
    members of archives unless one of the files ends with the whole of `place`."""
    last_part = posixpath.basename(name)
    alike = files.by_last_part.get(last_part) or files.by_stem.get(last_part, [])
    if not alike:
        alike = files.by_stem.get(f"v_{last_part}", [])  # as ActivityNet's clips are called
    if not alike and last_part.isdigit():  # MSRVTT-QA calls video7010.mp4 by its number
        alike = files.by_stem.get(f"video{last_part}", [])
    if not alike and UPLOADED.match(last_part):
        alike = files.by_last_part.get(UPLOADED.sub("", last_part), [])
    near = [(path, files.medium(path)) for path in _beside(folder, alike)]
    for path, _ in near:
        if f"/{path}".endswith(f"/{place}"):
            return near
    for beside, members in _archives_near(files, folder):
        inside = members.files.get(last_part, [])
        near += [(_below(beside, path), member) for path, member in inside]
    return near


def _closest(name: str, places: list[str], near: list[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Return the one of `near` (paths and what is there) that has most of its last parts in common
    with one of `places`; None without any. Raises Failure where several have as many."""
    common = [max(_common_parts(place, path) for place in places) for path, _ in near]
    closest = [one for one, parts in zip(near, common, strict=True) if parts == max(common)]
    if len(closest) > 1:
        listed = ", ".join(path for path, _ in closest[:2])
        message = f"got {len(closest)} files of that name ({listed}, ...), expected one; "
        message += "write the path of the file in the table"
        raise f.bad_input("BUILD-MEDIA-AMBIGUOUS", name, message)
    return closest[0] if closest else None


def _common_parts(one: str, other: str) -> int:
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _beside(folder: str, names: list[str]) -> list[str]:
    """Return the files of the subset that a table's folder stands for: another subset may have
    clips of the same names."""
    subset = folder.split("/")[0]
    if subset in ("", "data"):
        return list(names)
    return [name for name in names if name.split("/")[0] in (subset, name)]


def _packed_pictures(files: Folder, name: str, folder: str) -> tuple[Held, ...]:
    """Return the pictures of a folder in an archive near a table in `folder`: the folder whose path
    ends most like `name`; none without one. Raises Failure where several fit alike."""
    near = []
    for beside, members in _archives_near(files, folder):
        alike = members.folders.get(posixpath.basename(posixpath.normpath(name)), [])
        near += [(_below(beside, path), pictures) for path, pictures in alike]
    closest = _closest(name, _places(name, folder), near)
    return closest[1] if closest else ()


def _archives_near(files: Folder, folder: str) -> Iterator[tuple[str, Members]]:
    """Yield (the folder it lies in, what it holds) of the archives near a table in `folder`."""
    for archive in _beside(folder, files.archives):
        if archive not in files.members:
            files.members[archive] = _members(files.path(archive))
        yield posixpath.dirname(archive), files.members[archive]


def _below(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


def _members(archive: Path) -> Members:
    from cosmos_reason.media import archives

    members = Members(defaultdict(list), defaultdict(list))
    pictures: dict[str, dict[str, Held]] = defaultdict(dict)
    for name, loads in archives.contents(archive).items():
        for load in loads:
            held = Held(f"{archive}/{name}", posixpath.splitext(name)[1], load)
            members.files[posixpath.basename(name)].append((name, held))
            pictures[posixpath.dirname(name)][name] = held
    for folder, by_name in pictures.items():
        ordered = media.pictures_of(by_name, 1).files
        if ordered:
            frames = tuple(by_name[str(name)] for name in ordered)
            members.folders[posixpath.basename(folder)].append((folder, frames))
    return members


def tables(files: Folder, subset: str, split: str) -> tuple[dict[str, str], list[str]]:
    """Return ({table: what its split is called} of a subset and split, tables that are left out),
    as the dataset card declares them, else by folders and file names.

    Without `split` these are train, where there is one, and what is held out. Raises Failure when
    what is asked for is not there, or not clear.
    """
    found = _saved(files, [name for name in files.names if name.endswith(TABLES)])
    if not found:
        found = _json_tables(files)
    declared = _declared(files)
    if declared:
        splits = declared[_chosen("subset", subset, declared, "default")]
        return _declared_tables(files, splits, split, found)
    if subset:
        found = _with_part("subset", subset, found)
    kept, left_out = (_with_part("split", split, found), []) if split else _by_default(found)
    return {name: split_names.of_table(name) for name in _of_one_kind(files, kept)}, left_out


def _by_default(found: list[str]) -> tuple[list[str], list[str]]:
    """Return the tables of train, where there is one, with what is held out; and those left out."""
    chosen = found
    if any("train" in _parts(name) for name in found):
        chosen = _with_part("split", "train", found)
    chosen = {
        *chosen,
        *(one for one in found if split_names.of_table(one) in split_names.HELD_OUT),
    }
    left_out = [name for name in found if name not in chosen]
    return [name for name in found if name in chosen], left_out


def _declared_tables(
    files: Folder, splits: dict[str, list[str]], split: str, found: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Return what `tables` gives, of the splits of a dataset card."""
    chosen = _chosen("split", split, splits, "train")
    kept = {}
    left_out = []
    for name, patterns in splits.items():
        called = split_names.word(name)
        if name == chosen or (not split and called in split_names.HELD_OUT):
            at_any_depth = [pattern.replace("**/", "") for pattern in patterns]
            wanted = [*patterns, *at_any_depth]
            matching = [table for table in found if any(fnmatch(table, one) for one in wanted)]
            kept |= dict.fromkeys(matching, called)
        elif not split:
            left_out.append(name)
    _of_one_kind(files, list(kept))
    return kept, left_out


def _with_part(role: str, wanted: str, names: list[str]) -> list[str]:
    """Return the tables whose folders or names have the part that stands for a subset or split."""
    parts = dict.fromkeys(part for name in names for part in _parts(name))
    chosen = _chosen(role, wanted, parts, "train")
    return [name for name in names if chosen in _parts(name)]


def plain_tables(files: Folder) -> list[str]:
    """Return the tables of a folder that is no dataset of the Hub: all of a kind, or Failure."""
    found = [name for name in files.names if name.endswith((".csv", ".tsv", ".xlsx", ".jsonl"))]
    # A JSON table lies at the top, or in a folder there that has the name of a split.
    near = [
        name
        for name in _json_tables(files)
        if "/" not in name or (name.count("/") == 1 and split_names.of_folders(name))
    ]
    exports = [name for name in files.names if name.endswith("annotations.xml")]  # as CVAT calls it
    return _of_one_kind(files, found or near or exports)


def _json_tables(files: Folder) -> list[str]:
    names = [name for name in files.names if name.endswith(".json")]
    return [name for name in names if posixpath.basename(name) not in NO_TABLES]


def _of_one_kind(files: Folder, names: list[str]) -> list[str]:
    """Return the names. Raises Failure for tables of two kinds: they hold the same rows more often
    than not."""
    kinds = {posixpath.splitext(name)[1]: name for name in reversed(names)}
    if len(kinds) > 1:
        message = f"got {' and '.join(kinds.values())}, expected tables of one kind"
        fix = ""
        if not isinstance(files, Repository):
            fix = f"replace {shlex.join([str(files.root)])} with "
            fix += shlex.quote(str(files.root / names[0]))
        raise f.bad_input("BUILD-TABLES-MIXED", files.root, message, fix)
    return names


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
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as problem:
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
        for written in (self.first or "0", self.last or str(rows)):
            place = int(written.rstrip("%"))
            if written.endswith("%"):
                place = round(place * rows / 100)
            edges.append(min(max(place + rows * (place < 0), 0), rows))
        return range(edges[0], max(edges))


def wanted_part(written: str) -> Part:
    """Raises Failure for brackets that are no slice."""
    if "[" not in written and "]" not in written:
        return Part(written)
    match = WRITTEN.fullmatch(written)
    if match is None:
        message = f"got {written!r}, expected a split such as train, train[:100] or train[10%:20%]"
        raise f.bad_input("USAGE", "--hf-split", message)
    return Part(match["split"], match["first"], match["last"])
