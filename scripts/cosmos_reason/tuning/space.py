"""What a study may vary: one `Dimension` per spec key, from the train schema, from `--range`, or
from spoken words.

Optuna sees coordinates: a number, or an option's place in a list. `value` and `coordinate`
translate both ways, so that the sampler learns from what really ran also when a suggestion had to
be repaired.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.rules import explain
from cosmos_reason.spec import document, names, values
from cosmos_reason.spec.keys import BATCH

BATCHES = (BATCH, "train.train_policy.mini_batch")
# Keys of which a spec has one, each with the other.
EXCLUDE = {
    "custom.vision.fps": "custom.vision.nframes",
    "custom.vision.nframes": "custom.vision.fps",
}
WARMUP = "train.optm_warmup_steps"
RANK, ALPHA = "policy.lora.r", "policy.lora.lora_alpha"
# Keys that change what is kept or printed, not what is trained.
UNFIT = ("train.resume", "train.timestamp", "train.ckpt.", "validation.", "logging.")
RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?::(?P<scale>log|linear))?")


def is_number(value) -> bool:
    """Return whether a value is a number; bool is none here, though Python counts it as one."""
    return type(value) in (int, float)


@dataclass(frozen=True)
class Dimension:
    """A range of numbers from `low` to `high`, whole ones in steps of `step`; or `options`: numbers
    in order, words as they come. `weights` say how often each option is drawn before anything is
    known."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: int = 0
    options: Sequence = ()
    weights: Sequence = ()

    def distribution(self):
        """Return what Optuna draws the coordinate from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.weights:
            return FloatDistribution(0.0, 1.0)  # each option owns a stretch as long as its weight
        if self.options:
            last = len(self.options) - 1
            if all(is_number(option) for option in self.options):
                return IntDistribution(0, last)
            return CategoricalDistribution(range(last + 1))
        if self.step:
            return IntDistribution(self.low, self.high, log=self.log, step=self.step)
        return FloatDistribution(self.low, self.high, log=self.log)

    def points(self) -> Sequence:
        """Return every value there is; empty when there is no end of them."""
        if self.options:
            return self.options
        if self.step:
            return range(self.low, self.high + 1, self.step)
        return ()

    def value(self, coordinate):
        """Return what the spec gets. Numbers with a fraction are cut to four digits, as people
        write them."""
        if self.weights:
            edges = list(accumulate(self.weights))
            place = bisect_right(edges, coordinate * edges[-1])
            return self.options[min(place, len(self.options) - 1)]
        if self.options:
            return self.options[coordinate]
        if self.step:
            return coordinate
        rounded = float(f"{coordinate:.4g}")
        return min(max(rounded, self.low), self.high)

    def coordinate(self, value) -> float | int | None:
        """Return the inverse of `value`; None for what this dimension cannot express."""
        if self.options:
            if value not in self.options:
                return None
            place = self.options.index(value)
            if not self.weights:
                return place
            middle = sum(self.weights[:place]) + self.weights[place] / 2
            return middle / sum(self.weights)
        if not is_number(value) or not self.low <= value <= self.high:
            return None
        if self.step and value not in self.points():
            return None
        return value

    def share(self, value) -> float | None:
        """Return where a value lies between the ends of the range, 0 to 1, for charts."""
        if self.coordinate(value) is None:
            return None
        if self.options:
            return self.options.index(value) / (len(self.options) - 1)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Return (share, label) of the marks of an axis."""
        shown = self.options or (self.low, self.high)
        if len(shown) > 6:
            shown = (shown[0], shown[-1])
        return [(self.share(mark), value_text(mark)) for mark in shown]

    def words(self) -> str:
        """Return the range as `--range` takes it."""
        if self.options:
            return value_text(list(self.options))
        ends = f"{self.low}..{self.high}" if self.step else f"{self.low:g}..{self.high:g}"
        return f"{ends}:log" if self.log else ends


class RangeError(ValueError):
    """Why a key has no dimension, and perhaps a fix."""

    def __init__(self, problem: str, fix: Fix | None = None):
        super().__init__(problem)
        self.fix = fix or Fix()


