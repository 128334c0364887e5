"""The records that a quantization sees: some of the user's own, with the frames, the pixels and the
system prompt of the training."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.progress import bar
from cosmos_reason.data.samples import Sample
from cosmos_reason.engine import conversations
from cosmos_reason.engine.encode import Encoder, collate
from cosmos_reason.engine.samples import Inputs, Samples
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import quantizing

UNLIMITED = 1 << 30


class Records(Samples):
    """The samples of a training, without labels. Pixels are in the precision of the weights: the
    library holds those of all records."""

    def __getitem__(self, index: int) -> Inputs:
        """Return the record. Raises Failure."""
        encoded = super().__getitem__(index)
        if isinstance(encoded, Failure):
            raise encoded
        encoded.pop("labels")
        if self.encoder.family.writes_times:
            encoded.pop("position_ids")  # the model counts them itself, as when it is asked
        for name, value in encoded.items():
            if value.is_floating_point():
                encoded[name] = value.to(torch.bfloat16)
        return encoded

    def __deepcopy__(self, memo) -> Records:
        """Return itself: the library copies its arguments, and caches with locks cannot be
        copied."""
        return self

    def loader(self) -> torch.utils.data.DataLoader:
        """Return batches of one record: padding would count in the scales."""
        pad_id = self.encoder.tokenizer.pad_token_id
        return torch.utils.data.DataLoader(
            self, batch_size=1, collate_fn=lambda items: collate(items, pad_id, "right")
        )


def records(spec: dict, folder: Path, tokenizer) -> tuple[Records, list[int], list[Finding]]:
    """Return the records that a complete quantize spec asks for, the tokens of each, and what is to
    be said. Every one is encoded once before any work. Raises Failure."""
    found: list[Finding] = []
    samples = conversations.training_samples(spec["dataset"], "dataset")
    samples = _of_one_kind(samples, found)
    samples = _chosen(samples, spec, found)
    encoder = Encoder(
        tokenizer,
        folder,
        spec["dataset"]["media_dir"],
        VisionOptions.from_table(spec["vision"], "vision"),
        UNLIMITED,
    )
    chosen = Records(samples, encoder, spec["dataset"]["system_prompt"])
    lengths = _lengths(chosen, found)
    found += _too_long(samples, lengths, spec["quantize"]["max_sequence_length"])
    return chosen, lengths, found


def _of_one_kind(samples: list[Sample], found: list[Finding]) -> list[Sample]:
    """Return the samples with the commonest kinds of media: the library follows one way through the
    model, and a clip takes another than an image or a text."""
    kinds = [tuple(sorted({item.kind for item in sample.media})) for sample in samples]
    counts = Counter(kinds)
    if len(counts) < 2:
        return samples
    commonest, count = counts.most_common(1)[0]
    words = " and ".join(commonest) or "text alone"
    message = (
        f"got {len(samples)} records of {len(counts)} kinds, expected one kind of media in all; "
        f"the {count} with {words} are used"
    )
    found.append(findings.warning("QUANT-KINDS", "dataset.annotation_path", message))
    return [sample for sample, kind in zip(samples, kinds, strict=True) if kind == commonest]


def _chosen(samples: list[Sample], spec: dict, found: list[Finding]) -> list[Sample]:
    """Return as many records as are asked for, drawn with the seed, in the order of the file."""
    asked = spec["quantize"]["num_calibration_samples"]
    if len(samples) <= asked:
        if len(samples) < asked:
            message = f"got {len(samples)} records, expected {asked}; all of them are used"
            fix = Fix(changes={quantizing.SAMPLES: len(samples)})
            found.append(findings.warning("QUANT-FEWER", quantizing.SAMPLES, message, fix))
        return samples
    indices = random.Random(spec["seed"]).sample(range(len(samples)), asked)
    return [samples[index] for index in sorted(indices)]


def _lengths(chosen: Records, found: list[Finding]) -> list[int]:
    """Return the tokens of every record; 0 where its media cannot be read, which is an error."""
    lengths = []
    with bar(len(chosen), "reading calibration records", unit="record") as shown:
        for index, sample in enumerate(chosen.samples):
            try:
                lengths.append(len(chosen[index]["input_ids"]))
            except Failure as failure:
                if failure.exit_code == findings.EXIT_OUTSIDE:
                    raise
                lengths.append(0)
                first = failure.findings[0]
                message = f"record {sample.id}: {first.message}"
                data = {"record_ids": [sample.id]}
                found.append(findings.error(first.id, first.where, message, first.fix, **data))
            shown.update(1)
    return lengths


def _too_long(samples: list[Sample], lengths: list[int], limit: int) -> list[Finding]:
    pairs = zip(samples, lengths, strict=True)
    names = [sample.id for sample, length in pairs if length > limit]
    if not names:
        return []
    longest = max(lengths)
    message = (
        f"got {len(names)} of {len(samples)} records longer than {limit} tokens "
        f"(the longest has {longest}); they are never cut"
    )
    fix = Fix(changes={quantizing.LENGTH: longest})
    record_ids = names[: findings.MAX_RECORD_IDS]
    return [
        findings.error(
            "QUANT-RECORD-LENGTH", quantizing.LENGTH, message, fix, record_ids=record_ids
        )
    ]
