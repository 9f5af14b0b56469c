"""Flower's simulation engine: what ends it reaches the user. (The engine itself, Ray, is tried by hand.)"""

import logging
import time

import pytest

import fedsolve as fs
from deploy_small import CLIENTS, start
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server.serve import Deployment, serve
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.signature import signature
from fedsolve.deploy.status import ClientStatuses


class InMemoryGrid(FakeGrid):
    """Named as Flower's own grid of simulations, whose engine stops when the clients are asked who they are."""

    def push_messages(self, messages):
        logging.getLogger("flwr").error("An exception occured!! %s", "ActorPool is empty. Check `num_cpus`")
        return [f"lost-{i}" for i, _ in enumerate(messages)]

    def pull_messages(self, message_ids):
        return []


def test_the_end_of_flowers_simulation_engine_is_told_at_once(tmp_path):
    """Its cause, in place of a minute's wait for clients that nobody simulates any more."""
    grid, began = InMemoryGrid(CLIENTS, [0, 1], tmp_path), time.monotonic()
    settings = Settings(rounds=1, population=2, connect_seconds=60.0, out=str(tmp_path / "server"))
    with pytest.raises(
        Unavailable, match=r"engine has stopped, no client runs: ActorPool is empty\. Check `num_cpus`"
    ):
        serve(grid, Deployment.of(fs.FedAvg(0.1), start(), settings))
    assert time.monotonic() - began < 30
    assert "ActorPool is empty" in (tmp_path / "server" / FAILED).read_text()
    assert not [h for h in logging.getLogger("flwr").handlers if type(h).__module__.startswith("fedsolve")]
    simulated = pytest.raises(
        Unavailable, match=r"\(missing: 2\).*simulate num-supernodes=3, and give Ray more"
    )
    with simulated:
        ClientRegistry(
            type("InMemoryGrid", (FakeGrid,), {})(CLIENTS, [0, 1], tmp_path),
            Settings(rounds=1, population=3, out=str(tmp_path)), "one", signature(start()), ClientStatuses(3), print,
        ).wait_for_quorum(3, 0.01)  # fmt: skip
