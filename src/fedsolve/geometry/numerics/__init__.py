"""Decompositions, singular pairs and roots inside compiled programs."""
