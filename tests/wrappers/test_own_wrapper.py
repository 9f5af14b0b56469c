"""A wrapper of the user's own: what `Wrapper` does for it, the package's wrappers around it, and it around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.types import Params, Scalar, module, reduced
from verbs_harness import play

A = np.array([[1.0, 0.5], [0.2, 2.0], [1.5, -1.0]])
B = np.array([1.0, -2.0, 0.5])
RATE, BETA, STEPS, ROUNDS = 0.1, 0.7, 3, 4


@module
class Server:
    inner: Any
    momentum: Params


@module
class Down:
    inner: Any
    momentum: Params


@module
class Up:
    inner: Any
    gradient: Params = reduced("average")


@module
class MimeLite(fs.Wrapper):
    """Only what it adds: `parts` says the rest."""

    title: ClassVar[str] = "MimeLite"
    parts: ClassVar[tuple[type, ...]] = (Server, Down, Up)
    inner: fs.Algorithm
    beta: Scalar = BETA

    def init(self, params: Params) -> Server:
        return Server(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: Server, cohort: fs.Cohort) -> Down:
        return Down(self.inner.broadcast(server.inner, cohort), server.momentum)

    def train(self, broadcast: Down, client: Any, oracle: fs.Oracle) -> tuple[Up, Any]:
        def mixed(params: Params, gradient: Params) -> Params:
            return trees.axpy(self.beta, broadcast.momentum, trees.scale(1 - self.beta, gradient))

        message, client = self.inner.train(broadcast.inner, client, oracle.map_gradient(mixed))
        return Up(message, oracle.full(self.model(broadcast))[1]), client

    def update(self, server: Server, message: Up, cohort: fs.Cohort) -> Server:
        momentum = trees.axpy(self.beta, server.momentum, trees.scale(1 - self.beta, message.gradient))
        return Server(self.inner.update(server.inner, message.inner, cohort), momentum)


@module
class Roundless(fs.Algorithm):
    """FedAvg whose broadcast is the model alone."""

    local: Any
    weighting: ClassVar[str] = "uniform"

    def init(self, params: Params) -> Params:
        return params

    def broadcast(self, server: Params, cohort: fs.Cohort) -> Any:
        return {"params": server}

    def init_client(self, broadcast: Any) -> tuple:
        return ()

    def train(self, broadcast: Any, client: tuple, oracle: fs.Oracle) -> tuple[Params, tuple]:
        w = broadcast["params"]
        return trees.sub(self.local.solve(w, oracle, 0).params, w), ()

    def update(self, server: Params, message: Params, cohort: fs.Cohort) -> Params:
        return trees.add(server, message)

    def export(self, server: Params) -> Params:
        return server

    def model(self, broadcast: Any) -> Params:
        return broadcast["params"]


def half_squares(w, batch):
    return jnp.mean((batch[0] @ w - batch[1]) ** 2) / 2


def task():
    clients = [(A[i : i + 1], B[i : i + 1]) for i in range(3)]
    return fs.Task.from_arrays(half_squares, jnp.zeros(2), clients)


def run(method, rounds=ROUNDS):
    options = {"batch_size": "full", "local_steps": STEPS, "dtype": "float64"}
    return fs.run(method, task(), rounds=rounds, **options)


def end(method):
    """The last model, verb by verb."""
    problem = replace(task(), batch_size=None, epochs=None, local_steps=STEPS)
    return play(method, problem, fs.sampling.Uniform(3), ROUNDS).iterates[-1]


def gradient(i, w):
    return A[i] * (A[i] @ w - B[i])


@pytest.mark.full
def test_mimelite_is_its_equations():
    """w and m of four rounds in NumPy; the wrapper's export, model and first client are `Wrapper`'s."""
    w, m = np.zeros(2), np.zeros(2)
    for _ in range(ROUNDS):
        ends, full = [], []
        for i in range(3):
            y = w.copy()
            for _ in range(STEPS):
                y = y - RATE * ((1 - BETA) * gradient(i, y) + BETA * m)
            ends.append(y)
            full.append(gradient(i, w))
        w, m = np.mean(ends, axis=0), BETA * m + (1 - BETA) * np.mean(full, axis=0)
    np.testing.assert_allclose(run(MimeLite(fs.FedAvg(RATE))).params, w, rtol=0, atol=1e-14)


def test_with_scaffold_it_is_scaffold_s_equations():
    """SCAFFOLD+MimeLite: corrected gradients are mixed; c_i from the client update that lies in MimeLite's message."""
    w, m, c, own = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros((3, 2))
    for _ in range(ROUNDS):
        ends, full, change = [], [], []
        for i in range(3):
            y = w.copy()
            for _ in range(STEPS):
                # MimeLite maps the gradient that SCAFFOLD will have corrected: the correction stays outside
                y = y - RATE * ((1 - BETA) * gradient(i, y) + BETA * m + c - own[i])
            ends.append(y)
            full.append(gradient(i, w) + c - own[i])
            change.append((w - y) / (STEPS * RATE) - c)
        w, m = np.mean(ends, axis=0), BETA * m + (1 - BETA) * np.mean(full, axis=0)
        c, own = c + np.mean(change, axis=0), own + np.array(change)
    np.testing.assert_allclose(end(fs.ControlVariates(MimeLite(fs.FedAvg(RATE)))), w, rtol=0, atol=1e-14)


