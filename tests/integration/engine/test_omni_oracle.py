"""The conversion in other versions of transformers and in a container. That the converted tensors
are those that the class of Omni checkpoints loads, tests/checkpoints/test_omni.py says."""

import json
import os
import shutil
import sys

import docker_engine
import oracles
import pytest
from omni_layouts import NANO, SUPER, write_layout
from support import called, run_script

from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni

pytestmark = pytest.mark.integration

PROMISED = pytest.param("4.57", marks=pytest.mark.promise)
META = """
import json, sys
import torch, transformers
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    state = transformers.Qwen3VLForConditionalGeneration(config).state_dict()
print(json.dumps({name: list(tensor.shape) for name, tensor in state.items()}))
"""
LOAD = """
import json, sys
import torch, transformers
model, info = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
    sys.argv[1], dtype="auto", output_loading_info=True
)
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps({
    "missing": sorted(info["missing_keys"]),
    "unexpected": sorted(info["unexpected_keys"]),
    "template": bool(tokenizer.chat_template),
    "dtype": str(model.dtype),
    "pad": tokenizer.convert_tokens_to_ids("<|video_pad|>") == model.config.video_token_id,
    "version": transformers.__version__,
}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("omni")
    tiny_omni.build(base / "omni", seed=3, text="left right yes no")
    conversion.convert(
        omni.open_source(base / "omni"), base / "converted", 1_000_000, force=False, jobs=2
    )
    return base / "omni", base / "converted"


def run_python(code, *args, path=None):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(path or "")}
    done = called([sys.executable, "-c", code, *args], env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("version", [PROMISED, "main", "5.23"])
def test_loads_in_every_transformers_that_reads_it(folders, version):
    seen = run_python(
        LOAD, folders[1], path=None if version == "main" else oracles.transformers(version)
    )
    assert version == "main" or seen["version"].startswith(version)
    assert seen["missing"] == seen["unexpected"] == []
    assert seen["template"] and seen["pad"] and seen["dtype"] == "torch.bfloat16"


@pytest.mark.parametrize("config", [NANO, SUPER], ids=["nano", "super"])
def test_full_size_names_and_shapes(tmp_path, config):
    """Against the parameters of transformers' own class on the meta device."""
    write_layout(tmp_path / "omni", config)
    source = omni.open_source(tmp_path / "omni")
    (tmp_path / "config.json").write_bytes(source.texts["config.json"])
    assert run_python(META, tmp_path) == {
        name: list(tensor.shape) for name, tensor in source.tensors.items()
    }


def validate(folders, *flags, env=None):
    command = ("--checkpoint-path", folders[0], "--output-path", folders[1], "--json", *flags)
    done = run_script("prepare_cosmos3_vlm_checkpoint.py", *command, env=env)
    return done.returncode, json.loads(done.stdout)["findings"]


def test_transformers_validates_here(folders):
    code, found = validate(folders, "--validate")
    assert code == 0 and [f["id"] for f in found] == ["CKPT-LOADABLE"]
    assert "81 tensors" in found[0]["message"]
    code, found = validate(folders, "--validate-with-image", "image:1", env={"PATH": "/nowhere"})
    assert code == 3 and [f["id"] for f in found] == ["CKPT-NO-DOCKER"]


def test_transformers_validates_in_an_image(folders, dockerd, tmp_path):
    others = dockerd.docker("ps", "-aq").stdout
    code, found = validate(folders, "--validate-with-image", docker_engine.IMAGE)
    assert code == 0 and [f["id"] for f in found] == ["CKPT-LOADABLE"], found
    assert "81 tensors" in found[0]["message"] and found[0]["where"] == docker_engine.IMAGE
    assert dockerd.docker("ps", "-aq").stdout == others, "no container is left"
    code, found = validate(folders, "--validate-with-image", "127.0.0.1:9/no-such-image:1")
    assert code == 3 and [f["id"] for f in found] == ["CKPT-DOCKER-FAILED"]
    missing = shutil.copytree(folders[1], tmp_path / "missing")
    (missing / "tokenizer.json").unlink()
    (missing / "vocab.json").unlink()
    finding = conversion.validate(missing, docker_engine.IMAGE)
    assert finding.id == "CKPT-NOT-LOADABLE" and "Traceback" not in finding.message
