"""Which of several runs is best, and which others chance may put there."""

from scoring import failed_row, row, score, write

from cosmos_reason.evaluation.comparison import mcnemar


def answered(right, questions=40):
    """Rows of which the first `right` are right."""
    return [row(f"q{n}", response="A" if n < right else "B") for n in range(questions)]


def written(folder, **runs):
    for name, rows in runs.items():
        write(folder / name / "results.json", rows)
    return folder


def test_the_best_of_several_is_named_with_those_it_is_not_told_apart_from(tmp_path):
    gt = row("x")["gt"]
    assert gt == "A", "what `answered` counts on"
    folder = written(tmp_path, low=answered(10), high=answered(30), near=answered(28))
    best = score(folder)[1]["result"]["best"]
    assert (best["name"], best["next"], best["alike"]) == ("high", "near", ["near"])
    assert (best["fixed"], best["broken"], best["p_value"]) == (2, 0, mcnemar(2, 0))
    assert (best["accuracy"], best["next_accuracy"]) == (30 / 40, 28 / 40)


def test_rows_that_failed_are_wrong_and_no_sign_of_a_difference(tmp_path):
    lost = [*answered(10, 10), *(failed_row(f"q{n}") for n in range(10, 40))]
    best = score(written(tmp_path, lost=lost, whole=answered(30)))[1]["result"]["best"]
    assert (best["name"], best["fixed"], best["broken"]) == ("whole", 0, 0)
    assert best["alike"] == ["lost"]


def test_nothing_is_best_of_one_or_of_other_questions(tmp_path):
    assert "best" not in score(written(tmp_path / "one", only=answered(3)))[1]["result"]
    others = {"some": answered(30), "fewer": answered(20, 20)}
    assert "best" not in score(written(tmp_path / "two", **others))[1]["result"]
