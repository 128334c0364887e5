"""Two runs over the same questions: what is paired, what is left out, and McNemar's test."""

import itertools
import json
import os

import pytest
from graded import ORACLE, letters, replies, rows_of
from hypothesis import given
from hypothesis import strategies as st
from scoring import failed_row, ids, metrics_of, row, score, write
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import comparison
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.spec import document


@pytest.mark.parametrize("compared", ["run", "run/results.json", "link/results.json"])
def test_a_run_is_not_compared_with_itself(tmp_path, compared):
    write(tmp_path / "run/results.json", [row("a"), row("b", response="B")])
    (tmp_path / "link").symlink_to(tmp_path / "run")
    code, said = score(tmp_path / "run", "--compare", tmp_path / compared)
    assert code == 2 and "against itself" in said["findings"][0]["message"]


def test_rows_that_failed_are_neither_fixed_nor_broken(tmp_path):
    """They were once: 20 right answers against 20 failures were 20 broken, p = 1.9e-06."""
    right = [row(f"q{n}") for n in range(20)]
    before = write(
        tmp_path / "before/results.json", [*right[:18], failed_row("q18"), row("q19", response="B")]
    )
    after = write(
        tmp_path / "after/results.json", [failed_row(f"q{n}") for n in range(15)] + right[15:]
    )
    code, document = score(after, "--compare", before, "--write")
    pair = document["result"]["runs"][0]["comparison"]
    metrics_of(tmp_path / "after")
    expected = {"paired": 4, "failed": 16, "fixed": 1, "broken": 0, "unchanged_right": 3}
    assert {name: pair[name] for name in expected} == expected and pair["p_value"] == 1.0
    (warned,) = [each for each in document["findings"] if each["id"] == "EVAL-COMPARE-FAILED"]
    assert (code, warned["severity"]) == (0, "warning")
    assert warned["data"] == {"before": 1, "after": 15}


def test_an_id_that_means_another_clip_is_not_paired(tmp_path):
    """A set that was built anew asks the same of other clips, under the same ids."""
    before = [row("a", media="x/a.avi"), row("b", media="b.mp4"), row("c", media=None)]
    after = [row("a", media="y/a.mp4"), row("b", media="other.mp4"), row("c", media="c.mp4")]
    files = [write(tmp_path / name / "results.json", rows)
             for name, rows in (("before", before), ("after", after))]  # fmt: skip
    code, document = score(files[1], "--compare", files[0])
    assert code == 1 and document["result"]["runs"][0]["comparison"]["paired"] == 2
    (other,) = [one for one in document["findings"] if one["id"] == "EVAL-COMPARE-OTHER"]
    assert other["data"]["record_ids"] == ["b"] and "or clip" in other["message"]


@pytest.mark.parametrize(
    "names, is_one",
    [
        ((r"D:\data\c1.mp4", "clips/c1.mp4"), True),
        (("cam.1.2024", "cam.1.2024.mp4"), True),
        (("cam.1.2024.mp4", "cam.1.2025.mp4"), False),
        (("https://host/c1.mp4?sig=a/b.c", "https://host/c1.MP4?sig=d/e.f"), True),
        (("s3://bucket/c1.wmv", "c1.mp4"), True),
        (("c?1.mp4", "c?2.mp4"), False),
        (("frames/c1/", "frames/c2/"), False),
    ],
)
def test_a_clip_has_one_name_wherever_it_lies(names, is_one):
    runs = [[Row("a", "", name, "What?", "A", "A", None)] for name in names]
    common, other = comparison.paired(*runs)
    assert (len(common), other) == ((1, []) if is_one else (0, ["a"]))


@pytest.mark.parametrize("without_answers", ["before", "after"])
def test_a_run_without_an_answer_is_not_compared(tmp_path, without_answers):
    rows = {"before": [row("a"), row("b")], "after": [row("a"), row("b")]}
    rows[without_answers] = [failed_row("a"), failed_row("b")]
    files = {name: write(tmp_path / name / "results.json", rows[name]) for name in rows}
    code, document = score(files["after"], "--compare", files["before"])
    assert code == 1 and "EVAL-ALL-FAILED" in ids(document)
    assert not any("comparison" in run for run in document["result"]["runs"])


