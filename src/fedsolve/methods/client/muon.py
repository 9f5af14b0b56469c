"""Muon's step (Jordan et al. 2024): matrices along the polar factor of their momentum, all other leaves by AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedsolve.core import trees
from fedsolve.core.building import checked, flag, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.trees import all_matching, named_leaves
from fedsolve.core.types import Params, Scalar, Traced, module
from fedsolve.geometry.numerics import polar_factor
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss

_BETA1, _BETA2, _EPS = 0.9, 0.95, 1e-10
"""AdamW's in the public code."""
_NAMED = 3  # paths in a note


@module
class MuonState:
    """Momenta (shapes of the model; AdamW's first moments where a leaf steps by it), the second moments of those leaves
    alone, in their order, and the steps so far.
    """

    momentum: Params
    second: tuple[Any, ...]
    count: Traced


@module
class MuonRule:
    """Muon's step, for a local solver, a server optimiser or a method.

        matrix:  m <- beta m + (1 - beta) g,   u = s polar(beta m + (1 - beta) g) + weight_decay w
        others:  u = vector_scale (AdamW's direction + weight_decay w)
        both:    w <- w - lr u

    polar(G) = U V' for G = U S V'. s = sqrt(max(1, rows / columns)) for matrices, 1 for kernels of a convolution. Each
    of these becomes one matrix, one of whose sides are its outputs: its first axis (PyTorch's) if that is longer than
    the last, otherwise its last (this package's models). AdamW has the decays 0.9 and 0.95 and eps = 1e-10. All of it
    is the public code's, which computes in bfloat16; here the iteration has the type of the model.

    Args:
        lr: > 0, in units of the spectral norm of a step, a number or a schedule by round.
        momentum: beta in [0, 1).
        weight_decay: at least 0, decoupled.
        vector_scale: rate of the leaves that are no matrices, in units of lr, > 0.
        newton_schulz: iterations, at least 1, or 0 for the exact polar factor, which takes a singular value
            decomposition of each matrix in each step: for small ones.
        vectors: further leaves that step by AdamW, by patterns of their paths: embeddings and heads in the public code,
            such as `("embedding", "output.weight")`.
    """

    lr: Rate = checked(as_rate)
    _: KW_ONLY
    momentum: Scalar = number(default=0.95, at_least=0, below=1)
    weight_decay: Scalar = number(default=0.0, at_least=0)
    vector_scale: Scalar = number(default=0.1, above=0)
    newton_schulz: int = integer(at_least=0, default=5)
    vectors: str | tuple[str, ...] = checked(
        partial(trees.as_patterns, example="'output.*'", at_least=0), default=(), static=True
    )

    def matrices(self, params: Params) -> list[bool]:
        """Whether each leaf is a matrix: it has two axes or more, and no pattern of `vectors` matches it."""
        chosen = matrices_of(params, self.vectors)
        if not any(chosen):
            found = ", ".join(
                f"{path} (shape {jnp.shape(x)}{', excluded by vectors' if jnp.ndim(x) > 1 else ''})"
                for path, x in zip(*named_leaves(params), strict=True)
            )
            raise InvalidInput(
                f"Muon is for matrices, and no leaf of the model is one: {found} would all step by AdamW; take "
                "client.Optax(optax.adamw), or leave out patterns of `vectors`"
            )
        return chosen

    def on_leaves(self, params: Params) -> str:
        """Which leaves Muon does not accept, and what they step by; "" if all are matrices."""
        others = [i for i, is_matrix in enumerate(self.matrices(params)) if not is_matrix]
        does = "steps" if len(others) == 1 else "step"
        return f"Muon is for matrices: {paths_of(params, others)} {does} by AdamW" if others else ""

    def first_state(self, params: Params) -> MuonState:
        """No moments."""
        pairs = zip(jax.tree.leaves(params), self.matrices(params), strict=True)
        second = tuple(jnp.zeros_like(x) for x, is_matrix in pairs if not is_matrix)
        return MuonState(trees.zeros_like(params), second, jnp.zeros((), trees.dtype_of(params)))

    def muon_step(self, params: Params, gradient: Params, state: MuonState) -> tuple[Params, MuonState]:
        """u, and the state after the step."""
        leaves, structure = jax.tree.flatten(params)
        gradients, momenta = jax.tree.leaves(gradient), jax.tree.leaves(state.momentum)
        k, second = state.count + 1, iter(state.second)
        along, means, squares = [], [], []
        for w, g, m, is_matrix in zip(leaves, gradients, momenta, self.matrices(params), strict=True):
            # matrices have Muon's momentum, all other leaves AdamW's first moment
            beta: Any = self.momentum if is_matrix else _BETA1
            m = (beta * m + (1 - beta) * g).astype(m.dtype)
            if is_matrix:
                # Nesterov's look-ahead before the polar factor, as in the public code
                u = shape_factor(w) * polar_of(beta * m + (1 - beta) * g, self.newton_schulz)
                u = u + self.weight_decay * w
            else:
                v = (_BETA2 * next(second) + (1 - _BETA2) * g * g).astype(m.dtype)
                # AdamW with bias correction; k counts from 1
                u = m / (1 - _BETA1**k) / (jnp.sqrt(v / (1 - _BETA2**k)) + _EPS)
                u = self.vector_scale * (u + self.weight_decay * w)
                squares.append(v)
            along.append(u.astype(w.dtype))
            means.append(m)
        return structure.unflatten(along), MuonState(structure.unflatten(means), tuple(squares), k)


