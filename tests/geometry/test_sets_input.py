"""What a set refuses: bad numbers when it is made, leaves of the wrong shape when it meets the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.geometry.balls import Box, L1Ball, LInfBall, LpBall
from fedsolve.geometry.simplex import GroupL1Ball, KSupportBall, Polytope, Simplex
from fedsolve.geometry.spectral import NuclearBall, SpectralBall

NUMBERS = [
    (lambda: L1Ball(0.0), "radius of L1Ball = 0.0 must be finite and > 0"),
    (lambda: LInfBall(-1), "radius of LInfBall = -1 must be finite and > 0"),
    (lambda: LpBall(1.0, 0.5), "p of LpBall = 0.5 must be finite and > 1"),
    (lambda: LpBall(1.0, 1), "p = 1 of LpBall: use L1Ball(radius), which is exact and sends less"),
    (
        lambda: LpBall(1.0, float("inf")),
        "p = inf of LpBall: use LInfBall(radius), which is exact and sends less",
    ),
    (lambda: Box(0, float("nan")), "lower and upper of Box must be finite"),
    (lambda: Box([0.0, 1.0], 1.0), "lower of Box must be below upper everywhere: upper - lower falls to 0"),
    (lambda: Box(jnp.zeros(2), jnp.ones(3)), "lower and upper of Box have shapes (2,) and (3,)"),
    (lambda: Simplex(float("inf")), "radius of Simplex = inf must be finite and > 0"),
    (lambda: Polytope([1.0, 2.0]), "vertices of Polytope have shape (2,): give (k, *shape of the leaf)"),
    (lambda: Polytope([[1.0, float("inf")]]), "vertices of Polytope must be finite"),
    (lambda: NuclearBall(-1.0), "radius of NuclearBall = -1.0 must be finite and > 0"),
    (lambda: NuclearBall(1.0, 0.0), "tolerance of NuclearBall = 0.0 must be finite and > 0 and < 1"),
    (lambda: NuclearBall(1.0, max_products=0), "max_products of NuclearBall = 0 must be finite and >= 1"),
    (lambda: SpectralBall(0), "radius of SpectralBall = 0 must be finite and > 0"),
    (lambda: GroupL1Ball(0), "radius of GroupL1Ball = 0 must be finite and > 0"),
    (lambda: KSupportBall(1.0, 0), "k of KSupportBall = 0 must be an integer of at least 1"),
    (lambda: KSupportBall(1.0, 1.5), "k of KSupportBall = 1.5 must be an integer of at least 1"),  # type: ignore[arg-type]
]
SHAPES = [
    (lambda: NuclearBall(1.0), (3,),
     "NuclearBall needs a matrix, leaf bias has shape (3,): put it on matrices, such as "
     "NuclearBall(1.0).on('weight')"),
    (lambda: SpectralBall(2.0), (3, 2, 1),
     "SpectralBall needs a matrix, leaf bias has shape (3, 2, 1): put it on matrices, such as "
     "SpectralBall(2.0).on('weight')"),
    (lambda: GroupL1Ball(1.0, 1), (3,),
     "GroupL1Ball along axis 1: leaf bias has shape (3,); put it on leaves with that axis, such as "
     "GroupL1Ball(1.0).on('weight')"),
    (lambda: KSupportBall(1.0, 4), (3,), "KSupportBall with k = 4: leaf bias has only 3 entries: lower k"),
    (lambda: Polytope([[1.0, 2.0]]), (3,), "Polytope has vertices of shape (2,), leaf bias (3,)"),
    (lambda: Box(0.0, [1.0, 2.0]), (3,),
     "upper of Box has shape (2,), leaf bias (3,): give a number or that shape"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), NUMBERS, ids=[line for _, line in NUMBERS])
def test_bad_numbers(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value) == line


@pytest.mark.parametrize(("make", "shape", "line"), SHAPES, ids=[line for *_, line in SHAPES])
def test_bad_shapes(make: Callable[[], Any], shape: tuple[int, ...], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make().check(shape, "leaf bias")
    assert str(caught.value) == line


def test_good_shapes_pass() -> None:
    for psi in (NuclearBall(1.0), SpectralBall(1.0), GroupL1Ball(1.0), KSupportBall(1.0, 4), Box(0, 1)):
        psi.check((3, 4), "leaf weight")
    Polytope([[1.0, 2.0]]).check((2,), "leaf weight")
