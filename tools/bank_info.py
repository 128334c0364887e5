"""references/skill_info.yaml: what NVIDIA's skill bank, its AutoML runner and its platform skills
read of a skill, in their own shape, made from skill_info.yaml, the schemas and the templates.

A command there is a template in which {config_path} alone may stand in braces.
"""

import math

import yaml

from cosmos_reason.base import bundle
from cosmos_reason.spec import document
from cosmos_reason.tuning import space

# What the runner's own rules for this trainer are filed under: LoRA's keys only in a spec with
# LoRA, never fps beside nframes, checkpoints resumed from their policy folder.
NETWORK_ARCH = "cosmos-rl"
HEAD = """# For NVIDIA's skill bank: generated from skill_info.yaml, schemas/ and the templates by
# `make templates`. The commands are for NVIDIA's image: written here, never run in it.
"""
# Where a folder of ours (annotations.json beside its media) goes, by the bank's names of datasets.
SOURCES = {
    "train": {"custom.train_dataset": "train_datasets", "custom.val_dataset": "eval_dataset"},
    "evaluate": {"dataset": "eval_dataset"},
    "quantize": {"dataset": "calibration_dataset"},
}
READS_FLAGS = """{python} - {{config_path}} <<'PY'
import subprocess, sys, tomllib

with open(sys.argv[1], "rb") as file:
    spec = tomllib.load(file)
words = ["{program}"]
for key, flag in {flags}:
    value = spec
    for name in key.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    switch = not flag.endswith("=")
    if value == "" or (switch and value is False):
        continue
    text = str(value).lower() if isinstance(value, bool) else str(value)
    words.append(flag if switch else flag + text)
{runs}
PY
"""
CALLS = "raise SystemExit(subprocess.call(words))"
# The image has the quantizer as a module and no program for it.
IMPORTS = """sys.argv = words
from cosmos_rl.quantization.quantize import main

raise SystemExit(main())"""


class Dumper(yaml.SafeDumper):
    """Writes a text of several lines as one, not as a word with \\n in it."""

    def ignore_aliases(self, data) -> bool:
        return True


def _text_node(dumper: Dumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, _text_node)


def text() -> str:
    return HEAD + yaml.dump(facts(), Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)


def facts() -> dict:
    info = bundle.skill_info()
    host = info["host_minimums"]
    actions = [name for name in bundle.ACTIONS if name in info["engines"]["tao"]["actions"]]
    return {
        "network_arch": NETWORK_ARCH,
        "huggingface_model_ids": list(info["models"]),
        "aliases": [name for model in info["models"].values() for name in model["aliases"]],
        "automl_enabled": info["automl_enabled"],
        "container_image": info["engines"]["tao"]["default_image"],
        "dataset_type": info["dataset_type"],
        "data_format": info["formats"][0],
        "formats": list(info["formats"]),
        "accepted_dataset_intents": list(info["accepted_dataset_intents"]),
        "gpu_spec_key": "policy.parallelism.dp_shard_size",
        "node_spec_key": "policy.parallelism.dp_replicate_size",
        "runtime_requirements": {
            "gpu_host": {
                "min_driver_version": str(host["driver"]),
                "min_cuda_version": host["cuda"],
                "min_container_toolkit_version": host["container_toolkit"],
            }
        },
        "automl": automl(),
        "data_sources": {action: data_sources(action) for action in SOURCES},
        "spec_params": {action: spec_params(action) for action in actions},
        "actions": {action: action_facts(action) for action in actions},
        "spec_shorthand_keys": dict(info["shorthand"]["train"]),
    }


def template(action: str) -> dict:
    """Return the spec that the bank starts an action from:
    references/spec_template_<action>.yaml."""
    return document.template(action)


# ---- actions -------------------------------------------------------------------------------------


def action_facts(action: str) -> dict:
    entry = bundle.skill_info()["engines"]["tao"]["actions"][action]
    return {
        "command": command(action),
        "config_format": "toml",
        "mode": "config",
        "inputs": {key: {"type": kind(key)} for key in entry["inputs"]},
        "outputs": {key: {"type": "folder"} for key in entry["outputs"]},
        "upload_excludes": ["inputs/"],
    }


def kind(key: str) -> str:
    return "file" if key.endswith("annotation_path") else "folder"


