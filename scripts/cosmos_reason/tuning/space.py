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
# Keys that change what is kept or printed, not what is trained.
UNFIT = ("train.resume", "train.timestamp", "train.ckpt.", "validation.", "logging.")
RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?::(?P<scale>log|linear))?")


def is_number(value) -> bool:
    """bool is no number here, though Python counts it as one."""
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
        """What Optuna draws the coordinate from."""
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
        """Every value there is; empty when there is no end of them."""
        if self.options:
            return self.options
        if self.step:
            return range(self.low, self.high + 1, self.step)
        return ()

    def value(self, coordinate):
        """What the spec gets. Numbers with a fraction are cut to four digits, as people would write
        them."""
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
        """The inverse of `value`; None for what this dimension cannot express."""
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
        """Where a value lies between the ends of the range, 0 to 1, for charts."""
        if self.coordinate(value) is None:
            return None
        if self.options:
            return self.options.index(value) / (len(self.options) - 1)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """(share, label) of the marks of an axis."""
        shown = self.options or (self.low, self.high)
        if len(shown) > 6:
            shown = (shown[0], shown[-1])
        return [(self.share(mark), value_text(mark)) for mark in shown]

    def words(self) -> str:
        """The range as `--range` takes it."""
        if self.options:
            return value_text(list(self.options))
        ends = f"{self.low}..{self.high}" if self.step else f"{self.low:g}..{self.high:g}"
        return f"{ends}:log" if self.log else ends


def build(
    base: dict, words: str, ranges: list[str], cap: int | None, fixed: Iterable[str] = ()
) -> tuple[list[Dimension], list[Finding]]:
    """The dimensions that the words and ranges of a command line name (without any the schema's
    default ones, but for the `fixed` ones), and what is wrong with them. `base` is the spec that is
    tuned; `cap` the records of one data-parallel rank."""
    if words.strip() or ranges:
        wanted, found = _wanted(words, ranges)
    else:
        wanted, found = _default(base, set(fixed))
    dimensions = []
    for key, written in wanted.items():
        dimension = _checked(base, key, written, found)
        if dimension and cap is not None:
            dimension = _capped(dimension, cap, found)
        if dimension:
            dimensions.append(dimension)
    if wanted.keys() >= EXCLUDE.keys():
        message = "got nframes too, expected one of them"
        found.append(findings.error("TUNE-FRAMES", "custom.vision.fps", message))
    if not dimensions and not findings.has_errors(found):
        fix = Fix(flags={"--range": "learning_rate=1e-6..1e-4"})
        message = "got nothing to vary"
        found.append(findings.error("TUNE-SPACE-EMPTY", "--range", message, fix))
    return _in_order(dimensions), found


def _in_order(dimensions: list[Dimension]) -> list[Dimension]:
    """The ranges in the order of the schema, but for keys that depend on another one: those come
    last."""
    leaves = document.keys("train")
    places = {key: place for place, key in enumerate(leaves)}

    def order(dimension: Dimension) -> tuple[bool, int]:
        return "depends_on" in leaves[dimension.key], places[dimension.key]

    return sorted(dimensions, key=order)


def _default(base: dict, fixed: set[str]) -> tuple[dict[str, None], list[Finding]]:
    """The keys that the schema proposes, without those that the user has set."""
    proposed = bundle.schema("train")["automl_default_parameters"]
    keys = [key for key in proposed if _has_table(base, key)]
    kept = [key for key in keys if key in fixed]
    found = []
    if kept:
        message = (
            f"left as --set gave it: {', '.join(kept)}; to vary it too, name it with the others"
        )
        fix = Fix(flags={"--words": ", ".join(keys)})
        found.append(findings.info("TUNE-GIVEN", "--words", message, fix))
    return {key: None for key in keys if key not in fixed}, found


def _wanted(words: str, ranges: list[str]) -> tuple[dict[str, str | None], list[Finding]]:
    """(key -> the range as it was written, or None for the schema's; what no key is named so)."""
    named = []
    for word in re.split(r",|\band\b", words):
        if word.strip():
            named.append((word.strip(), None))
    for given in ranges:
        name, _, written = given.partition("=")
        named.append((name.strip(), written.strip()))
    wanted: dict[str, str | None] = {}
    found = []
    for name, written in named:
        key = explain.exact(name, ["train"])
        if key is None:
            found.append(_unknown(name))
        elif written is None:
            wanted.setdefault(key, None)
        elif wanted.get(key) is not None:
            found.append(findings.error("TUNE-RANGE", key, "got two ranges, expected one"))
        else:
            wanted[key] = written
    return wanted, found


def _unknown(name: str) -> Finding:
    short = name.lower().replace(" ", "_")
    message = f"got {name!r}, expected a key of the train spec or a short name"
    told = names.word("train", short)
    near = names.misspelt("train", short)
    if told:
        message += f"; {told.note}"
    elif near:
        message += f". Did you mean {', '.join(near)}?"
    return findings.error("TUNE-KEY", name, message)


def _has_table(base: dict, key: str) -> bool:
    """LoRA's keys exist only in a spec that trains adapters."""
    return not key.startswith("policy.lora.") or document.get(base, "policy.lora") is not None


class RangeError(ValueError):
    """Why a key has no dimension: what was got and expected, and perhaps a fix."""

    def __init__(self, problem: str, fix: Fix | None = None):
        super().__init__(problem)
        self.fix = fix or Fix()


