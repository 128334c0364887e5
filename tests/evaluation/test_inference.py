"""The inference action: every question about every medium exactly one row, by the loop of an
evaluation."""

import json
import shutil
import sys
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import run_with_transformers as program
from chat_server import said
from PIL import Image

from cosmos_reason import cli
from cosmos_reason.answers.response import reasoning
from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure
from cosmos_reason.data.samples import Media
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation import as_trained, inference, per_gpu, questions
from cosmos_reason.evaluation.endpoint import Endpoint
from cosmos_reason.evaluation.run import run
from cosmos_reason.spec import document

ASKED = "Which way does the shape move?"


@pytest.fixture
def clips(dataset, tmp_path):
    """A folder with two clips, an image and a file that is neither."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("eval-0000.mp4", "eval-0001.mp4"):
        shutil.copy(dataset / "eval" / "videos" / name, folder)
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(folder / "still.png")
    (folder / "notes.txt").write_text("no clip")
    return folder


@pytest.fixture
def written(clips, tiny_model, tmp_path):
    """An inference spec about the folder, answered into tmp_path/results."""
    table = document.template("inference")
    table |= {"model_path": str(tiny_model), "media": str(clips), "prompt": ASKED}
    table |= {"results_dir": str(tmp_path / "results"), "batch_size": 2}
    table["vision"] = {"nframes": 4, "resized_height": 64, "resized_width": 64}
    table["generation"]["max_tokens"] = 4
    return table


@pytest.fixture
def spec(written):
    return document.with_defaults("inference", written)


def infer(spec, responder=Responder):
    asked = inference.as_evaluation(spec)
    return run(asked, None, responder(asked))


def rows_of(folder):
    rows = files.read_json(folder / "predictions.json")
    jsonschema.validate(rows, bundle.schema("predictions"))
    jsonschema.validate(files.read_json(folder / "inference.json"), bundle.schema("evaluation"))
    assert len({row["id"] for row in rows}) == len(rows)
    return rows


@pytest.fixture
def reached(monkeypatch):
    """Ids of the questions that reached the model."""
    asked, encode = [], Responder.encode

    def noted(self, question):
        inputs = encode(self, question)
        asked.append(question.sample.id)
        return inputs

    monkeypatch.setattr(Responder, "encode", noted)
    return asked


def test_a_row_per_medium_and_question_and_what_cannot_be_read_is_a_row(spec, clips, tmp_path):
    (clips / "broken.mp4").write_bytes(b"no video")
    (clips / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    spec["questions_file"] = str(tmp_path / "more.txt")
    (tmp_path / "more.txt").write_text(f"What colour is it?\n\n{ASKED}\n")
    told = infer(spec)
    rows = rows_of(tmp_path / "results")
    names = ["broken.mp4", "eval-0000.mp4", "eval-0001.mp4", "gone.mp4", "still.png"]
    assert [row["id"] for row in rows] == [f"{name}#{n}" for name in names for n in (1, 2)]
    assert [row["question"] for row in rows[:2]] == [ASKED, "What colour is it?"]
    assert {row["media"] for row in rows} == {str(clips / name) for name in names}
    failed = {row["id"].partition("#")[0] for row in rows if row["error"]}
    assert failed == {"broken.mp4", "gone.mp4"} and told["failed"] == 4
    for row in rows:
        assert (row["response"] is None) == bool(row["error"])
        if not row["error"]:
            assert 1 <= row["tokens"] <= 4 and row["seconds"] > 0 and row["vision_tokens"] > 0
    record = files.read_json(tmp_path / "results" / "inference.json")
    assert record["questions"] == told["rows"] == 10


def test_the_answers_are_those_of_an_evaluation(spec, evaluate_spec, clips, tmp_path):
    records = files.read_json(tmp_path / "eval" / "annotations.json")
    named = [record for record in records if record["video"].endswith("eval-0000.mp4")]
    files.write_json(tmp_path / "eval" / "annotations.json", named)
    run(evaluate_spec, None, Responder(evaluate_spec))
    rows = files.read_json(tmp_path / "results" / "results.json")
    spec["media"] = str(clips / "eval-0000.mp4")
    asked = inference.as_evaluation(spec, texts=[row["question"] for row in rows])
    run(asked, None, Responder(asked))
    predicted = rows_of(tmp_path / "results")
    assert [row["response"] for row in predicted] == [row["response"] for row in rows]
    assert [row["vision_tokens"] for row in predicted] == [row["vision_tokens"] for row in rows]


def test_a_killed_inference_continues_and_only_what_is_new_is_asked(spec, clips, tmp_path, reached):
    class Killed(Responder):
        batches = 0

        def answer(self, ready):
            self.batches += 1
            if self.batches == 2:
                raise KeyboardInterrupt
            return super().answer(ready)

    with pytest.raises(KeyboardInterrupt):
        infer(spec, Killed)
    assert not (tmp_path / "results" / "predictions.json").exists()
    infer(spec)
    assert reached == ["eval-0000.mp4", "eval-0001.mp4", "still.png", "still.png"], (
        "what was answered is not asked again"
    )
    before = rows_of(tmp_path / "results")
    reached.clear()
    infer(spec)
    assert not reached and rows_of(tmp_path / "results") == before
    shutil.copy(clips / "eval-0000.mp4", clips / "eval-0002.mp4")
    shutil.copy(clips / "eval-0000.mp4", clips / "eval-0001.mp4")  # another clip of the name
    infer(spec)
    assert reached == ["eval-0001.mp4", "eval-0002.mp4"]
    spec["generation"]["max_tokens"] = 3
    infer(spec)
    assert len(reached) == 6


def test_media_of_one_name_have_ids_of_their_own(spec, clips, tmp_path):
    other = shutil.copytree(clips, tmp_path / "other")
    shown = [Media("video", str(folder / "eval-0000.mp4")) for folder in (clips, other)]
    asked = inference.as_evaluation(spec, shown)
    ids = [question.sample.id for question in questions.read(asked["dataset"], -1)]
    assert ids == [item.path for item in shown]


def test_a_server_gets_the_request_of_an_evaluation(spec, evaluate_spec, server, clips, tmp_path):
    """Thinking and answer are told apart as the scorer does."""
    server.plan = lambda question, number: (200, said("<think>so it is</think>\nyes"), 0)
    evaluate_spec["evaluation"] |= {"limit": 1, "answer_type": "reasoning"}
    evaluate_spec["dataset"]["system_prompt"] = "Look."
    record = files.read_json(tmp_path / "eval" / "annotations.json")[0]
    run(evaluate_spec, None, settled(evaluate_spec, server))
    spec["prompt"] = record["conversations"][0]["value"].removeprefix("<video>\n")
    spec |= {"media": str(tmp_path / "eval" / record["video"]), "reasoning": True}
    spec["system_prompt"] = "Look."
    asked = inference.as_evaluation(spec)
    run(asked, None, settled(asked, server))
    assert server.requests[0] == server.requests[1]
    (row,) = rows_of(tmp_path / "results")
    assert (row["answer"], row["reasoning"]) == ("yes", "so it is")
    assert row["response"] == "<think>so it is</think>\nyes" and row["tokens"] is None


def settled(spec, server):
    who = Endpoint(spec, server.url)
    who.settle()
    return who


@pytest.mark.parametrize(
    ("response", "thought"),
    [
        ("yes", None),
        ("<think>a or b</think>b", "a or b"),
        ("a or b</think>b", "a or b"),
        ("<think>a, or b? b", "a, or b? b"),
        ("Yes. <think>sure</think>", "sure"),
        ("<thinking>a</thinking><think>b</think>c", "ab"),
        ("<think>it is <answer>b</answer></think>", "it is"),
        ("", None),
    ],
)
def test_what_is_thought(response, thought):
    assert reasoning(response) == thought


def test_the_precision_is_the_checkpoints_unless_the_spec_says_one(spec, tmp_path):
    def precision():
        return inference.as_evaluation(spec)["model"]["dtype"]

    spec["model_path"] = str(tmp_path / "saved")
    assert precision() == "bfloat16"
    (tmp_path / "saved").mkdir()
    config = tmp_path / "saved" / "config.json"
    config.write_text('{"text_config": {"dtype": "float16"}, "dtype": null}')
    assert precision() == "float16"
    config.write_text('{"torch_dtype": "float32"}')
    assert precision() == "float32"
    spec["torch_dtype"] = "bfloat16"
    assert precision() == "bfloat16"


@pytest.mark.parametrize(
    ("media", "found"),
    [
        ("none.mp4", "DATA-MEDIA-MISSING"),
        ("clips/notes.txt", "DATA-MEDIA-UNDECODABLE"),
        ("empty", "EVAL-NO-MEDIA"),
        ("", "EVAL-NO-MEDIA"),  # a folder of folders
    ],
)
def test_what_is_no_medium_is_one_finding(clips, tmp_path, media, found):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Failure) as failure:
        inference.media_at(str(tmp_path / media))
    assert [finding.id for finding in failure.value.findings] == [found]


def test_what_else_lies_in_a_folder_is_told(clips):
    shown, (told,) = inference.media_at(str(clips))
    assert [item.kind for item in shown] == ["video", "video", "image"]
    assert told.severity == "info" and "notes.txt" in told.message


def test_an_inference_is_compared_with_the_training(spec, checkpoint):
    spec["model_path"] = str(checkpoint)
    assert as_trained.check(inference.as_evaluation(spec)) == []
    spec["vision"]["nframes"] = 2
    spec["system_prompt"] = "Look."
    prompt, vision = as_trained.check(inference.as_evaluation(spec))
    assert prompt.fix.changes == {"system_prompt": ""}
    assert vision.fix.changes == {"vision.nframes": 4}


def test_the_program_of_a_job_infers_on_several_gpus(written, tmp_path, monkeypatch, capsys):
    """The processes of test_per_gpu, here one after the other in this one."""
    written |= {"num_gpus": 2, "custom": {"transformers_engine": {"device": "cpu"}}}
    document.dump(written, tmp_path / "i.toml")
    flags = ["inference", "--config", str(tmp_path / "i.toml"), "--json", "--job-dir"]
    command = ["run_with_transformers.py", *flags, str(tmp_path)]
    shards = []

    def start(words, env, stdout):
        assert words[: 1 + len(command)] == [sys.executable, *command]
        shards.append((env["CUDA_VISIBLE_DEVICES"], words[-1]))
        code = cli.run(program.parser(), program.main, words[2:])
        capsys.readouterr()
        return SimpleNamespace(poll=lambda: code, wait=lambda: code, terminate=lambda: None)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(per_gpu, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    assert cli.run(program.parser(), program.main, command[1:]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert shards == [("0", "1/2"), ("1", "2/2")]
    assert (result["rows"], result["failed"]) == (3, 0)
    assert len(rows_of(tmp_path / "results")) == 3
    record = files.read_json(tmp_path / "results" / "inference.json")
    assert record["job_id"] == tmp_path.name
