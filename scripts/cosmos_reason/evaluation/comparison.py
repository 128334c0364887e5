"""Runs over the same questions: what the second of two fixed and broke and how likely that is
chance, and which of several is best and which others chance may put there."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cosmos_reason.answers import CLOSED_TYPES
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.texts import shortened
from cosmos_reason.evaluation import metrics
from cosmos_reason.evaluation.rows import Row, about, digest
from cosmos_reason.media.convert import OTHER_CONTAINERS
from cosmos_reason.media.files import MEDIA_SUFFIXES

EXACT_MCNEMAR_LIMIT = 1000
EXACT_FLIPS_LIMIT = 10**7  # clips that changed times the questions that they gained or lost
CHANCE = 0.05  # runs of a larger p-value are not told apart
LONGEST = 40  # characters of an answer in a message
RESAMPLED = 2000  # draws of the bootstrap by clip
CLIP_SUFFIXES = (*MEDIA_SUFFIXES, *OTHER_CONTAINERS)


# -- two runs ------------------------------------------------------------------------------------


def compare(
    before: Sequence[Row], after: Sequence[Row], flag: str = "--compare"
) -> tuple[dict, list[Finding]]:
    """Return how two runs compare, and findings about what could not be paired.

    Questions that both runs answered are paired by id: what the second run fixed and broke, and
    McNemar's two-sided p-value. `earlier` and `earlier_per_type` are the earlier run's summaries
    over the questions of both (types as the second run has them). `per_type`, `per_tag` and
    `per_group` compare parts, with p-values adjusted for their number (`p_adjusted`, Holm 1979). A
    row that failed is no answer, neither right nor wrong. Raises Failure when nothing can be
    paired.
    """
    common, other = paired(before, after)
    if not common and not other:
        message = (
            f"the two runs share no question (their ids are such as {after[0].id} and "
            f"{before[0].id}); compare runs over the same annotations"
        )
        raise findings.bad_input("EVAL-COMPARE-NOTHING", flag, message)
    answered = [(old, new) for old, new in common if old.error is None and new.error is None]
    if common and not answered:
        message = f"of {len(common)} shared question(s) both runs answered none"
        raise findings.bad_input("EVAL-COMPARE-NOTHING", flag, message)
    # Only questions that changed sides tell the runs apart (McNemar).
    changes = Counter((old.correct, new.correct) for old, new in answered)
    by_type = defaultdict(list)
    for old, new in common:
        by_type[new.type].append(old)
    pairs_of_type, pairs_of_tag, pairs_of_group = (defaultdict(list) for _ in range(3))
    for old, new in answered:
        pairs_of_type[new.type].append((old, new))
        for tag in new.tags:
            pairs_of_tag[tag].append((old, new))
        for group in new.groups:
            pairs_of_group[group].append((old, new))
    earlier_per_type = {kind: metrics.summary(by_type[kind]) for kind in sorted(by_type)}
    are_named = names_clips([new for _, new in answered])
    pair = {
        **_part(answered, are_named),
        "failed": len(common) - len(answered),
        "one_response_before": _one_response([old for old, _ in answered]),
        "unread_before": sum(old.read == "unread" for old, _ in common),
        "unread_after": sum(new.read == "unread" for _, new in common),
        "unchanged_right": changes[True, True],
        "unchanged_wrong": changes[False, False],
        "only_before": len(before) - len(common) - len(other),
        "only_after": len(after) - len(common) - len(other),
        "per_type": _parts(pairs_of_type, are_named, earlier_per_type),
        "per_tag": _parts(pairs_of_tag, are_named),
        "per_group": _parts(pairs_of_group, are_named),
        "fixed_ids": [new.id for old, new in answered if new.correct and not old.correct],
        "broken_ids": [new.id for old, new in answered if old.correct and not new.correct],
        "earlier": metrics.summary([old for old, _ in common]) if common else None,
        "earlier_per_type": earlier_per_type,
    }
    pair["verdict"] = verdict(pair, pair["p_value"], pair["earlier"])
    found = []
    floor = no_better_than_commonest(pair)
    if floor:
        found.append(findings.warning("EVAL-COMPARE-COMMONEST", flag, floor))
    if len(answered) > 1 and not pair["clips_named"]:
        message = (
            "the results name no clips, and several questions may be about one: --annotations FILE "
            "(what was asked) names them"
        )
        found.append(findings.warning("EVAL-COMPARE-CLIPS", flag, message))
    if pair["only_before"] or pair["only_after"]:
        message = (
            f"{pair['only_before']} question(s) are only in the earlier run and "
            f"{pair['only_after']} only in this one; they are left out"
        )
        found.append(findings.warning("EVAL-COMPARE-PARTIAL", flag, message))
    failed_before = sum(old.error is not None for old, _ in common)
    failed_after = sum(new.error is not None for _, new in common)
    if failed_before or failed_after:
        message = (
            f"{failed_before} question(s) failed in the earlier run and {failed_after} in this "
            "one; they are left out, until both are evaluated again, which asks only what failed"
        )
        data = {"before": failed_before, "after": failed_after}
        found.append(findings.warning("EVAL-COMPARE-FAILED", flag, message, **data))
    found += about(
        other,
        "EVAL-COMPARE-OTHER",
        findings.ERROR,
        flag,
        "id(s) that stand for another question, ground truth or clip in the earlier run; "
        "they are left out",
    )
    return pair, found


def paired(before: Sequence[Row], after: Sequence[Row]) -> tuple[list[tuple[Row, Row]], list[str]]:
    """Return the rows of both runs that ask the same of one clip, and the ids that stand for
    something else in the other: where annotations changed or a set was built anew."""
    earlier = {row.id: row for row in before}
    common, other = [], []
    for new in after:
        old = earlier.get(new.id)
        if old is None:
            continue
        clips = {_clip_name(row.media) for row in (old, new) if row.media}
        if (old.question, old.gt) == (new.question, new.gt) and len(clips) < 2:
            common.append((old, new))
        else:
            other.append(new.id)
    return common, other


def _clip_name(media: str) -> str:
    """Return the name that a clip has wherever it lies, on Windows or behind a signed URL, and in
    whatever container. What else follows a dot tells clips apart, as in `cam.1.2024`."""
    place = media.partition("?")[0] if "://" in media else media
    name = re.split(r"[\\/]", place.rstrip("\\/"))[-1]
    stem, dot, suffix = name.rpartition(".")
    return stem if dot + suffix.lower() in CLIP_SUFFIXES else name


def _one_response(rows: Sequence[Row]) -> str | None:
    """Return the response that a run gave to all of several questions; None where it gave two."""
    said = {(row.response or "").strip() for row in rows}
    return said.pop() if len(said) == 1 and len(rows) > 1 else None


def names_clips(answered: Sequence[Row]) -> bool:
    """Return whether rows say which clip they are about: by its file, by a name that is not the
    row's own, or by one that several have."""
    clips = {row.media or row.video_id for row in answered}
    is_named = any(row.media or row.video_id not in ("", row.id) for row in answered)
    return is_named or len(clips) < len(answered)


