"""Clients that no device holds: read from disk as they are needed."""
