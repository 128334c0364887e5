"""mapping.yaml: what each column of a source is, and how its records are made and split. It is
written beside every build; `--mapping` reads it, so that the same file builds the same set."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import shortened
from cosmos_reason.data import converted
from cosmos_reason.data.items import Item
from cosmos_reason.data.roles import Column, family

FILE = "mapping.yaml"
OF_COLUMN = ("role", "unit", "separator", "numbered_from")
MOST_PROBLEMS = 20  # that are told of one file
# Flags that say which records are made of a source, by the names of argparse.
FLAGS = ("kind", "fields", "system", "hf_subset", "hf_split", "raw", "subset", "skip_missing")
FLAGS += ("also_ask_absent", "adjudicate", "transcode")
SAMPLES, LONGEST = 3, 240  # shown records, characters of each text


@dataclass(frozen=True)
class Mapping:
    """A saved mapping: columns with their roles, one question for rows that have none, shares of
    the split, the flags that belong to it, and the file of the function that made its rows."""

    columns: tuple[Column, ...]
    question: str = ""
    asks: tuple[tuple[str, str], ...] = ()
    values: dict = field(default_factory=dict)
    split: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)
    convert: dict = field(default_factory=dict)


def load(path: Path) -> Mapping:
    """Read a saved mapping. Raises Failure with all that is wrong in it."""
    import jsonschema
    import yaml

    try:
        document = yaml.safe_load(files.read_text(path))
    except yaml.YAMLError as problem:
        where = getattr(problem, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise f.bad_input("BUILD-MAPPING", path, f"got no YAML{line}, expected a mapping") from None
    validator = jsonschema.Draft202012Validator(bundle.schema("mapping"))
    wrong = [
        f.error("BUILD-MAPPING", path, _told(problem))
        for problem in islice(validator.iter_errors(document), MOST_PROBLEMS)
    ]
    if wrong:
        raise f.Failure(wrong, f.EXIT_BAD_INPUT)
    columns = []
    for name, entry in document["columns"].items():
        details = {key: entry[key] for key in OF_COLUMN[1:] if key in entry}
        for role in entry["role"] if isinstance(entry["role"], list) else [entry["role"]]:
            columns.append(Column(name, role, source=FILE, **details))
    question, asks = "", []
    for entry in document.get("questions", ()):
        if "answer" in entry:
            asks.append((entry["answer"], entry["template"]))
        else:
            question = entry["template"]
    values, split, flags = (document.get(key, {}) for key in ("values", "split", "flags"))
    made_by = document.get("convert", {})
    return Mapping(tuple(columns), question, tuple(asks), values, split, flags, made_by)


def _told(problem) -> str:
    """Return what jsonschema says of a place in the file, which may quote all that stands there."""
    place = problem.json_path.removeprefix("$").removeprefix(".") or "the file"
    return f"{place}: {shortened(problem.message, LONGEST)}"


def of_flag(flag: str, written: list[str]) -> list[tuple[str, str]]:
    """Return (column, text behind it) of flags written as 'COLUMN: TEXT'. Raises Failure."""
    found = []
    for word in written:
        name, _, text = (part.strip() for part in word.partition(":"))
        if not name or not text:
            raise f.bad_input("USAGE", flag, f"got {word!r}, expected 'COLUMN: TEXT'")
        found.append((name, text))
    return found


def values_of_flags(written: list[str]) -> dict[str, dict[str, str]]:
    """Return {column: {old: new}} of --values 'COLUMN: OLD=NEW, OLD=NEW'. Raises Failure."""
    values: dict[str, dict[str, str]] = {}
    for name, text in of_flag("--values", written):
        for pair in text.split(","):
            old, equals, new = (part.strip() for part in pair.partition("="))
            if not (old and equals and new):
                message = f"got {pair.strip()!r}, expected OLD=NEW ({FILE} takes any text)"
                raise f.bad_input("USAGE", "--values", message)
            if values.setdefault(name, {}).setdefault(old, new) != new:
                message = f"got {old!r} twice, as {values[name][old]!r} and {new!r}"
                raise f.bad_input("USAGE", "--values", message)
    return values


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
    made_by = {"convert": converted.described(args.convert)} if args.convert else {}
    return made_by | {
        "schema_version": 1,
        "source": source,
        "columns": entries,
        "values": args.values,
        "questions": questions,
        "split": split,
        "unused": unused,
        "flags": flags,
    }


def as_text(document: dict) -> str:
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def preview(columns: list[Column], unused: list[str], items: list[Item]) -> list[str]:
    """Return the lines to show before anything is written: the mapping, and records as a model sees
    them."""
    lines = []
    for kind in dict.fromkeys(family(one.role) for one in columns):
        alike = [one for one in columns if family(one.role) == kind]
        named = ", ".join(f"{one.name} ({one.source})" for one in alike[:3] if one.name)
        lines.append(f"{alike[0].written} = {named}{', ...' if alike[3:] else ''}")
    if unused:
        more = ", ..." if unused[20:] else ""
        lines.append(f"unused: {', '.join(unused[:20])}{more}")
    for item in samples(items):
        lines.append(f"record {item.name}: {_media(item)}")
        lines += [f"  {turn.role}: {_short(turn.text)}" for turn in item.turns]
        if item.reasoning:
            lines.append(f"  reasoning: {_short(item.reasoning)}")
    return lines


def samples(items: list[Item]) -> list[Item]:
    """Return the first record, and the first of each other answer; else the next ones."""
    found: list[Item] = items[:1]
    answers = {item.turns[-1].text for item in found}
    for item in items:
        if len(found) < SAMPLES and item.turns[-1].text not in answers:
            found.append(item)
            answers.add(item.turns[-1].text)
    for item in items:
        if len(found) < SAMPLES and not any(item is other for other in found):
            found.append(item)
    return found


def _media(item: Item) -> str:
    """Return the media of an item by their names, with the times of those that are cut."""
    names = []
    for kind, medium in item.media:
        span = getattr(medium, "span", None)
        times = f" from {span[0]:g} to {span[1]:g} s" if span else ""
        name = medium.stem if span is None else getattr(medium.whole, "stem", medium.stem)
        names.append(f"<{kind}> {name}{times}")
    return ", ".join(names) or "no media"


def _short(text: str) -> str:
    return shortened(text.replace("\n", " | "), LONGEST)
