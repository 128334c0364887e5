"""What a study may vary, and what it suggests."""

import copy
import math
import re
import shlex

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_world import BASE, dimensions, new_study
from support import ROOT

from cosmos_reason.spec import document
from cosmos_reason.tuning import space, study, suggest

LORA = BASE | {
    "policy": BASE["policy"] | {"lora": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}}
}


SEARCHED = [key for key, leaf in document.keys("train").items() if leaf.get("automl_enabled")]


@pytest.mark.parametrize("key", SEARCHED)
def test_every_point_of_a_schema_range_is_legal_and_found_again(key):
    (dimension,) = dimensions(words=key, base=LORA)
    leaf, drawn = document.keys("train")[key], dimension.distribution()
    low, high = drawn.low, drawn.high
    for n in range(101):
        at = low + (high - low) * n / 100
        at = low + (int(at) - low) // drawn.step * drawn.step if isinstance(low, int) else at
        value = dimension.value(at)
        jsonschema.validate(value, leaf)
        assert leaf.get("math_cond") != "^ 2" or math.log2(value).is_integer()
        again = dimension.coordinate(value)
        assert again is not None and dimension.value(again) == value
        assert 0 <= dimension.share(value) <= 1


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=2, unique=True))
def test_options_of_numbers_are_ordered(options):
    (dimension,) = dimensions(f"batch_size={options}")
    assert [dimension.value(n) for n in range(len(options))] == sorted(options)


def test_weights_decide_how_often_an_option_is_drawn():
    (dimension,) = dimensions(words="lr schedule")
    leaf = document.keys("train")[dimension.key]
    drawn = [dimension.value((n + 0.5) / 1000) for n in range(1000)]
    assert [drawn.count(option) / 1000 for option in leaf["enum"]] == pytest.approx(
        leaf["option_weights"], abs=0.002
    )


def test_learning_rates_are_drawn_on_a_log_scale_and_ranks_as_powers_of_two():
    made = {d.key: d for d in dimensions(base=LORA)}
    assert set(made) == set(document.bundle.schema("train")["automl_default_parameters"])
    assert made["train.optm_lr"].distribution().log
    assert made["policy.lora.r"].options == (4, 8, 16, 32, 64)


def test_learning_rates_fit_what_is_trained():
    leaf, tuning = (
        document.keys("train")["train.optm_lr"],
        document.bundle.skill_info()["tuning"]["lora"]["train"],
    )
    for base, packaged, at_most in (
        (BASE, document.get(BASE, "train.optm_lr"), 5e-5),
        (LORA, tuning["train.optm_lr"], 1e-3),
    ):
        for words in ("", "learning rate"):
            rate = next(d for d in dimensions(words=words, base=base) if d.key == "train.optm_lr")
            assert rate.low == pytest.approx(packaged / 10) and rate.high == at_most
            for end in (rate.low, rate.high):
                jsonschema.validate(end, leaf)


def test_what_the_user_gave_stays_unless_it_is_named():
    batch = "train.train_batch_per_replica"
    made, (told,) = space.build(BASE, "", [], None, {batch, "train.epoch"})
    assert [d.key for d in made] == ["train.optm_lr", "train.optm_weight_decay"]
    assert told.id == "TUNE-GIVEN" and batch in told.message and "epoch" not in told.message
    for words, ranges in (
        ("batch size", []),
        ("", ["batch_size=1..8"]),
        (shlex.split(str(told.fix))[1], []),
    ):
        made, found = space.build(BASE, words, ranges, None, {batch})
        assert batch in [d.key for d in made] and not found


def test_words_and_ranges_name_the_same_keys():
    keys = [d.key for d in dimensions(words="learning rate, batch size and weight decay")]
    assert set(keys) == {
        "train.optm_lr",
        "train.train_batch_per_replica",
        "train.optm_weight_decay",
    }
    said = "number of epochs, warmup ratio, lora rank and number of frames"
    keys = {d.key for d in dimensions(words=said, base=LORA)}
    assert keys == {
        "train.epoch",
        "train.optm_warmup_steps",
        "policy.lora.r",
        "custom.vision.nframes",
    }
    both = dimensions("lr=1e-5..1e-4", words="learning rate, epochs")
    assert {d.key: d.words() for d in both} == {
        "train.optm_lr": "1e-05..0.0001:log",
        "train.epoch": "1..5",
    }


