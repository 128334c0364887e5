"""What a module of a family says: `Family`, `Geometry` for the widths of one of its models, and
`Layout` for one that is published otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Channels = tuple[float, float, float]
Shapes = dict[str, tuple[int, ...]]
MOST_LAYERS = 1000
LARGEST_SIZE = 1 << 20


@dataclass(frozen=True, eq=False)
class Family:
    """An architecture. `title` is its name for people; `model_class`, `processor_class` and
    `decoder_layer` are names in transformers, `words` are parts of the names of its models.
    `elsewhere`: NVIDIA's engine for it, where that is none that we drive.
    `own_in_cosmos_rl`: cosmos-rl has a model of its own for it, and does not wrap the one of
    transformers.

    `patch`: pixels per side of a vision patch. `mean` and `std` of red, green and blue (0 to 1), as
    its pre-processor takes them off. `channels_last`: how the pixels of a patch are ordered.
    `frames_per_token`: frames that one vision token covers. `clip_pixels` and `image_pixels`: the
    least and the most that its processor lets a whole clip (frames x height x width) or an image
    have; None where it bounds each frame by its tokens, as qwen-vl-utils does (media/sampling.py).
    `defaults`: frames, pixels and length of a training where nobody says any.

    `writes_times`: how the model learns when a frame was. True: each pair of frames is a block of
    its own, behind a text `<T seconds>`, and the model counts positions itself. False: a clip is
    one block, and the positions of its tokens count its seconds (`Encoder.positions`); then
    `positions_per_second` holds where a config does not say it.

    `default_system`: tokens that the chat template writes where there is no system turn.
    `tags_answers`: asked to reason, it puts its answer between <answer> tags, else right after
    </think>. `guide_pixels`: of a frame, which the dataset script of its guide takes where a spec
    says nothing; 0 where the processor decides. `opens_thought`: the chat template begins an answer
    with <think>, or with an empty thought where none is asked for (`enable_thinking`).

    `text_linears` and `vision_linears`: path of a part below `model.` -> the linear layers there,
    all of which can have an adapter; the path of a vision block begins with `vision_block`.
    `names_repeat`: the tower has layers of the same names, and a target without a path means those
    of the language model. `features`: what of the tower's output is the same whenever the tower is
    frozen. `saved_by_class`: transformers saves it under the names that it is stored under.

    `expected_tensors` lists the tensors that its class loads, name -> shape, under the names that
    its checkpoints are stored under, from a config. It raises KeyError for a partial config,
    ValueError for one without sense. `stored_name` gives such a name for one of the class, and
    `class_name` the other way round.
    `geometry` reads the widths from a config; it raises the same.
    """

    model_type: str
    title: str
    model_class: str
    processor_class: str
    decoder_layer: str
    words: tuple[str, ...]
    own_in_cosmos_rl: bool
    patch: int
    mean: Channels
    std: Channels
    writes_times: bool
    text_linears: Mapping[str, tuple[str, ...]]
    vision_linears: Mapping[str, tuple[str, ...]]
    vision_block: str
    expected_tensors: Callable[[Mapping], Shapes]
    stored_name: Callable[[str], str]
    class_name: Callable[[str], str]
    geometry: Callable[[Mapping], Geometry]
    positions_per_second: int = 0
    default_system: int = 0
    tags_answers: bool = False
    guide_pixels: int = 0
    channels_last: bool = False
    frames_per_token: int = 2
    clip_pixels: tuple[int, int] | None = None
    image_pixels: tuple[int, int] | None = None
    opens_thought: bool = False
    names_repeat: bool = False
    saved_by_class: bool = True
    features: str = "pooler_output"
    defaults: Mapping[str, int] | None = None
    elsewhere: str = ""

    def has_target(self, entry: str, layer: str) -> bool:
        """Return whether an entry of LoRA's target_modules means a layer: it is part of its name.
        Where names repeat, one without the tower's path is of the language model."""
        if entry not in layer:
            return False
        is_of_tower = not layer.startswith(("model.language_model.", "lm_head"))
        names_tower = any(part in entry for part in ("visual", "projector"))
        return not (self.names_repeat and is_of_tower) or names_tower

    def meant(self, pattern: str, names: Iterable[str]) -> set[str]:
        """Return the names of parameters, as the class has them, that a regular expression is in;
        where it is in none, those that it is in as a checkpoint has them."""

        def stored(name: str) -> str:
            layer, lora, matrix = name.partition(".lora_")
            if not lora:
                return self.stored_name(name)
            return self.stored_name(f"{layer}.weight").removesuffix(".weight") + lora + matrix

        found = {name for name in names if re.search(pattern, name)}
        return found or {name for name in names if re.search(pattern, stored(name))}

    @property
    def token_pixels(self) -> int:
        """Return the pixels of a clip, over its frames, that one vision token covers: four patches
        of each of its frames."""
        return 4 * self.patch**2 * self.frames_per_token

    @property
    def linear_layers(self) -> list[str]:
        """Return the names of all linear layers; of layers in a list the first stands for all."""
        return ["lm_head", *self.decoder_layers, *_names(self.vision_linears)]

    @property
    def decoder_layers(self) -> list[str]:
        """Return the names of the linear layers of a decoder layer."""
        return _names(self.text_linears)

    @property
    def block_layers(self) -> list[str]:
        """Return the names of the linear layers of a vision block."""
        names = _names(self.vision_linears)
        return [name for name in names if name.startswith(f"model.{self.vision_block}")]


