"""What an agent is told, once and whole: a walk from labels to a planned launch by the commands
alone."""

import json
import os
import random
import re
import shlex

import pytest
from support import run_script

from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("walk")
    clips.write_split(root / "data", "train", 8, 3)
    clips.write_split(root / "data", "eval", 4, 3)
    asked = clips.questions(clips.Scene.draw(random.Random(3)))
    words = [text for pair in asked.values() for text in pair]
    tiny_omni.build(root / "omni", 3, words)
    source = omni.open_source(root / "omni")
    conversion.convert(source, root / "model", 10**9, force=False, jobs=1)
    return root


def said(done) -> list[str]:
    """The ids of the findings that were printed."""
    return re.findall(r"^(?:error|warning|info): ([A-Z0-9-]+)", done.stdout + done.stderr, re.M)


def following(done) -> list[str]:
    (line,) = re.findall(r"^next: (.*)$", done.stderr, re.M)
    script, *words = shlex.split(line)
    return [os.path.basename(script), *words]


BUILD = "train --engine transformers --tuning lora --train-root data/train --eval-root data/eval"
BUILD += " --model model --set batch_size=4 --set epochs=1 --set nframes=4"


def test_every_next_line_up_to_the_launch_passes_and_nothing_is_said_twice(place):
    line = "data/train --eval data/eval --nframes 4 --model model --facts facts/dataset_facts.json"
    checked = run_script(f"check_dataset.py {line}", cwd=place)
    assert checked.returncode == 0, checked.stderr
    proposed = following(checked)
    assert run_script(*proposed, cwd=place).returncode == 0
    line = f"build_spec.py {BUILD} --dataset-facts facts/dataset_facts.json -o spec.toml --force"
    built = run_script(line, cwd=place)
    assert built.returncode == 0 and "SPEC-STEPS-FEW" in said(built), built.stderr
    told = set(said(built))
    (longest,) = re.findall(r"the longest has (\d+) \(text counted", built.stdout)
    preflight = run_script(*following(built), cwd=place)
    assert preflight.returncode == 0, preflight.stderr
    assert f"at {longest} tokens" in preflight.stdout, "one number for the longest record"
    submit = following(preflight)
    planned = run_script(submit[0], "plan", *submit[2:], cwd=place)
    assert planned.returncode == 0, planned.stderr
    assert f"the longest has {longest}" in planned.stdout
    again = following(planned)
    assert again[:2] == ["launch_job.py", "submit"] and set(submit[2:]) <= set(again)
    for later in (preflight, planned):
        assert not told & set(said(later))
        assert re.search(r"^as build_spec said of spec.toml: .*SPEC-STEPS-FEW", later.stderr, re.M)
        assert len(later.stderr) < 700
    document = json.loads(run_script(submit[0], "plan", *submit[2:], "--json", cwd=place).stdout)
    assert "SPEC-STEPS-FEW" in {one["id"] for one in document["findings"]}, "--json holds all"


def test_an_edited_spec_is_told_in_full(place):
    assert run_script(f"build_spec.py {BUILD} -o edited.toml", cwd=place).returncode == 0
    spec = place / "edited.toml"
    line = "launch_job.py plan --spec edited.toml --platform local --gpu-ids none"
    first = run_script(line, cwd=place)
    spec.write_text(spec.read_text().replace("optm_lr = 0.0001", "optm_lr = 0.1"))
    done = run_script(line, cwd=place)
    assert "as build_spec said" in first.stderr and "as build_spec said" not in done.stderr
    assert set(said(first)) < set(said(done))


def test_the_table_tells_what_a_spec_would_be_opened_for(place):
    done = run_script(f"build_spec.py {BUILD} -o table.toml", cwd=place)
    facts = "rank 16|alpha 32|dropout 0.05|q_proj k_proj|learning rate 0.0001|cosine|keeps 5"
    facts += "|validated on data/eval|4 frames|unknown  lengths of the records: --dataset-facts"
    for fact in facts.split("|"):
        assert fact in done.stdout, fact
    line = "plan --spec table.toml --platform local --gpu-ids none --output out"
    kept = run_script(f"launch_job.py {line}", cwd=place)
    assert kept.returncode == 0, kept.stderr
    assert "Known when it was rendered:" in (place / "out" / "README.md").read_text()
