"""What is wrong with the clips of a dataset, as problems of the records that use them, and commands
that mend the files. Enter at `check_clips`."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.located import place
from cosmos_reason.data.samples import Media
from cosmos_reason.data.source_files import folded
from cosmos_reason.data.survey import Survey
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.remote import s3

RATE_TOLERANCE = 0.1  # of video_fps; clips of varying rate have only an average
MENDED = 20  # clips that one command names
# In the usual codec of the container that its suffix names; the damaged file is kept, what is
# refused or was encoded before stays as it is.
ENCODE = (
    'do new="${clip%.*}.mended.${clip##*.}"; [ -e "$clip.damaged" ] || { '
    "ffmpeg -nostdin -v error -y -abort_on empty_output_stream -err_detect ignore_err "
    '-i "$clip" "$new" && '
    'mv "$clip" "$clip.damaged" && mv "$new" "$clip"; } || rm -f "$new"; done'
)
REFUSED_CLIPS = (
    "  # a clip that ffmpeg refuses stays as it is: remove its records (record_ids in --json)"
)
INSTALL = "apt-get install --yes ffmpeg && "  # before the command, where the program is not there
BY_ENCODING = ("DATA-MEDIA-UNDECODABLE", "DATA-MEDIA-CRASH", "DATA-MEDIA-FRAMES")
BY_CONVERSION = ("DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED", "DATA-MEDIA-TURNED")
TURNED = {
    "image": "with the Exif orientation {}, which Qwen's loader and the engines here ignore "
    "and others apply, expected upright pixels",
    "video": "turned by {} degrees in its container only, which torchcodec since 0.11, decord "
    "and the embedded engine apply and others ignore, expected upright frames",
}
MISLEADING = {"image": media.VIDEO_SUFFIXES, "video": media.IMAGE_SUFFIXES}


def check_clips(found: Survey) -> None:
    """Turns the clip reports into problems of the records that use the clips, and proposes commands
    that mend the files."""
    problems = {}
    for medium, number in found.clips.items():
        problems[number] = list(_clip_problems(found, medium, number))
    _name_unused(found, problems)
    _report_clips(found, problems)
    _propose_encoding(found, problems)
    _propose_conversion(found, problems)


def _name_unused(found: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """Add to the problem of the first missing medium, which is the one that is told, the file
    beside it that no record uses and that was most likely meant. Where names only lack the suffixes
    of their files, propose the command that finds them."""
    missing = _media_with("DATA-MEDIA-MISSING", found, problems)
    missing = [medium for medium in missing if _has_a_place(found, medium)]
    if not missing:
        return
    names_by_folder = defaultdict(set)
    for medium in missing:
        folder, name = _place(found, medium)
        names_by_folder[folder].add(name)
    used = _used_files(found)
    unused = {folder: _unused(folder, used) for folder in names_by_folder}
    folder, name = _place(found, missing[0])
    likely = _most_like(name, unused[folder])
    if likely:
        number = found.clips[missing[0]]
        hint = f"; {likely} beside it is used by no record"
        problems[number] = [(check, message + hint) for check, message in problems[number]]
    for folder, names in names_by_folder.items():
        if any(os.path.splitext(other)[0] in names for other in unused[folder]):
            command = ["scripts/build_dataset.py", str(found.annotations), "-o", "data"]
            found.tally.fixes["DATA-MEDIA-MISSING"] = Fix(command=shlex.join(command))


def _has_a_place(found: Survey, medium: Media) -> bool:
    """Whether a folder here is meant to hold it. Of pictures the message names the missing ones."""
    is_elsewhere = s3.is_uri(medium.path) or s3.is_uri(found.media_path)
    return not (is_elsewhere or os.path.isfile(found.media_path) or medium.pictures)


def _place(found: Survey, medium: Media) -> tuple[str, str]:
    """(folder, name) of a medium."""
    return os.path.split(place(found.media_path, medium.path))


def _used_files(found: Survey) -> set[str]:
    used: set[str] = set()
    for medium, number in found.clips.items():
        check = found.reports[number].check
        is_gone = check == "DATA-MEDIA-MISSING" and not medium.pictures
        if check != "DATA-MEDIA-ESCAPE" and not is_gone:
            used.update(_local_files(found, medium))
    return used


def _most_like(name: str, unused: list[str]) -> str:
    """The unused file that differs in its suffix, case, blanks or Unicode form only, the only one,
    or one that is a letter off; empty without one."""
    alike = [other for other in unused if os.path.splitext(other)[0] == name]
    alike = alike or [other for other in unused if folded(other) == folded(name)]
    if len(unused) == 1 or alike:
        return (alike or unused)[0]
    return (f.misspelt(name, unused) or [""])[0]


def _unused(folder: str, used: set[str]) -> list[str]:
    """The media of a folder that no record uses; none where there is no such folder."""
    unused = []
    for other in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        is_medium = other.lower().endswith(media.VIDEO_SUFFIXES + media.IMAGE_SUFFIXES)
        if is_medium and os.path.abspath(os.path.join(folder, other)) not in used:
            unused.append(other)
    return unused


def _report_clips(found: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """Problems of the clips, and stated rates that are not the clip's, as problems of records."""
    measured_rates = {}
    for number, report in found.reports.items():
        if report.facts and report.facts.fps:
            measured_rates[number] = report.facts.fps
    rows = zip(found.indices, found.ids, found.used(), found.video_fps, strict=True)
    for index, name, used, stated in rows:
        for number in used:
            for check, message in problems[number]:
                found.tally.add(check, index, name, message)
        if not stated:
            continue
        for number in used:
            measured = measured_rates.get(number, stated)
            if abs(stated - measured) > RATE_TOLERANCE * measured:
                message = (
                    f"got video_fps {stated:g} for a clip of {measured:g} frames a second, "
                    "expected its rate"
                )
                found.tally.add("DATA-VIDEO-FPS-OTHER", index, name, message)


