"""Private methods against NumPy transcripts in float64, and what they do at their edges."""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import SOME, federation
from equations.server_rules import Average, FedDuA
from equations.transcript import LocalSGD
from fedsolve.engine.compute.casting import run_key
from fedsolve.engine.compute.clients import TAG_CLIENT
from fedsolve.engine.compute.round import TAG_SERVER
from fedsolve.methods.privacy.accounting import epsilon
from fedsolve.methods.privacy.central import PrivateMessage
from fedsolve.methods.privacy.local import clip, join, split
from fedsolve.methods.server.dua import Spread
from fedsolve.methods.server.fedopt import FedOptMessage
from harness import CLASSES, FEATURES, crossed, engine, make_clients, make_task, relative
from verbs_harness import play
from wrappers.privacy_transcript import Mechanism, central, local_noise

# Private methods against NumPy transcripts in float64; both take their noise from the same keys.

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


@pytest.mark.full_rows("some")
@EVERY
def test_fedavg(run):
    """w += (sum of clipped D_i + z C N) / m, whoever came; nobody in a round is noise alone."""
    found = compared(run, fs.FedAvg(LR, **UNIFORM), Average(1.0), 0)
    if run[0] is SOME:
        assert [] in found.cohorts


@pytest.mark.gate("all")
@SOME_RUNS
def test_feddudam(run):
    """Its second number, mean |D_i|^2, is within C^2, noised and paid for; the step is no less than averaging's."""
    compared(run, fs.FedDuAdam(LR), FedDuA("adam", 0.9, 0.99, 1e-9, 0.0, least=1.0), 1)


@pytest.mark.full_rows("0.5-poisson")
@SOME_RUNS
@pytest.mark.parametrize("gamma", crossed([0.5, 0.8], [0.5]))
def test_adaptive_clipping(run, gamma):
    """C by the noisy count of those within it, from the round's own C."""
    compared(run, fs.FedAvg(LR, **UNIFORM), Average(1.0), 0, gamma)


@pytest.mark.full
def test_adaptive_clipping_of_feddudam():
    """Three parts of one release: displacement, |D_i|^2 within the C of the round, and the count."""
    compared(RUNS["some"], fs.FedDuAdam(LR), FedDuA("adam", 0.9, 0.99, 1e-9, 0.0, least=1.0), 1, 0.5)


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


@pytest.mark.full_rows("0.05")
@pytest.mark.parametrize("z", [0.05, 0.6])
def test_local_extrapolation(z):
    """FedExP with q = 1: |c_i|^2 of the noisy update, less d (z C)^2; at least averaging's step."""
    clients, run, q = make_clients(), RUNS["some"], 1.0
    inner = fs.FedOpt(fs.client.SGD(LR), fs.server.DoublyAdaptive(factor=q))
    method = fs.privacy.LocalDifferentialPrivacy(inner, 0.4, delta=1e-2, noise_multiplier=z)
    found = play(method, make_task(clients), run[0], ROUNDS)
    d, variance = found.iterates.shape[1], (z * 0.4) ** 2
    rule = FedDuA("identity", None, 0.99, 0.0, 0.0, least=1.0, q=q)
    dominated = []

    def corrected(w, mean, spread, m, t):
        dominated.append(max(d / m, (2 * d / m) ** 0.5) * variance >= spread - d * variance)
        return rule(w, mean, 0.0 if dominated[-1] else spread - d * variance, m, t)

    with jax.enable_x64(True):
        fed = federation(found, clients)
        keys = [jax.random.fold_in(jax.random.fold_in(run_key(0), t), TAG_CLIENT) for t in range(ROUNDS)]
        iterates = local_noise(
            fed, found.iterates[0], LocalSGD(LR), 0.4, z,
            lambda t, i: normals(jax.random.fold_in(keys[t], i), 0)[0], corrected,
        )  # fmt: skip
    assert relative(found.iterates, iterates) < CLOSE
    np.testing.assert_array_equal(found.logs["noise_dominates"], np.array(dominated, float))
    assert found.logs["server_lr"].min() >= 1
    assert found.logs["server_lr"].max() > 1.01
    assert any(dominated) == (z > 0.1)


