"""What a model is shown, before any tensor: the sampled and resized frames of a medium, and the
turns of a prompt."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import located
from cosmos_reason.data.samples import Media
from cosmos_reason.data.turns import Turn
from cosmos_reason.media import archives, sampling, stamps
from cosmos_reason.media import files as media
from cosmos_reason.remote import s3

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Vision:
    """One medium ready for the model: uint8 `frames` [n, h, w, 3] and, for videos, the
    time of each in s and their `rate` in frames per second, as qwen-vl-utils tells it: the sampled
    frames over the length of the whole clip."""

    kind: str
    frames: np.ndarray
    seconds: tuple[float, ...]
    rate: float = 0.0


class FrameCache:
    """Decoded frames by key, least recently used dropped first, at most `limit` bytes."""

    def __init__(self, limit: int):
        self.limit = limit
        self.size = 0
        self.entries = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key, make) -> Vision:
        with self.lock:
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key]
        # Not under the lock: threads decode at once, though two may then decode one medium.
        vision = make()
        with self.lock:
            if vision.frames.nbytes <= self.limit and key not in self.entries:
                self.entries[key] = vision
                self.size += vision.frames.nbytes
            while self.size > self.limit:
                self.size -= self.entries.popitem(last=False)[1].frames.nbytes
        return vision


@dataclass
class Sampler:
    """Samples media of one folder, archive or s3:// prefix; of a prefix only what is asked for is
    fetched. Samplers of several folders with the same options may share a cache."""

    media_path: str
    options: sampling.VisionOptions
    patch_size: int
    merge_size: int = 2
    temporal_patch_size: int | None = None  # of the options' family, unless it is given
    cache: FrameCache = field(default_factory=lambda: FrameCache(0))

    def __post_init__(self):
        if self.temporal_patch_size is None:
            self.temporal_patch_size = self.options.family.frames_per_token
        self.media_path = archives.media_folder(self.media_path)

    def load(self, item: Media) -> Vision:
        """Raises Failure for a medium that is missing, does not decode, or is too short for the
        options."""
        return self.cache.get((self.media_path, item), lambda: self._named_sample(item))

    def source(self, item: Media) -> Path | media.Pictures:
        """Return the local file of a medium, or its pictures. Raises Failure."""
        found = located.source(item, functools.partial(located.place, self.media_path))
        is_remote = s3.is_uri(self.media_path) or any(map(s3.is_uri, item.names))
        return located.local(found, self._bucket if is_remote else None)

    @functools.cached_property
    def _bucket(self):
        return s3.client()

    def _named_sample(self, item: Media) -> Vision:
        """Sample as `_sample` does; what is wrong is told with the name of the medium, which the
        arithmetic of sampling does not know."""
        try:
            return self._sample(item.kind, self.source(item))
        except Failure as failure:
            named = []
            for found in failure.findings:
                where = item.path if found.where in sampling.UNNAMED else found.where
                named.append(replace(found, where=where))
            raise type(failure)(named, failure.exit_code) from None

    def _sample(self, kind: str, path: media.Source) -> Vision:
        import numpy as np

        grid = self.options, self.patch_size, self.merge_size
        if kind == "image":
            image = media.read_image(path)
            frame = media.resize(image[None], *sampling.image_size(*image.shape[:2], *grid))
            return Vision("image", np.repeat(frame, self.temporal_patch_size, axis=0), ())
        facts, shown = media.probe_video(path)
        indices = sampling.frame_indices(facts.frames, facts.fps, self.options, facts.shows_all)
        frames = media.decode_frames(path, indices)
        size = sampling.frame_size(*frames.shape[1:3], len(indices), *grid)
        seconds = [float(shown.at(index)) for index in indices]
        rate = facts.fps
        if not facts.shows_all:
            rate *= len(indices) / facts.frames
        missing = -len(indices) % self.temporal_patch_size
        if missing:  # the last frame fills the last patch
            frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
            seconds += seconds[-1:] * missing
        frames = media.resize(frames, *size)
        if self.options.burn_timestamps:
            frames = stamps.burned(frames, seconds, self.options.table)
        return Vision("video", frames, tuple(seconds), rate)

    def grid(self, vision: Vision) -> tuple[int, int, int]:
        """Return (temporal, height, width) of the medium in patches."""
        frames, height, width, _ = vision.frames.shape
        return (
            frames // self.temporal_patch_size,
            height // self.patch_size,
            width // self.patch_size,
        )


def with_system(turns: Sequence[Turn], system_prompt: str) -> list[Turn]:
    """Return `turns` led by the spec's system prompt, unless they bring their own or there is
    none."""
    if not system_prompt or (turns and turns[0].role == "system"):
        return list(turns)
    return [Turn("system", system_prompt), *turns]


def chat(turns: Sequence[Turn], media_parts: Sequence[dict]) -> list[dict]:
    """Return `turns` as messages of a chat template; the parts that stand for media come before the
    text of the first user turn."""
    messages = []
    waiting = list(media_parts)
    for turn in turns:
        content = [{"type": "text", "text": turn.text}]
        if turn.role == "assistant":
            content = turn.text
        elif turn.role == "user":
            content = waiting + content
            waiting = []
        messages.append({"role": turn.role, "content": content})
    return messages
