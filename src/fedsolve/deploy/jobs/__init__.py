"""Runs of an app that train nothing: an evaluation of a saved model, and statistics of the clients' columns."""
