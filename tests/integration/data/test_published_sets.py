"""Cosmos-Reason1's published sets by name, from a Hub of this machine: parts of a split, and clips
that the repository does not hold cut from raw videos."""

import json

import av
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from servers import hub
from support import run_script

from cosmos_reason.data import annotations
from cosmos_reason.media import files as media

pytestmark = pytest.mark.integration

SFT, BENCHMARK = "nvidia/Cosmos-Reason1-SFT-Dataset", "nvidia/Cosmos-Reason1-Benchmark"


def clip_name(number):
    return f"clips/327-{number}-head_color-{number}-{number + 4}.mp4"


def write_sets(root):
    """Two shards of six records, and a benchmark of three questions; no clips."""
    split = {"split": "reasoning", "path": "agibot/reasoning-*.parquet"}
    (root / "sft" / "agibot").mkdir(parents=True)
    configs = json.dumps([{"config_name": "agibot", "data_files": [split]}])
    (root / "sft" / "README.md").write_text(f"---\nconfigs: {configs}\n---\n# Data\n")
    for shard in range(2):
        numbers = range(3 * shard, 3 * shard + 3)
        talks = [
            [{"role": "user", "content": "What?"}, {"role": "assistant", "content": f"It is {n}."}]
            for n in numbers
        ]
        rows = {"video": [clip_name(n) for n in numbers], "conversations": talks}
        name = f"reasoning-{shard:05d}-of-00002.parquet"
        parquet.write_table(arrow.table(rows), root / "sft" / "agibot" / name)
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    rows = [{"video": clip_name(number), "qa_pairs": pair} for number in range(3)]
    (root / "benchmark" / "agibot").mkdir(parents=True)
    table = root / "benchmark" / "agibot" / "agibot_benchmark_qa_pairs.json"
    table.write_text(json.dumps(rows))


def write_raw(root, numbers):
    for number in numbers:
        path = root / "observations" / "327" / str(number) / "videos" / "head_color.mp4"
        path.parent.mkdir(parents=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for grey in range(20):
                picture = np.full((48, 64), 8 * grey, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray8")))
            container.mux(stream.encode(None))
    return root


@pytest.fixture
def build(tmp_path):
    write_sets(tmp_path / "hub")
    names = {SFT: tmp_path / "hub" / "sft", BENCHMARK: tmp_path / "hub" / "benchmark"}
    with hub(datasets=names) as server:
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "COSMOS_CACHE": str(tmp_path / "cache"),
        }

        def run(*args, expect=0):
            flags = (*args, "--force", "-o", tmp_path / "out", "--json")
            done = run_script("build_dataset.py", *flags, env=env)
            assert done.returncode == expect, done.stdout + done.stderr
            said = json.loads(done.stdout)
            return said["findings"][0] if expect else said["result"]

        yield run


def built(tmp_path):
    samples, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    clips = [tmp_path / "out" / "train" / item.path for sample in samples for item in sample.media]
    return [sample.turns[-1].text for sample in samples], [media.probe(clip) for clip in clips]


def test_a_part_of_a_split_over_its_shards_with_its_clips_cut(build, tmp_path):
    raw = write_raw(tmp_path / "raw", [2, 3])
    part = ("--hf-subset", "agibot", "--hf-split", "reasoning[2:4]")
    lost = build(SFT, *part, expect=2)
    assert (lost["id"], lost["fix"], lost["data"]["count"]) == (
        *("BUILD-MEDIA-MISSING", "--raw DIR", 2),
    )
    assert build(SFT, *part, "--raw", raw)["written"] == {"train": 2}
    answers, clips = built(tmp_path)
    assert answers == ["It is 2.", "It is 3."]
    assert [(clip.frames, clip.fps, clip.height) for clip in clips] == [(4, 30.0, 48)] * 2
    absent = build(SFT, "--hf-subset", "agibot", "--raw", raw, expect=2)
    assert len(absent["data"]["files"]) == 4 and str(raw) in absent["data"]["files"][0]
    assert build(SFT, "--hf-split", "reasoning[9:]", expect=1)["id"] == "BUILD-EMPTY"


def test_the_benchmark_by_name(build, tmp_path):
    raw = write_raw(tmp_path / "raw" / "agibot", range(3)).parent
    assert build(BENCHMARK, "--raw", raw)["written"] == {"train": 3}
    answers, clips = built(tmp_path)
    assert answers == ["B"] * 3 and {clip.frames for clip in clips} == {4}
