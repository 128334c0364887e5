"""Where the values of a spec come from: template or earlier spec, parent job, profile, the words of the command line.

A `Draft` takes them in that order, remembers the origin of each value, and collects every contradiction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cosmos_reason import bundle, models, spec, storage
from cosmos_reason import findings as f


@dataclass
class Draft:
    """A spec being put together.

    `origins`: key -> source of its value. `named`: key -> flag that said it. `trained`: key -> value in training.
    """

    action: str
    engine: str
    spec: dict = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    trained: dict[str, object] = field(default_factory=dict)

    @property
    def params(self) -> dict:
        return bundle.skill_info()["spec_params"][self.action]

    def put(self, key: str, value, origin: str) -> None:
        spec.set_value(self.spec, key, value)
        self.origins[key] = origin

    def overlay(self, table: dict, origin: str) -> None:
        for key, value in spec.items(self.action, table):
            self.put(key, value, origin)

    def replace(self, table: dict, origin: str) -> None:
        self.spec, self.origins = {}, {}
        self.overlay(table, origin)

    def name(self, key: str, flag: str) -> bool:
        """Note that the command line sets `key`; a second flag for it, or for its table, is a contradiction."""
        for other, before in self.named.items():
            if key == other or key.startswith(f"{other}.") or other.startswith(f"{key}."):
                message = f"got it from {before} and from {flag}, expected one of them"
                self.findings.append(f.error("SPEC-KEY-TWICE", key, message))
                return False
        self.named[key] = flag
        return True

    def say(self, key: str, value, flag: str) -> None:
        if self.name(key, flag):
            self.put(key, value, flag)

    def origin_table(self) -> dict[str, str]:
        """The origin of every value that is still there."""
        return {key: self.origins[key] for key, _ in spec.items(self.action, self.spec)}


def start(action: str, engine: str, file: str | None) -> Draft:
    """A draft that holds the template, or an earlier spec exactly as it is."""
    draft = Draft(action, engine)
    draft.overlay(spec.load(Path(file)) if file else spec.template(action), file or "template")
    return draft


# ---- the words of the command line -----------------------------------------------------------------------------------


def take_model(draft: Draft, written: str) -> None:
    draft.say(draft.params["model"], models.canonical(written), "--model")


def take_profile(draft: Draft, name: str) -> None:
    """What a published recipe sets; its source becomes part of each origin."""
    profiles = bundle.skill_info()["profiles"]
    fitting = [known for known, profile in profiles.items() if profile["action"] == draft.action]
    if name not in fitting:
        message = f"got {name!r}, expected one of {', '.join(fitting) or 'none'}.{f.did_you_mean(name, fitting)}"
        raise f.bad_input("SPEC-PROFILE", "--profile", message, "--explain profiles")
    for key, value in profiles[name]["set"].items():
        value = models.canonical(value) if key == draft.params["model"] else value
        draft.put(key, value, f"profile {name} ({profiles[name]['source']})")
        _give_way(draft, key)


def take_tuning(draft: Draft, tuning: str) -> None:
    """`lora` adds the adapter table and its learning rate, `full` removes the table."""
    if draft.action not in ("train", "grpo"):
        _not_for(draft, "--tuning", "a train or grpo spec")
        return
    if tuning == "full":
        draft.name("policy.lora", "--tuning full")
        spec.delete(draft.spec, "policy.lora")
        return
    for key, value in bundle.skill_info()["tuning"]["lora"][draft.action].items():
        if not (key.startswith("policy.lora") and spec.get(draft.spec, key) is not None):
            draft.put(key, value, "--tuning lora")


def take_gpus(draft: Draft, per_node: int, nodes: int) -> None:
    """Shard over the GPUs of a node and replicate over nodes; GRPO gives half of the GPUs to the rollouts."""
    if per_node not in bundle.skill_info()["gpu_counts_per_node"] or nodes < 1:
        message = f"got {nodes} nodes of {per_node} GPUs, expected nodes of 1, 2, 4 or 8"
        draft.findings.append(f.error("SPEC-GPUS-PER-NODE", "--gpus-per-node", message, "--gpus-per-node 8"))
        return
    if draft.action not in ("train", "grpo") and (nodes > 1 or draft.action == "quantize"):
        _not_for(draft, "--nodes" if nodes > 1 else "--gpus-per-node", "a spec that runs on so many")
        return
    shard, groups = per_node, nodes
    if draft.action == "grpo":
        shard, groups = max(1, per_node // 2), nodes if per_node > 1 else max(1, nodes // 2)
    sizes = {
        "train": {"policy.parallelism.dp_shard_size": shard, "policy.parallelism.dp_replicate_size": groups},
        "grpo": {"rollout.parallelism.tp_size": shard, "rollout.parallelism.n_init_replicas": groups},
    }
    sizes["grpo"] |= sizes["train"]
    for key, value in sizes.get(draft.action, {"num_gpus": per_node}).items():
        draft.put(key, value, f"--gpus-per-node {per_node} --nodes {nodes}")


def take_root(draft: Draft, flag: str, root: str) -> None:
    """A dataset root stands for `<root>/annotations.json` and for `<root>` as the place of the media."""
    keys = draft.params.get(flag.removeprefix("--").replace("-", "_"))
    if not keys:
        _not_for(draft, flag, f"one of the roots of a {draft.action} spec")
        return
    if not root.strip():
        draft.findings.append(f.error("SPEC-ROOT", flag, "got an empty name, expected a folder or an s3:// prefix"))
        return
    whole = absolute(root)
    annotations = f"{whole.rstrip('/')}/annotations.json"
    if "://" not in whole and not Path(annotations).is_file():
        message = "not visible from this machine; fine if it is from where the job runs"
        draft.findings.append(f.warning("SPEC-PATH-NOT-HERE", annotations, message))
    draft.say(keys[0], annotations, flag)
    draft.say(keys[1], whole, flag)
    if keys[0].startswith("custom.val_dataset"):
        draft.put("validation.enable", True, flag)


def _not_for(draft: Draft, flag: str, wanted: str) -> None:
    draft.findings.append(f.error("SPEC-FLAG", flag, f"got it for a {draft.action} spec, expected {wanted}"))


def take_settings(draft: Draft, settings: list[str], unset: list[str], extra: list[str]) -> None:
    """`--set key=value` with short names and TOML values, then `--unset key` for a key or a table.

    Keys in `extra` may be unknown: they are listed in the spec itself, so that later checks let them pass too.
    """
    if extra:
        draft.put("custom.extra_keys", [*spec.extra_keys(draft.spec), *extra], "--allow-extra-key")
    for setting in settings:
        name, equals, written = setting.partition("=")
        if equals and name.strip():
            _set(draft, name.strip(), written, extra)
        else:
            draft.findings.append(f.error("SPEC-SET", setting, "got no key and '=', expected --set key=value"))
    for name in unset:
        key = full_name(draft.action, name)
        if draft.name(key, f"--unset {name}") and not spec.delete(draft.spec, key):
            near = f.did_you_mean(key, (there for there, _ in spec.items(draft.action, draft.spec)))
            draft.findings.append(f.error("SPEC-UNSET", key, f"got a key that is not in the spec.{near}"))


def _set(draft: Draft, name: str, written: str, extra: list[str]) -> None:
    key = full_name(draft.action, name)
    schema = spec.keys(draft.action).get(key, {})
    if not (schema or key in extra or _free(draft.action, key)):
        draft.findings.append(spec.unknown_key(draft.action, key))
    elif draft.name(key, f"--set {name}"):
        draft.put(key, _located(draft, schema, spec.parse(schema, written)), f"--set {name}")
        _give_way(draft, key)


def full_name(action: str, name: str) -> str:
    """A short name's key; a name that already is a key, or is neither, stays."""
    if name in spec.keys(action):
        return name
    return bundle.skill_info()["shorthand"][action].get(name, name)


