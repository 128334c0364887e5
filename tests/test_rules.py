"""Each rule on the smallest spec that breaks it: its finding, its fix, and silence when all is well."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_specs import legal_values

from cosmos_reason import bundle, rules, schedule, spec, spec_rules, storage
from cosmos_reason import findings as f

REASON1 = "hf_model://nvidia/Cosmos-Reason1-7B"  # a model cosmos-rl has a class of its own for
LORA = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


def changed(action, changes):
    """The action's template with some keys changed; None removes a key."""
    table = spec.template(action)
    for key, value in changes.items():
        if value is None:
            spec.delete(table, key)
        else:
            spec.set_value(table, key, value)
    return table


def found(action, engine="tao", gpus=None, nodes=1, facts=None, launch=False, **changes):
    """Rule id -> finding."""
    table = changed(action, {name.replace("__", "."): value for name, value in changes.items()})
    return {one.id: one for one in rules.check(action, engine, table, facts, gpus, nodes, launch)}


GRID, POLICY, CKPT = "policy__parallelism__", "train__train_policy__", "train__ckpt__"
# (rule, action, engine, what breaks it)
BREAKS = [
    ("SPEC-MODEL-OMNI", "train", "tao", {}),
    ("SPEC-GPUS", "train", "tao", {"gpus": 8}),
    ("SPEC-GPUS", "train", "tao", {"gpus": 8, GRID + "dp_shard_size": 8, GRID + "tp_size": 2}),
    ("SPEC-GPUS-GRPO", "grpo", "cosmos-rl", {"gpus": 2}),
    ("SPEC-GPUS-IDLE", "grpo", "cosmos-rl", {"gpus": 8}),
    ("SPEC-COLOCATED", "grpo", "cosmos-rl", {"mode": "colocated", GRID + "dp_shard_size": 1}),
    ("SPEC-GPUS-FEW", "train", "tao", {"gpus": 1}),
    ("SPEC-GPUS-FEW-GRPO", "grpo", "cosmos-rl", {"gpus": 2}),
    ("SPEC-QWEN3-COMPILE", "train", "tao", {"train__compile": True}),
    ("SPEC-QWEN3-CONTEXT", "train", "tao", {GRID + "cp_size": 2}),
    ("SPEC-QWEN3-PIPELINE", "train", "tao", {GRID + "pp_size": 2}),
    ("SPEC-REPLICATE-1D", "train", "tao", {GRID + "dp_replicate_size": 2, GRID + "tp_size": 2}),
    ("SPEC-PIPELINE-REPLICATE", "train", "tao", {GRID + "pp_size": 2, GRID + "dp_replicate_size": 2}),
    ("SPEC-PIPELINE-MICRO", "train", "tao", {GRID + "pp_size": 2, GRID + "pp_micro_batch_size": 3}),
    ("SPEC-PIPELINE-OFFLOAD", "train", "tao", {GRID + "pp_size": 2, "train__fsdp_offload": True}),
    ("SPEC-PIPELINE-LORA", "train", "tao", {GRID + "pp_size": 2, "policy__lora": LORA}),
    ("SPEC-EXPERT-TENSOR", "train", "tao", {GRID + "ep_size": 2, GRID + "tp_size": 2}),
    ("SPEC-ASYNC-TP", "train", "tao", {"train__async_tp_enabled": True}),
    ("SPEC-BATCH-MULTIPLE", "train", "tao", {"train__train_batch_per_replica": 10, POLICY + "mini_batch": 4}),
    ("SPEC-BATCH-MESH", "grpo", "cosmos-rl", {"train__train_batch_per_replica": 126}),
    ("SPEC-SAVE-NEVER", "train", "tao", {"train__max_num_steps": 10}),
    ("SPEC-VALIDATION-NEVER", "train", "tao", {"train__max_num_steps": 10, "validation__enable": True}),
    ("SPEC-WARMUP-TWICE", "train", "tao", {"train__optm_warmup_epochs": 1}),
    ("SPEC-WARMUP-FLOAT", "train", "tao", {"train__optm_warmup_steps": 20.0}),
    ("SPEC-WARMUP-ALL", "train", "tao", {"train__optm_warmup_steps": 1.0}),
    ("SPEC-WARMUP-ALL", "train", "tao", {"train__optm_warmup_steps": 50, "train__max_num_steps": 50}),
    ("SPEC-WARMUP-LONG", "train", "tao", {"train__optm_warmup_steps": 20, "train__max_num_steps": 50}),
    ("SPEC-DECAY", "train", "tao", {"train__optm_decay_ratio": 0.5, "train__optm_decay_type": "none"}),
    ("SPEC-RATE-HIGH", "train", "tao", {"train__optm_lr": 1e-3}),
    ("SPEC-SEED", "train", "tao", {"train__deterministic": True, "train__seed": 7}),
    ("SPEC-SAVE-OFF", "train", "tao", {CKPT + "enable_checkpoint": False}),
    ("SPEC-S3-BUCKET", "train", "tao", {CKPT + "upload_s3": "final"}),
    ("SPEC-HUB-NAME", "train", "tao", {CKPT + "upload_hf": True}),
    ("SPEC-RESUME-TEXT", "train", "tao", {"train__resume": "true"}),
    ("SPEC-RESUME-FOLDER", "train", "tao", {"train__resume": "/out/checkpoints/step_20"}),
    ("SPEC-RESUME-STEPS", "train", "tao", {"train__resume": True}),
    ("SPEC-RUN-FOLDER", "train", "tao", {"train__timestamp": "mine"}),
    ("SPEC-VALIDATION-DATA", "train", "tao", {"validation__enable": True}),
    ("SPEC-VALIDATION-OFF", "train", "tao", {"custom__val_dataset__annotation_path": "/data/a.json"}),
    ("SPEC-VALIDATION-LOSS", "train", "tao", {"validation__enable": True, POLICY + "dataloader_drop_last": True}),
    ("SPEC-BEST", "train", "tao", {"validation__enable": True, "validation__freq": 15}),
    ("SPEC-BEST", "train", "tao", {"validation__enable": True, CKPT + "save_freq_in_epoch": 1}),
    ("SPEC-CACHE", "train", "tao", {POLICY + "enable_dataset_cache": True}),
    ("SPEC-PREFETCH", "train", "tao", {POLICY + "dataloader_num_workers": 0}),
    ("SPEC-LOGGER", "train", "tao", {"logging__logger": ["wandb"]}),
    ("SPEC-LOGGER-TAO", "train", "cosmos-rl", {"logging__logger": ["console", "tao"]}),
    ("SPEC-DATA-TRAIN", "train", "tao", {}),
    ("SPEC-FREEZE", "train", "tao", {"policy__freeze_pattern": ["a"], "policy__trainable_pattern": ["b"]}),
    ("SPEC-LORA-MERGE", "train", "tao", {"policy__lora": {**LORA, "target_modules": "all-linear"}}),
    ("SPEC-LORA-GRPO-TP", "grpo", "cosmos-rl", {"policy__lora": LORA, GRID + "tp_size": 2}),
    ("SPEC-LORA-GRPO-COMPILE", "grpo", "cosmos-rl", {"policy__lora": LORA, "train__compile": True}),
    ("SPEC-FRAMES-ONE", "train", "tao", {"custom__vision__fps": 2}),
    ("SPEC-FRAMES-ONE", "evaluate", "tao", {"vision__fps": 2}),
    ("SPEC-FRAMES-NONE", "quantize", "tao", {"vision__nframes": None}),
    ("SPEC-FRAMES-BOUNDS", "train", "tao", {"custom__vision__min_frames": 4}),
    ("SPEC-FRAMES-ORDER", "train", "tao", {"custom__vision__min_frames": 9, "custom__vision__max_frames": 8}),
    ("SPEC-PIXELS-ORDER", "train", "tao", {"custom__vision__min_pixels": 9000, "custom__vision__max_pixels": 8000}),
    ("SPEC-PIXELS-BUDGET", "train", "tao", {"custom__vision__nframes": 56, "custom__vision__total_pixels": 3774873}),
    ("SPEC-RESIZE-PAIR", "train", "tao", {"custom__vision__resized_height": 320}),
    ("SPEC-LENGTH-LOW", "train", "tao", {"policy__model_max_length": 4096}),
    ("SPEC-ROLLOUT-ROOM", "grpo", "cosmos-rl", {"policy__model_max_length": 4096}),
    ("SPEC-ON-POLICY", "grpo", "cosmos-rl", {POLICY + "on_policy": True, "train__sync_weight_interval": 2}),
    ("SPEC-GRPO-START", "grpo", "cosmos-rl", {}),
    ("SPEC-KL-ZERO", "grpo", "cosmos-rl", {POLICY + "kl_beta": 0.0}),
    ("SPEC-KL-HIGH", "grpo", "cosmos-rl", {POLICY + "kl_beta": 0.5}),
    ("SPEC-ADAPTER-BASE", "evaluate", "tao", {"model__enable_lora": True}),
    ("SPEC-ADAPTER-OFF", "quantize", "tao", {"model__base_model_path": REASON1}),
    ("SPEC-ADAPTER-BASE", "inference", "tao", {"enable_lora": True}),
    ("SPEC-ADAPTER-OFF", "inference", "tao", {"base_model_path": REASON1}),
    ("SPEC-ANSWER-ROOM", "evaluate", "tao", {"evaluation__answer_type": "reasoning", "generation__max_tokens": 64}),
    ("SPEC-ANSWER-LENGTH", "evaluate", "tao", {"model__max_length": 1024}),
    ("SPEC-EVAL-GPUS", "evaluate", "tao", {"model__tp_size": 2}),
    ("SPEC-EVAL-FRAMES", "evaluate", "tao", {"vision__nframes": 16}),
    ("SPEC-DATA-EVAL", "evaluate", "tao", {}),
    ("SPEC-MEDIA", "inference", "tao", {}),
    ("SPEC-PROMPT", "inference", "tao", {}),
    ("SPEC-CALIBRATION", "quantize", "tao", {"quantize__quantization_scheme": "NVFP4"}),
    ("SPEC-CALIBRATION-FEW", "quantize", "tao", {"quantize__num_calibration_samples": 1}),
    ("SPEC-CALIBRATION-LENGTH", "quantize", "tao", {"quantize__max_sequence_length": 2048}),
    ("SPEC-ENGINE-ACTION", "grpo", "tao", {}),
    ("SPEC-ENGINE-KEY", "train", "transformers", {GRID + "tp_size": 2}),
    ("SPEC-CUSTOM-TABLE", "train", "tao", {"custom__mine__a": 1}),
    ("SPEC-KEY-UNKNOWN", "train", "tao", {"custom__visoin__a": 1}),
]
NEEDS_A_FOLDER = {"SPEC-MODEL-OMNI-LOCAL"}
NEEDS_FACTS = {
    "SPEC-STEPS-ZERO", "SPEC-FRAMES-CLIP", "SPEC-LENGTH-SAMPLE", "SPEC-LENGTH-ANSWER", "SPEC-LENGTH-CALIBRATION",
    "SPEC-LOADER-MEMORY", "SPEC-FACTS-OTHER",
}  # fmt: skip


