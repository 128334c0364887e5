"""Texts of any length, as a message or a page can show them."""

from __future__ import annotations


def shortened(text: str, limit: int) -> str:
    """The beginning of a text of more than `limit` characters, and how many there are."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text):,} characters)"
