"""DiLoCo against Algorithm 1 of Douillard et al. 2023, and its kin (MuLoCo, SparseLoCo, Streaming, GPA); float64."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import EVERY, ROUNDS, SOME, displacement_error, federation
from equations.server_rules import FedDuA
from equations.transcript import shares
from fedsolve.core.algorithm import Cohort
from fedsolve.geometry import L1
from fedsolve.methods.algorithms.feddr import DouglasRachford
from fedsolve.methods.algorithms.feddyn import DynamicRegularization
from fedsolve.methods.client import SGD
from fedsolve.methods.compression.compressors import EDEN
from harness import CLASSES, FEATURES, make_clients, make_task
from verbs_harness import play

LR, DECAY = 0.03, 0.2


class NumpyAdamW:
    """Loshchilov and Hutter 2019: m, v with bias correction, decay apart from the gradient; one for each client."""

    def __init__(self, size, b1=0.9, b2=0.999, eps=1e-8):
        self.b1, self.b2, self.eps = b1, b2, eps
        self.m, self.v, self.count = np.zeros(size), np.zeros(size), 0

    def step(self, y, g, lr, decay):
        self.count += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m, v = self.m / (1 - self.b1**self.count), self.v / (1 - self.b2**self.count)
        return y - lr * (m / (np.sqrt(v) + self.eps) + decay * y)


class NumpyMuon:
    """Muon (Jordan et al. 2024) as optax has it: Nesterov momentum with bias correction, five quintic steps towards
    the orthogonal factor of the weights' matrix; the biases by Adam with Nesterov momentum.
    """

    def __init__(self, size):
        self.m, self.v, self.count = np.zeros(size), np.zeros(size), 0

    def step(self, y, g, lr, decay):
        self.count += 1
        k, matrix = self.count, np.arange(len(y)) < FEATURES * CLASSES
        b = np.where(matrix, 0.95, 0.9)
        self.m, self.v = b * self.m + (1 - b) * g, 0.999 * self.v + 0.001 * g**2
        m = b * self.m / (1 - b ** (k + 1)) + (1 - b) * g / (1 - b**k)
        x = m[matrix].reshape(FEATURES, CLASSES).T
        assert x.shape[0] <= x.shape[1]  # the smaller Gram matrix
        x = x / (np.linalg.norm(x) + 1e-8)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        by_adam = m / (np.sqrt(self.v / (1 - 0.999**k)) + 1e-8)
        orthogonal = np.sqrt(max(1.0, CLASSES / FEATURES)) * x.T.ravel() + decay * y[matrix]
        return y - lr * np.concatenate([orthogonal, by_adam[~matrix]])


class Nesterov:
    """b = beta b - D, w -= eta (-D + beta b): SGD with Nesterov's momentum on the gradient -D."""

    def __init__(self, eta=0.7, beta=0.9):
        self.eta, self.beta, self.b = eta, beta, 0.0

    def __call__(self, w, D, spread, size, t):
        self.b = self.beta * self.b - D
        return w - self.eta * (-D + self.beta * self.b), self.eta


def warmup_cosine(k, peak=LR, warmup=4, steps=12, end=0.1 * LR):
    """Rising in a line from 0, then half a cosine down; `k` local steps over all rounds have been done."""
    if k < warmup:
        return peak * k / warmup
    share = min((k - warmup) / (steps - warmup), 1.0)
    return end + (peak - end) * (1 + np.cos(np.pi * share)) / 2


def plainly(client, update):
    return update


