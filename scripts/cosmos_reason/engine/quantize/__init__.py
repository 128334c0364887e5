"""Quantizing: a smaller model, and what it cost in accuracy. Enter at `run.run`."""
