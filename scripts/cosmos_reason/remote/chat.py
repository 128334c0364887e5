"""Asking a server that speaks OpenAI's chat completions: the one place for evaluations and the
judge of answers.

The client is our own. `openai` 3.57 was weighed: it would take the place of the attempts, about 60
of these lines; what an answer must not be (null, thoughts alone, filtered, of another model, with
our own key in it) is looked for here in any case. It pauses in time.sleep, which no stop ends; its
limit of time is that of httpx, from byte to byte, so that an answer that drips never ends; and its
import takes 0.7 s of processor and 58 MiB, of httpx 0.2 s and 28 MiB, with pydantic besides. httpx
itself repeats connections only, and the Hub's client has the faults of openai's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import httpx

from cosmos_reason.base import secrets
from cosmos_reason.base.findings import Failure, Finding, bad_input, info, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import some
from cosmos_reason.spec.values import shown

ATTEMPTS = 6
FIRST_DELAY = 1.0  # seconds
LONGEST_DELAY = 60.0  # seconds
TRANSIENT = {408, 409, 429, 500, 502, 503, 504}
KEY_REFUSED = {401, 403}
REFUSING = KEY_REFUSED | {404, 405}  # the answer would be the same for every question
NAMES_SHOWN = 10
# The finish_reason of an answer that a filter took, or that the server gave up (vLLM: abort).
BROKEN_OFF = ("content_filter", "abort", "error")
THOUGHTS = ("reasoning_content", "reasoning")  # where servers put them beside the content
BESIDE = ("refusal", "tool_calls", "function_call")  # what stands there in place of an answer

Item = TypeVar("Item")
Result = TypeVar("Result")


class Reply(NamedTuple):
    """What the server answered; `is_cut` when the tokens ran out before the answer ended; `tokens`
    of the answer where the server counts them; `likely` is the probability of what may be the first
    token, of the likeliest ones, where that was asked (`top_logprobs`)."""

    text: str
    is_cut: bool
    tokens: int | None = None
    likely: Mapping[str, float] = MappingProxyType({})


class Problem(NamedTuple):
    """Why an attempt gave no reply. `pause`: the seconds that the server asked for; `status`: of
    HTTP, 0 when there was none."""

    text: str
    may_pass: bool
    is_unreachable: bool = False
    pause: float = 0.0
    status: int = 0


class ChatServer:
    """The server at `url`, the part before /chat/completions.

    `flag` and `naming` are the flags for its address and its model, for messages; `key_variable`
    names the environment variable with its key, `timeout` is in seconds for a whole answer,
    `concurrency` the requests in flight at a time, `attempts` how often one is made. Requests are
    made while it is `connected`.
    """

    def __init__(
        self,
        url: str,
        flag: str,
        naming: str,
        key_variable: str,
        timeout: float,
        concurrency: int,
        attempts: int = ATTEMPTS,
    ):
        self.naming = naming
        self.url = checked_address(url, flag)
        self.key = key_of(key_variable)
        self.timeout, self.concurrency, self.attempts = timeout, concurrency, attempts
        self.as_given = f"{flag} http://HOST:8000/v1, {naming} as the server names it, and its key"
        self.stopped = threading.Event()
        self.same: dict[str, set[str]] = {}  # names of one model, as `check_model` learns them
        self.roots: dict[str, str] = {}  # what the server loaded under a name, where it tells that

    def each(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[list[Result]]:
        """Yield what `ask`, which calls `complete`, returns for each item, in lists as they come,
        in any order. The first Failure of `ask` ends it, after the other results of the moment were
        given."""
        with self.connected():
            yield from self._each(ask, items)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=self.concurrency)
        with httpx.Client(headers=headers, timeout=self.timeout, limits=limits) as self.client:
            yield

    def _each(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[list[Result]]:
        pool = ThreadPoolExecutor(self.concurrency)
        waiting: set[Future] = set()
        rest = iter(items)
        try:
            while True:
                free = 2 * self.concurrency - len(waiting)
                waiting |= {pool.submit(ask, item) for item in islice(rest, free)}
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                results = [future.result() for future in done if not future.exception()]
                if results:
                    yield results
                for future in done:
                    future.result()  # raises the Failure of one that has none
        finally:
            self.stopped.set()
            pool.shutdown(cancel_futures=True)

    def complete(self, body: dict) -> Reply:
        """Return the reply. Raise Failure: exit 2 for this request alone, with the `status` of HTTP
        in its data, or `is_completion` where the model replied without an answer (thoughts that
        were cut, a refusal), and exit 3 when it concerns them all, as when another model replies.
        """

        def act() -> Reply | Problem:
            outcome = self._attempt("POST", "/chat/completions", body)
            if not isinstance(outcome, Problem):
                return self._reply(outcome, body["model"])
            # What would be the same at every attempt is not tried again.
            if outcome.status in REFUSING or 0 < outcome.status < 400:
                raise self._refusal(outcome)
            return outcome

        return self._patiently(act)

    def check_model(self, name: str) -> list[Finding]:
        """Raise Failure (exit 2) for a model that the server does not name among its own. A server
        that tells no names is told of."""
        served = self._patiently(self._served)
        if served is None:
            message = f"the server does not list its models: nobody checked that it serves {name}"
            return [info("EVAL-ENDPOINT-UNLISTED", self.url, message)]
        if name in served:
            root = served[name]
            aliases = {other for other in served if root and served[other] == root}
            self.same[name] = aliases | {name}
            if isinstance(root, str):
                self.roots[name] = root
            return []
        names = some([*map(shown, served)], NAMES_SHOWN) or "none"
        message = f"got {shown(name)}, expected a model that this server serves: {names}"
        of_root = [known for known, root in served.items() if root == name]
        fix = Fix(flags={self.naming: of_root[0]}) if of_root else ""
        raise bad_input("EVAL-ENDPOINT-MODEL", self.url, message, fix, served=list(served))

    def _patiently(self, act: Callable[[], Result | Problem]) -> Result:
        """Return what `act` returns, which is tried again while its Problem may pass. Raises
        Failure."""
        for attempt in range(1, self.attempts + 1):
            outcome = act()
            if not isinstance(outcome, Problem):
                return outcome
            if not outcome.may_pass or attempt == self.attempts:
                break
            backoff = FIRST_DELAY * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            delay = min(LONGEST_DELAY, max(outcome.pause, backoff))
            if self.stopped.wait(delay):
                break
        if outcome.is_unreachable:
            message = f"got {outcome.text} {attempt} times, expected a server that answers there"
            raise outside("EVAL-ENDPOINT-UNREACHABLE", self.url, message)
        message = f"got {outcome.text}, after {attempt} attempt(s)"
        raise bad_input("EVAL-ENDPOINT-ANSWER", self.url, message, status=outcome.status)

    def _served(self) -> dict[str, str | None] | Problem | None:
        """Return the names of its models with the root of each; None when it does not tell them."""
        outcome = self._attempt("GET", "/models")
        if not isinstance(outcome, Problem):
            try:
                entries = json.loads(outcome)["data"]
                named = [entry for entry in entries if isinstance(entry["id"], str)]
                return {entry["id"]: entry.get("root") for entry in named}
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return None
        if outcome.status in KEY_REFUSED:
            raise self._refusal(outcome)
        if outcome.status and not outcome.may_pass:
            return None
        return outcome

    def _refusal(self, problem: Problem) -> Failure:
        return outside("EVAL-ENDPOINT-REFUSED", self.url, f"got {problem.text}", self.as_given)

    def _attempt(self, method: str, path: str, body: dict | None = None) -> bytes | Problem:
        """Return the content of an answer with status 200."""
        try:
            reply, content = self._exchange(method, path, body)
        except httpx.RequestError as error:
            text = f"{type(error).__name__} {error}".strip()
            is_unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
            may_pass = not isinstance(error, httpx.DecodingError)
            return Problem(text, may_pass, is_unreachable)
        status = reply.status_code
        if status == 200:
            return content
        text = f"HTTP {status}: {self._shown(content)}"
        pause = seconds_of(reply.headers.get("retry-after"))
        return Problem(text, may_pass=status in TRANSIENT, pause=pause, status=status)

    def _exchange(self, method: str, path: str, body: dict | None) -> tuple[httpx.Response, bytes]:
        """Return the reply and its content, which may take `timeout` seconds as a whole, not only
        from byte to byte."""
        end = time.monotonic() + self.timeout
        content = bytearray()
        with self.client.stream(method, f"{self.url}{path}", json=body) as reply:
            for part in reply.iter_bytes():
                content += part
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"no whole answer within {self.timeout} s")
        return reply, bytes(content)

    def _reply(self, content: bytes, asked: str) -> Reply:
        """Return the answer. Raise Failure for what is none: no text, one that was broken off, or
        one of another model than was asked."""
        try:
            reply = json.loads(content)
            choice = reply["choices"][0]
            usage = reply.get("usage")
            tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
            message, text = choice["message"], choice["message"]["content"]
            end = choice.get("finish_reason")
            likely = _likely(choice.get("logprobs"))
            if text is not None:
                text = text.encode("utf-8", "replace").decode()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            problem = f"got {self._shown(content)}, expected a chat completion with a text"
            raise bad_input("EVAL-ENDPOINT-ANSWER", self.url, problem) from None
        replied = reply.get("model")
        if isinstance(replied, str) and replied not in self.same.get(asked, {asked}):
            message = (
                f"got an answer of {shown(replied)}, expected {shown(asked)}: the server does not "
                "list the two as one model. Ask for the one that is meant by its own name "
                f"({self.naming})"
            )
            raise outside(
                "EVAL-ENDPOINT-OTHER-MODEL", self.url, message, replied=replied, asked=asked
            )
        self._refuse_no_answer(message, end)
        tokens = tokens if type(tokens) is int else None
        return Reply(self._masked(text), end == "length", tokens, likely)

    def _refuse_no_answer(self, message: dict, end: object) -> None:
        text = message["content"]
        thought = any(message.get(key) for key in THOUGHTS)
        others = [key for key in BESIDE if message.get(key)]
        is_lacking = text is None or (not text.strip() and (thought or others))
        if not is_lacking and end not in BROKEN_OFF:
            return
        what = "only thoughts" if thought else "no text" if is_lacking else "a part of an answer"
        if others:
            what += f" but {', '.join(others)}"
        problem = f"got {what} (finish_reason {end!r}), expected an answer"
        if end == "length":
            problem += ": its tokens ended first, a higher generation.max_tokens may help"
        if message.get("refusal"):
            problem += f"; it refuses: {self._masked(str(message['refusal']))[:200]}"
        raise bad_input("EVAL-ENDPOINT-ANSWER", self.url, problem, is_completion=True)

    def _shown(self, content: bytes) -> str:
        """Return the start of what a server answered, without our key."""
        text = self._masked(content[:1_000_000].decode("utf-8", "replace"))
        return " ".join(text[:1000].split())[:300] or "an empty answer"

    def _masked(self, text: str) -> str:
        """Return the text without our key, also as the key is written in JSON."""
        escaped = json.dumps(self.key)[1:-1]
        for form in (self.key, escaped, escaped.replace("/", "\\/")):
            if form:
                text = text.replace(form, "***")
        return text


def _likely(logprobs: object) -> dict[str, float]:
    """Return the probability of each token that a chat completion's logprobs name for the first
    one."""
    if not logprobs or not logprobs.get("content"):
        return {}
    likely: dict[str, float] = {}
    for one in logprobs["content"][0]["top_logprobs"]:
        # Two tokens may be written alike, where their bytes are no whole letter.
        likely[one["token"]] = likely.get(one["token"], 0.0) + math.exp(min(0.0, one["logprob"]))
    return likely


def checked_address(url: str, flag: str) -> str:
    """Return the address before /chat/completions. Raises Failure, also for one that holds a
    password."""
    try:
        parts = httpx.URL(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.host)
        is_plain &= not parts.userinfo and not parts.query
    except httpx.InvalidURL:
        is_plain = False
    if not is_plain:
        message = (
            "got no plain address, expected one such as http://localhost:8000/v1 "
            "(a key goes into a variable)"
        )
        raise bad_input("EVAL-ENDPOINT-URL", flag, message)
    return url.rstrip("/").removesuffix("/chat/completions")


def key_of(variable: str) -> str:
    """Return the key in a variable of the environment; only the default variable may be missing.
    Raises Failure, never showing the key."""
    key = os.environ.get(variable, "").strip()
    is_missing = not key and variable != secrets.CHAT_KEY
    if is_missing or not key.isascii() or not key.isprintable():
        message = "got no key in this variable, expected one"
        raise bad_input("EVAL-ENDPOINT-KEY", variable, message, f"export {variable}=...")
    return key


def seconds_of(retry_after: str | None) -> float:
    """Return the pause that a Retry-After header asks for; it is a number of seconds or a date."""
    if not retry_after:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if seconds > 0 else 0.0  # also of "nan"
