"""Partitions: seeded rules that assign examples to clients."""
