"""Annotations in every format: read, checked, built.

Enter at `annotations.read` (the samples of a file: `formats` makes LLaVA records of others,
`records` makes a `samples.Sample` of each), `whole_survey.take` with `checks.findings` (what is
wrong with a dataset; `record_tables` reads many of its records at once), `facts.write_facts`,
`prediction.predict`, and `sources.open_source` with `writer.write` (a dataset from what people
have).

A build goes in four steps, of which `sources.read` is the one path. `table_files` reads rows;
`nested_rows` and `label_tools` make plain rows of those that hold others; `roles` says what each
column is, and `proposals` what those without a role may be; `table_items` makes items. Then
`splits` decides what is held out, and `writer` brings the clips and writes the annotations. What is
no table goes beside it: `annotation_items`, `label_files`; what lies on the Hub is found by
`hub_files`.

It is long because people's data come in many shapes: five record formats, tables, label files,
archives and repositories of the Hub, each with findings of its own.
"""
