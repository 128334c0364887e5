"""What is asked of a model: the questions of the annotations, and what the answer type adds."""

import pytest

from cosmos_reason.base import files
from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation import questions
from cosmos_reason.evaluation.run import run
from cosmos_reason.spec.prompts import CHOOSE, THINK


def test_the_model_is_asked_for_a_letter_where_there_are_options(evaluate_spec, tmp_path):
    path = tmp_path / "eval" / "annotations.json"
    records = files.read_json(path)[:2]
    for record, question in zip(
        records, ("Which way?\n(A) left\n(B) right", "Which way?"), strict=True
    ):
        record["conversations"] = [
            {"from": "human", "value": f"<video>\n{question}"},
            {"from": "gpt", "value": "A"},
        ]
    files.write_json(path, records)
    responder = Responder(evaluate_spec)
    responder.load()
    read = {}
    for answer_type in ("freeform", "letter"):
        evaluate_spec["evaluation"]["answer_type"] = answer_type
        asked = questions.read(evaluate_spec["dataset"], -1)
        prompts = [responder.encode(question)["input_ids"].tolist() for question in asked]
        read[answer_type] = [responder.tokenizer.decode(tokens) for tokens in prompts]
    assert read["letter"][1] == read["freeform"][1]
    assert CHOOSE in read["letter"][0] and CHOOSE not in read["freeform"][0]


def test_a_model_is_asked_to_reason_in_its_own_words_and_never_twice():
    """The texts that Reason1's evaluator and reinforcement learning send, and Reason2's program."""
    options = "Which way?\n(A) left\n(B) right"
    letter = f"\n{CHOOSE}"
    tagged = (
        "\nPlease answer the question in the following format: <think> your reasoning </think> "
    )
    single = f"{tagged}<answer> your single letter answer </answer>."
    reason1, reason2 = FAMILIES["qwen2_5_vl"], FAMILIES["qwen3_vl"]
    for question, expected in (
        (options, letter + single),
        (options + letter, single),
        ("Which way?", f"{tagged}<answer> your answer </answer>."),
        (options + letter + single, ""),
    ):
        assert questions.added(question, "reasoning", reason1) == expected
        is_asked = "<think>" in question
        assert questions.added(question, "reasoning", reason2) == ("" if is_asked else THINK)
        assert questions.added(question, "freeform", reason1) == ""
    for family in (reason1, reason2):
        assert questions.added(options, "letter", family) == letter
        assert questions.added("Which way?", "reasoning", family, "Answer in <think> tags.") == ""
    assert THINK.endswith("Write your final answer immediately after the </think> tag.")


def test_two_questions_with_one_id_are_refused(evaluate_spec, tmp_path):
    path = tmp_path / "eval" / "annotations.json"
    records = files.read_json(path)
    records[3]["id"] = records[0]["id"]
    files.write_json(path, records)
    with pytest.raises(Failure, match="EVAL-ID-DUPLICATE"):
        run(evaluate_spec, None, Responder(evaluate_spec))
