"""Newton's method on the pooled loss, with penalties by proximal Newton steps (Lee, Sun and Saunders 2014)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import checked, choice, class_by_name
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.sampling import check_everyone
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace, reported
from fedsolve.core.xla.products import eigh, solution
from fedsolve.geometry.blocks import Blocks, Geometry, as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.penalties import L1, ElasticNet, SquaredL2, soft_threshold
from fedsolve.methods.server.fedopt import FedOptBroadcast

MOST_PARAMETERS = 4096
_COLUMNS = 64  # of the Hessian at a time: each holds what a pass over the client's data keeps
_ARMIJO = 1e-4
_FLAT = 1e-4  # curvature of a direction without one, in units of the largest
_GROWING = 3  # rounds


@module
class NewtonServer:
    """The model to try, and the last accepted model with its step and its objective; vectors of shape (d,).

    `params` is `accepted + step direction`; `decrement` is by how much the quadratic model's slope falls along the
    direction, about twice the distance to the smallest objective; `growing` counts rounds (see `separated`).
    """

    params: Params
    accepted: Float[Array, " d"]
    direction: Float[Array, " d"]
    value: Traced
    growing: Traced
    step: Traced = reported()
    decrement: Traced = reported()
    singular: Traced = reported(
        "the Hessian has directions without curvature, along which the model is not unique (collinear or constant "
        "columns, classes that may all be shifted or are separated): leave columns out, or give psi=SquaredL2(1e-3)"
    )
    separated: Traced = reported(
        "the model keeps growing while the loss no longer falls: a column separates the classes, and there is no "
        "minimiser; leave it out, or give psi=SquaredL2(1e-3)"
    )
    incomplete: Traced = reported(
        "rounds in which a client was missing changed nothing: Newton takes the losses of all clients"
    )


@module
class NewtonMessage:
    """f_i, its gradient (shapes of the model) and the upper triangle of its Hessian, row by row, (d (d + 1) / 2,).

    Where they are not finite, a loss that no step passes, and zeros.
    """

    loss: Traced
    gradient: Params
    hessian: Float[Array, " pairs"]


def _supported(name: str, psi: Any) -> Blocks:
    blocks = Blocks(()) if psi is None else as_blocks(psi)
    for part in blocks.parts:
        if type(part.psi) not in (L1, SquaredL2, ElasticNet):
            raise InvalidInput(
                f"{name} of Newton takes L1, SquaredL2 and ElasticNet, not {type(part.psi).__name__}: take FedDualAvg"
            )
    return blocks


@class_by_name("Newton")
@module
class Newton(Algorithm):
    """Newton's method on F + psi, F = sum_i p_i f_i, with a line search over rounds; for up to 4,096 parameters.

        client i:  f_i(w), g_i = grad f_i(w), H_i = hess f_i(w), on all of its examples
        server:    if F(w) + psi(w) <= F(x) + psi(x) - 1e-4 t m and it is finite:
                       x <- w,   t <- 1
                       d <- argmin_d <g, d> + <d, B d> / 2 + psi(x + d),   g = sum_i p_i g_i, B from sum_i p_i H_i
                       m <- psi(x) - psi(x + d) - <g, d>
                   else:  t <- t / 2
                   w <- x + t d

    Without psi d = -B^-1 g; squared l2 norms are part of g and B. With an l1 norm d is found by coordinate descent and
    exact solves on the support, to 1e-12. B is the Hessian where it is positive definite. Otherwise its eigenvalues are
    replaced by their sizes, those that are 0 to rounding by 1e-4 of the largest, so that d is a direction of descent
    (Nocedal and Wright 2006, section 3.4). Losses that differ by rounding alone count as equal. Where psi has no l1
    norm, a note of the run says that directions have no curvature, and another that the model grows without bound.

    The model is w: the next round checks it. All clients take part in each round; one that lacks a client changes
    nothing. Losses are as in evaluation: nothing is drawn (no dropout).

    Up: f_i, g_i (d numbers) and H_i (d (d + 1) / 2). Down: w. Kept: nothing on clients; x and d on the server. With
    `Secure`, `bounds={"hessian": ...}` is the largest size of an entry of H_i.

    Args:
        psi: L1, SquaredL2 or ElasticNet of `fedsolve.geometry`, also on chosen leaves; None for no penalty.
        weighting: p_i by `examples` (the mean over all examples) or `uniform`.

    Raises:
        InvalidInput: another penalty, an unknown weighting. When a run begins: fewer clients in a round than all, more
            than 4,096 parameters, buffers, a loss that JAX cannot differentiate twice.

    >>> from fedsolve.geometry import SquaredL2
    >>> Newton(SquaredL2(0.1)).weighting
    'examples'

    Reference: Lee, Sun and Saunders, "Proximal Newton-type Methods for Minimizing Composite Functions", SIAM Journal on
    Optimization 24(3), 2014, Algorithm 1. Without psi: Nocedal and Wright, "Numerical Optimization", Springer, 2006,
    Algorithm 3.2.
    """

    name: ClassVar[str] = "Newton"
    only_mean: ClassVar[str] = "the line search compares losses of all clients' examples"
    sends_client_update: ClassVar[bool] = False

    psi: Annotated[Any, Geometry] = checked(_supported, default=None)
    _: KW_ONLY
    weighting: Weighting = choice("uniform", "examples", default="examples")

    def check(self, sampling: Any, population: int) -> None:
        check_everyone("Newton", sampling, population, "FedAvg")

    def init(self, params: Params) -> NewtonServer:
        size, kind = trees.size(params), jnp.dtype(trees.dtype_of(params))
        if size > MOST_PARAMETERS:
            sent = (size * (size + 1) // 2 + size + 1) * kind.itemsize
            raise InvalidInput(
                f"Newton takes at most {MOST_PARAMETERS:,} parameters, and the model has {size:,}: each client would "
                f"send {sent:,} bytes a round; take a first-order method such as FedAvg or FedLiLS"
            )
        self.psi.check(params)
        x, zero = ravel_pytree(params)[0], jnp.zeros((), kind)
        value, step = jnp.full((), jnp.inf, kind), jnp.ones((), kind)
        return NewtonServer(params, x, jnp.zeros_like(x), value, zero, step, *[zero] * 4)

    def broadcast(self, server: NewtonServer, cohort: Cohort) -> FedOptBroadcast:
        return FedOptBroadcast(server.params, cohort.round)

    def init_client(self, broadcast: FedOptBroadcast) -> tuple[()]:
        return ()

    def train(
        self, broadcast: FedOptBroadcast, client: tuple[()], oracle: Oracle
    ) -> tuple[NewtonMessage, tuple[()]]:
        loss, gradient, hessian = second_order(oracle, broadcast.params)
        upper = pack(hessian)
        fine = trees.all_finite((loss, gradient, upper))
        # the square root of the largest number: a weighted sum of such losses is finite
        loss = jnp.where(fine, loss, jnp.sqrt(jnp.finfo(upper.dtype).max))
        gradient, upper = jax.tree.map(lambda x: jnp.where(fine, x, 0), (gradient, upper))
        return NewtonMessage(loss, gradient, upper), client

    def update(self, server: NewtonServer, message: NewtonMessage, cohort: Cohort) -> NewtonServer:
        w, unravel = ravel_pytree(server.params)
        l1, l2 = self._weights(server.params)
        value = message.loss + jnp.sum(l1 * jnp.abs(w)) + jnp.sum(l2 * w * w) / 2
        rounding = 10 * jnp.finfo(w.dtype).eps * jnp.maximum(jnp.abs(value), jnp.abs(server.value))
        enough = server.value - _ARMIJO * server.step * server.decrement + rounding
        gradient, hessian = ravel_pytree(message.gradient)[0] + l2 * w, unpack(message.hessian, w.size)
        new = self._next(server, w, value, gradient, hessian + jnp.diag(l2), l1)
        passed = jnp.isfinite(value) & (value <= enough)
        new = trees.where(passed, new, replace(server, step=server.step / 2))
        new = replace(new, params=unravel(new.accepted + new.step * new.direction))
        complete = cohort.size == cohort.population
        new = trees.where(complete, new, server)
        return replace(new, incomplete=jnp.where(complete, 0, 1).astype(w.dtype))

    def export(self, server: NewtonServer) -> Params:
        return server.params

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)

    def _next(
        self, server: NewtonServer, x: Array, value: Array, gradient: Array, hessian: Array, l1: Array
    ) -> NewtonServer:
        # the step from a model that was accepted; the weights of l1 norms are not part of the gradient
        values, vectors = eigh(hessian)
        curvature, flat = positive(values)
        if self._has_l1:
            quadratic = (vectors * curvature) @ vectors.T
            direction = lasso(quadratic, quadratic @ x - gradient, l1, x) - x
        else:
            direction = -vectors @ ((vectors.T @ gradient) / curvature)
        after, size = x + direction, jnp.linalg.norm(x)
        falls = jnp.sum(l1 * (jnp.abs(x) - jnp.abs(after))) - gradient @ direction
        # steps outwards of 1 % and more that gain nothing: the loss only approaches its infimum
        length, nothing = jnp.linalg.norm(direction), max(1e-6, 100 * jnp.finfo(x.dtype).eps)
        grows = (jnp.linalg.norm(after) - size >= length / 2) & (length >= size / 100) & (falls < nothing)
        growing = jnp.where(grows & (length > 0), server.growing + 1, 0)
        count = jnp.zeros(()) if self._has_l1 else jnp.sum(flat)
        found = {"accepted": x, "direction": direction, "value": value, "decrement": falls}
        found |= {"step": 1.0, "singular": count, "growing": growing, "separated": growing >= _GROWING}
        return replace(server, **{name: jnp.asarray(new, x.dtype) for name, new in found.items()})

    @property
    def _has_l1(self) -> bool:
        return any(isinstance(part.psi, L1 | ElasticNet) for part in self.psi.parts)

    def _weights(self, like: Params) -> tuple[Array, Array]:
        # of |w_j| and of w_j^2 / 2, for each entry of the model
        def of(number: Any) -> Array:
            tree = self.psi.map(lambda psi, v: jnp.full_like(v, number(psi)), like, jnp.zeros_like)
            return ravel_pytree(tree)[0]

        l1 = of(lambda psi: 0.0 if isinstance(psi, SquaredL2) else psi.weight)
        l2 = of(lambda psi: psi.weight if isinstance(psi, SquaredL2) else getattr(psi, "l2", 0.0))
        return l1, l2


# The Hessian of a client, its triangle as it is sent, and the curvature that a step is made with.


def second_order(oracle: Oracle, params: Params) -> tuple[Scalar, Params, Float[Array, "d d"]]:
    """Loss, gradient and Hessian over all of a client's examples, each column a derivative of the gradient."""
    base = oracle
    while isinstance(base, WrappedOracle):
        base = base.inner
    if getattr(base, "memory", None) is not None:
        raise InvalidInput(
            "Newton takes no minibatches, and the task has buffers, which only those update: take GroupNorm or "
            "LayerNorm in place of BatchNorm"
        )
    x, unravel = ravel_pytree(params)

    def gradient(x: Array) -> tuple[Array, tuple[Scalar, Params]]:
        loss, slope = oracle.full(unravel(x))
        return ravel_pytree(slope)[0], (loss, slope)

    try:
        # linearised once: each column is then one product, without the forward pass
        _, push, (loss, slope) = jax.linearize(gradient, x, has_aux=True)
        columns = lax.map(push, jnp.eye(x.size, dtype=x.dtype), batch_size=min(x.size, _COLUMNS))
    except InvalidInput:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120].rstrip(".")
        raise InvalidInput(
            f"Newton needs second derivatives, which this loss does not give ({reason}): give it in JAX "
            "(fs.flower.JaxOracle), or take FedLiLS"
        ) from error
    return loss, slope, columns


