"""Leakage from gradients and from extreme points: the attack, its objective, and the verdicts."""

import functools
import json
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from experiments.attacks.robustness import study as robustness
from experiments.attacks.robustness.robustness_statements import (
    ALIKE,
    DIFFERENT,
    at,
    breaks,
    lost,
    more_harm,
    withstands,
)
from experiments.fedfw.fw_privacy.leakage import (
    SIGNALS,
    Guess,
    SmoothNet,
    attack,
    gradient,
    mismatch,
    psnr,
)
from experiments.fedfw.fw_privacy.leakage_figures import GREY
from experiments.fedfw.fw_privacy.study import claims
from experiments.privacy.privacy_utility import study
from experiments.privacy.private_extrapolation import study as extrapolation
from fedsolve.methods.privacy.accounting import epsilon_of
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from fedsolve.studies.runner import tables
from harness import crossed

NET = SmoothNet((8, 8, 1), classes=3, channels=4)
IMAGE = jnp.asarray(np.random.default_rng(0).uniform(size=(8, 8, 1)), jnp.float32)
GRADIENT, MISMATCH = jax.jit(partial(gradient, NET)), jax.jit(partial(mismatch, NET))


@functools.cache  # no other test waits for it
def weights():
    return jax.jit(NET.init)(jax.random.key(0))


@functools.cache
def correct():
    return GRADIENT(weights(), IMAGE, np.eye(3, dtype=np.float32)[1])


def guess(seed):
    draws = np.random.default_rng(seed)
    return Guess(*(draws.normal(size=shape).astype(np.float32) for shape in (IMAGE.shape, 3)))


def sent(name):
    """What a client of the true gradient sends."""
    return jax.jit(SIGNALS[name].of)(correct())


def test_gradient_of_the_dense_bias_is_softmax_minus_target():
    target = np.array([0.2, 0.3, 0.5], np.float32)
    bias = np.asarray(GRADIENT(weights(), IMAGE, target))[-3:]  # the last leaf is the dense bias or kernel
    found = jax.jit(jax.grad(lambda p: -jnp.sum(target * jax.nn.log_softmax(NET(p, IMAGE)))))(weights())[-1][
        1
    ]
    np.testing.assert_allclose(
        found, jax.jit(lambda p: jax.nn.softmax(NET(p, IMAGE)))(weights()) - target, atol=1e-6
    )
    np.testing.assert_allclose(bias, found, atol=1e-7)


def test_messages_are_what_frank_wolfe_clients_send():
    np.testing.assert_array_equal(sent("gradient"), correct())
    np.testing.assert_allclose(sent("l2"), correct() / np.linalg.norm(correct()), rtol=1e-5)
    of_l1 = np.asarray(sent("l1"))
    place = int(np.argmax(np.abs(correct())))
    assert np.flatnonzero(of_l1).tolist() == [place]
    assert of_l1[place] == np.sign(correct()[place])


@pytest.mark.parametrize("name", SIGNALS)
def test_mismatch_is_the_formula_of_the_module(name):
    label = jax.jit(jax.nn.softmax)(guess(1).label)
    g = np.asarray(GRADIENT(weights(), guess(1).image, label), np.float64)
    true, unit = np.asarray(correct(), np.float64), g / np.linalg.norm(g)
    place = np.argmax(np.abs(true))
    expected = {
        "gradient": np.sum((g - true) ** 2) / np.sum(true**2),
        "l2": 2 * (1 - unit @ true / np.linalg.norm(true)),
        "l2 as gradient": np.sum((g - true / np.linalg.norm(true)) ** 2),
        "l1": 2 * (1 - np.sign(true[place]) * unit[place]),
    }[name]
    signal = SIGNALS[name]
    found = MISMATCH(weights(), sent(name), signal.direction, guess(1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["gradient", "l2"])
def test_the_truth_has_no_mismatch(name):
    signal = SIGNALS[name]
    truth = Guess(IMAGE, np.array([0.0, 50.0, 0.0], np.float32))
    assert float(MISMATCH(weights(), sent(name), signal.direction, truth)) < 1e-9


@pytest.mark.full
def test_gradient_of_the_mismatch_is_its_slope():
    with jax.enable_x64(True):
        params, start, way, image = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64), (weights(), guess(2), guess(3), IMAGE)
        )

        @jax.jit
        @jax.value_and_grad
        def along(t, sent, direction):
            moved = jax.tree.map(lambda a, b: a + t * b, start, way)
            return mismatch(NET, params, sent, direction, moved)

        true = gradient(NET, params, image, jax.nn.one_hot(1, 3))
        for name, signal in SIGNALS.items():
            ends = [along(t, signal.of(true), signal.direction)[0] for t in (-1e-4, 1e-4)]
            found = along(0.0, signal.of(true), signal.direction)[1]
            np.testing.assert_allclose(found, (ends[1] - ends[0]) / 2e-4, rtol=1e-5, err_msg=name)


