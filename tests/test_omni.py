"""The conversion of Omni checkpoints, on the tiny one in the published layout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jsonschema
import pytest
from omni_layouts import NANO, SUPER, as_export, contents, edit_json, write_layout
from support import ROOT, run_script

from cosmos_reason import conversion, omni, safetensors_files
from cosmos_reason.demo import tiny_omni
from cosmos_reason.findings import Failure

SCRIPT = "prepare_cosmos3_vlm_checkpoint.py"
TEXT = "Which way does the red circle move, left or right? Is the square green? yes no A. B. C. D. " * 4


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "omni"
    tiny_omni.build(folder, seed=1, text=TEXT)
    return folder


@pytest.fixture
def source(published, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(published, tmp_path / "omni")


def convert(source, output, **options):
    return run_script(SCRIPT, "--checkpoint-path", source, "--output-path", output, *options.get("flags", ()))


def finding_ids(done):
    return [finding["id"] for finding in json.loads(done.stdout)["findings"]]


def rewrite(path, change):
    """Change the tensors {name: (dtype, shape, bytes)} of one file."""
    from safetensors import deserialize

    tensors = {name: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for name, e in deserialize(path.read_bytes())}
    change(tensors)
    safetensors_files.write_tensors(path, tensors)


def test_every_reasoner_and_vision_tensor_arrives_bit_for_bit(published, tmp_path):
    done = convert(published, tmp_path / "out", flags=["--max-shard-size", "500KB"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"converted_checkpoint={tmp_path / 'out'}\nstatus=converted\n"
    before, after = contents(published), contents(tmp_path / "out")
    pairs = {
        "layers.2.self_attn.norm_k.weight": "model.language_model.layers.2.self_attn.k_norm.weight",
        "layers.0.self_attn.to_out.weight": "model.language_model.layers.0.self_attn.o_proj.weight",
        "layers.1.mlp.down_proj.weight": "model.language_model.layers.1.mlp.down_proj.weight",
        "embed_tokens.weight": "model.language_model.embed_tokens.weight",
        "norm.weight": "model.language_model.norm.weight",
        "lm_head.weight": "lm_head.weight",
        "deepstack_merger_list.1.linear_fc2.bias": "model.visual.deepstack_merger_list.1.linear_fc2.bias",
        "blocks.0.attn.qkv.weight": "model.visual.blocks.0.attn.qkv.weight",
    }
    for old, new in pairs.items():
        assert after[new] == before[old]
    kept = [name for name in before if "_moe_gen" not in name and "proj_in" not in name and "add" not in name]
    assert sorted(after[name][2] for name in after) == sorted(
        before[name][2] for name in kept if not name.startswith(("proj_out", "time", "audio", "action"))
        and "norm_added" not in name
    )  # fmt: skip
    shards = list((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 3 and max(path.stat().st_size for path in shards) < 510_000


def test_output_holds_everything_a_loader_asks_for(published, tmp_path):
    convert(published, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"}
    assert names >= {"chat_template.jinja", "chat_template.json", "preprocessor_config.json", conversion.PROVENANCE}
    assert not [name for name in names if name.startswith(".") or name.endswith(".part")]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "qwen3_vl" and config["text_config"]["rope_scaling"]["mrope_section"] == [6, 5, 5]
    assert "allow_patterns_overrides" not in config and "model" not in config
    schema = json.loads((ROOT / "schemas" / "provenance.schema.json").read_text())
    provenance = json.loads((tmp_path / "out" / conversion.PROVENANCE).read_text())
    jsonschema.Draft202012Validator(schema).validate(provenance)
    assert set(provenance["files"]) | {conversion.PROVENANCE} == names


def test_a_valid_output_is_reused_and_another_one_is_not_touched(published, tmp_path):
    out = tmp_path / "out"
    convert(published, out)
    stamps = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = convert(published, out)
    assert again.stdout.endswith("status=skipped_existing\n")
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == stamps
    other = tmp_path / "other"
    tiny_omni.build(other, seed=2, text=TEXT)
    refused = convert(other, out, flags=["--json"])
    assert refused.returncode == 1 and finding_ids(refused) == ["CKPT-OUTPUT-EXISTS", "CKPT-OUTPUT-OTHER"]
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == stamps
    assert convert(other, out, flags=["--force"]).stdout.endswith("status=converted\n")
    assert conversion.check_output(out, omni.open_source(other).fingerprint) == []


@pytest.mark.parametrize("damage", ["truncate", "delete", "edit", "provenance"])
def test_a_damaged_output_is_not_reused(published, tmp_path, damage):
    out = tmp_path / "out"
    convert(published, out)
    shard = next(out.glob("*.safetensors"))
    if damage == "truncate":
        os.truncate(shard, shard.stat().st_size - 1)
    elif damage == "delete":
        shard.unlink()
    elif damage == "edit":
        edit_json(out / "tokenizer_config.json", lambda value: value.update(model_max_length=1))
    else:
        (out / conversion.PROVENANCE).unlink()
    assert convert(published, out).returncode == 1
    assert convert(published, out, flags=["--force"]).returncode == 0
    assert convert(published, out).stdout.endswith("skipped_existing\n")


def test_the_export_of_a_fine_tune(published, tmp_path):
    export = as_export(published, tmp_path / "export")
    assert convert(export, tmp_path / "a").returncode == 0
    assert convert(published, tmp_path / "b").returncode == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("donor", ["omni", "qwen"])
def test_a_donor_supplies_what_an_export_lacks_and_nothing_else(published, tmp_path, donor):
    export, donors = as_export(published, tmp_path / "export", bare=True), tmp_path / "donors"
    refused = convert(export, tmp_path / "out", flags=["--json"])
    assert refused.returncode == 2 and "--vlm-model-name" in refused.stdout
    tiny_omni.build(donors / "omni", seed=7, text=TEXT)
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
    tiny_omni.build(tmp_path / "other", seed=7, text=TEXT)
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
    shutil.rmtree(blobs)
    assert convert(snapshot, tmp_path / "out2").returncode == 2


TRANSFORMER = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
VISION = "vision_encoder/model.safetensors"


def drop_tensor(source):
    rewrite(source / VISION, lambda tensors: tensors.pop("pos_embed.weight"))
    edit_json(source / "model.safetensors.index.json", lambda index: index["weight_map"].pop("pos_embed.weight"))


def add_tensor(source):
    rewrite(source / VISION, lambda tensors: tensors.update({"mystery.weight": ("BF16", (1,), b"\0\0")}))
    edit_json(source / "model.safetensors.index.json", lambda i: i["weight_map"].update({"mystery.weight": VISION}))


def change_tensor(dtype, shape):
    def change(source):
        size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype] * shape[0] * shape[1]
        tensors = {"pos_embed.weight": (dtype, shape, b"\0" * size)}
        rewrite(source / VISION, lambda stored: stored.update(tensors))

    return change


def set_config(**values):
    return lambda source: edit_json(source / "config.json", lambda config: config.update(values))


def loop(source):
    shutil.rmtree(source)
    source.symlink_to(source)


@pytest.mark.parametrize(
    ("damage", "finding", "exit_code"),
    [
        (lambda source: shutil.rmtree(source), "CKPT-SOURCE-MISSING", 2),
        (lambda source: (source / "config.json").write_text("{"), "FILE-NOT-JSON", 2),
        (set_config(model_type="cosmos3_edge"), "CKPT-EDGE", 2),
        (set_config(model_type="qwen3_vl"), "CKPT-NOT-OMNI", 2),
        (set_config(model_type="llama"), "CKPT-NOT-OMNI", 2),
        (set_config(text_config=None), "CKPT-CONFIG-PARTIAL", 2),
        (set_config(vision_config={}), "CKPT-CONFIG-PARTIAL", 1),
        (set_config(quantization_config={}), "CKPT-QUANTIZED", 2),
        (change_tensor("F8_E4M3", (64, 64)), "CKPT-QUANTIZED", 2),
        (change_tensor("F32", (64, 64)), "CKPT-DTYPE", 1),
        (change_tensor("BF16", (63, 64)), "CKPT-TENSOR-SHAPE", 1),
        (drop_tensor, "CKPT-TENSOR-MISSING", 1),
        (add_tensor, "CKPT-TENSOR-UNMAPPED", 1),
        (lambda source: os.truncate(source / TRANSFORMER, 100_000), "CKPT-SHARD-DAMAGED", 1),
        (lambda source: (source / VISION).unlink(), "CKPT-SHARD-DAMAGED", 1),
        (lambda source: (source / "preprocessor_config.json").unlink(), "CKPT-FILE-MISSING", 1),
        (lambda source: (source / "tokenizer_config.json").write_text("{"), "FILE-NOT-JSON", 2),
        (lambda source: (source / "config.json").write_text("[]"), "CKPT-FILE-BAD", 2),
        (loop, "CKPT-SOURCE-MISSING", 2),
    ],
)
def test_bad_sources_are_refused_with_the_reason(source, tmp_path, damage, finding, exit_code):
    damage(source)
    done = convert(source, tmp_path / "out", flags=["--json"])
    assert (done.returncode, finding in finding_ids(done)) == (exit_code, True), done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "omni") == []


def test_a_chat_template_is_found_wherever_it_stands(source, tmp_path):
    template = (source / "chat_template.jinja").read_text()
    (source / "chat_template.jinja").unlink()
    (source / "chat_template.json").unlink()
    assert convert(source, tmp_path / "none").returncode == 1
    edit_json(source / "tokenizer_config.json", lambda value: value.update(chat_template=template))
    assert convert(source, tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    assert json.loads((tmp_path / "out" / "chat_template.json").read_text()) == {"chat_template": template}


def test_force_deletes_model_folders_only(published, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.md").write_text("years of work")
    done = convert(published, tmp_path / "thesis", flags=["--force", "--json"])
    assert (done.returncode, finding_ids(done)) == (2, ["CKPT-OUTPUT-FOREIGN"])
    assert (tmp_path / "thesis" / "chapter.md").read_text() == "years of work"


@pytest.mark.parametrize("flags", [["--jobs", "0"], ["--max-shard-size", "5 apples"], ["--output", "x"]])
def test_wrong_usage(published, tmp_path, flags):
    done = convert(published, tmp_path / "out", flags=flags)
    assert done.returncode == 2 and "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_a_disk_that_refuses_in_the_middle(published, tmp_path):
    """The kernel refuses bytes beyond a file size limit, as it does on a full disk."""
    script = ROOT / "scripts" / SCRIPT
    command = (
        f"ulimit -f 1000; exec {sys.executable} {script} --checkpoint-path {published} --output-path {tmp_path}/out"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "OS-ERROR" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert convert(published, tmp_path / "out").returncode == 0


def test_the_output_must_lie_outside_the_source(source, tmp_path):
    for output in (source, source / "out", tmp_path):
        done = convert(source, output, flags=["--json", "--force"])
        assert finding_ids(done) == ["CKPT-OUTPUT-OVERLAPS"] and (source / "config.json").exists()


def test_a_killed_run_leaves_nothing_that_looks_complete_and_the_next_one_ends_right(published, tmp_path):
    """SIGKILL again and again while it runs with slowed copies, then once to the end."""
    out = tmp_path / "out"
    slowed = f"""
