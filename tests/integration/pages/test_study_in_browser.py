"""The page of a study in a real headless Chromium."""

import pytest
import study_world

from cosmos_reason.tuning import page, study

pytestmark = pytest.mark.integration

# Pairs of marks of one chart that lie on each other.
OVERLAPS = """[...document.querySelectorAll('.plot')].flatMap(plot => {
  const marks = [...plot.querySelectorAll('.x, .y, .over, .at')];
  const boxes = marks.map(one => one.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).map((b, j) => [a, b, i, i + 1 + j]))
    .filter(([a, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2
      && b.top < a.bottom - 2)
    .map(([a, b, i, j]) => marks[i].textContent + ' on ' + marks[j].textContent);
})"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_offline_without_errors_and_fits_its_width(browser, tmp_path, width, scheme):
    made = study_world.new_study(tmp_path, "lr=1e-6..1e-4", "batch_size=[4,8,16]")
    for number in range(8):
        study_world.add(made, 0.0254 + 0.1 * number)
    study_world.add(made, state=study.FAILED, reason="<b>no</b>" + "/deep" * 200)
    browser.opens_offline(page.write(made, made.trials()), width, scheme)
    assert browser.ask(OVERLAPS) == []
    # Every label is inside what scrolls with its chart.
    cut = "[...document.querySelectorAll('.parallel .at')].filter(one => "
    cut += "one.getBoundingClientRect().right > one.closest('.wide').getBoundingClientRect().left"
    cut += " + one.closest('.wide').scrollWidth).length"
    assert browser.ask(cut) == 0
