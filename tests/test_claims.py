"""What skill_info.yaml says was executed has something that shows it, and no page says more."""

import copy
import re

import pytest
from support import ROOT, make_docs

from cosmos_reason.base import bundle

INTEGRATION = "tests/integration"
ENGINE = f"{INTEGRATION}/jobs/test_launch_engine.py"
RANKS = f"{INTEGRATION}/jobs/test_launch_ranks.py"
CLUSTER = f"{INTEGRATION}/slurm/test_slurm.py"
SLURM = f"{INTEGRATION}/slurm/test_slurm_actions.py"
ACCOUNTS = f"{INTEGRATION}/slurm/test_slurm_accounts.py"
PODS = f"{INTEGRATION}/kubernetes/test_kubernetes_actions.py"
KUBECTL = f"{INTEGRATION}/kubernetes/test_kubernetes.py"
RECORD = "benchmarks/RESULTS.md"  # where nobody has a GPU in the tests
# (engine, platform, what) -> (file, words in it): the program's own, run there to the end.
EXECUTED = {
    ("cosmos-rl", "local", "train"): (RECORD, "--engine cosmos-rl"),
    ("cosmos-rl", "local", "grpo"): (RECORD, "All three are COMPLETE"),
    ("transformers", "local", "train"): (ENGINE, "test_a_killed_training_is_retried"),
    ("transformers", "local", "evaluate"): (ENGINE, "test_an_evaluation_is_complete"),
    ("transformers", "local", "inference"): (ENGINE, "test_an_inference_is_complete"),
    ("transformers", "local", "quantize"): (f"{INTEGRATION}/engine/test_quantize.py", '"local"'),
    ("transformers", "docker", "train"): (ENGINE, "test_twenty_steps_in_a_container"),
    ("transformers", "docker", "evaluate"): (ENGINE, "test_an_evaluation_in_a_container"),
    ("transformers", "slurm", "train"): (SLURM, "test_a_killed_training_goes_on"),
    ("transformers", "slurm", "evaluate"): (SLURM, "test_an_evaluation"),
    ("transformers", "slurm", "inference"): (SLURM, "test_an_inference"),
    ("transformers", "slurm", "quantize"): (SLURM, "test_a_quantization"),
    ("transformers", "slurm", "several nodes"): (RANKS, "test_two_nodes_train_as_one_process"),
    ("slurm", "cancel"): (
        f"{INTEGRATION}/slurm/test_slurm.py",
        "test_a_canceled_job_may_end_in_order",
    ),
    ("slurm", "retry"): (SLURM, "test_a_killed_training_goes_on"),
    ("slurm", "requeue"): (
        f"{INTEGRATION}/slurm/test_slurm_accounts.py",
        "test_a_job_is_begun_anew",
    ),
    ("slurm", "AutoML's trials"): (SLURM, "test_trials_are_jobs_there"),
    ("slurm", "environment modules"): (SLURM, '["this one", "of a module"]'),
    ("slurm", "inputs of S3"): (CLUSTER, "test_what_s3_has_is_staged"),
}
REHEARSED = {
    ("cosmos-rl", "slurm", "several nodes"): (CLUSTER, "test_cosmos_rl_on_two_nodes"),
    ("transformers", "kubernetes", "train"): (PODS, "test_two_nodes_train_as_one"),
    ("transformers", "kubernetes", "evaluate"): (PODS, "test_an_evaluation"),
    ("transformers", "kubernetes", "inference"): (PODS, "test_an_inference"),
    ("transformers", "kubernetes", "quantize"): (PODS, "test_a_quantization"),
    ("transformers", "kubernetes", "several nodes"): (PODS, "test_two_nodes_train_as_one"),
    ("kubernetes", "cancel"): (KUBECTL, "test_cancel_asks"),
    ("kubernetes", "retry"): (
        KUBECTL,
        "test_the_life_of_a_job",
    ),
    ("kubernetes", "AutoML's trials"): (PODS, "test_trials_are_jobs_there"),
}
# What a page says by hand and may: it says less than the tables, never more.
BY_HAND = {
    "cosmos-reason-automl.md": ["its jobs were never run in the image"],
    "cosmos-reason-quantize.md": ["image: rendered, never run here)"],
}
WORDS = re.compile(r"executed|rendered|never run|never exercised|rehears|real cluster|stand-in")
GENERATED = re.compile(r"<!-- make docs: [a-z ]+ -->\n.*?<!-- end -->", re.DOTALL)


def executed():
    found = set()
    for engine, facts in bundle.skill_info()["engines"].items():
        for platform, said in facts["launched"].items():
            found |= {(engine, platform, action) for action in said if said[action] != "rendered"}
        for platform, how in facts.get("several_nodes", {}).items():
            if how != "rendered":
                found.add((engine, platform, "several nodes"))
    for platform, facts in bundle.skill_info()["clusters"].items():
        found |= {(platform, what) for what in facts.get("besides", [])}
    return found


def rehearsed():
    found = set()
    for platform, facts in bundle.skill_info()["clusters"].items():
        said = facts["rehearsed"]
        for engine, actions in said.get("engines", {}).items():
            found |= {(engine, platform, action) for action in actions}
        found |= {(engine, platform, "several nodes") for engine in said["several_nodes"]}
        found |= {(platform, what) for what in said.get("besides", [])}
    return found


def test_what_is_said_to_be_executed_has_something_that_shows_it():
    assert executed() == set(EXECUTED) and rehearsed() == set(REHEARSED)
    for claim, (name, words) in (EXECUTED | REHEARSED).items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert words in text, claim
        assert name == RECORD or "mark.integration" in text, claim


def test_what_was_rehearsed_is_rendered_in_the_tables():
    assert not {claim for claim in rehearsed() if len(claim) == 3} & executed()


def pages():
    return [ROOT / "SKILL.md", ROOT / "README.md", *sorted((ROOT / "references").glob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_no_page_says_by_hand_what_was_executed(page):
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    for words in BY_HAND.get(page.name, []):
        assert words in text
        text = text.replace(words, "")
    if page.name == "cosmos-reason-launch.md":
        never = f"{', '.join(bundle.skill_info()['never_exercised'])}: never exercised."
        assert never in text
        text = text.replace(never, "")
    assert not [line for line in text.splitlines() if WORDS.search(line)]


def test_the_quantization_in_nvidias_image_is_still_rendered():
    assert bundle.skill_info()["engines"]["tao"]["launched"]["docker"]["quantize"] == "rendered"


def test_a_claim_that_is_taken_back_leaves_every_page(monkeypatch):
    info = copy.deepcopy(bundle.skill_info())
    embedded = info["engines"]["transformers"]
    embedded["launched"]["slurm"] = dict.fromkeys(embedded["launched"]["slurm"], "rendered")
    embedded["several_nodes"]["slurm"] = "rendered"
    monkeypatch.setattr(bundle, "skill_info", lambda: info)
    docs = make_docs()
    assert "Executed" not in docs.run_on("slurm") and "bare" not in docs.launched(embedded, "train")
    assert "slurm" in docs.only_rendered() and "slurm" in docs.limits()


def test_an_image_on_slurm_is_never_said_to_be_executed():
    said = make_docs().run_on("slurm").splitlines()
    assert "in an environment of the nodes" in said[0] and "image" not in said[0]
    assert "anything in an image (Pyxis and Enroot)" in said[-1] and "never executed" in said[-1]
