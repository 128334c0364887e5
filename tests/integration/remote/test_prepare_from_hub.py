"""The conversion from a Hub: what it asks for, what it says when it is refused,
and reuse without the cache."""

import json
import shutil

import pytest
from omni_layouts import as_export
from servers import COMMIT, hub
from support import run_script

from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni

pytestmark = pytest.mark.integration

SCRIPT = "prepare_cosmos3_vlm_checkpoint.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("hub")
    tiny_omni.build(base / "nano", seed=1, text="left right yes no")
    (base / "nano" / "vae").mkdir()
    (base / "nano" / "vae" / "weights.bin").write_bytes(b"large and not needed")
    donor = omni.open_source(base / "nano")
    conversion.convert(donor, base / "qwen", 300_000, force=False, jobs=1)
    models = {
        "nvidia/Cosmos3-Nano": base / "nano",
        "lab/secret-nano": base / "nano",
        "Qwen/donor": base / "qwen",
    }
    with hub(models) as server:
        yield server


@pytest.fixture
def convert(server, tmp_path):
    def run(name, *flags, endpoint=f"http://127.0.0.1:{server.server_port}"):
        server.sent.clear()
        env = {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": "",
            "HF_HUB_DISABLE_XET": "1",
        }
        flags = ("--checkpoint-path", name, "--output-path", tmp_path / "out", "--json", *flags)
        done = run_script(SCRIPT, *flags, env=env)
        return done, json.loads(done.stdout)

    return run


@pytest.mark.promise
def test_takes_what_it_needs_and_is_reused_without_the_cache(convert, server, tmp_path):
    done, said = convert("hf_model://nvidia/Cosmos3-Nano", "--cache-dir", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert said["result"]["status"] == "converted" and said["result"]["source"]["commit"] == COMMIT
    assert "vision_encoder/model.safetensors" in server.sent
    assert not [n for n in server.sent if n.startswith("vae/")]
    shutil.rmtree(tmp_path / "cache")
    done, said = convert("Cosmos3-Nano", "--cache-dir", tmp_path / "cache")
    assert said["result"]["status"] == "skipped_existing" and server.sent == []
    done, said = convert("nvidia/Cosmos3-Nano", endpoint="http://127.0.0.1:9")
    assert done.returncode == 0
    # What older rules made of the same commit is looked at with the source.
    provenance = tmp_path / "out" / "provenance.json"
    table = json.loads(provenance.read_text())
    provenance.write_text(json.dumps(table | {"mapping_version": table["mapping_version"] - 1}))
    assert convert("Cosmos3-Nano", "--cache-dir", tmp_path / "cache")[1]["ok"] and server.sent
    provenance.write_text(json.dumps(table))
    done, said = convert("nvidia/Cosmos3-Nano", endpoint="http://127.0.0.1:9")
    assert [finding["id"] for finding in said["findings"]] == ["CKPT-COMMIT-UNCHECKED"]


def test_a_gated_model_needs_the_token_and_never_shows_it(convert, tmp_path):
    done, said = convert("lab/secret-nano")
    assert done.returncode == 3 and said["findings"][0]["id"] == "HUB-GATED"
    (tmp_path / "secrets.env").write_text("# mine\nOTHER=1\nexport HF_TOKEN='hf_demo_token'\n")
    done, said = convert("lab/secret-nano", "--secrets-env", tmp_path / "secrets.env")
    assert done.returncode == 0 and said["result"]["status"] == "converted"
    assert "hf_demo_token" not in done.stdout + done.stderr
    for path in (tmp_path / "out").iterdir():
        assert b"hf_demo_token" not in path.read_bytes()


def test_an_unknown_model_and_no_network(convert, tmp_path):
    done, said = convert("nobody/nothing")
    assert (done.returncode, said["findings"][0]["id"]) == (3, "HUB-NOT-FOUND")
    done, said = convert("nvidia/Cosmos3-Nano", endpoint="http://127.0.0.1:9")
    assert (done.returncode, said["findings"][0]["id"]) == (3, "HUB-UNREACHABLE")
    assert not (tmp_path / "out").exists()


def test_a_hub_donor_gives_its_small_files_and_only_the_vision_shards(convert, server, tmp_path):
    export = as_export(server.models["nvidia/Cosmos3-Nano"], tmp_path / "export", bare=True)
    done, said = convert(str(export), "--donor", "Qwen/donor")
    assert done.returncode == 0, done.stdout
    assert said["result"]["donor"]["commit"] == COMMIT
    assert "vision tower" in said["result"]["donor"]["supplied"]
    shards = {name for name in server.sent if name.endswith(".safetensors")}
    index = json.loads((server.models["Qwen/donor"] / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    assert (
        shards == {file for name, file in index.items() if "visual" in name} < set(index.values())
    )
