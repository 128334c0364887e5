"""Datasets of the Hub by name: the layouts of those that are published,
and nothing downloaded that is not needed."""

import json
import shutil
import tarfile
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from clip_files import write_clip
from PIL import Image
from servers import COMMIT, TOKEN, hub
from support import run_script

from cosmos_reason.data import annotations, located

pytestmark = pytest.mark.integration


def write_nexar(root):
    """Clips in folders named by their label, each with a table of other columns."""
    for split, label, count in (
        ("train", "positive", 3),
        ("train", "negative", 3),
        ("test-public", "positive", 2),
    ):
        lines = ["file_name,weather,time_of_event"]
        for number in range(count):
            name = f"{split}-{label}-{number}.mp4"
            write_clip(root / split / label / name, frames=8, tint=number)
            lines.append(f"{name},{'Rain' if number else 'Clear'},{number}.5")
        (root / split / label / "metadata.csv").write_text("\n".join(lines) + "\n")


def write_sft(root):
    """Subsets with splits as the card says;
    clips of one subset in an archive, of the other not published."""
    subsets = ("robovqa", "agibot")
    splits = {
        "understanding": "A table.",
        "reasoning": "<think>\nIt is flat.\n</think>\n\nA table.",
    }
    configs = [
        {
            "config_name": name,
            "data_files": [{"split": s, "path": f"{name}/{s}-*.parquet"} for s in splits],
        }
        for name in subsets
    ]
    root.mkdir()
    (root / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n# Data\n")
    for subset in subsets:
        (root / subset).mkdir()
        for split, answer in splits.items():
            talk = [
                {"role": "user", "content": "What is it?"},
                {"role": "assistant", "content": answer},
            ]
            rows = {"video": [f"clips/{n}.mp4" for n in range(6)], "conversations": [talk] * 6}
            parquet.write_table(
                arrow.table(rows), root / subset / f"{split}-00000-of-00001.parquet"
            )
    clips = root.parent / "clips"
    with tarfile.open(root / "robovqa" / "clips.tar.gz", "w:gz") as tar:
        for number in range(6):
            tar.add(
                write_clip(clips / f"{number}.mp4", frames=8, tint=number), f"./clips/{number}.mp4"
            )
        link = tarfile.TarInfo("clips/7.mp4")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)


def write_rl(root):
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    pairs = [pair, pair | {"index2ans": {"A": "yes", "B": "no", "C": "maybe"}}]
    (root / "robovqa").mkdir(parents=True)
    table = arrow.table({"video": ["clips/0.mp4", "clips/1.mp4"], "qa_pairs": pairs})
    parquet.write_table(table, root / "robovqa" / "rl-00000-of-00001.parquet")
    for number in range(2):
        write_clip(root / "robovqa" / "clips" / f"{number}.mp4", frames=8, tint=number)


def write_frames(root):
    """Videos as folders of pictures: one beside the table, one named from the root; of the third
    only a list of pictures; and a folder that nothing names."""
    rows = []
    for number, (folder, named) in enumerate(
        (
            ("set/frames/a", "frames/a"),
            ("set/frames/b", "set/frames/b"),
            ("set/frames/c", ["frames/c/frame_2.png", "frames/c/frame_10.png"]),
            ("other/frames/a", ""),
        )
    ):
        (root / folder).mkdir(parents=True)
        for shown in (1, 2, 10):
            tint = Image.new("RGB", (64, 48), (20 * shown, 50 * number, 0))
            tint.save(root / folder / f"frame_{shown}.png")
        if named:
            rows.append({"video": named, "fps": 4, "question": "Dark?", "answer": "Yes"})
    (root / "set" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("datasets")
    write_nexar(base / "nexar")
    write_sft(base / "sft")
    write_rl(base / "rl")
    write_frames(base / "frames")
    write_frames(base / "gap")
    shutil.rmtree(base / "gap" / "set" / "frames" / "b")
    names = {
        "nexar-ai/nexar_collision_prediction": "nexar",
        "nvidia/Cosmos-Reason1-SFT-Dataset": "sft",
    }
    names |= {"nvidia/Cosmos-Reason1-RL-Dataset": "rl", "lab/secret-clips": "nexar"}
    names |= {"lab/frames": "frames", "lab/gap": "gap"}
    with hub(datasets={name: base / folder for name, folder in names.items()}) as server:
        yield server


@pytest.fixture
def build(server, tmp_path):
    def run(*args, expect=0, port=server.server_port, token=""):
        server.sent.clear()
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": token,
        }
        flags = (*args, "-o", tmp_path / "out", "--json")
        done = run_script("build_dataset.py", *flags, env=env | {"HF_HUB_DISABLE_XET": "1"})
        assert done.returncode == expect, done.stdout + done.stderr
        said = json.loads(done.stdout)
        return said["result"] if not expect else said["findings"][0]

    return run


def samples(folder):
    found, findings = annotations.read(folder / "annotations.json")
    assert not [finding for finding in findings if finding.severity == "error"]
    return found


NEXAR = "nexar-ai/nexar_collision_prediction"
SFT, RL = (f"nvidia/Cosmos-Reason1-{name}-Dataset" for name in ("SFT", "RL"))


