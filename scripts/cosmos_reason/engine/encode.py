"""From samples to model inputs: chat text, vision placeholders, patches, labels.

The text around a video is the one that the model was trained with (transformers 4.57, vLLM,
cosmos-rl). Qwen3-VL: per pair of frames `<T seconds>`, then the placeholders between vision_start
and vision_end; the chat template's own placeholder is replaced whole. (transformers 5.x keeps the
outer vision_start and vision_end as well.) Qwen2.5-VL: all placeholders between one vision_start
and vision_end, and positions that count the seconds. What differs stands in base/families.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import bad_input
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import architectures
from cosmos_reason.data.frames import FrameCache, Sampler, Vision, chat, with_system
from cosmos_reason.data.samples import Media, Sample, Turn
from cosmos_reason.engine.train.features import contents

IGNORED = -100  # label of a position that carries no loss
TEXT, IMAGE, VIDEO = 0, 1, 2  # mm_token_type_ids
PIXELS_KEY = {"image": "pixel_values", "video": "pixel_values_videos"}
SPECIAL_TOKENS = ("image", "video", "vision_start", "vision_end")
GRID_KEY = {"image": "image_grid_thw", "video": "video_grid_thw"}


class Encoder:
    """Turns samples into tensors for one model folder, one media folder and one set of vision
    options."""

    def __init__(
        self,
        tokenizer,
        folder: Path,
        media_path: str,
        options,
        max_length: int,
        cache: FrameCache | None = None,
        tells_content: bool = False,
    ):
        config = architectures.read_config(folder)
        vision = config["vision_config"]
        self.family = FAMILIES[config["model_type"]]
        self.positions_per_second = vision.get(
            "tokens_per_second", self.family.positions_per_second
        )
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.tells_content = tells_content
        self.patch_size = vision["patch_size"]
        self.merge_size = vision["spatial_merge_size"]
        self.temporal_patch_size = vision.get("temporal_patch_size", self.family.frames_per_token)
        self.sampler = Sampler(
            media_path,
            replace(options, family=self.family),
            self.patch_size,
            self.merge_size,
            self.temporal_patch_size,
            cache or FrameCache(0),
        )
        self.token_ids = {name: config[f"{name}_token_id"] for name in SPECIAL_TOKENS}
        self.tokens = {
            name: tokenizer.convert_ids_to_tokens(number) for name, number in self.token_ids.items()
        }

    def patches(self, vision: Vision) -> torch.Tensor:
        """Return float32 [t*h*w, 3*temporal_patch*patch*patch], patches ordered in merge blocks as
        the model expects."""
        t, h, w = self.sampler.grid(vision)
        m, p = self.merge_size, self.patch_size
        mean, std = torch.tensor(self.family.mean), torch.tensor(self.family.std)
        # A copy, which the rest changes in place.
        pixels = torch.from_numpy(vision.frames).to(torch.float32, copy=True)
        pixels.div_(255.0).sub_(mean).div_(std)
        blocks = pixels.view(t, self.temporal_patch_size, h // m, m, p, w // m, m, p, 3)
        if self.family.channels_last:
            return blocks.permute(0, 2, 5, 3, 6, 4, 7, 8, 1).reshape(t * h * w, -1)
        return blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, -1)

    def placeholder(self, vision: Vision) -> str:
        """Return the text that stands for one medium."""
        t, h, w = self.sampler.grid(vision)
        writes_times = vision.kind == "video" and self.family.writes_times
        steps = 1 if writes_times else t
        tokens = self.tokens[vision.kind] * (steps * h * w // self.merge_size**2)
        block = self.tokens["vision_start"] + tokens + self.tokens["vision_end"]
        if not writes_times:
            return block
        frames_per_step = self.temporal_patch_size
        text = ""
        for step in range(t):
            first = vision.seconds[step * frames_per_step]
            last = vision.seconds[(step + 1) * frames_per_step - 1]
            text += f"<{(first + last) / 2:.1f} seconds>{block}"
        return text

    def render(
        self,
        turns: Sequence[Turn],
        media_items: Sequence[Media],
        visions,
        prompt: bool,
        thinks: bool = False,
    ) -> str:
        """Return the chat text of `turns` with every medium expanded; media stand at the start of
        the first user turn. `thinks`: the answer to come begins with a thought."""
        messages = chat(turns, [{"type": item.kind} for item in media_items])
        options = {"enable_thinking": thinks} if self.family.opens_thought else {}
        rest = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, **options
        )
        pieces = []
        for item, vision in zip(media_items, visions, strict=True):
            # What was replaced is set aside: the text of an image of one token is the mark itself.
            before, mark, rest = rest.partition(self.mark(item.kind))
            if not mark:
                message = f"got a template that does not write {self.mark(item.kind)} for a medium"
                raise bad_input("ENGINE-CHAT-TEMPLATE", "chat_template", message)
            pieces += [before, self.placeholder(vision)]
        return "".join([*pieces, rest])

    def mark(self, kind: str) -> str:
        """Return what the chat template writes for a medium."""
        return self.tokens["vision_start"] + self.tokens[kind] + self.tokens["vision_end"]

    def segments(self, turns: Sequence[Turn], media_items, visions) -> list[tuple[str, bool]]:
        """Return (text, carries loss) pieces of a conversation. Loss falls on each assistant text
        and its end token only, and pieces are tokenized apart, so that a prompt has the same tokens
        here as in generation."""
        end_token = self.tokenizer.eos_token
        pieces = []
        rendered = ""
        for index, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            thinks = turn.text.startswith("<think>")
            prompt = self.render(turns[:index], media_items, visions, prompt=True, thinks=thinks)
            whole = self.render(turns[: index + 1], media_items, visions, prompt=False)
            answer, found_end, tail = whole[len(prompt) :].rpartition(end_token)
            keeps_turns = prompt.startswith(rendered) and whole.startswith(prompt)
            if not (keeps_turns and found_end):
                message = "got a template that rewrites earlier turns"
                raise bad_input("ENGINE-CHAT-TEMPLATE", "chat_template", message)
            pieces.append((prompt[len(rendered) :], False))
            pieces.append((answer + end_token, True))
            pieces.append((tail, False))
            rendered = whole
        return pieces

    def encode_training(self, sample: Sample, system_prompt: str) -> dict[str, torch.Tensor]:
        """Return inputs and labels of one conversation. Raises Failure when it does not fit
        `max_length` (never truncated)."""
        turns = with_system(sample.turns, system_prompt)
        visions = [self.sampler.load(item) for item in sample.media]
        ids, labels = [], []
        for text, carries_loss in self.segments(turns, sample.media, visions):
            tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += tokens
            labels += tokens if carries_loss else [IGNORED] * len(tokens)
        if len(ids) > self.max_length:
            message = (
                f"got {len(ids)} tokens, expected at most policy.model_max_length={self.max_length}"
            )
            fix = Fix(changes={"policy.model_max_length": len(ids)})
            raise bad_input(
                "ENGINE-SAMPLE-TOO-LONG", sample.id, message, fix, record_ids=[sample.id]
            )
        inputs = self._tensors(ids, visions) | {"labels": torch.tensor(labels)}
        return inputs | contents(visions) if self.tells_content else inputs

    def encode_prompt(
        self, turns: Sequence[Turn], media_items: Sequence[Media]
    ) -> dict[str, torch.Tensor]:
        """Return inputs of a conversation that waits for the assistant's next words."""
        visions = [self.sampler.load(item) for item in media_items]
        text = self.render(
            turns, media_items, visions, prompt=True, thinks=self.opening(turns) != ""
        )
        return self._tensors(self.tokenizer(text, add_special_tokens=False)["input_ids"], visions)

    def opening(self, turns: Sequence[Turn]) -> str:
        """Return what the template writes of the answer to come itself: the begin of the thought
        that the question, or the system prompt, asks for."""
        is_asked = any("<think>" in turn.text for turn in turns if turn.role != "assistant")
        return "<think>\n" if self.family.opens_thought and is_asked else ""

    def _tensors(self, ids: list[int], visions: list[Vision]) -> dict[str, torch.Tensor]:
        input_ids = torch.tensor(ids)
        kinds = torch.zeros_like(input_ids)
        kinds[input_ids == self.token_ids["image"]] = IMAGE
        kinds[input_ids == self.token_ids["video"]] = VIDEO
        inputs = {
            "input_ids": input_ids,
            "mm_token_type_ids": kinds,
            "position_ids": self.positions(kinds, visions),
        }
        for kind in ("image", "video"):
            of_kind = [vision for vision in visions if vision.kind == kind]
            if of_kind:
                grids = [self.sampler.grid(vision) for vision in of_kind]
                patches = [self.patches(vision) for vision in of_kind]
                # One medium alone is not copied again: of a large clip that took as long as this.
                inputs[PIXELS_KEY[kind]] = torch.cat(patches) if len(patches) > 1 else patches[0]
                inputs[GRID_KEY[kind]] = torch.tensor(grids)
        return inputs

    def positions(self, kinds: torch.Tensor, visions: Sequence[Vision]) -> torch.Tensor:
        """Return int64 [n, 3]: the temporal, vertical and horizontal position of each token. Each
        text and each block of a medium begins behind the largest position before it. As Qwen3-VL,
        Qwen2.5-VL, vLLM and cosmos-rl count. Of Qwen2.5-VL, transformers 4.52 to 5.17 cut the
        seconds of a step to whole ones, so that at 4 frames per second no time passes, and 5.x lets
        the text after a clip begin before the end of the clip."""
        runs, lengths = torch.unique_consecutive(kinds, return_counts=True)
        blocks = [block for vision in visions for block in self.blocks(vision)]
        pieces = []
        first = 0
        waiting = iter(blocks)
        for kind, length in zip(runs.tolist(), lengths.tolist(), strict=True):
            text = torch.arange(length)[:, None].expand(-1, 3)
            piece = text if kind == TEXT else next(waiting)
            pieces.append(piece + first)
            first = int(pieces[-1].max()) + 1
        return torch.cat(pieces)

    def blocks(self, vision: Vision) -> list[torch.Tensor]:
        """Return int64 [tokens, 3] of each block of one medium, from 0: a clip whose times are
        written has one for each step, all else is one."""
        t, h, w = self.sampler.grid(vision)
        rows, columns = torch.arange(h // self.merge_size), torch.arange(w // self.merge_size)
        if vision.kind == "video" and self.family.writes_times:
            return [torch.cartesian_prod(torch.zeros(1, dtype=torch.long), rows, columns)] * t
        times = torch.arange(t)
        if vision.kind == "video":
            seconds = self.temporal_patch_size / vision.rate
            times = (times * seconds * self.positions_per_second).long()
        return [torch.cartesian_prod(times, rows, columns)]


def collate(
    samples: Sequence[dict[str, torch.Tensor]], pad_id: int, side: str
) -> dict[str, torch.Tensor]:
    """Pad to the longest: `side` is "right" for training, "left" for generation. Media are
    concatenated."""
    padding = {
        "input_ids": pad_id,
        "mm_token_type_ids": TEXT,
        "labels": IGNORED,
        "attention_mask": 0,
        "position_ids": 0,
    }
    length = max(len(sample["input_ids"]) for sample in samples)
    columns: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        sample = sample | {"attention_mask": torch.ones_like(sample["input_ids"])}
        missing = length - len(sample["input_ids"])
        for key, value in sample.items():
            if key in padding:
                fill = value.new_full((missing, *value.shape[1:]), padding[key])
                value = torch.cat([value, fill] if side == "right" else [fill, value])
            columns.setdefault(key, []).append(value)
    batch = {}
    for key, rows in columns.items():
        batch[key] = torch.stack(rows) if key in padding else torch.cat(rows)
    if "position_ids" in batch:
        batch["position_ids"] = batch["position_ids"].permute(2, 0, 1)  # as models take them
    return batch
