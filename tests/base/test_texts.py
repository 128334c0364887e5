"""Long texts are shortened in one way."""

from cosmos_reason.base import findings
from cosmos_reason.base.texts import by_number, shortened
from cosmos_reason.spec import values


def test_a_long_text_tells_its_beginning_and_its_length():
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc... (4 characters)"


def test_messages_shorten_their_words_and_values_alike():
    word = "x" * 1500
    assert findings.cut(f"got {word} here") == f"got {'x' * 80}... (1,500 characters) here"
    assert values.shown(word, 10) == "'xxxxxxxxx... (1,502 characters)"


def test_names_are_sorted_by_the_numbers_in_them():
    names = ["frame_10", "frame_9", "frame_²", "frame_"]
    assert sorted(names, key=by_number) == ["frame_", "frame_9", "frame_10", "frame_²"]
