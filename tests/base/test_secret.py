"""What reaches a terminal: no credential, nothing that a terminal obeys, and all the rest as it was
written."""

import ast
import json
from secrets import token_hex

import pytest
from support import ROOT, run_script

from cosmos_reason.base import files, findings, secrets
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni

PASSWORD = "canary-pw"
WITH_PASSWORD = f"http://user:{PASSWORD}@127.0.0.1:9"
# Credentials are made up in each run: none lies in the repository, not even one that opens nothing.
CANARY = f"A7z{token_hex(12)}"

HIDDEN = {
    "password of an address": f"HTTPSConnectionPool: http://bob:{CANARY}@host:9000/bucket refused",
    "one with an at sign": f"pull access denied for https://bob:a@{CANARY}@registry.example",
    "Hugging Face": f"401 for token hf_{CANARY}{CANARY} of this user",
    "AWS, by its name": f"key AKIA{CANARY[:16].upper()} is not known",
    "OpenAI": f"key sk-proj-{CANARY} refused",
    "NVIDIA": f"key nvapi-{CANARY} refused",
    "AWS, by the variable": f"AWS_SECRET_ACCESS_KEY={CANARY}/{CANARY}",
    "a password": f"password: '{CANARY}'",
    "a header": f"Authorization: Bearer {CANARY}.def-ghi",
    "a signature": f"GET https://b/x?X-Amz-Signature={CANARY}&b=1",
}
KEPT = [
    "the training failed, trainings fail",
    "asia-southeast1-docker.pkg.dev/asia-pacific-southeast",
    "/data/sk-learn-experiments-with-frames/a.mp4",
    "hf_transfer_is_installed",
    "HF_TOKEN: rejected by the server",
    "max_token: unlimited, vision_token: 151656",
    "eos_token = <|im_end|>",
    "http://localhost:8000/v1",
    "ssh://me@far",
]


@pytest.mark.parametrize("what", HIDDEN)
def test_what_looks_like_a_credential_is_hidden(what):
    told = secrets.hidden(HIDDEN[what])
    assert secrets.HIDDEN in told and CANARY[:8].lower() not in told.lower()
    assert not any(words in told for words in ("a@", "hf_", "AKIA", ".def-ghi"))


@pytest.mark.parametrize("text", KEPT)
def test_what_does_not_look_like_one_stays(text):
    assert secrets.hidden(text) == text


