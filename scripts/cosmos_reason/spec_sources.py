"""Where the values of a spec come from: template or earlier spec, parent job, profile, the words of the command line.

A `Draft` takes them in that order, remembers the origin of each value, and collects every contradiction.
"""

from __future__ import annotations

import copy
import math
import os
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmos_reason import bundle, models, spec, spec_values, storage
from cosmos_reason import findings as f
from cosmos_reason.rules import WINDOWS_PATH, differences
from cosmos_reason.spec_conditions import GRID, RATE, SHARD, WARMUP, WARMUP_EPOCHS, standard_layout
from cosmos_reason.spec_rules import TRAINING

LORA = "policy.lora"
STEP = re.compile(r"(?:step|epoch)_\d+")
LONG = 200  # characters of a flag that are repeated to say which one is meant


@dataclass
class Draft:
    """A spec being put together.

    `origins`: key -> source of its value. `named`: key -> the flag that said it. `base`: the spec before --unset and
    --set. `trained`: key -> value in training. `resumed`: the spec of the run to resume. `flags`: flag -> how it was
    given, for flags given once. `exit_code`: 2 once something could not be read.
    """

    action: str
    engine: str
    spec: dict = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    base: dict = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    trained: dict[str, object] = field(default_factory=dict)
    resumed: dict = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    exit_code: int = f.EXIT_CHECKS_FAILED

    @property
    def params(self) -> dict:
        return bundle.skill_info()["spec_params"][self.action]

    def attempt(self, act, *words):
        """What `act(*words)` returns; None, and a finding among the others, when it cannot read its input."""
        try:
            return act(*words)
        except f.Failure as failure:
            self.findings += failure.findings
            self.exit_code = max(self.exit_code, failure.exit_code)

    def refuse(self, id: str, where: str, message: str, fix: str = "") -> None:
        self.findings.append(f.error(id, where, message, fix))

    def not_for(self, flag: str, wanted: str) -> None:
        message = f"got it for {spec.a_spec(self.action)}, expected {wanted}"
        self.refuse("SPEC-FLAG", flag, message, f"drop {self.flags[flag]}")

    def put(self, key: str, value, origin: str) -> None:
        spec.set_value(self.spec, key, value)
        self.origins[key] = origin

    def overlay(self, table: dict, origin: str, origins: dict[str, str] | None = None) -> None:
        """Take over a spec that was written earlier, its paths and model names as they are written today."""
        for key, value in spec.items(self.action, table):
            self.put(key, located(self, key, value), (origins or {}).get(key, origin))

    def name(self, key: str, flag: str) -> bool:
        """Note that the command line sets `key`; a second flag for it, or for its table, is a contradiction."""
        for other, before in self.named.items():
            if spec.overlap(key, other):
                extra = before if "--unset" in before or not flag.startswith(("--set", "--unset")) else flag
                message = f"got it from {brief(before)} and from {brief(flag)}, expected one of them"
                self.refuse("SPEC-KEY-TWICE", key, message, f"drop {brief(extra)}")
                return False
        self.named[key] = flag
        return True

    def origin_table(self) -> dict[str, str]:
        """The origin of every value that is still there."""
        return {key: self.origins[key] for key, _ in spec.items(self.action, self.spec)}


