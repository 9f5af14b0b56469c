"""Federated data in a folder: written in one pass, sealed, and mapped when opened."""
