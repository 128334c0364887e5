"""Fixtures shared by the engine's tests: a tiny converted checkpoint and a few real clips, made once per session."""

import shutil

import hypothesis
import pytest

from cosmos_reason import conversion, omni, spec, storage
from cosmos_reason.demo import clips, tiny_omni

# Times depend on the machine and are measured in tests/benchmarks, never asserted.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A folder with train/ (12 clips) and eval/ (4 clips), three questions each."""
    root = tmp_path_factory.mktemp("data")
    clips.write_split(root, "train", 12, seed=7)
    clips.write_split(root, "eval", 4, seed=7)
    return root


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, dataset):
    """A Qwen3-VL folder of a million random parameters whose tokenizer knows the clips' questions."""
    root = tmp_path_factory.mktemp("models")
    records = storage.read_json(dataset / "train" / "annotations.json")
    tiny_omni.build(root / "omni", 7, [turn["value"] for record in records for turn in record["conversations"]])
    conversion.convert(omni.open_source(root / "omni"), root / "model", 10**9, force=False, jobs=1)
    return root / "model"


@pytest.fixture
def evaluate_spec(tiny_model, dataset, tmp_path):
    """A complete spec of twelve questions about four clips (a copy, tmp_path/eval), answered into tmp_path/results."""
    table = spec.template("evaluate")
    folder = shutil.copytree(dataset / "eval", tmp_path / "eval")
    changes = {
        "dataset.annotation_path": str(folder / "annotations.json"),
        "dataset.media_dir": str(folder),
        "model.model_name": str(tiny_model),
        "vision": {"nframes": 4, "resized_height": 64, "resized_width": 64},
        "generation.max_tokens": 4,
        "evaluation.batch_size": 5,
        "results_dir": str(tmp_path / "results"),
    }
    for key, value in changes.items():
        spec.set_value(table, key, value)
    return spec.with_defaults("evaluate", table)
