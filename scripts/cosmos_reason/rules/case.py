"""Checks a whole spec: its schema, what its engine can do, and all rules (spec_rules.py) over
it."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import annotations
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.estimate import record_tokens
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.media import sampling
from cosmos_reason.remote import model_names
from cosmos_reason.rules import launchable
from cosmos_reason.rules.keys import (
    BATCH,
    DROP_LAST,
    POLICY_GPUS,
    RANKS,
    RESPONSE_MODE,
    ROLLOUT_GPUS,
)
from cosmos_reason.rules.rule import LATER, Rule
from cosmos_reason.rules.spec_rules import RULES
from cosmos_reason.spec import actions, document, legal, validation
from cosmos_reason.spec import values as spec_values

COSMOS = ("tao", "cosmos-rl")
COUNTED_BYTES = 16 << 20  # of annotations, in a third of a second
WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
URIS = {"input": ("s3://",), "output": (), "model": (model_names.HUB,)}  # by a key's x-path


@dataclass
class Case:
    """A spec and what is known about where it will run. `case(key)` reads a value, defaults
    included.

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
        self.full = document.with_defaults(self.action, self.written)
        self.cosmos = self.engine in COSMOS
        self.params = actions.places(self.action)
        self.vision = self.params["vision"] + "."
        self.gpus = self.gpus_per_node * self.nodes if self.gpus_per_node and self.cosmos else None

    def __call__(self, key: str):
        return document.get(self.full, key)

    def has(self, key: str) -> bool:
        return document.get(self.written, key, document.MISSING) is not document.MISSING

    @property
    def model(self) -> str:
        return self(self.params["model"])

    @property
    def reads_frames(self) -> bool:
        """Whether the engine can be told how clips are sampled for this action."""
        return self.engine in document.keys(self.action)[self.vision + "nframes"]["x-engines"]

    @property
    def adapter_base(self) -> str:
        return model_names.adapter_base(self.model) if self.model.startswith("/") else ""

    @property
    def qwen3(self) -> bool | str:
        """cosmos-rl has no model of its own for this family and wraps the Hugging Face one; words
        when it is not known whether the model is of this family, which most are."""
        family = model_names.family(self.model)[0] if self.cosmos else ""
        return family == "qwen3_vl" or (
            family is None and "model not visible here, taken for Qwen3-VL"
        )

    @property
    def omni(self) -> bool:
        return model_names.family(self.model)[1]

    @property
    def token_side(self) -> int:
        """Pixels per side of what becomes one token."""
        return 2 * sampling.patch_size(self.model)

    @property
    def policy_gpus(self) -> int:
        return math.prod(self(key) for key in POLICY_GPUS)

    @property
    def rollout_gpus(self) -> int:
        if self.action != "grpo":
            return 0
        return math.prod(self(key) for key in ROLLOUT_GPUS)

    @property
    def needed_gpus(self) -> int:
        """The launcher places no rollouts of their own in the colocated modes (cosmos-rl
        launch_all); the embedded engine trains on one GPU."""
        if self.action not in actions.TRAINING or not self.cosmos:
            return self("num_gpus") or 1
        if self.action == "grpo" and self("mode") != "disaggregated":
            return self.policy_gpus
        return self.policy_gpus + self.rollout_gpus

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each of which takes its own batch."""
        if not self.cosmos:
            return 1
        return math.prod(self(key) for key in RANKS)

    @property
    def global_batch(self) -> int:
        """Records of one optimizer step of a training, over all ranks."""
        return self(BATCH) * self.ranks

    @cached_property
    def facts(self) -> dict | None:
        return read_facts(self.facts_path) if self.facts_path else None

    @cached_property
    def records(self) -> int | None:
        """Records of the data that the action reads; None when nobody here can count them."""
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
        return _count_records(path, stat.st_size, stat.st_mtime_ns)

    @cached_property
    def tokens(self) -> list[record_tokens.RecordTokens]:
        return self.tokens_with({})

    def tokens_with(self, changes: dict) -> list[record_tokens.RecordTokens]:
        """What each record costs under this spec with some keys changed; empty without dataset
        facts, or with a wrong sampling table."""
        full = copy.deepcopy(self.full)
        for key, value in changes.items():
            document.set_value(full, key, value)
        try:
            return record_tokens.tokens_for_spec(self.facts_path, full) if self.facts else []
        except f.Failure as failure:
            if failure.findings[0].id.startswith("SPEC-VISION"):
                return []
            raise

    @cached_property
    def resumed(self) -> Path | None:
        """The complete checkpoint, as far as this machine sees, that the run continues from."""
        wanted, output = self("train.resume"), self("train.output_dir")
        if not wanted or (wanted is True and not output):
            return None
        from cosmos_reason.checkpoints import run_outputs

        if wanted is True:
            return run_outputs.newest_resume(Path(output))
        return Path(wanted) if run_outputs.is_complete_resume(Path(wanted)) else None

    @cached_property
    def finished(self) -> Path | None:
        """The model of the run that is to be continued, when no step of that run is left."""
        from cosmos_reason.checkpoints import run_outputs

        return run_outputs.finished(self.resumed, self.steps) if self.resumed else None

    @property
    def steps_per_epoch(self) -> int | None:
        """None when the records are not counted."""
        if self.trained_records is None:
            return None
        batch, drop_last = self(BATCH), self(DROP_LAST)
        return schedule.steps_per_epoch(self.trained_records, batch, self.ranks, drop_last)

    @property
    def trained_records(self) -> int | None:
        """Records of a training's epoch; None when they are not counted, or when only dataset
        facts tell how many have a reasoning that is trained too."""
        if self.action != "train" or self.records is None:
            return None
        if self.facts is None:
            return None if self(RESPONSE_MODE) == "hybrid" else self.records
        reasoned = self.facts.get("reasoning_beside", 0)
        return annotations.trained_records(self.records, reasoned, self(RESPONSE_MODE))

    @property
    def incomplete_batch(self) -> str:
        """What becomes of the records of an epoch that fill no batch; '' when there are none."""
        if not self.trained_records:
            return ""
        left = math.ceil(self.trained_records / self.ranks) % self(BATCH)
        if not left:
            return ""
        where = f"{left} records of each rank" if self.ranks > 1 else f"{left} records"
        if self(DROP_LAST):
            return f"dataloader_drop_last leaves out {where}, a step less"
        return f"the last with {where}, which dataloader_drop_last would leave out"

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run, when they are known."""
        limit, in_epoch = self("train.max_num_steps"), self.steps_per_epoch
        if in_epoch is None:
            return limit
        steps = in_epoch * self("train.epoch")
        return min(steps, limit) if limit else steps

    @property
    def save_interval(self) -> int | None:
        """Steps between checkpoints; None when they follow epochs of unknown length."""
        epochs = self("train.ckpt.save_freq_in_epoch")
        if not epochs:
            return self("train.ckpt.save_freq")
        return epochs * (self.steps_per_epoch or 0) or None