def _checked(base: dict, key: str, written: str | None, found: list[Finding]) -> Dimension | None:
    """The dimension of one key, or None and a finding."""
    leaf = document.keys("train")[key]
    try:
        if "x-path" in leaf or key.startswith(UNFIT):
            raise RangeError(
                "a key that says where things are or what is kept, "
                "expected one that changes the training"
            )
        if not _has_table(base, key):
            raise RangeError("a spec without policy.lora, expected one made with --tuning lora")
        if written is None:
            return _from_schema(base, key, leaf)
        return _from_text(key, leaf, written)
    except RangeError as problem:
        found.append(findings.error("TUNE-RANGE", key, f"got {problem}", problem.fix))
        return None


def _from_schema(base: dict, key: str, leaf: dict) -> Dimension:
    if "enum" in leaf and leaf.get("automl_enabled"):
        return Dimension(key, options=tuple(leaf["enum"]), weights=tuple(leaf["option_weights"]))
    if "automl_range" not in leaf:
        raise RangeError(
            "no range, expected one (the schema has none for this key)",
            Fix(flags={"--range": f"{key}=LO..HI"}),
        )
    low, high = leaf["automl_range"]
    trains_adapters = document.get(base, "policy.lora") is not None
    if trains_adapters and "automl_range_lora" in leaf:
        low, high = leaf["automl_range_lora"]
    return _interval(key, leaf, low, high, leaf.get("automl_scale"))


def _from_text(key: str, leaf: dict, written: str) -> Dimension:
    if written.startswith("[") and written.endswith("]"):
        return _listed(key, leaf, written)
    match = RANGE.fullmatch(written)
    if not match:
        raise RangeError(f"{written!r}, expected LO..HI, LO..HI:log or [A,B,C]")
    low = _legal(leaf, values.parse(leaf, match["low"].strip()))
    high = _legal(leaf, values.parse(leaf, match["high"].strip()))
    if not (is_number(low) and is_number(high)):
        raise RangeError(f"{written!r}, expected options [A,B,C] of {values.expected(leaf)}")
    return _interval(key, leaf, low, high, match["scale"] or leaf.get("automl_scale"))


def _interval(key: str, leaf: dict, low: float, high: float, scale: str | None) -> Dimension:
    is_log = scale == "log"
    if low >= high:
        raise RangeError(f"{low}..{high}, expected a lower end below the upper one")
    if is_log and low <= 0:
        raise RangeError(
            f"{low}..{high} on a log scale, expected it to start above 0, or {low}..{high}:linear"
        )
    if leaf.get("math_cond") == "^ 2":
        first = math.ceil(math.log2(low))
        last = math.floor(math.log2(high))
        if first >= last:
            raise RangeError(f"{low}..{high}, expected at least two powers of two in it")
        return Dimension(key, options=tuple(2**power for power in range(first, last + 1)))
    if not _whole(key, leaf, (low, high)):
        return Dimension(key, float(low), float(high), is_log)
    step = leaf.get("multipleOf", 1)
    if is_log and step > 1:
        raise RangeError(
            f"{low}..{high}:log, expected [A,B,C]: not every whole number in it is legal"
        )
    return Dimension(key, low, high, is_log, step)


def _whole(key: str, leaf: dict, ends: Iterable) -> bool:
    """Whether these values are whole numbers. The warm-up is a share of the run up to 1.0, and
    beyond it steps."""
    if key != WARMUP or all(end <= 1 for end in ends):
        return leaf.get("type") == "integer"
    if any(isinstance(end, float) for end in ends):
        raise RangeError(
            "shares of the run and steps in one range, "
            "expected 0.0..1.0, or whole steps such as 0..100"
        )
    return True


def _listed(key: str, leaf: dict, written: str) -> Dimension:
    """`[A,B,C]`: TOML, or words without quotes."""
    different = []
    for option in values.parse({"type": "array", "items": leaf}, written):
        legal = None if option == "" else _legal(leaf, option)
        if legal is not None and legal not in different:
            different.append(legal)
    if len(different) < 2:
        raise RangeError(f"{written}, expected at least two different values")
    if all(is_number(option) for option in different):
        _whole(key, leaf, different)
        different.sort()
    return Dimension(key, options=tuple(different))


def _legal(leaf: dict, value):
    """The value; 1e6 is a whole number too. Raises RangeError for one that the schema refuses."""
    import jsonschema

    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not is_finite or not jsonschema.Draft202012Validator(leaf).is_valid(value):
        raise RangeError(f"{values.shown(value)}, expected {values.expected(leaf)}")
    return int(value) if leaf.get("type") == "integer" else value


def _capped(dimension: Dimension, cap: int, found: list[Finding]) -> Dimension | None:
    """A batch larger than the samples of one GPU would train nothing or repeat records."""
    if dimension.key not in BATCHES or dimension.points()[-1] <= cap:
        return dimension
    most = dimension.points()[-1]
    remaining = tuple(option for option in dimension.points() if option <= cap)
    message = f"got up to {most}, capped at the {cap} samples of each data-parallel rank"
    if len(remaining) < 2:
        message += "; nothing is left to vary"
    found.append(findings.info("TUNE-BATCH-CAP", dimension.key, message))
    if len(remaining) < 2:
        return None
    if dimension.options:
        return replace(dimension, options=remaining)
    return replace(dimension, high=remaining[-1])


def active(dimension: Dimension, table: dict) -> bool:
    """False while what the key depends on is off in this spec."""
    parent = document.keys("train")[dimension.key].get("depends_on")
    return parent is None or document.get(table, parent) not in (None, False, 0, "", "none")


def put(table: dict, dimension: Dimension, value) -> None:
    """Set the key; of nframes and fps the other one goes."""
    if dimension.key in EXCLUDE:
        document.delete(table, EXCLUDE[dimension.key])
    document.set_value(table, dimension.key, value)
