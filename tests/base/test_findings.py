"""Findings as people read them: a line each, alike ones together, no fix lost."""

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix


def test_a_short_fix_stands_on_the_line_of_its_finding():
    long_fix = "scripts/check_dataset.py " + "x" * 60
    text = f.as_text(
        [
            f.error("A-B", "key", "got 1, expected 2", Fix(changes={"key": 2})),
            f.info("C-D", "w", "m", long_fix),
        ]
    )
    assert text.splitlines() == [
        "error: A-B key: got 1, expected 2  fix: --set key=2",
        "info: C-D w: m",
        f"  fix: {long_fix}",
    ]


def test_findings_that_differ_in_their_place_are_one_line_with_all_their_fixes():
    found = [
        f.error("SPEC-KEY-MISSING", key, "got no value", Fix(changes={key: 1})) for key in "abcdefg"
    ]
    (line, fix) = f.as_text(found).splitlines()
    assert line == "error: SPEC-KEY-MISSING x 7: a, b, c, d, e, f, g: got no value"
    assert fix == "  fix: " + " ".join(f"--set {key}=1" for key in "abcdefg")


def test_findings_that_say_something_else_stay_apart():
    found = [
        f.error("X-Y", "a", "got 1"),
        f.error("X-Y", "b", "got 2"),
        f.warning("X-Y", "c", "got 1"),
        f.error("X-Y", "d", "got 1", "another command"),
    ]
    assert len(f.as_text(found).splitlines()) == 4


def test_many_places_are_counted_and_many_lines_too():
    alike = [f.error("X-Y", f"file{number}", "is torn") for number in range(25)]
    (line,) = f.as_text(alike).splitlines()
    assert line.startswith("error: X-Y x 25: file0, ") and "... and 15 more: is torn" in line
    different = [f.error("X-Y", "w", f"got {number}") for number in range(30)]
    assert f.as_text([*different, *alike]).splitlines()[-1] == (
        "... and 35 more (--json lists all of them)"
    )
