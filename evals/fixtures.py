"""What a case's workspace holds before anyone works in it.
Each function makes one thing, the same every time."""

import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_edge, tiny_omni

SEED = 3
RUN = "20260101120000"


def dataset(root: Path) -> None:
    """Make data/train with 8 clips, data/eval with 4, each with annotations.json and three
    questions per clip."""
    clips.write_split(root / "data", "train", 8, SEED)
    clips.write_split(root / "data", "eval", 4, SEED)


def broken_dataset(root: Path) -> None:
    """Make the dataset with a cut clip, a missing clip, and an evaluation clip that is a training
    clip too."""
    dataset(root)
    videos = root / "data" / "train" / "videos"
    cut = videos / "train-0001.mp4"
    cut.write_bytes(cut.read_bytes()[:200])
    (videos / "train-0002.mp4").unlink()
    shutil.copy(videos / "train-0003.mp4", root / "data" / "eval" / "videos" / "eval-0000.mp4")


def labelled_clips(root: Path) -> None:
    """Make clips/ with 8 videos and labels.csv: file name, and whether a light comes on."""
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
    """Make the same, one of whose clips is gone."""
    labelled_clips(root)
    (root / "clips" / "videos" / "clips-0003.mp4").unlink()


def clips_with_metas(root: Path) -> None:
    """Make recordings/videos/<id>.cam0.mp4 and recordings/metas/<id>.label.json."""
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
    """Make checkpoints/Cosmos3-Nano in the published Omni layout, with a million random
    parameters."""
    rng = random.Random(SEED)
    asked = clips.questions(clips.Scene.draw(rng))
    tiny_omni.build(
        root / "checkpoints" / "Cosmos3-Nano",
        SEED,
        [text for pair in asked.values() for text in pair],
    )


def edge_checkpoint(root: Path) -> None:
    """Write the published layout of Cosmos3-Edge, small."""
    tiny_edge.build(root / "checkpoints" / "Cosmos3-Edge", seed=5, text="Which way? left right")


def model(root: Path) -> None:
    """Make models/cosmos3-nano: the same checkpoint, converted."""
    omni_checkpoint(root)
    source = omni.open_source(root / "checkpoints" / "Cosmos3-Nano")
    conversion.convert(source, root / "models" / "cosmos3-nano", 10**9, force=False, jobs=1)
    shutil.rmtree(root / "checkpoints")


def train_output(root: Path) -> None:
    """Make results/train as a run leaves it: steps 2, 4 and 6, the last one cut off, a best link
    from inside a container, validation losses, and the accuracies of two evaluations. By loss step
    4 is the best, by accuracy step 2."""
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
    """Make the dataset, and results/base and results/tuned: the tuned model answers all but two
    questions, one of them with nothing that can be read as an answer; the base model answers yes to
    everything."""
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
    """Make the same, each with twelve general questions: the base model answers all of them, the
    tuned one with nothing but a direction."""
    evaluations(root)
    for name, said in (("base", "A"), ("tuned", "left")):
        row = {"question": "Which?\n(A) a dog\n(B) a cat", "gt": "A", "response": said}
        rows = [{"video_id": f"general-{number}"} | row for number in range(12)]
        files.write_json(root / "results" / name / "guard" / "results.json", rows)


def with_sites(root: Path) -> None:
    """Make the dataset and the model, and two places elsewhere: sites/box.yaml (Docker, two GPUs)
    and sites/cluster.yaml (SLURM, four GPUs of a node). /srv/work there is the workspace here."""
    dataset(root)
    model(root)
    described = {
        "box": {"platform": "docker", "gpus": {"type": "H100 80GB", "count": 2}},
        "cluster": {
            "platform": "slurm",
            "gpus": {"type": "A100 80GB", "count": 4},
            "slurm": {"partition": "train", "account": "vision", "time": "4:00:00"},
            "environment": "/srv/work/venv",
        },
    }
    describe(root, "/srv/work", described)


def describe(root: Path, there: str, described: dict[str, dict]) -> None:
    """Write a site of each name, where `there` is the workspace here."""
    for name, facts in described.items():
        facts |= {"schema_version": 1, "name": name, "network": {"hub": False}}
        facts["paths"] = {there: str(root)}
        files.write_json(root / "sites" / f"{name}.yaml", facts)  # JSON is YAML


def dead_runs(root: Path) -> None:
    """Make runs/: the logs of three trainings that died."""
    logs = Path(__file__).parent / "files"
    (root / "runs").mkdir()
    for name in ("out-of-memory", "no-steps", "omni-model"):
        shutil.copy(logs / f"{name}.log", root / "runs" / f"{name}.log")


def faulty_dataset(root: Path) -> None:
    """Make forklifts/train and forklifts/test: a clip that was cut off, one that is gone, one that
    is in both under another name, and an answer that nobody gave."""
    for name, clips_of, seed in (("train", 10, 11), ("test", 5, 12)):
        clips.write_split(root / "forklifts", name, clips_of, seed)
    train, test = (root / "forklifts" / name for name in ("train", "test"))
    cut = train / "videos" / "train-0004.mp4"
    cut.write_bytes(cut.read_bytes()[:300])
    (train / "videos" / "train-0007.mp4").unlink()
    shutil.copy(train / "videos" / "train-0002.mp4", test / "videos" / "test-0001.mp4")
    records = files.read_json(train / "annotations.json")
    records[0]["conversations"][1]["value"] = ""
    files.write_json(train / "annotations.json", records)


