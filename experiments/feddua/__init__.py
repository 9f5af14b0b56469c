"""Takakura et al. 2025, doubly adaptive server steps."""