@functools.lru_cache(maxsize=4)
def _count_records(path: Path, size: int, modified: int) -> int | None:
    """Records of an annotation file as it was then; None for a large one, which takes seconds, and
    for one that cannot be read, of which check_dataset says what is wrong."""
    if size > COUNTED_BYTES:
        return None
    try:
        return sum(1 for _ in JsonRecords(path))
    except f.Failure:
        return None


def read_facts(path: Path) -> dict:
    """The facts check_dataset wrote. Raises Failure (exit 2) for another file."""
    facts = files.read_json(path)
    if (
        not isinstance(facts, dict)
        or type(facts.get("records")) is not int
        or facts.get("schema_version") != 1
    ):
        message = "got no dataset facts, expected the dataset_facts.json that check_dataset writes"
        raise f.bad_input(
            "SPEC-FACTS", path, message, "scripts/check_dataset.py ROOT --facts dataset_facts.json"
        )
    return facts


def find(rule: Rule, case: Case) -> f.Finding | None:
    """The finding of a rule, when the case breaks it."""
    detail = rule.broken(case)
    if not detail:
        return None
    words, record_ids = detail if isinstance(detail, tuple) else (detail, [])
    key = rule.key.format(**case.params)
    message = f"got {_got(case, key, words)}: {rule.reason}"
    severity = rule.severity
    if severity == LATER:
        severity = f.ERROR if case.launch else f.WARNING
    data = {"record_ids": record_ids[: f.MAX_RECORD_IDS]} if record_ids else {}
    return f.Finding(rule.id, severity, key, message, _remedy(rule, case, key), data)


def _got(case: Case, key: str, words: str | bool) -> str:
    """The value that a message begins with, and the numbers that a rule gave, if it did."""
    if key.startswith("--") and isinstance(words, str):
        return words
    value = case(key)
    if value in (None, ""):
        got = "no value"
    elif case.has(key):
        got = spec_values.shown(value)
    else:
        got = f"no value (then {spec_values.shown(value)})"
    return f"{got} ({words})" if isinstance(words, str) else got


