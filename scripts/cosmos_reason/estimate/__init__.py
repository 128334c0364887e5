"""What a run will cost: steps, tokens per record, memory of GPU and host.

Enter at `steps.steps_per_epoch`, `record_tokens.tokens_for_spec` and `gpu_memory.of_spec`.
"""
