"""The skill as it reaches people:
the release archive, installed by others' tools, judged by others' validators."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import oracles
import pytest
from support import ROOT

NAME = "tao-finetune-cosmos-reason"
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
NODE = "node@22.23.3"  # skills 1.7 needs 22.20; Debian's node only runs npm


def run(*command, cwd=None, env=None, timeout=1800, **options):
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True,
        text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False, **options,
    )  # fmt: skip


def succeed(*command, **options) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A clone named like the skill, of what is tracked here or would be."""
    folder = tmp_path_factory.mktemp("clone") / NAME
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        succeed(*git, *command, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def release(checkout, tmp_path_factory):
    """The unpacked archive of `make dist`."""
    folder = tmp_path_factory.mktemp("release")
    succeed("make", "dist", cwd=checkout)
    (packed,) = (checkout / "dist").iterdir()
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


def node_packages(name: str, *packages: str) -> Path:
    """node_modules with these packages, made on first use.
    Skips the test, saying why, when npm does not give them."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    with oracles.being_made(name) as (folder, complete):
        if not complete:
            quiet = ["--no-fund", "--no-audit", "--loglevel=error"]
            done = run("npm", "install", "--prefix", folder, *quiet, *packages, cwd=folder)
            if done.returncode:
                pytest.skip(f"{packages} cannot be installed here: {done.stderr.strip()[-300:]}")
    return folder / "node_modules"


def python_tool(name: str, version: str, program: str) -> tuple[list[str], dict]:
    """(command, environment) of a console script from a package in a folder of its own."""
    folder = oracles.installed(f"{name}-{version}", [f"{name}=={version}"])
    return [sys.executable, str(folder / "bin" / program)], {"PYTHONPATH": str(folder)}


def tree(folder: Path) -> dict:
    """Path below the folder -> (SHA-256, may it be run), without git's own files."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        str(name): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            bool(path.stat().st_mode & 0o100),
        )
        for name, path in files.items()
        if name.parts[0] != ".git" and "__pycache__" not in name.parts and name.parts[0] != "dist"
    }


# ---- the archive ---------------------------------------------------------------------------------


@pytest.mark.promise
@pytest.mark.integration
def test_the_release_is_reproducible_and_holds_what_users_need(checkout, release):
    archive = next((checkout / "dist").iterdir())
    first = archive.read_bytes()
    archive.unlink()
    succeed("make", "dist", cwd=checkout)
    assert archive.read_bytes() == first
    shipped = tree(release)
    assert shipped.items() <= tree(checkout).items(), "unchanged, and run bits kept"
    tops = {name.split("/")[0] for name in shipped}
    needed = "SKILL.md LICENSE README.md scripts references schemas skill_info.yaml"
    assert set(needed.split()) <= tops
    ours = "tests evals tools .ci pyproject.toml .gitignore requirements-dev.txt"
    assert not tops & set(ours.split())


