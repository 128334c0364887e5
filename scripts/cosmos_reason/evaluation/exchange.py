"""Rows for other evaluators: questions with the model's responses, in the files that VLMEvalKit and
lmms-eval keep of a run and score (ms-vlmeval 0.0.20, lmms-eval 0.7.3). Files of theirs are read by
rows.py, these too, with the same ids."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.answers import final_answer
from cosmos_reason.base import files, findings
from cosmos_reason.evaluation.rows import Row

VLMEVALKIT, LMMS_EVAL = "vlmevalkit", "lmms-eval"
TOOLS = (VLMEVALKIT, LMMS_EVAL)


def write(rows: Sequence[Row], tool: str, folder: Path, force: bool) -> list[str]:
    """Write the graded rows for one of TOOLS into a folder, a file for each type of question, since
    both score a file by one metric: VLMEvalKit's table of predictions TYPE.tsv, or what lmms-eval
    logs with --log_samples, TYPE_samples.jsonl. Return the files. Raises Failure, before anything
    is written, where one of them is there already, unless `force` replaces it."""
    by_type = defaultdict(list)
    for row in rows:
        by_type[row.type].append(row)
    ending = ".tsv" if tool == VLMEVALKIT else "_samples.jsonl"
    targets = {kind: folder / f"{kind}{ending}" for kind in sorted(by_type)}
    there = [path.name for path in targets.values() if path.exists()]
    if there and not force:
        message = f"it holds {', '.join(there)} already; name another folder, or replace them"
        raise findings.bad_input("EVAL-EXPORT-EXISTS", folder, message, "--force")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, path in targets.items():
        with files.whole_file(path) as handle:
            if tool == VLMEVALKIT:
                _write_table(handle, by_type[kind])
            else:
                for number, row in enumerate(by_type[kind]):
                    handle.write(json.dumps(_sample(number, row), ensure_ascii=False) + "\n")
    return [str(path) for path in targets.values()]


def _write_table(handle, rows: Sequence[Row]) -> None:
    """Write one line per question, with a column for each letter that any of them offers."""
    offered = [_options(row) for row in rows]
    letters = sorted({letter for one in offered for letter in one})
    table = csv.writer(handle, delimiter="\t", lineterminator="\n")
    names = ("index", "video", "question", *letters, "answer", "prediction", "error")
    table.writerow(names)
    for row, options in zip(rows, offered, strict=True):
        texts = [options.get(letter, "") for letter in letters]
        said = (row.response or "", row.error or "")
        table.writerow([row.id, row.media or "", row.question, *texts, _truth(row), *said])


def _sample(number: int, row: Row) -> dict:
    """Return what lmms-eval logs of a question: its document, the response, and that response as
    its filters left it (here: as it came)."""
    options = _options(row)
    document = {"id": row.id, "video": row.media, "question": row.question, "answer": _truth(row)}
    if options:
        document |= {"index2ans": options, "options": list(options.values())}
    said = row.response or ""
    sample = {"doc_id": number, "id": row.id, "doc": document, "target": _truth(row)}
    sample |= {"input": row.question, "resps": [[said]], "filtered_resps": [said]}
    return sample | ({"error": row.error} if row.error else {})


def _options(row: Row) -> dict[str, str]:
    return answers.options(row.question) if row.type == "mcq" else {}


def _truth(row: Row) -> str:
    """Return the letter of a choice; any other ground truth as it is written, without thoughts."""
    if row.type == "mcq" and row.expected:
        return row.expected
    return final_answer(row.gt) or row.gt
