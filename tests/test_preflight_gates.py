"""The preflight's parsers on captured outputs, and its gates."""

import json
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_command import SCRIPT
from support import ROOT

from cosmos_reason import findings as f
from cosmos_reason import preflight
from cosmos_reason.preflight import gates, host, platforms

EIGHT = "".join(f"{n}, NVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0\n" for n in range(8))
SPARK = "0, NVIDIA GB10, [N/A], 580.95.05, 12.1\n"
OLD = "0, Tesla V100-SXM2-32GB, 32768 MiB, 470.57.02\n1, Tesla V100-SXM2-32GB, 32768 MiB, 470.57.02\n"


# ---- what tools print ------------------------------------------------------------------------------------------------


def test_nvidia_smi_lists_are_read():
    found = host.parse_gpus(EIGHT)
    assert [gpu.index for gpu in found.gpus] == list(range(8)) and found.version == "580.65.06"
    assert found.gpus[0].gib == pytest.approx(79.65, abs=0.01) and found.gpus[0].arch == "sm_90"
    (spark,) = host.parse_gpus(SPARK).gpus
    assert spark.gib is None and spark.arch == "sm_121"
    assert [gpu.arch for gpu in host.parse_gpus(OLD).gpus] == ["", ""] and host.parse_gpus(OLD).gpus[0].gib == 32
    assert host.parse_gpus("No devices were found\n").gpus == []
    assert host.parse_gpus("0, NVIDIA A30, [Insufficient Permissions], [N/A], [N/A]\n").gpus[0].gib is None


@given(st.text(max_size=200))
def test_no_output_breaks_the_parsers(text):
    host.parse_gpus(text)
    platforms.parse_partitions(text)
    platforms.minutes(text)
    host.architecture(text)


def test_architectures_of_a_family_are_one():
    for written in ("sm_103", "sm_103a", "sm_103f", "10.3", "103a", "compute_103a", "SM103", "10.3a"):
        assert host.architecture(written) == "sm_103", written
    assert host.architecture("8.0") == "sm_80" and host.architecture("sm_90a") == "sm_90"
    for wrong in ("", "sm_", "sm_9", "hopper", "sm_1033", "9.0.1", "sm_90x"):
        assert host.architecture(wrong) is None, wrong


def test_versions_compare_as_numbers():
    assert host.older("570.86.15", "580") and not host.older("580.65.06", "580") and not host.older("590", "580")
    assert host.older("12.8", "13.0") and host.older("1.9.0", "1.19.1") and not host.older("1.20.0", "1.19.1")
    assert not host.older("", "580")


def test_slurm_times():
    times = {"30": 30, "10:00": 10, "1:00:00": 60, "2-00:00:00": 2880, "1-12": 2160, "1-12:30": 2190, "0:30": 1,
             "infinite": platforms.UNLIMITED, "UNLIMITED": platforms.UNLIMITED, "soon": None, "": None}  # fmt: skip
    assert {written: platforms.minutes(written) for written in times} == times


def test_sinfo_rows():
    text = """batch*|up|2-00:00:00|12|gpu:h100:8(S:0-1)|mix
batch*|up|2-00:00:00|3|gpu:h100:8(S:0-1)|drain
cpu|up|infinite|40|(null)|idle
mixed|down|1:00:00|2|gpu:a100:4,gpu:l40s:2,nvme:1|idle*
noise"""
    rows = platforms.parse_partitions(text)
    assert [(r["name"], r["gpus"], r["nodes"], r["state"], r["up"]) for r in rows] == [
        ("batch", 8, 12, "mix", True),
        ("batch", 8, 3, "drain", True),
        ("cpu", 0, 40, "idle", True),
        ("mixed", 6, 2, "idle*", False),
    ]
    assert rows[0]["default"] and rows[0]["minutes"] == 2880 and rows[2]["minutes"] == platforms.UNLIMITED


def test_docker_info_without_an_engine_is_no_answer():
    """`docker info --format json` may exit with 0 though there is no engine."""
    lost = {"ID": "", "ServerErrors": ["Cannot connect to the Docker daemon at unix:///var/run/docker.sock."]}
    assert "Cannot connect" in platforms.unreachable(host.Answer(0, json.dumps(lost))).message
    for code, out in ((0, "null"), (1, ""), (1, '{"ServerVersion": "28.0"}')):
        assert platforms.unreachable(host.Answer(code, out)).id == "PRE-DOCKER-UNREACHABLE"
    assert platforms.unreachable(host.Answer(0, '{"ServerVersion": "28.0"}')) is None


# ---- gates -----------------------------------------------------------------------------------------------------------


class Args:
    gpu_min_count = gpu_min_memory_gb = gpu_min_total_memory_gb = low_vram_threshold_gb = None
    target_gpu_index = target_gpu_count = target_gpu_memory_gb = None
    gpu_arch, gpu_arch_allowlist, image_supported_sm = (), (), ()
    nodes, skip_platform_access = 1, False

    def __init__(self, **given):
        vars(self).update(given)


