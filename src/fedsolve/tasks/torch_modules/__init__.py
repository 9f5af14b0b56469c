"""Tasks from PyTorch modules."""
