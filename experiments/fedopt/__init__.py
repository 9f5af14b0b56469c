"""Reddi et al. 2021, adaptive federated optimization."""
