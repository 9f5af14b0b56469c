"""Doubly adaptive server steps: FedExP(M), FedDuAdagrad, FedDuAdam (Takakura et al. 2025, Algorithm 1).

One optimiser: the clients' disagreement determines the length of the step along the preconditioned momentum.
The identity preconditioner gives FedExP (Jhunjhunwala et al. 2023) and, with momentum, FedExPM.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, choice, number
from fedsolve.core.errors import InvalidInput, check_known, shown
from fedsolve.core.oracle import Oracle, uncorrected
from fedsolve.core.schedules import Rate
from fedsolve.core.types import (
    MessageBounds,
    Params,
    Scalar,
    Traced,
    Weighting,
    bounded,
    module,
    reduced,
    reported,
    static,
)
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.client.solver import Search, Solution
from fedsolve.methods.server.adaptive import SECOND_MOMENTS
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import Needs, ServerOptimizer

Preconditioner = Literal["identity", "adagrad", "adam"]


@module
class Spread:
    """What a client adds to its update: |D_i|^2, one number; its mean beside |D|^2 tells how far clients
    are apart.
    """

    squared_norm: Traced = bounded(MessageBounds(at_least=0, of_delta=trees.squared_norm))


@module
class UncorrectedSpread:
    """|D_i + K eta_l (c - c_i)|^2, one number: the update without SCAFFOLD's correction; |D_i|^2 outside SCAFFOLD."""

    uncorrected_squared_norm: Traced = bounded(MessageBounds(at_least=0))

    @property
    def squared_norm(self) -> Traced:
        return self.uncorrected_squared_norm


@module
class DoublyAdaptiveState:
    """Second moment s (`()` for the identity), momentum v (`()` for none), bound m and the last step.

    s and v have the shapes of the model, m and server_lr are scalars.
    """

    s: Params
    v: Params
    m: Traced
    server_lr: Traced = reported()


@module
class DoublyAdaptive(ServerOptimizer):
    """Doubly adaptive server step: a preconditioner, and a step size from the clients' disagreement.

    G = diag(sqrt(s) + eps);  eta = m / (<v, G^-1 v> + eps_g);  w <- w + eta G^-1 v.

    adagrad: s <- s + D^2;           adam: s <- b2 s + (1 - b2) D^2;      identity: G = I
    no momentum: v = D, m = q mean |D_i|^2
    momentum:    v <- b1 v + (1 - b1) D,  m <- (b1/2) m + (1 - b1) q mean |D_i|^2   (halved: Theorem 3.3; q = 1/2)

    The inner products run over all parameters together: one eta a round. No bias correction.
    A coordinate with G = 0 (never moved, eps = 0) stays; a zero denominator makes eta zero.

    Under differential privacy D has noise, and eta is never less than with m = |v|^2: the step that has v's own length
    along v, which with G = I is plain averaging's. Noise in |D|^2 makes eta small without that; it is not subtracted
    there, since <D, G^-1 D> belongs to the step that is really taken.

    Within SCAFFOLD, D_i are the corrected updates, which hardly differ. `uncorrected` takes the disagreement from
    the updates without the correction, K eta_l h_i with h_i the mean of client i's own gradients, which it knows:

    mean |D_i|^2 becomes mean |K eta_l h_i|^2;  eta = min(m, uncorrected |v|^2) / (<v, G^-1 v> + eps_g)

    Attributes:
        beta1: momentum of v and m, None for none; in [0, 1).
        beta2: decay of s, for adam; in [0, 1).
        eps: added to sqrt(s), 1e-9 in the paper; at least 0.
        eps_g: added to the denominator; 0 needs no tuning and is the default; at least 0.
        preconditioner: which line updates s.
        clamp: eta at least 1, as the original FedExP.
        eps_per_client: multiply eps_g by |S|, as the public code of FedExP.
        eps_decay: multiply eps_g by eps_decay^(t+1) in round t = 0, 1, ..., in (0, 1]; None for 1.
        factor: q above 0, 1/2 in the papers.
        uncorrected: within SCAFFOLD, extrapolate by the clients' own gradients, with G = I at most so many times the
            step of plain averaging; above 0, None for the corrected updates, which the papers' steps are of.

    Raises:
        InvalidInput: a number out of its range, an unknown preconditioner.
    """

    weighting: ClassVar[Weighting] = "uniform"
    compares_clients: ClassVar[bool] = True

    _: KW_ONLY
    beta1: Scalar | None = number(default=None, at_least=0, below=1)
    beta2: Scalar = number(default=0.99, at_least=0, below=1)
    eps: Scalar = number(default=1e-9, at_least=0)
    eps_g: Scalar = number(default=0.0, at_least=0)
    preconditioner: Preconditioner = choice(
        "identity", "adagrad", "adam", default="identity", kind="preconditioner"
    )
    clamp: bool = static(default=False)
    eps_per_client: bool = static(default=False)
    eps_decay: Scalar | None = number(default=None, above=0, at_most=1, later=True)
    factor: Scalar = number(default=0.5, above=0, later=True)
    uncorrected: Scalar | None = number(default=None, above=0, later=True)

    def init(self, params: Params) -> DoublyAdaptiveState:
        zeros, zero = trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params))
        s = () if self.preconditioner == "identity" else zeros
        return DoublyAdaptiveState(s, () if self.beta1 is None else zeros, zero, zero)

    def client_stats(
        self, delta: Params, solution: Solution, start: Params, oracle: Oracle
    ) -> Spread | UncorrectedSpread:
        # the client's |D_i|^2, or that of its update without SCAFFOLD's correction
        if self.uncorrected is None:
            return Spread(trees.squared_norm(delta))
        return UncorrectedSpread(trees.squared_norm(uncorrected(delta, solution.rate_sum, oracle)))

    def step(
        self,
        params: Params,
        state: DoublyAdaptiveState,
        delta: Params,
        measured: Spread | UncorrectedSpread,
        cohort: Cohort,
    ) -> tuple[Params, DoublyAdaptiveState]:
        # apply one server step (Algorithm 1, lines 10-17)
        v, m = moments(self.beta1, state.v, state.m, delta, self.factor * measured.squared_norm)
        # within SCAFFOLD at most so many times the step of plain averaging, |v|^2
        most = along(v, m, cohort)
        if self.uncorrected is not None:
            most = jnp.minimum(most, self.uncorrected * trees.squared_norm(v))
        s, direction = state.s, v
        if self.preconditioner != "identity":
            line = SECOND_MOMENTS[self.preconditioner]
            s = jax.tree.map(lambda s, d: line(s, d * d, self.beta2).astype(s.dtype), state.s, delta)
            direction = jax.tree.map(lambda v, s: trees.quotient(v, jnp.sqrt(s) + self.eps), v, s)
        eps_g = self.eps_g * cohort.size if self.eps_per_client else self.eps_g
        if self.eps_decay is not None:
            eps_g = eps_g * self.eps_decay ** (cohort.round + 1)
        # eta = m / (<v, G^-1 v> + eps_g), 0 where the denominator is 0
        eta = trees.quotient(most, trees.dot(v, direction) + eps_g)
        if self.clamp:
            eta = jnp.maximum(1.0, eta)
        momentum = () if self.beta1 is None else v
        new = DoublyAdaptiveState(s, momentum, m.astype(state.m.dtype), eta.astype(state.server_lr.dtype))
        return trees.axpy(eta, direction, params), new


