"""fedopt-tuning: verdicts by rule on made-up numbers, what is taken from a sweep, and a run in small."""

from dataclasses import replace

import numpy as np
import pytest

from fedsolve.experiments import fedopt_cases
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.fedopt_cases import (
    ADAPTIVE,
    CASES,
    METHODS,
    Results,
    SmallCNN,
    at_tau,
    half_decades,
    solve,
)
from fedsolve.experiments.fedopt_claims import (
    best_clients,
    ease_verdict,
    gain_claim,
    gain_verdict,
    good_cells,
    inverse_verdict,
    rank_correlation,
    robust_verdict,
    tau_verdict,
)
from fedsolve.experiments.fedopt_tuning import outcome
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Context
from fedsolve.tasks.digits import digits

CASE = replace(
    CASES["digits"],
    client=(0.1, 1.0, 10.0),
    server=(0.01, 0.1, 1.0),
    taus=(1e-4, 1e-3, 1e-2),
    outside=None,
    rounds=4,
    every=1,
)


def made_up(method, loss, accuracy, seeds=(0,)):
    """A sweep over the case's grid with one loss and one accuracy a setting, the same in all looks."""
    grid = CASE.grid(method)
    looks = np.ones((1, len(seeds), 5))
    loss, accuracy = np.asarray(loss, float), np.asarray(accuracy, float)
    metrics = {
        "train_loss": loss.reshape(-1, 1, 1) * looks,
        "test_accuracy": accuracy.reshape(-1, 1, 1) * looks,
    }
    metrics["train_loss"][..., 0] = 10.0
    lost = np.repeat(np.where(np.isfinite(loss).reshape(-1, 1), -1, 2), len(seeds), axis=1)
    if loss.size == 1:
        grid = {name: values[:1] for name, values in grid.items()}
    return Sweep(method, CASE.title, grid, seeds, np.arange(5), metrics, lost, CASE.rule)


def found(grids, tuned=None):
    """Results of made-up sweeps; tuned settings with an accuracy of 0.5."""
    tuned = tuned or dict.fromkeys(METHODS, 0.5)
    return Results(
        CASE,
        {m: made_up(m, *grids[m]) for m in METHODS},
        {m: made_up(m, [1.0], [v], (0, 1)) for m, v in tuned.items()},
    )


@pytest.fixture
def results():
    """Losses fall along the grid; FedAvgM diverges at its first setting; adaptive methods are best at tau 1e-2."""
    plain, adaptive = np.linspace(2, 1, 9), np.linspace(2, 1, 27)
    grids = {
        m: (adaptive if m in ADAPTIVE else plain, np.linspace(0.1, 0.9, 27 if m in ADAPTIVE else 9))
        for m in METHODS
    }
    lost = plain.copy()
    lost[0] = np.nan
    return found({**grids, "FedAvgM": (lost, grids["FedAvgM"][1])})


def test_grids_are_half_decades():
    np.testing.assert_allclose(half_decades(-1, 0.5), [0.1, 10**-0.5, 1, 10**0.5], rtol=1e-5)
    for case in CASES.values():
        assert case.grid("FedAvg").keys() == {"client_lr", "server_lr"}
        assert fedopt_cases.TAU in case.grid("FedYogi")["tau"]


