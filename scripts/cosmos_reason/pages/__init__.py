"""HTML for people, each page one file that opens offline: the report of an evaluation, a dataset, a
study.

Enter at `report.page` and `dataset.write`; all pages go through `render.render`.
"""
