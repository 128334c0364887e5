"""One spec of ours for each of NVIDIA's images, and specs that were written for one of them."""

import copy

import jsonschema
import pytest

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.spec import document, images, validation

NAME = "nvcr.io/nvidia/tao/tao-toolkit:{}-cosmos-rl"
VERSIONS = ("7.2.0", "7.1.0", "7.0.1")
JOB = "/jobs/evaluate-1"
FOREIGN = {
    "train": {
        "policy.qwen3_vl_patch_embed": "linear",
        "custom.system_prompt": "Answer in one word.",
        "train.ckpt.save_ckpt_at_exit": False,
    },
    "evaluate": {
        "model.qwen3_vl_patch_embed": "linear",
        "model.export_dir": "",
        "vision.num_frames": 12,
        "vision.video_decoder": "pynvvideocodec",
        "vision.dataloader_num_workers": 1,
        "evaluation.shard_strategy": "stride",
    },
}


def ours(action, **values):
    spec = document.template(action)
    for key, value in values.items():
        document.set_value(spec, key.replace("__", "."), value)
    return spec


def foreign(action):
    """A spec as people have it who use 7.2.0."""
    spec = document.template(action)
    if action == "evaluate":
        document.delete(spec, "vision.nframes")
    for key, value in FOREIGN[action].items():
        document.set_value(spec, key, value)
    return spec


def render(action, spec, version):
    return images.rendered(action, spec, images.facts(NAME.format(version)), JOB)


def differences(action, before, after):
    """(what is only before, what is only after), by key."""
    first, second = dict(document.items(action, before)), dict(document.items(action, after))
    gone = {key: value for key, value in first.items() if second.get(key) != value}
    come = {key: value for key, value in second.items() if first.get(key) != value}
    return gone, come


LINEAR = {"train": {"policy.qwen3_vl_patch_embed": "linear"},
          "evaluate": {"model.qwen3_vl_patch_embed": "linear", "vision.num_frames": 8}}  # fmt: skip
RENAMED = {"evaluate": {"vision.nframes": 8}}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("action", ["train", "evaluate", "inference", "quantize"])
def test_one_spec_of_ours_becomes_what_each_image_reads(action, version):
    spec = ours(action)
    before = copy.deepcopy(spec)
    gone, come = differences(action, spec, render(action, spec, version))
    assert spec == before
    is_newest = version == "7.2.0"
    assert come == (LINEAR.get(action, {}) if is_newest else {})
    assert gone == (RENAMED.get(action, {}) if is_newest else {})


@pytest.mark.parametrize("version", VERSIONS)
def test_an_adapter_is_merged_in_the_jobs_folder_by_the_image_that_merges(version):
    adapter = ours("evaluate", model__enable_lora=True, model__base_model_path="/base")
    _, come = differences("evaluate", adapter, render("evaluate", adapter, version))
    expected = f"{JOB}/merged" if version == "7.2.0" else None
    assert come.get("model.export_dir") == expected


