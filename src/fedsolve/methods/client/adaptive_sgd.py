"""Local steps with Adagrad, Adam or SM3, their states at zero in every round: the clients of FedAda2."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import reduce
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.building import checked, choice, flag, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss

Rule = Literal["adagrad", "adam", "sm3", "sm3-ii", "sm3-adam"]
_MOMENTUM = ("adam", "sm3-adam")

_Carry = tuple[Params, Params, Any, Scalar]


@module
class AdaptiveSGD(LocalSolver):
    """Local SGD with a second moment, which is zero at the start of every round: nothing of it is sent or kept.

    y <- y - lr g / (sqrt(v) + eps), with `adam` and `sm3-adam` m <- b1 m + (1 - b1) g in place of g, and

        adagrad     v <- v + g^2
        adam        v <- b2 v + (1 - b2) g^2
        sm3         L_a <- L_a + max g^2 over all axes but a,             v = min over axes a of L_a     (SM3-I)
        sm3-adam    L_a <- b2 L_a + (1 - b2) max g^2 over all but a,      v = min over axes a of L_a
        sm3-ii      v = g^2 + min over axes a of L_a,   then L_a <- max v over all axes but a            (SM3-II)

    The covers L_a have one number for each index of axis a: rows + columns of a matrix in place of rows x columns.
    Leaves of fewer than two axes have one cover, v itself.

    Attributes:
        lr: client learning rate, a number or a schedule by round; > 0.
        rule: which line renews v.
        eps: added to the root, at least 0; 0 / 0 moves nothing.
        beta1: decay of m, in [0, 1).
        beta2: decay of v or L, in [0, 1).
        bias_correction: divide m by 1 - b1^k and v by 1 - b2^j after k steps and j renewals of v, of the rules with m.
        every: renew v in every so many steps only, the first among them; m moves in each.

    Raises:
        InvalidInput: a number out of its range, an unknown rule, a correction for a rule without m.

    Reference: Anil et al., "Memory Efficient Adaptive Optimization", NeurIPS 2019 (SM3); Lee, Sharma, Zaheer and Li,
    "Efficient Adaptive Federated Optimization", arXiv:2410.18117v3, 2025.
    """

    lr: Rate = checked(as_rate, name="client_lr")
    _: KW_ONLY
    rule: Rule = choice(*get_args(Rule), default="adagrad", kind="rule")
    eps: Scalar = number(default=1e-5, at_least=0)
    beta1: Scalar = number(default=0.9, at_least=0, below=1)
    beta2: Scalar = number(default=0.999, at_least=0, below=1)
    bias_correction: bool = flag(default=False)
    every: int = integer(default=1)

    def __post_init__(self) -> None:
        if self.bias_correction and self.rule not in _MOMENTUM:
            raise InvalidInput(f"bias_correction = True is of {' and '.join(_MOMENTUM)}, not of {self.rule}")

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        lr = rate_at(self.lr, round)

        def step(k: Scalar, carry: _Carry) -> _Carry:
            y, m, covers, total = carry
            loss, g = oracle(y, k)
            if self.rule in _MOMENTUM:
                m = jax.tree.map(lambda m, g: (self.beta1 * m + (1 - self.beta1) * g).astype(m.dtype), m, g)
            leaves, structure = jax.tree.flatten(y)
            along = jax.tree.leaves(m if self.rule in _MOMENTUM else g)
            moved, renewed = [], []
            for leaf, d, gradient, cover in zip(leaves, along, jax.tree.leaves(g), covers, strict=True):
                second, cover = self._second(k, gradient, cover)
                change = lr * self._direction(k, d, second)
                moved.append((leaf - change).astype(leaf.dtype))
                renewed.append(cover)
            return structure.unflatten(moved), m, renewed, total + loss

        m = trees.zeros_like(params) if self.rule in _MOMENTUM else ()
        covers = [self._covers(leaf) for leaf in jax.tree.leaves(params)]
        start = (params, m, covers, jnp.zeros((), trees.dtype_of(params)))
        last, _, _, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle))

    def _covers(self, leaf: Array) -> list[Array]:
        if leaf.ndim < 2 or not self.rule.startswith("sm3"):
            return [jnp.zeros_like(leaf)]
        # one axis as long as the leaf's, the others of length 1, so that covers broadcast to the leaf
        shapes = [tuple(n if b == a else 1 for b, n in enumerate(leaf.shape)) for a in range(leaf.ndim)]
        return [jnp.zeros(shape, leaf.dtype) for shape in shapes]

    def _second(self, k: Scalar, g: Array, covers: list[Array]) -> tuple[Array, list[Array]]:
        # v that step k divides by, and the covers after it
        square, decayed = g * g, self.rule in _MOMENTUM
        if self.rule == "sm3-ii":
            v = reduce(jnp.minimum, covers) + square
            renewed = [_largest(v, cover) for cover in covers]
            due = k % self.every == 0
            v = v if self.every == 1 else jnp.where(due, v, reduce(jnp.minimum, covers))
        else:
            old, new = (self.beta2, 1 - self.beta2) if decayed else (1, 1)
            renewed = [(old * c + new * _largest(square, c)).astype(c.dtype) for c in covers]
            v = None
        if self.every > 1:
            renewed = lax.cond(k % self.every == 0, lambda: renewed, lambda: covers)
        return (reduce(jnp.minimum, renewed) if v is None else v), renewed

    def _direction(self, k: Scalar, d: Array, v: Array) -> Array:
        if self.bias_correction:
            d = d / (1 - self.beta1 ** (k + 1))
            v = v / (1 - self.beta2 ** (k // self.every + 1))
        below = jnp.sqrt(v) + self.eps
        return jnp.where(below > 0, d / jnp.where(below > 0, below, 1), 0)


def _largest(x: Array, cover: Array) -> Array:
    """The maximum of x over the axes along which a cover has length 1 and x has not."""
    over = tuple(a for a in range(x.ndim) if cover.shape[a] == 1 and x.shape[a] != 1)
    return x.max(axis=over, keepdims=True) if over else x