def pack(matrix: Float[Array, "d d"]) -> Float[Array, " pairs"]:
    """The upper triangle of a symmetric matrix, row by row; both of a pair write their mean."""
    size = matrix.shape[0]
    # rounding makes columns differ: a pair keeps half of the sum of both
    places = jnp.zeros(size * (size + 1) // 2, matrix.dtype)
    return places.at[_place(size)].set((matrix + matrix.T) / 2)


def unpack(upper: Float[Array, " pairs"], size: int) -> Float[Array, "d d"]:
    """The symmetric matrix of an upper triangle."""
    return upper[_place(size)]


def _place(size: int) -> Array:
    # computed: as a constant it would be as large as the matrix
    rows, columns = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    low, high = jnp.minimum(rows, columns), jnp.maximum(rows, columns)
    return low * size - low * (low + 1) // 2 + high


def positive(values: Float[Array, " d"]) -> tuple[Float[Array, " d"], Array]:
    """Positive curvatures from the eigenvalues of a Hessian, and which eigenvalues are 0 to rounding."""
    largest = jnp.max(jnp.abs(values))
    # a Hessian of zeros: all eigenvalues are flat
    largest = jnp.where(largest > 0, largest, 1)
    rounding = 10 * values.size**0.5 * jnp.finfo(values.dtype).eps
    flat = jnp.abs(values) <= rounding * largest
    return jnp.where(flat, max(_FLAT, rounding) * largest, jnp.abs(values)), flat


_SWEEPS, _SUPPORTS = 10, 100


def lasso(
    quadratic: Float[Array, "d d"],
    linear: Float[Array, " d"],
    l1: Float[Array, " d"],
    start: Float[Array, " d"],
) -> Float[Array, " d"]:
    """argmin_z <z, Q z> / 2 - <b, z> + sum_j l1_j |z_j| for a positive definite Q.

    Sweeps of coordinate descent, each ten followed by the exact minimiser with the signs that were found, which is
    taken where it has those signs. It ends where a sweep moves no entry by more than 1e-12 of the largest.
    """
    diagonal, size = jnp.diag(quadratic), linear.size
    tolerance = max(1e-12, 32 * float(jnp.finfo(linear.dtype).eps))

    def one(j: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
        # rest = b - Q z, kept up to date: a coordinate costs one row of Q
        z, rest = found
        new = soft_threshold(rest[j] + diagonal[j] * z[j], l1[j]) / diagonal[j]
        return z.at[j].set(new), rest - (new - z[j]) * quadratic[j]

    def sweep(_: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
        z, _ = found
        # the rest anew in each sweep, so that its rounding does not add up
        new, _ = lax.fori_loop(0, size, one, (z, linear - quadratic @ z))
        return new, jnp.max(jnp.abs(new - z))

    def on_support(z: Array) -> Array:
        on = z != 0
        # the identity off the support: one shape for all supports, 0 there
        system = jnp.where(on[:, None] & on, quadratic, 0) + jnp.diag(jnp.where(on, 0, 1).astype(z.dtype))
        exact = solution(system, jnp.where(on, linear - l1 * jnp.sign(z), 0))
        # the minimiser of the smooth piece is one of the whole only where no sign flips
        signs = jnp.where(on & (l1 > 0), jnp.sign(exact) == jnp.sign(z), True)
        return jnp.where(jnp.all(signs) & trees.array_is_finite(exact), exact, z)

    def goes_on(state: tuple[Array, Array, Array]) -> Array:
        z, moved, count = state
        return (moved > tolerance * jnp.max(jnp.abs(z))) & (count < _SUPPORTS)

    def improve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        z, _ = lax.fori_loop(0, _SWEEPS, sweep, (on_support(state[0]), jnp.zeros((), linear.dtype)))
        return *sweep(0, (on_support(z), jnp.zeros((), linear.dtype))), state[2] + 1

    first = (start, jnp.full((), jnp.inf, linear.dtype), jnp.int32(0))
    return lax.while_loop(goes_on, improve, first)[0]
