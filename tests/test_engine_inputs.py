import numpy as np
import pytest
import torch

from cosmos_reason import vision_tokens
from cosmos_reason.annotations import Media, Sample, Turn, read
from cosmos_reason.findings import Failure
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.frames import FrameCache, Vision, with_system
from cosmos_reason.transformers_engine.inputs import IGNORED, Encoder, collate
from cosmos_reason.vision_tokens import VisionOptions

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
    return sample._replace(turns=tuple(Turn(role, text) for role, text in zip(roles, texts, strict=False)))


def test_vision_tokens_are_those_the_arithmetic_predicts(encoder, samples):
    encoded = encoder.encode_training(samples[0], "")
    predicted = vision_tokens.video_tokens(64, 64, 8, OPTIONS, 16)
    assert int((encoded["mm_token_type_ids"] == 2).sum()) == predicted == 4 * 2 * 3
    assert encoded["video_grid_thw"].tolist() == [[4, 4, 6]]
    assert encoded["pixel_values_videos"].shape == (4 * 4 * 6, 3 * 2 * 16 * 16)


def test_loss_falls_on_every_assistant_turn_and_its_end_token_only(encoder, samples):
    turns = ("What colour is it?", "B", "Are you sure?", "yes, it is B", "Thanks.", "left")
    encoded = encoder.encode_training(conversation(samples[0], *turns), "Be short.")
    learned = encoder.tokenizer.decode(encoded["labels"][encoded["labels"] != IGNORED])
    assert learned == "B<|im_end|>yes, it is B<|im_end|>left<|im_end|>"
    kept = encoded["labels"] != IGNORED
    assert torch.equal(encoded["labels"][kept], encoded["input_ids"][kept])


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
    runs = [int(kind) for kind, before in zip(kinds[1:], kinds[:-1], strict=True) if kind != before and kind]
    assert runs == [2] * 4 + [1] + [2] * 4
    assert encoded["video_grid_thw"].tolist() == [[4, 4, 6]] * 2
    assert encoded["image_grid_thw"].tolist() == [[1, 4, 6]]


def test_a_sample_that_does_not_fit_is_an_error_and_never_cut(tiny_model, dataset, samples):
    short = Encoder(models.load_tokenizer(tiny_model), tiny_model, str(dataset / "train"), OPTIONS, max_length=40)
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
        assert len(batch["pixel_values_videos"]) == sum(len(row["pixel_values_videos"]) for row in rows)


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
