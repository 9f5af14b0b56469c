"""Cox's model and Kaplan-Meier curves over a federation's rows: those of `fs.stats`, plain and under secure sums."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsolve as fs
from fake_grid import FakeGrid
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.server.server import server_app
from fedsolve.stats.hazards import CoxRequest
from fedsolve.stats.survival import SurvivalRequest

pytest.importorskip("formulaic")
RNG = np.random.default_rng(0)
SITES = [
    {
        "age": RNG.normal(50, 10, n),
        "treated": RNG.integers(0, 2, n),
        "arm": RNG.choice(["new", "old"], n),
        "days": RNG.exponential(300, n),
        "died": RNG.random(n) < 0.6,
    }
    for n in (140, 90, 120)
]


def analyse(folder, request, *, min_rows=10, secure=False, allowed=("cox", "kaplan_meier")):
    def no_model(node):
        raise AssertionError("statistics need no model")

    app = client_app(
        no_model,
        statistics=lambda node: SITES[node.client],
        analyses=allowed,
        min_rows=min_rows,
        **({"min_sum": 3} if secure else {}),
    )
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=3)
    config = {"job": "analysis", "analysis": request.to_json(), "out": str(folder / "run")}
    config |= {"connect-seconds": 0.2, "round-seconds": 0.1, "secure": secure}
    grid = FakeGrid(app, [0, 1, 2], folder / "nodes", None, None, config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return fs.stats.load(folder / "run")


COX = CoxRequest("days", "died", "age + treated")
BINNED = CoxRequest("days", "died", "age + treated", strata=None, interval=30.0)


@pytest.mark.parametrize("request_", [COX, BINNED], ids=["site", "grid"])
def test_coefficients_are_those_of_the_simulation(tmp_path, request_):
    words = {"strata": request_.strata, "interval": request_.interval}
    wanted = fs.stats.cox(SITES, "days", "died", "age + treated", **words)
    found = analyse(tmp_path / "plain", request_)
    assert repr(found.summary()).replace("client", "site") == repr(wanted.summary()).replace("client", "site")
    assert np.array_equal(found.coefficients, wanted.coefficients)
    secure = analyse(tmp_path / "secure", request_, secure=True)
    np.testing.assert_allclose(secure.coefficients, wanted.coefficients, rtol=1e-10)
    np.testing.assert_allclose(secure.covariance, wanted.covariance, rtol=1e-10)
    np.testing.assert_allclose(secure.trends, wanted.trends, rtol=1e-8)


def test_curves_are_those_of_the_simulation(tmp_path):
    wanted = fs.stats.kaplan_meier(SITES, "days", "died", "arm", interval=30.0)
    found = analyse(tmp_path, SurvivalRequest("days", "died", "arm", 30.0))
    assert repr(found.summary()) == repr(wanted.summary())
    assert np.array_equal(found.at_risk, wanted.at_risk)
    one = fs.stats.kaplan_meier(SITES, "days", "died", interval=30.0)
    secure = analyse(tmp_path / "secure", SurvivalRequest("days", "died", None, 30.0), secure=True)
    assert np.array_equal(secure.at_risk, one.at_risk)
    assert np.array_equal(secure["all"].survival, one["all"].survival)


def test_times_are_told_to_whom_their_owner_allows_them(tmp_path):
    with pytest.raises(fs.InvalidInput, match="tells no single times"):
        analyse(tmp_path / "exact", CoxRequest("days", "died", "age", strata=None))
    with pytest.raises(fs.InvalidInput, match="no analysis 'kaplan_meier' is allowed here"):
        analyse(tmp_path / "curve", SurvivalRequest("days", "died"), allowed=("cox",))
