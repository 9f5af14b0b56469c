"""Modules that stay in PyTorch and are called from a compiled program."""
