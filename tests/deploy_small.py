"""A small federation on the fake grid: the problem of the conformance tests, and runs of it."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedsolve as fs
from conformance.properties import START, compiled, model, task
from fake_grid import FakeGrid, over_the_wire
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.server.serve import Deployment, serve
from fedsolve.deploy.server.settings import Settings

POPULATION = 6
PROBLEM = task((7, 4) * 3)
"""Two sizes of clients, in turn, those of test_messages: a client's training is one program a size."""


def distance(params: Any, x: Any) -> Any:
    """Mean square of x - w of a model {"w": w}."""
    return jnp.mean((x - params["w"]) ** 2)


def round_lines(folder: Path) -> list[Any]:
    """What the server wrote of its rounds."""
    return [json.loads(line) for line in (folder / "server" / ROUNDS).read_text().splitlines()]


def clients_of(problem: fs.Task, params: Any = None, **owner: Any) -> ClientApp:
    """The client app of a task's clients, each checked and made once: no message changes it."""
    oracle_of = cache(partial(JaxOracle.of_task, problem, params=params))
    return client_app(lambda node: oracle_of(node.client), **owner)


CLIENTS = clients_of(PROBLEM)


def simulated(algorithm: fs.Algorithm, problem: fs.Task = PROBLEM, **options: Any) -> Any:
    """The same in the compiled engine: the set-up, the last state, the logs."""
    return compiled(algorithm, problem, **options)


def start(dtype: str = "float64") -> Any:
    return jax.tree.map(lambda x: np.asarray(x, dtype), model(START))


def deploy(
    algorithm: fs.Algorithm,
    folder: Path,
    *,
    app: ClientApp | None = None,
    tamper: Any = None,
    dishonest: Any = None,
    sampling: Any = None,
    params: Any = None,
    clients: list[Any] | None = None,
    evaluate: Any = None,
    callbacks: Any = (),
    deaf: Any = (),
    slow: Any = (),
    keys: Any = (),
    buffers: Any = None,
    **settings: Any,
) -> tuple[Any, Any, FakeGrid]:
    """Serve a method on a fake grid of all clients: the model, the record and the grid."""
    given = {"rounds": 3, "population": POPULATION, "connect_seconds": 0.2, "round_seconds": 0.2} | settings
    given.setdefault("out", str(folder / "server"))
    app = app or CLIENTS
    grid = FakeGrid(
        app, list(range(given["population"])) if clients is None else clients, folder, tamper, dishonest
    )
    grid.deaf |= set(deaf)
    grid.slow |= dict(slow)
    grid.keys |= dict(keys)
    params = start() if params is None else params
    given |= {"sampling": sampling, "buffers": buffers, "evaluate": evaluate, "callbacks": callbacks}
    deployment = Deployment.of(algorithm, params, Settings(**given))
    found, history = serve(grid, deployment)
    return found, history, grid


def ask(app: ClientApp, record: RecordDict, folder: Path, client: int = 0, kind: str = "train") -> RecordDict:
    """What a client's app answers to a record, both through Flower's bytes."""
    FakeGrid(app, [client], folder)  # the identity that Flower's messages ask for
    message = Message(over_the_wire(record), dst_node_id=101, message_type=kind)
    message.metadata.__dict__["_message_id"] = "message-0"
    config = {"client-id": client, "state-dir": str(folder)}
    return over_the_wire(app(message, Context(1, 101, config, RecordDict(), {})).content)


def misfit(params: Any, rows: Any) -> Any:
    """Least squares, every target 1."""
    return jnp.mean(jnp.square(rows @ params["w"] - 1))


ROWS = np.random.default_rng(0).standard_normal((POPULATION, 3, 17), np.float32) / 4
QUICK = fs.Task(
    "quick", lambda key: {"w": START}, misfit, fs.FederatedData.from_clients(list(ROWS)),
    batch_size=None, local_steps=2, epochs=None,
)  # fmt: skip
"""One array as the model, clients of one size and two steps on all examples: programs of a quarter of the time."""
QUICK_START = {"w": START}
deploy_quick = partial(deploy, app=clients_of(QUICK), params=QUICK_START)
