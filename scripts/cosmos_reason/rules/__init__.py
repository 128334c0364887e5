"""A draft of a spec and what is wrong with it. Enter at `checking.check`.

A `draft` is filled by `inherited` (an earlier spec, a job) and `command_line` (the words of
build_spec), and gets by `fitting` what recipes, the length of the run and the engine ask for where
nobody chose.

`checking` looks at the engine of a spec, its paths (`placeholders`), the run that it continues
(`resuming`) and the rules; all of them read a `case`: the spec and what is known of where it runs.

The rules stand in a tuple by subject, each with its text, its condition and its fix: `models`,
`layout`, `steps`, `checkpoints`, `data`, `adapters`, `vision`, `lengths`, `reinforcement`,
`evaluation`, put together by `spec_rules`.
"""
