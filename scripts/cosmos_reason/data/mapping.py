"""mapping.yaml: what each column of a source is, and how its records are made and split. It is
written beside every build; `--mapping` reads it, so that the same file builds the same set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import shortened
from cosmos_reason.data.items import Item
from cosmos_reason.data.roles import DETAILS, PLAIN, Column, family

FILE = "mapping.yaml"
KEYS = ("schema_version", "source", "columns", "values", "questions", "split", "unused", "flags")
OF_COLUMN = ("role", "unit", "separator", "numbered_from")
SPLITS = ("by", "fraction", "seed")
WRITTEN = {  # what stands in a column's entry where the role's own default does not hold
    (details["role"], key): {value[key] for value in DETAILS.values() if key in value}
    for details in DETAILS.values()
    for key in OF_COLUMN[1:]
    if key in details
}
# Flags that say which records are made of a source, by the names of argparse.
FLAGS = ("kind", "fields", "system", "hf_subset", "hf_split", "raw", "subset", "skip_missing")
SAMPLES, LONGEST = 3, 240  # shown records, characters of each text


@dataclass(frozen=True)
class Mapping:
    """A saved mapping: columns with their roles, one question for rows that have none, shares of
    the split, and the flags that belong to it."""

    columns: tuple[Column, ...]
    question: str = ""
    asks: tuple[tuple[str, str], ...] = ()
    values: dict = field(default_factory=dict)
    split: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)


def load(path: Path) -> Mapping:
    """Read a saved mapping. Raises Failure with all that is wrong in it."""
    import yaml

    try:
        document = yaml.safe_load(files.read_text(path))
    except yaml.YAMLError as problem:
        where = getattr(problem, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise f.bad_input("BUILD-MAPPING", path, f"got no YAML{line}, expected a mapping") from None
    if not isinstance(document, dict):
        raise f.bad_input("BUILD-MAPPING", path, "got no mapping, expected keys and values")
    wrong: list[str] = [
        f"got the key {key!r}, expected one of {', '.join(KEYS)}.{f.did_you_mean(str(key), KEYS)}"
        for key in document
        if key not in KEYS
    ]
    if document.get("schema_version") != 1:
        wrong.append(f"got schema_version {document.get('schema_version')!r}, expected 1")
    columns: list[Column] = []
    entries = _table(document, "columns", wrong)
    for name, entry in entries.items():
        columns += _columns(name, entry, wrong)
    question, asks = _questions(document.get("questions") or [], wrong)
    values = _table(document, "values", wrong)
    for name, meanings in values.items():
        if not isinstance(meanings, dict):
            wrong.append(f"got the values of {name} of another form, expected {{OLD: NEW}}")
            continue
        odd = [one for pair in meanings.items() for one in pair if not isinstance(one, str)]
        if odd:  # YAML reads yes, no, on and off as truths
            wrong.append(f"got {odd[0]!r} among the values of {name}, expected text: quote it")
    split = _table(document, "split", wrong)
    wrong += [f"got split.{key}, expected {', '.join(SPLITS)}" for key in split.keys() - {*SPLITS}]
    flags = _table(document, "flags", wrong)
    wrong += [f"got flags.{key}, expected {', '.join(FLAGS)}" for key in flags.keys() - {*FLAGS}]
    kinds = {"fraction": float, "seed": int, "subset": int, "skip_missing": bool}
    for key, value in [*split.items(), *flags.items()]:
        kind = kinds.get(key, str)
        if isinstance(value, bool) != (kind is bool) or not isinstance(
            value, (int, float) if kind is float else kind
        ):
            wrong.append(f"got {value!r} as {key}, expected a value of type {kind.__name__}")
    if wrong:
        raise f.Failure([f.error("BUILD-MAPPING", path, one) for one in wrong], f.EXIT_BAD_INPUT)
    return Mapping(tuple(columns), question, asks, values, split, flags)


def _questions(entries: object, wrong: list[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """(the one question of rows without one, the questions with the column of their answers)."""
    asks = []
    for entry in entries if isinstance(entries, list) else [None]:
        texts = entry if isinstance(entry, dict) else {}
        if not all(isinstance(text, str) and text for text in texts.values()):
            texts = {}
        if texts.keys() == {"template", "answer"}:
            asks.append((texts["answer"], texts["template"]))
        elif texts.keys() == {"template"} and len(entries) == 1:
            return texts["template"], ()
        else:
            wrong.append(f"got the question {entry!r}, expected {{template: TEXT, answer: COLUMN}}")
    return "", tuple(asks)


def of_flag(flag: str, written: list[str]) -> list[tuple[str, str]]:
    """(column, text behind it) of flags written as 'COLUMN: TEXT'. Raises Failure."""
    found = []
    for word in written:
        name, _, text = (part.strip() for part in word.partition(":"))
        if not name or not text:
            raise f.bad_input("USAGE", flag, f"got {word!r}, expected 'COLUMN: TEXT'")
        found.append((name, text))
    return found


def values_of_flags(written: list[str]) -> dict[str, dict[str, str]]:
    """{column: {old: new}} of --values 'COLUMN: OLD=NEW, OLD=NEW'. Raises Failure."""
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


def _table(document: dict, key: str, wrong: list[str]) -> dict:
    table = document.get(key) or {}
    if isinstance(table, dict):
        return table
    wrong.append(f"got {key} of another form, expected keys and values")
    return {}


def _columns(name: object, entry: object, wrong: list[str]) -> list[Column]:
    """The column of an entry, once for each of its roles."""
    if not isinstance(entry, dict) or entry.keys() - {*OF_COLUMN} or "role" not in entry:
        wrong.append(f"got the column {name!r} as {entry!r}, expected {{role: ROLE}}")
        return []
    found = []
    for role in entry["role"] if isinstance(entry["role"], list) else [entry["role"]]:
        if role not in PLAIN:
            wrong.append(f"got the role {role!r} of {name!r}, expected one of {', '.join(PLAIN)}")
            continue
        details = {key: entry[key] for key in OF_COLUMN[1:] if key in entry}
        for key, value in details.items():
            legal = WRITTEN.get((role, key), set())
            if value not in legal:
                listed = ", ".join(map(repr, sorted(legal))) or f"none for the role {role}"
                wrong.append(f"got {key} {value!r} of {name!r}, expected {listed}")
        found.append(Column(str(name), role, source=FILE, **details))
    return found


def document(source: str, columns: list[Column], unused: list[str], args) -> dict:
    """The content of mapping.yaml for a build. `args`: the flags of the command."""
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
    by = "group" if any(one.role == "group" for one in columns) else "clip"
    split = {"by": by, "fraction": args.eval_fraction, "seed": args.seed}
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


def as_text(document: dict) -> str:
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def preview(columns: list[Column], unused: list[str], items: list[Item]) -> list[str]:
    """The lines to show before anything is written: the mapping, and records as a model sees
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
    """The first record, and the first of each other answer; else the next ones."""
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
    """The media of an item by their names, with the times of those that are cut."""
    names = []
    for kind, medium in item.media:
        span = getattr(medium, "span", None)
        times = f" from {span[0]:g} to {span[1]:g} s" if span else ""
        name = medium.stem if span is None else getattr(medium.whole, "stem", medium.stem)
        names.append(f"<{kind}> {name}{times}")
    return ", ".join(names) or "no media"


def _short(text: str) -> str:
    return shortened(text.replace("\n", " | "), LONGEST)
