"""What a frozen vision tower makes of each image and clip, kept in host memory, so that a run
computes it once: in its first epoch, and once for all questions about one clip. Decoded frames have
a cache of their own (data/frames.py): a token of an 8B has 32 KiB of features, and 6 of frames."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import bad_input, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.frames import Vision
from cosmos_reason.estimate.gpu_memory import GIB

OPTION = "custom.transformers_engine.feature_cache_gib"
# What an encoded sample says of its media, in the order in which models read them: int64 [media],
# the number of the content.
CONTENT_KEY = {"image": "image_content", "video": "video_content"}


def content(frames: np.ndarray) -> int:
    """Return a number that tells frames [n, height, width, 3] of one content and size: 63 bits of
    BLAKE2b."""
    digest = blake2b(repr(frames.shape).encode(), digest_size=8)
    digest.update(np.ascontiguousarray(frames))
    return int.from_bytes(digest.digest()) >> 1


def contents(visions: Sequence[Vision]) -> dict[str, torch.Tensor]:
    """Return what `Features` knows the media of a sample by."""
    found = {}
    for kind, key in CONTENT_KEY.items():
        numbers = [content(vision.frames) for vision in visions if vision.kind == kind]
        if numbers:
            found[key] = torch.tensor(numbers)
    return found


class Features:
    """Stands before the vision tower of a network. `gib` of host memory are filled, in the order in
    which media come; the others are computed each time.

    Raises Failure for a tower that is trained, whose features change with every step, and for a
    sharded one, which all processes must compute together.
    """

    def __init__(self, network, gib: float):
        self.tower = network.model.visual
        family = FAMILIES[network.config.model_type]
        self.name = family.features  # of the tower's output
        self.merges = family.features == "pooler_output"
        without = Fix(changes={OPTION: 0})
        for name, parameter in self.tower.named_parameters():
            if parameter.requires_grad:
                message = f"got {gib} with a vision tower that is trained ({name})"
                raise bad_input("ENGINE-FEATURES-TRAINED", OPTION, message, without)
            if isinstance(parameter, DTensor):
                message = f"got {gib} with a vision tower whose weights are sharded"
                raise bad_input("ENGINE-FEATURES-SHARDED", OPTION, message, without)
        self.room = int(gib * GIB)
        self.kept: dict[int, list[torch.Tensor]] = {}
        self.bytes = 0
        self.is_full = False
        self.expected: list[list[int]] = []
        # In the tower's own place: the model calls it as it always does.
        self.compute = self.tower.forward
        self.tower.forward = self.forward

    def expect(self, batch: dict) -> None:
        """Take from a packed batch what its media are: the tower is called for the images, then for
        the clips."""
        numbers_of_kinds = [batch.pop(key, None) for key in CONTENT_KEY.values()]
        self.expected = [numbers.tolist() for numbers in numbers_of_kinds if numbers is not None]

    def forward(self, pixels: torch.Tensor, grid_thw: torch.Tensor, **options):
        """Return features as the tower does: pixels [patches, width] of the media with the grids
        [media, 3]. What is known already is not computed."""
        if not self.expected:
            return self.compute(pixels, grid_thw=grid_thw, **options)
        numbers = self.expected.pop(0)
        unknown = {}  # number -> its first place among the media
        for place, number in enumerate(numbers):
            if number not in self.kept:
                unknown.setdefault(number, place)
        parts = pixels.split(grid_thw.prod(-1).tolist())
        fresh = self._computed(parts, grid_thw, unknown, options)
        rows = []
        for number in numbers:
            row = fresh.get(number) or self.kept[number]
            rows.append([part.to(pixels.device, non_blocking=True) for part in row])
        pooled, *deeper = [torch.cat(parts) for parts in zip(*rows, strict=True)]
        output = self.form(**{self.name: pooled})
        if deeper:
            output.deepstack_features = deeper
        return output

    def _computed(self, parts, grid_thw, unknown: dict[int, int], options) -> dict:
        """Return the features of the media at some places, kept while there is room; `parts` are
        the pixels of all media."""
        if not unknown:
            return {}
        places = list(unknown.values())
        chosen = torch.cat([parts[place] for place in places])
        grids = grid_thw[places]
        with torch.no_grad():
            output = self.compute(chosen, grid_thw=grids, **options)
        self.form = type(output)
        patches = self.tower.spatial_merge_size**2 if self.merges else 1  # of each feature
        lengths = (grids.prod(-1) // patches).tolist()
        layers = [output[self.name], *(getattr(output, "deepstack_features", None) or [])]
        split = zip(*(layer.split(lengths) for layer in layers), strict=True)
        fresh = {number: list(row) for number, row in zip(unknown, split, strict=True)}
        for number, row in fresh.items():
            self._keep(number, row)
        return fresh

    def _keep(self, number: int, row: list[torch.Tensor]) -> None:
        size = sum(part.nbytes for part in row)
        if not self.kept:
            say(
                f"features: {size / 2**20:.3g} MiB for the first clip, kept up to "
                f"{self.room / GIB:g} GiB of host memory"
            )
        if self.bytes + size > self.room:
            if not self.is_full:
                say(f"features: {len(self.kept)} clips fill the room, others are computed anew")
            self.is_full = True
            return
        self.kept[number] = [part.to("cpu", copy=True) for part in row]
        self.bytes += size
