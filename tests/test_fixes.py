"""Every fix of every finding, for a corpus of broken inputs, holds when it is applied."""

import os

import applied_fixes
import broken_inputs
import broken_outputs
import broken_specs
import pytest

PARTS = (broken_inputs, broken_specs, broken_outputs)
CORPUS = [broken for part in PARTS for broken in part.CORPUS]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixes") / "here"
    folder.mkdir()
    for part in PARTS:
        part.make(folder)
    return applied_fixes.World(folder)


@pytest.mark.parametrize("broken", CORPUS, ids=lambda one: one.name)
def test_every_fix_mends_what_it_names_and_nothing_else_changes(broken, world, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(world.folder.parent / "cache"))
    if broken.tools:
        monkeypatch.setenv("PATH", f"{world.folder / 'bin'}:{os.environ['PATH']}")
    problems = applied_fixes.failures(broken, world)
    assert not problems, "\n".join(problems)
