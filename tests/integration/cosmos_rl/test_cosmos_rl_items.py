"""Our conversations through the real packer of cosmos-rl 0.4.7: the tokens are those that
check_dataset predicts, the labels and pixels those of the embedded engine."""

import json
import random
from pathlib import Path

import cosmos_rl_packages
import numpy as np
import oracles
import pytest
import tomli_w
from clip_files import write_clip
from PIL import Image
from support import called

from cosmos_reason.data import clip_files, survey
from cosmos_reason.data import facts as dataset_facts
from cosmos_reason.engine import conversations
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import PIXELS_KEY, Encoder
from cosmos_reason.estimate import record_tokens
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

RECORDS = 500
SIZES = ((64, 48), (96, 160), (320, 200), (130, 70))  # width and height
WORDS = (
    *("Which", "way", "does", "the", "red", "circle", "move,", "left", "or", "right?", "A."),
    *("12.5", "m/s", "ünïcödé", "视频", "{}", "<b>", "\n"),
)
VISIONS = (
    {"nframes": 6, "resized_height": 96, "resized_width": 160},
    {"fps": 3, "max_frames": 10, "min_pixels": 2048, "max_pixels": 40000},
    {"nframes": 4, "total_pixels": 600000},
)

PROGRAM = """
import json, tomllib
import numpy as np
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches
cosmos_rl_patches.apply(print)
import toml
from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker
from cosmos_rl.policy.config import Config
from cosmos_reason.engine import conversations

path, output = sys.argv[1:]
with open(path, "rb") as file:
    spec = tomllib.load(file)
packer = HFVLMDataPacker()
packer.setup(Config.from_dict(toml.load(path)))
rows, pixels = [], {}
dataset = conversations.of_spec(spec, "train_dataset")
for index in range(len(dataset)):
    item = packer.sft_process_sample(dataset[index])
    rows.append({"ids": item["input_ids"], "labels": item["label_ids"]})
    for key in ("pixel_values", "pixel_values_videos"):
        if item[key] is not None:
            pixels[f"{index}.{key}"] = item[key].numpy()
np.savez(output + ".npz", **pixels)
with open(output, "w") as file:
    json.dump(rows, file)
"""

