"""A network made quicker answers what it answered before."""

import sys

import pytest
import torch
from transformers.models.qwen3_vl import modeling_qwen3_vl as transformers_own

from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer import quicker
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.encode import collate
from cosmos_reason.evaluation import questions

CPU = torch.device("cpu")
ROTARY = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_vision")


@pytest.fixture(params=["tiny_model", "tiny_reason1"])
def responder(request, evaluate_spec):
    evaluate_spec["model"]["model_name"] = str(request.getfixturevalue(request.param))
    responder = Responder(evaluate_spec)
    responder.load()
    return responder


@pytest.fixture
def batch(responder):
    asked = questions.read(responder.spec["dataset"], 3)
    return collate([responder.encode(question) for question in asked], 0, "left")


@torch.no_grad()
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2**-6)])
def test_logits_stay(responder, batch, dtype, tolerance, monkeypatch):
    network = responder.network.to(dtype)
    expected = network(**batch).logits
    module = sys.modules[type(network).__module__]
    for name in ROTARY:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    quicker.quicken(network)
    for name in ROTARY:
        assert getattr(module, name).__module__ == quicker.__name__
    got = network(**batch).logits
    assert torch.linalg.norm(got - expected) < tolerance * torch.linalg.norm(expected)
    assert not torch.equal(got, expected), "nothing was made quicker"


def test_quicker_parts_can_be_wrapped(responder, monkeypatch):
    """compressed_tensors wraps forward.__func__ of each part once it has unpacked the weights."""
    module = sys.modules[type(responder.network).__module__]
    for name in ROTARY:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    quicker.quicken(responder.network)
    quicker_parts = [part for part in responder.network.modules() if "forward" in vars(part)]
    assert quicker_parts and all(part.forward.__func__ for part in quicker_parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_turned_as_transformers_turns_them(dtype):
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 4, 5, 8).to(dtype)
    angles = torch.randn(3, 5, 4).repeat(1, 1, 2)  # both halves of a head turn by the same angles
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    expected = transformers_own.apply_rotary_pos_emb(query, key, cos, sin)
    got = quicker.turn_tokens(query, key, cos, sin)
    # transformers rounds the first product as well: of a value up to 4 by up to 2**-7.
    one_more_rounding = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 2**-6}
    torch.testing.assert_close(got, expected, **one_more_rounding)
    patches = [part[0].transpose(0, 1) for part in (query, key)]
    angles = angles[0]
    expected = transformers_own.apply_rotary_pos_emb_vision(*patches, angles.cos(), angles.sin())
    got = quicker.turn_patches(*patches, angles.cos(), angles.sin())
    torch.testing.assert_close(got, expected)


def test_weights_in_the_precision_of_the_arithmetic_are_not_cast_again(responder):
    hardware = models.Hardware(CPU, torch.bfloat16, "")
    with hardware.autocast_for(responder.network):
        assert torch.is_autocast_enabled("cpu"), "the weights are float32"
    with hardware.autocast_for(responder.network.to(torch.bfloat16)):
        assert not torch.is_autocast_enabled("cpu")
