"""Nested keys, values as text, defaults, files and schema findings of one spec."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_specs import legal

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import value_text
from cosmos_reason.spec import document, validation
from cosmos_reason.spec import values as spec_values

NAMES = st.text("abc", min_size=1, max_size=2)
SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=5))
TABLES = st.dictionaries(
    NAMES, st.recursive(SCALARS, lambda sub: st.dictionaries(NAMES, sub, max_size=3)), max_size=4
)
AWKWARD = [
    'say "hi"',
    "it's",
    "C:\\data\\new\\table",
    "a\nb\tc",
    "名前 📹",
    "x = 1 # no comment",
    "[not a list",
    "${HOME}",
    "",
]


def wrong(action, **changes):
    """The findings about the action's template with some keys changed (double underscores are
    dots)."""
    table = document.template(action)
    for name, value in changes.items():
        document.set_value(table, name.replace("__", "."), value)
    return {finding.where: finding for finding in validation.validate(action, table)}


# ---- nested tables -------------------------------------------------------------------------------


@given(TABLES, st.lists(NAMES, min_size=1, max_size=3).map(".".join), SCALARS)
def test_set_then_get_then_delete(table, key, value):
    document.set_value(table, key, value)
    assert document.get(table, key) == value
    assert document.delete(table, key)
    assert document.get(table, key, document.MISSING) is document.MISSING
    assert not document.delete(table, key)


def test_delete_takes_empty_tables_along():
    table = {"a": {"b": {"c": 1}}, "d": 2}
    assert document.delete(table, "a.b.c")
    assert table == {"d": 2}


def test_delete_does_not_look_inside_values():
    assert not document.delete({"a": 3}, "a.b")


def test_with_defaults_fills_every_key_that_has_one_and_changes_nothing_given():
    for action in bundle.ACTIONS:
        written = document.template(action)
        full = document.with_defaults(action, written)
        for key, leaf in document.keys(action).items():
            if "default" in leaf and not key.startswith("policy.lora."):
                assert document.get(full, key, document.MISSING) is not document.MISSING, key
        for key, value in document.items(action, written):
            assert document.get(full, key) == value
        assert written == document.template(action)


def test_lora_is_off_unless_its_table_is_there():
    assert document.with_defaults("train", document.template("train"))["policy"]["lora"] is None
    table = document.template("train")
    document.set_value(table, "policy.lora.r", 4)
    assert document.with_defaults("train", table)["policy"]["lora"]["lora_alpha"] == 8.0


# ---- values as text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("train.epoch", "3", 3),
        ("train.optm_lr", "1e-5", 1e-5),
        ("train.optm_warmup_steps", "1.0", 1.0),
        ("train.optm_warmup_steps", "1", 1),
        ("train.compile", "true", True),
        ("train.resume", "true", True),
        ("train.resume", "/runs/step_3/policy", "/runs/step_3/policy"),
        ("train.ckpt.upload_s3", "final", "final"),
        ("train.ckpt.upload_s3", "false", False),
        ("train.timestamp", "20260101", "20260101"),
        ("train.optm_betas", "0.9,0.95", [0.9, 0.95]),
        ("train.optm_betas", "[0.9, 0.95]", [0.9, 0.95]),
        ("logging.logger", "console,wandb", ["console", "wandb"]),
        ("logging.logger", "console", ["console"]),
        ("policy.lora.target_modules", "q_proj, v_proj", ["q_proj", "v_proj"]),
        ("policy.lora.target_modules", "all-linear", "all-linear"),
        ("train.train_policy.dataset.split", "train", "train"),
        ("train.train_policy.dataset.split", "train,extra", ["train", "extra"]),
        ("policy.lora.r_pattern", "{q_proj = 4}", {"q_proj": 4}),
        ("policy.freeze_pattern", "^x[0-9]{1,2}$", ["^x[0-9]{1,2}$"]),
        ("policy.freeze_pattern", "^(a,b),c", ["^(a,b)", "c"]),
        ("policy.freeze_pattern", "'a,b'", ["a,b"]),
        ("policy.freeze_pattern", "\"a,b\",'c'", ["a,b", "c"]),
        ("policy.freeze_pattern", "a\\(b,c", ["a\\(b", "c"]),
        ("policy.lora.target_modules", "[q_proj,v_proj]", ["q_proj", "v_proj"]),
        ("logging.logger", "[console]", ["console"]),
        ("train.train_policy.system_prompt", "'quoted'", "quoted"),
        ("train.train_policy.system_prompt", 'say "hi"', 'say "hi"'),
    ],
)
def test_values_are_read_as_the_key_takes_them(key, written, value):
    parsed = spec_values.parse(document.keys("train")[key], written)
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_list_value_never_becomes_one_entry_with_commas():
    for action in bundle.ACTIONS:
        for key, leaf in document.keys(action).items():
            options = leaf.get("anyOf", [leaf])
            if any(option.get("type") == "array" for option in options):
                assert len(spec_values.parse(leaf, "a,b")) == 2, key


@given(st.data())
def test_what_is_shown_reads_back(data):
    action = data.draw(st.sampled_from(bundle.ACTIONS))
    key = data.draw(st.sampled_from(sorted(document.keys(action))))
    leaf = document.keys(action)[key]
    value = data.draw(legal(leaf))
    shown = value_text(value)
    if isinstance(value, str) and leaf.get("type") != "string":
        return  # text beside other kinds: "3" and 3 are written the same
    if not (isinstance(value, str) and shown[:1] in ('"', "'")):
        assert spec_values.parse(leaf, shown) == value


@pytest.mark.parametrize("value", AWKWARD)
def test_text_that_needs_quoting_survives_flag_toml_and_file(tmp_path, value):
    leaf = document.keys("train")["train.train_policy.system_prompt"]
    assert spec_values.parse(leaf, value) == value
    table = document.template("train")
    document.set_value(table, "train.train_policy.system_prompt", value)
    assert validation.validate("train", table) == []
    document.dump(table, tmp_path / "spec.toml")
    assert document.load(tmp_path / "spec.toml") == table


# ---- files ---------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.toml", None),
        ("broken.toml", "a = ["),
        ("twice.toml", "a = 1\na = 2\n"),
        ("spec.json", "{}"),
        ("spec", "a = 1"),
        ("utf16.toml", "a = 1".encode("utf-16")),
        ("zero.yaml", ""),
        ("list.yaml", "- 1\n- 2\n"),
        ("broken.yaml", "a: [1, 2"),
        ("twice.yaml", "train:\n  epoch: 1\n  epoch: 2\n"),
        ("bomb.yaml", BOMB),
        ("loop.yaml", "a: &a\n  b: *a\n"),
        ("tag.yaml", "a: !!python/object/apply:os.system ['true']\n"),
        ("number.yaml", "1: 2\n"),
        ("merge.yaml", "a: {x: 1}\nb: {<<: {y: 2}}\n"),
        ("deep.yaml", "a: " + "[" * 5000),
        ("nested.yaml", "a: " + "[" * 400 + "]" * 400),
        ("overrun.yaml", "a: " + "[" * 100_000),
        ("maps.yaml", "{a: " * 3000 + "}" * 3000),
        ("digits.toml", f"a = {'9' * 5000}"),
        ("dotted.toml", '"train.epoch" = 7\n[train]\nepoch = 2\n'),
        ("date.yaml", "a: 2026-99-99\n"),
        ("path.toml", "a." * 100_000 + "a = 1\n"),
        ("spaced.toml", "[" + '"a" . ' * 30_000 + "a]\n"),
        ("huge.toml", "# " + "x" * (document.MAX_BYTES + 1)),
    ],
)
def test_files_that_are_no_spec_are_refused(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(f.Failure) as failure:
        document.load(path)
    assert failure.value.exit_code == f.EXIT_BAD_INPUT
    assert len(failure.value.findings[0].message) < 500


def test_a_folder_or_a_pipe_is_no_spec(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml"):
        with pytest.raises(f.Failure):
            document.load(path)


# ---- validation ----------------------------------------------------------------------------------


# key, value, and the fix: the legal value that it may have meant, where one is known
WRONG = [
    ("train__epoch", 0, ""),  # which number was meant is not known
    ("train__epoch", 3.0, "--set train.epoch=3"),
    ("train__epoch", "3", "--set train.epoch=3"),
    ("train__epoch", True, ""),
    ("train__optm_lr", "1e-5", "--set train.optm_lr=1e-05"),
    ("train__optm_lr", -1e-5, ""),
    ("train__optm_lr", 0, ""),
    ("train__optm_lr", 1e-50, ""),
    ("train__optm_lr", float("nan"), ""),
    ("train__optm_lr", float("inf"), ""),
    ("train__epsilon", 1e-60, ""),
    ("train__seed", 2**70, ""),
    ("train__seed", -1, ""),
    ("train__seed", float("nan"), ""),
    ("train__compile", "False", "--set train.compile=false"),
    ("train__compile", "no", "--set train.compile=false"),
    ("train__optm_name", "adamw", "--set train.optm_name=AdamW"),
    ("train__optm_decay_type", "cosin", ""),
    ("train__optm_betas", [0.9], ""),
    ("train__optm_betas", [0.9, 1.0], ""),
    ("train__ckpt__save_freq", 0, ""),
    ("train__ckpt__upload_s3", "Final", "--set train.ckpt.upload_s3=final"),
    ("train__ckpt__upload_s3", True, ""),  # final or all? never off
    ("train__resume", 3, ""),
    ("train__master_dtype", "float64", ""),
    ("train__master_dtype", "fp32", "--set train.master_dtype=float32"),
    ("policy__parallelism__dp_shard_size", -1, ""),
    ("custom__vision__nframes", 7, ""),
    ("validation__freq_in_epoch", 0, "--unset validation.freq_in_epoch"),
    ("logging__logger", "console", "--set 'logging.logger=[\"console\"]'"),
    ("logging__logger", ["consol"], ""),
    ("logging__logger", ["console", "consol"], ""),
    ("logging__logger", ["Console", "wandb"], '--set \'logging.logger=["console", "wandb"]\''),
    ("train__train_policy__mini_batch", None, "--set train.train_policy.mini_batch=1"),
    ("train__train_policy__system_prompt", "\udcff", ""),
    ("train__train_policy__system_prompt", '"', ""),
    ("train__output_dir", "a\0b", ""),
    ("policy__freeze_pattern", [" ,x"], ""),
    ("redis", 12800, ""),
]


@pytest.mark.parametrize(("key", "value", "fix"), WRONG)
def test_a_wrong_value_is_one_finding_with_the_legal_one_it_may_have_meant(key, value, fix):
    (finding,) = wrong("train", **{key: value}).values()
    told = (finding.id, finding.where, str(finding.fix))
    assert told == ("SPEC-VALUE", key.replace("__", "."), fix)


@pytest.mark.parametrize(
    ("key", "value"),
    [("policy__model_name_or_path", ""), ("train__train_policy__type", "grpo"),
     ("train__train_policy", 3)],
)  # fmt: skip
def test_a_wrong_text_or_table_is_one_finding(key, value):
    assert list(wrong("train", **{key: value})) == [key.replace("__", ".")]


def test_everything_wrong_is_found_at_once():
    found = wrong(
        "train",
        train__epoch=0,
        train__optm_lr="fast",
        trian=3,
        logging__logger=["x"],
        policy__lora={"r": 0},
    )
    assert found.keys() >= set(
        "train.epoch train.optm_lr trian logging.logger policy.lora.r".split()
    )
    assert "policy.lora.target_modules" in found  # required beside the rank


def test_extra_keys_pass_when_the_spec_names_them():
    table = document.template("train")
    document.set_value(table, "profiler.of_tomorrow", True)
    assert [finding.severity for finding in validation.validate("train", table)] == [f.ERROR]
    document.set_value(table, "custom.extra_keys", ["profiler.of_tomorrow"])
    (finding,) = validation.validate("train", table)
    assert (finding.where, finding.severity) == ("profiler.of_tomorrow", f.WARNING)


def test_keys_of_the_trainer_pass_in_one_info():
    table = document.template("train")
    document.set_value(table, "profiler.enable_nsys", True)
    document.set_value(table, "rollout.parallelism.n_init_replicas", 0)
    document.set_value(table, "distillation", {})
    document.set_value(table, "train.sync_weight_interval", 1)
    document.set_value(table, "train.optm_lr", [1e-5, 2e-5])
    document.set_value(table, "train.train_policy.dataset.test_size", 0)
    (finding,) = validation.validate("train", table)
    assert (finding.id, finding.severity) == ("SPEC-KEY-EXTRA", f.INFO)
    for key in ("enable_nsys", "n_init_replicas", "distillation", "sync_weight", "optm_lr"):
        assert key in finding.message
    document.set_value(table, "train.optm_lr", [1e-5, "fast"])
    document.set_value(table, "rollout.parallelism.n_init_replica", 1)
    errors = {one.where for one in validation.validate("train", table) if one.severity == f.ERROR}
    assert errors == {"train.optm_lr", "rollout.parallelism.n_init_replica"}


def test_below_custom_only_what_looks_like_ours_is_an_error():
    table = document.template("train")
    document.set_value(table, "custom.dataset", {"path": "data"})
    document.set_value(table, "custom.system_prompt", "Be brief.")
    document.set_value(table, "custom.vision.reader", "torchcodec")
    (finding,) = validation.validate("train", table)
    assert (finding.id, finding.severity) == ("SPEC-CUSTOM-TABLE", f.INFO)
    for key in ("custom.dataset", "custom.system_prompt", "custom.vision.reader"):
        assert key in finding.message
    document.set_value(table, "custom.train_dataset.annotation_path", "a.json")
    (told,) = validation.validate("train", table)
    assert told.message == f"{finding.message}: training reads custom.train_dataset.annotation_path"
    document.set_value(table, "custom.train_datasets", {"annotation_path": "a.json"})
    document.set_value(table, "custom.vision.max_frame", 4)
    document.set_value(table, "custom.transformers_engine.anything", 4)
    wrong = {
        one.where: one for one in validation.validate("train", table) if one.severity == f.ERROR
    }
    assert wrong.keys() == {
        "custom.train_datasets",
        "custom.vision.max_frame",
        "custom.transformers_engine.anything",
    }
    fix = wrong["custom.vision.max_frame"].fix
    assert fix.changes == {"custom.vision.max_frame": None, "custom.vision.max_frames": 4}


@given(TABLES)
def test_no_table_makes_validation_raise(table):
    for action in ("train", "evaluate"):
        for finding in validation.validate(action, {**document.template(action), **table}):
            assert finding.where
            assert finding.message.startswith("got")


@pytest.mark.parametrize(
    ("skill", "written", "relative"),
    [
        ("work/.claude/skills/tune", "work/specs/a.toml", "../.claude/skills/tune/schemas/"),
        ("work/skill", "work/skill/jobs/a.toml", "../schemas/"),
        ("work/skill", "work/a.toml", None),  # they may move apart
        (".claude/skills/tune", "work/a.toml", None),  # of the user, not of a project
    ],
)
def test_the_schemas_place_moves_with_the_project(tmp_path, monkeypatch, skill, written, relative):
    root, path = tmp_path / skill, tmp_path / written
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(bundle, "ROOT", root)
    monkeypatch.setattr(bundle, "SCHEMAS", root / "schemas")
    document.dump({"a": 1}, path, "train")
    first = path.read_text().splitlines()[0]
    address = f"{relative}train.schema.json" if relative else bundle.schema_path("train").as_uri()
    assert first == f"#:schema {address}"


def test_a_list_where_one_text_is_wanted_is_taken_apart_or_put_together():
    table = document.template("train")
    document.set_value(table, "custom.train_dataset.annotation_path", ["a/x.json"])
    (one,) = validation.validate("train", table)
    assert one.fix.changes == {"custom.train_dataset.annotation_path": "a/x.json"} and one.fix.sure
    several = ["a/x.json", "b/x.json"]
    document.set_value(table, "custom.train_dataset.annotation_path", several)
    (both,) = validation.validate("train", table)
    assert str(both.fix) == "--train-root a --train-root b"


def test_a_part_of_the_model_may_have_no_rate():
    table = document.template("train")
    document.set_value(table, "train.optm_lr", [2e-5, 5e-6, 0.0])
    assert {one.severity for one in validation.validate("train", table)} == {f.INFO}
    document.set_value(table, "train.optm_lr", [0.0, 0.0])
    assert f.ERROR in {one.severity for one in validation.validate("train", table)}
