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
    monkeypatch.setenv("SOME_KEY", "training")
    monkeypatch.setenv("SERVER_KEY", "canary-of-an-endpoint")
    monkeypatch.setenv("CACHE_KEY", "2026.10")
    monkeypatch.setenv("HF_TOKEN", "none")
    monkeypatch.setenv("WANDB_API_KEY", "canary-0123")
    told = "the training failed in 2026.10: none"
    assert secrets.hidden(told) == told
    assert secrets.hidden("got canary-of-an-endpoint, canary-0123") == "got [hidden], [hidden]"


def test_what_a_terminal_obeys_is_spelled_out():
    said = "red \x1b[31m, \x9b2J, turned \u202e, title \x1b]0;x\x07, back \r\x08\nnext\tü 日"
    shown = (
        "red \\x1b[31m, \\x9b2J, turned \\u202e, title \\x1b]0;x\\x07, back \\x0d\\x08\nnext\tü 日"
    )
    assert findings.printable(said) == shown
    document = findings.as_json({"said": said, "where": [WITH_PASSWORD]})
    assert json.loads(document) == {"said": said, "where": ["http://[hidden]@127.0.0.1:9"]}
    assert not any(code in document for code in ("\x1b", "\x9b", "\x07", "\r", "\u202e"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Annotations whose answers and ids a terminal would obey, a spec with them, and a model to
    publish."""
    folder = tmp_path_factory.mktemp("hostile")
    answer = {"from": "gpt", "value": "\x1b[2J\x1b]0;owned\x07 \x9b31m yes"}
    turns = [{"from": "human", "value": "what?"}, answer]
    records = [{"id": f"\x1b[3{n}m", "video": "a.mp4", "conversations": turns} for n in range(4)]
    files.write_json(folder / "annotations.json", records)
    (folder / "table.csv").write_text("video,label\n\x1b[31ma.mp4,\x1b[31mred\n")
    tiny_omni.build(folder / "omni", seed=1, text="left right yes no")
    source = omni.open_source(folder / "omni")
    conversion.convert(source, folder / "model", 10**9, force=False, jobs=1)
    return folder


PLACES = [
    "build_spec.py train --train-root AT/data -o x.toml",
    "build_spec.py train --set policy.model_name_or_path=AT/model -o x.toml",
    "build_spec.py train --spec AT/spec.toml -o x.toml",
    "build_spec.py AT",
    "build_spec.py --explain AT",
    "check_dataset.py AT/annotations.json --media-path AT/media",
    "check_dataset.py annotations.json --media-path AT/media",
    "check_dataset.py annotations.json --media-path .",
    "check_dataset.py s3://bucket/annotations.json --media-path s3://bucket/media",
    "build_dataset.py AT/table.csv -o out",
    "build_dataset.py table.csv -o out --media-root AT",
    "build_dataset.py table.csv -o out",
    "publish_checkpoint.py model --s3 s3://bucket/x",
    "publish_checkpoint.py model --hub AT",
    "score_predictions.py AT/results.json",
    "select_checkpoint.py AT/out",
    "prepare_cosmos3_vlm_checkpoint.py --checkpoint-path AT/m --output-path o",
    "tune_hyperparameters.py plan --study s --spec AT/spec.toml",
    "launch_job.py plan train --spec AT/spec.toml --platform local",
    "diagnose_log.py AT/log.txt",
]


AS_JSON = [f"{PLACES[number]} --json" for number in (0, 6, 7, 12)]


@pytest.mark.parametrize("line", PLACES + AS_JSON)
def test_no_command_prints_a_password_or_a_terminal_code(hostile, line):
    env = {"AWS_ACCESS_KEY_ID": "canary-id", "AWS_SECRET_ACCESS_KEY": "canary-key"}
    env |= {"AWS_ENDPOINT_URL": WITH_PASSWORD, "HF_ENDPOINT": WITH_PASSWORD}
    env |= {"AWS_MAX_ATTEMPTS": "1", "XDG_CACHE_HOME": str(hostile / "cache")}
    done = run_script(line.replace("AT", WITH_PASSWORD), cwd=hostile, env=env)
    said = done.stdout + done.stderr
    assert said and "Traceback" not in said, said
    assert "canary" not in said, said
    assert not any(code in said for code in ("\x1b", "\x9b", "\x07")), said.encode()


OWN = {
    "cosmos_reason/base/findings.py",
    "cosmos_reason/cli.py",
    "cosmos_reason/base/files.py",  # a bar of numbers
    "run_demo.py",  # what our commands printed
    "cosmos_reason/engine/loadable.py",  # a child process, read by its parent
}


WILD = ("print", "sys.stdout.write", "sys.stderr.write", "warnings.warn")


def test_nothing_is_printed_but_through_the_functions_that_clean_it():
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        name = path.relative_to(ROOT / "scripts").as_posix()
        if name in OWN or "in_container" in name:
            continue
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text if any(f"{words}(" in text for words in WILD) else "")
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in WILD:
                first = call.args[0] if call.args else None
                cleaner = ast.unparse(first.func) if isinstance(first, ast.Call) else ""
                cleaned = cleaner.removeprefix("findings.") in ("printable", "as_json")
                assert cleaned, f"{name}: {ast.unparse(call)}: use findings.say"
