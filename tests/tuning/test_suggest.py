"""What is suggested next, and how rules repair it."""

import copy
import json
import math

import jsonschema
import pytest
from study_world import BASE, add, new_study

from cosmos_reason.spec import document
from cosmos_reason.tuning import study, suggest, summary


def suggestions(folder, count, **settings):
    made = new_study(folder, **settings)
    for number in range(count):
        add(made, objective=math.sin(number))
    return [trial["values"] for trial in made.trials()]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_gives_the_same_suggestions(tmp_path, sampler):
    first, again, other = (
        suggestions(tmp_path / str(n), 10, sampler=sampler, seed=seed)
        for n, seed in enumerate((3, 3, 4))
    )
    assert first == again
    assert first[:2] == other[:2] == [{}, {k: document.get(BASE, k) for k in first[1]}]
    assert first[2:] != other[2:]
    assert len({json.dumps(values) for values in first[1:]}) == 9


def test_an_illegal_suggestion_is_repaired_and_the_sampler_learns_what_ran(tmp_path):
    base = copy.deepcopy(BASE)
    document.set_value(base, "train.train_policy.mini_batch", 4)
    made = new_study(tmp_path, "batch_size=[4,6,8,10]", base=base)
    for number in range(3):
        add(made, objective=number)
    assert suggest.propose(made, made.trials())[1] is None, (
        "only 4 and 8 are legal; the default and two suggestions ran"
    )
    for trial in made.trials():
        jsonschema.validate(trial, document.bundle.schema("trial"))
    trials = made.trials()[1:]
    assert [trial["values"]["train.train_batch_per_replica"] for trial in trials] in (
        [4, 8],
        [4, 4, 8],
    )
    for trial in trials:
        path = made.trial_folder(trial["number"]) / "train.toml"
        assert path.read_text().startswith("#:schema ")
        table = document.load(path)
        value = trial["values"]["train.train_batch_per_replica"]
        assert document.get(table, "train.train_batch_per_replica") == value
        assert made.params(trial["values"]) == {
            "train.train_batch_per_replica": [4, 6, 8, 10].index(value)
        }
        assert bool(trial["repairs"]) == (
            trial["suggested"].get("train.train_batch_per_replica") in (6, 10)
        )


def test_no_repair_changes_what_was_given(tmp_path):
    """A mini batch of 3 would be repaired by another batch: the trial would tell of both."""
    base = copy.deepcopy(BASE)
    document.set_value(base, "train.train_batch_per_replica", 4)
    for folder, given, tried in (
        ("free", [], {1, 2, 3, 4}),
        ("fixed", ["train.train_batch_per_replica"], {1, 2, 4}),
    ):
        (tmp_path / folder).mkdir()
        words = "train.train_policy.mini_batch=[1,2,3,4]"
        made = new_study(tmp_path / folder, words, base=base, given=given)
        while suggest.propose(made, made.trials())[1] is not None:
            add(made, objective=0.5)
        trials = made.trials()
        ran = {one["values"].get("train.train_policy.mini_batch") for one in trials[1:]}
        assert ran == tried
    found = summary.summary(made, [one | {"objective": 1.0} for one in trials])
    assert found["best"]["repairs"] == []
    repaired = trials[1] | {"repairs": [{"id": "SPEC-X", "message": "x", "fix": "--set a=1"}]}
    told = summary.text(made, summary.summary(made, [repaired]))
    assert "repaired with --set a=1)" in told


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_grid_is_tried_to_its_last_point(tmp_path, sampler):
    made = new_study(tmp_path, "batch_size=[4,8,16,32]", "epoch=1..3", sampler=sampler)
    assert made.points() == 12
    for number in range(13):
        add(made, objective=float(number == 3))
    assert len({json.dumps(trial["values"]) for trial in made.trials()}) == 13
    left, table = suggest.propose(made, made.trials())
    told = suggest.used_up(made.trials(), left)
    assert table is None and (told.id, told.severity) == ("TUNE-SPACE-USED", "warning")


def test_a_repair_that_leaves_the_range_is_no_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(suggest, "POINTS", 20)
    made = new_study(tmp_path, "policy.parallelism.tp_size=[2,4]", "lr=1e-6..1e-4")
    trials = [add(made, 0.0), add(made, 0.0)]
    assert made.params(trials[1]["values"]).keys() == {"train.optm_lr"}, (
        "what can be expressed is learnt from"
    )
    left, table = suggest.propose(made, made.trials())
    told = suggest.used_up(trials, left)
    assert table is None and told.severity == "error" and "tp_size" in told.message


def test_what_no_fix_helps_is_never_run(tmp_path):
    made = new_study(tmp_path, "train.train_policy.dataset.name=[a,b]")
    table = copy.deepcopy(BASE)
    document.set_value(table, "policy.freeze_pattern", "x")
    document.set_value(table, "policy.trainable_pattern", {})
    _, _, refused = suggest.repaired(table, "transformers", None)
    assert refused.startswith("SPEC-")
    assert made.trials() == []


def test_half_of_the_trials_end_at_a_quarter_of_the_run(tmp_path):
    made, ended = new_study(tmp_path, "lr=1e-6..1e-4", pruner="halving"), []
    for number in range(10):
        trial = add(made)
        if trial["kind"] == study.SEARCH:
            trial["intermediate"] = {"25": -float(number)}  # ever worse
            ended.append(suggest.prunes(made, made.trials(), trial))
            made.write(trial | {"state": study.PRUNED})
    assert ended[0] is False and sum(ended) >= len(ended) - 2


def test_tpe_is_not_worse_than_random_on_real_trials():
    import trial_table

    assert len(trial_table.REACHED) == 60
    found = trial_table.compare(budget=12, seeds=8)
    assert found["tpe"][0] >= found["random"][0]


def test_a_key_whose_switch_is_on_by_default_is_varied(tmp_path):
    """build_spec writes no dataloader_shuffle."""
    base = copy.deepcopy(BASE)
    document.delete(base, "train.train_policy.dataloader_shuffle")
    made = new_study(tmp_path, "dataloader_seed=[1,2,3]", base=base)
    left, trial, found = suggest.outlook(made)
    assert (left, found) == (4, []) and trial["values"].keys() == {
        "train.train_policy.dataloader_seed"
    }


def test_a_key_whose_switch_is_off_names_it(tmp_path):
    base = copy.deepcopy(BASE)
    document.set_value(base, "train.optm_decay_type", "none")
    made = new_study(tmp_path, "optm_min_lr_factor=[0.1,0.2]", base=base)
    left, _, (told,) = suggest.outlook(made)
    assert (left, told.id) == (0, "TUNE-SPACE-USED")
    assert "optm_min_lr_factor has no effect while train.optm_decay_type is 'none'" in told.message
