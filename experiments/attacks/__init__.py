"""Clients that attack, and robust reductions."""
