"""One launch, by all commands that read it: what build_spec calls fine no launch refuses, and what
a preflight proposes is launched."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import build_spec
import check_tao_launch_preflight
import launch_job
import pytest
from foreign_specs import CLEAN, GUIDE, LOSING, NO_TYPE, POLICY, TAO
from launch_site import write_annotations

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.jobs import cosmos_environment
from cosmos_reason.jobs.platforms.slurm import preflight as preflight_slurm
from cosmos_reason.spec import document, validation

FOREIGN = CLEAN | LOSING | TAO | {"no type": NO_TYPE}
DATA = """
[custom.train_dataset]
annotation_path = "a.json"
media_path = "media"
"""
ODD = {
    "an output that holds an input": POLICY + DATA + '[train]\noutput_dir = "."\n',
    "an output that is an input": POLICY + DATA + '[train]\noutput_dir = "media"\n',
    "two nodes": POLICY.replace("[policy.parallelism]", "[policy.parallelism]\ndp_replicate_size=8")
    + DATA
    + '[train]\noutput_dir = "out"\noptm_warmup_steps = 0\n',
    "an adapter of no adapter": '[model]\nmodel_name = "MODEL"\nenable_lora = true\n'
    'base_model_path = "MODEL"\n[vision]\nnframes = 8\n[dataset]\nsystem_prompt = ""\n'
    'annotation_path = "a.json"\nmedia_dir = "media"\n[evaluation]\nnum_processes = 4\n',
}


@pytest.fixture
def here(tmp_path, monkeypatch, tiny_model):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("COSMOS_REASON_JOBS", str(tmp_path / "jobs"))
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "media").mkdir()
    write_annotations(tmp_path / "a.json", 2000)
    (tmp_path / "custom_sft.py").write_text("")
    return tmp_path


def said(script, line, *more):
    """(findings, the command that follows) of a script, in this process."""
    parser = script.parser()
    words = [*shlex.split(line), *map(str, more)]
    args = parser.parse_args(words)
    main = args.main if hasattr(args, "main") else script.main
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [script.__name__, *words])  # which plan repeats
            outcome = main(args)
    except f.Failure as failure:
        return failure.findings, ()
    errors = f.has_errors(outcome.findings)
    return list(outcome.findings), () if errors else tuple(map(str, outcome.next))


def errors(found):
    return {(one.id, one.where) for one in found if one.severity == f.ERROR}


def preflight(spec, *more):
    target = "--skip-platform-access --target-gpu-count 8 --target-gpu-memory-gb 80 --image mine:1"
    line = f"--platform docker --spec {spec} {target}"
    return said(check_tao_launch_preflight, line, *more)


def plan(spec, *more):
    return said(launch_job, f"plan --spec {spec} --platform docker --image mine:1", *more)


def assert_accepted(following):
    """What a preflight proposes, if it does, plan accepts."""
    if following:
        planned, _ = said(launch_job, "plan", *following[2:])
        assert not errors(planned), following


def located(text):
    return text.replace("nvidia/Cosmos-Reason2-2B", "model").replace("MODEL", "model")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_build_spec_says_of_a_spec_a_launch_says(here, name):
    """As it came, and mended."""
    (here / "guide.toml").write_text(located(FOREIGN[name]))
    for spec, more in (("guide.toml", ""), ("mended.toml", "--fix")):
        built, _ = said(build_spec, f"--spec guide.toml {more} -o mended.toml --force")
        if Path(spec).exists():
            planned, _ = plan(spec)
            by_rules = {pair for pair in errors(planned) if pair[0].startswith("SPEC-")}
            assert by_rules <= {(one.id, one.where) for one in built}
            assert more or errors(built) <= by_rules


@pytest.mark.parametrize("name", ODD)
def test_what_a_plan_refuses_a_preflight_refuses(here, name):
    (here / "odd.toml").write_text(located(ODD[name]))
    checked, following = preflight("odd.toml")
    planned, _ = plan("odd.toml")
    assert errors(planned) <= errors(checked) and not following


@pytest.mark.parametrize("action", ["train", "evaluate"])
def test_our_own_specs_can_be_launched(here, action):
    root = "--train-root" if action == "train" else "--eval-root"
    write_annotations(here / "annotations.json", 2000)
    said(build_spec, f"{action} --model model --engine tao {root} . -o spec.toml")
    assert not errors(plan("spec.toml")[0])
    assert {id for id, _ in errors(preflight("spec.toml")[0])} <= {"DATA-MEDIA-MISSING"}


# A cluster of two nodes with two GPUs each; what it is asked to run, it runs here.
COMMANDS = {
    "sinfo": "echo 'gpu*|up|4:00:00|2|gpu:2|idle|8|n/a'",
    "srun": 'case "$1" in --help) echo --container-image; exit;; esac\n'
    'for word; do case "$word" in --account=gone)'
    " echo 'srun: error: Invalid account or partition' >&2; exit 1;; esac; done\n"
    'while [ "${1#--}" != "$1" ]; do shift; done\ncd /\nexec "$@"',
    "sbatch": "exit 1",
    "squeue": "exit 0",
    "scontrol": "exit 0",
}


@pytest.fixture
def cluster(here, monkeypatch):
    """Commands of SLURM on PATH, and no cosmos-rl."""
    folder = here / "bin"
    folder.mkdir()
    for name, line in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(cosmos_environment, "OWN", here / "none")
    for name in ("SLURM_HOSTNAME", "SLURM_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    return here


def spec_for(engine, more=""):
    write_annotations(Path("annotations.json"), 64)
    for number in range(64):
        Path(f"{number}.mp4").touch()
    line = f"train --model model --engine {engine} --tuning lora --train-root . {more}"
    return said(build_spec, f"{line} -o spec.toml --force")[0]


ON_SLURM = "--spec spec.toml --platform slurm"


def asked_of_the_cluster(more=""):
    """(the preflight's errors, the plan's errors, the command that the preflight proposes)."""
    checked, following = said(check_tao_launch_preflight, f"{ON_SLURM} {more}")
    planned, _ = said(launch_job, f"plan {ON_SLURM} {more}")
    return errors(checked), errors(planned), following


@pytest.mark.parametrize("engine", bundle.ENGINES)
@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 2), (8, 1)])
def test_preflight_and_plan_agree_on_a_cluster(cluster, engine, gpus, nodes):
    spec_for(engine, f"--gpus-per-node {gpus} --nodes {nodes}")
    refused, in_plan, following = asked_of_the_cluster()
    # A plan that is refused for its words or its environment has not asked for the partition.
    assert in_plan <= refused
    assert bool(in_plan) == bool({one for one in refused if not one[0].startswith("DATA-")})
    assert ("PRE-COSMOS-MISSING" in {id for id, _ in refused}) == (engine == "cosmos-rl")
    assert_accepted(following)


def test_a_layout_for_two_nodes_is_launched_on_two_nodes(cluster):
    spec_for("transformers", "--gpus-per-node 1 --nodes 2")
    words = f"plan train {ON_SLURM}".split()
    args = launch_job.parser().parse_args(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["launch_job.py", *words])
        command = args.main(args).result["command"]
    assert {"--nodes=2", "--gres=gpu:1"} < set(command)


def test_the_fix_for_small_nodes_is_taken_by_plan_and_preflight(cluster):
    spec_for("transformers", "--gpus-per-node 4")
    checked, _ = said(check_tao_launch_preflight, ON_SLURM)
    planned, _ = said(launch_job, f"plan {ON_SLURM}")
    for found in (checked, planned):
        (told,) = [one for one in found if one.id == "PRE-SLURM-GRES"]
        assert told.fix.flags == {"--nodes": 2}
    refused, in_plan, _ = asked_of_the_cluster("--nodes 2")
    assert not in_plan and "PRE-SLURM-GRES" not in {id for id, _ in refused}
    spec_for("transformers", "--gpus-per-node 8")
    checked, _ = said(check_tao_launch_preflight, ON_SLURM)
    (told,) = [one for one in checked if one.id == "PRE-SLURM-GRES"]
    assert str(told.fix) == "--gpus-per-node 2 --nodes 2"
    spec_for("transformers", str(told.fix))
    assert not asked_of_the_cluster()[1]


def test_accounts_images_and_outputs_are_looked_at_as_a_launch_looks(cluster, monkeypatch):
    """What a node is asked, it is asked for the account and the quality of service of the job."""
    spec_for("transformers")
    image = cluster / "none.sqsh"
    line = f"{ON_SLURM} --image {image}"
    checked, _ = said(check_tao_launch_preflight, f"{line} --qos high")
    told = {one.id: one for one in checked}
    assert told["PRE-PATH-MISSING"].where == f"--image={image}"
    assert told["PRE-HOST-UNSEEN"].fix.command.startswith("srun --container-image=/")
    assert "PRE-SLURM-NODE-BUSY" not in told
    image.touch()
    checked, _ = said(check_tao_launch_preflight, f"{line} --account team")
    assert not {one.id for one in checked} & {"PRE-PATH-MISSING", "PRE-OUTPUT"}
    monkeypatch.setenv("SBATCH_ACCOUNT", "gone")
    checked, _ = said(check_tao_launch_preflight, line)
    (told,) = [one for one in checked if one.id == "JOB-SLURM-REFUSED"]
    assert "--account gone" in told.where and "Invalid account" in told.message


def test_outputs_that_only_the_login_node_takes(cluster):
    srun = cluster / "bin" / "srun"
    refuses = 'number=0; shift 4\nwhile [ $# -gt 1 ]; do [ "$1" != -w ] || echo $number\n'
    refuses += "number=$((number + 1)); shift 2; done; echo end"
    srun.write_text(srun.read_text().replace('exec "$@"', refuses))
    spec_for("transformers")
    checked, _ = said(check_tao_launch_preflight, ON_SLURM)
    (told,) = [one for one in checked if one.id == "PRE-OUTPUT"]
    assert "on a compute node" in told.message
    (cluster / "there").mkdir()
    words = ["sh", "-c", preflight_slurm.LOOK, "sh", *"-r there -r gone -w there/new/deep".split()]
    words += ["-r", "there"]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"1\nend\n"


def test_a_model_of_which_nothing_tells_the_family_is_one_finding_in_each(here):
    write_annotations(here / "annotations.json", 2000)
    built, _ = said(build_spec, "train --model /there/mine --train-root . -o spec.toml")
    checked, _ = preflight("spec.toml")
    planned, _ = plan("spec.toml", "--output", "carried")
    for found in (built, checked, planned):
        told = [one.where for one in found if one.id == "SPEC-MODEL-ASSUMED"]
        assert told == ["policy.model_name_or_path"]


UNFILLED = (
    POLICY.replace("nvidia/Cosmos-Reason2-2B", "<PATH_TO_MODEL>")
    + """
