"""The server: the method, the first model, and how a model is measured on readings that no node has."""

import fedsolve as fs
from heatpumps.problem import CLIENTS, START, loss, readings


def evaluate(params, buffers):
    """The loss on a house that takes no part."""
    return {"test_loss": float(loss(params, readings(house=1000)))}


app = fs.flower.server_app(
    fs.SCAFFOLD(client_lr=0.05), START, evaluate=evaluate, rounds=20, population=CLIENTS
)
