"""What a finding says to do: rendered in one place, read by its fields everywhere else."""

import ast
import re
import shlex
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix

VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
TEXT_METHODS = {name for name in dir(str) if not name.startswith("_")}
TEXT_CALLS = {"split", "sub", "match", "search", "findall", "fullmatch", "len", "str"}


@pytest.mark.parametrize(("fix", "text"), [
    (Fix(), ""),
    (Fix(changes={"a.b": 1, "a.c": None, "d": [True, "x y"]}),
     """--set a.b=1 --unset a.c --set 'd=[true, "x y"]'"""),
    (Fix(flags={"--gpus-per-node": 2, "--force": True}), "--gpus-per-node 2 --force"),
    (Fix(flags={"--allow-extra-key": ["a", "b c"]}), "--allow-extra-key a --allow-extra-key 'b c'"),
    (Fix(command="replace --set a=1 with", changes={"a": 2}), "replace --set a=1 with --set a=2"),
    (Fix(changes={"a": "x'y"}, flags={"-o": "my spec.toml"}),
     """--set 'a=x'"'"'y' -o 'my spec.toml'"""),
])  # fmt: skip
def test_a_fix_is_rendered_for_a_shell(fix, text):
    assert str(fix) == text and bool(fix) == bool(text)


@given(st.text(min_size=1), VALUES)
def test_a_change_survives_shell_and_toml(key, value):
    flag, setting = shlex.split(str(Fix(changes={key: value})))
    written = setting.removeprefix(f"{key}=")
    assert flag == "--set"
    if isinstance(value, str):
        assert written == value
    else:
        assert tomllib.loads(f"value = {written}")["value"] == value


def test_the_later_fix_wins_where_two_are_merged():
    earlier = Fix(changes={"a": 1, "b": 1}, flags={"--x": 1})
    merged = earlier | Fix(changes={"b": 2}, flags={"--y": 2})
    assert merged == Fix(changes={"a": 1, "b": 2}, flags={"--x": 1, "--y": 2})


def test_scripts_of_a_command_are_called_where_they_are():
    command = "scripts/check_dataset.py ROOT, then x/scripts/other.py"
    fix = Fix(command=command, flags={"-o": "scripts/a.py"})
    assert str(fix.called(lambda name: [f"/my skill/scripts/{name}"])) == (
        "'/my skill/scripts/check_dataset.py' ROOT, then x/scripts/other.py -o scripts/a.py"
    )


def test_plain_text_is_a_command():
    finding = f.error("X", "y", "z", "docker info")
    assert finding.fix == Fix(command="docker info")
    assert finding.to_json()["fix"] == "docker info"
    assert f.Finding(**finding.to_json()) == finding
    assert "  fix: docker info" in f.as_text([finding])


def is_a_fix(node: ast.expr) -> bool:
    """Whether an expression is `fix` or `something.fix`, or its text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(is_a_fix(argument) for argument in node.args)
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name == "fix"


def read_as_text(node: ast.AST) -> list[ast.expr]:
    """What a node treats as text: by a method of str, `in`, a slice or a call that takes text
    apart."""
    if isinstance(node, ast.Attribute) and node.attr in TEXT_METHODS:
        return [node.value]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.comparators
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return node.args if name in TEXT_CALLS - {"str"} else []
    return []


def text_operations(tree: ast.AST) -> list[int]:
    """Lines that treat a fix as text."""
    lines = []
    for node in ast.walk(tree):
        lines += [node.lineno for operand in read_as_text(node) if is_a_fix(operand)]
    return lines


def test_text_operations_are_seen():
    for line in (
        *("one.fix.startswith('-')", "re.sub('a', 'b', fix)", "'--set' in one.fix"),
        *("one.fix[3:]", "shlex.split(str(one.fix))", "str(one.fix).partition(' ')"),
    ):
        assert text_operations(ast.parse(line)) == [1], line
    assert not text_operations(ast.parse("one.fix.changes; str(one.fix); one.fix or Fix()"))


def test_no_code_takes_a_fix_apart():
    wrong = []
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text if re.search(r"\bfix\b", text) else "")
        wrong += [f"{path.relative_to(ROOT)}:{line}" for line in text_operations(tree)]
    assert not wrong
