"""Features of a frozen vision tower that are computed once in a run."""

import json
from contextlib import contextmanager

import pytest
import training
from safetensors.torch import load_file

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.train import features
from cosmos_reason.engine.train import run as train
from cosmos_reason.spec import document

# One clip or several in a call of the tower: float32 sums in another order.
CLOSE = 1e-4


@pytest.fixture(scope="module", params=["tiny_model", "tiny_reason1"])
def model(request):
    return request.getfixturevalue(request.param)


def make_spec(model, dataset):
    """A complete spec of two epochs over 36 questions about 12 clips, with LoRA."""
    table = training.short_training(model, dataset, "")
    table["policy"]["lora"] = dict(training.LORA)
    document.set_value(table, "train.max_num_steps", 4)
    document.set_value(table, "train.train_batch_per_replica", 18)
    document.set_value(table, "train.epoch", 2)
    return document.with_defaults("train", table)


@pytest.fixture
def spec(model, dataset):
    return make_spec(model, dataset)


@pytest.fixture(scope="module")
def plain(model, dataset, tmp_path_factory):
    """The losses and the weights of that training without kept features."""
    with counted() as counts:
        trained = run(make_spec(model, dataset), tmp_path_factory.mktemp("plain"), 0)
    assert not counts
    return trained


def run(spec, output, gib):
    spec["custom"]["transformers_engine"]["feature_cache_gib"] = gib
    spec["train"]["output_dir"] = str(output)
    train.run(spec, None)
    text = (output / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    adapter = output / "run" / "safetensors" / "step_4" / "adapter_model.safetensors"
    return losses, load_file(adapter)


@contextmanager
def counted():
    """How many media the tower is asked for, each time, in the runs of the block."""
    counts = []
    honest = features.Features._computed

    def count(self, pixels, grid_thw, unknown, options):
        counts.append(len(unknown))
        return honest(self, pixels, grid_thw, unknown, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features.Features, "_computed", count)
        yield counts


@pytest.fixture
def computed():
    with counted() as counts:
        yield counts


def test_a_run_computes_each_clip_once_and_learns_the_same(computed, plain, spec, tmp_path, capsys):
    expected, weights = plain
    losses, cached = run(spec, tmp_path / "cached", 1.0)
    assert losses == pytest.approx(expected, rel=CLOSE)
    assert weights.keys() == cached.keys()
    for name, weight in weights.items():
        assert (cached[name] - weight).norm() <= 100 * CLOSE * weight.norm() + CLOSE, name
    assert sum(computed) == 16  # 12 clips of training, 4 of validation
    assert "kept up to 1 GiB of host memory" in capsys.readouterr().err


def test_what_does_not_fit_is_computed_anew(plain, spec, tmp_path, computed, capsys):
    expected, _ = plain
    losses, _ = run(spec, tmp_path / "cached", 2e-5)  # 21 kB
    assert losses == pytest.approx(expected, rel=CLOSE)
    assert sum(computed) > 16
    assert "fill the room" in capsys.readouterr().err


def test_a_tower_that_is_trained_is_refused(spec, tmp_path):
    spec["policy"]["lora"]["target_modules"] = "all-linear"
    with pytest.raises(Failure, match="ENGINE-FEATURES-TRAINED") as caught:
        run(spec, tmp_path / "trained", 1.0)
    fix = caught.value.findings[0].fix
    assert fix.changes == {features.OPTION: 0}


def test_content_is_that_of_pixels_and_size():
    import numpy as np

    frames = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    other = frames.copy()
    other[1, 3, 5, 2] += 1
    turned = frames.reshape(2, 6, 4, 3)
    numbers = {features.content(one) for one in (frames, frames.copy(), other, turned)}
    assert len(numbers) == 3
    assert all(0 <= number < 2**63 for number in numbers)
