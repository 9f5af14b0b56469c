"""Results to look at: the record of a run, tables, plots and one self-contained page.

It rests on no engine: a `History` can come from a simulation, from a deployment or from a file.
"""
