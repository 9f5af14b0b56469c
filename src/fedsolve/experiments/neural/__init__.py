"""Studies of neural networks, one file each: the papers' tables and figures on federated data."""