def diloco(
    fed,
    w,
    rule,
    weighting="uniform",
    mu=0.0,
    rate=lambda k: LR,
    optimiser=NumpyAdamW,
    sent=plainly,
    nova=False,
):
    """Iterates, server rates and every client's AdamW; whoever is not drawn keeps it as it was."""
    inner = [optimiser(len(w)) for _ in fed.clients]
    iterates, rates, eta = [w], [], 0.0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            deltas = []
            for i in cohort:
                y = w
                for rows in fed.minibatches(t, i):
                    lr = rate(inner[i].count)
                    y = inner[i].step(y, fed.gradient(i, y, rows) + mu * (y - w), lr, DECAY)
                deltas.append(sent(i, y - w))
            p = shares(fed, cohort, weighting)
            if nova:
                steps = [len(fed.minibatches(t, i)) for i in cohort]
                deltas = [d * (p @ steps) / k for d, k in zip(deltas, steps, strict=True)]
            mean = sum(q * d for q, d in zip(p, deltas, strict=True))
            spread = sum(q * (d @ d) for q, d in zip(p, deltas, strict=True))
            w, eta = rule(w, mean, spread, len(cohort), t)
        iterates.append(w)
        rates.append(eta)
    return np.stack(iterates), np.array(rates), inner


def check(algorithm, rule, sampling, weighting="uniform", mu=0.0, rate=lambda k: LR, **work):
    """Every model, the logged rate, and moments and counts of all clients at the end."""
    clients = make_clients()
    run = play(algorithm, make_task(clients, **work), sampling, ROUNDS)
    fed = federation(run, clients, **work)
    iterates, rates, inner = diloco(fed, run.iterates[0], rule, weighting, mu, rate)
    assert np.abs(iterates[1:] - iterates[0]).max() > 1e-2, "nothing moved: the test would prove nothing"
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < 1e-12
    np.testing.assert_allclose(run.logs["server_lr"], rates, rtol=1e-12)
    adam = run.state.clients[0]
    assert adam.count.dtype == np.int64  # as wide as the run, so that a schedule of it has float64's digits
    np.testing.assert_array_equal(adam.count, [one.count for one in inner])
    for ours, theirs in ((adam.mu, [one.m for one in inner]), (adam.nu, [one.v for one in inner])):
        got = np.concatenate([np.reshape(x, (5, -1)) for x in ours], axis=1)
        np.testing.assert_allclose(got, theirs, rtol=1e-9, atol=1e-12 * np.abs(theirs).max())


@EVERY
def test_diloco(sampling):
    """Outer 0.7 and 0.9; clients of 3 to 12 examples take 2 to 6 steps, some rounds are without them, one without
    anybody; client 2 is first drawn in round 2.
    """
    check(fs.DiLoCo(LR, weight_decay=DECAY), Nesterov(), sampling)


def test_local_steps_other_rates_and_examples():
    """H = 5 for everyone, another outer rate and momentum, clients by their examples."""
    algorithm = fs.DiLoCo(LR, weight_decay=DECAY, server_lr=0.4, momentum=0.6, weighting="examples")
    check(algorithm, Nesterov(0.4, 0.6), SOME, "examples", local_steps=5)


def test_feddua_outside():
    """FedDuAdam's server rule in place of Nesterov's: its step from |D_i|^2 of what AdamW reached."""
    rule = fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam")
    algorithm = fs.DiLoCo(LR, weight_decay=DECAY, server_optimizer=rule)
    check(algorithm, FedDuA("adam", 0.9, 0.99, 1e-9, 0.0), SOME)


def test_replicas_with_their_own_numbers_of_steps():
    """FedNova's correction under Nesterov's momentum: directions per step of AdamW, times the mean number of steps."""
    clients = make_clients()
    rule = fs.server.NormalizedAveraging(0.7, momentum=0.9, nesterov=True)
    method = fs.DiLoCo(LR, weight_decay=DECAY, server_optimizer=rule)
    run = play(method, make_task(clients), SOME, ROUNDS)
    fed = federation(run, clients)
    iterates, _, _ = diloco(fed, run.iterates[0], Nesterov(), nova=True)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < 1e-12
    assert len(set(run.logs["effective_rate"])) > 2  # the cohort's mean number of steps


