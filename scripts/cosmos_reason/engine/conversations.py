"""Training records as cosmos-rl's packers take them: conversations of plain Python, whose media are
frames that our own sampler took.

An item is a list of {"role", "content"}. A medium in it is {"type": "video", "video": [pictures],
"seconds": [...], "sample_fps": rate} or {"type": "image", "image": picture}, of the size that the
model sees; `resized_height` and `resized_width` keep the package from resizing it again.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Sequence

from cosmos_reason.base.findings import (
    EXIT_BAD_INPUT,
    EXIT_OUTSIDE,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
    outside,
    say,
)
from cosmos_reason.data import annotations
from cosmos_reason.data.frames import Sampler, Vision, chat, with_system
from cosmos_reason.data.located import place
from cosmos_reason.data.samples import Question, Sample, responses
from cosmos_reason.data.turns import Turn
from cosmos_reason.media import sampling
from cosmos_reason.remote import s3

TRAINING = "train_dataset"  # the table of a spec
MOST_SKIPPED = 0.01  # of the records: media that broke since they were checked
KEPT_PROMPTS = 4  # of reinforcement learning; each holds the frames of its clips
NAMED = 3  # missing files that a message names


class Conversations:
    """A map-style dataset: item `index` is the whole conversation of sample `index`,
    decoded when it is asked for, in whatever process asks.

    A medium that cannot be read is named and counted, and the next sample stands in for its own;
    after more than MOST_SKIPPED of the samples a Failure ends the training. `name` is that of the
    data in the spec.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        sampler: Sampler,
        system_prompt: str = "",
        name: str = TRAINING,
    ):
        self.samples, self.sampler, self.system_prompt = samples, sampler, system_prompt
        self.name = name
        self.most_skipped = max(1, int(len(samples) * MOST_SKIPPED))
        # Shared, so that all workers of a loader count together, each sample once.
        self.skipped = multiprocessing.Array("b", len(samples), lock=False)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> list[dict]:
        for offset in range(len(self)):
            place = (index + offset) % len(self)
            sample = self.places[place]
            if self.skipped[sample]:
                continue
            try:
                return self.item(place)
            except Failure as failure:
                if failure.exit_code == EXIT_OUTSIDE:  # the next file lies on the same server
                    raise
                self.skip(sample, failure.findings[0])
        raise IndexError(index)

    @functools.cached_property
    def places(self) -> Sequence[int]:
        """Return the sample of each item."""
        return range(len(self.samples))

    def item(self, index: int) -> list[dict]:
        """Raises Failure for a medium that cannot be sampled."""
        sample = self.samples[index]
        return self.shown(sample, sample.turns)

    def shown(self, sample: Sample, turns: Sequence[Turn]) -> list[dict]:
        """Return some of the turns of a sample with its media, as `item` does."""
        visions = [self.sampler.load(item) for item in sample.media]
        return conversation(with_system(turns, self.system_prompt), visions)

    def skip(self, index: int, problem: Finding) -> None:
        self.skipped[index] = 1
        count = sum(self.skipped)
        record = self.samples[index].id
        say(
            f"skipped record {record} of {self.name} ({count} of at most {self.most_skipped}, of "
            f"{len(self.samples)} in all): "
            f"{problem.id} {problem.where}: {problem.message}"
        )
        if count > self.most_skipped:
            message = (
                f"got {count} of {len(self.samples)} records whose media cannot be read, "
                f"expected at most {self.most_skipped}; the last was {record}"
            )
            raise outside("DATA-MEDIA-BREAKING", problem.where, message)


