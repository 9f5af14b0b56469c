"""Yuan et al. 2021, federated composite optimization."""
