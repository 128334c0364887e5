import copy
import itertools
import json

import numpy as np
import pytest
import torch

from cosmos_reason.base.findings import Failure
from cosmos_reason.data.annotations import read
from cosmos_reason.data.frames import FrameCache, Vision, with_system
from cosmos_reason.data.samples import Media, Sample, Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.conversations import training_samples
from cosmos_reason.engine.encode import IGNORED, Encoder, collate
from cosmos_reason.media import files, sampling
from cosmos_reason.media.sampling import VisionOptions

OPTIONS = VisionOptions(nframes=8, resized_height=64, resized_width=96)


@pytest.fixture(scope="module")
def encoder(tiny_model, dataset):
    tokenizer = models.load_tokenizer(tiny_model)
    return Encoder(tokenizer, tiny_model, str(dataset / "train"), OPTIONS, max_length=1000)


@pytest.fixture(scope="module")
def samples(dataset):
    return read(dataset / "train" / "annotations.json")[0]


def conversation(sample, *texts):
    roles = ("user", "assistant") * len(texts)
    return sample._replace(
        turns=tuple(Turn(role, text) for role, text in zip(roles, texts, strict=False))
    )


def test_vision_tokens_are_those_the_arithmetic_predicts(encoder, samples):
    encoded = encoder.encode_training(samples[0], "")
    predicted = sampling.video_tokens(64, 64, 8, OPTIONS, 16)
    assert int((encoded["mm_token_type_ids"] == 2).sum()) == predicted == 4 * 2 * 3
    assert encoded["video_grid_thw"].tolist() == [[4, 4, 6]]
    assert encoded["pixel_values_videos"].shape == (4 * 4 * 6, 3 * 2 * 16 * 16)


def test_positions_of_qwen2_5_vl_count_the_seconds_of_a_clip(tiny_reason1, dataset, samples):
    """8 of 16 frames in 2 seconds: a step is half a second, which is one position; the text goes on
    behind the last step. 3 frames a second: 0, 0.67, 1.33 seconds."""
    tokenizer = models.load_tokenizer(tiny_reason1)
    for sampling_options, times in (
        ({"nframes": 8}, [0, 1, 2, 3]),
        ({"fps": 3}, [0, 1, 2]),
        ({"fps": 1, "min_frames": 2}, [0]),
    ):
        options = VisionOptions(**sampling_options, resized_height=56, resized_width=56)
        encoder = Encoder(tokenizer, tiny_reason1, str(dataset / "train"), options, 1000)
        encoded = encoder.encode_training(samples[0], "")
        shown = encoded["mm_token_type_ids"] == 2
        first = int(shown.nonzero()[0])
        positions = encoded["position_ids"][shown] - first
        places = list(itertools.product(times, (0, 1), (0, 1)))
        assert list(map(tuple, positions.tolist())) == places
        after = encoded["position_ids"][int(shown.nonzero()[-1]) + 1]
        assert set(after.tolist()) == {first + max(times[-1], 1) + 1}
        assert "seconds" not in tokenizer.decode(encoded["input_ids"])


def test_loss_falls_on_every_assistant_turn_and_its_end_token_only(encoder, samples):
    turns = ("What colour is it?", "B", "Are you sure?", "yes, it is B", "Thanks.", "left")
    encoded = encoder.encode_training(conversation(samples[0], *turns), "Be short.")
    learned = encoder.tokenizer.decode(encoded["labels"][encoded["labels"] != IGNORED])
    assert learned == "B<|im_end|>yes, it is B<|im_end|>left<|im_end|>"
    kept = encoded["labels"] != IGNORED
    assert torch.equal(encoded["labels"][kept], encoded["input_ids"][kept])


def test_a_folder_of_its_frames_is_trained_as_the_clip(encoder, samples, dataset, tmp_path):
    from PIL import Image

    clip = dataset / "train" / samples[0].media[0].path
    facts = files.probe(clip)
    for number, frame in enumerate(files.decode_frames(clip, range(facts.frames))):
        Image.fromarray(frame).save(tmp_path / f"frame_{number}.png")
    folder = samples[0]._replace(media=(Media("video", str(tmp_path), (), facts.fps),))
    expected = encoder.encode_training(samples[0], "")
    for key, value in encoder.encode_training(folder, "").items():
        assert torch.equal(value, expected[key]), key


def test_a_prompt_is_exactly_what_training_put_before_the_answer(encoder, samples):
    sample = samples[1]
    trained = encoder.encode_training(sample, "Watch the clip.")
    prompt = encoder.encode_prompt(with_system(sample.turns[:-1], "Watch the clip."), sample.media)
    first = int((trained["labels"] != IGNORED).nonzero()[0])
    assert torch.equal(prompt["input_ids"], trained["input_ids"][:first])
    assert torch.equal(prompt["pixel_values_videos"], trained["pixel_values_videos"])


def test_a_record_may_bring_its_own_system_turn():
    turns = [Turn("system", "own"), Turn("user", "hi")]
    assert with_system(turns, "from the spec") == turns


def test_several_media_keep_their_order_and_kinds(encoder, dataset, tmp_path):
    from PIL import Image

    picture = tmp_path / "still.png"
    Image.new("RGB", (64, 64), (255, 0, 0)).save(picture)
    clip = str(dataset / "train" / "videos" / "train-0000.mp4")
    media = (Media("video", clip), Media("image", str(picture)), Media("video", clip))
    sample = Sample(0, "mixed", (Turn("user", "Compare."), Turn("assistant", "same")), media, None)
    encoded = encoder.encode_training(sample, "")
    kinds = encoded["mm_token_type_ids"]
    runs = [
        int(kind)
        for kind, before in zip(kinds[1:], kinds[:-1], strict=True)
        if kind != before and kind
    ]
    assert runs == [2] * 4 + [1] + [2] * 4
    assert encoded["video_grid_thw"].tolist() == [[4, 4, 6]] * 2
    assert encoded["image_grid_thw"].tolist() == [[1, 4, 6]]


