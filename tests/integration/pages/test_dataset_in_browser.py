"""The page of a dataset in a real headless Chromium: offline, without errors, within its width."""

import json

import pytest
from support import run_script

from cosmos_reason.demo import clips

pytestmark = pytest.mark.integration

EVIL = "<script>alert(1)</script><img src=http://192.0.2.1/x onerror=alert(2)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of every record, with a hostile one that contradicts another."""
    folder = tmp_path_factory.mktemp("dataset")
    clips.write_split(folder, "train", 8, seed=5)
    annotations = folder / "train" / "annotations.json"
    records = json.loads(annotations.read_text())
    first = records[0]["conversations"]
    said = [first[0], first[1] | {"value": EVIL}]
    annotations.write_text(json.dumps([*records, records[0] | {"id": EVIL, "conversations": said}]))
    words = (folder / "train", "--html", folder / "page.html", "--html-records", 0, "--json")
    done = run_script("check_dataset.py", *words)
    assert (folder / "page.html").is_file(), done.stdout
    return folder / "page.html", len(records) + 1


@pytest.mark.parametrize("width", [1280, 390])
def test_it_shows_every_record_offline_and_fits_its_width(browser, page, width):
    path, count = page
    browser.opens_offline(path, width)
    pictures = "[...document.images].filter(i => i.complete && i.naturalWidth > 0).length"
    assert browser.ask(pictures) == count
    assert browser.ask("document.scripts.length") == 0
    table = "document.querySelector('.found')"
    assert browser.ask(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    whole = "[...document.querySelectorAll('.found th code')].every("
    whole += "one => one.getClientRects().length <= one.textContent.split('-').length)"
    assert browser.ask(whole)  # an id breaks at its hyphens alone
    captions = "[...document.querySelectorAll('caption')].map(c => c.innerText)"
    assert "One question about one clip, two answers" in browser.ask(captions)
