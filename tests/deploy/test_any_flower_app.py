"""An app of Flower alone, which does not import fedsolve, behind `fedsolve federate node`."""

from __future__ import annotations

import re
import time

import pytest

from fedsolve.cli.federation.local import LocalFederation

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
READINGS = np.random.default_rng(0).normal(3.0, 1.0, 100)  # made once, not once a message


@app.train()
def train(message, context):
    mean = message.content["arrays"]["mean"].numpy()
    arrays = ArrayRecord({"mean": Array(mean + 0.5 * (READINGS.mean() - mean))})
    metrics = MetricRecord({"num-examples": len(READINGS)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""
PROJECT = """
[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
packages = ["plain"]
[tool.flwr.app]
publisher = "plain"
fab-include = ["plain/*.py"]
[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
[tool.flwr.app.config]
out = ""
"""
SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    result = strategy.start(grid, ArrayRecord({"mean": Array(np.zeros(1))}), num_rounds=3)
    Path(context.run_config["out"]).write_text(repr(float(result.arrays["mean"].numpy()[0])))
"""
MORE = """
import os

print("worker", os.getpid(), "fedsolve" in __import__("sys").modules and "with", flush=True)
"""


@pytest.mark.alone
@pytest.mark.full
def test_an_app_of_flower_stays_loaded(tmp_path):
    """Three rounds halve the distance to the mean thrice; each node imports the app once."""
    assert "fedsolve" not in CLIENT
    app = tmp_path / "plain"
    (app / "plain").mkdir(parents=True)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT + MORE)):
        (app / "plain" / f"{name}.py").write_text(text)
    (app / "pyproject.toml").write_text(PROJECT)
    out = tmp_path / "mean"
    with LocalFederation(tmp_path / "flower", 2) as federation:
        run = federation.submit(app, {"out": str(out)})
        end = time.monotonic() + 200
        while not out.exists():
            assert time.monotonic() < end, federation.log(run)
            time.sleep(0.3)
    readings = {}
    exec(CLIENT, readings)
    assert float(out.read_text()) == pytest.approx((1 - 0.5**3) * readings["READINGS"].mean())
    for node in range(2):
        log = (federation.folder / f"client-{node}.log").read_text()
        assert len(re.findall(r"^worker \d+", log, re.MULTILINE)) == 1
        assert log.count("Sent successfully") >= 3