@pytest.mark.parametrize(("estimate", "lengthens"), [(0.1, False), (0.13, True)])
def test_an_estimate_that_may_be_noise_alone_lengthens_no_step(estimate, lengthens):
    """1,000 messages of 7 numbers: an estimate below sqrt(14 / 1000) = 0.118 variances is within its own deviation."""
    variance = (0.8 * 0.5) ** 2
    with jax.enable_x64(True):
        inner = fs.FedOpt(fs.client.SGD(1.0), fs.server.DoublyAdaptive(factor=1.0))
        method = fs.privacy.LocalDifferentialPrivacy(inner, 0.5, delta=1e-3, noise_multiplier=0.8)
        server = method.init({"w": jnp.zeros(7)})
        broadcast = method.broadcast(server, fs.Cohort(0, 1000, 1000))
        sent = method.train(broadcast, (), Downhill({"w": jnp.ones(7)}, jax.random.key(0)))[0]
        scalars = split(sent)[1] | {"measured.squared_norm": (7 + estimate) * variance}
        after = method.update(server, join(sent, {"w": jnp.full(7, 1e-3)}, scalars), fs.Cohort(0, 1000, 1000))
    assert (float(after.inner.server_optimizer.server_lr) > 1) == lengthens
    assert float(after.disagreement.noise_dominates) == (not lengthens)


class Downhill(fs.Oracle):
    """A client whose gradient is the same everywhere."""

    steps = bound = num_examples = batch_size = 1
    client = 0

    def __init__(self, gradient, key):
        self.gradient, self.key = gradient, key

    def __call__(self, params, step):
        return jnp.zeros(()), self.gradient

    loss = full = __call__