# Written anew by `PYTHONPATH=scripts:tests/fixtures python tests/tuning/test_space.py`.
SAID = ROOT / "tests/fixtures/said_of_ranges.txt"
RANGES = re.findall(r"^\$ --range (.+)$", SAID.read_text(), re.M)


def told(written):
    made, found = space.build(BASE, "", [written], None)
    assert not made
    lines = [f"$ --range {written}"]
    for one in found:
        lines.append(f"{one.severity} {one.id} {one.where}: {one.message}")
        lines += [f"  fix: {one.fix}"] if one.fix else []
    return "\n".join(lines)


@pytest.mark.parametrize("written", RANGES)
def test_what_is_said_of_a_range_that_makes_no_sense(written):
    assert told(written) in SAID.read_text().rstrip("\n").split("\n\n")


@pytest.mark.parametrize("written, words", {
    "epoch=1.0..3.0": "1..3",
    "epoch=1e1..1e2": "10..100",
    "epoch=1..100:log": "1..100:log",
    "custom.vision.total_pixels=1e5..1e6": "100000..1000000",
    "warmup=0..100": "0..100",
    "warmup=0..1": "0..1",
}.items())  # fmt: skip
def test_whole_numbers_stay_whole_and_keep_their_scale(written, words):
    (dimension,) = dimensions(written)
    drawn = dimension.distribution()
    assert dimension.words() == words and drawn.log == words.endswith(":log")
    assert type(dimension.value(drawn.high)) is (float if words == "0..1" else int)


def test_frames_and_frames_per_second_exclude_each_other(tmp_path):
    _, found = space.build(BASE, "", ["nframes=4..8", "fps=1..2"], None)
    assert [finding.id for finding in found] == ["TUNE-FRAMES"]
    made = new_study(tmp_path, "fps=1..2")
    table, _, refused = suggest.assemble(made, {"custom.vision.fps": 1.5})
    assert not refused and table["custom"]["vision"] == {"fps": 1.5}


def test_batches_stop_at_the_samples_of_one_gpu():
    made, found = space.build(BASE, "batch size", [], 10)
    assert made[0].options == (1, 2, 4, 8) and [row.id for row in found] == ["TUNE-BATCH-CAP"]
    made, found = space.build(BASE, "batch size, learning rate", [], 1)
    assert [d.key for d in made] == ["train.optm_lr"]


def test_a_key_is_left_alone_while_what_it_depends_on_is_off(tmp_path):
    made = new_study(
        tmp_path, "lr_schedule=[none,cosine]", "train.optm_decay_ratio=0.1..0.5", "lr=1e-6..1e-4"
    )
    for kind, there in (("none", False), ("cosine", True)):
        suggested = {
            "train.optm_decay_type": kind,
            "train.optm_decay_ratio": 0.2,
            "train.optm_lr": 1e-5,
        }
        table, _, refused = suggest.assemble(made, suggested)
        assert not refused and ("optm_decay_ratio" in table["train"]) == there


def test_trials_publish_nothing_and_keep_their_outputs_together(tmp_path):
    base = copy.deepcopy(BASE)
    for key, value in {
        "upload_s3": "all",
        "s3_bucket": "b",
        "upload_hf": True,
        "hf_repo_name": "n",
    }.items():
        document.set_value(base, f"train.ckpt.{key}", value)
    table = study.trial_spec(base | {"train": base["train"] | {"output_dir": "/mine"}})
    assert table["train"]["output_dir"] == ""
    assert not {"upload_s3", "upload_hf"} & table["train"]["ckpt"].keys()


@pytest.mark.parametrize(
    ("origin", "searched", "alpha"),
    [
        ("--tuning lora", set(), 64),  # as build_spec wrote it: twice the rank
        ("--set lora_alpha", set(), 16),  # the user's
        ("", set(), 16),  # of a spec that build_spec did not write
        ("--tuning lora", {"policy.lora.lora_alpha"}, 16),
    ],
)
def test_alpha_follows_a_searched_rank_unless_it_was_given(tmp_path, origin, searched, alpha):
    per_rank = space.alpha_per_rank(LORA, {"policy.lora.r", *searched}, origin)
    made = new_study(
        tmp_path, "lora_rank=[8,32]", base=copy.deepcopy(LORA), alpha_per_rank=per_rank
    )
    table, _, refused = suggest.assemble(made, {"policy.lora.r": 32})
    assert not refused and table["policy"]["lora"]["lora_alpha"] == alpha


if __name__ == "__main__":
    SAID.write_text("\n\n".join(map(told, RANGES)) + "\n")
