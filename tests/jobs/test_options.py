"""The options of a launch: what is said on a command line is kept by the record and said again."""

import shlex

import launch_job

from cosmos_reason.jobs import options
from cosmos_reason.jobs.options import Options

SAID = shlex.split(
    "--nodes 2 --gpu-ids 0,1 --entry-script image --image mine:1 --image-version 7.1.0 "
    "--docker-host unix:///s --network host --env A --env B --endpoint http://host:8000/v1 "
    "--served-model m --partition p --account a --qos q --time-limit 60 --gres gpu:h100 "
    "--exclusive --requeue --module x --module y --cpus 8 --memory 64G --volume claim:/mnt "
    "--namespace team --pull-secret ngc --node-selector k=v --toleration k=v:NoSchedule "
    "--label a=b --gpu-resource x.y/z"
)


def parsed(words):
    args = launch_job.parser().parse_args(
        ["plan", "--spec", "s.toml", "--platform", "slurm", *words]
    )
    return Options(**{name: getattr(args, name) for name in options.FLAGGED})


def test_what_is_said_is_said_again_word_for_word():
    asked = parsed(SAID)
    unsaid = options.FLAGGED.keys() - asked.given().keys()
    assert unsaid == {"checkpoints"}, "which excludes a server"
    assert parsed(options.words(asked.given())) == asked
    assert parsed(options.words(parsed(["--gpu-ids", "none"]).given())).gpu_ids == []


def test_a_retry_asks_for_what_the_record_keeps():
    """What the record has elsewhere (image, GPUs, nodes) a retry takes from there."""
    asked = parsed(SAID)
    again = Options(**options.of_record(asked.record()))
    elsewhere = {"nodes", "gpu_ids", "image"}
    for name, value in asked.given().items():
        assert getattr(again, name) == (None if name in elsewhere else value), name
    assert again.kubernetes == asked.kubernetes
