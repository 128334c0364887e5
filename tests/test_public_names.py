"""Flags and finding ids that people and agents know: none appears or goes by accident.

After a deliberate change: `python tests/test_public_names.py > tests/fixtures/public_names.json`,
and a line in CHANGELOG.
"""

import argparse
import json
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests/fixtures/public_names.json"
ID = re.compile(
    r"\b(?:BUILD|CKPT|DATA|DEMO|ENGINE|EVAL|HUB|JOB|LOG|PRE|PUBLISH|QUANT|S3|SPEC|TUNE)(?:-[A-Z0-9]+)+\b"
)


def flags_of(parser: argparse.ArgumentParser, verb: str = "") -> dict[str, list[str]]:
    """Verb (or "" for none) -> its flags and positional arguments."""
    found = {verb: []}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found |= flags_of(inner, name)
        else:
            found[verb] += action.option_strings or [action.dest]
    found[verb].sort()
    return found


def public_names() -> dict:
    flags = {}
    for script in sorted((ROOT / "scripts").glob("*.py")):
        flags[script.name] = flags_of(runpy.run_path(str(script))["parser"]())
    ids = set()
    for path in (ROOT / "scripts").rglob("*"):
        if path.suffix in (".py", ".yaml"):
            ids |= set(ID.findall(path.read_text(encoding="utf-8")))
    return {"flags": flags, "ids": sorted(ids)}


def test_public_names_are_the_known_ones():
    known = json.loads(KNOWN.read_text())
    now = public_names()
    assert now["flags"] == known["flags"]
    assert now["ids"] == known["ids"]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "scripts"))
    print(json.dumps(public_names(), indent=1))
