"""From samples to model inputs: chat text, vision placeholders, patches, labels.

The text around a video is the one Qwen3-VL was trained with (transformers 4.57, vLLM, cosmos-rl): per pair of frames
`<T seconds>`, then the placeholders between vision_start and vision_end; the chat template's own placeholder is
replaced whole. (transformers 5.x keeps the outer vision_start and vision_end as well.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cosmos_reason.annotations import Media, Sample, Turn
from cosmos_reason.findings import bad_input
from cosmos_reason.storage import read_json
from cosmos_reason.transformers_engine.frames import Sampler, Vision, with_system

IGNORED = -100  # label of a position that carries no loss
TEXT, IMAGE, VIDEO = 0, 1, 2  # mm_token_type_ids
MEAN, STD = 0.5, 0.5  # Qwen3-VL's preprocessor_config.json
PIXELS_KEY = {"image": "pixel_values", "video": "pixel_values_videos"}
GRID_KEY = {"image": "image_grid_thw", "video": "video_grid_thw"}


class Encoder:
    """Turns samples into tensors for one model folder, one media folder and one set of vision options."""

    def __init__(self, tokenizer, folder: Path, media_path: str, options, max_length: int, cache_bytes: int = 0):
        config = read_json(folder / "config.json")
        self.tokenizer, self.max_length = tokenizer, max_length
        sizes = [config["vision_config"][key] for key in ("patch_size", "spatial_merge_size", "temporal_patch_size")]
        self.patch_size, self.merge_size, self.temporal_patch_size = sizes
        self.sampler = Sampler(media_path, options, *sizes, cache_bytes)
        ids = {name: config[f"{name}_token_id"] for name in ("image", "video", "vision_start", "vision_end")}
        self.token_ids = ids
        self.tokens = {name: tokenizer.convert_ids_to_tokens(number) for name, number in ids.items()}

    def patches(self, vision: Vision) -> torch.Tensor:
        """float32 [t*h*w, 3*temporal_patch*patch*patch], patches ordered in merge blocks as Qwen3-VL expects."""
        (t, h, w), m, p = self.sampler.grid(vision), self.merge_size, self.patch_size
        pixels = (torch.from_numpy(vision.frames).float() / 255.0 - MEAN) / STD
        blocks = pixels.view(t, self.temporal_patch_size, h // m, m, p, w // m, m, p, 3)
        return blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, -1)

    def placeholder(self, vision: Vision) -> str:
        """The text that stands for one medium."""
        t, h, w = self.sampler.grid(vision)
        tokens = self.tokens[vision.kind] * (h * w // self.merge_size**2)
        block = self.tokens["vision_start"] + tokens + self.tokens["vision_end"]
        if vision.kind == "image":
            return block
        step = self.temporal_patch_size
        times = [(vision.seconds[i * step] + vision.seconds[(i + 1) * step - 1]) / 2 for i in range(t)]
        return "".join(f"<{time:.1f} seconds>{block}" for time in times)

    def render(self, turns: Sequence[Turn], media_items: Sequence[Media], visions, prompt: bool) -> str:
        """The chat text of `turns` with every medium expanded; media stand at the start of the first user turn."""
        messages, waiting = [], list(media_items)
        for turn in turns:
            content = [{"type": "text", "text": turn.text}]
            if turn.role == "user":
                content = [{"type": item.kind} for item in waiting] + content
                waiting = []
            messages.append({"role": turn.role, "content": turn.text if turn.role == "assistant" else content})
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        for item, vision in zip(media_items, visions, strict=True):
            mark = self.tokens["vision_start"] + self.tokens[item.kind] + self.tokens["vision_end"]
            text = text.replace(mark, self.placeholder(vision), 1)
        return text

    def segments(self, turns: Sequence[Turn], media_items, visions) -> list[tuple[str, bool]]:
        """(text, carries loss) pieces of a conversation. Loss falls on each assistant text and its end token only,
        and pieces are tokenized apart, so that a prompt has the same tokens here as in generation."""
        pieces, done, end = [], "", self.tokenizer.eos_token
        for index, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            prompt = self.render(turns[:index], media_items, visions, prompt=True)
            whole = self.render(turns[: index + 1], media_items, visions, prompt=False)
            answer, found, tail = whole[len(prompt) :].rpartition(end)
            if not (prompt.startswith(done) and whole.startswith(prompt) and found):
                raise bad_input("ENGINE-CHAT-TEMPLATE", "chat_template", "got a template that rewrites earlier turns")
            pieces += [(prompt[len(done) :], False), (answer + end, True), (tail, False)]
            done = whole
        return pieces

    def encode_training(self, sample: Sample, system_prompt: str) -> dict[str, torch.Tensor]:
        """Inputs and labels of one conversation. Raises Failure when it does not fit `max_length` (never truncated)."""
        turns = with_system(sample.turns, system_prompt)
        visions = [self.sampler.load(item) for item in sample.media]
        ids, labels = [], []
        for text, carries_loss in self.segments(turns, sample.media, visions):
            tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += tokens
            labels += tokens if carries_loss else [IGNORED] * len(tokens)
        if len(ids) > self.max_length:
            message = f"got {len(ids)} tokens, expected at most policy.model_max_length={self.max_length}"
            fix = f"--set policy.model_max_length={len(ids)}"
            raise bad_input("ENGINE-SAMPLE-TOO-LONG", sample.id, message, fix, record_ids=[sample.id])
        return self._tensors(ids, visions) | {"labels": torch.tensor(labels)}

    def encode_prompt(self, turns: Sequence[Turn], media_items: Sequence[Media]) -> dict[str, torch.Tensor]:
        """Inputs of a conversation that waits for the assistant's next words."""
        visions = [self.sampler.load(item) for item in media_items]
        text = self.render(turns, media_items, visions, prompt=True)
        return self._tensors(self.tokenizer(text, add_special_tokens=False)["input_ids"], visions)

    def _tensors(self, ids: list[int], visions: list[Vision]) -> dict[str, torch.Tensor]:
        input_ids = torch.tensor(ids)
        kinds = torch.zeros_like(input_ids)
        kinds[input_ids == self.token_ids["image"]] = IMAGE
        kinds[input_ids == self.token_ids["video"]] = VIDEO
        inputs = {"input_ids": input_ids, "mm_token_type_ids": kinds}
        for kind in ("image", "video"):
            of_kind = [vision for vision in visions if vision.kind == kind]
            if of_kind:
                inputs[PIXELS_KEY[kind]] = torch.cat([self.patches(vision) for vision in of_kind])
                inputs[GRID_KEY[kind]] = torch.tensor([self.sampler.grid(vision) for vision in of_kind])
        return inputs


def collate(samples: Sequence[dict[str, torch.Tensor]], pad_id: int, side: str) -> dict[str, torch.Tensor]:
    """Pad to the longest: `side` is "right" for training, "left" for generation. Media are concatenated."""
    length = max(len(sample["input_ids"]) for sample in samples)
    padding = {"input_ids": pad_id, "mm_token_type_ids": TEXT, "labels": IGNORED, "attention_mask": 0}
    batch: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        sample = sample | {"attention_mask": torch.ones_like(sample["input_ids"])}
        missing = length - len(sample["input_ids"])
        for key, value in sample.items():
            if key in padding:
                fill = value.new_full((missing,), padding[key])
                value = torch.cat([value, fill] if side == "right" else [fill, value])
            batch.setdefault(key, []).append(value)
    return {key: torch.stack(rows) if key in padding else torch.cat(rows) for key, rows in batch.items()}
