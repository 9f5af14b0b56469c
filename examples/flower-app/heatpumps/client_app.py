"""A node: its own readings, seen through the loss. Which method runs the server says."""

import fedsolve as fs
from heatpumps.problem import START, loss, readings


def oracle(node):
    """node.client is the number in the node's --node-config "client-id=0"."""
    return fs.flower.JaxOracle(loss, START, readings(node.client), batch_size=20, epochs=1)


app = fs.flower.client_app(oracle)
