"""Grades rows: the type of each question, what its response answers, and whether that is right.

One answer is read by the package `answers`; this module knows what only a whole set shows (labels),
what an evaluation asked for (its task), and boxes in another measure.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.base import files, findings, job_folder
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import located
from cosmos_reason.data.samples import Media
from cosmos_reason.evaluation import evaluation_record, rows
from cosmos_reason.evaluation.batches import CUT
from cosmos_reason.evaluation.questions import LETTER_ASKED
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.media import files as media
from cosmos_reason.remote import chat, model_names
from cosmos_reason.spec import document

# A closed set: this many labels at most, so long at most, and so many rows for each on average.
MAX_LABELS = 20
MAX_LABEL_WORDS = 4
MAX_LABEL_CHARACTERS = 40
MIN_ROWS_PER_LABEL = 2
# A question that is asked so often has labels of its own; rarer ones share theirs.
MIN_ROWS_PER_QUESTION = 10
_HTTP_STATUS = re.compile(r"\bgot HTTP (\d{3}):")  # in the error of a row
JOB_FILE, JOB_SPEC = "job.json", "spec.toml"
MOST_ABOVE = 4  # JOB/results/CHECKPOINT/guard/results.json
CUT_SHOWN = 60  # characters
MAX_TOKENS = "generation.max_tokens"
FEWEST_SIGNS, FEWEST_ALIKE = 3, 3  # of a response, of the rows, to call them garbage
# Form -> (words of which one is in such a prompt, how a prompt asks for it); the first one that is
# asked for counts.
FORMS = {
    "tags": (("<answer>",), "<answer>"),
    "boxed": (("boxed",), r"\\boxed"),
    "json": (("json",), r"\bjson\b"),
    "final answer": (("final",), r"final answer\b.{0,3}:"),
    "letter": (("letter",), LETTER_ASKED),
    "yes or no": (("yes", "true"), r"\b(?:yes ?(?:or|/) ?no|true ?(?:or|/) ?false)\b"),
    "number": (("number",), r"\b(?:with|as|only) (?:a|an|the|one)?[^.\n]{0,12}\bnumber\b"),
    "word": (
        ("word", "phrase"),
        r"\b(?:single|one) word\b|\b(?:short|single) phrase\b|\bword or phrase\b",
    ),
}
ANY_FORM = "any"
_FORMS = [(name, words, re.compile(pattern)) for name, (words, pattern) in FORMS.items()]
# task.type of an evaluate spec -> how its rows are read
DIRECTIONS = {"its_directionality": "direction"}
TASK_TYPES = DIRECTIONS | dict.fromkeys(("", "binary", "mcq", "text", "metropolis_sgd"), "auto")
BY_THE_DATA = Fix(flags={"--type": "auto"})
TYPES = ("auto", "its_directionality", *answers.TYPES)
# Measure of the responses, then that of the ground truths: pixels, 1000ths or shares of a side.
BOX_MEASURES = {
    "pixels": ("pixels", 1000),
    "1000": (1000, "pixels"),
    "1": (1, 1000),
    "1:pixels": (1, "pixels"),
    "pixels:1": ("pixels", 1),
    "1000:1": (1000, 1),
}


@dataclass(frozen=True)
class Options:
    """How answers are read: `type` for all rows (auto: as the task and the data show), the relative
    error a number may have, how responses write boxes where ground truths do it otherwise, and the
    annotations with the questions and ground truths of results that have none. `names_clips`: rows
    without a clip get theirs from the annotations that their record names."""

    type: str = "auto"
    tolerance: float = 0.0
    boxes: str | None = None
    annotations: str = ""
    names_clips: bool = False


def read_one(path: Path, options: Options) -> tuple[Path, list[Row], list[Finding]]:
    """Return the one results file a path stands for, with its rows graded. Raises Failure for
    several."""
    found = rows.find(path)
    if len(found) > 1:
        names = ", ".join(str(file) for file in found[:5])
        message = f"got {len(found)} results ({names}), expected one"
        raise findings.bad_input("EVAL-RESULTS-SEVERAL", path, message)
    graded, problems = read(found[0], options)
    return found[0], graded, problems


def read(path: Path, options: Options) -> tuple[list[Row], list[Finding]]:
    """Return the graded rows of a results file, and everything there is to say of them."""
    record = evaluation_record.read(path)
    recorded = _annotations_asked(path, record) if options.names_clips else ""
    graded, found = rows.read(path, options.annotations, recorded)
    task = record.get("task") or ""
    if task not in TASK_TYPES:
        known = ", ".join(name for name in TASK_TYPES if name)
        message = f"got task {task!r}, expected one of {known}; answers are read by the data"
        found.append(findings.warning("EVAL-TASK-UNKNOWN", path, message, BY_THE_DATA))
    # Before anything is graded: garbage would count as wrong answers of a sound model.
    _void_garbage(graded)
    asked_for = DIRECTIONS.get(options.type, options.type)
    if asked_for == "auto":
        asked_for = TASK_TYPES.get(task, "auto")
    found += grade(graded, asked_for, options.tolerance)
    prompt = record.get("prompt")
    answer_type = prompt.get("answer_type") if isinstance(prompt, dict) else None
    forms: dict[str, str] = {}
    for row in graded:
        if row.question not in forms:
            forms[row.question] = form_asked(row.question, answer_type == "letter")
        row.form = forms[row.question]
    if options.boxes:
        found += convert_boxes(graded, options.boxes, record.get("media_dir") or "")
    cut = evaluation_record.cut_answers(graded, record)
    if cut:
        first = next(row for row in graded if row.is_cut)
        cut += f"; row {first.id} ends with {(first.response or '')[-CUT_SHOWN:]!r}"
        fix = _longer(path, record)
        found.append(findings.warning("EVAL-CUT-SHORT", path, cut, fix))
    # A server may answer the next time, but for a reply whose tokens ended within its thoughts; a
    # clip that cannot be read stays one.
    failed = [row.error for row in graded if row.error]
    are_cut = bool(failed) and all(f"(finish_reason {CUT!r})" in error for error in failed)
    way_out = _longer(path, record) if are_cut else _again(path)
    if not rows.has_answers(graded):
        message = (
            f"got {len(graded)} rows and no answer, so there is no score; "
            f"the first failed with: {graded[0].error}"
        )
        found.append(findings.error("EVAL-ALL-FAILED", path, message, way_out))
    elif are_cut or any(_may_pass(error) for error in failed):
        found = [replace(one, fix=way_out) if one.id == "EVAL-ROW-FAILED" else one for one in found]
    vision = record.get("vision")
    if isinstance(vision, dict) and vision.get("videos_as"):
        message = (
            f"the server was sent videos as {vision['videos_as']}, without their times: not to be "
            "compared with answers to videos"
        )
        found.append(findings.warning("EVAL-ENDPOINT-IMAGES", path, message))
    return graded, found


def _may_pass(error: str) -> bool:
    """Return whether the same question may be answered when it is asked again: a server may answer
    the next time, but not what is too long for it, and a clip that cannot be read stays one."""
    if not error.startswith("EVAL-ENDPOINT-ANSWER") or "(finish_reason 'length')" in error:
        return False
    status = _HTTP_STATUS.search(error)
    return status is None or int(status[1]) in chat.TRANSIENT


def _again(path: Path) -> Fix:
    """Return the command that asks the questions that failed again; nothing where the results are
    of no job."""
    job = _job_of(path)
    if job is None:
        return Fix()
    words = ["scripts/launch_job.py", "retry", job.name, "--jobs-dir", str(job.parent)]
    return Fix(command=shlex.join(words))


def _annotations_asked(path: Path, record: dict) -> str:
    """Return the annotation file that the results' record, else the spec of their job, names; ''
    where it is not here."""
    named = record.get("annotations")
    job = _job_of(path)
    if not named and job and (job / JOB_SPEC).is_file():
        spec = job_folder.here(job, document.load(job / JOB_SPEC))
        named = document.get(spec, "dataset.annotation_path")
    return named if isinstance(named, str) and Path(named).is_file() else ""


def _void_garbage(graded: list[Row]) -> None:
    """Make errors of rows that all say one sign again and again ("!!!!"): a model whose numbers
    are not finite answers so, whoever loads it."""
    answered = [row for row in graded if row.error is None]
    sign = (answered[0].response or "").strip()[:1] if answered else ""
    if not sign or sign.isalnum() or len(answered) < FEWEST_ALIKE:
        return
    for row in answered:  # the first that says anything else ends the search
        said = "".join((row.response or "").split())
        if len(said) < FEWEST_SIGNS or said.strip(sign):
            return
    for row in answered:
        row.error = (
            f"{(row.response or '')[:8]!r} is all that the model says: its weights are broken"
        )
        row.response, row.is_cut = None, False


def longer(tokens: int) -> int:
    """Return how many tokens to allow where answers of so many were cut at the end."""
    return max(4 * tokens, 1024)


def _longer(path: Path, record: dict) -> Fix:
    """Return the command that makes a spec of longer answers of that of the job whose results these
    are; nothing where they are of no job."""
    changes = {MAX_TOKENS: longer(evaluation_record.max_tokens(record) or 0)}
    job = _job_of(path)
    job_record = model_names.read_table(job / JOB_FILE) if job else {}
    written = document.get(job_record, "spec.source")
    if not isinstance(written, str) or not Path(written).name:
        return Fix()
    source = Path(written)
    target = source.with_name(f"{source.stem}-longer.toml")
    words = ["scripts/build_spec.py", str(job_record.get("action", "evaluate"))]
    words += ["--spec", files.from_here(source), "-o", files.from_here(target)]
    return Fix(changes=changes, command=shlex.join(words))


def _job_of(path: Path) -> Path | None:
    """Return the folder of the job whose results lie at the path, those of a guard or of one of
    several checkpoints too; None where they are of no job."""
    above = path.absolute().parents[1:MOST_ABOVE]
    return next((folder for folder in above if (folder / JOB_FILE).is_file()), None)


def form_asked(question: str, adds_letter: bool = False) -> str:
    """Return the form that a prompt asks the answer in, one of FORMS or "any"; `adds_letter` says
    that the evaluation asked for the letter wherever there are options."""
    lowered = question.lower()  # quicker than patterns without case
    for name, words, pattern in _FORMS:
        for word in words:
            if word in lowered and pattern.search(lowered):
                return name
    return "letter" if adds_letter and answers.options(question) else ANY_FORM


def grade(graded: list[Row], type: str = "auto", tolerance: float = 0.0) -> list[Finding]:
    """Give each row its type (`type`, or what the data show), the answer in its response, and
    whether that is right.

    Returns a finding about ground truths that cannot be read as the type asked for."""
    by_question = defaultdict(list)  # what a question offers is read once for all of its rows
    for row in graded:
        by_question[row.question].append(row)
    for members in by_question.values():
        for row in members:
            _grade_row(row, type, (), tolerance)
    # A second look: which few texts are labels shows only once all rows have been read.
    if type in ("auto", "label"):
        for members, labels in _closed_sets(graded):
            for row in members:
                _grade_row(row, "label", labels, tolerance)
    unread = [row.id for row in graded if row.lacks_truth]
    message = "row(s) whose ground truth is no answer of their type; they count as wrong"
    fix = BY_THE_DATA
    if type == "auto":
        message += "; correct the answers of these records in the annotations"
        fix = ""
    return rows.about(unread, "EVAL-GT-TYPE", findings.ERROR, "rows", message, fix)


def _grade_row(row: Row, type: str, labels: tuple[str, ...], tolerance: float) -> None:
    verdict = answers.verdict(row.question, row.gt, row.response, type, labels, tolerance)
    row.type, row.expected, row.answer, row.rule, _, is_right, row.overlap, row.parts = verdict
    row.labels = labels
    row.correct = row.error is None and is_right


def words_read(row: Row) -> str:
    """Return the words of a graded row's response that its answer was read from, or that hold
    none."""
    return answers.verdict(row.question, row.gt, row.response, row.type, row.labels).words


def _closed_sets(graded: list[Row]) -> list[tuple[list[Row], tuple[str, ...]]]:
    """Return the rows to be read as type `label`, with their labels: those of a question asked
    often whose ground truths are few and short, and the texts among all rarely asked questions
    together."""
    closed = []
    for members in _sets_of_texts(graded):
        counts = Counter(answers.normalise(row.gt, "label") for row in members)
        # Ground truths that are few and short enough to be the labels of a closed set.
        most = min(MAX_LABELS, len(members) // MIN_ROWS_PER_LABEL)
        is_closed = 2 <= len(counts) <= most and all(
            text and len(text) <= MAX_LABEL_CHARACTERS and len(text.split()) <= MAX_LABEL_WORDS
            for text in counts
        )
        if is_closed or members[0].type == "label":
            closed.append((members, tuple(sorted(label for label in counts if label))))
    return closed


def _sets_of_texts(graded: list[Row]) -> list[list[Row]]:
    """Return sets of rows that may have closed sets of labels: the rows of each often asked
    question with a free text among its answers, and one of all other free texts."""
    questions = {row.question for row in graded if _is_text(row)}
    if not questions:
        return []
    times_asked = Counter(row.question for row in graded if row.question in questions)
    by_question = defaultdict(list)
    rare = []
    for row in graded:
        if row.question and times_asked[row.question] >= MIN_ROWS_PER_QUESTION:
            by_question[row.question].append(row)
        elif _is_text(row):
            rare.append(row)
    sets = list(by_question.values())
    return [*sets, rare] if rare else sets


def _is_text(row: Row) -> bool:
    """Return whether its ground truth may be one of a few labels; JSON and several numbers are
    none."""
    return row.type == "label" or (row.type == "text" and answers.exact(row.gt) is None)


def convert_boxes(graded: list[Row], written: str, media_dir: str) -> list[Finding]:
    """Grade boxes again after conversion by the size of each medium; `written` is the measure of
    the responses. Those of unknown size count as unparseable."""
    sizes: dict[str, tuple[int, int] | None] = {}
    unknown = []
    for row in graded:
        if row.type not in answers.PICTURE_TYPES or not row.answer:
            continue
        if "pixels" not in BOX_MEASURES[written]:
            _convert_box(row, written, (1, 1))
            continue
        name = row.media or ""
        if name not in sizes:
            sizes[name] = _size(media_dir, name)
        if sizes[name] is None:
            row.answer = None
            row.overlap, row.parts = 0.0, None
            row.correct = False
            row.rule = "size of the medium unknown"
            unknown.append(row.id)
        else:
            _convert_box(row, written, sizes[name])
    folder = media_dir or "a known folder"
    message = f"row(s) whose medium is not below {folder}, so that their boxes cannot be converted"
    message += "; score where the evaluation's media are, or without --boxes"
    return rows.about(unknown, "EVAL-BOX-SIZE", findings.ERROR, "--boxes", message, "")


def _convert_box(row: Row, written: str, size: tuple[int, int]) -> None:
    said, meant = BOX_MEASURES[written]
    factors = []  # which turn responses into the measure of the ground truths
    for side in size:
        wide = [side if measure == "pixels" else measure for measure in (said, meant)]
        factors.append(wide[1] / wide[0])
    row.answer = answers.rescaled(row.answer, row.type, *factors)
    row.overlap, row.parts = answers.score(row.answer, row.expected, row.type)
    row.correct = row.error is None and answers.equal(row.answer, row.expected, row.type)


def _size(media_dir: str, name: str) -> tuple[int, int] | None:
    """Return width and height of a medium; None when it cannot be read here."""
    try:
        found = located.source(Media("video", name), partial(located.place, media_dir))
        facts = media.probe(located.local(found))
    except Failure:
        return None
    return facts.width, facts.height
