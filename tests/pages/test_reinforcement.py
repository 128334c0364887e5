"""The page of a reinforcement learning, through the command."""

import json

import grpo_run
from support import run_script

EVIL = "<script>alert(1)</script>"


def test_the_page_has_curves_and_the_groups_of_each_checkpoint(tmp_path):
    run = grpo_run.write(tmp_path / "out" / "20260101120000", text=EVIL)
    with open(next((run / "groups").iterdir()), "a") as file:
        file.write('{"half a line')
    path = tmp_path / "grpo.html"
    done = run_script("select_checkpoint.py", tmp_path / "out", "--html", path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["html"] == str(path)
    text = path.read_text()
    titles = ("Reward", "Groups that teach", "Divergence", "Entropy", "Length", "Time of a step")
    assert all(f"<h3>{title}" in text for title in titles)
    assert text.count("<polyline") == 12  # five of them the parts of a step
    for step, reward in ((20, 0.561), (40, 0.678), (60, 0.795)):
        assert f"Step {step}: mean reward {reward:.3f}" in text
    assert text.count("Earned most") == text.count("Earned least") == 3
    assert "It could be A or B." in text and EVIL not in text and "&lt;script&gt;" in text


def test_numbers_that_the_curves_leave_out_are_said(tmp_path):
    run = grpo_run.write(tmp_path / "out" / "20260101120000")
    *lines, last = (run / "metrics.jsonl").read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"train/kl": float("nan")}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "grpo.html"
    assert run_script("select_checkpoint.py", tmp_path / "out", "--html", path).returncode == 0
    assert "train/kl is NaN or infinite in 1 of 60 values, the first at step 60" in path.read_text()


def test_a_run_without_rewards_says_so(tmp_path):
    (tmp_path / "out/20260101120000/safetensors/step_1").mkdir(parents=True)
    done = run_script("select_checkpoint.py", tmp_path / "out", "--html", tmp_path / "x.html")
    assert done.returncode == 2 and "CKPT-NO-REWARDS" in done.stderr
    assert not (tmp_path / "x.html").exists()
