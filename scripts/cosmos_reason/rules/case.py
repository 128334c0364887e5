"""A spec and what is known about where it will run, and a rule about it: a condition on such a case
beside the text of its finding.

Each subject has a module with a tuple of rules, RULES; `spec_rules` puts the tuples together."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.families import DEFAULT, FAMILIES
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.estimate.gpu_memory import geometry
from cosmos_reason.media import sampling
from cosmos_reason.remote import model_names
from cosmos_reason.rules.keys import (
    POLICY_GPUS,
    RANKS_OF_REPLICA,
    REPLICAS,
    ROLLOUT_GPUS,
    SAVE,
    SAVE_EPOCHS,
)
from cosmos_reason.spec import actions, document, validation
from cosmos_reason.spec.keys import BATCH, DROP_LAST, RESPONSE_MODE

if TYPE_CHECKING:
    from cosmos_reason.estimate.record_tokens import RecordTokens

SMALL = 3e9  # parameters
COUNTED_BYTES = 16 << 20  # of annotations, in a third of a second

LATER = "later"  # a warning while a spec is built, an error when it is launched
ASKED = "asked"  # a warning where answers are judged, an info elsewhere
TRAINING = "train grpo"
JUDGED = ("evaluate", "inference")
MODELS = "evaluate inference quantize"
ANY = f"{TRAINING} {MODELS}"


def remembered(compute: Callable[[Case], object]) -> property:
    """Return a property of a case that is computed once: who reads it has read all keys that it was
    computed from."""

    def read(case: Case) -> object:
        if compute not in case.known:
            # Apart from what the asking rule read so far: the next one to ask gets these keys, too.
            outer, case.keys_read = case.keys_read, set()
            case.known[compute] = compute(case), case.keys_read
            case.keys_read = outer
        value, keys = case.known[compute]
        case.keys_read |= keys
        return value

    return property(read, doc=compute.__doc__)


@dataclass(eq=False)
class Case(dict):
    """A spec and what is known about where it will run. `case(key)` reads a value by its dotted
    key, defaults included; None for a key that the action does not have. `keys_read` notes which
    were read, so that a rule need not say what it looks at.

    `facts_path` is the dataset_facts.json of the data that the action reads; `launch` is true when
    it is to start now, and `has_own_data` when a dataset script of somebody's own knows where the
    data are. `params` says where the action keeps its model, adapter and base model,
    `vision` is the prefix of its sampling keys.
    """

    action: str
    engine: str
    written: dict
    facts_path: Path | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    launch: bool = False
    has_own_data: bool = False
    drafted: Mapping[str, list] = field(default_factory=dict)  # annotation files yet to be written

    def __post_init__(self):
        self.keys_read: set[str] = set()
        self.known: dict[Callable, tuple[object, set[str]]] = {}  # what is `remembered`
        # Rules read hundreds of values: they stand in one flat dictionary, which `full` is nested.
        self.full = document.with_defaults(self.action, self.written)
        self.update(document.by_key(self.full))
        self.cosmos = bundle.is_cosmos_rl(self.engine)
        self.params = actions.places(self.action)
        self.vision = self.params["vision"] + "."
        self.gpus = None  # of all nodes, where a run is laid out over them
        if self.gpus_per_node and self.action in actions.TRAINING:
            self.gpus = self.gpus_per_node * self.nodes

    def __call__(self, key: str):
        self.keys_read.add(key)
        return self.get(key)

    def has(self, key: str) -> bool:
        self.keys_read.add(key)
        return document.get(self.written, key, document.MISSING) is not document.MISSING

    @property
    def model(self) -> str:
        return self(self.params["model"])

    def is_read(self, key: str) -> bool:
        """Return whether the engine applies the key, one of the action's schema."""
        return self.engine in document.keys(self.action)[key]["x-engines"]

    @property
    def reads_frames(self) -> bool:
        """Return whether the engine can be told how clips are sampled for this action."""
        return self.is_read(self.vision + "nframes")

    @property
    def adapter_base(self) -> str:
        """Return the base model that the folder of an adapter names; "" for a model."""
        if not self.model.startswith("/"):
            return ""
        return model_names.adapter_base(self.model)

    @property
    def is_wrapped(self) -> bool | str:
        """Return whether cosmos-rl has no model of its own for the family and wraps the Hugging
        Face one; words when the family is not known, which is so for most models."""
        if not self.cosmos:
            return False
        family, _ = model_names.family(self.model)
        if family is None:
            return f"model not visible here, taken for {DEFAULT.title}"
        return family in FAMILIES and not FAMILIES[family].own_in_cosmos_rl

    @property
    def is_small(self) -> bool:
        """Return whether the model has up to 3 billion parameters, as far as is known."""
        widths = geometry(self.model)
        return widths is not None and widths.parameters <= SMALL

    @property
    def omni(self) -> bool:
        """Return whether the model is a Cosmos 3 Omni checkpoint that is not converted."""
        _, omni = model_names.family(self.model)
        return omni

    @property
    def token_side(self) -> int:
        """Return the pixels per side of what becomes one token."""
        return 2 * sampling.patch_size(self.model)

    @property
    def policy_gpus(self) -> int:
        return math.prod(self(key) for key in POLICY_GPUS)

    @property
    def needed_gpus(self) -> int:
        """Return the GPUs that a launch takes. The launcher places no rollouts of their own in the
        colocated modes (cosmos-rl launch_all); the embedded engine has a process for each
        data-parallel rank."""
        if self.action not in actions.TRAINING:
            return self("num_gpus") or 1
        if not self.cosmos:
            return self.ranks
        if self.action != "grpo" or self("mode") != "disaggregated":
            return self.policy_gpus
        return self.policy_gpus + math.prod(self(key) for key in ROLLOUT_GPUS)

    @property
    def ranks(self) -> int:
        """Return how many take a batch of their own, as `schedule.ranks`."""
        if self.action not in actions.TRAINING:
            return 1
        replicas = self(REPLICAS) if self.cosmos else 1
        return schedule.ranks(replicas, self.ranks_of_replica, self.action == "grpo")

    @property
    def ranks_of_replica(self) -> int:
        """Return the data-parallel ranks of one replica."""
        return math.prod(self(key) for key in RANKS_OF_REPLICA)

    @property
    def global_batch(self) -> int:
        """Return the records of one optimizer step of a training, over all ranks."""
        return self(BATCH) * self.ranks

    @remembered
    def facts(self) -> dict | None:
        return read_facts(self.facts_path) if self.facts_path else None

    @remembered
    def has_other_facts(self) -> bool:
        """Return whether the facts describe other annotations than the spec names; those that were
        copied or moved since are the same."""
        annotations = self(actions.data_keys(self.action).annotations)
        if not self.facts or not annotations or self.facts.get("annotations") == annotations:
            return False
        from cosmos_reason.data.annotations import locate  # imports every reader of datasets

        path = locate(annotations)
        return not path.is_file() or files.sha256(path) != self.facts.get("fingerprint")

    @remembered
    def records(self) -> int | None:
        """Return the records of the data that the action reads; None when nobody here can count
        them."""
        if self.facts:
            return self.facts["records"]
        written = self(actions.data_keys(self.action).annotations) or ""
        if self.has_own_data:
            return None  # its script alone knows
        if written in self.drafted:
            return len(self.drafted[written])
        path = Path(written)
        if not path.is_file():
            return None
        stat = path.stat()
        # Size and time are part of the question: a file that is edited meanwhile is counted again.
        return _count_records(path, stat.st_size, stat.st_mtime_ns)

    @remembered
    def tokens(self) -> list[RecordTokens]:
        return self.tokens_with({})

    def tokens_with(self, changes: dict) -> list[RecordTokens]:
        """Return what each record costs under this spec with some keys changed; empty without
        dataset facts, or with a wrong sampling table."""
        if not self.facts:
            return []
        from cosmos_reason.estimate import record_tokens

        self.keys_read |= {self.params["vision"], self.params["model"]}
        # The case stays as it is: a fix is only tried here.
        full = copy.deepcopy(self.full)
        document.set_values(full, changes)
        try:
            return record_tokens.tokens_for_spec(self.facts_path, full)
        except sampling.ImpossibleOptions:  # which rules of their own tell
            return []

    @remembered
    def resumed(self) -> Path | None:
        """Return the complete checkpoint, as far as this machine sees, that the run continues
        from."""
        wanted = self("train.resume")
        output = self("train.output_dir")
        if not wanted or (wanted is True and not output):
            return None
        from cosmos_reason.checkpoints import run_outputs  # few runs are continued

        if wanted is True:
            return run_outputs.newest_resume(Path(output))
        folder = Path(wanted)
        return folder if run_outputs.is_complete_resume(folder) else None

    @remembered
    def finished(self) -> Path | None:
        """Return the model of the run that is to be continued, when no step of that run is left."""
        if not self.resumed:
            return None
        from cosmos_reason.checkpoints import run_outputs

        return run_outputs.finished(self.resumed, self._steps_of_resumed)

    @property
    def _steps_of_resumed(self) -> int | None:
        """Return the steps that the run to be continued was to have, where more of them are asked
        for now: cosmos-rl keeps its number (sft_worker, ckpt_total_steps)."""
        config = model_names.read_table(self.resumed / "cosmos_config").get("train")
        if not isinstance(config, dict):
            return self.steps
        then = self._steps_of(config.get("epoch"), config.get("max_num_steps"))
        return min(filter(None, (then, self.steps)), default=None)

    @remembered
    def steps_per_epoch(self) -> int | None:
        """Return the steps of an epoch, None when the records are not counted."""
        if self.trained_records is None:
            return None
        return schedule.steps_per_epoch(
            self.trained_records, self(BATCH), self.ranks, self(DROP_LAST)
        )

    @property
    def trained_records(self) -> int | None:
        """Return the records of a training's epoch; None when they are not counted, or when only
        dataset facts tell how many have a reasoning that is trained too."""
        if self.action != "train" or self.records is None:
            return None
        if self.facts is None:
            return None if self(RESPONSE_MODE) == "hybrid" else self.records
        reasoned = self.facts.get("reasoning_beside", 0)
        return schedule.trained_records(self.records, reasoned, self(RESPONSE_MODE))

    @property
    def steps(self) -> int | None:
        """Return the optimizer steps of the whole run, None when they are not known."""
        return self._steps_of(self("train.epoch"), self("train.max_num_steps"))

    def _steps_of(self, epochs: int | None, limit: int | None) -> int | None:
        if self.steps_per_epoch is None or epochs is None:
            return limit
        steps = self.steps_per_epoch * epochs
        return min(steps, limit) if limit else steps

    @property
    def save_interval(self) -> int | None:
        """Return the steps between checkpoints; None when they follow epochs of unknown length."""
        epochs = self(SAVE_EPOCHS)
        if not epochs:
            return self(SAVE)
        return epochs * (self.steps_per_epoch or 0) or None


