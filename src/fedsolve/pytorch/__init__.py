"""PyTorch programs as JAX functions: `torch.export` gives the operations, each of which has its equivalent here."""
