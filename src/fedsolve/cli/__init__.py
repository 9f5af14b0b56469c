"""The command line: validated configurations, live progress, and what a run leaves in its folder.

It rests on the engine and the reports and adds no computation of its own. `main` imports JAX only inside
the commands that need it, so that help is fast.
"""