@functools.lru_cache(maxsize=4)
def _count_records(path: Path, size: int, modified: int) -> int | None:
    """Return the records of an annotation file as it was then; None for a large one, which takes
    seconds, and for one that cannot be read, of which check_dataset says what is wrong."""
    from cosmos_reason.data.json_stream import JsonRecords

    if size > COUNTED_BYTES:
        return None
    try:
        return sum(1 for _ in JsonRecords(path))
    except f.Failure:
        return None


def read_facts(path: Path) -> dict:
    """Return the facts check_dataset wrote. Raises Failure (exit 2) for another file."""
    facts = files.read_json(path)
    if (
        not isinstance(facts, dict)
        or type(facts.get("records")) is not int
        or facts.get("schema_version") != 1
    ):
        message = "not dataset facts: name the file that check_dataset.py --facts writes"
        raise f.bad_input(
            "SPEC-FACTS", path, message, "scripts/check_dataset.py ROOT --facts dataset_facts.json"
        )
    return facts


def sound(action: str, written: dict, invalid: list[str]) -> dict:
    """Return the spec with its invalid parts replaced by the template's, so that rules can read the
    rest."""
    whole = copy.deepcopy(written)
    base = document.template(action)
    for key in invalid:
        document.delete(whole, key)
        value = document.get(base, key, document.MISSING)
        if value is not document.MISSING:
            document.set_value(whole, key, value)
    return whole


def of_sound_values(
    action: str,
    engine: str,
    written: dict,
    facts: Path | None = None,
    drafted: Mapping[str, list] | None = None,
) -> Case:
    """Return the case of a spec in which the template's values stand for invalid ones: for what has
    to be counted before everything is checked."""
    invalid = [finding.where for finding in validation.validate(action, written)]
    return Case(action, engine, sound(action, written, invalid), facts, drafted=drafted or {})


# ---- rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """`broken(case)` is falsy when all is well, else true, or a few words with the numbers, or
    those and record ids.

    `key` is where the finding points ("{vision}", "{model}", "{base}" and "{adapter}" are the
    action's own). While it, or a key that the condition or the fix read, is invalid, nothing is
    said. `fix` is a `Fix`, or a value for `key`, or a function of the case for one of these; None
    when nothing is known to help.
    """

    id: str
    severity: str
    actions: str
    key: str
    reason: str
    broken: Callable[[Case], object]
    fix: object = None
