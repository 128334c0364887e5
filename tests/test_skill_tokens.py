"""What an agent must read, in o200k tokens: each page, and each way from a request to a launch."""

import pytest
from support import ROOT, tokens

REFERENCES = sorted((ROOT / "references").glob("*.md"))
SEARCHED = {"cosmos-reason-errors.md"}  # generated, and searched rather than read
# Route -> pages to read before the launch, and the most they may cost.
ROUTES = {
    "LoRA launch on Docker": (["SKILL.md"], 1700),
    "a launch beyond the examples": (["SKILL.md", "references/cosmos-reason-launch.md"], 3600),
    "evaluate": (["SKILL.md", "references/cosmos-reason-evaluate.md"], 3000),
    "quantize": (["SKILL.md"], 3000),
    "AutoML": (["SKILL.md", "references/cosmos-reason-automl.md"], 4000),
}


def cost(name) -> int:
    return tokens((ROOT / name).read_text(encoding="utf-8"))


def test_the_counter_counts_as_published():
    assert (
        tokens("antidisestablishmentarianism") == 6 and tokens("お誕生日おめでとう") == 8
    )  # OpenAI's cookbook


def test_body_is_short():
    body = (ROOT / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)[2]
    assert tokens(body) < 1500


@pytest.mark.parametrize(
    "page", [path for path in REFERENCES if path.name not in SEARCHED], ids=lambda path: path.name
)
def test_references_are_short(page):
    assert cost(page) < 2000


def test_the_table_of_other_tools_is_shorter_still():
    assert cost("references/from-other-tools.md") <= 1500


@pytest.mark.parametrize("route", ROUTES)
def test_minimum_reading(route):
    pages, most = ROUTES[route]
    costs = {page: cost(page) for page in pages}
    assert sum(costs.values()) <= most, costs
