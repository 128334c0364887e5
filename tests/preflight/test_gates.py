"""Gates that look at GPUs, and which script takes a fix."""

import json

import pytest
from preflight_command import EIGHT, OLD, SPARK

from cosmos_reason import preflight
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs.platforms import gates, machines
from cosmos_reason.jobs.platforms.docker import preflight as docker
from cosmos_reason.jobs.platforms.gpus import Driver, parse_gpus
from cosmos_reason.preflight import PreflightOptions
from cosmos_reason.remote.machine import Answer, Host
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import BASE_PRECISION


def test_docker_info_without_an_engine_is_no_answer():
    """`docker info --format json` may exit with 0 though there is no engine."""
    lost = {
        "ID": "",
        "ServerErrors": ["Cannot connect to the Docker daemon at unix:///var/run/docker.sock."],
    }
    assert "Cannot connect" in docker.unreachable(Answer(0, json.dumps(lost))).message
    for code, out in ((0, "null"), (1, ""), (1, '{"ServerVersion": "28.0"}')):
        assert docker.unreachable(Answer(code, out)).id == "PRE-DOCKER-UNREACHABLE"
    assert docker.unreachable(Answer(0, '{"ServerVersion": "28.0"}')) is None


def gate(text, image="", platform="docker", needed=1, case=None, **given):
    options = PreflightOptions(**given)
    gpus_per_node = max(needed, options.gpu_min_count or 1)
    launch = preflight.Preflight(
        platform, options, 0, "tao", image, case, gpus_per_node=gpus_per_node
    )
    gpus, found = gates.chosen(parse_gpus(text), options)
    return {x.id: x for x in [*found, *gates.check(gpus, launch)]}


def test_a_base_in_fp8_wants_gpus_that_multiply_in_it():
    spec = document.template("train")
    document.set_value(spec, BASE_PRECISION, "fp8")
    case = Case("train", "transformers", spec, gpus_per_node=1)
    found = gate("0, A100 80GB, 81920, 580.1, 8.0\n", case=case)["PRE-GPU-FP8"]
    assert "sm_80" in found.message and found.fix.changes == {BASE_PRECISION: None}
    assert "PRE-GPU-FP8" in gate("", case=case, gpu_arch=["sm_86"])
    for text, given in (("0, L40S, 46068, 580.1, 8.9\n", {}), ("", {})):
        assert "PRE-GPU-FP8" not in gate(text, case=case, **given)
    plain = Case("train", "transformers", document.template("train"), gpus_per_node=1)
    assert "PRE-GPU-FP8" not in gate("0, A100 80GB, 81920, 580.1, 8.0\n", case=plain)


def test_every_gate_looks_at_the_chosen_gpus_only():
    large = "A100 80GB, 81920, 580.1, 8.0"
    mixed = f"0, {large}\n1, T4, 15360, 580.1, 7.5\n2, {large}\n"
    all_of_them = gate(mixed, gpu_min_memory_gb=40, gpu_min_count=3, image="tao")
    assert set(all_of_them) == {"PRE-GPU-MEMORY", "PRE-GPU-ARCH"}
    assert "GPU 1" in all_of_them["PRE-GPU-MEMORY"].message
    assert not all_of_them["PRE-GPU-MEMORY"].fix, "of three two would be left"
    assert str(gate(mixed, gpu_min_memory_gb=40)["PRE-GPU-MEMORY"].fix) == "--target-gpu-index 0,2"
    assert not gate(
        mixed,
        target_gpu_index=[0, 2],
        gpu_min_memory_gb=40,
        gpu_min_count=2,
        gpu_min_total_memory_gb=171,
        image="tao",
    )
    few = gate(
        mixed, target_gpu_index=[1], gpu_min_count=2, gpu_min_total_memory_gb=64, image="tao"
    )
    assert set(few) == {"PRE-GPU-COUNT", "PRE-GPU-TOTAL", "PRE-GPU-ARCH"}
    assert (
        "PRE-GPU-INDEX" in gate(mixed, target_gpu_index=[0, 7])
        and str(gate(mixed, needed=4)["PRE-GPU-COUNT"].fix)
        == "--gpu-min-count 2"  # there is no spec
    )


@pytest.mark.parametrize(
    ("named", "needed", "fix"),
    [
        ([0, 1], 1, "--gpus-per-node 2"),
        ([0, 1, 2], 2, "--target-gpu-index 0,1"),
        ([0, 1], 2, ""),
        (None, 1, ""),
    ],
)
def test_gpus_that_were_named_and_stay_idle(named, needed, fix):
    """Of all that a machine has a launch takes what it needs, without a word."""
    text = "".join(f"{index}, A100 80GB, 81920, 580.1, 8.0\n" for index in range(4))
    for case in (None, Case("train", "tao", {}), Case("evaluate", "tao", {})):
        found = gate(text, needed=needed, case=case, target_gpu_index=named, image="tao")
        expected = fix if case and case.action == "train" else ""
        told = found.get("PRE-GPU-IDLE")
        assert (str(told.fix) if told else "") == expected
        assert not told or f"{len(named)} GPUs to use, the spec uses {needed}" in told.message


