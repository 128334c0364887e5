"""The families: each says all there is to know, and nothing else in the library names one."""

import ast
import copy
import math
import re

import pytest
import torch
import transformers
from support import ROOT

from cosmos_reason.base import bundle, families
from cosmos_reason.base.families import FAMILIES, PUBLISHED
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.media import sampling

LIBRARY = ROOT / "scripts" / "cosmos_reason"
# Who may name a family, besides its module: what writes a checkpoint of it.
MAY_NAME = {
    "demo/__init__.py", "demo/tiny_edge.py", "demo/tiny_omni.py", "demo/tiny_parts.py",
    "demo/tiny_qwen2_5_vl.py",
    "rules/completion.py",  # the model that cosmos-rl takes where a spec names none
    "rules/models.py",  # the default model, as an example
    "run_demo.py", "prepare_cosmos3_vlm_checkpoint.py",  # their flags and help
    "in_container/framework_experiment.py",  # a preset of cosmos-framework
}  # fmt: skip
NAMES = re.compile(
    r"qwen_?-?\d|cosmos3[-_ ]?(nano|super|edge|omni|for)|reason2|siglip|nemotron", re.I
)
# Ids of findings are frozen, the default image and the datasets of the guides are no families, and
# the rotary functions of a tower have names that begin alike.
NO_FAMILY = re.compile(r"SPEC-QWEN3-\w+|prepare_cosmos3_vlm_checkpoint")


def words_of(path):
    """(line, text) of all names and texts in a file but its docstrings."""
    text = path.read_text(encoding="utf-8")
    if not NAMES.search(text):
        return  # most files, which need not be parsed
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            docstrings.add(id(body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name


def test_no_other_module_names_a_family():
    found = []
    scripts = LIBRARY.parent
    others = [*scripts.glob("*.py"), *scripts.glob("in_container/*.py")]
    for path in sorted([*LIBRARY.rglob("*.py"), *others]):
        is_inside = path.is_relative_to(LIBRARY)
        name = path.relative_to(LIBRARY if is_inside else scripts).as_posix()
        if name.startswith("base/families/") or name in MAY_NAME:
            continue
        for line, text in words_of(path):
            if NAMES.search(NO_FAMILY.sub("", text)):
                found.append(f"{name}:{line}: {text[:80]}")
    assert not found


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_names_what_transformers_has(family):
    config = transformers.AutoConfig.for_model(family.model_type)
    known = transformers.AutoModelForImageTextToText._model_mapping[type(config)].__name__
    assert known == family.model_class
    assert hasattr(transformers, family.processor_class)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_token_covers_as_many_pixels_as_sampling_counts(family):
    side, frames = 8 * family.patch, 4
    options = sampling.VisionOptions(
        nframes=frames, resized_height=side, resized_width=side, family=family
    )
    tokens = sampling.video_tokens(side, side, frames, options, family.patch)
    assert frames * side * side == tokens * family.token_pixels


QWEN3 = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
QWEN3_VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
                "deepstack_visual_indexes": [8, 16, 24], "num_position_embeddings": 2304,
                "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
                "in_channels": 3}  # fmt: skip
OF_8B = {"text_config": QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288,
                                 "num_hidden_layers": 36, "num_attention_heads": 32},
         "vision_config": QWEN3_VISION | {"out_hidden_size": 4096}}  # fmt: skip
OF_32B = {"text_config": QWEN3 | {"hidden_size": 5120, "intermediate_size": 25600,
                                  "num_hidden_layers": 64, "num_attention_heads": 64},
          "vision_config": QWEN3_VISION | {"out_hidden_size": 5120}}  # fmt: skip
OF_2B = {"text_config": QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144,
                                 "num_hidden_layers": 28, "num_attention_heads": 16},
         "vision_config": QWEN3_VISION | {"depth": 24, "hidden_size": 1024, "out_hidden_size": 2048,
                                          "intermediate_size": 4096,
                                          "deepstack_visual_indexes": [5, 11, 17]},
         "tie_word_embeddings": True}  # fmt: skip
OF_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
         "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
         "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
                           "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14,
                           "in_channels": 3, "spatial_merge_size": 2,
                           "temporal_patch_size": 2}}  # fmt: skip
OF_EDGE = {"text_config": {"hidden_size": 2048, "intermediate_size": 9216, "num_hidden_layers": 28,
                           "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                           "vocab_size": 131072},
           "vision_config": {"hidden_size": 1152, "intermediate_size": 4304,
                             "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 16,
                             "spatial_merge_size": 2, "num_patches": 256},
           "projector_hidden_size": 11520}  # fmt: skip
# The config of each published model, its tensors, and its parameters (those of Cosmos3 are what is
# kept of it).
PUBLISHED_MODELS = {
    "nvidia/Cosmos3-Nano": (OF_8B, 750, 8_767_123_696),
    "nvidia/Cosmos-Reason2-2B": (OF_2B, 625, 2_127_532_032),
    "nvidia/Cosmos-Reason2-8B": (OF_8B, 750, 8_767_123_696),
    "nvidia/Cosmos-Reason2-32B": (OF_32B, 1058, 33_357_390_064),
    "nvidia/Cosmos3-Super": (OF_32B, 1058, 33_357_390_064),
    "nvidia/Cosmos3-Edge": (OF_EDGE, 670, 2_435_616_496),
    "nvidia/Cosmos-Reason1-7B": (OF_7B, 729, 8_292_166_656),
}


@pytest.mark.parametrize("model", bundle.skill_info()["models"])
def test_shapes_widths_and_parameters_are_those_of_the_class(model):
    """The class is built on the meta device, which takes no memory."""
    facts = bundle.skill_info()["models"][model]
    family = FAMILIES[facts["family"]]
    config, tensors, parameters = PUBLISHED_MODELS[model]
    config = {"tie_word_embeddings": False} | config
    listed = family.expected_tensors(config)
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(family.model_type, **copy.deepcopy(config))
        network = getattr(transformers, family.model_class)(made)
    shapes = {}
    for name, tensor in network.state_dict().items():
        shapes[family.stored_name(name)] = tuple(tensor.shape)
        assert family.class_name(family.stored_name(name)) == family.class_name(name) == name
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    assert listed == shapes
    assert len(listed) == tensors
    assert sum(math.prod(shape) for shape in listed.values()) == parameters
    assert facts["parameters_billion"] == pytest.approx(parameters / 1e9, rel=0.02)
    widths = family.geometry(config)
    assert widths == gpu_memory.geometry(model)
    assert widths.parameters == pytest.approx(parameters, rel=0.0025)
    linear = {name for name, one in network.named_modules() if isinstance(one, torch.nn.Linear)}
    first = re.compile(r"(?<=\.)(layers|blocks|deepstack_merger_list)\.\d+")
    assert {first.sub(r"\1.0", name) for name in linear} == set(family.linear_layers)


def test_each_published_model_is_of_a_family_and_each_layout_becomes_one():
    for name, facts in bundle.skill_info()["models"].items():
        assert facts["family"] in FAMILIES, name
    for model_type, layout in PUBLISHED.items():
        assert FAMILIES[layout.family.model_type] is layout.family
        assert layout.model_type == model_type
    assert (
        families.DEFAULT.model_type
        == bundle.skill_info()["models"][bundle.skill_info()["default_model"]]["family"]
    )
