"""Privacy and robust reductions in a deployment: the simulation's mechanism, noise that cannot be repeated."""

import jax
import numpy as np
import pytest
from deploy_small import POPULATION, deploy

import fedsolve as fs
from conformance.properties import close, compiled
from fedsolve.deploy.message import check_buffers
from harness import Listed

PRIVACY = {"population": POPULATION, "delta": 1e-5, "sampling": "none"}
EVERYBODY = Listed.of([list(range(POPULATION))] * 3)


def flat(params):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


def dp(noise, at="server", **more):
    return fs.DifferentialPrivacy(fs.FedDuAdam(0.3), noise, 0.5, cohort=POPULATION, at=at, **PRIVACY, **more)


@pytest.mark.parametrize("at", ["server", "client"])
def test_clipping_is_the_simulation(at, tmp_path):
    """With noise of 1e-13 of the clip norm: the models agree to 1e-9, wherever it is clipped."""
    method = dp(1e-13, at)
    setup, state, _ = compiled(method, sampling=EVERYBODY)
    model, history, _ = deploy(method, tmp_path, sampling=EVERYBODY)
    with jax.enable_x64(True):
        close(flat(model), flat(setup.algorithm.export(state.server)), 1e-9)
    assert "client_loss" not in history.rounds  # it would tell more than the noisy sum does


def test_noise_is_not_the_seeds(tmp_path):
    """Two runs of one seed differ by their noise; epsilon of every round is the simulation's."""
    method = dp(1.0, clipping="adaptive")
    one, history, _ = deploy(method, tmp_path / "a", sampling=EVERYBODY)
    two, *_ = deploy(method, tmp_path / "b", sampling=EVERYBODY)
    assert np.abs(flat(one) - flat(two)).min() > 0
    _, _, logs = compiled(method, sampling=EVERYBODY)
    np.testing.assert_allclose(history.rounds["epsilon"], logs["epsilon"], rtol=1e-12)
    assert (np.diff(history.rounds["epsilon"]) > 0).all()


def test_a_round_without_replies_still_costs(tmp_path):
    """Round 2 is skipped: its noise is added and counted, as if nobody had come."""
    method = dp(1.0)

    def lose(node, what, content):
        return None if what == "train" and content["reply"]["round"] == 1 else content

    _, history, _ = deploy(method, tmp_path, sampling=EVERYBODY, tamper=lose, shortfall="skip")
    _, _, logs = compiled(method, sampling=EVERYBODY)
    np.testing.assert_allclose(history.rounds["epsilon"], logs["epsilon"], rtol=1e-12)
    assert history.rounds["dropped"].tolist() == [0, POPULATION, 0]


def test_a_client_adds_its_own_noise(tmp_path):
    method = fs.LocalDifferentialPrivacy(fs.FedExP(0.3), 0.5, noise_multiplier=1.0, delta=1e-5)
    one, history, _ = deploy(method, tmp_path / "a")
    two, *_ = deploy(method, tmp_path / "b")
    assert np.abs(flat(one) - flat(two)).min() > 0
    assert (history.rounds["epsilon"] > 0).all()


def test_a_sampling_that_is_not_accounted_for(tmp_path):
    method = fs.DifferentialPrivacy(fs.FedExP(0.3), 1.0, 0.5, cohort=2, population=POPULATION, delta=1e-5)
    with pytest.raises(fs.InvalidInput, match="accounts for cohort = 2 but the run draws 6 clients"):
        deploy(method, tmp_path)


def test_what_travels_beside_is_refused():
    with pytest.raises(
        fs.InvalidInput, match=r"protects the model, not what is averaged beside it \(1.running_mean\)"
    ):
        check_buffers(dp(1.0), {"1.running_mean": np.zeros(2)})
    check_buffers(fs.FedAvg(0.1), {"1.running_mean": np.zeros(2)})


def test_an_attacker_is_outvoted(tmp_path):
    """One of six sends a thousand times its update: the median stays near the honest run, the mean does not."""
    attacked = {}
    for name, method in {"mean": fs.FedAvg(0.3), "median": fs.Robust(fs.FedAvg(0.3), fs.Median())}.items():
        evil = fs.Attacked(method, fs.Scaled(1000.0), (2,))
        attacked[name] = flat(deploy(evil, tmp_path / name)[0])
        attacked[f"honest {name}"] = flat(deploy(method, tmp_path / f"honest-{name}")[0])
    assert np.abs(attacked["median"] - attacked["honest median"]).max() < 0.5
    assert np.abs(attacked["mean"] - attacked["honest mean"]).max() > 10
