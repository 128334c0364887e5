"""One action's spec: its keys and values, its file, its schema.

Enter at `document.load` and `validation.validate`; `actions` knows which action a spec is for, and
where it keeps its model and its data; `origins` who made it and for which engine.
"""
