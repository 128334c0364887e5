"""Every fix of every finding, for a corpus of broken inputs, holds when it is applied."""

import os
import subprocess
import sys

import applied_fixes
import broken_inputs
import broken_outputs
import broken_specs
import pytest

from cosmos_reason.jobs.platforms.local import preflight

PARTS = (broken_inputs, broken_specs, broken_outputs)
CORPUS = [broken for part in PARTS for broken in part.CORPUS]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixes") / "here"
    folder.mkdir()
    for part in PARTS:
        part.make(folder)
    return applied_fixes.World(folder)


@pytest.fixture(scope="session")
def what_torch_says():
    """Its answer to the preflight, which is the same each time and takes seconds."""
    words = [sys.executable, "-c", preflight.ASK_TORCH]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("broken", CORPUS, ids=lambda one: one.name)
def test_every_fix_mends_what_it_names_and_nothing_else_changes(
    broken, world, what_torch_says, monkeypatch
):
    monkeypatch.setattr(preflight, "ASK_TORCH", f"print({what_torch_says!r})")
    monkeypatch.setenv("COSMOS_CACHE", str(world.folder.parent / "cache"))
    if broken.tools:
        monkeypatch.setenv("PATH", f"{world.folder / 'bin'}:{os.environ['PATH']}")
    problems = applied_fixes.failures(broken, world)
    assert not problems, "\n".join(problems)
