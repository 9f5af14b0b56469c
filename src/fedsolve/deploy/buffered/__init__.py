"""Asynchronous rounds of a deployment, for methods that take late messages."""
