"""Constraint sets."""