@pytest.mark.parametrize(
    ("before", "after"),
    [([row("b")], [row("a")]), ([row("a"), failed_row("b")], [failed_row("a"), row("b")])],
)
def test_runs_that_share_no_answered_question_are_not_compared(tmp_path, before, after):
    files = [write(tmp_path / f"{n}/results.json", rows) for n, rows in enumerate((after, before))]
    code, document = score(files[0], "--compare", files[1], "--write")
    assert (code, ids(document)) == (2, {"EVAL-COMPARE-NOTHING"})
    assert not (tmp_path / "0/metrics.json").exists()


def test_runs_that_were_asked_otherwise_are_not_compared_in_silence(tmp_path):
    for name, limit in (("base", 1024), ("same", 1024), ("tuned", 4096)):
        write(tmp_path / name / "results.json", [row("a"), row("b", gt="B")])
        write(
            tmp_path / name / "evaluation.json", {"model": name, "sampling": {"max_tokens": limit}}
        )
    _, document = score(tmp_path / "tuned", "--compare", tmp_path / "base")
    (found,) = [one for one in document["findings"] if one["id"] == "EVAL-COMPARE-SETTINGS"]
    assert "sampling.max_tokens 4096 (not 1024)" in found["message"]
    assert "EVAL-COMPARE-SETTINGS" not in ids(
        score(tmp_path / "same", "--compare", tmp_path / "base")[1]
    )


def test_mcnemar_is_the_binomial_test():
    assert comparison.mcnemar(0, 0) == 1.0
    for fixed, changes, exact in ORACLE["binomial"]:
        assert comparison.mcnemar(fixed, changes - fixed) == pytest.approx(exact, abs=1e-9)


def test_mcnemar_of_many_changes_is_close_to_the_binomial_test():
    for fixed, changes, exact in ORACLE["binomial_of_many"]:
        assert comparison.mcnemar(fixed, changes - fixed) == pytest.approx(exact, abs=2e-3)


def test_pairs_of_another_question_are_left_out_and_before_covers_the_same_questions():
    before, after = rows_of([("A", "B"), ("B", "B"), ("C", "A")]), rows_of([("A", "A"), ("D", "D")])
    pair, found = comparison.compare(before, after)
    told = {finding.id: finding.data.get("record_ids") for finding in found}
    assert told == {
        "EVAL-COMPARE-COMMONEST": None,
        "EVAL-COMPARE-PARTIAL": None,
        "EVAL-COMPARE-OTHER": ["r1"],
    }
    assert (pair["only_before"], pair["only_after"]) == (1, 0)
    assert (pair["paired"], pair["fixed"], pair["broken"], pair["unchanged_right"]) == (1, 1, 0, 0)
    assert pair["earlier"]["rows"] == pair["earlier_per_type"]["mcq"]["rows"] == 1


def test_types_of_a_comparison_are_those_of_the_later_run():
    """Which may read what the earlier one could not: a table has one line per type of its rows."""
    before, after = rows_of([("A", "A"), ("B", "A")]), rows_of([("A", "A"), ("B", "B")])
    before[0].type = "text"
    pair, _ = comparison.compare(before, after)
    assert {kind: table["rows"] for kind, table in pair["earlier_per_type"].items()} == {"mcq": 2}


def rows_of_id(id: str) -> list[Row]:
    (row,) = rows_of([("A", "A")])
    row.id = id
    return [row]


def answered_in_both(before: list[Row], after: list[Row]) -> list[int]:
    return [n for n, row in enumerate(before) if row.error is None and after[n].error is None]


