"""What a study may vary: one `Dimension` per spec key, from the train schema, from `--range`, or from spoken words.

Optuna sees coordinates: a number, or an option's place in a list. `value` and `coordinate` translate both ways, so that
the sampler learns from what really ran also when a suggestion had to be repaired.
"""

from __future__ import annotations

import math
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cosmos_reason import bundle, explain, spec, spec_values
from cosmos_reason import findings as f

BATCHES = ("train.train_batch_per_replica", "train.train_policy.mini_batch")
EXCLUDE = {"custom.vision.fps": "custom.vision.nframes", "custom.vision.nframes": "custom.vision.fps"}
WARMUP = "train.optm_warmup_steps"
UNFIT = ("train.resume", "train.timestamp", "train.ckpt.", "validation.", "logging.")  # they train nothing else
RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?::(?P<scale>log|linear))?")


@dataclass(frozen=True)
class Dimension:
    """A range of numbers from `low` to `high`, whole ones in steps of `step`; or `options`: numbers in order, words as
    they come. `weights` say how often each option is drawn before anything is known."""

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
            numbers = all(type(option) in (int, float) for option in self.options)
            last = len(self.options) - 1
            return IntDistribution(0, last) if numbers else CategoricalDistribution(range(last + 1))
        if self.step:
            return IntDistribution(self.low, self.high, log=self.log, step=self.step)
        return FloatDistribution(self.low, self.high, log=self.log)

    def points(self) -> Sequence:
        """Every value there is; empty when there is no end of them."""
        return self.options or (range(self.low, self.high + 1, self.step) if self.step else ())

    def value(self, coordinate):
        """What the spec gets. Numbers with a fraction are cut to four digits, as people would write them."""
        if self.weights:
            edges = list(accumulate(self.weights))
            return self.options[min(bisect_right(edges, coordinate * edges[-1]), len(self.options) - 1)]
        if self.options:
            return self.options[coordinate]
        return coordinate if self.step else min(max(float(f"{coordinate:.4g}"), self.low), self.high)

    def coordinate(self, value) -> float | int | None:
        """The inverse of `value`; None for what this dimension cannot express."""
        if self.options and value in self.options:
            place = self.options.index(value)
            return (sum(self.weights[:place]) + self.weights[place] / 2) / sum(self.weights) if self.weights else place
        fits = not self.options and type(value) in (int, float) and self.low <= value <= self.high
        return value if fits and (not self.step or value in self.points()) else None

    def share(self, value) -> float | None:
        """Where a value lies between the ends of the range, 0 to 1, for charts."""
        if self.coordinate(value) is None:
            return None
        place, low, high = value, self.low, self.high
        if self.options:
            place, low, high = self.options.index(value), 0, len(self.options) - 1
        elif self.log:
            place, low, high = math.log(value), math.log(low), math.log(high)
        return (place - low) / (high - low)

    def marks(self) -> list[tuple[float, str]]:
        """(share, label) of the marks of an axis."""
        shown = self.options or (self.low, self.high)
        shown = shown if len(shown) < 7 else (shown[0], shown[-1])
        return [(self.share(mark), spec_values.text(mark)) for mark in shown]

    def words(self) -> str:
        """The range as `--range` takes it."""
        if self.options:
            return spec_values.text(list(self.options))
        ends = f"{self.low}..{self.high}" if self.step else f"{self.low:g}..{self.high:g}"
        return f"{ends}{':log' if self.log else ''}"


