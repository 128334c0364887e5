"""Evaluation through a server: a real one on the loopback address that answers, refuses, stalls and
talks rubbish."""

import base64
import io
import json
import subprocess
import sys
import time
from collections import Counter

import jsonschema
import numpy as np
import pytest
from chat_server import Handler, said
from evaluating import rows_of, write_spec
from PIL import Image
from scoring import score
from support import ROOT, run_script

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure
from cosmos_reason.data.frames import Vision
from cosmos_reason.evaluation import endpoint, questions
from cosmos_reason.evaluation.endpoint import Endpoint
from cosmos_reason.evaluation.run import run
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec.prompts import CHOOSE


def ask(spec, server):
    who = Endpoint(spec, server.url)
    who.settle()
    return run(spec, None, who)


def test_every_question_is_asked_once_and_at_most_so_many_at_a_time(
    evaluate_spec, server, tmp_path
):
    evaluate_spec["custom"]["endpoint"]["concurrency"] = 3
    server.plan = lambda question, number: (200, said("<think>so</think>yes"), 0.05)
    result = ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    assert (result["failed"], len(rows), len(server.requests), server.busiest) == (0, 12, 12, 3)
    records = files.read_json(tmp_path / "eval" / "annotations.json")
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    assert {row["answer"] for row in rows if row["type"] == "yes_no"} == {"yes"}
    record = files.read_json(tmp_path / "results" / "evaluation.json")
    assert server.url in record["hardware"] and "video" in record["hardware"]
    assert server.requests[0]["model"] == evaluate_spec["model"]["model_name"]


@pytest.mark.parametrize(("retries", "is_empty"), [(None, True), (2, False), (1, True)])
def test_an_empty_answer_is_asked_again_as_often_as_the_spec_says(
    evaluate_spec, server, tmp_path, retries, is_empty
):
    """More tokens and a higher temperature each time, as Cosmos-Reason1's evaluator asks."""
    records = files.read_json(tmp_path / "eval" / "annotations.json")
    odd = records[0]["conversations"][0]["value"].removeprefix("<video>\n")
    alike = [odd in record["conversations"][0]["value"] for record in records]
    evaluate_spec["generation"] |= {"max_retries": retries, "max_tokens": 9, "temperature": 0.84}

    def plan(body, number):
        is_odd = odd in body["messages"][-1]["content"][-1]["text"]
        empty = "<think>well</think> <answer></answer>"
        return 200, said(empty if is_odd and number < 3 else "yes"), 0

    server.plan = plan
    ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    times = 1 + (retries or 0)
    assert [row.get("attempts", 1) for row in rows] == [times if one else 1 for one in alike]
    assert any("<answer></answer>" in row["response"] for row in rows) == is_empty
    asked = {body["max_tokens"]: body["temperature"] for body in server.requests}
    assert asked == pytest.approx(dict([(9, 0.84), (265, 0.89), (521, 0.9)][:times]))
    jsonschema.validate(rows, bundle.schema("results"))


def decoded(url: str, kind: str) -> list[np.ndarray]:
    head, data = url.split(",", 1)
    assert head == f"data:{kind}/jpeg;base64"
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(part)))) for part in data.split(",")]


