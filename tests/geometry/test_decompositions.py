"""Decompositions: NumPy's numbers, JAX's derivatives, and never a batch of LAPACK calls on a CPU."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.xla.products import eigh, singular_values, svd
from fedsolve.geometry import NuclearNorm

SOURCE = Path(__file__).parents[2] / "src" / "fedsolve"
MATRICES = np.random.default_rng(0).normal(size=(3, 2, 5, 4))


def twice(function):
    return jax.vmap(jax.vmap(function))


def test_what_is_vmapped_is_numpys():
    with jax.enable_x64():
        u, s, v = jax.jit(twice(svd))(MATRICES)
        np.testing.assert_allclose((u * s[..., None, :]) @ v, MATRICES, atol=1e-13)
        expected = np.linalg.svd(MATRICES, compute_uv=False)
        np.testing.assert_allclose(s, expected, rtol=1e-13)
        np.testing.assert_allclose(twice(singular_values)(MATRICES), expected, rtol=1e-13)
        squares = np.swapaxes(MATRICES, -1, -2) @ MATRICES
        values, vectors = twice(eigh)(squares)
        np.testing.assert_allclose(values, expected[..., ::-1] ** 2, rtol=1e-12)
        np.testing.assert_allclose(squares @ vectors, vectors * values[..., None, :], atol=1e-12)


def decomposed(jaxpr):
    """The shapes of what is decomposed anywhere in a program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("svd", "eigh"):
            yield eqn.invars[0].aval.shape
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from decomposed(inner)


@pytest.mark.parametrize("function", [svd, singular_values, eigh])
def test_no_batch_is_decomposed_at_once(function):
    """A batch makes two programs on two cores wait for one another for good."""
    square = jnp.asarray(MATRICES[..., :4, :])
    shapes = list(decomposed(jax.make_jaxpr(twice(function))(square).jaxpr))
    assert shapes
    assert all(len(shape) == 2 for shape in shapes)


def test_a_prox_has_jaxs_derivative():
    penalty = NuclearNorm(0.5)
    w, change = (jnp.asarray(MATRICES[i, 0]) for i in (0, 1))

    def ours(w):
        return penalty.prox(w, 1.0)

    def plain(w):
        u, s, v = jnp.linalg.svd(w, full_matrices=False)
        return (u * jnp.maximum(s - 0.5, 0)) @ v

    @jax.jit
    def both_ways(w):
        found = [(jax.jvp(f, (w,), (change,))[1], jax.vjp(f, w)[1](change)[0]) for f in (ours, plain)]
        return list(zip(*found, strict=True))

    for mine, theirs in both_ways(w):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_nothing_else_decomposes_matrices():
    """But for PyTorch's operations, which are the user's."""
    asks = re.compile(r"linalg\.(?:svd|eigh|qr|eigvalsh|cholesky|matrix_rank|pinv)\(")
    asking = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "pytorch" not in path.parts
        for line in path.read_text().splitlines()
        if asks.search(line) and "np.linalg" not in line.replace("jnp.", "")
    }
    assert asking == {"core/xla/products.py"}
