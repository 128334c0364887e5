"""Time of `--help` of every script: the fastest of five, cold processes, against `python -c pass`.

python benchmarks/bench_help.py
"""

import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def fastest(*command: str) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


bare = fastest("-c", "pass")
print(f"{'python -c pass':40} {bare * 1000:6.0f} ms")
for script in sorted(SCRIPTS.glob("*.py")):
    seconds = fastest(str(script), "--help")
    print(f"{script.name:40} {seconds * 1000:6.0f} ms  {seconds / bare:4.1f}x")
