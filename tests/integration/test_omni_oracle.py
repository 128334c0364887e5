"""The conversion against two independent readers of the same weights.

transformers 5.23 loads an Omni checkpoint natively (Cosmos3OmniForConditionalGeneration), so it says what our converted
folder must be. It lives beside the main environment and borrows its torch.
"""

import json
import os
import shutil
import subprocess
import sys

import docker_engine
import pytest
from omni_layouts import NANO, SUPER, write_layout
from support import oracle_packages, run_script

from cosmos_reason import conversion, omni
from cosmos_reason.demo import tiny_omni

pytestmark = pytest.mark.integration

ORACLES = {
    "5.23": ["transformers==5.23.0"],
    "4.57": [
        *("transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"),
        *("requests==2.32.5", "urllib3==2.5.0", "charset-normalizer==3.4.4"),
    ],
}
META = """
import json, sys
import torch, transformers
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    state = transformers.Qwen3VLForConditionalGeneration(config).state_dict()
print(json.dumps({name: list(tensor.shape) for name, tensor in state.items()}))
"""
DEMO_TEXT = "\n".join(
    f"Which way does the {colour} {shape} move, left or right? A. left B. right. Is it {colour}? yes no"
    for colour in ("red", "green", "blue", "yellow")
    for shape in ("circle", "square", "triangle")
)
COMPARE = """
import json, sys
import torch
from transformers import AutoTokenizer, Cosmos3OmniForConditionalGeneration, Qwen3VLForConditionalGeneration

omni, converted = sys.argv[1:]
torch.manual_seed(0)
models, infos = {}, {}
for name, cls, path in (
    ("omni", Cosmos3OmniForConditionalGeneration, omni), ("converted", Qwen3VLForConditionalGeneration, converted)
):
    model, info = cls.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    models[name] = model.eval()
    infos[name] = {key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
states = {name: model.state_dict() for name, model in models.items()}
same = {k for k, v in states["omni"].items() if k in states["converted"] and torch.equal(v, states["converted"][k])}
tokenizer = AutoTokenizer.from_pretrained(converted)
part = {"type": "video"}
messages = [{"role": "user", "content": [part, {"type": "text", "text": "Which way does the red circle move?"}]}]
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
grid = torch.tensor([[4, 4, 4]])
pad = "<|video_pad|>"
frames = "".join(f"<{n + 0.5} seconds><|vision_start|>{pad * 4}<|vision_end|>" for n in range(4))
video_text = text.replace(f"<|vision_start|>{pad}<|vision_end|>", frames)
outputs = {}
for name, prompt in (("text", text.replace(f"<|vision_start|>{pad}<|vision_end|>", "")), ("video", video_text)):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "video":
        pixels = torch.randn(64, 1536, generator=torch.Generator().manual_seed(1))
        token = models["converted"].config.video_token_id
        inputs |= {"pixel_values_videos": pixels, "video_grid_thw": grid}
        inputs |= {"mm_token_type_ids": torch.where(ids == token, 2, 0)}
    outputs[name] = {k: m.generate(**inputs, max_new_tokens=16, do_sample=False).tolist() for k, m in models.items()}
    outputs[name]["prompt"] = ids.shape[1]
print(json.dumps({"infos": infos, "outputs": outputs, "same": len(same), "omni": len(states["omni"]),
                  "converted": len(states["converted"])}))
"""
LOAD = """
import json, sys
import torch, transformers
model, info = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
    sys.argv[1], dtype="auto", output_loading_info=True
)
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps({"missing": sorted(info["missing_keys"]), "unexpected": sorted(info["unexpected_keys"]),
                  "template": bool(tokenizer.chat_template), "dtype": str(model.dtype),
                  "pad": tokenizer.convert_tokens_to_ids("<|video_pad|>") == model.config.video_token_id,
                  "version": transformers.__version__}))
"""


def oracle(version):
    """A folder of packages to put before the main environment's; it lends torch and the rest."""
    return oracle_packages(f"transformers-{version}", ["--no-deps", *ORACLES[version]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("omni")
    tiny_omni.build(base / "omni", seed=3, text=DEMO_TEXT)
    conversion.convert(omni.open_source(base / "omni"), base / "converted", 1_000_000, force=False, jobs=2)
    return base / "omni", base / "converted"


def run_python(code, *args, path=None):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(path or "")}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_equals_what_transformers_loads_natively(folders):
    seen = run_python(COMPARE, *folders, path=oracle("5.23"))
    for info in seen["infos"].values():
        assert info == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    assert seen["same"] == seen["omni"] == seen["converted"]
    for output in seen["outputs"].values():
        assert output["omni"] == output["converted"]
        assert len(output["omni"][0]) > output["prompt"]
    assert seen["outputs"]["text"] != seen["outputs"]["video"]


@pytest.mark.parametrize("version", ["4.57", "main", "5.23"])
def test_loads_in_every_transformers_that_reads_it(folders, version):
    seen = run_python(LOAD, folders[1], path=None if version == "main" else oracle(version))
    assert version == "main" or seen["version"].startswith(version)
    assert seen["missing"] == seen["unexpected"] == []
    assert seen["template"] and seen["pad"] and seen["dtype"] == "torch.bfloat16"


@pytest.mark.parametrize("config", [NANO, SUPER], ids=["nano", "super"])
def test_full_size_names_and_shapes(tmp_path, config):
    """Against the parameters of transformers' own class on the meta device."""
    write_layout(tmp_path / "omni", config)
    source = omni.open_source(tmp_path / "omni")
    (tmp_path / "config.json").write_bytes(source.texts["config.json"])
    assert run_python(META, tmp_path) == {name: list(tensor.shape) for name, tensor in source.tensors.items()}


def validate(folders, *flags, env=None):
    command = ("--checkpoint-path", folders[0], "--output-path", folders[1], "--json", *flags)
    done = run_script("prepare_cosmos3_vlm_checkpoint.py", *command, env=env)
    return done.returncode, json.loads(done.stdout)["findings"]


def test_transformers_validates_here(folders):
    code, found = validate(folders, "--validate")
    assert code == 0 and [f["id"] for f in found] == ["CKPT-LOADABLE"] and "81 tensors" in found[0]["message"]
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
