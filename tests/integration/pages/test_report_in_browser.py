"""The report in a real headless Chromium:
it works offline, in both widths, without script errors, with a keyboard."""

import base64
import json
import random
from pathlib import Path

import pytest
from support import run_script

from cosmos_reason.demo import clips

pytestmark = pytest.mark.integration

EVIL = "<script>alert(1)</script><img src=http://192.0.2.1/x onerror=alert(2)>"
RTL = "אינני יודע."
CHOICES = {"colour": "ABCD", "light": ("yes", "no"), "direction": ("left", "right", "up", "down")}


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A page made by the real command from real clips, with hostile answers among them."""
    folder = tmp_path_factory.mktemp("report")
    clips.write_split(folder, "eval", 40, seed=5)
    annotations = json.loads((folder / "eval/annotations.json").read_text())
    rng = random.Random(5)
    for name, skill in (("base", 0.1), ("tuned", 0.8)):
        rows = []
        for record in annotations:
            question, gt = (turn["value"] for turn in record["conversations"])
            guess = rng.choice(CHOICES[record["id"].rsplit("-", 1)[1]])
            row = {"video_id": record["id"], "question": question, "gt": gt}
            rows.append(row | {"response": gt if rng.random() < skill else guess})
        rows[3]["response"] = EVIL
        rows[5]["response"] = RTL
        rows[4] |= {"response": None, "error": "the clip does not decode"}
        (folder / name).mkdir()
        (folder / name / "results.json").write_text(json.dumps(rows))
    record = {"model": "out/20260101120000/safetensors/step_900", "annotations": EVIL}
    (folder / "tuned/evaluation.json").write_text(json.dumps(record))
    losses = [{"step": n, "train/loss": 2.4 / n**0.5} for n in range(1, 400)]
    losses += [{"step": n, "val/avg_loss": 2.6 / n**0.5} for n in range(50, 400, 50)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses))
    done = run_script(
        "analyze_gaps.py", "--results-dir", folder / "tuned", "--baseline", folder / "base",
        "--training-metrics", folder / "metrics.jsonl", "--gaps-parquet", folder / "gaps.parquet",
        "--kpi-ann-path", folder / "eval/annotations.json", "--kpi-media-path", folder / "eval",
        "--html", folder / "report.html",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1280, "light", marks=pytest.mark.promise),
        (1280, "dark"),
        (390, "light"),
        (390, "dark"),
    ],
)
def test_it_opens_offline_without_errors_and_fits_its_width(browser, report, width, scheme):
    browser.opens_offline(report, width, scheme)
    browser.screenshot(report.with_name(f"{width}-{scheme}.png"))
    assert browser.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert "answered right" in browser.ask("document.querySelector('h1').innerText")


def test_markup_in_answers_stays_text(browser, report):
    browser.problems.clear()
    browser.open(report, 1280)
    assert browser.ask("document.scripts.length") == 1
    assert EVIL in browser.ask("document.body.innerText")
    assert not browser.problems


def test_an_answer_reads_in_its_own_direction(browser, report):
    """The full stop of a sentence in Hebrew stands at its left end."""
    browser.open(report, 1280)
    places = f"""(() => {{
      const text = [...document.querySelectorAll('dd.got')].map(one => one.firstChild)
        .find(one => one.data === {json.dumps(RTL)});
      const left = at => {{
        const range = document.createRange();
        range.setStart(text, at);
        range.setEnd(text, at + 1);
        return range.getBoundingClientRect().left;
      }};
      return [left(text.length - 1), left(0)];
    }})()"""
    stop, first = browser.ask(places)
    assert stop < first


@pytest.mark.parametrize("width", [1280, 390])
def test_the_verdict_per_type_has_room(browser, report, width):
    browser.open(report, width)
    widths = "[...document.querySelectorAll('.change')].map(one => one.clientWidth)"
    assert min(browser.ask(widths)) >= 120
    inside = "[...document.querySelectorAll('.types')].every(one => one.scrollWidth <= "
    assert browser.ask(inside + "one.parentElement.clientWidth)")


def test_filter_sort_and_reset(browser, report):
    browser.open(report, 1280)
    total = browser.ask("document.querySelectorAll('.card').length")
    shown = (
        "[...document.querySelectorAll('.card')].filter(c => !c.hidden && c.offsetParent).length"
    )
    assert browser.ask(shown) == total > 10
    set_ = """(name, value) => {
        const field = document.forms[0].elements[name];
        field.value = value;
        field.dispatchEvent(new Event('input', {bubbles: true}));
    }"""
    browser.ask(f"({set_})('error', 'unparseable')")
    assert browser.ask(shown) == 2
    assert browser.ask("document.querySelector('#count').innerText") == f"2 of {total} shown"
    browser.ask(f"({set_})('error', ''); ({set_})('words', 'white light')")
    assert 0 < browser.ask(shown) < total
    assert browser.ask(
        "[...document.querySelectorAll('.card:not([hidden])')]"
        ".every(c => /white light/.test(c.innerText))"
    )
    browser.ask("document.forms[0].reset(); new Promise(done => setTimeout(done, 50))")
    assert browser.ask(shown) == total
    browser.ask(f"({set_})('order', 'clip')")
    counts = browser.ask("[...document.querySelectorAll('.card')].map(c => +c.dataset.clip)")
    assert counts == sorted(counts, reverse=True)


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(browser, report):
    browser.open(report, 1280)
    reached = []
    while len(reached) < 40:
        browser.press("Tab", 9)
        name = browser.ask("document.activeElement.name || document.activeElement.className")
        if browser.ask("document.activeElement === document.body"):
            break
        reached.append(name)
        assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") != "none", name
    assert reached[0] == "skip"
    assert {"words", "type", "error", "status", "order"} <= set(reached)


CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parse = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const speaks = (e) => e.offsetParent && !e.closest('script, option, .sr, .skip')
    && [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const ratio = (e) => {
    const both = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(...both) + .05) / (Math.min(...both) + .05);
  };
  return [...document.querySelectorAll('body *')].filter((e) => speaks(e) && ratio(e) < 4.5)
    .map((e) => `${e.tagName}.${e.className} ${ratio(e).toFixed(2)} ${e.innerText.slice(0, 30)}`);
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_is_at_least_4_5(browser, report, scheme):
    browser.open(report, 1280, scheme)
    assert browser.ask(CONTRAST) == []


def test_labels_headings_and_alternatives(browser, report):
    browser.open(report, 1280)
    assert browser.ask(
        "[...document.querySelectorAll('input, select')].every(e => e.labels.length === 1)"
    )
    assert browser.ask("document.querySelectorAll('h1').length") == 1
    assert browser.ask("[...document.images].every(i => i.alt.length > 5)")
    assert browser.ask(
        "[...document.querySelectorAll('table')]"
        ".every(t => t.caption && t.querySelector('th[scope]'))"
    )
    assert browser.ask("document.documentElement.lang") == "en"


def test_it_prints_light_and_without_controls(browser, report):
    browser.open(report, 800, "dark", media="print")
    browser.screenshot(report.with_name("print.png"))
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("document.querySelector('.controls').offsetParent") is None
    assert len(base64.b64decode(browser.call("Page.printToPDF")["data"])) > 10_000
