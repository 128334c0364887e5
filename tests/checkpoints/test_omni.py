"""The conversion of Omni checkpoints, on the tiny one in the published layout."""

import json
import os
import re
import shutil
import subprocess
import sys

import jsonschema
import pytest
import torch
import transformers
from omni_layouts import (
    NANO,
    SUPER,
    as_export,
    contents,
    convert,
    edit_json,
    finding_ids,
    write_layout,
    write_tensors,
)
from support import ROOT

from cosmos_reason.checkpoints import architectures, conversion, omni, tensor_numbers
from cosmos_reason.demo import tiny_omni

SCRIPT = "prepare_cosmos3_vlm_checkpoint.py"


@pytest.fixture
def source(published, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(published, tmp_path / "omni")


def rewrite(path, change):
    """Change the tensors {name: (dtype, shape, bytes)} of one file."""
    from safetensors import deserialize

    tensors = {
        name: (e["dtype"], tuple(e["shape"]), bytes(e["data"]))
        for name, e in deserialize(path.read_bytes())
    }
    change(tensors)
    write_tensors(path, tensors)


def in_index(source, change):
    """Change {tensor: file} of the root's index."""
    edit_json(source / "model.safetensors.index.json", lambda index: change(index["weight_map"]))


def test_every_reasoner_and_vision_tensor_arrives_bit_for_bit(published, tmp_path):
    """Under which names, transformers tells (below)."""
    done = convert(published, tmp_path / "out", flags=["--max-shard-size", "500KB"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"converted_checkpoint={tmp_path / 'out'}\nstatus=converted\n"
    before, after = contents(published), contents(tmp_path / "out")
    dropped = re.compile("_moe_gen|proj_in|add|^(proj_out|time|audio|action)")
    kept_bytes = [before[name][2] for name in before if not dropped.search(name)]
    assert sorted(after[name][2] for name in after) == sorted(kept_bytes)
    shards = list((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 3 and max(path.stat().st_size for path in shards) < 510_000


def test_output_holds_everything_a_loader_asks_for(published, tmp_path):
    convert(published, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= set(
        "config.json generation_config.json tokenizer.json tokenizer_config.json vocab.json "
        "chat_template.jinja chat_template.json preprocessor_config.json provenance.json".split()
    )
    assert not [name for name in names if name.startswith(".") or name.endswith(".part")]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "qwen3_vl"
    assert config["text_config"]["rope_scaling"]["mrope_section"] == [6, 5, 5]
    assert "allow_patterns_overrides" not in config and "model" not in config
    schema = json.loads((ROOT / "schemas" / "provenance.schema.json").read_text())
    provenance = json.loads((tmp_path / "out" / conversion.PROVENANCE).read_text())
    jsonschema.Draft202012Validator(schema).validate(provenance)
    assert set(provenance["files"]) | {conversion.PROVENANCE} == names


def test_the_export_of_a_fine_tune(published, tmp_path):
    export = as_export(published, tmp_path / "export")
    assert convert(export, tmp_path / "a").returncode == 0
    assert convert(published, tmp_path / "b").returncode == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    assert configs[0] == configs[1]


def widened(tensors, word, has_word):
    """Widen to float32 those tensors whose names have, or have not, a word."""
    for name, (_, shape, data) in tensors.items():
        if (word in name) == has_word:
            wide = tensor_numbers.to_float32(data, "BF16").tobytes()
            tensors[name] = ("F32", shape, wide)


def test_an_export_of_mixed_dtypes_becomes_bfloat16(published, tmp_path):
    export = as_export(published, tmp_path / "export")
    path = export / "model.safetensors"
    rewrite(path, lambda tensors: widened(tensors, "visual", False))
    done = convert(export, tmp_path / "out")
    assert done.returncode == 0 and "CKPT-ROUNDED" in done.stderr
    assert convert(export, tmp_path / "out").stdout.endswith("skipped_existing\n")
    convert(published, tmp_path / "b")
    assert contents(tmp_path / "out") == contents(tmp_path / "b")
    rewrite(path, lambda tensors: widened(tensors, "visual", True))
    assert convert(export, tmp_path / "wide").returncode == 0
    assert {dtype for dtype, *_ in contents(tmp_path / "wide").values()} == {"F32"}


def test_what_looks_unusual_and_is_right(source, tmp_path):
    def change(config):
        rope = config["text_config"]["rope_scaling"]
        text = config["text_config"] | {"rope_scaling": None, "rope_parameters": rope}
        config.update(quantization_config=None, text_config=text)

    rope = json.loads((source / "config.json").read_text())["text_config"]["rope_scaling"]
    edit_json(source / "config.json", change)
    scales = {"audio_proj_in.x_scale": ("BF16", (1,), b"\0\0")}
    rewrite(source / VISION, lambda tensors: tensors.update(scales))
    in_index(source, lambda files: files.update(dict.fromkeys(scales, VISION)))
    assert convert(source, tmp_path / "out").returncode == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["text_config"]["rope_scaling"] == rope
    shapes = {name: tensor.shape for name, tensor in omni.open_source(source).tensors.items()}
    config["text_config"].pop("head_dim")
    wrong = {finding.id for finding in architectures.compare("x", config, shapes)}
    assert wrong == {"CKPT-TENSOR-SHAPE"}, "the class's head_dim is 128, this model's is 32"


@pytest.mark.parametrize("donor", ["omni", "qwen"])
def test_a_donor_supplies_what_an_export_lacks_and_nothing_else(published, tmp_path, donor):
    export, donors = as_export(published, tmp_path / "export", bare=True), tmp_path / "donors"
    refused = convert(export, tmp_path / "out", flags=["--json"])
    assert refused.returncode == 2 and "--vlm-model-name" in refused.stdout
    tiny_omni.build(donors / "omni", seed=7, text="left right yes no")
    convert(donors / "omni", donors / "qwen")
    done = convert(export, tmp_path / "out", flags=["--donor", donors / donor])
    assert done.returncode == 0 and "CKPT-DONOR-USED" in done.stderr
    out, own, others = contents(tmp_path / "out"), contents(published), contents(donors / "qwen")
    for name, tensor in out.items():
        expected = others[name] if name.startswith("model.visual.") else None
        assert tensor == expected if expected else tensor in own.values()
    provenance = json.loads((tmp_path / "out" / conversion.PROVENANCE).read_text())
    assert {"config", "vision tower", "tokenizer.json"} <= set(provenance["donor"]["supplied"])
    schema = json.loads((ROOT / "schemas" / "provenance.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(provenance)


def test_a_donor_that_is_not_needed_changes_nothing(published, tmp_path):
    tiny_omni.build(tmp_path / "other", seed=7, text="left right yes no")
    convert(published, tmp_path / "a")
    convert(published, tmp_path / "b", flags=["--donor", tmp_path / "other"])
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_hub_cache_snapshot(published, tmp_path):
    """Files are links to ../../blobs; the commit is the folder's name."""
    snapshot = tmp_path / "models--nvidia--Cosmos3-Nano" / "snapshots" / ("c0" * 20)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in published.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / str(number))
        link = snapshot / path.relative_to(published)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    assert convert(snapshot, tmp_path / "out").returncode == 0
    provenance = json.loads((tmp_path / "out" / conversion.PROVENANCE).read_text())
    assert provenance["source"]["commit"] == "c0" * 20
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_symlink()]
    refused = convert(snapshot.parents[1], tmp_path / "out2", flags=["--json"])
    assert (refused.returncode, finding_ids(refused)) == (2, ["CKPT-HUB-CACHE"])
    assert json.loads(refused.stdout)["findings"][0]["fix"] == f"--checkpoint-path {snapshot}"
    shutil.rmtree(blobs)
    assert convert(snapshot, tmp_path / "out2").returncode == 2


TRANSFORMER = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
VISION = "vision_encoder/model.safetensors"


def drop_tensor(source):
    rewrite(source / VISION, lambda tensors: tensors.pop("pos_embed.weight"))
    in_index(source, lambda files: files.pop("pos_embed.weight"))


def add_tensor(source):
    mystery = {"mystery.weight": ("BF16", (1,), b"\0\0")}
    rewrite(source / VISION, lambda tensors: tensors.update(mystery))
    in_index(source, lambda files: files.update(dict.fromkeys(mystery, VISION)))


def change_tensor(dtype, shape):
    def change(source):
        size = {"BF16": 2, "I32": 4, "F8_E4M3": 1}[dtype] * shape[0] * shape[1]
        tensors = {"pos_embed.weight": (dtype, shape, b"\0" * size)}
        rewrite(source / VISION, lambda stored: stored.update(tensors))

    return change


def set_config(part="", **values):
    """Change config.json, or one of its parts."""

    def change(config):
        (config[part] if part else config).update(values)

    return lambda source: edit_json(source / "config.json", change)


def loop(source):
    shutil.rmtree(source)
    source.symlink_to(source)


@pytest.mark.parametrize(
    ("damage", "finding", "exit_code"),
    [
        (lambda source: shutil.rmtree(source), "CKPT-SOURCE-MISSING", 2),
        (lambda source: (source / "config.json").write_text("{"), "FILE-NOT-JSON", 2),
        (set_config(model_type="qwen3_vl"), "CKPT-NOT-OMNI", 2),
        (set_config(model_type="llama"), "CKPT-NOT-OMNI", 2),
        (set_config(text_config=None), "CKPT-CONFIG-PARTIAL", 2),
        (set_config(vision_config={}), "CKPT-CONFIG-PARTIAL", 1),
        (set_config(quantization_config={}), "CKPT-QUANTIZED", 2),
        (change_tensor("F8_E4M3", (64, 64)), "CKPT-QUANTIZED", 2),
        (change_tensor("I32", (64, 64)), "CKPT-DTYPE", 1),
        (set_config("vision_config", spatial_merge_size=1e308), "CKPT-CONFIG-BAD", 1),
        (set_config("text_config", num_hidden_layers=10**8), "CKPT-CONFIG-BAD", 1),
        (set_config("text_config", hidden_size="128"), "CKPT-CONFIG-BAD", 1),
        (set_config("vision_config", deepstack_visual_indexes=5), "CKPT-CONFIG-BAD", 1),
        (set_config("text_config", rope_scaling=None), "CKPT-CONFIG-PARTIAL", 2),
        (lambda source: (source / "model.safetensors").write_bytes(b"x"), "CKPT-WEIGHTS-TWICE", 1),
        (lambda source: (source / "tokenizer.json").write_text("{}"), "CKPT-FILE-BAD", 1),
        (change_tensor("BF16", (63, 64)), "CKPT-TENSOR-SHAPE", 1),
        (drop_tensor, "CKPT-TENSOR-MISSING", 1),
        (add_tensor, "CKPT-TENSOR-UNMAPPED", 1),
        (lambda source: os.truncate(source / TRANSFORMER, 100_000), "CKPT-SHARD-DAMAGED", 1),
        (lambda source: (source / VISION).unlink(), "CKPT-SHARD-DAMAGED", 1),
        (lambda source: (source / "preprocessor_config.json").unlink(), "CKPT-FILE-MISSING", 1),
        (lambda source: (source / "tokenizer_config.json").write_text("{"), "FILE-NOT-JSON", 1),
        (lambda source: os.truncate(source / "tokenizer.json", 99), "FILE-NOT-JSON", 1),
        (lambda source: (source / "vocab.json").write_bytes(b"\xff{}"), "FILE-UNREADABLE", 1),
        (lambda source: (source / "config.json").write_text("[]"), "CKPT-FILE-BAD", 2),
        (loop, "CKPT-SOURCE-MISSING", 2),
    ],
)
def test_bad_sources_are_refused_with_the_reason(source, tmp_path, damage, finding, exit_code):
    damage(source)
    done = convert(source, tmp_path / "out", flags=["--json"])
    told = (done.returncode, finding in finding_ids(done))
    assert told == (exit_code, True), done.stdout + done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name != "omni"]


def test_a_chat_template_is_found_wherever_it_stands(source, tmp_path):
    template = (source / "chat_template.jinja").read_text()
    (source / "chat_template.jinja").unlink()
    (source / "chat_template.json").unlink()
    assert convert(source, tmp_path / "none").returncode == 1
    edit_json(source / "tokenizer_config.json", lambda value: value.update(chat_template=template))
    assert convert(source, tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    told = json.loads((tmp_path / "out" / "chat_template.json").read_text())
    assert told == {"chat_template": template}


@pytest.mark.parametrize(
    "flags", ["--jobs 0", "--max-shard-size 5apples", "--output x", "--cache-dir s3://a/b"]
)
def test_wrong_usage(published, tmp_path, flags):
    done = convert(published, tmp_path / "out", flags=flags.split())
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_typo_instead_of_the_folder(tmp_path):
    done = convert("Cosmos3-Nanoo", tmp_path / "out", flags=["--json"])
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["where"]) == (2, "--checkpoint-path")
    assert "Did you mean" in finding["message"]


def without_rights(*command):
    """Run as root runs without its right to read and write everywhere; other users never have
    it."""
    rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    words = [*(rights if os.geteuid() == 0 else []), *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_targets_that_cannot_be_written_and_sources_that_cannot_be_read(source, tmp_path):
    (tmp_path / "fixed").mkdir(mode=0o555)
    words = f"--json --checkpoint-path {source} --output-path".split()
    command = [sys.executable, ROOT / "scripts" / SCRIPT, *words]
    done = without_rights(*command, tmp_path / "fixed" / "out")
    assert (done.returncode, finding_ids(done)) == (3, ["OS-ERROR"]), done.stderr
    assert list((tmp_path / "fixed").iterdir()) == []
    for path, finding in ((source / VISION, "CKPT-SHARD-DAMAGED"), (source, "FILE-UNREADABLE")):
        path.chmod(0o000)
        done = without_rights(*command, tmp_path / "out")
        path.chmod(0o755)
        assert done.returncode in (1, 2) and finding in finding_ids(done), done.stdout + done.stderr
        assert not (tmp_path / "out").exists()


def test_the_output_must_lie_outside_the_source(source, tmp_path):
    for output in (source, source / "out", tmp_path):
        done = convert(source, output, flags=["--json", "--force"])
        assert finding_ids(done) == ["CKPT-OUTPUT-OVERLAPS"] and (source / "config.json").exists()


@pytest.mark.parametrize(
    ("config", "kept", "dropped", "total_size"),
    [(NANO, 750, 415, 17_534_247_392), (SUPER, 1058, 723, 66_714_780_128)],
    ids=["nano", "super"],
)
def test_the_published_sizes(tmp_path, config, kept, dropped, total_size):
    """Full size, with holes for weights. The totals are those that the Hub's own 8B and 32B models
    state."""
    write_layout(tmp_path / "omni", config)
    source = omni.open_source(tmp_path / "omni")
    assert (len(source.tensors), source.dropped, source.total_size) == (kept, dropped, total_size)


def test_the_same_seed_gives_the_same_checkpoint(published, tmp_path):
    for name in "ab":
        tiny_omni.build(tmp_path / name, seed=1, text="left right")
    written = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    for path in written:
        again = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == again.read_bytes(), path
    parameters = omni.open_source(published).total_size / 2
    assert 0.9e6 < parameters < 1.1e6


def test_transformers_reads_the_same_tensors_of_the_omni_checkpoint_and_of_its_conversion(
    published, tmp_path
):
    """Its own classes read both, so they are the oracle of the conversion."""
    conversion.convert(omni.open_source(published), tmp_path / "out", 10**9, force=False, jobs=1)
    states = []
    for kind, folder in (
        (transformers.Cosmos3OmniForConditionalGeneration, published),
        (transformers.Qwen3VLForConditionalGeneration, tmp_path / "out"),
    ):
        network, told = kind.from_pretrained(folder, output_loading_info=True)
        assert not any(told.values()), told
        states.append(network.state_dict())
    native, converted = states
    assert native.keys() == converted.keys()
    for name, tensor in native.items():
        assert torch.equal(tensor, converted[name]), name
