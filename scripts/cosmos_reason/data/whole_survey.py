"""All that is known of a dataset before it is held against a spec: its records, its clips, what is
wrong with both, and commands that mend the files. Enter at `take`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from cosmos_reason.base.fix import Fix
from cosmos_reason.data import clip_files, survey
from cosmos_reason.data.located import place
from cosmos_reason.data.samples import Media
from cosmos_reason.data.source_files import folded
from cosmos_reason.data.survey import Survey
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.checks import Reports
from cosmos_reason.media.files import names_medium
from cosmos_reason.remote import s3

RATE_TOLERANCE = 0.1  # of video_fps; clips of varying rate have only an average
MENDED = 20  # clips that one command names
OF_CLIPS = ("DATA-MEDIA-UNDECODABLE", "DATA-MEDIA-FRAMES")  # which nobody mends in pictures
BY_CONVERSION = (*OF_CLIPS, "DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED", "DATA-MEDIA-TURNED")
REFUSED_CLIPS = "  # what is refused stays as it is: remove its records (record_ids in --json)"
TURNED = {
    "image": "with the Exif orientation {}, which Qwen's loader and the engines here ignore "
    "and others apply, expected upright pixels",
    "video": "turned by {} degrees in its container only, which torchcodec since 0.11, decord "
    "and the embedded engine apply and others ignore, expected upright frames",
}
MISLEADING = {"image": media.VIDEO_SUFFIXES, "video": media.IMAGE_SUFFIXES}


def take(
    annotations: Path,
    media_path: str | None,
    model: str,
    look: Callable[[Survey], Reports],
    source: str = "",
) -> Survey:
    """Return the survey of a dataset, with a report of every clip and the problems of the records
    that use it. `look` examines the clips of the records that were read; texts are counted with the
    tokenizer of `model`; `source` is the name of annotations that were fetched from S3.

    Raises Failure when the annotation file cannot be read, or media are in no place.
    """
    dataset = survey.of_records(annotations, model, source)
    dataset.media_path = clip_files.media_path(dataset, media_path)
    dataset.reports |= look(dataset)
    check_clips(dataset)
    return dataset


def check_clips(dataset: Survey) -> None:
    """Turn the clip reports, and stated rates that are not the clip's, into problems of the records
    that use the clips, and propose commands that mend the files."""
    problems = {}
    rates = {}
    for medium, number in dataset.clips.items():
        problems[number] = list(_clip_problems(dataset, medium, number))
        facts = dataset.reports[number].facts
        if facts and facts.fps:
            rates[number] = facts.fps
    _name_alike(dataset, problems)
    _name_moved(dataset, problems)
    rows = zip(dataset.indices, dataset.ids, dataset.used(), dataset.video_fps, strict=True)
    for index, name, used, stated in rows:
        for number in used:
            for check, message in problems[number]:
                dataset.tally.add(check, index, name, message)
            measured = rates.get(number, stated)
            if stated and abs(stated - measured) > RATE_TOLERANCE * measured:
                message = (
                    f"got video_fps {stated:g} for a clip of {measured:g} frames a second, "
                    "expected its rate"
                )
                dataset.tally.add("DATA-VIDEO-FPS-OTHER", index, name, message)
    for check in BY_CONVERSION:
        damaged = _media_with(check, dataset, problems)
        local = [file for medium in damaged[:MENDED] for file in _local_files(dataset, medium)]
        if check in OF_CLIPS:
            local = [file for file in local if file.lower().endswith(media.VIDEO_SUFFIXES)]
        if local:
            command = media.conversion(local)
            command += REFUSED_CLIPS if check == "DATA-MEDIA-UNDECODABLE" else ""
            dataset.tally.fixes[check] = Fix(command=command)


def _name_alike(dataset: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """Add to the problem of the first missing medium, which is the one that is told, the file
    beside it whose name differs in its suffix, case, blanks or Unicode form only. Where names lack
    the suffixes of their files, propose the command that finds them."""
    if s3.is_uri(dataset.media_path) or os.path.isfile(dataset.media_path):
        return
    beside: dict[str, dict[str, str]] = {}  # folder -> its media by their names without suffixes
    is_first = True
    for medium in _media_with("DATA-MEDIA-MISSING", dataset, problems):
        if s3.is_uri(medium.path) or medium.pictures:  # the message names missing pictures
            continue
        folder, name = os.path.split(place(dataset.media_path, medium.path))
        if folder not in beside:
            there = sorted(
                filter(names_medium, os.listdir(folder) if os.path.isdir(folder) else ())
            )
            beside[folder] = {os.path.splitext(other)[0]: other for other in there}
        likely = beside[folder].get(name)
        if likely:
            command = ["scripts/build_dataset.py", str(dataset.annotations), "-o", "data"]
            dataset.tally.fixes["DATA-MEDIA-MISSING"] = Fix(command=shlex.join(command))
        if is_first and not likely:
            others = [other for other in beside[folder].values() if other != name]
            likely = next((one for one in others if folded(one) == folded(name)), None)
        if is_first and likely:
            number = dataset.clips[medium]
            hint = f"; {likely} lies beside it"
            problems[number] = [(check, message + hint) for check, message in problems[number]]
        is_first = False


def _name_moved(dataset: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """Propose the command that shortens names, where all missing media have absolute ones, as of
    another machine, whose ends are files below the media path."""
    annotations = Path(dataset.annotations)
    if s3.is_uri(dataset.media_path) or not os.path.isdir(dataset.media_path):
        return
    missing = _media_with("DATA-MEDIA-MISSING", dataset, problems)
    names = [name for medium in missing for name in medium.names]
    if not names or not all(map(os.path.isabs, names)) or s3.is_uri(dataset.source):
        return
    folder = os.path.join(os.path.commonpath([os.path.dirname(name) for name in names]), "")
    for start in _beginnings(folder):
        ends = [name.removeprefix(start) for name in names]
        if all(os.path.exists(os.path.join(dataset.media_path, end)) for end in ends):
            break
    else:
        return
    number = dataset.clips[missing[0]]
    hint = f"; a name that begins with / is looked for there only, and {ends[0]} is in "
    hint += str(dataset.media_path)
    problems[number] = [
        (check, message + (hint if check == "DATA-MEDIA-MISSING" else ""))
        for check, message in problems[number]
    ]
    if os.fsencode(f'"{start}') not in annotations.read_bytes():  # JSON may write it escaped
        return
    target = annotations.with_name(f"{annotations.stem}-here{annotations.suffix}")
    shorten = 's|"' + re.sub(r"([][\\.*^$|])", r"\\\1", start) + '|"|g'
    command = f"sed {shlex.quote(shorten)} {shlex.quote(str(annotations))}"
    command += f" > {shlex.quote(str(target))}  # then name that file"
    dataset.tally.fixes["DATA-MEDIA-MISSING"] = Fix(command=command)


def _beginnings(folder: str) -> Iterator[str]:
    """Yield "/", "/a/", "/a/b/" of "/a/b/"."""
    yield from (folder[: at + 1] for at, sign in enumerate(folder) if sign == "/")


def _media_with(check: str, dataset: Survey, problems: dict) -> list[Media]:
    """Return the media that have a problem of this check, in order of appearance."""
    return [medium for medium, number in dataset.clips.items() if check in dict(problems[number])]


def _local_files(dataset: Survey, medium: Media) -> list[str]:
    """Return the files of a medium on this machine; none that no command here could change."""
    if any(map(s3.is_uri, medium.names)) or s3.is_uri(dataset.media_path):
        return []
    paths = [place(dataset.media_path, name) for name in medium.names]
    if os.path.isdir(paths[0]):
        paths = media.pictures_of([file.path for file in os.scandir(paths[0])], 1).files
    return [os.path.abspath(path) for path in paths if os.path.isfile(path)]


def _clip_problems(dataset: Survey, medium: Media, number: int) -> Iterator[tuple[str, str]]:
    """Yield (check, message) of what is wrong with one medium."""
    report = dataset.reports[number]
    if any(_is_outside(name, str(dataset.media_path)) for name in medium.names):
        message = f"got {medium.path}, expected a name below {dataset.media_path}"
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
