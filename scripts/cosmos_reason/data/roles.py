"""What each column of a table is for. A role is declared by a flag, by a saved mapping or by the
row of a published set, or known by an exact name: nothing is read out of the cells. Columns that
stay without a role are named with the line that would declare them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import shortened
from cosmos_reason.data import options, published_sets

LABELS = ("answer", "label", "class", "target", "category", "response")
SENTENCES = ("caption", "sentence", "text")
# role -> the exact names it is known by, best first
NAMES = {
    "video": (
        *("video", "video_path", "video_name", "video_file"),
        *("clip", "clip_path", "clip_name", "clip_file"),
        *("file_name", "filename", "file", "path", "media"),
        *("video_id", "videoid", "clip_id", "vid"),
    ),
    "image": ("image", "image_path", "image_id"),
    "question": ("question", "prompt", "query", "problem"),
    "answer": (
        *(*LABELS, *SENTENCES, "solution"),
        *("correct_answer", "correct", "answer_key", "ground_truth", "gt"),
    ),
    "reasoning": (
        *("reasoning", "explanation", "rationale", "thinking"),
        *("chain_of_thought", "cot", "thought", "thoughts", "reasoning_content"),
    ),
    "options": ("options", "choices", "index2ans", "candidates"),
    "id": ("id", "uid", "video_id", "image_id"),
    "split": ("split",),
    "group": ("group",),
    "tag": ("tags",),
}
MEDIA = ("video", "image", "media")
# How a flag writes a role together with what its cells need to be read: the number that counts the
# first option, the unit of times, the separator of options.
DETAILS = {
    "answer_from_0": {"role": "answer", "numbered_from": 0},
    "answer_from_1": {"role": "answer", "numbered_from": 1},
    "start_ms": {"role": "start", "unit": "ms"},
    "end_ms": {"role": "end", "unit": "ms"},
    "start_frame": {"role": "start", "unit": "frame"},
    "end_frame": {"role": "end", "unit": "frame"},
    "options_semicolon": {"role": "options", "separator": ";"},
    "options_lines": {"role": "options", "separator": "\n"},
}
PLAIN = (*NAMES, "media", "start", "end", "annotator", "turn", "ignore")
ROLES = (*PLAIN, *DETAILS)
SEVERAL = (*MEDIA, "options", "group", "tag", "ignore")  # roles that several columns may have
# Who gave a column its role, where nobody declared it; the flag that makes columns of its own.
BY_NAME, ABSENT = "its name", "--also-ask-absent"
# Columns that name a clip, and columns of questions and answers, in records of other projects.
OF_CLIPS = {name for name in NAMES["video"] if name.startswith(("video_", "videoi", "clip", "vid"))}
OF_TEXTS = {*NAMES["question"], *NAMES["answer"], "correct_answer_label"}
OF_TEXTS |= published_sets.COUNTED_FROM_0

FILE = "mapping.yaml"
OF_COLUMN = ("role", "unit", "separator", "numbered_from")
MOST_PROBLEMS = 20  # that are told of one file
# Flags that say which records are made of a source, by the names of argparse.
FLAGS = ("kind", "fields", "system", "hf_subset", "hf_split", "raw", "subset", "skip_missing")
FLAGS += ("also_ask_absent", "window", "label_fps", "adjudicate", "transcode")
LONGEST = 240  # characters of a problem

# column -> what stands in it, row by row; None where a row does not have it
Cells = dict[str, list]


class Column(NamedTuple):
    """A column and its role; `unit` of times (ms, frame; seconds without), `separator` of options
    (| without), `numbered_from` of answers that are numbers of options; `source` says who gave it
    the role."""

    name: str
    role: str
    unit: str = ""
    separator: str = ""
    numbered_from: int | None = None
    source: str = ""

    @property
    def family(self) -> str:
        """Return what columns of one source share: a clip that is declared is no second clip beside
        one that is known by its name."""
        return "media" if self.role in MEDIA else self.role

    @property
    def written(self) -> str:
        """Return the role as a flag writes it."""
        for word, details in DETAILS.items():
            if self == self._replace(**details):
                return word
        return self.role


def column(role: str, name: str, source: str) -> Column:
    """Return the column `name` with a role as flags write it."""
    details = {"role": role} | DETAILS.get(role, {})
    return Column(name, source=source, **details)


def of_flags(
    columns: Sequence[str], asks: Sequence[str], values: Sequence[str], problems: list[f.Finding]
) -> tuple[list[Column], list[tuple[str, str]], dict[str, dict[str, str]]]:
    """Return what `--column ROLE=COLUMN`, `--ask 'COLUMN: TEMPLATE'` and `--values 'COLUMN:
    OLD=NEW, OLD=NEW'` declare: columns, (column of the answer, template) of each question, and
    {column: {old: new}}. What is no role, and a role given twice that one column has, join the
    `problems`, as does all that is not written so."""
    declared: list[Column] = []
    asked: list[tuple[str, str]] = []
    meanings: dict[str, dict[str, str]] = {}

    def wrong(flag: str, message: str) -> None:
        problems.append(f.error("USAGE", flag, message))

    for word in columns:
        role, _, name = word.partition("=")
        if not name:
            wrong("--column", f"got {role!r}, expected ROLE=NAME")
            continue
        if role not in ROLES:
            hint = f.did_you_mean(role, ROLES)
            wrong("--column", f"got the role {role!r}, expected one of {', '.join(ROLES)}.{hint}")
            continue
        new = column(role, name, "--column")
        for other in declared:
            if other.role == new.role and other.name != name and new.role not in SEVERAL:
                message = f"got {role} twice, as {other.name!r} and {name!r}, expected one column"
                wrong("--column", message)
        if new not in declared:
            declared.append(new)
    for flag, word in [*(("--ask", one) for one in asks), *(("--values", one) for one in values)]:
        name, _, text = (part.strip() for part in word.partition(":"))
        if not name or not text:
            wrong(flag, f"got {word!r}, expected 'COLUMN: TEXT'")
            continue
        if flag == "--ask":
            asked.append((name, text))
            continue
        meant = meanings.setdefault(name, {})
        for pair in text.split(","):
            old, equals, new = (part.strip() for part in pair.partition("="))
            if not (old and equals and new):
                wrong(flag, f"got {pair.strip()!r}, expected OLD=NEW ({FILE} takes any text)")
            elif meant.setdefault(old, new) != new:
                wrong(flag, f"got {old!r} twice, as {meant[old]!r} and {new!r}")
    return declared, asked, meanings


def resolve(
    cells: Cells,
    declared: Sequence[Column],
    saved: Sequence[Column] | None,
    problems: list[f.Finding],
) -> list[Column]:
    """Return the columns of a table that have a role. Sources in order: flags, then a saved
    mapping, which is whole, else the table of published sets and exact names. A later one gives no
    role that an earlier one gave, and none to a column that has one. A declared column that there
    is not joins the `problems`."""
    there = []  # by the names that the table has for them; "" where it has none alike
    for one in (*declared, *(saved or ())):
        name = one.name
        if name not in cells:
            alike = [other for other in cells if other.strip().lower() == name.strip().lower()]
            alike = alike or f.misspelt(name, cells)
            fix = ""
            if len(alike) == 1 and one.source == "--column":
                written = shlex.join(["--column", f"{one.written}={name}"])
                new = shlex.join(["--column", f"{one.written}={alike[0]}"])
                fix = f"replace {written} with {new}"
            message = f"got no such column, expected one of {', '.join(cells)}"
            problems.append(f.error("BUILD-COLUMN", name, message, fix))
            name = alike[0] if len(alike) == 1 else ""
        there.append(one._replace(name=name))
    chosen, later = there[: len(declared)], there[len(declared) :]
    if saved is None:  # of several sets that fit the one with the most columns
        for title, of_columns in published_sets.SETS.items():
            roles = {key.rstrip("?"): role for key, role in of_columns.items()}
            of_set = [column(role, key, title) for key, role in roles.items() if key in cells]
            required = {key for key in of_columns if not key.endswith("?")}
            if required <= cells.keys() and len(of_set) > len(later):
                later = of_set
    families = {one.family for one in chosen if one.role != "ignore"}
    used = {one.name for one in chosen}
    chosen += [one for one in later if one.family not in families and one.name not in used]
    families = {one.family for one in chosen}
    used = {one.name for one in chosen}
    # A saved mapping is whole: what it leaves out has no role, whatever it is called.
    lowered = {name.lower(): name for name in cells}
    for role, names in NAMES.items() if saved is None else ():
        free = [lowered[name] for name in names if name in lowered and lowered[name] not in used]
        if free and (one := column(role, free[0], BY_NAME)).family not in families:
            chosen.append(one)
            used.add(one.name)
    free = [name for name in cells if name not in used]
    if free and saved is None and not any(one.role == "options" for one in chosen):
        chosen += [column("options", name, BY_NAME) for name in options.columns(free)]
    return chosen


def cell_text(value: object) -> str:
    """Return what stands in a cell, as text: "" for nothing, JSON for lists and objects."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:  # NaN is how tables say that there is none
        return ""
    return re.sub(r"\.0$", "", str(value))