@pytest.mark.full_rows("rule1")
@pytest.mark.parametrize(
    "rule", [fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam"), fs.server.DoublyAdaptive()]
)
def test_the_corrected_disagreement_is_unbiased(rule):
    """100,000 messages of one client as a cohort: m has the mean of the clipped |D_i|^2, within 4 standard errors."""
    draws, z, C = 100_000, 0.8, 0.5
    gradient = {"w": jnp.array([0.3, -0.2, 0.1, 0.0, 0.25, -0.4, 0.1])}
    with jax.enable_x64(True):
        inner = fs.FedOpt(fs.client.SGD(1.0), rule, weighting="uniform")
        method = fs.privacy.LocalDifferentialPrivacy(inner, C, delta=1e-3, noise_multiplier=z)
        server = method.init({"w": jnp.zeros(7)})
        broadcast = method.broadcast(server, fs.Cohort(0, draws, draws))

        def send(key):
            return method.train(broadcast, (), Downhill(gradient, key))[0]

        sent = jax.vmap(send)(jax.random.split(jax.random.key(3), draws))
        after = method.update(
            server, jax.tree.map(lambda x: x.mean(axis=0), sent), fs.Cohort(0, draws, draws)
        )
    length, variance = min(float(np.linalg.norm(gradient["w"])), C) ** 2, (z * C) ** 2
    error = np.sqrt((2 * 7 * variance**2 + 4 * variance * length) / draws)
    share = 1.0 if rule.beta1 is None else 0.1
    assert abs(float(after.inner.server_optimizer.m) / share - length / 2) < 4 * error / 2


@pytest.mark.full
@pytest.mark.parametrize("z", [0.7, 3.0])
def test_epsilon_covers_the_numerator_too(z):
    """As dp-accounting composes the two releases of each round, to four digits."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    method = private_behaviour(fs.FedExP(0.3), z, cohort=5, sampling="none")
    z_update, z_scalar = z / (1 - method.share) ** 0.5, z / method.share**0.5
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(z_update / 2), dp_accounting.GaussianDpEvent(z_scalar / 2)]
    )
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    theirs = accountant.compose(event, 20).get_epsilon(1e-2)
    assert float(method.epsilon_after(20)) == pytest.approx(theirs, rel=1e-4)


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


# What private methods do at their edges: noise of the right size, zero and broken updates, empty rounds, sweeps.

SETTING = {"cohort": 3, "population": 5, "delta": 1e-2}
FEDAVG = fs.FedAvg(0.3, weighting="uniform")
DIMENSION = 100_000


def private_behaviour(inner=FEDAVG, z=0.3, clip_norm=0.4, **more):
    return fs.privacy.DifferentialPrivacy(inner, z, clip_norm, **(SETTING | more))


def message(delta, squared=None):
    delta = {"w": jnp.asarray(delta)}
    return FedOptMessage(
        delta, jnp.asarray(0.0), () if squared is None else Spread(jnp.asarray(squared, float))
    )


@pytest.mark.parametrize(
    ("more", "multiplier"),
    [
        ({}, 1.3),
        ({"sampling": "none", "at": "client"}, 1.3),
        # sigma_b = max(3/20, z): what is left for the displacement is z / sqrt(1 - 1/4)
        ({"clipping": "adaptive"}, 1.3 / 0.75**0.5),
        ({"inner": fs.FedDuAdam(0.3)}, 1.3 / 0.9**0.5),
    ],
)
def test_noise_has_the_accounted_size(more, multiplier):
    """Standard deviation z_D C / m, mean 0, of 100,000 coordinates; 1 % is six standard errors."""
    rule = "inner" in more
    with jax.enable_x64(True):
        method = private_behaviour(z=1.3, clip_norm=0.7, **({"inner": FEDAVG} | more))
        inner = message(np.zeros(DIMENSION), 0.0 if rule else None)
        server = method.init(inner.delta)
        sent = PrivateMessage(inner, jnp.float64(0.5) if "clipping" in more else ())
        cohort = fs.Cohort(0, 3, 5, jax.random.key(7))
        after = jax.jit(lambda server, sent: method.update(server, sent, cohort))(server, sent)
        # FedDuAdam's v is 0.1 D after a round; FedAvg starts at 0 and is at D
        noise = (
            np.asarray(after.inner.server_optimizer.v["w"]) / 0.1
            if rule
            else np.asarray(method.export(after)["w"])
        )
    std = multiplier * 0.7 / 3
    assert noise.std() == pytest.approx(std, rel=0.014)
    assert abs(noise.mean()) < 5 * std / DIMENSION**0.5


@pytest.mark.full
def test_local_noise_has_the_size_of_its_promise():
    """Each message carries noise of standard deviation z C, its own for each client and round."""

    class Still(fs.Oracle):
        steps = bound = num_examples = batch_size = 1
        client = 0

        def __init__(self, seed):
            self.key = jax.random.key(seed)

        def __call__(self, params, step):
            return jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)

        loss = full = __call__

    method = fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, 2.0, delta=1e-5)
    broadcast = method.broadcast(method.init({"w": jnp.zeros(DIMENSION)}), fs.Cohort(0, 1, 5))
    sent = [np.asarray(method.train(broadcast, (), Still(s))[0].delta["w"]) for s in (0, 1)]
    for noise in sent:
        assert noise.std() == pytest.approx(float(method.noise_multiplier) * 0.5, rel=0.014)
    assert abs(np.corrcoef(*sent)[0, 1]) < 0.02


def test_clipping_alone():
    """Longer than C becomes C long, shorter and zero ones stay; what is not finite stays visible."""
    for delta, norm in (([3.0, 4.0], 0.5), ([0.03, 0.04], 0.05), ([0.0, 0.0], 0.0), ([1e25, 0.0], 0.0)):
        clipped, within = clip(
            message(np.float32(delta), 9.0), 0.5, {"loss": 0.0, "measured.squared_norm": 0.25}
        )
        # a norm that overflows leaves 0: less than C, but nothing infinite
        assert np.linalg.norm(clipped.delta["w"]) == pytest.approx(norm, rel=1e-6)
        assert float(within) == (1.0 if norm < 0.5 and delta[0] < 1 else 0.0)
        assert float(clipped.measured.squared_norm) == 0.25
    for broken in (np.nan, np.inf):
        clipped, _ = clip(
            message(np.array([broken, 1.0]), 1.0), 0.5, {"loss": 0.0, "measured.squared_norm": 0.25}
        )
        assert np.isnan(clipped.delta["w"]).all()
        assert np.isnan(clipped.measured.squared_norm)


@pytest.mark.full
@pytest.mark.parametrize(
    ("clipping", "at"),
    crossed(
        product(["fixed", "adaptive"], ["server", "client"]), [("fixed", "client"), ("adaptive", "server")]
    ),
)
def test_a_broken_client_is_left_out(at, clipping):
    """NaN is dropped, not clipped into the model; the sum is still divided by m, epsilon goes on."""
    clients = make_clients()
    clients[1] = clients[1]._replace(x=1e200 * clients[1].x)  # the second step overflows
    method = private_behaviour(fs.FedDuAdam(0.3), at=at, clipping=clipping, cohort=5)
    run = play(method, make_task(clients), fs.sampling.Uniform(5), 5)
    assert (run.logs["dropped"] == 1).all()
    assert np.isfinite(run.iterates).all()
    assert (np.diff(run.logs["epsilon"]) > 0).all()


@pytest.mark.full
def test_an_update_of_zero_moves_nothing_without_noise():
    """All displacements 0 (no gradient): no division by their norm."""
    task = make_task(make_clients())
    still = fs.Task(
        "still", task.init, lambda p, b: 0.0 * jnp.sum(p.weight) + 0.0 * jnp.mean(b.x), task.data, epochs=1
    )
    for inner in (FEDAVG, fs.FedDuAdam(0.3)):
        run = play(private_behaviour(inner, z=0.0), still, fs.sampling.Uniform(3), 3)
        assert (run.iterates == run.iterates[0]).all()


@pytest.mark.full
def test_empty_rounds_are_paid_for_and_not_visible():
    """Poisson cohorts, most of them empty: every round moves the model, by noise alone, and costs the same.

    In the engine, which must not skip the update of an empty round.
    """
    method = private_behaviour(cohort=0.25, sampling="poisson", z=1.0)
    run = engine(method, make_task(make_clients()), fs.sampling.Bernoulli(0.05), 20)
    empty = [t for t, cohort in enumerate(run.cohorts) if not cohort]
    assert len(empty) > 5
    assert (np.abs(np.diff(run.iterates, axis=0)).max(axis=1) > 0).all()
    some = [0, 6, 19]
    want = [epsilon(1.0, t + 1, population=5, cohort=0.25, delta=1e-2, sampling="poisson") for t in some]
    assert run.logs["epsilon"][some] == pytest.approx(want, rel=1e-3)
    assert (np.diff(run.logs["epsilon"]) > 0).all()
    assert (run.logs["epsilon"] < run.logs["epsilon_renyi"]).all()


@partial(jax.jit, static_argnums=4)
def after_a_round(method, server, within, t, population):
    """The server after displacements of 0, so many of them within C."""
    sent = PrivateMessage(message(np.float32([0.0])), within)
    return method.update(server, sent, fs.Cohort(t, population, population, jax.random.key(t)))


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.9])
def test_adaptive_clipping_finds_the_quantile(gamma):
    """C comes to the gamma-quantile of log-normal norms, with the noise of the count, and stays about it."""
    population = 1000
    norms = np.exp(np.random.default_rng(0).standard_normal(population))
    method = private_behaviour(
        FEDAVG, 1.0, 0.05, cohort=population, population=population, sampling="poisson", clipping="adaptive",
        quantile=gamma,
    )  # fmt: skip
    delta = {"w": jnp.zeros(1)}
    server, found = method.init(delta), []
    for t in range(120):
        norm = float(server.clipping.clip_norm)
        server = after_a_round(method, server, np.float32(np.mean(norms <= norm)), t, population)
        found.append(norm)
    reached = np.mean(norms[:, None] <= np.array(found[-40:]))
    assert reached == pytest.approx(gamma, abs=0.03)


@pytest.mark.full
def test_the_seed_decides():
    """The same seed gives the same bits, another other noise; the engine draws the same, whatever its chunks."""
    task = make_task(make_clients(), batch=None)  # nothing is shuffled
    a, b, c = (play(private_behaviour(), task, fs.sampling.Uniform(3), 4, seed=s) for s in (0, 0, 1))
    assert (a.iterates == b.iterates).all()
    assert relative(a.iterates[1:], c.iterates[1:]) > 1e-2
    other = engine(private_behaviour(), task, fs.sampling.Uniform(3), 4, chunk=1)
    assert relative(a.iterates, other.iterates) < 1e-12


@pytest.mark.full
def test_wrappers_of_the_objective_go_inside_or_outside():
    """FedProx of a private method is a private FedProx."""
    task = make_task(make_clients())
    inside = play(private_behaviour(fs.Proximal(FEDAVG, 0.5)), task, fs.sampling.Uniform(3), 4)
    outside = play(fs.Proximal(private_behaviour(), 0.5), task, fs.sampling.Uniform(3), 4)
    assert relative(inside.iterates, outside.iterates) < 1e-12


@pytest.mark.full
def test_noise_and_norms_are_of_one_program():
    """z and C are leaves: one structure."""
    structures = {
        jax.tree.structure(private_behaviour(z=z, clip_norm=c)) for z in (0.5, 2.0) for c in (0.1, 1.0)
    }
    assert len(structures) == 1


@pytest.mark.full
def test_a_lane_of_a_sweep_is_the_run_with_its_noise_and_norm():
    task = make_task(make_clients())
    found = fs.sweep(
        lambda z, clip_norm: private_behaviour(z=z, clip_norm=clip_norm),
        task, {"z": [0.5, 2.0], "clip_norm": [0.1, 1.0]},
        rounds=5, clients_per_round=3, dtype="float64",
    )  # fmt: skip
    alone = fs.run(
        private_behaviour(z=2.0, clip_norm=0.1), task, rounds=5, clients_per_round=3, dtype="float64"
    )
    place = [i for i, s in enumerate(found.points) if s == {"z": 2.0, "clip_norm": 0.1}]
    lane = np.asarray(found.metrics["train_loss"])[place[0], 0, -1]
    assert lane == pytest.approx(alone.metrics["train_loss"][-1], rel=1e-9)


@pytest.mark.full
def test_another_noise_brings_its_own_divergences():
    """Replacing z by another number renews what a round costs; as an array (a cast) it keeps what it had."""
    from fedsolve.core.types import replace

    changed = replace(private_behaviour(z=1.0), noise_multiplier=2.0)
    assert np.array_equal(changed.renyi, private_behaviour(z=2.0).renyi)
    cast = jax.tree.map(jnp.asarray, private_behaviour(z=1.0))
    assert np.allclose(cast.renyi, private_behaviour(z=1.0).renyi)
    none = {"sampling": "none", "cohort": 5}
    stricter = replace(jax.tree.map(jnp.asarray, private_behaviour(z=1.0, **none)), delta=1e-6)
    assert float(stricter.epsilon_after(5)) == pytest.approx(
        float(private_behaviour(z=1.0, **none, delta=1e-6).epsilon_after(5))
    )


@pytest.mark.full
def test_epsilon_is_among_the_notes():
    """What a private run has cost is said with its result."""
    amplified = fs.privacy.DifferentialPrivacy(fs.FedExP(0.1), 1.0, 0.5, cohort=2, population=5, delta=1e-3)
    result = fs.run(amplified, make_task(make_clients()), rounds=2, clients_per_round=2)
    epsilon = result.rounds["epsilon"][-1]
    assert result.history.notes[-1].startswith(f"epsilon = {epsilon:.4g} after all rounds")
    assert sum("epsilon assumes that the cohorts are secret" in note for note in result.history.notes) == 1