@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=30), st.data())
def test_a_comparison_counts_every_question_of_both_runs(pairs, data):
    before = rows_of(pairs)
    after = rows_of([(gt, data.draw(replies)) for gt, _ in pairs])
    answered = answered_in_both(before, after)
    if not answered:
        with pytest.raises(Failure, match="EVAL-COMPARE-NOTHING"):
            comparison.compare(before, after)
        return
    pair, found = comparison.compare(before, after)
    counts = [pair[name] for name in ("fixed", "broken", "unchanged_right", "unchanged_wrong")]
    assert (sum(counts), pair["failed"]) == (len(answered), len(pairs) - len(answered))
    others = ("EVAL-COMPARE-COMMONEST", "EVAL-COMPARE-CLIPS")
    told = [finding.id for finding in found if finding.id not in others]
    assert told == ["EVAL-COMPARE-FAILED"] * (pair["failed"] > 0)
    right = [sum(run[n].correct for n in answered) for run in (before, after)]
    assert right[1] - right[0] == pair["fixed"] - pair["broken"]
    pair, found = comparison.compare([*before, *rows_of_id("alone")], after)
    assert pair["only_before"] == 1 and "EVAL-COMPARE-PARTIAL" in {finding.id for finding in found}


def test_a_comparison_that_starts_at_the_commonest_answer_says_so_first(tmp_path):
    gts = ["A"] * 6 + ["B"] * 4
    for name, said in (("low", "C"), ("commonest", "A"), ("good", None), ("tuned", None)):
        rows = [row(f"q{n}", gt, said or gt) for n, gt in enumerate(gts)]
        write(tmp_path / name / "results.json", rows)
    for name, is_said in (("low", True), ("commonest", True), ("good", False)):
        before = tmp_path / name / "results.json"
        _, document = score(tmp_path / "tuned", "--compare", before)
        assert ("EVAL-COMPARE-COMMONEST" in ids(document)) == is_said
        pair = document["result"]["runs"][0]["comparison"]
        assert ("always the commonest answer in" in comparison.in_words(pair)) == is_said
    words = [tmp_path / "good", tmp_path / "tuned", "--compare", tmp_path / "low/results.json"]
    done = run_script("score_predictions.py", *words)
    said = done.stdout + done.stderr
    assert said.count("the earlier run says ") == 1, "the text tells it, once for both"


# -- by type, tag and clip -----------------------------------------------------------------------


def many(right_before: int, right_after: int, questions: int, clips: int, gt="A"):
    """Two runs of which the first questions are right, spread over so many clips."""
    runs = []
    for right in (right_before, right_after):
        said = [(gt, gt if number < right else "B") for number in range(questions)]
        run = rows_of(said)
        for number, one in enumerate(run):
            one.media = f"clip-{number * clips // questions}"
        runs.append(run)
    return runs


def test_p_values_of_parts_are_adjusted_as_holm_does():
    assert comparison.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert comparison.holm([]) == []


def test_the_interval_over_clips_is_that_of_independent_clips():
    before, after = many(100, 130, 200, clips=200)
    pair, _ = comparison.compare(before, after)
    share = 30 / 200
    spread = 1.96 * (share * (1 - share) / 200) ** 0.5
    assert pair["difference_interval"] == pytest.approx([share - spread, share + spread], abs=0.01)


def test_questions_about_few_clips_show_less_than_their_number():
    alone, _ = comparison.compare(*many(100, 120, 200, clips=200))
    together, _ = comparison.compare(*many(100, 120, 200, clips=10))
    assert alone["p_value"] == together["p_value"] < 0.001
    assert alone["verdict"].startswith("better") and together["clips"] == 10
    assert together["difference_interval"][0] == 0
    assert together["verdict"].startswith("not shown to be better")


@given(st.lists(st.integers(-4, 4), max_size=8))
def test_the_test_over_clips_counts_all_ways_to_turn_their_signs(gains):
    sums = [sum(way) for way in itertools.product(*({gain, -gain} for gain in gains if gain))]
    extreme = sum(abs(one) >= abs(sum(gains)) for one in sums)
    assert comparison.sign_flips(gains) == pytest.approx(extreme / len(sums))
    ones = [1] * gains.count(1) + [-1] * gains.count(-1)
    exact = comparison.mcnemar(gains.count(1), gains.count(-1))
    assert comparison.sign_flips(ones) == pytest.approx(exact)