def test_gpus_are_described_where_nobody_can_be_asked():
    described = {"target_gpu_index": [2, 3], "target_gpu_memory_gb": 80}
    assert not gate("", **described, gpu_min_count=2, gpu_min_memory_gb=80)
    assert "PRE-GPU-MEMORY" in gate("", **described, gpu_min_memory_gb=90)
    assert "PRE-GPU-MEMORY-UNKNOWN" in gate("", target_gpu_count=1, gpu_min_memory_gb=1)
    assert "PRE-GPU-UNKNOWN" in gate(
        "", target_gpu_index=[0], gpu_min_count=1
    )  # an index is no GPU that is there


def test_unified_memory_is_unknown_never_enough():
    found = gate(SPARK, gpu_min_memory_gb=24)
    assert found["PRE-GPU-MEMORY-UNKNOWN"].severity == "error" and "PRE-GPU-TOTAL" not in found
    assert gate(SPARK)["PRE-GPU-MEMORY-UNKNOWN"].severity == "warning"
    assert not gate(SPARK, gpu_min_memory_gb=24, target_gpu_memory_gb=119)
    assert "PRE-GPU-MEMORY" in gate(SPARK, gpu_min_memory_gb=24, target_gpu_memory_gb=16)


def test_architecture_gate():
    blocked = gate(SPARK, image="tao", target_gpu_memory_gb=100)["PRE-GPU-ARCH-BLOCKED"]
    assert not blocked.fix, "that it works nobody has seen"
    assert not gate(SPARK, image="tao", target_gpu_memory_gb=100, image_supported_sm=["sm_121"])
    assert not gate(EIGHT, image="tao")
    assert gate(OLD, image="tao")["PRE-GPU-ARCH-UNKNOWN"].severity == "warning"
    assert "PRE-GPU-ARCH" in gate(EIGHT, gpu_arch_allowlist=[("kernels", ["sm_80"])])
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_75"], image="tao")
    assert "PRE-GPU-ARCH" in gate(
        "", gpu_arch=["sm_75"], image="tao", gpu_arch_allowlist=[("decoder", ["sm_75"])]
    )
    assert (
        gate("", gpu_arch_allowlist=[("kernels", ["sm_80"])])["PRE-GPU-ARCH-UNKNOWN"].severity
        == "error"
    )
    assert "PRE-GPU-ARCH-BLOCKED" in gate(
        "", gpu_arch=["sm_121"], image="t", gpu_arch_allowlist=[("a", ["sm_121"])]
    )


def test_a_gpu_that_runs_code_built_for_an_older_one_of_its_major_version_is_no_error():
    """An L40S or RTX 4090 runs what is built for an A100; not the other way round, and no code of
    another major version. What is asked of kernels by name is asked as it stands."""
    for architecture in ("sm_86", "sm_89"):
        found = gate("", gpu_arch=[architecture], image="tao")
        assert set(found) == {"PRE-GPU-ARCH-UNLISTED"}
        assert found["PRE-GPU-ARCH-UNLISTED"].severity == "warning"
        assert "built for sm_80" in found["PRE-GPU-ARCH-UNLISTED"].message
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_80"], image_supported_sm=["sm_86"])
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_75"], image_supported_sm=["sm_80"])
    kernels = [("kernels", ["sm_80"])]
    assert "PRE-GPU-ARCH" in gate("", gpu_arch=["sm_89"], image="t", gpu_arch_allowlist=kernels)


@pytest.mark.parametrize(
    ("platform", "limit", "severity"),
    [
        ("docker", {"gpu_min_count": 4}, "error"),
        ("slurm", {"gpu_min_count": 4, "skip_platform_access": True}, "error"),
        ("slurm", {"gpu_min_memory_gb": 4}, "error"),
        ("slurm", {"gpu_min_count": 4}, None),  # the scheduler counts
        ("kubernetes", {"low_vram_threshold_gb": 50}, "warning"),
        ("docker", {}, None),
    ],
)
def test_limits_of_unknown_gpus_are_not_passed(platform, limit, severity):
    found = gate("", platform=platform, **limit)
    assert [x.severity for x in found.values() if x.id == "PRE-GPU-UNKNOWN"] == [severity] * bool(
        severity
    )


def test_host_minimums():
    old = Driver(version="570.86.15", cuda="12.8")
    assert [x.id for x in gates.check_driver(old, "1.16.2")] == ["PRE-HOST-VERSION"] * 3
    (found,) = gates.check_driver(Driver(version="580.1", cuda="13.0"), "")
    assert found.id == "PRE-HOST-VERSION-UNKNOWN" and str(found.fix) == "nvidia-ctk --version"
    assert not list(gates.check_driver(Driver(version="580.65.06", cuda="13.1"), "1.19.1"))


