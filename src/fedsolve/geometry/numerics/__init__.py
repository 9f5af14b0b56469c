"""Singular pairs and roots inside compiled programs."""