def test_the_test_over_many_clips_is_close_to_the_exact_one(monkeypatch):
    gains = [1] * 60 + [2] * 30 + [-1] * 40 + [-2] * 20
    exact = comparison.sign_flips(gains)
    monkeypatch.setattr(comparison, "EXACT_FLIPS_LIMIT", 10)
    assert 0.01 < exact < 0.2 and comparison.sign_flips(gains) == pytest.approx(exact, rel=0.1)


def test_four_clips_show_nothing_however_many_questions_they_have():
    pair, _ = comparison.compare(*many(0, 12, 12, clips=4))
    assert pair["p_value"] < 0.001 and pair["clip_p_value"] == pytest.approx(0.125)
    said = (
        "not shown to be better: p < 0.001, but p = 0.12 over clips, and 4 cannot show it (6 can)"
    )
    assert pair["verdict"].startswith(said)
    pair, _ = comparison.compare(*many(12, 0, 12, clips=4))
    expected = "lower, but not shown to be worse: p < 0.001, but p = 0.12 over clips"
    assert pair["verdict"].startswith(expected), "a loss of everything is no lack of a gain"


def test_better_than_a_run_below_the_commonest_answer_says_so_in_the_same_words():
    """Half of the ground truths are "A", and the earlier run answers fewer right."""
    runs = []
    for right in (80, 160):
        pairs = [("AB"[n % 2], "AB"[n % 2] if n < right else "C") for n in range(200)]
        run = rows_of(pairs)
        for number, one in enumerate(run):
            one.media = f"clip-{number}"
        runs.append(run)
    pair, found = comparison.compare(*runs)
    assert [one.id for one in found] == ["EVAL-COMPARE-COMMONEST"] and pair["below_always"] is None
    for part in (pair, pair["per_type"]["mcq"]):
        assert part["verdict"].startswith("better (p < 0.001); the earlier run is no better than")
    pair, found = comparison.compare(*reversed(runs))
    assert not found and pair["verdict"] == "worse (p < 0.001); below always answering 'A'"


def test_types_tags_and_groups_are_compared_each_and_rows_are_named(tmp_path):
    gts = ["A", "A", "yes", "no"] * 5
    runs = {"before": [], "after": []}
    for number, gt in enumerate(gts):
        wrong = "B" if gt == "A" else "maybe"
        tags = {"tags": ["night"]} if number % 2 else {}
        tags["groups"] = [f"camera={number // 10}"]
        runs["before"].append(row(f"q{number}", gt, wrong) | tags)
        runs["after"].append(row(f"q{number}", gt, wrong if number == 1 else gt) | tags)
    runs["before"][0]["response"] = "A"
    runs["after"][0]["response"] = "B"
    before, after = (write(tmp_path / name / "results.json", runs[name]) for name in runs)
    _, document = score(after, "--compare", before, "--write")
    told = run_script("score_predictions.py", after, "--compare", before).stdout
    saved = tmp_path / "saved.json"
    run_script("score_predictions.py", after, "--compare", before, "--save", saved)
    kept = json.loads(saved.read_text(encoding="utf-8"))["result"]["runs"][0]["comparison"]
    assert kept["broken_ids"] == ["q0"] and len(kept["fixed_ids"]) == kept["fixed"]
    assert "\ngroup camera=1 " in told and "  group camera=1: 0.0%" in told
    shown = document["result"]["runs"][0]["comparison"]
    whole = metrics_of(tmp_path / "after")
    pair = whole["comparison"]
    assert pair["broken_ids"] == ["q0"] and len(pair["fixed_ids"]) == pair["fixed"] == 18
    assert "fixed_ids" not in shown and shown["per_type"] == pair["per_type"]
    assert {kind: part["paired"] for kind, part in pair["per_type"].items()} == {
        "mcq": 10,
        "yes_no": 10,
    }
    assert pair["per_type"]["yes_no"]["p_adjusted"] == 2 * comparison.mcnemar(10, 0)
    assert pair["per_tag"]["night"]["fixed"] == 9
    fixed = {name: part["fixed"] for name, part in pair["per_group"].items()}
    assert fixed == {"camera=0": 8, "camera=1": 10}
    assert {name: part["rows"] for name, part in whole["per_group"].items()} == {
        "camera=0": 10,
        "camera=1": 10,
    }
    assert pair["per_group"]["camera=1"]["p_adjusted"] == 2 * comparison.mcnemar(10, 0)


