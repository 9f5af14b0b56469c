"""Identities of the tuning-free server steps and of wrapped losses; and bad input, refused in one line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize_scalar

import fedsolve as fs
from fedsolve.core.algorithm import Cohort
from fedsolve.core.oracle import CorrectedOracle, Oracle
from fedsolve.geometry import L1, as_blocks
from fedsolve.methods.client import SGD, Armijo, ConjugateGradient
from fedsolve.methods.server import DeepFrankWolfe, EnvelopePolyak, GradientDiversity, LargestStep, Polyak
from fedsolve.methods.server.dfw import Objective
from fedsolve.methods.server.dua import Spread
from fedsolve.methods.server.polyak import Excess
from fedsolve.methods.wrappers.proximal import ProximalOracle, SubgradientOracle

COHORT = Cohort(0, 3, 5)
RNG = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def step(rule, w, delta, measured):
    w = jnp.asarray(w)
    new, state = rule.step(w, rule.init(w), jnp.asarray(delta), measured, COHORT)
    return np.asarray(new), state


@pytest.mark.parametrize(
    ("f", "inside"), [(-9.0, False), (0.5, True), (2.0, True), (4.0, True), (200.0, False)]
)
def test_gamma_solves_its_problem(f, inside):
    """argmax over [0, 1] of  gamma f - (eta/2) |r + gamma Delta|^2 - (eps/2) gamma^2, found by bisection."""
    rng = np.random.default_rng(7)
    w, D, eta, lam, eps = rng.standard_normal(5), rng.standard_normal(5), 3.0, 0.05, 0.01
    new, state = step(DeepFrankWolfe(eta, lam=lam, eps=eps), w, D, Objective(jnp.asarray(f)))

    def dual(g):
        return -(g * f - eta / 2 * np.sum((lam * w - g * D) ** 2) - eps / 2 * g**2)

    best = minimize_scalar(dual, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
    assert float(state.gamma) == pytest.approx(best, abs=1e-6)
    assert (0 < float(state.gamma) < 1) is inside
    np.testing.assert_allclose(new, w - eta * (lam * w - float(state.gamma) * D), rtol=1e-13)


def test_gamma_is_a_polyak_step():
    """lam = eps = 0 and gamma < 1: eta gamma |Delta|^2 = f."""
    w, D = RNG.standard_normal(5), RNG.standard_normal(5)
    _, state = step(DeepFrankWolfe(5.0, lam=0.0, eps=0.0), w, D, Objective(jnp.asarray(0.7)))
    assert 5.0 * float(state.gamma) * (D @ D) == pytest.approx(0.7, rel=1e-13)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_nothing_moved(eps):
    """D = 0: gamma is 1 and only decay acts; Polyak, GraDS and StoPS stay where they are."""
    w, zero = RNG.standard_normal(4), np.zeros(4)
    new, state = step(DeepFrankWolfe(0.5, lam=0.1, eps=eps), w, zero, Objective(jnp.asarray(0.0)))
    assert float(state.gamma) == 1
    np.testing.assert_allclose(new, 0.95 * w, rtol=1e-14)
    some = Excess(jnp.asarray(1.0), jnp.asarray(1.0))
    for rule, said in (
        (Polyak(), some),
        (EnvelopePolyak(), some),
        (GradientDiversity(), Spread(jnp.asarray(2.0))),
    ):
        new, state = step(rule, w, zero, said)
        assert (new == w).all()
        assert float(state.server_lr) == 0


def test_polyak_below_the_bound():
    """Losses below f_star: no step backwards."""
    new, _ = step(Polyak(2.0), np.ones(3), np.ones(3), Excess(jnp.asarray(1.0), jnp.asarray(-0.1)))
    assert (new == 1).all()


class Quadratic(Oracle):
    """(1/2) (w - m)'A(w - m) in three dimensions."""

    steps = bound = 1
    num_examples = batch_size = 1
    client = 0
    A = jnp.asarray([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
    m = jnp.asarray([1.0, -1.0, 2.0])

    def loss(self, params, step):
        return (params - self.m) @ self.A @ (params - self.m) / 2

    def __call__(self, params, step):
        return jax.value_and_grad(self.loss)(params, 0)

    def full(self, params):
        return self(params, 0)


def test_polyak_on_one_gradient_step():
    """One local step from w is -eta_l grad F: whatever eta_l, the server moves by (F - F*) / |grad F|^2 grad F."""
    w, oracle = jnp.asarray([0.3, 0.2, -0.4]), Quadratic()
    f, g = oracle(w, 0)
    for lr in (1e-3, 0.5):
        algorithm = fs.FedOpt(SGD(lr), Polyak(0.05))
        server = algorithm.init(w)
        message, _ = algorithm.train(algorithm.broadcast(server, COHORT), (), oracle)
        new = algorithm.export(algorithm.update(server, message, COHORT))
        np.testing.assert_allclose(new, w - (f - 0.05) / (g @ g) * g, rtol=1e-12)


WRAPPED = {
    "Proximal": lambda: ProximalOracle(Quadratic(), jnp.ones(3), 0.7),
    "SCAFFOLD": lambda: CorrectedOracle(Quadratic(), jnp.asarray([0.5, -1.0, 2.0]), jnp.ones(3)),
    "Subgradient": lambda: SubgradientOracle(Quadratic(), as_blocks(L1(0.3))),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_losses_have_the_wrapped_gradients(name):
    """Differences of `loss` are the gradients that the oracle hands out; all three ways to ask agree."""
    oracle, w = WRAPPED[name](), jnp.asarray([0.3, 0.2, -0.4])
    loss, gradient = oracle(w, 0)
    for j in range(3):
        e = 1e-6 * jnp.eye(3)[j]
        slope = (oracle.loss(w + e, 0) - oracle.loss(w - e, 0)) / 2e-6
        assert float(slope) == pytest.approx(float(gradient[j]), abs=1e-8)
    assert float(loss) == float(oracle.loss(w, 0))
    assert float(oracle.full(w)[0]) == float(loss)
    np.testing.assert_array_equal(oracle.full(w)[1], gradient)
    assert float(loss) != float(Quadratic().loss(w, 0))


BAD = {
    "c = 0": (lambda: Armijo(c=0.0), ["c = 0.0", "> 0"]),
    "c = 1": (lambda: fs.FedLiLS(c=1.0), ["c = 1.0", "< 1"]),
    "beta = 0": (lambda: fs.FedLiLS(beta=0.0), ["beta = 0.0", "> 0"]),
    "beta = 1": (lambda: Armijo(beta=1.0), ["beta = 1.0", "< 1"]),
    "eta_max": (lambda: fs.FedLiLS(eta_max=0.0), ["eta_max = 0.0", "> 0"]),
    "eta_max infinite": (lambda: fs.FedLiLS(eta_max=float("inf")), ["eta_max = inf", "finite"]),
    "delta": (lambda: fs.FedLiLS(delta=0.9), ["delta = 0.9", ">= 1"]),
    "reset": (lambda: fs.FedLiLS(reset=3), ["reset = 3", "0 (keep)", "2 (grow)"]),  # type: ignore[arg-type]
    "reset flag": (lambda: fs.FedLiLS(reset=True), ["reset = True", "1 (back to eta_max)"]),
    "server": (lambda: fs.FedLiLS(server="maxx"), ["server 'maxx'", "did you mean 'max'"]),
    "weighting": (lambda: fs.FedLiLS(weighting="samples"), ["weighting", "'examples'"]),
    "f": (lambda: fs.FedLiLU(f="ends"), ["unknown f 'ends'", "did you mean 'end'"]),
    "loss_weights": (lambda: fs.FedLiLU(loss_weights="plane"), ["did you mean 'plain'"]),
    "preset": (lambda: fs.FedLiLU(preset="papers"), ["preset 'papers'", "did you mean 'paper'"]),
    "lam": (lambda: fs.FedLiLU(lam=-1e-3), ["lam = -0.001", ">= 0"]),
    "server_lr": (lambda: fs.FedLiLU(0.1, server_lr=0.0), ["server_lr = 0.0", "> 0"]),
    "momentum": (lambda: fs.FedLiLU(momentum=1.0), ["momentum = 1.0", "< 1"]),
    "eps": (lambda: fs.FedLiLU(eps=-1.0), ["eps = -1.0", ">= 0"]),
    "client option": (lambda: fs.FedLiLU(clip_nrm=1.0), ["did you mean 'clip_norm'"]),
    "gamma": (lambda: fs.FedExProx(gamma=0.0), ["gamma = 0.0", "> 0"]),
    "alpha": (lambda: fs.FedExProx(alpha=-1.0), ["alpha = -1.0", "> 0"]),
    "extrapolation": (lambda: fs.FedExProx(extrapolation="grads"), ["did you mean 'GraDS'"]),
    "no alpha": (lambda: fs.FedExProx(extrapolation="constant"), ["constant", "alpha such as 1.5"]),
    "alpha unused": (lambda: fs.FedExProx(alpha=2.0, extrapolation="StoPS"), ["leave out alpha = 2.0"]),
    "solver": (lambda: fs.FedExProx(solver="exakt"), ["did you mean 'exact'"]),
    "f_star": (lambda: Polyak(float("nan")), ["f_star = nan", "finite"]),
    "Polyak on Adam": (
        lambda: fs.FedOpt(fs.client.Optax(optax.adam, learning_rate=0.1), Polyak()),
        ["Polyak", "client.SGD(0.1)", "OptaxSolver"],
    ),
    "Polyak on exact solutions": (lambda: fs.FedOpt(ConjugateGradient(), Polyak()), ["ConjugateGradient"]),
    "largest step of SGD": (
        lambda: fs.FedOpt(SGD(0.1), LargestStep()),
        ["LargestStep", "client.Armijo()", "SGD"],
    ),
    "SCAFFOLD II": (lambda: fs.ControlVariates(fs.FedLiLS()), ["Armijo", "option='I'"]),
    "SCAFFOLD II by name": (lambda: fs.build("SCAFFOLD+FedLiLS"), ["Armijo", "option='I'"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    """InvalidInput in one line, with what would work."""
    make, words = BAD[name]
    with pytest.raises(fs.InvalidInput) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
