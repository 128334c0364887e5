"""A tiny checkpoint as published and as converted, and an output folder of three steps."""

import pytest
from run_folders import RUN, add_step

from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """An Omni checkpoint; no test changes it."""
    folder = tmp_path_factory.mktemp("published") / "omni"
    tiny_omni.build(
        folder, seed=1, text="Which way does the red circle move, left or right? yes no"
    )
    return folder


@pytest.fixture(scope="session")
def model(published, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "model"
    conversion.convert(omni.open_source(published), folder, 10**9, force=False, jobs=1)
    return folder


@pytest.fixture
def output(model, tmp_path):
    """Steps 9, 10 and 20 of one run, each a model and a resume folder."""
    for step in ("step_9", "step_10", "step_20"):
        add_step(tmp_path / "out" / RUN, step, model)
    return tmp_path / "out"
