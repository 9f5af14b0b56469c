"""A method's author who slips gets one line, before anything is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.introspect import ShapeOracle
from fedsolve.core.types import module, static
from fedsolve.engine.checks.methods import check_interface, check_method


@module
class Message:
    delta: Any


class Unmarked:
    """A message without @module."""

    def __init__(self, delta):
        self.delta = delta


@module
class Own(Algorithm):
    """The least method; each test spoils one verb."""

    weighting: str = static(default="uniform")
    spoiled: str = static(default="")

    name = "Own"

    def init(self, params):
        return (params, 0.5) if self.spoiled == "a float on the server" else params

    def broadcast(self, server, cohort):
        return {"lr": 0.1, "params": server} if self.spoiled == "a float down" else server

    def init_client(self, broadcast):
        return jnp.zeros(())

    def train(self, broadcast, client, oracle):
        delta = jax.tree.map(lambda g: -0.1 * g, oracle(broadcast, 0)[1])
        return {
            "one value": lambda: Message(delta),
            "nothing trained": lambda: None,
            "a float up": lambda: ({"delta": delta, "loss": 0.5}, client),
            "an integer kept": lambda: (Message(delta), 3),
            "no module": lambda: (Unmarked(delta), client),
            "scalar delta": lambda: (Message(jnp.zeros(())), client),
            "narrow delta": lambda: (Message(jax.tree.map(lambda x: x[:1], delta)), client),
            "another client": lambda: (Message(delta), (client, client)),
            "a wider client": lambda: (Message(delta), jnp.zeros(3)),
        }.get(self.spoiled, lambda: (Message(delta), client))()

    def update(self, server, message, cohort):
        if self.spoiled == "nothing updated":
            return None
        if self.spoiled == "another server":
            return (server, server)
        if self.spoiled == "a wider server":
            return jax.tree.map(lambda x: jnp.stack([x, x]), server)
        return jax.tree.map(jnp.add, server, message["delta"] if isinstance(message, dict) else message.delta)

    def export(self, server):
        return server


class Forgotten(Own):
    """A subclass without @module."""


PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
SPOILED = {
    "a float on the server": "server state of Own holds a float",
    "a float down": "broadcast of Own holds a float",
    "one value": r"Own.train returns .* must return \(message, client state\)",
    "nothing trained": "Own.train returns None",
    "a float up": r"message of Own holds a float \['loss'\]",
    "an integer kept": "client state of Own holds an int",
    "no module": "put @module .* above the class Unmarked",
    "scalar delta": r"delta of shape \[\(\)\]",
    "narrow delta": "a client update has its shapes",
    "another client": "Own.train changes the client state",
    "a wider client": r"from shape \(\) float32 to \(3,\)",
    "nothing updated": "Own.update returns None",
    "another server": "Own.update changes the server state",
    "a wider server": "a round must keep shapes",
}


def tried(algorithm):
    check_method(algorithm)
    return check_interface(algorithm, algorithm.init(PARAMS), PARAMS, 4, jax.tree_util.Partial(ShapeOracle))


@pytest.mark.parametrize("slip", SPOILED)
def test_slips(slip):
    with pytest.raises(fs.InvalidInput, match=SPOILED[slip]) as error:
        tried(Own(spoiled=slip))
    assert "\n" not in str(error.value)


def test_a_method_without_slips():
    assert jax.tree.structure(tried(Own())[1].delta) == jax.tree.structure(PARAMS)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Own(weighting="exampels"), "weighting = 'exampels'"),
        (Own(weighting=None), "Own declares no weighting: set weighting"),
        (Forgotten(), "Forgotten is not a module"),
        (Own, "algorithm must be one"),
        ("FedAvg", "algorithm must be one"),
    ],
)
def test_methods_refused_by_run_and_sweep(bad, words):
    """Before data are placed; a sweep looks at every setting's method."""
    task = fs.Task.from_arrays(lambda p, x: jnp.mean(x @ p["w"]), PARAMS, [np.ones((2, 3))])
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(bad, task, rounds=1)
    with pytest.raises(fs.InvalidInput):
        fs.sweep(lambda lr: bad if lr > 0.1 else fs.FedAvg(lr), task, {"lr": [0.1, 0.2]}, rounds=1)


@module
class Stacked(Own):
    """What its server keeps has one number a message, which one message alone does not show."""

    lr: float = 0.1

    @property
    def reduction(self):
        return lambda stacked, weights, used: (
            jax.tree.map(lambda x: x[0], stacked) | {"loss": stacked["loss"]}
        )

    def init(self, params):
        return {"model": params, "losses": jnp.zeros(1)}

    def broadcast(self, server, cohort):
        return server["model"]

    def train(self, broadcast, client, oracle):
        loss, gradient = oracle(broadcast, 0)
        return {"delta": gradient, "loss": loss}, client

    def update(self, server, message, cohort):
        return server | {"losses": message["loss"]}

    def export(self, server):
        return server["model"]


def test_a_state_that_a_cohort_changes_is_told_by_run_and_sweep_alike():
    task = fs.Task.from_arrays(lambda p, x: jnp.mean(x @ p["w"]), PARAMS, [np.ones((2, 3))] * 2)
    words = r"the update changes .server\['losses'\] from shape \(1,\) float32 to \(2,\) float32"
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(Stacked(), task, rounds=1)
    with pytest.raises(fs.InvalidInput, match=words):
        fs.sweep(lambda lr: Stacked(lr=lr), task, {"lr": [0.1, 0.2]}, rounds=1)
