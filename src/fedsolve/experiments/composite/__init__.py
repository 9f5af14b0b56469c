"""Federated composite optimisation: the figures of Yuan, Zaheer and Reddi 2021."""
