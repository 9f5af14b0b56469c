"""The command line: validated configurations, run and compare with live progress, and what they leave in a folder.

It rests on the engine and the reports and adds no computation of its own. `main` imports JAX only inside
the commands that need it, so that help is fast.
"""
