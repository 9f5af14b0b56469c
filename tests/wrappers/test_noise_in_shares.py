"""DP(at="distributed") under Secure: steps against NumPy with the same random words, bounds, noise, and its cost."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_two_probability_mass_functions
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy import stats

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.methods.privacy.accounting import (
    ENTRIES,
    NORM,
    ORDERS,
    STEPS,
    epsilon,
    noise_multiplier_for,
    renyi,
    round_within,
    rounded_norm,
    simulated_noise,
    skellam_divergence,
    skellam_renyi,
    subsampled,
)
from fedsolve.methods.privacy.central import SkellamCoder, share_of
from harness import engine, make_clients, make_task
from verbs_harness import play

UPDATE = {"a": np.random.default_rng(0).normal(size=(40, 50)), "b": np.random.default_rng(1).normal(size=7)}
PLAN = {"cohort": 5, "population": 5, "delta": 1e-2, "sampling": "none"}
FEDAVG = fs.FedAvg(0.3, weighting="uniform")


def shared(inner=FEDAVG, z=0.3, clip_norm=0.4, min_sum=5, **more):
    given = PLAN | {"at": "distributed", "min_sum": min_sum} | more
    return fs.privacy.DifferentialPrivacy(inner, z, clip_norm, **given)


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(size)


def encoded(update, clip_norm, round, client):
    """The steps in NumPy: rows of 1,024, signs, Hadamard matrix, clipping, scaling, rounding."""
    key = jax.random.fold_in(jax.random.key(0x5CE1), round)
    flat = np.concatenate([update["a"].ravel(), update["b"].ravel()])
    rows = np.pad(flat, (0, -len(flat) % 1024)).reshape(-1, 1024)
    signs = np.where(np.asarray(jax.random.bits(key, rows.shape, jnp.uint32)) < 2**31, 1, -1)
    scaled = STEPS / clip_norm * (rows * signs) @ hadamard(1024)
    scaled *= min(1, clip_norm / np.linalg.norm(flat))
    own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, 1), client), 1)
    up = np.asarray(jax.random.uniform(own, rows.shape, float)) < scaled - np.floor(scaled)
    return np.floor(scaled) + up, scaled, signs


@pytest.mark.parametrize("clip_norm", [0.5, 1000.0])
def test_steps_are_those_of_numpy(clip_norm):
    """Long and short updates; then the mean of two clients, rotated back."""
    with jax.enable_x64(True):
        coder = SkellamCoder(clip_norm, 1.0)
        encode, decode = jax.jit(coder.encode), jax.jit(coder.decode)
        sent = [encode(UPDATE, jnp.int32(3), jnp.int32(i))[0] for i in (0, 1)]
        a, b = decode([sent[0] + sent[1]], jnp.float64(2.0), UPDATE, jnp.int32(3))
        wanted = [encoded(UPDATE, clip_norm, 3, i) for i in (0, 1)]
    for found, (whole, scaled, _) in zip(sent, wanted, strict=True):
        assert (np.asarray(found) == whole).all()
        assert np.abs(np.asarray(found) - scaled).max() < 1
    back = (wanted[0][0] + wanted[1][0]) / 2 @ hadamard(1024) * wanted[0][2] * clip_norm / STEPS
    flat = np.concatenate([np.asarray(a).ravel(), np.asarray(b)])
    assert np.abs(flat - back.ravel()[: flat.size]).max() < 1e-12
    norm = np.linalg.norm(np.concatenate([x.ravel() for x in UPDATE.values()]))
    assert np.abs(np.asarray(a) - UPDATE["a"] * min(1, clip_norm / norm)).max() < 5 * clip_norm / STEPS


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_squared_norms_are_sent_with_updates(factor):
    """One vector within the bound: the update by sqrt(1 - S) and its squared norm by sqrt(S), both unbiased."""
    share, norm = 0.36, np.sqrt(sum((x**2).sum() for x in UPDATE.values()))
    clip_norm = norm / factor
    with jax.enable_x64(True):
        coder = SkellamCoder(clip_norm, 1.0, share)
        (sent,) = jax.jit(coder.encode)(UPDATE, 3, 0)
        a, b, squared = jax.jit(coder.decode)([3 * sent], jnp.float64(3.0), UPDATE, 3)
    rows = encoded(UPDATE, clip_norm, 3, 0)[1]
    clipped = min(factor, 1.0)
    assert np.abs(np.asarray(sent[:-1]) - 0.8 * rows).max() < 1
    assert abs(float(sent[-1, 0]) - 0.6 * clipped**2 * STEPS) < 1
    assert np.abs(np.asarray(sent[-1, 1:])).max() == 0
    assert np.linalg.norm(np.asarray(sent)) <= NORM
    assert float(squared) == pytest.approx((clipped * clip_norm) ** 2, abs=2 * clip_norm**2 / STEPS)
    for name, found in (("a", a), ("b", b)):
        assert np.abs(np.asarray(found) - UPDATE[name] * min(1, 1 / factor)).max() < 6 * clip_norm / STEPS


def test_extrapolation_under_noise_in_shares():
    """Hardly any noise: FedExP, and the same by a server that adds it; much noise: plain averaging, and a note."""
    task, everyone = make_task(make_clients(), batch=None), fs.sampling.Uniform(5)
    inner = fs.FedExP(0.3, weighting="uniform")
    limits = {"bound": 10.0, "max_clients": 5}
    central = fs.privacy.DifferentialPrivacy(inner, 1e-6, 1.5, **PLAN)
    wanted = engine(central, task, everyone, 4)
    found = engine(fs.Secure(shared(inner, z=1e-6, clip_norm=1.5), **limits), task, everyone, 4)
    assert np.abs(found.iterates - wanted.iterates).max() < 3e-3
    assert np.abs(wanted.iterates - play(FEDAVG, task, everyone, 4).iterates).max() > 0.1
    noisy = engine(fs.Secure(shared(inner, z=3.0), **limits), task, everyone, 3)
    assert (noisy.logs["noise_dominates"] == 1).all()
    assert (noisy.logs["server_lr"] == 1).all()


def test_rounded_norms_stay_within_the_bound():
    """Also where a single rounding is likely to exceed it; what is not finite is sent as whatever, and left out."""
    rng = np.random.default_rng(0)
    for size, norm in ((64, 3.0), (4096, 10.0)):
        x = rng.normal(size=(1, size))
        x = jnp.asarray(x / np.linalg.norm(x) * norm, jnp.float32)
        tight = rounded_norm(norm, size, beta=math.exp(-0.5))
        keys = jax.random.split(jax.random.key(size), 200)
        found = np.asarray(jax.jit(jax.vmap(partial(round_within, x, tight)))(keys), float)
        assert (np.linalg.norm(found[:, 0], axis=1) <= tight * (1 + 1e-6)).all()
        none = np.asarray(jax.jit(round_within)(x, norm, jax.random.key(0)), float)
        assert np.linalg.norm(none) <= norm
    jax.jit(round_within)(jnp.full((1, 4), jnp.nan, jnp.float32), 1.0, jax.random.key(0)).block_until_ready()
    long = {"a": jnp.full((3, 3), 1e30, jnp.float32)}
    assert np.linalg.norm(jax.jit(SkellamCoder(0.5, 1.0).encode)(long, 0, 0)[0]) <= NORM


@pytest.mark.full
def test_rounding_is_unbiased():
    """The mean of 4,000 roundings, with the bound that no rounding is expected to exceed."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 32)), jnp.float32)
    bound = rounded_norm(float(jnp.linalg.norm(x)), 32)
    keys = jax.random.split(jax.random.key(1), 4000)
    found = np.asarray(jax.jit(jax.vmap(lambda k: round_within(x, bound, k)))(keys))
    assert np.abs(found.mean(axis=0) - x).max() < 5 * 0.5 / 4000**0.5


