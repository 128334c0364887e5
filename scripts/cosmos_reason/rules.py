"""Checks a whole spec: its schema, what its engine can do, and the table of rules (spec_rules.py) over it."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cosmos_reason import bundle, models, schedule, spec, spec_values, storage, vision_tokens
from cosmos_reason import findings as f
from cosmos_reason.spec_conditions import BATCH, CKPT, DROP, GRID, LORA, POLICY_SIZES, ROLLOUT, ROLLOUT_SIZES
from cosmos_reason.spec_rules import LATER, RULES, TRAINING, Rule

COSMOS = ("tao", "cosmos-rl")
WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
URIS = {"input": ("s3://",), "output": (), "model": (models.HUB,)}  # by a key's x-path


@dataclass
class Case:
    """A spec and what is known about where it will run. `case(key)` reads a value, defaults included.

    `facts_path` is the dataset_facts.json of the data that the action reads; `launch` is true when it is to start now.
    `params` says where the action keeps its model, adapter and base model, `vision` is the prefix of its sampling keys.
    """

    action: str
    engine: str
    written: dict
    facts_path: Path | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    launch: bool = False
    read: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.full = spec.with_defaults(self.action, self.written)
        self.cosmos = self.engine in COSMOS
        self.params = bundle.skill_info()["spec_params"][self.action]
        self.vision = self.params["vision"] + "."
        self.gpus = self.gpus_per_node * self.nodes if self.gpus_per_node and self.cosmos else None

    def __call__(self, key: str):
        self.read.add(key)
        return spec.get(self.full, key)

    def has(self, key: str) -> bool:
        self.read.add(key)
        return spec.get(self.written, key, spec.MISSING) is not spec.MISSING

    @property
    def model(self) -> str:
        return self(self.params["model"])

    @property
    def adapter_base(self) -> str:
        return models.adapter_base(self.model) if self.model.startswith("/") else ""

    @property
    def qwen3(self) -> bool | str:
        """cosmos-rl has no model of its own for this family and wraps the Hugging Face one; words when it is not known
        whether the model is of this family, which most are."""
        family = models.family(self.model)[0] if self.cosmos else ""
        return family == "qwen3_vl" or (family is None and "model not visible here, taken for Qwen3-VL")

    @property
    def omni(self) -> bool:
        return models.family(self.model)[1]

    @property
    def token_side(self) -> int:
        """Pixels per side of what becomes one token."""
        return 2 * vision_tokens.patch_size(self.model)

    def layout(self, prefix: str, *sizes: str) -> int:
        return math.prod(self(prefix + size) for size in sizes)

    @property
    def policy_gpus(self) -> int:
        return self.layout(GRID, *POLICY_SIZES)

    @property
    def rollout_gpus(self) -> int:
        return self.layout(ROLLOUT, *ROLLOUT_SIZES) if self.action == "grpo" else 0

    @property
    def needed_gpus(self) -> int:
        """The launcher places no rollouts of their own in the colocated modes (cosmos-rl launch_all); the embedded
        engine trains on one GPU."""
        if self.action not in TRAINING.split() or not self.cosmos:
            return self("num_gpus") or 1
        shared = self.action == "grpo" and self("mode") != "disaggregated"
        return self.policy_gpus + (0 if shared else self.rollout_gpus)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each of which takes its own batch."""
        return self.layout(GRID, "n_init_replicas", "dp_shard_size", "dp_replicate_size") if self.cosmos else 1

    @cached_property
    def facts(self) -> dict | None:
        return read_facts(self.facts_path) if self.facts_path else None

    @cached_property
    def tokens(self) -> list[vision_tokens.RecordTokens]:
        return self.tokens_with({})

    def tokens_with(self, changes: dict) -> list[vision_tokens.RecordTokens]:
        """What each record costs under this spec with some keys changed; empty without dataset facts, or with a wrong
        sampling table."""
        full = copy.deepcopy(self.full)
        for key, value in changes.items():
            spec.set_value(full, key, value)
        try:
            return vision_tokens.tokens_for_spec(self.facts_path, full) if self.facts else []
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
        from cosmos_reason import checkpoints

        folders = [Path(wanted)] if isinstance(wanted, str) else Path(output).glob("*/checkpoints/*/policy")
        complete = [folder for folder in folders if checkpoints.is_complete_resume(folder)]
        return max(complete, key=lambda folder: checkpoints.step_number(folder.parent) or 0, default=None)

    @property
    def steps_per_epoch(self) -> int | None:
        """None without dataset facts."""
        known = self.facts is not None and self.action == "train"
        return schedule.steps_per_epoch(self.facts["records"], self(BATCH), self.ranks, self(DROP)) if known else None

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run, when they are known."""
        one, limit = self.steps_per_epoch, self("train.max_num_steps")
        return limit if one is None else min(one * self("train.epoch"), limit or math.inf)

    @property
    def save_interval(self) -> int | None:
        """Steps between checkpoints; None when they follow epochs of unknown length."""
        epochs = self(CKPT + "save_freq_in_epoch")
        return (epochs * (self.steps_per_epoch or 0) or None) if epochs else self(CKPT + "save_freq")


def read_facts(path: Path) -> dict:
    """The facts check_dataset wrote. Raises Failure (exit 2) for another file."""
    facts = storage.read_json(path)
    if not isinstance(facts, dict) or type(facts.get("records")) is not int or facts.get("schema_version") != 1:
        message = "got no dataset facts, expected the dataset_facts.json that check_dataset writes"
        raise f.bad_input("SPEC-FACTS", path, message, "scripts/check_dataset.py ROOT --facts dataset_facts.json")
    return facts


def find(rule: Rule, case: Case) -> f.Finding | None:
    case.read.clear()
    detail = rule.when(case)
    if not detail:
        return None
    key = rule.key.format(**case.params)
    words, ids = detail if isinstance(detail, tuple) else (detail, [])
    got = "no value" if case(key) in (None, "") else spec_values.shown(case(key))
    if got != "no value" and not case.has(key):
        got = f"no value (then {got})"
    if isinstance(words, str):
        got = words if key.startswith("--") else f"{got} ({words})"
    severity = {LATER: f.ERROR if case.launch else f.WARNING}.get(rule.severity, rule.severity)
    data = {"record_ids": ids[: f.MAX_RECORD_IDS]} if ids else {}
    return f.Finding(rule.id, severity, key, f"got {got}: {rule.reason}", _remedy(rule, case, key), data)


def _remedy(rule: Rule, case: Case, key: str) -> str:
    fix = rule.fix(case) if callable(rule.fix) else rule.fix
    if fix is None or (isinstance(fix, str) and fix.startswith(("-", "scripts/"))):
        return fix or ""
    changes = fix if isinstance(fix, dict) else {key: fix}
    return spec_values.as_flags({key: value for key, value in changes.items() if case(key) != value})


def check(
    action: str,
    engine: str,
    written: dict,
    facts: Path | None = None,
    gpus_per_node: int | None = None,
    nodes: int = 1,
    launch: bool = False,
) -> list[f.Finding]:
    """Every finding about a spec: the schema's, the engine's, and of all rules whose keys are valid.

    `facts` is the path of dataset_facts.json; `launch` makes errors of what may still be missing in a draft.
    """
    found = spec.validate(action, written)
    if any(finding.id == "SPEC-ACTION" for finding in found):
        return found
    invalid = [finding.where for finding in found if finding.severity == f.ERROR]
    case = Case(action, engine, sound(action, written, invalid), facts, gpus_per_node, nodes, launch)
    found += engine_findings(action, engine) or [*unapplied_findings(case), *unlaunched(action, engine)]
    found += unknown_tables(case) + unknown_uris(case)
    if action in TRAINING.split() and case.resumed:
        found += _resumed_otherwise(case)
    for rule in RULES:
        finding = find(rule, case) if action in rule.actions.split() else None
        if finding and not any(spec.overlap(key, wrong) for key in case.read for wrong in invalid):
            found.append(finding)
    return found


def _resumed_otherwise(case: Case) -> list[f.Finding]:
    if (case.resumed / "trainer_state.json").is_file() == case.cosmos:
        other = "the embedded engine" if case.cosmos else "cosmos-rl"
        message = f"got a folder saved by {other}, expected one that engine {case.engine} saved"
        return [f.error("SPEC-RESUME-OTHER", "train.resume", message, "--set train.resume=false")]
    return differences(case.full, models.read_table(case.resumed / "cosmos_config"), case.cosmos)


def differences(now: dict, saved: dict, cosmos: bool) -> list[f.Finding]:
    """An error for adapters, and on cosmos-rl for sizes of the layout, that are not those of the run to resume."""
    tuned, found = ["lora" if spec.get(table, "policy.lora") else "full" for table in (now, saved)], []
    if tuned[0] != tuned[1]:
        message = f"got {tuned[0]}, but the run to resume has {tuned[1]}"
        found.append(f.error("SPEC-RESUME-OTHER", "policy.lora", message, f"--tuning {tuned[1]}"))
    rank = [LORA + "r"] if tuned == ["lora", "lora"] else []
    for key in (*rank, *(GRID + size for size in POLICY_SIZES if cosmos)):
        before, value = spec.get(saved, key), spec.get(now, key)
        if type(before) is int and before > 0 and before != value:
            message = f"got {spec_values.shown(value)}, but the run to resume has {before}"
            found.append(f.error("SPEC-RESUME-OTHER", key, message, spec_values.set_flag(key, before)))
    return found


def count_steps(action: str, engine: str, written: dict, facts: Path | None) -> tuple[int | None, int | None]:
    """Optimizer steps of one epoch, and of the run, as far as they are known."""
    if action != "train":
        return None, None
    invalid = [finding.where for finding in spec.validate(action, written)]
    case = Case(action, engine, sound(action, written, invalid), facts)
    return case.steps_per_epoch, case.steps


def sound(action: str, written: dict, invalid: list[str]) -> dict:
    """The spec with its invalid parts replaced by the template's, so that rules can read the rest."""
    whole, base = copy.deepcopy(written), spec.template(action)
    for key in invalid:
        spec.delete(whole, key)
        if (value := spec.get(base, key, spec.MISSING)) is not spec.MISSING:
            spec.set_value(whole, key, value)
    return whole


