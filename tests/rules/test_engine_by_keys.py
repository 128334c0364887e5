"""Which action and engine a spec from elsewhere is for, told by its keys alone."""

import pytest
import support_specs
from foreign_specs import CLEAN, FRAMEWORK, POLICY, TAO
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.spec import document, origins


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CLEAN["guide"], ("cosmos-rl", "custom.dataset")),
        (CLEAN["own dataset script"], ("cosmos-rl", "custom.dataset")),
        (POLICY + '[train]\ntrain_policy = {type = "sft", dataset = {name = "a/b"}}\n',
         ("cosmos-rl", "train.train_policy.dataset.name")),
        (POLICY + '[train]\ntrain_policy = {type = "grpo"}\n[rollout]\nbatch_size = 1\n',
         ("cosmos-rl", "train.train_policy.type")),
        (TAO["tao train"], ("tao", "results_dir")),
        (TAO["tao evaluate"], ("tao", "model.save_folder")),
        (CLEAN["several rates"], None),
        (FRAMEWORK, None),
    ],
)  # fmt: skip
def test_keys_tell_the_engine(here, text, told):
    (here / "guide.toml").write_text(text)
    for platform, engine in {"local": "transformers", "docker": "tao"}.items():
        assert origins.engine_and_key("guide.toml", platform) == (told or (engine, ""))


def test_our_own_templates_and_specs_tell_nothing(here):
    for action in ("train", "evaluate", "inference", "quantize"):
        document.dump(document.template(action), here / "ours.toml")
        assert origins.engine_and_key("ours.toml") == ("tao", "")
    files.write_json(here / "guide.origins.json", {"engine": "tao", "action": "train"})
    (here / "guide.toml").write_text(CLEAN["guide"])
    assert origins.engine_of("guide.toml", "local") == "tao"
    files.write_json(here / "guide.origins.json", {"engine": "of tomorrow"})
    assert origins.engine_and_key("guide.toml", "local") == ("transformers", ""), "no guess by keys"


@pytest.mark.parametrize(("name", "action"), [("tao train", "train"), ("tao evaluate", "evaluate")])
def test_neither_action_nor_engine_need_a_flag(here, name, action):
    (here / "guide.toml").write_text(TAO[name])
    code, found, _ = support_specs.run("--spec guide.toml")
    assert code == 0, found
    assert "SPEC-ENGINE-TOLD" in {one.id for one in found}
    assert origins.engine_of("spec.toml", action=action) == "tao"
    done = run_script("launch_job.py plan --spec guide.toml --platform local", cwd=here)
    assert f"got {action} with tao on local" in done.stderr and "ENGINE-KEY" not in done.stderr


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("build_spec.py -o new.toml", "SPEC-FRAMEWORK"),
        ("build_spec.py train -o new.toml", "SPEC-FRAMEWORK"),
        ("build_spec.py evaluate -o new.toml", "SPEC-ACTION"),
        ("check_tao_launch_preflight.py --platform local", "SPEC-ACTION"),
        ("launch_job.py plan --platform docker", "SPEC-ACTION"),
        ("launch_job.py plan train --platform docker", "SPEC-ACTION"),
    ],
)
def test_a_spec_of_another_trainer_is_refused_in_one_finding(here, line, id):
    (here / "wts.toml").write_text(FRAMEWORK)
    done = run_script(f"{line} --spec wts.toml", cwd=here)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error", "warning"))]
    assert len(lines) == 1 and id in lines[0] and "cosmos-framework" in lines[0], done.stderr
