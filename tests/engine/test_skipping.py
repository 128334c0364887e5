"""Records whose media cannot be read while a training runs: left out, counted, named, bounded."""

import shutil

import pytest
from training import course, metrics, run, same, weights

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import left_out, run_outputs

DATA = {"train": "custom__train_dataset", "eval": "custom__val_dataset"}
ANSWERS = {"custom__transformers_engine__validate_answers": 100}
LOST = "ENGINE-RECORDS-LEFT-OUT"
# With other processes that read it takes seconds.
WORKERS = [0, pytest.param(2, marks=pytest.mark.integration)]


@pytest.fixture
def own_data(dataset, tmp_path):
    """Copies a split; returns the change of a spec that takes it, and its clips."""

    def copied(split):
        folder = shutil.copytree(dataset / split, tmp_path / split)
        table = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
        return {DATA[split]: table}, sorted((folder / "videos").iterdir())

    return copied


# -- training --------------------------------------------------------------------------------------


def test_a_training_clip_that_is_lost_is_left_out_named_and_counted(
    train_spec, own_data, tmp_path, capsys
):
    data, clips = own_data("train")
    clips[0].unlink()
    # Three epochs come upon the clip three times, in three records each.
    run(train_spec, train__max_num_steps=18, train__epoch=3, **data)
    told = capsys.readouterr().err
    assert told.count(f"{LOST} {clips[0]}: ") == 1
    assert told.count("warning: 3 of 36 training records were left out") == 1
    run_dir = tmp_path / "out" / "run"
    counts = [line["train/skipped_records"] for line in metrics(run_dir, "epoch")]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 3)
    assert left_out.counts(run_dir) == {"training": (3, 36), "validation": (0, 12)}
    entries = files.read_json(run_dir / left_out.FILE)["training"]["left_out"]
    assert {entry["where"] for entry in entries} == {str(clips[0])}
    assert {entry["check"] for entry in entries} == {"DATA-MEDIA-MISSING"}


def test_a_resumed_run_keeps_the_count_and_forgets_what_its_steps_read_again(
    train_spec, own_data, tmp_path
):
    data, clips = own_data("train")
    unshuffled = {"train__train_policy__dataloader_shuffle": False}
    lost = tmp_path / "lost.mp4"
    clips[0].rename(lost)  # of the first three records
    run(train_spec, **data, **unshuffled)
    lost.rename(clips[0])
    run_dir = tmp_path / "out" / "run"
    shutil.rmtree(run_dir / "checkpoints" / "step_4")
    run(train_spec, train__resume=True, train__timestamp="again", **data, **unshuffled)
    again = tmp_path / "out" / "again"
    assert [line["train/skipped_records"] for line in metrics(again, "epoch")] == [3, 3]
    assert left_out.counts(again)["training"] == left_out.counts(run_dir)["training"] == (3, 36)
    state = run_dir / "checkpoints" / "step_2" / "policy" / run_outputs.TRAINER_STATE
    record = files.read_json(state)
    record["left_out"]["training"] = []  # as if step 4 had lost them
    files.write_json(state, record)
    shutil.rmtree(again)
    run(train_spec, train__resume=True, train__timestamp="run", **data, **unshuffled)
    assert not (run_dir / left_out.FILE).exists()
    assert metrics(run_dir, "epoch")[-1]["train/skipped_records"] == 0


def test_a_step_of_which_nothing_can_be_read_changes_nothing(train_spec, own_data, tmp_path):
    data, clips = own_data("train")
    clips[0].write_bytes(clips[0].read_bytes()[:200])
    alone = {"train__train_batch_per_replica": 1, "train__train_policy__dataloader_shuffle": False}
    short = {"train__max_num_steps": 2, "train__ckpt__save_freq": 1, "validation__enable": False}
    run(train_spec, **data, **alone, **short)
    run_dir = tmp_path / "out" / "run"
    assert [line.get("train/loss") for line in metrics(run_dir, "epoch")] == [None, None]
    first, second = weights(run_dir, "step_1"), weights(run_dir, "step_2")
    assert same(first, second)


@pytest.mark.parametrize("workers", WORKERS)
def test_more_lost_records_than_may_be_end_a_training_that_can_be_resumed(
    train_spec, own_data, tmp_path, workers
):
    ways = {
        "train__train_policy__dataloader_shuffle": False,
        "train__train_policy__dataloader_num_workers": workers,
        "train__ckpt__save_freq": 4,
    }
    run(train_spec, train__output_dir=str(tmp_path / "whole"), **ways)
    data, clips = own_data("train")
    whole = [clip.read_bytes() for clip in clips]
    for clip in clips[6:]:  # two of them are in the fourth step
        clip.write_bytes(b"")
    with pytest.raises(Failure, match="DATA-MEDIA-BREAKING") as caught:
        run(train_spec, train__output_dir=str(tmp_path / "out"), **data, **ways)
    ids = [finding.id for finding in caught.value.findings]
    assert ids == ["DATA-MEDIA-BREAKING", *["DATA-MEDIA-EMPTY"] * 2, "ENGINE-MEDIA-LOST"]
    assert "ended after step 3 of 4; its state is saved" in caught.value.findings[-1].message
    assert caught.value.exit_code == 3
    for clip, content in zip(clips, whole, strict=True):
        clip.write_bytes(content)
    run(train_spec, train__resume=True)
    expected, resumed = (weights(tmp_path / name / "run") for name in ("whole", "out"))
    assert same(expected, resumed)


