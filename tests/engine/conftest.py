"""The short training that most tests here run, or change first."""

import pytest
from training import short_training


@pytest.fixture
def train_spec(tiny_model, dataset, tmp_path):
    return short_training(tiny_model, dataset, tmp_path / "out")