def test_a_template_that_writes_no_media_is_refused_for_questions_too(encoder, samples):
    """The clip would stand behind the words that begin the answer."""
    sample = samples[1]
    encoder = copy.copy(encoder)
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    encoder.tokenizer.chat_template = "{% for one in messages %}{{ one.role }}: {% endfor %}"
    with pytest.raises(Failure) as refused:
        encoder.encode_prompt(sample.turns[:-1], sample.media)
    assert refused.value.findings[0].id == "ENGINE-CHAT-TEMPLATE"


def test_an_image_of_one_token_keeps_its_place(tiny_model, tmp_path):
    from PIL import Image

    for name, sides in {"small": (32, 32), "large": (96, 64)}.items():
        Image.new("RGB", sides, (255, 0, 0)).save(tmp_path / f"{name}.png")
    small = VisionOptions(nframes=2, min_pixels=1024, max_pixels=65536)
    encoder = Encoder(
        models.load_tokenizer(tiny_model), tiny_model, str(tmp_path), small, max_length=1000
    )
    for names in (("small", "large"), ("large", "small"), ("small", "small", "large")):
        media = tuple(Media("image", f"{name}.png") for name in names)
        sample = Sample(
            0, "two", (Turn("user", "Compare."), Turn("assistant", "same")), media, None
        )
        encoded = encoder.encode_training(sample, "")
        text = encoder.tokenizer.decode(encoded["input_ids"]).split("<|vision_end|>")
        assert [part.count("<|image_pad|>") for part in text[:-1]] == [
            1 if name == "small" else 6 for name in names
        ]


def test_answers_are_learned_as_they_are_written(encoder, tmp_path):
    turns = [
        {"from": "human", "value": "<video>\nWhere?"},
        {"from": "gpt", "value": "The <image> shows it"},
    ]
    (tmp_path / "a.json").write_text(
        json.dumps([{"id": "a", "video": "videos/train-0000.mp4", "conversations": turns}])
    )
    (sample,), found = read(tmp_path / "a.json")
    encoded = encoder.encode_training(sample, "")
    learned = encoder.tokenizer.decode(encoded["labels"][encoded["labels"] != IGNORED])
    assert learned == "The <image> shows it<|im_end|>"
    assert [finding.id for finding in found] == ["DATA-TAG-ANSWER"]


@pytest.mark.parametrize("mode, texts", [
    ("answer", ["Yes", "No"]),
    ("think", ["<think>\nIt is light.\n</think>\n\nYes", "No"]),
    ("hybrid", ["Yes", "No", "<think>\nIt is light.\n</think>\n\nYes", "No"]),
])  # fmt: skip
def test_reasoning_of_daft_records_is_trained_as_the_spec_says(tmp_path, mode, texts):
    """As NVIDIA's dataset class does: a record without reasoning is its answer, hybrid has the
    plain ones first."""
    items = [
        {"video_id": "a.mp4", "question": "Bright?", "answer": "Yes", "reasoning": "It is light."}
    ]
    items.append({"video_id": "b.mp4", "question": "Bright?", "answer": "No"})
    (tmp_path / "a.json").write_text(json.dumps({"format": "tao-vl-reason-v1.0", "items": items}))
    table = {"annotation_path": str(tmp_path / "a.json"), "response_mode": mode}
    samples = training_samples(table, "custom.train_dataset")
    assert [sample.turns[-1].text for sample in samples] == texts


def test_a_sample_that_does_not_fit_is_an_error_and_never_cut(tiny_model, dataset, samples):
    short = Encoder(
        models.load_tokenizer(tiny_model),
        tiny_model,
        str(dataset / "train"),
        OPTIONS,
        max_length=40,
    )
    with pytest.raises(Failure) as failure:
        short.encode_training(samples[0], "")
    finding = failure.value.findings[0]
    assert finding.id == "ENGINE-SAMPLE-TOO-LONG"
    assert finding.data["record_ids"] == [samples[0].id]


def test_padding_carries_neither_loss_nor_attention(encoder, samples):
    rows = [encoder.encode_training(sample, "") for sample in samples[:3]]
    lengths = [len(row["input_ids"]) for row in rows]
    assert len(set(lengths)) > 1
    for side in ("right", "left"):
        batch = collate(rows, pad_id=0, side=side)
        assert batch["attention_mask"].sum(1).tolist() == lengths
        for i, row in enumerate(rows):
            real = batch["attention_mask"][i].bool()
            assert torch.equal(batch["input_ids"][i][real], row["input_ids"])
            assert (batch["labels"][i][~real] == IGNORED).all()
        assert len(batch["pixel_values_videos"]) == sum(
            len(row["pixel_values_videos"]) for row in rows
        )


def test_the_frame_cache_holds_its_limit_and_drops_the_least_recent():
    made = []

    def make(key):
        made.append(key)
        return Vision("image", np.zeros((2, 10, 5, 1), np.uint8), ())  # 100 bytes

    cache = FrameCache(limit=250)
    for key in "abacab":
        cache.get(key, lambda key=key: make(key))
    assert made == ["a", "b", "c", "b"]
    assert cache.size == 200 and list(cache.entries) == ["a", "b"]
    FrameCache(limit=0).get("a", lambda: make("a"))
