"""How likely each of a question's answers is (`evaluation.ask`): by the token that a response
begins with, and by more forward passes only where several answers begin alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

NEGLIGIBLE = 1e-4  # a beginning of several answers that is less likely is not followed

Tokens = tuple[int, ...]


def spellings(tokenizer, choices: Sequence[str]) -> list[tuple[str, Tokens]]:
    """Return (choice, tokens) for each way to write each of the choices: behind a space or not,
    and words with capitals too."""
    found = {}
    for choice in choices:
        words = [choice]
        if len(choice) > 1:  # a small letter would be an article: "a red car"
            words += [choice.capitalize(), choice.upper()]
        for word in words:
            for written in (word, f" {word}"):
                tokens = tokenizer.encode(written, add_special_tokens=False)
                found[choice, tuple(tokens)] = True
    return list(found)


def probabilities(
    spelled: Sequence[tuple[str, Tokens]],
    first: torch.Tensor,
    after: Callable[[Tokens], torch.Tensor],
    end: int,
) -> dict[str, float]:
    """Return the probability of each choice, which is that of its tokens up to the one that tells
    it from all others: float32[vocabulary] of the `first` token is known, and `after` gives that of
    the token after others. A choice that others continue ends with the token `end`."""
    found = dict.fromkeys((choice for choice, _ in spelled), 0.0)
    waiting: list[tuple[Tokens, float, Sequence[tuple[str, Tokens]]]] = [((), 1.0, spelled)]
    while waiting:
        prefix, share, members = waiting.pop()
        weight = after(prefix) if prefix else first
        groups = defaultdict(list)
        for choice, tokens in members:
            groups[tokens[0] if tokens else end].append((choice, tokens[1:]))
        for token, group in groups.items():
            here = share * float(weight[token])
            if len({choice for choice, _ in group}) == 1:
                found[group[0][0]] += here
            elif here >= NEGLIGIBLE and token != end:
                waiting.append(((*prefix, token), here, group))
    return {choice: round(value, 6) for choice, value in found.items()}


def continued(inputs: dict[str, torch.Tensor], tokens: Tokens) -> dict[str, torch.Tensor]:
    """Return encoded inputs (engine/encode.py) with text tokens behind them."""
    more = torch.tensor(tokens)
    ids, kinds, positions = (
        inputs[name] for name in ("input_ids", "mm_token_type_ids", "position_ids")
    )
    places = int(positions.max()) + 1 + torch.arange(len(tokens))
    return inputs | {
        "input_ids": torch.cat([ids, more.to(ids)]),
        "mm_token_type_ids": torch.cat([kinds, torch.zeros_like(more).to(kinds)]),
        "position_ids": torch.cat([positions, places[:, None].expand(-1, 3).to(positions)]),
    }
