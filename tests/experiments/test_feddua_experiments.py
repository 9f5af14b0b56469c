"""The FedDuA studies: what is compared, the terms of a theorem, the searches beside others; a quick run."""

import json
from typing import Any

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import SOME, check_fedopt
from equations.transcript import LocalSGD
from experiments.feddua.feddua_combinations import study as feddua_combinations
from experiments.feddua.feddua_dimension.dimension_problems import CLIENT_LR as CLIENT_RATE
from experiments.feddua.feddua_dimension.dimension_problems import regression
from experiments.feddua.feddua_dimension.study import METHODS as METHODS_BY_DIMENSION
from experiments.feddua.feddua_synthetic import study as feddua
from experiments.feddua.feddua_theorems.step_search import draw_case, least_worst_case, step_ratios
from experiments.feddua.first_round import study
from experiments.feddua.first_round.cures import method
from experiments.feddua.methods import ADAPTIVE_LR, AVERAGING_LR, CLIENT_LR, METHODS, MeanOfTwo
from experiments.fedli.fedli_convex import rules
from experiments.fedli.fedli_convex import study as fedli
from experiments.fedli.fedli_convex import theorems as fedli_theorems
from experiments.fedli.fedli_convex.problems import (
    KINDS,
    L2,
    STEPS,
    WIDTH,
    drawn,
    from_minimiser,
    problem,
    smoothness,
)
from experiments.fedopt.fedopt_tuning.problems import ADAPTIVE, PROBLEMS, TAU, TAUS, SmallCNN, methods
from experiments.fedopt.fedopt_tuning.study import best_rates, inverse
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from tasks.small_files import DATA, needs

SMALL = {"num_clients": 3, "examples_per_client": 4, "features": 10}


@pytest.mark.full
@pytest.mark.parametrize("name", ["feddua-synthetic", "feddua-combinations", "feddua-dimension"])
def test_quick_run_writes_everything(name, tmp_path):
    made = reproduce(name, tmp_path, quick=True)
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)


def test_the_grids_are_half_decades_and_alike():
    for axis in (CLIENT_LR, AVERAGING_LR, ADAPTIVE_LR):
        np.testing.assert_allclose(np.diff(np.log10(axis)), 0.5, atol=1e-6)
    rates = {name: method.grid for name, method in METHODS.items()}
    assert all(grid["client_lr"] == CLIENT_LR for grid in rates.values())
    assert {n for n, g in rates.items() if "server_lr" not in g} == {
        "FedExP",
        "FedDuAdagrad",
        "FedExPM",
        "FedDuAdam",
    }
    assert set(feddua.PAPER_EPS_G) < set(feddua.EPS_G)
    assert set(feddua.PAPER_ETA_G) < set(feddua.ETA_G)


@pytest.mark.parametrize("problem", feddua.PROBLEMS)
def test_a_method_has_the_rates_of_its_grid(problem):
    """And epsilon = epsilon_g = 0 where the grid has none; FedDuA and FedExP are judged at the mean of two iterates."""
    for name, entry in feddua.methods(problem).items():
        setting = {axis: values[1] for axis, values in entry.grid.items()}
        made = entry.make(**setting)
        averaged = name.startswith(("FedDu", "FedExP"))
        assert isinstance(made, MeanOfTwo) == averaged
        inner = made.inner if averaged else made
        assert inner.local.lr == setting["client_lr"]
        step = inner.server_optimizer
        assert step.eps_g == setting.get("eps_g", 0.0) if averaged else step.lr == setting["server_lr"]
        if name.startswith("FedDu"):
            assert step.eps == setting.get("eps", 0.0)


