"""Seeded rules that give every client its examples."""
