"""Answering: several questions at a time, by a model on this machine. Enter at `responder`."""
