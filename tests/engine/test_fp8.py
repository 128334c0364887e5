"""LoRA on a base in 8-bit floating point."""

import json
import shutil
import statistics

import pytest
import torch
from forked import one_thread
from safetensors.torch import load_file
from support import run_script
from torch import nn
from training import LORA, run, short_training

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import adapters
from cosmos_reason.engine import model as models
from cosmos_reason.engine.train import fp8
from cosmos_reason.spec.keys import BASE_PRECISION

FP8 = {BASE_PRECISION.replace(".", "__"): "fp8", "policy__lora": LORA}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tiny_model, dataset, tmp_path_factory):
    """A base that has learnt something, of 40 steps."""
    output = tmp_path_factory.mktemp("trained")
    often = {"train__ckpt__save_freq": 40, "validation__freq": 40}
    with one_thread():
        run(short_training(tiny_model, dataset, output), train__max_num_steps=40, train__epoch=40,
            **often)  # fmt: skip
    return output / "run" / "safetensors" / "step_40"


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def dequantized(layer):
    weight = layer.weight.double() * layer.scale.double()[:, None]
    return weight, None if layer.bias is None else layer.bias.double()


@pytest.mark.parametrize(("wide", "high", "bias"), [(64, 48, True), (128, 16, False)])
def test_both_directions_are_those_of_the_dequantized_weight(wide, high, bias):
    torch.manual_seed(1)
    layer = nn.Linear(wide, high, bias=bias).requires_grad_(False)
    with torch.no_grad():
        layer.weight[0] *= 1000  # a row of its own scale
    exact = layer.weight.double().clone()
    fp8.freeze([layer], CPU)
    assert layer.weight.dtype == torch.float8_e4m3fn and layer.weight.nbytes == wide * high
    inputs = torch.randn(2, 9, wide)
    inputs[0, 0] = 0
    inputs = inputs.requires_grad_()
    weight, added = dequantized(layer)
    assert ((weight - exact).norm(dim=1) / exact.norm(dim=1)).max() < 0.04
    (rows, own), gradient = fp8.by_rows(inputs.detach()), torch.randn(2, 9, high)
    found = layer(inputs)
    expected = nn.functional.linear(rows.double() * own, weight, added)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * expected.std())
    found.backward(gradient)
    rows, own = fp8.by_rows(gradient * layer.scale)
    expected = (rows.double() * own) @ layer.weight.double()
    close = 1e-4 * expected.std()
    torch.testing.assert_close(inputs.grad.double(), expected, rtol=1e-4, atol=close)
    # And not far from the exact ones: 3 bits of mantissa on either side.
    plain = gradient.double() @ exact
    assert (inputs.grad - plain).norm() < 0.06 * plain.norm()


def test_training_goes_as_on_the_base_itself_and_on_after_a_stop(trained, dataset, tmp_path):
    spec = short_training(trained, dataset, tmp_path / "out")
    often = {"train__ckpt__save_freq": 4, "validation__freq": 4}
    with one_thread():
        for name, how in (("plain", {"policy__lora": LORA}), ("fp8", FP8)):
            spec["train"]["timestamp"] = name
            run(spec, **how, **often, train__max_num_steps=8, train__epoch=8)
        out = tmp_path / "out"
        plain, found = losses(out / "plain"), losses(out / "fp8")
        assert len(plain) == len(found) == 8 and found != plain
        assert statistics.mean(found) == pytest.approx(statistics.mean(plain), rel=0.01)
        expected = load_file(out / "fp8" / "safetensors" / "step_8" / "adapter_model.safetensors")
        for part in ("checkpoints", "safetensors"):
            shutil.rmtree(out / "plain" / part)
            shutil.rmtree(out / "fp8" / part / "step_8")
        run(spec, train__timestamp="again", train__resume=True)
    assert losses(out / "again") == found[4:]
    again = load_file(out / "again" / "safetensors" / "step_8" / "adapter_model.safetensors")
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert not [name for name in expected if "lora_" not in name]


