"""What every script does with usage, output and failures, seen from outside."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT, run_script

SCRIPT = "build_spec.py"


@pytest.mark.parametrize("words", [["--modle", "x"], ["--engine", "toa"], ["--model"], ["--nodes", "two"]])
def test_wrong_usage_is_one_json_document_when_json_is_asked_for(words):
    done = run_script(SCRIPT, "train", *words, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 2 and document["ok"] is False
    assert [finding["id"] for finding in document["findings"]] == ["USAGE"]


def test_a_misspelt_flag_is_answered_with_the_near_one():
    done = run_script(SCRIPT, "train", "--modle", "x")
    assert done.returncode == 2 and "--model" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_behind_stdout_is_exit_three():
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "scripts" / SCRIPT), "--list-rules"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3 and "Traceback" not in done.stderr


def test_names_that_the_terminal_cannot_show_are_escaped():
    done = run_script(SCRIPT, "train", "-o", "\u00fc.txt", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_failure():
    script = f"{sys.executable} {ROOT / 'scripts' / SCRIPT} --list-rules | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""


def test_suggestions_paste_from_the_folder_of_the_scripts():
    command = ["./diagnose_log.py", "--explain", "LOG-X"]
    done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, check=False)
    assert "fix: ./diagnose_log.py --list-checks" in done.stderr, done.stderr


def test_a_package_that_is_not_installed_is_a_finding_with_the_way_to_get_it():
    command = [sys.executable, "-S", str(ROOT / "scripts" / SCRIPT), "train", "-o", "x.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "PACKAGE-MISSING yaml" in done.stderr and f"make -C {ROOT} setup" in done.stderr
