"""Answers that something else than the scene gives away: the words of the question, the length or
the size of a clip, the name of its file. A model learns the easiest rule there is, so a simple rule
of one feature is learnt here of half the clips and asked about the other half, as in Torralba and
Efros, "Unbiased look at dataset bias" (2011). Enter at `check`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cosmos_reason.data.survey import Survey

if TYPE_CHECKING:
    import numpy as np

FEWEST_RECORDS = 10  # that one answer is told of: fewer are an example, no dataset
FEWEST_ROWS = 20  # that ask one question, for a rule to be learnt and tried
MOST_QUESTIONS = 100  # asked most often, which are looked at one by one
MOST_TOLD = 3  # rules in one message
BINS = 8  # of a length: enough to tell two or three kinds of clips apart
# A rule gives answers away where it halves the errors of the answer that most have, at least, and
# is no chance: so many standard deviations above it, clips (not records) being counted.
SHARE_OF_ERRORS = 0.5
DEVIATIONS = 4.0
NUMBER = re.compile(r"\d+(?:\.\d+)?")  # also the times in the name of a part
WORD = re.compile(r"[^/_. -]+")
SEEN, NAMED, ONE = "DATA-SHORTCUT", "DATA-SHORTCUT-NAME", "DATA-ANSWER-ONE"


def check(dataset: Survey) -> None:
    """Report answers that are given away, and a dataset that has one answer only, as problems."""
    import numpy as np

    questions = sum(dataset.asked)
    counted = {answer for of_kind in dataset.balance.values() for answer in of_kind}
    answered = sum(count for of_kind in dataset.balance.values() for count in of_kind.values())
    if len(counted) == 1 and answered == questions >= FEWEST_RECORDS:
        message = f"got the answer {next(iter(counted))!r} to all {questions} questions"
        dataset.tally.add(ONE, 0, "-", f"{message}, expected two answers or more")
        return
    # Records of one question and one clip: of others no feature belongs to the one answer.
    clip_counts = np.array(dataset.clip_counts)
    single = (np.array(dataset.asked) == 1) & (clip_counts == 1)
    single &= np.array([answer is not None for answer in dataset.answers], bool)
    rows = np.flatnonzero(single)
    if len(rows) < FEWEST_ROWS:
        return
    first_clips = np.concatenate([[0], np.cumsum(clip_counts)[:-1]])
    clips = np.array(dataset.clip_numbers)[first_clips[rows]]
    first_questions = np.concatenate([[0], np.cumsum(np.array(dataset.asked))[:-1]])
    texts = np.array(dataset.text_keys)[first_questions[rows]]
    kinds = np.array([dataset.kinds[row] for row in rows])
    answers = np.array([dataset.answers[row] for row in rows])
    side = np.random.default_rng(0).permutation(len(dataset.clips))[clips] % 2 == 0
    told: dict[str, dict[str, list[int]]] = {SEEN: {}, NAMED: {}}
    for kind in np.unique(kinds):  # the words of a question are a rule among those of its kind
        here = np.flatnonzero(kinds == kind)
        rule = _rule(texts[here], answers[here], clips[here], side[here])
        if rule:
            dataset.shortcuts.append({"feature": "the question alone", **rule})
            told[SEEN][_told(dataset.shortcuts[-1])] = rows[here].tolist()
    features = _features(dataset)
    asked, counts = np.unique(texts, return_counts=True)
    often = asked[np.argsort(-counts, kind="stable")][:MOST_QUESTIONS]
    for text in often:
        same = np.flatnonzero(texts == text)
        for name, (values, id) in features.items():
            here = same[~np.isnan(values[clips[same]])]
            rule = _rule(values[clips[here]], answers[here], clips[here], side[here])
            if rule:
                dataset.shortcuts.append({"feature": name, **rule})
                told[id][_told(dataset.shortcuts[-1])] = rows[here].tolist()
    for id, messages in told.items():
        listed = "; ".join(list(messages)[:MOST_TOLD])
        for row in sorted({row for of_rule in messages.values() for row in of_rule}):
            dataset.tally.add(id, dataset.indices[row], dataset.ids[row], listed)


def _features(dataset: Survey) -> dict[str, tuple[np.ndarray, str]]:
    """Return {name: (a number of each clip, NaN where it is unknown; the check that tells of
    it)}."""
    import numpy as np

    facts = [None] * len(dataset.clips)
    for number, report in dataset.reports.items():
        facts[number] = report.facts
    seconds = [getattr(one, "seconds", None) or np.nan for one in facts]
    frames = [getattr(one, "frames", None) or np.nan for one in facts]
    rates = [getattr(one, "fps", None) or np.nan for one in facts]
    sizes = [one and f"{one.width} x {one.height}" for one in facts]
    # The name without its numbers, and its first word: what a camera or a site is called.
    names = [medium.path.rpartition(".")[0] or medium.path for medium in dataset.clips]
    plain = [NUMBER.sub("#", name) for name in names]
    first = [WORD.findall(name.rpartition("/")[2])[:1] or [""] for name in names]
    return {
        "the length of the clip": (_binned(seconds), SEEN),
        "the number of frames": (_binned(frames), SEEN),
        "the frame rate": (_binned(rates), SEEN),
        "the size of the picture": (_numbered(sizes), SEEN),
        "the name of the clip without its numbers": (_numbered(plain), NAMED),
        "the first word of the clip's name": (_numbered([one[0] for one in first]), NAMED),
    }


def _binned(values: list[float]) -> np.ndarray:
    """Return the values as numbers of bins that hold about equally many."""
    import numpy as np

    numbers = np.array(values, float)
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return numbers
    edges = np.unique(np.quantile(known, np.arange(1, BINS) / BINS, method="lower"))
    binned = np.searchsorted(edges, numbers, side="right").astype(float)
    binned[np.isnan(numbers)] = np.nan
    return binned


def _numbered(values: list[str | None]) -> np.ndarray:
    """Return the values as numbers, NaN for None."""
    import numpy as np

    numbers: dict[str, int] = {}
    return np.array(
        [np.nan if one is None else numbers.setdefault(one, len(numbers)) for one in values], float
    )


def _told(rule: dict) -> str:
    return (
        f"got {rule['feature']} as a rule that is right on {rule['right']:.0%} of "
        f"{rule['records']} records (of clips that it was not learnt of), where "
        f"{rule['majority']!r} for all is right on {rule['share']:.0%}"
    )


def _rule(values: np.ndarray, answers: np.ndarray, clips: np.ndarray, side: np.ndarray) -> dict:
    """Return how often the rule of a feature is right where it gives answers away; {} where not.

    All four have one element for each record: the feature, the answer, the clip, and in which half
    of the clips it is."""
    import numpy as np

    if len(answers) < FEWEST_ROWS:
        return {}
    names, labels = np.unique(answers, return_inverse=True)
    _, values = np.unique(values, return_inverse=True)
    if len(names) < 2 or not values.any():
        return {}
    share = np.bincount(labels).max() / len(labels)
    right = np.zeros(len(labels), bool)
    for learnt in (side, ~side):
        # The answer that most rows of each value have: the last of them written counts.
        pairs, counts = np.unique(values[learnt] * len(names) + labels[learnt], return_counts=True)
        pairs = pairs[np.argsort(counts, kind="stable")]
        rule = np.full(values.max() + 1, np.bincount(labels[learnt], minlength=1).argmax())
        rule[pairs // len(names)] = pairs % len(names)
        right[~learnt] = rule[values[~learnt]] == labels[~learnt]
    gain = right.mean() - share
    deviation = np.sqrt(share * (1 - share) / len(np.unique(clips)))
    if gain < max(SHARE_OF_ERRORS * (1 - share), DEVIATIONS * deviation):
        return {}
    return {
        "right": float(right.mean()),
        "records": len(labels),
        "majority": str(names[np.bincount(labels).argmax()]),
        "share": float(share),
    }
