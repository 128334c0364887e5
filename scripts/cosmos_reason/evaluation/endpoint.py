"""A server that speaks OpenAI's chat completions and answers questions: --endpoint URL. Needs no
torch.

Frames are sampled and resized here, so that they are the same whoever answers, and go as JPEG in
data URLs: together as one video with the times beside it (vLLM; see `_times`), or each as an image
led by its time (any server, but the model then sees no video: a model that was right in 97 % of the
demo's questions was right in 62 %). `custom.endpoint.frames = "auto"` sends videos where the server
takes a small one at the start, else images.
"""

from __future__ import annotations

import base64
import functools
import io
import time
from collections.abc import Iterator

import numpy as np
from PIL import Image

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.frames import FrameCache, Sampler, Vision
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import likelihood
from cosmos_reason.evaluation import questions as asked
from cosmos_reason.evaluation.questions import Answer, conversation
from cosmos_reason.media.sampling import VisionOptions, patch_size
from cosmos_reason.remote.chat import TRANSIENT, ChatServer
from cosmos_reason.remote.model_names import HUB

NEUTRAL = {  # what changes nothing stays at home: not every server knows all of them
    "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
JPEG_QUALITY = 95
CACHE_BYTES = 256 << 20  # frames of clips with several questions
TIMES_REFUSED = "media_io_kwargs"  # in the HTTP 400 of a vLLM that takes no times from its clients
FRAMES_PER_SECOND = 1000  # of the clip that frame numbers refer to
AUTO, VIDEO, IMAGES = "auto", "video", "images"  # custom.endpoint.frames
FRAMES = "custom.endpoint.frames"
# What is asked before any question, to learn whether the server takes videos with times.
TRIAL = "What is shown?"
TRIAL_CLIP = Vision("video", np.zeros((4, 64, 64, 3), np.uint8), (0.0, 0.5, 1.0, 1.5))
LOSS = (
    "as still images clips lose their time, and the accuracy is not comparable with one of videos: "
    "a model that is right in 97 % of the demo's questions was right in 62 % so"
)
# Asks for no text but for how likely each first token is; 20 is the most that servers tell.
LIKELY = {"max_tokens": 1, "temperature": 0.0, "logprobs": True, "top_logprobs": 20}
TAKES_VIDEOS = "vllm serve MODEL --trust-request-mm-kwargs"


class Endpoint:
    """Answers questions through `url` (the part before /chat/completions),
    `custom.endpoint.concurrency` at a time, by the model that the server calls `served_model`
    (default: the spec's own). `settle` comes first."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, spec: dict, url: str, served_model: str | None = None):
        self.spec = spec
        self.generation = spec["generation"]
        options = spec["custom"]["endpoint"]
        name = spec["model"]["model_name"].removeprefix(HUB)
        self.model = served_model or name
        self.frames = options["frames"]
        self.shown_as: dict[str, str] = {}
        self.server = ChatServer(
            url,
            flag="--endpoint",
            naming="--served-model",
            key_variable=options["api_key_variable"],
            timeout=options["timeout"],
            concurrency=options["concurrency"],
        )
        self.url = self.server.url
        self.sampler = Sampler(
            spec["dataset"]["media_dir"],
            VisionOptions.from_spec(spec),
            patch_size(name),
            cache=FrameCache(CACHE_BYTES),
        )

    @property
    def where(self) -> str:
        loaded = f" ({self.root})" if self.root not in (None, self.model) else ""
        return f"server {self.url}, model {self.model}{loaded}, frames sent as {self.frames}"

    @property
    def root(self) -> str | None:
        """Return what the server loaded under the model's name; None where it does not tell."""
        return self.server.roots.get(self.model)

    def identity(self) -> list:
        # A server that begins anew may have another model under the same name.
        return [self.url, self.model, self.frames, *([self.root] if self.root else [])]

    # -- before the first question -------------------------------------------------------------

    def settle(self) -> list[Finding]:
        """Make sure that the server knows the model, and choose how frames are sent. Raises Failure
        for what would make every question fail."""
        with self.server.connected():
            found = self.server.check_model(self.model)
            if self.spec["evaluation"]["ask"] != asked.GENERATE:
                self._require_logprobs()
            questions = asked.read(self.spec["dataset"], self.spec["evaluation"]["limit"])
            has_videos = any(item.kind == "video" for one in questions for item in one.sample.media)
            refusal = ""
            if has_videos and self.frames != IMAGES:
                refusal = self._refusal_of_videos()
        if refusal and self.frames == VIDEO:
            message = (
                f"{refusal}; this server takes no videos. Ask one that does (vLLM), or send still "
                "images, which costs accuracy"
            )
            fix = Fix(changes={FRAMES: IMAGES})
            raise findings.outside("EVAL-ENDPOINT-VIDEO", self.url, message, fix)
        if has_videos and (refusal or self.frames == IMAGES):
            self.shown_as = {"videos_as": IMAGES}
        if refusal:
            self.frames = IMAGES
            message = f"{refusal}; this server takes no videos, so images are sent: {LOSS}"
            warning = findings.warning("EVAL-ENDPOINT-IMAGES", self.url, message, TAKES_VIDEOS)
            return [*found, warning]
        if self.frames == IMAGES:
            fix = Fix(changes={FRAMES: AUTO})
            message = f"frames are sent as images: {LOSS}"
            return [*found, findings.warning("EVAL-ENDPOINT-IMAGES", FRAMES, message, fix)]
        self.frames = VIDEO
        return found

    def _refusal_of_videos(self) -> str:
        """Return what the server has against a small video; empty when it takes it. Raises Failure
        for one that takes videos but not their times, and when there is no telling."""
        content = [_video(TRIAL_CLIP), {"type": "text", "text": TRIAL}]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "media_io_kwargs": {"video": _times([TRIAL_CLIP])},
        }
        try:
            self.server.complete(body)
        except Failure as failure:
            (finding,) = failure.findings
            if finding.data.get("is_completion"):
                return ""  # it took the video; one token holds no more than the start of a thought
            if finding.id == "EVAL-ENDPOINT-UNREACHABLE":
                message = (
                    f"{finding.message}; it listed its models before, so the first clip that it "
                    "was asked about ended it. Its log says why, which diagnose_log.py reads"
                )
                raise findings.outside(finding.id, self.url, message) from None
            if not _is_refusal(finding):
                raise
            if TIMES_REFUSED in finding.message:
                message = (
                    f"{finding.message}; the times of the frames go with each video, which this "
                    "server does not take. Start it with --trust-request-mm-kwargs (every client "
                    "of it must be trusted), or send still images, which costs accuracy: "
                    f"{Fix(changes={FRAMES: IMAGES})}"
                )
                raise findings.outside(
                    "EVAL-ENDPOINT-VIDEO", self.url, message, TAKES_VIDEOS
                ) from None
            return finding.message
        return ""

    def _require_logprobs(self) -> None:
        """Raise Failure for a server that does not tell how likely tokens are."""
        message = [{"role": "user", "content": TRIAL}]
        problem = "it told none"
        try:
            if self.server.complete({"model": self.model, "messages": message} | LIKELY).likely:
                return
        except Failure as failure:
            (finding,) = failure.findings
            if finding.data.get("is_completion"):
                problem = "the first token of its answers is one of its thoughts"
            elif _is_refusal(finding):
                problem = finding.message
            else:
                raise
        message = (
            f"evaluation.ask needs a server that gives {LIKELY['top_logprobs']} logprobs per "
            f"token: {problem}. Ask one that does (vLLM), or leave out --endpoint"
        )
        fix = Fix(changes={likelihood.KEY: asked.GENERATE})
        raise findings.bad_input("EVAL-LIKELIHOOD-ENDPOINT", self.url, message, fix)

    # -- the questions -------------------------------------------------------------------------

    def answers(self, questions: list[Question]) -> Iterator[list[Answer]]:
        """Yield answers as they come. Raises Failure (exit 3) when no question can be answered: out
        of reach, or it refuses us."""
        return self.server.each(self.ask, questions)

    def ask(self, question: Question) -> Answer:
        started = time.monotonic()
        ask = self.spec["evaluation"]["ask"]
        try:
            visions = [self.sampler.load(item) for item in question.sample.media]
            body = self.body(question, visions)
            choice = self.weigh(question, body) if ask != asked.GENERATE else None
            if ask == asked.LIKELIHOOD:
                seconds = round(time.monotonic() - started, 3)
                if choice is None:
                    return Answer(question, None, likelihood.NOTHING_TO_WEIGH)
                best = likelihood.likeliest(choice)
                return Answer(question, best, tokens=1, seconds=seconds, choice=choice)
            reply = self.server.complete(body)
        except (Failure, OSError) as problem:
            if getattr(problem, "exit_code", None) == findings.EXIT_OUTSIDE:
                raise
            return Answer(question, None, str(problem))
        seconds = round(time.monotonic() - started, 3)
        answer = Answer(question, reply.text, None, None, reply.is_cut, reply.tokens, seconds)
        return answer._replace(choice=choice)

    def weigh(self, question: Question, body: dict) -> dict[str, float] | None:
        """Return the probability of each answer that the question may have; None where it has none,
        or where the server's likeliest tokens do not tell them apart."""
        if question.id not in self.choices:
            return None
        plain = {name: value for name, value in body.items() if name not in NEUTRAL}
        likely = self.server.complete(plain | LIKELY).likely
        return likelihood.of_tokens(likely, self.choices[question.id])

    @functools.cached_property
    def choices(self) -> dict[str, tuple[str, ...]]:
        return likelihood.choices(self.spec)

    def body(self, question: Question, visions: list[Vision]) -> dict:
        """Return the request; media stand at the start of the first user turn, as in training."""
        generation = self.generation
        body = {
            "model": self.model,
            "messages": self.messages(question, visions),
            "seed": self.spec["evaluation"]["seed"],
            "max_tokens": generation["max_tokens"],
            "temperature": generation["temperature"],
        }
        for name, neutral in NEUTRAL.items():
            if generation[name] != neutral:
                body[name] = generation[name]
        videos = [vision for vision in visions if vision.kind == "video"]
        if videos and self.frames == VIDEO:
            body["media_io_kwargs"] = {"video": _times(videos)}
        return body

    def messages(self, question: Question, visions: list[Vision]) -> list[dict]:
        media = []
        for vision in visions:
            media += self.parts(vision)
        messages = []
        for turn in conversation(question, self.spec):
            content = turn.text
            if turn.role == "user" and media:
                content = [*media, {"type": "text", "text": turn.text}]
                media = []
            messages.append({"role": turn.role, "content": content})
        return messages

    def parts(self, vision: Vision) -> list[dict]:
        """Return what a medium is in a request."""
        if vision.kind == "image":
            return [_image(jpeg(vision.frames[0]))]
        if self.frames == VIDEO:
            return [_video(vision)]
        parts = []
        for second, frame in zip(vision.seconds, vision.frames, strict=True):
            parts.append({"type": "text", "text": f"<{second:.1f} seconds>"})
            parts.append(_image(jpeg(frame)))
        return parts