@pytest.mark.full
def test_an_image_is_found_again_from_its_gradient_and_not_from_one_coordinate():
    keys, final = jax.random.split(jax.random.key(5), 2), {}
    for name in ("gradient", "l1"):
        signal = SIGNALS[name]
        found = attack(NET, weights(), signal.of(correct()), signal.direction, IMAGE, keys, looks=2, every=60)
        assert found.psnr.shape == found.mismatch.shape == (2, 3)
        best = int(jnp.argmin(found.mismatch[:, -1]))
        final[name] = float(found.psnr[best, -1])
        np.testing.assert_allclose(final[name], psnr(found.image[best], IMAGE), rtol=1e-6)
    assert final["gradient"] > 25
    assert final["l1"] < 15


def test_psnr_is_that_of_the_clipped_image():
    np.testing.assert_allclose(psnr(jnp.full(4, 2.0), jnp.full(4, 0.9)), 20.0, rtol=1e-5)


SPREAD = np.array([-1.0, 1.0, 0.0, 2.0, -2.0, 0.0])


@pytest.mark.parametrize(
    ("gradient", "l2", "l1", "expected"),
    [
        (60, 40 + SPREAD, 5, ("reproduced", "reproduced", "reproduced", "reproduced")),
        (60, 60 + SPREAD, 5, ("reproduced", "reproduced", "partly", "reproduced")),
        (60, 5 + SPREAD, 60, ("reproduced", "underpowered", "partly", "not reproduced")),
        (
            20 + SPREAD,
            15 + SPREAD,
            30 + SPREAD,
            ("underpowered", "not reproduced", "partly", "not reproduced"),
        ),
    ],
)
def test_verdicts(gradient, l2, l1, expected):
    """Recovery, l1 below the gradient, the order, and the l2 vertex shows the image; of six images, in dB."""
    final = {"gradient": gradient, "l2": l2, "l2 as gradient": 10, "l1": l1, GREY: 13}
    found = claims({name: value + 0.1 * SPREAD for name, value in final.items()}, 100.0)
    assert tuple(claim.verdict for claim in found[:4]) == expected
    assert "less by" in found[2].ours


@pytest.mark.full
def test_quick_run_on_shipped_digits(tmp_path):
    found = reproduce("fw-privacy", tmp_path, quick=True)
    assert len(found.outcome.claims) == 6
    assert {f.name for f in tmp_path.iterdir()} >= {"page.html", "pictures.png", "psnr.png", "signals.csv"}
    assert len(list((tmp_path / "parts").iterdir())) == 2  # images


# The study of central, shared and local noise: all methods have spent the same epsilon after the last round.


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(study.CASES, ["FEMNIST, epsilon 8"]))
def test_epsilon_is_equal(name):
    """To a promille, by each method's own account; the sums of fewer clients cost shared noise nothing more."""
    _, epsilon = study.CASES[name]
    made: Any = {label: method.make(**method.published) for label, method in study.methods(name).items()}
    spent = {
        study.CENTRAL: made[study.CENTRAL].epsilon_after(study.ROUNDS),
        study.BY_RENYI: made[study.BY_RENYI]._renyi_after(study.ROUNDS),
        study.SHARED: made[study.SHARED].inner.epsilon_after(study.ROUNDS),
        study.FEWER: made[study.FEWER].inner.epsilon_after(study.ROUNDS),
        study.LOCAL: epsilon_of(made[study.LOCAL].gdp_mu * math.sqrt(study.ROUNDS), study.DELTA),
    }
    assert {label: float(x) for label, x in spent.items()} == pytest.approx(
        dict.fromkeys(spent, epsilon), rel=2e-3
    )


@pytest.mark.full
def test_a_quick_run(tmp_path):
    assert not reproduce("privacy-utility", tmp_path, quick=True).outcome.claims


@pytest.mark.parametrize("name", crossed(extrapolation.CASES, ["regression, epsilon 3"]))
def test_private_methods_spend_what_their_problem_says(name):
    """By their own account, with what FedExP's second number costs, and under local noise."""
    data, epsilon = extrapolation.CASES[name]
    for method in extrapolation.methods(name).values():
        made: Any = method.make(**{axis: values[0] for axis, values in method.grid.items()})
        spent = (
            epsilon_of(made.gdp_mu * math.sqrt(data.rounds), extrapolation.DELTA)
            if data.local
            else made.epsilon_after(data.rounds)
        )
        assert float(spent) == pytest.approx(epsilon, rel=2e-3)
        assert made.clip_norm == extrapolation.CLIP_NORMS[0]


def test_the_regression_has_one_minimiser():
    """Another vector for each seed, the same for all clients."""
    x, y = extrapolation.regression(None, 1, 4, 6).data.examples
    truth = np.linalg.lstsq(x, y)[0]
    np.testing.assert_allclose(x @ truth, y, atol=1e-6)
    assert abs(extrapolation.regression(None, 2, 4, 6).data.examples[1] - y).max() > 0.1