@pytest.mark.parametrize("form", ["images", "video"])
@pytest.mark.parametrize(
    "vision", [{"nframes": 6}, {"fps": 1.5, "resized_height": 64, "resized_width": 96}]
)
def test_the_frames_sent_are_those_the_sampler_asks_for(
    evaluate_spec, server, tmp_path, form, vision
):
    evaluate_spec["vision"], evaluate_spec["evaluation"]["limit"] = vision, 1
    evaluate_spec["custom"]["endpoint"]["frames"] = form
    evaluate_spec["dataset"]["system_prompt"] = "Be short."
    ask(evaluate_spec, server)
    record = files.read_json(tmp_path / "eval" / "annotations.json")[0]
    clip, options = tmp_path / "eval" / record["video"], VisionOptions.from_table(vision)
    facts = media.probe(clip)
    indices = sampling.frame_indices(facts.frames, facts.fps, options)
    size = sampling.frame_size(facts.height, facts.width, len(indices), options, 16)
    expected = media.resize(media.decode_frames(clip, indices), *size)
    body = server.requests[0]
    system, user = body["messages"]
    assert system == {"role": "system", "content": "Be short."}
    *shown, question = user["content"]
    assert question["text"] in record["conversations"][0]["value"]
    times = [index / facts.fps for index in indices]
    if form == "video":
        (part,) = shown
        frames = decoded(part["video_url"]["url"], "video")
        clip_facts = body["media_io_kwargs"]["video"]
        stated = [number / clip_facts["fps"] for number in clip_facts["frames_indices"]]
        assert stated == pytest.approx(times, abs=0.001) and clip_facts["do_sample_frames"] is False
    else:
        frames = [
            frame for part in shown[1::2] for frame in decoded(part["image_url"]["url"], "image")
        ]
        assert [part["text"] for part in shown[::2]] == [f"<{time:.1f} seconds>" for time in times]
    assert np.stack(frames).shape == expected.shape
    assert np.abs(np.stack(frames).astype(int) - expected).mean() < 3


def test_sampling_options_reach_the_server_and_neutral_ones_stay_at_home(evaluate_spec, server):
    evaluate_spec["generation"] |= {"temperature": 0.7, "top_p": 0.8, "max_tokens": 9}
    evaluate_spec["evaluation"] |= {"limit": 1, "answer_type": "reasoning"}
    ask(evaluate_spec, server)
    body = server.requests[0]
    sent = {"temperature": 0.7, "top_p": 0.8, "max_tokens": 9, "seed": 1}
    assert {name: body[name] for name in sent} == sent
    assert not {"top_k", "repetition_penalty", "presence_penalty"} & body.keys()
    assert "<think>" in body["messages"][-1]["content"][-1]["text"]


CHOICE = "Which way?\n(A) left\n(B) right"


def with_questions(folder, *texts):
    """Rewrites the annotations: a question each about the first clips."""
    path = folder / "annotations.json"
    records = files.read_json(path)[: len(texts)]
    for record, text in zip(records, texts, strict=True):
        record["conversations"] = [
            {"from": "human", "value": f"<video>\n{text}"},
            {"from": "gpt", "value": "A"},
        ]
    files.write_json(path, records)


def asked_texts(server):
    return sorted(body["messages"][-1]["content"][-1]["text"].strip() for body in server.requests)


def test_a_letter_is_asked_for_once_and_only_where_there_are_options(
    evaluate_spec, server, tmp_path
):
    asked_already = CHOICE + "\nRespond with only the letter."
    with_questions(tmp_path / "eval", CHOICE, asked_already, "What moves?")
    ask(evaluate_spec, server)
    assert asked_texts(server) == ["What moves?", CHOICE, asked_already]
    server.requests.clear()
    evaluate_spec["evaluation"]["answer_type"] = "letter"
    ask(evaluate_spec, server)
    assert asked_texts(server) == ["What moves?", f"{CHOICE}\n{CHOOSE}", asked_already]
    assert rows_of(tmp_path / "results")[0]["question"] == CHOICE  # rows keep the annotation's text
    record = files.read_json(tmp_path / "results" / "evaluation.json")
    assert record["prompt"]["answer_type"] == "letter"
    (warned,) = questions.without_options(evaluate_spec)
    assert (warned.id, warned.severity) == ("EVAL-LETTER-OPTIONS", "warning")
    assert "1 of 3 questions" in warned.message
    with_questions(tmp_path / "eval", "What moves?", "Who?")
    with pytest.raises(Failure, match=r"EVAL-LETTER-OPTIONS .*2 of 2 questions") as refused:
        questions.without_options(evaluate_spec)
    assert refused.value.findings[0].fix.changes == {"evaluation.answer_type": "freeform"}


@pytest.mark.parametrize(
    "trouble",
    [(429, b"slow down", 0), (500, b"oops", 0), (503, b"", 0), (None, b"", 0)],
    ids=["429", "500", "503", "hangs up"],
)
def test_passing_trouble_is_asked_again(evaluate_spec, server, trouble):
    evaluate_spec["evaluation"]["limit"] = 4
    server.plan = lambda question, number: trouble if number < 3 else (200, said("no"), 0)
    assert ask(evaluate_spec, server)["failed"] == 0
    assert set(server.asked.values()) == {3}


