"""Model folders: safetensors, Omni conversion, adapters, what a run leaves, publishing.

Enter at `run_outputs.find` (what a train job left, verified), `selection.Training` (which of it is
meant), `omni.open_source` with `conversion.convert`, `adapters.read` with `adapters.merge`, and
`publishing.collect`.

It is long because a checkpoint is judged from its bytes, without the framework that wrote it: file
format, architecture, two layouts of runs and two kinds of adapter are each spelled out here, and
every way to be damaged has a finding of its own.
"""
