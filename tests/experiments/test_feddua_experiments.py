"""The FedDuA experiments: a tiny run of each, and their verdicts on made-up numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.experiments import feddua_claims as claimed
from fedsolve.experiments import feddua_combination_claims as combined
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.feddua_combination_claims import FEDPROX, LOCALS, PLAIN, SCAFFOLD, Finals
from fedsolve.experiments.feddua_methods import METHODS, MeanOfTwo, family
from fedsolve.experiments.feddua_sweeps import positive
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep
from fedsolve.studies.kept_sweeps import joined, until

SMALL = {"num_clients": 3, "examples_per_client": 4, "features": 10}


@pytest.mark.full
@pytest.mark.parametrize("name", ["feddua-synthetic", "feddua-combinations"])
def test_quick_run_writes_everything(name, tmp_path):
    made = reproduce(name, tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert found["claims"]
    assert found["deviations"]
    assert {c["verdict"] for c in found["claims"]} == {None}
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)
    assert all((tmp_path / f"{key}.csv").exists() for key in made.outcome.tables)
    assert list((tmp_path / "parts").iterdir())


def test_the_grids_are_the_papers():
    """Appendix G.3: half decades, no second knob where epsilon = epsilon_g = 0."""
    exponents = {
        name: {axis: np.log10(values).round(6).tolist() for axis, values in method.grid.items()}
        for name, method in METHODS.items()
    }
    client = [-3, -2.5, -2, -1.5, -1]
    for name in ("FedExP", "FedDuAdagrad", "FedExPM", "FedDuAdam"):
        assert exponents[name] == {"client_lr": client}
    for name in ("FedAvg", "FedAvgM"):
        assert exponents[name] == {"client_lr": client, "server_lr": [-1, -0.5, 0, 0.5, 1]}
    for name in ("FedAdagrad", "FedAdam"):
        assert exponents[name] == {"client_lr": client, "server_lr": [-2, -1.5, -1, -0.5, 0]}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_rates_of_its_grid(name):
    """And the further ones that figures vary; it is judged at the iterate that the paper means."""
    method = METHODS[name]
    rates = {axis: values[0] for axis, values in method.grid.items()}
    built = method.judged(**rates)
    assert isinstance(built, MeanOfTwo) == method.averaged
    inner = built.inner if method.averaged else built
    assert inner.local.lr == rates["client_lr"]
    if method.server_lr:
        assert inner.server_optimizer.lr == rates["server_lr"]


def test_mean_of_two_is_judged_at_the_mean_and_trains_from_the_last():
    """Its train_loss is the train_loss_averaged of the method alone."""
    task = fs.tasks.build("regression", **SMALL)
    method = METHODS["FedExP"].build(client_lr=0.1)
    alone = fs.run(method, task, rounds=4, eval_every=1, dtype="float64")
    judged = fs.run(MeanOfTwo(method), task, rounds=4, eval_every=1, dtype="float64")
    np.testing.assert_allclose(judged.metrics["train_loss"], alone.metrics["train_loss_averaged"], rtol=1e-12)
    assert not np.allclose(judged.metrics["train_loss"][1:], alone.metrics["train_loss"][1:])


def made_up(losses, seeds=(0,), diverged=None, grid=None):
    """A sweep of one axis: losses of shape (settings, seeds, evaluations) at rounds 0, 2, 4, ..."""
    losses = np.asarray(losses, float)
    lost = np.full(losses.shape[:2], -1) if diverged is None else np.asarray(diverged)
    rounds = 2 * np.arange(losses.shape[2])
    axes = grid or {"eps_g": tuple(10.0**k for k in range(len(losses)))}
    return Sweep(
        "A", "made up", axes, seeds, rounds, {"train_loss": losses}, lost, Selection("train_loss", 1)
    )


def test_sweeps_joined_and_cut():
    one, two = (
        made_up([[[4, 3, 2]], [[4, 2, 1]]]),
        made_up([[[4, 3, 1]], [[4, 1, np.nan]]], (7,), [[-1], [3]]),
    )
    both = joined([one, two])
    assert both.seeds == (0, 7)
    assert both.best == 0  # setting 1 diverged with seed 7
    assert both.score[0] == pytest.approx(1.5)
    early = until(both, 2, Selection("train_loss", 1))
    assert early.best == 1  # it had not yet diverged
    assert early.score.tolist() == [3, 1.5]


def test_settings_at_zero_are_left_out_of_a_log_axis():
    """Settings stay with their values."""
    sweep = made_up(
        [[[5, 1]], [[5, 3]], [[5, 2]], [[5, 6]]], grid={"client_lr": (0.1, 1.0), "eps_g": (0.0, 1e-1)}
    )
    found = positive(sweep, "eps_g")
    assert found.grid["eps_g"] == (1e-1,)
    assert found.score.tolist() == [3, 6]
    assert found.best_settings == {"client_lr": 0.1, "eps_g": 1e-1}


def test_final_verdicts():
    base = {name: np.array([1.0, 1.0]) for name in family(False)}

    def rule(ours):
        return claimed.claim_final(False, base | {"FedDuAdagrad": np.array(ours)}).verdict

    assert rule([0.5, 0.9]) == "reproduced"
    assert rule([0.1, 2.0]) == "partly"  # geometric mean 0.45
    assert rule([0.9, 2.0]) == "not reproduced"


def test_speed_verdicts():
    rounds = np.array([0, 2, 4, 6])
    slow, fast = np.array([[9.0, 5.0, 0.9, 0.05]]), np.array([[9.0, 0.9, 0.05, 0.01]])

    def rule(**curves):
        return claimed.claim_speed(rounds, curves, (1.0, 0.1)).verdict

    assert rule(FedAvg=slow, FedDuAdagrad=fast) == "reproduced"
    assert rule(FedAvg=fast, FedDuAdagrad=slow) == "not reproduced"
    assert rule(FedAvg=slow, FedDuAdagrad=slow) == "not reproduced"  # a tie is not first
    back = np.array([[9.0, 0.5, 2.0, 0.5]])  # it must stay there
    assert claimed.first_to(rounds, back, 1.0) == 6
    assert claimed.first_to(rounds, back, 0.1) == np.inf
    assert claimed.first_to(rounds, np.array([[9.0, np.nan, 0.1, 0.1]]), 1.0) == 4


def test_sensitivity_verdicts():
    def both(a, b):
        return {"FedDuAdagrad": a, "FedDuAdam": b}

    flat = [claimed.claim_flat(both(*s), "").verdict for s in ((1.1, 2.0), (1.1, 2.1), (3.0, 2.1))]
    assert flat == ["reproduced", "partly", "not reproduced"]
    fedopt = {"FedAdagrad": 3.0, "FedAdam": 3.0}
    less = [claimed.claim_less_sensitive(both(*s), fedopt, "").verdict for s in ((1, 2), (1, 4), (3, 4))]
    assert less == ["reproduced", "partly", "not reproduced"]
    zero = [claimed.claim_zero(both(*s), both(1.0, 1.0)).verdict for s in ((1.1, 0.5), (1.1, 1.2), (2, 2))]
    assert zero == ["reproduced", "partly", "not reproduced"]
    assert claimed.spread(np.array([1.0, np.inf])) == np.inf


def test_epsilon_verdicts():
    eps = (1e-9, 1e-3, 1.0)

    def rule(losses, zero):
        return claimed.claim_eps({"A": np.array(losses)}, {"A": zero}, eps).verdict

    assert rule([1.0, 0.97, 2.0], 1.0) == "reproduced"  # 3 % is no fall
    assert rule([1.0, 0.5, 2.0], 1.0) == "partly"  # a larger epsilon is better
    assert rule([1.0, 0.5, 0.4], 1.5) == "not reproduced"


def test_best_along_takes_the_best_over_the_rest_within_limits():
    sweep = made_up(
        [[[5, 4]], [[5, 3]], [[5, 2]], [[5, 6]]], grid={"client_lr": (0.1, 1.0), "eps_g": (1e-3, 1e-1)}
    )
    assert claimed.best_along(sweep, "eps_g").tolist() == [2, 3]
    assert claimed.best_along(sweep, "eps_g", 1e-2).tolist() == [3]


RULES = ("FedAvg", "FedAdagrad", "FedAdam", "FedDuAdagrad", "FedDuAdam")


def finals(loss=True, **changed):
    """A problem on which FedDuA is ahead under each local training, and SCAFFOLD with it ahead of all."""
    value = {(local, rule): 4.0 if rule == "FedAvg" else 3.0 for local in LOCALS for rule in RULES[:3]}
    value |= {(local, rule): 1.0 if local == SCAFFOLD else 2.0 for local in LOCALS for rule in RULES[3:]}
    value |= {tuple(key.split("__")): v for key, v in changed.items()}
    value = {k: v if loss else 100 - v for k, v in value.items()}
    return Finals("made up", value, dict.fromkeys(value, 5.0), "a target", loss)


@pytest.mark.parametrize("loss", [True, False])
def test_combination_verdicts(loss):
    def verdicts(**changed):
        return [c.verdict for c in combined.claims([finals(loss, **changed)])]

    assert verdicts() == ["reproduced"] * 5
    assert verdicts(SCAFFOLD__FedAvg=3.0)[0] == "not reproduced"
    alone = {f"{PLAIN}__FedDuAdam": 0.4}
    assert verdicts(**alone)[1] == "partly"  # FedDuA alone is ahead of SCAFFOLD with it
    behind = {f"SCAFFOLD__{rule}": 5.0 for rule in RULES[3:]}
    assert verdicts(**behind)[1] == "not reproduced"
    assert verdicts(**behind)[3] == "not reproduced"
    assert verdicts(FedProx__FedAvg=1.0)[2] == "partly"  # one of five server steps
    assert verdicts(**{f"FedProx__{rule}": 0.1 for rule in RULES})[2] == "not reproduced"
    assert verdicts(FedProx__FedAdam=1.0)[4] == "partly"  # FedDuAdam is behind its counterpart


def test_clearly_better_has_a_margin():
    close = {f"{PLAIN}__FedAdam": 2.95}
    assert not finals(True, **close).better((PLAIN, "FedAdam"), (PLAIN, "FedAdagrad"))  # 2 % of a loss
    assert not finals(False, **close).better((PLAIN, "FedAdam"), (PLAIN, "FedAdagrad"))  # 0.05 points
    assert combined.name(FEDPROX, "FedAvg") == "FedProx"


@pytest.mark.full
def test_digits_of_the_combinations():
    """A problem's own sweep: seeds are of the run, test accuracy is measured."""
    from fedsolve.experiments.feddua_combination_runs import QUICK, digits
    from fedsolve.experiments.feddua_combination_runs import combined as build

    problem = digits(QUICK)
    assert problem.grid(FEDPROX, "FedAvg") == {"client_lr": (0.3,), "server_lr": (3.0,), "mu": (0.1,)}
    method = build("FedDuAdam", SCAFFOLD, problem.eps)(0.3)
    task = fs.tasks.digits(num_clients=5, model="softmax")
    found = fs.run(method, task, rounds=2, local_steps=2, batch_size=10)
    assert np.isfinite(found.metrics["test_accuracy"]).all()