def test_warmup_and_cosine_count_each_clients_steps():
    """The paper's inner rate: optax's schedule by local steps, of which each client keeps its own count."""
    rate = optax.warmup_cosine_decay_schedule(0.0, LR, 4, 12, 0.1 * LR)
    local = fs.client.Optax(optax.adamw, keep=True, learning_rate=rate, weight_decay=DECAY)
    outer = fs.server.ServerSGD(0.7, momentum=0.9, nesterov=True)
    algorithm = fs.FedOpt(local, outer, weighting="uniform")
    check(algorithm, Nesterov(), SOME, rate=warmup_cosine, local_steps=3)


def test_muloco():
    """Muon on the clients, whose momentum waits while they are not drawn."""
    clients = make_clients()
    run = play(fs.MuLoCo(LR, weight_decay=DECAY, momentum=0.9), make_task(clients), SOME, ROUNDS)
    iterates, _, _ = diloco(federation(run, clients), run.iterates[0], Nesterov(), optimiser=NumpyMuon)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < 1e-12


@pytest.mark.full
def test_proximal():
    """FedProx around it: the moments are those of the proximal gradients."""
    check(fs.Proximal(fs.DiLoCo(LR, weight_decay=DECAY), 0.5), Nesterov(), SOME, mu=0.5)


@pytest.mark.full
def test_the_outer_step_is_pytorchs():
    """`torch.optim.SGD(nesterov=True)` on the gradients -D, ten random ones."""
    torch = pytest.importorskip("torch")
    rng, rule = np.random.default_rng(0), fs.server.ServerSGD(0.7, momentum=0.9, nesterov=True)
    w = rng.standard_normal(9)
    theirs = torch.tensor(w, requires_grad=True)
    optimiser = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    import jax

    with jax.enable_x64():
        ours, state = w, rule.init(w)
        for t, D in enumerate(rng.standard_normal((10, 9))):
            ours, state = rule.step(ours, state, D, (), Cohort(t, 3, 5))
            theirs.grad = torch.tensor(-D)
            optimiser.step()
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-13, atol=1e-13)


KEPT = fs.client.Optax(optax.adamw, keep=True, learning_rate=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fs.client.Optax(optax.adam, keep=1, learning_rate=0.1), "keep = 1 must be true or false"),
        (lambda: fs.server.ServerSGD(nesterov=True), "nesterov = True needs a momentum"),
        (lambda: fs.DiLoCo(weight_decay=-0.1), "weight_decay = -0.1 must be"),
        (
            lambda: fs.StreamingDiLoCo(local=fs.server.ServerSGD()),
            "must be a local solver such as client.SGD",
        ),
        (lambda: fs.server.PrimalAveraging(SGD(0.1)), "must be server.Optax of what asks for no loss"),
        (lambda: fs.DiLoCo(server_optimizer=SGD(0.1)), "must be one such as server.ServerSGD"),
        (lambda: fs.ControlVariates(fs.DiLoCo()), "OptaxSolver is not: use option='I'"),
        (lambda: DouglasRachford(L1(0.1), KEPT), "FedDR starts its clients' solver from a new state"),
        (lambda: DynamicRegularization(KEPT), "FedDyn starts its clients' solver from a new state"),
    ],
)
def test_refused(make, words):
    """One line that says what would do."""
    with pytest.raises(fs.InvalidInput, match=words):
        make()


class Largest:
    """Of each leaf, in blocks, the largest entries of what was lost so far times beta and of an update."""

    def __init__(self, clients, size, share, block, beta):
        self.lost, self.share, self.block, self.beta = np.zeros((clients, size)), share, block, beta

    def __call__(self, client, update):
        wanted, kept = self.beta * self.lost[client] + update, np.zeros_like(update)
        for leaf in np.split(np.arange(len(update)), [FEATURES * CLASSES]):
            size = min(self.block or len(leaf), len(leaf))
            for block in np.split(leaf, range(size, len(leaf), size)):
                largest = np.argsort(-np.abs(wanted[block]), kind="stable")[
                    : max(1, round(self.share * size))
                ]
                kept[block[largest]] = wanted[block[largest]]
        self.lost[client] = wanted - kept
        return kept


