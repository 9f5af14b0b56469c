"""Making a run ready in five steps, each of which gives one record: requested, placed, planned, budgeted, started.

`ahead` compiles what was made ready beside what runs.
"""