def test_what_the_newest_image_needs_is_written_when_it_is_left_out():
    spec = ours("evaluate")
    for key in ("task", "metrics", "evaluation.answer_type", "dataset.system_prompt"):
        document.delete(spec, key)
    whole = render("evaluate", spec, "7.2.0")
    assert whole["task"] == {"type": ""} and isinstance(whole["metrics"]["names"], list)
    assert whole["evaluation"]["answer_type"] == "freeform"
    assert whole["dataset"]["system_prompt"] == ""
    assert "task" not in render("evaluate", spec, "7.1.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_system_message_is_also_where_the_images_own_dataset_script_reads_it(version):
    spec = ours("train", train__train_policy__system_prompt="Be brief.")
    whole = render("train", spec, version)
    assert whole["custom"]["system_prompt"] == "Be brief."
    assert whole["train"]["train_policy"]["system_prompt"] == "Be brief."


@pytest.mark.parametrize("action", FOREIGN)
def test_a_spec_for_the_newest_image_is_read_in_our_words_and_rendered_as_it_was(action):
    spec = foreign(action)
    before = copy.deepcopy(spec)
    neutral, found = images.translated(action, spec)
    assert spec == before
    assert [one.id for one in found] == ["SPEC-TRANSLATED"] and found[0].severity == f.INFO
    assert not f.has_errors(validation.validate(action, neutral))
    assert images.translated(action, neutral) == (neutral, [])
    again = render(action, neutral, "7.2.0")
    for key, value in FOREIGN[action].items():
        if value:
            assert document.get(again, key) == value, key
    assert not any("patch_embed" in key for key, _ in document.items(action, neutral))


def test_frames_have_our_name_in_what_was_translated():
    neutral, found = images.translated("evaluate", foreign("evaluate"))
    assert neutral["vision"]["nframes"] == 12 and "num_frames" not in neutral["vision"]
    assert "vision.num_frames is vision.nframes = 12" in found[0].message


def test_two_names_with_two_values_are_left_to_be_refused():
    spec = foreign("evaluate")
    spec["vision"]["nframes"] = 4
    neutral, _ = images.translated("evaluate", spec)
    found = validation.validate("evaluate", neutral)
    assert "vision.num_frames" in {one.where for one in found if one.severity == f.ERROR}


def test_a_patch_embedding_that_fails_is_left_out_with_a_warning():
    neutral, (found,) = images.translated(
        "train", ours("train", policy__qwen3_vl_patch_embed="auto")
    )
    assert (found.id, found.severity) == ("SPEC-COMPLETED-OTHERWISE", f.WARNING)
    assert found.where == "policy.qwen3_vl_patch_embed" and "auto" in found.message
    assert render("train", neutral, "7.2.0")["policy"]["qwen3_vl_patch_embed"] == "linear"


@pytest.mark.parametrize("version", ["7.1.0", "7.0.1"])
@pytest.mark.parametrize("action", FOREIGN)
def test_keys_that_an_image_lacks_are_refused_in_one_finding(action, version):
    name = NAME.format(version)
    (refused,) = images.check(action, foreign(action), name, None)
    assert (refused.id, refused.severity) == ("JOB-IMAGE-KEY", f.ERROR)
    for key, value in FOREIGN[action].items():
        is_lacking = value != "" and key != "custom.system_prompt"
        assert (key in refused.message) == is_lacking, key
    assert refused.fix.flags == {"--image": NAME.format("7.2.0")}
    assert images.check(action, foreign(action), NAME.format("7.2.0"), None) == []
    neutral, _ = images.translated("train", foreign("train"))
    assert images.check("train", neutral, name, None) == []


def test_the_largest_frame_of_an_evaluation_is_read_by_the_newest_image_only():
    spec = ours("evaluate", vision__max_pixels=360000)
    assert images.check("evaluate", spec, NAME.format("7.2.0"), None) == []
    assert render("evaluate", spec, "7.2.0")["vision"]["max_pixels"] == 360000
    (refused,) = images.check("evaluate", spec, NAME.format("7.1.0"), None)
    assert refused.id == "JOB-IMAGE-KEY" and "--unset of vision.max_pixels" in refused.message
    assert "vision.max_pixels" not in images.settings("evaluate")


def test_no_default_is_warned_of():
    assert images.default("tao") == NAME.format("7.2.0")
    assert images.issue(images.default("tao"), "tao", None) is None
    for action in ("train", "evaluate"):
        assert images.check(action, document.template(action), images.default("tao"), None) == []
    reason, other = images.issue(NAME.format("7.1.0"), "tao", None)
    assert reason and images.issue(other, "tao", None) is None


@pytest.mark.parametrize(
    ("name", "flag", "version", "severity"),
    [
        (NAME.format("7.1.0"), None, "7.1.0", None),
        (NAME.format("7.1.0") + "@sha256:" + "0" * 64, None, "7.1.0", f.INFO),
        ("registry.example:5000/mirror/tao:7.0.1-cosmos-rl", None, "7.0.1", f.INFO),
        ("registry.example/tao@sha256:" + "0" * 64, None, "7.2.0", f.WARNING),
        ("registry.example/tao@sha256:" + "0" * 64, "7.1.0", "7.1.0", None),
        ("mine:17.1.0", None, "7.2.0", f.WARNING),
        (NAME.format("7.1.0"), "7.2.0", "7.2.0", f.ERROR),
    ],
)
def test_an_image_that_is_not_listed_is_taken_for_a_version_and_that_is_said(
    name, flag, version, severity
):
    assert images.facts(name, flag)["version"] == version
    found = images.check("train", document.template("train"), name, flag)
    assert [one.severity for one in found] == ([severity] if severity else [])
    assert all(one.id == "JOB-IMAGE-VERSION" for one in found)
    if severity == f.WARNING:
        assert "--image-version" in found[0].message and "7.1.0" in found[0].message


def test_what_the_images_say_of_our_keys_is_true_of_the_schemas():
    for image in bundle.skill_info()["images"].values():
        for action, rules in image["specs"].items():
            known = document.keys(action)
            words = {*rules.get("copies", {}), *rules.get("renames", {})}
            words |= {*rules.get("needs", ()), *rules.get("knows", ())}
            assert words <= known.keys()
            theirs = {*rules.get("copies", {}).values(), *rules.get("renames", {}).values()}
            theirs |= {*rules.get("writes", {}), *rules.get("adds", ())}
            assert not theirs & known.keys()


OWN_VALUES = [("task.type", "metropolis_sgd"), ("task.type", "binary"),
              ("task.type", "mcq"), ("task.type", "text"),
              ("evaluation.answer_type", "naive")]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), OWN_VALUES)
