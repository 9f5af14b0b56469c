"""IFCA against a transcript of Ghosh et al. 2020, and FedBN on a model with normalisation and statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import EVERY, SOME, displacement_error, federation, flat
from equations.transcript import LocalSGD, fedopt, shares
from fedsolve.deploy.reply_checks import check_buffers
from harness import CLASSES, Listed, engine, make_clients, make_task, prepare
from verbs_harness import play

CLOSE = 1e-11


def ifca(fed, w, k, lr, first, averaging, weighting, server_lr):
    """Both options; in the first rounds client i is in cluster i mod k, as the docstring has it."""
    models, iterates, members = np.tile(w, (k, 1)), [w], np.zeros(k)
    own = np.tile(w, (len(fed.clients), 1))
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            p, sums, weights = shares(fed, cohort, weighting), np.zeros_like(models), np.zeros(k)
            for q, i in zip(p, cohort, strict=True):
                j = i % k if t < first else int(np.argmin([fed.loss(i, m) for m in models]))
                y, own[i] = models[j].copy(), models[j]
                for rows in fed.minibatches(t, i)[: 1 if averaging == "gradients" else None]:
                    y = y - lr * fed.gradient(i, y, rows)
                sums[j] += q * (y - models[j])
                weights[j] += q
            scale = np.where(weights > 0, weights, 1) if averaging == "models" else np.ones(k)
            models = models + server_lr * sums / scale[:, None]
            members = members + (weights if t >= first else 0)
        iterates.append(models[np.argmax(members)])
    return np.stack(iterates), models, own


def check_ifca(sampling, by=play, *, k=2, first=2, **options):
    clients = make_clients()
    algorithm = fs.IFCA(0.4, clusters=k, first_rounds=first, **options)
    run = by(algorithm, make_task(clients), sampling, 10)
    given = {"averaging": "models", "weighting": "uniform", "server_lr": 1.0} | options
    iterates, models, own = ifca(federation(run, clients), run.iterates[0], k, 0.4, first, **given)
    assert displacement_error(run.iterates[1:], iterates[1:], run.iterates[0]) < CLOSE
    server, states = run.state.server.params, run.state.clients.personal
    for found, wanted in ((server, models), (states, own)):
        got = np.stack([flat([w, b]) for w, b in zip(found.weight, found.bias, strict=True)])
        np.testing.assert_allclose(got, wanted, rtol=0, atol=CLOSE)
    if k > 1:
        assert np.abs(models[0] - models[1]).max() > 0.01


@EVERY
def test_ifca_by_models(sampling):
    check_ifca(sampling, weighting="examples", server_lr=0.8)


def test_ifca_by_gradients():
    check_ifca(SOME, averaging="gradients", server_lr=1.3)


@pytest.mark.full
def test_ifca_in_the_engine():
    check_ifca(SOME, engine, k=3, first=4)


def test_one_cluster_is_fedavg():
    clients = make_clients()
    run = play(fs.IFCA(0.3, clusters=1, weighting="examples"), make_task(clients), SOME, 10)
    rule = lambda w, d, *_: (w + d, 1.0)  # noqa: E731
    want, _ = fedopt(federation(run, clients), run.iterates[0], LocalSGD(0.3), rule, "examples")
    assert displacement_error(run.iterates[1:], want[1:], run.iterates[0]) < CLOSE


@pytest.mark.full
def test_clients_find_the_others_with_their_labels():
    """Half of the clients have other labels: after three first rounds each model is for one kind."""
    rng, centres = np.random.default_rng(0), 2 * np.eye(CLASSES)
    clients = []
    for i in range(8):
        y = rng.integers(0, CLASSES, 20)
        labels = (y + i // 4) % CLASSES
        clients.append((centres[y] + 0.3 * rng.standard_normal((20, CLASSES)), labels))

    def loss(w, batch):
        logits = batch[0] @ w
        return jnp.mean(jnp.log(jnp.sum(jnp.exp(logits), 1)) - logits[jnp.arange(len(logits)), batch[1]])

    task = fs.Task.from_arrays(loss, np.zeros((CLASSES, CLASSES)), clients, batch_size=10)
    apart: dict[str, Any] = {
        "sampling": Listed.of([[0, 2, 5, 7]] * 3 + [list(range(8))] * 9),
        "eval_every": 12,
    }
    one, other = (fs.run(m, task, rounds=12, **apart) for m in (fs.IFCA(0.5, first_rounds=3), fs.FedAvg(0.5)))
    assert one.metrics["train_loss"][-1] < 0.6 * other.metrics["train_loss"][-1]


class Normed(NamedTuple):
    """A scale of centred inputs, and weights."""

    norm: Any
    weight: Any


SIZES, RATE, DECAY = (7, 3, 8, 5), 0.05, 0.9
RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(n, 3)) + i, RNG.normal(size=n)) for i, n in enumerate(SIZES)]
START = Normed(np.ones(3), RNG.normal(size=3))
COHORTS = [[0, 2], [1, 3, 0], [2, 1]]


def centred(w, batch, key=None, weights=None, buffers: Any = None) -> Any:
    """Least squares on inputs less their mean, scaled: the mean is the batch's in training, a running one otherwise."""
    x, y = batch
    weights = jnp.ones(len(y), x.dtype) if weights is None else weights
    mean = weights @ x / jnp.sum(weights)
    used = buffers if key is None else mean
    loss = jnp.sum(weights * (((x - used) * w.norm) @ w.weight - y) ** 2) / jnp.sum(weights)
    return loss, DECAY * buffers + (1 - DECAY) * mean


