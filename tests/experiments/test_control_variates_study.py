"""Control variates and FedDuA: the logged diversity against NumPy, the theory's identities, the deal, the rules."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from experiments.client_drift.control_variates import study
from experiments.client_drift.control_variates.by_rate import lower
from experiments.client_drift.control_variates.problems import DIGITS, RATES, drawn, regression
from experiments.client_drift.control_variates_femnist import study as study_femnist
from experiments.client_drift.label_skew import EqualDirichlet
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from harness import crossed

CENTRES = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 3.0]])
CURVES = np.array([[1.0, 0.5], [0.3, 2.0], [1.5, 1.0]])
ROUNDS, STEPS, RATE = 5, 3, 0.1


def quadratics():
    """f_i(w) = 1/2 sum_j h_ij (w_j - a_ij)^2, one client each."""

    def loss(w, batch):
        return jnp.mean(jnp.sum(batch["h"] * (w - batch["a"]) ** 2, axis=-1)) / 2

    clients = [{"h": h[None], "a": a[None]} for h, a in zip(CURVES, CENTRES, strict=True)]
    return fs.Task.from_arrays(loss, np.zeros(2), clients)


def transcript(corrected):
    """FedExP, or it with SCAFFOLD (Karimireddy et al. 2020, option II): diversities and the h_i of each round."""
    w, controls, found, means = np.zeros(2), np.zeros((3, 2)), [], []
    for _ in range(ROUNDS):
        c, moved, own = controls.mean(0), [], []
        for h, a, c_i in zip(CURVES, CENTRES, controls, strict=True):
            y, gradients = w, []
            for _ in range(STEPS):
                gradients.append(h * (y - a))
                y = y - RATE * (gradients[-1] + (c - c_i if corrected else 0))
            moved.append(y - w)
            own.append(np.mean(gradients, axis=0))
        mean = np.mean(moved, axis=0)
        found.append(np.mean(np.sum(np.square(moved), axis=1)) / np.sum(mean**2))
        means.append(np.array(own))
        w, controls = w + found[-1] / 2 * mean, np.array(own)
    return np.array(found), means


@pytest.mark.full
@pytest.mark.parametrize("corrected", [False, True])
def test_the_diversity_is_logged_and_fedexp_steps_by_half_of_it(corrected):
    made = fs.run(
        study.method("FedExP", corrected, RATE), quadratics(), rounds=ROUNDS, local_steps=STEPS, batch_size="full",
        dtype="float64",
    )  # fmt: skip
    expected, _ = transcript(corrected)
    np.testing.assert_allclose(made.rounds["diversity"], expected, rtol=1e-10)
    np.testing.assert_allclose(made.rounds["server_lr"], expected / 2, rtol=1e-10)


def test_the_theory_s_identities():
    """r - 1 is the spread of the h_i, and with control variates of their changes, over |h|^2."""
    plain, means = transcript(False)
    corrected, after = transcript(True)

    def spread(parts, mean):
        return np.mean(np.sum((parts - parts.mean(0)) ** 2, axis=1)) / np.sum(mean**2)

    np.testing.assert_allclose(plain - 1, [spread(h, h.mean(0)) for h in means])
    before = [np.zeros_like(after[0]), *after[:-1]]
    changes = [spread(h - old, h.mean(0)) for h, old in zip(after, before, strict=True)]
    np.testing.assert_allclose(corrected - 1, changes)


@pytest.mark.parametrize(
    ("work", "clamp", "changed", "spread"), [(0.25, 0.0, 0.28, 0.16), (0.2, 1.0, 1 / 3, 0.25)]
)
def test_the_theorem_s_bound(work, clamp, changed, spread):
    """From c_i = grad f_i(w) on, on quadratics of curvatures from -1 to 1, at the largest K eta L that it allows."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for steps in [1, 2, 8] * 20:
        rate, w = work / steps, rng.standard_normal(3)
        rotations = [np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(4)]
        hessians = np.stack([q @ np.diag(rng.choice([-1.0, 0.1, 0.9, 1.0], 3)) @ q.T for q in rotations])
        slopes = rng.standard_normal((4, 3))
        controls = hessians @ w - slopes
        for _ in range(20):
            y, own, c = np.tile(w, (4, 1)), np.zeros((4, 3)), controls.mean(0)
            for _ in range(steps):
                gradients = np.einsum("ijk,ik->ij", hessians, y) - slopes
                own, y = own + gradients / steps, y - rate * (gradients - controls + c)
            mean = (y - w).mean(0)
            diversity = ((y - w) ** 2).sum(1).mean() / (mean @ mean)
            assert 0 <= diversity - 1 + 1e-12 <= spread
            x = np.linalg.norm(own - controls, axis=1).max() / np.linalg.norm(c)
            assert x <= changed
            largest = max(largest, x)
            w, controls = w + max(diversity / 2, clamp) * mean, own
    assert largest > 0.4 * changed  # the bound is no empty one