[custom.train_dataset]
annotation_path = "/path/to/a.json"
media_path = "YOUR_CLIPS"
[train]
output_dir = "???"
train_policy = {type = "sft"}
"""
)


def test_words_that_nobody_filled_in_are_one_error_in_each(here):
    """No path of such a name is looked for, and no model."""
    (here / "recipe.toml").write_text(UNFILLED)
    built, _ = said(build_spec, "train --spec recipe.toml -o unused.toml")
    checked, _ = preflight("recipe.toml")
    planned, _ = plan("recipe.toml")
    carried, _ = plan("recipe.toml", "--output", "carried")
    for found in (built, checked, planned, carried):
        assert [one.id for one in found if one.severity == f.ERROR] == ["SPEC-PLACEHOLDER"]
        about_paths = ("PRE-PATH", "PRE-DATA", "JOB-INPUT", "SPEC-PATH", "HUB-")
        assert not [one for one in found if one.id.startswith(about_paths)]
    assert not (here / "carried").exists()


def test_what_a_preflight_proposes_is_accepted_by_plan(here):
    """On the machine that has the files, and for another one that has them."""
    text = located(GUIDE).replace("custom.dataset", "custom.train_dataset")
    text = text.replace("sft/annotations.json", "a.json").replace("sft/clips", "media")
    for number in range(8):
        (here / "media" / f"{number}.mp4").write_bytes(b"")
    (here / "guide.toml").write_text(text.replace("a.json", "/there/a.json"))
    checked, following = preflight("guide.toml")
    assert not errors(checked) and shlex.join(following).endswith("--output carry")
    assert_accepted(following)
    assert (here / "carry" / "run.sh").is_file()


@pytest.mark.parametrize("name", FOREIGN)
def test_no_cause_has_two_findings(here, name):
    """Neither of one key, nor of a key and of what its fix writes."""
    (here / "guide.toml").write_text(located(FOREIGN[name]))
    built, _ = said(build_spec, "--spec guide.toml -o unused.toml")
    keys = [one.where for one in built if one.severity == f.ERROR]
    assert len(keys) == len(set(keys))
    assert not validation.brought_by_renamings(built) & {one.where for one in built}


def test_every_key_misspelt_is_one_finding(here):
    """A letter too many, in each key of our template: what depends on the key waits."""
    template = document.template("train")
    for key, value in document.items("train", template):
        spec = document.template("train")
        document.delete(spec, key)
        document.set_value(spec, f"{key[:-1]}x{key[-1]}", value)
        document.dump(spec, here / "wrong.toml")
        found, _ = said(build_spec, "train --spec wrong.toml -o unused.toml")
        usual = {"SPEC-MODEL-OMNI", "SPEC-DATA-TRAIN"}
        about = [one for one in found if one.severity != f.INFO and one.id not in usual]
        assert len(about) == 1, (key, [(one.id, one.where, one.message) for one in about])


FLAGS = (
    "--docker-host unix:///s --network host --env HOME --partition gpu --account a --qos q "
    "--time-limit 60 --gres gpu:h100 --exclusive --requeue --module x --module y --cpus 16 "
    "--memory 64G --volume claim:/ --label a=b --gpu-resource x.y/z --node-selector pool=gpu "
    "--toleration team=a:NoSchedule"
)


def small_spec(here):
    """A spec of the embedded engine and eight records, in spec.toml."""
    write_annotations(here / "annotations.json", 8)
    line = "train --model model --engine transformers --train-root . --global-batch 4"
    said(build_spec, f"{line} -o spec.toml")


TAKEN = {
    "local": set(),
    "docker": {"--docker-host", "--network", "--env"},
    "slurm": {"--env", "--partition", "--account", "--qos", "--time-limit", "--gres",
              "--exclusive", "--requeue", "--module", "--cpus", "--memory"},
    "kubernetes": {"--env", "--cpus", "--memory", "--volume", "--label", "--gpu-resource",
                   "--node-selector", "--toleration"},
}  # fmt: skip


@pytest.mark.parametrize("platform", TAKEN)
def test_a_preflight_takes_every_flag_of_a_platform_and_hands_it_on(here, platform):
    small_spec(here)
    line = f"--platform {platform} --spec spec.toml --skip-platform-access {FLAGS}"
    args = check_tao_launch_preflight.parser().parse_args(line.split())
    outcome = check_tao_launch_preflight.main(args)
    useless = {one.where for one in outcome.findings if one.id == "PRE-FLAG-USELESS"}
    given = {word for word in FLAGS.split() if word.startswith("--")}
    assert useless == given - TAKEN[platform]
    handed_on = {word for word in map(str, outcome.next) if word in given}
    assert handed_on == TAKEN[platform] - {"--docker-host"} or platform == "docker"


@pytest.mark.parametrize(
    ("platform", "flags", "id"),
    [
        ("slurm", "--memory much", "JOB-SLURM-WORD"),
        ("slurm", "--module=-x", "JOB-SLURM-WORD"),
        ("slurm", "--account=-x", "JOB-SLURM-WORD"),
        ("slurm", "--qos 'a\nb'", "JOB-SLURM-WORD"),
        ("slurm", "--partition 'gpu;x'", "JOB-SLURM-WORD"),
        ("slurm", "--gres 'gpu:$(x)'", "JOB-SLURM-WORD"),
        ("slurm", "--time-limit soon", "JOB-SLURM-WORD"),
        ("slurm", "--env NO_SUCH_VARIABLE", "JOB-ENV"),
        ("slurm", "--image /x.sqsh --jobs-dir '/two words/jobs'", "JOB-SLURM-MOUNT"),
        ("kubernetes", "--label 'a b=c'", "JOB-K8S-FLAG"),
        ("kubernetes", "--label tao-job=x", "JOB-K8S-FLAG"),
        ("kubernetes", "--gpu-resource gpu", "JOB-K8S-FLAG"),
        ("kubernetes", "--node-selector pool", "JOB-K8S-FLAG"),
        ("kubernetes", "--jobs-dir /elsewhere/jobs", "JOB-K8S-VOLUME"),
        ("kubernetes", "--memory 64G --cpus 8 --label a.b/c=d", None),
        ("kubernetes", "--node-selector pool=gpu --toleration team=a:NoSchedule", None),
    ],
)
def test_what_the_launch_refuses_of_flags_the_preflight_says(here, platform, flags, id):
    small_spec(here)
    line = f"--platform {platform} --spec spec.toml --skip-platform-access"
    if platform == "kubernetes":
        line += f" --volume claim:{here} --image mine:1"
    found, _ = said(check_tao_launch_preflight, f"{line} {flags}")
    told = {one[0] for one in errors(found) if one[0].startswith("JOB-")}
    assert told == ({id} if id else set())


@pytest.mark.parametrize("flag", ["--gpu-ids", "--target-gpu-index"])
@pytest.mark.parametrize("platform", ["local", "slurm"])
def test_a_launch_on_the_cpu_is_checked_as_such(cluster, platform, flag):
    (cluster / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho this machine has some >&2; exit 9")
    (cluster / "bin" / "nvidia-smi").chmod(0o755)
    spec_for("transformers", "--gpus-per-node 1")
    line = f"--spec spec.toml --platform {platform} {flag} none"
    args = check_tao_launch_preflight.parser().parse_args(line.split())
    outcome = check_tao_launch_preflight.main(args)
    assert {id for id, _ in errors(outcome.findings) if not id.startswith("DATA-")} == set()
    following = outcome.next
    assert following[-2:] == ("--gpu-ids", "none")
    assert_accepted(following)
    assert "it runs on the CPU" in outcome.text and "GPU needs" not in outcome.text
    assert "host memory" in outcome.text
    assert "PRE-GPU-NONE" not in {one.id for one in outcome.findings}


def test_an_engine_that_needs_gpus_is_refused_the_cpu(here):
    spec_for("cosmos-rl", "--gpus-per-node 2")
    asked = ("--engine", "cosmos-rl", "--gpu-ids", "none")
    for found, _ in (preflight("spec.toml", *asked), plan("spec.toml", *asked)):
        (told,) = [one for one in found if one.id == "JOB-GPU-COUNT"]
        assert told.fix.flags == {"--gpu-ids": "0,1"}


def test_wrong_gpu_ids_are_a_usage_error(here):
    for given in ("None", "0,none", "", "-1"):
        with pytest.raises(SystemExit):
            check_tao_launch_preflight.parser().parse_args([f"--gpu-ids={given}"])
