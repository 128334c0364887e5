"""Several annotators of one clip and question: how far they agree, and which answer counts where
they do not. Nothing is decided unless `--adjudicate` says how."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from cosmos_reason.base import findings as f
from cosmos_reason.data import options
from cosmos_reason.data.items import Named, Row, Table, by_row
from cosmos_reason.data.turns import alike, in_one_form

MAJORITY, DROP = "majority", "drop"
WAYS = (MAJORITY, DROP)
MOST_TOLD = 5  # questions whose agreement a message holds


def settle(
    table: Table, clips: Sequence[tuple[Named, ...]], way: str, problems: list[f.Finding]
) -> list[bool]:
    """Return whether each row stays, the first of those about one unit (clip and times, question,
    options), and give these the answer that counts.

    Answers are compared without case and blanks. Disagreements are an error without a `way`; with
    one, those that it leaves out or outvotes are a warning. Agreement joins the `problems`."""
    rows, questions, answers = table.rows, table.questions, table.answers
    annotators = in_one_form(table.texts["annotator"])
    of_unit: dict[tuple, list[int]] = defaultdict(list)
    for place, offered in enumerate(table.options):
        of_unit[clips[place], questions[place], tuple(offered.items())].append(place)
        meant = options.meant(offered, answers[place]) if offered else ()
        if len(meant) == 1:  # "B" and the text of B are one answer
            answers[place] = meant[0]
    wrong: list[tuple[Row, str]] = []
    disagreed: list[tuple[Row, str]] = []
    listing: list[dict] = []  # of disagreements
    given: dict[str, list[list[str]]] = defaultdict(list)  # of each question, the answers per unit
    stays = [False] * len(rows)
    for places in of_unit.values():
        said: dict[str, str] = {}
        for place in places:
            name = annotators[place]
            if not name:
                wrong.append((rows[place], "got no annotator, expected who gave the answer"))
            elif alike(said.setdefault(name, answers[place])) != alike(answers[place]):
                both = f"{said[name]!r} and {answers[place]!r} by {name}"
                wrong.append((rows[place], f"got {both}, expected one answer of each annotator"))
        forms = [alike(answer) for answer in said.values()]
        given[questions[places[0]]].append(forms)
        votes = Counter(forms).most_common(2)
        first = places[0]
        stays[first] = True
        if len(votes) < 2:
            continue
        listed = ", ".join(f"{answer!r} by {name}" for name, answer in said.items())
        others = ", ".join(rows[place].where for place in places[1:])
        shown = ", ".join(medium.stem for _, medium in clips[first] if medium)
        told = f"got {listed} of {shown} (with {others})"
        if way == MAJORITY and votes[0][1] > votes[1][1]:
            answers[first] = next(one for one in said.values() if alike(one) == votes[0][0])
            told += f": {answers[first]!r} counts"
        elif way:
            stays[first] = False
            told += ": left out" if way == DROP else ": no majority, left out"
        disagreed.append((rows[first], told))
        numbers = [rows[place].number for place in places]
        listing.append({"media": shown, "rows": numbers, "answers": said})
    if wrong:
        problems.append(by_row("BUILD-ANNOTATOR", f.ERROR, wrong))
    if disagreed:
        severity = f.WARNING if way else f.ERROR
        if not way:
            first, told = disagreed[0]
            told += (
                ": mend the table, or declare --adjudicate majority (a tie is left out) or "
                "--adjudicate drop"
            )
            disagreed[0] = (first, told)
        data = {"disagreements": listing[: f.MAX_RECORD_IDS]}
        problems.append(by_row("BUILD-DISAGREEMENT", severity, disagreed, **data))
    if any(len(forms) > 1 for units in given.values() for forms in units):
        problems.append(_agreement(given, rows[0]))
    elif len(set(annotators) - {""}) > 1:
        message = "got no clip, times and question that two annotators answered: none are compared"
        problems.append(f.info("BUILD-AGREEMENT", rows[0].where, message))
    return stays


def _agreement(given: dict[str, list[list[str]]], first: Row) -> f.Finding:
    """Return what there is to say of each question's agreement."""
    table = []
    for question, units in given.items():
        several = [forms for forms in units if len(forms) > 1]
        alpha = krippendorff_alpha(units)
        table.append(
            {
                "question": question,
                "units": len(units),
                "by_several": len(several),
                "agreed": sum(len(set(forms)) == 1 for forms in several),
                "alpha": None if alpha is None else round(alpha, 4),
            }
        )
    told = []
    for one in sorted(table, key=lambda one: -one["by_several"])[:MOST_TOLD]:
        alpha = "-" if one["alpha"] is None else f"{one['alpha']:.2f}"
        counted = f"{one['agreed']} of {one['by_several']} agreed, Krippendorff's alpha {alpha}"
        told.append(f"{one['question']!r}: {counted}")
    return f.info("BUILD-AGREEMENT", first.where, "; ".join(told), agreement=table[:1000])


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """Return the agreement on nominal answers beyond chance: 1 is perfect, 0 chance; None where
    nothing was answered by two, or every answer is the same.

    Krippendorff, "Computing Krippendorff's alpha-reliability" (2011), with missing answers: of two
    annotators it is close to Cohen's kappa."""
    totals: Counter = Counter()
    observed = 0.0
    for answers in units:
        if len(answers) < 2:
            continue
        here = Counter(answers)
        totals += here
        pairs = len(answers) ** 2 - sum(count**2 for count in here.values())
        observed += pairs / (len(answers) - 1)
    count = totals.total()
    expected = count**2 - sum(one**2 for one in totals.values())
    return 1 - (count - 1) * observed / expected if expected else None
