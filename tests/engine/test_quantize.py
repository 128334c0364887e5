"""Everything around the library that quantizes, without it: the records, the checks, the accuracy,
what stays when a run ends early. tests/integration/engine has the library."""

import hashlib
import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import torch
from training import quantization

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import quantized, run_outputs
from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.quantize import calibration
from cosmos_reason.engine.quantize import run as quantize
from cosmos_reason.spec import document, quantizing


@pytest.fixture
def spec(tiny_model, dataset, tmp_path):
    """A complete spec: W4A16 with five of the 36 records."""
    changes = {
        "dataset__system_prompt": "Watch the light.",
        "quantize__quantization_scheme": "W4A16",
        "quantize__num_calibration_samples": 5,
    }
    table = quantization(tiny_model, dataset, tmp_path / "out", **changes)
    return document.with_defaults("quantize", table)


def records(spec, tiny_model):
    return calibration.records(spec, tiny_model, models.load_tokenizer(tiny_model))


def annotated(spec, folder, change):
    """The spec with a copy of its annotations that `change` was done to."""
    written = files.read_json(spec["dataset"]["annotation_path"])
    change(written)
    files.write_json(folder / "annotations.json", written)
    spec["dataset"]["annotation_path"] = str(folder / "annotations.json")
    return spec


def ids(found):
    return [(finding.severity, finding.id) for finding in found]


def test_records_are_chosen_by_the_seed_with_prompt_and_frames_of_the_training(spec, tiny_model):
    chosen, lengths, found = records(spec, tiny_model)
    again, _, _ = records(spec, tiny_model)
    other, _, _ = records(spec | {"seed": 1}, tiny_model)
    assert found == [] and len(chosen) == len(lengths) == 5
    names = [sample.id for sample in chosen.samples]
    assert names == [sample.id for sample in again.samples] == sorted(names)
    assert names != [sample.id for sample in other.samples]
    (batch, *_) = chosen.loader()
    assert "labels" not in batch
    text = chosen.encoder.tokenizer.decode(batch["input_ids"][0])
    assert "Watch the light." in text and chosen.samples[0].turns[-1].text in text
    assert batch["video_grid_thw"].tolist() == [[2, 4, 4]]
    assert batch["pixel_values_videos"].dtype == torch.bfloat16


def test_fewer_records_than_asked_are_all_used_and_told(spec, tiny_model):
    spec["quantize"]["num_calibration_samples"] = 512
    chosen, _, found = records(spec, tiny_model)
    assert ids(found) == [("warning", "QUANT-FEWER")]
    assert found[0].fix.changes == {"quantize.num_calibration_samples": len(chosen)}


def test_a_record_beyond_the_limit_is_an_error_with_the_length_it_takes(spec, tiny_model):
    spec["quantize"]["max_sequence_length"] = 20
    _, lengths, found = records(spec, tiny_model)
    assert ids(found) == [("error", "QUANT-RECORD-LENGTH")]
    assert len(found[0].data["record_ids"]) == 5
    assert found[0].fix.changes == {"quantize.max_sequence_length": max(lengths)}


def test_records_of_the_commonest_kind_of_media_are_used(spec, tiny_model, tmp_path):
    def without_clip(written):
        del written[0]["video"]
        for turn in written[0]["conversations"]:
            turn["value"] = turn["value"].replace("<video>\n", "")

    chosen, _, found = records(annotated(spec, tmp_path, without_clip), tiny_model)
    assert ids(found) == [("warning", "QUANT-KINDS")]
    assert all(sample.media for sample in chosen.samples)


def test_every_record_that_cannot_be_read_is_told(spec, tiny_model, tmp_path):
    def without_files(written):
        for record in written:
            record["video"] = f"lost/{record['id']}.mp4"

    _, _, found = records(annotated(spec, tmp_path, without_files), tiny_model)
    errors = [finding for finding in found if finding.severity == "error"]
    assert len({finding.data["record_ids"][0] for finding in errors}) == 5


