"""Geetika et al. 2024, federated learning with line searches."""
