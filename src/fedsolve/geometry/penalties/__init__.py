"""Penalties."""
