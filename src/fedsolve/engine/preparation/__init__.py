"""Making a run ready in five steps, each of which gives one record: requested, placed, planned, budgeted, started.

`meanwhile` compiles the rounds while the initial model is evaluated.
"""