def test_an_answer_that_is_late_is_asked_again(evaluate_spec, server):
    evaluate_spec["evaluation"]["limit"] = 2
    evaluate_spec["custom"]["endpoint"]["timeout"] = 2
    late = (200, said("late"), 6)
    server.plan = lambda question, number: late if number == 1 else (200, said("no"), 0)
    assert ask(evaluate_spec, server)["failed"] == 0
    # A busy machine may be late besides.
    assert min(server.asked.values()) >= 2


def answer_truths_with(server, reply):
    """Has the server answer yes-or-no questions so, and all others with no."""
    server.plan = lambda body, number: (
        reply if "yes or no" in json.dumps(body) else (200, said("no"), 0)
    )


RUBBISH = (b"", b"[" * 200_000, b"<html>", b"[]", b'{"choices": []}', b"{\xff",
           b'{"choices": [{"message": {"content": [1]}}]}')  # fmt: skip


@pytest.mark.parametrize("answer", RUBBISH)
def test_rubbish_is_a_row_with_an_error(evaluate_spec, server, tmp_path, answer):
    evaluate_spec["evaluation"]["limit"] = 3
    answer_truths_with(server, (200, answer, 0))
    ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    failed = [row for row in rows if row["error"]]
    assert len(rows) == 3 and {row["question"].endswith("yes or no.") for row in failed} == {True}
    assert all("EVAL-ENDPOINT-ANSWER" in row["error"] and row["response"] is None for row in failed)


def test_lasting_trouble_and_a_broken_clip_are_rows_and_only_they_are_asked_again(
    evaluate_spec, server, tmp_path
):
    answer_truths_with(server, (500, b"oops", 0))
    clip = next((tmp_path / "eval" / "videos").iterdir())
    clip.write_bytes(b"")
    first = ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    # The clip's three questions, and one in three of the other clips.
    assert first["failed"] == 3 + 3
    assert sum("HTTP 500: oops, after 6 attempt" in (row["error"] or "") for row in rows) == 3
    server.plan, server.asked = (lambda body, number: (200, said("no"), 0)), Counter()
    assert ask(evaluate_spec, server)["failed"] == 3
    assert server.asked.total() == 3


def test_a_request_that_is_too_long_is_a_row_at_once(evaluate_spec, server, tmp_path):
    evaluate_spec["evaluation"]["limit"] = 1
    server.plan = lambda body, number: (400, b"prompt is longer than the maximum model length", 0)
    ask(evaluate_spec, server)
    assert "longer than the maximum" in rows_of(tmp_path / "results")[0]["error"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 307])
def test_a_refusal_ends_the_run_and_keeps_the_answers_there_are(
    evaluate_spec, server, tmp_path, status
):
    evaluate_spec["custom"]["endpoint"]["concurrency"] = 1
    server.plan = lambda body, number: (
        (200, said("A"), 0) if len(server.requests) < 6 else (status, b"no", 0)
    )
    with pytest.raises(Failure, match="EVAL-ENDPOINT-REFUSED"):
        ask(evaluate_spec, server)
    assert not (tmp_path / "results" / "results.json").exists()
    server.plan, before = (lambda body, number: (200, said("A"), 0)), len(server.requests)
    assert ask(evaluate_spec, server)["failed"] == 0
    assert len(server.requests) - before == 12 - 5


def test_a_server_that_is_down_ends_the_run(evaluate_spec, server):
    server.shutdown()
    server.server_close()
    with pytest.raises(Failure, match="EVAL-ENDPOINT-UNREACHABLE") as failure:
        ask(evaluate_spec, server)
    assert failure.value.exit_code == 3
    assert "it listed its models before" not in str(failure.value)


