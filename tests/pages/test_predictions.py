"""The page of answers: it holds everything it shows, escapes what it shows, stays small."""

import numpy as np
from PIL import Image

from cosmos_reason.pages import predictions

HOSTILE = "<script>alert(1)</script>"


def row(path, question, **fields):
    usual = {"error": None, "response": "x", "answer": "x", "reasoning": None, "is_cut": False}
    return {"id": path, "media": str(path), "question": question} | usual | fields


def test_a_medium_is_shown_once_with_every_answer_about_it(tmp_path):
    still = tmp_path / "still.png"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(still)
    rows = [
        row(still, "Why?", answer=HOSTILE, reasoning=HOSTILE),
        row(still, "What?", answer=None, is_cut=True),
        row(tmp_path / "gone.mp4", HOSTILE, response=None, answer=None, error=HOSTILE),
    ]
    text = predictions.page(rows, {"model": HOSTILE})
    assert text.count("data:image/jpeg;base64,") == 1 and "No picture: got no such file" in text
    assert "<script" not in text and text.count("&lt;script&gt;") >= 5
    assert "<strong>2</strong> answers about 2 clips or images" in text
    assert "1 question failed." in text and "max_tokens ended 1 answer" in text


def test_pictures_and_cards_have_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "IMAGE_BUDGET", 600)
    monkeypatch.setattr(predictions, "SHOWN_MEDIA", 3)
    rows = []
    for number in range(5):
        still = tmp_path / f"{number}.png"
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(still)
        rows.append(row(still, "Why?"))
    text = predictions.page(rows, {})
    assert text.count("data:image/jpeg;base64,") == 1 and text.count('<li class="card">') == 3
    assert "The first 3 of 5; predictions.json has all." in text
