"""The embedded engine's losses beside those of a real run of cosmos-rl."""

import importlib.util

import pytest
from support import ROOT

pytestmark = pytest.mark.integration

# cosmos-rl 0.4.7 on one H100, torch 2.11, transformers 5.17, bfloat16: the steps of
# benchmarks/cosmos_rl_parity.py.
SEEN = [
    *[6.32935, 6.27757, 5.03851, 3.73289, 2.86339, 2.46390, 1.84348, 1.61971, 1.36232, 1.18215],
    *[1.21900, 1.10070, 0.99065, 1.01297, 0.87080, 0.89836, 1.01674, 0.84608, 0.86295, 0.75864],
]


def test_losses_are_those_of_cosmos_rl(tmp_path):
    path = ROOT / "benchmarks" / "cosmos_rl_parity.py"
    named = importlib.util.spec_from_file_location(path.stem, path)
    parity = importlib.util.module_from_spec(named)
    named.loader.exec_module(parity)
    parity.build_world(tmp_path)
    losses = parity.losses_of_the_embedded_engine(tmp_path)
    assert list(losses) == list(range(1, 21))
    assert list(losses.values()) == pytest.approx(SEEN, rel=0.01)