def copied_run(root: Path) -> None:
    """Make outputs/run7, the folder of a cosmos-rl training that was copied from another machine,
    with a best link that ends there, and train.log of its two starts. By the log step 20 is the
    best."""
    model(root)
    run = root / "outputs" / "run7"
    for step in (10, 20, 30):
        shutil.copytree(root / "models" / "cosmos3-nano", run / "safetensors" / f"step_{step}")
    (root / "outputs" / "best").mkdir()
    (root / "outputs" / "best" / "safetensors").symlink_to("/mnt/gone/safetensors/step_30")
    stamp = "[rank0]:[cosmos] 2026-02-03 04:05:06,000 - cosmos - INFO - "
    lines = []
    for start, losses in (("20260203040000", {10: 0.8}), ("20260203080000", {20: 0.3, 30: 0.5})):
        lines.append(f"{stamp}[Policy] Loaded configuration: {{}}")
        for step, loss in losses.items():
            lines += [
                f"{stamp}Step: {step}/30, Loss: 0.50000, Grad norm: 1.00000",
                f"{stamp}[SFT] Validation loss: {loss} for train step {step}/30, epoch 1",
                f"{stamp}Saving huggingface checkpoint at step {step} to /mnt/gone/{start}...",
                f"[rank0]:Exported safetensors to /mnt/gone/{start}/safetensors/step_{step}",
            ]
    (root / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


class Lit(NamedTuple):
    """A scene whose light is on from `start` to `end` of its clip, in seconds."""

    scene: clips.Scene
    start: float
    end: float

    def frame(self, time: float):
        shown_at = time * (clips.FRAMES - 1) / clips.FPS
        light_at = 0.0 if self.start <= shown_at < self.end else None
        return replace(self.scene, light_at=light_at).frame(time)


def event_table(root: Path) -> None:
    """Make tours/events.csv: when a white light is on in six clips of two seconds, which show it
    then and only then. Its times are those of frames, so that no part has one of another answer."""
    rng = random.Random(SEED)
    (root / "tours" / "videos").mkdir(parents=True)
    rows = ["clip,start,end,event"]
    for number in range(6):
        name = f"videos/tours-{number:04d}.mp4"
        start, end = (number + 2) / clips.FPS, (number + 7) / clips.FPS
        clips.write_clip(root / "tours" / name, Lit(clips.Scene.draw(rng), start, end))
        rows.append(f"{name},{start:g},{end:g},light on")
    (root / "tours" / "events.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


# ---- of the second half --------------------------------------------------------------------------


def footage(root: Path) -> None:
    """Make footage/learn with 12 clips, footage/judge with 4, and the model."""
    clips.write_split(root / "footage", "learn", 12, 21)
    clips.write_split(root / "footage", "judge", 4, 21)
    model(root)


def far_places(root: Path) -> None:
    """Make the footage and three places elsewhere where /data/vision is the workspace: hall9
    (Docker, four GPUs), bench (Docker, one GPU) and ridge (SLURM, eight GPUs of a node)."""
    footage(root)
    ridge = {"partition": "nightly", "account": "robots", "time": "11:30:00"}
    described = {
        "hall9": {"platform": "docker", "gpus": {"type": "A100 80GB", "count": 4}},
        "bench": {"platform": "docker", "gpus": {"type": "B200", "count": 1}},
        "ridge": {
            "platform": "slurm",
            "gpus": {"type": "H100 80GB", "count": 8},
            "slurm": ridge,
            "environment": "/data/vision/env",
        },
    }
    describe(root, "/data/vision", described)


def week(root: Path) -> None:
    """Make week/: logs of three trainings that died, named by the day."""
    logs = Path(__file__).parent / "files"
    (root / "week").mkdir()
    for day, name in (("mon", "parallel-sizes"), ("wed", "tokens-cut"), ("sat", "workspace-mount")):
        shutil.copy(logs / f"{name}.log", root / "week" / f"{day}.log")


def faulty_gate(root: Path) -> None:
    """Make gate/learn and gate/exam: a clip of no bytes, a letter that is no option, a question
    that is answered yes and no, and a clip of exam that learn has under another name and asks
    something else about."""
    for name, clips_of in (("learn", 9), ("exam", 5)):
        clips.write_split(root / "gate", name, clips_of, 31)
    learn, exam = (root / "gate" / name for name in ("learn", "exam"))
    (learn / "videos" / "learn-0005.mp4").write_bytes(b"")
    shutil.copy(learn / "videos" / "learn-0008.mp4", exam / "videos" / "exam-0003.mp4")
    records = files.read_json(learn / "annotations.json")
    by_id = {row["id"]: row for row in records}
    by_id["learn-0001-colour"]["conversations"][1]["value"] = "F"
    said = by_id["learn-0002-light"]["conversations"]
    other = "no" if said[1]["value"] == "yes" else "yes"
    again = by_id["learn-0002-light"] | {"id": "learn-0002-light-again"}
    again["conversations"] = [said[0], {"from": "gpt", "value": other}]
    records = [row for row in records if row["id"] not in ("learn-0008-colour", "learn-0008-light")]
    files.write_json(learn / "annotations.json", [*records, again])
    asked = files.read_json(exam / "annotations.json")
    files.write_json(
        exam / "annotations.json", [row for row in asked if row["id"] != "exam-0003-direction"]
    )


def thinned_run(root: Path) -> None:
    """Make from-lab/tuned_b, a training that was copied from another machine, with a best link that
    ends there and lab.log. By the log step 45 has the lowest validation loss, but only the steps
    15, 30 and 60 were kept; of these it is step 30."""
    model(root)
    run = root / "from-lab" / "tuned_b"
    for step in (15, 30, 60):
        shutil.copytree(root / "models" / "cosmos3-nano", run / "safetensors" / f"step_{step}")
    shutil.rmtree(root / "models")
    (root / "from-lab" / "best").mkdir()
    (root / "from-lab" / "best" / "safetensors").symlink_to("/lab/9/safetensors/step_45")
    stamp = "[rank0]:[cosmos] 2026-05-06 07:08:09,000 - cosmos - INFO - "
    lines = [f"{stamp}[Policy] Loaded configuration: {{}}"]
    for step, loss in {15: 0.91, 30: 0.42, 45: 0.37, 60: 0.58}.items():
        lines += [
            f"{stamp}Step: {step}/60, Loss: 0.20000, Grad norm: 1.00000",
            f"{stamp}[SFT] Validation loss: {loss} for train step {step}/60, epoch 1",
            f"{stamp}Saving huggingface checkpoint at step {step} to /lab/9/20260506070000...",
            f"[rank0]:Exported safetensors to /lab/9/20260506070000/safetensors/step_{step}",
        ]
    (root / "lab.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def press_table(root: Path) -> None:
    """Make press/log.csv: when a lamp glows in eight clips of two seconds, in milliseconds."""
    clips.write_split(root, "press", 8, 41)
    (root / "press" / "annotations.json").unlink()
    names = sorted(path.name for path in (root / "press" / "videos").iterdir())
    rows = [f"videos/{name},{300 + 50 * place},{700 + 50 * place},the lamp glows,{'AB'[place % 2]}"
            for place, name in enumerate(names)]  # fmt: skip
    (root / "press" / "log.csv").write_text(
        "\n".join(["recording,on_ms,off_ms,what,shift", *rows]) + "\n", encoding="utf-8"
    )


def belt_table(root: Path) -> None:
    """Make belt/videos with 16 clips and belt/moves.csv: file name, and as a letter the way that
    the part goes."""
    clips.write_split(root, "belt", 16, 53)
    records = files.read_json(root / "belt" / "annotations.json")
    (root / "belt" / "annotations.json").unlink()
    rows = [
        f"{row['video']},{row['conversations'][1]['value'][0].upper()}"
        for row in records
        if row["id"].endswith("direction")
    ]
    (root / "belt" / "moves.csv").write_text(
        "\n".join(["clip,goes", *rows]) + "\n", encoding="utf-8"
    )


def answered(root: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    """Write answers/<name>/results.json of (question, ground truth, response) rows."""
    files.write_json(
        root / "answers" / name / "results.json",
        [
            {"video_id": f"cam-{number:02d}", "question": question, "gt": gt, "response": said}
            for number, (question, gt, said) in enumerate(rows)
        ],
    )


def two_months(root: Path) -> None:
    """Make answers/june and answers/july, 30 questions each: july has four right that june had
    wrong, and three wrong that june had right."""
    truths = ["yes" if number % 3 else "no" for number in range(30)]
    other = {"yes": "no", "no": "yes"}
    for name, wrong in (("june", {1, 2, 4, 6, 10, 11}), ("july", {10, 11, 17, 20, 24})):
        rows = [
            ("Is the lid closed? Answer yes or no.", gt, other[gt] if number in wrong else gt)
            for number, gt in enumerate(truths)
        ]
        answered(root, name, rows)


def pilot(root: Path) -> None:
    """Make answers/pilot: 10 questions with letters, of which 6 are right, and 15 with yes or no,
    of which 12 are right; two of the wrong ones are no answers."""
    asked = "Which tool is used?\n(A) saw\n(B) drill\n(C) file\nAnswer with the option's letter."
    letters = [(asked, "ABC"[n % 3], "ABC"[(n + (n >= 6)) % 3]) for n in range(10)]
    truths = ["no" if n % 2 else "yes" for n in range(15)]
    said = [*truths[:12], "yes" if truths[12] == "no" else "no", "", "The picture is too dark."]
    asked = "Is a glove worn? Answer yes or no."
    answered(
        root, "pilot", [*letters, *[(asked, *pair) for pair in zip(truths, said, strict=True)]]
    )