def test_memory_of_all_gpus_of_all_nodes():
    eight = parse_gpus(EIGHT).gpus
    (found,) = gates.check_total(eight[:2], 1, 256, "GPUs")
    assert found.severity == "error" and not found.fix and "--tuning lora" in found.message
    assert not list(gates.check_total(eight[:2], 2, 256, "GPUs"))
    assert not list(gates.check_total(eight, 1, 256, ""))
    (found,) = gates.check_total(eight[:2], 1, 256, "GPUs", "LoRA is small")
    assert found.severity == "info" and "because LoRA" in found.message
    assert not list(
        gates.check_total([], 1, 256, "GPUs")
    )  # said elsewhere: nothing is known of them


OWN = "scripts/check_tao_launch_preflight.py"


@pytest.mark.parametrize(
    ("id", "flags", "spec", "printed"),
    [
        ("PRE-GPU-ARCH-UNKNOWN", {"--gpu-arch": "SM"}, "s.toml", f"{OWN} --gpu-arch SM"),
        ("PRE-PLATFORM", {"--platform": "local"}, None, f"{OWN} --platform local"),
        ("JOB-ENGINE", {"--engine": "transformers"}, None, f"{OWN} --engine transformers"),
        ("JOB-ENGINE", {"--engine": "transformers"}, "s.toml", "--engine transformers"),
        ("JOB-ENGINE", {"--platform": "docker"}, "s.toml", f"{OWN} --platform docker"),
        (
            "JOB-ENGINE",
            {"--engine": "tao", "--platform": "docker"},
            "s.toml",
            f"{OWN} --engine tao --platform docker",
        ),
        ("PRE-MEMORY", {"--tuning": "lora"}, "s.toml", "--tuning lora"),
        ("PRE-GPU-COUNT", {"--gpus-per-node": 2}, "s.toml", "--gpus-per-node 2"),
        (
            "DATA-MEDIA-ESCAPE",
            {"--media-path": "d"},
            "s.toml",
            "scripts/check_dataset.py --media-path d",
        ),
        ("PRE-IMAGE", {"--image": "X"}, None, "--image X"),
    ],
)
def test_a_fix_says_which_script_takes_its_flags(id, flags, spec, printed):
    finding = f.error(id, "x", "y", Fix(flags=flags))
    assert str(preflight.shown(finding, PreflightOptions(spec=spec)).fix) == printed


@pytest.mark.parametrize(
    ("fix", "printed"), [(Fix(changes={"a.b": 1}), "--set a.b=1"), ("sudo x --y", "sudo x --y")]
)
def test_a_fix_without_flags_names_no_script(fix, printed):
    finding = f.error("DATA-CLIP-TOO-SHORT", "x", "y", fix)
    assert str(preflight.shown(finding, PreflightOptions(spec="s.toml")).fix) == printed


@pytest.mark.parametrize(
    ("engine", "given", "severity", "unsaid"),
    [
        ("tao", {}, "error", "--target-gpu-count N --target-gpu-memory-gb GIB"),
        ("tao", {"target_gpu_index": [0, 1]}, "error", "--target-gpu-memory-gb GIB"),
        ("tao", {"target_gpu_count": 2}, "warning", "--target-gpu-memory-gb GIB"),
        ("tao", {"target_gpu_index": [1], "target_gpu_memory_gb": 80}, "warning", ""),
        ("transformers", {}, "info", ""),
    ],
)
def test_no_gpu_is_told_once_with_what_is_still_to_say(
    engine, given, severity, unsaid, monkeypatch
):
    monkeypatch.setattr(machines, "driver", lambda _: Driver(problem="no command nvidia-smi"))
    (found,) = machines.ask_for_gpus(
        preflight.Preflight("local", PreflightOptions(**given), 0, engine), Host()
    )
    assert (found.id, found.severity) == ("PRE-GPU-NONE", severity)
    assert bool(found.fix) == bool(unsaid) and unsaid in str(found.fix)


def test_a_launch_gets_as_many_gpus_as_the_spec_needs():
    for there, named, expected in (
        ([2, 3, 4], None, "2,3"),
        ([3], None, "0,1"),
        ([], [5, 6], "5,6"),
        ([], [5], "5"),  # whoever names too few is told so, and gets no others
        ([], None, "0,1"),
        ([2, 3], [], "none"),
    ):
        launch = preflight.Preflight(
            "docker", PreflightOptions(target_gpu_index=named), 0, "cosmos-rl", gpus_per_node=2
        )
        launch.result["gpus"] = [{"index": index} for index in there]
        assert launch.gpu_ids() == [one for one in expected.split(",") if one != "none"]
