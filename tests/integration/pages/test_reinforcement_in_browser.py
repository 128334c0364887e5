"""The page of a reinforcement learning in a real headless Chromium."""

import grpo_run
import pytest
from support import run_script

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_offline_without_errors_and_fits_its_width(browser, tmp_path, width, scheme):
    grpo_run.write(tmp_path / "out" / "20260101120000")
    path = tmp_path / "grpo.html"
    done = run_script("select_checkpoint.py", tmp_path / "out", "--html", path)
    assert done.returncode == 0, done.stderr
    browser.opens_offline(path, width, scheme)
    titles = "[...document.querySelectorAll('figure h3')].map(one => one.textContent)"
    assert browser.ask(titles)[0] == "Reward" and len(browser.ask(titles)) == 8
    # A title is above what it names, and no mark of an axis lies on it.
    clear = "[...document.querySelectorAll('figure')].every(one => one.querySelector('h3')"
    clear += ".getBoundingClientRect().bottom <= Math.min(...[...one.querySelectorAll('.y')]"
    clear += ".map(mark => mark.getBoundingClientRect().top)))"
    assert browser.ask(clear)
