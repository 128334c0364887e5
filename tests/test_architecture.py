"""The shape of the code: packages in one order, no circles, torch in one place,
pins and help texts that agree."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter

import pytest
from support import ROOT, called

from cosmos_reason.spec import keys

LIBRARY = ROOT / "scripts" / "cosmos_reason"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
# A package imports only packages that stand before it.
ORDER = (
    "base spec remote media estimate answers data checkpoints evaluation engine rules pages jobs "
    "preflight tuning demo"
).split()
MODULES = {}
for _path in sorted(LIBRARY.rglob("*.py")):
    _parts = _path.relative_to(LIBRARY.parent).with_suffix("").parts
    MODULES[".".join(_parts).removesuffix(".__init__")] = _path


def package_of(module):
    """The package of a library module; "cli", "command" and "" for files that are in none."""
    return module.partition(".")[2].partition(".")[0]


@functools.cache
def imports(path):
    """Modules of the library that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    found.add(inner)
                elif node.module in MODULES:
                    found.add(node.module)
    return found


def test_every_module_is_in_a_package():
    assert {package_of(module) for module in MODULES} == {*ORDER, "cli", "command", ""}


@pytest.mark.parametrize("module", MODULES)
def test_packages_import_only_packages_before_them(module):
    own = package_of(module)
    if own in ("cli", "command", ""):
        return
    before = ORDER[: ORDER.index(own) + 1]
    assert not {other for other in imports(MODULES[module]) if package_of(other) not in before}


def test_every_part_of_the_integration_tests_says_what_it_guards():
    """CONTRIBUTING.md sends whoever changes a package to a folder of tests/integration."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text.partition("## Tests")[2])
    parts = {path.parent.name for path in (ROOT / "tests/integration").rglob("test_*.py")}
    assert {part for part, _ in rows} == parts
    guarded = {
        re.split(r"[/*.]", word)[0] for _, row in rows for word in re.findall(r"`(.+?)`", row)
    }
    assert guarded >= set(ORDER)


def test_no_import_circles():
    graph = {module: imports(path) - {module} for module, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_keys_that_packages_share_stand_in_one_place():
    shared = [value for name, value in vars(keys).items() if name.isupper()]
    written = re.compile("|".join(f'"{re.escape(key)}"' for key in shared))
    holders = {m for m, p in MODULES.items() if written.search(p.read_text(encoding="utf-8"))}
    assert len(shared) > 2 and holders == {"cosmos_reason.spec.keys"}


def test_no_test_imports_another_test():
    """What several test files share is in tests/fixtures."""
    shared = re.compile(r"^ *(?:import|from) test_\w+", re.M)
    paths = (ROOT / "tests").rglob("*.py")
    assert not [path for path in paths if shared.search(path.read_text(encoding="utf-8"))]


def test_torch_is_imported_in_one_package_only():
    heavy = re.compile(r"^ *(?:import|from) (?:torch|transformers|peft|accelerate)\b", re.M)
    users = {
        package_of(m) for m, p in MODULES.items() if heavy.search(p.read_text(encoding="utf-8"))
    }
    assert users == {"engine"}


# What takes long to import, and is imported where it is used.
HEAVY = "torch,transformers,numpy,av,pyarrow,openpyxl,boto3,jsonschema,jinja2,PIL,huggingface_hub"
HEAVY += ",sacrebleu"
# A run of a script in a process of its own, which tells on stderr what of it was imported.
RUN_AND_TELL = """
import atexit, runpy, sys
heavy, sys.argv = sys.argv[1], sys.argv[2:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
atexit.register(lambda: print(sorted(set(heavy.split(",")) & set(sys.modules)), file=sys.stderr))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_help_tells_purpose_flags_examples_and_exit_codes_and_imports_nothing_heavy(path):
    command = [sys.executable, "-c", RUN_AND_TELL, HEAVY, path, "--help"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout.count(f"scripts/{path.name}") >= 2, "two examples"
    assert "exit codes:" in done.stdout and ", 3 the outside" in done.stdout
    assert len(done.stdout.splitlines()) < 80


def pins():
    apart = {"requirements-cosmos-rl.txt"}  # an environment of its own
    files = [path for path in ROOT.glob("requirements*.txt") if path.name not in apart]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return {plain(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def plain(name):
    """A distribution's name as package indexes compare them."""
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_metadata_pins_what_the_requirements_pin(path):
    block = re.search(
        r"^# /// script\n(.*?)^# ///$", path.read_text(encoding="utf-8"), re.M | re.S
    ).group(1)
    metadata = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.M))
    assert metadata["requires-python"] == ">=3.11"
    for requirement in metadata["dependencies"]:
        name, _, version = requirement.partition("==")
        assert pins()[plain(name)] == version
    assert path.stat().st_mode & 0o111, "executable"


def test_tracked_files_are_fit_to_ship():
    listed = called(["git", "ls-files", "-s"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for line in listed.stdout.splitlines():
        mode, name = line.split()[0], line.partition("\t")[2]
        assert mode != "120000", f"{name} is a symlink"
        assert not name.endswith("metadata.json")
        assert not (ROOT / name).exists() or (ROOT / name).stat().st_size < 500_000, name
