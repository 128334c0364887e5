"""`build_spec --fix`: an old recipe becomes a spec that runs, and each change is told."""

import pytest
import support_specs
from foreign_specs import GRPO, LOSING, NO_TYPE, POLICY

from cosmos_reason.base import findings as f

OF_GUIDES = (
    POLICY
    + """
[custom.dataset]
annotation_path = "/data/a.json"
media_path = "/data/clips"
system_prompt = "Be brief."
[logging]
logger = ["console", "wandb"]
[train]
output_dir = "out"
train_policy = {type = "sft"}
"""
)


def mended(here, text, more="", output="new.toml"):
    (here / "old.toml").write_text(text)
    line = f"train --engine cosmos-rl --spec old.toml {more}"
    code, found, made = support_specs.run(line, output)
    assert (here / "old.toml").read_text() == text
    return code, found, made


def fixed(found):
    return {one.where: one for one in found if one.id == "SPEC-FIXED"}


MENDED = LOSING | {"no type": NO_TYPE}
UNKNOWN = MENDED.pop("words of another trainer")


@pytest.mark.parametrize("text", MENDED.values(), ids=MENDED)
def test_what_is_refused_passes_after_fix(here, text):
    code, found, _ = mended(here, text)
    assert code == 1
    wrong = {one.where for one in found if one.severity == f.ERROR}
    code, found, made = mended(here, text, "--fix")
    assert code == 0, found
    assert wrong <= fixed(found).keys()
    again, found, unchanged = mended(here, (here / "new.toml").read_text(), "--fix", "again.toml")
    assert (again, unchanged, fixed(found)) == (0, made, {})


def test_what_means_nothing_here_is_never_taken_away(here):
    code, found, made = mended(here, UNKNOWN, "--fix")
    assert (code, made) == (1, None)
    left = {one.where for one in found if one.severity == f.ERROR}
    names = {"save_strategy", "load_best_model_at_end", "eval_policy.dataset.name"}
    assert left == {f"train.{name}" for name in names}


def test_words_in_a_table_of_their_own_keep_their_meaning(here):
    text = GRPO + "[grpo]\nnum_samples_per_prompt = 4\nkl_penalty = 0.01\n"
    (here / "old.toml").write_text(text.replace("n_generation = 8\n", ""))
    line = "grpo --engine cosmos-rl --spec old.toml --fix"
    code, found, made = support_specs.run(line)
    assert code == 0 and "grpo" not in made
    assert made["rollout"]["n_generation"] == 4
    assert made["train"]["train_policy"]["kl_beta"] == 0.01
    (here / "old.toml").write_text(text)  # which says 8 too: nothing is written over
    _, found, made = support_specs.run(line, "other.toml")
    assert made["rollout"]["n_generation"] == 8
    assert fixed(found)["grpo.num_samples_per_prompt"].severity == f.WARNING


@pytest.mark.parametrize(("engine", "code"), [("tao", 0), ("cosmos-rl", 1), ("transformers", 1)])
def test_a_part_of_each_clip_is_passed_on_or_refused(here, engine, code):
    text = OF_GUIDES.replace(
        "[custom.dataset]", "[custom.vision]\nfps = 2\nvideo_start = 1.0\n[custom.train_dataset]"
    )
    text = text.replace('system_prompt = "Be brief."\n', "").replace(', "wandb"', "")
    (here / "old.toml").write_text(text.replace("dp_shard_size = 2", "dp_shard_size = 1"))
    got, found, made = support_specs.run(f"train --engine {engine} --spec old.toml --fix")
    refused = [one.where for one in found if one.severity == f.ERROR]
    assert (got, refused) == (code, ["custom.vision.video_start"] * code), found
    assert code or made["custom"]["vision"]["video_start"] == 1.0


def test_each_change_is_told(here):
    _, found, made = mended(here, LOSING["former names"], "--fix")
    assert made["validation"] == {"enable": True, "freq": 30}
    told = fixed(found)["train.enable_validation"]  # of one kind: told together
    assert told.severity == f.INFO
    assert told.message.endswith("wrote validation.enable = true, validation.freq = 30")
    unset = "--unset train.eval_policy --unset train.save_strategy"
    unset += " --unset train.load_best_model_at_end"
    code, _, made = mended(here, UNKNOWN, f"--fix {unset}", "other.toml")
    assert code == 0 and made["validation"] == {"freq": 50}


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
    left = [one.where for one in found if one.severity == f.ERROR]
    assert (code, left) == (1, ["train.train_batch_per_replcia"])
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
    assert made["logging"]["logger"] == ["console", "wandb"]


def test_the_command_line_is_not_overruled(here):
    _, found, made = mended(here, LOSING["former names"], "--fix --set validation.freq=7")
    assert made is None or made["validation"]["freq"] == 7
    assert "train.validation_step" not in fixed(found) or made


def test_fix_needs_a_spec(here):
    code, found, _ = support_specs.run("train --fix")
    assert (code, found[0].id) == (2, "USAGE")