@pytest.mark.full
def test_mean_of_two_is_judged_at_the_mean_and_trains_from_the_last():
    """Its train_loss is the train_loss_averaged of the method alone."""
    task = fs.tasks.build("regression", **SMALL)
    method = fs.FedExP(0.1, eps_g=0.0)
    alone = fs.run(method, task, rounds=4, eval_every=1, dtype="float64")
    judged = fs.run(MeanOfTwo(method), task, rounds=4, eval_every=1, dtype="float64")
    np.testing.assert_allclose(judged.metrics["train_loss"], alone.metrics["train_loss_averaged"], rtol=1e-12)
    assert not np.allclose(judged.metrics["train_loss"][1:], alone.metrics["train_loss"][1:])


def test_the_combinations():
    """Each name is its method: 15 of them, whose wrappers and steps are those that it says."""
    found = feddua_combinations.methods(feddua_combinations.DIGITS)
    assert len(found) == 15
    made = found["SCAFFOLD+FedDuAdam"].make(client_lr=0.1)
    assert isinstance(made, MeanOfTwo)
    assert isinstance(made.inner, fs.ControlVariates)
    assert made.inner.inner == fs.FedDuAdam(0.1, eps=1e-9, weighting="examples")
    assert found["FedProx"].make(client_lr=0.1, server_lr=3.0, mu=0.5) == fs.Proximal(
        fs.FedAvg(0.1, server_lr=3.0), 0.5
    )
    assert found["SCAFFOLD+FedAdam"].make(client_lr=0.1, server_lr=3.0).inner.server_optimizer.lr == 3.0


@pytest.mark.full
def test_terms_of_the_theorem():
    """Three rounds of FedDuAdagrad beside NumPy: the sum of Bregman divergences, tr G and the largest distance."""
    task = regression(None, 0, features=6, decay=1.1)
    sweep = fs.sweep(
        METHODS_BY_DIMENSION["FedDuAdagrad"].make, task, {"client_lr": (CLIENT_RATE,)}, seeds=(0,), rounds=3,
        eval_every=1, dtype="float64", select="train_loss",
    )  # fmt: skip
    x, y = (np.asarray(part) for part in task.data.examples)
    clients = list(zip(np.split(x, 20), np.split(y, 20), strict=True))
    assert max(2 * np.linalg.norm(own, 2) ** 2 / len(own) for own, _ in clients) == pytest.approx(1)
    w, s, g, divergences, distance = np.zeros(6), np.zeros(6), np.zeros(6), 0.0, 0.0
    for t in range(3):
        deltas = []
        for own, targets in clients:
            v = w.copy()
            for _ in range(5):
                v -= CLIENT_RATE * 2 / len(own) * own.T @ (own @ v - targets)
            deltas.append(v - w)
        mean, m = np.mean(deltas, axis=0), np.mean(np.sum(np.square(deltas), axis=1)) / 2
        s += mean**2
        divergences += 0.5 * np.sum((w - 1) ** 2 * (np.sqrt(s) - g))
        distance = max(distance, np.abs(w - 1).max())
        g = np.sqrt(s)
        w = w + m / np.sum(mean**2 / g) * mean / g
        found = {name: sweep.metrics[name][0, 0, t + 1] for name in ("divergences", "trace", "distance")}
        assert found == pytest.approx(
            {"divergences": divergences, "trace": g.sum(), "distance": distance}, rel=1e-10
        )


def test_the_least_worst_case_is_fedduas_next_model():
    """Also no w* of the box for which A.P.C. holds is worse than the corners say."""
    with jax.enable_x64(True):
        apart, gain, plain = least_worst_case("diagonal", 0, 2, 3)
        case = draw_case("diagonal", np.random.default_rng(0), 2, 3)
    assert apart < 1e-6
    assert abs(gain) < 1e-9
    assert plain > 0
    rng, own = np.random.default_rng(1), case.own
    points = rng.uniform(case.corners.min(axis=0), case.corners.max(axis=0), (2000, 2))
    points = points[(points - case.model) @ case.mean >= case.bound]
    model = case.model + 0.3 * rng.standard_normal(2)
    values = own.divergence(points, model) - own.divergence(points, case.model)
    worst = case.worst(model[None])[0]
    assert values.max() <= worst
    assert values.max() > worst - 0.1 * np.ptp(values)


