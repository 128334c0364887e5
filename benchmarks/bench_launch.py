"""What launch_job costs: a plan, the list of 1,000 jobs, the status of one,
and a watch while a job runs.

python benchmarks/bench_launch.py
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]

from launch_site import Site, ended, running  # noqa: E402

from cosmos_reason.base import files  # noqa: E402
from cosmos_reason.jobs import engines  # noqa: E402
from cosmos_reason.jobs import record as jobs  # noqa: E402

JOBS, RUNS = 1000, 5


class Patch:
    """pytest's monkeypatch, of which a Site uses one method."""

    setattr = staticmethod(setattr)


def seconds(*words, cwd):
    """Median wall time of a launch_job command."""
    command, taken = [sys.executable, str(ROOT / "scripts" / "launch_job.py"), *map(str, words)], []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, cwd=cwd, capture_output=True, check=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def fill(folder, record):
    for number in range(JOBS):
        name = f"train-20250101-{number:06d}-abcdef"
        (folder / name).mkdir()
        (folder / name / jobs.LOCK).touch()
        files.write_json(folder / name / "job.json", record.to_json() | {"job_id": name})


def main():
    with tempfile.TemporaryDirectory() as root:
        site, words = Site(Path(root), Patch), engines.words
        folder = site.submit()
        record = ended(folder)
        engines.words = words
        given = ["train", "--spec", "train.toml", "--platform"]
        print(f"plan, local:  {seconds('plan', *given, 'local', cwd=root):.2f} s")
        docker = ["docker", "--image", "x", "--docker-host", "unix:///none"]
        print(f"plan, docker: {seconds('plan', *given, *docker, cwd=root):.2f} s")
        fill(site.jobs, record)
        print(
            f"list of {JOBS} ended jobs: {seconds('list', '--last', 0, '--json', cwd=root):.2f} s"
        )
        print(f"status of one: {seconds('status', folder.name, cwd=root):.2f} s")
        folder = site.submit(pause=0.1, steps=100, total=100)
        running(folder)
        command = [
            sys.executable,
            str(ROOT / "scripts/launch_job.py"),
            "watch",
            folder.name,
            "--jobs-dir",
            str(site.jobs),
        ]
        import psutil

        watching = psutil.Popen([*command, "--json"], stdout=subprocess.DEVNULL)
        time.sleep(5)
        spent = watching.cpu_times()
        time.sleep(5)
        later = watching.cpu_times()
        print(
            f"watch: {(later.user + later.system - spent.user - spent.system) / 5:.1%} of one core"
        )
        watching.terminate()
        watching.wait()
        print(json.dumps({"state": ended(folder).state}))


if __name__ == "__main__":
    main()