@pytest.mark.parametrize(("rule", "action", "engine", "changes"), BREAKS, ids=lambda value: str(value)[:40])
def test_a_broken_rule_is_found(rule, action, engine, changes):
    assert rule in found(action, engine, **changes)


def test_every_rule_has_a_case_here():
    assert {rule.id for rule in spec_rules.RULES} == {row[0] for row in BREAKS} - {
        "SPEC-ENGINE-ACTION", "SPEC-ENGINE-KEY", "SPEC-CUSTOM-TABLE", "SPEC-KEY-UNKNOWN",
    } | NEEDS_A_FOLDER | NEEDS_FACTS  # fmt: skip


@pytest.mark.parametrize(("rule", "action", "engine", "changes"), BREAKS, ids=lambda value: str(value)[:40])
def test_its_fix_repairs_it(rule, action, engine, changes):
    """What the fix says, applied to the spec as build_spec would, makes the finding go away."""
    given_changes = dict(changes)
    gpus = given_changes.pop("gpus", None)
    table = changed(action, {name.replace("__", "."): value for name, value in given_changes.items()})
    for _ in range(4):  # a repair may reveal the next: tensor parallelism takes GPUs too
        one = {finding.id: finding for finding in rules.check(action, engine, table, None, gpus)}.get(rule)
        if one is None or not one.fix.startswith(("--set", "--unset")):
            return
        words = shlex.split(one.fix)
        for flag, word in zip(words[::2], words[1::2], strict=True):
            if flag == "--unset":
                assert spec.delete(table, word), one.fix
            else:
                key, _, written = word.partition("=")
                spec.set_value(table, key, spec.parse(spec.keys(action)[key], written))
    pytest.fail(f"{one}")