def _remedy(rule: Rule, case: Case, key: str) -> Fix:
    """The rule's fix, without changes to values that the spec has already."""
    fix = rule.fix(case) if callable(rule.fix) else rule.fix
    if fix is None:
        return Fix()
    if not isinstance(fix, Fix):
        fix = Fix(changes={key: fix})
    changes = {changed: value for changed, value in fix.changes.items() if case(changed) != value}
    return replace(fix, changes=changes)


def check(
    action: str,
    engine: str,
    written: dict,
    facts: Path | None = None,
    gpus_per_node: int | None = None,
    nodes: int = 1,
    launch: bool = False,
    has_own_data: bool = False,
    drafted: Mapping[str, list] | None = None,
) -> list[f.Finding]:
    """Every finding about a spec: the schema's, the engine's, and of all rules whose keys are
    valid.

    `facts` is the path of dataset_facts.json; `launch` makes errors of what may still be missing in
    a draft; `drafted` holds the records of annotation files that are yet to be written.
    """
    found = validation.validate(action, written)
    if any(finding.id == "SPEC-ACTION" for finding in found):
        return found
    invalid = [finding.where for finding in found if finding.severity == f.ERROR]
    per_part = [key for key in legal.PER_PART if key in validation.trainers_own(action, written)]
    invalid += validation.brought_by_renamings(found)  # whose values are told, not yet written
    invalid += per_part  # of one rate for each part of the model, no rule knows which to look at
    spec = sound(action, written, invalid)
    case = Case(
        action, engine, spec, facts, gpus_per_node, nodes, launch, has_own_data, drafted or {}
    )
    if not case.cosmos:
        found += _trainers_own_elsewhere(case, written)
    without_engine = engine_findings(action, engine)
    found += without_engine
    if not without_engine:
        found += unapplied_findings(case) + unlaunched(action, engine)
    found += unknown_uris(case)
    if action in actions.TRAINING and case.resumed:
        found += _resumed_otherwise(case)
    return found + broken_rules(case, invalid)


def broken_rules(case: Case, invalid: list[str]) -> list[f.Finding]:
    """The findings of the action's rules, but for rules that look at an invalid key."""
    found = []
    for rule in RULES:
        if case.action not in rule.actions.split() or rule.skipped(case.params, invalid):
            continue
        finding = find(rule, case)
        if finding:
            found.append(finding)
    return found


def _resumed_otherwise(case: Case) -> list[f.Finding]:
    by_embedded_engine = (case.resumed / "trainer_state.json").is_file()
    if by_embedded_engine == case.cosmos:
        other = "the embedded engine" if by_embedded_engine else "cosmos-rl"
        message = f"got a folder saved by {other}, expected one that engine {case.engine} saved"
        return [
            f.error(
                "SPEC-RESUME-OTHER", "train.resume", message, Fix(changes={"train.resume": False})
            )
        ]
    saved = model_names.read_table(case.resumed / "cosmos_config")
    return differences(case.full, saved, case.cosmos)


def _tuning(table: dict) -> str:
    return "lora" if document.get(table, "policy.lora") else "full"


def differences(now: dict, saved: dict, cosmos: bool) -> list[f.Finding]:
    """An error for adapters, and on cosmos-rl for sizes of the layout, that are not those of the
    run to resume."""
    found = []
    ours, theirs = _tuning(now), _tuning(saved)
    if ours != theirs:
        message = f"got {ours}, but the run to resume has {theirs}"
        found.append(
            f.error("SPEC-RESUME-OTHER", "policy.lora", message, Fix(flags={"--tuning": theirs}))
        )
    keys = []
    if ours == theirs == "lora":
        keys.append("policy.lora.r")
    if cosmos:
        keys += POLICY_GPUS
    for key in keys:
        before, value = document.get(saved, key), document.get(now, key)
        if type(before) is int and before > 0 and before != value:
            message = f"got {spec_values.shown(value)}, but the run to resume has {before}"
            fix = Fix(changes={key: before})
            found.append(f.error("SPEC-RESUME-OTHER", key, message, fix))
    return found


