"""Wrappers that change what of a message the server sees or makes: robust reductions, attacks, privacy."""
