"""Questions asked by likelihood: what is weighed, and what the probabilities are worth."""

import json
import math
import random

import pytest
import torch
from chat_server import said
from evaluating import rows_of
from scoring import ids, metrics_of, row, run_of, score, write
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.answer import weighing
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation import grading, likelihood, questions
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
            assert one["error"] and "choice" not in one
            continue
        weighed = one["choice"]
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
        assert both.get("choice") == (
            pytest.approx(alone["choice"], abs=1e-3) if "choice" in alone else None
        )


def likely(responder, inputs, tokens=()):
    """Return what the model itself says comes behind a question and some tokens of an answer."""
    more = torch.tensor(tokens, dtype=torch.long)
    places = inputs["position_ids"][-1:] + 1 + torch.arange(len(tokens))[:, None]
    ids = torch.cat([inputs["input_ids"], more])[None]
    positions = torch.cat([inputs["position_ids"], places]).T[:, None]
    pixels = {key: value for key, value in inputs.items() if "pixel" in key or "grid" in key}
    kinds = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)])[None]
    with torch.no_grad():
        done = responder.network(
            input_ids=ids, position_ids=positions, mm_token_type_ids=kinds, **pixels
        )
    return done.logits[0, -1].float().softmax(dim=-1)


def test_answers_that_begin_alike_are_told_apart_in_the_same_pass(spec):
    """The product over the tokens of a teacher-forced text is the oracle."""
    responder = Responder(spec)
    responder.load()
    weighed = ("turn left", "turn right", "turn", "stop")
    asked = questions.read(spec["dataset"], -1)[0]
    inputs = responder.encode(asked)
    responder.__dict__["choices"] = {asked.id: weighed}
    (found,) = responder.weigh([(asked, inputs)])
    spelled = weighing.spellings(responder.tokenizer, weighed)
    assert tuple(found) == weighed
    end = responder.tokenizer.eos_token_id
    ended = [(name, (*tokens, end)) for name, tokens in spelled]
    for choice in weighed:
        others = [tokens for name, tokens in ended if name != choice]
        # Each text up to the token that tells it from all texts of other choices.
        tellings = set()
        for name, tokens in ended:
            length = 1
            while name == choice and any(one[:length] == tokens[:length] for one in others):
                length += 1
            if name == choice:
                tellings.add(tokens[:length])
        expected = 0.0
        for telling in tellings:
            share = 1.0
            for place, token in enumerate(telling):
                share *= float(likely(responder, inputs, telling[:place])[token])
            expected += share
        assert found[choice] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("model", ["tiny_model", "tiny_edge_model"])
def test_questions_about_a_clip_are_weighed_together_as_alone(spec, model, request, monkeypatch):
    spec["model"]["model_name"] = str(request.getfixturevalue(model))
    responder = Responder(spec)
    responder.load()
    first, *others = questions.read(spec["dataset"], -1)
    other = next(one for one in others if one.sample.media != first.sample.media)
    asked = [first]
    for number, text in enumerate((f"{OPTIONS}\nD. down", "Is it dark? Answer yes or no.", "Up?")):
        turns = (first.context[0]._replace(text=text),)
        asked.append(first._replace(id=f"more{number}", context=turns, text=text))
    weighed = (tuple("ABC"), tuple("ABCD"), ("yes", "no"), ("turn left", "turn right"))
    ids = [one.id for one in asked]
    responder.__dict__["choices"] = dict(zip(ids, weighed, strict=True)) | {other.id: ("yes", "no")}
    ready = [(one, responder.encode(one)) for one in (*asked, other)]
    alone = [responder.weigh([one])[0] for one in ready]
    seen = []
    forward = responder.network.model.forward
    monkeypatch.setattr(
        responder.network.model,
        "forward",
        lambda **batch: seen.append(batch["input_ids"].shape) or forward(**batch),
    )
    together = responder.weigh(ready)
    ((rows, length),) = seen  # one pass
    assert rows == 2, "the clip of four questions is read once"
    assert length < sum(len(inputs["input_ids"]) for _, inputs in ready[:4])
    for one, both in zip(alone, together, strict=True):
        assert both == pytest.approx(one, abs=1e-5)
    assert len({json.dumps(one) for one in together}) == len(together)


