"""`diagnose_log.py LOG --spec SPEC`: fixes that fit the spec of the failed run, and work."""

import json
import shlex
import tomllib

import pytest
from support import run_script

NO_STEPS = "AttributeError: 'NoneType' object has no attribute 'state_dict'"
CUT = "ValueError: Video features and video tokens do not match: tokens: 1035, features 1152"
# What people write: none of the keys that their trainer has a default for.
SPEC = """
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = {length}
[policy.parallelism]
dp_shard_size = 8
[train]
train_batch_per_replica = 32
epoch = 3
[train.train_policy]
type = "sft"
mini_batch = 2
dataloader_drop_last = true
[custom.train_dataset]
annotation_path = "{root}/annotations.json"
media_path = "{root}"
[custom.vision]
{frames}
"""


VALIDATED = """
[validation]
enable = true
freq = 50
[custom.val_dataset]
annotation_path = "{root}/annotations.json"
media_path = "{root}"
"""


@pytest.fixture
def here(tmp_path):
    write_records(tmp_path, 120)
    return tmp_path


def write_records(folder, count):
    turns = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "This."}]
    records = [{"id": str(n), "video": "a.mp4", "conversations": turns} for n in range(count)]
    (folder / "annotations.json").write_text(json.dumps(records))


def diagnosed(here, line, frames="nframes = 8", length=40960, spec="run.toml", flags=()):
    """The one finding of a log, with a spec in the folder of the log unless another is named."""
    (here / spec).write_text(SPEC.format(length=length, root=here, frames=frames))
    (here / "run.log").write_text(line + "\n")
    done = run_script("diagnose_log.py", "run.log", "--json", *flags, cwd=here)
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    return finding


def mended(here, fix) -> dict:
    """The spec that a fix makes, when it works."""
    script, *words = shlex.split(fix)
    done = run_script(script.rpartition("/")[2], *words, cwd=here)
    assert done.returncode == 0, done.stderr
    return tomllib.loads((here / words[words.index("-o") + 1]).read_text())


def test_a_run_without_steps_is_told_the_sum_and_gets_a_batch_that_fits(here):
    finding = diagnosed(here, NO_STEPS)
    assert finding["id"] == "LOG-NO-STEPS"
    assert "120 records / 8 ranks = 15 < 32 (train_batch_per_replica)" in finding["message"]
    assert "dataloader_drop_last = true" in finding["message"]
    train = mended(here, finding["fix"])["train"]
    assert train["train_batch_per_replica"] == 15
    assert train["train_policy"]["mini_batch"] == 1 and train["epoch"] == 3
    assert train["ckpt"]["save_freq"] == 1, "the three steps save"


def test_the_mended_run_validates_and_a_mini_batch_that_fits_stays(here):
    finding = diagnosed(here, NO_STEPS, "nframes = 8" + VALIDATED.format(root=here))
    assert mended(here, finding["fix"])["validation"]["freq"] == 1
    spec = (here / "run.toml").read_text().replace("mini_batch = 2", "mini_batch = 1")
    (here / "one.toml").write_text(spec)
    done = run_script("diagnose_log.py", "run.log", "--spec", "one.toml", "--json", cwd=here)
    assert "mini_batch" not in json.loads(done.stdout)["findings"][0]["fix"]


def test_without_its_records_the_usual_batch_is_proposed(here):
    (here / "annotations.json").unlink()
    finding = diagnosed(here, NO_STEPS)
    assert "ranks" not in finding["message"].partition("The log says")[2]
    assert "train_batch_per_replica=1 " in finding["fix"]


@pytest.mark.parametrize(
    ("frames", "length", "changes", "kept"),
    [
        ("nframes = 16", 40960, {"nframes": 8}, 40960),
        ("nframes = 8", 40960, {"nframes": 4}, 40960),
        ("nframes = 8", 128000, {"nframes": 4}, 128000),
        ("fps = 2", 40960, {"fps": 2, "max_frames": 8}, 40960),
        ("fps = 2\nmax_frames = 24", 40960, {"fps": 2, "max_frames": 8}, 40960),
        ("fps = 2\nmax_frames = 8", 40960, {"fps": 2, "max_frames": 4}, 40960),
        ("nframes = 8", 4096, {"nframes": 8}, 40960),
    ],
)
def test_a_cut_sample_gets_a_longer_length_or_else_fewer_frames(
    here, frames, length, changes, kept
):
    write_records(here, 6000)  # steps enough for its spec
    finding = diagnosed(here, CUT, frames, length)
    assert finding["id"] == "LOG-VISION-TOKENS-CUT"
    spec = mended(here, finding["fix"])
    assert spec["custom"]["vision"] == changes
    assert spec["policy"]["model_max_length"] == kept


def test_a_spec_elsewhere_is_named_and_two_beside_the_log_are_not_guessed(here):
    other = here / "specs"
    other.mkdir()
    finding = diagnosed(here, NO_STEPS, spec="specs/a.toml", flags=["--spec", "specs/a.toml"])
    assert "--spec specs/a.toml" in finding["fix"] and "= 15 < 32" in finding["message"]
    (here / "one.toml").write_text("")
    assert "--spec spec.toml" in diagnosed(here, NO_STEPS, spec="two.toml")["fix"]


def test_a_spec_that_cannot_be_read_is_wrong_usage(here):
    (here / "run.log").write_text(NO_STEPS)
    done = run_script("diagnose_log.py", "run.log", "--spec", "none.toml", cwd=here)
    assert done.returncode == 2 and "none.toml" in done.stderr and "Traceback" not in done.stderr