def moments(
    beta1: Scalar | None, v: Params, m: Traced, delta: Params, disagreement: Traced
) -> tuple[Params, Traced]:
    """v and m after a round (Theorems 3.2 and 3.3), of (1/2) mean |D_i|^2."""
    if beta1 is None:
        return delta, disagreement
    v = jax.tree.map(lambda v, d: (beta1 * v + (1 - beta1) * d).astype(v.dtype), v, delta)
    return v, beta1 / 2 * m + (1 - beta1) * disagreement


def along(v: Params, m: Traced, cohort: Cohort) -> Traced:
    """How far the step goes along v, times |v|: m; where the mean update has noise, no less than |v|^2."""
    if cohort.noise is None:
        return m
    return jnp.where(cohort.noise > 0, jnp.maximum(m, trees.squared_norm(v)), m)


@by_name("FedDuAdagrad")
def FedDuAdagrad(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar = 0.0,
    eps: Scalar = 1e-9,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedDuAdagrad (Takakura et al. 2025): Adagrad on the server, with a step size from the clients' disagreement.

        client:  D_i as in `FedAvg`
        server:  D = mean D_i,   s <- s + D^2,   G = diag(sqrt(s) + eps),   m = (1/2) mean |D_i|^2
                 eta_g = m / (<D, G^-1 D> + eps_g),   w <- w + eta_g G^-1 D

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: s on the server. There is no server rate to
    tune; the run logs eta_g as `server_lr`. A coordinate that has never moved stays.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0 (0: nothing to tune; the paper tries 1e-3 to 1e-1).
        eps: added to sqrt(s), at least 0 (1e-9, the paper's).
        weighting: `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive(preconditioner="adagrad")`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Takakura, Liew and Hasegawa, "FedDuA: Doubly Adaptive Federated Learning", arXiv:2505.11126, 2025,
    Algorithm 1.
    """
    server_optimizer = DoublyAdaptive(eps=eps, eps_g=eps_g, preconditioner="adagrad")
    return compose("FedDuAdagrad", client_lr, server_optimizer, weighting, client)


@by_name("FedDuAdam")
def FedDuAdam(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar = 0.0,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.99,
    eps: Scalar = 1e-9,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedDuAdam (Takakura et al. 2025): Adam on the server, with a step size from the clients' disagreement.

        client:  D_i as in `FedAvg`
        server:  D = mean D_i,   v <- b1 v + (1 - b1) D,   s <- b2 s + (1 - b2) D^2,   G = diag(sqrt(s) + eps)
                 m <- (b1/2) m + ((1 - b1)/2) mean |D_i|^2
                 eta_g = m / (<v, G^-1 v> + eps_g),   w <- w + eta_g G^-1 v

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: v, s and m on the server. There is no server
    rate to tune; the run logs eta_g as `server_lr`. m's factor is b1/2 (Theorem 3.3). A coordinate that has never
    moved stays.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0 (0: nothing to tune; the paper tries 1e-3 to 1e-1).
        beta1: decay of v and m, in [0, 1) (0.9, the paper's).
        beta2: decay of s, in [0, 1) (0.99, the paper's).
        eps: added to sqrt(s), at least 0 (1e-9, the paper's).
        weighting: `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive(preconditioner="adam")`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Takakura, Liew and Hasegawa, "FedDuA: Doubly Adaptive Federated Learning", arXiv:2505.11126, 2025,
    Algorithm 1.
    """
    server_optimizer = DoublyAdaptive(beta1=beta1, beta2=beta2, eps=eps, eps_g=eps_g, preconditioner="adam")
    return compose("FedDuAdam", client_lr, server_optimizer, weighting, client)


# Server steps along D whose length the clients determine: by their diversity, or by their line searches.


@module
class LengthState:
    """The last rate."""

    server_lr: Traced = reported()


@module
class GradientDiversity(ServerOptimizer):
    """GraDS (Li et al. 2024): a server step along D whose size is the diversity of the client updates.

    alpha = mean |D_i|^2 / |D|^2,   w <- w + alpha D.

    FedExP's step without its factor 1/2, meant for proximal points; never below 1. D = 0 moves nothing.
    """

    weighting: ClassVar[Weighting] = "uniform"
    compares_clients: ClassVar[bool] = True

    def init(self, params: Params) -> LengthState:
        return LengthState(jnp.zeros((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Spread:
        return Spread(trees.squared_norm(delta))

    def step(
        self, params: Params, state: LengthState, delta: Params, measured: Spread, cohort: Cohort
    ) -> tuple[Params, LengthState]:
        far = along(delta, measured.squared_norm, cohort)
        alpha = trees.quotient(far, trees.squared_norm(delta)).astype(state.server_lr.dtype)
        return trees.axpy(alpha, delta, params), LengthState(alpha)


@module
class ExtrapolatedState:
    """The state of the step that is lengthened, and the last factor."""

    inner: Any
    extrapolation: Traced = reported()


@module
class Extrapolated(ServerOptimizer):
    """The step of another server optimiser, lengthened as FedExP lengthens that of plain averaging.

    w <- w + M u, u the step of `optimizer` and M from the client updates themselves:

    M = max(1, (1/2) sum p_i |D_i|^2 / (|D|^2 + |S| eps_g eps_decay^(t+1))), at most `most`

    Attributes:
        optimizer: whose step is lengthened; it needs nothing of clients but their updates.
        eps_g: added to the denominator for each participant, at least 0.
        eps_decay: its factor a round t = 0, 1, ..., before its first use, in (0, 1].
        most: largest M, at least 1; None for no bound.

    Raises:
        InvalidInput: a number out of its range, a server optimiser that needs more of clients.

    Reference: Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """

    compares_clients: ClassVar[bool] = True

    optimizer: ServerOptimizer
    _: KW_ONLY
    eps_g: Scalar = number(default=1e-3, at_least=0)
    eps_decay: Scalar = number(default=1.0, above=0, at_most=1)
    most: Scalar | None = number(default=None, at_least=1)

    def __post_init__(self) -> None:
        kind, base = type(self.optimizer), ServerOptimizer
        if not (
            isinstance(self.optimizer, base)
            and kind.client_stats is base.client_stats
            and kind.direction is base.direction
            and kind.needs is None
        ):
            raise InvalidInput(
                f"optimizer = {shown(self.optimizer)} must be a server optimiser that needs client updates alone, "
                "such as server.Adaptive(0.1)"
            )

    def init(self, params: Params) -> ExtrapolatedState:
        return ExtrapolatedState(self.optimizer.init(params), jnp.ones((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Spread:
        return Spread(trees.squared_norm(delta))

    def step(
        self, params: Params, state: ExtrapolatedState, delta: Params, measured: Spread, cohort: Cohort
    ) -> tuple[Params, ExtrapolatedState]:
        to, inner = self.optimizer.step(params, state.inner, delta, (), cohort)
        eps_g = cohort.size * self.eps_g * self.eps_decay ** (cohort.round + 1)
        factor = trees.quotient(measured.squared_norm / 2, trees.squared_norm(delta) + eps_g)
        factor = jnp.clip(factor, 1.0, self.most).astype(state.extrapolation.dtype)
        return trees.axpy(factor, trees.sub(to, params), params), ExtrapolatedState(inner, factor)

    def evaluation_point(self, params: Params, state: ExtrapolatedState) -> Params:
        return self.optimizer.evaluation_point(params, state.inner)


@module
class ClientStep:
    """What a client adds to its update: the last step that its line search accepted."""

    step: Traced = reduced("max", MessageBounds(at_least=0))


@module
class LargestStep(ServerOptimizer):
    """FedLiLS's server step along D, with the largest last step of the clients' line searches.

    w <- w + eta D, eta the largest step in the cohort that a client's line search accepted last.

    FedLiLS's heuristic for losses that are not convex. As no step exceeds eta_max, with eta_max = 1 the server
    moves at most by D. Sends one number more.

    Raises:
        InvalidInput: clients without a line search.
    """

    needs: ClassVar[Needs] = "searches"
    weighting: ClassVar[Weighting] = "uniform"

    def init(self, params: Params) -> LengthState:
        return LengthState(jnp.zeros((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> ClientStep:
        assert isinstance(solution.search, Search)  # `needs` says so
        return ClientStep(solution.search.step)

    def step(
        self, params: Params, state: LengthState, delta: Params, measured: ClientStep, cohort: Cohort
    ) -> tuple[Params, LengthState]:
        eta = measured.step.astype(state.server_lr.dtype)
        return trees.axpy(eta, delta, params), LengthState(eta)


# FedExP and FedExPM: the doubly adaptive step without a preconditioner.

ExpPreset = Literal["study", "original", "code"]

# (eps_g, clamp, eps_g times |S|, weighting)
_EXP_PRESETS: dict[ExpPreset, tuple[float, bool, bool, Weighting]] = {
    "study": (0.0, False, False, "uniform"),
    "original": (1e-3, True, False, "uniform"),
    "code": (1e-3, True, True, "examples"),
}


@by_name("FedExP")
def FedExP(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar | None = None,
    preset: ExpPreset = "study",
    weighting: Weighting | None = None,
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedExP (Jhunjhunwala et al. 2023): a server step along D, with a size from the clients' disagreement.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   eta_g = (1/2) sum_i p_i |D_i|^2 / (|D|^2 + eps_g),   w <- w + eta_g D

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: nothing. The run logs eta_g as `server_lr`.
    The original also evaluates the mean of the last two iterates (`averaged` metrics of a run).

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0, in units of |D|^2. None is the preset's.
        preset: `study`, as Takakura et al. 2025 compare it (no clamp, eps_g 0), `original` (eta_g at least 1, eps_g
            1e-3: the paper's Algorithm 1 and its experiments' constant) or `code` (its public code: the same with
            eps_g times |S|, weights by examples).
        weighting: p_i `uniform` or by `examples`; None is the preset's.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive` without momentum or preconditioner.

    Raises:
        InvalidInput: a number out of its range, an unknown preset or weighting.

    Reference: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023.
    """
    check_known("preset", preset, _EXP_PRESETS)
    default, clamp, per_client, weights = _EXP_PRESETS[preset]
    eps_g = default if eps_g is None else eps_g
    server_optimizer = DoublyAdaptive(eps_g=eps_g, clamp=clamp, eps_per_client=per_client)
    return compose("FedExP", client_lr, server_optimizer, weighting or weights, client)


@by_name("FedExPM")
def FedExPM(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar = 0.0,
    beta1: Scalar = 0.9,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedExPM (Takakura et al. 2025): FedExP with momentum, i.e. FedDuAdam without a preconditioner.

        client:  D_i as in `FedAvg`
        server:  D = mean D_i,   v <- b1 v + (1 - b1) D,   m <- (b1/2) m + ((1 - b1)/2) mean |D_i|^2
                 eta_g = m / (|v|^2 + eps_g),   w <- w + eta_g v

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: v and m on the server. The paper names the
    baseline and does not define it; this is its Algorithm 1 with G = I.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0, in units of |D|^2 (0: nothing to tune).
        beta1: decay of v and m, in [0, 1) (0.9, the paper's).
        weighting: `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive` without preconditioner.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Takakura, Liew and Hasegawa, "FedDuA: Doubly Adaptive Federated Learning", arXiv:2505.11126, 2025.
    """
    return compose("FedExPM", client_lr, DoublyAdaptive(beta1=beta1, eps_g=eps_g), weighting, client)