# -- which of several is best -------------------------------------------------------------------


def answered(right, questions=40):
    """Rows of which the first `right` are right, each about a clip of its own."""
    rows = [row(f"q{n}", response="A" if n < right else "B") for n in range(questions)]
    return [one | {"media": f"{one['id']}.mp4"} for one in rows]


def written(folder, **runs):
    for name, rows in runs.items():
        write(folder / name / "results.json", rows)
    return folder


def test_the_best_of_several_is_named_with_those_it_is_not_told_apart_from(tmp_path):
    folder = written(tmp_path, low=answered(10), high=answered(30), near=answered(28))
    best = score(folder)[1]["result"]["best"]
    assert (best["name"], best["next"], best["alike"]) == ("high", "near", ["near"])
    assert (best["fixed"], best["broken"], best["p_value"]) == (2, 0, comparison.mcnemar(2, 0))
    assert (best["accuracy"], best["next_accuracy"]) == (30 / 40, 28 / 40)


def test_questions_about_few_clips_tell_no_runs_apart(tmp_path):
    """Twenty questions about two clips are right and wrong together."""
    runs = {"low": answered(10), "high": answered(30)}
    for rows in runs.values():
        for number, one in enumerate(rows):
            one["media"] = f"clip-{number // 20}.mp4"
    best = score(written(tmp_path, **runs))[1]["result"]["best"]
    assert best["p_value"] < 0.001 and best["clip_p_value"] == 0.5
    assert best["alike"] == ["low"]


def test_of_unnamed_clips_no_chance_over_clips_is_said(tmp_path):
    runs = {"low": answered(10), "high": answered(30)}
    assert "over clips" in run_script("score_predictions.py", written(tmp_path, **runs)).stdout
    for rows in runs.values():
        for one in rows:
            one["media"] = None
    said = run_script("score_predictions.py", written(tmp_path, **runs)).stdout
    assert "McNemar p" in said and "over clips" not in said and "either" not in said


def test_rows_that_failed_are_wrong_and_no_sign_of_a_difference(tmp_path):
    lost = [*answered(10, 10), *(failed_row(f"q{n}") for n in range(10, 40))]
    best = score(written(tmp_path, lost=lost, whole=answered(30)))[1]["result"]["best"]
    assert (best["name"], best["fixed"], best["broken"]) == ("whole", 0, 0)
    assert best["alike"] == ["lost"]


def test_nothing_is_best_of_one_or_of_other_questions(tmp_path):
    assert "best" not in score(written(tmp_path / "one", only=answered(3)))[1]["result"]
    others = {"some": answered(30), "fewer": answered(20, 20)}
    assert "best" not in score(written(tmp_path / "two", **others))[1]["result"]


