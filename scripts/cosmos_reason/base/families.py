"""The architectures that are known here, and what differs between them: the one place for it.

`FAMILIES` maps the `model_type` of a config.json to a `Family`; `remote.model_names.known_family`
finds the one of a model. Code asks the family for a fact and never compares names of architectures.
Two facts are whole modules: the tensors of a complete checkpoint are listed by
`checkpoints/qwen3_vl.py` and `checkpoints/qwen2_5_vl.py`, chosen by `checkpoints/architectures.py`.
Which engine loads which architecture stands in skill_info.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Family:
    """`model_class` and `decoder_layer` are its names in transformers. `patch`: pixels per side
    of a vision patch.
    `mean` and `std` of red, green and blue (0 to 1), as its pre-processor takes them off.

    `writes_times`: how the model learns when a frame was. True: each pair of frames is a block of
    its own, behind a text `<T seconds>`, and the model counts positions itself. False: a clip is
    one block, and the positions of its tokens count its seconds (`Encoder.positions`); then
    `positions_per_second` holds where a config does not say it.

    `default_system`: tokens that the chat template writes where there is no system turn.
    `tags_answers`: asked to reason, it puts its answer between <answer> tags (Cosmos-Reason1), else
    right after </think> (Reason2 and later).
    """

    model_class: str
    decoder_layer: str
    patch: int
    mean: Channels
    std: Channels
    writes_times: bool
    positions_per_second: int = 0
    default_system: int = 0
    tags_answers: bool = False


FAMILIES = {
    "qwen3_vl": Family(
        model_class="Qwen3VLForConditionalGeneration",
        decoder_layer="Qwen3VLTextDecoderLayer",
        patch=16,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        writes_times=True,
    ),
    "qwen2_5_vl": Family(
        model_class="Qwen2_5_VLForConditionalGeneration",
        decoder_layer="Qwen2_5_VLDecoderLayer",
        patch=14,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        writes_times=False,
        positions_per_second=4,
        default_system=11,  # "You are a helpful assistant."
        tags_answers=True,
    ),
}
# Words in the name of a model whose folder is not here, and the architecture that they tell; the
# first that fits counts.
WORDS = {
    "qwen2.5": "qwen2_5_vl",
    "qwen2_5": "qwen2_5_vl",
    "reason1": "qwen2_5_vl",
    "qwen2-vl": "qwen2_vl",
    "cosmos3-edge": "cosmos3_edge",
}
# The architecture of a model whose name says nothing of it, and the words in names that mean it.
DEFAULT = "Qwen3-VL"
DEFAULT_WORDS = ("qwen3-vl", "qwen3_vl", "qwen3vl", "reason2", "cosmos3-nano", "cosmos3_nano")


def names_default(name: str) -> bool:
    """Whether the name of a model says that it is of the default architecture."""
    return any(word in name.lower() for word in DEFAULT_WORDS)


def by_name(name: str) -> str | None:
    """The architecture that the name of a model tells, None when it tells none."""
    for word, model_type in WORDS.items():
        if word in name.lower():
            return model_type
    return None
