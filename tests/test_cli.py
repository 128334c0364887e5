"""What every script does with usage, output and failures, seen from outside."""

import json
import os
import re
import subprocess
import sys

import pytest
from support import ROOT, called, run_script

from cosmos_reason import cli
from cosmos_reason.base import files
from cosmos_reason.jobs import containers

SCRIPT = "build_spec.py"


@pytest.mark.parametrize(
    "words", [["--modle", "x"], ["--engine", "toa"], ["--model"], ["--nodes", "two"]]
)
def test_wrong_usage_is_one_json_document_when_json_is_asked_for(words):
    done = run_script(SCRIPT, "train", *words, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 2 and document["ok"] is False
    assert [finding["id"] for finding in document["findings"]] == ["USAGE"]


def test_a_misspelt_flag_is_answered_with_the_near_one():
    done = run_script(SCRIPT, "train", "--modle", "x")
    assert done.returncode == 2 and "--model" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_while_a_script_is_imported_is_no_traceback():
    words = [sys.executable, "-c", "from cosmos_reason import cli; raise KeyboardInterrupt"]
    done = subprocess.run(words, cwd=ROOT / "scripts", capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "interrupted" and done.returncode != 0


def test_a_full_disk_behind_stdout_is_exit_three():
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "scripts" / SCRIPT), "--list-rules"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3 and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_failure(closed):
    script = f'exec {sys.executable} "$@" {closed}'
    words = [str(ROOT / "scripts/diagnose_log.py"), "-", "--json"]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], input="step 1\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    if closed == "2>&-":
        assert json.loads(done.stdout)["ok"]


