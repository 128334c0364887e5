"""The evaluate action: every question exactly one row, whatever breaks, stops, or shares the
work."""

import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from evaluating import rows_of

from cosmos_reason.base import files
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation.run import run
from cosmos_reason.evaluation.saved_answers import Shard


@pytest.fixture
def asked(monkeypatch):
    """Sizes of the batches that reached the model."""
    sizes, generate = [], Responder.generate

    def counted(self, encoded):
        sizes.append(len(encoded))
        return generate(self, encoded)

    monkeypatch.setattr(Responder, "generate", counted)
    return sizes


def test_a_row_names_the_key_of_the_spec(evaluate_spec, tmp_path):
    evaluate_spec["vision"] = {"nframes": 4, "max_pixels": 4096}
    run(evaluate_spec, None, Responder(evaluate_spec))
    errors = {row["error"] for row in rows_of(tmp_path / "results")}
    assert all(" vision.max_pixels:" in error for error in errors), errors


def test_clips_in_an_archive_get_the_answers_of_clips_in_a_folder(
    evaluate_spec, tmp_path, monkeypatch
):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    run(evaluate_spec, None, Responder(evaluate_spec))
    archive = tmp_path / "videos.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "eval", ".")
    evaluate_spec["dataset"]["media_dir"] = str(archive)
    evaluate_spec["results_dir"] = str(tmp_path / "packed")
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert rows_of(tmp_path / "packed") == rows_of(tmp_path / "results")
    assert files.read_json(tmp_path / "packed" / "evaluation.json")["media_dir"] == str(archive)


def test_every_question_has_one_row_in_order_and_a_broken_clip_shifts_nothing(
    evaluate_spec, tmp_path
):
    run(evaluate_spec, None, Responder(evaluate_spec))
    whole = rows_of(tmp_path / "results")
    clip = tmp_path / "eval" / whole[4]["media"]
    good = clip.read_bytes()
    clip.write_bytes(good[:300])
    evaluate_spec["results_dir"] = str(tmp_path / "again")
    job = tmp_path / "evaluate-20260101-000000-abcdef"
    result = run(evaluate_spec, job, Responder(evaluate_spec))
    rows = rows_of(tmp_path / "again")
    assert files.read_json(tmp_path / "again" / "evaluation.json")["job_id"] == job.name
    assert [row["id"] for row in rows] == [row["id"] for row in whole]
    for row, before in zip(rows, whole, strict=True):
        if row["media"] == whole[4]["media"]:
            assert row["response"] is None and row["correct"] is None and clip.name in row["error"]
        else:
            assert row["response"] == before["response"] and row["error"] is None
    assert files.read_json(tmp_path / "again" / "evaluation.json")["questions"] == len(rows) == 12
    assert result["failed"] == 3


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_is_cut_when_the_tokens_run_out_before_it_ends(evaluate_spec, tmp_path, ends):
    """Counted over batches, and also when finished answers are taken over."""

    class Ending(Responder):
        def load(self):
            super().load()
            old, end = self.network.lm_head, self.tokenizer.eos_token_id
            head = torch.nn.Linear(old.in_features, old.out_features)
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
            head.bias.data[end if ends else end - 1] = 1.0  # always, or never, the likeliest
            self.network.lm_head = head

    evaluate_spec["evaluation"]["skip_saved"] = True
    cut = 0 if ends else 12
    for _ in range(2):
        assert run(evaluate_spec, None, Ending(evaluate_spec))["cut_short"] == cut
        assert files.read_json(tmp_path / "results" / "evaluation.json")["cut_short"] == cut
        assert sum(row["is_cut"] for row in rows_of(tmp_path / "results")) == cut


def test_the_model_is_loaded_once_however_often_it_answers_with_nothing(evaluate_spec, tmp_path):
    class Silent(Responder):
        loaded = 0

        def load(self):
            if self.network is not None:
                return
            super().load()
            self.loaded += 1
            head = torch.nn.Linear(self.network.lm_head.in_features, len(self.tokenizer))
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
            head.bias.data[self.tokenizer.eos_token_id] = 100.0
            self.network.lm_head = head

    evaluate_spec["generation"]["max_retries"] = 2
    who = Silent(evaluate_spec)
    assert run(evaluate_spec, None, who)["failed"] == 0
    rows = rows_of(tmp_path / "results")
    assert {(row["response"], row["attempts"]) for row in rows} == {("", 3)} and len(rows) == 12
    assert who.loaded == 1 and who.generation == evaluate_spec["generation"]