def test_the_best_step_is_not_shorter():
    with jax.enable_x64(True):
        for momentum in (False, True):
            assert step_ratios("diagonal", 0, 5, 4, 3, momentum).min() >= 1


# FedDuAdagrad with another first round against NumPy, and the rule that counts collapsed runs.

EPS = 1e-3


class OtherFirstRound:
    """s <- s + D^2 (mean square: + mean of D^2 at first), G = sqrt(s) + eps, eta = mean |D_i|^2 / 2 <D, D/G>."""

    def __init__(self, cure):
        self.cure, self.s = cure, 0.0

    def __call__(self, w, D, spread, size, t):
        self.s = self.s + D**2
        if self.cure == "mean square" and t == 0:
            self.s = self.s + np.mean(D**2)
        step = D / (np.sqrt(self.s) + (np.sqrt(np.mean(D**2)) if self.cure == "relative eps" else EPS))
        if self.cure == "plain round" and t == 0:
            step = D
        eta = spread / 2 / (D @ step)
        return w + eta * step, eta


@pytest.mark.parametrize("cure", ["none", *study.CURES])
def test_each_first_round_follows_its_formula(cure):
    check_fedopt(method(cure, EPS, 0.1), lambda: OtherFirstRound(cure), LocalSGD(0.1), "uniform", SOME)


class Ended:
    """Cells of one problem that ended at given accuracies."""

    problems = ("p",)

    def __init__(self, **accuracies):
        self.accuracies = accuracies

    def final(self, problem, name):
        return np.array(self.accuracies[name])


def test_a_run_that_diverged_or_guesses_has_collapsed():
    """12 of 20 seeds saved and 1 lost: p = 2 (1 + 13) / 2^13 of the sign test; a method that saves none holds not."""
    cells: Any = Ended(
        a=[0.1] * 11 + [np.nan] + [0.9] * 8, b=[0.9] * 12 + [0.15] + [0.9] * 7, c=[0.1] * 12 + [0.9] * 8
    )
    assert study.lost(cells, "p", "a").sum() == 12
    found = study.fewer(("b",), "a")(cells)
    assert found.verdict == "reproduced"
    assert found.ours.startswith("collapsed: a 12 of 20")
    assert "b 1 (12 saved, 1 lost), the others' median accuracy 90.0 %" in found.ours
    assert "b 0.0034" in found.reason
    assert study.fewer(("b", "c"), "a")(cells).verdict == "partly"
    assert study.fewer(("c",), "a")(cells).verdict == "underpowered"
    contrary = study.fewer(("a",), "b")(cells)  # two-sided: significantly more collapse
    assert contrary.verdict == "not reproduced"
    assert "a 0.0034" in contrary.reason
    assert study.some("a")(cells).verdict == "reproduced"


# fedopt-tuning: the small network, methods, and the best client rate by server rate on made-up numbers.

CLIENT, SERVER = (0.1, 1.0, 10.0), (0.01, 0.1, 1.0)


def made_up(losses):
    """Cells of an adaptive method: loss by (client, server) at tau 1e-3, two seeds; other values of tau are better."""
    by_tau = np.stack([np.asarray(losses, float) * (1 if tau == TAU else 0.1) for tau in TAUS], axis=-1)
    end = np.repeat(by_tau.reshape(-1, 1), 2, axis=1)
    curve = np.stack([np.full_like(end, 10.0), end], axis=-1)
    grid = SweepRecord(
        "m", "p", {"client_lr": CLIENT, "server_lr": SERVER, "tau": TAUS}, (0, 1), np.array([0, 1]),
        {"train_loss": curve, "test_accuracy": curve}, np.full(end.shape, -1), Selection("train_loss", 1),
    )  # fmt: skip
    return Cells(PROBLEMS, (0, 1), {("digits", m): Cell(None, grid, None) for m in ADAPTIVE})


