"""Models whose weights are no numbers, or whose config.json describes none: nobody asks, chooses,
merges or publishes them."""

import json
import shutil

import pytest
import torch
from evaluating import write_spec
from safetensors.torch import load_file, save_file
from scoring import row, score, write
from support import run_here, run_script

from cosmos_reason.base import files
from cosmos_reason.checkpoints import safetensors_files


@pytest.fixture
def weights(checkpoint):
    """The file with the weights of step_10."""
    shutil.rmtree(checkpoint.parents[1] / "checkpoints" / "step_10" / "policy")
    single = checkpoint / safetensors_files.SINGLE
    if not single.is_file():
        (single,) = checkpoint.glob("*.safetensors")
    return single


def damage(weights):
    """2,000 bytes of 0xff, where no sample of a tensor is taken."""
    tensors = safetensors_files.read_header(weights)
    largest = max(tensors.values(), key=lambda tensor: tensor.nbytes)
    assert largest.nbytes > 20_000
    with open(weights, "r+b") as handle:
        handle.seek(largest.begin + 6_000)
        handle.write(b"\xff" * 2_000)


def errors_of(done) -> list[str]:
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)["findings"]
    return [finding["id"] for finding in found if finding["severity"] == "error"]


def commands(evaluate_spec, tmp_path) -> dict[str, list]:
    folder = evaluate_spec["model"]["model_name"]
    spec = write_spec(evaluate_spec, tmp_path / "e.toml")
    clip = next((tmp_path / "eval" / "videos").iterdir())
    return {
        "evaluate": ["run_with_transformers.py", "evaluate", "--config", spec],
        "ask": ["ask_model.py", folder, clip, "What happens?", "--set", "max_tokens=2"],
        "choose": ["select_checkpoint.py", tmp_path / "out", "--by", "step_10"],
        "publish": ["publish_checkpoint.py", folder, "--hub", "org/name"],
    }


@pytest.mark.parametrize("what", ["evaluate", "ask", "choose", "publish"])
def test_weights_that_are_no_numbers_are_found_before_anything_is_done(
    evaluate_spec, weights, tmp_path, what
):
    damage(weights)
    name, *words = commands(evaluate_spec, tmp_path)[what]
    run = run_here if what in ("evaluate", "ask") else run_script
    done = run(name, *words, "--json", cwd=tmp_path)
    assert (done.returncode, errors_of(done)) == (1, ["CKPT-NOT-FINITE"])
    assert not (tmp_path / "results" / "results.json").exists()


def in_shards(folder):
    """The same model in two files, the second of which holds one infinite number."""
    table = load_file(folder / safetensors_files.SINGLE)
    names = sorted(table)
    table[names[-1]].view(-1)[1] = float("inf")
    shards = {}
    for number in (0, 1):
        shards |= dict.fromkeys(names[number::2], f"model-{number}.safetensors")
        part = {name: table[name] for name in names[number::2]}
        save_file(part, folder / f"model-{number}.safetensors", {"format": "pt"})
    (folder / safetensors_files.SINGLE).unlink()
    safetensors_files.write_index(folder, shards, 0)


