"""What a run will cost: steps, tokens per record, memory of GPU and host, speed.

Enter at `steps.steps_per_epoch`, `record_tokens.tokens_for_spec`, `gpu_memory.of_spec`,
`host_memory.terms` and `speed.of_training`.
"""