def build(
    base: dict, words: str, ranges: Iterable[str], cap: int | None, fixed: Iterable[str] = ()
) -> tuple[list[Dimension], list[Finding]]:
    """Return the dimensions that the words and ranges of a command line name (without any the
    schema's default ones, but for the `fixed` ones), and what is wrong with them. `base` is the
    spec that is tuned; `cap` the records of one data-parallel rank."""
    found: list[Finding] = []
    leaves = document.keys("train")
    # LoRA's keys exist only in a spec that trains adapters.
    has_lora = document.get(base, "policy.lora") is not None
    if words.strip() or ranges:
        wanted = _named(words, ranges, found)
    else:
        keys = []
        for key in bundle.schema("train")["automl_default_parameters"]:
            if has_lora or not key.startswith("policy.lora."):
                keys.append(key)
        kept = [key for key in keys if key in set(fixed)]
        if kept:
            message = f"--set gave {', '.join(kept)}, so they stay; name them to vary them too"
            fix = Fix(flags={"--words": ", ".join(keys)})
            found.append(findings.info("TUNE-GIVEN", "--words", message, fix))
        wanted = {key: None for key in keys if key not in kept}

    dimensions = []
    for key, written in wanted.items():
        leaf = leaves[key]
        try:
            if "x-path" in leaf or key.startswith(UNFIT):
                raise RangeError("says where things are or what is kept, and trains nothing else")
            if key.startswith("policy.lora.") and not has_lora:
                raise RangeError("needs a spec with policy.lora (build_spec.py --tuning lora)")
            if written and written.startswith("[") and written.endswith("]"):
                dimension = _listed(key, leaf, written)
            elif written is not None:
                match = RANGE.fullmatch(written)
                if not match:
                    raise RangeError(f"got {written!r}, expected LO..HI, LO..HI:log or [A,B,C]")
                low, high = (
                    _legal(leaf, values.parse(leaf, match[end].strip())) for end in ("low", "high")
                )
                if not (is_number(low) and is_number(high)):
                    options = f"[A,B,C] of {values.expected(leaf)}"
                    raise RangeError(f"takes options, not a range: {options}")
                scale = match["scale"] or leaf.get("automl_scale")
                dimension = _interval(key, leaf, low, high, scale)
            elif "enum" in leaf and leaf.get("automl_enabled"):
                options, weights = tuple(leaf["enum"]), tuple(leaf["option_weights"])
                dimension = Dimension(key, options=options, weights=weights)
            elif "automl_range" in leaf:
                low, high = leaf["automl_range"]
                if has_lora and "automl_range_lora" in leaf:
                    low, high = leaf["automl_range_lora"]
                dimension = _interval(key, leaf, low, high, leaf.get("automl_scale"))
            else:
                fix = Fix(flags={"--range": f"{key}=LO..HI"})
                raise RangeError("has no range in the schema: give one", fix)
        except RangeError as problem:
            message = f"{key.rpartition('.')[2]} {problem}"
            found.append(findings.error("TUNE-RANGE", key, message, problem.fix))
            continue
        # A batch of more records than a rank has would train nothing, or repeat some.
        if cap is not None and key in BATCHES and dimension.points()[-1] > cap:
            most = dimension.points()[-1]
            remaining = tuple(option for option in dimension.points() if option <= cap)
            message = f"{most} is more than the {cap} samples of each data-parallel rank: capped "
            message += "there" if len(remaining) > 1 else "there; nothing is left to vary"
            found.append(findings.info("TUNE-BATCH-CAP", key, message))
            if len(remaining) < 2:
                continue
            if dimension.options:
                dimension = replace(dimension, options=remaining)
            else:
                dimension = replace(dimension, high=remaining[-1])
        dimensions.append(dimension)
    if wanted.keys() >= EXCLUDE.keys():
        message = "fps and nframes exclude each other: vary one of them"
        found.append(findings.error("TUNE-FRAMES", "custom.vision.fps", message))
    if not dimensions and not findings.has_errors(found):
        fix = Fix(flags={"--range": "learning_rate=1e-6..1e-4"})
        found.append(findings.error("TUNE-SPACE-EMPTY", "--range", "nothing is left to vary", fix))
    # In the order of the schema; keys that depend on another one are set after it.
    order = list(leaves)
    dimensions.sort(key=lambda each: ("depends_on" in leaves[each.key], order.index(each.key)))
    return dimensions, found


def _named(words: str, ranges: Iterable[str], found: list[Finding]) -> dict[str, str | None]:
    """Return key -> the range as it was written, or None for the schema's. Names that no key has
    are errors in `found`."""
    named = []
    for word in re.split(r",|\band\b", words):
        if word.strip():
            named.append((word.strip(), None))
    for given in ranges:
        name, _, written = given.partition("=")
        named.append((name.strip(), written.strip()))
    wanted: dict[str, str | None] = {}
    for name, written in named:
        key = explain.exact(name, ["train"])
        if key is None:
            short = name.lower().replace(" ", "_")
            message = f"{name!r} is neither a key of the train spec nor a short name"
            told = names.word("train", short)
            near = names.misspelt("train", short)
            if told:
                message += f"; {told.note}"
            elif near:
                message += f". Did you mean {', '.join(near)}?"
            found.append(findings.error("TUNE-KEY", name, message))
        elif written is None:
            wanted.setdefault(key, None)  # words beside a range of the same key add nothing
        elif wanted.get(key) is not None:
            found.append(findings.error("TUNE-RANGE", key, "--range names this key twice"))
        else:
            wanted[key] = written
    return wanted


