"""Dadras et al. 2024, federated Frank-Wolfe."""
