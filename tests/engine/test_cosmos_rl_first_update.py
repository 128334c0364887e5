"""A run whose gradients are not where its spec has them ends before the first optimizer step."""

import pytest
import torch
from torch import nn

from cosmos_reason.engine.cosmos_rl.first_update import NONE, STRAY, FirstUpdate


class Tiny(nn.Module):
    """A model with the names of the real ones: a tower, a merger behind it, and text."""

    def __init__(self, lora: bool = False):
        super().__init__()
        self.visual = nn.Module()
        self.visual.forward = self.see
        self.visual.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.visual.merger = nn.Linear(4, 4)
        self.language_model = nn.Linear(4, 4)
        if lora:
            self.lora_A, self.lora_B = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
            nn.init.zeros_(self.lora_B.weight)
        self.has_lora = lora

    def see(self, pixels):
        return self.visual.merger(self.visual.blocks[0](pixels))

    def forward(self, words, pixels=None):
        if pixels is not None:
            words = words + self.visual(pixels)
        out = self.language_model(words)
        return out + self.lora_B(self.lora_A(words)) if self.has_lora else out


WORDS, PIXELS = torch.ones(2, 4), torch.full((2, 4), 0.5)


def backward(model: Tiny, pixels=PIXELS) -> None:
    model.zero_grad()
    model(WORDS, pixels).pow(2).sum().backward()


def gate(model: Tiny, **options) -> tuple[FirstUpdate, list[str]]:
    told: list[str] = []
    return FirstUpdate([model], tell=told.append, **options), told


def test_numbers_and_norms_of_each_part_are_told_once():
    model = Tiny()
    model.visual.blocks.requires_grad_(False)
    first, told = gate(model)
    backward(model)
    norm = model.language_model.weight.grad.norm().hypot(model.language_model.bias.grad.norm())
    assert first.check() == [] and first.is_done
    text, tower, merger = told
    assert "text: 20 parameters trained" in text and f"{norm.item():.4g}" in text
    assert "tower: 0 parameters trained" in tower and "20 frozen" in tower
    assert "merger: 20 parameters trained" in merger


def test_a_trained_part_without_gradient_ends_the_run():
    model = Tiny()
    first, _ = gate(model)
    backward(model)
    for parameter in model.visual.merger.parameters():
        parameter.grad = None
    (found,) = first.check()
    assert (found.id, found.where, found.severity) == (NONE, "merger", "error")
    assert "20 parameters" in found.message


def test_a_frozen_part_with_a_gradient_ends_the_run():
    model = Tiny()
    backward(model)
    model.visual.blocks.requires_grad_(False)
    first, _ = gate(model)
    model(WORDS, PIXELS)
    (found,) = first.check()
    assert (found.id, found.where) == (STRAY, "tower") and "frozen" in found.message


def test_the_tower_is_judged_when_records_have_clips():
    model = Tiny()
    first, told = gate(model)
    backward(model, pixels=None)
    assert first.check() == [] and not first.is_done and len(told) == 1
    backward(model)
    assert first.check() == [] and first.is_done and len(told) == 3


def test_adapters_are_judged_as_a_whole():
    model = Tiny(lora=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    first, told = gate(model)
    backward(model)
    assert model.lora_A.weight.grad.norm() == 0 < model.lora_B.weight.grad.norm()
    assert first.check() == [] and first.is_done
    assert "adapters: 16 parameters trained" in told[-1]


@pytest.mark.parametrize("may_be_flat", [False, True])
def test_only_reinforcement_learning_may_begin_with_a_step_that_teaches_nothing(may_be_flat):
    model = Tiny()
    first, _ = gate(model, may_be_flat=may_be_flat)
    (model(WORDS, PIXELS) * 0).sum().backward()
    found = first.check()
    assert bool(found) != may_be_flat
    if may_be_flat:
        assert not first.is_done
        backward(model)
        assert first.check() == [] and first.is_done
