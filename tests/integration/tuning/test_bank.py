"""The skill inside NVIDIA's bank: references/skill_info.yaml read by their published AutoML runner
(nvidia-tao-automl 7.2.0), and its commands by a shell."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import oracles
import pytest
import tomli_w
import yaml
from clip_files import record, write_dataset
from support import ROOT, called, run_script

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.jobs import engines
from cosmos_reason.rules import checking as rules
from cosmos_reason.spec import document

RUNNER = ["nvidia-tao-automl==7.2.0", "nvidia-tao-sdk==7.2.0"]
SEARCHES = ["bayesian", "bfbo", "hyperband", "asha", "bohb", "dehb", "pbt"]
BANK = yaml.safe_load((ROOT / "references" / "skill_info.yaml").read_text(encoding="utf-8"))


def built_spec(folder: Path, tuning: str) -> dict:
    """A spec for NVIDIA's image, as build_spec writes it from the template that the bank has."""
    write_dataset(folder / "data", [record(number) for number in range(64)])
    line = f"train --engine tao --tuning {tuning} --train-root data --eval-root held_out"
    line += " --gpus-per-node 1 -o spec.toml --spec"
    template = bundle.template_path("train")
    done = run_script("build_spec.py", *line.split(), template, cwd=folder)
    assert done.returncode == 0, done.stderr
    return document.load(folder / "spec.toml")


@pytest.mark.release
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_published_runner_searches_what_our_schemas_say(tmp_path, tuning):
    packages = oracles.installed("nvidia-tao-automl-7.2.0", RUNNER)
    spec = built_spec(tmp_path, tuning)
    asked = {"spec": spec, "tuning": tuning, "algorithms": SEARCHES, "trials": 6}
    done = called(
        [sys.executable, str(Path(__file__).with_name("tao_automl_oracle.py")), ROOT, tmp_path],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": str(packages)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)

    image = bundle.skill_info()["engines"]["tao"]["default_image"]
    for action, skill in found["actions"].items():
        assert skill["container_image"] == image and skill["has_schema"] and skill["starts"]
        assert set(document.keys(action)) <= set(skill["keys"])

    for algorithm, search in found["searches"].items():
        assert search["launched"] >= 3 and search["images"] == [image], algorithm
        for proposed in search["proposed"]:
            assert_of_our_ranges(proposed, BANK["automl"][tuning])
        for launched in search["specs"]:
            assert launched["policy"].pop("qwen3_vl_patch_embed") == "linear"
            checked = rules.check("train", "tao", launched)
            assert not f.has_errors(checked), (algorithm, f.as_text(checked))


def assert_of_our_ranges(proposed: dict, automl: dict) -> None:
    """A search by rungs sets epochs and cadence besides."""
    assert set(automl["automl_hyperparameters"]) <= set(proposed)
    for key in automl["automl_hyperparameters"]:
        assert proposed[key] in automl["custom_param_ranges"][key]["valid_options"], key


def without_none(table: dict) -> dict:
    kept = {key: value for key, value in table.items() if value is not None}
    return {
        key: without_none(value) if type(value) is dict else value for key, value in kept.items()
    }


@pytest.mark.integration
@pytest.mark.parametrize(
    ("action", "changes"),
    [
        ("inference", {"media": "it's a clip.mp4", "prompt": 'a "b" $HOME', "enable_lora": True}),
        ("inference", {"media": "clip.mp4", "prompt": "a", "vision.fps": 2.0}),
        ("quantize", {"model.enable_lora": True, "quantize.quantization_scheme": "NVFP4"}),
        ("quantize", {"dataset.annotation_path": "a.json"}),
    ],
)
def test_the_commands_of_the_bank_pass_the_flags_that_our_jobs_pass(tmp_path, action, changes):
    spec = document.template(action)
    for key, value in changes.items():
        document.set_value(spec, key, value)
    config = tmp_path / "spec.toml"
    config.write_text(tomli_w.dumps(without_none(document.with_defaults(action, spec))))
    programs = tmp_path / "bin"
    (programs / "cosmos_rl" / "quantization").mkdir(parents=True)
    shows = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    (programs / "cosmos_rl" / "quantization" / "quantize.py").write_text(
        "def main():\n    import json, sys\n    print(json.dumps(sys.argv[1:]))\n"
    )
    (programs / "cosmos-rl-inference").write_text(f"#!{sys.executable}\n{shows}")
    (programs / "cosmos-rl-inference").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)

    done = called(
        ["sh", "-c", BANK["actions"][action]["command"].format(config_path=config)],
        env={"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(programs)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    job = SimpleNamespace(engine="tao", action=action, options={})
    ours = engines.words(job, spec, python="python", scripts="/s")
    assert json.loads(done.stdout) == ours[2:]
