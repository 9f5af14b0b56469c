"""What the tests of clients' oracles share: one client's local work as a deployment compiles it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Cohort
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.engine.compute.casting import cast


def key(seed: int = 3) -> Any:
    return jax.random.key(seed, impl="threefry2x32")


@partial(jax.jit, compiler_options=compiler_options())
def train(algorithm: Any, broadcast: Any, state: Any, oracle: Any) -> Any:
    return algorithm.train(broadcast, state, oracle)


def local_work(
    algorithm: Any, problem: LocalProblem, params: Any, dtype: str = "float32", seed: int = 3, client: int = 5
) -> Any:
    """Message and state after one client's first round from these parameters."""
    algorithm = cast(algorithm, dtype)
    start = jax.tree.map(lambda p: jnp.asarray(p, dtype), params)
    server = algorithm.init(start)
    broadcast = algorithm.broadcast(server, Cohort(jnp.int32(0), jnp.int32(1), 6))
    found = train(
        algorithm, broadcast, algorithm.enrol(broadcast, start), problem.begin(key(seed), client, dtype)
    )
    return jax.device_get(found)


def same(a: Any, b: Any) -> bool:
    """Whether two pytrees hold the same bits."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def far(a: Any, b: Any) -> float:
    """Largest distance of two pytrees' leaves, in units of the second's largest entry (at least 1)."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - y).max() / max(np.abs(y).max(), 1)) for x, y in leaves)
