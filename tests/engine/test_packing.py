"""Records that share a forward pass: each computes what it computes alone."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.data.annotations import read
from cosmos_reason.data.samples import Media, Sample, Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine import packing
from cosmos_reason.engine.encode import IGNORED, Encoder, collate
from cosmos_reason.engine.train.passes import Passes
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import document

CPU = models.Hardware(torch.device("cpu"), torch.float32, "")
# float32 sums in another order; a record that saw another one is off by far more.
LOSS, GRADIENT = 1e-5, 1e-4


@given(st.lists(st.integers(1, 60)), st.integers(1, 100))
def test_every_record_is_in_one_pass_and_no_pass_of_several_is_too_long(lengths, budget):
    passes = packing.plan(lengths, budget)
    assert sorted(index for chosen in passes for index in chosen) == list(range(len(lengths)))
    for chosen in passes:
        assert len(chosen) == 1 or sum(lengths[index] for index in chosen) <= budget
    fuller = [sum(lengths[index] for index in chosen) for chosen in passes]
    assert all(one + other > budget for one, other in itertools.pairwise(fuller))


@pytest.fixture(scope="module", params=["tiny_model", "tiny_reason1"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def encoded(folder, dataset, tmp_path_factory):
    """A text, an image, and clips of three sizes, one of them with an image and one as long as
    another."""
    from PIL import Image

    picture = tmp_path_factory.mktemp("pictures") / "still.png"
    Image.new("RGB", (120, 90), (200, 30, 0)).save(picture)
    still = Media("image", str(picture))
    records = read(dataset / "train" / "annotations.json")[0]
    turns = (Turn("user", "Compare."), Turn("assistant", "left"))
    mixed = Sample(0, "mixed", turns, (records[1].media[0], still), None)
    asked = [
        (mixed, 4, 64),
        (Sample(0, "text", turns, (), None), 4, 64),
        (records[0], 8, 96),
        (Sample(0, "image", turns, (still,), None), 4, 64),
        (records[3], 2, 128),
        (records[0], 8, 96),
    ]
    tokenizer = models.load_tokenizer(folder)
    made = []
    for sample, frames, width in asked:
        options = VisionOptions(nframes=frames, resized_height=64, resized_width=width)
        encoder = Encoder(tokenizer, folder, str(dataset / "train"), options, 1000)
        made.append(encoder.encode_training(sample, ""))
    return made


def loss_and_gradients(network, batches):
    network.zero_grad()
    total = 0.0
    for batch in batches:
        labels = batch.pop("labels")[:, 1:]
        hidden = network.model(**batch, use_cache=False).last_hidden_state[:, :-1]
        logits = network.lm_head(hidden[labels != IGNORED])
        loss = F.cross_entropy(logits, labels[labels != IGNORED], reduction="sum")
        loss.backward()
        total += loss.item()
    pairs = network.named_parameters()
    return total, {name: one.grad.clone() for name, one in pairs if one.grad is not None}


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [2, 5], [2]])
def test_packed_records_have_the_loss_and_gradients_that_they_have_alone(folder, encoded, chosen):
    """Alone: as transformers computes them, Qwen3-VL at the positions that it counts itself."""
    together = [encoded[index] for index in chosen]
    network = models.load_model(folder, torch.float32, CPU.device)
    alone = []
    for sample in together:
        if not hasattr(network.config.vision_config, "tokens_per_second"):
            sample = {key: value for key, value in sample.items() if key != "position_ids"}
        alone.append(collate([sample], 0, "right"))
    expected, gradients = loss_and_gradients(network, alone)
    packing.attend_within_records(network)
    total, packed = loss_and_gradients(network, [packing.pack(together)])
    assert total == pytest.approx(expected, rel=LOSS)
    assert packed.keys() == gradients.keys()
    largest = max(gradient.norm() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (packed[name] - gradient).norm() <= GRADIENT * (gradient.norm() + largest / 1000), (
            name
        )


def test_no_record_foretells_the_next(encoded):
    spoken = encoded[1] | {"labels": encoded[1]["input_ids"]}
    labels = packing.pack([spoken, spoken])["labels"][0]
    first = len(spoken["labels"])
    assert labels[0] == labels[first] == IGNORED
    assert (labels != IGNORED).sum() == 2 * (first - 1)


@pytest.fixture
def passes(tiny_model):
    """Passes of the tiny model, with the memory of an 8B model on some GPU."""
    spec = document.with_defaults("train", document.template("train"))
    network = models.load_model(tiny_model, torch.float32, CPU.device)
    network.gradient_checkpointing_enable({"use_reentrant": False})
    made = Passes(network, spec, tiny_model, CPU)
    geometry = gpu_memory.geometry("nvidia/Cosmos-Reason2-8B")
    made.plan = gpu_memory.Plan(geometry, 0, 0, 0, lora_rank=8, sharded_engine=False)
    made.decoder = [torch.nn.Identity() for _ in range(geometry.layers)]
    return made


def recomputed(passes, tokens):
    ids = torch.zeros(tokens, dtype=torch.long)
    sample = {"input_ids": ids, "mm_token_type_ids": ids, "labels": ids + IGNORED}
    passes.prepare([sample], is_alone=False)
    flags = [layer.gradient_checkpointing for layer in passes.decoder]
    assert flags == sorted(flags, reverse=True)
    return sum(flags)


def test_layers_recompute_as_far_as_the_memory_of_a_pass_needs_it(passes):
    passes.limit = 71
    counts = [recomputed(passes, tokens) for tokens in (1000, 8000, 12000, 20000, 200_000)]
    assert counts[:2] == [0, 0] and counts[-1] == len(passes.decoder)
    assert 0 < counts[2] < counts[3] < counts[4]
    passes.recomputed = 3
    assert recomputed(passes, 1000) == recomputed(passes, 200_000) == 3


@pytest.mark.parametrize(
    ("limit", "tokens", "why"),
    [(71, 8192, "nothing recomputed"), (22, 4096, "layers recomputed"), (5, 1024, "the least")],
)
def test_the_tokens_of_a_pass_follow_from_the_memory_and_are_told(passes, limit, tokens, why):
    passes.limit = limit
    assert passes._choose_tokens(None)[0] == tokens
    assert why in passes._choose_tokens(None)[1]
    assert passes._choose_tokens(70) == (70, "asked for by the spec")


def test_layers_that_cannot_be_compiled_run_as_they_are_with_a_warning(passes, capsys):
    def fail():
        assert all(layer._compiled_call_impl for layer in passes.layers)
        raise RuntimeError("no C compiler\nTraceback")

    passes.compile_where_it_pays(10.0, fail)
    assert "not compiled (about 10 s of training to come)" in capsys.readouterr().err
    passes.compiles = True
    passes.compile_where_it_pays(10.0, fail)
    assert "could not be compiled: no C compiler\n" in capsys.readouterr().err
    assert not any(layer._compiled_call_impl for layer in passes.layers)