def test_a_server_that_dies_of_the_first_clip_is_told_from_one_that_is_down(evaluate_spec, server):
    who = Endpoint(evaluate_spec, server.url)
    server.models, server.trial = [who.model], None
    with pytest.raises(Failure, match="EVAL-ENDPOINT-UNREACHABLE") as failure:
        ask(evaluate_spec, server)
    assert failure.value.exit_code == 3 and len(server.trials) == 1
    assert "it listed its models before" in str(failure.value)
    assert "diagnose_log.py" in str(failure.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x/v1",
        "http://user:pw@host/v1",
        "http://h/v1?key=1",
        "http://h:x/",
        "",
    ],
)
def test_an_address_that_is_none_is_refused_and_a_password_in_it_too(evaluate_spec, url):
    with pytest.raises(Failure, match="EVAL-ENDPOINT-URL") as failure:
        Endpoint(evaluate_spec, url)
    assert "pw" not in str(failure.value)


def test_the_key_comes_by_name_and_is_never_written(evaluate_spec, server, tmp_path, monkeypatch):
    evaluate_spec["custom"]["endpoint"]["api_key_variable"] = "MY_KEY"
    with pytest.raises(Failure, match="EVAL-ENDPOINT-KEY MY_KEY"):
        ask(evaluate_spec, server)
    monkeypatch.setenv("MY_KEY", "“canary-key”")
    with pytest.raises(Failure, match="EVAL-ENDPOINT-KEY") as failure:
        ask(evaluate_spec, server)
    assert "canary" not in str(failure.value)
    monkeypatch.setenv("MY_KEY", "canary-key\n")
    server.plan = lambda body, number: (400, b"your key canary-key is odd", 0)
    ask(evaluate_spec, server)
    assert set(server.keys) == {"Bearer canary-key"}
    written = [path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert written and not any(b"canary-key" in text for text in written)


def test_a_key_is_masked_before_it_is_cut_and_as_json_writes_it(
    evaluate_spec, server, tmp_path, monkeypatch
):
    key = 'canary/"key'
    monkeypatch.setenv("OPENAI_API_KEY", key)
    forms = [key, json.dumps(key)[1:-1], json.dumps(key)[1:-1].replace("/", "\\/")]
    said_back = ("x" * 990 + " ".join(forms)).encode()
    for status, answer in ((400, said_back), (400, " ".join(forms).encode()), (200, said(key))):
        server.plan = lambda body, number, plan=(status, answer, 0): plan
        ask(evaluate_spec, server)
        assert "canary" not in (tmp_path / "results" / "results.json").read_text(encoding="utf-8")


def test_one_answer_that_is_cut_short_is_counted(evaluate_spec, server):
    evaluate_spec["evaluation"]["limit"] = 1
    server.plan = lambda question, number: (200, said("yes", "length"), 0)
    assert ask(evaluate_spec, server)["cut_short"] == 1


def test_an_answer_that_drips_is_given_up(evaluate_spec, server, monkeypatch):
    evaluate_spec["evaluation"]["limit"] = 1
    who = Endpoint(evaluate_spec, server.url)
    who.settle()
    who.server.attempts = 1
    monkeypatch.setattr(Handler, "send_body", drip)
    # No byte of the answer is as late as this, the whole answer is.
    who.server.timeout = 2
    assert run(evaluate_spec, None, who)["failed"] == 1
    assert len(server.requests) == 1


def drip(self, answer):
    for number in range(len(answer)):
        self.wfile.write(answer[number : number + 1])
        self.wfile.flush()
        time.sleep(0.15)


def test_the_command_needs_no_torch_and_sends_a_clip_as_one_video(evaluate_spec, server, tmp_path):
    custom = {"transformers_engine": {"device": "cpu"}, "endpoint": {"frames": "video"}}
    config = write_spec(evaluate_spec, tmp_path / "e.toml", custom=custom)
    script = str(ROOT / "scripts/run_with_transformers.py")
    code = """
import runpy, sys
sys.modules["torch"] = None  # importing it fails
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    flags = ["evaluate", "--config", config, "--endpoint", server.url, "--json"]
    command = [sys.executable, "-c", code, script, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["rows"] == len(rows_of(tmp_path / "results")) == 12
    # As vLLM reads them: JPEGs between commas, as many as there are frame numbers.
    for body in server.requests:
        (video,) = (part for part in body["messages"][-1]["content"] if part["type"] == "video_url")
        stated = body["media_io_kwargs"]["video"]["frames_indices"]
        assert len(decoded(video["video_url"]["url"], "video")) == len(stated)


def test_a_request_carries_the_times_of_one_video():
    vision = Vision("video", np.zeros((2, 4, 4, 3), np.uint8), (0.0, 0.5))
    with pytest.raises(Failure, match="EVAL-ENDPOINT-VIDEOS"):
        endpoint._times([vision, vision])


def test_when_nothing_is_answered_the_command_fails(evaluate_spec, server, tmp_path):
    server.plan = lambda body, number: (400, b"no images, please", 0)
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {"frames": "images"})
    jsonschema.validate(document["findings"], {"type": "array", "items": bundle.schema("finding")})
    images, failed = document["findings"]
    assert (done.returncode, images["id"], failed["id"]) == (
        1, "EVAL-ENDPOINT-IMAGES", "EVAL-ALL-FAILED"
    )  # fmt: skip
    assert images["severity"] == "warning" and "62 %" in images["message"]


def command(evaluate_spec, server, config, options, *flags, told=()):
    """The process that asked the server by command line, and the document that it printed, without
    what is so of the tests' model and server, but for the ids in `told`."""
    custom = {"transformers_engine": {"device": "cpu"}, "endpoint": options}
    write_spec(evaluate_spec, config, custom=custom)
    words = ["evaluate", "--config", config, "--endpoint", server.url, *flags, "--json"]
    done = run_script("run_with_transformers.py", *words)
    document = json.loads(done.stdout)
    found = document["findings"]
    ordinary = {"SPEC-MODEL-MINIATURE", "EVAL-ENDPOINT-UNLISTED"} - set(told)
    document["findings"] = [one for one in found if one["id"] not in ordinary]
    return done, document


TIMES_OFF = b"""{"error": {"message": "Per-request media_io_kwargs are disabled by default because
they configure how the server reads media. Start the server with --trust-request-mm-kwargs only when
clients are trusted"}}"""
NO_VIDEOS = b"Invalid value: 'video_url'. Supported values are: 'text', 'image_url'"


@pytest.mark.parametrize(
    ("frames", "answer", "message", "fix"),
    [
        ("auto", TIMES_OFF, "Start it with --trust-request-mm-kwargs", endpoint.TAKES_VIDEOS),
        ("video", TIMES_OFF, "Start it with --trust-request-mm-kwargs", endpoint.TAKES_VIDEOS),
        ("video", NO_VIDEOS, "takes no videos", "--set custom.endpoint.frames=images"),
    ],
)
def test_a_server_that_takes_no_videos_is_found_before_any_question(
    evaluate_spec, server, tmp_path, frames, answer, message, fix
):
    server.trial = (400, answer)
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {"frames": frames})
    (finding,) = document["findings"]
    assert done.returncode == 3 and message in finding["message"]
    assert (finding["id"], finding["fix"]) == ("EVAL-ENDPOINT-VIDEO", fix)
    assert (len(server.trials), server.requests) == (1, [])


