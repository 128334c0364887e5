"""What differs between actions: which one a spec is for, where it keeps its model and its data, and
how it asks the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, error
from cosmos_reason.spec import document, quantizing
from cosmos_reason.spec.keys import OF_GUIDES

TRAINING = ("train", "grpo")
ASKING = ("evaluate", "inference", "quantize")
TRAINING_TABLES = {"train", "policy"}
TABLES_OF_EVALUATION = {"dataset", "model", "vision", "evaluation", "generation", "metrics"}
FRAMEWORK = "cosmos-framework"  # which trains in its own way
KEYS_OF_FRAMEWORK = {"task", "experiment"}  # one of them stands in its table `job`
HUB_DATA = "train.train_policy.dataset.name"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# action -> (key of the longest sequence, key of the room in it that what is generated needs)
LENGTHS = {
    "train": ("policy.model_max_length", ""),
    "grpo": ("policy.model_max_length", "rollout.max_response_length"),
    "evaluate": ("model.max_length", "generation.max_tokens"),
    "quantize": (quantizing.LENGTH, ""),
}
POLICIES = {"sft": "train", "grpo": "grpo"}  # by train.train_policy.type


class DataKeys(NamedTuple):
    """The two keys that say where a dataset is."""

    annotations: str
    media: str

    @property
    def table(self) -> str:
        return self.annotations.rpartition(".")[0]


# ---- which action --------------------------------------------------------------------------------


def of_spec(spec: dict) -> str:
    """Return the action that knows most of a spec's keys; of the two that train, the one its policy
    names."""
    known = {}
    for action in bundle.ACTIONS:
        keys = document.keys(action)
        known[action] = sum(key in keys for key, _ in document.items(action, spec))
    best = max(known, key=known.get)
    return (_policy(spec) or best) if best in TRAINING else best


def of_file(path: Path) -> str:
    """Return the action of a spec file, which nobody named. Raises Failure: exit 2 for what cannot
    be read, exit 1 for the spec of another trainer."""
    return of_table(document.load(path), path)


def of_table(spec: dict, path: Path) -> str:
    """Return the same of a spec that was read from there."""
    if is_of_framework(spec):
        message = (
            f"got {a_spec(FRAMEWORK)}, which only its own trainer reads "
            "(torchrun -m cosmos_framework.scripts.train); expected one of cosmos-rl or TAO, which "
            "build_spec.py train --spec FILE --train-root DIR makes of it"
        )
        raise Failure([error("SPEC-ACTION", str(path), message)], EXIT_CHECKS_FAILED)
    return of_spec(spec)


def is_of_framework(spec: dict) -> bool:
    job = spec.get("job")
    is_job = isinstance(job, dict) and bool(KEYS_OF_FRAMEWORK & job.keys())
    return is_job and not TRAINING_TABLES & spec.keys()


def other_than(action: str, spec: dict) -> str | None:
    """Return the action whose tables these are, or the other trainer, when they are not those of
    `action`; None for tables of no action."""
    tables = spec.keys()
    if is_of_framework(spec):
        return FRAMEWORK
    # No spec of another action has a table of these names.
    if TRAINING_TABLES & tables:
        trained = _policy(spec)
        if action == "train" and "rollout" not in spec:
            return None  # a type of grpo alone is a wrong value
        if action in TRAINING:
            return trained if trained != action else None
        if not spec.keys() >= TRAINING_TABLES:
            return None
        return trained or of_spec(spec)
    fitting = []
    for name in ASKING:
        schema = bundle.schema(name)
        # All that the action needs is there, and nothing that it does not know.
        if set(schema["required"]) <= tables <= schema["properties"].keys():
            fitting.append(name)
    if fitting:
        return None if action in fitting else fitting[0]
    is_evaluation = len(tables & TABLES_OF_EVALUATION) > 1
    if is_evaluation and action in TRAINING:
        return "evaluate"
    return None


def _policy(spec: dict) -> str | None:
    return POLICIES.get(str(document.get(spec, "train.train_policy.type")))


def a_spec(action: str) -> str:
    article = "an" if action[0] in "aei" else "a"
    return f"{article} {action} spec"


# ---- which engine --------------------------------------------------------------------------------


def engine_by_keys(spec: dict) -> tuple[str, str] | None:
    """Return (the engine that a spec is written for, the key that tells): one that only this engine
    reads, or data that our own dataset script does not. None where nothing tells."""
    action = of_spec(spec)
    if is_of_framework(spec):
        return None
    engines = bundle.skill_info()["engines"]
    able = [name for name, facts in engines.items() if action in facts["actions"]]
    if len(able) == 1:
        return able[0], "train.train_policy.type"
    has_other_data = action in TRAINING and not document.get(spec, "custom.train_dataset")
    name = document.get(spec, HUB_DATA)
    if has_other_data and isinstance(name, str) and HUB_NAME.fullmatch(name):
        return "cosmos-rl", HUB_DATA
    schemas, template = document.keys(action), document.template(action)
    for key, value in document.items(action, spec):
        readers = schemas.get(key, {}).get("x-engines", ())
        if key in document.former_keys() or len(readers) != 1:
            continue  # former keys are in specs of the time before 0.4.7, whoever reads them
        if document.get(template, key, document.MISSING) != value:
            return readers[0], key
    for key in (OF_GUIDES, HUB_DATA) if has_other_data else ():
        if document.get(spec, key):
            return "cosmos-rl", key
    return None


# ---- where it keeps what -------------------------------------------------------------------------


def places(action: str) -> dict:
    """Return the keys of an action by what they hold (`model`, `adapter`, `vision`, ...), of
    skill_info.yaml."""
    return bundle.skill_info()["spec_params"][action]


def data_keys(action: str) -> DataKeys | None:
    """Return where the data are that the action works on: trains on, asks or calibrates with. None
    for inference."""
    roots = places(action)
    keys = roots.get("train_root") or roots.get("eval_root")
    return DataKeys(*keys) if keys else None


def validation_keys(action: str) -> DataKeys | None:
    """Return where the data are that a training validates on, or that a quantization is measured
    by."""
    roots = places(action)
    has_both = "train_root" in roots and "eval_root" in roots
    return DataKeys(*roots["eval_root"]) if has_both else None


def guard_keys(action: str) -> DataKeys | None:
    """Return where the general questions are that an evaluation asks besides its own."""
    keys = places(action).get("guard_root")
    return DataKeys(*keys) if keys else None


def model_of(spec: dict) -> str:
    """Return the model that a spec of any action names; "" when it names none."""
    for action in bundle.ACTIONS:
        name = document.get(spec, places(action)["model"])
        if name:
            return name
    return ""


# ---- how it asks the model -----------------------------------------------------------------------


def trained_view(trained: dict, action: str) -> dict[str, object]:
    """Return frames, pixels and system message of a training spec, by the keys of an action that is
    to ask the model as it was trained."""
    params = places(action)
    view = {}
    vision = document.get(trained, "custom.vision")
    if isinstance(vision, dict):
        for name, value in vision.items():
            if value is not None:  # what a trainer saves has every option, chosen or not
                view[f"{params['vision']}.{name}"] = value
    if "system_prompt" in params:
        prompt = document.get(trained, "train.train_policy.system_prompt", "")
        prompt = prompt or document.get(trained, "custom.system_prompt", "")  # TAO 7.2.0's name
        view[params["system_prompt"]] = prompt
    known = document.keys(action)
    return {key: value for key, value in view.items() if key in known}