def test_a_model_that_is_too_large():
    assert rounded_norm(STEPS, ENTRIES) * 1.0001 <= NORM < rounded_norm(STEPS, 2 * ENTRIES) * 1.0001
    with pytest.raises(InvalidInput, match=f"at most {ENTRIES:,} parameters"):
        jax.eval_shape(
            lambda x: SkellamCoder(1.0, 1.0).encode(x, 0, 0), jax.ShapeDtypeStruct((ENTRIES + 1,), "float32")
        )


@pytest.mark.parametrize("variance", [2.0**13, 1e9])
def test_noise_of_simulations(variance):
    """Chi-square of 100,000 numbers against the Skellam distribution, and their variance."""
    like = jnp.zeros(100_000, jnp.float32)
    found = np.asarray(simulated_noise(jax.random.key(2), like, variance), float)
    assert (found == np.round(found)).all()
    assert found.var() == pytest.approx(variance, rel=0.02)
    law = stats.skellam(variance / 2, variance / 2) if variance < 1e6 else stats.norm(-0.5, variance**0.5)
    edges = np.unique(np.floor(np.linspace(-3, 3, 31) * variance**0.5))
    expected = len(found) * np.diff(law.cdf(np.concatenate([[-np.inf], edges, [np.inf]])))
    counted = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    assert stats.chisquare(counted, expected).pvalue > 1e-3


