"""A smaller model from a quantize spec, made whole or not at all, and what it cost in accuracy.

Host memory holds the model once (17.5 GB of 8B parameters in bfloat16) and what calibration keeps
of all records between two layers; a GPU holds one layer at a time. `host_bytes` has the formula.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from cosmos_reason.base import bundle, files, findings, job_folder
from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import adapters, quantized, run_outputs, safetensors_files
from cosmos_reason.data.samples import Question, Sample, Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.quantize import calibration, compress
from cosmos_reason.engine.quantize.calibration import Records
from cosmos_reason.evaluation import as_trained, comparison, grading
from cosmos_reason.evaluation import run as evaluation
from cosmos_reason.evaluation.saved_answers import RESULTS
from cosmos_reason.spec import document, quantizing

LIBRARY = "llmcompressor"
SETUP = f"make -C {bundle.ROOT} setup-quantize"
ACCURACY = "accuracy"  # below the result: the answers of the original and of the quantized model
ASKED = "Describe what you see."  # when there are no records to take a question from
TRIAL_TOKENS = 32
WORST = 5  # layers that the record names
UNKNOWN = "nothing is known about accuracy: no evaluation data were given"


def run(spec: dict, job_dir: Path | None) -> tuple[dict, list[Finding]]:
    """Quantize as a complete spec says. Returns quantization.json and what is to be said. What a
    killed run left is cleared away; a finished model of the same inputs is kept, and asked only
    what it was not asked yet. Raises Failure."""
    if not spec["results_dir"]:
        fix = Fix(changes={"results_dir": "results"})
        raise findings.bad_input("ENGINE-NO-OUTPUT", "results_dir", "got nothing", fix)
    output = Path(spec["results_dir"])
    device = spec["custom"]["transformers_engine"]["device"]
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the library takes any GPU that it sees
    models.choose_hardware(device, "bfloat16")  # which ends where GPUs were given and none is seen
    found: list[Finding] = []
    folder, base = models.folders(spec["model"]["model_path"], spec["model"])
    identity = _identity(spec, models.stamps(folder, base))
    # Earlier versions took the weights alone, without the files of the tokenizer.
    weights = [one for one in models.stamps(folder, base) if one[0].endswith(".safetensors")]
    known = (identity, _identity(spec, weights))
    with files.only_run(output):
        record = quantized.read_record(output)
        if record is None or record.get("identity") not in known:
            record = _quantize(spec, output, folder, base, found)
            record["identity"] = identity
        else:
            findings.say(f"{output} holds this model already: it is not quantized again")
        record["job_id"] = job_folder.id_of(job_dir) if job_dir else None
        record |= {"accuracy": None, "verdict": UNKNOWN}
        quantized.write_record(output, record)
        if spec["evaluation"]["annotation_path"]:
            record["accuracy"], problems = accuracy_lost(spec, output)
            found += problems
            record["verdict"] = verdict(record["accuracy"], record["bytes"])
            quantized.write_record(output, record)
    findings.say(record["verdict"])
    return record, found


def _identity(spec: dict, stamps: list) -> str:
    """Return what changes with whatever changes the result: the spec, the model's files, the
    records."""
    asked = {name: spec[name] for name in ("quantize", "dataset", "vision", "seed")}
    path = spec["dataset"]["annotation_path"]
    records = None
    if path and Path(path).is_file():
        records = files.sha256(Path(path))
    facts = json.dumps([asked, stamps, records], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


# -- before the work -----------------------------------------------------------------------------


def check(spec: dict, output: Path, folder: Path, base: Path | None) -> list[Finding]:
    """Return what stands against the work as far as files and this machine tell."""
    name = spec["quantize"]["quantization_scheme"]
    source = base or folder
    models.check_architecture(source)
    device = spec["custom"]["transformers_engine"]["device"]
    # A GPU that was given and is not seen is said now, and not by the trial after hours.
    findings.say(f"quantizing on {models.choose_hardware(device, 'bfloat16').device}")
    found = quantized.check_source(source, name) + quantized.check_output(output)
    if not importlib.util.find_spec(LIBRARY):
        message = f"got no {LIBRARY}, which does the quantizing"
        found.append(findings.error("QUANT-NOT-INSTALLED", sys.executable, message, SETUP))
    if findings.has_errors(found):
        return found
    # What the result is held to, which takes these files over: told now, and not after hours.
    found += run_outputs.verify_model(source, whole=True)
    if findings.has_errors(found):
        return found
    tensors, _ = safetensors_files.read_folder(source)
    needed = quantized.bytes_after(tensors, quantized.SCHEMES[name])
    if base:
        needed += quantized.stored_bytes(tensors)  # the merged model lies beside it for a while
    return found + quantized.check_disk(output, needed) + _check_gpu(name)


def _check_gpu(name: str) -> list[Finding]:
    least = quantized.SCHEMES[name].capability
    if least is None or not torch.cuda.is_available():
        return []
    has = torch.cuda.get_device_capability()
    if has >= least:
        return []
    message = (
        f"got {torch.cuda.get_device_name()} of compute capability {has[0]}.{has[1]}, which does "
        f"not compute in {name} ({least[0]}.{least[1]} or newer): there the model is smaller only; "
        "W8A8, of 8 bits too, is computed on any"
    )
    return [findings.warning("QUANT-GPU", quantizing.SCHEME, message)]


def host_bytes(config: dict, model_bytes: int, tokens: int) -> int:
    """Return host memory at the height of a calibration with so many tokens in all: the model, and
    of each token the pixels it came from and the hidden states that enter the first layers, all in
    bfloat16."""
    vision = config["vision_config"]
    frames = FAMILIES[config["model_type"]].frames_per_token
    pixels = 3 * vision.get("temporal_patch_size", frames) * vision["patch_size"] ** 2
    pixels *= vision["spatial_merge_size"] ** 2
    states = 1 + len(vision.get("deepstack_visual_indexes", ()))
    width = config.get("text_config", config)["hidden_size"]
    return model_bytes + tokens * 2 * (pixels + states * width)


def _check_memory(needed: int) -> list[Finding]:
    available = psutil.virtual_memory().available
    findings.say(f"about {needed / 1e9:.1f} GB of host memory at its height")
    if needed <= available:
        return []
    message = (
        f"got {available / 1e9:.1f} GB of free host memory, expected {needed / 1e9:.1f} GB; fewer "
        f"or shorter calibration samples need less ({quantizing.SAMPLES})"
    )
    return [findings.warning("QUANT-MEMORY", "host", message)]


# -- the work ------------------------------------------------------------------------------------


def _quantize(
    spec: dict, output: Path, folder: Path, base: Path | None, found: list[Finding]
) -> dict:
    """Make the folder of the quantized model, with its record. Raises Failure."""
    started = time.monotonic()
    table = spec["quantize"]
    scheme = quantized.SCHEMES[table["quantization_scheme"]]
    found += check(spec, output, folder, base)
    _refuse(found)
    source = base or folder
    config = models.check_architecture(source)
    tokenizer = models.load_tokenizer(source)
    records = None
    lengths = []
    if scheme.needs_data or table["kv_precision"] == "fp8":
        records, lengths, problems = calibration.records(spec, source, tokenizer)
        found += problems
        _refuse(found)
    tensors, _ = safetensors_files.read_folder(source)
    before = quantized.stored_bytes(tensors)
    found += _check_memory(host_bytes(config, before, sum(lengths)))
    if found:
        findings.say(findings.as_text(found))  # now, not after hours
    with contextlib.ExitStack() as temporary:
        if base:
            source = temporary.enter_context(_merged(folder, base, output))
        work = temporary.enter_context(files.whole_folder(output))
        with contextlib.redirect_stdout(sys.stderr):  # where the library logs
            findings.say(f"quantizing, 1 of 4: reading {before / 1e9:.1f} GB of weights")
            network = models.load_model(source, "auto", torch.device("cpu"))
            device = "cuda" if torch.cuda.is_available() else "the CPU, where no CUDA GPU is seen"
            scheme_name = table["quantization_scheme"]
            findings.say(f"quantizing, 2 of 4: {scheme_name}, by {LIBRARY} on {device}")
            compress.compress(network, tokenizer, table, config["model_type"], records)
            findings.say("quantizing, 3 of 4: comparing weights before and after")
            errors = compress.weight_errors(network, source, scheme)
            findings.say("quantizing, 4 of 4: writing the model")
            compress.save(network, source, work)
            as_trained.carry(folder, work)
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        # Before the trial, which loads the result.
        peak_memory = {"host_gb": round(host / 1e9, 2), "gpu_gb": round(gpu / 1e9, 2)}
        del network
        _free()
        _refuse(quantized.verify(work))
        tensors, _ = safetensors_files.read_folder(work)
        calibrated = None
        if lengths:
            calibrated = {
                "annotations": spec["dataset"]["annotation_path"],
                "asked": table["num_calibration_samples"],
                "samples": len(lengths),
                "tokens": sum(lengths),
                "longest": max(lengths),
                "system_prompt": spec["dataset"]["system_prompt"],
                "vision": {key: one for key, one in spec["vision"].items() if one is not None},
            }
        record = {
            "schema_version": 1,
            "scheme": table["quantization_scheme"],
            "kv_precision": table["kv_precision"],
            "model": spec["model"]["model_path"],
            "base_model": spec["model"]["base_model_path"] or None,
            "library": f"{LIBRARY} {importlib.metadata.version(LIBRARY)}",
            "calibration": calibrated,
            "bytes": {"before": before, "after": quantized.stored_bytes(tensors)},
            "layers": _error_summary(errors),
            "trial": None if table["skip_test_generation"] else trial(spec, work, records),
        }
        record["seconds"] = round(time.monotonic() - started, 1)
        record["peak_memory"] = peak_memory
        quantized.write_record(work, record)
        quantized.keep_claim(output, work)
    return record


def _refuse(found: list[Finding]) -> None:
    """Raise Failure when an error is among the findings."""
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_BAD_INPUT)


@contextlib.contextmanager
def _merged(folder: Path, base: Path, output: Path) -> Iterator[Path]:
    """Yield the adapter added to its base, in a folder beside the output that goes away again."""
    place = files.temporary_name(output)
    place.mkdir()
    try:
        adapters.merge(
            adapters.read(folder),
            base,
            place / "merged",
            jobs=os.cpu_count() or 1,
            other_base=adapters.BASE_KEY,
        )
        yield place / "merged"
    finally:
        shutil.rmtree(place)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _error_summary(errors: dict[str, float]) -> dict:
    """Return relative errors of the weights: how many layers, their mean, the worst, and all of
    them."""
    worst = sorted(errors, key=errors.get, reverse=True)[:WORST]
    return {
        "count": len(errors),
        "mean_error": round(sum(errors.values()) / max(len(errors), 1), 6),
        "worst": {name: errors[name] for name in worst},
        "errors": errors,
    }


# -- what proves it ------------------------------------------------------------------------------


def trial(spec: dict, folder: Path, records: Records | None) -> dict:
    """Return one question and the answer of the quantized model, loaded from its folder. Raises
    Failure."""
    asked = evaluate_spec(spec, {"model_name": str(folder)}, folder / ACCURACY)
    asked["dataset"]["media_dir"] = spec["dataset"]["media_dir"]
    asked["generation"]["max_tokens"] = TRIAL_TOKENS
    turn = Turn("user", ASKED)
    question = Question("trial", Sample(0, "trial", (turn,), (), None), (turn,), ASKED, "")
    if records is not None:
        question = next(iter(records.samples[0].questions()), question)
    responder = Responder(asked)
    (answer,) = next(responder.answers([question]))
    if answer.response is None:
        raise findings.outside("QUANT-TRIAL", folder, f"got no answer: {answer.error}")
    return {"question": question.text, "answer": answer.response}


# -- accuracy ------------------------------------------------------------------------------------


def evaluate_spec(spec: dict, model: dict, results: Path) -> dict:
    """Return the complete evaluate spec that asks a model as the quantize spec says."""
    asked = spec["evaluation"]
    table = document.template("evaluate")
    table["model"] |= model
    table["dataset"] = {
        "annotation_path": asked["annotation_path"],
        "media_dir": asked["media_dir"],
        "system_prompt": spec["dataset"]["system_prompt"],
    }
    table["vision"] = {key: value for key, value in spec["vision"].items() if value is not None}
    table["evaluation"] |= {
        "limit": asked["limit"],
        "answer_type": asked["answer_type"],
        "skip_saved": True,
    }
    table["generation"]["max_tokens"] = asked["max_tokens"]
    table["custom"] = {"transformers_engine": dict(spec["custom"]["transformers_engine"])}
    table["results_dir"] = str(results)
    return document.with_defaults("evaluate", table)


def accuracy_lost(spec: dict, output: Path) -> tuple[dict, list[Finding]]:
    """Ask both models the questions and compare the pairs. Answers of an earlier run that was
    killed are reused. Raises Failure."""
    original = spec["model"] | {"model_name": spec["model"]["model_path"]}
    del original["model_path"]
    graded = {}
    found = []
    for name, table in {"original": original, "quantized": {"model_name": str(output)}}.items():
        findings.say(f"asking the {name} model")
        asked = evaluate_spec(spec, table, output / ACCURACY / name)
        evaluation.run(asked, None, Responder(asked))
        _free()
        results = output / ACCURACY / name / RESULTS
        graded[name], problems = grading.read(results, grading.Options())
        for finding in problems:
            if finding.id == "EVAL-CUT-SHORT":  # this quantize spec asked, not one of an evaluation
                longer = grading.longer(spec["evaluation"]["max_tokens"])
                fix = Fix(changes={"evaluation.max_tokens": longer})
                finding = dataclasses.replace(finding, fix=fix)
            found.append(finding)
    pair, problems = comparison.compare(graded["original"], graded["quantized"], "evaluation")
    return pair | {"annotations": spec["evaluation"]["annotation_path"]}, found + problems


def verdict(pair: dict, sizes: dict) -> str:
    """Return what the quantization cost and gave, in a line."""
    size = f"{sizes['before'] / 1e9:.3g} -> {sizes['after'] / 1e9:.3g} GB"
    return f"{comparison.in_words(pair)}; {size}"
