"""A run of cosmos-rl whose gradients are not where its spec has them ends before it updates."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.cosmos_rl.patches import judge_before_steps
from cosmos_reason.engine.first_update import FirstUpdate


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


class Run:
    """A model with an optimizer that cosmos-rl would step; `updates` of it."""

    def __init__(self, model: Tiny, may_be_flat: bool = False):
        self.model = model
        self.updates = 0
        self.optimizers = SimpleNamespace(step=self.update)
        self.first = FirstUpdate(model, may_be_flat)
        judge_before_steps(self.optimizers, model, self.first)

    def update(self) -> None:
        self.updates += 1

    def backward(self, pixels=PIXELS, weight: float = 1) -> None:
        self.model.zero_grad()
        (self.model(WORDS, pixels) * weight).pow(2).sum().backward()

    def refused(self) -> dict[str, str]:
        """Return id -> message of what ends the run before its weights change."""
        updates = self.updates
        with pytest.raises(Failure) as caught:
            self.optimizers.step()
        assert caught.value.exit_code == 1 and self.updates == updates
        return {one.id: one.message for one in caught.value.findings}


def test_numbers_and_norms_of_each_part_are_told_once(capsys):
    run = Run(Tiny())
    run.model.visual.blocks.requires_grad_(False)
    run.backward()
    text = run.model.language_model
    norm = text.weight.grad.norm().hypot(text.bias.grad.norm())
    run.optimizers.step()
    run.optimizers.step()
    (told,) = capsys.readouterr().err.splitlines()
    assert run.first.is_done and run.updates == 2
    assert f"text 20 trained, 0 frozen, gradient {norm:.3g}" in told
    assert "tower 0 trained, 20 frozen; " in told and "merger 20 trained" in told


def test_a_trained_part_without_gradient_ends_the_run():
    run = Run(Tiny())
    run.backward()
    run.model.visual.merger.zero_grad()
    (message,) = run.refused().values()
    assert "20 trained numbers of the merger" in message


def test_a_frozen_part_with_a_gradient_ends_the_run():
    run = Run(Tiny())
    run.backward()
    run.model.visual.blocks.requires_grad_(False)
    assert "frozen numbers of the tower" in run.refused()["ENGINE-FROZEN-GRADIENT"]


def test_the_tower_is_judged_when_records_have_clips(capsys):
    run = Run(Tiny())
    with torch.no_grad():
        run.model(WORDS, PIXELS)  # a validation before the first step
    run.backward(pixels=None)
    run.optimizers.step()
    assert not run.first.is_done and "tower" not in capsys.readouterr().err
    run.backward()
    run.optimizers.step()
    assert run.first.is_done and "tower 20 trained" in capsys.readouterr().err


def test_adapters_are_judged_as_a_whole(capsys):
    run = Run(Tiny(lora=True))
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    run.backward()
    assert run.model.lora_A.weight.grad.norm() == 0 < run.model.lora_B.weight.grad.norm()
    run.optimizers.step()
    assert run.first.is_done and "adapters 16 trained" in capsys.readouterr().err


def test_reinforcement_learning_may_begin_with_steps_that_teach_nothing():
    run = Run(Tiny())
    run.backward(weight=0)
    assert run.refused().keys() == {"ENGINE-NO-GRADIENT"}
    run = Run(Tiny(), may_be_flat=True)
    run.backward(weight=0)  # with a clip
    run.optimizers.step()
    assert not run.first.is_done
    run.backward(pixels=None)
    run.optimizers.step()
    assert set(run.first.parts) == {"tower", "merger"}
    run.backward()
    run.optimizers.step()
    assert run.first.is_done and run.updates == 3