def _part(answered: Sequence[tuple[Row, Row]], are_named: bool) -> dict:
    """Return both accuracies over questions that both runs answered, and how likely it is that
    their difference is chance."""
    if not answered:
        return {"paired": 0, "fixed": 0, "broken": 0, "p_value": 1.0}
    fixed = sum(new.correct and not old.correct for old, new in answered)
    broken = sum(old.correct and not new.correct for old, new in answered)
    right = [sum(run.correct for run in runs) for runs in zip(*answered, strict=True)]
    expected = Counter(new.expected for _, new in answered if new.type in CLOSED_TYPES)
    is_one_type = len({new.type for _, new in answered}) == 1  # "B" answers no yes-or-no question
    label, most = expected.most_common(1)[0] if expected and is_one_type else ("", 0)
    return {
        "paired": len(answered),
        "before_accuracy": round(right[0] / len(answered), 6),
        "before_interval": metrics.wilson(right[0], len(answered)),
        "accuracy": round(right[1] / len(answered), 6),
        "accuracy_interval": metrics.wilson(right[1], len(answered)),
        "fixed": fixed,
        "broken": broken,
        "p_value": mcnemar(fixed, broken),
        **difference_by_clip(answered),
        "clips_named": are_named,
        "below_always": label if right[1] < most else None,
    }