def kinds_sent(server):
    return {part["type"] for body in server.requests for part in body["messages"][-1]["content"]}


@pytest.mark.parametrize("status", [400, 415, 422])
def test_auto_sends_images_to_a_server_without_videos_and_says_what_that_costs(
    evaluate_spec, server, tmp_path, status
):
    server.trial = (status, NO_VIDEOS)
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {})
    (warned,) = document["findings"]
    assert done.returncode == 0
    assert (warned["id"], warned["severity"]) == ("EVAL-ENDPOINT-IMAGES", "warning")
    assert "not comparable" in warned["message"] and "Supported values" in warned["message"]
    assert kinds_sent(server) == {"text", "image_url"} and len(server.requests) == 12
    record = files.read_json(tmp_path / "results" / "evaluation.json")
    assert "frames sent as images" in record["hardware"]
    assert record["vision"]["videos_as"] == "images"
    _, document = score(tmp_path / "results")
    assert "EVAL-ENDPOINT-IMAGES" in [one["id"] for one in document["findings"]]


def test_answers_to_videos_do_not_compare_with_answers_to_still_images(
    evaluate_spec, server, tmp_path
):
    for name, trial in (("videos", (200, said("black"))), ("images", (400, NO_VIDEOS))):
        server.trial = trial
        evaluate_spec["results_dir"] = str(tmp_path / name)
        command(evaluate_spec, server, tmp_path / f"{name}.toml", {})
    _, document = score(tmp_path / "images", "--compare", tmp_path / "videos")
    told = {one["id"]: one["message"] for one in document["findings"]}
    assert "vision.videos_as 'images' (not unset)" in told["EVAL-COMPARE-SETTINGS"]


