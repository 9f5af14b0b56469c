"""DiLoCo and MuLoCo: many local steps of AdamW or Muon, Nesterov momentum on the server; GPA, without local steps."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, number
from fedsolve.core.errors import InvalidInput, check_range, shown
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Params, Scalar, Weighting, module, replace
from fedsolve.methods.client.optax import Optax
from fedsolve.methods.client.sgd import Gradient
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.optax import Optax as ServerOptax
from fedsolve.methods.server.optax import OptaxRule, OptaxRuleState
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import ServerSGD


@by_name("DiLoCo")
def DiLoCo(
    client_lr: Rate = 4e-4,
    *,
    weight_decay: Scalar = 0.1,
    server_lr: Rate = 0.7,
    momentum: Scalar = 0.9,
    server_optimizer: ServerOptimizer | None = None,
    weighting: Weighting = "uniform",
) -> FedOpt:
    """DiLoCo (Douillard et al. 2023): clients run AdamW and keep its moments; the server uses Nesterov momentum.

        client i in S:  H steps of AdamW from w, moments and count as the client's last round left them:
                        m_i <- b1 m_i + (1 - b1) g,   v_i <- b2 v_i + (1 - b2) g^2,   k_i <- k_i + 1
                        y <- y - eta_l (m_i / (1 - b1^k_i) / (sqrt(v_i / (1 - b2^k_i)) + 1e-8) + lambda y)
                        D_i = y - w
        server:         D = sum_i p_i D_i,   m <- beta m + D,   w <- w + eta_g (D + beta m)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m_i, v_i and k_i on each client (2 d numbers and a
    count; b1 = 0.9, b2 = 0.999), m on the server. H is the run's local work: `local_steps=500` (the paper's). The
    paper warms eta_l up over 1,000 steps and lets it fall along a cosine, by local steps, which the clients count: that
    is `FedOpt(client.Optax(optax.adamw, keep=True, learning_rate=optax.warmup_cosine_decay_schedule(...)),
    server.ServerSGD(0.7, momentum=0.9, nesterov=True), weighting="uniform")`, as are other constants of AdamW or
    another inner optimiser; a schedule as `client_lr` goes by rounds.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round, in units of a parameter: a coordinate moves by about
            eta_l a step (4e-4, the paper's peak for its language models).
        weight_decay: lambda, at least 0 (0.1, the paper's); decoupled: not part of g.
        server_lr: eta_g > 0, a number or a schedule by round (0.7, the paper's). The steady step is
            eta_g / (1 - beta) of D: 7 times.
        momentum: beta in [0, 1) (0.9, the paper's).
        server_optimizer: any server rule in place of Nesterov's, such as
            `server.DoublyAdaptive(beta1=0.9, preconditioner="adam")`, which is FedDuAdam's and has no rate, or
            `server.Adaptive(0.01)`, FedAdam's; `server_lr` and `momentum` are then not used. In a configuration a
            table: `{name = "Adaptive", lr = 0.01}`.
        weighting: p_i `uniform` (the paper's Algorithm 1) or by `examples`.

    Returns:
        A `FedOpt` whose local solver is `client.Optax(optax.adamw, keep=True)`, with `server.ServerSGD` unless
        `server_optimizer` is given.

    Raises:
        InvalidInput: a number out of its range, no server optimiser, or one that needs clients with SGD, an unknown
            weighting.

    >>> DiLoCo().server_optimizer.lr
    0.7

    Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105,
    2023, Algorithm 1.
    """
    from optax import adamw

    local, rule = _kept(adamw, client_lr, weight_decay), server_optimizer
    if rule is None:
        rule = ServerSGD(server_lr, momentum=momentum, nesterov=True)
    return FedOpt(local, rule, weighting=weighting, name="DiLoCo")


def _kept(optimiser: Any, client_lr: Rate, weight_decay: Scalar) -> Any:
    check_range("weight_decay", weight_decay, at_least=0)
    rate = as_rate("client_lr", client_lr)
    return Optax(optimiser, keep=True, learning_rate=rate, weight_decay=weight_decay)


@by_name("MuLoCo")
def MuLoCo(
    client_lr: Rate = 0.02,
    *,
    weight_decay: Scalar = 0.0,
    server_lr: Rate = 0.7,
    momentum: Scalar = 0.6,
    weighting: Weighting = "uniform",
) -> FedOpt:
    """MuLoCo (Therien et al. 2025): DiLoCo whose clients run Muon in place of AdamW.

        client i in S:  H steps of Muon from w, momentum as the client's last round left it:
                        m_i <- b m_i + (1 - b) g,   y <- y - eta_l (orthogonal factor of m_i, scaled; lambda y)
                        D_i = y - w
        server:         D = sum_i p_i D_i,   m <- beta m + D,   w <- w + eta_g (D + beta m)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m_i on each client (d; Adam's moments of leaves that are
    no matrices), m on the server. As in the authors' code in JAX, Muon is optax's (`optax.contrib.muon`, b = 0.95,
    Nesterov, five steps of Newton and Schulz): matrices step along the orthogonal factor of their momentum, all other
    leaves by Adam at the same rate. Their code in PyTorch has another Muon, without Nesterov's momentum and with other
    coefficients of the iteration. `FedOpt(client.Muon(0.02, keep=True), ...)` is the same with Jordan's Muon.

    The paper's updates of 2 bits with error feedback are
    `fs.Compressed(fs.MuLoCo(), fs.compression.EDEN(bits=2), memory="feedback")`; its own quantiser is another one.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.02 is the authors' code's; the paper tunes it.
        weight_decay: lambda of matrices, at least 0; 0 (the authors' code in JAX).
        server_lr: eta_g > 0, a number or a schedule by round; 0.7 (the authors' code).
        momentum: beta in [0, 1); 0.6 (the authors' code).
        weighting: p_i `uniform` or by `examples`.

    Returns:
        A `FedOpt` whose local solver is `client.Optax(optax.contrib.muon, keep=True)`, with `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> MuLoCo().local.keeps_state
    True

    Reference: Therien, Huang, Rish and Belilovsky, "MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo",
    arXiv:2505.23725, 2025.
    """
    from optax.contrib import muon

    rule = ServerSGD(server_lr, momentum=momentum, nesterov=True)
    return FedOpt(_kept(muon, client_lr, weight_decay), rule, weighting=weighting, name="MuLoCo")


# GPA (Defazio et al. 2025): the smoothing of one replica of DiLoCo in a single loop.


@module
class PrimalAveraging(ServerOptimizer):
    """Generalised primal averaging around any optax optimiser (Defazio et al. 2025).

        z <- z + step of the optimiser on -D at y,   x <- mu_x x + (1 - mu_x) z,   y <- mu_y x + (1 - mu_y) z

    Clients get y, and x is evaluated. Weight decay acts on y. With SGD at rate lr, mu_x = b and mu_y = 1 is heavy ball
    with momentum b and rate lr (1 - b), mu_y = b Nesterov's momentum; mu_x = 0 is the optimiser itself.

    Args:
        base: the optimiser, `server.Optax(optax.adamw, learning_rate=...)` or another that asks for no loss.
        mu_x: weight of the last x, in [0, 1); a mean over about 1 / (1 - mu_x) rounds.
        mu_y: weight of x in y, in [0, 1].

    Raises:
        InvalidInput: no such optimiser, a number out of its range.
    """

    weighting: ClassVar[Weighting] = "uniform"

    base: OptaxRule
    _: KW_ONLY
    mu_x: Scalar = number(default=0.9967, at_least=0, below=1)
    mu_y: Scalar = number(default=0.7, at_least=0, at_most=1)

    def __post_init__(self) -> None:
        if type(self.base) is not OptaxRule:
            raise InvalidInput(f"base = {shown(self.base)} must be server.Optax of what asks for no loss")

    def init(self, params: Params) -> OptaxRuleState:
        first = self.base.init(params)
        return replace(first, optax=(first.optax, params, params))

    def step(
        self, params: Params, state: OptaxRuleState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, OptaxRuleState]:
        (inner, z, x), by = state.optax, self.base.transformation
        # the optimiser's step is taken at y
        change, inner = by.at(cohort.round).update(trees.scale(-1.0, delta), inner, params)
        z = trees.add(z, change)
        x = trees.axpy(1 - self.mu_x, trees.sub(z, x), x)
        y = trees.axpy(self.mu_y, trees.sub(x, z), z)
        rate = jnp.asarray(by.rate(cohort.round), state.server_lr.dtype)
        return y, OptaxRuleState((inner, z, x), rate)

    def evaluation_point(self, params: Params, state: OptaxRuleState) -> Params:
        # x, which averages z over the rounds
        return state.optax[2]


@by_name("GPA")
def GPA(
    server_lr: Rate = 1e-3, *, mu_x: Scalar = 0.9967, mu_y: Scalar = 0.7, weight_decay: Scalar = 0.0
) -> FedOpt:
    """GPA (Defazio et al. 2025): data-parallel AdamW whose iterates are averaged, DiLoCo's smoothing without its loop.

        client i in S:  g_i = mean gradient at y of its K minibatches, D_i = -g_i
        server:         g = mean over S of g_i,   m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
                        z <- z - eta_g (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + 1e-8) + lambda y)
                        x <- mu_x x + (1 - mu_x) z,   y <- mu_y x + (1 - mu_y) z

    x is evaluated. Let all clients take part, with `local_steps=1` or as many microbatches as a step shall have. One
    replica of DiLoCo with H steps and momentum 0.9 is near mu_x = 0.9^(1/H): 0.9934 of 16, 0.9984 of 64.

    Up: D_i (d numbers) and the mean loss. Down: y. Kept: z, x, m and v on the server (4 d; b1 = 0.9, b2 = 0.999).

    Args:
        server_lr: eta_g > 0, a number or a schedule by round, in units of a parameter (1e-3, the authors' README).
        mu_x: in [0, 1); 0.9967 (the authors' code).
        mu_y: in [0, 1]; 0.7 (the authors' code).
        weight_decay: lambda, at least 0, decoupled, of y; 0 (the authors' code).

    Returns:
        A `FedOpt` of `client.Gradient` and `server.PrimalAveraging` around `server.Optax(optax.adamw)`.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Defazio, Mishchenko, Raman, Shi and Xiao, "Smoothing DiLoCo with Primal Averaging for Faster Training of
    LLMs", arXiv:2512.17131, 2025; update and constants as the authors' code has them.
    """
    import optax

    check_range("weight_decay", weight_decay, at_least=0)
    rate = as_rate("server_lr", server_lr)
    base = ServerOptax(optax.adamw, learning_rate=rate, weight_decay=weight_decay)
    return FedOpt(Gradient(), PrimalAveraging(base, mu_x=mu_x, mu_y=mu_y), name="GPA")
