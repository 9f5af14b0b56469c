"""Newton against a transcript in NumPy: smooth and composite problems, backtracking, saddle points; what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import HandOracle
from equations.cases import CLOSE, FULL, PARTIAL, SOME, displacement_error, federation
from equations.composite_transcript import WEIGHT, soft
from equations.transcript import Federation
from fedsolve.config.build import example_of
from fedsolve.geometry import L1, ElasticNet, GroupL1, SquaredL2
from fedsolve.methods.newton import lasso, pack, second_order, unpack
from harness import SIZES, crossed, default_start, engine, make_clients, make_task
from verbs_harness import play

FAR = 8 * default_start(5)
"""Where probabilities are 0 or 1 to rounding: full steps go too far."""


def quadratic_minimiser(B, b, l1):
    """argmin <z, B z> / 2 - <b, z> + sum l1 |z|: an exact system, or proximal gradients with constant momentum."""
    if not l1.any():
        return np.linalg.solve(B, b)
    values = np.linalg.eigvalsh(B)
    root = np.sqrt(values[0] / values[-1])
    z = ahead = np.zeros_like(b)
    for _ in range(int(40 / root)):
        new = soft(ahead - (B @ ahead - b) / values[-1], l1 / values[-1])
        z, ahead = new, new + (1 - root) / (1 + root) * (new - z)
    return z


def newton(problem, shares, w, l1, l2, complete):
    """Iterates, steps and the least eigenvalues of the Hessian of each round; `problem`: (i, w) -> loss, g, H."""
    x, d, best, m, t = w, np.zeros_like(w), np.inf, 0.0, 1.0
    iterates, steps, least = [w], [], []
    for everybody in complete:
        if everybody:
            loss, g, H = (sum(p * v for p, v in zip(shares, part, strict=True)) for part in zip(
                *(problem(i, w) for i in range(len(shares))), strict=True
            ))  # fmt: skip
            value = loss + l1 @ np.abs(w) + l2 @ w**2 / 2
            least.append(np.linalg.eigvalsh(H + np.diag(l2))[0])
            if np.isfinite(value) and value <= best - 1e-4 * t * m + 1e-14 * abs(value):
                x, best, t = w, value, 1.0
                values, vectors = np.linalg.eigh(H + np.diag(l2))
                largest = np.abs(values).max()
                size = np.where(np.abs(values) < 1e-13 * largest, 1e-4 * largest, np.abs(values))
                B = vectors @ np.diag(size) @ vectors.T
                d = quadratic_minimiser(B, B @ x - g - l2 * x, l1) - x
                m = l1 @ (np.abs(x) - np.abs(x + d)) - (g + l2 * x) @ d
            else:
                t = t / 2
            w = x + t * d
        iterates.append(w)
        steps.append(t)
    return np.stack(iterates), np.array(steps), np.array(least)


def of_softmax(fed):
    def problem(i, w):
        x = np.column_stack([fed.clients[i].x, np.ones(fed.size(i))])
        logits = x @ w.reshape(5, 3)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        inner = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None]
        H = np.einsum("na,nb,njk->ajbk", x, x, inner).reshape(15, 15) / len(x)
        return fed.loss(i, w), fed.gradient(i, w), H

    return problem


def softmax(psi, start=None, sampling=FULL, rounds=10, by=play):
    """A run on five uneven clients, its transcript, and the gradient of F at the end."""
    clients = make_clients()
    run = by(fs.Newton(psi), make_task(clients, start), sampling, rounds)
    fed, p = federation(run, clients), np.array(SIZES) / sum(SIZES)
    parts = psi.parts[0].psi if hasattr(psi, "parts") else psi
    l1, l2 = np.zeros(15), np.full(15, float(getattr(parts, "l2", parts.weight)))
    if isinstance(parts, ElasticNet):
        l1[WEIGHT] = float(parts.weight)
        l2[12:] = 0
    complete = [len(cohort) == 5 for cohort in run.cohorts]
    w = run.iterates[-1]
    slope = sum(q * fed.gradient(i, w) for i, q in enumerate(p)) + l2 * w
    return run, newton(of_softmax(fed), p, run.iterates[0], l1, l2, complete), slope, l1


def fitted():
    """A model with a lower F than any that a large penalty leaves: its steps go uphill in F."""
    fed, w = Federation(make_clients(), [], [], 4), np.zeros(15)
    for _ in range(100):
        w = w - 0.5 * sum(n / sum(SIZES) * fed.gradient(i, w) for i, n in enumerate(SIZES))
    return w


SMOOTH, SPARSE = (lambda l2: SquaredL2(l2)), (lambda l1, l2: ElasticNet(l1, l2=l2).on("weight"))
CASES = {
    "ridge": (SMOOTH(0.1), None),
    "ridge, backtracking": (SMOOTH(1e-3), FAR),
    "singular": (SMOOTH(0.0), None),
    "l1": (SPARSE(0.1, 0.0), fitted()),
    "elastic net": (SPARSE(0.02, 0.1), None),
    "l1, backtracking": (SPARSE(0.02, 0.02), FAR),
}


@pytest.mark.parametrize("case", crossed(CASES, [case for case in CASES if case != "l1, backtracking"]))
def test_the_iterates_are_those_of_the_transcript(case):
    """Steps, the model of each round, and at the end a minimiser: optimality conditions to 1e-10."""
    psi, start = CASES[case]
    run, (iterates, steps, _), slope, l1 = softmax(psi, start, rounds=40 if start is FAR else 8)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE
    np.testing.assert_array_equal(run.logs["step"], steps)
    assert (steps.min() < 1) == ("backtracking" in case)
    w = run.iterates[-1]
    assert (l1.any() and (w == 0).any()) or not l1.any()
    residual = np.where(w != 0, slope + l1 * np.sign(w), soft(slope, l1))
    assert np.abs(residual).max() < 1e-10
    assert (run.logs["singular"] > 0).all() == (case == "singular")
    assert not run.logs["separated"].any()


def test_rounds_without_all_clients_change_nothing():
    """Of ten rounds one has everybody."""
    run, (iterates, *_), *_ = softmax(SMOOTH(0.1), sampling=SOME)
    assert displacement_error(run.iterates[5:], iterates[5:], iterates[0]) < CLOSE
    np.testing.assert_array_equal(run.iterates[:5], np.tile(iterates[0], (5, 1)))
    assert run.logs["incomplete"].tolist() == [float(len(c) < 5) for c in PARTIAL]


@pytest.mark.full
def test_a_round_of_the_engine():
    """Uneven clients in one program, padded: the iterates of the transcript."""
    run, (iterates, *_), *_ = softmax(SMOOTH(0.1), rounds=5, by=engine)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE


# Generalised linear models of two coefficients, and one with a saddle.


def squares(w, batch):
    """Mean of (tanh <w, x> - y)^2."""
    return jnp.mean((jnp.tanh(batch.x @ w) - batch.y) ** 2)


def of_squares(client):
    def problem(w):
        t = np.tanh(client.x @ w)
        first = 2 * (t - client.y) * (1 - t**2)
        second = 2 * (1 - t**2) ** 2 - 4 * t * (t - client.y) * (1 - t**2)
        n = len(t)
        return ((t - client.y) ** 2).mean(), client.x.T @ first / n, (client.x.T * second) @ client.x / n

    return problem


def poisson(w, batch):
    z = batch.x @ w
    return jnp.mean(jnp.exp(z) - batch.y * z)


def logistic(w, batch):
    z = batch.x @ w
    return jnp.mean(jax.nn.softplus(z) - batch.y * z)


def clients_of(kind):
    rng, found = np.random.default_rng(7), []
    for n in SIZES:
        x = np.column_stack([np.ones(n), rng.standard_normal(n)])
        y = {
            "poisson": lambda x=x: rng.poisson(np.exp(1 + 0.3 * x[:, 1])),
            "large": lambda x=x: 1000 + 100 * x[:, 1].round(),
            "logistic": lambda n=n: rng.integers(0, 2, n),
            "separated": lambda x=x: x[:, 1] > 0.1,
            "tanh": lambda x=x: np.tanh(2 * x[:, 1]) + 0.1,
        }[kind]()
        found.append(fs.Examples(x, y.astype(float)))
    return found


def test_a_saddle_is_left_downhill():
    """The least eigenvalue is negative where it begins; all iterates agree, and weights are alike for all clients."""
    clients = clients_of("tanh")
    task = fs.Task.from_arrays(squares, np.array([1.5, -0.7]), clients)
    run = play(fs.Newton(weighting="uniform"), task, FULL, 10)
    problems = [of_squares(c) for c in clients]
    iterates, steps, least = newton(
        lambda i, w: problems[i](w), np.full(5, 0.2), run.iterates[0], np.zeros(2), np.zeros(2), [True] * 10
    )
    assert least[0] < -0.01
    np.testing.assert_array_equal(run.logs["step"], steps)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE
    losses = [np.mean([p(w)[0] for p in problems]) for w in iterates]
    assert losses[-1] < losses[0] / 10


RATES = {"logistic": lambda z: 1 / (1 + np.exp(-z)), "poisson": np.exp, "large": np.exp}


@pytest.mark.parametrize(("kind", "rounds"), [("logistic", 8), ("poisson", 8), ("large", 30)])
def test_few_rounds_reach_the_minimiser(kind, rounds):
    """A gradient of 1e-10 after eight; of counts of 1,000 (where the first full step has infinite losses) after 30."""
    clients = clients_of(kind)
    loss = logistic if kind == "logistic" else poisson
    run = play(fs.Newton(SquaredL2(0.01)), fs.Task.from_arrays(loss, np.zeros(2), clients), FULL, rounds)
    x, y = (np.concatenate(parts) for parts in zip(*((c.x, c.y) for c in clients), strict=True))
    w = run.iterates[-1]
    gradient = x.T @ (RATES[kind](x @ w) - y) / len(y) + 0.01 * w
    assert np.abs(gradient).max() < 1e-10 * max(1, np.abs(y).max())
    assert (run.logs["step"].min() < 1e-2) == (kind == "large")
    assert run.logs["dropped"].sum() == 0


def test_separated_classes_are_told():
    task = fs.Task.from_arrays(logistic, np.zeros(2), clients_of("separated"))
    logs = play(fs.Newton(SquaredL2(0.0)), task, FULL, 22).logs
    assert logs["separated"].tolist() == sorted(logs["separated"].tolist())
    assert logs["separated"][-1] == 1


def test_a_run_with_secure_sums():
    """The model of the rounds without them, to their rounding; a note on its two columns, which are alike."""
    clients = [fs.Examples(np.repeat(c.x[:, 1:], 2, axis=1), c.y) for c in clients_of("logistic")]
    task = fs.Task.from_arrays(logistic, np.zeros(2), clients)
    plain = play(fs.Newton(SquaredL2(0.0)), task, FULL, 6)
    secure = fs.Secure(fs.Newton(), bound=8.0, bits=64, max_clients=5, max_examples=12)
    masked = fs.run(secure, task, rounds=6, dtype="float64")
    np.testing.assert_allclose(masked.params, plain.iterates[-1], atol=1e-10)
    assert masked.rounds["clipped"].sum() == 0
    assert any(note.startswith("the Hessian has directions without curvature") for note in masked.notes)


def test_the_triangle_and_the_quadratic():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((7, 7))
    B, b, l1 = A @ A.T + np.eye(7), rng.standard_normal(7), np.array([0, 0.1, 0.3, 0.3, 0.5, 0, 2.0])

    @jax.jit
    def all_of(B, b, l1):
        upper = pack(B)
        return upper, unpack(upper, 7), lasso(B, b, l1, jnp.ones(7))

    with jax.enable_x64(True):
        upper, whole, z = jax.device_get(all_of(B, b, l1))
    np.testing.assert_array_equal(upper, B[np.triu_indices(7)])
    np.testing.assert_array_equal(whole, B)
    rest = b - B @ z
    assert (z == 0).any()
    assert np.abs(np.where(z != 0, rest - l1 * np.sign(z), soft(rest, l1))).max() < 1e-12


# What it refuses, in one line.


class Remembers(HandOracle):
    memory = ()


class OnTheHost(HandOracle):
    def full(self, params):
        shape = jax.ShapeDtypeStruct((), params.dtype)
        return jax.pure_callback(np.sum, shape, params), params


def sent(kind):
    client = make_clients()[0]
    return lambda: jax.eval_shape(lambda w: second_order(kind(client, [], 0), w), jnp.ones(3))


def wrapped(name):
    return lambda: fs.build(f"{name}+Newton", example_of(f"{name}+Newton"))


REFUSED = {
    "some clients": (lambda: fs.Newton().check(fs.sampling.Uniform(3), 5), "needs all 5 clients"),
    "a share": (lambda: fs.Newton().check(fs.sampling.Bernoulli(0.5), 5), "the sampling draws 2.5"),
    "large": (lambda: fs.Newton().init(jnp.zeros(4097)), "4,097: each client would send 33,595,404 bytes"),
    "penalty": (lambda: fs.Newton(GroupL1(0.1)), "not GroupL1: take FedDualAvg"),
    "twice on a leaf": (
        lambda: fs.Newton(L1(0.1).on("a") + SquaredL2(0.1).on("a")).init({"a": jnp.ones(2)}),
        "ElasticNet",
    ),
    "buffers": (sent(Remembers), "the task has buffers"),
    "no second derivative": (sent(OnTheHost), "Newton needs second derivatives.*JaxOracle"),
    "Robust": (wrapped("Robust"), "the line search compares"),
    "FedBuff": (wrapped("FedBuff"), "the line search compares"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case):
    call, words = REFUSED[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        call()
    assert "\n" not in str(error.value)
