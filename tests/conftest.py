"""Fixtures shared by the engine's tests:
a tiny converted checkpoint and a few real clips, made once per session."""

import gc
import os
import shutil

import chat_server
import hypothesis
import pytest
import support
import warm

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_edge, tiny_omni, tiny_qwen2_5_vl
from cosmos_reason.remote import chat
from cosmos_reason.spec import document

# `make ci` starts `make test`: what a test starts is no part of that make.
for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(name, None)
# Sums of as many threads everywhere: trainings are compared bit for bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The servers of the tests are on this machine:
# they answer at once or never, so that nothing is to be waited for.
os.environ["AWS_MAX_ATTEMPTS"] = "1"
# However late on a loaded machine, what they say counts.
os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "300")
# No test asks the real Hub: what has none of its own is refused at once.
os.environ.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")
# No test cuts the power: nothing waits until the disk has what was written.
os.fsync = warm.skip_the_wait
# Times depend on the machine and are measured in benchmarks, never asserted.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


def pytest_collection_finish():
    """What is imported by now stays to the end: the collector need not walk it again and again."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Three workers for two cores: tests of jobs wait for other processes."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """The workers, which are about to start, have one warm process."""
    support.share_warm()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A folder with train/ (12 clips) and eval/ (4 clips), three questions each."""
    root = tmp_path_factory.mktemp("data")
    clips.write_split(root, "train", 12, seed=7)
    clips.write_split(root, "eval", 4, seed=7)
    return root


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, dataset):
    """A Qwen3-VL folder of a million random parameters whose
    tokenizer knows the clips' questions."""
    root = tmp_path_factory.mktemp("models")
    records = files.read_json(dataset / "train" / "annotations.json")
    tiny_omni.build(
        root / "omni", 7, [turn["value"] for record in records for turn in record["conversations"]]
    )
    conversion.convert(omni.open_source(root / "omni"), root / "model", 10**9, force=False, jobs=1)
    return root / "model"


@pytest.fixture(scope="session")
def tiny_reason1(tmp_path_factory, dataset):
    """A Qwen2.5-VL folder of a million random parameters, as `tiny_model`."""
    folder = tmp_path_factory.mktemp("models") / "reason1"
    records = files.read_json(dataset / "train" / "annotations.json")
    texts = [turn["value"] for record in records for turn in record["conversations"]]
    tiny_qwen2_5_vl.build(folder, 7, texts)
    return folder


@pytest.fixture(scope="session")
def published_edge(tmp_path_factory, dataset):
    """A Cosmos3-Edge checkpoint of a million random parameters, as NVIDIA publishes it."""
    folder = tmp_path_factory.mktemp("models") / "published"
    records = files.read_json(dataset / "train" / "annotations.json")
    texts = [turn["value"] for record in records for turn in record["conversations"]]
    tiny_edge.build(folder, 7, texts)
    return folder


@pytest.fixture(scope="session")
def tiny_edge_model(published_edge):
    """The folder that loaders read, made of `published_edge`."""
    folder = published_edge.with_name("edge")
    conversion.convert(omni.open_source(published_edge), folder, 10**9, force=False, jobs=1)
    return folder


@pytest.fixture
def evaluate_spec(tiny_model, dataset, tmp_path):
    """A complete spec of twelve questions about four clips (a copy, tmp_path/eval),
    answered into tmp_path/results."""
    table = document.template("evaluate")
    folder = shutil.copytree(dataset / "eval", tmp_path / "eval")
    changes = {
        "dataset.annotation_path": str(folder / "annotations.json"),
        "dataset.media_dir": str(folder),
        "model.model_name": str(tiny_model),
        "vision": {"nframes": 4, "resized_height": 64, "resized_width": 64},
        "generation.max_tokens": 4,
        "evaluation.batch_size": 5,
        "results_dir": str(tmp_path / "results"),
    }
    for key, value in changes.items():
        document.set_value(table, key, value)
    return document.with_defaults("evaluate", table)


@pytest.fixture
def server(monkeypatch):
    """A stand-in for an OpenAI-compatible server; pauses between attempts are short."""
    monkeypatch.setattr(chat, "FIRST_DELAY", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = chat_server.Server()
    yield server
    server.shutdown()
    server.server_close()