@EVERY
@pytest.mark.parametrize("block", [None, 5])
def test_sparseloco(block, sampling):
    """Values as they are: models and what each client has not sent yet. 12 entries are two blocks of 5 and a rest."""
    clients = make_clients()
    given = {"share": 0.4, "block": block, "bits": None, "decay": 0.9, "server_lr": 0.8, "smallest": 1}
    method = fs.SparseLoCo(LR, weight_decay=DECAY, **given)
    run = play(method, make_task(clients), sampling, ROUNDS)
    sent = Largest(len(clients), run.iterates.shape[1], 0.4, block, 0.9)
    iterates, _, _ = diloco(federation(run, clients), run.iterates[0], Nesterov(0.8, 0.0), sent=sent)
    np.testing.assert_allclose(run.iterates, iterates, rtol=0, atol=1e-10)
    leaves = [x.reshape(len(clients), -1) for x in jax.tree.leaves(run.state.clients.memory)]
    np.testing.assert_allclose(np.concatenate(leaves, axis=1), sent.lost, rtol=0, atol=1e-10)


def test_sparseloco_that_sends_all_is_diloco_without_momentum():
    method = fs.SparseLoCo(LR, share=1.0, block=7, bits=None, smallest=1)
    runs = [
        play(m, make_task(make_clients()), SOME, 4)
        for m in (method, fs.DiLoCo(LR, server_lr=1.0, momentum=0.0))
    ]
    np.testing.assert_array_equal(runs[0].iterates, runs[1].iterates)


def test_bytes_of_sparseloco():
    """Of 4,096 entries 64, with 12 bits for a place and 2 for a value; EDEN's scale and seed beside them, the loss."""
    params = np.zeros(4 * 4096, np.float32)
    loss = lambda w, batch: jnp.mean((batch[0] - jnp.mean(w)) ** 2)  # noqa: E731
    task = fs.Task.from_arrays(loss, params, [(np.ones((2, 1), np.float32),)] * 2)
    up = fs.run(fs.SparseLoCo(), task, rounds=1).history.rounds["bytes_up"][0] / 2
    assert up == 4 * 64 * (12 + 2) / 8 + 4 + 8 + 4


@EVERY
def test_gpa(sampling):
    """Every model x: clients accumulate 2 to 6 minibatches at y, whose means the server takes for one gradient."""
    clients = make_clients()
    run = play(fs.GPA(LR, mu_x=0.8, mu_y=0.6, weight_decay=DECAY), make_task(clients), sampling, ROUNDS)
    fed, adam = federation(run, clients), NumpyAdamW(run.iterates.shape[1])
    x = y = z = run.iterates[0]
    iterates = [x]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            own = [np.mean([fed.gradient(i, y, r) for r in fed.minibatches(t, i)], axis=0) for i in cohort]
            z = z + adam.step(y, np.mean(own, axis=0), LR, DECAY) - y
            x = 0.8 * x + 0.2 * z
            y = 0.6 * x + 0.4 * z
        iterates.append(x)
    assert displacement_error(run.iterates[1:], np.stack(iterates[1:]), iterates[0]) < 1e-10


def averaged(mu_x, mu_y, lr, gradient, steps=6):
    """y and x of primal averaging around SGD; mu_x by the number of the step, from 1."""
    import jax

    y, seen = jnp.array([1.0, -2.0, 0.5]), []
    base = fs.server.Optax(optax.sgd, learning_rate=lr)
    state = fs.server.PrimalAveraging(base).init(y)
    for t in range(1, steps + 1):
        rule = fs.server.PrimalAveraging(base, mu_x=mu_x(t), mu_y=mu_y)
        y, state = rule.step(y, state, jax.tree.map(jnp.negative, gradient(y)), (), Cohort(t - 1, 3, 3))
        seen.append((np.asarray(y), np.asarray(rule.evaluation_point(y, state))))
    return map(np.stack, zip(*seen, strict=True))