def gate(text, image="", platform="docker", needed=1, **given):
    args = Args(**given)
    launch = preflight.Launch(platform, args, 0, "tao", image, gpus_per_node=max(needed, args.gpu_min_count or 1))
    gpus, found = gates.chosen(host.parse_gpus(text), args)
    return {x.id: x for x in [*found, *gates.check(gpus, launch)]}


def test_every_gate_looks_at_the_chosen_gpus_only():
    mixed = "0, A100 80GB, 81920, 580.1, 8.0\n1, T4, 15360, 580.1, 7.5\n2, A100 80GB, 81920, 580.1, 8.0\n"
    all_of_them = gate(mixed, gpu_min_memory_gb=40, gpu_min_count=3, image="tao")
    assert set(all_of_them) == {"PRE-GPU-MEMORY", "PRE-GPU-ARCH"} and "GPU 1" in all_of_them["PRE-GPU-MEMORY"].message
    assert all_of_them["PRE-GPU-MEMORY"].fix == "--target-gpu-index 0,2"
    assert not gate(
        mixed, target_gpu_index=[0, 2], gpu_min_memory_gb=40, gpu_min_count=2, gpu_min_total_memory_gb=171, image="tao"
    )
    few = gate(mixed, target_gpu_index=[1], gpu_min_count=2, gpu_min_total_memory_gb=64, image="tao")
    assert set(few) == {"PRE-GPU-COUNT", "PRE-GPU-TOTAL", "PRE-GPU-ARCH"}
    assert (
        "PRE-GPU-INDEX" in gate(mixed, target_gpu_index=[0, 7])
        and gate(mixed, needed=4)["PRE-GPU-COUNT"].fix == "--gpu-min-count 2"  # there is no spec
    )


def test_gpus_are_described_where_nobody_can_be_asked():
    described = {"target_gpu_index": [2, 3], "target_gpu_memory_gb": 80}
    assert not gate("", **described, gpu_min_count=2, gpu_min_memory_gb=80)
    assert "PRE-GPU-MEMORY" in gate("", **described, gpu_min_memory_gb=90)
    assert "PRE-GPU-MEMORY-UNKNOWN" in gate("", target_gpu_count=1, gpu_min_memory_gb=1)
    assert "PRE-GPU-UNKNOWN" in gate("", target_gpu_index=[0], gpu_min_count=1)  # an index is no GPU that is there


def test_unified_memory_is_unknown_never_enough():
    found = gate(SPARK, gpu_min_memory_gb=24)
    assert found["PRE-GPU-MEMORY-UNKNOWN"].severity == "error" and "PRE-GPU-TOTAL" not in found
    assert gate(SPARK)["PRE-GPU-MEMORY-UNKNOWN"].severity == "warning"
    assert not gate(SPARK, gpu_min_memory_gb=24, target_gpu_memory_gb=119)
    assert "PRE-GPU-MEMORY" in gate(SPARK, gpu_min_memory_gb=24, target_gpu_memory_gb=16)


def test_architecture_gate():
    assert (
        gate(SPARK, image="tao", target_gpu_memory_gb=100)["PRE-GPU-ARCH-BLOCKED"].fix == "--image-supported-sm sm_121"
    )
    assert not gate(SPARK, image="tao", target_gpu_memory_gb=100, image_supported_sm=["sm_121"])
    assert not gate(EIGHT, image="tao") and gate(OLD, image="tao")["PRE-GPU-ARCH-UNKNOWN"].severity == "warning"
    assert "PRE-GPU-ARCH" in gate(EIGHT, gpu_arch_allowlist=[("kernels", ["sm_80"])])
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_75"], image="tao")
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_75"], image="tao", gpu_arch_allowlist=[("decoder", ["sm_75"])])
    assert gate("", gpu_arch_allowlist=[("kernels", ["sm_80"])])["PRE-GPU-ARCH-UNKNOWN"].severity == "error"
    assert "PRE-GPU-ARCH-BLOCKED" in gate("", gpu_arch=["sm_121"], image="t", gpu_arch_allowlist=[("a", ["sm_121"])])


@pytest.mark.parametrize(("platform", "limit", "severity"), [
    ("docker", {"gpu_min_count": 4}, "error"), ("slurm", {"gpu_min_count": 4, "skip_platform_access": True}, "error"),
    ("slurm", {"gpu_min_memory_gb": 4}, "error"), ("slurm", {"gpu_min_count": 4}, None),  # the scheduler counts
    ("kubernetes", {"low_vram_threshold_gb": 50}, "warning"), ("docker", {}, None),
])  # fmt: skip
def test_limits_of_unknown_gpus_are_not_passed(platform, limit, severity):
    found = gate("", platform=platform, **limit)
    assert [x.severity for x in found.values() if x.id == "PRE-GPU-UNKNOWN"] == [severity] * bool(severity)


def test_host_minimums():
    old = host.Driver(version="570.86.15", cuda="12.8")
    assert [x.id for x in gates.check_driver(old, "1.16.2")] == ["PRE-HOST-VERSION"] * 3
    (found,) = gates.check_driver(host.Driver(version="580.1", cuda="13.0"), "")
    assert found.id == "PRE-HOST-VERSION-UNKNOWN" and found.fix == "nvidia-ctk --version"
    assert not list(gates.check_driver(host.Driver(version="580.65.06", cuda="13.1"), "1.19.1"))


