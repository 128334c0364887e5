"""Evaluation through a server: a real one on the loopback address that answers, refuses, stalls and talks rubbish."""

import base64
import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jsonschema
import numpy as np
import pytest
from PIL import Image
from support import ROOT
from test_evaluate import rows_of, write_spec

from cosmos_reason import bundle, media, storage, vision_tokens
from cosmos_reason.findings import Failure
from cosmos_reason.transformers_engine import endpoint, evaluate
from cosmos_reason.transformers_engine.endpoint import Endpoint
from cosmos_reason.transformers_engine.frames import Vision
from cosmos_reason.vision_tokens import VisionOptions


class Server(ThreadingHTTPServer):
    """`plan(question, number)` gives the (status, body, seconds) of the number-th request for a question."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan = lambda question, number: (200, said("yes"), 0)
        self.requests, self.keys, self.asked = [], [], Counter()
        self.busy = self.busiest = 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = json.dumps(body["messages"])
        with server.lock:
            server.requests.append(body)
            server.keys.append(self.headers["authorization"])
            server.asked[question] += 1
            server.busy += 1
            server.busiest = max(server.busiest, server.busy)
            number = server.asked[question]
        status, answer, seconds = server.plan(body, number)
        time.sleep(seconds)
        with server.lock:
            server.busy -= 1
        if status is None:  # hang up
            self.close_connection = True
            return
        self.send_response(status if self.path == "/v1/chat/completions" else 404)
        self.send_header("content-length", str(len(answer)))
        if status == 429:
            self.send_header("retry-after", "0.01")
        self.end_headers()
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_body(answer)

    def send_body(self, answer):
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def said(text) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_DELAY", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def ask(spec, server):
    return evaluate.run(spec, None, Endpoint(spec, server.url))


def test_every_question_is_asked_once_and_at_most_so_many_at_a_time(evaluate_spec, server, tmp_path):
    evaluate_spec["custom"]["endpoint"]["concurrency"] = 3
    server.plan = lambda question, number: (200, said("<think>so</think>yes"), 0.05)
    result = ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    assert (result["failed"], len(rows), len(server.requests), server.busiest) == (0, 12, 12, 3)
    records = storage.read_json(tmp_path / "eval" / "annotations.json")
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    assert {row["answer"] for row in rows if row["type"] == "yes_no"} == {"yes"}
    record = storage.read_json(tmp_path / "results" / "evaluation.json")
    assert server.url in record["hardware"] and "images" in record["hardware"]
    assert server.requests[0]["model"] == evaluate_spec["model"]["model_name"]


def decoded(url: str, kind: str) -> list[np.ndarray]:
    head, data = url.split(",", 1)
    assert head == f"data:{kind}/jpeg;base64"
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(part)))) for part in data.split(",")]


@pytest.mark.parametrize("form", ["images", "video"])
@pytest.mark.parametrize("vision", [{"nframes": 6}, {"fps": 1.5, "resized_height": 64, "resized_width": 96}])
def test_the_frames_sent_are_those_the_sampler_asks_for(evaluate_spec, server, tmp_path, form, vision):
    evaluate_spec["vision"], evaluate_spec["evaluation"]["limit"] = vision, 1
    evaluate_spec["custom"]["endpoint"]["frames"] = form
    evaluate_spec["dataset"]["system_prompt"] = "Be short."
    ask(evaluate_spec, server)
    record = storage.read_json(tmp_path / "eval" / "annotations.json")[0]
    clip, options = tmp_path / "eval" / record["video"], VisionOptions.from_table(vision)
    facts = media.probe(clip)
    indices = vision_tokens.frame_indices(facts.frames, facts.fps, options)
    size = vision_tokens.frame_size(facts.height, facts.width, len(indices), options, 16)
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
        frames = [frame for part in shown[1::2] for frame in decoded(part["image_url"]["url"], "image")]
        assert [part["text"] for part in shown[::2]] == [f"<{time:.1f} seconds>" for time in times]
    assert np.stack(frames).shape == expected.shape
    assert np.abs(np.stack(frames).astype(int) - expected).mean() < 3


def test_sampling_options_reach_the_server_and_neutral_ones_stay_at_home(evaluate_spec, server):
    evaluate_spec["generation"] |= {"temperature": 0.7, "top_p": 0.8, "max_tokens": 9}
    evaluate_spec["evaluation"] |= {"limit": 1, "answer_type": "reasoning"}
    ask(evaluate_spec, server)
    body = server.requests[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"]) == (0.7, 0.8, 9, 1)
    assert not {"top_k", "repetition_penalty", "presence_penalty"} & body.keys()
    assert "<think>" in body["messages"][-1]["content"][-1]["text"]


@pytest.mark.parametrize(
    "trouble",
    [(429, b"slow down", 0), (500, b"oops", 0), (503, b"", 0), (200, b"late", 1.0), (None, b"", 0)],
    ids=["429", "500", "503", "slow", "hangs up"],
)
def test_passing_trouble_is_asked_again(evaluate_spec, server, trouble):
    evaluate_spec["evaluation"]["limit"] = 4
    evaluate_spec["custom"]["endpoint"]["timeout"] = 0.5
    server.plan = lambda question, number: trouble if number < 3 else (200, said("no"), 0)
    assert ask(evaluate_spec, server)["failed"] == 0
    assert set(server.asked.values()) == {3}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[" * 200_000,
        b"<html>",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": [1]}}]}',
        b"{\xff",
    ],
)
def test_rubbish_is_a_row_with_an_error(evaluate_spec, server, tmp_path, answer):
    evaluate_spec["evaluation"]["limit"] = 3
    server.plan = lambda body, number: (200, answer if "yes or no" in json.dumps(body) else said("no"), 0)
    ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    failed = [row for row in rows if row["error"]]
    assert len(rows) == 3 and {row["question"].endswith("yes or no.") for row in failed} == {True}
    assert all("EVAL-ENDPOINT-ANSWER" in row["error"] and row["response"] is None for row in failed)


def test_lasting_trouble_and_a_broken_clip_are_rows_and_only_they_are_asked_again(evaluate_spec, server, tmp_path):
    server.plan = lambda body, number: (500, b"oops", 0) if "yes or no" in json.dumps(body) else (200, said("A"), 0)
    clip = next((tmp_path / "eval" / "videos").iterdir())
    clip.write_bytes(b"")
    first = ask(evaluate_spec, server)
    rows = rows_of(tmp_path / "results")
    assert first["failed"] == 3 + 3  # the clip's three questions, and one in three of the other clips
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
def test_a_refusal_ends_the_run_and_keeps_the_answers_there_are(evaluate_spec, server, tmp_path, status):
    evaluate_spec["custom"]["endpoint"]["concurrency"] = 1
    server.plan = lambda body, number: (200, said("A"), 0) if len(server.requests) < 6 else (status, b"no", 0)
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


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://user:pw@host/v1", "http://h/v1?key=1", "http://h:x/", ""]
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


def test_a_key_is_masked_before_it_is_cut_and_as_json_writes_it(evaluate_spec, server, tmp_path, monkeypatch):
    key = 'canary/"key'
    monkeypatch.setenv("OPENAI_API_KEY", key)
    forms = [key, json.dumps(key)[1:-1], json.dumps(key)[1:-1].replace("/", "\\/")]
    said_back = ("x" * 990 + " ".join(forms)).encode()
    for status, answer in ((400, said_back), (400, " ".join(forms).encode()), (200, said(key))):
        server.plan = lambda body, number, plan=(status, answer, 0): plan
        ask(evaluate_spec, server)
        assert "canary" not in (tmp_path / "results" / "results.json").read_text(encoding="utf-8")


def test_an_answer_that_drips_is_given_up_and_one_cut_short_is_counted(evaluate_spec, server, monkeypatch):
    evaluate_spec["evaluation"]["limit"] = 1
    body = {"choices": [{"message": {"content": "yes"}, "finish_reason": "length"}]}
    server.plan = lambda question, number: (200, json.dumps(body).encode(), 0)
    assert ask(evaluate_spec, server)["cut_short"] == 1
    evaluate_spec["custom"]["endpoint"]["timeout"] = 0.4
    evaluate_spec["generation"]["max_tokens"] = 7
    monkeypatch.setattr(endpoint, "ATTEMPTS", 1)
    monkeypatch.setattr(Handler, "send_body", drip)
    server.plan = lambda question, number: (200, said("yes"), 0)
    started = time.monotonic()
    assert ask(evaluate_spec, server)["failed"] == 1
    assert time.monotonic() - started < 5


def drip(self, answer):
    for number in range(len(answer)):
        self.wfile.write(answer[number : number + 1])
        self.wfile.flush()
        time.sleep(0.15)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [("nan", 0, 0), ("-3", 0, 0), ("soon", 0, 0), (None, 0, 0), ("7", 7, 7), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0)],
)
def test_retry_after_is_seconds_or_a_date(header, least, most):
    assert least <= endpoint._seconds(header) <= most
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < endpoint._seconds(later) <= 30


def test_the_command_needs_no_torch_and_sends_a_clip_as_one_video(evaluate_spec, server, tmp_path):
    custom = {"transformers_engine": {"device": "cpu"}, "endpoint": {"frames": "video"}}
    config = write_spec(evaluate_spec, tmp_path / "e.toml", custom=custom)
    code = f"""
