"""The app in examples/ on a real federation: what it learns is what the simulation learns from the same readings."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsolve as fs
from fedsolve.cli.federation.local import LocalFederation
from fedsolve.deploy.run_log import FAILED
from fedsolve.results.history import History

APP = Path(__file__).parents[2] / "examples" / "flower-app"


@pytest.mark.alone
@pytest.mark.full
def test_the_example_app_is_the_simulation(tmp_path, monkeypatch):
    """Five rounds of three houses; the model to rounding, and the loss of a house that took no part."""
    out = tmp_path / "run"
    with LocalFederation(tmp_path / "flower", 3, environment={"JAX_PLATFORMS": "cpu"}) as federation:
        run = federation.submit(APP, {"rounds": 5, "out": str(out)})
        end = time.monotonic() + 300
        while not (out / "history.json").exists():
            assert time.monotonic() < end, federation.log(run)
            assert not (out / FAILED).exists(), (out / FAILED).read_text()
            time.sleep(0.3)
    history = History.from_json((out / "history.json").read_text())
    assert history.total("rejected") == 0
    monkeypatch.syspath_prepend(str(APP))
    from heatpumps.problem import START, loss, readings

    clients = [fs.Examples(*readings(house)) for house in range(3)]
    task = fs.Task.from_arrays(loss, START, clients, test=fs.Examples(*readings(1000)), batch_size=20)
    result = fs.run(fs.SCAFFOLD(0.05), task, rounds=5, chunk=1)
    got = load_file(out / "model.safetensors")
    for name in START:
        np.testing.assert_allclose(got[f"model.{name}"], result.params[name], rtol=1e-5)
    assert history.final("test_loss") == pytest.approx(result.history.final("test_loss"), rel=1e-5)
    assert history.final("test_loss") < 0.1 * history.evaluations["test_loss"][0]
    monkeypatch.delitem(sys.modules, "heatpumps.problem")
