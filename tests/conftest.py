"""Fixtures shared by the engine's tests: a tiny converted checkpoint and a few real clips, made once per session."""

import hypothesis
import pytest

from cosmos_reason import conversion, omni, storage
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