import runpy, sys
sys.modules["torch"] = None  # importing it fails
sys.path.insert(0, {str(ROOT / "scripts")!r})
sys.argv = ["run_with_transformers.py", "evaluate", "--config", {str(config)!r}, "--endpoint", {server.url!r}, "--json"]
runpy.run_path({str(ROOT / "scripts/run_with_transformers.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["rows"] == len(rows_of(tmp_path / "results")) == 12
    for body in server.requests:  # as vLLM reads them: JPEGs between commas, as many as there are frame numbers
        (video,) = (part for part in body["messages"][-1]["content"] if part["type"] == "video_url")
        stated = body["media_io_kwargs"]["video"]["frames_indices"]
        assert len(decoded(video["video_url"]["url"], "video")) == len(stated)


def test_a_request_carries_the_times_of_one_video():
    vision = Vision("video", np.zeros((2, 4, 4, 3), np.uint8), (0.0, 0.5))
    with pytest.raises(Failure, match="EVAL-ENDPOINT-VIDEOS"):
        endpoint._times([vision, vision])


def test_when_nothing_is_answered_the_command_fails(evaluate_spec, server, tmp_path):
    server.plan = lambda body, number: (400, b"no images, please", 0)
    config = write_spec(evaluate_spec, tmp_path / "e.toml")
    script = ROOT / "scripts" / "run_with_transformers.py"
    flags = ["evaluate", "--config", config, "--endpoint", server.url, "--json"]
    done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    jsonschema.validate(document["findings"], {"type": "array", "items": bundle.schema("finding")})
    assert (done.returncode, [each["id"] for each in document["findings"]]) == (
        1,
        ["EVAL-ENDPOINT-IMAGES", "EVAL-ALL-FAILED"],
    )
