#!/usr/bin/env python3
"""The experiment of cosmos-framework that train.toml beside this file names: our records and frames
as spec.toml says. Written by build_spec.py --export; never run on a GPU.

As a program it hands over to the framework's trainer: `--sft-toml train.toml [--dryrun]`.
"""

import importlib
import runpy
import sys
import tomllib
from pathlib import Path

from cosmos_framework.configs.base.reasoner.experiment.dataflow_roles import VLMCollator
from cosmos_framework.configs.base.reasoner.experiment.videophy2_dataflow_roles import (
    VideoPhy2Processor,
)
from cosmos_framework.data.generator.dataflow import (
    CosmosDataLoader,
    MapDistributor,
    PoolPackingBatcher,
)
from cosmos_framework.data.generator.processors import build_processor
from cosmos_framework.utils.lazy_config import LazyCall, LazyDict
from hydra.core.config_store import ConfigStore
from torch.utils.data import Dataset

from cosmos_reason.engine import conversations

SPEC = Path(__file__).resolve().with_name("spec.toml")


class Records(conversations.Conversations, Dataset):
    """Items as the framework's processor takes them, their media decoded."""

    def __getitem__(self, index: int) -> dict:
        return {"texts": [with_rates(message) for message in super().__getitem__(index)]}


class Processor(VideoPhy2Processor):
    """Tokenizes what is decoded already."""

    def _materialize_media_in_conversation(self, conversation: list, media_bytes_by_key: dict):
        return conversation


def with_rates(message: dict) -> dict:
    """Return a message whose clips have their frames per second under the framework's name."""
    if not isinstance(message["content"], list):
        return message
    parts = []
    for part in message["content"]:
        if part["type"] == "video":
            part = {"type": "video", "video": part["video"], "fps": part["sample_fps"]}
        elif part["type"] == "image":
            part = {"type": "image", "image": part["image"]}
        parts.append(part)
    return message | {"content": parts}


def records(spec: str) -> Records:
    with open(spec, "rb") as file:
        return conversations.of_spec(tomllib.load(file), conversations.TRAINING, Records)


def experiment() -> LazyDict:
    with open(SPEC, "rb") as file:
        spec = tomllib.load(file)
    policy = spec["train"]["train_policy"]
    workers = policy.get("dataloader_num_workers", 0)
    freeze = {
        "frozen_params": spec["policy"].get("freeze_pattern"),
        "trainable_params": spec["policy"].get("trainable_pattern"),
    }
    loader = LazyCall(CosmosDataLoader)(
        distributor=LazyCall(MapDistributor)(
            dataset=LazyCall(records)(spec=str(SPEC)),
            seed=policy.get("dataloader_seed", 0),
            shuffle=policy.get("dataloader_shuffle", True),
        ),
        processor=LazyCall(Processor)(
            processor=LazyCall(build_processor)(
                tokenizer_type="${model.config.policy.backbone.model_name}", config_variant="hf"
            )
        ),
        batcher=LazyCall(PoolPackingBatcher)(
            max_tokens=16000,
            pool_size=16,
            max_batch_size=1,
            long_threshold=6400,
            apply_long_sample_halving=False,
        ),
        collator=LazyCall(VLMCollator)(),
        num_workers=workers,
        persistent_workers=bool(workers),
        prefetch_factor=policy.get("dataloader_prefetch_factor") if workers else None,
    )
    return LazyDict(
        {
            "defaults": [
                {"override /checkpoint": "local"},
                {"override /data_train": None},
                {"override /data_val": None},
                {"override /model": "vlm_fsdp"},
                {"override /vlm_policy": "qwen3_vl_8b_instruct"},
                {"override /callbacks": ["basic_vlm", "basic_log", "hf_export"]},
                "_self_",
            ],
            "trainer": {"run_validation": False},
            # The framework's default is a tenth of the rate for the tower.
            "optimizer": {"lr_multipliers": {"model.visual": 1.0}},
            "model": {
                "config": {
                    "freeze": {key: value for key, value in freeze.items() if value},
                    "policy": {"monkey_patch_for_text_only_data": True},
                }
            },
            "checkpoint": {"hf_export": {"enabled": True}},
            "dataloader_train": loader,
            "dataloader_val": None,
            "upload_reproducible_setup": False,
        },
        flags={"allow_objects": True},
    )


if __name__ == "__main__":
    # Under its own name, by which the processes of the loader find its classes.
    sys.path.insert(0, str(SPEC.parent))
    importlib.import_module("framework_experiment")

    sys.argv[0] = "cosmos_framework.scripts.train"
    runpy.run_module("cosmos_framework.scripts.train", run_name="__main__")
else:
    ConfigStore.instance().store(
        group="experiment", package="_global_", name="cosmos_reason", node=experiment()
    )
