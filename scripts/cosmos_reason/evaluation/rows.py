"""Results of an evaluation as rows, in every form they come in: ours, TAO's, JSON lines, Reason1's.

Nothing is left out: a row that cannot be scored stays, counts as wrong, and is named in a finding.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern

from cosmos_reason.base import files, findings, texts
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import annotations
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_tables import columns_of
from cosmos_reason.data.records import TAG
from cosmos_reason.data.samples import Question
from cosmos_reason.data.table_files import FLAT, flat_rows
from cosmos_reason.evaluation import batches, reason1
from cosmos_reason.evaluation.offered import Offered
from cosmos_reason.remote import s3

GUARD = "guard"  # the folder, beside its results, of what an evaluation asked besides
FIELDS = ("id", "video_id", "media", "question", "gt", "response", "error")
# Beside these `answer` is the ground truth; beside `response` it may be what was read in it.
PREDICTED = (
    "prediction", "predict", "pred", "predicted_label", "output", "generated_text", "model_output",
    "hypothesis", "completion",
)  # fmt: skip
NAMED = 'name them "id", "question", "gt" (the ground truth) and "response" in each row'
OTHER_NAMES = {  # of TAO and Reason1, then of other evaluators and trainers
    "id": ("question_id", "index", "doc_id"),
    "question": ("prompt", "input"),
    "gt": (
        "ground_truth", "correct_answer", "label", "labels", "target", "reference", "references",
        "expected", "true_label", "gold", "gts",
    ),
    "response": ("full_response", *PREDICTED),
}  # fmt: skip
# Rows of these are written by an evaluation of ours, and are read many at once.
PLAIN_KEYS = {*FIELDS, "answer", "type", "correct", "read", "vision_tokens", "is_cut"}
MANY_FROM = 1 << 24  # bytes: Arrow takes 0.1 s to start, which a smaller file does not save
HOLDING_ROWS = frozenset(("custom_id", "questions", "0"))  # see _rows_in
RESPONSES = frozenset(("response", *OTHER_NAMES["response"]))
FILTERED = "filtered_resps"  # of lm-evaluation-harness and lmms-eval: a list of one response
# Key of the turns that were asked, the role of one that asks, and the key of its text.
PROMPTS = (("messages", "user", "content"), ("origin_prompt", "HUMAN", "prompt"))
ERROR_SHOWN = 200
PROBLEMS = {  # finding id -> severity, what is said after the number of rows
    "EVAL-GT-MISSING": (
        findings.ERROR,
        "without ground truth; they count as wrong. Evaluate on annotations with answers",
    ),
    "EVAL-ROW-TYPE": (
        findings.ERROR,
        "that are no object of texts; they count as wrong. Write the fields as text",
    ),
    "EVAL-ROW-ODD": (
        findings.WARNING,
        "with a repeated key or a number that is not JSON. Write each key once, no NaN",
    ),
    "EVAL-ROW-FAILED": (
        findings.WARNING,
        "that failed in the evaluation; they count as wrong. `error` in each row says why",
    ),
    "EVAL-RESPONSE-MISSING": (
        findings.WARNING,
        "without response or error; they count as failed. Evaluate them again",
    ),
    "EVAL-ROW-TAGS": (
        findings.WARNING,
        'whose tags or groups are no list of texts. Write "tags": ["night", ...]',
    ),
    "EVAL-ID-MISSING": (findings.ERROR, "without id or video_id. Give each row a unique `id`"),
    "EVAL-ID-DUPLICATE": (
        findings.ERROR,
        "whose id another row has; all of them count. Give each row a unique `id`",
    ),
    "EVAL-ROW-TWICE": (
        findings.WARNING,
        "without ids that ask of a clip what a row before them asks; all of them count. Where an "
        "evaluation was resumed, leave out one of each",
    ),
}

JUDGE = "judge"  # the `rule` of a row that a judge read (judge.py)


@dataclass(slots=True)
class Row:
    """One question and what became of it.

    The fields up to `tags` are as the results have them, and so are `groups` and `is_cut`
    (max_tokens ended the response); `error` says why a row failed. The others are set by
    grading.py: `expected` and `answer` are the ground truth and the answer in the form of their
    type, `rule` names what read the answer, `overlap` is that of spans and boxes and the score of
    sets, `labels` are those that could be answered, `form` is the one that the prompt asked for.
    `choice` is the probability of each answer that was weighed, where the evaluation asked so;
    `parts` are the measures of a set of places or of a grade.
    """

    id: str
    video_id: str
    media: str | None
    question: str
    gt: str
    response: str | None
    error: str | None
    tags: tuple[str, ...] = ()
    type: str = "text"
    expected: str | None = None
    answer: str | None = None
    correct: bool = False
    rule: str = ""
    overlap: float | None = None
    labels: tuple[str, ...] = ()
    is_cut: bool = False
    form: str = ""
    choice: dict[str, float] | None = None
    parts: dict[str, float] | None = None
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, question: Question, response: str | None, error: str | None = None) -> Row:
        """Return the row of a question that was asked here."""
        sample = question.sample
        media = sample.media[0].path if sample.media else None
        asked = (question.id, sample.id, media, question.text, question.gt)
        return cls(*asked, response, error, sample.tags, groups=sample.groups)

    @property
    def read(self) -> str | None:
        """Return committed or unread, as the rules read the response; None for a row that
        failed."""
        if self.error is not None:
            return None
        return "unread" if self.answer is None or self.rule == JUDGE else "committed"

    @property
    def lacks_truth(self) -> bool:
        """Return whether it has a ground truth that is no answer of its type."""
        return bool(self.gt) and self.expected is None

    @property
    def outcome(self) -> str:
        """Return right, wrong, unparseable or failed."""
        if self.error is not None:
            return "failed"
        if self.answer is None:
            return "unparseable"
        return "right" if self.correct else "wrong"


def find(path: Path) -> list[Path]:
    """Return the results a path stands for: itself, the results files below it, or itself as a
    folder of Reason1 results. Raises Failure when there are none."""
    if path.is_file():
        return [path]
    if not path.exists():
        message = "nothing is there; name a results file or a folder with one"
        raise findings.bad_input("EVAL-NO-RESULTS", path, message)
    named = sorted([*path.rglob("results.json"), *path.rglob("results.jsonl")])
    found = []
    for file in named:
        if file.parent == path or not is_guard(file):
            found.append(file)
    if found:
        return found
    if any(path.rglob("*.json")):
        return [path]
    message = "the folder holds no results.json"
    raise findings.bad_input("EVAL-NO-RESULTS", path, message)


def is_guard(path: Path) -> bool:
    """Return whether results are those of general questions, beside the results of an
    evaluation."""
    folder = folder_of(path).absolute()
    return folder.name == GUARD and (folder.parent / "results.json").is_file()


def guard_of(path: Path) -> Path | None:
    """Return the results of the general questions that were asked with those at `path`, if they
    were."""
    guard = folder_of(path) / GUARD / "results.json"
    return guard if guard.is_file() else None


def folder_of(path: Path) -> Path:
    """Return the folder that results at `path` lie in: itself, when it is a folder of Reason1
    results."""
    return path if path.is_dir() else path.parent


def read(path: Path, asked_of: str = "", recorded: str = "") -> tuple[list[Row], list[Finding]]:
    """Return the rows of a results.json (ours or TAO's), a JSON lines file, the output of a batch
    or a Reason1 folder, and what is wrong with them. Rows without ground truths take them, by their
    ids, from the annotations `asked_of`; the questions there that no row answers are rows, too.
    Where none are given, those that the `recorded` evaluation asked name the clips of rows that
    name none.

    Raises Failure when there is nothing to read, a file is cut off, or what it holds are no
    results."""
    table = _Table(path, asked_of)
    table.recorded = "" if asked_of else recorded
    table.fill()
    if not table.rows:
        raise findings.bad_input("EVAL-NO-ROWS", path, "it holds no rows")
    # Annotations or settings, named by mistake, would else be scored as all wrong.
    if not table.are_results():
        raise table.no_results()
    found = [*table.offered.put_into(table.rows), *table.as_findings()]
    return table.rows, [*found, *table.put_clips()]


def has_answers(rows: list[Row]) -> bool:
    """Return whether a row did not fail: without one there is nothing to score or to compare."""
    return any(row.error is None for row in rows)


def digest(rows: Sequence[Row]) -> str:
    """Return what is equal for runs of the same questions and ground truths."""
    asked = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row.id):
        asked.update(repr((row.id, row.question, row.gt)).encode())
    return asked.hexdigest()[:16]


def about(
    ids: list[str], id: str, severity: str, where: object, message: str, fix: Fix | str = ""
) -> list[Finding]:
    """Return one finding about records, which `message` describes after their number; none without
    records."""
    if not ids:
        return []
    first, data = f"{where}#{ids[0]}", findings.counted(ids)
    return [Finding(id, severity, first, f"{len(ids)} {message}", fix, data)]


class _Table:
    """Rows being read, and the ids of those with a problem by the id of its finding."""

    def __init__(self, path: Path, asked_of: str = ""):
        self.path = path
        self.asked_of = asked_of
        self.recorded = ""
        self.is_batch = False
        self.takes_truths = False
        self.offered = Offered()
        self.rows: list[Row] = []
        self.ids: set[str] = set()
        self.made: set[int] = set()  # what rows without ids ask, as hashes
        self.repetitions: Counter[str] = Counter()
        self.first_record = ""  # in words
        self.ids_by_problem: dict[str, list[str]] = defaultdict(list)
        self._shared = {}.setdefault  # one object for equal texts

    def fill(self) -> None:
        """Read all rows of a Reason1 folder or a file, and those of questions that have none."""
        is_table = self.path.name.lower().endswith(FLAT)
        if self.path.is_dir() or is_table:
            for record in flat_rows(self.path) if is_table else reason1.items(self.path):
                self.add(record)
        else:
            is_large = self.path.is_file() and self.path.stat().st_size >= MANY_FROM
            records = JsonRecords(self.path, _plain_rows if is_large else None)
            for record in records:
                if isinstance(record, _PlainRows):
                    for values, is_cut in record:
                        self._append(values, is_cut)
                elif isinstance(record, dict) and HOLDING_ROWS.isdisjoint(record):
                    self.add(record)
                else:
                    self.is_batch = self.is_batch or batches.is_line(record)
                    for row in _rows_in(record):
                        self.add(row)
                if records.oddities:
                    self.ids_by_problem["EVAL-ROW-ODD"].append(self.rows[-1].id)
                    records.oddities.clear()
        if self.takes_truths:
            for id in self.asked:
                if id not in self.ids:
                    self.add({"id": id})

    @functools.cached_property
    def asked(self) -> dict[str, Question]:
        """Return the questions of the annotations, which are read when a row needs one, by their
        ids."""
        if not self.asked_of:
            return {}
        samples, problems = annotations.read(self.annotations)
        if findings.has_errors(problems):
            raise Failure(problems, findings.EXIT_BAD_INPUT)
        return {question.id: question for sample in samples for question in sample.questions()}

    @functools.cached_property
    def annotations(self) -> Path:
        if s3.is_uri(self.asked_of):
            return annotations.fetch(self.asked_of)[1]
        path = annotations.locate(self.asked_of)
        files.check_regular(path)
        return path

    @functools.cached_property
    def tells_parts(self) -> bool:
        """Return whether the annotations may hold tags or groups, which rows that have all else
        take from them: without a sign of these a million records need not be read."""
        path = self.annotations
        # The conversations of a meta.json are files of their own.
        if path.name == "meta.json" or not path.stat().st_size:
            return True
        with (
            open(path, "rb") as handle,
            mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            return text.find(b'"tags"') >= 0 or text.find(b'"groups"') >= 0

    def add(self, record: object) -> None:
        problems = []
        kind = type(record).__name__
        if not self.first_record:
            names = list(record)[:10] if isinstance(record, dict) else [kind]
            self.first_record = ", ".join(names)
        if not isinstance(record, dict):
            problems.append(f"got {kind}, expected an object")
            record = {}
        values = _texts(record, problems)
        tags, groups = record.get("tags"), record.get("groups")
        if self.asked_of and not (values[2] and values[4] and not self.tells_parts):
            values, tags, groups = self._with_truth(values, tags, groups)
        listed_in = values[3] or "" if FILTERED in record else ""
        self.offered.take(len(self.rows), record, TAG.sub("", listed_in))
        row = self._append(values, record.get("is_cut") is True, problems)
        if tags:
            row.tags = self._tags(row.id, tags)
        if groups:
            row.groups = self._tags(row.id, groups)
        if "choice" in record:
            row.choice = _probabilities(record["choice"])

    def _append(
        self, values: Sequence[str | None], is_cut: bool, problems: Sequence[str] = ()
    ) -> Row:
        """Add a row of the values of FIELDS; what is wrong with it is noted for the findings."""
        given_id, video_id, media, question, gt, response, error = values
        row_id = given_id
        if not row_id or row_id in self.ids:
            row_id = self._made_id(given_id, video_id or media)
        # Without its question or its clip a row may ask anything.
        if given_id is None and question and (video_id or media):
            asked = hash((video_id, media, question, gt))
            if asked in self.made:
                self.ids_by_problem["EVAL-ROW-TWICE"].append(row_id)
            self.made.add(asked)
        self.ids.add(row_id)
        if problems or error is not None or not gt or response is None:
            error = self._error(row_id, gt, response, error, [*problems])
        question = question or ""
        if "<" in question:
            question = TAG.sub("", question)  # <video> and <image>
        shared = self._shared
        row = Row(
            row_id,
            row_id if not video_id or video_id == row_id else shared(video_id, video_id),
            shared(media, media),
            shared(question, question),
            shared(gt or "", gt or ""),
            shared(response, response),
            error,
        )
        if is_cut:
            row.is_cut = True
        self.rows.append(row)
        return row

    def _with_truth(
        self, values: list[str | None], tags: object, groups: object
    ) -> tuple[list, object, object]:
        """Return the values of FIELDS, the tags and the groups of a row. The question of its id
        says what it leaves out, its ground truth and its question among that."""
        given_id, video_id, media, question, gt, response, error = values
        truth = self.asked.get(given_id or video_id or "")
        if truth is None:
            return values, tags, groups
        sample = truth.sample
        if sample.media:
            media = media or sample.media[0].path
        if gt:
            values = [given_id, video_id, media, question, gt, response, error]
        else:
            self.takes_truths = True
            values = [truth.id, sample.id, media, truth.text, truth.gt, response, error]
        return values, tags or list(sample.tags), groups or list(sample.groups)

    def _made_id(self, given_id: str | None, video_id: str | None) -> str:
        """Return an id for a row without one of its own. TAO's rows have only the annotation's, so
        that the later questions of a record become `<id>#2` and so on."""
        row_id = given_id or video_id
        if row_id is None:
            row_id = f"row-{len(self.rows)}"
            self.ids_by_problem["EVAL-ID-MISSING"].append(row_id)
        elif row_id in self.ids:
            if given_id is not None:
                self.ids_by_problem["EVAL-ID-DUPLICATE"].append(row_id)
            first = row_id
            while row_id in self.ids:
                self.repetitions[first] += 1
                row_id = f"{first}#{self.repetitions[first] + 1}"
        return row_id

    def _error(
        self,
        row_id: str,
        gt: str | None,
        response: str | None,
        error: str | None,
        problems: list[str],
    ) -> str | None:
        """Return why the row cannot count as right, noted for the findings."""
        if problems:
            self.ids_by_problem["EVAL-ROW-TYPE"].append(row_id)
        elif error:
            self.ids_by_problem["EVAL-ROW-FAILED"].append(row_id)
        if not gt:
            self.ids_by_problem["EVAL-GT-MISSING"].append(row_id)
            problems.append("no ground truth")
        if response is None and not error and not problems:
            self.ids_by_problem["EVAL-RESPONSE-MISSING"].append(row_id)
            problems.append("no response")
        return error or "; ".join(problems) or None

    def _tags(self, row_id: str, given: object) -> tuple[str, ...]:
        """Return each tag or group once; one text counts as a list of it."""
        written = given if isinstance(given, list) else [given]
        tags = [tag for tag in written if isinstance(tag, str)]
        if not isinstance(given, list) or len(tags) < len(given):
            self.ids_by_problem["EVAL-ROW-TAGS"].append(row_id)
        return tuple(intern(tag) for tag in dict.fromkeys(tags))

    def are_results(self) -> bool:
        """Return whether there is a row with ground truth and response, or one whose evaluation
        failed."""
        if self.is_batch and not any(row.gt for row in self.rows):
            return False
        if self.ids_by_problem["EVAL-ROW-FAILED"]:
            return True
        return any(row.gt and row.response is not None for row in self.rows)

    def no_results(self) -> Failure:
        """Return why what was read are no results."""
        message = (
            f"none of {len(self.rows)} record(s) has ground truth and response as text; "
            f"the first: {self.rows[0].error}, in a record of {self.first_record}"
        )
        fix = Fix()
        if self.asked:
            theirs, ours = self.rows[0].id, next(iter(self.asked))
            message = (
                f"its ids such as {theirs} are not those of the annotations, such as {ours}; "
                "give each request the id of its question"
            )
        elif self.is_batch:
            message = f"its {len(self.rows)} lines are a batch's, which hold no ground truths"
            fix = Fix(flags={"--annotations": "ANNOTATIONS"})
        else:
            message += f"; {NAMED}"
        return findings.bad_input("EVAL-NOT-RESULTS", self.path, message, fix)

    def put_clips(self) -> list[Finding]:
        """Name the clips of rows that name none, as TAO's, by the annotations that the evaluation's
        record names; return what to say of that. Ground truths stay the results' own."""
        unnamed = [row for row in self.rows if not row.media]
        if not unnamed or not self.recorded:
            return []
        try:
            samples, problems = annotations.read(Path(self.recorded))
        except Failure:
            return []  # whoever needs them names others
        if findings.has_errors(problems):
            return []
        asked = {question.id: question for one in samples for question in one.questions()}
        named = 0
        for row in unnamed:
            question = asked.get(row.id)
            if question and question.sample.media and (not row.gt or row.gt == question.gt):
                row.media = question.sample.media[0].path
                named += 1
        message = f"row(s) name no clip; {named} have it from {self.recorded}, which was asked"
        ids = [row.id for row in unnamed] if named else []
        return about(ids, "EVAL-CLIPS-RECORDED", findings.INFO, self.path, message)

    def as_findings(self) -> list[Finding]:
        found = []
        for id, row_ids in self.ids_by_problem.items():
            severity, message = PROBLEMS[id]
            if id == "EVAL-ID-MISSING" and len(row_ids) == len(self.rows):
                severity = findings.INFO
                message = "without ids, which get names by their numbers: row-0, ..."
            if row_ids and id == "EVAL-ROW-FAILED":
                failed = set(row_ids)
                errors = Counter(row.error for row in self.rows if row.id in failed)
                commonest = " ".join(errors.most_common(1)[0][0].split())
                message += f". The commonest: {texts.shortened(commonest, ERROR_SHOWN)}"
            found += about(row_ids, id, severity, self.path, f"row(s) {message}")
        return found


class _PlainRows(list):
    """(values of FIELDS, whether max_tokens ended the response) of rows in which nothing else could
    take the place of a value."""


def _plain_rows(lines: str, comma: str, _: int) -> _PlainRows | None:
    """Return the rows of whole lines, each one of ours; None where a line may be another."""
    import pyarrow as arrow

    columns = columns_of(lines, comma, dict.fromkeys(FIELDS, arrow.string()))
    if columns is None or not columns.keys() <= PLAIN_KEYS:
        return None
    *said, errors = (columns[name] for name in FIELDS)
    if any(column.null_count for column in said) or errors.null_count < len(errors):
        return None
    cut = [False] * len(errors)
    if "is_cut" in columns:
        cut = [value is True for value in columns["is_cut"].to_pylist()]
    values = zip(*(column.to_pylist() for column in (*said, errors)), strict=True)
    return _PlainRows(zip(values, cut, strict=True))


def _rows_in(record: object) -> list:
    """Return the record, or the questions of a video with their responses, as Video-MME's tools
    write them, what a line of a batch's output holds, or the rows of OpenCompass by their
    numbers."""
    if batches.is_line(record):
        return [batches.as_row(record)]
    if isinstance(record, dict) and "0" in record:
        rows = record.values()
        if all(isinstance(row, dict) and not RESPONSES.isdisjoint(row) for row in rows):
            return [{"id": name} | one for name, one in record.items()]
    asked = record.get("questions") if isinstance(record, dict) else None
    if not isinstance(asked, list):
        return [record]
    if not all(isinstance(one, dict) and "response" in one for one in asked):
        return [record]
    beside = {key: value for key, value in record.items() if key != "questions"}
    return [beside | {"gt": one.get("answer")} | one for one in asked] or [record]


def _texts(record: dict, problems: list[str]) -> list[str | None]:
    """Return the values of FIELDS as text; what is none is noted in `problems`."""
    values = {name: record.get(name) for name in FIELDS}
    for name, other_names in OTHER_NAMES.items():
        for other in other_names:
            if values[name] is not None:
                break
            values[name] = record.get(other)

    # lm-evaluation-harness and lmms-eval: the question may stand in the document.
    if values["response"] is None and FILTERED in record:
        values["response"] = _only_one(record[FILTERED])
        document = record.get("doc")
        if values["question"] is None and isinstance(document, dict):
            values["question"] = document.get("question")

    # Video-ChatGPT's rows have `Q` and `A`, those of ms-swift and OpenCompass turns.
    if values["question"] is None and "Q" in record:
        values["question"] = record["Q"]
        if values["gt"] is None:
            values["gt"] = record.get("A")
    for name, role, text in PROMPTS:
        turns = record.get(name) if values["question"] is None else None
        if isinstance(turns, str):
            values["question"] = turns
        elif isinstance(turns, list):
            said = []
            for turn in turns:
                if isinstance(turn, dict) and turn.get("role") == role:
                    said.append(turn.get(text))
            values["question"] = said[-1] if said and isinstance(said[-1], str) else None

    # `answer` is the ground truth beside PREDICTED, and beside a ground truth the response, unless
    # the record says that there is none: a wrong guess here would score nothing as something.
    if values["gt"] is None:
        if any(name in record for name in PREDICTED):
            values["gt"] = record.get("answer")
    elif values["response"] is None and "response" not in record:
        values["response"] = record.get("answer")

    values["gt"] = _only_one(values["gt"])
    return [_text(name, value, problems) for name, value in values.items()]


def _probabilities(given: object) -> dict[str, float] | None:
    """Return what an evaluation by likelihood weighed; None for anything else of that name."""
    if not isinstance(given, dict) or not given:
        return None
    for value in given.values():
        if type(value) not in (int, float) or not 0 <= value <= 1:
            return None
    return given if sum(given.values()) > 0 else None


def _only_one(given: object) -> object:
    """Return the text in a list of one, which may be a list again; several are no text."""
    while isinstance(given, list) and len(given) == 1:
        given = given[0]
    return given


def _text(name: str, value: object, problems: list[str]) -> str | None:
    """Return a value as text that UTF-8 can hold; None, noted in `problems`, for what is neither a
    text nor a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        problems.append(f"got {type(value).__name__} as {name}, expected text")
        return None
    return str(value).encode("utf-8", "replace").decode("utf-8")
