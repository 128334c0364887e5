"""The pause that a chat server asks for. What it answers is tested where it is asked:
tests/evaluation/test_endpoint.py and test_judge.py."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from cosmos_reason.remote import chat


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("nan", 0, 0),
        ("-3", 0, 0),
        ("soon", 0, 0),
        (None, 0, 0),
        ("7", 7, 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, least, most):
    assert least <= chat.seconds_of(header) <= most
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < chat.seconds_of(later) <= 30