import sys, time
sys.argv = ["prepare", "--checkpoint-path", {str(published)!r}, "--output-path", {str(out)!r}]
sys.argv += ["--max-shard-size", "200KB"]
sys.path.insert(0, {str(ROOT / "scripts")!r})
import os
from cosmos_reason import command, omni, safetensors_files
import prepare_cosmos3_vlm_checkpoint as script
copy = os.copy_file_range
os.copy_file_range = lambda *args: (time.sleep(0.004), copy(*args))[1]
sys.exit(command.run(script.parser(), script.main))
"""
    for number in range(8):
        process = subprocess.Popen([sys.executable, "-c", slowed], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(0.12 + 0.04 * number)
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        if process.wait() == 0:
            break
        assert not out.exists()
    assert convert(published, out).returncode == 0
    assert conversion.check_output(out, omni.open_source(published).fingerprint) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    expected = {omni.target_name(name): value for name, value in contents(published).items() if omni.target_name(name)}
    assert contents(out) == expected


def test_an_interrupted_run_is_resumed_not_repeated(published, tmp_path):
    source, out = omni.open_source(published), tmp_path / "out"

    def stop(count, seen=[0]):  # noqa: B006
        seen[0] += count
        if seen[0] > source.total_size // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversion.convert(source, out, 300_000, force=False, jobs=2, copied=stop)
    work = next(tmp_path.glob(".out.incomplete-*"))
    finished = {path.name: path.stat().st_ino for path in work.glob("*.safetensors")}
    assert finished and not out.exists()
    assert conversion.convert(source, out, 300_000, force=False, jobs=1) == conversion.CONVERTED
    assert {name: (out / name).stat().st_ino for name in finished} == finished


def test_a_second_run_says_that_one_is_writing(published, tmp_path):
    source, out = omni.open_source(published), tmp_path / "out"
    seen = []

    def second(count):
        if not seen:
            seen.append(convert(published, out, flags=["--json"]))

    assert conversion.convert(source, out, 10**9, force=False, jobs=2, copied=second) == conversion.CONVERTED
    assert seen[0].returncode == 3 and finding_ids(seen[0]) == ["CKPT-OUTPUT-BUSY"]


def test_too_little_space_is_said_before_the_first_byte(published, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(Failure) as caught:
        conversion.convert(omni.open_source(published), tmp_path / "out", 10**9, force=False, jobs=1)
    assert caught.value.exit_code == 3 and caught.value.findings[0].id == "CKPT-DISK-FULL"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "kept", "dropped", "total_size"),
    [(NANO, 750, 415, 17_534_247_392), (SUPER, 1058, 723, 66_714_780_128)],
    ids=["nano", "super"],
)
def test_the_published_sizes(tmp_path, config, kept, dropped, total_size):
    """Full size, with holes for weights. The totals are those that the Hub's own 8B and 32B models state."""
    write_layout(tmp_path / "omni", config)
    source = omni.open_source(tmp_path / "omni")
    assert (len(source.tensors), source.dropped, source.total_size) == (kept, dropped, total_size)


def test_the_same_seed_gives_the_same_checkpoint(published, tmp_path):
    tiny_omni.build(tmp_path / "again", seed=1, text=TEXT)
    for path in published.rglob("*"):
        assert path.is_dir() or path.read_bytes() == (tmp_path / "again" / path.relative_to(published)).read_bytes()
    parameters = omni.open_source(published).total_size / 2
    assert 0.9e6 < parameters < 1.1e6