def engine_findings(action: str, engine: str) -> list[f.Finding]:
    """Empty when the engine has the action."""
    able = [name for name, facts in bundle.skill_info()["engines"].items() if action in facts["actions"]]
    message = f"got {action} on engine {engine}, expected an engine that has it: {', '.join(able)}"
    return [] if engine in able else [f.error("SPEC-ENGINE-ACTION", "--engine", message, f"--engine {able[0]}")]


def unlaunched(action: str, engine: str) -> list[f.Finding]:
    """A warning when this version writes the spec but starts no such job."""
    engines = bundle.skill_info()["engines"].items()
    able = [name for name, facts in engines if action in facts.get("runs", facts["actions"])]
    message = f"got {action} on engine {engine}, which this version does not launch"
    fix = f"--engine {able[0]}" if able else ""
    return [] if engine in able else [f.warning("SPEC-ENGINE-RUNS", "--engine", message, fix)]


def unapplied_findings(case: Case) -> list[f.Finding]:
    """Keys that ask the engine for something it does not do.

    A value asks for nothing when it is the template's, or, for a key the template leaves out, the trainer's default.
    """
    found, known, base = [], spec.keys(case.action), spec.template(case.action)
    for key, value in spec.items(case.action, case.written):
        schema, ours = known.get(key), spec.get(base, key, spec.MISSING)
        if schema is None or case.engine in schema["x-engines"]:
            continue
        if value != (schema.get("default", spec.MISSING) if ours is spec.MISSING else ours):
            able = schema.get("x-instead") or f"only {', '.join(schema['x-engines'])}"
            message = f"got {spec_values.shown(value)}, which engine {case.engine} does not apply: {able}"
            severity = f.ERROR if schema.get("x-ignoring") == "error" else f.WARNING
            fix = f"--unset {key}" if ours is spec.MISSING else spec_values.set_flag(key, ours)
            found.append(f.Finding("SPEC-ENGINE-KEY", severity, key, message, fix))
    return found


