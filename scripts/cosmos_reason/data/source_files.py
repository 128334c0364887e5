"""The files of a local source: its tables, and the media that their rows name."""

from __future__ import annotations

import functools
import os
import posixpath
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PureWindowsPath
from typing import Any

from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import some
from cosmos_reason.data import split_names
from cosmos_reason.media import files as media
from cosmos_reason.media.files import names_medium

RAW_SETS = "AgiBot World, BridgeData V2 or HoloAssist"  # whose clips raw_clips cuts
MARKER = "build_dataset.json"  # stands in what build_dataset wrote, beside train/ and eval/
NO_TABLES = (
    MARKER,
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "config.json",
)
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio writes before the name of an upload


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


@dataclass(eq=False)
class Folder:
    """A local folder, but for the datasets that were built into it. Names of files are relative to
    it, with /."""

    root: Path
    transcode: str = ""  # the folder of clips that are written anew
    raw: Any = None  # where clips that are nowhere are cut from (raw_clips.RawClips)
    repo: str = ""  # the dataset of the Hub that it is (hub_files.Repository)
    # media that stand in tables, by the name that stands for them in a row
    held: dict[str, Held] = field(default_factory=dict)
    # media that rows name, with the name of rows that do not tell the whole path
    claims: dict[Path | Held, str] = field(default_factory=dict)
    # what `_members` says of the archives that were opened, by the archive's name
    members: dict[str, dict] = field(default_factory=dict)
    # (row, what is said of it) where a part was cut at the end of its clip
    past: list = field(default_factory=list)
    # names that rows have for files of another name, or in another folder: the file's
    renamed: dict[str, str] = field(default_factory=dict)

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

    def path(self, name: str) -> Path:
        return self.root / name

    def medium(self, name: str) -> Path | Held | None:
        """Return the file of a name, or a folder, which pictures may lie in; None without any."""
        path = self.root / name
        is_there = os.path.isfile(path) or (os.path.isdir(path) and not names_medium(name))
        return path if is_there else None

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


def find(
    files: Folder, name: str, folder: str, may_be_folder: bool = False
) -> Path | Held | tuple[Held, ...]:
    """Return the medium that a row of a table in `folder` calls `name`: relative to that folder or
    to the root, else the one file, or member of an archive near the table, whose path ends most
    like the name, else a clip that raw data hold. A path that is not there when there is none.
    Where it `may_be_folder`, the pictures of one in an archive are found, too.

    Raises Failure for a name that leaves the root (of a local one an absolute name may), that
    several files fit alike, and where two names would be one file.
    """
    if name in files.held:
        return files.held[name]
    if "\\" in name and not files.medium(name):  # written on Windows; its drive is not here
        path = PureWindowsPath(name)
        name = path.relative_to(path.anchor).as_posix()
    in_folder = posixpath.join(folder, name)
    if posixpath.isabs(in_folder):
        if files.repo:
            message = "got an absolute name, expected one below the repository"
            raise f.bad_input("DATA-MEDIA-ESCAPE", name, message)
        return Path(in_folder)
    if ".." in in_folder or "\0" in in_folder:
        media.resolve("", in_folder)  # raises Failure for one that leads out
    places = [posixpath.normpath(in_folder)]
    if not posixpath.normpath(name).startswith("../"):
        places.append(posixpath.normpath(name))
    # Where a name says a place, that place counts; only then is it looked for elsewhere.
    there = ((place, files.medium(place)) for place in places)
    closest = next((one for one in there if one[1]), None)
    if not closest:
        near = _near(files, folder, name, places[-1])
        kept = [one for one in near if may_be_folder or not isinstance(one[1], tuple)]
        if may_be_folder:  # a clip's name: pictures of that name are its thumbnails
            kept = [one for one in kept if one[0].lower().endswith(media.VIDEO_SUFFIXES)] or kept
        closest = _closest(name, places, kept)
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
    return Path(places[0]) if files.repo else files.path(places[0])


