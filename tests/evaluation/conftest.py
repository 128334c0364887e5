"""A checkpoint in the layout of a train job."""

import shutil

import pytest

from cosmos_reason.base import files
from cosmos_reason.spec import document as spec


@pytest.fixture
def checkpoint(evaluate_spec, tiny_model, tmp_path):
    """A checkpoint in the layout of a train job, with the training spec as the engine saves it."""
    run = tmp_path / "out" / "20260101120000"
    folder = shutil.copytree(tiny_model, run / "safetensors" / "step_10")
    trained = spec.template("train")
    trained["custom"]["vision"] = dict(evaluate_spec["vision"])
    policy = run / "checkpoints" / "step_10" / "policy"
    policy.mkdir(parents=True)
    files.write_json(policy / "cosmos_config", trained)
    evaluate_spec["model"]["model_name"] = str(folder)
    return folder
