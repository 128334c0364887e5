"""Which action a spec is for, and where each action keeps its model and its data."""

import pytest

from cosmos_reason.base import bundle
from cosmos_reason.spec import actions, document


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_a_template_is_a_spec_of_its_action(action):
    template = document.template(action)
    assert actions.of_spec(template) == action
    assert actions.other_than(action, template) is None
    for other in set(bundle.ACTIONS) - {action}:
        assert actions.other_than(other, template) == action


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        ({"train": {"train_policy": {"type": "grpo"}}, "policy": {}}, "grpo"),
        ({"train": {"train_policy": {"type": "sft"}, "epoch": 1}}, "train"),
        ({"dataset": {"annotation_path": "a.json"}, "evaluation": {"limit": 3}}, "evaluate"),
        ({"media": "clip.mp4"}, "inference"),
    ],
)
def test_a_part_of_a_spec_tells_its_action(spec, action):
    assert actions.of_spec(spec) == action


def test_tables_of_no_action_are_of_no_other():
    assert actions.other_than("train", {"nonsense": 1}) is None


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_places_are_keys_of_the_action(action):
    known = document.keys(action)
    for keys in (actions.data_keys(action), actions.validation_keys(action)):
        assert keys is None or {keys.annotations, keys.media} <= known.keys()
    assert actions.places(action)["model"] in known
    has_two = action in (*actions.TRAINING, "quantize")
    assert (actions.validation_keys(action) is not None) == has_two
    assert (actions.data_keys(action) is None) == (action == "inference")


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_the_model_is_found_in_a_spec_of_any_action(action):
    spec = document.template(action)
    document.set_value(spec, actions.places(action)["model"], "/models/mine")
    assert actions.model_of(spec) == "/models/mine"


def test_a_spec_without_model_names_none():
    assert actions.model_of({}) == actions.model_of({"model": "odd"}) == ""


# -- how an action asks the model ----------------------------------------------------------------

TRAINED = {
    "custom": {"vision": {"nframes": 8, "not_a_key": 1}},
    "train": {"train_policy": {"system_prompt": "Look closely."}},
}


def test_the_view_of_a_training_has_the_keys_of_the_action_that_asks():
    assert actions.trained_view(TRAINED, "evaluate") == {
        "vision.nframes": 8,
        "dataset.system_prompt": "Look closely.",
    }
    assert actions.trained_view(TRAINED, "inference") == {
        "vision.nframes": 8,
        "system_prompt": "Look closely.",
    }
    assert actions.trained_view(TRAINED, "quantize") == {
        "vision.nframes": 8,
        "dataset.system_prompt": "Look closely.",
    }


def test_a_training_without_vision_or_prompt_was_asked_with_neither():
    assert actions.trained_view({}, "evaluate") == {"dataset.system_prompt": ""}
    assert actions.trained_view({"custom": {"vision": "broken"}}, "quantize") == {
        "dataset.system_prompt": ""
    }