def test_a_question_with_other_words_before_the_clip_shares_nothing():
    kinds = torch.tensor([0, 0, 2, 2, 0])
    one = {"input_ids": torch.tensor([1, 2, 9, 9, 3]), "mm_token_type_ids": kinds}
    other = {"input_ids": torch.tensor([1, 5, 9, 9, 3]), "mm_token_type_ids": kinds}
    assert weighing.shared_tokens([one, other]) == 0
    assert weighing.shared_tokens([one, one]) == 4
    text = {"input_ids": torch.tensor([1, 2, 3]), "mm_token_type_ids": torch.zeros(3)}
    assert weighing.shared_tokens([text, text]) == 2


def test_a_beginning_of_several_answers_counts_for_none_of_them():
    class Letters:
        eos_token_id = 0

        def encode(self, text, add_special_tokens):
            return [ord(letter) for letter in text]

    spelled = weighing.spellings(Letters(), ("up", "upper", "down"))
    behind = {}
    for tokens in [(), *weighing.beginnings(spelled, 0)]:
        behind[tokens] = torch.zeros(200)
        if tokens:
            behind[tokens][0 if tokens[-1] == ord("p") else ord("p")] = 1.0
    behind[()][ord("u")] = 0.6
    behind[()][ord("d")] = 0.4
    assert weighing.probabilities(spelled, behind, 0) == {"down": 0.4, "up": 0.6, "upper": 0}


@pytest.mark.parametrize(
    ("likely", "weighed", "expected"),
    [
        ({"A": 0.5, " B": 0.2, "a": 0.1, "The": 0.1}, "AB", {"A": 0.5, "B": 0.2}),
        ({"Yes": 0.5, " yes": 0.2, "NO": 0.1, "N": 0.1}, ("yes", "no"), {"yes": 0.7, "no": 0.1}),
        ({"fog": 0.5, "rain": 0.2}, ("foggy", "rainy", "clear"), [0.5, 0.2, 0]),
        ({"turn": 0.5, "stop": 0.2}, ("turn left", "turn right", "stop"), None),
        ({"no": 0.5, "none": 0.2}, ("no", "none"), None),
        ({"<think>": 0.99}, ("yes", "no"), None),
        ({"yesterday": 0.5}, ("yes", "no"), None),
        ({}, "AB", None),
    ],
)
def test_a_servers_tokens_count_for_the_only_answer_that_they_begin(likely, weighed, expected):
    found = likelihood.of_tokens(likely, tuple(weighed))
    if isinstance(expected, list):
        found = list(found.values())
    assert found == expected


def logprobs(likely: dict) -> bytes:
    """A chat completion of one token, with how likely others were."""
    listed = [{"token": token, "logprob": math.log(share)} for token, share in likely.items()]
    told = {"content": [{"token": listed[0]["token"], "top_logprobs": listed}]}
    choice = {"message": {"content": "x"}, "finish_reason": "length", "logprobs": told}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()


@pytest.mark.parametrize("ask", ["likelihood", "both"])
def test_a_server_that_tells_logprobs_is_asked_for_them(spec, server, tmp_path, ask):
    spec["evaluation"]["ask"] = ask
    spec["generation"] |= {"repetition_penalty": 1.1, "temperature": 0.7}
    server.trial = 200, logprobs({"black": 0.9})

    def plan(body, number):
        if "logprobs" not in body:
            return 200, said("yes"), 0
        assert (body["max_tokens"], body["temperature"], body["top_logprobs"]) == (1, 0, 20)
        assert "repetition_penalty" not in body
        text = json.dumps(body["messages"])
        likely = {"A": 0.1, "B": 0.6, "C": 0.2} if "left" in text else {"Yes": 0.2, "No": 0.7}
        return 200, logprobs(likely), 0

    server.plan = plan
    who = Endpoint(spec, server.url)
    who.settle()
    run(spec, None, who)
    rows = rows_of(tmp_path / "results")
    weighed = [number for number in range(len(rows)) if number % 3 < 2]
    assert [number for number, one in enumerate(rows) if "choice" in one] == weighed
    for number in weighed:
        expected = [{"A": 0.1, "B": 0.6, "C": 0.2}, {"yes": 0.2, "no": 0.7}][number % 3]
        assert rows[number]["choice"] == pytest.approx(expected)
        given = "yes" if ask == "both" else max(expected, key=expected.get)
        assert rows[number]["response"] == given
    described = rows[2]
    assert (described["error"] is None) == (ask == "both")