def test_a_link_to_itself_is_bad_input(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    done = run_script("build_dataset.py", tmp_path / "loop", "-o", tmp_path / "data")
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_names_that_the_terminal_cannot_show_are_escaped():
    done = run_script(
        SCRIPT, "train", "-o", "\u00fc.txt", env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_failure():
    script = f"{sys.executable} {ROOT / 'scripts' / SCRIPT} --list-rules | head -1"
    done = called(["bash", "-o", "pipefail", "-c", script])
    assert done.returncode == 0 and done.stderr == ""


def test_suggestions_paste_from_the_folder_of_the_scripts():
    command = ["./diagnose_log.py", "--explain", "LOG-X"]
    done = called(command, cwd=ROOT / "scripts")
    assert "fix: ./diagnose_log.py --list-checks" in done.stderr, done.stderr


def test_a_package_that_is_not_installed_is_a_finding_with_the_way_to_get_it():
    command = [sys.executable, "-S", str(ROOT / "scripts" / SCRIPT), "train", "-o", "x.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    way = f"make -C {ROOT} tools"
    if next((ROOT / ".venv").glob("lib/python3*/site-packages/yaml"), None):
        way = f'export PATH={ROOT}/.venv/bin:"$PATH"'  # it is there, and was not called
    assert "PACKAGE-MISSING yaml" in done.stderr and way in done.stderr


def test_a_package_that_an_image_lacks_is_a_finding_of_the_copy_that_runs_there(tmp_path):
    containers.copy_programs(tmp_path)
    program = str(tmp_path / "scripts" / "run_with_transformers.py")
    (tmp_path / "x.toml").write_text("[train]\nepoch = 1\n")
    command = [sys.executable, "-S", program, "train", "--config", str(tmp_path / "x.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "an image that has what requirements-engine.txt names" in done.stderr


def helps() -> dict[str, tuple[str, ...]]:
    """Name -> words that print the help of a script or of one verb of it."""
    known = json.loads((ROOT / "tests/fixtures/public_names.json").read_text())["flags"]
    return {
        f"{script} {verb}".strip(): (script, *verb.split())
        for script, verbs in known.items()
        for verb in verbs
    }


HELPS = helps()


@pytest.mark.parametrize("name", HELPS)
def test_a_help_costs_less_than_a_page_and_the_whole_one_names_every_flag(name):
    short = run_script(*HELPS[name], "--help").stdout
    assert 0 < len(short) < 1500, short
    _, *verb = HELPS[name]
    known = json.loads((ROOT / "tests/fixtures/public_names.json").read_text())["flags"]
    hidden = {"--install-missing-tools", "--skill-bank", "--min-gpu-memory-gb"}
    alternatives = {"--container-image", "--donor", "--output"}
    flags = set(known[HELPS[name][0]]["".join(verb)]) - hidden - alternatives - {"-h", "--help"}
    words = short.replace(",", " ").replace("[", " ").split()
    flags = {flag.rstrip(":") for flag in flags if flag.startswith("--") and flag != "--"}
    is_counted = re.search(r"^(\d+) more flags, which --help-all explains$", short, re.M)
    left_out = flags - {word.strip("():]") for word in words}
    assert not left_out or (is_counted and int(is_counted[1]) >= len(left_out) > 10)
    if "--help-all" in flags:
        whole = run_script(*HELPS[name], "--help-all").stdout
        assert len(whole) > len(short)
        assert flags <= set(whole.replace(",", " ").replace("[", " ").replace("]", " ").split())


def test_wrong_usage_repeats_one_line_of_usage():
    done = run_script("score_predictions.py", "--typo", "x")
    assert done.returncode == 2 and len(done.stderr) < 300 and "--typo" in done.stderr
    assert done.stderr.startswith("usage: score_predictions.py RESULTS [flags]\n")


def test_quiet_leaves_out_what_is_neither_wrong_nor_asked_for(tmp_path):
    words = ["train", "-o", "spec.toml", "--set", "epochs=3"]
    loud = run_script(SCRIPT, *words, "--tuning", "lora", cwd=tmp_path)
    assert "learning rate 0.0001" in loud.stdout
    assert "SPEC-TUNING-RATE" not in loud.stderr, "the table shows it"
    words += ["--force", "--set", "train_annotations=none.json"]
    quiet = run_script(SCRIPT, *words, "--tuning", "lora", "--quiet", cwd=tmp_path)
    assert not re.search("infos?: |next: ", quiet.stderr)
    assert "warning: SPEC-PATH-NOT-HERE" in quiet.stderr
    assert quiet.stdout.startswith("wrote spec.toml")
    words += ["--tuning", "lora", "--json", "--quiet"]
    document = json.loads(run_script(SCRIPT, *words, cwd=tmp_path).stdout)
    infos = {one["id"] for one in document["findings"] if one["severity"] == "info"}
    assert "SPEC-TUNING-RATE" in infos


def test_what_json_prints_is_kept_in_a_file_too(tmp_path):
    words = ["train", "-o", "spec.toml", "--set", "epochs=3"]
    done = run_script(SCRIPT, *words, "--save", "kept.json", cwd=tmp_path)
    assert done.returncode == 0 and "wrote spec.toml" in done.stdout
    assert done.stdout.endswith("saved as kept.json: the same, for programs\n")
    printed = run_script(SCRIPT, *words, "--json", cwd=tmp_path).stdout
    assert json.loads((tmp_path / "kept.json").read_text()) == json.loads(printed)
    words[-1] = "epochs=none"
    assert run_script(SCRIPT, *words, "--save", "kept.json", cwd=tmp_path).returncode == 1
    assert json.loads((tmp_path / "kept.json").read_text())["ok"] is False
    words = [*words[:3], "--save", "spec.toml/kept.json"]
    done = run_script(SCRIPT, *words, cwd=tmp_path)
    assert done.returncode == 3 and "wrote spec.toml" in done.stdout and "OS-ERROR" in done.stderr


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["launch_job.py", "list", "--jobs-dir", LONG],
        ["build_spec.py", "train", "--train-root", LONG, "-o", "spec.toml"],
        ["select_checkpoint.py", LONG],
        ["score_predictions.py", LONG],
        ["check_dataset.py", LONG],
    ],
)
def test_a_name_that_no_file_can_have_is_refused(tmp_path, words):
    """A file that is to be read is unreadable input (2). build_spec reads no such file: the path is
    a value of the spec, which may lie on another machine, so it is a check that failed (1), told
    with all others (DESIGN.md, exit codes)."""
    done = run_script(*words, cwd=tmp_path)
    is_in_spec = words[0] == "build_spec.py"
    assert done.returncode == (1 if is_in_spec else 2) and "error: " in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_name_of_other_bytes_is_wrong_usage_where_it_cannot_be_written(tmp_path, capsys):
    def main(_):
        files.write_text(tmp_path / "a", "of \udcff")

    assert cli.run(cli.Parser("words"), main, []) == 2
    assert "error: FILE-NAME" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["--s3", "--hub"])
def test_an_empty_target_of_a_model_is_refused(tmp_path, target):
    done = run_script("publish_checkpoint.py", tmp_path, target, "")
    assert done.returncode == 2 and "Traceback" not in done.stderr