@pytest.mark.promise
def test_labels_by_folder_and_only_the_clips_that_are_kept(build, server, tmp_path):
    result = build(NEXAR, "--subset", 2, "--question", "Does the car collide?")
    assert (result["kind"], result["read"], result["written"]) == ("hf", 6, {"train": 2})
    assert result["commit"] == COMMIT
    assert len([name for name in server.sent if name.endswith(".mp4")]) == 2
    assert not [name for name in server.sent if name.startswith("test")]
    answers = {one.turns[1].text for one in samples(tmp_path / "out" / "train")}
    assert answers <= {"positive", "negative"}
    cache = {"COSMOS_CACHE": str(tmp_path / "cache")}
    checked = run_script("check_dataset.py", tmp_path / "out" / "train", env=cache)
    assert checked.returncode == 0, checked.stderr


def test_a_column_by_name_and_another_split(build, tmp_path):
    flags = "--hf-split test-public --column answer=weather --media copy --question Sky?"
    build(NEXAR, *flags.split())
    found = samples(tmp_path / "out" / "train")
    assert {sample.turns[1].text for sample in found} == {"Rain", "Clear"}
    build(f"{NEXAR}@{COMMIT}", *"--media reference --force --question Hit?".split())
    media = [item for sample in samples(tmp_path / "out" / "train") for item in sample.media]
    assert all(item.path.endswith(".mp4") for item in media)


def test_a_subset_and_split_of_the_card_with_clips_in_an_archive(build, server, tmp_path):
    flags = "--hf-subset robovqa --hf-split reasoning --eval-fraction 0.34"
    assert build(SFT, *flags.split())["written"] == {"train": 4, "eval": 2}
    table = "robovqa/reasoning-00000-of-00001.parquet"
    assert sorted(server.sent) == ["README.md", "robovqa/clips.tar.gz", table]
    answer = samples(tmp_path / "out" / "eval")[0].turns[1].text
    assert answer == "<think>\nIt is flat.\n</think>\n\nA table."
    refused = build(SFT, "--hf-subset", "robovqa", "--force", expect=2)
    assert refused["fix"] == "" and "understanding" in refused["message"]  # which one, nobody said
    assert build(SFT, "--force", expect=2)["id"] == "BUILD-HF-SUBSET"
    wrong = build(SFT, "--force", "--hf-subset", "robovqq", expect=2)
    assert wrong["id"] == "BUILD-HF-SUBSET" and "robovqa" in wrong["message"]
    lost = build(SFT, "--force", "--hf-subset", "agibot", "--hf-split", "reasoning", expect=2)
    assert lost["id"] == "BUILD-MEDIA-MISSING" and "clips/" in lost["message"]
    assert len(samples(tmp_path / "out" / "train")) == 4, "the former output stands"


def test_question_pairs_with_options(build, tmp_path):
    build(RL, "--hf-subset", "robovqa")
    first, second = samples(tmp_path / "out" / "train")
    assert first.turns[0].text.startswith("Which?\n(A) left\n(B) right\nAnswer")
    assert "(C) maybe" in second.turns[0].text and second.turns[1].text == "B"


@pytest.mark.parametrize("mode", ["copy", "reference"])
def test_videos_of_pictures(build, server, tmp_path, mode):
    result = build("hf://datasets/lab/frames", "--media", mode)
    assert (result["read"], result["commit"]) == (3, COMMIT)
    assert len([name for name in server.sent if name.endswith(".png")]) == 3 + 3 + 2
    records = json.loads((tmp_path / "out" / "train" / "annotations.json").read_text())
    assert [record["sample_fps"] for record in records] == [4, 4, 4]
    root = tmp_path / "out" / "train"
    found = [located.source(sample.media[0], root.joinpath) for sample in samples(root)]
    pictures = [[Path(file).name for file in video.files] for video in found]
    numbered = ["frame_1.png", "frame_2.png", "frame_10.png"]
    assert pictures[:2] == [numbered, numbered] and len(pictures[2]) == 2
    cache = {"COSMOS_CACHE": str(tmp_path / "cache")}
    checked = run_script("check_dataset.py", tmp_path / "out" / "train", env=cache)
    assert checked.returncode == 0, checked.stderr


def test_a_folder_of_pictures_that_is_not_there(build):
    lost = build("lab/gap", expect=2)
    assert lost["id"] == "BUILD-MEDIA-MISSING" and "set/frames/b" in lost["message"]
    assert build("lab/gap", "--skip-missing")["written"] == {"train": 2}


def test_a_dataset_of_the_hub_is_built_before_it_is_checked():
    done = run_script("check_dataset.py", "hf://datasets/lab/frames", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["fix"].endswith("scripts/build_dataset.py lab/frames -o data")


def test_gated_unknown_and_out_of_reach(build, tmp_path):
    assert build("lab/secret-clips", expect=3)["id"] == "HUB-GATED"
    assert build("nobody/nothing", expect=3)["id"] == "HUB-NOT-FOUND"
    assert build(NEXAR, expect=3, port=9)["id"] == "HUB-UNREACHABLE"
    assert not (tmp_path / "out").exists()
    assert build("lab/secret-clips", "--subset", 1, "--question", "Hit?", token=TOKEN)["read"] == 6