class Prompts(Conversations):
    """A map-style dataset of reinforcement learning: item `index` is question `index` with what was
    said before it, or the question that stands in for it where a medium cannot be read: the next
    one that can be, in every process alike, which is paid by its own answer (`asked`).

    Keep the newest KEPT_PROMPTS items: a policy asks for a prompt once per completion, one after
    the other, and cosmos_rl_patches.process_prompts_once knows its pictures again.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.kept: dict[int, list[dict]] = {}
        self.read: set[int] = set()  # samples that this process has decoded

    @functools.cached_property
    def questions(self) -> list[Question]:
        return [one for sample in self.samples for one in sample.questions()]

    @functools.cached_property
    def places(self) -> Sequence[int]:
        counts = [len(sample.questions()) for sample in self.samples]
        return [place for place, count in enumerate(counts) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.questions)

    def item(self, index: int) -> list[dict]:
        kept = self.kept  # replaced whole, never changed: another thread may read it
        if index in kept:
            return kept[index]
        question = self.questions[index]
        prompt = self.shown(question.sample, question.context)
        self.read.add(self.places[index])
        self.kept = dict([*kept.items()][1 - KEPT_PROMPTS :]) | {index: prompt}
        return prompt

    def asked(self, index: int) -> Question:
        """Return the question of which item `index` is the prompt."""
        for offset in range(len(self)):
            place = (index + offset) % len(self)
            if self.places[place] not in self.read:
                self[place]  # whether it can be decoded; if not, it is skipped from now on
            if not self.skipped[self.places[place]]:
                return self.questions[place]
        raise IndexError(index)


def conversation(turns: Sequence[Turn], visions: Sequence[Vision]) -> list[dict]:
    """Return the item of a whole conversation; media stand before the text of the first user
    turn."""
    return chat(turns, [medium(vision) for vision in visions])


def medium(vision: Vision) -> dict:
    """Return the part of a message that shows a medium."""
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in vision.frames]
    _, height, width, _ = vision.frames.shape
    size = {"resized_height": height, "resized_width": width}
    if vision.kind == "image":
        return {"type": "image", "image": pictures[0], **size}
    times = {"seconds": list(vision.seconds), "sample_fps": vision.rate}
    return {"type": "video", "video": pictures, **times, **size}


def training_samples(table: dict, where: str) -> list[Sample]:
    """Return the samples of a spec's data table (`annotation_path`, `response_mode`), with the
    texts to train on. Raises Failure, also for records that are no samples."""
    path = table.get("annotation_path")
    if not path:
        message = "got nothing, expected an annotation file"
        raise bad_input("ENGINE-NO-DATA", f"{where}.annotation_path", message)
    if s3.is_uri(path):
        _, path = annotations.fetch(path)
    samples, found = annotations.read(annotations.locate(path))
    if has_errors(found):
        raise Failure(found, EXIT_BAD_INPUT)
    return responses(samples, table.get("response_mode") or "answer")


def of_spec(spec: dict, name: str, kind: type[Conversations] = Conversations) -> Conversations:
    """Return the dataset of the table `custom.NAME` of a training spec. Raises Failure."""
    custom = spec.get("custom") or {}
    table = custom.get(name) or {}
    options = sampling.VisionOptions.from_table(custom.get("vision") or {})
    patch = sampling.patch_size(spec["policy"]["model_name_or_path"])
    root = table.get("media_root") or table.get("media_path") or ""
    sampler = Sampler(root, options, patch)
    samples = training_samples(table, f"custom.{name}")
    policy = spec["train"]["train_policy"]
    return kind(samples, sampler, policy.get("system_prompt") or "", name)


def missing_media(dataset: Conversations) -> list[Finding]:
    """Return an error when files that the samples name are not there, in one finding however
    many."""
    root = dataset.sampler.media_path
    if s3.is_uri(root):
        return []
    used = [item for sample in dataset.samples for item in sample.media]
    named = {name: item for item in used for name in item.names}
    paths = {name: place(root, name) for name in sorted(named) if not s3.is_uri(name)}
    missing = []
    for name, path in paths.items():
        is_there = path.exists() if named[name].may_be_folder else path.is_file()
        if not is_there:
            missing.append(str(path))
    if not missing:
        return []
    some = ", ".join(missing[:NAMED])
    message = f"got {len(missing)} of {len(paths)} files that are not there: {some}"
    return [error("DATA-MEDIA-MISSING", root or "media", message)]