def test_the_best_client_rate_by_server_rate():
    """At tau 1e-3 alone; a server rate whose best loss is nearer to the start's than to the best is left out."""
    cells = made_up([[8, 3, 1], [9, 2, 4], [7, 5, 5]])
    for servers, clients in best_rates(cells, "digits", "FedAdam"):
        assert servers.tolist() == [0.1, 1.0]  # at 0.01 the best is 7, over (1 + 10) / 2
        assert clients.tolist() == [1.0, 0.1]
    told = inverse("digits")(cells)
    assert told.verdict == "reproduced"
    assert told.provisional == ""  # one of each two lies at an edge: wherever beyond, it is on that side
    both = inverse("digits")(
        made_up([[8, 1, 1], [9, 2, 4], [7, 5, 5]])
    )  # they are tied, and might fall or rise
    assert (both.verdict, "FedYogi's best client_lr in 4 of 4 pairs" in both.provisional) == (
        "underpowered",
        True,
    )
    assert inverse("digits")(made_up([[1, 3, 8], [2, 2, 2], [3, 2.5, 1]])).verdict == "not reproduced"


def test_all_methods_of_a_task_have_one_grid_of_rates():
    for name in PROBLEMS:
        grids = [m.grid for m in methods(name).values()]
        assert all(g["client_lr"] == grids[0]["client_lr"] for g in grids)
        assert all(g["server_lr"] == grids[0]["server_lr"] for g in grids)
    made = methods("digits")["FedYogi"].make(client_lr=0.3, server_lr=0.2, tau=0.1)
    assert (made.local.lr, made.server_optimizer.lr, made.server_optimizer.tau) == (0.3, 0.2, 0.1)


