"""Penalties and sets on models: whole vector, each leaf, leaves by path; and built from tables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve import wire
from fedsolve.core.errors import InvalidInput
from fedsolve.geometry import (
    GEOMETRIES,
    L1,
    MIRRORS,
    Box,
    ElasticNet,
    GroupL1,
    L1Ball,
    L2Ball,
    NuclearBall,
    NuclearNorm,
    as_blocks,
    build_geometry,
)
from verbs_harness import vector as flat

RNG = np.random.default_rng(0)
MODEL = {
    "hidden": {"weight": RNG.normal(size=(3, 4)), "bias": RNG.normal(size=3)},
    "output": [RNG.normal(size=(2, 3)), RNG.normal(size=2)],
}
WHOLE = np.concatenate([np.ravel(x) for x in jax.tree.leaves(MODEL)])


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.full_rows("L1Ball(radius=2.0)")
@pytest.mark.parametrize(
    "psi", [L1Ball(2.0), L2Ball(1.5), L1(0.3), ElasticNet(0.2, 0.5), Box(-0.3, 0.5)], ids=repr
)
def test_whole_vector(psi):
    """Without `on` the model is one vector: the leaves in order, ravelled."""
    blocks = as_blocks(psi)
    model, vector = jax.tree.map(jnp.asarray, MODEL), jnp.asarray(WHOLE)

    @jax.jit
    def of(psi, w):
        found = {"prox": psi.prox(w, 0.7), "value": psi.value(w)}
        if "lmo" in blocks.operations:
            found |= {"lmo": psi.lmo(w), "gap": psi.gap(w, w), "violation": psi.violation(w)}
        return found

    of_blocks, of_vector = of(blocks, model), of(psi, vector)
    for name, value in of_vector.items():
        np.testing.assert_allclose(flat(of_blocks[name]), np.ravel(value), rtol=1e-12, atol=1e-14)


def test_each_leaf_and_leaves_by_path():
    """`each` is a ball a leaf; `on` matches ends of paths, and what it does not match is free."""
    ball = L1Ball(1.0)
    some = ball.on("weight") + L2Ball(0.1).on("output.*")
    each, alone, new = jax.jit(
        lambda w: (ball.each().project(w), jax.tree.map(ball.project, w), some.project(w))
    )(MODEL)
    jax.tree.map(np.testing.assert_allclose, each, alone)
    np.testing.assert_allclose(new["hidden"]["weight"], alone["hidden"]["weight"])
    np.testing.assert_array_equal(new["hidden"]["bias"], MODEL["hidden"]["bias"])
    np.testing.assert_allclose([np.linalg.norm(x) for x in new["output"]], 0.1)
    assert some.free(MODEL) == ["hidden.bias"]
    np.testing.assert_array_equal(L1(0.5).on("weight").subgradient(MODEL)["hidden"]["bias"], 0)


@pytest.mark.full
def test_vertices_of_several_blocks_travel_as_codes():
    """One code a vector, and the same point on the other side."""
    psi = NuclearBall(2.0).on("weight") + L1Ball(1.0).on("bias") + L2Ball(1.0).on("output.*")
    codes, point = jax.device_get(jax.jit(psi.vertex)(MODEL)), jax.jit(psi.point)
    assert len(codes) == 4
    again = wire.decode(wire.encode(codes), codes)
    np.testing.assert_array_equal(flat(point(codes, MODEL)), flat(point(again, MODEL)))
    warm, exact = jax.jit(lambda w, codes: (psi.point(psi.vertex(w, codes), w), psi.lmo(w)))(MODEL, codes)
    np.testing.assert_allclose(flat(warm), flat(exact), atol=1e-6)


def test_sums_show_what_all_parts_show():
    assert (L1(0.1).on("weight") + L1Ball(1.0).on("bias")).operations == ("value", "prox")
    value = (L1(0.1).on("weight") + L2Ball(100.0).on("bias")).value(MODEL)
    np.testing.assert_allclose(value, 0.1 * np.abs(MODEL["hidden"]["weight"]).sum(), rtol=1e-12)


def test_a_model_of_one_array():
    """The path of a bare array is empty; `each` and the whole vector are the same."""
    w = jnp.asarray(RNG.normal(size=(3, 5)))
    for psi in (as_blocks(NuclearNorm(0.3)), NuclearNorm(0.3).each()):
        psi.check(w)
        np.testing.assert_allclose(psi.prox(w, 1.0), NuclearNorm(0.3).prox(w, 1.0))


@pytest.mark.parametrize(
    ("psi", "message"),
    [
        (L1(0.1).on("wieght"), "L1 on 'wieght': no leaf of the model has this name; it has hidden.bias"),
        (L1(0.1) + L2Ball(1.0).on("bias"), "leaf hidden.bias is under L1 and L2Ball"),
        (as_blocks(NuclearNorm(0.1)), "NuclearNorm needs a matrix, the whole parameter vector has shape"),
        (NuclearNorm(0.1).each(), "NuclearNorm needs a matrix, leaf hidden.bias has shape"),
        (GroupL1(0.1).on("bias"), "leaf hidden.bias"),
    ],
)
def test_what_does_not_fit_the_model(psi, message):
    with pytest.raises(InvalidInput, match=message):
        psi.check(MODEL)


def test_no_geometry():
    with pytest.raises(InvalidInput, match="3 is not a penalty or a set"):
        as_blocks(3)


TABLES = {
    "L1": {"weight": 0.1},
    "ElasticNet": {"weight": 0.1, "l2": 1},
    "Box": {"lower": -1, "upper": [0.5, 0.5]},
    "LpBall": {"radius": 1, "p": 1.5},
    "Polytope": {"vertices": [[0.0, 1.0], [1.0, 0.0]]},
    "KSupportBall": {"radius": 1, "k": 2},
}


@pytest.mark.parametrize("name", TABLES)
def test_built_from_a_table(name):
    built = build_geometry("psi", {"name": name, **TABLES[name], "on": "bias"})
    assert type(built.parts[0].psi) is GEOMETRIES[name]
    assert built.parts[0].pattern == "bias"


def test_built_from_a_list():
    tables = [{"name": "L1", "weight": 0.1, "on": "weight"}, {"name": "L2Ball", "radius": 1, "on": "bias"}]
    assert [p.pattern for p in build_geometry("psi", tables).parts] == ["weight", "bias"]


@pytest.mark.parametrize("name", MIRRORS)
def test_mirror_maps_by_name(name):
    values = {"PNorm": {"p": 1.5}, "DiagonalQuadratic": {"diagonal": 2.0}}.get(name, {})
    assert type(MIRRORS.build("FedMiD", {"name": name, **values})) is MIRRORS[name]
