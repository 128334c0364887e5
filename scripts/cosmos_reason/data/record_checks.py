"""What is looked at in every record, and how often it was found wrong: one finding per check."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec.values import shown

if TYPE_CHECKING:
    from cosmos_reason.data.json_stream import JsonRecords

# Texts that programs damaged on the way into a dataset are told and left as they are: what was
# meant is for their author to say.
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


@dataclass
class Tally:
    """Problems of any number of records, per check: the first one in words, the others by record
    id. `fixes` holds what mends a check's problems in this very data, when that is known, and
    `errors` checks that are errors here."""

    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)
    # of the same records: (file, index)
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    file: int = 0  # a source may have several, which count from 0 each
    fixes: dict[str, Fix | str] = field(default_factory=dict)
    errors: set[str] = field(default_factory=set)

    def add(self, check: str, index: int, record: str, message: str) -> None:
        self.first.setdefault(check, (index, message))
        self.ids.setdefault(check, []).append(record)
        self.places.setdefault(check, []).append((self.file, index))

    def take(self, records: JsonRecords) -> None:
        """Note what the decoder of the records would have passed over in silence."""
        for check, message in records.oddities:
            self.add(check, records.index, f"record-{records.index}", message)
        records.oddities.clear()

    def findings(
        self, checks: dict[str, tuple[str, str, Fix | str]], path: str | Path, records: int = 0
    ) -> list[f.Finding]:
        """Return one finding per check with its record ids (the first MAX_RECORD_IDS), and how many
        `records` it is about, when their number is known; `checks` is shaped as CHECKS, whose words
        are advice, part of the message."""
        found = []
        for check, (index, message) in self.first.items():
            severity, _, fix = checks[check]
            severity = f.ERROR if check in self.errors else severity
            ids = list(dict.fromkeys(self.ids[check]))
            # one record may break a check twice, and two records may have one id
            count = len(set(zip(self.places[check], self.ids[check], strict=True)))
            more = f" ({count} of {max(records, count)} records)" if count > 1 else ""
            data = {"record_ids": ids[: f.MAX_RECORD_IDS], "count": count}
            fix = self.fixes.get(check, fix)
            advice = ""
            if isinstance(fix, str):
                advice, fix = f"; {fix}" if fix else "", Fix()
            message += more + advice
            found.append(f.Finding(check, severity, f"{path}#{index}", message, fix, data))
        return found


def damaged(text: str) -> tuple[str, str] | None:
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


ONE_EACH = "write one record per question, or keep our dataset script, which trains all turns"
# id -> (severity, what is checked, how to mend it)
# fmt: off
CHECKS = {
    "DATA-JSON-KEY-TWICE": (f.ERROR, "an object has each key once (readers keep the last)",
        "remove one of the two"),
    "DATA-JSON-CONSTANT": (f.WARNING, "numbers are numbers, not NaN or Infinity",
        "write a number or null"),
    "DATA-RECORD-TYPE": (f.ERROR, "a record is a JSON object", "write each record as an object"),
    "DATA-NOT-BUILT": (f.ERROR, "a record is a conversation, not a row of labels or captions",
        Fix(command="scripts/build_dataset.py SOURCE -o DIR")),
    "DATA-RECORD-FORMAT": (f.ERROR, "a record follows the format it looks like",
        "correct the record"),
    "DATA-MEDIA-ESCAPE": (f.ERROR, "files are named below the dataset",
        "write names below the media path"),
    "DATA-ID-TYPE": (f.ERROR, "an id is text or an integer", 'write "id" as text'),
    "DATA-ID-MISSING": (f.INFO, "a record has an id (evaluation needs it)",
        'give each record a unique "id"'),
    "DATA-TURNS-MISSING": (f.ERROR, "a record has conversation turns",
        'add "conversations": a human and a gpt turn'),
    "DATA-TURN-TYPE": (f.ERROR, "a turn has a role and text",
        'write turns as {"from": "human", "value": "..."}'),
    "DATA-TURN-ROLE": (f.ERROR, "roles are known", 'use "human", "gpt" or "system" as "from"'),
    "DATA-TURN-ORDER": (f.ERROR, "turns alternate, starting with the user",
        "start with human, then gpt, ..."),
    "DATA-ANSWER-MISSING": (f.ERROR, "the last turn is the assistant's",
        "end the record with a gpt turn"),
    "DATA-ANSWER-EMPTY": (f.ERROR, "answers have text", "write the answer or remove the record"),
    "DATA-QUESTION-EMPTY": (f.WARNING, "questions have text", "write what the model is asked"),
    "DATA-TURNS-MANY": (f.INFO,
        "one question per record (NVIDIA's own dataset script keeps two turns)", ONE_EACH),
    "DATA-TEXT-SURROGATE": (f.ERROR, "texts are whole characters",
        "write the text again, as UTF-8"),
    LOST: (f.ERROR, "texts have their letters, not marks of lost ones (U+FFFD)",
        "write the text again, or remove the record"),
    MISREAD: (f.WARNING, "texts are not UTF-8 that was read as another code",
        "write the text again, as UTF-8 (of Excel: CSV UTF-8)"),
    MARKED: (f.WARNING, "texts have letters, not what web pages write for them",
        "write the letter, where it is meant"),
    "DATA-SPECIAL-TOKEN": (f.ERROR, "texts contain no vision or chat control tokens",
        "remove the <|...|> tokens, and the rest of a prompt (USER:, ASSISTANT:) around them"),
    "DATA-REGION-MARK": (f.WARNING, "questions name no regions by <mask> or <region>",
        "draw the regions into the pictures, each with a number, and ask by these"),
    "DATA-TAG-ANSWER": (f.WARNING, "no <video>/<image> in answers (they are trained as words)",
        "remove the tags"),
    "DATA-TAG-COUNT": (f.ERROR, "<video>/<image> tags agree with the media",
        'write one tag per medium, or none; name the medium ("video") where none is named'),
    "DATA-MEDIA-TYPE": (f.ERROR, "media are named by text",
        'write "video" or "image" as a path or a list of paths'),
    "DATA-MEDIA-NONE": (f.INFO, "a record names a medium", 'add "video" or "image"'),
    "DATA-TIMES-UNUSED": (f.WARNING, "a record shows its whole clip (no trainer reads its times)",
        "build_dataset.py cuts the parts of a table with --column start=NAME --column end=NAME; "
        "--convert FILE.py makes its rows of these records"),
    "DATA-VIDEO-FPS": (f.ERROR, "video_fps and the rate of pictures are positive numbers",
        "write it as a number above 0"),
}
# fmt: on

# What is no fault of a record's form: a dataset is checked for it, an evaluation counts such
# answers as wrong.
# fmt: off
ANSWER_CHECKS = {
    "DATA-ANSWER-OPTION": (f.ERROR, "letters that answer are letters of an option",
        "correct the answer or the options"),
    "DATA-ANSWER-UNLISTED": (f.WARNING, "short answers are one of the options",
        "write the letter of the option"),
}
# fmt: on
