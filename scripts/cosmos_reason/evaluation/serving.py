"""The command line by which vLLM serves a model, so that it is asked as it was trained."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import as_trained
from cosmos_reason.media.sampling import VisionOptions


def command(model: str, name: str, checkpoint: Path, spec: Path | None = None) -> str:
    """Return how to serve `model` (a folder or ORG/NAME), which clients call `name`. The frames are
    those that `checkpoint` was trained with, or that its training `spec` says; vLLM's own when
    neither tells.

    Clients that send frames with their times, as `--endpoint` does, need the last flag; those that
    send whole clips get as many frames as in training.
    """
    trained = None
    folder = checkpoint.resolve()
    try:
        if as_trained.is_of_training(folder):
            trained = as_trained.training_spec(folder)
        elif spec:
            trained = files.read_toml(spec)
        vision = VisionOptions.from_spec(trained or {})
    except Failure:  # what cannot be read is no reason against the model
        vision = VisionOptions()
    words = ["vllm", "serve", model, "--served-model-name", name]
    frames = _sampling(vision)
    if frames:
        words += ["--media-io-kwargs", json.dumps({"video": frames})]
    return shlex.join([*words, "--trust-request-mm-kwargs"])


def _sampling(options: VisionOptions) -> dict[str, float]:
    """Return how vLLM samples a whole clip. Its loader for Qwen3-VL goes by rate and bounds and
    passes over `num_frames`, its general one knows nothing else: a number is said to both."""
    if options.nframes is not None:
        count = options.nframes
        return {"num_frames": count, "min_frames": count, "max_frames": count}
    sampling = {
        "fps": options.fps,
        "min_frames": options.min_frames,
        "max_frames": options.max_frames,
    }
    given = {key: value for key, value in sampling.items() if value is not None}
    return {"num_frames": -1, **given} if given else {}
