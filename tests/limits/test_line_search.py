"""What a stochastic Armijo search promises: decrease on its minibatch, the longest trial, and nothing at 0."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import Uniform
from fedsolve.methods.client import SGD, Armijo
from fedsolve.methods.client.line_search import FALLBACK, TRIES
from harness import cross_entropy, crossed, make_clients, make_task
from verbs_harness import play


@dataclass
class Steps(Oracle):
    """One loss a step."""

    losses: Any
    num_examples: Any = 8
    batch_size: Any = 4
    client: Any = 0

    def __post_init__(self):
        self.steps = self.bound = len(self.losses)

    def __call__(self, params, step):
        return jax.value_and_grad(lambda w: self.loss(w, step))(params)

    def loss(self, params, step):
        return jax.lax.switch(jnp.asarray(step, int), self.losses, params)

    def full(self, params):
        return self(params, 0)


pytestmark = pytest.mark.usefixtures("x64")


def bowl(curvature, center=0.0):
    return lambda w: 0.5 * curvature * jnp.sum((w - center) ** 2)


def solve(losses, start, **settings):
    return Armijo(**settings).solve(jnp.asarray(start), Steps(losses), 0)


# on (L/2)|w|^2 a step passes if eta <= 2 (1 - c) / L
def test_longest_trial_that_decreases_enough():
    """L = 2.4, c = .1: bound .75. Trials 1, .9, .81, .729 are four evaluations; y = (1 - 2.4 x .729) w."""
    found = solve([bowl(2.4)], [1.0, -2.0])
    assert float(found.search.step) == pytest.approx(0.9**3, rel=1e-14)
    assert float(found.search.evaluations) == 4
    assert float(found.rate_sum) == pytest.approx(0.9**3, rel=1e-14)
    np.testing.assert_allclose(found.params, (1 - 2.4 * 0.9**3) * np.array([1.0, -2.0]), rtol=1e-13)


@pytest.mark.parametrize(
    ("reset", "second", "evaluations"), [(0, 0.9**3, 5), (1, 1.0, 5), (2, min(0.9**3 * 2**0.5, 1), 5)]
)
def test_reset(reset, second, evaluations):
    """The second minibatch (L = .1) takes any trial: the first one is .729, 1, or .729 sqrt(2) capped at 1."""
    found = solve([bowl(2.4), bowl(0.1, 5.0)], [1.0, -2.0], reset=reset)
    assert float(found.search.step) == pytest.approx(second, rel=1e-14)
    assert float(found.search.evaluations) == evaluations


def test_growth_below_the_cap():
    """b/n = 4/8 and delta = 1.2: .729 x sqrt(1.2) = .7986 < 1."""
    found = solve([bowl(2.4), bowl(0.1, 5.0)], [1.0, -2.0], reset=2, delta=1.2)
    assert float(found.search.step) == pytest.approx(0.9**3 * 1.2**0.5, rel=1e-14)


def test_round_starts_again():
    """The state of a search ends with the round: two rounds from one start are the same."""
    clients = make_clients()
    run = play(fs.FedLiLS(eta_max=8.0, reset=0), make_task(clients, batch=None, local_steps=1), Uniform(5), 3)
    again = play(
        fs.FedLiLS(eta_max=8.0, reset=0),
        make_task(clients, run.iterates[1], batch=None, local_steps=1),
        Uniform(5),
        1,
    )
    assert run.logs["client_step"][1] == again.logs["client_step"][0]
    np.testing.assert_allclose(run.iterates[2], again.iterates[1], rtol=1e-14)


def test_no_step_decreases():
    """An upward jump everywhere but at the start: 100 trials, then 1e-6, or the last trial if shorter."""

    def cliff(w):
        return jnp.sum(w) + 10.0 * (jnp.sum(w) != 3.0)

    found = solve([cliff], [1.0, 2.0])
    assert float(found.search.evaluations) == TRIES == 100
    assert float(found.search.step) == FALLBACK == 1e-6
    np.testing.assert_allclose(found.params, np.array([1.0, 2.0]) - 1e-6, rtol=0, atol=1e-15)
    assert float(solve([cliff], [1.0, 2.0], beta=0.85).search.step) == pytest.approx(0.85**99, rel=1e-12)


@pytest.mark.parametrize(("norm", "moved"), [(0.9e-8, False), (1.1e-8, True)])
def test_small_gradients(norm, moved):
    """Below 1e-8 nothing moves, nothing is evaluated, and the step is what it was."""
    flat = lambda w: norm * w[0]  # noqa: E731
    found = solve([bowl(2.4), flat], [1.0, -2.0], reset=0)
    one = solve([bowl(2.4)], [1.0, -2.0])
    assert float(found.search.evaluations) == 4 + moved
    assert (abs(float(found.params[0] - one.params[0])) > 1e-12) is moved
    assert float(found.search.step) == float(one.search.step)


def test_infinite_trials_are_refused():
    """log w is not a number beyond 0: such trials are failures like any other."""
    found = solve([lambda w: jnp.sum(w - jnp.log(w))], [10.0], eta_max=100.0)
    assert np.isfinite(found.params).all()
    assert float(found.params[0]) > 0


def test_every_step_of_a_client():
    """On minibatches of softmax regression: Armijo holds at each step, and the next longer trial fails it."""
    data, c, beta = make_clients((12,))[0], 0.3, 0.8
    orders = np.random.default_rng(4).permuted(np.tile(np.arange(12), (4, 1)), axis=1).reshape(-1, 4)
    batches = [jax.tree.map(lambda a, rows=rows: jnp.asarray(a[rows]), data) for rows in orders]
    y, backs = make_task([data]).init(None), 0

    @jax.jit
    def searched(y, batch):
        loss = lambda p: cross_entropy(p, batch)  # noqa: E731
        return Armijo(20.0, c=c, beta=beta).solve(y, Steps([loss]), 0), jax.value_and_grad(loss)(y)

    value = jax.jit(cross_entropy)
    for batch in batches:
        found, (f, g) = searched(y, batch)
        square = sum(float(jnp.sum(x * x)) for x in g)
        eta = float(found.search.step)

        def decrease(eta, y=y, g=g, f=f, batch=batch):
            return float(value(jax.tree.map(lambda a, b: a - eta * b, y, g), batch) - f)

        assert decrease(eta) <= -c * eta * square
        assert eta == pytest.approx(20.0 * beta ** (float(found.search.evaluations) - 1), rel=1e-12)
        if eta < 20.0:
            backs += 1
            assert decrease(eta / beta) > -c * eta / beta * square
        y = found.params
    assert backs >= 6


@pytest.mark.full
@pytest.mark.parametrize("reset", crossed([0, 1, 2], [2]))
def test_compiled_is_eager(reset):
    """Clients side by side in one while-loop, and each alone without compilation."""
    rng = np.random.default_rng(5)
    curvatures, starts = jnp.asarray(rng.uniform(0.5, 30, (6, 3))), jnp.asarray(rng.standard_normal((6, 4)))
    solver = Armijo(4.0, reset=reset)

    def one(curvature, start):
        losses = [lambda w, k=k: 0.5 * curvature[k] * jnp.sum((w - k) ** 2) for k in range(3)]
        return solver.solve(start, Steps(losses), 0)

    together = jax.jit(jax.vmap(one))(curvatures, starts)
    with jax.disable_jit():
        alone = [one(c, s) for c, s in zip(curvatures, starts, strict=True)]
    assert len({int(x.search.evaluations) for x in alone}) > 2
    for i, found in enumerate(alone):
        assert float(together.search.evaluations[i]) == float(found.search.evaluations)
        np.testing.assert_allclose(together.search.step[i], found.search.step, rtol=1e-14)
        np.testing.assert_allclose(together.params[i], found.params, rtol=1e-12, atol=1e-14)


@pytest.mark.full
def test_objective_never_rises():
    """Equal clients, whole data, a convex loss: every round is a descent from wherever it starts."""
    same = [make_clients((9,), seed=3)[0]] * 5
    task = make_task(same, batch=None, local_steps=3)
    run = play(fs.FedLiLS(eta_max=50.0), task, Uniform(5), 20)
    values = [float(cross_entropy(type(task.init(None)).of(w), same[0])) for w in run.iterates]
    assert (np.diff(values) < 0).all()
    assert values[-1] < values[0] / 2


RULES = {
    "ServerSGD": fs.server.ServerSGD(),
    "Adaptive": fs.server.Adaptive(0.1),
    "DoublyAdaptive": fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam"),
    "MirrorDescent": fs.server.MirrorDescent(fs.geometry.PNorm(1.5)),
    "GradientDiversity": fs.server.GradientDiversity(),
    "LargestStep": fs.server.LargestStep(),
    "Polyak": fs.server.Polyak(),
    "DeepFrankWolfe": fs.server.DeepFrankWolfe(),
}

WRAPS = {"alone": lambda a: a, "SCAFFOLD": lambda a: fs.ControlVariates(a, option="I")}
TOGETHER = [
    *(("alone", name) for name in ("MirrorDescent", "Polyak", "LargestStep")),
    ("SCAFFOLD", "DoublyAdaptive"),
]


@pytest.mark.gate("alone-LargestStep")
@pytest.mark.parametrize(("wrap", "name"), crossed(product(WRAPS, RULES), TOGETHER))
def test_with_every_rule(wrap, name):
    """It runs, moves, and reports its steps and evaluations every round."""
    run = play(WRAPS[wrap](fs.FedOpt(Armijo(), RULES[name])), make_task(make_clients()), Uniform(3), 2)
    assert np.isfinite(run.iterates).all()
    assert np.abs(run.iterates[2] - run.iterates[1]).max() > 1e-6
    assert ((run.logs["client_step"] > 0) & (run.logs["client_step"] <= 1)).all()
    assert (run.logs["loss_evaluations"] >= 2).all()


def test_plain_sgd_sends_nothing_of_it():
    """A message of FedAvg has the model's numbers and one loss; a line search adds two, `max` a third."""
    start, oracle = jnp.ones(3), Steps([bowl(1.0)])

    def numbers(algorithm):
        broadcast = fs.FedAvg().broadcast(fs.FedAvg().init(start), fs.Cohort(0, 1, 1))
        message, _ = algorithm.train(broadcast, (), oracle)
        return sum(np.size(x) for x in jax.tree.leaves(message))

    assert numbers(fs.FedOpt(SGD(0.1), fs.server.ServerSGD())) == 3 + 1
    assert numbers(fs.FedLiLS()) == 3 + 1 + 2
    assert numbers(fs.FedLiLS(server="max")) == 3 + 1 + 3