def _names(tables: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"model.{path}.{name}" for path, names in tables.items() for name in names]


@dataclass(frozen=True)
class Geometry:
    """Widths of a model of a family. `mergers`: with those of deepstack; `merger_inner`: what is
    between the two layers of one, where that is not as wide as its inputs."""

    family: Family
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    vision_depth: int
    vision_hidden: int
    vision_inner: int
    mergers: int = 4
    merger_inner: int | None = None

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Return (in, out) of the linear layers of one language layer, by name."""
        (queries, *keys_values, output), (*inwards, outwards) = self.family.text_linears.values()
        return {
            queries: (self.hidden, self.queries),
            **dict.fromkeys(keys_values, (self.hidden, self.keys)),
            output: (self.queries, self.hidden),
            **dict.fromkeys(inwards, (self.hidden, self.inner)),
            outwards: (self.inner, self.hidden),
        }

    @property
    def vision_matrices(self) -> int:
        """Return how many linear layers a vision MLP has."""
        return sum(".mlp." in name for name in self.family.block_layers)

    @property
    def layer_parameters(self) -> int:
        return sum(wide * high for wide, high in self.linears.values())

    @property
    def table(self) -> int:
        """Return parameters of the embedding, and again of the output head."""
        return self.vocabulary * self.hidden

    @property
    def merged(self) -> int:
        """Return inputs of a vision merger."""
        return 4 * self.vision_hidden

    @property
    def vision_parameters(self) -> int:
        block = 4 * self.vision_hidden**2
        block += self.vision_matrices * self.vision_hidden * self.vision_inner
        inner = self.merger_inner or self.merged
        return self.vision_depth * block + self.mergers * inner * (self.merged + self.hidden)

    @property
    def vision_adapted(self) -> int:
        """Return inputs and outputs of all linear layers of the vision tower."""
        attention = len(self.family.block_layers) - self.vision_matrices
        block = (attention + 4) * self.vision_hidden
        block += self.vision_matrices * (self.vision_hidden + self.vision_inner)
        inner = self.merger_inner or self.merged
        return self.vision_depth * block + self.mergers * (self.merged + 2 * inner + self.hidden)

    @property
    def other_parameters(self) -> int:
        """Return how many parameters belong to no decoder layer."""
        return self.table * (1 if self.tied else 2) + self.vision_parameters

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.other_parameters

    @property
    def layer_activations(self) -> int:
        """Return elements per token that one language layer makes."""
        mlp = len(self.linears) - 4  # its layers; those of attention are four
        return 2 * self.hidden + 2 * self.queries + 2 * self.keys + mlp * self.inner

    @property
    def vision_activations(self) -> int:
        """Return elements per patch that one vision layer makes."""
        return 6 * self.vision_hidden + self.vision_matrices * self.vision_inner


@dataclass(frozen=True)
class Layout:
    """A published layout that becomes a model of `family` by renaming and leaving out tensors.

    `target_name` gives the name under which the family stores a tensor, None for one that is left
    out; it raises KeyError for a name that it does not know. `config` makes the family's config of
    the published one and of the dtype of the weights; it raises KeyError for one that lacks a key.
    `vision` begins the names of the vision tower in the family. `donors` names, by the width of the
    language model, what can supply what an export lacks, the smallest first; `suffix` is what a
    folder of the result is called by. A change of the rules has a new `version`.
    """

    model_type: str
    title: str
    family: Family
    version: int
    vision: str
    donors: Mapping[int, str]
    suffix: str
    target_name: Callable[[str], str | None]
    config: Callable[[Mapping, str], dict]


def sizes(table: Mapping, *keys: str) -> list[int]:
    """Return numbers of a config. Raises KeyError, or ValueError for one without sense."""
    for key in keys:
        most = MOST_LAYERS if key in ("depth", "num_hidden_layers") else LARGEST_SIZE
        if type(table[key]) is not int or not 0 < table[key] <= most:
            written = str(table[key])[:50]
            raise ValueError(f"{key} = {written!r}, expected a whole number from 1 to {most:,}")
    return [table[key] for key in keys]


def text_sizes(config: Mapping, text: Mapping) -> dict[str, int]:
    """Return the fields of a `Geometry` that the language model's part of a config says. Raises
    KeyError for a config without them."""
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return {
        "layers": text["num_hidden_layers"],
        "hidden": text["hidden_size"],
        "inner": text["intermediate_size"],
        "queries": text["num_attention_heads"] * head,
        "keys": text["num_key_value_heads"] * head,
        "vocabulary": text["vocab_size"],
        "tied": bool(config.get("tie_word_embeddings")),
    }
