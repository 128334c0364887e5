"""A draft of a spec and what is wrong with it. Enter at `case.check`.

A `draft` is filled by `inherited` (an earlier spec, a job) and `command_line` (the words of
build_spec), and fitted to its engine by `engine_switch`.

It is a large package because it holds some eighty rules, each a short function beside its text:
`models`, `layout`, `steps`, `checkpoints`, `data`, `adapters`, `vision`, `lengths`,
`reinforcement`, `evaluation`, listed by `spec_rules`.
"""