def build(base: dict, words: str, ranges: list[str], cap: int | None, fixed=()) -> tuple[list, list[f.Finding]]:
    """The dimensions that the words and ranges of a command line name (without any the schema's default ones, but for
    the `fixed` ones), and what is wrong with them. `base` is the spec that is tuned; `cap` the records of one
    data-parallel rank."""
    found: list[f.Finding] = []
    named = [(word.strip(), None) for word in re.split(r",|\band\b", words) if word.strip()]
    named += [(name.strip(), written.strip()) for name, _, written in (given.partition("=") for given in ranges)]
    if not words.strip() and not ranges:
        keys = [key for key in bundle.schema("train")["automl_default_parameters"] if _has_table(base, key)]
        named = [(key, None) for key in keys if key not in fixed]
        if kept := [key for key in keys if key in fixed]:
            message = f"left as --set gave it: {', '.join(kept)}; to vary it too, name it with the others"
            found.append(f.info("TUNE-GIVEN", "--words", message, f"--words {shlex.quote(', '.join(keys))}"))
    wanted: dict[str, str | None] = {}
    for name, written in named:
        if (key := explain.exact(name, ["train"])) is None:
            found.append(_unknown(name))
        elif written is not None and wanted.get(key) is not None:
            found.append(f.error("TUNE-RANGE", key, "got two ranges, expected one"))
        else:
            wanted[key] = wanted.get(key) if written is None else written
    made = [_checked(base, key, written, found) for key, written in wanted.items()]
    made = [capped for dimension in made if dimension and (capped := _capped(dimension, cap, found))]
    if wanted.keys() >= EXCLUDE.keys():
        found.append(f.error("TUNE-FRAMES", "custom.vision.fps", "got nframes too, expected one of them"))
    if not made and not f.has_errors(found):
        found.append(f.error("TUNE-SPACE-EMPTY", "--range", "got nothing to vary", "--range learning_rate=1e-6..1e-4"))
    known = spec.keys("train")
    return sorted(made, key=lambda d: ("depends_on" in known[d.key], list(known).index(d.key))), found


def _unknown(name: str) -> f.Finding:
    short = name.lower().replace(" ", "_")
    names = {*bundle.skill_info()["shorthand"]["train"], *(key.rpartition(".")[2] for key in spec.keys("train"))}
    near = f.nearest(short, names, 1) or spec.suggestions("train", short)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    message = f"got {name!r}, expected a key of the train spec or a short name.{hint}"
    return f.error("TUNE-KEY", name, message, f"scripts/build_spec.py --explain {near[0]}" if near else "")


def _has_table(base: dict, key: str) -> bool:
    """LoRA's keys exist only in a spec that trains adapters."""
    return not key.startswith("policy.lora.") or spec.get(base, "policy.lora") is not None


def _checked(base: dict, key: str, written: str | None, found: list[f.Finding]) -> Dimension | None:
    """The dimension of one key, or None and a finding."""
    leaf = spec.keys("train")[key]
    try:
        if "x-path" in leaf or key.startswith(UNFIT):
            raise ValueError("a key that says where things are or what is kept, expected one that changes the training")
        if not _has_table(base, key):
            raise ValueError("a spec without policy.lora, expected one made with --tuning lora")
        return _from_schema(base, key, leaf) if written is None else _from_text(key, leaf, written)
    except ValueError as problem:
        found.append(f.error("TUNE-RANGE", key, f"got {problem.args[0]}", *problem.args[1:]))
        return None


def _from_schema(base: dict, key: str, leaf: dict) -> Dimension:
    if "enum" in leaf and leaf.get("automl_enabled"):
        return Dimension(key, options=tuple(leaf["enum"]), weights=tuple(leaf["option_weights"]))
    if "automl_range" not in leaf:
        raise ValueError("no range, expected one (the schema has none for this key)", f"--range {key}=LO..HI")
    ends = leaf.get("automl_range_lora") if _has_table(base, "policy.lora.") else None  # learning rates of adapters
    return _interval(key, leaf, *(ends or leaf["automl_range"]), leaf.get("automl_scale"))


def _from_text(key: str, leaf: dict, written: str) -> Dimension:
    """Raises ValueError with what was got and expected, and perhaps a fix."""
    if written.startswith("[") and written.endswith("]"):
        return _listed(key, leaf, written)
    match = RANGE.fullmatch(written)
    if not match:
        raise ValueError(f"{written!r}, expected LO..HI, LO..HI:log or [A,B,C]")
    low, high = (_legal(leaf, spec_values.parse(leaf, match[end].strip())) for end in ("low", "high"))
    if not all(type(end) in (int, float) for end in (low, high)):
        raise ValueError(f"{written!r}, expected options [A,B,C] of {spec_values.expected(leaf)}")
    return _interval(key, leaf, low, high, match["scale"] or leaf.get("automl_scale"))