@pytest.mark.parametrize(
    "trial",
    [(200, said("black")), (400, b"top_logprobs is not supported")],
    ids=("none", "refuses"),
)
def test_a_server_without_logprobs_is_told_before_any_question(spec, server, trial):
    server.trial = trial
    with pytest.raises(Failure, match="EVAL-LIKELIHOOD-ENDPOINT") as refused:
        Endpoint(spec, server.url).settle()
    assert "vLLM" in str(refused.value) and server.requests == []
    (finding,) = refused.value.findings
    assert finding.fix.changes == {"evaluation.ask": "generate"}


def test_labels_and_directions_are_weighed_as_the_whole_file_has_them(spec, tmp_path):
    path = tmp_path / "eval/annotations.json"
    records = json.loads(path.read_text())
    for number, record in enumerate(records):
        turns = record["conversations"]
        turns[0]["value"] = ["<video>\nHow is the weather?", "<video>\nWhich way?"][number % 2]
        pair = [("Clear", "Light rain"), ("left", "straight")][number % 2]
        turns[1]["value"] = pair[number % 4 > 1]
        record["conversations"] = turns[:2]
    path.write_text(json.dumps(records))
    spec["evaluation"]["limit"] = 2
    weighed = set(likelihood.choices(spec).values())
    assert weighed == {("clear", "light rain"), ("left", "straight")}
    assert likelihood.without_choices(spec) == []


def test_questions_that_cannot_be_weighed_are_told_before(spec):
    (warned,) = likelihood.without_choices(spec)
    assert warned.id == "EVAL-LIKELIHOOD-OPTIONS" and warned.severity == "warning"
    spec["evaluation"]["ask"] = "generate"
    assert likelihood.without_choices(spec) == []


def test_the_container_does_not_weigh(tmp_path):
    spec = tmp_path / "evaluate.toml"
    spec.write_text('[evaluation]\nask = "likelihood"\n')
    words = ["evaluate", "--spec", spec, "-o", tmp_path / "out.toml", "--engine", "tao", "--json"]
    document = json.loads(run_script("build_spec.py", *words).stdout)
    (refused,) = [one for one in document["findings"] if one["where"] == "evaluation.ask"]
    assert (refused["id"], refused["severity"]) == ("SPEC-ENGINE-KEY", "error")
    assert "--endpoint" in refused["message"]


