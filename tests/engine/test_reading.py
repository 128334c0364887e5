"""What a training reads, and in which order."""

import os
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training import metrics, run, same, weights

from cosmos_reason.engine.encode import Encoder
from cosmos_reason.engine.train.ranks import Ranks
from cosmos_reason.engine.train.reading import Reader
from cosmos_reason.engine.train.schedule import Schedule


def spec_of(batch, workers=0, **validation):
    policy = {
        "dataloader_num_workers": workers,
        "dataloader_prefetch_factor": 2,
        "dataloader_shuffle": True,
        "dataloader_seed": 1,
    }
    saves = {"enable_checkpoint": True, "save_freq_in_epoch": 0, "save_freq": 4}
    when = {"enable": True, "val_before_train": True, "freq_in_epoch": 0, "freq": 3}
    return {
        "train": {"train_batch_per_replica": batch, "train_policy": policy, "ckpt": saves},
        "validation": when | validation,
    }


def read(schedule, ranks, first, records, validated, asked):
    """(step, what, numbers) in their order, as a trainer takes them."""
    own = ranks.share(range(asked))
    reader = Reader(
        schedule, ranks, first, Numbers(records), Numbers(validated), Numbers(asked), own
    )
    found = []

    def validate(step):
        found.append((step, "validation", [number for number, _ in reader.validation()]))
        found.append((step, "questions", [number for number, _ in reader.questions()]))

    if not first and schedule.validates(0):
        validate(0)
    for step in range(first + 1, schedule.total_steps + 1):
        batch = reader.batch()
        assert all(int(item["input_ids"]) == number for number, item in batch), (
            "numbered as they were read"
        )
        found.append((step, "training", [number for number, _ in batch]))
        if schedule.validates(step):
            validate(step)
    with pytest.raises(StopIteration):
        reader.batch()
    reader.close()
    return found


class Numbers:
    """Item n is an input of the value n."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return {"input_ids": torch.tensor([number])}


@given(
    st.integers(1, 20), st.integers(1, 6), st.integers(1, 3), st.integers(0, 9), st.integers(0, 5)
)
def test_ranks_read_each_batch_and_each_validation_once_from_any_step(
    records, batch, world, validated, asked
):
    size = batch * world
    per_epoch = -(-records // size)
    schedule = Schedule(spec_of(batch), per_epoch, 2 * per_epoch)
    ranks = [Ranks(rank, world) for rank in range(world)]
    reads = [read(schedule, one, 0, records, validated, asked) for one in ranks]
    steps = list(schedule.batches(records, world, 0))
    assert sorted(chain(*steps[:per_epoch])) == list(range(records))
    everything = {"validation": range(validated), "questions": range(asked)}
    for parts in zip(*reads, strict=True):
        assert len({(step, kind) for step, kind, _ in parts}) == 1
        step, kind, _ = parts[0]
        taken = sorted(number for _, _, numbers in parts for number in numbers)
        assert taken == sorted(everything.get(kind, steps[step - 1]))
    for first in range(schedule.total_steps):
        later = read(schedule, ranks[0], first, records, validated, asked)
        assert later == [part for part in reads[0] if part[0] > first or not first]


def test_validations_are_where_the_state_is_saved_and_where_they_are_due():
    schedule = Schedule(spec_of(1), 5, 10)
    assert [step for step in range(11) if schedule.validates(step)] == [0, 3, 4, 6, 8, 9, 10]
    assert [step for step in range(11) if schedule.saves(step)] == [4, 8, 10]
    assert [schedule.epoch(step) for step in (1, 5, 6, 10)] == [1, 1, 2, 2]
    without = Schedule(spec_of(1, enable=False), 5, 10)
    assert not any(without.validates(step) for step in range(11))


def test_other_processes_read_validation_clips_and_questions_and_nothing_changes(
    train_spec, tmp_path, monkeypatch
):
    readers = tmp_path / "readers"
    for name in ("encode_training", "encode_prompt"):
        monkeypatch.setattr(Encoder, name, noting(name, getattr(Encoder, name), readers))
    ways = {
        "custom__transformers_engine__validate_answers": 5,
        "validation__val_before_train": True,
    }
    told = []
    for workers in (0, 2):
        readers.unlink(missing_ok=True)
        name = f"with-{workers}"
        loaders = {"train__train_policy__dataloader_num_workers": workers}
        run(train_spec, train__timestamp=name, **loaders, **ways)
        noted = {tuple(line.split()) for line in readers.read_text().splitlines()}
        assert {called for called, _ in noted} == {"encode_training", "encode_prompt"}
        own = {process == str(os.getpid()) for _, process in noted}
        assert own == {workers == 0}
        told.append(numbers_of(tmp_path / "out" / name))
    assert told[0] == told[1]
    assert same(*(weights(tmp_path / "out" / name) for name in ("with-0", "with-2")))


def noting(name, call, path):
    def noted(*args):
        with open(path, "a") as log:
            log.write(f"{name} {os.getpid()}\n")
        return call(*args)

    return noted


def numbers_of(run_dir):
    """All that is no time."""
    timed = ("time", "train/step_seconds", "train/waiting_seconds", "train/tokens_per_second")
    return [{key: line[key] for key in line if key not in timed} for line in metrics(run_dir)]