def as_adapter(folder):
    """An adapter of the model, one half of which has a number that is none."""
    base = folder.parents[3] / "base"
    shutil.copytree(folder, base)
    shutil.rmtree(folder)
    folder.mkdir()
    tensors = safetensors_files.read_folder(base)[0]
    (query, *_) = (name for name in tensors if name.endswith("self_attn.q_proj.weight"))
    outputs, inputs = tensors[query].shape
    module = f"base_model.model.{query.removesuffix('.weight')}"
    halves = {
        f"{module}.lora_A.weight": torch.ones(2, inputs),
        f"{module}.lora_B.weight": torch.full((outputs, 2), float("nan")),
    }
    save_file(halves, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    config |= {"base_model_name_or_path": str(base)}
    files.write_json(folder / "adapter_config.json", config)


@pytest.mark.parametrize("form", [in_shards, as_adapter], ids=lambda form: form.__name__)
@pytest.mark.parametrize("what", ["ask", "choose", "publish"])
def test_shards_and_adapters_are_looked_at_as_a_whole_too(
    evaluate_spec, weights, tmp_path, form, what
):
    if weights.name != safetensors_files.SINGLE:
        weights.rename(weights.parent / safetensors_files.SINGLE)
        (weights.parent / safetensors_files.INDEX_NAME).unlink()
    form(weights.parent)
    name, *words = commands(evaluate_spec, tmp_path)[what]
    run = run_here if what == "ask" else run_script
    done = run(name, *words, "--json", cwd=tmp_path)
    assert done.returncode in (1, 2) and errors_of(done) == ["CKPT-NOT-FINITE"]


@pytest.mark.parametrize(
    ("what", "config"),
    [
        ("evaluate", {"model_type": 3}),
        ("ask", {"model_type": "qwen3_vl"}),
        ("choose", {}),
        ("publish", []),
    ],
)
def test_a_config_that_describes_no_model_is_a_finding_everywhere(
    evaluate_spec, weights, tmp_path, what, config
):
    files.write_json(weights.parent / "config.json", config)
    name, *words = commands(evaluate_spec, tmp_path)[what]
    run = run_here if what in ("evaluate", "ask") else run_script
    done = run(name, *words, "--json", cwd=tmp_path)
    found = errors_of(done)
    assert done.returncode in ((1, 2) if what in ("choose", "publish") else (2,)) and found
    known = {"CKPT-CONFIG-BAD", "CKPT-CONFIG-PARTIAL", "CKPT-FILE-BAD"}
    assert known & set(found), found


def test_logits_that_are_not_finite_end_the_action_and_leave_no_answer(
    evaluate_spec, weights, tmp_path
):
    """The weights are numbers, what is computed with them is none."""
    table = load_file(weights)
    for name, tensor in table.items():
        if name.endswith(("lm_head.weight", "language_model.norm.weight")):
            table[name] = torch.full_like(tensor, 3e38)
    save_file(table, weights, {"format": "pt"})
    spec = write_spec(evaluate_spec, tmp_path / "e.toml")
    words = ["evaluate", "--config", spec, "--json"]
    done = run_here("run_with_transformers.py", *words, cwd=tmp_path)
    assert (done.returncode, errors_of(done)) == (3, ["ENGINE-LOGITS-NOT-FINITE"])
    rows = files.read_json(tmp_path / "results" / "results.json")
    assert len(rows) == 12 and all(one["error"] and one["response"] is None for one in rows)
    code, document = score(tmp_path / "results", "--write")
    assert (code, document["result"]["runs"]) == (1, [])
    assert not (tmp_path / "results" / "metrics.json").exists()


def test_answers_of_one_sign_are_no_answers_and_ask_for_no_more_tokens(tmp_path):
    """What an engine of others makes of such weights."""
    rows = [row(f"q{n}", response="!!!!", is_cut=True) for n in range(12)]
    write(tmp_path / "results.json", rows)
    code, document = score(tmp_path)
    found = {finding["id"] for finding in document["findings"]}
    assert (code, document["result"]["runs"]) == (1, [])
    assert "EVAL-ALL-FAILED" in found and "EVAL-CUT-SHORT" not in found


TOKENS = {
    "generation_config.json": '"api_key": "hf_' + "aB3" * 10 + '"',
    "tokenizer_config.json": '"note": "AKIA' + "Q7" * 8 + '"',
    "preprocessor_config.json": '"x": "nvapi-' + "aB3" * 12 + '"',
    "chat_template.jinja": "{# sk-" + "aB3" * 12 + " #}",
    "config.json": '"wandb_key": "' + "a1" * 20 + '"',
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_in_a_file_to_upload_is_an_error_that_never_shows_it(checkpoint, tmp_path, name):
    path = checkpoint / name
    text = path.read_text(encoding="utf-8") if path.is_file() else "{}"
    if name.endswith(".json"):
        body = text.strip().removeprefix("{").strip()
        text = "{" + TOKENS[name] + (", " if body != "}" else "") + body
    else:
        text += TOKENS[name]
    path.write_text(text, encoding="utf-8")
    done = run_script("publish_checkpoint.py", checkpoint, "--hub", "org/name", "--json")
    assert (done.returncode, errors_of(done)) == (1, ["PUBLISH-SECRET"])
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["id"] == "PUBLISH-SECRET"]
    assert found["data"]["file"] == name
    secret = TOKENS[name].split('"')[3] if '"' in TOKENS[name] else TOKENS[name].split()[1]
    assert secret not in done.stdout + done.stderr
