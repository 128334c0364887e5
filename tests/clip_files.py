"""Real clips and datasets for tests. Frame i of a clip is a plain grey of level 6 * i, so frames can be told apart."""

import json
from pathlib import Path

import av
import jsonschema
import numpy as np
from support import run_script

from cosmos_reason import bundle, spec


def write_clip(path, frames=16, width=64, height=48, rate=8, skipped=0, codec="libx264", tint=0, options=None):
    """`skipped` frames at the start are hidden by an edit list: counted by the container, never decoded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"use_editlist": "1", "avoid_negative_ts": "disabled"} if skipped else options or {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "1", "g": "10", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            level = np.full((height, width, 3), (number * 6 + tint) % 256, np.uint8)
            frame = av.VideoFrame.from_ndarray(level, format="rgb24")
            frame.pts = number - skipped
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def record(number, answer="Yes", **fields):
    turns = [{"from": "human", "value": "<video>\nIs it bright?"}, {"from": "gpt", "value": answer}]
    return {"id": f"r{number}", "video": f"clips/{number}.mp4", "conversations": turns} | fields


def write_dataset(root: Path, records, tint=0):
    """A dataset root with one clip per record (16 frames, 64 x 48, 2 s) and annotations.json."""
    for number in range(len(records)):
        write_clip(root / "clips" / f"{number}.mp4", tint=tint + number)
    (root / "annotations.json").write_text(json.dumps(records))
    return root


def check(*args, expect=0):
    """(result, findings by id) of check_dataset.py, whose exit code is `expect`."""
    done = run_script("check_dataset.py", *args, "--json")
    assert done.returncode == expect, done.stdout + done.stderr
    document = json.loads(done.stdout)
    for finding in document["findings"]:
        jsonschema.validate(finding, bundle.schema("finding"))
    return document["result"], {finding["id"]: finding for finding in document["findings"]}


def write_spec(path, **changes):
    """The training template with `a__b=value` in the place of a.b."""
    table = spec.template("train")
    for key, value in changes.items():
        spec.set_value(table, key.replace("__", "."), value)
    spec.dump(table, path)
    return path