def _free(action: str, key: str) -> bool:
    """Inside a table under `custom` that the schema leaves open."""
    known = bundle.schema(action)["properties"]["custom"]["properties"]
    parts = key.split(".")
    return len(parts) > 2 and parts[0] == "custom" and parts[1] not in known and all(parts)


def _give_way(draft: Draft, key: str) -> None:
    """Setting one of two keys that exclude each other takes the other away, unless it was asked for too."""
    vision = draft.params["vision"]
    pairs = ((f"{vision}.nframes", f"{vision}.fps"), ("train.optm_warmup_steps", "train.optm_warmup_epochs"))
    for pair in (*pairs, *(pair[::-1] for pair in pairs)):
        if key == pair[0] and pair[1] not in draft.named:
            spec.delete(draft.spec, pair[1])


# ---- paths -----------------------------------------------------------------------------------------------------------


def absolute(written: str) -> str:
    """A local path as an absolute one; empty text and URIs stay."""
    if not written or "://" in written:
        return written
    return os.path.abspath(os.path.expanduser(written))


def _located(draft: Draft, schema: dict, value):
    kind = schema.get("x-path")
    if not kind or not isinstance(value, str):
        return value
    if kind != "model" or not value:
        return absolute(value)
    try:
        return models.canonical(value)
    except f.Failure as failure:
        draft.findings += failure.findings
        return value


# ---- parent job ------------------------------------------------------------------------------------------------------


