"""Every method, every promise of the engine: what may not matter does not matter, and nothing recompiles.

Every method's verbs are traced. Methods that have every property between them are run, in float32 by the program that
tests/conformance/test_resume.py uses.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from conformance.entries import (
    CLIENT_LR,
    EVERY,
    METHODS,
    REPRESENTATIVES,
    RUN,
    WITH_EACH_PROPERTY,
    methods,
)
from conformance.properties import (
    CAPACITY,
    COHORTS,
    ROUNDS,
    SAMPLING,
    SIZES,
    by_hand,
    close,
    compiled,
    flat,
    task,
)
from conformance.signatures import signature, traced
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.round import simulate
from harness import Listed, compiled_rounds, prepare

SETTINGS = ((CLIENT_LR, 0), (0.1, 3))
"""Rates with seeds: the base run's, and another."""
LARGER = task((*SIZES[:5], 40))
"""The client that never takes part has 40 examples instead of 2: every buffer is larger."""
_RUNS: dict[tuple, tuple] = {}


def base(name, dtype="float64"):
    """The reference run of a method: all clients of a cohort side by side."""
    if (name, dtype) not in _RUNS:
        _RUNS[name, dtype] = compiled(METHODS[name](CLIENT_LR), dtype=dtype)
    return _RUNS[name, dtype]


def test_every_property_has_a_representative():
    """A method of a new kind comes with everything that is run for one of a kind."""
    kinds = {name: set(signature(build(CLIENT_LR))._asdict().items()) for name, build in METHODS.items()}
    represented = set().union(*(kinds[name] for name in REPRESENTATIVES))
    assert {name: kind - represented for name, kind in kinds.items() if kind - represented} == {}


# uncompiled they take half a minute each: the one with most verbs; one of every kind is done verb by
# verb in tests/deploy/test_messages.py
@pytest.mark.full
@methods(
    ["SCAFFOLD+FedFW"], full=["FedLiLS", "FedDuAdam", "SCAFFOLD", "FedDualAvg", "FedFW", "FedDR", "optax"]
)
def test_compiled_is_eager(name):
    """One client after another, verb by verb, without any compilation: the same server and clients to
    1e-12.
    """
    _, state, _ = base(name)
    server, clients = by_hand(METHODS[name](CLIENT_LR))
    close(ravel_pytree(state.server)[0], ravel_pytree(server)[0])
    assert sorted(clients) == [0, 1, 2, 3, 4]
    for i, one in clients.items():
        if jax.tree.leaves(one):
            got = jax.tree.map(lambda x, i=i: x[i], state.clients)
            close(ravel_pytree(got)[0], ravel_pytree(one)[0])
    absent = jax.tree.leaves(jax.tree.map(lambda x: x[5], state.clients))
    with jax.enable_x64(True):
        fresh = prepare(METHODS[name](CLIENT_LR), task(), SAMPLING).state.clients
    enrolled = jax.tree.leaves(jax.tree.map(lambda x: x[5], jax.device_get(fresh)))
    for now, then in zip(absent, enrolled, strict=True):  # client 5 never took part
        np.testing.assert_array_equal(now, then)


@pytest.mark.gate("FedAvg")
@WITH_EACH_PROPERTY
def test_order_within_the_cohort_does_not_matter(name):
    """The same cohorts, listed backwards: clients' shuffles follow from their number, not from their
    place.
    """
    backwards = Listed.of([cohort[::-1] for cohort in COHORTS])
    close(flat(compiled(METHODS[name](CLIENT_LR), sampling=backwards)[1]), flat(base(name)[1]))


# a run in float32 is another program: of each kind of state and of arithmetic one
IN_FLOAT32 = ["FedAvg", "SCAFFOLD+FedFW", "IFCA", "Secure+FedDuAdam"]
WITH_EACH_TYPE = methods(IN_FLOAT32, full=[name for name in RUN if name not in IN_FLOAT32])


@pytest.mark.gate("FedAvg")
@WITH_EACH_TYPE
def test_no_recompilation(name):
    """A second run, another seed, other cohorts and another learning rate all use the compiled program."""
    first = base(name, "float32")[1]
    before = compiled_rounds()
    cohorts = Listed.of([[1, 2, 3, 4]] * ROUNDS)
    changed = compiled(METHODS[name](0.17), sampling=cohorts, seed=5, dtype="float32")[1]
    assert compiled_rounds() == before
    assert np.abs(flat(changed) - flat(first)).max() > 1e-6


@EVERY
def test_another_rate_is_the_same_program(name):
    """All that a program depends on is the same for another learning rate."""

    def program(rate):
        leaves, rest = jax.tree.flatten(METHODS[name](rate))
        return rest, [jnp.result_type(x) for x in leaves], [jnp.shape(x) for x in leaves]

    assert program(CLIENT_LR) == program(0.17)
    assert hash(program(CLIENT_LR)[0]) == hash(program(0.17)[0])


