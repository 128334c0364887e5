"""Training: from a complete spec to checkpoints. Enter at `run.run`; the loop is in `trainer`."""
