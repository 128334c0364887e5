"""Models whose name tells no architecture, as the Hub's config.json tells it to build_spec."""

import json

import pytest
from support import run_script

pytest_plugins = ("preflight_site",)


@pytest.fixture
def build(hub, tmp_path):
    def build(action, engine, model, **env):
        words = [action, "--engine", engine, "--model", model, "-o", "spec.toml", "--json"]
        env = {"HF_ENDPOINT": hub} | env
        done = run_script("build_spec.py", *words, cwd=tmp_path, env=env)
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)["findings"]
        about = {one["id"]: one for one in said if one["id"].startswith("SPEC-MODEL")}
        return done.returncode, about

    return build


@pytest.mark.parametrize("engine", ["tao", "cosmos-rl", "transformers"])
def test_what_the_engine_does_not_load_is_refused_before_a_download(build, tmp_path, engine):
    code, found = build("train", engine, "lab/other")
    (one,) = found.values()
    assert one["id"] == "SPEC-MODEL-FAMILY"
    assert (code, one["severity"], one["where"]) == (1, "error", "policy.model_name_or_path")
    assert "llava" in one["message"] and "qwen3_vl" in one["message"]
    assert not one["fix"]
    assert not (tmp_path / "spec.toml").exists()


@pytest.mark.parametrize("model", ["lab/adapter", "lab/list"])
def test_a_training_starts_from_what_tells_its_architecture(build, model):
    code, found = build("train", "transformers", model)
    assert (code, set(found)) == (1, {"SPEC-MODEL-FAMILY"})
    told = found["SPEC-MODEL-FAMILY"]
    assert "it has no config.json that tells a model_type" in told["message"]
    assert not told["fix"]
    code, found = build("evaluate", "transformers", model)
    assert code == 0 and "SPEC-MODEL-FAMILY" not in found, "an adapter has none"


def test_a_server_may_load_what_is_asked(build):
    code, found = build("evaluate", "transformers", "lab/other")
    assert code == 0 and found["SPEC-MODEL-FAMILY-ASKED"]["severity"] == "warning"


@pytest.mark.parametrize(
    ("model", "env"),
    [
        ("lab/none", {}),
        ("lab/other", {"HF_ENDPOINT": "http://127.0.0.1:9"}),
        ("lab/other", {"HF_HUB_OFFLINE": "1"}),
    ],
)
def test_where_the_hub_does_not_tell_it_what_is_assumed_is_said(build, model, env):
    code, found = build("train", "cosmos-rl", model, **env)
    assert code == 0 and set(found) == {"SPEC-MODEL-ASSUMED"}


def test_a_name_that_tells_its_architecture_is_not_looked_at(build, tmp_path):
    for model in ("lab/other-qwen3-vl", "lab/other-qwen2.5-vl"):
        code, found = build("train", "cosmos-rl", model)
        assert code == 0 and not found
