"""DiLoCo and MuLoCo: many local steps of AdamW or Muon with stored moments, Nesterov momentum on the server."""

from __future__ import annotations

from fedsolve.core.building import by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Scalar, Weighting
from fedsolve.methods.client.optax import Optax
from fedsolve.methods.server.fedopt import FedOpt
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
    import optax

    check_range("weight_decay", weight_decay, at_least=0)
    rate = as_rate("client_lr", client_lr)
    local = Optax(optax.adamw, keep=True, learning_rate=rate, weight_decay=weight_decay)
    rule = server_optimizer
    if rule is None:
        rule = ServerSGD(server_lr, momentum=momentum, nesterov=True)
    return FedOpt(local, rule, weighting=weighting, name="DiLoCo")


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
    import optax

    check_range("weight_decay", weight_decay, at_least=0)
    rate = as_rate("client_lr", client_lr)
    local = Optax(optax.contrib.muon, keep=True, learning_rate=rate, weight_decay=weight_decay)
    rule = ServerSGD(server_lr, momentum=momentum, nesterov=True)
    return FedOpt(local, rule, weighting=weighting, name="MuLoCo")
