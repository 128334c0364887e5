"""What SLURM's commands print, and whether a partition fits."""

import pytest

from cosmos_reason import preflight
from cosmos_reason.jobs.platforms.slurm import partitions
from cosmos_reason.jobs.platforms.slurm import preflight as slurm
from cosmos_reason.preflight import PreflightOptions


def test_slurm_times():
    times = {
        "30": 30,
        "10:00": 10,
        "1:00:00": 60,
        "2-00:00:00": 2880,
        "0": partitions.UNLIMITED,
        "0:00": partitions.UNLIMITED,
        "0-0": partitions.UNLIMITED,
        "1-12": 2160,
        "1-12:30": 2190,
        "0:30": 1,
        "infinite": partitions.UNLIMITED,
        "UNLIMITED": partitions.UNLIMITED,
        "soon": None,
        "": None,
    }
    assert {written: partitions.minutes(written) for written in times} == times


def test_sinfo_rows():
    text = """batch*|up|2-00:00:00|12|gpu:h100:8(S:0-1)|mix|64|n/a
batch*|up|2-00:00:00|3|gpu:h100:8(S:0-1)|drain|64|n/a
cpu|up|infinite|40|(null)|idle|64|n/a
mixed|down|1:00:00|2|gpu:a100:4,gpu:l40s:2,nvme:1|idle*|64|n/a
noise"""
    rows = partitions.parse_partitions(text)
    assert [(r.partition, r.gpus(), r.count, r.state, r.is_up) for r in rows] == [
        ("batch", 8, 12, "mix", True),
        ("batch", 8, 3, "drain", True),
        ("cpu", 0, 40, "idle", True),
        ("mixed", 6, 2, "idle*", False),
    ]
    assert rows[0].is_default and rows[0].minutes == 2880
    assert rows[2].minutes == partitions.UNLIMITED


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:3090:4(S:0-1)", 4),
        ("gpu:1080ti:4", 4),
        ("gpu:4", 4),
        ("gpu:a100:3(S:0,2),gpu:3090:1", 4),
        ("(null)", 0),
        ("gpu:a100_3g.20gb:2,shard:16", 2),
    ],
)
def test_gpus_of_a_node(gres, gpus):
    (row,) = partitions.parse_partitions(f"gpu*|up|4:00:00|2|{gres}|idle|64|n/a")
    assert row.gpus() == gpus


USABLE = "idle mix alloc comp plnd resv idle~ idle# mix-".split()
UNUSABLE = "idle* mix* drain drng down down* maint fail unk inval".split()


@pytest.mark.parametrize("state", USABLE + UNUSABLE)
def test_states_of_nodes(state):
    launch = preflight.Preflight("slurm", PreflightOptions(), 0, "tao")
    rows = partitions.parse_partitions(f"gpu*|up|4:00:00|2|gpu:8|{state}|64|n/a")
    found = [one.id for one in slurm.check_partition(rows, launch)]
    assert found == ["PRE-SLURM-NODES"] * (state in UNUSABLE)


MIXED = """gpu*|up|1:00:00|2|gpu:a100:2,gpu:L40S:4(S:0-1)|idle|64|n/a
gpu*|up|1:00:00|1|gpu:a100:1|idle|64|n/a
plain|up|infinite|2|gpu:2|idle|64|n/a"""


def objections(gres=None, gpus=1, **fields):
    launch = preflight.Preflight("slurm", PreflightOptions(gres=gres, **fields), 0, "tao")
    launch.gpus_per_node = gpus
    return [*slurm.check_partition(partitions.parse_partitions(MIXED), launch)]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [(None, 6), ("gpu", 6), ("gpu:a100", 2), ("gpus-per-node:l40s", 4), ("none", 8)],
)
def test_gpus_are_counted_by_type(gres, gpus):
    assert not objections(gres, gpus)
    more = objections(gres, gpus + 1)
    assert [one.id for one in more] == ["PRE-SLURM-GRES"] * (gres != "none")


def test_a_job_for_the_cpu_asks_a_partition_for_no_gpus():
    assert not objections(gpus=8, target_gpu_index=[])


@pytest.mark.parametrize(
    ("gres", "partition"),
    [
        ("gpu:a10", "gpu"),
        ("gpus-per-node:l40", "gpu"),
        ("gpu:99", "gpu"),
        ("gpu:b200", "gpu"),
        ("gpu:a100", "plain"),
    ],
)
def test_a_type_that_no_node_has_is_one_finding_and_no_other_is_proposed(gres, partition):
    (told,) = objections(gres, 8, partition=partition)
    assert told.id == "PRE-SLURM-GRES" and not told.fix
    assert ("L40S, a100" if partition == "gpu" else "none is named") in told.message


@pytest.mark.parametrize("written", ["0", "0:00", "0-0", "infinite"])
def test_no_limit_is_more_than_a_partition_allows(written):
    (told,) = objections(time_limit=written)
    assert told.id == "PRE-SLURM-TIME" and told.fix.flags == {"--time-limit": 60}
    assert not objections(time_limit=written, partition="plain")


CLOSED = """closed|down|1:00:00|2|gpu:8|idle|64|n/a
cpu*|up|1:00:00|2|(null)|idle|64|n/a
gpu|up|1:00:00|1|gpu:2|idle|64|n/a"""


@pytest.mark.parametrize(
    ("text", "partition", "id", "fix"),
    [
        (CLOSED, None, "PRE-SLURM-GRES", {"--partition": "gpu"}),
        (CLOSED.splitlines()[1], None, "PRE-SLURM-GRES", {}),
    ],
)
def test_a_partition_that_has_no_gpus(monkeypatch, text, partition, id, fix):
    """The fix is one that is up, and has GPUs where they are missed."""
    monkeypatch.delenv("SLURM_PARTITION", raising=False)
    launch = preflight.Preflight("slurm", PreflightOptions(partition=partition), 0, "tao")
    (told,) = slurm.check_partition(partitions.parse_partitions(text), launch)
    assert (told.id, told.fix.flags) == (id, fix)