def take_parent(draft: Draft, folder: Path) -> None:
    """Start from what an earlier train job left: its last model; for train, its spec and the checkpoint to resume."""
    record, origin = storage.read_json(folder / "job.json"), f"parent job {folder.name}"
    checkpoint = spec.get(record, "evidence.checkpoint")
    ours = spec.get(record, "action") in (("train",) if draft.action == "train" else ("train", "grpo"))
    if not ours or not isinstance(checkpoint, str) or record.get("state") != "COMPLETE":
        message = "got a job without a verified model, expected a COMPLETE train job"
        raise f.bad_input("SPEC-PARENT", folder, message, f"scripts/launch_job.py status {folder.name}")
    parent = spec.load(folder / "spec.toml")
    if draft.action == "train":
        step = Path(checkpoint)
        draft.replace(parent, origin)
        draft.put("train.resume", str(step.parent.parent / "checkpoints" / step.name / "policy"), origin)
        return
    output = Path(checkpoint).parents[2]
    message = "this is the model of the last step; another may be better"
    fix = f"scripts/select_checkpoint.py {output} --by METRIC, then --model DIR"
    draft.findings.append(f.info("SPEC-PARENT-LAST", draft.params["model"], message, fix))
    draft.put(draft.params["model"], checkpoint, origin)
    if spec.get(parent, "policy.lora") is not None:
        _take_adapter(draft, parent, output, origin)
    if draft.action != "grpo":
        _same_view(draft, parent, origin)


def _take_adapter(draft: Draft, parent: dict, output: Path, origin: str) -> None:
    if draft.action == "grpo":
        message = "got a LoRA adapter, expected a merged model to start reinforcement learning from"
        fix = f"scripts/select_checkpoint.py {output} --merge DIR, then --model DIR"
        draft.findings.append(f.error("SPEC-PARENT-ADAPTER", draft.params["model"], message, fix))
        return
    draft.put(draft.params["adapter"], True, origin)
    draft.put(draft.params["base"], spec.get(parent, "policy.model_name_or_path"), origin)


def _same_view(draft: Draft, parent: dict, origin: str) -> None:
    """The model must be asked as it was trained: same frames, same pixels, same system message."""
    spec.delete(draft.spec, draft.params["vision"])
    seen = {f"{draft.params['vision']}.{name}": value for name, value in spec.get(parent, "custom.vision", {}).items()}
    if "system_prompt" in draft.params:
        seen[draft.params["system_prompt"]] = spec.get(parent, "train.train_policy.system_prompt", "")
    for key, value in seen.items():
        if key in spec.keys(draft.action):
            draft.put(key, value, origin)
            draft.trained[key] = value


def compare_with_training(draft: Draft) -> None:
    """A warning for each sampling key and system message that no longer is the parent job's."""
    for key, trained in draft.trained.items():
        now = spec.get(draft.spec, key, spec.MISSING)
        if now != trained:
            message = f"got {'no value' if now is spec.MISSING else spec.shown(now)}, but training used {trained!r}"
            fix = spec.set_flag(key, trained)
            draft.findings.append(f.warning("SPEC-TRAINED-OTHERWISE", key, message, fix))


# ---- engine ----------------------------------------------------------------------------------------------------------


def fit_engine(draft: Draft, steps_per_epoch: int | None) -> None:
    """Say in the engine's own names what has a true equivalent there; what has none stays, for the rules to refuse."""
    if draft.engine == "tao":
        return
    for key in (draft.params["model"], draft.params.get("base")):  # only TAO reads hf_model://
        value = key and spec.get(draft.spec, key)
        if isinstance(value, str) and value.startswith(models.HUB):
            spec.set_value(draft.spec, key, value.removeprefix(models.HUB))
    if draft.action == "train":
        _warmup_in_steps(draft)
        _translate(draft, "results_dir", "train.output_dir", spec.get(draft.spec, "results_dir"))
        every = spec.get(draft.spec, "validation.freq_in_epoch")
        if draft.engine == "cosmos-rl" and type(every) is int and steps_per_epoch:
            _translate(draft, "validation.freq_in_epoch", "validation.freq", every * steps_per_epoch)


def _warmup_in_steps(draft: Draft) -> None:
    """Warm-up epochs are a fraction of the run, unless max_num_steps ends it earlier."""
    warm, epochs = spec.get(draft.spec, "train.optm_warmup_epochs"), spec.get(draft.spec, "train.epoch", 1)
    numbers = isinstance(warm, int | float) and isinstance(epochs, int) and epochs > 0
    if numbers and spec.get(draft.spec, "train.max_num_steps") is None:
        _translate(draft, "train.optm_warmup_epochs", "train.optm_warmup_steps", min(1.0, warm / epochs) if warm else 0)


def _translate(draft: Draft, old: str, new: str, value) -> None:
    if value is None or spec.get(draft.spec, old) is None:
        return
    if new in draft.named:
        message = f"got it beside {new}, which says the same to engine {draft.engine}"
        draft.findings.append(f.error("SPEC-KEY-TWICE", old, message, f"--unset {old}"))
        return
    spec.delete(draft.spec, old)
    draft.put(new, value, f"{old} ({draft.origins.get(old)}), translated for {draft.engine}")
    draft.findings.append(f.info("SPEC-TRANSLATED", new, f"{old} is {new} = {spec.text(value)} on {draft.engine}"))
