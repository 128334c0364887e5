"""Asking questions and judging answers, from an evaluate spec to the gaps table.

Enter at `run.run` (every question becomes a row of results.json), `grading.read` (rows of any
results, graded), `metrics.score` and `gaps.find`. Nothing here imports torch: who answers is a
`questions.Responder`, which the caller hands in; `endpoint.Endpoint` is the one for a server.

It holds what asks (questions, run, saved_answers, inference, per_checkpoint, guard, per_gpu,
as_trained, endpoint, likelihood), what reads (rows, batches, offered, reason1, grading, judge),
what measures (metrics, comparison, scores, gaps), what tells it (in_words, exchange) and what
training pays (rewards).
"""