# -- validation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_a_validation_clip_that_is_lost_is_left_out_of_losses_and_answers(
    train_spec, own_data, tmp_path, capsys, workers
):
    data, clips = own_data("eval")
    records = files.read_json(data[DATA["eval"]]["annotation_path"])
    kept = [one for one in records if one["video"] != f"videos/{clips[1].name}"]
    assert len(kept) == len(records) - 3 == 9
    files.write_json(tmp_path / "kept.json", kept)
    fewer = {DATA["eval"]: data[DATA["eval"]] | {"annotation_path": str(tmp_path / "kept.json")}}
    ways = {"train__train_policy__dataloader_num_workers": workers} | ANSWERS
    run(train_spec, train__timestamp="fewer", **fewer, **ways)
    clips[1].unlink()
    capsys.readouterr()
    run(train_spec, train__timestamp="run", **data, **ways)
    told = capsys.readouterr().err
    assert told.count(LOST) == told.count(f"{LOST} {clips[1]}: ") == 1
    assert "do not compare them" in told
    without, run_dir = tmp_path / "out" / "fewer", tmp_path / "out" / "run"
    assert course(run_dir, "val/skipped_records") == [3, 3]
    assert course(run_dir, "val/answers") == [9, 9]
    for key in ("val/avg_loss", "val/tokens", "val/accuracy", "val/answers"):
        assert course(run_dir, key) == pytest.approx(course(without, key), rel=1e-6), key
    assert same(weights(without), weights(run_dir))


def test_a_validation_record_that_was_lost_once_stays_out_of_the_run(
    train_spec, own_data, tmp_path
):
    data, clips = own_data("eval")
    run(train_spec, train__timestamp="fewer", **data)
    lost = tmp_path / "lost.mp4"
    clips[1].rename(lost)
    run(train_spec, train__timestamp="run", train__output_dir=str(tmp_path / "second"), **data)
    lost.rename(clips[1])
    shutil.rmtree(tmp_path / "second" / "run" / "checkpoints" / "step_4")
    run(train_spec, train__resume=True, train__timestamp="again", **data)
    (last,) = metrics(tmp_path / "second" / "again", "val/avg_loss")
    (_, before) = metrics(tmp_path / "second" / "run", "val/avg_loss")
    assert last["val/skipped_records"] == 3 and last["val/tokens"] == before["val/tokens"]
    assert last["val/avg_loss"] == before["val/avg_loss"]


def test_one_file_of_most_records_is_too_much_to_leave_out(train_spec, own_data, tmp_path):
    data, clips = own_data("train")
    table = data[DATA["train"]]
    records = files.read_json(table["annotation_path"])
    for record in records[:12]:
        record["video"] = f"videos/{clips[0].name}"
    files.write_json(tmp_path / "few.json", records)
    data = {DATA["train"]: table | {"annotation_path": str(tmp_path / "few.json")}}
    clips[0].unlink()
    with pytest.raises(Failure, match=r"DATA-MEDIA-BREAKING") as caught:
        run(train_spec, train__max_num_steps=6, train__epoch=1, **data)
    assert "or 9 of one file" in caught.value.findings[0].message


def test_validation_data_that_cannot_be_read_cost_no_weights(train_spec, own_data, tmp_path):
    data, clips = own_data("eval")
    for clip in clips:
        clip.write_bytes(b"")
    with pytest.raises(Failure, match=r"DATA-MEDIA-BREAKING.*DATA-MEDIA-EMPTY") as caught:
        run(train_spec, **data)
    assert "12 of 12 records" in caught.value.findings[0].message
    assert {c.complete for c in run_outputs.find(tmp_path / "out")} == {True}
    assert (tmp_path / "out" / "run" / "safetensors" / "step_2").is_dir()


def test_a_validation_between_saves_that_fails_saves_the_state(train_spec, own_data, tmp_path):
    data, clips = own_data("eval")
    for clip in clips[1:]:
        clip.unlink()
    with pytest.raises(Failure, match=r"ENGINE-MEDIA-LOST.*its state is saved"):
        run(train_spec, validation__freq=1, train__ckpt__save_freq=4, **data)
    (saved,) = run_outputs.find(tmp_path / "out")
    assert (saved.kind, saved.step, saved.complete) == ("resume", "step_1", True)
