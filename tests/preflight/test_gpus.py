"""What nvidia-smi prints, and how versions and architectures are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_command import EIGHT, OLD, SPARK

from cosmos_reason.jobs.platforms import gpus
from cosmos_reason.jobs.platforms.slurm import partitions


def test_nvidia_smi_lists_are_read():
    found = gpus.parse_gpus(EIGHT)
    assert [gpu.index for gpu in found.gpus] == list(range(8)) and found.version == "580.65.06"
    assert found.gpus[0].gib == pytest.approx(79.65, abs=0.01) and found.gpus[0].arch == "sm_90"
    (spark,) = gpus.parse_gpus(SPARK).gpus
    assert spark.gib is None and spark.arch == "sm_121"
    assert [gpu.arch for gpu in gpus.parse_gpus(OLD).gpus] == ["", ""]
    assert gpus.parse_gpus(OLD).gpus[0].gib == 32
    assert gpus.parse_gpus("No devices were found\n").gpus == []
    assert (
        gpus.parse_gpus("0, NVIDIA A30, [Insufficient Permissions], [N/A], [N/A]\n").gpus[0].gib
        is None
    )


@given(st.text(max_size=200))
def test_no_output_breaks_the_parsers(text):
    gpus.parse_gpus(text)
    partitions.parse_partitions(text)
    partitions.minutes(text)
    gpus.architecture(text)


def test_architectures_of_a_family_are_one():
    for written in "sm_103 sm_103a sm_103f 10.3 103a compute_103a SM103 10.3a".split():
        assert gpus.architecture(written) == "sm_103", written
    assert gpus.architecture("8.0") == "sm_80" and gpus.architecture("sm_90a") == "sm_90"
    for wrong in ("", "sm_", "sm_9", "hopper", "sm_1033", "9.0.1", "sm_90x"):
        assert gpus.architecture(wrong) is None, wrong


def test_versions_compare_as_numbers():
    assert gpus.older("570.86.15", "580") and not gpus.older("580.65.06", "580")
    assert not gpus.older("590", "580")
    assert gpus.older("12.8", "13.0") and gpus.older("1.9.0", "1.19.1")
    assert not gpus.older("1.20.0", "1.19.1")
    assert not gpus.older("", "580")
