"""What a dataset is and what training on it will do: one pass over the records, then files,
leakage, tokens, steps."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.base import findings as f
from cosmos_reason.base.files import sha256, whole_file, write_text
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.annotations import ANSWER_CHECKS, Media, trained_records
from cosmos_reason.data.annotations import CHECKS as RECORD_CHECKS
from cosmos_reason.data.located import place, source
from cosmos_reason.data.survey import Survey
from cosmos_reason.estimate import record_tokens
from cosmos_reason.estimate.steps import steps_per_epoch
from cosmos_reason.media import archives, sampling
from cosmos_reason.media import files as media
from cosmos_reason.remote import s3
from cosmos_reason.spec import document

SCHEMA_VERSION = 1
RESPONSE_MODE = "custom.train_dataset.response_mode"
DROP_LAST = "train.train_policy.dataloader_drop_last"
CLIP_FACTS = {"kind": "string", "pictures": "string"} | dict.fromkeys(
    ("width", "height", "frames", "declared_frames"), "int32"
)
CLIP_FACTS |= dict.fromkeys(("fps", "seconds"), "float64")

RATE_TOLERANCE = 0.1  # of video_fps; clips of varying rate have only an average
MENDED = 20  # clips that one command names
# In a container's usual codec; the damaged file is kept, what is refused or was encoded before
# stays as it is.
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
# id -> (severity, what is checked, how to mend it)
CHECKS = RECORD_CHECKS | {
    **ANSWER_CHECKS,
    "DATA-EMPTY": (f.ERROR, "the file has records", "check the path"),
    "DATA-ID-UNSAFE": (
        f.WARNING,
        "ids can be file names (evaluation needs it)",
        "use letters, digits, . _ - in ids",
    ),
    "DATA-ID-DUPLICATE": (
        f.WARNING,
        "ids are unique (evaluation needs it)",
        "give every record its own id",
    ),
    "DATA-QUESTION-DUPLICATE": (
        f.WARNING,
        "a clip is asked a question once",
        "remove the repeated records",
    ),
    "DATA-ANSWER-CONFLICT": (
        f.WARNING,
        "the same question on the same clip has one answer",
        "decide which is right",
    ),
    "DATA-MEDIA-OUTSIDE": (
        f.WARNING,
        "media are below the media path",
        "mount that folder too, or copy the media",
    ),
    "DATA-MEDIA-MISSING": (f.ERROR, "media files exist", "copy the files or correct --media-path"),
    "DATA-MEDIA-UNOPENED": (
        f.INFO,
        "media are opened, not only listed",
        Fix(flags={"--decode": "sampled"}),
    ),
    "DATA-MEDIA-EMPTY": (f.ERROR, "media files are not empty", "copy the files again"),
    "DATA-MEDIA-UNDECODABLE": (
        f.ERROR,
        "media decode",
        "encode the files again or remove the records",
    ),
    "DATA-MEDIA-TIMEOUT": (
        f.ERROR,
        "media decode in time",
        "--timeout 120, or encode the files again",
    ),
    "DATA-MEDIA-CRASH": (
        f.ERROR,
        "media do not crash the decoder",
        "encode the files again or remove the records",
    ),
    "DATA-MEDIA-KIND": (
        f.ERROR,
        "videos are videos, images are images",
        'name images by "image", clips by "video"',
    ),
    "DATA-MEDIA-FRAMES": (
        f.WARNING,
        "containers tell how many frames decode (some readers ask for that many), and folders "
        "of pictures have one for each number",
        "encode the files again",
    ),
    "DATA-FRAMES-RATE": (
        f.WARNING,
        "videos of pictures state how many a second they are",
        'write "sample_fps" beside "video"',
    ),
    "DATA-FRAMES-SIZE": (
        f.ERROR,
        "the pictures of a video have one size",
        "write them again in one size",
    ),
    "DATA-FRAMES-ALL": (
        f.WARNING,
        "lists of pictures are no longer than what the spec samples (all of them are shown)",
        "name the folder of the pictures instead of a list: folders are sampled",
    ),
    "DATA-MEDIA-DEPTH": (
        f.ERROR,
        "images have 8 bits per value (readers cut off at 255)",
        "convert the images",
    ),
    "DATA-MEDIA-ANIMATED": (
        f.ERROR,
        "images do not move (readers show the first picture)",
        "convert them to clips, or to still images",
    ),
    "DATA-MEDIA-TURNED": (
        f.WARNING,
        "pixels stand upright in the file (readers differ)",
        "turn the pixels",
    ),
    "DATA-ARCHIVE": (
        f.ERROR,
        "archives can be read to their end and hold ordinary files of different names",
        "pack the files again: tar --dereference --hard-dereference -czf videos.tar.gz -C FOLDER .",
    ),
    "DATA-ARCHIVE-DISK": (
        f.ERROR,
        "archives have room to be unpacked",
        "set COSMOS_CACHE and TMPDIR to a larger disk",
    ),
    "DATA-CACHE": (
        f.INFO,
        "examined files are remembered for the next run",
        "set COSMOS_CACHE to a writable folder",
    ),
    "DATA-LEAK-CLIP": (
        f.WARNING,
        "evaluation clips are not in the training data",
        "split by source clip",
    ),
    "DATA-LEAK-QUESTION": (
        f.ERROR,
        "evaluation questions are not in the training data",
        "split by source clip",
    ),
    "DATA-LEAK-PREFIX": (
        f.INFO,
        "clips of one camera or recording are not in both",
        "hold out whole cameras or recordings",
    ),
    "DATA-SIZE": (
        f.INFO,
        "training data have 1,000 questions at least, better 10,000, for production 50,000",
        "label more; until then build_spec.py train --profile small-dataset",
    ),
    "DATA-EVAL-SMALL": (
        f.WARNING,
        "held-out data have 30 questions, and 5 of each answer",
        "hold out more: build_dataset --eval-fraction",
    ),
    "DATA-EVAL-WORDING": (
        f.INFO,
        "evaluation asks in the words of training",
        "word the questions alike",
    ),
    "DATA-TOKENS": (
        f.ERROR,
        "samples fit policy.model_max_length",
        "raise it, or take fewer frames or pixels",
    ),
    "DATA-CLIP-TOO-SHORT": (
        f.ERROR,
        "clips have the frames the spec samples",
        "remove the records: 2 is the least",
    ),
    "DATA-FPS-MISSING": (
        f.WARNING,
        "records give video_fps when the spec samples by fps "
        "(an error in training with engine tao)",
        'add "video_fps" to the records, as build_dataset does',
    ),
    "DATA-VIDEO-FPS-OTHER": (
        f.ERROR,
        "video_fps is the rate of the clip (tao samples by it)",
        'correct "video_fps"',
    ),
    "DATA-CLIP-EMPTY": (f.ERROR, "clips have frames and a rate", "encode the files again"),
    "DATA-MEDIA-RATIO": (f.ERROR, "sides of media are within 200:1", "crop the files"),
    "DATA-REASONING": (
        f.WARNING,
        "reasoning beside the answers is trained",
        Fix(changes={RESPONSE_MODE: "think"}),
    ),
    "DATA-STEPS-NONE": (
        f.ERROR,
        "at least one optimizer step runs",
        Fix(changes={DROP_LAST: False}),
    ),
}
TURNED = {
    "image": "with the Exif orientation {}, which Qwen's loader and the engines here ignore "
    "and others apply, expected upright pixels",
    "video": "turned by {} degrees in its container only, which torchcodec since 0.11, decord "
    "and the embedded engine apply and others ignore, expected upright frames",
}
# Questions that training data have -> what so many are.
SIZES = {1_000: "the least", 10_000: "recommended", 50_000: "for production"}
MISLEADING = {"image": media.VIDEO_SUFFIXES, "video": media.IMAGE_SUFFIXES}
NO_MEDIA = frozenset({"no media"})  # stands for the content of a text-only record's clips
EVALUATION_ERRORS = ("DATA-ID-MISSING", "DATA-ID-UNSAFE", "DATA-ID-DUPLICATE")


def media_path(found: Survey, given: str | None) -> Path | str:
    """The folder, prefix or archive that media names are relative to.

    That is `given` (an archive in S3 is fetched), else the media root named in the file, else its
    folder, else one of the usual archives there when the first medium is not there itself."""
    if given is not None:
        if s3.is_uri(given) and not archives.is_archive(given):
            return given.rstrip("/")
        return _local(given)
    root = found.annotations.parent
    if s3.is_uri(found.source):
        root = found.source.rpartition("/")[0]
    stated = found.header.get("media_root")
    if isinstance(stated, str):
        return _stated_root(found, root, stated)
    for medium in found.clips:
        if not s3.is_uri(medium.path):
            archive = archives.in_root(root, medium.kind, medium.path)
            return _local(archive) if archive else root
    return root


def _stated_root(found: Survey, root: Path | str, stated: str) -> Path | str:
    """The media root that the annotation file names. Raises Failure when it leaves `root`."""
    try:
        return place(root, stated)
    except f.Failure:
        outside = os.path.normpath(os.path.join(root, stated))
        message = f"got the media root {stated}, which leaves the folder of the annotations"
        fix = Fix(flags={"--media-path": outside})
        raise f.bad_input("DATA-MEDIA-ESCAPE", found.source, message, fix) from None


def _local(file: Path | str) -> Path:
    return s3.local(file) if s3.is_uri(file) else Path(file)


def whole_name(file: Path | str) -> str:
    """A name that means the same from everywhere."""
    return str(file) if s3.is_uri(file) else os.path.abspath(file)


def files(found: Survey) -> dict[int, media.Source]:
    """What to examine, by clip number; names that leave the media path get their report here."""
    paths = {}
    for medium, number in found.clips.items():
        try:
            paths[number] = source_of(found, medium)
        except f.Failure as failure:
            problem = failure.findings[0]
            found.reports[number] = media.ClipReport(check=problem.id, message=problem.message)
    return paths


def source_of(found: Survey, medium: Media) -> media.Source:
    """Where a medium is. Pictures in an archive are unpacked to be looked at; clips are not. Raises
    Failure."""
    root = found.media_path
    if medium.pictures or medium.may_be_folder:
        root = archives.media_folder(root)
    return source(medium, partial(place, root))


def members(found: Survey) -> dict[int, str]:
    """The media that are read from an archive, by clip number; none when the media path is a folder
    or prefix."""
    if s3.is_uri(found.media_path) or not Path(found.media_path).is_file():
        return {}
    in_archive = {}
    for medium, number in found.clips.items():
        stands_alone = s3.is_uri(medium.path) or os.path.isabs(medium.path)
        is_unpacked = medium.pictures or medium.may_be_folder
        if number not in found.reports and not (stands_alone or is_unpacked):
            in_archive[number] = medium.path
    return in_archive


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
    """Add to the problems of missing media the file beside them that no record uses and that was
    most likely meant."""
    used = set()
    for medium, number in found.clips.items():
        if found.reports[number].check != "DATA-MEDIA-ESCAPE":
            used.update(_local_files(found, medium))
    for medium in _media_with("DATA-MEDIA-MISSING", found, problems):
        likely = _likely_file(found, medium, used)
        if likely and os.path.splitext(likely)[0] == os.path.basename(medium.path):
            command = ["scripts/build_dataset.py", str(found.annotations), "-o", "data"]
            found.tally.fixes["DATA-MEDIA-MISSING"] = Fix(command=shlex.join(command))
        if likely:
            number = found.clips[medium]
            told = f"; {likely} beside it is used by no record"
            problems[number] = [(check, message + told) for check, message in problems[number]]


def _likely_file(found: Survey, medium: Media, used: set[str]) -> str:
    """The name of the unused file beside a missing one that is most like it, or the only one."""
    if s3.is_uri(medium.path) or s3.is_uri(found.media_path) or found.media_path.is_file():
        return ""
    if medium.pictures:  # its message names the pictures that are missing
        return ""
    folder, name = os.path.split(place(found.media_path, medium.path))
    if not os.path.isdir(folder):
        return ""
    unused = _unused(folder, used)
    with_suffix = [other for other in unused if os.path.splitext(other)[0] == name]
    if len(unused) == 1 or with_suffix:
        return (with_suffix or unused)[0]
    return (f.nearest(name, unused, 1) or [""])[0]


def _unused(folder: str, used: set[str]) -> list[str]:
    """The media of a folder that no record uses."""
    unused = []
    for other in sorted(os.listdir(folder)):
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
                clips += [file for file in _local_files(found, medium) if not _is_picture(file)]
        if not clips:
            continue
        command = f"for clip in {shlex.join(clips[:MENDED])}; {ENCODE}"
        if not shutil.which("ffmpeg"):
            command = INSTALL + command
        if check != "DATA-MEDIA-FRAMES":
            command += REFUSED_CLIPS
        found.tally.fixes[check] = command


def _propose_conversion(found: Survey, problems: dict[int, list[tuple[str, str]]]) -> None:
    """The command that converts the files, for the checks that conversion mends."""
    for check in BY_CONVERSION:
        damaged = _media_with(check, found, problems)
        local = [file for medium in damaged[:MENDED] for file in _local_files(found, medium)]
        if local:
            found.tally.fixes[check] = media.conversion(local)


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
        told = "in the numbers of their names" if facts.pictures else "declared"
        counts = f"{facts.declared_frames} frames {told} and {facts.frames} present"
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


def check_size(found: Survey) -> None:
    """Training data with fewer questions than are recommended."""
    questions = sum(found.asked)
    if questions >= 10_000:
        return
    told = ", ".join(f"{count:,} are {meaning}" for count, meaning in SIZES.items())
    found.tally.add("DATA-SIZE", 0, "-", f"got {questions:,} questions: {told}")
    if questions >= 1_000:
        found.tally.fixes["DATA-SIZE"] = "label more"


def check_leakage(train: Survey, evaluation: Survey) -> None:
    """Evaluation records whose clips (by content) or whose clips and questions are also training
    records."""
    trained = set()
    asked = set()
    for _, contents, texts in _rows(train):
        trained |= contents
        asked |= {(content, text) for content in contents for text in texts}
    for row, contents, texts in _rows(evaluation):
        seen = contents & trained
        if any((content, text) in asked for content in seen for text in texts):
            check = "DATA-LEAK-QUESTION"
            message = "got a clip and question of the training data, expected unseen clips"
        elif seen <= NO_MEDIA:
            continue
        else:
            check = "DATA-LEAK-CLIP"
            message = "got a clip of the training data, expected unseen clips"
        evaluation.tally.add(check, evaluation.indices[row], evaluation.ids[row], message)


def _rows(found: Survey) -> Iterator[tuple[int, set[str], set[int]]]:
    """(row, contents of its clips, hashes of its questions) of every record."""
    start = 0
    for row, used in enumerate(found.used()):
        texts = found.text_keys[start : start + found.asked[row]]
        start += found.asked[row]
        contents = NO_MEDIA
        if used:
            contents = {found.reports[number].content for number in used} - {""}
        yield row, contents, set(texts)


def findings(
    found: Survey, evaluation: bool = False, folder: Path | None = None
) -> list[f.Finding]:
    """Everything found, one finding per check; problems of evaluation become errors in evaluation
    data.

    A finding about more records than it can carry lists their ids in a file in `folder`.
    """
    checks = dict(CHECKS)
    if evaluation:
        for check in EVALUATION_ERRORS:
            checks[check] = (f.ERROR, *CHECKS[check][1:])
    reported = found.tally.findings(checks, found.source, len(found.ids))
    for finding in reported:
        if folder and finding.data["count"] > f.MAX_RECORD_IDS:
            path = folder / f"{finding.id}.txt"
            unique_ids = dict.fromkeys(found.tally.ids[finding.id])
            write_text(path, "\n".join(unique_ids) + "\n")
            finding.data["file"] = str(path)
    return reported


def facts(found: Survey) -> dict:
    """The content of dataset_facts.json (schemas/dataset_facts.schema.json)."""
    data_format = "llava"
    if found.formats:
        data_format = found.formats.most_common(1)[0][0]
    return {
        "schema_version": SCHEMA_VERSION,
        "annotations": whole_name(found.source),
        "media_path": str(found.media_path),
        "format": data_format,
        "fingerprint": sha256(found.annotations),
        "records": len(found.ids),
        "questions": sum(found.asked),
        "clips": len(found.clips),
        "clips_with_problems": sum(bool(report.check) for report in found.reports.values()),
        "records_per_clip": _spread(Counter(found.clip_numbers).values()),
        "question_types": dict(found.types.most_common()),
        "answers": {kind: dict(balance.most_common(20)) for kind, balance in found.balance.items()},
        "majority_accuracy": _majority_accuracy(found),
        "reasoning_beside": sum(count > 0 for count in found.reasoning_tokens),
        "reasoning_share": round(found.reasoned / max(sum(found.asked), 1), 4),
        "text_tokens": {
            **_spread(found.text_tokens, ("p50", "p95", "max")),
            "method": found.text_method,
        },
        "media": _media_facts(found),
        "clips_table": "clips.parquet",
        "records_table": "records.parquet",
    }


def _majority_accuracy(found: Survey) -> float | None:
    """The accuracy of always giving the commonest answer of a question's type; None where no
    question has a closed type."""
    asked = 0
    right = 0
    for kind in answers.CLOSED_TYPES:
        balance = found.balance.get(kind)
        if balance:
            asked += sum(balance.values())
            right += max(balance.values())
    return round(right / asked, 4) if asked else None


def _media_facts(found: Survey) -> dict:
    """Sizes of all media; lengths and rates of the clips among them."""
    opened = [report.facts for report in found.reports.values() if report.facts]
    clips = [facts for facts in opened if facts.kind == "video"]
    return {
        "width": _spread([facts.width for facts in opened]),
        "height": _spread([facts.height for facts in opened]),
        "frames": _spread([facts.frames for facts in clips]),
        "fps": _spread([facts.fps for facts in clips]),
        "seconds": _spread([facts.seconds for facts in clips]),
    }


def _spread(values: Iterable[float], names=("min", "p50", "max")) -> dict[str, float | None]:
    ranked = sorted(values)
    if not ranked:
        return dict.fromkeys(names)
    places = {
        "min": 0,
        "p50": len(ranked) // 2,
        "p95": len(ranked) * 95 // 100,
        "max": len(ranked) - 1,
    }
    return {name: round(ranked[places[name]], 3) for name in names}


def tables(found: Survey):
    """(clips, records) as pyarrow tables: one row per medium in order of appearance, one per
    record."""
    import numpy as np
    import pyarrow as arrow

    reports = [found.reports[number] for number in range(len(found.clips))]
    columns = {"clip": arrow.array([medium.path for medium in found.clips], arrow.string())}
    for name, kind in CLIP_FACTS.items():
        column = [report.facts and getattr(report.facts, name) for report in reports]
        columns[name] = arrow.array(column, getattr(arrow, kind)())
    reuse = Counter(found.clip_numbers)
    columns["records"] = arrow.array(
        [reuse[number] for number in range(len(reports))], arrow.int32()
    )
    for name in ("bytes", "content", "check", "message"):
        columns[name] = arrow.array([getattr(report, name) for report in reports])
    records = {
        "index": arrow.array(found.indices, arrow.int32()),
        "id": arrow.array(found.ids, arrow.string()),
        "clips": arrow.ListArray.from_arrays(
            [0, *accumulate(found.clip_counts)], arrow.array(found.clip_numbers, arrow.int32())
        ),
        "questions": arrow.array(found.asked, arrow.int32()),
        "question_type": arrow.array(found.kinds, arrow.string()),
        "answer": arrow.array(found.answers, arrow.string()),
        "text_tokens": arrow.array(found.text_tokens, arrow.int32()),
        "answer_tokens": arrow.array(found.answer_tokens, arrow.int32()),
        "reasoning_tokens": arrow.array(found.reasoning_tokens, arrow.int32()),
        "has_system": arrow.array(map(bool, found.has_system), arrow.bool_()),
        "video_fps": arrow.array(
            found.video_fps, arrow.float64(), mask=np.array(found.video_fps) == 0
        ),
    }
    return arrow.table(columns), arrow.table(records)


def write_facts(found: Survey, path: Path) -> dict:
    """dataset_facts.json at `path` and its two tables beside it, all of them or none; the facts."""
    import pyarrow.parquet as parquet

    written = facts(found)
    targets = [path, *(path.parent / written[name] for name in ("clips_table", "records_table"))]
    with ExitStack() as files:  # renamed from the last to the first
        json.dump(
            written, files.enter_context(whole_file(targets[0])), indent=1
        )  # escapes: a path may be no UTF-8
        for target, table in zip(targets[1:], tables(found), strict=True):
            parquet.write_table(table, files.enter_context(whole_file(target, "wb")))
    return written


def predict(found: Survey, action: str, spec: dict, engine: str, is_trained: bool = True) -> dict:
    """What `action` with `spec` (defaults filled in) will meet: tokens and frames per sample; for
    training optimizer steps and memory of loading, when the data are those it trains on.

    Samples that do not fit or cannot be sampled become problems of `found`, with the override that
    mends them.
    """
    _, limit, _ = record_tokens.room_for_prompt(action, spec)
    costs = record_tokens.tokens_for_spec(tables(found), spec)
    _check_lengths(found, costs, action, spec)
    _check_sampling(found, costs, spec)
    if sampling.VisionOptions.from_spec(spec).fps:
        check_rates(found, is_gate=action == "train" and engine == "tao")
    totals = [cost.total for cost in costs]
    vision_totals = [cost.vision for cost in costs]
    prediction = {
        "limit": limit,
        "tokens": _spread(totals, ("p50", "p95", "max")),
        "vision_tokens": _spread(vision_totals, ("p50", "p95", "max")),
        "frames": _spread(cost.frames for cost in costs if cost.frames),
        "too_long": sum(total > limit for total in totals),
    }
    if action == "train" and is_trained:
        prediction |= _loading(found, spec, max(vision_totals, default=0))
    return prediction


def _check_lengths(found: Survey, costs: list, action: str, spec: dict) -> None:
    """Samples with more tokens than `spec` leaves room for."""
    key, limit, generated = record_tokens.room_for_prompt(action, spec)
    longest = max((cost.total for cost in costs), default=0)
    if longest <= limit:
        return
    needed = math.ceil((longest + generated) / 1024) * 1024
    advice = f"fewer pixels cost less, and {key}={needed} takes all"
    found.tally.fixes["DATA-TOKENS"] = Fix(changes={key: needed})
    too_long = [row for row, cost in enumerate(costs) if cost.total > limit]
    name, frames = record_tokens.frames_that_fit(tables(found), too_long, spec, limit)
    if frames:
        found.tally.fixes["DATA-TOKENS"] = Fix(changes={name: frames})
        advice = f"at most {name.rpartition('.')[2]}={frames} fits, {key}={needed} takes all frames"
    for row in too_long:
        message = f"got {costs[row].total} tokens, expected at most {limit} ({advice})"
        found.tally.add("DATA-TOKENS", found.indices[row], costs[row].id, message)


def _check_sampling(found: Survey, costs: list, spec: dict) -> None:
    """Clips that cannot be sampled as `spec` says."""
    for index, cost in zip(found.indices, costs, strict=True):
        if cost.problem:
            found.tally.add(cost.problem.id, index, cost.id, cost.problem.message)
    options = sampling.VisionOptions.from_spec(spec)
    table = options.table
    _check_lists(found, options)
    if not options.nframes:
        return
    opened = [report.facts for report in found.reports.values() if report.facts]
    lengths = [facts.frames for facts in opened if facts.kind == "video" and not facts.is_sampled]
    shortest = min(lengths, default=0)
    if shortest > 1:
        even_count = shortest // 2 * 2
        found.tally.fixes["DATA-CLIP-TOO-SHORT"] = Fix(changes={f"{table}.nframes": even_count})


def _check_lists(found: Survey, options: sampling.VisionOptions) -> None:
    """Videos given as lists of more pictures than the spec samples: all of them are shown."""
    most = options.nframes or options.max_frames or sampling.MAX_FRAMES
    longer = {}
    for number, report in found.reports.items():
        if report.facts and report.facts.is_sampled and report.facts.frames > most:
            longer[number] = report.facts.frames
    for row, used in enumerate(found.used()):
        frames = [longer[number] for number in used if number in longer]
        if frames:
            message = f"got a list of {frames[0]} pictures, expected at most {most} frames"
            found.tally.add("DATA-FRAMES-ALL", found.indices[row], found.ids[row], message)


def check_rates(found: Survey, is_gate: bool) -> None:
    """Records without the rate of their clips, for a spec that samples by fps: errors when
    `is_gate`, as in training with engine tao, whose loader ends there. build_dataset writes the
    rates it measures."""
    for row, name in record_tokens.records_without_rate(tables(found)).items():
        message = "got no video_fps, which sampling by fps needs"
        found.tally.add("DATA-FPS-MISSING", found.indices[row], name, message)
    if is_gate:
        found.tally.errors.add("DATA-FPS-MISSING")
    folder = str(found.annotations.parent)
    media_path = str(found.media_path)
    beside = os.path.dirname(media_path) if archives.is_archive(media_path) else media_path
    if not s3.is_uri(found.source) and beside == folder:
        output = f"{os.path.abspath(folder)}-with-rates"
        command = ["scripts/build_dataset.py", str(found.annotations), "-o", output]
        found.tally.fixes["DATA-FPS-MISSING"] = shlex.join(command)


def _loading(found: Survey, spec: dict, vision_tokens: int) -> dict:
    """Optimizer steps per epoch by number of GPUs, and the host memory of the batches one rank
    loads ahead when every sample has so many vision tokens."""
    mode = document.get(spec, RESPONSE_MODE)
    reasoned = [row for row, count in enumerate(found.reasoning_tokens) if count]
    if mode == "answer":
        for row in reasoned:
            message = "got reasoning beside the answer, which response_mode answer leaves out"
            found.tally.add("DATA-REASONING", found.indices[row], found.ids[row], message)
    records = trained_records(len(found.ids), len(reasoned), mode)
    parallel = spec["policy"]["parallelism"]
    ranks = max(parallel["dp_shard_size"], 1) * max(parallel["dp_replicate_size"], 1)
    batch = spec["train"]["train_batch_per_replica"]
    drop_last = spec["train"]["train_policy"]["dataloader_drop_last"]
    if records and not steps_per_epoch(records, batch, ranks, drop_last):
        message = (
            f"got {records} records for {ranks} ranks x batch {batch}, "
            "expected at least one full batch"
        )
        found.tally.add("DATA-STEPS-NONE", 0, "-", message)
    steps = {}
    for gpus in (1, 2, 4, 8):
        steps[str(gpus)] = steps_per_epoch(records, batch, gpus, drop_last)
    patch = sampling.patch_size(spec["policy"]["model_name_or_path"])
    return {
        "steps_per_epoch": steps,
        "prefetch_bytes_per_rank": record_tokens.loader_bytes(spec["train"], vision_tokens, patch),
    }
