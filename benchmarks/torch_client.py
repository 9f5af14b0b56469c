"""One client's round behind a PyTorch module: fedsolve's compiled local work against a plain PyTorch loop.

    python benchmarks/bench.py torch-client

20 steps of plain SGD on batches of 32 of the digits CNN (1x8x8, 151,306 parameters), the data in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import fedsolve as fs
from fedsolve.core.algorithm import Cohort
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.oracles.torch import TorchOracle

RATE, BATCH, STEPS = 0.05, 32, 20
cross_entropy = nn.functional.cross_entropy


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((BATCH * STEPS, 1, 8, 8), np.float32))
    y = torch.from_numpy(rng.integers(0, 10, BATCH * STEPS))
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def plain_loop() -> Callable[[], None]:
    """A round from the same start each time, as a hand-written client does it."""
    torch.manual_seed(0)
    model, batches = make_model(), make_batches()
    start = {name: v.clone() for name, v in model.state_dict().items()}

    def one_round() -> None:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for x, y in batches:
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()

    one_round()
    return one_round


def fedsolve_client(method: fs.Algorithm | None = None) -> Callable[[], None]:
    """The same round as the compiled local work of a method (FedAvg)."""
    torch.manual_seed(0)
    algorithm = fs.FedAvg(RATE) if method is None else method
    problem = TorchOracle(make_model(), cross_entropy, make_batches())
    server = algorithm.init(jax.tree.map(jnp.asarray, problem.params))
    broadcast = algorithm.broadcast(server, Cohort(jnp.int32(0), jnp.int32(1), 1))
    state = algorithm.init_client(broadcast)
    oracle = problem.begin(jax.random.key(0), 0, jnp.float32)

    def local_work(oracle: fs.Oracle) -> object:
        return algorithm.train(broadcast, state, oracle)

    train = jax.jit(local_work, compiler_options=compiler_options())

    def one_round() -> None:
        jax.block_until_ready(train(oracle))

    one_round()
    return one_round


def programs() -> dict[str, Callable[[], None]]:
    return {
        "PyTorch loop": plain_loop(),
        "FedAvg": fedsolve_client(),
        "SCAFFOLD": fedsolve_client(fs.SCAFFOLD(RATE)),
    }