def unknown_uris(case: Case) -> list[f.Finding]:
    """Paths that nothing here can open: inputs may be on S3, outputs are folders, none has a drive letter."""
    found = []
    for key, schema in spec.keys(case.action).items():
        value, kind = case(key), schema.get("x-path")
        if not kind or not isinstance(value, str):
            continue
        got = f"got {spec_values.shown(value)}, expected a path"
        if WINDOWS_PATH.match(value):
            message = f"{got} of the machine that runs the job, such as /mnt/c/... under WSL"
            found.append(f.error("SPEC-PATH-WINDOWS", key, message))
        elif "://" in value and not value.startswith(URIS[kind]):
            found.append(f.error("SPEC-URI", key, got + "".join(f" or {uri}..." for uri in URIS[kind])))
    return found


def unknown_tables(case: Case) -> list[f.Finding]:
    """Tables under `custom` that nobody here reads: passed through, unless one looks like a misspelling."""
    known, found = spec.custom_tables(case.action), []
    for name in sorted((case("custom") or {}).keys() - known.keys()):
        key, near = f"custom.{name}", [f"custom.{one}" for one in f.nearest(name, known, 1)]
        fix = spec.renaming(case.action, key, near, case(key))
        found += [f.error("SPEC-KEY-UNKNOWN", key, f"got an unknown table, expected {one}", fix) for one in near]
        if not near:
            found.append(f.info("SPEC-CUSTOM-TABLE", key, "passed through as it is; nothing here reads it"))
    return found