def test_the_templates_are_quiet_about_all_but_what_a_person_must_give():
    quiet = {"SPEC-MODEL-OMNI", "SPEC-DATA-TRAIN", "SPEC-DATA-EVAL", "SPEC-MEDIA", "SPEC-PROMPT", "SPEC-GRPO-START"}
    for action in bundle.ACTIONS:
        assert found(action, "cosmos-rl" if action == "grpo" else "tao").keys() <= quiet


def test_what_may_be_missing_in_a_draft_may_not_at_launch():
    for launch, severity in ((False, f.WARNING), (True, f.ERROR)):
        one = found("train", launch=launch)
        assert {one["SPEC-MODEL-OMNI"].severity, one["SPEC-DATA-TRAIN"].severity} == {severity}


def test_a_converted_folder_is_no_omni_checkpoint(tmp_path):
    for model_type, expected in (("cosmos3_omni", True), ("qwen3_vl", False)):
        storage.write_json(tmp_path / "config.json", {"model_type": model_type})
        one = found("train", policy__model_name_or_path=str(tmp_path))
        assert ("SPEC-MODEL-OMNI-LOCAL" in one) == expected


def test_qwen25_models_may_compile_and_use_context_parallelism():
    one = found("train", policy__model_name_or_path=REASON1, train__compile=True, policy__parallelism__cp_size=2)
    assert not {"SPEC-QWEN3-COMPILE", "SPEC-QWEN3-CONTEXT"} & one.keys()


