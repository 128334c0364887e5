"""Why a run failed, from its log: one pass over the lines, matched against error_catalog.yaml; and
what to do about it."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
import string
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from cosmos_reason.base import files, findings, secrets
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import record
from cosmos_reason.jobs.failed_run import FailedRun
from cosmos_reason.jobs.options import of_record
from cosmos_reason.jobs.options import words as launch_words
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import actions, document
from cosmos_reason.spec.keys import RATE

CATALOG = Path(__file__).with_name("error_catalog.yaml")
MAX_LINE = 1 << 16  # characters; what has no line ends is cut there
SHOWN = 400  # characters of a line that are quoted
BLOCK_LINES = 40  # of an error block, from the line that looks like an error
TAIL_LINES = 10  # shown of a log without errors
MAX_PLAIN = 10_000  # remembered lines
DIGIT = re.compile(r"\d")
WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
TROUBLE = ("Error", "ERROR", "Traceback", "Exception", "FATAL", "CRITICAL", "Fatal", "error:",
           "Aborted", "Killed", "fatal:", "command not found", "core dumped", "Segmentation fault",
           "No such file", "StopIteration", "KeyboardInterrupt", "terminate called",
           "Bus error", "panic:", "exec format error",
           "permission denied while trying", "no space left on device", "Cannot connect to",
           "unrecognized option")  # fmt: skip
HARMLESS = re.compile(r"\bWARN(?:ING)?\b|Warning:")  # on a line that names an error
# What stands before a line: its rank, its pod, its time (docker logs -t).
RANK = r"(?:(?:\[[^\]]*\]:?|\d{4}-\d\d-\d\dT\S+)\s?)*"
# What cosmos-rl's logger writes before its words, which a quotation needs the room for.
LOGGER = re.compile(r"\[cosmos\] \d{4}-\d\d-\d\d \S+ - cosmos - [A-Z]+ - ")
# The last line of a traceback says an error even where its text holds a warning.
RAISED = re.compile(
    RANK + r"(?:[\w.]*(?:Error|Exception)|StopIteration|KeyboardInterrupt)(?::(?! \w*Warning)|\s*$)"
)
# Above a traceback that ends nothing: Python says it of destructors, and of what runs at its exit.
IGNORED = re.compile(RANK + r"Exception ignored (?:in: |in atexit|while )")
# How trainers show a step: cosmos-rl's line, and the embedded engine's.
STEP = re.compile(r"\bStep: (\d+)/\d+, |\btrain: +\d+% (\d+)/\d+ ")
STACK = re.compile(RANK + r"\s\s")  # a line inside a traceback
# A finding that one of our commands printed, perhaps with its rank before it, and its fix, where
# that stands on the same line; or the last line of a traceback, where it passed through somebody
# else's program.
OURS = re.compile(
    r"^(?:\[[^\]]*\]:?\s?)?(?:error|cosmos_reason\.base\.findings\.Failure): "
    r"([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+) (.+?): (.*?)(?:  fix: (.*))?$"
)
OUR_FIX = re.compile(r"^(?:\[[^\]]*\]:?\s?)?  fix: (.*)$")  # on the line below its finding
OUR_WORDS = ("--set ", "--unset ", "scripts/")
SHELL = re.compile(r"[;&|<>$`\\]")
CUT_OFF = re.compile(r"--(?:set|unset)(?:\s+\S+=)?(?:\s+--|\s*$)")  # a flag without its value
LENGTH = "policy.model_max_length"
CLIP = "train.optm_grad_norm_clip"  # 0: none
# Ends of keys whose value helps when it is lower, and higher.
LOWER_HELPS = ("pixels", "nframes", "workers", "factor", "keep", "max_tokens", "per_pass")
HIGHER_HELPS = ("_length", "warmup_steps")
# What commands of the catalog say for what only a job, or another line of the log (the page of the
# Hub), tells.
PLACEHOLDERS = {
    "action": "train",
    "spec": "SPEC.toml",
    "root": "ROOT",
    "output": "OUTPUT_DIR",
    "run": "OUTPUT_DIR",
    "page": "ORG/NAME",
    "job": "JOB_ID",
    "place": "PLATFORM",  # a log alone does not say where the run was
}
NAMED_PAGE = re.compile(
    r"(?<![\w.-])huggingface\.co/(?:api/)?+(?!(?:docs|settings|join|spaces|papers|blog)/)"
    r"(?:models/)?((?:datasets/)?[\w-][\w.-]*/[\w.-]*\w)"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# How a command line in a log names the spec of the run.
NAMED_SPEC = re.compile(r"(?:--config|--spec|\s-e)(?:=|\s+)['\"]?([^\s'\",;]+\.(?:toml|ya?ml))\b")
HEAD_LINES = 5000  # in which a log tells what was started
STEP_OF_LENGTH = 1024
DIMS = re.compile(
    r"dp_replicate\((\d+)\) \* dp_shard\((\d+)\) \* cp\((\d+)\) \* tp\((\d+)\) \* pp\((\d+)\)"
    r" != WORLD_SIZE\((\d+)\)"
)
LAYOUT = "policy.parallelism."
OF_IMAGE = ("image", "image_version")
FULL_GPU = "LOG-GPU-MEMORY"
BY_LAYOUT = ("LOG-REPLICATE-1D",)  # what its fix changes depends on the spec


# -- the catalog -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One known error, as error_catalog.yaml explains its fields."""

    id: str
    cause: str
    signs: tuple[str, ...]
    example: tuple[str, ...]
    group: str
    changes: dict = field(default_factory=dict)
    least: dict = field(default_factory=dict)
    most: dict = field(default_factory=dict)
    command: str = ""
    severity: str = findings.ERROR
    action: str = "train"
    confirm: re.Pattern | None = None
    after: tuple[str, ...] = ()
    transient: bool | str = False
    by_values: bool = False
    follows: bool = False
    names_end: bool = False

    @property
    def fix(self) -> Fix:
        """Return the fix for a log of which nothing else is known."""
        return self.fix_with({})

    def fix_with(self, words: dict[str, str]) -> Fix:
        """Return the fix with words for some placeholders of its command."""
        command = self.command.format_map(PLACEHOLDERS | words)
        return Fix(changes=self.changes, command=command)

    def changes_after(self, line: str) -> dict:
        """Return the changes of a fix without values that the line shows to be wrong: a length
        reaches the tokens that the line counts, a count stays within them, a name it refuses is not
        proposed."""
        found = DIMS.search(line) if self.id == "LOG-PARALLEL-SIZES" else None
        if found:
            # The line says that the product of the sizes is not the number of GPUs. A tp_size of 2
            # is the worker's default, else the shards are what is counted.
            replicate, shard, cp, tp, pp, world = map(int, found.groups())
            others = replicate * cp * tp * pp
            if tp == 2 and replicate * shard * cp * pp == world:
                return {f"{LAYOUT}tp_size": 1}
            if others and world % others == 0 and world // others:
                return {f"{LAYOUT}dp_shard_size": world // others}
        if self.id == "LOG-PARALLEL-SIZES":
            return {}  # no whole number does it
        changes = {}
        for key, new in self.changes.items():
            names = [new] if isinstance(new, str) else new if isinstance(new, list) else []
            if any(re.search(rf"\b{re.escape(name)}\b", line) for name in names):
                continue
            needed = _number(self.least.get(key), line)
            if needed:  # the answer's tokens come on top
                new = max(new, math.ceil(needed / STEP_OF_LENGTH + 1) * STEP_OF_LENGTH)
            if key in self.most:
                step = STEP_OF_LENGTH if key.endswith("_length") else 2  # frames go in pairs
                new = (_number(self.most[key], line) or 0) // step * step
                if not new:
                    continue
            changes[key] = new
        return changes

    @property
    def placeholders(self) -> set[str]:
        """Return names of the placeholders in its command."""
        return {name for _, name, _, _ in string.Formatter().parse(self.command) if name}


def _number(pattern: str | None, line: str) -> int | None:
    found = re.search(pattern, line) if pattern else None
    return int(next(group for group in found.groups() if group)) if found else None


@functools.cache
def catalog() -> tuple[Entry, ...]:
    import yaml

    groups = yaml.load(CATALOG.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    found = []
    for group in groups:
        for row in group["entries"]:
            lists = {name: tuple(row.get(name, ())) for name in ("signs", "example", "after")}
            confirm = re.compile(row["confirm"]) if "confirm" in row else None
            found.append(Entry(**row | lists | {"group": group["group"], "confirm": confirm}))
    return tuple(found)


# -- one pass over a log -----------------------------------------------------------------------


def diagnose(lines: Iterable[str], name: str = "log", action: str = "") -> list[Finding]:
    """Return what the log says went wrong, in order of appearance: each known error once, with the
    line that shows it.

    Where no known error is found there is one finding LOG-UNKNOWN with the last block that looks
    like an error, or LOG-NO-ERROR when nothing does. `name` is what findings call the log, `action`
    what ran, when that is known. Memory does not grow with the log.
    """
    search = _Search(action)
    found: dict[str, Finding] = {}
    about_page: Entry | None = None  # an error about a page of the Hub that is not named yet
    page_until = 0  # the line that may name it, often one after the error's first
    above = ""  # the id of the finding of ours that stands on the line above
    for number, line in enumerate(lines, 1):
        below = OUR_FIX.match(line) if above else None
        if below:
            found[above] = replace(found[above], fix=_said(below[1]))
        above = ""
        entry = search.look(number, line)
        if entry and entry.id not in found:
            found[entry.id] = _finding(entry, f"{name}:{number}", line)
            above = "" if entry.signs else entry.id
            if "page" in entry.placeholders:
                about_page = entry
                page_until = number + BLOCK_LINES
        page = NAMED_PAGE.search(line) if number <= page_until else None
        if page:
            fix = about_page.fix_with({"page": page[1]})
            found[about_page.id] = replace(found[about_page.id], fix=fix)
            page_until = 0
    if not findings.has_errors(found.values()):
        return [*found.values(), _unknown(search, name)]
    following = {entry.id for entry in catalog() if entry.follows}
    told = [one for one in found.values() if one.id not in following]
    ends = {entry.id for entry in catalog() if entry.names_end}
    if not findings.has_errors(told):  # what they follow from was not printed
        told = [one for one in found.values() if one.id not in ends]
    if not findings.has_errors(told):
        told = list(found.values())
    if {one.id for one in told if findings.has_errors([one])} <= ends and search.blocks:
        return [_unknown(search, name), *told]
    return told


class _Search:
    """The state of one pass: which errors are still looked for, which contexts were met, the last
    error blocks.

    Logs repeat the same line with other numbers; `plain` remembers lines, without their digits,
    that hold nothing.
    """

    def __init__(self, action: str):
        self.action = action
        self.contexts_ahead = {text for entry in catalog() for text in entry.after}
        self.contexts_met: set[str] = set()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        # The last blocks that look like errors: the number of the first line, and the lines. Two,
        # since the last may turn out to be harmless.
        self.blocks: deque[tuple[int, list[str]]] = deque(maxlen=2)
        self.plain: set[str] = set()
        # The first and the last step told since the last line that looks like an error.
        self.steps_since: list[str] = []
        self.is_ignored = False  # whether a traceback that ends nothing is being told
        self._look_for(catalog())

    def _look_for(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        signs = dict.fromkeys(sign for entry in self.entries for sign in entry.signs)
        self.signs_with_digits = [sign for sign in signs if DIGIT.search(sign)]
        self.other_signs = [sign for sign in signs if not DIGIT.search(sign)]

    def look(self, number: int, line: str) -> Entry | None:
        """Return the error this line shows."""
        self.tail.append(line)
        if self.is_ignored:
            self.is_ignored = "Traceback" in line or bool(STACK.match(line))
            return None
        if "Exception ignored" in line and IGNORED.match(line):
            self.is_ignored = True
            return None
        step = STEP.search(line) if "Step: " in line or "train: " in line else None
        if step:
            self.steps_since = [*self.steps_since[:1], step[1] or step[2]]
        in_block = bool(self.blocks) and number <= self.blocks[-1][0] + BLOCK_LINES
        if in_block:
            self.blocks[-1][1].append(line)
        bare = line.translate(WITHOUT_DIGITS)
        has_sign = _contains(line, self.signs_with_digits)
        if bare in self.plain and not has_sign:
            return None
        has_sign = has_sign or _contains(line, self.other_signs)
        is_trouble = _looks_like_trouble(line)
        if is_trouble:
            self.steps_since.clear()
        if is_trouble and not in_block:
            self.blocks.append((number, [line]))
        met = {text for text in self.contexts_ahead if text in line}
        self.contexts_ahead -= met
        self.contexts_met |= met
        ours = OURS.match(line)
        if ours:
            id, where, message, _ = ours.groups()
            return Entry(id, f"{where}: {message}", signs=(), example=(), group="")
        if has_sign:
            return self._match(line, is_trouble)
        if not is_trouble and len(bare) <= SHOWN and len(self.plain) < MAX_PLAIN:
            self.plain.add(bare)
        return None

    def _match(self, line: str, is_trouble: bool) -> Entry | None:
        for entry in self.entries:
            # What means something else in another action is looked for in its own, or below what
            # tells that the log is of it.
            is_own = not entry.after or entry.action == self.action
            if not is_own and self.contexts_met.isdisjoint(entry.after):
                continue
            if not _contains(line, entry.signs):
                continue
            if entry.confirm and not entry.confirm.search(line):
                continue
            if entry.severity == findings.INFO or entry.names_end:
                if is_trouble:
                    self._dismiss()
            else:
                # A sign of an error that was found means nothing else further below.
                taken = set(entry.signs)
                self._look_for(other for other in self.entries if taken.isdisjoint(other.signs))
            return entry
        return None

    def _dismiss(self) -> None:
        """Drop this line's error, which is harmless or says only that something ended, from the
        last block, and the traceback that it ends."""
        _, lines = self.blocks[-1]
        start = len(lines) - 1
        for number, line in enumerate(lines):
            if "Traceback" in line:
                start = number
        ends_traceback = all(STACK.match(line) for line in lines[start + 1 : -1])
        if not ends_traceback:
            start = len(lines) - 1
        del lines[start:]
        if not lines:
            self.blocks.pop()


def _looks_like_trouble(line: str) -> bool:
    return _contains(line, TROUBLE) and (not HARMLESS.search(line) or bool(RAISED.match(line)))


def _contains(line: str, texts: Iterable[str]) -> bool:
    """Return whether one of the texts stands in the line. A loop: this is asked of every line."""
    for text in texts:  # noqa: SIM110 - any() with a generator takes twice as long
        if text in line:
            return True
    return False


def _finding(entry: Entry, where: str, line: str) -> Finding:
    evidence = quoted(line).strip()
    if not entry.signs:  # a finding that one of our commands printed
        fix = _said(OURS.match(line)[4] or "")
        return findings.error(entry.id, where, secrets.hidden(entry.cause), fix, evidence=evidence)
    message = f"{entry.cause} The log says: {quoted(LOGGER.sub('', line.strip(), count=1), 160)}"
    fix = entry.fix
    if not entry.command:
        fix = Fix(changes=entry.changes_after(line))
        fix = _built(fix, entry.action, PLACEHOLDERS["spec"]) if fix else fix
    data = {"action": entry.action, "evidence": evidence}
    is_transient = entry.transient
    if isinstance(is_transient, str):
        is_transient = bool(re.search(is_transient, line))
    if is_transient:
        data["transient"] = True
    return Finding(entry.id, entry.severity, where, message, fix, data)


def _said(printed: str) -> Fix:
    """Return a fix that one of our commands printed. A log may hold anything, and who reads the
    finding may paste it: none but changes of a spec and our own scripts, with nothing for a
    shell."""
    words = printed.strip()
    if not words.startswith(OUR_WORDS) or SHELL.search(words) or CUT_OFF.search(words):
        return Fix()
    return Fix(command=secrets.hidden(words))


def _unknown(search: _Search, name: str) -> Finding:
    last = [quoted(line) for line in search.tail]
    if not search.blocks:
        return findings.info("LOG-NO-ERROR", name, "got no sign of an error in the log", lines=last)
    number, lines = search.blocks[-1]
    block = [quoted(line) for line in lines]
    if len(set(search.steps_since)) > 1:  # one alone may be another rank's
        message = f"got no sign of an error at the end of the log: after line {number} "
        message += f"({_last_said(block)}) the run went on to step {search.steps_since[-1]}"
        return findings.info("LOG-NO-ERROR", name, message, lines=last)
    message = f"no known pattern; the last error block says: {_last_said(block)}"
    return findings.error("LOG-UNKNOWN", f"{name}:{number}", message, lines=block)


def _last_said(block: list[str]) -> str:
    """Return the line of a block that says its error: of a traceback, the one below its stack."""
    troubles = [number for number, line in enumerate(block) if _looks_like_trouble(line)]
    last = troubles[-1] if troubles else 0
    if "Traceback" not in block[last]:
        return block[last]
    below = [line for line in block[last + 1 :] if line.strip() and not STACK.match(line)]
    # A log may end within a traceback: the error that was raised before it is told.
    before = [block[number] for number in troubles if "Traceback" not in block[number]]
    return (below or before[-1:] or [block[last]])[0]


def quoted(line: str, limit: int = SHOWN) -> str:
    """Return a line as findings show it: without colours, cut, and without anything that looks like
    a secret."""
    return secrets.hidden(COLOUR.sub("", line[: 4 * SHOWN])).rstrip()[:limit]


def read_lines(stream: TextIO) -> Iterator[str]:
    """Yield the lines of a text stream; a progress bar's overwritten states are lines, endless ones
    are cut."""
    while line := stream.readline(MAX_LINE):
        yield line


# -- what to do in a job -----------------------------------------------------------------------


def for_job(finding: Finding, job: Job) -> Finding:
    """Return a finding of a job's log with its fix for this job: the paths are its own, and of
    changes to the spec only those are left that its engine applies and its spec does not have
    yet."""
    try:
        entry = _known(finding)
        source = Path(job.spec["source"])
        is_unchanged = source.is_file() and files.sha256(source) == job.spec["source_sha256"]
        source = source if is_unchanged else job.spec_path
        run = FailedRun(job.action, job.engine, job.spec_path, source)
        if entry is None:
            return _with_changes_said(finding, run)
        return _for_run(finding, entry, run, _places(entry, job))
    except (OSError, AttributeError, LookupError, TypeError, findings.Failure):
        return finding  # the job's spec or record was damaged since


def for_spec(finding: Finding, spec: Path) -> Finding:
    """Return a finding of a log with its fix for the spec that the run was started with. Raises
    Failure when that is no spec."""
    entry = _known(finding)
    run = FailedRun.of_spec(spec)
    if entry is None:
        return _with_changes_said(finding, run)
    return _for_run(finding, entry, run, {})


def is_about_spec(finding: Finding) -> bool:
    """Return whether its fix would be another one for another spec."""
    entry = _known(finding)
    if entry is None:
        return _changes_a_spec(str(finding.fix))
    return bool(entry.changes or entry.id in BY_LAYOUT) or not entry.placeholders.isdisjoint(
        {"spec", "action"}
    )


def specs_named(lines: Iterable[str]) -> list[str]:
    """Return the specs that the command lines in a log name, each once."""
    found = {}
    for line in itertools.islice(lines, HEAD_LINES):
        if ".toml" in line or ".y" in line:
            found |= dict.fromkeys(NAMED_SPEC.findall(line))
    return list(found)


def _with_changes_said(finding: Finding, run: FailedRun) -> Finding:
    """Return a finding of ours in a log: changes of the spec, where they are its fix, are made by a
    command."""
    said = str(finding.fix)
    if not _changes_a_spec(said):
        return finding
    return replace(
        finding, fix=_built(Fix(), f"{run.action} --engine {run.engine}", str(run.source), said)
    )


def _changes_a_spec(said: str) -> bool:
    """Return whether the fix of a finding that was read from a log, which is text there, changes a
    spec."""
    return said.startswith(("--set ", "--unset "))


def _known(finding: Finding) -> Entry | None:
    return next((entry for entry in catalog() if entry.id == finding.id), None)


def _for_run(finding: Finding, entry: Entry, run: FailedRun, places: dict[str, str]) -> Finding:
    """Return a finding with the fix for the spec of its run; `places` are words for the
    placeholders."""
    action = f"{run.action} --engine {run.engine}"
    if not entry.changes and entry.id not in BY_LAYOUT:
        words = {"action": action, "spec": shlex.quote(str(run.source))} | places
        if entry.placeholders.isdisjoint(words):
            return finding
        return replace(finding, fix=entry.fix_with(words))
    # Those changes of the run's spec that help, where build_spec.py would write the spec with them;
    # as advice where it would not.
    numbers, changes, why_none = _useful(entry, finding.fix.changes, run)
    message = f"{finding.message}; {numbers}" if numbers else finding.message
    if not changes:
        return replace(finding, message=f"{message} {why_none}".rstrip(), fix=Fix())
    changes, errors = run.passing(changes)
    if errors:
        others = dict.fromkeys(f"{one.id} {one.where}" for one in errors)
        message += f" {Fix(changes=changes)} would mend it, but build_spec.py refuses the spec for "
        return replace(finding, message=f"{message}{', '.join(others)} as well.", fix=Fix())
    fix = _built(Fix(changes=changes), action, str(run.source))
    return replace(finding, message=message, fix=fix)


def _built(fix: Fix, action: str, spec: str, said: str = "") -> Fix:
    """Return the command that makes a new spec with the changes of a fix, or with those that a log
    has in words."""
    words = ["scripts/build_spec.py", action, "--spec", shlex.quote(spec), said]
    command = " ".join(word for word in words if word)
    return Fix(changes=fix.changes, flags={"-o": f"{Path(spec).stem}-mended.toml"}, command=command)


def _useful(
    entry: Entry, proposed: Mapping[str, object], run: FailedRun
) -> tuple[str, dict[str, object], str]:
    """Return what there is to say of an entry's changes in numbers; those of them that the run's
    engine applies and its spec does not have yet; and why none is left."""
    if entry.id == "LOG-NO-STEPS":
        numbers, left = run.too_large_batch()
        if left:
            return numbers, left, ""
    if entry.id == "LOG-REPLICATE-1D":
        proposed = run.sharded()
    # Those that the run's action and engine know, by the names that its action has.
    known, vision = document.keys(run.action), actions.places(run.action)["vision"]
    applied = {}
    for name, new in proposed.items():
        key = re.sub(r"^(custom\.)?vision\.", f"{vision}.", name)
        if key in known and run.engine in known[key]["x-engines"]:
            applied[key] = new
    left = {}
    for key, new in applied.items():
        old = document.get(run.spec, key)
        if new is None:
            left |= run.without(key)
        elif key.endswith("vision.nframes") and key.replace("nframes", "fps") in applied:
            left |= {} if old else {key: new}  # frames are sampled by their count from now on
        elif key.endswith("vision.nframes"):
            is_spent = (document.get(run.spec, LENGTH) or 0) >= applied.get(LENGTH, math.inf)
            left |= run.fewer_frames(new, is_spent)
        elif not _is_better_already(key, old, new):
            left[key] = new
    pixels = f"{vision}.total_pixels"
    if entry.id.startswith(FULL_GPU) and left.keys() - {pixels}:
        left.pop(pixels, None)  # what the model sees changes only where nothing else is left
    if RATE in left:
        # What is low for all weights is next to nothing for an adapter: a tenth of the run's own.
        rate = document.get(run.spec, RATE)
        if isinstance(rate, int | float) and rate:
            left[RATE] = float(f"{rate / 10:g}")
    if left or not proposed:
        return "", left, ""
    if applied:
        return "", {}, "Its spec already has what would help."
    return "", {}, f"No key of {run.action} with engine {run.engine} changes that."


def _is_better_already(key: str, old: object, new: object) -> bool:
    """Return whether a spec has a value that helps as much as the new one, or more. A learning rate
    has none: a tenth of it helps."""
    if key == RATE:
        return False
    if old == new:
        return True
    if not isinstance(old, int | float):
        return False
    if key == CLIP:
        return 0 < old < new
    if key.endswith("keep") and old < 0:  # all are kept
        return False
    return (key.endswith(LOWER_HELPS) and old < new) or (key.endswith(HIGHER_HELPS) and old > new)


def _places(entry: Entry, job: Job) -> dict[str, str]:
    """Return the job's folders and data, as words for the placeholders of the entry's command."""
    words = {"job": shlex.join(record.words("retry", job.folder)[2:])}
    # The flags of its launch, but for the image: those errors are of an image.
    said = {name: value for name, value in of_record(job.options).items() if name not in OF_IMAGE}
    words["place"] = shlex.join([job.platform, *launch_words(said)])
    output = next(iter(job.outputs.values()), "")
    if output:
        words["output"] = shlex.quote(output)
    if job.action == "train":
        model_run = output
    else:  # its model came from another job
        parent = job.parent_job
        model_run = str(job.spec_path.parent.with_name(parent)) if parent else ""
    if model_run:
        words["run"] = shlex.quote(model_run)
    if "root" in entry.placeholders:
        spec, keys = document.load(job.spec_path), actions.data_keys(job.action)
        annotations = document.get(spec, keys.annotations) if keys else None
        if annotations:  # as arguments of check_dataset.py
            media = document.get(spec, keys.media)
            words["root"] = shlex.join([annotations, *(["--media-path", media] if media else [])])
    return words