def test_gpus_that_were_given_are_not_replaced_by_the_cpu(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(Failure, match=r"got CUDA_VISIBLE_DEVICES=0, but torch .* sees no GPU"):
        quantize.run(spec, None)
    assert not (tmp_path / "out").exists()


def test_without_the_library_nothing_is_begun(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: None)
    left = tmp_path / ".out.incomplete-0123abcd"
    left.mkdir()  # by a run that was killed
    with pytest.raises(Failure) as failure:
        quantize.run(spec, None)
    (finding,) = failure.value.findings
    assert finding.id == "QUANT-NOT-INSTALLED" and "setup-quantize" in str(finding.fix)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_and_a_quantized_source_are_both_told(
    spec, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: True)
    source = shutil.copytree(tiny_model, tmp_path / "source")
    config = files.read_json(source / "config.json") | {"quantization_config": {}}
    files.write_json(source / "config.json", config)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").touch()
    found = quantize.check(spec, tmp_path / "out", source, None)
    assert {finding.id for finding in found} == {"QUANT-ALREADY", "QUANT-OUTPUT"}


def test_what_the_result_would_be_refused_for_is_told_before_the_work(
    spec, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: True)
    assert quantize.check(spec, tmp_path / "out", tiny_model, None) == []
    source = shutil.copytree(tiny_model, tmp_path / "source")
    processor = files.read_json(source / "preprocessor_config.json") | {"patch_size": 14}
    files.write_json(source / "preprocessor_config.json", processor)
    (source / "tokenizer_config.json").unlink()
    found = quantize.check(spec, tmp_path / "out", source, None)
    assert ids(found) == [("error", "CKPT-FILE-MISSING")]
    shutil.copy(tiny_model / "tokenizer_config.json", source)
    found = quantize.check(spec, tmp_path / "out", source, None)
    assert ids(found) == [("error", "CKPT-PROCESSOR-OTHER")]


def test_an_adapter_without_its_base_and_a_model_called_an_adapter_are_refused(
    spec, tiny_model, tmp_path
):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    table = {"model_path": str(adapter), "enable_lora": True, "base_model_path": "/no/such/base"}
    wrong = table | {"model_path": str(tiny_model)}
    for refused, id in ((table, "CKPT-ADAPTER-BASE"), (wrong, "EVAL-LORA-FLAG")):
        with pytest.raises(Failure) as failure:
            quantize.run(spec | {"model": refused}, None)
        assert [finding.id for finding in failure.value.findings] == [id]


@pytest.mark.parametrize(
    ("scheme", "capability", "told"),
    [
        ("FP8", (8, 0), True),
        ("FP8", (8, 9), False),
        ("NVFP4", (9, 0), True),
        ("W4A16", (7, 5), False),
    ],
)
def test_a_gpu_that_does_not_compute_in_the_format_is_told(monkeypatch, scheme, capability, told):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = quantize._check_gpu(scheme)
    assert [finding.id for finding in found] == (["QUANT-GPU"] if told else [])


def test_a_gpu_that_was_given_and_is_not_seen_is_told_before_the_work(
    spec, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec["custom"]["transformers_engine"]["device"] = "auto"
    with pytest.raises(Failure, match="ENGINE-NO-CUDA"):
        quantize.check(spec, tmp_path / "out", tiny_model, None)


def test_host_memory_is_the_model_and_what_calibration_keeps(tiny_model):
    config = files.read_json(tiny_model / "config.json")
    width = config["text_config"]["hidden_size"]
    levels = len(config["vision_config"]["deepstack_visual_indexes"])
    per_token = 2 * (3 * 2 * 16 * 16 * 4 + (1 + levels) * width)
    assert quantize.host_bytes(config, 1000, 7) == 1000 + 7 * per_token
    (finding,) = quantize._check_memory(1 << 60)
    assert finding.id == "QUANT-MEMORY" and finding.severity == "warning"


def test_both_models_answer_the_same_questions_and_a_rerun_asks_nothing(
    spec, tiny_model, dataset, tmp_path, monkeypatch
):
    evaluation = {"annotation_path": str(dataset / "eval" / "annotations.json")}
    evaluation |= {"media_dir": str(dataset / "eval"), "limit": 6, "max_tokens": 3}
    spec["evaluation"] |= evaluation
    output = shutil.copytree(tiny_model, tmp_path / "out")
    pair, found = quantize.accuracy_lost(spec, output)
    assert pair["paired"] == 6 and pair["broken"] == pair["fixed"] == 0
    for name in ("original", "quantized"):
        assert len(files.read_json(output / "accuracy" / name / "results.json")) == 6
    cut = [finding for finding in found if finding.id == "EVAL-CUT-SHORT"]
    assert all(finding.fix.changes == {"evaluation.max_tokens": 1024} for finding in cut)

    def refuse(self):
        raise AssertionError("loaded again")

    monkeypatch.setattr(Responder, "load", refuse)
    assert quantize.accuracy_lost(spec, output)[0] == pair


def test_the_verdict_is_one_line():
    pair = {"paired": 300, "unchanged_right": 289, "broken": 2, "fixed": 0, "p_value": 0.5}
    assert quantize.verdict(pair, {"before": 17.5e9, "after": 9.9e9}) == (
        "97.0 % -> 96.3 % of 300 questions, 2 broken, 0 fixed, p = 0.5; 17.5 -> 9.9 GB"
    )


def test_an_error_summary_names_the_worst_layers():
    errors = {f"layers.{number}": number / 10 for number in range(8)}
    summary = quantize._error_summary(errors)
    assert summary["count"] == 8 and summary["mean_error"] == 0.35
    assert list(summary["worst"]) == [f"layers.{number}" for number in (7, 6, 5, 4, 3)]


def test_the_result_of_other_inputs_has_another_identity(spec, tiny_model):
    stamps = models.stamps(tiny_model)
    same = quantize._identity(spec, stamps)
    spec["results_dir"] = "elsewhere"
    spec["evaluation"]["limit"] = 3
    assert quantize._identity(spec, stamps) == same
    spec["quantize"]["quantization_scheme"] = "W8A8"
    assert quantize._identity(spec, stamps) != same


def test_every_scheme_of_the_schemas_is_known():
    leaf = document.keys("quantize")[quantizing.SCHEME]
    record = bundle.schema("quantization")["properties"]["scheme"]
    assert leaf["enum"] == record["enum"] == list(quantized.SCHEMES)
    free = [name for name, scheme in quantized.SCHEMES.items() if not scheme.needs_data]
    assert free == [quantizing.DATA_FREE]


def table_of_the_page():
    """The cells of each scheme in references/cosmos-reason-quantize.md, by its name."""
    page = (bundle.ROOT / "references" / "cosmos-reason-quantize.md").read_text(encoding="utf-8")
    cells = {}
    for line in page.splitlines():
        names, *rest = [cell.strip() for cell in line.strip("|").split("|")]
        if names.split(", ")[0] in quantized.SCHEMES:
            cells |= dict.fromkeys(names.split(", "), rest)
    return cells


@pytest.mark.parametrize("name", quantized.SCHEMES)
def test_the_page_says_of_a_scheme_what_the_code_does(name):
    scheme = quantized.SCHEMES[name]
    weights, data, gpu = table_of_the_page()[name]
    assert str(scheme.bits) in weights and ("128" in weights) == (scheme.multiple == 128)
    assert (data == "none") == (not scheme.needs_data)
    assert ("smoothed" in data) == scheme.smoothed and ("GPTQ" in data) == scheme.refined
    least = ".".join(map(str, scheme.capability)) if scheme.capability else "any"
    assert least in gpu.split()


@pytest.fixture
def without_library(monkeypatch):
    """The library's part of a quantization left out: the result is the source under its name."""
    parts = {
        "compress": lambda *_: None,
        "weight_errors": lambda *_: {"layers.0.mlp.up_proj": 0.02, "layers.1.mlp.up_proj": 0.01},
        "save": lambda model, source, work: shutil.copytree(source, work, dirs_exist_ok=True),
    }
    for name, part in parts.items():
        monkeypatch.setattr(quantize.compress, name, part)
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(quantize.importlib.metadata, "version", lambda name: "0.14.0.1")
    monkeypatch.setattr(quantized, "verify", lambda folder: [])


def test_a_folder_that_the_launcher_claimed_is_free_and_stays_claimed(
    spec, tmp_path, without_library
):
    claim = tmp_path / "out" / run_outputs.CLAIM
    claim.parent.mkdir()
    claim.write_text('{"job": "jobs/quantize-1", "host": "here"}')
    quantize.run(spec, tmp_path / "quantize-1")
    assert (tmp_path / "out" / quantized.RECORD).is_file()
    assert claim.read_text().startswith('{"job"')


def test_the_record_is_as_its_schema_says(spec, tmp_path, without_library):
    told, _ = quantize.run(spec, tmp_path / "quantize-1")
    written = files.read_json(tmp_path / "out" / quantized.RECORD)
    jsonschema.validate(written, bundle.schema("quantization"))
    assert written == told and written["calibration"]["samples"] == 5
    assert written["layers"]["worst"] == written["layers"]["errors"]


def test_a_finished_model_of_an_earlier_version_is_kept(
    spec, tmp_path, tiny_model, without_library, capsys
):
    """Their identity held the weights alone, without the files of the tokenizer."""
    told, _ = quantize.run(spec, None)
    asked = {name: spec[name] for name in ("quantize", "dataset", "vision", "seed")}
    stamps = []
    for path in sorted(tiny_model.glob("*.safetensors")):
        stamps.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    records = files.sha256(Path(spec["dataset"]["annotation_path"]))
    facts = json.dumps([asked, stamps, records], sort_keys=True)
    told["identity"] = hashlib.sha256(facts.encode()).hexdigest()[:16]
    quantized.write_record(tmp_path / "out", told)
    quantize.run(spec, None)
    assert "holds this model already" in capsys.readouterr().err
    told["identity"] = "0" * 16
    quantized.write_record(tmp_path / "out", told)
    with pytest.raises(Failure, match="it holds a model of other inputs"):
        quantize.run(spec, None)
