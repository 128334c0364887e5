"""What build_spec notes beside a spec: its engine, and where each value is from."""

import pytest

from cosmos_reason.spec import document, origins


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    document.dump(document.template("train"), path)
    beside = origins.write(path, "train", "cosmos-rl", {"train.epoch": "--set epoch"})
    assert beside == tmp_path / "spec.origins.json"
    return path


def test_origins_hold_until_the_spec_is_edited(spec):
    assert origins.of_values(spec) == {"train.epoch": "--set epoch"}
    spec.write_text(spec.read_text() + "# edited\n")
    assert origins.of_values(spec) == {}
    assert origins.engine_of(spec) == "cosmos-rl", "an edited spec is still meant for its engine"


def test_the_engine_of_another_action_does_not_count(spec):
    assert origins.engine_of(spec, action="train") == "cosmos-rl"
    assert origins.engine_of(spec, action="evaluate") == "tao"


@pytest.mark.parametrize("beside", ["", "[]", '{"engine": "mine", "origins": 3}'])
def test_without_a_note_the_platform_decides(tmp_path, beside):
    path = tmp_path / "mine.toml"
    document.dump({"train": {"epoch": 1}}, path)
    if beside:
        origins.path_beside(path).write_text(beside)
    assert origins.of_values(path) == {}
    assert origins.engine_of(path) == "tao"
    assert origins.engine_of(path, "local") == origins.engine_of(None, "local") == "transformers"


@pytest.mark.parametrize("engine", ["transformers", "cosmos-rl", "tao"])
def test_a_copy_without_its_note_says_its_engine_itself(tmp_path, engine):
    path = tmp_path / "copy.toml"
    document.dump(document.template("train"), path, "train", engine=engine)
    assert document.load(path) == document.template("train")
    assert {origins.engine_of(path, platform) for platform in ("local", "slurm")} == {engine}
    path.write_text(path.read_text().replace(engine, "banana"))
    assert origins.engine_of(path, "slurm") == "tao", "the usual one"