@pytest.mark.gate("twice, inside FedProx")
@pytest.mark.parametrize(
    "compose",
    [
        lambda inner: MimeLite(fs.ControlVariates(inner), 0.0),
        lambda inner: fs.Ditto(MimeLite(inner, 0.0)),
        lambda inner: fs.Proximal(MimeLite(MimeLite(inner, 0.0), 0.0), 0.0),
    ],
    ids=["around SCAFFOLD", "inside Ditto", "twice, inside FedProx"],
)
def test_at_beta_0_it_is_what_it_wraps(compose):
    """Parts of the inner method that have a field `inner` too are left to it."""
    inner = fs.FedAvg(RATE, weighting="uniform")
    composed = compose(inner)
    plain = fs.ControlVariates(inner) if "SCAFFOLD" in composed.name else inner
    np.testing.assert_allclose(end(composed), end(plain), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            fs.ControlVariates(Roundless(fs.client.SGD(RATE))),
            "a dict has no field `round`: give the broadcast one",
        ),
        (fs.Ditto(Roundless(fs.client.SGD(RATE))), "a dict has no field `round`: give the broadcast one"),
    ],
    ids=["SCAFFOLD", "Ditto"],
)
def test_what_a_broadcast_lacks_is_one_line(method, words):
    with pytest.raises(fs.InvalidInput, match=words):
        run(method, 1)


def test_late_messages_of_a_wrapper_are_refused():
    """Nobody knows what they mean to it; a server optimiser of one's own is taken."""
    words = "FedBuff cannot wrap MimeLite: of all wrappers, only FedProx and Subgradient are known to work with late"
    with pytest.raises(fs.InvalidInput, match=words):
        fs.Buffered(MimeLite(fs.FedAvg(RATE)))

    @module
    class Doubled(fs.server.ServerSGD):
        pass

    assert fs.Buffered(fs.FedOpt(fs.client.SGD(RATE), Doubled(2.0), weighting="uniform")).buffer == 10


def test_a_message_without_a_client_update_is_one_line():
    @module
    class Down:
        params: Params
        round: Scalar

    @module
    class Rounded(Roundless):
        def broadcast(self, server, cohort):
            return Down(server, cohort.round)

        def train(self, broadcast, client, oracle):
            return super().train({"params": broadcast.params}, client, oracle)

        def model(self, broadcast):
            return broadcast.params

    with pytest.raises(fs.InvalidInput, match=r"has no field `delta`: give the message one"):
        run(fs.ControlVariates(Rounded(fs.client.SGD(RATE))), 1)


def test_a_broadcast_of_another_form_names_the_method_to_define():
    @module
    class Sent:
        weights: Params
        round: Scalar

    @module
    class Modelless(MimeLite):
        parts: ClassVar[tuple[type, ...]] = ()

        def init_client(self, broadcast):
            return ()

    with pytest.raises(fs.InvalidInput, match="FedAvg broadcasts a Down without a field `params`: "):
        run(Modelless(fs.FedAvg(RATE)), 1)


@dataclass(frozen=True)
class Halved(fs.WrappedOracle):
    """Half of every gradient, of minibatches and of all examples; the loss stays."""

    def change(self, params: Params, gradient: Params) -> Params:
        return trees.scale(0.5, gradient)


@module
class Halving(fs.Wrapper):
    title: ClassVar[str] = "Halving"
    inner: fs.Algorithm

    def train(self, broadcast: Any, client: Any, oracle: fs.Oracle) -> tuple[Any, Any]:
        return self.inner.train(broadcast, client, Halved(oracle))


def test_an_oracle_may_scale_gradients_alone():
    """Half of the gradient is half of the rate; a subclass of `WrappedOracle` need not define `extra`."""
    halved, slower = end(Halving(fs.FedAvg(RATE))), end(fs.FedAvg(RATE / 2))
    np.testing.assert_allclose(halved, slower, rtol=0, atol=1e-15)


@dataclass(frozen=True)
class Added(fs.WrappedOracle):
    """A term in the losses, and its gradient forgotten."""

    def extra(self, params: Params) -> Any:
        return trees.squared_norm(params)


@module
class Adding(fs.Wrapper):
    title: ClassVar[str] = "Adding"
    inner: fs.Algorithm

    def train(self, broadcast: Any, client: Any, oracle: fs.Oracle) -> tuple[Any, Any]:
        return self.inner.train(broadcast, client, Added(oracle))


def test_a_term_without_its_gradient_does_not_train():
    with pytest.raises(NotImplementedError):
        end(Adding(fs.FedAvg(RATE)))
