"""Why a run failed, from its log: one pass over the lines, matched against error_catalog.yaml; what to do about it."""

from __future__ import annotations

import functools
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from cosmos_reason import bundle, secret, spec, spec_values, storage
from cosmos_reason import findings as f

CATALOG = Path(__file__).with_name("error_catalog.yaml")
MAX_LINE = 1 << 16  # characters; what has no line ends is cut there
SHOWN = 400  # characters of a line that are quoted
BLOCK_LINES, TAIL_LINES = 40, 10
MAX_DULL = 10_000  # remembered lines
DIGIT, WITHOUT_DIGITS = re.compile(r"\d"), str.maketrans("", "", "0123456789")
TROUBLE = ("Error", "ERROR", "Traceback", "Exception", "FATAL", "CRITICAL", "Fatal", "error:", "Aborted", "Killed",
           "fatal:", "command not found", "core dumped", "Segmentation fault", "No such file")  # fmt: skip
STACK = re.compile(r"(?:\[[^\]]*\]:?)?\s\s")  # a line inside a traceback, perhaps with its rank before it
OURS = re.compile(r"^error: ([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+) (.+?): (.*)$")  # a finding that one of our commands printed
HARMLESS = re.compile(r"\bWARN(?:ING)?\b|Warning:")  # on a line that names an error
LESS, MORE = ("pixels", "nframes", "workers", "factor", "keep", "max_tokens"), "_length"  # keys by what helps them
PAGE = "huggingface.co/ORG/NAME"  # in a fix
NAMED_PAGE = re.compile(
    r"(?<![\w.-])huggingface\.co/(?:api/)?+(?!(?:docs|settings|join|spaces|papers|blog)/)"
    r"(?:models/)?((?:datasets/)?[\w-][\w.-]*/[\w.-]*\w)"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Entry:
    """One known error, as error_catalog.yaml explains its fields."""

    id: str
    cause: str
    fix: str
    signs: tuple[str, ...]
    example: tuple[str, ...]
    group: str
    severity: str = f.ERROR
    action: str = "train"
    confirm: re.Pattern | None = None
    after: tuple[str, ...] = ()
    transient: bool = False

    def matches(self, line: str) -> bool:
        return any(sign in line for sign in self.signs) and (not self.confirm or bool(self.confirm.search(line)))


@functools.cache
def catalog() -> tuple[Entry, ...]:
    import yaml

    read = yaml.load(CATALOG.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return tuple(_entry({"group": part["group"]} | row) for part in read for row in part["entries"])


def _entry(row: dict) -> Entry:
    lists = {name: tuple(row.get(name, ())) for name in ("signs", "example", "after")}
    return Entry(**row | lists | {"confirm": re.compile(row["confirm"]) if "confirm" in row else None})


def diagnose(lines: Iterable[str], name: str = "log", action: str = "") -> list[f.Finding]:
    """What the log says went wrong, in order of appearance: each known error once, with the line that shows it.

    Where no known error is found there is one finding LOG-UNKNOWN with the last block that looks like an error, or
    LOG-NO-ERROR when nothing does. `name` is what findings call the log, `action` what ran, when that is known.
    Memory does not grow with the log.
    """
    search, found, unnamed = _Search(action), {}, ("", 0)
    for number, line in enumerate(lines, 1):
        if (entry := search.look(number, line)) and entry.id not in found:
            found[entry.id] = _finding(entry, f"{name}:{number}", line)
            unnamed = (entry.id, number + BLOCK_LINES) if PAGE in entry.fix else unnamed
        if number <= unnamed[1] and (page := NAMED_PAGE.search(line)):  # often on a line after the error's first
            fix = found[unnamed[0]].fix.replace(PAGE, f"huggingface.co/{page[1]}")
            found[unnamed[0]], unnamed = replace(found[unnamed[0]], fix=fix), ("", 0)
    if not f.has_errors(found.values()):
        found[""] = _unknown(search, name)
    return list(found.values())


class _Search:
    """The state of one pass: which errors are still looked for, which contexts were met, the last error block.

    Logs repeat the same line with other numbers; `dull` remembers lines, without their digits, that hold nothing.
    """

    def __init__(self, action: str):
        self.action = action
        self.contexts = {text for entry in catalog() for text in entry.after}
        self.met: set[str] = set()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.blocks: deque[tuple[int, list[str]]] = deque(maxlen=2)  # the last ones that look like errors, from a line
        self.dull: set[str] = set()
        self._look_for(catalog())

    def _look_for(self, entries: Iterable[Entry]) -> None:
        self.open = list(entries)
        signs = dict.fromkeys(sign for entry in self.open for sign in entry.signs)
        self.numbered = [sign for sign in signs if DIGIT.search(sign)]
        self.signs = [sign for sign in signs if not DIGIT.search(sign)]

    def look(self, number: int, line: str) -> Entry | None:
        """The error this line shows."""
        self.tail.append(line)
        if inside := bool(self.blocks) and number <= self.blocks[-1][0] + BLOCK_LINES:
            self.blocks[-1][1].append(line)
        bare = line.translate(WITHOUT_DIGITS)
        signed = any(sign in line for sign in self.numbered)
        if bare in self.dull and not signed:
            return None
        signed = signed or any(sign in line for sign in self.signs)
        trouble = any(word in line for word in TROUBLE) and not HARMLESS.search(line)
        if trouble and not inside:
            self.blocks.append((number, [line]))
        if here := {text for text in self.contexts if text in line}:
            self.contexts -= here
            self.met |= here
        if line.startswith("error: ") and (ours := OURS.match(line)):
            return Entry(ours[1], f"{ours[2]}: {ours[3]}", "", (), (), "")
        if not (signed or trouble) and len(bare) <= SHOWN and len(self.dull) < MAX_DULL:
            self.dull.add(bare)
        return self._match(line, trouble) if signed else None

    def _match(self, line: str, trouble: bool) -> Entry | None:
        for entry in self.open:
            here = not entry.after or entry.action == self.action or self.met.intersection(entry.after)
            if here and entry.matches(line):
                if entry.severity == f.INFO and trouble:
                    self._dismiss()
                elif entry.severity != f.INFO:  # an error that means this here means nothing else below
                    self._look_for(other for other in self.open if not set(other.signs) & set(entry.signs))
                return entry
        return None

    def _dismiss(self) -> None:
        """This line's error is harmless, and so is the traceback that it ends: they leave the last block."""
        lines = self.blocks[-1][1]
        start = max((number for number, line in enumerate(lines) if "Traceback" in line), default=len(lines) - 1)
        del lines[start if all(map(STACK.match, lines[start + 1 : -1])) else -1 :]
        if not lines:
            self.blocks.pop()


def _finding(entry: Entry, where: str, line: str) -> f.Finding:
    if not entry.signs:
        return f.error(entry.id, where, secret.hidden(entry.cause), evidence=quoted(line).strip())
    data = {"action": entry.action, "evidence": quoted(line).strip()} | ({"transient": True} if entry.transient else {})
    message, fix = f"{entry.cause} The log says: {quoted(line.strip(), 160)}", entry.fix
    if fix.startswith("--"):
        data["changes"], fix = fix, _build(entry.action, "spec.toml", fix)
    return f.Finding(entry.id, entry.severity, where, message, fix, data)


def _build(action: str, path: str, *changes: str) -> str:
    """The command that makes a new spec with some changes."""
    flags = ("--spec", shlex.quote(path), *changes, "-o", shlex.quote(f"{Path(path).stem}-mended.toml"))
    return " ".join(["scripts/build_spec.py", action, *flags])


def for_job(finding: f.Finding, record: dict) -> f.Finding:
    """A finding of a job's log with its fix for this job: the paths are its own, and of changes to the spec only those
    are left that its engine applies and its spec does not have yet."""
    try:
        return _for_job(finding, record)
    except (OSError, KeyError, TypeError, f.Failure):  # its spec or its record was damaged since
        return finding


def _for_job(finding: f.Finding, record: dict) -> f.Finding:
    action, own, source = record["action"], record["spec"]["path"], Path(record["spec"]["source"])
    unchanged = source.is_file() and storage.sha256(source) == record["spec"]["source_sha256"]
    path, engine = str(source) if unchanged else own, f"--engine {record['engine']}"
    fix = finding.fix.replace("build_spec.py train", f"build_spec.py {action} {engine}")
    if changes := finding.data.get("changes"):
        left = list(_useful(changes, record, spec.load(Path(own))))
        if not left:
            return replace(finding, message=f"{finding.message} Its spec is as the usual fix would make it.", fix="")
        return replace(finding, fix=_build(action, path, engine, *left))
    output = next(iter(record["outputs"].values()), "OUTPUT_DIR")
    if action != "train" and "select_checkpoint" in fix:  # where its model came from
        output = str(Path(own).parent.with_name(record["parent_job"])) if record["parent_job"] else "OUTPUT_DIR"
    data = _dataset(action, spec.load(Path(own))) if " ROOT" in fix else []
    for name, words in (("OUTPUT_DIR", [output]), ("spec.toml", [path]), ("ROOT", data or ["ROOT"])):
        fix = re.sub(rf"(?<= ){name}(?= |$)", lambda _, words=words: shlex.join(words), fix)
    return replace(finding, fix=fix)


def _dataset(action: str, written: dict) -> list[str]:
    """The data of a spec, as arguments of check_dataset.py."""
    trains = action in ("train", "grpo")
    table, media = ("custom.train_dataset", "media_path") if trains else ("dataset", "media_dir")
    words = [spec.get(written, f"{table}.annotation_path"), "--media-path", spec.get(written, f"{table}.{media}")]
    return words if all(words) else words[:1] if words[0] else []


def _useful(changes: str, record: dict, written: dict) -> Iterator[str]:
    action, words = record["action"], shlex.split(changes)
    known, now = spec.keys(action), spec.with_defaults(action, written)
    vision = bundle.skill_info()["spec_params"][action]["vision"]
    for flag, word in zip(words[::2], words[1::2], strict=True):
        name, _, text = word.partition("=")
        key = re.sub(r"^(custom\.)?vision\.", f"{vision}.", name)
        if flag == "--set":
            schema, old = known.get(key), spec.get(now, key)
            if schema is None or record["engine"] not in schema["x-engines"]:
                continue
            new, number = spec_values.parse(schema, text), isinstance(old, int | float)
            if new == old or (number and (old < new if key.endswith(LESS) else key.endswith(MORE) and old > new)):
                continue
            word = f"{key}={text}"
        yield f"{flag} {shlex.quote(word)}"


def _unknown(search: _Search, name: str) -> f.Finding:
    if not search.blocks:
        last = [quoted(line) for line in search.tail]
        return f.info("LOG-NO-ERROR", name, "got no sign of an error in the log", lines=last)
    number, lines = search.blocks[-1]
    block = [quoted(line) for line in lines]
    words = next((line for line in reversed(block) if any(word in line for word in TROUBLE)), block[0])
    message = f"no known pattern; the last error block says: {words}"
    return f.error("LOG-UNKNOWN", f"{name}:{number}", message, "", lines=block)


def quoted(line: str, limit: int = SHOWN) -> str:
    """A line as findings show it: without colours, cut, and without anything that looks like a secret."""
    return secret.hidden(COLOUR.sub("", line[: 4 * SHOWN])).rstrip()[:limit]


def read_lines(stream: TextIO) -> Iterator[str]:
    """The lines of a text stream; a progress bar's overwritten states are lines, endless ones are cut."""
    while line := stream.readline(MAX_LINE):
        yield line