def folded(name: str) -> str:
    """Return the same text for names that differ in case, in blanks around them, or in how Unicode
    writes their letters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).strip().casefold())


def find_medium(
    files: Folder,
    kind: str,
    name: str,
    folder: str,
    pictures: Sequence[str] = (),
    fps: float | None = None,
) -> Medium:
    """Return the same as `find`, also for a video that is given as pictures, `fps` a second: a list
    of them, or a folder called `name`."""
    if pictures:
        found = tuple(find(files, picture, folder) for picture in pictures)
        return Frames(found, fps, is_list=True)
    may_be_folder = kind == "video" and not names_medium(name)
    found = find(files, name, folder, may_be_folder)
    if may_be_folder and isinstance(found, Path) and not found.is_file():
        found = files.pictures(found) or found
    return Frames(found, fps, is_list=False) if isinstance(found, tuple) else found


def transcoded(
    files: Folder, media: Iterable[Medium | None], problems: list[f.Finding]
) -> dict[Medium, Medium]:
    """Return {file: the clip that was written into `files.transcode` for it}, of those that not all
    trainers read alike."""
    from cosmos_reason.media import convert

    here = [one for one in media if isinstance(one, Path) and one.is_file()]
    made = convert.transcode_all(here, Path(files.transcode))
    if made:
        shown = some([f"{path.name} ({why})" for path, (_, why) in made.items()], 5)
        message = f"wrote {len(made)} clips anew into {files.transcode}: {shown}"
        problems.append(f.info("BUILD-TRANSCODED", files.root, message, count=len(made)))
    return {path: target for path, (target, _) in made.items()}


def _near(
    files: Folder, folder: str, name: str, place: str
) -> list[tuple[str, Path | Held | tuple[Held, ...]]]:
    """Return (path, medium) of the files near a table that have the last part of `name`, and of
    members of archives unless one of the files ends with the whole of `place`."""
    last_part = posixpath.basename(posixpath.normpath(name))
    alike = files.by_last_part.get(last_part) or files.by_stem.get(last_part, [])
    if not alike:
        alike = files.by_stem.get(f"v_{last_part}", [])  # as ActivityNet's clips are called
    if not alike and last_part.isdigit():  # MSRVTT-QA calls video7010.mp4 by its number
        alike = files.by_stem.get(f"video{last_part}", [])
    if not alike and UPLOADED.match(last_part):
        alike = files.by_last_part.get(UPLOADED.sub("", last_part), [])
    near: list = [(path, files.medium(path)) for path in _beside(folder, alike)]
    if any(f"/{path}".endswith(f"/{place}") for path, _ in near):
        return near
    for archive in _beside(folder, files.archives):
        if archive not in files.members:
            files.members[archive] = _members(archive, files.path(archive))
        near += files.members[archive].get(last_part, ())
    return near


def _members(name: str, archive: Path) -> dict[str, list]:
    """Return what an archive holds by the last part of its path: (path from the root of the source,
    file), and (path, its pictures by their numbers) of the folders that have some."""
    from cosmos_reason.media import archives

    beside = posixpath.dirname(name)
    found: dict[str, list] = defaultdict(list)
    pictures: dict[str, dict[str, Held]] = defaultdict(dict)
    for inside, loads in archives.contents(archive).items():
        path = posixpath.normpath(posixpath.join(beside, inside))
        for load in loads:
            held = Held(f"{archive}/{inside}", posixpath.splitext(inside)[1], load)
            found[posixpath.basename(inside)].append((path, held))
            if posixpath.dirname(inside):
                pictures[posixpath.dirname(path)][inside] = held
    for folder, by_name in pictures.items():
        ordered = media.pictures_of(by_name, 1).files
        if ordered:
            frames = tuple(by_name[str(inside)] for inside in ordered)
            found[posixpath.basename(folder)].append((folder, frames))
    return found


def _closest(name: str, places: list[str], near: list[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Return the one of `near` (paths and what is there) that has most of its last parts in common
    with one of `places`; None without any. Raises Failure where several have as many."""

    def common_parts(one: str, other: str) -> int:
        pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    common = [max(common_parts(place, path) for place in places) for path, _ in near]
    closest = [one for one, parts in zip(near, common, strict=True) if parts == max(common)]
    if len(closest) > 1:
        listed = ", ".join(path for path, _ in closest[:2])
        message = f"got {len(closest)} files of that name ({listed}, ...), expected one; "
        message += "write the path of the file in the table"
        raise f.bad_input("BUILD-MEDIA-AMBIGUOUS", name, message)
    return closest[0] if closest else None


def _beside(folder: str, names: list[str]) -> list[str]:
    """Return the files of the subset that a table's folder stands for: another subset may have
    clips of the same names."""
    subset = folder.split("/")[0]
    if subset in ("", "data"):
        return list(names)
    return [name for name in names if name.split("/")[0] in (subset, name)]


def plain_tables(files: Folder) -> list[str]:
    """Return the tables of a folder that is no dataset of the Hub: all of a kind, or Failure."""
    found = [name for name in files.names if name.endswith((".csv", ".tsv", ".xlsx", ".jsonl"))]
    # A JSON table lies at the top, or in a folder there that has the name of a split.
    near = [
        name
        for name in json_tables(files)
        if "/" not in name or (name.count("/") == 1 and split_names.of_folders(name))
    ]
    exports = [name for name in files.names if name.endswith("annotations.xml")]  # as CVAT calls it
    return of_one_kind(files, found or near or exports)


def json_tables(files: Folder) -> list[str]:
    names = [name for name in files.names if name.endswith(".json")]
    return [name for name in names if posixpath.basename(name) not in NO_TABLES]


def of_one_kind(files: Folder, names: list[str]) -> list[str]:
    """Return the names. Raises Failure for tables of two kinds: they hold the same rows more often
    than not."""
    kinds = {posixpath.splitext(name)[1]: name for name in reversed(names)}
    if len(kinds) > 1:
        message = f"got {' and '.join(kinds.values())}, expected tables of one kind"
        fix = ""
        if not files.repo:
            fix = f"replace {shlex.join([str(files.root)])} with "
            fix += shlex.quote(str(files.root / names[0]))
        raise f.bad_input("BUILD-TABLES-MIXED", files.root, message, fix)
    return names