def test_small_network_sees_means_of_2x2_pixels():
    class Seen:
        height = width = 14
        __call__ = staticmethod(lambda params, x: x)

    x = np.random.default_rng(0).random((3, 28, 28, 1)).astype(np.float32)
    halved = [
        [[i[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for c in range(14)] for r in range(14)] for i in x
    ]
    np.testing.assert_allclose(SmallCNN(Seen())(None, x)[..., 0], halved, rtol=1e-5)


@pytest.mark.full
def test_quick_run(tmp_path):
    told = reproduce("fedopt-tuning", tmp_path, quick=True)
    assert len(list(tmp_path.glob("*.png"))) == len(told.outcome.pictures)


# FedLi on convex losses: bounds and rules on made-up numbers, Remark 2, the theorems' condition, the problems.

NAME = "a9a, IID clients"
ROUNDS = np.arange(41)


def made_up_fedli(**metrics):
    """One problem and method, five data sets that differ by a thousandth."""
    seeds = tuple(range(5))
    spread = (1 + 1e-3 * np.arange(5))[:, None]
    columns = {name: (spread * values)[None] for name, values in metrics.items()}
    columns["train_loss"] = np.ones_like(next(iter(columns.values())))
    sweep = SweepRecord(
        "m",
        NAME,
        {"eta_max": (1.0,)},
        seeds,
        ROUNDS,
        columns,
        np.full((1, 5), -1),
        Selection("train_loss", 1),
    )
    return Cells({NAME: fedli.PROBLEMS[NAME]}, seeds, {(NAME, "FedLiLS"): Cell(sweep, None, None)})


def test_one_rise_refutes_descent():
    fall = np.exp(-0.1 * ROUNDS)
    rule = rules.descends((NAME,), ("FedLiLS",))
    assert rule(made_up_fedli(suboptimality=fall)).verdict == "consistent"
    risen = fall + np.where(ROUNDS == 20, 1e-12, 0)
    assert (
        rule(made_up_fedli(suboptimality=np.maximum(risen, 1e-13 + 0 * fall))).verdict == "consistent"
    )  # rounding
    found = rule(made_up_fedli(suboptimality=np.where(ROUNDS >= 20, fall + 0.3, fall)))
    assert found.verdict == "refuted"
    assert "F rises in 5 of 200 rounds" in found.ours


def test_theorem_2_s_bound_is_judged_in_every_round():
    """(1 - eta mu K)^(T + 1) |w_0 - w*|^2 with eta = 0.7 / (L K), by hand; from w* it is 0."""
    base = 1 - 0.7 * L2 / (14 / 4 + L2)
    bound = base ** (ROUNDS + 1.0)
    rule = rules.theorem_2((NAME,), "FedLiLS", lambda name: "a9a")
    below = np.where(ROUNDS == 0, 1.0, 0.99 * bound)
    assert rule(made_up_fedli(squared_distance=below)).verdict == "consistent"
    assert (
        rule(made_up_fedli(squared_distance=np.where(ROUNDS == 30, 1.02 * bound, below))).verdict == "refuted"
    )
    assert rule(made_up_fedli(squared_distance=0.0 * below)).verdict == "consistent"
    assert rule(made_up_fedli(squared_distance=1e-6 * (ROUNDS > 0))).verdict == "refuted"


def test_theorem_1_s_bound():
    """|w_0 - w*|^2 / (min(R, K) T), R and K as printed below (15) with rho = eta_g = 1, by hand."""
    L, K = 14 / 4 + L2, STEPS
    eta, c = 0.7 / (L * K), 0.9
    r = eta * K * (2 - L * eta / (2 * (1 - c) * c) - eta * L * K / c)
    k = eta * K * (2 - 1 / c - eta * L * K / c)
    assert fedli_theorems.sublinear(L, K, 7, 3.0) == pytest.approx(3.0 / (min(r, k) * 7))
    rule = rules.theorem_1((NAME,), "FedLiLS", lambda name: "a9a")
    level = 1 / (min(r, k) * ROUNDS[-1])  # constant F - F* crosses the bound at the last round
    constant = {"squared_distance": np.ones(41), "suboptimality": 0.98 * level * np.ones(41)}
    assert rule(made_up_fedli(**constant)).verdict == "consistent"
    assert (
        rule(made_up_fedli(**constant | {"suboptimality": 1.02 * level * np.ones(41)})).verdict == "refuted"
    )


def test_a_rate_lasts_or_not():
    rule = rules.lasts((NAME,), "FedLiLS")
    straight = np.exp(-0.3 * ROUNDS)
    assert rule(made_up_fedli(suboptimality=straight)).verdict == "reproduced"
    assert rule(made_up_fedli(suboptimality=straight + 1e-2)).verdict == "not reproduced"
    assert (
        rule(made_up_fedli(suboptimality=1.0 - 1e-3 * ROUNDS)).verdict == "not reproduced"
    )  # it hardly falls at all


def test_gamma_and_the_price_of_a_search():
    adapts = rules.adapts((NAME,), "FedLiLS")
    assert adapts(made_up_fedli(gamma=0.5 * np.ones(41))).verdict == "reproduced"
    assert adapts(made_up_fedli(gamma=1.0 + np.ones(41))).verdict == "not reproduced"
    found = rules.searches((NAME,), ("FedLiLS",))(made_up_fedli(loss_evaluations=2.0 * STEPS * np.ones(41)))
    assert (found.verdict, "FedLiLS 2.00, at most 2.01" in found.ours) == ("not the paper's problem", True)


def test_remark_2_by_hand():
    """f1 = 3 x^3 - x^2 and f2 = x^2 - x^3 have slopes 7 and -1 at 1: steps 0.2 / 7 and 0.5; 1.15^3."""
    steps, met, after = fedli_theorems.remark_2()
    assert steps == pytest.approx([0.2 / 7, 0.5])
    assert (met, after) == ([True, True], pytest.approx(1.520875))
    assert rules.remark_2(made_up_fedli(gamma=ROUNDS)).verdict == "reproduced"


@pytest.mark.full
@pytest.mark.parametrize(("client", "eta", "to"), [(0, 0.2 / 7, 0.8), (1, 0.5, 1.5)])
def test_remark_2_steps_are_steps_of_the_line_search(client, eta, to):
    """Each client alone, its first trial at the stated step: Armijo accepts it at once."""
    a, b = fedli_theorems.CUBICS[client]
    task = fs.Task.from_arrays(lambda w, batch: a * w**3 + b * w**2, np.ones(()), [np.zeros((1, 1))])
    found = fs.run(fs.FedLiLS(eta_max=eta), task, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert float(found.params) == pytest.approx(to)
    assert found.rounds["loss_evaluations"][0] == 1


@pytest.mark.full
def test_lemma_2_has_a_counter_example():
    """On x^2 / 2 a search from 1.9 refuses 1.9 and accepts 0.9 of it, below 2 (1 - c) / L = 1.8."""
    task = fs.Task.from_arrays(lambda w, batch: w**2 / 2, np.ones(()), [np.zeros((1, 1))])
    found = fs.run(fs.FedLiLS(eta_max=1.9), task, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert found.rounds["client_step"][0] == pytest.approx(1.71)
    assert fedli_theorems.searched(1.9, 0.1, 0.9, 1.0) == pytest.approx(1.71)
    assert rules.lemma_2(made_up_fedli(gamma=ROUNDS)).verdict == "refuted"


def test_the_theorems_need_more_than_half_of_the_clients():
    for c in (0.1, 0.5, 1.0):
        assert not any(fedli_theorems.condition(c, eta, 1.0, 0.1, STEPS) for eta in np.logspace(-9, 0, 10))
    for smooth in (0.3, 1.4, 20.0):
        eta, c = fedli_theorems.constants(smooth, STEPS).values()
        assert fedli_theorems.condition(c, eta, smooth, 1.0, STEPS)
    assert rules.condition(made_up_fedli(gamma=ROUNDS)).verdict == "not reproduced"


@pytest.mark.full
def test_problems_are_dealt_as_said():
    """Identical clients are; unequal ones hold a label each; begun at w*, F is F* and w is w*."""
    same, unequal = (problem("made", kind, 0, None) for kind in ("identical", "unequal"))
    np.testing.assert_array_equal(same.data.client(0).x, same.data.client(7).x)
    assert sum(len(np.unique(unequal.data.client(i).y)) == 1 for i in range(20)) >= 19
    assert set(KINDS) == {"identical", "iid", "unequal"}
    assert not np.array_equal(drawn("made", 0, None).x, drawn("made", 1, None).x)
    begun = from_minimiser(problem("made", "iid", 0, None))
    found = fs.run(fs.FedAvg(1e-6), begun, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert abs(found.metrics["suboptimality"][0]) < 1e-10
    assert found.metrics["squared_distance"][0] == 0
    assert same.data.client(0).x.shape == (64, WIDTH)
    assert smoothness("a9a") == 14 / 4 + L2


@pytest.mark.full
@needs("libsvm")
@pytest.mark.parametrize("dataset", ["a9a", "mushrooms"])
def test_no_row_is_longer_than_l_says(dataset):
    assert (drawn(dataset, 0, DATA).x.astype(float) ** 2).sum(axis=1).max() <= 4 * (smoothness(dataset) - L2)


@pytest.mark.full
def test_fedli_quick_run(tmp_path):
    """Made data, no files; an evaluation a step is logged beside the bound's distance."""
    made = reproduce("fedli-convex", tmp_path, quick=True)
    assert not made.outcome.claims
    assert set(made.outcome.pictures) == {"distance", "from_minimiser", "sampled"}
    for path in (tmp_path / "parts").iterdir():
        kept = np.load(path)
        assert (kept["metric loss_evaluations"][..., 1:] >= STEPS).all()
        assert (kept["metric squared_distance"] >= 0).all()