def count_steps(
    action: str,
    engine: str,
    written: dict,
    facts: Path | None,
    drafted: Mapping[str, list] | None = None,
) -> tuple[int | None, int | None]:
    """Optimizer steps of one epoch, and of the run, as far as they are known."""
    if action != "train":
        return None, None
    invalid = [finding.where for finding in validation.validate(action, written)]
    case = Case(action, engine, sound(action, written, invalid), facts, drafted=drafted or {})
    return case.steps_per_epoch, case.steps


def count_ranks(action: str, engine: str, written: dict) -> int:
    """Data-parallel ranks of a training; 1 for other actions."""
    if action != "train":
        return 1
    invalid = [finding.where for finding in validation.validate(action, written)]
    return Case(action, engine, sound(action, written, invalid)).ranks


def sound(action: str, written: dict, invalid: list[str]) -> dict:
    """The spec with its invalid parts replaced by the template's, so that rules can read the
    rest."""
    whole = copy.deepcopy(written)
    base = document.template(action)
    for key in invalid:
        document.delete(whole, key)
        value = document.get(base, key, document.MISSING)
        if value is not document.MISSING:
            document.set_value(whole, key, value)
    return whole


def engine_findings(action: str, engine: str) -> list[f.Finding]:
    """Empty when the engine has the action."""
    engines = bundle.skill_info()["engines"]
    able = [name for name, facts in engines.items() if action in facts["actions"]]
    if engine in able:
        return []
    message = f"got {action} on engine {engine}, expected an engine that has it: {', '.join(able)}"
    return [f.error("SPEC-ENGINE-ACTION", "--engine", message, Fix(flags={"--engine": able[0]}))]


def unlaunched(action: str, engine: str) -> list[f.Finding]:
    """A warning when this version writes the spec but starts no such job."""
    able = [name for name, _ in launchable.ways(action)]
    if engine in able:
        return []
    message = f"got {action} on engine {engine}, which this version does not launch"
    fix = Fix(flags={"--engine": able[0]}) if able else Fix()
    return [f.warning("SPEC-ENGINE-RUNS", "--engine", message, fix)]


def _trainers_own_elsewhere(case: Case, written: dict) -> list[f.Finding]:
    """An error about what only cosmos-rl or NVIDIA's images read, for another engine."""
    theirs = validation.trainers_own(case.action, written)
    if not theirs:
        return []
    readers = "cosmos-rl" if case.action in actions.TRAINING else "tao"
    message = f"got {', '.join(theirs)}, which engine {case.engine} does not apply: only {readers}"
    fix = Fix(changes=dict.fromkeys(theirs))
    return [f.error("SPEC-ENGINE-KEY", theirs[0], message, fix)]


def unapplied_findings(case: Case) -> list[f.Finding]:
    """Keys that ask the engine for something it does not do.

    A value asks for nothing when it is the template's, or, for a key the template leaves out, the
    trainer's default.
    """
    found = []
    schemas, template = document.keys(case.action), document.template(case.action)
    for key, value in document.items(case.action, case.written):
        schema = schemas.get(key)
        if schema is None or case.engine in schema["x-engines"]:
            continue
        ours = document.get(template, key, document.MISSING)
        if ours is document.MISSING:
            nothing, fix = schema.get("default", document.MISSING), Fix(changes={key: None})
        else:
            nothing, fix = ours, Fix(changes={key: ours})
        if value == nothing:
            continue
        able = schema.get("x-instead") or f"only {', '.join(schema['x-engines'])}"
        got = spec_values.shown(value)
        message = f"got {got}, which engine {case.engine} does not apply: {able}"
        severity = f.ERROR if schema.get("x-ignoring") == "error" else f.WARNING
        found.append(f.Finding("SPEC-ENGINE-KEY", severity, key, message, fix))
    return found


def unknown_uris(case: Case) -> list[f.Finding]:
    """Paths that nothing here can open: inputs may be on S3, outputs are folders, none has a drive
    letter."""
    found = []
    for key, schema in document.keys(case.action).items():
        value, kind = case(key), schema.get("x-path")
        if not kind or not isinstance(value, str):
            continue
        got = f"got {spec_values.shown(value)}, expected a path"
        if WINDOWS_PATH.match(value):
            message = f"{got} of the machine that runs the job, such as /mnt/c/... under WSL"
            found.append(f.error("SPEC-PATH-WINDOWS", key, message))
        elif "://" in value and not value.startswith(URIS[kind]):
            found.append(
                f.error("SPEC-URI", key, got + "".join(f" or {uri}..." for uri in URIS[kind]))
            )
    return found
