"""What other evaluators leave, retyped small in its own shape: options beside the questions, and
ground truths that are their numbers or texts."""

import json

import openpyxl
import pytest
from scoring import ids, score

from cosmos_reason.evaluation.rows import read

COLOURS = ["red", "blue", "green"]
LISTED = "Which colour?\nA. red\nB. blue\nC. green\nAnswer with the option's letter."


def lines(tmp_path, rows):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def accuracy(path):
    code, document = score(path)
    (run,) = document["result"]["runs"]
    assert code == 0, document["findings"]
    assert set(run["per_type"]) == {"mcq"}
    return run["accuracy"]


def of_lmms(number, target, said, **document):
    """A line that lmms-eval logs."""
    return {
        "doc_id": number, "doc": {"id": f"x_{number}", "question": "Which colour?", **document},
        "target": target, "input": LISTED, "resps": [[said]], "filtered_resps": [said],
        "doc_hash": "a",
    }  # fmt: skip


def test_the_numbers_of_lmms_eval_are_letters(tmp_path):
    """Its task of LongVideoBench; before, all of these were unparseable numbers."""
    beside = {"candidates": COLOURS}
    rows = [of_lmms(n, n, "ABC"[n], correct_choice=n, **beside) for n in range(3)]
    rows.append(of_lmms(3, 1, "C", correct_choice=1, **beside))
    assert accuracy(lines(tmp_path, rows)) == 0.75


def test_numbers_are_read_by_the_options_that_a_question_lists(tmp_path):
    """Its task of EgoSchema, logged without the documents."""
    rows = [of_lmms(n, str(n), "ABC"[n]) for n in range(3)]
    for row in rows:
        del row["doc"]
    assert accuracy(lines(tmp_path, rows)) == 1.0


def test_the_known_column_decides_for_few_rows(tmp_path):
    rows = [of_lmms(0, 1, "B", candidates=COLOURS, correct_choice=1)]
    assert accuracy(lines(tmp_path, rows)) == 1.0


def test_numbers_that_may_be_two_options_are_named(tmp_path):
    rows = [of_lmms(n, n + 1, "B", options=COLOURS) for n in range(2)]
    code, document = score(lines(tmp_path, rows))
    assert code == 1 and "EVAL-GT-NUMBER" in ids(document)


def test_numbers_that_are_answered_with_numbers_stay_numbers(tmp_path):
    rows = [of_lmms(n, n, str(n), candidates=COLOURS) for n in range(3)]
    code, document = score(lines(tmp_path, rows))
    assert code == 0 and document["result"]["runs"][0]["accuracy"] == 1.0


def test_texts_of_options_and_letters_are_one_answer(tmp_path):
    """VLMEvalKit's tables of MVBench; before, half of these were wrong."""
    table = "index\tvideo\tquestion\tanswer\tcandidates\tprediction\tscore\n"
    for number, said in enumerate(["B", "(B) Ate it.", "Ate it.", "A"]):
        options = "\"['Took it.', 'Ate it.']\""
        table += f"{number}\t{number}.mp4\tWhat happened?\tAte it.\t{options}\t{said}\t1\n"
    path = tmp_path / "model_MVBench.tsv"
    path.write_text(table)
    assert accuracy(path) == 0.75
    graded, _ = read(path)
    assert graded[0].gt == "B" and "(A) Took it.\n(B) Ate it." in graded[0].question


def test_options_with_letters_beside_a_letter(tmp_path):
    """VLMEvalKit's rows of Video-MME."""
    beside = {"question": "When?", "answer": "B", "candidates": "['A. One.', 'B. Two.']"}
    rows = [{"index": n, "prediction": said, **beside} for n, said in enumerate(["B", "Two."])]
    path = tmp_path / "model_Video-MME.json"
    path.write_text(json.dumps(rows))
    assert accuracy(path) == 1.0


def test_options_in_columns(tmp_path):
    path = tmp_path / "model_MMBench.csv"
    path.write_text("index,question,A,B,answer,prediction\n0,Colour?,red,blue,B,It is blue.\n")
    assert accuracy(path) == 1.0


def test_predictions_of_vlmevalkit_are_a_workbook(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["index", "question", "A", "B", "answer", "video", "prediction"])
    book.active.append([0, "Colour?", "red", "blue", "B", "a.mp4", "B. blue"])
    book.active.append([1, "Colour?", "red", "blue", "A", "b.mp4", "The answer is A."])
    book.active.append([2, "Colour?", "red", "blue", "A", "c.mp4", "It looks like blue or red."])
    path = tmp_path / "Cosmos3-Nano_Video.xlsx"
    book.save(path)
    assert accuracy(path) == pytest.approx(2 / 3, abs=1e-6)


def test_options_that_cannot_be_read_change_nothing(tmp_path):
    row = {"id": "a", "question": "Red?", "gt": "yes", "response": "Yes.", "options": "[broken"}
    graded, _ = read(lines(tmp_path, [row]))
    assert (graded[0].question, graded[0].gt) == ("Red?", "yes")


PROMPT = [{"role": "HUMAN", "prompt": LISTED}]
TALK = [{"role": "user", "content": f"<video>\n{LISTED}"}, {"role": "assistant", "content": "B"}]
OTHERS = {
    "OpenCompass": {"0": {"origin_prompt": PROMPT, "prediction": "blue", "gold": "B"}},
    "ms-swift": {"response": "blue", "labels": "B", "messages": TALK, "videos": ["a.mp4"]},
    "verl": {"input": LISTED, "output": "<think>x</think>blue", "gts": "B", "score": 1.0},
    "Video-ChatGPT": {"id": "v_1", "Q": LISTED, "A": "B", "pred": "blue"},
}


@pytest.mark.parametrize("tool", OTHERS)
def test_the_question_and_the_truth_of_others_are_found(tmp_path, tool):
    """An answer in the words of its option is only read where the question was."""
    path = tmp_path / "out.json"
    path.write_text(json.dumps(OTHERS[tool]))
    assert accuracy(path) == 1.0
