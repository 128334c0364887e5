"""Asking questions and judging answers, from an evaluate spec to the gaps table.

Enter at `run.run` (every question becomes a row of results.json), `grading.read` (rows of any
results, graded), `metrics.score` and `gaps.find`. Nothing here imports torch: who answers is a
`questions.Responder`, which the caller hands in; `endpoint.Endpoint` is the one for a server.

It is above 1,600 lines because it holds what asks (questions, run, saved_answers, per_checkpoint,
guard, per_gpu, as_trained, endpoint), what reads (rows, reason1, grading, judge), what measures
(metrics, comparison, scores, gaps) and what training pays (rewards); each part has its own files
and none knows the one after it.
"""
