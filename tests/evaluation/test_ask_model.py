"""scripts/ask_model.py as a person in a hurry uses it."""

import json
import shutil

import pytest
from chat_server import said
from support import run_here, run_script, tokens

from cosmos_reason.base import files

ASKED = "Which way does the shape move?"
SHORT = ["--set", "max_tokens=4"]


@pytest.fixture
def videos(dataset, tmp_path):
    return shutil.copytree(dataset / "eval" / "videos", tmp_path / "videos")


def ask(*words, cwd):
    done = run_script("ask_model.py", *words, cwd=cwd)
    assert "Traceback" not in done.stderr
    return done


def result_of(done):
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["result"]


@pytest.mark.parametrize("meant", ["the model", "the output"])
def test_a_trained_model_is_asked_as_it_was_trained(checkpoint, videos, tmp_path, meant):
    """With the answers on paper, in a file, and on a page."""
    model = checkpoint if meant == "the model" else checkpoint.parents[2]
    common = [model, "videos", *SHORT, "-o", "out"]
    done = run_here("ask_model.py", *common, ASKED, "--html", "a.html", cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.count("eval-000") == 4 and "wrote out/predictions.json" in done.stdout
    assert tokens(done.stdout + done.stderr) < 600
    if meant == "the output":
        assert f"select_checkpoint.py {model} --by METRIC" in done.stderr
    record = files.read_json(tmp_path / "out" / "inference.json")
    assert record["vision"] == {"nframes": 4, "resized_height": 64, "resized_width": 64}
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 4 and ASKED in page
    # Without a medium nothing is loaded.
    otherwise = ask(model, "gone.mp4", ASKED, "--set", "nframes=2", cwd=tmp_path)
    assert "SPEC-TRAINED-OTHERWISE" in otherwise.stderr


def test_a_server_answers_by_the_name_it_knows(server, videos, tmp_path):
    server.plan = lambda question, number: (200, said("<think>It turns.</think>left"), 0)
    clips = [videos / "eval-0000.mp4", videos / "eval-0001.mp4"]
    flags = ["--endpoint", server.url, "--reasoning", "--system-prompt", "Look.", "--set", "seed=5"]
    (tmp_path / "q.txt").write_text(f"{ASKED}\nIs it red?\n")
    done = ask("mine", *clips, "--questions", "q.txt", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  thinks: It turns.\n  left\n") == 4
    assert len(server.requests) == 4
    for body in server.requests:
        assert (body["model"], body["seed"]) == ("mine", 5)
        assert body["messages"][0] == {"role": "system", "content": "Look."}
        assert "<think>" in body["messages"][1]["content"][-1]["text"]
    assert not list(tmp_path.glob("**/predictions.json"))  # it was not asked to keep them


def test_a_second_run_asks_what_is_new_and_loses_no_answer(server, videos, tmp_path):
    common = ["mine", "--endpoint", server.url, "-o", "out", "--json"]
    clip = videos / "eval-0000.mp4"
    first = result_of(ask(*common, clip, ASKED, cwd=tmp_path))
    assert (first["rows"], len(server.requests)) == (1, 1)
    both = result_of(ask(*common, "videos", ASKED, cwd=tmp_path))
    assert (both["rows"], len(server.requests)) == (4, 4)
    rows = (tmp_path / "out" / "predictions.json").read_bytes()
    for words in ([clip, ASKED], ["videos", "Why?"], ["videos", ASKED, "--set", "seed=9"]):
        done = ask(*common, *words, cwd=tmp_path)
        (found,) = json.loads(done.stdout)["findings"]
        assert (done.returncode, found["id"]) == (2, "EVAL-OUTPUT-TAKEN")
    assert (tmp_path / "out" / "predictions.json").read_bytes() == rows
    assert len(server.requests) == 4


def test_a_server_that_answers_nothing_is_an_error(server, videos, tmp_path):
    server.plan = lambda question, number: (400, b"no", 0)
    done = ask("mine", "videos", ASKED, "--endpoint", server.url, "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == 1 and document["result"]["failed"] == 4
    ids = [finding["id"] for finding in document["findings"]]
    assert ids == ["EVAL-ENDPOINT-UNLISTED", "EVAL-ALL-FAILED"]


@pytest.fixture
def bad(videos, tiny_model, tmp_path):
    """Folders and files that are no models, media or questions."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("hello")
    (tmp_path / "none.txt").write_text("\n\n")
    (tmp_path / "model").symlink_to(tiny_model)
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in tiny_model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, bare)
    adapter = {"base_model_name_or_path": "/nowhere/base", "r": 8, "peft_type": "LORA"}
    files.write_json(tmp_path / "adapter" / "adapter_config.json", adapter)
    return tmp_path


CLIP = "videos/eval-0000.mp4"


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        (["model", "gone.mp4", ASKED], 2, {"DATA-MEDIA-MISSING"}),
        (["model", "empty", ASKED], 2, {"EVAL-NO-MEDIA"}),
        (["model", "text.mp4", ASKED], 2, {"DATA-MEDIA-UNDECODABLE"}),
        (["model", "gone.mp4", "empty", " "], 2,
         {"DATA-MEDIA-MISSING", "EVAL-NO-MEDIA", "EVAL-PROMPT-EMPTY"}),
        (["model", CLIP, ""], 2, {"EVAL-PROMPT-EMPTY"}),
        (["model", CLIP], 2, {"USAGE"}),
        (["model", CLIP, CLIP], 2, {"USAGE"}),
        (["model", CLIP, "--questions", "none.txt"], 2, {"EVAL-PROMPT-EMPTY"}),
        (["model", CLIP, "--questions", "gone.txt"], 2, {"FILE-MISSING"}),
        (["empty", CLIP, ASKED], 2, {"SPEC-PARENT"}),
        (["bare", CLIP, ASKED], 2, {"CKPT-SHARD-DAMAGED"}),
        (["nonesuch", CLIP, ASKED], 2, {"SPEC-MODEL-NAME"}),
        (["./gone", CLIP, ASKED], 2, {"JOB-INPUT-MISSING"}),
        (["adapter", CLIP, ASKED], 2, {"CKPT-SHARD-DAMAGED", "JOB-INPUT-MISSING"}),
        (["model", CLIP, ASKED, "--set", "nframs=4"], 2, {"SPEC-KEY-UNKNOWN"}),
        (["model", CLIP, ASKED, "--served-model", "x"], 2, {"USAGE"}),
    ],
)  # fmt: skip
def test_bad_input_is_a_finding_each(bad, words, code, found):
    done = ask(*words, "--json", cwd=bad)
    told = json.loads(done.stdout)["findings"]
    errors = [finding["id"] for finding in told if finding["severity"] == "error"]
    assert (done.returncode, sorted(errors)) == (code, sorted(found))


def test_fixes_are_for_this_command(bad):
    done = ask("nonesuch", CLIP, ASKED, "--set", "nframs=4", cwd=bad)
    assert "nvidia/" not in done.stderr and "--model" not in done.stderr
    assert "replace --set nframs=4 with --set vision.nframes=4" in done.stderr