def momentum_steps(lr, b, nesterov, gradient, steps=6):
    """v = b v + g, w -= lr v, or lr (g + b v)."""
    w, v, seen = np.array([1.0, -2.0, 0.5]), 0.0, []
    for _ in range(steps):
        g = np.asarray(gradient(w))
        v = b * v + g
        w = w - lr * (g + b * v if nesterov else v)
        seen.append(w)
    return np.stack(seen)


def schedule_free(lr, beta, gradient, steps=6):
    """optax's, around SGD: where gradients are taken, and where it is evaluated."""
    y, seen = jnp.array([1.0, -2.0, 0.5]), []
    made = optax.contrib.schedule_free(optax.sgd(lr), lr, b1=beta)
    state = made.init(y)
    for _ in range(steps):
        change, state = made.update(gradient(y), state, y)
        y = optax.apply_updates(y, change)
        seen.append((y, optax.contrib.schedule_free_eval_params(state, y)))
    return map(np.stack, zip(*seen, strict=True))


def test_primal_averaging_is_what_its_authors_say():
    """Heavy ball, Nesterov's momentum, the optimiser itself, schedule-free: on a quadratic with a cubic term."""
    gradient = lambda w: jnp.array([3.0, 1.0, 0.2]) * w + 0.1 * w**2  # noqa: E731
    lr, b = 0.05, 0.8
    with jax.enable_x64():
        _, x = averaged(lambda t: b, 1.0, lr / (1 - b), gradient)
        np.testing.assert_allclose(x, momentum_steps(lr, b, False, gradient), rtol=1e-12)
        y, _ = averaged(lambda t: b, b, lr / (1 - b), gradient)
        np.testing.assert_allclose(y, momentum_steps(lr, b, True, gradient), rtol=1e-12)
        y, x = averaged(lambda t: 0.0, 0.7, lr, gradient)
        plain = momentum_steps(lr, 0.0, False, gradient)
        np.testing.assert_allclose((y, x), (plain, plain), rtol=1e-12)
        theirs = list(schedule_free(lr, 0.9, gradient))
        np.testing.assert_allclose(list(averaged(lambda t: 1 - 1 / t, 0.9, lr, gradient)), theirs, rtol=1e-9)


def test_gradients_are_sent_as_they_are():
    """Not as the difference of two models, which rounds them: 1e-9 beside 1 in float32."""
    task = fs.Task.from_arrays(
        lambda w, batch: jnp.sum(w) * jnp.mean(batch[0]),
        np.ones(2, np.float32),
        [(np.full((4, 1), 1e-9, np.float32),)],
    )
    method = fs.FedOpt(
        fs.client.Gradient(), fs.server.Optax(optax.sgd, learning_rate=1e9), weighting="uniform"
    )
    result = fs.run(method, task, rounds=1, local_steps=3)
    np.testing.assert_allclose(result.params, np.zeros(2), atol=1e-6)


