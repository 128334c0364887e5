"""Texts of any length, as a message or a page can show them, and names in the order of people."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBER = re.compile(r"(\d+)")


def by_number(name: str) -> list[str | int]:
    """Return a key to sort names with: frame_2 comes before frame_10."""
    return [int(part) if part.isdecimal() else part for part in NUMBER.split(name)]


def shortened(text: str, limit: int) -> str:
    """Return the beginning of a text of more than `limit` characters, and how many there are."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text):,} characters)"


def some(names: Sequence[str], most: int) -> str:
    """Return at most so many names in a line, with dots for those that it leaves out."""
    return ", ".join(names[:most]) + (", ..." if names[most:] else "")
