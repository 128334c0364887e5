"""How many tokens the words of a conversation cost: by the tokenizer and the chat template of a
model's folder, else by an estimate that errs high. What media cost is in record_tokens.py.

Both ways of counting have the same methods, and add up to what the embedded engine encodes for
training: `conversation` (all turns with what the template writes around them), `system` (what a
system prompt of the spec adds), `reasoning` (what reasoning before the answer adds), `answer` (what
is left out when it is to be generated), `marker` (the time that Qwen3-VL reads before two frames)
and `text`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.base.families import DEFAULT, Family
from cosmos_reason.base.files import read_json, read_text
from cosmos_reason.base.findings import bad_input
from cosmos_reason.remote import model_names
from cosmos_reason.spec.prompts import THOUGHT

TURN = 5  # <|im_start|> role \n ... <|im_end|> \n
END = 2  # <|im_end|> \n
VISION_BLOCK = 2  # <|vision_start|> and <|vision_end|> around the vision tokens
# Reasoning between its tags: so many with the tokenizers of Qwen2.5-VL, 5 with those of Qwen3-VL.
THINKING = 10
# What a template that opens a thought writes before an answer without one; its tags are two tokens.
EMPTY_THOUGHT, EMPTY_THOUGHT_TOKENS = "<think></think>", 2

LETTERS = bytes(code for code in range(128) if chr(code).isalpha()) + bytes(range(128, 256))
NOT_DIGITS = bytes(code for code in range(256) if not 48 <= code < 58)


@functools.lru_cache(maxsize=1 << 14)  # answers and wordings repeat
def estimate(text: str) -> int:
    """Return tokens that the Qwen tokenizers make of a text, at most, as long as its words are
    words. Measured against their vocabulary: 2.7 letters of words a token or more (English 4 to 5),
    digits and most signs one each, other scripts 2.7 bytes a token or more; words of random letters
    have up to twice as many tokens as this says."""
    written = text.encode()
    others = 0 if text.isascii() else len(written) - len(text.encode("ascii", "ignore"))
    rest = written.translate(None, LETTERS)
    letters = len(written) - others - len(rest)
    blanks, breaks = rest.count(b" "), rest.count(b"\n")
    digits = len(rest.translate(None, NOT_DIGITS))
    alone = min(blanks, digits) + breaks + written.count(b"   ")  # white space that joins no word
    return -(-letters * 3 // 8) + -(-others * 2 // 5) + len(rest) - blanks - breaks + alone


class Estimate:
    """Counts without a tokenizer. `default_system` is what the template writes where there is no
    system turn, `thought` what it writes before an answer without one."""

    method = "estimate: 8 letters are 3 tokens, digits and signs one each"

    def __init__(self, default_system: int = 0, thought: int = 0):
        self.default_system = default_system
        self.thought = thought

    def text(self, text: str) -> int:
        return estimate(text)

    def conversation(self, turns: Sequence, media: bool) -> int:
        """Return the tokens of `turns`, each of which has a role and a text."""
        extra = 0 if turns[0].role == "system" else self.default_system
        extra += self.thought * sum(role == "assistant" for role, _ in turns)
        return sum(estimate(text) + TURN for _, text in turns) + extra

    def system(self, prompt: str) -> int:
        return estimate(prompt) + TURN - self.default_system

    def reasoning(self, reasoning: str, answer: str) -> int:
        return estimate(reasoning) + THINKING

    def answer(self, answer: str) -> int:
        return estimate(answer) + END

    def marker(self, seconds: float) -> int:
        """Return one token per character of the number, and `<`, ` seconds`, `>`."""
        return len(f"{seconds:.1f}") + 3 + VISION_BLOCK


class Tokenizer:
    """Counts with the tokenizer and the chat template in a folder. Raises Failure when its
    tokenizer.json is none."""

    def __init__(self, folder: Path, family: Family = DEFAULT):
        import tokenizers

        file = folder / "tokenizer.json"
        try:
            self.encoder = tokenizers.Tokenizer.from_file(str(file))
        except Exception as problem:  # the library raises no narrower one
            message = f"got {problem}, expected a fast tokenizer's file"
            raise bad_input("CKPT-TOKENIZER", file, message) from None
        self.method = f"tokenizer: {file}"
        self.template = _template(folder)
        self.thought = self.text(EMPTY_THOUGHT) if family.opens_thought else 0
        self.around = functools.cache(self._around)
        self.marker = functools.cache(self._marker)

    def text(self, text: str) -> int:
        return len(self.encoder.encode(text, add_special_tokens=False).ids)

    def conversation(self, turns: Sequence, media: bool) -> int:
        """Return the tokens of a conversation; `media` tells whether there are any: they stand at
        the start of the first user turn. A text that begins with white space may share a token with
        what the template writes before it."""
        pieces, total = self.around(tuple(role for role, _ in turns))
        for before, (role, text) in zip(pieces, turns, strict=False):
            joined = text[:1].isspace() and role != "assistant" and not (media and role == "user")
            total += self.text(before + text) - self.text(before) if joined else self.text(text)
            media = media and role != "user"
        return total

    def system(self, prompt: str) -> int:
        added = (
            self.around(("system", "user", "assistant"))[1] - self.around(("user", "assistant"))[1]
        )
        return self.text(prompt) + added

    def reasoning(self, reasoning: str, answer: str) -> int:
        added = self.text(THOUGHT.format(reasoning, answer)) - self.text(answer)
        return added - self.thought  # in the place of the empty one

    def answer(self, answer: str) -> int:
        return self.text(answer) + self.text(self._pieces(("user", "assistant"))[-1])

    def _marker(self, seconds: float) -> int:
        return self.text(f"<{seconds:.1f} seconds>") + VISION_BLOCK

    def _around(self, roles: tuple[str, ...]) -> tuple[list[str], int]:
        """Return what the template writes before each text since its last control token, and the
        tokens of all it writes."""
        pieces = self._pieces(roles)
        return [piece.rpartition("|>")[2] for piece in pieces], sum(map(self.text, pieces))

    def _pieces(self, roles: tuple[str, ...]) -> list[str]:
        """Return what the template writes before, between and after the texts of turns with these
        roles."""
        marks = [f"\ue000{number}\ue001" for number in range(len(roles))]
        rest = self._rendered(roles, marks)
        pieces = []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                # Without a template that keeps the texts, the turns are those of ChatML.
                ends = ["", *["<|im_end|>\n" for _ in roles]]
                starts = [*[f"<|im_start|>{role}\n" for role in roles], ""]
                return [end + start for end, start in zip(ends, starts, strict=True)]
            pieces.append(before)
        return [*pieces, rest]

    def _rendered(self, roles: tuple[str, ...], texts: list[str]) -> str:
        """Return the chat text, or "" for a template that does not take these roles."""
        import jinja2

        messages = []
        for role, text in zip(roles, texts, strict=True):
            content = text if role == "assistant" else [{"type": "text", "text": text}]
            messages.append({"role": role, "content": content})
        try:
            return (
                self.template.render(messages=messages, add_generation_prompt=False)
                if self.template
                else ""
            )
        except (jinja2.TemplateError, TypeError):
            return ""


def _template(folder: Path):
    """Return the chat template as transformers renders it; None where there is none, or one that is
    no Jinja."""
    import jinja2
    import jinja2.sandbox

    if (folder / "chat_template.jinja").is_file():
        source = read_text(folder / "chat_template.jinja")
    else:
        file = folder / "tokenizer_config.json"
        source = read_json(file).get("chat_template") if file.is_file() else None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source) if isinstance(source, str) else None
    except jinja2.TemplateError:
        return None


def _refuse(message: str):
    import jinja2

    raise jinja2.TemplateError(message)


@functools.lru_cache(maxsize=2)
def of_model(model: str) -> Estimate | Tokenizer:
    """Return how to count for a model: with the tokenizer in its folder when there is one."""
    family = model_names.known_family(model)
    if model and (Path(model) / "tokenizer.json").is_file():
        return Tokenizer(Path(model), family)
    thought = EMPTY_THOUGHT_TOKENS if family.opens_thought else 0
    return Estimate(family.default_system, thought)