def _parts(
    pairs: dict[str, list[tuple[Row, Row]]],
    are_named: bool,
    earlier: dict[str, dict] | None = None,
) -> dict[str, dict]:
    """Compare each part, of which `earlier` may hold the earlier run's summary."""
    parts = {name: _part(pairs[name], are_named) for name in sorted(pairs)}
    adjusted = holm([part["p_value"] for part in parts.values()])
    for (name, part), p_value in zip(parts.items(), adjusted, strict=True):
        part["p_adjusted"] = p_value
        how = ", adjusted (Holm)" if len(parts) > 1 else ""
        part["verdict"] = verdict(part, p_value, (earlier or {}).get(name), how)
    return parts


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for testing all of them (Holm 1979), in the order given."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # A hypothesis is never rejected where one of a smaller p-value is not.
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def difference_by_clip(answered: Sequence[tuple[Row, Row]]) -> dict:
    """Return the change of the accuracy with its 95 % interval, by a bootstrap over clips, and the
    p-value over clips: the questions about one clip are right and wrong together, which McNemar's
    test does not know. Of few clips the bootstrap draws the same ones again, and is too narrow."""
    import numpy as np

    gained, asked = Counter(), Counter()
    for old, new in answered:
        clip = new.media or new.video_id
        gained[clip] += int(new.correct) - int(old.correct)
        asked[clip] += 1
    # Clips of equal numbers are alike: a draw of clips is a draw of how many of each kind.
    kinds = Counter((gained[clip], asked[clip]) for clip in asked)
    table = np.array(list(kinds), dtype=float)
    shares = np.array(list(kinds.values())) / len(asked)
    drawn = np.random.default_rng(0).multinomial(len(asked), shares, size=RESAMPLED)
    differences = (drawn @ table[:, 0]) / (drawn @ table[:, 1])
    low, high = np.percentile(differences, [2.5, 97.5])
    return {
        "clips": len(asked),
        "difference": round(sum(gained.values()) / len(answered), 6),
        "difference_interval": [round(float(low), 6), round(float(high), 6)],
        "clip_p_value": sign_flips(list(gained.values())),
    }


def sign_flips(gains: Sequence[int]) -> float:
    """Return the two-sided p-value that each clip would as soon have lost what it gained (Fisher's
    randomization test, 1935); with one question a clip it is McNemar's. `gains`: questions fixed
    less those broken, of each clip.

    Exact up to EXACT_FLIPS_LIMIT, beyond it normal with continuity correction.
    """
    import numpy as np

    moved = [abs(gain) for gain in gains if gain]
    total, most = abs(sum(gains)), sum(moved)
    if len(moved) * most > EXACT_FLIPS_LIMIT:
        spread = math.sqrt(sum(gain**2 for gain in moved))
        return math.erfc(max(0, total - 1) / spread / math.sqrt(2))
    chances = np.zeros(2 * most + 1)  # of each sum from -most to most
    chances[most] = 1.0
    for gain in moved:  # no sum goes beyond either end
        chances = (np.roll(chances, gain) + np.roll(chances, -gain)) / 2
    sums = np.arange(-most, most + 1)
    return min(1.0, float(chances[abs(sums) >= total].sum()))


NO_FLOOR = "; the earlier run is no better than always the commonest answer"


def verdict(part: dict, p_value: float, earlier: dict | None = None, adjusted: str = "") -> str:
    """Return in words what a comparison shows. A difference counts where McNemar's test, the
    interval over clips and the test over clips all show it. To be better than an `earlier` run (its
    summary) that always the commonest answer beats shows nothing, so the same sentence says so.
    `adjusted` says behind the p-value how it was adjusted for others."""
    low, high = part.get("difference_interval", (0.0, 0.0))
    over_clips = part.get("clip_p_value", 1.0)
    is_shown = max(p_value, over_clips) < CHANCE and (low > 0 or high < 0)
    # Of a drop the sentence must not read as if it were nothing.
    is_lower = part.get("difference", 0) < 0
    unshown = "lower, but not shown to be worse" if is_lower else "not shown to be better"
    chance = ("p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}") + adjusted
    if is_shown:
        said = f"better ({chance})" if low > 0 else f"worse ({chance})"
        if not part.get("clips_named", True):
            said = f"not shown, unless no two questions share a clip: then {said}"
    elif p_value < CHANCE:
        # Clips that all gain are as unlikely as LEAST_LEAD questions that all do.
        few = (
            f", and {part['clips']} cannot show it ({LEAST_LEAD} can)"
            if part["clips"] < LEAST_LEAD
            else ""
        )
        over = (
            f"p = {over_clips:.2g} over clips" if over_clips >= CHANCE else "the interval holds 0"
        )
        said = f"{unshown}: {chance}, but {over}{few}"
    else:
        said = f"{unshown} ({chance})"
    if part.get("below_always") is not None:
        said += f"; below always answering {part['below_always']!r}"
    elif earlier and _is_no_better_than_commonest(earlier):
        said += NO_FLOOR
    return said


def _is_no_better_than_commonest(summary: dict) -> bool:
    return summary["accuracy"] <= summary["majority_accuracy"]


def no_better_than_commonest(pair: dict) -> str:
    """Return what to say first of a comparison whose earlier run is no better than always the
    commonest answer; else '', as for a guard, whose table holds no metrics of the earlier run."""
    earlier = pair.get("earlier")
    if not earlier or not _is_no_better_than_commonest(earlier):
        return ""
    alike = pair["one_response_before"]
    told = f"says {shortened(alike, LONGEST)!r} to everything and " if alike else ""
    return (
        f"the earlier run {told}is right in {earlier['accuracy']:.1%}, always the commonest answer "
        f"in {earlier['majority_accuracy']:.1%}: the comparison says nothing about what the model "
        "can do; look at the frames, pixels and system prompt first"
    )