def streaming(fed, w, P, overlap, alpha, eta=0.7, beta=0.9):
    """Models, and every client's own model and copy of w, of fragments of equal size in the order of the entries."""
    n, size = len(w), -(-len(w) // P)
    entries = [slice(p * size, min((p + 1) * size, n)) for p in range(P)]
    w, m, iterates = w.copy(), np.zeros(n), [w]
    y, r = np.tile(w, (len(fed.clients), 1)), np.tile(w, (len(fed.clients), 1))
    inner = [NumpyAdamW(n) for _ in fed.clients]
    for t, cohort in enumerate(fed.cohorts):
        due, arrived, moved = entries[t % P], entries[(t - 1) % P], []
        for i in cohort:
            for k, rows in enumerate([*fed.minibatches(t, i), None]):
                if k == overlap or (rows is None and k < overlap):
                    if t:
                        y[i, arrived] = alpha * y[i, arrived] + (1 - alpha) * w[arrived]
                    r[i, arrived] = w[arrived]
                if rows is not None:
                    y[i] = inner[i].step(y[i], fed.gradient(i, y[i], rows), LR, DECAY)
            moved.append(y[i, due] - r[i, due])
        if cohort:
            w, D = w.copy(), np.mean(moved, axis=0)
            m[due] = beta * m[due] + D
            w[due] += eta * (D + beta * m[due])
        iterates.append(w)
    return np.stack(iterates), y, r


@EVERY
def test_streaming_diloco(sampling):
    """Four fragments of 15 entries of two leaves; some clients take no more steps than a fragment is late."""
    clients = make_clients()
    local = fs.client.Optax(optax.adamw, keep=True, learning_rate=LR, weight_decay=DECAY)
    method = fs.StreamingDiLoCo(local=local, fragments=4, overlap=2, mixing=0.4)
    run = play(method, make_task(clients), sampling, ROUNDS)
    iterates, y, r = streaming(federation(run, clients), run.iterates[0], 4, 2, 0.4)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < 1e-10
    own = np.concatenate([x.reshape(5, -1) for x in run.state.clients.params], axis=1)
    np.testing.assert_allclose(own, y, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.state.clients.received.reshape(5, -1)[:, :15], r, rtol=0, atol=1e-10)


def test_streaming_of_one_fragment_that_replaces_at_once_is_diloco():
    """Bit for bit, also where clients are absent."""
    method = fs.StreamingDiLoCo(LR, fragments=1, overlap=0, mixing=0.0)
    runs = [play(m, make_task(make_clients()), SOME, 4) for m in (method, fs.DiLoCo(LR))]
    np.testing.assert_array_equal(runs[0].iterates, runs[1].iterates)


def test_streaming_sends_a_fragment_while_clients_continue():
    """384 entries in 3 fragments: 128 numbers and the round down, 4 bits each and the loss up. Of 0.3 s for three steps
    and 1.4 s of travel, two steps pass meanwhile: 1.5 s a round.
    """
    loss = lambda w, batch: jnp.mean((batch[0] - jnp.mean(w["a"])) ** 2) + jnp.sum(w["b"])  # noqa: E731
    start = {"a": np.zeros(300, np.float32), "b": np.zeros(84, np.float32)}
    task = fs.Task.from_arrays(loss, start, [(np.ones((6, 1), np.float32),)] * 2, batch_size=2)
    method = fs.Compressed(fs.StreamingDiLoCo(overlap=2), fs.compression.EDEN(4), smallest=4)
    fleet = fs.systems.Fleet(clients=2, step_seconds=0.1, latency=1.4, download=1e15, upload=1e15)
    rounds = fs.run(method, task, rounds=4, local_steps=3, systems=fleet).history.rounds
    assert set(rounds["bytes_down"]) == {2 * (128 * 4 + 4)}
    assert set(rounds["bytes_up"]) == {2 * (128 / 2 + 4 + 8 + 4)}
    np.testing.assert_allclose(rounds["time"], 1.5 * np.arange(1, 5), rtol=1e-6)


@pytest.mark.parametrize(
    "around",
    [partial(fs.Proximal, mu=0.1), partial(fs.Compressed, compressor=EDEN(4), memory="feedback", smallest=1)],
)
def test_streaming_is_no_inner_method_of_a_wrapper_that_needs_the_model(around):
    with pytest.raises(fs.InvalidInput, match=r"StreamingDiLoCo sends fragments: .*\(memory=None\)"):
        fs.run(around(fs.StreamingDiLoCo()), make_task(make_clients()), rounds=1)