def test_small_network_sees_means_of_2x2_pixels():
    class Seen:
        height = width = 14
        __call__ = staticmethod(lambda params, x: x)

    x = np.random.default_rng(0).random((3, 28, 28, 1)).astype(np.float32)
    halved = [
        [[i[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for c in range(14)] for r in range(14)] for i in x
    ]
    np.testing.assert_allclose(SmallCNN(Seen())(None, x)[..., 0], halved, rtol=1e-5)


@pytest.mark.parametrize(
    ("plain", "adaptive", "sparse", "verdict"),
    [
        ((30.0, 36.9), (67.1, 65.8, 65.9), True, "reproduced"),  # the paper's
        ((30.0, 40.0), (66.0, 50.0, 66.0), True, "partly"),
        ((60.0, 60.0), (66.0, 66.0, 66.0), True, "not reproduced"),
        ((84.9, 85.2), (85.1, 85.6, 85.5), False, "reproduced"),  # the paper's
        ((84.9, 86.0), (85.1, 85.6, 85.5), False, "partly"),
        ((80.0, 80.0), (85.0, 85.0, 85.0), False, "not reproduced"),
        ((90.0, 80.0), (85.0, 85.0, 85.0), False, "not reproduced"),
    ],
)
def test_verdict_on_gains(plain, adaptive, sparse, verdict):
    assert gain_verdict(dict(zip(METHODS, plain + adaptive, strict=True)), sparse) == verdict


@pytest.mark.parametrize(
    ("momentum", "adam", "yogi", "verdict"),
    [
        ((3, 3), (5, 4), (4, 5), "reproduced"),
        ((3, 4), (5, 4), (4, 5), "partly"),
        ((3, 3), (5, 5), (3, 3), "not reproduced"),
    ],
)
def test_verdict_on_ease(momentum, adam, yogi, verdict):
    assert ease_verdict({"FedAvgM": momentum, "FedAdam": adam, "FedYogi": yogi}) == verdict


def test_verdict_on_tau():
    assert tau_verdict([1.0] * 8 + [0.5]) == "reproduced"
    assert tau_verdict([1.0] * 7 + [0.5, 0.94]) == "partly"
    assert tau_verdict([1.0] * 5 + [0.5] * 4) == "not reproduced"


@pytest.mark.parametrize(
    ("spread", "best", "verdict"),
    [
        (2, 66, "reproduced"),
        (3, 66, "partly"),
        (2, 65.2, "partly"),
        (9, 70, "not reproduced"),
        (2, 60, "not reproduced"),
    ],
)
def test_verdict_on_adagrad(spread, best, verdict):
    by_tau = {"FedAdagrad": np.array([0.0, spread]), "FedAdam": np.array([0, 5]), "FedYogi": np.array([0, 4])}
    values = {**dict.fromkeys(METHODS, 65.0), "FedAdagrad": best}
    assert robust_verdict(by_tau, values) == verdict


def test_verdict_on_rates():
    assert inverse_verdict([-1, -0.5, -0.6]) == "reproduced"
    assert inverse_verdict([-1, -0.5, 0.3]) == "partly"
    assert inverse_verdict([-1, 0, 0.3]) == "not reproduced"


def test_rank_correlation():
    assert rank_correlation(np.array([1, 2, 3]), np.array([9, 4, 1])) == pytest.approx(-1)
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([3, 1, 1, 1])) == pytest.approx(-np.sqrt(0.6))
    assert rank_correlation(np.array([1, 2]), np.array([3, 3])) == 0


def test_part_of_one_tau_and_its_tuning(results):
    one = at_tau(results.sweeps["FedAdam"], 1e-3)
    np.testing.assert_allclose(one.score, np.linspace(2, 1, 27)[1::3])  # tau is the last axis
    assert one.best_settings == {"client_lr": 10.0, "server_lr": 1.0}
    assert at_tau(results.sweeps["FedAvg"], 1e-3) is results.sweeps["FedAvg"]
    np.testing.assert_allclose(results.by_tau("FedAdam"), 100 * np.linspace(0.1, 0.9, 27)[-3:])


def test_cells_near_the_best_of_all_and_of_its_own(results):
    # FedAvg has 0.1, 0.2, ..., 0.9; FedAdam at tau 1e-3 every third of 27, to 0.8692
    cells = good_cells(results)
    assert cells["FedAvg"] == (1, 1)
    assert cells["FedAdam"] == (1, 1)
    low = replace(
        results.sweeps["FedAvg"], metrics={k: 0.5 * v for k, v in results.sweeps["FedAvg"].metrics.items()}
    )
    assert good_cells(replace(results, sweeps={**results.sweeps, "FedAvg": low}))["FedAvg"] == (0, 1)


