"""A spec from elsewhere with one thing wrong gets one error, and its fix mends it."""

import pytest
import support_specs
from foreign_specs import FRAMEWORK, POLICY, TAO

TRAIN = (
    POLICY
    + """
[train]
output_dir = "out"
train_batch_per_replica = 8
[train.train_policy]
type = "sft"
mini_batch = 4
[train.ckpt]
save_freq = 50
[validation]
enable = false
freq = 20
[custom.vision]
nframes = 8
[custom.dataset]
path = "clips"
"""
)
EVALUATE = TAO["tao evaluate"]
MODEL = 'model_name_or_path = "nvidia/Cosmos-Reason2-2B"'

# (action, what is there, what is written in its place, where the error stands)
CASES = {
    "misspelt key": ("train", "train_batch_per_replica", "train_batch_per_replcia"),
    "misspelt table": ("train", "[policy.parallelism]", "[policy.paralellism]"),
    "misspelt name below custom": ("train", "nframes = 8", "nframe = 8"),
    "misspelt key of a checkpoint": ("train", "save_freq = 50", "save_frequ = 50"),
    "former name": ("train", "train_batch_per_replica = 8", "enable_validation = false"),
    "a former table": (
        "train",
        "train_batch_per_replica = 8",
        "enable_validation = false\nvalidation_step = 9\nvalidation_batch_per_replica = 2",
    ),
    "former name in another table": ("train", "freq = 20", "eval_steps = 20"),
    "key in the wrong table": ("train", "[train]", "[train]\nmini_batch = 2"),
    "no type": ("train", 'type = "sft"\n', ""),
    "type of no policy": ("train", '"sft"', '"sff"'),
    "text for a number": ("train", "save_freq = 50", 'save_freq = "50"'),
    "number below its range": ("train", "mini_batch = 4", "mini_batch = 0"),
    "text for yes or no": ("train", "enable = false", 'enable = "no"'),
    "rate that YAML reads as text": ("train", "[train]", '[train]\noptm_lr = "1e-5"'),
    "a batch that its part does not divide": ("train", "mini_batch = 4", "mini_batch = 3"),
    "table for a number": ("train", "save_freq = 50", "save_freq = {every = 50}"),
    "no model": ("train", MODEL, 'model_name_or_path = ""'),
    "answer type of no image": ("evaluate", '"freeform"', '"free-form"'),
    "task of no image": ("evaluate", "[vision]", '[task]\ntype = "mqc"\n[vision]'),
    "table in the plural": ("evaluate", "[dataset]", "[datasets]"),
    "a template that nobody filled in": (
        "evaluate",
        'answer_type = "freeform"\nnum_processes = 40\n[vision]',
        'answer_type = ""\nbatch_size = 0\n[vision]\nmax_pixels = 0',
    ),
    "a key of a train spec": ("evaluate", "max_tokens", "model_max_length"),
}


# Which value was meant is not known: the error lists the legal ones, and no fix is printed.
WITHOUT_FIX = {
    "type of no policy",
    "number below its range",
    "table for a number",
    "task of no image",
    "a key of a train spec",
}


def errors(found):
    return [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_thing_is_one_error_that_its_fix_mends(here, name):
    action, right, wrong = CASES[name]
    whole = EVALUATE if action == "evaluate" else TRAIN
    assert right in whole
    engine = "tao" if action == "evaluate" else "cosmos-rl"
    line = f"{action} --engine {engine} --spec foreign.toml"
    (here / "foreign.toml").write_text(whole)
    code, found, _ = support_specs.run(line)
    assert code == 0, errors(found)
    (here / "foreign.toml").write_text(whole.replace(right, wrong, 1))
    code, found, _ = support_specs.run(line)
    assert code == 1 and len(errors(found)) == 1, [(one.id, one.where) for one in errors(found)]
    fix = str(errors(found)[0].fix)
    assert bool(fix) == (name not in WITHOUT_FIX), errors(found)
    if not fix:
        return
    code, found, _ = support_specs.run(f"{line} {fix}")
    assert code == 0, (fix, [(one.id, one.where, one.message) for one in errors(found)])


@pytest.mark.parametrize("text", [FRAMEWORK, EVALUATE, "a: [1", "[1, 2]"])
def test_what_is_no_spec_of_this_kind_is_one_error(here, text):
    (here / "foreign.toml").write_text(text)
    code, found, _ = support_specs.run("train --engine cosmos-rl --spec foreign.toml")
    assert code in (1, 2) and len(errors(found)) == 1, errors(found)
