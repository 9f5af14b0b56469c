"""A real federation under secure sums: ten nodes, three of them lost in each stage of a round."""

from __future__ import annotations

import numpy as np
import pytest
import real_app
from safetensors.numpy import load_file
from test_federation import RATE, finished, rows, same_bits, submit, wait

import fedsolve as fs
from fedsolve.cli.federation.local import LocalFederation

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.full]
METHOD = "Secure+FedAvg"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sums")
    app = real_app.write(folder, 10)
    with LocalFederation(folder / "flower", 10, environment={"JAX_PLATFORMS": "cpu"}) as running:
        running.app = app
        yield running


def simulated(rounds):
    task = fs.tasks.digits(num_clients=10, partition="iid")
    method = fs.build(METHOD, {"client_lr": RATE} | real_app.SETTINGS[METHOD])
    return fs.run(method, task, rounds=rounds, chunk=1, eval_every=rounds)


def test_the_bits_of_the_simulation(federation, tmp_path):
    """Two rounds with all ten nodes; a round has two trips more than the enrolment."""
    submit(federation, tmp_path, METHOD, 2)
    wait(federation, tmp_path, lambda: finished(tmp_path), 600)
    same_bits(tmp_path, simulated(2).params)


def test_three_of_ten_are_lost_in_each_stage(federation, tmp_path):
    """Round 1 loses three while they train, round 2 three when they are asked for shares, round 3 one of each.

    Seven of ten members open a sum. The server counts the replies that are in it, and each killed client's next message
    is answered: its keys are on disk.
    """
    stages = {1: ("die",) * 3, 2: ("die-opening",) * 3, 3: ("die", "die-opening", "die-opening")}
    faults = [
        f"{round}:{client}:{what}" for round, kinds in stages.items() for client, what in enumerate(kinds)
    ]
    settings = {"fault": ",".join(faults), "min-replies": 7, "round-seconds": 60.0, "grace": 20.0}
    submit(federation, tmp_path, METHOD, 4, **settings)
    history = wait(federation, tmp_path, lambda: finished(tmp_path), 900)
    lost = history.rounds["dropped"].tolist()
    assert lost[0] >= 3, rows(tmp_path)
    assert lost[2] >= 1, rows(tmp_path)
    assert all(n <= 5 for n in lost)
    model = load_file(tmp_path / "model.safetensors")
    assert all(np.isfinite(x).all() for x in model.values())
    assert history.final("test_accuracy") > 0.5
