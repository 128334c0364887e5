"""Specs in an editor: taplo, which editors run, takes the schema that their first line names."""

import oracles
import pytest
from support import called, run_script

from cosmos_reason.base import bundle
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lint():
    program = oracles.installed("taplo-0.9.3", ["--no-deps", "taplo==0.9.3"]) / "bin" / "taplo"

    def run(path):
        command = [program, "lint", path.name]
        done = called(command, cwd=path.parent, timeout=300)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_every_template_is_sound_to_an_editor(lint, tmp_path, action):
    document.dump(document.template(action), tmp_path / "spec.toml", action)
    assert lint(tmp_path / "spec.toml")[0] == 0


def test_the_spec_of_a_carried_plan_names_the_schema_beside_it(lint, dataset, tiny_model, tmp_path):
    words = ["train", "--model", tiny_model, "--train-root", dataset / "train", "-o", "spec.toml"]
    made = run_script("build_spec.py", *words, "--set", "warmup=0", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    words = ["plan", "train", "--spec", "spec.toml", "--platform", "docker", "--gpu-ids", 0]
    planned = run_script("launch_job.py", *words, "--output", "plan", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    path = (tmp_path / "plan").rename(tmp_path / "elsewhere") / "spec.toml"
    assert lint(path)[0] == 0
    path.write_text(path.read_text().replace("optm_lr =", "optm_rate ="))
    code, said = lint(path)
    assert code == 1 and "'optm_rate' was unexpected" in said


def test_an_editor_sees_a_misspelt_key_of_a_spec(lint, tmp_path):
    words = ["train", "--tuning", "lora", "--train-root", "data", "--gpus-per-node", 2]
    made = run_script("build_spec.py", *words, "-o", "spec.toml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    path = tmp_path / "spec.toml"
    assert lint(path)[0] == 0
    path.write_text(path.read_text().replace("optm_lr =", "optm_rate ="))
    code, said = lint(path)
    assert code == 1 and "'optm_rate' was unexpected" in said
