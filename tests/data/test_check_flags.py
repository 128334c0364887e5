"""A dataset is checked for given frames and length in one step, without a spec."""

import json
import shlex
from pathlib import Path

import pytest
from clip_files import check, record, write_clip, write_dataset, write_spec
from support import run_script


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def long_clips(tmp_path_factory):
    """Four clips of 12 s."""
    root = write_dataset(
        tmp_path_factory.mktemp("data") / "d", [record(n, video_fps=8) for n in range(4)]
    )
    for number in range(4):
        write_clip(root / "clips" / f"{number}.mp4", frames=96, tint=number)
    return root


@pytest.mark.parametrize(
    ("flags", "key", "most", "fix"),
    [
        (("--fps", 4), "max_frames", 48, "--set custom.vision.max_frames="),
        (("--nframes", 32), "nframes", 32, "replace --nframes 32 with --nframes "),
    ],
)
def test_what_is_too_long_gets_fewer_frames_and_keeps_the_length(long_clips, flags, key, most, fix):
    asked = (long_clips, *flags, "--max-length", 2048, "--model", "cosmos3-nano")
    result, findings = check(*asked, expect=1)
    assert result["train"]["prediction"]["limit"] == 2048
    assert result["train"]["prediction"]["frames"]["max"] == most
    assert "steps_per_epoch" not in result["train"]["prediction"], "no batch is known"
    found = findings["DATA-TOKENS"]
    assert found["message"].endswith("(4 of 4 records)")
    assert "policy.model_max_length=4096" in found["message"] or key == "nframes"
    assert found["fix"].startswith(fix)
    frames = found["fix"].removeprefix(fix)
    assert 4 <= int(frames) < most
    # two frames more are too many
    sampling = {"fps": 4.0, "max_frames": int(frames)} if key == "max_frames" else {}
    for more, expected in ((0, 0), (2, 1)):
        sampling[key] = int(frames) + more
        path = write_spec(
            long_clips.parent / "spec.toml",
            custom__vision=dict(sampling),
            policy__model_max_length=2048,
        )
        assert ("DATA-TOKENS" in check(long_clips, "--spec", path, expect=expected)[1]) == expected


def test_flags_come_before_the_values_of_a_spec(long_clips, tmp_path):
    path = write_spec(tmp_path / "spec.toml", policy__model_max_length=256)
    result, _ = check(long_clips, "--spec", path, "--max-length", 9000, "--nframes", 4)
    assert result["train"]["prediction"]["limit"] == 9000
    assert result["train"]["prediction"]["frames"]["max"] == 4
    assert "steps_per_epoch" in result["train"]["prediction"]
    assert set(check(long_clips, "--nframes", 4, "--fps", 2, expect=2)[1]) == {"USAGE"}


def test_the_spec_that_is_proposed_has_what_was_asked(long_clips):
    done = run_script("check_dataset.py", long_clips, "--fps", 2, "--max-length", 8192, "--json")
    script, *words = shlex.split(json.loads(done.stdout)["next"])
    built = long_clips.parent / "built.toml"
    assert run_script(Path(script).name, *words[:-1], built, "--engine", "tao").returncode == 0
    assert not check(long_clips, "--spec", built)[1]
    text = built.read_text()
    assert "fps = 2" in text and "model_max_length = 8192" in text and "nframes" not in text


@pytest.mark.parametrize(
    ("flags", "frames"),
    [
        ("--engine transformers --profile tao-default", 8),
        ("--engine cosmos-rl --profile tao-default --fps 1 --max-length 9000", 12),
        ("--engine tao --profile production --nframes 6", 6),
        ("--engine transformers", None),
    ],
)
def test_the_next_command_keeps_what_was_named_and_makes_the_spec_that_was_predicted(
    long_clips, tmp_path, flags, frames
):
    site = tmp_path / "site.yaml"
    site.write_text("schema_version: 1\nname: here\nplatform: slurm\n")
    asked = (long_clips, *flags.split(), "--site", site, "--json")
    done = json.loads(run_script("check_dataset.py", *asked).stdout)
    script, *words = shlex.split(done["next"])
    named = [word for word in flags.split() if word in words]
    assert named[:4] == flags.split()[:4] and str(site) in words
    assert ("small-dataset" in words) == (frames is None)
    built = tmp_path / "built.toml"
    assert run_script(Path(script).name, *words[:-1], built).returncode == 0
    if frames is None:
        return
    told = check(long_clips, "--spec", built)[0]["train"]["prediction"]
    predicted = done["result"]["train"]["prediction"]
    assert predicted["frames"]["max"] == told["frames"]["max"] == frames
    assert [predicted[key] for key in ("limit", "tokens")] == [
        told[key] for key in ("limit", "tokens")
    ]


def test_a_profile_that_there_is_not_names_those_there_are(long_clips):
    found = check(long_clips, "--profile", "smal-dataset", expect=2)[1]["SPEC-PROFILE"]
    assert "small-dataset" in found["message"]


def test_one_dataset_is_called_by_its_name_and_two_by_what_they_are_for(long_clips, tmp_path):
    assert run_script("check_dataset.py", long_clips).stdout.startswith(f"{long_clips}: 4 records")
    other = write_dataset(tmp_path / "e", [record(number, id=f"e{number}") for number in range(2)])
    said = run_script("check_dataset.py", long_clips, "--eval", other).stdout
    assert said.startswith("train: 4 records") and "\neval: 2 records" in said


@pytest.mark.parametrize(("name", "is_trained"), [("train", True), ("eval", False)])
def test_a_training_on_held_out_data_is_not_proposed(tmp_path, name, is_trained):
    root = write_dataset(tmp_path / name, [record(n, video_fps=8) for n in range(4)])
    for number in range(4):
        write_clip(root / "clips" / f"{number}.mp4", frames=16, tint=number)
    flags = ("--nframes", 4, "--model", "cosmos3-nano", "--json")
    proposed = json.loads(run_script("check_dataset.py", root, *flags).stdout).get("next", "")
    assert ("--train-root" in proposed) == is_trained
    assert (" nframes=4" in proposed and "Cosmos3-Nano" in proposed) == is_trained


def test_nothing_is_predicted_before_frames_are_known(long_clips):
    """A model alone counts the texts; how many frames are sampled, and so how long records are, is
    not known."""
    result, _ = check(long_clips, "--model", "cosmos3-nano")
    assert "prediction" not in result["train"] and result["train"]["text_tokens"]["max"]
    done = run_script("check_dataset.py", long_clips, "--max-length", 64, "--json")
    (told,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, told["id"], told["where"]) == (2, "USAGE", "--max-length")