def test_best_client_rate_at_each_server_rate(results):
    loss = np.full((3, 3, 3), 1.5)  # client, server, tau
    loss[2, 0, 1] = loss[1, 1, 1] = 1.0
    loss[:, 2, 1] = 9.0  # hardly better than the start: of no use
    one = made_up("FedAdam", loss.ravel(), np.ones(27))
    servers, clients = best_clients(replace(results, sweeps={"FedAdam": one}), "FedAdam")
    assert servers.tolist() == [0.01, 0.1]
    assert clients.tolist() == [10.0, 1.0]


def test_outcome_tells_claims_pictures_and_tables(results):
    sparse = replace(results, case=replace(CASE, sparse=True))
    told = outcome({"digits": results, "tags": sparse})
    assert len(told.claims) == 3 * 2 + 2
    assert told.pictures.keys() == {"maps-digits", "maps-tags", "tau", "curves"}
    assert [len(t.rows) for t in told.tables.values()] == [10, 10, 18]
    assert told.tables["ease"].rows[1][-1] == 1  # FedAvgM diverged once
    # FedAvg's best setting is the last of both rates
    assert told.tables["tuned"].rows[0][2:5] == [10.0, 1.0, None]
    assert "largest tried" in told.tables["tuned"].rows[0][-1]


def test_better_values_outside_the_grid_count(results):
    tuned = {m: made_up(m, [1.0], [0.7 if m in ADAPTIVE else 0.3], (0, 1)) for m in METHODS}
    tags = replace(results, case=replace(CASE, sparse=True), tuned=tuned)
    assert gain_claim(tags).verdict == "reproduced"
    further = replace(tags, outside={"FedAvg": made_up("FedAvg", np.linspace(2, 1, 9), np.full(9, 0.6))})
    told = gain_claim(further)
    assert told.verdict == "not reproduced"
    assert "outside the grid (seed 0): FedAvg 60.0" in told.ours


@pytest.mark.slow
def test_sweeps_are_run_tuned_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(fedopt_cases, "METHODS", ("FedAdam",))
    case = replace(
        CASE,
        build=lambda folder: digits(10, model="softmax"),
        client=(1e-4, 1.0),
        server=(0.1,),
        taus=(1e-3,),
        clients=5,
    )
    said = []
    context = Context(tmp_path, quick=True, say=lambda part, done, total: said.append(part))
    first = solve(context, "digits", case)
    chosen = first.tuned["FedAdam"]
    assert first.sweeps["FedAdam"].best_settings["client_lr"] == 1.0
    assert chosen.grid == {"client_lr": (1.0,), "server_lr": (0.1,), "tau": (1e-3,)}
    assert chosen.seeds == (0, 1)
    # the first seed is the one of the grid
    np.testing.assert_allclose(
        chosen.curve(0, "train_loss")[0], first.sweeps["FedAdam"].curve(1, "train_loss")[0], rtol=1e-4
    )
    said.clear()
    again = solve(context, "digits", case)
    assert all(part.endswith("(kept)") for part in said)
    np.testing.assert_array_equal(again.sweeps["FedAdam"].score, first.sweeps["FedAdam"].score)


@pytest.mark.full
def test_quick_run_writes_a_page(tmp_path, monkeypatch):
    def sweep(method, task, grid, *, seeds, rounds, eval_every, select, **_):
        settings = int(np.prod([len(v) for v in grid.values()]))
        looks = np.linspace(0.1, 0.9, settings)[:, None, None] * np.ones(
            (len(seeds), rounds // eval_every + 1)
        )
        metrics = {"train_loss": 1 - looks, "test_accuracy": looks}
        lost = np.full((settings, len(seeds)), -1)
        return Sweep(
            method, task.name, grid, seeds, np.arange(0, rounds + 1, eval_every), metrics, lost, select
        )

    monkeypatch.setattr(fedopt_cases, "sweep", sweep)
    told = reproduce("fedopt-tuning", tmp_path, quick=True)
    assert "FedYogi" in told.page.read_text()
    assert len(list(tmp_path.glob("*.png"))) == len(told.outcome.pictures) == 3
