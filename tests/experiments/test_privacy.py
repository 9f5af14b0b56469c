"""Leakage from gradients and from extreme points: the attack, its objective, and the verdicts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
from fedsolve.studies.reproduce import reproduce

NET = SmoothNet((8, 8, 1), classes=3, channels=4)
PARAMS = jax.jit(NET.init)(jax.random.key(0))
IMAGE = jnp.asarray(np.random.default_rng(0).uniform(size=(8, 8, 1)), jnp.float32)
GRADIENT, MISMATCH = jax.jit(partial(gradient, NET)), jax.jit(partial(mismatch, NET))
TRUE = GRADIENT(PARAMS, IMAGE, np.eye(3, dtype=np.float32)[1])


def guess(seed):
    draws = np.random.default_rng(seed)
    return Guess(*(draws.normal(size=shape).astype(np.float32) for shape in (IMAGE.shape, 3)))


def sent(name):
    """What a client of the true gradient sends."""
    return jax.jit(SIGNALS[name].of)(TRUE)


def test_gradient_of_the_dense_bias_is_softmax_minus_target():
    target = np.array([0.2, 0.3, 0.5], np.float32)
    bias = np.asarray(GRADIENT(PARAMS, IMAGE, target))[-3:]  # the last leaf is the dense bias or kernel
    found = jax.jit(jax.grad(lambda p: -jnp.sum(target * jax.nn.log_softmax(NET(p, IMAGE)))))(PARAMS)[-1][1]
    np.testing.assert_allclose(
        found, jax.jit(lambda p: jax.nn.softmax(NET(p, IMAGE)))(PARAMS) - target, atol=1e-6
    )
    np.testing.assert_allclose(bias, found, atol=1e-7)


def test_messages_are_what_frank_wolfe_clients_send():
    np.testing.assert_array_equal(sent("gradient"), TRUE)
    np.testing.assert_allclose(sent("l2"), TRUE / np.linalg.norm(TRUE), rtol=1e-5)
    of_l1 = np.asarray(sent("l1"))
    place = int(np.argmax(np.abs(TRUE)))
    assert np.flatnonzero(of_l1).tolist() == [place]
    assert of_l1[place] == np.sign(TRUE[place])


@pytest.mark.parametrize("name", SIGNALS)
def test_mismatch_is_the_formula_of_the_module(name):
    label = jax.jit(jax.nn.softmax)(guess(1).label)
    g = np.asarray(GRADIENT(PARAMS, guess(1).image, label), np.float64)
    true, unit = np.asarray(TRUE, np.float64), g / np.linalg.norm(g)
    place = np.argmax(np.abs(true))
    expected = {
        "gradient": np.sum((g - true) ** 2) / np.sum(true**2),
        "l2": 2 * (1 - unit @ true / np.linalg.norm(true)),
        "l2 as gradient": np.sum((g - true / np.linalg.norm(true)) ** 2),
        "l1": 2 * (1 - np.sign(true[place]) * unit[place]),
    }[name]
    signal = SIGNALS[name]
    found = MISMATCH(PARAMS, sent(name), signal.direction, guess(1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["gradient", "l2"])
def test_the_truth_has_no_mismatch(name):
    signal = SIGNALS[name]
    truth = Guess(IMAGE, np.array([0.0, 50.0, 0.0], np.float32))
    assert float(MISMATCH(PARAMS, sent(name), signal.direction, truth)) < 1e-9


@pytest.mark.full
def test_gradient_of_the_mismatch_is_its_slope():
    with jax.enable_x64(True):
        params, start, way, image = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64), (PARAMS, guess(2), guess(3), IMAGE)
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
        found = attack(NET, PARAMS, signal.of(TRUE), signal.direction, IMAGE, keys, looks=2, every=60)
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
