#!/usr/bin/env python3
"""Cases of evals.json: prepare a clean workspace for an agent,
and grade what it left there by its files.

examples:
  evals/run.py list
  evals/run.py prepare csv-labels /tmp/case     then give the printed prompt to an agent in that
                                                folder, with the environment of `make setup` first
                                                on its PATH
  evals/run.py grade csv-labels /tmp/case       exit code 1 when an assertion does not hold
  evals/run.py solve csv-labels /tmp/case       prepare, run the reference solution, grade

An assertion is one line, `FILES: [WHERE] TEST [VALUE]`. FILES is a pattern below the workspace of
which one file must pass (a pattern that ends in / means a folder). WHERE is a dotted path into
JSON, JSON lines, TOML or parquet, in which `[]` goes through a list and `#` is a length. TEST is
one of == != >= <= has lacks exists absent, and VALUE is JSON.
"""

import argparse
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CASES = HERE / "evals.json"
SKILL = "tao-finetune-cosmos-reason"
ASSERTION = re.compile(r"(\S+): (?:(\S+) )?(==|!=|>=|<=|has|lacks|exists|absent)(?: (.+))?")
NOTHING = object()


def cases() -> dict[str, dict]:
    return {case["id"]: case for case in json.loads(CASES.read_text(encoding="utf-8"))["evals"]}


# ---- workspaces ----------------------------------------------------------------------------------


def prepare(case: dict, workspace: Path) -> None:
    """Fill an empty folder with the installed skill and the case's files,
    fixtures and setup commands."""
    workspace.mkdir(parents=True, exist_ok=True)
    if any(workspace.iterdir()):
        raise SystemExit(f"{workspace}: got a folder with something in it, expected an empty one")
    install(workspace)
    for name in case["files"]:
        shutil.copy(ROOT / name, workspace)
    if case["fixtures"]:
        sys.path.insert(0, str(HERE))
        import fixtures

        for name in case["fixtures"]:
            getattr(fixtures, name)(workspace)
    for line in case["setup"]:
        done = shell(line, workspace)
        if done.returncode:
            raise SystemExit(f"{case['id']}: setup `{line}` failed:\n{done.stdout}{done.stderr}")


def install(workspace: Path) -> None:
    """What `make dist` ships (no evals, no tests), where agents look for skills."""
    shipped = re.search(
        r"^SHIPPED := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )[1].split()
    skill = workspace / ".agents" / "skills" / SKILL
    skill.mkdir(parents=True)
    for name in shipped:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, skill / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, skill)
    (workspace / ".claude" / "skills").mkdir(parents=True)
    (workspace / ".claude" / "skills" / SKILL).symlink_to(f"../../.agents/skills/{SKILL}")


def shell(line: str, workspace: Path) -> subprocess.CompletedProcess:
    """Run one line as an agent would type it,
    with the bundle's scripts and this interpreter on the PATH."""
    path = os.pathsep.join(
        [str(ROOT / "scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    bash = ["bash", "-euo", "pipefail", "-c", line]
    options = {
        "cwd": workspace,
        "env": {**os.environ, "PATH": path},
        "capture_output": True,
        "text": True,
    }
    return subprocess.run(bash, stdin=subprocess.DEVNULL, timeout=600, check=False, **options)


# ---- grading -------------------------------------------------------------------------------------


def read(path: Path):
    """A file as data; a folder as the names in it; anything else as text."""
    if path.is_dir():
        return sorted(entry.name for entry in path.iterdir())
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if path.suffix == ".json" else text


def at(value, where: str | None):
    """What stands at a dotted path; NOTHING where the path ends early."""
    for part in (where or "").replace("[]", ".[]").split("."):
        if part == "[]":
            rest = (where or "").split("[]", 1)[1].lstrip(".")
            return [found for item in value if (found := at(item, rest)) is not NOTHING]
        if part == "#":
            value = len(value)
        elif part:
            if not isinstance(value, dict) or part not in value:
                return NOTHING
            value = value[part]
    return value


def holds(assertion: str, workspace: Path) -> bool:
    """Whether an assertion is true of the workspace. A file that cannot be read makes it false."""
    match = ASSERTION.fullmatch(assertion)
    if not match:
        raise ValueError(f"got {assertion!r}, expected FILES: [WHERE] TEST [VALUE]")
    pattern, where, test, value = match.groups()
    files = [
        path
        for path in workspace.glob(pattern.rstrip("/"))
        if path.is_dir() or not pattern.endswith("/")
    ]
    if where is None and test in ("exists", "absent"):
        return bool(files) == (test == "exists")
    expected = json.loads(value) if value else None
    for path in files:
        try:
            if passes(at(read(path), where), test, expected):
                return True
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return False


def passes(found, test: str, expected) -> bool:
    if found is NOTHING or test in ("exists", "absent"):
        return (found is NOTHING) == (test == "absent")
    if test in ("has", "lacks"):
        return (expected in found) == (test == "has")
    compare = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le}[test]
    return compare(found, expected)


def grade(case: dict, workspace: Path) -> list[dict]:
    return [{"text": text, "passed": holds(text, workspace)} for text in case["assertions"]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["list", "prepare", "grade", "solve"])
    parser.add_argument("case", nargs="?", choices=list(cases()), metavar="CASE")
    parser.add_argument("workspace", nargs="?", type=Path)
    args = parser.parse_args()
    if args.verb == "list":
        for name, case in cases().items():
            print(
                f"{name:26} {case['bucket']:11} {' '.join(case['needs']) or '-':8} "
                f"{case['expected_script'] or '-'}"
            )
        return 0
    if args.workspace is None:
        parser.error("expected CASE and WORKSPACE")
    case = cases()[args.case]
    if args.verb in ("prepare", "solve"):
        prepare(case, args.workspace)
    if args.verb == "prepare":
        print(case["prompt"])
        return 0
    for line in case["reference"] if args.verb == "solve" else ():
        done = shell(line, args.workspace)
        print(f"$ {line}\n{done.stdout}{done.stderr}", file=sys.stderr)
    found = grade(case, args.workspace)
    print(json.dumps({"eval_id": args.case, "expectations": found}, indent=1))
    return 0 if all(row["passed"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
