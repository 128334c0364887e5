"""Held-out questions that a training answers at every validation."""

from evaluating import rows_of
from training import metrics, run, same, weights

from cosmos_reason.base import files
from cosmos_reason.data import annotations
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.train.held_out import LEAST_ROOM, HeldOut
from cosmos_reason.evaluation import questions
from cosmos_reason.evaluation import run as evaluation

ENGINE = "custom__transformers_engine__"


def test_the_accuracy_is_that_of_an_evaluation_and_training_goes_on_as_without(
    train_spec, evaluate_spec, tmp_path
):
    run(train_spec, train__timestamp="without")
    run(train_spec, train__timestamp="with", **{ENGINE + "validate_answers": 100})
    told = metrics(tmp_path / "out" / "with", "val/avg_loss")
    assert [(line["step"], line["val/answers"]) for line in told] == [(2, 12), (4, 12)]
    assert same(weights(tmp_path / "out" / "without"), weights(tmp_path / "out" / "with"))
    for line in told:
        model = tmp_path / "out" / "with" / "safetensors" / f"step_{line['step']}"
        evaluate_spec["model"]["model_name"] = str(model)
        evaluate_spec["generation"]["max_tokens"] = LEAST_ROOM
        evaluate_spec["dataset"]["system_prompt"] = train_spec["train"]["train_policy"].get(
            "system_prompt", ""
        )
        evaluate_spec["results_dir"] = str(tmp_path / model.name)
        evaluation.run(evaluate_spec, None, Responder(evaluate_spec))
        rows = rows_of(tmp_path / model.name)
        assert line["val/accuracy"] == sum(row["correct"] for row in rows) / len(rows)


def test_few_questions_are_chosen_over_all_answers_and_always_the_same(dataset):
    samples, _ = annotations.read(dataset / "train" / "annotations.json")
    asked = [question for sample in samples for question in sample.questions()]
    labels = {question.gt for question in asked}
    count = len(labels) + 2
    chosen = questions.spread(asked, count)
    assert len(chosen) == count < len(asked) and chosen == questions.spread(asked, count)
    assert [asked.index(question) for question in chosen] == sorted(map(asked.index, chosen))
    backwards = questions.spread(asked[::-1], count)
    assert {question.id for question in backwards} == {question.id for question in chosen}
    assert {question.gt for question in chosen} == labels
    assert questions.spread(asked, 1000) == asked


def test_best_follows_the_answers_when_asked_and_a_resume_goes_on_so(
    train_spec, tmp_path, monkeypatch
):
    told = iter([0.5, 0.75, 0.75])

    def answered(self, network, questions, *_):
        return next(told), len(list(questions))

    monkeypatch.setattr(HeldOut, "accuracy", answered)
    by_answers = {ENGINE + "validate_answers": 4, ENGINE + "best_by": "val_accuracy"}
    often = {"train__ckpt__save_freq": 1, "validation__freq": 1}
    run(train_spec, train__max_num_steps=3, **often, **by_answers)
    score = tmp_path / "out" / "best" / "best_score.json"
    assert (tmp_path / "out" / "best" / "safetensors").resolve().name == "step_2"
    assert files.read_json(score)["metric"] == "val_accuracy"
    for part in ("checkpoints", "safetensors"):
        (tmp_path / "out" / "run" / part / "step_3").rename(tmp_path / part)
    told = iter([0.7])
    run(train_spec, train__resume=True)
    assert files.read_json(score)["best_score"] == 0.75
    assert (tmp_path / "out" / "best" / "safetensors").resolve().name == "step_2"