@pytest.mark.promise
@pytest.mark.integration
def test_every_script_of_the_release_answers_from_a_read_only_copy(release, tmp_path):
    copy = tmp_path / NAME
    shutil.copytree(release, copy)
    before = tree(copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    as_a_user = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    assert run(*as_a_user, "touch", copy / "scripts" / "new").returncode != 0, "it is read-only"
    for script in SCRIPTS:
        done = run(*as_a_user, sys.executable, copy / "scripts" / script, "--help", cwd="/")
        assert done.returncode == 0 and "examples:" in done.stdout, done.stderr
    assert tree(copy) == before


# ---- installers ----------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("version", ["1.5.16", pytest.param("1.7.4", marks=pytest.mark.promise)])
def test_npx_skills_add(checkout, tmp_path, version):
    node = node_packages("node-22", NODE) / "node" / "bin" / "node"
    cli = node_packages(f"skills-{version}", f"skills@{version}") / "skills" / "bin" / "cli.mjs"
    agents = ["claude-code", "codex", "cursor", "universal"]
    home = {"HOME": str(tmp_path), "DISABLE_TELEMETRY": "1"}
    project = tmp_path / "project"
    project.mkdir()
    succeed(node, cli, "add", checkout, "--agent", *agents, "--yes", cwd=project, env=home)
    original = tree(checkout)
    for place in (".claude", ".agents"):
        installed = project / place / "skills" / NAME
        assert tree(installed) == original
        for script in SCRIPTS:
            path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = run(installed / "scripts" / script, "--help", cwd="/", env=path)
            assert done.returncode == 0 and "examples:" in done.stdout, done.stderr


UV_ENV = {"UV_CACHE_DIR": str(ROOT / ".oracle" / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never"}
HEAVY = [  # with torch: 3 GB to download
    name for name in SCRIPTS if '"torch==' in (ROOT / "scripts" / name).read_text(encoding="utf-8")
]
MARKS = {
    name: pytest.mark.release if name in HEAVY else pytest.mark.integration for name in SCRIPTS
}


def uv() -> list[Path]:
    return [oracles.installed("uv-0.13.8", ["uv==0.13.8"]) / "bin" / "uv"]


@pytest.mark.parametrize("script", [pytest.param(name, marks=MARKS[name]) for name in SCRIPTS])
def test_uv_runs_each_script_from_its_own_metadata(release, script):
    words = [*uv(), *"run --no-project --script".split(), release / "scripts" / script]
    done = run(*words, "--help", cwd="/", env=UV_ENV)
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"the package index does not give its packages: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0 and "examples:" in done.stdout, done.stderr


# ---- validators ----------------------------------------------------------------------------------


@pytest.mark.promise
@pytest.mark.integration
def test_agentskills_validate(checkout, release):
    command, env = python_tool("skills-ref", "0.1.1", "agentskills")
    for folder in (checkout, release):
        assert "Valid skill" in succeed(*command, "validate", folder, env=env)


@pytest.mark.promise
@pytest.mark.integration
def test_claude_plugin_validate(release, tmp_path):
    modules = node_packages("claude-code-2.1.329", "@anthropic-ai/claude-code@2.1.329")
    env = {"HOME": str(tmp_path), "DISABLE_TELEMETRY": "1"}
    for target in (release, release / ".claude-plugin" / "plugin.json"):
        words = [modules / ".bin" / "claude", *"plugin validate --strict --json".split(), target]
        report = json.loads(succeed(*words, env=env))
        assert report["success"] and report["provides"]["skills"] == [f"{NAME}:{NAME}"]


@pytest.mark.integration
def test_skill_scanner_finds_nothing_grave_in_what_is_installed(checkout, tmp_path):
    """`npx skills add` copies all that is tracked: with the tests it takes minutes of one core."""
    installed = tmp_path / NAME  # without the archive that other tests make there
    shutil.copytree(checkout, installed, ignore=shutil.ignore_patterns(".git", "dist"))
    found = scanned(installed)
    grave = [one for one in found if one[0] in ("CRITICAL", "HIGH")]
    assert not grave, sorted(grave, key=str)


@pytest.mark.promise
@pytest.mark.integration
def test_skill_scanner_finds_nothing_of_medium_severity_or_above_in_the_release(release):
    found = scanned(release)
    assert {severity for severity, *_ in found} <= {"LOW", "INFO"}, sorted(found, key=str)


def scanned(folder):
    """(severity, rule, file, line) of each finding."""
    command, env = python_tool("cisco-ai-skill-scanner", "2.3.2", "skill-scanner")
    flags = ["--use-behavioral", "--use-trigger", "--format", "json"]
    report = json.loads(succeed(*command, "scan", folder, *flags, env=env))
    return {
        (f["severity"], f["rule_id"], f["file_path"], f["line_number"]) for f in report["findings"]
    }


@pytest.mark.integration
def test_skillevaluator_quality(release):
    folder = ROOT / ".oracle" / "skillevaluator-1.0.1"
    env = UV_ENV | {"UV_TOOL_DIR": str(folder), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    done = run(*uv(), "tool", "install", "--python", ">=3.12", "skillevaluator==1.0.1", env=env)
    if done.returncode:
        pytest.skip(f"SkillEvaluator cannot be installed here: {done.stderr.strip()[-300:]}")
    printed = succeed(folder / "bin" / "skillevaluator", "quality-check", release)
    assert float(re.search(r"(\d+(?:\.\d+)?)\s*/\s*100", printed)[1]) >= 92, printed
