"""The shape of the code: floors, no cycles, torch in one place, pins and help texts that agree."""

import ast
import re
import subprocess
import tomllib

import pytest
from support import ROOT, run_script

LIBRARY = ROOT / "scripts" / "cosmos_reason"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
FLOORS = {
    0: "bundle command findings secret storage",
    1: "annotations answers hub json_stream label_questions media models qwen3_vl record_formats s3 safetensors_files "
    "schedule spec spec_values trainer_log vision_tokens",
    2: "adapters checkpoints clip_checks conversion dataset_checks dataset_page dataset_sources dataset_writer "
    "diagnosis docker_client explain gaps gpu_memory jobs metrics omni publishing "
    "report results rules scores source_files spec_conditions spec_engine spec_rules spec_sources survey",
    3: "demo platforms preflight search transformers_engine",
}
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}


def part_of(path):
    """The module, or on floor 3 the package, that a library file belongs to."""
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def imports(path):
    """Parts of the library that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "cosmos_reason":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cosmos_reason."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("cosmos_reason.")}
    return found


LIBRARY_FILES = sorted(path for path in LIBRARY.rglob("*.py") if path.parent != LIBRARY or path.stem != "__init__")


def test_every_module_has_a_floor():
    assert {part_of(path) for path in LIBRARY_FILES} == set(FLOOR)


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_nothing_imports_upwards(path):
    own = part_of(path)
    too_high = {name for name in imports(path) - {own} if FLOOR[name] > FLOOR[own]}
    assert not too_high
    assert not (FLOOR[own] == 3 and any(FLOOR[name] == 3 for name in imports(path) - {own}))


def test_no_import_cycles():
    graph = {}
    for path in LIBRARY_FILES:
        graph.setdefault(part_of(path), set()).update(imports(path) - {part_of(path)})
    done = set()
    while ready := {name for name in graph if name not in done and graph[name] <= done}:
        done |= ready
    assert set(graph) == done


def test_torch_is_imported_in_one_package_only():
    heavy = re.compile(r"^ *(?:import|from) (?:torch|transformers|peft|accelerate)\b", re.M)
    users = {part_of(path) for path in LIBRARY_FILES if heavy.search(path.read_text(encoding="utf-8"))}
    assert users == {"transformers_engine"}


@pytest.mark.parametrize("path", LIBRARY_FILES + SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_fit_on_a_screen_and_files_have_one_subject(path):
    text = path.read_text(encoding="utf-8")
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    long = [f"{node.name}: {node.end_lineno - node.lineno + 1}" for node in nodes]
    assert not [name for name in long if int(name.split(": ")[1]) > 60]
    assert text.count("\n") <= 450


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_help_tells_purpose_flags_examples_and_exit_codes(path):
    done = run_script(path.name, "--help", cwd="/")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.count(f"scripts/{path.name}") >= 2, "two examples"
    assert "exit codes:" in done.stdout and "  3  " in done.stdout
    assert len(done.stdout.splitlines()) < 80


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_help_imports_nothing_heavy(path):
    heavy = "torch,transformers,numpy,av,pyarrow,boto3,jsonschema,jinja2,PIL,huggingface_hub,sacrebleu"
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(path)!r}, '--help']\n"
        f"sys.path.insert(0, {str(path.parent)!r})\n"
        f"try: runpy.run_path({str(path)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print('LOADED', sorted(set({heavy.split(',')!r}) & set(sys.modules)))"
    )
    from sys import executable

    done = subprocess.run([executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"


def pins():
    lines = [line for path in ROOT.glob("requirements*.txt") for line in path.read_text().splitlines()]
    return {plain(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def plain(name):
    """A distribution's name as package indexes compare them."""
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_metadata_pins_what_the_requirements_pin(path):
    block = re.search(r"^# /// script\n(.*?)^# ///$", path.read_text(encoding="utf-8"), re.M | re.S).group(1)
    metadata = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.M))
    assert metadata["requires-python"] == ">=3.11"
    for requirement in metadata["dependencies"]:
        name, _, version = requirement.partition("==")
        assert pins()[plain(name)] == version
    assert path.stat().st_mode & 0o111, "executable"


def test_tracked_files_are_fit_to_ship():
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for line in listed.stdout.splitlines():
        mode, name = line.split()[0], line.partition("\t")[2]
        assert mode != "120000", f"{name} is a symlink"
        assert not name.endswith("metadata.json")
        assert not (ROOT / name).exists() or (ROOT / name).stat().st_size < 500_000, name