def test_memory_of_all_gpus_of_all_nodes():
    eight = host.parse_gpus(EIGHT).gpus
    (found,) = gates.check_total(eight[:2], 1, 256, "GPUs")
    assert found.severity == "error" and found.fix == "--tuning lora"
    assert not list(gates.check_total(eight[:2], 2, 256, "GPUs")) and not list(gates.check_total(eight, 1, 256, ""))
    (found,) = gates.check_total(eight[:2], 1, 256, "GPUs", "LoRA is small")
    assert found.severity == "info" and "because LoRA" in found.message
    assert not list(gates.check_total([], 1, 256, "GPUs"))  # said elsewhere: nothing is known of them


@pytest.mark.parametrize(("id", "fix", "spec", "printed"), [
    ("PRE-GPU-ARCH-UNKNOWN", "--gpu-arch sm_90", "s.toml", "check_tao_launch_preflight.py --gpu-arch sm_90"),
    ("PRE-PLATFORM", "--platform local", None, "check_tao_launch_preflight.py --platform local"),
    ("PRE-ENGINE-PLATFORM", "--engine transformers", None, "check_tao_launch_preflight.py --engine transformers"),
    ("PRE-ENGINE-PLATFORM", "--engine transformers", "s.toml", "--engine transformers"),
    ("PRE-MEMORY", "--tuning lora", "s.toml", "--tuning lora"),
    ("PRE-GPU-COUNT", "--gpus-per-node 2", "s.toml", "--gpus-per-node 2"),
    ("DATA-MEDIA-ESCAPE", "--media-path d", "s.toml", "check_dataset.py --media-path d"),
    ("DATA-CLIP-TOO-SHORT", "--set a.b=1", "s.toml", "--set a.b=1"), ("PRE-IMAGE", "--image X", None, "--image X"),
    ("PRE-DOCKER-RUNTIME", "sudo x --y", "s.toml", "sudo x --y"),
])  # fmt: skip
def test_a_fix_says_which_script_takes_it(id, fix, spec, printed):
    assert preflight.shown(f.error(id, "x", "y", fix), Args(spec=spec)).fix == printed


@pytest.mark.parametrize(("engine", "given", "severity", "fix"), [
    ("tao", {}, "error", "--target-gpu-count N --target-gpu-memory-gb GIB"),
    ("tao", {"target_gpu_index": [0, 1]}, "error", "--target-gpu-memory-gb GIB"),
    ("tao", {"target_gpu_count": 2}, "warning", "--target-gpu-memory-gb GIB"),
    ("tao", {"target_gpu_index": [1], "target_gpu_memory_gb": 80}, "warning", ""), ("transformers", {}, "info", ""),
])  # fmt: skip
def test_no_gpu_is_told_once_with_what_is_still_to_say(engine, given, severity, fix, monkeypatch):
    monkeypatch.setattr(platforms, "driver", lambda _: host.Driver(problem="no command nvidia-smi"))
    (found,) = platforms.gpus(preflight.Launch("local", Args(**given), 0, engine), host.Host())
    assert (found.id, found.severity, found.fix) == ("PRE-GPU-NONE", severity, fix)


def test_a_launch_gets_as_many_gpus_as_the_spec_needs():
    gpu_words = runpy.run_path(str(ROOT / "scripts" / SCRIPT))["gpu_words"]
    for there, named, expected in (([2, 3, 4], None, "2,3"), ([3], None, "0,1"), ([], [5, 6], "5,6"), ([], [5], "0,1")):
        launch = preflight.Launch("docker", Args(target_gpu_index=named), 0, "cosmos-rl", gpus_per_node=2)
        launch.result["gpus"] = [{"index": index} for index in there]
        assert gpu_words(launch) == ["--gpu-ids", expected]


@pytest.mark.parametrize(("gres", "gpus"), [
    ("gpu:3090:4(S:0-1)", 4), ("gpu:1080ti:4", 4), ("gpu:4", 4), ("gpu:a100:3(S:0,2),gpu:3090:1", 4), ("(null)", 0),
    ("gpu:a100_3g.20gb:2,shard:16", 2),
])  # fmt: skip
def test_gpus_of_a_node(gres, gpus):
    (row,) = platforms.parse_partitions(f"gpu*|up|4:00:00|2|{gres}|idle")
    assert row["gpus"] == gpus


@pytest.mark.parametrize(("state", "usable"), [
    *((state, True) for state in ("idle", "mix", "alloc", "comp", "plnd", "resv", "idle~", "idle#", "mix-")),
    *((state, False) for state in ("idle*", "mix*", "drain", "drng", "down", "down*", "maint", "fail", "unk", "inval")),
])  # fmt: skip
def test_states_of_nodes(state, usable):
    launch = preflight.Launch("slurm", Args(partition=None, time_limit=None), 0, "tao")
    found = platforms.partition(platforms.parse_partitions(f"gpu*|up|4:00:00|2|gpu:8|{state}"), launch)
    assert [x.id for x in found] == ([] if usable else ["PRE-SLURM-NODES"])