def test_a_reply_of_thoughts_alone_shows_that_the_server_takes_videos(
    evaluate_spec, server, tmp_path
):
    server.trial = (200, said(None, "length", reasoning_content="The"))
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {})
    assert (done.returncode, document["result"]["failed"]) == (0, 0)
    assert kinds_sent(server) == {"text", "video_url"}


def test_auto_sends_one_video_where_the_server_takes_it_and_tries_only_for_videos(
    evaluate_spec, server, tmp_path
):
    ask(evaluate_spec, server)
    assert kinds_sent(server) == {"text", "video_url"}
    (tried,) = server.trials
    (video, _) = tried["messages"][0]["content"]
    frames = decoded(video["video_url"]["url"], "video")
    assert len(frames) == len(tried["media_io_kwargs"]["video"]["frames_indices"])
    records = files.read_json(tmp_path / "eval" / "annotations.json")
    picture = tmp_path / "eval" / "one.png"
    Image.new("RGB", (64, 64)).save(picture)
    for record in records:
        del record["video"]
        record["image"] = picture.name
        for turn in record["conversations"]:
            turn["value"] = turn["value"].replace("<video>", "<image>")
    files.write_json(tmp_path / "eval" / "annotations.json", records)
    ask(evaluate_spec, server)
    assert len(server.trials) == 1


def test_trouble_with_the_first_video_is_no_reason_to_send_images(evaluate_spec, server):
    server.trial = (503, b"loading")
    with pytest.raises(Failure, match="HTTP 503"):
        ask(evaluate_spec, server)
    assert server.requests == []


def test_a_served_model_has_any_name_and_a_wrong_one_is_answered_with_the_right_ones(
    evaluate_spec, server, tmp_path
):
    server.models = ["tiny model: v2", "base"]
    config = tmp_path / "e.toml"
    done, document = command(evaluate_spec, server, config, {}, "--served-model", "tiny model v2")
    (finding,) = document["findings"]
    assert (done.returncode, finding["id"]) == (2, "EVAL-ENDPOINT-MODEL")
    assert server.requests == server.trials == []
    assert finding["data"]["served"] == ["tiny model: v2", "base"]
    assert finding["fix"] == ""  # another name is another model
    done, _ = command(evaluate_spec, server, config, {}, "--served-model", "tiny model: v2")
    assert done.returncode == 0, done.stderr
    assert {body["model"] for body in server.requests + server.trials} == {"tiny model: v2"}
    record = files.read_json(tmp_path / "results" / "evaluation.json")
    assert record["model"] == evaluate_spec["model"]["model_name"]  # which tells how it was trained
    assert "tiny model: v2" in record["hardware"]


def test_a_model_is_named_by_the_server_where_it_tells_what_it_loaded(evaluate_spec, server):
    name = evaluate_spec["model"]["model_name"]
    for models, fix in (({"tiny": name}, {"--served-model": "tiny"}), ({"tiny": "other"}, {})):
        server.models = models
        with pytest.raises(Failure, match="EVAL-ENDPOINT-MODEL") as failure:
            ask(evaluate_spec, server)
        assert failure.value.findings[0].fix.flags == fix
    server.models = []
    with pytest.raises(Failure, match="EVAL-ENDPOINT-MODEL"):
        ask(evaluate_spec, server)


