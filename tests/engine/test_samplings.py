"""Who takes part: each sampling draws distinct clients with the frequencies that its definition gives."""

from fractions import Fraction
from itertools import pairwise
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import (
    TAG_SECOND_WORD,
    Bernoulli,
    Sampling,
    Trace,
    Uniform,
    Weighted,
    _client_of,
    bounds_of,
    draw_binomial,
    exponentials,
    most_successes,
)
from fedsolve.core.types import module
from fedsolve.engine.compute.casting import cast
from harness import crossed, engine, make_clients, make_task

DRAWS = 4000


def draw(sampling, population, rounds=DRAWS):
    """ids and present of many rounds, each of shape (rounds, capacity)."""
    keys = jax.random.split(jax.random.key(7), rounds)
    numbers = jnp.arange(rounds, dtype=jnp.int32)
    ids, present = jax.jit(jax.vmap(lambda k, t: sampling.draw(k, t, population)))(keys, numbers)
    return np.asarray(ids), np.asarray(present)


def cohorts_are_distinct(ids, present):
    for row, here in zip(ids, present, strict=True):
        cohort = row[here]
        assert len(set(cohort)) == len(cohort)
        assert (np.diff(here.astype(int)) <= 0).all()  # present clients come first


def frequencies(ids, present, population):
    return np.bincount(ids[present], minlength=population) / len(ids)


def near(got, chance, rounds=DRAWS):
    """Within five standard deviations of a mean of independent rounds."""
    chance = np.asarray(chance)
    assert (np.abs(got - chance) <= 5 * np.sqrt(chance * (1 - chance) / rounds)).all()


def test_uniform():
    """3 of 10 without replacement: every client with chance 3/10, every pair with chance 3/10 x 2/9 =
    1/15.
    """
    ids, present = draw(Uniform(3), 10)
    assert ids.shape == (DRAWS, 3)
    assert present.all()
    cohorts_are_distinct(ids, present)
    near(frequencies(ids, present, 10), np.full(10, 0.3))
    member = (ids[:, :, None] == np.arange(10)).any(axis=1)
    pairs = member.astype(float).T @ member / DRAWS
    near(pairs[np.triu_indices(10, 1)], np.full(45, 1 / 15))


def test_everyone():
    """Size = population: all of them, in order, in every round."""
    ids, present = draw(Uniform(5), 5, 3)
    np.testing.assert_array_equal(ids, np.tile(np.arange(5), (3, 1)))
    assert present.all()


@pytest.mark.full
def test_bernoulli():
    """Each client with chance .3, independently: pairs with .09, an empty cohort with .7^6 = .1176."""
    ids, present = draw(Bernoulli(0.3), 6)
    cohorts_are_distinct(ids, present)
    near(frequencies(ids, present, 6), np.full(6, 0.3))
    near(np.mean(~present.any(axis=1)), 0.7**6)
    member = np.stack([np.isin(np.arange(6), row[here]) for row, here in zip(ids, present, strict=True)])
    near(np.mean(member[:, 0] & member[:, 4]), 0.09)


def near_chi_square(observed, expected):
    """Within five standard deviations of the mean of the chi-square law of so many cells."""
    free = np.size(observed) - 1
    assert abs((((observed - expected) ** 2) / expected).sum() - free) <= 5 * np.sqrt(2 * free)