def test_questions_that_failed_are_asked_again_and_no_others(evaluate_spec, tmp_path, asked):
    clip = next((tmp_path / "eval" / "videos").iterdir())
    good = clip.read_bytes()
    clip.write_bytes(b"no video")
    assert run(evaluate_spec, None, Responder(evaluate_spec))["failed"] == 3
    before = sum(asked)
    clip.write_bytes(good)
    assert run(evaluate_spec, None, Responder(evaluate_spec))["failed"] == 0
    assert (before, sum(asked)) == (9, 12)
    assert not list((tmp_path / "results").glob(".rows*"))


def test_a_killed_evaluation_continues_and_other_settings_start_anew(
    evaluate_spec, tmp_path, asked
):
    class Killed(Responder):
        def answer(self, questions):
            if len(asked) == 1:
                raise KeyboardInterrupt
            return super().answer(questions)

    with pytest.raises(KeyboardInterrupt):
        run(evaluate_spec, None, Killed(evaluate_spec))
    assert not (tmp_path / "results" / "results.json").exists()
    partial = next((tmp_path / "results").glob(".rows*"))
    partial.write_bytes(partial.read_bytes()[:-9] + bytes(13))  # killed in the middle of a line
    # What a lack of memory asks for is no other evaluation.
    evaluate_spec["evaluation"]["batch_size"] = 4
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert asked == [5, 4, 4]
    assert len(rows_of(tmp_path / "results")) == 12
    evaluate_spec["generation"]["max_tokens"] = 3
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert sum(asked[3:]) == 12


def test_skip_saved_keeps_a_finished_run_and_only_of_the_same_spec(evaluate_spec, asked):
    for skips, expected in ((False, 12), (True, 12), (False, 24)):
        evaluate_spec["evaluation"]["skip_saved"] = skips
        run(evaluate_spec, None, Responder(evaluate_spec))
        assert sum(asked) == expected


def test_answers_about_annotations_that_were_changed_are_not_reused(evaluate_spec, asked):
    """A mended ground truth or question under the same id is asked and graded anew."""
    evaluate_spec["evaluation"]["skip_saved"] = True
    path = Path(evaluate_spec["dataset"]["annotation_path"])
    for change, expected in (("", 12), ("", 12), ("\n", 24)):
        path.write_text(path.read_text() + change)
        run(evaluate_spec, None, Responder(evaluate_spec))
        assert sum(asked) == expected


def test_shards_answer_their_part_and_the_last_one_merges_in_input_order(evaluate_spec, tmp_path):
    run(evaluate_spec, None, Responder(evaluate_spec))
    whole = rows_of(tmp_path / "results")
    shutil.rmtree(tmp_path / "results")
    ends = [
        run(evaluate_spec, None, Responder(evaluate_spec), Shard(number, 5))
        for number in (3, 0, 4, 1)
    ]
    assert {end["results"] for end in ends} == {None}
    assert not (tmp_path / "results" / "results.json").exists()
    run(evaluate_spec, None, Responder(evaluate_spec), Shard(2, 5))
    assert rows_of(tmp_path / "results") == whole
    names = {path.name for path in (tmp_path / "results").glob("*.jsonl")}
    # Never two writers.
    assert names == {"metrics.jsonl", *(f"metrics-{number}-5.jsonl" for number in range(2, 6))}


def test_a_shard_whose_rows_were_merged_meanwhile_ends_well(evaluate_spec, tmp_path):
    """The other shard finishes between this one's last answer and its look at what there is."""

    class Slow(Responder):
        def answers(self, questions):
            yield from super().answers(questions)
            run(evaluate_spec, None, Responder(evaluate_spec), Shard(1, 2))

    end = run(evaluate_spec, None, Slow(evaluate_spec), Shard(0, 2))
    assert (end["rows"], end["failed"]) == (6, 0)
    assert end["results"] and len(rows_of(tmp_path / "results")) == 12


def test_another_number_of_shards_continues_a_stopped_evaluation(evaluate_spec, tmp_path, asked):
    run(evaluate_spec, None, Responder(evaluate_spec), Shard(0, 3))
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert sum(asked) == 12
    assert len({row["id"] for row in rows_of(tmp_path / "results")}) == 12


def test_a_shard_without_a_question_of_its_own_left_is_not_the_whole(evaluate_spec, tmp_path):
    """Half of the questions are answered; a quarter of all that lies within that half has nothing
    to ask, and there is nothing to merge yet."""
    run(evaluate_spec, None, Responder(evaluate_spec), Shard(0, 2))
    end = run(evaluate_spec, None, Responder(evaluate_spec), Shard(0, 4))
    assert (end["rows"], end["failed"], end["results"]) == (3, 0, None)
    assert not (tmp_path / "results" / "results.json").exists()