@pytest.mark.parametrize("told_by", ["flag", "record", "job"])
def test_annotations_name_the_clips_of_rows_that_do_not(tmp_path, told_by):
    """TAO's rows name no clip; its job has the spec."""
    asked = [f"v{clip}-{question}" for clip in range(2) for question in range(3)]
    turns = [{"from": "human", "value": "What?\n(A) a\n(B) b"}, {"from": "gpt", "value": "A"}]
    records = [{"id": id, "video": f"{id[:2]}.mp4", "conversations": turns} for id in asked]
    annotations = tmp_path / "annotations.json"
    annotations.write_text(json.dumps(records))
    for name, response in (("before", "B"), ("after", "A")):
        results = tmp_path / name / "results" / "results.json"
        write(results, [row(id, response=response, media=None) for id in asked])
        if told_by == "record":
            write(results.with_name("evaluation.json"), {"annotations": str(annotations)})
        elif told_by == "job":
            (tmp_path / name / "job.json").write_text("{}")
            spec = {"dataset": {"annotation_path": str(annotations)}}
            document.dump(spec, tmp_path / name / "spec.toml")
    words = [tmp_path / "after/results", "--compare", tmp_path / "before/results"]
    flags = ["--annotations", annotations] if told_by == "flag" else []
    said = score(*words, *flags)[1]
    assert said["result"]["runs"][0]["comparison"]["clips"] == 2
    assert "EVAL-COMPARE-CLIPS" not in ids(said)
    assert ("EVAL-CLIPS-RECORDED" in ids(said)) == (told_by != "flag")
    assert said["result"]["runs"][0]["comparison"]["settings_known"] == (told_by == "record")
    annotations.write_text(annotations.read_text()[:-9])
    code, said = score(tmp_path / "after", tmp_path / "before")
    assert code == 0, "a score needs no clips"
    annotations.unlink()
    said = score(*words)[1]
    pair = said["result"]["runs"][0]["comparison"]
    assert (pair["clips"], pair["clips_named"]) == (6, False)
    assert "EVAL-COMPARE-CLIPS" in ids(said) and "share a clip" in pair["verdict"]


def test_the_only_annotations_here_that_hold_these_questions_name_the_clips(tmp_path, monkeypatch):
    """Id, question and ground truth of each row have to be those of the file."""
    question = "What?\n(A) a\n(B) b"
    for folder, asked, answer, words in (
        ("data/train", ["c3-0"], "A", question),
        ("data/eval", ["c1-0", "c1-1"], "A", question),
        ("data/older", ["c1-0", "c1-1"], "B", question),
        ("data/other", ["c1-0", "c1-1"], "A", "Which?\n(A) a\n(B) b"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        turns = [{"from": "human", "value": words}, {"from": "gpt", "value": answer}]
        records = [{"id": id, "video": f"{id[:2]}.mp4", "conversations": turns} for id in asked]
        (tmp_path / folder / "annotations.json").write_text(json.dumps(records))
    for name, response in (("before", "B"), ("after", "A")):
        results = [
            row(id, response=response, media=None, question=question) for id in ("c1-0", "c1-1")
        ]
        write(tmp_path / name / "results.json", results)
    monkeypatch.chdir(tmp_path)
    words = [tmp_path / "after", "--compare", tmp_path / "before"]
    code, said = score(*words)
    (told,) = [one for one in said["findings"] if one["id"] == "EVAL-CLIPS-FOUND"]
    assert code == 0 and "data/eval/annotations.json" in told["message"]
    assert said["result"]["runs"][0]["comparison"]["clips"] == 1
    copied = (tmp_path / "data/eval/annotations.json").read_bytes()
    (tmp_path / "data/older/annotations.json").write_bytes(copied)
    said = score(*words)[1]
    assert "EVAL-COMPARE-CLIPS" in ids(said) and "EVAL-CLIPS-FOUND" not in ids(said)
    assert said["result"]["runs"][0]["comparison"]["clips"] == 2


@pytest.mark.parametrize("unreadable", ["", "[{", "no JSON", "folder", "pipe"])
def test_annotations_here_that_cannot_be_read_are_none_of_a_score(
    tmp_path, monkeypatch, unreadable
):
    """Nobody named them: they only might have named clips."""
    other = tmp_path / "other" / "annotations.json"
    other.parent.mkdir()
    if unreadable == "folder":
        other.mkdir()
    elif unreadable == "pipe":
        os.mkfifo(other)
    else:
        other.write_text(unreadable)
    runs = [write(tmp_path / name / "results.json", [row("a", media=None), row("b", media=None)])
            for name in ("after", "before")]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, said = score(runs[0], "--compare", runs[1])
    assert code == 0 and "EVAL-COMPARE-CLIPS" in ids(said), said
