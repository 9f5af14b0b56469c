"""Adaptive federated optimisation: what Reddi et al. 2021 say of tuning."""
