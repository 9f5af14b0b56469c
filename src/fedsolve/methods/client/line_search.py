"""SGD with a stochastic Armijo line search (Vaswani et al. 2019), as FedLiLS runs it on clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.building import choice, integer, number
from fedsolve.core.errors import InvalidInput, check_range, is_integer
from fedsolve.core.oracle import Oracle, correction
from fedsolve.core.types import Params, Scalar, Traced, module, static
from fedsolve.methods.client.sgd import decayed_and_clipped
from fedsolve.methods.client.solver import LocalSolver, Search, Solution, local_loop, mean_loss

TRIES = 100
"""Trials of one search at most."""
FALLBACK = 1e-6
"""The step if all of them fail, as in the public code; without reset "code" the last trial if that is shorter."""
STATIONARY = 1e-8
"""A gradient of smaller norm moves nothing."""
_GROWTH_STEPS = 500
"""Local steps over which reset "code" multiplies the step by delta, as in the public code."""

Reset = Literal[0, 1, 2, "code"]
Accept = Literal[
    "armijo", "original", "grad_control", "no_control_reward", "drift_slack", "quadratic_drift_slack"
]
_SLACK = ("drift_slack", "quadratic_drift_slack")

_Carry = tuple[Params, Scalar, Scalar, Scalar, Scalar]


@module
class Armijo(LocalSolver):
    """Local SGD with Armijo line search: each minibatch determines the length of its step.

    There is no learning rate to tune.

        eta <- the first of  s, beta s, beta^2 s, ...  with  f(y - eta g) <= f(y) - c eta |g|^2,   y <- y - eta g

    f, g and all trials are of the step's minibatch. s is eta_max in the first step of a round; later `reset` 0
    keeps the last accepted eta, 1 returns to eta_max, 2 grows it: min(eta delta^(b/n), eta_max), with b the
    minibatch size (at most n) and n the client's examples. `reset="code"` is the public code's reset 1: the step
    grows by delta^(1/500) before each search, the first of a round among them, without a cap; over 20 steps that is
    2.8 %, so it nearly keeps the last step. After 100 trials without success eta is 1e-6.
    A gradient of norm below 1e-8 moves nothing and leaves eta alone. A step costs one loss evaluation per
    trial more than a step of SGD, at least one. It searches along the loss it is given: wrappers add their
    terms to losses and gradients alike. There is no momentum. With weight decay the loss is f(y) + (decay/2) |y|^2;
    g is the gradient after clipping.

    Within SCAFFOLD, g + h is the direction, h = c - c_i, and `accept` says which decrease of f alone a step must
    reach, D = f(y - eta (g + h)) - f(y), by the public code of the second version of the paper (a = c, slack = b):

        armijo                 D - eta <h, g + h> <= -a eta |g + h|^2           (Armijo's condition on f + <h, .>)
        original               D <= -eta/2 |g|^2 + eta/2 |h|^2 - a eta/2 |g + h|^2
        grad_control           D <= -(1 - a) eta/2 |g|^2 + (2 + a) eta/4 |h|^2
        no_control_reward      D <= -eta/2 |g|^2 - a eta/2 |g + h|^2
        drift_slack            D <= -a eta |g|^2 + b eta |h|^2
        quadratic_drift_slack  D <= -a eta |g|^2 + (b/2) eta^2 |h|^2

    Attributes:
        eta_max: largest step, with reset "code" the step before the first one, > 0 (1).
        c: share of the linear decrease that is asked for, in (0, 1) (0.1); below 1/2 for the rules of `accept` in
            which it stands beside 1/2.
        beta: factor of a trial that failed, in (0, 1) (0.9).
        delta: growth over one pass of the data with reset 2, over 500 steps with "code", at least 1 (2).
        reset: where the next search begins, 0, 1 or 2 in the paper's order, or "code".
        weight_decay: None for none; at least 0.
        clip_norm: largest norm of the gradient, decay included, None for none; > 0.
        accept: when a step is accepted; without control variates h = 0.
        slack: b of the two rules that have it, at least 0; they have no default.

    Raises:
        InvalidInput: one of them out of its range, a rule without its slack or a slack without such a rule.

    >>> from fedsolve import FedOpt, server
    >>> FedOpt(Armijo(), server.DoublyAdaptive()).local.reset
    1

    Reference: Vaswani et al., "Painless Stochastic Gradient: Interpolation, Line-Search, and Convergence Rates",
    NeurIPS 2019; Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """

    sums_gradients: ClassVar[bool] = True
    searches: ClassVar[bool] = True

    eta_max: Scalar = number(default=1.0, above=0)
    _: KW_ONLY
    c: Scalar = number(default=0.1, above=0, below=1)
    beta: Scalar = number(default=0.9, above=0, below=1)
    delta: Scalar = number(default=2.0, at_least=1)
    reset: Reset = static(default=1)
    weight_decay: Scalar | None = number(default=None, at_least=0, later=True)
    clip_norm: Scalar | None = number(default=None, above=0, later=True)
    accept: Accept = choice(*get_args(Accept), default="armijo", kind="accept", later=True)
    slack: Scalar | None = number(default=None, at_least=0, later=True)

    def __post_init__(self) -> None:
        is_name = isinstance(self.reset, str) and self.reset == "code"
        if not is_name and (not is_integer(self.reset) or self.reset not in (0, 1, 2)):
            raise InvalidInput(
                f"reset = {self.reset!r} must be 0 (keep), 1 (back to eta_max), 2 (grow) or 'code'"
            )
        if (self.slack is None) == (self.accept in _SLACK):
            of = " and ".join(_SLACK)
            raise InvalidInput(
                f"accept = {self.accept!r} needs slack, such as slack=1.0"
                if self.slack is None
                else f"slack = {self.slack!r} is of the rules {of} alone: leave it out"
            )
        if self.accept not in ("armijo", *_SLACK):
            check_range("c", self.c, above=0, below=0.5)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        dtype = trees.dtype_of(params)
        zero, highest = jnp.zeros((), dtype), jnp.asarray(self.eta_max, dtype)
        growth = self._growth(oracle, dtype)
        oracle = decayed_and_clipped(oracle, self.weight_decay, self.clip_norm)
        h = correction(oracle)

        def step(k: Scalar, carry: _Carry) -> _Carry:
            y, eta, total, rate_sum, evaluations = carry
            loss, g = oracle(y, k)
            start = highest if self.reset == 1 else jnp.asarray(growth * eta)
            if self.reset != "code":
                start = jnp.minimum(start, highest)
            # steps beyond the client's own, of padding, must not move y
            moves = (trees.norm(g) >= STATIONARY) & (k < oracle.steps)

            def value(y: Params) -> Scalar:
                return self._decayed(oracle.loss(y, k), y)

            at = (y, self._decayed(loss, y), g)
            found, tries = self._search(value, at, h, start.astype(dtype), moves)
            taken = jnp.where(moves, found, 0).astype(dtype)
            y = trees.axpy(-taken, g, y)
            return y, jnp.where(moves, found, eta), total + loss, rate_sum + taken, evaluations + tries

        start = (params, highest, zero, zero, zero)
        y, eta, total, rate_sum, evaluations = local_loop(oracle, step, start)
        # SCAFFOLD's control variates need the sum of the steps, which no rate tells
        search = Search(eta, evaluations, () if h is None else rate_sum)
        return Solution(y, mean_loss(total, oracle), rate_sum, search)

    def _growth(self, oracle: Oracle, dtype: Any) -> Scalar:
        if self.reset == "code":
            return self.delta ** (1 / _GROWTH_STEPS)
        if self.reset != 2:
            return 1.0
        share = jnp.asarray(oracle.batch_size, dtype) / jnp.asarray(oracle.num_examples, dtype)
        return self.delta ** jnp.minimum(share, 1)

    def _decayed(self, loss: Scalar, y: Params) -> Scalar:
        return loss if self.weight_decay is None else loss + self.weight_decay / 2 * trees.squared_norm(y)

    def _decrease(self, direction: Params, h: Params | None) -> tuple[Scalar, Scalar | None]:
        # what a step must reach: loss(y) - loss(y') >= slope eta - curve eta^2, where losses have the term <h, .>
        # of control variates, as the oracle gives them, and the rules are of losses without it
        both = trees.squared_norm(direction)
        if self.accept == "armijo":
            return self.c * both, None
        if h is None:
            own, drift, added = both, 0.0, 0.0
        else:
            own = trees.squared_norm(trees.sub(direction, h))
            drift, added = trees.squared_norm(h), trees.dot(h, direction)
        c, slack = self.c, 0.0 if self.slack is None else self.slack
        slope = {
            "original": (own - drift + c * both) / 2,
            "grad_control": (1 - c) / 2 * own - (2 + c) / 4 * drift,
            "no_control_reward": (own + c * both) / 2,
            "drift_slack": c * own - slack * drift,
            "quadratic_drift_slack": c * own,
        }[self.accept]
        return slope + added, slack / 2 * drift if self.accept == "quadratic_drift_slack" else None

    def _search(
        self,
        value: Callable[[Params], Scalar],
        at: tuple[Params, Scalar, Params],
        h: Params | None,
        start: Traced,
        moves: Traced,
    ) -> tuple[Scalar, Scalar]:
        # the accepted step from the first trial `start`, and the number of trials; none if it does not move
        y, loss, g = at
        slope, curve = self._decrease(g, h)

        def unfinished(carry: tuple[Scalar, Scalar, Traced]) -> Traced:
            return moves & ~carry[2] & (carry[1] < TRIES)

        def trial(carry: tuple[Traced, Traced, Traced]) -> tuple[Traced, Traced, Traced]:
            eta, tries, _ = carry
            # the first trial is `start` itself
            eta = jnp.where(tries > 0, self.beta * eta, eta).astype(start.dtype)
            bound = loss - eta * slope
            if curve is not None:
                bound = bound + eta**2 * curve
            return eta, tries + 1, value(trees.axpy(-eta, g, y)) <= bound

        first = (start, jnp.zeros_like(start), jnp.array(False))
        eta, tries, accepted = lax.while_loop(unfinished, trial, first)
        failed = FALLBACK if self.reset == "code" else jnp.minimum(eta, FALLBACK)
        return jnp.where(accepted, eta, failed).astype(start.dtype), tries


# Conjugate gradients as the client's solver: the exact minimiser of a quadratic loss (Hestenes and Stiefel 1952).

_ROUNDING = 4  # units of rounding that a difference of two gradients may be off by


@module
class ConjugateGradient(LocalSolver):
    """Conjugate gradients on a client's quadratic loss over all of its examples.

    It has no learning rate and uses no minibatches.
    A matrix-vector product is a difference of two gradients, A v = grad f(x + v) - grad f(x), which is exact
    for quadratics alone. After as many iterations as there are distinct curvatures the minimiser is reached
    to rounding; iterations stop where a direction's curvature is no larger than the rounding of that difference.
    Products have all bits of their type, on a GPU too.

    Attributes:
        iterations: at most so many.

    Raises:
        InvalidInput: less than one iteration.
    """

    iterations: int = integer(default=100)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        # minimise the loss from `params`; the reported loss is that at the start
        with jax.default_matmul_precision("highest"):
            return self._solve(params, oracle)

    def _solve(self, params: Params, oracle: Oracle) -> Solution:
        loss, gradient = oracle.full(params)
        residual = trees.scale(-1, gradient)
        first = trees.squared_norm(residual)
        eps = jnp.finfo(first.dtype).eps
        # relative to the first residual: the squared norm of rounding
        enough = first * (eps / 8) ** 2

        def unfinished(carry: tuple[Params, Params, Params, Scalar, Scalar]) -> Traced:
            return (carry[4] < self.iterations) & (carry[3] > enough)

        def step(
            carry: tuple[Params, Params, Params, Scalar, Scalar],
        ) -> tuple[Params, Params, Params, Scalar, Scalar]:
            x, r, p, rho, k = carry
            # A p as a difference of gradients: exact for quadratics, whatever the length of p
            curved = trees.sub(oracle.full(trees.add(params, p))[1], gradient)
            curvature = trees.dot(p, curved)
            curves = curvature > _ROUNDING * eps * jnp.sqrt(first * trees.squared_norm(p))
            alpha = jnp.where(curves, rho / jnp.where(curves, curvature, 1), 0)
            x, r = trees.axpy(alpha, p, x), trees.axpy(-alpha, curved, r)
            new = jnp.where(curves, trees.squared_norm(r), 0)  # no curvature left: done
            return x, r, trees.axpy(new / rho, p, r), new, k + 1

        start = (params, residual, residual, first, jnp.int32(0))
        return Solution(lax.while_loop(unfinished, step, start)[0], loss)