def test_limit_takes_the_first_questions_and_tags_come_along(evaluate_spec, tmp_path):
    path = tmp_path / "eval" / "annotations.json"
    records = files.read_json(path)
    more = {"tags": ["night", 3], "groups": ["camera=3"]}
    files.write_json(path, [record | more for record in records])
    evaluate_spec["evaluation"]["limit"] = 2
    run(evaluate_spec, None, Responder(evaluate_spec))
    rows = rows_of(tmp_path / "results")
    assert [row["id"] for row in rows] == [record["id"] for record in records[:2]]
    assert [row["tags"] for row in rows] == [["night"], ["night"]]
    assert [row["groups"] for row in rows] == [["camera=3"], ["camera=3"]]


def test_the_directionality_task_reads_every_answer_as_a_direction(evaluate_spec, tmp_path):
    evaluate_spec["task"]["type"] = "its_directionality"
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert {row["type"] for row in rows_of(tmp_path / "results")} == {"direction"}


def test_batches_by_length_with_clips_decoded_ahead_give_the_answers_of_one_at_a_time(
    evaluate_spec, tmp_path, asked
):
    path = tmp_path / "eval" / "annotations.json"
    records = files.read_json(path)
    for number, record in enumerate(records):
        record["conversations"][0]["value"] += " left right" * (5 * number % 7)
    files.write_json(path, records)
    clip = tmp_path / "eval" / records[4]["video"]
    clip.write_bytes(b"no video")
    one_by_one, together = Responder(evaluate_spec), Responder(evaluate_spec)
    one_by_one.batch_size, together.workers = 1, 2
    run(evaluate_spec, None, one_by_one)
    evaluate_spec["results_dir"] = str(tmp_path / "together")
    run(evaluate_spec, None, together)
    rows = rows_of(tmp_path / "results")
    assert rows_of(tmp_path / "together") == rows
    assert len({row["response"] for row in rows if row["response"]}) > 1
    assert sum(row["error"] is not None for row in rows) == 3
    assert asked == [1] * 9 + asked[9:] and max(asked[9:]) == 5


def test_a_batch_that_memory_does_not_hold_is_answered_in_halves(
    evaluate_spec, tmp_path, monkeypatch
):
    run(evaluate_spec, None, Responder(evaluate_spec))
    sizes, generate = [], Responder.generate

    def small(self, encoded):
        sizes.append(len(encoded))
        if len(encoded) > 2:
            raise torch.OutOfMemoryError
        return generate(self, encoded)

    monkeypatch.setattr(Responder, "generate", small)
    evaluate_spec["results_dir"] = str(tmp_path / "halves")
    run(evaluate_spec, None, Responder(evaluate_spec))
    assert rows_of(tmp_path / "halves") == rows_of(tmp_path / "results")
    assert sizes[:4] == [5, 2, 3, 1], "half of a batch, and then halves of that"
    assert max(sizes[4:]) <= 2


def test_sampling_that_does_not_count_is_not_recorded(evaluate_spec, tmp_path):
    evaluate_spec["generation"] |= {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    run(evaluate_spec, None, Responder(evaluate_spec))
    sampling = files.read_json(tmp_path / "results" / "evaluation.json")["sampling"]
    assert sampling.keys() >= {"temperature", "max_tokens"}
    assert not sampling.keys() & {"presence_penalty", "frequency_penalty"}


def test_a_question_that_memory_does_not_hold_fails_and_the_others_are_answered(
    evaluate_spec, tmp_path, monkeypatch
):
    path = tmp_path / "eval" / "annotations.json"
    records = files.read_json(path)
    records[3]["conversations"][0]["value"] += " left right" * 200
    files.write_json(path, records)
    run(evaluate_spec, None, Responder(evaluate_spec))
    expected = rows_of(tmp_path / "results")
    longest = max(len(row["question"]) for row in expected)
    generate = Responder.generate

    def small(self, encoded):
        if max(len(one["input_ids"]) for one in encoded) > 400:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, encoded)

    monkeypatch.setattr(Responder, "generate", small)
    evaluate_spec["results_dir"] = str(tmp_path / "small")
    assert run(evaluate_spec, None, Responder(evaluate_spec))["failed"] == 1
    for row, before in zip(rows_of(tmp_path / "small"), expected, strict=True):
        if len(row["question"]) == longest:
            assert "memory does not hold a question" in row["error"]
        else:
            assert row == before