@pytest.mark.full
@pytest.mark.full_rows("uniform")
@pytest.mark.parametrize("sampling", [Uniform(50), Bernoulli(0.01)], ids=["uniform", "bernoulli"])
def test_of_many_clients(sampling):
    """50 of 5,000, or each with chance .01: every client as often; the first two, by tenths of the population, as pairs
    of different clients lie (500 x 500 of 5,000 x 4,999, or 500 x 499 in one tenth); sizes by the binomial law.
    """
    ids, present = draw(sampling, 5000)
    cohorts_are_distinct(ids, present)
    near_chi_square(np.bincount(ids[present], minlength=5000), present.sum() / 5000)
    share = np.full((10, 10), 500 * 500 / 5000 / 4999)
    share[np.diag_indices(10)] = 500 * 499 / 5000 / 4999
    pairs = np.zeros((10, 10))
    np.add.at(pairs, tuple(ids[:, :2].T // 500), 1)
    near_chi_square(pairs, share * DRAWS)
    p, sizes = Fraction(0.01), range(35, 66)
    law = [float(comb(5000, k) * p**k * (1 - p) ** (5000 - k)) for k in sizes]
    found = np.bincount(present.sum(axis=1), minlength=66)[35:66]
    if isinstance(sampling, Bernoulli):
        near_chi_square(found, np.array(law) * DRAWS)
    else:
        assert present.all()


@pytest.mark.gate("uniform")
@pytest.mark.parametrize("sampling", [Uniform(50), Bernoulli(0.01)], ids=["uniform", "bernoulli"])
def test_a_deployment_draws_what_the_compiled_round_draws(sampling):
    """Operation by operation and compiled, in types of 32 bits and of 64: the same cohort."""
    key = jax.random.key(4)
    drawn = jax.jit(lambda k: sampling.draw(k, jnp.int32(3), 5000))
    want = drawn(key)
    with jax.enable_x64(True):
        other = drawn(key)
    for got in (sampling.draw(key, jnp.int32(3), 5000), other):
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_a_cohort_that_is_nearly_always_empty():
    """p = 1e-12 of 5,000: room for those that come with a chance above 2^-64, at least one, and nobody there."""
    ids, present = Bernoulli(1e-12).draw(jax.random.key(0), jnp.int32(0), 5000)
    assert ids.shape == present.shape == (most_successes(5000, 1e-12),) == (2,)
    assert Bernoulli(1e-30).draw(jax.random.key(0), jnp.int32(0), 5000)[0].shape == (1,)
    assert not present.any()


@pytest.mark.full_rows("100-0.99")
@pytest.mark.parametrize(("n", "p"), [(30, 0.3), (100, 0.99), (3, 1e-30), (1, 0.25)])
def test_a_binomial_number_is_exact(n, p):
    """The smallest k with U / 2^64 < P(X <= k), of fractions, to 2^-64; most_successes is where the law ends."""
    key, chance = jax.random.key(8), Fraction(p)
    terms = [comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)]
    below = [sum(terms[: k + 1]) for k in range(n + 1)]
    draw_one = jax.jit(lambda k: draw_binomial(k, n, p))
    for k in jax.random.split(key, 40):
        high, low = (int(x) for x in jax.random.bits(k, (2,), jnp.uint32))
        word = Fraction((high << 32) + low, 2**64)
        assert int(draw_one(k)) == next(k for k, b in enumerate(below) if word < b)
    assert most_successes(n, p) == next(k for k, b in enumerate(below) if 1 - b < Fraction(1, 2**64))


def test_a_binomial_number_looks_at_all_64_bits():
    """One trial: nothing where 1 - p is the next float above the key's bits, a success where it is the next below."""
    for key in jax.random.split(jax.random.key(9), 12):
        high, low = (int(x) for x in jax.random.bits(key, (2,), jnp.uint32))
        near = ((high << 32) + low) / 2**64
        if near > 0.5:  # there 1 - p is a float without rounding
            assert int(draw_binomial(key, 1, float(1 - np.nextafter(near, 1)))) == 0
            assert int(draw_binomial(key, 1, float(1 - np.nextafter(near, 0)))) == 1


def test_weighted():
    """Successive sampling of 2 with weights 1:2:3:4:0: P(i) = w_i + sum over j of w_j w_i / (1 - w_j)."""
    w = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    ids, present = draw(Weighted(10 * w, 2), 5)
    cohorts_are_distinct(ids, present)
    second = [sum(w[j] * w[i] / (1 - w[j]) for j in range(5) if j != i) for i in range(5)]
    near(frequencies(ids, present, 5), w + second)
    assert not (ids == 4).any()


def exponential_numbers(high, low):
    """-log of 1 minus or of half a word's 63 upper bits and a half, as parts of 2^63; the last bit says which."""
    end = (high.astype(float) * 2**31 + (low >> 1) + 0.5) / 2**64
    return np.where(low % 2 == 1, -np.log(end), -np.log1p(-end))


@pytest.mark.parametrize("x64", [False, True])
def test_weighted_looks_at_all_64_bits(x64):
    """Weights from 1e-60 to 1: clients come in the order of E_i / w_i, E_i to all bits, zero weights last."""
    weights = np.append(10.0 ** np.random.default_rng(1).uniform(-60, 0, 60), np.zeros(4))
    with jax.enable_x64(x64):
        sampling = cast(Weighted(weights, 60), "float64" if x64 else "float32")
        for key in jax.random.split(jax.random.key(5), 8):
            high, low = np.asarray(jax.random.bits(key, (2, 64), jnp.uint32))
            ids = np.asarray(sampling.draw(key, 0, 64)[0])
            np.testing.assert_array_equal(ids, np.argsort(exponential_numbers(high, low)[:60] / weights[:60]))


def test_exponential_numbers_have_both_tails():
    """Above 0 and finite at every word, and right to the rounding of float32 where 23 bits would be 0 or infinite."""
    ends = np.array([0, 1, 2, 3, 2**8, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)
    high, low = (words.ravel() for words in np.meshgrid(ends, ends))
    got = np.asarray(exponentials(high, low, jnp.dtype("float32")), float)
    np.testing.assert_allclose(got, exponential_numbers(high, low), rtol=1e-6)
    assert got.min() < 1e-19
    assert 44 < got.max() < 46


def test_trace():
    """At most 2 of those in row t mod 3: {0, 1, 2} with chance 2/3 each, {4} always, and nobody."""
    trace = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    ids, present = draw(Trace(trace, 2), 5, 3 * 1500)
    cohorts_are_distinct(ids, present)
    near(frequencies(ids[0::3], present[0::3], 5)[:3], np.full(3, 2 / 3), 1500)
    assert (present[0::3].sum(axis=1) == 2).all()
    assert (frequencies(ids[0::3], present[0::3], 5)[3:] == 0).all()
    assert (ids[1::3, 0] == 4).all()
    assert (present[1::3].sum(axis=1) == 1).all()
    assert not present[2::3].any()


@pytest.mark.full_rows("SCAFFOLD")
@pytest.mark.parametrize("name", [pytest.param("FedDuAdam", marks=pytest.mark.full), "FedAvgM", "SCAFFOLD"])
def test_an_empty_cohort_changes_nothing(name):
    """p = .2 of 5: a third of the rounds is empty; there model, momentum and control variates all stay."""
    run = engine(fs.build(name, {"client_lr": 0.3}), make_task(make_clients()), Bernoulli(0.2), 12)
    sizes = np.array([len(c) for c in run.cohorts])
    assert (sizes == 0).any()
    assert (sizes > 0).any()
    np.testing.assert_array_equal(run.logs["participants"], sizes)
    moved = (np.diff(run.iterates, axis=0) != 0).any(axis=1)
    np.testing.assert_array_equal(moved, sizes > 0)
    assert (run.logs["dropped"] == 0).all()
    assert int(run.state.failed) == -1


@pytest.mark.parametrize(
    "bad",
    [
        Uniform(6),
        Uniform(0),
        Weighted(np.ones(4), 2),
        Weighted(np.array([1.0, 0, 0, 0, 0]), 2),
        Weighted(np.array([1.0, -1, 1, 1, 1]), 2),
        Trace(np.ones((3, 4), bool), 2),
        Trace(np.zeros((3, 5), bool), 2),
        Trace(np.array([[False] * 5, [True] * 5]), 2),
    ],
    ids=[
        "too many",
        "none",
        "weights short",
        "weights zero",
        "negative",
        "trace narrow",
        "trace of nobody",
        "nobody in the first round",
    ],
)
def test_a_sampling_that_does_not_fit(bad):
    """Refused before anything runs: population 5."""
    with pytest.raises(fs.InvalidInput):
        fs.run(fs.FedAvg(), make_task(make_clients()), rounds=1, sampling=bad)


def test_lists_are_arrays():
    """What a user writes by hand: the cohorts are those of arrays."""
    pairs = (
        (Weighted([1.0, 2, 0, 3, 1], 2), Weighted(np.array([1.0, 2, 0, 3, 1]), 2)),
        (
            Trace([[True, False, True, True, False]], 2),
            Trace(np.array([[True, False, True, True, False]]), 2),
        ),
    )
    for of_list, of_array in pairs:
        of_list.check(5)
        for a, b in zip(*(s.draw(jax.random.key(3), 0, 5) for s in (of_list, of_array)), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(fs.InvalidInput, match="sampling weights"):
        Weighted([1.0, [2.0]], 2)


def test_a_run_without_a_participant_says_so():
    """A cohort that happens to be empty in every round: nobody can know it before the run."""
    task = make_task(make_clients())
    history = fs.run(fs.FedAvg(), task, rounds=2, sampling=Bernoulli(1e-12)).history
    assert "no client took part in any round: the model is the initial one" in history.notes
    history = fs.run(fs.FedAvg(), task, rounds=2, clients_per_round=1).history
    assert not any("took part" in note for note in history.notes)


@module
class Scattered(Sampling):
    """Clients 1 and 3, listed among absent ones instead of first."""

    def draw(self, key, round, population):
        return jnp.arange(4), jnp.array([False, True, False, True])


@pytest.mark.full
def test_present_clients_listed_last_are_still_trained():
    """A pluggable sampling that lists absent clients first loses nobody, whatever the chunk."""
    task = make_task(make_clients())
    one, all_at_once = (
        fs.run(fs.FedAvg(0.3), task, rounds=3, sampling=Scattered(), chunk=chunk, dtype="float64")
        for chunk in (1, 4)
    )
    assert (one.rounds["participants"] == 2).all()
    assert (one.rounds["dropped"] == 0).all()
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(all_at_once.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.full_rows("True")
@pytest.mark.parametrize("x64", [False, True])
def test_bernoulli_is_exact(x64):
    """A client's 64 random bits decide: it comes for the next float above them and not for the next below.

    The top bits are those of a uniform float, so that at ordinary rates cohorts are the same.
    """
    with jax.enable_x64(x64):
        key = jax.random.key(3, impl="threefry2x32")
        second = jax.random.bits(jax.random.fold_in(key, TAG_SECOND_WORD), (200,), jnp.uint32)
        words = jax.random.bits(key, (200,), jnp.uint64 if x64 else jnp.uint32)
        bits = [
            int(w) if x64 else (int(w) << 32) + int(v)
            for w, v in zip(np.asarray(words), np.asarray(second), strict=True)
        ]
        for client, number in enumerate(bits[:20]):
            near = number / 2**64
            above, below = np.nextafter(near, 1), np.nextafter(near, 0)
            for p, comes in ((above, True), (below, False)):
                ids, present = Bernoulli(p).draw(key, jnp.int32(0), 200)
                assert (client in np.asarray(ids)[np.asarray(present)]) == comes
        uniform = np.asarray(jax.random.uniform(key, (200,)))
        ids, present = Bernoulli(0.3).draw(key, jnp.int32(0), 200)
        np.testing.assert_array_equal(np.flatnonzero(uniform < 0.3), np.asarray(ids)[np.asarray(present)])


@pytest.mark.parametrize("p", [0, 0.0, -0.1, 1.5, np.nan])
def test_a_probability_with_which_nobody_comes_is_refused(p):
    """0 is one: a run in which nobody ever takes part."""
    with pytest.raises(fs.InvalidInput, match=r"participation = .* must be finite and > 0.* and <= 1"):
        Bernoulli(p)


# Weighted and available clients of a large population: the law of drawing one by one, at the cost of a cohort.

CLIENTS, OF_MANY_DRAWS = 5000, 6000


def draw_of_many(sampling, rounds=OF_MANY_DRAWS):
    """ids and present of many rounds, one after another, so that the rest is drawn only where it must be."""
    keys, numbers = jax.random.split(jax.random.key(3), rounds), jnp.arange(rounds, dtype=jnp.int32)
    one = lambda given: sampling.draw(*given, CLIENTS)  # noqa: E731
    ids, present = jax.jit(lambda *given: jax.lax.map(one, given))(keys, numbers)
    cohorts_are_distinct(np.asarray(ids), np.asarray(present))
    return np.asarray(ids), np.asarray(present)


def test_weights_one_by_one():
    """Weights 1, 2, 4 and 9 in turn: the first two as P(a, b) = W_a / W (W_b - w_a [a = b]) / (W - w_a),
    and of the four every client as often as its fellows, those without weight never.
    """
    kinds, weights = np.arange(CLIENTS) % 5, np.array([1.0, 2, 4, 9, 0])
    ids, present = draw_of_many(Weighted(weights[kinds], 4))
    assert present.all()
    both, total, one = 1000 * weights[:4], 1000 * weights.sum(), weights[:4]
    law = both[:, None] / total * (both - np.diag(one)) / (total - one[:, None])
    pairs = np.zeros((5, 5))
    np.add.at(pairs, tuple(kinds[ids[:, :2]].T), 1)
    near_chi_square(pairs[:4, :4], law * len(ids))
    times = np.bincount(ids.ravel(), minlength=CLIENTS).reshape(-1, 5)
    assert not times[:, 4].any()
    near_chi_square(times[:, 3], times[:, 3].mean())


@pytest.mark.full
def test_few_clients_with_most_of_the_weight():
    """Three weigh 10^9 times as much as others: they come first, each order as often. Of who is left client 900 weighs
    as much as all 4,996 together: it is next with chance 1/2, after one of them with 1/4 x 4,996 / 4,995.5.
    """
    weights = np.ones(CLIENTS)
    weights[[7, 70, 700]], weights[900] = 1e9, CLIENTS - 4
    ids, _ = draw_of_many(Weighted(weights, 5), 1000)
    assert (np.sort(ids[:, :3], axis=1) == [7, 70, 700]).all()
    near_chi_square(np.unique(ids[:, :3], axis=0, return_counts=True)[1], 1000 / 6)
    near((ids[:, 3:] == 900).mean(axis=0), [0.5, 0.25], 1000)
    others = np.bincount(ids[:, 3][ids[:, 3] != 900] // 500, minlength=10)
    near_chi_square(others, others.mean())


def test_the_client_of_a_word():
    """Of words around each bound: the first client whose bound, as a whole number, lies above."""
    weights = np.array([0.0, 3, 1, 0, 5, 1e-12, 2, 0])
    bounds = bounds_of(weights)
    whole = [(int(a) << 32) + int(b) for a, b in bounds.T]
    words = [w for b in whole for w in (b - 1, b, b + 1) if w >= 0] + [2**64 - 1]
    high, low = np.array([divmod(w, 2**32) for w in words], np.uint32).T
    want = [next((i for i, b in enumerate(whole) if w < b), len(weights)) for w in words]
    np.testing.assert_array_equal(_client_of(high, low, bounds), want)
    share = [(b - a) / 2**64 for a, b in pairwise([0, *whole])]
    np.testing.assert_allclose(share, weights / weights.sum(), rtol=2e-6)


def test_those_that_a_trace_shows():
    """At most 3 of 3,000, of 40, of the first 2, and of nobody: each of those there as often, and no other."""
    trace = np.zeros((4, CLIENTS), bool)
    trace[0, 1000:4000], trace[1, 4960:], trace[2, :2] = True, True, True
    ids, present = draw_of_many(Trace(trace, 3))
    for row, here in enumerate((3, 3, 2, 0)):
        assert (present[row::4].sum(axis=1) == here).all()
        times = np.bincount(ids[row::4][present[row::4]], minlength=CLIENTS)
        assert not times[~trace[row]].any()
        if here == 3:
            near_chi_square(times[trace[row]], times[trace[row]].mean())
            first = np.bincount(ids[row::4, 0], minlength=CLIENTS)[trace[row]]
            near_chi_square(first, first.mean())


@pytest.mark.full
@pytest.mark.parametrize("sampling", crossed([Weighted, Trace], [Weighted]))
def test_the_same_cohort_wherever_it_is_drawn(sampling):
    """Operation by operation, compiled, with types of 64 bits, and under `vmap`."""
    given = np.arange(1, CLIENTS + 1) ** 0.5 if sampling is Weighted else np.ones((2, CLIENTS), bool)
    one = lambda key: sampling(given, 20).draw(key, jnp.int32(1), CLIENTS)[0]  # noqa: E731
    key = jax.random.key(4)
    want = np.asarray(one(key))
    np.testing.assert_array_equal(jax.jit(one)(key), want)
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(key[None])[0], want)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(one)(key), want)
