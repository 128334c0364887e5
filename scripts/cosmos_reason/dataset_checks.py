"""What a dataset is and what training on it will do: one pass over the records, then files, leakage, tokens, steps."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

from cosmos_reason import answers, media, s3, vision_tokens
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason.annotations import CHECKS as RECORD_CHECKS
from cosmos_reason.annotations import Media
from cosmos_reason.clip_checks import ARCHIVES
from cosmos_reason.schedule import steps_per_epoch
from cosmos_reason.spec_values import set_flag
from cosmos_reason.storage import sha256, whole_file, write_text
from cosmos_reason.survey import Survey

SCHEMA_VERSION = 1
PIXEL_BYTES = 4 * 3  # float32 RGB, as media wait in host memory
DROP_LAST = "train.train_policy.dataloader_drop_last"
CLIP_FACTS = {"kind": "string"} | dict.fromkeys(("width", "height", "frames", "declared_frames"), "int32")
CLIP_FACTS |= dict.fromkeys(("fps", "seconds"), "float64")

MENDED = 20  # clips that one command names
# In a container's usual codec; the damaged file is kept, what is refused or was encoded before stays as it is.
ENCODE = (
    'do new="${clip%.*}.mended.${clip##*.}"; [ -e "$clip.damaged" ] || { '
    'ffmpeg -nostdin -v error -y -abort_on empty_output_stream -err_detect ignore_err -i "$clip" "$new" && '
    'mv "$clip" "$clip.damaged" && mv "$new" "$clip"; } || rm -f "$new"; done'
)
BY_ENCODING = ("DATA-MEDIA-UNDECODABLE", "DATA-MEDIA-CRASH", "DATA-MEDIA-FRAMES")
# id -> (severity, what is checked, how to mend it)
CHECKS = RECORD_CHECKS | {
    "DATA-EMPTY": (f.ERROR, "the file has records", "check the path"),
    "DATA-ID-UNSAFE": (f.WARNING, "ids can be file names (evaluation needs it)", "use letters, digits, . _ - in ids"),
    "DATA-ID-DUPLICATE": (f.WARNING, "ids are unique (evaluation needs it)", "give every record its own id"),
    "DATA-QUESTION-DUPLICATE": (f.WARNING, "a clip is asked a question once", "remove the repeated records"),
    "DATA-ANSWER-CONFLICT": (f.WARNING, "the same question on the same clip has one answer", "decide which is right"),
    "DATA-MEDIA-OUTSIDE": (f.WARNING, "media are below the media path", "mount that folder too, or copy the media"),
    "DATA-MEDIA-MISSING": (f.ERROR, "media files exist", "copy the files or correct --media-path"),
    "DATA-MEDIA-UNOPENED": (f.INFO, "media are opened, not only listed", "--decode sampled"),
    "DATA-MEDIA-EMPTY": (f.ERROR, "media files are not empty", "copy the files again"),
    "DATA-MEDIA-UNDECODABLE": (f.ERROR, "media decode", "encode the files again or remove the records"),
    "DATA-MEDIA-TIMEOUT": (f.ERROR, "media decode in time", "--timeout 120, or encode the files again"),
    "DATA-MEDIA-CRASH": (f.ERROR, "media do not crash the decoder", "encode the files again or remove the records"),
    "DATA-MEDIA-KIND": (f.ERROR, "videos are videos, images are images", 'name images by "image", clips by "video"'),
    "DATA-MEDIA-FRAMES": (
        f.WARNING,
        "containers tell how many frames decode (some readers ask for that many)",
        "encode the files again",
    ),
    "DATA-CACHE": (f.INFO, "examined files are remembered for the next run", "set COSMOS_CACHE to a writable folder"),
    "DATA-LEAK-CLIP": (f.WARNING, "evaluation clips are not in the training data", "split by source clip"),
    "DATA-LEAK-QUESTION": (f.ERROR, "evaluation questions are not in the training data", "split by source clip"),
    "DATA-TOKENS": (f.ERROR, "samples fit policy.model_max_length", "raise it, or take fewer frames or pixels"),
    "DATA-CLIP-TOO-SHORT": (f.ERROR, "clips have the frames the spec samples", "remove the records: 2 is the least"),
    "DATA-FPS-MISSING": (f.WARNING, "records give video_fps when it samples by fps", 'add "video_fps" (tao needs it)'),
    "DATA-CLIP-EMPTY": (f.ERROR, "clips have frames and a rate", "encode the files again"),
    "DATA-MEDIA-RATIO": (f.ERROR, "sides of media are within 200:1", "crop the files"),
    "DATA-STEPS-NONE": (f.ERROR, "at least one optimizer step runs", set_flag(DROP_LAST, False)),
}
NO_MEDIA = frozenset({"no media"})  # stands for the content of a text-only record's clips
USUAL_ARCHIVES = ("videos.tar.gz", "images.tar.gz")
EVALUATION_ERRORS = ("DATA-ID-MISSING", "DATA-ID-UNSAFE", "DATA-ID-DUPLICATE")


def media_path(found: Survey, given: str | None) -> Path | str:
    """What media names are relative to: what is `given` (an archive in S3 is fetched), else the media root named in the
    file, else its folder, else one of the usual archives there when the first medium is not there itself."""
    if given is not None:
        return given.rstrip("/") if s3.is_uri(given) and not given.endswith(ARCHIVES) else _local(given)
    root = found.source.rpartition("/")[0] if s3.is_uri(found.source) else found.annotations.parent
    if isinstance(named := found.header.get("media_root"), str):
        try:
            return place(root, named)
        except f.Failure:
            fix = f"--media-path {shlex.quote(os.path.normpath(os.path.join(root, named)))}"
            message = f"got the media root {named}, which leaves the folder of the annotations"
            raise f.bad_input("DATA-MEDIA-ESCAPE", found.source, message, fix) from None
    first = next((medium.path for medium in found.clips if not s3.is_uri(medium.path)), "")
    if first and not _exists(os.path.join(root, first)):
        for archive in (place(root, name) for name in USUAL_ARCHIVES):
            if _exists(archive):
                return _local(archive)
    return root


def _local(file: Path | str) -> Path:
    return s3.local(file) if s3.is_uri(file) else Path(file)


def _exists(file: Path | str) -> bool:
    return s3.head(file) is not None if s3.is_uri(file) else os.path.exists(file)


def whole_name(file: Path | str) -> str:
    """A name that means the same from everywhere."""
    return str(file) if s3.is_uri(file) else os.path.abspath(file)


def place(root: Path | str, name: str) -> Path | str:
    """The file, or the object in S3, that `name` stands for below a folder or prefix; Failure when it leaves that."""
    if s3.is_uri(name):
        s3.split(name)
        return name
    path = media.resolve("" if s3.is_uri(root) else root, name)
    return s3.join(root, os.path.normpath(path)) if s3.is_uri(root) and not path.is_absolute() else path


def files(found: Survey) -> dict[int, Path | str]:
    """The files and objects to examine, by clip number; names that leave the media path get their report here."""
    paths = {}
    for medium, number in found.clips.items():
        try:
            paths[number] = place(found.media_path, medium.path)
        except f.Failure as failure:
            problem = failure.findings[0]
            found.reports[number] = media.ClipReport(check=problem.id, message=problem.message)
    return paths


def check_clips(found: Survey) -> None:
    """Turns the clip reports into problems of the records that use the clips."""
    problems = {number: list(_clip_problems(found, medium, number)) for medium, number in found.clips.items()}
    for index, name, used in zip(found.indices, found.ids, found.used(), strict=True):
        for check, message in (problem for number in used for problem in problems[number]):
            found.tally.add(check, index, name, message)
    for check in BY_ENCODING:
        damaged = {medium for medium, number in found.clips.items() if check in dict(problems[number])}
        if clips := [name for medium in found.clips if medium in damaged and (name := _local_video(found, medium))]:
            rest = (
                ""
                if check == "DATA-MEDIA-FRAMES"
                else "  # a clip that ffmpeg refuses stays as it is: remove its records (record_ids in --json)"
            )
            found.tally.fixes[check] = f"for clip in {shlex.join(clips[:MENDED])}; {ENCODE}{rest}"


def _local_video(found: Survey, medium: Media) -> str:
    """Where a video lies, or "" for what no command here could change."""
    file = "" if s3.is_uri(medium.path) else place(found.media_path, medium.path)
    return os.path.abspath(file) if medium.kind == "video" and not s3.is_uri(file) and os.path.isfile(file) else ""


def _clip_problems(found: Survey, medium: Media, number: int):
    report = found.reports[number]
    if _is_outside(medium.path, str(found.media_path)):
        yield "DATA-MEDIA-OUTSIDE", f"got {medium.path}, expected a name below {found.media_path}"
    if report.facts is None:
        check, message = report.check, report.message
        yield check or "DATA-MEDIA-UNOPENED", f"{medium.path}: {message or 'got only its size, from a listing'}"
        return
    facts = report.facts
    if facts.kind != medium.kind:
        yield "DATA-MEDIA-KIND", f'got {medium.path} named by "{medium.kind}", expected "{facts.kind}"'
    elif medium.path.lower().endswith(media.IMAGE_SUFFIXES if facts.kind == "video" else media.VIDEO_SUFFIXES):
        yield "DATA-MEDIA-KIND", f"got {medium.path}, which is {facts.kind}, expected a suffix that says so"
    if facts.declared_frames not in (0, facts.frames):
        claim = f"got {facts.declared_frames} frames declared and {facts.frames} present in {medium.path}"
        yield "DATA-MEDIA-FRAMES", f"{claim}, expected the same"


def _is_outside(name: str, media_path: str) -> bool:
    if s3.is_uri(name):
        return not name.startswith(media_path.rstrip("/") + "/")
    return os.path.isabs(name) and not Path(os.path.abspath(name)).is_relative_to(os.path.abspath(media_path))


def check_leakage(train: Survey, evaluation: Survey) -> None:
    """Evaluation records whose clips (by content) or whose clips and questions are also training records."""
    trained, asked = set(), set()
    for _, contents, texts in _rows(train):
        trained |= contents
        asked |= {(content, text) for content in contents for text in texts}
    for row, contents, texts in _rows(evaluation):
        seen = contents & trained
        same = any((content, text) in asked for content in seen for text in texts)
        if not same and seen <= NO_MEDIA:
            continue
        check, what = ("DATA-LEAK-QUESTION", "clip and question") if same else ("DATA-LEAK-CLIP", "clip")
        message = f"got a {what} of the training data, expected unseen clips"
        evaluation.tally.add(check, evaluation.indices[row], evaluation.ids[row], message)


def _rows(found: Survey) -> Iterator[tuple[int, set[str], set[int]]]:
    """(row, contents of its clips, hashes of its questions) of every record."""
    start = 0
    for row, used in enumerate(found.used()):
        texts = found.text_keys[start : start + found.asked[row]]
        start += found.asked[row]
        yield row, {found.reports[number].content for number in used} - {""} if used else NO_MEDIA, set(texts)


def findings(found: Survey, evaluation: bool = False, folder: Path | None = None) -> list[f.Finding]:
    """Everything found, one finding per check; problems of evaluation become errors in evaluation data.

    A finding about more records than it can carry lists their ids in a file in `folder`.
    """
    checks = dict(CHECKS)
    for check in EVALUATION_ERRORS if evaluation else ():
        checks[check] = (f.ERROR, *CHECKS[check][1:])
    reported = found.tally.findings(checks, found.source)
    for finding in reported:
        if folder and finding.data["count"] > f.MAX_RECORD_IDS:
            finding.data["file"] = str(folder / f"{finding.id}.txt")
            write_text(Path(finding.data["file"]), "\n".join(dict.fromkeys(found.tally.ids[finding.id])) + "\n")
    return reported


def facts(found: Survey) -> dict:
    """The content of dataset_facts.json (schemas/dataset_facts.schema.json)."""
    good = [report.facts for report in found.reports.values() if report.facts]
    clips = [fact for fact in good if fact.kind == "video"]
    counted = [found.balance[kind] for kind in answers.CLOSED_TYPES if found.balance.get(kind)]
    total = sum(sum(balance.values()) for balance in counted)
    most = sum(max(balance.values()) for balance in counted)
    return {
        "schema_version": SCHEMA_VERSION,
        "annotations": whole_name(found.source),
        "media_path": str(found.media_path),
        "format": found.formats.most_common(1)[0][0] if found.formats else "llava",
        "fingerprint": sha256(found.annotations),
        "records": len(found.ids),
        "questions": sum(found.asked),
        "clips": len(found.clips),
        "clips_with_problems": sum(bool(report.check) for report in found.reports.values()),
        "records_per_clip": _spread(Counter(found.clip_numbers).values()),
        "question_types": dict(found.types.most_common()),
        "answers": {kind: dict(balance.most_common(20)) for kind, balance in found.balance.items()},
        "majority_accuracy": round(most / total, 4) if total else None,
        "reasoning_share": round(found.reasoned / max(sum(found.asked), 1), 4),
        "text_tokens": {**_spread(found.text_tokens, ("p50", "p95", "max")), "method": found.text_method},
        "media": {
            "width": _spread([fact.width for fact in good]),
            "height": _spread([fact.height for fact in good]),
            "frames": _spread([fact.frames for fact in clips]),
            "fps": _spread([fact.fps for fact in clips]),
            "seconds": _spread([fact.seconds for fact in clips]),
        },
        "clips_table": "clips.parquet",
        "records_table": "records.parquet",
    }


def _spread(values: Iterable[float], names=("min", "p50", "max")) -> dict[str, float | None]:
    ranked = sorted(values)
    places = {"min": 0, "p50": len(ranked) // 2, "p95": len(ranked) * 95 // 100, "max": len(ranked) - 1}
    return {name: round(ranked[places[name]], 3) if ranked else None for name in names}


def tables(found: Survey):
    """(clips, records) as pyarrow tables: one row per medium in order of appearance, one per record."""
    import numpy as np
    import pyarrow as arrow

    reports = [found.reports[number] for number in range(len(found.clips))]
    columns = {"clip": arrow.array([medium.path for medium in found.clips], arrow.string())}
    for name, kind in CLIP_FACTS.items():
        column = [report.facts and getattr(report.facts, name) for report in reports]
        columns[name] = arrow.array(column, getattr(arrow, kind)())
    reuse = Counter(found.clip_numbers)
    columns["records"] = arrow.array([reuse[number] for number in range(len(reports))], arrow.int32())
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
        "video_fps": arrow.array(found.video_fps, arrow.float64(), mask=np.array(found.video_fps) == 0),
    }
    return arrow.table(columns), arrow.table(records)


def write_facts(found: Survey, path: Path) -> dict:
    """dataset_facts.json at `path` and its two tables beside it, all of them or none; the facts."""
    import pyarrow.parquet as parquet

    written = facts(found)
    targets = [path, *(path.parent / written[name] for name in ("clips_table", "records_table"))]
    with ExitStack() as files:  # renamed from the last to the first
        json.dump(written, files.enter_context(whole_file(targets[0])), indent=1)  # escapes: a path may be no UTF-8
        for target, table in zip(targets[1:], tables(found), strict=True):
            parquet.write_table(table, files.enter_context(whole_file(target, "wb")))
    return written


def predict(found: Survey, action: str, spec: dict, evaluation: bool = False) -> dict:
    """What `action` with `spec` (defaults filled in) will meet: tokens and frames per sample; for training optimizer
    steps and memory of loading, unless the data are those of its `evaluation`.

    Samples that do not fit or cannot be sampled become problems of `found`, with the override that mends them.
    """
    key, length, answer = "policy.model_max_length", spec.get("policy", {}).get("model_max_length"), 0
    if action == "evaluate":
        key, length, answer = "model.max_length", spec["model"]["max_length"], spec["generation"]["max_tokens"]
    limit = length - answer
    costs = vision_tokens.tokens_for_spec(tables(found), spec)
    long = [row for row, cost in enumerate(costs) if cost.total > limit]
    if long:
        needed = -(-(max(cost.total for cost in costs) + answer) // 1024) * 1024
        found.tally.fixes["DATA-TOKENS"] = set_flag(key, needed)
    for row in long:
        message = f"got {costs[row].total} tokens, expected at most {limit} (fewer frames or pixels cost less)"
        found.tally.add("DATA-TOKENS", found.indices[row], costs[row].id, message)
    _check_sampling(found, costs, spec)
    prediction = {
        "limit": limit,
        "tokens": _spread((cost.total for cost in costs), ("p50", "p95", "max")),
        "vision_tokens": _spread((cost.vision for cost in costs), ("p50", "p95", "max")),
        "frames": _spread(cost.frames for cost in costs if cost.frames),
        "too_long": len(long),
    }
    if action == "train" and not evaluation:
        prediction |= _loading(found, spec, max((cost.vision for cost in costs), default=0))
    return prediction


def _check_sampling(found: Survey, costs: list, spec: dict) -> None:
    """Clips that cannot be sampled as `spec` says, and records without the rate that sampling by fps needs."""
    for index, cost in zip(found.indices, costs, strict=True):
        if cost.problem:
            found.tally.add(cost.problem.id, index, cost.id, cost.problem.message)
    table = vision_tokens.VisionOptions.from_spec(spec).table
    if specs.get(spec, f"{table}.nframes"):
        reports = (report.facts for report in found.reports.values())
        shortest = min((facts.frames for facts in reports if facts and facts.kind == "video"), default=0)
        if shortest > 1:
            found.tally.fixes["DATA-CLIP-TOO-SHORT"] = set_flag(f"{table}.nframes", shortest // 2 * 2)
    elif specs.get(spec, f"{table}.fps"):
        for index, name, used, fps in zip(found.indices, found.ids, found.used(), found.video_fps, strict=True):
            if used and not fps:
                found.tally.add("DATA-FPS-MISSING", index, name, "got no video_fps, which sampling by fps needs")


def _loading(found: Survey, spec: dict, most: int) -> dict:
    """Optimizer steps per epoch by number of GPUs, and the host memory of the batches one rank loads ahead when every
    sample has the `most` vision tokens."""
    records, batch = len(found.ids), spec["train"]["train_batch_per_replica"]
    parallel, policy = spec["policy"]["parallelism"], spec["train"]["train_policy"]
    ranks = max(parallel["dp_shard_size"], 1) * max(parallel["dp_replicate_size"], 1)
    drop = policy["dataloader_drop_last"]
    if records and not steps_per_epoch(records, batch, ranks, drop):
        message = f"got {records} records for {ranks} ranks x batch {batch}, expected at least one full batch"
        found.tally.add("DATA-STEPS-NONE", 0, "-", message)
    ahead = policy["dataloader_num_workers"] * (policy["dataloader_prefetch_factor"] or 0) * batch
    side = 2 * vision_tokens.patch_size(spec["policy"]["model_name_or_path"])
    return {
        "steps_per_epoch": {str(gpus): steps_per_epoch(records, batch, gpus, drop) for gpus in (1, 2, 4, 8)},
        "prefetch_bytes_per_rank": ahead * most * 2 * side * side * PIXEL_BYTES,
    }