# -- mapping.yaml ----------------------------------------------------------------------------------


def load(path: Path) -> tuple[tuple[Column, ...], dict]:
    """Return the columns with their roles of a saved mapping, and all that stands in it. Raises
    Failure with all that is wrong."""
    import jsonschema
    import yaml

    try:
        document = yaml.safe_load(files.read_text(path))
    except (yaml.YAMLError, RecursionError) as problem:
        where = getattr(problem, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise f.bad_input("BUILD-MAPPING", path, f"got no YAML{line}, expected a mapping") from None
    validator = jsonschema.Draft202012Validator(bundle.schema("mapping"))
    wrong = []
    for problem in islice(validator.iter_errors(document), MOST_PROBLEMS):
        place = problem.json_path.removeprefix("$").removeprefix(".") or "the file"
        # jsonschema may quote all that stands there.
        message = f"{place}: {shortened(problem.message, LONGEST)}"
        wrong.append(f.error("BUILD-MAPPING", path, message))
    if wrong:
        raise f.Failure(wrong, f.EXIT_BAD_INPUT)
    columns = []
    for name, entry in document["columns"].items():
        details = {key: entry[key] for key in OF_COLUMN[1:] if key in entry}
        for role in entry["role"] if isinstance(entry["role"], list) else [entry["role"]]:
            columns.append(Column(name, role, source=FILE, **details))
    return tuple(columns), document


def document(source: str, columns: list[Column], unused: list[str], args, split_by: str) -> dict:
    """Return the content of mapping.yaml for a build. `args`: the flags of the command; `split_by`:
    what its splits are made by."""
    entries: dict[str, dict] = {}
    for one in columns:
        if not one.name:
            continue
        details = {key: getattr(one, key) for key in OF_COLUMN[1:]}
        entry = {key: value for key, value in details.items() if value not in ("", None)}
        before = entries.get(one.name)
        role = [before["role"], one.role] if before else one.role  # one column of both times
        entries[one.name] = {"role": role} | entry
    questions = [{"template": template, "answer": name} for name, template in args.ask]
    if args.question:
        questions = [{"template": args.question}]
    split = {"by": split_by, "fraction": args.eval_fraction, "seed": args.seed}
    if split_by == "time":
        split["margin_s"] = args.margin
    if args.folds:
        split["folds"] = args.folds
    flags = {name: getattr(args, name) for name in FLAGS}
    flags = {name: value for name, value in flags.items() if value not in ("", 0, False, "auto")}
    return {
        "schema_version": 1,
        "source": source,
        "columns": entries,
        "values": args.values,
        "questions": questions,
        "split": split,
        "unused": unused,
        "flags": flags,
    }
