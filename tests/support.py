"""Shared by the tests: running a script as a user would."""

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
