"""`cosmos-reason`: the scripts as subcommands of one program, its completion, and what it is made
of."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from support import ROOT

from cosmos_reason.base import bundle
from cosmos_reason.demo import clips

PROGRAM = [sys.executable, str(ROOT / "scripts/cosmos_reason/command.py")]


def run(*words, cwd):
    command = [*PROGRAM, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_subcommand_is_the_script_and_what_it_proposes_is_called_the_same_way(tmp_path):
    clips.write_split(tmp_path / "data", "train", 4, 3)
    done = run("check-dataset", "data/train", "--facts", "facts.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "\nnext: cosmos-reason build-spec train --profile small-dataset" in done.stderr
    built = run("build_spec", "train", "--train-root", "data/train", "-o", "s.toml", cwd=tmp_path)
    assert "fix: cosmos-reason prepare-cosmos3-vlm-checkpoint --checkpoint-path" in built.stderr
    assert "scripts/" not in built.stderr + done.stderr


def test_what_is_no_subcommand_is_wrong_usage_with_the_one_that_was_meant(tmp_path):
    done = run("buld-spec", cwd=tmp_path)
    assert done.returncode == 2 and "Did you mean build-spec?" in done.stderr
    shown = run(cwd=tmp_path).stdout
    for path in (ROOT / "scripts").glob("*.py"):
        is_of_jobs = path.stem in ("run_with_transformers", "train_with_cosmos_rl")
        name = {"show_status": "status", "check_tao_launch_preflight": "preflight"}
        name = name.get(path.stem, path.stem.replace("_", "-"))
        assert bool(re.search(rf"^  {name} ", shown, re.M)) != is_of_jobs


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["lau"], {"launch-job"}),
        (["launch-job", "wa"], {"watch"}),
        (["launch-job", "plan", "--platform", ""], {"docker", "kubernetes", "local", "slurm"}),
        (["launch-job", "plan", "--gpu-i"], {"--gpu-ids"}),
        (["build-spec", "ev"], {"evaluate"}),
        (["completion", ""], {"bash", "zsh"}),
    ],
)
def test_words_are_completed_by_the_parser_itself(tmp_path, words, offered):
    assert set(run("complete", *words, cwd=tmp_path).stdout.split()) == offered


def test_bash_completes_with_what_it_is_given(tmp_path):
    (tmp_path / "cosmos-reason").write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    (tmp_path / "cosmos-reason").chmod(0o755)
    script = """PATH=.:$PATH; source <(cosmos-reason completion bash)
COMP_WORDS=(cosmos-reason launch-job plan --platform d); COMP_CWORD=4
_cosmos_reason; echo "${COMPREPLY[@]}" """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "docker\n", done.stderr


def test_zsh_completes_with_what_it_is_given_or_with_files(tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("needs zsh")
    (tmp_path / "cosmos-reason").write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    (tmp_path / "cosmos-reason").chmod(0o755)
    script = """compdef() { true }; compadd() { shift 2; print -l -- "$@" }
_files() { print FILES }
PATH=.:$PATH; source <(cosmos-reason completion zsh)
words=(cosmos-reason launch-job plan --platform d); CURRENT=5; _cosmos_reason
words=(cosmos-reason check-dataset da); CURRENT=3; _cosmos_reason"""
    done = subprocess.run(["zsh", "-fc", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "docker\nFILES\n", done.stderr


# ---- show_status -----------------------------------------------------------------------------


def test_status_names_what_is_here_and_what_follows(tmp_path):
    empty = run("status", cwd=tmp_path)
    assert empty.returncode == 0 and "nothing of a fine-tuning" in empty.stdout
    clips.write_split(tmp_path / "data", "train", 4, 3)
    clips.write_split(tmp_path / "data", "eval", 4, 3)
    done = run("status", cwd=tmp_path)
    assert "data/eval; data/train" in done.stdout
    assert "next: cosmos-reason check-dataset data/train --eval data/eval" in done.stderr
    flags = ["--engine", "transformers", "--train-root", "data/train", "-o", "spec.toml"]
    assert run("build-spec", "train", *flags, cwd=tmp_path).returncode == 0
    done = run("status", cwd=tmp_path)
    assert "spec.toml (train with transformers)" in done.stdout
    assert done.stderr.endswith("preflight --platform local --spec spec.toml\n")
    (tmp_path / "data" / "eval" / "annotations.json").write_text("not JSON")
    assert run("status", cwd=tmp_path).returncode == 0, "a broken file is no reason to say nothing"


# ---- what it needs ---------------------------------------------------------------------------


def pins(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return {line for line in text.splitlines() if "==" in line}


def test_the_wheel_needs_what_make_tools_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["dependencies"]) == pins("requirements.txt")
    for extra, wanted in project["optional-dependencies"].items():
        assert set(wanted) == pins(f"requirements-{extra}.txt")


def test_what_the_lean_environment_lacks_has_a_target_that_installs_it():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for module, target in bundle.TARGETS.items():
        assert re.search(rf"^(?:[\w -]+ )?{target}[: ]", makefile, re.M), target
        part = target.removeprefix("setup-")
        names = {line.split("==")[0] for line in pins(f"requirements-{part}.txt")}
        assert module.replace("_", "-") in names | {"botocore"}


def test_a_search_without_its_library_names_the_target(tmp_path, dataset, tiny_model):
    """The library is hidden from the command, as it is where only `make tools` was run."""
    hide = "import sys; sys.modules['optuna'] = None; import runpy; sys.argv = sys.argv[1:]; "
    hide += "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); "
    hide += "runpy.run_path(sys.argv[0], run_name='__main__')"
    words = ["--train-root", dataset / "train", "--eval-root", dataset / "eval"]
    words += ["--model", tiny_model, "--engine", "transformers", "-o", "s.toml"]
    assert run("build-spec", "train", *words, cwd=tmp_path).returncode == 0
    script = str(ROOT / "scripts" / "tune_hyperparameters.py")
    command = [sys.executable, "-c", hide, script, "plan", "--study", "a", "--spec", "s.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "PACKAGE-MISSING optuna" in done.stderr and f"make -C {ROOT} setup-search" in done.stderr
