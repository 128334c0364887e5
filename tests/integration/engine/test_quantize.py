"""The real llmcompressor: a tiny model is quantized as a person would, loaded back, and asked."""

import json
import os
import signal
import sys
from pathlib import Path

import jsonschema
import oracles
import pytest
import torch
from launch_site import met_at_work
from safetensors.torch import load_file
from support import ROOT, called, run_script
from training import VISION, quantization

from cosmos_reason.base import bundle, files
from cosmos_reason.checkpoints import quantized
from cosmos_reason.engine import model as models
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

LORA = {
    **{"r": 4, "lora_alpha": 8.0, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]},
    **{"modules_to_save": None, "use_rslora": False, "init_lora_weights": False},
}
# scheme -> dtypes of what is stored of a compressed layer
STORED = {
    "FP8_DYNAMIC": {"weight": torch.float8_e4m3fn, "weight_scale": torch.bfloat16},
    "FP8": {"weight": torch.float8_e4m3fn, "input_scale": torch.bfloat16},
    "NVFP4": {"weight_packed": torch.uint8, "weight_scale": torch.float8_e4m3fn},
    "W8A8": {"weight": torch.int8, "weight_scale": torch.bfloat16},
    "W8A16": {"weight_packed": torch.int32, "weight_scale": torch.bfloat16},
    "W4A16": {"weight_packed": torch.int32, "weight_scale": torch.bfloat16},
}
LAYER = "model.language_model.layers.0.mlp.down_proj"


# All schemes in one process: loading the library takes longer than a scheme.
QUANTIZE = """
import sys
from pathlib import Path
from cosmos_reason.engine.quantize import run as quantize
from cosmos_reason.spec import document
for path in sys.argv[1:]:
    quantize.run(document.with_defaults("quantize", document.load(Path(path))), None)
"""


@pytest.fixture(scope="module")
def environment():
    return {"PYTHONPATH": str(oracles.llmcompressor()), "HF_HUB_OFFLINE": "1"}


REASON1 = ("FP8", "W4A16")  # schemes that the other family is quantized with


