"""Keys of a training that several packages read."""

from __future__ import annotations

TRAIN_ANNOTATIONS = "custom.train_dataset.annotation_path"
OF_GUIDES = "custom.dataset"  # whose data a spec of the guides names
BATCH, RATE = "train.train_batch_per_replica", "train.optm_lr"
# The mode in which policy and rollouts are processes of their own on the same GPUs.
SHARED = "colocated_separated"
BASE_PRECISION = "custom.transformers_engine.base_precision"
TOKENS_PER_PASS = "custom.transformers_engine.tokens_per_pass"
RESPONSE_MODE = "custom.train_dataset.response_mode"
DROP_LAST = "train.train_policy.dataloader_drop_last"
