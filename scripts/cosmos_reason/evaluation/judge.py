"""A judge: a server that says what an answer commits to where the rules cannot tell. It is asked
only with --judge.

Its prompt is judge_prompt.txt. What it replied stands in judge.jsonl beside the results, by a
digest of everything that was sent, so that nothing is asked twice; what that meant stands in each
row as `judge`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from cosmos_reason import answers
from cosmos_reason.answers.choices import DIRECTIONS
from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.evaluation import line_log
from cosmos_reason.evaluation.rows import JUDGE, Row, folder_of
from cosmos_reason.remote.chat import ChatServer

FILE = "judge.jsonl"
TIMEOUT = 300.0  # seconds
CONCURRENCY = 8
MAX_TOKENS = 1024
LONGEST_ANSWER = 8000  # characters; the end of a longer one is sent, where it commits itself
UNDECIDED, SAME, OTHER = "UNDECIDED", "SAME", "OTHER"
MEANING = {
    SAME: "the answer says what the correct answer says",
    OTHER: "the answer says something else",
}
CHOICES = {"yes_no": ("yes", "no"), "direction": DIRECTIONS}
# Judged as SAME or OTHER where there are no choices.
COMPARED = ("mcq", "label", "number", "ordinal", "text")
EDGES = " \t\r\n.,;:!?()[]<>{}'\"“”*_`#"
_VERDICT = re.compile(r"verdict\W*", re.IGNORECASE)
_EXPLAINED = re.compile(r"\s*[(:].*|\.\s.*", re.DOTALL)  # "B (the red one)", "B. red"


@dataclass(frozen=True)
class Case:
    """A row that the judge is asked about: the part of its response that answers, and verdict ->
    what it stands for."""

    row: Row
    answer: str
    choices: dict[str, str]

    def prompt(self) -> str:
        lines = []
        for verdict, meaning in self.choices.items():
            lines.append(f"{verdict}: {meaning}" if meaning else verdict)
        return _template().format(
            question=self.row.question.strip(),
            choices="\n".join(lines),
            gt=answers.final_answer(self.row.gt) or self.row.gt,
            answer=json.dumps(self.answer[-LONGEST_ANSWER:], ensure_ascii=False),
            verdicts=", ".join([*self.choices, UNDECIDED]),
        )


class Reply(NamedTuple):
    """What came of a request: its key, and the text or why there is none."""

    key: str
    text: str | None
    problem: str = ""


class Judge:
    """`model` of the OpenAI-compatible server at `url`, with the key in the environment variable
    `key_variable`."""

    def __init__(self, url: str, model: str, key_variable: str):
        self.model = model
        self.key_variable = key_variable
        self.url = self.server(url).url

    def server(self, url: str) -> ChatServer:
        return ChatServer(url, "--judge", "--judge-model", self.key_variable, TIMEOUT, CONCURRENCY)

    def settings(self) -> dict[str, str]:
        """Return what a score depends on, by flag."""
        return {"judge": self.url, "judge-model": self.model}

    def read(self, rows: list[Row], path: Path) -> tuple[dict, list[Finding]]:
        """Read the rows of results at `path` that the rules could not: `answer`, `correct` and
        `rule` of those rows change, no others. Returns what metrics.json tells of it, and what
        there is to say.

        Raises Failure (exit 3) when the judge is out of reach, refuses, or answers nothing; what it
        replied is kept."""
        right_by_rules = sum(row.correct for row in rows)
        cases = []
        for row in rows:
            case = case_of(row)
            if case:
                cases.append(case)
        keys = [self.key(case) for case in cases]
        texts, problems = self.ask(dict(zip(keys, cases, strict=True)), folder_of(path) / FILE)
        verdicts = {}
        failed = []
        for key, case in zip(keys, cases, strict=True):
            if key in texts:
                verdicts[case.row.id] = verdict_of(texts[key], case.choices)
                settle(case, verdicts[case.row.id])
            else:
                failed.append(case.row.id)
        self.store(rows, verdicts, path)
        judged = [case.row for case in cases if case.row.rule == JUDGE]
        right = sum(row.correct for row in judged)
        summary = {
            "url": self.url,
            "model": self.model,
            "prompt": prompt_id(),
            "asked": len(cases),
            "right": right,
            "wrong": len(judged) - right,
            "undecided": len(cases) - len(judged) - len(failed),
            "failed": len(failed),
            "accuracy_by_rules": round(right_by_rules / len(rows), 6),
        }
        return summary, self.as_findings(summary, failed, problems, path)

    def key(self, case: Case) -> str:
        """Return a digest of what is sent, and of where it goes."""
        return hashlib.sha256(json.dumps([self.url, self.body(case)]).encode()).hexdigest()[:32]

    def body(self, case: Case) -> dict:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": case.prompt()}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }

    def ask(self, cases: dict[str, Case], file: Path) -> tuple[dict[str, str], list[str]]:
        """Return the texts of the replies by key, those in `file` and new ones, which are added to
        it as they come; and why others are missing."""
        texts = {}  # those of earlier runs
        for line in line_log.read(file):
            key, text = line.get("key"), line.get("reply")
            if isinstance(key, str) and isinstance(text, str):
                texts[key] = text
        missing = [key for key in cases if key not in texts]
        if not missing:
            return texts, []
        server = self.server(self.url)
        with server.connected():
            server.check_model(self.model)

        def ask_one(key: str) -> Reply:
            try:
                return Reply(key, server.complete(self.body(cases[key])).text)
            except Failure as problem:
                if problem.exit_code == findings.EXIT_OUTSIDE:
                    raise
                return Reply(key, None, str(problem))

        problems = []
        for batch in server.each(ask_one, missing):
            received = {reply.key: reply.text for reply in batch if reply.text is not None}
            line_log.append(file, [{"key": key, "reply": received[key]} for key in received])
            texts |= received
            problems += [reply.problem for reply in batch if reply.text is None]
        if not any(key in texts for key in cases):
            message = (
                f"the judge replied to none of {len(missing)} requests; the first: {problems[0]}"
            )
            raise findings.outside("EVAL-JUDGE-FAILED", self.url, message, server.as_given)
        return texts, problems

    def as_findings(
        self, summary: dict, failed: list[str], problems: list[str], path: Path
    ) -> list[Finding]:
        message = (
            f"{summary['asked']} row(s), which the rules could not read, were put to {self.model} "
            f"at {self.url}: {summary['right']} right, {summary['wrong']} wrong, "
            f"{summary['undecided']} undecided; no other row was. Accuracy is "
            f"{summary['accuracy_by_rules']:.1%} by the rules alone, which the gaps go by"
        )
        found = [findings.info("EVAL-JUDGED", path, message)]
        if failed:
            message = (
                f"the judge did not reply about {len(failed)} row(s), which stay as the rules left "
                f"them: {problems[0]}. Run it again: only these are asked"
            )
            data = findings.counted(failed)
            found.append(findings.warning("EVAL-JUDGE-FAILED", path, message, **data))
        return found

    def store(self, rows: list[Row], verdicts: dict[str, str | None], path: Path) -> None:
        """Note the verdicts, by row id, in the rows of a results file. The files of a Reason1
        folder are another tool's and stay as they are."""
        if path.is_dir():
            return
        records = list(JsonRecords(path))
        if len(records) != len(rows):
            return  # another evaluation has ended in the meantime
        changed = False
        for row, record in zip(rows, records, strict=True):
            if not isinstance(record, dict):
                continue
            noted = None
            if row.id in verdicts:
                noted = {"model": self.model, "prompt": prompt_id(), "verdict": verdicts[row.id]}
            if record.get("judge") != noted:
                changed = True
                record["judge"] = noted
        if changed:
            text = _as_text(path, records, ascii_only=False)
            try:
                text.encode()
            except UnicodeEncodeError:  # halves of surrogate pairs
                text = _as_text(path, records, ascii_only=True)
            files.write_text(path, text)