def test_a_merged_model_is_the_stored_base_with_the_adapters(trained, dataset, tmp_path):
    run(short_training(trained, dataset, tmp_path / "out"), **FP8)
    adapter = tmp_path / "out" / "run" / "safetensors" / "step_4"
    done = run_script("select_checkpoint.py", adapter, "--merge", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    base, merged = load_file(trained / "model.safetensors"), {}
    for path in (tmp_path / "merged").glob("*.safetensors"):
        merged |= load_file(path)
    assert merged.keys() == base.keys()
    changed = adapters.read(adapter)
    told = files.read_json(adapter / adapters.CONFIG)
    parts = load_file(adapter / "adapter_model.safetensors")
    names = {name for name in base if not torch.equal(base[name], merged[name])}
    assert names and changed
    for name in names:
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        up, down = parts[f"{stem}.lora_B.weight"], parts[f"{stem}.lora_A.weight"]
        exact = base[name].float() + told["lora_alpha"] / told["r"] * (up @ down)
        assert torch.equal(merged[name], exact.to(merged[name].dtype)), name


def test_gradients_of_adapters_point_where_those_of_the_base_itself_do(trained, dataset, tmp_path):
    """The median cosine; of a base of 100 steps it is 0.993, the worst layer's 0.987
    (benchmarks/RESULTS.md)."""
    spec = short_training(trained, dataset, tmp_path / "out")
    once = {"train__max_num_steps": 1, "train__optm_name": "Adam", "train__optm_weight_decay": 0.0,
            "train__optm_grad_norm_clip": 0.0, "validation__enable": False,
            "train__ckpt__save_freq": 1, "train__train_batch_per_replica": 24}  # fmt: skip
    moments = {}
    with one_thread():
        for name, how in (("plain", {"policy__lora": LORA}), ("fp8", FP8)):
            run(spec, **once, **how, train__timestamp=name)
            state = tmp_path / "out" / name / "checkpoints" / "step_1" / "policy"
            moments[name] = load_file(state / "optimizer.safetensors")
    cosines = []
    for name, plain in moments["plain"].items():
        if name.endswith("exp_avg") and plain.any():  # the gradient, scaled
            found = moments["fp8"][name]
            cosines.append(torch.cosine_similarity(found.flatten(), plain.flatten(), 0).item())
    assert len(cosines) == 6 and statistics.median(cosines) > 0.98 and min(cosines) > 0.95


def test_only_a_frozen_base_in_full_precision_can_be(tiny_model, dataset, tmp_path):
    spec = short_training(tiny_model, dataset, tmp_path / "out")
    with pytest.raises(Failure, match="got fp8 for weights that are trained"):
        run(spec, custom__transformers_engine__base_precision="fp8")
    model = shutil.copytree(tiny_model, tmp_path / "quantized")
    config = files.read_json(model / "config.json")
    files.write_json(model / "config.json", config | {"quantization_config": {"a": 1}})
    with pytest.raises(Failure, match="got fp8 for a base that is quantized already"):
        fp8.check(files.read_json(model / "config.json"), True, CPU)
    layer = nn.Linear(24, 16).requires_grad_(False)
    with pytest.raises(Failure, match="24 x 16, expected multiples of 16"):
        fp8.freeze([layer], CPU)
    words = ["build_spec.py", "train", "--engine", "transformers", "--model", model, "--tuning",
             "lora", "--gpus-per-node", 1, "--train-root", dataset / "train"]  # fmt: skip
    asked = ["--set", "base_precision=fp8"]
    refused = run_script(*words, *asked, "-o", tmp_path / "s.toml")
    assert refused.returncode == 1 and "SPEC-FP8-BASE" in refused.stderr
    words[words.index("lora")] = "full"
    words[words.index(model)] = tiny_model
    refused = run_script(*words, *asked, "-o", tmp_path / "s.toml")
    assert refused.returncode == 1 and "SPEC-FP8-FULL" in refused.stderr
    words[words.index("transformers")] = "cosmos-rl"
    refused = run_script(*words, *asked, "-o", tmp_path / "s.toml")
    assert refused.returncode == 1 and "SPEC-ENGINE-KEY" in refused.stderr


def test_evaluation_reads_the_adapter_on_the_stored_base(trained, dataset, tmp_path):
    run(short_training(trained, dataset, tmp_path / "out"), **FP8)
    adapter = tmp_path / "out" / "run" / "safetensors" / "step_4"
    network = models.load_for_evaluation(adapter, trained, torch.float32, CPU)
    assert {part.dtype for part in network.parameters()} == {torch.float32}
