"""A launch that is rendered for another Docker host, started there by its run.sh, and adopted."""

import pytest
from docker_engine import IMAGE
from elsewhere_world import World, awaited

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path, dockerd):
    return World(tmp_path)


def started(world, *words, **more):
    """The folder of a run, once the container has ended."""
    world.render("docker", "--network", "host", *words, image=IMAGE, **more)
    world.start("bash", str(world.out / "run.sh"))
    (folder,) = (world.there / "jobs").iterdir()
    awaited(folder / "run.exit")
    return folder


@pytest.mark.promise
def test_a_training_is_started_by_run_sh_and_goes_on_here(world, dockerd):
    folder = started(world)
    assert dockerd.inspect(folder.name)["State"]["ExitCode"] == 0
    record = world.adopted(folder)
    assert (record["state"], record["reason"]) == ("COMPLETE", ""), record
    assert record["job_id"] == folder.name and record["evidence"]["last_step"] == 2
    world.goes_on(record)


def test_a_container_that_is_killed_is_no_success(world, dockerd):
    text = (world.here / "train.toml").read_text()
    assert "max_num_steps = 2" in text
    text = text.replace("max_num_steps = 2", "max_num_steps = 20000")
    (world.here / "train.toml").write_text(text.replace("epoch = 1\n", "epoch = 20000\n"))
    world.render("docker", "--network", "host", image=IMAGE)
    world.start("bash", str(world.out / "run.sh"))
    (folder,) = (world.there / "jobs").iterdir()
    awaited(folder / "metrics.jsonl")
    dockerd.docker("kill", folder.name)
    assert awaited(folder / "run.exit")[0] == "137"
    record = world.adopted(folder)
    assert record["state"] == "ERROR" and record["exit_code"] == 137


def test_an_evaluation_is_scored_here(world):
    folder = started(world, action="evaluate", spec="eval.toml")
    record = world.adopted(folder)
    assert record["state"] == "COMPLETE", record
    assert record["evidence"] == {"rows": 9, "questions": 9, "failed": 0}
    results = record["outputs"]["results_dir"]
    scored = world.run(results, script="score_predictions.py")["result"]
    assert scored