def test_values_of_the_newest_image_pass_and_only_older_images_refuse_them(key, value):
    spec = ours("evaluate", **{key: value})
    assert not f.has_errors(validation.validate("evaluate", spec))
    assert images.check("evaluate", spec, NAME.format("7.2.0"), None) == []
    (refused,) = images.check("evaluate", spec, NAME.format("7.1.0"), None)
    assert (refused.id, refused.severity, refused.where) == ("JOB-IMAGE-KEY", f.ERROR, key)
    assert value in refused.message and refused.fix.flags == {"--image": NAME.format("7.2.0")}


def test_an_inference_spec_of_the_images_is_read_in_our_words():
    spec = {"model_path": "/m", "media": "a.mp4", "fps": 1, "total_pixels": 200704}
    neutral, (told,) = images.translated("inference", spec | {"max_new_tokens": 32})
    assert told.id == "SPEC-TRANSLATED"
    assert neutral["vision"] == {"fps": 1, "total_pixels": 200704}
    assert neutral["generation"] == {"max_tokens": 32} and "fps" not in neutral


@pytest.mark.parametrize("action", ["train", "evaluate", "inference", "quantize"])
@pytest.mark.parametrize("version", images.versions())
def test_an_editors_schema_takes_what_an_image_reads(action, version):
    image = images.facts("", version)
    adds = {key: 1 for key in image["specs"].get(action, {}).get("adds", ())}
    changes = {name.replace(".", "__"): value for name, value in adds.items()}
    written = images.rendered(action, ours(action, **changes), image, "/job")
    validator = jsonschema.Draft202012Validator(images.schema(action, image))
    assert [one.message for one in validator.iter_errors(written)] == []
    assert list(validator.iter_errors(written | {"other": 1}))


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("vision.video_decoder", "pynvvideocodec", 3),
        ("vision.decoder_threads", 2, 0),
        ("vision.decoder_device", "cuda:0", -1),
        ("vision.video_cache_size", 0, -1),
        ("vision.dataloader_persistent_workers", True, "maybe"),
        ("vision.dataloader_multiprocessing_context", "spawn", "thread"),
        ("evaluation.barrier_timeout_seconds", 60, 0),
    ],
)
def test_settings_of_the_image_are_held_to_their_kind(key, good, bad):
    spec = document.template("evaluate")
    document.set_value(spec, key, good)
    assert key not in {found.where for found in validation.validate("evaluate", spec)}
    document.set_value(spec, key, bad)
    wrong = [found for found in validation.validate("evaluate", spec) if found.where == key]
    assert [found.id for found in wrong] == ["SPEC-VALUE"] and str(bad) in wrong[0].message