def test_an_invalid_value_silences_the_rules_that_read_it_and_no_others():
    one = found("train", train__train_batch_per_replica="many", train__train_policy__mini_batch=3, train__compile=True)
    assert "SPEC-QWEN3-COMPILE" in one
    assert "SPEC-BATCH-MULTIPLE" not in one
    assert one["SPEC-VALUE"].where == "train.train_batch_per_replica"


def test_every_engine_that_has_not_the_action_is_an_error_that_names_those_that_have():
    table = {
        "tao": {"train", "evaluate", "inference", "quantize"},
        "cosmos-rl": {"train", "grpo"},
        "transformers": {"train", "evaluate", "inference", "quantize"},
    }
    for engine, actions in table.items():
        for action in bundle.ACTIONS:
            wrong = rules.engine_findings(action, engine)
            assert bool(wrong) == (action not in actions)
            assert all(name in wrong[0].message for name in table if action in table[name]) if wrong else True


# ---- with dataset facts ----------------------------------------------------------------------------------------------


@pytest.fixture
def facts(tmp_path):
    """A dataset of 20 records: clips of 64 frames, 1920 x 1080, one of 6 frames."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    frames = [64] * 19 + [6]
    clips = {"kind": ["video"] * 20, "height": [1080] * 20, "width": [1920] * 20, "frames": frames, "fps": [8.0] * 20}
    records = {"id": [f"r{n}" for n in range(20)], "text_tokens": [100] * 20, "clips": [[n] for n in range(20)]}
    parquet.write_table(arrow.table(clips), tmp_path / "clips.parquet")
    parquet.write_table(arrow.table(records), tmp_path / "records.parquet")
    table = {"schema_version": 1, "records": 20, "annotations": "/data/annotations.json"}
    tables = {"clips_table": "clips.parquet", "records_table": "records.parquet"}
    storage.write_json(tmp_path / "dataset_facts.json", table | tables)
    return tmp_path / "dataset_facts.json"


def test_facts_find_records_that_do_not_fit(facts):
    one = found("train", facts=facts, policy__model_max_length=2048, custom__vision__nframes=6)
    finding = one["SPEC-LENGTH-SAMPLE"]
    assert finding.severity == f.ERROR
    assert len(finding.data["record_ids"]) == 20
    longer = int(finding.fix.rsplit("=", 1)[1])
    assert "SPEC-LENGTH-SAMPLE" not in found(
        "train", facts=facts, policy__model_max_length=longer, custom__vision__nframes=6
    )


def test_a_record_beyond_every_length_gets_a_pixel_budget(facts):
    big = {"custom__vision__nframes": 6, "policy__model_max_length": 4096, "custom__vision__min_pixels": 40_000_000}
    finding = found("train", facts=facts, **big)["SPEC-LENGTH-SAMPLE"]
    assert finding.fix.startswith("--set custom.vision.total_pixels=")


def test_contradictory_sampling_beside_facts_is_one_finding_among_others(facts):
    one = found("train", facts=facts, custom__vision__fps=2, train__compile=True)
    assert one.keys() >= {"SPEC-FRAMES-ONE", "SPEC-QWEN3-COMPILE"}
    one = found("train", facts=facts, custom__vision__nframes="many")
    assert not {"SPEC-FRAMES-CLIP", "SPEC-LENGTH-SAMPLE"} & one.keys()


def test_facts_find_clips_that_are_too_short_for_the_frames(facts):
    finding = found("train", facts=facts)["SPEC-FRAMES-CLIP"]
    assert finding.data["record_ids"] == ["r19"]
    assert "SPEC-FRAMES-CLIP" not in found("train", facts=facts, custom__vision__nframes=6)


def test_facts_find_a_batch_no_rank_can_fill(facts):
    batch = {"train__train_batch_per_replica": 4, "policy__parallelism__dp_shard_size": 8}
    assert "SPEC-STEPS-ZERO" not in found("train", facts=facts, **batch)  # the template keeps incomplete batches
    assert "SPEC-STEPS-ZERO" in found("train", facts=facts, train__train_policy__dataloader_drop_last=True, **batch)


def test_facts_give_steps_to_the_rules_about_intervals(facts):
    one = found("train", facts=facts)  # 20 records / 4 per step x 2 epochs = 10 steps
    assert "SPEC-SAVE-NEVER" in one
    assert "10 steps" in one["SPEC-SAVE-NEVER"].message


def test_facts_find_prefetch_beyond_host_memory(facts):
    eager = {"train__train_policy__dataloader_num_workers": 8, "train__train_policy__dataloader_prefetch_factor": 8}
    batch = {"train__train_batch_per_replica": 32, "custom__vision__nframes": 6}
    assert "SPEC-LOADER-MEMORY" in found("train", facts=facts, **eager, **batch)
    assert "SPEC-LOADER-MEMORY" not in found("train", facts=facts, custom__vision__nframes=6)


def test_facts_of_other_data_are_noticed(facts):
    mine = {"custom__train_dataset__annotation_path": "/other/annotations.json"}
    assert "SPEC-FACTS-OTHER" in found("train", facts=facts, **mine)
    mine = {"custom__train_dataset__annotation_path": "/data/annotations.json"}
    assert "SPEC-FACTS-OTHER" not in found("train", facts=facts, **mine)


def test_facts_check_room_for_answers_and_calibration(facts):
    one = found("evaluate", facts=facts, model__max_length=2048, vision__nframes=6)
    assert "SPEC-LENGTH-ANSWER" in one
    one = found("quantize", "tao", facts=facts, quantize__max_sequence_length=4096, vision__nframes=40)
    assert "SPEC-LENGTH-CALIBRATION" in one


@pytest.mark.parametrize("content", ['{"records": "many"}', "[]", '{"schema_version": 2, "records": 1}', "{broken"])
def test_other_files_are_no_facts(tmp_path, content):
    (tmp_path / "facts.json").write_text(content)
    with pytest.raises(f.Failure) as failure:
        found("train", facts=tmp_path / "facts.json")
    assert failure.value.exit_code == f.EXIT_BAD_INPUT


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 8), st.booleans(), st.integers(1, 4))
def test_steps_are_those_of_a_sampler_that_deals_and_batches(records, batch, ranks, drop_last, epochs):
    import json
    import tempfile
    from pathlib import Path

    dealt = [list(range(records))[rank::ranks] for rank in range(ranks)]
    longest = max(len(share) for share in dealt)  # the others are padded to it
    steps = sum(1 for start in range(0, longest, batch) if not drop_last or start + batch <= longest) * epochs
    changes = {"train.train_batch_per_replica": batch, "train.epoch": epochs, "policy.parallelism.dp_shard_size": ranks}
    table = changed("train", changes | {"train.train_policy.dataloader_drop_last": drop_last})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "facts.json")
        path.write_text(json.dumps({"schema_version": 1, "records": records}))
        assert rules.Case("train", "tao", table, path).steps == steps
    assert schedule.steps_per_epoch(records, batch, ranks, drop_last) * epochs == steps


@given(st.data())
def test_no_legal_values_make_a_rule_raise(data):
    action = data.draw(st.sampled_from(bundle.ACTIONS))
    known = spec.keys(action)
    chosen = data.draw(st.lists(st.sampled_from(sorted(known)), max_size=6, unique=True))
    table = changed(action, data.draw(legal_values(known)(chosen)))
    engine = data.draw(st.sampled_from(bundle.ENGINES))
    for finding in rules.check(action, engine, table, None, data.draw(st.sampled_from([None, 1, 8])), 2):
        assert finding.message
