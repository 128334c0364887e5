"""A tiny model, and an output folder of three steps of it."""

import pytest
from run_folders import RUN, add_step

from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    tiny_omni.build(base / "omni", seed=1, text="left right yes no")
    conversion.convert(omni.open_source(base / "omni"), base / "model", 10**9, force=False, jobs=1)
    return base / "model"


@pytest.fixture
def output(model, tmp_path):
    """Steps 9, 10 and 20 of one run, each a model and a resume folder."""
    for step in ("step_9", "step_10", "step_20"):
        add_step(tmp_path / "out" / RUN, step, model)
    return tmp_path / "out"
