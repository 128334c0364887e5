"""The embedded engine: train and evaluate Qwen3-VL models with transformers and PEFT on one machine.

The only place in the library that imports torch.
"""