def by_hand():
    """FedAvg of the weight alone, all examples in a step; norms and means wait on their clients."""
    weight, norms, means = START.weight, np.ones((4, 3)), np.full((4, 3), 0.5)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            (x, y), w = DATA[i], weight
            for _ in range(2):
                z = x - x.mean(0)
                error = 2 * ((z * norms[i]) @ w - y) / len(y)
                step = (error @ (z * norms[i]), (error @ z) * w)
                w, norms[i] = w - RATE * step[0], norms[i] - RATE * step[1]
                means[i] = DECAY * means[i] + (1 - DECAY) * x.mean(0)
            ends.append(w)
        weight = np.mean(ends, axis=0)
    return weight, norms, means


def problem(**more):
    return fs.Task.from_arrays(
        centred, START, DATA, buffers=np.full(3, 0.5), batch_size=None, epochs=None, local_steps=2, **more
    )


def test_fedbn():
    """Norms and running means stay on clients; a client is measured with both of its own, the server with the first."""
    weight, norms, means = by_hand()
    given: dict[str, Any] = {"rounds": 3, "sampling": Listed.of(COHORTS), "dtype": "float64", "eval_every": 3}
    result = fs.run(
        fs.FedBN(RATE), problem(predict=lambda w, x, buffers: ((x - buffers) * w.norm) @ w.weight), **given
    )
    np.testing.assert_allclose(result.params.weight, weight, rtol=1e-12)
    np.testing.assert_array_equal(result.params.norm, np.ones(3))
    np.testing.assert_array_equal(result.buffers, np.full(3, 0.5))
    right = [((x - m) * n) @ weight for (x, _), n, m in zip(DATA, norms, means, strict=True)]
    errors = np.concatenate([(p - y) ** 2 for p, (_, y) in zip(right, DATA, strict=True)])
    np.testing.assert_allclose(result.metrics["train_loss"][-1], errors.mean(), rtol=1e-12)
    for i, (x, _) in enumerate(DATA):
        np.testing.assert_allclose(result.predict(x, client=i), right[i], rtol=1e-12)
    assert not any("no leaf" in note for note in result.notes)


def test_fedbn_without_normalisation_is_fedavg_and_says_so():
    task, plain = make_task(make_clients(), batch=None), fs.FedAvg(0.3, weighting="uniform")
    one = fs.run(fs.FedBN(0.3), task, rounds=3, dtype="float64")
    other = play(plain, task, fs.sampling.Uniform(5), 3).iterates[-1]
    np.testing.assert_allclose(flat(one.params), other, rtol=1e-12)
    ours, theirs = (
        prepare(method, task, fs.sampling.Uniform(5), dtype="float32") for method in (fs.FedBN(0.3), plain)
    )
    assert ours.traffic.up == theirs.traffic.up
    assert any(note.startswith("FedBN found no leaf of a normalisation layer") for note in one.notes)


def test_normalisation_layers_of_a_module():
    nn = pytest.importorskip("torch").nn
    net = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3))
    )
    assert fs.normalization_leaves(net) == ("1.*", "3.0.*")
    for wrong in (nn.Linear(2, 2), nn.BatchNorm1d(3, affine=False), START):
        with pytest.raises(
            fs.InvalidInput, match=r"no normalisation layer with parameters|must be a PyTorch module"
        ):
            fs.normalization_leaves(wrong)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fs.IFCA(clusters=0), "clusters = 0 must be"),
        (lambda: fs.IFCA(first_rounds=-1), "first_rounds = -1 must be"),
        (lambda: fs.IFCA(averaging="medians"), "averaging"),  # pyright: ignore[reportArgumentType]
        (lambda: fs.FedBN(leaves=()), "must be patterns of paths"),
        (
            lambda: check_buffers(fs.FedBN(), {"mean": np.zeros(3)}),
            "FedBN keeps buffers .mean. on clients, and a",
        ),
        (lambda: fs.Proximal(fs.IFCA()), "whose clients have personal models"),
        (lambda: fs.LocalNormalization(fs.Ditto(fs.FedAvg())), "one of the two is enough"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(fs.InvalidInput, match=said):
        make()