def _propose_encoding(found: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """The command that encodes the clips again, for the checks that encoding mends."""
    for check in BY_ENCODING:
        clips = []
        for medium in _media_with(check, found, problems):
            if medium.kind == "video":
                clips += [file for file in _local_files(found, medium) if _keeps_its_suffix(file)]
        if not clips:
            continue
        command = f"for clip in {shlex.join(clips[:MENDED])}; {ENCODE}"
        if not shutil.which("ffmpeg"):
            command = INSTALL + command
        if check != "DATA-MEDIA-FRAMES":
            command += REFUSED_CLIPS
        found.tally.fixes[check] = Fix(command=command)


def _propose_conversion(found: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """The command that converts the files, for the checks that conversion mends."""
    for check in BY_CONVERSION:
        damaged = _media_with(check, found, problems)
        local = [file for medium in damaged[:MENDED] for file in _local_files(found, medium)]
        if local:
            found.tally.fixes[check] = Fix(command=media.conversion(local))


def _media_with(check: str, found: Survey, problems: dict) -> list[Media]:
    """The media that have a problem of this check, in order of appearance."""
    return [medium for medium, number in found.clips.items() if check in dict(problems[number])]


def _local_files(found: Survey, medium: Media) -> list[str]:
    """The files of a medium on this machine; none that no command here could change."""
    if any(map(s3.is_uri, medium.names)) or s3.is_uri(found.media_path):
        return []
    paths = [place(found.media_path, name) for name in medium.names]
    if os.path.isdir(paths[0]):
        paths = [file for file in sorted(Path(paths[0]).iterdir()) if _is_picture(str(file))]
    return [os.path.abspath(path) for path in paths if os.path.isfile(path)]


def _keeps_its_suffix(name: str) -> bool:
    """Whether a file encoded again by its suffix is a clip that is read; of a .wmv it is none."""
    return name.lower().endswith(media.VIDEO_SUFFIXES)


def _is_picture(name: str) -> bool:
    return name.lower().endswith(media.IMAGE_SUFFIXES)


def _clip_problems(found: Survey, medium: Media, number: int) -> Iterator[tuple[str, str]]:
    """(check, message) of what is wrong with one medium."""
    report = found.reports[number]
    if any(_is_outside(name, str(found.media_path)) for name in medium.names):
        message = f"got {medium.path}, expected a name below {found.media_path}"
        yield "DATA-MEDIA-OUTSIDE", message
    facts = report.facts
    if facts is None:
        message = report.message or "got only its size, from a listing"
        yield report.check or "DATA-MEDIA-UNOPENED", f"{medium.path}: {message}"
        return
    if facts.kind != medium.kind:
        message = f'got {medium.path} named by "{medium.kind}", expected "{facts.kind}"'
        yield "DATA-MEDIA-KIND", message
    elif not facts.pictures and medium.path.lower().endswith(MISLEADING[facts.kind]):
        message = f"got {medium.path}, which is {facts.kind}, expected a suffix that says so"
        yield "DATA-MEDIA-KIND", message
    if facts.turned:
        kind = "image" if facts.pictures else facts.kind
        yield "DATA-MEDIA-TURNED", f"got {medium.path} {TURNED[kind].format(facts.turned)}"
    yield from _frame_problems(medium, facts)


def _frame_problems(medium: Media, facts: media.MediaFacts) -> Iterator[tuple[str, str]]:
    """(check, message) of what is wrong with the number of frames, and with their rate."""
    if facts.declared_frames not in (0, facts.frames):
        stated = "in the numbers of their names" if facts.pictures else "declared"
        counts = f"{facts.declared_frames} frames {stated} and {facts.frames} present"
        yield "DATA-MEDIA-FRAMES", f"got {counts} in {medium.path}, expected the same"
    if facts.pictures and not medium.fps:
        message = f"got {facts.frames} pictures of a video ({medium.path}) without their rate"
        yield "DATA-FRAMES-RATE", f"{message}: {sampling.DEFAULT_FPS:g} a second are assumed"


def _is_outside(name: str, media_path: str) -> bool:
    if s3.is_uri(name):
        return not name.startswith(media_path.rstrip("/") + "/")
    return os.path.isabs(name) and not Path(os.path.abspath(name)).is_relative_to(
        os.path.abspath(media_path)
    )