def command(action: str) -> str:
    """Return the commands of the bank, which name no file of ours: nothing mounts this skill into
    its containers."""
    info = bundle.skill_info()
    image = info["images"][info["engines"]["tao"]["default_image"]]
    entry = info["engines"]["tao"]["actions"][action]
    if action == "train":
        return f"cosmos-rl --config {{config_path}} {image['entry_script']}"
    if "flags" not in entry:
        return " ".join(entry["command"]).replace("{config}", "{config_path}")
    program, runs = ("cosmos-rl-inference", CALLS)
    if action == "quantize":
        program, runs = ("cosmos-rl-quantize", IMPORTS)
    flags = ",\n    ".join(str(pair) for pair in entry["flags"].items())
    return READS_FLAGS.format(
        python=image["python"], program=program, flags=f"[\n    {flags},\n]", runs=runs
    )


def spec_params(action: str) -> dict:
    """Keys that the bank fills in from the parent job and from where results go."""
    entry = bundle.skill_info()["engines"]["tao"]["actions"][action]
    found = {key: "output_dir" for key in entry["outputs"]}
    if action == "train":
        return found | {"train.resume": "resume_model"}
    return {bundle.skill_info()["spec_params"][action]["model"]: "parent_model_folder"} | found


def data_sources(action: str) -> dict:
    found = {}
    for table, source in SOURCES[action].items():
        known = document.keys(action)
        media = f"{table}.media_path" if f"{table}.media_path" in known else f"{table}.media_dir"
        common = {"source": source, "multiple_sources": False}
        found[f"{table}.annotation_path"] = common | {"path": "annotations.json"}
        found[media] = common | {"path_from_format": {"*": ""}}
    return found


# ---- AutoML --------------------------------------------------------------------------------------


def automl() -> dict:
    """Return what a call of the runner needs besides the spec: its own arguments, by name. Without
    them it takes a key's legal bounds for the range to search, and searches every key that can
    be."""
    info = bundle.skill_info()
    image = info["images"][info["engines"]["tao"]["default_image"]]
    writes = {key: facts["value"] for key, facts in image["specs"]["train"]["writes"].items()}
    proposed = bundle.schema("train")["automl_default_parameters"]
    found = {"spec_overrides": writes}
    for tuning in ("full", "lora"):
        ranges = param_ranges(tuning)
        found[tuning] = {
            "automl_hyperparameters": [key for key in proposed if key in ranges],
            "custom_param_ranges": ranges,
        }
    return found


def param_ranges(tuning: str) -> dict:
    """Key of the train spec -> its range as the runner takes it."""
    base = template("train")
    for key, value in bundle.skill_info()["tuning"].get(tuning, {}).get("train", {}).items():
        document.set_value(base, key, value)
    searched = [key for key, leaf in document.keys("train").items() if leaf.get("automl_enabled")]
    if tuning == "full":
        searched = [key for key in searched if not key.startswith("policy.lora.")]
    dimensions, found = space.build(base, ",".join(searched), [], None)
    assert not found, found
    ranges = {dimension.key: param_range(dimension) for dimension in dimensions}
    in_one_pass = base["train"]["train_policy"]["mini_batch"]
    batches = ranges["train.train_batch_per_replica"]
    # The trainer cuts a batch into whole passes, which the runner does not know.
    batches["valid_options"] = [n for n in batches["valid_options"] if n % in_one_pass == 0]
    return ranges


def param_range(dimension: space.Dimension) -> dict:
    """Return a range as the runner takes it. It draws between two ends as on a ruler, and powers of
    two without regard to what its optimizer suggests: a logarithmic range and powers become options
    in order."""
    if dimension.weights:
        return {
            "value_type": "categorical",
            "valid_options": list(dimension.options),
            "option_weights": list(dimension.weights),
        }
    if dimension.options:
        return {"value_type": "ordered_int", "valid_options": list(dimension.options)}
    if dimension.log:
        steps = one_two_five(dimension.low, dimension.high)
        return {"value_type": "categorical", "valid_options": steps}
    return {"valid_min": dimension.low, "valid_max": dimension.high}


def one_two_five(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... between two ends, both included."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in (1, 2, 5):
            value = float(f"{digit}e{power}")
            if low <= value <= high:
                found.append(value)
    return found