@partial(jax.jit, static_argnums=2)
def mean_of_noise(coder, zero, count):
    (start,) = coder.encode(zero, 0, 0)
    keys = jax.vmap(jax.random.key)(jnp.arange(count))
    total = jax.lax.map(lambda key: coder.noise([start], key)[0], keys).sum(0)
    return coder.decode([total], jnp.float32(count), zero, 0)


@pytest.mark.parametrize(("min_sum", "corrupt", "more"), [(20, 0.0, 1.0), (10, 0.0, 2.0), (20, 0.25, 4 / 3)])
def test_the_sum_has_the_noise_of_the_whole(min_sum, corrupt, more):
    """20 clients that send 0: standard deviation z C of the sum, sized for the smallest sum and those who add none."""
    z, clip_norm, count = 1.5, 0.7, 20
    coder = SkellamCoder(clip_norm, share_of(z, min_sum, corrupt), 0.2)
    zero = {"w": jnp.zeros(30_000)}
    mean, _ = mean_of_noise(coder, zero, count)
    assert np.std(count * np.asarray(mean)) == pytest.approx(z * clip_norm * (more / 0.8) ** 0.5, rel=0.02)


@pytest.mark.full
def test_sums_of_messages_are_the_method():
    """No noise and a large bound: FedAvg, up to the rounding; below min_sum the model stays, epsilon goes on."""
    task, everyone = make_task(make_clients(), batch=None), fs.sampling.Uniform(5)  # nothing is shuffled
    limits = {"bound": 10.0, "max_clients": 5}
    plain = play(FEDAVG, task, everyone, 4)
    found = engine(fs.Secure(shared(z=1e-6, clip_norm=20.0), **limits), task, everyone, 4)
    assert np.abs(found.iterates - plain.iterates).max() < 5e-3
    one, two = (engine(fs.Secure(shared(), **limits), task, everyone, 4, seed=s) for s in (0, 1))
    assert np.abs(one.iterates[1:] - two.iterates[1:]).max() > 1e-3
    few = shared(cohort=3, min_sum=3)
    server = few.init({"w": jnp.zeros(4)})
    message = few.train(few.broadcast(server, fs.Cohort(0, 3, 5)), (), _Still())[0]
    for size, moves in ((2, False), (3, True)):
        after = few.update(server, message, fs.Cohort(0, size, 5, jax.random.key(0)))
        assert bool(np.abs(few.export(after)["w"]).max() > 0) == moves
        assert float(after.epsilon) == pytest.approx(float(few.epsilon_after(1)))


class _Still(fs.Oracle):
    steps = bound = num_examples = batch_size = 1
    client, key = 0, None

    def __call__(self, params, step):
        return jnp.zeros(()), jax.tree.map(jnp.ones_like, params)

    loss = full = __call__  # pyright: ignore[reportAssignmentType]


def test_the_bound_is_above_the_privacy_loss_distribution_in_one_dimension():
    """Skellam noise of variance 25 around 0 and around 3, composed 20 times: Renyi's epsilon is 0 to 15 % above."""
    variance, distance, rounds, delta = 25.0, 3, 20, 1e-5
    values = np.arange(-120, 121)
    logs = {
        c: dict(zip(values, stats.skellam.logpmf(values - c, variance / 2, variance / 2), strict=True))
        for c in (0, 3)
    }
    exact = from_two_probability_mass_functions(logs[0], logs[3], value_discretization_interval=1e-4)
    exact = exact.self_compose(rounds).get_epsilon_for_delta(delta)
    orders = list(range(2, 200))
    bound = compute_epsilon(
        orders,
        [rounds * skellam_divergence(a, distance, distance, variance) for a in orders],
        delta,
    )[0]
    assert exact < bound < 1.15 * exact


