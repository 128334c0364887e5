"""Questions asked by likelihood: what is weighed, and what the probabilities are worth."""

import json
import random

import jsonschema
import pytest
from evaluating import rows_of
from scoring import ids, row, score, write
from support import run_script

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.answer.responder import Responder, first_tokens
from cosmos_reason.evaluation import questions
from cosmos_reason.evaluation.endpoint import Endpoint
from cosmos_reason.evaluation.run import run

OPTIONS = "Which way does it go?\nA. left\nB. right\nC. up"
ASKED = ((OPTIONS, "B"), ("Does it move? Answer yes or no.", "yes"), ("Describe it.", "A cube."))


@pytest.fixture
def spec(evaluate_spec, tmp_path):
    """Asks of each clip a choice, a yes or no, and a description."""
    path = tmp_path / "eval/annotations.json"
    records = json.loads(path.read_text())
    for number, record in enumerate(records):
        text, gt = ASKED[number % 3]
        turns = record["conversations"]
        turns[0]["value"] = f"<video>\n{text}"
        turns[1]["value"] = gt
        record["conversations"] = turns[:2]
    path.write_text(json.dumps(records))
    evaluate_spec["evaluation"]["ask"] = "likelihood"
    return evaluate_spec


def test_options_and_yes_and_no_are_weighed_by_one_forward_pass(spec, tmp_path):
    run(spec, None, Responder(spec))
    rows = rows_of(tmp_path / "results")
    assert len(rows) >= 3
    for number, one in enumerate(rows):
        if number % 3 == 2:
            assert one["error"] and "probabilities" not in one
            continue
        weighed = one["probabilities"]
        assert list(weighed) == [["A", "B", "C"], ["yes", "no"]][number % 3]
        assert one["response"] == max(weighed, key=weighed.get) == one["answer"]
        assert 0 < sum(weighed.values()) <= 1.000001
    record = json.loads((tmp_path / "results/evaluation.json").read_text())
    assert record["prompt"]["ask"] == "likelihood"
    spec["evaluation"] |= {"ask": "both", "batch_size": 1}
    spec["results_dir"] = str(tmp_path / "both")
    run(spec, None, Responder(spec))
    for alone, both in zip(rows, rows_of(tmp_path / "both"), strict=True):
        assert both["error"] is None
        # Padding beside longer questions moves the last digits.
        assert both.get("probabilities") == (
            pytest.approx(alone["probabilities"], abs=1e-3) if "probabilities" in alone else None
        )


def test_the_probabilities_are_those_of_what_would_be_generated(spec):
    responder = Responder(spec)
    asked = questions.read(spec["dataset"], -1)[:1]
    responder.load()
    inputs = [responder.encode(asked[0])]
    (weight,) = responder.weigh(inputs)
    assert float(weight.sum()) == pytest.approx(1, abs=1e-4)
    responder.generation = spec["generation"] | {"max_tokens": 1}
    ((text, _, _),) = responder.generate(inputs)
    assert responder.tokenizer.decode([int(weight.argmax())], skip_special_tokens=True) == text


def test_a_token_that_begins_two_answers_tells_neither(spec):
    class Letters:
        def encode(self, text, add_special_tokens):
            return [ord(text[0])]

    assert first_tokens(Letters(), ("yes", "no")) == {
        "yes": [ord("y"), ord("Y")],
        "no": [ord("n"), ord("N")],
    }
    assert first_tokens(Letters(), ("up", "under"))["up"] == []


def test_questions_that_cannot_be_weighed_are_told_before(spec):
    (warned,) = questions.without_weighed(spec)
    assert warned.id == "EVAL-LIKELIHOOD-OPTIONS" and warned.severity == "warning"
    with pytest.raises(Failure, match="EVAL-LIKELIHOOD-ENDPOINT"):
        Endpoint(spec, "http://localhost:1/v1").settle()
    spec["evaluation"]["ask"] = "generate"
    assert questions.without_weighed(spec) == []


def test_the_container_does_not_weigh(tmp_path):
    spec = tmp_path / "evaluate.toml"
    spec.write_text('[evaluation]\nask = "likelihood"\n')
    words = ["evaluate", "--spec", spec, "-o", tmp_path / "out.toml", "--engine", "tao", "--json"]
    document = json.loads(run_script("build_spec.py", *words).stdout)
    (refused,) = [one for one in document["findings"] if one["where"] == "evaluation.ask"]
    assert (refused["id"], refused["severity"]) == ("SPEC-ENGINE-KEY", "error")
    assert "only transformers" in refused["message"]


def weighed_rows(count: int, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        share = round(draw.random(), 2)  # ties too
        gt = "yes" if draw.random() < share else "no"
        response = "yes" if share >= 0.5 else "no"
        one = row(f"q{number}", gt, response, question="Does it move?")
        rows.append(one | {"probabilities": {"yes": share * 0.9, "no": (1 - share) * 0.9}})
    return rows


def test_calibration_and_separation_are_what_their_definitions_say(tmp_path):
    rows = weighed_rows(200, seed=3)
    file = write(tmp_path / "results.json", rows)
    _, document = score(file, "--write")
    found = document["result"]["runs"][0]["likelihood"]
    jsonschema.validate(
        json.loads((tmp_path / "metrics.json").read_text()), bundle.schema("metrics")
    )
    pairs = [
        (one["probabilities"]["yes"] > other["probabilities"]["yes"])
        + (one["probabilities"]["yes"] == other["probabilities"]["yes"]) / 2
        for one in rows
        if one["gt"] == "yes"
        for other in rows
        if other["gt"] == "no"
    ]
    assert found["yes_no"]["roc_auc"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert found["mass"] == pytest.approx(0.9) and found["agreement"] >= 0.98
    assert found["ece"] < 0.15 and sum(line["rows"] for line in found["reliability"]) == 200
    (half,) = [line for line in found["yes_no"]["thresholds"] if line["threshold"] == 0.5]
    said = [one for one in rows if one["response"] == "yes"]
    hits = sum(one["gt"] == "yes" for one in said)
    assert half["precision"] == pytest.approx(hits / len(said), abs=1e-6)
    assert (
        "likelihood"
        not in score(write(tmp_path / "b/results.json", [row("a")]))[1]["result"]["runs"][0]
    )


def test_odd_probabilities_are_no_probabilities(tmp_path):
    for odd in ({}, {"yes": 2}, {"yes": "much"}, [1], {"yes": 0.0, "no": 0.0}):
        rows = [row("a", "yes", "yes", question="Does it move?") | {"probabilities": odd}]
        code, document = score(write(tmp_path / "results.json", rows))
        assert code == 0 and "likelihood" not in document["result"]["runs"][0], ids(document)