# What a rollout asks vllm, and what a policy is given for an answer to it.
ASKED = """
import json
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches
cosmos_rl_patches.apply(print)
import toml
from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker
from cosmos_rl.policy.config import Config
from cosmos_reason.engine.cosmos_rl import entry

path, output = sys.argv[1:]
config = Config.from_dict(toml.load(path))
packer = HFVLMDataPacker()
packer.setup(config)
data = entry.training(config)
rows = []
for index in range(len(data)):
    asked = packer.get_rollout_input(data[index])
    given = packer.get_policy_input(data[index], "A")
    batch = packer.policy_collate_fn([given], len(given["input_ids"]))
    rows.append({
        "prompt": asked["prompt"], "clips": list(asked.get("multi_modal_data", {})),
        "ids": given["input_ids"], "given": sorted(key for key in batch if "pixel" in key),
    })
with open(output, "w") as file:
    json.dump(rows, file)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """llava.json with RECORDS records of all shapes but DAFT's, and daft.json with reasoning;
    their media."""
    folder, dice = tmp_path_factory.mktemp("records"), random.Random(20)
    for number, (width, height) in enumerate(SIZES):
        frames = 12 + 7 * number
        write_clip(
            folder / f"{number}.mp4", frames=frames, width=width, height=height, rate=8 + number
        )
        level = np.full((height, width, 3), 40 * number, np.uint8)
        Image.fromarray(level).save(folder / f"{number}.png")

    def text():
        return " ".join(dice.choices(WORDS, k=dice.randint(1, 20))) + "."

    def record(number):
        turns = []
        for _ in range(dice.choice((1, 1, 2, 3))):
            turns += [{"from": "human", "value": text()}, {"from": "gpt", "value": text()}]
        if dice.random() < 0.3:
            turns.insert(0, {"from": "system", "value": text()})
        clips = [f"{dice.randrange(4)}.mp4" for _ in range(dice.choice((0, 1, 1, 1, 2)))]
        images = [f"{dice.randrange(4)}.png" for _ in range(dice.choice((0, 0, 0, 1, 2)))]
        media = {"videos": clips, "images": images}
        if len(clips) == 1 and dice.random() < 0.5:
            media = {"video": clips[0], "video_fps": 8.0, "images": images}
        return {"id": f"r{number}", "conversations": turns} | media

    records = [record(number) for number in range(RECORDS)]
    (folder / "llava.json").write_text(json.dumps(records))
    items = [
        {"video_id": f"{number % 4}.mp4", "question": text(), "answer": text(), "reasoning": text()}
        for number in range(30)
    ]
    daft = {
        "format": "tao-vl-reason-v1.0",
        "metadata": {"type": "annotation", "license": "x"},
        "items": items,
    }
    (folder / "daft.json").write_text(json.dumps(daft))
    return folder


def spec_of(root, model, name, vision, mode="answer", system=""):
    table = document.template("train")
    changes = {
        "policy.model_name_or_path": str(model),
        "policy.model_max_length": 100000,
        "train.output_dir": "out",
        "custom.vision": vision,
        "custom.train_dataset.annotation_path": str(root / name),
        "custom.train_dataset.media_path": str(root),
        "custom.train_dataset.response_mode": mode,
        "train.train_policy.system_prompt": system,
        "validation.enable": False,
    }
    document.set_values(table, changes)
    return table


def packed(spec, folder, *before):
    """(ids and labels of every item, pixels by "INDEX.KEY") from the real packer."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.toml").write_text(tomli_w.dumps(spec))
    done = called(
        cosmos_rl_packages.command(PROGRAM, folder / "spec.toml", folder / "packed.json"),
        env=cosmos_rl_packages.environment(*before),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "patch: frames reach the model" in done.stdout
    return json.loads((folder / "packed.json").read_text()), np.load(folder / "packed.json.npz")


def predicted(spec, root, name):
    found = survey.of_records(root / name, spec["policy"]["model_name_or_path"])
    how = ("none", VisionOptions(nframes=4), 30.0, clip_checks.Cache())
    found.reports |= dict(clip_checks.examine_all(clip_files.files(found), *how))
    complete = document.with_defaults("train", spec)
    costs = record_tokens.tokens_for_spec(dataset_facts.tables(found), complete)
    return [record.total for record in costs]


def encoded(spec, root):
    """What the embedded engine feeds the model for the same spec."""
    model = spec["policy"]["model_name_or_path"]
    options = VisionOptions.from_table(spec["custom"]["vision"])
    encoder = Encoder(models.load_tokenizer(Path(model)), Path(model), str(root), options, 100000)
    samples = conversations.training_samples(spec["custom"]["train_dataset"], "")
    system = spec["train"]["train_policy"]["system_prompt"]
    return [encoder.encode_training(sample, system) for sample in samples]


@pytest.mark.parametrize("version", ["main", "4.57"])
@pytest.mark.parametrize("vision", VISIONS, ids=["size", "fps", "budget"])
def test_tokens_labels_and_pixels_of_all_formats(tiny_model, root, tmp_path, version, vision):
    before = []
    if version == "4.57":
        older = oracles.installed("diffusers-0.37", ["--no-deps", "diffusers==0.37.1"])
        before = [oracles.transformers("4.57"), older]
    spec = spec_of(root, tiny_model, "llava.json", vision, system="Watch the clips.")
    rows, pixels = packed(spec, tmp_path / "llava", *before)
    assert len(rows) == RECORDS
    assert [len(row["ids"]) for row in rows] == predicted(spec, root, "llava.json")
    for index, (row, ours) in enumerate(zip(rows, encoded(spec, root), strict=True)):
        assert row["ids"] == ours["input_ids"].tolist(), index
        assert row["labels"] == ours["labels"].tolist(), index
        for key in PIXELS_KEY.values():
            if key in ours:
                assert np.abs(pixels[f"{index}.{key}"] - ours[key].numpy()).max() < 1e-5, index
            else:
                assert f"{index}.{key}" not in pixels


@pytest.mark.parametrize(
    ("mode", "records"),
    [("answer", 30), pytest.param("think", 30, marks=pytest.mark.promise), ("hybrid", 60)],
)
def test_reasoning_is_trained_as_response_mode_says(tiny_model, root, tmp_path, mode, records):
    spec = spec_of(root, tiny_model, "daft.json", VISIONS[0], mode)
    rows, _ = packed(spec, tmp_path / mode)
    assert len(rows) == records
    ours = encoded(spec, root)
    assert [row["labels"] for row in rows] == [one["labels"].tolist() for one in ours]
    if mode != "hybrid":
        assert [len(row["ids"]) for row in rows] == predicted(spec, root, "daft.json")


def test_a_prompt_of_reinforcement_learning_may_hold_text_alone(tiny_model, root, tmp_path):
    asked = {"from": "human", "value": "Which is it?\n(A) one\n(B) two"}
    told = {"from": "gpt", "value": "A"}
    records = [{"id": "text", "conversations": [asked, told]}]
    records += [{"id": "clip", "video": "0.mp4", "conversations": [asked, told]}]
    records += [{"id": "image", "image": "0.png", "conversations": [asked, told]}]
    (tmp_path / "rl.json").write_text(json.dumps(records))
    spec = document.template("grpo")
    changes = {
        "policy.model_name_or_path": str(tiny_model),
        "policy.model_max_length": 4096,
        "train.output_dir": "out",
        "custom.vision": {"nframes": 4},
        "custom.train_dataset": {
            "annotation_path": str(tmp_path / "rl.json"),
            "media_path": str(root),
        },
    }
    document.set_values(spec, changes)
    (tmp_path / "spec.toml").write_text(tomli_w.dumps(spec))
    command = cosmos_rl_packages.command(ASKED, tmp_path / "spec.toml", tmp_path / "rows.json")
    done = called(command, env=cosmos_rl_packages.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    text, clip, image = json.loads((tmp_path / "rows.json").read_text())
    assert (text["clips"], clip["clips"], image["clips"]) == ([], ["video"], ["image"])
    assert text["given"] == [] and clip["given"] and image["given"]
    assert "Which is it?" in text["prompt"] and len(text["ids"]) < len(clip["ids"])
