"""The table of rules itself: each declares the keys that it reads."""

from functools import cached_property

import pytest
from launch_site import write_model, write_state
from support_specs import BREAKS, changed, write_facts

from cosmos_reason.base import bundle, files
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import spec_rules
from cosmos_reason.rules.case import Case

ABOUT_STEPS = ("SPEC-STEPS", "SPEC-WARMUP", "SPEC-VALIDATION", "SPEC-SAVE", "SPEC-BEST")


class RecordingCase(Case):
    """A case that notes which keys are read."""

    def __init__(self, *words):
        self.keys_read = set()
        super().__init__(*words)

    def __call__(self, key):
        self.keys_read.add(key)
        return super().__call__(key)

    def has(self, key):
        self.keys_read.add(key)
        return super().has(key)

    @property
    def tokens(self):
        """They are counted from the whole spec, once for all rules."""
        self.keys_read |= {self.params["vision"], self.params["model"]}
        return super().tokens

    def forget(self):
        """What was read, and what was remembered of it."""
        self.keys_read.clear()
        for name, value in vars(Case).items():
            if isinstance(value, cached_property):
                self.__dict__.pop(name, None)


def specs(facts):
    """(action, engine, spec, facts, GPUs) that make every rule look at all of its keys."""
    for id, action, engine, changes in BREAKS:
        gpus = changes.get("gpus", 8)
        values = {key.replace("__", "."): value for key, value in changes.items() if key != "gpus"}
        yield action, engine, changed(action, values), None, gpus
        if id.startswith(ABOUT_STEPS):
            yield action, engine, changed(action, values), facts, gpus
    for action in bundle.ACTIONS:
        for engine in bundle.ENGINES:
            yield action, engine, changed(action, {}), facts, 8
            yield action, engine, changed(action, {}), facts, 1


def specs_with_files(folder):
    """More of them, which need folders, or facts of their own."""
    rates = write_facts(folder, 3, video_fps=[None] * 3)
    files.write_json(rates, files.read_json(rates) | {"reasoning_beside": 2})
    by_fps = {"custom.vision": {"fps": 2.0, "total_pixels": 1000}}
    yield "train", "tao", changed("train", by_fps), rates, 8
    yield "train", "cosmos-rl", changed("train", by_fps), rates, 8
    yield "train", "tao", changed("train", {"policy.parallelism.tp_size": 3}), None, 8
    yield "evaluate", "tao", changed("evaluate", {"vision.max_frames": 4}), None, 1
    for action, key in (("train", "custom.vision"), ("evaluate", "vision")):
        by_rate = {key: {"fps": 2.0, "max_frames": 8, "total_pixels": 1000}}
        yield action, "transformers", changed(action, by_rate), None, 1
    pictures = folder / "pictures"
    pictures.mkdir()
    facts = write_facts(pictures, 1, pictures=["list"])
    yield "evaluate", "tao", changed("evaluate", {}), facts, 1
    adapter, incomplete = folder / "adapter", folder / "incomplete" / "policy"
    files.write_json(adapter / "adapter_config.json", {"base_model_name_or_path": "Qwen/Qwen3"})
    for action in ("evaluate", "inference", "quantize"):
        model = bundle.skill_info()["spec_params"][action]["model"]
        yield action, "tao", changed(action, {model: str(adapter)}), None, 1
    incomplete.mkdir(parents=True)
    policy = folder / "run" / "checkpoints" / "step_4" / "policy"
    write_state(policy, 4, 4)
    write_model(folder / "run" / "safetensors" / "step_4")
    for resumed in (incomplete, policy):
        spec = changed("train", {"train.resume": str(resumed), "train.max_num_steps": 4})
        yield "train", "transformers", spec, rates, None
        yield "train", "transformers", spec, None, None
    (policy / "trainer_state.json").unlink()
    for part in ("model", "optimizer", "scheduler", "extra_info"):
        (policy / f"{part}_rank_0.pth").touch()
    yield "train", "tao", spec, rates, None


def reads_of_rules(cases):
    """(rule, `spec_params` of the action, keys read) for all specs."""
    for action, engine, spec, facts_path, gpus in cases:
        case = RecordingCase(action, engine, spec, facts_path, gpus)
        for rule in spec_rules.RULES:
            if action in rule.actions.split():
                case.forget()
                detail = rule.broken(case)
                if detail:
                    rules.told(rule, case, detail)
                yield rule, case.params, set(case.keys_read)


@pytest.fixture(scope="module")
def reads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    facts = write_facts(folder, 20, [64] * 19 + [6])
    cases = [*specs(facts), *specs_with_files(tmp_path_factory.mktemp("more"))]
    return list(reads_of_rules(cases))


def test_a_rule_reads_only_keys_that_it_declares(reads):
    undeclared = {}
    for rule, params, keys in reads:
        extra = {key for key in keys - rule.keys(params) if not key.startswith("--")}
        if extra:
            undeclared.setdefault(rule.id, set()).update(extra)
    assert not undeclared


def test_a_rule_declares_only_keys_that_it_reads(reads):
    read, declared = {}, {}
    for rule, params, keys in reads:
        read.setdefault(rule.id, set()).update(keys)
        declared.setdefault(rule.id, set()).update(rule.keys(params))
    declared.pop("SPEC-LOADER-MEMORY")  # which counts with the whole table `train`
    unread = {id: keys - read[id] for id, keys in declared.items() if keys - read[id]}
    assert not unread, "\n".join(map(str, unread.items()))