def _is_refusal(finding: Finding) -> bool:
    """Return whether a server understood and will not do it, however often it is asked."""
    status = finding.data.get("status", 0)
    return 400 <= status < 500 and status not in TRANSIENT


def jpeg(frame) -> str:
    """Return uint8[h, w, 3] as base64 of a JPEG that keeps its colours at full resolution."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return base64.b64encode(buffer.getvalue()).decode()


def _image(frame: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{frame}"}}


def _video(clip: Vision) -> dict:
    frames = ",".join(jpeg(frame) for frame in clip.frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}


def _times(videos: list[Vision]) -> dict:
    """Return vLLM's request fields for frames that were sampled already: their numbers in a clip of
    FRAMES_PER_SECOND. There is one set for all videos of a request. Raises Failure for several
    videos."""
    if len(videos) > 1:
        message = f"a question has {len(videos)} videos, and a request carries the times of one"
        fix = Fix(changes={FRAMES: IMAGES})
        raise findings.bad_input("EVAL-ENDPOINT-VIDEOS", FRAMES, message, fix)
    numbers = [round(FRAMES_PER_SECOND * second) for second in videos[0].seconds]
    return {
        "num_frames": -1,
        "fps": float(FRAMES_PER_SECOND),
        "frames_indices": numbers,
        "total_num_frames": numbers[-1] + 1,
        "do_sample_frames": False,
    }