def weighed_rows(count: int, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        share = round(draw.random(), 2)  # ties too
        gt = "yes" if draw.random() < share else "no"
        response = "yes" if share >= 0.5 else "no"
        one = row(f"q{number}", gt, response, question="Does it move?")
        rows.append(one | {"choice": {"yes": share * 0.9, "no": (1 - share) * 0.9}})
    return rows


def test_calibration_and_separation_are_what_their_definitions_say(tmp_path):
    rows = weighed_rows(200, seed=3)
    file = write(tmp_path / "results.json", rows)
    _, document = score(file, "--write")
    found = document["result"]["runs"][0]["likelihood"]
    metrics_of(tmp_path)
    pairs = [
        (one["choice"]["yes"] > other["choice"]["yes"])
        + (one["choice"]["yes"] == other["choice"]["yes"]) / 2
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
    assert "likelihood" not in run_of(write(tmp_path / "b/results.json", [row("a")]))


@pytest.mark.parametrize(("ask", "agreement"), [("likelihood", None), ("both", 1.0)])
def test_a_text_that_was_not_asked_for_agrees_with_nothing(tmp_path, ask, agreement):
    rows = weighed_rows(20, seed=3)
    for one in rows:
        one["response"] = max(one["choice"], key=one["choice"].get)
    file = write(tmp_path / "results.json", rows)
    (tmp_path / "evaluation.json").write_text(json.dumps({"prompt": {"ask": ask}}))
    done = run_script("score_predictions.py", file)
    assert metrics_of(tmp_path)["likelihood"]["agreement"] == agreement
    assert ("the text agrees" in done.stdout) is (ask == "both")


def differing(folder, name: str, count: int, seed: int):
    """Results over clips of their own."""
    rows = weighed_rows(count, seed)
    for one in rows:
        one |= {"id": f"{name}-{one['id']}", "media": f"{name}-{one['id']}.mp4"}
    return write(folder / name / "results.json", rows)


def test_a_threshold_is_chosen_on_one_set_and_reported_on_another(tmp_path):
    chosen_on = differing(tmp_path, "chosen", 300, seed=1)
    file = differing(tmp_path, "told", 200, seed=2)
    code, document = score(
        file,
        "--threshold",
        "auto",
        "--threshold-set",
        chosen_on,
        "--write",
        "--save",
        file.parent / "s",
    )
    run = document["result"]["runs"][0]
    told = run["likelihood"]["threshold"]
    assert code == 0 and told["rows"] == 200 and told["chosen_on"] == str(chosen_on)
    metrics_of(file.parent)

    def balanced(path, threshold):
        right = {"yes": [], "no": []}
        for one in json.loads(path.read_text()):
            share = one["choice"]["yes"] / sum(one["choice"].values())
            said = "yes" if share >= threshold else "no"
            right[one["gt"]].append(said == one["gt"])
        return sum(sum(part) / len(part) for part in right.values()) / 2

    best = max(balanced(chosen_on, number / 200) for number in range(201))
    assert balanced(chosen_on, told["value"]) == pytest.approx(best)
    assert run["balanced_accuracy"] == pytest.approx(balanced(file, told["value"]), abs=1e-6)
    _, by_hand = score(file, "--threshold", told["value"])
    assert by_hand["result"]["runs"][0]["accuracy"] == run["accuracy"]
    _, never = score(file, "--threshold", "1")
    assert never["result"]["runs"][0]["accuracy"] < run["accuracy"]


def test_a_threshold_tells_shares_apart_that_a_sure_model_gives(tmp_path):
    """It says no to everything: rounded to six digits the threshold would be 0, and all yes."""
    weighed = []
    for number, (gt, share) in enumerate([("yes", 4e-7), ("no", 1e-7), ("no", 0.0)]):
        one = row(f"q{number}", gt, "no", question="Does it move?")
        weighed.append(one | {"choice": {"yes": share, "no": 1 - share}})
    _, rows, _ = grading.read_one(write(tmp_path / "results.json", weighed), grading.Options())
    likelihood.answer_from(rows, likelihood.chosen_threshold(rows, "results"))
    assert [one.answer for one in rows] == ["yes", "no", "no"]


def test_a_threshold_answers_for_both_runs_of_a_comparison(tmp_path):
    """Else a run beats itself by its threshold alone."""
    chosen_on = differing(tmp_path, "chosen", 300, seed=1)
    file = differing(tmp_path, "told", 200, seed=2)
    same = write(tmp_path / "before" / "results.json", json.loads(file.read_text()))
    flags = ("--threshold", "auto", "--threshold-set", chosen_on, "--compare", same)
    code, document = score(file, *flags)
    pair = document["result"]["runs"][0]["comparison"]
    assert code == 0 and (pair["fixed"], pair["broken"]) == (0, 0)
    unweighed = [one for one in json.loads(file.read_text()) if one.pop("choice")]
    write(same, unweighed)
    code, document = score(file, *flags)
    (told,) = [one for one in document["findings"] if one["id"] == "EVAL-THRESHOLD-ROWS"]
    assert (code, told["severity"], told["where"]) == (0, "warning", str(same))


def test_a_threshold_is_never_reported_where_it_was_chosen(tmp_path):
    file = differing(tmp_path, "one", 50, seed=1)
    code, document = score(file, "--threshold", "auto", "--threshold-set", file)
    assert (code, ids(document)) == (2, {"EVAL-THRESHOLD-SAME"})
    code, document = score(file, "--threshold", "auto")
    assert (code, ids(document)) == (2, {"USAGE"})
    unweighed = write(tmp_path / "text/results.json", [row("a")])
    code, document = score(unweighed, "--threshold", "0.3")
    assert (code, ids(document)) == (1, {"EVAL-THRESHOLD-ROWS"})
    code, document = score(file, "--threshold", "auto", "--threshold-set", unweighed)
    assert (code, ids(document)) == (2, {"EVAL-THRESHOLD-ROWS"})


def test_odd_probabilities_are_no_probabilities(tmp_path):
    for odd in ({}, {"yes": 2}, {"yes": "much"}, [1], {"yes": 0.0, "no": 0.0}):
        rows = [row("a", "yes", "yes", question="Does it move?") | {"choice": odd}]
        code, document = score(write(tmp_path / "results.json", rows))
        assert code == 0 and "likelihood" not in document["result"]["runs"][0], ids(document)
