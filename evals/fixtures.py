"""What a case's workspace holds before anyone works in it.
Each function makes one thing, the same every time."""

import json
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni

SEED = 3
RUN = "20260101120000"


def dataset(root: Path) -> None:
    """data/train with 8 clips, data/eval with 4,
    each with annotations.json and three questions per clip."""
    clips.write_split(root / "data", "train", 8, SEED)
    clips.write_split(root / "data", "eval", 4, SEED)


def broken_dataset(root: Path) -> None:
    """The dataset with a cut clip, a missing clip,
    and an evaluation clip that is a training clip too."""
    dataset(root)
    videos = root / "data" / "train" / "videos"
    cut = videos / "train-0001.mp4"
    cut.write_bytes(cut.read_bytes()[:200])
    (videos / "train-0002.mp4").unlink()
    shutil.copy(videos / "train-0003.mp4", root / "data" / "eval" / "videos" / "eval-0000.mp4")


def labelled_clips(root: Path) -> None:
    """clips/ with 8 videos and labels.csv: file name, and whether a light comes on."""
    clips.write_split(root, "clips", 8, SEED)
    records = files.read_json(root / "clips" / "annotations.json")
    (root / "clips" / "annotations.json").unlink()
    answers = {
        row["video"]: row["conversations"][1]["value"]
        for row in records
        if row["id"].endswith("light")
    }
    rows = [f"{name},{answer}" for name, answer in sorted(answers.items())]
    (root / "clips" / "labels.csv").write_text(
        "\n".join(["clip,light_on", *rows]) + "\n", encoding="utf-8"
    )


def clips_without_one(root: Path) -> None:
    """The same, one of whose clips is gone."""
    labelled_clips(root)
    (root / "clips" / "videos" / "clips-0003.mp4").unlink()


def clips_with_metas(root: Path) -> None:
    """recordings/videos/<id>.cam0.mp4 and recordings/metas/<id>.label.json."""
    labelled_clips(root)
    for folder in ("videos", "metas"):
        (root / "recordings" / folder).mkdir(parents=True)
    for line in (root / "clips" / "labels.csv").read_text(encoding="utf-8").splitlines()[1:]:
        name, answer = line.split(",")
        stem = Path(name).stem
        (root / "clips" / name).rename(root / "recordings" / "videos" / f"{stem}.cam0.mp4")
        files.write_json(
            root / "recordings" / "metas" / f"{stem}.label.json",
            {"light_on": answer, "shift": "night"},
        )
    shutil.rmtree(root / "clips")


def omni_checkpoint(root: Path) -> None:
    """checkpoints/Cosmos3-Nano in the published Omni layout, with a million random parameters."""
    rng = random.Random(SEED)
    asked = clips.questions(clips.Scene.draw(rng))
    tiny_omni.build(
        root / "checkpoints" / "Cosmos3-Nano",
        SEED,
        [text for pair in asked.values() for text in pair],
    )


def model(root: Path) -> None:
    """models/cosmos3-nano: the same checkpoint, converted."""
    omni_checkpoint(root)
    source = omni.open_source(root / "checkpoints" / "Cosmos3-Nano")
    conversion.convert(source, root / "models" / "cosmos3-nano", 10**9, force=False, jobs=1)
    shutil.rmtree(root / "checkpoints")


def train_output(root: Path) -> None:
    """results/train as a run leaves it: steps 2, 4 and 6, the last one cut off, a best link from
    inside a container, validation losses, and the accuracies of two evaluations. By loss step 4 is
    the best, by accuracy step 2."""
    model(root)
    run = root / "results" / "train" / RUN
    for step in (2, 4, 6):
        shutil.copytree(root / "models" / "cosmos3-nano", run / "safetensors" / f"step_{step}")
    weights = next((run / "safetensors" / "step_6").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    losses = {2: 0.9, 4: 0.5, 6: 0.4}
    lines = [
        json.dumps({"time": step, "step": step, "val/avg_loss": loss, "val/tokens": 100})
        for step, loss in losses.items()
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (run.parent / "best").mkdir()
    (run.parent / "best" / "safetensors").symlink_to(f"/results/train/{RUN}/safetensors/step_6")
    scores = {
        f"{RUN}/safetensors/step_{step}": {"accuracy": value, "rows": 12}
        for step, value in {2: 0.75, 4: 0.5}.items()
    }
    files.write_json(run.parent / "checkpoint_metrics.json", scores)


def evaluations(root: Path) -> None:
    """The dataset, and results/base and results/tuned: the tuned model answers all but
    two questions, one of them with nothing that can be read as an answer; the base
    model answers yes to everything."""
    dataset(root)
    records = files.read_json(root / "data" / "eval" / "annotations.json")
    for name in ("base", "tuned"):
        rows = []
        for number, record in enumerate(records):
            question, gt = (
                turn["value"].removeprefix("<video>\n") for turn in record["conversations"]
            )
            said = "yes" if name == "base" else {0: "I cannot tell.", 2: "sideways"}.get(number, gt)
            rows.append(
                {"video_id": record["id"], "question": question, "gt": gt, "response": said}
            )
        files.write_json(root / "results" / name / "results.json", rows)


def guarded_evaluations(root: Path) -> None:
    """The same, each with twelve general questions: the base model answers all of them, the tuned
    one with nothing but a direction."""
    evaluations(root)
    for name, said in (("base", "A"), ("tuned", "left")):
        row = {"question": "Which?\n(A) a dog\n(B) a cat", "gt": "A", "response": said}
        rows = [{"video_id": f"general-{number}"} | row for number in range(12)]
        files.write_json(root / "results" / name / "guard" / "results.json", rows)
