"""FedKSeed (Qin et al. 2024): steps along K candidate directions, and the model as K numbers."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace, static
from fedsolve.core.wire import Index, Initial
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.zeroth_order.directions import first_steps, gaussian, key_of, slope, walk
from fedsolve.methods.zeroth_order.rebuilt import RebuiltModel


@module
class KSeedServer:
    """The model w, the initial one w_0 (`()` where the model is sent), and A (seeds,)."""

    params: Params
    start: Params
    sums: Traced


@module
class KSeedBroadcast:
    """A (seeds,) and w_0 as leaves of the initial model, or the model; the number of the round."""

    params: Params
    start: Any
    sums: Any
    round: Scalar


@module
class KSeedMessage:
    """The candidate j of each local step, `seeds` where there was none, and the slope g along it, both (steps,)."""

    candidate: Index
    slope: Traced


@module
class KSeedSums:
    """Slopes added up by candidate, (seeds,)."""

    sums: Traced


@class_by_name("FedKSeed")
@module
class FedKSeed(RebuiltModel):
    """FedKSeed (Qin et al. 2024): zeroth-order local steps along K candidate directions z_j.

        client:  y = w;  for each local step a random j,
                 g = (f_i(y + mu z_j) - f_i(y - mu z_j)) / (2 mu),   y <- y - eta g z_j,   sends j and g
        server:  A_j <- A_j + eta sum_i p_i (sum of the g that client i sent with j)
                 w = w_0 - sum_j A_j z_j,   which clients compute too: they have w_0 and are sent A

    z_j is standard normal and follows from j alone, and a client's j from the number of the round, of the client and of
    the step. Up: j and g for each local step (2 and 4 bytes in float32, 4,096 candidates). Down: A (K numbers), however
    long a client was absent, and 8 bytes for each leaf of w_0, of which clients have copies; with down='model', w (d
    numbers). Kept: nothing on clients. Only losses are evaluated, two for each step. The model moves in K dimensions: K
    has to grow with what is to be learnt.

    Whoever rebuilds w draws K directions. In a simulation down='model' gives the same iterates, up to rounding, and
    saves that. On other hardware or with another version of JAX directions may differ in their last bits. The paper's
    second sampling, by the size of past slopes (FedKSeed-Pro), is left out. The paper adds g up and multiplies by eta
    afterwards; here A has eta in it, so that a rate may follow a schedule.

    Args:
        client_lr: eta > 0, a number or a schedule by round. 0.001 is the authors' code's; the paper tunes it.
        seeds: K, at least 1; 4,096 (paper and code).
        mu: smoothing, > 0, in units of the parameters; 0.0005 (the authors' code).
        most_steps: local steps of a client at most; later ones are left out. None: `fs.run` finds out where all clients
            take as many; a deployment must be told.
        down: what clients are sent, `scalars` or the `model`.
        weighting: p_i by `examples` (the authors' code) or `uniform`.

    Raises:
        InvalidInput: a number out of its range. When a run begins: unknown `most_steps`, or more steps than these. On a
            client: another initial model than the server's.

    Reference: Qin, Chen, Qian, Ding, Li and Deng, "Federated Full-Parameter Tuning of Billion-Sized Language Models
    with Communication Cost under 18 Kilobytes", ICML 2024.
    """

    name: ClassVar[str] = "FedKSeed"
    only_mean: ClassVar[str] = "clients step along different directions, whose slopes are added up"

    _: KW_ONLY
    seeds: int = static(default=4096)
    mu: Scalar = 5e-4
    weighting: Weighting = static(default="examples")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seeds", self.seeds, 1, bits=31)

    def first_state(self, broadcast: KSeedBroadcast) -> tuple[()]:
        """Nothing: the initial model is part of every broadcast."""
        return ()

    def init(self, params: Params) -> KSeedServer:
        """The initial model, and A = 0."""
        sums = jnp.zeros(self.seeds, trees.dtype_of(params))
        return KSeedServer(params, params if self.rebuilds else (), sums)

    def broadcast(self, server: KSeedServer, cohort: Cohort) -> KSeedBroadcast:
        """A, or the model."""
        if not self.rebuilds:
            return KSeedBroadcast(server.params, (), (), cohort.round)
        return KSeedBroadcast((), Initial.leaves_of(server.start), server.sums, cohort.round)

    def train(self, broadcast: KSeedBroadcast, client: Any, oracle: Oracle) -> tuple[KSeedMessage, Any]:
        """Rebuild the model, and take zeroth-order steps from it."""
        w = broadcast.params
        if self.rebuilds:
            w = walk(Initial.values_of(broadcast.start), broadcast.sums, _candidate)
        most = self.steps_sent
        rate, number = rate_at(self.client_lr, broadcast.round), jnp.asarray(oracle.client, jnp.uint32)

        def step(k: Scalar, carry: Any) -> Any:
            y, chosen, slopes = carry
            j = jax.random.randint(key_of(1, broadcast.round, number, k), (), 0, self.seeds, jnp.int32)
            z = gaussian(_candidate(j), y)
            g = slope(oracle, y, k, z, self.mu)
            return trees.axpy(-rate * g, z, y), chosen.at[k].set(j), slopes.at[k].set(g)

        none = jnp.full(most, self.seeds, jnp.int32), jnp.zeros(most, trees.dtype_of(w))
        _, chosen, slopes = local_loop(first_steps(oracle, most), step, (w, *none))
        return KSeedMessage(Index(chosen, self.seeds), slopes), client

    def receive(self, broadcast: KSeedBroadcast, message: KSeedMessage, client: Any) -> tuple[KSeedSums, Any]:
        """Slopes added up by candidate."""
        sums = jnp.zeros(self.seeds, message.slope.dtype)
        return KSeedSums(sums.at[message.candidate.value].add(message.slope, mode="drop")), client

    def update(self, server: KSeedServer, message: KSeedSums, cohort: Cohort) -> KSeedServer:
        """Add to A, and rebuild the model."""
        change = (rate_at(self.client_lr, cohort.round) * message.sums).astype(server.sums.dtype)
        sums = server.sums + change
        # as clients do, to the bit; else along the few directions that changed
        start, lengths = (server.start, sums) if self.rebuilds else (server.params, change)
        return replace(server, params=walk(start, lengths, _candidate), sums=sums)


def _candidate(j: Any) -> Any:
    """The key of z_j."""
    return key_of(0, j)
