"""`build_spec --fix`: an old recipe becomes a spec that runs, and each change is told."""

import pytest
import support_specs
from foreign_specs import LOSING, NO_TYPE, POLICY

from cosmos_reason.base import findings as f

OF_GUIDES = (
    POLICY
    + """
[custom.dataset]
annotation_path = "/data/a.json"
media_path = "/data/clips"
system_prompt = "Be brief."
[logging]
logger = ["console", "tensorboard"]
[train]
output_dir = "out"
train_policy = {type = "sft"}
"""
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mended(here, text, more="", output="new.toml"):
    (here / "old.toml").write_text(text)
    line = f"train --engine cosmos-rl --spec old.toml {more}"
    code, found, made = support_specs.run(line, output)
    assert (here / "old.toml").read_text() == text
    return code, found, made


def fixed(found):
    return {one.where: one for one in found if one.id == "SPEC-FIXED"}


@pytest.mark.parametrize("text", [*LOSING.values(), NO_TYPE], ids=[*LOSING, "no type"])
def test_what_is_refused_passes_after_fix(here, text):
    code, found, _ = mended(here, text)
    assert code == 1
    wrong = {one.where for one in found if one.severity == f.ERROR}
    code, found, made = mended(here, text, "--fix")
    assert code == 0, found
    assert wrong <= fixed(found).keys()
    again, found, unchanged = mended(here, (here / "new.toml").read_text(), "--fix", "again.toml")
    assert (again, unchanged, fixed(found)) == (0, made, {})


def test_each_change_is_told_and_what_is_lost_is_a_warning(here):
    _, found, made = mended(here, LOSING["former names"], "--fix")
    assert made["validation"] == {"enable": True, "freq": 30}
    told = fixed(found)["train.enable_validation"]  # of one kind: told together
    assert told.severity == f.INFO
    assert told.message.endswith("wrote validation.enable = true, validation.freq = 30")
    _, found, made = mended(here, LOSING["words of another trainer"], "--fix", "other.toml")
    assert made["validation"] == {"freq": 50}
    assert fixed(found)["train.eval_policy"].severity == f.WARNING
    assert "eval_policy" not in made["train"]


def test_a_misspelt_key_keeps_its_value(here):
    _, _, made = mended(here, LOSING["misspelt"], "--fix")
    assert made["train"]["train_batch_per_replica"] == 4
    text = LOSING["misspelt"].replace("tp_size = 1", "tp_sise = 2")
    _, found, made = mended(here, text, "--fix", "other.toml")
    assert made["policy"]["parallelism"]["tp_size"] == 2
    assert "policy.parallelism.tp_size" not in {one.where for one in found}


def test_the_current_name_wins_over_the_former(here):
    text = LOSING["former names"] + "[validation]\nfreq = 10\n"
    _, _, made = mended(here, text, "--fix")
    assert made["validation"] == {"freq": 10, "enable": True}


def test_a_value_that_may_mean_several_is_left_to_people(here):
    code, found, _ = mended(here, LOSING["misspelt"].replace("= 4", '= "many"'), "--fix")
    assert code == 0  # what cannot have been meant is taken away, as no trainer reads it
    assert fixed(found)["train.train_batch_per_replcia"].severity == f.WARNING
    text = NO_TYPE.replace('output_dir = "out"', 'output_dir = "out"\noptm_lr = "fast"')
    code, found, _ = mended(here, text, "--fix")
    assert code == 1
    assert [one.where for one in found if one.severity == f.ERROR] == ["train.optm_lr"]


def test_data_that_guides_name_in_their_own_table_are_named_in_ours(here):
    code, found, made = mended(here, OF_GUIDES, "--fix")
    assert code == 0, found
    assert made["custom"]["train_dataset"] == {
        "annotation_path": "/data/a.json",
        "media_path": "/data/clips",
    }
    assert made["train"]["train_policy"]["system_prompt"] == "Be brief."
    assert made["logging"]["logger"] == ["console"]


def test_the_command_line_is_not_overruled(here):
    _, found, made = mended(here, LOSING["former names"], "--fix --set validation.freq=7")
    assert made is None or made["validation"]["freq"] == 7
    assert "train.validation_step" not in fixed(found) or made


def test_fix_needs_a_spec(here):
    code, found, _ = support_specs.run("train --fix")
    assert (code, found[0].id) == (2, "USAGE")
