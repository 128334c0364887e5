"""Whether what stands beside the weights of a model speaks of the same model: tokenizer, chat
template, processors.

No loader compares them with the config: with the tokenizer of another model a clip's places are
taken for words, with the template of a text model a clip is never shown, and both train and answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import Finding, error, warning
from cosmos_reason.checkpoints import safetensors_files
from cosmos_reason.remote import model_names

TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
# Of a processor -> of the vision tower.
_SIZES = {
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
}
_MEDIA = ("image", "video")


def chat_template(homes: Sequence[Path]) -> str | None:
    """Return the chat template of the first folder that has one, in any of the places where it may
    stand."""
    for home in homes:
        for name in TEMPLATES:
            path = home / name
            if path.suffix != ".json":
                written = files.read_text(path) if path.is_file() else None
            else:
                written = model_names.read_table(path).get("chat_template")
            if isinstance(written, str):
                return written
    return None


def check_folder(folder: Path, config: Mapping) -> list[Finding]:
    """Return what contradicts the config in a model folder whose files are there; nothing of an
    architecture that is not known here. Raises Failure for a file that is no JSON object."""
    if config["model_type"] not in FAMILIES:
        return []
    names = [name for name in (TOKENIZER, GENERATION, *PROCESSORS) if (folder / name).is_file()]
    tables = {folder / name: safetensors_files.read_object(folder / name) for name in names}
    return check(folder, config, tables, chat_template([folder]) or "")


def check(
    folder: Path, config: Mapping, tables: Mapping[Path, dict], template: str
) -> list[Finding]:
    """Return what the JSON files `tables` and the chat template say otherwise than the config."""
    found = []
    for path, table in tables.items():
        if path.name == TOKENIZER:
            ends = tables.get(path.with_name(GENERATION), {}).get("eos_token_id")
            ends = ends if isinstance(ends, list) else [ends]
            found += _check_tokenizer(path, config, table, folder, template, ends)
        elif path.name in PROCESSORS:
            found += _check_sizes(path, config, table)
    return found


def _check_tokenizer(
    path: Path, config: Mapping, tokenizer: dict, folder: Path, template: str, ends: list
) -> list[Finding]:
    try:
        words = {one["id"]: one["content"] for one in tokenizer.get("added_tokens") or ()}
        vocabulary = tokenizer["model"].get("vocab") or {}
        ids = [*words, *(vocabulary.values() if isinstance(vocabulary, dict) else ())]
        largest = max(ids, default=-1)
        are_texts = all(isinstance(word, str) for word in words.values())
        if any(type(one) is not int for one in ids) or not are_texts:
            raise TypeError("an id that is no number, or a word that is no text")
    except (KeyError, TypeError, AttributeError) as problem:
        message = f"it is not of the form that tokenizers writes: {problem!r}"
        return [error("CKPT-FILE-BAD", path, message)]
    found = []
    rows = (config.get("text_config") or config).get("vocab_size")
    if type(rows) is int and largest >= rows:
        message = f"got the token {largest:,}, and the model has {rows:,}: it is of another model"
        found.append(error("CKPT-TOKENIZER-OTHER", path, message))
    unwritten = {}
    for kind in _MEDIA:
        key = f"{kind}_token_id"
        number = config.get(key)
        word = words.get(number) if type(number) is int else None
        others = [other for other in _MEDIA if other != kind and other in (word or "")]
        if word is None or others:
            message = (
                f"the config has {number} as {key}, and here that is {word or 'no special token'}: "
                "the tokenizer is of another model, or the number is wrong"
            )
            found.append(error("CKPT-TOKENIZER-OTHER", path, message))
        elif word not in template:
            unwritten[kind] = word
    # It may put the word of a medium together, or be for the other medium alone.
    ends_of_words = [word.partition(kind)[2].rstrip("|>") for kind, word in unwritten.items()]
    is_blind = len(unwritten) == len(_MEDIA) and not any(end in template for end in ends_of_words)
    for kind, word in unwritten.items():
        message = (
            f"{word} is not in the text of the chat template: unless it is put together there, no "
            f"{kind} is shown, and the template of the base model is the one to copy"
        )
        say = error if is_blind else warning
        found.append(say("CKPT-TEMPLATE-BLIND", folder, message))
    plain = [end for end in ends if end is not None and end not in [*words]]
    if plain:
        message = (
            f"{GENERATION} ends answers at {plain}, no special token here: they would not end, or "
            "in the middle"
        )
        found.append(error("CKPT-TOKENIZER-OTHER", path, message))
    return found


def _check_sizes(path: Path, config: Mapping, processor: dict) -> list[Finding]:
    vision = config.get("vision_config") or {}
    wrong = {}  # the newer form has its numbers at the top and nested, or in one of the two
    nested = [value for value in processor.values() if isinstance(value, dict)]
    for table in (processor, *nested):
        for key, of_tower in _SIZES.items():
            own, wanted = table.get(key), vision.get(of_tower)
            if type(own) is int and type(wanted) is int and own != wanted:
                wrong[key, own] = wanted
    found = []
    for (key, own), wanted in wrong.items():
        message = f"got {key} {own}, and the vision tower has {wanted}: it is of another model"
        found.append(error("CKPT-PROCESSOR-OTHER", path, message))
    return found