def _interval(key: str, leaf: dict, low: float, high: float, scale: str | None) -> Dimension:
    """Return the dimension of the numbers from `low` to `high`; of powers of two, where only those
    are legal. Raises RangeError when there are not two of them."""
    is_log = scale == "log"
    if low >= high:
        raise RangeError(f"got {low}..{high}, expected a lower end below the upper one")
    if is_log and low <= 0:
        raise RangeError(
            f"has a log scale, so {low}..{high} must start above 0, or be {low}..{high}:linear"
        )
    if leaf.get("math_cond") == "^ 2":
        first = math.ceil(math.log2(low))
        last = math.floor(math.log2(high))
        if first >= last:
            raise RangeError(f"got {low}..{high}, expected at least two powers of two in it")
        return Dimension(key, options=tuple(2**power for power in range(first, last + 1)))
    if not _whole(key, leaf, (low, high)):
        return Dimension(key, float(low), float(high), is_log)
    step = leaf.get("multipleOf", 1)
    if is_log and step > 1:
        raise RangeError(
            f"got {low}..{high}:log, expected [A,B,C]: only multiples of {step} are legal"
        )
    return Dimension(key, low, high, is_log, step)


def _whole(key: str, leaf: dict, ends: Iterable) -> bool:
    """Return whether these values are whole numbers. Raises RangeError for a warm-up that mixes
    shares of the run (up to 1.0) with steps (beyond it)."""
    if key != WARMUP or all(end <= 1 for end in ends):
        return leaf.get("type") == "integer"
    if any(isinstance(end, float) for end in ends):
        raise RangeError(
            "is a share of the run up to 1.0 and steps beyond: "
            "give 0.0..1.0, or whole steps such as 0..100"
        )
    return True


def _listed(key: str, leaf: dict, written: str) -> Dimension:
    """Return the dimension of `[A,B,C]`: TOML, or words without quotes."""
    different = []
    for option in values.parse({"type": "array", "items": leaf}, written):
        legal = None if option == "" else _legal(leaf, option)
        if legal is not None and legal not in different:
            different.append(legal)
    if len(different) < 2:
        raise RangeError(f"got {written}, expected at least two different values")
    if all(is_number(option) for option in different):
        _whole(key, leaf, different)
        different.sort()
    return Dimension(key, options=tuple(different))


def _legal(leaf: dict, value):
    """Return the value; 1e6 is a whole number too. Raises RangeError for one that the schema
    refuses."""
    import jsonschema

    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not is_finite or not jsonschema.Draft202012Validator(leaf).is_valid(value):
        raise RangeError(f"got {values.shown(value)}, expected {values.expected(leaf)}")
    return int(value) if leaf.get("type") == "integer" else value


def idle(dimension: Dimension, table: dict) -> str:
    """Return why the key has no effect in this spec: what it depends on is off, as written or by
    default. '' where it has one."""
    parent = document.keys("train")[dimension.key].get("depends_on")
    if parent is None:
        return ""
    switch = document.get(document.with_defaults("train", table), parent)
    if switch not in document.IS_OFF:
        return ""
    return f"{dimension.key} has no effect while {parent} is {values.shown(switch)}"


def put(table: dict, dimension: Dimension, value) -> None:
    """Set the key; of nframes and fps the other one goes."""
    if dimension.key in EXCLUDE:
        document.delete(table, EXCLUDE[dimension.key])
    document.set_value(table, dimension.key, value)


def alpha_per_rank(table: dict, searched: set[str], origin: str) -> float | None:
    """Return alpha over rank of a spec where alpha is to follow a searched rank; None where it
    stands: searched itself, set by the user, or in a spec that build_spec did not write (`origin`
    is empty). Otherwise a search over ranks would be one over the size of the update, too."""
    rank, alpha = document.get(table, RANK), document.get(table, ALPHA)
    is_given = not origin or origin.startswith("--set ")
    if RANK not in searched or ALPHA in searched or is_given or not rank or not alpha:
        return None
    return alpha / rank


def follow_rank(table: dict, per_rank: float | None) -> None:
    """Write the alpha that goes with the rank of a spec."""
    rank = document.get(table, RANK)
    if per_rank and rank:
        alpha = per_rank * rank
        document.set_value(table, ALPHA, int(alpha) if alpha == int(alpha) else alpha)