NO_ANSWERS = {
    "null": said(None),
    "thoughts": said(None, reasoning_content="It might be B."),
    "thoughts of others": said("", reasoning="It might be B."),
    "thoughts that were cut": said(None, "length", reasoning_content="It might be B."),
    "filter": said("", "content_filter"),
    "filter in the middle": said("The answer", "content_filter"),
    "refusal": said(None, refusal="I will not."),
    "refusal beside an empty text": said("", refusal="I will not."),
    "calls of tools": said("", "tool_calls", tool_calls=[{"id": "1", "type": "function"}]),
    "aborted": said("The answer is", "abort"),
    "an error of the server": said("", "error"),
    "parts": said([{"type": "text", "text": "yes"}]),
}


@pytest.mark.parametrize("reply", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_a_row_with_an_error(evaluate_spec, server, tmp_path, reply):
    answer_truths_with(server, (200, reply, 0))
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {})
    rows = rows_of(tmp_path / "results")
    failed = [row for row in rows if row["error"]]
    assert (done.returncode, document["result"]["failed"], len(failed)) == (0, 4, 4)
    for row in failed:
        assert (row["response"], row["answer"], row["correct"]) == (None, None, None)
        assert "EVAL-ENDPOINT-ANSWER" in row["error"]


def test_a_reply_of_another_model_ends_the_run_unless_the_two_are_one(
    evaluate_spec, server, tmp_path
):
    name = evaluate_spec["model"]["model_name"]
    server.plan = lambda body, number: (200, said("yes", model="other"), 0)
    for models in (None, [name, "other"], {name: "/a", "other": "/b"}):
        server.models = models
        done, document = command(evaluate_spec, server, tmp_path / "e.toml", {})
        (error,) = [one for one in document["findings"] if one["severity"] == "error"]
        assert (done.returncode, error["id"]) == (3, "EVAL-ENDPOINT-OTHER-MODEL")
        assert (error["data"]["asked"], error["data"]["replied"]) == (name, "other")
        assert not (tmp_path / "results" / "results.json").exists()
    server.models = {name: "/a", "other": "/a"}
    done, document = command(evaluate_spec, server, tmp_path / "e.toml", {})
    assert (done.returncode, document["result"]["failed"]) == (0, 0)


def test_that_nobody_could_ask_for_the_served_name_is_said(evaluate_spec, server, tmp_path):
    unlisted = ["EVAL-ENDPOINT-UNLISTED"]
    for models, expected in ((None, unlisted), ([evaluate_spec["model"]["model_name"]], [])):
        server.models = models
        _, document = command(evaluate_spec, server, tmp_path / "e.toml", {}, told=unlisted)
        assert [finding["id"] for finding in document["findings"]] == expected


def test_answers_of_one_model_are_not_reused_for_another(evaluate_spec, server):
    ask(evaluate_spec, server)
    who = Endpoint(evaluate_spec, server.url, "other")
    who.settle()
    run(evaluate_spec, None, who)
    own = evaluate_spec["model"]["model_name"]
    assert Counter(body["model"] for body in server.requests) == {own: 12, "other": 12}


def test_what_a_server_answered_before_it_loaded_another_model_counts_no_more(
    evaluate_spec, server, tmp_path
):
    """Under the same name at the same address: only the root, where it is told, is another."""
    name = evaluate_spec["model"]["model_name"]
    evaluate_spec["custom"]["endpoint"]["concurrency"] = 1
    server.models = {name: "/models/a"}
    server.plan = lambda body, number: (
        (200, said("yes"), 0) if len(server.requests) < 6 else (401, b"no", 0)
    )
    with pytest.raises(Failure, match="EVAL-ENDPOINT-REFUSED"):
        ask(evaluate_spec, server)
    server.models = {name: "/models/b"}
    server.plan = lambda body, number: (200, said("no"), 0)
    assert ask(evaluate_spec, server)["failed"] == 0
    assert {row["response"] for row in rows_of(tmp_path / "results")} == {"no"}
    record = files.read_json(tmp_path / "results" / "evaluation.json")
    assert f"model {name} (/models/b)" in record["hardware"]


def test_a_name_for_no_server_is_refused(evaluate_spec, tmp_path):
    config = write_spec(evaluate_spec, tmp_path / "e.toml")
    words = ["evaluate", "--config", config, "--served-model", "tiny", "--json"]
    done = run_script("run_with_transformers.py", *words)
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["id"], finding["where"]) == (2, "USAGE", "--served-model")
