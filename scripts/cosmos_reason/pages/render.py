"""One way to make a page: a template beside this file, the style that all pages share, and the
filters they use."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import texts
from cosmos_reason.spec.document import last_part

TEMPLATES = Path(__file__).parent
LONGEST_TEXT = 1200  # characters
TYPE_NAMES = {
    "mcq": "Multiple choice",
    "yes_no": "Yes or no",
    "direction": "Direction",
    "label": "Label",
    "number": "Number",
    "temporal": "Span of time",
    "box": "Box",
    "ordinal": "Grade",
    "events": "Events",
    "spans": "Spans of time",
    "boxes": "Boxes",
    "points": "Points",
    "trajectories": "Trajectories",
    "box3d": "Boxes in space",
    "text": "Free text",
}


def render(template: str, **values: object) -> str:
    """Return the HTML of a template in this folder. A value that the template names and nobody gave
    is an error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["pct"] = "{:.1%}".format
    environment.filters["count"] = "{:,}".format
    environment.filters["clip"] = shortened
    environment.filters["leaf"] = last_part
    environment.filters["zip"] = zip
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, type_names=TYPE_NAMES, **values)


def shortened(text: str | None, limit: int = LONGEST_TEXT) -> str | None:
    """Return the beginning of a text, when there is one, and how long it is."""
    return None if text is None else texts.shortened(text, limit)
