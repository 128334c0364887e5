"""A server that speaks OpenAI's chat completions and answers questions: --endpoint URL. Needs no torch.

Frames are sampled and resized here, so that they are the same whoever answers, and go as JPEG in data URLs: each as an
image led by its time (any server), or together as one video with the times beside it (vLLM; see `_as_video`).
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from itertools import islice

import httpx
from PIL import Image

from cosmos_reason.annotations import Question
from cosmos_reason.findings import EXIT_OUTSIDE, Failure, bad_input, outside
from cosmos_reason.models import HUB
from cosmos_reason.transformers_engine.evaluate import Answer, conversation
from cosmos_reason.transformers_engine.frames import Sampler, Vision
from cosmos_reason.vision_tokens import VisionOptions, patch_size

ATTEMPTS, FIRST_DELAY, LONGEST_DELAY = 6, 1.0, 60.0  # seconds
TRANSIENT = {408, 409, 429, 500, 502, 503, 504}
REFUSING = {401, 403, 404, 405}  # it would be the same for every question
NEUTRAL = {"top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
DEFAULT_KEY = "OPENAI_API_KEY"
JPEG_QUALITY = 95
CACHE_BYTES = 256 << 20  # frames of clips with several questions


class Endpoint:
    """Answers questions through `url` (the part before /chat/completions), `custom.endpoint.concurrency` at a time."""

    def __init__(self, spec: dict, url: str):
        self.spec, self.options = spec, spec["custom"]["endpoint"]
        self.url = _checked(url)
        self.model = spec["model"]["model_name"].removeprefix(HUB)
        self.where = f"server {self.url}, frames sent as {self.options['frames']}"
        self.key = _key(self.options["api_key_variable"])
        vision = VisionOptions.from_spec(spec)
        self.sampler = Sampler(spec["dataset"]["media_dir"], vision, patch_size(self.model), cache_bytes=CACHE_BYTES)
        self.stopped = threading.Event()

    def identity(self) -> list:
        return [self.url, self.options["frames"]]

    def answers(self, questions: list[Question]) -> Iterator[list[Answer]]:
        """As they come. Raises Failure (exit 3) when no question can be answered: out of reach, or it refuses us."""
        count = self.options["concurrency"]
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=count)
        client = httpx.Client(headers=headers, timeout=self.options["timeout"], limits=limits)
        pool, waiting, rest = ThreadPoolExecutor(count), set(), iter(questions)
        try:
            while True:
                waiting |= {pool.submit(self.ask, client, each) for each in islice(rest, 2 * count - len(waiting))}
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                if good := [future.result() for future in done if not future.exception()]:
                    yield good
                for future in done:
                    future.result()
        finally:
            self.stopped.set()
            pool.shutdown(cancel_futures=True)
            client.close()

    def ask(self, client: httpx.Client, question: Question) -> Answer:
        try:
            visions = [self.sampler.load(item) for item in question.sample.media]
            text, is_cut = self.response(client, self.body(question, visions))
            return Answer(question, text, is_cut=is_cut)
        except (Failure, OSError) as problem:
            if getattr(problem, "exit_code", None) == EXIT_OUTSIDE:
                raise
            return Answer(question, None, str(problem))

    def response(self, client: httpx.Client, body: dict) -> tuple[str, bool]:
        """The text of the answer, and whether the tokens ran out. Raises Failure: exit 2 for this question alone, exit
        3 when it concerns them all."""
        for attempt in range(1, ATTEMPTS + 1):
            pause, problem, unreachable = 0.0, "", False
            try:
                reply, said = self._post(client, body)
            except httpx.RequestError as error:
                problem = f"{type(error).__name__} {error}".strip()
                unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
                if isinstance(error, httpx.DecodingError):
                    break
            else:
                if reply.status_code == 200:
                    return self._text(said)
                problem = f"HTTP {reply.status_code}: {self._shown(said)}"
                if reply.status_code in REFUSING or reply.status_code < 400:
                    fix = "--endpoint http://HOST:8000/v1, model.model_name as the server names it, and its key"
                    raise outside("EVAL-ENDPOINT-REFUSED", self.url, f"got {problem}", fix)
                if reply.status_code not in TRANSIENT:
                    break
                pause = _seconds(reply.headers.get("retry-after"))
            if attempt == ATTEMPTS or self.stopped.wait(min(LONGEST_DELAY, max(pause, _backoff(attempt)))):
                break
        if unreachable:
            raise outside("EVAL-ENDPOINT-UNREACHABLE", self.url, f"got {problem} {attempt} times", "start the server")
        raise bad_input("EVAL-ENDPOINT-ANSWER", self.url, f"got {problem}, after {attempt} attempt(s)")

    def _post(self, client: httpx.Client, body: dict) -> tuple[httpx.Response, bytes]:
        """The reply and its content, which may take `timeout` seconds as a whole, not only from byte to byte."""
        end, content = time.monotonic() + self.options["timeout"], bytearray()
        with client.stream("POST", f"{self.url}/chat/completions", json=body) as reply:
            for part in reply.iter_bytes():
                content += part
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"no whole answer within {self.options['timeout']} s")
        return reply, bytes(content)

    def _text(self, said: bytes) -> tuple[str, bool]:
        try:
            choice = json.loads(said)["choices"][0]
            text = (choice["message"]["content"] or "").encode("utf-8", "replace").decode()
            return self._masked(text), choice.get("finish_reason") == "length"
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            message = f"got {self._shown(said)}, expected a chat completion with a text"
            raise bad_input("EVAL-ENDPOINT-ANSWER", self.url, message) from None

    def _shown(self, said: bytes) -> str:
        """The start of what a server said, without our key."""
        text = self._masked(said[:1_000_000].decode("utf-8", "replace"))
        return " ".join(text[:1000].split())[:300] or "an empty answer"

    def _masked(self, text: str) -> str:
        """Without our key, also as it is written in JSON."""
        escaped = json.dumps(self.key)[1:-1]
        for form in (self.key, escaped, escaped.replace("/", "\\/")):
            text = text.replace(form, "***") if form else text
        return text

    def body(self, question: Question, visions: list[Vision]) -> dict:
        """The request; media stand at the start of the first user turn, as in training."""
        generation = self.spec["generation"]
        messages, parts = [], [part for vision in visions for part in self.parts(vision)]
        for turn in conversation(question, self.spec):
            content = turn.text
            if turn.role == "user" and parts:
                content, parts = [*parts, {"type": "text", "text": turn.text}], []
            messages.append({"role": turn.role, "content": content})
        body = {"model": self.model, "messages": messages, "seed": self.spec["evaluation"]["seed"]}
        body |= {key: generation[key] for key in ("max_tokens", "temperature")}
        body |= {key: generation[key] for key, value in NEUTRAL.items() if generation[key] != value}
        videos = [vision for vision in visions if vision.kind == "video"]
        return body | (_times(videos) if videos and self.options["frames"] == "video" else {})

    def parts(self, vision: Vision) -> list[dict]:
        if vision.kind == "image":
            return [_image(jpeg(vision.frames[0]))]
        frames = [jpeg(frame) for frame in vision.frames]
        if self.options["frames"] == "video":
            return [{"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(frames)}"}}]
        parts = []
        for second, frame in zip(vision.seconds, frames, strict=True):
            parts += [{"type": "text", "text": f"<{second:.1f} seconds>"}, _image(frame)]
        return parts


def _checked(url: str) -> str:
    """The address before /chat/completions. Raises Failure, also for one that holds a password."""
    try:
        parts = httpx.URL(url)
        if parts.scheme in ("http", "https") and parts.host and not (parts.userinfo or parts.query):
            return url.rstrip("/").removesuffix("/chat/completions")
    except httpx.InvalidURL:
        pass
    message = "got no plain address, expected one such as http://localhost:8000/v1 (a key goes into a variable)"
    raise bad_input("EVAL-ENDPOINT-URL", "--endpoint", message)


def _key(name: str) -> str:
    """The key in a variable of the environment; the usual variable may be missing. Raises Failure, never showing it."""
    key = os.environ.get(name, "").strip()
    if (not key and name != DEFAULT_KEY) or not (key.isascii() and key.isprintable()):
        raise bad_input("EVAL-ENDPOINT-KEY", name, "got no key in this variable, expected one", f"export {name}=...")
    return key


def jpeg(frame) -> str:
    """uint8[h, w, 3] as base64 of a JPEG that keeps its colours at full resolution."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return base64.b64encode(buffer.getvalue()).decode()


def _image(frame: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{frame}"}}


def _times(videos: list[Vision]) -> dict:
    """vLLM's request fields for frames that were sampled already: frame numbers of a clip of 1,000 frames a second.
    There is one set for all videos of a request. Raises Failure for several videos."""
    if len(videos) > 1:
        message = f"got {len(videos)} videos in a question, expected one: a request carries the times of one"
        fix = "--set custom.endpoint.frames=images"
        raise bad_input("EVAL-ENDPOINT-VIDEOS", "custom.endpoint.frames", message, fix)
    numbers = [round(1000 * time) for time in videos[0].seconds]
    clip = {"num_frames": -1, "fps": 1000.0, "frames_indices": numbers, "total_num_frames": numbers[-1] + 1}
    return {"media_io_kwargs": {"video": clip | {"do_sample_frames": False}}}


def _backoff(attempt: int) -> float:
    return FIRST_DELAY * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            seconds = 0.0
    return seconds if seconds > 0 else 0.0  # also of "nan"