def test_a_variable_that_sounds_like_a_key_hides_no_words(monkeypatch):
    for name, value in {
        "SOME_KEY": "training",
        "SERVER_KEY": "canary-of-an-endpoint",
        "CACHE_KEY": "2026.10",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_TOKEN", "none")
    monkeypatch.setenv("WANDB_API_KEY", "canary-0123")
    assert (
        secrets.hidden("the training failed in 2026.10: none")
        == "the training failed in 2026.10: none"
    )
    assert secrets.hidden("got canary-of-an-endpoint, canary-0123") == "got [hidden], [hidden]"


def test_what_a_terminal_obeys_is_spelled_out():
    said = (
        "red \x1b[31m, \x9b2J, turned \u202e, title \x1b]0;x\x07, back \r\x08\n"
        "next\tline \u00fc \u65e5"
    )
    shown = findings.printable(said)
    assert shown == (
        "red \\x1b[31m, \\x9b2J, turned \\u202e, title \\x1b]0;x\\x07, back \\x0d\\x08\n"
        "next\tline \u00fc \u65e5"
    )
    document = findings.as_json({"said": said, "where": [WITH_PASSWORD]})
    assert json.loads(document)["said"] == said and json.loads(document)["where"] == [
        "http://[hidden]@127.0.0.1:9"
    ]
    assert not any(code in document for code in ("\x1b", "\x9b", "\x07", "\r", "\u202e"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Annotations whose answers and ids a terminal would obey, a spec with them, and a model to
    publish."""
    folder = tmp_path_factory.mktemp("hostile")
    turns = [
        {"from": "human", "value": "what?"},
        {"from": "gpt", "value": "\x1b[2J\x1b]0;owned\x07 \x9b31m yes"},
    ]
    records = [{"id": f"\x1b[3{n}m", "video": "a.mp4", "conversations": turns} for n in range(4)]
    files.write_json(folder / "annotations.json", records)
    (folder / "table.csv").write_text("video,label\n\x1b[31ma.mp4,\x1b[31mred\n")
    tiny_omni.build(folder / "omni", seed=1, text="left right yes no")
    conversion.convert(
        omni.open_source(folder / "omni"), folder / "model", 10**9, force=False, jobs=1
    )
    return folder


PLACES = [
    ("build_spec.py", "train", "--train-root", f"{WITH_PASSWORD}/data", "-o", "x.toml"),
    (
        "build_spec.py",
        "train",
        "--set",
        f"policy.model_name_or_path={WITH_PASSWORD}/model",
        "-o",
        "x.toml",
    ),
    ("build_spec.py", "train", "--spec", f"{WITH_PASSWORD}/spec.toml", "-o", "x.toml"),
    ("build_spec.py", WITH_PASSWORD),
    ("build_spec.py", "--explain", WITH_PASSWORD),
    (
        "check_dataset.py",
        f"{WITH_PASSWORD}/annotations.json",
        "--media-path",
        f"{WITH_PASSWORD}/media",
    ),
    ("check_dataset.py", "annotations.json", "--media-path", f"{WITH_PASSWORD}/media"),
    ("check_dataset.py", "annotations.json", "--media-path", "."),
    ("check_dataset.py", "s3://bucket/annotations.json", "--media-path", "s3://bucket/media"),
    ("build_dataset.py", f"{WITH_PASSWORD}/table.csv", "-o", "out"),
    ("build_dataset.py", "table.csv", "-o", "out", "--media-root", WITH_PASSWORD),
    ("build_dataset.py", "table.csv", "-o", "out"),
    ("publish_checkpoint.py", "model", "--s3", "s3://bucket/x"),
    ("publish_checkpoint.py", "model", "--hub", WITH_PASSWORD),
    ("score_predictions.py", f"{WITH_PASSWORD}/results.json"),
    ("select_checkpoint.py", f"{WITH_PASSWORD}/out"),
    (
        "prepare_cosmos3_vlm_checkpoint.py",
        "--checkpoint-path",
        f"{WITH_PASSWORD}/m",
        "--output-path",
        "o",
    ),
    ("tune_hyperparameters.py", "plan", "--study", "s", "--spec", f"{WITH_PASSWORD}/spec.toml"),
    (
        "launch_job.py",
        "plan",
        "train",
        "--spec",
        f"{WITH_PASSWORD}/spec.toml",
        "--platform",
        "local",
    ),
    ("diagnose_log.py", f"{WITH_PASSWORD}/log.txt"),
]


AS_JSON = [(*words, "--json") for words in (PLACES[0], PLACES[6], PLACES[7], PLACES[12])]


@pytest.mark.parametrize("words", PLACES + AS_JSON, ids=lambda words: " ".join(words)[:70])
def test_no_command_prints_a_password_or_a_terminal_code(hostile, words):
    env = {
        "AWS_ENDPOINT_URL": WITH_PASSWORD,
        "AWS_ACCESS_KEY_ID": "canary-id",
        "AWS_SECRET_ACCESS_KEY": "canary-key",
    }
    env |= {
        "HF_ENDPOINT": WITH_PASSWORD,
        "AWS_MAX_ATTEMPTS": "1",
        "XDG_CACHE_HOME": str(hostile / "cache"),
    }
    done = run_script(*words, cwd=hostile, env=env)
    said = done.stdout + done.stderr
    assert said and "Traceback" not in said, said
    assert "canary" not in said, said
    assert not any(code in said for code in ("\x1b", "\x9b", "\x07")), said.encode()


def test_nothing_is_printed_but_through_the_functions_that_clean_it():
    own = {"scripts/cosmos_reason/base/findings.py", "scripts/cosmos_reason/cli.py"}
    own |= {
        "scripts/cosmos_reason/base/files.py",
        "scripts/run_demo.py",
    }  # a bar of numbers; what our commands printed
    own |= {"scripts/cosmos_reason/engine/loadable.py"}  # a child process, read by its parent
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in own or "in_container" in name:
            continue
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        for call in calls:
            wild = ast.unparse(call.func) in (
                "print",
                "sys.stdout.write",
                "sys.stderr.write",
                "warnings.warn",
            )
            first = (
                ast.unparse(call.args[0].func)
                if call.args and isinstance(call.args[0], ast.Call)
                else ""
            )
            cleaned = first.removeprefix("findings.") in ("printable", "as_json")
            assert cleaned or not wild, f"{name}: {ast.unparse(call)}: use findings.say"
