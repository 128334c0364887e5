"""The data and the spec by their own checks, as far as the data can be read here."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.texts import some
from cosmos_reason.data import arrival, checks, clip_files, survey, whole_survey
from cosmos_reason.data import facts as dataset_facts
from cosmos_reason.data.annotations import locate
from cosmos_reason.data.prediction import check_rates
from cosmos_reason.jobs import launch as jobs_launch
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.media import archives
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.files import LIST, ClipReport, MediaFacts
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import actions, origins

CLIPS_LOOKED_AT = 64  # headers, when there are no dataset facts; check_dataset looks at all of them
CLIP_SECONDS = 10.0
SHOWN = 5


def data_and_spec(preflight: Preflight) -> Iterator[Finding]:
    """every rule of build_spec and every check of check_dataset that can be made here"""
    case = preflight.case
    data = actions.data_keys(case.action)
    validation = actions.validation_keys(case.action)
    with tempfile.TemporaryDirectory() as folder:
        facts = None
        if preflight.options.dataset_facts:
            facts = Path(preflight.options.dataset_facts)
        elif data:
            facts, found = survey_data(case, data, Path(folder))
            counted = counted_before(preflight, facts)
            if counted:  # of every clip: one number for the longest record, whoever tells it
                facts = counted
                found = [one for one in found if one.id != "PRE-DATA-SAMPLED"]
            yield from found
        checked = preflight.options.dataset_facts or origins.facts_of(preflight.options.spec)
        if data and checked:
            yield from replaced_media(case, data, Path(checked))
        if validation and case("validation.enable"):
            _, found = survey_data(case, validation, Path(folder) / "validation")
            yield from found
        general = actions.guard_keys(case.action)
        if general:
            _, found = survey_data(case, general, Path(folder) / "guard")
            yield from found
        gpus_per_node = preflight.gpus_per_node if case.action in actions.TRAINING else None
        yield from preflight.launch.completed
        if preflight.has_own_data:
            script = preflight.options.entry_script
            message = f"data of {script} are not read here: lengths not known"
            yield findings.warning("PRE-DATA-UNREAD", "--entry-script", message)
        # Once more by all rules: now the lengths of the records and the nodes are known.
        preflight.case, broken = jobs_launch.examined(
            preflight.launch, facts, gpus_per_node, preflight.nodes
        )
        yield from broken
        case = preflight.case
        _ = case.tokens  # counted while the tables are there, which go with this block


def counted_before(preflight: Preflight, surveyed: Path | None) -> Path | None:
    """Return the facts that build_spec read, where they are of these annotations and counted with a
    tokenizer, or no worse than what was `surveyed` here."""
    noted = origins.facts_of(preflight.options.spec)
    if noted is None or surveyed is None:
        return None
    before, now = files.read_json(noted), files.read_json(surveyed)
    if before.get("fingerprint") != now["fingerprint"]:
        return None
    is_counted, could_be = (
        facts.get("text_tokens", {}).get("method", "").startswith("tokenizer")
        for facts in (before, now)
    )
    return noted if is_counted or not could_be else None


def replaced_media(case: Case, keys: actions.DataKeys, facts: Path) -> list[Finding]:
    """Return a warning for media that are no longer what check_dataset looked at when it wrote the
    facts: neither their labels nor their lengths need to be right."""
    written, media = case(keys.annotations), case(keys.media)
    if not written or "://" in written or not locate(written).is_file():
        return []
    differing = arrival.changed(locate(written), media or None, facts)
    if not differing:
        return []
    message = f"{len(differing)} media were replaced since they were checked: "
    message += f"{some(differing, SHOWN)}; check them again"
    words = ["scripts/check_dataset.py", written, "--facts", str(facts)]
    words += ["--media-path", media] if media else []
    command = shlex.join(words)
    return [findings.warning("PRE-MEDIA-REPLACED", media or written, message, command)]


def survey_data(
    case: Case, keys: actions.DataKeys, folder: Path
) -> tuple[Path | None, list[Finding]]:
    """Return (dataset facts written into `folder`, findings) of the annotations and media that two
    keys name; no facts of data that is not here."""
    written = case(keys.annotations)
    media = case(keys.media)
    if not written:
        return None, []  # a rule of the spec says so
    is_packed_elsewhere = "://" in (media or "") and archives.is_archive(media)
    if is_packed_elsewhere or "://" in written or not locate(written).is_file():
        message = f"got {written}, which cannot be read here: lengths are not known, unless "
        message += "check_dataset.py --facts wrote them where it can"
        return None, [findings.warning("PRE-DATA-UNREAD", keys.table, message)]
    found = whole_survey.take(locate(written), media or None, case.model, look_at_first_clips)
    is_validation = keys == actions.validation_keys(case.action)
    if is_validation and case(case.vision + "fps"):  # of the training data a rule says it
        check_rates(found, is_gate=case.engine == "tao")
    folder.mkdir(exist_ok=True)
    facts = folder / "dataset_facts.json"
    dataset_facts.write_facts(found, facts)
    return facts, [
        *supposed_clips(found),
        *checks.findings(found, evaluation=case.action == "evaluate"),
    ]


def look_at_first_clips(found: survey.Survey) -> clip_checks.Reports:
    """Yield a report of every clip: that it is missing, where it is; its header, of the first few
    and of those looked at before (of an archive, of the clips that come first in it); else the
    facts of the largest one of its kind, without what an examined file has besides."""
    how = ("none", VisionOptions(nframes=8), CLIP_SECONDS, clip_checks.Cache())
    paths = clip_files.files(found)
    packed = clip_files.members(found)
    reports: dict[int, ClipReport] = {}
    if packed:
        archive = Path(found.media_path)
        reports |= clip_checks.examine_archive(archive, packed, *how, first_only=True)
    local = {}  # files of this machine, by the number of the clip
    for number in sorted(paths.keys() - packed.keys()):
        if "://" not in str(clip_checks.parts(paths[number])[0]):
            local[number] = paths[number]
    missing = ClipReport(check="DATA-MEDIA-MISSING", message="got no such file, expected one")
    for number, path in local.items():
        if not all(map(os.path.exists, clip_checks.parts(path))):
            reports[number] = missing
    waiting = {number: path for number, path in local.items() if number not in reports}
    first_few = dict(islice(waiting.items(), CLIPS_LOOKED_AT))
    reports |= clip_checks.examine_all(first_few, *how)
    largest: dict[str, MediaFacts] = {}
    for report in reports.values():
        facts = report.facts
        if facts and (facts.kind not in largest or _pixels(facts) > _pixels(largest[facts.kind])):
            largest[facts.kind] = facts
    for medium, number in found.clips.items():
        facts = largest.get(medium.kind)
        if facts and medium.pictures:  # as many frames as are listed for it
            facts = replace(facts, frames=len(medium.pictures), pictures=LIST)
        if number not in found.reports:  # that its name leaves the media path is known before
            reports.setdefault(number, ClipReport(facts=facts))
    yield from reports.items()


def supposed_clips(found: survey.Survey) -> list[Finding]:
    """Return an info where not all clips were looked at."""
    looked_at = sum(bool(report.content or report.check) for report in found.reports.values())
    if looked_at == len(found.clips):
        return []
    message = f"looked at {looked_at} of {len(found.clips)} clips; "
    message += "the others are taken to be like the largest of them"
    annotations = shlex.quote(str(found.annotations))
    fix = f"scripts/check_dataset.py {annotations} --facts dataset_facts.json"
    return [findings.info("PRE-DATA-SAMPLED", found.annotations, message, fix)]


def _pixels(facts: MediaFacts) -> int:
    return facts.frames * facts.width * facts.height