@pytest.fixture(scope="module")
def results(tiny_model, tiny_reason1, dataset, tmp_path_factory, environment):
    """A folder with the model of each scheme; W4A16 was asked four questions."""
    root = tmp_path_factory.mktemp("quantized")
    for scheme in REASON1:
        spec = quantization(tiny_reason1, dataset, root / f"reason1-{scheme}")
        spec["quantize"]["quantization_scheme"] = scheme
        document.dump(spec, root / f"reason1-{scheme}.toml")
    for scheme in STORED:
        spec = quantization(tiny_model, dataset, root / scheme)
        spec["quantize"]["quantization_scheme"] = scheme
        if scheme == "W4A16":
            folder = dataset / "eval"
            evaluation = {"annotation_path": str(folder / "annotations.json"), "limit": 4}
            spec["evaluation"] = evaluation | {"media_dir": str(folder), "max_tokens": 3}
        document.dump(spec, root / f"{scheme}.toml")
    library = {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{ROOT / 'scripts'}"}
    done = called(
        [sys.executable, "-c", QUANTIZE, *root.glob("*.toml")],
        env=os.environ | environment | library,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return root


@pytest.mark.parametrize("scheme", STORED)
def test_a_quantized_model_is_whole_loads_and_answers(results, scheme):
    output = results / scheme
    assert [path.name for path in results.iterdir() if "incomplete" in path.name] == []
    assert quantized.verify(output) == []
    record = files.read_json(output / "quantization.json")
    jsonschema.validate(record, bundle.schema("quantization"))
    assert record["layers"]["count"] == 21
    assert 0 < record["layers"]["mean_error"] < 0.3
    assert record["bytes"]["after"] < 0.9 * record["bytes"]["before"]
    assert record["trial"]["question"] and isinstance(record["trial"]["answer"], str)
    if scheme == "W4A16":
        assert record["accuracy"]["paired"] == 4 and " of 4 questions, " in record["verdict"]
    else:
        assert record["accuracy"] is None and "nothing is known" in record["verdict"]


@pytest.mark.parametrize("scheme", REASON1)
def test_a_model_of_the_other_family_is_whole_and_answers(results, scheme):
    output = results / f"reason1-{scheme}"
    assert quantized.verify(output) == []
    record = files.read_json(output / "quantization.json")
    assert record["layers"]["count"] and record["trial"]["question"]
    assert 0 < record["layers"]["mean_error"] < 0.3


@pytest.mark.parametrize("scheme", STORED)
def test_what_lies_beside_the_weights_is_the_sources_own(results, scheme, tiny_model):
    """The config is so but for what it says of the quantization."""
    output = results / scheme
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                 "preprocessor_config.json", "generation_config.json"):  # fmt: skip
        assert (output / name).read_bytes() == (tiny_model / name).read_bytes()
    config = files.read_json(output / "config.json")
    assert config.pop("quantization_config")["quant_method"] == "compressed-tensors"
    assert config == files.read_json(tiny_model / "config.json")


@pytest.mark.parametrize("scheme", STORED)
def test_layers_are_stored_in_the_format_and_the_rest_as_it_was(results, scheme, tiny_model):
    stored = load_file(results / scheme / "model.safetensors")
    for part, dtype in STORED[scheme].items():
        assert stored[f"{LAYER}.{part}"].dtype == dtype
    left_alone = [name for name in stored if ".visual." in name or "embed" in name]
    original = load_file(next(tiny_model.glob("*.safetensors")))
    assert left_alone
    assert all(torch.equal(stored[name], original[name]) for name in left_alone)


def test_an_adapter_is_merged_first_and_a_rerun_keeps_the_result(
    results, tiny_model, dataset, tmp_path, environment
):
    network = models.load_model(tiny_model, torch.float32, torch.device("cpu"))
    models.add_lora(network, LORA, str(tiny_model)).save_pretrained(tmp_path / "adapter")
    spec = quantization(tiny_model, dataset, tmp_path / "out")
    spec["model"] = {
        "model_path": str(tmp_path / "adapter"),
        "base_model_path": str(tiny_model),
        "enable_lora": True,
    }
    document.dump(spec, tmp_path / "quantize.toml")
    arguments = ["quantize", "--config", tmp_path / "quantize.toml", "--json"]
    done = run_script("run_with_transformers.py", *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["result"]["scheme"] == "FP8_DYNAMIC"
    assert not [path for path in tmp_path.iterdir() if "incomplete" in path.name]
    weights = tmp_path / "out" / "model.safetensors"
    merged, plain = load_file(weights), load_file(results / "FP8_DYNAMIC" / "model.safetensors")
    for part, is_same in (("q_proj", False), ("k_proj", True)):
        name = f"model.language_model.layers.0.self_attn.{part}.weight"
        assert torch.equal(merged[name].float(), plain[name].float()) is is_same

    written = weights.stat().st_mtime_ns
    again = run_script("run_with_transformers.py", *arguments, env=environment)
    assert again.returncode == 0 and "not quantized again" in again.stderr
    assert weights.stat().st_mtime_ns == written


@pytest.mark.promise
def test_a_killed_job_leaves_nothing_half_made_and_its_retry_is_complete(
    tiny_model, dataset, tmp_path, environment
):
    def succeed(name, *arguments):
        done = run_script(name, *arguments, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    settings = [f"vision.{key}={value}" for key, value in VISION.items()]
    settings += ["quantize.quantization_scheme=W4A16", "quantize.num_calibration_samples=6"]
    words = ["quantize", "--engine", "transformers", "--model", tiny_model]
    words += ["--train-root", dataset / "train", "-o", "quantize.toml"]
    succeed("build_spec.py", *words, *(word for one in settings for word in ("--set", one)))
    words = ("quantize", "--spec", "quantize.toml", "--platform", "local", "--gpu-ids", "none")
    killed = met_at_work(
        lambda: tmp_path / "jobs" / succeed("launch_job.py", "submit", *words),
        # written, not yet tried
        lambda folder: [*folder.glob(".results.incomplete-*/*.safetensors")],
        lambda folder: os.killpg(jobs.Job.load(folder).platform_ref["pid"], signal.SIGKILL),
    )
    done = run_script("launch_job.py", "watch", killed.name, cwd=tmp_path)
    job = jobs.Job.load(killed)
    assert (done.returncode, job.state) == (3, "ERROR")
    assert "no quantized model was written" in job.reason and not (killed / "results").exists()

    again = tmp_path / "jobs" / succeed("launch_job.py", "retry", killed.name)
    succeed("launch_job.py", "watch", again.name)
    job = jobs.Job.load(again)
    assert (job.state, job.retry_of) == ("COMPLETE", killed.name)
    model = Path(job.evidence["checkpoint"])
    record = files.read_json(model / "quantization.json")
    assert record["job_id"] == again.name and quantized.verify(model) == []
    assert not list(tmp_path.rglob(".results.incomplete-*"))
