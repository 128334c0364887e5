"""How likely each of a question's answers is (`evaluation.ask`), in one forward pass for all
questions about a clip and all that their answers begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

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
    spelled: Sequence[tuple[str, Tokens]], behind: Mapping[Tokens, torch.Tensor], end: int
) -> dict[str, float]:
    """Return the probability of each choice, which is that of its tokens up to the one that tells
    it from all others: `behind` says how likely each token of the vocabulary comes after each of
    the `beginnings`. A choice that others continue ends with the token `end`."""
    found = dict.fromkeys((choice for choice, _ in spelled), 0.0)
    waiting: list[tuple[Tokens, float, Sequence[tuple[str, Tokens]]]] = [((), 1.0, spelled)]
    while waiting:
        prefix, share, members = waiting.pop()
        for token, group in _by_token(members, end).items():
            here = share * float(behind[prefix][token])
            if len({choice for choice, _ in group}) == 1:
                found[group[0][0]] += here
            elif token != end:
                waiting.append(((*prefix, token), here, group))
    return {choice: round(value, 6) for choice, value in found.items()}


def _by_token(members: Sequence[tuple[str, Tokens]], end: int) -> dict[int, list]:
    """Return (choice, further tokens) by the token that comes first, or that ends a choice."""
    groups = defaultdict(list)
    for choice, tokens in members:
        groups[tokens[0] if tokens else end].append((choice, tokens[1:]))
    return groups


def beginnings(spelled: Sequence[tuple[str, Tokens]], end: int) -> list[Tokens]:
    """Return the beginnings behind which several choices go on, parents first: `probabilities`
    asks for the token after each of them."""
    found: list[Tokens] = []
    waiting: list[tuple[Tokens, Sequence[tuple[str, Tokens]]]] = [((), spelled)]
    while waiting:
        prefix, members = waiting.pop()
        for token, group in _by_token(members, end).items():
            if token != end and len({choice for choice, _ in group}) > 1:
                found.append((*prefix, token))
                waiting.append((found[-1], group))
    return found


class Tree(NamedTuple):
    """Questions about one clip as a row of tokens. What they have in common, the clip, stands there
    once; behind it each question, and the beginnings of its answers, attend to what comes before
    them alone. `places`: of each question, where the token stands that each beginning ends with."""

    inputs: dict[str, torch.Tensor]
    attended: torch.Tensor  # bool [tokens, tokens]
    places: list[dict[Tokens, int]]


def tree_of(
    members: Sequence[tuple[dict[str, torch.Tensor], Sequence[Tokens]]], shared: int
) -> Tree:
    """Return the row of questions, encoded alone (engine/encode.py) with the beginnings of their
    answers, whose first `shared` tokens and media are the same."""
    names = ("input_ids", "mm_token_type_ids", "position_ids")
    first = members[0][0]
    columns = {name: [first[name][:shared]] for name in names}
    total = shared + sum(len(one["input_ids"]) - shared + len(more) for one, more in members)
    attended = torch.zeros(total, total, dtype=torch.bool)
    attended[:shared, :shared] = torch.ones(shared, shared, dtype=torch.bool).tril()
    at = shared
    places = []
    for inputs, more in members:
        for name in names:
            columns[name].append(inputs[name][shared:])
        length = len(inputs["input_ids"]) - shared
        own = slice(at, at + length)
        attended[own, :shared] = True
        attended[own, own] = torch.ones(length, length, dtype=torch.bool).tril()
        at += length
        found = {(): at - 1}
        last = inputs["position_ids"][-1:]
        for tokens in more:
            attended[at] = attended[found[tokens[:-1]]]
            attended[at, at] = True
            columns["input_ids"].append(inputs["input_ids"].new_tensor(tokens[-1:]))
            columns["mm_token_type_ids"].append(inputs["mm_token_type_ids"].new_zeros(1))
            columns["position_ids"].append(last + len(tokens))
            found[tokens] = at
            at += 1
        places.append(found)
    joined = {name: torch.cat(parts) for name, parts in columns.items()}
    return Tree(first | joined, attended, places)


def shared_tokens(encoded: Sequence[dict[str, torch.Tensor]]) -> int:
    """Return how many tokens questions about the same media begin with in common, their media among
    them; 0 where that is not so. Each keeps a token of its own."""
    ids = [one["input_ids"] for one in encoded]
    length = min(map(len, ids)) - 1
    same = torch.stack([one[:length] == ids[0][:length] for one in ids]).all(dim=0)
    shared = int(same.cumprod(dim=0).sum())
    are_media = encoded[0]["mm_token_type_ids"].nonzero()
    return shared if not len(are_media) or int(are_media.max()) < shared else 0