@pytest.mark.full
def test_a_quick_run_of_private_extrapolation(tmp_path):
    assert not reproduce("private-extrapolation", tmp_path, quick=True).outcome.claims


# The study of robust reductions: its cases, rules on made-up accuracies, and a quick run.

STUDY = robustness.STUDY
NOISE = np.array([0.0, 0.002, -0.002, 0.001, -0.001])


def made_up(**accuracy):
    """Accuracy 0.9 everywhere, another on the problems named, such as `noise_10`; seeds differ a little."""
    cells = {}
    for name in STUDY.problems:
        key = name.replace(" %", "").replace("-", "_").replace(" ", "_").replace(",", "")
        last = accuracy.get(key, 0.9) + NOISE * (1 + (key != "none"))
        curve = np.stack([np.full(5, 0.1), last], axis=1)[None]
        metrics = {"test_accuracy": curve, "train_loss": np.ones((1, 5, 2)) * [2, 1]}
        sweep = SweepRecord(
            "mean", name, {"client_lr": (0.5,)}, STUDY.seeds, np.array([0, 40]), metrics,
            np.where(np.isnan(last), 40, -1)[None], Selection("train_loss", 1),
        )  # fmt: skip
        cells[name, "mean"] = Cell(sweep, None, None)
    return Cells(STUDY.problems, STUDY.seeds, cells)


def test_what_is_lost_is_paired_with_the_same_data_without_attackers():
    cells = made_up(noise_10=0.7, none_clients_differ=0.6, little_20_clients_differ=0.55, min_max_20=np.nan)
    np.testing.assert_allclose(lost(cells, "noise 10 %", "mean"), 20 - 100 * NOISE, atol=1e-9)
    np.testing.assert_allclose(lost(cells, at("little", 20, DIFFERENT), "mean").mean(), 5, atol=1e-9)
    assert np.isinf(lost(cells, "min-max 20 %", "mean")).all()


@pytest.mark.parametrize(
    ("ten", "forty", "verdict"),
    [
        (0.88, 0.87, "reproduced"),
        (0.88, 0.2, "partly"),
        (0.2, 0.3, "not reproduced"),
        (0.2, np.nan, "not reproduced"),
        (0.85, 0.85, "underpowered"),
    ],
)
def test_to_withstand_is_to_lose_less_than_the_margin(ten, forty, verdict):
    cells = made_up(noise_10=ten, noise_40=forty)
    found = withstands("mean", ["noise 10 %", "noise 40 %"])(cells)
    assert found.verdict == verdict
    if verdict == "partly":
        assert "1 of 2 (noise 10 %), the contrary in 1 (noise 40 %)" in found.reason
    contrary = {"reproduced": "not reproduced", "not reproduced": "reproduced"}.get(verdict, verdict)
    if contrary != "partly":
        assert {breaks(["mean"], f"noise {share} %")(cells).verdict for share in (10, 40)} == {contrary}


def test_more_harm_is_a_paired_difference():
    cells = made_up(noise_10=0.8, noise_20=0.7, noise_40=np.nan)
    for a, b, verdict in ((20, 10, "reproduced"), (10, 20, "not reproduced"), (40, 20, "reproduced")):
        assert more_harm(f"noise {a} %", f"noise {b} %", ["mean"])(cells).verdict == verdict
    assert more_harm("noise 10 %", "label flip 10 %", ["mean"])(cells).verdict == "reproduced"
    assert more_harm("label flip 10 %", "little 10 %", ["mean"])(cells).verdict == "underpowered"


def test_nothing_is_tuned_so_one_table_has_all_problems():
    found = tables(made_up(noise_10=0.8))
    assert list(found) == ["results"]
    assert len(found["results"].rows) == len(STUDY.problems)
    assert found["results"].rows[1] == ["noise 10 %", "80 ± 0.32 %"]


def test_every_case_is_what_its_name_says():
    assert len(STUDY.problems) == 1 + 6 * 3 + 1 + 3
    case = robustness.CASES["little 40 %"]
    assert (case.attack, case.attackers) == ("little", 12)
    colluding = case.method(fs.robust.Median())(0.5)
    assert isinstance(colluding.attack, fs.attacks.ALittleIsEnough)
    assert colluding.reduction.then == fs.robust.Median()
    few = robustness.CASES["noise 10 %"].method(None)(0.5)
    assert few.attackers.tolist() == [0, 1, 2, *[-1] * 9]
    assert few.reduction is None
    flipped, plain = (
        robustness.CASES[name].task(None, 3).data for name in ("label flip 20 %", at("", 0, ALIKE))
    )
    turned = [not np.array_equal(flipped.client(i).y, plain.client(i).y) for i in range(robustness.CLIENTS)]
    assert turned == [i < 6 for i in range(robustness.CLIENTS)]


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("robustness", tmp_path, quick=True)
    assert json.loads((tmp_path / "results.json").read_text())["quick"]
    assert set(made.outcome.pictures) == {"overview", "shares"}
    assert len(list((tmp_path / "parts").iterdir())) == 3 * 2