def in_words(pair: dict) -> str:
    """Return what `compare` found, in a line: 97.0 % -> 96.3 %, 2 broken, 0 fixed, p = 0.5."""
    before = pair["unchanged_right"] + pair["broken"]
    after = pair["unchanged_right"] + pair["fixed"]
    shares = [f"{100 * right / pair['paired']:.1f} %" for right in (before, after)]
    chance = "p < 0.001" if pair["p_value"] < 0.001 else f"p = {pair['p_value']:.2g}"
    floor = no_better_than_commonest(pair)
    return (f"{floor}. " if floor else "") + (
        f"{shares[0]} -> {shares[1]} of {pair['paired']} questions, {pair['broken']} broken, "
        f"{pair['fixed']} fixed, {chance}"
    )


def mcnemar(fixed: int, broken: int) -> float:
    """Return the two-sided p-value that fixing and breaking are equally likely.

    Exact binomial up to EXACT_MCNEMAR_LIMIT changes, beyond it chi-squared with continuity
    correction (McNemar 1947, Edwards 1948).
    """
    changes = fixed + broken
    if changes <= EXACT_MCNEMAR_LIMIT:
        tail = sum(math.comb(changes, count) for count in range(min(fixed, broken) + 1))
        return min(1.0, 2 * tail / 2**changes)
    distance = max(0, abs(fixed - broken) - 1)
    return math.erfc(math.sqrt(distance**2 / changes / 2))


# The questions by which a run must lead another, breaking none, before that is no chance.
LEAST_LEAD = next(lead for lead in range(1, EXACT_MCNEMAR_LIMIT) if mcnemar(lead, 0) < CHANCE)


# -- several runs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What a run got right: of each question whether it did, None where the row failed, and the
    clip that it is about, which `clips_named` says is known. `asked` is equal for runs of the same
    questions."""

    name: str
    asked: str
    right: dict[str, bool | None]
    clips: dict[str, str]
    clips_named: bool

    @classmethod
    def of(cls, name: str, graded: Sequence[Row]) -> Answers:
        right = {row.id: None if row.error is not None else row.correct for row in graded}
        clips = {row.id: row.media or row.video_id for row in graded}
        return cls(name, digest(graded), right, clips, names_clips(graded))

    @property
    def accuracy(self) -> float:
        return sum(map(bool, self.right.values())) / len(self.right)


def best(runs: Sequence[Answers]) -> dict | None:
    """Return the run of the highest accuracy (failed rows are wrong), the next one, and the runs
    that it cannot be told apart from: the p-value of what both answered, McNemar's or that over
    clips, is `CHANCE` or more. None for fewer than two runs, and where they were asked different
    questions."""
    if len(runs) < 2 or len({run.asked for run in runs}) > 1:
        return None
    # sorted keeps the order of equals: the earlier of two that are alike is named.
    first, *others = sorted(runs, key=lambda run: -run.accuracy)
    pairs = {}
    for run in others:
        gained, changes = Counter(), Counter()
        for id, old in run.right.items():
            new = first.right[id]
            # A row that failed (None) is neither right nor wrong.
            if old is not None and new is not None and old is not new:
                changes[new] += 1
                gained[first.clips[id]] += int(new) - int(old)
        fixed, broken = changes[True], changes[False]
        pairs[run.name] = {
            "fixed": fixed,
            "broken": broken,
            "p_value": mcnemar(fixed, broken),
            "clip_p_value": sign_flips(list(gained.values())),
        }
    return {
        "name": first.name,
        "accuracy": first.accuracy,
        "next": others[0].name,
        "next_accuracy": others[0].accuracy,
        **pairs[others[0].name],
        "clips_named": first.clips_named,
        "alike": [
            name
            for name, pair in pairs.items()
            if max(pair["p_value"], pair["clip_p_value"]) >= CHANCE
        ],
    }


def best_in_words(found: dict) -> list[str]:
    """Return what `best` found, for people."""
    alike = ", ".join(found["alike"]) or "no other"
    chance, which = f"McNemar p = {found['p_value']:.3g}", "p"
    if found["clips_named"]:
        chance, which = f"{chance}, over clips {found['clip_p_value']:.3g}", "either p"
    return [
        f"best: {found['name']} {found['accuracy']:.1%}; the next, {found['next']} "
        f"{found['next_accuracy']:.1%}: {found['fixed']} fixed, {found['broken']} broken by the "
        f"best, {chance}",
        f"not told apart from the best ({which} {CHANCE:g} or more): {alike}",
        "the best of several flatters itself: score it on questions that chose none of them",
    ]
