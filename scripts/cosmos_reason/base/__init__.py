"""What everything else stands on: the bundle, findings, files that appear whole, secrets,
metrics.jsonl."""