def _interval(key: str, leaf: dict, low: float, high: float, scale: str | None) -> Dimension:
    """Raises ValueError as `_from_text` does."""
    log, step = scale == "log", leaf.get("multipleOf", 1)
    if low >= high:
        raise ValueError(f"{low}..{high}, expected a lower end below the upper one")
    if log and low <= 0:
        raise ValueError(f"{low}..{high} on a log scale, expected it to start above 0, or {low}..{high}:linear")
    if leaf.get("math_cond") == "^ 2":
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if len(powers) < 2:
            raise ValueError(f"{low}..{high}, expected at least two powers of two in it")
        return Dimension(key, options=tuple(2**power for power in powers))
    if not _whole(key, leaf, (low, high)):
        return Dimension(key, float(low), float(high), log)
    if log and step > 1:
        raise ValueError(f"{low}..{high}:log, expected [A,B,C]: not every whole number in it is legal")
    return Dimension(key, low, high, log, step)


def _whole(key: str, leaf: dict, ends: Iterable) -> bool:
    """Whether these values are whole numbers. The warm-up is a share of the run up to 1.0, and beyond it steps."""
    if key != WARMUP or all(end <= 1 for end in ends):
        return leaf.get("type") == "integer"
    if any(isinstance(end, float) for end in ends):
        raise ValueError("shares of the run and steps in one range, expected 0.0..1.0, or whole steps such as 0..100")
    return True


def _listed(key: str, leaf: dict, written: str) -> Dimension:
    """`[A,B,C]`: TOML, or words without quotes."""
    given = spec_values.parse({"type": "array", "items": leaf}, written)
    options = [_legal(leaf, option) for option in given if option != ""]
    different = [option for place, option in enumerate(options) if option not in options[:place]]
    if len(different) < 2:
        raise ValueError(f"{written}, expected at least two different values")
    numbers = all(type(option) in (int, float) for option in different)
    if numbers:
        _whole(key, leaf, different)
    return Dimension(key, options=tuple(sorted(different) if numbers else different))


def _legal(leaf: dict, value):
    import jsonschema

    finite = not isinstance(value, float) or math.isfinite(value)
    if not finite or not jsonschema.Draft202012Validator(leaf).is_valid(value):
        raise ValueError(f"{spec_values.shown(value)}, expected {spec_values.expected(leaf)}")
    return int(value) if leaf.get("type") == "integer" else value  # 1e6 is a whole number too


def _capped(dimension: Dimension, cap: int | None, found: list[f.Finding]) -> Dimension | None:
    """A batch larger than the samples of one GPU would train nothing or repeat records."""
    most = dimension.points()[-1] if dimension.key in BATCHES else 0
    if cap is None or most <= cap:
        return dimension
    left = tuple(option for option in dimension.points() if option <= cap)
    message = f"got up to {most}, capped at the {cap} samples of each data-parallel rank"
    message += "" if len(left) > 1 else "; nothing is left to vary"
    found.append(f.info("TUNE-BATCH-CAP", dimension.key, message))
    if len(left) < 2:
        return None
    return replace(dimension, options=left) if dimension.options else replace(dimension, high=left[-1])


def active(dimension: Dimension, table: dict) -> bool:
    """False while what the key depends on is off in this spec."""
    parent = spec.keys("train")[dimension.key].get("depends_on")
    return parent is None or spec.get(table, parent) not in (None, False, 0, "", "none")


def put(table: dict, dimension: Dimension, value) -> None:
    """Set the key; of nframes and fps the other one goes."""
    if dimension.key in EXCLUDE:
        spec.delete(table, EXCLUDE[dimension.key])
    spec.set_value(table, dimension.key, value)
