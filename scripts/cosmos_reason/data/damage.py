"""Texts that programs have damaged on the way into a dataset: letters that were lost, bytes of
UTF-8 that were read as another code, marks of web pages. They are told and left as they are: what
was meant is for their author to say."""

from __future__ import annotations

import html
import re

from cosmos_reason.spec.values import shown

LOST, MISREAD, MARKED = "DATA-TEXT-LOST", "DATA-TEXT-MISREAD", "DATA-TEXT-ENTITY"
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
# The bytes 80 to BF, which follow the first of a character in UTF-8, as Windows-1252 or Latin-1
# has them; those of PUNCTUATION stand behind a capital letter in good texts, too.
PUNCTUATION = "‘’“”„‚…–—•™›"
FOLLOWING = bytes(range(0x80, 0xC0)).decode("cp1252", "ignore")
FOLLOWING += bytes(range(0x80, 0xA0)).decode("latin-1")
OTHERS = "".join(set(FOLLOWING) - set(PUNCTUATION))
TWO, THREE, FOUR = f"[Â-ß][{FOLLOWING}]", f"[à-ï][{FOLLOWING}]{{2}}", f"[ð-ô][{FOLLOWING}]{{3}}"
MISREAD_UTF_8 = re.compile(
    # A letter of Western or of Central Europe; a quote or a dash; a byte-order mark; other scripts,
    # of which a word has several letters; the same in the code of a Macintosh.
    rf"[ÂÃ][{OTHERS}]|[ÄÅ][¡-ª¬-¯±-¶¸-º¼-¿]|â[€\x80][{FOLLOWING}]|ï»¿"
    rf"|(?:{TWO}|{THREE}|{FOUR}){{2,}}|{FOUR}|√[©®†¢ß∂§±≥ºü]|‚Ä[ôúùìî¶ò]"
)


def of_text(text: str) -> tuple[str, str] | None:
    """Return (id, message) of the finding about a text; None for one that is whole."""
    if not text.isascii():
        if "�" in text:
            message = f"got {_around(text, text.index('�'))}, in which letters were lost (U+FFFD)"
            return LOST, f"{message}, expected whole characters"
        misread = MISREAD_UTF_8.search(text)
        if misread:
            message = (
                f"got {_around(text, misread.start())}, which is UTF-8 that was read as another"
            )
            return MISREAD, f"{message} code, and is trained as it stands"
    if "&" not in text:
        return None
    marked = next((one for one in ENTITY.findall(text) if html.unescape(one) != one), "")
    if not marked:
        return None
    message = f"got {marked}, which web pages write for {html.unescape(marked)!r}"
    return MARKED, f"{message}, and which is trained as it stands"


def _around(text: str, place: int) -> str:
    """Return the words around a place, quoted."""
    return shown(text[max(place - 20, 0) : place + 20], 60)
