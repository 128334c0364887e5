"""Hyperparameter search. Enter at `runner.Runner`, on the study that `study.open_or_begin` gives.

`prepare` makes study.json of a command line, `space` knows what may vary, `suggest` proposes the
next trial, `runner` runs trials as jobs through `commands`, `study` keeps them, and `summary` and
`page` tell what was found. It is above 1,600 lines because it is a whole search: ranges in three
notations, suggestions that rules repair, trials that outlive kills and outages, and their report.
"""