def test_it_tends_to_the_gaussian_bound():
    """As the scale grows: alpha (2C)^2 / (2 z^2 C^2); in a run, 1.01^2 of it, of the next whole order."""
    for scale, close in ((1e1, 0.2), (1e3, 3e-3), (1e5, 3e-5)):
        found = skellam_divergence(8, 5 * scale, scale, (2 * scale) ** 2)
        assert 1 < found / (8 / 8) < 1 + close
    whole = np.array([order == round(order) for order in ORDERS])
    ratio = np.array(skellam_renyi(3.0, 100, 20.0, "none")) / renyi(
        3.0, population=100, cohort=20, sampling="none"
    )
    assert ratio[whole] == pytest.approx(1.0201, rel=1e-4)
    assert (ratio[~whole] > 1).all()


def test_subsampling_is_the_general_bound():
    """Theorem 9 for order 2 and 3 by hand; above the bound that Gaussian noise alone has."""
    d, q = np.array([0.4, 0.9]), 0.1
    pairs = q**2 * min(4 * (math.exp(0.4) - 1), 2 * math.exp(0.4))
    assert subsampled(d, 2, q) == pytest.approx(math.log(1 + pairs))
    assert subsampled(d, 3, q) == pytest.approx(math.log(1 + 3 * pairs + 2 * q**3 * math.exp(1.8)) / 2)
    gaussian = np.array([a * 2 / 9 for a in range(2, 65)])
    whole = {a: i for i, a in enumerate(ORDERS) if a in (2, 8, 32, 64)}
    tight = renyi(3.0, population=100, cohort=10, sampling="fixed")
    for a, i in whole.items():
        assert subsampled(gaussian, int(a), 0.1) >= 0.999 * tight[i]


@pytest.mark.parametrize("sampling", ["fixed", "none"])
def test_epsilon_and_calibration(sampling):
    """The log is what `epsilon` says of Skellam noise, 1 to 20 % more than of Gaussian noise without sampling."""
    plan = {"population": 100, "cohort": 20, "delta": 1e-3, "sampling": sampling}
    z = noise_multiplier_for(8.0, 30, noise="skellam", **plan)
    assert 7.98 < epsilon(z, 30, noise="skellam", **plan) <= 8.0
    method = fs.privacy.DifferentialPrivacy(FEDAVG, z, 0.5, at="distributed", min_sum=20, **plan)
    assert float(method.epsilon_after(30)) == pytest.approx(epsilon(z, 30, noise="skellam", **plan), rel=1e-5)
    assert float(method.epsilon_after(30)) == float(method._renyi_after(30))
    if sampling == "none":
        assert 1 < 8 / epsilon(z, 30, **plan) < 1.2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_sum": None}, "needs min_sum"),
        ({"min_sum": 6}, "min_sum = 6"),
        ({"corrupt": 1.0}, "corrupt = 1.0"),
        ({"corrupt": 0.99}, "leaves nobody to add noise"),
        ({"clipping": "adaptive"}, "needs clipping='fixed'"),
        ({"sampling": "poisson"}, "needs sampling='fixed' or 'none'"),
        ({"z": 100.0}, "raise min_sum"),
        ({"at": "client"}, "of DP\\(at='distributed'\\) alone"),
    ],
)
def test_what_is_refused(change, said):
    with pytest.raises(InvalidInput, match=said):
        shared(**change)


def test_what_is_refused_of_runs():
    task = make_task(make_clients())
    with pytest.raises(InvalidInput, match=r"put fs\.Secure around it"):
        fs.run(shared(), task, rounds=1)
    given = shared(fs.FedExP(0.1), scalars={"measured.squared_norm": 0.1})
    with pytest.raises(InvalidInput, match=r"nothing but the client update.*sends measured\.squared_norm"):
        fs.run(fs.Secure(given, bound=1.0, max_clients=5), task, rounds=1)
    with pytest.raises(InvalidInput, match="bits=64"):
        fs.Secure(shared(), bound=1.0, max_clients=5000)
    fs.Secure(shared(), bound=1.0, max_clients=5000, bits=64)
