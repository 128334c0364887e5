"""What a partition has for a job, and what the environment says in the place of flags."""

import os
import subprocess
import sys

import pytest
from launch_site import Site
from slurm_answers import ROW, Cluster

from cosmos_reason.jobs import launch, options
from cosmos_reason.jobs.platforms.preflight import of_options
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.jobs.platforms.slurm import partitions, preflight
from cosmos_reason.preflight import Preflight, PreflightOptions
from cosmos_reason.remote.machine import Answer

TWO_SIZES = f"""{ROW.replace("|64|", "|32|")}
gpu*|up|4:00:00|1|(null)|idle|128|n/a
debug|up|1:00:00|2|gpu:2|idle|8|1:00
long|up|infinite|2|gpu:2|idle|8|1:00:00"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    for known in options.FLAGGED.values():
        for name in known["variables"]:
            monkeypatch.delenv(name, raising=False)
    Cluster(monkeypatch, sinfo=Answer(0, TWO_SIZES))
    return Site(tmp_path, monkeypatch)


def planned(site, **fields):
    return launch.plan(site.request(platform="slurm", **fields))


def errors(found):
    return [(one.id, one.fix.flags) for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("fields", "id", "fix"),
    [
        ({"cpus": 33}, "PRE-SLURM-CPUS", {"--cpus": 32}),
        ({"cpus": 129, "gpu_ids": []}, "PRE-SLURM-CPUS", {"--cpus": 128}),
    ],
)
def test_what_no_node_has_and_slurm_would_wait_for_is_refused(site, fields, id, fix):
    job, found = planned(site, **fields)
    assert job is None and errors(found) == [(id, fix)]


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 32},
        {"cpus": 128, "gpu_ids": []},
        {"memory": "0"},
        {"memory": "9999G"},  # sbatch refuses it at once, in clear words
        {"partition": "nope"},  # so srun does when it looks for the paths
        {"partition": "debug,gpu"},
    ],
)
def test_what_a_node_has_or_slurm_refuses_itself_is_taken(site, fields):
    job, found = planned(site, **fields)
    assert job and not errors(found)


def test_the_cpus_that_are_proposed_are_there(site):
    _, found = planned(site, partition="debug")
    (told,) = [one for one in found if one.id == "JOB-SLURM-CPUS"]
    assert told.fix.flags == {"--cpus": 8}
    job, _ = planned(site, partition="debug", cpus=8)
    assert job


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "limit", "seconds", "told"),
    [
        ("debug", None, 15, {"--time-limit": 60}),
        ("debug", "60", 300, None),
        ("long", None, 300, "--time-limit D-HH:MM:SS"),
        ("gpu", None, 300, None),
    ],
)
def test_the_time_of_a_job_that_names_none(site, partition, limit, seconds, told):
    job, found = planned(site, partition=partition, time_limit=limit)
    assert f"--signal=USR1@{seconds}" in job.command
    warned = [one for one in found if one.id == "PRE-SLURM-DEFAULT-TIME"]
    assert [one.fix.flags or str(one.fix) for one in warned] == ([told] if told else [])
    asked = Preflight("slurm", PreflightOptions(partition=partition, time_limit=limit), 0, "tao")
    checked = preflight.check_partition(partitions.parse_partitions(TWO_SIZES), asked)
    assert [one.id for one in checked] == [one.id for one in warned]


# -- variables -----------------------------------------------------------------------------------


def test_variables_of_sbatch_are_what_no_flag_says(site, monkeypatch):
    said = {"PARTITION": "debug", "TIMELIMIT": "20", "ACCOUNT": "team", "QOS": "high"}
    for name, value in said.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    monkeypatch.setenv("SLURM_PARTITION", "gpu")
    job, _ = planned(site)
    flags = {"--partition=debug", "--time=20", "--account=team", "--qos=high"}
    assert flags | {"--signal=USR1@300"} < set(job.command)
    job, _ = planned(site, partition="gpu", time_limit="4:00:00", account="mine", qos="low")
    assert {"--partition=gpu", "--time=4:00:00", "--account=mine", "--qos=low"} < set(job.command)
    monkeypatch.setenv("SBATCH_TIMELIMIT", "61")
    assert errors(planned(site)[1]) == [("PRE-SLURM-TIME", {"--time-limit": 60})]
    asked = of_options(PreflightOptions(), "slurm", "tao")
    checked = [*preflight.check_partition(partitions.parse_partitions(TWO_SIZES), asked)]
    assert [one.id for one in checked] == ["PRE-SLURM-TIME"]
    monkeypatch.setenv("SBATCH_QOS", "-x")
    assert errors(planned(site)[1]) == [("JOB-SLURM-WORD", {})]


def test_other_variables_of_sbatch_are_not_handed_on(site, monkeypatch):
    monkeypatch.setenv("SBATCH_WAIT", "1")
    monkeypatch.setenv("SBATCH_ARRAY_INX", "0-3")
    _, found = planned(site)
    (told,) = [one for one in found if one.id == "JOB-SLURM-VARIABLE"]
    assert (told.severity, told.where) == ("warning", "SBATCH_ARRAY_INX, SBATCH_WAIT")
    program = site.root / "sbatch"
    show = "print([name for name in os.environ if name.startswith('SBATCH')], file=sys.stderr)"
    program.write_text(f"#!{sys.executable}\nimport os, sys\n{show}\nsys.exit(1)\n")
    program.chmod(0o755)
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    words = ["sh", "-c", slurm_cluster.WITHOUT_VARIABLES, "sh", str(program), "a b"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (1, "['SBATCH_ACCOUNT']\n")


def test_a_number_means_that_the_job_was_taken(monkeypatch):
    cluster = Cluster(monkeypatch, sbatch=Answer(3, "56\n"))
    assert slurm_cluster.submit(cluster, ["sbatch"]) == "56"