@pytest.mark.full_rows("FedDuA", "Robust+FedAdam", "SCALLION")
@EVERY
def test_shapes_and_types_are_kept(name):
    """Of a float64 model no verb makes a float32 number; the server, a client and the model keep all their shapes."""
    start = task().init(None)
    with jax.enable_x64(True):
        steps, kept, model = traced(METHODS[name](CLIENT_LR))
    assert "f64[" in str(steps)
    assert "f32[" not in str(steps)
    for before, after in kept:
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert jax.tree.structure(model) == jax.tree.structure(start)
    assert jax.tree.map(jnp.shape, model) == jax.tree.map(jnp.shape, start)


@pytest.mark.gate("FedAvg", "SCAFFOLD+FedFW")
@WITH_EACH_TYPE
def test_a_run_has_one_type(name):
    """A float32 run keeps a nested model with scalars in float32, and all else as well."""
    state = base(name, "float32")[1]
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {str(x.dtype) for x in floats} == {"float32"}


@pytest.mark.gate("FedAvg")
@WITH_EACH_TYPE
def test_both_types_tell_the_same(name):
    """Float32 against float64."""
    close(flat(base(name, "float32")[1]), flat(base(name)[1]), 2e-3)


def stacked(trees):
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get(trees))


def swept(algorithms, data, **options):
    """Final states of one program for all `algorithms`, each with the seed of its setting."""
    with jax.enable_x64(True):
        setups = [
            prepare(a, data, SAMPLING, capacity=CAPACITY, seed=seed, **options)
            for a, (_, seed) in zip(algorithms, SETTINGS, strict=True)
        ]
        first = setups[0]

        def one(algorithm, key, state):
            inputs = (first.program, algorithm, first.sampling, first.packed, key, state)
            return simulate(*inputs, jnp.int32(ROUNDS))[0]

        # states of their own from the start: what a loop carries then has its batch at once, and JAX, which traces
        # nested loops anew whenever more of it turns out to be batched, takes half the time
        states = stacked([s.state for s in setups])
        sweep = jax.jit(jax.vmap(one), compiler_options=compiler_options())
        keys = jnp.stack([s.key for s in setups])
        states = jax.device_get(sweep(stacked([s.algorithm for s in setups]), keys, states))
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(setups))]


# twice the work of any other program: gradients and whole sets, states, a maximum and searches, codes of several
# lengths, a reduction of its own
SWEPT = ["FedAvg", "SCAFFOLD+FedFW", "FedLiLS(max, keep)", "FedFW(split)", "Robust+FedAdam"]


@pytest.mark.gate("FedAvg")
@methods(SWEPT, full=[name for name in RUN if name not in SWEPT])
def test_sweep_padding_and_chunks_do_not_matter(name):
    """Two rates with two seeds in one vmapped program, two clients side by side instead of all four, and larger
    buffers: the same as two runs one by one.

    Cohorts of 1 to 4 fill their last chunk in part. If all at once are not the same, each alone says which it is.
    """
    algorithms = [METHODS[name](rate) for rate, _ in SETTINGS]
    wanted = [flat(compiled(a, seed=s)[1]) for a, (_, s) in zip(algorithms, SETTINGS, strict=True)]
    assert np.abs(wanted[0] - wanted[1]).max() > 1e-6

    def same(states):
        for state, run in zip(states, wanted, strict=True):
            close(flat(state), run)

    try:
        same(swept(algorithms, LARGER, chunk=2))
    except AssertionError as error:
        alone = {"a sweep": (task(), {}), "padding": (LARGER, {}), "chunks of two": (task(), {"chunk": 2})}
        guilty = []
        for what, (data, options) in alone.items():
            try:
                if what == "a sweep":
                    same(swept(algorithms, data, **options))
                else:
                    close(flat(compiled(algorithms[0], data, **options)[1]), wanted[0])
            except AssertionError:
                guilty.append(what)
        raise AssertionError(f"{' and '.join(guilty) or 'only all at once'} of {name}: {error}") from error


@pytest.mark.full_rows("SCAFFOLD-3")
@pytest.mark.parametrize("chunk", [1, 3])
@methods(["SCAFFOLD"], full=["FedAvg", "SCAFFOLD+FedDuAdam"])
def test_other_chunks_do_not_matter(name, chunk):
    """One client at a time (no vmap), and three: a cohort of four is a full chunk and a third of one."""
    close(flat(compiled(METHODS[name](CLIENT_LR), chunk=chunk)[1]), flat(base(name)[1]))
