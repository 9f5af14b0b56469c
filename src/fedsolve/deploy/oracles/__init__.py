"""One real client's data as an oracle: in JAX (`jax`), PyTorch (`torch`) or scikit-learn (`sklearn`).

Each is a module of its own, imported by whoever has the framework: `from fedsolve.deploy.oracles.torch import
TorchOracle`.
"""