def matrices_of(params: Params, vectors: Any) -> list[bool]:
    """Whether each leaf has two axes or more, and none of the patterns `vectors` matches its path."""
    paths, leaves = named_leaves(params)
    excluded = all_matching("vectors", paths, vectors)
    return [jnp.ndim(x) > 1 and i not in excluded for i, x in enumerate(leaves)]


def paths_of(params: Params, leaves: Sequence[int]) -> str:
    """The paths of some leaves, by their numbers: the first three and how many more."""
    paths = named_leaves(params)[0]
    more = f" and {len(leaves) - _NAMED} more" if len(leaves) > _NAMED else ""
    return ", ".join(paths[i] for i in leaves[:_NAMED]) + more


def polar_of(g: Float[Array, ...], newton_schulz: int) -> Float[Array, ...]:
    """The polar factor of a leaf of any shape, as `MuonRule` makes a matrix of it; a vector is scaled to length 1."""
    if g.ndim < 2:
        length = trees.norm(g)
        return jnp.where(length > 0, g / jnp.where(length > 0, length, 1), 0)
    # kernels of convolutions: the longer of the outer axes are the outputs, all others are flattened
    first = g.shape[0] > g.shape[-1]
    matrix = g if g.ndim == 2 else g.reshape((g.shape[0], -1) if first else (-1, g.shape[-1]))
    return polar_factor(matrix, newton_schulz).reshape(g.shape)


def shape_factor(w: Array) -> float:
    """s of `MuonRule`."""
    return max(1.0, w.shape[0] / w.shape[1]) ** 0.5 if w.ndim == 2 else 1.0


# Muon as the clients' solver, started anew each round or kept.


@module
class Muon(MuonRule, LocalSolver):
    """Local solver that steps along the polar factor of a momentum (Jordan et al. 2024).

        matrix:  m <- beta m + (1 - beta) g,   y <- y - lr (s polar(beta m + (1 - beta) g) + weight_decay y)
        others:  y <- y - lr vector_scale (AdamW's direction + weight_decay y)

    polar(G) = U V' for G = U S V'; -lr polar(G) is the linear minimisation oracle of `geometry.SpectralBall(lr)`.
    Leaves of two axes and more are matrices (kernels of convolutions are flattened), but for those of `vectors`;
    vectors, scalars and these step by AdamW. `FedOpt(client.Muon(0.02), server.ServerSGD(), weighting="uniform")` is
    FedAvg with Muon, which need not converge where clients differ: the mean of polar factors is not that of the mean.
    `FedMuon` and `BiasCorrectedMuon` amend that. `MuLoCo` is of optax's Muon, whose momenta are corrected for their
    start at 0.

    Args:
        lr: > 0, in units of the spectral norm of a step, a number or a schedule by round; the public code has 0.02.
        momentum: beta in [0, 1); 0.95 (the public code).
        weight_decay: at least 0, decoupled; 0 (the public code).
        vector_scale: rate of the leaves that are no matrices, in units of lr, > 0; 0.1 (the authors of FedMuon).
        newton_schulz: iterations, 5 (the public code); 0 is exact, by a singular value decomposition, for small
            matrices.
        vectors: further leaves that step by AdamW, by patterns of their paths: embeddings and heads in the public code,
            such as `("embedding", "output.weight")`.
        keep: whether the moments are the client's, kept from round to round, or start anew in each.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf, a
            model without a matrix.

    >>> Muon(0.02).newton_schulz
    5

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
    https://kellerjordan.github.io/posts/muon/.
    """

    keep: bool = flag(default=False)

    @property
    def keeps_state(self) -> bool:
        return self.keep

    def init_state(self, params: Params) -> Any:
        return self.first_state(params) if self.keep else ()

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        return self._run(self.first_state(params), params, oracle, round)[0]

    def go_on(self, state: Any, params: Params, oracle: Oracle, round: Scalar) -> tuple[Solution, Any]:
        if not self.keep:
            return self.solve(params, oracle, round), state
        return self._run(state, params, oracle, round)

    def _run(
        self, state: MuonState, params: Params, oracle: Oracle, round: Scalar
    ) -> tuple[Solution, MuonState]:
        lr: Any = rate_at(self.lr, round)

        def step(k: Scalar, carry: tuple[Params, MuonState, Scalar]) -> tuple[Params, MuonState, Scalar]:
            y, state, total = carry
            loss, g = oracle(y, k)
            along, state = self.muon_step(y, g, state)
            return trees.axpy(-lr, along, y), state, total + loss

        start = (params, state, jnp.zeros((), trees.dtype_of(params)))
        last, state, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle)), state
