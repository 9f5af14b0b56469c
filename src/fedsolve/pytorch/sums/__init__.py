"""Losses that are weighted means: their sums over rows."""
