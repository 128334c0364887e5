"""Shared by the tests: running a script as a user would, counting tokens, packages of other versions as oracles."""

import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_script(name: str, *args, cwd=None, env=None, timeout: int = 120) -> subprocess.CompletedProcess:
    """Run scripts/<name> with this interpreter; `env` adds to the environment. Output is text, nothing is raised."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *map(str, args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )


@functools.cache
def _o200k():
    import splintr

    return splintr.Tokenizer.from_pretrained("o200k_base")


def tokens(text: str) -> int:
    """How many o200k tokens an agent reads."""
    return len(_o200k().encode(text))


def oracle_packages(name: str, *installs: list[str]) -> Path:
    """A folder of packages to put before the main environment's (PYTHONPATH), made on first use by one pip run per
    list of arguments. Skips the test, saying why, when the package index does not give them."""
    import pytest

    folder = ROOT / ".oracle" / name
    if not (folder / ".complete").is_file():
        for arguments in installs:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.skip(f"{name} cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / ".complete").touch()
    return folder
