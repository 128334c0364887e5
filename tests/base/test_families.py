"""The families: each says all there is to know, and nothing else in the library names one."""

import ast
import re

import pytest
import transformers
from support import ROOT

from cosmos_reason.base import bundle, families
from cosmos_reason.base.families import FAMILIES, PUBLISHED

LIBRARY = ROOT / "scripts" / "cosmos_reason"
# Who may name a family, besides its module: what writes a checkpoint of it.
MAY_NAME = {
    "demo/__init__.py", "demo/tiny_omni.py", "demo/tiny_parts.py", "demo/tiny_qwen2_5_vl.py",
    "rules/completion.py",  # the model that cosmos-rl takes where a spec names none
    "rules/models.py",  # the default model, as an example
}  # fmt: skip
NAMES = re.compile(
    r"qwen_?-?\d|cosmos3[-_ ]?(nano|super|edge|omni|for)|reason2|siglip|nemotron", re.I
)
# Ids of findings are frozen, the default image and the datasets of the guides are no families, and
# the rotary functions of a tower have names that begin alike.
NO_FAMILY = re.compile(r"SPEC-QWEN3-\w+|prepare_cosmos3_vlm_checkpoint")


def words_of(path):
    """(line, text) of all names and texts in a file but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
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
    for path in sorted(LIBRARY.rglob("*.py")):
        name = path.relative_to(LIBRARY).as_posix()
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