def test_noise_alone_extrapolates_up_to_the_number_of_clients():
    """At h = 0: mean |D_i|^2 over |D|^2, in expectation, is 1 + 2 (M - 1)."""
    now, before = np.random.default_rng(0).standard_normal((2, 20_000, 6))
    moved = now - before + before.mean(1, keepdims=True)
    assert np.mean(moved**2) / np.mean(moved.mean(1) ** 2) == pytest.approx(1 + 2 * 5, rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize("step", crossed(study.STEPPING, ["FedExP"]))
def test_measuring_changes_no_step(step):
    named = {
        "FedAvg": fs.FedAvg(RATE, weighting="uniform"),
        "FedExP": fs.FedExP(RATE),
        "FedDuAdagrad": fs.FedDuAdagrad(RATE),
    }
    options = {"rounds": 3, "local_steps": 2, "batch_size": "full", "dtype": "float64"}
    alone, measured = (
        fs.run(m, quadratics(), **options) for m in (named[step], study.method(step, False, RATE))
    )
    np.testing.assert_array_equal(alone.metrics["train_loss"], measured.metrics["train_loss"])


def test_equal_sizes_and_skew():
    """All clients have as many examples, no row twice; a small alpha gives few labels, a large one all."""
    labels = np.repeat(np.arange(10), 50)
    few, all_of_them = (EqualDirichlet(alpha)(labels, 20, 3) for alpha in (0.01, 1000.0))
    for deal in (few, all_of_them):
        assert {len(rows) for rows in deal} == {25}
        assert len(np.unique(np.concatenate(deal))) == 500
    assert np.mean([len(np.unique(labels[rows])) for rows in few]) < 3
    assert np.mean([len(np.unique(labels[rows])) for rows in all_of_them]) > 8
    assert not np.array_equal(few[0], EqualDirichlet(0.01)(labels, 20, 4)[0])


def made_up(diversities):
    """One cell a method whose diversity is constant, by seed."""
    name = study.name_of(0.1, 1)
    seeds, rounds = tuple(range(5)), np.array([0, 90, 100])
    cells = {}
    for method, values in diversities.items():
        curve = np.repeat(np.asarray(values, float)[:, None], 3, axis=1)[None]
        metrics = {"diversity": curve, "train_loss": np.ones_like(curve) * np.linspace(2, 1, curve.shape[-1])}
        one = SweepRecord(
            method, name, {"a": (1,)}, seeds, rounds, metrics, np.full((1, 5), -1), Selection("train_loss", 1)
        )
        cells[name, method] = Cell(one, None, None)
    return name, Cells({name: study.problem(0.1, 1)}, seeds, cells)


@pytest.mark.parametrize(
    ("equal", "apart", "verdicts"),
    [
        ([1.01, 1.02, 1.01, 1.03, 1.02], [9, 11, 10, 12, 8], ("reproduced", "reproduced")),
        ([5, 6, 7, 6, 5], [1.01, 1.02, 1.01, 1.03, 1.02], ("not reproduced", "not reproduced")),
        ([1.0, 1.3, 1.0, 1.3, 1.0], [1.0, 1.3, 1.0, 1.3, 1.0], ("underpowered", "underpowered")),
    ],
)
def test_the_rule_of_diversity(equal, apart, verdicts):
    name, cells = made_up({"SCAFFOLD": equal, "FedExP": apart})
    found = (
        study.diversity((name,), ("SCAFFOLD",), 1)(cells),
        study.diversity((name,), ("FedExP",), -1)(cells),
    )
    assert tuple(one.verdict for one in found) == verdicts


def test_the_local_work_is_as_long_whatever_the_steps():
    for name, (_, steps, work) in {**study.CELLS, **study.LONGER}.items():
        for method in study.methods(name).values():
            assert method.published["client_lr"] * steps == pytest.approx(work)
    assert set(study.methods(name)) == {*study.WITHOUT, *study.WITH}


def test_each_seed_has_data_of_its_own():
    """The excess loss is 1 at the start and 0 at the optimum of the data set of the seed, known by its key."""
    seed, task = 3, regression(True)
    x, y, _ = drawn(True, seed)
    every, targets = x.reshape(-1, x.shape[-1]), y.ravel()
    with jax.enable_x64(True):
        pooled = {name: np.concatenate([task.data.client(i)[name] for i in range(20)]) for name in ("x", "y")}
        pooled = jax.tree.map(jnp.asarray, pooled)
        loss = jax.jit(lambda key, w: task.loss({**task.init(key), "weights": w}, pooled))
        key = jax.random.split(jax.random.key(seed, impl="threefry2x32"))[0]
        assert loss(key, np.zeros(x.shape[-1])) == pytest.approx(1)
        assert loss(key, np.linalg.lstsq(every, targets, rcond=None)[0]) == pytest.approx(0, abs=1e-10)
    assert max(np.linalg.eigvalsh(own.T @ own / len(own))[-1] for own in x) == pytest.approx(1)


def of_two(a, b):
    """One problem, two methods by client rate: (rates, seeds) losses, constant over the rounds but the first, 1."""
    name, cells = next(iter(DIGITS)), {}
    rounds = np.array([0, 55, 60])
    for method, losses in (("a", a), ("b", b)):
        curve = np.stack([np.ones_like(losses), losses, losses], axis=-1)
        one = SweepRecord(
            method, name, {"client_lr": RATES["digits"]}, tuple(range(5)), rounds, {"train_loss": curve},
            np.full(losses.shape, -1), Selection("train_loss", 20),
        )  # fmt: skip
        cells[name, method] = Cell(None, one, None)
    return name, Cells({name: DIGITS[name]}, tuple(range(5)), cells)


def test_the_rule_at_a_rate_and_at_the_best():
    """At rate 0.03 `a` is twice as high; at its best, 0.1, half as high, and its divergence at 0.3 is not chosen."""
    noise = np.exp(0.01 * np.arange(5))
    b = np.array([0.1, 0.1, 0.1, 0.09])[:, None] * noise
    a = np.array([0.2, 0.05, np.inf, 0.2])[:, None] * noise[::-1]
    name, cells = of_two(a, b)
    found = lower([name], "a", ["b"])(cells)
    assert found.verdict == "reproduced"
    assert "best rates a 0.1 to 0.1" in found.reason
    assert found.provisional.startswith("b's best client rate 1 lies at the edge")
    assert lower([name], "b", ["a"])(cells).provisional == found.provisional
    at_a_rate = lower([name], "a", ["b"], 0.03)(cells)
    assert (at_a_rate.verdict, at_a_rate.provisional) == ("not reproduced", "")
    assert lower([name], "a", ["b"], 0.3)(cells).verdict == "not reproduced"


def test_what_has_not_learnt_is_not_compared():
    """Losses of 1.02 and 1.1 are not below the start's, 1; one of 0.9 is, and not below the best constant's, 0.8."""
    noise = np.exp(0.01 * np.arange(-2, 3))
    ends = np.ones((4, 1)) * noise
    name, cells = of_two(1.02 * ends, 1.1 * ends)
    assert lower([name], "a", ["b"])(cells).verdict == "not learnt"
    name, cells = of_two(0.9 * ends, 1.1 * ends)
    assert lower([name], "a", ["b"])(cells).verdict == "reproduced"
    problem = replace(cells.problem(name), chance=0.8)
    assert lower([name], "a", ["b"])(replace(cells, problems={name: problem})).verdict == "not learnt"


@pytest.mark.full
def test_quick_run(tmp_path):
    """Its page has the theory; the diversity is a column, unknown before the first round."""
    made = reproduce("control-variates", tmp_path, quick=True)
    page = made.page.read_text()
    assert "<summary>Theory</summary>" in page
    assert "Theorem. Let all clients take part" in page
    for path in (tmp_path / "parts").iterdir():
        kept = np.load(path)["metric diversity"]
        assert np.isnan(kept[..., 0]).all()
        assert (kept[..., 1:] >= 1 - 1e-6).all()


# Control variates on FEMNIST's network: the quick form without data, and the bar that the data give.

FOLDER = Path(os.environ.get("FEDSOLVE_DATA") or Path(__file__).parents[3] / "shared" / "data")
DATA = FOLDER / "femnist_leaf_sample.npz"


@pytest.mark.full
def test_the_network_s_quick_run_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    assert reproduce("control-variates-femnist", tmp_path, quick=True).page.exists()


@pytest.mark.full
@pytest.mark.skipif(not DATA.exists(), reason=f"no {DATA.name} in FEDSOLVE_DATA or in ../shared/data")
def test_the_best_constant_prediction_of_the_writers():
    shares = np.bincount(np.concatenate([part.y for part in parts_of(study_femnist.writers(FOLDER))]))
    shares = shares[shares > 0] / shares.sum()
    assert -np.sum(shares * np.log(shares)) == pytest.approx(study_femnist.ENTROPY, abs=5e-3)


def parts_of(task):
    """Each client's examples."""
    return [task.data.client(i) for i in range(task.data.num_clients)]