def brief(flag: str) -> str:
    """A flag, of which only the beginning is told when it is long."""
    return flag if len(flag) <= LONG else flag[: LONG // 4].replace("'", "") + "..."


def pasteable(draft: Draft, fix: str) -> str:
    """A fix as a change to the command line that was given: flags about the same keys make way for it."""
    if not fix.startswith("--"):
        return fix
    words, gone, added = shlex.split(fix), [], []
    for flag, word in zip(words[::2], words[1::2], strict=True):
        about = {"--set": [word.partition("=")[0]], "--unset": [word], "--tuning": [LORA]}
        about |= {"--model": [draft.params["model"]]}
        keys = about.get(flag) or draft.params.get(flag.removeprefix("--").replace("-", "_"), [])  # those of a root
        clash = [said for other, said in draft.named.items() if any(spec.overlap(key, other) for key in keys)]
        gone += clash or ([draft.flags[flag]] if flag in draft.flags else [])
        refused = word in draft.named and word not in spec.keys(draft.action)  # so it never was in the spec
        there = spec.get(draft.base, word, spec.MISSING) is not spec.MISSING and not refused
        if flag != "--unset" or there or not clash:
            added.append(f"{flag} {shlex.quote(word)}")
    if not gone:
        return fix
    old = " ".join(map(brief, dict.fromkeys(gone)))
    return f"replace {old} with {' '.join(added)}" if added else f"drop {old}"


# ---- what there was before -------------------------------------------------------------------------------------------


def take_file(draft: Draft, file: str, asked: set[str]) -> None:
    """Start from an earlier spec; where its values came from is read from the origins beside it. `asked`: keys that the
    command line sets."""
    table = spec.load(Path(file))
    if other := spec.of_other_action(draft.action, table):
        message, flag = f"got {spec.a_spec(other)}, expected {spec.a_spec(draft.action)}", draft.flags["--spec"]
        view = _view_of(draft, table) if draft.action not in TRAINING.split() else {}
        ours, sampled = spec.template(draft.action), {f"{draft.params['vision']}.{name}" for name in ("nframes", "fps")}
        said = asked | (sampled if asked & sampled else set())
        kept = {key: value for key, value in view.items() if key not in said and spec.get(ours, key) != value}
        fix = f"replace {flag} with {spec_values.as_flags(kept)}" if kept else f"drop {flag}"
        draft.refuse("SPEC-ACTION", file, message, fix)
    else:
        draft.overlay(table, file, earlier_origins(file))


def earlier_origins(file: str) -> dict[str, str]:
    """Empty when there are none, or when the spec was edited since they were written."""
    beside = Path(file).with_suffix(".origins.json")
    record = storage.read_json(beside) if os.path.isfile(beside) else {}
    known = isinstance(record, dict) and isinstance(record.get("origins"), dict)
    return record["origins"] if known and record.get("spec_sha256") == storage.sha256(file) else {}


def take_parent(draft: Draft, folder: Path, model_given: bool) -> None:
    """What an earlier train job left: its last model, unless one is given; for train, its spec and where to resume."""
    record, origin = storage.read_json(folder / "job.json"), f"parent job {folder.name}"
    checkpoint = spec.get(record, "evidence.checkpoint")
    ours = spec.get(record, "action") in (("train",) if draft.action == "train" else TRAINING.split())
    if not ours or not isinstance(checkpoint, str) or record.get("state") != "COMPLETE":
        message = "got a job without a verified model, expected a COMPLETE train job"
        raise f.bad_input("SPEC-PARENT", folder, message, f"scripts/launch_job.py status {folder.name}")
    parent = spec.load(folder / "spec.toml")
    if draft.action == "train":
        _resume(draft, folder, record, parent, origin)
        return
    if not model_given:
        _take_last_model(draft, parent, checkpoint, origin)
    if draft.action != "grpo":
        _same_view(draft, parent, origin)


def _resume(draft: Draft, folder: Path, record: dict, parent: dict, origin: str) -> None:
    step = Path(record["evidence"]["checkpoint"])
    if step.parent.name != "safetensors" or not STEP.fullmatch(step.name):
        message = f"got a job whose model is {spec_values.shown(str(step))}, expected .../safetensors/step_N"
        fix = f"replace {draft.flags['--parent-job']} with --spec {shlex.quote(str(folder / 'spec.toml'))}"
        raise f.bad_input("SPEC-PARENT", folder, message, f"{fix} --set train.resume=true")
    if record.get("engine", draft.engine) != draft.engine:
        message = f"got {draft.engine}, but the run to resume is of {record['engine']}"
        draft.refuse("SPEC-RESUME-OTHER", "--engine", message, f"--engine {record['engine']}")
    draft.overlay(parent, origin)
    draft.put("train.resume", str(step.parent.parent / "checkpoints" / step.name / "policy"), origin)
    draft.resumed = copy.deepcopy(draft.spec)


def _take_last_model(draft: Draft, parent: dict, checkpoint: str, origin: str) -> None:
    key, adapter = draft.params["model"], spec.get(parent, LORA) is not None
    choose = f"scripts/select_checkpoint.py {shlex.quote(str(Path(checkpoint).parent.parent.parent))}"
    draft.put(key, checkpoint, origin)
    if adapter and draft.action == "grpo":
        message = "got a LoRA adapter, expected a merged model to start reinforcement learning from"
        draft.refuse("SPEC-PARENT-ADAPTER", key, message, f"{choose} --merge DIR, then --model DIR")
        return
    message = "this is the model of the last step; another may be better"
    draft.findings.append(f.info("SPEC-PARENT-LAST", key, message, f"{choose} --by METRIC, then --model DIR"))
    if adapter:
        draft.put(draft.params["adapter"], True, origin)
        draft.put(draft.params["base"], models.canonical(spec.get(parent, "policy.model_name_or_path", "")), origin)


def _same_view(draft: Draft, parent: dict, origin: str) -> None:
    """The model must be asked as it was trained: same frames, same pixels, same system message."""
    spec.delete(draft.spec, draft.params["vision"])
    draft.trained = _view_of(draft, parent)
    for key, value in draft.trained.items():
        draft.put(key, value, origin)


def _view_of(draft: Draft, trained: dict) -> dict[str, object]:
    """Frames, pixels and system message of a training spec, by the draft's keys."""
    vision = spec.get(trained, "custom.vision")
    named = vision.items() if isinstance(vision, dict) else ()
    seen = {f"{draft.params['vision']}.{name}": value for name, value in named}
    if "system_prompt" in draft.params:
        seen[draft.params["system_prompt"]] = spec.get(trained, "train.train_policy.system_prompt", "")
    return {key: value for key, value in seen.items() if key in spec.keys(draft.action)}


def compare_with_resumed(draft: Draft) -> None:
    """An error for what makes the checkpoint of the parent job unfit: another model, other adapters, another layout."""
    if not draft.resumed or spec.get(draft.spec, "train.resume") != draft.resumed["train"]["resume"]:
        return
    key = draft.params["model"]
    before, value = spec.get(draft.resumed, key), spec.get(draft.spec, key)
    if before != value:
        message = f"got {spec_values.shown(value)}, but the run to resume has {spec_values.shown(before)}"
        draft.refuse("SPEC-RESUME-OTHER", key, message, spec_values.set_flag(key, before))
    wide = " ".join(draft.flags[flag] for flag in ("--gpus-per-node", "--nodes") if flag in draft.flags)
    for one in differences(draft.spec, draft.resumed, draft.engine != "transformers"):
        draft.findings.append(replace(one, fix=f"drop {wide}") if wide and one.where.startswith(GRID) else one)


def compare_with_training(draft: Draft) -> None:
    """A warning for each sampling key and system message that no longer is the parent job's."""
    for key, trained in draft.trained.items():
        now = spec.get(draft.spec, key)
        if now != trained:
            got = "no value" if now is None else spec_values.shown(now)
            message = f"got {got}, but training used {spec_values.shown(trained)}"
            draft.findings.append(f.warning("SPEC-TRAINED-OTHERWISE", key, message, spec_values.set_flag(key, trained)))


# ---- the words of the command line -----------------------------------------------------------------------------------


def take_profile(draft: Draft, name: str) -> None:
    """What a published recipe sets; its source becomes part of each origin."""
    profiles = bundle.skill_info()["profiles"]
    fitting = [known for known, profile in profiles.items() if profile["action"] == draft.action]
    if name not in fitting:
        close = f.nearest(name, fitting)
        wanted = f"one of {', '.join(fitting)} (--explain profiles)" if fitting else f"none: no {draft.action} has any"
        fix = f"--profile {close[0]}" if close else f"drop {brief(draft.flags['--profile'])}"
        draft.refuse("SPEC-PROFILE", "--profile", f"got {spec_values.shown(name)}, expected {wanted}", fix)
        return
    for key, value in profiles[name]["set"].items():
        value = models.canonical(value) if key == draft.params["model"] else value
        draft.put(key, value, f"profile {name} ({profiles[name]['source']})")
        _give_way(draft, key)


def take_tuning(draft: Draft, tuning: str, rate_given: bool) -> None:
    """`lora` adds what is missing of the adapter table, `full` removes it. Adapters want a higher learning rate than
    all weights do: it moves along, unless the user set it."""
    if draft.action not in TRAINING.split():
        draft.not_for("--tuning", "a train or grpo spec")
        return
    lora, was_lora = bundle.skill_info()["tuning"]["lora"][draft.action], spec.get(draft.spec, LORA) is not None
    if tuning == "full":
        draft.name(LORA, "--tuning full")
        spec.delete(draft.spec, LORA)
    for key, value in lora.items() if tuning == "lora" else ():
        if key.startswith(LORA) and spec.get(draft.spec, key) is None:
            draft.put(key, value, "--tuning lora")
    before, origin = spec.get(draft.spec, RATE), draft.origins.get(RATE, "")
    full, adapter = spec.get(spec.template(draft.action), RATE), lora[RATE]
    ours = before in (full, adapter) or origin.startswith(("template", "profile", "--tuning"))
    if was_lora != (tuning == "lora") and ours and not rate_given and not origin.startswith("--set"):
        rate, what = (adapter, "adapters") if tuning == "lora" else (full, "all weights")
        draft.put(RATE, rate, f"--tuning {tuning}")
        message = f"{spec_values.text(before)} became {rate}, which suits {what}"
        draft.findings.append(f.info("SPEC-TUNING-RATE", RATE, message))


def take_gpus(draft: Draft, per_node: int | None, nodes: int | None) -> None:
    """Lay the run out over the GPUs, but for sizes that the command line sets."""
    training, counts = draft.action in TRAINING.split(), bundle.skill_info()["gpu_counts_per_node"]
    if not training and ((nodes or 1) > 1 or draft.action == "quantize"):
        draft.not_for("--gpus-per-node" if nodes is None else "--nodes", "a spec that runs on so many")
        return
    written = (spec.get(draft.base, key) for key in (SHARD if training else "num_gpus", GRID + "dp_replicate_size"))
    before = [value if type(value) is int else 1 for value in written]
    if per_node is None or (nodes is None and before[1] != 1):
        message = "got one of --gpus-per-node and --nodes, expected both: the layout depends on their product"
        both = per_node or (before[0] if before[0] in counts else 1), max(nodes or before[1], 1)
        fix = "--gpus-per-node {} --nodes {}".format(*both)
        draft.refuse("SPEC-GPUS-PER-NODE", "--gpus-per-node", message, fix)
        return
    flag = draft.flags["--gpus-per-node"] + (f" {draft.flags['--nodes']}" if nodes else "")
    nodes = 1 if nodes is None else nodes
    sizes = standard_layout(draft.action, per_node, nodes, str(spec.get(draft.spec, "mode")))
    able = draft.action in bundle.skill_info()["engines"][draft.engine]["actions"]  # else that is the finding
    single = able and draft.engine not in spec.keys(draft.action)[next(iter(sizes))]["x-engines"]
    counts, most = ([1], 1) if single else (counts, math.inf)
    if per_node not in counts or not 1 <= nodes <= most:
        wanted = f"1 GPU: engine {draft.engine} uses one" if single else f"nodes of {', '.join(map(str, counts))}"
        fix = (
            f"--gpus-per-node {max([n for n in counts if n <= per_node], default=1)} --nodes {min(max(nodes, 1), most)}"
        )
        id = "SPEC-GPUS-ENGINE" if single else "SPEC-GPUS-PER-NODE"
        draft.refuse(id, "--gpus-per-node", f"got {nodes} nodes of {per_node} GPUs, expected {wanted}", fix)
    elif not single:
        for key, value in sizes.items():
            if not any(spec.overlap(key, other) for other in draft.named):
                draft.put(key, value, flag)


def take_model(draft: Draft, written: str) -> None:
    model, key = models.canonical(written), draft.params["model"]
    if draft.name(key, draft.flags["--model"]):
        draft.put(key, model, "--model")


def take_root(draft: Draft, flag: str, root: str) -> None:
    """A dataset root stands for `<root>/annotations.json` and for `<root>` as the place of the media."""
    keys = draft.params.get(flag.removeprefix("--").replace("-", "_"))
    if not keys:
        draft.not_for(flag, f"one of the roots of {spec.a_spec(draft.action)}")
        return
    if not root.strip():
        message = "got an empty name, expected a folder or an s3:// prefix"
        draft.refuse("SPEC-ROOT", flag, message, f"drop {draft.flags[flag]}")
        return
    whole = absolute(root)
    for key, value in zip(keys, (f"{whole.rstrip('/')}/annotations.json", whole), strict=True):
        if draft.name(key, draft.flags[flag]):
            draft.put(key, value, flag)
    if keys[0].startswith("custom.val_dataset"):
        draft.put("validation.enable", True, flag)


def take_settings(draft: Draft, settings: list[str], unset: list[str], extra: list[str]) -> None:
    """`--unset key` for a key or a table, then `--set key=value` with short names and TOML values.

    Keys in `extra` may be unknown: they are listed in the spec itself, so that later checks let them pass too.
    """
    draft.base = copy.deepcopy(draft.spec)
    if extra:
        draft.put("custom.extra_keys", [*dict.fromkeys([*spec.extra_keys(draft.spec), *extra])], "--allow-extra-key")
    for name in unset:
        _unset(draft, name)
    for setting in settings:
        name, equals, written = setting.partition("=")
        flag = f"--set {shlex.quote(setting)}"
        if equals and all(part.strip() for part in name.split(".")):
            _set(draft, name.strip(), written, flag, extra)
        else:
            message = "got no key and '=', expected --set key=value"
            draft.refuse("SPEC-SET", brief(setting), message, f"drop {brief(flag)}")
    for key in extra:
        if not spec.is_extra(draft.action, key) or spec.get(draft.spec, key) is None:
            message = "got a key that is not set, or that is none of the trainer's own"
            draft.refuse("SPEC-FLAG", key, message, f"drop {brief(f'--allow-extra-key {shlex.quote(key)}')}")


def _unset(draft: Draft, name: str) -> None:
    key, flag = spec.full_name(draft.action, name), f"--unset {shlex.quote(name)}"
    if key == LORA and draft.flags.get("--tuning") == "--tuning lora":
        draft.named[LORA] = "--tuning lora"  # which else lets its keys be set
    if draft.name(key, flag) and not spec.delete(draft.spec, key):
        hint = f.did_you_mean(key, (there for there, _ in spec.items(draft.action, draft.spec)))
        draft.refuse("SPEC-UNSET", key, f"got a key that is not in the spec.{hint}", f"drop {brief(flag)}")


def _set(draft: Draft, name: str, written: str, flag: str, extra: list[str]) -> None:
    key = spec.full_name(draft.action, name)
    schema, parts = spec.keys(draft.action).get(key, {}), key.split(".")
    value = spec_values.parse(schema, written)
    free = len(parts) > 2 and parts[0] == "custom" and parts[1] not in spec.custom_tables(draft.action)
    if not draft.name(key, flag):
        return
    if not (schema or free or (key in extra and spec.is_extra(draft.action, key))):
        draft.findings.append(spec.unknown_key(draft.action, key, value))
    else:
        draft.put(key, located(draft, key, value), f"--set {name}")
        _give_way(draft, key)


def _give_way(draft: Draft, key: str) -> None:
    """Setting one of two keys that exclude each other takes the other away, unless it was asked for too."""
    vision = draft.params["vision"]
    for pair in ((f"{vision}.nframes", f"{vision}.fps"), (WARMUP, WARMUP_EPOCHS)):
        for mine, other in (pair, pair[::-1]):
            if key == mine and other not in draft.named:
                spec.delete(draft.spec, other)


# ---- paths -----------------------------------------------------------------------------------------------------------


def absolute(written: str) -> str:
    """A local path as an absolute one; empty text, URIs and paths of Windows (which the rules refuse) stay."""
    if not written or "://" in written or WINDOWS_PATH.match(written):
        return written
    return os.path.abspath(os.path.expanduser(written))


def located(draft: Draft, key: str, value):
    """The value of a key that names a path or a model, as every platform reads it; other values stay."""
    kind = spec.keys(draft.action).get(key, {}).get("x-path")
    if not kind or not isinstance(value, str) or not value or value.lower() in ("true", "false"):
        return value
    return absolute(value) if kind != "model" else draft.attempt(models.canonical, value, key) or value


def look_for_paths(draft: Draft) -> None:
    """A warning for each input that this machine does not see: it may be there where the job runs."""
    missing = []
    for key, schema in spec.keys(draft.action).items():
        path = spec.get(draft.spec, key)
        if schema.get("x-path") not in ("input", "model") or not isinstance(path, str) or not path.startswith("/"):
            continue
        if not (os.path.exists(path) or any(found.startswith(path) for found in missing)):
            missing.append(path)
            message = "not visible from this machine; fine if it is from where the job runs"
            draft.findings.append(f.warning("SPEC-PATH-NOT-HERE", path, message))
