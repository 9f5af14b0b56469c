"""The same iterates in the compiled engine and through Flower's messages; every method's messages as bytes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from conformance.entries import EVERY, METHODS, OF_ALL, REPRESENTATIVES, methods
from conformance.properties import COHORTS, START, close, compiled, model, task
from deploy_small import clients_of, deploy
from fedsolve import wire
from fedsolve.core import introspect
from fedsolve.core.algorithm import Cohort
from harness import Listed

# clients of two sizes, one of them with a partial batch: two programs a method train them
SIZES = (7, 4, 7, 4, 4, 12)

ASYNCHRONOUS = ("FedBuff", "FedAsync")
"""They have no cohorts: tests/deploy/test_buffered_rounds.py has theirs."""
# tests/deploy/test_secure_rounds.py has secure sums, to the bit
ALONE = ("Secure+FedDuAdam", "FedFW(split)", "SCAFFOLD+FedLiLS")  # whose parts others here have
GATE = [name for name in REPRESENTATIVES if name not in ALONE]


@pytest.mark.gate("FedAvg", "SCAFFOLD")
@methods(GATE, full=sorted(METHODS.keys() - {*GATE, *ASYNCHRONOUS}))
def test_messages_are_the_engine(name, tmp_path):
    """Three rounds with cohorts of 2, 3 and 4 uneven clients in float64: the models agree to 1e-12.

    A sum that hides its parts has at least three.
    """
    algorithm, problem = METHODS[name](0.3), task(SIZES)
    if name == "ProxTracking":  # all its clients take as many steps
        problem = replace(problem, epochs=None, local_steps=2)
    cohorts = [[0, 2, 3], *COHORTS[1:]] if algorithm.traits.secure_sums else COHORTS
    cohorts = [list(range(6))] * 3 if name in OF_ALL else cohorts
    sampling = fs.sampling.Uniform(6) if name in OF_ALL else Listed.of(cohorts)
    setup, state, _ = compiled(algorithm, problem, sampling)
    found, history, grid = deploy(algorithm, tmp_path, app=clients_of(problem), sampling=sampling)
    with jax.enable_x64(True):
        wanted = setup.algorithm.export(state.server)
    for mine in jax.tree.leaves(found):
        assert mine.dtype == np.float64
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]) for tree in (found, wanted)]
    close(*flat)
    assert history.rounds["participants"].tolist() == [len(c) for c in cohorts]
    assert history.total("dropped") == history.total("rejected") == 0
    assert [kind for _, kind in grid.asked].count("train") == sum(map(len, cohorts))


def filled(part, rng):
    """A part of a message with values: numbers, whole numbers up to the largest, or one of several forms."""
    if isinstance(part, wire.OneOf):
        which = len(part.options) - 1
        return wire.OneOf(jnp.int32(which), tuple(fill(option, rng) for option in part.options))
    if isinstance(part, wire.Index):
        value = rng.integers(0, part.below, size=part.value.shape, endpoint=True)
        return wire.Index(jnp.asarray(value, part.value.dtype), part.below)
    if isinstance(part, wire.Packed):
        value = rng.integers(0, 2**part.bits, size=part.value.shape)
        return wire.Packed(jnp.asarray(value, part.value.dtype), part.bits)
    if isinstance(part, wire.Ring):
        most = 2**16 if part.bits == 64 else 2**32
        value = rng.integers(0, most, size=part.value.shape)
        return wire.Ring(jnp.asarray(value, jnp.uint32), jnp.zeros_like(part.fine), part.bits)
    if isinstance(part, wire.Initial):
        return part
    if part.dtype == bool:
        return jnp.asarray(rng.integers(0, 2, part.shape), bool)
    return jnp.asarray(rng.standard_normal(part.shape), part.dtype)


def is_part(x):
    return isinstance(x, wire.Index | wire.Packed | wire.Ring | wire.OneOf | wire.Initial)


def fill(message, rng):
    return jax.tree.map(lambda part: filled(part, rng), message, is_leaf=is_part)


def chosen(message):
    """The leaves that a reader finds: of a choice the chosen form."""
    for part in jax.tree.leaves(message, is_leaf=is_part):
        if isinstance(part, wire.OneOf):
            yield from (part.which, *chosen(part.options[int(part.which)]))
        else:
            yield from jax.tree.leaves(part)


@pytest.mark.full_rows("SCALLION", "FedDualAvg(PNorm)")
@EVERY
def test_what_travels_comes_back(name):
    """Broadcast and message of every method, as bytes and back: as long as counted, the same to the bit."""
    algorithm, rng = METHODS[name](0.3), np.random.default_rng(0)
    start = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), model(START))
    server = algorithm.init(start)
    down = algorithm.broadcast(server, Cohort(jnp.int32(0), jnp.int32(4), 6))
    up = introspect.message_shape(algorithm, down, algorithm.enrol(down, start), 2)
    for form in (down, up):
        sent = fill(form, rng)
        data = wire.encode(sent)
        assert len(data) == wire.size(sent)
        back = wire.decode(data, form)
        for mine, theirs in zip(chosen(back), chosen(sent), strict=True):
            assert np.asarray(mine).dtype == np.asarray(theirs).dtype
            np.testing.assert_array_equal(mine, theirs)