def case_of(row: Row) -> Case | None:
    """Return the case of a row that the rules cannot read: one that is unparseable though it
    answered something, or free text that is not the ground truth's. None for every other row."""
    is_other_text = row.type == "text" and row.outcome == "wrong"
    if row.outcome != "unparseable" and not is_other_text:
        return None
    answer = answers.final_answer(row.response or "")
    choices = choices_of(row)
    if not answer or not choices or not row.expected:
        return None
    return Case(row, answer, choices)


def choices_of(row: Row) -> dict[str, str]:
    """Return verdict -> what it stands for; empty for spans of time and boxes, which are measured
    and not judged."""
    if row.type in CHOICES:
        return dict.fromkeys(CHOICES[row.type], "")
    if row.type == "label" and row.labels:
        return dict.fromkeys(row.labels, "")
    if row.type == "mcq":
        offered = answers.options(row.question)
        if offered:
            return offered
        if row.labels:
            return dict(zip(ascii_uppercase, row.labels, strict=False))
    return dict(MEANING) if row.type in COMPARED else {}


def verdict_of(reply: str, choices: dict[str, str]) -> str | None:
    """Return the verdict in a reply: what follows the last "VERDICT", or the whole of it; None when
    that is no verdict."""
    text = answers.final_answer(reply) or ""
    line = _VERDICT.split(text)[-1].strip().partition("\n")[0]
    written = line.strip(EDGES).casefold()
    verdicts = {verdict.casefold(): verdict for verdict in (*choices, UNDECIDED)}
    if written in verdicts:
        return verdicts[written]
    for folded, verdict in verdicts.items():
        if written.startswith(folded) and _EXPLAINED.fullmatch(written.removeprefix(folded)):
            return verdict
    return None


def settle(case: Case, verdict: str | None) -> None:
    """Read the row as the verdict says; without one, or with UNDECIDED, it stays as the rules left
    it."""
    row = case.row
    if verdict is None or verdict == UNDECIDED:
        return
    row.rule = JUDGE
    row.correct = verdict in (SAME, row.expected)
    if verdict not in MEANING:
        row.answer = verdict
    elif row.type == "text" or verdict == OTHER:
        row.answer = case.answer
    else:
        row.answer = row.expected


def prompt_id() -> str:
    """Return what changes with the prompt."""
    return hashlib.sha256(_template().encode()).hexdigest()[:12]


@functools.cache
def _template() -> str:
    return Path(__file__).with_name("judge_prompt.txt").read_text(encoding="utf-8")


def _as_text(path: Path, records: list, ascii_only: bool) -> str:
    if path.suffix == ".jsonl":
        lines = [json.dumps(record, ensure_ascii=ascii_only) + "\n" for record in records]
        return "".join(lines)
    return json.dumps(records, indent=1, ensure_ascii=ascii_only) + "\n"
