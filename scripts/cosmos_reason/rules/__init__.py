"""A draft of a spec and what is wrong with it. Enter at `checking.check`.

A `draft` is filled by `inherited` (an earlier spec, a job) and `command_line` (the words of
build_spec), gets what recipes have where nobody chose by `recipes`, and is fitted to its engine by
`engine_switch`.

`checking` looks at the engine of a spec (`engine_support`), its `paths`, the run that it continues
(`resuming`) and the rules; all of them read a `case`: the spec and what is known of where it runs.

The rules stand in a tuple by subject, each with its text, its condition and its fix: `models`,
`layout`, `steps`, `checkpoints`, `data`, `adapters`, `vision`, `lengths`, `reinforcement`,
`evaluation`, put together by `spec_rules`.
"""
