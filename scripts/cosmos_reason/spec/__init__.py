"""One action's spec: its keys and values, its file, its schema.

Enter at `document.load` and `validation.validate`; `actions` knows which action a spec is for, and
where it keeps its model and its data; `origins` who made it and for which engine.

A spec comes in the words of other tools too: beside the document, its values and its schema stand
the keys of each image, former names, and what was nearly written.
"""
