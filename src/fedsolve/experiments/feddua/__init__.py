"""Doubly adaptive steps: the figures of Takakura et al. 2025 that need no network."""
