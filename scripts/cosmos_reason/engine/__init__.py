"""The embedded engine: train and evaluate Qwen3-VL and Qwen2.5-VL models with transformers and PEFT
on one machine. What differs between them stands in base/families.py.

Enter at `train/run.py`, `answer/responder.py`, `quantize/run.py` and `cosmos_rl/entry.py`; what
these share (loading, encoding, attention, processes that read) lies beside them. It is the only
package that imports torch.

A training is read in this order: `train/run.py` puts it together, `train/trainer.py` is its loop,
`train/saving.py` what it leaves.
"""

import os

# Spinning OpenMP threads starve each other as soon as anything else runs: on two busy cores they
# were 15 times slower than sleeping ones, on two idle cores 3 % faster. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
