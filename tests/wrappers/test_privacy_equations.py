"""Private methods against NumPy transcripts in float64; both take their noise from the same keys."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import SOME, federation
from equations.server_rules import Average, FedDuA
from equations.transcript import LocalSGD
from fedsolve.engine.compute.casting import run_key
from fedsolve.engine.compute.clients import TAG_CLIENT
from fedsolve.engine.compute.round import TAG_SERVER
from harness import CLASSES, FEATURES, crossed, make_clients, make_task, relative
from verbs_harness import play
from wrappers.privacy_transcript import Mechanism, central, local_noise

ROUNDS, CLOSE, LR = 8, 1e-10, 0.3
UNIFORM = {"weighting": "uniform"}

# sampling, what the accounting is told of it, whether a client counts as replaced
RUNS = {
    "all": (fs.sampling.Uniform(5), {"cohort": 5, "sampling": "fixed"}, True),
    "some": (fs.sampling.Uniform(3), {"cohort": 3, "sampling": "fixed"}, True),
    "poisson": (fs.sampling.Bernoulli(0.4), {"cohort": 2.0, "sampling": "poisson"}, False),
    "trace": (SOME, {"cohort": 5, "sampling": "none"}, True),  # from 0 to 5 clients
}
EVERY = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
SOME_RUNS = pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=name, marks=() if name in ("all", "poisson") else pytest.mark.full)
        for name, run in RUNS.items()
    ],
)


def normals(key: Any, scalars: int) -> list[Any]:
    """The noise of one release: weights and biases as one vector, then scalars."""
    shapes = [(FEATURES, CLASSES), (CLASSES,), *[()] * scalars]
    found = [np.asarray(jax.random.normal(jax.random.fold_in(key, j), s)) for j, s in enumerate(shapes)]
    return [np.concatenate([x.ravel() for x in found[:2]]), *map(float, found[2:])]


def server_noise(scalars: int) -> Any:
    def noise(t: int) -> tuple[Any, float, float]:
        key = jax.random.fold_in(jax.random.fold_in(run_key(0), t), TAG_SERVER)
        vector, *rest = normals(key, scalars + 1)
        return vector, (rest[0] if scalars else 0.0), rest[-1]

    return noise


def private(inner: Any, run: Any, z: float = 0.3, clip: float = 0.4, **more: Any) -> Any:
    return fs.privacy.DifferentialPrivacy(inner, z, clip, population=5, delta=1e-2, **run[1], **more)


def compared(run: Any, inner: Any, rule: Any, scalars: int, gamma: float | None = None, **more: Any) -> Any:
    clients = make_clients()
    adaptive = {} if gamma is None else {"clipping": "adaptive", "quantile": gamma}
    found = play(private(inner, run, **adaptive, **more), make_task(clients), run[0], ROUNDS)
    fed = federation(found, clients)
    how = Mechanism(0.3, 0.4, run[1]["cohort"], run[2], gamma)
    with jax.enable_x64(True):
        start = found.iterates[0]
        iterates, norms = central(fed, start, LocalSGD(LR), rule, how, server_noise(scalars), scalars)
    assert relative(found.iterates, iterates) < CLOSE
    if gamma is not None:
        assert np.abs(found.logs["clip_norm"] - norms).max() < CLOSE
    return found


@EVERY
def test_fedavg(run):
    """w += (sum of clipped D_i + z C N) / m, whoever came; nobody in a round is noise alone."""
    found = compared(run, fs.FedAvg(LR, **UNIFORM), Average(1.0), 0)
    if run[0] is SOME:
        assert [] in found.cohorts


@pytest.mark.gate("all")
@SOME_RUNS
def test_feddudam(run):
    """Its second number, mean |D_i|^2, is within C^2, noised and paid for."""
    compared(run, fs.FedDuAdam(LR), FedDuA("adam", 0.9, 0.99, 1e-9, 0.0), 1)


@SOME_RUNS
@pytest.mark.parametrize("gamma", crossed([0.5, 0.8], [0.5]))
def test_adaptive_clipping(run, gamma):
    """C by the noisy count of those within it, from the round's own C."""
    compared(run, fs.FedAvg(LR, **UNIFORM), Average(1.0), 0, gamma)


@pytest.mark.full
def test_adaptive_clipping_of_feddudam():
    """Three parts of one release: displacement, |D_i|^2 within the C of the round, and the count."""
    compared(RUNS["some"], fs.FedDuAdam(LR), FedDuA("adam", 0.9, 0.99, 1e-9, 0.0), 1, 0.5)


@pytest.mark.parametrize("clipping", crossed(["fixed", "adaptive"], ["adaptive"]))
@pytest.mark.full
def test_client_and_server_clip_alike(clipping):
    """Where the clipping is done changes what travels and no bit of the model."""
    run = RUNS["some"]
    both = [
        play(
            private(fs.FedDuAdam(LR), run, at=at, clipping=clipping),
            make_task(make_clients()),
            run[0],
            ROUNDS,
        )
        for at in ("server", "client")
    ]
    assert relative(both[0].iterates, both[1].iterates) < 1e-12


@pytest.mark.parametrize(
    "run", [pytest.param(RUNS["all"], marks=pytest.mark.full), RUNS["some"]], ids=["all", "some"]
)
def test_local(run):
    """Each client adds its own noise after clipping."""
    clients = make_clients()
    method = fs.privacy.LocalDifferentialPrivacy(
        fs.FedAvg(LR, **UNIFORM), 0.4, delta=1e-2, noise_multiplier=0.3
    )
    found = play(method, make_task(clients), run[0], ROUNDS)

    def noise(t: int, i: int) -> Any:
        key = jax.random.fold_in(jax.random.fold_in(run_key(0), t), TAG_CLIENT)
        return normals(jax.random.fold_in(key, i), 0)[0]

    with jax.enable_x64(True):
        fed = federation(found, clients)
        iterates = local_noise(fed, found.iterates[0], LocalSGD(LR), 0.4, 0.3, noise)
    assert relative(found.iterates, iterates) < CLOSE


@pytest.mark.full
def test_without_noise_and_far_from_the_bound_it_is_the_method():
    """z = 0 and a huge C: FedDuAdam itself, with epsilon = infinity."""
    run = RUNS["some"]
    found = play(private(fs.FedDuAdam(LR), run, z=0.0, clip=1e6), make_task(make_clients()), run[0], ROUNDS)
    plain = play(fs.FedDuAdam(LR), make_task(make_clients()), run[0], ROUNDS)
    assert relative(found.iterates, plain.iterates) < 1e-12
    assert np.isinf(found.logs["epsilon"]).all()


@pytest.mark.full
def test_losses_that_a_step_needs():
    """Polyak's step on clipped and noised losses: with no noise and wide bounds it is Polyak's step."""
    run, inner = RUNS["some"], fs.FedOpt(fs.client.SGD(LR), fs.server.Polyak(0.2), weighting="uniform")
    bounds = {"measured.loss": 50.0, "measured.excess": 50.0}
    method = private(inner, run, z=0.0, clip=1e6, scalars=bounds)
    found = play(method, make_task(make_clients()), run[0], ROUNDS)
    plain = play(inner, make_task(make_clients()), run[0], ROUNDS)
    assert relative(found.iterates, plain.iterates) < 1e-12
    noisy = play(private(inner, run, scalars=bounds), make_task(make_clients()), run[0], ROUNDS)
    assert np.isfinite(noisy.iterates).all()
    assert relative(noisy.iterates, plain.iterates) > 1e-3
