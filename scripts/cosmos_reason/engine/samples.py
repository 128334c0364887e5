"""Encoded training samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch

from cosmos_reason.base.findings import Failure
from cosmos_reason.data.samples import Sample
from cosmos_reason.engine.encode import IGNORED, PIXELS_KEY, Encoder

Inputs = dict[str, torch.Tensor]
MEDIA_KEYS = set(PIXELS_KEY.values())


class Samples(torch.utils.data.Dataset):
    """Encoded training samples; decoding happens in whoever asks (the main process or a loader
    worker)."""

    def __init__(self, samples: list[Sample], encoder: Encoder, system_prompt: str):
        self.samples = samples
        self.encoder = encoder
        self.system_prompt = system_prompt

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def digest(self) -> str:
        """Return what differs for other records, and for the same in another order."""
        told = blake2b(digest_size=16)
        for sample in self.samples:
            told.update(repr((sample.id, sample.turns, sample.media)).encode())
        return told.hexdigest()

    def __getitem__(self, index: int) -> Inputs | Failure:
        """Return the sample, or the Failure of one that cannot be read, not raised: torch would
        make a RuntimeError of it on its way out of a worker."""
        try:
            return self.encoder.encode_training(self.samples[index], self.system_prompt)
        except Failure as failure:
            return failure


def for_a_pipe(inputs: Inputs) -> dict:
    """Return what a process that reads hands over: pixels go through shared memory, the rest as
    arrays through the pipe, where a handle for each tensor would cost more."""
    arrays = dict(inputs)
    for key in inputs.keys() - MEDIA_KEYS:
        if isinstance(inputs[key], torch.Tensor):
            arrays[key] = inputs[key].numpy()
    return arrays


def from_a_pipe(arrays: dict) -> Inputs:
    inputs = dict(arrays)
    for key, part in arrays.items():
        if isinstance(part, np.ndarray):
            inputs[key] = torch.from_numpy(part)
    return inputs


def have_media(samples: Sequence[Inputs]) -> bool:
    """Return whether one of the samples has an image or a clip."""
    return any(MEDIA_KEYS & sample.keys() for sample in samples)


def loss_tokens(samples: Sequence[Inputs]) -> int:
    """Return how many positions of the samples carry loss."""
    return sum(int((sample["labels"] != IGNORED).sum()) for sample in samples)
